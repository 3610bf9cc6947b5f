//! Pure ACKs that LRO absorbs: one by one and in runs.

use superpacket::aggregate::Reason;
use superpacket_traffic::check::{self, Expect};
use superpacket_traffic::frame::Frame;

use super::change::CHANGES;
use super::compare::{Batches, absorbing, assert_same, compare};
use super::directed::{PACKETS, knowledge, limited, steps};
use super::traffic::{CHANGED, Flow, Knowledge, Step, acks, stream};

/// The number of a change of this name.
fn change(wanted: &str) -> usize {
    CHANGES.iter().position(|(name, _)| *name == wanted).expect("it is a change")
}

#[test]
fn acks_are_absorbed_in_runs() {
    for policy in absorbing() {
        for flow in acks() {
            for knowledge in [Knowledge::Nothing, Knowledge::Verified] {
                for batch in [1, 3, 40] {
                    let run = assert_same(
                        policy,
                        &flow.stream(&[Step::plain(knowledge); 40]),
                        Batches::of(batch),
                    );
                    let (absorbed, saved) =
                        (run.received.counters().absorbed_acks, run.probes_saved);
                    let expected = if flow.joins(&policy) { 39 } else { 0 };
                    assert_eq!(
                        (absorbed, saved),
                        (expected, if flow.may_run() { expected } else { 0 }),
                        "{policy:?}: {flow:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn one_changed_ack_gives_the_same_both_ways() {
    let streams = [(CHANGED, false, PACKETS), (CHANGED, true, 3), (0, false, 4), (0, true, 4)];
    for flow in acks() {
        for knowledge in knowledge() {
            for (change, (name, _)) in CHANGES.iter().enumerate() {
                for (place, persists, batch) in streams {
                    let packets = flow.stream(&steps(change, place, persists, &knowledge));
                    for policy in absorbing() {
                        if let Err(difference) = compare(policy, &packets, Batches::of(batch)) {
                            panic!(
                                "{name} in packet {place} of {flow:?}, {knowledge:?}: {difference}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn one_wrong_bit_of_an_ack_gives_the_same_both_ways() {
    for flow in acks() {
        for knowledge in [Knowledge::Nothing, Knowledge::Verified] {
            let packets = flow.stream(&[Step::plain(knowledge); 6]);
            for offset in 0..packets[3].packet.bytes.len() {
                for bit in 0..8 {
                    let mut packets = packets.clone();
                    packets[3].packet.bytes[offset] ^= 1 << bit;
                    absorbing()
                        .into_iter()
                        .for_each(|policy| drop(assert_same(policy, &packets, Batches::of(6))));
                }
            }
        }
    }
}

/// The first of each flow is data, longer than some limits allow, or a pure ACK.
#[test]
fn limits_end_a_run_of_acks_where_they_end_it_the_long_way() {
    for flow in acks() {
        let flows: Vec<_> = (0..3).map(|number| flow.clone().numbered(number)).collect();
        for (turn, first) in [3, 1, 24]
            .into_iter()
            .flat_map(|turn| [None, Some(change("one byte longer"))].map(|first| (turn, first)))
        {
            for knowledge in [Knowledge::Nothing, Knowledge::Verified] {
                let step = |index: usize| Step {
                    flow: index / turn % flows.len(),
                    change: first.filter(|_| index == 0),
                    persists: true,
                    ..Step::plain(knowledge)
                };
                let packets = stream(&flows, &(0..24).map(step).collect::<Vec<_>>());
                for policy in absorbing().into_iter().flat_map(|base| limited(base, 40)) {
                    assert_same(policy, &packets, Batches { size: 4, per_poll: 2 });
                }
            }
        }
    }
}

/// A device calls the wrong checksum of a pure ACK right: of data that absorbs it, only the data
/// is summed.
#[test]
fn what_is_false_of_an_ack_is_not_summed_with_data() {
    let flow = Flow { next: Frame::tcp4(9, 0), fixed_id: false };
    let plain = Step::plain(Knowledge::Verified);
    let data = Step { change: Some(change("one byte longer")), ..plain };
    // The second ACK is examined beside the first, which it ends before it begins anew; or nothing
    // is held.
    let beside = [plain, Step { change: Some(change("TTL")), persists: true, ..plain }, data];
    for (steps, wrong) in [(&beside[..], 1), (&[plain, data], 0)] {
        let mut packets = flow.stream(steps);
        packets[wrong].packet.bytes[14 + 20 + 16] ^= 1;
        for policy in absorbing() {
            let run = assert_same(policy, &packets, Batches::of(4));
            let last = run.received.outputs.last().expect("a packet");
            assert_eq!(
                (last.metadata.packets, last.metadata.absorbed_acks, last.metadata.reason),
                (2, 1, Reason::Requested)
            );
            let checked = check::frame(&last.bytes, &Expect::default()).expect("right checksums");
            assert_eq!((checked.checksums, checked.payload.len()), (1, 1));
        }
    }
}
