//! RPS: 500 connections with one request of one byte each under way, by how their packets are
//! spread over CPUs.
//!
//! The source had one receive queue, or a few, and 8 or 16 CPUs: without RPS, protocol work was
//! done by the CPU that the queue interrupted, one packet after the other, and became the limit.
//! Such machines are [simulated](crate::simulation), with the real steering code; what a model NIC
//! and the steering code do to the packets themselves is counted; and the same load is run through
//! the bridge on this machine, as far as its CPUs go.

mod card;
mod curve;
mod live;
mod simulated;
#[cfg(test)]
mod tests;

use super::{Column, Entry, Experiment, Figure, Row, Session};
use crate::error::LabError;

/// The experiment.
pub const ENTRY: Entry = Entry {
    name: "rps",
    headline: "transactions of 500 connections, steered over not (Herbert, 2010)",
    source: "Tom Herbert, \"rps: Receive Packet Steering\" (v7), 2010",
    summary: "500 connections with one request of one byte each under way: transactions a second and CPU, without steering and with masks of CPUs.",
    live,
    // One more where the mask that the bridge chooses by itself is neither none nor all.
    measurements: |plan| if plan.quick { 8 } else { 9 } * plan.rounds,
    model,
};

/// Measures it between hosts on this machine: without steering, with masks, and with the kernel's
/// own RPS beside them.
///
/// # Errors
/// [`LabError::Forbidden`] and [`LabError::Unsupported`] where this machine cannot;
/// [`LabError::Cancelled`]; what hosts and bridge refuse.
pub fn live(session: &Session<'_>) -> Result<Experiment, LabError> {
    live::run(session)
}

/// Simulates the source's machines, and larger ones, and counts what becomes of packets on the
/// model NIC: the same in every run.
///
/// # Errors
/// [`LabError::System`] where the model NIC gets no descriptors.
pub fn model() -> Result<Experiment, LabError> {
    let (mut tables, marks) = simulated::tables();
    tables.push(card::table()?);
    tables.extend(curve::tables());
    Ok(Experiment { tables, marks, notes: simulated::notes(), ..empty() })
}

fn empty() -> Experiment {
    Experiment {
        name: ENTRY.name,
        source: ENTRY.source,
        summary: ENTRY.summary,
        tables: Vec::new(),
        marks: Vec::new(),
        notes: Vec::new(),
    }
}

const TRANSACTIONS: Column = Column { name: "transactions", title: "tps", unit: "1/s", digits: 0 };
const CPU: Column = Column { name: "cpu", title: "CPU", unit: "%", digits: 0 };

/// A row of figures that every run gives, with nothing to compare it to.
fn exact_row(name: impl Into<String>, figures: &[f64]) -> Row {
    Row {
        group: String::new(),
        name: name.into(),
        figures: figures.iter().map(|&figure| Some(Figure::exact(figure))).collect(),
        source: vec![None; figures.len()],
        ratio: None,
        source_ratio: None,
    }
}
