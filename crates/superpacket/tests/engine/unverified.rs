//! Checksums that nobody has verified are verified when a second packet of the flow comes: whoever
//! leaves alone leaves unread, with the knowledge that it came with.

use crate::support::{
    Aggregator, BatchAggregator, Output, Packet, Run, aggregator, run_batches, unknown,
};
use superpacket::aggregate::{Delivery, HashKey, Policy, Reason};
use superpacket::packet::{Layer, RxChecksum};
use superpacket::super_packet::SuperPacket;
use superpacket_traffic::frame::{Checksum, Frame, Transport};

const POLICY: Policy = Policy::gro_with_udp();

/// The first frames of eight flows: one of each kind of headers, twice.
fn firsts() -> Vec<Frame> {
    let plain = [
        Frame::tcp4(1_000, 300),
        Frame::tcp6(1_000, 300),
        Frame::udp4(300),
        Frame::tcp4(1_000, 300).tagged(7),
    ];
    let at_port = |(port, frame): (u16, Frame)| {
        frame.with(|frame| match &mut frame.transport {
            Transport::Tcp(tcp) => tcp.source_port = port,
            Transport::Udp(udp) => udp.source_port = port,
            _ => unreachable!("all are of TCP or UDP"),
        })
    };
    (2_000..).zip([&plain[..], &plain].concat()).map(at_port).collect()
}

fn packets(frames: &[Frame]) -> Vec<Packet> {
    frames.iter().map(Packet::from).collect()
}

/// The frame with a checksum that is wrong.
fn damaged(frame: &Frame) -> Frame {
    frame.clone().with_checksum(Checksum::Wrong)
}

/// It leaves as it came: alone, its bytes and what is known of them.
#[track_caller]
fn assert_untouched(output: &Output, packet: &Packet) {
    assert_eq!(
        (&output.bytes, output.metadata.packets, output.metadata.gso),
        (&packet.bytes, 1, None)
    );
    assert_eq!(output.metadata.checksum, RxChecksum::None);
}

#[track_caller]
fn assert_all_untouched(run: &Run, packets: &[Packet], reason: Reason) {
    assert_eq!(run.reasons(), vec![reason; packets.len()]);
    run.outputs.iter().zip(packets).for_each(|(output, packet)| assert_untouched(output, packet));
    assert_eq!((run.counters.verified_in_software, run.counters.merged), (0, 0));
}

#[test]
fn a_packet_of_each_flow_leaves_unread_with_the_knowledge_that_it_came_with() {
    let firsts = firsts();
    // Nobody looks whether these are right.
    let wrong: Vec<Frame> = firsts.iter().map(damaged).collect();
    for came in [packets(&firsts), packets(&wrong)] {
        for size in [1, 3, 64] {
            let at_once = run_batches(POLICY.with_delivery(Delivery::AtOnce), &came, size);
            assert_all_untouched(&at_once, &came, Reason::PollEnd);
            let at_poll_end = run_batches(POLICY, &came, size);
            assert_all_untouched(&at_poll_end, &came, Reason::PollEnd);
        }
        // Three flows are held at a time: each further one makes the oldest leave.
        let evicted = run_batches(POLICY.with_max_flows(3), &came, 64);
        assert_eq!(
            (evicted.counters.reason(Reason::Evicted), evicted.counters.verified_in_software),
            (5, 0)
        );
        evicted
            .outputs
            .iter()
            .zip(&came)
            .for_each(|(output, packet)| assert_untouched(output, packet));
    }
}

#[test]
fn so_do_packets_that_are_borrowed() {
    let bytes: Vec<Vec<u8>> = firsts().iter().map(Frame::to_bytes).collect();
    let mut aggregator = BatchAggregator::new(Layer::Ethernet, POLICY, HashKey::new(3));
    let mut known = Vec::new();
    aggregator.poll(&unknown(Layer::Ethernet, &bytes), |packet| {
        known.push((packet.metadata.packets, packet.metadata.checksum))
    });
    assert_eq!(known, vec![(1, RxChecksum::None); bytes.len()]);
    assert_eq!(aggregator.counters().verified_in_software, 0);
}

/// Receives a batch without an end of the poll.
fn receive(aggregator: &mut Aggregator<Vec<u8>>, packets: &[Packet], left: &mut Vec<Output>) {
    let mut sink = |packet: SuperPacket<'_, Vec<u8>>| left.push(Output::of(&packet));
    aggregator.receive_batch(&mut packets.iter().map(Packet::receive).collect(), 0, &mut sink);
}

#[test]
fn a_second_packet_has_both_verified_and_no_other_flow_s() {
    let firsts = firsts();
    for (flow, first) in firsts.iter().enumerate() {
        let mut aggregator = aggregator(POLICY);
        let mut left = Vec::new();
        receive(&mut aggregator, &packets(&firsts), &mut left);
        assert_eq!(
            (aggregator.counters().held, aggregator.counters().verified_in_software),
            (8, 0)
        );
        let second = first.following();
        receive(&mut aggregator, &packets(std::slice::from_ref(&second)), &mut left);
        assert_eq!(
            (aggregator.counters().merged, aggregator.counters().verified_in_software),
            (1, 2),
            "{first:?}"
        );
        receive(&mut aggregator, &packets(&[second.following()]), &mut left);
        assert_eq!(
            (aggregator.counters().merged, aggregator.counters().verified_in_software),
            (2, 3),
            "{first:?}"
        );
        assert!(left.is_empty(), "all is held until the poll ends");
        aggregator
            .poll_end(0, &mut |packet: SuperPacket<'_, Vec<u8>>| left.push(Output::of(&packet)));
        assert_eq!(aggregator.counters().verified_in_software, 3);
        for (number, (output, packet)) in left.iter().zip(packets(&firsts)).enumerate() {
            if number == flow {
                assert_eq!(output.metadata.packets, 3);
                assert!(
                    matches!(output.metadata.checksum, RxChecksum::Unnecessary { .. }),
                    "{:?}",
                    output.metadata
                );
            } else {
                assert_untouched(output, &packet);
            }
        }
    }
}

#[test]
fn a_first_packet_that_is_wrong_is_found_when_a_second_comes() {
    for first in firsts() {
        let came = packets(&[damaged(&first), first.following(), first.following().following()]);
        for size in [1, 64] {
            let run = run_batches(POLICY, &came, size);
            assert_eq!(run.reasons(), [Reason::BadChecksum, Reason::PollEnd], "{first:?}");
            assert_untouched(&run.outputs[0], &came[0]);
            // Those behind it are right, and merge.
            assert_eq!(
                (run.outputs[1].metadata.packets, run.outputs[1].payload()),
                (2, 600),
                "{first:?}"
            );
            assert_eq!(run.counters.verified_in_software, 3, "{first:?}");
        }
        let alone = run_batches(POLICY, &came[..2], 64);
        assert_eq!(alone.reasons(), [Reason::BadChecksum, Reason::PollEnd], "{first:?}");
        alone
            .outputs
            .iter()
            .zip(&came)
            .for_each(|(output, packet)| assert_untouched(output, packet));
    }
}
