//! Why both sides may differ: each kind with the promise that explains it.

use std::collections::BTreeMap;

use superpacket::virtio::{VirtioError, flags as virtio_flags, gso_type};
use superpacket::wire::{self, IpVersion, Layout, MAX_HEADER, Protocol, Refusal, Tunnel};
use superpacket::{Layer, Reason, SegmentError, SplitError};
use superpacket_lab::VnetHeader;
use superpacket_traffic::check::{self, Expect, FlowKey};
use superpacket_traffic::frame::{ACK, CWR, FIN, PSH};

use crate::compare::{Difference, Sides, completed};
use crate::cut::{self, Field};
use crate::engine::Left;
use crate::frames::{Cut, Group, Input, Packet};
use crate::hint::Hint;
use crate::nested::{self, second_tunnel};
use crate::segment::{Whole, joined_fragments, take_offset, without_flags, without_fragment_id};

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $promise:literal;)*) => {
        /// A kind of difference between Linux and the engine.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind {
            $($(#[$doc])* $name,)*
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &'static [Kind] = &[$(Kind::$name,)*];

            /// Returns the name that reports use.
            pub const fn name(self) -> &'static str {
                match self { $(Kind::$name => $text,)* }
            }

            /// Returns the promise that explains it, and how the engine behaves.
            pub const fn promise(self) -> &'static str {
                match self { $(Kind::$name => $promise,)* }
            }
        }
    };
}

