//! Gaps in TCP streams, kept open for a moment.

use alloc::vec::Vec;

use crate::aggregate::HashKey;
use crate::packet::{Gathered, RxPacket};
use crate::wire::{Layout, MAX_HEADER, Protocol, Scope, be32, byte, parse_usual, tcp, usual, walk};

/// The flows that may have a gap at a time: what a packet of unknown flow may belong to is looked
/// for among all of them.
const MAX_GAPS: usize = 64;

/// Places of the table that a flow may have.
const WAYS: usize = 4;

/// What may wait in front of a gap, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GapLimits {
    /// The longest that a packet waits for those before it, in nanoseconds of the caller's clock;
    /// 0: none waits.
    pub hold_time: u64,
    /// How many flows are remembered, 4 to 1,048,576; rounded up to a power of two.
    pub max_flows: u32,
    /// The most packets of one flow that wait at a time.
    pub max_packets: u32,
    /// The most bytes of frames that wait at a time, of all flows.
    pub max_held_bytes: u64,
    /// The longest gap, in bytes of payload, at most 2^30. What is farther ahead is another
    /// connection's, or nobody's.
    pub max_gap: u32,
}

impl GapLimits {
    /// 1,024 flows, of each at most 64 packets behind a gap of at most 1 MiB, 4 MiB of frames
    /// together.
    pub const fn new(hold_time: u64) -> Self {
        GapLimits {
            hold_time,
            max_flows: 1_024,
            max_packets: 64,
            max_held_bytes: 4 << 20,
            max_gap: 1 << 20,
        }
    }
}

/// What happened to packets that came before others of their flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GapCounters {
    /// Packets that had to wait.
    pub waited: u64,
    /// Those that left because what was missing came.
    pub filled: u64,
    /// Those that left because their time, or that of one which they waited with, was up.
    pub timed_out: u64,
    /// Those that left because another packet may not overtake them, by a limit, or because they
    /// were asked for.
    pub released: u64,
    /// Those that wait now.
    pub waiting: u64,
    /// Bytes of their frames.
    pub waiting_bytes: u64,
}

/// Puts the segments of TCP streams in order that overtook each other, without knowing more of them
/// than their sequence numbers: what comes ahead of a gap waits until the gap is filled, but not
/// longer than it may ([`GapLimits::hold_time`]).
///
/// A stage before an aggregator: a packet that overtook others ends what they merge into, and again
/// when they come. (Juggler, EuroSys 2016, does so for a data center's multiple paths.)
///
/// A segment leaves no earlier than what came before it, but for what was missing. Packets that are
/// not plain data (pure ACKs, SYN, FIN, RST, URG) and fragments between the same addresses overtake
/// none that waits: it leaves before them. What is no TCP passes. No byte is changed, nothing is
/// lost, and checksums are not looked at.
///
/// ```
/// use superpacket::order::{GapLimits, Gaps};
/// use superpacket::{HashKey, RxPacket};
/// # use superpacket_traffic::frame::Frame;
///
/// # let segment = |number: u32| Frame::tcp4(1 + number * 100, 100).with_id(number as u16).to_bytes();
/// let mut gaps = Gaps::new(GapLimits::new(50_000), HashKey::random());
/// let mut polls = [vec![segment(0), segment(2)], vec![segment(1)]].map(|poll| poll.into_iter().map(RxPacket::new).collect::<Vec<_>>());
///
/// gaps.receive(&mut polls[0], 1_000);
/// assert_eq!((polls[0].len(), gaps.deadline()), (1, Some(51_000)));
/// gaps.receive(&mut polls[1], 2_000);
/// assert_eq!((polls[1].len(), gaps.deadline()), (2, None));
/// ```
#[derive(Debug)]
pub struct Gaps<B> {
    limits: GapLimits,
    key: HashKey,
    /// In sets of [`WAYS`].
    flows: Vec<Flow<B>>,
    /// Those that have a gap.
    open: Vec<u32>,
    /// None is to leave before; later than the first may be.
    earliest: u64,
    /// Counts packets, so that it is known which flow sent none for longest.
    tick: u64,
    counters: GapCounters,
    /// What leaves in a call; empty between calls.
    left: Vec<RxPacket<B>>,
}

