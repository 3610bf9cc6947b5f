//! The report as Markdown, inserted into a document between two marker lines.

use std::fmt::Write;

use superpacket_lab::experiment::{Experiment, Mark};

use super::LabReport;
use super::grid::{Grid, WHY_NO_RATIO, mark, method, origin, verdict};
use crate::report::printable;

/// Marker line before the generated part of a document.
pub(super) const BEGIN: &str = "<!-- lab: begin -->";
/// Marker line after the generated part.
pub(super) const END: &str = "<!-- lab: end -->";

/// Returns the document with the report in place of the text between its markers.
///
/// # Errors
/// A description of the problem, if a marker is missing, repeated or misplaced.
pub(super) fn with_report(document: &str, report: &LabReport) -> Result<String, String> {
    let position = |marker: &str| {
        let mut positions = document.match_indices(marker).map(|(position, _)| position);
        match (positions.next(), positions.next()) {
            (Some(position), None) => Ok(position),
            (None, _) => Err(format!("has no line {marker}")),
            (Some(_), Some(_)) => Err(format!("has more than one line {marker}")),
        }
    };
    let (begin, end) = (position(BEGIN)?, position(END)?);
    if end < begin {
        return Err(format!("{END} stands before {BEGIN}"));
    }
    Ok(format!("{}{BEGIN}\n{}{}", &document[..begin], generated_part(report), &document[end..]))
}

fn generated_part(report: &LabReport) -> String {
    let mut text = String::new();
    let plan = match &report.plan {
        super::RunPlan { form: "live", rounds, seconds, .. } => {
            format!(", {rounds} rounds of {seconds} s")
        }
        _ => String::new(),
    };
    let _ = writeln!(
        text,
        "Printed by `{}` on {}{plan}.\n",
        report.command,
        escaped(&report.machine.line())
    );
    for note in &report.notes {
        let _ = writeln!(text, "{}\n", escaped(note));
    }
    marks(&report.marks, &mut text);
    for found in &report.experiments {
        experiment(found, &mut text);
    }
    text
}

fn marks(marks: &[Mark], text: &mut String) {
    text.push_str("| mark | reached, target | |\n|---|---|---|\n");
    for found in marks {
        let origin = origin(found).map(|origin| format!(" ({origin})")).unwrap_or_default();
        let verdict = if found.met == Some(true) {
            verdict(found).to_owned()
        } else {
            format!("**{}**", verdict(found))
        };
        let reason = found.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let _ = writeln!(
            text,
            "| {}{origin} | {} | {verdict}{} |",
            escaped(&found.name),
            escaped(&mark(found)),
            escaped(&reason)
        );
    }
    text.push('\n');
}

fn experiment(experiment: &Experiment, text: &mut String) {
    let _ = writeln!(
        text,
        "### {}: {}\n{}\n",
        experiment.name,
        escaped(experiment.source),
        escaped(experiment.summary)
    );
    for table in &experiment.tables {
        let grid = Grid::new(table);
        let _ = writeln!(text, "{}: {}.\n", escaped(&table.title), method(table));
        for heading in &grid.header {
            let source = if heading.of_source { "source's " } else { "" };
            let _ = write!(text, "| {source}{} ", escaped(&heading.text));
        }
        text.push_str("|\n");
        for place in 0..grid.header.len() {
            text.push_str(if place < grid.names { "|---" } else { "|---:" });
        }
        text.push_str("|\n");
        for row in &grid.rows {
            for cell in row {
                let _ = write!(text, "| {} ", escaped(&cell.joined()));
            }
            text.push_str("|\n");
        }
        text.push('\n');
        if grid.ratio_withheld {
            let _ = writeln!(text, "{WHY_NO_RATIO}.\n");
        }
    }
    for note in &experiment.notes {
        let _ = writeln!(text, "- {}", escaped(note));
    }
    if !experiment.notes.is_empty() {
        text.push('\n');
    }
}

/// Escapes text so that it contains no cell border, markup or marker.
fn escaped(text: &str) -> String {
    printable(text).replace('|', "\\|").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;

    #[test]
    fn text_outside_the_markers_stays() -> Result<(), String> {
        let before = format!("# Title\n{BEGIN}\nold\n{END}\nafter\n");
        let first = with_report(&before, &report())?;
        assert!(
            first.starts_with(&format!("# Title\n{BEGIN}\nPrinted by `superpacket lab"))
                && first.ends_with(&format!("{END}\nafter\n")),
            "{first}"
        );
        assert!(
            !first.contains("old")
                && first.contains("| 4K pages | none | 2.0 (1.5-2.5) | 7 |  | 3.7 |  |"),
            "{first}"
        );
        assert!(first.contains("Sender &lt;MTU> 1500"), "{first}");
        assert_eq!(with_report(&first, &report())?, first, "again it is the same");
        Ok(())
    }

    #[test]
    fn documents_without_the_markers_are_refused() {
        for (document, words) in [
            (String::new(), "has no line <!-- lab: begin -->"),
            (BEGIN.to_owned(), "has no line <!-- lab: end -->"),
            (format!("{END}\n{BEGIN}"), "stands before"),
            (format!("{BEGIN}{BEGIN}{END}"), "more than one"),
        ] {
            assert!(
                with_report(&document, &report()).is_err_and(|error| error.contains(words)),
                "{document}"
            );
        }
    }
}
