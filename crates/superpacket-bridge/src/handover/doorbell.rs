//! A bell that wakes a thread that waits for descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use super::protocol::Sleep;

/// A thread's bell: rung only if the thread sleeps, by one write for all who have work for it.
#[derive(Debug)]
pub(crate) struct Doorbell {
    sleep: Sleep,
    event: OwnedFd,
    /// How often it was rung for packets: what the kernel sends an inter-processor interrupt for.
    rung: AtomicU64,
}

impl Doorbell {
    /// A bell of a thread that is awake.
    ///
    /// # Errors
    /// What the system says if it gives no descriptor.
    pub(crate) fn new() -> std::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Doorbell { sleep: Sleep::new(), event, rung: AtomicU64::new(0) })
    }

    /// Wakes the thread if it sleeps; says whether it did. To be called when the work is where the
    /// thread looks for it.
    #[inline]
    pub(crate) fn ring(&self) -> bool {
        let sleeps = self.sleep.must_be_woken();
        if sleeps {
            self.rung.fetch_add(1, Ordering::Relaxed);
            self.force();
        }
        sleeps
    }

    /// Wakes the thread, or keeps it from sleeping next time.
    pub(crate) fn force(&self) {
        // A full counter wakes as well.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// The thread is about to sleep, and must look for work again.
    pub(crate) fn fall_asleep(&self) {
        self.sleep.fall_asleep();
    }

    /// The thread is awake.
    pub(crate) fn awake(&self) {
        self.sleep.awake();
    }

    /// The bell has been heard.
    pub(crate) fn silence(&self) {
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
    }

    /// How often it was rung for packets.
    pub(crate) fn rung(&self) -> u64 {
        self.rung.load(Ordering::Relaxed)
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
