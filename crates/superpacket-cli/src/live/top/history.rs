//! Keeps the values that a rate had in the last minute.

use std::collections::VecDeque;
use std::time::Duration;

/// The time for which values are kept.
const MINUTE: Duration = Duration::from_secs(60);

/// The values that a rate had in the last minute.
#[derive(Clone, Debug)]
pub(super) struct History {
    /// One value for each interval, the oldest first; `None` for an interval without data.
    rates: VecDeque<Option<f64>>,
    /// Number of intervals in a minute.
    samples: usize,
}

impl History {
    /// Creates an empty history of a rate that is measured once per `interval`.
    pub(super) fn new(interval: Duration) -> Self {
        let samples =
            (MINUTE.as_secs_f64() / interval.as_secs_f64().max(0.001)).round().max(1.0) as usize;
        History { rates: VecDeque::with_capacity(samples), samples }
    }

    /// Adds the value of the next interval, and removes the oldest if it is older than a minute.
    pub(super) fn push(&mut self, rate: Option<f64>) {
        if self.rates.len() == self.samples {
            self.rates.pop_front();
        }
        self.rates.push_back(rate);
    }

    /// Returns the highest value of the last minute; 0 if there is none.
    pub(super) fn maximum(&self) -> f64 {
        self.rates.iter().flatten().copied().fold(0.0, f64::max)
    }

    /// Divides the minute into `cells` equal parts, the newest last, and returns the average value
    /// in each; `None` for a part without data.
    pub(super) fn cells(&self, cells: usize) -> Vec<Option<u64>> {
        let missing = self.samples - self.rates.len();
        let cell = |number: usize| {
            let from = number * self.samples / cells;
            let to = ((number + 1) * self.samples / cells).max(from + 1);
            let rates = || {
                (from..to).filter_map(|sample| {
                    self.rates.get(sample.checked_sub(missing)?).copied().flatten()
                })
            };
            let count = rates().count();
            (count > 0).then(|| (rates().sum::<f64>() / count as f64) as u64)
        };
        (0..cells).map(cell).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_is_kept_and_no_more() {
        let mut history = History::new(Duration::from_secs(1));
        assert_eq!(history.cells(60), vec![None; 60]);
        for rate in 0..70 {
            history.push(Some(f64::from(rate)));
        }
        assert_eq!(history.cells(60), (10..70).map(Some).collect::<Vec<_>>());
        assert_eq!(history.maximum(), 69.0);
    }

    #[test]
    fn cells_are_averages_and_the_newest_is_on_the_right() {
        let mut history = History::new(Duration::from_millis(500));
        [10.0, 20.0, 30.0].into_iter().for_each(|rate| history.push(Some(rate)));
        history.push(None);
        let cells = history.cells(60);
        assert_eq!(
            (cells[57], cells[58], cells[59]),
            (None, Some(15), Some(30)),
            "what is not known is no zero"
        );
        // If there are fewer values than parts, each value fills several parts.
        let mut slow = History::new(Duration::from_secs(20));
        [1.0, 2.0].into_iter().for_each(|rate| slow.push(Some(rate)));
        assert_eq!(slow.cells(6), [None, None, Some(1), Some(1), Some(2), Some(2)]);
        assert_eq!(slow.cells(0), []);
    }
}
