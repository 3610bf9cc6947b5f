//! Renders the report as an HTML page.

use super::words::{balance, busiest, cpus, flow_limit, flows, left_out, summary, times};
use super::{SteerReport, plot};
use crate::commands::error::Error;
use crate::commands::present::{Colour, Page, grouped, percent};

/// Maximum CPUs in the table and in the chart; if there are more, the busiest are shown.
const MOST_CPUS: usize = 128;

/// Renders the page with at most `top` flows.
pub(super) fn render(report: &SteerReport, top: usize) -> Result<String, Error> {
    let mut page = Page::new(&report.file, report.command);
    page.remark(&format!(
        "How receive packet steering would spread this traffic: {}.",
        summary(report)
    ));
    if let Some(cut) = &report.cut_short {
        page.paragraph(&format!("The file is cut short: {cut}"));
    }
    if report.left_out.packets > 0 {
        page.paragraph(&format!("Left out: {}.", left_out(&report.left_out)));
    }
    let (packets, steered) = (report.totals.packets_in, report.steered());
    let (rows, more) = busiest(report, MOST_CPUS);
    if !report.cpus.is_empty() {
        page.subsection("CPUs");
        let colours = [
            (Colour::Before, "of the flows"),
            (Colour::After, "of the packets; the line is an even share"),
        ];
        page.figure("Share by CPU.", &colours, &plot::cpus(&rows, &report.cpus))?;
    }
    page.tiles([
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
    ]);
    if !report.cpus.is_empty() {
        page.table(&cpus(&rows, report));
        if more > 0 {
            page.remark(&format!("And {more} more with fewer packets."));
        }
        page.paragraph(&balance(report));
        page.paragraph(&flow_limit(report));
    }
    if let Some(flows) = flows(report, top) {
        page.subsection("Flows with the most packets");
        page.table(&flows);
    }
    Ok(page.finish())
}
