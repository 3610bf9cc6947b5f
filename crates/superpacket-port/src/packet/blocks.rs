//! The ring of `TPACKET_V3`: the kernel packs frames into blocks, and hands a block over when it is
//! full or its timeout has passed.

#![expect(unsafe_code, reason = "a ring shared with the kernel")]

use std::collections::TryReserveError;
use std::sync::atomic::{AtomicU32, Ordering};

use superpacket::packet::RxPacket;

use super::frame::{self, Metadata, VIRTIO};
use super::shared::PacketCounters;
use super::socket::{FLAG, MappedRing, Socket};
use crate::{Buffer, Region};

/// A receive ring of `TPACKET_V3`: blocks of memory, which the kernel fills with frames.
#[derive(Debug)]
pub(super) struct Blocks {
    /// The ring's memory. It is divided into slots of [`FLAG`] bytes only to have enough flags: the
    /// frame that is lent as number n of a block uses the flag of the block's slot n, wherever the
    /// frame's bytes lie.
    region: Region,
    block_size: usize,
    /// For each block, the number of frames lent, and how many of them are known to have been
    /// returned.
    lent: Box<[LentFrames]>,
    /// Number of the block that is being read, or that is to be read next.
    next: usize,
    /// The unread rest of the block with number `next`; `None` until the kernel hands that block
    /// over.
    cursor: Option<BlockCursor>,
    /// Number of blocks that the kernel handed over and that were not returned to it, including the
    /// block that is being read.
    taken: usize,
    ignores_outgoing: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct LentFrames {
    frames: usize,
    back: usize,
}

#[derive(Clone, Copy, Debug)]
struct BlockCursor {
    /// Offset of the next frame from the start of the block, in bytes.
    offset: usize,
    frames: u32,
}

impl Blocks {
    /// Creates a ring of blocks of `block_size` bytes in the memory of `mapped`. Also returns the
    /// socket of `mapped`.
    pub fn try_new(
        mapped: MappedRing,
        block_size: usize,
    ) -> Result<(Self, Socket), TryReserveError> {
        let (blocks, mut lent) = (mapped.region.slots() / (block_size / FLAG), Vec::new());
        lent.try_reserve_exact(blocks)?;
        lent.resize_with(blocks, LentFrames::default);
        let (region, ignores_outgoing, lent) =
            (mapped.region, mapped.ignores_outgoing, lent.into_boxed_slice());
        let ring =
            Blocks { region, block_size, lent, next: 0, cursor: None, taken: 0, ignores_outgoing };
        Ok((ring, mapped.socket))
    }

    /// Returns the ring's memory.
    pub const fn region(&self) -> &Region {
        &self.region
    }

    /// Appends up to `limit` received packets to `packets`, and returns their number.
    pub fn poll(
        &mut self,
        counters: &PacketCounters,
        queue: u16,
        packets: &mut Vec<RxPacket<Buffer>>,
        limit: usize,
    ) -> usize {
        let mut count = 0;
        while count < limit {
            let Some(mut cursor) = self.cursor.or_else(|| self.open()) else { break };
            while cursor.frames != 0 && count < limit {
                cursor.frames -= 1;
                count += usize::from(self.take(&mut cursor, counters, queue, packets));
            }
            if cursor.frames == 0 {
                self.cursor = None;
                self.next = if self.next + 1 == self.lent.len() { 0 } else { self.next + 1 };
            } else {
                self.cursor = Some(cursor);
            }
        }
        count
    }

    /// Takes the next block, if the kernel has handed it over.
    fn open(&mut self) -> Option<BlockCursor> {
        if self.taken == self.lent.len() {
            return None;
        }
        // Acquire: the frames were written before.
        if self.status(self.next).load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: a block that was handed over begins with this structure of integers, and blocks
        // are aligned to pages.
        let header = unsafe { self.start(self.next).cast::<libc::tpacket_block_desc>().read() };
        // SAFETY: the union `hdr` has no other variant, and the variant consists of integers.
        let header = unsafe { header.hdr.bh1 };
        self.taken += 1;
        self.lent[self.next] = LentFrames::default();
        Some(BlockCursor { offset: header.offset_to_first_pkt as usize, frames: header.num_pkts })
    }

