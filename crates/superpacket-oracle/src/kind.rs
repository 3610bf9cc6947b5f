//! Why both sides may differ: each kind with the promise that explains it.

use std::collections::BTreeMap;
use std::ops::Range;

use superpacket::Reason;
use superpacket_traffic::check::{self, Expect};
use superpacket_traffic::frame::{ACK, CWR, FIN, PSH};

use crate::compare::{Difference, Sides};
use crate::cut::{self, Field};
use crate::frames::Group;

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
    /// The kernel merged behind a packet with PSH or FIN.
    PushMoved = "psh moves to the end", "Reversible: such a packet begins no run, since the flag could not be put back there.";
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
    /// The kernel merged packets whose other header fields differ.
    OtherField = "another field is lost", "Reversible: what could not be restored is not merged.";
    /// The kernel merged segments without ACK.
    NoAcknowledgement = "segments without ACK merge", "Untouched when unknown: no connection sends data without ACK (RFC 9293, section 3.10.7.4), so it passes.";
    /// The kernel merged across a packet of the same flow that it did not merge.
    MergedAcross = "merges across a refused packet", "Order: a packet that cannot merge flushes its own flow first, so nothing joins what came before it.";
    /// A refused packet left before what was held of its flow.
    Overtaken = "a refused packet overtakes", "Order: packets of a flow leave in the order in which they came.";
    /// The kernel lets packets with CWR alone.
    CongestionWindow = "CWR ends a merge", "The engine merges equal flags; Linux before 7.0 flushes at CWR.";
    /// The kernel's table was full.
    Evicted = "the kernel's table is full", "Bounded: the engine holds 1,024 flows by a keyed hash; Linux holds 8 in each of 8 buckets, and all packets without a device's hash share one.";
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
        if let Difference::KernelMerged { before, frame } | Difference::EngineMerged { before, frame } = difference {
            touched.extend([before, frame]);
        }
    }
    explained
}

fn kind(sides: &Sides<'_>, difference: &Difference, touched: &[usize]) -> Option<Kind> {
    match *difference {
        Difference::KernelMerged { before, frame } => kernel_merged(sides, before, frame, touched),
        Difference::EngineMerged { before, frame } => engine_merged(sides, before, frame, touched),
        Difference::Overtook { frame, .. } => overtook(sides, frame),
        Difference::Bytes { .. } | Difference::Missing { .. } | Difference::Unknown { .. } => None,
    }
}

fn kernel_merged(sides: &Sides<'_>, before: usize, frame: usize, touched: &[usize]) -> Option<Kind> {
    let is_partial = |frame: usize| sides.frames[frame].partial.is_some();
    if is_partial(before) != is_partial(frame) {
        return Some(Kind::ChecksumForms);
    }
    let group = kernel_group(sides, frame)?;
    let frames: Vec<_> = group.frames.iter().map(|&member| &sides.frames[member]).collect();
    let differences = cut::differences(&group.packet, &frames);
    let at = |member: usize| {
        let place = group.frames.iter().position(|&other| other == member);
        place.map(|place| &differences[place][..]).unwrap_or_default()
    };
    if let Some(field) = at(before).iter().chain(at(frame)).next() {
        return Some(match field {
            Field::Push => Kind::PushMoved,
            Field::Checksum if group.frames.iter().any(|&member| is_partial(member) != is_partial(before)) => Kind::ChecksumForms,
            Field::Checksum => Kind::NonCanonicalChecksum,
            Field::UrgentPointer => Kind::UrgentPointer,
            Field::Identification => Kind::Identification,
            Field::HeaderChecksum => Kind::HeaderChecksum,
            Field::Link | Field::Tunnel | Field::Ip | Field::Flags | Field::Transport => Kind::OtherField,
            Field::Payload => return None,
        });
    }
    if flags(sides, frame) & ACK == 0 && sides.in_engine[frame].is_some_and(|(left, _)| sides.engine[left].reason == Reason::TcpFlags) {
        return Some(Kind::NoAcknowledgement);
    }
    if (before + 1..frame).any(|between| !group.frames.contains(&between) && between_hosts(sides, between, frame)) {
        return Some(Kind::MergedAcross);
    }
    let (left, _) = sides.in_engine[before]?;
    let depends = [Reason::ByteLimit, Reason::PacketLimit, Reason::LongerSegment, Reason::ShortSegment, Reason::IpId, Reason::Push];
    let ended = depends.contains(&sides.engine[left].reason);
    (ended && began_elsewhere(sides, before, touched)).then_some(Kind::Consequence)
}

fn engine_merged(sides: &Sides<'_>, before: usize, frame: usize, touched: &[usize]) -> Option<Kind> {
    if flags(sides, frame) & CWR != 0 {
        return Some(Kind::CongestionWindow);
    }
    if evicted(sides, before, frame) {
        return Some(Kind::Evicted);
    }
    let closed = is_closed(sides, kernel_group(sides, before)?, before, frame);
    (closed && began_elsewhere(sides, before, touched)).then_some(Kind::Consequence)
}

/// The flags of a TCP segment; 0 for others.
fn flags(sides: &Sides<'_>, frame: usize) -> u16 {
    check::tcp_fields(&sides.frames[frame].bytes, false).map_or(0, |fields| fields.flags)
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
    group.packet.bytes.len() - 14 + payload(next) > LONGEST || payload(last) < first || payload(next) > first || pushed
}

/// Did the runs that `frame` is in begin at different frames, for a reason that was explained?
fn began_elsewhere(sides: &Sides<'_>, frame: usize, touched: &[usize]) -> bool {
    let (Some(kernel), Some((left, _))) = (kernel_group(sides, frame), sides.in_engine[frame]) else { return false };
    let engine = &sides.engine[left].group;
    kernel.frames.first() != engine.frames.first() && kernel.frames.iter().chain(&engine.frames).any(|member| touched.contains(member))
}

/// A packet that leaves before one that came earlier: the kernel had refused it.
fn overtook(sides: &Sides<'_>, frame: usize) -> Option<Kind> {
    let group = kernel_group(sides, frame)?;
    let alone = group.frames.len() == 1;
    let bytes = &sides.frames[frame].bytes;
    let expect = Expect { partial: sides.frames[frame].partial.is_some(), ..Expect::default() };
    let (left, _) = sides.in_engine[frame]?;
    // The engine verifies checksums only where a second packet comes; its reason is then another.
    let refused = check::frame(bytes, &expect).is_err() || was_refused(sides.engine[left].reason);
    (alone && refused).then_some(Kind::Overtaken)
}

/// Is this a reason of packets that were never held?
fn was_refused(reason: Reason) -> bool {
    (reason as usize) < Reason::Push as usize
}

/// Is a frame between the same hosts as another, in the same direction?
fn between_hosts(sides: &Sides<'_>, frame: usize, other: usize) -> bool {
    let hosts = |frame: usize| sides.known[frame].flow.as_ref().map(|flow| (flow.source, flow.destination));
    // Behind a damaged header another parser may find other addresses, or none: these are those of
    // IPv4 and of IPv6 behind an Ethernet header without tags.
    let same = |range: Range<usize>| {
        let [bytes, others] = [frame, other].map(|frame| sides.frames[frame].bytes.get(range.clone()));
        bytes.is_some() && bytes == others
    };
    hosts(frame).is_some() && hosts(frame) == hosts(other) || same(26..34) || same(22..54)
}

fn kernel_group<'s>(sides: &'s Sides<'_>, frame: usize) -> Option<&'s Group> {
    sides.in_kernel[frame].map(|(group, _)| &sides.kernel[group])
}
