//! The sum without SIMD instructions, and the arithmetic that all levels share.
//!
//! Levels add words in the host's own byte order and swap once at the end: the one's-complement sum
//! is independent of byte order (RFC 1071, section 2 (B)). An unfolded sum is a `u64` that is
//! congruent to the sum of those words modulo 0xFFFF, and 0 only if every byte is 0. Words of 32
//! and 64 bits may be added whole, because 2^16, 2^32 and 2^64 are all congruent to 1 modulo 0xFFFF
//! (section 2 (C), parallel summation), as long as carries out of the top are not lost.

#![expect(unsafe_code, reason = "a copy to memory that is not initialised")]

use core::mem::MaybeUninit;

/// Adds two unfolded sums, with an end-around carry.
#[inline]
pub(crate) fn add(left: u64, right: u64) -> u64 {
    let (sum, carry) = left.overflowing_add(right);
    // After a carry the sum is at most 2^64 - 2, so this cannot overflow.
    sum + u64::from(carry)
}

/// Folds an unfolded sum to 16 bits and converts it from big-endian.
///
/// Each step adds two halves with an end-around carry, so that a sum other than 0 never becomes 0.
#[inline]
pub(crate) fn finish(sum: u64) -> u16 {
    let (half, carry) = ((sum >> 32) as u32).overflowing_add(sum as u32);
    let half = half + u32::from(carry);
    let (quarter, carry) = ((half >> 16) as u16).overflowing_add(half as u16);
    u16::from_be(quarter + u16::from(carry))
}

/// Returns the unfolded sum of any number of bytes, by 64-bit words; best for fewer than a few
/// hundred bytes.
#[inline]
pub(crate) fn sum_short(bytes: &[u8]) -> u64 {
    add(sum_words(bytes), last_word(bytes))
}

/// Copies fewer than 64 bytes to a `destination` of the same length, and returns their unfolded
/// sum.
///
/// It works in pieces of fixed length, because the compiler would turn a copying loop into a call
/// of memcpy.
#[inline]
pub(crate) fn copy_and_sum_short(source: &[u8], destination: &mut [MaybeUninit<u8>]) -> u64 {
    debug_assert!(source.len() < 64 && source.len() == destination.len());
    let mut done = 0;
    let mut sum = copy_words::<32>(source, destination, &mut done);
    sum = add(sum, copy_words::<16>(source, destination, &mut done));
    sum = add(sum, copy_words::<8>(source, destination, &mut done));
    copy_last_word(source, destination);
    add(sum, last_word(source))
}

/// Copies and sums `N` bytes after the first `done` bytes, and adds `N` to `done`, if the bit of
/// value `N` is set in the length. Otherwise does nothing.
#[inline(always)]
fn copy_words<const N: usize>(
    source: &[u8],
    destination: &mut [MaybeUninit<u8>],
    done: &mut usize,
) -> u64 {
    if source.len() & N == 0 {
        return 0;
    }
    let (Some(source), Some(destination)) =
        (source[*done..].first_chunk::<N>(), destination[*done..].first_chunk_mut::<N>())
    else {
        return 0;
    };
    *destination = source.map(MaybeUninit::new);
    *done += N;
    sum_words(source)
}

/// Returns the unfolded sum of the full 64-bit words.
#[inline(always)]
fn sum_words(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().fold(0, |sum, word| add(sum, u64::from_ne_bytes(*word)))
}

/// Returns the unfolded sum of at most [`BLOCK`](crate::ranges::BLOCK) bytes.
///
/// The words are summed in two parts whose updates need no carry, so that the compiler can use
/// vectors (SSE2 on any x86-64). For a word w = low + 2^32 high, `all` is the sum of w modulo 2^64,
/// and `high` the sum of the high halves. A block has 2^21 words, so the sums of low and high
/// halves stay below 2^53. The former is exactly all - 2^32 high modulo 2^64; low + high is
/// congruent to the wanted sum because 2^32 is congruent to 1.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let (mut all, mut high) = (0_u64, 0_u64);
    for word in bytes.as_chunks::<8>().0 {
        let word = u64::from_ne_bytes(*word);
        all = all.wrapping_add(word);
        high += word >> 32;
    }
    let low = all.wrapping_sub(high << 32);
    add(low + high, last_word(bytes))
}

/// Bytes that are copied before they are summed; they are then still in the first-level cache.
const PIECE: usize = 4096;

