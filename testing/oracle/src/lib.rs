//! Compares the engine with Linux: the same frames go through the kernel's GRO and GSO and through
//! superpacket's. Every difference has a [`Kind`], which names the promise that explains it; a
//! difference without a kind is a fault.
//!
//! - [`kernel`]: the kernel's side. A veth pair between two network namespaces receives frames in
//!   one poll, or segments super-packets from a packet socket or a TAP device.
//! - [`engine`]: the engine's side, with the same poll.
//! - [`compare`]: the frames that merged on each side, and the resulting bytes.
//! - [`kind`]: the kinds of differences. [`cut`] tests whether a packet that the kernel merged can
//!   be segmented into its original frames.
//! - [`nested`]: a tunnel in a tunnel as Linux treats it, by Geneve's GRO hint ([`hint`]).
//! - [`traffic`]: generated frames in batches.
//! - [`segment`]: generated super-packets that both sides segment. [`merged`]: super-packets that
//!   the engine merged for a device.
//! - [`cells`], [`matrix`]: one super-packet of each kind, and the kernel's result for each way
//!   into it. [`router`]: the way through TUN devices.
//! - [`campaign`]: the engine without a kernel, in bulk: merged packets are segmented again and
//!   compared.
//! - [`run`]: runs of all comparisons, and their report.
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

pub mod campaign;
pub mod cells;
pub mod compare;
pub mod cut;
pub mod engine;
pub mod frames;
pub mod hint;
pub mod kernel;
pub mod kind;
pub mod matrix;
pub mod merged;
pub mod nested;
pub mod router;
pub mod run;
pub mod segment;
pub mod traffic;

pub use kind::Kind;
