//! Single and merged packets as the aggregator delivers them and the segmenter takes them: a
//! header, and payload in ranges of buffers.

use alloc::vec::Vec;
use core::mem::{self, offset_of};
use core::slice;

use crate::memory::{InBuffers, Memory};
use crate::packet::{FlowHash, Layer, RxChecksum, STEERING_UNIT, VlanTag};
use crate::reason::Reason;
use crate::segment::{Gso, Segmentable};
use crate::wire::Layout;

/// A part of a packet: a range of one buffer.
#[derive(Debug)]
pub struct Piece<B> {
    /// The buffer that holds the bytes; `None` if they were copied into the packet's linear
    /// storage.
    pub(crate) buffer: Option<B>,
    pub(crate) start: u32,
    pub(crate) length: u32,
    /// One's-complement sum of the payload of the received packet that starts with this piece, if
    /// `flags` has `SUM`.
    pub(crate) sum: u16,
    pub(crate) flags: u8,
}

impl<B> Piece<B> {
    /// Flag: the piece is the first of a received packet's payload.
    pub(crate) const FIRST: u8 = 1;
    /// Flag of a piece with `FIRST`: `sum` is the one's-complement sum of the received packet's
    /// payload, which extends from this piece to the next one with `FIRST`.
    pub(crate) const SUM: u8 = 2;

    /// Returns the buffer, if the piece has its own.
    #[inline]
    pub fn into_buffer(self) -> Option<B> {
        self.buffer
    }

    /// Returns a reference to the buffer, if the piece has its own.
    #[inline]
    pub const fn buffer(&self) -> Option<&B> {
        self.buffer.as_ref()
    }

    /// Returns whether the piece lies in a buffer of its own, rather than in linear storage.
    #[inline]
    pub const fn has_buffer(&self) -> bool {
        self.buffer.is_some()
    }

    /// Returns the offset of the piece in its buffer, in bytes.
    #[inline]
    pub const fn start(&self) -> usize {
        self.start as usize
    }

    /// Returns the length of the piece in bytes.
    #[inline]
    pub const fn length(&self) -> usize {
        self.length as usize
    }

    /// Returns the sum of the received packet's payload that starts with this piece, if it is
    /// known.
    #[inline]
    pub const fn segment_sum(&self) -> Option<u16> {
        if self.flags & (Self::FIRST | Self::SUM) == (Self::FIRST | Self::SUM) {
            Some(self.sum)
        } else {
            None
        }
    }

    /// Returns the bytes of the piece: a range of its buffer, which `memory` finds, or of `linear`.
    #[inline(always)]
    pub(crate) fn bytes<'a>(&'a self, memory: &'a impl Memory<B>, linear: &'a [u8]) -> &'a [u8] {
        let whole = match &self.buffer {
            Some(buffer) => memory.bytes(buffer),
            None => linear,
        };
        let start = self.start as usize;
        whole.get(start..start + self.length as usize).unwrap_or(&[])
    }
}

/// Metadata of a packet that leaves the aggregator.
///
/// The first 16 bytes hold all that steering reads of a packet with a device's hash, as in
/// [`RxPacket`](crate::packet::RxPacket).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// The order of the fields matters: a number follows each field that ends in padding. Otherwise
// compilers copy the padding and the next field in words of another size, which stall.
#[repr(C, align(16))]
#[non_exhaustive]
pub struct Metadata {
    /// The flow hash that the device computed, if it did.
    pub hash: Option<FlowHash>,
    /// Number of the receive queue from which the packet came.
    pub queue: u16,
    /// Layer at which the packet starts.
    pub layer: Layer,
    /// The reason why the packet left the aggregator.
    pub reason: Reason,
    /// Number of received packets that this packet consists of, absorbed ACKs included. A received
    /// super-packet counts once.
    pub packets: u32,
    /// Offsets of the packet's headers, if the engine understood them.
    pub layout: Option<Layout>,
    /// What is known about the packet's checksums: verified, partial, or nothing.
    pub checksum: RxChecksum,
    /// The VLAN tag that the device stripped.
    pub vlan: Option<VlanTag>,
    /// How to segment the packet. `None` for a single packet that did not come as a super-packet,
    /// for merged ACKs, and for packets that LRO merged.
    pub gso: Option<Gso>,
    /// Number of pure ACKs that were merged into this packet. A consumer that counts ACKs for its
    /// congestion window adds them.
    pub absorbed_acks: u32,
    /// Time at which the last received packet in this packet arrived, in nanoseconds.
    pub time: u64,
    /// Largest payload of a received packet in this packet, in bytes; 0 if not known.
    pub largest_payload: u32,
}

