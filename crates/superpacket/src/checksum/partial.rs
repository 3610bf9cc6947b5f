//! Partial checksums: which bytes each of them covers, how it is computed, and its completion where it lies.

use super::crc32c::Crc32c;
use super::{Sum, pseudo_header};
use crate::wire::{self, Layer, TransportLocation, be16, byte, dccp, protocol, sctp, tcp, udp};
use superpacket_simd::Simd;

/// Why a partial checksum cannot be completed. Offsets count in bytes from the start of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompletionError {
    /// The field lies outside the bytes that the checksum covers.
    #[error("the checksum field ends at byte {needed}, what it covers at byte {got}")]
    Place {
        /// End of the field.
        needed: usize,
        /// End of what it covers.
        got: usize,
    },
    /// The protocol of the header at `start` has its checksum elsewhere.
    #[error("the checksum of IP protocol {protocol} lies at byte {expected} of its header, not at {got}")]
    Offset {
        /// The IP protocol number.
        protocol: u8,
        /// Where the protocol's checksum lies from the start of its header.
        expected: u16,
        /// What was said.
        got: u16,
    },
    /// The IP packet is not there whole.
    #[error("the IP packet ends at byte {needed}, but there are {got}")]
    Truncated {
        /// Where it ends by its length field.
        needed: usize,
        /// How many bytes there are.
        got: usize,
    },
    /// The packet is an IP fragment: what its checksum covers is not in it.
    #[error("the packet is an IP fragment, its checksum covers other fragments too")]
    Fragment,
    /// A DCCP checksum covers more than there is.
    #[error("the DCCP checksum covers the packet up to byte {needed}, which ends at {got}")]
    Coverage {
        /// End of what it covers by the header.
        needed: usize,
        /// End of the packet.
        got: usize,
    },
    /// No header that is understood starts at `start`, and a field at byte 8 may be SCTP's CRC32c,
    /// which is no sum.
    #[error("no header that can be read starts at byte {start}: whether its checksum at byte 8 is a CRC32c cannot be told")]
    Unknown {
        /// Where summing was to start.
        start: usize,
    },
}

/// How one partial checksum is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    /// Where what it covers starts, in bytes from the start of the packet.
    pub(crate) start: usize,
    /// Where the field lies.
    pub(crate) place: usize,
    /// Where what it covers ends.
    pub(crate) end: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The Internet checksum. `seed`: the pseudo-header's sum, where the field does not hold it.
    /// `zero_means_none`: as UDP has it.
    Internet {
        seed: Sum,
        zero_means_none: bool,
    },
    Crc32c,
}

impl Completion {
    /// Finds out how the checksum is completed whose bytes start at `start` and whose field lies
    /// `offset` bytes behind, in a packet of `length` bytes, of which `header` holds the first.
    pub(crate) fn find(header: &[u8], length: usize, layer: Layer, start: u16, offset: u16) -> Result<Self, CompletionError> {
        let (start, place) = (usize::from(start), usize::from(start) + usize::from(offset));
        let carried = match wire::locate_transport(header, length, layer, start) {
            Ok(TransportLocation { is_fragment: true, .. }) => return Err(CompletionError::Fragment),
            Ok(carried) if carried.end > carried.limit => {
                return Err(CompletionError::Truncated { needed: carried.end, got: carried.limit });
            }
            Ok(carried) => Ok(carried),
            Err(_) if usize::from(offset) == sctp::CHECKSUM => return Err(CompletionError::Unknown { start }),
            Err(end) => Err(end),
        };
        let (end, kind) = match carried {
            Ok(carried) => Self::of_protocol(header, &carried, offset)?,
            Err(end) => (end, Kind::of_unknown(offset)),
        };
        let found = Completion { start, place, end, kind };
        match found.field_end() {
            needed if needed > end => Err(CompletionError::Place { needed, got: end }),
            _ => Ok(found),
        }
    }

    /// Where the checksum of this protocol ends, and how it is computed.
    fn of_protocol(header: &[u8], carried: &TransportLocation, offset: u16) -> Result<(usize, Kind), CompletionError> {
        let &TransportLocation { number, transport, end, .. } = carried;
        let expected = match number {
            protocol::TCP => tcp::CHECKSUM,
            protocol::UDP => udp::CHECKSUM,
            protocol::DCCP => dccp::CHECKSUM,
            protocol::SCTP => sctp::CHECKSUM,
            _ => return Ok((end, Kind::of_unknown(offset))),
        };
        if usize::from(offset) != expected {
            return Err(CompletionError::Offset { protocol: number, expected: expected as u16, got: offset });
        }
        let available = end.saturating_sub(transport);
        // What the pseudo-header counts, and what is summed.
        let (counted, covered) = match number {
            protocol::SCTP => return Ok((end, Kind::Crc32c)),
            protocol::UDP => match usize::from(be16(header, transport + udp::LENGTH)) {
                // A jumbo packet has a UDP length of 0 (RFC 2675, section 4).
                length @ udp::HEADER_LENGTH.. if length <= available => (length, length),
                _ => (available, available),
            },
            protocol::DCCP => match usize::from(byte(header, transport + dccp::COVERAGE) & 0x0f) {
                0 => (available, available),
                words => (available, usize::from(byte(header, transport + dccp::DATA_OFFSET)) * 4 + (words - 1) * 4),
            },
            _ => (available, available),
        };
        if covered > available {
            return Err(CompletionError::Coverage { needed: transport + covered, got: end });
        }
        let seed = match be16(header, transport + expected) {
            0 => pseudo_header(header.get(carried.network..).unwrap_or(&[]), carried.version, number, counted as u32),
            _ => Sum::default(),
        };
        Ok((transport + covered, Kind::Internet { seed, zero_means_none: number == protocol::UDP }))
    }

