//! Merges packets in their own buffers.

use alloc::vec::Vec;
use core::ops::Range;

use super::poll::Poll;
use super::{BatchAggregator, BufferIndex};
use crate::buffer::PacketBuffer;
use crate::memory::Memory;
use crate::packet::RxPacket;
use crate::super_packet::{Piece, SuperPacket};
use crate::virtio::Framing;
use superpacket_simd::Simd;

/// One call of the aggregator that merges packets in the buffer of the first one.
struct InPlacePoll<'a, B> {
    buffers: &'a mut [B],
    /// Offset in bytes at which each packet starts in its buffer.
    offset: usize,
    framing: Option<Framing>,
    /// Indices of the buffers that hold the packets to be written.
    written: &'a mut Vec<usize>,
}

impl<B: PacketBuffer> Memory<BufferIndex> for InPlacePoll<'_, B> {
    #[inline(always)]
    fn bytes<'a>(&'a self, buffer: &'a BufferIndex) -> &'a [u8] {
        self.buffers
            .get(buffer.packet())
            .and_then(|buffer| buffer.as_ref().get(self.offset..))
            .unwrap_or(&[])
    }
}

impl<B: PacketBuffer> Poll<BufferIndex> for InPlacePoll<'_, B> {
    const IN_PLACE: bool = true;

    type Error = core::convert::Infallible;

    #[inline(always)]
    fn room(&self, first: &BufferIndex) -> u32 {
        self.buffers
            .get(first.packet())
            .map_or(0, |buffer| u32::try_from(buffer.spare()).unwrap_or(u32::MAX))
    }

    #[inline(always)]
    fn join(
        &mut self,
        first: &BufferIndex,
        kept: usize,
        buffer: &BufferIndex,
        payload: Range<usize>,
    ) {
        if let Some((first, payload, _)) = self.apart(first, kept, buffer, payload) {
            first.extend_from_slice(payload);
        }
    }

    #[inline(always)]
    fn join_and_sum(
        &mut self,
        first: &BufferIndex,
        kept: usize,
        buffer: &BufferIndex,
        payload: Range<usize>,
        ahead: Option<&BufferIndex>,
        simd: Simd,
    ) -> u16 {
        let offset = self.offset;
        let Some((first, payload, others)) = self.apart(first, kept, buffer, payload) else {
            return 0;
        };
        let ahead = ahead.and_then(|ahead| others.get(ahead)?.get(offset..)).unwrap_or(&[]);
        first.extend_and_sum(payload, ahead, simd)
    }

    #[inline(always)]
    fn take_back(&mut self, first: &BufferIndex, kept: usize) {
        if let Some(first) = self.buffers.get_mut(first.packet()) {
            first.truncate(self.offset + kept);
        }
    }

    #[inline(always)]
    fn deliver(&mut self, packet: SuperPacket<'_, BufferIndex, ()>) -> Result<(), Self::Error> {
        let Some(Piece { buffer: Some(index), .. }) = packet.pieces.first() else { return Ok(()) };
        let index = index.packet();
        let Some(buffer) = self.buffers.get_mut(index) else { return Ok(()) };
        let header = packet.header();
        if !header.is_empty() {
            buffer.truncate(self.offset + packet.length());
            if let Some(place) = buffer.as_mut().get_mut(self.offset..self.offset + header.len()) {
                place.copy_from_slice(header);
            }
        }
        if let Some(framing) = &self.framing
            && let Some((before, first)) = buffer.as_mut().split_at_mut_checked(self.offset)
            && let Some(start) = self.offset.checked_sub(framing.header_length())
            && let Some(place) = before.get_mut(start..)
        {
            // If no header can describe the packet, a header of zeros is written.
            let _ = framing.write(&packet.metadata, first, packet.length(), place);
        }
        self.written.push(index);
        Ok(())
    }
}

impl<B: PacketBuffer> InPlacePoll<'_, B> {
    /// Returns three parts of the buffers: the first packet's buffer, truncated to the first `kept`
    /// bytes of the packet; the bytes `payload` of the packet in `buffer`; and all buffers after
    /// the first.
    #[inline(always)]
    fn apart(
        &mut self,
        first: &BufferIndex,
        kept: usize,
        buffer: &BufferIndex,
        payload: Range<usize>,
    ) -> Option<(&mut B, &[u8], Behind<'_, B>)> {
        // The first packet of a flow has a lower index than the packets that join it.
        let (up_to_first, buffers) = self.buffers.split_at_mut_checked(first.packet() + 1)?;
        let others = Behind { first: *first, buffers };
        let first = up_to_first.last_mut()?;
        first.truncate(self.offset + kept);
        let payload =
            others.get(buffer)?.get(self.offset + payload.start..self.offset + payload.end)?;
        Some((first, payload, others))
    }
}

/// The buffers of the packets that follow the first packet of a merge.
struct Behind<'a, B> {
    first: BufferIndex,
    buffers: &'a [B],
}

impl<'a, B: PacketBuffer> Behind<'a, B> {
    #[inline(always)]
    fn get(&self, buffer: &BufferIndex) -> Option<&'a [u8]> {
        let index = buffer.packet().checked_sub(self.first.packet() + 1)?;
        self.buffers.get(index).map(AsRef::as_ref)
    }
}

/// The error of packets that start too early in their buffers: there is no room for the
/// `virtio_net_hdr` before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "packets start at byte {offset} of their buffers, but {needed} bytes are needed before them"
)]
pub struct NoHeadroom {
    /// Length of the `virtio_net_hdr` in bytes.
    pub needed: usize,
    /// Offset in bytes at which the packets start in their buffers.
    pub offset: usize,
}

impl BatchAggregator {
    /// Merges packets in their own buffers: copies payloads behind the first packet of each
    /// super-packet and rewrites its headers. Returns the indices of the buffers to write, in
    /// order; the packets in all other buffers were merged into these. Packets of a flow keep their
    /// order, but packets of different flows may be reordered.
    ///
    /// Each packet starts `offset` bytes into its buffer and extends to the buffer's end. An
    /// aggregator made by [`framed`](Self::framed) writes a `virtio_net_hdr` directly before
    /// `offset`. A packet that does not fit into the [spare room](PacketBuffer::spare) of a buffer
    /// begins a new super-packet. No packet is moved, and nothing is allocated.
    ///
    /// Packets that no header can describe, such as a tunnel in a format without fields for it, do
    /// not merge.
    ///
    /// # Errors
    /// [`NoHeadroom`] if `offset` is too small for the header; the buffers are unchanged then.
    ///
    /// # Panics
    /// With more than `u32::MAX` buffers.
    #[inline]
    pub fn join_in_place<B: PacketBuffer>(
        &mut self,
        buffers: &mut [B],
        offset: usize,
    ) -> Result<&[usize], NoHeadroom> {
        if let Some(framing) = self.framing
            && framing.header_length() > offset
        {
            return Err(NoHeadroom { needed: framing.header_length(), offset });
        }
        let mut written = core::mem::take(&mut self.written);
        written.clear();
        let count = buffers.len();
        let mut poll =
            InPlacePoll { buffers, offset, framing: self.framing, written: &mut written };
        self.begin(true, u32::MAX);
        let Ok(()) =
            self.take(count, |_, layer| RxPacket { layer, ..RxPacket::new(()) }, |_| 1, &mut poll);
        self.written = written;
        Ok(&self.written)
    }
}