#[derive(Debug)]
struct Flow<B> {
    hash: u64,
    /// The hash of its addresses.
    pair: u64,
    /// When it sent last; 0: this place is free.
    used: u64,
    /// The sequence number of what is expected next.
    next: u32,
    /// Its place in [`Gaps::open`], where anything waits.
    place: u32,
    /// In the order of their sequence numbers, none of which overlap.
    waiting: Vec<Waiting<B>>,
}

#[derive(Debug)]
struct Waiting<B> {
    packet: RxPacket<B>,
    sequence: u32,
    payload: u32,
    length: u64,
    since: u64,
}

/// What a packet is to its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// No flow of TCP, or none that can be known.
    Other,
    /// It may belong to any flow between these addresses.
    Between { pair: u64 },
    /// It must not overtake data.
    Control { flow: u64, ends: bool },
    /// Plain data.
    Data { flow: u64, pair: u64, sequence: u32, payload: u32 },
}

/// Why packets leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    TimedOut,
    Released,
}

impl<B> Gaps<B> {
    /// Has no gap open. Limits are brought into range; `key` should be random where others choose
    /// the traffic.
    pub fn new(limits: GapLimits, key: HashKey) -> Self {
        let max_flows = limits.max_flows.clamp(WAYS as u32, 1 << 20).next_power_of_two();
        let limits = GapLimits { max_flows, max_gap: limits.max_gap.min(1 << 30), ..limits };
        let vacant = || Flow { hash: 0, pair: 0, used: 0, next: 0, place: 0, waiting: Vec::new() };
        Gaps {
            limits,
            key,
            flows: (0..max_flows).map(|_| vacant()).collect(),
            open: Vec::with_capacity(MAX_GAPS),
            earliest: u64::MAX,
            tick: 0,
            counters: GapCounters::default(),
            left: Vec::new(),
        }
    }

    /// The limits in force.
    pub const fn limits(&self) -> &GapLimits {
        &self.limits
    }

    /// What happened so far.
    pub const fn counters(&self) -> &GapCounters {
        &self.counters
    }

    /// When a packet must leave that waits now, in nanoseconds of the caller's clock.
    pub fn deadline(&self) -> Option<u64> {
        let waiting = self.open.iter().flat_map(|&slot| &self.flows[slot as usize].waiting);
        waiting.map(|waiting| waiting.since.saturating_add(self.limits.hold_time)).min()
    }

    /// Appends what has waited as long as it may.
    pub fn release_expired(&mut self, now: u64, packets: &mut Vec<RxPacket<B>>) {
        if now < self.earliest {
            return;
        }
        let mut index = 0;
        while let Some(&slot) = self.open.get(index) {
            let since = self.flows[slot as usize]
                .waiting
                .iter()
                .map(|waiting| waiting.since)
                .min()
                .unwrap_or(now);
            if now.saturating_sub(since) >= self.limits.hold_time {
                // Another takes its place.
                self.release(slot, Cause::TimedOut, packets);
            } else {
                index += 1;
            }
        }
        self.earliest = self.deadline().unwrap_or(u64::MAX);
    }

    /// Appends all that waits.
    pub fn release_all(&mut self, packets: &mut Vec<RxPacket<B>>) {
        while let Some(&slot) = self.open.last() {
            self.release(slot, Cause::Released, packets);
        }
        self.earliest = u64::MAX;
    }

    /// Appends what waits of a flow, in the order of its sequence numbers: the gap is given up.
    fn release(&mut self, slot: u32, cause: Cause, left: &mut Vec<RxPacket<B>>) {
        let flow = &mut self.flows[slot as usize];
        let Some(last) = flow.waiting.last() else { return };
        flow.next = last.sequence.wrapping_add(last.payload);
        let count = flow.waiting.len() as u64;
        match cause {
            Cause::TimedOut => self.counters.timed_out += count,
            Cause::Released => self.counters.released += count,
        }
        self.counters.waiting -= count;
        for waiting in flow.waiting.drain(..) {
            self.counters.waiting_bytes -= waiting.length;
            left.push(waiting.packet);
        }
        self.close(slot);
    }

