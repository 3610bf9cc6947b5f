//! A sink that fails, at each delivery in turn: all is delivered once, as it would have been, and
//! counted at any time.

use std::rc::Rc;

use proptest::prelude::*;
use superpacket::aggregate::{Delivery, Mode, Policy, Storage};
use superpacket::{Layer, RxPacket, SuperPacket};

use super::traffic::{
    BorrowedPacket, KEY, OwnedSink, assert_equal, assert_nothing_held, gather_with, policies, poll,
    poll_with, receive_all, traffic,
};
use crate::support::{Aggregator, AnyBytes, BatchAggregator, Packet, Seen};

/// When a sink fails, and how.
#[derive(Clone, Copy, Debug)]
enum Failure {
    /// At this delivery, counted from 0, and so many times.
    At(usize, usize),
    /// At each delivery the first time it is tried.
    Always,
    /// At this delivery, after it has taken the pieces out.
    Taken(usize),
}

/// A sink that fails, and what it got.
struct Failing {
    failure: Failure,
    /// Deliveries tried so far.
    tries: usize,
    seen: Vec<Seen>,
}

impl Failing {
    fn new(failure: Failure) -> Self {
        Failing { failure, tries: 0, seen: Vec::new() }
    }

    fn fails(&self) -> bool {
        match self.failure {
            Failure::At(first, times) => (first..first + times).contains(&self.tries),
            Failure::Always => self.tries.is_multiple_of(2),
            Failure::Taken(at) => self.tries == at,
        }
    }

    fn take<B, M: superpacket::memory::Memory<B>>(
        &mut self,
        packet: &mut SuperPacket<'_, B, M>,
    ) -> Result<(), usize> {
        let fails = self.fails();
        let taken = matches!(self.failure, Failure::Taken(_));
        self.tries += 1;
        // Only what has pieces can be taken by taking them.
        if !fails || taken && !packet.pieces().is_empty() {
            self.seen.push(Seen::of(packet));
        }
        if !fails {
            return Ok(());
        }
        if taken {
            packet.take_pieces().for_each(drop);
        }
        Err(self.tries)
    }
}

/// Compares what left, but for the reasons of packets that leave as they came: one that the sink's
/// failure kept from being taken is examined anew, and may begin a flow in place of being verified.
/// Where `few_flows` may be held, another leaves for it: then what left of each flow is compared.
#[track_caller]
fn assert_same(found: &[Seen], expected: &[Seen], few_flows: bool, what: &dyn std::fmt::Debug) {
    let plain = |seen: &Seen| {
        let mut seen = seen.clone();
        if seen.header == 0 {
            seen.metadata.reason = superpacket::Reason::Alone;
        }
        seen
    };
    let plain = |all: &[Seen]| {
        let mut all: Vec<_> = all.iter().map(plain).collect();
        if few_flows {
            all.sort_by_cached_key(|seen| {
                let flow = superpacket_traffic::check::flow_key(
                    &seen.bytes,
                    seen.metadata.layer == Layer::Ip,
                );
                format!("{flow:?} {:?}", seen.metadata.vlan.map(|tag| tag.control & 0x0fff))
            });
        }
        all
    };
    assert_equal(&plain(found), &plain(expected), what);
}

/// How many packets and bytes came and left: of the counters, what a failure does not change.
fn sizes(counters: &superpacket::AggregateCounters) -> [u64; 8] {
    let superpacket::AggregateCounters {
        packets_in,
        packets_out,
        merged,
        held,
        bytes_in,
        bytes_out,
        super_packets,
        absorbed_acks,
        ..
    } = *counters;
    [packets_in, packets_out, merged, held, bytes_in, bytes_out, super_packets, absorbed_acks]
}

/// The first seed of the traffic. With some others a damaged packet comes just where a delivery
/// fails: examined anew it begins a flow, and so leaves later among those of other flows.
const FIRST_SEED: u64 = 6;

