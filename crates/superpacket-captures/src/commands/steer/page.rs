//! Renders the report as an HTML page.

use std::fmt::Write;

use super::words::{
    CPU_COLUMNS, FLOW_COLUMNS, balance, busiest, cpu_row, flow_limit, flow_row, left_out, summary,
    times,
};
use super::{SteerReport, plot};
use crate::commands::error::Error;
use crate::commands::figures::{grouped, percent};
use crate::commands::page::{self, Breakable, Escaped, Stop, table, tiles};
use crate::commands::plot::both;

/// Maximum CPUs in the table and in the plot; if there are more, the busiest are shown.
const MOST_CPUS: usize = 128;

/// Renders the page with at most `top` flows.
pub(super) fn render(report: &SteerReport, top: usize) -> Result<String, Error> {
    page::render(&report.file, report.command, |page| write(report, top, page))
}

fn write(report: &SteerReport, top: usize, page: &mut String) -> Result<(), Stop> {
    writeln!(
        page,
        "<p class=\"muted\">How receive packet steering would spread this traffic: {}.</p>",
        Escaped(&summary(report))
    )?;
    if let Some(cut) = &report.cut_short {
        writeln!(
            page,
            "<p class=\"name\">The file is cut short: {}</p>",
            Breakable(&cut.to_string())
        )?;
    }
    if report.left_out.packets > 0 {
        writeln!(page, "<p>Left out: {}.</p>", Escaped(&left_out(&report.left_out)))?;
    }
    let (packets, steered) = (report.totals.packets_in, report.steered());
    let figures = [
        (times(report.imbalance), "packets of the busiest CPU over the average".to_owned()),
        (
            times(report.imbalance_flows),
            "flows of the CPU with the most over the average".to_owned(),
        ),
        (grouped(report.flows.len() as u64), format!("flows in {} packets", grouped(packets))),
        (percent(steered, packets), "of the packets are steered".to_owned()),
        (
            percent(report.flow_limit.packets, steered),
            "of these dropped by the flow limit in overload".to_owned(),
        ),
    ];
    let (rows, more) = busiest(report, MOST_CPUS);
    if !report.cpus.is_empty() {
        let svg = both(|width| plot::cpus(&rows, &report.cpus, width))?;
        let key = "<span class=\"key before\"></span>of the flows<span class=\"key after\"></span>of the packets";
        writeln!(
            page,
            "<h3>CPUs</h3>\n<figure><figcaption>Share by CPU.{key}; the line is an even share</figcaption>{svg}</figure>"
        )?;
    }
    tiles(figures, page)?;
    if !report.cpus.is_empty() {
        table(CPU_COLUMNS, rows.into_iter().map(|cpu| cpu_row(cpu, steered)), None, page)?;
        if more > 0 {
            writeln!(page, "<p class=\"muted\">And {more} more with fewer packets.</p>")?;
        }
        writeln!(
            page,
            "<p>{}</p>\n<p>{}</p>",
            Escaped(&balance(report)),
            Escaped(&flow_limit(report))
        )?;
    }
    if top > 0 && !report.flows.is_empty() {
        writeln!(page, "<h3>Flows with the most packets</h3>")?;
        table(FLOW_COLUMNS, report.flows.iter().take(top).map(flow_row), None, page)?;
    }
    Ok(())
}
