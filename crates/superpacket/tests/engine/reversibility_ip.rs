//! Reversibility where it is subtle, the IP headers' share: identifications, reserved bits, header
//! checksums, trailing bytes, flow labels, extension headers.

use crate::expect::*;
use crate::support::*;
use superpacket::aggregate::Reason::*;
use superpacket::segment::IpId;
use superpacket_traffic::frame::{Checksum, Extension, Frame, Ip};

/// Frames of every protocol over IPv4.
fn over_ipv4() -> [Frame; 3] {
    [Frame::tcp4(1000, 100), Frame::udp4(100), Frame::dccp4(1, 100)]
}

/// Frames of every protocol over IPv6.
fn over_ipv6() -> [Frame; 3] {
    [Frame::tcp6(1000, 100), Frame::udp6(100), Frame::dccp6(1, 100)]
}

/// A run with these identifications.
fn with_ids(base: &Frame, ids: &[u16]) -> Vec<Frame> {
    base.run(ids.len()).into_iter().zip(ids).map(|(frame, &id)| frame.with_id(id)).collect()
}

/// A run in IPIP with these inner and outer identifications.
fn with_both_ids(inner: &[u16], outer: &[u16]) -> Vec<Frame> {
    let frames = with_ids(&Frame::tcp4(1000, 100).in_ip4(), inner);
    frames
        .into_iter()
        .zip(outer)
        .map(|(frame, &id)| frame.with(|frame| frame.outer_ipv4_mut().id = id))
        .collect()
}

#[test]
fn identifications_wrap_inside_a_super_packet() {
    for base in over_ipv4() {
        let run = merges(&with_ids(&base, &[0xfffe, 0xffff, 0, 1]));
        assert_eq!(run.outputs[0].metadata.gso.map(|gso| gso.id), Some(IpId::Increment));
        merges(&base.in_ip4().with(|frame| frame.outer_ipv4_mut().id = 0xfffd).run(6));
    }
}

#[test]
fn fixed_identifications_stay_fixed() {
    for base in over_ipv4() {
        for dont_fragment in [false, true] {
            let base = base.clone().with_ipv4(|ip| ip.dont_fragment = dont_fragment);
            let run = merges(&with_ids(&base, &[8; 5]));
            assert_eq!(run.outputs[0].metadata.gso.map(|gso| gso.id), Some(IpId::Fixed));
            merges(&with_ids(&base, &[0; 5]));
            merges(&with_ids(&base, &[0xffff; 5]));
        }
    }
}

#[test]
fn a_run_of_identifications_does_not_change_its_step() {
    for base in over_ipv4() {
        let ends = |ids: &[u16], counts: &[u32]| {
            let reasons: Vec<_> = (1..counts.len()).map(|_| IpId).chain([PollEnd]).collect();
            arrive(&with_ids(&base, ids), counts, &reasons);
        };
        use superpacket::aggregate::Reason::IpId;
        ends(&[8, 8, 9], &[2, 1]);
        ends(&[8, 9, 9], &[2, 1]);
        ends(&[8, 8, 8, 9], &[3, 1]);
        ends(&[8, 9, 10, 10], &[3, 1]);
        ends(&[8, 9, 10, 12], &[3, 1]);
        ends(&[8, 10], &[1, 1]);
        ends(&[8, 7], &[1, 1]);
        ends(&[8, 7, 8], &[1, 2]);
        // Byte-swapped counters, as some stacks send.
        ends(&[0x0001, 0x0101, 0x0201], &[1, 1, 1]);
        // 9 would be right by the first's count, had it not been fixed.
        ends(&[8, 8, 10], &[2, 1]);
    }
}

