//! `verify`: checks that a capture which is aggregated and then segmented has the same packets as
//! before.
//!
//! Copies of the frames that the engine holds are kept, by flow ([`crate::ledger`]). Each packet
//! that leaves the engine is compared with the oldest frames of its flow: a single packet byte for
//! byte, a super-packet after it has been segmented again from its bytes and metadata alone. So
//! every lost, duplicated, reordered or changed packet is found.

use crate::file::{Frame, FrameOptions};
use serde::Serialize;
use superpacket::Simd;
use superpacket::aggregate::{Mode, Policy};
use superpacket::segment::{
    ChecksumForm, ChecksumOutput, GsoPacket, SegmentBuffers, SegmentOptions, Segmenter,
    WrittenSegment,
};
use superpacket::super_packet::SuperPacket;
use superpacket::wire::parse;

use crate::commands::checksums::check;
use crate::commands::error::Error;
use crate::commands::input::{Input, OpenInput};
use crate::commands::lanes::{
    ArrivedFrame, CaptureAggregator, FrameSink, LinkHeader, PassReason, Stepping,
};
use crate::commands::ledger::{FlowId, Ledger};
use crate::commands::pool::{Buffer, BufferPool};
use crate::commands::progress::{Progress, is_interrupted};
use crate::commands::totals::{CutShort, Tally, Totals, Unreadable};

/// Maximum number of mismatches that the report describes; all of them are counted.
const MOST_DESCRIBED: usize = 10;

/// Options of [`verify`].
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// When held packets are flushed from the aggregation: the number of packets per poll, and the
    /// maximum hold time.
    pub stepping: Stepping,
    /// Whether UDP is aggregated too.
    pub udp: bool,
    /// Whether a capture that ends within a record is an error.
    pub strict: bool,
    /// For tests: in each capture, changes a bit in the payload of the super-packet with this
    /// number, from 1, before it is segmented. The verification must then fail.
    #[doc(hidden)]
    pub inject_fault: Option<u64>,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        VerifyOptions {
            stepping: Stepping::default(),
            udp: true,
            strict: false,
            inject_fault: None,
        }
    }
}

/// The results of the verification of one capture.
#[derive(Clone, Debug, Serialize)]
pub struct FileVerification {
    /// The name of the capture.
    pub file: String,
    /// Numbers of packets and bytes before and after aggregation.
    #[serde(flatten)]
    pub totals: Totals,
    /// Number of segments into which the super-packets were cut.
    pub segments: u64,
    /// Number of packets that were changed, or did not come back from segmentation.
    pub mismatches: u64,
    /// Descriptions of the first mismatches.
    pub details: Vec<String>,
    /// Where the capture ends within a record; `None` if it does not.
    pub cut_short: Option<CutShort>,
}

/// The report of [`verify`].
#[derive(Clone, Debug, Default, Serialize)]
pub struct VerifyReport {
    command: &'static str,
    /// Numbers of packets and bytes before and after aggregation, for all captures together.
    #[serde(flatten)]
    pub totals: Totals,
    /// Number of segments into which the super-packets were cut.
    pub segments: u64,
    /// Number of packets that were changed, or did not come back from segmentation.
    pub mismatches: u64,
    /// The results for each capture.
    pub files: Vec<FileVerification>,
    /// The captures that could not be read.
    pub unreadable: Unreadable,
    /// Whether [`Progress::end_requested`] ended the reading. The last capture may then not have
    /// been read to its end, and those behind it were not read.
    pub interrupted: bool,
}

/// Aggregates captures by GRO's rules, segments the result, and compares it with the captures byte
/// for byte. If every byte came back, `mismatches` is 0.
///
/// # Errors
/// If there is one capture, any error that ends its reading. If there are several, the report lists
/// those that cannot be read.
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
        if is_interrupted(&file, &report.files, progress) {
            report.interrupted = true;
            break;
        }
        let Some((file, interrupted)) = report.unreadable.note_failure(file, progress)? else {
            continue;
        };
        report.totals.add(&file.totals);
        report.segments += file.segments;
        report.mismatches += file.mismatches;
        report.files.push(file);
        report.interrupted = interrupted;
        if interrupted {
            break;
        }
    }
    Ok(report)
}

/// Verifies one capture. Returns the results, and whether reading ended early because
/// [`Progress::end_requested`] returned `true`.
fn verify_one(
    input: Input<'_>,
    options: &VerifyOptions,
    progress: &mut dyn Progress,
) -> Result<(FileVerification, bool), Error> {
    let simd = Simd::detect();
    let policy =
        Policy::gro().with_mode(Mode::Gro { udp: options.udp }).with_checksum(ChecksumForm::Full);
    let mut input = OpenInput::open(input, options.strict, progress)?;
    let pool = BufferPool::default();
    let mut aggregator = CaptureAggregator::new(policy, options.stepping, simd);
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
        cut: CutSegments::default(),
        originals: Vec::new(),
    };
    input.for_each(|frame| {
        comparison.tally.arrived(frame.data.len());
        // Options are not compared, so they need no memory.
        let frame = &Frame { options: FrameOptions::NONE, ..*frame };
        let arrival = ArrivedFrame::new(frame, &pool, None, simd);
        comparison.current = arrival
            .link
            .as_ref()
            .map(|link| FlowId::of(arrival.buffer.as_ref(), link.layer(), link));
        if let Some(flow) = comparison.current {
            comparison.ledger.enter(flow, arrival.buffer.clone());
        }
        aggregator.receive(arrival, &pool, &mut comparison);
        Ok(())
    })?;
    aggregator.finish(&mut comparison);
    comparison.tally.totals.filtered_out = input.filtered_out();
    let end = input.finish()?;
    let left = comparison.ledger.left();
    if left > 0 {
        comparison.mismatch(0, format!("{left} packets never left the engine"));
    }
    if !aggregator.balanced() || !comparison.tally.balanced() {
        comparison.mismatch(0, "the counters do not balance".to_owned());
    }
    let file = FileVerification {
        totals: comparison.tally.totals(),
        file: comparison.file,
        segments: comparison.segments,
        mismatches: comparison.mismatches,
        details: comparison.details,
        cut_short: end.cut_short,
    };
    Ok((file, end.interrupted))
}

