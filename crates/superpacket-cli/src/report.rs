//! What is counted, and how it is printed.

use std::collections::BTreeMap;
use std::io::{self, Write};

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};
use serde::Serialize;
use superpacket::aggregate::Reason;
use superpacket::super_packet::Metadata;
use superpacket_io::capture::Truncated;
use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

use crate::failure::Failure;
use crate::lanes::Why;

/// What went in and came out: the keys that every command's JSON has.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Totals {
    /// Frames read.
    pub(crate) packets_in: u64,
    /// Frames written, or that would be.
    pub(crate) packets_out: u64,
    /// Bytes of the frames read.
    pub(crate) bytes_in: u64,
    /// Bytes of the frames written.
    pub(crate) bytes_out: u64,
    /// Frames that stand for several.
    pub(crate) super_packets: u64,
    /// Frames that joined another: `packets_in - packets_out`. In `segment`, those that were in super-packets: `packets_out - packets_in`.
    pub(crate) merged: u64,
    /// Why frames left as they did; adds up to `packets_out` (in `segment`, to `packets_in`).
    pub(crate) reasons: BTreeMap<&'static str, u64>,
}

impl Totals {
    /// Adds another's.
    pub(crate) fn add(&mut self, other: &Totals) {
        self.packets_in += other.packets_in;
        self.packets_out += other.packets_out;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.super_packets += other.super_packets;
        self.merged += other.merged;
        for (reason, count) in &other.reasons {
            *self.reasons.entry(reason).or_default() += count;
        }
    }

    /// Counts a reason.
    pub(crate) fn reason(&mut self, name: &'static str) {
        *self.reasons.entry(name).or_default() += 1;
    }

    /// Packets in for each packet out, as reports print it.
    pub(crate) fn fewer_by(&self) -> String {
        match self.packets_out {
            0 => NOTHING.to_owned(),
            _ => format!("{:.2}x", ratio(self.packets_in, self.packets_out)),
        }
    }
}

/// What is printed where there is nothing to divide by.
const NOTHING: &str = "-";

/// One number over another with so many decimal places, as reports print it.
pub(crate) fn average(over: u64, under: u64, places: usize) -> String {
    if under == 0 { NOTHING.to_owned() } else { format!("{:.places$}", ratio(over, under)) }
}

/// One number over another; 0 if there is nothing to divide by.
pub(crate) fn ratio(over: u64, under: u64) -> f64 {
    if under == 0 { 0.0 } else { over as f64 / under as f64 }
}

/// Counts what an aggregator does, without a map on the way.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    pub(crate) packets_in: u64,
    pub(crate) bytes_in: u64,
    pub(crate) packets_out: u64,
    pub(crate) bytes_out: u64,
    pub(crate) super_packets: u64,
    pub(crate) merged: u64,
    /// Pure ACKs that were absorbed; in `merged` too.
    pub(crate) absorbed_acks: u64,
    reasons: [u64; Reason::COUNT],
    link_type: u64,
    snap_length: u64,
}

impl Default for Tally {
    fn default() -> Self {
        Tally {
            packets_in: 0,
            bytes_in: 0,
            packets_out: 0,
            bytes_out: 0,
            super_packets: 0,
            merged: 0,
            absorbed_acks: 0,
            reasons: [0; Reason::COUNT],
            link_type: 0,
            snap_length: 0,
        }
    }
}

impl Tally {
    /// Counts a frame read.
    #[inline]
    pub(crate) fn arrived(&mut self, length: usize) {
        self.packets_in += 1;
        self.bytes_in += length as u64;
    }

    /// Counts a packet of `length` bytes that left, link header included.
    #[inline]
    pub(crate) fn left(&mut self, metadata: &Metadata, length: usize) {
        self.packets_out += 1;
        self.bytes_out += length as u64;
        self.reasons[metadata.reason as usize] += 1;
        if metadata.packets > 1 {
            self.super_packets += 1;
            self.merged += u64::from(metadata.packets) - 1;
            self.absorbed_acks += u64::from(metadata.absorbed_acks);
        }
    }

