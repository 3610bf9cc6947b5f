//! The report as Markdown, inserted into a document between two marker lines.

use std::fmt::Write;

use superpacket_captures::present::{Table, markdown as escaped};
use superpacket_lab::experiment::{Experiment, Mark};

use super::LabReport;
use super::grid::{cells, mark, method, origin, verdict, why_no_ratio};

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
    let rows = marks.iter().map(|found| {
        let origin = origin(found).map(|origin| format!(" ({origin})")).unwrap_or_default();
        let reason = found.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let emphasis = if found.met == Some(true) { "" } else { "**" };
        [
            format!("{}{origin}", found.name),
            mark(found),
            format!("{emphasis}{}{emphasis}{reason}", verdict(found)),
        ]
    });
    let table = Table::new(["mark", "reached, target", ""], rows);
    text.push_str(&Table { names: 3, ..table }.markdown());
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
        let _ = writeln!(text, "{}: {}.\n", escaped(&table.title), method(table));
        let _ = writeln!(text, "{}", cells(table).markdown());
        if let Some(why) = why_no_ratio(table) {
            let _ = writeln!(text, "{why}.\n");
        }
    }
    for note in &experiment.notes {
        let _ = writeln!(text, "- {}", escaped(note));
    }
    if !experiment.notes.is_empty() {
        text.push('\n');
    }
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
