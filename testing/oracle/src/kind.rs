//! The kinds of differences between Linux and the engine, each with the property that the engine
//! promises and that explains the difference, such as the order of packets.

use std::collections::BTreeMap;

use superpacket::virtio::{VirtioError, flags as virtio_flags, gso_type};
use superpacket::wire::{self, IpVersion, Layout, Level, MAX_HEADER, Protocol, Refusal, Tunnel};
use superpacket::{Layer, Reason, SegmentError, SplitError};
use superpacket_lab::VnetHeader;
use superpacket_traffic::check::{self, Expect, FlowKey};
use superpacket_traffic::frame::{ACK, CWR, FIN, PSH};

use crate::compare::{Difference, Sides, with_correct_lengths};
use crate::cut::{self, CutField};
use crate::engine::EnginePacket;
use crate::frames::{Group, GsoFields, InputFrame, ResultPacket};
use crate::hint::Hint;
use crate::nested::{self, second_tunnel};
use crate::segment::{GsoInput, joined_fragments, take_offset, without_flags, without_fragment_id};

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $promise:literal;)*) => {
        /// A kind of difference between Linux and the engine.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind {
            $($(#[$doc])* $name,)*
        }

        impl Kind {
            /// All kinds of differences, in the order of the report.
            pub const ALL: &'static [Kind] = &[$(Kind::$name,)*];

            /// Returns a short name for the kind, used in reports.
            pub const fn name(self) -> &'static str {
                match self { $(Kind::$name => $text,)* }
            }

            /// Returns the property that the engine promises and that explains the difference, and
            /// how the engine and Linux behave.
            pub const fn promise(self) -> &'static str {
                match self { $(Kind::$name => $promise,)* }
            }
        }
    };
}

