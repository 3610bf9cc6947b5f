//! In steady state the engine allocates nothing: after a first round, which makes room, none of the
//! next touches the heap.

use std::hint::black_box;

use superpacket::Layer;
use superpacket::aggregate::{Delivery, HashKey, Policy, Storage};
use superpacket::packet::RxPacket;
use superpacket::segment::{ChecksumOutput, SegmentOptions, Segmenter};
use superpacket::super_packet::SuperPacket;
use superpacket_traffic::workload::{self, TRAIN};

use crate::support::allocations::{allocations, live_bytes};
use crate::support::{Aggregator, BatchAggregator, PARTIAL_GRO, PARTIAL_GRO_UDP, unknown};

/// Packets handed over at a time: a driver's budget.
const BATCH: usize = 64;

/// What a test's traffic did while nothing was allocated.
#[derive(Debug, Default)]
struct Seen {
    super_packets: u64,
    merged: u64,
    absorbed_acks: u64,
    segments: u64,
}

/// Runs rounds of `round` frames through an aggregator in batches, ends a poll after each round,
/// and cuts again what can be cut; all after the first `warm` rounds must allocate nothing.
#[track_caller]
fn steady(policy: Policy, frames: &[Vec<u8>], round: usize, warm: usize, buffers: usize) -> Seen {
    let mut aggregator: Aggregator<&[u8]> = Aggregator::new(policy, HashKey::new(42));
    let mut segmenter = Segmenter::new();
    let options = SegmentOptions::default().with_checksum(ChecksumOutput::AsMerged);
    let mut batch = Vec::with_capacity(BATCH);
    let (mut bytes, mut seen) = (0, Seen::default());
    for (number, round) in frames.chunks(round).enumerate() {
        let before = (allocations(), *aggregator.counters(), segmenter.counters().segments);
        let mut sink = |packet: SuperPacket<'_, &[u8]>| {
            if packet.metadata.gso.is_some() {
                let cut = segmenter.segment(&packet, &options, |segment| bytes += segment.length());
                assert!(cut.is_ok(), "{cut:?}");
            }
        };
        for (poll, frames) in round.chunks(BATCH).enumerate() {
            for frame in frames {
                let (first, rest) = frame.split_at(frame.len().div_ceil(buffers));
                let mut packet = RxPacket::new(first);
                if buffers > 1 {
                    packet = packet.with_chain(aggregator.chain());
                    for piece in rest.chunks(first.len()) {
                        assert!(packet.push(piece).is_ok());
                    }
                }
                batch.push(packet);
            }
            aggregator.receive_batch(&mut batch, (number * 100 + poll) as u64, &mut sink);
        }
        aggregator.poll_end(number as u64 * 100 + 99, &mut sink);
        if number >= warm {
            let (count, counters, segments) = before;
            assert_eq!(allocations() - count, 0, "allocations in round {number}");
            seen.super_packets += aggregator.counters().super_packets - counters.super_packets;
            seen.merged += aggregator.counters().merged - counters.merged;
            seen.absorbed_acks += aggregator.counters().absorbed_acks - counters.absorbed_acks;
            seen.segments += segmenter.counters().segments - segments;
        }
    }
    black_box(bytes);
    assert!(aggregator.counters().balanced());
    seen
}

/// How many rounds are watched.
const ROUNDS: usize = 100;

/// W1, two trains in each round.
fn one_flow() -> Vec<Vec<u8>> {
    workload::w1(2 * TRAIN * (ROUNDS + 1))
}

#[test]
fn an_allocation_is_counted() {
    let before = allocations();
    drop(black_box(Vec::<u8>::with_capacity(black_box(100))));
    drop(black_box(vec![0u8; black_box(100)]));
    let mut grown = black_box(vec![1u8]);
    grown.reserve_exact(black_box(5_000));
    assert!(allocations() - before >= 4, "two vectors, and one that grows");

    let before = (allocations(), live_bytes());
    let some = black_box(vec![0u8; 100]);
    assert_eq!((allocations(), live_bytes()), (before.0 + 1, before.1 + 100));
    drop(some);
    assert_eq!(live_bytes(), before.1);
}

#[test]
fn one_flow_merged_and_cut_again() {
    for storage in [Storage::Fragments, Storage::Linear] {
        let seen = steady(PARTIAL_GRO.with_storage(storage), &one_flow(), 2 * TRAIN, 1, 1);
        assert_eq!(
            (seen.super_packets, seen.merged),
            (2 * ROUNDS as u64, (2 * TRAIN - 2) as u64 * ROUNDS as u64),
            "{storage:?}"
        );
        assert_eq!(seen.segments, (2 * TRAIN * ROUNDS) as u64, "{storage:?}");
    }
}

