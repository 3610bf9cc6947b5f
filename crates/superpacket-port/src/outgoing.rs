//! The bytes of frames to be sent.
//!
//! One [`Outgoing`] holds the bytes of all frames that are sent through any number of ports until
//! it is cleared. Headers are copied into it, packets' buffers move into it, and the
//! [`TxBatch`](super::TxBatch) of each port refers to both by number. A packet flooded to three
//! ports, whole to one and segmented for two, is therefore stored once.

use std::ops::Range;

use superpacket::segment::Segmentable;
use superpacket::super_packet::SuperPacket;

use super::Buffer;

/// The bytes of frames to be sent, through any number of ports. They are kept until
/// [`clear`](Self::clear).
#[derive(Debug, Default)]
pub struct Outgoing {
    /// Headers, VLAN tags, and all other bytes that were copied.
    pub(super) bytes: Vec<u8>,
    buffers: Vec<Buffer>,
    /// The pieces of the packet that was last [staged](Self::stage).
    pub(super) pieces: Vec<Slice>,
}

impl Outgoing {
    /// Creates an empty `Outgoing`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Prepares `packet` for being pushed to any number of batches, whole or in segments. After all
    /// of its frames have been pushed, call [`keep`](Self::keep).
    pub fn stage(&mut self, packet: &SuperPacket<'_, Buffer>) {
        self.pieces.clear();
        let mut place = self.buffers.len() as u32;
        for (index, piece) in packet.pieces().iter().enumerate() {
            if piece.has_buffer() {
                self.pieces.push(Slice {
                    place,
                    start: piece.start() as u32,
                    length: piece.length() as u32,
                });
                place += 1;
            } else {
                let copied = self.own(packet.range(index));
                self.pieces.push(copied);
            }
        }
    }

    /// Takes the buffers of the staged packet, and keeps them until [`clear`](Self::clear).
    pub fn keep(&mut self, packet: &mut SuperPacket<'_, Buffer>) {
        self.buffers.extend(packet.take_pieces().filter_map(|piece| piece.into_buffer()));
    }

    /// Removes all bytes and releases the buffers. Call it after all frames are sent.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.buffers.clear();
        self.pieces.clear();
    }

    /// Returns the number of buffers kept.
    pub fn buffers(&self) -> usize {
        self.buffers.len()
    }

    /// Returns the bytes of a slice.
    #[inline]
    pub fn slice(&self, slice: Slice) -> &[u8] {
        let bytes = if slice.place == Slice::OWN {
            &self.bytes[..]
        } else {
            self.buffers[slice.place as usize].bytes()
        };
        &bytes[slice.start as usize..][..slice.length()]
    }

    /// Appends a copy of `bytes` to `self.bytes`, and returns the slice of the copy.
    pub(super) fn own(&mut self, bytes: &[u8]) -> Slice {
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(bytes);
        Slice { place: Slice::OWN, start, length: bytes.len() as u32 }
    }
}

/// A contiguous range of bytes in an [`Outgoing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    pub(super) place: u32,
    pub(super) start: u32,
    pub(super) length: u32,
}

impl Slice {
    /// Value of `place` for bytes that were copied into the `Outgoing`. Any other value is the
    /// number of a received buffer.
    pub(super) const OWN: u32 = u32::MAX;

    /// Returns the length in bytes.
    #[inline]
    pub const fn length(self) -> usize {
        self.length as usize
    }

    /// Returns whether the bytes lie in the buffer in which they were received, and are not a copy.
    #[inline]
    pub const fn is_received(self) -> bool {
        self.place != Slice::OWN
    }

    pub(super) fn part(self, range: Range<usize>) -> Slice {
        Slice {
            place: self.place,
            start: self.start + range.start as u32,
            length: range.len() as u32,
        }
    }
}
