//! What says more than "so far": duplicates, window updates, options, flags, and what does not fit.

use superpacket::aggregate::Reason;
use superpacket_traffic::frame::{
    ACK, AE, CWR, ECE, FIN, Frame, PSH, RST, SYN, URG, sack, timestamps,
};

use super::{ack, acks, assert_merged, both_modes, data, numbers};
use crate::lro::{assert_all_untouched, assert_untouched, tcp};
use crate::support::*;

/// Asserts that `packet`, between ACKs 100, 200 and 300, 400, passes untouched with `reason`, after
/// ACKs 100 and 200 and before the others.
#[track_caller]
fn assert_apart(shape: impl Fn(Frame) -> Frame, packet: impl Fn(Frame) -> Frame, reason: Reason) {
    let shaped = |number| Packet::from(shape(ack(number)));
    let apart = Packet::from(packet(shape(ack(200))));
    for policy in both_modes() {
        let run = run(policy, &[shaped(100), shaped(200), apart.clone(), shaped(300), shaped(400)]);
        assert_eq!(run.reasons(), [Reason::Overtaken, reason, Reason::PollEnd]);
        assert_merged(&run.outputs[0], 2, 1, 0);
        assert_eq!(tcp(&run.outputs[0]).acknowledgement, 200);
        assert_untouched(&run.outputs[1], &apart);
        assert_merged(&run.outputs[2], 2, 1, 0);
        assert_eq!(tcp(&run.outputs[2]).acknowledgement, 400);
        assert_eq!((run.counters.absorbed_acks, run.counters.reason(reason)), (2, 1));
    }
}

#[test]
fn an_older_ack_flushes_and_passes() {
    let input = acks(&[100, 200, 150, 300, 400]);
    for policy in both_modes() {
        let run = run(policy, &input);
        assert_eq!(run.reasons(), [Reason::Overtaken, Reason::AckOlder, Reason::PollEnd]);
        assert_eq!(numbers(&run), [200, 150, 400], "in the order they came");
        assert_untouched(&run.outputs[1], &input[2]);
    }
}

#[test]
fn a_duplicate_ack_is_told_apart() {
    assert_apart(|frame| frame, |frame| frame, Reason::DuplicateAck);
    assert_apart(
        |frame| frame.with_timestamps(5, 6),
        |frame| frame.with_timestamps(7, 6),
        Reason::DuplicateAck,
    );
    assert_apart(|frame| frame.tagged(7).padded_to(60), |frame| frame, Reason::DuplicateAck);
}

#[test]
fn a_window_update_is_told_apart() {
    for window in [0, 500, 502, 0xffff] {
        assert_apart(
            |frame| frame,
            |frame| frame.with_tcp(|tcp| tcp.window = window),
            Reason::WindowUpdate,
        );
    }
}

#[test]
fn other_options_are_told_apart() {
    let with =
        |options: Vec<u8>| move |frame: Frame| frame.with_tcp(|tcp| tcp.options = options.clone());
    for number in [200, 201] {
        let newer = move |frame: Frame| frame.with_tcp(|tcp| tcp.acknowledgement = number);
        let blocks = sack(&[(1000, 2000)]);
        assert_apart(|frame| frame, |frame| with(blocks.clone())(newer(frame)), Reason::TcpOptions);
        assert_apart(
            |frame| frame.with_timestamps(5, 6),
            |frame| with([timestamps(5, 6), blocks.clone()].concat())(newer(frame)),
            Reason::TcpOptions,
        );
        assert_apart(
            |frame| frame,
            |frame| with(vec![1, 1, 1, 1])(newer(frame)),
            Reason::TcpOptions,
        );
        assert_apart(
            |frame| frame.with_timestamps(5, 6),
            |frame| newer(frame).with_timestamps(5, 0),
            Reason::TcpOptions,
        );
    }
}

#[test]
fn congestion_is_told_apart() {
    for number in [200, 201] {
        let newer = move |frame: Frame| frame.with_tcp(|tcp| tcp.acknowledgement = number);
        for flags in [ACK | ECE, ACK | CWR, ACK | ECE | CWR, ACK | AE | ECE] {
            assert_apart(|frame| frame, |frame| newer(frame).with_flags(flags), Reason::Congestion);
        }
        assert_apart(
            |frame| frame,
            |frame| newer(frame).with_ipv4(|ip| ip.tos = 3),
            Reason::Congestion,
        );
    }
}

#[test]
fn other_flags_are_told_apart() {
    let newer = |frame: Frame| frame.with_tcp(|tcp| tcp.acknowledgement = 250);
    for flags in [ACK | SYN, ACK | RST, RST, ACK | FIN, ACK | URG, 0] {
        assert_apart(|frame| frame, |frame| newer(frame).with_flags(flags), Reason::TcpFlags);
    }
    assert_apart(|frame| frame, |frame| newer(frame).with_flags(ACK | PSH), Reason::NoPayload);
}

#[test]
fn every_one_of_a_row_of_duplicates_passes() {
    // Three of them make a sender retransmit (RFC 5681, section 3.2), however many came before and
    // whatever comes after.
    for count in 1..10 {
        let mut row = vec![100; count + 1];
        row.push(200);
        let input = acks(&row);
        for policy in both_modes() {
            let run = run(policy, &input);
            assert_eq!(numbers(&run), row);
            assert_all_untouched(&run, &input);
            assert_eq!(run.counters.absorbed_acks, 0);
            assert_eq!(run.counters.reason(Reason::DuplicateAck), count as u64);
        }
    }
}

