//! Nanoseconds on a machine that is shared: all sides in turn, medians over rounds.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Result;

/// Samples of a round with data in the caches, of which the best counts.
pub const SAMPLES: usize = 20;

/// No more samples than take this long, but one at least.
pub const SAMPLES_END: Duration = Duration::from_millis(10);

/// Bytes that are overwritten so that nothing else is left in the caches.
pub const CACHES: usize = 96 << 20;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Something to measure: whoever joins or cuts.
pub trait Side {
    /// Nanoseconds a frame or segment, of the same cycle of frames again and again: the best of
    /// [`SAMPLES`].
    ///
    /// # Errors
    /// What kept it from being measured.
    fn hot(&mut self, clock: &Clock) -> Result<f64>;

    /// The same of all cycles, each in memory of its own, after the caches were overwritten.
    ///
    /// # Errors
    /// What kept it from being measured.
    fn memory(&mut self, clock: &Clock, caches: &mut Caches) -> Result<f64>;
}

/// Work on one cycle of frames, of which there are copies in memory.
pub trait Work {
    /// Number of copies.
    fn copies(&self) -> usize;

    /// Frames or segments of a cycle.
    fn units(&self) -> usize;

    /// Restores what a cycle changed.
    fn prepare(&mut self, _copy: usize) {}

    /// Does it once; returns the nanoseconds that it took.
    fn cycle(&mut self, copy: usize, clock: &Clock) -> f64;
}

impl<W: Work> Side for W {
    fn hot(&mut self, clock: &Clock) -> Result<f64> {
        let mut sample = || {
            self.prepare(0);
            self.cycle(0, clock) / self.units() as f64
        };
        // The first brings data and code back into the caches.
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

/// The clock (`CLOCK_MONOTONIC`), which knows what it takes to be read.
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

    /// Nanoseconds that this takes.
    pub fn time(&self, work: impl FnOnce()) -> f64 {
        let start = Instant::now();
        work();
        let end = Instant::now();
        (end - start).as_nanos() as f64 - self.reading
    }
}

/// As many bytes as no cache holds.
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

/// The middle one; of an even number, the greater of the two.
///
/// # Panics
/// If there are none.
pub fn median(mut values: Vec<f64>) -> f64 {
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

/// Nanoseconds of each round, hot and from memory.
pub type Times = [Vec<f64>; 2];

/// Measures the sides in turn, round by round.
///
/// # Errors
/// What kept a side from being measured.
pub fn measure(
    sides: &mut [&mut dyn Side],
    rounds: usize,
    clock: &Clock,
    caches: &mut Caches,
) -> Result<Vec<Times>> {
    // The system gives pages when they are first written.
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
