//! The interface for programs that process steered packets themselves instead of bridging them.

use std::fmt;
use std::sync::Arc;

use superpacket::aggregate::{Aggregator, HashKey, Policy};
use superpacket::packet::{Layer, RxChecksum, RxPacket};
use superpacket::segment::{Gso, Segmenter};
use superpacket::super_packet::SuperPacket;
use superpacket_port::{Buffer, Capabilities, Outgoing};
use superpacket_steer::Cpu;

use crate::egress::Egress;

/// Processes the packets that are steered to one worker. Each worker has a consumer of its own.
/// Each receiving thread has one too, for packets that it processes itself instead of handing them
/// to a worker. No other thread calls the consumer.
///
/// The packets of a flow arrive in order, and at the same consumer while CPU masks do not change.
/// After a change, the new consumer gets packets of a flow only when the old one has processed all
/// earlier ones, and what it sent by its [`PortEnd`] has left.
///
/// Times are nanoseconds since the bridge started, the same for all threads, and never decrease.
pub trait Consumer: Send {
    /// Takes a packet, single or merged, at the time `now`. Its buffers are memory of the port; if
    /// the consumer keeps buffers, it must release them soon.
    fn receive(&mut self, packet: SuperPacket<'_, Buffer>, now: u64, end: &mut PortEnd<'_>);

    /// Does the work that is due at the time `now`, and sends frames through `end`. Returns the
    /// time of the next call if no packets arrive. This method is called after each batch of
    /// packets, and at the latest at the time that it returned last.
    fn poll(&mut self, now: u64, end: &mut PortEnd<'_>) -> Option<u64>;
}

impl fmt::Debug for dyn Consumer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Consumer")
    }
}

/// Creates the consumer of the worker on the given CPU or, for `None`, of a receiving thread.
pub type ConsumerFactory = dyn Fn(Option<Cpu>) -> Box<dyn Consumer> + Send + Sync;

/// A shared [`ConsumerFactory`].
#[derive(Clone)]
pub(crate) struct Factory(pub(crate) Arc<ConsumerFactory>);

impl Factory {
    pub(crate) fn make(&self, cpu: Option<Cpu>) -> Box<dyn Consumer> {
        (self.0)(cpu)
    }
}

impl fmt::Debug for Factory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Factory")
    }
}

/// A consumer, and the state that is needed to send its frames.
#[derive(Debug)]
pub(crate) struct ConsumerPort {
    pub(crate) consumer: Box<dyn Consumer>,
    /// Converts the frames that the consumer sends to packets, without holding any for merging.
    packetizer: Aggregator<Buffer>,
}

impl ConsumerPort {
    pub(crate) fn new(consumer: Box<dyn Consumer>) -> Self {
        let policy = Policy::gro().with_partial_checksums().with_max_flows(8);
        ConsumerPort { consumer, packetizer: Aggregator::new(policy, HashKey::new(0)) }
    }

    /// Returns the consumer, and the sending end of a port for it.
    pub(crate) fn split<'a>(
        &'a mut self,
        egress: &'a mut Egress,
        outgoing: &'a mut Outgoing,
        segmenter: &'a mut Segmenter,
        now: u64,
    ) -> (&'a mut dyn Consumer, PortEnd<'a>) {
        let ConsumerPort { consumer, packetizer } = self;
        (&mut **consumer, PortEnd { egress, outgoing, segmenter, packetizer, now })
    }
}

/// The sending end of the port by which a consumer's packets were received. Frames that the
/// consumer sends leave when its batch of packets ends.
#[derive(Debug)]
pub struct PortEnd<'a> {
    egress: &'a mut Egress,
    outgoing: &'a mut Outgoing,
    segmenter: &'a mut Segmenter,
    packetizer: &'a mut Aggregator<Buffer>,
    /// The time at which the packets are processed, in nanoseconds of the monotonic clock.
    now: u64,
}

impl PortEnd<'_> {
    /// Returns the port's name.
    pub fn name(&self) -> &str {
        &self.egress.shared.name
    }

    /// Returns the layer at which the port's packets start.
    pub fn layer(&self) -> Layer {
        self.egress.shared.layer
    }

    /// Returns the maximum length of an IP packet in bytes; `usize::MAX` for no limit.
    pub fn mtu(&self) -> usize {
        self.egress.runtime.mtu
    }

    /// Returns the port's capabilities. They are only for information:
    /// [`send_offloaded`](Self::send_offloaded) works even without them.
    pub fn capabilities(&self) -> &Capabilities {
        &self.egress.runtime.capabilities
    }

    /// Sends a frame (on a TUN port, an IP packet) with complete checksums, no longer than the
    /// port's MTU. The frame is copied.
    pub fn send(&mut self, frame: &[u8]) {
        let layer = self.layer();
        self.egress.add_frame(self.outgoing, frame, layer, self.now);
    }

    /// Sends a frame with a partial checksum or GSO metadata. The port completes or segments it if
    /// it can, otherwise software does. The frame is copied. A frame that cannot be segmented is
    /// dropped and counted at the port.
    pub fn send_offloaded(&mut self, frame: &[u8], checksum: RxChecksum, gso: Option<Gso>) {
        let mut packet = RxPacket::new(Buffer::from(frame.to_vec()));
        (packet.layer, packet.checksum) = (self.layer(), checksum);
        let packet = match gso {
            Some(gso) => packet.with_gso(gso),
            None => packet,
        };
        let PortEnd { egress, outgoing, segmenter, packetizer, now } = self;
        packetizer.bypass(packet, &mut |mut packet: SuperPacket<'_, Buffer>| {
            outgoing.stage(&packet);
            egress.add(outgoing, &packet, segmenter, *now);
            outgoing.keep(&mut packet);
        });
    }
}
