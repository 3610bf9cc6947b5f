//! Borrowed for a call, packets become what they become if they are handed over: the same bytes,
//! metadata, reasons, order and counts.

use proptest::prelude::*;
use superpacket::aggregate::{
    AggregateCounters, BorrowPacket, Borrowed, BufferIndex, Mode, Policy,
};
use superpacket::{Layer, Metadata, Reason, RxChecksum, RxPacket, SuperPacket};

use super::traffic::{
    KEY, OwnedSink, assert_equal, assert_nothing_held, policies, policy, poll, poll_with,
    receive_all, traffic,
};
use crate::support::{Aggregator, AnyBytes, BatchAggregator, Packet, Seen, in_buffers, unknown};

/// The promise that it can move to another thread, and stay.
const _: () = {
    const fn is_owned_value<T: Send + 'static>() {}
    is_owned_value::<BatchAggregator>();
};

/// What an aggregator that owns its packets gives for each poll, and its counters after each.
fn owned(policy: Policy, packets: &[Packet], size: usize) -> Vec<(Vec<Seen>, AggregateCounters)> {
    let mut aggregator = Aggregator::new(policy, KEY);
    let one_poll = |packets: &[Packet]| {
        let mut seen = Vec::new();
        let mut sink: OwnedSink<'_> = &mut |packet| {
            seen.push(Seen::of(&packet));
            Ok(())
        };
        let mut batch: Vec<_> = receive_all(packets)
            .iter()
            .map(|packet| in_buffers(packet, |buffer| buffer.to_vec()))
            .collect();
        assert_eq!(aggregator.receive_batch(&mut batch, 0, &mut sink), Ok(()));
        assert_eq!(aggregator.poll_end(0, &mut sink), Ok(()));
        (seen, *aggregator.counters())
    };
    packets.chunks(size).map(one_poll).collect()
}

/// A difference of counters: what a poll added.
fn packets_and_bytes(counters: &AggregateCounters) -> [u64; 4] {
    [counters.packets_in, counters.packets_out, counters.bytes_in, counters.bytes_out]
}

fn assert_same(policy: Policy, packets: &[Packet], size: usize) {
    let mut aggregator = BatchAggregator::new(Layer::Ip, policy, KEY);
    let mut any_alone = false;
    for (packets, (expected, counters)) in packets.chunks(size).zip(owned(policy, packets, size)) {
        let alone = packets.len() == 1 && matches!(policy.mode, Mode::Gro { .. });
        let expected: Vec<_> =
            if alone { expected.into_iter().map(Seen::alone).collect() } else { expected };
        let found = poll(&mut aggregator, &receive_all(packets));
        assert!(!alone || found[0].metadata.reason == Reason::Alone);
        let found = if alone { found.into_iter().map(Seen::alone).collect() } else { found };
        assert_equal(&found, &expected, &policy);
        any_alone |= alone;
        if any_alone {
            assert_eq!(packets_and_bytes(aggregator.counters()), packets_and_bytes(&counters));
        } else {
            assert_eq!(*aggregator.counters(), counters);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 150 }, ..ProptestConfig::default() })]

    #[test]
    fn borrowed_packets_give_what_owned_ones_give(seed: u64, policy in policy(), size in prop_oneof![Just(1usize), 2usize..9, 9usize..300], scattered: bool) {
        assert_same(policy, &traffic(seed, 400, scattered), size);
    }
}

#[test]
fn each_policy_gives_the_same() {
    for policy in policies() {
        for seed in 0..8 {
            assert_same(policy, &traffic(seed, 300, seed % 3 == 0), 100);
        }
    }
}

/// A hold time means nothing to what holds nothing.
#[test]
fn hold_times_hold_nothing() {
    for policy in policies() {
        let packets = traffic(5, 300, false);
        let packets = receive_all(&packets);
        let seen = |hold_time| {
            poll(
                &mut BatchAggregator::new(Layer::Ip, policy.with_hold_time(hold_time), KEY),
                &packets,
            )
        };
        assert_eq!(seen(u64::MAX), seen(0));
    }
}

/// Asserts that a packet, borrowed, is one buffer of which nothing is known.
#[track_caller]
fn assert_borrows<P: BorrowPacket>(layer: Layer, packet: &P, bytes: &[u8]) {
    let RxPacket { layer: found, checksum, vlan, gso, .. } = packet.received(layer);
    assert_eq!((packet.buffer_count(), packet.buffer(0)), (1, bytes));
    assert_eq!((found, checksum, vlan, gso), (layer, RxChecksum::None, None, None));
}