kinds! {
    /// The kernel merged full and partial checksums.
    ChecksumForms = "full and partial checksums mix", "Reversible: packets merge only with those of the same form.";
    /// The kernel merged a valid checksum that nobody computes.
    NonCanonicalChecksum = "non-canonical checksum", "Reversible: 0xFFFF for 0x0000 could not be restored, so the packet passes.";
    /// The kernel merged packets with different urgent pointers.
    UrgentPointer = "urgent pointer is lost", "Reversible: packets merge only with equal urgent pointers; Linux keeps the first one's.";
    /// The kernel merged packets whose identifications are neither equal nor count up.
    Identification = "identifications are lost", "Reversible: packets merge only if their identifications can be restored.";
    /// The kernel merged a valid header checksum that nobody computes.
    HeaderChecksum = "non-canonical header checksum", "Reversible: 0xFFFF for 0x0000 could not be restored, so the packet passes.";
    /// The kernel merged segments without ACK.
    NoAcknowledgement = "segments without ACK merge", "Untouched when unknown: no connection sends data without ACK (RFC 9293, section 3.10.7.4), so it passes.";
    /// The kernel merged what the engine takes for an unknown tunnel.
    UnknownTunnel = "unknown tunnel headers", "Untouched when unknown: tunnel headers with reserved bits pass, in the order of their flow.";
    /// The kernel merged by a GRO hint that is false.
    FalseHint = "a false GRO hint", "Never trusted: a hint is compared with the headers that it speaks of, and where it contradicts them, or speaks of a third tunnel, the packet passes; Linux reads IP and UDP where the hint says, and compares all headers.";
    /// The kernel merged packets with more headers than the engine reads.
    LongHeaders = "more than 256 bytes of headers", "Bounded: the engine reads the first 256 bytes of a frame, and one whose headers are longer passes: two tunnels over IPv6 with options, behind two VLAN tags.";
    /// The kernel merged packets whose outer UDP length is wrong.
    OuterLength = "wrong outer UDP length", "Reversible: a packet in VXLAN or Geneve whose outer UDP length is wrong passes; Linux does not look at it, and writes the right one.";
    /// The kernel merged across a packet of the same flow that it did not merge.
    MergedAcross = "merges across a refused packet", "Order: a packet that cannot merge flushes its own flow first, so nothing joins what came before it.";
    /// A refused packet left before what was held of its flow.
    Overtaken = "a refused packet overtakes", "Order: packets of a flow leave in the order in which they came.";
    /// The kernel holds packets of one connection apart.
    SplitFlow = "a connection is two flows", "Order: flow labels, extension headers, VLAN priorities, GRE's flags, and of VXLAN and Geneve source port, options and whether there is a checksum, end a merge but make no other flow; to Linux they do (so does GRE's checksum, which it takes for the key), and what it holds of one flow waits while the other leaves.";
    /// The kernel lets packets with CWR alone.
    CongestionWindow = "CWR ends a merge", "The engine merges equal flags, as Linux 7.3 does; 6.18 flushes at CWR.";
    /// The kernel merged packets without CWR behind one with it.
    FirstCongestionWindow = "CWR on the first packet alone", "The engine merges equal flags, as Linux 6.18 does; 6.12 merges packets without CWR behind one with it, as a sender's super-packet begins.";
    /// A merged packet whose packets all have CWR.
    AllCongestionWindow = "CWR on all packets", "A virtio header has no place for it, so the engine makes none, and whoever is ours cuts such a packet itself; compared is the header for CWR on the first, which says ECN. That of Linux 7.3 says nothing.";
    /// The engine merged packets whose identifications stay the same.
    FixedIdentification = "identifications stay the same", "The engine merges them and cuts them so, in each header by itself, as Linux 6.18 does; 6.12 with DF alone, and not beside a header whose identifications count up.";
    /// The engine merged DCCP.
    Dccp = "DCCP", "The engine merges DCCP; no Linux does.";
    /// The engine merged packets behind VLAN tags, PPPoE or MPLS.
    Tags = "VLAN tags, PPPoE or MPLS", "The engine merges behind any of them, in a tunnel too; Linux has no GRO for PPPoE and MPLS, and none for VLAN tags if built without `CONFIG_VLAN_8021Q`.";
    /// The engine merged packets in two tunnels that say nothing of it.
    NestedWithoutHint = "two tunnels without a GRO hint", "The engine finds the second tunnel by its port; Linux enters it only where the first is Geneve and a hint says where its headers lie (since 7.0).";
    /// The engine merged packets whose second tunnel has other lengths or identifications.
    NestedHeaders = "headers of the second tunnel differ", "The engine merges them where lengths and identifications can be restored, as at any level; Linux only where all bytes of the headers are the same, so none whose identifications count up, and no shorter one at the end. While it holds one, others in the same two tunnels whose headers differ pass (`geneve_hdr_match`).";
    /// The engine merged packets with a checksum of the second tunnel alone.
    NestedChecksum = "a checksum in the second tunnel alone", "The engine verifies it; Linux uses no hint then (`geneve_opt_gro_hint_validate_csum`).";
    /// The second tunnel's headers in a merged packet.
    NestedLengths = "lengths in the second tunnel of a merged packet", "The engine writes those of the merged packet, and the right checksums; Linux leaves the first one's until its Geneve device takes the first tunnel away (`geneve_post_decap_hint`).";
    /// GRE's checksum in a merged packet.
    GreChecksum = "GRE checksum of a merged packet", "The engine writes that of the merged packet; Linux leaves the first one's, and computes it when it segments.";
    /// The outer UDP checksum of a merged packet in VXLAN or Geneve.
    OuterChecksum = "outer UDP checksum of a merged packet", "Without a framing, the engine writes the one that is right once the inner one is (local checksum offload); Linux writes the sum of the pseudo-header, as the engine does behind a header of 24 bytes, and computes the checksum when it segments.";
    /// The checksum covers other addresses than those of the IP header.
    FinalDestination = "a checksum over the final destination", "The engine verifies and writes checksums over the final destination of a routing header and over a home address (RFC 8200, section 8.1; RFC 6275), and packets from which these cannot be told pass; Linux's GRO takes the addresses of the IP header, so that it refuses packets that are right, and where the checksum is partial writes the sum of a wrong one.";
    /// The kernel merged what is not of the IP version that the EtherType says.
    OtherVersion = "an IPv6 header that says another version", "Untouched when unknown: it passes as malformed; Linux merges two that are alike, and `ipv6_rcv` drops them.";
    /// The kernel drops a frame that ends within its tag.
    CutTag = "a frame that ends within its tag", "Conserved: it passes and is counted as truncated; Linux drops it (`skb_vlan_untag`).";
    /// The kernel's table was full.
    Evicted = "the kernel's table is full", "Bounded: the engine holds 1,024 flows by a keyed hash; Linux holds 8 in each of 8 buckets, and all packets without a device's hash share one.";
    /// Segmentation: a payload that fits a segment.
    FitsSegment = "segmentation: the payload fits a segment", "The engine passes the packet whole, its checksum completed; Linux drops it where TCP options make it longer than `gso_size` (`tcp_gso_segment`).";
    /// Segmentation: very little payload in a segment.
    SmallSegment = "segmentation: gso_size below 8", "The engine and Linux 6.18.44 cut TCP as the header says; Linux 6.12.117 and 7.3.4 take 8 for less.";
    /// Fragmentation: a size that no offset can say.
    OddFragment = "fragmentation: gso_size no multiple of 8", "The engine takes the next smaller multiple, since a fragment's offset counts 8 bytes (RFC 791, section 3.1); Linux cuts as the header says, and the offsets are wrong.";
    /// Fragmentation: DF, or the reserved bit.
    FragmentFlags = "fragmentation: DF is set", "The engine keeps DF and the reserved bit in all fragments: whoever set DF does not want them cut further; Linux clears both (`inet_gso_segment`).";
    /// Fragmentation: where the fragment header of IPv6 stands.
    FragmentPlace = "fragmentation: destination options", "The engine puts the fragment header before destination options, which are for the destination alone (RFC 8200, section 4.5); Linux behind them (`ip6_find_1stfragopt`), where no routing header follows.";
    /// Fragmentation: offsets behind hop-by-hop options.
    FragmentOffset = "fragmentation: hop-by-hop options", "The engine's offsets count what the fragments carry (RFC 8200, section 4.5); Linux counts the hop-by-hop or routing header of each as well (`ipv6_gso_segment`), so that nobody can put its fragments together.";
    /// Segmentation: Linux computes a checksum anew.
    HeaderDestination = "segmentation: the final destination", "The engine adjusts or completes the sum in the field, and computes others over the final destination, or refuses the packet where that is unknown; Linux computes the checksum of a datagram that it fragments, and of a packet without NEEDS_CSUM, over the addresses of the IP header (`udp6_ufo_fragment`, `tcp6_gso_segment`).";
    /// Segmentation: a hint beyond the packet.
    HintTooLong = "segmentation: hdr_len beyond the packet", "Never trusted: `hdr_len` is a hint and is not used; Linux refuses the packet.";
    /// Segmentation: no place of the checksum, behind a VLAN tag.
    TaggedWithoutChecksum = "segmentation: tagged and without NEEDS_CSUM", "The engine finds the headers behind tags by itself; Linux refuses the packet.";
    /// Segmentation: accurate ECN.
    NoEcn = "segmentation: CWR without the ECN bit", "Linux hands on accurate ECN's super-packets so, whose segments all have CWR, and the engine cuts them so; Linux that reads such a header leaves CWR on the first.";
    /// Segmentation: type or checksum place are not those of the packet.
    Contradiction = "segmentation: a header that contradicts the packet", "Never trusted: a `gso_type`, a place of the checksum or a tunnel's offset that is not the packet's is refused; Linux looks no further where the packet fits a segment, does not compare a tunnel's offsets, and of a datagram that it fragments not the checksum's place.";
    /// What follows from another difference: the runs began elsewhere, and so end elsewhere.
    Consequence = "runs began at different packets", "Follows from another difference of the same flow: both sides count length and size from their first packet.";
}

/// The kinds of all differences of a batch; the differences that have none.
#[derive(Debug, Default)]
pub struct Explained {
    /// How often each kind was met.
    pub kinds: BTreeMap<Kind, u64>,
    /// Differences that no promise explains.
    pub unexplained: Vec<Difference>,
}

/// The longest IP packet in bytes.
const LONGEST: usize = 65_535;

