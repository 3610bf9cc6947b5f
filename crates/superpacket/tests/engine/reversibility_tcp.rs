//! Reversibility where it is subtle, TCP's share: checksums, flags, options, sequence numbers,
//! short segments, input that is a super-packet already.

use crate::expect::*;
use superpacket::aggregate::Reason::*;
use superpacket::packet::RxChecksum;
use superpacket::segment::{self, Cwr};

use crate::support::*;
use superpacket_traffic::frame::{
    ACK, AE, CWR, Checksum, ECE, FIN, Frame, PSH, RESERVED, RST, SYN, URG, stream_bytes, timestamps,
};

/// TCP over both versions, with and without timestamps.
fn bases() -> [Frame; 4] {
    let (tcp4, tcp6) = (Frame::tcp4(1000, 100), Frame::tcp6(1000, 100));
    [tcp4.clone(), tcp6.clone(), tcp4.with_timestamps(5, 6), tcp6.with_timestamps(5, 6)]
}

/// Frames of these payload lengths, one after the other in sequence and identification.
fn lengths(base: &Frame, lengths: &[usize]) -> Vec<Frame> {
    let mut frames = base.run(lengths.len());
    let mut sequence = frames[0].tcp_mut().sequence;
    for (frame, &length) in frames.iter_mut().zip(lengths) {
        frame.tcp_mut().sequence = sequence;
        frame.payload = stream_bytes(sequence, length);
        sequence = sequence.wrapping_add(length as u32);
    }
    frames
}

/// A run with these flags.
fn flagged(base: &Frame, flags: &[u16]) -> Vec<Frame> {
    base.run(flags.len())
        .into_iter()
        .zip(flags)
        .map(|(frame, &flags)| frame.with_flags(flags))
        .collect()
}

#[test]
fn a_checksum_of_ffff_for_0000_is_valid_and_not_merged() {
    for base in bases() {
        let mut frames = base.run(5);
        frames[2] = frames[2].clone().with_zero_checksum();
        let field = frames[2].offsets().transport + 16;
        assert_eq!(frames[2].to_bytes()[field..field + 2], [0, 0]);
        merges(&frames);
        frames[2].tcp_mut().checksum = Checksum::NonCanonical;
        assert_eq!(frames[2].to_bytes()[field..field + 2], [0xff, 0xff]);
        let expected = [Overtaken, NonCanonicalChecksum, PollEnd];
        arrive(&frames, &[2, 1, 2], &expected);
        // Neither a device that verified it nor one that summed it makes it canonical.
        let verified: Vec<_> =
            packets(&frames).into_iter().map(|packet| packet.with_checksum(VERIFIED)).collect();
        assert_eq!(in_order(&verified).reasons(), expected);
        let summed: Vec<_> = packets(&frames)
            .into_iter()
            .map(|packet| {
                let sum = superpacket_traffic::checksum::sum(&packet.bytes[14..]);
                packet.with_checksum(RxChecksum::Complete(sum))
            })
            .collect();
        assert_eq!(in_order(&summed).reasons(), expected);
    }
}

#[test]
fn a_wrong_checksum_is_not_merged() {
    for base in bases() {
        refused(&base, BadChecksum, |frame| frame.tcp_mut().checksum = Checksum::Wrong);
        refused(&base, BadChecksum, |frame| frame.tcp_mut().checksum = Checksum::Zero);
    }
}

#[test]
fn push_ends_a_run_and_stays_on_its_last() {
    for base in bases() {
        arrive(&flagged(&base, &[ACK | PSH, ACK, ACK]), &[1, 2], &[Push, PollEnd]);
        arrive(&flagged(&base, &[ACK, ACK | PSH, ACK, ACK]), &[2, 2], &[Push, PollEnd]);
        arrive(&flagged(&base, &[ACK, ACK, ACK | PSH, ACK]), &[3, 1], &[Push, PollEnd]);
        arrive(&flagged(&base, &[ACK, ACK, ACK, ACK | PSH]), &[4], &[Push]);
        arrive(&flagged(&base, &[ACK | PSH; 3]), &[1; 3], &[Push; 3]);
        // On a packet that does not join: it leaves at once, after what was held.
        let mut frames = flagged(&base, &[ACK, ACK, ACK | PSH]);
        frames[2].tcp_mut().sequence += 7;
        arrive(&frames, &[2, 1], &[Sequence, Push]);
        let mut frames = flagged(&base, &[ACK, ACK, ACK | PSH]);
        frames[2].tcp_mut().window += 1;
        arrive(&frames, &[2, 1], &[Window, Push]);
    }
}

