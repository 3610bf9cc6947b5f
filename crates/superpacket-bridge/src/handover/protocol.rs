//! What two threads must do in which order, so that nobody sleeps over work and no flow moves
//! before its packets have left.
//!
//! `tests/handover.rs` includes this file and runs it under loom, with loom's atomics in place of
//! the real ones.

use super::sync::{AtomicBool, AtomicU64, Mutex, Ordering, PoisonError, fence};

/// Whether a thread sleeps, for those who have work for it (the kernel's `rps_ipi_queued`, but for
/// threads).
///
/// The sleeper says so first and looks for work then; the other puts the work there first and looks
/// at the sleeper then. With the fences between, at least one of them sees the other.
#[derive(Debug, Default)]
pub(crate) struct Sleep {
    asleep: AtomicBool,
}

impl Sleep {
    /// Awake.
    pub(crate) fn new() -> Self {
        Sleep { asleep: AtomicBool::new(false) }
    }

    /// The thread is about to sleep. It must look for work again, and sleep only if there is none.
    pub(crate) fn fall_asleep(&self) {
        // Swapped, not stored, here and below: each write follows the one that it replaces, so that
        // the order of the two sides' writes is settled by them alone.
        self.asleep.swap(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The thread does not sleep, or no longer.
    pub(crate) fn awake(&self) {
        self.asleep.swap(false, Ordering::Relaxed);
    }

    /// Work has been put where the thread looks for it: must it be woken? Of several that have
    /// work, one wakes it.
    pub(crate) fn must_be_woken(&self) -> bool {
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed)
    }
}

/// How many packets of a backlog are done with, for who filled it.
#[derive(Debug, Default)]
pub(crate) struct Head {
    done: AtomicU64,
}

impl Head {
    /// None.
    pub(crate) fn new() -> Self {
        Head { done: AtomicU64::new(0) }
    }

    /// So many more are done with: what they became has been sent. Only one thread at a time may
    /// call it.
    pub(crate) fn publish(&self, packets: u64) {
        // Release: whoever sees the number sees what was sent as sent.
        self.done.store(self.done.load(Ordering::Relaxed) + packets, Ordering::Release);
    }

    /// How many there are.
    #[inline]
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }
}

/// Whether a worker has ended. A backlog given to one that is about to end would never be emptied:
/// it ends and is given backlogs one after the other.
#[derive(Debug)]
pub(crate) struct WorkerLifetime {
    over: Mutex<bool>,
}

impl WorkerLifetime {
    /// It has not ended.
    pub(crate) fn new() -> Self {
        WorkerLifetime { over: Mutex::new(false) }
    }

    /// Gives it something, unless it has ended; says whether it was given.
    pub(crate) fn give(&self, give: impl FnOnce() -> bool) -> bool {
        // While the lock is held it cannot end.
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        !*over && give()
    }

    /// Ends it, unless it has more to do; says whether it has ended.
    pub(crate) fn end(&self, is_done: impl FnOnce() -> bool) -> bool {
        let mut over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        *over = is_done();
        *over
    }
}