/// The shortest frame with a tag that Linux takes, in bytes: tag and EtherType, and two more.
const SHORTEST_TAGGED: usize = 20;

/// Extension headers of IPv6, by their numbers.
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const DESTINATION_OPTIONS: u8 = 60;

/// The least payload of a segment to which newer kernels cut TCP, in bytes.
const LEAST_SEGMENT: u16 = 8;

/// How many packets a bucket of the kernel holds (`MAX_GRO_SKBS`).
const BUCKET: usize = 8;

/// Explains all differences between both sides.
pub fn explain(sides: &Sides<'_>) -> Explained {
    let mut explained = Explained::default();
    // Frames whose group on one side began or ended for a reason that was explained.
    let mut touched = Vec::new();
    for difference in sides.differences() {
        match kind(sides, &difference, &touched) {
            Some(kind) => *explained.kinds.entry(kind).or_default() += 1,
            None => {
                explained.unexplained.push(difference);
                continue;
            }
        }
        if let Difference::KernelMerged { before, frame }
        | Difference::EngineMerged { before, frame } = difference
        {
            touched.extend([before, frame]);
        }
    }
    explained
}

fn kind(sides: &Sides<'_>, difference: &Difference, touched: &[usize]) -> Option<Kind> {
    match *difference {
        Difference::KernelMerged { before, frame } => kernel_merged(sides, before, frame, touched),
        Difference::EngineMerged { before, frame } => engine_merged(sides, before, frame, touched),
        Difference::Overtook { before, frame } => overtook(sides, before, frame),
        // The engine promises order.
        Difference::EngineOvertook { .. } => None,
        Difference::Missing { frame } => {
            let bytes = &sides.frames[frame].bytes;
            if has_other_version(bytes) {
                return Some(Kind::OtherVersion);
            }
            let tagged = matches!(bytes.get(12..14), Some([0x81, 0x00] | [0x88, 0xa8]));
            (tagged && bytes.len() < SHORTEST_TAGGED).then_some(Kind::CutTag)
        }
        Difference::Bytes { kernel, engine } => {
            other_bytes(&sides.kernel[kernel].packet, &sides.engine[engine].group.packet)
        }
        Difference::Unknown { kernel } => {
            has_other_version(&sides.kernel[kernel].packet.bytes).then_some(Kind::OtherVersion)
        }
    }
}

fn kernel_merged(
    sides: &Sides<'_>,
    before: usize,
    frame: usize,
    touched: &[usize],
) -> Option<Kind> {
    let is_partial = |frame: usize| sides.frames[frame].partial.is_some();
    if is_partial(before) != is_partial(frame) {
        return Some(Kind::ChecksumForms);
    }
    let group = kernel_group(sides, frame)?;
    if let Some(kind) = group.frames.iter().find_map(|&member| unknown_tunnel(sides, member)) {
        return Some(kind);
    }
    let is_too_long = |&member: &usize| {
        left(sides, member).is_some_and(|left| left.reason == Reason::HeaderTooLong)
    };
    if group.frames.iter().any(is_too_long) {
        return Some(Kind::LongHeaders);
    }
    if group.frames.iter().any(|&member| has_wrong_outer_length(sides, member)) {
        return Some(Kind::OuterLength);
    }
    if group.frames.iter().any(|&member| has_other_addresses(sides, member)) {
        return Some(Kind::FinalDestination);
    }
    let frames: Vec<_> = group.frames.iter().map(|&member| &sides.frames[member]).collect();
    let differences = cut::differences(&completed(&group.packet), &frames);
    let at = |member: usize| {
        let place = group.frames.iter().position(|&other| other == member);
        place.map(|place| &differences[place][..]).unwrap_or_default()
    };
    if let Some(field) = at(before).iter().chain(at(frame)).next() {
        return Some(match field {
            Field::Checksum
                if group.frames.iter().any(|&member| is_partial(member) != is_partial(before)) =>
            {
                Kind::ChecksumForms
            }
            Field::Checksum => Kind::NonCanonicalChecksum,
            Field::UrgentPointer => Kind::UrgentPointer,
            Field::Identification => Kind::Identification,
            Field::HeaderChecksum => Kind::HeaderChecksum,
            // Linux loses none of these.
            Field::Push
            | Field::Link
            | Field::Tunnel
            | Field::Ip
            | Field::Flags
            | Field::Transport
            | Field::Payload => return None,
        });
    }
    if flags(sides, frame) & ACK == 0
        && left(sides, frame).is_some_and(|left| left.reason == Reason::TcpFlags)
    {
        return Some(Kind::NoAcknowledgement);
    }
    if sides.rules.first_cwr
        && (flags(sides, before) ^ flags(sides, frame)) & CWR != 0
        && group.frames.first() == Some(&before)
    {
        return Some(Kind::FirstCongestionWindow);
    }
    let mut across = (before + 1..frame)
        .filter(|&between| !group.frames.contains(&between) && flushes(sides, between, frame))
        .peekable();
    if across.peek().is_some() {
        let split = across.any(|between| is_split(sides, between, frame));
        return Some(if split { Kind::SplitFlow } else { Kind::MergedAcross });
    }
    let (left, _) = sides.in_engine[before]?;
    let depends = [
        Reason::ByteLimit,
        Reason::PacketLimit,
        Reason::LongerSegment,
        Reason::ShortSegment,
        Reason::IpId,
        Reason::Push,
    ];
    let ended = depends.contains(&sides.engine[left].reason);
    (ended && began_elsewhere(sides, before, touched)).then_some(Kind::Consequence)
}

