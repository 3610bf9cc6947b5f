//! Reversibility where it is subtle, DCCP's share: CCVal, checksum coverage, short and long
//! sequence numbers, packet types, lengths.

use crate::expect::*;
use crate::support::*;
use superpacket::aggregate::Reason::{self, *};
use superpacket_traffic::frame::{Checksum, Dccp, Frame, stream_bytes};

fn bases() -> [Frame; 4] {
    let short = |frame: Frame| frame.with_dccp(|dccp| dccp.extended = false);
    [
        Frame::dccp4(1000, 100),
        Frame::dccp6(1000, 100),
        short(Frame::dccp4(1000, 100)),
        short(Frame::dccp6(1000, 100)),
    ]
}

#[test]
fn ccval_must_be_equal() {
    for base in bases() {
        differs(&base, HeaderChanged, |frame| frame.dccp_mut().ccval = 3);
    }
}

#[test]
fn coverage_must_be_equal_and_is_respected() {
    for base in bases() {
        for coverage in [1, 2, 15] {
            differs(&base, HeaderChanged, |frame| frame.dccp_mut().coverage = coverage);
            // What lies outside the coverage may be anything: it is not read, and comes back.
            let base = base.clone().with_dccp(|dccp| dccp.coverage = coverage);
            let mut packets = packets(&base.run(5));
            for packet in &mut packets {
                *packet.bytes.last_mut().expect("a frame") ^= 0x55;
            }
            assert_eq!(counts(&in_order(&packets)), [5]);
            // Inside it anything else is refused.
            refused_packet(&base, BadChecksum, |frame| {
                let mut packet = Packet::from(frame);
                packet.bytes[frame.offsets().payload - if coverage == 1 { 1 } else { 0 }] ^= 1;
                packet
            });
        }
    }
}

#[test]
fn coverage_of_more_than_there_is() {
    for base in bases() {
        let small = base.with(|frame| frame.payload.truncate(8));
        // 8 bytes are covered by 3, more than there are from 4 on.
        differs(&small, HeaderChanged, |frame| frame.dccp_mut().coverage = 3);
        for coverage in [4, 15] {
            refused(&small, DccpCoverage, |frame| frame.dccp_mut().coverage = coverage);
        }
    }
}

#[test]
fn sequence_numbers_of_both_lengths_wrap() {
    for base in bases() {
        for first in [0xff_fffe, 0xffff_ffff_fffe, 0xff_ffff, 0xffff_ffff_ffff, 0x7f_ffff] {
            merges(&base.clone().with_dccp(|dccp| dccp.sequence = first).run(5));
        }
    }
}

#[test]
fn sequence_numbers_count_packets() {
    for base in bases() {
        for by in [1u64, 100, 0xffff_ffff_ffff, 0xff_ffff] {
            let mut frames = base.run(4);
            for frame in &mut frames[2..] {
                frame.dccp_mut().sequence = frame.dccp_mut().sequence.wrapping_add(by);
            }
            arrive(&frames, &[2, 2], &[Sequence, PollEnd]);
        }
    }
}

#[test]
fn short_and_long_sequence_numbers_do_not_mix() {
    for base in [Frame::dccp4(1000, 100), Frame::dccp6(1000, 100)] {
        differs(&base, HeaderChanged, |frame| frame.dccp_mut().extended = false);
        // Nor where options make the headers equally long.
        let padded = base.clone().with_dccp(|dccp| dccp.options = vec![0; 4]);
        differs(&padded, HeaderChanged, |frame| {
            frame.dccp_mut().extended = false;
            frame.dccp_mut().options = vec![0; 8];
        });
    }
}

#[test]
fn acknowledgements_and_options_must_be_equal() {
    for base in bases() {
        differs(&base, HeaderChanged, |frame| {
            frame.dccp_mut().kind = Dccp::DATA_ACK;
            frame.dccp_mut().acknowledgement = Some(5);
        });
        let acks = base.clone().with_dccp(|dccp| {
            dccp.kind = Dccp::DATA_ACK;
            dccp.acknowledgement = Some(5);
        });
        differs(&acks, OptionsChanged, |frame| frame.dccp_mut().acknowledgement = Some(6));
        let options = base.clone().with_dccp(|dccp| dccp.options = vec![41, 6, 1, 2, 3, 4, 0, 0]);
        differs(&options, OptionsChanged, |frame| frame.dccp_mut().options[3] = 9);
        // Another data offset.
        differs(&base, HeaderChanged, |frame| frame.dccp_mut().options = vec![0, 0, 0, 0]);
    }
}

#[test]
fn packets_that_carry_no_application_data_pass() {
    for base in bases() {
        for kind in [Dccp::REQUEST, Dccp::RESPONSE, Dccp::ACK, Dccp::CLOSE, Dccp::RESET, 8, 15] {
            refused(&base, DccpType, |frame| frame.dccp_mut().kind = kind);
        }
        refused(&base, NoPayload, |frame| frame.payload.clear());
        // A DataAck too short for its acknowledgement number has no flow that could be told.
        refused(&base, Malformed, |frame| frame.dccp_mut().kind = Dccp::DATA_ACK);
    }
}

#[test]
fn only_equal_lengths_merge() {
    let lengths = |base: &Frame, lengths: &[usize], counts: &[u32], reasons: &[Reason]| {
        let frames = base.run(lengths.len()).into_iter().zip(lengths);
        let frames: Vec<_> = frames
            .map(|(frame, &length)| frame.with(|frame| frame.payload = stream_bytes(3, length)))
            .collect();
        arrive(&frames, counts, reasons);
    };
    for base in bases() {
        lengths(&base, &[100, 100, 60], &[2, 1], &[ShortSegment, PollEnd]);
        lengths(&base, &[100, 100, 60, 60, 60], &[2, 3], &[ShortSegment, PollEnd]);
        lengths(&base, &[60, 100, 100], &[1, 2], &[LongerSegment, PollEnd]);
    }
}

#[test]
fn checksums_are_canonical_right_and_of_one_form() {
    for base in bases() {
        let mut frames = base.run(5);
        frames[2] = frames[2].clone().with_zero_checksum();
        merges(&frames);
        frames[2].dccp_mut().checksum = Checksum::NonCanonical;
        let field = frames[2].offsets().transport + 6;
        assert_eq!(frames[2].to_bytes()[field..field + 2], [0xff, 0xff]);
        arrive(&frames, &[2, 1, 2], &[Overtaken, NonCanonicalChecksum, PollEnd]);
        refused(&base, BadChecksum, |frame| frame.dccp_mut().checksum = Checksum::Wrong);
        differs_packet(&base, ChecksumForm, partial);
        let all: Vec<_> = base.run(5).iter().map(partial).collect();
        assert_eq!(counts(&in_order(&all)), [5]);
    }
}
