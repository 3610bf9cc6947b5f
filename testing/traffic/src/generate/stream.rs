//! Interleaves bursts of several flows in rounds, and applies the impairments.

use std::collections::VecDeque;

use super::burst::burst;
use super::flow::{GeneratedFlow, leave_checksum_to_device};
use super::vary::vary;
use super::{Checksum, Combination, Config, Generated, ReportedState};
use crate::frame::{self, Frame, Icmp, Ip, Sctp, Transport};
use crate::random::Random;

/// An endless sequence of packets; see [`super::stream()`].
pub struct Stream {
    config: Config,
    random: Random,
    flows: Vec<GeneratedFlow>,
    next_number: u32,
    cursor: usize,
    queue: VecDeque<Generated>,
    time_ns: u64,
}

/// A packet that has not been serialized yet.
struct Pending {
    frame: Frame,
    knowledge: ReportedState,
    stripped_vlan: Option<(u16, u16)>,
    combination: Combination,
    flow: u32,
}

impl Stream {
    pub(super) fn new(seed: u64, config: Config) -> Self {
        assert!(
            config.flows > 0 && config.lifetime > 0 && !config.combinations.is_empty(),
            "no flows: {config:?}"
        );
        assert!(1 <= config.burst.0 && config.burst.0 <= config.burst.1, "no bursts: {config:?}");
        let mut random = Random::new(seed);
        let flows = (0..config.flows as u32)
            .map(|number| GeneratedFlow::new(number, &config, &mut random))
            .collect();
        let next_number = config.flows as u32;
        Stream { config, random, flows, next_number, cursor: 0, queue: VecDeque::new(), time_ns: 0 }
    }

    /// Lets one to three flows send a burst each, and queues the packets that arrive.
    fn round(&mut self) {
        let flows = self.random.between(1, 3).min(self.flows.len());
        let bursts = (0..flows).map(|_| self.next_burst()).collect();
        let mut sent = Vec::new();
        for pending in interleave(bursts, &mut self.random) {
            self.impair(pending, &mut sent);
        }
        for index in 0..sent.len() {
            if self.random.chance(self.config.impairments.reorder) {
                let other = (index + self.random.between(1, 4)).min(sent.len() - 1);
                sent.swap(index, other);
            }
        }
        self.time_ns += self.random.between(20_000, 1_000_000) as u64;
        for mut packet in sent {
            // The time on a wire of 10 Gbit/s.
            self.time_ns += packet.bytes.len() as u64 * 4 / 5 + self.random.below(200);
            packet.time_ns = self.time_ns;
            self.queue.push_back(packet);
        }
    }

    fn next_burst(&mut self) -> VecDeque<Pending> {
        let index = self.cursor % self.flows.len();
        self.cursor += 1;
        let flow = &mut self.flows[index];
        let (stripped_vlan, knowledge, combination, number) =
            (flow.stripped_vlan, flow.knowledge, flow.combination, flow.number);
        let sent = burst(flow, &self.config, &mut self.random);
        if flow.left == 0 {
            // Consecutive numbers use the combinations in turn, so no slot keeps the same one.
            *flow = GeneratedFlow::new(self.next_number, &self.config, &mut self.random);
            self.next_number += 1;
        }
        let pending = |(direction, frame)| Pending {
            frame,
            knowledge,
            stripped_vlan,
            combination,
            flow: number * 2 + direction as u32,
        };
        sent.into_iter().map(pending).collect()
    }

