//! Decides how a packet must be adapted before it leaves by a port.

use superpacket::packet::RxChecksum;
use superpacket::segment::{
    ChecksumForm, Gso, GsoKind, GsoSupport, PacketKind, SegmentSize, Unsupported,
};
use superpacket::super_packet::{Metadata, SuperPacket};
use superpacket::wire::{
    IpVersion, Layout, MAX_HEADER, Protocol, ipv4, parse, parse_datagram, sctp,
};
use superpacket_port::Buffer;
use superpacket_port::features::Feature;

use crate::runtime::Runtime;
use crate::switch::frame::{PacketHead, network_offset};

/// How a packet must be changed, if at all, before it leaves by a port.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum EgressAction {
    /// Send the packet unchanged.
    Unchanged,
    /// Complete the partial checksum.
    CompleteChecksum,
    /// Segment the packet in software, as the `Gso` says. The reason is given if the packet is
    /// short enough for the MTU but the port cannot segment it.
    Segment(Gso, Option<Unsupported>),
    /// Split the super-packet into smaller super-packets, whose payload size is the largest that
    /// the port accepts.
    SmallerSuperPackets(Gso, SegmentSize, Layout),
    /// Send the packet whole, although LRO merged it, with metadata that tells the port how to
    /// segment it.
    Offload(Gso, Layout),
    /// The packet exceeds the MTU and cannot be segmented.
    TooLong,
}

/// Returns how a packet must be changed before it leaves by a port with this state.
pub(super) fn egress_action(runtime: &Runtime, packet: &SuperPacket<'_, Buffer>) -> EgressAction {
    let metadata = &packet.metadata;
    let length = packet.length();
    let partial = matches!(metadata.checksum, RxChecksum::Partial { .. });
    // SCTP has its checksum at byte 8 of its header. It is a CRC, which ports cannot complete.
    let only_here = matches!(metadata.checksum, RxChecksum::Partial { offset, .. } if usize::from(offset) == sctp::CHECKSUM);
    let checksum = match partial
        && (only_here
            || !runtime.has(Feature::TxChecksumming)
            || is_refused_checksum(runtime, packet))
    {
        true => EgressAction::CompleteChecksum,
        false => EgressAction::Unchanged,
    };
    // LRO merged the packets and gave the result new headers. Only then can a partial checksum be
    // set without changing received bytes.
    let merged = metadata.gso.is_none()
        && metadata.packets > 1
        && metadata.largest_payload != 0
        && !packet.header().is_empty();
    // The link header counts towards `length` but not towards the MTU, so a packet that fits with
    // it is short enough in any case.
    if metadata.gso.is_none() && !merged && length <= runtime.mtu {
        return checksum;
    }
    // If the packet's layout is known, its bytes need not be read.
    let known = metadata.layout.filter(|layout| is_cut_at(metadata, layout));
    let head = PacketHead::new(packet, if known.is_some() { 0 } else { MAX_HEADER });
    let bytes = head.bytes(packet);
    let network = network_offset(bytes, metadata);
    let ip_length = length.saturating_sub(network);
    let short = ip_length <= runtime.mtu;
    if metadata.gso.is_none() && !merged && short {
        return checksum;
    }
    let layout = known.or_else(|| match metadata.gso {
        Some(gso) => gso.kind.parse(bytes, length, metadata.layer, metadata.checksum).ok(),
        None => parse(bytes, length, metadata.layer).ok(),
    });
    let Some(layout) = layout else {
        // A packet that cannot be parsed cannot be segmented. A super-packet's metadata comes from
        // the sender's kernel, so the segmenter later reports the error.
        return if metadata.gso.is_none() {
            EgressAction::TooLong
        } else {
            metadata.gso.map_or(EgressAction::TooLong, |gso| EgressAction::Segment(gso, None))
        };
    };
    match metadata.gso {
        Some(gso) => for_super_packet(runtime, packet, gso, &layout, ip_length),
        None => for_merged(runtime, packet, &layout, ip_length, merged, checksum),
    }
}

/// Decides for a packet with GSO metadata. `ip_length` is its length from the IP header on.
#[inline(always)]
fn for_super_packet(
    runtime: &Runtime,
    packet: &SuperPacket<'_, Buffer>,
    gso: Gso,
    layout: &Layout,
    ip_length: usize,
) -> EgressAction {
    let metadata = &packet.metadata;
    let partial = matches!(metadata.checksum, RxChecksum::Partial { .. });
    let payload = packet.length().saturating_sub(usize::from(layout.payload));
    let support = runtime.gso_support();
    let fitting = SegmentSize::for_mtu(layout, gso.kind, runtime.mtu);
    let fits = fitting.is_some_and(|fitting| gso.size <= fitting)
        || payload <= gso.size.get() && ip_length <= runtime.mtu;
    // UDP datagrams that were sent without a checksum, but have new headers: a port that segments
    // UDP requires a checksum.
    let unused = !partial
        && gso.kind == GsoKind::Udp
        && metadata.packets > 1
        && layout.outer.is_none()
        && !packet.header().is_empty();
    if !fits {
        return match (gso.kind, fitting) {
            // A TCP stream may be segmented at any byte, and a UDP datagram may be fragmented.
            (GsoKind::Tcp4 | GsoKind::Tcp6 | GsoKind::UdpFragments, Some(size)) => {
                EgressAction::Segment(gso.with_size(size), None)
            }
            _ => EgressAction::TooLong,
        };
    }
    if !partial && !unused {
        return EgressAction::Segment(gso, None);
    }
    let mut for_port = gso;
    let mut unsupported = support.refuses(layout, &for_port, ip_length, payload);
    if unsupported == Some(Unsupported::FixedIds) && may_change_ids(runtime, packet, layout) {
        for_port = gso.with_incrementing_ids();
        unsupported = support.refuses(layout, &for_port, ip_length, payload);
    }
    match unsupported {
        None if partial => EgressAction::Unchanged,
        None => EgressAction::Offload(for_port, *layout),
        Some(unsupported) => match part(&support, layout, for_port).filter(|_| partial) {
            Some(size) => EgressAction::SmallerSuperPackets(for_port, size, *layout),
            None => EgressAction::Segment(gso, Some(unsupported)),
        },
    }
}