const _: () = {
    assert!(align_of::<Metadata>().is_multiple_of(STEERING_UNIT));
    assert!(offset_of!(Metadata, hash) + size_of::<Option<FlowHash>>() <= STEERING_UNIT);
    assert!(offset_of!(Metadata, queue) + size_of::<u16>() <= STEERING_UNIT);
    assert!(offset_of!(Metadata, layer) + size_of::<Layer>() <= STEERING_UNIT);
    assert!(offset_of!(Metadata, packets) + size_of::<u32>() <= STEERING_UNIT);
};

/// A single or merged packet: its own header bytes, and payload as ranges of the buffers that it
/// came in.
///
/// The frame is [`header`](Self::header) followed by [`payload`](Self::payload). A packet that did
/// not merge has an empty header and its buffers as they came: no byte has changed.
///
/// `M` finds the bytes of a buffer `B`: in the buffer itself, unless the packet was borrowed for a
/// poll.
#[derive(Debug)]
pub struct SuperPacket<'a, B, M = InBuffers> {
    /// The packet's metadata.
    pub metadata: Metadata,
    pub(crate) header: &'a [u8],
    pub(crate) pieces: &'a mut Vec<Piece<B>>,
    pub(crate) linear: &'a [u8],
    pub(crate) memory: M,
}

impl<'a, B, M> SuperPacket<'a, B, M> {
    /// Returns the rewritten headers of a merged packet; an empty slice for an unchanged packet.
    #[inline]
    pub fn header(&self) -> &[u8] {
        self.header
    }

    /// Returns the length of the packet in bytes.
    #[inline]
    pub fn length(&self) -> usize {
        self.header.len() + self.pieces.iter().map(Piece::length).sum::<usize>()
    }

    /// Returns the pieces of the payload.
    #[inline]
    pub fn pieces(&self) -> &[Piece<B>] {
        self.pieces
    }

    /// Takes the pieces out with their buffers, for a consumer that keeps them until it has sent
    /// them. Linear storage stays in the packet.
    #[inline]
    pub fn take_pieces(&mut self) -> impl Iterator<Item = Piece<B>> + '_ {
        self.pieces.drain(..)
    }

    /// Returns whether the packet consists of more than one received packet.
    #[inline]
    pub fn is_merged(&self) -> bool {
        self.metadata.packets > 1
    }

    /// Returns the same packet, with `memory` to find the bytes of its buffers.
    #[inline(always)]
    pub(crate) fn with_memory<N>(self, memory: N) -> SuperPacket<'a, B, N> {
        let SuperPacket { metadata, header, pieces, linear, memory: _ } = self;
        SuperPacket { metadata, header, pieces, linear, memory }
    }
}

impl<'a, B, M: Memory<B>> SuperPacket<'a, B, M> {
    /// Returns the bytes after the header, in order; for an unchanged packet, its buffers.
    #[inline]
    pub fn payload(&self) -> impl Iterator<Item = &[u8]> + Clone {
        Slices {
            header: &[],
            pieces: self.pieces.iter(),
            linear: self.linear,
            memory: &self.memory,
        }
    }

    /// Returns all bytes in order: the header, if there is one, and the payload.
    #[inline]
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> + Clone {
        Slices {
            header: self.header,
            pieces: self.pieces.iter(),
            linear: self.linear,
            memory: &self.memory,
        }
    }

    /// Returns the whole packet as one slice, if it is contiguous: in linear storage, or a single
    /// packet of one buffer.
    pub fn contiguous(&self) -> Option<&[u8]> {
        match self.pieces.as_slice() {
            _ if !self.linear.is_empty() => Some(self.linear),
            [piece] if self.header.is_empty() => Some(piece.bytes(&self.memory, self.linear)),
            _ => None,
        }
    }

