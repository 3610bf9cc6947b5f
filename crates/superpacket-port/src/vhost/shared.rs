//! The state that the ends of a port and the thread that talks to its front end share.
//!
//! Each ring has a lock. An end holds it while it moves the frames of one call, the thread while it
//! exchanges the ring. So a ring that was removed is not used any more, and its memory can go.

use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use superpacket::virtio::VirtioError;

use super::features::GuestFeatures;
use super::ring::SplitRing;
use crate::counters::SharedCounters;
use crate::{LinkState, PortState};

/// A ring in use.
#[derive(Debug)]
pub(super) struct ActiveRing {
    pub(super) ring: SplitRing,
    pub(super) features: GuestFeatures,
    /// The eventfd that notifies the guest of used buffers; `None` if the guest polls.
    pub(super) call: Option<OwnedFd>,
}

impl ActiveRing {
    /// Shows the guest the returned buffers, and notifies it if it wants that.
    pub(super) fn publish(&mut self) {
        if self.ring.publish()
            && let Some(call) = &self.call
        {
            // The descriptor does not block; a counter that is full has notified already.
            let _ = rustix::io::write(call, &1_u64.to_ne_bytes());
        }
    }
}

/// A ring, if it is in use.
pub(super) type RingSlot = Mutex<Option<ActiveRing>>;

/// A pair of queues.
#[derive(Debug)]
pub(super) struct QueuePair {
    /// The ring by which the guest sends.
    pub(super) from_guest: RingSlot,
    /// The ring from which the guest receives.
    pub(super) to_guest: RingSlot,
    /// An epoll descriptor that becomes readable when the guest has sent something, or
    /// [`wake`](Self::wake) was called. The guest's eventfd is watched edge-triggered, so that it
    /// need not be read.
    events: OwnedFd,
    wake: OwnedFd,
}

impl QueuePair {
    fn new() -> io::Result<Self> {
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let pair = QueuePair {
            from_guest: RingSlot::default(),
            to_guest: RingSlot::default(),
            events,
            wake,
        };
        pair.watch(&pair.wake)?;
        Ok(pair)
    }

    pub(super) fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Adds a descriptor to [`events`](Self::events), edge-triggered.
    pub(super) fn watch(&self, descriptor: impl AsFd) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(&self.events, descriptor, epoll::EventData::new_u64(0), flags)?)
    }

    pub(super) fn unwatch(&self, descriptor: impl AsFd) {
        let _ = epoll::delete(&self.events, descriptor);
    }

    /// Makes [`events`](Self::events) readable.
    pub(super) fn wake(&self) {
        // Fails only after 2^64 calls.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Makes [`events`](Self::events) unreadable until the next event.
    pub(super) fn forget_events(&self) {
        let mut events = [MaybeUninit::uninit(); 2];
        let _ = epoll::wait(&self.events, &mut events, Some(&Timespec::default()));
    }
}

/// The state of a port.
#[derive(Debug)]
pub(super) struct VhostShared {
    /// The port's name.
    pub(super) name: String,
    pub(super) pairs: Vec<QueuePair>,
    /// Maximum length of an IP packet in bytes.
    mtu: u32,
    /// The features of the present guest; 0 without one.
    features: AtomicU64,
    /// Number of rings in use.
    pub(super) running: AtomicUsize,
    connection: Mutex<FrontEndConnection>,
    /// Whether the present guest has broken a rule of its rings.
    has_fault: AtomicBool,
    pub(super) counters: SharedCounters,
}

/// The socket of the connected front end, which other threads use to end the connection.
#[derive(Debug, Default)]
struct FrontEndConnection {
    socket: Option<UnixStream>,
    /// Whether the port is being closed.
    is_closing: bool,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl VhostShared {
    pub(super) fn new(name: &str, queues: u16, mtu: u32) -> io::Result<Self> {
        Ok(VhostShared {
            name: name.to_owned(),
            pairs: (0..queues).map(|_| QueuePair::new()).collect::<io::Result<_>>()?,
            mtu,
            features: AtomicU64::new(0),
            running: AtomicUsize::new(0),
            connection: Mutex::default(),
            has_fault: AtomicBool::new(false),
            counters: SharedCounters::default(),
        })
    }

    pub(super) fn features(&self) -> GuestFeatures {
        GuestFeatures(self.features.load(Ordering::Relaxed))
    }

    pub(super) fn set_features(&self, features: GuestFeatures) {
        self.features.store(features.0, Ordering::Relaxed);
    }

    /// Returns the state of the port: up while a ring is in use.
    pub(super) fn state(&self) -> PortState {
        let is_up = self.running.load(Ordering::Relaxed) != 0;
        PortState { link: if is_up { LinkState::Up } else { LinkState::Down }, mtu: self.mtu }
    }

    /// Sets the socket of the present front end. It is ended at once if the port is being closed.
    pub(super) fn begin_connection(&self, socket: UnixStream) {
        self.has_fault.store(false, Ordering::Relaxed);
        let mut connection = lock(&self.connection);
        if connection.is_closing {
            let _ = socket.shutdown(Shutdown::Both);
        }
        connection.socket = Some(socket);
    }

    pub(super) fn end_connection(&self) {
        lock(&self.connection).socket = None;
    }

    /// Ends the connection, and those that begin later: the port is being closed.
    pub(super) fn close(&self) {
        let mut connection = lock(&self.connection);
        connection.is_closing = true;
        if let Some(socket) = &connection.socket {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Counts and logs that the guest broke a rule of its rings, and ends its connection. The ring
    /// must have been removed.
    #[cold]
    pub(super) fn fault(&self, fault: &dyn fmt::Display) {
        self.has_fault.store(true, Ordering::Relaxed);
        self.break_rules(fault);
        if let Some(socket) = &lock(&self.connection).socket {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Returns whether the present guest has broken a rule of its rings.
    pub(super) fn has_fault(&self) -> bool {
        self.has_fault.load(Ordering::Relaxed)
    }

    /// Counts and logs that a guest or its front end broke a rule, which ends its connection.
    pub(super) fn break_rules(&self, reason: &dyn fmt::Display) {
        self.counters.refuse_peer(&self.name, reason);
    }

    /// Counts a frame whose virtio header is unusable.
    pub(super) fn refuse_header(&self, error: &VirtioError) {
        self.counters.refuse_header(&self.name, error);
    }
}
