//! Times in nanoseconds on a shared machine: many short samples of all rows in turn, the best of
//! each round, and the median of the rounds.

use std::time::{Duration, Instant};

use crate::rows::Row;

/// Duration of a sample: long compared with the clock's 20 ns, short compared with the time between
/// interruptions.
const SAMPLE: Duration = Duration::from_micros(30);

/// Samples per row and round.
const SAMPLES: usize = 8;

/// Returns nanoseconds per frame (or segment) of each row.
pub fn measure(rows: &mut [Row<'_>], rounds: usize) -> Vec<f64> {
    let polls: Vec<_> = rows.iter_mut().map(calibrate).collect();
    let mut times = vec![Vec::with_capacity(rounds); rows.len()];
    for _ in 0..rounds {
        for ((row, polls), times) in rows.iter_mut().zip(&polls).zip(&mut times) {
            // The first sample loads the row's data into the caches again.
            sample(row, *polls);
            let best = (0..SAMPLES).map(|_| sample(row, *polls)).fold(f64::INFINITY, f64::min);
            times.push(best);
        }
    }
    times.into_iter().map(median).collect()
}

/// Bytes per workload, so that no part of it is still in a cache when it is used again.
pub const MEMORY: usize = 128 << 20;

/// Returns nanoseconds per frame (or segment) of each row, if every frame is loaded from memory.
///
/// Rows share frames, so each row uses all of its frames before the next row begins.
pub fn measure_from_memory(rows: &mut [Row<'_>], rounds: usize) -> Vec<f64> {
    let mut times = vec![Vec::with_capacity(rounds); rows.len()];
    // The first round loads the rows' own data, and is not counted.
    for round in 0..=rounds {
        for (row, times) in rows.iter_mut().zip(&mut times) {
            let mut taken = 0;
            let start = Instant::now();
            while taken < row.units {
                taken += (row.poll)();
            }
            let time = start.elapsed().as_secs_f64() * 1e9 / taken as f64;
            if round > 0 {
                times.push(time);
            }
        }
    }
    times.into_iter().map(median).collect()
}

/// Returns the median; of an even number of values, the greater of the middle two.
///
/// # Panics
/// If there are no values.
pub fn median(mut values: Vec<f64>) -> f64 {
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

/// Returns the lower quartile.
///
/// # Panics
/// If there are no values.
pub fn lower_quartile(mut values: Vec<f64>) -> f64 {
    let place = values.len() / 4;
    *values.select_nth_unstable_by(place, f64::total_cmp).1
}

/// Returns the maximum.
pub fn worst(values: Vec<f64>) -> f64 {
    values.into_iter().fold(0.0, f64::max)
}

/// Returns the number of polls per sample.
fn calibrate(row: &mut Row<'_>) -> usize {
    let start = Instant::now();
    let mut polls = 0;
    while start.elapsed() < 20 * SAMPLE {
        (row.poll)();
        polls += 1;
    }
    (polls / 20).max(1)
}

fn sample(row: &mut Row<'_>, polls: usize) -> f64 {
    let start = Instant::now();
    let frames: usize = (0..polls).map(|_| (row.poll)()).sum();
    start.elapsed().as_secs_f64() * 1e9 / frames as f64
}
