//! A learning bridge in user space that gives every port the offloads it lacks.
//!
//! Ports that take super-packets get them whole; for the others they are cut as late as possible,
//! at the port itself. What arrives in single packets is aggregated as early as possible. Each
//! offload has its name in ethtool and is switched for each port while the bridge runs.
//!
//! A packet's way, one file a step:
//! ```text
//! poll_thread  a thread polls its receive queues
//! ingress      checksums and hashes are believed or not; GRO or LRO
//! steering     in place, or over to the worker of another CPU (handover), a poll thread too
//! output       addresses are learned and looked up; one port, or all others, or a group's (multicast)
//! egress       whole if the port takes it; else cut, filled in, fragmented or dropped; sent in batches
//! monitor      what ports receive and send, copied for who asks for it
//! ```
//!
//! ```no_run
//! use superpacket_bridge::Bridge;
//! use superpacket_bridge::settings::{BridgeSettings, PortSettings};
//!
//! let ports = ["packet:eth1", "tap:tap0"].into_iter().map(|port| Ok(PortSettings::new(port.parse()?)));
//! let ports = ports.collect::<Result<_, superpacket_port::SpecError>>()?;
//! let bridge = Bridge::start(BridgeSettings { ports, ..BridgeSettings::default() })?;
//! std::thread::sleep(std::time::Duration::from_secs(1));
//! println!("{:?}", bridge.stats());
//! bridge.stop();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

mod bridge;
mod bucket;
mod claim;
pub mod config;
pub mod consumer;
pub mod control;
mod count;
mod counters;
mod cpus;
mod egress;
mod error;
pub mod fdb;
mod forwarder;
mod frame;
mod handover;
mod icmp;
mod ingress;
mod links;
mod loops;
pub mod metrics;
pub mod monitor;
mod multicast;
mod order;
mod output;
mod poll_thread;
pub mod privileges;
mod queues;
mod rates;
pub mod reload;
pub mod report;
mod rewritten;
mod runtime;
mod serve;
pub mod settings;
#[cfg(test)]
mod sham;
mod steering;
mod stoppable;
mod table;
mod tag;
pub mod topology;
pub mod vlan;

pub use bridge::{Bridge, Steered};
pub use error::BridgeError;
pub use forwarder::Forwarder;

/// Runs the example of the crate's README with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
