//! Puts the packets of TCP streams in order: a packet behind a gap in the sequence numbers waits
//! for a short time, so that the missing ones can come first.

use alloc::vec::Vec;

use crate::aggregate::HashKey;
use crate::packet::{Gathered, RxPacket};
use crate::wire::{Layout, MAX_HEADER, Protocol, Scope, be32, byte, parse_usual, tcp, usual, walk};

/// Maximum number of flows that have a gap at the same time. All of them are searched for a packet
/// whose flow cannot be determined.
const MAX_GAPS: usize = 64;

/// Number of table entries in which a flow may be stored.
const WAYS: usize = 4;

/// Limits of how many packets wait for missing earlier ones, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GapLimits {
    /// Maximum time that a packet waits for earlier ones, in nanoseconds of the caller's clock; 0
    /// if none waits.
    pub hold_time: u64,
    /// Number of flows that are remembered, 4 to 1,048,576; rounded up to a power of two.
    pub max_flows: u32,
    /// Maximum number of packets of one flow that wait at the same time.
    pub max_packets: u32,
    /// Maximum length of all frames that wait at the same time, in bytes; all flows together.
    pub max_held_bytes: u64,
    /// Maximum length of a gap in bytes of payload, at most 2^30. A packet further ahead probably
    /// belongs to another connection.
    pub max_gap: u32,
}

impl GapLimits {
    /// Makes limits of 1,024 flows, 64 waiting packets per flow, gaps of at most 1 MiB, and 4 MiB
    /// of waiting frames in total. Packets wait for at most `hold_time` nanoseconds.
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

/// Counters of packets that came before earlier ones of their flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GapCounters {
    /// Number of packets that had to wait.
    pub waited: u64,
    /// Waiting packets that left because the missing earlier packets came.
    pub filled: u64,
    /// Waiting packets that left because their time was up, or the time of a packet that waited
    /// with them.
    pub timed_out: u64,
    /// Waiting packets that left because another packet must not overtake them, because of a limit,
    /// or on request.
    pub released: u64,
    /// Number of packets that wait now.
    pub waiting: u64,
    /// Total length of the frames that wait at present, in bytes.
    pub waiting_bytes: u64,
}

/// Puts reordered segments of TCP streams in order, by their sequence numbers alone. A packet
/// behind a gap waits until the gap is filled, but not longer than [`GapLimits::hold_time`].
///
/// To be used before an aggregator, in which each reordered packet would end a merge twice: when it
/// comes early, and when the missing one follows. (Juggler, EuroSys 2016, does the same for
/// multiple paths in a data center.)
///
/// A segment leaves no earlier than packets that came before it, except for the missing ones.
/// Packets other than plain data (pure ACKs, SYN, FIN, RST, URG) and fragments between the same
/// addresses overtake no waiting packet: it leaves before them. Packets other than TCP pass. No
/// byte is changed, no packet is lost, and checksums are not verified.
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
    /// The flows, in sets of [`WAYS`].
    flows: Vec<StreamState<B>>,
    /// Indices of the flows that have a gap.
    open: Vec<u32>,
    /// Time before which no waiting packet needs to be released; may be earlier than the actual
    /// first deadline.
    earliest: u64,
    /// Number of packets so far; used as a clock to find the flow that has been idle longest.
    tick: u64,
    counters: GapCounters,
    /// Packets that are released during a call; empty between calls.
    left: Vec<RxPacket<B>>,
}

#[derive(Debug)]
struct StreamState<B> {
    hash: u64,
    /// Hash of the flow's addresses.
    pair: u64,
    /// Value of [`Gaps::tick`] at the flow's last packet with data; 0 if this entry is free.
    used: u64,
    /// The next expected sequence number.
    next: u32,
    /// Index in [`Gaps::open`], if packets of the flow wait.
    place: u32,
    /// The waiting packets in order of their sequence numbers; none of them overlap.
    waiting: Vec<WaitingPacket<B>>,
}

#[derive(Debug)]
struct WaitingPacket<B> {
    packet: RxPacket<B>,
    sequence: u32,
    payload: u32,
    length: u64,
    since: u64,
}

/// The role of a packet in its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PacketRole {
    /// The packet is not TCP, or its flow cannot be found.
    Other,
    /// The packet may belong to any flow between these addresses.
    Between { pair: u64 },
    /// The packet is TCP, but not plain data, and must not overtake waiting data. `ends`: it begins
    /// or ends a connection (SYN, FIN, RST).
    Control { flow: u64, ends: bool },
    /// The packet is plain data.
    Data { flow: u64, pair: u64, sequence: u32, payload: u32 },
}

/// The reason why waiting packets leave although the gap before them is not filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    TimedOut,
    Released,
}

