//! Partial checksums: the bytes that each covers, its computation, and its completion in place.

use super::crc32c::Crc32c;
use super::{Sum, pseudo_header};
use crate::wire::{self, Layer, TransportLocation, be16, byte, dccp, protocol, sctp, tcp, udp};
use superpacket_simd::Simd;

/// The reason why a partial checksum cannot be completed. Offsets are in bytes from the start of
/// the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompletionError {
    /// The checksum field lies outside the bytes that the checksum covers.
    #[error("the checksum field ends at byte {needed}, what it covers at byte {got}")]
    Place {
        /// Offset of the end of the checksum field, in bytes.
        needed: usize,
        /// Offset of the end of the bytes that the checksum covers.
        got: usize,
    },
    /// The protocol of the header at `start` has its checksum at another offset.
    #[error(
        "the checksum of IP protocol {protocol} lies at byte {expected} of its header, not at {got}"
    )]
    Offset {
        /// The IP protocol number of the header at `start`.
        protocol: u8,
        /// Offset of the protocol's checksum field in its header, in bytes.
        expected: u16,
        /// The checksum offset that was given, in bytes.
        got: u16,
    },
    /// The IP packet is truncated.
    #[error("the IP packet ends at byte {needed}, but there are {got}")]
    Truncated {
        /// Offset of the packet's end according to its length field.
        needed: usize,
        /// Length of the packet in bytes.
        got: usize,
    },
    /// The packet is an IP fragment: its checksum covers other fragments too.
    #[error("the packet is an IP fragment, its checksum covers other fragments too")]
    Fragment,
    /// A DCCP checksum covers more bytes than the packet has.
    #[error("the DCCP checksum covers the packet up to byte {needed}, which ends at {got}")]
    Coverage {
        /// Offset of the end of the bytes that the checksum covers, according to the DCCP header's
        /// coverage field.
        needed: usize,
        /// Offset of the end of the packet, in bytes.
        got: usize,
    },
    /// No readable header starts at `start`, and a field at byte 8 may be the CRC32c of SCTP, which
    /// is not a sum.
    #[error(
        "no header that can be read starts at byte {start}: whether its checksum at byte 8 is a CRC32c cannot be told"
    )]
    Unknown {
        /// Offset of the first byte that the checksum should cover.
        start: usize,
    },
    /// The field is 0, and the addresses of the pseudo-header are not known: a source route or
    /// routing header contradicts itself or has an unknown type.
    #[error(
        "the field is 0, and the final destination, which the checksum covers, cannot be told from the headers"
    )]
    FinalDestination,
}

/// The bytes that a partial checksum covers, and the kind of checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    /// Offset of the first byte that the checksum covers, from the start of the packet.
    pub(crate) start: usize,
    /// Offset of the checksum field, from the start of the packet.
    pub(crate) field: usize,
    /// End of the bytes that the checksum covers, from the start of the packet.
    pub(crate) end: usize,
    kind: ChecksumKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChecksumKind {
    /// The Internet checksum. `seed` is the sum of the pseudo-header, if the field does not hold
    /// it. `zero_means_none`: a computed 0 is written as 0xFFFF, as in UDP.
    Internet {
        seed: Sum,
        zero_means_none: bool,
    },
    Crc32c,
}

impl Completion {
    /// Finds the checksum that covers bytes from `start` on and whose field lies `offset` bytes
    /// from there. The packet has `length` bytes, the first of which are in `header`.
    pub(crate) fn find(
        header: &[u8],
        length: usize,
        layer: Layer,
        start: u16,
        offset: u16,
    ) -> Result<Self, CompletionError> {
        let (start, field) = (usize::from(start), usize::from(start) + usize::from(offset));
        let location = match wire::locate_transport(header, length, layer, start) {
            Ok(TransportLocation { is_fragment: true, .. }) => {
                return Err(CompletionError::Fragment);
            }
            Ok(location) if location.end > location.limit => {
                return Err(CompletionError::Truncated {
                    needed: location.end,
                    got: location.limit,
                });
            }
            Ok(location) => Ok(location),
            Err(_) if usize::from(offset) == sctp::CHECKSUM => {
                return Err(CompletionError::Unknown { start });
            }
            Err(end) => Err(end),
        };
        let (end, kind) = match location {
            Ok(location) => Self::of_protocol(header, &location, offset)?,
            Err(end) => (end, ChecksumKind::of_unknown(offset)),
        };
        let found = Completion { start, field, end, kind };
        match found.field_end() {
            needed if needed > end => Err(CompletionError::Place { needed, got: end }),
            _ => Ok(found),
        }
    }