#[test]
fn fin_ends_a_run_wherever_it_stands() {
    for base in bases() {
        arrive(&flagged(&base, &[ACK, ACK, ACK | FIN]), &[3], &[Push]);
        arrive(&flagged(&base, &[ACK, ACK, ACK | FIN | PSH]), &[3], &[Push]);
        arrive(&flagged(&base, &[ACK, ACK | PSH, ACK | FIN]), &[2, 1], &[Push, Push]);
        arrive(&flagged(&base, &[ACK | FIN, ACK, ACK]), &[1, 2], &[Push, PollEnd]);
        // In mid-run, by a sender that goes on as if it took no sequence number (the frames above
        // go on one further, as they must).
        let mut frames = flagged(&base, &[ACK; 5]);
        frames[2].tcp_mut().flags |= FIN;
        arrive(&frames, &[3, 2], &[Push, PollEnd]);
    }
}

#[test]
fn control_flags_and_a_missing_ack_are_not_merged() {
    for base in bases() {
        for flags in [ACK | SYN, ACK | RST, ACK | URG, SYN, RST, PSH, 0, FIN, ACK | URG | PSH] {
            refused(&base, TcpFlags, |frame| frame.tcp_mut().flags = flags);
        }
    }
}

#[test]
fn congestion_bits_must_be_equal() {
    for base in bases() {
        for bits in [CWR, ECE, AE, CWR | ECE, AE | CWR | ECE] {
            // On the head only, on the second, on any one; and on all.
            differs(&base, FlagsChanged, |frame| frame.tcp_mut().flags |= bits);
            let run = merges(&base.clone().with_flags(ACK | bits).run(4));
            let expected = if bits & CWR != 0 { Cwr::All } else { Cwr::First };
            assert_eq!(run.outputs[0].metadata.gso.map(|gso| gso.cwr), Some(expected));
        }
        arrive(&flagged(&base, &[ACK | CWR, ACK | CWR, ACK | CWR | PSH]), &[3], &[Push]);
    }
}

#[test]
fn reserved_bits_and_the_urgent_pointer_must_be_equal() {
    for base in bases() {
        for bits in [0x200, 0x400, 0x800, RESERVED] {
            differs(&base, FlagsChanged, |frame| frame.tcp_mut().flags |= bits);
        }
        // URG is clear, so it means nothing; it comes back all the same.
        differs(&base, HeaderChanged, |frame| frame.tcp_mut().urgent = 17);
    }
}

#[test]
fn options_must_be_identical_to_the_last_byte() {
    let with =
        |options: &[u8]| Frame::tcp4(1000, 100).with_tcp(|tcp| tcp.options = options.to_vec());
    // After end-of-options anything may stand, and comes back.
    differs(&with(&[0, 0xde, 0xad, 0xbe]), OptionsChanged, |frame| {
        frame.tcp_mut().options = vec![0, 0xde, 0xad, 0xbf]
    });
    differs(&with(&[0, 0, 0, 0]), OptionsChanged, |frame| {
        frame.tcp_mut().options = vec![0, 0, 0, 1]
    });
    // The same in another order.
    let (value, others) = (
        timestamps(5, 6),
        [[8, 10, 0, 0, 0, 5, 0, 0, 0, 6, 1, 1], [1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 6, 1]],
    );
    for other in others {
        differs(&with(&value), OptionsChanged, |frame| frame.tcp_mut().options = other.to_vec());
    }
    // Another timestamp, another echo, none, more.
    differs(&with(&value), OptionsChanged, |frame| frame.tcp_mut().options = timestamps(4, 6));
    differs(&with(&value), OptionsChanged, |frame| frame.tcp_mut().options = timestamps(5, 7));
    differs(&with(&value), OptionsChanged, |frame| frame.tcp_mut().options.clear());
    differs(&with(&value), OptionsChanged, |frame| frame.tcp_mut().options.extend([1, 1, 1, 1]));
    // Malformed options are bytes like any other.
    differs(&with(&value), OptionsChanged, |frame| frame.tcp_mut().options = vec![8, 200, 3, 0]);
}

#[test]
fn sequence_numbers_wrap_inside_a_super_packet() {
    for base in bases() {
        let at = |sequence: u32| base.clone().with_tcp(|tcp| tcp.sequence = sequence);
        for first in [u32::MAX - 250, u32::MAX - 299, u32::MAX - 199, u32::MAX] {
            merges(&lengths(&at(first), &[100; 6]));
        }
    }
}

#[test]
fn a_keep_alive_with_one_old_byte_is_no_data() {
    for base in bases() {
        let mut frames = lengths(&base, &[100, 100, 1, 100, 100]);
        // It repeats the last byte sent, and the data goes on behind it.
        frames[2].tcp_mut().sequence -= 1;
        frames[3].tcp_mut().sequence -= 1;
        frames[4].tcp_mut().sequence -= 1;
        arrive(&frames, &[2, 1, 2], &[Sequence, LongerSegment, PollEnd]);
        // Without that byte.
        frames[2].payload.clear();
        arrive(&frames, &[2, 1, 2], &[Overtaken, NoPayload, PollEnd]);
    }
}

