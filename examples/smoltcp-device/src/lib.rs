//! GRO and TSO for [smoltcp](https://docs.rs/smoltcp), around any of its devices: 57 lines of the
//! user's own here, and in `tokens.rs` the 46 lines that smoltcp asks of every device.
//!
//! - **Receive.** The frames that wait in the device are joined before smoltcp sees them. What
//!   merged has a complete checksum; smoltcp verifies it, as that of a packet which came alone.
//! - **Send.** smoltcp sends up to 64 KB at a time and says how long the segments may be (its
//!   feature `segmentation-offload`). They are cut here, with complete checksums. The MTU stays the
//!   device's own, so peers are told the right maximum segment size.
//!
//! ```
//! use smoltcp::phy::{Device, Loopback, Medium};
//! use superpacket_smoltcp_device::OffloadDevice;
//!
//! // A `TunTapInterface` or a `RawSocket` is wrapped as this is; an `Interface` takes the result.
//! let device = OffloadDevice::new(Loopback::new(Medium::Ethernet));
//! assert!(device.capabilities().segmentation.tcpv4.is_some());
//! ```

mod tokens;

pub use tokens::{Received, Sending};

// The user's own lines begin here.
use std::collections::VecDeque;
use std::iter;
use std::num::NonZeroUsize;

use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;
use superpacket::{
    BatchAggregator, Gso, GsoKind, GsoPacket, HashKey, Layer, Policy, SegmentOptions, SegmentSize,
    Segmenter, wire,
};

/// A device of smoltcp that receives and sends super-packets, around one that does not.
#[derive(Debug)]
pub struct OffloadDevice<D> {
    device: D,
    layer: Layer,
    aggregator: BatchAggregator,
    segmenter: Segmenter,
    /// Packets that smoltcp has still to be given.
    received: VecDeque<Vec<u8>>,
    /// Frames that the device has still to be given, when smoltcp polls next.
    unsent: VecDeque<Vec<u8>>,
}

impl<D: Device> OffloadDevice<D> {
    /// Wraps a device of Ethernet frames or of IP packets.
    pub fn new(device: D) -> Self {
        let layer =
            if device.capabilities().medium == Medium::Ip { Layer::Ip } else { Layer::Ethernet };
        let aggregator = BatchAggregator::new(layer, Policy::gro(), HashKey::random());
        OffloadDevice {
            device,
            layer,
            aggregator,
            segmenter: Segmenter::new(),
            received: VecDeque::new(),
            unsent: VecDeque::new(),
        }
    }

    /// What the device offers, and TCP in up to 65,535 bytes at a time, without checksums. Not over
    /// IPv6, where smoltcp 0.14 drops what is longer than the MTU.
    fn with_offloads(&self) -> DeviceCapabilities {
        let mut capabilities = self.device.capabilities();
        capabilities.segmentation.tcpv4 = NonZeroUsize::new(65_535);
        capabilities.checksum.tcp = Checksum::Rx;
        capabilities
    }

    /// Joins the frames that wait in the device, up to 64.
    fn aggregate(&mut self, now: Instant) {
        let waiting = iter::from_fn(|| Some(self.device.receive(now)?.0.consume(<[u8]>::to_vec)));
        let frames: Vec<_> = waiting.take(64).collect();
        self.aggregator.poll(&frames, |packet| {
            let mut bytes = Vec::with_capacity(packet.length());
            packet.copy_to(&mut bytes);
            self.received.push_back(bytes);
        });
    }

    /// Cuts what smoltcp sends into frames of at most `size` bytes of TCP payload, with checksums.
    fn segment(&mut self, packet: &[u8], size: usize) {
        let gso = wire::parse(packet, packet.len(), self.layer).ok().and_then(|layout| {
            match (layout.protocol, layout.version) {
                (wire::Protocol::Tcp, wire::IpVersion::V4) => {
                    Some(Gso::new(GsoKind::Tcp4, SegmentSize::new(size)?))
                }
                (wire::Protocol::Tcp, wire::IpVersion::V6) => {
                    Some(Gso::new(GsoKind::Tcp6, SegmentSize::new(size)?))
                }
                _ => None,
            }
        });
        let packet = GsoPacket::linear(&packet, gso).with_layer(self.layer);
        // What smoltcp makes is not refused; a raw socket's bad headers are, and dropped here.
        let _ = self.segmenter.segment(&packet, &SegmentOptions::default(), |segment| {
            let mut frame = Vec::with_capacity(segment.length());
            segment.copy_to(&mut frame);
            self.unsent.push_back(frame);
        });
    }

    /// Sends as many frames as the device takes; `None` if some are left.
    fn flush(&mut self, now: Instant) -> Option<()> {
        while let Some(frame) = self.unsent.front() {
            self.device.transmit(now)?.consume(frame.len(), |room| room.copy_from_slice(frame));
            self.unsent.pop_front();
        }
        Some(())
    }
}
// The user's own lines end here.

impl<D> OffloadDevice<D> {
    /// The device that is wrapped.
    pub fn inner(&mut self) -> &mut D {
        &mut self.device
    }
}