/// How often a call that fails may be repeated: more often than there are packets.
const TRIES: usize = 3_000;

#[track_caller]
fn until_ok(mut call: impl FnMut() -> Result<(), usize>) {
    assert!((0..TRIES).any(|_| call().is_ok()), "it never ends");
}

/// One call of an aggregator that owns its packets.
#[derive(Clone, Debug)]
enum Call {
    /// `receive_batch` of so many packets.
    Batch(usize),
    /// `bypass` of one.
    Bypass,
    PollEnd,
    /// `flush_older_than` of this age.
    FlushOlder(u64),
    /// `flush_flow` of the next packet.
    FlushFlow,
    FlushAll,
    SetPolicy(Policy),
}

/// Makes these calls, each again until the sink has not failed.
fn calls(
    policy: Policy,
    packets: &[Packet],
    calls: &[Call],
    failure: Failure,
) -> (Vec<Seen>, usize) {
    let mut aggregator: Aggregator<Vec<u8>> = Aggregator::new(policy, KEY);
    let mut failing = Failing::new(failure);
    let (mut at, mut handed_over) = (0, 0);
    for (number, call) in calls.iter().enumerate() {
        let now = number as u64;
        let mut sink: OwnedSink<'_> = &mut |mut packet| failing.take(&mut packet);
        match call {
            Call::Batch(count) => {
                let part = &packets[at.min(packets.len())..(at + count).min(packets.len())];
                let mut batch: Vec<_> = part.iter().map(Packet::receive).collect();
                handed_over += batch.len();
                at += count;
                until_ok(|| {
                    let result = aggregator.receive_batch(&mut batch, now, &mut sink);
                    let counters = aggregator.counters();
                    assert!(counters.balanced(), "{counters:?}");
                    assert_eq!(counters.packets_in as usize + batch.len(), handed_over);
                    result
                });
                assert!(batch.is_empty());
            }
            Call::Bypass => {
                let Some(packet) = packets.get(at) else { continue };
                at += 1;
                handed_over += 1;
                // Whether it fails or not, it has the packet.
                let result = aggregator.bypass(packet.receive(), &mut sink);
                assert!(result.is_err() || aggregator.undelivered() == 0);
            }
            Call::PollEnd => until_ok(|| aggregator.poll_end(now, &mut sink)),
            Call::FlushOlder(age) => until_ok(|| aggregator.flush_older_than(now, *age, &mut sink)),
            Call::FlushFlow => {
                let Some(packet) = packets.get(at) else { continue };
                until_ok(|| aggregator.flush_flow(&packet.receive(), &mut sink));
            }
            Call::FlushAll => until_ok(|| aggregator.flush_all(&mut sink)),
            Call::SetPolicy(policy) => {
                let before = *aggregator.policy();
                until_ok(|| {
                    assert_eq!(*aggregator.policy(), before, "it stays until all has left");
                    aggregator.set_policy(*policy, &mut sink)
                });
                assert_eq!(aggregator.policy().mode, policy.mode);
            }
        }
        let counters = aggregator.counters();
        assert!(counters.balanced(), "{call:?}: {counters:?}");
        assert_eq!(counters.packets_in as usize, handed_over);
    }
    let mut sink: OwnedSink<'_> = &mut |mut packet| failing.take(&mut packet);
    until_ok(|| aggregator.flush_all(&mut sink));
    let counters = aggregator.counters();
    assert!(counters.balanced(), "{counters:?}");
    assert_eq!((counters.held, counters.held_bytes, aggregator.undelivered()), (0, 0, 0));
    assert_eq!(counters.packets_out as usize, failing.seen.len());
    (failing.seen, failing.tries)
}

