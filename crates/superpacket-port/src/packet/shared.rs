//! State shared by the ends of a packet port: its name and counters.

use std::sync::atomic::{AtomicU64, Ordering};

use superpacket::virtio::VirtioError;

use crate::counters::SharedCounters;

/// State shared by the receiving and the sending ends of a packet port.
#[derive(Debug)]
pub(super) struct PacketShared {
    pub(super) name: String,
    pub(super) counters: PacketCounters,
}

/// The counters that a packet port reports as [`PortCounters`](crate::PortCounters).
#[derive(Debug, Default)]
pub(super) struct PacketCounters {
    /// Number of dropped packets of each receive queue.
    pub(super) rx_dropped: Vec<AtomicU64>,
    pub(super) common: SharedCounters,
}

impl PacketCounters {
    /// Counts packets of a receive queue that were dropped because they found no room, or were too
    /// long.
    #[cold]
    pub(super) fn dropped(&self, queue: u16, packets: u64) {
        if let Some(dropped) = self.rx_dropped.get(usize::from(queue)) {
            dropped.fetch_add(packets, Ordering::Relaxed);
        }
    }

    /// Counts and logs a received frame that contradicts its virtio header.
    #[cold]
    pub(super) fn malformed(&self, error: &VirtioError) {
        tracing::debug!(%error, "a received frame is left out");
        self.common.count_rx_error();
    }
}
