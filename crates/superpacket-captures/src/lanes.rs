//! Aggregation of a capture: one aggregator for each link header, stepped by packets and by the
//! capture's clock.
//!
//! The engine takes Ethernet frames and IP packets. What precedes the IP packet in other captures
//! (SLL, SLL2, NULL, LOOP) is kept aside, and only packets with the same bytes there, from the same
//! interface, may merge: each such header has an aggregator of its own, a *lane*. SLL's header
//! names the direction and the peer's address, so lanes tell flows apart as MAC addresses do. There
//! are at most [`MAX_LANES`]; a new header takes the one that was idle longest, after what it held
//! has left.
//!
//! The clock is the capture's, made monotonic: packets slightly out of order do not turn it back,
//! and a jump back of more than the hold time flushes everything and starts the clock anew, so that
//! nothing is held because of a time that never comes.

use crate::file::{Frame, Start, start_of};
use superpacket::Simd;
use superpacket::aggregate::{Aggregator, HashKey, Policy};
use superpacket::packet::{Layer, RxChecksum, RxPacket};
use superpacket::super_packet::SuperPacket;
use superpacket::wire::{Refusal, parse, parse_datagram};

use crate::partial::Partial;
use crate::pool::{Buffer, Pool};

/// The most packets that commands merge into one: bounds what a slot of the flow table may grow to.
pub const MAX_PACKETS: u32 = 512;

/// The most flows that commands hold at a time: bounds the flow table's memory.
pub const MAX_FLOWS: u32 = 1024;

/// How aggregation is stepped through a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stepping {
    /// Packets in a poll: at its end, everything held leaves; 0: only at the capture's end.
    pub batch: u64,
    /// How long something is held at most, by the capture's clock, in nanoseconds.
    pub hold: u64,
}

impl Default for Stepping {
    /// Polls of 64 packets, nothing held longer than 1 ms.
    fn default() -> Self {
        Stepping { batch: 64, hold: 1_000_000 }
    }
}

/// The most link headers with packets held at a time.
const MAX_LANES: usize = 8;

/// The flows of every lane but the first, which has what the policy allows: other lanes are the
/// exception, and memory is bounded.
const FLOWS_IN_FURTHER_LANES: u32 = 128;

/// The longest link header that is kept aside, in bytes: SLL2's.
const LONGEST_LINK: usize = 20;

/// Memory of held frames at which everything is flushed, in bytes. One lane's limit,
/// [`HELD_BYTES`], is met before by its own oldest flows.
const MEMORY_LIMIT: usize = 16 << 20;

/// Bytes of frames that one lane may hold.
const HELD_BYTES: u64 = 8 << 20;

/// The flow table's hash key. Work per packet is bounded with any key; a constant one makes the
/// same capture give the same output.
const KEY: HashKey = HashKey::new(0x7375_7065_7270_6163_6b65_7400_6361_7074);

/// The bytes before the IP packet, and where they were captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkHeader {
    /// The interface in the capture.
    pub(crate) interface: u32,
    layer: Layer,
    length: u8,
    bytes: [u8; LONGEST_LINK],
}

impl LinkHeader {
    /// A link header of these bytes, as long as they are no longer than any that is kept aside.
    pub(crate) fn new(interface: u32, layer: Layer, header: &[u8]) -> Option<Self> {
        let mut bytes = [0; LONGEST_LINK];
        bytes.get_mut(..header.len())?.copy_from_slice(header);
        Some(LinkHeader { interface, layer, length: header.len() as u8, bytes })
    }

    /// Where the engine's packets start behind it.
    pub(crate) fn layer(&self) -> Layer {
        self.layer
    }

    /// The link header's bytes; none of an Ethernet frame, whose header the engine sees.
    pub(crate) fn header(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or(&[])
    }
}

/// A frame as it was read, ready for the engine.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) buffer: Buffer,
    /// `None` if the link type is none that the engine knows: the frame passes.
    pub(crate) link: Option<LinkHeader>,
    /// The state of its checksums.
    pub(crate) checksum: RxChecksum,
    /// The snap length cut it.
    pub(crate) cut: bool,
    pub(crate) interface: u32,
    /// In nanoseconds; `None` if the capture does not say.
    pub(crate) time: Option<u64>,
}

/// What to do with an unfinished checksum that does not stand as the engine expects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seeds {
    /// Rewrite the field, so that the packet can merge: its checksum will be written whole. An IPv4
    /// header's is filled in.
    Rewrite,
    /// Leave every byte as it came.
    Leave,
}

