//! The daemon around a [`Bridge`]: all that makes it a service of a machine.
//!
//! ```text
//! control     a Unix socket for reports and changes: its server, its client, and the protocol
//! monitor     the packets that ports receive and send, as a pcapng stream over that socket
//! metrics     the counters for Prometheus, over HTTP
//! config      the configuration file
//! reload      the file read again, against the changes that commands have made since
//! privileges  another user, and only the capabilities that the ports need
//! ```
//!
//! The packets' path is the crate [`superpacket_bridge`], which knows nothing of this one. The
//! program `superpacket bridge` (crate `superpacket-cli`) puts both together.
//!
//! ```no_run
//! use std::path::Path;
//! use std::sync::Arc;
//! use superpacket_bridge::Bridge;
//! use superpacket_daemon::config::Config;
//! use superpacket_daemon::control::{Client, ControlServer, ControlSocket};
//!
//! let path = Path::new("/run/superpacket/bridge.sock");
//! let config = Config::read(Path::new("bridge.toml"))?;
//! let bridge = Arc::new(Bridge::start(config.bridge)?);
//! let server = ControlServer::start(ControlSocket::bind(path)?, bridge.clone())?;
//! println!("{:?}", Client::connect(path)?.stats(None)?);
//! drop(server);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Bridge`]: superpacket_bridge::Bridge
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

pub mod config;
pub mod control;
#[cfg(test)]
mod fake_bridge;
pub mod metrics;
pub mod monitor;
pub mod privileges;
pub mod reload;
mod serve;

/// Runs the example of the crate's README as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