fn engine_merged(
    sides: &Sides<'_>,
    before: usize,
    frame: usize,
    touched: &[usize],
) -> Option<Kind> {
    if let Some(kind) = nested_apart(sides, before, frame) {
        return Some(kind);
    }
    if is_split(sides, before, frame) {
        return Some(Kind::SplitFlow);
    }
    if flags(sides, frame) & CWR != 0 && !sides.rules.cwr {
        return Some(Kind::CongestionWindow);
    }
    if let Some(kind) = not_in_kernel(sides, before, frame) {
        return Some(kind);
    }
    if !sides.rules.fixed_ids && repeats_id(sides, before, frame) {
        return Some(Kind::FixedIdentification);
    }
    if evicted(sides, before, frame) {
        return Some(Kind::Evicted);
    }
    let closed = is_closed(sides, kernel_group(sides, before)?, before, frame);
    (closed && began_elsewhere(sides, before, touched)).then_some(Kind::Consequence)
}

/// Why the engine and the kernel do not make the same segments of a packet; `None` if no promise
/// explains it. The kernel refuses by `None`.
pub fn segmentation(
    packet: &Whole,
    kernel: Option<&[Vec<u8>]>,
    engine: &Result<Vec<Vec<u8>>, SplitError>,
) -> Option<Kind> {
    let header = packet.header;
    match (kernel, engine) {
        (None, Ok(_)) if usize::from(header.hdr_len) > packet.bytes.len() => {
            Some(Kind::HintTooLong)
        }
        (None, Ok(segments)) if segments.len() == 1 => Some(Kind::FitsSegment),
        (None, Ok(_)) if header.flags == 0 && packet.bytes.get(12..14) == Some(&[0x81, 0x00]) => {
            Some(Kind::TaggedWithoutChecksum)
        }
        (
            Some([_]),
            Err(SplitError::Header(
                VirtioError::ChecksumStart { .. }
                | VirtioError::ChecksumOffset { .. }
                | VirtioError::Protocol { .. },
            )),
        ) => Some(Kind::Contradiction),
        (
            Some(_),
            Err(SplitError::Header(
                VirtioError::OuterTransport { .. } | VirtioError::InnerNetwork { .. },
            )),
        ) => Some(Kind::Contradiction),
        (Some(theirs), _) if header.gso_type == gso_type::UDP => {
            fragmentation(packet, theirs, engine)
        }
        (
            Some(theirs),
            Ok(_) | Err(SplitError::Segment(SegmentError::Headers(Refusal::FinalDestination))),
        ) if header.flags == 0
            && cut_for_header(packet, engine).is_some_and(|seeded| is_cut_as(&seeded, theirs)) =>
        {
            Some(Kind::HeaderDestination)
        }
        (Some(theirs), Ok(_))
            if cut_by(packet, packet.header).is_some_and(|ours| ours == theirs) =>
        {
            Some(Kind::NoEcn)
        }
        _ => is_cut_at_least(packet, kernel).then_some(Kind::SmallSegment),
    }
}

/// The packet as Linux takes it where it computes the checksum anew: over the addresses of the IP
/// header. `None` if that is how the engine takes it.
fn cut_for_header(packet: &Whole, engine: &Result<Vec<Vec<u8>>, SplitError>) -> Option<Whole> {
    // What a checksum without a seed covers, the engine tells by the final destination alone. The
    // field may hold the sum of the header's addresses all the same.
    let unknown = matches!(
        engine,
        Err(SplitError::Segment(SegmentError::Headers(Refusal::FinalDestination)))
    );
    let named = || {
        let header = VnetHeader { flags: virtio_flags::NEEDS_CSUM, ..packet.header };
        (unknown && packet.header.flags == 0).then(|| Whole { header, ..packet.clone() })
    };
    packet.seeded_by_header().or_else(named)
}

/// Does the engine make these segments of a packet, whichever of them CWR is left on?
fn is_cut_as(packet: &Whole, theirs: &[Vec<u8>]) -> bool {
    let ways = [packet.cut().ok(), cut_by(packet, packet.header)];
    ways.iter().flatten().any(|ours| ours == theirs)
}

/// What the engine makes of a packet with this header, and with CWR on the first segment alone.
fn cut_by(packet: &Whole, header: VnetHeader) -> Option<Vec<Vec<u8>>> {
    let congested =
        check::tcp_fields(&packet.bytes, false).is_some_and(|fields| fields.flags & CWR != 0);
    let header = VnetHeader {
        gso_type: header.gso_type | if congested { gso_type::ECN } else { 0 },
        ..header
    };
    Whole { header, bytes: packet.bytes.clone(), ..*packet }.cut().ok()
}

/// Why the engine and the kernel do not make the same fragments of a datagram.
fn fragmentation(
    packet: &Whole,
    kernel: &[Vec<u8>],
    engine: &Result<Vec<Vec<u8>>, SplitError>,
) -> Option<Kind> {
    let size = packet.header.gso_size;
    // What the engine makes of the packet if its seed is that of the addresses in the IP header.
    let seeded = cut_for_header(packet, engine);
    let cut = seeded.as_ref().map(|seeded| seeded.cut().map(without_fragment_id));
    if cut.as_ref().is_some_and(|cut| cut.as_deref() == Ok(kernel)) {
        return Some(Kind::HeaderDestination);
    }
    let (packet, engine) = (seeded.as_ref().unwrap_or(packet), cut.as_ref().unwrap_or(engine));
    let ours = match engine {
        Ok(ours) => ours,
        Err(SplitError::Header(
            VirtioError::ChecksumStart { .. }
            | VirtioError::ChecksumOffset { .. }
            | VirtioError::Protocol { .. },
        )) => {
            return Some(Kind::Contradiction);
        }
        Err(SplitError::Segment(SegmentError::SegmentTooSmall { needed, .. }))
            if size < 8 && *needed == 8 =>
        {
            return Some(Kind::OddFragment);
        }
        // The options and the UDP header, of 8 bytes, must be in the first.
        Err(SplitError::Segment(SegmentError::SegmentTooSmall { needed, .. }))
            if packet.extension() == Some((DESTINATION_OPTIONS, needed - 8)) =>
        {
            return Some(Kind::FragmentPlace);
        }
        Err(_) => return None,
    };
    if !size.is_multiple_of(8) {
        let header = VnetHeader { gso_size: size / 8 * 8, ..packet.header };
        let cut = Whole { header, bytes: packet.bytes.clone(), ..*packet }.cut().ok()?;
        return (without_fragment_id(cut) == *ours).then_some(Kind::OddFragment);
    }
    match packet.extension() {
        None => {
            let plain: Option<Vec<_>> = ours.iter().map(|frame| without_flags(frame)).collect();
            (plain? == kernel).then_some(Kind::FragmentFlags)
        }
        // The options count as payload to the engine.
        Some((DESTINATION_OPTIONS, length)) => (joined_fragments(ours)?.get(length..)?
            == joined_fragments(kernel)?)
        .then_some(Kind::FragmentPlace),
        Some((HOP_BY_HOP | ROUTING, length)) => {
            let (mut ours, mut theirs) = (ours.clone(), kernel.to_vec());
            let offsets = |frames: &mut Vec<Vec<u8>>| {
                frames.iter_mut().map(|frame| take_offset(frame)).collect::<Option<Vec<_>>>()
            };
            let (our_offsets, their_offsets) = (offsets(&mut ours)?, offsets(&mut theirs)?);
            // The header more with each fragment before; the field wraps.
            let counted =
                our_offsets.iter().zip(&their_offsets).zip(0..).all(|((ours, theirs), before)| {
                    let expected = ours + length * before;
                    expected as u16 == *theirs as u16
                });
            (counted && ours == theirs).then_some(Kind::FragmentOffset)
        }
        Some(_) => None,
    }
}