#[test]
fn duplicates_are_told_across_polls_and_flows() {
    // The ACK that they repeat has left long ago; another flow's went by in between.
    let other = Packet::from(Frame::tcp6(1, 0));
    let mut input = Vec::new();
    for number in [100, 100, 100, 100, 200, 300] {
        input.extend([ack(number).into(), other.clone()]);
    }
    for policy in both_modes() {
        for batch in [1, 2, 3, 4, 5, 12] {
            let run = run_polls(policy, &input, batch);
            let outputs: Vec<_> =
                run.outputs.iter().filter(|output| output.bytes[12] == 8).collect();
            assert!(
                outputs.iter().take(4).all(|output| output.metadata.packets == 1),
                "{batch}: {:?}",
                run.reasons()
            );
            assert_eq!(
                outputs[..4].iter().map(|output| tcp(output).acknowledgement).collect::<Vec<_>>(),
                [100; 4]
            );
            assert_eq!(run.counters.reason(Reason::DuplicateAck), 3 + 5, "{batch}");
            let others = run.outputs.iter().filter(|output| output.bytes[12] == 0x86);
            assert_eq!(others.map(|output| output.metadata.packets).collect::<Vec<_>>(), [1; 6]);
        }
    }
}

#[test]
fn a_window_update_of_an_ack_that_has_left_passes() {
    let update = ack(100).with_tcp(|tcp| tcp.window = 900);
    let input = [ack(100).into(), Packet::from(update), ack(200).into()];
    for policy in both_modes() {
        for batch in [1, 2, 3] {
            let run = run_polls(policy, &input, batch);
            assert_eq!(numbers(&run), [100, 100, 200]);
            assert_eq!(
                (run.counters.reason(Reason::WindowUpdate), run.counters.absorbed_acks),
                (1, 0),
                "{batch}"
            );
        }
    }
}

#[test]
fn an_ack_that_repeats_what_data_or_a_selective_ack_said_passes() {
    let sacked = ack(100).with_tcp(|tcp| tcp.options = sack(&[(1000, 2000)]));
    for policy in both_modes() {
        let after_selective =
            run(policy, &[Packet::from(sacked.clone()), ack(100).into(), ack(200).into()]);
        assert_eq!(
            after_selective.reasons(),
            [Reason::TcpOptions, Reason::DuplicateAck, Reason::PollEnd]
        );
        assert_eq!(numbers(&after_selective), [100, 100, 200]);

        let follower = |number| ack(number).with_tcp(|tcp| tcp.sequence = 501);
        let after_data =
            run_polls(policy, &packets(&[data(1, 100), follower(100), follower(200)]), 1);
        assert_eq!(after_data.reasons(), [Reason::PollEnd, Reason::DuplicateAck, Reason::PollEnd]);
    }
}

#[test]
fn a_new_connection_on_old_ports_is_not_held_against() {
    // What the old one acknowledged is no measure of the new one: at most its first ACK passes by
    // itself.
    let mut input = acks(&[0x7000_0000]);
    input.push(ack(1000).with_flags(SYN | ACK).into());
    input.extend(acks(&[1001, 2000, 3000, 4000]));
    for policy in both_modes() {
        let run = run(policy, &input);
        assert!(run.counters.absorbed_acks >= 2, "{:?}", run.reasons());
        assert_eq!(numbers(&run).last(), Some(&4000));
    }
}

#[test]
fn visibly_padded_acks_are_told_apart() {
    let newer = |frame: Frame| {
        frame.with(|frame| {
            (frame.tcp_mut().acknowledgement, frame.trailer) = (250, vec![0, 0, 0, 0, 0, 1])
        })
    };
    assert_apart(|frame| frame, newer, Reason::Padded);
}

#[test]
fn an_ack_from_elsewhere_in_the_sequence_is_not_absorbed() {
    // A keep-alive stands one byte back (RFC 9293, section 3.8.4).
    for sequence in [0, 2, 501] {
        let input =
            packets(&[ack(100), ack(200), ack(300).with_tcp(|tcp| tcp.sequence = sequence)]);
        for policy in both_modes() {
            let run = run(policy, &input);
            assert_eq!(run.reasons(), [Reason::Sequence, Reason::PollEnd]);
            assert_eq!(numbers(&run), [200, 300]);
            assert_untouched(&run.outputs[1], &input[2]);
        }
    }
}

#[test]
fn an_older_timestamp_is_not_absorbed() {
    let input = packets(&[ack(100).with_timestamps(10, 1), ack(200).with_timestamps(9, 1)]);
    for policy in both_modes() {
        let run = run(policy, &input);
        assert_eq!(run.reasons(), [Reason::TimestampOlder, Reason::PollEnd]);
        assert_all_untouched(&run, &input);
    }
}

#[test]
fn a_wrong_checksum_is_told_apart() {
    let newer = |frame: Frame| {
        frame.with(|frame| {
            (frame.tcp_mut().acknowledgement, frame.tcp_mut().checksum) =
                (250, superpacket_traffic::frame::Checksum::Wrong)
        })
    };
    assert_apart(|frame| frame, newer, Reason::BadChecksum);
}
