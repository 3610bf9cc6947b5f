//! The secret key of the keyed flow hash.

use core::fmt;

/// The secret key of the [keyed flow hash](crate::FlowHasher::keyed): 128 random bits.
#[derive(Clone, Copy)]
pub struct FlowHashKey {
    first: u64,
    second: u64,
}

impl FlowHashKey {
    /// Creates a key of 128 bits. The bits should be random if the traffic is not trusted: who
    /// knows the key can direct flows to one CPU.
    pub const fn new(bits: u128) -> Self {
        FlowHashKey {
            first: bits as u64 ^ 0x9e37_79b9_7f4a_7c15,
            second: (bits >> 64) as u64 ^ 0xd1b5_4a32_d192_ed03,
        }
    }

    /// Mixes a word into the state of the hash: a multiplication to 128 bits whose halves are
    /// combined by XOR (as in wyhash).
    #[inline(always)]
    pub(crate) fn fold(self, state: u64, word: u64) -> u64 {
        let product = u128::from(state ^ self.first) * u128::from(word ^ self.second);
        (product as u64) ^ ((product >> 64) as u64)
    }
}

/// Prints a placeholder, so that the key does not reach logs.
impl fmt::Debug for FlowHashKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("FlowHashKey(secret)")
    }
}
