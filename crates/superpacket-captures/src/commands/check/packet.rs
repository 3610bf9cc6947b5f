//! A packet of either file, prepared for comparison: its checksums are completed, its headers read,
//! and its flow is found.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use superpacket::Simd;
use superpacket::checksum::ipv4_header;
use superpacket::packet::{Layer, RxChecksum};
use superpacket::segment::{Gso, GsoKind, GsoPacket, SegmentError, SegmentOptions, Segmenter};
use superpacket::virtio::{Format, Header, flags, gso_type};
use superpacket::wire::{
    IpVersion, Layout, Protocol, Refusal, checksum_addresses, ip_headers, ipv4, ipv6,
    parse_datagram, protocol_number, tcp,
};

use super::linux_flow::linux_flow;
use super::pairs::PairKeys;
use super::virtio::{Virtio, complete_by_header};
use crate::commands::checksums::{Checksum, Wrong, be16, check};
use crate::commands::lanes::{LinkHeader, find_partial};
use crate::commands::ledger::FlowId;

/// A packet from one of the two compared files, or a segment of such a packet.
#[derive(Clone, Debug)]
pub(super) struct FilePacket {
    /// Number of the packet in its file, from 1.
    pub(super) number: u64,
    /// For a segment: its number among the segments of its packet, from 1.
    pub(super) part: Option<u32>,
    /// For a fragment that this program made of an IPv6 packet: offset of the identification in its
    /// fragment header. Another implementation may choose another value.
    pub(super) chosen_id: Option<usize>,
    /// The bytes of the packet from the Ethernet or IP header on, with completed checksums.
    pub(super) bytes: Vec<u8>,
    /// The bytes with the checksums that they had in the file; `None` if none of the checksums was
    /// unfinished.
    unfinished: Option<Vec<u8>>,
    /// The kind of header with which `bytes` begin; `None` for an unknown link type.
    pub(super) layer: Option<Layer>,
    /// The bytes of the frame before the IP header; empty for Ethernet.
    pub(super) link: Vec<u8>,
    pub(super) layout: Option<Layout>,
    pub(super) virtio: Option<Virtio>,
    /// Whether the snap length has cut the packet.
    pub(super) cut: bool,
    /// A hash of addresses, protocol and ports. Packets that differ in these are never merged.
    pub(super) endpoints: u64,
    /// The flow of the packet, by endpoints, link headers and tunnels.
    pub(super) flow: FlowId,
    /// A hash of the additional fields by which Linux divides packets of one flow into flows of its
    /// own.
    pub(super) linux_flow: u64,
    /// The flow within which the packet keeps its order, and its interface. This flow includes the
    /// link header even if link headers are not compared.
    pub(super) order_scope: (FlowId, u32),
    /// The address pairs within which the packet keeps its order. Like `order_scope`, their hashes
    /// include the link header and the interface.
    pub(super) pairs: PairKeys,
}

/// The kind of header with which a packet begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketStart {
    layer: Layer,
    /// Number of bytes before the IP header; 0 for Ethernet.
    link: usize,
}

impl fmt::Display for PacketStart {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.layer, self.link) {
            (Layer::Ethernet, _) => write!(out, "an Ethernet header"),
            (Layer::Ip, 0) => write!(out, "an IP header"),
            (Layer::Ip, link) => write!(out, "{link} bytes before its IP header"),
        }
    }
}

/// The properties of a packet, besides its bytes, that a file contains.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketMetadata<'a> {
    pub(super) number: u64,
    pub(super) interface: u32,
    pub(super) layer: Option<Layer>,
    pub(super) link: &'a [u8],
    pub(super) header: Option<(Header, Format)>,
    pub(super) cut: bool,
}

/// Maximum length in bytes of a packet all of whose bytes are kept in memory: twice the maximum of
/// BIG TCP. Files of records may have packets of 16 MB, which would need more memory than commands
/// may use.
const LONGEST: usize = 1 << 20;

/// Returns a packet's bytes. If it is longer than [`LONGEST`], returns the first bytes and a hash
/// of the others.
fn truncated_bytes(data: &[u8]) -> Vec<u8> {
    match data.split_at_checked(LONGEST) {
        Some((first, rest)) if !rest.is_empty() => [first, &hash_of(&rest).to_be_bytes()].concat(),
        _ => data.to_vec(),
    }
}

