#![doc = include_str!("../README.md")]
// Where it is expected, the file says why.
#![deny(unsafe_code)]

pub mod capture;
#[cfg(target_os = "linux")]
pub mod port;
#[cfg(target_os = "linux")]
pub mod system;
