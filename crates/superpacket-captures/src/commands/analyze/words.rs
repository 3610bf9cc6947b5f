//! The tables that the page and the terminal share.

use super::{DEFAULT, Findings};
use crate::commands::present::{Table, average, grouped};

/// The result of each policy.
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
    Table { main: Some(DEFAULT), ..Table::new(headings, rows) }
}

/// The flows with the most bytes. `at_least` precedes a number that is a lower bound.
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
    Table::new(["flow", "packets", "bytes", "packets out"], rows)
}
