//! `superpacket coalesce`: the command's arguments and its report as text.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use superpacket_captures::{CoalesceOptions, MAX_FLOWS, MAX_PACKETS, Output, Rules, coalesce};

use super::options::{CaptureOptions, ChecksumOptions, Stepping};
use super::{blocks_left_out, check_output, checksums, interrupted, is_stream, summary};
use crate::amount::size;
use crate::failure::Failure;
use crate::progress::{Bar, warn};
use crate::report::{grouped, print, print_json, printable};

/// By which rules packets are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CoalesceMode {
    /// Merged packets can be segmented into the same frames again
    Gro,
    /// For local delivery only: keeps only the newest acknowledgement and window, trims padding
    Lro,
}

/// The arguments of `superpacket coalesce`.
#[derive(Debug, Args)]
pub(crate) struct CoalesceArguments {
    /// The capture to read; - for standard input, tcp://HOST:PORT for a connection
    #[arg(value_name = "IN")]
    pub(crate) input: PathBuf,
    /// The capture to write; - for standard output, tcp://HOST:PORT for a connection. The ending
    /// may choose another format or compression
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: PathBuf,
    /// Rules to aggregate by
    #[arg(long, value_enum, default_value_t = CoalesceMode::Gro)]
    pub(crate) mode: CoalesceMode,
    #[command(flatten)]
    pub(crate) stepping: Stepping,
    /// Longest merged packet in bytes, from the IP header: 68 to 524280; above 65535 ("BIG TCP")
    /// the IP length is written as 0, and Wireshark and tcpdump refuse frames above 262144
    #[arg(long, value_name = "N", default_value = "65535", value_parser = size, allow_negative_numbers = true)]
    pub(crate) max_bytes: u64,
    /// Write the length of IPv6 packets above 65575 bytes in a jumbo payload option (RFC 2675), as
    /// the first Linux versions with BIG TCP do
    #[arg(long)]
    pub(crate) jumbo_option: bool,
    /// Most packets per merged packet: 1 to 512. Each held flow reserves room for this number
    #[arg(long, value_name = "N", default_value_t = MAX_PACKETS, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_PACKETS)), allow_negative_numbers = true)]
    pub(crate) max_packets: u32,
    /// Most flows held at the same time: 1 to 1024 [default: 1024; 8 with --mode lro]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_FLOWS)), allow_negative_numbers = true)]
    pub(crate) max_flows: Option<u32>,
    /// Do not aggregate UDP
    #[arg(long)]
    pub(crate) no_udp: bool,
    /// Aggregate pure ACKs too (with --mode lro)
    #[arg(long)]
    pub(crate) acks: bool,
    #[command(flatten)]
    pub(crate) checksums: ChecksumOptions,
    #[command(flatten)]
    pub(crate) common: CaptureOptions,
}

/// Maximum length in bytes of the packets that the aggregation engine makes.
const MAX_BYTES: u32 = superpacket::aggregate::MAX_BIG_LENGTH;

/// Maximum length in bytes of a frame that Wireshark (`WTAP_MAX_PACKET_SIZE_STANDARD`) and libpcap
/// (`MAXIMUM_SNAPLEN`) read.
const LONGEST_FRAME: u32 = 262_144;

/// Maximum length in bytes of a merged packet whose frame both Wireshark and libpcap can read: this
/// leaves room for a link header with VLAN tags or a radiotap header.
pub(crate) const MOST_READABLE: u32 = LONGEST_FRAME - 256;

/// Runs `superpacket coalesce`.
pub(crate) fn run(arguments: &CoalesceArguments) -> Result<(), Failure> {
    let options = options(arguments)?;
    if options.max_bytes > MOST_READABLE {
        warn(&format!(
            "--max-bytes {}: Wireshark and tcpdump open no file with a frame above {LONGEST_FRAME} bytes; up to {MOST_READABLE} they do, with any link header",
            options.max_bytes
        ));
    }
    check_output(&arguments.output, arguments.common.json)?;
    let mut bar = Bar::new(arguments.common.quiet);
    let report = coalesce(
        arguments.common.input(&arguments.input),
        Output::Path(&arguments.output),
        &options,
        &mut bar,
    )?;
    if arguments.common.json {
        print_json(&report)?;
    } else {
        let (input, output) = (printable(&report.input), printable(&report.output));
        let mut text =
            format!("{input} -> {output}\n\n{}", summary(&report.totals, "merged into them"));
        text.push_str(&checksums(&report.checksums));
        if report.unmerged_by_checksum() > 0 && !arguments.checksums.fix_checksums {
            text.push_str(&format!(
                "\n  {} packets did not merge because their checksums are wrong; --fix-checksums corrects them\n",
                grouped(report.unmerged_by_checksum())
            ));
        }
        text.push_str(&blocks_left_out(&report.blocks));
        text.push_str(&interrupted(report.interrupted, 0));
        print(&text, is_stream(&arguments.output))?;
    }
    Ok(())
}

fn options(arguments: &CoalesceArguments) -> Result<CoalesceOptions, Failure> {
    let rules = match arguments.mode {
        CoalesceMode::Gro if arguments.acks => {
            return Err(Failure::Usage(
                "--acks needs --mode lro: pure ACKs merge for local delivery only".to_owned(),
            ));
        }
        CoalesceMode::Gro => Rules::Gro,
        CoalesceMode::Lro => Rules::Lro,
    };
    let max_bytes = match u32::try_from(arguments.max_bytes) {
        Ok(bytes @ 68..=MAX_BYTES) => bytes,
        _ => return Err(Failure::Usage(format!("--max-bytes must be between 68 and {MAX_BYTES}"))),
    };
    Ok(CoalesceOptions {
        rules,
        stepping: arguments.stepping.into(),
        max_bytes,
        jumbo_option: arguments.jumbo_option,
        max_packets: arguments.max_packets,
        max_flows: arguments.max_flows,
        udp: !arguments.no_udp,
        acks: arguments.acks,
        fix_checksums: arguments.checksums.fix_checksums,
        keep_partial: arguments.checksums.keep_partial,
        strict: arguments.common.strict,
    })
}
