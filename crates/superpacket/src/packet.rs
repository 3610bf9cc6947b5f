//! Received packets: their buffers, and the metadata from the device.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::offset_of;

use crate::memory::{InBuffers, Memory};
use crate::segment::{ChecksumForm, Gso, Segmentable};
use crate::wire::MAX_HEADER;
#[cfg(feature = "std")]
use crate::wire::put16;

pub use crate::checksum::RxChecksum;
pub use crate::wire::Layer;

/// Maximum number of buffers in a packet, as in a Linux `skb` (`MAX_SKB_FRAGS`: 64 KB in pages of 4
/// KB).
pub const MAX_BUFFERS: usize = 17;

/// A flow hash that a device reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowHash(pub u32);

/// A VLAN tag that the device stripped from the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VlanTag {
    /// The tag protocol: 0x8100 or 0x88a8.
    pub protocol: u16,
    /// Priority, drop eligibility and VLAN ID, as in the tag.
    pub control: u16,
}

/// The buffers of a packet after its first one, boxed so that a packet of one buffer is small.
#[derive(Debug)]
pub struct Chain<B>(Box<ChainStorage<B>>);

#[derive(Debug)]
struct ChainStorage<B> {
    buffers: Vec<B>,
}

impl<B> Chain<B> {
    /// Makes an empty chain with room for all buffers that a packet may have.
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

/// A received packet: 1 to [`MAX_BUFFERS`] buffers and the metadata from the device.
///
/// At most 64 bytes for buffers of 16 bytes, so that a batch streams through the cache. The first
/// 16 bytes hold all that steering reads of a packet with a device's hash. They are aligned to 16
/// bytes, so that handing packets to other CPUs touches one cache line of each.
#[derive(Debug)]
// The order of the fields matters. A `None` has padding. Where it is next to a run of zeros,
// compilers build the packet on the stack and copy it in words of another size, which stall until
// the writes have reached the cache: 4 ns per packet.
#[repr(C, align(16))]
pub struct RxPacket<B> {
    /// Number of the receive queue from which the packet came.
    pub queue: u16,
    /// Layer at which the packet starts.
    pub layer: Layer,
    /// The flow hash that the device computed, if it did.
    pub hash: Option<FlowHash>,
    /// What the device reports about the packet's checksums.
    pub checksum: RxChecksum,
    /// The VLAN tag that the device stripped.
    pub vlan: Option<VlanTag>,
    /// How the packet is to be segmented, if it was received as a super-packet. GRO may merge it
    /// with other packets, as its segments would have merged. Whether its checksums are partial
    /// follows from [`checksum`](Self::checksum); [`Gso::checksum`] is ignored.
    pub gso: Option<Gso>,
    pub(crate) first: B,
    /// Time of arrival in nanoseconds of any clock; only differences are used.
    pub time: u64,
    pub(crate) rest: Option<Chain<B>>,
}

/// Alignment and maximum size in bytes of the group of packet fields that steering reads. It
/// divides the size of a cache line, so that all of them lie in one line.
pub(crate) const STEERING_UNIT: usize = 16;

const _: () = {
    assert!(align_of::<RxPacket<&[u8]>>().is_multiple_of(STEERING_UNIT));
    assert!(offset_of!(RxPacket<&[u8]>, hash) + size_of::<Option<FlowHash>>() <= STEERING_UNIT);
    assert!(offset_of!(RxPacket<&[u8]>, queue) + size_of::<u16>() <= STEERING_UNIT);
    assert!(offset_of!(RxPacket<&[u8]>, layer) + size_of::<Layer>() <= STEERING_UNIT);
};

/// The error of adding a buffer to a packet that already has [`MAX_BUFFERS`]. Contains the buffer.
#[derive(Debug, thiserror::Error)]
#[error("a packet has at most {MAX_BUFFERS} buffers")]
pub struct TooManyBuffers<B>(pub B);

impl<B> RxPacket<B> {
    /// Makes a received packet that is an Ethernet frame in one buffer, without metadata.
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

    /// Makes a received packet that starts at its IP header, in one buffer, without metadata.
    #[inline]
    pub fn ip(buffer: B) -> Self {
        RxPacket { layer: Layer::Ip, ..Self::new(buffer) }
    }

