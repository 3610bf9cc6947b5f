//! Traffic for tests, fuzzing, benches and demonstrations, and independent checks of the engine's
//! output. This crate does not use the engine.
//!
//! - [`frame`]: frames as nested layers of plain data, and their bytes. Every field, length and
//!   checksum can be set to a wrong value.
//! - [`generate`]: seeded traffic of all protocols through all tunnels, with impairments.
//! - [`workload`]: the traffic of the benches.
//! - [`demo`]: a small, realistic capture.
//! - [`gro_table`]: the cases of the kernel's GRO test: frames, and the packets that must arrive.
//! - [`check`]: checks of all lengths and checksums of a frame; its flow and its payload.
//! - [`captures`]: the real captures that tests read.
//! - [`addresses`]: the addresses that checksums cover, by source routes and routing headers.
//! - [`checksum`], [`random`]: sums and random numbers for the other modules.

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
