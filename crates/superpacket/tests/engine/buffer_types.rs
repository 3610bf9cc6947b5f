//! A buffer may be of any type that lends bytes: what comes out is the same for all of them, in 1
//! to 17 buffers, and each buffer is let go with its packet.

use std::borrow::Cow;
use std::sync::Arc;

use crate::support::{
    Aggregator, AnyBytes, Output, PARTIAL_GRO, Packet, Page, assert_reversed, packets, run,
};
use superpacket::aggregate::{HashKey, Mode, Policy, Storage};
use superpacket::packet::{MAX_BUFFERS, RxPacket};
use superpacket::super_packet::SuperPacket;
use superpacket_traffic::frame::Frame;

/// Five segments that make one super-packet, each in `count` buffers.
fn received(count: usize) -> Vec<Packet> {
    let frames = Frame::tcp4(1, 1000).with_timestamps(1, 2).run(5);
    let size = frames[0].to_bytes().len().div_ceil(count);
    let packets: Vec<_> =
        packets(&frames).into_iter().map(|packet| packet.in_buffers_of(size)).collect();
    assert!(packets.iter().all(|packet| packet.buffers.len() + 1 == count), "{count}");
    packets
}

fn modes() -> [Policy; 4] {
    let linear = |policy: Policy| policy.with_storage(Storage::Linear);
    [PARTIAL_GRO, linear(PARTIAL_GRO), Policy::lro(), linear(Policy::lro())]
}

fn aggregator<B: AsRef<[u8]>>(policy: Policy) -> Aggregator<B> {
    Aggregator::new(policy, HashKey::new(7))
}

/// Runs the packets as one poll, in buffers that `buffer` makes of each piece's number in its
/// packet and its bytes.
fn outputs<B: AsRef<[u8]>>(
    aggregator: &mut Aggregator<B>,
    received: &[Packet],
    mut buffer: impl FnMut(usize, Vec<u8>) -> B,
) -> Vec<Output> {
    let mut outputs = Vec::new();
    let mut sink = |packet: SuperPacket<'_, B>| outputs.push(Output::of(&packet));
    for packet in received {
        let mut rest = &packet.bytes[..];
        let mut pieces =
            packet.buffers.iter().chain([&usize::MAX]).enumerate().map(|(number, &length)| {
                let (piece, others) = rest.split_at(length.min(rest.len()));
                rest = others;
                buffer(number, piece.to_vec())
            });
        let mut received = RxPacket::new(pieces.next().expect("at least one"));
        for piece in pieces {
            assert!(received.push(piece).is_ok(), "at most {MAX_BUFFERS}");
        }
        aggregator.receive(received, 0, &mut sink);
    }
    aggregator.poll_end(0, &mut sink);
    outputs
}

/// Asserts that packets in buffers of this type come out as those in vectors do.
#[track_caller]
fn assert_as_vectors(mut buffer: impl FnMut(usize, Vec<u8>) -> AnyBytes<'static>) {
    for count in 1..=MAX_BUFFERS {
        let received = received(count);
        for policy in modes() {
            let reference = run(policy, &received);
            if matches!(policy.mode, Mode::Gro { .. }) {
                assert_reversed(&received, &reference);
            }
            let outputs = outputs(&mut aggregator(policy), &received, &mut buffer);
            assert_eq!(
                (outputs.len(), outputs[0].metadata.packets),
                (1, 5),
                "{count} buffers, {policy:?}"
            );
            let (output, expected) = (&outputs[0], &reference.outputs[0]);
            assert_eq!(
                (&output.bytes, output.metadata),
                (&expected.bytes, expected.metadata),
                "{count} buffers, {policy:?}"
            );
            assert_eq!(
                (output.pieces, output.contiguous),
                (expected.pieces, expected.contiguous),
                "{count} buffers, {policy:?}"
            );
        }
    }
}

#[test]
fn buffers_of_the_standard_library() {
    assert_as_vectors(|_, bytes| AnyBytes::Vector(bytes));
    assert_as_vectors(|_, bytes| AnyBytes::Boxed(bytes.into()));
    assert_as_vectors(|_, bytes| AnyBytes::Shared(bytes.into()));
    assert_as_vectors(|_, bytes| AnyBytes::Counted(bytes.into()));
    assert_as_vectors(|number, bytes| {
        AnyBytes::Either(if number % 2 == 0 { bytes.into() } else { Cow::Borrowed(bytes.leak()) })
    });
}

#[test]
fn buffers_that_are_lent() {
    // What is lent must outlive the aggregator, and nothing else.
    for count in 1..=MAX_BUFFERS {
        let received = received(count);
        let pool: Vec<Vec<u8>> = received.iter().map(|packet| packet.bytes.clone()).collect();
        for policy in modes() {
            let mut lent = pool.iter().flat_map(|bytes| bytes.chunks(bytes.len().div_ceil(count)));
            let outputs = outputs(&mut aggregator(policy), &received, |_, bytes| {
                let buffer = lent.next().expect("as many as the packets have");
                assert_eq!(buffer, bytes);
                buffer
            });
            assert_eq!(
                outputs[0].bytes,
                run(policy, &received).outputs[0].bytes,
                "{count} buffers, {policy:?}"
            );
        }
    }
}

#[test]
fn buffers_of_a_type_of_ones_own() {
    assert_as_vectors(|_, bytes| AnyBytes::Page(Box::new(Page::holding(&bytes))));
}

#[test]
fn one_packet_in_buffers_of_different_types() {
    assert_as_vectors(|number, bytes| match number % 7 {
        0 => AnyBytes::Page(Box::new(Page::holding(&bytes))),
        1 => AnyBytes::Shared(bytes.into()),
        2 => AnyBytes::Boxed(bytes.into()),
        3 => AnyBytes::Borrowed(bytes.leak()),
        4 => AnyBytes::Counted(bytes.into()),
        5 => AnyBytes::Either(bytes.into()),
        _ => AnyBytes::Vector(bytes),
    });
}

#[test]
fn every_buffer_is_let_go_with_its_packet() {
    for count in 1..=MAX_BUFFERS {
        let received = received(count);
        for policy in modes() {
            let mut kept = Vec::new();
            let mut aggregator = aggregator(policy);
            outputs(&mut aggregator, &received, |_, bytes| {
                let buffer: Arc<[u8]> = bytes.into();
                kept.push(Arc::clone(&buffer));
                AnyBytes::Shared(buffer)
            });
            assert_eq!(kept.len(), 5 * count);
            assert!(
                kept.iter().all(|buffer| Arc::strong_count(buffer) == 1),
                "{count} buffers, {policy:?}"
            );
            drop(aggregator);
            assert!(
                kept.iter().all(|buffer| Arc::strong_count(buffer) == 1),
                "{count} buffers, {policy:?}"
            );
        }
    }
}
