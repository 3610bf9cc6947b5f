//! A campaign tests the engine without a kernel, in bulk: packets are aggregated, segmented again
//! and compared with the original packets.
//!
//! Every packet must come back once, byte for byte, with its VLAN tag, with a complete or partial
//! checksum as before, and in the order of its flow. Engines are used in all ways (`face`).
//!
//! LRO's super-packets cannot be segmented into the original packets. They must hold the payload in
//! order, and be valid packets of the flow.

mod face;
mod framed;
mod judge;
mod pool;

use std::collections::BTreeMap;
use std::rc::Rc;

use superpacket::Layer;
use superpacket::packet::RxPacket;
use superpacket_traffic::random::Random;

use crate::frames::InputFrame;
use crate::run::RunFault;
use face::Face;
use judge::Judge;
use pool::{PollPool, PollUse, PoolFrame};

/// Counts of polls and packets in a campaign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CampaignTotals {
    /// Number of polls of all engines.
    pub polls: u64,
    /// Number of packets given to the engines.
    pub packets: u64,
    /// Number of super-packets that the engines made.
    pub super_packets: u64,
    /// Packets that merged, and came back when the super-packet was segmented.
    pub merged: u64,
    /// Merged packets that came back with other IPv4 identifications: the original ones stay the
    /// same, which no virtio header can express.
    pub renumbered: u64,
}

impl std::ops::AddAssign for CampaignTotals {
    fn add_assign(&mut self, other: CampaignTotals) {
        self.polls += other.polls;
        self.packets += other.packets;
        self.super_packets += other.super_packets;
        self.merged += other.merged;
        self.renumbered += other.renumbered;
    }
}

/// The bytes of a frame with its position in the order of arrival, or of a super-packet with its
/// number.
struct NumberedBuffer(usize, Rc<Vec<u8>>);

impl AsRef<[u8]> for NumberedBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.1
    }
}

/// An endless sequence of polls, each given to a random engine and checked, reproducible by its
/// seed.
pub struct Campaign {
    pool: PollPool,
    random: Random,
    faces: Vec<Face>,
    judge: Judge,
    totals: CampaignTotals,
    by_face: BTreeMap<&'static str, CampaignTotals>,
}

impl Campaign {
    /// Creates the campaign of a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let faces = Face::all(&mut random);
        let pool = PollPool::new(random.bits());
        Campaign {
            pool,
            random,
            faces,
            judge: Judge::default(),
            totals: CampaignTotals::default(),
            by_face: BTreeMap::new(),
        }
    }

    /// Aggregates one poll, segments the result, and compares the segments with the original
    /// frames. Returns the counts of all polls so far.
    ///
    /// # Errors
    /// The first difference, with the frames of the poll.
    pub fn poll(&mut self) -> Result<CampaignTotals, RunFault> {
        let chosen = self.random.below(self.faces.len() as u64) as usize;
        let face = &mut self.faces[chosen];
        let used = self.pool.next_use();
        self.judge.begin(&used);
        face.aggregate(&used, &mut self.judge, &mut self.random);
        self.judge.end(&used);
        let poll = CampaignTotals {
            polls: 1,
            packets: used.order.len() as u64,
            super_packets: self.judge.super_packets,
            merged: self.judge.merged,
            renumbered: self.judge.renumbered,
        };
        self.totals += poll;
        *self.by_face.entry(face.name()).or_default() += poll;
        match self.judge.problem.take() {
            None => Ok(self.totals),
            Some(text) => {
                let text = format!(
                    "{} (engine {chosen}), poll {}: {text}",
                    face.name(),
                    self.totals.polls
                );
                Err(RunFault { text, frames: frames(&used) })
            }
        }
    }

    /// Returns the counts of each way of using an engine, by the name of the way.
    pub fn by_face(&self) -> &BTreeMap<&'static str, CampaignTotals> {
        &self.by_face
    }
}

