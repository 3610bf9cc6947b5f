//! What is received: buffers, and what the device knows of them.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::offset_of;

use crate::memory::{InBuffers, Memory};
use crate::segment::{ChecksumForm, Gso, Segmentable};
use crate::wire::MAX_HEADER;

pub use crate::checksum::RxChecksum;
pub use crate::wire::Layer;

/// The most buffers that one packet may have, as a Linux `skb` of 64 KB in 4 KB pages has
/// (`MAX_SKB_FRAGS`).
pub const MAX_BUFFERS: usize = 17;

/// A flow hash that a device reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowHash(pub u32);

/// A VLAN tag that the device took out of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VlanTag {
    /// The tag protocol: 0x8100 or 0x88a8.
    pub protocol: u16,
    /// Priority, drop eligibility and VLAN ID as they stand in the tag.
    pub control: u16,
}

/// Buffers after a packet's first, kept in a box so that a packet of one buffer stays small.
#[derive(Debug)]
pub struct Chain<B>(Box<ChainStorage<B>>);

#[derive(Debug)]
struct ChainStorage<B> {
    buffers: Vec<B>,
}

impl<B> Chain<B> {
    /// An empty chain with room for all buffers a packet may have.
    pub fn new() -> Self {
        Chain(Box::new(ChainStorage { buffers: Vec::with_capacity(MAX_BUFFERS - 1) }))
    }

    pub(crate) fn buffers(&self) -> &[B] {
        &self.0.buffers
    }

    pub(crate) fn buffers_mut(&mut self) -> &mut Vec<B> {
        &mut self.0.buffers
    }
}

impl<B> Default for Chain<B> {
    fn default() -> Self {
        Self::new()
    }
}

/// A received packet: 1 to [`MAX_BUFFERS`] buffers and what the device knows.
///
/// At most 64 bytes for buffers of 16 bytes, so that a batch streams through the cache. What
/// steering reads of a packet whose hash the device has reported lies in its first 16 bytes, which
/// are aligned to 16 and so never in two cache lines: whoever hands packets to other CPUs touches
/// one line of each.
#[derive(Debug)]
// The order of fields matters: that of an `Option` which is `None` is not written whole, and where
// such a gap meets a run of zeros, compilers build the packet on the stack and copy it to its place
// by words that they did not write, each of which waits for what was written to reach the cache: 4
// ns a packet.
#[repr(C, align(16))]
pub struct RxPacket<B> {
    /// The receive queue.
    pub queue: u16,
    /// Where the first byte lies.
    pub layer: Layer,
    /// The device's flow hash.
    pub hash: Option<FlowHash>,
    /// What the device knows of the checksums.
    pub checksum: RxChecksum,
    /// The VLAN tag that the device stripped.
    pub vlan: Option<VlanTag>,
    /// How the packet is to be cut, if the device or the sender before it has made a super-packet
    /// of it. Its checksums stand as [`checksum`](Self::checksum) says, whatever [`Gso::checksum`]
    /// does.
    pub gso: Option<Gso>,
    pub(crate) first: B,
    /// When it arrived, in nanoseconds of any clock that does not matter to the engine but in
    /// differences.
    pub time: u64,
    pub(crate) rest: Option<Chain<B>>,
}

/// Alignment in bytes of what steering reads of a packet, and its size at most: a cache line is a
/// multiple of it.
pub(crate) const STEERING_UNIT: usize = 16;

const _: () = {
    assert!(align_of::<RxPacket<&[u8]>>().is_multiple_of(STEERING_UNIT));
    assert!(offset_of!(RxPacket<&[u8]>, hash) + size_of::<Option<FlowHash>>() <= STEERING_UNIT);
    assert!(offset_of!(RxPacket<&[u8]>, queue) + size_of::<u16>() <= STEERING_UNIT);
    assert!(offset_of!(RxPacket<&[u8]>, layer) + size_of::<Layer>() <= STEERING_UNIT);
};

/// A packet cannot take another buffer; here it is back.
#[derive(Debug, thiserror::Error)]
#[error("a packet has at most {MAX_BUFFERS} buffers")]
pub struct TooManyBuffers<B>(pub B);

impl<B> RxPacket<B> {
    /// An Ethernet frame in one buffer, of which the device knows nothing.
    #[inline]
    pub fn new(buffer: B) -> Self {
        RxPacket {
            first: buffer,
            rest: None,
            time: 0,
            hash: None,
            checksum: RxChecksum::None,
            vlan: None,
            gso: None,
            queue: 0,
            layer: Layer::Ethernet,
        }
    }

    /// An IP packet in one buffer, of which the device knows nothing.
    #[inline]
    pub fn ip(buffer: B) -> Self {
        RxPacket { layer: Layer::Ip, ..Self::new(buffer) }
    }

    /// The same packet with what the device knows of its checksums.
    #[inline]
    #[must_use]
    pub fn with_checksum(mut self, checksum: RxChecksum) -> Self {
        self.checksum = checksum;
        self
    }

    /// The same packet with a stripped VLAN tag.
    #[inline]
    #[must_use]
    pub fn with_vlan(mut self, vlan: VlanTag) -> Self {
        self.vlan = Some(vlan);
        self
    }

