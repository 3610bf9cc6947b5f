//! Tests of every level against a byte-by-byte implementation of RFC 1071.

use proptest::prelude::*;
use superpacket_simd::{Simd, prefetch_lines, prefetch_range, prefetch_read};

/// Number of lengths in the exhaustive tests: enough for every path of a vector loop; fewer under
/// Miri, which is slow.
const LENGTHS: usize = if cfg!(miri) { 100 } else { 300 };
const ALIGNMENTS: usize = 64;
const ALIGNMENT_STEP: usize = if cfg!(miri) { 31 } else { 1 };

/// Computes the sum as RFC 1071 describes it: adds big-endian words, then adds the carries.
fn reference(bytes: &[u8]) -> u16 {
    let mut sum = 0_u64;
    for word in bytes.chunks(2) {
        let low = if word.len() == 2 { word[1] } else { 0 };
        sum += u64::from(word[0]) << 8 | u64::from(low);
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Returns bytes whose period is no power of two (xorshift).
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

fn lengths_and_alignments() -> impl Iterator<Item = (usize, usize)> {
    (0..=LENGTHS).flat_map(|length| {
        (0..ALIGNMENTS).step_by(ALIGNMENT_STEP).map(move |start| (length, start))
    })
}

/// Copies `source` into the middle of a larger buffer, and checks every byte of that buffer
/// afterwards.
fn check_copy(simd: Simd, source: &[u8], start: usize, target: &mut Vec<u8>) {
    const GUARD: u8 = 0xa5;
    target.clear();
    target.resize(start + source.len() + 64, GUARD);
    let end = start + source.len();
    let sum = reference(source);
    let check = |copied: u16, target: &mut [u8], how: &str| {
        assert_eq!(copied, sum, "{} of {} bytes, {how}", simd.name(), source.len());
        assert!(
            target[start..end] == *source,
            "{} copied {} bytes to {start} wrong, {how}",
            simd.name(),
            source.len()
        );
        let outside = target[..start].iter().chain(&target[end..]);
        assert!(
            outside.into_iter().all(|byte| *byte == GUARD),
            "{} wrote outside of {start}..{end}, {how}",
            simd.name()
        );
        target[start..end].fill(GUARD);
    };
    let copied = simd.copy_and_sum(source, &mut target[start..end]);
    check(copied, target, "no hint");
    for ahead in [&[], &source[..source.len() / 2], source] {
        let copied = simd.copy_and_sum_ahead(source, &mut target[start..end], ahead);
        check(copied, target, "with hints");
    }
    // Hints for no bytes, fewer bytes, and as many.
    for ahead in [&[], &source[..source.len() / 2], source] {
        target.truncate(start);
        assert_eq!(
            simd.extend_and_sum_ahead(target, source, ahead),
            sum,
            "{} appended {} bytes",
            simd.name(),
            source.len()
        );
        assert!(
            target[..start].iter().all(|byte| *byte == GUARD) && target[start..] == *source,
            "{} appended wrong",
            simd.name()
        );
    }
}

#[test]
fn sum_at_all_lengths_and_alignments() {
    let data = noise(LENGTHS + ALIGNMENTS);
    for (length, start) in lengths_and_alignments() {
        let bytes = &data[start..start + length];
        let expected = reference(bytes);
        for simd in Simd::available() {
            assert_eq!(simd.sum(bytes), expected, "{}, {length} bytes at {start}", simd.name());
            // Hints for no bytes, fewer, as many, and more.
            for ahead in [&data[..0], &data[..length / 2], bytes, &data] {
                assert_eq!(
                    simd.sum_ahead(bytes, ahead),
                    expected,
                    "{}, {length} bytes at {start}, {} ahead",
                    simd.name(),
                    ahead.len()
                );
            }
        }
    }
}

#[test]
fn copy_at_all_lengths_and_alignments() {
    let data = noise(LENGTHS + ALIGNMENTS);
    let mut target = Vec::new();
    for (length, start) in lengths_and_alignments() {
        for simd in Simd::available() {
            // Source and destination at different alignments, in opposite directions.
            check_copy(simd, &data[start..start + length], ALIGNMENTS - 1 - start, &mut target);
        }
    }
}

#[test]
fn no_byte_beyond_a_slice_is_read() {
    // Each slice is a separate allocation of exactly its length, so that Miri and valgrind detect a
    // read beyond it.
    for length in 0..=LENGTHS {
        let bytes = noise(length).into_boxed_slice();
        let mut copy = vec![0; length].into_boxed_slice();
        for simd in Simd::available() {
            assert_eq!(simd.sum(&bytes), reference(&bytes), "{}, {length} bytes", simd.name());
            copy.fill(0);
            assert_eq!(
                simd.copy_and_sum(&bytes, &mut copy),
                reference(&bytes),
                "{}, {length} bytes",
                simd.name()
            );
            assert!(copy == bytes, "{}, {length} bytes", simd.name());
        }
    }
}

#[test]
fn carries_of_all_ones_are_kept() {
    let lengths: &[usize] = if cfg!(miri) {
        &[64, 255, 1480, 2048]
    } else {
        &[64, 255, 1480, 9000, 65_535, 65_536, 65_537, 131_072, 200_001, 300_000]
    };
    let ones = vec![0xff; lengths.iter().copied().max().unwrap_or(0)];
    let mut target = Vec::new();
    for &length in lengths {
        // All words 0xFFFF: congruent to 0, but not 0. An odd last byte adds 0xFF00.
        let expected = if length % 2 == 0 { 0xffff } else { 0xff00 };
        for simd in Simd::available() {
            assert_eq!(simd.sum(&ones[..length]), expected, "{}, {length} bytes", simd.name());
            check_copy(simd, &ones[..length], 1, &mut target);
        }
    }
}

#[test]
fn large_noise() {
    let lengths: &[usize] = if cfg!(miri) {
        &[1448, 2111]
    } else {
        &[1448, 1480, 9000, 65_535, 65_536, 131_073, 300_000]
    };
    let data = noise(lengths.iter().copied().max().unwrap_or(0) + 1);
    let mut target = Vec::new();
    for &length in lengths {
        for start in [0, 1] {
            let bytes = &data[start..start + length];
            for simd in Simd::available() {
                assert_eq!(
                    simd.sum(bytes),
                    reference(bytes),
                    "{}, {length} bytes at {start}",
                    simd.name()
                );
                check_copy(simd, bytes, 3, &mut target);
            }
        }
    }
}

/// Sums and copies more than the 16 MiB that the vector loops take at once.
#[test]
#[cfg_attr(miri, ignore = "too large to interpret")]
fn more_than_one_block() {
    let mut data = vec![0xff; (1 << 24) + 1001];
    data[..77].copy_from_slice(&noise(77));
    data[(1 << 24) - 3..(1 << 24) + 90].copy_from_slice(&noise(93));
    let expected = reference(&data);
    let mut target = Vec::new();
    for simd in Simd::available() {
        assert_eq!(simd.sum(&data), expected, "{}", simd.name());
        let mut sums = [0; 2];
        simd.sum_batch(&[&data, &data[1..]], &mut sums);
        assert_eq!(sums, [expected, reference(&data[1..])], "{}", simd.name());
        check_copy(simd, &data, 5, &mut target);
    }
}

#[test]
fn zero_only_for_zero_bytes() {
    for length in 0..=LENGTHS {
        let mut bytes = vec![0; length];
        for simd in Simd::available() {
            assert_eq!(simd.sum(&bytes), 0, "{}, {length} bytes", simd.name());
        }
        if length >= 2 {
            bytes[length / 2 - 1..=length / 2].fill(0xff);
            for simd in Simd::available() {
                assert_eq!(simd.sum(&bytes), 0xffff, "{}, {length} bytes", simd.name());
            }
        }
    }
}

#[test]
fn words_are_big_endian_and_an_odd_byte_is_high() {
    for simd in Simd::available() {
        assert_eq!(simd.sum(&[]), 0);
        assert_eq!(simd.sum(&[0x12]), 0x1200);
        assert_eq!(simd.sum(&[0x12, 0x34]), 0x1234);
        assert_eq!(simd.sum(&[0x12, 0x34, 0x56]), 0x6834);
        // The numerical example of RFC 1071, section 3.
        assert_eq!(simd.sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
    }
}

#[test]
fn a_batch_gives_the_sum_of_each_range() {
    let data = noise(2 * LENGTHS);
    let ranges: Vec<&[u8]> = (0..=LENGTHS).map(|length| &data[length..2 * length]).collect();
    let expected: Vec<u16> = ranges.iter().map(|range| reference(range)).collect();
    for simd in Simd::available() {
        let mut sums = vec![0; ranges.len()];
        simd.sum_batch(&ranges, &mut sums);
        assert_eq!(sums, expected, "{}", simd.name());
        simd.sum_batch(&[], &mut []);
    }
}

#[test]
#[should_panic(expected = "each range needs one place for its sum")]
fn a_batch_with_too_few_places_panics() {
    Simd::detect().sum_batch(&[&[1], &[2]], &mut [0]);
}

#[test]
#[should_panic(expected = "a copy needs a destination of the source's length")]
fn a_copy_to_another_length_panics() {
    Simd::detect().copy_and_sum(&[1; 100], &mut [0; 101]);
}

#[test]
#[should_panic(expected = "a copy needs a destination of the source's length")]
fn a_copy_with_hints_to_another_length_panics() {
    Simd::detect().copy_and_sum_ahead(&[1; 100], &mut [0; 101], &[1; 100]);
}

#[test]
fn levels_are_ordered_and_the_best_is_picked() {
    let names: Vec<&str> = Simd::available().map(Simd::name).collect();
    assert_eq!(names[0], "scalar");
    assert_eq!(Simd::available().next(), Some(Simd::scalar()));
    assert_eq!(Simd::available().last(), Some(Simd::detect()));
    assert_eq!(Simd::detect(), Simd::detect());
    let known = ["scalar", "avx2", "avx512", "zen4", "neon"];
    let positions: Vec<_> =
        names.iter().map(|name| known.iter().position(|known| known == name)).collect();
    assert!(positions.iter().all(Option::is_some) && positions.is_sorted(), "{names:?}");
}

#[test]
#[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2", not(miri)))]
fn detection_agrees_with_the_standard_library() {
    let has = |name| Simd::available().any(|simd| simd.name() == name);
    assert_eq!(has("avx2"), std::is_x86_feature_detected!("avx2"));
    let avx512 =
        std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("avx512bw");
    assert_eq!(has("avx512"), avx512);
    assert!(!has("neon"));
}

#[test]
#[cfg(all(target_arch = "aarch64", target_endian = "little", target_feature = "neon"))]
fn neon_is_always_there_on_aarch64() {
    assert_eq!(Simd::detect().name(), "neon");
    assert_eq!(Simd::available().count(), 2);
}

#[test]
fn prefetching_changes_nothing_and_takes_any_range() {
    let data = noise(LENGTHS);
    for start in 0..=LENGTHS.min(130) {
        prefetch_range(&data[start..], 0);
        prefetch_range(&data[start..], 65);
        prefetch_range(&data[start..], usize::MAX);
        prefetch_lines::<3>(&data[start..]);
    }
    prefetch_range(&[], usize::MAX);
    prefetch_lines::<2>(&[]);
    prefetch_read(&data[..]);
    prefetch_read::<[u8]>(&[]);
    prefetch_read("text");
    prefetch_read(&());
    assert_eq!(data, noise(LENGTHS));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_bytes(
        bytes in proptest::collection::vec(any::<u8>(), 0..if cfg!(miri) { 300 } else { 5000 }),
        start in 0_usize..64,
        cut in any::<proptest::sample::Index>(),
    ) {
        let expected = reference(&bytes);
        let mut target = Vec::new();
        for simd in Simd::available() {
            prop_assert_eq!(simd.sum(&bytes), expected);
            check_copy(simd, &bytes, start, &mut target);
            // Two parts, split at an even offset, add up to the whole.
            let cut = cut.index(bytes.len() + 1) & !1;
            let mut parts = [0; 2];
            simd.sum_batch(&[&bytes[..cut], &bytes[cut..]], &mut parts);
            let (sum, carry) = parts[0].overflowing_add(parts[1]);
            prop_assert_eq!(sum + u16::from(carry), expected);
        }
    }
}
