//! Steering: which receive queue, and so which CPU, a packet of a flow goes to.
//!
//! One thread receives, several process: a flow is told by its hash ([`FlowHasher`]; [`Toeplitz`] is what devices report), and goes to one of the CPUs of a [`CpuMask`] ([`Rps`]) or to the CPU
//! where it is read ([`SockFlowTable`]). [`Steering`] joins these, and keeps every flow in order while any of them changes. What a backlog takes in overload is a [`BacklogLimit`].
//!
//! All of this is arithmetic on what the caller tells: threads, rings and clocks are the caller's.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
#[macro_use]
extern crate std;

mod backlog;
mod hasher;
mod header;
mod key;
mod mask;
mod rfs;
mod rps;
mod steering;
mod toeplitz;
mod tuple;

pub use backlog::{
    Admission, BacklogLimit, BadTableLength, DEFAULT_FLOW_LIMIT_TABLE, DEFAULT_MAX_BACKLOG, DEFAULT_WEIGHT, FLOW_LIMIT_HISTORY, FlowLimit,
};
pub use hasher::{FlowHasher, HashCounters};
pub use key::FlowHashKey;
pub use mask::{Cpu, CpuList, CpuMask, Cpus, ListError, MAX_CPUS, MaskError, SysfsMask};
pub use rfs::{MAX_FLOW_ENTRIES, SockFlowTable, TooManyFlows, flow_entries};
pub use rps::Rps;
pub use steering::{Choice, Done, Heads, Moves, Place, Steering, SteeringCounters};
pub use toeplitz::{Toeplitz, ToeplitzKey, bitwise};
pub use tuple::{FlowHeaders, FlowTuple};
