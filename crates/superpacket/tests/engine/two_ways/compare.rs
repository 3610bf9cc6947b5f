//! Receives a stream both ways and compares everything that can be seen from outside.

use std::fmt::Debug;

use superpacket::aggregate::{AggregateCounters, HashKey, Mode, Policy, Reason, Storage};
use superpacket::packet::RxPacket;
use superpacket::segment::{ChecksumForm, Gso, GsoKind, SegmentSize};
use superpacket::super_packet::SuperPacket;

use super::traffic::Arrival;
use crate::support::{Aggregator, Seen};

/// What the segments of a packet hold that came as a super-packet.
const SEGMENT: SegmentSize = SegmentSize::new(50).expect("not 0");

/// Which way packets join their flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Those that come in sequence join in runs.
    InRuns,
    /// Each is held against the rules by itself, forced by an empty buffer behind it.
    OneByOne,
}

impl Way {
    fn receive(self, arrival: &Arrival) -> RxPacket<Vec<u8>> {
        let mut packet = arrival.packet.receive();
        packet.gso = arrival.super_packet.then_some(Gso::new(GsoKind::Tcp4, SEGMENT));
        if self == Way::OneByOne {
            packet.push(Vec::new()).expect("the streams leave room for one more buffer");
        }
        packet
    }

    /// The empty buffer counts as a fragment twice: that of the packet that a flow began with is
    /// kept, as it may have to leave as it came, and that of the packet which wants to join is
    /// counted before it is dropped. So with two fragments more, the limit is reached at the same
    /// packet.
    fn policy(self, policy: Policy) -> Policy {
        match self {
            Way::InRuns => policy,
            Way::OneByOne => {
                policy.with_max_fragments(policy.max_fragments.max(1).saturating_add(2))
            }
        }
    }
}

/// What became of a stream.
#[derive(Debug)]
pub struct Received {
    /// Without their empty pieces.
    pub outputs: Vec<Seen>,
    /// After each batch, and after all have left.
    counters: Vec<AggregateCounters>,
    /// Empty pieces of each packet that came out.
    empty: Vec<usize>,
}

impl Received {
    pub fn counters(&self) -> AggregateCounters {
        *self.counters.last().expect("counters after the last batch")
    }

    pub fn reasons(&self) -> impl Iterator<Item = Reason> + '_ {
        self.outputs.iter().map(|output| output.metadata.reason)
    }
}

/// How a stream is handed over.
#[derive(Clone, Copy, Debug)]
pub struct Batches {
    /// Packets received at a time.
    pub size: usize,
    /// Batches in a poll.
    pub per_poll: usize,
}

impl Batches {
    /// All packets in one poll, `size` at a time.
    pub fn of(size: usize) -> Self {
        Batches { size, per_poll: usize::MAX }
    }
}

fn receive(way: Way, policy: Policy, arrivals: &[Arrival], batches: Batches) -> Received {
    let mut aggregator = Aggregator::new(way.policy(policy), HashKey::new(0x5eed));
    let mut received = Received { outputs: Vec::new(), counters: Vec::new(), empty: Vec::new() };
    let Received { outputs, counters, empty } = &mut received;
    let mut sink = |packet: SuperPacket<'_, Vec<u8>>| {
        let mut seen = Seen::of(&packet);
        seen.pieces.retain(|&(_, _, length, _)| length > 0);
        empty.push(packet.pieces().len() - seen.pieces.len());
        outputs.push(seen);
    };
    let mut now = 0;
    for (index, batch) in arrivals.chunks(batches.size).enumerate() {
        now = batch.iter().map(|arrival| arrival.packet.time).fold(now, u64::max);
        aggregator.receive_batch(
            &mut batch.iter().map(|arrival| way.receive(arrival)).collect(),
            now,
            &mut sink,
        );
        counters.push(*aggregator.counters());
        if (index + 1) % batches.per_poll == 0 {
            aggregator.poll_end(now, &mut sink);
        }
    }
    aggregator.flush_all(&mut sink);
    counters.push(*aggregator.counters());
    received
}