kinds! {
    /// The kernel merged packets with complete checksums and packets with partial ones.
    ChecksumForms = "full and partial checksums mix", "Reversible: packets merge only with those of the same form.";
    /// The kernel merged a packet whose checksum is 0xFFFF where senders compute 0x0000. Both are
    /// valid.
    NonCanonicalChecksum = "non-canonical checksum", "Reversible: 0xFFFF instead of 0x0000 could not be restored, so the packet passes.";
    /// The kernel merged packets with different urgent pointers.
    UrgentPointer = "urgent pointer is lost", "Reversible: packets merge only with equal urgent pointers; Linux keeps the first one's.";
    /// The kernel merged packets whose IPv4 identifications are neither equal nor count up.
    Identification = "identifications are lost", "Reversible: packets merge only if their identifications can be restored from the super-packet. A virtio header loses those that stay the same.";
    /// The kernel merged a packet whose IPv4 header checksum is 0xFFFF where senders compute
    /// 0x0000. Both are valid.
    HeaderChecksum = "non-canonical header checksum", "Reversible: 0xFFFF instead of 0x0000 could not be restored, so the packet passes.";
    /// The kernel merged TCP segments without the ACK flag.
    NoAcknowledgement = "segments without ACK merge", "Untouched when unknown: no connection sends data without ACK (RFC 9293, section 3.10.7.4), so the segment passes.";
    /// The kernel merged packets with a tunnel header that the engine does not know.
    UnknownTunnel = "unknown tunnel headers", "Untouched when unknown: tunnel headers with reserved bits pass, in the order of their flow.";
    /// The kernel merged packets in two tunnels because of a GRO hint that contradicts the headers.
    FalseHint = "a false GRO hint", "Never trusted: the engine compares the hint with the headers. If it contradicts them, or describes a third tunnel, the packet passes. Linux reads IP and UDP at the hint's offsets, and compares all headers.";
    /// The kernel merged packets with more bytes of headers than the engine reads.
    LongHeaders = "more than 256 bytes of headers", "Bounded: the engine reads the first 256 bytes of a frame. A frame with longer headers passes, such as two tunnels over IPv6 with options behind two VLAN tags.";
    /// The kernel merged packets whose outer UDP length is wrong.
    OuterLength = "wrong outer UDP length", "Reversible: a packet in VXLAN or Geneve with a wrong outer UDP length passes. Linux ignores this length, and writes a correct one.";
    /// The kernel merged packets of a flow although it had received another packet of the flow
    /// between them, which it did not merge.
    MergedAcross = "merges across a refused packet", "Order: a packet that cannot merge first flushes its own flow, so later packets cannot join earlier ones.";
    /// A packet that the kernel could not merge left before held packets of its flow.
    Overtaken = "a refused packet overtakes", "Order: packets of a flow leave in the order of their arrival.";
    /// The kernel treats packets of one connection as different flows.
    SplitFlow = "a connection is two flows", "Order: a change of flow label, extension headers, VLAN priority or GRE flags ends a merge but not the flow. The same is true of source port, options and presence of a checksum in VXLAN and Geneve. Linux treats the packets as another flow (also if the GRE checksum differs, which it takes for the key), and holds one flow while the other leaves.";
    /// The engine merged TCP segments with CWR, which the kernel does not merge.
    CongestionWindow = "CWR ends a merge", "The engine merges packets with equal flags, as Linux 7.3 does. Linux 6.18 flushes at CWR.";
    /// The kernel merged TCP segments without CWR behind one with CWR.
    FirstCongestionWindow = "CWR on the first packet alone", "The engine merges packets with equal flags, as Linux 6.18 does. Linux 6.12 merges packets without CWR behind one with it, which is how a sender's super-packet begins.";
    /// The kernel and the engine merged TCP segments that all have CWR, and describe the result
    /// differently.
    AllCongestionWindow = "CWR on all packets", "A virtio header cannot express it, so the engine makes no header, and segments such packets itself. The comparison uses the header for CWR on the first segment, which has ECN; Linux 7.3's header does not.";
    /// The engine merged packets whose IPv4 identifications stay the same.
    FixedIdentification = "identifications stay the same", "The engine merges and restores them, separately for each header, as Linux 6.18 does. Linux 6.12 merges them only with DF, and not if those of another header count up.";
    /// The engine merged DCCP packets.
    Dccp = "DCCP", "The engine merges DCCP. No version of Linux does.";
    /// The engine merged packets behind VLAN tags, PPPoE or MPLS.
    Tags = "VLAN tags, PPPoE or MPLS", "The engine merges behind any of them, also in a tunnel. Linux has no GRO for PPPoE and MPLS, and none for VLAN tags if built without `CONFIG_VLAN_8021Q`.";
    /// The engine merged packets in two tunnels that have no GRO hint.
    NestedWithoutHint = "two tunnels without a GRO hint", "The engine finds the second tunnel by its port. Linux enters it only if the first is Geneve and a hint gives the offsets of its headers (since 7.0).";
    /// The engine merged packets whose second tunnel has different lengths or identifications.
    NestedHeaders = "headers of the second tunnel differ", "The engine merges them if lengths and identifications can be restored, as in other headers. Linux requires equal bytes, so identifications must not count up, and the last packet must not be shorter. While it holds a packet, others in the same two tunnels with different headers pass (`geneve_hdr_match`).";
    /// The engine merged packets with a checksum in the second tunnel only.
    NestedChecksum = "a checksum in the second tunnel alone", "The engine verifies this checksum. Linux ignores the hint then (`geneve_opt_gro_hint_validate_csum`).";
    /// The kernel and the engine wrote different lengths or checksums into the second tunnel's
    /// headers of a merged packet.
    NestedLengths = "lengths in the second tunnel of a merged packet", "The engine writes the lengths of the merged packet, and correct checksums. Linux leaves the first packet's until its Geneve device removes the first tunnel (`geneve_post_decap_hint`).";
    /// The kernel and the engine wrote different GRE checksums into a merged packet.
    GreChecksum = "GRE checksum of a merged packet", "The engine writes the checksum of the merged packet. Linux leaves the first packet's, and computes new ones when it segments.";
    /// The kernel and the engine wrote different outer UDP checksums into a merged packet in VXLAN
    /// or Geneve.
    OuterChecksum = "outer UDP checksum of a merged packet", "Without a framing, the engine writes the checksum that is valid once the inner one is (local checksum offload). Linux writes the sum of the pseudo-header, as the engine does behind a header of 24 bytes, and computes the checksum when it segments.";
    /// A checksum covers other addresses than those in the IP header, such as the final destination
    /// of a source route.
    FinalDestination = "a checksum over the final destination", "The engine verifies and writes checksums over the final destination of a routing header and over a home address (RFC 8200, section 8.1; RFC 6275). Packets for which these are unknown pass. Linux's GRO uses the addresses of the IP header: it refuses valid packets, and writes a wrong sum to partial checksums.";
    /// The kernel merged or dropped packets with the EtherType of IPv6 and another IP version.
    OtherVersion = "an IPv6 header that says another version", "Untouched when unknown: the packet passes as malformed. Linux merges two that are alike, and `ipv6_rcv` drops them.";
    /// The kernel dropped a frame that ends within its VLAN tag.
    CutTag = "a frame that ends within its tag", "Conserved: the frame passes, and is counted as truncated. Linux drops it (`skb_vlan_untag`).";
    /// The kernel flushed a packet because a bucket of its flow table was full.
    Evicted = "the kernel's table is full", "Bounded: the engine holds 1,024 flows by a keyed hash. Linux holds 8 flows in each of 8 buckets, and all packets without a device's hash share one bucket.";
    /// Segmentation: the kernel dropped a packet whose payload fits into one segment.
    FitsSegment = "segmentation: the payload fits a segment", "The engine passes the packet whole, with its checksum completed. Linux drops it if TCP options make it longer than `gso_size` (`tcp_gso_segment`).";
    /// Segmentation: `gso_size` is below 8, which some kernels raise to 8.
    SmallSegment = "segmentation: gso_size below 8", "The engine and Linux 6.18.44 segment TCP as the header says. Linux 6.12.117 and 7.3.4 raise smaller sizes to 8.";
    /// Fragmentation: `gso_size` is no multiple of 8, so that no offset can express it.
    OddFragment = "fragmentation: gso_size no multiple of 8", "The engine uses the next smaller multiple, since a fragment's offset counts units of 8 bytes (RFC 791, section 3.1). Linux fragments as the header says, and the offsets are wrong.";
    /// Fragmentation: the packet has DF or the reserved bit set, which Linux clears.
    FragmentFlags = "fragmentation: DF is set", "The engine keeps DF and the reserved bit in all fragments, since DF forbids further fragmentation. Linux clears both (`inet_gso_segment`).";
    /// Fragmentation: the kernel and the engine insert the IPv6 fragment header at different
    /// positions.
    FragmentPlace = "fragmentation: destination options", "The engine puts the fragment header before destination options, which are only for the destination (RFC 8200, section 4.5). Linux puts it behind them if no routing header follows (`ip6_find_1stfragopt`).";
    /// Fragmentation: the kernel and the engine count offsets behind hop-by-hop options or a
    /// routing header differently.
    FragmentOffset = "fragmentation: hop-by-hop options", "The engine's offsets count the fragmented bytes (RFC 8200, section 4.5). Linux also counts the hop-by-hop or routing header of each fragment (`ipv6_gso_segment`), so that its fragments cannot be reassembled.";
    /// Segmentation: the kernel computes the checksum over other addresses than the engine.
    HeaderDestination = "segmentation: the final destination", "The engine adjusts or completes the sum in the field. Other checksums cover the final destination, and a packet is refused if that is unknown. For a datagram to fragment, and for a packet without NEEDS_CSUM, Linux computes the checksum over the addresses of the IP header (`udp6_ufo_fragment`, `tcp6_gso_segment`).";
    /// Segmentation: `hdr_len` of the virtio header exceeds the packet's length.
    HintTooLong = "segmentation: hdr_len beyond the packet", "Never trusted: `hdr_len` is a hint, and the engine does not use it. Linux refuses the packet.";
    /// Segmentation: the packet has a VLAN tag, and the virtio header gives no checksum position.
    TaggedWithoutChecksum = "segmentation: tagged and without NEEDS_CSUM", "The engine parses the headers behind tags. Linux refuses the packet.";
    /// Segmentation: the packet has CWR, and the virtio header lacks the ECN bit (accurate ECN).
    NoEcn = "segmentation: CWR without the ECN bit", "Linux writes this header for accurate ECN's super-packets, whose segments all have CWR, and the engine segments them in this way. Linux itself leaves CWR only on the first segment when it reads such a header.";
    /// Segmentation: a type or position in the virtio header contradicts the packet.
    Contradiction = "segmentation: a header that contradicts the packet", "Never trusted: a `gso_type`, checksum position or tunnel offset that contradicts the packet is refused. Linux does not check a packet that fits a segment, the offsets of a tunnel, or the checksum position of a datagram to fragment.";
    /// The kernel's and the engine's merged packets began at different frames because of another
    /// difference, and so end at different frames.
    Consequence = "runs began at different packets", "Follows from another difference in the same flow: both sides count lengths from the first packet of a merge.";
}

