//! The AVX2 level: sums and copies with vectors of 32 bytes.

#![expect(unsafe_code, reason = "vector instructions")]

#[cfg(target_arch = "x86")]
use core::arch::x86::*;
#[cfg(target_arch = "x86_64")]
use core::arch::x86_64::*;

use core::mem::MaybeUninit;

use crate::ranges::each_range;
use crate::scalar;

/// Number of bytes per vector.
const VECTOR: usize = 32;
/// Number of accumulators, so that an addition need not wait for the previous one.
const WIDTH: usize = 4;
/// Minimum length in bytes from which a copy first aligns its destination.
const ALIGNED: usize = 256;

/// Returns the unfolded sum of at most [`BLOCK`](crate::ranges::BLOCK) bytes.
#[target_feature(enable = "avx2")]
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let (strides, rest) = bytes.as_chunks::<{ VECTOR * WIDTH }>();
    let mut lanes = [Avx2Lanes::zero(); WIDTH];
    for stride in strides {
        let vectors = stride.as_chunks::<VECTOR>().0;
        for (index, lanes) in lanes.iter_mut().enumerate() {
            lanes.add(load(&vectors[index]));
        }
    }
    let (vectors, tail) = rest.as_chunks::<VECTOR>();
    for vector in vectors {
        lanes[0].add(load(vector));
    }
    scalar::add(total(lanes), scalar::sum_short(tail))
}

/// Copies `source` to a `destination` of the same length, and returns its unfolded sum.
///
/// All but the first and last stores are aligned, because stores that straddle cache lines halve
/// the speed; loads that do cost little. If an odd number of bytes precedes the first aligned
/// store, the later bytes are summed as if they began on a word: their sum is off by a factor of
/// 2^8, which the rotation at the end corrects. The earlier bytes are multiplied by 2^8 in advance,
/// so that the rotation yields 2^16, which is congruent to 1.
#[target_feature(enable = "avx2")]
pub(crate) fn copy_and_sum(source: &[u8], destination: &mut [MaybeUninit<u8>]) -> u64 {
    // Equal lengths are established once; otherwise the compiler checks both at each step.
    let destination = &mut destination[..source.len()];
    let mut lanes = [Avx2Lanes::zero(); WIDTH];
    let mut head = 0;
    if source.len() >= ALIGNED {
        head = destination.as_ptr().addr().wrapping_neg() % VECTOR;
    }
    let swap = 8 * (head as u32 % 2);
    if let (true, Some(start), Some(place)) =
        (head != 0, source.first_chunk(), destination.first_chunk_mut())
    {
        // The whole first vector is stored. Only its first `head` bytes are summed here, because
        // the later ones are stored again and summed below.
        let vector = load(start);
        store(place, vector);
        lanes[0].add(rotate(keep_first(vector, head), swap));
    }
    let (source, destination) = (&source[head..], &mut destination[head..]);

    let (strides, rest) = source.as_chunks::<{ VECTOR * WIDTH }>();
    let (places, rest_places) = destination.as_chunks_mut::<{ VECTOR * WIDTH }>();
    let places = &mut places[..strides.len()];
    for index in 0..strides.len() {
        let (vectors, places) =
            (strides[index].as_chunks::<VECTOR>().0, places[index].as_chunks_mut::<VECTOR>().0);
        for (index, lanes) in lanes.iter_mut().enumerate() {
            let vector = opaque(load(&vectors[index]));
            store(&mut places[index], vector);
            lanes.add(vector);
        }
    }
    let (vectors, tail) = rest.as_chunks::<VECTOR>();
    let (places, tail_places) = rest_places.as_chunks_mut::<VECTOR>();
    let places = &mut places[..vectors.len()];
    for index in 0..vectors.len() {
        let vector = opaque(load(&vectors[index]));
        store(&mut places[index], vector);
        lanes[0].add(vector);
    }
    scalar::add(total(lanes), scalar::copy_and_sum_short(tail, tail_places)).rotate_left(swap)
}

/// Writes the sum of each range to `sums`.
#[target_feature(enable = "avx2")]
pub(crate) fn sum_batch(ranges: &[&[u8]], sums: &mut [u16]) {
    each_range(ranges, sums, |bytes| sum(bytes));
}

