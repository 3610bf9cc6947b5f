//! Compares the engine with Linux: the same frames go through the kernel's GRO and GSO and through
//! superpacket's. Every difference has a [`Kind`], which names the engine's promise that explains
//! the difference. A difference without a kind is a fault.
//!
//! - [`kernel`]: the kernel's GRO and GSO. A veth pair between two network namespaces receives
//!   frames in one poll, or segments super-packets from a packet socket or a TAP device.
//! - [`engine`]: the engine, which receives the same frames in one poll.
//! - [`compare`]: the frames that the kernel and the engine merged, and the resulting bytes.
//! - [`kind`]: the kinds of differences. [`cut`] tests whether a packet that the kernel merged can
//!   be segmented into its original frames.
//! - [`nested`]: a tunnel in a tunnel as Linux treats it, with Geneve's GRO hint ([`hint`]).
//! - [`traffic`]: generated frames in batches.
//! - [`segment`]: generated super-packets, which the kernel and the engine segment. [`merged`]:
//!   super-packets that the engine merged for a device.
//! - [`cells`], [`matrix`]: one super-packet for each combination of headers, and the kernel's
//!   results for packet sockets, TAP and TUN devices. [`router`]: the kernel between two TUN
//!   devices.
//! - [`campaign`]: the engine without a kernel, in bulk: merged packets are segmented again and
//!   compared with the original ones.
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
