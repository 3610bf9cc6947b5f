//! All that can be seen of a packet that leaves, to compare two ways of receiving.

use superpacket::memory::Memory;
use superpacket::{Metadata, Reason, SuperPacket};

/// What can be seen of a packet that leaves.
#[derive(Clone, PartialEq, Eq)]
pub struct Seen {
    pub bytes: Vec<u8>,
    pub metadata: Metadata,
    /// Bytes of rewritten headers.
    pub header: usize,
    /// Of each piece: whether it has a buffer, start, length, payload sum.
    pub pieces: Vec<(bool, usize, usize, Option<u16>)>,
}

/// Without all the bytes.
impl std::fmt::Debug for Seen {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Metadata { reason, packets, checksum, gso, time, .. } = self.metadata;
        let pieces = self.pieces.len();
        write!(
            formatter,
            "{} bytes, {packets} packets, {reason:?}, {checksum:?}, {gso:?}, at {time}, {pieces} pieces",
            self.bytes.len()
        )
    }
}

impl Seen {
    pub fn of<B, M: Memory<B>>(packet: &SuperPacket<'_, B, M>) -> Self {
        let mut bytes = Vec::new();
        packet.copy_to(&mut bytes);
        assert_eq!(bytes.len(), packet.length());
        if let Some(contiguous) = packet.contiguous() {
            assert_eq!(contiguous, bytes);
        }
        let pieces = packet
            .pieces()
            .iter()
            .map(|piece| (piece.has_buffer(), piece.start(), piece.length(), piece.segment_sum()));
        Seen {
            bytes,
            metadata: packet.metadata,
            header: packet.header().len(),
            pieces: pieces.collect(),
        }
    }

    /// As it is if its packet comes alone in a call, which does not look at it and leaves it where
    /// it lies.
    pub fn alone(mut self) -> Self {
        self.pieces.clear();
        (self.metadata.reason, self.metadata.layout, self.metadata.largest_payload) =
            (Reason::Alone, None, 0);
        self
    }
}
