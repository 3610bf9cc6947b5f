//! Policies that change while packets come, that make no sense, and whose tables were large.

use proptest::prelude::*;
use superpacket::aggregate::Policy;
use superpacket::virtio::Framing;
use superpacket::{Layer, SuperPacket};
use superpacket_traffic::frame::{Frame, Ip};

use super::traffic::{KEY, OwnedSink, assert_equal, counted, policy, poll, receive_all, traffic};
use crate::support::{Aggregator, BatchAggregator, Packet, Seen, allocations::live_bytes, unknown};

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 60 }, ..ProptestConfig::default() })]

    /// After a change nothing is left of the policy before: each poll gives what a new aggregator
    /// gives.
    #[test]
    fn each_policy_begins_anew(policies in prop::collection::vec(policy(), 2..6), seed: u64, framed: bool) {
        let made = |policy| if framed { BatchAggregator::framed(Framing::TAP, policy, KEY) } else { BatchAggregator::new(Layer::Ip, policy, KEY) };
        let mut aggregator = made(Policy::gro());
        for (number, policy) in (0..).zip(policies) {
            let packets = traffic(seed.wrapping_add(number), 100, number % 2 == 0);
            let packets = receive_all(&packets);
            aggregator.set_policy(policy);
            let mut fresh = made(policy);
            prop_assert_eq!(aggregator.policy(), fresh.policy());
            let before = counted(aggregator.counters()).packets_out;
            let expected = poll(&mut fresh, &packets);
            assert_equal(&poll(&mut aggregator, &packets), &expected, &policy);
            prop_assert_eq!(aggregator.counters().packets_out - before, fresh.counters().packets_out);
        }
    }

    /// What is held leaves by the policy it was held by, and all that follows by the new one.
    #[test]
    fn held_packets_leave_by_the_old_policy(policies in prop::collection::vec(policy(), 2..6), seed: u64) {
        let mut aggregator: Aggregator<Vec<u8>> = Aggregator::new(Policy::gro(), KEY);
        for (number, policy) in (0..).zip(policies) {
            let packets = traffic(seed.wrapping_add(number), 100, false);
            let mut found = Vec::new();
            let mut sink: OwnedSink<'_> = &mut |packet: SuperPacket<'_, Vec<u8>>| { found.push(Seen::of(&packet)); Ok(()) };
            prop_assert_eq!(aggregator.set_policy(policy, &mut sink), Ok(()));
            prop_assert_eq!((aggregator.counters().held, aggregator.counters().held_bytes), (0, 0));
            prop_assert_eq!(aggregator.receive_batch(&mut packets.iter().map(Packet::receive).collect(), 0, &mut sink), Ok(()));
            prop_assert_eq!(aggregator.poll_end(0, &mut sink), Ok(()));
            let mut fresh: Aggregator<Vec<u8>> = Aggregator::new(policy, KEY);
            let mut expected = Vec::new();
            let mut sink: OwnedSink<'_> = &mut |packet: SuperPacket<'_, Vec<u8>>| { expected.push(Seen::of(&packet)); Ok(()) };
            prop_assert_eq!(fresh.receive_batch(&mut packets.iter().map(Packet::receive).collect(), 0, &mut sink), Ok(()));
            prop_assert_eq!(fresh.poll_end(0, &mut sink), Ok(()));
            assert_equal(&found, &expected, &policy);
            prop_assert!(aggregator.counters().balanced());
        }
    }
}

#[test]
fn limits_without_sense_lose_nothing() {
    let packets = traffic(1, 300, true);
    let packets = receive_all(&packets);
    for base in super::traffic::policies() {
        for limit in [0, 1, 2, u32::MAX] {
            let limits: [fn(Policy, u32) -> Policy; 6] = [
                Policy::with_max_bytes,
                Policy::with_max_packets,
                Policy::with_max_datagrams,
                Policy::with_max_fragments,
                |policy, limit| policy.with_max_flows(limit.min(1 << 12)),
                |policy, limit| policy.with_max_held_bytes(u64::from(limit)),
            ];
            for set in limits {
                let policy = set(base, limit);
                let mut aggregator = BatchAggregator::new(Layer::Ip, policy, KEY);
                let seen = poll(&mut aggregator, &packets);
                assert_eq!(
                    seen.iter().map(|seen| seen.metadata.packets as usize).sum::<usize>(),
                    packets.len(),
                    "{policy:?}"
                );
            }
        }
    }
    // The largest table is that of 1,048,576 flows.
    assert_eq!(
        Aggregator::<Vec<u8>>::new(Policy::gro().with_max_flows(0), KEY).policy().max_flows,
        1
    );
}

#[test]
fn a_smaller_table_gives_memory_back() {
    const FLOWS: u32 = 4_000;
    let frame = |number: u32| {
        Frame::tcp4(1, 10)
            .with(|frame| {
                if let Ip::V4(ip) = &mut frame.ip {
                    ip.source = number.to_be_bytes()
                }
            })
            .to_bytes()
    };
    let packets: Vec<_> = (0..FLOWS).map(frame).collect();
    let packets = unknown(Layer::Ethernet, &packets);
    let mut aggregator = BatchAggregator::new(Layer::Ethernet, Policy::gro(), KEY);
    let before = live_bytes();
    aggregator.set_policy(Policy::gro().with_max_flows(1 << 16));
    assert_eq!(poll(&mut aggregator, &packets).len(), FLOWS as usize);
    let large = live_bytes() - before;
    aggregator.set_policy(Policy::gro().with_max_flows(8));
    let small = live_bytes() - before;
    // The numbers of the largest poll's packets are kept.
    assert!(large > 4_000_000 && small < 500_000, "{large} bytes, then {small}");
}
