//! A bell that wakes a thread which sleeps until one of its descriptors is readable.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use super::protocol::Sleep;

/// A thread's doorbell. Other threads ring it to wake the thread when they have given that thread
/// work. Only the first ring costs a system call, and only if the thread sleeps.
#[derive(Debug)]
pub(crate) struct Doorbell {
    sleep: Sleep,
    event: OwnedFd,
    /// Number of times that the thread was woken for packets. In the kernel's RPS, an
    /// inter-processor interrupt takes the place of a wake-up.
    rung: AtomicU64,
}

impl Doorbell {
    /// Creates the doorbell of a thread that is awake.
    ///
    /// # Errors
    /// The error of the operating system if it cannot provide a descriptor.
    pub(crate) fn new() -> std::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Doorbell { sleep: Sleep::new(), event, rung: AtomicU64::new(0) })
    }

    /// Wakes the thread that owns the doorbell if it sleeps, and returns whether it slept. The
    /// caller must have stored the work before, where that thread looks for it.
    #[inline]
    pub(crate) fn ring(&self) -> bool {
        let sleeps = self.sleep.must_be_woken();
        if sleeps {
            self.rung.fetch_add(1, Ordering::Relaxed);
            self.force();
        }
        sleeps
    }

    /// Wakes the thread that owns the doorbell, or makes its next wait return at once.
    pub(crate) fn force(&self) {
        // The write fails only if the counter is full, and then the thread wakes anyway.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Marks the thread as about to sleep. After this call the thread must look for work once more.
    pub(crate) fn fall_asleep(&self) {
        self.sleep.fall_asleep();
    }

    /// Marks the thread as awake.
    pub(crate) fn awake(&self) {
        self.sleep.awake();
    }

    /// Clears the doorbell, so that an old ring does not end the next wait.
    pub(crate) fn silence(&self) {
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
    }

    /// Returns the number of times that the thread was woken for packets.
    pub(crate) fn rung(&self) -> u64 {
        self.rung.load(Ordering::Relaxed)
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