    /// Counts a frame that passed the engine by.
    #[inline]
    pub(crate) fn passed(&mut self, why: Why, length: usize) {
        self.packets_out += 1;
        self.bytes_out += length as u64;
        match why {
            Why::LinkType => self.link_type += 1,
            Why::SnapLength => self.snap_length += 1,
        }
    }

    /// Is every frame read among those that left?
    pub(crate) fn balanced(&self) -> bool {
        let reasons: u64 = self.reasons.iter().sum::<u64>() + self.link_type + self.snap_length;
        self.packets_in == self.packets_out + self.merged && reasons == self.packets_out
    }

    /// As it is reported.
    pub(crate) fn totals(&self) -> Totals {
        let engine = Reason::ALL.iter().map(|&reason| (reason.name(), self.reasons[reason as usize]));
        let reasons =
            engine.chain([("link_type", self.link_type), ("snap_length", self.snap_length)]).filter(|&(_, count)| count > 0).collect();
        Totals {
            packets_in: self.packets_in,
            packets_out: self.packets_out,
            bytes_in: self.bytes_in,
            bytes_out: self.bytes_out,
            super_packets: self.super_packets,
            merged: self.merged,
            reasons,
        }
    }
}

/// Where a capture was cut short, as JSON has it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CutShort {
    /// The number that the cut packet would have had.
    packet: u64,
    /// Where its record begins, in bytes after decompression.
    offset: u64,
    /// What is there of it.
    reason: String,
}

impl std::fmt::Display for CutShort {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "in packet {}, whose record begins at byte {}: {}", self.packet, self.offset, self.reason)
    }
}

impl From<Truncated> for CutShort {
    fn from(truncated: Truncated) -> Self {
        CutShort { packet: truncated.packet, offset: truncated.offset, reason: truncated.reason }
    }
}

/// Captures that could not be read, by commands that take several: the others are reported before the program fails.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Unreadable {
    told: Vec<String>,
    /// There is only one capture: its failure is the command's.
    #[serde(skip)]
    alone: bool,
}

impl Unreadable {
    /// Nothing yet, among so many captures.
    pub(crate) fn among(captures: usize) -> Self {
        Unreadable { told: Vec::new(), alone: captures == 1 }
    }

    /// Keeps the failure of one capture, which is told at once; others stop the command.
    pub(crate) fn sort<T>(&mut self, result: Result<T, Failure>) -> Result<Option<T>, Failure> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(failure @ (Failure::Capture(_) | Failure::CutShort(_))) if !self.alone => {
                let text = printable(&failure.to_string());
                // Nobody can be told that standard error is gone.
                let _ = writeln!(io::stderr(), "superpacket: {text}");
                self.told.push(text);
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    /// A line for the end of a report, if there is something to say.
    pub(crate) fn text(&self) -> String {
        match self.told.len() {
            0 => String::new(),
            count => format!("\n  {count} of the captures could not be read.\n"),
        }
    }

    /// The failure that they add up to, after the report.
    pub(crate) fn conclude(&self) -> Result<(), Failure> {
        if self.told.is_empty() { Ok(()) } else { Err(Failure::Unreadable(self.told.len())) }
    }
}

/// Prints text to standard output, or to standard error if the capture goes there.
pub(crate) fn print(text: &str, to_error: bool) -> io::Result<()> {
    if to_error {
        io::stderr().lock().write_all(text.as_bytes())
    } else {
        let mut output = io::stdout().lock();
        output.write_all(text.as_bytes())?;
        output.flush()
    }
}

/// Prints a report as JSON, to standard output: as it goes, so that long ones take no memory.
pub(crate) fn print_json(report: &impl Serialize) -> io::Result<()> {
    let mut output = io::BufWriter::new(io::stdout().lock());
    serde_json::to_writer_pretty(&mut output, report)?;
    output.write_all(b"\n")?;
    output.flush()
}

/// How many columns text may take where standard output is no terminal.
const PIPE_COLUMNS: usize = 80;

/// Fewer columns than any text can be laid out in.
const LEAST_COLUMNS: usize = 40;

/// How many columns the terminal has, if standard output is one.
pub(crate) fn terminal_columns() -> Option<usize> {
    #[cfg(target_os = "linux")]
    if let Ok(size) = rustix::termios::tcgetwinsize(io::stdout())
        && size.ws_col > 0
    {
        return Some(usize::from(size.ws_col).max(LEAST_COLUMNS));
    }
    None
}

/// How many columns text may take: the terminal's, or 80 in a pipe or a file.
pub(crate) fn columns() -> usize {
    terminal_columns().unwrap_or(PIPE_COLUMNS)
}

/// Text in lines of at most so many columns, broken at blanks, each so far from the left. Words
/// that are longer stay whole.
pub(crate) fn paragraph(text: &str, indent: usize, columns: usize) -> String {
    hanging(text, indent, indent, columns)
}

/// The same, with the first line and the others so far from the left. Blanks within a line stay as
/// they are.
pub(crate) fn hanging(text: &str, first: usize, others: usize, columns: usize) -> String {
    let (first, others) = (" ".repeat(first), " ".repeat(others));
    let options = Options::new(columns)
        .initial_indent(&first)
        .subsequent_indent(&others)
        .break_words(false)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
        .wrap_algorithm(WrapAlgorithm::FirstFit);
    textwrap::fill(text, options) + "\n"
}

/// A table whose first column is text and whose others are numbers.
pub(crate) fn table<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    lines(&layout(header, rows))
}

