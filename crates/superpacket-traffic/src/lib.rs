//! Traffic for tests, fuzzing, benches and demonstrations, and the judge of what becomes of it. Nothing here uses the engine.
//!
//! - [`frame`]: a frame as nested layers of plain data, and its bytes; every field, length and checksum can be made wrong.
//! - [`generate`]: seeded traffic of all protocols through all tunnels, with mischief.
//! - [`workload`]: the traffic that the benches time.
//! - [`demo`]: a small, realistic capture.
//! - [`gro_table`]: the kernel's own GRO test as frames and what must become of them.
//! - [`check`]: is a frame right in every length and checksum, which flow is it of, what does it carry?
//! - [`checksum`], [`random`]: what the others are made of.

pub mod check;
pub mod checksum;
pub mod demo;
pub mod frame;
pub mod generate;
pub mod gro_table;
pub mod random;
pub mod workload;
