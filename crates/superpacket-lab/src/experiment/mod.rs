//! The experiments of the five sources, again.
//!
//! Each has two forms: live, with kernel TCP between hosts, through ports, engine and bridge; and on the model NIC, without kernel and clock, where every run
//! gives the same.

mod plan;
mod report;

pub use plan::{Plan, Session, Variant, Watch};
pub use report::{Column, Experiment, Figure, Form, Mark, Ratio, Row, Side, Table};