#[test]
fn inner_and_outer_identifications_run_by_themselves() {
    let gso = |inner: &[u16], outer: &[u16]| {
        let run = merges(&with_both_ids(inner, outer));
        run.outputs[0].metadata.gso.map(|gso| (gso.id, gso.outer_id)).expect("a merged packet")
    };
    assert_eq!(gso(&[8, 8, 8], &[1, 2, 3]), (IpId::Fixed, IpId::Increment));
    assert_eq!(gso(&[8, 9, 10], &[1, 1, 1]), (IpId::Increment, IpId::Fixed));
    assert_eq!(gso(&[8, 8, 8], &[1, 1, 1]), (IpId::Fixed, IpId::Fixed));
    assert_eq!(gso(&[0xffff, 0, 1], &[0xfffe, 0xffff, 0]), (IpId::Increment, IpId::Increment));
    use superpacket::aggregate::Reason::IpId as Id;
    arrive(&with_both_ids(&[8, 8, 9], &[1, 2, 3]), &[2, 1], &[Id, PollEnd]);
    arrive(&with_both_ids(&[8, 9, 10], &[1, 1, 2]), &[2, 1], &[Id, PollEnd]);
    arrive(&with_both_ids(&[8, 9, 10], &[1, 3, 5]), &[1, 1, 1], &[Id, Id, PollEnd]);
    arrive(&with_both_ids(&[8, 9, 10], &[1, 2, 2]), &[2, 1], &[Id, PollEnd]);
}

#[test]
fn a_refused_identification_leaves_the_run_as_it_was() {
    // The inner identification fits, the outer does not: the next flow must start from what it
    // sees, not from what was half taken.
    use superpacket::aggregate::Reason::IpId as Id;
    arrive(&with_both_ids(&[8, 9, 9], &[1, 7, 8]), &[1, 2], &[Id, PollEnd]);
}

#[test]
fn the_reserved_bit_is_never_merged() {
    for base in over_ipv4() {
        refused(&base, ReservedBit, |frame| frame.ipv4_mut().reserved = true);
        let all = base.clone().with_ipv4(|ip| ip.reserved = true).run(3);
        arrive(&all, &[1, 1, 1], &[ReservedBit; 3]);
        refused(&base.in_ip4(), ReservedBit, |frame| frame.outer_ipv4_mut().reserved = true);
    }
}

/// A run of five whose third has a right IPv4 checksum of 0x0000, in the header that `ip` finds.
fn third_sums_to_zero(
    base: Frame,
    ip: impl Fn(&mut Frame) -> &mut superpacket_traffic::frame::Ipv4,
    outer: bool,
) -> Vec<Frame> {
    let mut probe = base.clone();
    ip(&mut probe).id = 0;
    let offsets = probe.offsets();
    let network = if outer { offsets.outer.expect("a tunnel") } else { offsets.network };
    let bytes = probe.to_bytes();
    // Adding the checksum itself to the identification leaves a checksum of 0.
    let id = u16::from_be_bytes([bytes[network + 10], bytes[network + 11]]);
    let mut frames = base.run(5);
    for (index, frame) in frames.iter_mut().enumerate() {
        ip(frame).id = id.wrapping_sub(2).wrapping_add(index as u16);
    }
    assert_eq!(frames[2].to_bytes()[network + 10..network + 12], [0, 0]);
    frames
}

#[test]
fn a_header_checksum_of_ffff_for_0000_is_valid_and_not_merged() {
    for base in over_ipv4() {
        let mut frames = third_sums_to_zero(base.clone(), Frame::ipv4_mut, false);
        merges(&frames);
        frames[2].ipv4_mut().checksum = Checksum::NonCanonical;
        let network = frames[2].offsets().network;
        assert_eq!(frames[2].to_bytes()[network + 10..network + 12], [0xff, 0xff]);
        arrive(&frames, &[2, 1, 2], &[Overtaken, NonCanonicalChecksum, PollEnd]);
        // A device that calls the transport checksum right does not make it canonical.
        let packets: Vec<_> =
            packets(&frames).into_iter().map(|packet| packet.with_checksum(VERIFIED)).collect();
        assert_eq!(in_order(&packets).reasons(), [Overtaken, NonCanonicalChecksum, PollEnd]);

        let mut frames = third_sums_to_zero(base.in_ip4(), Frame::outer_ipv4_mut, true);
        merges(&frames);
        frames[2].outer_ipv4_mut().checksum = Checksum::NonCanonical;
        arrive(&frames, &[2, 1, 2], &[Overtaken, NonCanonicalChecksum, PollEnd]);
    }
}

