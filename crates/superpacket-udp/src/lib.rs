//! UDP sockets for tunnels: runs of datagrams from separate buffers leave in one call, what the
//! kernel merged is received in one, and lent datagram by datagram.
//!
//! **Fragments.** Datagrams that are longer than the path MTU are sent in IP fragments, and IPv4
//! datagrams have no don't-fragment bit: a tunnel cannot make its datagrams shorter when the path
//! gets narrower. A protocol that finds out the path MTU itself, as QUIC does, forbids fragments
//! (`UdpSocket::set_fragmentation`). That choice is for Linux and Android. On other systems
//! `quinn-udp` forbids fragments, so a tunnel's MTU must leave room for its headers on the whole
//! path.
//!
//! A VPN that has 64 KB from its TUN device in one read sends 45 datagrams. One call for each costs
//! more than its cipher. Linux takes them in one call (`UDP_SEGMENT`), and cuts as late as the
//! device allows; it gives the datagrams of a flow in one call too (`UDP_GRO`).
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
//! The calls, the socket's options and the names are `quinn-udp`'s. What a tunnel needs besides is
//! here: datagrams that lie in separate buffers are put together to runs, a run that the kernel
//! refuses is not lost, buffers are large, ECN bits come with runs over IPv4 too, and senders and
//! receivers wait, by themselves or with tokio.
//!
//! A run is copied together before it is sent. To have the kernel gather it from separate buffers
//! costs no less, since it looks at each slice: with datagrams of 1,452 bytes 0.94 to 1.07 times a
//! copy's CPU time, of 500 bytes 1.10 to 1.15 times, of 100 bytes 1.20 to 1.27 times (bench `send`,
//! in the cache and not).
//!
//! It is a crate of its own, so that who has another device needs no TUN crate, and who has another
//! socket no UDP crate.
//!
//! # If the kernel refuses a run
//!
//! There are devices and sockets for which `UDP_SEGMENT` fails with `EIO` or `EINVAL`. The
//! datagrams are then sent one by one, in their place. If the kernel takes one that is as long as
//! the run's others and fits the path MTU, runs are switched off for the socket, which
//! [`UdpSocket::refusal`] and a [notice](Sender::set_notice) tell once. `quinn-udp` sends no ECN
//! bits over IPv4 after an `EINVAL`: it takes them for what may have been refused.
//!
//! No run may have datagrams that exceed the path MTU, since the kernel makes no fragments of them.
//! Such a run is sent datagram by datagram, others as before. A notice tells it once;
//! [`too_long`](SenderCounters::too_long) counts it.
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `tokio` | no | `AsyncSender`, `AsyncReceiver`: senders and receivers that are awaited |
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