    /// Nothing waits in a flow any more.
    fn close(&mut self, slot: u32) {
        let place = self.flows[slot as usize].place as usize;
        self.open.swap_remove(place);
        if let Some(&moved) = self.open.get(place) {
            self.flows[moved as usize].place = place as u32;
        }
    }

    /// The places of the table that a flow may have.
    #[inline(always)]
    fn set(&self, hash: u64) -> core::ops::Range<usize> {
        let first = (hash as usize & (self.flows.len() / WAYS - 1)) * WAYS;
        first..first + WAYS
    }

    #[inline(always)]
    fn find(&self, hash: u64) -> Option<u32> {
        self.set(hash)
            .find(|&slot| self.flows[slot].used != 0 && self.flows[slot].hash == hash)
            .map(|slot| slot as u32)
    }

    /// The place for a flow that has none: a free one, or that of the flow which sent nothing for
    /// longest, of those without a gap if there is one.
    fn vacate(&self, hash: u64) -> u32 {
        let by_use = |&slot: &usize| (!self.flows[slot].waiting.is_empty(), self.flows[slot].used);
        self.set(hash).min_by_key(by_use).unwrap_or(0) as u32
    }

    fn forget(&mut self, slot: u32) {
        self.flows[slot as usize].used = 0;
    }
}

impl<B: AsRef<[u8]>> Gaps<B> {
    /// Takes packets out of `packets` that came ahead of others of their flow, and puts those in
    /// that have waited: for what came now, or as long as they may. `now` is in nanoseconds, and
    /// never goes back.
    pub fn receive(&mut self, packets: &mut Vec<RxPacket<B>>, now: u64) {
        self.receive_keeping(packets, now, |packet| packet);
    }

    /// As [`receive`](Self::receive); each packet that must wait is what `keep` makes of it. Where
    /// buffers are the device's, which wants them back, that is a copy with all that is known of
    /// the packet.
    pub fn receive_keeping(
        &mut self,
        packets: &mut Vec<RxPacket<B>>,
        now: u64,
        mut keep: impl FnMut(RxPacket<B>) -> RxPacket<B>,
    ) {
        let mut left = core::mem::take(&mut self.left);
        self.release_expired(now, &mut left);
        // Most come in order, and stay where they are.
        let stay = if left.is_empty() {
            packets.iter().take_while(|packet| self.passes(packet)).count()
        } else {
            0
        };
        if stay < packets.len() || !left.is_empty() {
            for packet in packets.drain(stay..) {
                self.take(packet, now, &mut keep, &mut left);
            }
            packets.append(&mut left);
        }
        self.left = left;
    }

    /// Does a packet pass, and nothing because of it? Where not, no flow has changed.
    fn passes(&mut self, packet: &RxPacket<B>) -> bool {
        match self.kind(packet) {
            Kind::Other => true,
            Kind::Between { .. } => self.open.is_empty(),
            Kind::Control { flow, ends } => match self.find(flow) {
                Some(slot) if !self.flows[slot as usize].waiting.is_empty() => false,
                Some(slot) if ends => {
                    self.forget(slot);
                    true
                }
                _ => true,
            },
            Kind::Data { flow, pair, sequence, payload } => {
                let end = sequence.wrapping_add(payload);
                self.tick += 1;
                let Some(slot) = self.find(flow) else {
                    let slot = self.vacate(flow);
                    let place = &mut self.flows[slot as usize];
                    if !place.waiting.is_empty() {
                        return false;
                    }
                    (place.hash, place.pair, place.used, place.next) = (flow, pair, self.tick, end);
                    return true;
                };
                let flow = &mut self.flows[slot as usize];
                if !flow.waiting.is_empty()
                    || (1..=self.limits.max_gap).contains(&sequence.wrapping_sub(flow.next))
                {
                    return false;
                }
                flow.used = self.tick;
                flow.advance(sequence, end, self.limits.max_gap);
                true
            }
        }
    }

