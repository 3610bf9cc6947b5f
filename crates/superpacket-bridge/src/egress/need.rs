//! What a packet needs at the port that it leaves by, as far as the port does not do it.

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

use crate::frame::{Head, network_offset};
use crate::runtime::Runtime;

/// What a packet needs at the port that it leaves by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Need {
    /// Nothing.
    Nothing,
    /// Its partial checksum filled in.
    Checksum,
    /// To be cut like this, for this reason if it would fit the port's MTU.
    Cut(Gso, Option<Unsupported>),
    /// To be cut into the packets that merged, which are not alike.
    CutUneven,
    /// To be cut into the parts of it that are, which the port cuts itself.
    WholeParts(Layout),
    /// To be cut into super-packets of so much payload, since it is more than the port takes at
    /// once.
    Parts(Gso, SegmentSize, Layout),
    /// To go whole, and the port to be told how to cut it: it is what LRO merged, as a card hands
    /// it to its host.
    Whole(Gso, Layout),
    /// To be shorter, and it cannot be cut.
    Shorter,
}

/// What a packet needs at a port.
pub(super) fn need(runtime: &Runtime, packet: &SuperPacket<'_, Buffer>) -> Need {
    let metadata = &packet.metadata;
    let length = packet.length();
    let partial = matches!(metadata.checksum, RxChecksum::Partial { .. });
    // At byte 8 lies SCTP's, which is no sum: no port can be asked for it.
    let only_here = matches!(metadata.checksum, RxChecksum::Partial { offset, .. } if usize::from(offset) == sctp::CHECKSUM);
    let checksum = match partial
        && (only_here
            || !runtime.has(Feature::TxChecksumming)
            || is_refused_checksum(runtime, packet))
    {
        true => Need::Checksum,
        false => Need::Nothing,
    };
    // LRO's, with headers written anew: only there can a checksum be made partial without touching
    // what came.
    let merged = metadata.gso.is_none()
        && metadata.packets > 1
        && metadata.largest_payload != 0
        && !packet.header().is_empty();
    // What fits with the link header fits without it.
    if metadata.gso.is_none() && !merged && length <= runtime.mtu {
        return checksum;
    }
    // Where the headers are known, no byte is read.
    let known = metadata.layout.filter(|layout| cut_at(metadata, layout));
    let head = Head::new(packet, if known.is_some() { 0 } else { MAX_HEADER });
    let bytes = head.bytes(packet);
    let network = network_offset(bytes, metadata);
    let short = length.saturating_sub(network) <= runtime.mtu;
    if metadata.gso.is_none() && !merged && short {
        return checksum;
    }
    let layout = known.or_else(|| match metadata.gso {
        Some(gso) => gso.kind.parse(bytes, length, metadata.layer, metadata.checksum).ok(),
        None => parse(bytes, length, metadata.layer).ok(),
    });
    let Some(layout) = layout else {
        // Nobody can cut what nobody can read; but a super-packet is what the sender's kernel made,
        // and says so.
        return if metadata.gso.is_none() {
            Need::Shorter
        } else {
            metadata.gso.map_or(Need::Shorter, |gso| Need::Cut(gso, None))
        };
    };
    let payload = length.saturating_sub(usize::from(layout.payload));
    let support = runtime.gso_support();
    if let Some(need) = uneven(runtime, packet, &layout) {
        return need;
    }
    match metadata.gso {
        Some(gso) => {
            let fitting = SegmentSize::for_mtu(&layout, gso.kind, runtime.mtu);
            let fits = fitting.is_some_and(|fitting| gso.size <= fitting)
                || payload <= gso.size.get() && length - network <= runtime.mtu;
            // Datagrams without a checksum, with headers written anew: a port that cuts them itself
            // asks for one.
            let unused = !partial
                && gso.kind == GsoKind::Udp
                && metadata.packets > 1
                && layout.outer.is_none()
                && !packet.header().is_empty();
            if !fits {
                return match (gso.kind, fitting) {
                    // A stream may be cut anywhere; so may a datagram be fragmented.
                    (GsoKind::Tcp4 | GsoKind::Tcp6 | GsoKind::UdpFragments, Some(size)) => {
                        Need::Cut(gso.with_size(size), None)
                    }
                    _ => Need::Shorter,
                };
            }
            if !partial && !unused {
                return Need::Cut(gso, None);
            }
            let mut for_port = gso;
            let mut unsupported = support.refuses(&layout, &for_port, length - network, payload);
            if unsupported == Some(Unsupported::FixedIds)
                && may_change_ids(runtime, packet, &layout)
            {
                for_port = gso.with_incrementing_ids();
                unsupported = support.refuses(&layout, &for_port, length - network, payload);
            }
            match unsupported {
                None if partial => Need::Nothing,
                None => Need::Whole(for_port, layout),
                Some(unsupported) => match part(&support, &layout, for_port).filter(|_| partial) {
                    Some(size) => Need::Parts(for_port, size, layout),
                    None => Need::Cut(gso, Some(unsupported)),
                },
            }
        }
        None => {
            let kind = match (layout.protocol, layout.version) {
                (Protocol::Tcp, IpVersion::V4) => GsoKind::Tcp4,
                (Protocol::Tcp, IpVersion::V6) => GsoKind::Tcp6,
                (Protocol::Udp | Protocol::Dccp, _) => {
                    return if short { checksum } else { Need::Shorter };
                }
            };
            let Some(fitting) = SegmentSize::for_mtu(&layout, kind, runtime.mtu) else {
                return Need::Shorter;
            };
            // What LRO merged is cut no longer than what its sender sent.
            let size = SegmentSize::new(metadata.largest_payload as usize)
                .filter(|_| metadata.packets > 1)
                .map_or(fitting, |size| size.min(fitting));
            let form = if partial { ChecksumForm::Partial } else { ChecksumForm::Full };
            let gso = Gso::new(kind, size).with_checksum(form);
            // Even where it is no longer than the MTU: a receiver learns from it how long segments
            // are, and acknowledges by that.
            if merged
                && payload > size.get()
                && support.refuses(&layout, &gso, length - network, payload).is_none()
            {
                Need::Whole(gso, layout)
            } else if merged
                && let Some(size) = part(&support, &layout, gso)
                && payload > size.get()
            {
                Need::Parts(gso, size, layout)
            } else if short {
                checksum
            } else {
                Need::Cut(gso, None)
            }
        }
    }
}