/// Decides for a packet without GSO metadata that was merged by LRO (`merged`) or is too long. If
/// the packet need not be segmented, the result is `checksum`.
#[inline(always)]
fn for_merged(
    runtime: &Runtime,
    packet: &SuperPacket<'_, Buffer>,
    layout: &Layout,
    ip_length: usize,
    merged: bool,
    checksum: EgressAction,
) -> EgressAction {
    let short = ip_length <= runtime.mtu;
    let metadata = &packet.metadata;
    let partial = matches!(metadata.checksum, RxChecksum::Partial { .. });
    let payload = packet.length().saturating_sub(usize::from(layout.payload));
    let support = runtime.gso_support();
    let kind = match (layout.protocol, layout.version) {
        (Protocol::Tcp, IpVersion::V4) => GsoKind::Tcp4,
        (Protocol::Tcp, IpVersion::V6) => GsoKind::Tcp6,
        (Protocol::Udp | Protocol::Dccp, _) => {
            return if short { checksum } else { EgressAction::TooLong };
        }
    };
    let Some(fitting) = SegmentSize::for_mtu(layout, kind, runtime.mtu) else {
        return EgressAction::TooLong;
    };
    // Segments of a merged packet are not longer than the ones its sender sent.
    let size = SegmentSize::new(metadata.largest_payload as usize)
        .filter(|_| metadata.packets > 1)
        .map_or(fitting, |size| size.min(fitting));
    let form = if partial { ChecksumForm::Partial } else { ChecksumForm::Full };
    let gso = Gso::new(kind, size).with_checksum(form);
    // Even a packet that fits the MTU is segmented by the port: receivers derive the segment size,
    // and so how often they acknowledge, from the packets that arrive.
    if merged && payload > size.get() && support.refuses(layout, &gso, ip_length, payload).is_none()
    {
        EgressAction::Offload(gso, *layout)
    } else if merged
        && let Some(size) = part(&support, layout, gso)
        && payload > size.get()
    {
        EgressAction::SmallerSuperPackets(gso, size, *layout)
    } else if short {
        checksum
    } else {
        EgressAction::Segment(gso, None)
    }
}

/// Returns whether the kernel has refused to complete the checksum of packets of this kind.
fn is_refused_checksum(runtime: &Runtime, packet: &SuperPacket<'_, Buffer>) -> bool {
    if runtime.refused_checksums.is_empty() {
        return false;
    }
    let head = PacketHead::new(packet, MAX_HEADER);
    let layout = parse_datagram(head.bytes(packet), packet.length(), packet.metadata.layer).ok();
    layout
        .as_ref()
        .and_then(PacketKind::of)
        .is_some_and(|kind| runtime.refused_checksums.contains(kind))
}

/// Returns whether the packet is to be segmented at the headers that `layout` describes, rather
/// than at those of another tunnel level. For UDP, the offset of the partial checksum decides, as
/// in [`GsoKind::parse`].
fn is_cut_at(metadata: &Metadata, layout: &Layout) -> bool {
    match (metadata.gso, metadata.checksum) {
        (
            Some(Gso { kind: GsoKind::Udp | GsoKind::UdpFragments, .. }),
            RxChecksum::Partial { start, .. },
        ) => start == layout.transport,
        _ => true,
    }
}

/// Returns whether the port may give the segments new IPv4 identifications. Those of packets that
/// must not be fragmented have no meaning (RFC 6864, section 4.1).
fn may_change_ids(runtime: &Runtime, packet: &SuperPacket<'_, Buffer>, layout: &Layout) -> bool {
    if !runtime.has(Feature::TxTcpMangleidSegmentation) {
        return false;
    }
    let head = PacketHead::new(packet, usize::from(layout.payload));
    let bytes = head.bytes(packet);
    layout.levels().all(|level| {
        let place = usize::from(level.network) + ipv4::FRAGMENT;
        let flags =
            bytes.get(place..place + 2).map_or(0, |flags| u16::from_be_bytes([flags[0], flags[1]]));
        level.version == IpVersion::V6 || flags & ipv4::DONT_FRAGMENT != 0
    })
}

/// Returns the payload size of the largest super-packets that the port accepts: a multiple of the
/// segment size, at least two segments, since one would save nothing.
fn part(support: &GsoSupport, layout: &Layout, gso: Gso) -> Option<SegmentSize> {
    let size = gso.size.get();
    let headers = usize::from(layout.payload - layout.outermost());
    let two = 2 * size;
    if !matches!(gso.kind, GsoKind::Tcp4 | GsoKind::Tcp6)
        || layout.outer.is_some()
        || support.refuses(layout, &gso, headers + two, two).is_some()
    {
        return None;
    }
    let longest = support.max_length(layout) as usize - headers;
    let payload = longest.min(support.max_payload as usize).min(usize::from(u16::MAX));
    let segments = (payload / size).min(support.max_segments as usize);
    if segments < 2 { None } else { SegmentSize::new(segments * size) }
}
