//! The state that both ends of a memory link share: receive queues, link state and MTU.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use superpacket::packet::RxPacket;
use superpacket_port::{Buffer, LinkState, PortError};

use super::settings::MemorySettings;
use super::store::Store;

/// Locks a mutex, even if another thread has panicked while it held it. The data behind this
/// crate's mutexes is consistent after every step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A link between two ports in memory, with its two ends.
#[derive(Debug, Default)]
pub(super) struct MemoryLink {
    ends: [End; 2],
    /// State of the link, set by [`LinkControl`]: 0 if it is up, 1 if it is down, 2 if it is gone.
    state: AtomicU8,
}

/// One end of a link, which a port may have opened.
#[derive(Debug, Default)]
struct End {
    /// The receive queues; `None` while the end is not open.
    inbox: Mutex<Option<Arc<Inbox>>>,
}

/// The receive queues of an open end, and the send state of the transmitters that fill them.
#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) settings: MemorySettings,
    pub(super) queues: Vec<MemoryQueue>,
    /// Send state used by the transmitters of the other end, one at a time.
    pub(super) sender: Mutex<SendState>,
}

/// A receive queue of a memory port.
#[derive(Debug)]
pub(super) struct MemoryQueue {
    pub(super) ring: Mutex<MemoryRing>,
    /// Eventfd that is readable while the queue holds packets.
    pub(super) event: OwnedFd,
    /// Number of packets dropped because the queue was full.
    pub(super) dropped: AtomicU64,
}

/// The packets in a receive queue.
#[derive(Debug, Default)]
pub(super) struct MemoryRing {
    pub(super) packets: VecDeque<RxPacket<Buffer>>,
    /// Whether the queue's eventfd is readable at present.
    pub(super) signalled: bool,
}

/// The state for sending to one end of a link: memory for packets, and the packets of the current
/// call.
#[derive(Debug)]
pub(super) struct SendState {
    pub(super) store: Store,
    /// For each receive queue of the end, the packets that the current call will add to it.
    pub(super) staged: Vec<Vec<RxPacket<Buffer>>>,
    /// Number of packets for which each receive queue has room left during the current call.
    pub(super) room: Vec<usize>,
}

impl Inbox {
    fn new(port: &str, settings: MemorySettings) -> Result<Self, PortError> {
        let queue = |_| {
            let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            let event =
                event.map_err(|error| PortError::system(port, "make an event (eventfd)", error))?;
            Ok(MemoryQueue { ring: Mutex::default(), event, dropped: AtomicU64::new(0) })
        };
        let queues = (0..settings.queues).map(queue).collect::<Result<Vec<_>, PortError>>()?;
        let sender = SendState {
            store: Store::new(settings.slots * queues.len()),
            staged: queues.iter().map(|_| Vec::new()).collect(),
            room: vec![0; queues.len()],
        };
        Ok(Inbox { settings, queues, sender: Mutex::new(sender) })
    }
}

impl MemoryQueue {
    /// Sets whether the eventfd is readable. The caller holds the ring's lock, so that the eventfd
    /// always matches the ring's contents.
    pub(super) fn signal(&self, ring: &mut MemoryRing, readable: bool) {
        if ring.signalled == readable {
            return;
        }
        ring.signalled = readable;
        // Neither call can fail: the counter is at most 1, and it is read only while it is 1.
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

/// An open end of a link, shared by the port, its receivers and its transmitters. The end closes
/// when the last of them is dropped.
#[derive(Debug)]
pub(super) struct OpenEnd {
    pub(super) link: Arc<MemoryLink>,
    /// Index of this end of the link, 0 or 1.
    index: usize,
    pub(super) name: String,
    pub(super) settings: MemorySettings,
    pub(super) inbox: Arc<Inbox>,
    /// Maximum length of a sent IP packet, in bytes; 0: no limit.
    pub(super) mtu: Arc<AtomicU32>,
    /// Number of sends that stopped early because a receive queue of the other end was full.
    pub(super) full: AtomicU64,
    /// Number of sends refused because a packet requests an offload that is switched off.
    pub(super) refused: AtomicU64,
}

impl OpenEnd {
    /// Opens a free end of a link; `None` if both ends are open. Errors name the port `port`.
    pub(super) fn open(
        link: &Arc<MemoryLink>,
        port: &str,
        settings: &MemorySettings,
    ) -> Result<Option<Self>, PortError> {
        for (index, end) in link.ends.iter().enumerate() {
            let mut slot = lock(&end.inbox);
            if slot.is_some() {
                continue;
            }
            let settings = MemorySettings {
                slots: settings.slots.max(1),
                queues: settings.queues.max(1),
                ..*settings
            };
            let inbox = Arc::new(Inbox::new(port, settings)?);
            *slot = Some(inbox.clone());
            drop(slot);
            return Ok(Some(OpenEnd {
                link: link.clone(),
                index,
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

    /// Returns a handle that changes the link's state and this end's MTU.
    pub(super) fn control(&self) -> LinkControl {
        LinkControl { link: self.link.clone(), mtu: self.mtu.clone() }
    }

    /// Returns the receive queues of the other end; `None` if the other end is not open.
    pub(super) fn other(&self) -> Option<Arc<Inbox>> {
        lock(&self.link.ends[1 - self.index].inbox).clone()
    }

    pub(super) fn gone(&self) -> PortError {
        PortError::Gone { port: self.name.clone() }
    }
}

impl Drop for OpenEnd {
    fn drop(&mut self) {
        *lock(&self.link.ends[self.index].inbox) = None;
    }
}

/// A handle that changes the state and the MTU of a link while it is in use, for tests.
#[derive(Clone, Debug)]
pub struct LinkControl {
    link: Arc<MemoryLink>,
    mtu: Arc<AtomicU32>,
}

impl LinkControl {
    /// Sets the state of the link. [`LinkState::Gone`] is final; a port of the same name then opens
    /// a new link.
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
        // Wake receivers that wait for packets, so that they see the new state.
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

    /// Sets the MTU of the end from which this handle was obtained, in bytes; 0: no limit.
    pub fn set_mtu(&self, mtu: u32) {
        self.mtu.store(mtu, Ordering::Relaxed);
    }
}