/// Returns whether the kernel has refused to complete the checksum of packets of this kind.
fn is_refused_checksum(runtime: &Runtime, packet: &SuperPacket<'_, Buffer>) -> bool {
    if runtime.refused_checksums.is_empty() {
        return false;
    }
    let head = Head::new(packet, MAX_HEADER);
    let layout = parse_datagram(head.bytes(packet), packet.length(), packet.metadata.layer).ok();
    layout
        .as_ref()
        .and_then(PacketKind::of)
        .is_some_and(|kind| runtime.refused_checksums.contains(kind))
}

/// What a packet needs that is uneven, unless it is cut anew because its segments are too long.
fn uneven(runtime: &Runtime, packet: &SuperPacket<'_, Buffer>, layout: &Layout) -> Option<Need> {
    let longest = packet.parts().iter().map(|part| part.gso()).max_by_key(|gso| gso.size)?;
    if SegmentSize::for_mtu(layout, longest.kind, runtime.mtu)
        .is_none_or(|fitting| longest.size > fitting)
    {
        return None;
    }
    let headers = usize::from(layout.payload - layout.outermost());
    let support = runtime.gso_support();
    let taken = |gso: Gso, payload: usize| {
        support.refuses(layout, &gso, headers + payload, payload).is_none()
    };
    // A part of one packet is no super-packet, which any port takes.
    let taken =
        packet.parts().iter().all(|part| part.segments() == 1 || taken(part.gso(), part.payload()));
    let partial = matches!(packet.metadata.checksum, RxChecksum::Partial { .. })
        && runtime.has(Feature::TxChecksumming);
    Some(if taken && partial { Need::WholeParts(*layout) } else { Need::CutUneven })
}

/// Are these the headers at which the packet is cut? In UDP the place of its partial checksum says
/// so, as [`GsoKind::parse`] has it.
fn cut_at(metadata: &Metadata, layout: &Layout) -> bool {
    match (metadata.gso, metadata.checksum) {
        (
            Some(Gso { kind: GsoKind::Udp | GsoKind::UdpFragments, .. }),
            RxChecksum::Partial { start, .. },
        ) => start == layout.transport,
        _ => true,
    }
}

/// May the port number the segments anew? Of IPv4 packets that must not be fragmented nobody reads
/// the identification (RFC 6864, section 4.1).
fn may_change_ids(runtime: &Runtime, packet: &SuperPacket<'_, Buffer>, layout: &Layout) -> bool {
    if !runtime.has(Feature::TxTcpMangleidSegmentation) {
        return false;
    }
    let head = Head::new(packet, usize::from(layout.payload));
    let bytes = head.bytes(packet);
    let dont_fragment = |network: u16, version: IpVersion| {
        let place = usize::from(network) + ipv4::FRAGMENT;
        let flags =
            bytes.get(place..place + 2).map_or(0, |flags| u16::from_be_bytes([flags[0], flags[1]]));
        version == IpVersion::V6 || flags & ipv4::DONT_FRAGMENT != 0
    };
    dont_fragment(layout.network, layout.version)
        && layout.outers().all(|outer| dont_fragment(outer.network, outer.version))
}

/// The payload of the largest super-packets that the port takes of this one, of which it takes
/// smaller ones only: whole segments, and two at least, or nothing is gained.
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
