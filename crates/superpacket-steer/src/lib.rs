#![doc = include_str!("../README.md")]
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
    Admission, BacklogLimit, DEFAULT_FLOW_LIMIT_TABLE, DEFAULT_MAX_BACKLOG, DEFAULT_WEIGHT,
    FLOW_LIMIT_HISTORY, FlowLimit, FlowLimitError, InvalidTableLength,
};
pub use hasher::{FlowHasher, HashCounters};
pub use key::FlowHashKey;
pub use mask::{Cpu, CpuList, CpuMask, Cpus, ListError, MAX_CPUS, MaskError, SysfsMask};
pub use rfs::{FlowTableError, MAX_FLOW_ENTRIES, SockFlowTable, TooManyFlows, flow_entries};
pub use rps::Rps;
pub use steering::{
    Choice, CompletionCounts, Completions, MovePolicy, Steering, SteeringCounters, SteeringTarget,
};
pub use toeplitz::{Toeplitz, ToeplitzKey, toeplitz_bitwise};
pub use tuple::{FlowHeaders, FlowTuple};
