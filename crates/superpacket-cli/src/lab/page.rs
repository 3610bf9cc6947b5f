//! The report as an HTML page.

use std::fmt::Write;

use superpacket_lab::experiment::{Experiment, Form, Mark};

use super::LabReport;
use super::grid::{Grid, WHY_NO_RATIO, mark, method, origin, verdict};
use super::plot;
use superpacket_captures::Error;
use superpacket_captures::page::{self, Escaped, Stop, tiles};
use superpacket_captures::plot::{WIDE, both};

/// Renders the page.
pub(super) fn render(report: &LabReport) -> Result<String, Error> {
    let title = match report.experiments.as_slice() {
        [only] => format!("The experiment {}, again", only.name),
        _ => "The sources' experiments, again".to_owned(),
    };
    page::render(&title, "lab", |page| write(report, page))
}

fn write(report: &LabReport, page: &mut String) -> Result<(), Stop> {
    let plan = &report.plan;
    let how = match plan.form {
        "live" => format!("{} rounds of {} s each, variants in turn", plan.rounds, plan.seconds),
        _ => "counted on the model NIC and simulated; nothing was measured".to_owned(),
    };
    writeln!(page, "<p class=\"muted\">{}: {how}.</p>", Escaped(&report.command))?;
    if plot::overview(&report.experiments, WIDE).is_some() {
        let svg = both(|width| {
            plot::overview(&report.experiments, width).unwrap_or_else(|| Ok(String::new()))
        })?;
        let key =
            "<span class=\"key after\"></span>here<span class=\"key before\"></span>the source";
        writeln!(
            page,
            "<figure><figcaption>What each experiment compares:{key}</figcaption>{svg}</figure>"
        )?;
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
        (format!("{} {cores}", machine.cores), format!("{}{guest}", Escaped(&machine.cpu))),
        (
            format!("{:.1} GB", machine.memory as f64 / 1e9),
            format!("of memory, {}", Escaped(&machine.kernel)),
        ),
        (format!("{:.2}", machine.load), "load in the minute before".to_owned()),
    ];
    tiles(met.chain(machine_figures), page)?;
    for note in &report.notes {
        writeln!(page, "<p class=\"name\">{}</p>", Escaped(note))?;
    }
    for failed in &report.failed {
        writeln!(
            page,
            "<p class=\"name\"><span class=\"missed\">{} failed</span>: {}</p>",
            Escaped(failed.name),
            Escaped(&failed.error)
        )?;
    }
    if !report.marks.is_empty() {
        marks(&report.marks, page)?;
    }
    for found in &report.experiments {
        experiment(found, page)?;
    }
    Ok(())
}

fn marks(marks: &[Mark], page: &mut String) -> Result<(), Stop> {
    page.push_str(
        "<h2>Marks</h2>\n<div class=\"table\"><table class=\"lab words\">\n<tr><th>mark</th><th></th><th>reached, target</th></tr>\n",
    );
    for found in marks {
        let class = match found.met {
            Some(true) => "met",
            Some(false) => "missed",
            None => "muted",
        };
        let origin =
            origin(found).map(|origin| format!(" <small>{origin}</small>")).unwrap_or_default();
        let reason = found
            .reason
            .as_ref()
            .map(|reason| format!("<small>{}</small>", Escaped(reason)))
            .unwrap_or_default();
        writeln!(
            page,
            "<tr><td>{}{origin}</td><td class=\"{class}\">{}</td><td data-heading=\"reached, target\">{}{reason}</td></tr>",
            Escaped(&found.name),
            verdict(found),
            Escaped(&mark(found)),
        )?;
    }
    page.push_str("</table></div>\n");
    Ok(())
}

fn experiment(experiment: &Experiment, page: &mut String) -> Result<(), Stop> {
    writeln!(
        page,
        "<h2 id=\"{0}\">{0}</h2>\n<p class=\"muted\">{1}</p>\n<p>{2}</p>",
        Escaped(experiment.name),
        Escaped(experiment.source),
        Escaped(experiment.summary),
    )?;
    for table in &experiment.tables {
        let grid = Grid::new(table);
        writeln!(
            page,
            "<h3>{}</h3>\n<p class=\"muted\">{}.</p>",
            Escaped(&table.title),
            method(table)
        )?;
        if plot::bars(table, WIDE).is_some() {
            let svg = both(|width| plot::bars(table, width).unwrap_or_else(|| Ok(String::new())))?;
            let source = if grid.header.iter().any(|heading| heading.of_source) {
                "<span class=\"key before\"></span>the source, in a measure of its own"
            } else {
                ""
            };
            let key = format!("<span class=\"key after\"></span>here{source}");
            writeln!(page, "<figure><figcaption>{key}</figcaption>{svg}</figure>")?;
        }
        cells(&grid, page)?;
        if grid.ratio_withheld {
            writeln!(page, "<p class=\"muted\">{}.</p>", Escaped(WHY_NO_RATIO))?;
        }
    }
    if !experiment.notes.is_empty() {
        page.push_str("<ul>\n");
        for note in &experiment.notes {
            writeln!(page, "<li>{}</li>", Escaped(note))?;
        }
        page.push_str("</ul>\n");
    }
    Ok(())
}

/// Maximum number of columns that fit a screen.
const MAX_COLUMNS: usize = 7;

fn cells(grid: &Grid, page: &mut String) -> Result<(), Stop> {
    // A table with many columns is shown as one card per row, as every table is on a phone.
    let class_of_all = if grid.header.len() > MAX_COLUMNS { "lab cards" } else { "lab" };
    write!(page, "<div class=\"table\"><table class=\"{class_of_all}\">\n<tr>")?;
    for (place, heading) in grid.header.iter().enumerate() {
        let source = if heading.of_source { "source’s " } else { "" };
        write!(
            page,
            "<th{}>{source}{}</th>",
            class(place, grid, heading.of_source),
            Escaped(&heading.text)
        )?;
    }
    page.push_str("</tr>\n");
    for row in &grid.rows {
        page.push_str("<tr>");
        for (place, (cell, heading)) in row.iter().zip(&grid.header).enumerate() {
            let source = if heading.of_source { "source’s " } else { "" };
            let class = class(place, grid, heading.of_source);
            write!(
                page,
                "<td{class} data-heading=\"{source}{}\">{}",
                Escaped(&heading.text),
                Escaped(&cell.text)
            )?;
            if let Some(spread) = &cell.spread {
                write!(page, "<small>{}</small>", Escaped(spread))?;
            }
            page.push_str("</td>");
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>\n");
    Ok(())
}

fn class(place: usize, grid: &Grid, of_source: bool) -> &'static str {
    match (place < grid.names, of_source) {
        (true, _) => " class=\"named\"",
        (false, true) => " class=\"muted\"",
        (false, false) => "",
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
        assert_eq!(page.matches("<svg ").count(), 2, "wide and narrow");
        Ok(())
    }
}
