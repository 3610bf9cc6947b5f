//! What the ends of a packet port share: its name, and what they count.

use std::sync::atomic::{AtomicU64, Ordering};

use superpacket::virtio::VirtioError;

/// What the ends of a port share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) name: String,
    pub(super) counters: Counters,
}

/// As [`PortCounters`](crate::PortCounters).
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// By receive queue.
    pub(super) rx_dropped: Vec<AtomicU64>,
    pub(super) rx_errors: AtomicU64,
    pub(super) tx_full: AtomicU64,
    pub(super) tx_refused: AtomicU64,
}

impl Counters {
    /// Packets of a receive queue that found no room, or were longer than it has.
    #[cold]
    pub(super) fn dropped(&self, queue: u16, packets: u64) {
        if let Some(dropped) = self.rx_dropped.get(usize::from(queue)) {
            dropped.fetch_add(packets, Ordering::Relaxed);
        }
    }

    /// A virtio header that contradicts its frame.
    #[cold]
    pub(super) fn malformed(&self, error: &VirtioError) {
        tracing::debug!(%error, "a received frame is left out");
        self.rx_errors.fetch_add(1, Ordering::Relaxed);
    }
}
