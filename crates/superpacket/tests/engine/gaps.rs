//! What overtook others waits for them, no longer than it may; what must not be overtaken is not.

use std::collections::{HashMap, HashSet};

use crate::support::Aggregator;
use proptest::prelude::*;
use superpacket::SuperPacket;
use superpacket::aggregate::{HashKey, Policy};
use superpacket::order::{GapCounters, GapLimits, Gaps};
use superpacket::packet::RxPacket;
use superpacket_traffic::frame::{FIN, Frame, RST, SYN};
use superpacket_traffic::random::Random;

const PAYLOAD: usize = 100;
const HOLD: u64 = 50_000;

fn segment(number: u32) -> Vec<u8> {
    Frame::tcp4(1 + number * PAYLOAD as u32, PAYLOAD).with_id(number as u16).to_bytes()
}

fn gaps(limits: GapLimits) -> Gaps<Vec<u8>> {
    Gaps::new(limits, HashKey::new(7))
}

fn packets(frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<RxPacket<Vec<u8>>> {
    frames.into_iter().map(RxPacket::new).collect()
}

fn bytes(packets: &[RxPacket<Vec<u8>>]) -> Vec<Vec<u8>> {
    packets.iter().map(|packet| packet.buffers().flatten().copied().collect()).collect()
}

/// Receives each poll at its time, and returns what left in it.
fn polls<const N: usize>(
    gaps: &mut Gaps<Vec<u8>>,
    polls: [(u64, Vec<Vec<u8>>); N],
) -> [Vec<Vec<u8>>; N] {
    polls.map(|(now, frames)| {
        let mut packets = packets(frames);
        gaps.receive(&mut packets, now);
        bytes(&packets)
    })
}

fn segments(numbers: &[u32]) -> Vec<Vec<u8>> {
    numbers.iter().copied().map(segment).collect()
}

#[test]
fn swapped_segments_merge_into_one() {
    let mut gaps = gaps(GapLimits::new(HOLD));
    let mut aggregator = Aggregator::new(Policy::gro(), HashKey::new(1));
    let mut left = Vec::new();
    for (now, numbers) in [(0, [0, 1, 3, 2]), (1_000, [4, 6, 7, 5])] {
        let mut packets = packets(segments(&numbers));
        gaps.receive(&mut packets, now);
        aggregator.receive_batch(&mut packets, now, &mut |packet: SuperPacket<'_, Vec<u8>>| {
            left.push(packet.metadata.packets)
        });
        aggregator.poll_end(now, &mut |packet: SuperPacket<'_, Vec<u8>>| {
            left.push(packet.metadata.packets)
        });
    }
    assert_eq!(left, [4, 4]);
    let counters = gaps.counters();
    assert_eq!(
        (counters.waited, counters.filled, counters.waiting, counters.waiting_bytes),
        (3, 3, 0, 0)
    );
}

#[test]
fn a_gap_lasts_from_poll_to_poll_and_no_longer_than_it_may() {
    let mut gaps = gaps(GapLimits::new(HOLD));
    let left = polls(
        &mut gaps,
        [(0, segments(&[0, 2, 4])), (20_000, segments(&[5])), (30_000, segments(&[1]))],
    );
    assert_eq!(left, [segments(&[0]), vec![], segments(&[1, 2])]);
    assert_eq!(gaps.deadline(), Some(HOLD), "of 4, which came first");
    let left = polls(&mut gaps, [(HOLD - 1, vec![]), (HOLD, vec![])]);
    assert_eq!(left, [vec![], segments(&[4, 5])]);
    assert_eq!(gaps.deadline(), None);
    // What is late then is late, and what follows is expected.
    assert_eq!(polls(&mut gaps, [(HOLD, segments(&[3, 6, 7]))]), [segments(&[3, 6, 7])]);
    assert_eq!((gaps.counters().timed_out, gaps.counters().filled), (2, 1));
}

#[test]
fn without_a_time_nothing_waits() {
    let mut gaps = gaps(GapLimits::new(0));
    assert_eq!(polls(&mut gaps, [(0, segments(&[0, 3, 1, 2]))]), [segments(&[0, 3, 1, 2])]);
    assert_eq!(gaps.counters().waited, 0);
}

