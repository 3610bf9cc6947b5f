//! CRC32c (Castagnoli), the checksum of SCTP. With `std` the processor's instructions are used if
//! it has them, otherwise tables. Tables take 3.7 times as long for 1,460 bytes (370 ns instead of
//! 100) and 5.6 times for 9,000.

/// A CRC32c in progress: that of the bytes that were added so far.
#[cfg(feature = "std")]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Crc32c(u32);

#[cfg(feature = "std")]
impl Crc32c {
    /// Adds the next bytes to the CRC.
    pub(super) fn update(self, bytes: &[u8]) -> Self {
        Crc32c(crc32c::crc32c_append(self.0, bytes))
    }

    /// Returns the CRC of all bytes that were added.
    pub(super) const fn finish(self) -> u32 {
        self.0
    }
}

/// CRC32c look-up tables that process 16 bytes at a time.
#[cfg(not(feature = "std"))]
static TABLES: crc::Crc<u32, crc::Table<16>> =
    crc::Crc::<u32, crc::Table<16>>::new(&crc::CRC_32_ISCSI);

/// A CRC32c in progress: that of the bytes that were added so far.
#[cfg(not(feature = "std"))]
#[derive(Clone)]
pub(super) struct Crc32c(crc::Digest<'static, u32, crc::Table<16>>);

#[cfg(not(feature = "std"))]
impl Default for Crc32c {
    fn default() -> Self {
        Crc32c(TABLES.digest())
    }
}

#[cfg(not(feature = "std"))]
impl Crc32c {
    /// Adds the next bytes to the CRC.
    pub(super) fn update(mut self, bytes: &[u8]) -> Self {
        self.0.update(bytes);
        self
    }

    /// Returns the CRC of all bytes that were added.
    pub(super) fn finish(self) -> u32 {
        self.0.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_of_rfc_3720() {
        // RFC 3720, appendix B.4: 32 bytes of zeros.
        for cut in 0..=32 {
            assert_eq!(
                Crc32c::default().update(&[0; 32][..cut]).update(&[0; 32][cut..]).finish(),
                0x8a91_36aa
            );
        }
        assert_eq!(Crc32c::default().finish(), 0);
    }
}
