//! The report as an HTML page.

use superpacket_captures::Error;
use superpacket_captures::present::{Cell, Column, Page, Table};
use superpacket_lab::experiment::{Experiment, Form, Mark, Plot};

use super::LabReport;
use super::grid::{mark, method, origin, parts, verdict, why_no_ratio};
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
        page.figure("What each experiment compares", &[], &chart)?;
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
        page.details(&format!("all {} marks, with reasons", report.marks.len()), |page| {
            page.table(&marks(&report.marks));
            Ok(())
        })?;
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
    let charts = plot::charts(&experiment.tables);
    for (index, found) in experiment.tables.iter().enumerate() {
        // What no chart shows is folded, and is printed only if the reader opens it.
        if found.plot == Plot::Nothing && !charts.is_empty() {
            page.details(&found.title, |page| {
                table(found, page);
                Ok(())
            })?;
            continue;
        }
        page.subsection(&found.title);
        if let Some(found) = charts.iter().find(|found| found.before == index) {
            page.figure("On logarithmic axes: equal ratios have equal lengths", &[], &found.chart)?;
        }
        table(found, page);
    }
    page.list(&experiment.notes);
    Ok(())
}

fn table(table: &superpacket_lab::experiment::Table, page: &mut Page) {
    page.remark(&format!("{}.", method(table)));
    for part in parts(table) {
        page.table(&part);
    }
    if let Some(why) = why_no_ratio(table) {
        page.remark(&format!("{why}."));
    }
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
        let mut plotted = report();
        plotted.experiments[0].tables[0].plot = Plot::Marks(&[0]);
        plotted.experiments[0].tables.push(superpacket_lab::experiment::Table {
            title: "without a chart".into(),
            ..super::super::grid::tests::table()
        });
        let plotted = render(&plotted)?;
        assert_eq!(plotted.matches("<svg ").count(), 2, "wide and narrow");
        assert!(
            plotted.contains("<summary>without a chart") && !page.contains("<summary>Sender"),
            "{plotted}"
        );
        Ok(())
    }
}
