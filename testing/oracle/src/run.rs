//! Runs that compare the kernel and the engine with many frames and super-packets, and the report
//! of the differences.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use superpacket::SplitError;
use superpacket_captures::file::{
    ByteOrder, CaptureError, Format, FrameOptions, Interface, LinkType, OutputFormat, PcapVariant,
    Record, Sink, TimeResolution, Writer,
};
use superpacket_lab::{CapturedFrame, LabError};

use crate::compare::{Sides, packet};
use crate::engine;
use crate::frames::{InputFrame, hexadecimal};
use crate::hint::Hint;
use crate::kernel::{KernelGro, KernelGso, Rules};
use crate::kind::{self, Explained, Kind, explain};
use crate::nested;
use crate::segment::{GsoInput, without_fragment_id};
use crate::traffic::Batches;

/// Number of times that a batch with an unexplained difference is repeated.
const REPEATS: u32 = 4;

/// Counts and differences of one or more runs.
#[derive(Clone, Debug, Default)]
pub struct RunReport {
    /// The kinds of packets that the kernel's GRO merges.
    pub rules: Rules,
    /// Frames that both the kernel and the engine received.
    pub frames: u64,
    /// Frames that the kernel merged with others.
    pub merged: u64,
    /// Received frames with a GRO hint, which are in two tunnels.
    pub hinted: u64,
    /// Frames with a GRO hint that the kernel merged with others.
    pub hinted_merged: u64,
    /// Packets in two tunnels that both the kernel's Geneve device and the engine delivered with
    /// the same bytes.
    pub behind_geneve: u64,
    /// Number of explained differences of each kind.
    pub kinds: BTreeMap<Kind, u64>,
    /// Batches whose unexplained differences disappeared when the batch was repeated. Reasons are a
    /// kernel poll that ended within the batch, and a hash collision of address pairs in the
    /// engine.
    pub repeated: u64,
    /// Super-packets that both the kernel and the engine received for segmentation.
    pub packets: u64,
    /// Segments that are the same from the kernel and the engine, byte for byte.
    pub segments: u64,
    /// Super-packets that both the kernel and the engine refused.
    pub refused: u64,
    /// Batches and super-packets with a difference that no kind explains.
    pub faults: Vec<RunFault>,
}

/// A batch or super-packet for which kernel and engine differ in a way that none of the known
/// kinds of differences explains.
#[derive(Clone, Debug)]
pub struct RunFault {
    /// A text that describes the difference.
    pub text: String,
    /// The frames of the batch, or the super-packet as one frame.
    pub frames: Vec<InputFrame>,
}

impl RunFault {
    fn of_segments(
        packet: GsoInput,
        theirs: Option<Vec<Vec<u8>>>,
        ours: &Result<Vec<Vec<u8>>, SplitError>,
    ) -> Self {
        let mut text = format!("{:?}\n", packet.header);
        let different = |index: usize| match (theirs.as_ref(), ours) {
            (Some(theirs), Ok(ours)) => theirs.get(index) != ours.get(index),
            _ => true,
        };
        let count = theirs.as_ref().map_or(0, Vec::len).max(ours.as_ref().map_or(0, Vec::len));
        for index in (0..count).filter(|&index| different(index)).take(2) {
            let theirs = theirs
                .as_ref()
                .and_then(|theirs| theirs.get(index))
                .map(|segment| hexadecimal(segment));
            let ours =
                ours.as_ref().map(|ours| ours.get(index).map(|segment| hexadecimal(segment)));
            text.push_str(&format!("segment {index}: kernel {theirs:?}, engine {ours:?}\n"));
        }
        text.push_str(&format!(
            "kernel: {:?} segments, engine: {:?}\n",
            theirs.map(|theirs| theirs.len()),
            ours.as_ref().map(Vec::len)
        ));
        RunFault { text, frames: vec![InputFrame::new(packet.bytes)] }
    }

    /// Writes the frames to a capture file named `name` in the directory for temporary files.
    ///
    /// # Errors
    /// The errors of the file system.
    pub fn save(&self, name: &str) -> Result<PathBuf, CaptureError> {
        let path = std::env::temp_dir().join(name);
        write_capture(&path, &self.frames)?;
        Ok(path)
    }
}

fn write_capture(path: &Path, frames: &[InputFrame]) -> Result<(), CaptureError> {
    let format = Format::Pcap { byte_order: ByteOrder::NATIVE, variant: PcapVariant::Microseconds };
    let mut writer = Writer::create(path, OutputFormat::like(format))?;
    writer.declare(&[Interface::new(LinkType::ETHERNET, TimeResolution::MICROSECONDS)])?;
    let record =
        Record { interface: 0, time: None, original_length: None, options: FrameOptions::NONE };
    frames.iter().try_for_each(|frame| writer.write(record, [&frame.bytes[..]]))?;
    writer.finish().map(drop)
}

/// Gives batches to the kernel and the engine until they contain as many frames as `frames`, or
/// until the report has more faults than allowed.
///
/// # Errors
/// As [`KernelGro::receive`].
pub fn receive(
    kernel: &mut KernelGro,
    batches: &mut Batches,
    frames: u64,
    report: &mut RunReport,
) -> Result<(), LabError> {
    let mut left = frames;
    while left > 0 && report.faults.is_empty() {
        let Some(batch) = batches.next() else { break };
        left = left.saturating_sub(batch.len() as u64);
        receive_batch(kernel, batch, report)?;
    }
    Ok(())
}