/// Returns the kind of segmentation for packets with this layout.
pub(super) fn gso_kind(layout: &Layout) -> GsoKind {
    match (layout.protocol, layout.version) {
        (Protocol::Tcp, IpVersion::V4) => GsoKind::Tcp4,
        (Protocol::Tcp, IpVersion::V6) => GsoKind::Tcp6,
        (Protocol::Udp, _) => GsoKind::Udp,
        (Protocol::Dccp, _) => GsoKind::Dccp,
    }
}

/// Returns the segments into which a packet is cut as `gso` says.
///
/// If `trust_seed` is set, the checksum of a segment is computed as Linux does: from the value in
/// the field of the unfinished checksum, adjusted by the difference of the lengths. That value
/// tells which addresses the checksum covers.
pub(super) fn segments_of(
    segmenter: &mut Segmenter,
    packet: &FilePacket,
    layer: Layer,
    gso: Gso,
    options: &SegmentOptions,
    trust_seed: bool,
) -> Result<Vec<Vec<u8>>, SegmentError> {
    let mut segments = Vec::new();
    let partial = packet.virtio.and_then(|virtio| virtio.partial).filter(|_| trust_seed);
    let seeded = partial.and_then(|(state, field)| packet.with_field(state, field));
    let whole = match &seeded {
        Some((bytes, state)) => GsoPacket::linear(bytes, gso).with_checksum(*state),
        None => GsoPacket::linear(&packet.bytes, gso),
    };
    segmenter.segment(&whole.with_layer(layer), options, |segment| {
        let mut bytes = Vec::new();
        segment.copy_to(&mut bytes);
        segments.push(bytes);
    })?;
    Ok(segments)
}

impl FilePacket {
    /// Completes the checksums of a packet of a file, and reads its headers.
    pub(super) fn new(origin: PacketMetadata<'_>, data: &[u8], simd: Simd) -> FilePacket {
        let PacketMetadata { number, interface, layer, link, header, cut } = origin;
        let layer = layer.filter(|_| data.len() <= LONGEST);
        let mut bytes = truncated_bytes(data);
        let (mut virtio, mut unfinished) = (None, None);
        if let Some(layer) = layer {
            if let Some((header, format)) = header {
                virtio = Some(complete_by_header(&mut bytes, layer, header, format, simd));
            } else if let Some(partial) = find_partial(&bytes, layer, cut, simd) {
                unfinished = Some(bytes.clone());
                for (place, value) in partial.fields(Checksum::is_unfinished).into_iter().flatten()
                {
                    if let Some(field) = bytes.get_mut(place..place + 2) {
                        field.copy_from_slice(&value.to_be_bytes());
                    }
                }
            }
        }
        let mut packet = FilePacket {
            number,
            part: None,
            chosen_id: None,
            bytes,
            unfinished,
            layer,
            link: link.to_vec(),
            layout: None,
            virtio,
            cut,
            endpoints: 0,
            flow: FlowId::none(),
            linux_flow: 0,
            order_scope: (FlowId::none(), interface),
            pairs: PairKeys::default(),
        };
        packet.find_headers();
        packet.order_scope.0 = packet.flow;
        if let Some(layer) = layer
            && let Some(link) = LinkHeader::new(interface, layer, link)
        {
            packet.pairs = PairKeys::of(&packet.bytes, layer, &link, packet.layout.as_ref());
        }
        packet
    }

    /// Reads the packet's headers and finds its flow, after the bytes were changed.
    fn find_headers(&mut self) {
        let Some(layer) = self.layer else {
            self.endpoints = hash_of(&("other", &self.link));
            return;
        };
        self.layout = parse_datagram(&self.bytes, self.bytes.len(), layer).ok();
        self.endpoints = endpoints(&self.bytes, layer, self.layout.as_ref());
        self.linux_flow =
            self.layout.map_or(0, |layout| hash_of(&linux_flow(&self.bytes, &layout)));
        if let Some(link) = LinkHeader::new(0, layer, &self.link) {
            self.flow = match self.layout {
                Some(_) => FlowId::of(&self.bytes, layer, &link),
                None => FlowId::from_hash(hash_of(&(self.endpoints, &self.link))),
            };
        }
    }

    /// Returns a segment of this packet with these bytes.
    pub(super) fn segment(&self, part: u32, bytes: Vec<u8>) -> FilePacket {
        let chosen_id = self.layer.and_then(|layer| fragment_id(&bytes, layer));
        let link = self.link.clone();
        let mut packet = FilePacket {
            part: Some(part),
            chosen_id,
            bytes,
            unfinished: None,
            virtio: None,
            layout: None,
            link,
            ..*self
        };
        packet.find_headers();
        packet
    }

