//! A histogram of transaction times, fine enough for percentiles and cheap enough to fill a million
//! times per second.

use std::time::Duration;

/// Buckets per power of two, so that a bucket spans at most 1/128 of its value.
const STEPS: usize = 1 << STEP_BITS;
const STEP_BITS: usize = 7;
const BUCKETS: usize = 64 * STEPS;

/// A histogram of durations with an error below 1 %.
#[derive(Clone, Debug)]
pub struct Latency {
    counts: Vec<u64>,
    count: u64,
    sum: Duration,
    longest: Duration,
}

impl Default for Latency {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], count: 0, sum: Duration::ZERO, longest: Duration::ZERO }
    }
}

impl Latency {
    pub(crate) fn record(&mut self, duration: Duration) {
        self.counts[bucket(duration.as_nanos() as u64)] += 1;
        self.count += 1;
        self.sum += duration;
        self.longest = self.longest.max(duration);
    }

    /// Adds the durations of another histogram.
    pub(crate) fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.longest = self.longest.max(other.longest);
    }

    /// Returns the mean duration; zero without transactions.
    #[must_use]
    pub fn mean(&self) -> Duration {
        if self.count == 0 { Duration::ZERO } else { self.sum.div_f64(self.count as f64) }
    }

    /// Returns the longest duration.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// Returns the duration that a given share of the transactions, such as 0.99, did not exceed;
    /// zero without transactions.
    #[must_use]
    pub fn percentile(&self, part: f64) -> Duration {
        let rank = (part.clamp(0.0, 1.0) * self.count as f64).ceil().max(1.0) as u64;
        let mut below = 0;
        for (index, count) in self.counts.iter().enumerate() {
            below += count;
            if below >= rank {
                return Duration::from_nanos(upper_bound(index)).min(self.longest);
            }
        }
        self.longest
    }
}

fn bucket(nanoseconds: u64) -> usize {
    let value = nanoseconds.max(STEPS as u64);
    let power = value.ilog2() as usize;
    let step = (value >> (power - STEP_BITS)) as usize - STEPS;
    ((power - STEP_BITS) * STEPS + step).min(BUCKETS - 1)
}

fn upper_bound(bucket: usize) -> u64 {
    let (power, step) = (bucket / STEPS, (bucket % STEPS) as u64);
    let bound = (u128::from(STEPS as u64 + step) + 1) << power;
    u64::try_from(bound - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_percent() {
        let mut latency = Latency::default();
        for microseconds in 1..=1000 {
            latency.record(Duration::from_micros(microseconds));
        }
        for (part, exact) in [(0.5, 500.0), (0.9, 900.0), (0.99, 990.0)] {
            let found = latency.percentile(part).as_secs_f64() * 1e6;
            assert!((1.0..1.01).contains(&(found / exact)), "{part}: {found} for {exact}");
        }
        assert_eq!(latency.percentile(1.0), Duration::from_millis(1));
        assert_eq!(latency.mean(), Duration::from_nanos(500_500));
        let mut both = Latency::default();
        both.record(Duration::from_millis(3));
        both.add(&latency);
        assert_eq!((both.count, both.longest()), (1001, Duration::from_millis(3)));
        assert_eq!(both.percentile(0.5), latency.percentile(0.5));
        assert_eq!(Latency::default().percentile(0.5), Duration::ZERO);
    }

    #[test]
    fn buckets_cover_all_durations() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1u64 << shift) + (1u64 << shift) / 3, u64::MAX >> shift] {
                let index = bucket(value);
                assert!(value <= upper_bound(index), "{value} lies above bucket {index}");
                assert!(
                    index == 0 || value > upper_bound(index - 1),
                    "{value} lies below bucket {index}"
                );
            }
        }
    }
}
