//! Finds the packets of the original file for which a packet of the checked file stands.

use superpacket::segment::{Gso, SegmentSize};
use superpacket::wire::Refusal;

use super::packet::{FilePacket, gso_kind};
use super::window::Window;
use crate::commands::error::Error;

/// The packets of the original file for which a packet of the checked file stands.
#[derive(Debug, Default)]
pub(super) struct Matched {
    /// Indices of these packets among the held packets with the same endpoints, in the order of the
    /// payload. Empty if no packet was found.
    pub(super) indices: Vec<usize>,
    /// Number of bytes at the end of the checked packet's payload that come from none of the
    /// packets.
    pub(super) foreign: usize,
    /// Whether the payload of the checked packet differs from that of the packets.
    damaged: bool,
}

/// Number of packets with the same endpoints, before and after the last packet found, among which
/// the packet with the next bytes of a merged packet's payload is searched.
const MAX_DISTANCE: usize = 256;

/// Maximum number of packets with the same endpoints that are searched for a packet. It bounds the
/// time for files that have nothing in common.
const MAX_SEARCHED: usize = 2048;
/// Maximum number of packets with the same endpoints that are searched for a damaged packet.
const MAX_SEARCHED_DAMAGED: usize = 64;

/// Maximum number of packets that are read from the original file in search of an identical packet,
/// once a similar one has been found.
const MAX_READ_AHEAD: u64 = 1024;

/// Rank of similarity of an identical packet; a lower rank means a more similar packet.
const SAME: u8 = 0;
const SAME_PLACE_FLOW_AND_BYTES: u8 = 1;
/// If the best packet found has a higher rank than this, the search goes on among all held packets.
const LIKELY: u8 = 2;

impl Window<'_> {
    /// Finds the packets of the original file for which a packet of the checked file stands. If
    /// that packet is a segment of a held packet, the held packet is segmented too.
    pub(super) fn find(&mut self, packet: &FilePacket) -> Result<Matched, Error> {
        let Some(first) = self.find_first(packet)? else { return Ok(Matched::default()) };
        let endpoints = packet.endpoints;
        let Some(origin) = self.entry(endpoints, first).map(|entry| &entry.packet) else {
            return Ok(Matched::default());
        };
        let (length, whole) = (packet.payload().len(), origin.payload().len());
        let common = length.min(whole);
        let damaged = packet.payload()[..common] != origin.payload()[..common];
        if let Some(gso) = inferred_gso(packet, origin)
            && self.cut_held(endpoints, first, gso)
        {
            self.sizes_inferred += u64::from(length < whole);
            return Ok(Matched { indices: vec![first], foreign: 0, damaged: false });
        }
        let mut matched =
            Matched { indices: vec![first], foreign: length.saturating_sub(whole), damaged };
        if whole == 0 || packet.cut {
            matched.foreign = 0;
            return Ok(matched);
        }
        while matched.foreign > 0 {
            let Some((rank, next)) = self.find_next(packet, &matched)? else { break };
            matched.damaged |= rank > 3;
            let length =
                self.entry(endpoints, next).map_or(0, |entry| entry.packet.payload().len());
            matched.indices.push(next);
            matched.foreign = matched.foreign.saturating_sub(length.max(1));
        }
        Ok(matched)
    }

    /// Finds the held packet with which the payload of a checked packet begins.
    fn find_first(&mut self, packet: &FilePacket) -> Result<Option<usize>, Error> {
        let endpoints = packet.endpoints;
        if self.held(endpoints) == 0 && !self.read_for(endpoints, u64::MAX)? {
            return Ok(None);
        }
        let mut best: Option<(u8, usize)> = None;
        let mut index = 0;
        let ahead = self.stream.packets.saturating_add(MAX_READ_AHEAD);
        loop {
            while index < MAX_SEARCHED
                && let Some(entry) = self.entry(endpoints, index)
            {
                if let Some(rank) =
                    similarity_rank(packet, &entry.packet, index < MAX_SEARCHED_DAMAGED)
                    && best.is_none_or(|(least, _)| rank < least)
                {
                    best = Some((rank, index));
                    let merged = packet.payload().len() > entry.packet.payload().len();
                    if rank == SAME || (rank == SAME_PLACE_FLOW_AND_BYTES && merged) {
                        return Ok(Some(index));
                    }
                }
                index += 1;
            }
            // An identical packet may come a little later in the original file: the same data sent
            // again, or this packet after one that was damaged.
            let most =
                if best.is_some() { ahead.saturating_sub(self.stream.packets) } else { u64::MAX };
            if index == MAX_SEARCHED || !self.read_for(endpoints, most)? {
                return Ok(best.map(|(_, index)| index));
            }
        }
    }

    /// Finds the held packet that has the next bytes of a checked packet's payload. Returns its
    /// rank of similarity and its index.
    fn find_next(
        &mut self,
        packet: &FilePacket,
        matched: &Matched,
    ) -> Result<Option<(u8, usize)>, Error> {
        let endpoints = packet.endpoints;
        let payload = packet.payload();
        let done = payload.len() - matched.foreign;
        let rest = payload.get(done..).unwrap_or(&[]);
        let sequence = packet.sequence().map(|sequence| sequence.wrapping_add(done as u32));
        let Some(&last) = matched.indices.last() else { return Ok(None) };
        let Some(flow) = self.entry(endpoints, last).map(|entry| entry.packet.order_scope) else {
            return Ok(None);
        };
        let furthest = matched.indices.iter().max().copied().unwrap_or(last);
        let rank = |index: usize, next: &FilePacket| {
            let bytes = next.payload();
            if bytes.is_empty() || (index <= furthest && matched.indices.contains(&index)) {
                return None;
            }
            let length = bytes.len().min(rest.len());
            let same = bytes[..length] == rest[..length];
            let in_sequence = sequence.is_none_or(|sequence| next.sequence() == Some(sequence));
            let (behind, of_flow) = (index > last, next.order_scope == flow);
            match () {
                () if same && in_sequence && behind && of_flow => Some(SAME),
                () if same && in_sequence && of_flow => Some(1),
                () if same && in_sequence => Some(LIKELY),
                () if same && (length >= 8 || bytes.len() == rest.len()) => Some(3),
                () if sequence.is_some() && in_sequence && of_flow => Some(4),
                // If a byte is missing in the checked packet, the payload of later datagrams is
                // shifted, so the next datagram is assumed without comparison.
                () if sequence.is_none()
                    && index == furthest + 1
                    && of_flow
                    && (matched.damaged || bytes.first() == rest.first()) =>
                {
                    (rest.len() * 2 >= bytes.len()).then_some(5)
                }
                () if sequence.is_none() && behind && of_flow && are_similar(bytes, rest) => {
                    Some(6)
                }
                () => None,
            }
        };
        let mut best: Option<(u8, usize)> = None;
        let mut index = last + 1;
        let ahead = self.stream.packets.saturating_add(MAX_READ_AHEAD);
        loop {
            while let Some(entry) = self.entry(endpoints, index) {
                if let Some(rank) = rank(index, &entry.packet)
                    && best.is_none_or(|(least, _)| rank < least)
                {
                    best = Some((rank, index));
                    if rank == SAME {
                        return Ok(best);
                    }
                }
                index += 1;
                if index > last + MAX_DISTANCE {
                    break;
                }
            }
            for index in 0..last.min(MAX_DISTANCE) {
                if let Some(entry) = self.entry(endpoints, index)
                    && let Some(rank) = rank(index, &entry.packet)
                    && best.is_none_or(|(least, _)| rank < least)
                {
                    best = Some((rank, index));
                }
            }
            // The packet found has the right payload, but a better one, which is later in the same
            // flow, may follow soon.
            let is_likely = best.is_some_and(|(rank, _)| rank <= LIKELY);
            let most = if is_likely { ahead.saturating_sub(self.stream.packets) } else { u64::MAX };
            if index > last + MAX_DISTANCE || !self.read_for(endpoints, most)? {
                return Ok(best);
            }
        }
    }
}

