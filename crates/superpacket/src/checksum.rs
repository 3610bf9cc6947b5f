//! The Internet checksum: one's-complement sums of big-endian 16-bit words (RFC 1071), their
//! addition, subtraction and incremental update.
//!
//! A *sum* is the folded sum as a host integer, as if each word had been read with
//! `u16::from_be_bytes`; a *checksum* is the field's value, the sum's complement. 0x0000 and 0xFFFF
//! are the same number in one's-complement arithmetic; a sum of bytes that are not all zero is
//! never 0x0000, so a checksum computed over a pseudo-header is never 0xFFFF, and a field that
//! holds 0xFFFF is valid but not canonical.

use core::net::IpAddr;

use crate::wire::{self, IpVersion, Layout, Outer, Protocol, byte, ipv4, ipv6, udp};
use superpacket_simd::Simd;

mod crc32c;
pub mod partial;

pub(crate) use partial::Completion;
pub use partial::{CompletionError, complete_partial};

/// The state of a received packet's checksums as the device reports it (the kernel's `ip_summed`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RxChecksum {
    /// The device has verified no checksum. Checksums are verified in software where needed.
    #[default]
    None,
    /// The device has verified `level + 1` transport checksums, the outermost first. UDP checksums
    /// of zero are not counted (`csum_level`).
    Unnecessary {
        /// Number of verified checksums besides the outermost; 0 if only that one was verified.
        level: u8,
    },
    /// The device has computed the one's-complement sum of all bytes after the 14-byte Ethernet
    /// header, or of the whole packet if it starts at IP. VLAN tags and padding are included. The
    /// value is a host integer of big-endian words (`CHECKSUM_COMPLETE`).
    Complete(u16),
    /// The checksum field holds the pseudo-header's sum, not inverted; [`complete_partial`]
    /// completes it.
    Partial {
        /// Offset of the transport header, where summing starts, in bytes from the start of the
        /// packet.
        start: u16,
        /// Offset of the checksum field, in bytes from `start`.
        offset: u16,
    },
}

impl RxChecksum {
    /// Returns a copy that is written field by field. A plain copy of bytes, next to a field with
    /// padding, is written to the stack and read back in words of another size. Such a read stalls
    /// until the writes have reached the cache: 3 ns per packet.
    #[inline(always)]
    pub(crate) fn rebuilt(self) -> Self {
        match self {
            RxChecksum::None => RxChecksum::None,
            RxChecksum::Unnecessary { level } => RxChecksum::Unnecessary { level },
            RxChecksum::Complete(sum) => RxChecksum::Complete(sum),
            RxChecksum::Partial { start, offset } => RxChecksum::Partial { start, offset },
        }
    }
}

/// A one's-complement sum that is not yet folded.
///
/// Stored in 64 bits, in which 2^16, 2^32 and 2^48 all count as 1: 32-bit fields are added at once,
/// and the sum is folded at the end. Has room for more than 4,000,000,000 additions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// Creates a sum from a 16-bit word, or from a sum folded to 16 bits.
    #[inline(always)]
    pub const fn new(word: u16) -> Self {
        Sum(word as u64)
    }

    /// Adds a 16-bit word, or a sum folded to 16 bits.
    #[inline(always)]
    #[must_use]
    pub const fn add(self, word: u16) -> Self {
        Sum(self.0 + word as u64)
    }

    /// Adds both 16-bit words of a 32-bit field.
    #[inline(always)]
    #[must_use]
    pub const fn add32(self, field: u32) -> Self {
        Sum(self.0 + field as u64)
    }

    /// Subtracts a 16-bit word, or a sum folded to 16 bits.
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

    /// Returns the sum folded to 16 bits: carries are added to the low bits.
    #[inline(always)]
    pub const fn fold(self) -> u16 {
        // Adding a number to itself with its halves swapped leaves their end-around sum in the
        // upper half.
        let half = (self.0.wrapping_add(self.0.rotate_right(32)) >> 32) as u32;
        (half.wrapping_add(half.rotate_right(16)) >> 16) as u16
    }

    /// Returns the checksum of the summed bytes: the one's complement of the folded sum.
    #[inline(always)]
    pub const fn checksum(self) -> u16 {
        !self.fold()
    }

    /// Returns whether this is the sum of data that includes its own correct checksum.
    #[inline(always)]
    pub const fn is_valid(self) -> bool {
        matches!(self.fold(), 0xffff | 0)
    }
}

