//! `verify`: is `segment(aggregate(x)) == x`?
//!
//! Copies of the frames that the engine holds are kept apart by flow ([`crate::ledger`]). Whatever
//! comes out is compared with the oldest of its flow: a single packet byte for byte, a super-packet
//! after it has been cut again from its bytes and metadata alone. So a lost, doubled, reordered or
//! altered packet shows.

use crate::file::{Frame, FrameOptions, Truncated};
use serde::Serialize;
use superpacket::Simd;
use superpacket::aggregate::{Mode, Policy};
use superpacket::segment::{
    ChecksumForm, ChecksumOutput, GsoPacket, SegmentBuffers, SegmentOptions, Segmenter, Written,
};
use superpacket::super_packet::SuperPacket;
use superpacket::wire::parse;

use crate::error::Error;
use crate::input::{Input, Opened};
use crate::lanes::{Arrival, Lanes, LinkHeader, Seeds, Stepping, Taker, Why};
use crate::ledger::{Flow, Ledger};
use crate::partial::check;
use crate::pool::{Buffer, Pool};
use crate::progress::Progress;
use crate::totals::{CutShort, Tally, Totals, Unreadable};

/// Mismatches that are described; all are counted.
const MOST_DESCRIBED: usize = 10;

/// How [`verify`] aggregates.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// How aggregation is stepped through each capture.
    pub stepping: Stepping,
    /// Aggregates UDP too.
    pub udp: bool,
    /// Merges TCP packets too that are not alike ([`Policy::merge_uneven`]).
    pub uneven: bool,
    /// Fails if a capture ends within a record.
    pub strict: bool,
    /// Flips a bit in the payload of this super-packet of each capture, from 1, before it is cut:
    /// for tests, which must find it.
    #[doc(hidden)]
    pub inject_fault: Option<u64>,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        VerifyOptions {
            stepping: Stepping::default(),
            udp: true,
            uneven: false,
            strict: false,
            inject_fault: None,
        }
    }
}

/// What [`verify`] found in one capture.
#[derive(Clone, Debug, Serialize)]
pub struct FileVerification {
    /// The capture.
    pub file: String,
    /// What went in and came out.
    #[serde(flatten)]
    pub totals: Totals,
    /// Packets that super-packets were cut into again.
    pub segments: u64,
    /// Packets that came back otherwise, or not at all.
    pub mismatches: u64,
    /// The first mismatches, in words.
    pub details: Vec<String>,
    /// Where the capture was cut short.
    pub cut_short: Option<CutShort>,
}

/// What [`verify`] found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct VerifyReport {
    command: &'static str,
    /// What went in and came out, of all captures.
    #[serde(flatten)]
    pub totals: Totals,
    /// Packets that super-packets were cut into again.
    pub segments: u64,
    /// Packets that came back otherwise, or not at all.
    pub mismatches: u64,
    /// Each capture.
    pub files: Vec<FileVerification>,
    /// Captures that could not be read.
    pub unreadable: Unreadable,
}

/// Aggregates by GRO's rules, segments again, and compares byte for byte: `mismatches` is 0 if
/// every byte came back.
///
/// # Errors
/// Whatever stops the reading of the only capture; of several, those that cannot be read are listed
/// in the report.
pub fn verify(
    inputs: Vec<Input<'_>>,
    options: &VerifyOptions,
    progress: &mut dyn Progress,
) -> Result<VerifyReport, Error> {
    let mut report = VerifyReport {
        command: "verify",
        unreadable: Unreadable::among(inputs.len()),
        ..VerifyReport::default()
    };
    for input in inputs {
        let file = verify_one(input, options, progress);
        let Some(file) = report.unreadable.sort(file, progress)? else { continue };
        report.totals.add(&file.totals);
        report.segments += file.segments;
        report.mismatches += file.mismatches;
        report.files.push(file);
    }
    Ok(report)
}

