//! The port at one end of a memory link, and the functions that open it.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Mutex, Weak};

use superpacket::aggregate::MAX_BIG_LENGTH;
use superpacket::segment::GsoSupport;
use superpacket_port::{
    Capabilities, LinkState, MAX_SLICES, Port, PortCounters, PortError, PortState, Receive,
    Transmit,
};

use super::link::{LinkControl, MemoryLink, OpenEnd, lock};
use super::receive::MemoryReceive;
use super::settings::MemorySettings;
use super::transmit::MemoryTransmit;

/// The named links of which at least one end is open.
static LINKS: LazyLock<Mutex<HashMap<String, Weak<MemoryLink>>>> = LazyLock::new(Mutex::default);

/// Opens a free end of the link with this name, creating the link if it does not exist. Errors name
/// the port `port`.
pub(crate) fn join(
    name: &str,
    port: &str,
    settings: &MemorySettings,
) -> Result<MemoryPort, PortError> {
    let mut links = lock(&LINKS);
    links.retain(|_, link| link.strong_count() != 0);
    let known =
        links.get(name).and_then(Weak::upgrade).filter(|link| link.state() != LinkState::Gone);
    let link = known.unwrap_or_else(|| {
        let link = Arc::default();
        links.insert(name.to_owned(), Arc::downgrade(&link));
        link
    });
    MemoryPort::open(&link, port, settings)?.ok_or_else(|| PortError::Unsupported {
        port: port.into(),
        reason: format!("both ends of the memory link {name:?} are open already"),
    })
}

/// Opens a new link without a name, and returns both its ends.
///
/// # Errors
/// [`PortError::System`] if the system has no more file descriptors.
///
/// ```
/// use superpacket::packet::{Layer, RxChecksum};
/// use superpacket_model::memory::{MemorySettings, pair};
/// use superpacket_port::{Outgoing, Port, TxBatch};
///
/// let (mut left, mut right) = pair(&MemorySettings::default(), &MemorySettings::default())?;
/// let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
/// batch.push_bytes(&mut outgoing, &[7; 60], RxChecksum::None, None, Layer::Ethernet);
/// assert_eq!(left.transmitter()?.transmit(&outgoing, &batch, 0).sent, 1);
///
/// let mut packets = Vec::new();
/// assert_eq!(right.receivers()[0].poll(&mut packets, 64)?, 1);
/// assert_eq!(packets[0].length(), 60);
/// # Ok::<(), superpacket_port::PortError>(())
/// ```
pub fn pair(
    left: &MemorySettings,
    right: &MemorySettings,
) -> Result<(MemoryPort, MemoryPort), PortError> {
    let link = Arc::default();
    let in_use = || PortError::Unsupported {
        port: "memory".into(),
        reason: "an end of a new link is open".into(),
    };
    let left = MemoryPort::open(&link, "memory:left", left)?.ok_or_else(in_use)?;
    let right = MemoryPort::open(&link, "memory:right", right)?.ok_or_else(in_use)?;
    Ok((left, right))
}

/// The port at one end of a link in memory.
///
/// The end stays open until the port and all its receivers and senders are dropped.
#[derive(Debug)]
pub struct MemoryPort {
    end: Arc<OpenEnd>,
    receivers_taken: bool,
}

impl MemoryPort {
    /// Opens a free end of a link; `None` if both ends are open.
    fn open(
        link: &Arc<MemoryLink>,
        name: &str,
        settings: &MemorySettings,
    ) -> Result<Option<Self>, PortError> {
        let end = OpenEnd::open(link, name, settings)?;
        Ok(end.map(|end| MemoryPort { end: Arc::new(end), receivers_taken: false }))
    }

    /// Returns a handle that changes the link's state and this end's MTU.
    pub fn control(&self) -> LinkControl {
        self.end.control()
    }
}

impl Port for MemoryPort {
    fn name(&self) -> &str {
        &self.end.name
    }

    fn capabilities(&self) -> Capabilities {
        let settings = &self.end.settings;
        let mut gso = GsoSupport::ALL;
        (gso.max_ipv4_length, gso.max_ipv6_length) = (MAX_BIG_LENGTH, MAX_BIG_LENGTH);
        Capabilities {
            features: settings.features(),
            gso,
            max_slices: if settings.scatter_gather { MAX_SLICES } else { 1 },
        }
    }

    fn receivers(&mut self) -> Vec<Box<dyn Receive>> {
        if std::mem::replace(&mut self.receivers_taken, true) {
            return Vec::new();
        }
        (0..self.end.inbox.queues.len())
            .map(|queue| Box::new(MemoryReceive::new(self.end.clone(), queue)) as Box<dyn Receive>)
            .collect()
    }

    fn transmitter(&mut self) -> Result<Box<dyn Transmit>, PortError> {
        Ok(Box::new(MemoryTransmit::new(self.end.clone())))
    }

    fn state(&mut self) -> PortState {
        let link = match self.end.link.state() {
            LinkState::Up if self.end.other().is_none() => LinkState::Down,
            state => state,
        };
        PortState { link, mtu: self.end.mtu.load(Ordering::Relaxed) }
    }

    fn counters(&mut self) -> PortCounters {
        PortCounters {
            rx_dropped: self.queue_drops().iter().sum(),
            rx_errors: 0,
            tx_full: self.end.full.load(Ordering::Relaxed),
            tx_refused: self.end.refused.load(Ordering::Relaxed),
        }
    }

    fn queue_drops(&mut self) -> Vec<u64> {
        self.end.inbox.queues.iter().map(|queue| queue.dropped.load(Ordering::Relaxed)).collect()
    }
}
