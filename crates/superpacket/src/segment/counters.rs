//! Counters of a segmenter.

use super::SegmentError;

/// The counters of a segmenter.
///
/// `packets = cut + passed + refused`, and `payload_in = payload_out`. Both hold after every call,
/// successful or not.
///
/// A packet that is written in [portions](super::Portion) counts with its last portion. The
/// segments and the payload count with each portion.
///
/// A packet whose segments did not all fit into the [buffers](super::SegmentBuffers) counts as
/// refused. `segments` and `payload_out` count the segments that were written, and `payload_in`
/// counts their payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentCounters {
    /// Number of packets received for segmentation.
    pub packets: u64,
    /// Packets that were segmented or fragmented, including those that gave a single segment.
    pub cut: u64,
    /// Number of packets that were delivered unchanged, because they were not super-packets or
    /// fitted the MTU.
    pub passed: u64,
    /// Number of segments, fragments and unchanged packets that were delivered, including those of
    /// a packet that was only partly written.
    pub segments: u64,
    /// Number of payload bytes of the packets that were segmented or delivered unchanged, and of
    /// the written part of refused ones. The payload is what follows all headers; for fragments,
    /// what follows the IP header.
    pub payload_in: u64,
    /// Number of payload bytes in the delivered segments, added up segment by segment.
    pub payload_out: u64,
    /// Number of packets refused, by [`SegmentError::number`].
    pub errors: [u64; SegmentError::COUNT],
}

impl SegmentCounters {
    /// Returns the number of refused packets, whatever the error.
    pub fn refused(&self) -> u64 {
        self.errors.iter().sum()
    }

    /// Returns whether the counters [balance](Self).
    pub fn balanced(&self) -> bool {
        self.packets == self.cut + self.passed + self.refused()
            && self.payload_in == self.payload_out
    }
}
