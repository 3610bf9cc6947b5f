//! `coalesce`: merges the packets of a capture as GRO or LRO would have.

use std::iter::once;
use std::ops::Range;
use std::time::Duration;

use crate::file::{CaptureError, Frame, FrameOptions, Record, Sink};
use serde::Serialize;
use superpacket::Simd;
use superpacket::aggregate::{MAX_BIG_LENGTH, Mode, Policy};
use superpacket::packet::RxChecksum;
use superpacket::segment::ChecksumForm;
use superpacket::super_packet::SuperPacket;

use crate::commands::destination::{OpenOutput, Output};
use crate::commands::error::Error;
use crate::commands::input::{FrameReceiver, Input, OpenInput};
use crate::commands::lanes::{
    ArrivedFrame, CaptureAggregator, FrameSink, LinkHeader, MAX_PACKETS, PassReason, Stepping,
    UnfinishedForm, clock_start, clock_time, find_partial,
};
use crate::commands::partial::ChecksumFields;
use crate::commands::pool::{Buffer, BufferPool};
use crate::commands::progress::Progress;
use crate::commands::totals::{CutShort, Tally, Totals};

/// By which rules packets are merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rules {
    /// The rules of GRO: merged packets can be segmented into exactly the original frames.
    #[default]
    Gro,
    /// The rules of LRO, for packets that are delivered locally: a merged packet has the newest
    /// acknowledgement and window, and padding is removed.
    Lro,
}

/// Options of [`coalesce`].
#[derive(Clone, Debug)]
pub struct CoalesceOptions {
    /// By which rules packets are merged.
    pub rules: Rules,
    /// When held packets leave: length of a poll, and maximum hold time.
    pub stepping: Stepping,
    /// Maximum length of a merged packet in bytes, from the IP header: 68 to 524,280. For packets
    /// above 65,535 bytes ("BIG TCP") the IP length is written as 0. Wireshark and tcpdump do not
    /// open captures with a frame above 262,144 bytes, link header included.
    pub max_bytes: u32,
    /// Whether the length of IPv6 packets above 65,535 bytes is written into a jumbo payload option
    /// (RFC 2675).
    pub jumbo_option: bool,
    /// Maximum number of packets in a merged packet, limited to 1 to
    /// [`MAX_PACKETS`](crate::MAX_PACKETS).
    pub max_packets: u32,
    /// Maximum number of flows held at a time, limited to 1 to [`MAX_FLOWS`](crate::MAX_FLOWS).
    /// `None` means 1,024 by GRO's rules and 8 by LRO's.
    pub max_flows: Option<u32>,
    /// Whether UDP packets are merged too; only by GRO's rules.
    pub udp: bool,
    /// Whether pure ACKs are merged too; only by LRO's rules.
    pub acks: bool,
    /// Whether a capture that ends within a record is an error.
    pub strict: bool,
}

impl Default for CoalesceOptions {
    fn default() -> Self {
        CoalesceOptions {
            rules: Rules::Gro,
            stepping: Stepping::default(),
            max_bytes: 65_535,
            jumbo_option: false,
            max_packets: MAX_PACKETS,
            max_flows: None,
            udp: true,
            acks: false,
            strict: false,
        }
    }
}

/// The report of [`coalesce`].
#[derive(Clone, Debug, Serialize)]
pub struct CoalesceReport {
    command: &'static str,
    /// The name of the capture that was read.
    pub input: String,
    /// The name of the capture that was written.
    pub output: String,
    /// Numbers of packets and bytes before and after aggregation.
    #[serde(flatten)]
    pub totals: Totals,
    /// Number of pure ACKs that were merged into others. They are included in `merged`.
    pub absorbed_acks: u64,
    /// Where the input ends within a record; `None` if it does not.
    pub cut_short: Option<CutShort>,
    /// Whether [`Progress::end_requested`] ended the input.
    pub interrupted: bool,
}