impl<B> Gaps<B> {
    /// Makes a `Gaps` in which no packet waits. Limits that are out of range are replaced by the
    /// nearest valid value. `key` should be random if the traffic may be hostile.
    pub fn new(limits: GapLimits, key: HashKey) -> Self {
        let max_flows = limits.max_flows.clamp(WAYS as u32, 1 << 20).next_power_of_two();
        let limits = GapLimits { max_flows, max_gap: limits.max_gap.min(1 << 30), ..limits };
        let vacant =
            || StreamState { hash: 0, pair: 0, used: 0, next: 0, place: 0, waiting: Vec::new() };
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

    /// Returns the limits in force.
    pub const fn limits(&self) -> &GapLimits {
        &self.limits
    }

    /// Returns the counters since this `Gaps` was made.
    pub const fn counters(&self) -> &GapCounters {
        &self.counters
    }

    /// Returns the time at which a waiting packet must leave, in nanoseconds of the caller's clock;
    /// `None` if none waits.
    pub fn deadline(&self) -> Option<u64> {
        let waiting = self.open.iter().flat_map(|&slot| &self.flows[slot as usize].waiting);
        waiting.map(|waiting| waiting.since.saturating_add(self.limits.hold_time)).min()
    }

    /// Appends to `packets` the waiting packets of each flow in which a packet has waited for the
    /// maximum time.
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
                // Another flow takes its index.
                self.release(slot, Cause::TimedOut, packets);
            } else {
                index += 1;
            }
        }
        self.earliest = self.deadline().unwrap_or(u64::MAX);
    }

    /// Appends all waiting packets to `packets`.
    pub fn release_all(&mut self, packets: &mut Vec<RxPacket<B>>) {
        while let Some(&slot) = self.open.last() {
            self.release(slot, Cause::Released, packets);
        }
        self.earliest = u64::MAX;
    }

    /// Appends the waiting packets of a flow to `left`, in order of their sequence numbers, and
    /// stops waiting for the packets that are missing.
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

    /// Removes a flow, none of whose packets wait any more, from the list of flows with a gap.
    fn close(&mut self, slot: u32) {
        let place = self.flows[slot as usize].place as usize;
        self.open.swap_remove(place);
        if let Some(&moved) = self.open.get(place) {
            self.flows[moved as usize].place = place as u32;
        }
    }

    /// Returns the table entries in which a flow may be stored.
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

    /// Returns the entry for a new flow: a free one, or the flow that has been idle longest,
    /// preferably one without a gap.
    fn vacate(&self, hash: u64) -> u32 {
        let by_use = |&slot: &usize| (!self.flows[slot].waiting.is_empty(), self.flows[slot].used);
        self.set(hash).min_by_key(by_use).unwrap_or(0) as u32
    }

    fn forget(&mut self, slot: u32) {
        self.flows[slot as usize].used = 0;
    }
}

impl<B: AsRef<[u8]>> Gaps<B> {
    /// Receives the packets of a poll: removes from `packets` those that arrived before earlier
    /// ones of their flow and must wait, and inserts those whose wait is over. `now` is in
    /// nanoseconds and never decreases.
    pub fn receive(&mut self, packets: &mut Vec<RxPacket<B>>, now: u64) {
        self.receive_keeping(packets, now, |packet| packet);
    }

