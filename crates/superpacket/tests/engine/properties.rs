//! The engine's promises 1 to 5, over generated traffic that reorders, duplicates, drops, pads,
//! tags, tunnels, corrupts and varies every header field.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::support::*;
use proptest::prelude::*;
use superpacket::Simd;
use superpacket::aggregate::{HashKey, Policy, Reason, Storage};
use superpacket::packet::{Layer, RxChecksum, VlanTag};
use superpacket::segment::ChecksumForm;
use superpacket::super_packet::SuperPacket;
use superpacket_traffic::check;
use superpacket_traffic::generate::{Combination, Config, Generated, generate};

fn traffic(seed: u64, count: usize) -> Vec<Generated> {
    generate(seed, &Config::default(), count)
}

/// GRO by every policy: what comes out, cut again, is what went in; counters balance after every
/// packet (the harness asserts it).
fn holds(seed: u64, count: usize, policy: Policy, batch: usize, scatter: bool) -> Run {
    let packets: Vec<_> = traffic(seed, count)
        .into_iter()
        .enumerate()
        .map(|(index, packet)| Packet::from(packet).scattered(if scatter { index % 18 } else { 0 }))
        .collect();
    let run = run_polls(policy, &packets, batch);
    assert_reversed(&packets, &run);
    run
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 24 }, ..ProptestConfig::default() })]

    /// Promises 1, 2, 3 and 5: order, reversibility, conservation, and what is not understood
    /// passes bit for bit.
    #[test]
    fn gro_is_reversible(seed: u64, batch in 1usize..300, linear: bool, scatter: bool, full: bool, flows in 1u32..200, without_checksum: bool, long: bool) {
        let policy = if without_checksum { Policy::gro_with_udp().with_merge_udp_without_checksum() } else { Policy::gro_with_udp() };
        let policy = if long { policy.with_max_bytes(u32::MAX).with_jumbo_option() } else { policy };
        let policy = policy.with_storage(if linear { Storage::Linear } else { Storage::Fragments }).with_checksum(if full { ChecksumForm::Full } else { ChecksumForm::Partial }).with_max_flows(flows);
        holds(seed, 600, policy, batch, scatter);
    }

    /// The same with small limits, so that each of them ends merges.
    #[test]
    fn gro_is_reversible_at_its_limits(seed: u64, bytes in 200u32..9000, packets in 1u32..9, fragments in 1u32..9, held in 2_000u64..60_000) {
        let policy = Policy::gro_with_udp().with_partial_checksums().with_max_bytes(bytes).with_max_packets(packets).with_max_fragments(fragments).with_max_held_bytes(held).with_max_datagrams(3);
        let run = holds(seed, 400, policy, 64, true);
        for output in run.outputs.iter().filter(|output| output.metadata.packets > 1) {
            let layout = output.metadata.layout.expect("merged packets are understood");
            prop_assert!(output.bytes.len() - usize::from(layout.outermost()) <= bytes as usize);
            prop_assert!(output.metadata.packets <= packets);
        }
    }

    /// Memory is bounded by the policy (promise 4), whatever comes.
    #[test]
    fn held_bytes_stay_below_their_limit(seed: u64, limit in 1u64..40_000) {
        let mut aggregator = aggregator(PARTIAL_GRO_UDP.with_max_held_bytes(limit));
        for generated in traffic(seed, 300) {
            aggregator.receive(Packet::from(generated).receive(), 0, &mut |_: SuperPacket<'_, Vec<u8>>| {});
            prop_assert!(aggregator.counters().held_bytes <= limit);
        }
    }

    /// Merged packets are right by an independent check: lengths of all layers, all checksums.
    #[test]
    fn merged_packets_are_well_formed(seed: u64, full: bool, lro: bool) {
        let policy = if lro { Policy::lro_with_acks().with_max_flows(64) } else { PARTIAL_GRO_UDP };
        let policy = policy.with_checksum(if full { ChecksumForm::Full } else { ChecksumForm::Partial });
        let packets: Vec<_> = traffic(seed, 500).into_iter().map(Packet::from).collect();
        let run = run_polls(policy, &packets, 100);
        for output in run.outputs.iter().filter(|output| output.metadata.packets > 1) {
            let partial = matches!(output.metadata.checksum, RxChecksum::Partial { .. });
            prop_assert_eq!(partial, !full && !lro);
            let expect = check::Expect { starts_at_ip: output.metadata.layer == Layer::Ip, partial, ..check::Expect::default() };
            let checked = check::frame(&output.bytes, &expect);
            prop_assert!(checked.is_ok(), "{:?}: {:?}", checked, output.metadata);
        }
    }

    /// LRO gives up the headers' history, but no payload: the byte stream of each flow is what it
    /// was (promises 1 and 3).
    #[test]
    fn lro_keeps_the_byte_streams(seed: u64, linear: bool, batch in 1usize..200) {
        let storage = if linear { Storage::Linear } else { Storage::Fragments };
        let packets: Vec<_> = traffic(seed, 500).into_iter().enumerate().map(|(index, packet)| Packet::from(packet).scattered(index % 5)).collect();
        let run = run_polls(Policy::lro_with_acks().with_storage(storage).with_max_flows(64), &packets, batch);
        let streams = |frames: &mut dyn Iterator<Item = (&[u8], Layer, Option<VlanTag>)>| {
            let mut streams: HashMap<_, Vec<u8>> = HashMap::new();
            for (bytes, layer, vlan) in frames {
                let at_ip = layer == Layer::Ip;
                let key = (check::flow_key(bytes, at_ip), vlan);
                // What cannot be parsed is compared as it is.
                let payload = check::payload(bytes, at_ip).unwrap_or(bytes);
                streams.entry(key).or_default().extend_from_slice(payload);
            }
            streams
        };
        let before = streams(&mut packets.iter().map(|packet| (&packet.bytes[..], packet.layer, packet.vlan)));
        let after = streams(&mut run.outputs.iter().map(|output| (&output.bytes[..], output.metadata.layer, output.metadata.vlan)));
        prop_assert_eq!(before, after);
    }

    /// No input makes the engine panic, and none is lost (promise 6): random bytes with a header's
    /// look.
    #[test]
    fn garbage_passes(mut bytes in proptest::collection::vec(any::<u8>(), 0..400), ethertype in 0usize..6, at_ip: bool, scatter in 0usize..18) {
        let types = [0x0800u16, 0x86dd, 0x8100, 0x8864, 0x8847, 0x0806];
        if bytes.len() > 14 && !at_ip {
            bytes[12..14].copy_from_slice(&types[ethertype].to_be_bytes());
        }
        let garbage = Packet { layer: if at_ip { Layer::Ip } else { Layer::Ethernet }, buffers: (0..scatter.min(16)).map(|index| index * 3).collect(), ..bytes.into() };
        for policy in [PARTIAL_GRO_UDP, Policy::lro_with_acks()] {
            let run = run(policy, &[garbage.clone(), garbage.clone()]);
            let total: usize = run.outputs.iter().map(|output| output.cut().iter().map(Vec::len).sum::<usize>()).sum();
            prop_assert!(total == 2 * garbage.bytes.len() || run.counters.merged > 0);
        }
    }
}

