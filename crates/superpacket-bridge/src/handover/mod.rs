//! From one thread to another: a queue of packets for each receive queue and worker, and a bell for
//! who sleeps.
//!
//! What must hold whatever the order in which two CPUs see each other's writes is in `protocol`,
//! apart from the rest, so that loom can try all orders.

mod backlog;
mod doorbell;
pub(crate) mod protocol;
mod sync;

pub(crate) use backlog::{BacklogReceiver, BacklogSender, Completion, backlog};
pub(crate) use doorbell::Doorbell;
pub(crate) use protocol::WorkerLifetime;
