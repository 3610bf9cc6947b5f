//! Limits on the length of a range that is summed inline, or in one call of the vector loop.

use crate::scalar;

/// Length in bytes below which a call of the vector loop costs more than it saves.
pub(crate) const SHORT: usize = 64;

/// Maximum bytes per call of the vector loops. The proofs that no accumulator overflows rely on it.
/// It is even, so that no 16-bit word straddles two blocks.
pub(crate) const BLOCK: usize = 1 << 24;

/// Sums each range: short ones inline, long ones by `sum`, block by block.
///
/// It is inlined into a function with the level's target features, so that `sum` can be inlined
/// into the loop.
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
