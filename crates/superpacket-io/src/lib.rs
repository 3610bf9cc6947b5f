#![doc = include_str!("../README.md")]
// Files with unsafe code allow it, and say why.
#![deny(unsafe_code)]

pub mod capture;
#[cfg(target_os = "linux")]
pub mod port;
#[cfg(target_os = "linux")]
pub mod system;
