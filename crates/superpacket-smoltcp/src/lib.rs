//! GRO and TSO in software for [smoltcp](https://docs.rs/smoltcp), around any of its devices: TCP
//! sees packets of up to 64 KB, the device sees frames of its MTU.
//!
//! A stack costs per packet. smoltcp can send 64 KB at a time (its feature
//! `segmentation-offload`), if the device cuts them, and takes what a device has joined.
//! `TunDevice` (feature `tun`, Linux), a TUN or TAP device, has the kernel do both.
//! [`OffloadDevice`] does both for a device that does neither. The README has
//! measured where which of them pays.
//!
//! ```
//! use smoltcp::phy::{Device, Loopback, Medium};
//! use superpacket_smoltcp::{HashKey, OffloadDevice};
//!
//! // A `TunTapInterface`, a `RawSocket` or a driver is wrapped as this is; an `Interface` takes the result. The key
//! // should be random bits where others choose the traffic.
//! let device = OffloadDevice::new(Loopback::new(Medium::Ethernet), HashKey::new(42));
//! assert!(device.capabilities().segmentation.tcpv4.is_some());
//! assert_eq!(device.capabilities().max_transmission_unit, 65535, "the device's own");
//! ```
//!
//! - **Receive.** The frames that wait in the device, up to [`BURST`], are joined before smoltcp
//!   sees the first of them: TCP over IPv4 and IPv6. What merged has a complete checksum, which
//!   smoltcp verifies as that of any packet; a damaged packet merges with none.
//! - **Send.** TCP over IPv4 is cut into segments of the size that smoltcp asks for, with complete
//!   checksums, which smoltcp need not compute. Over IPv6 smoltcp 0.14 drops what is longer than
//!   the MTU, so it is not told that it may send more. What the device does not take at once waits,
//!   in order, and smoltcp is told that the device is full.
//! - **The MTU** stays the device's own, so peers are told the right maximum segment size.
//! - **Memory.** Buffers are kept and used again: in steady state nothing is allocated.
//!
//! A stack that sees 64 KB at once acknowledges once for them; its socket's buffers should hold a
//! few such packets.
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `tun` | yes | `TunDevice`: a TUN or TAP device of Linux, whose kernel joins and cuts |
//!
//! Without it the crate is `no_std` with `alloc`.
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(all(feature = "tun", target_os = "linux"))]
extern crate std;

mod device;
mod tokens;
#[cfg(all(feature = "tun", target_os = "linux"))]
mod tun;

pub use device::{BURST, Counters, OffloadDevice};
pub use superpacket::{HashKey, Policy};
pub use tokens::{Received, Sending};
#[cfg(all(feature = "tun", target_os = "linux"))]
pub use tun::{TunCounters, TunDevice, TunReceived, TunSending};

/// Runs the example of the crate's README with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
