//! What both ends of a link share, and the port that one end is.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use rustix::event::{EventfdFlags, eventfd};
use superpacket::aggregate::MAX_BIG_LENGTH;
use superpacket::packet::RxPacket;

use super::receive::MemoryReceive;
use super::settings::MemorySettings;
use super::store::Store;
use super::transmit::MemoryTransmit;
use crate::port::{Buffer, Capabilities, LinkState, MAX_SLICES, Port, PortCounters, PortError, PortState, Receive, Transmit};

/// The links that have been opened by name.
static LINKS: LazyLock<Mutex<HashMap<String, Weak<Link>>>> = LazyLock::new(Mutex::default);

/// Locks, also after a panic of another thread: what the locks here guard is whole after every
/// step.
pub(in crate::port) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A link.
#[derive(Debug, Default)]
pub(super) struct Link {
    ends: [End; 2],
    /// What is said of it by code: up, down or gone.
    state: AtomicU8,
}

/// One end of a link.
#[derive(Debug, Default)]
struct End {
    /// What it receives into, while it is open.
    inbox: Mutex<Option<Arc<Inbox>>>,
}

/// The receiving side of an open end.
#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) settings: MemorySettings,
    pub(super) queues: Vec<Queue>,
    /// What senders need: one at a time.
    pub(super) sender: Mutex<Sender>,
}

/// A receive queue.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) ring: Mutex<Ring>,
    /// Readable while packets are there.
    pub(super) event: OwnedFd,
    /// Packets for which there was no room.
    pub(super) dropped: AtomicU64,
}

/// The packets of a queue.
#[derive(Debug, Default)]
pub(super) struct Ring {
    pub(super) packets: VecDeque<RxPacket<Buffer>>,
    /// The event is readable.
    pub(super) signalled: bool,
}

/// The memory that packets are copied into, and those of this call by queue.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) store: Store,
    pub(super) staged: Vec<Vec<RxPacket<Buffer>>>,
    pub(super) room: Vec<usize>,
}

impl Queue {
    /// Makes the event readable, or not. The ring is locked, so it is so when another looks.
    pub(super) fn signal(&self, ring: &mut Ring, readable: bool) {
        if ring.signalled == readable {
            return;
        }
        ring.signalled = readable;
        // Neither can fail: the counter never holds more than 1, and is read only when it does.
        if readable {
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        } else {
            let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
        }
    }
}

impl Link {
    pub(super) fn state(&self) -> LinkState {
        match self.state.load(Ordering::Acquire) {
            0 => LinkState::Up,
            1 => LinkState::Down,
            _ => LinkState::Gone,
        }
    }
}

/// An open end: what the port and its receivers and senders hold together. The last of them closes
/// it.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) link: Arc<Link>,
    end: usize,
    pub(super) name: String,
    pub(super) settings: MemorySettings,
    pub(super) inbox: Arc<Inbox>,
    pub(super) mtu: Arc<AtomicU32>,
    pub(super) full: AtomicU64,
    pub(super) refused: AtomicU64,
}

impl Seat {
    /// Where what this end sends goes: the other end's side, if it is open.
    pub(super) fn other(&self) -> Option<Arc<Inbox>> {
        lock(&self.link.ends[1 - self.end].inbox).clone()
    }

    pub(super) fn gone(&self) -> PortError {
        PortError::Gone { port: self.name.clone() }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        *lock(&self.link.ends[self.end].inbox) = None;
    }
}

/// Takes a free end of a link; `None` if both are open.
fn sit(link: &Arc<Link>, port: &str, settings: &MemorySettings) -> Result<Option<MemoryPort>, PortError> {
    for (end, place) in link.ends.iter().enumerate() {
        let mut seat = lock(&place.inbox);
        if seat.is_some() {
            continue;
        }
        let settings = MemorySettings { slots: settings.slots.max(1), queues: settings.queues.max(1), ..*settings };
        let queue = |_| {
            let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            let event = event.map_err(|error| PortError::system(port, "make an event (eventfd)", error))?;
            Ok(Queue { ring: Mutex::default(), event, dropped: AtomicU64::new(0) })
        };
        let queues = (0..settings.queues).map(queue).collect::<Result<Vec<_>, PortError>>()?;
        let sender = Sender {
            store: Store::new(settings.slots * queues.len()),
            staged: queues.iter().map(|_| Vec::new()).collect(),
            room: vec![0; queues.len()],
        };
        let inbox = Arc::new(Inbox { settings, queues, sender: Mutex::new(sender) });
        *seat = Some(inbox.clone());
        drop(seat);
        let seat = Seat {
            link: link.clone(),
            end,
            name: port.to_owned(),
            settings,
            inbox,
            mtu: Arc::new(AtomicU32::new(settings.mtu)),
            full: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        };
        return Ok(Some(MemoryPort { seat: Arc::new(seat), receivers_taken: false }));
    }
    Ok(None)
}

/// Opens an end of the link of this name; `port` is what errors call it.
pub(in crate::port) fn join(name: &str, port: &str, settings: &MemorySettings) -> Result<MemoryPort, PortError> {
    let mut links = lock(&LINKS);
    links.retain(|_, link| link.strong_count() != 0);
    let known = links.get(name).and_then(Weak::upgrade).filter(|link| link.state() != LinkState::Gone);
    let link = known.unwrap_or_else(|| {
        let link = Arc::default();
        links.insert(name.to_owned(), Arc::downgrade(&link));
        link
    });
    sit(&link, port, settings)?.ok_or_else(|| PortError::Unsupported {
        port: port.into(),
        reason: format!("both ends of the memory link {name:?} are open already"),
    })
}