    /// Returns the packet without the headers before the IP header.
    pub(super) fn without_link(mut self) -> FilePacket {
        self.link.clear();
        let network = match (&self.layout, self.layer) {
            (Some(layout), _) => Some(layout.outermost()),
            (None, Some(layer)) => {
                ip_headers(&self.bytes, self.bytes.len(), layer)[0].map(|(network, _)| network)
            }
            (None, None) => None,
        };
        if let Some(network) = network
            && self.layer == Some(Layer::Ethernet)
        {
            self.bytes.drain(..usize::from(network));
            self.unfinished.iter_mut().for_each(|bytes| drop(bytes.drain(..usize::from(network))));
            self.layer = Some(Layer::Ip);
            if let Some(Virtio { partial: Some((RxChecksum::Partial { start, .. }, _)), .. }) =
                &mut self.virtio
            {
                *start = start.saturating_sub(network);
            }
        }
        self.find_headers();
        self
    }

    /// Returns the kind of header with which the packet begins; `None` if it is unknown.
    pub(super) fn start(&self) -> Option<PacketStart> {
        Some(PacketStart { layer: self.layer?, link: self.link.len() })
    }

    /// Returns the packet's length in bytes, including the bytes before the IP header.
    pub(super) fn length(&self) -> usize {
        self.link.len() + self.bytes.len()
    }

    /// Returns whether two packets are equal, with completed checksums or with those of the file.
    /// An IPv6 fragment's identification that this program chose is not compared.
    pub(super) fn is_same(&self, other: &FilePacket) -> bool {
        self.bytes == other.bytes
            || self.unfinished.as_ref() == Some(&other.bytes)
            // A checksum that was taken for an unfinished one is the same in the other packet.
            || other.unfinished.as_ref() == Some(&self.bytes)
            || (self.chosen_id.is_some() && self.equals_without_id(other))
    }

    fn equals_without_id(&self, other: &FilePacket) -> bool {
        self.bytes.len() == other.bytes.len() && self.first_difference(other).is_none()
    }

    /// Returns the offset of the first byte in which two packets differ. An IPv6 fragment's
    /// identification that this program chose is not compared.
    pub(super) fn first_difference(&self, other: &FilePacket) -> Option<usize> {
        let is_chosen = |place| self.chosen_id.is_some_and(|id| (id..id + 4).contains(&place));
        let mut pairs = self.bytes.iter().zip(&other.bytes).enumerate();
        pairs
            .find(|&(place, (one, other))| one != other && !is_chosen(place))
            .map(|(place, _)| place)
    }

    /// Returns whether the packet equals `other`, an IPv4 fragment, except that the flag DF and the
    /// reserved bit are clear.
    pub(super) fn equals_without_fragment_flags(&self, other: &FilePacket) -> bool {
        let Some(layer) = self.layer else { return false };
        let Some((network, IpVersion::V4)) =
            ip_headers(&self.bytes, self.bytes.len(), layer).into_iter().flatten().last()
        else {
            return false;
        };
        let network = usize::from(network);
        let header = |packet: &FilePacket| {
            packet.bytes.get(network..network + ipv4::HEADER_LENGTH).map(<[u8]>::to_vec)
        };
        let (Some(here), Some(there)) = (header(self), header(other)) else { return false };
        let length = usize::from(here[0] & 15) * 4;
        let whole =
            self.bytes.get(network..network + length.max(ipv4::HEADER_LENGTH)).unwrap_or(&[]);
        if here[ipv4::FRAGMENT] & !0x1f & !0x20 != 0
            || be16(whole, ipv4::CHECKSUM) != Some(ipv4_header(whole))
        {
            return false;
        }
        let mut bytes = self.bytes.clone();
        for place in [ipv4::FRAGMENT, ipv4::CHECKSUM, ipv4::CHECKSUM + 1] {
            bytes[network + place] = there[place];
        }
        here[ipv4::FRAGMENT] == there[ipv4::FRAGMENT] & 0x3f && bytes == other.bytes
    }

    /// Returns the IPv6 identification of this fragment, read at the offset that the identification
    /// has in `origin`, a fragment made by this program.
    pub(super) fn id_for(&self, origin: &FilePacket) -> Option<u32> {
        let bytes = self.bytes.get(origin.chosen_id?..)?.first_chunk()?;
        Some(u32::from_be_bytes(*bytes))
    }