/// A stream that gave the same both ways.
#[derive(Debug)]
pub struct Compared {
    pub received: Received,
    /// Flow-table entries that need not be looked at in runs. In a stream of one flow: the packets
    /// that joined without a look-up.
    pub probes_saved: u64,
}

/// Receives the packets both ways. Nothing may differ but what the empty buffers must change.
///
/// # Panics
/// If something else does.
pub fn assert_same(policy: Policy, arrivals: &[Arrival], batches: Batches) -> Compared {
    compare(policy, arrivals, batches).unwrap_or_else(|difference| panic!("{difference}"))
}

/// Receives the packets both ways, and gives back what differs as an error.
pub fn compare(policy: Policy, arrivals: &[Arrival], batches: Batches) -> Result<Compared, String> {
    let in_runs = receive(Way::InRuns, policy, arrivals, batches);
    let one_by_one = receive(Way::OneByOne, policy, arrivals, batches);
    differences(policy, &in_runs, &one_by_one)
        .map_err(|difference| format!("{policy:?}, {batches:?}: {difference}"))?;
    let probes_saved = one_by_one.counters().probes - in_runs.counters().probes;
    Ok(Compared { received: in_runs, probes_saved })
}

/// What differs that should not.
fn differences(policy: Policy, in_runs: &Received, one_by_one: &Received) -> Result<(), String> {
    // Byte for byte, field for field: no field of the metadata depends on the way.
    equal(&in_runs.outputs, &one_by_one.outputs, "output")?;
    // The empty buffer of the packet that it began with is still there, unless linear storage has
    // copied what was in the others.
    let kept = |output: &Seen| {
        policy.storage == Storage::Fragments || output.pieces.iter().any(|(buffer, ..)| *buffer)
    };
    let outputs = in_runs.outputs.iter().zip(&in_runs.empty);
    let expected: Vec<_> =
        outputs.map(|(output, empty)| empty + usize::from(kept(output))).collect();
    equal(&expected, &one_by_one.empty, "empty pieces of output")?;
    // A run saves look-ups: that is what it is for. All else is counted the same.
    let without_probes = |counters: &AggregateCounters| {
        let mut counters = *counters;
        counters.probes = 0;
        counters
    };
    let counters =
        |received: &Received| received.counters.iter().map(without_probes).collect::<Vec<_>>();
    equal(&counters(in_runs), &counters(one_by_one), "counters after batch")?;
    let probes = [in_runs, one_by_one].map(|received| received.counters().probes);
    if probes[0] > probes[1] {
        Err(format!("table entries looked at: {} in runs, {} one by one", probes[0], probes[1]))
    } else {
        Ok(())
    }
}

/// The first difference between two lists.
fn equal<T: PartialEq + Debug>(in_runs: &[T], one_by_one: &[T], what: &str) -> Result<(), String> {
    match in_runs.iter().zip(one_by_one).position(|(left, right)| left != right) {
        Some(index) => Err(format!(
            "{what} {index}\n  in runs:    {:?}\n  one by one: {:?}",
            in_runs[index], one_by_one[index]
        )),
        None if in_runs.len() != one_by_one.len() => {
            Err(format!("{what}: {} in runs, {} one by one", in_runs.len(), one_by_one.len()))
        }
        None => Ok(()),
    }
}

/// Each mode with each storage and each form of checksum.
pub fn policies() -> Vec<Policy> {
    let modes = [
        Policy::gro(),
        Policy::gro_with_udp(),
        Policy::gro_with_udp().with_merge_udp_without_checksum(),
        Policy::lro(),
        Policy::lro_with_acks(),
    ];
    let mut policies = Vec::new();
    for policy in modes {
        for storage in [Storage::Fragments, Storage::Linear] {
            policies.extend(
                [ChecksumForm::Partial, ChecksumForm::Full]
                    .map(|checksum| policy.with_storage(storage).with_checksum(checksum)),
            );
        }
    }
    policies
}

/// Those of them that absorb pure ACKs.
pub fn absorbing() -> Vec<Policy> {
    policies().into_iter().filter(|policy| policy.mode == Mode::Lro { acks: true }).collect()
}

pub fn is_lro(policy: &Policy) -> bool {
    matches!(policy.mode, Mode::Lro { .. })
}
