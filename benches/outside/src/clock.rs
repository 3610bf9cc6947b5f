//! Nanoseconds on a machine that is shared: many short samples of all rows in turn, the best of
//! each round, the median of the rounds.

use std::time::{Duration, Instant};

use crate::rows::Row;

/// How long a sample should take: long beside the clock's 20 ns, short beside the time between
/// interruptions.
const SAMPLE: Duration = Duration::from_micros(30);

/// Samples of a row in a round.
const SAMPLES: usize = 8;

/// Nanoseconds a frame (or segment) of each row.
pub fn measure(rows: &mut [Row<'_>], rounds: usize) -> Vec<f64> {
    let polls: Vec<_> = rows.iter_mut().map(calibrate).collect();
    let mut times = vec![Vec::with_capacity(rounds); rows.len()];
    for _ in 0..rounds {
        for ((row, polls), times) in rows.iter_mut().zip(&polls).zip(&mut times) {
            // The first brings the row's data back into the caches.
            sample(row, *polls);
            let best = (0..SAMPLES).map(|_| sample(row, *polls)).fold(f64::INFINITY, f64::min);
            times.push(best);
        }
    }
    times.into_iter().map(median).collect()
}

/// Bytes of each workload, so that none of it is in a cache when it comes again.
pub const MEMORY: usize = 128 << 20;

/// Nanoseconds a frame (or segment) of each row, each frame of which is brought from memory.
///
/// Rows have frames in common, so each takes all of its frames before the next row begins.
pub fn measure_from_memory(rows: &mut [Row<'_>], rounds: usize) -> Vec<f64> {
    let mut times = vec![Vec::with_capacity(rounds); rows.len()];
    // The first round brings in what the rows themselves need, and is not counted.
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

/// The middle one; of an even number, the greater of the two.
///
/// # Panics
/// If there are none.
pub fn median(mut values: Vec<f64>) -> f64 {
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

/// The one that a quarter are less than.
///
/// # Panics
/// If there are none.
pub fn lower_quartile(mut values: Vec<f64>) -> f64 {
    let place = values.len() / 4;
    *values.select_nth_unstable_by(place, f64::total_cmp).1
}

/// The greatest.
pub fn worst(values: Vec<f64>) -> f64 {
    values.into_iter().fold(0.0, f64::max)
}

/// How many polls fill a sample.
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