/// Anything that holds bytes can be borrowed: the same comes of it as of an [`RxPacket`] of which
/// nothing is known.
#[test]
fn bytes_of_any_kind_can_be_borrowed() {
    fn of<P: BorrowPacket>(
        layer: Layer,
        policy: Policy,
        packets: &[P],
    ) -> (Vec<Seen>, AggregateCounters) {
        let mut aggregator = BatchAggregator::new(layer, policy, KEY);
        let mut seen = Vec::new();
        aggregator.poll(packets, |packet: SuperPacket<'_, BufferIndex, Borrowed<'_, P>>| {
            seen.push(Seen::of(&packet))
        });
        assert_nothing_held(&aggregator);
        (seen, *aggregator.counters())
    }
    for layer in [Layer::Ethernet, Layer::Ip] {
        let mut merged = 0;
        let mut bytes: Vec<Vec<u8>> = traffic(4, 3_000, false)
            .into_iter()
            .filter(|packet| packet.layer == layer)
            .map(|packet| packet.bytes)
            .collect();
        for policy in policies() {
            let received = bytes.iter().map(|bytes| {
                if layer == Layer::Ip {
                    RxPacket::ip(&bytes[..])
                } else {
                    RxPacket::new(&bytes[..])
                }
            });
            let expected = of(Layer::Ethernet, policy, &received.collect::<Vec<_>>());
            merged += expected.1.merged;
            assert_eq!(
                of(
                    layer,
                    policy,
                    &bytes.iter().map(|bytes| AnyBytes::Borrowed(bytes)).collect::<Vec<_>>()
                ),
                expected
            );
            assert_eq!(
                of(
                    layer,
                    policy,
                    &bytes.iter_mut().map(|bytes| AnyBytes::Exclusive(bytes)).collect::<Vec<_>>()
                ),
                expected
            );
            assert_eq!(
                of(layer, policy, &bytes.iter().cloned().map(AnyBytes::Vector).collect::<Vec<_>>()),
                expected
            );
            assert_eq!(
                of(
                    layer,
                    policy,
                    &bytes
                        .iter()
                        .map(|bytes| AnyBytes::Boxed(bytes.clone().into()))
                        .collect::<Vec<_>>()
                ),
                expected
            );
        }
        for bytes in &mut bytes {
            let copy = bytes.clone();
            assert_borrows(layer, &&bytes[..], &copy);
            assert_borrows(layer, &&mut bytes[..], &copy);
            assert_borrows(layer, &bytes.clone().into_boxed_slice(), &copy);
            assert_borrows(layer, bytes, &copy);
        }
        assert!(merged > 100, "{merged}");
    }
}

/// A packet that comes alone is not looked at, but where LRO counts its acknowledgements; two are.
#[test]
fn a_packet_alone_in_a_call_passes_unread() {
    let frames = superpacket_traffic::workload::w1(2);
    let reasons = |policy: Policy, frames: &[Vec<u8>]| {
        let mut aggregator = BatchAggregator::new(Layer::Ethernet, policy, KEY);
        let seen: Vec<_> = poll(&mut aggregator, &unknown(Layer::Ethernet, frames))
            .iter()
            .map(|seen| seen.metadata)
            .collect();
        let read = if seen[0].reason == Reason::Alone { 0 } else { frames.len() };
        assert_eq!(aggregator.counters().verified_in_software, read as u64);
        seen
    };
    for policy in [Policy::gro(), Policy::gro_with_udp().with_max_packets(1)] {
        let seen = reasons(policy, &frames[..1]);
        assert!(matches!(
            seen[..],
            [Metadata { reason: Reason::Alone, layout: None, packets: 1, largest_payload: 0, .. }]
        ));
        assert_eq!(seen[0].checksum, RxChecksum::None);
    }
    assert_eq!(reasons(Policy::lro(), &frames[..1])[0].reason, Reason::PollEnd);
    assert!(reasons(Policy::lro(), &frames[..1])[0].layout.is_some());
    assert_eq!(reasons(Policy::gro(), &frames)[0].reason, Reason::PollEnd);
    // The second call finds nothing of the first.
    let mut aggregator = BatchAggregator::new(Layer::Ethernet, Policy::gro(), KEY);
    let mut packets = Vec::new();
    for frame in &frames {
        packets.extend(
            poll(&mut aggregator, &unknown(Layer::Ethernet, core::slice::from_ref(frame)))
                .iter()
                .map(|seen| seen.metadata.packets),
        );
    }
    assert_eq!(packets, [1, 1]);
    assert_eq!(aggregator.counters().packets_in, 2);
}

/// Where a piece lies can be told from its buffer's number.
#[test]
fn buffers_are_told_by_number() {
    let packets = traffic(7, 500, true);
    let packets = receive_all(&packets);
    let mut aggregator = BatchAggregator::new(Layer::Ip, Policy::gro_with_udp(), KEY);
    let mut pieces = 0;
    let result = poll_with(&mut aggregator, false, &packets, &mut |mut packet| {
        let payload: Vec<u8> = packet.payload().flatten().copied().collect();
        let mut found = Vec::new();
        for piece in packet.take_pieces() {
            let (start, length) = (piece.start(), piece.length());
            let index = piece.into_buffer().expect("fragments have buffers");
            let buffer: &[u8] = packets[index.packet()]
                .buffers()
                .nth(index.buffer())
                .expect("a buffer of the packet");
            found.extend_from_slice(&buffer[start..start + length]);
            pieces += 1;
        }
        assert_eq!(found, payload);
        Ok(())
    });
    assert_eq!(result, Ok(()));
    assert!(pieces > 500);
}
