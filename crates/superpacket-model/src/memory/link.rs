//! What both ends of a link share.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use superpacket::packet::RxPacket;
use superpacket_port::{Buffer, LinkState, PortError};

use super::settings::MemorySettings;
use super::store::Store;

/// Locks, also after a panic of another thread: what the locks here guard is whole after every
/// step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A link.
#[derive(Debug, Default)]
pub(super) struct MemoryLink {
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

impl Inbox {
    fn new(port: &str, settings: MemorySettings) -> Result<Self, PortError> {
        let queue = |_| {
            let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            let event =
                event.map_err(|error| PortError::system(port, "make an event (eventfd)", error))?;
            Ok(Queue { ring: Mutex::default(), event, dropped: AtomicU64::new(0) })
        };
        let queues = (0..settings.queues).map(queue).collect::<Result<Vec<_>, PortError>>()?;
        let sender = Sender {
            store: Store::new(settings.slots * queues.len()),
            staged: queues.iter().map(|_| Vec::new()).collect(),
            room: vec![0; queues.len()],
        };
        Ok(Inbox { settings, queues, sender: Mutex::new(sender) })
    }
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

impl MemoryLink {
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
    pub(super) link: Arc<MemoryLink>,
    end: usize,
    pub(super) name: String,
    pub(super) settings: MemorySettings,
    pub(super) inbox: Arc<Inbox>,
    pub(super) mtu: Arc<AtomicU32>,
    pub(super) full: AtomicU64,
    pub(super) refused: AtomicU64,
}

impl Seat {
    /// Takes a free end of a link; `None` if both are open. `port` is what errors call it.
    pub(super) fn take(
        link: &Arc<MemoryLink>,
        port: &str,
        settings: &MemorySettings,
    ) -> Result<Option<Self>, PortError> {
        for (end, place) in link.ends.iter().enumerate() {
            let mut seat = lock(&place.inbox);
            if seat.is_some() {
                continue;
            }
            let settings = MemorySettings {
                slots: settings.slots.max(1),
                queues: settings.queues.max(1),
                ..*settings
            };
            let inbox = Arc::new(Inbox::new(port, settings)?);
            *seat = Some(inbox.clone());
            drop(seat);
            return Ok(Some(Seat {
                link: link.clone(),
                end,
                name: port.to_owned(),
                settings,
                inbox,
                mtu: Arc::new(AtomicU32::new(settings.mtu)),
                full: AtomicU64::new(0),
                refused: AtomicU64::new(0),
            }));
        }
        Ok(None)
    }

    /// What pulls its plug.
    pub(super) fn control(&self) -> LinkControl {
        LinkControl { link: self.link.clone(), mtu: self.mtu.clone() }
    }

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

/// What changes a link from outside while it is used: for tests of what ports must survive.
#[derive(Clone, Debug)]
pub struct LinkControl {
    link: Arc<MemoryLink>,
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
        let _ = self
            .link
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| (old != 2).then_some(number));
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
