//! `coalesce`: merges the packets of a capture as GRO or LRO would have.

use std::iter::once;
use std::num::NonZeroU16;
use std::ops::Range;
use std::time::Duration;

use crate::file::{Block, CaptureError, Frame, FrameOptions, Record, Sink, Timestamp};
use serde::Serialize;
use superpacket::Simd;
use superpacket::aggregate::{MAX_BIG_LENGTH, Mode, Policy};
use superpacket::packet::{Layer, RxChecksum};
use superpacket::segment::ChecksumForm;
use superpacket::super_packet::SuperPacket;
use superpacket::wire::tcp;

use crate::commands::checksums::ChecksumFields;
use crate::commands::destination::{OpenOutput, Output};
use crate::commands::error::Error;
use crate::commands::in_order::{InOrder, MAX_PLACES};
use crate::commands::input::{FrameReceiver, Input, OpenInput};
use crate::commands::lanes::{
    ArrivedFrame, CaptureAggregator, FrameSink, LinkHeader, MAX_PACKETS, PassReason, Stepping,
    find_partial, first_frame, last_frame,
};
use crate::commands::pool::{Buffer, BufferPool};
use crate::commands::progress::Progress;
use crate::commands::repair::{ChecksumRepairs, Repair};
use crate::commands::totals::{Blocks, CutShort, Tally, Totals};

/// The rules by which packets are merged.
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
    /// The rules by which packets are merged.
    pub rules: Rules,
    /// The length of a poll and the maximum hold time, which determine when held packets leave the
    /// aggregator.
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
    /// Whether pure ACKs are merged too. Has an effect with LRO's rules only.
    pub acks: bool,
    /// Whether wrong checksums are corrected, so that their packets can merge.
    pub fix_checksums: bool,
    /// Whether packets that do not merge keep their unfinished checksums.
    pub keep_partial: bool,
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
            fix_checksums: false,
            keep_partial: false,
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
    /// Numbers of checksums that were completed or corrected, in frames of the input.
    #[serde(flatten)]
    pub checksums: ChecksumRepairs,
    /// Number of pure ACKs that were merged into others. They are included in `merged`.
    pub absorbed_acks: u64,
    /// Numbers of blocks of a pcapng file, other than packets and interfaces, that were kept or
    /// left out.
    pub blocks: Blocks,
    /// Where the input ends within a record; `None` if it does not.
    pub cut_short: Option<CutShort>,
    /// Whether [`Progress::end_requested`] ended the reading of the input.
    pub interrupted: bool,
}

impl CoalesceReport {
    /// Returns the number of packets that did not merge because their checksums are wrong.
    pub fn unmerged_by_checksum(&self) -> u64 {
        self.totals.with_wrong_checksums()
    }
}

/// Merges the packets of each flow into super-packets, as GRO or LRO would have.
///
/// The output is in the order of the input. A merged packet has the place and the time of its first
/// packet; by LRO's rules, it has those of its last packet if that one acknowledges more. Its
/// checksums are complete. Packets that cannot be merged are written as they are, except that their
/// unfinished checksums are completed (unless [`CoalesceOptions::keep_partial`] is set) and, on
/// request, wrong ones are corrected. Other blocks of a pcapng file are written when they are read,
/// before the packets that are held.
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
        repair: Repair::new(options.fix_checksums, options.keep_partial),
        error: None,
        simd,
        order: InOrder::default(),
        spare: Vec::new(),
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
    merged_writer.tally.totals.filtered_out = input.filtered_out();
    let end = input.finish()?;
    let blocks = merged_writer.writer.finish()?;
    Ok(CoalesceReport {
        command: "coalesce",
        input: name,
        output: output_name,
        totals: merged_writer.tally.totals(),
        checksums: merged_writer.repair.counts,
        absorbed_acks: merged_writer.tally.absorbed_acks,
        blocks,
        cut_short: end.cut_short,
        interrupted: end.interrupted,
    })
}

/// Merges the frames of a capture as they arrive.
struct Merger<'a> {
    aggregator: CaptureAggregator,
    pool: BufferPool,
    /// Time after which held packets are written if no frame arrives meanwhile.
    hold: Duration,
    merged_writer: MergedWriter<'a>,
    simd: Simd,
}

impl Merger<'_> {
    /// Writes all packets that the aggregator holds.
    fn release(&mut self) -> Result<(), Error> {
        self.aggregator.finish(&mut self.merged_writer);
        Ok(self.merged_writer.error.take().map_or(Ok(()), Err)?)
    }
}