impl Arrival {
    /// Copies a frame out of the reader and finds out what the engine should know.
    #[inline]
    pub(crate) fn new(frame: &Frame<'_>, pool: &Pool, seeds: Seeds, simd: Simd) -> Self {
        let (layer, length) = match start_of(frame.link_type(), frame.data) {
            Start::Ethernet => (Some(Layer::Ethernet), 0),
            Start::Ip { header_length } => (Some(Layer::Ip), header_length),
            Start::Other => (None, 0),
        };
        let mut buffer = pool.copy(frame, length);
        let link = layer.map(|layer| {
            let bytes = [0; LONGEST_LINK];
            let unnamed =
                LinkHeader { interface: frame.interface, layer, length: length as u8, bytes };
            frame
                .data
                .get(..length)
                .and_then(|header| LinkHeader::new(frame.interface, layer, header))
                .unwrap_or(unnamed)
        });
        let mut checksum = RxChecksum::None;
        let cut = frame.is_truncated();
        if let Some(layer) = layer
            && let Some(partial) = find_partial(buffer.as_ref(), layer, cut, simd)
        {
            checksum = partial.state();
            if seeds == Seeds::Rewrite {
                partial.canonical().for_each(|(place, value)| buffer.put(place, value));
            }
        }
        Arrival {
            buffer,
            link,
            checksum,
            cut,
            interface: frame.interface,
            time: frame.time.map(|time| time.nanoseconds()),
        }
    }
}

/// Looks for unfinished checksums in a packet, of one that is `cut` in its IPv4 header alone.
#[inline]
pub(crate) fn find_partial(packet: &[u8], layer: Layer, cut: bool, simd: Simd) -> Option<Partial> {
    let layout = parse_datagram(packet, packet.len(), layer)
        .ok()
        .filter(|layout| !cut && layout.refusal != Some(Refusal::Truncated));
    Partial::find(packet, layer, layout.as_ref(), simd)
}

/// Why a frame passed the engine by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// A link type that the engine does not know.
    LinkType,
    /// The snap length cut the frame behind its IP packet.
    SnapLength,
}

/// Takes what leaves.
pub(crate) trait Taker {
    /// A packet of the engine, merged or single. Whatever merged came with this link header.
    fn packet(&mut self, link: &LinkHeader, packet: SuperPacket<'_, Buffer>);
    /// A frame that the engine was not given.
    fn passed(&mut self, interface: u32, buffer: &Buffer, why: Why);
}

/// What leaves before a part of a capture begins.
pub(crate) struct Nobody;

impl Taker for Nobody {
    fn packet(&mut self, _link: &LinkHeader, _packet: SuperPacket<'_, Buffer>) {}

    fn passed(&mut self, _interface: u32, _buffer: &Buffer, _why: Why) {}
}

/// What is to leave.
#[derive(Clone, Copy, Debug)]
enum Flush {
    /// Everything, because the poll ended.
    PollEnd,
    /// Everything.
    All,
    /// What has been held, at this time, for longer than this.
    OlderThan(u64, u64),
}

struct Lane {
    link: LinkHeader,
    aggregator: Aggregator<Buffer>,
    /// When it was used last, in packets.
    used: u64,
}

/// The aggregators of a capture.
pub(crate) struct Lanes {
    policy: Policy,
    simd: Simd,
    stepping: Stepping,
    lanes: Vec<Lane>,
    /// The lane of the packet before.
    last: usize,
    clock: u64,
    packets: u64,
    in_poll: u64,
}

impl Lanes {
    /// Nothing held. The policy's limits of fragments and bytes are brought within the program's.
    pub(crate) fn new(policy: Policy, stepping: Stepping, simd: Simd) -> Self {
        let policy = policy
            .with_max_fragments(policy.max_fragments.min(MAX_PACKETS))
            .with_max_packets(policy.max_packets.min(MAX_PACKETS))
            .with_max_flows(policy.max_flows.min(MAX_FLOWS))
            .with_max_held_bytes(HELD_BYTES)
            .with_hold_time(0);
        Lanes {
            policy,
            simd,
            stepping,
            lanes: Vec::new(),
            last: 0,
            clock: 0,
            packets: 0,
            in_poll: 0,
        }
    }

    /// Before a frame is copied into the pool: everything leaves if there would be too much with
    /// it.
    #[inline]
    pub(crate) fn make_room<T: Taker>(&mut self, frame: &Frame<'_>, pool: &Pool, taker: &mut T) {
        if pool.used() + frame.data.len() + frame.options.bytes().len() > MEMORY_LIMIT {
            self.flush(Flush::All, taker);
        }
    }

