//! Packets over time, in a fixed number of intervals that grow with the capture.

/// How many intervals there are at most.
const INTERVALS: usize = 200;

/// The first width of an interval, in nanoseconds.
const FIRST_WIDTH: u64 = 1_000;

/// Packets over time, before and after aggregation.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// The first packet's time, in nanoseconds.
    start: Option<u64>,
    /// Nanoseconds in an interval.
    width: u64,
    before: [u64; INTERVALS],
    after: [u64; INTERVALS],
    /// Intervals in use.
    used: usize,
}

impl Default for Timeline {
    fn default() -> Self {
        Timeline { start: None, width: FIRST_WIDTH, before: [0; INTERVALS], after: [0; INTERVALS], used: 0 }
    }
}

impl Timeline {
    /// Counts a packet that was captured. Times before the first packet's count as its.
    pub(super) fn before(&mut self, time: u64) {
        let index = self.index(time);
        self.before[index] += 1;
    }

    /// Counts a packet that left.
    pub(super) fn after(&mut self, time: u64) {
        let index = self.index(time);
        self.after[index] += 1;
    }

    fn index(&mut self, time: u64) -> usize {
        let since = time.saturating_sub(*self.start.get_or_insert(time));
        while since / self.width >= INTERVALS as u64 {
            for counts in [&mut self.before, &mut self.after] {
                for index in 0..INTERVALS {
                    let pair = 2 * index;
                    counts[index] = counts.get(pair..pair + 2).map_or(0, |pair| pair.iter().sum());
                }
            }
            self.width = self.width.saturating_mul(2);
            self.used = self.used.div_ceil(2);
        }
        let index = (since / self.width) as usize;
        self.used = self.used.max(index + 1);
        index
    }

    /// Returns whether there is no more than one moment to be shown.
    pub fn is_empty(&self) -> bool {
        self.used < 2
    }

    /// Returns how many seconds the intervals cover.
    pub fn seconds(&self) -> f64 {
        self.used as f64 * self.width as f64 / 1e9
    }

    /// Returns packets per second in each interval: its start in seconds, before, and after.
    pub fn rates(&self) -> impl Iterator<Item = (f64, f64, f64)> + '_ {
        let width = self.width as f64 / 1e9;
        (0..self.used).map(move |index| (index as f64 * width, self.before[index] as f64 / width, self.after[index] as f64 / width))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_grow_and_nothing_is_lost() {
        let mut timeline = Timeline::default();
        let mut time = 5_000_000_000;
        for step in 0..1000u64 {
            timeline.before(time);
            if step % 2 == 0 {
                timeline.after(time);
            }
            time += step * step * 1000;
        }
        assert_eq!(timeline.before.iter().sum::<u64>(), 1000);
        assert_eq!(timeline.after.iter().sum::<u64>(), 500);
        assert!(timeline.used <= INTERVALS && timeline.used > INTERVALS / 3);
        assert!(timeline.seconds() >= (time - 5_000_000_000) as f64 / 1e9 * 0.9);
    }

    #[test]
    fn extreme_times_end() {
        let mut timeline = Timeline::default();
        for time in [u64::MAX, 0, u64::MAX, 17] {
            timeline.before(time);
        }
        let mut timeline_up = Timeline::default();
        for time in [0, u64::MAX, 5] {
            timeline_up.before(time);
        }
        assert_eq!(timeline.before[0], 4, "before the first packet's time");
        assert_eq!(timeline_up.before.iter().sum::<u64>(), 3);
    }
}
