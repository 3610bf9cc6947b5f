//! The packets of the original that have not left yet, by their endpoints and in order: as many as
//! fit a bounded memory.

use std::collections::{HashMap, VecDeque};

use superpacket::Simd;
use superpacket::segment::{Gso, GsoKind, MaxSegments, SegmentOptions, Segmenter};

use super::never_left::NeverLeft;
use super::packet::{Packet, PacketStart, segments_of};
use super::pairs::Pairs;
use super::stream::Stream;
use crate::error::Error;

/// Bytes of packets that are kept at most, with what each costs besides.
const MOST_BYTES: usize = 24 << 20;

/// What a packet costs besides its bytes.
const OVERHEAD: usize = size_of::<Entry>() + 64 + Pairs::OVERHEAD;

/// The most segments that a packet is cut into, since each is kept: no network cuts so many.
const MOST_SEGMENTS: MaxSegments = MaxSegments::new(16_384).expect("not zero");

/// So many ages are kept before it is looked which packets have left.
const LEAST_AGES: usize = 4096;

/// A packet is given up for lost, if there must be room for others, when one so many places behind
/// it in the file has left.
const SLACK: u64 = 1024;

/// A packet of the original that has not left.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) packet: Packet,
    /// The first packet that left and holds one of this flow that came later.
    pub(super) overtaken: Option<Overtaken>,
}

/// By what a packet was overtaken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Overtaken {
    /// The packet that left before.
    pub(super) by: u64,
    /// Its origin, which came later.
    pub(super) origin: u64,
    /// That cannot merge, or is of another flow to Linux, which lets it overtake.
    pub(super) refused: bool,
}

/// The packets of the original that are at hand.
pub(super) struct Window<'a> {
    pub(super) stream: Stream<'a>,
    queues: HashMap<u64, VecDeque<Entry>>,
    pub(super) pairs: Pairs,
    /// Endpoints and number of each packet, in order; those that have left are removed later.
    ages: VecDeque<(u64, u64)>,
    /// How many of these there are when those that have left are removed next.
    most_ages: usize,
    held: usize,
    /// The latest that has left.
    latest: u64,
    ended: bool,
    /// What packets of the other file begin with, if link headers are left out.
    left_out: Option<PacketStart>,
    /// The first packet that begins so too.
    pub(super) begins_as_other: Option<u64>,
    segmenter: Segmenter,
    /// Packets whose header contradicts itself or them, or asks for too many segments: they are
    /// taken for whole.
    pub(super) bad_headers: u64,
    /// Packets that were cut in segments of a size that no header names.
    pub(super) sizes_inferred: u64,
    /// Packets that have been given up, to make room.
    never_left: NeverLeft,
}

impl<'a> Window<'a> {
    pub(super) fn new(stream: Stream<'a>, most_described: usize, simd: Simd) -> Self {
        Window {
            stream,
            queues: HashMap::new(),
            pairs: Pairs::default(),
            ages: VecDeque::new(),
            most_ages: LEAST_AGES,
            held: 0,
            latest: 0,
            ended: false,
            left_out: None,
            begins_as_other: None,
            segmenter: Segmenter::new().with_simd(simd),
            bad_headers: 0,
            sizes_inferred: 0,
            never_left: NeverLeft::new(most_described),
        }
    }

    /// Leaves out link headers from now on, since the other file has others.
    pub(super) fn leave_link_headers_out(&mut self, other: PacketStart) {
        self.left_out = Some(other);
    }

    /// Takes in a packet, cut as its header says.
    pub(super) fn enter(&mut self, packet: Packet) {
        let packet = match self.left_out {
            Some(other) => {
                if packet.start() == Some(other) {
                    self.begins_as_other.get_or_insert(packet.number);
                }
                packet.without_link()
            }
            None => packet,
        };
        match packet.virtio.map(|virtio| virtio.gso) {
            Some(Ok(Some(gso))) => match self.cut(&packet, gso) {
                Some(segments) => segments.into_iter().for_each(|segment| self.push(segment)),
                None => {
                    self.bad_headers += 1;
                    self.push(packet);
                }
            },
            Some(Err(_)) => {
                self.bad_headers += 1;
                self.push(packet);
            }
            _ => self.push(packet),
        }
    }

