//! Packets of many buffers: sums over odd boundaries, headers cut in two, chains that are used again.

use superpacket::aggregate::{Policy, Reason};
use superpacket::packet::{MAX_BUFFERS, RxChecksum, RxPacket};
use superpacket::super_packet::SuperPacket;
use superpacket_traffic::frame::{Checksum, Frame};

use super::support::*;
use super::{assert_merged, assert_untouched, both_modes, complete};

#[test]
fn a_9000_byte_frame_in_4k_pages() {
    for frame in [Frame::tcp4(1, 8948).with_timestamps(1, 2), Frame::tcp4(1, 8947).with_timestamps(1, 2).tagged(7), Frame::tcp6(1, 8927)] {
        // The driver's first page starts with two bytes of alignment: all boundaries move, and those of odd first buffers are odd.
        for first in [4096, 4094, 4093, 255, 54, 33, 1] {
            let knows: [fn(&Packet) -> RxChecksum; 3] = [|_| RxChecksum::None, |_| RxChecksum::Unnecessary { level: 0 }, complete];
            for knows in knows {
                let input: Vec<_> = packets(&frame.run(7)).into_iter().map(|packet| Packet { checksum: knows(&packet), buffers: vec![first, 4096, 4096], ..packet }).collect();
                for policy in both_modes() {
                    let run = run(policy, &input);
                    assert_eq!(run.reasons(), [Reason::PollEnd], "{first}");
                    assert_merged(&run.outputs[0], 1, 7 * frame.payload.len(), 7);
                }
            }
        }
    }
}

#[test]
fn boundaries_at_every_offset() {
    let frames = Frame::tcp4(1, 97).with_timestamps(1, 2).run(2);
    let length = frames[0].offsets().end;
    for policy in both_modes() {
        for first in 0..length {
            for second in [0, 1, 2, 3, 50] {
                let input: Vec<_> = packets(&frames).into_iter().map(|packet| Packet { buffers: vec![first, second], ..packet }).collect();
                let run = run(policy, &input);
                assert_eq!(run.outputs.len(), 1, "{first} {second} {:?}", run.reasons());
                assert_merged(&run.outputs[0], 1, 194, 2);
            }
        }
    }
}

#[test]
fn seventeen_buffers_of_each_size() {
    for size in 9..=70 {
        let frame = Frame::tcp4(1, 17 * size - 54);
        let input: Vec<_> = packets(&frame.run(4)).into_iter().map(|packet| packet.in_buffers_of(size)).collect();
        assert_eq!(input[0].buffers.len() + 1, MAX_BUFFERS);
        for policy in both_modes() {
            let run = run(policy, &input);
            assert_merged(&run.outputs[0], 1, 4 * frame.payload.len(), 4);
        }
    }
}

#[test]
fn a_wrong_byte_behind_an_odd_boundary_is_found() {
    // Swapping two bytes of different parity would go unseen if a buffer's sum were added unrotated.
    let right = Packet { buffers: vec![101, 33], ..Frame::tcp4(1, 1000).into() };
    for policy in both_modes() {
        assert_eq!(run(policy, std::slice::from_ref(&right)).reasons(), [Reason::PollEnd]);
        for position in [100, 101, 134, 500] {
            let mut wrong = right.clone();
            wrong.bytes[position..position + 2].copy_from_slice(&[right.bytes[position].wrapping_add(1), right.bytes[position + 1]]);
            assert_eq!(run(policy, &[wrong]).reasons(), [Reason::BadChecksum], "{position}");
        }
    }
}

#[test]
fn what_passes_or_stays_single_keeps_its_buffers() {
    let single = Packet { buffers: vec![20, 30, 0, 1, 500], ..Frame::tcp4(1, 1000).into() };
    let refused = Packet { buffers: vec![20, 30, 0, 1, 500], ..Frame::tcp4(1, 1000).with(|frame| frame.tcp_mut().checksum = Checksum::Wrong).into() };
    for packet in [&single, &refused] {
        for policy in both_modes() {
            let mut aggregator = aggregator(policy);
            let mut outputs = Vec::new();
            let mut buffers = Vec::new();
            let mut sink = |packet: SuperPacket<'_, Vec<u8>>| {
                outputs.push(Output::of(&packet));
                buffers.extend(packet.payload().map(<[u8]>::len));
            };
            aggregator.receive(packet.receive(), 0, &mut sink);
            aggregator.poll_end(0, &mut sink);
            assert_untouched(&outputs[0], packet);
            if !outputs[0].contiguous {
                assert_eq!(buffers, [20, 30, 1, 500, 503]);
            }
        }
    }
}

/// A frame of three buffers on a chain that the aggregator gave.
fn on_chain(chain: superpacket::packet::Chain<Vec<u8>>, frame: &Frame) -> RxPacket<Vec<u8>> {
    let bytes = frame.to_bytes();
    let mut packet = RxPacket::new(bytes[..500].to_vec()).with_chain(chain);
    for piece in [&bytes[500..900], &bytes[900..]] {
        packet.push(piece.to_vec()).expect("room");
    }
    packet
}

#[test]
fn chains_are_given_back_empty() {
    let good = Frame::tcp4(1, 1000).run(50);
    let bad = Frame::tcp6(1, 1000).with(|frame| frame.tcp_mut().checksum = Checksum::Wrong);
    for policy in both_modes() {
        let mut aggregator = aggregator(policy);
        let mut outputs = Vec::new();
        let mut sink = |packet: SuperPacket<'_, Vec<u8>>| outputs.push(Output::of(&packet));
        for frame in good.iter().flat_map(|frame| [frame, &bad]) {
            let chain = aggregator.chain();
            // A chain with anything left on it would make a longer packet of this one.
            let packet = on_chain(chain, frame);
            assert_eq!(packet.length(), 1054 + (frame.offsets().payload - 54));
            aggregator.receive(packet, 0, &mut sink);
        }
        aggregator.poll_end(0, &mut sink);
        assert_eq!(aggregator.counters().reason(Reason::BadChecksum), 50);
        assert_eq!(outputs.len(), 51);
        assert_merged(&outputs[50], 1, 50_000, 50);
    }
}

#[test]
fn a_packet_keeps_the_chain_it_has() {
    let mut packet = RxPacket::new(vec![1]);
    packet.push(vec![2]).expect("room");
    let packet = packet.with_chain(superpacket::packet::Chain::new());
    assert_eq!(packet.length(), 2);
    assert_eq!(run(Policy::lro(), &[Packet { buffers: vec![1], ..Packet::from(vec![1, 2]) }]).reasons(), [Reason::Truncated]);
}