    /// Returns the packet with this checksum state.
    #[inline]
    #[must_use]
    pub fn with_checksum(mut self, checksum: RxChecksum) -> Self {
        self.checksum = checksum.rebuilt();
        self
    }

    /// Returns the packet with a stripped VLAN tag.
    #[inline]
    #[must_use]
    pub fn with_vlan(mut self, vlan: VlanTag) -> Self {
        self.vlan = Some(vlan);
        self
    }

    /// Returns the packet marked as a super-packet that is to be segmented as `gso` says.
    #[inline]
    #[must_use]
    pub fn with_gso(mut self, gso: Gso) -> Self {
        self.gso = Some(gso);
        self
    }

    /// Returns how the packet is to be segmented, or `None` if it is no super-packet. The segments
    /// have partial checksums if the packet's own checksum is partial, otherwise full ones.
    pub(crate) fn gso_with_checksum_form(&self) -> Option<Gso> {
        with_checksum_form(self.gso, self.checksum)
    }

    /// Returns the packet with a time of arrival in nanoseconds.
    #[inline]
    #[must_use]
    pub fn with_time(mut self, time: u64) -> Self {
        self.time = time;
        self
    }

    /// Returns the packet with an empty chain for the buffers after the first. A chain that
    /// [`Aggregator::chain`](crate::Aggregator::chain) returned saves an allocation.
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

    /// Returns the buffers in order.
    pub fn buffers(&self) -> impl Iterator<Item = &B> {
        core::iter::once(&self.first).chain(self.rest.iter().flat_map(|chain| chain.buffers()))
    }
}

impl<B: AsRef<[u8]>> RxPacket<B> {
    /// Returns the length of the packet in bytes.
    #[inline]
    pub fn length(&self) -> usize {
        self.length_in(&InBuffers)
    }
}

impl<B> RxPacket<B> {
    /// Returns a packet with another first buffer and the metadata of this one.
    #[inline(always)]
    pub(crate) fn with_first<C>(&self, first: C) -> RxPacket<C> {
        let &RxPacket { queue, layer, hash, checksum, vlan, gso, time, .. } = self;
        RxPacket { queue, layer, hash, checksum, vlan, gso, first, time, rest: None }
    }

    /// Returns the length in bytes of a packet whose bytes lie in `memory`.
    #[inline(always)]
    pub(crate) fn length_in(&self, memory: &impl Memory<B>) -> usize {
        match &self.rest {
            None => memory.bytes(&self.first).len(),
            Some(_) => self.buffers().map(|buffer| memory.bytes(buffer).len()).sum(),
        }
    }
}

/// A received super-packet can be segmented as its device reported it ([`RxPacket::gso`]).
impl<B: AsRef<[u8]>> Segmentable for RxPacket<B> {
    fn layer(&self) -> Layer {
        self.layer
    }

    fn gso(&self) -> Option<Gso> {
        self.gso_with_checksum_form()
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

/// Returns `gso` with its checksum form set to that of the packet: partial if `checksum`, the state
/// of the packet's checksum, is partial, otherwise full.
#[inline(always)]
pub(crate) fn with_checksum_form(gso: Option<Gso>, checksum: RxChecksum) -> Option<Gso> {
    let form = if let RxChecksum::Partial { .. } = checksum {
        ChecksumForm::Partial
    } else {
        ChecksumForm::Full
    };
    Some(Gso { checksum: form, ..gso? })
}

/// Copy of the first bytes of a packet in several buffers.
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
            if let (Some(to), Some(from)) =
                (gathered.bytes.get_mut(gathered.filled..gathered.filled + take), bytes.get(..take))
            {
                to.copy_from_slice(from);
            }
            gathered.filled += take;
        }
        gathered
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.filled).unwrap_or(&self.bytes)
    }

    /// Returns the copy, truncated after the 16-bit field at offset `place`, with that field set to
    /// `value`.
    #[cfg(feature = "std")]
    pub(crate) fn ending_with(mut self, place: usize, value: u16) -> Self {
        put16(&mut self.bytes, place, value);
        self.filled = self.filled.min(place + 2);
        self
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
