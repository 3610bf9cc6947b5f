//! What the card counts.

use std::sync::{Arc, Mutex};

use crate::memory::lock;

/// What a model NIC has done since it was opened.
///
/// Of frames that arrived, `rx_frames = rx_delivered + rx_ring_drops + rx_no_buffer + rx_too_long`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicCounters {
    /// Frames that arrived, as on the wire.
    pub rx_frames: u64,
    /// Their bytes, padding included.
    pub rx_bytes: u64,
    /// Frames put into a ring.
    pub rx_delivered: u64,
    /// Buffers that these took.
    pub rx_buffers: u64,
    /// Bytes copied into buffers.
    pub rx_copied: u64,
    /// Pages begun; of linear buffers, each.
    pub rx_pages: u64,
    /// Frames dropped because a ring was full.
    pub rx_ring_drops: u64,
    /// Frames dropped because all buffers were lent.
    pub rx_no_buffer: u64,
    /// Frames dropped because they were longer than the MTU allows.
    pub rx_too_long: u64,
    /// Packets of the wrapped port that were no frames of a wire and could not be made such:
    /// super-packets that contradict themselves.
    pub rx_malformed: u64,
    /// Super-packets of the wrapped port that were cut.
    pub rx_cut: u64,
    /// Frames whose partial checksum was filled in, or that were cut from a super-packet.
    pub rx_filled: u64,
    /// Frames that were padded.
    pub rx_padded: u64,
    /// Frames whose tag was taken out.
    pub rx_stripped: u64,
    /// Frames whose headers were parsed.
    pub rx_parsed: u64,
    /// Checksums found right.
    pub sums_verified: u64,
    /// Frames with a checksum found wrong.
    pub sums_wrong: u64,
    /// Frames given with the sum of all.
    pub sums_complete: u64,
    /// Frames handed to the wire.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Super-packets cut (TSO and USO).
    pub tx_cut: u64,
    /// Frames that these gave.
    pub tx_segments: u64,
    /// Frames whose partial checksum was filled in, other than those cut.
    pub tx_filled: u64,
    /// Packets refused for what was asked to be done to them: no offload for it, or more than its
    /// limit.
    pub tx_refused: u64,
    /// Frames that the card had taken, and that the wrapped port then refused or was too gone to
    /// take.
    pub tx_lost: u64,
}

impl NicCounters {
    /// Adds what the receiving side has counted since it did so last.
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

/// Reads a model NIC's counters while it is used.
#[derive(Clone, Debug, Default)]
pub struct NicMonitor(Arc<Mutex<NicCounters>>);

impl NicMonitor {
    /// What it has done until now.
    pub fn counters(&self) -> NicCounters {
        *lock(&self.0)
    }

    /// Counts.
    pub(super) fn count<T>(&self, count: impl FnOnce(&mut NicCounters) -> T) -> T {
        count(&mut lock(&self.0))
    }
}