    /// Returns the end of the bytes that this protocol's checksum covers, and the kind of checksum.
    fn of_protocol(
        header: &[u8],
        location: &TransportLocation,
        offset: u16,
    ) -> Result<(usize, ChecksumKind), CompletionError> {
        let &TransportLocation { number, transport, end, .. } = location;
        let expected = match number {
            protocol::TCP => tcp::CHECKSUM,
            protocol::UDP => udp::CHECKSUM,
            protocol::DCCP => dccp::CHECKSUM,
            protocol::SCTP => sctp::CHECKSUM,
            _ => return Ok((end, ChecksumKind::of_unknown(offset))),
        };
        if usize::from(offset) != expected {
            return Err(CompletionError::Offset {
                protocol: number,
                expected: expected as u16,
                got: offset,
            });
        }
        let available = end.saturating_sub(transport);
        // The length in the pseudo-header, and the number of bytes that are summed.
        let (counted, covered) = match number {
            protocol::SCTP => return Ok((end, ChecksumKind::Crc32c)),
            protocol::UDP => match usize::from(be16(header, transport + udp::LENGTH)) {
                // A jumbo packet has a UDP length of 0 (RFC 2675, section 4).
                length @ udp::HEADER_LENGTH.. if length <= available => (length, length),
                _ => (available, available),
            },
            protocol::DCCP => match usize::from(byte(header, transport + dccp::COVERAGE) & 0x0f) {
                0 => (available, available),
                words => (
                    available,
                    usize::from(byte(header, transport + dccp::DATA_OFFSET)) * 4 + (words - 1) * 4,
                ),
            },
            _ => (available, available),
        };
        if covered > available {
            return Err(CompletionError::Coverage { needed: transport + covered, got: end });
        }
        let network = header.get(location.network..).unwrap_or(&[]);
        let seed = match be16(header, transport + expected) {
            0 if !wire::are_addresses_known(network, location.version) => {
                return Err(CompletionError::FinalDestination);
            }
            0 => pseudo_header(network, location.version, number, counted as u32),
            _ => Sum::default(),
        };
        Ok((
            transport + covered,
            ChecksumKind::Internet { seed, zero_means_none: number == protocol::UDP },
        ))
    }

    /// Returns the end of the checksum field, in bytes from the start of the packet.
    pub(crate) const fn field_end(&self) -> usize {
        self.field
            + match self.kind {
                ChecksumKind::Internet { .. } => 2,
                ChecksumKind::Crc32c => 4,
            }
    }

    /// Returns whether the checksum is a sum (not a CRC), so that known sums of byte ranges can be
    /// added.
    pub(crate) const fn is_sum(&self) -> bool {
        matches!(self.kind, ChecksumKind::Internet { .. })
    }

    /// Writes the checksum into `header`, which holds the field. `sum` is the sum of all covered
    /// bytes, the field included.
    pub(crate) fn write_sum(&self, header: &mut [u8], sum: u16) {
        let ChecksumKind::Internet { seed, zero_means_none } = self.kind else { return };
        let checksum = match seed.add(sum).checksum() {
            0 if zero_means_none => 0xffff,
            checksum => checksum,
        };
        wire::put16(header, self.field, checksum);
    }