/// The same in at most so many columns: names in the header and in the first column are broken
/// where need be, numbers never.
pub(crate) fn fitted<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>, columns: usize) -> String {
    let rows: Vec<_> = rows.into_iter().collect();
    let cells = |index: usize| rows.iter().map(|row| row[index].chars().count()).max().unwrap_or_default();
    let longest_word = |text: &str| text.split_whitespace().map(|word| word.chars().count()).max().unwrap_or_default();
    // Blanks beside a column: two in front of the first, one elsewhere.
    let whole: [usize; N] = std::array::from_fn(|index| cells(index).max(header[index].chars().count()) + if index == 0 { 3 } else { 2 });
    let mut widths: [usize; N] = std::array::from_fn(|index| cells(index).max(longest_word(header[index])) + 2);
    if whole.iter().sum::<usize>() <= columns {
        return lines(&layout(header, rows));
    }
    let mut left = columns.saturating_sub(widths[1..].iter().sum());
    widths[0] = whole[0].min(left).max(LEAST_NAME);
    left = left.saturating_sub(widths[0]);
    for (width, whole) in widths.iter_mut().zip(whole).skip(1) {
        let more = left.min(whole - *width);
        (*width, left) = (*width + more, left - more);
    }
    let mut table = layout(header, rows);
    // Without it, columns are as wide as what they hold.
    table.set_content_arrangement(ContentArrangement::Dynamic);
    for (column, width) in table.column_iter_mut().zip(widths) {
        column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(width.min(usize::from(u16::MAX)) as u16)));
    }
    lines(&table)
}

/// The narrowest column that a name can be read in.
const LEAST_NAME: usize = 16;

fn layout<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if index == 0 { 2 } else { 1 }, 1));
        if index > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Figures under their names, all to the right: a row, or as many as lines of so many columns need.
pub(crate) fn figures(figures: &[(&str, String)], columns: usize) -> String {
    let width = |(name, value): &(&str, String)| 2 + name.chars().count().max(value.chars().count());
    let mut text = String::new();
    let mut rest = figures;
    while !rest.is_empty() {
        let mut used = 0;
        let fitting = rest.iter().take_while(|figure| {
            used += width(figure);
            used <= columns
        });
        let (row, more) = rest.split_at(fitting.count().max(1));
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_header(row.iter().map(|(name, _)| *name)).add_row(row.iter().map(|(_, value)| value));
        for column in table.column_iter_mut() {
            column.set_padding((2, 0));
            column.set_cell_alignment(CellAlignment::Right);
        }
        text.push_str(&lines(&table));
        rest = more;
    }
    text
}

