//! The checksum is verified before aggregation, and handed on unchanged where nothing merged.

use superpacket::aggregate::{Policy, Reason};
use superpacket::packet::RxChecksum;
use superpacket_traffic::checksum;
use superpacket_traffic::frame::{ACK, Checksum, FIN, Frame, SYN, Vlan};

use super::{
    KNOWS, assert_merged, assert_merges, assert_refused, assert_single, assert_untouched,
    both_modes, complete, known,
};
use crate::support::*;

/// Ways of a frame to arrive: untagged, tagged, stacked, from IP on.
fn shapes(frame: &Frame) -> Vec<Frame> {
    let service = Vlan { tpid: 0x88a8, vid: 0x123, pcp: 5, dei: true };
    let stacked = frame.clone().with(|frame| frame.vlans.push(service)).tagged(0x456);
    vec![frame.clone(), frame.clone().tagged(0x789), stacked.tagged(3), frame.clone().at_ip()]
}

#[test]
fn whatever_the_device_knows_segments_of_any_length_merge() {
    for length in [1, 2, 999, 1000, 1447, 1448] {
        for base in [
            Frame::tcp4(77, length),
            Frame::tcp6(77, length),
            Frame::tcp4(77, length).with_timestamps(0x0102_0304, 0x0506_0708),
        ] {
            for shape in shapes(&base) {
                for knows in KNOWS {
                    let input = known(&shape.run(5), knows);
                    assert_merges(&input, 77, 5 * length, (input[0].checksum, length));
                }
            }
        }
    }
}

#[test]
fn only_what_nobody_vouches_for_is_read() {
    let frames = Frame::tcp4(1, 1000).run(5);
    let read = |knows| run(Policy::lro(), &known(&frames, knows)).counters.verified_in_software;
    assert_eq!(KNOWS.map(read), [5, 0, 0]);
}

#[test]
fn packets_of_which_the_device_knows_different_things_merge() {
    let input: Vec<_> = packets(&Frame::tcp4(1, 1001).run(6))
        .into_iter()
        .enumerate()
        .map(|(index, packet)| match index % 3 {
            0 => packet,
            1 => packet.with_checksum(VERIFIED),
            _ => Packet { checksum: complete(&packet), ..packet },
        })
        .collect();
    assert_merges(&input, 1, 6 * 1001, "");
}

#[test]
fn a_wrong_tcp_checksum_is_refused() {
    for shape in shapes(&Frame::tcp4(1, 1001)).into_iter().chain(shapes(&Frame::tcp6(1, 1000))) {
        let wrong = Packet::from(shape.run(3)[2].clone().with_checksum(Checksum::Wrong));
        assert_refused(&wrong, &shape, Reason::BadChecksum);
        // The device summed the frame right; the frame is wrong.
        assert_refused(
            &Packet { checksum: complete(&wrong), ..wrong },
            &shape,
            Reason::BadChecksum,
        );
    }
}

#[test]
fn one_wrong_bit_anywhere_in_the_payload_is_refused() {
    let right = Packet::from(Frame::tcp4(1, 101));
    for policy in both_modes() {
        for position in 54..right.bytes.len() {
            let mut wrong = right.clone();
            wrong.bytes[position] ^= 0x10;
            for checksum in [RxChecksum::None, complete(&wrong)] {
                let run = run(policy, &[wrong.clone().with_checksum(checksum)]);
                assert_eq!(run.reasons(), [Reason::BadChecksum], "byte {position}");
            }
        }
    }
}

#[test]
fn a_wrong_complete_sum_is_refused_and_handed_on() {
    for shape in shapes(&Frame::tcp4(1, 1001)) {
        let packet = Packet::from(shape.run(3)[2].clone());
        let RxChecksum::Complete(sum) = complete(&packet) else { panic!("a sum") };
        for wrong in [sum ^ 1, sum.swap_bytes(), !sum] {
            assert_refused(
                &packet.clone().with_checksum(RxChecksum::Complete(wrong)),
                &shape,
                Reason::BadChecksum,
            );
        }
    }
}