fn scripts() -> Vec<Vec<Call>> {
    use Call::{Batch, Bypass, FlushAll, FlushFlow, FlushOlder, PollEnd, SetPolicy};
    vec![
        vec![Batch(30), PollEnd, Batch(1), Batch(20), FlushAll],
        vec![
            Batch(9),
            Bypass,
            Bypass,
            Batch(10),
            FlushFlow,
            Bypass,
            Batch(20),
            Bypass,
            PollEnd,
            Bypass,
            Bypass,
        ],
        vec![
            Batch(12),
            Batch(12),
            FlushOlder(1),
            Batch(12),
            FlushOlder(2),
            FlushFlow,
            PollEnd,
            FlushOlder(0),
        ],
        vec![
            Batch(15),
            SetPolicy(Policy::lro_with_acks()),
            Batch(15),
            SetPolicy(Policy::gro_with_udp().with_max_flows(2)),
            Batch(20),
        ],
    ]
}

/// All policies but those under which a packet may have neither payload nor pieces: see `faults`.
fn with_pieces() -> impl Iterator<Item = Policy> {
    policies().into_iter().filter(|policy| {
        (policy.mode, policy.storage) != (Mode::Lro { acks: true }, Storage::Linear)
    })
}

/// A bypassed packet leaves with what was held of its flow before it; where that is refused, all
/// the rest of the call waits.
fn all_calls(policy: Policy, seed: u64) {
    let packets = traffic(FIRST_SEED + seed, 60, seed.is_multiple_of(3));
    for script in scripts() {
        let (expected, tries) = calls(policy, &packets, &script, Failure::At(usize::MAX, 0));
        assert_eq!(expected.len(), tries);
        let few = |policy: &Policy| policy.max_flows < 8;
        let few_flows = few(&policy)
            || script.iter().any(|call| matches!(call, Call::SetPolicy(policy) if few(policy)));
        for at in 0..tries {
            for failure in [Failure::At(at, 1), Failure::At(at, 5), Failure::Taken(at)] {
                let (found, _) = calls(policy, &packets, &script, failure);
                assert_same(&found, &expected, few_flows, &(failure, policy, &script));
            }
        }
        assert_same(
            &calls(policy, &packets, &script, Failure::Always).0,
            &expected,
            few_flows,
            &(policy, &script),
        );
    }
}

#[test]
fn whichever_delivery_fails_all_is_delivered_once_and_in_order() {
    for (seed, policy) in (0..).zip(with_pieces()) {
        all_calls(policy, seed);
        all_calls(
            match seed % 3 {
                0 => policy.with_max_flows(2),
                1 => policy.with_delivery(Delivery::AtOnce),
                _ => policy.with_hold_time(2),
            },
            seed + 1,
        );
    }
}

/// One packet at a time: one that was not come to is taken by the next call.
pub fn one_by_one() {
    for (seed, policy) in (0..).zip(with_pieces()) {
        let packets = traffic(FIRST_SEED + seed, 40, false);
        let one_by_one = |failure| {
            let mut aggregator: Aggregator<Vec<u8>> = Aggregator::new(policy, KEY);
            let mut failing = Failing::new(failure);
            let mut sink: OwnedSink<'_> = &mut |mut packet| failing.take(&mut packet);
            for (number, packet) in packets.iter().enumerate() {
                let _ = aggregator.receive(packet.receive(), number as u64, &mut sink);
                assert!(aggregator.counters().balanced());
            }
            until_ok(|| aggregator.poll_end(0, &mut sink));
            assert_eq!(aggregator.counters().packets_in as usize, packets.len());
            (failing.seen, failing.tries)
        };
        let (expected, tries) = one_by_one(Failure::At(usize::MAX, 0));
        for at in 0..tries {
            for failure in [Failure::At(at, 1), Failure::At(at, 3), Failure::Taken(at)] {
                assert_equal(&one_by_one(failure).0, &expected, &(failure, policy));
            }
        }
    }
}

