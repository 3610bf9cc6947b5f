//! GRO and TSO for [smoltcp](https://docs.rs/smoltcp), around any of its devices: 74 lines of the
//! user's own here, and in `tokens.rs` the 49 lines that smoltcp asks of every device.
//!
//! - **Receive.** The frames that wait in the device are merged before smoltcp sees them. A merged
//!   packet has a complete checksum, which smoltcp verifies as usual.
//! - **Send.** smoltcp sends up to 64 KB at a time and says how long the segments may be (its
//!   feature `segmentation-offload`). They are segmented here, with complete checksums. The MTU
//!   stays that of the inner device, so peers learn the right maximum segment size.
//!
//! ```
//! use smoltcp::phy::{Device, Loopback, Medium};
//! use superpacket_smoltcp_device::OffloadDevice;
//!
//! // A `TunTapInterface` or a `RawSocket` is wrapped in the same way; an `Interface` takes the result.
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

/// A smoltcp device that receives and sends super-packets, around a device that does not.
#[derive(Debug)]
pub struct OffloadDevice<D> {
    device: D,
    layer: Layer,
    aggregator: BatchAggregator,
    segmenter: Segmenter,
    /// Packets that smoltcp has not received yet.
    received: VecDeque<Vec<u8>>,
    /// Frames that the device has not accepted yet; they are sent when smoltcp polls next.
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

    /// Returns the inner device's capabilities, with TCP over IPv4 in up to 65,535 bytes at a time
    /// and without computing checksums. IPv6 is left out, because smoltcp 0.14 drops packets longer
    /// than the MTU there.
    fn with_offloads(&self) -> DeviceCapabilities {
        let mut capabilities = self.device.capabilities();
        capabilities.segmentation.tcpv4 = NonZeroUsize::new(65_535);
        capabilities.checksum.tcp = Checksum::Rx;
        capabilities
    }

    /// Merges the frames that wait in the device, up to 64.
    fn aggregate(&mut self, now: Instant) {
        let waiting = iter::from_fn(|| Some(self.device.receive(now)?.0.consume(<[u8]>::to_vec)));
        let frames: Vec<_> = waiting.take(64).collect();
        self.aggregator.poll(&frames, |packet| {
            let mut bytes = Vec::with_capacity(packet.length());
            packet.copy_to(&mut bytes);
            self.received.push_back(bytes);
        });
    }

    /// Segments a packet from smoltcp into frames of at most `size` bytes of TCP payload, with
    /// checksums.
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
        // smoltcp's own packets are never refused; bad headers of a raw socket are, and are dropped
        // here.
        let _ = self.segmenter.segment(&packet, &SegmentOptions::default(), |segment| {
            let mut frame = Vec::with_capacity(segment.length());
            segment.copy_to(&mut frame);
            self.unsent.push_back(frame);
        });
    }

    /// Sends the unsent frames, as many as the device takes; returns `None` if some are left.
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
    /// Returns the inner device.
    pub fn inner(&mut self) -> &mut D {
        &mut self.device
    }
}
