//! Packets to whoever wants them, steered: protocol work of one's own in place of the bridge.

use std::fmt;
use std::sync::Arc;

use superpacket::aggregate::{Aggregator, HashKey, Policy};
use superpacket::packet::{Layer, RxChecksum, RxPacket};
use superpacket::segment::{Gso, Segmenter};
use superpacket::super_packet::SuperPacket;
use superpacket_port::{Buffer, Capabilities, Outgoing};
use superpacket_steer::Cpu;

use crate::egress::Egress;

/// Takes the packets that are steered to one worker. There is one for each worker, and one for each
/// thread that receives, for packets that are processed in place; each is called by its thread
/// alone.
///
/// Packets of a flow come in order, and, as long as nobody changes masks, to the same consumer.
/// After a change, a consumer gets them only when the other is done with all that it had before:
/// what it sent by its [`PortEnd`] has left.
///
/// Times are nanoseconds since the bridge started, the same for all threads, and never go back.
pub trait Consumer: Send {
    /// Takes a packet, single or merged, at the time `now`. Its buffers are memory of the port:
    /// those that are kept must be let go soon.
    fn receive(&mut self, packet: SuperPacket<'_, Buffer>, now: u64, end: &mut PortEnd<'_>);

    /// Is called after each batch of packets, at the latest at the time that it said last: it does
    /// what is due, sends by `end`, and says when it wants to be called again even if no packets
    /// come.
    fn poll(&mut self, now: u64, end: &mut PortEnd<'_>) -> Option<u64>;
}

impl fmt::Debug for dyn Consumer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Consumer")
    }
}

/// Makes the consumer of a worker: of the one on this CPU, or, with `None`, of a thread that
/// receives.
pub type ConsumerFactory = dyn Fn(Option<Cpu>) -> Box<dyn Consumer> + Send + Sync;

/// A factory that is shared.
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

/// A consumer, and what it takes to send.
#[derive(Debug)]
pub(crate) struct Consuming {
    pub(crate) consumer: Box<dyn Consumer>,
    /// Makes packets of what is sent; holds nothing.
    passer: Aggregator<Buffer>,
}

impl Consuming {
    pub(crate) fn new(consumer: Box<dyn Consumer>) -> Self {
        let policy = Policy::gro().with_partial_checksums().with_max_flows(8);
        Consuming { consumer, passer: Aggregator::new(policy, HashKey::new(0)) }
    }

    /// The consumer, and its end of a port.
    pub(crate) fn split<'a>(
        &'a mut self,
        egress: &'a mut Egress,
        outgoing: &'a mut Outgoing,
        segmenter: &'a mut Segmenter,
        now: u64,
    ) -> (&'a mut dyn Consumer, PortEnd<'a>) {
        let Consuming { consumer, passer } = self;
        (&mut **consumer, PortEnd { egress, outgoing, segmenter, passer, now })
    }
}

/// The sending end of the port that packets came from. What is sent leaves at the end of the batch.
#[derive(Debug)]
pub struct PortEnd<'a> {
    egress: &'a mut Egress,
    outgoing: &'a mut Outgoing,
    segmenter: &'a mut Segmenter,
    passer: &'a mut Aggregator<Buffer>,
    /// The time, in nanoseconds.
    now: u64,
}

impl PortEnd<'_> {
    /// The port's name.
    pub fn name(&self) -> &str {
        &self.egress.shared.name
    }

    /// Where the port's packets start.
    pub fn layer(&self) -> Layer {
        self.egress.shared.layer
    }

    /// The longest IP packet in bytes; `usize::MAX` without a limit.
    pub fn mtu(&self) -> usize {
        self.egress.runtime.mtu
    }

    /// What the port can do. Nothing of it needs to be asked before
    /// [`send_offloaded`](Self::send_offloaded).
    pub fn capabilities(&self) -> &Capabilities {
        &self.egress.runtime.capabilities
    }

    /// Sends a frame (on a TUN port, an IP packet), complete with all checksums and no longer than
    /// the port takes. It is copied.
    pub fn send(&mut self, frame: &[u8]) {
        let layer = self.layer();
        self.egress.add_frame(self.outgoing, frame, layer, self.now);
    }

    /// Sends a frame whose checksum is to be filled in, or that is to be cut into segments: by the
    /// port if it does so, else in software. It is copied. One that cannot be cut is dropped and
    /// counted at the port.
    pub fn send_offloaded(&mut self, frame: &[u8], checksum: RxChecksum, gso: Option<Gso>) {
        let mut packet = RxPacket::new(Buffer::from(frame.to_vec()));
        (packet.layer, packet.checksum) = (self.layer(), checksum);
        let packet = match gso {
            Some(gso) => packet.with_gso(gso),
            None => packet,
        };
        let PortEnd { egress, outgoing, segmenter, passer, now } = self;
        passer.bypass(packet, &mut |mut packet: SuperPacket<'_, Buffer>| {
            let staged = outgoing.stage(&packet);
            egress.add(outgoing, &staged, &packet, segmenter, *now);
            outgoing.keep(staged, &mut packet);
        });
    }
}