    fn push(&mut self, packet: Packet) {
        self.held += packet.memory() + OVERHEAD;
        self.pairs.enter(packet.pairs);
        if self.ages.len() >= self.most_ages {
            // One that never leaves would else keep those of all that came after it.
            let queues = &self.queues;
            let is_held = |queue: &VecDeque<Entry>, number| {
                queue.binary_search_by_key(&number, |entry| entry.packet.number).is_ok()
            };
            self.ages.retain(|(endpoints, number)| {
                queues.get(endpoints).is_some_and(|queue| is_held(queue, *number))
            });
            self.most_ages = LEAST_AGES.max(2 * self.ages.len());
        }
        self.ages.push_back((packet.endpoints, packet.number));
        self.queues
            .entry(packet.endpoints)
            .or_default()
            .push_back(Entry { packet, overtaken: None });
    }

    /// The fragments of a datagram that is to be fragmented (UFO); `None` of any other packet.
    pub(super) fn fragments(&mut self, packet: &Packet) -> Option<Vec<Packet>> {
        match packet.virtio.map(|virtio| virtio.gso) {
            Some(Ok(Some(gso))) if gso.kind == GsoKind::UdpFragments => self.cut(packet, gso),
            _ => None,
        }
    }

    /// The segments of a packet.
    fn cut(&mut self, packet: &Packet, gso: Gso) -> Option<Vec<Packet>> {
        let layer = packet.layer?;
        // Fragments of the same datagram are to be the same whichever file it is in. Those that
        // others cut have another identification.
        let options =
            SegmentOptions::default().with_max_segments(MOST_SEGMENTS).with_fragment_id(1);
        let segments = segments_of(&mut self.segmenter, packet, layer, gso, &options, true).ok()?;
        Some(
            segments
                .into_iter()
                .zip(1..)
                .map(|(bytes, part)| packet.segment(part, bytes))
                .collect(),
        )
    }

    /// Cuts a packet that is held into segments of this size, in its place.
    pub(super) fn cut_held(&mut self, endpoints: u64, index: usize, gso: Gso) -> bool {
        let Some(packet) = self.entry(endpoints, index).map(|entry| entry.packet.clone()) else {
            return false;
        };
        let Some(segments) = self.cut(&packet, gso) else { return false };
        let Some(queue) = self.queues.get_mut(&endpoints) else { return false };
        let overtaken = queue.remove(index).and_then(|entry| entry.overtaken);
        self.held -= packet.memory() + OVERHEAD;
        // The segments first: what is known of the pair is kept as long as something is held.
        segments.iter().for_each(|segment| self.pairs.enter(segment.pairs));
        self.pairs.leave(packet.pairs);
        for (place, packet) in segments.into_iter().enumerate() {
            self.held += packet.memory() + OVERHEAD;
            queue.insert(index + place, Entry { packet, overtaken });
        }
        true
    }

    /// A packet with these endpoints that is held.
    pub(super) fn entry(&self, endpoints: u64, index: usize) -> Option<&Entry> {
        self.queues.get(&endpoints)?.get(index)
    }

    /// The same, to be marked.
    pub(super) fn entry_mut(&mut self, endpoints: u64, index: usize) -> Option<&mut Entry> {
        self.queues.get_mut(&endpoints)?.get_mut(index)
    }

    /// How many packets with these endpoints are held.
    pub(super) fn held(&self, endpoints: u64) -> usize {
        self.queues.get(&endpoints).map_or(0, VecDeque::len)
    }

    /// Reads on until another packet with these endpoints is held, at most so many packets;
    /// `false` if there is none within reach.
    pub(super) fn read_for(&mut self, endpoints: u64, most: u64) -> Result<bool, Error> {
        let before = self.held(endpoints);
        let end = self.stream.packets.saturating_add(most);
        while self.held(endpoints) == before {
            if self.ended || self.stream.packets >= end || !self.make_room() {
                return Ok(false);
            }
            match self.stream.next_packet()? {
                Some(packet) => self.enter(packet),
                None => self.ended = true,
            }
        }
        Ok(true)
    }

