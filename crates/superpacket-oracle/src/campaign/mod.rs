//! The engine against itself, in bulk: packets are aggregated, cut again and compared with what
//! came in.
//!
//! Of each poll: every packet comes back once, byte for byte, with its VLAN tag and the form of its
//! checksum, and those of a flow in their order.

mod pool;

use std::collections::HashMap;
use std::rc::Rc;

use superpacket::packet::RxPacket;
use superpacket::segment::{ChecksumForm, ChecksumOutput};
use superpacket::{Aggregator, HashKey, Layer, Policy, RxChecksum, SegmentOptions, Segmenter, SuperPacket};
use superpacket_traffic::random::Random;

use crate::compare::hexadecimal;
use crate::frames::Input;
use crate::run::Fault;
use pool::{Frame, Pool, Use};

/// What was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Polls.
    pub polls: u64,
    /// Packets in.
    pub packets: u64,
    /// Super-packets that they merged in.
    pub super_packets: u64,
    /// Packets that merged, and came back by segmentation.
    pub merged: u64,
}

/// A frame and its place in the order of arrival.
struct Numbered(usize, Rc<Vec<u8>>);

impl AsRef<[u8]> for Numbered {
    fn as_ref(&self) -> &[u8] {
        &self.1
    }
}

/// Polls without end, of one seed, through one engine after another.
pub struct Campaign {
    pool: Pool,
    random: Random,
    engines: Vec<Aggregator<Numbered>>,
    judge: Judge,
    batch: Vec<RxPacket<Numbered>>,
    totals: Totals,
}

impl Campaign {
    /// Makes the campaign of a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let base = Policy::gro_with_udp();
        let policies = [
            base,
            base.with_partial_checksums(),
            base.with_partial_checksums().with_merge_udp_without_checksum(),
            base.with_merge_uneven().with_max_bytes(u32::MAX).with_jumbo_option(),
            base.with_max_packets(7).with_max_bytes(9_000).with_max_flows(5),
        ];
        let mut key = || HashKey::new(u128::from(random.bits()) << 64 | u128::from(random.bits()));
        let engines = policies.into_iter().map(|policy| Aggregator::new(policy, key())).collect();
        Campaign { pool: Pool::new(random.bits()), random, engines, judge: Judge::default(), batch: Vec::new(), totals: Totals::default() }
    }

    /// Aggregates a poll, cuts what comes of it, and compares.
    ///
    /// # Errors
    /// What did not come back as it came in, with the frames.
    pub fn poll(&mut self) -> Result<Totals, Fault> {
        let engine = self.random.below(self.engines.len() as u64) as usize;
        let used = self.pool.next_use();
        self.judge.begin(&used);
        self.batch.extend(used.order.iter().enumerate().map(|(place, &frame)| packet(place, &used.frames[frame])));
        let judge = &mut self.judge;
        let mut sink = |packet: SuperPacket<'_, Numbered>| judge.look(&used, &packet);
        self.engines[engine].receive_batch(&mut self.batch, 0, &mut sink);
        self.engines[engine].poll_end(0, &mut sink);
        self.judge.end(&used);
        self.totals.polls += 1;
        self.totals.packets += used.order.len() as u64;
        self.totals.super_packets += self.judge.super_packets;
        self.totals.merged += self.judge.merged;
        match self.judge.problem.take() {
            None => Ok(self.totals),
            Some(text) => Err(Fault { text: format!("engine {engine}, poll {}: {text}", self.totals.polls), frames: frames(&used) }),
        }
    }
}

fn packet(place: usize, frame: &Frame) -> RxPacket<Numbered> {
    let mut packet = RxPacket::new(Numbered(place, Rc::clone(&frame.bytes)));
    (packet.layer, packet.checksum, packet.vlan) = (frame.layer, frame.checksum, frame.vlan);
    packet
}

