//! A learning bridge in user space that gives every port the offloads it lacks.
//!
//! Ports that take super-packets get them whole; for the others they are cut as late as possible, at the port itself. What arrives in single packets is
//! aggregated as early as possible. Each offload has its name in ethtool and is switched for each port while the bridge runs.
#![cfg(target_os = "linux")]

pub mod report;
pub mod settings;