impl FrameReceiver for Merger<'_> {
    #[inline(always)]
    fn frame(&mut self, frame: &Frame<'_>) -> Result<(), Error> {
        let Merger { aggregator, pool, merged_writer, simd, .. } = self;
        merged_writer.writer.declare(frame.interfaces)?;
        merged_writer.tally.arrived(frame.data.len());
        aggregator.make_room(frame, pool, merged_writer);
        if merged_writer.order.places() >= MAX_PLACES {
            aggregator.finish(merged_writer);
        }
        merged_writer.order.add(frame.time);
        let arrival = ArrivedFrame::new(frame, pool, Some(&mut merged_writer.repair), *simd);
        if aggregator.receive(arrival, pool, merged_writer) {
            merged_writer.joined();
        }
        merged_writer.error.take().map_or(Ok(()), |error| Err(error.into()))
    }

    // Written before the packets that are held, so that secrets come before all packets that need
    // them.
    fn block(&mut self, block: &Block<'_>) -> Result<(), Error> {
        Ok(self.merged_writer.writer.block(block)?)
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

/// Writes a frame with other values in its checksum fields. `fields` are the fields with their
/// values, in the order of their offsets, which are relative to byte `link` of the frame.
pub(crate) fn write_completed(
    writer: &mut OpenOutput<'_>,
    record: Record<'_>,
    frame: &[u8],
    link: usize,
    fields: ChecksumFields,
) -> Result<(), CaptureError> {
    let bytes = fields.map(|field| field.map_or([0; 2], |(_, value)| value.to_be_bytes()));
    let mut parts: [&[u8]; 13] = [&[]; 13];
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

/// Returns the number of the frame whose position and time in the output a packet takes: its first
/// frame, so that the other side's acknowledgements of its payload come after it.
///
/// By LRO's rules, a merged packet may have a newer acknowledgement than its first frame. It then
/// takes the place of its last frame, so that what it acknowledges comes before it.
fn place(packet: &SuperPacket<'_, Buffer>) -> u32 {
    let metadata = &packet.metadata;
    let first = first_frame(metadata);
    // Only packets that LRO has merged cannot be segmented again.
    let (true, None, Some(layout)) = (packet.is_merged(), metadata.gso, metadata.layout) else {
        return first;
    };
    let field = usize::from(layout.transport) + tcp::ACKNOWLEDGEMENT;
    let newest = packet.header().get(field..field + 4);
    let buffer = packet.pieces().first().and_then(|piece| piece.buffer());
    let of_first = buffer.and_then(|buffer| buffer.as_ref().get(field..field + 4));
    if metadata.absorbed_acks == 0 && newest == of_first { first } else { last_frame(metadata) }
}

/// Maximum number of empty merged packets that are kept.
const MOST_SPARE: usize = 64;

/// Writes the packets that leave the aggregator, in the order of their frames in the input. A
/// packet that was not merged keeps all metadata that it has in the capture.
struct MergedWriter<'a> {
    writer: OpenOutput<'a>,
    tally: Tally,
    repair: Repair,
    /// The first error that occurred in writing. It is kept here because the methods of
    /// [`FrameSink`] cannot return an error.
    error: Option<CaptureError>,
    simd: Simd,
    order: InOrder<ReadyPacket>,
    /// Unused merged packets, whose memory is used again.
    spare: Vec<MergedPacket>,
}

/// A packet that has left the aggregator, and may be written when all earlier frames have left it.
#[derive(Debug)]
enum ReadyPacket {
    /// A frame that was not merged, unchanged.
    Single {
        interface: u32,
        buffer: Buffer,
        /// The layer at which the packet starts, for a frame whose unfinished checksums are to be
        /// completed; otherwise `None`.
        completed: Option<Layer>,
    },
    Merged(MergedPacket),
}

#[derive(Debug, Default)]
struct MergedPacket {
    interface: u32,
    /// The link header, followed by the headers of the packet.
    header: Vec<u8>,
    /// The payload, in ranges of buffers.
    payload: Vec<(Buffer, Range<usize>)>,
    /// Payload bytes per segment; `None` if the packet cannot be segmented into the original
    /// packets.
    segment_size: Option<NonZeroU16>,
}

impl MergedWriter<'_> {
    /// Releases the output position of the newest frame, because the frame was merged into an
    /// earlier packet.
    fn joined(&mut self) {
        self.order.leave_empty(self.order.newest());
        self.write_ready();
    }

    /// Assigns the output position of the frame `number` to a packet, and writes the packet if no
    /// earlier frame is held.
    fn put(&mut self, number: u32, packet: ReadyPacket) {
        if let Some((time, packet)) = self.order.fill(number, packet) {
            self.write(time, packet);
        }
        self.write_ready();
    }

    /// Writes the packets before which no earlier frame is held.
    fn write_ready(&mut self) {
        while let Some((time, packet)) = self.order.next() {
            self.write(time, packet);
        }
    }

    fn write(&mut self, time: Option<Timestamp>, packet: ReadyPacket) {
        let written = match packet {
            ReadyPacket::Single { interface, buffer, completed } => {
                self.write_single(interface, &buffer, completed)
            }
            ReadyPacket::Merged(packet) => self.write_merged(time, packet),
        };
        if let Err(error) = written {
            self.error.get_or_insert(error);
        }
    }

    fn write_single(
        &mut self,
        interface: u32,
        buffer: &Buffer,
        completed: Option<Layer>,
    ) -> Result<(), CaptureError> {
        let record = Record {
            interface,
            time: buffer.time(),
            original_length: Some(buffer.original_length()),
            options: buffer.options(),
        };
        let found =
            completed.and_then(|layer| find_partial(buffer.as_ref(), layer, false, self.simd));
        match self.repair.leave(buffer, found) {
            Some(fields) => {
                let link = buffer.frame().len() - buffer.as_ref().len();
                write_completed(&mut self.writer, record, buffer.frame(), link, fields)
            }
            None => self.writer.write(record, [buffer.frame()]),
        }
    }

    /// Writes a merged packet, with the options of the last packet whose payload is in it. (The
    /// engine keeps no buffer of a pure ACK that was merged.)
    fn write_merged(
        &mut self,
        time: Option<Timestamp>,
        mut packet: MergedPacket,
    ) -> Result<(), CaptureError> {
        let last = packet.payload.last();
        let options = last.map_or(FrameOptions::NONE, |(buffer, _)| buffer.options());
        let options = if options.bytes().len() > MOST_OPTIONS {
            FrameOptions::NONE
        } else {
            options.of_merged()
        }
        .with_segment_size(packet.segment_size);
        let record = Record { interface: packet.interface, time, original_length: None, options };
        let payload = packet
            .payload
            .iter()
            .map(|(buffer, range)| buffer.as_ref().get(range.clone()).unwrap_or(&[]));
        let written = self.writer.write(record, once(packet.header.as_slice()).chain(payload));
        packet.header.clear();
        packet.payload.clear();
        if self.spare.len() < MOST_SPARE {
            self.spare.push(packet);
        }
        written
    }
}

