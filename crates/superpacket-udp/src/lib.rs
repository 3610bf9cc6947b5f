//! UDP sockets for tunnels. A *run* of datagrams from separate buffers is sent in one call.
//! Datagrams that the kernel merged are received in one call, and accessed one by one.
//!
//! **Fragments.** Datagrams longer than the path MTU are sent in IP fragments, and IPv4 datagrams
//! have no don't-fragment bit: a tunnel cannot make its datagrams shorter when the path MTU becomes
//! smaller. A protocol that discovers the path MTU itself, such as QUIC, forbids fragments
//! (`UdpSocket::set_fragmentation`). This setting exists on Linux and Android. On other systems
//! `quinn-udp` forbids fragments, so a tunnel's MTU must leave room for its headers on the whole
//! path.
//!
//! A VPN that reads 64 KB from its TUN device at once sends 45 datagrams. One call per datagram
//! costs more than the cipher. Linux accepts them in one call (`UDP_SEGMENT`), and segments them as
//! late as the device allows. It also delivers the datagrams of a flow in one call (`UDP_GRO`).
//!
//! ```no_run
//! use superpacket_udp::{Destination, UdpSocket};
//!
//! # fn open(datagram: &[u8]) {}
//! # let sealed: Vec<Vec<u8>> = Vec::new();
//! # let peer = "192.0.2.1:51820".parse().unwrap();
//! let (mut sender, mut receiver) = UdpSocket::bind("[::]:51820")?.split();
//! sealed.into_iter().for_each(|datagram| sender.push(Destination::new(peer), datagram));
//! sender.flush()?;
//! for (meta, datagram) in receiver.receive()?.datagrams() {
//!     println!("{} bytes from {} to {:?}", datagram.len(), meta.addr, meta.dst_ip);
//!     open(datagram);
//! }
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # On `quinn-udp`
//!
//! The system calls, the socket's options and the names are those of `quinn-udp`. This crate adds
//! what tunnels need:
//! - Datagrams in separate buffers are joined into runs.
//! - A run that the kernel refuses is not lost.
//! - Buffers are large.
//! - ECN bits are sent and received with runs over IPv4 too.
//! - Senders and receivers can wait, with or without tokio.
//!
//! A run is copied into one buffer before it is sent. Gathering it from separate buffers is not
//! cheaper, since the kernel processes each slice. The bench `send` compares both.
//!
//! It is a separate crate, so that programs with another device need no TUN crate, and programs
//! with another socket need no UDP crate.
//!
//! # If the kernel refuses a run
//!
//! For some devices and sockets, `UDP_SEGMENT` fails with `EIO` or `EINVAL`. The datagrams are then
//! sent one by one, in their place. If the kernel accepts one that is as long as the run's others
//! and fits the path MTU, runs are switched off for the socket; [`UdpSocket::refusal`] and a
//! [notice](Sender::set_notice) report this once. After an `EINVAL`, `quinn-udp` sends no more ECN
//! bits over IPv4, since they may have been the cause.
//!
//! The datagrams of a run must not exceed the path MTU, since the kernel does not fragment them. A
//! run of longer ones is sent datagram by datagram; other runs are sent as before. A notice reports
//! this once; [`too_long`](SenderCounters::too_long) counts such runs.
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `tokio` | no | `AsyncSender`, `AsyncReceiver` |
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod receiver;
mod sender;
mod socket;
mod split;
#[cfg(feature = "tokio")]
mod tokio;
mod transmit;

pub use quinn_udp::{EcnCodepoint, RecvMeta};
pub use receiver::{Received, Receiver};
pub use sender::{Refusal, RefusalCause, SendDatagrams, Sender, SenderCounters};
#[cfg(any(target_os = "linux", target_os = "android"))]
pub use socket::Fragmentation;
pub use socket::{BufferSizes, UdpSocket};
#[cfg(feature = "tokio")]
pub use tokio::{AsyncReceiver, AsyncSender};
pub use transmit::{Destination, Transmit};

/// Compiles the example of the crate's README with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
