//! A learning bridge in user space that gives every port the offloads it lacks.
//!
//! Ports that accept super-packets receive them whole. For other ports packets are segmented as
//! late as possible, at the egress port. Single packets are aggregated as early as possible. Each
//! offload has its ethtool name, and is switched per port while the bridge runs.
//!
//! The path of a packet, one file per step:
//! ```text
//! poll_thread  a thread polls its receive queues
//! ingress      trusts or drops device checksums and hashes; GRO or LRO
//! steering     processes in place, or hands over (handover) to the worker of another CPU
//! output       learns and looks up addresses; one port, all others, or a group's (multicast)
//! egress       sends whole, segments, completes checksums, fragments or drops; sends in batches
//! monitor      copies what ports receive and send, on request
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
mod command;
pub mod config;
pub mod consumer;
pub mod control;
mod count;
mod counters;
mod cpus;
mod egress;
mod error;
#[cfg(test)]
mod fake_bridge;
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
mod steering;
mod stoppable;
mod table;
mod tag;
pub mod topology;
pub mod vlan;

pub use bridge::{Bridge, Steered};
pub use error::BridgeError;
pub use forwarder::Forwarder;

/// Runs the example of the crate's README as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
