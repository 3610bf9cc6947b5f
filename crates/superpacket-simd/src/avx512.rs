//! The AVX-512 level (F and BW): vectors of 64 bytes, and masked ones for shorter remainders.

#![expect(unsafe_code, reason = "vector instructions")]

#[cfg(target_arch = "x86")]
use core::arch::x86::*;
#[cfg(target_arch = "x86_64")]
use core::arch::x86_64::*;

use core::mem::MaybeUninit;

use crate::prefetch::{LINE, prefetch_line};
use crate::ranges::each_range;

/// Number of bytes per vector.
const VECTOR: usize = 64;
/// Number of accumulators, so that an addition need not wait for the previous one.
const WIDTH: usize = 4;
/// Minimum length in bytes from which a sum first aligns its source, and a copy its destination.
const ALIGNED: usize = 256;

/// Returns the unfolded sum of at most [`BLOCK`](crate::ranges::BLOCK) bytes.
///
/// All but the first and last loads are aligned, because loads that straddle cache lines cost a
/// quarter of the speed. If an odd number of bytes precedes the first aligned load, the later bytes
/// are summed as if they began on a word: their sum is off by a factor of 2^8, which the rotation
/// at the end corrects. The earlier bytes are multiplied by 2^8 in advance, so that the rotation
/// yields 2^16, which is congruent to 1.
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    sum_and_hint::<false>(bytes, &[])
}

/// Returns the sum like [`sum`], and prefetches one cache line of `ahead` for each line summed, up
/// to the length of `bytes`.
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) fn sum_ahead(bytes: &[u8], ahead: &[u8]) -> u64 {
    sum_and_hint::<true>(bytes, ahead)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn sum_and_hint<const AHEAD: bool>(bytes: &[u8], ahead: &[u8]) -> u64 {
    let mut hint = hints::<AHEAD>(ahead);
    let mut lanes = [Avx512Lanes::zero(); WIDTH];
    let (head, swap) = before_aligned(bytes.as_ptr(), bytes.len());
    let (start, bytes) = bytes.split_at(head);
    hint();
    lanes[0].add(rotate(load_partial(start), swap));
    let (strides, rest) = bytes.as_chunks::<{ VECTOR * WIDTH }>();
    for stride in strides {
        let vectors = stride.as_chunks::<VECTOR>().0;
        for (index, lanes) in lanes.iter_mut().enumerate() {
            hint();
            lanes.add(load(&vectors[index]));
        }
    }
    let (vectors, tail) = rest.as_chunks::<VECTOR>();
    for vector in vectors {
        hint();
        lanes[0].add(load(vector));
    }
    if !tail.is_empty() {
        hint();
        lanes[WIDTH - 1].add(load_partial(tail));
    }
    total(lanes).rotate_left(swap as u32)
}

/// Returns a closure that prefetches the next cache line of `ahead` at each call, if `AHEAD`.
#[inline]
fn hints<const AHEAD: bool>(ahead: &[u8]) -> impl FnMut() {
    // There is one hint per vector.
    const { assert!(LINE == VECTOR) };
    let mut line = ahead.as_ptr();
    move || {
        if AHEAD {
            prefetch_line(line);
            line = line.wrapping_add(LINE);
        }
    }
}

/// Copies `source` to a `destination` of the same length, and returns its unfolded sum.
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) fn copy_and_sum(source: &[u8], destination: &mut [MaybeUninit<u8>]) -> u64 {
    copy_sum_and_hint::<false>(source, destination, &[])
}

/// Copies and sums like [`copy_and_sum`], and prefetches one cache line of `ahead` for each line
/// copied, up to the length of `source`.
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) fn copy_and_sum_ahead(
    source: &[u8],
    destination: &mut [MaybeUninit<u8>],
    ahead: &[u8],
) -> u64 {
    copy_sum_and_hint::<true>(source, destination, ahead)
}

/// Copies and sums; prefetches `ahead` meanwhile if `AHEAD` is set. All stores but the first and
/// last are aligned, because unaligned stores that straddle cache lines halve the speed, and cost
/// more than such loads. An odd number of bytes before the first aligned store is treated as in
/// [`sum`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn copy_sum_and_hint<const AHEAD: bool>(
    source: &[u8],
    destination: &mut [MaybeUninit<u8>],
    ahead: &[u8],
) -> u64 {
    let mut hint = hints::<AHEAD>(ahead);
    // Equal lengths are established once; otherwise the compiler checks both at each step.
    let destination = &mut destination[..source.len()];
    let mut lanes = [Avx512Lanes::zero(); WIDTH];
    let (head, swap) = before_aligned(destination.as_ptr().cast(), source.len());
    let (start, source) = source.split_at(head);
    let (start_place, destination) = destination.split_at_mut(head);
    hint();
    if head != 0 {
        let vector = load_partial(start);
        store_partial(start_place, vector);
        lanes[0].add(rotate(vector, swap));
    }

    let (strides, rest) = source.as_chunks::<{ VECTOR * WIDTH }>();
    let (places, rest_places) = destination.as_chunks_mut::<{ VECTOR * WIDTH }>();
    let places = &mut places[..strides.len()];
    for index in 0..strides.len() {
        let (vectors, places) =
            (strides[index].as_chunks::<VECTOR>().0, places[index].as_chunks_mut::<VECTOR>().0);
        for (index, lanes) in lanes.iter_mut().enumerate() {
            hint();
            let vector = opaque(load(&vectors[index]));
            store(&mut places[index], vector);
            lanes.add(vector);
        }
    }
    let (vectors, tail) = rest.as_chunks::<VECTOR>();
    let (places, tail_places) = rest_places.as_chunks_mut::<VECTOR>();
    let places = &mut places[..vectors.len()];
    for index in 0..vectors.len() {
        hint();
        let vector = opaque(load(&vectors[index]));
        store(&mut places[index], vector);
        lanes[0].add(vector);
    }
    if !tail.is_empty() {
        hint();
        let vector = load_partial(tail);
        store_partial(tail_places, vector);
        lanes[WIDTH - 1].add(vector);
    }
    total(lanes).rotate_left(swap as u32)
}

