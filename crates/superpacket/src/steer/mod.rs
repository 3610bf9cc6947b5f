//! Steering: which receive queue, and so which CPU, a packet of a flow goes to.
//!
//! A flow is told by its hash ([`FlowHasher`]; [`Toeplitz`] is what devices report). A [`CpuMask`] says which CPUs may process packets, in the form of the kernel's `rps_cpus`.

mod hasher;
mod mask;
mod toeplitz;
mod tuple;

pub use hasher::{FlowHasher, HashCounters};
pub use mask::{Cpu, CpuList, CpuMask, Cpus, ListError, MAX_CPUS, MaskError, SysfsMask};
pub use toeplitz::{Toeplitz, ToeplitzKey, bitwise};
pub use tuple::{FlowHeaders, FlowTuple};
