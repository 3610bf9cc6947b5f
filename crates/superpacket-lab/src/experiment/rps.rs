//! Receive Packet Steering (Tom Herbert, 2010): 500 connections with one outstanding
//! request of one byte each, and different ways to spread their packets over CPUs.
//!
//! The original report's machines had one or a few receive queues and 8 or 16 CPUs. Without RPS,
//! the CPU that a queue interrupted did the protocol work of all its packets and became the
//! bottleneck. These machines are [simulated](crate::simulation) with the real steering code. A
//! model NIC counts the work per packet. The live form runs the same load through the bridge on
//! this machine.

mod card;
mod curve;
mod full;
mod live;
mod simulated;
#[cfg(test)]
mod tests;
mod variants;

use super::{Column, Entry, Experiment};
use crate::error::LabError;

/// Description of the RPS experiment, as an element of `experiment::ALL`.
pub const ENTRY: Entry = Entry {
    name: "rps",
    headline: "transactions of 500 connections, steered over not (Herbert, 2010)",
    source: "Tom Herbert, \"rps: Receive Packet Steering\" (v7), 2010",
    summary: "500 connections with one outstanding request of one byte each: transactions per second and CPU usage, without steering and with CPU masks.",
    live: live::run,
    // An eleventh variant exists if the automatic mask is neither empty nor all CPUs.
    measurements: |plan| if plan.quick { 8 } else { 11 } * plan.rounds,
    model,
};

/// Simulates the original report's machines and larger ones, and counts the work per packet on the
/// model NIC. The result is the same in every run.
///
/// # Errors
/// [`LabError::System`] if the model NIC gets no descriptors.
fn model() -> Result<Experiment, LabError> {
    let (mut tables, marks) = simulated::tables();
    tables.push(card::table()?);
    tables.extend(curve::tables());
    Ok(Experiment { tables, marks, notes: simulated::notes(), ..Experiment::new(&ENTRY) })
}

const TRANSACTIONS: Column = Column { name: "transactions", title: "tps", unit: "1/s", digits: 0 };
const CPU: Column = Column { name: "cpu", title: "CPU", unit: "%", digits: 0 };