/// Writes the sum of each range to `sums`.
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) fn sum_batch(ranges: &[&[u8]], sums: &mut [u16]) {
    each_range(ranges, sums, |bytes| sum(bytes));
}

/// Returns the number of bytes before the first aligned vector (0 if `length` is short), and by how
/// many bits their words must be rotated to match the words of the later bytes: 8 if the number of
/// bytes is odd, otherwise 0.
#[inline]
fn before_aligned(bytes: *const u8, length: usize) -> (usize, i64) {
    let head = if length >= ALIGNED { bytes.addr().wrapping_neg() % VECTOR } else { 0 };
    (head, 8 * (head as i64 % 2))
}

/// Rotates each 64-bit word left by `bits`: a multiplication by 2^bits modulo 2^64 - 1.
#[inline]
#[target_feature(enable = "avx512f")]
fn rotate(vector: __m512i, bits: i64) -> __m512i {
    _mm512_rolv_epi64(vector, _mm512_set1_epi64(bits))
}

/// Eight sums of 64-bit words, each in two parts: `all` is the sum modulo 2^64, `high` the sum of
/// the high halves.
///
/// `high` takes 2^32 vectors before it could overflow; the caller passes at most 2^24 bytes.
#[derive(Clone, Copy)]
struct Avx512Lanes {
    all: __m512i,
    high: __m512i,
}

impl Avx512Lanes {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn zero() -> Avx512Lanes {
        Avx512Lanes { all: _mm512_setzero_si512(), high: _mm512_setzero_si512() }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn add(&mut self, vector: __m512i) {
        self.all = _mm512_add_epi64(self.all, vector);
        self.high = _mm512_add_epi64(self.high, _mm512_srli_epi64::<32>(vector));
    }
}

/// Returns the unfolded sum in all lanes: low + high, where low, the sum of the low halves, is all
/// - 2^32 high modulo 2^64.
///
/// 2^24 bytes are 2^22 halves of 32 bits: their sum is below 2^54, so neither a lane nor the total
/// overflows.
#[inline]
#[target_feature(enable = "avx512f")]
fn total(lanes: [Avx512Lanes; WIDTH]) -> u64 {
    let [a, b, c, d] = lanes;
    let all = _mm512_add_epi64(_mm512_add_epi64(a.all, b.all), _mm512_add_epi64(c.all, d.all));
    let high = _mm512_add_epi64(_mm512_add_epi64(a.high, b.high), _mm512_add_epi64(c.high, d.high));
    let low = _mm512_sub_epi64(all, _mm512_slli_epi64::<32>(high));
    _mm512_reduce_add_epi64(_mm512_add_epi64(low, high)) as u64
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; VECTOR]) -> __m512i {
    // SAFETY: the reference makes 64 bytes readable; the instruction takes any alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(place: &mut [MaybeUninit<u8>; VECTOR], vector: __m512i) {
    // SAFETY: the mutable reference makes 64 bytes writable and excludes other accesses; the
    // instruction takes any alignment.
    unsafe { _mm512_storeu_si512(place.as_mut_ptr().cast(), vector) }
}

/// Returns a mask of the first `length` bytes of a vector. `length` must be below 64; a larger one
/// still gives a mask of `length` % 64 bits, which is never too long.
#[inline]
fn first(length: usize) -> __mmask64 {
    debug_assert!(length < VECTOR);
    (1 << (length % VECTOR)) - 1
}

/// Loads fewer than 64 bytes, followed by zeros.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn load_partial(bytes: &[u8]) -> __m512i {
    // SAFETY: bytes whose mask bit is 0 are not read and cannot fault (Intel SDM volume 1, section
    // 15.6.1), and the mask has no bit at or above the slice's length: `first` sets the lowest
    // length % 64 bits.
    unsafe { _mm512_maskz_loadu_epi8(first(bytes.len()), bytes.as_ptr().cast()) }
}

/// Writes the first bytes of `vector` to a slice of fewer than 64 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn store_partial(place: &mut [MaybeUninit<u8>], vector: __m512i) {
    let mask = first(place.len());
    // SAFETY: bytes whose mask bit is 0 are not written. As in `load_partial`, the others lie in
    // the slice, which the mutable reference makes writable without other accesses.
    unsafe { _mm512_mask_storeu_epi8(place.as_mut_ptr().cast(), mask, vector) }
}

/// Returns `vector` unchanged, but hides from the compiler that it is unchanged.
///
/// Otherwise the compiler moves the stores out of the loop into a call of memcpy, and each byte is
/// read twice.
#[inline]
#[target_feature(enable = "avx512f")]
#[cfg_attr(miri, expect(unused_mut, reason = "inline assembly cannot be interpreted"))]
fn opaque(mut vector: __m512i) -> __m512i {
    #[cfg(not(miri))]
    // SAFETY: the assembly has no instruction; the register keeps its value.
    unsafe {
        core::arch::asm!("/* {0} */", inout(zmm_reg) vector, options(pure, nomem, nostack, preserves_flags));
    }
    vector
}
