//! TUN devices for VPNs, tunnels and proxies: packets of 64 KB to and from the kernel, packets of
//! the MTU to and from the tunnel.
//!
//! A TUN device costs a system call and a way through the kernel's stack for each packet. With a
//! `virtio_net_hdr` before its packets it takes and gives super-packets, some 40 at once. This
//! crate opens such a device, finds out what its kernel can do, **cuts** what is read into packets
//! for the tunnel, **merges** what the tunnel delivers, and falls back where a kernel refuses what
//! it has announced. Merging and cutting are `superpacket`'s.
//!
//! | you have | begin with |
//! |---|---|
//! | Linux, threads | `Tun::open`, [`Reader::read_into`], [`Writer::push`] and [`flush`](Writer::flush) |
//! | Linux, tokio | the same, by `AsyncReader` and `AsyncWriter` of the feature `tokio` |
//! | an event loop | [`try_read_into`](Reader::try_read_into), [`try_flush`](Writer::try_flush), and `AsFd` of reader and writer |
//! | packets from many threads | [`Writer::queued`] |
//! | a descriptor, Android | `Tun::from_fds` |
//! | Ethernet frames, by a TAP device | `Builder::layer` |
//! | WinTUN, utun | [`Joiner`] and [`Splitter`] |
//! | another device, a test | [`Device`] |
//!
//! The example `udp_tunnel.rs` is a tunnel over UDP, with the crate `superpacket-udp`, without
//! which most of the gain is lost again. `face_tun_rs.rs`, `face_firezone.rs` and
//! `face_lightway.rs` are the engine behind other projects' signatures.
//!
//! # Buffers
//!
//! A packet that is pushed may be any owned buffer, `B: AsRef<[u8]>`: a `Vec<u8>`, `Bytes`, a
//! pool's. It is written from where it lies, and dropped when its flush is done. Packets that are
//! read are written into the caller's buffers: see [`Reader::read_into`].
//!
//! # What is verified
//!
//! The checksums of packets that are pushed are verified before they merge. A damaged packet is
//! written as it is, and its receiver drops it. A VPN's cipher is no substitute: it proves that the
//! peer sent these bytes, not that they reached the peer intact. [`Switches::set_trusted_input`]
//! switches verification off, and says what that gives up. What is read from the device has
//! complete checksums.
//!
//! # What is counted
//!
//! [`Reader::counters`], [`Writer::counters`]; how the engine cut and merged, with a reason for
//! each packet, in [`Reader::segmentation`] and [`Writer::aggregation`].
//!
//! # Order
//!
//! Packets of a flow leave in the order in which they were pushed. A VPN that opens packets on
//! several threads says their counters ([`Writer::push_in_order`], [`Writer::queued_in_order`]), or
//! pushes them in that order.
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `tokio` | no | `AsyncReader`, `AsyncWriter`, `AsyncQueuedWriter`: they are awaited (Linux, Android) |
#![cfg_attr(docsrs, feature(doc_cfg))]
// Where it is expected, the file says why.
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
pub use superpacket::segment::{Plan, Portion, SegmentBuffers};
pub use superpacket::{EachBuffer, GsoKind, Layer};

/// Compiles the example of the crate's README with the tests.
#[cfg(all(doctest, target_os = "linux"))]
#[doc = include_str!("../README.md")]
struct Readme;