    /// Applies all impairments to a packet except reordering.
    fn impair(&mut self, mut pending: Pending, sent: &mut Vec<Generated>) {
        let (impairments, random) = (self.config.impairments, &mut self.random);
        if random.chance(impairments.other_protocol) {
            let other_protocol = other_protocol(&pending.frame, random);
            sent.push(serialize(&pending, other_protocol));
        }
        if random.chance(impairments.drop) {
            return;
        }
        if random.chance(impairments.other_checksum_state) {
            other_checksum_state(&mut pending, random);
        }
        if random.chance(impairments.other_vlan) {
            pending.stripped_vlan = match pending.stripped_vlan {
                Some((protocol, control)) if random.chance(0.5) => {
                    Some((protocol, control ^ random.pick(&[1, 0x1000, 0x8000])))
                }
                Some(_) => None,
                None => Some((0x8100, random.below(4_095) as u16)),
            };
        }
        if random.chance(impairments.other_field) {
            vary(&mut pending.frame, random);
        }
        if random.chance(impairments.pad) {
            let length = random.between(1, 46);
            pending.frame.trailer = match random.below(4) {
                0 => vec![0; length],
                1 => random.bytes(length),
                2 => vec![0x55],
                _ => random.bytes(4),
            };
        }
        if random.chance(impairments.fragments) && pending.frame.payload.len() > 16 {
            if let Some(mode) =
                pending.frame.checksum_mut().filter(|mode| **mode == frame::Checksum::Partial)
            {
                *mode = frame::Checksum::Right;
            }
            let (size, id) = (random.between(8, pending.frame.payload.len()), random.bits() as u32);
            for fragment in pending.frame.fragments(size.max(pending.frame.payload.len() / 4), id) {
                sent.push(serialize(&pending, fragment.to_bytes()));
            }
            return;
        }
        let mut bytes = pending.frame.to_bytes();
        if random.chance(impairments.corrupt) {
            // Half of the errors are in the headers.
            let reach = if random.chance(0.5) { bytes.len().min(100) } else { bytes.len() };
            let at = random.below(reach as u64) as usize;
            bytes[at] ^= 1 << random.below(8);
        }
        if random.chance(impairments.truncate) {
            let length = random.between(1, bytes.len());
            bytes.truncate(length);
        }
        let packet = serialize(&pending, bytes);
        if random.chance(impairments.duplicate) {
            sent.push(packet.clone());
        }
        sent.push(packet);
    }
}

impl Iterator for Stream {
    type Item = Generated;

    fn next(&mut self) -> Option<Generated> {
        while self.queue.is_empty() {
            self.round();
        }
        self.queue.pop_front()
    }
}

/// Interleaves bursts in runs of one to eight packets; the order within each burst stays.
fn interleave(mut bursts: Vec<VecDeque<Pending>>, random: &mut Random) -> Vec<Pending> {
    let mut merged = Vec::new();
    while !bursts.is_empty() {
        let chosen = random.below(bursts.len() as u64) as usize;
        let run = random.between(1, 8).min(bursts[chosen].len());
        merged.extend(bursts[chosen].drain(..run));
        bursts.retain(|burst| !burst.is_empty());
    }
    merged
}

fn serialize(pending: &Pending, bytes: Vec<u8>) -> Generated {
    let starts_at_ip = pending.frame.link.is_none();
    let checksum: Checksum = pending.knowledge.true_for(&bytes, starts_at_ip);
    let Pending { stripped_vlan, combination, flow, .. } = *pending;
    Generated { bytes, starts_at_ip, stripped_vlan, checksum, time_ns: 0, combination, flow }
}

/// Makes the device report another checksum state for one packet than for the others of its flow.
fn other_checksum_state(pending: &mut Pending, random: &mut Random) {
    let was = pending.knowledge;
    while pending.knowledge == was {
        pending.knowledge = random.pick(&[
            ReportedState::Unknown,
            ReportedState::Verified,
            ReportedState::Complete,
            ReportedState::Partial,
        ]);
    }
    if pending.knowledge == ReportedState::Partial {
        leave_checksum_to_device(&mut pending.frame);
    } else if was == ReportedState::Partial
        && let Some(mode) = pending.frame.checksum_mut()
    {
        *mode = frame::Checksum::Right;
    }
}

/// Returns a packet of another protocol that belongs to none of the flows, between the same hosts
/// as `frame`.
fn other_protocol(frame: &Frame, random: &mut Random) -> Vec<u8> {
    let mut frame = Frame { trailer: Vec::new(), ..frame.clone() };
    match random.below(5) {
        0 => {
            let kind = if matches!(frame.ip, Ip::V4(_)) { 8 } else { 128 };
            frame.transport = Transport::Icmp(Icmp { kind, ..Icmp::default() });
            frame.payload.truncate(56);
        }
        1 => {
            // One DATA chunk (RFC 9260, section 3.3.1) of 16 bytes.
            frame.transport = Transport::Sctp(Sctp::default());
            frame.payload = [vec![0, 3, 0, 32], random.bytes(28)].concat();
        }
        2 => frame.transport = Transport::Raw(89),
        3 => {
            frame.transport = Transport::Raw(253);
            frame.payload.clear();
        }
        _ => {
            if let Some(ethernet) = &frame.link {
                // An ARP request (RFC 826), padded as on the wire.
                let mut bytes = [
                    &[0xff; 6][..],
                    &ethernet.source,
                    &[0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1],
                    &ethernet.source,
                ]
                .concat();
                bytes.resize(60, 0);
                return bytes;
            }
            frame.transport = Transport::Raw(2);
            frame.payload.truncate(8);
        }
    }
    frame.to_bytes()
}
