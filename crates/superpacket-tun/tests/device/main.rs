//! Readers and writers over a device in memory, which fails as it is told to.

mod linear;
mod memory;
mod read;
mod write;
