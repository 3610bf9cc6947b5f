//! The short report, which fits one screen: the result of each experiment, and whether it reached
//! its target.

use std::fmt::Write;

use superpacket_captures::present::{NOTHING, factor, number, range, shortest};
use superpacket_lab::experiment::{Experiment, Form, Mark, Side, find};

use super::LabReport;
use super::grid::decimals;
use super::run::NOT_MEASURED;
use super::text::paragraph;

/// Width of the report, even if the terminal is wider.
pub(super) const WIDTH: usize = 80;

/// Widths of the columns: the comparison, the value measured on this machine with its spread, the
/// value published in the source, the target.
const COLUMNS: [usize; 4] = [35, 18, 6, 7];

/// Renders the heading of the report: the machine, the rounds and the names of the columns.
pub(super) fn heading(report: &LabReport, width: usize) -> String {
    let plan = &report.plan;
    let how = match plan.form {
        "live" => format!(
            "{} rounds of {} s each, in turn; in (): half of them, or an assumption's range",
            plan.rounds, plan.seconds
        ),
        _ => {
            "counted on the model NIC and simulated; in (): the range of what is assumed".to_owned()
        }
    };
    let mut text = format!("{}\n", report.machine.brief(width));
    paragraph(&how, 0, width, &mut text);
    for note in &report.notes {
        paragraph(note, 0, width, &mut text);
    }
    if width >= WIDTH {
        line(["", "here (half, range)", "source", "target", "verdict"], &mut text);
    }
    text
}

/// Renders an experiment's most important comparisons, one per row. Counted values are shown only
/// if nothing was measured, or if they miss their targets.
pub(super) fn experiment(found: &Experiment, width: usize) -> String {
    let mut text = String::new();
    let headline = find(found.name).map_or(found.source, |entry| entry.headline);
    paragraph(&format!("{}: {headline}", found.name), 0, width, &mut text);
    // Namespaces are available but something else is not, so that only this experiment was not
    // measured.
    for note in found.notes.iter().filter(|note| note.starts_with(NOT_MEASURED)) {
        paragraph(note, 2, width, &mut text);
    }
    for (brief, mark) in headline_rows(found) {
        let [here, source] = [here(mark), source(mark)];
        let (target, verdict) = (target(mark), verdict(mark));
        if width >= WIDTH {
            if mark.nothing_to_spare {
                spared_line(brief, &here, &source, verdict, &mut text);
            } else {
                line([brief, &here, &source, &target, verdict], &mut text);
            }
        } else {
            paragraph(brief, 2, width, &mut text);
            paragraph(
                &format!("{here}, source {source}, target {target}: {verdict}"),
                4,
                width,
                &mut text,
            );
        }
    }
    text
}

/// Returns the targets of an experiment that the short report shows, with their short names.
pub(super) fn headline_rows(found: &Experiment) -> impl Iterator<Item = (&'static str, &Mark)> {
    let measured = found.marks.iter().any(|mark| mark.form == Form::Live);
    let shown = move |mark: &&Mark| mark.form != Form::Model || !measured || mark.met != Some(true);
    found.marks.iter().filter(shown).filter_map(|mark| Some((mark.brief?, mark)))
}

/// Renders how many targets of all experiments were met or missed, and a hint at the options for
/// more detail.
pub(super) fn end(report: &LabReport, width: usize) -> String {
    let mut text = String::new();
    let kinds =
        [(Form::Live, "measured"), (Form::Simulated, "simulated"), (Form::Model, "counted")].map(
            |(form, name)| {
                let of = |what| {
                    let marks = report.marks.iter().filter(|mark| mark.form == form);
                    marks.filter(|mark| verdict(mark) == what).count()
                };
                let counts: Vec<_> = ["met", "missed", "unclear", "nothing to spare"]
                    .into_iter()
                    .map(|what| (of(what), what))
                    .filter(|(count, _)| *count != 0)
                    .map(|(count, what)| format!("{count} {what}"))
                    .collect();
                (!counts.is_empty()).then(|| format!("{name}: {}", counts.join(", ")))
            },
        );
    let kinds: Vec<_> = kinds.into_iter().flatten().collect();
    if !kinds.is_empty() {
        paragraph(&format!("all marks, {}", kinds.join("; ")), 0, width, &mut text);
    }
    paragraph(
        "--full prints all tables, marks and reasons, --html FILE makes a page of them",
        0,
        width,
        &mut text,
    );
    text
}

fn line(cells: [&str; 5], text: &mut String) {
    let [what, here, source, target, verdict] = cells;
    let [first, second, third, fourth] = COLUMNS;
    let _ = writeln!(
        text,
        "  {what:<first$} {here:<second$} {source:>third$} {target:>fourth$} {verdict}"
    );
}

/// Writes the row of a target without a verdict because no CPU was idle. The reason is too long for
/// its column, so it starts in the column of the target.
fn spared_line(what: &str, here: &str, source: &str, verdict: &str, text: &mut String) {
    let [first, second, third, _] = COLUMNS;
    let _ = writeln!(text, "  {what:<first$} {here:<second$} {source:>third$} {verdict}");
}

