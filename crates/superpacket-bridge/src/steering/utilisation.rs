//! Decides by the load of a receiving thread whether it processes all packets of its queues itself
//! ("in place") or hands them to workers.

use std::collections::VecDeque;

/// Length in nanoseconds of a window, for which the load of a thread is measured.
const WINDOW: u64 = 10_000_000;

/// Busy share of a window, in percent, from which on a thread counts as fully loaded.
const FULL: u64 = 80;

/// Number of fully loaded windows in a row after which a thread tries to hand packets to workers. A
/// single one may only mean that the thread was not scheduled.
const FULL_WINDOWS: u64 = 2;

/// Share of a window, in percent, below which the work is light. The work of workers for the
/// thread's packets counts too.
const LIGHT: u64 = 45;

/// Number of light windows in a row after which a thread processes all packets itself again.
const LIGHT_WINDOWS: u64 = 10;

/// Number of windows over which throughput is measured to compare processing without and with
/// workers. The first window after a switch does not count, because it still has packets from
/// before.
const COMPARED: usize = 4;

/// Throughput with workers, in percent of that without, from which on handing packets to workers is
/// worth its additional CPU time.
const WORTHWHILE: u128 = 105;

/// A trial of working alone ends at once if a fully loaded window has less than this percentage of
/// the throughput with workers, because packets are being lost.
const END_TRIAL: u128 = 75;

/// Time in nanoseconds after a successful trial until the other mode (with or without workers) is
/// tried again. Each unsuccessful trial in a row multiplies the time by four.
const FIRST_WAIT: u64 = 200_000_000;

/// Maximum time in nanoseconds for which a fully loaded thread works alone without a trial of
/// handing packets over.
const LONGEST_IN_PLACE: u64 = FIRST_WAIT << 6;

/// Maximum time in nanoseconds for which a thread hands packets over without a trial of working
/// alone. It is long, because an unsuccessful trial loses packets. A trial begins at once if
/// throughput falls below [`END_TRIAL`] percent of that at the last one.
const LONGEST_STEERED: u64 = FIRST_WAIT << 10;

/// The load and throughput of a receiving thread, from which it decides for queues with [automatic
/// in-place processing](crate::settings::InPlace::Automatic) whether it works alone or hands
/// packets to workers.
///
/// Rounds of the thread's loop with packets count as busy by the clock, even while other threads
/// have the CPU; sleep and empty rounds do not. A thread that is not fully loaded would gain only
/// wake-ups by handing packets over. A fully loaded thread tries to hand packets over, and goes on
/// if more packets per second are processed. It tries the other way again from time to time. When
/// all work would easily fit on the thread, it works alone again.
#[derive(Clone, Debug)]
pub(crate) struct Utilisation {
    in_place: bool,
    /// Start of the current window, in nanoseconds.
    start: u64,
    /// Time in the current window for which the thread was busy, in nanoseconds.
    busy: u64,
    /// Number of windows in a row that favour a change: fully loaded ones if the thread works
    /// alone, light ones if it hands packets over.
    windows: u64,
    /// Start of the current round of the thread's loop, in nanoseconds.
    round: u64,
    /// Whether the current round had packets.
    had_packets: bool,
    /// Throughput of each of the last windows since the last change. If the thread works alone,
    /// only fully loaded windows in a row count.
    recent: VecDeque<Throughput>,
    /// Whether the first window after a change between the modes is still running.
    is_settling: bool,
    /// Throughput before the change, while the new mode (with or without workers) is on trial;
    /// otherwise `None`.
    tried_against: Option<Throughput>,
    /// Throughput of the present mode (with or without workers) in the last comparison.
    last_compared: Throughput,
    /// Time in nanoseconds between the last trial and the next.
    wait: u64,
    /// Time before which there is no trial, in nanoseconds.
    not_before: u64,
}

/// The number of received packets that were processed in some time.
#[derive(Clone, Copy, Debug, Default)]
struct Throughput {
    packets: u64,
    /// The time in which these packets were processed, in nanoseconds.
    time: u64,
}

impl Throughput {
    /// Returns whether this throughput is at least `percent` of the throughput `other`.
    fn reaches(self, percent: u128, other: Throughput) -> bool {
        let crosswise = |packets: u64, time: u64| u128::from(packets) * u128::from(time);
        crosswise(self.packets, other.time) * 100 >= crosswise(other.packets, self.time) * percent
    }
}

impl Utilisation {
    /// Returns the state of an idle thread, which works alone.
    pub(crate) const fn new() -> Self {
        Utilisation {
            in_place: true,
            start: 0,
            busy: 0,
            windows: 0,
            round: 0,
            had_packets: false,
            recent: VecDeque::new(),
            is_settling: false,
            tried_against: None,
            last_compared: Throughput { packets: 0, time: 1 },
            wait: FIRST_WAIT,
            not_before: 0,
        }
    }

