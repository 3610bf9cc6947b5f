//! The output of segmentation: segments as header bytes and payload ranges, or written into the
//! caller's buffers.

use alloc::vec::Vec;

use super::SegmentError;
use super::payload::{Position, bytes, step};
use super::source::Segmentable;
use crate::checksum::RxChecksum;

/// The number of segments and their lengths: all but the last have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentPlan {
    /// Number of segments; at least 1.
    pub segments: u32,
    /// Length of each segment but the last in bytes, headers included. If there is one segment, its
    /// length.
    pub segment_length: usize,
    /// Length of the last segment in bytes, headers included; at most `segment_length`.
    pub last_length: usize,
}

impl SegmentPlan {
    /// Returns the total length of all segments in bytes, headers included.
    #[inline]
    pub const fn total_length(&self) -> usize {
        (self.segments as usize - 1)
            .saturating_mul(self.segment_length)
            .saturating_add(self.last_length)
    }
}

/// The segments that one call has written of a packet whose segments may not all fit the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Portion {
    /// The number and lengths of the segments that this call wrote; at least one segment.
    pub plan: SegmentPlan,
    /// Number of segments that are still to be written; 0 after the last portion.
    pub left: u32,
}

impl SegmentPlan {
    /// Returns a plan of only `count` segments (at least one) of this plan, from segment number
    /// `first` on.
    pub(super) const fn portion(&self, first: u32, count: u32) -> SegmentPlan {
        let last_length =
            if first + count == self.segments { self.last_length } else { self.segment_length };
        let segment_length = if count == 1 { last_length } else { self.segment_length };
        SegmentPlan { segments: count, segment_length, last_length }
    }

    /// Returns how many of the segments fit the buffers, given the error with which
    /// [`SegmentBuffers::prepare`] refused all of them.
    pub(super) fn that_fit(&self, refusal: &SegmentError) -> u32 {
        let limit = match *refusal {
            SegmentError::TooManySegments { limit, .. } => limit,
            SegmentError::OutputTooSmall { got, .. } => {
                u32::try_from(got / self.segment_length.max(1)).unwrap_or(u32::MAX)
            }
            _ => 0,
        };
        limit.min(self.segments - 1)
    }
}

/// The position of a piece of a segment's payload in the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadRange {
    /// Index of the packet's range: into
    /// [`SuperPacket::pieces`](crate::super_packet::SuperPacket::pieces), or into the buffers.
    pub range: usize,
    /// Offset in that range at which the piece starts, in bytes.
    pub offset: usize,
    /// Length of the piece in bytes.
    pub length: usize,
}

/// A segment: its own header bytes, and ranges of the packet as payload.
///
/// Borrows the segmenter's scratch memory: the header must be sent or copied before the sink
/// returns.
#[derive(Debug)]
pub struct Segment<'a, P: ?Sized> {
    pub(super) header: &'a [u8],
    pub(super) packet: &'a P,
    pub(super) position: Position,
    pub(super) length: usize,
    /// Number of the segment, from 0.
    pub index: u32,
    /// Whether this is the packet's last segment.
    pub last: bool,
    /// State of the segment's checksums.
    pub checksum: RxChecksum,
}

impl<'a, P: Segmentable + ?Sized> Segment<'a, P> {
    /// Returns all headers, from the link header on; none for a packet that passes whole.
    #[inline]
    pub const fn header(&self) -> &'a [u8] {
        self.header
    }

    /// Returns the length of the segment in bytes: its headers and its payload.
    #[inline]
    pub const fn length(&self) -> usize {
        self.header.len() + self.length
    }

    /// Returns the positions of the payload, for descriptors; empty ranges are omitted.
    #[inline]
    pub fn ranges(&self) -> impl Iterator<Item = PayloadRange> + Clone + use<'a, P> {
        Ranges { packet: self.packet, at: self.position, rest: self.length }
    }

    /// Returns the payload as slices, for gathering writes; empty slices are omitted.
    #[inline]
    pub fn payload(&self) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a, P> {
        let packet = self.packet;
        self.ranges().map(move |range| {
            bytes(packet, Position { range: range.range, offset: range.offset }, range.length)
        })
    }

    /// Appends the segment to `out`.
    pub fn copy_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.header);
        self.payload().for_each(|slice| out.extend_from_slice(slice));
    }
}

#[derive(Debug)]
struct Ranges<'a, P: ?Sized> {
    packet: &'a P,
    at: Position,
    rest: usize,
}

impl<P: ?Sized> Clone for Ranges<'_, P> {
    fn clone(&self) -> Self {
        Ranges { ..*self }
    }
}

impl<P: Segmentable + ?Sized> Iterator for Ranges<'_, P> {
    type Item = PayloadRange;

    #[inline]
    fn next(&mut self) -> Option<PayloadRange> {
        loop {
            let at = self.at;
            let (length, next) = step(self.packet, at, self.rest)?;
            self.at = next;
            self.rest -= length;
            if length != 0 {
                return Some(PayloadRange { range: at.range, offset: at.offset, length });
            }
        }
    }
}

/// A segment that has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WrittenSegment {
    /// Number of the segment, from 0.
    pub index: u32,
    /// Length of the segment in bytes.
    pub length: usize,
    /// Whether this is the packet's last segment.
    pub last: bool,
    /// State of the segment's checksums.
    pub checksum: RxChecksum,
}