/// Both ends of a link without a name.
///
/// # Errors
/// [`PortError::System`] if the system gives no more file descriptors.
///
/// ```
/// use superpacket::packet::{Layer, RxChecksum};
/// use superpacket_io::port::memory::{MemorySettings, pair};
/// use superpacket_io::port::{Outgoing, Port, TxBatch};
///
/// let (mut left, mut right) = pair(&MemorySettings::default(), &MemorySettings::default())?;
/// let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
/// batch.push_bytes(&mut outgoing, &[7; 60], RxChecksum::None, None, Layer::Ethernet);
/// assert_eq!(left.transmitter()?.transmit(&outgoing, &batch, 0).sent, 1);
///
/// let mut packets = Vec::new();
/// assert_eq!(right.receivers()[0].poll(&mut packets, 64)?, 1);
/// assert_eq!(packets[0].length(), 60);
/// # Ok::<(), superpacket_io::port::PortError>(())
/// ```
pub fn pair(left: &MemorySettings, right: &MemorySettings) -> Result<(MemoryPort, MemoryPort), PortError> {
    let link = Arc::default();
    let taken = || PortError::Unsupported { port: "memory".into(), reason: "an end of a new link is open".into() };
    let left = sit(&link, "memory:left", left)?.ok_or_else(taken)?;
    let right = sit(&link, "memory:right", right)?.ok_or_else(taken)?;
    Ok((left, right))
}

/// One end of a link in memory.
///
/// The end stays open until the port and all its receivers and senders are dropped.
#[derive(Debug)]
pub struct MemoryPort {
    seat: Arc<Seat>,
    receivers_taken: bool,
}

impl MemoryPort {
    /// What pulls the plug, for tests.
    pub fn control(&self) -> LinkControl {
        LinkControl { link: self.seat.link.clone(), mtu: self.seat.mtu.clone() }
    }
}

impl Port for MemoryPort {
    fn name(&self) -> &str {
        &self.seat.name
    }

    fn capabilities(&self) -> Capabilities {
        let settings = &self.seat.settings;
        Capabilities {
            features: settings.features(),
            max_gso_size: MAX_BIG_LENGTH,
            max_gso_payload: u32::MAX,
            max_gso_segments: u32::MAX,
            max_slices: if settings.scatter_gather { MAX_SLICES } else { 1 },
            tunnels: true,
            fixed_ids: true,
        }
    }

    fn receivers(&mut self) -> Vec<Box<dyn Receive>> {
        if std::mem::replace(&mut self.receivers_taken, true) {
            return Vec::new();
        }
        (0..self.seat.inbox.queues.len()).map(|queue| Box::new(MemoryReceive::new(self.seat.clone(), queue)) as Box<dyn Receive>).collect()
    }

    fn transmitter(&mut self) -> Result<Box<dyn Transmit>, PortError> {
        Ok(Box::new(MemoryTransmit::new(self.seat.clone())))
    }

    fn state(&mut self) -> PortState {
        let link = match self.seat.link.state() {
            LinkState::Up if self.seat.other().is_none() => LinkState::Down,
            state => state,
        };
        PortState { link, mtu: self.seat.mtu.load(Ordering::Relaxed) }
    }

    fn counters(&mut self) -> PortCounters {
        PortCounters {
            rx_dropped: self.queue_drops().iter().sum(),
            rx_errors: 0,
            tx_full: self.seat.full.load(Ordering::Relaxed),
            tx_refused: self.seat.refused.load(Ordering::Relaxed),
        }
    }

    fn queue_drops(&mut self) -> Vec<u64> {
        self.seat.inbox.queues.iter().map(|queue| queue.dropped.load(Ordering::Relaxed)).collect()
    }
}

/// What changes a link from outside while it is used: for tests of what ports must survive.
#[derive(Clone, Debug)]
pub struct LinkControl {
    link: Arc<Link>,
    mtu: Arc<AtomicU32>,
}

impl LinkControl {
    /// Sets the link up or down, or takes it away. A link that is gone stays so; its name may be
    /// opened again as a new one.
    pub fn set_state(&self, state: LinkState) {
        let number = match state {
            LinkState::Up => 0,
            LinkState::Down => 1,
            LinkState::Gone => 2,
        };
        let _ = self.link.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| (old != 2).then_some(number));
        // Who waits for packets looks, and sees it.
        let state = self.link.state();
        for end in &self.link.ends {
            let inbox = lock(&end.inbox).clone();
            for queue in inbox.iter().flat_map(|inbox| &inbox.queues) {
                let mut ring = lock(&queue.ring);
                let readable = state != LinkState::Up || !ring.packets.is_empty();
                queue.signal(&mut ring, readable);
            }
        }
    }

    /// Changes the MTU of the end that this was taken from, in bytes; 0: no limit.
    pub fn set_mtu(&self, mtu: u32) {
        self.mtu.store(mtu, Ordering::Relaxed);
    }
}
