//! Comparison under a bit mask.

#![cfg_attr(
    all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"),
    expect(unsafe_code, reason = "vector instructions")
)]

#[cfg(all(target_arch = "x86", target_feature = "sse2"))]
use core::arch::x86 as arch;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
use core::arch::x86_64 as arch;

/// Number of bytes compared at once.
const STEP: usize = 16;

/// Returns whether `left` and `right` are equal in every bit that is set in `mask`.
///
/// It is meant for up to a few hundred bytes. The length is a constant, so the loop is unrolled,
/// and all bytes are compared wherever the first difference is. It is fastest if `right` and `mask`
/// are known to be aligned to 16 bytes.
///
/// `LENGTH` must be a multiple of 16, which is checked at compile time.
#[inline(always)]
pub fn equal_masked<const LENGTH: usize>(
    left: &[u8; LENGTH],
    right: &[u8; LENGTH],
    mask: &[u8; LENGTH],
) -> bool {
    const { assert!(LENGTH.is_multiple_of(STEP)) };
    equal(left.as_chunks().0, right.as_chunks().0, mask.as_chunks().0)
}

#[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
#[inline(always)]
fn equal(left: &[[u8; STEP]], right: &[[u8; STEP]], mask: &[[u8; STEP]]) -> bool {
    // SAFETY: SSE2 is a target feature of this build. Each load reads the 16 bytes of a reference,
    // of any alignment.
    unsafe {
        let load = |bytes: &[u8; STEP]| arch::_mm_loadu_si128(bytes.as_ptr().cast());
        let mut differ = arch::_mm_setzero_si128();
        for (index, left) in left.iter().enumerate() {
            let differ_here = arch::_mm_xor_si128(load(left), load(&right[index]));
            differ =
                arch::_mm_or_si128(differ, arch::_mm_and_si128(differ_here, load(&mask[index])));
        }
        arch::_mm_movemask_epi8(arch::_mm_cmpeq_epi8(differ, arch::_mm_setzero_si128())) == 0xffff
    }
}

#[cfg(not(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2")))]
#[inline(always)]
fn equal(left: &[[u8; STEP]], right: &[[u8; STEP]], mask: &[[u8; STEP]]) -> bool {
    let number = |bytes: &[u8; STEP]| u128::from_ne_bytes(*bytes);
    let mut differ = 0;
    for (index, left) in left.iter().enumerate() {
        differ |= (number(left) ^ number(&right[index])) & number(&mask[index]);
    }
    differ == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bits_of_the_mask_count() {
        let left: [u8; 48] = core::array::from_fn(|index| (index * 73 + 5) as u8);
        let mask: [u8; 48] = core::array::from_fn(|index| (index * 29 + 131) as u8);
        assert!(equal_masked(&left, &left, &mask));
        for index in 0..left.len() {
            for bit in 0..8 {
                let mut right = left;
                right[index] ^= 1 << bit;
                assert_eq!(
                    equal_masked(&left, &right, &mask),
                    mask[index] & 1 << bit == 0,
                    "{index} {bit}"
                );
                assert!(equal_masked(&left, &right, &[0; 48]));
                assert!(!equal_masked(&right, &left, &[0xff; 48]));
            }
        }
    }
}