    /// Returns the packet's bytes with an unfinished checksum: `state` tells where its field is,
    /// and `field` is the value for the field.
    fn with_field(&self, state: RxChecksum, field: u16) -> Option<(Vec<u8>, RxChecksum)> {
        let RxChecksum::Partial { start, offset } = state else { return None };
        let place = usize::from(start) + usize::from(offset);
        let mut bytes = self.bytes.clone();
        bytes.get_mut(place..place + 2)?.copy_from_slice(&field.to_be_bytes());
        Some((bytes, state))
    }

    /// Returns the number of bytes of memory that the packet takes.
    pub(super) fn memory(&self) -> usize {
        self.bytes.len() + self.unfinished.as_ref().map_or(0, Vec::len)
    }

    /// Returns the transport payload, as far as the file contains it.
    pub(super) fn payload(&self) -> &[u8] {
        let Some(layout) = &self.layout else { return &[] };
        let end = match layout.refusal {
            Some(Refusal::Truncated) => self.bytes.len(),
            _ => (layout.end as usize).min(self.bytes.len()),
        };
        self.bytes.get(usize::from(layout.payload)..end).unwrap_or(&[])
    }

    /// Returns the packet's headers, up to the payload.
    pub(super) fn headers(&self) -> &[u8] {
        let end = self.layout.map_or(0, |layout| usize::from(layout.payload));
        self.bytes.get(..end).unwrap_or(&self.bytes)
    }

    /// Returns the TCP header, if there is one.
    pub(super) fn tcp(&self) -> Option<&[u8]> {
        let layout =
            self.layout.filter(|layout| layout.protocol == superpacket::wire::Protocol::Tcp)?;
        self.bytes.get(usize::from(layout.transport)..usize::from(layout.payload))
    }

    /// Returns the TCP sequence number; `None` if the packet is not TCP.
    pub(super) fn sequence(&self) -> Option<u32> {
        Some(u32::from_be_bytes(*self.tcp()?.get(tcp::SEQUENCE..)?.first_chunk()?))
    }

    /// Returns the TCP flags; 0 if the packet is not TCP.
    pub(super) fn flags(&self) -> u8 {
        self.tcp().and_then(|header| header.get(tcp::FLAGS)).copied().unwrap_or(0)
    }

    /// Returns the identification in the IPv4 header at the offset `network`.
    pub(super) fn id(&self, network: u16) -> Option<u16> {
        be16(&self.bytes, usize::from(network) + ipv4::ID)
    }

    /// Returns whether all checksums of the packet are right.
    pub(super) fn is_valid(&self, simd: Simd) -> bool {
        self.wrong_checksum(simd).is_none()
    }

    /// Returns which kind of checksum is wrong, if any is. IPv4 headers are verified before
    /// transport headers.
    pub(super) fn wrong_checksum(&self, simd: Simd) -> Option<Wrong> {
        check(&self.bytes, self.layer?, &self.layout?, None, simd).err()
    }

    /// Returns whether the addresses that the packet's transport checksum covers are known.
    pub(super) fn is_verifiable(&self) -> bool {
        self.layout.is_none_or(|layout| {
            let network = self.bytes.get(usize::from(layout.network)..).unwrap_or(&[]);
            checksum_addresses(network, layout.version).is_some()
        })
    }

    /// Returns whether the packet's `virtio_net_hdr` contradicts itself or the packet.
    pub(super) fn has_invalid_header(&self) -> bool {
        self.virtio.is_some_and(|virtio| virtio.gso.is_err())
    }

    /// Returns whether the packet's `virtio_net_hdr` says that it is a super-packet, but its
    /// headers cannot be read.
    pub(super) fn is_unreadable_super_packet(&self) -> bool {
        self.layout.is_none()
            && self.virtio.is_some_and(|virtio| virtio.header.gso_type != gso_type::NONE)
    }

    /// Returns whether Linux's GRO lets the packet pass before it looks for the packet's flow.
    pub(super) fn is_refused_by_linux(&self, simd: Simd) -> bool {
        let Some(layout) = self.layout else { return true };
        // UDP packets without a checksum or without data (`udp_gro_receive_segment`).
        let has_neither = layout.protocol == Protocol::Udp
            && (self.payload().is_empty()
                || be16(&self.bytes, usize::from(layout.checksum())) == Some(0));
        let is_padded = self.bytes.len() > layout.end as usize;
        layout.refusal.is_some()
            || has_neither
            || is_padded
            || !self.has_valid_headers(&layout)
            || !self.is_valid(simd)
            || self.covers_other_addresses(&layout)
    }

