//! The daemon around a [`Bridge`]: configuration file, control socket, metrics, packet monitors and
//! dropping of privileges.
//!
//! ```text
//! control     a Unix socket for reports and changes: its server, its client, and the protocol
//! monitor     writes the packets that ports receive and send to that socket, as a pcapng stream
//! metrics     exports the counters to Prometheus over HTTP
//! config      reads the configuration file
//! reload      reads the file again, and compares it with what commands have changed since
//! privileges  switches to another user, with only the capabilities that the ports need
//! ```
//!
//! The path of the packets is in the crate [`superpacket_bridge`], which does not depend on this
//! one. The program `superpacket bridge` (crate `superpacket-cli`) combines the two.
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
pub mod metrics;
pub mod monitor;
pub mod privileges;
pub mod reload;
mod serve;

/// Holds the crate's README, so that its example runs as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
