//! ACKs as they arrive: padded to the shortest frame, with VLAN tags in the frame or stripped.

use superpacket::aggregate::Reason;
use superpacket::packet::{RxChecksum, VlanTag};
use superpacket_traffic::checksum;
use superpacket_traffic::frame::Frame;

use super::{ack, acks, assert_merged, both_modes, numbers};
use crate::support::*;

#[test]
fn padded_acks_of_60_bytes_are_trimmed() {
    // 54 bytes and 6 of padding, as every driver of source 000 sees them.
    for padding in [[0; 6], [0xff; 6], [0x12, 0x34, 0xed, 0xcb, 0, 0]] {
        let frames: Vec<_> = [100, 200, 300]
            .into_iter()
            .map(|number| ack(number).with(|frame| frame.trailer = padding.to_vec()))
            .collect();
        for buffers in [vec![], vec![54], vec![57], vec![20, 30, 7, 1]] {
            let input: Vec<_> = packets(&frames)
                .into_iter()
                .map(|packet| Packet {
                    checksum: RxChecksum::Complete(checksum::sum(&packet.bytes[14..])),
                    buffers: buffers.clone(),
                    ..packet
                })
                .collect();
            for policy in both_modes() {
                for checksum in [None, Some(RxChecksum::None), Some(VERIFIED)] {
                    let input: Vec<_> = input
                        .iter()
                        .map(|packet| Packet {
                            checksum: checksum.unwrap_or(packet.checksum),
                            ..packet.clone()
                        })
                        .collect();
                    let run = run(policy, &input);
                    assert_eq!(run.reasons(), [Reason::PollEnd], "{padding:x?} {buffers:?}");
                    assert_merged(&run.outputs[0], 3, 2, 0);
                    assert_eq!((numbers(&run), run.outputs[0].bytes.len()), (vec![300], 54));
                }
            }
        }
    }
}

#[test]
fn a_mixture_of_padded_and_unpadded_acks_merges() {
    for padded in 0..8 {
        let frames: Vec<_> = [100, 200, 300]
            .into_iter()
            .enumerate()
            .map(
                |(index, number)| {
                    if padded >> index & 1 == 1 { ack(number).padded_to(60) } else { ack(number) }
                },
            )
            .collect();
        for policy in both_modes() {
            let run = run(policy, &packets(&frames));
            assert_eq!(run.outputs.len(), 1);
            assert_merged(&run.outputs[0], 3, 2, 0);
        }
    }
}

#[test]
fn tagged_acks_merge() {
    for shape in [
        |frame: Frame| frame.tagged(7),
        |frame: Frame| frame.tagged(7).padded_to(64),
        |frame: Frame| frame.tagged(7).tagged(8).with_timestamps(3, 4),
    ] {
        let input: Vec<_> = [100, 200, 300].map(|number| Packet::from(shape(ack(number)))).to_vec();
        let stripped: Vec<_> = acks(&[100, 200, 300])
            .into_iter()
            .map(|packet| Packet { vlan: Some(VlanTag { protocol: 0x8100, control: 7 }), ..packet })
            .collect();
        for policy in both_modes() {
            for input in [&input, &stripped] {
                let run = run(policy, input);
                assert_eq!(run.outputs.len(), 1, "{:?}", run.reasons());
                assert_merged(&run.outputs[0], 3, 2, 0);
                assert_eq!(
                    (numbers(&run), run.outputs[0].metadata.vlan),
                    (vec![300], input[0].vlan)
                );
            }
        }
    }
}

#[test]
fn acks_of_different_tags_are_of_different_flows() {
    let input: Vec<_> = [(100, 7), (200, 8), (300, 7), (400, 8)]
        .map(|(number, vid)| Packet::from(ack(number).tagged(vid)))
        .to_vec();
    for policy in both_modes() {
        assert_eq!(numbers(&run(policy, &input)), [300, 400]);
    }
}
