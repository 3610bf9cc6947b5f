//! `superpacket check`: the command's arguments and its report as text.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use superpacket_captures::{CheckOptions, CheckReport, NotJudged, Verdict, Violation, check};

use super::is_stream;
use super::options::CaptureOptions;
use crate::failure::Failure;
use crate::progress::Bar;
use crate::report::{columns, grouped, hanging, paragraph, printable, show};

/// By which rules packets are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Strictness {
    /// The rules of Linux
    Linux,
    /// Every byte can be restored from a packet and its header, and no packet overtakes another of
    /// its flow
    Reversible,
}

/// The arguments of `superpacket check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    /// The implementation's output; - for standard input
    #[arg(value_name = "FILE")]
    pub(crate) checked: PathBuf,
    /// The implementation's input; - for standard input
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) origin: PathBuf,
    /// Rules to check by
    #[arg(long, value_enum, default_value_t = Strictness::Linux)]
    pub(crate) rules: Strictness,
    /// Describe all violations, not only the first 10
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) common: CaptureOptions,
}

/// Runs `superpacket check`, and returns its result.
pub(crate) fn run(arguments: &CheckArguments) -> Result<Verdict, Failure> {
    if is_stream(&arguments.checked) && is_stream(&arguments.origin) {
        return Err(Failure::Usage(
            "FILE and --origin are both standard input: choose a file for one of them".to_owned(),
        ));
    }
    let options = CheckOptions {
        rules: match arguments.rules {
            Strictness::Linux => superpacket_captures::Strictness::Linux,
            Strictness::Reversible => superpacket_captures::Strictness::Reversible,
        },
        most_described: if arguments.all {
            usize::MAX
        } else {
            CheckOptions::default().most_described
        },
        strict: arguments.common.strict,
    };
    let common = &arguments.common;
    let mut bar = Bar::new(common.quiet);
    let report = check(
        common.input(&arguments.checked),
        common.input(&arguments.origin),
        &options,
        &mut bar,
    )?;
    show(arguments.common.json, &report, || text(&report, columns()))?;
    Ok(report.verdict)
}

/// Formats the report as text with lines of at most `columns` columns.
fn text(report: &CheckReport, columns: usize) -> String {
    let mut text = format!("{}, of {}\n\n", printable(&report.checked), printable(&report.origin));
    let counts = format!(
        "Packets that left: {}; of the original: {}. Super-packets: {}; packets that joined another: {}; segments: {}.",
        grouped(report.packets_out),
        grouped(report.packets_in),
        grouped(report.super_packets),
        grouped(report.merged),
        grouped(report.segments),
    );
    text.push_str(&paragraph(&counts, 2, columns));
    let (checked, origin) = (report.filtered_out, report.origin_filtered_out);
    if checked + origin > 0 {
        let counts = format!(
            "Not read, because they do not match the filter: {} packets, and {} of the original.",
            grouped(checked),
            grouped(origin)
        );
        text.push_str(&paragraph(&counts, 2, columns));
    }
    for line in not_judged(&report.not_judged) {
        text.push_str(&paragraph(&format!("Not judged: {line}."), 2, columns));
    }
    if report.interrupted {
        text.push_str("  Not judged: the packets that were not read, because of a signal.\n");
    }
    for (what, cut) in
        [("what was checked", &report.cut_short), ("the original", &report.origin_cut_short)]
    {
        if let Some(cut) = cut {
            let line = format!(
                "Not judged: {what} from packet {} on: the file was cut short, {}.",
                grouped(cut.packet),
                printable(&cut.reason)
            );
            text.push_str(&paragraph(&line, 2, columns));
        }
    }
    if report.violations == 0 {
        text.push('\n');
        text.push_str(&match (report.verdict, report.packets_in + report.packets_out) {
            (Verdict::Incomplete, _) => paragraph(
                "INCOMPLETE: no rule is broken, but some packets could not be judged.",
                2,
                columns,
            ),
            (_, 0) => "  There was nothing to check.\n".to_owned(),
            _ => "  Faithful: no rule is broken.\n".to_owned(),
        });
        return text;
    }
    text.push('\n');
    for violation in &report.described {
        text.push_str(&hanging(&sentence(violation), 2, 6, columns));
    }
    text.push_str("\n  The rules:\n");
    for (rule, count) in &report.by_rule {
        text.push_str(&hanging(
            &format!("{} ({}): {}", rule.name(), grouped(*count), rule.sentence()),
            2,
            6,
            columns,
        ));
    }
    let described = report.described.len() as u64;
    let rest = match report.violations - described {
        0 => ".".to_owned(),
        _ => format!("; the first {described} are described, and all with --all."),
    };
    let violations = if report.violations == 1 { "violation" } else { "violations" };
    text.push_str(&format!(
        "\n  NOT faithful: {} {violations}{rest}\n",
        grouped(report.violations)
    ));
    text
}

/// Describes a violation of a rule in one line.
fn sentence(violation: &Violation) -> String {
    let Violation { packet, origin, field, rule, found } = violation;
    let packet = match (packet, origin) {
        (Some(packet), Some(origin)) => format!("packet {packet} (original {origin})"),
        (Some(packet), None) => format!("packet {packet}"),
        (None, Some(origin)) => format!("original {origin}"),
        (None, None) => "the file".to_owned(),
    };
    format!("{packet}: {}, {field}: {}", rule.name(), printable(found))
}

/// Describes the packets that could not be checked, with one line for each reason.
fn not_judged(not_judged: &NotJudged) -> Vec<String> {
    let NotJudged {
        headers,
        sizes,
        origin_headers,
        snap_length,
        missing,
        without_origin,
        unreadable,
        link_headers,
    } = *not_judged;
    let mut lines = Vec::new();
    let mut line = |count: u64, words: &str| {
        if count > 0 {
            lines.push(format!("{} {words}", grouped(count)));
        }
    };
    line(
        headers,
        "super-packets have no virtio_net_hdr: what it says of their segments (gso_size) and of their checksum",
    );
    line(
        sizes,
        "super-packets of the original have no virtio_net_hdr: the size of their segments was taken from the first of them",
    );
    line(
        origin_headers,
        "packets of the original have a header that contradicts them, or asks for more than 16,384 segments, and were taken for whole",
    );
    line(snap_length, "packets were cut by a snap length: the bytes that are missing");
    line(missing, "packets of the original did not leave in the part of the file that is there");
    line(
        without_origin,
        "packets that left are like none in the part of the original that could be read",
    );
    line(
        unreadable,
        "super-packets, and packets that may be in them, have headers that cannot be read",
    );
    if link_headers {
        lines.push("the files begin at different layers: link headers".to_owned());
    }
    lines
}
