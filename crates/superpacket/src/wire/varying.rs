//! The fields of a transport header that differ between packets that merge, or between segments of
//! one packet. Aggregation (mask, sums) and segmentation (template) share this table.

use super::{Protocol, be16, be32, byte, dccp, tcp, udp};
use crate::checksum::Sum;

/// A field of a transport header that differs between packets, or the bits of a byte that do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VaryingField {
    /// Offset in the transport header, in bytes.
    pub(crate) offset: usize,
    /// Length in bytes.
    pub(crate) length: usize,
    /// The bits of each byte that may differ.
    pub(crate) bits: u8,
}

impl VaryingField {
    const fn new(offset: usize, length: usize) -> Self {
        VaryingField { offset, length, bits: 0xff }
    }

    /// Returns the offsets of the 16-bit words that hold the field.
    #[inline(always)]
    pub(crate) fn words(self) -> impl Iterator<Item = usize> {
        (self.offset & !1..self.offset + self.length).step_by(2)
    }
}

const TCP: [VaryingField; 3] = [
    VaryingField::new(tcp::SEQUENCE, 4),
    VaryingField { offset: tcp::FLAGS, length: 1, bits: tcp::PSH | tcp::FIN },
    VaryingField::new(tcp::CHECKSUM, 2),
];
const UDP: [VaryingField; 2] =
    [VaryingField::new(udp::LENGTH, 2), VaryingField::new(udp::CHECKSUM, 2)];
const DCCP_SHORT: [VaryingField; 2] =
    [VaryingField::new(dccp::CHECKSUM, 2), VaryingField::new(dccp::SHORT_SEQUENCE, 3)];
const DCCP_LONG: [VaryingField; 2] =
    [VaryingField::new(dccp::CHECKSUM, 2), VaryingField::new(dccp::LONG_SEQUENCE, 6)];

/// The fields that LRO also takes from the newest packet: acknowledgement, window, and the values
/// of an aligned timestamp, the only option that LRO accepts.
pub(crate) const NEWEST: [VaryingField; 4] = [
    VaryingField::new(tcp::ACKNOWLEDGEMENT, 4),
    VaryingField::new(tcp::WINDOW, 2),
    VaryingField::new(tcp::TIMESTAMP_VALUE, 4),
    VaryingField::new(tcp::TIMESTAMP_ECHO, 4),
];

/// Returns the fields that differ: sequence numbers, lengths, checksums, and flags that only the
/// last segment carries.
#[inline(always)]
pub(crate) fn fields(transport: &[u8], protocol: Protocol) -> &'static [VaryingField] {
    match protocol {
        Protocol::Tcp => &TCP,
        Protocol::Udp => &UDP,
        Protocol::Dccp if byte(transport, dccp::TYPE) & 1 == 1 => &DCCP_LONG,
        Protocol::Dccp => &DCCP_SHORT,
    }
}

/// Sums the fields of a transport header that differ between packets that merge. Each protocol's
/// table of fields is a constant at its call.
#[inline(always)]
pub(crate) fn sum(transport: &[u8], protocol: Protocol) -> Sum {
    match protocol {
        Protocol::Tcp => sum_of(&TCP, transport),
        Protocol::Udp => sum_of(&UDP, transport),
        Protocol::Dccp => sum_of(fields(transport, protocol), transport),
    }
}

/// Returns the one's complement sum of these fields of a transport header, each byte in the same
/// half of a 16-bit word as in the header.
#[inline(always)]
pub(crate) fn sum_of(fields: &[VaryingField], transport: &[u8]) -> Sum {
    fields.iter().fold(Sum::default(), |mut sum, field| {
        let (mut offset, end) = (field.offset, field.offset + field.length);
        if offset % 2 == 1 {
            // An odd offset is the lower half of a word.
            sum = sum.add(u16::from(byte(transport, offset) & field.bits));
            offset += 1;
        }
        while offset + 4 <= end {
            sum = sum.add32(be32(transport, offset));
            offset += 4;
        }
        if offset < end { sum.add(be16(transport, offset)) } else { sum }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_that_of_the_bytes_that_differ() {
        let mut header: [u8; 32] = core::array::from_fn(|index| (index * 37 + 11) as u8);
        for (protocol, kind) in
            [(Protocol::Tcp, 0), (Protocol::Udp, 0), (Protocol::Dccp, 0), (Protocol::Dccp, 1)]
        {
            header[dccp::TYPE] = 4 | kind;
            assert_eq!(
                sum(&header, protocol).fold(),
                sum_of(super::fields(&header, protocol), &header).fold()
            );
            for fields in [super::fields(&header, protocol), &NEWEST] {
                let mut only = [0; 32];
                for field in fields {
                    let words = field.words().flat_map(|word| [word, word + 1]);
                    for place in words.filter(|&place| {
                        place >= field.offset && place < field.offset + field.length
                    }) {
                        only[place] = header[place] & field.bits;
                    }
                }
                assert_eq!(
                    sum_of(fields, &header).fold(),
                    crate::checksum::words(&only).fold(),
                    "{protocol:?}"
                );
            }
        }
    }

    #[test]
    fn fields_beyond_the_header_are_none() {
        assert_eq!(sum_of(&NEWEST[2..], &[0xff; tcp::HEADER_LENGTH]).fold(), 0);
    }
}
