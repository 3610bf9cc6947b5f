//! The commands for captures: their arguments, and their reports as text or JSON. The crate
//! `superpacket-captures` does the work.

pub(crate) mod analyze;
pub(crate) mod check;
pub(crate) mod coalesce;
mod flows;
mod options;
pub(crate) mod segment;
pub(crate) mod steer;
pub(crate) mod verify;

use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};

use superpacket_captures::file::{same_file, write_file};
use superpacket_captures::{Blocks, ChecksumCounts, ChecksumRepairs, Totals, Unreadable};

use crate::failure::Failure;
use crate::report::{average, columns, grouped, paragraph, reasons_table, table};

/// Returns whether a path means standard input or standard output: `-`.
pub(crate) fn is_stream(path: &Path) -> bool {
    path == Path::new("-")
}

/// Returns an error if a capture cannot be written to `output`: it is standard output, and this is
/// a terminal or is also used for the JSON report.
pub(crate) fn check_output(output: &Path, json: bool) -> Result<(), Failure> {
    if !is_stream(output) {
        return Ok(());
    }
    if json {
        return Err(Failure::Usage("--json prints to standard output, where the capture goes: choose a file for one of them".to_owned()));
    }
    if stdout().is_terminal() {
        return Err(Failure::Usage(
            "-o -: a capture is binary, and standard output is a terminal: redirect it or name a file".to_owned(),
        ));
    }
    Ok(())
}

/// Returns an error if an HTML page would overwrite an input. `article` is the word before "input"
/// in the message.
fn check_page(page: Option<&Path>, inputs: &[PathBuf], article: &str) -> Result<(), Failure> {
    let Some(page) = page else { return Ok(()) };
    if is_stream(page) {
        return Err(Failure::Usage("--html needs a file".to_owned()));
    }
    if inputs.iter().any(|input| same_file(input, page).unwrap_or(false)) {
        return Err(Failure::Usage(format!(
            "{}: is {article} input too; write the page to another file",
            page.display()
        )));
    }
    Ok(())
}

fn write_page(path: &Path, page: &str) -> Result<(), Failure> {
    write_file(path, page.as_bytes())
        .map_err(|source| Failure::Page { path: path.to_owned(), source })
}

/// Formats a table of packets and bytes before and after the command, and a table of the reasons
/// why packets were not merged or cut.
fn summary(totals: &Totals, verb: &str) -> String {
    let per_packet = |bytes: u64, packets: u64| average(bytes, packets, 0);
    let mut text = table(
        ["", "packets", "bytes", "bytes/packet"],
        [
            [
                "in".to_owned(),
                grouped(totals.packets_in),
                grouped(totals.bytes_in),
                per_packet(totals.bytes_in, totals.packets_in),
            ],
            [
                "out".to_owned(),
                grouped(totals.packets_out),
                grouped(totals.bytes_out),
                per_packet(totals.bytes_out, totals.packets_out),
            ],
        ],
    );
    text.push_str(&format!(
        "\n  {} super-packets, {} packets {verb}\n\n",
        grouped(totals.super_packets),
        grouped(totals.merged)
    ));
    text.push_str(&reasons(totals));
    text.push_str(&filtered_out(totals));
    text
}

/// Formats the lines that tell which checksums were completed or corrected; empty if none were.
fn checksums(repairs: &ChecksumRepairs) -> String {
    let line = |what: &str, counts: &ChecksumCounts| {
        let kinds: Vec<String> =
            counts.by_kind().map(|(kind, count)| format!("{kind} {}", grouped(count))).collect();
        match counts.frames {
            0 => String::new(),
            frames => format!("\n  {what} in {} frames: {}\n", grouped(frames), kinds.join(", ")),
        }
    };
    let mut text = line("unfinished checksums completed", &repairs.completed);
    text.push_str(&line("wrong checksums corrected", &repairs.fixed));
    if repairs.unknown > 0 {
        text.push_str(&format!(
            "\n  {} frames were cut by the snap length, so their transport checksums could not be corrected\n",
            grouped(repairs.unknown)
        ));
    }
    text
}

/// Returns a line of a report that tells how many packets did not match the filter; empty if all
/// did.
fn filtered_out(totals: &Totals) -> String {
    match totals.filtered_out {
        0 => String::new(),
        count => format!("\n  {} packets did not match the filter\n", grouped(count)),
    }
}

/// Returns the paragraph on blocks of a pcapng file that the output cannot hold; empty if there are
/// none.
fn blocks_left_out(blocks: &Blocks) -> String {
    blocks
        .left_out_text()
        .map_or_else(String::new, |text| format!("\n{}", paragraph(&text, 2, columns())))
}

/// Formats the table of the reasons why packets were not merged or cut, the most frequent first.
fn reasons(totals: &Totals) -> String {
    reasons_table(totals.reasons.iter().map(|(name, count)| (*name, *count)))
}

/// Returns the last line of a report that a signal ended early. `skipped` is the number of captures
/// that were not read at all. Empty if there was no signal.
fn interrupted(interrupted: bool, skipped: usize) -> String {
    match (interrupted, skipped) {
        (false, _) => String::new(),
        (true, 0) => "\n  Interrupted: the report covers the packets before.\n".to_owned(),
        (true, 1) => "\n  Interrupted: the last capture was not read.\n".to_owned(),
        (true, count) => format!("\n  Interrupted: the last {count} captures were not read.\n"),
    }
}

/// Returns the last line of a report on several captures, which tells how many could not be read;
/// empty if all could be read.
fn unreadable(unreadable: &Unreadable) -> String {
    match unreadable.messages.len() {
        0 => String::new(),
        count => format!("\n  {count} of the captures could not be read.\n"),
    }
}

/// Returns an error if some captures could not be read. Called after the report is printed.
fn conclude(unreadable: &Unreadable) -> Result<(), Failure> {
    match unreadable.messages.len() {
        0 => Ok(()),
        count => Err(Failure::Unreadable(count)),
    }
}
