//! The receiving end of a TAP or TUN port, which makes one `read` call per packet.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;
use superpacket::packet::RxPacket;

use super::device::TapDevice;
use crate::clock::monotonic_nanoseconds;
use crate::slots::{LARGE_SLOT, PacketSlots};
use crate::{Buffer, PortError, Receive};

/// The receiving end of one queue of a TAP or TUN port.
#[derive(Debug)]
pub(super) struct TapReceiver {
    device: Arc<TapDevice>,
    queue: u16,
    slots: PacketSlots,
}

impl TapReceiver {
    pub(super) fn new(device: Arc<TapDevice>, queue: u16, slots: PacketSlots) -> Self {
        TapReceiver { device, queue, slots }
    }

    /// Returns the packet whose `length` bytes, virtio header included, lie in the slot `large`,
    /// and whether the returned packet occupies that slot. A small packet is copied into a small
    /// slot instead.
    fn packet(
        &mut self,
        large: usize,
        length: usize,
        time: u64,
    ) -> Option<(RxPacket<Buffer>, bool)> {
        let format = self.device.format;
        let start = format.length();
        let bytes = self.slots.large_mut(large)?;
        let packet =
            bytes.get(start..length).filter(|packet| !packet.is_empty() && length < LARGE_SLOT)?;
        let offload = match self.device.offload(bytes, packet) {
            Ok(offload) => offload,
            Err(error) => {
                self.device.counters.log_header(&self.device.text, &error);
                return None;
            }
        };
        let (buffer, keeps) = self.slots.lend(large, start..length)?;
        let mut received = RxPacket::new(buffer).with_checksum(offload.checksum).with_time(time);
        received.gso = offload.gso;
        (received.queue, received.layer) = (self.queue, self.device.layer());
        Some((received, keeps))
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
        self.slots.rewind();
        let time = monotonic_nanoseconds();
        let (mut count, mut free) = (0, None);
        for _ in 0..limit {
            let Some(large) = free.take().or_else(|| self.slots.free_large()) else { break };
            let Some(bytes) = self.slots.large_mut(large) else { break };
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
                        self.device.counters.count_rx_error();
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
                    self.device.counters.count_rx_error();
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
        self.slots.is_crowded()
    }
}
