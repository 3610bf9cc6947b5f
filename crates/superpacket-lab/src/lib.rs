//! Virtual hosts, links and traffic generators, to test and measure network software on one
//! machine.
//!
//! - [`Host`]: a network namespace that is held only by file descriptors. Code run with
//!   [`Host::run`], [`Host::spawn`] or [`Host::command`] uses its interfaces, addresses and
//!   sysctls. The namespace disappears with its last holder, even after `kill -9`.
//! - [`Link`]: an interface, configured through rtnetlink: veth pairs between hosts, bridges,
//!   VLANs, addresses, MTU, size limits and counters. [`Link::set_feature`] sets offloads as
//!   ethtool does. Loss, delay and reordering come from the kernel ([`Link::set_netem`]) or from
//!   [`Wire`].
//! - [`TwoHosts`], [`ThreeHosts`]: the usual topologies, with addresses.
//! - [`TcpBulk`], [`TcpTransactions`], [`UdpBulk`]: traffic like netperf's (TCP_STREAM,
//!   TCP_SENDFILE, TCP_RR, UDP_STREAM), with CPU times and service demand. With `verify`, every
//!   byte is checked. A flow that makes no progress is an error.
//! - [`RawSocket`], [`Blast`]: raw frames, and a flood of them.
//! - [`paired()`], [`interleaved`]: variants measured in turn, with medians and spreads of ratios.
//!
//! Root may do all this. Other users enter a user namespace before the first thread starts:
//! [`enter_user_namespace_if_needed`] at the beginning of `main`, or
//! [`enter_user_namespace_before_main!`] in tests. If the machine forbids it, the error of
//! [`Host::new`] names the restriction and how to lift it.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use superpacket_lab::{
//!     LabError, Route, TcpBulk, TcpTransactions, ThreeHosts, Until, available_or_skip,
//! };
//!
//! superpacket_lab::enter_user_namespace_before_main!();
//!
//! fn main() -> Result<(), LabError> {
//!     // Hosts A and B, joined by a kernel bridge on a middle host.
//!     let Some(hosts) = available_or_skip(ThreeHosts::new()) else { return Ok(()) };
//!     let Some(_bridge) = available_or_skip(hosts.with_kernel_bridge()) else { return Ok(()) };
//!     hosts.a.link.set_feature("tcp-segmentation-offload", false)?;
//!
//!     let route = Route::ipv4(&hosts.a, &hosts.b);
//!     let until = Until::Time(Duration::from_millis(100));
//!     let bulk = TcpBulk { flows: 4, until, verify: Some(1), ..TcpBulk::default() };
//!     let report = bulk.run(&route)?;
//!     assert_eq!(report.forward.map(|direction| direction.flows.len()), Some(4));
//!
//!     let time = Duration::from_millis(100);
//!     let requests = TcpTransactions { connections: 8, time, ..TcpTransactions::default() };
//!     assert!(requests.run(&route)?.per_second() > 0.0);
//!     Ok(())
//! }
//! ```
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

mod blast;
mod cpu;
mod error;
mod ethtool;
pub mod experiment;
mod guest;
mod host;
mod link;
mod load;
mod model;
mod netem;
mod paired;
mod pattern;
mod privilege;
mod raw;
mod route;
pub mod simulation;
mod sysctl;
mod tap;
mod topology;
mod wire;

pub use blast::{Blast, BlastReport};
pub use cpu::{CpuTime, CpuUsage, MachineSample, MachineUsage, allowed_cpus, pin_this_thread};
pub use error::{LabError, available_or_skip};
pub use guest::{GuestForm, GuestSocket, SocketGuest};
pub use host::Host;
pub use link::{Link, LinkStatistics, SizeLimits, UdpTunnel};
pub use load::{
    BulkReport, Direction, DirectionReport, FlowReport, Latency, PatternFile, Pinning, Receive,
    Route, Source, TcpBulk, TcpOptions, TcpTransactions, TransactionReport, UdpBulk, UdpReport,
    Until, service_demand,
};
pub use netem::Netem;
pub use paired::{Paired, Summary, interleaved, paired};
pub use pattern::Pattern;
pub use privilege::{Privilege, enter_user_namespace_if_needed};
pub use raw::{Capture, CapturedFrame, RawOptions, RawSocket, VlanTag};
pub use route::RouteMetrics;
pub use superpacket::virtio::Header as VnetHeader;
pub use superpacket_port::system::Feature;
pub use tap::TapFile;
pub use topology::{Station, ThreeHosts, TwoHosts};
pub use wire::{Wire, WireCounters, WireSettings};

/// Compiles and runs the example in the crate's README as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
