//! Compares the packets that the kernel and the engine made of the same frames: which frames
//! merged, and whether the bytes agree.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use superpacket_lab::CapturedFrame;

use crate::engine::EnginePacket;
use crate::frames::{Group, GsoFields, InputFrame, ParsedFrame, ResultPacket, hexadecimal};
use crate::kernel::Rules;
use crate::nested;

/// A difference between the kernel and the engine in one batch of frames.
#[derive(Clone, Debug)]
pub enum Difference {
    /// Only the kernel merged the two frames.
    KernelMerged {
        /// The number of the frame before the appended one in the kernel's packet.
        before: usize,
        /// The number of the appended frame.
        frame: usize,
    },
    /// Only the engine merged the two frames.
    EngineMerged {
        /// The number of the frame before the appended one in the engine's packet.
        before: usize,
        /// The number of the appended frame.
        frame: usize,
    },
    /// The kernel and the engine merged the same frames, but the bytes or the GSO metadata of the
    /// merged packets differ.
    Bytes {
        /// The index of the packet in [`Sides::kernel`].
        kernel: usize,
        /// The index of the packet in [`Sides::engine`].
        engine: usize,
    },
    /// In the kernel, a frame overtook an earlier frame of its flow.
    Overtook {
        /// The number of the frame that arrived first.
        before: usize,
        /// The number of the frame that left first.
        frame: usize,
    },
    /// In the engine, a frame overtook an earlier frame of its flow.
    EngineOvertook {
        /// The number of the frame that arrived first.
        before: usize,
        /// The number of the frame that left first.
        frame: usize,
    },
    /// The kernel delivered no packet that contains the frame.
    Missing {
        /// The number of the lost frame.
        frame: usize,
    },
    /// The kernel delivered a packet that consists of none of the batch's frames.
    Unknown {
        /// The index of the packet in [`Sides::kernel`].
        kernel: usize,
    },
}

/// A batch of frames, and the packets that the kernel and the engine made of them.
#[derive(Debug)]
pub struct Sides<'a> {
    /// The kinds of packets that the kernel's GRO merges.
    pub rules: Rules,
    /// The batch's frames in the order of arrival. A frame's number is its index here.
    pub frames: &'a [InputFrame],
    /// The contents of each frame, as an independent parser reads them.
    pub known: Vec<ParsedFrame>,
    /// The kernel's packets in the order in which they left the kernel.
    pub kernel: Vec<Group>,
    /// The engine's packets in the order in which they left the engine.
    pub engine: Vec<EnginePacket>,
    /// For each frame, the number of the kernel's packet that contains it, and its position in that
    /// packet.
    pub in_kernel: Vec<Option<(usize, usize)>>,
    /// For each frame, the number of the engine's packet that contains it, and its position in that
    /// packet.
    pub in_engine: Vec<Option<(usize, usize)>>,
    /// Indices of the kernel's packets that consist of none of the batch's frames.
    pub unknown: Vec<usize>,
}

impl<'a> Sides<'a> {
    /// Compares a batch: finds the frames of which each captured packet of the kernel consists.
    pub fn new(
        rules: Rules,
        frames: &'a [InputFrame],
        captured: &[CapturedFrame],
        engine: Vec<EnginePacket>,
    ) -> Self {
        let known: Vec<_> = frames.iter().map(|frame| ParsedFrame::of(&frame.bytes)).collect();
        let mut used = vec![false; frames.len()];
        let packets: Vec<_> = captured.iter().map(packet).collect();
        let mut found: Vec<Option<Vec<usize>>> = vec![None; packets.len()];
        // Packets that are the same in the kernel and the engine need no search. The map is
        // ordered: comparing packets stops at the first difference, while hashing reads whole
        // packets.
        let mut same: BTreeMap<(&[u8], Option<GsoFields>), Vec<&EnginePacket>> = BTreeMap::new();
        for left in engine.iter().rev() {
            same.entry((&left.group.packet.bytes, left.group.packet.cut)).or_default().push(left);
        }
        for (packet, found) in packets.iter().zip(&mut found) {
            if let Some(left) = same.get_mut(&(&packet.bytes[..], packet.cut)).and_then(Vec::pop) {
                left.group.frames.iter().for_each(|&frame| used[frame] = true);
                *found = Some(left.group.frames.clone());
            }
        }
        for merged in [false, true] {
            for (packet, found) in packets.iter().zip(&mut found) {
                if found.is_none() && packet.cut.is_some() == merged {
                    *found = constituents(packet, frames, &known, &mut used);
                }
            }
        }
        in_order(frames, &mut found);
        let unknown = (0..found.len()).filter(|&packet| found[packet].is_none()).collect();
        let kernel: Vec<_> = packets
            .into_iter()
            .zip(found)
            .map(|(packet, frames)| Group { packet, frames: frames.unwrap_or_default() })
            .collect();
        let in_kernel = places(frames.len(), kernel.iter().map(|group| &group.frames[..]));
        let in_engine = places(frames.len(), engine.iter().map(|left| &left.group.frames[..]));
        Sides { rules, frames, known, kernel, engine, in_kernel, in_engine, unknown }
    }

