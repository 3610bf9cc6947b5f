//! The bytes of what is about to be sent.
//!
//! One [`Outgoing`] serves all ports of a round: headers are copied into it, buffers move into it,
//! and each port's [`TxBatch`](super::TxBatch) refers to both by number. So a packet flooded to
//! three ports, whole to one and cut for two, lies in memory once.

use std::ops::Range;

use superpacket::segment::Segmentable;
use superpacket::super_packet::SuperPacket;

use super::Buffer;

/// The bytes of everything that a round sends.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// Headers, tags, and what had to be copied.
    pub(super) bytes: Vec<u8>,
    buffers: Vec<Buffer>,
    /// The pieces of the packet staged last.
    pub(super) pieces: Vec<Slice>,
}

impl Outgoing {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Prepares for frames made of `packet`: whole or in segments, for any number of batches. When
    /// they are pushed, [`keep`](Self::keep) must follow.
    pub fn stage(&mut self, packet: &SuperPacket<'_, Buffer>) -> Staged {
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
        Staged(())
    }

    /// Takes the buffers of the staged packet, to be kept until [`clear`](Self::clear).
    pub fn keep(&mut self, _staged: Staged, packet: &mut SuperPacket<'_, Buffer>) {
        self.buffers.extend(packet.take_pieces().filter_map(|piece| piece.into_buffer()));
    }

    /// Forgets all, and lets go of the buffers: every send has returned.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.buffers.clear();
        self.pieces.clear();
    }

    /// How many buffers are kept.
    pub fn buffers(&self) -> usize {
        self.buffers.len()
    }

    /// The bytes of a slice.
    #[inline]
    pub fn slice(&self, slice: Slice) -> &[u8] {
        let bytes = if slice.place == Slice::OWN {
            &self.bytes[..]
        } else {
            self.buffers[slice.place as usize].bytes()
        };
        &bytes[slice.start as usize..][..slice.length()]
    }

    /// Copies bytes.
    pub(super) fn own(&mut self, bytes: &[u8]) -> Slice {
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(bytes);
        Slice { place: Slice::OWN, start, length: bytes.len() as u32 }
    }
}

/// A packet has been [staged](Outgoing::stage): frames of it may be pushed.
#[derive(Debug)]
#[must_use]
pub struct Staged(());

/// A run of bytes in an [`Outgoing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    pub(super) place: u32,
    pub(super) start: u32,
    pub(super) length: u32,
}

impl Slice {
    /// The place of bytes that lie in no buffer.
    pub(super) const OWN: u32 = u32::MAX;

    /// Length in bytes.
    #[inline]
    pub const fn length(self) -> usize {
        self.length as usize
    }

    /// Does it lie where it was received, rather than in bytes that were made or copied for
    /// sending?
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