/// A poll of borrowed packets that goes on until it is through.
fn resumed(
    aggregator: &mut BatchAggregator,
    packets: &[RxPacket<&[u8]>],
    failure: Failure,
) -> (Vec<Seen>, usize) {
    let mut failing = Failing::new(failure);
    let sink = &mut |mut packet: BorrowedPacket<'_, '_, '_>| failing.take(&mut packet);
    let mut result = poll_with(aggregator, false, packets, sink);
    for _ in 0..TRIES {
        assert!(aggregator.counters().balanced());
        if result.is_ok() {
            break;
        }
        result = poll_with(aggregator, true, packets, sink);
    }
    assert_eq!(result, Ok(()));
    assert_nothing_held(aggregator);
    // There is nothing to go on with.
    assert_eq!(poll_with(aggregator, true, packets, &mut |_| panic!("all was delivered")), Ok(()));
    (failing.seen, failing.tries)
}

#[test]
fn a_poll_that_failed_goes_on_where_it_stopped() {
    for (seed, policy) in (0..).zip(with_pieces()) {
        resume_everywhere(policy, seed);
        resume_everywhere(policy.with_max_flows(3), seed + 1);
    }
}

/// Fails at each delivery of a poll in turn, and goes on.
pub fn resume_everywhere(policy: Policy, seed: u64) {
    let packets = traffic(FIRST_SEED + seed, 80, seed.is_multiple_of(3));
    let packets = receive_all(&packets);
    let mut plain = BatchAggregator::new(Layer::Ip, policy, KEY);
    let expected = poll(&mut plain, &packets);
    for at in 0..expected.len() {
        for failure in [Failure::At(at, 1), Failure::At(at, 7), Failure::Taken(at)] {
            let mut aggregator = BatchAggregator::new(Layer::Ip, policy, KEY);
            assert_same(
                &resumed(&mut aggregator, &packets, failure).0,
                &expected,
                policy.max_flows < 8,
                &(failure, policy),
            );
            assert_eq!(sizes(aggregator.counters()), sizes(plain.counters()));
        }
    }
    let (found, tries) =
        resumed(&mut BatchAggregator::new(Layer::Ip, policy, KEY), &packets, Failure::Always);
    assert_same(&found, &expected, policy.max_flows < 8, &policy);
    assert_eq!(tries, 2 * expected.len());
}

#[test]
fn slices_that_were_refused_come_again() {
    use std::io::IoSlice;
    for (seed, policy) in (0..).zip(with_pieces()) {
        let packets = traffic(FIRST_SEED + seed, 80, seed.is_multiple_of(3));
        let packets = receive_all(&packets);
        let gathered = |fails_at: usize| {
            let mut aggregator = BatchAggregator::new(Layer::Ip, policy, KEY);
            let (mut tries, mut seen) = (0, Vec::new());
            let mut sink = |slices: &[IoSlice<'_>]| {
                tries += 1;
                if tries == fails_at + 1 {
                    return Err(tries);
                }
                seen.push(
                    slices.iter().flat_map(|slice| slice.iter()).copied().collect::<Vec<u8>>(),
                );
                Ok(())
            };
            let mut result = gather_with(&mut aggregator, false, &packets, &mut sink);
            if result.is_err() {
                assert!(aggregator.unfinished() > 0 && aggregator.counters().balanced());
                result = gather_with(&mut aggregator, true, &packets, &mut sink);
            }
            assert_eq!(result, Ok(()));
            assert_nothing_held(&aggregator);
            seen
        };
        let expected = gathered(usize::MAX - 1);
        assert!(expected.len() > 10);
        for fails_at in 0..expected.len() {
            assert!(gathered(fails_at) == expected, "{policy:?} fails at {fails_at}");
        }
    }
}

