//! Packet sockets on an interface: `packet:IFACE?option=value&...`.
//!
//! | option | default | |
//! |---|---|---|
//! | `version` | `v2` | `v2`: a slot for each frame, which the kernel hands over at once. `v3`: frames packed in blocks, which the kernel hands over when they are full or `retire` milliseconds old: it touches fewer bytes per frame, but a single request waits |
//! | `ring`, `slot` | `4m`, `2k` | for `v2`: bytes of memory and of a slot. Longer frames are read from the socket |
//! | `blocks`, `block`, `retire` | `16`, `256k`, `1` | for `v3`: number of blocks, bytes of each, and milliseconds until a block that is not full is handed over |
//! | `hash` | `off` | for `v3`: the kernel is asked for the flow hash, which costs time if the device has none |
//! | `queues`, `fanout` | `1`, `hash` | number of receive queues, and how the kernel distributes the traffic among them: `hash`, `balance`, `cpu`, `rollover`, `random`, `queue` |
//! | `promiscuous` | `on` | frames for other hardware addresses are received too |
//! | `tso` | `kernel` | `kernel`: super-packets are sent even if the device cannot segment them; the kernel then does, which costs less than sending the frames one by one. `device`: super-packets are sent only if the device segments them |
//!
//! Memory is per queue. Frames sent by this machine on the interface, by this port or otherwise,
//! are not received.
//!
//! # Limits
//! - The kernel allows frames longer than the MTU by a tag of type 0x8100, but not of type 0x88a8.
//!   A frame of full length whose 802.1ad tag was stripped elsewhere is too long with its tag,
//!   unless the interface's MTU leaves room for it.
//! - The virtio header of packet sockets cannot describe tunnels. Super-packets in tunnels are
//!   received, but must be segmented before they are sent.
//! - Frames longer than a slot wait in the socket's receive buffer: 8 MB, but in a user namespace
//!   only `net.core.rmem_max`, which is a few super-packets. `version=v3` or longer slots do not
//!   need it.
//! - BIG TCP above 64 KB is received completely; in `v3` up to the length of a block.
//!
//! # Latency
//! `v2` hands a frame over as soon as it arrives. In `v3` a frame in a block that does not fill
//! waits for the retire timer, so a request and its answer take about `retire` milliseconds per
//! port: use it only for bulk traffic.

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
use crate::system::FeatureSwitch;
use crate::{KernelPath, KernelPathPort};
use superpacket::segment::GsoSupport;

use super::ethtool::DeviceFeatures;
use super::interface::{InterfaceInfo, NetworkInterface};
use super::{
    Capabilities, LinkState, Port, PortCounters, PortError, PortSpec, PortState, Receive,
    SpecError, Transmit,
};
use options::{PacketOptions, RingOptions};
use receive::PacketReceiver;
use shared::{PacketCounters, PacketShared};
use socket::Socket;
use transmit::{MAX_FRAME_SLICES, PacketTransmitter};

/// Bytes to subtract from the interface's maximum size of super-packets to get the maximum length
/// of an IP packet: an Ethernet header, a VLAN tag, and 1, since the sum must be less than the
/// limit (`gso_features_check`).
const GSO_OVERHEAD: u32 = 14 + 4 + 1;

/// A port on an interface, by packet sockets.
#[derive(Debug)]
pub(super) struct PacketPort {
    shared: Arc<PacketShared>,
    interface: NetworkInterface,
    hardware_address: Option<[u8; 6]>,
    capabilities: Capabilities,
    receivers: Vec<Box<dyn Receive>>,
    /// The receivers' sockets, which report the kernel's counters.
    sockets: Vec<Arc<Socket>>,
    sender: Arc<Socket>,
    /// Whether this port switched the device's GRO on.
    switched_gro_on: bool,
    /// Why the port's options do not allow a kernel path.
    unfit_for_kernel_path: Option<&'static str>,
}

/// Maximum number of threads that close a port's sockets.
const CLOSERS: usize = 32;

impl PacketPort {
    /// Checks the options of a port string.
    pub(super) fn check(spec: &PortSpec) -> Result<(), SpecError> {
        PacketOptions::parse(spec).map(drop)
    }