/// Four sums of 64-bit words, each in two parts: `all` is the sum modulo 2^64, `high` the sum of
/// the high halves.
///
/// A 16-bit multiply-add would need as many instructions per vector (flip the sign, multiply, add),
/// and its 32-bit lanes overflow. These lanes take 2^32 vectors; the caller passes at most 2^24
/// bytes.
#[derive(Clone, Copy)]
struct Avx2Lanes {
    all: __m256i,
    high: __m256i,
}

impl Avx2Lanes {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn zero() -> Avx2Lanes {
        Avx2Lanes { all: _mm256_setzero_si256(), high: _mm256_setzero_si256() }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn add(&mut self, vector: __m256i) {
        self.all = _mm256_add_epi64(self.all, vector);
        self.high = _mm256_add_epi64(self.high, _mm256_srli_epi64::<32>(vector));
    }
}

/// Returns the unfolded sum in all lanes: low + high, where low, the sum of the low halves, is all
/// - 2^32 high modulo 2^64.
///
/// 2^24 bytes are 2^22 halves of 32 bits: their sum is below 2^54, so neither a lane nor the total
/// overflows.
#[inline]
#[target_feature(enable = "avx2")]
fn total(lanes: [Avx2Lanes; WIDTH]) -> u64 {
    let [a, b, c, d] = lanes;
    let all = _mm256_add_epi64(_mm256_add_epi64(a.all, b.all), _mm256_add_epi64(c.all, d.all));
    let high = _mm256_add_epi64(_mm256_add_epi64(a.high, b.high), _mm256_add_epi64(c.high, d.high));
    let low = _mm256_sub_epi64(all, _mm256_slli_epi64::<32>(high));
    let sums = _mm256_add_epi64(low, high);
    let sums = _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
    // SAFETY: both types have 16 bytes, and every bit pattern is a value of the integers.
    let [even, odd] = unsafe { core::mem::transmute::<__m128i, [u64; 2]>(sums) };
    even + odd
}

/// Returns the first `count` bytes of `vector`, followed by zeros; `count` is at most 32.
#[inline]
#[target_feature(enable = "avx2")]
fn keep_first(vector: __m256i, count: usize) -> __m256i {
    let positions = _mm256_setr_epi8(
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24,
        25, 26, 27, 28, 29, 30, 31,
    );
    _mm256_and_si256(vector, _mm256_cmpgt_epi8(_mm256_set1_epi8(count as i8), positions))
}

/// Rotates each 64-bit word left by `bits`, 0 to 63: a multiplication by 2^bits modulo 2^64 - 1.
#[inline]
#[target_feature(enable = "avx2")]
fn rotate(vector: __m256i, bits: u32) -> __m256i {
    // For 0 bits the right shift is by 64, which gives 0.
    let left = _mm256_sllv_epi64(vector, _mm256_set1_epi64x(i64::from(bits)));
    let right = _mm256_srlv_epi64(vector, _mm256_set1_epi64x(64 - i64::from(bits)));
    _mm256_or_si256(left, right)
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8; VECTOR]) -> __m256i {
    // SAFETY: the reference makes 32 bytes readable; the instruction takes any alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(place: &mut [MaybeUninit<u8>; VECTOR], vector: __m256i) {
    // SAFETY: the mutable reference makes 32 bytes writable and excludes other accesses; the
    // instruction takes any alignment.
    unsafe { _mm256_storeu_si256(place.as_mut_ptr().cast(), vector) }
}

/// Returns `vector` unchanged, but hides from the compiler that it is unchanged.
///
/// Otherwise the compiler moves the stores out of the loop into a call of memcpy, and each byte is
/// read twice.
#[inline]
#[target_feature(enable = "avx2")]
#[cfg_attr(miri, expect(unused_mut, reason = "inline assembly cannot be interpreted"))]
fn opaque(mut vector: __m256i) -> __m256i {
    #[cfg(not(miri))]
    // SAFETY: the assembly has no instruction; the register keeps its value.
    unsafe {
        core::arch::asm!("/* {0} */", inout(ymm_reg) vector, options(pure, nomem, nostack, preserves_flags));
    }
    vector
}