/// Did the kernel take the least size of TCP's segments for a smaller one?
fn is_cut_at_least(packet: &Whole, kernel: Option<&[Vec<u8>]>) -> bool {
    let tcp = matches!(
        packet.header.gso_type & !(gso_type::ECN | gso_type::UDP_TUNNEL),
        gso_type::TCPV4 | gso_type::TCPV6
    );
    if !tcp || !(1..LEAST_SEGMENT).contains(&packet.header.gso_size) {
        return false;
    }
    let header = VnetHeader { gso_size: LEAST_SEGMENT, ..packet.header };
    match (kernel, cut_by(packet, header)) {
        (Some(theirs), Some(ours)) => theirs == ours,
        (None, Some(ours)) => ours.len() == 1,
        _ => false,
    }
}

/// Why both sides made other bytes of the same frames, or say otherwise how to cut them: a tunnel's
/// checksum, or ECN, and nothing else.
fn other_bytes(kernel: &Packet, engine: &Packet) -> Option<Kind> {
    let layout = wire::parse_datagram(&engine.bytes, engine.bytes.len(), Layer::Ethernet).ok()?;
    let congested =
        check::tcp_fields(&engine.bytes, false).is_some_and(|fields| fields.flags & CWR != 0);
    let with_ecn = kernel.cut.map(|cut| Cut { kind: cut.kind | gso_type::ECN, ..cut });
    if congested
        && kernel.bytes == engine.bytes
        && kernel.partial == engine.partial
        && with_ecn == engine.cut
    {
        return Some(Kind::AllCongestionWindow);
    }
    let key = check::flow_key(&engine.bytes, false);
    let is_partial = engine.partial.is_some();
    if key.is_some_and(|key| covers_other_addresses(&engine.bytes, &layout, &key, is_partial)) {
        return other_destination(kernel, engine, &layout);
    }
    if layout.nested.is_some() {
        return other_nested(kernel, engine);
    }
    let outer = layout.outer?;
    let transport = usize::from(outer.transport);
    let (kind, checksum) = match outer.tunnel {
        Tunnel::Gre => (Kind::GreChecksum, transport + 4),
        Tunnel::Vxlan | Tunnel::Geneve => (Kind::OuterChecksum, transport + 6),
        _ => return None,
    };
    let checksum = checksum..checksum + 2;
    let mut bytes = kernel.bytes.clone();
    bytes.get_mut(checksum.clone())?.copy_from_slice(engine.bytes.get(checksum)?);
    let right = check::frame(
        &engine.bytes,
        &Expect { partial: engine.partial.is_some(), ..Expect::default() },
    )
    .is_ok();
    (right && bytes == engine.bytes && kernel.cut == engine.cut && kernel.partial == engine.partial)
        .then_some(kind)
}

/// The same of packets whose checksum covers other addresses than those of the IP header: the
/// checksums, of tunnels too, and nothing else.
fn other_destination(kernel: &Packet, engine: &Packet, layout: &Layout) -> Option<Kind> {
    let mut bytes = kernel.bytes.clone();
    for place in layout
        .outers()
        .filter_map(|outer| outer.checksum(&engine.bytes))
        .chain([usize::from(layout.checksum())])
    {
        bytes.get_mut(place..place + 2)?.copy_from_slice(engine.bytes.get(place..place + 2)?);
    }
    let right = check::frame(
        &engine.bytes,
        &Expect { partial: engine.partial.is_some(), ..Expect::default() },
    )
    .is_ok();
    (right && bytes == engine.bytes && kernel.cut == engine.cut && kernel.partial == engine.partial)
        .then_some(Kind::FinalDestination)
}

/// The same of packets in two tunnels: lengths and checksum of the second tunnel, and checksum of
/// the first.
fn other_nested(kernel: &Packet, engine: &Packet) -> Option<Kind> {
    let outer = Hint::of(&kernel.bytes)?.outer;
    let (_, _, transport) = second_tunnel(&kernel.bytes)?;
    let mut packet = completed(kernel);
    for checksum in [outer + 6, transport + 6] {
        let ours = engine.bytes.get(checksum..checksum + 2)?;
        let theirs = packet.bytes.get_mut(checksum..checksum + 2)?;
        if (ours == [0, 0]) != (theirs == [0, 0]) {
            return None;
        }
        theirs.copy_from_slice(ours);
    }
    let right = check::frame(
        &engine.bytes,
        &Expect { partial: engine.partial.is_some(), ..Expect::default() },
    )
    .is_ok();
    (right && packet == *engine).then_some(Kind::NestedLengths)
}