/// Batches and single calls do the same, but for the order of flows: those that come in turn may
/// leave a batch one after the other.
#[test]
fn receive_batch_equals_receive() {
    for (seed, size) in (0..8).zip([64, 300].into_iter().cycle()) {
        let packets: Vec<_> = traffic(seed, 800).into_iter().map(Packet::from).collect();
        let single = run_polls(PARTIAL_GRO_UDP, &packets, size);
        let mut batched = Vec::new();
        let mut aggregator: Aggregator<Vec<u8>> = aggregator(PARTIAL_GRO_UDP);
        for poll in packets.chunks(size) {
            let mut batch: Vec<_> = poll.iter().map(Packet::receive).collect();
            let mut sink = |packet: SuperPacket<'_, Vec<u8>>| batched.push(Output::of(&packet));
            aggregator.receive_batch(&mut batch, 0, &mut sink);
            assert!(batch.is_empty());
            aggregator.poll_end(0, &mut sink);
        }
        assert_eq!(single.outputs.len(), batched.len());
        let batched = Run { outputs: batched, counters: *aggregator.counters() };
        assert_reversed(&packets, &batched);
        let sorted = |outputs: &[Output]| {
            let mut sorted: Vec<_> =
                outputs.iter().map(|output| (output.bytes.clone(), output.metadata)).collect();
            sorted.sort_by(|(one, _), (other, _)| one.cmp(other));
            sorted
        };
        assert_eq!(sorted(&single.outputs), sorted(&batched.outputs));
    }
}

/// The key decides where flows lie, and nothing else.
#[test]
fn any_key_gives_the_same_packets() {
    let packets: Vec<_> = traffic(11, 1500).into_iter().map(Packet::from).collect();
    let with_key = |key: u128| {
        let mut aggregator: Aggregator<Vec<u8>> =
            Aggregator::new(PARTIAL_GRO_UDP.with_max_flows(4096), HashKey::new(key))
                .with_simd(Simd::scalar());
        let mut frames: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        let mut sink = |packet: SuperPacket<'_, Vec<u8>>| {
            *frames.entry(Output::of(&packet).bytes).or_default() += 1
        };
        for packet in &packets {
            aggregator.receive(packet.receive(), 0, &mut sink);
        }
        aggregator.flush_all(&mut sink);
        frames
    };
    assert_eq!(with_key(1), with_key(u128::MAX / 3));
}

