//! Steering: which receive queue, and so which CPU, a packet of a flow goes to.
//!
//! [`Toeplitz`] is the hash of receive-side scaling: devices report it and choose queues by it, and the same packets get the same hash here.

mod toeplitz;

pub use toeplitz::{FlowTuple, Toeplitz, ToeplitzKey, bitwise};