    /// Takes a packet that may have to wait, or for which others do.
    fn take(
        &mut self,
        packet: RxPacket<B>,
        now: u64,
        keep: &mut impl FnMut(RxPacket<B>) -> RxPacket<B>,
        left: &mut Vec<RxPacket<B>>,
    ) {
        match self.kind(&packet) {
            Kind::Other => {}
            Kind::Between { pair } => {
                while let Some(&slot) =
                    self.open.iter().find(|&&slot| self.flows[slot as usize].pair == pair)
                {
                    self.release(slot, Cause::Released, left);
                }
            }
            Kind::Control { flow, ends } => {
                if let Some(slot) = self.find(flow) {
                    self.release(slot, Cause::Released, left);
                    if ends {
                        self.forget(slot);
                    }
                }
            }
            Kind::Data { flow, pair, sequence, payload } => {
                let end = sequence.wrapping_add(payload);
                self.tick += 1;
                let slot = self.find(flow).unwrap_or_else(|| {
                    let slot = self.vacate(flow);
                    self.release(slot, Cause::Released, left);
                    let place = &mut self.flows[slot as usize];
                    (place.hash, place.pair, place.next) = (flow, pair, sequence);
                    slot
                });
                let ahead = sequence.wrapping_sub(self.flows[slot as usize].next);
                self.flows[slot as usize].used = self.tick;
                if (1..=self.limits.max_gap).contains(&ahead) {
                    let Some(packet) = self.wait(slot, packet, (sequence, payload), now, keep)
                    else {
                        return;
                    };
                    self.release(slot, Cause::Released, left);
                    left.push(packet);
                } else {
                    if self.flows[slot as usize].is_far(sequence, self.limits.max_gap) {
                        self.release(slot, Cause::Released, left);
                    }
                    left.push(packet);
                }
                self.flows[slot as usize].advance(sequence, end, self.limits.max_gap);
                self.fill(slot, left);
                return;
            }
        }
        left.push(packet);
    }

    /// Has a packet wait that is ahead of a gap, if it may; else it is given back.
    fn wait(
        &mut self,
        slot: u32,
        packet: RxPacket<B>,
        (sequence, payload): (u32, u32),
        now: u64,
        keep: &mut impl FnMut(RxPacket<B>) -> RxPacket<B>,
    ) -> Option<RxPacket<B>> {
        let flow = &mut self.flows[slot as usize];
        let length = packet.length() as u64;
        let limits = &self.limits;
        let fits = limits.hold_time > 0
            && flow.waiting.len() < limits.max_packets as usize
            && self.counters.waiting_bytes + length <= limits.max_held_bytes
            && (!flow.waiting.is_empty() || self.open.len() < MAX_GAPS);
        let ahead = |number: u32| number.wrapping_sub(flow.next);
        let place =
            flow.waiting.partition_point(|waiting| ahead(waiting.sequence) < ahead(sequence));
        let before = place.checked_sub(1).map(|before| &flow.waiting[before]);
        let overlaps = before
            .is_some_and(|before| ahead(before.sequence) + before.payload > ahead(sequence))
            || flow
                .waiting
                .get(place)
                .is_some_and(|behind| ahead(sequence) + payload > ahead(behind.sequence));
        if !fits || overlaps {
            return Some(packet);
        }
        if flow.waiting.is_empty() {
            flow.place = self.open.len() as u32;
            self.open.push(slot);
        }
        flow.waiting
            .insert(place, Waiting { packet: keep(packet), sequence, payload, length, since: now });
        self.earliest = self.earliest.min(now.saturating_add(limits.hold_time));
        self.counters.waited += 1;
        self.counters.waiting += 1;
        self.counters.waiting_bytes += length;
        None
    }

    /// Appends what waited and has no gap before it any more.
    fn fill(&mut self, slot: u32, left: &mut Vec<RxPacket<B>>) {
        let max_gap = self.limits.max_gap;
        let flow = &mut self.flows[slot as usize];
        let mut count = 0;
        let mut next = flow.next;
        for waiting in &flow.waiting {
            if (1..=max_gap).contains(&waiting.sequence.wrapping_sub(next)) {
                break;
            }
            let end = waiting.sequence.wrapping_add(waiting.payload);
            if is_later(end, next) {
                next = end;
            }
            count += 1;
        }
        if count == 0 {
            return;
        }
        flow.next = next;
        for waiting in flow.waiting.drain(..count) {
            self.counters.waiting_bytes -= waiting.length;
            left.push(waiting.packet);
        }
        self.counters.filled += count as u64;
        self.counters.waiting -= count as u64;
        if flow.waiting.is_empty() {
            self.close(slot);
        }
    }

