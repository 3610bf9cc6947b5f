//! The ways of giving packets to an engine and taking merged packets from it.

use std::rc::Rc;

use superpacket::aggregate::Storage;
use superpacket::packet::RxPacket;
use superpacket::virtio::{ByteOrder, Format};
use superpacket::{Aggregator, BatchAggregator, Framing, HashKey, Layer, Policy, SuperPacket};
use superpacket_traffic::random::Random;

use super::framed::Framed;
use super::judge::{Judge, Members, places};
use super::pool::PollUse;
use super::{NumberedBuffer, packet};

/// Time in nanoseconds for which an engine holds flows after the end of a poll.
const HOLD: u64 = 1_000;

/// An engine, together with the way in which the campaign uses it.
#[expect(clippy::large_enum_variant, reason = "there are a few, which are not moved")]
pub enum Face {
    /// The engine owns the buffers, and gets all packets in one poll.
    Owned(Aggregator<NumberedBuffer>),
    /// The engine owns the buffers, copies their bytes to linear storage, and gets all packets in
    /// one poll.
    Linear(Aggregator<NumberedBuffer>),
    /// The engine owns the buffers, and holds flows between several polls.
    Held {
        /// The engine that holds flows.
        engine: Aggregator<NumberedBuffer>,
        /// Time of the next poll, in nanoseconds since the first one.
        now: u64,
    },
    /// Two engines: the second receives the super-packets of the first.
    SuperPackets {
        /// The engine that makes short super-packets.
        first: Aggregator<NumberedBuffer>,
        /// The engine that makes longer ones of them.
        second: Aggregator<NumberedBuffer>,
    },
    /// The engine borrows the buffers.
    Borrowed(BatchAggregator),
    /// The engine borrows the buffers. Merged packets leave as slices behind a virtio header.
    Gathered(BatchAggregator, Framing),
    /// The engine joins packets in the buffer of the first one, behind a virtio header.
    InPlace(BatchAggregator, Framing),
    /// LRO, whose merged packets cannot be segmented into the original packets.
    Lro(Aggregator<NumberedBuffer>),
}

impl Face {
    /// Creates engines for each way of use, with several policies.
    pub fn all(random: &mut Random) -> Vec<Self> {
        let mut key = || HashKey::new(u128::from(random.bits()) << 64 | u128::from(random.bits()));
        let base = Policy::gro_with_udp();
        let partial = base.with_partial_checksums();
        let small = base.with_max_packets(7).with_max_bytes(9_000);
        let big = |policy: Policy| policy.with_max_bytes(u32::MAX);
        let framings = |layer| {
            [
                Framing::new(Format::Plain, ByteOrder::NATIVE, layer),
                Framing::new(Format::Tunnel, ByteOrder::Little, layer),
            ]
        };
        let mut faces: Vec<_> = [
            base,
            partial,
            partial.with_merge_udp_without_checksum(),
            big(base.with_jumbo_option()),
            small.with_max_flows(5),
            base.with_delivery(superpacket::aggregate::Delivery::AtOnce),
        ]
        .into_iter()
        .map(|policy| Face::Owned(Aggregator::new(policy, key())))
        .collect();
        for policy in [base, big(partial)] {
            faces.push(Face::Linear(Aggregator::new(policy.with_storage(Storage::Linear), key())));
            faces.push(Face::Held {
                engine: Aggregator::new(policy.with_hold_time(HOLD), key()),
                now: 0,
            });
            faces.push(Face::Borrowed(BatchAggregator::new(Layer::Ethernet, policy, key())));
        }
        let again = [
            (small, base),
            (partial.with_max_packets(5), big(partial)),
            (small, big(base)),
            (base, partial),
        ];
        for (first, second) in again {
            faces.push(Face::SuperPackets {
                first: Aggregator::new(first, key()),
                second: Aggregator::new(second, key()),
            });
        }
        for framing in framings(Layer::Ethernet).into_iter().chain(framings(Layer::Ip)) {
            faces.push(Face::Gathered(BatchAggregator::framed(framing, big(base), key()), framing));
            faces.push(Face::InPlace(BatchAggregator::framed(framing, base, key()), framing));
        }
        faces.extend(
            [Policy::lro(), Policy::lro_with_acks()]
                .map(|policy| Face::Lro(Aggregator::new(policy, key()))),
        );
        faces
    }