/// Merges the packets of each flow into super-packets, as GRO or LRO would have.
///
/// A merged packet has the time of its last packet. Its checksums are complete. Packets that cannot
/// be merged are written as they are, except that their unfinished checksums are completed.
///
/// # Errors
/// Any error of reading or writing, and options that are out of range. After an error, the output
/// file is as it was before.
pub fn coalesce(
    input: Input<'_>,
    output: Output<'_>,
    options: &CoalesceOptions,
    progress: &mut dyn Progress,
) -> Result<CoalesceReport, Error> {
    let policy = options.policy()?;
    output.check(&input)?;
    let simd = Simd::detect();
    let mut input = OpenInput::open(input, options.strict, progress)?;
    let output_name = output.name();
    let writer = output.create(&input)?;
    let mut merged_writer = MergedWriter {
        writer,
        tally: Tally::default(),
        error: None,
        simd,
        clock_start: 0,
        has_options: false,
        header: Vec::new(),
        pieces: Vec::new(),
    };
    merged_writer.writer.declare(input.interfaces())?;
    let mut merger = Merger {
        aggregator: CaptureAggregator::new(policy, options.stepping, simd),
        pool: BufferPool::default(),
        hold: Duration::from_nanos(options.stepping.hold),
        merged_writer,
        simd,
    };
    input.deliver(&mut merger)?;
    merger.release()?;
    let Merger { mut merged_writer, .. } = merger;
    let name = input.file().to_owned();
    merged_writer.writer.declare(input.interfaces())?;
    let end = input.finish()?;
    merged_writer.writer.finish()?;
    Ok(CoalesceReport {
        command: "coalesce",
        input: name,
        output: output_name,
        totals: merged_writer.tally.totals(),
        absorbed_acks: merged_writer.tally.absorbed_acks,
        cut_short: end.cut_short,
        interrupted: end.interrupted,
    })
}

/// Merges the frames of a capture as they arrive.
struct Merger<'a> {
    aggregator: CaptureAggregator,
    pool: BufferPool,
    /// For how long packets are held when nothing arrives.
    hold: Duration,
    merged_writer: MergedWriter<'a>,
    simd: Simd,
}

impl Merger<'_> {
    /// Writes all packets that are held.
    fn release(&mut self) -> Result<(), Error> {
        self.aggregator.finish(&mut self.merged_writer);
        Ok(self.merged_writer.error.take().map_or(Ok(()), Err)?)
    }
}

impl FrameReceiver for Merger<'_> {
    #[inline]
    fn frame(&mut self, frame: &Frame<'_>) -> Result<(), Error> {
        let Merger { aggregator, pool, merged_writer, simd, .. } = self;
        merged_writer.writer.declare(frame.interfaces)?;
        merged_writer.tally.arrived(frame.data.len());
        merged_writer.clock_start = clock_start(frame);
        merged_writer.has_options |= !frame.options.is_empty();
        aggregator.make_room(frame, pool, merged_writer);
        let arrival = ArrivedFrame::new(frame, pool, UnfinishedForm::Rewrite, *simd);
        aggregator.receive(arrival, pool, merged_writer);
        merged_writer.error.take().map_or(Ok(()), |error| Err(error.into()))
    }

    fn idle(&mut self, waited: Duration) -> Result<Option<Duration>, Error> {
        if waited >= self.hold {
            self.release()?;
        }
        self.merged_writer.writer.flush()?;
        Ok((self.aggregator.held() > 0).then_some(self.hold))
    }
}

impl CoalesceOptions {
    /// Returns the policy of the aggregation engine for these options.
    fn policy(&self) -> Result<Policy, Error> {
        let base = match self.rules {
            Rules::Gro if self.acks => {
                return Err(Error::Options(
                    "acks: needs LRO's rules, since pure ACKs merge for local delivery only"
                        .to_owned(),
                ));
            }
            Rules::Gro => {
                Policy::gro().with_partial_checksums().with_mode(Mode::Gro { udp: self.udp })
            }
            Rules::Lro if self.acks => Policy::lro_with_acks(),
            Rules::Lro => Policy::lro(),
        };
        if !(68..=MAX_BIG_LENGTH).contains(&self.max_bytes) {
            return Err(Error::Options(format!(
                "max_bytes: {} is not between 68 and {MAX_BIG_LENGTH}",
                self.max_bytes
            )));
        }
        let policy = base
            .with_max_bytes(self.max_bytes)
            .with_max_packets(self.max_packets)
            .with_max_flows(self.max_flows.unwrap_or(base.max_flows))
            .with_checksum(ChecksumForm::Full);
        Ok(if self.jumbo_option { policy.with_jumbo_option() } else { policy })
    }
}

/// Writes a frame with its unfinished checksums filled in. `fields` are the fields with their
/// values, in the order of their offsets, which are relative to byte `link` of the frame.
pub(crate) fn write_completed(
    writer: &mut OpenOutput<'_>,
    record: Record<'_>,
    frame: &[u8],
    link: usize,
    fields: ChecksumFields,
) -> Result<(), CaptureError> {
    let bytes = fields.map(|field| field.map_or([0; 2], |(_, value)| value.to_be_bytes()));
    let mut parts: [&[u8]; 9] = [&[]; 9];
    parts[0] = frame;
    let mut at = 0;
    let mut count = 0;
    for (field, bytes) in fields.iter().zip(&bytes) {
        if let Some((place, _)) = field
            && let (Some(before), Some(after)) =
                (frame.get(at..link + place), frame.get(link + place + 2..))
        {
            parts[count] = before;
            parts[count + 1] = bytes;
            parts[count + 2] = after;
            count += 2;
            at = link + place + 2;
        }
    }
    writer.write(record, parts)
}

