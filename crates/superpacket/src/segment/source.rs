//! The trait of packets that can be segmented, and its implementation for packets in buffers of the
//! caller. [`RxPacket`](crate::packet::RxPacket) and
//! [`SuperPacket`](crate::super_packet::SuperPacket) implement the trait in their own modules.

use super::Gso;
use crate::checksum::RxChecksum;
use crate::wire::Layer;

/// A packet that can be segmented: optional separate header bytes, followed by ranges of bytes.
///
/// Lengths that contradict the bytes give wrong segments or errors, but no panic.
pub trait Segmentable {
    /// Returns the layer at which the packet starts.
    fn layer(&self) -> Layer;

    /// Returns how to segment the packet; `None` if it is to pass whole.
    fn gso(&self) -> Option<Gso>;

    /// Returns the state of its checksums. Only [`RxChecksum::Partial`] matters. Such a checksum is
    /// completed if the packet passes whole or is fragmented. In UDP it also says that the segments
    /// need a checksum, and which UDP header is meant.
    fn checksum(&self) -> RxChecksum;

    /// Returns the bytes before the first range, if there are any.
    fn header(&self) -> &[u8];

    /// Returns the number of ranges.
    fn ranges(&self) -> usize;

    /// Returns the length of a range in bytes.
    fn range_length(&self, index: usize) -> usize;

    /// Returns the bytes of a range.
    fn range(&self, index: usize) -> &[u8];

    /// Returns the one's-complement sum, if known, of the received payload that starts with this
    /// range and extends to the next range that [starts one](Self::starts_payload).
    fn payload_sum(&self, _index: usize) -> Option<u16> {
        None
    }

    /// Returns whether a received packet's payload starts with this range.
    fn starts_payload(&self, _index: usize) -> bool {
        false
    }

    /// Returns the length of the whole packet in bytes.
    fn length(&self) -> usize {
        (0..self.ranges())
            .fold(self.header().len(), |sum, index| sum.saturating_add(self.range_length(index)))
    }
}

/// A packet in buffers of the caller, with the way to segment it.
#[derive(Debug)]
#[non_exhaustive]
pub struct GsoPacket<'a, B> {
    /// The packet's bytes, in order.
    pub buffers: &'a [B],
    /// Layer at which the packet starts.
    pub layer: Layer,
    /// How to segment it; `None` lets it pass whole.
    pub gso: Option<Gso>,
    /// The state of its checksums.
    pub checksum: RxChecksum,
}

impl<'a, B: AsRef<[u8]>> GsoPacket<'a, B> {
    /// Makes a packet of an Ethernet frame in one buffer.
    #[inline]
    pub fn linear(buffer: &'a B, gso: impl Into<Option<Gso>>) -> Self {
        Self::new(core::slice::from_ref(buffer), gso)
    }

    /// Makes a packet of an Ethernet frame in several buffers.
    #[inline]
    pub fn new(buffers: &'a [B], gso: impl Into<Option<Gso>>) -> Self {
        GsoPacket { gso: gso.into(), ..Self::uncut(buffers) }
    }

    /// Makes a packet of an Ethernet frame in several buffers that is not a super-packet.
    #[inline]
    pub const fn uncut(buffers: &'a [B]) -> Self {
        GsoPacket { buffers, layer: Layer::Ethernet, gso: None, checksum: RxChecksum::None }
    }

    /// Returns the packet with this checksum state.
    #[inline]
    #[must_use]
    pub const fn with_checksum(self, checksum: RxChecksum) -> Self {
        GsoPacket { checksum, ..self }
    }

    /// Returns the packet with another first layer.
    #[inline]
    #[must_use]
    pub const fn with_layer(self, layer: Layer) -> Self {
        GsoPacket { layer, ..self }
    }
}

impl<B: AsRef<[u8]>> Segmentable for GsoPacket<'_, B> {
    #[inline]
    fn layer(&self) -> Layer {
        self.layer
    }

    #[inline]
    fn gso(&self) -> Option<Gso> {
        self.gso
    }

    #[inline]
    fn checksum(&self) -> RxChecksum {
        self.checksum
    }

    #[inline]
    fn header(&self) -> &[u8] {
        &[]
    }

    #[inline]
    fn ranges(&self) -> usize {
        self.buffers.len()
    }

    #[inline]
    fn range_length(&self, index: usize) -> usize {
        self.range(index).len()
    }

    #[inline]
    fn range(&self, index: usize) -> &[u8] {
        self.buffers.get(index).map_or(&[], AsRef::as_ref)
    }
}
