//! Reversibility where it is subtle, UDP's share: checksums of zero, lengths that are not the IP
//! header's, empty datagrams.

use crate::expect::*;
use crate::support::{BatchAggregator, Output, Packet, VERIFIED, packets, unknown};
use superpacket::aggregate::Reason::*;
use superpacket::aggregate::{HashKey, Policy};
use superpacket::packet::{Layer, RxChecksum};
use superpacket::segment::{GsoPacket, SegmentOptions, Segmenter};
use superpacket::virtio::Framing;
use superpacket_traffic::frame::{Checksum, Frame, stream_bytes};

fn bases() -> [Frame; 4] {
    [Frame::udp4(100), Frame::udp6(100), Frame::udp4(100).in_ip6(), Frame::udp6(100).in_vxlan4()]
}

/// Datagrams of these payload lengths.
fn lengths(base: &Frame, lengths: &[usize]) -> Vec<Frame> {
    base.run(lengths.len())
        .into_iter()
        .zip(lengths)
        .map(|(frame, &length)| frame.with(|frame| frame.payload = stream_bytes(7, length)))
        .collect()
}

#[test]
fn a_datagram_without_a_checksum_is_not_merged() {
    for base in bases() {
        refused(&base, UdpNoChecksum, |frame| frame.udp_mut().checksum = Checksum::Zero);
        let all = base.clone().with_checksum(Checksum::Zero).run(3);
        arrive(&all, &[1; 3], &[UdpNoChecksum; 3]);
    }
}

/// Those bases that are IPv4 datagrams themselves, none of them with a checksum of a tunnel.
fn without_checksum() -> [Frame; 3] {
    let [udp4, ..] = bases();
    let in_vxlan = Frame::udp4(100).in_vxlan4().with_outer_checksum(Checksum::Zero);
    [udp4.clone(), udp4.in_ip6(), in_vxlan].map(|frame| frame.with_checksum(Checksum::Zero))
}

const MERGING: Policy = Policy::gro_with_udp().with_merge_udp_without_checksum();

#[test]
fn datagrams_without_checksums_merge_where_the_policy_says_so_and_stay_without() {
    for base in without_checksum() {
        for payloads in [&[100; 7][..], &[100, 100, 100, 1]] {
            let run = reversed_by(MERGING, &packets(&lengths(&base, payloads)));
            assert_eq!(counts(&run), [payloads.len() as u32]);
            let output = &run.outputs[0];
            let field = base.offsets().transport + 6;
            assert_eq!(output.bytes[field..field + 2], [0, 0]);
            assert_eq!(output.metadata.checksum, VERIFIED);
            // What is cut for a port that fills in nothing has none either.
            let gso = output.metadata.gso.expect("merged");
            let mut frames = Vec::new();
            let packet =
                GsoPacket::linear(&output.bytes, gso).with_checksum(output.metadata.checksum);
            Segmenter::new()
                .segment(&packet, &SegmentOptions::default(), |segment| {
                    frames.push(segment.payload().map(<[u8]>::len).sum::<usize>())
                })
                .expect("what merged can be cut");
            assert_eq!(frames, payloads);
        }
    }
}

#[test]
fn what_the_device_says_of_a_datagram_without_a_checksum_changes_nothing() {
    for base in without_checksum() {
        for checksum in
            [RxChecksum::None, RxChecksum::Unnecessary { level: 1 }, RxChecksum::Complete(0x1234)]
        {
            let came: Vec<_> = base
                .run(6)
                .iter()
                .map(|frame| Packet::from(frame).with_checksum(checksum))
                .collect();
            assert_eq!(counts(&reversed_by(MERGING, &came)), [6], "{checksum:?}");
        }
        // A partial checksum of 0 is none that could be filled in.
        let field = base.offsets().transport;
        let partial = RxChecksum::Partial { start: field as u16, offset: 6 };
        let came: Vec<_> =
            base.run(3).iter().map(|frame| Packet::from(frame).with_checksum(partial)).collect();
        assert_eq!(reversed_by(MERGING, &came).reasons(), [PartialChecksum; 3]);
    }
}

#[test]
fn datagrams_with_and_without_checksums_do_not_mix() {
    for base in without_checksum() {
        let frames = base.run(5);
        for place in 0..5 {
            let mut came = packets(&frames);
            came[place] = frames[place].clone().with_checksum(Checksum::Right).into();
            let run = reversed_by(MERGING, &came);
            let alone = run
                .outputs
                .iter()
                .find(|output| output.metadata.packets == 1 && output.bytes == came[place].bytes);
            assert!(alone.is_some() || place == 4, "{:?}", counts(&run));
            assert!(run.reasons().contains(&ChecksumForm), "at {place}: {:?}", run.reasons());
            assert_eq!(
                run.outputs.iter().flat_map(Output::cut).collect::<Vec<_>>(),
                came.iter().map(|packet| packet.bytes.clone()).collect::<Vec<_>>()
            );
        }
    }
}