    /// The same packet as a super-packet, and how it is to be cut.
    #[inline]
    #[must_use]
    pub fn with_gso(mut self, gso: Gso) -> Self {
        self.gso = Some(gso);
        self
    }

    /// What is needed to cut a super-packet, with the form of checksums that it has.
    pub(crate) fn whole_gso(&self) -> Option<Gso> {
        let form = if let RxChecksum::Partial { .. } = self.checksum { ChecksumForm::Partial } else { ChecksumForm::Full };
        Some(Gso { checksum: form, ..self.gso? })
    }

    /// The same packet with an arrival time in nanoseconds.
    #[inline]
    #[must_use]
    pub fn at(mut self, time: u64) -> Self {
        self.time = time;
        self
    }

    /// Puts a chain, empty, on the packet for the buffers after the first: one that the aggregator
    /// gave back, so that none is allocated.
    #[must_use]
    pub fn with_chain(mut self, chain: Chain<B>) -> Self {
        self.rest.get_or_insert(chain);
        self
    }

    /// Appends a buffer.
    ///
    /// # Errors
    /// [`TooManyBuffers`] with the buffer, if the packet has [`MAX_BUFFERS`].
    pub fn push(&mut self, buffer: B) -> Result<(), TooManyBuffers<B>> {
        let buffers = self.rest.get_or_insert_with(Chain::new).buffers_mut();
        if buffers.len() + 1 >= MAX_BUFFERS {
            return Err(TooManyBuffers(buffer));
        }
        buffers.push(buffer);
        Ok(())
    }

    /// The buffers in order.
    pub fn buffers(&self) -> impl Iterator<Item = &B> {
        core::iter::once(&self.first).chain(self.rest.iter().flat_map(|chain| chain.buffers()))
    }
}

impl<B: AsRef<[u8]>> RxPacket<B> {
    /// The packet's length in bytes.
    #[inline]
    pub fn length(&self) -> usize {
        self.length_in(&InBuffers)
    }
}

impl<B> RxPacket<B> {
    /// What is known of the packet, with another first buffer and no others.
    #[inline(always)]
    pub(crate) fn with_first<C>(&self, first: C) -> RxPacket<C> {
        let &RxPacket { queue, layer, hash, checksum, vlan, gso, time, .. } = self;
        RxPacket { queue, layer, hash, checksum, vlan, gso, first, time, rest: None }
    }

    /// The length in bytes of a packet whose bytes lie there.
    #[inline(always)]
    pub(crate) fn length_in(&self, memory: &impl Memory<B>) -> usize {
        match &self.rest {
            None => memory.bytes(&self.first).len(),
            Some(_) => self.buffers().map(|buffer| memory.bytes(buffer).len()).sum(),
        }
    }
}

/// A received packet is cut as its device reported; what it did not say is as in any TSO engine.
impl<B: AsRef<[u8]>> Segmentable for RxPacket<B> {
    fn layer(&self) -> Layer {
        self.layer
    }

    fn gso(&self) -> Option<Gso> {
        self.whole_gso()
    }

    fn checksum(&self) -> RxChecksum {
        self.checksum
    }

    fn header(&self) -> &[u8] {
        &[]
    }

    fn ranges(&self) -> usize {
        1 + self.rest.as_ref().map_or(0, |chain| chain.buffers().len())
    }

    fn range_length(&self, index: usize) -> usize {
        self.range(index).len()
    }

    fn range(&self, index: usize) -> &[u8] {
        match (index, &self.rest) {
            (0, _) => self.first.as_ref(),
            (_, Some(chain)) => chain.buffers().get(index - 1).map_or(&[], AsRef::as_ref),
            (_, None) => &[],
        }
    }
}

/// The first bytes of a packet that lies in several pieces, copied together.
pub(crate) struct Gathered {
    bytes: [u8; MAX_HEADER],
    filled: usize,
}

impl Gathered {
    #[cold]
    pub(crate) fn new<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut gathered = Gathered { bytes: [0; MAX_HEADER], filled: 0 };
        for bytes in pieces {
            let take = bytes.len().min(MAX_HEADER - gathered.filled);
            if let (Some(to), Some(from)) = (gathered.bytes.get_mut(gathered.filled..gathered.filled + take), bytes.get(..take)) {
                to.copy_from_slice(from);
            }
            gathered.filled += take;
        }
        gathered
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.filled).unwrap_or(&self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_of_slices_fits_a_cache_line() {
        assert!(size_of::<RxPacket<&[u8]>>() <= 64, "{}", size_of::<RxPacket<&[u8]>>());
    }

    #[test]
    fn the_eighteenth_buffer_is_given_back() {
        let mut packet = RxPacket::new(vec![0u8]);
        for index in 1..MAX_BUFFERS {
            packet.push(vec![index as u8]).expect("there is room");
        }
        let refused = packet.push(vec![99]).expect_err("the packet is full");
        assert_eq!(refused.0, [99]);
        assert_eq!(packet.buffers().count(), MAX_BUFFERS);
        assert_eq!(packet.length(), MAX_BUFFERS);
    }
}
