//! Memory of a receive queue whose packets arrive one by one, each up to 64 KB long.

use std::ops::Range;

use crate::{Buffer, BufferPool, POLL_LIMIT};

/// Size in bytes of a slot for the largest packet: an IP packet of 65,535 bytes (`tso_max_size` of
/// TUN and TAP devices is 65,536), an Ethernet header with two tags, a virtio header, and one byte
/// that reveals longer packets.
pub(crate) const LARGE_SLOT: usize = 68 * 1024;

/// Number of large slots per queue, if there are few queues: enough for one poll of super-packets,
/// 4 MB.
const LARGE_SLOTS: usize = 64;

/// Size in bytes of a slot for small packets: a frame with 1,500 bytes of payload. An odd number of
/// cache lines, so that packets spread over the cache's sets.
pub(crate) const SMALL_SLOT: usize = 33 * 64;

/// Number of small slots per queue, if there are few queues: two polls of packets.
const SMALL_SLOTS: usize = 2 * POLL_LIMIT;

/// Number of queues up to which each queue has its full number of slots. More queues share the same
/// total, but each has at least a quarter of the full number.
const FEW_QUEUES: usize = 32;

/// Returns the number of slots that each of `queues` queues has; `slots` is the full number.
fn share(slots: usize, queues: u16) -> usize {
    (slots * FEW_QUEUES / usize::from(queues).max(1)).clamp(slots / 4, slots)
}

/// The receive memory of one queue.
#[derive(Debug)]
pub(crate) struct PacketSlots {
    small: BufferPool,
    large: BufferPool,
}

/// A slot that is free until it is lent.
#[cfg(target_os = "linux")]
#[derive(Debug)]
pub(crate) struct FreeSlot<'a> {
    pool: &'a mut BufferPool,
    slot: usize,
}

#[cfg(target_os = "linux")]
impl FreeSlot<'_> {
    /// Returns the slot's bytes for writing.
    #[inline]
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        self.pool.slot_mut(self.slot).unwrap_or_default()
    }

    /// Lends a range of the slot; `None` if the range exceeds it.
    #[inline]
    pub(crate) fn lend(self, range: Range<usize>) -> Option<Buffer> {
        self.pool.lend(self.slot, range)
    }
}

impl PacketSlots {
    /// Allocates the receive memory of one queue of a port that has `queues` of them; `None` if
    /// there is not enough memory. Slots occupy physical memory only from their first use on.
    pub(crate) fn try_new(queues: u16) -> Option<Self> {
        let small = BufferPool::try_new(share(SMALL_SLOTS, queues), SMALL_SLOT)?;
        Some(PacketSlots {
            small,
            large: BufferPool::try_new(share(LARGE_SLOTS, queues), LARGE_SLOT)?,
        })
    }

    /// Returns the total size of the memory of `queues` queues in bytes.
    pub(crate) fn bytes(queues: u16) -> usize {
        usize::from(queues)
            * (share(SMALL_SLOTS, queues) * SMALL_SLOT + share(LARGE_SLOTS, queues) * LARGE_SLOT)
    }

    /// Starts the search for free slots at the first ones: recently returned slots are in the
    /// cache.
    pub(crate) const fn rewind(&mut self) {
        self.small.rewind();
        self.large.rewind();
    }

    /// Returns a free slot of at least `length` bytes, of the smaller kind if one is free.
    #[cfg(target_os = "linux")]
    #[inline]
    pub(crate) fn free(&mut self, length: usize) -> Option<FreeSlot<'_>> {
        if length <= SMALL_SLOT
            && let Some(slot) = self.small.free()
        {
            return Some(FreeSlot { pool: &mut self.small, slot });
        }
        if length > LARGE_SLOT {
            return None;
        }
        self.large.free().map(|slot| FreeSlot { pool: &mut self.large, slot })
    }

    /// Returns a free slot of [`LARGE_SLOT`] bytes, or `None` if all are lent.
    pub(crate) fn free_large(&mut self) -> Option<usize> {
        self.large.free()
    }

    /// Returns the bytes of a large slot for writing; `None` if it is lent.
    pub(crate) fn large_mut(&mut self, slot: usize) -> Option<&mut [u8]> {
        self.large.slot_mut(slot)
    }

    /// Lends the packet in a range of a large slot, and returns whether the lent buffer occupies
    /// that slot. A small packet is copied into a small slot instead.
    pub(crate) fn lend(&mut self, large: usize, range: Range<usize>) -> Option<(Buffer, bool)> {
        let packet = self.large.slot_mut(large)?.get(range.clone())?;
        match copy(&mut self.small, packet) {
            Some(buffer) => Some((buffer, false)),
            None => Some((self.large.lend(large, range)?, true)),
        }
    }

    /// Lends a range of a large slot; `None` if the slot is lent, or the range exceeds it.
    pub(crate) fn lend_large(&mut self, large: usize, range: Range<usize>) -> Option<Buffer> {
        self.large.lend(large, range)
    }

    /// Lends a copy of a packet; `None` if no slot of sufficient size is free.
    pub(crate) fn copy(&mut self, packet: &[u8]) -> Option<Buffer> {
        copy(&mut self.small, packet).or_else(|| copy(&mut self.large, packet))
    }

    pub(crate) fn is_crowded(&self) -> bool {
        self.small.is_crowded() || self.large.is_crowded()
    }
}

/// Copies a packet into a free slot of the pool, and lends it; `None` if there is none of
/// sufficient size.
#[inline]
fn copy(pool: &mut BufferPool, packet: &[u8]) -> Option<Buffer> {
    if packet.len() > pool.slot_size() {
        return None;
    }
    let slot = pool.free()?;
    pool.slot_mut(slot)?[..packet.len()].copy_from_slice(packet);
    pool.lend(slot, 0..packet.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_queues_have_fewer_slots_each() {
        let slots = [1, 32, 33, 64, 128, 256]
            .map(|queues| (share(SMALL_SLOTS, queues), share(LARGE_SLOTS, queues)));
        assert_eq!(slots, [(1024, 64), (1024, 64), (992, 62), (512, 32), (256, 16), (256, 16)]);
        let mebibytes = [1, 32, 64, 128, 256].map(|queues| PacketSlots::bytes(queues) >> 20);
        assert_eq!(mebibytes, [6, 202, 202, 202, 404]);
    }
}
