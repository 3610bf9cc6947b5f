//! How long ranges are summed: inline, at once, or block by block.

use crate::scalar;

/// Below this many bytes a call and its reduction cost more than the vectors save.
pub(crate) const SHORT: usize = 64;

/// The vector loops take at most this many bytes at once: the proofs that no accumulator overflows
/// start here. Even, so that no 16-bit word straddles two blocks.
pub(crate) const BLOCK: usize = 1 << 24;

/// Sums each range: short ones inline, long ones by `sum`, block by block.
///
/// Inlined into a function with the level's target features, so that `sum` is inlined into the loop
/// too.
#[inline(always)]
pub(crate) fn each_range(ranges: &[&[u8]], sums: &mut [u16], sum: impl Fn(&[u8]) -> u64) {
    let sums = &mut sums[..ranges.len()];
    for (index, range) in ranges.iter().enumerate() {
        sums[index] = scalar::finish(match range.len() {
            0..SHORT => scalar::sum_short(range),
            SHORT..=BLOCK => sum(range),
            _ => range.chunks(BLOCK).map(&sum).fold(0, scalar::add),
        });
    }
}