/// Does an IPv6 header behind Ethernet not begin with a 6? Linux does not look
/// (`ipv6_gro_receive`).
fn has_other_version(frame: &[u8]) -> bool {
    matches!(frame.get(12..15), Some([0x86, 0xdd, first]) if first >> 4 != 6)
}

/// What the kernel has no GRO for, where it left both frames alone.
fn not_in_kernel(sides: &Sides<'_>, before: usize, frame: usize) -> Option<Kind> {
    let alone =
        |frame: usize| kernel_group(sides, frame).is_some_and(|group| group.frames.len() == 1);
    if !alone(before) || !alone(frame) {
        return None;
    }
    let layout = layout(sides, frame)?;
    if layout.protocol == Protocol::Dccp {
        return Some(Kind::Dccp);
    }
    if has_other_addresses(sides, frame) {
        return Some(Kind::FinalDestination);
    }
    let flow = sides.known[frame].flow.as_ref()?;
    let tags = || flow.vlans.iter().chain(flow.tunnels.iter().flat_map(|tunnel| &tunnel.vlans));
    // Linux has GRO for no other tag than these, whatever it was built with.
    let unseen_tag =
        tags().any(|(protocol, _)| !sides.rules.vlans || !matches!(protocol, 0x8100 | 0x88a8));
    let unseen = flow.pppoe.is_some() || !flow.mpls.is_empty() || unseen_tag;
    unseen.then_some(Kind::Tags)
}

/// Returns whether a checksum of this frame covers other addresses than those of its IP header.
fn has_other_addresses(sides: &Sides<'_>, frame: usize) -> bool {
    let Input { bytes, partial } = &sides.frames[frame];
    let key = sides.known[frame].flow.as_ref();
    layout(sides, frame)
        .zip(key)
        .is_some_and(|(layout, key)| covers_other_addresses(bytes, &layout, key, partial.is_some()))
}

/// Returns whether a checksum covers other addresses than those of its IP header: a final
/// destination or a home address. Also true where the engine cannot tell which addresses it covers.
///
/// `key` has the addresses of the IP headers. `is_partial`: the innermost checksum is partial.
fn covers_other_addresses(bytes: &[u8], layout: &Layout, key: &FlowKey, is_partial: bool) -> bool {
    if layout.refusal == Some(Refusal::FinalDestination) {
        return true;
    }
    // The checksum of GRE covers no addresses.
    let outers = layout.outers().map(|outer| {
        let has_checksum = outer.tunnel.is_udp() && outer.checksum(bytes).is_some();
        (outer.network, outer.version, has_checksum)
    });
    let at = usize::from(layout.checksum());
    let has_checksum =
        layout.protocol != Protocol::Udp || is_partial || bytes.get(at..at + 2) != Some(&[0, 0]);
    let headers = outers.chain([(layout.network, layout.version, has_checksum)]);
    let addresses = key
        .tunnels
        .iter()
        .map(|tunnel| (tunnel.source, tunnel.destination))
        .chain(key.source.zip(key.destination));
    headers.zip(addresses).any(|((network, version, has_checksum), addresses)| {
        let header = bytes.get(usize::from(network)..).unwrap_or_default();
        has_checksum && wire::checksum_addresses(header, version) != Some(addresses)
    })
}

/// Where the engine finds the headers of a frame.
fn layout(sides: &Sides<'_>, frame: usize) -> Option<Layout> {
    let bytes = &sides.frames[frame].bytes;
    wire::parse_datagram(bytes, bytes.len(), Layer::Ethernet).ok()
}

/// The flags of a TCP segment; 0 for others.
fn flags(sides: &Sides<'_>, frame: usize) -> u16 {
    check::tcp_fields(&sides.frames[frame].bytes, false).map_or(0, |fields| fields.flags)
}

/// The identifications of a frame's IPv4 headers, the innermost first, and whether it must not be
/// fragmented.
fn ids(sides: &Sides<'_>, frame: usize) -> Vec<(u16, bool)> {
    let bytes = &sides.frames[frame].bytes;
    let Some(layout) = layout(sides, frame) else { return Vec::new() };
    let headers = layout
        .outers()
        .map(|outer| (outer.network, outer.version))
        .chain([(layout.network, layout.version)])
        .rev();
    let at = headers
        .filter(|(_, version)| *version == IpVersion::V4)
        .map(|(network, _)| usize::from(network) + 4);
    at.map(|at| (u16::from_be_bytes([bytes[at], bytes[at + 1]]), bytes[at + 2] & 0x40 != 0))
        .collect()
}

/// Have both an IPv4 header with the same identification, and without DF or beside one whose
/// identifications count up?
fn repeats_id(sides: &Sides<'_>, before: usize, frame: usize) -> bool {
    let (ids, next) = (ids(sides, before), ids(sides, frame));
    let repeated = |&((id, fixed), (next, _)): &((u16, bool), (u16, bool))| id == next && !fixed;
    let same = ids.iter().zip(&next).filter(|((id, _), (next, _))| id == next).count();
    ids.iter().copied().zip(next.iter().copied()).any(|pair| repeated(&pair))
        || (1..ids.len()).contains(&same)
}

/// Did the kernel have to give up the packet that ends with `before`, so that it could hold others?
/// Then all that it held when `frame` came left after it: a bucket full.
fn evicted(sides: &Sides<'_>, before: usize, frame: usize) -> bool {
    let Some((group, _)) = sides.in_kernel[before] else { return false };
    let held = |other: &&Group| other.frames.first().is_some_and(|&first| first < frame);
    sides.kernel[group + 1..].iter().filter(held).count() >= BUCKET - 1
}