    /// Receives as [`receive`](Self::receive) does. `keep` converts each packet that must wait. A
    /// caller whose device needs its buffers back returns a copy from `keep`, with all metadata.
    pub fn receive_keeping(
        &mut self,
        packets: &mut Vec<RxPacket<B>>,
        now: u64,
        mut keep: impl FnMut(RxPacket<B>) -> RxPacket<B>,
    ) {
        let mut left = core::mem::take(&mut self.left);
        self.release_expired(now, &mut left);
        // Most packets come in order and stay where they are.
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

    /// Returns whether a packet can be delivered at once without releasing any waiting packet; if
    /// so, updates its flow. If it returns `false`, no flow has changed.
    fn passes(&mut self, packet: &RxPacket<B>) -> bool {
        match self.role(packet) {
            PacketRole::Other => true,
            PacketRole::Between { .. } => self.open.is_empty(),
            PacketRole::Control { flow, ends } => match self.find(flow) {
                Some(slot) if !self.flows[slot as usize].waiting.is_empty() => false,
                Some(slot) if ends => {
                    self.forget(slot);
                    true
                }
                _ => true,
            },
            PacketRole::Data { flow, pair, sequence, payload } => {
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

    /// Processes a packet that may have to wait, or that others may have waited for.
    fn take(
        &mut self,
        packet: RxPacket<B>,
        now: u64,
        keep: &mut impl FnMut(RxPacket<B>) -> RxPacket<B>,
        left: &mut Vec<RxPacket<B>>,
    ) {
        match self.role(&packet) {
            PacketRole::Other => {}
            PacketRole::Between { pair } => {
                while let Some(&slot) =
                    self.open.iter().find(|&&slot| self.flows[slot as usize].pair == pair)
                {
                    self.release(slot, Cause::Released, left);
                }
            }
            PacketRole::Control { flow, ends } => {
                if let Some(slot) = self.find(flow) {
                    self.release(slot, Cause::Released, left);
                    if ends {
                        self.forget(slot);
                    }
                }
            }
            PacketRole::Data { flow, pair, sequence, payload } => {
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

    /// Stores a packet behind a gap if it may wait; otherwise returns it.
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
        flow.waiting.insert(
            place,
            WaitingPacket { packet: keep(packet), sequence, payload, length, since: now },
        );
        self.earliest = self.earliest.min(now.saturating_add(limits.hold_time));
        self.counters.waited += 1;
        self.counters.waiting += 1;
        self.counters.waiting_bytes += length;
        None
    }

    /// Appends to `left` the waiting packets of a flow that have no gap before them any more.
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
    fn role(&self, packet: &RxPacket<B>) -> PacketRole {
        // Compiled separately for the most frequent layouts.
        match self.usual_role::<{ usual::ETHERNET_IPV4 }>(packet) {
            Some(role) => role,
            None => self.other_role(packet),
        }
    }

    #[inline(never)]
    fn other_role(&self, packet: &RxPacket<B>) -> PacketRole {
        let usual = self.usual_role::<{ usual::ETHERNET_IPV6 }>(packet);
        let usual = usual
            .or_else(|| self.usual_role::<{ usual::IPV4 }>(packet))
            .or_else(|| self.usual_role::<{ usual::IPV6 }>(packet));
        usual.unwrap_or_else(|| self.any_role(packet))
    }

    /// Returns the role of a packet with this [usual] layout; `None` if it has another.
    #[inline(always)]
    fn usual_role<const USUAL: u8>(&self, packet: &RxPacket<B>) -> Option<PacketRole> {
        let RxPacket { first, rest: None, layer, .. } = packet else { return None };
        let header = first.as_ref();
        let (payload, end) = parse_usual::<USUAL>(header, header.len(), *layer)?;
        Some(self.role_of(packet, header, &Layout::usual(USUAL, payload, end)))
    }

    /// Returns the role of a packet with any layout.
    fn any_role(&self, packet: &RxPacket<B>) -> PacketRole {
        let first = packet.first.as_ref();
        let length = packet.length();
        let gathered = (first.len() < length.min(MAX_HEADER))
            .then(|| Gathered::new(packet.buffers().map(AsRef::as_ref)));
        let header = gathered.as_ref().map_or(first, Gathered::bytes);
        match &walk(header, length, packet.layer) {
            Ok(layout) => self.role_of(packet, header, layout),
            Err(unparsed) => match unparsed.scope {
                Scope::Pair { network, version } => PacketRole::Between {
                    pair: self.key.pair(header, usize::from(network), version),
                },
                Scope::None => PacketRole::Other,
            },
        }
    }

    #[inline(always)]
    fn role_of(&self, packet: &RxPacket<B>, header: &[u8], layout: &Layout) -> PacketRole {
        if layout.protocol != Protocol::Tcp {
            return PacketRole::Other;
        }
        let identity = self.key.flow(header, layout, packet.layer, packet.vlan);
        let transport = usize::from(layout.transport);
        let flags = byte(header, transport + tcp::FLAGS);
        let payload = layout.end.saturating_sub(u32::from(layout.payload));
        if payload == 0
            || flags & (tcp::SYN | tcp::FIN | tcp::RST | tcp::URG | tcp::ACK) != tcp::ACK
        {
            return PacketRole::Control {
                flow: identity.flow,
                ends: flags & (tcp::SYN | tcp::FIN | tcp::RST) != 0,
            };
        }
        PacketRole::Data {
            flow: identity.flow,
            pair: identity.pair,
            sequence: be32(header, transport + tcp::SEQUENCE),
            payload,
        }
    }
}

impl<B> StreamState<B> {
    /// Returns whether a sequence number is far from the expected one: the packet belongs to
    /// another connection, or is garbage.
    fn is_far(&self, sequence: u32, max_gap: u32) -> bool {
        sequence.wrapping_sub(self.next) > max_gap && self.next.wrapping_sub(sequence) > max_gap
    }

    /// Advances the expected sequence number when data from `sequence` to `end` is delivered.
    fn advance(&mut self, sequence: u32, end: u32, max_gap: u32) {
        if self.is_far(sequence, max_gap) || is_later(end, self.next) {
            self.next = end;
        }
    }
}

/// Returns whether sequence number `one` is after `other` (RFC 9293, section 3.4).
fn is_later(one: u32, other: u32) -> bool {
    (1..1 << 31).contains(&one.wrapping_sub(other))
}