fn verify_one(
    input: Input<'_>,
    options: &VerifyOptions,
    progress: &mut dyn Progress,
) -> Result<FileVerification, Error> {
    let simd = Simd::detect();
    let policy =
        Policy::gro().with_mode(Mode::Gro { udp: options.udp }).with_checksum(ChecksumForm::Full);
    let policy = if options.uneven { policy.with_merge_uneven() } else { policy };
    let mut input = Opened::open(input, options.strict, progress)?;
    let pool = Pool::default();
    let mut lanes = Lanes::new(policy, options.stepping, simd);
    let mut comparison = Comparison {
        file: input.file().to_owned(),
        tally: Tally::default(),
        ledger: Ledger::default(),
        current: None,
        segmenter: Segmenter::new().with_simd(simd),
        simd,
        fault: options.inject_fault,
        segments: 0,
        mismatches: 0,
        details: Vec::new(),
        linear: Vec::new(),
        cut: Cut::default(),
        taken: Vec::new(),
    };
    input.for_each(|frame| {
        comparison.tally.arrived(frame.data.len());
        // Options are not compared, so they are not held.
        let frame = &Frame { options: FrameOptions::NONE, ..*frame };
        let arrival = Arrival::new(frame, &pool, Seeds::Leave, simd);
        comparison.current =
            arrival.link.as_ref().map(|link| Flow::of(arrival.buffer.as_ref(), link.layer(), link));
        if let Some(flow) = comparison.current {
            comparison.ledger.enter(flow, arrival.buffer.clone());
        }
        lanes.receive(arrival, &pool, &mut comparison);
        Ok(())
    })?;
    lanes.finish(&mut comparison);
    let cut_short: Option<Truncated> = input.finish()?;
    let left = comparison.ledger.left();
    if left > 0 {
        comparison.mismatch(0, format!("{left} packets never came out"));
    }
    if !lanes.balanced() || !comparison.tally.balanced() {
        comparison.mismatch(0, "the counters do not balance".to_owned());
    }
    Ok(FileVerification {
        totals: comparison.tally.totals(),
        file: comparison.file,
        segments: comparison.segments,
        mismatches: comparison.mismatches,
        details: comparison.details,
        cut_short: cut_short.map(CutShort::from),
    })
}

struct Comparison {
    file: String,
    tally: Tally,
    ledger: Ledger,
    /// The flow of the frame that is being taken.
    current: Option<Flow>,
    segmenter: Segmenter,
    simd: Simd,
    /// Which super-packet to damage.
    fault: Option<u64>,
    segments: u64,
    mismatches: u64,
    details: Vec<String>,
    /// A packet that came out, in one piece.
    linear: Vec<u8>,
    /// Its segments.
    cut: Cut,
    /// The frames it should be.
    taken: Vec<Buffer>,
}

/// Segments, back to back, and where each ends.
#[derive(Debug, Default)]
struct Cut {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Cut {
    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// The segments one after the other.
    fn segments(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start..end])
    }
}

impl SegmentBuffers for Cut {
    fn buffer(&mut self, length: usize) -> Option<&mut [u8]> {
        self.bytes.buffer(length)
    }

    fn written(&mut self, _: Written) {
        self.ends.push(self.bytes.len());
    }
}

impl Comparison {
    fn mismatch(&mut self, number: u64, what: String) {
        self.mismatches += 1;
        if self.details.len() < MOST_DESCRIBED {
            let packet = if number > 0 { format!("packet {number}: ") } else { String::new() };
            self.details.push(format!("{}: {packet}{what}", self.file));
        }
    }

