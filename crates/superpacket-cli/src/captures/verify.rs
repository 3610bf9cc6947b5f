//! `superpacket verify`.

use superpacket_captures::{Totals, VerifyOptions, VerifyReport, verify};

use super::{conclude, inputs, unreadable};
use crate::arguments::Verify;
use crate::failure::Failure;
use crate::progress::Bar;
use crate::report::{grouped, print, print_json, printable, table};

/// Runs the command; `true` if every byte came back.
pub(crate) fn run(arguments: &Verify) -> Result<bool, Failure> {
    let options = VerifyOptions {
        stepping: arguments.stepping.into(),
        udp: !arguments.no_udp,
        uneven: arguments.uneven,
        strict: arguments.common.strict,
        inject_fault: arguments.inject_fault,
    };
    let mut bar = Bar::new(arguments.common.quiet);
    let mut report = verify(inputs(&arguments.inputs), &options, &mut bar)?;
    report.unreadable.told = bar.into_unreadable();
    if arguments.common.json {
        print_json(&report)?;
    } else {
        print(&text(&report), false)?;
    }
    conclude(&report.unreadable)?;
    Ok(report.mismatches == 0)
}

fn text(report: &VerifyReport) -> String {
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
    let mut rows: Vec<_> = report.files.iter().map(|file| row(&file.file, &file.totals, file.segments, file.mismatches)).collect();
    if report.files.len() > 1 {
        rows.push(row("total", &report.totals, report.segments, report.mismatches));
    }
    let mut text = table(["file", "packets", "super-packets", "merged", "cut again", "mismatches"], rows);
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
    text.push_str(&unreadable(&report.unreadable));
    text
}