impl FrameSink for MergedWriter<'_> {
    fn packet(&mut self, link: &LinkHeader, mut packet: SuperPacket<'_, Buffer>) {
        let header = link.header();
        self.tally.left(&packet.metadata, header.len() + packet.length());
        let number = place(&packet);
        self.order.leave_empty(first_frame(&packet.metadata));
        if packet.is_merged() {
            let mut merged = self.spare.pop().unwrap_or_default();
            merged.interface = link.interface;
            let size = packet.metadata.gso.and_then(|gso| u16::try_from(gso.size.get()).ok());
            merged.segment_size = size.and_then(NonZeroU16::new);
            merged.header.extend_from_slice(header);
            merged.header.extend_from_slice(packet.header());
            merged.payload.extend(packet.take_pieces().filter_map(|piece| {
                let range = piece.start()..piece.start() + piece.length();
                Some((piece.into_buffer()?, range))
            }));
            self.put(number, ReadyPacket::Merged(merged));
        } else {
            let is_partial = matches!(packet.metadata.checksum, RxChecksum::Partial { .. });
            let completed = is_partial.then_some(packet.metadata.layer);
            if let Some(buffer) = packet.take_pieces().next().and_then(|piece| piece.into_buffer())
            {
                let interface = link.interface;
                self.put(number, ReadyPacket::Single { interface, buffer, completed });
            }
        }
    }

    fn passed(&mut self, interface: u32, buffer: &Buffer, why: PassReason) {
        self.tally.passed(why, buffer.frame().len());
        let packet = ReadyPacket::Single { interface, buffer: buffer.clone(), completed: None };
        self.put(self.order.newest(), packet);
    }
}
