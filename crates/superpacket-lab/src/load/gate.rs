//! The common start of a load's threads, and their common end after a failure.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

/// A gate at which the threads of a load wait for the start.
#[derive(Default)]
pub(crate) struct Gate {
    start: Mutex<Option<Instant>>,
    opened: Condvar,
    aborted: AtomicBool,
}

impl Gate {
    /// Opens the gate, and returns the start time.
    pub(crate) fn open(&self) -> Instant {
        let now = Instant::now();
        *self.start.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        self.opened.notify_all();
        now
    }

    /// Tells all threads to stop after a failure.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::Relaxed);
        self.open();
    }

    /// Waits until the gate is open, and returns the start time.
    pub(crate) fn wait(&self) -> Instant {
        let mut start = self.start.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(start) = *start {
                return start;
            }
            start = self.opened.wait(start).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns whether a thread of the load has failed.
    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Relaxed)
    }
}

/// A guard that aborts the load when dropped, unless it was disarmed: covers errors and panics.
pub(crate) struct AbortOnFailure<'gate> {
    gate: &'gate Gate,
    succeeded: bool,
}

impl<'gate> AbortOnFailure<'gate> {
    pub(crate) fn new(gate: &'gate Gate) -> Self {
        Self { gate, succeeded: false }
    }

    /// Records success, so that dropping the guard has no effect.
    pub(crate) fn disarm(&mut self) {
        self.succeeded = true;
    }
}

impl Drop for AbortOnFailure<'_> {
    fn drop(&mut self) {
        if !self.succeeded {
            self.gate.abort();
        }
    }
}