#[test]
fn a_complete_sum_holds_the_unstripped_tags() {
    // A device that left the tag's bytes out would be believed by an engine that does not subtract
    // them.
    let frame = Frame::tcp4(1, 1001).tagged(0x789);
    let packet = Packet::from(frame.run(3)[2].clone());
    let without_tag = RxChecksum::Complete(checksum::sum(&packet.bytes[18..]));
    assert_refused(&packet.with_checksum(without_tag), &frame, Reason::BadChecksum);

    // A stripped tag is in no buffer and so in no sum.
    let vlan = superpacket::packet::VlanTag { protocol: 0x8100, control: 0x789 };
    let input: Vec<_> = packets(&Frame::tcp4(1, 1001).run(3))
        .into_iter()
        .map(|packet| Packet { checksum: complete(&packet), vlan: Some(vlan), ..packet })
        .collect();
    let run = run(Policy::lro(), &input);
    assert_merged(&run.outputs[0], 1, 3003, 3);
}

#[test]
fn a_wrong_ip_checksum_is_refused() {
    for shape in shapes(&Frame::tcp4(1, 1000)) {
        let wrong =
            Packet::from(shape.run(3)[2].clone().with_ipv4(|ip| ip.checksum = Checksum::Wrong));
        for checksum in [RxChecksum::None, VERIFIED, complete(&wrong)] {
            assert_refused(&wrong.clone().with_checksum(checksum), &shape, Reason::BadIpChecksum);
        }
    }
}

#[test]
fn a_refused_packet_keeps_its_complete_sum() {
    // "There is no way to pass the partial checksum to the LRO module so that it gets passed up the
    // stack" (source 001).
    let frame = Frame::tcp4(1, 1001);
    let refused = [
        (frame.clone().with_flags(ACK | SYN), Reason::TcpFlags),
        (frame.clone().with_flags(ACK | FIN), Reason::TcpFlags),
        (frame.clone().with_ipv4(|ip| ip.options = vec![1; 4]), Reason::IpOptions),
        (frame.clone().with_tcp(|tcp| tcp.options = vec![1; 4]), Reason::TcpOptions),
        (frame.clone().with(|frame| frame.trailer = vec![1, 2, 3, 4]), Reason::Padded),
    ];
    for (refused, reason) in refused {
        let packet = Packet::from(refused);
        assert_refused(&Packet { checksum: complete(&packet), ..packet }, &frame, reason);
    }
}

#[test]
fn a_single_packet_keeps_what_the_device_said() {
    for frame in shapes(&Frame::tcp4(1, 1001)) {
        let packet = Packet::from(frame);
        for checksum in [RxChecksum::None, VERIFIED, complete(&packet)] {
            assert_single(&packet.clone().with_checksum(checksum));
        }
    }
}

#[test]
fn a_packet_without_a_descriptor_keeps_its_complete_sum() {
    let others = Packet::from(Frame::tcp6(1, 1000));
    let packet = Packet::from(Frame::tcp4(1, 1001));
    let packet = Packet { checksum: complete(&packet), ..packet };
    for policy in both_modes() {
        let run = run(policy.with_max_flows(1), &[others.clone(), packet.clone()]);
        assert_eq!(run.reasons(), [Reason::NoDescriptor, Reason::PollEnd]);
        assert_untouched(&run.outputs[0], &packet);
    }
}

#[test]
fn a_checksum_with_two_spellings_merges_and_leaves_in_the_right_one() {
    // 0xFFFF for 0x0000 is valid; LRO need not restore it.
    let alias = |frame: Frame| frame.with_zero_checksum().with_checksum(Checksum::NonCanonical);
    let frames: Vec<_> = Frame::tcp4(1, 1000).run(2).into_iter().map(alias).collect();
    let payload: Vec<u8> = frames.iter().flat_map(|frame| frame.payload.clone()).collect();
    for policy in both_modes() {
        for checksum in [RxChecksum::None, VERIFIED] {
            let input: Vec<_> =
                packets(&frames).into_iter().map(|packet| packet.with_checksum(checksum)).collect();
            assert_eq!(input[0].bytes[50..52], [0xff, 0xff]);
            let run = run(policy, &input);
            assert_eq!(run.reasons(), [Reason::PollEnd]);
            let checked =
                superpacket_traffic::check::frame(&run.outputs[0].bytes, &Default::default())
                    .expect("right");
            assert!(checked.canonical && checked.checksums == 1);
            assert_eq!(run.outputs[0].bytes[checked.payload], payload);
        }
    }
}
