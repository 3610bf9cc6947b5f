//! How busy a receiving thread is, whether it can do the work of its queues alone, and whether it
//! has done more since it hands packets over.

use std::collections::VecDeque;

/// How long time is summed up before it is looked at, in nanoseconds.
const WINDOW: u64 = 10_000_000;

/// A thread is full if it is busy for so much of a window, in percent.
const FULL: u64 = 80;

/// A thread that is full in so many windows, one after the other, tries to hand over: one alone may
/// be a thread that was kept from running.
const FULL_WINDOWS: u64 = 2;

/// The work is light if all of it, the workers' share included, takes less than so much of a
/// window, in percent.
const LIGHT: u64 = 45;

/// If the work is light in so many windows, one after the other, the thread does it alone again.
const LIGHT_WINDOWS: u64 = 10;

/// So many windows are compared with so many of the other way. The first one after a switch is
/// not: it has packets that went the other way.
const COMPARED: usize = 4;

/// Handing over pays if so many packets a second are processed for 100 in place: it takes more of
/// the CPUs.
const PAYS: u128 = 105;

/// Where a full window in place has fewer packets a second than this for 100 of those steered, no
/// more of them are lost to find out.
const HOPELESS: u128 = 75;

/// How long the other way is not tried after a switch that paid, in nanoseconds; four times as long
/// after each one in a row that did not.
const FIRST_WAIT: u64 = 200_000_000;

/// At most so long a full thread does not try to hand over.
const LONGEST_IN_PLACE: u64 = FIRST_WAIT << 6;

/// At most so long a thread that hands over does not try to work alone: packets are lost where it
/// cannot. It tries at once if it has fewer packets than [`HOPELESS`] says of those that it had
/// when it tried last.
const LONGEST_STEERED: u64 = FIRST_WAIT << 10;

/// The share of time that a receiving thread is busy, what it gets done, and what follows for
/// queues that are processed [in place by themselves](crate::settings::InPlace::Automatic).
///
/// Busy is the time of rounds that had packets, by the clock: sleeping in between is not, nor
/// looking in vain. Time in which others were given the CPU counts: more packets wait meanwhile. A
/// thread that has more to do than it can never finds nothing, however little of a CPU it is given.
/// As long as the thread is not full, handing packets over brings nothing but wake-ups. When it is,
/// handing them over may bring more, or less: where those that send wait for answers, a thread can
/// be full and yet all that could come does, and the workers take CPUs, caches and time from the
/// hosts. So it is tried, and kept if more packets a second are processed; from time to time the
/// other way is tried again. Once all the work, its own and what workers did for its queues, would
/// fit well below full again, the thread does it alone.
#[derive(Clone, Debug)]
pub(crate) struct Utilisation {
    in_place: bool,
    /// When the window began, in nanoseconds.
    start: u64,
    /// Busy time in the window.
    busy: u64,
    /// The windows in a row that speak for the other way: full ones in place, light ones else.
    windows: u64,
    /// When the round began that is not over.
    round: u64,
    /// That round had packets.
    had_packets: bool,
    /// What got done in the last windows of this way; in place, in those in a row that were full.
    recent: VecDeque<Done>,
    /// The first window since a switch is not over.
    settles: bool,
    /// What got done the other way, while this one is tried.
    tried_against: Option<Done>,
    /// What got done this way when it was compared last.
    kept: Done,
    /// How long the other way is not tried, and until when, in nanoseconds.
    wait: u64,
    not_before: u64,
}

/// So many received packets were processed in a time.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    packets: u64,
    /// In nanoseconds.
    time: u64,
}

impl Done {
    /// Is this at least so many percent of the other's packets a second?
    fn reaches(self, percent: u128, other: Done) -> bool {
        let crosswise = |packets: u64, time: u64| u128::from(packets) * u128::from(time);
        crosswise(self.packets, other.time) * 100 >= crosswise(other.packets, self.time) * percent
    }
}