    /// Returns the number of the frame before `frame` in the kernel's packet; `None` if `frame` is
    /// the first one or is in no packet.
    pub fn before_in_kernel(&self, frame: usize) -> Option<usize> {
        let (group, place) = self.in_kernel[frame]?;
        Some(self.kernel[group].frames[place.checked_sub(1)?])
    }

    /// Returns the number of the frame before `frame` in the engine's packet; `None` if `frame` is
    /// the first one or is in no packet.
    pub fn before_in_engine(&self, frame: usize) -> Option<usize> {
        let (group, place) = self.in_engine[frame]?;
        Some(self.engine[group].group.frames[place.checked_sub(1)?])
    }

    /// Returns all differences between the kernel and the engine: unknown packets first, then by
    /// frame.
    pub fn differences(&self) -> Vec<Difference> {
        let mut differences: Vec<_> =
            self.unknown.iter().map(|&kernel| Difference::Unknown { kernel }).collect();
        for frame in 0..self.frames.len() {
            if self.in_kernel[frame].is_none() {
                differences.push(Difference::Missing { frame });
                continue;
            }
            let (kernel, engine) = (self.before_in_kernel(frame), self.before_in_engine(frame));
            if let Some(before) = kernel.filter(|_| kernel != engine) {
                differences.push(Difference::KernelMerged { before, frame });
            }
            if let Some(before) = engine.filter(|_| kernel != engine) {
                differences.push(Difference::EngineMerged { before, frame });
            }
        }
        for (kernel, group) in self.kernel.iter().enumerate() {
            let Some(engine) = group
                .frames
                .first()
                .and_then(|&first| self.in_engine[first])
                .map(|(engine, _)| engine)
            else {
                continue;
            };
            let left = &self.engine[engine].group;
            // The checksum state of unmerged packets is not compared, since Linux may have verified
            // the checksum.
            let same_sum =
                group.packet.cut.is_none() || group.packet.partial == left.packet.partial;
            let same = group.packet.bytes == left.packet.bytes
                && group.packet.cut == left.packet.cut
                && same_sum;
            if group.frames == left.frames && !same {
                differences.push(Difference::Bytes { kernel, engine });
            }
        }
        let kernel = self.overtakings(self.kernel.iter().flat_map(|group| &group.frames));
        differences.extend(
            kernel.into_iter().map(|(before, frame)| Difference::Overtook { before, frame }),
        );
        let engine = self.overtakings(self.engine.iter().flat_map(|left| &left.group.frames));
        differences.extend(
            engine.into_iter().map(|(before, frame)| Difference::EngineOvertook { before, frame }),
        );
        differences
    }

    /// Returns pairs of frames of one flow that left in another order than they arrived, the
    /// earlier frame first. `order` has the numbers of all frames as they left the kernel or the
    /// engine.
    fn overtakings<'f>(&self, order: impl Iterator<Item = &'f usize>) -> Vec<(usize, usize)> {
        let (mut latest, mut found) = (HashMap::new(), Vec::new());
        for &frame in order {
            let Some(flow) = &self.known[frame].flow else { continue };
            let latest: &mut usize = latest.entry(flow).or_insert(frame);
            // Frames with the same bytes cannot be distinguished.
            if *latest > frame && self.frames[*latest].bytes != self.frames[frame].bytes {
                found.push((frame, *latest));
            }
            *latest = frame.max(*latest);
        }
        found
    }
}

/// Converts a captured frame to a packet. A stripped VLAN tag is inserted again.
pub fn packet(frame: &CapturedFrame) -> ResultPacket {
    let header = frame.vnet.unwrap_or_default();
    let tag = if frame.vlan.is_some() { 4 } else { 0 };
    ResultPacket {
        bytes: frame.with_tag(),
        cut: (header.gso_type != 0)
            .then_some(GsoFields { kind: header.gso_type, size: header.gso_size }),
        partial: (header.flags & 1 != 0).then_some((header.csum_start + tag, header.csum_offset)),
    }
}

/// Returns a packet of the kernel with correct lengths in all headers. In a packet that GRO merged
/// in two tunnels, Linux updates the second tunnel's lengths only later.
pub fn with_correct_lengths(packet: &ResultPacket) -> ResultPacket {
    let bytes = packet.cut.and_then(|_| nested::with_lengths(&packet.bytes));
    ResultPacket { bytes: bytes.unwrap_or_else(|| packet.bytes.clone()), ..*packet }
}

