//! The ring of `TPACKET_V2`: one slot per frame, handed over at once.
//!
//! ```text
//!      given back                taken                     the kernel's, or handed over
//! ... ------------ | ---------------------------------- | ------------------------------ ...
//!                   first not given back                  next to be read
//! ```
//! A frame longer than a slot is also queued completely (`TP_STATUS_COPY`). It is read from the
//! socket, and its slot contains its metadata.

#![expect(unsafe_code, reason = "a ring shared with the kernel")]

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::RecvFlags;
use superpacket::packet::RxPacket;

use super::frame::{self, Metadata, VIRTIO};
use super::shared::PacketCounters;
use super::socket::{MappedRing, Socket};
use crate::{Buffer, BufferPool, Region};

/// A receive ring of `TPACKET_V2`: memory slots, each for one frame.
#[derive(Debug)]
pub(super) struct SlotRing {
    region: Region,
    /// Number of the slot that is read next.
    next: usize,
    /// Number of slots before `next` that have not been returned to the kernel.
    taken: usize,
    /// Number of times that a slot was returned to the kernel.
    returned: u64,
    long: LongFrames,
    ignores_outgoing: bool,
}

impl SlotRing {
    /// Creates a ring in the memory of `mapped`. Also returns the socket of `mapped`.
    pub fn new(mapped: MappedRing) -> (Self, Socket) {
        let ring = SlotRing {
            region: mapped.region,
            next: 0,
            taken: 0,
            returned: 0,
            long: LongFrames::default(),
            ignores_outgoing: mapped.ignores_outgoing,
        };
        (ring, mapped.socket)
    }

    /// Returns the ring's memory.
    pub const fn region(&self) -> &Region {
        &self.region
    }

    /// Appends up to `limit` received packets to `packets`, and returns their number.
    pub fn poll(
        &mut self,
        socket: &Socket,
        counters: &PacketCounters,
        queue: u16,
        packets: &mut Vec<RxPacket<Buffer>>,
        limit: usize,
    ) -> usize {
        let mut count = 0;
        while count < limit && self.taken < self.region.slots() {
            let slot = self.next;
            // Acquire: the frame and its metadata were written before.
            let status = self.status(slot).load(Ordering::Acquire);
            if status & libc::TP_STATUS_USER == 0 {
                break;
            }
            self.next = if slot + 1 == self.region.slots() { 0 } else { slot + 1 };
            self.taken += 1;
            count += usize::from(self.take(slot, socket, counters, queue, packets));
        }
        count
    }