    /// Opens the interface that `spec` names, in this thread's network namespace. The interface may
    /// be down.
    ///
    /// # Errors
    /// [`PortError`] for an unknown option, a missing interface, frames without Ethernet header, or
    /// no permission to open packet sockets.
    pub fn open(spec: &PortSpec) -> Result<Self, PortError> {
        let options = PacketOptions::parse(spec)?;
        let name = spec.name();
        let mut interface = NetworkInterface::open(name, spec.device())?;
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
        // All sockets are opened here, since later calls may come from a thread in another network
        // namespace.
        let sender = Arc::new(Socket::sender(name, link.index)?);
        let (mut receivers, mut sockets) = (Vec::<Box<dyn Receive>>::new(), Vec::new());
        let mapped = Socket::receivers(name, link.index, &options)?;
        let counters = PacketCounters {
            rx_dropped: mapped.iter().map(|_| AtomicU64::new(0)).collect(),
            ..PacketCounters::default()
        };
        let shared = Arc::new(PacketShared { name: name.to_owned(), counters });
        for (queue, mapped) in mapped.into_iter().enumerate() {
            let interface = NetworkInterface::open(name, spec.device())?;
            let queue = PacketReceiver::try_new(
                Arc::clone(&shared),
                interface,
                mapped,
                &options.ring,
                queue as u16,
            );
            let no_memory = |error| {
                PortError::system(
                    name,
                    "allocating the list of the ring's lent frames",
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
            switched_gro_on: false,
            unfit_for_kernel_path: options.unfit_for_kernel_path(),
        })
    }
}

impl Drop for PacketPort {
    /// Closes the sockets in parallel. The kernel waits for an RCU grace period of about 10 ms per
    /// socket; simultaneous waits share it.
    fn drop(&mut self) {
        // Fails if the interface no longer exists.
        let _ = self.set_device_gro(false);
        self.receivers.clear();
        let mut sockets = std::mem::take(&mut self.sockets);
        let share = sockets.len().div_ceil(CLOSERS).max(1);
        std::thread::scope(|scope| {
            while sockets.len() > share {
                let some = sockets.split_off(sockets.len() - share);
                // If no thread can be started, the sockets are closed here.
                let _ = std::thread::Builder::new()
                    .name("superpacket-close".into())
                    .spawn_scoped(scope, || drop(some));
            }
            drop(sockets);
        });
    }
}

/// Returns the capabilities of a packet port: the device's offloads, and those that the kernel
/// carries out in place of the device.
fn capabilities(
    port: &str,
    interface: &NetworkInterface,
    link: &InterfaceInfo,
    options: &PacketOptions,
) -> Result<Capabilities, PortError> {
    let device = DeviceFeatures::of(interface).map_err(|error| {
        PortError::system(port, "asking for the device's offloads (SIOCETHTOOL)", error)
    })?;
    let has_hash = matches!(options.ring, RingOptions::Blocks { hash: true, .. });
    let features = FeatureSet::all()
        // The kernel completes partial checksums if the device cannot (`skb_csum_hwoffload_help`),
        // and it also segments super-packets. This program may segment faster, since it knows the
        // payloads' sums.
        .set(
            Feature::TcpSegmentationOffload,
            device.tcp_segmentation_offload || options.kernel_segmentation,
        )
        .set(Feature::TxUdpSegmentation, device.tx_udp_segmentation || options.kernel_segmentation)
        .set(Feature::ReceiveHashing, has_hash);
    let mut gso = GsoSupport::LINUX;
    // The virtio header of packet sockets has no fields for tunnel offsets.
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
        Ok(Box::new(PacketTransmitter::new(Arc::clone(&self.shared), Arc::clone(&self.sender))))
    }

    fn state(&mut self) -> PortState {
        // After an interface disappears and comes back, it exists, but the sockets are not bound to
        // it.
        if self.sender.is_attached() {
            self.interface.state()
        } else {
            PortState { link: LinkState::Gone, mtu: 0 }
        }
    }

    fn counters(&mut self) -> PortCounters {
        let rx_dropped = self.queue_drops().iter().sum();
        self.shared.counters.common.read(rx_dropped)
    }

    fn queue_drops(&mut self) -> Vec<u64> {
        let counters = &self.shared.counters;
        // Reading the kernel's counter resets it.
        (0..)
            .zip(&self.sockets)
            .for_each(|(queue, socket)| counters.dropped(queue, socket.take_drops()));
        counters.rx_dropped.iter().map(|dropped| dropped.load(Ordering::Relaxed)).collect()
    }

    fn join_kernel_path(&mut self, path: &Arc<KernelPath>) -> Result<KernelPathPort, String> {
        let unfit = self.unfit_for_kernel_path.map_or(Ok(()), |reason| Err(reason.to_owned()));
        unfit?;
        let [socket] = self.sockets.as_slice() else { return Err("several queues".to_owned()) };
        socket.join_kernel_path(path).map_err(|error| error.to_string())
    }

    fn set_device_gro(&mut self, on: bool) -> io::Result<()> {
        let device = self.interface.ethtool();
        if on && !device.switch(FeatureSwitch::GenericReceive)? {
            device.set_switch(FeatureSwitch::GenericReceive, true)?;
            self.switched_gro_on = true;
        } else if !on && std::mem::take(&mut self.switched_gro_on) {
            device.set_switch(FeatureSwitch::GenericReceive, false)?;
        }
        Ok(())
    }
}
