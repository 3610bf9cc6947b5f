//! Aggregates a capture with a separate aggregator (lane) for each link header. The packets and the
//! capture's clock determine when polls end and held packets leave.
//!
//! The aggregation engine takes Ethernet frames and IP packets. In captures of other types (SLL,
//! SLL2, NULL, LOOP), it does not see the bytes before the IP packet. Packets may merge only if
//! these bytes are the same and they are from the same interface, so each link header has its own
//! aggregator, a *lane*.
//!
//! An SLL header contains the direction and the peer's address, so lanes separate flows as MAC
//! addresses do. There are at most [`MAX_LANES`]. A further header takes over the lane that was
//! idle longest, after its packets are flushed.
//!
//! The clock follows the times of the capture and never goes back if packets are slightly out of
//! order. If the time goes back by more than the hold time, all packets are flushed and the clock
//! is set back, so that no packet waits for a time that never comes.

use std::num::NonZeroU16;

use crate::file::{Frame, Start, start_of};
use superpacket::Simd;
use superpacket::aggregate::{Aggregator, HashKey, Policy};
use superpacket::packet::{FlowHash, Layer, RxChecksum, RxPacket};
use superpacket::segment::{Gso, GsoKind, SegmentSize};
use superpacket::super_packet::{Metadata, SuperPacket};
use superpacket::wire::{IpVersion, Layout, Protocol, Refusal, parse, parse_datagram};

use crate::commands::checksums::Checksums;
use crate::commands::pool::{Buffer, BufferPool};
use crate::commands::repair::Repair;

/// Maximum number of packets that commands merge into one; it bounds the memory of an entry of the
/// flow table.
pub const MAX_PACKETS: u32 = 512;

/// Maximum number of flows that commands hold at a time; it bounds the memory of the flow table.
pub const MAX_FLOWS: u32 = 1024;

/// The length of a poll and the maximum hold time, which determine when held packets leave the
/// aggregator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stepping {
    /// Number of packets per poll; at its end, all held packets leave. With 0, they leave only at
    /// the end of the capture.
    pub batch: u64,
    /// Maximum time that a packet is held, in nanoseconds of the capture's clock.
    pub hold: u64,
}

impl Default for Stepping {
    /// Returns polls of 64 packets, and a hold time of 1 ms.
    fn default() -> Self {
        Stepping { batch: 64, hold: 1_000_000 }
    }
}

/// Maximum number of link headers with an aggregator of their own at a time.
const MAX_LANES: usize = 8;

/// Maximum number of flows in each lane but the first, which may hold as many as the policy allows.
/// Other lanes are rare, and this number bounds their memory.
const FLOWS_IN_FURTHER_LANES: u32 = 128;

/// Length in bytes of the longest link header that the engine does not see: that of SLL2.
const LONGEST_LINK: usize = 20;

/// Memory in bytes for held frames above which all packets are flushed. If there is only one lane,
/// it reaches its own limit [`HELD_BYTES`] before, and flushes its oldest flows.
const MEMORY_LIMIT: usize = 16 << 20;

/// Maximum number of bytes of frames that one lane may hold.
const HELD_BYTES: u64 = 8 << 20;

/// The hash key of the flow table. It is constant, so that a capture always gives the same output.
/// The work per packet is bounded with any key.
const KEY: HashKey = HashKey::new(0x7375_7065_7270_6163_6b65_7400_6361_7074);

/// The bytes before the IP packet of a frame, and the interface of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkHeader {
    /// Index of the interface in the capture.
    pub(crate) interface: u32,
    layer: Layer,
    length: u8,
    bytes: [u8; LONGEST_LINK],
}

impl LinkHeader {
    /// Returns a link header with these bytes; `None` if there are more than [`LONGEST_LINK`].
    pub(crate) fn new(interface: u32, layer: Layer, header: &[u8]) -> Option<Self> {
        let mut bytes = [0; LONGEST_LINK];
        bytes.get_mut(..header.len())?.copy_from_slice(header);
        Some(LinkHeader { interface, layer, length: header.len() as u8, bytes })
    }

    /// Returns with which kind of header the bytes after the link header begin.
    pub(crate) fn layer(&self) -> Layer {
        self.layer
    }

    /// Returns the bytes before the IP packet; empty for Ethernet, whose header the engine parses
    /// itself.
    pub(crate) fn header(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or(&[])
    }
}