/// Returns what a range of bytes with this `sum` adds to the sum of a packet in which it starts at
/// `offset`: at an odd offset, the two bytes of the sum are swapped (RFC 1071, section 2 (B)).
#[inline(always)]
pub const fn at_offset(sum: u16, offset: usize) -> u16 {
    if offset & 1 == 1 { sum.swap_bytes() } else { sum }
}

/// Returns the sum of consecutive byte ranges; any of them may have an odd length.
pub fn sum_ranges<'a>(simd: Simd, ranges: impl IntoIterator<Item = &'a [u8]>) -> u16 {
    let mut offset = 0;
    let mut total = Sum::default();
    for range in ranges {
        total = total.add(at_offset(simd.sum(range), offset));
        offset += range.len();
    }
    total.fold()
}

/// Returns the sum of an IPv4 or IPv6 pseudo-header (RFC 9293, section 3.1; RFC 8200, section 8.1).
///
/// `network` starts with the IP header and holds its options or extension headers. The addresses
/// are those that [`checksum_addresses`](crate::wire::checksum_addresses) finds, such as the final
/// destination of a segment route. If it finds none, they are those of the IP header. `length` is
/// the length of the transport header and payload in bytes (32 bits in IPv6, and in BIG TCP over
/// IPv4).
#[inline(always)]
pub fn pseudo_header(network: &[u8], version: IpVersion, protocol: u8, length: u32) -> Sum {
    let addresses = match wire::may_have_other_addresses(network, version) {
        false => header_addresses(network, version),
        true => {
            other_addresses(network, version).unwrap_or_else(|| header_addresses(network, version))
        }
    };
    addresses.add(u16::from(protocol)).add32(length)
}

/// Returns the sum of the innermost pseudo-header of a packet with this layout, without the length
/// field. `None` if the addresses that the checksum covers are not known.
///
/// If the compiler knows the layout as a constant, only the addresses are read.
#[inline(always)]
pub(crate) fn pseudo_header_of(header: &[u8], layout: &Layout) -> Option<Sum> {
    let network = header.get(usize::from(layout.network)..).unwrap_or(&[]);
    let shortest = match layout.version {
        IpVersion::V4 => ipv4::HEADER_LENGTH,
        IpVersion::V6 => ipv6::HEADER_LENGTH,
    };
    let addresses = match usize::from(layout.transport - layout.network) == shortest {
        true => header_addresses(network, layout.version),
        false => other_addresses(network, layout.version)?,
    };
    Some(addresses.add(u16::from(layout.protocol.number())))
}

/// Returns the one's-complement sum of the source and destination addresses of an IP header.
#[inline(always)]
fn header_addresses(network: &[u8], version: IpVersion) -> Sum {
    let addresses = match version {
        IpVersion::V4 => network
            .get(ipv4::ADDRESSES..)
            .and_then(|bytes| bytes.first_chunk::<8>())
            .map(sum_of_array),
        IpVersion::V6 => network
            .get(ipv6::ADDRESSES..)
            .and_then(|bytes| bytes.first_chunk::<32>())
            .map(sum_of_array),
    };
    addresses.unwrap_or_default()
}

/// Returns the sum of the source and destination addresses that a transport checksum covers. IPv4
/// options or IPv6 extension headers may give another destination than the IP header does. `None`
/// if the addresses are not known.
#[cold]
#[inline(never)]
fn other_addresses(network: &[u8], version: IpVersion) -> Option<Sum> {
    let sum = |address: IpAddr| match address {
        IpAddr::V4(address) => sum_of_array(&address.octets()),
        IpAddr::V6(address) => sum_of_array(&address.octets()),
    };
    let (source, destination) = wire::checksum_addresses(network, version)?;
    Some(sum(source).add_sum(sum(destination)))
}

