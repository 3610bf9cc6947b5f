//! The report as text.

use super::flows::FlowRow;
use super::{CpuRow, LeftOut, Report};
use crate::report::{fitted, grouped, paragraph, percent, printable, reasons};

/// CPUs in the table; of more, the busiest.
const MOST_CPUS: usize = 64;

/// The columns of CPUs, on the page and in the terminal.
pub(super) const CPU_COLUMNS: [&str; 6] = ["CPU", "packets", "share", "bytes", "flows", "flow limit drops"];

/// The columns of flows.
pub(super) const FLOW_COLUMNS: [&str; 5] = ["flow", "hash", "CPU", "packets", "flow limit drops"];

/// Renders the report, with so many flows, in lines of at most so many columns.
pub(super) fn render(report: &Report<'_>, top: usize, columns: usize) -> String {
    let mut text = format!("{}\n{}\n", printable(&report.file), paragraph(&summary(report), 2, columns));
    if !report.cpus.is_empty() {
        let (rows, more) = busiest(report, MOST_CPUS);
        text.push_str(&fitted(CPU_COLUMNS, rows.into_iter().map(|cpu| cpu_row(cpu, report.steered())), columns));
        if more > 0 {
            text.push_str(&format!("  and {more} more with fewer packets\n"));
        }
        text.push('\n');
        text.push_str(&paragraph(&balance(report), 2, columns));
        text.push_str(&paragraph(&flow_limit(report), 2, columns));
    }
    text.push_str(&format!("\n  What became of the packets:\n{}", reasons(&report.totals)));
    if top > 0 && !report.flows.is_empty() {
        text.push('\n');
        text.push_str(&fitted(FLOW_COLUMNS, report.flows.iter().take(top).map(flow_row), columns));
    }
    if report.left_out.packets > 0 {
        text.push('\n');
        text.push_str(&paragraph(&left_out(&report.left_out), 2, columns));
    }
    text
}

/// What was asked and what there is.
pub(super) fn summary(report: &Report<'_>) -> String {
    let hash = format!(
        "{} hash of the {}most headers{}",
        if report.symmetric { "symmetric Toeplitz" } else { "Toeplitz" },
        report.headers,
        if report.key_is_published { ", with the published key" } else { "" },
    );
    let cpus = match report.cpus.len() {
        0 => "no CPUs: steering is off, packets stay where they are received".to_owned(),
        1 => format!("1 CPU, {}", report.cpu_list),
        count => format!("{} CPUs, {}", grouped(count as u64), report.cpu_list),
    };
    format!("{} packets, {} flows; {cpus}; {hash}", grouped(report.totals.packets_in), grouped(report.flows.len() as u64))
}

/// The imbalance in words.
pub(super) fn balance(report: &Report<'_>) -> String {
    format!(
        "Imbalance: the busiest CPU has {} the packets of the average one; by flows, {}.",
        times(report.imbalance),
        times(report.imbalance_flows),
    )
}

/// A factor.
pub(super) fn times(factor: Option<f64>) -> String {
    factor.map_or_else(|| "-".to_owned(), |factor| format!("{factor:.2}x"))
}

/// What the flow limit would do, in words.
pub(super) fn flow_limit(report: &Report<'_>) -> String {
    let limit = &report.flow_limit;
    format!(
        "Flow limit, if every backlog stayed half full or fuller: {} packets ({}) of {} flows dropped.",
        grouped(limit.packets),
        percent(limit.packets, report.steered()),
        grouped(limit.flows),
    )
}

/// What is not listed, in words.
pub(super) fn left_out(left_out: &LeftOut) -> String {
    format!(
        "flows beyond the first {} are not listed; their {} packets are counted for their CPUs, their flows are not",
        grouped(left_out.most_flows as u64),
        grouped(left_out.packets),
    )
}

/// At most so many CPUs, in the order of their numbers, and how many are not among them.
pub(super) fn busiest<'a>(report: &'a Report<'_>, most: usize) -> (Vec<&'a CpuRow>, usize) {
    let mut rows: Vec<_> = report.cpus.iter().collect();
    rows.sort_by_key(|row| (std::cmp::Reverse(row.packets), row.cpu));
    rows.truncate(most);
    rows.sort_by_key(|row| row.cpu);
    let more = report.cpus.len() - rows.len();
    (rows, more)
}

/// A CPU in its columns.
pub(super) fn cpu_row(row: &CpuRow, steered: u64) -> [String; 6] {
    [
        row.cpu.to_string(),
        grouped(row.packets),
        percent(row.packets, steered),
        grouped(row.bytes),
        grouped(row.flows),
        grouped(row.flow_limited),
    ]
}

/// A flow in its columns.
pub(super) fn flow_row(flow: &FlowRow<'_>) -> [String; 5] {
    [
        flow.to_string(),
        format!("{:08x}", flow.hash.0),
        flow.cpu.map_or_else(|| "-".to_owned(), |cpu| cpu.to_string()),
        grouped(flow.packets),
        grouped(flow.flow_limited),
    ]
}