#[test]
fn no_payload_is_never_merged() {
    for base in bases() {
        arrive(
            &lengths(&base, &[100, 100, 0, 100, 100]),
            &[2, 1, 2],
            &[Overtaken, NoPayload, PollEnd],
        );
        arrive(&lengths(&base, &[0, 0, 0]), &[1; 3], &[NoPayload; 3]);
        arrive(&lengths(&base, &[0, 100, 100]), &[1, 2], &[NoPayload, PollEnd]);
        // FIN, PSH and CWR without data.
        for flags in [ACK | FIN, ACK | PSH, ACK | CWR] {
            let mut frames = lengths(&base, &[100, 100, 0]);
            frames[2].tcp_mut().flags = flags;
            arrive(&frames, &[2, 1], &[Overtaken, NoPayload]);
        }
    }
}

#[test]
fn only_the_next_byte_follows() {
    for base in bases() {
        let shifted = |by: i32| {
            let mut frames = base.run(4);
            for frame in &mut frames[2..] {
                let tcp = frame.tcp_mut();
                tcp.sequence = tcp.sequence.wrapping_add_signed(by);
            }
            frames
        };
        // Lost, retransmitted, overlapping, far away.
        for by in [1, 100, -1, -100, -200, i32::MAX, i32::MIN] {
            arrive(&shifted(by), &[2, 2], &[Sequence, PollEnd]);
        }
        // Swapped.
        let mut frames = base.run(4);
        frames.swap(1, 2);
        arrive(&frames, &[1, 1, 1, 1], &[Sequence, Sequence, Sequence, PollEnd]);
    }
}

#[test]
fn acknowledgement_and_window_must_be_equal() {
    for base in bases() {
        let base = base.with_tcp(|tcp| tcp.acknowledgement = 5000);
        for acknowledgement in [4999, 5001, 0, 6000] {
            differs(&base, Acknowledgement, |frame| {
                frame.tcp_mut().acknowledgement = acknowledgement
            });
        }
        differs(&base, Window, |frame| frame.tcp_mut().window += 1);
        differs(&base, Window, |frame| frame.tcp_mut().window = 0);
        // Both at once: the first field that differs names the reason.
        differs(&base, Acknowledgement, |frame| {
            frame.tcp_mut().window = 0;
            frame.tcp_mut().acknowledgement = 1;
        });
    }
}

#[test]
fn a_short_segment_ends_a_run_and_a_longer_one_begins_another() {
    for base in bases() {
        arrive(&lengths(&base, &[50, 100, 100]), &[1, 2], &[LongerSegment, PollEnd]);
        arrive(&lengths(&base, &[1, 100]), &[1, 1], &[LongerSegment, PollEnd]);
        // An exact multiple waits for more; a short last one ends it without PSH.
        arrive(&lengths(&base, &[100, 100, 100]), &[3], &[PollEnd]);
        arrive(&lengths(&base, &[100, 100, 60]), &[3], &[ShortSegment]);
        arrive(&lengths(&base, &[100, 100, 60, 40, 40]), &[3, 2], &[ShortSegment, PollEnd]);
        arrive(&lengths(&base, &[100, 1, 1, 1]), &[2, 2], &[ShortSegment, PollEnd]);
        arrive(&lengths(&base, &[100, 100, 101, 101]), &[2, 2], &[LongerSegment, PollEnd]);
        arrive(&lengths(&base, &[1; 5]), &[5], &[PollEnd]);
    }
}

#[test]
fn full_and_partial_checksums_do_not_mix() {
    for base in bases() {
        differs_packet(&base, ChecksumForm, partial);
        let all: Vec<_> = base.run(5).iter().map(partial).collect();
        let run = in_order(&all);
        left(&run, &[5], &[PollEnd]);
        assert_eq!(
            run.outputs[0].metadata.gso.map(|gso| gso.checksum),
            Some(segment::ChecksumForm::Partial)
        );
    }
}

#[test]
fn a_partial_checksum_must_be_the_pseudo_headers() {
    for base in bases() {
        // For another field, for another header, and with another sum in it.
        let start = base.offsets().transport as u16;
        for checksum in [
            RxChecksum::Partial { start, offset: 6 },
            RxChecksum::Partial { start: start - 20, offset: 16 },
        ] {
            refused_packet(&base, PartialChecksum, |frame| partial(frame).with_checksum(checksum));
        }
        refused_packet(&base, PartialChecksum, |frame| {
            let mut packet = partial(frame);
            packet.bytes[usize::from(start) + 16] ^= 1;
            packet
        });
        refused_packet(&base, PartialChecksum, |frame| {
            let frame = frame.clone().with_checksum(Checksum::PartialWithoutLength);
            Packet { checksum: partial(&base).checksum, ..Packet::from(&frame) }
        });
    }
}

#[test]
fn frames_larger_than_any_link_merge_like_others() {
    for base in bases() {
        merges(&lengths(&base, &[9000; 4]));
        arrive(&lengths(&base, &[30_000, 30_000, 30_000]), &[2, 1], &[ByteLimit, PollEnd]);
    }
}
