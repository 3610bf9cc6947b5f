//! The receiving end of a TAP or TUN port, which makes one `read` call per packet.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use superpacket::packet::RxPacket;

use super::device::TapDevice;
use crate::{Buffer, BufferPool, POLL_LIMIT, PortError, Receive};

/// Size in bytes of a slot for the largest packet: an IP packet of 65,535 bytes (`tso_max_size` of
/// TUN and TAP devices is 65,536), an Ethernet header with two tags, a virtio header, and one byte
/// that reveals longer packets.
const LARGE_SLOT: usize = 68 * 1024;

/// Number of large slots per queue, if there are few queues: enough for one poll of super-packets,
/// 4 MB.
const LARGE_SLOTS: usize = 64;

/// Size in bytes of a slot for small packets: a frame with 1,500 bytes of payload. An odd number of
/// cache lines, so that packets spread over the cache's sets.
const SMALL_SLOT: usize = 33 * 64;

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
pub(super) struct TapSlots {
    small: BufferPool,
    large: BufferPool,
}

impl TapSlots {
    /// Allocates the memory of one of `queues` queues; `None` if there is not enough. Slots occupy
    /// memory from their first use on.
    pub(super) fn try_new(queues: u16) -> Option<Self> {
        let small = BufferPool::try_new(share(SMALL_SLOTS, queues), SMALL_SLOT)?;
        Some(TapSlots {
            small,
            large: BufferPool::try_new(share(LARGE_SLOTS, queues), LARGE_SLOT)?,
        })
    }

    /// Returns the total size of the memory of `queues` queues in bytes.
    pub(super) fn bytes(queues: u16) -> usize {
        usize::from(queues)
            * (share(SMALL_SLOTS, queues) * SMALL_SLOT + share(LARGE_SLOTS, queues) * LARGE_SLOT)
    }
}

/// The receiving end of one queue of a TAP or TUN port.
#[derive(Debug)]
pub(super) struct TapReceiver {
    device: Arc<TapDevice>,
    queue: u16,
    small: BufferPool,
    large: BufferPool,
}

impl TapReceiver {
    pub(super) fn new(device: Arc<TapDevice>, queue: u16, slots: TapSlots) -> Self {
        TapReceiver { device, queue, small: slots.small, large: slots.large }
    }

    fn error(&self) {
        self.device.counters.rx_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the packet whose `length` bytes, virtio header included, lie in the slot `large`,
    /// and whether it keeps that slot. A small packet is copied into a small slot instead.
    fn packet(
        &mut self,
        large: usize,
        length: usize,
        time: u64,
    ) -> Option<(RxPacket<Buffer>, bool)> {
        let format = self.device.format;
        let start = format.length();
        let bytes = self.large.slot_mut(large)?;
        let packet =
            bytes.get(start..length).filter(|packet| !packet.is_empty() && length < LARGE_SLOT)?;
        let offload = match self.device.offload(bytes, packet) {
            Ok(offload) => offload,
            Err(error) => {
                self.device.warn_of_header(&error);
                return None;
            }
        };
        let small = if packet.len() <= SMALL_SLOT { self.small.free() } else { None };
        let buffer = match small.and_then(|slot| Some((slot, self.small.slot_mut(slot)?))) {
            Some((slot, to)) => {
                to[..packet.len()].copy_from_slice(packet);
                let end = packet.len();
                self.small.lend(slot, 0..end)
            }
            None => self.large.lend(large, start..length),
        };
        let mut received = RxPacket::new(buffer?).with_checksum(offload.checksum).with_time(time);
        received.gso = offload.gso;
        (received.queue, received.layer) = (self.queue, self.device.layer());
        Some((received, small.is_none()))
    }
}

impl Receive for TapReceiver {
    fn poll(
        &mut self,
        packets: &mut Vec<RxPacket<Buffer>>,
        limit: usize,
    ) -> Result<usize, PortError> {
        // Starts the search for free slots at the first ones: recently returned slots are in the
        // cache.
        self.small.rewind();
        self.large.rewind();
        let time = monotonic_nanoseconds();
        let (mut count, mut free) = (0, None);
        for _ in 0..limit {
            let Some(large) = free.take().or_else(|| self.large.free()) else { break };
            let Some(bytes) = self.large.slot_mut(large) else { break };
            match rustix::io::retry_on_intr(|| {
                rustix::io::read(self.device.queue(self.queue), &mut *bytes)
            }) {
                Ok(length) => match self.packet(large, length, time) {
                    Some((packet, keeps)) => {
                        packets.push(packet);
                        count += 1;
                        free = (!keeps).then_some(large);
                    }
                    None => {
                        self.error();
                        free = Some(large);
                    }
                },
                Err(Errno::AGAIN) => break,
                Err(Errno::BADFD | Errno::NODEV | Errno::NXIO) if count == 0 => {
                    return Err(self.device.gone());
                }
                Err(Errno::BADFD | Errno::NODEV | Errno::NXIO) => break,
                // The kernel could not describe or copy this packet, and has dropped it.
                Err(_) => {
                    self.error();
                    free = Some(large);
                }
            }
        }
        Ok(count)
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.device.queue(self.queue)
    }

    fn is_crowded(&self) -> bool {
        self.small.is_crowded() || self.large.is_crowded()
    }
}

fn monotonic_nanoseconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_queues_have_fewer_slots_each() {
        let slots = [1, 32, 33, 64, 128, 256]
            .map(|queues| (share(SMALL_SLOTS, queues), share(LARGE_SLOTS, queues)));
        assert_eq!(slots, [(1024, 64), (1024, 64), (992, 62), (512, 32), (256, 16), (256, 16)]);
        let mebibytes = [1, 32, 64, 128, 256].map(|queues| TapSlots::bytes(queues) >> 20);
        assert_eq!(mebibytes, [6, 202, 202, 202, 404]);
    }
}
