//! A device that adds GRO and TSO to another device.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::num::NonZeroUsize;

use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;
use superpacket::wire::{IpVersion, Protocol, parse};
use superpacket::{
    BatchAggregator, Gso, GsoKind, GsoPacket, HashKey, Layer, Policy, SegmentOptions, SegmentSize,
    Segmenter,
};

/// Maximum frames taken from the device before smoltcp sees the first of them.
pub const BURST: usize = 64;

/// Maximum length of an IP packet, in bytes.
pub(crate) const MAX_IP_LENGTH: usize = 65_535;

/// Length of an Ethernet header, in bytes.
pub(crate) const ETHERNET_HEADER: usize = 14;

/// A smoltcp device that receives and sends super-packets, around a device that does not.
#[derive(Debug)]
pub struct OffloadDevice<D> {
    pub(crate) receive: OffloadReceiver,
    pub(crate) transmit: OffloadSender<D>,
}

/// Counters of the frames and packets received and sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OffloadCounters {
    /// Number of frames received from the inner device.
    pub frames_in: u64,
    /// Number of packets passed to smoltcp, after merging.
    pub packets_in: u64,
    /// Number of packets that smoltcp sent.
    pub packets_out: u64,
    /// Frames sent to the inner device, after segmentation.
    pub frames_out: u64,
    /// Packets from smoltcp that could not be segmented, such as a raw socket's with bad headers.
    pub refused: u64,
}

/// The receiving side of a device, which merges frames into packets.
#[derive(Debug)]
pub(crate) struct OffloadReceiver {
    aggregator: BatchAggregator,
    /// Buffers for the frames that are received and merged together.
    frames: Vec<Vec<u8>>,
    /// Merged packets that smoltcp has not received yet.
    pub(crate) packets: VecDeque<Vec<u8>>,
    /// Unused buffers for later merged packets.
    pub(crate) spare: Vec<Vec<u8>>,
}

/// The sending side of a device, which segments packets into frames.
#[derive(Debug)]
pub(crate) struct OffloadSender<D> {
    device: D,
    layer: Layer,
    segmenter: Segmenter,
    /// Buffer into which smoltcp writes a packet.
    pub(crate) packet: Vec<u8>,
    waiting: FrameQueue,
    counters: OffloadCounters,
}

/// Frames to be sent for which the inner device had no room yet.
#[derive(Debug, Default)]
struct FrameQueue {
    frames: VecDeque<Vec<u8>>,
    /// Buffers of frames that were sent, for later frames.
    spare: Vec<Vec<u8>>,
}

impl<D: Device> OffloadDevice<D> {
    /// Wraps a device of Ethernet frames or of IP packets.
    pub fn new(device: D, key: HashKey) -> Self {
        let layer =
            if device.capabilities().medium == Medium::Ip { Layer::Ip } else { Layer::Ethernet };
        OffloadDevice {
            receive: OffloadReceiver {
                aggregator: BatchAggregator::new(layer, Policy::gro(), key),
                frames: Vec::new(),
                packets: VecDeque::new(),
                spare: Vec::new(),
            },
            transmit: OffloadSender {
                device,
                layer,
                segmenter: Segmenter::new(),
                packet: Vec::new(),
                waiting: FrameQueue::default(),
                counters: OffloadCounters::default(),
            },
        }
    }

    /// Returns the inner device's capabilities, with segmentation of TCP over IPv4 up to 64 KB and
    /// without computing TCP checksums.
    pub(crate) fn offload_capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = self.transmit.device.capabilities();
        let link = if self.transmit.layer == Layer::Ethernet { ETHERNET_HEADER } else { 0 };
        capabilities.segmentation.tcpv4 = NonZeroUsize::new(MAX_IP_LENGTH + link);
        capabilities.checksum.tcp = match capabilities.checksum.tcp {
            Checksum::Both | Checksum::Rx => Checksum::Rx,
            Checksum::Tx | Checksum::None => Checksum::None,
        };
        capabilities
    }

    /// Receives and merges the frames that wait in the device, unless smoltcp has not received all
    /// earlier packets.
    pub(crate) fn receive_burst(&mut self, now: Instant) {
        let OffloadReceiver { aggregator, frames, packets, spare } = &mut self.receive;
        if !packets.is_empty() {
            return;
        }
        let mut count = 0;
        while count < BURST
            && let Some((token, _)) = self.transmit.device.receive(now)
        {
            if count == frames.len() {
                frames.push(Vec::new());
            }
            let frame = &mut frames[count];
            frame.clear();
            token.consume(|bytes| frame.extend_from_slice(bytes));
            count += 1;
        }
        aggregator.poll(&frames[..count], |packet| {
            let mut bytes = spare.pop().unwrap_or_default();
            bytes.clear();
            packet.copy_to(&mut bytes);
            packets.push_back(bytes);
        });
        self.transmit.counters.frames_in += count as u64;
        self.transmit.counters.packets_in += packets.len() as u64;
    }
}

