//! `superpacket analyze`: the command's arguments and its report as text.

use std::path::PathBuf;

use clap::Args;
use superpacket_captures::analyze_words::{merged_before, policies, top_flows};
use superpacket_captures::{
    AnalyzeOptions, AnalyzeReport, CaptureFlows, Findings, MAX_LISTED_FLOWS, analyze, analyze_flows,
};

use super::flows::FlowFile;
use super::options::{CaptureOptions, Stepping};
use super::{
    check_page, conclude, filtered_out, interrupted, is_stream, reasons, unreadable, write_page,
};
use crate::failure::Failure;
use crate::progress::{Bar, warn};
use crate::report::{
    columns, file_heading, fitting_table, grouped, paragraph, percent, print, printable, show,
};

/// The arguments of `superpacket analyze`.
#[derive(Debug, Args)]
pub(crate) struct AnalyzeArguments {
    /// The captures to read; - for standard input
    #[arg(value_name = "IN", required = true)]
    pub(crate) inputs: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) stepping: Stepping,
    /// Write an HTML page with tables and plots
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write all flows, with the packets before and after aggregation and the reasons why the
    /// others did not merge. The name ends in .csv, .json, .ndjson or .parquet; - is standard
    /// output, in CSV
    #[arg(long, value_name = "FILE")]
    pub(crate) flows: Option<PathBuf>,
    /// Number of flows in the list of top flows; at most 100
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) top: u32,
    #[command(flatten)]
    pub(crate) common: CaptureOptions,
}

/// Runs `superpacket analyze`.
pub(crate) fn run(arguments: &AnalyzeArguments) -> Result<(), Failure> {
    check_page(arguments.html.as_deref(), &arguments.inputs, "an")?;
    let options = AnalyzeOptions {
        stepping: arguments.stepping.into(),
        top: arguments.top as usize,
        strict: arguments.common.strict,
    };
    let inputs = arguments.common.inputs(&arguments.inputs)?;
    let mut bar = Bar::new(arguments.common.quiet);
    let mut report = match &arguments.flows {
        None => analyze(inputs, &options, &mut bar)?,
        Some(path) => {
            if arguments.common.json && is_stream(path) {
                return Err(Failure::Usage(
                    "--json prints to standard output, where the flows go: choose a file for them"
                        .to_owned(),
                ));
            }
            let mut file = FlowFile::create(path, &arguments.inputs)?;
            let mut each = |flows: &CaptureFlows| {
                warn_unlisted(flows);
                Ok(file.write(flows)?)
            };
            let report = analyze_flows(inputs, &options, &mut each, &mut bar)?;
            file.finish()?;
            report
        }
    };
    report.unreadable.messages = bar.into_unreadable();
    if let Some(path) = &arguments.html {
        write_page(path, &report.page()?)?;
    }
    let text = || text(&report, arguments.inputs.len(), columns());
    if arguments.flows.as_deref().is_some_and(is_stream) {
        print(&text(), true)?;
    } else {
        show(arguments.common.json, &report, text)?;
    }
    conclude(&report.unreadable)
}

/// Warns the user if a capture has more flows than the file with all flows lists one by one.
fn warn_unlisted(flows: &CaptureFlows) {
    if flows.unlisted() > 0 {
        warn(&format!(
            "{}: the first {} flows are listed; the packets of about {} more are in one row, with the protocol \"unlisted\"",
            flows.file,
            grouped(MAX_LISTED_FLOWS as u64),
            grouped(flows.unlisted()),
        ));
    }
}

/// Formats the report on this number of captures as text with lines of at most `columns` columns.
fn text(report: &AnalyzeReport, captures: usize, columns: usize) -> String {
    let mut text = String::new();
    for file in &report.files {
        text.push_str(&file_heading(&file.file));
        text.push('\n');
        for interface in &file.interfaces {
            text.push_str(&format!("  interface {}\n", printable(interface)));
        }
        findings(&file.findings, columns, &mut text);
        text.push('\n');
    }
    if report.files.len() > 1 {
        text.push_str(&format!("all {} files\n", report.files.len()));
        findings(&report.findings, columns, &mut text);
    }
    text.push_str(&unreadable(&report.unreadable));
    let read = report.files.len() + report.unreadable.messages.len();
    text.push_str(&interrupted(report.interrupted, captures - read));
    text
}

fn findings(findings: &Findings, columns: usize, text: &mut String) {
    let traffic = &findings.traffic;
    let packets = format!(
        "{} packets, {} bytes: TCP {}, UDP {}, DCCP {}, other {}",
        grouped(traffic.packets),
        grouped(traffic.bytes),
        percent(traffic.tcp_packets, traffic.packets),
        percent(traffic.udp_packets, traffic.packets),
        percent(traffic.dccp_packets, traffic.packets),
        percent(traffic.other_packets, traffic.packets),
    );
    text.push_str(&paragraph(&packets, 2, columns));
    let (acks, share) = (grouped(traffic.pure_acks), percent(traffic.pure_acks, traffic.packets));
    text.push_str(&format!("  pure ACKs {acks}, {share} of all packets\n"));
    if let Some(words) = merged_before(findings) {
        text.push_str(&paragraph(&words, 2, columns));
    }
    text.push('\n');
    text.push_str(&fitting_table(&policies(findings), columns));
    text.push_str("\n  Reasons for which packets left, under GRO with UDP:\n");
    text.push_str(&reasons(&findings.totals));
    text.push_str(&filtered_out(&findings.totals));
    if !findings.top_flows.is_empty() {
        text.push('\n');
        text.push_str(&fitting_table(&top_flows(findings, ">= "), columns));
    }
}
