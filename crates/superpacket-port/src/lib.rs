//! Ports, which receive and send live packets.
//!
//! A port string ([`PortSpec`]) names a port, and [`open()`] opens it. A [`Port`] reports its
//! [`Capabilities`], which are probed. It has one [`Receive`] end per receive queue, and any number
//! of [`Transmit`] ends, one per sending thread.
//!
//! ```text
//! Receive::poll -> RxPacket<Buffer> -> (aggregator, bridge, ...) -> Outgoing -> TxBatch -> Transmit::transmit
//!       ^                                                              |
//!       +------------- give_back: buffers that were dropped <----------+
//! ```
//! Received packets stay in the port's memory and are lent as [`Buffer`]s; sending gathers them
//! from there.
//!
//! [`features`] has the offloads by ethtool's names, and [`system`] the requests to Linux that
//! ports, bridge and lab make besides packets. `superpacket-model` has the ports that need no
//! system: links in memory, and a model of a network card.
//!
//! On macOS there are UNIX sockets only (`unix:`), and none of Linux's other ports and requests.
//!
//! The example `xdp_forward.rs` forwards between two interfaces by AF_XDP: packets are received,
//! merged, cut and sent in one UMEM, and only new headers are copied (`xdp:IFACE?gather=on`).

#![cfg(any(target_os = "linux", target_os = "macos"))]
// Where unsafe code is expected, the file says why.
#![deny(unsafe_code)]

mod batch;
mod buffer;
mod clock;
mod counters;
mod error;
#[cfg(target_os = "linux")]
mod ethtool;
pub mod features;
#[cfg(target_os = "linux")]
mod interface;
#[cfg(target_os = "linux")]
mod kernel_path;
mod open;
mod outgoing;
#[cfg(target_os = "linux")]
mod packet;
#[cfg(target_os = "linux")]
mod replay;
mod slots;
mod spec;
#[cfg(target_os = "linux")]
pub mod system;
#[cfg(target_os = "linux")]
mod tap;
mod unix;
#[cfg(target_os = "linux")]
pub mod vhost;
#[cfg(all(test, target_os = "linux"))]
mod without_memory;
#[cfg(target_os = "linux")]
pub mod xdp;

pub use batch::{
    FrameWriter, SuperPacketPart, TxBatch, TxFrame, wire_bytes, wire_segments, wire_size,
};
pub use buffer::{Buffer, BufferPool, Region};
pub use error::PortError;
#[cfg(target_os = "linux")]
pub use kernel_path::{
    KernelPath, KernelPathCounts, KernelPathPort, KernelPathRules, KernelPathStation,
};
pub use open::{check, open};
pub use outgoing::{Outgoing, Slice};
pub use spec::{NIC_SETTINGS, PortKind, PortSpec, SpecError, SpecOptions};

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
#[cfg(target_os = "linux")]
use std::sync::Arc;

use crate::features::FeatureSet;
use superpacket::packet::{Layer, RxPacket};
use superpacket::segment::GsoSupport;

/// Maximum number of packets per poll of a port.
pub const POLL_LIMIT: usize = 512;

/// Maximum number of memory slices per message in Linux (`UIO_MAXIOV`).
pub const MAX_SLICES: usize = 1024;

/// The capabilities of a port, found by probing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The offloads that the port supports, and those that do not depend on it. The three receive
    /// offloads are always included, since the port's user aggregates packets itself.
    pub features: FeatureSet,
    /// The super-packets that the receiving side of the port can segment. `features` also decides
    /// which protocols it may be given.
    pub gso: GsoSupport,
    /// Maximum number of memory slices per frame, headers included.
    pub max_slices: usize,
}

/// The state of a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Packets can pass.
    Up,
    /// The interface exists and is down.
    Down,
    /// The interface no longer exists: the port must be opened again.
    Gone,
}

/// The state of a port that may change while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortState {
    /// The state of the link.
    pub link: LinkState,
    /// Maximum length of an IP packet in bytes; 0 if it is unlimited.
    pub mtu: u32,
}

/// The counters of a port since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Received packets that were dropped because a ring or queue was full.
    pub rx_dropped: u64,
    /// Received packets that were malformed or could not be read, and were skipped.
    pub rx_errors: u64,
    /// Number of times that the kernel or the device could not accept more frames.
    pub tx_full: u64,
    /// Number of times that a super-packet or a partial checksum was refused.
    pub tx_refused: u64,
}

/// An open port.
pub trait Port: Send + fmt::Debug {
    /// Returns the port's name ([`PortSpec::name`]).
    fn name(&self) -> &str;

    /// Returns the port's capabilities.
    fn capabilities(&self) -> Capabilities;