/// Returns the sum of a short run of bytes, such as a header, that starts at an even offset. Always
/// inlined.
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

/// Returns the sum of an array of bytes. Its length is constant, so the compiler unrolls the loop.
#[inline(always)]
pub(crate) fn sum_of_array<const LENGTH: usize>(bytes: &[u8; LENGTH]) -> Sum {
    let (quads, rest) = bytes.as_chunks::<4>();
    if LENGTH >= 16 && rest.is_empty() {
        // From 16 bytes on it is faster to sum in the host's byte order and to swap the bytes of
        // the sum (RFC 1071, section 2 (B)).
        let total =
            quads.iter().fold(0, |total, quad| total + u64::from(u32::from_ne_bytes(*quad)));
        return Sum::new(u16::from_be(Sum(total).fold()));
    }
    let total = quads.iter().fold(0, |total, quad| total + u64::from(u32::from_be_bytes(*quad)));
    Sum(total).add_sum(words(rest))
}

/// Returns the sum of a transport header, as [`words`] does, but faster for the usual lengths of
/// TCP headers.
#[inline(always)]
pub(crate) fn transport_header(bytes: &[u8]) -> Sum {
    // TCP with timestamps, then without options: both are compiled without a loop.
    if let Ok(bytes) = <&[u8; 32]>::try_from(bytes) {
        sum_of_array(bytes)
    } else if let Ok(bytes) = <&[u8; 20]>::try_from(bytes) {
        sum_of_array(bytes)
    } else {
        words(bytes)
    }
}

/// Computes the checksum of an IPv4 header; the value in its checksum field is ignored.
#[inline]
pub fn ipv4_header(header: &[u8]) -> u16 {
    words(header).subtract(crate::wire::be16(header, ipv4::CHECKSUM)).checksum()
}

/// Returns the value to store in a header's checksum field for a computed transport checksum. UDP
/// sends a computed 0 as 0xFFFF, since 0 means "no checksum" (RFC 768).
#[inline(always)]
pub const fn transport_field(protocol: Protocol, checksum: u16) -> u16 {
    match (protocol, checksum) {
        (Protocol::Udp, 0) => 0xffff,
        _ => checksum,
    }
}

/// Returns the value of a tunnel's checksum field, which covers all bytes from the tunnel header
/// on.
///
/// `headers` starts at the tunnel header and includes the field, which now holds `field`. `rest` is
/// the sum of all bytes after `headers`. If `headers` ends at the inner transport header, whose
/// checksum is correct or partial, no byte after it must be read: they sum to [`Sum::checksum`] of
/// the inner pseudo-header (local checksum offload, the kernel's `lco_csum`). `pseudo` is the sum
/// of the outer pseudo-header of a tunnel over UDP; others have none.
#[inline(always)]
pub(crate) fn tunnel_field(headers: &[u8], field: u16, rest: u16, pseudo: Option<Sum>) -> u16 {
    let sum = words(headers).subtract(field).add(rest);
    match pseudo {
        Some(pseudo) => transport_field(Protocol::Udp, sum.add_sum(pseudo).checksum()),
        None => sum.checksum(),
    }
}

/// Returns the offset of the UDP checksum of a tunnel, and the sum of the outer pseudo-header in a
/// packet of `length` bytes. Linux needs this sum in the field of a super-packet, and adds the rest
/// for each segment (`__skb_udp_tunnel_segment`).
pub(crate) fn tunnel_seed(headers: &[u8], outer: &Outer, length: usize) -> (usize, u16) {
    let transport = usize::from(outer.transport);
    let network = headers.get(usize::from(outer.network)..).unwrap_or(&[]);
    let sum = pseudo_header(
        network,
        outer.version,
        Protocol::Udp.number(),
        length.saturating_sub(transport) as u32,
    );
    (transport + udp::CHECKSUM, sum.fold())
}

/// Returns the new value of a checksum after a 16-bit field that it covers changed (RFC 1624,
/// equation 3).
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
            assert_eq!(
                words(&bytes[..length]).fold(),
                Simd::scalar().sum(&bytes[..length]),
                "{length}"
            );
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
