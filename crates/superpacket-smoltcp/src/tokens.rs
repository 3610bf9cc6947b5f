//! The implementation of smoltcp's `Device`, with its two tokens.

use alloc::vec::Vec;

use smoltcp::phy::{Device, DeviceCapabilities, PacketMeta, RxToken, TxToken};
use smoltcp::time::Instant;

use crate::device::{OffloadDevice, OffloadSender};

impl<D: Device + 'static> Device for OffloadDevice<D> {
    type RxToken<'a> = OffloadRxToken<'a>;
    type TxToken<'a> = OffloadTxToken<'a, D>;

    fn capabilities(&self) -> DeviceCapabilities {
        self.offload_capabilities()
    }

    fn receive(&mut self, now: Instant) -> Option<(OffloadRxToken<'_>, OffloadTxToken<'_, D>)> {
        self.transmit.flush(now)?;
        self.receive_burst(now);
        let packet = self.receive.packets.pop_front()?;
        Some((
            OffloadRxToken { packet, spare: &mut self.receive.spare },
            OffloadTxToken { transmit: &mut self.transmit, now, size: None },
        ))
    }

    fn transmit(&mut self, now: Instant) -> Option<OffloadTxToken<'_, D>> {
        self.transmit.flush(now)?;
        Some(OffloadTxToken { transmit: &mut self.transmit, now, size: None })
    }
}

/// A received packet for smoltcp, which may be a merged one.
#[derive(Debug)]
pub struct OffloadRxToken<'a> {
    packet: Vec<u8>,
    spare: &'a mut Vec<Vec<u8>>,
}

impl RxToken for OffloadRxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        let result = take(&self.packet);
        self.spare.push(self.packet);
        result
    }
}

/// A token to send one packet, which may be a super-packet.
#[derive(Debug)]
pub struct OffloadTxToken<'a, D> {
    transmit: &'a mut OffloadSender<D>,
    now: Instant,
    /// Maximum TCP payload per frame in bytes; `None` if the packet is a single frame.
    size: Option<usize>,
}

impl<D: Device> TxToken for OffloadTxToken<'_, D> {
    fn set_meta(&mut self, meta: PacketMeta) {
        self.size = meta.segmentation_offload_size.map(|size| size.get().into());
    }

    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, fill: F) -> R {
        self.transmit.packet.clear();
        self.transmit.packet.resize(length, 0);
        let result = fill(&mut self.transmit.packet);
        self.transmit.send(self.size, self.now);
        result
    }
}
