//! ACKs and data in one flow.

use superpacket::aggregate::Reason;

use super::{ack, assert_merged, both_modes, data};
use crate::lro::{assert_untouched, tcp};
use crate::support::*;

#[test]
fn acks_join_held_data() {
    let follower = |number| ack(number).with_tcp(|tcp| (tcp.sequence, tcp.window) = (1001, 77));
    for policy in both_modes() {
        let run = run(
            policy,
            &packets(&[data(1, 10), data(501, 10), follower(20), follower(30).padded_to(60)]),
        );
        assert_eq!(run.reasons(), [Reason::PollEnd]);
        assert_merged(&run.outputs[0], 4, 2, 1000);
        assert_eq!((tcp(&run.outputs[0]).acknowledgement, tcp(&run.outputs[0]).window), (30, 77));
    }
}

#[test]
fn data_joins_held_acks() {
    for head in [ack(10), ack(10).padded_to(60)] {
        for policy in both_modes() {
            // All ACKs before the data are absorbed: the first, which was held, too.
            let run = run(policy, &packets(&[head.clone(), ack(20), data(1, 20), data(501, 30)]));
            assert_eq!(run.reasons(), [Reason::PollEnd]);
            assert_merged(&run.outputs[0], 4, 2, 1000);
            assert_eq!(
                (tcp(&run.outputs[0]).acknowledgement, run.outputs[0].metadata.largest_payload),
                (30, 500)
            );
            assert_eq!((run.counters.merged, run.counters.absorbed_acks), (3, 2));
        }
    }
}

#[test]
fn acks_between_data() {
    let follower = |sequence, number| ack(number).with_tcp(|tcp| tcp.sequence = sequence);
    for policy in both_modes() {
        let run = run(
            policy,
            &packets(&[data(1, 10), follower(501, 20), data(501, 20), follower(1001, 30)]),
        );
        assert_eq!(run.reasons(), [Reason::PollEnd]);
        assert_merged(&run.outputs[0], 4, 2, 1000);
        assert_eq!(tcp(&run.outputs[0]).acknowledgement, 30);
    }
}

#[test]
fn a_duplicate_on_held_data_is_told_apart() {
    let duplicate = ack(10).with_tcp(|tcp| tcp.sequence = 1001);
    for policy in both_modes() {
        let run = run(policy, &packets(&[data(1, 10), data(501, 10), duplicate.clone()]));
        assert_eq!(run.reasons(), [Reason::Overtaken, Reason::DuplicateAck]);
        assert_untouched(&run.outputs[1], &Packet::from(&duplicate));
    }
}
