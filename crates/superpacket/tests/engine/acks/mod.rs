//! Pure-ACK aggregation in LRO mode: the newest ACK stands for those before it, and no ACK that
//! says more than "so far" is ever swallowed.

mod apart;
mod data;
mod frames;

use crate::lro::{self, assert_all_untouched, assert_untouched, tcp};
use crate::support::*;
use superpacket::GsoKind;
use superpacket::aggregate::{HashKey, Policy, Reason, Storage};
use superpacket::packet::{Chain, RxChecksum, RxPacket};
use superpacket::super_packet::SuperPacket;
use superpacket_traffic::checksum;
use superpacket_traffic::frame::Frame;

/// Pure-ACK aggregation in fragments mode and in linear mode.
fn both_modes() -> [Policy; 2] {
    [Policy::lro_with_acks(), Policy::lro_with_acks().with_storage(Storage::Linear)]
}

/// A pure ACK: sequence 1, window 501.
fn ack(number: u32) -> Frame {
    Frame::tcp4(1, 0).with_tcp(|tcp| tcp.acknowledgement = number)
}

/// Pure ACKs of these numbers.
fn acks(numbers: &[u32]) -> Vec<Packet> {
    numbers.iter().map(|&number| ack(number).into()).collect()
}

/// A segment of 500 bytes.
fn data(sequence: u32, acknowledgement: u32) -> Frame {
    Frame::tcp4(sequence, 500).with_tcp(|tcp| tcp.acknowledgement = acknowledgement)
}

/// The acknowledgement numbers that come out.
fn numbers(run: &Run) -> Vec<u32> {
    run.outputs.iter().map(|output| tcp(output).acknowledgement).collect()
}

/// Asserts that `output` stands for `packets` packets of which it absorbed `absorbed` pure ACKs, is
/// right in every length and checksum, and carries `payload` bytes of the stream from sequence 1
/// on.
#[track_caller]
fn assert_merged(output: &Output, packets: u32, absorbed: u32, payload: usize) {
    lro::assert_merged(output, 1, payload, packets);
    assert_eq!(output.metadata.absorbed_acks, absorbed);
}

#[test]
fn the_newest_of_a_run_leaves() {
    let frames: Vec<_> = (1..=20u32)
        .map(|index| ack(index * 1448).with_tcp(|tcp| tcp.window = 1000 - 7 * index as u16))
        .collect();
    for policy in both_modes() {
        let run = run(policy, &packets(&frames));
        assert_eq!(run.reasons(), [Reason::PollEnd]);
        assert_merged(&run.outputs[0], 20, 19, 0);
        assert_eq!(
            (tcp(&run.outputs[0]).acknowledgement, tcp(&run.outputs[0]).window),
            (20 * 1448, 1000 - 7 * 20)
        );
        assert_eq!(run.outputs[0].bytes.len(), 54);
    }
}

#[test]
fn the_newest_timestamps_leave() {
    let values = [(u32::MAX, 9), (u32::MAX, 8), (3, u32::MAX), (70, 5)];
    for base in [Frame::tcp4(1, 0), Frame::tcp6(1, 0)] {
        let frames: Vec<_> = (100..)
            .zip(values)
            .map(|(number, (value, echo))| {
                base.clone()
                    .with_timestamps(value, echo)
                    .with_tcp(|tcp| tcp.acknowledgement = number)
            })
            .collect();
        for policy in both_modes() {
            for count in 2..=4 {
                let run = run(policy, &packets(&frames[..count]));
                assert_eq!(run.reasons(), [Reason::PollEnd]);
                assert_merged(&run.outputs[0], count as u32, count as u32 - 1, 0);
                assert_eq!(tcp(&run.outputs[0]).timestamps, Some(values[count - 1]));
            }
        }
    }
}

#[test]
fn newest_is_by_sequence_arithmetic() {
    let across_the_wrap = [0xffff_f000, 0xffff_ffff, 0, 0x1000, 0x8000_0fff];
    let back_across_it = [0x1000, 0xffff_f000, 0xffff_f800];
    for policy in both_modes() {
        let forward = run(policy, &acks(&across_the_wrap));
        assert_eq!(numbers(&forward), [0x8000_0fff]);
        assert_merged(&forward.outputs[0], 5, 4, 0);
        let back = run(policy, &acks(&back_across_it));
        assert_eq!(back.reasons()[..2], [Reason::Overtaken, Reason::AckOlder]);
        assert_eq!(numbers(&back)[..2], [0x1000, 0xffff_f000]);
    }
}

#[test]
fn a_single_ack_leaves_untouched() {
    for frame in [
        ack(5),
        ack(5).with_timestamps(1, 2),
        ack(5).tagged(7),
        ack(5).padded_to(60),
        Frame::tcp6(1, 0),
    ] {
        let packet = Packet::from(frame);
        let sum = RxChecksum::Complete(checksum::sum(&packet.bytes[14..]));
        for packet in [packet.clone(), packet.with_checksum(sum)] {
            for policy in both_modes() {
                let run = run(policy, std::slice::from_ref(&packet));
                assert_eq!(run.reasons(), [Reason::PollEnd]);
                assert_untouched(&run.outputs[0], &packet);
            }
        }
    }
}

#[test]
fn switched_off_every_ack_passes() {
    let input = acks(&[100, 200, 300]);
    for storage in [Storage::Fragments, Storage::Linear] {
        let run = run(Policy::lro().with_storage(storage), &input);
        assert_eq!(run.reasons(), [Reason::NoPayload; 3]);
        assert_all_untouched(&run, &input);
        assert_eq!((run.counters.absorbed_acks, run.counters.aggregated), (0, 0));
    }
    let gro = run(PARTIAL_GRO, &input);
    assert_eq!(gro.reasons(), [Reason::NoPayload; 3], "GRO never merges pure ACKs");
}