struct Comparison {
    file: String,
    tally: Tally,
    ledger: Ledger,
    /// The flow of the frame that was given to the engine last.
    current: Option<FlowId>,
    segmenter: Segmenter,
    simd: Simd,
    /// Number of the super-packet to change for tests, from 1.
    fault: Option<u64>,
    segments: u64,
    mismatches: u64,
    details: Vec<String>,
    /// The bytes of the packet that left the engine last.
    linear: Vec<u8>,
    /// The segments into which this packet was cut.
    cut: CutSegments,
    /// The captured frames that were merged into the packet in `linear`.
    originals: Vec<Buffer>,
}

/// The bytes of all segments of a packet, one after the other, and the offset at which each ends.
#[derive(Debug, Default)]
struct CutSegments {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl CutSegments {
    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Returns the segments in their order.
    fn segments(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start..end])
    }
}

impl SegmentBuffers for CutSegments {
    fn buffer(&mut self, length: usize) -> Option<&mut [u8]> {
        self.bytes.buffer(length)
    }

    fn written(&mut self, _: WrittenSegment) {
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

    /// Segments the packet whose bytes are in `linear`, and returns the number of segments.
    fn cut_again(&mut self, packet: &SuperPacket<'_, Buffer>) -> Result<usize, String> {
        let layer = packet.metadata.layer;
        let layout = parse(&self.linear, self.linear.len(), layer).map_err(|unparsed| {
            format!("the super-packet cannot be parsed: {}", unparsed.reason.name())
        })?;
        check(&self.linear, layer, &layout, None, self.simd)
            .map_err(|wrong| format!("the super-packet's own checksum is wrong: {wrong:?}"))?;
        if self.fault == Some(self.tally.totals.super_packets)
            && let Some(byte) = self.linear.get_mut(usize::from(layout.payload))
        {
            *byte ^= 1;
        }
        let gso = packet.metadata.gso.ok_or("a merged packet has no segment size")?;
        self.cut.clear();
        let buffers = [self.linear.as_slice()];
        let again =
            GsoPacket::new(&buffers, gso).with_layer(layer).with_checksum(packet.metadata.checksum);
        let options = SegmentOptions::default().with_checksum(ChecksumOutput::AsMerged);
        self.segmenter
            .segment_linear(&again, &options, &mut self.cut)
            .map_err(|error| format!("the super-packet cannot be cut: {error}"))?;
        Ok(self.cut.ends.len())
    }

    /// Compares a single packet, or the segments of a merged packet, with the frames of the capture
    /// for which it stands.
    fn compare(&mut self, link: &LinkHeader, merged: bool) {
        let originals = std::mem::take(&mut self.originals);
        let (cut, linear) = (std::mem::take(&mut self.cut), std::mem::take(&mut self.linear));
        let mut segments = cut.segments();
        for original in &originals {
            let segment = if merged { segments.next().unwrap_or(&[]) } else { &linear };
            let original_bytes = original.as_ref();
            if !original.frame().starts_with(link.header()) {
                self.mismatch(original.number(), "left with another link header".to_owned());
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
        self.originals = originals;
        self.originals.clear();
    }
}

impl FrameSink for Comparison {
    fn packet(&mut self, link: &LinkHeader, packet: SuperPacket<'_, Buffer>) {
        self.tally.left(&packet.metadata, link.header().len() + packet.length());
        self.linear.clear();
        packet.copy_to(&mut self.linear);
        let flow = FlowId::of(&self.linear, packet.metadata.layer, link);
        let count = packet.metadata.packets as usize;
        self.ledger.take(flow, count, &mut self.originals);
        let number = self.originals.first().map_or(0, Buffer::number);
        if self.originals.len() != count {
            let found = self.originals.len();
            self.mismatch(
                number,
                format!("a packet of {count} left, but {found} of its flow were held"),
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

    fn passed(&mut self, _interface: u32, buffer: &Buffer, why: PassReason) {
        self.tally.passed(why, buffer.frame().len());
        if let Some(flow) = self.current {
            self.ledger.take(flow, 1, &mut self.originals);
            if self.originals.first().is_none_or(|original| original.number() != buffer.number()) {
                self.mismatch(buffer.number(), "overtook a packet of its flow".to_owned());
            }
            self.originals.clear();
        }
    }
}
