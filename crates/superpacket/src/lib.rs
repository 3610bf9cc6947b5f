//! superpacket
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
#[macro_use]
extern crate std;

pub mod aggregate;
pub mod checksum;
pub mod packet;
pub mod segment;
pub mod super_packet;
pub mod virtio;
pub mod wire;
pub use superpacket_simd::Simd;