/// The frames of a poll in their order, for a capture: a packet that starts at IP gets an Ethernet
/// header of zeros, and what a device took out is put back.
fn frames(used: &Use<'_>) -> Vec<Input> {
    let whole = |frame: &Frame| {
        let mut bytes = frame.bytes.to_vec();
        if frame.layer == Layer::Ip {
            let kind: [u8; 2] = if bytes.first().is_some_and(|first| first >> 4 == 6) { [0x86, 0xdd] } else { [8, 0] };
            bytes.splice(0..0, [0; 12].into_iter().chain(kind));
        }
        if let Some(tag) = frame.vlan.filter(|_| bytes.len() >= 12) {
            bytes.splice(12..12, [tag.protocol.to_be_bytes(), tag.control.to_be_bytes()].concat());
        }
        Input::new(bytes)
    };
    used.order.iter().map(|&frame| whole(&used.frames[frame])).collect()
}

/// Are these the same bytes? Where they lie in one place, nobody can have written to them.
fn is_same(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && (std::ptr::eq(left, right) || left == right)
}

/// What has come back of a poll.
#[derive(Default)]
struct Judge {
    segmenter: Segmenter,
    /// For each place in the order of arrival: it has come back.
    back: Vec<bool>,
    /// For each flow, the place of what came back last.
    latest: Vec<usize>,
    places: Vec<usize>,
    emitted: Vec<usize>,
    /// Flows, as they were when generated, of which frames left in another order.
    overtaken: Vec<usize>,
    super_packets: u64,
    merged: u64,
    problem: Option<String>,
}

impl Judge {
    fn begin(&mut self, used: &Use<'_>) {
        self.back.clear();
        self.back.resize(used.order.len(), false);
        self.latest.clear();
        self.latest.resize(used.frames.len(), 0);
        self.emitted.clear();
        self.overtaken.clear();
        (self.super_packets, self.merged) = (0, 0);
    }

    fn fail(&mut self, text: impl FnOnce() -> String) {
        if self.problem.is_none() {
            self.problem = Some(text());
        }
    }

    fn look(&mut self, used: &Use<'_>, packet: &SuperPacket<'_, Numbered>) {
        let metadata = packet.metadata;
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        places.extend(packet.pieces().iter().filter_map(|piece| piece.buffer().map(|buffer| buffer.0)));
        places.dedup();
        let frame = |place: usize| &used.frames[used.order[place]];
        if places.len() != metadata.packets as usize {
            self.fail(|| format!("{places:?} in a packet that says {}", metadata.packets));
        }
        for &place in &places {
            if std::mem::replace(&mut self.back[place], true) {
                self.fail(|| format!("frame {place} came back twice"));
            }
            if frame(place).vlan != metadata.vlan || frame(place).layer != metadata.layer {
                self.fail(|| format!("frame {place}: {:?} {:?} became {metadata:?}", frame(place).vlan, frame(place).layer));
            }
            // One more than the place, so that 0 is none.
            let flow = frame(place).flow;
            if std::mem::replace(&mut self.latest[flow], place + 1) > place + 1 {
                self.overtaken.push(flow);
            }
        }
        self.emitted.extend_from_slice(&places);
        if let [place] = places[..] {
            let same = packet.contiguous().is_some_and(|bytes| is_same(bytes, &frame(place).bytes));
            if !same {
                self.fail(|| format!("frame {place}, alone, is not what it was"));
            }
        } else {
            self.cut(used, packet, &places);
        }
        self.places = places;
    }

