//! The tables that the page and the terminal share.

use super::{DEFAULT, Findings};
use crate::commands::explain::explain;
use crate::commands::present::{Cell, Table, average, grouped, percent, ratio};
use crate::commands::totals::Totals;

/// Returns a table with the results of each policy.
pub fn policies(findings: &Findings) -> Table {
    let rows = findings.policies.in_order().map(|(name, effect)| {
        let totals = &effect.totals;
        [
            name.to_owned(),
            grouped(totals.packets_out),
            totals.fewer_by(),
            grouped(totals.super_packets),
            effect.packets_in_one(),
            average(totals.bytes_out, totals.packets_out, 0),
            grouped(effect.absorbed_acks),
        ]
    });
    let headings = [
        "aggregation",
        "packets out",
        "fewer by",
        "super-packets",
        "packets in one",
        "bytes/packet",
        "ACKs absorbed",
    ];
    let table = Table { main: Some(DEFAULT), ..Table::new(headings, rows) };
    let effects = findings.policies.in_order().map(|(_, effect)| &effect.totals);
    with_bars(table, 1, effects.map(|totals| ratio(totals.packets_out, totals.packets_in)))
}

/// Returns a sentence that says that a capture has frames longer than those of most networks,
/// because an offload had merged packets before they were captured; `None` if it has no such
/// frames.
pub fn merged_before(findings: &Findings) -> Option<String> {
    let sizes = &findings.traffic.sizes;
    let frames = sizes.above(1518);
    let or = if sizes.above(9018) > 0 { "" } else { ", or its network has jumbo frames" };
    (frames > 0).then(|| {
        format!(
            "{} frames above 1,518 bytes: an offload merged this capture already{or}; `segment` \
             undoes it",
            grouped(frames)
        )
    })
}

/// Returns the table of the flows with the most bytes. `at_least` precedes a number that is a lower
/// bound.
pub fn top_flows(findings: &Findings, at_least: &str) -> Table {
    let rows = findings.top_flows.iter().map(|row| {
        let bound = if row.exact { "" } else { at_least };
        [
            row.flow.clone(),
            format!("{bound}{}", grouped(row.packets_in)),
            format!("{bound}{}", grouped(row.bytes)),
            grouped(row.packets_out),
        ]
    });
    let table = Table::new(["flow", "packets", "bytes", "packets out"], rows);
    let flows = findings.top_flows.iter();
    with_bars(table, 3, flows.map(|row| ratio(row.packets_out, row.packets_in)))
}

/// Returns a table of the reasons why packets left the aggregator, the most frequent first, each
/// with a sentence that explains it.
pub(super) fn reasons(totals: &Totals) -> Table {
    let mut sorted: Vec<_> = totals.reasons.iter().map(|(name, &count)| (*name, count)).collect();
    sorted.sort_by_key(|&(name, count)| (std::cmp::Reverse(count), name));
    let all = totals.packets_out;
    let rows = sorted.iter().map(|&(name, count)| {
        let words = explain(name).unwrap_or_default().to_owned();
        [name.replace('_', " "), words, grouped(count), percent(count, all)]
    });
    let table = Table::new(["reason", "what it means", "packets out", "share"], rows);
    let shares = sorted.iter().map(|&(_, count)| ratio(count, all));
    Table { names: 2, class: "reasons", ..with_bars(table, 2, shares) }
}

/// Adds a bar to the cells of a column. `shares` has the length of each row's bar, from 0 to 1.
fn with_bars(mut table: Table, column: usize, shares: impl IntoIterator<Item = f64>) -> Table {
    for (row, share) in table.rows.iter_mut().zip(shares) {
        if let Some(cell) = row.get_mut(column) {
            *cell = Cell::with_bar(std::mem::take(&mut cell.text), share);
        }
    }
    table
}
