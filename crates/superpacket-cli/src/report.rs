//! Prints reports: as text and tables that fit a number of columns, and as JSON.

use std::io::{self, Write};

use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, Table as TextTable, Width, presets,
};
use serde::Serialize;
use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

use superpacket_captures::present::Table;
pub(crate) use superpacket_captures::present::{average, grouped, percent, printable};

/// Prints text to standard output, or to standard error if `to_error` is set because a capture is
/// written to standard output.
pub(crate) fn print(text: &str, to_error: bool) -> io::Result<()> {
    if to_error {
        io::stderr().lock().write_all(text.as_bytes())
    } else {
        let mut output = io::stdout().lock();
        output.write_all(text.as_bytes())?;
        output.flush()
    }
}

/// Prints a report as JSON to standard output. It is written piece by piece, so that long reports
/// take little memory.
pub(crate) fn print_json(report: &impl Serialize) -> io::Result<()> {
    let mut output = io::BufWriter::new(io::stdout().lock());
    serde_json::to_writer_pretty(&mut output, report)?;
    output.write_all(b"\n")?;
    output.flush()
}

/// Prints a report as JSON if `json` is set, otherwise as text.
pub(crate) fn show(
    json: bool,
    report: &impl Serialize,
    text: impl FnOnce() -> String,
) -> io::Result<()> {
    if json { print_json(report) } else { print(&text(), false) }
}

/// Number of columns for text if standard output is no terminal.
const PIPE_COLUMNS: usize = 80;

/// Minimum number of columns. On a narrower terminal, text is formatted as if it had this many.
const LEAST_COLUMNS: usize = 40;

/// Returns the number of columns of the terminal, if standard output is one.
pub(crate) fn terminal_columns() -> Option<usize> {
    #[cfg(target_os = "linux")]
    if let Ok(size) = rustix::termios::tcgetwinsize(io::stdout())
        && size.ws_col > 0
    {
        return Some(usize::from(size.ws_col).max(LEAST_COLUMNS));
    }
    None
}

/// Returns the number of lines of the terminal, if standard output is one.
#[cfg(target_os = "linux")]
pub(crate) fn terminal_rows() -> Option<usize> {
    rustix::termios::tcgetwinsize(io::stdout())
        .ok()
        .map(|size| usize::from(size.ws_row))
        .filter(|&rows| rows > 0)
}

/// Returns the number of columns for text: those of the terminal, or 80 if standard output is no
/// terminal.
pub(crate) fn columns() -> usize {
    terminal_columns().unwrap_or(PIPE_COLUMNS)
}

/// Returns a file's name as a heading. On a terminal, only the end of a name is shown that is
/// longer than a line.
pub(crate) fn file_heading(name: &str) -> String {
    match terminal_columns() {
        Some(columns) => last_columns(&printable(name), columns),
        None => printable(name),
    }
}

/// Returns the last `columns` characters of a name, marked with an ellipsis if it is longer. The
/// end of a path tells files apart better than its beginning.
fn last_columns(name: &str, columns: usize) -> String {
    match name.chars().count().checked_sub(columns) {
        Some(more) if more > 0 => std::iter::once('…').chain(name.chars().skip(more + 1)).collect(),
        _ => name.to_owned(),
    }
}

/// Wraps text at blanks into lines of at most `columns` columns, each indented by `indent` blanks.
/// A word that is longer than a line stays whole.
pub(crate) fn paragraph(text: &str, indent: usize, columns: usize) -> String {
    hanging(text, indent, indent, columns)
}

/// Wraps text like [`paragraph`], but the first line is indented by `first` blanks and the others
/// by `others`. Blanks within a line are kept.
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

/// Formats a table whose first column is text and whose other columns are numbers.
pub(crate) fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    render(&Table::new(header, rows), 2)
}

/// Renders a table, indented by `indent` columns, without a limit on its width.
pub(crate) fn render(table: &Table, indent: u16) -> String {
    lines(&layout(table, indent))
}

/// Renders a table with one column of names within `columns` columns: headings and names are
/// wrapped as needed, numbers never.
pub(crate) fn fitting_table(table: &Table, columns: usize) -> String {
    let cells = |index: usize| {
        table.rows.iter().map(|row| row[index].text.chars().count()).max().unwrap_or_default()
    };
    let longest_word = |text: &str| {
        text.split_whitespace().map(|word| word.chars().count()).max().unwrap_or_default()
    };
    let headings = || table.columns.iter().map(|column| column.heading.as_str()).enumerate();
    // Padding of a column: two blanks left of the first, one left of the others, one right of each.
    let whole: Vec<_> = headings()
        .map(|(index, heading)| {
            cells(index).max(heading.chars().count()) + if index == 0 { 3 } else { 2 }
        })
        .collect();
    let mut widths: Vec<_> =
        headings().map(|(index, heading)| cells(index).max(longest_word(heading)) + 2).collect();
    let mut text = layout(table, 2);
    if whole.iter().sum::<usize>() > columns {
        let mut left = columns.saturating_sub(widths[1..].iter().sum());
        widths[0] = whole[0].min(left).max(LEAST_NAME);
        left = left.saturating_sub(widths[0]);
        for (width, whole) in widths.iter_mut().zip(whole).skip(1) {
            let more = left.min(whole - *width);
            (*width, left) = (*width + more, left - more);
        }
        // Without dynamic arrangement, the table ignores width constraints and wraps no cell.
        text.set_content_arrangement(ContentArrangement::Dynamic);
        for (column, width) in text.column_iter_mut().zip(widths) {
            let width = width.min(usize::from(u16::MAX)) as u16;
            column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(width)));
        }
    }
    lines(&text)
}