    fn cut(&mut self, used: &Use<'_>, packet: &SuperPacket<'_, Numbered>, places: &[usize]) {
        self.super_packets += 1;
        self.merged += places.len() as u64;
        let partial = packet.metadata.gso.is_some_and(|gso| gso.checksum == ChecksumForm::Partial);
        let (mut different, mut count) = (None, 0);
        let sink = |segment: superpacket::segment::Segment<'_, _>| {
            let Some(frame) = places.get(count).map(|&place| &used.frames[used.order[place]]) else {
                count += 1;
                return;
            };
            let header = segment.header();
            let mut rest = &frame.bytes[..];
            let mut same = matches!(frame.checksum, RxChecksum::Partial { .. }) == partial;
            for part in std::iter::once(header).chain(segment.payload()) {
                same &= rest.get(..part.len()).is_some_and(|rest| is_same(part, rest));
                rest = rest.get(part.len()..).unwrap_or(&[]);
            }
            if (!same || !rest.is_empty()) && different.is_none() {
                let mut bytes = Vec::new();
                segment.copy_to(&mut bytes);
                different = Some((places[count], bytes));
            }
            count += 1;
        };
        let options = SegmentOptions::default().with_checksum(ChecksumOutput::AsMerged);
        let cut = self.segmenter.segment(packet, &options, sink);
        if let Err(error) = cut {
            self.fail(|| format!("{places:?} merged, and cannot be cut: {error}"));
        } else if let Some((place, bytes)) = different {
            let was = &used.frames[used.order[place]];
            self.fail(|| {
                format!("frame {place} of {places:?}: {} {:?} came back as {}", hexadecimal(&was.bytes), was.checksum, hexadecimal(&bytes))
            });
        } else if count != places.len() {
            self.fail(|| format!("{places:?} became {count} segments"));
        }
    }

    fn end(&mut self, used: &Use<'_>) {
        if let Some(missing) = self.back.iter().position(|back| !back) {
            self.fail(|| format!("frame {missing} never came back"));
        }
        if !self.overtaken.is_empty()
            && let Some((first, second)) = self.overtaking(used)
        {
            self.fail(|| format!("frame {second} left before frame {first} of its flow"));
        }
    }

    /// Two frames that left in another order than they came, by the flows that they belong to now.
    fn overtaking(&self, used: &Use<'_>) -> Option<(usize, usize)> {
        let mut latest: HashMap<pool::Flow, usize> = HashMap::new();
        // A frame that is varied may be of another flow than it was.
        let frame = |place: usize| &used.frames[used.order[place]];
        let suspects = self.emitted.iter().filter(|&&place| frame(place).damaged || self.overtaken.contains(&frame(place).flow));
        for &place in suspects {
            let latest = latest.entry(frame(place).flow_key()).or_insert(place);
            if *latest > place {
                return Some((place, *latest));
            }
            *latest = place;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use superpacket::packet::VlanTag;

    use super::*;

    /// The type of sink that each aggregator is compiled for anyway.
    type Look<'l> = dyn FnMut(SuperPacket<'_, Numbered>) -> Result<(), ()> + 'l;

    /// Frames by their places.
    type Frames = Vec<(usize, Frame)>;

    /// What the judge says of a poll of which the engine gets something else.
    fn judged(change: &dyn Fn(&mut Frames)) -> Option<String> {
        let mut pool = Pool::new(3);
        let used = pool.next_use();
        let mut judge = Judge::default();
        judge.begin(&used);
        let mut frames: Frames = used.order.iter().map(|&frame| used.frames[frame].clone()).enumerate().collect();
        change(&mut frames);
        let mut batch = frames.iter().map(|(place, frame)| packet(*place, frame)).collect();
        let mut engine = Aggregator::new(Policy::gro_with_udp(), HashKey::new(1));
        let mut look = |packet: SuperPacket<'_, Numbered>| {
            judge.look(&used, &packet);
            Ok(())
        };
        let sink: &mut Look<'_> = &mut look;
        engine.receive_batch(&mut batch, 0, sink).and_then(|()| engine.poll_end(0, sink)).expect("it takes all");
        judge.end(&used);
        judge.problem
    }

    #[test]
    fn the_judge_finds_what_is_lost_changed_or_overtakes() {
        assert_eq!(judged(&|_| {}), None);
        assert_eq!(judged(&|frames| drop(frames.remove(9))).as_deref(), Some("frame 9 never came back"));
        let other = |frames: &mut Frames| {
            for (_, frame) in frames {
                let mut bytes = frame.bytes.to_vec();
                bytes[1] ^= 2;
                frame.bytes = Rc::new(bytes);
            }
        };
        let problem = judged(&other).expect("other bytes");
        assert!(problem.contains("came back as") || problem.contains("is not what it was"), "{problem}");
        let problem = judged(&|frames| frames.reverse()).expect("another order");
        assert!(problem.contains("of its flow"), "{problem}");
        let tag = |frames: &mut Frames| {
            frames.iter_mut().for_each(|(_, frame)| frame.vlan = Some(VlanTag { protocol: 0x8100, control: 9 }));
        };
        let problem = judged(&tag);
        assert!(problem.expect("other tags").contains("became"));
    }
}
