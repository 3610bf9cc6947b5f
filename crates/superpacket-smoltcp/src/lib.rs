//! GRO and TSO in software for [smoltcp](https://docs.rs/smoltcp), around any of its devices: TCP
//! sees packets of up to 64 KB, the device sees frames of its MTU.
//!
//! The cost of a stack is a cost per packet. smoltcp can send 64 KB at a time (its feature
//! `segmentation-offload`) if the device segments them, and it accepts packets that a device has
//! merged. `TunDevice` (feature `tun`, Linux), a TUN or TAP device, lets the kernel do both.
//! [`OffloadDevice`] does both for a device that does neither. The README has measurements that
//! show where each of them pays off.
//!
//! ```
//! use smoltcp::phy::{Device, Loopback, Medium};
//! use superpacket_smoltcp::{HashKey, OffloadDevice};
//!
//! // A `TunTapInterface`, a `RawSocket` or a driver is wrapped in the same way; an `Interface`
//! // takes the result. The key should be random if the traffic is not trusted.
//! let device = OffloadDevice::new(Loopback::new(Medium::Ethernet), HashKey::new(42));
//! assert!(device.capabilities().segmentation.tcpv4.is_some());
//! assert_eq!(device.capabilities().max_transmission_unit, 65535, "the device's own");
//! ```
//!
//! - **Receive.** Up to [`BURST`] frames that wait in the device are merged before smoltcp sees the
//!   first of them: TCP over IPv4 and IPv6. A merged packet has a complete checksum, which smoltcp
//!   verifies as usual. A damaged packet is never merged.
//! - **Send.** TCP over IPv4 is segmented to the size that smoltcp requests. The segments have
//!   complete checksums, so smoltcp need not compute any. Over IPv6 smoltcp 0.14 drops packets
//!   longer than the MTU, so that offload is not announced to it. Frames that the device does not
//!   take at once wait in order, and smoltcp sees a full device.
//! - **The MTU** stays that of the inner device, so peers learn the right maximum segment size.
//! - **Memory.** Buffers are kept and used again.
//!
//! A stack that receives 64 KB at once acknowledges them once. The socket's buffers should hold a
//! few such packets.
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `tun` | yes | `TunDevice`: a TUN or TAP device of Linux, whose kernel merges and segments |
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

pub use device::{BURST, OffloadCounters, OffloadDevice};
pub use superpacket::{HashKey, Policy};
pub use tokens::{OffloadRxToken, OffloadTxToken};
#[cfg(all(feature = "tun", target_os = "linux"))]
pub use tun::{TunCounters, TunDevice, TunRxToken, TunTxToken};

/// Runs the example of the crate's README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