    /// Appends the frame at `cursor` to `packets`, unless it must be skipped, and advances the
    /// cursor. Returns whether the frame was appended.
    #[inline]
    fn take(
        &mut self,
        cursor: &mut BlockCursor,
        counters: &PacketCounters,
        queue: u16,
        packets: &mut Vec<RxPacket<Buffer>>,
    ) -> bool {
        let offset = cursor.offset;
        if offset + size_of::<libc::tpacket3_hdr>() + size_of::<libc::sockaddr_ll>()
            > self.block_size
        {
            // The kernel never does this: the rest of the block cannot be trusted.
            counters.dropped(queue, u64::from(cursor.frames) + 1);
            cursor.frames = 0;
            return false;
        }
        // SAFETY: a frame's header lies within the block, as just checked, and within the part that
        // the kernel has written. It consists of integers, and no alignment is assumed.
        let header = unsafe {
            self.start(self.next).add(offset).cast::<libc::tpacket3_hdr>().read_unaligned()
        };
        cursor.offset += header.tp_next_offset as usize;
        // SAFETY: the union has no other variant, and the variant consists of integers.
        let extra = header.hv1;
        let metadata = Metadata {
            status: header.tp_status,
            seconds: header.tp_sec,
            nanoseconds: header.tp_nsec,
            vlan_tci: extra.tp_vlan_tci as u16,
            vlan_tpid: extra.tp_vlan_tpid,
            hash: extra.tp_rxhash,
        };
        if !self.ignores_outgoing && self.is_outgoing(offset) {
            return false;
        }
        let from = offset + usize::from(header.tp_mac);
        let to = from + header.tp_snaplen as usize;
        let (block, first) = (self.next * self.block_size, self.next * (self.block_size / FLAG));
        let lent = self.lent[self.next].frames;
        let is_whole = header.tp_snaplen == header.tp_len
            && usize::from(header.tp_mac) >= VIRTIO
            && to <= self.block_size;
        let buffer = if is_whole && lent < self.block_size / FLAG {
            // SAFETY: the bytes lie in a block that was handed over, and that is returned only when
            // none of its flags is set. Nothing else writes to it.
            unsafe { self.region.lend_packed(first + lent, block + from - VIRTIO..block + to) }
        } else {
            None
        };
        let Some(buffer) = buffer else {
            // The frame is longer than a block.
            counters.dropped(queue, 1);
            return false;
        };
        self.lent[self.next].frames += 1;
        match frame::packet(buffer, &metadata, queue) {
            Ok(packet) => {
                packets.push(packet);
                true
            }
            Err(error) => {
                counters.malformed(&error);
                false
            }
        }
    }

    /// Returns blocks to the kernel, in order, up to the first one that has lent frames or is still
    /// being read.
    pub fn give_back(&mut self) {
        let blocks = self.lent.len();
        while self.taken > usize::from(self.cursor.is_some()) {
            let read = self.taken - usize::from(self.cursor.is_some());
            let block = (self.next + blocks - read) % blocks;
            let first = block * (self.block_size / FLAG);
            let lent = &mut self.lent[block];
            while lent.back < lent.frames && !self.region.is_lent(first + lent.back) {
                lent.back += 1;
            }
            if lent.back < lent.frames {
                break;
            }
            // Release: all accesses to the block are over.
            self.status(block).store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.taken -= 1;
        }
    }

    /// Returns whether more than half of the blocks are taken, so that the kernel cannot fill them.
    pub const fn is_crowded(&self) -> bool {
        self.taken * 2 > self.lent.len()
    }

    fn start(&self, block: usize) -> *mut u8 {
        debug_assert!(block < self.lent.len());
        // SAFETY: the block lies within the memory.
        unsafe { self.region.start().as_ptr().add(block * self.block_size) }
    }

    fn status(&self, block: usize) -> &AtomicU32 {
        // SAFETY: each block has its status at this offset, and both sides change it atomically.
        // The memory lives as long as the region.
        unsafe { AtomicU32::from_ptr(self.start(block).add(BLOCK_STATUS).cast()) }
    }

    /// Returns whether this machine sent the frame at `offset` of the block that is being read. The
    /// link-layer address after the frame's header tells.
    fn is_outgoing(&self, offset: usize) -> bool {
        // SAFETY: header and address lie within the block, as the caller has checked.
        let kind = unsafe {
            self.start(self.next).add(offset + size_of::<libc::tpacket3_hdr>() + PACKET_TYPE).read()
        };
        kind == libc::PACKET_OUTGOING
    }
}

/// Offset of `block_status` in `struct tpacket_block_desc`.
const BLOCK_STATUS: usize = std::mem::offset_of!(libc::tpacket_block_desc, hdr);

/// Offset of `sll_pkttype` in `struct sockaddr_ll`.
const PACKET_TYPE: usize = std::mem::offset_of!(libc::sockaddr_ll, sll_pkttype);

// The link-layer address follows the frame's header directly, since that ends at a multiple of
// `TPACKET_ALIGNMENT`.
const _: () = assert!(size_of::<libc::tpacket3_hdr>().is_multiple_of(16));