fn receive_batch(
    kernel: &mut KernelGro,
    batch: Vec<InputFrame>,
    report: &mut RunReport,
) -> Result<(), LabError> {
    let sent: Vec<_> = batch.iter().map(|frame| (frame.header(), &frame.bytes[..])).collect();
    let mut fault = String::new();
    for attempt in 0..=REPEATS {
        let captured = kernel.receive(&sent)?;
        // The first repetition uses the same hash key again, the later ones use other keys.
        let seed = report.frames + u64::from(attempt.saturating_sub(1));
        let sides = Sides::new(kernel.rules(), &batch, &captured, engine::receive(&batch, seed));
        let Explained { kinds, unexplained } = explain(&sides);
        if unexplained.is_empty() {
            report.repeated += u64::from(attempt > 0);
            report.frames += batch.len() as u64;
            let is_hinted = |&frame: &usize| Hint::of(&batch[frame].bytes).is_some();
            let merged = sides
                .kernel
                .iter()
                .map(|group| &group.frames[..])
                .filter(|frames| frames.len() > 1)
                .flatten();
            report.hinted += (0..batch.len()).filter(is_hinted).count() as u64;
            report.hinted_merged += merged.filter(|frame| is_hinted(frame)).count() as u64;
            report.merged += sides
                .kernel
                .iter()
                .map(|group| group.frames.len() as u64)
                .filter(|&frames| frames > 1)
                .sum::<u64>();
            kinds
                .into_iter()
                .for_each(|(kind, count)| *report.kinds.entry(kind).or_default() += count);
            if let Some(text) = engine::disagreement(&batch, seed, &sides.engine) {
                report.faults.push(RunFault { text, frames: batch });
            }
            return Ok(());
        }
        fault = crate::compare::describe(&sides, &unexplained);
    }
    report.frames += batch.len() as u64;
    report.faults.push(RunFault { text: fault, frames: batch });
    Ok(())
}

/// Compares the packets in two tunnels that the kernel's Geneve device delivers, without the first
/// tunnel and with the second tunnel's headers completed, with the engine's packets.
///
/// # Errors
/// As [`KernelGro::receive`].
pub fn receive_behind_geneve(
    kernel: &mut KernelGro,
    report: &mut RunReport,
) -> Result<(), LabError> {
    for frames in nested::mergeable(kernel.mac()?) {
        let frames: Vec<_> = frames.iter().map(|frame| InputFrame::new(frame.to_bytes())).collect();
        let sent: Vec<_> = frames.iter().map(|frame| (frame.header(), &frame.bytes[..])).collect();
        let ours: Vec<_> = engine::receive(&frames, 0)
            .iter()
            .map(|left| nested::behind_geneve(&left.group.packet))
            .collect();
        let mut theirs = Vec::new();
        for _ in 0..=REPEATS {
            theirs = kernel
                .receive_behind_geneve(&sent)?
                .iter()
                .map(|frame| Some(packet(frame)))
                .collect();
            if theirs == ours {
                break;
            }
        }
        if theirs == ours {
            report.behind_geneve += ours.len() as u64;
            continue;
        }
        let mut text = String::from("behind the Geneve device\n");
        for (side, packets) in [("kernel", &theirs), ("engine", &ours)] {
            for packet in packets.iter().flatten() {
                text.push_str(&format!(
                    "{side}: {:?} {:?} {}\n",
                    packet.cut,
                    packet.partial,
                    hexadecimal(&packet.bytes)
                ));
            }
        }
        report.faults.push(RunFault { text, frames });
    }
    Ok(())
}

/// Segments `count` packets with the kernel and the engine, or fewer if the report has more faults
/// than allowed.
///
/// # Errors
/// As [`KernelGso::segment`].
pub fn segment(
    kernel: &mut KernelGso,
    packets: &mut impl Iterator<Item = GsoInput>,
    count: u64,
    report: &mut RunReport,
) -> Result<(), LabError> {
    for packet in packets.by_ref().take(usize::try_from(count).unwrap_or(usize::MAX)) {
        let captured = kernel.segment(packet.header, &packet.bytes)?;
        let theirs: Option<Vec<_>> =
            captured.map(|frames| frames.iter().map(CapturedFrame::with_tag).collect());
        let (theirs, ours) =
            (theirs.map(without_fragment_id), packet.cut().map(without_fragment_id));
        report.packets += 1;
        match (&theirs, &ours) {
            (Some(theirs), Ok(ours)) if theirs == ours => report.segments += ours.len() as u64,
            (None, Err(_)) => report.refused += 1,
            _ => match kind::segmentation(&packet, theirs.as_deref(), &ours) {
                Some(kind) => *report.kinds.entry(kind).or_default() += 1,
                None => report.faults.push(RunFault::of_segments(packet, theirs, &ours)),
            },
        }
        if !report.faults.is_empty() {
            break;
        }
    }
    Ok(())
}