impl Utilisation {
    /// Has nothing to do.
    pub(crate) const fn new() -> Self {
        Utilisation {
            in_place: true,
            start: 0,
            busy: 0,
            windows: 0,
            round: 0,
            had_packets: false,
            recent: VecDeque::new(),
            settles: false,
            tried_against: None,
            kept: Done { packets: 0, time: 1 },
            wait: FIRST_WAIT,
            not_before: 0,
        }
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

    /// Ends the window, in which workers spent so many nanoseconds on what this thread handed over,
    /// and so many received packets were processed, here or there; says whether it does the work
    /// alone from now on.
    pub(crate) fn end_window(&mut self, now: u64, elsewhere: u64, packets: u64) -> bool {
        let passed = now.saturating_sub(self.start).max(1);
        let share = |time: u64| u128::from(time) * 100 / u128::from(passed);
        let is_full = share(self.busy) >= u128::from(FULL);
        let is_light = share(self.busy + elsewhere) < u128::from(LIGHT);
        (self.start, self.busy) = (now, 0);
        let speaks = match self.in_place {
            // However long it was: a thread that slept meanwhile is not full.
            true => u64::from(is_full),
            // One that slept had more than one window without work.
            false if is_light => passed / WINDOW,
            false => 0,
        };
        self.windows = if speaks == 0 { 0 } else { self.windows + speaks };
        if !self.in_place && self.windows >= LIGHT_WINDOWS {
            // What comes next is another load.
            (self.wait, self.not_before) = (FIRST_WAIT, now);
            self.switch(None);
            return self.in_place;
        }
        if std::mem::take(&mut self.settles) {
            return self.in_place;
        }
        let window = Done { packets, time: passed };
        if self.in_place && self.tried_against.is_none() && !is_full {
            self.recent.clear();
            return self.in_place;
        }
        self.recent.truncate(COMPARED - 1);
        self.recent.push_front(window);
        match self.tried_against {
            Some(other) if self.recent.len() == COMPARED => self.judge(now, other),
            Some(other) if self.in_place && is_full && !window.reaches(HOPELESS, other) => {
                self.judge(now, other)
            }
            None if self.has_much_to_do() => {
                if !self.in_place && !self.done().reaches(HOPELESS, self.kept) {
                    (self.wait, self.not_before) = (FIRST_WAIT, now);
                }
                if now >= self.not_before {
                    self.switch(Some(self.done()));
                }
            }
            _ => {}
        }
        self.in_place
    }

    /// No queue follows it: it begins again as one that has nothing to do.
    pub(crate) fn restart(&mut self, now: u64) {
        *self = Utilisation {
            start: now,
            round: self.round,
            had_packets: self.had_packets,
            ..Self::new()
        };
    }

    /// May the other way be better?
    fn has_much_to_do(&self) -> bool {
        if self.in_place {
            self.windows >= FULL_WINDOWS
        } else {
            self.windows == 0 && self.recent.len() == COMPARED
        }
    }

    /// What got done in the last windows.
    fn done(&self) -> Done {
        self.recent.iter().fold(Done::default(), |sum, one| Done {
            packets: sum.packets + one.packets,
            time: sum.time + one.time,
        })
    }

    /// Stays with the way that was tried, or goes back.
    fn judge(&mut self, now: u64, other: Done) {
        let tried = self.done();
        let (in_place, steered) = if self.in_place { (tried, other) } else { (other, tried) };
        let longest = if self.in_place { LONGEST_STEERED } else { LONGEST_IN_PLACE };
        self.tried_against = None;
        if steered.reaches(PAYS, in_place) == self.in_place {
            (self.kept, self.wait) = (other, (self.wait * 4).min(longest));
            self.switch(None);
        } else {
            (self.kept, self.wait) = (tried, FIRST_WAIT);
        }
        self.not_before = now + self.wait;
    }

    fn switch(&mut self, tried_against: Option<Done>) {
        (self.in_place, self.windows, self.settles) = (!self.in_place, 0, true);
        self.tried_against = tried_against;
        self.recent.clear();
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
        /// The time in which the thread worked alone.
        alone: u64,
        packets: u64,
        /// How many packets a second can be processed by handing over, in % of those in place.
        gain: u64,
    }

    impl Simulated {
        /// Handing over makes the thread three times as fast.
        fn new() -> Self {
            Simulated {
                utilisation: Utilisation::new(),
                now: 0,
                switches: Vec::new(),
                alone: 0,
                packets: 0,
                gain: 300,
            }
        }

        /// Packets come every `period` nanoseconds, or as soon as the thread has time again. They
        /// keep it busy for `own` percent of that while it processes all by itself. While it steers
        /// a packet takes it so much less time as the gain says, and workers need all that the rest
        /// takes and a tenth more.
        fn run(&mut self, milliseconds: u64, own: u64, period: u64) -> bool {
            let end = self.now + milliseconds * 1_000_000;
            let mut elsewhere = 0;
            while self.now < end {
                let alone = period * own / 100;
                let busy = if self.utilisation.in_place { alone } else { alone * 100 / self.gain };
                elsewhere += alone.saturating_sub(busy) * 11 / 10;
                self.round(busy, period.saturating_sub(busy), &mut elsewhere);
            }
            self.utilisation.in_place
        }

        fn round(&mut self, busy: u64, idle: u64, elsewhere: &mut u64) {
            self.utilisation.begin(self.now);
            if self.utilisation.is_due(self.now) {
                let before = self.utilisation.in_place;
                if self.utilisation.end_window(
                    self.now,
                    std::mem::take(elsewhere),
                    std::mem::take(&mut self.packets),
                ) != before
                {
                    self.switches.push((self.now / 1_000_000, !before));
                }
            }
            self.utilisation.found_packets();
            self.packets += 10;
            self.alone += if self.utilisation.in_place { busy + idle } else { 0 };
            self.now += busy;
            // The round that finds nothing, and the sleep.
            self.utilisation.begin(self.now);
            self.now += idle;
        }

        /// The share of the time in which it worked alone since this was asked last, in percent.
        fn alone_of(&mut self, milliseconds: u64) -> u64 {
            std::mem::take(&mut self.alone) / (milliseconds * 10_000)
        }
    }

    #[test]
    fn a_thread_with_time_left_works_alone_and_one_with_too_much_hands_over() {
        let mut thread = Simulated::new();
        assert!(thread.run(500, 30, 50_000) && thread.run(500, 70, 50_000));
        assert!(!thread.run(100, 150, 50_000));
        let [(at, false)] = thread.switches[..] else { panic!("{:?}", thread.switches) };
        assert!(
            (1020..1035).contains(&at),
            "within {} ms of full load, not {}",
            3 * WINDOW / 1_000_000,
            at - 1000
        );
        assert!(thread.run(300, 30, 50_000));
        let [_, (at, true)] = thread.switches[..] else { panic!("{:?}", thread.switches) };
        // The window that had begun counts as well.
        assert!(
            (1190..1220).contains(&at),
            "a tenth of a second of light load, not {} ms",
            at - 1100
        );
    }

    #[test]
    fn what_pays_is_kept_and_looked_at_again_ever_less_often() {
        let mut thread = Simulated::new();
        thread.run(100_000, 200, 50_000);
        assert_eq!(thread.alone_of(100_000), 0, "{:?}", thread.switches);
        // Over, and there and back again after 0.2, 0.8, 3.2, 12.8, and 51.2 seconds.
        assert_eq!(thread.switches.len(), 1 + 2 * 5, "{:?}", thread.switches);
        let trials = thread.switches[1..].chunks(2).map(|trial| trial[1].0 - trial[0].0);
        assert!(
            trials.max() <= Some(30),
            "in place half of the packets are lost: {:?}",
            thread.switches
        );
    }

    #[test]
    fn what_does_not_pay_is_given_up_and_tried_again_ever_less_often() {
        // Full, but nothing more could come; or less comes, by a little and by much.
        for (own, gain) in [(95, 300), (120, 100), (120, 104), (120, 79), (120, 30)] {
            let mut thread = Simulated::new();
            thread.gain = gain;
            thread.run(1_000, own, 50_000);
            assert!(thread.alone_of(1_000) >= 85, "{own} %, {gain} %: {:?}", thread.switches);
            thread.run(99_000, own, 50_000);
            assert!(thread.alone_of(99_000) >= 99, "{own} %, {gain} %: {:?}", thread.switches);
            // At once, after 0.8 and 3.2 seconds, and then each 12.8.
            assert_eq!(
                thread.switches.len(),
                2 * (3 + 7),
                "{own} %, {gain} %: {:?}",
                thread.switches
            );
        }
        // A gain that is above the mark is taken.
        let mut thread = Simulated::new();
        thread.gain = 110;
        thread.run(10_000, 120, 50_000);
        assert!(thread.alone_of(10_000) <= 5, "{:?}", thread.switches);
    }

    #[test]
    fn when_it_begins_to_pay_or_no_longer_does_that_is_found() {
        let mut thread = Simulated::new();
        for (gain, in_place) in [(79, true), (200, false), (79, true), (200, false)] {
            thread.gain = gain;
            thread.run(15_000, 200, 50_000);
            thread.alone = 0;
            assert_eq!(
                thread.run(15_000, 200, 50_000),
                in_place,
                "{gain} %: {:?}",
                thread.switches
            );
            let alone = thread.alone_of(15_000);
            assert!(if in_place { alone >= 98 } else { alone <= 2 }, "{gain} %: {alone} % alone");
        }
    }

    #[test]
    fn a_first_comparison_with_a_load_that_was_still_growing_does_not_last() {
        let mut thread = Simulated::new();
        // Twenty milliseconds at less than what comes then.
        thread.gain = 79;
        thread.run(30, 100, 100_000);
        thread.run(1_000, 100, 50_000);
        thread.alone = 0;
        assert!(thread.run(10_000, 100, 50_000));
        assert!(thread.alone_of(10_000) >= 98, "{:?}", thread.switches);
    }

    #[test]
    fn a_load_between_the_marks_stays_in_place() {
        // What workers do counts: the thread's own third would be light.
        for (own, starts) in
            [(60, true), (60, false), (78, true), (78, false), (46, true), (46, false)]
        {
            let mut thread = Simulated::new();
            assert_eq!(thread.run(100, if starts { 10 } else { 200 }, 20_000), starts);
            let before = thread.switches.len();
            assert!(thread.run(10_000, own, 20_000), "{own} %");
            assert_eq!(
                thread.switches.len() - before,
                usize::from(!starts),
                "{own} %: {:?}",
                thread.switches
            );
        }
    }

    #[test]
    fn a_load_that_wavers_around_either_mark_hands_over_seldom() {
        for marks in [[70, 90], [35, 50]] {
            let mut thread = Simulated::new();
            for turn in 0..1000 {
                thread.run(7, marks[turn % 2], 20_000);
            }
            assert!(thread.alone_of(7_000) >= 96, "{marks:?}: {:?}", thread.switches);
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
        assert!(!thread.run(100, 200, 50_000));
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
                assert!(utilisation.end_window(now, 0, 1_000));
            }
            if round % 10 == 0 {
                utilisation.found_packets();
            }
        }
    }

    #[test]
    fn one_that_nobody_follows_has_time() {
        let mut thread = Simulated::new();
        assert!(!thread.run(100, 200, 50_000));
        thread.utilisation.restart(thread.now);
        assert!(thread.utilisation.in_place && !thread.utilisation.is_due(thread.now));
    }
}
