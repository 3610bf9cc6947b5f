#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

#[cfg(feature = "commands")]
mod commands;
pub mod file;

#[cfg(feature = "commands")]
pub use commands::*;
pub use file::{CaptureError, CapturePosition, Interface, LinkType, Reader, Record, Truncated};