/// A frame of a capture, prepared for the aggregation engine.
#[derive(Clone, Debug)]
pub(crate) struct ArrivedFrame {
    pub(crate) buffer: Buffer,
    /// The frame's link header; `None` if the engine does not know the link type. The frame then
    /// passes unchanged.
    pub(crate) link: Option<LinkHeader>,
    /// The state of the packet's checksum, for the engine.
    pub(crate) checksum: RxChecksum,
    /// How to segment the packet, if it is known to be a super-packet.
    gso: Option<Gso>,
    /// Whether the snap length has cut the frame.
    pub(crate) cut: bool,
    pub(crate) interface: u32,
    /// Capture time in nanoseconds since the capture's [`clock_start`]; `None` if the capture has
    /// no times.
    pub(crate) time: Option<u64>,
}

/// Returns the start of the clock on which a capture's packets are held, in seconds since 1970: 0,
/// or a negative `if_tsoffset` of the first interface, since times may then lie before 1970.
#[inline]
pub(crate) fn clock_start(frame: &Frame<'_>) -> i64 {
    frame.interfaces.first().map_or(0, |first| first.offset_seconds.min(0))
}

impl ArrivedFrame {
    /// Copies a frame from the reader, and determines its link header and whether its checksums are
    /// unfinished. `repair` prepares the checksums for the engine; with `None`, no byte is changed.
    #[inline]
    pub(crate) fn new(
        frame: &Frame<'_>,
        pool: &BufferPool,
        repair: Option<&mut Repair>,
        simd: Simd,
    ) -> Self {
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
        if let Some(layer) = layer {
            let packet = buffer.as_ref();
            match repair {
                None => {
                    if let Some(found) = find_partial(packet, layer, cut, simd) {
                        checksum = found.state();
                    }
                }
                Some(repair) => {
                    let layout = parse_datagram(packet, packet.len(), layer);
                    if let Some(found) = repair.find(packet, layer, &layout, cut, simd) {
                        checksum = repair.arrive(&found, &mut buffer);
                    }
                }
            }
        }
        let size = frame.options.segment_size();
        let gso = size.zip(layer).and_then(|(size, layer)| gso_of(buffer.as_ref(), layer, size));
        ArrivedFrame {
            buffer,
            link,
            checksum,
            gso,
            cut,
            interface: frame.interface,
            time: frame.time.map(|time| time.nanoseconds_since(clock_start(frame))),
        }
    }
}

/// Returns how to segment a super-packet with `size` bytes of payload in each segment.
#[cold]
fn gso_of(packet: &[u8], layer: Layer, size: NonZeroU16) -> Option<Gso> {
    let layout = parse_datagram(packet, packet.len(), layer).ok()?;
    Some(Gso::new(kind_of(&layout), SegmentSize::new(usize::from(size.get()))?))
}

/// Returns the kind of segments into which a packet with these headers is cut.
pub(crate) fn kind_of(layout: &Layout) -> GsoKind {
    match (layout.protocol, layout.version) {
        (Protocol::Tcp, IpVersion::V4) => GsoKind::Tcp4,
        (Protocol::Tcp, IpVersion::V6) => GsoKind::Tcp6,
        (Protocol::Udp, _) => GsoKind::Udp,
        (Protocol::Dccp, _) => GsoKind::Dccp,
    }
}

/// Finds the unfinished checksums of a packet. If the snap length has cut the packet (`cut`), only
/// its outermost IPv4 header is examined.
#[inline]
pub(crate) fn find_partial(
    packet: &[u8],
    layer: Layer,
    cut: bool,
    simd: Simd,
) -> Option<Checksums> {
    let layout = parse_datagram(packet, packet.len(), layer)
        .ok()
        .filter(|layout| !cut && layout.refusal != Some(Refusal::Truncated));
    Checksums::find(packet, layer, layout.as_ref(), simd)
}

/// The reason why a frame was passed on unchanged instead of being given to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PassReason {
    /// The engine does not know the link type of the frame.
    LinkType,
    /// The snap length has cut the frame after the end of its IP packet.
    SnapLength,
}

/// Returns the number of the first frame in a packet from [`CaptureAggregator`], counted from 1.
/// Only the low 32 bits are known.
#[inline]
pub(crate) fn first_frame(metadata: &Metadata) -> u32 {
    metadata.hash.map_or(0, |number| number.0)
}