    /// Appends the packet in a slot to `packets`, unless it must be skipped. Returns whether it was
    /// appended.
    #[inline]
    fn take(
        &mut self,
        slot: usize,
        socket: &Socket,
        counters: &PacketCounters,
        queue: u16,
        packets: &mut Vec<RxPacket<Buffer>>,
    ) -> bool {
        let start = self.start(slot);
        // SAFETY: a slot that was handed over begins with this structure of integers, and slots are
        // aligned to 16 bytes.
        let header = unsafe { start.cast::<libc::tpacket2_hdr>().read() };
        let metadata = Metadata {
            status: header.tp_status,
            seconds: header.tp_sec,
            nanoseconds: header.tp_nsec,
            vlan_tci: header.tp_vlan_tci,
            vlan_tpid: header.tp_vlan_tpid,
            hash: 0,
        };
        let is_long = header.tp_status & libc::TP_STATUS_COPY != 0;
        let length = header.tp_len as usize + VIRTIO;
        let mac = usize::from(header.tp_mac);
        let buffer = if is_long {
            // The frame must be removed from the socket's queue, even if it is then skipped.
            self.long.read(socket, length)
        } else if header.tp_snaplen < header.tp_len {
            // The frame is longer than a slot, and the socket's queue was full.
            None
        } else {
            mac.checked_sub(VIRTIO)
                .and_then(|from| self.region.lend(slot, from..mac + header.tp_snaplen as usize))
        };
        if !self.ignores_outgoing && self.is_outgoing(slot) {
            return false;
        }
        let Some(buffer) = buffer else {
            counters.dropped(queue, 1);
            return false;
        };
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

    /// Returns slots to the kernel, in order, up to the first one that is lent.
    pub fn give_back(&mut self) {
        while self.taken != 0 {
            let slots = self.region.slots();
            let slot = if self.next >= self.taken {
                self.next - self.taken
            } else {
                self.next + slots - self.taken
            };
            if self.region.is_lent(slot) {
                break;
            }
            // Release: all accesses to the slot are over.
            self.status(slot).store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.taken -= 1;
            self.returned += 1;
        }
    }

    /// Returns how many frames have been received and their slots returned to the kernel.
    pub const fn returned(&self) -> u64 {
        self.returned
    }

    /// Returns whether more than half of the slots are taken, so that the kernel cannot fill them.
    pub const fn is_crowded(&self) -> bool {
        self.taken * 2 > self.region.slots()
    }

    fn start(&self, slot: usize) -> *mut u8 {
        debug_assert!(slot < self.region.slots());
        // SAFETY: the slot lies within the memory.
        unsafe { self.region.start().as_ptr().add(slot * self.region.slot_size()) }
    }

    fn status(&self, slot: usize) -> &AtomicU32 {
        // SAFETY: a slot begins with its status, which both sides change atomically. The memory
        // lives as long as the region.
        unsafe { AtomicU32::from_ptr(self.start(slot).cast()) }
    }

    /// Returns whether this machine sent the frame in a slot. The link-layer address after the
    /// slot's header tells.
    fn is_outgoing(&self, slot: usize) -> bool {
        // SAFETY: a slot that was handed over contains a complete address at this offset.
        let kind =
            unsafe { self.start(slot).add(size_of::<libc::tpacket2_hdr>() + PACKET_TYPE).read() };
        kind == libc::PACKET_OUTGOING
    }
}

/// Offset of `sll_pkttype` in `struct sockaddr_ll`.
const PACKET_TYPE: usize = std::mem::offset_of!(libc::sockaddr_ll, sll_pkttype);

// The link-layer address follows the slot's header directly, since that ends at a multiple of
// `TPACKET_ALIGNMENT`.
const _: () = assert!(size_of::<libc::tpacket2_hdr>().is_multiple_of(16));

/// Memory for frames longer than a slot of the ring, which are read from the socket: pools of slots
/// in two sizes, or a separate allocation.
#[derive(Debug, Default)]
struct LongFrames {
    /// Slots for super-packets up to 64 KB.
    super_packets: Option<BufferPool>,
    /// Slots for BIG TCP super-packets.
    big_tcp: Option<BufferPool>,
}

/// Number of slots for super-packets, and their size: 64 KB, headers and a reserve. They are few,
/// to stay in the cache.
const SUPER_PACKET_SLOTS: (usize, usize) = (32, 68 << 10);

/// Number and size of slots for BIG TCP super-packets.
const BIG_TCP_SLOTS: (usize, usize) = (16, 260 << 10);

/// Maximum length of a frame in bytes; longer frames are dropped. The kernel's BIG TCP
/// super-packets have at most half of it (`GSO_MAX_SIZE`).
const MAX_FRAME_LENGTH: usize = 1 << 20;

impl LongFrames {
    /// Reads the next frame, of `length` bytes including its virtio header, from the socket.
    /// Returns `None` if there is no frame, or if it is dropped for lack of memory.
    fn read(&mut self, socket: impl AsFd, length: usize) -> Option<Buffer> {
        let (pool, (slots, slot_size)) = if length <= SUPER_PACKET_SLOTS.1 {
            (&mut self.super_packets, SUPER_PACKET_SLOTS)
        } else {
            (&mut self.big_tcp, BIG_TCP_SLOTS)
        };
        if pool.is_none() {
            *pool = BufferPool::try_new(slots, slot_size);
        }
        if let Some(pool) = pool
            && length <= slot_size
            && let Some(slot) = pool.free()
        {
            let read = receive(socket, pool.slot_mut(slot)?)?;
            return pool.lend(slot, 0..read);
        }
        let mut bytes = Vec::new();
        if length > MAX_FRAME_LENGTH || bytes.try_reserve_exact(length).is_err() {
            // The frame must be removed from the socket's queue, since its slot in the ring is
            // taken.
            return receive(socket, &mut [0; VIRTIO]).and(None);
        }
        bytes.resize(length, 0);
        let read = receive(socket, &mut bytes)?;
        bytes.truncate(read);
        Some(Buffer::from(bytes))
    }
}

/// Reads one frame from the socket into `room`, and returns its length. A frame that does not fit
/// is dropped.
fn receive(socket: impl AsFd, room: &mut [u8]) -> Option<usize> {
    loop {
        match rustix::net::recv(&socket, &mut *room, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            Ok((_, length)) => return (length <= room.len()).then_some(length),
            // The socket's pending error is returned first, once.
            Err(rustix::io::Errno::INTR | rustix::io::Errno::NETDOWN) => {}
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

    use super::*;
    use crate::without_memory::{is_run_in_a_child, limit_memory, take_all_memory};

    /// A pair of connected sockets that keep frame boundaries, like a packet socket.
    fn pair() -> [std::os::fd::OwnedFd; 2] {
        socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::empty(), None)
            .expect("descriptors")
            .into()
    }

    #[test]
    fn a_frame_that_there_is_no_memory_for_is_dropped() {
        if is_run_in_a_child("packet::slots::tests::a_frame_that_there_is_no_memory_for_is_dropped")
        {
            return;
        }
        let ([from, to], mut frames) = (pair(), LongFrames::default());
        let sent = [100_000, 90_000].map(|length| vec![length as u8; length]);
        sent.iter()
            .for_each(|frame| _ = send(&from, frame, SendFlags::empty()).expect("there is room"));
        limit_memory(4 << 20);
        let held = take_all_memory();
        let first = frames.read(&to, sent[0].len());
        drop(held);
        let second = frames.read(&to, sent[1].len());
        assert!(first.is_none(), "there was no memory for it");
        assert_eq!(second.expect("the next frame").bytes(), sent[1]);
    }

    #[test]
    fn a_frame_longer_than_any_is_dropped() {
        let ([from, to], mut frames) = (pair(), LongFrames::default());
        for frame in [[1; 90], [2; 90]] {
            send(&from, &frame, SendFlags::empty()).expect("there is room");
        }
        assert!(frames.read(&to, MAX_FRAME_LENGTH + 1).is_none());
        assert_eq!(frames.read(&to, 90).expect("the next frame").bytes(), [2; 90]);
    }
}