    /// Returns whether a checksum that Linux verifies covers other addresses than those in the IP
    /// header: a final destination, or a home address. GRO uses the header's addresses and finds
    /// the checksum wrong (`tcp6_gro_receive`). With NEEDS_CSUM it verifies no such checksum.
    fn covers_other_addresses(&self, layout: &Layout) -> bool {
        if self.virtio.is_some_and(|virtio| virtio.header.flags & flags::NEEDS_CSUM != 0) {
            return false;
        }
        let outers = layout
            .outers()
            .filter(|outer| outer.tunnel.is_udp() && outer.checksum(&self.bytes).is_some());
        let mut levels = outers
            .map(|outer| (outer.network, outer.version))
            .chain([(layout.network, layout.version)]);
        levels.any(|(network, version)| {
            let header = self.bytes.get(usize::from(network)..).unwrap_or(&[]);
            checksum_addresses(header, version) != header_addresses(header, version)
        })
    }

    /// Returns whether the checksum of each IPv4 header is right.
    fn has_valid_headers(&self, layout: &Layout) -> bool {
        let mut levels = layout.levels().filter(|level| level.version == IpVersion::V4);
        levels.all(|level| {
            let header = self.bytes.get(usize::from(level.network)..).unwrap_or(&[]);
            let length = usize::from(header.first().copied().unwrap_or(0) & 15) * 4;
            let right = header.get(..length.max(ipv4::HEADER_LENGTH)).map(ipv4_header);
            be16(header, ipv4::CHECKSUM) == right
                || (be16(header, ipv4::CHECKSUM), right) == (Some(0xffff), Some(0))
        })
    }
}

/// Returns the addresses in an IP header.
fn header_addresses(header: &[u8], version: IpVersion) -> Option<(IpAddr, IpAddr)> {
    let v4 = |at: usize| {
        header
            .get(at..)
            .and_then(|bytes| bytes.first_chunk::<4>())
            .map(|bytes| IpAddr::from(*bytes))
    };
    let v6 = |at: usize| {
        header
            .get(at..)
            .and_then(|bytes| bytes.first_chunk::<16>())
            .map(|bytes| IpAddr::from(*bytes))
    };
    match version {
        IpVersion::V4 => v4(12).zip(v4(16)),
        IpVersion::V6 => v6(8).zip(v6(24)),
    }
}

/// Returns the offset of the identification in the innermost IPv6 fragment header (RFC 8200,
/// section 4.5).
fn fragment_id(bytes: &[u8], layer: Layer) -> Option<usize> {
    let (network, version) = ip_headers(bytes, bytes.len(), layer).into_iter().flatten().last()?;
    if version != IpVersion::V6 {
        return None;
    }
    let mut next_header = *bytes.get(usize::from(network) + ipv6::NEXT_HEADER)?;
    let mut offset = usize::from(network) + ipv6::HEADER_LENGTH;
    while let &[following, length, ..] = bytes.get(offset..)? {
        match next_header {
            ipv6::FRAGMENT => return Some(offset + 4),
            // Hop-by-hop options, routing, destination options.
            0 | 43 | 60 => offset += 8 + usize::from(length) * 8,
            _ => return None,
        }
        next_header = following;
    }
    None
}

/// Returns a hash of the innermost addresses, protocol and ports, or of those that the packet has.
fn endpoints(bytes: &[u8], layer: Layer, layout: Option<&Layout>) -> u64 {
    let addresses = |network: u16, version| {
        let network = usize::from(network);
        match version {
            IpVersion::V4 => bytes.get(network + ipv4::ADDRESSES..network + ipv4::ADDRESSES + 8),
            IpVersion::V6 => bytes.get(network + ipv6::ADDRESSES..network + ipv6::ADDRESSES + 32),
        }
    };
    if let Some(layout) = layout {
        let transport = usize::from(layout.transport);
        return hash_of(&(
            addresses(layout.network, layout.version),
            layout.protocol,
            bytes.get(transport..transport + 4),
        ));
    }
    match ip_headers(bytes, bytes.len(), layer).into_iter().flatten().last() {
        Some((network, version)) => hash_of(&(
            "ip",
            addresses(network, version),
            protocol_number(bytes, usize::from(network), version),
        )),
        None => hash_of(&("none", bytes.get(..14))),
    }
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