#[test]
fn control_packets_and_fragments_overtake_nothing_that_waits() {
    let with = |flags: u16| Frame::tcp4(900, PAYLOAD).with_tcp(|tcp| tcp.flags |= flags).to_bytes();
    let ack = Frame::tcp4(900, 0).to_bytes();
    let fragment = Frame::tcp4(900, PAYLOAD).with_ipv4(|ip| ip.more_fragments = true).to_bytes();
    for other in [with(FIN), with(SYN), with(RST), ack, fragment] {
        let mut gaps = gaps(GapLimits::new(HOLD));
        let [left] = polls(
            &mut gaps,
            [(0, [segments(&[0, 3, 2]), vec![other.clone()], segments(&[1])].concat())],
        );
        assert_eq!(left, [segments(&[0, 2, 3]), vec![other], segments(&[1])].concat());
        assert_eq!((gaps.counters().released, gaps.counters().waiting), (2, 0));
    }
}

#[test]
fn others_pass_what_waits() {
    let mut gaps = gaps(GapLimits::new(HOLD));
    let others = [Frame::udp4(10).to_bytes(), Frame::tcp6(1, 10).to_bytes(), vec![0; 60], vec![]];
    let [left, rest] =
        polls(&mut gaps, [(0, [segments(&[0, 2]), others.to_vec()].concat()), (1, segments(&[1]))]);
    assert_eq!((left, rest), ([segments(&[0]), others.to_vec()].concat(), segments(&[1, 2])));
}

#[test]
fn each_limit_gives_a_gap_up() {
    let limits = |change: fn(&mut GapLimits)| {
        let mut limits = GapLimits::new(HOLD);
        change(&mut limits);
        limits
    };
    let length = segment(0).len() as u64;
    assert_eq!(length, 154);
    for limits in [
        limits(|limits| limits.max_packets = 2),
        limits(|limits| limits.max_held_bytes = 2 * 154),
        limits(|limits| limits.max_gap = 300),
    ] {
        let mut gaps = gaps(limits);
        let left = polls(
            &mut gaps,
            [(0, segments(&[0, 3, 2])), (1, segments(&[5])), (2, segments(&[1, 6]))],
        );
        assert_eq!(left, [segments(&[0]), segments(&[2, 3, 5]), segments(&[1, 6])], "{limits:?}");
    }
}

#[test]
fn what_overlaps_what_waits_gives_the_gap_up() {
    for twice in [segment(2), Frame::tcp4(250, PAYLOAD).to_bytes(), Frame::tcp4(150, 60).to_bytes()]
    {
        let mut gaps = gaps(GapLimits::new(HOLD));
        let [left] = polls(&mut gaps, [(0, [segments(&[0, 2]), vec![twice.clone()]].concat())]);
        assert_eq!(left, [segments(&[0, 2]), vec![twice]].concat());
    }
}

#[test]
fn only_so_many_flows_have_gaps_and_are_remembered() {
    let flow = |port: u16, number: u32| {
        Frame::tcp4(1 + number * PAYLOAD as u32, PAYLOAD)
            .with_tcp(|tcp| tcp.source_port = port)
            .to_bytes()
    };
    let mut gaps = gaps(GapLimits::new(HOLD));
    let begun: Vec<_> = (1..=200).map(|port| flow(port, 0)).collect();
    let ahead: Vec<_> = (1..=200).map(|port| flow(port, 2)).collect();
    let [all, left] = polls(&mut gaps, [(0, begun), (0, ahead)]);
    assert_eq!((all.len(), left.len(), gaps.counters().waiting), (200, 200 - 64, 64));
    let mut few = Gaps::new(GapLimits::new(HOLD), HashKey::new(3));
    for port in 1..20_000 {
        let mut came = packets([flow(port, 0), flow(port, 2)]);
        few.receive(&mut came, 0);
    }
    let counters = *few.counters();
    assert!(
        counters.waiting <= 64 && counters.waited > 64,
        "those that sent nothing for longest give way: {counters:?}"
    );
    let mut rest = Vec::new();
    few.release_all(&mut rest);
    assert_eq!((rest.len() as u64, few.counters().waiting), (counters.waiting, 0));
}

/// What a packet is in the streams below: its flow, and its place in it if it is data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Name {
    flow: usize,
    /// When it came, of all.
    came: usize,
    data: Option<u32>,
}

/// What happens to the segments of streams besides being displaced.
#[derive(Clone, Copy, Debug)]
struct Damage {
    /// One in eight is missing.
    lost: bool,
    /// In so many of the streams, one in eight is sent twice.
    doubled: usize,
}

