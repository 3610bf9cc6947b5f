//! Processes packets in place while the load is too low for steering to pay.

use crate::settings::InPlace;

/// Time over which packets are counted for a rate, in nanoseconds.
const WINDOW: u64 = 10_000_000;

/// Whether a receive queue is processed in place now.
///
/// With a rate as threshold, the queue is steered as soon as the rate is reached. It returns only
/// after a whole window with less than half of it, so it does not flap near the threshold. The
/// thread's load is followed by [`Utilisation`](super::Utilisation), for all its queues.
#[derive(Clone, Debug)]
pub(super) struct InPlaceState {
    setting: InPlace,
    in_place: bool,
    /// The choice by the thread's utilisation.
    automatic: bool,
    /// Start of the window, in nanoseconds.
    start: u64,
    packets: u64,
    /// Number of switches since the last query.
    switches: u64,
}

impl InPlaceState {
    /// Returns a state that always steers. A new thread counts as idle.
    pub(super) const fn new() -> Self {
        InPlaceState {
            setting: InPlace::NEVER,
            in_place: false,
            automatic: true,
            start: 0,
            packets: 0,
            switches: 0,
        }
    }

    /// Sets the criterion, and returns whether packets are processed in place now.
    pub(super) fn set(&mut self, setting: InPlace) -> bool {
        if self.setting != setting {
            self.setting = setting;
            self.packets = 0;
            self.in_place = match setting {
                InPlace::Automatic => self.automatic,
                InPlace::Below(rate) => rate != 0,
            };
        }
        self.in_place
    }

    /// Sets the choice by the thread's utilisation, and returns whether packets are processed in
    /// place now.
    pub(super) fn set_automatic(&mut self, in_place: bool) -> bool {
        self.automatic = in_place;
        if self.is_automatic() && self.in_place != in_place {
            self.switch();
        }
        self.in_place
    }

    /// Returns whether the thread's utilisation decides.
    pub(super) fn is_automatic(&self) -> bool {
        self.setting == InPlace::Automatic
    }

    /// Returns whether packets are processed in place now.
    pub(super) const fn is_in_place(&self) -> bool {
        self.in_place
    }

    /// Counts received packets, and returns whether these and later ones are processed in place.
    #[inline]
    pub(super) fn received(&mut self, packets: usize, now: u64) -> bool {
        if let InPlace::Below(rate @ 1..) = self.setting {
            self.follow_rate(rate, packets as u64, now);
        }
        self.in_place
    }

    /// Returns the number of switches since the last call.
    pub(super) const fn take_switches(&mut self) -> u64 {
        std::mem::replace(&mut self.switches, 0)
    }

    fn follow_rate(&mut self, below: u64, packets: u64, now: u64) {
        self.packets += packets;
        let rate =
            |packets: u64, time: u64| u128::from(packets) * 1_000_000_000 / u128::from(time.max(1));
        let passed = now.saturating_sub(self.start);
        // A whole window's packets have arrived, so its end need not be awaited.
        let reached = rate(self.packets, passed.max(WINDOW)) >= u128::from(below);
        let is_quiet = passed >= WINDOW && rate(self.packets, passed) < u128::from(below / 2);
        let due = if self.in_place { reached } else { is_quiet };
        if due {
            self.switch();
        }
        if passed >= WINDOW {
            (self.start, self.packets) = (now, 0);
        }
    }

    fn switch(&mut self) {
        self.in_place = !self.in_place;
        self.switches += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives at a rate for some windows, one packet at a time, and returns the final state.
    fn run(state: &mut InPlaceState, now: &mut u64, rate: u64, windows: u64) -> bool {
        let gap = 1_000_000_000 / rate;
        let end = *now + windows * WINDOW;
        let mut last = state.in_place;
        while *now < end {
            *now += gap;
            last = state.received(1, *now);
        }
        last
    }

    #[test]
    fn it_follows_the_rate_with_hysteresis() {
        let (mut state, mut now) = (InPlaceState::new(), 0);
        assert!(state.set(InPlace::Below(10_000)), "with nothing to do, in place");
        assert!(run(&mut state, &mut now, 9_000, 10));
        assert!(!run(&mut state, &mut now, 11_000, 3));
        assert_eq!(state.take_switches(), 1);
        assert!(!run(&mut state, &mut now, 6_000, 10), "more than half");
        assert!(run(&mut state, &mut now, 4_000, 3));
        assert!(run(&mut state, &mut now, 9_000, 10));
        assert_eq!(state.take_switches(), 1);
        state.set_automatic(false);
        assert!(run(&mut state, &mut now, 9_000, 10), "a rate alone decides");
    }

    #[test]
    fn a_burst_after_silence_is_steered_at_once() {
        let mut state = InPlaceState::new();
        state.set(InPlace::Below(10_000));
        assert!(state.received(1, 5_000_000_000));
        assert!(state.received(50, 5_000_100_000));
        assert!(!state.received(100, 5_000_200_000));
    }

    #[test]
    fn without_a_rate_everything_is_steered() {
        let mut state = InPlaceState::new();
        assert!(!state.set(InPlace::NEVER) && !state.received(1, 1_000_000_000_000));
        state.set(InPlace::Below(5));
        assert!(!state.set(InPlace::NEVER));
        assert!(!state.set_automatic(true) && state.take_switches() == 0);
    }

    #[test]
    fn automatic_mode_follows_the_thread_at_any_rate() {
        let (mut state, mut now) = (InPlaceState::new(), 0);
        assert!(state.set(InPlace::Automatic), "a thread that has not begun has time");
        assert!(run(&mut state, &mut now, 1_000_000, 3));
        assert!(!state.set_automatic(false) && !state.set_automatic(false));
        assert!(!run(&mut state, &mut now, 10, 3));
        assert!(state.set(InPlace::Below(5)));
        assert!(!state.set(InPlace::Automatic), "the thread is still busy");
        assert!(state.set_automatic(true));
        assert_eq!(state.take_switches(), 2);
    }
}