    /// Returns the header with which the port's packets begin: Ethernet, or IP.
    fn layer(&self) -> Layer {
        Layer::Ethernet
    }

    /// Returns the interface's hardware address, if it has one.
    fn hardware_address(&self) -> Option<[u8; 6]> {
        None
    }

    /// Returns the receiving ends, one per queue. Later calls return none.
    fn receivers(&mut self) -> Vec<Box<dyn Receive>>;

    /// Opens a sending end. Several may be open at once, on different threads.
    ///
    /// # Errors
    /// [`PortError`] if the system refuses another end.
    fn transmitter(&mut self) -> Result<Box<dyn Transmit>, PortError>;

    /// Returns the present state of the port's link, and the MTU.
    fn state(&mut self) -> PortState;

    /// Returns the port's counters, summed over all its queues.
    fn counters(&mut self) -> PortCounters;

    /// Returns the number of packets that each receive queue has dropped for lack of room
    /// ([`PortCounters::rx_dropped`]), in queue order. Empty if only the sum is known.
    fn queue_drops(&mut self) -> Vec<u64> {
        Vec::new()
    }

    /// Joins a kernel path: the kernel may then forward frames between this port and the others of
    /// the path by itself. It forwards none until the rules allow it ([`KernelPathPort::set`]).
    ///
    /// # Errors
    /// The reason why the port cannot join. The port is then as before.
    #[cfg(target_os = "linux")]
    fn join_kernel_path(&mut self, _: &Arc<KernelPath>) -> Result<KernelPathPort, String> {
        Err("only a packet port can have it".to_owned())
    }

    /// Switches the aggregation of received packets by the device or the kernel on, or restores its
    /// former state.
    ///
    /// # Errors
    /// The system call's error, or that the port has no such switch.
    fn set_device_gro(&mut self, _: bool) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The receiving end of one queue of a port.
pub trait Receive: Send + fmt::Debug {
    /// Appends the available packets, at most `limit`, and returns their number. Never blocks.
    ///
    /// Malformed packets are skipped and counted.
    ///
    /// # Errors
    /// [`PortError`] if no more packets can arrive until the state changes: the interface is down
    /// or gone.
    fn poll(
        &mut self,
        packets: &mut Vec<RxPacket<Buffer>>,
        limit: usize,
    ) -> Result<usize, PortError>;

    /// Returns the memory of all dropped buffers to the kernel. Call it after a poll's packets are
    /// processed, and before waiting: a ring whose last slot is full counts as readable.
    fn give_back(&mut self) {}

    /// Returns the file descriptor that becomes readable when packets arrive, for level-triggered
    /// `poll` and `epoll`.
    fn readiness(&self) -> BorrowedFd<'_>;

    /// Returns whether more than half of the memory for received packets is lent as [`Buffer`]s.
    /// Their holders should then release them.
    fn is_crowded(&self) -> bool {
        false
    }
}

/// The sending end of a port.
pub trait Transmit: Send + fmt::Debug {
    /// Sends the frames of `batch` in order, starting with number `from`, until one cannot be sent.
    /// Never blocks.
    ///
    /// The frames must respect [`Capabilities`]. After this returns, the port no longer needs the
    /// bytes of the frames sent.
    fn transmit(&mut self, outgoing: &Outgoing, batch: &TxBatch, from: usize) -> Progress;

    /// Returns the number of the port's transmit queue that this end uses, from 0. It is 0 if the
    /// port has one queue, or if another component chooses the queue, such as the kernel behind a
    /// packet socket.
    fn queue(&self) -> u16 {
        0
    }
}

/// The result of sending a batch.
#[derive(Debug)]
pub struct Progress {
    /// Number of frames sent, counted from the first frame that was to be sent.
    pub sent: usize,
    /// Why the next frame was not sent; `None` if all were sent.
    pub stopped: Option<StopReason>,
}

/// The reason why a frame was not sent.
#[derive(Debug)]
#[non_exhaustive]
pub enum StopReason {
    /// The queue is full: the same frame may be sent later (`EAGAIN`, `ENOBUFS`).
    Full,
    /// The kernel refused a super-packet or a partial checksum (`EINVAL`, `EIO`). Segmented or
    /// checksummed in software, the packet may still be accepted.
    Offload(std::io::Error),
    /// The frame is longer than the port accepts (`EMSGSIZE`).
    TooLong,
    /// The interface is down (`ENETDOWN`).
    Down,
    /// The port can no longer be used (`ENXIO`, `ENODEV`, `EBADFD`).
    Gone(PortError),
    /// The frame was refused for another reason.
    Refused(std::io::Error),
}
