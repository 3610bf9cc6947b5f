//! Linux as the oracle: the same frames through the kernel's own GRO and GSO and through
//! superpacket's. Every difference has a [`Kind`], which names the promise that explains it; one
//! that has none is a fault.
//!
//! - [`kernel`]: a veth pair between two hosts of the lab, whose end runs GRO on the frames of one
//!   poll, and what its rules are; super-packets in, by a packet socket or a TAP device.
//! - [`engine`]: the same poll through the engine.
//! - [`compare`]: which frames merged on each side, and what came of it, byte for byte.
//! - [`kind`]: why both sides may differ. [`cut`] finds out whether what the kernel merged can be
//!   cut into the frames again.
//! - [`nested`]: a tunnel in a tunnel as Linux sees it, by Geneve's GRO hint.
//! - [`traffic`]: generated frames, in batches.
//! - [`segment`]: the other way round, super-packets cut by both; [`merged`]: those that engines
//!   for a device make.
//! - [`cells`], [`matrix`]: a super-packet of each kind, and what the kernel makes of it, by each
//!   way into it; [`router`]: the way through TUN devices.
//! - [`campaign`]: without a kernel, what the engine merges is cut again and compared, in bulk,
//!   with engines used in all their ways.
//! - [`run`]: all of it, for as many frames as wanted.
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