    /// Takes a frame; before it, what has been held for too long leaves, and after it, if it ends
    /// the poll, everything.
    #[inline]
    pub(crate) fn receive<T: Taker>(&mut self, arrival: Arrival, pool: &Pool, taker: &mut T) {
        self.turn_clock(arrival.time, taker);
        self.packets += 1;
        match arrival.link {
            None => taker.passed(arrival.interface, &arrival.buffer, Why::LinkType),
            Some(link) => {
                let index = self.lane(&link, taker);
                let time = self.clock;
                if let Some(lane) = self.lanes.get_mut(index) {
                    lane.used = self.packets;
                    // Of one type for all takers: the engine is compiled anew for each type of
                    // sink.
                    let sink: &mut dyn FnMut(SuperPacket<'_, Buffer>) =
                        &mut |packet| taker.packet(&lane.link, packet);
                    let packet_time = arrival.time.unwrap_or(time);
                    let interface = arrival.interface;
                    let mut packet = RxPacket::new(arrival.buffer)
                        .with_checksum(arrival.checksum)
                        .with_time(packet_time);
                    packet.layer = link.layer;
                    if arrival.cut && is_whole(&packet) {
                        lane.aggregator.flush_flow(&packet, sink);
                        if let Some(buffer) = packet.buffers().next() {
                            taker.passed(interface, buffer, Why::SnapLength);
                        }
                    } else {
                        lane.aggregator.receive(packet, time, sink);
                    }
                }
            }
        }
        self.in_poll += 1;
        if self.in_poll == self.stepping.batch {
            self.in_poll = 0;
            self.flush(Flush::PollEnd, taker);
        }
        if pool.used() > MEMORY_LIMIT {
            self.flush(Flush::All, taker);
        }
    }

    /// Ends the capture: everything held leaves.
    pub(crate) fn finish<T: Taker>(&mut self, taker: &mut T) {
        self.flush(Flush::PollEnd, taker);
    }

    /// Packets that are held, a merged one counted once.
    pub(crate) fn held(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.aggregator.counters().held).sum()
    }

    /// Packets that passed because the table of LRO held other flows.
    pub(crate) fn refused(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.aggregator.counters().no_desc).sum()
    }

    /// Has a poll just ended? Without polls: is nothing held?
    pub(crate) fn is_between_polls(&self) -> bool {
        if self.stepping.batch == 0 { self.held() == 0 } else { self.in_poll == 0 }
    }

    /// Does every packet that the engine was given have its place?
    pub(crate) fn balanced(&self) -> bool {
        self.lanes.iter().all(|lane| lane.aggregator.counters().balanced())
    }

    fn turn_clock<T: Taker>(&mut self, time: Option<u64>, taker: &mut T) {
        let hold = self.stepping.hold;
        if let Some(time) = time {
            if time < self.clock.saturating_sub(hold) {
                self.flush(Flush::All, taker);
                self.clock = time;
            } else if time > self.clock {
                self.clock = time;
                self.flush(Flush::OlderThan(time, hold), taker);
            }
        }
    }

    #[inline]
    fn flush<T: Taker>(&mut self, what: Flush, taker: &mut T) {
        for lane in &mut self.lanes {
            if lane.aggregator.counters().held == 0 {
                continue;
            }
            let mut sink = |packet: SuperPacket<'_, Buffer>| taker.packet(&lane.link, packet);
            match what {
                Flush::PollEnd => lane.aggregator.poll_end(0, &mut sink),
                Flush::All => lane.aggregator.flush_all(&mut sink),
                // The engine flushes what is as old as that or older; here, only what is older
                // leaves.
                Flush::OlderThan(now, age) => {
                    lane.aggregator.flush_older_than(now, age.saturating_add(1), &mut sink)
                }
            }
        }
    }

    /// The lane of a link header.
    #[inline]
    fn lane<T: Taker>(&mut self, link: &LinkHeader, taker: &mut T) -> usize {
        if self.lanes.get(self.last).is_none_or(|lane| lane.link != *link) {
            self.last = self.find_lane(link, taker);
        }
        self.last
    }

    fn find_lane<T: Taker>(&mut self, link: &LinkHeader, taker: &mut T) -> usize {
        if let Some(index) = self.lanes.iter().position(|lane| lane.link == *link) {
            return index;
        }
        if self.lanes.len() < MAX_LANES {
            let max_flows = if self.lanes.is_empty() {
                self.policy.max_flows
            } else {
                self.policy.max_flows.min(FLOWS_IN_FURTHER_LANES)
            };
            let aggregator =
                Aggregator::new(self.policy.with_max_flows(max_flows), KEY).with_simd(self.simd);
            self.lanes.push(Lane { link: *link, aggregator, used: 0 });
            return self.lanes.len() - 1;
        }
        let idle = (0..self.lanes.len()).min_by_key(|&index| self.lanes[index].used).unwrap_or(0);
        if let Some(lane) = self.lanes.get_mut(idle) {
            lane.aggregator
                .flush_all(&mut |packet: SuperPacket<'_, Buffer>| taker.packet(&lane.link, packet));
            lane.link = *link;
        }
        idle
    }
}

/// Is the IP packet all there? Then the engine would not see that the frame was cut.
fn is_whole(packet: &RxPacket<Buffer>) -> bool {
    let Some(buffer) = packet.buffers().next() else { return false };
    match parse(buffer.as_ref(), buffer.as_ref().len(), packet.layer) {
        Ok(layout) => layout.refusal != Some(Refusal::Truncated),
        // Passes in any case.
        Err(_) => false,
    }
}
