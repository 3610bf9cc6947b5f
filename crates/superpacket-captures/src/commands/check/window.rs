//! The packets of the original file that were not yet found in the checked file, by endpoints and
//! in order. The memory for them is bounded.

use std::collections::{HashMap, VecDeque};

use superpacket::Simd;
use superpacket::segment::{Gso, GsoKind, MaxSegments, SegmentOptions, Segmenter};

use super::never_left::NeverLeft;
use super::packet::{FilePacket, PacketStart, segments_of};
use super::pairs::Pairs;
use super::stream::PacketStream;
use crate::commands::error::Error;

/// Maximum memory in bytes for all held packets, including [`OVERHEAD`] for each.
const MAX_BYTES: usize = 24 << 20;

/// Memory in bytes for a held packet in addition to its bytes.
const OVERHEAD: usize = size_of::<HeldPacket>() + 64 + Pairs::OVERHEAD;

/// Maximum number of segments into which a packet is cut, because all of them are held. No network
/// makes more.
const MAX_SEGMENTS: MaxSegments = MaxSegments::new(16_384).expect("not zero");

/// Minimum length of `ages` at which entries of packets that are no longer held are removed.
const MIN_AGES: usize = 4096;

/// A held packet may be given up to free memory only if a packet that comes more than this number
/// of packets later in the original file has been found in the checked file.
const SLACK: u64 = 1024;

/// A packet of the original file that was not yet found in the checked file.
#[derive(Debug)]
pub(super) struct HeldPacket {
    pub(super) packet: FilePacket,
    /// The packet that has overtaken this one, if any: one of the same flow that comes later in the
    /// original file but was found earlier in the checked file.
    pub(super) overtaken: Option<Overtaken>,
}

/// A packet that has overtaken a held packet, by its numbers in both files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Overtaken {
    /// Number of the packet in the checked file.
    pub(super) by: u64,
    /// Number of the packet in the original file.
    pub(super) origin: u64,
    /// Whether Linux may let this packet overtake, because its GRO cannot merge it or assigns it to
    /// another flow.
    pub(super) refused: bool,
}

/// The packets of the original file that are held in memory, and the stream of the packets that
/// follow them.
pub(super) struct Window<'a> {
    pub(super) stream: PacketStream<'a>,
    queues: HashMap<u64, VecDeque<HeldPacket>>,
    pub(super) pairs: Pairs,
    /// Endpoints and number of each held packet, in the order of the file. Entries of packets that
    /// are no longer held are removed only later.
    ages: VecDeque<(u64, u64)>,
    /// Length of `ages` at which entries of packets that are no longer held are removed.
    max_ages: usize,
    held: usize,
    /// The highest number, in the original file, of a packet that was found in the checked file.
    latest_departed: u64,
    ended: bool,
    /// The kind of header with which packets of the checked file begin, if link headers are not
    /// compared.
    other_start: Option<PacketStart>,
    /// Number of the first packet of the original file that begins with the kind of header
    /// `other_start`.
    pub(super) first_like_other: Option<u64>,
    segmenter: Segmenter,
    /// Number of packets whose `virtio_net_hdr` contradicts itself or the packet, or would give too
    /// many segments. They are not cut.
    pub(super) bad_headers: u64,
    /// Number of packets that were segmented although no header states the size of segments.
    pub(super) sizes_inferred: u64,
    /// Counts of the packets that were given up to free memory, or had not been found when the
    /// checked file ended.
    never_left: NeverLeft,
}

impl<'a> Window<'a> {
    pub(super) fn new(stream: PacketStream<'a>, most_described: usize, simd: Simd) -> Self {
        Window {
            stream,
            queues: HashMap::new(),
            pairs: Pairs::default(),
            ages: VecDeque::new(),
            max_ages: MIN_AGES,
            held: 0,
            latest_departed: 0,
            ended: false,
            other_start: None,
            first_like_other: None,
            segmenter: Segmenter::new().with_simd(simd),
            bad_headers: 0,
            sizes_inferred: 0,
            never_left: NeverLeft::new(most_described),
        }
    }