#[test]
fn over_ipv6_and_in_a_tunnel_with_a_checksum_it_is_as_without_the_switch() {
    for (base, reason) in [
        (Frame::udp6(100), UdpNoChecksum),
        (Frame::udp6(100).in_vxlan4(), UdpNoChecksum),
        // The tunnel's checksum could be verified only by reading the payload.
        (Frame::udp4(100).in_vxlan4().with_outer_checksum(Checksum::Right), Tunnel),
    ] {
        let all = base.with_checksum(Checksum::Zero).run(3);
        let run = reversed_by(MERGING, &packets(&all));
        left(&run, &[1; 3], &[reason; 3]);
    }
}

#[test]
fn behind_a_devices_header_they_get_checksums() {
    let frames = without_checksum()[0].clone().run(5);
    let bytes: Vec<_> = frames.iter().map(Frame::to_bytes).collect();
    let mut aggregator = BatchAggregator::framed(Framing::TAP, MERGING, HashKey::new(1));
    let mut left = Vec::new();
    aggregator.poll(&unknown(Layer::Ethernet, &bytes), |packet| {
        let mut read =
            Framing::TAP.header(&packet).expect("a header that says how to cut it").to_vec();
        packet.copy_to(&mut read);
        left.push((read, packet.metadata.packets));
    });
    let [(read, 5)] = &left[..] else { panic!("{left:?}") };
    let mut segments = Vec::new();
    let plan =
        Segmenter::new().split(Framing::TAP, read, &mut segments).expect("what the header says");
    let back: Vec<_> =
        segments.chunks(segments.len() / plan.segments as usize).map(<[u8]>::to_vec).collect();
    let with_checksums: Vec<_> = frames
        .iter()
        .map(|frame| frame.clone().with_checksum(Checksum::Right).to_bytes())
        .collect();
    assert_eq!(back, with_checksums);
}

#[test]
fn a_computed_checksum_of_0_is_sent_as_ffff() {
    for base in bases() {
        let mut frames = base.run(5);
        frames[2] = frames[2].clone().with_zero_checksum();
        let field = frames[2].offsets().transport + 6;
        assert_eq!(frames[2].to_bytes()[field..field + 2], [0xff, 0xff]);
        merges(&frames);
        let all: Vec<_> = base.run(4).into_iter().map(Frame::with_zero_checksum).collect();
        merges(&all);
    }
}

#[test]
fn a_wrong_checksum_is_not_merged() {
    for base in bases() {
        refused(&base, BadChecksum, |frame| frame.udp_mut().checksum = Checksum::Wrong);
    }
}

#[test]
fn full_and_partial_checksums_do_not_mix() {
    for base in bases() {
        differs_packet(&base, ChecksumForm, partial);
        let all: Vec<_> = base.run(5).iter().map(partial).collect();
        assert_eq!(counts(&in_order(&all)), [5]);
    }
}

#[test]
fn an_empty_datagram_passes() {
    for base in bases() {
        refused(&base, NoPayload, |frame| frame.payload.clear());
        arrive(&lengths(&base, &[0, 0]), &[1; 2], &[NoPayload; 2]);
    }
}

#[test]
fn a_length_that_is_not_the_ip_headers_is_not_merged() {
    for base in bases() {
        // UDP options follow a length below the IP payload's (RFC 9868); 0 is a jumbogram's; more
        // is a lie.
        for length in [50, 8, 107, 109, 0, 7, 0xffff] {
            refused(&base, UdpLength, |frame| frame.udp_mut().length = Some(length));
        }
    }
}

#[test]
fn all_are_of_one_length_but_a_shorter_last() {
    for base in bases() {
        arrive(&lengths(&base, &[100, 100, 50]), &[3], &[ShortSegment]);
        arrive(&lengths(&base, &[100, 100, 50, 50, 50]), &[3, 2], &[ShortSegment, PollEnd]);
        arrive(&lengths(&base, &[50, 100, 100]), &[1, 2], &[LongerSegment, PollEnd]);
        arrive(&lengths(&base, &[100, 1]), &[2], &[ShortSegment]);
    }
}

#[test]
fn other_ports_are_another_flow() {
    for base in bases() {
        two_flows(&base, &base.clone().with_udp(|udp| udp.source_port += 1));
        two_flows(&base, &base.clone().with_udp(|udp| udp.destination_port += 1));
    }
}
