//! The Internet checksum: one's-complement sums of big-endian 16-bit words (RFC 1071), kept,
//! combined and taken apart.
//!
//! A *sum* is the folded sum as a host integer, as if each word had been read with
//! `u16::from_be_bytes`; a *checksum* is the field's value, the sum's complement. 0x0000 and 0xFFFF
//! are the same number in one's-complement arithmetic; a sum of bytes that are not all zero is
//! never 0x0000, so a checksum computed over a pseudo-header is never 0xFFFF, and a field that
//! holds 0xFFFF is valid but not canonical.

use crate::wire::{IpVersion, Protocol, byte, ipv4, ipv6};
use superpacket_simd::Simd;

mod crc32c;
pub mod partial;

pub(crate) use partial::Completion;
pub use partial::{CompletionError, complete_partial};

/// What the device knows of a received packet's checksums (the kernel's `ip_summed`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RxChecksum {
    /// Nothing: verified in software where it matters.
    #[default]
    None,
    /// The device verified `level + 1` transport checksums, the outermost first; zero UDP checksums
    /// are not counted (`csum_level`).
    Unnecessary {
        /// How many more than one.
        level: u8,
    },
    /// The one's-complement sum of everything after the 14-byte Ethernet header (of everything, in
    /// a packet that starts at IP), VLAN tags and padding included: `CHECKSUM_COMPLETE`. A host
    /// integer of big-endian words.
    Complete(u16),
    /// The checksum field holds the pseudo-header's sum, not inverted, and whoever needs the
    /// checksum must fill it in ([`complete_partial`]).
    Partial {
        /// Where to start summing, in bytes from the start of the packet: the transport header.
        start: u16,
        /// Where the checksum field lies from `start`.
        offset: u16,
    },
}

/// A one's-complement sum that is still being added up.
///
/// Kept in 64 bits, where 2^16, 2^32 and 2^48 all count as 1: whole 32-bit fields are added at
/// once, and nothing is folded before the end. Holds more than 4,000,000,000 additions without
/// loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// A sum that starts with a folded sum or a word.
    #[inline(always)]
    pub const fn new(word: u16) -> Self {
        Sum(word as u64)
    }

    /// Adds a word or a folded sum.
    #[inline(always)]
    #[must_use]
    pub const fn add(self, word: u16) -> Self {
        Sum(self.0 + word as u64)
    }

    /// Adds both words of a 32-bit field.
    #[inline(always)]
    #[must_use]
    pub const fn add32(self, field: u32) -> Self {
        Sum(self.0 + field as u64)
    }

    /// Takes a word or a folded sum away again.
    #[inline(always)]
    #[must_use]
    pub const fn subtract(self, word: u16) -> Self {
        Sum(self.0 + !word as u64)
    }

    /// Adds another sum.
    #[inline(always)]
    #[must_use]
    pub const fn add_sum(self, other: Sum) -> Self {
        Sum(self.0 + other.0)
    }

    /// The sum in 16 bits.
    #[inline(always)]
    pub const fn fold(self) -> u16 {
        // Adding a number to itself with its halves swapped leaves their end-around sum in the
        // upper half.
        let half = (self.0.wrapping_add(self.0.rotate_right(32)) >> 32) as u32;
        (half.wrapping_add(half.rotate_right(16)) >> 16) as u16
    }

    /// The value that a checksum field takes for this sum.
    #[inline(always)]
    pub const fn checksum(self) -> u16 {
        !self.fold()
    }

    /// Is this the sum of data that includes its own right checksum?
    #[inline(always)]
    pub const fn is_valid(self) -> bool {
        matches!(self.fold(), 0xffff | 0)
    }
}

/// The sum of bytes that start at an odd offset of what is summed: the same bytes, one place
/// shifted (RFC 1071, section 2 (B)).
#[inline(always)]
pub const fn at_offset(sum: u16, offset: usize) -> u16 {
    if offset & 1 == 1 { sum.swap_bytes() } else { sum }
}

/// The sum of ranges that follow each other, whatever their lengths.
pub fn sum_ranges<'a>(simd: Simd, ranges: impl IntoIterator<Item = &'a [u8]>) -> u16 {
    let mut offset = 0;
    let mut total = Sum::default();
    for range in ranges {
        total = total.add(at_offset(simd.sum(range), offset));
        offset += range.len();
    }
    total.fold()
}

/// The sum of an IPv4 or IPv6 pseudo-header (RFC 9293, section 3.1; RFC 8200, section 8.1).
///
/// `network` starts with the IP header; `length` is the length of the transport header and payload
/// in bytes (32 bits in IPv6, and in BIG TCP over IPv4).
#[inline(always)]
pub fn pseudo_header(network: &[u8], version: IpVersion, protocol: u8, length: u32) -> Sum {
    let addresses = match version {
        IpVersion::V4 => network.get(ipv4::ADDRESSES..).and_then(|bytes| bytes.first_chunk::<8>()).map(fixed),
        IpVersion::V6 => network.get(ipv6::ADDRESSES..).and_then(|bytes| bytes.first_chunk::<32>()).map(fixed),
    };
    addresses.unwrap_or_default().add(u16::from(protocol)).add32(length)
}

