//! Packet sockets on an interface: `packet:IFACE?option=value&...`.
//!
//! | option | default | |
//! |---|---|---|
//! | `version` | `v2` | `v2`: a slot for each frame, handed over at once. `v3`: frames packed in blocks, which are handed over when full or `retire` old: fewer bytes touched for each frame, but a lone request waits |
//! | `ring`, `slot` | `4m`, `2k` | of `v2`: bytes of memory and of a slot. Longer frames are read from the socket |
//! | `blocks`, `block`, `retire` | `16`, `256k`, `1` | of `v3`: how many blocks, bytes of each, and milliseconds until one that is not full is handed over |
//! | `hash` | `off` | of `v3`: the kernel's flow hash is asked for; where the device has none, it costs time |
//! | `queues`, `fanout` | `1`, `hash` | how many receive queues, and how the kernel shares the traffic among them: `hash`, `balance`, `cpu`, `rollover`, `random`, `queue` |
//! | `promiscuous` | `on` | frames for other hardware addresses are received too |
//! | `tso` | `kernel` | `kernel`: super-packets are handed over also where the device does not cut them itself, and the kernel does, for less than many frames cost that are sent one by one; `device`: only where the device cuts them |
//!
//! Memory is for each queue. What the machine itself sends on the interface, through this port or
//! otherwise, is not received.
//!
//! # Limits
//! - The kernel lets a frame be longer than the MTU by a tag of 0x8100, but not of 0x88a8: a frame
//!   of full length whose 802.1ad tag was stripped elsewhere is too long here with its tag, unless
//!   the interface's MTU leaves room for it.
//! - The virtio header of packet sockets names no tunnel: super-packets in tunnels are received,
//!   and must be cut before they are sent.
//! - Frames longer than a slot wait in the socket's memory: 8 MB, but `net.core.rmem_max` in a user
//!   namespace, which is few super-packets. `version=v3` or longer slots do not need it.
//! - BIG TCP beyond 64 KB is received whole: up to a block in `v3`.
//!
//! # Latency
//! `v2` hands a frame over as soon as it has come. In `v3` a frame in a block that does not fill
//! waits for the retire timer, so that a request and its answer take about `retire` milliseconds at
//! each such port: for bulk alone.

mod blocks;
mod frame;
mod options;
mod receive;
mod shared;
mod slots;
mod socket;
mod transmit;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::features::{Feature, FeatureSet};
use superpacket::segment::GsoSupport;

use super::ethtool::DeviceFeatures;
use super::interface::{Interface, InterfaceInfo};
use super::{
    Capabilities, LinkState, Port, PortCounters, PortError, PortSpec, PortState, Receive,
    SpecError, Transmit,
};
use options::{Options, RingOptions};
use receive::Receiver;
use shared::{Counters, Shared};
use socket::Socket;
use transmit::{MAX_FRAME_SLICES, Transmitter};

/// Bytes that the kernel counts to a super-packet's length besides those from the IP header on: an
/// Ethernet header and a VLAN tag; and it must be less than the limit (`gso_features_check`).
const GSO_OVERHEAD: u32 = 14 + 4 + 1;

/// An interface.
#[derive(Debug)]
pub(super) struct PacketPort {
    shared: Arc<Shared>,
    interface: Interface,
    hardware_address: Option<[u8; 6]>,
    capabilities: Capabilities,
    receivers: Vec<Box<dyn Receive>>,
    /// The receivers' sockets: for what the kernel counts.
    sockets: Vec<Arc<Socket>>,
    sender: Arc<Socket>,
}

/// The most threads that close a port's sockets.
const CLOSERS: usize = 32;

impl PacketPort {
    /// Reads the options of a port string.
    pub(super) fn check(spec: &PortSpec) -> Result<(), SpecError> {
        Options::parse(spec).map(drop)
    }

    /// Opens the interface that `spec` names, in this thread's network namespace. It may be down.
    ///
    /// # Errors
    /// [`PortError`]: an unknown option, no such interface, one whose frames have no Ethernet
    /// header, no right to open packet sockets.
    pub fn open(spec: &PortSpec) -> Result<Self, PortError> {
        let options = Options::parse(spec)?;
        let name = spec.name();
        let mut interface = Interface::open(name, spec.device())?;
        let link = interface.link().map_err(|error| {
            PortError::system(name, "asking for the interface (RTM_GETLINK)", error)
        })?;
        let link = link.ok_or_else(|| PortError::Gone { port: name.to_owned() })?;
        if !link.is_ethernet {
            return Err(PortError::Unsupported {
                port: name.to_owned(),
                reason: "its frames have no Ethernet header".to_owned(),
            });
        }
        // All sockets are opened here: later calls may come from a thread in another network
        // namespace.
        let sender = Arc::new(Socket::sender(name, link.index)?);
        let (mut receivers, mut sockets) = (Vec::<Box<dyn Receive>>::new(), Vec::new());
        let mapped = Socket::receivers(name, link.index, &options)?;
        let counters = Counters {
            rx_dropped: mapped.iter().map(|_| AtomicU64::new(0)).collect(),
            ..Counters::default()
        };
        let shared = Arc::new(Shared { name: name.to_owned(), counters });
        for (queue, mapped) in mapped.into_iter().enumerate() {
            let interface = Interface::open(name, spec.device())?;
            let queue = Receiver::try_new(
                Arc::clone(&shared),
                interface,
                mapped,
                &options.ring,
                queue as u16,
            );
            let no_memory = |error| {
                PortError::system(
                    name,
                    "taking memory to note what is lent of the ring",
                    io::Error::from(error),
                )
            };
            let (receiver, socket) = queue.map_err(no_memory)?;
            receivers.push(Box::new(receiver));
            sockets.push(socket);
        }
        let capabilities = capabilities(name, &interface, &link, &options)?;
        Ok(PacketPort {
            shared,
            hardware_address: link.hardware_address,
            interface,
            capabilities,
            receivers,
            sockets,
            sender,
        })
    }
}

