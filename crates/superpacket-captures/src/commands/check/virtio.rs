//! The `virtio_net_hdr` of a packet, and the checksums of which it says that they are unfinished.

use superpacket::Simd;
use superpacket::checksum::{Sum, complete_partial, pseudo_header, transport_field};
use superpacket::packet::{Layer, RxChecksum};
use superpacket::segment::Gso;
use superpacket::virtio::{Format, Header, VirtioError, flags};
use superpacket::wire::{IpVersion, Protocol, checksum_addresses, ipv4, ipv6, parse_datagram};

use crate::commands::checksums::be16;

/// The `virtio_net_hdr` of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Virtio {
    pub(super) header: Header,
    /// The segmentation for which the header asks, or what is wrong with the header.
    pub(super) gso: Result<Option<Gso>, VirtioError>,
    /// Whether the checksum field holds the sum of the pseudo-header, if the flag `NEEDS_CSUM` is
    /// set.
    pub(super) seed: Option<bool>,
    /// Position of the unfinished checksum, and the value that its field had, if the flag
    /// `NEEDS_CSUM` is set.
    pub(super) partial: Option<(RxChecksum, u16)>,
    /// The kind of value in the outer UDP checksum field of a super-packet in a tunnel; `None` if
    /// there is no such checksum.
    pub(super) outer: Option<OuterChecksum>,
}

impl Virtio {
    /// Returns whether each field of an unfinished checksum holds the sum of its pseudo-header.
    pub(super) fn is_seeded(&self) -> bool {
        self.seed != Some(false) && self.outer.is_none_or(|outer| outer == OuterChecksum::Seeded)
    }
}

/// The kind of value that the outer UDP checksum field of a super-packet in a tunnel contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OuterChecksum {
    /// The sum of the pseudo-header, to which Linux adds the sum of each segment.
    Seeded,
    /// Another value, although the flag `UDP_TUNNEL_CSUM` asks for segments with outer checksums.
    Unseeded,
    /// A value that is not 0, although the flag `UDP_TUNNEL_CSUM` is not set; Linux copies it to
    /// all segments.
    Unnamed,
}

/// Checks the `virtio_net_hdr`, and completes the checksum of which it says that it is unfinished.
pub(super) fn complete_by_header(
    bytes: &mut [u8],
    layer: Layer,
    header: Header,
    format: Format,
    simd: Simd,
) -> Virtio {
    let offload = header.offload(format, bytes, bytes.len(), layer);
    let place = match &offload {
        Ok(offload) => match offload.checksum {
            RxChecksum::Partial { start, offset } => Some((start, offset)),
            _ => None,
        },
        // The header contradicts itself or the packet. It is believed that the checksum is
        // unfinished, but not where the checksum is.
        Err(_) if header.flags & flags::NEEDS_CSUM != 0 => {
            let layout = parse_datagram(bytes, bytes.len(), layer).ok();
            layout.map(|layout| (layout.transport, layout.protocol.checksum_offset()))
        }
        Err(_) => None,
    };
    let (mut seed, mut partial) = (None, None);
    if let Some((start, offset)) = place {
        seed = Some(is_seeded(bytes, layer, start, offset));
        let field = be16(bytes, usize::from(start) + usize::from(offset));
        partial = field.map(|field| (RxChecksum::Partial { start, offset }, field));
        // A checksum that cannot be completed stays as it is, and is reported as wrong.
        let _ = complete_partial(bytes, layer, start, offset, simd);
    }
    let gso = offload.map(|offload| offload.gso);
    let outer =
        matches!(gso, Ok(Some(_))).then(|| complete_outer(bytes, layer, header, simd)).flatten();
    Virtio { header, gso, seed, partial, outer }
}

/// Completes the outer UDP checksum of a super-packet in a tunnel, and returns what the field
/// contained.
fn complete_outer(
    bytes: &mut [u8],
    layer: Layer,
    header: Header,
    simd: Simd,
) -> Option<OuterChecksum> {
    let layout = parse_datagram(bytes, bytes.len(), layer).ok()?;
    let outer = layout.outer.filter(|outer| outer.tunnel.is_udp())?;
    let place = outer.checksum(bytes)?;
    if header.flags & flags::UDP_TUNNEL_CSUM == 0 {
        return Some(OuterChecksum::Unnamed);
    }
    let (network, start) = (usize::from(outer.network), usize::from(outer.transport));
    let end = (layout.end as usize).min(bytes.len());
    let pseudo = pseudo_header(
        bytes.get(network..)?,
        outer.version,
        Protocol::Udp.number(),
        end.saturating_sub(start) as u32,
    );
    if be16(bytes, place) != Some(pseudo.fold()) {
        return Some(OuterChecksum::Unseeded);
    }
    // The field contains the pseudo-header's sum, so the total includes that sum.
    let checksum =
        transport_field(Protocol::Udp, Sum::new(simd.sum(bytes.get(start..end)?)).checksum());
    bytes.get_mut(place..place + 2)?.copy_from_slice(&checksum.to_be_bytes());
    Some(OuterChecksum::Seeded)
}

/// Returns whether a checksum field holds the sum of the pseudo-header for all bytes from `start`
/// on. Returns `true` if this cannot be known: for a checksum that does not belong to a transport
/// header, or that covers unknown addresses.
fn is_seeded(bytes: &[u8], layer: Layer, start: u16, offset: u16) -> bool {
    let Ok(layout) = parse_datagram(bytes, bytes.len(), layer) else { return true };
    if (layout.transport, layout.checksum()) != (start, start + offset) {
        return true;
    }
    let network = bytes.get(usize::from(layout.network)..).unwrap_or(&[]);
    if checksum_addresses(network, layout.version).is_none() {
        return true;
    }
    // A length field of the tunnel's inner packet tells where it ends.
    let inner = match layout.version {
        IpVersion::V4 => be16(network, ipv4::TOTAL_LENGTH).map(usize::from),
        IpVersion::V6 => be16(network, ipv6::PAYLOAD_LENGTH)
            .filter(|&length| length > 0)
            .map(|length| usize::from(length) + ipv6::HEADER_LENGTH),
    };
    let end = match inner {
        Some(length @ 1..) => usize::from(layout.network) + length,
        _ => layout.end as usize,
    };
    let length = end.saturating_sub(usize::from(start)) as u32;
    let sum = pseudo_header(network, layout.version, layout.protocol.number(), length).fold();
    be16(bytes, usize::from(layout.checksum())) == Some(sum)
}
