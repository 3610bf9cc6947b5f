//! An example of protocol work behind superpacket's steering: TCP requests are answered by
//! [smoltcp](https://docs.rs/smoltcp), one stack a worker.
//!
//! A port's packets are merged and steered by the hash of their flow, so a connection is always the
//! same worker's, and each worker has a whole stack of its own: nothing is shared, nothing is
//! locked. What a connection's state lies in must not change under it, so masks stay as they were
//! at the start.
#![cfg(target_os = "linux")]

mod responder;
mod stack;

pub use responder::{Counters, Responder};
pub use stack::{Service, Stack};
