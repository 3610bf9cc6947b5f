//! `superpacket coalesce`: a capture with what GRO or LRO would have merged, merged.

use std::iter::once;
use std::ops::Range;
use std::path::Path;

use serde::Serialize;
use superpacket::Simd;
use superpacket::aggregate::{MAX_BIG_LENGTH, Mode as Rules, Policy};
use superpacket::packet::RxChecksum;
use superpacket::segment::ChecksumForm;
use superpacket::super_packet::SuperPacket;
use superpacket_io::capture::{CaptureError, FrameOptions, OutputFormat, Reader, Record, Sink, Source, Timestamp, Writer, same_file};

use crate::arguments::{Coalesce, Mode};
use crate::failure::Failure;
use crate::input::Input;
use crate::lanes::{Arrival, Lanes, Link, Seeds, Taker, Why, find_partial};
use crate::partial::Fields;
use crate::pool::{Buffer, Pool};
use crate::report::{CutShort, Tally, Totals, print, print_json, printable, summary};

#[derive(Serialize)]
struct Report<'a> {
    command: &'static str,
    input: &'a str,
    output: String,
    #[serde(flatten)]
    totals: Totals,
    absorbed_acks: u64,
    cut_short: Option<CutShort>,
}

/// Runs the command.
pub(crate) fn run(arguments: &Coalesce) -> Result<(), Failure> {
    let policy = policy(arguments)?;
    check_output(&arguments.input, &arguments.output, arguments.common.json)?;
    let simd = Simd::detect();
    let mut input = Input::open(&arguments.input, &arguments.common)?;
    let writer = create(&arguments.output, input.reader())?;
    let mut output = Output { writer, tally: Tally::default(), error: None, simd, options: false, header: Vec::new(), pieces: Vec::new() };
    output.writer.declare(input.interfaces())?;
    let pool = Pool::default();
    let mut lanes = Lanes::new(policy, arguments.stepping, simd);
    input.for_each(|frame| {
        output.writer.declare(frame.interfaces)?;
        output.tally.arrived(frame.data.len());
        output.options |= !frame.options.is_empty();
        lanes.make_room(frame, &pool, &mut output);
        let arrival = Arrival::new(frame, &pool, Seeds::Rewrite, simd);
        lanes.receive(arrival, &pool, &mut output);
        output.error.take().map_or(Ok(()), |error| Err(error.into()))
    })?;
    lanes.finish(&mut output);
    if let Some(error) = output.error.take() {
        return Err(error.into());
    }
    let name = input.reader().file().to_owned();
    output.writer.declare(input.interfaces())?;
    let cut_short = input.finish()?.map(CutShort::from);
    output.writer.finish()?;
    let totals = output.tally.totals();
    if arguments.common.json {
        print_json(&Report {
            command: "coalesce",
            input: &name,
            output: arguments.output.display().to_string(),
            totals,
            absorbed_acks: output.tally.absorbed_acks,
            cut_short,
        })?;
    } else {
        let text = format!(
            "{} -> {}\n\n{}",
            printable(&name),
            printable(&arguments.output.display().to_string()),
            summary(&totals, "merged into them")
        );
        print(&text, is_stream(&arguments.output))?;
    }
    Ok(())
}

fn policy(arguments: &Coalesce) -> Result<Policy, Failure> {
    let usage = |text: &str| Err(Failure::Usage(text.to_owned()));
    let base = match arguments.mode {
        Mode::Gro if arguments.acks => return usage("--acks needs --mode lro: pure ACKs merge for local delivery only"),
        Mode::Gro => Policy::gro().with_partial_checksums().with_mode(Rules::Gro { udp: !arguments.no_udp }),
        Mode::Lro if arguments.acks => Policy::lro_with_acks(),
        Mode::Lro => Policy::lro(),
    };
    let max_bytes = match u32::try_from(arguments.max_bytes) {
        Ok(bytes @ 68..=MAX_BIG_LENGTH) => bytes,
        _ => return Err(Failure::Usage(format!("--max-bytes must be between 68 and {MAX_BIG_LENGTH}"))),
    };
    Ok(base
        .with_max_bytes(max_bytes)
        .with_max_packets(arguments.max_packets)
        .with_max_flows(arguments.max_flows.unwrap_or(base.max_flows))
        .with_checksum(ChecksumForm::Full))
}

/// Is this path standard input or output?
pub(crate) fn is_stream(path: &Path) -> bool {
    path == Path::new("-")
}

