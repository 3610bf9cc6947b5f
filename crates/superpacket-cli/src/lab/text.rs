//! The full report as text, for terminals of any width.

use superpacket_captures::present::{NOTHING, Table as Cells, printable};
use superpacket_lab::experiment::{Experiment, Mark, Table};

use super::grid::{cells, mark, method, origin, verdict, why_no_ratio};
use crate::report;

/// Returns the width of the terminal. If standard output is no terminal, the width is unlimited.
pub(super) fn width() -> usize {
    report::terminal_columns().unwrap_or(usize::MAX)
}

/// Renders an experiment with its tables and notes.
pub(super) fn experiment(experiment: &Experiment, width: usize) -> String {
    let mut text = format!("{}: {}\n", experiment.name, experiment.source);
    paragraph(experiment.summary, 2, width, &mut text);
    for found in &experiment.tables {
        text.push('\n');
        paragraph(&format!("{}: {}", found.title, method(found)), 2, width, &mut text);
        table(found, width, &mut text);
    }
    if !experiment.notes.is_empty() {
        text.push('\n');
    }
    for note in &experiment.notes {
        paragraph(note, 2, width, &mut text);
    }
    text.push('\n');
    text
}

/// Renders the targets of all experiments, with the verdicts and the values reached.
pub(super) fn marks<'a>(marks: impl Iterator<Item = &'a Mark>, width: usize) -> String {
    let mut text = String::from("marks\n");
    for found in marks {
        let origin = origin(found).map(|origin| format!(" ({origin})")).unwrap_or_default();
        let reason = found.reason.as_ref().map(|reason| format!("; {reason}")).unwrap_or_default();
        // The verdicts form a column on the left, and the rest is beside them.
        let line =
            format!("{:<15} {}{origin}: {}{reason}", verdict(found), found.name, mark(found));
        hanging(&line, 2, 18, width, &mut text);
    }
    text
}

/// Renders a table, or a list of its figures if the table is too wide.
fn table(table: &Table, width: usize, text: &mut String) {
    let mut shown = cells(table);
    for column in &mut shown.columns {
        let source = if column.of_source { "source's\n" } else { "" };
        // A unit below its name keeps columns narrow.
        column.heading = format!("{source}{}", column.heading.replace(", ", "\n"));
    }
    let wide = report::render(&shown, 4);
    if wide.lines().all(|line| line.chars().count() <= width) {
        text.push_str(&wide);
    } else {
        narrow(&cells(table), width, text);
    }
    if let Some(why) = why_no_ratio(table) {
        paragraph(why, 2, width, text);
    }
}

fn narrow(cells: &Cells, width: usize, text: &mut String) {
    let mut group = String::new();
    for row in &cells.rows {
        let (names, figures) = row.split_at(cells.names);
        if let [first, _] = names
            && !first.text.is_empty()
        {
            group = format!("{}, ", first.text);
        }
        let name = names.last().map_or("", |name| &name.text);
        paragraph(&format!("{group}{name}"), 4, width, text);
        for (column, cell) in cells.columns[cells.names..].iter().zip(figures) {
            if !cell.text.is_empty() && cell.text != NOTHING {
                let source = if column.of_source { "source's " } else { "" };
                let figure = format!("{source}{}: {}", column.heading, cell.joined());
                hanging(&figure, 6, 8, width, text);
            }
        }
    }
}

/// Wraps text at blanks, and indents all lines by `indent`.
pub(super) fn paragraph(words: &str, indent: usize, width: usize, text: &mut String) {
    hanging(words, indent, indent, width, text);
}

/// Wraps text like [`paragraph`], with another indent after the first line. Blanks within a line
/// are kept.
fn hanging(words: &str, first: usize, others: usize, width: usize, text: &mut String) {
    text.push_str(&report::hanging(&printable(words), first, others, width));
}

#[cfg(test)]
mod tests {
    use super::*;
    use superpacket_lab::experiment::{Form, Side};

    fn shown(width: usize) -> String {
        let mut text = String::new();
        table(&super::super::grid::tests::table(), width, &mut text);
        text
    }

    #[test]
    fn a_wide_terminal_has_a_table() {
        let text = shown(usize::MAX);
        let line = text.lines().find(|line| line.contains("2.50x")).unwrap_or_default();
        assert_eq!(
            line.split_whitespace().collect::<Vec<_>>(),
            ["LRO", "5.0", "(4.5-5.5)", "8.8", "2.50x", "(2.00-3.25)", "2.38x", "-"]
        );
        assert!(
            text.contains("no ratio (2.00-3.25)") && text.contains("the rounds differ too much"),
            "{text}"
        );
    }

    #[test]
    fn a_narrow_one_has_all_figures_below_each_other() {
        let text = shown(40);
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        for words in [
            "    4K pages, LRO\n",
            "      throughput, Gb/s: 5.0 (4.5-5.5)\n",
            "      source's throughput, Gb/s: 8.8\n",
            "2.00-3.25",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn lines_break_at_blanks_and_long_words_stay_whole() {
        let mut text = String::new();
        hanging("met   one two three", 2, 6, 12, &mut text);
        assert_eq!(text, "  met   one\n      two\n      three\n");
        text.clear();
        paragraph("a unbreakable_word b", 0, 5, &mut text);
        assert_eq!(text, "a\nunbreakable_word\nb\n");
        text.clear();
        paragraph("as it is", 0, usize::MAX, &mut text);
        assert_eq!(text, "as it is\n");
    }

    #[test]
    fn verdicts_stand_below_each_other() {
        let met = Mark::exact("lro: counts", Form::Model, 2.6, Side::AtLeast, 2.5);
        let unmeasured = Mark::unmeasured("ack: figures", Side::AtMost, 0.84, "no namespaces here");
        let text = marks([&met, &unmeasured].into_iter(), 80);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[1], "  met             lro: counts (counted): 2.600, at least 2.5");
        assert_eq!(lines[2], "  cannot be said  ack: figures: at most 0.84; no namespaces here");
    }
}
