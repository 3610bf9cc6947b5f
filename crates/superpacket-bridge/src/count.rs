//! A counter that several threads increment.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that only increases.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Adds `more` to the counter, which other threads may increment at the same time.
    #[inline]
    pub(crate) fn add(&self, more: u64) {
        if more != 0 {
            self.0.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Returns the current value.
    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