    /// Appends the whole packet to `out`.
    pub fn copy_to(&self, out: &mut Vec<u8>) {
        self.slices().for_each(|slice| out.extend_from_slice(slice));
    }
}

/// Iterator over the bytes of a packet, in order, without empty slices.
///
/// A hand-written iterator: every sink that lists ranges calls it for each packet, and most builds
/// do not inline nested adapters.
struct Slices<'a, B, M> {
    /// The header; empty once it has been returned.
    header: &'a [u8],
    pieces: slice::Iter<'a, Piece<B>>,
    linear: &'a [u8],
    memory: &'a M,
}

impl<'a, B, M: Memory<B>> Iterator for Slices<'a, B, M> {
    type Item = &'a [u8];

    #[inline(always)]
    fn next(&mut self) -> Option<&'a [u8]> {
        if !self.header.is_empty() {
            return Some(mem::take(&mut self.header));
        }
        loop {
            let bytes = self.pieces.next()?.bytes(self.memory, self.linear);
            if !bytes.is_empty() {
                return Some(bytes);
            }
        }
    }

    #[inline(always)]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (
            usize::from(!self.header.is_empty()),
            Some(usize::from(!self.header.is_empty()) + self.pieces.len()),
        )
    }
}

// Not derived: a derived `Clone` would require that buffers can be cloned.
impl<B, M> Clone for Slices<'_, B, M> {
    #[inline]
    fn clone(&self) -> Self {
        Slices {
            header: self.header,
            pieces: self.pieces.clone(),
            linear: self.linear,
            memory: self.memory,
        }
    }
}

impl<B, M: Memory<B>> Segmentable for SuperPacket<'_, B, M> {
    #[inline]
    fn layer(&self) -> Layer {
        self.metadata.layer
    }

    #[inline]
    fn gso(&self) -> Option<Gso> {
        self.metadata.gso
    }

    #[inline]
    fn checksum(&self) -> RxChecksum {
        self.metadata.checksum
    }

    #[inline]
    fn header(&self) -> &[u8] {
        self.header
    }

    #[inline]
    fn ranges(&self) -> usize {
        self.pieces.len()
    }

    #[inline]
    fn range_length(&self, index: usize) -> usize {
        self.pieces.get(index).map_or(0, Piece::length)
    }

    #[inline]
    fn range(&self, index: usize) -> &[u8] {
        self.pieces.get(index).map_or(&[], |piece| piece.bytes(&self.memory, self.linear))
    }

    #[inline]
    fn payload_sum(&self, index: usize) -> Option<u16> {
        self.pieces.get(index).and_then(Piece::segment_sum)
    }

    #[inline]
    fn starts_payload(&self, index: usize) -> bool {
        self.pieces.get(index).is_some_and(|piece| piece.flags & Piece::<B>::FIRST != 0)
    }
}

/// Takes the packets that the aggregator emits.
///
/// A packet borrows the aggregator's memory: the sink copies it, sends it, or takes its buffers
/// before it returns.
///
/// Closures are sinks if they return `()` or a `Result<(), E>`. An error ends the aggregator's
/// call, which returns it. No packet is lost: the next call that emits gives the refused packet
/// first, unless the sink took its pieces.
pub trait Sink<B> {
    /// The result of the sink for each packet, and of the aggregator for the call: `()` or a
    /// `Result`.
    type Outcome: Outcome;

    /// Takes one packet.
    fn receive(&mut self, packet: SuperPacket<'_, B>) -> Self::Outcome;
}

impl<B, O: Outcome, F: FnMut(SuperPacket<'_, B>) -> O + ?Sized> Sink<B> for F {
    type Outcome = O;

    #[inline]
    fn receive(&mut self, packet: SuperPacket<'_, B>) -> O {
        self(packet)
    }
}

/// The result of a sink: `()` if it cannot fail, otherwise a `Result<(), E>`.
pub trait Outcome {
    /// Error of a sink that failed.
    type Error;

    /// Makes an outcome of a result.
    fn from_result(result: Result<(), Self::Error>) -> Self;

    /// Makes a result of the outcome.
    ///
    /// # Errors
    /// The error of a sink that failed.
    fn into_result(self) -> Result<(), Self::Error>;
}
