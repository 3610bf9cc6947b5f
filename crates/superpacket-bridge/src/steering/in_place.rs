//! Decides by the packet rate whether a receive queue's packets are processed on the receiving
//! thread ("in place"), because the load is too low for workers to be worthwhile.

use crate::settings::InPlace;

/// Time in nanoseconds over which packets are counted to compute their rate.
const WINDOW: u64 = 10_000_000;

/// Whether the packets of a receive queue are processed on the receiving thread ("in place") now.
///
/// If the setting is a rate, packets go to workers as soon as that rate is reached. They are
/// processed in place again only after a whole window with less than half of the rate, so that the
/// decision does not change all the time near the rate. If the setting is automatic,
/// [`Utilisation`](super::Utilisation) decides by the load of the thread, for all its queues.
#[derive(Clone, Debug)]
pub(super) struct InPlaceState {
    setting: InPlace,
    in_place: bool,
    /// Whether packets are to be processed in place, as the thread's utilisation last decided.
    automatic: bool,
    /// Start of the window in which packets are counted, in nanoseconds.
    start: u64,
    packets: u64,
    /// How often `in_place` has changed since [`take_switches`](Self::take_switches) was last
    /// called.
    switches: u64,
}

impl InPlaceState {
    /// Returns a state in which all packets go to workers. For automatic settings a thread counts
    /// as idle at first.
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

    /// Changes the setting, and returns whether packets are processed in place now.
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

    /// Adopts the decision made by the thread's utilisation, which counts only if the setting is
    /// automatic. Returns whether packets are processed in place now.
    pub(super) fn set_automatic(&mut self, in_place: bool) -> bool {
        self.automatic = in_place;
        if self.is_automatic() && self.in_place != in_place {
            self.switch();
        }
        self.in_place
    }

    /// Returns whether the setting is automatic, so that the thread's utilisation decides.
    pub(super) fn is_automatic(&self) -> bool {
        self.setting == InPlace::Automatic
    }

    /// Returns whether packets are processed on the receiving thread now, instead of by workers.
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

    /// Returns how often the decision has changed since the last call.
    pub(super) const fn take_switches(&mut self) -> u64 {
        std::mem::replace(&mut self.switches, 0)
    }

    fn follow_rate(&mut self, below: u64, packets: u64, now: u64) {
        self.packets += packets;
        let rate =
            |packets: u64, time: u64| u128::from(packets) * 1_000_000_000 / u128::from(time.max(1));
        let passed = now.saturating_sub(self.start);
        // If a whole window's packets have already arrived, its end need not be awaited.
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

    /// Receives packets at a rate for some windows, one at a time, and returns the final decision.
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
