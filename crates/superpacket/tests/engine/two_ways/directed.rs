//! One packet of a stream is changed, in every way and at every byte, and every limit ends a run.

use superpacket::aggregate::{MAX_BIG_LENGTH, MAX_IP_LENGTH, Policy, Storage};
use superpacket::segment::ChecksumForm;
use superpacket_traffic::frame::Frame;

use super::change::CHANGES;
use super::compare::{Batches, assert_same, compare, is_lro, policies};
use super::traffic::{Arrival, CHANGED, Flow, Knowledge, Step, flows, stream};
use crate::support::{PARTIAL_GRO, PARTIAL_GRO_UDP};

/// The packets of a stream of which one is changed.
pub const PACKETS: usize = 11;

/// What the device says of each packet: the same of all, something else of each third, or of one.
pub fn knowledge() -> Vec<[Knowledge; PACKETS]> {
    use Knowledge::{Complete, Nothing, Partial, Verified};
    let alternating =
        |usual, other| core::array::from_fn(|index| if index % 3 == 2 { other } else { usual });
    let one = |usual, other, place| {
        core::array::from_fn(|index| if index == place { other } else { usual })
    };
    let mut all: Vec<_> = Knowledge::ALL.iter().map(|each| [*each; PACKETS]).collect();
    all.extend([
        alternating(Nothing, Verified),
        alternating(Verified, Partial),
        one(Verified, Nothing, CHANGED),
    ]);
    all.extend([
        one(Nothing, Verified, CHANGED),
        one(Verified, Complete, CHANGED),
        one(Nothing, Complete, CHANGED),
    ]);
    all.extend([
        one(Nothing, Partial, CHANGED),
        one(Nothing, Partial, 0),
        one(Verified, Complete, 0),
    ]);
    all
}

/// Each mode with two pairs of storage and form of checksum; the other pairs are for generated
/// streams.
pub fn modes() -> [Policy; 8] {
    let modes = [PARTIAL_GRO, PARTIAL_GRO_UDP, Policy::lro(), Policy::lro_with_acks()];
    core::array::from_fn(|index| {
        let policy = modes[index % 4].with_max_flows(8);
        match index / 4 {
            0 => policy,
            _ => policy.with_storage(Storage::Linear).with_checksum(ChecksumForm::Full),
        }
    })
}

/// The steps of one flow of which that at `place` has this change.
pub fn steps(
    change: usize,
    place: usize,
    persists: bool,
    knowledge: &[Knowledge; PACKETS],
) -> [Step; PACKETS] {
    core::array::from_fn(|index| {
        let plain = Step::plain(knowledge[index]);
        if index == place { Step { change: Some(change), persists, ..plain } } else { plain }
    })
}

/// Streams in which nothing is changed merge whole, and all packets but the first join in runs.
#[test]
fn usual_streams_merge_in_runs() {
    for policy in policies() {
        for payload in [1, 2, 13, 26, 100] {
            for flow in flows(payload) {
                for knowledge in [Knowledge::Nothing, Knowledge::Verified] {
                    for batch in [1, 2, 5, 40] {
                        let packets = flow.stream(&[Step::plain(knowledge); 40]);
                        let run = assert_same(policy, &packets, Batches::of(batch));
                        let (merged, saved) = (run.received.counters().merged, run.probes_saved);
                        let expected = if flow.joins(&policy) { 39 } else { 0 };
                        assert_eq!(merged, expected, "{policy:?}: {flow:?}");
                        // The second packet is looked at by itself where it shows that the
                        // identification is fixed, and where the first is verified for its sake,
                        // unless the layout is usual.
                        let deferred = matches!(knowledge, Knowledge::Nothing)
                            && policy.storage == Storage::Fragments
                            && !flow.has_usual_layout();
                        let by_itself = u64::from((flow.fixed_id || deferred) && !is_lro(&policy));
                        let in_runs =
                            if flow.may_run() { merged.saturating_sub(by_itself) } else { 0 };
                        assert_eq!(saved, in_runs, "{policy:?}, batches of {batch}: {flow:?}");
                    }
                }
            }
        }
    }
}

