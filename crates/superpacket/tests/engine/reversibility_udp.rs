//! Reversibility where it is subtle, UDP's share: checksums of zero, lengths that are not the IP
//! header's, empty datagrams.

use crate::expect::*;
use superpacket::aggregate::Reason::*;
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
        let all = base.clone().with(|frame| frame.udp_mut().checksum = Checksum::Zero).run(3);
        arrive(&all, &[1; 3], &[UdpNoChecksum; 3]);
    }
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
        two_flows(&base, &base.clone().with(|frame| frame.udp_mut().source_port += 1));
        two_flows(&base, &base.clone().with(|frame| frame.udp_mut().destination_port += 1));
    }
}
