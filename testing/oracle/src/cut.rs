//! Compares the segments of a packet that the kernel merged with the packet's original frames.

use superpacket::segment::{Cwr, IpId};
use superpacket::virtio::gso_type;
use superpacket::wire::{self, IpVersion, Protocol};
use superpacket::{
    ChecksumOutput, Gso, GsoKind, GsoPacket, Layer, RxChecksum, SegmentOptions, SegmentSize,
    Segmenter,
};

use crate::frames::{InputFrame, ResultPacket};

/// A header field in which a segment differs from its original frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CutField {
    /// The link header, VLAN tags or MPLS labels.
    Link,
    /// The headers of a tunnel.
    Tunnel,
    /// The IPv4 identification.
    Identification,
    /// The IPv4 header checksum.
    HeaderChecksum,
    /// Another field of an IP header or an extension header.
    Ip,
    /// The PSH or FIN flag of TCP.
    Push,
    /// Another TCP flag, a reserved bit, or the length of the TCP header.
    Flags,
    /// The TCP urgent pointer.
    UrgentPointer,
    /// A transport checksum, if all other fields are equal.
    Checksum,
    /// Another field of a transport header.
    Transport,
    /// The frame's length or payload.
    Payload,
}

/// Segments a merged packet and returns the fields in which each segment differs from its frame in
/// `frames`. Of several ways to segment, uses the one that restores most of the frames.
///
/// Checksums are included only if no other field differs, since every other difference also changes
/// a checksum.
pub fn differences(packet: &ResultPacket, frames: &[&InputFrame]) -> Vec<Vec<CutField>> {
    let kind = match packet.cut.map(|cut| cut.kind & !gso_type::ECN) {
        Some(gso_type::TCPV4) => GsoKind::Tcp4,
        Some(gso_type::TCPV6) => GsoKind::Tcp6,
        _ => GsoKind::Udp,
    };
    let size = packet.cut.and_then(|cut| SegmentSize::new(usize::from(cut.size)));
    let mut best: Option<Vec<Vec<CutField>>> = None;
    let ways = [IpId::Increment, IpId::Fixed].into_iter().flat_map(|id| {
        let outer = [IpId::Increment, IpId::Fixed];
        outer.into_iter().flat_map(move |outer| [Cwr::First, Cwr::All].map(|cwr| (id, outer, cwr)))
    });
    for (id, outer, cwr) in ways {
        let Some(size) = size else { break };
        // With a GRO hint, Linux merges only packets whose second tunnel has the same headers.
        let gso = Gso::new(kind, size)
            .with_id(id)
            .with_outer_id(outer)
            .with_nested_id(IpId::Fixed)
            .with_cwr(cwr);
        let Some(segments) = segments(packet, gso, frames[0].partial.is_some()) else { continue };
        let differing = |(frame, segment): (&&InputFrame, &Vec<u8>)| fields(&frame.bytes, segment);
        let mut found: Vec<_> = frames.iter().zip(&segments).map(differing).collect();
        found.resize(frames.len(), vec![CutField::Payload]);
        let count =
            |found: &Vec<Vec<CutField>>| found.iter().filter(|fields| !fields.is_empty()).count();
        if best.as_ref().is_none_or(|best| count(&found) < count(best)) {
            best = Some(found);
        }
    }
    best.unwrap_or_else(|| vec![vec![CutField::Payload]; frames.len()])
}

fn segments(packet: &ResultPacket, gso: Gso, partial: bool) -> Option<Vec<Vec<u8>>> {
    let checksum = packet
        .partial
        .map_or(RxChecksum::None, |(start, offset)| RxChecksum::Partial { start, offset });
    let whole =
        GsoPacket::linear(&packet.bytes, gso).with_checksum(checksum).with_layer(Layer::Ethernet);
    let form = if partial { ChecksumOutput::Partial } else { ChecksumOutput::Full };
    let mut segments = Vec::new();
    let mut sink = |segment: superpacket::segment::Segment<'_, _>| {
        let mut bytes = Vec::new();
        segment.copy_to(&mut bytes);
        segments.push(bytes);
    };
    Segmenter::new()
        .segment(&whole, &SegmentOptions::default().with_checksum(form), &mut sink)
        .ok()?;
    Some(segments)
}

/// Returns the header fields in which two frames with the same header layout differ.
pub fn fields(frame: &[u8], other: &[u8]) -> Vec<CutField> {
    if frame == other {
        return Vec::new();
    }
    let Ok(layout) = wire::parse_datagram(frame, frame.len(), Layer::Ethernet) else {
        return vec![CutField::Payload];
    };
    if frame.len() != other.len() {
        return vec![CutField::Payload];
    }
    let mut found: Vec<_> = (0..frame.len())
        .filter(|&at| frame[at] != other[at])
        .map(|at| field(&layout, frame, other, at))
        .collect();
    found.sort_unstable();
    found.dedup();
    let sums = [CutField::HeaderChecksum, CutField::Checksum];
    if found.iter().any(|field| !sums.contains(field)) {
        found.retain(|field| !sums.contains(field));
    }
    found
}

fn field(layout: &wire::Layout, frame: &[u8], other: &[u8], at: usize) -> CutField {
    let (network, transport, payload) =
        (usize::from(layout.network), usize::from(layout.transport), usize::from(layout.payload));
    let ip4 = |from: usize| match at - from {
        4 | 5 => CutField::Identification,
        10 | 11 => CutField::HeaderChecksum,
        _ => CutField::Ip,
    };
    match at {
        _ if at >= payload => CutField::Payload,
        _ if at >= transport => match (layout.protocol, at - transport) {
            (Protocol::Tcp, 13) if (frame[at] ^ other[at]) & !9 == 0 => CutField::Push,
            (Protocol::Tcp, 12 | 13) => CutField::Flags,
            (Protocol::Tcp, 16 | 17) | (Protocol::Udp, 6 | 7) => CutField::Checksum,
            (Protocol::Tcp, 18 | 19) => CutField::UrgentPointer,
            _ => CutField::Transport,
        },
        _ if at >= network && layout.version == IpVersion::V4 => ip4(network),
        _ if at >= network => CutField::Ip,
        _ if at < usize::from(layout.outermost()) => CutField::Link,
        _ => match layout.outer {
            Some(outer) if at < usize::from(outer.transport) && outer.version == IpVersion::V4 => {
                ip4(usize::from(outer.network))
            }
            Some(outer) if at < usize::from(outer.transport) => CutField::Ip,
            _ => CutField::Tunnel,
        },
    }
}
