//! The report as a Markdown page.

use std::fmt::Write;

use superpacket_captures::present::{Table, markdown as escaped};
use superpacket_lab::experiment::{Experiment, Mark};

use super::LabReport;
use super::grid::{cells, mark, method, origin, verdict, why_no_ratio};

/// Renders the page.
pub(super) fn render(report: &LabReport) -> String {
    let mut text = "# The lab's report\n\n".to_owned();
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
        "## {}: {}\n{}\n",
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
    fn the_page_has_tables_and_escapes_text() {
        let page = render(&report());
        assert!(page.starts_with("# The lab's report\n\nPrinted by `superpacket lab"), "{page}");
        assert!(page.contains("| 4K pages | none | 2.0 (1.5-2.5) | 3.7 |  |  | 7 |"), "{page}");
        assert!(page.contains("Sender &lt;MTU> 1500"), "{page}");
    }
}
