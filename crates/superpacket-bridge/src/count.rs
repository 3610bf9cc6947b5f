//! A number that threads count by.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Adds to it.
    #[inline]
    pub(crate) fn add(&self, more: u64) {
        if more != 0 {
            self.0.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// What it is now.
    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