impl Drop for PacketPort {
    /// Closes the sockets many at a time: for each, the kernel waits for a grace period of RCU,
    /// some 10 ms, and those who wait at once wait for the same one.
    fn drop(&mut self) {
        self.receivers.clear();
        let mut sockets = std::mem::take(&mut self.sockets);
        let share = sockets.len().div_ceil(CLOSERS).max(1);
        std::thread::scope(|scope| {
            while sockets.len() > share {
                let some = sockets.split_off(sockets.len() - share);
                // Where there is no thread to be had, they are closed here.
                let _ = std::thread::Builder::new()
                    .name("superpacket-close".into())
                    .spawn_scoped(scope, || drop(some));
            }
            drop(sockets);
        });
    }
}

/// What the interface's device does itself, and what the kernel does on the way to it.
fn capabilities(
    port: &str,
    interface: &Interface,
    link: &InterfaceInfo,
    options: &Options,
) -> Result<Capabilities, PortError> {
    let device = DeviceFeatures::of(interface).map_err(|error| {
        PortError::system(port, "asking for the device's offloads (SIOCETHTOOL)", error)
    })?;
    let has_hash = matches!(options.ring, RingOptions::Blocks { hash: true, .. });
    let features = FeatureSet::all()
        // Partial checksums are completed by the kernel where the device does not
        // (`skb_csum_hwoffload_help`), super-packets too: but a cut in software is better made
        // here, where the sums of the payloads are known.
        .set(
            Feature::TcpSegmentationOffload,
            device.tcp_segmentation_offload || options.kernel_segmentation,
        )
        .set(Feature::TxUdpSegmentation, device.tx_udp_segmentation || options.kernel_segmentation)
        .set(Feature::ReceiveHashing, has_hash);
    let mut gso = GsoSupport::LINUX;
    // The virtio header of packet sockets has no places for a tunnel's offsets.
    gso.udp_tunnels = false;
    gso.max_ipv4_length = link.gso_ipv4_max_size.saturating_sub(GSO_OVERHEAD);
    gso.max_ipv6_length = link.gso_max_size.saturating_sub(GSO_OVERHEAD);
    gso.max_segments = link.gso_max_segments;
    Ok(Capabilities { features, gso, max_slices: MAX_FRAME_SLICES })
}

impl Port for PacketPort {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn hardware_address(&self) -> Option<[u8; 6]> {
        self.hardware_address
    }

    fn receivers(&mut self) -> Vec<Box<dyn Receive>> {
        std::mem::take(&mut self.receivers)
    }

    fn transmitter(&mut self) -> Result<Box<dyn Transmit>, PortError> {
        Ok(Box::new(Transmitter::new(Arc::clone(&self.shared), Arc::clone(&self.sender))))
    }

    fn state(&mut self) -> PortState {
        // An interface that left and came back is there, but its sockets have lost it.
        if self.sender.is_attached() {
            self.interface.state()
        } else {
            PortState { link: LinkState::Gone, mtu: 0 }
        }
    }

    fn counters(&mut self) -> PortCounters {
        let rx_dropped = self.queue_drops().iter().sum();
        let counters = &self.shared.counters;
        PortCounters {
            rx_dropped,
            rx_errors: counters.rx_errors.load(Ordering::Relaxed),
            tx_full: counters.tx_full.load(Ordering::Relaxed),
            tx_refused: counters.tx_refused.load(Ordering::Relaxed),
        }
    }

    fn queue_drops(&mut self) -> Vec<u64> {
        let counters = &self.shared.counters;
        // The kernel forgets what it has told.
        (0..)
            .zip(&self.sockets)
            .for_each(|(queue, socket)| counters.dropped(queue, socket.take_drops()));
        counters.rx_dropped.iter().map(|dropped| dropped.load(Ordering::Relaxed)).collect()
    }
}
