//! The model NIC as a port.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, epoll, eventfd};
use superpacket::packet::Layer;
use superpacket::segment::GsoSupport;
use superpacket_port::{
    Capabilities, MAX_SLICES, Port, PortCounters, PortError, PortState, Receive, SpecError,
    Transmit,
};

use super::counters::NicMonitor;
use super::front::Front;
use super::receive::NicReceive;
use super::settings::{NicSettings, TsoLimit};
use super::transmit::{Hardware, MAX_GSO_SIZE, NicTransmit, Unsent};
use crate::fit::PortLimits;
use crate::memory::{self, MemoryPort, MemorySettings};

/// MTU in bytes if neither the settings nor the wrapped port have one: the MTU of Ethernet.
const DEFAULT_MTU: u32 = 1500;

/// Maximum length in bytes of a received IP packet with the setting `wire=off`, with which
/// super-packets are received unsegmented.
const LONGEST_WHOLE: usize = 65_535;

/// A port that behaves like a network card around another port; see the [module](super).
#[derive(Debug)]
pub struct NicPort {
    name: String,
    settings: NicSettings,
    mtu: u32,
    inner: Box<dyn Port>,
    receivers: Vec<Box<dyn Receive>>,
    monitor: NicMonitor,
    unsent: Unsent,
}

/// Opens a model NIC on a new memory link, and returns it with the other end of the link.
///
/// # Errors
/// The same as for [`NicPort::new`].
///
/// ```
/// use superpacket::packet::{Layer, RxChecksum};
/// use superpacket_model::memory::MemorySettings;
/// use superpacket_model::nic::{NicSettings, Padding, pair};
/// use superpacket_port::{Outgoing, Port, TxBatch};
///
/// let settings = NicSettings { padding: Padding::Zero, ..NicSettings::default() };
/// let (mut card, mut wire) = pair(&settings, &MemorySettings::default())?;
/// let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
/// batch.push_bytes(&mut outgoing, &[7; 42], RxChecksum::None, None, Layer::Ethernet);
/// assert_eq!(wire.transmitter()?.transmit(&outgoing, &batch, 0).sent, 1);
///
/// let mut packets = Vec::new();
/// assert_eq!(card.receivers()[0].poll(&mut packets, 64)?, 1);
/// assert_eq!(packets[0].length(), 60);
/// assert_eq!(card.monitor().counters().rx_padded, 1);
/// # Ok::<(), superpacket_port::PortError>(())
/// ```
pub fn pair(
    settings: &NicSettings,
    other: &MemorySettings,
) -> Result<(NicPort, MemoryPort), PortError> {
    let (card, other) = memory::pair(&super::wire(settings), other)?;
    Ok((NicPort::new("nic", settings, Box::new(card))?, other))
}

impl NicPort {
    /// Wraps a port in a model NIC. Errors name the model NIC `name`.
    pub fn new(
        name: &str,
        settings: &NicSettings,
        mut inner: Box<dyn Port>,
    ) -> Result<Self, PortError> {
        settings.check().map_err(|(option, expected)| SpecError::Option {
            port: name.into(),
            option: option.into(),
            problem: expected.into(),
        })?;
        let unsupported = |reason: String| PortError::Unsupported { port: name.into(), reason };
        if inner.layer() != Layer::Ethernet {
            return Err(unsupported(format!(
                "a model NIC carries Ethernet frames, and {} does not",
                inner.name()
            )));
        }
        let receiving = inner.receivers();
        if receiving.is_empty() {
            return Err(unsupported(format!("{} has no receive queue left", inner.name())));
        }
        let mtu = match (settings.mtu, inner.state().mtu) {
            (0, 0) => DEFAULT_MTU,
            (0, inner) => inner.min(NicSettings::MAX_MTU),
            (mtu, _) => mtu,
        };
        let longest = if settings.wire { mtu as usize } else { LONGEST_WHOLE };
        let system =
            |action| move |error: rustix::io::Errno| PortError::system(name, action, error);
        let event = || {
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(system("make an event (eventfd)"))
        };
        let events =
            (0..settings.queues).map(|_| event()).collect::<Result<Vec<_>, PortError>>()?;
        let mut readiness = Vec::new();
        for event in &events {
            let set = epoll::create(epoll::CreateFlags::CLOEXEC)
                .map_err(system("watch the wrapped port (epoll_create1)"))?;
            let watched =
                receiving.iter().map(|receive| receive.readiness()).chain([event.as_fd()]);
            for (index, descriptor) in watched.enumerate() {
                let data = epoll::EventData::new_u64(index as u64);
                epoll::add(&set, descriptor, data, epoll::EventFlags::IN)
                    .map_err(system("watch the wrapped port (epoll_ctl)"))?;
            }
            readiness.push(set);
        }
        let (monitor, unsent) = (NicMonitor::default(), Unsent::default());
        let front = Front::new(settings, longest, receiving, events, monitor.clone()).ok_or_else(|| {
            let (ring, queues) = (settings.ring, settings.queues);
            unsupported(format!(
                "its buffers (ring={ring}, queues={queues}, packets of {longest} bytes) take more memory than there is, or than 4 GiB"
            ))
        })?;
        let front = Arc::new(Mutex::new(front));
        let receiver = |(queue, readiness): (usize, OwnedFd)| {
            Box::new(NicReceive { front: front.clone(), queue, readiness, unsent: unsent.clone() })
                as Box<dyn Receive>
        };
        let receivers = readiness.into_iter().enumerate().map(receiver).collect();
        Ok(NicPort {
            name: name.into(),
            settings: *settings,
            mtu,
            inner,
            receivers,
            monitor,
            unsent,
        })
    }