/// The flow of a run is the first that the next packet is compared with: where flows take turns,
/// one packet of each turn is looked up.
#[test]
fn a_turn_of_packets_takes_one_look_up() {
    for policy in policies() {
        let flows = [0, 1]
            .map(|number| Flow { next: Frame::tcp4(9, 60), fixed_id: false }.numbered(number));
        let steps: Vec<_> = (0..16)
            .map(|index| Step { flow: index / 4 % 2, ..Step::plain(Knowledge::Verified) })
            .collect();
        let run = assert_same(policy.with_max_flows(8), &stream(&flows, &steps), Batches::of(1));
        // As few flows as that share all entries: none is there, then one, then both, twice.
        assert_eq!(run.received.counters().probes, 1 + 2 + 2, "{policy:?}");
    }
}

/// LRO's packets may be longer than the first, in runs too.
#[test]
fn lro_takes_longer_packets_in_runs() {
    let change = CHANGES.iter().position(|(name, _)| *name == "one byte").expect("it is a change");
    let flow = Flow { next: Frame::tcp4(9, 60), fixed_id: false };
    let packets = flow.stream(&steps(change, 0, true, &[Knowledge::Verified; PACKETS]));
    let run = assert_same(Policy::lro(), &packets, Batches::of(PACKETS));
    assert_eq!((run.received.counters().merged, run.probes_saved), (10, 10));
}