/// Minimum width of the column with names, below which it is not narrowed.
const LEAST_NAME: usize = 16;

fn layout(table: &Table, indent: u16) -> TextTable {
    let mut text = TextTable::new();
    text.load_preset(presets::NOTHING)
        .set_header(table.columns.iter().map(|column| &column.heading));
    for row in &table.rows {
        text.add_row(row.iter().map(|cell| printable(&cell.joined())));
    }
    for (index, column) in text.column_iter_mut().enumerate() {
        column.set_padding((if index == 0 { indent } else { 1 }, 1));
        if index >= table.names {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    text
}

/// Formats figures below their names, aligned to the right: in one row, or in as many rows as lines
/// of `columns` columns require.
pub(crate) fn figures(figures: &[(&str, String)], columns: usize) -> String {
    let width =
        |(name, value): &(&str, String)| 2 + name.chars().count().max(value.chars().count());
    let mut text = String::new();
    let mut rest = figures;
    while !rest.is_empty() {
        let mut used = 0;
        let fitting = rest.iter().take_while(|figure| {
            used += width(figure);
            used <= columns
        });
        let (row, more) = rest.split_at(fitting.count().max(1));
        let mut table = TextTable::new();
        table
            .load_preset(presets::NOTHING)
            .set_header(row.iter().map(|(name, _)| *name))
            .add_row(row.iter().map(|(_, value)| value));
        for column in table.column_iter_mut() {
            column.set_padding((2, 0));
            column.set_cell_alignment(CellAlignment::Right);
        }
        text.push_str(&lines(&table));
        rest = more;
    }
    text
}

/// Returns the lines of a table without trailing blanks.
fn lines(table: &TextTable) -> String {
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Formats a table of reasons with the number of packets for each, the most frequent first.
pub(crate) fn reasons_table<'a>(reasons: impl IntoIterator<Item = (&'a str, u64)>) -> String {
    let mut sorted: Vec<_> = reasons.into_iter().collect();
    let all: u64 = sorted.iter().map(|(_, count)| count).sum();
    sorted.sort_by_key(|&(name, count)| (std::cmp::Reverse(count), name));
    table(
        ["reason", "packets", "share"],
        sorted
            .into_iter()
            .map(|(name, count)| [printable(name), grouped(count), percent(count, all)]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_longer_than_a_line_keeps_its_end() {
        assert_eq!(last_columns("capture.pcap", 12), "capture.pcap");
        assert_eq!(last_columns("a capture.pcap", 12), "…apture.pcap");
        assert_eq!(last_columns("Größe-größer.pcap", 6), "….pcap");
    }

    #[test]
    fn text_keeps_to_its_columns() {
        let text = paragraph("one two three four", 2, 10);
        assert_eq!(text, "  one two\n  three\n  four\n");
        assert_eq!(
            paragraph("a-word-that-is-too-long here", 2, 10),
            "  a-word-that-is-too-long\n  here\n"
        );
        let flow = "TCP 10.0.0.1:443 > 10.3.0.0:10000 (VXLAN)";
        let table = Table::new(
            ["flow", "packets", "packets in one"],
            [[flow, "1,234,567", "12"].map(str::to_owned)],
        );
        let narrow = fitting_table(&table, 40);
        assert!(
            narrow.lines().all(|line| line.chars().count() <= 40) && narrow.contains("1,234,567"),
            "{narrow}"
        );
        assert!(narrow.contains("TCP 10.0.0.1:443"), "broken at blanks: {narrow}");
        assert_eq!(fitting_table(&table, 80), render(&table, 2));
    }

    #[test]
    fn figures_take_as_many_rows_as_they_need() {
        let values =
            [("s", "1.0".to_owned()), ("1/s", "123456".to_owned()), ("us", "7.250".to_owned())];
        assert_eq!(figures(&values, 80), "    s     1/s     us\n  1.0  123456  7.250\n");
        assert_eq!(figures(&values, 14), "    s     1/s\n  1.0  123456\n     us\n  7.250\n");
        assert_eq!(figures(&values, 1), "    s\n  1.0\n     1/s\n  123456\n     us\n  7.250\n");
    }
}
