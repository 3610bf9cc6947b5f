//! Packets to be received, policies, and what is seen of a packet that leaves.

use std::io::IoSlice;

use proptest::prelude::*;
use superpacket::aggregate::{
    AggregateCounters, Borrowed, BufferIndex, Delivery, HashKey, NoHeadroom, Policy, Storage,
};
use superpacket::segment::{ChecksumForm, Gso, GsoKind, SegmentSize};
use superpacket::{FlowHash, Layer, RxPacket, SuperPacket};
use superpacket_traffic::generate::{Combination, Config, generate};

use crate::support::{BatchAggregator, Packet, Seen};

pub const KEY: HashKey = HashKey::new(0x5eed);

/// The generator's traffic: few flows at a time and mostly outside tunnels, or all there is.
pub fn traffic(seed: u64, count: usize, scattered: bool) -> Vec<Packet> {
    let combinations = Combination::all();
    let plain = Config {
        combinations: combinations.iter().copied().take(6).collect(),
        flows: 6,
        burst: (4, 40),
        ..Config::default()
    };
    let config = if seed.is_multiple_of(2) { Config::default() } else { plain };
    let scatter = |index: usize| if scattered { index * 5 % 18 } else { 0 };
    generate(seed, &config, count)
        .into_iter()
        .enumerate()
        .map(|(index, generated)| Packet::from(generated).scattered(scatter(index)))
        .collect()
}

/// The packet as it is received, with a queue, a hash and, now and then, the claim that it is a
/// super-packet.
pub fn receive(packet: &Packet, number: usize) -> RxPacket<&[u8]> {
    let mut received = packet.receive_in(|bytes| bytes);
    received.queue = (number % 3) as u16;
    received.hash = number.is_multiple_of(2).then_some(FlowHash(number as u32));
    let size = SegmentSize::new(10).expect("not 0");
    received.gso = (number % 53 == 52).then_some(Gso::new(GsoKind::Tcp4, size));
    received
}

/// All of them.
pub fn receive_all(packets: &[Packet]) -> Vec<RxPacket<&[u8]>> {
    packets.iter().enumerate().map(|(number, packet)| receive(packet, number)).collect()
}

