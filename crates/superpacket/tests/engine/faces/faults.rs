//! Cases of which each was wrong once.

use std::io::IoSlice;

use superpacket::aggregate::{HashKey, MAX_SLICES, Policy, Storage};
use superpacket::segment::GsoKind;
use superpacket::virtio::Framing;
use superpacket::{Layer, Reason, RxPacket, SuperPacket};
use superpacket_traffic::frame::{Checksum, Frame};
use superpacket_traffic::workload;

use super::traffic::KEY;
use crate::support::{Aggregator, BatchAggregator, Seen, gso_of, unknown};

#[test]
fn linear_storage_loses_nothing_in_place() {
    let frames = workload::w1(3);
    for (policy, written) in [(Policy::gro(), 1), (Policy::lro(), 1), (Policy::lro_with_acks(), 1)]
    {
        let mut aggregator =
            BatchAggregator::new(Layer::Ethernet, policy.with_storage(Storage::Linear), KEY);
        let mut buffers: Vec<_> = frames
            .iter()
            .map(|frame| {
                let mut buffer = Vec::with_capacity(10_000);
                buffer.extend_from_slice(frame);
                buffer
            })
            .collect();
        let joined = aggregator.join_in_place(&mut buffers, 0).expect("no header").to_vec();
        assert_eq!(joined.len(), written, "{policy:?}");
        assert_eq!(buffers[joined[0]].len(), 66 + 3 * 1_448);
    }
}

#[test]
fn linear_storage_keeps_to_the_limit_of_slices() {
    let frames = Frame::tcp4(1, 1).run_bytes(3_000);
    let mut aggregator =
        BatchAggregator::framed(Framing::TAP, Policy::gro().with_storage(Storage::Linear), KEY);
    let mut most = 0;
    aggregator.poll_gathered(&unknown(Layer::Ethernet, &frames), |slices: &[IoSlice<'_>]| {
        most = most.max(slices.len())
    });
    assert!(most <= MAX_SLICES, "{most}");
}

#[test]
fn a_packet_that_a_failed_sink_kept_from_being_taken_is_not_left_behind() {
    let frames = workload::w1(2);
    let mut aggregator: Aggregator<&[u8]> = Aggregator::new(Policy::gro(), HashKey::new(1));
    let fails = &mut |_: SuperPacket<'_, &[u8]>| Err::<(), ()>(());
    let garbage = [1u8, 2, 3];
    assert!(aggregator.receive(RxPacket::new(&garbage[..]), 0, fails).is_err());
    // This one is not come to: the garbage is refused once more.
    assert!(aggregator.receive(RxPacket::new(&frames[0]), 0, fails).is_err());
    let mut sizes = Vec::new();
    let mut sink =
        |packet: SuperPacket<'_, &[u8]>| sizes.push((packet.length(), packet.metadata.packets));
    aggregator.receive_batch(&mut vec![RxPacket::new(&frames[1])], 0, &mut sink);
    aggregator.poll_end(0, &mut sink);
    aggregator.flush_all(&mut sink);
    assert_eq!(sizes, [(3, 1), (66 + 2 * 1_448, 2)]);
}

#[test]
fn merged_acks_without_pieces_are_kept_when_the_sink_refuses_them() {
    let acks = workload::w3(3);
    let acks = unknown(Layer::Ethernet, &acks);
    let policy = Policy::lro_with_acks().with_storage(Storage::Linear);
    let mut aggregator = BatchAggregator::new(Layer::Ethernet, policy, KEY);
    let mut seen = Vec::new();
    assert!(aggregator.poll(&acks, |_| Err(())).is_err());
    assert_eq!(aggregator.unfinished(), 1);
    for _ in 0..2 {
        assert!(aggregator.resume(&acks, |_| Err(())).is_err());
    }
    aggregator.resume(&acks, |packet| seen.push((packet.length(), packet.metadata.packets)));
    assert_eq!(seen, [(54, 3)]);
}

