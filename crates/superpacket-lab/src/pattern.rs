//! Test payload whose bytes depend on a key and on their offset in the stream. A receiver checks
//! each byte, and so detects lost, repeated, swapped and foreign bytes.

use std::hash::Hasher;

use twox_hash::XxHash3_64;

/// An endless stream of bytes, computed from a key and the offset. It does not repeat within any
/// stream of practical length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    key: u64,
}

impl Pattern {
    /// Returns the pattern of `key`. Different keys give unrelated streams.
    #[must_use]
    pub fn new(key: u64) -> Self {
        Self { key: mix(key) }
    }

    /// Returns the pattern of one of several streams with the same key.
    #[must_use]
    pub fn stream(self, stream: u64) -> Self {
        Self { key: mix(self.key ^ mix(stream.wrapping_add(1))) }
    }

    /// Writes the stream's bytes from `offset` on into `out`.
    pub fn fill(&self, offset: u64, out: &mut [u8]) {
        let (mut index, within) = (offset / 8, (offset % 8) as usize);
        let mut out = out;
        if within != 0 {
            let word = self.word(index).to_le_bytes();
            let head = (8 - within).min(out.len());
            out[..head].copy_from_slice(&word[within..within + head]);
            out = &mut out[head..];
            index += 1;
        }
        let mut words = out.chunks_exact_mut(8);
        for chunk in &mut words {
            chunk.copy_from_slice(&self.word(index).to_le_bytes());
            index = index.wrapping_add(1);
        }
        let tail = words.into_remainder();
        let word = self.word(index).to_le_bytes();
        tail.copy_from_slice(&word[..tail.len()]);
    }

    /// Returns the index of the first byte of `bytes` that differs from the stream at `offset`;
    /// `None` if all are equal.
    #[must_use]
    pub fn first_difference(&self, offset: u64, bytes: &[u8]) -> Option<usize> {
        let mut expected = [0; 4096];
        for (number, chunk) in bytes.chunks(expected.len()).enumerate() {
            let start = number * expected.len();
            let expected = &mut expected[..chunk.len()];
            self.fill(offset + start as u64, expected);
            if chunk != expected {
                return chunk
                    .iter()
                    .zip(expected.iter())
                    .position(|(is, should)| is != should)
                    .map(|within| start + within);
            }
        }
        None
    }

    fn word(self, index: u64) -> u64 {
        mix(self.key ^ index)
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
/// generators", 2014). It is a bijection, so all words of a stream differ.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The sending side of a checked stream: generates its bytes and hashes the bytes that were sent.
pub(crate) struct Producer {
    pattern: Pattern,
    offset: u64,
    sum: XxHash3_64,
}

impl Producer {
    pub(crate) fn new(pattern: Pattern) -> Self {
        Self { pattern, offset: 0, sum: XxHash3_64::new() }
    }

    /// Writes the next bytes into `out` without advancing. Call [`Self::sent`] with the bytes that
    /// the system call accepted.
    pub(crate) fn prepare(&self, out: &mut [u8]) {
        self.pattern.fill(self.offset, out);
    }

    /// Advances past `sent`, the prepared bytes that the system call accepted.
    pub(crate) fn sent(&mut self, sent: &[u8]) {
        self.sum.write(sent);
        self.offset += sent.len() as u64;
    }

    /// Returns the XXH3 hash of all sent bytes.
    pub(crate) fn digest(&self) -> u64 {
        self.sum.finish()
    }
}

/// The receiving side of a checked stream: hashes the received bytes, and finds the first wrong
/// one.
pub(crate) struct Checker {
    offset: u64,
    sum: XxHash3_64,
    first_difference: Option<u64>,
}

impl Checker {
    pub(crate) fn new() -> Self {
        Self { offset: 0, sum: XxHash3_64::new(), first_difference: None }
    }

    /// Hashes the next received bytes, and checks them with `first_difference`, which compares
    /// bytes with those expected at an offset. After a difference it is not called again.
    pub(crate) fn received(
        &mut self,
        bytes: &[u8],
        first_difference: impl FnOnce(u64, &[u8]) -> Option<usize>,
    ) {
        self.sum.write(bytes);
        if self.first_difference.is_none() {
            self.first_difference =
                first_difference(self.offset, bytes).map(|index| self.offset + index as u64);
        }
        self.offset += bytes.len() as u64;
    }

    /// Returns the XXH3 hash of all received bytes.
    pub(crate) fn digest(&self) -> u64 {
        self.sum.finish()
    }

    /// Returns the offset of the first wrong byte in the stream; `None` if all were right.
    pub(crate) fn first_difference(&self) -> Option<u64> {
        self.first_difference
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_of_the_stream_gives_the_same_bytes() {
        let pattern = Pattern::new(7);
        let mut whole = vec![0; 1000];
        pattern.fill(0, &mut whole);
        for start in 0..40 {
            for length in 0..60 {
                let mut part = vec![0; length];
                pattern.fill(start as u64, &mut part);
                assert_eq!(part, whole[start..start + length], "{start} + {length}");
            }
        }
    }

    #[test]
    fn a_difference_is_found_where_it_is() {
        let pattern = Pattern::new(7).stream(3);
        let mut bytes = vec![0; 10_000];
        pattern.fill(123, &mut bytes);
        assert_eq!(pattern.first_difference(123, &bytes), None);
        assert_eq!(pattern.first_difference(122, &bytes), Some(0), "moved by one byte");
        assert_eq!(
            Pattern::new(7).stream(4).first_difference(123, &bytes),
            Some(0),
            "another stream's bytes"
        );
        bytes[4097] ^= 1;
        assert_eq!(pattern.first_difference(123, &bytes), Some(4097));
    }

    #[test]
    fn both_sides_agree_only_over_equal_bytes() {
        let pattern = Pattern::new(9);
        let (mut producer, mut checker) = (Producer::new(pattern), Checker::new());
        let mut bytes = [0; 100];
        for length in [100, 3, 8, 41] {
            producer.prepare(&mut bytes[..length]);
            producer.sent(&bytes[..length]);
            checker.received(&bytes[..length], |offset, bytes| {
                pattern.first_difference(offset, bytes)
            });
        }
        assert_eq!((producer.digest(), None), (checker.digest(), checker.first_difference()));
        checker.received(&[bytes[0]], |offset, bytes| pattern.first_difference(offset, bytes));
        assert_ne!(producer.digest(), checker.digest());
        assert_eq!(checker.first_difference(), Some(152));
    }
}