/// The lines of a table, without blanks at their ends.
fn lines(table: &Table) -> String {
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The table of what went in and came out, and that of the reasons.
pub(crate) fn summary(totals: &Totals, verb: &str) -> String {
    let per_packet = |bytes: u64, packets: u64| average(bytes, packets, 0);
    let mut text = table(
        ["", "packets", "bytes", "bytes/packet"],
        [
            ["in".to_owned(), grouped(totals.packets_in), grouped(totals.bytes_in), per_packet(totals.bytes_in, totals.packets_in)],
            ["out".to_owned(), grouped(totals.packets_out), grouped(totals.bytes_out), per_packet(totals.bytes_out, totals.packets_out)],
        ],
    );
    text.push_str(&format!("\n  {} super-packets, {} packets {verb}\n\n", grouped(totals.super_packets), grouped(totals.merged)));
    text.push_str(&reasons(totals));
    text
}

/// The reasons, the most frequent first.
pub(crate) fn reasons(totals: &Totals) -> String {
    reasons_table(totals.reasons.iter().map(|(name, count)| (*name, *count)))
}

/// A table of reasons with the packets that left for each, the most frequent first.
pub(crate) fn reasons_table<'a>(reasons: impl IntoIterator<Item = (&'a str, u64)>) -> String {
    let mut sorted: Vec<_> = reasons.into_iter().collect();
    let all: u64 = sorted.iter().map(|(_, count)| count).sum();
    sorted.sort_by_key(|&(name, count)| (std::cmp::Reverse(count), name));
    table(["reason", "packets", "share"], sorted.into_iter().map(|(name, count)| [printable(name), grouped(count), percent(count, all)]))
}

/// A share in percent.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { NOTHING.to_owned() } else { format!("{:.1} %", 100.0 * ratio(part, whole)) }
}

/// A number with its thousands set apart.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A name that may come from a capture or a file system, with control characters made visible.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|character| if character.is_control() { character.escape_default().collect::<Vec<_>>() } else { vec![character] })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn nothing_is_divided_by_nothing() {
        assert_eq!((average(7, 2, 1), average(7, 0, 1)), ("3.5".to_owned(), "-".to_owned()));
        assert_eq!((percent(1, 8), percent(0, 0)), ("12.5 %".to_owned(), "-".to_owned()));
        assert_eq!(Totals::default().fewer_by(), "-");
        assert_eq!(Totals { packets_in: 3, packets_out: 2, ..Totals::default() }.fewer_by(), "1.50x");
    }

    #[test]
    fn text_keeps_to_its_columns() {
        let text = paragraph("one two three four", 2, 10);
        assert_eq!(text, "  one two\n  three\n  four\n");
        assert_eq!(paragraph("a-word-that-is-too-long here", 2, 10), "  a-word-that-is-too-long\n  here\n");
        let rows = || [["TCP 10.0.0.1:443 > 10.3.0.0:10000 (VXLAN)".to_owned(), "1,234,567".to_owned(), "12".to_owned()]];
        let narrow = fitted(["flow", "packets", "packets in one"], rows(), 40);
        assert!(narrow.lines().all(|line| line.chars().count() <= 40) && narrow.contains("1,234,567"), "{narrow}");
        assert!(narrow.contains("TCP 10.0.0.1:443"), "broken at blanks: {narrow}");
        assert_eq!(fitted(["flow", "packets", "packets in one"], rows(), 80), table(["flow", "packets", "packets in one"], rows()));
    }

    #[test]
    fn figures_take_as_many_rows_as_they_need() {
        let values = [("s", "1.0".to_owned()), ("1/s", "123456".to_owned()), ("us", "7.250".to_owned())];
        assert_eq!(figures(&values, 80), "    s     1/s     us\n  1.0  123456  7.250\n");
        assert_eq!(figures(&values, 14), "    s     1/s\n  1.0  123456\n     us\n  7.250\n");
        assert_eq!(figures(&values, 1), "    s\n  1.0\n     1/s\n  123456\n     us\n  7.250\n");
    }

    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
    }

    #[test]
    fn totals_add_up() {
        let mut tally = Tally::default();
        tally.arrived(60);
        tally.passed(Why::LinkType, 60);
        tally.arrived(70);
        assert!(!tally.balanced(), "one is held");
        tally.passed(Why::SnapLength, 70);
        assert!(tally.balanced());
        let mut totals = tally.totals();
        totals.add(&tally.totals());
        assert_eq!((totals.packets_in, totals.bytes_out, totals.reasons["link_type"], totals.reasons["snap_length"]), (4, 260, 2, 2));
    }
}
