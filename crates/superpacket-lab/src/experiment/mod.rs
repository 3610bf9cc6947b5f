//! The experiments of the five sources, again.
//!
//! Each has two forms: live, with kernel TCP between hosts, through ports, engine and bridge; and on the model NIC, without kernel and clock, where every run
//! gives the same. An experiment is a file of its own here, with an [`Entry`] of its own, and [`ALL`] is where they are found.

mod ack;
mod gso;
mod lro;
mod plan;
mod report;
mod rps;
mod segmentation;
mod spent;
mod stage;
mod tso;

pub use plan::{Cpus, Plan, Session, Variant, Watch};
pub use report::{Column, Experiment, Figure, Form, Mark, Ratio, Row, Side, Table};

use crate::error::LabError;

/// An experiment: what it repeats, and how it is run.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// `lro`, `ack`, `rps`, `tso` or `gso`.
    pub name: &'static str,
    /// Which of the five sources it repeats, by author, subject and year.
    pub source: &'static str,
    /// What is done, in a line or two.
    pub summary: &'static str,
    /// Measures it between live hosts. [`LabError::Forbidden`] and [`LabError::Unsupported`] mean that this machine cannot, [`LabError::Cancelled`] that the
    /// session's watcher asked for the end.
    pub live: fn(&Session<'_>) -> Result<Experiment, LabError>,
    /// Counts it on the model NIC, or simulates it: the same in every run, and done in about a second.
    pub model: fn() -> Result<Experiment, LabError>,
}

/// All experiments, in the order in which they are to be read.
pub const ALL: &[Entry] = &[lro::ENTRY, ack::ENTRY, rps::ENTRY, tso::ENTRY, gso::ENTRY];

/// The experiment of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Entry> {
    ALL.iter().find(|entry| entry.name == name)
}