#[test]
fn a_wrong_header_checksum_is_not_merged() {
    for base in over_ipv4() {
        refused(&base, BadIpChecksum, |frame| frame.ipv4_mut().checksum = Checksum::Wrong);
        refused(&base, BadIpChecksum, |frame| frame.ipv4_mut().checksum = Checksum::Zero);
        refused(&base.in_ip4(), BadIpChecksum, |frame| {
            frame.outer_ipv4_mut().checksum = Checksum::Wrong
        });
    }
}

#[test]
fn trailing_bytes_are_not_merged_and_not_lost() {
    for base in over_ipv4().into_iter().chain(over_ipv6()) {
        // Something, one byte, a frame check sequence, zeros.
        for trailer in [
            vec![0xaa, 0xbb, 0xcc],
            vec![0x5a],
            vec![0],
            vec![0x1c, 0xdf, 0x44, 0x21],
            vec![0; 6],
            vec![0xff; 2],
        ] {
            refused(&base, Padded, |frame| frame.trailer = trailer.clone());
            refused(&base.clone().in_vxlan4(), Padded, |frame| frame.trailer = trailer.clone());
        }
    }
}

#[test]
fn a_padded_tail_of_one_byte_is_not_merged() {
    let frames = Frame::tcp4(1000, 100).run(3);
    let tail = frames[2].clone().with(|frame| frame.payload.truncate(1)).padded_to(60);
    assert_eq!(tail.to_bytes().len(), 60);
    arrive(&[frames[0].clone(), frames[1].clone(), tail.clone()], &[2, 1], &[Overtaken, Padded]);
    // Without the padding it is a tail like any other.
    let tail = tail.with(|frame| frame.trailer.clear());
    arrive(&[frames[0].clone(), frames[1].clone(), tail], &[3], &[ShortSegment]);
}

#[test]
fn padding_on_all_and_in_the_middle() {
    let small = Frame::tcp4(1000, 2).padded_to(60);
    arrive(&small.run(4), &[1; 4], &[Padded; 4]);
    let mut frames = Frame::tcp4(1000, 100).run(5);
    frames[2].trailer = vec![0; 10];
    arrive(&frames, &[2, 1, 2], &[Overtaken, Padded, PollEnd]);
}

#[test]
fn padding_inside_a_tunnel_is_not_merged() {
    for base in [
        Frame::tcp4(1000, 100).in_vxlan4(),
        Frame::tcp4(1000, 100).in_ip4(),
        Frame::tcp4(1000, 100).in_gre(),
    ] {
        let inner = base.offsets().end - base.offsets().network;
        // The outer lengths count four bytes that the inner one does not; its checksum is that of
        // the shorter packet.
        let short = |frame: &Frame| {
            let whole = frame.clone().with(|frame| frame.payload.truncate(96));
            let (mut bytes, network) = (frame.to_bytes(), frame.offsets().network);
            let shorter = whole.to_bytes();
            bytes[network..network + inner - 4].copy_from_slice(&shorter[network..]);
            Packet { layer: layer(frame), ..bytes.into() }
        };
        refused_packet(&base, Padded, short);
    }
}

#[test]
fn an_ip_length_of_0_is_not_merged() {
    for base in over_ipv4() {
        refused(&base, NoLength, |frame| frame.ipv4_mut().total_length = Some(0));
    }
    for base in over_ipv6() {
        refused(&base, NoLength, |frame| frame.ipv6_mut().payload_length = Some(0));
    }
    refused(&Frame::tcp4(1000, 100).in_ip4(), NoLength, |frame| {
        frame.outer_ipv4_mut().total_length = Some(0)
    });
}

#[test]
fn what_routers_change_must_be_equal() {
    for base in over_ipv4().into_iter().chain(over_ipv4().map(Frame::in_ip6)) {
        differs(&base, Ttl, |frame| frame.ipv4_mut().ttl -= 1);
        differs(&base, Tos, |frame| frame.ipv4_mut().tos = 0x03);
        differs(&base, Tos, |frame| frame.ipv4_mut().tos = 0xb8);
        differs(&base, DontFragment, |frame| frame.ipv4_mut().dont_fragment = false);
    }
    for base in over_ipv6().into_iter().chain(over_ipv6().map(Frame::in_ip4)) {
        differs(&base, FlowLabel, |frame| frame.ipv6_mut().flow_label = 1);
        differs(&base, FlowLabel, |frame| frame.ipv6_mut().flow_label = 0x8_0000);
        differs(&base, Tos, |frame| frame.ipv6_mut().traffic_class = 0x02);
        differs(&base, Tos, |frame| frame.ipv6_mut().traffic_class = 0x80);
        differs(&base, Ttl, |frame| frame.ipv6_mut().hop_limit = 1);
    }
}