/// Copies `source` to a `destination` of the same length, and returns its unfolded sum.
pub(crate) fn copy_and_sum(source: &[u8], destination: &mut [MaybeUninit<u8>]) -> u64 {
    let pieces = source.chunks(PIECE).zip(destination.chunks_mut(PIECE));
    let sums = pieces.map(|(source, destination)| {
        copy(source, destination);
        sum(source)
    });
    sums.fold(0, add)
}

/// Copies bytes between slices of equal length.
fn copy(source: &[u8], destination: &mut [MaybeUninit<u8>]) {
    assert_eq!(source.len(), destination.len());
    // SAFETY: the references make `source.len()` bytes readable and writable, and the mutable one
    // excludes other accesses, so they do not overlap.
    unsafe {
        core::ptr::copy_nonoverlapping(
            source.as_ptr(),
            destination.as_mut_ptr().cast(),
            source.len(),
        )
    }
}

/// Returns the bytes after the last full 64-bit word, padded with zeros to such a word. They may be
/// split into two 32-bit words, which are added. Returns 0 if there are none.
#[inline(always)]
fn last_word(bytes: &[u8]) -> u64 {
    let length = bytes.len() % 8;
    if length == 0 {
        return 0;
    }
    // Read the full word that ends with the slice, and shift out the bytes that are summed already.
    if let Some(word) = bytes.last_chunk::<8>() {
        return keep_last(u64::from_ne_bytes(*word), 8 - length);
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        let last = u64::from(u32::from_ne_bytes(*last));
        // The shift is 8 to 32 bits: 32 if the slice is exactly `first`.
        let last = if cfg!(target_endian = "little") {
            last >> (8 * (8 - length))
        } else {
            u64::from((last << (8 * (8 - length))) as u32)
        };
        return u64::from(u32::from_ne_bytes(*first)) + last;
    }
    match *bytes {
        [a] => u64::from(u16::from_ne_bytes([a, 0])),
        [a, b] => u64::from(u16::from_ne_bytes([a, b])),
        [a, b, c] => u64::from(u16::from_ne_bytes([a, b])) + u64::from(u16::from_ne_bytes([c, 0])),
        _ => 0,
    }
}

/// Moves the bytes of `word` to addresses lower by `count`. The first `count` bytes are dropped,
/// and zeros are appended.
#[inline(always)]
fn keep_last(word: u64, count: usize) -> u64 {
    if cfg!(target_endian = "little") { word >> (8 * count) } else { word << (8 * count) }
}

/// Copies the bytes after the last full 64-bit word between slices of equal length. If full words
/// precede them, some bytes are copied again, which is cheaper than copying byte by byte.
#[inline(always)]
fn copy_last_word(source: &[u8], destination: &mut [MaybeUninit<u8>]) {
    if let (Some(word), Some(place)) = (source.last_chunk::<8>(), destination.last_chunk_mut::<8>())
    {
        *place = word.map(MaybeUninit::new);
    } else if let (Some(word), Some(place)) =
        (source.first_chunk::<4>(), destination.first_chunk_mut::<4>())
    {
        *place = word.map(MaybeUninit::new);
        if let (Some(word), Some(place)) =
            (source.last_chunk::<4>(), destination.last_chunk_mut::<4>())
        {
            *place = word.map(MaybeUninit::new);
        }
    } else {
        if let (Some(pair), Some(place)) =
            (source.first_chunk::<2>(), destination.first_chunk_mut::<2>())
        {
            *place = pair.map(MaybeUninit::new);
        }
        if let (Some(byte), Some(place)) = (source.last(), destination.last_mut()) {
            *place = MaybeUninit::new(*byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{add, finish};

    #[test]
    fn carries_come_around() {
        assert_eq!(add(u64::MAX, u64::MAX), u64::MAX);
        assert_eq!(add(u64::MAX, 1), 1);
        assert_eq!(add(0, 0), 0);
    }

    #[test]
    fn finish_is_the_sum_modulo_0xffff_and_keeps_zero_apart() {
        let interesting =
            [0, 1, 0xfffe, 0xffff, 0x1_0000, 0xffff_ffff, 0x1_0000_0000, u64::MAX - 1, u64::MAX];
        for sum in interesting {
            let folded = u16::from_be(finish(sum));
            assert_eq!(u64::from(folded) % 0xffff, sum % 0xffff, "{sum:#x}");
            assert_eq!(folded == 0, sum == 0, "{sum:#x}");
        }
    }
}
