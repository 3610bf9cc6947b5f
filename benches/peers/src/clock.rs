//! Times in nanoseconds on a shared machine: all sides in turn, and medians over rounds.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Result;

/// Samples per round with data in the caches, of which the best counts.
pub const SAMPLES: usize = 20;

/// Maximum duration of a round's samples; at least one is taken.
pub const SAMPLES_END: Duration = Duration::from_millis(10);

/// Number of bytes to overwrite, so that the caches hold no other data.
pub const CACHES: usize = 96 << 20;

/// Bytes of a cache line.
const LINE: usize = 64;

/// A participant of the measurement, which joins or segments.
pub trait Side {
    /// Returns nanoseconds per frame or segment for one cycle of frames, repeated: the best of
    /// [`SAMPLES`].
    ///
    /// # Errors
    /// The failure of the side.
    fn hot(&mut self, clock: &Clock) -> Result<f64>;

    /// Returns nanoseconds per frame or segment for all cycles, each in other memory, after the
    /// caches were overwritten.
    ///
    /// # Errors
    /// The failure of the side.
    fn memory(&mut self, clock: &Clock, caches: &mut Caches) -> Result<f64>;
}

/// Work on a cycle of frames, of which memory holds several copies.
pub trait Work {
    /// Returns the number of copies of the frames in memory.
    fn copies(&self) -> usize;

    /// Returns the number of frames or segments per cycle.
    fn units(&self) -> usize;

    /// Restores the data of a copy that an earlier cycle changed.
    fn prepare(&mut self, _copy: usize) {}

    /// Does the work once, and returns its duration in nanoseconds.
    fn cycle(&mut self, copy: usize, clock: &Clock) -> f64;
}

impl<W: Work> Side for W {
    fn hot(&mut self, clock: &Clock) -> Result<f64> {
        let mut sample = || {
            self.prepare(0);
            self.cycle(0, clock) / self.units() as f64
        };
        // The first sample loads data and code into the caches again.
        sample();
        let start = Instant::now();
        let mut best = sample();
        for _ in 1..SAMPLES {
            if start.elapsed() > SAMPLES_END {
                break;
            }
            best = best.min(sample());
        }
        Ok(best)
    }

    fn memory(&mut self, clock: &Clock, caches: &mut Caches) -> Result<f64> {
        (0..self.copies()).for_each(|copy| self.prepare(copy));
        caches.overwrite();
        let total: f64 = (0..self.copies()).map(|copy| self.cycle(copy, clock)).sum();
        Ok(total / (self.copies() * self.units()) as f64)
    }
}

/// The clock (`CLOCK_MONOTONIC`), with the duration of reading it.
pub struct Clock {
    reading: f64,
}

impl Clock {
    pub fn new() -> Self {
        let reading = || {
            let start = Instant::now();
            (Instant::now() - start).as_nanos() as f64
        };
        Clock { reading: median((0..10_001).map(|_| reading()).collect()) }
    }

    /// Returns the duration of the work in nanoseconds.
    pub fn time(&self, work: impl FnOnce()) -> f64 {
        let start = Instant::now();
        work();
        let end = Instant::now();
        (end - start).as_nanos() as f64 - self.reading
    }
}

/// More bytes than any cache holds.
pub struct Caches(Vec<u8>);

impl Caches {
    pub fn new() -> Self {
        Caches(vec![1; CACHES])
    }

    fn overwrite(&mut self) {
        for line in self.0.chunks_exact_mut(LINE) {
            line[0] = line[0].wrapping_add(1);
        }
        black_box(&mut self.0);
    }
}

/// Returns the median; of an even number of values, the greater of the middle two.
///
/// # Panics
/// If there are no values.
pub fn median(mut values: Vec<f64>) -> f64 {
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

/// Times of each round in nanoseconds, with data in the caches and from memory.
pub type Times = [Vec<f64>; 2];

/// Measures the sides in turn, round by round.
///
/// # Errors
/// The failure of a side.
pub fn measure(
    sides: &mut [&mut dyn Side],
    rounds: usize,
    clock: &Clock,
    caches: &mut Caches,
) -> Result<Vec<Times>> {
    // The system provides pages at the first write.
    for side in &mut *sides {
        side.memory(clock, caches)?;
    }
    let mut times = vec![Times::default(); sides.len()];
    for round in 0..rounds {
        for turn in 0..sides.len() {
            let side = (round + turn) % sides.len();
            times[side][0].push(sides[side].hot(clock)?);
        }
        for turn in 0..sides.len() {
            let side = (round + turn) % sides.len();
            times[side][1].push(sides[side].memory(clock, caches)?);
        }
    }
    Ok(times)
}