/// Must the kernel's packet that ends with `last` leave before `next` by the rules that both sides
/// share?
fn is_closed(sides: &Sides<'_>, group: &Group, last: usize, next: usize) -> bool {
    let payload = |frame: usize| sides.known[frame].payload.len();
    let first = group.frames.first().map_or(0, |&first| payload(first));
    let flags = group.frames.iter().fold(0, |all, &member| all | flags(sides, member));
    let pushed = flags & (PSH | FIN) != 0;
    // Identifications count up from the first, or are all alike.
    let firsts = group.frames.first().map(|&first| ids(sides, first)).unwrap_or_default();
    let counted = group.frames.len() as u16;
    let ids = ids(sides, next)
        .iter()
        .zip(firsts)
        .all(|(&(next, _), (first, _))| next == first || next == first.wrapping_add(counted));
    group.packet.bytes.len() - 14 + payload(next) > LONGEST
        || payload(last) < first
        || payload(next) > first
        || pushed
        || !ids
}

/// Did the runs that `frame` is in begin at different frames, for a reason that was explained?
fn began_elsewhere(sides: &Sides<'_>, frame: usize, touched: &[usize]) -> bool {
    let (Some(kernel), Some((left, _))) = (kernel_group(sides, frame), sides.in_engine[frame])
    else {
        return false;
    };
    let engine = &sides.engine[left].group;
    kernel.frames.first() != engine.frames.first()
        && kernel.frames.iter().chain(&engine.frames).any(|member| touched.contains(member))
}

/// A packet that leaves before one that came earlier: the kernel had refused it.
fn overtook(sides: &Sides<'_>, before: usize, frame: usize) -> Option<Kind> {
    if is_split(sides, before, frame) {
        return Some(Kind::SplitFlow);
    }
    if let Some(kind) = [before, frame].into_iter().find_map(|frame| unknown_tunnel(sides, frame)) {
        return Some(kind);
    }
    let group = kernel_group(sides, frame)?;
    let alone = group.frames.len() == 1;
    if alone && is_beyond_hint(sides, frame) {
        return Some(Kind::NestedChecksum);
    }
    let bytes = &sides.frames[frame].bytes;
    let expect = Expect { partial: sides.frames[frame].partial.is_some(), ..Expect::default() };
    if alone && has_other_addresses(sides, frame) {
        return Some(Kind::FinalDestination);
    }
    let (left, _) = sides.in_engine[frame]?;
    // The engine verifies checksums only where a second packet comes; its reason is then another.
    let refused = check::frame(bytes, &expect).is_err() || was_refused(sides.engine[left].reason);
    (alone && refused).then_some(Kind::Overtaken)
}

/// Did the engine meet a tunnel header that it does not know, or a false hint and nothing else?
fn unknown_tunnel(sides: &Sides<'_>, frame: usize) -> Option<Kind> {
    if left(sides, frame)?.reason != Reason::Tunnel {
        return None;
    }
    let without = nested::without_hint(&sides.frames[frame].bytes);
    let known =
        without.and_then(|bytes| wire::parse_datagram(&bytes, bytes.len(), Layer::Ethernet).ok());
    Some(if known.is_some_and(|layout| layout.refusal.is_none()) {
        Kind::FalseHint
    } else {
        Kind::UnknownTunnel
    })
}

/// Why the kernel left a frame in two tunnels alone.
fn nested_apart(sides: &Sides<'_>, before: usize, frame: usize) -> Option<Kind> {
    layout(sides, frame)?.nested?;
    let alone =
        |frame: usize| kernel_group(sides, frame).is_some_and(|group| group.frames.len() == 1);
    let [first, second] = [before, frame].map(|frame| &sides.frames[frame].bytes);
    let (Some(hint), Some(next)) = (Hint::of(first), Hint::of(second)) else {
        return (alone(before) && alone(frame)).then_some(Kind::NestedWithoutHint);
    };
    if is_beyond_hint(sides, frame) {
        return (alone(before) && alone(frame)).then_some(Kind::NestedChecksum);
    }
    let differ = hint.headers(first) != next.headers(second);
    (differ || [before, frame].into_iter().any(|frame| is_flushed(sides, frame)))
        .then_some(Kind::NestedHeaders)
}

/// Did the kernel let a frame pass since the second tunnel's headers differ from those of another
/// that it held in the same tunnels, of whatever flow inside (`geneve_hdr_match`)? That one left
/// just before, or is held still.
fn is_flushed(sides: &Sides<'_>, frame: usize) -> bool {
    let Some((group, _)) =
        sides.in_kernel[frame].filter(|&(group, _)| sides.kernel[group].frames.len() == 1)
    else {
        return false;
    };
    let bytes = |frame: usize| &sides.frames[frame].bytes[..];
    let Some(hint) = Hint::of(bytes(frame)) else { return false };
    let differs = |&earlier: &usize| {
        Hint::of(bytes(earlier)).is_some_and(|other| {
            let (tunnel, earlier_tunnel) =
                (hint.geneve(bytes(frame)), other.geneve(bytes(earlier)));
            tunnel == earlier_tunnel && other.headers(bytes(earlier)) != hint.headers(bytes(frame))
        })
    };
    let tunnels = |frame: usize| {
        let tunnels = sides.known[frame].flow.iter().flat_map(|flow| &flow.tunnels);
        tunnels.map(|tunnel| (tunnel.source, tunnel.destination, tunnel.ports)).collect::<Vec<_>>()
    };
    let own = tunnels(frame);
    let was_held = |&earlier: &usize| {
        let left =
            sides.in_kernel[earlier].is_some_and(|(other, _)| other + 1 == group || other > group);
        left && tunnels(earlier) == own
    };
    (0..frame).filter(was_held).any(|earlier| differs(&earlier))
}

/// Does Linux not use the hint of a frame, since it cannot verify the second tunnel's checksum?
fn is_beyond_hint(sides: &Sides<'_>, frame: usize) -> bool {
    let frame = &sides.frames[frame];
    frame.partial.is_none()
        && Hint::of(&frame.bytes).is_some_and(|hint| hint.has_only_nested_checksum(&frame.bytes))
}

