//! Ports: where live packets come from and go to.
//!
//! A port string ([`PortSpec`]) names one, [`open`] opens it. A [`Port`] says what it can do
//! ([`Capabilities`], probed), and gives two kinds of ends: a [`Receive`] for each receive queue,
//! and as many [`Transmit`]s as threads want to send through it.
//!
//! ```text
//! Receive::poll -> RxPacket<Buffer> -> (aggregator, bridge, ...) -> Outgoing -> TxBatch -> Transmit::transmit
//!       ^                                                              |
//!       +------------- give_back: buffers that were dropped <----------+
//! ```
//! Received packets lie in memory of the port and are lent as [`Buffer`]s; what is sent is gathered
//! straight from there.
//!
//! [`features`] has the offloads by ethtool's names, and [`system`] the requests to Linux that
//! ports, bridge and lab make besides packets. `superpacket-model` has the ports that need no
//! system: links in memory, and a model of a network card.
//!
//! The example `xdp_forward.rs` forwards between two interfaces by AF_XDP: packets are received,
//! merged, cut and sent in one UMEM, and only new headers are copied (`xdp:IFACE?gather=on`).

#![cfg(target_os = "linux")]
// Where unsafe code is expected, the file says why.
#![deny(unsafe_code)]

mod batch;
mod buffer;
mod error;
mod ethtool;
pub mod features;
mod interface;
mod open;
mod outgoing;
mod packet;
mod replay;
mod spec;
pub mod system;
mod tap;
#[cfg(test)]
mod without_memory;
pub mod xdp;

pub use batch::{FrameWriter, Part, TxBatch, TxFrame, wire_bytes, wire_segments, wire_size};
pub use buffer::{Buffer, Pool, Region};
pub use error::PortError;
pub use open::{check, open};
pub use outgoing::{Outgoing, Slice, Staged};
pub use spec::{NIC_SETTINGS, PortKind, PortSpec, SpecError, SpecOptions};

use std::fmt;
use std::os::fd::BorrowedFd;

use crate::features::FeatureSet;
use superpacket::packet::{Layer, RxPacket};
use superpacket::segment::GsoSupport;

/// The most packets that one poll of a port takes.
pub const POLL_LIMIT: usize = 512;

/// The most pieces that Linux takes in one message (`UIO_MAXIOV`).
pub const MAX_SLICES: usize = 1024;

/// What a port can do, found by trying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The offloads that the port itself has or that need nothing of it. Aggregation is done by its
    /// user: the three receive offloads are always among them.
    pub features: FeatureSet,
    /// The super-packets that whoever is behind the port can segment. Which protocols are left to
    /// it is said by `features`, too.
    pub gso: GsoSupport,
    /// The most pieces of a frame, headers among them, that it takes.
    pub max_slices: usize,
}

/// Whether packets can pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// They can.
    Up,
    /// The interface is there, and down.
    Down,
    /// The interface is not there any more: the port must be opened again.
    Gone,
}

/// What may change while a port is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortState {
    /// Whether packets can pass.
    pub link: LinkState,
    /// The longest IP packet in bytes; 0 where nothing limits it.
    pub mtu: u32,
}

/// What a port's own side counts, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Packets that came in and found no room: a full ring or queue.
    pub rx_dropped: u64,
    /// Packets that came in malformed, or could not be read, and were left out.
    pub rx_errors: u64,
    /// Times that the kernel or the device could not take more for now.
    pub tx_full: u64,
    /// Times that a super-packet or a partial checksum was refused.
    pub tx_refused: u64,
}

/// An open port.
pub trait Port: Send + fmt::Debug {
    /// The name of the port string that it was opened by ([`PortSpec::name`]).
    fn name(&self) -> &str;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Where its packets start.
    fn layer(&self) -> Layer {
        Layer::Ethernet
    }

    /// The interface's own hardware address, where it has one.
    fn hardware_address(&self) -> Option<[u8; 6]> {
        None
    }

    /// The receive queues, one end each. They are handed out once: the next call gives none.
    fn receivers(&mut self) -> Vec<Box<dyn Receive>>;

    /// An end to send through; several may be open at a time, on different threads.
    ///
    /// # Errors
    /// [`PortError`] if the system refuses another.
    fn transmitter(&mut self) -> Result<Box<dyn Transmit>, PortError>;

    /// Its state now.
    fn state(&mut self) -> PortState;

    /// What it counted so far, all queues together.
    fn counters(&mut self) -> PortCounters;

    /// How many packets each receive queue had no room for so far
    /// ([`PortCounters::rx_dropped`]), in the order of the queues; empty where only all of them
    /// together are known.
    fn queue_drops(&mut self) -> Vec<u64> {
        Vec::new()
    }
}

/// The receiving end of one queue of a port.
pub trait Receive: Send + fmt::Debug {
    /// Appends the packets that are there, up to `limit`, and says how many. It never waits.
    ///
    /// What arrives malformed is left out and counted.
    ///
    /// # Errors
    /// [`PortError`] if nothing more will come unless something changes: the interface is down or
    /// gone.
    fn poll(
        &mut self,
        packets: &mut Vec<RxPacket<Buffer>>,
        limit: usize,
    ) -> Result<usize, PortError>;

    /// Gives the kernel the memory of all buffers back that have been dropped. Called after a
    /// poll's packets are done, and before waiting: a ring with a full last slot counts as
    /// readable.
    fn give_back(&mut self) {}

    /// What becomes readable when packets arrive: for `poll` and `epoll`, level-triggered.
    fn readiness(&self) -> BorrowedFd<'_>;

    /// Is more than half of its memory lent? Then whoever holds packets should let go of them.
    fn is_crowded(&self) -> bool {
        false
    }
}

/// The sending end of a port.
pub trait Transmit: Send + fmt::Debug {
    /// Sends the frames of `batch` from number `from` on, in order, until all are sent or one
    /// cannot be. It never waits.
    ///
    /// Each frame has been made to fit [`Capabilities`]. When this returns, the port has no more
    /// use for the bytes of what is sent.
    fn transmit(&mut self, outgoing: &Outgoing, batch: &TxBatch, from: usize) -> Progress;

    /// The number of the port's transmit queue that it sends by, from 0 on; 0 where the port has
    /// one, or where somebody else chooses it, such as the kernel behind a packet socket.
    fn queue(&self) -> u16 {
        0
    }
}

/// How far sending came.
#[derive(Debug)]
pub struct Progress {
    /// How many frames were sent, from `from` on.
    pub sent: usize,
    /// Why the next was not; `None` if all were.
    pub stopped: Option<Stop>,
}

/// Why a frame was not sent.
#[derive(Debug)]
#[non_exhaustive]
pub enum Stop {
    /// The queue is full: the same frame may be tried again later (`EAGAIN`, `ENOBUFS`).
    Full,
    /// The frame was refused for what is asked to be done to it (`EINVAL`, `EIO` on a super-packet
    /// or a partial checksum): in software it may pass.
    Offload(std::io::Error),
    /// The frame is longer than the port takes (`EMSGSIZE`).
    TooLong,
    /// The interface is down (`ENETDOWN`).
    Down,
    /// The port is of no more use (`ENXIO`, `ENODEV`, `EBADFD`).
    Gone(PortError),
    /// This frame was refused for another reason.
    Refused(std::io::Error),
}
