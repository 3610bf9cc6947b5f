//! `superpacket segment`: the command's arguments and its report as text.

use std::path::PathBuf;

use clap::Args;
use superpacket_captures::{Output, SegmentOptions, SegmentReport, segment};

use super::options::{CaptureOptions, ChecksumOptions};
use super::{blocks_left_out, check_output, checksums, interrupted, is_stream, summary};
use crate::failure::Failure;
use crate::progress::Bar;
use crate::report::{grouped, print, print_json, printable};

/// The arguments of `superpacket segment`.
#[derive(Debug, Args)]
pub(crate) struct SegmentArguments {
    /// The capture to read; - for standard input, tcp://HOST:PORT for a connection
    #[arg(value_name = "IN")]
    pub(crate) input: PathBuf,
    /// The capture to write; - for standard output, tcp://HOST:PORT for a connection. The ending
    /// may choose another format or compression
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: PathBuf,
    /// Longest IP packet that passes uncut, in bytes: 68 to 65535
    #[arg(long, value_name = "N", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(68..=65_535), allow_negative_numbers = true)]
    pub(crate) mtu: u32,
    /// Cut into IP fragments if nothing else is possible: IPv4 if the don't-fragment bit is clear,
    /// IPv6 as the sender would have
    #[arg(long)]
    pub(crate) fragment: bool,
    /// Cut UDP above the MTU into datagrams of N bytes of payload, 1 to 65535 (for packets sent
    /// with UDP_SEGMENT or received by UDP GRO)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), allow_negative_numbers = true)]
    pub(crate) udp_size: Option<u16>,
    /// Cut frames above the MTU whose IP length says that they fit, as some cards are given them
    /// (only 20 bytes, for example): by the length of the frame
    #[arg(long)]
    pub(crate) fix_lengths: bool,
    #[command(flatten)]
    pub(crate) checksums: ChecksumOptions,
    #[command(flatten)]
    pub(crate) common: CaptureOptions,
}

/// Runs `superpacket segment`.
pub(crate) fn run(arguments: &SegmentArguments) -> Result<(), Failure> {
    check_output(&arguments.output, arguments.common.json)?;
    let options = SegmentOptions {
        mtu: arguments.mtu,
        fragment: arguments.fragment,
        udp_size: arguments.udp_size,
        fix_checksums: arguments.checksums.fix_checksums,
        fix_lengths: arguments.fix_lengths,
        keep_partial: arguments.checksums.keep_partial,
        strict: arguments.common.strict,
    };
    let mut bar = Bar::new(arguments.common.quiet);
    let report = segment(
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
            format!("{input} -> {output}\n\n{}", summary(&report.totals, "more for them"));
        text.push_str(&notes(&report));
        text.push_str(&blocks_left_out(&report.blocks));
        text.push_str(&interrupted(report.interrupted, 0));
        print(&text, is_stream(&arguments.output))?;
    }
    Ok(())
}

/// Formats the lines after the tables: checksums and lengths that were changed, and frames above
/// the MTU that were not segmented.
fn notes(report: &SegmentReport) -> String {
    let mut text = checksums(&report.checksums);
    let mut line = |frames: u64, words: &str| {
        if frames > 0 {
            text.push_str(&format!("\n  {} frames {words}\n", grouped(frames)));
        }
    };
    line(
        report.lengths_fixed,
        "were cut by their own length, because their IP length leaves out a part",
    );
    line(report.uncut, &format!("above the MTU of {} bytes passed uncut", report.mtu));
    line(
        report.uncut_by_checksum(),
        "stayed uncut because their checksums are wrong; --fix-checksums corrects them",
    );
    line(
        report.uncut_by_length(),
        "stayed uncut because their IP length leaves out a part; --fix-lengths cuts them",
    );
    text
}
