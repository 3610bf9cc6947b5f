//! Table rows that are the same on the page and in the terminal.

use super::Effect;
use crate::commands::figures::{average, grouped};

/// Columns of the table of policies, on the page and in the terminal.
pub const POLICY_COLUMNS: [&str; 7] = [
    "aggregation",
    "packets out",
    "fewer by",
    "super-packets",
    "packets in one",
    "bytes/packet",
    "ACKs absorbed",
];

/// Returns the row of a policy in the table of policies.
pub fn policy_row(name: &str, effect: &Effect) -> [String; 7] {
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
}