const ANY_DAMAGE: Damage = Damage { lost: true, doubled: usize::MAX };

/// Streams whose segments are displaced, but for the first of each, with other packets between
/// them.
fn displaced(seed: u64, flows: usize, count: usize, damage: Damage) -> Vec<(Name, Vec<u8>)> {
    let mut random = Random::new(seed);
    let starts: Vec<u32> =
        (0..flows).map(|_| random.pick(&[1, 0x7fff_ff00, 0xffff_ff00])).collect();
    let mut next = vec![0; flows];
    let mut sent: Vec<(u64, usize, Option<u32>)> = (0..count)
        .map(|number| {
            let reach = random.pick(&[0, 0, 3, 30]);
            let delay = random.below(2 * reach + 1);
            let flow = random.below(flows as u64) as usize;
            let step = match random.below(8) {
                0 if flow < damage.doubled => 0,
                1 if damage.lost => 2,
                _ => 1,
            };
            let data = (random.below(20) > 0).then_some(next[flow]);
            let first = data == Some(0);
            if data.is_some() {
                next[flow] += step;
            }
            (number as u64 * 2 + if first { 0 } else { delay }, flow, data)
        })
        .collect();
    sent.sort_by_key(|&(time, ..)| time);
    sent.into_iter()
        .enumerate()
        .map(|(came, (_, flow, data))| {
            let sequence = starts[flow].wrapping_add(data.unwrap_or(0) * PAYLOAD as u32);
            let frame = Frame::tcp4(sequence, if data.is_some() { PAYLOAD } else { 0 });
            let frame =
                frame.with_id(came as u16).with_tcp(|tcp| tcp.source_port = 1_000 + flow as u16);
            (Name { flow, came, data }, frame.to_bytes())
        })
        .collect()
}

/// The data of displaced streams, in the order in which it leaves, with room and time for any gap.
struct Patient {
    came: Vec<Name>,
    left: Vec<Name>,
    /// How much of that left only when it was asked for.
    rest: usize,
    counters: GapCounters,
}

impl Patient {
    fn new(seed: u64, flows: usize, poll: usize, damage: Damage) -> Self {
        let came: Vec<_> = displaced(seed, flows, 150, damage)
            .into_iter()
            .filter(|(name, _)| name.data.is_some())
            .collect();
        let mut limits = GapLimits::new(1_000_000);
        limits.max_packets = 150;
        let mut gaps = gaps(limits);
        let names: HashMap<Vec<u8>, Name> =
            came.iter().map(|(name, bytes)| (bytes.clone(), *name)).collect();
        let mut left = Vec::new();
        for batch in came.chunks(poll) {
            let mut packets = packets(batch.iter().map(|(_, bytes)| bytes.clone()));
            gaps.receive(&mut packets, 0);
            left.extend(bytes_named(&names, &packets));
        }
        let counters = *gaps.counters();
        let mut rest = Vec::new();
        gaps.release_all(&mut rest);
        left.extend(bytes_named(&names, &rest));
        assert_eq!(left.len(), came.len());
        Patient {
            came: came.into_iter().map(|(name, _)| name).collect(),
            left,
            rest: rest.len(),
            counters,
        }
    }

    /// The numbers of a stream's segments, as they came or as they left.
    fn of(names: &[Name], flow: usize) -> Vec<u32> {
        names.iter().filter(|name| name.flow == flow).filter_map(|name| name.data).collect()
    }

