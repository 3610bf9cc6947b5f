//! Virtual machines whose network device is this process (vhost-user), without a system call per
//! packet: QEMU, cloud-hypervisor, DPDK's virtio-user and others.
//!
//! `vhost:PATH` creates the socket and waits for the guest's front end; `vhost:PATH?connect=on`
//! connects to it. A guest that leaves and returns is the same port: meanwhile the link is
//! [down](super::LinkState::Down). One front end is connected at a time; others are refused.
//!
//! | option | | default |
//! |---|---|---|
//! | `queues=N` | 1 to 256 pairs of queues that a guest may use | 1 |
//! | `connect=on` | connect to the socket, again and again until the front end is there; `off`: create it | `off` |
//! | `mtu=N` | maximum length of an IP packet in bytes | 1500 |
//! | `memory=sealed` | the memory that a guest may have: `sealed`: a `memfd` that cannot be shortened (QEMU's `memory-backend-memfd`); `any`: also huge pages and files | `sealed` |
//! | `mode=0600` | access bits of the socket's file, in octal digits | `0600` |
//!
//! **Features.** The port offers checksums, TCP and UDP segmentation and UDP tunnels in both
//! directions, mergeable buffers, several queues, event indexes, and buffers in order. What the
//! guest accepts decides what it is sent: [`Port::capabilities`] follows the present guest. Rings
//! are split; indirect descriptors are not offered.
//!
//! **Memory.** Each frame that the guest sends is copied once, and only the copy is read: the guest
//! may change its own at any time. Frames for the guest are written to its buffers. The port's
//! memory is 6.3 MiB per pair of queues, as for [`tap:`](super::PortKind::Tap) ports.
//!
//! **Hostile guests.** A guest that breaks a rule of its rings, or whose front end sends a wrong
//! message, loses its connection; this is logged and counts as `rx_errors`. The guest may connect
//! again. A frame that is malformed is left out, and counts as `rx_errors` too. With `memory=any`
//! the front end is trusted: it can end this process by shortening a file in use.
//!
//! [`SplitRing`] and [`GuestMemory`] are the rings and the memory alone.

mod features;
mod memory;
mod options;
mod receive;
mod ring;
mod serve;
mod session;
mod shared;
mod transmit;

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::net::{SocketType, listen};

pub use memory::{GuestMemory, MemoryTrust, RegionPlace};
pub use ring::{Direction, MAX_RING_SIZE, RingError, RingFault, RingPlace, SplitRing, TakenBuffer};

use self::options::VhostOptions;
use self::receive::VhostReceiver;
use self::serve::{FrontEnds, serve};
use self::shared::VhostShared;
use self::transmit::VhostTransmitter;
use super::{
    Capabilities, Port, PortCounters, PortError, PortSpec, PortState, Receive, SpecError, Transmit,
};
use crate::slots::PacketSlots;
use crate::system::StoppableThread;
use crate::unix::socket_file::SocketFile;

/// Backlog of the listening socket: connections of further front ends, which are refused while one
/// is connected.
const BACKLOG: i32 = 8;

/// A port to which virtual machines connect.
#[derive(Debug)]
pub(super) struct VhostPort {
    shared: Arc<VhostShared>,
    /// The receiving ends, until they are handed out.
    receivers: Vec<Box<dyn Receive>>,
    /// Number of the queue that the next transmitter uses.
    next: u16,
    /// The thread that serves the front end. It ends after the connection, which is ended by
    /// [`VhostShared::close`].
    _thread: StoppableThread,
}

impl VhostPort {
    /// Checks the options of a port string.
    pub(super) fn check(spec: &PortSpec) -> Result<(), SpecError> {
        VhostOptions::read(spec.options()).map(drop)
    }

    /// Opens the port named by a port string of kind `vhost`.
    pub(super) fn open(spec: &PortSpec) -> Result<Self, PortError> {
        let options = VhostOptions::read(spec.options())?;
        let name = spec.name();
        let system = |action| move |error: io::Error| PortError::system(name, action, error);
        let queues = options.queues;
        let slots: Option<Vec<PacketSlots>> =
            (0..queues).map(|_| PacketSlots::try_new(queues)).collect();
        let slots = slots.ok_or_else(|| {
            let mebibytes = PacketSlots::bytes(queues) >> 20;
            let says =
                format!("there are no {mebibytes} MiB for {queues} queues: fewer by queues=N");
            let error = io::Error::new(io::ErrorKind::OutOfMemory, says);
            PortError::system(name, "taking memory for what is received", error)
        })?;
        let shared = VhostShared::new(name, queues, options.mtu)
            .map_err(system("create descriptors for notifications (epoll_create, eventfd)"))?;
        let shared = Arc::new(shared);
        let path = Path::new(spec.device());
        let front_ends = if options.connect {
            FrontEnds::Connect(path.to_owned())
        } else {
            let (socket, file) = SocketFile::bind(name, path, SocketType::STREAM, options.mode)?;
            listen(&socket, BACKLOG)
                .map_err(|error| PortError::system(name, "wait for guests (listen)", error))?;
            FrontEnds::Listen { socket, _file: file }
        };
        let served = Arc::clone(&shared);
        let thread = StoppableThread::start("vhost", move |stop| {
            serve(&served, &front_ends, options.trust, &stop);
        })
        .map_err(system("start a thread for guests"))?;
        let receiver = |(queue, slots)| -> Box<dyn Receive> {
            Box::new(VhostReceiver::new(Arc::clone(&shared), queue, slots))
        };
        let receivers = (0..).zip(slots).map(receiver).collect();
        Ok(VhostPort { shared, receivers, next: 0, _thread: thread })
    }
}

impl Port for VhostPort {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn capabilities(&self) -> Capabilities {
        self.shared.features().capabilities()
    }

    fn receivers(&mut self) -> Vec<Box<dyn Receive>> {
        std::mem::take(&mut self.receivers)
    }

    fn transmitter(&mut self) -> Result<Box<dyn Transmit>, PortError> {
        let queue = self.next;
        self.next = (queue + 1) % self.shared.pairs.len() as u16;
        Ok(Box::new(VhostTransmitter::new(Arc::clone(&self.shared), queue)))
    }

    fn state(&mut self) -> PortState {
        self.shared.state()
    }

    fn counters(&mut self) -> PortCounters {
        self.shared.counters.read(0)
    }
}

impl Drop for VhostPort {
    fn drop(&mut self) {
        // The thread may be waiting for the rest of a message.
        self.shared.close();
    }
}