/// Refuses an output that would destroy its input, or mix with a report.
pub(crate) fn check_output(input: &Path, output: &Path, json: bool) -> Result<(), Failure> {
    // An input that cannot be looked at will be reported when it is opened.
    if !is_stream(output) && same_file(input, output).unwrap_or(false) {
        return Err(Failure::Usage(format!("{}: is the input too; write to another file", output.display())));
    }
    if json && is_stream(output) {
        return Err(Failure::Usage("--json prints to standard output, where the capture goes: choose a file for one of them".to_owned()));
    }
    Ok(())
}

/// Creates the output in the format that its name asks for, or else in the input's.
pub(crate) fn create(path: &Path, input: &Reader) -> Result<Writer, Failure> {
    Ok(Writer::create(path, OutputFormat::for_path(path, input.format()))?)
}

/// Writes a frame as it came, but with its unfinished checksums filled in: `fields` in the order of their places, from `link` bytes on.
pub(crate) fn write_completed(
    writer: &mut Writer,
    record: Record<'_>,
    frame: &[u8],
    link: usize,
    fields: Fields,
) -> Result<(), CaptureError> {
    let bytes = fields.map(|field| field.map_or([0; 2], |(_, value)| value.to_be_bytes()));
    let mut parts: [&[u8]; 9] = [&[]; 9];
    parts[0] = frame;
    let mut at = 0;
    let mut count = 0;
    for (field, bytes) in fields.iter().zip(&bytes) {
        if let Some((place, _)) = field
            && let (Some(before), Some(after)) = (frame.get(at..link + place), frame.get(link + place + 2..))
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

/// The longest options that a merged packet takes over from its last, in bytes: together they must fit a record.
const MOST_OPTIONS: usize = 1 << 20;

/// Writes what leaves, a packet that merged with no other with all that its capture says of it.
struct Output {
    writer: Writer,
    tally: Tally,
    /// What stopped the writing; a sink cannot say.
    error: Option<CaptureError>,
    simd: Simd,
    /// Has a frame come with options?
    options: bool,
    /// A merged packet's header and payload, while its options are looked up. Their memory is kept.
    header: Vec<u8>,
    pieces: Vec<(Buffer, Range<usize>)>,
}

impl Output {
    fn keep(&mut self, written: Result<(), CaptureError>) {
        if let Err(error) = written {
            self.error.get_or_insert(error);
        }
    }

    /// Writes a merged packet with the options of the last packet in it whose payload is there. (An acknowledgement that was absorbed left
    /// nothing behind.)
    fn merged(&mut self, record: Record<'_>, link: &[u8], mut packet: SuperPacket<'_, Buffer>) -> Result<(), CaptureError> {
        if !self.options || packet.contiguous().is_some() {
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
        let options = if options.bytes().len() > MOST_OPTIONS { FrameOptions::NONE } else { options.of_merged() };
        let payload = self.pieces.iter().map(|(buffer, range)| buffer.as_ref().get(range.clone()).unwrap_or(&[]));
        let written = self.writer.write(Record { options, ..record }, once(link).chain(once(self.header.as_slice())).chain(payload));
        self.pieces.clear();
        written
    }
}

/// The record of a packet that merged with no other.
fn record(interface: u32, buffer: &Buffer) -> Record<'_> {
    Record { interface, time: buffer.time(), original_length: Some(buffer.original_length()), options: buffer.options() }
}

impl Taker for Output {
    fn packet(&mut self, link: &Link, mut packet: SuperPacket<'_, Buffer>) {
        let header = link.header();
        self.tally.left(&packet.metadata, header.len() + packet.length());
        let written = if packet.is_merged() {
            let time = Some(Timestamp::from_nanoseconds(packet.metadata.time));
            let record = Record { interface: link.interface, time, original_length: None, options: FrameOptions::NONE };
            self.merged(record, header, packet)
        } else {
            let (checksum, layer) = (packet.metadata.checksum, packet.metadata.layer);
            let Some(buffer) = packet.take_pieces().next().and_then(|piece| piece.into_buffer()) else { return };
            let record = record(link.interface, &buffer);
            let partial = match checksum {
                RxChecksum::Partial { .. } => find_partial(buffer.as_ref(), layer, false, self.simd),
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
        self.keep(written);
    }

    fn passed(&mut self, interface: u32, buffer: &Buffer, why: Why) {
        self.tally.passed(why, buffer.frame().len());
        let written = self.writer.write(record(interface, buffer), [buffer.frame()]);
        self.keep(written);
    }
}
