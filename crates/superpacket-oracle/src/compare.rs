//! The packets of both sides, frame by frame: what merged on one side only, and what came out
//! otherwise.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use superpacket_lab::CapturedFrame;

use crate::engine::Left;
use crate::frames::{Cut, Group, Input, Known, Packet, hexadecimal};
use crate::kernel::Rules;
use crate::nested;

/// A difference between both sides, at frames of the batch.
#[derive(Clone, Debug)]
pub enum Difference {
    /// The kernel merged `frame` behind `before`, and the engine did not.
    KernelMerged {
        /// The frame before.
        before: usize,
        /// The frame that joined it.
        frame: usize,
    },
    /// The engine merged `frame` behind `before`, and the kernel did not.
    EngineMerged {
        /// The frame before.
        before: usize,
        /// The frame that joined it.
        frame: usize,
    },
    /// The same frames merged, and other bytes came of it, or it is to be cut in another way.
    Bytes {
        /// The kernel's packet.
        kernel: usize,
        /// The engine's packet.
        engine: usize,
    },
    /// The kernel let `frame` overtake `before`, which came earlier in the same flow.
    Overtook {
        /// The frame that came first.
        before: usize,
        /// The frame that left first.
        frame: usize,
    },
    /// The engine let `frame` overtake `before`, which came earlier in the same flow.
    EngineOvertook {
        /// The frame that came first.
        before: usize,
        /// The frame that left first.
        frame: usize,
    },
    /// A frame that never arrived.
    Missing {
        /// The frame.
        frame: usize,
    },
    /// A packet of the kernel that is made of none of the frames.
    Unknown {
        /// The kernel's packet.
        kernel: usize,
    },
}

/// Both sides of a batch.
#[derive(Debug)]
pub struct Sides<'a> {
    /// What the kernel merges.
    pub rules: Rules,
    /// The frames.
    pub frames: &'a [Input],
    /// What they are.
    pub known: Vec<Known>,
    /// What the kernel made of them.
    pub kernel: Vec<Group>,
    /// What the engine made of them.
    pub engine: Vec<Left>,
    /// For each frame, its group on the kernel's side and its place in there.
    pub in_kernel: Vec<Option<(usize, usize)>>,
    /// For each frame, its group on the engine's side and its place in there.
    pub in_engine: Vec<Option<(usize, usize)>>,
    /// Packets of the kernel of which no frame is known.
    pub unknown: Vec<usize>,
}

impl<'a> Sides<'a> {
    /// Finds out which frames are in which of the kernel's packets.
    pub fn new(
        rules: Rules,
        frames: &'a [Input],
        captured: &[CapturedFrame],
        engine: Vec<Left>,
    ) -> Self {
        let known: Vec<_> = frames.iter().map(|frame| Known::of(&frame.bytes)).collect();
        let mut used = vec![false; frames.len()];
        let packets: Vec<_> = captured.iter().map(packet).collect();
        let mut found: Vec<Option<Vec<usize>>> = vec![None; packets.len()];
        // What is the same on both sides needs no search. Ordered, since comparing packets ends
        // where they begin to differ, and hashing them does not.
        let mut same: BTreeMap<(&[u8], Option<Cut>), Vec<&Left>> = BTreeMap::new();
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

    /// The frame that `frame` joined on the kernel's side.
    pub fn before_in_kernel(&self, frame: usize) -> Option<usize> {
        let (group, place) = self.in_kernel[frame]?;
        Some(self.kernel[group].frames[place.checked_sub(1)?])
    }

    /// The frame that `frame` joined on the engine's side.
    pub fn before_in_engine(&self, frame: usize) -> Option<usize> {
        let (group, place) = self.in_engine[frame]?;
        Some(self.engine[group].group.frames[place.checked_sub(1)?])
    }

    /// All differences, in the order of the frames.
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
            // Of a packet that did not merge, the state of the checksum is not compared: Linux may
            // have verified it.
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

    /// Frames that left before one that came earlier in their flow: both, of a side's in the order
    /// in which they left.
    fn overtakings<'f>(&self, order: impl Iterator<Item = &'f usize>) -> Vec<(usize, usize)> {
        let (mut latest, mut found) = (HashMap::new(), Vec::new());
        for &frame in order {
            let Some(flow) = &self.known[frame].flow else { continue };
            let latest: &mut usize = latest.entry(flow).or_insert(frame);
            // Of frames with the same bytes nobody knows which is which.
            if *latest > frame && self.frames[*latest].bytes != self.frames[frame].bytes {
                found.push((frame, *latest));
            }
            *latest = frame.max(*latest);
        }
        found
    }
}

/// A captured frame as a packet, its tag put back.
pub fn packet(frame: &CapturedFrame) -> Packet {
    let header = frame.vnet.unwrap_or_default();
    let tag = if frame.vlan.is_some() { 4 } else { 0 };
    Packet {
        bytes: frame.with_tag(),
        cut: (header.gso_type != 0).then_some(Cut { kind: header.gso_type, size: header.gso_size }),
        partial: (header.flags & 1 != 0).then_some((header.csum_start + tag, header.csum_offset)),
    }
}

/// A packet of the kernel with right lengths at each level: of a second tunnel it has not written
/// them yet.
pub fn completed(packet: &Packet) -> Packet {
    let bytes = packet.cut.and_then(|_| nested::with_lengths(&packet.bytes));
    Packet { bytes: bytes.unwrap_or_else(|| packet.bytes.clone()), ..*packet }
}

/// Gives frames of the same bytes their places in the order in which they came: nobody knows which
/// is which.
fn in_order(frames: &[Input], found: &mut [Option<Vec<usize>>]) {
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

/// The frames that a packet is made of: those of its bytes, or of its flow with the parts of its
/// payload, in the order of their arrival.
fn constituents(
    packet: &Packet,
    frames: &[Input],
    known: &[Known],
    used: &mut [bool],
) -> Option<Vec<usize>> {
    let Some(cut) = packet.cut else {
        let frame =
            (0..frames.len()).find(|&frame| !used[frame] && frames[frame].bytes == packet.bytes)?;
        used[frame] = true;
        return Some(vec![frame]);
    };
    let whole = Known::of(&completed(packet).bytes);
    let (mut members, mut sequence, mut from) = (Vec::new(), whole.sequence, 0);
    for part in whole.payload.chunks(usize::from(cut.size)) {
        let fits = |frame: &usize| {
            let known = &known[*frame];
            !used[*frame]
                && known.sequence == sequence
                && known.payload == part
                && known.flow == whole.flow
        };
        // One of the same bytes may have been taken for another packet; they are put in order
        // later.
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

/// Says what differs, in words and hexadecimal digits.
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