/// The generator reaches what the promises speak of: every reason that generated traffic can give,
/// at least 30 % merged, and no combination of protocol and tunnel left out.
#[test]
fn the_generated_traffic_covers_the_rules() {
    let mut reasons = BTreeSet::new();
    let mut merged = HashMap::new();
    let (mut received, mut joined) = (0, 0);
    for seed in 0..48 {
        let traffic = traffic(seed, 2500);
        let packets: Vec<_> = traffic.iter().cloned().map(Packet::from).collect();
        let policies = [
            (PARTIAL_GRO_UDP, 256),
            (PARTIAL_GRO, 64),
            (PARTIAL_GRO_UDP.with_max_flows(3), 2500),
            (PARTIAL_GRO_UDP.with_max_packets(3).with_max_fragments(2), 256),
            (
                PARTIAL_GRO_UDP.with_max_packets(3).with_max_bytes(3000).with_max_held_bytes(9000),
                256,
            ),
            (PARTIAL_GRO_UDP.with_hold_time(50_000), 1),
            (Policy::lro().with_max_flows(1), 256),
            (Policy::lro_with_acks().with_max_flows(512), 1024),
        ];
        for (index, (policy, batch)) in policies.into_iter().enumerate() {
            let run = run_polls(policy, &packets, batch);
            reasons.extend(run.reasons());
            if index == 0 {
                received += run.counters.packets_in;
                joined += run.counters.merged;
                for output in run.outputs.iter().filter(|output| output.metadata.packets > 1) {
                    let key = check::flow_key(&output.bytes, output.metadata.layer == Layer::Ip);
                    let combination = traffic
                        .iter()
                        .find(|generated| {
                            check::flow_key(&generated.bytes, generated.starts_at_ip) == key
                        })
                        .map(|generated| generated.combination);
                    let combination = combination.expect("an output's flow was generated");
                    *merged.entry((combination.protocol, combination.tunnel)).or_insert(0) +=
                        output.cut().len();
                }
            }
        }
    }
    assert!(joined * 100 >= received * 30, "{joined} of {received} merged");
    for Combination { protocol, tunnel } in Combination::all() {
        assert!(
            merged.get(&(protocol, tunnel)).is_some_and(|&segments| segments > 1),
            "{protocol:?} in {tunnel:?} never merged and was cut again"
        );
    }
    let missing: Vec<_> = Reason::ALL
        .iter()
        .filter(|reason| !reasons.contains(reason) && !NEEDS_A_TEST_OF_ITS_OWN.contains(reason))
        .map(|reason| reason.name())
        .collect();
    assert!(missing.is_empty(), "reasons that never occurred: {missing:?}");
}

/// Reasons that the generator does not give, each hit by [`reasons_of_their_own`] or, of packets
/// that are borrowed, in the module `faces`.
const NEEDS_A_TEST_OF_ITS_OWN: &[Reason] = &[
    Reason::SuperPacket,
    Reason::Requested,
    Reason::TimestampOlder,
    Reason::Alone,
    Reason::CannotSegment,
];

#[test]
fn reasons_of_their_own() {
    use superpacket::segment::GsoKind;
    use superpacket_traffic::frame::Frame;
    let frames = Frame::tcp4(1, 2000).run(2);
    let mut aggregator = aggregator(PARTIAL_GRO);
    let mut reasons = Vec::new();
    let mut sink = |packet: SuperPacket<'_, Vec<u8>>| reasons.push(packet.metadata.reason);
    aggregator.receive(Packet::from(&frames[0]).receive(), 0, &mut sink);
    let mut large = Packet::from(&frames[1]).receive();
    large.gso = Some(gso_of(GsoKind::UdpFragments, 1000));
    aggregator.receive(large, 0, &mut sink);
    aggregator.receive(Packet::from(&frames[0]).receive(), 0, &mut sink);
    aggregator.flush_all(&mut sink);
    assert_eq!(reasons, [Reason::Overtaken, Reason::SuperPacket, Reason::Requested]);

    let run = run(
        Policy::lro(),
        &packets(&[
            Frame::tcp4(1, 100).with_timestamps(9, 1),
            Frame::tcp4(101, 100).with_timestamps(8, 1),
        ]),
    );
    assert_eq!(run.reasons(), [Reason::TimestampOlder, Reason::PollEnd]);
}