    /// Aggregates the frames of a poll, and lets `judge` check all packets that leave the engine.
    pub fn aggregate(&mut self, used: &PollUse<'_>, judge: &mut Judge, random: &mut Random) {
        let mut batch: Vec<_> = used
            .order
            .iter()
            .enumerate()
            .map(|(place, &frame)| packet(place, &used.frames[frame]))
            .collect();
        match self {
            Face::Owned(engine) => {
                let mut sink = |packet: SuperPacket<'_, NumberedBuffer>| {
                    judge.check_packet(used, &packet, |buffer: &NumberedBuffer| buffer.0, None)
                };
                engine.receive_batch(&mut batch, 0, &mut sink);
                engine.poll_end(0, &mut sink);
            }
            Face::Linear(engine) => {
                let mut sink =
                    |packet: SuperPacket<'_, NumberedBuffer>| judge.check_copied(used, &packet);
                engine.receive_batch(&mut batch, 0, &mut sink);
                engine.poll_end(0, &mut sink);
            }
            Face::Held { engine, now } => {
                let mut sink = |packet: SuperPacket<'_, NumberedBuffer>| {
                    judge.check_packet(used, &packet, |buffer: &NumberedBuffer| buffer.0, None)
                };
                while !batch.is_empty() {
                    let rest = batch.split_off(random.between(1, batch.len()));
                    engine.receive_batch(&mut batch, *now, &mut sink);
                    engine.poll_end(*now, &mut sink);
                    *now += random.below(2 * HOLD);
                    if random.chance(0.2) {
                        engine.flush_older_than(*now, HOLD / 2, &mut sink);
                    }
                    batch = rest;
                }
                engine.flush_all(&mut sink);
            }
            Face::SuperPackets { first, second } => {
                let mut members = Members::default();
                let mut again = Vec::new();
                let mut sink = |packet: SuperPacket<'_, NumberedBuffer>| {
                    again.push(members.receive_again(&packet))
                };
                first.receive_batch(&mut batch, 0, &mut sink);
                first.poll_end(0, &mut sink);
                let mut sink = |packet: SuperPacket<'_, NumberedBuffer>| {
                    judge.check_packet(
                        used,
                        &packet,
                        |buffer: &NumberedBuffer| buffer.0,
                        Some(&members),
                    )
                };
                second.receive_batch(&mut again, 0, &mut sink);
                second.poll_end(0, &mut sink);
            }
            Face::Borrowed(engine) => engine.poll(&batch, |packet| {
                judge.check_packet(
                    used,
                    &packet,
                    |buffer: &superpacket::aggregate::BufferIndex| buffer.packet(),
                    None,
                );
            }),
            Face::Gathered(engine, framing) => Framed::new(used, *framing).gathered(engine, judge),
            Face::InPlace(engine, framing) => {
                Framed::new(used, *framing).in_place(engine, judge, random)
            }
            Face::Lro(engine) => {
                let mut sink =
                    |packet: SuperPacket<'_, NumberedBuffer>| judge.check_lro(used, &packet);
                engine.receive_batch(&mut batch, 0, &mut sink);
                engine.poll_end(0, &mut sink);
                judge.end_lro(used);
            }
        }
    }

    /// Returns the name of the way of use, for fault reports and the table of results.
    pub const fn name(&self) -> &'static str {
        match self {
            Face::Owned(_) => "owned buffers",
            Face::Linear(_) => "linear storage",
            Face::Held { .. } => "held across polls",
            Face::SuperPackets { .. } => "received as super-packets",
            Face::Borrowed(_) => "borrowed buffers",
            Face::Gathered(..) => "gathered behind a virtio header",
            Face::InPlace(..) => "joined in place",
            Face::Lro(_) => "LRO",
        }
    }
}

impl Members {
    /// Converts a packet that left the first engine to a received packet for the second one, and
    /// records its frames.
    fn receive_again(
        &mut self,
        packet: &SuperPacket<'_, NumberedBuffer>,
    ) -> RxPacket<NumberedBuffer> {
        let metadata = &packet.metadata;
        let mut bytes = Vec::new();
        packet.copy_to(&mut bytes);
        let places = places(packet);
        let mut again = RxPacket::new(NumberedBuffer(self.0.len(), Rc::new(bytes)))
            .with_checksum(metadata.checksum);
        (again.layer, again.vlan, again.gso) = (metadata.layer, metadata.vlan, metadata.gso);
        self.0.push((places, Rc::clone(&again.buffers().next().expect("a buffer").1)));
        again
    }
}