fn packet(place: usize, frame: &PoolFrame) -> RxPacket<NumberedBuffer> {
    let mut packet = RxPacket::new(NumberedBuffer(place, Rc::clone(&frame.bytes)));
    (packet.layer, packet.checksum, packet.vlan) = (frame.layer, frame.checksum, frame.vlan);
    packet
}

/// Returns the frames of a poll in the order of arrival, to be written to a capture. Frames that
/// start with an IP header get an Ethernet header of zeros, and stripped VLAN tags are inserted
/// again.
fn frames(used: &PollUse<'_>) -> Vec<InputFrame> {
    let whole = |frame: &PoolFrame| {
        let mut bytes = frame.bytes.to_vec();
        if frame.layer == Layer::Ip {
            let kind: [u8; 2] = if bytes.first().is_some_and(|first| first >> 4 == 6) {
                [0x86, 0xdd]
            } else {
                [8, 0]
            };
            bytes.splice(0..0, [0; 12].into_iter().chain(kind));
        }
        if let Some(tag) = frame.vlan.filter(|_| bytes.len() >= 12) {
            bytes.splice(12..12, [tag.protocol.to_be_bytes(), tag.control.to_be_bytes()].concat());
        }
        InputFrame::new(bytes)
    };
    used.order.iter().map(|&frame| whole(&used.frames[frame])).collect()
}

#[cfg(test)]
mod tests {
    use superpacket::packet::VlanTag;
    use superpacket::{Aggregator, HashKey, Policy, SuperPacket};

    use super::*;

    /// A sink as a trait object: the type for which the engine compiles each aggregator in any
    /// case.
    type Look<'l> = dyn FnMut(SuperPacket<'_, NumberedBuffer>) -> Result<(), ()> + 'l;

    /// Frames with their positions in the order of arrival.
    type Frames = Vec<(usize, PoolFrame)>;

    /// Returns the problem that the judge finds if the engine receives frames changed by `change`;
    /// `None` if it finds none.
    fn judged(change: &dyn Fn(&mut Frames)) -> Option<String> {
        let mut pool = PollPool::new(3);
        let used = pool.next_use();
        let mut judge = Judge::default();
        judge.begin(&used);
        let mut frames: Frames =
            used.order.iter().map(|&frame| used.frames[frame].clone()).enumerate().collect();
        change(&mut frames);
        let mut batch = frames.iter().map(|(place, frame)| packet(*place, frame)).collect();
        let mut engine = Aggregator::new(Policy::gro_with_udp(), HashKey::new(1));
        let mut check_packet = |packet: SuperPacket<'_, NumberedBuffer>| {
            judge.check_packet(&used, &packet, |buffer: &NumberedBuffer| buffer.0, None);
            Ok(())
        };
        let sink: &mut Look<'_> = &mut check_packet;
        engine
            .receive_batch(&mut batch, 0, sink)
            .and_then(|()| engine.poll_end(0, sink))
            .expect("it takes all");
        judge.end(&used);
        judge.problem
    }

    #[test]
    fn the_judge_finds_what_is_lost_changed_or_overtakes() {
        assert_eq!(judged(&|_| {}), None);
        assert_eq!(
            judged(&|frames| drop(frames.remove(9))).as_deref(),
            Some("frame 9 never came back")
        );
        let other = |frames: &mut Frames| {
            for (_, frame) in frames {
                let mut bytes = frame.bytes.to_vec();
                bytes[1] ^= 2;
                frame.bytes = Rc::new(bytes);
            }
        };
        let problem = judged(&other).expect("other bytes");
        assert!(
            problem.contains("came back as") || problem.contains("is not what it was"),
            "{problem}"
        );
        let problem = judged(&|frames| frames.reverse()).expect("another order");
        assert!(problem.contains("of its flow"), "{problem}");
        let tag = |frames: &mut Frames| {
            frames
                .iter_mut()
                .for_each(|(_, frame)| frame.vlan = Some(VlanTag { protocol: 0x8100, control: 9 }));
        };
        let problem = judged(&tag);
        assert!(problem.expect("other tags").contains("became"));
    }
}
