#![doc = include_str!("../README.md")]

pub mod capture;
#[cfg(target_os = "linux")]
pub mod port;
#[cfg(target_os = "linux")]
pub mod system;
