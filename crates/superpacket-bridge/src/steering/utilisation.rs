//! How busy a receiving thread is, and whether it can do the work of its queues alone.

/// How long time is summed up before it is looked at, in nanoseconds.
const WINDOW: u64 = 10_000_000;

/// A thread is full if it is busy for so much of a window, in percent.
const FULL: u64 = 80;

/// A thread that is full in so many windows, one after the other, hands over: one alone may be a
/// thread that was kept from running.
const FULL_WINDOWS: u64 = 2;

/// The work is light if all of it, the workers' share included, takes less than so much of a
/// window, in percent.
const LIGHT: u64 = 45;

/// If the work is light in so many windows, one after the other, the thread does it alone again.
const LIGHT_WINDOWS: u64 = 10;

/// The share of time that a receiving thread is busy, and what follows for queues that are
/// processed [in place by themselves](crate::settings::InPlace::Automatic).
///
/// Busy is the time of rounds that had packets, by the clock: sleeping in between is not, nor
/// looking in vain. Time in which others were given the CPU counts: more packets wait meanwhile. A
/// thread that has more to do than it can never finds nothing, however little of a CPU it is given.
/// As long as the thread is not full, handing packets over brings nothing but wake-ups. When it is,
/// it hands them over until all the work, its own and what workers did for its queues, would fit
/// well below that again. Between the two marks nothing changes.
#[derive(Clone, Debug)]
pub(crate) struct Utilisation {
    in_place: bool,
    /// When the window began, in nanoseconds.
    start: u64,
    /// Busy time in the window.
    busy: u64,
    /// The windows in a row that speak for the other way.
    windows: u64,
    /// When the round began that is not over.
    round: u64,
    /// That round had packets.
    had_packets: bool,
}

impl Utilisation {
    /// Has nothing to do.
    pub(crate) const fn new() -> Self {
        Utilisation { in_place: true, start: 0, busy: 0, windows: 0, round: 0, had_packets: false }
    }

    /// A round begins, and with it ends the one before.
    #[inline]
    pub(crate) fn begin(&mut self, now: u64) {
        if self.had_packets {
            self.busy += now.saturating_sub(self.round);
        }
        (self.round, self.had_packets) = (now, false);
    }

    /// The round that has begun found packets.
    #[inline]
    pub(crate) fn found_packets(&mut self) {
        self.had_packets = true;
    }

    /// Is a window over?
    #[inline]
    pub(crate) fn is_due(&self, now: u64) -> bool {
        now.saturating_sub(self.start) >= WINDOW
    }

    /// Ends the window, in which workers spent so many nanoseconds on what this thread handed over;
    /// says whether it does the work alone from now on.
    pub(crate) fn end_window(&mut self, now: u64, elsewhere: u64) -> bool {
        let passed = now.saturating_sub(self.start).max(1);
        let share = |time: u64| u128::from(time) * 100 / u128::from(passed);
        let (speaks, needed) = if self.in_place {
            // However long it was: a thread that slept meanwhile is not full.
            (u64::from(share(self.busy) >= u128::from(FULL)), FULL_WINDOWS)
        } else if share(self.busy + elsewhere) < u128::from(LIGHT) {
            // One that slept had more than one window without work.
            (passed / WINDOW, LIGHT_WINDOWS)
        } else {
            (0, LIGHT_WINDOWS)
        };
        self.windows = if speaks == 0 { 0 } else { self.windows + speaks };
        if self.windows >= needed {
            (self.in_place, self.windows) = (!self.in_place, 0);
        }
        (self.start, self.busy) = (now, 0);
        self.in_place
    }

