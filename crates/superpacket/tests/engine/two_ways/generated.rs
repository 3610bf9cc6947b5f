//! Generated streams, by every policy, with limits of all sizes.

use proptest::prelude::*;
use superpacket::aggregate::{Delivery, Policy};
use superpacket_traffic::generate::{
    Combination, Config, Generated, Impairments, Tunnel, generate,
};

use super::change::CHANGES;
use super::compare::{Batches, absorbing, assert_same, policies};
use super::traffic::{Arrival, Knowledge, Step, acks, flows, stream};

/// The generator's traffic, in which few flows send at a time, outside tunnels for the most part.
pub fn traffic(seed: u64, count: usize, impairments: Impairments) -> Vec<Arrival> {
    let combinations = Combination::all()
        .into_iter()
        .filter(|combination| seed.is_multiple_of(4) || combination.tunnel == Tunnel::None)
        .collect();
    let config =
        Config { combinations, flows: 12, burst: (4, 40), impairments, ..Config::default() };
    let arrival = |packet: Generated| Arrival { packet: packet.into(), super_packet: false };
    generate(seed, &config, count).into_iter().map(arrival).collect()
}

/// One of these policies, with all limits out of the way or some of them near.
fn limited(policies: Vec<Policy>) -> impl Strategy<Value = Policy> {
    let near = |low: u32, high: u32| prop_oneof![2 => Just(None), 1 => (low..=high).prop_map(Some)];
    let hold_time = prop_oneof![3 => Just(0), 1 => 1u64..200_000];
    let delivery = prop_oneof![4 => Just(Delivery::PerPoll), 1 => Just(Delivery::AtOnce)];
    let limits = (near(1, 9), near(100, 9_000), near(1, 9), near(1, 9), near(1, 9));
    (prop::sample::select(policies), limits, hold_time, delivery).prop_map(
        |(policy, (packets, bytes, fragments, flows, datagrams), hold_time, delivery)| {
            policy
                .with_max_packets(packets.unwrap_or(policy.max_packets))
                .with_max_bytes(bytes.unwrap_or(policy.max_bytes))
                .with_max_fragments(fragments.unwrap_or(policy.max_fragments))
                .with_max_flows(flows.unwrap_or(policy.max_flows))
                .with_max_datagrams(datagrams.unwrap_or(policy.max_datagrams))
                .with_hold_time(hold_time)
                .with_delivery(delivery)
        },
    )
}

fn batches() -> impl Strategy<Value = Batches> {
    (prop_oneof![Just(1usize), 2usize..9, 9usize..300], 1usize..20)
        .prop_map(|(size, per_poll)| Batches { size, per_poll })
}

/// Steps of four flows, most of them plain, each after another of the same flow more often than
/// not.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let change = prop::option::weighted(0.15, 0..CHANGES.len());
    let usual = prop::sample::select(&Knowledge::ALL[..]);
    let step = (
        0usize..4,
        prop::bool::weighted(0.7),
        change,
        any::<bool>(),
        prop::option::weighted(0.1, usual.clone()),
    );
    (usual, prop::collection::vec(step, 1..120)).prop_map(|(usual, steps)| {
        let mut flow = 0;
        let step = |(other, stays, change, persists, knowledge): (
            usize,
            bool,
            Option<usize>,
            bool,
            Option<Knowledge>,
        )| {
            flow = if stays { flow } else { other };
            Step { flow, change, persists, knowledge: knowledge.unwrap_or(usual) }
        };
        steps.into_iter().map(step).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 2_000 }, ..ProptestConfig::default() })]

    #[test]
    fn streams_with_changes_give_the_same_both_ways(
        policy in limited(policies()), batches in batches(), steps in steps(), payload in 1usize..300, kinds in prop::array::uniform4(any::<prop::sample::Index>())
    ) {
        let all = flows(payload);
        let flows: Vec<_> = (0..).zip(kinds).map(|(number, kind)| kind.get(&all).clone().numbered(number)).collect();
        assert_same(policy, &stream(&flows, &steps), batches);
    }

    /// Among them are data: an ACK to which a byte is added.
    #[test]
    fn acks_with_changes_give_the_same_both_ways(
        policy in limited(absorbing()), batches in batches(), steps in steps(), kinds in prop::array::uniform4(any::<prop::sample::Index>())
    ) {
        let all = acks();
        let flows: Vec<_> = (0..).zip(kinds).map(|(number, kind)| kind.get(&all).clone().numbered(number)).collect();
        assert_same(policy, &stream(&flows, &steps), batches);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 300 }, ..ProptestConfig::default() })]

    #[test]
    fn generated_traffic_gives_the_same_both_ways(seed: u64, policy in limited(policies()), batches in batches()) {
        assert_same(policy, &traffic(seed, 600, Impairments::default()), batches);
    }
}