/// The sum of a short run of bytes that starts at an even offset, in line: headers.
#[inline(always)]
pub fn words(bytes: &[u8]) -> Sum {
    let (quads, rest) = bytes.as_chunks::<4>();
    let mut total = 0;
    for quad in quads {
        total += u64::from(u32::from_be_bytes(*quad));
    }
    if !rest.is_empty() {
        total += u64::from(u32::from_be_bytes([byte(rest, 0), byte(rest, 1), byte(rest, 2), 0]));
    }
    Sum(total)
}

/// The sum of a run of bytes whose length is known when compiled: no loop is left.
#[inline(always)]
pub(crate) fn fixed<const LENGTH: usize>(bytes: &[u8; LENGTH]) -> Sum {
    let (quads, rest) = bytes.as_chunks::<4>();
    if LENGTH >= 16 && rest.is_empty() {
        // In the host's byte order, and turned around at the end (RFC 1071, section 2 (B)): of so
        // many bytes that is less work.
        let total = quads.iter().fold(0, |total, quad| total + u64::from(u32::from_ne_bytes(*quad)));
        return Sum::new(u16::from_be(Sum(total).fold()));
    }
    let total = quads.iter().fold(0, |total, quad| total + u64::from(u32::from_be_bytes(*quad)));
    Sum(total).add_sum(words(rest))
}

/// The sum of a TCP header, as [`words`] gives it; of any other bytes too, but then not as fast.
#[inline(always)]
pub(crate) fn transport_header(bytes: &[u8]) -> Sum {
    // Without options, and with timestamps: no loop is left of either.
    if let Ok(bytes) = <&[u8; 32]>::try_from(bytes) {
        fixed(bytes)
    } else if let Ok(bytes) = <&[u8; 20]>::try_from(bytes) {
        fixed(bytes)
    } else {
        words(bytes)
    }
}

/// The checksum of an IPv4 header: `header` is the header, whose checksum field is taken as zero.
#[inline]
pub fn ipv4_header(header: &[u8]) -> u16 {
    words(header).subtract(crate::wire::be16(header, ipv4::CHECKSUM)).checksum()
}

/// The field's value for a transport checksum: UDP sends a computed 0 as 0xFFFF, since 0 means
/// "none" (RFC 768).
#[inline(always)]
pub const fn transport_field(protocol: Protocol, checksum: u16) -> u16 {
    match (protocol, checksum) {
        (Protocol::Udp, 0) => 0xffff,
        _ => checksum,
    }
}

/// The value of a tunnel's own checksum field, which covers all from the tunnel's header on.
///
/// `headers` starts there, and holds the field, whose value now is `field`; `rest` is the sum of
/// what follows `headers`. Where these end at the inner transport header and its checksum is right,
/// or is to be filled in, nothing behind them need be read: all of it sums to [`Sum::checksum`] of
/// the inner pseudo-header (local checksum offload, the kernel's `lco_csum`). `pseudo` is the outer
/// pseudo-header's sum where the tunnel is carried in UDP; GRE has none.
#[inline(always)]
pub(crate) fn tunnel_field(headers: &[u8], field: u16, rest: u16, pseudo: Option<Sum>) -> u16 {
    let sum = words(headers).subtract(field).add(rest);
    match pseudo {
        Some(pseudo) => transport_field(Protocol::Udp, sum.add_sum(pseudo).checksum()),
        None => sum.checksum(),
    }
}

/// The new value of a checksum after a 16-bit field it covers changed (RFC 1624, equation 3).
#[inline]
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    Sum::new(!checksum).add(!old).add(new).checksum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_1071_example() {
        // RFC 1071, section 3: 00 01 f2 03 f4 f5 f6 f7 sums to ddf2.
        assert_eq!(words(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]).fold(), 0xddf2);
    }

    #[test]
    fn ranges_combine_at_odd_boundaries() {
        let bytes: [u8; 97] = core::array::from_fn(|index| (index * 37 + 11) as u8);
        let whole = Simd::scalar().sum(&bytes);
        for cut in 0..bytes.len() {
            for second in cut..bytes.len() {
                let ranges = [&bytes[..cut], &bytes[cut..second], &bytes[second..]];
                assert_eq!(sum_ranges(Simd::scalar(), ranges), whole, "{cut} {second}");
            }
        }
    }

    #[test]
    fn words_equals_the_plain_sum() {
        let bytes: [u8; 64] = core::array::from_fn(|index| (index * 89 + 201) as u8);
        for length in 0..=64 {
            assert_eq!(words(&bytes[..length]).fold(), Simd::scalar().sum(&bytes[..length]), "{length}");
        }
        assert_eq!(words(&[0xff; 64]).fold(), 0xffff);
    }

    #[test]
    fn an_update_equals_a_new_sum() {
        // RFC 1624, section 4: the example where equation 2 of RFC 1141 fails.
        assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn subtracting_undoes_adding() {
        let sum = Sum::new(0x1234).add(0xfedc).subtract(0xfedc);
        assert_eq!(sum.fold(), 0x1234);
    }
}