    /// Cuts what lies in `linear` again; returns how many segments there are.
    fn cut_again(&mut self, packet: &SuperPacket<'_, Buffer>) -> Result<usize, String> {
        let layer = packet.metadata.layer;
        let layout = parse(&self.linear, self.linear.len(), layer).map_err(|unparsed| {
            format!("the super-packet cannot be parsed: {}", unparsed.reason.name())
        })?;
        check(&self.linear, &layout, None, self.simd)
            .map_err(|wrong| format!("the super-packet's own checksum is wrong: {wrong:?}"))?;
        if self.fault == Some(self.tally.super_packets)
            && let Some(byte) = self.linear.get_mut(usize::from(layout.payload))
        {
            *byte ^= 1;
        }
        let gso = packet.metadata.gso.ok_or("a merged packet without what is needed to cut it")?;
        self.cut.clear();
        let buffers = [self.linear.as_slice()];
        let again = GsoPacket::new(&buffers, gso)
            .with_layer(layer)
            .with_checksum(packet.metadata.checksum)
            .with_parts(packet.parts());
        let options = SegmentOptions::default().with_checksum(ChecksumOutput::AsMerged);
        self.segmenter
            .segment_linear(&again, &options, &mut self.cut)
            .map_err(|error| format!("the super-packet cannot be cut: {error}"))?;
        Ok(self.cut.ends.len())
    }

    /// Compares what was cut, or what came out single, with the frames that it should be.
    fn compare(&mut self, link: &LinkHeader, merged: bool) {
        let taken = std::mem::take(&mut self.taken);
        let (cut, linear) = (std::mem::take(&mut self.cut), std::mem::take(&mut self.linear));
        let mut segments = cut.segments();
        for original in &taken {
            let segment = if merged { segments.next().unwrap_or(&[]) } else { &linear };
            let original_bytes = original.as_ref();
            if !original.frame().starts_with(link.header()) {
                self.mismatch(original.number(), "came out with another link header".to_owned());
            } else if segment != original_bytes {
                let place =
                    segment.iter().zip(original_bytes).position(|(after, before)| after != before);
                let what = match place {
                    Some(place) => {
                        format!(
                            "byte {} is {:#04x}, was {:#04x}",
                            place + link.header().len(),
                            segment[place],
                            original_bytes[place]
                        )
                    }
                    None => format!(
                        "{} bytes came back, there were {}",
                        segment.len(),
                        original_bytes.len()
                    ),
                };
                self.mismatch(original.number(), what);
            }
        }
        drop(segments);
        (self.cut, self.linear) = (cut, linear);
        self.taken = taken;
        self.taken.clear();
    }
}

impl Taker for Comparison {
    fn packet(&mut self, link: &LinkHeader, packet: SuperPacket<'_, Buffer>) {
        self.tally.left(&packet.metadata, link.header().len() + packet.length());
        self.linear.clear();
        packet.copy_to(&mut self.linear);
        let flow = Flow::of(&self.linear, packet.metadata.layer, link);
        let count = packet.metadata.packets as usize;
        self.ledger.take(flow, count, &mut self.taken);
        let number = self.taken.first().map_or(0, Buffer::number);
        if self.taken.len() != count {
            let found = self.taken.len();
            self.mismatch(
                number,
                format!("a packet of {count} came out, {found} of its flow were held"),
            );
            return;
        }
        if !packet.is_merged() {
            self.compare(link, false);
            return;
        }
        match self.cut_again(&packet) {
            Ok(segments) if segments != count => self
                .mismatch(number, format!("{count} packets merged, {segments} segments came back")),
            Ok(segments) => {
                self.segments += segments as u64;
                self.compare(link, true);
            }
            Err(what) => self.mismatch(number, what),
        }
    }

    fn passed(&mut self, _interface: u32, buffer: &Buffer, why: Why) {
        self.tally.passed(why, buffer.frame().len());
        if let Some(flow) = self.current {
            self.ledger.take(flow, 1, &mut self.taken);
            if self.taken.first().is_none_or(|original| original.number() != buffer.number()) {
                self.mismatch(buffer.number(), "overtook a packet of its flow".to_owned());
            }
            self.taken.clear();
        }
    }
}