    /// Ends the last round of the thread's loop, and begins a new one.
    #[inline]
    pub(crate) fn begin(&mut self, now: u64) {
        if self.had_packets {
            self.busy += now.saturating_sub(self.round);
        }
        (self.round, self.had_packets) = (now, false);
    }

    /// Records that the current round has packets.
    #[inline]
    pub(crate) fn found_packets(&mut self) {
        self.had_packets = true;
    }

    /// Returns whether the current window is over.
    #[inline]
    pub(crate) fn is_due(&self, now: u64) -> bool {
        now.saturating_sub(self.start) >= WINDOW
    }

    /// Ends the window, and returns whether the thread works alone from now on. `worker_time` is
    /// the time in nanoseconds that workers spent on this thread's packets, and `packets` the
    /// number of received packets that the thread and the workers processed.
    pub(crate) fn end_window(&mut self, now: u64, worker_time: u64, packets: u64) -> bool {
        let passed = now.saturating_sub(self.start).max(1);
        let share = |time: u64| u128::from(time) * 100 / u128::from(passed);
        let is_full = share(self.busy) >= u128::from(FULL);
        let is_light = share(self.busy + worker_time) < u128::from(LIGHT);
        (self.start, self.busy) = (now, 0);
        let speaks = match self.in_place {
            // The window counts as one, however long it was: a thread that slept in it is not fully
            // loaded.
            true => u64::from(is_full),
            // A thread that slept counts several windows without work.
            false if is_light => passed / WINDOW,
            false => 0,
        };
        self.windows = if speaks == 0 { 0 } else { self.windows + speaks };
        if !self.in_place && self.windows >= LIGHT_WINDOWS {
            // The load has changed.
            (self.wait, self.not_before) = (FIRST_WAIT, now);
            self.switch(None);
            return self.in_place;
        }
        if std::mem::take(&mut self.is_settling) {
            return self.in_place;
        }
        let window = Throughput { packets, time: passed };
        if self.in_place && self.tried_against.is_none() && !is_full {
            self.recent.clear();
            return self.in_place;
        }
        self.recent.truncate(COMPARED - 1);
        self.recent.push_front(window);
        match self.tried_against {
            Some(other) if self.recent.len() == COMPARED => self.end_trial(now, other),
            Some(other) if self.in_place && is_full && !window.reaches(END_TRIAL, other) => {
                self.end_trial(now, other)
            }
            None if self.has_much_to_do() => {
                if !self.in_place && !self.done().reaches(END_TRIAL, self.last_compared) {
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

    /// Restarts in the state of an idle thread, because no queue uses the decision at present.
    pub(crate) fn restart(&mut self, now: u64) {
        *self = Utilisation {
            start: now,
            round: self.round,
            had_packets: self.had_packets,
            ..Self::new()
        };
    }

    /// Returns whether the load justifies a trial of the other mode (with or without workers).
    fn has_much_to_do(&self) -> bool {
        if self.in_place {
            self.windows >= FULL_WINDOWS
        } else {
            self.windows == 0 && self.recent.len() == COMPARED
        }
    }

    /// Returns the total throughput of the last windows.
    fn done(&self) -> Throughput {
        self.recent.iter().fold(Throughput::default(), |sum, one| Throughput {
            packets: sum.packets + one.packets,
            time: sum.time + one.time,
        })
    }

    /// Ends a trial: keeps the new mode, or returns to the one before, whose throughput is `other`.
    fn end_trial(&mut self, now: u64, other: Throughput) {
        let tried = self.done();
        let (in_place, steered) = if self.in_place { (tried, other) } else { (other, tried) };
        let longest = if self.in_place { LONGEST_STEERED } else { LONGEST_IN_PLACE };
        self.tried_against = None;
        if steered.reaches(WORTHWHILE, in_place) == self.in_place {
            (self.last_compared, self.wait) = (other, (self.wait * 4).min(longest));
            self.switch(None);
        } else {
            (self.last_compared, self.wait) = (tried, FIRST_WAIT);
        }
        self.not_before = now + self.wait;
    }

    fn switch(&mut self, tried_against: Option<Throughput>) {
        (self.in_place, self.windows, self.is_settling) = (!self.in_place, 0, true);
        self.tried_against = tried_against;
        self.recent.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A simulated thread with its own clock.
    struct Simulated {
        utilisation: Utilisation,
        now: u64,
        switches: Vec<(u64, bool)>,
        /// Time for which the thread worked without workers, in nanoseconds.
        alone: u64,
        packets: u64,
        /// Throughput with workers, in percent of the throughput without.
        gain: u64,
    }

    impl Simulated {
        /// Returns a thread that is three times as fast with workers.
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

        /// Simulates a packet every `period` nanoseconds, or as soon as the thread is free. Without
        /// workers, the thread takes `own` percent of the period for a packet. With workers, it
        /// takes less according to `gain`, and the workers take the rest plus a tenth.
        fn run(&mut self, milliseconds: u64, own: u64, period: u64) -> bool {
            let end = self.now + milliseconds * 1_000_000;
            let mut worker_time = 0;
            while self.now < end {
                let alone = period * own / 100;
                let busy = if self.utilisation.in_place { alone } else { alone * 100 / self.gain };
                worker_time += alone.saturating_sub(busy) * 11 / 10;
                self.round(busy, period.saturating_sub(busy), &mut worker_time);
            }
            self.utilisation.in_place
        }

        fn round(&mut self, busy: u64, idle: u64, worker_time: &mut u64) {
            self.utilisation.begin(self.now);
            if self.utilisation.is_due(self.now) {
                let before = self.utilisation.in_place;
                if self.utilisation.end_window(
                    self.now,
                    std::mem::take(worker_time),
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
            // The loop has an empty round, and then sleeps.
            self.utilisation.begin(self.now);
            self.now += idle;
        }

        /// Runs the simulation, and returns for which share of the time the thread worked without
        /// workers, in percent.
        fn alone_of(&mut self, milliseconds: u64) -> u64 {
            std::mem::take(&mut self.alone) / (milliseconds * 10_000)
        }
    }

    #[test]
    fn a_light_thread_works_alone_and_a_full_one_hands_over() {
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
        // The window that was running at the start counts too.
        assert!(
            (1190..1220).contains(&at),
            "a tenth of a second of light load, not {} ms",
            at - 1100
        );
    }

    #[test]
    fn a_successful_trial_is_kept_and_repeated_less_and_less_often() {
        let mut thread = Simulated::new();
        thread.run(100_000, 200, 50_000);
        assert_eq!(thread.alone_of(100_000), 0, "{:?}", thread.switches);
        // It switched once, and tried the other mode and returned after 0.2, 0.8, 3.2, 12.8 and
        // 51.2 s.
        assert_eq!(thread.switches.len(), 1 + 2 * 5, "{:?}", thread.switches);
        let trials = thread.switches[1..].chunks(2).map(|trial| trial[1].0 - trial[0].0);
        assert!(
            trials.max() <= Some(30),
            "in place half of the packets are lost: {:?}",
            thread.switches
        );
    }

    #[test]
    fn a_failed_trial_is_ended_and_repeated_less_and_less_often() {
        // The thread is full, but throughput with workers is equal, or lower by a little or a lot.
        for (own, gain) in [(95, 300), (120, 100), (120, 104), (120, 79), (120, 30)] {
            let mut thread = Simulated::new();
            thread.gain = gain;
            thread.run(1_000, own, 50_000);
            assert!(thread.alone_of(1_000) >= 85, "{own} %, {gain} %: {:?}", thread.switches);
            thread.run(99_000, own, 50_000);
            assert!(thread.alone_of(99_000) >= 99, "{own} %, {gain} %: {:?}", thread.switches);
            // Trials at once, after 0.8 and 3.2 s, and then every 12.8 s.
            assert_eq!(
                thread.switches.len(),
                2 * (3 + 7),
                "{own} %, {gain} %: {:?}",
                thread.switches
            );
        }
        // If the gain is above the threshold, the thread goes on to hand packets over.
        let mut thread = Simulated::new();
        thread.gain = 110;
        thread.run(10_000, 120, 50_000);
        assert!(thread.alone_of(10_000) <= 5, "{:?}", thread.switches);
    }

    #[test]
    fn changes_of_the_gain_are_noticed() {
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
    fn a_comparison_made_under_growing_load_is_repeated() {
        let mut thread = Simulated::new();
        // For 20 ms throughput is lower than afterwards.
        thread.gain = 79;
        thread.run(30, 100, 100_000);
        thread.run(1_000, 100, 50_000);
        thread.alone = 0;
        assert!(thread.run(10_000, 100, 50_000));
        assert!(thread.alone_of(10_000) >= 98, "{:?}", thread.switches);
    }

    #[test]
    fn a_load_between_the_thresholds_stays_in_place() {
        // The time of the workers counts: the thread's own third of the work would be light.
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
    fn a_load_near_a_threshold_switches_rarely() {
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
        // The thread was not scheduled for 50 ms in the middle of a round.
        thread.round(50_000_000, 0, &mut 0);
        assert!(thread.run(100, 20, 50_000) && thread.switches.is_empty());
    }

    #[test]
    fn after_silence_the_thread_works_alone_from_the_first_packet() {
        let mut thread = Simulated::new();
        assert!(!thread.run(100, 200, 50_000));
        thread.round(1_000, 1_000_000_000, &mut 0);
        thread.round(1_000, 1_000, &mut 0);
        assert!(thread.utilisation.in_place);
    }

    #[test]
    fn empty_rounds_do_not_count_as_work() {
        let mut utilisation = Utilisation::new();
        // The thread polls all the time, and finds a packet every tenth time.
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
    fn a_restarted_utilisation_counts_as_idle() {
        let mut thread = Simulated::new();
        assert!(!thread.run(100, 200, 50_000));
        thread.utilisation.restart(thread.now);
        assert!(thread.utilisation.in_place && !thread.utilisation.is_due(thread.now));
    }
}