    /// Returns the settings of the NIC.
    pub const fn settings(&self) -> &NicSettings {
        &self.settings
    }

    /// Returns a handle that reads the NIC's counters.
    pub fn monitor(&self) -> NicMonitor {
        self.monitor.clone()
    }

    /// Returns the maximum number of buffers of a sent packet.
    fn max_slices(&self) -> usize {
        match (self.settings.scatter_gather, self.settings.wire) {
            (false, _) => 1,
            (true, true) => MAX_SLICES,
            (true, false) => self.inner.capabilities().max_slices,
        }
    }

    /// Returns the active offloads. With the setting `wire=off`, the wrapped port must support them
    /// too.
    fn features(&self) -> superpacket_port::features::FeatureSet {
        let own = self.settings.features();
        if self.settings.wire {
            return own;
        }
        let inner = self.inner.capabilities().features;
        let received = superpacket_port::features::Feature::ReceiveHashing;
        own.iter().filter(|&feature| feature == received || inner.contains(feature)).collect()
    }
}

impl Port for NicPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        let inner = self.inner.capabilities();
        let mut gso = GsoSupport::ALL;
        gso.udp_tunnels = self.settings.tunnels;
        (gso.max_ipv4_length, gso.max_ipv6_length) = (MAX_GSO_SIZE, MAX_GSO_SIZE);
        if let TsoLimit::Payload(bytes) = self.settings.tso {
            gso.max_payload = bytes;
        }
        let own = Capabilities { features: self.features(), gso, max_slices: self.max_slices() };
        if self.settings.wire {
            return own;
        }
        Capabilities { gso: own.gso.and(inner.gso), ..own }
    }

    fn hardware_address(&self) -> Option<[u8; 6]> {
        self.inner.hardware_address()
    }

    fn receivers(&mut self) -> Vec<Box<dyn Receive>> {
        std::mem::take(&mut self.receivers)
    }

    fn transmitter(&mut self) -> Result<Box<dyn Transmit>, PortError> {
        let hardware = Hardware {
            limits: PortLimits {
                features: self.features(),
                max_slices: self.max_slices(),
                mtu: self.mtu,
            },
            tso: self.settings.tso,
            tunnels: self.settings.tunnels,
            wire: self.settings.wire,
        };
        Ok(Box::new(NicTransmit::new(
            hardware,
            self.inner.transmitter()?,
            self.monitor.clone(),
            &self.unsent,
        )))
    }

    fn state(&mut self) -> PortState {
        let inner = self.inner.state();
        let mtu = if inner.mtu == 0 { self.mtu } else { self.mtu.min(inner.mtu) };
        PortState { mtu, ..inner }
    }

    fn counters(&mut self) -> PortCounters {
        let (own, inner) = (self.monitor.counters(), self.inner.counters());
        PortCounters {
            rx_dropped: own.rx_ring_drops + own.rx_no_buffer + inner.rx_dropped,
            rx_errors: own.rx_too_long + own.rx_malformed + inner.rx_errors,
            tx_full: inner.tx_full,
            tx_refused: own.tx_refused + inner.tx_refused,
        }
    }
}
