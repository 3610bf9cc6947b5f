//! TUN devices for VPNs, tunnels and proxies. The kernel and the program exchange packets of up to
//! 64 KB, while the tunnel carries packets of its MTU.
//!
//! A TUN device costs a system call and a pass through the kernel's network stack per packet. With
//! a `virtio_net_hdr` before each packet it exchanges super-packets, which contain some 40 packets.
//!
//! This crate opens such a device and finds out which offloads its kernel supports. It **cuts**
//! packets from the device for the tunnel, and **merges** packets from the tunnel for the device.
//! It falls back to single packets if the kernel refuses an offload that it has announced. The
//! crate `superpacket` does the merging and cutting.
//!
//! | you have | start with |
//! |---|---|
//! | Linux, threads | `Tun::open`, [`Reader::read_into`], [`Writer::push`] and [`flush`](Writer::flush) |
//! | Linux, tokio | the same with `AsyncReader` and `AsyncWriter` of the feature `tokio` |
//! | an event loop | [`try_read_into`](Reader::try_read_into), [`try_flush`](Writer::try_flush), and `AsFd` of reader and writer |
//! | packets from many threads | [`Writer::queued`] |
//! | a descriptor, Android | `Tun::from_fds` |
//! | Ethernet frames, with a TAP device | `Builder::layer` |
//! | WinTUN, utun | [`Joiner`] and [`Splitter`] |
//! | another device, a test | [`Device`] |
//!
//! The example `udp_tunnel.rs` is a tunnel over UDP, with the crate `superpacket-udp`; over
//! single-datagram sockets most of the gain would be lost. `face_tun_rs.rs`, `face_firezone.rs` and
//! `face_lightway.rs` show the engine behind the function signatures of other projects.
//!
//! # Buffers
//!
//! A pushed packet may be any owned buffer, `B: AsRef<[u8]>`: a `Vec<u8>`, `Bytes`, or a pool's
//! buffer. It is written without a copy, and dropped when its flush has finished. Packets that are
//! read are written into the caller's buffers: see [`Reader::read_into`].
//!
//! # Verification
//!
//! The checksums of pushed packets are verified before the packets merge. A damaged packet is
//! written unchanged, and its receiver drops it. A VPN's cipher is no substitute: it proves that
//! the peer sent these bytes, not that they reached the peer intact.
//! [`Switches::set_trusted_input`] switches verification off, and explains the consequences.
//! Packets that are read have complete checksums.
//!
//! # Counters
//!
//! [`Reader::counters`] and [`Writer::counters`] count packets and bytes. [`Reader::segmentation`]
//! and [`Writer::aggregation`] count how the engine cut and merged, with a reason per packet.
//!
//! # Order
//!
//! Packets of a flow leave in the order in which they were pushed. A VPN that decrypts packets on
//! several threads passes their counters ([`Writer::push_in_order`], [`Writer::queued_in_order`]),
//! or pushes them in the right order.
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `tokio` | no | `AsyncReader`, `AsyncWriter`, `AsyncQueuedWriter` (Linux, Android) |
#![cfg_attr(docsrs, feature(doc_cfg))]
// Each file that allows unsafe code gives the reason.
#![cfg_attr(any(target_os = "linux", target_os = "android"), deny(unsafe_code))]
#![cfg_attr(not(any(target_os = "linux", target_os = "android")), forbid(unsafe_code))]

mod device;
mod linear;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux;
mod new_buffers;
mod offload;
mod queued;
mod reader;
mod shortcut;
mod switch;
#[cfg(all(feature = "tokio", any(target_os = "linux", target_os = "android")))]
mod tokio;
mod writer;

pub use device::Device;
pub use linear::{Joined, Joiner, Splitter};
#[cfg(any(target_os = "linux", target_os = "android"))]
pub use linux::{Builder, OpenError, Queue, Tun};
pub use new_buffers::NewBuffers;
pub use offload::Offloads;
pub use queued::{PacketSender, QueuedWriter};
pub use reader::{ReadError, Reader, ReaderCounters};
pub use switch::{Refusal, Switches};
#[cfg(all(feature = "tokio", any(target_os = "linux", target_os = "android")))]
pub use tokio::{AsyncPacketSender, AsyncQueuedWriter, AsyncReader, AsyncWriter};
pub use writer::{Writer, WriterCounters};

pub use ipnet::IpNet;
pub use superpacket::order::OrderKey;
pub use superpacket::segment::{Portion, SegmentBuffers, SegmentPlan};
pub use superpacket::{EachBuffer, Framing, GsoKind, Layer};

/// Compiles the example of the crate's README with the tests.
#[cfg(all(doctest, target_os = "linux"))]
#[doc = include_str!("../README.md")]
struct Readme;
