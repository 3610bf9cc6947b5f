#![doc = include_str!("../README.md")]
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

mod fit;
#[cfg(test)]
mod fixture;
pub mod memory;
pub mod nic;
mod open;

pub use open::{check, open};