/// Formats the value measured on this machine and its spread in at most 18 characters.
pub(super) fn here(mark: &Mark) -> String {
    let [low, high] = mark.spread;
    let value = |value| match mark.form {
        // A count is not a ratio.
        Form::Model => shortest(value, 3),
        Form::Live | Form::Simulated => format!("{}x", number(value, digits(value))),
    };
    let spread = || format!("({})", range(low, high, digits(high)));
    match mark.value {
        Some(found) if low != high => format!("{} {}", value(found), spread()),
        Some(found) => value(found),
        None if low != high => spread(),
        None => NOTHING.to_owned(),
    }
}

/// Formats the ratio published in the source, with as many digits as the target.
fn source(mark: &Mark) -> String {
    match (mark.source, decimals(mark.target)) {
        (Some(source), digits @ 3..) => format!("{}x", number(source, digits)),
        (Some(source), _) => factor(source),
        (None, _) => NOTHING.to_owned(),
    }
}

/// Returns how many digits after the decimal point of `value` fit in its column.
fn digits(value: f64) -> usize {
    match value.abs() {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    }
}

fn target(mark: &Mark) -> String {
    let side = match mark.side {
        Side::AtLeast => ">=",
        Side::AtMost => "<=",
    };
    format!("{side}{}", shortest(mark.target, 3))
}

pub(super) fn verdict(mark: &Mark) -> &'static str {
    match mark.met {
        Some(true) => "met",
        Some(false) => "missed",
        None if mark.nothing_to_spare => "nothing to spare",
        None => "unclear",
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;

    #[test]
    fn a_row_has_the_value_here_the_source_s_and_the_verdict() {
        let mut report = report();
        let live = Mark {
            form: Form::Live,
            value: Some(2.146),
            spread: [2.094, 2.616],
            met: None,
            ..report.marks[0].clone()
        };
        report.experiments[0].marks = vec![
            live.in_brief("4K pages: LRO over no LRO", Some(2.378)),
            report.marks[0].clone().in_brief("a count", None),
        ];
        let text = experiment(&report.experiments[0], WIDTH);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("lro: "));
        assert_eq!(
            lines[1],
            "  4K pages: LRO over no LRO           2.15x (2.09-2.62)   2.38x   >=2.5 unclear"
        );
        let full = report.experiments[0].marks[0].clone().with_nothing_to_spare("why");
        let mut spared = report.experiments[0].clone();
        spared.marks = vec![full];
        assert_eq!(
            experiment(&spared, WIDTH).lines().nth(1),
            Some(
                "  4K pages: LRO over no LRO           2.15x (2.09-2.62)   2.38x nothing to spare"
            )
        );
        let close = Mark {
            target: 1.175,
            source: Some(3598.17 / 3061.05),
            ..report.experiments[0].marks[0].clone()
        };
        assert_eq!(source(&close), "1.175x", "no more than its target seems, where it is the same");
        assert!(
            lines[2].contains("a count") && lines[2].ends_with("missed"),
            "a count that is not as it should be is shown: {text}"
        );
        report.experiments[0].marks[1].met = Some(true);
        assert!(!experiment(&report.experiments[0], WIDTH).contains("a count"));
        let narrow = experiment(&report.experiments[0], 40);
        assert!(
            narrow.lines().all(|line| line.len() <= 40) && narrow.contains("source 2.38x"),
            "{narrow}"
        );
    }

    #[test]
    fn values_of_any_size_fit_their_column() {
        let (report, sizes) = (report(), [0.004, 0.05, 1.0, 9.996, 42.0, 640.0]);
        for value in sizes {
            for [low, high] in sizes
                .iter()
                .flat_map(|&low| sizes.map(|high| [low, high]))
                .filter(|[low, high]| low <= high)
            {
                let mark = Mark {
                    form: Form::Live,
                    value: Some(value),
                    spread: [low, high],
                    ..report.marks[0].clone()
                };
                assert!(here(&mark).len() <= COLUMNS[1], "{}", here(&mark));
            }
        }
        let mark = Mark {
            form: Form::Live,
            value: Some(0.13),
            spread: [0.074, 0.519],
            ..report.marks[0].clone()
        };
        assert_eq!(here(&mark), "0.13x (0.07-0.52)");
        let counted = Mark { value: Some(2.0), spread: [2.0; 2], ..report.marks[0].clone() };
        assert_eq!(here(&counted), "2", "a count is no ratio");
    }

    #[test]
    fn kinds_of_marks_are_not_added_up() {
        let text = end(&report(), 200);
        assert!(text.starts_with("all marks, measured: 1 unclear; counted: 1 missed\n"), "{text}");
        let mut full = report();
        full.marks[0] = full.marks[0].clone().with_nothing_to_spare("why");
        let text = end(&full, 200);
        assert!(
            text.starts_with("all marks, measured: 1 unclear; counted: 1 nothing to"),
            "{text}"
        );
        let mut report = report();
        (report.plan.rounds, report.plan.seconds) = (10, 0.25);
        let heading = heading(&report, WIDTH);
        assert!(heading.lines().all(|line| line.chars().count() <= WIDTH));
        assert!(
            heading
                .lines()
                .nth(1)
                .is_some_and(|line| line.contains("in (): half of them, or an assumption's range")),
            "{heading}"
        );
    }
}
