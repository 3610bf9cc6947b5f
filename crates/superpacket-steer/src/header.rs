//! Access to a packet's first bytes: fields of its headers, and headers split over several buffers.

use superpacket::wire::MAX_HEADER;

/// Reads a big-endian 16-bit field; returns 0 beyond the end.
///
/// The parser has checked that the header is complete before its fields are read, so the default is
/// never used. It avoids a panic branch.
#[inline(always)]
pub(crate) fn be16(bytes: &[u8], offset: usize) -> u16 {
    match bytes.get(offset..offset + 2) {
        Some(field) => u16::from_be_bytes([field[0], field[1]]),
        None => 0,
    }
}

/// A contiguous copy of the first [`MAX_HEADER`] bytes of a packet in several buffers.
pub(crate) struct GatheredHeader {
    bytes: [u8; MAX_HEADER],
    length: usize,
}

impl GatheredHeader {
    /// Copies the start of the packet whose parts are `slices`, in order.
    #[cold]
    pub(crate) fn new<'a>(slices: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut gathered = GatheredHeader { bytes: [0; MAX_HEADER], length: 0 };
        for slice in slices {
            let free = &mut gathered.bytes[gathered.length..];
            let count = slice.len().min(free.len());
            free[..count].copy_from_slice(&slice[..count]);
            gathered.length += count;
        }
        gathered
    }

    /// Returns the bytes; fewer than [`MAX_HEADER`] if the packet is shorter.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_beyond_the_end_are_zero() {
        assert_eq!((be16(&[1, 2, 3], 1), be16(&[1, 2, 3], 2)), (0x0203, 0));
    }

    #[test]
    fn a_header_is_gathered_up_to_its_limit() {
        let (first, second) = ([1; 200], [2; 200]);
        let gathered = GatheredHeader::new([&first[..], &[], &second[..], &second[..]].into_iter());
        assert_eq!(gathered.bytes(), [&first[..], &second[..MAX_HEADER - 200]].concat());
        assert_eq!(GatheredHeader::new([&first[..1], &second[..1]].into_iter()).bytes(), [1, 2]);
    }
}
