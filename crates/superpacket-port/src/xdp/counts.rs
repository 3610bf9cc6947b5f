//! The counters that a queue of an AF_XDP port keeps itself, in addition to those of the kernel.

use std::sync::atomic::{AtomicU64, Ordering};

/// The counters of one queue. Only one thread at a time changes a counter.
#[derive(Debug, Default)]
pub(super) struct XdpCounts {
    /// Frames skipped because their descriptors were invalid.
    pub(super) malformed: AtomicU64,
    /// Frames sent from the chunks in which they were received.
    pub(super) sent_in_place: AtomicU64,
    /// Frames that were copied to other chunks, and sent from there.
    pub(super) sent_by_copy: AtomicU64,
    /// Frames sent partly from the chunks in which they were received, and partly from copies.
    pub(super) sent_gathered: AtomicU64,
    /// Number of bytes copied to chunks.
    pub(super) bytes_copied: AtomicU64,
    /// Number of times that there was no room to send a frame, or that the device dropped one
    /// because its queue was full.
    pub(super) tx_full: AtomicU64,
    /// Frames refused because they need an offload that the port lacks.
    pub(super) tx_refused: AtomicU64,
    /// System calls that made the kernel process the TX ring.
    pub(super) tx_wakeups: AtomicU64,
    /// System calls that made the kernel process the fill ring.
    pub(super) rx_wakeups: AtomicU64,
}

impl XdpCounts {
    /// Adds `count` to a counter.
    pub(super) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}
