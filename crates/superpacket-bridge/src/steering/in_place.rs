//! When handing over does not pay: with little to do, packets are processed where they are received.

/// How long packets are counted before the rate is looked at, in nanoseconds.
const WINDOW: u64 = 10_000_000;

/// Follows the rate of a receive queue. Up to steering it goes as soon as the rate is reached, back only when there has been less than half of it for a whole window: a rate near the mark does not
/// switch to and fro.
#[derive(Clone, Debug, Default)]
pub(super) struct InPlace {
    /// Packets a second; 0: never in place.
    below: u64,
    in_place: bool,
    /// When the window began, in nanoseconds.
    start: u64,
    packets: u64,
    switches: u64,
}

impl InPlace {
    /// Sets the rate; says whether packets are processed in place now.
    pub(super) fn set(&mut self, below: u64) -> bool {
        if self.below != below {
            *self = InPlace { below, in_place: below != 0, start: self.start, packets: 0, switches: self.switches };
        }
        self.in_place
    }

    /// So many packets came; says whether this and what follows is processed in place.
    #[inline]
    pub(super) fn received(&mut self, packets: usize, now: u64) -> bool {
        if self.below != 0 {
            self.look(packets as u64, now);
        }
        self.in_place
    }

    /// How often it switched.
    pub(super) const fn switches(&self) -> u64 {
        self.switches
    }

    fn look(&mut self, packets: u64, now: u64) {
        self.packets += packets;
        let rate = |packets: u64, time: u64| u128::from(packets) * 1_000_000_000 / u128::from(time.max(1));
        let passed = now.saturating_sub(self.start);
        // As many as a whole window would have: there is no need to wait for its end.
        let reached = rate(self.packets, passed.max(WINDOW)) >= u128::from(self.below);
        let is_quiet = passed >= WINDOW && rate(self.packets, passed) < u128::from(self.below / 2);
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

    /// Sends at a rate for some windows, a packet at a time; says in place or not at the end.
    fn run(adaptive: &mut InPlace, now: &mut u64, rate: u64, windows: u64) -> bool {
        let gap = 1_000_000_000 / rate;
        let end = *now + windows * WINDOW;
        let mut last = adaptive.in_place;
        while *now < end {
            *now += gap;
            last = adaptive.received(1, *now);
        }
        last
    }

    #[test]
    fn it_follows_the_rate_with_hysteresis() {
        let (mut adaptive, mut now) = (InPlace::default(), 0);
        assert!(adaptive.set(10_000), "with nothing to do, in place");
        assert!(run(&mut adaptive, &mut now, 9_000, 10));
        assert!(!run(&mut adaptive, &mut now, 11_000, 3));
        assert_eq!(adaptive.switches(), 1);
        assert!(!run(&mut adaptive, &mut now, 6_000, 10), "more than half");
        assert!(run(&mut adaptive, &mut now, 4_000, 3));
        assert!(run(&mut adaptive, &mut now, 9_000, 10));
        assert_eq!(adaptive.switches(), 2);
    }

    #[test]
    fn a_burst_after_silence_is_steered_at_once() {
        let mut adaptive = InPlace::default();
        adaptive.set(10_000);
        assert!(adaptive.received(1, 5_000_000_000));
        assert!(adaptive.received(50, 5_000_100_000));
        assert!(!adaptive.received(100, 5_000_200_000));
    }

    #[test]
    fn without_a_rate_everything_is_steered() {
        let mut adaptive = InPlace::default();
        assert!(!adaptive.set(0) && !adaptive.received(1, 1_000_000_000_000));
        adaptive.set(5);
        assert!(!adaptive.set(0));
    }
}