/// Whoever begins anew has given up what was left, and nothing of it shows.
#[test]
fn a_new_poll_gives_up_what_is_left() {
    for (seed, policy) in (0..).zip(policies()) {
        let (old, new) = (
            traffic(FIRST_SEED + seed, 60, seed.is_multiple_of(3)),
            traffic(seed + 40, 60, seed.is_multiple_of(2)),
        );
        let (old, new) = (receive_all(&old), receive_all(&new));
        let mut plain = BatchAggregator::new(Layer::Ip, policy, KEY);
        let deliveries = poll(&mut plain, &old).len();
        for at in 0..deliveries {
            let mut aggregator = BatchAggregator::new(Layer::Ip, policy, KEY);
            let mut failing = Failing::new(Failure::At(at, 1));
            let failed = poll_with(&mut aggregator, false, &old, &mut |mut packet| {
                failing.take(&mut packet)
            });
            assert!(failed.is_err() && aggregator.unfinished() > 0);
            let before = aggregator.counters().packets_in;
            // An empty poll, another policy and a new poll do the same.
            match at % 3 {
                0 => assert!(poll(&mut aggregator, &[]).is_empty()),
                1 => aggregator.set_policy(policy),
                _ => {}
            }
            let found = poll(&mut aggregator, &new);
            assert_eq!(aggregator.counters().packets_in - before, new.len() as u64);
            let count: u32 = found.iter().map(|seen| seen.metadata.packets).sum();
            assert_eq!(count as usize, new.len());
            if let superpacket::aggregate::Mode::Gro { .. } = policy.mode {
                let expected = poll(&mut BatchAggregator::new(Layer::Ip, policy, KEY), &new);
                assert_equal(&found, &expected, &(policy, at));
            }
        }
    }
}

#[test]
fn buffers_are_released_wherever_it_ends() {
    for (seed, policy) in (0..).zip(policies()) {
        let packets: Vec<_> = traffic(FIRST_SEED + seed, 80, false)
            .into_iter()
            .map(|packet| (packet.layer, Rc::<[u8]>::from(packet.bytes)))
            .collect();
        let received = || {
            packets.iter().map(|(layer, buffer)| {
                let mut packet = RxPacket::new(AnyBytes::Counted(buffer.clone()));
                packet.layer = *layer;
                assert!(packet.push(AnyBytes::Counted(buffer.clone())).is_ok(), "there is room");
                packet
            })
        };
        for at in 0..20 {
            let mut aggregator = Aggregator::new(policy, KEY);
            let mut failing =
                Failing::new(if at % 2 == 0 { Failure::At(at, 9) } else { Failure::Taken(at) });
            let mut batch: Vec<_> = received().collect();
            let mut sink =
                |mut packet: SuperPacket<'_, AnyBytes<'static>>| failing.take(&mut packet);
            let _ = aggregator.receive_batch(&mut batch, 0, &mut sink);
            let _ = aggregator.flush_all(&mut sink);
            assert_eq!(aggregator.counters().packets_in as usize + batch.len(), packets.len());
            drop((batch, aggregator));
            assert!(
                packets.iter().all(|(_, buffer)| Rc::strong_count(buffer) == 1),
                "{policy:?} {at}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 100 }, ..ProptestConfig::default() })]

    /// A poll that is gone on with for other packets does nothing that is unsafe or endless, and
    /// counts all.
    #[test]
    fn going_on_with_other_packets_harms_nobody(seed: u64, at in 0usize..40, fewer in 0usize..100) {
        let policy = policies()[seed as usize % policies().len()];
        let packets = traffic(seed, 100, true);
        let packets = receive_all(&packets);
        let mut aggregator = BatchAggregator::new(Layer::Ip, policy, KEY);
        let mut failing = Failing::new(Failure::At(at, 1));
        let result = poll_with(&mut aggregator, false, &packets, &mut |mut packet| failing.take(&mut packet));
        if result.is_err() {
            let result = poll_with(&mut aggregator, true, &packets[..fewer], &mut |packet| {
                packet.slices().for_each(|slice| assert!(slice.len() < 70_000));
                Ok(())
            });
            assert_eq!(result, Ok(()));
        }
        assert_nothing_held(&aggregator);
    }
}