    /// Ends the comparison of link headers. `other` is the kind of header with which packets of the
    /// checked file begin.
    pub(super) fn ignore_link_headers(&mut self, other: PacketStart) {
        self.other_start = Some(other);
    }

    /// Adds a packet of the original file. If its `virtio_net_hdr` asks for segmentation, its
    /// segments are added instead.
    pub(super) fn enter(&mut self, packet: FilePacket) {
        let packet = match self.other_start {
            Some(other) => {
                if packet.start() == Some(other) {
                    self.first_like_other.get_or_insert(packet.number);
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

    fn push(&mut self, packet: FilePacket) {
        self.held += packet.memory() + OVERHEAD;
        self.pairs.enter(packet.pairs);
        if self.ages.len() >= self.max_ages {
            // Without this, a packet that is never found would keep the entries of all later
            // packets.
            let queues = &self.queues;
            let is_held = |queue: &VecDeque<HeldPacket>, number| {
                queue.binary_search_by_key(&number, |entry| entry.packet.number).is_ok()
            };
            self.ages.retain(|(endpoints, number)| {
                queues.get(endpoints).is_some_and(|queue| is_held(queue, *number))
            });
            self.max_ages = MIN_AGES.max(2 * self.ages.len());
        }
        self.ages.push_back((packet.endpoints, packet.number));
        self.queues
            .entry(packet.endpoints)
            .or_default()
            .push_back(HeldPacket { packet, overtaken: None });
    }

    /// Returns the fragments of a datagram whose header asks for IP fragmentation (UFO); `None` for
    /// any other packet.
    pub(super) fn fragments(&mut self, packet: &FilePacket) -> Option<Vec<FilePacket>> {
        match packet.virtio.map(|virtio| virtio.gso) {
            Some(Ok(Some(gso))) if gso.kind == GsoKind::UdpFragments => self.cut(packet, gso),
            _ => None,
        }
    }

    /// Returns the segments of a packet; `None` if it cannot be segmented.
    fn cut(&mut self, packet: &FilePacket, gso: Gso) -> Option<Vec<FilePacket>> {
        let layer = packet.layer?;
        // With a fixed identification, fragments of the same datagram are equal in both files.
        // (Other implementations choose others.)
        let options = SegmentOptions::default().with_max_segments(MAX_SEGMENTS).with_fragment_id(1);
        let segments = segments_of(&mut self.segmenter, packet, layer, gso, &options, true).ok()?;
        Some(
            segments
                .into_iter()
                .zip(1..)
                .map(|(bytes, part)| packet.segment(part, bytes))
                .collect(),
        )
    }

    /// Replaces a held packet by its segments. Returns whether it could be segmented.
    pub(super) fn cut_held(&mut self, endpoints: u64, index: usize, gso: Gso) -> bool {
        let Some(packet) = self.entry(endpoints, index).map(|entry| entry.packet.clone()) else {
            return false;
        };
        let Some(segments) = self.cut(&packet, gso) else { return false };
        let Some(queue) = self.queues.get_mut(&endpoints) else { return false };
        let overtaken = queue.remove(index).and_then(|entry| entry.overtaken);
        self.held -= packet.memory() + OVERHEAD;
        // The segments are added before the packet is removed: the order within an address pair is
        // known only as long as one of its packets is held.
        segments.iter().for_each(|segment| self.pairs.enter(segment.pairs));
        self.pairs.leave(packet.pairs);
        for (place, packet) in segments.into_iter().enumerate() {
            self.held += packet.memory() + OVERHEAD;
            queue.insert(index + place, HeldPacket { packet, overtaken });
        }
        true
    }

    /// Returns the held packet with these endpoints and this index.
    pub(super) fn entry(&self, endpoints: u64, index: usize) -> Option<&HeldPacket> {
        self.queues.get(&endpoints)?.get(index)
    }

    /// Returns the held packet with these endpoints and this index, to be changed.
    pub(super) fn entry_mut(&mut self, endpoints: u64, index: usize) -> Option<&mut HeldPacket> {
        self.queues.get_mut(&endpoints)?.get_mut(index)
    }

    /// Returns the number of held packets with these endpoints.
    pub(super) fn held(&self, endpoints: u64) -> usize {
        self.queues.get(&endpoints).map_or(0, VecDeque::len)
    }

    /// Reads at most `most` packets of the original file, until there is another one with these
    /// endpoints. Returns whether one was found.
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

    /// Returns whether there is memory for another packet. If there is none, first gives up held
    /// packets for which [`SLACK`] allows this.
    fn make_room(&mut self) -> bool {
        while self.held > MAX_BYTES {
            let Some(&(endpoints, number)) = self.ages.front() else { return false };
            let gone = self
                .queues
                .get(&endpoints)
                .and_then(|queue| queue.front())
                .is_none_or(|entry| entry.packet.number > number);
            if !gone && number + SLACK >= self.latest_departed {
                return false;
            }
            self.ages.pop_front();
            if !gone && let Some(entry) = self.remove(endpoints, 0) {
                self.never_left.add(&entry.packet);
            }
        }
        true
    }

    fn remove(&mut self, endpoints: u64, index: usize) -> Option<HeldPacket> {
        let queue = self.queues.get_mut(&endpoints)?;
        let entry = queue.remove(index)?;
        if queue.is_empty() {
            self.queues.remove(&endpoints);
        }
        self.held -= entry.packet.memory() + OVERHEAD;
        self.pairs.leave(entry.packet.pairs);
        Some(entry)
    }

    /// Removes the held packets at `indices`, because they were found in the checked file. Returns
    /// them in the order of `indices`.
    pub(super) fn take(&mut self, endpoints: u64, indices: &[usize]) -> Vec<HeldPacket> {
        let mut sorted: Vec<_> = indices.iter().copied().enumerate().collect();
        sorted.sort_unstable_by_key(|&(_, index)| std::cmp::Reverse(index));
        let mut taken: Vec<_> = sorted
            .into_iter()
            .filter_map(|(place, index)| Some((place, self.remove(endpoints, index)?)))
            .collect();
        taken.sort_unstable_by_key(|&(place, _)| place);
        let entries: Vec<_> = taken.into_iter().map(|(_, entry)| entry).collect();
        self.latest_departed = entries
            .iter()
            .map(|entry| entry.packet.number)
            .max()
            .unwrap_or(0)
            .max(self.latest_departed);
        entries
    }

    /// Reads the original file to its end, and returns the packets that were not found in the
    /// checked file.
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

    use super::super::stream::{Role, SharedProgress};
    use super::*;
    use crate::commands::input::Input;
    use crate::commands::packets::Packets;
    use crate::file::LinkType;

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
        let mut quiet = ();
        let mut window = Window::new(
            PacketStream::open(
                Input::from(&packets),
                Role::Origin,
                &SharedProgress::new(&mut quiet),
                simd,
            )
            .expect("packets"),
            1,
            simd,
        );
        let first = window.stream.next_packet().expect("reads").expect("a packet");
        window.enter(first);
        let second = window.stream.next_packet().expect("reads").expect("a packet");
        let endpoints = second.endpoints;
        window.enter(second);
        loop {
            assert_eq!(window.take(endpoints, &[0]).len(), 1);
            assert!(window.ages.len() <= MIN_AGES, "{}", window.ages.len());
            if !window.read_for(endpoints, u64::MAX).expect("reads") {
                break;
            }
        }
        assert_eq!((window.stream.packets, window.queues.len()), (20_001, 1));
    }
}
