//! A batch of packets that own their headers and buffers, for a queue between two threads.

use alloc::vec::Vec;
use core::fmt;

use crate::memory::InBuffers;
use crate::super_packet::{Metadata, Piece, SuperPacket};

/// Packets in order, with their headers and buffers. One thread fills the batch, another empties
/// it, and it is used again.
///
/// A packet that a sink receives borrows the aggregator's memory. A batch copies its header and
/// moves its buffers into arrays that are read in the order of writing, and need no allocation when
/// the batch is used again.
///
/// ```
/// use superpacket::{Aggregator, HashKey, PacketBatch, Policy, RxPacket, SuperPacket};
///
/// let mut aggregator = Aggregator::new(Policy::gro(), HashKey::new(42));
/// let mut batch = PacketBatch::new();
/// let mut sink = |mut packet: SuperPacket<'_, _>| batch.push(&mut packet);
/// aggregator.receive(RxPacket::new(vec![7; 60]), 0, &mut sink);
/// aggregator.flush_all(&mut sink);
/// assert_eq!(batch.len(), 1);
/// assert_eq!(batch.next_packet().map(|packet| packet.length()), Some(60));
/// assert!(batch.next_packet().is_none());
/// ```
pub struct PacketBatch<B> {
    entries: Vec<BatchEntry>,
    /// Payload pieces of all packets in order; `None` for those of packets that
    /// [`next_packet`](Self::next_packet) has returned.
    pieces: Vec<Option<Piece<B>>>,
    /// Bytes of all packets in order: for each packet its rewritten header, then its linear storage
    /// (all bytes of the packet, if the policy has them copied).
    bytes: Vec<u8>,
    /// Payload pieces of the packet that the caller borrows at present.
    lent: Vec<Piece<B>>,
    /// Index in `entries` of the next packet to be returned; `next_piece` and `next_byte` are where
    /// its pieces and bytes begin.
    next: usize,
    next_piece: usize,
    next_byte: usize,
}

/// Number of packets ahead of the current one whose memory is prefetched. With a smaller number,
/// the cache line has not yet arrived from the other core.
const PREFETCH_AHEAD: usize = 8;

#[derive(Debug)]
struct BatchEntry {
    metadata: Metadata,
    pieces: u32,
    header: u32,
    linear: u32,
}

impl<B> PacketBatch<B> {
    /// Makes an empty batch.
    pub const fn new() -> Self {
        PacketBatch {
            entries: Vec::new(),
            pieces: Vec::new(),
            bytes: Vec::new(),
            lent: Vec::new(),
            next: 0,
            next_piece: 0,
            next_byte: 0,
        }
    }

    /// Appends a packet: moves its buffers, and copies its metadata, header and linear storage. The
    /// packet has no pieces afterwards.
    #[inline]
    pub fn push<M>(&mut self, packet: &mut SuperPacket<'_, B, M>) {
        let entry = BatchEntry {
            metadata: packet.metadata,
            pieces: packet.pieces.len() as u32,
            header: packet.header.len() as u32,
            linear: packet.linear.len() as u32,
        };
        self.bytes.extend_from_slice(packet.header);
        self.bytes.extend_from_slice(packet.linear);
        self.pieces.extend(packet.pieces.drain(..).map(Some));
        self.entries.push(entry);
        // Another core used this memory last.
        if let Some(next) = self.entries.spare_capacity_mut().get(PREFETCH_AHEAD) {
            superpacket_simd::prefetch_write(next);
        }
        if let Some(next) = self.pieces.spare_capacity_mut().get(PREFETCH_AHEAD) {
            superpacket_simd::prefetch_write(next);
        }
    }

    /// Returns how many packets are left.
    #[inline]
    pub fn len(&self) -> usize {
        self.entries.len() - self.next
    }

    /// Returns whether no packet is left.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the next packet, the oldest that is left; it borrows the batch. Buffers that are not
    /// taken from it are dropped by the next call, or by [`clear`](Self::clear).
    #[inline]
    pub fn next_packet(&mut self) -> Option<SuperPacket<'_, B>> {
        self.next_in(InBuffers)
    }

    /// Returns the next packet as [`next_packet`](Self::next_packet) does. The bytes of its buffers
    /// are found through `memory`.
    #[inline]
    pub(crate) fn next_in<M>(&mut self, memory: M) -> Option<SuperPacket<'_, B, M>> {
        self.lent.clear();
        let entry = self.entries.get(self.next)?;
        self.next += 1;
        let pieces = self.next_piece..self.next_piece + entry.pieces as usize;
        self.next_piece = pieces.end;
        self.lent.extend(self.pieces.get_mut(pieces)?.iter_mut().filter_map(Option::take));
        let header = self.next_byte..self.next_byte + entry.header as usize;
        let linear = header.end..header.end + entry.linear as usize;
        self.next_byte = linear.end;
        Some(SuperPacket {
            metadata: entry.metadata,
            header: self.bytes.get(header)?,
            pieces: &mut self.lent,
            linear: self.bytes.get(linear)?,
            memory,
        })
    }

    /// Removes the packets that [`next_packet`](Self::next_packet) has returned, and moves the
    /// others to the front.
    #[cold]
    pub(crate) fn forget_taken(&mut self) {
        self.entries.drain(..self.next);
        self.pieces.drain(..self.next_piece);
        self.bytes.drain(..self.next_byte);
        (self.next, self.next_piece, self.next_byte) = (0, 0, 0);
    }

    /// Puts back the packet that was returned last, with the pieces left in it, so that it is the
    /// next packet again. If it had pieces and all were taken, it is not put back.
    pub(crate) fn take_back(&mut self) {
        let Some(entry) = self.entries.get(self.next.wrapping_sub(1)) else { return };
        let first_piece = self.next_piece - entry.pieces as usize;
        if self.lent.is_empty() && entry.pieces != 0 {
            return;
        }
        self.next -= 1;
        self.next_byte -= (entry.header + entry.linear) as usize;
        self.next_piece = first_piece;
        for (place, piece) in self.pieces.iter_mut().skip(first_piece).zip(self.lent.drain(..)) {
            *place = Some(piece);
        }
    }

    /// Removes all packets, drops their buffers, and keeps the memory.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.pieces.clear();
        self.bytes.clear();
        self.lent.clear();
        (self.next, self.next_piece, self.next_byte) = (0, 0, 0);
    }
}

impl<B> Default for PacketBatch<B> {
    fn default() -> Self {
        PacketBatch::new()
    }
}

impl<B> fmt::Debug for PacketBatch<B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PacketBatch").field("packets", &self.len()).finish_non_exhaustive()
    }
}