/// Maximum length in bytes of the options that a merged packet takes over from its last packet. All
/// options must fit into one record.
const MOST_OPTIONS: usize = 1 << 20;

/// Writes the packets that leave the aggregation. A packet that was not merged keeps everything
/// that its capture says about it.
struct MergedWriter<'a> {
    writer: OpenOutput<'a>,
    tally: Tally,
    /// The first error of writing, kept because the methods of [`FrameSink`] return none.
    error: Option<CaptureError>,
    simd: Simd,
    clock_start: i64,
    /// Whether any frame of the capture so far had options.
    has_options: bool,
    /// The header of a merged packet while its options are looked up. Its memory is used for all
    /// packets.
    header: Vec<u8>,
    pieces: Vec<(Buffer, Range<usize>)>,
}

impl MergedWriter<'_> {
    fn keep_error(&mut self, written: Result<(), CaptureError>) {
        if let Err(error) = written {
            self.error.get_or_insert(error);
        }
    }

    /// Writes a merged packet, with the options of the last packet whose payload is in it. (The
    /// engine keeps no buffer of a pure ACK that was merged.)
    fn merged(
        &mut self,
        record: Record<'_>,
        link: &[u8],
        mut packet: SuperPacket<'_, Buffer>,
    ) -> Result<(), CaptureError> {
        if !self.has_options || packet.contiguous().is_some() {
            return self.writer.write(record, once(link).chain(packet.slices()));
        }
        self.header.clear();
        self.header.extend_from_slice(packet.header());
        self.pieces.clear();
        self.pieces.extend(packet.take_pieces().filter_map(|piece| {
            let range = piece.start()..piece.start() + piece.length();
            Some((piece.into_buffer()?, range))
        }));
        let options = self.pieces.last().map_or(FrameOptions::NONE, |(buffer, _)| buffer.options());
        let options = if options.bytes().len() > MOST_OPTIONS {
            FrameOptions::NONE
        } else {
            options.of_merged()
        };
        let payload = self
            .pieces
            .iter()
            .map(|(buffer, range)| buffer.as_ref().get(range.clone()).unwrap_or(&[]));
        let written = self.writer.write(
            Record { options, ..record },
            once(link).chain(once(self.header.as_slice())).chain(payload),
        );
        self.pieces.clear();
        written
    }
}

/// Returns the properties of a packet that was not merged, for the output file.
fn record(interface: u32, buffer: &Buffer) -> Record<'_> {
    Record {
        interface,
        time: buffer.time(),
        original_length: Some(buffer.original_length()),
        options: buffer.options(),
    }
}

impl FrameSink for MergedWriter<'_> {
    fn packet(&mut self, link: &LinkHeader, mut packet: SuperPacket<'_, Buffer>) {
        let header = link.header();
        self.tally.left(&packet.metadata, header.len() + packet.length());
        let written = if packet.is_merged() {
            let time = Some(clock_time(self.clock_start, packet.metadata.time));
            let record = Record {
                interface: link.interface,
                time,
                original_length: None,
                options: FrameOptions::NONE,
            };
            self.merged(record, header, packet)
        } else {
            let (checksum, layer) = (packet.metadata.checksum, packet.metadata.layer);
            let Some(buffer) = packet.take_pieces().next().and_then(|piece| piece.into_buffer())
            else {
                return;
            };
            let record = record(link.interface, &buffer);
            let partial = match checksum {
                RxChecksum::Partial { .. } => {
                    find_partial(buffer.as_ref(), layer, false, self.simd)
                }
                _ => None,
            };
            match partial {
                Some(partial) => {
                    let fields = partial.completed(buffer.as_ref(), self.simd);
                    write_completed(&mut self.writer, record, buffer.frame(), header.len(), fields)
                }
                None => self.writer.write(record, [buffer.frame()]),
            }
        };
        self.keep_error(written);
    }

    fn passed(&mut self, interface: u32, buffer: &Buffer, why: PassReason) {
        self.tally.passed(why, buffer.frame().len());
        let written = self.writer.write(record(interface, buffer), [buffer.frame()]);
        self.keep_error(written);
    }
}
