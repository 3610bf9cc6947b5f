//! What went in and came out of a segmenter.

use super::SegmentError;

/// What went in and came out.
///
/// `packets = cut + passed + refused`, and `payload_in = payload_out`: the second is added up
/// segment by segment. Both hold after every call, whether it succeeded or not.
///
/// A packet whose segments were partly written when the [buffers](super::SegmentBuffers) ended is
/// refused, and neither cut nor passed. What had been written came out nevertheless: `segments` and
/// `payload_out` count it, and `payload_in` as much of the packet as went into it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentCounters {
    /// Packets that came in.
    pub packets: u64,
    /// Packets that came out as segments or fragments, be it as one.
    pub cut: u64,
    /// Packets that were no super-packets, or fitted the MTU, and passed whole.
    pub passed: u64,
    /// Segments, fragments and passed packets that came out, those of a packet that was refused
    /// half-way among them.
    pub segments: u64,
    /// Bytes behind the headers of the packets that were cut or passed, and of one that was refused
    /// half-way what had been taken of it. (Behind the IP header, for fragments.)
    pub payload_in: u64,
    /// Bytes behind the headers of what came out.
    pub payload_out: u64,
    /// Packets refused, by [`SegmentError::number`].
    pub errors: [u64; SegmentError::COUNT],
}

impl SegmentCounters {
    /// Packets that were not cut, whatever the error.
    pub fn refused(&self) -> u64 {
        self.errors.iter().sum()
    }

    /// Does everything that came in appear again?
    pub fn balanced(&self) -> bool {
        self.packets == self.cut + self.passed + self.refused() && self.payload_in == self.payload_out
    }
}