/// The longest of these tests (some 20 s): every change, at every place, with all that a device may
/// know, by every policy. A run is a second writing of the rules, so any combination may differ.
#[test]
fn one_changed_packet_gives_the_same_both_ways() {
    // Which packet is changed, does the flow go on from it, and how large are the batches?
    let streams = [(CHANGED, false, PACKETS), (CHANGED, true, 3), (0, false, 4), (0, true, 4)];
    for flow in flows(60) {
        for knowledge in knowledge() {
            let plain = flow.stream(&knowledge.map(Step::plain));
            modes()
                .into_iter()
                .for_each(|policy| drop(assert_same(policy, &plain, Batches::of(PACKETS))));
            for (change, (name, _)) in CHANGES.iter().enumerate() {
                for (place, persists, batch) in streams {
                    let packets = flow.stream(&steps(change, place, persists, &knowledge));
                    if packets[place] == plain[place] {
                        continue;
                    }
                    // What is kept of the first packet does not depend on the storage.
                    for policy in modes().into_iter().take(if place == 0 { 4 } else { 8 }) {
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

/// Each change has an effect on one packet of some flow, and on no other packet.
#[test]
fn every_change_changes_a_stream() {
    let knowledge = [Knowledge::Nothing; PACKETS];
    for (change, (name, _)) in CHANGES.iter().enumerate() {
        let changes = |flow: &Flow| {
            let changed = flow.stream(&steps(change, CHANGED, false, &knowledge));
            let plain = flow.stream(&[Step::plain(Knowledge::Nothing); PACKETS]);
            assert_eq!(changed.len(), plain.len());
            changed.iter().zip(&plain).filter(|(changed, plain)| changed != plain).count() == 1
        };
        assert!(flows(60).iter().any(changes), "{name}");
    }
}

#[test]
fn one_wrong_bit_gives_the_same_both_ways() {
    for flow in flows(40) {
        for knowledge in [Knowledge::Nothing, Knowledge::Verified] {
            let packets = flow.stream(&[Step::plain(knowledge); 6]);
            for offset in 0..packets[3].packet.bytes.len() {
                for bit in [0x01, 0x10, 0x80] {
                    let mut packets = packets.clone();
                    packets[3].packet.bytes[offset] ^= bit;
                    for policy in &modes()[..4] {
                        assert_same(*policy, &packets, Batches::of(6));
                    }
                }
            }
        }
    }
}

/// The policy with each limit in turn so low that it ends streams with 50 bytes of payload in each
/// packet, after headers of this length from the IP header on.
pub fn limited(base: Policy, headers: u32) -> Vec<Policy> {
    let bytes = headers + 200;
    let mut limited = vec![];
    limited.extend([1, 2, 3, 7].map(|max_packets| base.with_max_packets(max_packets)));
    limited.extend([1, 2, 4].map(|max_datagrams| base.with_max_datagrams(max_datagrams)));
    limited
        .extend([0, bytes - 1, bytes, bytes + 1].map(|max_bytes| base.with_max_bytes(max_bytes)));
    limited.extend([0, 1, 2, 3, 5].map(|max_fragments| base.with_max_fragments(max_fragments)));
    limited.extend([1, 2].map(|max_flows| base.with_max_flows(max_flows)));
    limited.extend([1, 5].map(|hold_time| base.with_hold_time(hold_time)));
    limited
}

/// Streams of three flows that take turns after one packet, after three, or not at all, each with
/// the length of its headers from the IP header on.
pub fn interleaved_streams() -> impl Iterator<Item = (u32, Vec<Arrival>)> {
    let of_flow = |flow: Flow| {
        let offsets = flow.next.offsets();
        let headers = (offsets.payload - offsets.outer.unwrap_or(offsets.network)) as u32;
        let flows: Vec<_> = (0..3).map(|number| flow.clone().numbered(number)).collect();
        let kinds = [3, 1, 24].into_iter().flat_map(|turn| {
            [Knowledge::Nothing, Knowledge::Verified].map(|knowledge| (turn, knowledge))
        });
        kinds.map(move |(turn, knowledge)| {
            let step =
                |index: usize| Step { flow: index / turn % flows.len(), ..Step::plain(knowledge) };
            (headers, stream(&flows, &(0..24).map(step).collect::<Vec<_>>()))
        })
    };
    flows(50).into_iter().flat_map(of_flow)
}

#[test]
fn limits_end_a_run_where_they_end_it_the_long_way() {
    for (headers, packets) in interleaved_streams() {
        for base in modes() {
            for policy in limited(base, headers) {
                assert_same(policy, &packets, Batches { size: 4, per_poll: 2 });
            }
        }
    }
}

/// A run does not look at the limit of held bytes: where it could pass it, there are no runs.
#[test]
fn the_limit_of_held_bytes_is_the_same_both_ways() {
    for (_, packets) in interleaved_streams() {
        for base in modes() {
            for max_held_bytes in [0, 100, 250, 400, 1_000, 66_000, 90_000] {
                for size in [1, 7, 64] {
                    assert_same(
                        base.with_max_held_bytes(max_held_bytes),
                        &packets,
                        Batches::of(size),
                    );
                }
            }
        }
    }
}

#[test]
fn long_streams_reach_the_limits_of_headers_both_ways() {
    for payload in [1_400, 8_900] {
        for flow in flows(payload) {
            for knowledge in [Knowledge::Nothing, Knowledge::Verified] {
                let packets = flow.stream(&[Step::plain(knowledge); 70]);
                for base in modes() {
                    for max_bytes in [MAX_IP_LENGTH, MAX_BIG_LENGTH] {
                        assert_same(base.with_max_bytes(max_bytes), &packets, Batches::of(64));
                    }
                }
            }
        }
    }
}

/// More packets merge in one than there are IPv4 identifications.
#[test]
fn identifications_wrap_around_both_ways() {
    for fixed_id in [false, true] {
        let flow = Flow { next: Frame::tcp4(0, 1).with_id(40_000), fixed_id };
        let packets = stream(&[flow], &vec![Step::plain(Knowledge::Verified); 70_000]);
        let run =
            assert_same(PARTIAL_GRO.with_max_bytes(MAX_BIG_LENGTH), &packets, Batches::of(1_000));
        assert_eq!(run.received.outputs[0].metadata.packets, 70_000);
    }
}