    /// No queue follows it: it begins again as one that has nothing to do.
    pub(crate) fn restart(&mut self, now: u64) {
        *self = Utilisation { start: now, round: self.round, had_packets: self.had_packets, ..Self::new() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time passes as it is told.
    struct Simulated {
        utilisation: Utilisation,
        now: u64,
        switches: Vec<(u64, bool)>,
    }

    impl Simulated {
        fn new() -> Self {
            Simulated { utilisation: Utilisation::new(), now: 0, switches: Vec::new() }
        }

        /// Rounds of `period` nanoseconds, of which the thread is busy for `own` percent while it
        /// processes all by itself. While it steers, it needs a third of that, and workers need all
        /// that the rest takes and a tenth more.
        fn run(&mut self, milliseconds: u64, own: u64, period: u64) -> bool {
            let end = self.now + milliseconds * 1_000_000;
            let mut elsewhere = 0;
            while self.now < end {
                let alone = period * own / 100;
                let busy = if self.utilisation.in_place { alone } else { alone / 3 };
                elsewhere += (alone - busy) * 11 / 10;
                self.round(busy, period - busy, &mut elsewhere);
            }
            self.utilisation.in_place
        }

        fn round(&mut self, busy: u64, idle: u64, elsewhere: &mut u64) {
            self.utilisation.begin(self.now);
            if self.utilisation.is_due(self.now) {
                let before = self.utilisation.in_place;
                if self.utilisation.end_window(self.now, std::mem::take(elsewhere)) != before {
                    self.switches.push((self.now / 1_000_000, !before));
                }
            }
            self.utilisation.found_packets();
            self.now += busy;
            // The round that finds nothing, and the sleep.
            self.utilisation.begin(self.now);
            self.now += idle;
        }
    }

    #[test]
    fn a_thread_with_time_left_works_alone_and_a_full_one_hands_over() {
        let mut thread = Simulated::new();
        assert!(thread.run(500, 30, 50_000) && thread.run(500, 70, 50_000));
        assert!(!thread.run(100, 95, 50_000));
        let [(at, false)] = thread.switches[..] else { panic!("{:?}", thread.switches) };
        assert!((1020..1035).contains(&at), "within {} ms of full load, not {}", 3 * WINDOW / 1_000_000, at - 1000);
        assert!(thread.run(300, 30, 50_000));
        let [_, (at, true)] = thread.switches[..] else { panic!("{:?}", thread.switches) };
        // The window that had begun counts as well.
        assert!((1190..1220).contains(&at), "a tenth of a second of light load, not {} ms", at - 1100);
    }

    #[test]
    fn a_load_between_the_marks_changes_nothing() {
        // What workers do counts: the thread's own third would be light.
        for (own, starts) in [(60, true), (60, false), (78, true), (78, false), (46, true), (46, false)] {
            let mut thread = Simulated::new();
            assert_eq!(thread.run(100, if starts { 10 } else { 100 }, 20_000), starts);
            let before = thread.switches.len();
            assert_eq!(thread.run(10_000, own, 20_000), starts, "{own} %");
            assert_eq!(thread.switches.len(), before, "{own} %: {:?}", thread.switches);
        }
    }

    #[test]
    fn a_load_that_wavers_around_either_mark_changes_it_once() {
        for marks in [[70, 90], [35, 50]] {
            let mut thread = Simulated::new();
            for turn in 0..1000 {
                thread.run(7, marks[turn % 2], 20_000);
            }
            assert!(thread.switches.len() <= 1, "{marks:?}: {:?}", thread.switches);
        }
    }

    #[test]
    fn one_long_window_is_not_enough_to_hand_over() {
        let mut thread = Simulated::new();
        thread.run(100, 20, 50_000);
        // Kept from running for 50 ms in the middle of a round.
        thread.round(50_000_000, 0, &mut 0);
        assert!(thread.run(100, 20, 50_000) && thread.switches.is_empty());
    }

    #[test]
    fn after_silence_it_works_alone_from_the_first_packet_on() {
        let mut thread = Simulated::new();
        assert!(!thread.run(100, 100, 50_000));
        thread.round(1_000, 1_000_000_000, &mut 0);
        thread.round(1_000, 1_000, &mut 0);
        assert!(thread.utilisation.in_place);
    }

    #[test]
    fn rounds_in_vain_are_not_work() {
        let mut utilisation = Utilisation::new();
        // It looks for packets all the time, and each tenth time there is one.
        for round in 0..100_000u64 {
            let now = round * 1_000;
            utilisation.begin(now);
            if utilisation.is_due(now) {
                assert!(utilisation.end_window(now, 0));
            }
            if round % 10 == 0 {
                utilisation.found_packets();
            }
        }
    }

    #[test]
    fn one_that_nobody_follows_has_time() {
        let mut thread = Simulated::new();
        assert!(!thread.run(100, 100, 50_000));
        thread.utilisation.restart(thread.now);
        assert!(thread.utilisation.in_place && !thread.utilisation.is_due(thread.now));
    }
}
