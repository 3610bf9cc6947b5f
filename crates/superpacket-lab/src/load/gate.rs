//! The start of a load: threads wait until all of them are there, and stop together when one fails.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

/// Where the threads of a load wait for the start.
#[derive(Default)]
pub(crate) struct Gate {
    start: Mutex<Option<Instant>>,
    opened: Condvar,
    aborted: AtomicBool,
}

impl Gate {
    /// Lets the waiting threads go, and says when that was.
    pub(crate) fn open(&self) -> Instant {
        let now = Instant::now();
        *self.start.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        self.opened.notify_all();
        now
    }

    /// Tells all threads to end: something failed.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::Relaxed);
        self.open();
    }

    /// Waits for the start, and says when that was.
    pub(crate) fn wait(&self) -> Instant {
        let mut start = self.start.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(start) = *start {
                return start;
            }
            start = self.opened.wait(start).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether a thread of the load failed, so that the others' work is void.
    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Relaxed)
    }
}

/// Aborts the load when dropped, unless told that all went well: covers errors and panics alike.
pub(crate) struct AbortOnFailure<'gate>(pub(crate) &'gate Gate, pub(crate) bool);

impl Drop for AbortOnFailure<'_> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.abort();
        }
    }
}