    /// How many segments came while one before them was missing, if none came twice.
    fn ahead(&self, flow: usize) -> u64 {
        let (mut missing, mut seen, mut ahead) = (0, HashSet::new(), 0);
        for number in Self::of(&self.came, flow) {
            ahead += u64::from(number > missing);
            seen.insert(number);
            while seen.contains(&missing) {
                missing += 1;
            }
        }
        ahead
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 500 }, ..ProptestConfig::default() })]

    /// Nothing is lost or doubled or late; what came in order leaves in order, and nothing passes a
    /// packet that is not data, nor is passed by it.
    #[test]
    fn order_is_never_worse_than_it_came(
        seed: u64, flows in 1usize..6, poll in 1usize..20, hold in 0u64..40, packets_limit in 1u32..20, bytes in 100u64..5_000, max_gap in 50u32..5_000
    ) {
        let came = displaced(seed, flows, 150, ANY_DAMAGE);
        let mut limits = GapLimits::new(hold);
        (limits.max_packets, limits.max_held_bytes, limits.max_gap) = (packets_limit, bytes, max_gap);
        let mut gaps = gaps(limits);
        let names: HashMap<Vec<u8>, Name> = came.iter().map(|(name, bytes)| (bytes.clone(), *name)).collect();
        let mut left: Vec<(Name, u64)> = Vec::new();
        let mut now = 0;
        let mut times = vec![0; came.len()];
        for batch in came.chunks(poll) {
            batch.iter().for_each(|(name, _)| times[name.came] = now);
            let mut packets = packets(batch.iter().map(|(_, bytes)| bytes.clone()));
            gaps.receive(&mut packets, now);
            left.extend(bytes_named(&names, &packets).map(|name| (name, now)));
            let counters = *gaps.counters();
            prop_assert_eq!(counters.waited, counters.filled + counters.timed_out + counters.released + counters.waiting);
            prop_assert_eq!(left.len() as u64 + counters.waiting, (times.len().min(batch.last().map_or(0, |last| last.0.came + 1))) as u64);
            prop_assert!(counters.waiting_bytes <= bytes);
            prop_assert_eq!(gaps.deadline().is_some(), counters.waiting > 0);
            now += 7;
        }
        let mut rest = Vec::new();
        gaps.release_all(&mut rest);
        left.extend(bytes_named(&names, &rest).map(|name| (name, now)));
        prop_assert_eq!(left.len(), came.len());
        for (index, &(late, at)) in left.iter().enumerate() {
            // A poll later at most, since nothing happens between polls here.
            prop_assert!(at - times[late.came] < hold + 7, "{late:?} waited too long");
            for &(early, _) in &left[..index] {
                // The later one came first.
                if late.flow == early.flow && late.came < early.came {
                    prop_assert!(matches!((late.data, early.data), (Some(late), Some(early)) if early < late), "{early:?} left before {late:?}");
                }
            }
        }
    }

    /// With room and time, every displaced segment comes back to its place, and none waits that
    /// need not.
    #[test]
    fn with_time_enough_every_stream_is_in_order(seed: u64, flows in 1usize..6, poll in 1usize..20) {
        let patient = Patient::new(seed, flows, poll, Damage { lost: false, doubled: 0 });
        for flow in 0..flows {
            let numbers = Patient::of(&patient.left, flow);
            prop_assert!(numbers.iter().copied().eq(0..numbers.len() as u32), "flow {flow}: {numbers:?}");
        }
        let ahead: u64 = (0..flows).map(|flow| patient.ahead(flow)).sum();
        prop_assert_eq!((patient.counters.waited, patient.counters.filled, patient.rest), (ahead, ahead, 0));
    }

    /// What is behind a lost segment waits to the end, so that order holds all the same.
    #[test]
    fn a_lost_segment_holds_up_what_follows_it(seed: u64, flows in 1usize..6, poll in 1usize..20) {
        let patient = Patient::new(seed, flows, poll, Damage { lost: true, doubled: 0 });
        let mut behind = 0;
        for flow in 0..flows {
            let numbers = Patient::of(&patient.left, flow);
            prop_assert!(numbers.is_sorted(), "flow {flow}: {numbers:?}");
            behind += numbers.iter().enumerate().filter(|&(place, &number)| place as u32 != number).count();
        }
        prop_assert_eq!((patient.counters.released, patient.rest), (0, behind));
    }

    /// A segment that comes twice while it waits gives the gap up, of its own stream only; one that
    /// comes again later is late.
    #[test]
    fn a_doubled_segment_gives_up_no_gap_of_another_stream(seed: u64, flows in 2usize..6, poll in 1usize..20, lost: bool) {
        let patient = Patient::new(seed, flows, poll, Damage { lost, doubled: 1 });
        for flow in 0..flows {
            let mut numbers = Patient::of(&patient.left, flow);
            if flow == 0 {
                let mut seen = HashSet::new();
                numbers.retain(|&number| seen.insert(number));
            }
            let gave_up = flow == 0 && patient.counters.released > 0;
            prop_assert!(gave_up || numbers.is_sorted(), "flow {flow}: {numbers:?}");
        }
    }
}

fn bytes_named<'a>(
    names: &'a HashMap<Vec<u8>, Name>,
    packets: &[RxPacket<Vec<u8>>],
) -> impl Iterator<Item = Name> + use<'a> {
    bytes(packets).into_iter().map(|bytes| names[&bytes])
}
