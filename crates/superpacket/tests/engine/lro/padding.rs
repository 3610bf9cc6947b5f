//! Padded frames are trimmed if and only if the padding leaves every checksum whole; short frames
//! gain no byte.

use superpacket::aggregate::{Policy, Reason};
use superpacket::packet::{Layer, RxChecksum, RxPacket};
use superpacket::super_packet::SuperPacket;
use superpacket_traffic::frame::{ACK, Frame, SYN};

use super::{
    KNOWS, assert_all_untouched, assert_merged, assert_merges, assert_refused, assert_single,
    assert_untouched, both_modes, complete, known,
};
use crate::support::*;

/// Paddings that sum to 0 or to -0, wherever they start.
const NEUTRAL: [&[u8]; 6] = [
    &[0],
    &[0, 0],
    &[0; 6],
    &[0xff, 0xff],
    &[0xff, 0xff, 0, 0, 0xff, 0xff],
    &[0x12, 0x34, 0xed, 0xcb],
];

/// Paddings that a device's sum would show.
const VISIBLE: [&[u8]; 6] =
    [&[1], &[0xff], &[0, 1], &[0xff, 0xff, 0xff], &[0xde, 0xad, 0xbe, 0xef], &[0, 0, 0, 0, 0, 1]];

fn padded(frame: &Frame, padding: &[u8]) -> Packet {
    frame.clone().with(|frame| frame.trailer = padding.to_vec()).into()
}

#[test]
fn neutral_padding_is_trimmed_wherever_the_packet_stands() {
    for base in [
        Frame::tcp4(9, 2),
        Frame::tcp4(9, 1),
        Frame::tcp6(9, 501),
        Frame::tcp4(9, 500).tagged(7),
        Frame::tcp4(9, 3).at_ip(),
    ] {
        let frames = base.run(3);
        for padding in NEUTRAL {
            // First, middle, last, and all of them.
            for which in [0b001, 0b010, 0b100, 0b111] {
                let input: Vec<_> = frames
                    .iter()
                    .enumerate()
                    .map(|(index, frame)| {
                        padded(frame, if which >> index & 1 == 1 { padding } else { &[] })
                    })
                    .map(|packet| Packet {
                        checksum: if which == 0b111 { complete(&packet) } else { RxChecksum::None },
                        ..packet
                    })
                    .collect();
                assert_merges(&input, 9, 3 * base.payload.len(), (padding, which));
            }
        }
    }
}

#[test]
fn neutral_padding_is_trimmed_whatever_the_device_knows() {
    for base in [Frame::tcp4(9, 2), Frame::tcp4(9, 1), Frame::tcp6(9, 333).tagged(7)] {
        for padding in NEUTRAL {
            let frames = base.clone().with(|frame| frame.trailer = padding.to_vec()).run(2);
            for knows in KNOWS {
                let input = known(&frames, knows);
                assert_merges(&input, 9, 2 * base.payload.len(), (padding, input[0].checksum));
            }
        }
    }
}

#[test]
fn visible_padding_passes_untouched() {
    for base in
        [Frame::tcp4(9, 2), Frame::tcp4(9, 1), Frame::tcp6(9, 501), Frame::tcp4(9, 500).tagged(7)]
    {
        for padding in VISIBLE {
            let packet = padded(&base.run(3)[2], padding);
            for knows in KNOWS {
                let packet = Packet { checksum: knows(&packet), ..packet.clone() };
                assert_refused(&packet, &base, Reason::Padded);
            }
        }
    }
}

#[test]
fn a_single_padded_packet_leaves_with_its_padding() {
    for base in [Frame::tcp4(9, 2), Frame::tcp6(9, 1), Frame::tcp4(9, 3).tagged(7)] {
        for padding in NEUTRAL {
            let packet = padded(&base, padding);
            for checksum in [RxChecksum::None, complete(&packet)] {
                assert_single(&packet.clone().with_checksum(checksum));
            }
        }
    }
}

#[test]
fn padding_spans_buffers() {
    // 54 + 3 bytes of packet and 6 of padding, cut at each place, and into pieces of each size that
    // 17 buffers can hold.
    for (padding, reason) in [
        (&[0; 6][..], Reason::PollEnd),
        (&[0x12, 0x34, 0, 0, 0xed, 0xcb], Reason::PollEnd),
        (&[0x12, 0x34, 0, 0xed, 0xcb, 0], Reason::Padded),
    ] {
        let frames = Frame::tcp4(9, 3).run(3);
        let whole: Vec<_> = frames.iter().map(|frame| padded(frame, padding)).collect();
        let cuts = (1..63)
            .map(|cut| vec![cut])
            .chain((4..63).map(|size| vec![size; 62 / size]))
            .chain([vec![55, 1, 1, 1, 1, 1, 1, 1], vec![58, 0, 1, 0, 2]]);
        for buffers in cuts {
            let input: Vec<_> = whole
                .iter()
                .map(|packet| Packet { buffers: buffers.clone(), ..packet.clone() })
                .collect();
            if reason == Reason::PollEnd {
                assert_merges(&input, 9, 9, (&buffers, padding));
                continue;
            }
            for policy in both_modes() {
                let run = run(policy, &input);
                assert_eq!(run.reasons(), [reason; 3], "{buffers:?} {padding:x?}");
                assert_all_untouched(&run, &input);
            }
        }
    }
}