/// The differences of a batch: the numbers of those explained by each kind, and a list of the
/// unexplained ones.
#[derive(Debug, Default)]
pub struct Explained {
    /// Number of explained differences of each kind.
    pub kinds: BTreeMap<Kind, u64>,
    /// Differences that no kind explains.
    pub unexplained: Vec<Difference>,
}

/// Maximum length of an IP packet in bytes.
const LONGEST: usize = 65_535;

/// Minimum length in bytes of a tagged frame that Linux accepts: MAC addresses, tag, EtherType and
/// two more bytes.
const SHORTEST_TAGGED: usize = 20;

/// Protocol number of IPv6 hop-by-hop options.
const HOP_BY_HOP: u8 = 0;
/// Protocol number of the IPv6 routing header.
const ROUTING: u8 = 43;
/// Protocol number of IPv6 destination options.
const DESTINATION_OPTIONS: u8 = 60;

/// Minimum `gso_size` of TCP in newer kernels, in bytes.
const LEAST_SEGMENT: u16 = 8;

/// Maximum packets in one bucket of the kernel's flow table (`MAX_GRO_SKBS`).
const BUCKET: usize = 8;

/// Finds the differences between the kernel and the engine in a batch, and the kind of each.
pub fn explain(sides: &Sides<'_>) -> Explained {
    let mut explained = Explained::default();
    // Frames at which a packet of the kernel or the engine began or ended because of an explained
    // difference.
    let mut explained_frames = Vec::new();
    for difference in sides.differences() {
        match kind(sides, &difference, &explained_frames) {
            Some(kind) => *explained.kinds.entry(kind).or_default() += 1,
            None => {
                explained.unexplained.push(difference);
                continue;
            }
        }
        if let Difference::KernelMerged { before, frame }
        | Difference::EngineMerged { before, frame } = difference
        {
            explained_frames.extend([before, frame]);
        }
    }
    explained
}

