//! The receiving end of a vhost-user port: takes what a guest sends.
//!
//! Each frame is copied once into the port's memory, and its header is read from the copy. See
//! docs/decisions.md for why the guest's memory is not lent.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use superpacket::packet::{Layer, RxPacket};
use superpacket::virtio::{Header, Offload, VirtioError, flags, gso_type};
use superpacket::wire::MAX_HEADER;

use super::features::GuestFeatures;
use super::ring::RingFault;
use super::shared::{ActiveRing, QueuePair, VhostShared, lock};
use crate::clock::monotonic_nanoseconds;
use crate::slots::{LARGE_SLOT, PacketSlots};
use crate::{Buffer, PortError, Receive};

/// The receiving end of one queue.
#[derive(Debug)]
pub(super) struct VhostReceiver {
    shared: Arc<VhostShared>,
    queue: u16,
    slots: PacketSlots,
}

/// The result of polling a ring.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    /// Number of buffers taken from the ring. Each contained a frame or was malformed.
    buffers: usize,
    /// Whether buffers were left because no memory was free for them.
    lacks_slots: bool,
}

impl VhostReceiver {
    pub(super) fn new(shared: Arc<VhostShared>, queue: u16, slots: PacketSlots) -> Self {
        VhostReceiver { shared, queue, slots }
    }

    /// Takes at most `limit` buffers from the ring, and appends their frames to `packets`.
    fn take(
        &mut self,
        active: &mut ActiveRing,
        packets: &mut Vec<RxPacket<Buffer>>,
        limit: usize,
    ) -> Result<Taken, RingFault> {
        let (features, ring) = (active.features, &mut active.ring);
        let (start, time) = (features.format().length(), monotonic_nanoseconds());
        self.slots.rewind();
        let mut taken = Taken::default();
        while taken.buffers < limit {
            ring.begin();
            let Some(buffer) = ring.take()? else { break };
            if buffer.length <= start || buffer.length >= LARGE_SLOT {
                self.shared.counters.count_rx_error();
            } else {
                let Some(mut slot) = self.slots.free(buffer.length) else {
                    ring.put_back(1);
                    taken.lacks_slots = true;
                    break;
                };
                let bytes = &mut slot.bytes()[..buffer.length];
                ring.copy_to(bytes);
                match offload(features, bytes, start) {
                    Ok(offload) => {
                        if let Some(lent) = slot.lend(start..buffer.length) {
                            let mut packet =
                                RxPacket::new(lent).with_checksum(offload.checksum).with_time(time);
                            packet.gso = offload.gso;
                            (packet.queue, packet.layer) = (self.queue, Layer::Ethernet);
                            packets.push(packet);
                        }
                    }
                    Err(error) => self.shared.refuse_header(&error),
                }
            }
            ring.give_back(buffer.head, 0);
            taken.buffers += 1;
        }
        Ok(taken)
    }

    /// Polls a ring, and asks the guest for a notification if it is empty.
    fn poll_ring(
        &mut self,
        pair: &QueuePair,
        active: &mut ActiveRing,
        packets: &mut Vec<RxPacket<Buffer>>,
        limit: usize,
    ) -> Result<(), RingFault> {
        if active.ring.asks_for_kicks() {
            // Before the ring is read, so that a later notification is not forgotten.
            pair.forget_events();
        }
        let before = packets.len();
        let taken = self.take(active, packets, limit);
        active.publish();
        let taken = taken?;
        let is_empty = taken.buffers == 0 && !taken.lacks_slots;
        if !is_empty {
            active.ring.refuse_kicks();
        }
        let has_more = if is_empty && !active.ring.asks_for_kicks() {
            active.ring.ask_for_kicks()?
        } else {
            !is_empty && packets.len() == before
        };
        // Who polls again only if there were packets is told that there is more.
        if has_more {
            pair.wake();
        }
        Ok(())
    }
}

/// Returns the offloads described by the virtio header at the beginning of `bytes`, where the frame
/// begins at `start`.
#[inline]
fn offload(features: GuestFeatures, bytes: &[u8], start: usize) -> Result<Offload, VirtioError> {
    let (format, frame) = (features.format(), &bytes[start..]);
    let mut header = Header::read(bytes, format, features.order())?;
    // What a guest says of checksums that it verified is no verdict, and the other flags are for
    // the other direction (virtio 1.3, section 5.1.6.2).
    header.flags &= flags::NEEDS_CSUM | flags::UDP_TUNNEL_CSUM;
    if header.flags == 0 && header.gso_type == gso_type::NONE {
        return Ok(Offload::default());
    }
    let head = &frame[..frame.len().min(MAX_HEADER)];
    header.offload(format, head, frame.len(), Layer::Ethernet)
}

impl Receive for VhostReceiver {
    fn poll(
        &mut self,
        packets: &mut Vec<RxPacket<Buffer>>,
        limit: usize,
    ) -> Result<usize, PortError> {
        let before = packets.len();
        let shared = Arc::clone(&self.shared);
        let pair = &shared.pairs[usize::from(self.queue)];
        let mut slot = lock(&pair.from_guest);
        match &mut *slot {
            None => pair.forget_events(),
            Some(active) => {
                if let Err(fault) = self.poll_ring(pair, active, packets, limit) {
                    *slot = None;
                    drop(slot);
                    shared.fault(&fault);
                }
            }
        }
        Ok(packets.len() - before)
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.shared.pairs[usize::from(self.queue)].events()
    }

    fn is_crowded(&self) -> bool {
        self.slots.is_crowded()
    }
}
