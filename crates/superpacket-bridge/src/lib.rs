//! A learning bridge in user space that gives every port the offloads it lacks.
//!
//! Ports that accept super-packets receive them whole. For other ports packets are segmented as
//! late as possible, at the egress port. Single packets are aggregated as early as possible, at the
//! ingress port. Each offload has its ethtool name, and can be switched on and off per port while
//! the bridge runs.
//!
//! A [`Bridge`] runs its own threads. It opens its ports by their port strings, such as `tap:tap0`,
//! and opens a port again when its interface disappears and comes back:
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
//!
//! A [`ThreadlessBridge`] does the same work without threads, each time its caller asks for a
//! round:
//!
//! ```no_run
//! use std::time::{Duration, Instant};
//! use superpacket::aggregate::HashKey;
//! use superpacket_bridge::ThreadlessBridge;
//! use superpacket_bridge::settings::PortSettings;
//!
//! let mut forwarder = ThreadlessBridge::new(8192, Duration::from_secs(300), HashKey::new(0));
//! for port in ["packet:eth1", "tap:tap0"] {
//!     let settings = PortSettings::new(port.parse()?);
//!     let port = superpacket_port::open(&settings.port)?;
//!     forwarder.join(settings, port)?;
//! }
//! let start = Instant::now();
//! loop {
//!     forwarder.round(start.elapsed().as_nanos() as u64)?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Steered`] has one port, and passes its packets to the caller's own protocol instead of other
//! ports.
//!
//! This crate contains only the path of the packets. The control socket, the configuration file,
//! metrics and all else that a service needs are in the crate `superpacket-daemon`.
//!
//! The path of a packet, one file per step:
//! ```text
//! poll_thread  a thread polls its receive queues
//! ingress      trusts or drops device checksums and hashes; GRO or LRO
//! steering     processes in place, or hands over (handover) to the worker of another CPU
//! output       asks the switch which ports a packet leaves by: one, all others, or a group's
//! switch       learns and looks up addresses; VLANs, multicast groups, loops, rate limits
//! egress       sends whole, segments, completes checksums, fragments or drops; sends in batches
//! monitor      copies what ports receive and send, on request
//! ```
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

mod bridge;
mod claim;
mod command;
pub mod consumer;
mod count;
mod counters;
mod cpus;
mod egress;
mod error;
mod handover;
mod icmp;
mod ingress;
mod kernel_path;
mod links;
pub mod monitor;
mod output;
mod poll_thread;
mod queues;
pub mod report;
mod rewritten;
mod runtime;
pub mod settings;
mod steering;
mod switch;
mod threadless_bridge;
pub mod topology;

pub use bridge::{Bridge, Steered};
pub use error::BridgeError;
pub use switch::{fdb, vlan};
pub use threadless_bridge::ThreadlessBridge;

/// Holds the crate's README, so that its example runs as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