    /// Writes the CRC of all covered bytes into `header`, which holds the field; `rest` follows it.
    pub(crate) fn write_crc<'a>(&self, header: &mut [u8], rest: impl Iterator<Item = &'a [u8]>) {
        if let Some(field) = header.get_mut(self.field..self.field_end()) {
            field.fill(0);
        }
        let first = Crc32c::default().update(header.get(self.start..).unwrap_or(&[]));
        let crc = rest.fold(first, Crc32c::update).finish();
        if let Some(field) = header.get_mut(self.field..self.field_end()) {
            // SCTP sends its CRC in little-endian order.
            field.copy_from_slice(&crc.to_le_bytes());
        }
    }
}

impl ChecksumKind {
    /// Returns the kind for an unknown protocol: the Internet checksum, as in the kernel
    /// (`skb_checksum_help`), except that a computed 0 becomes 0xFFFF only at UDP's offset.
    const fn of_unknown(offset: u16) -> Self {
        ChecksumKind::Internet { seed: Sum(0), zero_means_none: offset as usize == udp::CHECKSUM }
    }
}

/// Completes a partial checksum of TCP, UDP, DCCP or SCTP in place.
///
/// `packet` is the whole packet from `layer` on. Summing starts at `start`, the transport header,
/// and the checksum lies `offset` bytes from there, as in
/// [`RxChecksum::Partial`](crate::RxChecksum) and in a `virtio_net_hdr` with `NEEDS_CSUM`.
/// Afterwards the checksum is complete.
///
/// The headers tell which checksum is meant, and which bytes it covers:
///
/// | protocol of the header at `start` | offset | checksum | over |
/// |---|---|---|---|
/// | TCP | 16 | the Internet checksum | all up to the end of the IP packet |
/// | UDP | 6 | the Internet checksum; a computed 0 as 0xFFFF, since 0 means none (RFC 768) | as many bytes as the UDP length says |
/// | DCCP | 6 | the Internet checksum | header, options and what the checksum coverage says (RFC 4340, section 9.2) |
/// | SCTP | 8 | CRC32c, its lowest 8 bits first, with the field taken as zero (RFC 9260, appendix A; `skb->csum_not_inet`) | all up to the end of the IP packet |
/// | another | any | the Internet checksum; at offset 6 a computed 0 as 0xFFFF | all up to the end of the IP packet |
///
/// Padding after the IP packet is not summed. The sum of the pseudo-header in the field is trusted,
/// as in the kernel. A field of 0 cannot be that sum, since addresses are never all zero;
/// [`pseudo_header`] computes it then.
///
/// ```
/// use superpacket::checksum::complete_partial;
/// use superpacket::{Layer, Simd};
///
/// // UDP from 10.0.0.1 to 10.0.0.2 with 2 bytes of payload; the field holds the pseudo-header's
/// // sum.
/// let ip = [0x45, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
/// let udp = [0, 7, 0, 9, 0, 10, 0x14, 0x1e, 0xab, 0xcd];
/// let mut packet = [&ip[..], &udp].concat();
/// complete_partial(&mut packet, Layer::Ip, 20, 6, Simd::detect())?;
/// assert_eq!(packet[26..28], [0x3f, 0xfa]);
/// # Ok::<(), superpacket::checksum::CompletionError>(())
/// ```
///
/// # Errors
/// [`CompletionError`]; the packet is unchanged then.
pub fn complete_partial(
    packet: &mut [u8],
    layer: Layer,
    start: u16,
    offset: u16,
    simd: Simd,
) -> Result<(), CompletionError> {
    let length = packet.len();
    let found = Completion::find(packet, length, layer, start, offset)?;
    let Some(covered) = packet.get_mut(..found.end) else {
        return Err(CompletionError::Truncated { needed: found.end, got: length });
    };
    if found.is_sum() {
        let sum = simd.sum(covered.get(found.start..).unwrap_or(&[]));
        found.write_sum(covered, sum);
    } else {
        found.write_crc(covered, core::iter::empty());
    }
    Ok(())
}