#[test]
fn a_long_pad_that_fills_buffers_of_its_own_is_trimmed() {
    let input: Vec<_> = Frame::tcp4(9, 1000)
        .run(3)
        .iter()
        .map(|frame| Packet { buffers: vec![700, 354, 100, 200], ..padded(frame, &[0; 400]) })
        .collect();
    assert_merges(&input, 9, 3000, "");
}

/// Ways to cut `length` bytes into at most 17 buffers, down to buffers of one byte, and with empty
/// ones.
fn cuts(length: usize) -> Vec<Vec<usize>> {
    let mut cuts = vec![
        vec![],
        vec![0],
        vec![1; 16],
        vec![0, 1, 0, 1],
        vec![length],
        vec![length.saturating_sub(16)],
    ];
    cuts.push([vec![length.saturating_sub(15)], vec![1; 15]].concat());
    cuts.push([vec![14], vec![1; 15]].concat());
    cuts.extend((1..length).map(|cut| vec![cut]));
    cuts
}

#[test]
fn short_frames_gain_no_byte_and_lose_none() {
    // The driver of source 001 copied at least 80 bytes of header, and crashed on a frame of 60.
    let frames = [
        Frame::tcp4(1, 0).padded_to(60),
        Frame::tcp4(1, 2).padded_to(60),
        Frame::tcp4(1, 26),
        Frame::tcp4(1, 0).with_timestamps(1, 2),
        Frame::tcp6(1, 6),
        Frame::tcp4(1, 0).tagged(7).padded_to(60),
        Frame::tcp4(1, 6).at_ip(),
        Frame::tcp6(1, 6).at_ip(),
    ];
    let policies =
        [both_modes(), both_modes().map(|policy| policy.with_mode(Policy::lro_with_acks().mode))]
            .concat();
    for frame in &frames {
        let packet = Packet::from(frame);
        for length in 0..=packet.bytes.len() {
            for (index, buffers) in cuts(length).into_iter().enumerate() {
                let short =
                    Packet { bytes: packet.bytes[..length].to_vec(), buffers, ..packet.clone() };
                let start = if short.layer == Layer::Ethernet { 14.min(length) } else { 0 };
                let sum = superpacket_traffic::checksum::sum(&short.bytes[start..]);
                for checksum in [RxChecksum::None, VERIFIED, RxChecksum::Complete(sum)] {
                    let short = short.clone().with_checksum(checksum);
                    let run = run(policies[index % policies.len()], std::slice::from_ref(&short));
                    assert_eq!(run.outputs.len(), 1);
                    assert_untouched(&run.outputs[0], &short);
                    if length < frame.offsets().end {
                        assert!(
                            matches!(
                                run.outputs[0].metadata.reason,
                                Reason::Truncated | Reason::NotIp
                            ),
                            "{length}: {:?}",
                            run.reasons()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn short_frames_merge_to_what_they_carry() {
    for length in 1..=26 {
        for size in [60, 14, 7, 5] {
            let frames: Vec<_> = Frame::tcp4(1, length)
                .run(3)
                .into_iter()
                .map(|frame| frame.padded_to(60))
                .collect();
            let input: Vec<_> =
                packets(&frames).into_iter().map(|packet| packet.in_buffers_of(size)).collect();
            for policy in both_modes() {
                let run = run(policy, &input);
                assert_eq!(run.outputs.len(), 1);
                assert_merged(&run.outputs[0], 1, 3 * length, 3);
                assert_eq!(run.outputs[0].bytes.len(), 54 + 3 * length);
            }
        }
    }
}

#[test]
fn a_short_frame_between_segments_makes_them_leave_first() {
    let base = Frame::tcp4(1, 500);
    let short = Packet::from(Frame::tcp4(1001, 0).with_flags(ACK | SYN).padded_to(60));
    assert_refused(&short, &base, Reason::TcpFlags);
    // Cut before its ports: only its addresses can be told.
    let cut = Packet { bytes: short.bytes[..36].to_vec(), ..short };
    assert_refused(&cut, &base, Reason::Truncated);
}

#[test]
fn a_packet_without_a_single_byte_passes() {
    for policy in both_modes() {
        for layer in [Layer::Ethernet, Layer::Ip] {
            let mut aggregator = aggregator(policy);
            let mut count = 0;
            let mut packet = RxPacket::new(Vec::new());
            packet.layer = layer;
            for _ in 0..16 {
                packet.push(Vec::new()).expect("room for 17 buffers");
            }
            aggregator.receive(packet, 0, &mut |packet: SuperPacket<'_, Vec<u8>>| {
                count += 1;
                assert_eq!(
                    (packet.length(), packet.pieces().len(), packet.metadata.reason),
                    (0, 17, Reason::Truncated)
                );
            });
            assert_eq!(count, 1);
        }
    }
}