    #[inline(always)]
    fn kind(&self, packet: &RxPacket<B>) -> Kind {
        // Compiled apart for the layouts that most packets have.
        match self.usual_kind::<{ usual::ETHERNET_IPV4 }>(packet) {
            Some(kind) => kind,
            None => self.other_kind(packet),
        }
    }

    #[inline(never)]
    fn other_kind(&self, packet: &RxPacket<B>) -> Kind {
        let usual = self.usual_kind::<{ usual::ETHERNET_IPV6 }>(packet);
        let usual = usual
            .or_else(|| self.usual_kind::<{ usual::IPV4 }>(packet))
            .or_else(|| self.usual_kind::<{ usual::IPV6 }>(packet));
        usual.unwrap_or_else(|| self.any_kind(packet))
    }

    /// What a packet is, if it has this [usual] layout.
    #[inline(always)]
    fn usual_kind<const USUAL: u8>(&self, packet: &RxPacket<B>) -> Option<Kind> {
        let RxPacket { first, rest: None, layer, .. } = packet else { return None };
        let header = first.as_ref();
        let (payload, end) = parse_usual::<USUAL>(header, header.len(), *layer)?;
        Some(self.kind_of(packet, header, &Layout::usual(USUAL, payload, end)))
    }

    /// What any packet is.
    fn any_kind(&self, packet: &RxPacket<B>) -> Kind {
        let first = packet.first.as_ref();
        let length = packet.length();
        let gathered = (first.len() < length.min(MAX_HEADER))
            .then(|| Gathered::new(packet.buffers().map(AsRef::as_ref)));
        let header = gathered.as_ref().map_or(first, Gathered::bytes);
        match &walk(header, length, packet.layer) {
            Ok(layout) => self.kind_of(packet, header, layout),
            Err(unparsed) => match unparsed.scope {
                Scope::Pair { network, version } => {
                    Kind::Between { pair: self.key.pair(header, usize::from(network), version) }
                }
                Scope::None => Kind::Other,
            },
        }
    }

    #[inline(always)]
    fn kind_of(&self, packet: &RxPacket<B>, header: &[u8], layout: &Layout) -> Kind {
        if layout.protocol != Protocol::Tcp {
            return Kind::Other;
        }
        let identity = self.key.flow(header, layout, packet.layer, packet.vlan);
        let transport = usize::from(layout.transport);
        let flags = byte(header, transport + tcp::FLAGS);
        let payload = layout.end.saturating_sub(u32::from(layout.payload));
        if payload == 0
            || flags & (tcp::SYN | tcp::FIN | tcp::RST | tcp::URG | tcp::ACK) != tcp::ACK
        {
            return Kind::Control {
                flow: identity.flow,
                ends: flags & (tcp::SYN | tcp::FIN | tcp::RST) != 0,
            };
        }
        Kind::Data {
            flow: identity.flow,
            pair: identity.pair,
            sequence: be32(header, transport + tcp::SEQUENCE),
            payload,
        }
    }
}

impl<B> Flow<B> {
    /// Is it neither near ahead of what is expected nor near behind it: another connection's, or
    /// garbage? What follows tells.
    fn is_far(&self, sequence: u32, max_gap: u32) -> bool {
        sequence.wrapping_sub(self.next) > max_gap && self.next.wrapping_sub(sequence) > max_gap
    }

    /// Data from `sequence` to `end` leaves, with nothing of the flow before it.
    fn advance(&mut self, sequence: u32, end: u32, max_gap: u32) {
        if self.is_far(sequence, max_gap) || is_later(end, self.next) {
            self.next = end;
        }
    }
}

/// Is one sequence number after the other (RFC 9293, section 3.4)?
fn is_later(one: u32, other: u32) -> bool {
    (1..1 << 31).contains(&one.wrapping_sub(other))
}
