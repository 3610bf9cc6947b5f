//! The tables and sentences that the page and the terminal share.

use super::{CpuShare, LeftOut, SteerReport};
use crate::commands::present::{NOTHING, Table, factor, grouped, percent};

/// Returns a line of text on the capture and the options.
pub fn summary(report: &SteerReport) -> String {
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
    let filtered_out = match report.totals.filtered_out {
        0 => String::new(),
        count => format!("; {} packets did not match the filter", grouped(count)),
    };
    format!(
        "{} packets, {} flows; {cpus}; {hash}{filtered_out}",
        grouped(report.totals.packets_in),
        grouped(report.flows.len() as u64)
    )
}

/// Returns a sentence on the imbalance between CPUs.
pub fn balance(report: &SteerReport) -> String {
    format!(
        "Imbalance: the busiest CPU has {} the packets of the average one; by flows, {}.",
        times(report.imbalance),
        times(report.imbalance_flows),
    )
}

/// Formats an imbalance as a factor, such as `1.25x`.
pub fn times(imbalance: Option<f64>) -> String {
    imbalance.map_or_else(|| NOTHING.to_owned(), factor)
}

/// Returns a sentence on the packets that the flow limit would drop.
pub fn flow_limit(report: &SteerReport) -> String {
    let limit = &report.flow_limit;
    format!(
        "Flow limit, if every backlog stayed half full or fuller: {} packets ({}) of {} flows dropped.",
        grouped(limit.packets),
        percent(limit.packets, report.steered()),
        grouped(limit.flows),
    )
}

/// Returns a remark on the flows that are not listed.
pub fn left_out(left_out: &LeftOut) -> String {
    format!(
        "flows beyond the first {} are not listed; their {} packets are counted for their CPUs, their flows are not",
        grouped(left_out.most_flows as u64),
        grouped(left_out.packets),
    )
}

/// Returns the `most` busiest CPUs, in the order of their numbers, and how many others there are.
pub fn busiest(report: &SteerReport, most: usize) -> (Vec<&CpuShare>, usize) {
    let mut rows: Vec<_> = report.cpus.iter().collect();
    rows.sort_by_key(|row| (std::cmp::Reverse(row.packets), row.cpu));
    rows.truncate(most);
    rows.sort_by_key(|row| row.cpu);
    let more = report.cpus.len() - rows.len();
    (rows, more)
}

/// Returns a table of the packets and flows of the CPUs `rows`.
pub fn cpus(rows: &[&CpuShare], report: &SteerReport) -> Table {
    let rows = rows.iter().map(|row| {
        [
            row.cpu.to_string(),
            grouped(row.packets),
            percent(row.packets, report.steered()),
            grouped(row.bytes),
            grouped(row.flows),
            grouped(row.flow_limited),
        ]
    });
    Table::new(["CPU", "packets", "share", "bytes", "flows", "flow limit drops"], rows)
}

/// Returns a table of the `top` flows with the most packets; `None` if none are to be listed.
pub fn flows(report: &SteerReport, top: usize) -> Option<Table> {
    let rows = report.flows.iter().take(top).map(|flow| {
        [
            flow.to_string(),
            format!("{:08x}", flow.hash()),
            flow.cpu().map_or_else(|| NOTHING.to_owned(), |cpu| cpu.to_string()),
            grouped(flow.packets()),
            grouped(flow.flow_limited()),
        ]
    });
    let table = Table::new(["flow", "hash", "CPU", "packets", "flow limit drops"], rows);
    (!table.rows.is_empty()).then_some(table)
}