/// Assigns frames with the same bytes to packets in the order of arrival, since such frames cannot
/// be distinguished.
fn in_order(frames: &[InputFrame], found: &mut [Option<Vec<usize>>]) {
    let mut alike: BTreeMap<&[u8], Vec<&mut usize>> = BTreeMap::new();
    for frame in found.iter_mut().flatten().flatten() {
        alike.entry(&frames[*frame].bytes).or_default().push(frame);
    }
    for places in alike.into_values().filter(|places| places.len() > 1) {
        let mut frames: Vec<usize> = places.iter().map(|place| **place).collect();
        frames.sort_unstable();
        places.into_iter().zip(frames).for_each(|(place, frame)| *place = frame);
    }
}

fn places<'g>(
    frames: usize,
    groups: impl Iterator<Item = &'g [usize]>,
) -> Vec<Option<(usize, usize)>> {
    let mut places = vec![None; frames];
    for (group, members) in groups.enumerate() {
        for (place, &frame) in members.iter().enumerate() {
            places[frame] = Some((group, place));
        }
    }
    places
}

/// Returns the numbers of the frames that a packet consists of, in the packet's order: a frame with
/// the same bytes, or frames of the same flow with consecutive segments of the payload.
fn constituents(
    packet: &ResultPacket,
    frames: &[InputFrame],
    known: &[ParsedFrame],
    used: &mut [bool],
) -> Option<Vec<usize>> {
    let Some(cut) = packet.cut else {
        let frame =
            (0..frames.len()).find(|&frame| !used[frame] && frames[frame].bytes == packet.bytes)?;
        used[frame] = true;
        return Some(vec![frame]);
    };
    let whole = ParsedFrame::of(&with_correct_lengths(packet).bytes);
    let (mut members, mut sequence, mut from) = (Vec::new(), whole.sequence, 0);
    for part in whole.payload.chunks(usize::from(cut.size)) {
        let fits = |frame: &usize| {
            let known = &known[*frame];
            !used[*frame]
                && known.sequence == sequence
                && known.payload == part
                && known.flow == whole.flow
        };
        // If a frame with the same bytes is already assigned to another packet, `in_order` corrects
        // the order later.
        let frame = (from..frames.len()).find(fits).or_else(|| (0..from).find(fits))?;
        members.push(frame);
        from = frame + 1;
        if whole.sequence != 0 {
            sequence = sequence.wrapping_add(part.len() as u32);
        }
    }
    members.iter().for_each(|&frame| used[frame] = true);
    Some(members)
}

/// Returns a text that describes the differences, with the bytes of frames or packets in
/// hexadecimal.
pub fn describe(sides: &Sides<'_>, differences: &[Difference]) -> String {
    let mut text = String::new();
    let order: Vec<_> = sides.kernel.iter().map(|group| &group.frames[..]).collect();
    let _ = writeln!(text, "the kernel's packets in order: {order:?}");
    let order: Vec<_> = sides.engine.iter().map(|left| &left.group.frames[..]).collect();
    let _ = writeln!(text, "the engine's packets in order: {order:?}");
    let groups = |group: &Group| format!("{:?} {:?}", group.frames, group.packet.cut);
    for difference in differences {
        let _ = writeln!(text, "{difference:?}");
        let mut shown = |frame: usize| {
            let kernel = sides.in_kernel[frame].map(|(group, _)| groups(&sides.kernel[group]));
            let engine = sides.in_engine[frame]
                .map(|(left, _)| (groups(&sides.engine[left].group), sides.engine[left].reason));
            let _ = writeln!(text, "  frame {frame}: kernel {kernel:?}, engine {engine:?}");
            let _ = writeln!(
                text,
                "    partial {:?}, {}",
                sides.frames[frame].partial,
                hexadecimal(&sides.frames[frame].bytes)
            );
        };
        match *difference {
            Difference::KernelMerged { before, frame }
            | Difference::EngineMerged { before, frame }
            | Difference::Overtook { before, frame }
            | Difference::EngineOvertook { before, frame } => {
                (before.min(frame)..=before.max(frame)).for_each(shown)
            }
            Difference::Missing { frame } => shown(frame),
            Difference::Unknown { kernel } => {
                let packet = &sides.kernel[kernel].packet;
                let _ = writeln!(text, "  kernel {:?} {}", packet.cut, hexadecimal(&packet.bytes));
            }
            Difference::Bytes { kernel, engine } => {
                for packet in [&sides.kernel[kernel].packet, &sides.engine[engine].group.packet] {
                    let _ = writeln!(
                        text,
                        "  {:?} {:?} {}",
                        packet.cut,
                        packet.partial,
                        hexadecimal(&packet.bytes)
                    );
                }
            }
        }
    }
    text
}
