//! What a queue counts itself.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters that one thread at a time changes.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Frames left out because their descriptors made no sense.
    pub(super) malformed: AtomicU64,
    /// Frames sent from the chunks that they were received in.
    pub(super) sent_in_place: AtomicU64,
    /// Frames sent from chunks that they were copied to.
    pub(super) sent_by_copy: AtomicU64,
    /// Frames sent from both: what was received from its chunks, the rest copied.
    pub(super) sent_gathered: AtomicU64,
    /// Bytes that were copied to chunks.
    pub(super) bytes_copied: AtomicU64,
    /// Times that a frame found no room, or that the device dropped one because its queue was full.
    pub(super) tx_full: AtomicU64,
    /// Frames refused because something was left to the device that it cannot do.
    pub(super) tx_refused: AtomicU64,
    /// System calls that made the kernel look at the TX ring.
    pub(super) tx_wakeups: AtomicU64,
    /// System calls that made the kernel look at the fill ring.
    pub(super) rx_wakeups: AtomicU64,
}

impl Counts {
    /// Adds to one of them.
    pub(super) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}
