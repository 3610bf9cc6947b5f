//! TAP and TUN devices: the host sees a network interface, and the port is at the other end of its
//! cable.
//!
//! `tap:NAME` carries Ethernet frames, `tun:NAME` IP packets. The device is created if it does not
//! exist, and deleted with the port unless it is persistent. `%d` in the name stands for the lowest
//! free number, and the port's name then contains the real one. Attaching to a persistent device
//! requires `CAP_NET_ADMIN` or its ownership. Creating one, or changing MTU and state, requires
//! `CAP_NET_ADMIN`.
//!
//! | option | | default |
//! |---|---|---|
//! | `queues=N` | 1 to 256 queues (`IFF_MULTI_QUEUE` from 2 on) | 1 |
//! | `persist=on` | the device stays when the port is closed; `off`: it is deleted | as it is |
//! | `mtu=N` | maximum length of an IP packet in bytes | as it is; 1500 for a new device |
//! | `up=on` | switches the interface on | `on` for a device that this port creates |
//! | `offload=on` | the work that the host may leave to the port: `on`, `off`, or some of `csum,tso4,tso6,ecn,uso,tunnel,tunnel-csum` | `on`: all that the kernel knows |
//! | `header=N` | bytes of the virtio header before each packet: 10, 12, or 24, which tunnels need | 24 from Linux 6.17 on, else 10 |
//! | `endian=native` | byte order of the virtio header: `native`, `little` (`TUNSETVNETLE`), `big` (`TUNSETVNETBE`) | `native` |
//!
//! The super-packets that the port accepts do not depend on `offload`. The kernel always segments
//! TCP, UDP since Linux 6.2, and super-packets in UDP tunnels with a header of 24 bytes.
//! Super-packets are shorter than 64 KB in both directions: the driver does not support BIG TCP.
//!
//! Packets are received into the port's memory, 6.3 MiB per queue. From 33 queues on, the queues
//! share 202 MiB, but each has at least a quarter of 6.3 MiB, so 256 queues have 404 MiB. Unused
//! parts occupy no memory. If the memory is not available, the port is not opened.
//!
//! A device that is down passes no packets ([`StopReason::Down`](super::StopReason::Down)) until it
//! is up again. A device that is moved to another network namespace or renamed is followed. A
//! deleted device is [gone](super::LinkState::Gone), and the port must be opened again.

mod device;
mod offload;
mod options;
pub(crate) mod outer_checksum;
mod receive;
mod transmit;

use std::io;
use std::sync::Arc;

use crate::features::{Feature, FeatureSet};
use superpacket::packet::Layer;
use superpacket::segment::GsoSupport;
use superpacket::virtio::Format;

use self::device::TapDevice;
use self::options::TapOptions;
use self::receive::TapReceiver;
use self::transmit::TapTransmitter;
use super::{
    Capabilities, MAX_SLICES, Port, PortCounters, PortError, PortKind, PortSpec, PortState,
    Receive, SpecError, Transmit,
};
use crate::slots::PacketSlots;
use crate::system::TunKind;

/// A port on a TAP or TUN device.
#[derive(Debug)]
pub(super) struct TapPort {
    device: Arc<TapDevice>,
    /// The receiving ends, until they are handed out.
    receivers: Vec<Box<dyn Receive>>,
    /// Number of the queue that the next transmitter uses.
    next: u16,
}

impl TapPort {
    /// Checks the options of a port string.
    pub(super) fn check(spec: &PortSpec) -> Result<(), SpecError> {
        TapOptions::read(spec.options()).map(drop)
    }

    /// Opens the device named by a port string of kind `tap` or `tun`.
    pub(super) fn open(spec: &PortSpec) -> Result<Self, PortError> {
        let options = TapOptions::read(spec.options())?;
        let mode = if spec.kind() == PortKind::Tun { TunKind::Tun } else { TunKind::Tap };
        // Allocated before the device is created, since that may be persistent.
        let slots = slots(options.queues).map_err(|error| {
            PortError::system(spec.name(), "taking memory for what is received", error)
        })?;
        let device = Arc::new(TapDevice::open(spec.name(), mode, spec.device(), &options)?);
        let receiver =
            |(queue, slots)| Box::new(TapReceiver::new(Arc::clone(&device), queue, slots)) as _;
        let receivers = (0..).zip(slots).map(receiver).collect();
        Ok(TapPort { device, receivers, next: 0 })
    }
}

/// Allocates the receive memory of `queues` queues.
fn slots(queues: u16) -> io::Result<Vec<PacketSlots>> {
    let slots: Option<Vec<PacketSlots>> =
        (0..queues).map(|_| PacketSlots::try_new(queues)).collect();
    slots.ok_or_else(|| {
        let says = format!(
            "there are no {} MiB for {queues} queues: fewer by queues=N",
            PacketSlots::bytes(queues) >> 20
        );
        io::Error::new(io::ErrorKind::OutOfMemory, says)
    })
}

impl Port for TapPort {
    fn name(&self) -> &str {
        &self.device.text
    }

    fn capabilities(&self) -> Capabilities {
        let features = FeatureSet::all()
            .without(Feature::ReceiveHashing)
            .set(Feature::TxUdpSegmentation, self.device.takes_udp);
        let mut gso = GsoSupport::LINUX;
        gso.udp = self.device.takes_udp;
        gso.udp_tunnels = self.device.format == Format::Tunnel;
        gso.max_segments = u32::from(u16::MAX);
        Capabilities {
            features,
            gso,
            // One slice is the virtio header.
            max_slices: MAX_SLICES - 1,
        }
    }

    fn layer(&self) -> Layer {
        self.device.layer()
    }

    fn hardware_address(&self) -> Option<[u8; 6]> {
        self.device.hardware_address()
    }

    fn receivers(&mut self) -> Vec<Box<dyn Receive>> {
        std::mem::take(&mut self.receivers)
    }

    fn transmitter(&mut self) -> Result<Box<dyn Transmit>, PortError> {
        let queue = self.next;
        self.next = (queue + 1) % self.device.queues() as u16;
        Ok(Box::new(TapTransmitter::new(Arc::clone(&self.device), queue)))
    }

    fn state(&mut self) -> PortState {
        self.device.state()
    }

    fn counters(&mut self) -> PortCounters {
        self.device.counters()
    }
}