#[test]
fn many_flows_in_turns() {
    const FLOWS: usize = 64;
    let round = FLOWS * 4;
    // After a train, all has been seen: its last segment, alone with PSH, passes.
    let warm = TRAIN.div_ceil(4);
    let frames = workload::w2(FLOWS, round * (warm + ROUNDS / 2));
    for storage in [Storage::Fragments, Storage::Linear] {
        let seen = steady(PARTIAL_GRO.with_storage(storage), &frames, round, warm, 1);
        assert!(seen.super_packets >= (FLOWS * ROUNDS / 2) as u64, "{storage:?}: {seen:?}");
        assert_eq!(seen.segments, seen.super_packets + seen.merged, "{storage:?}");
    }
}

#[test]
fn flows_that_leave_for_others() {
    // Four times as many as the table holds: each packet evicts a flow, and nothing merges.
    let policy = PARTIAL_GRO.with_max_flows(16);
    let seen = steady(policy, &workload::hostile(64, 64 * (ROUNDS + 1)), 64, 1, 1);
    assert_eq!((seen.super_packets, seen.merged), (0, 0));
}

#[test]
fn every_call_a_poll() {
    let policy = PARTIAL_GRO.with_delivery(Delivery::AtOnce);
    let seen = steady(policy, &one_flow(), 2 * TRAIN, 1, 1);
    assert!(seen.super_packets >= 2 * ROUNDS as u64, "{seen:?}");
}

#[test]
fn flows_held_past_the_poll() {
    // Two rounds long: those held leave in the call after the next.
    let policy = PARTIAL_GRO.with_hold_time(150);
    let frames = workload::w2(64, 64 * 3 * (ROUNDS / 2 + 4));
    let seen = steady(policy, &frames, 64 * 3, 4, 1);
    assert!(seen.super_packets > 64 * ROUNDS as u64 / 8, "{seen:?}");
}

#[test]
fn packets_of_several_buffers_in_chains_that_came_back() {
    for storage in [Storage::Fragments, Storage::Linear] {
        let seen = steady(PARTIAL_GRO.with_storage(storage), &one_flow(), 2 * TRAIN, 1, 3);
        assert_eq!(seen.segments, (2 * TRAIN * ROUNDS) as u64, "{storage:?}");
    }
}

#[test]
fn lro_of_data() {
    for storage in [Storage::Fragments, Storage::Linear] {
        let seen = steady(Policy::lro().with_storage(storage), &one_flow(), 2 * TRAIN, 1, 1);
        assert_eq!(
            (seen.super_packets >= 2 * ROUNDS as u64, seen.segments),
            (true, 0),
            "{storage:?}: LRO's are not cut again"
        );
    }
}

#[test]
fn lro_of_pure_acks() {
    const ROUND: usize = 100;
    for storage in [Storage::Fragments, Storage::Linear] {
        let seen = steady(
            Policy::lro_with_acks().with_storage(storage),
            &workload::w3(ROUND * (ROUNDS + 1)),
            ROUND,
            1,
            1,
        );
        assert_eq!(seen.absorbed_acks, ((ROUND - 1) * ROUNDS) as u64, "{storage:?}");
    }
}

#[test]
fn datagrams() {
    let seen = steady(PARTIAL_GRO_UDP, &workload::w5(88 * (ROUNDS + 1)), 88, 1, 1);
    assert!(seen.super_packets >= 2 * ROUNDS as u64, "{seen:?}");
}

#[test]
fn a_sink_that_refuses() {
    let mut aggregator = BatchAggregator::new(Layer::Ethernet, Policy::gro(), HashKey::new(42));
    let (mut offered, mut refused) = (0, 0);
    for (number, packets) in workload::w2(16, BATCH * (ROUNDS + TRAIN)).chunks(BATCH).enumerate() {
        let packets = &unknown(Layer::Ethernet, packets);
        let before = allocations();
        let mut every_fourth = || {
            offered += 1;
            if offered % 4 == 0 { Err(()) } else { Ok(()) }
        };
        let mut result = aggregator.poll(packets, |_| every_fourth());
        while result.is_err() {
            refused += 1;
            result = aggregator.resume(packets, |_| every_fourth());
        }
        assert!(
            number < TRAIN || allocations() == before,
            "{} allocations in round {number}",
            allocations() - before
        );
    }
    assert!(
        refused > ROUNDS && aggregator.counters().merged > (BATCH * ROUNDS / 2) as u64,
        "{refused} refused"
    );
}
