//! The items that smoltcp requires of every device: two tokens, and three methods.

// The lines of the tokens begin here.
use smoltcp::phy::{Device, DeviceCapabilities, PacketMeta, RxToken, TxToken};
use smoltcp::time::Instant;

use crate::OffloadDevice;

impl<D: Device + 'static> Device for OffloadDevice<D> {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sending<'a, D>;

    fn capabilities(&self) -> DeviceCapabilities {
        self.with_offloads()
    }

    fn receive(&mut self, now: Instant) -> Option<(Received, Sending<'_, D>)> {
        self.flush(now)?;
        if self.received.is_empty() {
            self.aggregate(now);
        }
        Some((
            Received(self.received.pop_front()?),
            Sending { device: self, now, size: usize::from(u16::MAX) },
        ))
    }

    fn transmit(&mut self, now: Instant) -> Option<Sending<'_, D>> {
        self.flush(now)?;
        Some(Sending { device: self, now, size: usize::from(u16::MAX) })
    }
}

/// A received packet, which may be a merged one.
#[derive(Debug)]
pub struct Received(Vec<u8>);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(&self.0)
    }
}

/// A token to send one packet, which may be a super-packet.
#[derive(Debug)]
pub struct Sending<'a, D> {
    device: &'a mut OffloadDevice<D>,
    now: Instant,
    /// Maximum TCP payload per frame in bytes.
    size: usize,
}

impl<D: Device> TxToken for Sending<'_, D> {
    fn set_meta(&mut self, meta: PacketMeta) {
        self.size = meta.segmentation_offload_size.map_or(self.size, |size| size.get().into());
    }

    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, fill: F) -> R {
        let mut packet = vec![0; length];
        let result = fill(&mut packet);
        self.device.segment(&packet, self.size);
        self.device.flush(self.now);
        result
    }
}
// The lines of the tokens end here.
