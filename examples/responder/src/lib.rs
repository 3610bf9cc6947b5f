//! An example of protocol work behind superpacket's steering: [smoltcp](https://docs.rs/smoltcp)
//! answers TCP requests, with one stack per worker.
//!
//! A port's packets are merged and steered by the hash of their flow, so all packets of a
//! connection go to the same worker. Each worker has its own stack: there are no shared data and no
//! locks. Connections cannot move between stacks, so masks must not change after the start.
#![cfg(target_os = "linux")]

mod responder;
mod stack;

pub use responder::{Counters, Responder};
pub use stack::{Service, Stack};