#[test]
fn extension_headers_must_be_identical() {
    let contents = |byte: u8| vec![0x1e, 4, byte, 2, 3, 4];
    // A routing header with segments left would change the address that checksums use.
    let headers = [
        Extension::HopByHop as fn(Vec<u8>) -> Extension,
        |contents| Extension::Routing([&[4, 0], &contents[2..]].concat()),
        Extension::DestinationOptions,
    ];
    for base in over_ipv6() {
        for header in headers {
            // On one and not on the others; on all.
            differs(&base, ExtensionHeader, |frame| {
                frame.ipv6_mut().extensions = vec![header(contents(1))]
            });
            // Of other contents; of another length.
            let with = base.clone().with_ipv6(|ip| ip.extensions = vec![header(contents(1))]);
            differs(&with, ExtensionHeader, |frame| {
                frame.ipv6_mut().extensions = vec![header(contents(9))]
            });
            differs(&with, ExtensionHeader, |frame| {
                frame.ipv6_mut().extensions =
                    vec![header(vec![0x1e, 12, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0])]
            });
        }
        // The same two in another order.
        let first = vec![
            Extension::Routing(vec![4, 0, 0, 0, 0, 0]),
            Extension::DestinationOptions(contents(1)),
        ];
        let second = vec![
            Extension::DestinationOptions(contents(1)),
            Extension::Routing(vec![4, 0, 0, 0, 0, 0]),
        ];
        let with = base.clone().with_ipv6(|ip| ip.extensions = first);
        differs(&with, ExtensionHeader, |frame| frame.ipv6_mut().extensions = second.clone());
    }
}

#[test]
fn outer_extension_headers_must_be_identical() {
    let base = Frame::tcp4(1000, 100).in_ip6();
    differs(&base, ExtensionHeader, |frame| {
        frame.outer_ipv6_mut().extensions =
            vec![Extension::DestinationOptions(vec![4, 1, 4, 1, 1, 0])]
    });
}

#[test]
fn a_jumbogram_passes_whole() {
    let frames = Frame::tcp6(1000, 100).run(4);
    let length = 70_000u32;
    let jumbo = Frame::tcp6(1200, length as usize - 20 - 8)
        .with_ipv6(|ip| ip.extensions = vec![Extension::jumbo(length)]);
    assert_eq!(jumbo.to_bytes()[18..20], [0, 0]);
    let packets: Vec<_> = [&frames[0], &frames[1], &jumbo].into_iter().map(Packet::from).collect();
    let run = reversible_packets(PARTIAL_GRO_UDP, &packets);
    left(&run, &[2, 1], &[Overtaken, NoLength]);
    // A jumbo option on a packet that needs none.
    refused(&Frame::tcp6(1000, 100), NoLength, |frame| {
        frame.ipv6_mut().extensions = vec![Extension::jumbo(128)];
        frame.ipv6_mut().payload_length = Some(0);
    });
    // One beside a length: not a jumbogram (RFC 2675, section 3), so just an option like any other.
    differs(&Frame::tcp6(1000, 100), ExtensionHeader, |frame| {
        frame.ipv6_mut().extensions = vec![Extension::jumbo(128)]
    });
}

#[test]
fn an_atomic_fragment_passes() {
    for base in over_ipv6() {
        refused(&base, Fragment, |frame| {
            frame.ipv6_mut().extensions =
                vec![Extension::Fragment { offset: 0, more: false, id: 7 }]
        });
        refused(&base.in_ip6(), Fragment, |frame| match &mut frame.tunnel_mut().ip {
            Ip::V6(ip) => {
                ip.extensions = vec![Extension::Fragment { offset: 0, more: false, id: 7 }]
            }
            Ip::V4(_) => unreachable!("the tunnel is IPv6"),
        });
    }
}