/// A packet borrowed for a call, as most tests have it. They call the engine through the functions
/// below: for each type of sink it is compiled anew.
pub type Received<'p> = RxPacket<&'p [u8]>;
pub type BorrowedPacket<'a, 'b, 'p> = SuperPacket<'a, BufferIndex, Borrowed<'b, Received<'p>>>;
pub type BorrowedSink<'s, 'p> = &'s mut dyn FnMut(BorrowedPacket<'_, '_, 'p>) -> Result<(), usize>;
pub type OwnedSink<'s> = &'s mut dyn FnMut(SuperPacket<'_, Vec<u8>>) -> Result<(), usize>;
pub type SlicesSink<'s> = &'s mut dyn FnMut(&[IoSlice<'_>]) -> Result<(), usize>;

/// `poll`, or `resume`.
#[inline(never)]
pub fn poll_with<'p>(
    aggregator: &mut BatchAggregator,
    resume: bool,
    packets: &[Received<'p>],
    sink: BorrowedSink<'_, 'p>,
) -> Result<(), usize> {
    if resume {
        aggregator.resume(packets, |packet| sink(packet))
    } else {
        aggregator.poll(packets, |packet| sink(packet))
    }
}

/// `poll_gathered`, or `resume_gathered`.
#[inline(never)]
pub fn gather_with(
    aggregator: &mut BatchAggregator,
    resume: bool,
    packets: &[Received<'_>],
    sink: SlicesSink<'_>,
) -> Result<(), usize> {
    if resume {
        aggregator.resume_gathered(packets, |slices| sink(slices))
    } else {
        aggregator.poll_gathered(packets, |slices| sink(slices))
    }
}

/// `join_in_place` of vectors.
#[inline(never)]
pub fn join_with(
    aggregator: &mut BatchAggregator,
    buffers: &mut [Vec<u8>],
    offset: usize,
) -> Result<Vec<usize>, NoHeadroom> {
    aggregator.join_in_place(buffers, offset).map(<[usize]>::to_vec)
}

/// What a call with these packets gives.
pub fn poll(aggregator: &mut BatchAggregator, packets: &[Received<'_>]) -> Vec<Seen> {
    let mut seen = Vec::new();
    let result = poll_with(aggregator, false, packets, &mut |packet| {
        seen.push(Seen::of(&packet));
        Ok(())
    });
    assert_eq!(result, Ok(()));
    assert_nothing_held(aggregator);
    seen
}

/// Generated packets that start at this layer, untagged.
pub fn bytes_at(layer: Layer, seed: u64, count: usize) -> Vec<Vec<u8>> {
    let at = |packet: Packet| match (packet.layer, layer) {
        (at, layer) if at == layer => Some(packet.bytes),
        (Layer::Ethernet, _)
            if packet
                .bytes
                .get(12..14)
                .is_some_and(|kind| kind == [8, 0] || kind == [0x86, 0xdd]) =>
        {
            Some(packet.bytes[14..].to_vec())
        }
        _ => None,
    };
    traffic(seed, count, false).into_iter().filter_map(at).collect()
}

#[track_caller]
pub fn assert_nothing_held(aggregator: &BatchAggregator) {
    let counters = aggregator.counters();
    assert!(counters.balanced(), "{counters:?}");
    assert_eq!((counters.held, counters.held_bytes, aggregator.unfinished()), (0, 0, 0));
}

/// All that is counted, but for the entries of the table that were looked at.
pub fn counted(counters: &AggregateCounters) -> AggregateCounters {
    let mut counted = *counters;
    counted.probes = 0;
    counted
}

/// Each mode, with each storage and form of checksums.
pub fn policies() -> Vec<Policy> {
    let modes = [
        Policy::gro(),
        Policy::gro_with_udp(),
        Policy::lro().with_max_flows(64),
        Policy::lro_with_acks(),
    ];
    let mut policies = Vec::new();
    for mode in modes {
        for storage in [Storage::Fragments, Storage::Linear] {
            let form = |form| mode.with_storage(storage).with_checksum(form);
            policies.extend([
                form(ChecksumForm::Full),
                form(ChecksumForm::Partial),
                form(ChecksumForm::Partial).with_trusted_input(),
            ]);
        }
    }
    policies
}

/// Any policy that holds nothing past a poll, with limits that are out of the way or near.
pub fn policy() -> impl Strategy<Value = Policy> {
    let near = |low: u32, high: u32| prop_oneof![3 => Just(None), 1 => (low..=high).prop_map(Some)];
    let delivery = prop_oneof![4 => Just(Delivery::PerPoll), 1 => Just(Delivery::AtOnce)];
    let limits = (near(0, 9), near(0, 9_000), near(0, 9), near(0, 9), near(0, 9), near(0, 20_000));
    (prop::sample::select(policies()), limits, delivery).prop_map(
        |(policy, (packets, bytes, fragments, flows, datagrams, held), delivery)| {
            policy
                .with_max_packets(packets.unwrap_or(policy.max_packets))
                .with_max_bytes(bytes.unwrap_or(policy.max_bytes))
                .with_max_fragments(fragments.unwrap_or(policy.max_fragments))
                .with_max_flows(flows.unwrap_or(policy.max_flows))
                .with_max_datagrams(datagrams.unwrap_or(policy.max_datagrams))
                .with_max_held_bytes(held.map_or(policy.max_held_bytes, u64::from))
                .with_delivery(delivery)
        },
    )
}

/// Asserts that both are the same packets, and says which is not.
#[track_caller]
pub fn assert_equal(found: &[Seen], expected: &[Seen], what: &dyn std::fmt::Debug) {
    if let Some(index) = found.iter().zip(expected).position(|(found, expected)| found != expected)
    {
        panic!(
            "{what:?}: packet {index} of {}:\n{:?}\n{:?}",
            expected.len(),
            found[index],
            expected[index]
        );
    }
    assert_eq!(found.len(), expected.len(), "{what:?}");
}
