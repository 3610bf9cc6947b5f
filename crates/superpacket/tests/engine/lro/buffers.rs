//! Packets of many buffers: sums over odd boundaries, headers cut in two, chains that are used
//! again.

use superpacket::aggregate::{Policy, Reason};
use superpacket::packet::{Chain, MAX_BUFFERS, RxPacket};
use superpacket::super_packet::SuperPacket;
use superpacket_traffic::checksum;
use superpacket_traffic::frame::{Checksum, Frame};

use super::{KNOWS, assert_merged, assert_merges, assert_untouched, both_modes, known};
use crate::support::*;

#[test]
fn a_9000_byte_frame_in_4k_pages() {
    for frame in [
        Frame::tcp4(1, 8948).with_timestamps(1, 2),
        Frame::tcp4(1, 8947).with_timestamps(1, 2).tagged(7),
        Frame::tcp6(1, 8927),
    ] {
        // The driver's first page starts with two bytes of alignment: all boundaries move, and
        // those of odd first buffers are odd.
        for first in [4096, 4094, 4093, 255, 54, 33, 1] {
            for knows in KNOWS {
                let input: Vec<_> = known(&frame.run(7), knows)
                    .into_iter()
                    .map(|packet| Packet { buffers: vec![first, 4096, 4096], ..packet })
                    .collect();
                assert_merges(&input, 1, 7 * frame.payload.len(), first);
            }
        }
    }
}

#[test]
fn boundaries_at_every_offset() {
    let frames = Frame::tcp4(1, 97).with_timestamps(1, 2).run(2);
    let length = frames[0].offsets().end;
    for first in 0..length {
        for second in [0, 1, 2, 3, 50] {
            let input: Vec<_> = packets(&frames)
                .into_iter()
                .map(|packet| Packet { buffers: vec![first, second], ..packet })
                .collect();
            assert_merges(&input, 1, 194, (first, second));
        }
    }
}

#[test]
fn seventeen_buffers_of_each_size() {
    for size in 9..=70 {
        let frame = Frame::tcp4(1, 17 * size - 54);
        let input: Vec<_> =
            packets(&frame.run(4)).into_iter().map(|packet| packet.in_buffers_of(size)).collect();
        assert_eq!(input[0].buffers.len() + 1, MAX_BUFFERS);
        assert_merges(&input, 1, 4 * frame.payload.len(), size);
    }
}

#[test]
fn a_wrong_byte_in_any_buffer_is_found() {
    let right = Packet { buffers: vec![101, 33], ..Frame::tcp4(1, 1000).into() };
    for policy in both_modes() {
        assert_eq!(run(policy, std::slice::from_ref(&right)).reasons(), [Reason::PollEnd]);
        for position in [54, 100, 101, 133, 134, 500, 1053] {
            let mut wrong = right.clone();
            wrong.bytes[position] ^= 1;
            assert_eq!(run(policy, &[wrong]).reasons(), [Reason::BadChecksum], "{position}");
        }
    }
}

#[test]
fn sums_of_buffers_behind_odd_boundaries_are_rotated() {
    // A checksum made by adding the buffers' sums as if each began at an even offset: whoever adds
    // them so would take it for right.
    let right = Frame::tcp4(1, 1000).to_bytes();
    let (mut sum, payload) = (
        checksum::pseudo_v4([10, 0, 0, 1], [10, 0, 0, 2], 6, 1020),
        [54..101, 101..134, 134..1054],
    );
    sum = checksum::add(
        sum,
        checksum::add(checksum::sum(&right[34..50]), checksum::sum(&right[52..54])),
    );
    let unrotated = !payload
        .into_iter()
        .fold(sum, |sum, range| checksum::add(sum, checksum::sum(&right[range])));
    let wrong = Frame::tcp4(1, 1000).with_checksum(Checksum::Raw(unrotated));
    for policy in both_modes() {
        let run = run(policy, &[Packet { buffers: vec![101, 33], ..wrong.clone().into() }]);
        assert_eq!(run.reasons(), [Reason::BadChecksum]);
    }
}

#[test]
fn what_passes_or_stays_single_keeps_its_buffers() {
    let single = Packet { buffers: vec![20, 30, 0, 1, 500], ..Frame::tcp4(1, 1000).into() };
    let refused = Packet {
        buffers: vec![20, 30, 0, 1, 500],
        ..Frame::tcp4(1, 1000).with_checksum(Checksum::Wrong).into()
    };
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
fn on_chain(chain: Chain<Vec<u8>>, frame: &Frame) -> RxPacket<Vec<u8>> {
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
    let bad = Frame::tcp6(1, 1000).with_checksum(Checksum::Wrong);
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
fn chains_that_nobody_takes_back_do_not_pile_up() {
    let frame = Frame::tcp4(1, 1000).with_checksum(Checksum::Wrong);
    let mut aggregator = aggregator(Policy::lro());
    for _ in 0..10_000 {
        aggregator
            .receive(on_chain(Chain::new(), &frame), 0, &mut |_: SuperPacket<'_, Vec<u8>>| {});
    }
    let kept = format!("{aggregator:?}").matches("ChainStorage").count();
    assert!((1..=1024).contains(&kept), "{kept} chains kept");
}

#[test]
fn a_packet_keeps_the_chain_it_has() {
    let mut packet = RxPacket::new(vec![1]);
    packet.push(vec![2]).expect("room");
    assert_eq!(packet.with_chain(Chain::new()).length(), 2);
}