#[test]
fn a_super_packet_whose_headers_lie_in_two_buffers_keeps_its_claim() {
    let frame = Frame::tcp4(1, 3_000).with_checksum(Checksum::Partial);
    let bytes = frame.to_bytes();
    let received = |cut: usize| {
        let mut packet = RxPacket::new(&bytes[..cut]).with_gso(gso_of(GsoKind::Tcp4, 1_000));
        packet.push(&bytes[cut..]).expect("there is room");
        packet.with_checksum(superpacket::RxChecksum::Partial { start: 34, offset: 16 })
    };
    let header = |cut: usize| {
        let mut aggregator = BatchAggregator::framed(Framing::TAP, Policy::gro(), KEY);
        let mut written = Vec::new();
        aggregator
            .poll_gathered(&[received(cut)], |slices: &[IoSlice<'_>]| written = slices[0].to_vec());
        written
    };
    assert_eq!(header(14), header(100));
}

#[test]
fn undelivered_packets_take_no_more_memory_than_there_are() {
    let before = crate::support::allocations::live_bytes();
    let mut aggregator: Aggregator<&[u8]> = Aggregator::new(Policy::gro(), HashKey::new(1));
    let garbage = [1u8, 2, 3];
    let mut fails = |_: SuperPacket<'_, &[u8]>| Err::<(), ()>(());
    for _ in 0..2 {
        assert!(aggregator.bypass(RxPacket::new(&garbage[..]), &mut fails).is_err());
    }
    for _ in 0..100_000 {
        // One of those that wait goes out, and the next is refused.
        let mut takes = true;
        let mut sink =
            |_: SuperPacket<'_, &[u8]>| if core::mem::take(&mut takes) { Ok(()) } else { Err(()) };
        assert!(aggregator.bypass(RxPacket::new(&garbage[..]), &mut sink).is_err());
    }
    let undelivered = aggregator.undelivered();
    let grown = crate::support::allocations::live_bytes() - before;
    assert!(undelivered < 10 && grown < 1 << 20, "{undelivered} wait in {grown} bytes");
}

#[test]
fn what_is_given_up_is_noted_of_no_flow() {
    // Merged ACKs of a poll that failed; then one that acknowledges more.
    let ack =
        |number: u32| Frame::tcp4(1, 0).with_tcp(|tcp| tcp.acknowledgement = number).to_bytes();
    let polls = [[ack(0x9000_0000), vec![1, 2, 3]], [ack(0x9000_1000), ack(0x9000_2000)]];
    let mut aggregator = BatchAggregator::new(Layer::Ethernet, Policy::lro_with_acks(), KEY);
    let polls = polls.each_ref().map(|poll| unknown(Layer::Ethernet, poll));
    assert!(aggregator.poll(&polls[0], |_| Err(())).is_err());
    let mut seen = Vec::new();
    aggregator
        .poll(&polls[1], |packet| seen.push((packet.metadata.packets, packet.metadata.reason)));
    assert_eq!(seen, [(2, Reason::PollEnd)]);
}

#[test]
fn a_sink_that_panics_leaves_nothing_of_its_packet_to_the_next() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let merges: Vec<_> = workload::w1(3);
    let passes = vec![vec![1u8, 2, 3], vec![4, 5]];
    for packets in [&merges, &passes] {
        let packets = &unknown(Layer::Ethernet, packets);
        let seen = |aggregator: &mut BatchAggregator| {
            let mut seen = Vec::new();
            aggregator.poll(packets, |packet| seen.push(Seen::of(&packet)));
            seen
        };
        let expected = seen(&mut BatchAggregator::new(Layer::Ethernet, Policy::gro(), KEY));
        let mut aggregator = BatchAggregator::new(Layer::Ethernet, Policy::gro(), KEY);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            aggregator.poll(packets, |_| -> () { panic!("the sink") })
        }));
        assert!(panicked.is_err());
        assert_eq!(seen(&mut aggregator), expected);
        assert!(aggregator.counters().balanced());
    }
}

#[test]
fn gathering_leaves_the_limits_of_other_calls_alone() {
    let frames = Frame::tcp4(1, 1).run_bytes(3_000);
    let mut aggregator = BatchAggregator::new(Layer::Ethernet, Policy::gro(), KEY);
    let policy = *aggregator.policy();
    aggregator.poll_gathered(&unknown(Layer::Ethernet, &frames), |_: &[IoSlice<'_>]| {});
    let mut packets = 0;
    aggregator.poll(&unknown(Layer::Ethernet, &frames), |_| packets += 1);
    assert_eq!((*aggregator.policy(), packets), (policy, 1));
}

#[test]
fn packets_handed_over_one_by_one_are_delivered_once_and_in_order() {
    super::failing::one_by_one();
}

#[test]
fn packets_without_pieces_are_delivered_whichever_fails() {
    super::failing::resume_everywhere(Policy::lro_with_acks().with_storage(Storage::Linear), 1);
}