#[test]
fn the_limit_of_packets_counts_acks() {
    for policy in both_modes() {
        let run = run(policy.with_max_packets(4), &acks(&[1, 2, 3, 4, 5, 6, 7, 8, 9]));
        assert_eq!(run.reasons(), [Reason::PacketLimit, Reason::PacketLimit, Reason::PollEnd]);
        assert_eq!(numbers(&run), [4, 8, 9]);
    }
}

#[test]
fn the_limit_of_fragments_does_not_count_absorbed_acks() {
    let policy = Policy::lro_with_acks().with_max_fragments(1);
    assert_eq!(numbers(&run(policy, &acks(&[1, 2, 3, 4, 5]))), [5]);
    let follower = |number| ack(number).with_tcp(|tcp| tcp.sequence = 501);
    let joined = run(policy, &packets(&[data(1, 10), follower(20), follower(30)]));
    assert_merged(&joined.outputs[0], 3, 2, 500);
}

#[test]
fn an_absorbed_ack_gives_its_buffers_back() {
    let key = HashKey::new(1);
    for policy in both_modes() {
        let mut aggregator = Aggregator::new(policy, key).with_simd(superpacket::Simd::detect());
        let mut sink = |_: SuperPacket<'_, AnyBytes<'static>>| {};
        let buffers: Vec<std::rc::Rc<[u8]>> =
            [100, 200, 300].iter().map(|&number| ack(number).to_bytes().into()).collect();
        let second: std::rc::Rc<[u8]> = std::rc::Rc::new([]);
        for buffer in &buffers {
            let mut packet =
                RxPacket::new(AnyBytes::Counted(buffer.clone())).with_chain(aggregator.chain());
            assert!(packet.push(AnyBytes::Counted(second.clone())).is_ok(), "room");
            aggregator.receive(packet, 0, &mut sink);
        }
        let kept = usize::from(policy.storage == Storage::Fragments);
        assert_eq!(
            std::rc::Rc::strong_count(&second),
            1 + kept,
            "only the held one keeps its second buffer"
        );
        assert_eq!(buffers[1..].iter().map(std::rc::Rc::strong_count).collect::<Vec<_>>(), [1, 1]);
        assert!(aggregator.counters().balanced());
        assert_eq!(
            (aggregator.counters().held, aggregator.counters().held_bytes),
            (1, 54),
            "an absorbed ACK is held no more"
        );
        let chain: Chain<_> = aggregator.chain();
        assert_eq!(
            RxPacket::new(AnyBytes::Counted(buffers[0].clone())).with_chain(chain).length(),
            54,
            "a chain comes back empty"
        );
    }
}

#[test]
fn an_ack_that_is_to_be_cut_passes() {
    let gso = gso_of(GsoKind::Tcp4, 100);
    for policy in both_modes() {
        let mut aggregator =
            Aggregator::new(policy, HashKey::new(1)).with_simd(superpacket::Simd::detect());
        let mut input: Vec<_> = [100, 200, 300, 400]
            .iter()
            .map(|&number| RxPacket::new(AnyBytes::Counted(ack(number).to_bytes().into())))
            .collect();
        for (index, packet) in input.iter_mut().enumerate() {
            packet.checksum = VERIFIED;
            packet.gso = (index == 2).then_some(gso);
        }
        let mut reasons = Vec::new();
        let mut sink = |packet: SuperPacket<'_, AnyBytes<'static>>| {
            reasons.push((packet.metadata.reason, packet.metadata.packets))
        };
        aggregator.receive_batch(&mut input, 0, &mut sink);
        aggregator.flush_all(&mut sink);
        assert_eq!(reasons[..2], [(Reason::Overtaken, 2), (Reason::SuperPacket, 1)]);
        assert_eq!(reasons.len(), 3);
    }
}

#[test]
fn metadata_and_counters() {
    let input: Vec<_> = acks(&[100, 200, 300])
        .into_iter()
        .zip([5, 6, 9])
        .map(|(packet, time)| Packet { time, ..packet })
        .collect();
    for policy in both_modes() {
        let run = run(policy, &input);
        let metadata = run.outputs[0].metadata;
        assert_eq!(
            (metadata.packets, metadata.absorbed_acks, metadata.largest_payload, metadata.time),
            (3, 2, 0, 9)
        );
        let counters = run.counters;
        assert_eq!(
            (counters.packets_in, counters.packets_out, counters.merged, counters.absorbed_acks),
            (3, 1, 2, 2)
        );
        assert_eq!((counters.aggregated, counters.flushed, counters.super_packets), (3, 1, 1));
        assert_eq!((counters.bytes_in, counters.bytes_out), (162, 54));
    }
}

#[test]
fn acks_take_descriptors_as_data_does() {
    let flow = |index: u16, number| ack(number).with_tcp(|tcp| tcp.source_port = 1000 + index);
    let input: Vec<_> = [100, 200]
        .iter()
        .flat_map(|&number| (0..9).map(move |index| Packet::from(flow(index, number))))
        .collect();
    for policy in both_modes() {
        let run = run(policy, &input);
        assert_eq!(
            (run.counters.no_desc, run.counters.absorbed_acks, run.counters.packets_out),
            (2, 8, 10)
        );
        assert_eq!(numbers(&run), [[100, 200].as_slice(), &[200; 8]].concat());
    }
}
