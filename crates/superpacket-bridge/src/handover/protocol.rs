//! The operations between two threads whose memory order matters. They ensure that no thread sleeps
//! while it has work, and that no flow moves to another CPU before its packets have been sent.
//!
//! `tests/handover.rs` includes this file and runs it under loom, with loom's atomics in place of
//! the real ones.

use super::sync::{AtomicBool, AtomicU64, Mutex, Ordering, PoisonError, fence};

/// Whether a thread sleeps, as seen by the threads that give it work (like the kernel's
/// `rps_ipi_queued`).
///
/// The thread that wants to sleep first sets the flag and then looks for work. The other thread
/// first stores the work and then reads the flag. Because of the fences between the two steps, at
/// least one of the threads sees what the other wrote.
#[derive(Debug, Default)]
pub(crate) struct Sleep {
    asleep: AtomicBool,
}

impl Sleep {
    /// Creates the state of a thread that is awake.
    pub(crate) fn new() -> Self {
        Sleep { asleep: AtomicBool::new(false) }
    }

    /// Marks the thread as about to sleep. The thread must then look for work again, and sleep only
    /// if there is none.
    pub(crate) fn fall_asleep(&self) {
        // A swap instead of a store, here and below: each write follows the write that it replaces,
        // so the writes to this flag alone order the two threads.
        self.asleep.swap(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Marks the thread as awake.
    pub(crate) fn awake(&self) {
        self.asleep.swap(false, Ordering::Relaxed);
    }

    /// Returns whether the caller must wake the thread. The work must already be stored. If several
    /// threads have work, only one of them gets `true`.
    pub(crate) fn must_be_woken(&self) -> bool {
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed)
    }
}

/// Number of finished packets of a backlog. The worker increases it, and the thread that fills the
/// backlog reads it.
#[derive(Debug, Default)]
pub(crate) struct Head {
    done: AtomicU64,
}

impl Head {
    /// Creates a counter of a backlog without finished packets.
    pub(crate) fn new() -> Self {
        Head { done: AtomicU64::new(0) }
    }

    /// Adds finished packets. All frames that resulted from them must have been sent. Only one
    /// thread at a time may call this.
    pub(crate) fn publish(&self, packets: u64) {
        // Release: a thread that reads the new number also sees that the packets were sent.
        self.done.store(self.done.load(Ordering::Relaxed) + packets, Ordering::Release);
    }

    /// Returns the number of packets that the worker has finished since the start.
    #[inline]
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }
}

/// Whether a worker has ended. A lock ensures that no backlog is given to a worker that is ending,
/// where it would never be emptied.
#[derive(Debug)]
pub(crate) struct WorkerLifetime {
    over: Mutex<bool>,
}

impl WorkerLifetime {
    /// Creates the state of a running worker.
    pub(crate) fn new() -> Self {
        WorkerLifetime { over: Mutex::new(false) }
    }

    /// Hands a backlog to the worker by calling `give`, unless the worker has ended. Returns
    /// whether the backlog was handed over.
    pub(crate) fn give(&self, give: impl FnOnce() -> bool) -> bool {
        // The worker cannot end while the lock is held.
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        !*over && give()
    }

    /// Ends the worker if `is_done` returns true, and returns whether it has ended.
    pub(crate) fn end(&self, is_done: impl FnOnce() -> bool) -> bool {
        let mut over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        *over = is_done();
        *over
    }
}