    /// Where the field ends.
    pub(crate) const fn field_end(&self) -> usize {
        self.place
            + match self.kind {
                Kind::Internet { .. } => 2,
                Kind::Crc32c => 4,
            }
    }

    /// Is it a sum, so that known sums of its parts can be added?
    pub(crate) const fn is_sum(&self) -> bool {
        matches!(self.kind, Kind::Internet { .. })
    }

    /// Writes the checksum into `header`, which holds the field: from the sum of all that is
    /// covered, what the field holds included.
    pub(crate) fn write_sum(&self, header: &mut [u8], sum: u16) {
        let Kind::Internet { seed, zero_means_none } = self.kind else { return };
        let checksum = match seed.add(sum).checksum() {
            0 if zero_means_none => 0xffff,
            checksum => checksum,
        };
        wire::put16(header, self.place, checksum);
    }

    /// Writes the CRC into `header`, which holds the field and all that is covered before `rest`.
    pub(crate) fn write_crc<'a>(&self, header: &mut [u8], rest: impl Iterator<Item = &'a [u8]>) {
        if let Some(field) = header.get_mut(self.place..self.field_end()) {
            field.fill(0);
        }
        let first = Crc32c::default().update(header.get(self.start..).unwrap_or(&[]));
        let crc = rest.fold(first, Crc32c::update).finish();
        if let Some(field) = header.get_mut(self.place..self.field_end()) {
            // The one little-endian field of the Internet's protocols.
            field.copy_from_slice(&crc.to_le_bytes());
        }
    }
}

impl Kind {
    /// Of a header whose protocol is not known: as the kernel has it (`skb_checksum_help`), but
    /// that a computed 0 stays 0 where no protocol gives it a meaning.
    const fn of_unknown(offset: u16) -> Self {
        Kind::Internet { seed: Sum(0), zero_means_none: offset as usize == udp::CHECKSUM }
    }
}

/// Completes a partial checksum of TCP, UDP, DCCP or SCTP where it lies.
///
/// `packet` is the whole packet from `layer` on. Summing starts at `start`, the transport header, and
/// the checksum lies `offset` bytes from there, as in [`RxChecksum::Partial`](crate::RxChecksum) and
/// in a `virtio_net_hdr` with `NEEDS_CSUM`. Afterwards the checksum is complete.
///
/// Which sum is meant, and where it ends, only the headers tell:
///
/// | protocol of the header at `start` | offset | what goes into the field | over |
/// |---|---|---|---|
/// | TCP | 16 | the Internet checksum | all up to the end of the IP packet |
/// | UDP | 6 | the Internet checksum; a computed 0 as 0xFFFF, since 0 means none (RFC 768) | as many bytes as the UDP length says |
/// | DCCP | 6 | the Internet checksum | header, options and what the checksum coverage says (RFC 4340, section 9.2) |
/// | SCTP | 8 | CRC32c, its lowest 8 bits first, with the field taken as zero (RFC 9260, appendix A; `skb->csum_not_inet`) | all up to the end of the IP packet |
/// | another | any | the Internet checksum; at offset 6 a computed 0 as 0xFFFF | all up to the end of the IP packet |
///
/// Padding behind the IP packet is not summed. The field holds the pseudo-header's sum, which is
/// believed, as the kernel does: with an IPv6 routing header, the packet's own addresses would be
/// the wrong ones. A field of 0 is no such sum (the addresses are never all zero); the
/// pseudo-header's is computed then.
///
/// ```
/// use superpacket::checksum::complete_partial;
/// use superpacket::{Layer, Simd};
///
/// // UDP from 10.0.0.1 to 10.0.0.2 with 2 bytes of payload; the field holds the pseudo-header's sum.
/// let mut packet = [0x45, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 9, 0, 10, 0x14, 0x1e, 0xab, 0xcd];
/// complete_partial(&mut packet, Layer::Ip, 20, 6, Simd::detect())?;
/// assert_eq!(packet[26..28], [0x3f, 0xfa]);
/// # Ok::<(), superpacket::checksum::CompletionError>(())
/// ```
///
/// # Errors
/// [`CompletionError`]; the packet has not been touched then.
pub fn complete_partial(packet: &mut [u8], layer: Layer, start: u16, offset: u16, simd: Simd) -> Result<(), CompletionError> {
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
