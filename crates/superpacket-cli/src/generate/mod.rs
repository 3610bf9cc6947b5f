//! `superpacket generate`: writes captures of synthetic traffic. The same arguments always give the
//! same file.
//!
//! Flows send one after the other, each a burst: one super-packet, segmented as by TSO hardware (or
//! left whole with `--uncut`). The receiver acknowledges every second segment. The simulated
//! network has 10 Gb/s.

mod frame;

use std::iter::once;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use frame::{FlowKind, PacketBuilder};
use serde::Serialize;
use superpacket::segment::{GsoPacket, SegmentOptions, Segmenter};
use superpacket_captures::file::{
    ByteOrder, CaptureError, Format, FrameOptions, Interface, LinkType, OutputFormat, PcapVariant,
    Record, Sink, TimeResolution, Timestamp, Writer, check_output_name,
};

use crate::amount::size;
use crate::captures::{check_output, is_stream};
use crate::failure::Failure;
use crate::report::{grouped, print, print_json, printable};

/// The traffic to generate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// Bulk TCP over IPv4 with timestamps, 1448 bytes per segment
    Tcp,
    /// Bulk UDP over IPv4, 1472 bytes per datagram
    Udp,
    /// TCP over IPv4 and IPv6, UDP, VXLAN, their acknowledgements, DNS queries
    Mixed,
}

/// The arguments of `superpacket generate`.
#[derive(Debug, Args)]
pub(crate) struct GenerateArguments {
    /// The capture to write; - for standard output. The ending chooses format and compression
    #[arg(value_name = "OUT")]
    pub(crate) output: PathBuf,
    /// Total bytes of frames
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = size)]
    pub(crate) size: u64,
    /// Number of flows, which take turns
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16_000_000))]
    pub(crate) flows: u32,
    /// Full segments that a flow sends in its turn
    #[arg(long, value_name = "N", default_value_t = 44, value_parser = clap::value_parser!(u32).range(1..=44))]
    pub(crate) burst: u32,
    /// Payload bytes of a full segment [default: fills 1500 bytes of IP]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1398))]
    pub(crate) payload: Option<u32>,
    /// Kind of traffic
    #[arg(long, value_enum, default_value_t = Workload::Tcp)]
    pub(crate) workload: Workload,
    /// Leave the bursts uncut: super-packets, as a capture shows them before TSO
    #[arg(long)]
    pub(crate) uncut: bool,
    /// Print the report as JSON
    #[arg(short, long)]
    pub(crate) json: bool,
}

/// Time of the first packet: 2026-01-01T00:00:00 UTC, in nanoseconds since 1970.
const START: u64 = 1_767_225_600_000_000_000;

/// Number of bytes that Ethernet adds to each frame on the wire: preamble, frame check sequence,
/// gap.
const WIRE_OVERHEAD: u64 = 24;

#[derive(Serialize)]
struct GenerateReport {
    command: &'static str,
    output: String,
    packets_out: u64,
    bytes_out: u64,
    flows: u32,
}

/// Runs `superpacket generate`.
pub(crate) fn run(arguments: &GenerateArguments) -> Result<(), Failure> {
    check_output(&arguments.output, arguments.json)?;
    check_output_name(&arguments.output).map_err(Failure::Usage)?;
    let like = Format::Pcap { byte_order: ByteOrder::Little, variant: PcapVariant::Nanoseconds };
    let format = OutputFormat {
        resolution: Some(PcapVariant::Nanoseconds),
        ..OutputFormat::for_path(&arguments.output, like)
    };
    let mut writer = Writer::create(&arguments.output, format)?;
    writer.declare(&[
        Interface::new(LinkType::ETHERNET, TimeResolution::NANOSECONDS).named("generated")
    ])?;
    let mut wire = Wire {
        writer,
        segmenter: Segmenter::new(),
        time: START,
        packets: 0,
        bytes: 0,
        uncut: arguments.uncut,
    };
    let mut builder = PacketBuilder::new(arguments.payload.map(|payload| payload as usize));
    let mut number = 0u64;
    while wire.bytes < arguments.size {
        let flow = (number % u64::from(arguments.flows)) as u32;
        let round = (number / u64::from(arguments.flows)) as u32;
        let kind = match arguments.workload {
            Workload::Tcp => FlowKind::Tcp4,
            Workload::Udp => FlowKind::Udp,
            Workload::Mixed => FlowKind::mixed(flow, round),
        };
        wire.send_burst(&mut builder, kind, flow, round, arguments.burst)?;
        number += 1;
    }
    let Wire { writer, packets, bytes, .. } = wire;
    writer.finish()?;
    let output = arguments.output.display().to_string();
    if arguments.json {
        print_json(&GenerateReport {
            command: "generate",
            output,
            packets_out: packets,
            bytes_out: bytes,
            flows: arguments.flows,
        })?;
    } else {
        let text = format!(
            "{}: {} packets, {} bytes of frames\n",
            printable(&output),
            grouped(packets),
            grouped(bytes)
        );
        print(&text, is_stream(&arguments.output))?;
    }
    Ok(())
}

/// The simulated link: a clock, and the capture to which each packet is written with its time.
struct Wire {
    writer: Writer,
    segmenter: Segmenter,
    time: u64,
    packets: u64,
    bytes: u64,
    uncut: bool,
}

impl Wire {
    /// Writes the burst of one flow, and the acknowledgements of its receiver.
    fn send_burst(
        &mut self,
        builder: &mut PacketBuilder,
        kind: FlowKind,
        flow: u32,
        round: u32,
        burst: u32,
    ) -> Result<(), Failure> {
        let Some(gso) = builder.burst(kind, flow, round, burst) else {
            return Ok(self.send(once(builder.packet()))?);
        };
        if self.uncut {
            self.send(once(builder.packet()))?;
        } else {
            let mut sent = Ok(());
            let packet = builder.packet();
            // Cloned because the closure below needs `&mut self`.
            let mut segmenter = self.segmenter.clone();
            segmenter
                .segment(&GsoPacket::linear(&packet, gso), &SegmentOptions::default(), |segment| {
                    if sent.is_ok() {
                        sent = self.send(once(segment.header()).chain(segment.payload()));
                    }
                })
                .map_err(|error| Failure::Usage(format!("the burst cannot be cut: {error}")))?;
            sent?;
        }
        for acknowledged in (2..=burst).step_by(2).chain((burst % 2 == 1).then_some(burst)) {
            if !builder.acknowledge(kind, flow, round, burst, acknowledged) {
                break;
            }
            self.send(once(builder.packet()))?;
        }
        Ok(())
    }

    fn send<'p>(
        &mut self,
        parts: impl Iterator<Item = &'p [u8]> + Clone,
    ) -> Result<(), CaptureError> {
        let length: usize = parts.clone().map(<[u8]>::len).sum();
        let record = Record {
            interface: 0,
            time: Some(Timestamp::from_nanoseconds(self.time)),
            original_length: None,
            options: FrameOptions::NONE,
        };
        self.writer.write(record, parts)?;
        self.packets += 1;
        self.bytes += length as u64;
        // At 10 Gb/s, a byte takes 0.8 ns.
        self.time += (length as u64 + WIRE_OVERHEAD) * 8 / 10;
        Ok(())
    }
}