/// Returns the number of the last frame in a packet, like [`first_frame`].
#[inline]
pub(crate) fn last_frame(metadata: &Metadata) -> u32 {
    metadata.time as u32
}

impl PassReason {
    /// Returns the index of the reason's name in `PASS_REASONS`.
    pub(crate) const fn index(self) -> usize {
        match self {
            PassReason::LinkType => 0,
            PassReason::SnapLength => 1,
        }
    }
}

/// Receives the frames and packets that leave a [`CaptureAggregator`].
pub(crate) trait FrameSink {
    /// Receives a packet from the engine, merged or single. `link` is the link header of all
    /// packets in it.
    fn packet(&mut self, link: &LinkHeader, packet: SuperPacket<'_, Buffer>);
    /// Receives a frame that was not given to the engine, for the reason `why`.
    fn passed(&mut self, interface: u32, buffer: &Buffer, why: PassReason);
}

/// A sink that discards the packets that leave the aggregator, because they belong to an earlier
/// part of the capture.
pub(crate) struct Discard;

impl FrameSink for Discard {
    fn packet(&mut self, _link: &LinkHeader, _packet: SuperPacket<'_, Buffer>) {}

    fn passed(&mut self, _interface: u32, _buffer: &Buffer, _why: PassReason) {}
}

/// Which held packets to flush.
#[derive(Clone, Copy, Debug)]
enum Flush {
    /// All packets that may not be held after the end of a poll.
    PollEnd,
    /// All held packets.
    All,
    /// Packets that have been held for too long. The first value is the current time and the second
    /// is the maximum hold time, both in nanoseconds.
    OlderThan(u64, u64),
}

struct Lane {
    link: LinkHeader,
    aggregator: Aggregator<Buffer>,
    /// Number of packets that had been read from the capture when the lane was last used.
    used: u64,
}

/// The aggregators of a capture, one for each link header.
pub(crate) struct CaptureAggregator {
    policy: Policy,
    simd: Simd,
    stepping: Stepping,
    lanes: Vec<Lane>,
    /// Index of the lane that the previous packet used.
    last: usize,
    clock: u64,
    packets: u64,
    in_poll: u64,
}

impl CaptureAggregator {
    /// Returns aggregators that hold no packets. Limits of the policy that are above those of this
    /// crate are lowered.
    pub(crate) fn new(policy: Policy, stepping: Stepping, simd: Simd) -> Self {
        let policy = policy
            .with_max_fragments(policy.max_fragments.min(MAX_PACKETS))
            .with_max_packets(policy.max_packets.min(MAX_PACKETS))
            .with_max_flows(policy.max_flows.min(MAX_FLOWS))
            .with_max_held_bytes(HELD_BYTES)
            .with_hold_time(0);
        CaptureAggregator {
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

    /// Flushes all packets if the memory of held frames would exceed [`MEMORY_LIMIT`] with this
    /// frame. Must be called before the frame is copied into the pool of buffers.
    #[inline]
    pub(crate) fn make_room<T: FrameSink>(
        &mut self,
        frame: &Frame<'_>,
        pool: &BufferPool,
        sink: &mut T,
    ) {
        if pool.used() + frame.data.len() + frame.options.bytes().len() > MEMORY_LIMIT {
            self.flush(Flush::All, sink);
        }
    }

    /// Aggregates a frame, and returns whether it was merged into an earlier packet. Before that,
    /// packets that have been held for too long leave the aggregator. Afterwards, all held packets
    /// leave it if the frame is the last one of the poll.
    #[inline]
    pub(crate) fn receive<T: FrameSink>(
        &mut self,
        arrival: ArrivedFrame,
        pool: &BufferPool,
        sink: &mut T,
    ) -> bool {
        self.advance_clock(arrival.time, sink);
        self.packets += 1;
        let mut joined = false;
        match arrival.link {
            None => sink.passed(arrival.interface, &arrival.buffer, PassReason::LinkType),
            Some(link) => {
                let index = self.lane(&link, sink);
                let (time, number) = (self.clock, self.packets);
                if let Some(lane) = self.lanes.get_mut(index) {
                    lane.used = self.packets;
                    // A trait object: otherwise the engine would be compiled again for each type of
                    // sink.
                    let emit: &mut dyn FnMut(SuperPacket<'_, Buffer>) =
                        &mut |packet| sink.packet(&lane.link, packet);
                    let interface = arrival.interface;
                    // The engine uses neither of the two numbers: it returns the hash of a merged
                    // packet's first frame, and the time of its last one.
                    let mut packet = RxPacket::new(arrival.buffer)
                        .with_checksum(arrival.checksum)
                        .with_time(number);
                    packet.hash = Some(FlowHash(number as u32));
                    packet.layer = link.layer;
                    packet.gso = arrival.gso;
                    if arrival.cut && is_whole(&packet) {
                        lane.aggregator.flush_flow(&packet, emit);
                        if let Some(buffer) = packet.buffers().next() {
                            sink.passed(interface, buffer, PassReason::SnapLength);
                        }
                    } else {
                        let merged = lane.aggregator.counters().merged;
                        lane.aggregator.receive(packet, time, emit);
                        joined = lane.aggregator.counters().merged != merged;
                    }
                }
            }
        }
        self.in_poll += 1;
        if self.in_poll == self.stepping.batch {
            self.in_poll = 0;
            self.flush(Flush::PollEnd, sink);
        }
        if pool.used() > MEMORY_LIMIT {
            self.flush(Flush::All, sink);
        }
        joined
    }

    /// Flushes all held packets.
    pub(crate) fn finish<T: FrameSink>(&mut self, sink: &mut T) {
        self.flush(Flush::PollEnd, sink);
    }

    /// Returns the number of held packets; a merged packet counts as one.
    pub(crate) fn held(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.aggregator.counters().held).sum()
    }

    /// Returns the number of packets that were not aggregated because the flow table of LRO was
    /// full.
    pub(crate) fn refused(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.aggregator.counters().no_desc).sum()
    }

    /// Returns whether a poll has just ended or, if there are no polls, whether no packet is held.
    pub(crate) fn is_between_polls(&self) -> bool {
        if self.stepping.batch == 0 { self.held() == 0 } else { self.in_poll == 0 }
    }

    /// Returns whether the aggregators' counters account for every packet that they received.
    pub(crate) fn balanced(&self) -> bool {
        self.lanes.iter().all(|lane| lane.aggregator.counters().balanced())
    }

    fn advance_clock<T: FrameSink>(&mut self, time: Option<u64>, sink: &mut T) {
        let hold = self.stepping.hold;
        if let Some(time) = time {
            if time < self.clock.saturating_sub(hold) {
                self.flush(Flush::All, sink);
                self.clock = time;
            } else if time > self.clock {
                self.clock = time;
                self.flush(Flush::OlderThan(time, hold), sink);
            }
        }
    }

    #[inline]
    fn flush<T: FrameSink>(&mut self, what: Flush, sink: &mut T) {
        for lane in &mut self.lanes {
            if lane.aggregator.counters().held == 0 {
                continue;
            }
            let mut emit = |packet: SuperPacket<'_, Buffer>| sink.packet(&lane.link, packet);
            match what {
                Flush::PollEnd => lane.aggregator.poll_end(0, &mut emit),
                Flush::All => lane.aggregator.flush_all(&mut emit),
                // The engine would also flush packets of exactly this age, but only older ones may
                // leave here.
                Flush::OlderThan(now, age) => {
                    lane.aggregator.flush_older_than(now, age.saturating_add(1), &mut emit)
                }
            }
        }
    }

    /// Returns the index of the lane for a link header. If there is none, creates a lane, or reuses
    /// one after flushing it.
    #[inline]
    fn lane<T: FrameSink>(&mut self, link: &LinkHeader, sink: &mut T) -> usize {
        if self.lanes.get(self.last).is_none_or(|lane| lane.link != *link) {
            self.last = self.find_lane(link, sink);
        }
        self.last
    }

    fn find_lane<T: FrameSink>(&mut self, link: &LinkHeader, sink: &mut T) -> usize {
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
                .flush_all(&mut |packet: SuperPacket<'_, Buffer>| sink.packet(&lane.link, packet));
            lane.link = *link;
        }
        idle
    }
}

/// Returns whether the IP packet is complete although its frame was cut by the snap length. The
/// engine then cannot notice the cut.
fn is_whole(packet: &RxPacket<Buffer>) -> bool {
    let Some(buffer) = packet.buffers().next() else { return false };
    match parse(buffer.as_ref(), buffer.as_ref().len(), packet.layer) {
        Ok(layout) => layout.refusal != Some(Refusal::Truncated),
        // The engine lets a packet that it cannot parse pass in any case.
        Err(_) => false,
    }
}
