//! `superpacket verify`: the command's arguments and its report as text.

use std::path::PathBuf;

use clap::Args;
use superpacket_captures::{Totals, VerifyOptions, VerifyReport, verify};

use super::options::{CaptureOptions, Stepping};
use super::{conclude, filtered_out, interrupted, unreadable};
use crate::failure::Failure;
use crate::progress::Bar;
use crate::report::{grouped, printable, show, table};

/// The arguments of `superpacket verify`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArguments {
    /// The captures to read; - for standard input
    #[arg(value_name = "IN", required = true)]
    pub(crate) inputs: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) stepping: Stepping,
    /// Do not aggregate UDP
    #[arg(long)]
    pub(crate) no_udp: bool,
    /// For tests: flip a bit in the payload of the Nth super-packet of each file before it is
    /// segmented; verification must find it
    #[arg(long, value_name = "N", hide = true)]
    pub(crate) inject_fault: Option<u64>,
    #[command(flatten)]
    pub(crate) common: CaptureOptions,
}

/// Runs `superpacket verify`, and returns `true` if every byte was restored.
pub(crate) fn run(arguments: &VerifyArguments) -> Result<bool, Failure> {
    let options = VerifyOptions {
        stepping: arguments.stepping.into(),
        udp: !arguments.no_udp,
        strict: arguments.common.strict,
        inject_fault: arguments.inject_fault,
    };
    let mut bar = Bar::new(arguments.common.quiet);
    let mut report = verify(arguments.common.inputs(&arguments.inputs)?, &options, &mut bar)?;
    report.unreadable.messages = bar.into_unreadable();
    show(arguments.common.json, &report, || text(&report, arguments.inputs.len()))?;
    conclude(&report.unreadable)?;
    Ok(report.mismatches == 0)
}

/// Formats the report on this number of captures as text.
fn text(report: &VerifyReport, captures: usize) -> String {
    let row = |name: &str, totals: &Totals, segments: u64, mismatches: u64| {
        [
            printable(name),
            grouped(totals.packets_in),
            grouped(totals.super_packets),
            grouped(totals.merged),
            grouped(segments),
            grouped(mismatches),
        ]
    };
    let mut rows: Vec<_> = report
        .files
        .iter()
        .map(|file| row(&file.file, &file.totals, file.segments, file.mismatches))
        .collect();
    if report.files.len() > 1 {
        rows.push(row("total", &report.totals, report.segments, report.mismatches));
    }
    let mut text =
        table(["file", "packets", "super-packets", "merged", "cut again", "mismatches"], rows);
    for file in &report.files {
        for detail in &file.details {
            text.push_str(&format!("  {}\n", printable(detail)));
        }
    }
    text.push_str(match report.mismatches {
        0 if report.totals.packets_in == 0 => "\n  There was nothing to check.\n",
        0 => "\n  Every byte came back.\n",
        _ => "\n  NOT reversible.\n",
    });
    text.push_str(&filtered_out(&report.totals));
    text.push_str(&unreadable(&report.unreadable));
    let read = report.files.len() + report.unreadable.messages.len();
    text.push_str(&interrupted(report.interrupted, captures - read));
    text
}