/// Provides the buffers that segments are written into: slots of a `sendmmsg` array, frames of a
/// UMEM, the space after a `virtio_net_hdr`.
pub trait SegmentBuffers {
    /// Refuses segments that do not fit. Called before the first buffer is requested. A call that
    /// writes a [`Portion`] calls it again after an error, with the number of segments that fit.
    ///
    /// # Errors
    /// [`SegmentError::OutputTooSmall`] with the bytes that there is room for, or
    /// [`SegmentError::TooManySegments`] with the number of buffers; nothing is written then.
    fn prepare(&mut self, _plan: &SegmentPlan) -> Result<(), SegmentError> {
        Ok(())
    }

    /// Returns a buffer of at least `length` bytes, the first `length` of which will be
    /// overwritten. `None` or a shorter buffer ends the call with [`SegmentError::OutputTooSmall`],
    /// which [`prepare`](Self::prepare) should have returned before.
    fn buffer(&mut self, length: usize) -> Option<&mut [u8]>;

    /// Called after a segment was written into the buffer that was requested last.
    fn written(&mut self, _segment: WrittenSegment) {}
}

/// Segments back to back in one buffer, as for `UDP_SEGMENT` and as in [`SegmentPlan`]: segment `n`
/// starts at `n * segment_length`.
#[derive(Debug)]
pub struct BackToBack<'a> {
    bytes: &'a mut [u8],
    used: usize,
}

impl<'a> BackToBack<'a> {
    /// Creates an output that writes the segments one after another into `bytes`.
    #[inline]
    pub const fn new(bytes: &'a mut [u8]) -> Self {
        BackToBack { bytes, used: 0 }
    }

    /// Returns the number of bytes written.
    #[inline]
    pub const fn used(&self) -> usize {
        self.used
    }
}

impl SegmentBuffers for BackToBack<'_> {
    fn prepare(&mut self, plan: &SegmentPlan) -> Result<(), SegmentError> {
        let (needed, got) = (plan.total_length(), self.bytes.len() - self.used);
        if needed > got { Err(SegmentError::OutputTooSmall { needed, got }) } else { Ok(()) }
    }

    #[inline]
    fn buffer(&mut self, length: usize) -> Option<&mut [u8]> {
        let start = self.used;
        let buffer = self.bytes.get_mut(start..start + length)?;
        self.used += length;
        Some(buffer)
    }
}

/// A separate buffer for each segment, which starts at the same offset in each; for tunnel packets
/// that are encrypted in place.
#[derive(Debug)]
pub struct EachBuffer<'a, B> {
    buffers: &'a mut [B],
    offset: usize,
    sizes: &'a mut [usize],
    used: usize,
}

impl<'a, B: AsMut<[u8]>> EachBuffer<'a, B> {
    /// Makes buffers in which each segment starts at `offset`; the segments' lengths in bytes are
    /// written to `sizes`.
    #[inline]
    pub const fn new(buffers: &'a mut [B], offset: usize, sizes: &'a mut [usize]) -> Self {
        EachBuffer { buffers, offset, sizes, used: 0 }
    }

    /// Returns the number of buffers written.
    #[inline]
    pub const fn used(&self) -> usize {
        self.used
    }
}

impl<B: AsMut<[u8]>> SegmentBuffers for EachBuffer<'_, B> {
    fn prepare(&mut self, plan: &SegmentPlan) -> Result<(), SegmentError> {
        let limit = self.buffers.len().min(self.sizes.len()).saturating_sub(self.used);
        if plan.segments as usize > limit {
            return Err(SegmentError::TooManySegments {
                needed: plan.segments,
                limit: limit as u32,
            });
        }
        let check = |buffer: &mut B, length: usize| {
            let (needed, got) = (self.offset.saturating_add(length), buffer.as_mut().len());
            if needed > got { Err(SegmentError::OutputTooSmall { needed, got }) } else { Ok(()) }
        };
        let buffers = self.buffers.get_mut(self.used..self.used + plan.segments as usize);
        if let Some((last, others)) = buffers.and_then(<[B]>::split_last_mut) {
            others.iter_mut().try_for_each(|buffer| check(buffer, plan.segment_length))?;
            check(last, plan.last_length)?;
        }
        Ok(())
    }

    #[inline]
    fn buffer(&mut self, length: usize) -> Option<&mut [u8]> {
        let (buffer, size) = (self.buffers.get_mut(self.used)?, self.sizes.get_mut(self.used)?);
        let buffer = buffer.as_mut().get_mut(self.offset..self.offset + length)?;
        *size = length;
        self.used += 1;
        Some(buffer)
    }
}

/// Segments are appended, back to back.
impl SegmentBuffers for Vec<u8> {
    fn prepare(&mut self, plan: &SegmentPlan) -> Result<(), SegmentError> {
        self.reserve(plan.total_length());
        Ok(())
    }

    fn buffer(&mut self, length: usize) -> Option<&mut [u8]> {
        let start = self.len();
        self.resize(start + length, 0);
        self.get_mut(start..)
    }
}

/// Segments are appended, back to back.
#[cfg(feature = "bytes")]
impl SegmentBuffers for bytes::BytesMut {
    fn prepare(&mut self, plan: &SegmentPlan) -> Result<(), SegmentError> {
        self.reserve(plan.total_length());
        Ok(())
    }

    fn buffer(&mut self, length: usize) -> Option<&mut [u8]> {
        let start = self.len();
        self.resize(start + length, 0);
        self.get_mut(start..)
    }
}
