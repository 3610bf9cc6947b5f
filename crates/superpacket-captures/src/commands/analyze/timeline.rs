//! Packets over time, in a fixed number of intervals that become longer as the capture goes on.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Maximum number of intervals.
const INTERVALS: usize = 200;

/// Initial length of an interval, in nanoseconds.
const FIRST_WIDTH: u64 = 1_000;

/// Packets over time, before and after aggregation.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// The first packet's time, in nanoseconds.
    start: Option<u64>,
    /// Length of an interval, in nanoseconds.
    width: u64,
    before: [u64; INTERVALS],
    after: [u64; INTERVALS],
    /// Number of intervals in use.
    used: usize,
}

impl Default for Timeline {
    fn default() -> Self {
        Timeline {
            start: None,
            width: FIRST_WIDTH,
            before: [0; INTERVALS],
            after: [0; INTERVALS],
            used: 0,
        }
    }
}

impl Timeline {
    /// Counts a captured packet. Earlier times than that of the first packet count as the first
    /// packet's.
    pub(super) fn before(&mut self, time: u64) {
        let index = self.index(time);
        self.before[index] += 1;
    }

    /// Counts a packet that left the aggregator at `time`, in nanoseconds.
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

    /// Adds the counts of a later part of the same capture. All packets of an interval count at its
    /// start.
    pub(super) fn add(&mut self, later: &Timeline) {
        let Some(start) = later.start else { return };
        for interval in 0..later.used {
            let index =
                self.index(start.saturating_add((interval as u64).saturating_mul(later.width)));
            self.before[index] += later.before[interval];
            self.after[index] += later.after[interval];
        }
    }

    /// Returns whether there are fewer than two intervals to show.
    pub fn is_empty(&self) -> bool {
        self.used < 2
    }

    /// Returns the time that the intervals cover, in seconds.
    pub fn seconds(&self) -> f64 {
        self.used as f64 * self.width as f64 / 1e9
    }

    /// Returns for each interval its start in seconds, and the packets per second before and after
    /// aggregation.
    pub fn rates(&self) -> impl Iterator<Item = (f64, [f64; 2])> + '_ {
        let width = self.width as f64 / 1e9;
        (0..self.used).map(move |index| {
            let counts = [self.before[index], self.after[index]];
            (index as f64 * width, counts.map(|count| count as f64 / width))
        })
    }
}

/// The JSON form of a timeline.
#[derive(Serialize, Deserialize)]
struct TimelineJson {
    start: Option<u64>,
    width: u64,
    before: Vec<u64>,
    after: Vec<u64>,
}

impl Serialize for Timeline {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let used = |counts: &[u64]| counts.iter().take(self.used).copied().collect();
        TimelineJson {
            start: self.start,
            width: self.width,
            before: used(&self.before),
            after: used(&self.after),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Timeline {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = TimelineJson::deserialize(deserializer)?;
        let mut timeline = Timeline {
            start: written.start,
            width: written.width.max(1),
            used: written.before.len(),
            ..Self::default()
        };
        if timeline.used > INTERVALS || timeline.used != written.after.len() {
            return Err(D::Error::custom(
                "a timeline needs equal numbers of intervals before and after, at most 200",
            ));
        }
        for (counts, written) in
            [(&mut timeline.before, &written.before), (&mut timeline.after, &written.after)]
        {
            counts.iter_mut().zip(written).for_each(|(count, &written)| *count = written);
        }
        Ok(timeline)
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
    fn parts_add_up_to_the_whole() {
        let (mut whole, mut first, mut second) =
            (Timeline::default(), Timeline::default(), Timeline::default());
        for step in 0..1000u64 {
            let time = 7_000_000_000 + step * 1_000_000;
            whole.before(time);
            (if step < 600 { &mut first } else { &mut second }).before(time);
        }
        let json = serde_json::to_string(&second).expect("serializes");
        first.add(&serde_json::from_str(&json).expect("reads"));
        assert_eq!(first.before.iter().sum::<u64>(), 1000);
        assert_eq!((first.width, first.used, first.start), (whole.width, whole.used, whole.start));
        first.add(&Timeline::default());
        assert_eq!(first.before.iter().sum::<u64>(), 1000, "nothing was added");
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