/// Is the length of the outer UDP header of a tunnel wrong?
fn has_wrong_outer_length(sides: &Sides<'_>, frame: usize) -> bool {
    let in_tunnel = sides.known[frame]
        .flow
        .as_ref()
        .is_some_and(|flow| flow.tunnels.iter().any(|tunnel| tunnel.ports.is_some()));
    in_tunnel && left(sides, frame).is_some_and(|left| left.reason == Reason::UdpLength)
}

/// Is this a reason of packets that were never held?
fn was_refused(reason: Reason) -> bool {
    (reason as usize) < Reason::Push as usize
}

/// Must the engine let what it holds of `frame`'s flow leave before `between`? It is of the same
/// flow, or may be: it has no ports, and the addresses are the same.
fn flushes(sides: &Sides<'_>, between: usize, frame: usize) -> bool {
    let flow = |frame: usize| {
        sides.known[frame]
            .flow
            .as_ref()
            .map(|flow| (flow.source, flow.destination, flow.protocol, flow.ports))
    };
    if flow(between).is_some() && flow(between) == flow(frame) {
        return true;
    }
    let refused = left(sides, between).is_some_and(|left| was_refused(left.reason));
    // Behind a damaged header no parser can be sure of the addresses, but there they are.
    refused
        && pairs(sides, frame).iter().any(|pair| {
            let bytes = &sides.frames[between].bytes;
            bytes[..bytes.len().min(MAX_HEADER)].windows(pair.len()).any(|window| window == *pair)
        })
}

/// The addresses of a frame's IP headers, as they lie there.
fn pairs<'s>(sides: &'s Sides<'_>, frame: usize) -> Vec<&'s [u8]> {
    let bytes = &sides.frames[frame].bytes;
    let Some(layout) = layout(sides, frame) else { return Vec::new() };
    let headers = layout
        .outers()
        .map(|outer| (outer.network, outer.version))
        .chain([(layout.network, layout.version)])
        .rev();
    let pair = |(network, version): (u16, IpVersion)| match version {
        IpVersion::V4 => bytes.get(usize::from(network) + 12..usize::from(network) + 20),
        IpVersion::V6 => bytes.get(usize::from(network) + 8..usize::from(network) + 40),
    };
    headers.filter_map(pair).collect()
}

/// Does Linux take packets of one connection for two flows?
fn is_split(sides: &Sides<'_>, frame: usize, other: usize) -> bool {
    let gre = gre_flags(sides, frame)
        .is_some_and(|flags| gre_flags(sides, other).is_some_and(|other| other != flags));
    gre || matches!((kernel_flow(sides, frame), kernel_flow(sides, other)), (Some(flow), Some(other)) if flow != other)
}

/// What Linux tells the flows in GRE apart by (where the engine knows no tunnel, behind Ethernet
/// and IP without options): flags and protocol, and of a packet with a key the word behind them,
/// even if it is the checksum (`gre_gro_receive`).
fn gre_flags<'s>(sides: &'s Sides<'_>, frame: usize) -> Option<&'s [u8]> {
    let bytes = &sides.frames[frame].bytes;
    let known = layout(sides, frame)
        .and_then(|layout| layout.outer)
        .filter(|outer| outer.tunnel == Tunnel::Gre);
    let at = match (known, bytes.get(12..14)?, bytes.get(23)?, bytes.get(20)?) {
        (Some(outer), ..) => usize::from(outer.transport),
        (None, [0x08, 0x00], 47, _) => 34,
        (None, [0x86, 0xdd], _, 47) => 54,
        _ => return None,
    };
    let header = bytes.get(at..)?;
    let checksum_and_key = header.first()? & 0xa0 == 0xa0;
    header.get(..if checksum_and_key { 8 } else { 4 })
}

/// What Linux tells the flows of a connection apart by: flow labels, the chain of extension
/// headers, whole VLAN tags, and of VXLAN and Geneve all but the length.
fn kernel_flow(sides: &Sides<'_>, frame: usize) -> Option<Vec<u8>> {
    let bytes = &sides.frames[frame].bytes;
    let layout = layout(sides, frame)?;
    let ip = |network: u16, version: IpVersion, end: u16| {
        let (network, end) = (usize::from(network), usize::from(end));
        match version {
            IpVersion::V4 => Vec::new(),
            // All but traffic class, length and hop limit.
            IpVersion::V6 => [
                &[bytes[network + 1] & 0xf, bytes[network + 6]],
                &bytes[network + 2..network + 4],
                &bytes[network + 40..end],
            ]
            .concat(),
        }
    };
    let mut flow = ip(layout.network, layout.version, layout.transport);
    // The whole tag, with priority and drop eligibility.
    let key = sides.known[frame].flow.as_ref()?;
    let tags = key.vlans.iter().chain(key.tunnels.iter().flat_map(|tunnel| &tunnel.vlans));
    flow.extend(tags.flat_map(|&(_, control)| control.to_be_bytes()));
    if let Some(outer) = layout.outer {
        flow.extend(ip(outer.network, outer.version, outer.transport));
        if outer.tunnel.is_udp() {
            let inside = layout.nested.map_or(layout.network, |nested| nested.network);
            let udp = bytes.get(usize::from(outer.transport)..usize::from(inside))?;
            // The ports, whether there is a checksum, and the tunnel's header with its options.
            flow.extend([&udp[..4], &[u8::from(udp[6..8] == [0, 0])], &udp[8..]].concat());
        }
    }
    if let Some(nested) = layout.nested {
        flow.extend(ip(nested.network, nested.version, nested.transport));
        // Ports and checksum; what else differs ends a merge (`geneve_hdr_match`).
        let udp = bytes.get(usize::from(nested.transport)..usize::from(layout.network))?;
        flow.extend([&udp[..4], &udp[6..8]].concat());
    }
    Some(flow)
}

fn left<'s>(sides: &'s Sides<'_>, frame: usize) -> Option<&'s Left> {
    sides.in_engine[frame].map(|(left, _)| &sides.engine[left])
}

fn kernel_group<'s>(sides: &'s Sides<'_>, frame: usize) -> Option<&'s Group> {
    sides.in_kernel[frame].map(|(group, _)| &sides.kernel[group])
}