fn kind(sides: &Sides<'_>, difference: &Difference, explained_frames: &[usize]) -> Option<Kind> {
    match *difference {
        Difference::KernelMerged { before, frame } => {
            only_kernel_merged(sides, before, frame, explained_frames)
        }
        Difference::EngineMerged { before, frame } => {
            only_engine_merged(sides, before, frame, explained_frames)
        }
        Difference::Overtook { before, frame } => overtook(sides, before, frame),
        // The engine promises to keep the order within a flow, so no kind explains this.
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

fn only_kernel_merged(
    sides: &Sides<'_>,
    before: usize,
    frame: usize,
    explained_frames: &[usize],
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
    let differences = cut::differences(&with_correct_lengths(&group.packet), &frames);
    let at = |member: usize| {
        let place = group.frames.iter().position(|&other| other == member);
        place.map(|place| &differences[place][..]).unwrap_or_default()
    };
    if let Some(field) = at(before).iter().chain(at(frame)).next() {
        return Some(match field {
            CutField::Checksum
                if group.frames.iter().any(|&member| is_partial(member) != is_partial(before)) =>
            {
                Kind::ChecksumForms
            }
            CutField::Checksum => Kind::NonCanonicalChecksum,
            CutField::UrgentPointer => Kind::UrgentPointer,
            CutField::Identification => Kind::Identification,
            CutField::HeaderChecksum => Kind::HeaderChecksum,
            // Linux preserves all of these fields.
            CutField::Push
            | CutField::Link
            | CutField::Tunnel
            | CutField::Ip
            | CutField::Flags
            | CutField::Transport
            | CutField::Payload => return None,
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
    (ended && began_elsewhere(sides, before, explained_frames)).then_some(Kind::Consequence)
}

fn only_engine_merged(
    sides: &Sides<'_>,
    before: usize,
    frame: usize,
    explained_frames: &[usize],
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
    if was_evicted(sides, before, frame) {
        return Some(Kind::Evicted);
    }
    let closed = is_closed(sides, kernel_group(sides, before)?, before, frame);
    (closed && began_elsewhere(sides, before, explained_frames)).then_some(Kind::Consequence)
}

/// Returns the kind of difference between the kernel's and the engine's segments of a packet;
/// `None` if no kind explains the difference.
///
/// `kernel` is `None` if the kernel refused the packet.
pub fn segmentation(
    packet: &GsoInput,
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
        (Some([_]), Err(error)) if contradicts_checksum(error) => Some(Kind::Contradiction),
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

/// Returns whether a virtio header contradicts the packet's protocol or the position of its
/// checksum.
fn contradicts_checksum(error: &SplitError) -> bool {
    matches!(
        error,
        SplitError::Header(
            VirtioError::ChecksumStart { .. }
                | VirtioError::ChecksumOffset { .. }
                | VirtioError::Protocol { .. }
        )
    )
}

/// Returns the packet with the partial checksum that Linux assumes when it computes the checksum
/// again: the pseudo-header's sum over the addresses of the IP header.
///
/// `None` if the engine computes the checksum over the same addresses.
fn cut_for_header(
    packet: &GsoInput,
    engine: &Result<Vec<Vec<u8>>, SplitError>,
) -> Option<GsoInput> {
    // For a checksum without a seed, the engine needs the final destination. The checksum field may
    // already hold the sum over the addresses of the IP header.
    let unknown = matches!(
        engine,
        Err(SplitError::Segment(SegmentError::Headers(Refusal::FinalDestination)))
    );
    let named = || {
        let header = VnetHeader { flags: virtio_flags::NEEDS_CSUM, ..packet.header };
        (unknown && packet.header.flags == 0).then(|| GsoInput { header, ..packet.clone() })
    };
    packet.seeded_by_header().or_else(named)
}

/// Returns whether the segments `theirs` equal the engine's, with CWR either on the first segment
/// only or as the virtio header says.
fn is_cut_as(packet: &GsoInput, theirs: &[Vec<u8>]) -> bool {
    let ways = [packet.cut().ok(), cut_by(packet, packet.header)];
    ways.iter().flatten().any(|ours| ours == theirs)
}

/// Returns the engine's segments of a packet with this virtio header in place of its own, and with
/// CWR on the first segment only; `None` if the engine refuses the packet.
fn cut_by(packet: &GsoInput, header: VnetHeader) -> Option<Vec<Vec<u8>>> {
    let congested =
        check::tcp_fields(&packet.bytes, false).is_some_and(|fields| fields.flags & CWR != 0);
    let header = VnetHeader {
        gso_type: header.gso_type | if congested { gso_type::ECN } else { 0 },
        ..header
    };
    GsoInput { header, bytes: packet.bytes.clone(), ..*packet }.cut().ok()
}

/// Returns the kind of difference between the kernel's and the engine's IP fragments of a datagram;
/// `None` if no kind explains the difference.
fn fragmentation(
    packet: &GsoInput,
    kernel: &[Vec<u8>],
    engine: &Result<Vec<Vec<u8>>, SplitError>,
) -> Option<Kind> {
    let size = packet.header.gso_size;
    // The engine's fragments if the checksum seed covers the addresses in the IP header.
    let seeded = cut_for_header(packet, engine);
    let cut = seeded.as_ref().map(|seeded| seeded.cut().map(without_fragment_id));
    if cut.as_ref().is_some_and(|cut| cut.as_deref() == Ok(kernel)) {
        return Some(Kind::HeaderDestination);
    }
    let (packet, engine) = (seeded.as_ref().unwrap_or(packet), cut.as_ref().unwrap_or(engine));
    let ours = match engine {
        Ok(ours) => ours,
        Err(error) if contradicts_checksum(error) => return Some(Kind::Contradiction),
        Err(SplitError::Segment(SegmentError::SegmentTooSmall { needed, .. }))
            if size < 8 && *needed == 8 =>
        {
            return Some(Kind::OddFragment);
        }
        // The first fragment must hold the destination options and the UDP header of 8 bytes.
        Err(SplitError::Segment(SegmentError::SegmentTooSmall { needed, .. }))
            if packet.extension() == Some((DESTINATION_OPTIONS, needed - 8)) =>
        {
            return Some(Kind::FragmentPlace);
        }
        Err(_) => return None,
    };
    if !size.is_multiple_of(8) {
        let header = VnetHeader { gso_size: size / 8 * 8, ..packet.header };
        let cut = GsoInput { header, bytes: packet.bytes.clone(), ..*packet }.cut().ok()?;
        return (without_fragment_id(cut) == *ours).then_some(Kind::OddFragment);
    }
    match packet.extension() {
        None => {
            let plain: Option<Vec<_>> = ours.iter().map(|frame| without_flags(frame)).collect();
            (plain? == kernel).then_some(Kind::FragmentFlags)
        }
        // The engine treats destination options as part of the fragmented payload.
        Some((DESTINATION_OPTIONS, length)) => (joined_fragments(ours)?.get(length..)?
            == joined_fragments(kernel)?)
        .then_some(Kind::FragmentPlace),
        Some((HOP_BY_HOP | ROUTING, length)) => {
            let (mut ours, mut theirs) = (ours.clone(), kernel.to_vec());
            let offsets = |frames: &mut Vec<Vec<u8>>| {
                frames.iter_mut().map(|frame| take_offset(frame)).collect::<Option<Vec<_>>>()
            };
            let (our_offsets, their_offsets) = (offsets(&mut ours)?, offsets(&mut theirs)?);
            // Linux's offset is larger by the header's length for each preceding fragment. The
            // field for the offset wraps.
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

/// Returns whether the kernel segmented a TCP packet with [`LEAST_SEGMENT`] in place of a smaller
/// `gso_size`.
fn is_cut_at_least(packet: &GsoInput, kernel: Option<&[Vec<u8>]>) -> bool {
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

/// Returns the kind of difference between two packets that the kernel and the engine merged of the
/// same frames: a tunnel's lengths or checksum, the covered addresses, or ECN. `None` if anything
/// else differs.
fn other_bytes(kernel: &ResultPacket, engine: &ResultPacket) -> Option<Kind> {
    let layout = wire::parse_datagram(&engine.bytes, engine.bytes.len(), Layer::Ethernet).ok()?;
    let congested =
        check::tcp_fields(&engine.bytes, false).is_some_and(|fields| fields.flags & CWR != 0);
    let with_ecn = kernel.cut.map(|cut| GsoFields { kind: cut.kind | gso_type::ECN, ..cut });
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
        tunnel if tunnel.is_udp() => (Kind::OuterChecksum, transport + 6),
        _ => return None,
    };
    differ_in_checksums([checksum], kernel, engine)?.then_some(kind)
}

/// Returns [`Kind::FinalDestination`] if the kernel's and the engine's packets differ only in
/// checksums, tunnel checksums included; otherwise `None`.
fn other_destination(
    kernel: &ResultPacket,
    engine: &ResultPacket,
    layout: &Layout,
) -> Option<Kind> {
    let outer = layout.outers().filter_map(|outer| outer.checksum(&engine.bytes));
    let checksums = outer.chain([usize::from(layout.checksum())]);
    differ_in_checksums(checksums, kernel, engine)?.then_some(Kind::FinalDestination)
}

/// Returns whether the engine's packet is valid, and the kernel's differs only in the checksums at
/// these offsets; `None` if a packet ends before one of them.
fn differ_in_checksums(
    checksums: impl IntoIterator<Item = usize>,
    kernel: &ResultPacket,
    engine: &ResultPacket,
) -> Option<bool> {
    let mut packet = kernel.clone();
    for place in checksums {
        let ours = engine.bytes.get(place..place + 2)?;
        packet.bytes.get_mut(place..place + 2)?.copy_from_slice(ours);
    }
    Some(is_valid(engine) && packet == *engine)
}

/// Returns whether a packet is valid, but for a checksum that is partial.
fn is_valid(packet: &ResultPacket) -> bool {
    let expect = Expect { partial: packet.partial.is_some(), ..Expect::default() };
    check::frame(&packet.bytes, &expect).is_ok()
}

/// Returns [`Kind::NestedLengths`] if the kernel's and the engine's packets in two tunnels differ
/// only in the second tunnel's lengths and in both tunnels' checksums; otherwise `None`.
fn other_nested(kernel: &ResultPacket, engine: &ResultPacket) -> Option<Kind> {
    let outer = Hint::of(&kernel.bytes)?.outer;
    let (_, _, transport) = second_tunnel(&kernel.bytes)?;
    let mut packet = with_correct_lengths(kernel);
    for checksum in [outer + 6, transport + 6] {
        let ours = engine.bytes.get(checksum..checksum + 2)?;
        let theirs = packet.bytes.get_mut(checksum..checksum + 2)?;
        if (ours == [0, 0]) != (theirs == [0, 0]) {
            return None;
        }
        theirs.copy_from_slice(ours);
    }
    (is_valid(engine) && packet == *engine).then_some(Kind::NestedLengths)
}

/// Returns whether a header with the EtherType of IPv6 has another version than 6. Linux does not
/// check the version (`ipv6_gro_receive`).
fn has_other_version(frame: &[u8]) -> bool {
    matches!(frame.get(12..15), Some([0x86, 0xdd, first]) if first >> 4 != 6)
}

/// Returns the kind of difference if Linux has no GRO for the headers of two frames, so that the
/// kernel merged neither of them with any frame; otherwise `None`.
fn not_in_kernel(sides: &Sides<'_>, before: usize, frame: usize) -> Option<Kind> {
    let alone = |frame| is_alone_in_kernel(sides, frame);
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
    // Linux has GRO only for 802.1Q and 802.1ad tags, and not in every configuration.
    let unseen_tag =
        tags().any(|(protocol, _)| !sides.rules.vlans || !matches!(protocol, 0x8100 | 0x88a8));
    let unseen = flow.pppoe.is_some() || !flow.mpls.is_empty() || unseen_tag;
    unseen.then_some(Kind::Tags)
}

/// Returns whether a checksum of a frame covers other addresses than those of its IP header.
fn has_other_addresses(sides: &Sides<'_>, frame: usize) -> bool {
    let InputFrame { bytes, partial } = &sides.frames[frame];
    let key = sides.known[frame].flow.as_ref();
    layout(sides, frame)
        .zip(key)
        .is_some_and(|(layout, key)| covers_other_addresses(bytes, &layout, key, partial.is_some()))
}

/// Returns whether a checksum covers other addresses than those of its IP header: a final
/// destination or a home address. Also true where the engine cannot tell which addresses the
/// checksum covers.
///
/// `key` has the addresses of the IP headers. `is_partial` tells whether the innermost checksum is
/// partial.
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

/// Returns the offsets of a frame's headers as the engine parses them; `None` if the engine cannot
/// parse them.
fn layout(sides: &Sides<'_>, frame: usize) -> Option<Layout> {
    let bytes = &sides.frames[frame].bytes;
    wire::parse_datagram(bytes, bytes.len(), Layer::Ethernet).ok()
}

/// Returns the TCP flags of a frame; 0 for other protocols.
fn flags(sides: &Sides<'_>, frame: usize) -> u16 {
    check::tcp_fields(&sides.frames[frame].bytes, false).map_or(0, |fields| fields.flags)
}

/// Returns the identification and the DF bit of each IPv4 header in a frame, the innermost first.
fn ids(sides: &Sides<'_>, frame: usize) -> Vec<(u16, bool)> {
    let bytes = &sides.frames[frame].bytes;
    let Some(layout) = layout(sides, frame) else { return Vec::new() };
    let at = layout
        .levels()
        .rev()
        .filter(|level| level.version == IpVersion::V4)
        .map(|level| usize::from(level.network) + 4);
    at.map(|at| (u16::from_be_bytes([bytes[at], bytes[at + 1]]), bytes[at + 2] & 0x40 != 0))
        .collect()
}

/// Returns whether two frames have an IPv4 header with the same identification, and either this
/// header lacks DF or the identifications of another header differ.
fn repeats_id(sides: &Sides<'_>, before: usize, frame: usize) -> bool {
    let (ids, next) = (ids(sides, before), ids(sides, frame));
    let repeated = |&((id, fixed), (next, _)): &((u16, bool), (u16, bool))| id == next && !fixed;
    let same = ids.iter().zip(&next).filter(|((id, _), (next, _))| id == next).count();
    ids.iter().copied().zip(next.iter().copied()).any(|pair| repeated(&pair))
        || (1..ids.len()).contains(&same)
}

/// Returns whether the kernel had to evict the packet that ends with `before` because its bucket
/// was full: of the packets that left later, enough began before `frame` to fill the rest of a
/// bucket.
fn was_evicted(sides: &Sides<'_>, before: usize, frame: usize) -> bool {
    let Some((group, _)) = sides.in_kernel[before] else { return false };
    let held = |other: &&Group| other.frames.first().is_some_and(|&first| first < frame);
    sides.kernel[group + 1..].iter().filter(held).count() >= BUCKET - 1
}

/// Returns whether the kernel's packet that ends with frame `last` cannot merge with frame `next`
/// by rules that the engine has too.
fn is_closed(sides: &Sides<'_>, group: &Group, last: usize, next: usize) -> bool {
    let payload = |frame: usize| sides.known[frame].payload.len();
    let first = group.frames.first().map_or(0, |&first| payload(first));
    let flags = group.frames.iter().fold(0, |all, &member| all | flags(sides, member));
    let pushed = flags & (PSH | FIN) != 0;
    // Identifications count up from the first frame's, or are all the same.
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

/// Returns whether the kernel's and the engine's packets that contain `frame` begin at different
/// frames because of an explained difference.
fn began_elsewhere(sides: &Sides<'_>, frame: usize, explained_frames: &[usize]) -> bool {
    let (Some(kernel), Some((left, _))) = (kernel_group(sides, frame), sides.in_engine[frame])
    else {
        return false;
    };
    let engine = &sides.engine[left].group;
    kernel.frames.first() != engine.frames.first()
        && kernel
            .frames
            .iter()
            .chain(&engine.frames)
            .any(|member| explained_frames.contains(member))
}

/// Returns why `frame` left the kernel earlier than the frame `before`, which precedes it in its
/// flow; `None` if no kind explains the difference.
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
    // The engine verifies a checksum only when a second packet of the flow arrives. Otherwise the
    // packet leaves for another reason.
    let refused = check::frame(bytes, &expect).is_err() || was_refused(sides.engine[left].reason);
    (alone && refused).then_some(Kind::Overtaken)
}

/// Returns [`Kind::UnknownTunnel`] if the engine did not merge a frame because of a tunnel header,
/// [`Kind::FalseHint`] if only the GRO hint was the problem, and otherwise `None`.
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

/// Returns why the kernel did not merge two frames in two tunnels, if the reason is the second
/// tunnel or the lack of a GRO hint; otherwise `None`.
fn nested_apart(sides: &Sides<'_>, before: usize, frame: usize) -> Option<Kind> {
    layout(sides, frame)?.nested?;
    let alone = |frame| is_alone_in_kernel(sides, frame);
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

/// Returns whether the kernel flushed a frame in two tunnels because it held a packet in the same
/// tunnels whose second tunnel has different headers, whatever the inner flow (`geneve_hdr_match`).
///
/// The held packet left just before the frame, or leaves after it.
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

/// Returns whether Linux ignores a frame's GRO hint because it cannot verify the second tunnel's
/// checksum.
fn is_beyond_hint(sides: &Sides<'_>, frame: usize) -> bool {
    let frame = &sides.frames[frame];
    frame.partial.is_none()
        && Hint::of(&frame.bytes).is_some_and(|hint| hint.has_only_nested_checksum(&frame.bytes))
}

/// Returns whether the engine did not merge a frame because of a wrong length in a tunnel's outer
/// UDP header.
fn has_wrong_outer_length(sides: &Sides<'_>, frame: usize) -> bool {
    let in_tunnel = sides.known[frame]
        .flow
        .as_ref()
        .is_some_and(|flow| flow.tunnels.iter().any(|tunnel| tunnel.ports.is_some()));
    in_tunnel && left(sides, frame).is_some_and(|left| left.reason == Reason::UdpLength)
}

/// Returns whether packets that leave for this reason pass the engine at once, without being held.
fn was_refused(reason: Reason) -> bool {
    (reason as usize) < Reason::Push as usize
}

/// Returns whether frame `between` makes the engine flush the held packets of `frame`'s flow: it
/// belongs to the same flow, or the engine cannot merge it and it has the same addresses.
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
    // No parser finds the addresses reliably in a damaged header, so the header is searched for
    // them.
    refused
        && pairs(sides, frame).iter().any(|pair| {
            let bytes = &sides.frames[between].bytes;
            bytes[..bytes.len().min(MAX_HEADER)].windows(pair.len()).any(|window| window == *pair)
        })
}

/// Returns the source and destination address of each IP header of a frame as bytes, the innermost
/// first.
fn pairs<'s>(sides: &'s Sides<'_>, frame: usize) -> Vec<&'s [u8]> {
    let bytes = &sides.frames[frame].bytes;
    let Some(layout) = layout(sides, frame) else { return Vec::new() };
    let pair = |level: Level| match level.version {
        IpVersion::V4 => {
            bytes.get(usize::from(level.network) + 12..usize::from(level.network) + 20)
        }
        IpVersion::V6 => bytes.get(usize::from(level.network) + 8..usize::from(level.network) + 40),
    };
    layout.levels().rev().filter_map(pair).collect()
}

/// Returns whether Linux treats two frames of one connection as two flows.
fn is_split(sides: &Sides<'_>, frame: usize, other: usize) -> bool {
    let gre = gre_flags(sides, frame)
        .is_some_and(|flags| gre_flags(sides, other).is_some_and(|other| other != flags));
    gre || matches!((kernel_flow(sides, frame), kernel_flow(sides, other)), (Some(flow), Some(other)) if flow != other)
}

/// Returns the bytes of a GRE header by which Linux distinguishes flows: flags and protocol, and,
/// if the header has a key, the word behind them, even if this is the checksum (`gre_gro_receive`).
///
/// In frames that the engine cannot parse, GRE is found behind Ethernet and IP without options.
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

/// Returns the bytes by which Linux divides a connection into flows: flow labels, the chain of
/// extension headers, whole VLAN tags, and VXLAN's and Geneve's headers except lengths.
fn kernel_flow(sides: &Sides<'_>, frame: usize) -> Option<Vec<u8>> {
    let bytes = &sides.frames[frame].bytes;
    let layout = layout(sides, frame)?;
    let ip = |network: u16, version: IpVersion, end: u16| {
        let (network, end) = (usize::from(network), usize::from(end));
        match version {
            IpVersion::V4 => Vec::new(),
            // The flow label, the next header and the extension headers, but not traffic class,
            // length and hop limit.
            IpVersion::V6 => [
                &[bytes[network + 1] & 0xf, bytes[network + 6]],
                &bytes[network + 2..network + 4],
                &bytes[network + 40..end],
            ]
            .concat(),
        }
    };
    let mut flow = ip(layout.network, layout.version, layout.transport);
    // Whole VLAN tags, with priority and drop eligibility.
    let key = sides.known[frame].flow.as_ref()?;
    let tags = key.vlans.iter().chain(key.tunnels.iter().flat_map(|tunnel| &tunnel.vlans));
    flow.extend(tags.flat_map(|&(_, control)| control.to_be_bytes()));
    if let Some(outer) = layout.outer {
        flow.extend(ip(outer.network, outer.version, outer.transport));
        if outer.tunnel.is_udp() {
            let inside = layout.nested.map_or(layout.network, |nested| nested.network);
            let udp = bytes.get(usize::from(outer.transport)..usize::from(inside))?;
            // The outer UDP ports, whether there is a checksum, and the tunnel header with its
            // options.
            flow.extend([&udp[..4], &[u8::from(udp[6..8] == [0, 0])], &udp[8..]].concat());
        }
    }
    if let Some(nested) = layout.nested {
        flow.extend(ip(nested.network, nested.version, nested.transport));
        // The second tunnel's UDP ports and checksum. A difference in other fields only ends a
        // merge (`geneve_hdr_match`).
        let udp = bytes.get(usize::from(nested.transport)..usize::from(layout.network))?;
        flow.extend([&udp[..4], &udp[6..8]].concat());
    }
    Some(flow)
}

fn left<'s>(sides: &'s Sides<'_>, frame: usize) -> Option<&'s EnginePacket> {
    sides.in_engine[frame].map(|(left, _)| &sides.engine[left])
}

/// Returns whether the kernel merged a frame with no other.
fn is_alone_in_kernel(sides: &Sides<'_>, frame: usize) -> bool {
    kernel_group(sides, frame).is_some_and(|group| group.frames.len() == 1)
}

fn kernel_group<'s>(sides: &'s Sides<'_>, frame: usize) -> Option<&'s Group> {
    sides.in_kernel[frame].map(|(group, _)| &sides.kernel[group])
}

#[cfg(test)]
mod tests {
    use super::Kind;

    #[test]
    fn the_documentation_has_every_kind() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reversibility.md");
        let page = std::fs::read_to_string(path).expect("it is there");
        let rows: String = Kind::ALL
            .iter()
            .map(|kind| format!("| {} | {} |\n", kind.name(), kind.promise()))
            .collect();
        assert!(page.contains(&rows), "docs/reversibility.md has other rows than these:\n{rows}");
    }
}