impl<D> OffloadDevice<D> {
    /// Returns the inner device.
    pub const fn get_ref(&self) -> &D {
        &self.transmit.device
    }

    /// Returns the inner device. Frames received from it directly are not merged, and frames sent
    /// to it directly overtake those that wait here.
    pub const fn get_mut(&mut self) -> &mut D {
        &mut self.transmit.device
    }

    /// Returns the inner device. Frames that wait to be sent are lost.
    pub fn into_inner(self) -> D {
        self.transmit.device
    }

    /// Returns the counters of frames and packets.
    pub const fn counters(&self) -> OffloadCounters {
        self.transmit.counters
    }

    /// Returns the counters of the aggregation, including how many packets left it for which
    /// reason.
    pub const fn aggregation(&self) -> &superpacket::AggregateCounters {
        self.receive.aggregator.counters()
    }

    /// Changes which packets merge, and how many. The default is [`Policy::gro`]. A
    /// policy for UDP is wrong here, because smoltcp's UDP sockets would take merged datagrams for
    /// a single one.
    pub fn set_policy(&mut self, policy: Policy) {
        self.receive.aggregator.set_policy(policy);
    }
}

impl<D: Device> OffloadSender<D> {
    /// Sends the packet that smoltcp has written, in frames of at most `size` bytes of TCP payload.
    pub(crate) fn send(&mut self, size: Option<usize>, now: Instant) {
        let OffloadSender { device, layer, segmenter, packet, waiting, counters } = self;
        counters.packets_out += 1;
        // smoltcp omits only the checksum of TCP.
        let tcp = parse(packet, packet.len(), *layer)
            .ok()
            .filter(|layout| layout.protocol == Protocol::Tcp);
        let Some(layout) = tcp else { return self.send_whole(now) };
        let kind = if layout.version == IpVersion::V4 { GsoKind::Tcp4 } else { GsoKind::Tcp6 };
        let size = size.and_then(SegmentSize::new).or(SegmentSize::new(MAX_IP_LENGTH));
        let packet =
            GsoPacket::linear(packet, size.map(|size| Gso::new(kind, size))).with_layer(*layer);
        let segmented = segmenter.segment(&packet, &SegmentOptions::default(), |segment| {
            counters.frames_out += 1;
            waiting.send_or_queue(
                device,
                now,
                core::iter::once(segment.header()).chain(segment.payload()),
            );
        });
        counters.refused += u64::from(segmented.is_err());
    }

    /// Sends the packet unchanged.
    fn send_whole(&mut self, now: Instant) {
        self.counters.frames_out += 1;
        self.waiting.send_or_queue(&mut self.device, now, core::iter::once(self.packet.as_slice()));
    }

    /// Sends the waiting frames, as many as the device takes; returns `None` if some are left.
    pub(crate) fn flush(&mut self, now: Instant) -> Option<()> {
        self.waiting.flush(&mut self.device, now)
    }
}

impl FrameQueue {
    /// Sends a frame with these parts, or queues it if the device is full or other frames wait.
    fn send_or_queue<'a>(
        &mut self,
        device: &mut impl Device,
        now: Instant,
        parts: impl Iterator<Item = &'a [u8]> + Clone,
    ) {
        let token = if self.frames.is_empty() { device.transmit(now) } else { None };
        match token {
            Some(token) => token.consume(parts.clone().map(<[u8]>::len).sum(), |room| {
                let mut rest = room;
                for part in parts {
                    let (place, after) = rest.split_at_mut(part.len());
                    place.copy_from_slice(part);
                    rest = after;
                }
            }),
            None => {
                let mut frame = self.spare.pop().unwrap_or_default();
                frame.clear();
                parts.for_each(|part| frame.extend_from_slice(part));
                self.frames.push_back(frame);
            }
        }
    }

    /// Sends the waiting frames, as many as the device takes; returns `None` if some are left.
    fn flush(&mut self, device: &mut impl Device, now: Instant) -> Option<()> {
        while let Some(frame) = self.frames.front() {
            device.transmit(now)?.consume(frame.len(), |room| room.copy_from_slice(frame));
            self.spare.extend(self.frames.pop_front());
        }
        Some(())
    }
}
