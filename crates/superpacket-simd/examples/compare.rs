//! Compares every level of this processor with a plain RFC 1071 loop, and prints one line per
//! level.
//!
//! It exits with 1 on a difference. Run under valgrind, it also shows that no byte outside of a
//! slice is read: `valgrind --error-exitcode=1 target/debug/examples/compare`. A first argument
//! `require=avx2` makes the absence of that level an error.

use std::process::ExitCode;

use superpacket_simd::Simd;

fn main() -> ExitCode {
    let mut failed = false;
    for simd in Simd::available() {
        let mut compared = 0_u64;
        let mut differences = 0_u64;
        for length in (0..=600).chain([1448, 1480, 9000, 65_535, 65_536, 300_001]) {
            for fill in [Fill::Counting, Fill::Ones, Fill::Zeros] {
                compared += 1;
                differences += u64::from(!agrees(simd, &fill.bytes(length)));
            }
        }
        println!("{}: {compared} inputs compared, {differences} differences", simd.name());
        failed |= differences != 0;
    }
    let argument = std::env::args().nth(1).unwrap_or_default();
    let required = argument.strip_prefix("require=");
    if required.is_some_and(|name| Simd::available().all(|simd| simd.name() != name)) {
        println!("{argument}: not available on this processor");
        failed = true;
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The bytes with which an input is filled.
#[derive(Clone, Copy)]
enum Fill {
    Counting,
    Ones,
    Zeros,
}

impl Fill {
    /// Returns a filled allocation of exactly `length` bytes.
    fn bytes(self, length: usize) -> Box<[u8]> {
        let byte = |index: usize| match self {
            Fill::Counting => (index * 167 + (index >> 8)) as u8,
            Fill::Ones => 0xff,
            Fill::Zeros => 0,
        };
        (0..length).map(byte).collect()
    }
}

/// Returns whether sum, batch and copy all agree with RFC 1071.
fn agrees(simd: Simd, bytes: &[u8]) -> bool {
    let expected = reference(bytes);
    let mut copy = vec![0x5a; bytes.len()].into_boxed_slice();
    let mut sums = [0];
    simd.sum_batch(&[bytes], &mut sums);
    simd.sum(bytes) == expected
        && sums == [expected]
        && simd.copy_and_sum(bytes, &mut copy) == expected
        && *copy == *bytes
}

/// Computes the sum as RFC 1071 describes it: adds big-endian words, then adds the carries.
fn reference(bytes: &[u8]) -> u16 {
    let word = |word: &[u8]| u64::from(word[0]) << 8 | u64::from(word.get(1).copied().unwrap_or(0));
    let mut sum: u64 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
