//! The NEON level (little-endian aarch64, where NEON is baseline): vectors of 16 bytes.

#![expect(unsafe_code, reason = "vector instructions")]

use core::arch::aarch64::*;

use core::mem::MaybeUninit;

use crate::scalar;

/// Number of bytes per vector.
const VECTOR: usize = 16;
/// Number of accumulators, so that an addition need not wait for the previous one.
const WIDTH: usize = 4;
/// Bytes after which the 32-bit lanes are folded into 64-bit ones.
///
/// A vector adds two words, at most 2 x 0xFFFF, to each lane, so a lane takes 32,768 vectors: 2 MiB
/// over four accumulators. This value is far below, and its cost is not measurable.
const FOLD: usize = 1 << 16;

/// Returns the unfolded sum of at most [`BLOCK`](crate::ranges::BLOCK) bytes.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    // A multiple of the stride, so that only the last piece has a tail.
    const { assert!(FOLD.is_multiple_of(VECTOR * WIDTH)) };
    let mut total = zero_64();
    let mut tail_sum = 0;
    for piece in bytes.chunks(FOLD) {
        let (strides, rest) = piece.as_chunks::<{ VECTOR * WIDTH }>();
        let mut lanes = [zero_32(); WIDTH];
        for stride in strides {
            let vectors = stride.as_chunks::<VECTOR>().0;
            for (index, lanes) in lanes.iter_mut().enumerate() {
                *lanes = add_words(*lanes, load(&vectors[index]));
            }
        }
        let (vectors, tail) = rest.as_chunks::<VECTOR>();
        for vector in vectors {
            lanes[0] = add_words(lanes[0], load(vector));
        }
        total = fold(total, lanes);
        tail_sum = scalar::add(tail_sum, scalar::sum_short(tail));
    }
    scalar::add(both(total), tail_sum)
}

/// Copies `source` to a `destination` of the same length, and returns its unfolded sum.
pub(crate) fn copy_and_sum(source: &[u8], destination: &mut [MaybeUninit<u8>]) -> u64 {
    // Equal lengths are established once; otherwise the compiler checks both at each step.
    let destination = &mut destination[..source.len()];
    let mut total = zero_64();
    let mut tail_sum = 0;
    for (piece, place) in source.chunks(FOLD).zip(destination.chunks_mut(FOLD)) {
        let (strides, rest) = piece.as_chunks::<{ VECTOR * WIDTH }>();
        let (places, rest_places) = place.as_chunks_mut::<{ VECTOR * WIDTH }>();
        let mut lanes = [zero_32(); WIDTH];
        let places = &mut places[..strides.len()];
        for index in 0..strides.len() {
            let (vectors, places) =
                (strides[index].as_chunks::<VECTOR>().0, places[index].as_chunks_mut::<VECTOR>().0);
            for (index, lanes) in lanes.iter_mut().enumerate() {
                let vector = opaque(load(&vectors[index]));
                store(&mut places[index], vector);
                *lanes = add_words(*lanes, vector);
            }
        }
        let (vectors, tail) = rest.as_chunks::<VECTOR>();
        let (places, tail_places) = rest_places.as_chunks_mut::<VECTOR>();
        let places = &mut places[..vectors.len()];
        for index in 0..vectors.len() {
            let vector = opaque(load(&vectors[index]));
            store(&mut places[index], vector);
            lanes[0] = add_words(lanes[0], vector);
        }
        total = fold(total, lanes);
        tail_sum = scalar::add(tail_sum, scalar::copy_and_sum_short(tail, tail_places));
    }
    scalar::add(both(total), tail_sum)
}

#[inline(always)]
fn load(bytes: &[u8; VECTOR]) -> uint16x8_t {
    // SAFETY: NEON is baseline here; the reference makes 16 bytes readable, and a load of bytes
    // takes any alignment.
    unsafe { vreinterpretq_u16_u8(vld1q_u8(bytes.as_ptr())) }
}

#[inline(always)]
fn store(place: &mut [MaybeUninit<u8>; VECTOR], vector: uint16x8_t) {
    // SAFETY: NEON is baseline here; the mutable reference makes 16 bytes writable and excludes
    // other accesses; a store of bytes takes any alignment.
    unsafe { vst1q_u8(place.as_mut_ptr().cast(), vreinterpretq_u8_u16(vector)) }
}

/// Returns `vector` unchanged, but hides from the compiler that it is unchanged.
///
/// Otherwise the compiler moves the stores out of the loop into a call of memcpy, and each byte is
/// read twice.
#[inline(always)]
#[cfg_attr(miri, expect(unused_mut, reason = "inline assembly cannot be interpreted"))]
fn opaque(mut vector: uint16x8_t) -> uint16x8_t {
    #[cfg(not(miri))]
    // SAFETY: the assembly has no instruction; the register keeps its value.
    unsafe {
        core::arch::asm!("/* {0:v} */", inout(vreg) vector, options(pure, nomem, nostack, preserves_flags));
    }
    vector
}

/// Adds each pair of 16-bit words to a 32-bit lane.
#[inline(always)]
fn add_words(lanes: uint32x4_t, words: uint16x8_t) -> uint32x4_t {
    // SAFETY: NEON is baseline here; no memory is touched.
    unsafe { vpadalq_u16(lanes, words) }
}

/// Adds the lanes to the total. Each lane is below 2^32, so 2^32 of them fit.
#[inline(always)]
fn fold(total: uint64x2_t, lanes: [uint32x4_t; WIDTH]) -> uint64x2_t {
    // SAFETY: NEON is baseline here; no memory is touched.
    lanes.iter().fold(total, |total, lanes| unsafe { vpadalq_u32(total, *lanes) })
}

/// Returns the sum of both halves of the total. It is below 2^39, since at most 2^24 bytes, which
/// are 2^23 words of 16 bits, were added.
#[inline(always)]
fn both(total: uint64x2_t) -> u64 {
    // SAFETY: NEON is baseline here; no memory is touched.
    unsafe { vaddvq_u64(total) }
}

#[inline(always)]
fn zero_32() -> uint32x4_t {
    // SAFETY: NEON is baseline here; no memory is touched.
    unsafe { vdupq_n_u32(0) }
}

#[inline(always)]
fn zero_64() -> uint64x2_t {
    // SAFETY: NEON is baseline here; no memory is touched.
    unsafe { vdupq_n_u64(0) }
}
