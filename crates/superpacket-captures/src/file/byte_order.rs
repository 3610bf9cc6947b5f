//! Byte order of the numbers in a capture file's own fields.

/// The byte order of the numbers in a capture file's own fields. Numbers in the captured packets
/// are always big endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

impl ByteOrder {
    /// The byte order of numbers on the machine that runs this program.
    pub const NATIVE: Self = if cfg!(target_endian = "big") { Self::Big } else { Self::Little };

    /// Returns the number at `offset`. Panics if `bytes` is too short, so the caller must have
    /// checked the length.
    #[inline]
    pub(super) fn u16_at(self, bytes: &[u8], offset: usize) -> u16 {
        let bytes = [bytes[offset], bytes[offset + 1]];
        match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }
    }

    /// Returns the number at `offset`. Panics if `bytes` is too short, so the caller must have
    /// checked the length.
    #[inline]
    pub(super) fn u32_at(self, bytes: &[u8], offset: usize) -> u32 {
        let bytes: [u8; 4] = bytes[offset..offset + 4].try_into().expect("a slice of 4 bytes");
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    #[inline]
    pub(super) fn u16_bytes(self, value: u16) -> [u8; 2] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    #[inline]
    pub(super) fn u32_bytes(self, value: u32) -> [u8; 4] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        for order in [ByteOrder::Little, ByteOrder::Big] {
            assert_eq!(order.u16_at(&order.u16_bytes(0x1234), 0), 0x1234);
            assert_eq!(order.u32_at(&order.u32_bytes(0x1234_5678), 0), 0x1234_5678);
        }
        assert_eq!(ByteOrder::Big.u32_bytes(1), [0, 0, 0, 1]);
        assert_eq!(ByteOrder::Little.u16_bytes(1), [1, 0]);
        assert_eq!(ByteOrder::NATIVE.u32_bytes(7), 7u32.to_ne_bytes());
    }
}
