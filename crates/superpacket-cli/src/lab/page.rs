//! The report as an HTML page.

use superpacket_captures::Error;
use superpacket_captures::present::{Cell, Colour, Column, Page, Table};
use superpacket_lab::experiment::{Experiment, Form, Mark};

use super::LabReport;
use super::grid::{cells, mark, method, origin, verdict, why_no_ratio};
use super::plot;

/// Renders the page.
pub(super) fn render(report: &LabReport) -> Result<String, Error> {
    let title = match report.experiments.as_slice() {
        [only] => format!("The experiment {}, again", only.name),
        _ => "The sources' experiments, again".to_owned(),
    };
    let mut page = Page::new(&title, "lab");
    let plan = &report.plan;
    let how = match plan.form {
        "live" => format!("{} rounds of {} s each, variants in turn", plan.rounds, plan.seconds),
        _ => "counted on the model NIC and simulated; nothing was measured".to_owned(),
    };
    page.remark(&format!("{}: {how}.", report.command));
    if let Some(chart) = plot::overview(&report.experiments) {
        let colours = [(Colour::After, "here"), (Colour::Before, "the source")];
        page.figure("What each experiment compares:", &colours, &chart)?;
    }
    let machine = &report.machine;
    let guest = if machine.virtual_machine { ", virtual" } else { "" };
    let cores = if machine.cores == 1 { "core" } else { "cores" };
    // Measured, simulated and counted marks are not added up.
    let met = [(Form::Live, "measured"), (Form::Simulated, "simulated"), (Form::Model, "counted")]
        .into_iter()
        .filter_map(|(form, name)| {
            let marks: Vec<_> = report.marks.iter().filter(|mark| mark.form == form).collect();
            let met = marks.iter().filter(|mark| mark.met == Some(true)).count();
            (!marks.is_empty())
                .then(|| (format!("{met} of {}", marks.len()), format!("{name} marks met")))
        });
    let machine_figures = [
        (format!("{} {cores}", machine.cores), format!("{}{guest}", machine.cpu)),
        (
            format!("{:.1} GB", machine.memory as f64 / 1e9),
            format!("of memory, {}", machine.kernel),
        ),
        (format!("{:.2}", machine.load), "load in the minute before".to_owned()),
    ];
    page.tiles(met.chain(machine_figures));
    for note in &report.notes {
        page.paragraph(note);
    }
    for failed in &report.failed {
        page.failure(&format!("{} failed", failed.name), &failed.error);
    }
    if !report.marks.is_empty() {
        page.section("Marks");
        page.table(&marks(&report.marks));
    }
    for found in &report.experiments {
        experiment(found, &mut page)?;
    }
    Ok(page.finish())
}

fn marks(marks: &[Mark]) -> Table {
    let rows = marks.iter().map(|found| {
        let class = match found.met {
            Some(true) => "met",
            Some(false) => "missed",
            None => "muted",
        };
        let origin = origin(found).map(str::to_owned);
        vec![
            Cell { note: origin, ..Cell::new(&found.name) },
            Cell { class, ..Cell::new(verdict(found)) },
            Cell { note: found.reason.clone(), ..Cell::new(mark(found)) },
        ]
    });
    let column = |heading: &str| Column { heading: heading.to_owned(), of_source: false };
    Table {
        names: 1,
        columns: ["mark", "", "reached, target"].map(column).into(),
        rows: rows.collect(),
        main: None,
        class: "lab words",
    }
}

fn experiment(experiment: &Experiment, page: &mut Page) -> Result<(), Error> {
    page.section(experiment.name);
    page.remark(experiment.source);
    page.paragraph(experiment.summary);
    for table in &experiment.tables {
        let cells = cells(table);
        page.subsection(&table.title);
        page.remark(&format!("{}.", method(table)));
        if let Some(chart) = plot::bars(table) {
            let source = (Colour::Before, "the source, in a measure of its own");
            let has_source = cells.columns.iter().any(|column| column.of_source);
            let colours = [(Colour::After, "here"), source];
            page.figure("", &colours[..1 + usize::from(has_source)], &chart)?;
        }
        page.table(&cells);
        if let Some(why) = why_no_ratio(table) {
            page.remark(&format!("{why}."));
        }
    }
    page.list(&experiment.notes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;

    #[test]
    fn every_figure_has_its_spread_and_stands_beside_the_source_s() -> Result<(), Error> {
        let page = render(&report())?;
        assert!(
            page.contains(">5.0<small>4.5-5.5</small></td>") && page.contains(">8.8</td>"),
            "{page}"
        );
        assert!(
            page.contains(">no ratio<small>2.00-3.25</small></td>")
                && page.contains("the rounds differ too much")
        );
        assert!(
            page.contains("<td class=\"missed\">missed</td>")
                && page.contains("<h3>Sender &lt;MTU&gt; 1500</h3>")
        );
        assert_eq!(page.matches("<svg ").count(), 2, "wide and narrow");
        Ok(())
    }
}
