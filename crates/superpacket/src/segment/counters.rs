//! Counters of a segmenter.

use super::SegmentError;

/// The counters of a segmenter.
///
/// `packets = cut + passed + refused`, and `payload_in = payload_out`. Both hold after every call,
/// whether it succeeded or not.
///
/// A packet that is written in [portions](super::Portion) counts when the last is written, and the
/// segments and payload of each portion when it is.
///
/// A packet whose segments were partly written when the [buffers](super::SegmentBuffers) ended
/// counts as refused. The segments that had been written came out nevertheless: `segments` and
/// `payload_out` count them, and `payload_in` their part of the packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentCounters {
    /// Packets that came in.
    pub packets: u64,
    /// Packets that came out as segments or fragments, also as only one.
    pub cut: u64,
    /// Packets that were no super-packets, or fitted the MTU, and passed whole.
    pub passed: u64,
    /// Segments, fragments and passed packets that came out, those of a partly written packet
    /// included.
    pub segments: u64,
    /// Bytes behind the headers of the packets that were cut or passed (for fragments, behind the
    /// IP header), and of the written part of a refused one.
    pub payload_in: u64,
    /// Bytes behind the headers of the segments that came out, added up segment by segment.
    pub payload_out: u64,
    /// Packets refused, by [`SegmentError::number`].
    pub errors: [u64; SegmentError::COUNT],
}

impl SegmentCounters {
    /// Returns the number of refused packets, whatever the error.
    pub fn refused(&self) -> u64 {
        self.errors.iter().sum()
    }

    /// Returns whether everything that came in has come out or was refused.
    pub fn balanced(&self) -> bool {
        self.packets == self.cut + self.passed + self.refused()
            && self.payload_in == self.payload_out
    }
}
