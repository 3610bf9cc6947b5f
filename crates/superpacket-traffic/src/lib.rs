//! Traffic for tests, fuzzing, benches and demonstrations, and independent checks of what comes out
//! of the engine. Nothing here uses the engine.
//!
//! - [`frame`]: a frame as nested layers of plain data, and its bytes; every field, length and
//!   checksum can be made wrong.
//! - [`generate`]: seeded traffic of all protocols through all tunnels, with impairments.
//! - [`workload`]: the traffic that the benches time.
//! - [`demo`]: a small, realistic capture.
//! - [`gro_table`]: the cases of the kernel's own GRO test: frames, and the packets that must
//!   arrive.
//! - [`check`]: whether a frame is right in every length and checksum, which flow it belongs to,
//!   what it carries.
//! - [`captures`]: the real captures that tests read.
//! - [`addresses`]: the addresses at the ends of a packet's way, which checksums cover.
//! - [`checksum`], [`random`]: sums and random numbers that the others use.

#![forbid(unsafe_code)]

pub mod addresses;
pub mod captures;
pub mod check;
pub mod checksum;
pub mod demo;
pub mod frame;
pub mod generate;
pub mod gro_table;
pub mod random;
pub mod workload;
