//! The handover of packets from one thread to another: a queue per receive queue and worker, and a
//! bell that wakes a sleeping thread.
//!
//! The parts that depend on memory ordering are in `protocol`, separate from the rest, so that loom
//! can check all orders.

mod backlog;
mod doorbell;
pub(crate) mod protocol;
mod sync;

pub(crate) use backlog::{BacklogReceiver, BacklogSender, Completion, backlog};
pub(crate) use doorbell::Doorbell;
pub(crate) use protocol::WorkerLifetime;
