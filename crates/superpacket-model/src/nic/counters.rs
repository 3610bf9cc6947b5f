//! The counters of a model NIC.

use std::sync::{Arc, Mutex};

use crate::memory::lock;

/// The counters of a model NIC since it was opened.
///
/// For received frames, `rx_frames = rx_delivered + rx_ring_drops + rx_no_buffer + rx_too_long`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicCounters {
    /// Frames that arrived from the wire, including those that were then dropped.
    pub rx_frames: u64,
    /// Bytes of the frames that arrived, including padding and VLAN tags.
    pub rx_bytes: u64,
    /// Number of received frames put into a ring.
    pub rx_delivered: u64,
    /// Number of buffers that the frames put into a ring occupy.
    pub rx_buffers: u64,
    /// Number of bytes copied into buffers.
    pub rx_copied: u64,
    /// Number of pages that the card began to fill; with linear buffers, the number of buffers.
    pub rx_pages: u64,
    /// Frames dropped because a ring was full.
    pub rx_ring_drops: u64,
    /// Frames dropped because no buffer was free.
    pub rx_no_buffer: u64,
    /// Frames dropped because they were longer than the MTU allows.
    pub rx_too_long: u64,
    /// Packets of the wrapped port that could not be turned into wire frames: super-packets with
    /// inconsistent metadata.
    pub rx_malformed: u64,
    /// Super-packets of the wrapped port that were segmented on arrival.
    pub rx_cut: u64,
    /// Received frames whose checksum was filled in, including segments of super-packets.
    pub rx_filled: u64,
    /// Number of received frames that were padded.
    pub rx_padded: u64,
    /// Received frames whose VLAN tag the card stripped.
    pub rx_stripped: u64,
    /// Number of received frames whose headers were parsed.
    pub rx_parsed: u64,
    /// Number of correct checksums in received frames.
    pub sums_verified: u64,
    /// Number of received frames with a wrong checksum.
    pub sums_wrong: u64,
    /// Received frames delivered with the checksum of all bytes after the Ethernet header.
    pub sums_complete: u64,
    /// Number of frames sent to the wire.
    pub tx_frames: u64,
    /// Bytes of the frames sent to the wire.
    pub tx_bytes: u64,
    /// Super-packets segmented on transmission (TSO and USO).
    pub tx_cut: u64,
    /// Number of segments of the super-packets in `tx_cut`.
    pub tx_segments: u64,
    /// Sent frames whose partial checksum was filled in, not counting segments of super-packets.
    pub tx_filled: u64,
    /// Sends refused because a packet requests an offload that the card lacks, or exceeds a limit
    /// of the card.
    pub tx_refused: u64,
    /// Frames lost after the card had accepted them: the wrapped port refused them, or went down.
    pub tx_lost: u64,
}

impl NicCounters {
    /// Adds the counts of the receiving side since its previous call. `pages` is not an increment,
    /// but the total for `rx_pages`.
    pub(super) fn add_received(&mut self, more: &NicCounters, pages: u64) {
        self.rx_frames += more.rx_frames;
        self.rx_bytes += more.rx_bytes;
        self.rx_delivered += more.rx_delivered;
        self.rx_buffers += more.rx_buffers;
        self.rx_copied += more.rx_copied;
        self.rx_pages = pages;
        self.rx_ring_drops += more.rx_ring_drops;
        self.rx_no_buffer += more.rx_no_buffer;
        self.rx_too_long += more.rx_too_long;
        self.rx_malformed += more.rx_malformed;
        self.rx_cut += more.rx_cut;
        self.rx_filled += more.rx_filled;
        self.rx_padded += more.rx_padded;
        self.rx_stripped += more.rx_stripped;
        self.rx_parsed += more.rx_parsed;
        self.sums_verified += more.sums_verified;
        self.sums_wrong += more.sums_wrong;
        self.sums_complete += more.sums_complete;
    }
}

/// A handle that reads a model NIC's counters while the NIC is in use.
#[derive(Clone, Debug, Default)]
pub struct NicMonitor(Arc<Mutex<NicCounters>>);

impl NicMonitor {
    /// Returns the current counters.
    pub fn counters(&self) -> NicCounters {
        *lock(&self.0)
    }

    /// Updates the counters under their lock, and returns the closure's result.
    pub(super) fn count<T>(&self, count: impl FnOnce(&mut NicCounters) -> T) -> T {
        count(&mut lock(&self.0))
    }
}
