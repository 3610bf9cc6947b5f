//! Receiving: taking frames from the RX ring, and returning chunks to the fill ring.

use std::sync::Arc;

use rustix::net::xdp::{XdpDesc, XdpDescOptions};
use rustix::time::{ClockId, clock_gettime};

use superpacket::packet::{FlowHash, MAX_BUFFERS, RxPacket};

use super::counts::XdpCounts;
use super::facts::PortFacts;
use super::instructions::{MARK, METADATA};
use super::partial;
use super::ring::{Consumer, Producer};
use super::umem::Umem;
use crate::{Buffer, Region};

/// The receiving half of an AF_XDP socket.
#[derive(Debug)]
pub(super) struct ReceiveHalf {
    rx: Consumer<XdpDesc>,
    fill: Producer<u64>,
    /// The chunks for received frames; `None` only after the queue is dropped.
    pub(super) region: Option<Region>,
    umem: Arc<Umem>,
    /// Number of the first chunk of `region` in the UMEM.
    first: u32,
    /// Slots of `region` whose frames were taken and which have not been returned to the kernel.
    outstanding: Vec<u32>,
}

impl ReceiveHalf {
    pub(super) fn new(
        rx: Consumer<XdpDesc>,
        fill: Producer<u64>,
        region: Region,
        umem: Arc<Umem>,
        first: u32,
    ) -> Self {
        // Some slots may still be lent from the memory's previous use.
        let outstanding = (0..region.slots() as u32).collect();
        let mut half = ReceiveHalf { rx, fill, region: Some(region), umem, first, outstanding };
        half.refill();
        half
    }

    /// Returns all chunks that are no longer in use to the kernel, through the fill ring. Returns
    /// the number of chunks returned.
    pub(super) fn refill(&mut self) -> usize {
        let Some(region) = &self.region else { return 0 };
        let before = self.outstanding.len();
        let size = u64::from(self.umem.frame_size());
        let (fill, umem, first) = (&mut self.fill, &self.umem, self.first);
        let mut room = fill.room();
        self.outstanding.retain(|&slot| {
            // The lent flag is checked first: once it is clear, no descriptor for the slot can be
            // added to a TX ring.
            let keep =
                room == 0 || region.is_lent(slot as usize) || umem.is_in_flight(first + slot);
            if !keep {
                fill.push(u64::from(first + slot) * size);
                room -= 1;
            }
            keep
        });
        fill.publish();
        before - self.outstanding.len()
    }

    /// Appends up to `limit` frames from the RX ring, marked as received by queue `number`.
    pub(super) fn take(
        &mut self,
        packets: &mut Vec<RxPacket<Buffer>>,
        limit: usize,
        number: u32,
        counts: &XdpCounts,
        facts: &PortFacts,
    ) -> usize {
        let available = self.rx.available();
        if available == 0 {
            return 0;
        }
        let now = clock_gettime(ClockId::Realtime);
        let time = (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64);
        let (mut used, mut count) = (0, 0);
        while count < limit && used < available {
            let continued =
                |index| self.rx.peek(index).options.contains(XdpDescOptions::XDP_PKT_CONTD);
            // The kernel publishes all descriptors of a frame together; otherwise the frame waits
            // for the rest.
            let Some(last) = (used..available).find(|&index| !continued(index)) else { break };
            // Read before the chunk is lent.
            let hash = if facts.hash { self.hash(used) } else { None };
            match self.packet(used, last) {
                Some(mut packet) => {
                    packet.hash = hash;
                    packet.time = time;
                    packet.queue = number as u16;
                    if facts.detect {
                        let length = packet.length();
                        let checksum = packet
                            .buffers()
                            .next()
                            .map(|first| partial::detect(first.bytes(), length));
                        packet.checksum = checksum.unwrap_or_default();
                    }
                    packets.push(packet);
                    count += 1;
                }
                None => XdpCounts::add(&counts.malformed, 1),
            }
            used = last + 1;
        }
        self.rx.release(used);
        count
    }

    /// Returns the frame with the descriptors `from` to `last`; `None` if they are invalid.
    fn packet(&mut self, from: u32, last: u32) -> Option<RxPacket<Buffer>> {
        if last - from >= MAX_BUFFERS as u32 {
            return self.copied(from, last);
        }
        let mut packet = self.buffer(from).map(RxPacket::new);
        for index in from + 1..=last {
            // The chunks of all descriptors are taken, even if some are invalid, so that all are
            // returned.
            let buffer = self.buffer(index);
            packet = packet
                .zip(buffer)
                .and_then(|(mut packet, buffer)| packet.push(buffer).is_ok().then_some(packet));
        }
        packet
    }

    /// Copies a frame with more chunks than a packet can have buffers.
    fn copied(&mut self, from: u32, last: u32) -> Option<RxPacket<Buffer>> {
        let mut bytes = Some(Vec::new());
        for index in from..=last {
            let buffer = self.buffer(index);
            bytes = bytes.zip(buffer).map(|(mut bytes, buffer)| {
                bytes.extend_from_slice(buffer.bytes());
                bytes
            });
        }
        Some(RxPacket::new(Buffer::from(bytes?)))
    }

    /// Returns the hash that the XDP program stored before the frame whose first descriptor is
    /// `index`.
    fn hash(&mut self, index: u32) -> Option<FlowHash> {
        let (slot, within) = self.locate(index)?;
        let before =
            self.region.as_mut()?.slot_mut(slot)?.get_mut(within.checked_sub(METADATA)?..within)?;
        let (mark, hash) = before.split_first_chunk_mut::<4>()?;
        let is_there = u32::from_ne_bytes(std::mem::take(mark)) == MARK;
        let hash = u32::from_ne_bytes(hash.try_into().ok()?);
        (is_there && hash != 0).then_some(FlowHash(hash))
    }

    /// Returns the slot of the descriptor `index`, and the offset of its bytes in the slot.
    fn locate(&self, index: u32) -> Option<(usize, usize)> {
        let (address, size) = (self.rx.peek(index).addr, u64::from(self.umem.frame_size()));
        let slot = u32::try_from(address / size).ok()?.checked_sub(self.first)?;
        Some((slot as usize, (address % size) as usize))
    }

    /// Lends the bytes of the descriptor `index` as a buffer.
    fn buffer(&mut self, index: u32) -> Option<Buffer> {
        let length = self.rx.peek(index).len as usize;
        let (slot, within) = self.locate(index)?;
        let region = self.region.as_mut().filter(|region| slot < region.slots())?;
        self.outstanding.push(slot as u32);
        region.lend(slot, within..within + length)
    }

    /// Returns whether the kernel processes the fill ring only after a system call.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.fill.needs_wakeup()
    }

    /// Returns whether more than half of the chunks are outstanding.
    pub(super) fn is_crowded(&self) -> bool {
        self.region.as_ref().is_some_and(|region| self.outstanding.len() * 2 > region.slots())
    }

    /// Returns whether so many chunks are outstanding that the completions of other queues, which
    /// may hold some of the chunks, should be processed.
    pub(super) fn is_short(&self) -> bool {
        self.region.as_ref().is_some_and(|region| self.outstanding.len() * 4 > region.slots())
    }
}