/// Returns how to segment a packet of the original file so that `packet` is its first segment;
/// `None` if that is impossible.
fn inferred_gso(packet: &FilePacket, origin: &FilePacket) -> Option<Gso> {
    let (layout, part, whole) = (origin.layout?, packet.payload(), origin.payload());
    if packet.cut || origin.cut || origin.part.is_some() || origin.is_same(packet) {
        return None;
    }
    // A packet whose IP length was left to the device gets a length, and a packet with a jumbo
    // payload option loses the option, even if it is not segmented.
    let unfinished = layout.refusal == Some(Refusal::NoLength) || layout.jumbo;
    let is_first = whole.len() > part.len() && !part.is_empty() && whole.starts_with(part);
    let is_whole = unfinished && whole == part;
    if !is_first && !is_whole {
        return None;
    }
    Some(Gso::new(gso_kind(&layout), SegmentSize::new(part.len().max(1))?))
}

/// Returns how similar a packet of the checked file is to the first packet for which it may stand;
/// `None` if they are not similar. Packets with changed bytes count as similar only if `damaged` is
/// set.
fn similarity_rank(packet: &FilePacket, origin: &FilePacket, damaged: bool) -> Option<u8> {
    if origin.is_same(packet) {
        return Some(if packet.link == origin.link { SAME } else { SAME_PLACE_FLOW_AND_BYTES });
    }
    let (now, then) = (packet.payload(), origin.payload());
    if packet.layout.is_none() || origin.layout.is_none() {
        let same_length = packet.bytes.len() == origin.bytes.len();
        return (damaged && same_length && are_similar(&packet.bytes, &origin.bytes)).then_some(8);
    }
    let of_flow = packet.flow == origin.flow;
    let same_place = packet.sequence() == origin.sequence();
    if now.is_empty() || then.is_empty() {
        let acknowledgement = |packet: &FilePacket| {
            packet.tcp().and_then(|header| header.get(8..14).map(<[u8]>::to_vec))
        };
        return match () {
            () if now.len() != then.len() || !same_place => None,
            () if acknowledgement(packet) == acknowledgement(origin) => Some(5),
            () if packet.sequence().is_some() => Some(6),
            () => Some(7),
        };
    }
    let length = now.len().min(then.len());
    let same = now[..length] == then[..length];
    let same_id = match (packet.layout, origin.layout) {
        (Some(one), Some(other)) => {
            one.version == other.version && packet.id(one.network) == origin.id(other.network)
        }
        _ => false,
    };
    match () {
        () if same && same_place && of_flow && same_id => Some(SAME_PLACE_FLOW_AND_BYTES),
        () if same && same_place && of_flow => Some(LIKELY),
        () if same && same_place => Some(3),
        () if packet.sequence().is_some() && same_place && of_flow => Some(4),
        () if same && length >= 8 || damaged && are_similar(now, then) => Some(5),
        () => None,
    }
}

/// Returns whether at least half of the bytes of the shorter slice equal those at the same
/// positions of the other.
fn are_similar(one: &[u8], other: &[u8]) -> bool {
    let length = one.len().min(other.len());
    let same = one.iter().zip(other).filter(|(one, other)| one == other).count();
    length > 0 && same * 2 >= length
}