    /// Is there room for more? Packets that are long overdue are given up for it.
    fn make_room(&mut self) -> bool {
        while self.held > MOST_BYTES {
            let Some(&(endpoints, number)) = self.ages.front() else { return false };
            let gone = self
                .queues
                .get(&endpoints)
                .and_then(|queue| queue.front())
                .is_none_or(|entry| entry.packet.number > number);
            if !gone && number + SLACK >= self.latest {
                return false;
            }
            self.ages.pop_front();
            if !gone && let Some(entry) = self.remove(endpoints, 0) {
                self.never_left.add(&entry.packet);
            }
        }
        true
    }

    fn remove(&mut self, endpoints: u64, index: usize) -> Option<Entry> {
        let queue = self.queues.get_mut(&endpoints)?;
        let entry = queue.remove(index)?;
        if queue.is_empty() {
            self.queues.remove(&endpoints);
        }
        self.held -= entry.packet.memory() + OVERHEAD;
        self.pairs.leave(entry.packet.pairs);
        Some(entry)
    }

    /// Takes out packets that have left, and returns them in the order of `indices`.
    pub(super) fn take(&mut self, endpoints: u64, indices: &[usize]) -> Vec<Entry> {
        let mut sorted: Vec<_> = indices.iter().copied().enumerate().collect();
        sorted.sort_unstable_by_key(|&(_, index)| std::cmp::Reverse(index));
        let mut taken: Vec<_> = sorted
            .into_iter()
            .filter_map(|(place, index)| Some((place, self.remove(endpoints, index)?)))
            .collect();
        taken.sort_unstable_by_key(|&(place, _)| place);
        let entries: Vec<_> = taken.into_iter().map(|(_, entry)| entry).collect();
        self.latest =
            entries.iter().map(|entry| entry.packet.number).max().unwrap_or(0).max(self.latest);
        entries
    }

    /// Reads the original to its end, and returns the packets that never left.
    pub(super) fn finish(&mut self) -> Result<NeverLeft, Error> {
        let mut left: Vec<_> = self.queues.drain().flat_map(|(_, queue)| queue).collect();
        left.sort_by_key(|entry| (entry.packet.number, entry.packet.part));
        left.iter().for_each(|entry| self.never_left.add(&entry.packet));
        drop(left);
        self.ages.clear();
        self.held = 0;
        while !self.ended {
            match self.stream.next_packet()? {
                Some(packet) => self.never_left.add(&packet),
                None => self.ended = true,
            }
        }
        Ok(std::mem::take(&mut self.never_left))
    }
}

#[cfg(test)]
mod tests {
    use superpacket_traffic::frame::Frame;

    use super::*;
    use crate::input::Input;
    use crate::packets::Packets;
    use superpacket_io::capture::LinkType;

    #[test]
    fn a_packet_that_never_leaves_costs_no_memory_for_those_behind_it() {
        let mut packets = Packets::new();
        packets.push(LinkType::ETHERNET, None, &Frame::udp4(10).to_bytes()).expect("short");
        for number in 0..20_000u32 {
            packets
                .push(LinkType::ETHERNET, None, &Frame::tcp4(number, 10).to_bytes())
                .expect("short");
        }
        let simd = Simd::detect();
        let mut window =
            Window::new(Stream::open(Input::from(&packets), simd).expect("packets"), 1, simd);
        let first = window.stream.next_packet().expect("reads").expect("a packet");
        window.enter(first);
        let second = window.stream.next_packet().expect("reads").expect("a packet");
        let endpoints = second.endpoints;
        window.enter(second);
        loop {
            assert_eq!(window.take(endpoints, &[0]).len(), 1);
            assert!(window.ages.len() <= LEAST_AGES, "{}", window.ages.len());
            if !window.read_for(endpoints, u64::MAX).expect("reads") {
                break;
            }
        }
        assert_eq!((window.stream.packets, window.queues.len()), (20_001, 1));
    }
}
