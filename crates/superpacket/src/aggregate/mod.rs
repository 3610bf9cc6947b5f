//! Aggregation: many received packets in, few large ones out.
//!
//! The life of a packet, in this file from top to bottom: [`Aggregator::receive_batch`] asks ahead for the headers of packets to come, and takes one
//! after the other. Its headers are compared with those of the flow hit last; if they do not fit they are [parsed](crate::wire::parse) and the
//! flow is looked up by a keyed hash (`identity`, `table`). The packet is examined by itself (`examine`): lengths, checksums, flags. Then it joins what is
//! held (`held`), or what is held leaves and it is held instead, or it passes; in any case after all that was held of its flow. What leaves is given to the
//! [`Sink`] with a [`Reason`].

mod acknowledged;
mod bypass;
mod counters;
mod examine;
mod held;
mod identity;
mod mask;
mod policy;
mod reason;
mod table;

pub use counters::Counters;
pub use identity::HashKey;
pub use policy::{Delivery, MAX_BIG_LENGTH, MAX_IP_LENGTH, Mode, Policy, Storage};
pub use reason::Reason;

use alloc::vec::Vec;

use crate::packet::{Chain, RxPacket};
use crate::segment::ChecksumForm;
use crate::super_packet::{Metadata, Piece, Sink, SuperPacket};
use crate::wire::{IpVersion, Layout, MAX_HEADER, Protocol, Scope, be16, be32, byte, ipv4, parse, tcp};
use acknowledged::Acknowledged;
use examine::{Constants, Facts, Terms, examine};
use held::{Attempt, Joined};
use identity::Identity;
use superpacket_simd::{Simd, prefetch_range};
use table::{NONE, Room, Table};

/// How many packets ahead headers are asked for: enough to cover a miss to memory at some 10 ns a packet.
const AHEAD: usize = 10;

/// How many packets ahead payload is asked for where it is read: each takes as long as several headers.
const READ_AHEAD: usize = 2;

/// The bytes of a header that are asked for ahead: link, IP, TCP with timestamps, in up to two cache lines.
const AHEAD_LENGTH: usize = 80;

/// How many empty chains are kept: a poll's worth.
const KEPT_CHAINS: usize = 512;

/// How many pieces a slot keeps room for after its packet has left: enough for 64 KB in segments of 256 bytes. Without a limit, flows of tiny segments would leave every slot
/// with room for thousands.
const KEPT_PIECES: usize = 256;

/// How many bytes of linear storage a slot keeps room for.
const KEPT_LINEAR: usize = 80 << 10;

/// Aggregates packets of one receive queue.
///
/// Pure: no I/O, no threads, no clock, and in steady state no allocation. Times are nanoseconds of the caller's clock.
#[derive(Debug)]
pub struct Aggregator<B> {
    policy: Policy,
    key: HashKey,
    terms: Terms,
    table: Table<B>,
    /// What flows acknowledged last, where pure ACKs are aggregated.
    acknowledged: Acknowledged,
    /// The flow hit last: packets come in runs.
    last: u32,
    counters: Counters,
    /// Pieces of a packet that passes.
    passing: Vec<Piece<B>>,
    /// Empty chains to be had again.
    chains: Vec<Chain<B>>,
}

impl<B: AsRef<[u8]>> Aggregator<B> {
    /// An aggregator with nothing held.
    ///
    /// Limits are brought into range: `max_bytes` to at most [`MAX_BIG_LENGTH`], `max_flows` to 1 to 1,048,576, the other limits to at least 1. `key` should be random where
    /// traffic may be hostile.
    pub fn new(policy: Policy, key: HashKey, simd: Simd) -> Self {
        let policy = Policy {
            max_bytes: policy.max_bytes.min(MAX_BIG_LENGTH),
            max_flows: policy.max_flows.clamp(1, 1 << 20),
            max_packets: policy.max_packets.max(1),
            max_datagrams: policy.max_datagrams.max(1),
            max_fragments: policy.max_fragments.max(1),
            ..policy
        };
        let terms = Terms {
            mode: policy.mode,
            want_sum: policy.checksum == ChecksumForm::Full,
            max_fragments: if policy.storage == Storage::Fragments { policy.max_fragments as usize } else { usize::MAX },
            simd,
        };
        Aggregator {
            policy,
            key,
            terms,
            table: Table::new(policy.max_flows),
            acknowledged: Acknowledged::new(policy.mode == Mode::Lro { acks: true }, policy.max_flows),
            last: NONE,
            counters: Counters::default(),
            passing: Vec::new(),
            chains: Vec::new(),
        }
    }

    /// The policy in force.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// What happened so far.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// An empty chain for a packet of several buffers: one that an earlier packet left behind, if there is one.
    pub fn chain(&mut self) -> Chain<B> {
        self.chains.pop().unwrap_or_default()
    }

    /// Takes all packets of a poll, in order; `packets` is left empty. What leaves goes to `sink`.
    ///
    /// `now` is the time in nanoseconds from which [hold times](Policy::hold_time) count.
    #[inline]
    pub fn receive_batch<S: Sink<B> + ?Sized>(&mut self, packets: &mut Vec<RxPacket<B>>, now: u64, sink: &mut S) {
        for packet in packets.iter().take(AHEAD) {
            prefetch_range(packet.first.as_ref(), AHEAD_LENGTH);
        }
        let mut batch = packets.drain(..);
        while let Some(next) = batch.as_slice().first() {
            if let Some(ahead) = batch.as_slice().get(AHEAD) {
                prefetch_range(ahead.first.as_ref(), AHEAD_LENGTH);
            }
            // Packets come in runs: most are what the flow hit last expects, and only their buffer is moved.
            match self.expected(next) {
                Some(facts) => {
                    if facts.read
                        && let Some(following) = batch.as_slice().get(READ_AHEAD)
                    {
                        // It will be read too, most likely: it comes nearer while this packet is summed and counted in.
                        let bytes = following.first.as_ref();
                        prefetch_range(bytes, bytes.len());
                    }
                    if let Some(packet) = batch.next() {
                        self.extend(packet.first, &facts, sink);
                    }
                }
                None => {
                    if let Some(packet) = batch.next() {
                        self.take(packet, now, sink);
                    }
                }
            }
        }
        self.end_call(sink);
    }

    /// Takes one packet.
    #[inline]
    pub fn receive<S: Sink<B> + ?Sized>(&mut self, packet: RxPacket<B>, now: u64, sink: &mut S) {
        match self.expected(&packet) {
            Some(facts) => self.extend(packet.first, &facts, sink),
            None => self.take(packet, now, sink),
        }
        self.end_call(sink);
    }

    #[inline]
    fn end_call<S: Sink<B> + ?Sized>(&mut self, sink: &mut S) {
        if self.policy.delivery == Delivery::AtOnce {
            self.flush(Reason::PollEnd, sink);
        }
    }

    /// Is this the very packet that the flow hit last expects? Then it is part of it now, but for its buffer.
    #[inline(always)]
    fn expected(&mut self, packet: &RxPacket<B>) -> Option<Facts> {
        if self.last == NONE || packet.rest.is_some() || packet.gso.is_some() {
            return None;
        }
        let header = packet.first.as_ref();
        let held = &mut self.table.slots[self.last as usize];
        if !held.matches(header, packet) {
            return None;
        }
        // Compiled for each mode, which so is asked for only here.
        match self.policy.mode {
            Mode::Gro { .. } => held.next_in_line::<false>(packet, header, &self.terms),
            Mode::Lro { .. } => held.next_in_line::<true>(packet, header, &self.terms),
        }
    }

    /// Takes the buffer of an expected packet; the flow leaves if that completed it.
    #[inline(always)]
    fn extend<S: Sink<B> + ?Sized>(&mut self, buffer: B, facts: &Facts, sink: &mut S) {
        let length = u64::from(facts.end);
        self.counters.packets_in += 1;
        self.counters.bytes_in += length;
        self.counters.merged += 1;
        self.counters.held_bytes += length;
        self.counters.verified_in_software += u64::from(facts.read);
        if let Mode::Lro { .. } = self.policy.mode {
            self.counters.aggregated += 1;
        }
        let held = &mut self.table.slots[self.last as usize];
        held.extend(buffer, facts, self.policy.storage);
        if let Some(reason) = held.complete(facts.payload, self.policy.mode) {
            self.emit(self.last, reason, sink);
        }
        self.limit_memory(sink);
    }

    #[inline(always)]
    fn limit_memory<S: Sink<B> + ?Sized>(&mut self, sink: &mut S) {
        while self.counters.held_bytes > self.policy.max_held_bytes {
            self.emit(self.table.oldest(), Reason::MemoryLimit, sink);
        }
    }

    /// Takes a packet the long way.
    #[inline(never)]
    fn take<S: Sink<B> + ?Sized>(&mut self, packet: RxPacket<B>, now: u64, sink: &mut S) {
        let length = packet.length();
        self.counters.packets_in += 1;
        self.counters.bytes_in += length as u64;
        let gathered;
        let first = packet.first.as_ref();
        let header = if packet.rest.is_none() || first.len() >= MAX_HEADER {
            first
        } else {
            gathered = Gathered::new(&packet);
            gathered.bytes()
        };
        // Layout and facts are looked at where they lie: they were written field by field, and a copy would wait for all of these writes.
        let parsed = parse(header, length, packet.layer);
        let layout = match &parsed {
            Ok(layout) => layout,
            Err(unparsed) => {
                // A packet whose flow is not known passes after all flows that it may belong to.
                self.flush_scope(unparsed.scope, header, sink);
                return self.pass(packet, length, None, unparsed.reason, sink);
            }
        };
        if layout.protocol == Protocol::Udp && self.policy.mode != (Mode::Gro { udp: true }) {
            // Nothing of its flow is held, so nothing can be overtaken.
            return self.pass(packet, length, Some(layout), layout.refusal.unwrap_or(Reason::UdpOff), sink);
        }
        let identity = self.key.flow(header, layout, packet.layer, packet.vlan);
        let slot = self.table.find(identity.flow, &mut self.counters.probes);
        if let Some(reason) = self.refusal(&packet, header, layout, length) {
            self.overtake(slot, identity.flow, header, layout, sink);
            return self.pass(packet, length, Some(layout), reason, sink);
        }
        // Headers that fit the held ones are laid out as those are, and sum up to the same.
        let held = self.table.slots.get(slot as usize).filter(|held| held.matches(header, &packet));
        let fits = held.is_some();
        let constants = held.map_or_else(|| Constants::new(header, layout, self.policy.mode), |held| held.constants);
        let examined = examine(&packet, header, layout, &constants, layout.end as usize, &self.terms);
        let facts = match &examined {
            Ok(facts) => facts,
            Err(reason) => {
                self.overtake(slot, identity.flow, header, layout, sink);
                return self.pass(packet, length, Some(layout), *reason, sink);
            }
        };
        if fits {
            match self.table.slots[slot as usize].attempt(&packet, header, facts, &self.policy) {
                Attempt::Joined(joined) => {
                    self.counters.merged += 1;
                    self.counters.absorbed_acks += u64::from(joined != Joined::Merged);
                    self.last = slot;
                    return if joined == Joined::Absorbed {
                        self.absorb(slot, packet, sink)
                    } else {
                        self.hold(slot, packet, facts, length, sink)
                    };
                }
                Attempt::Ended(reason) => self.emit(slot, reason, sink),
                Attempt::Refused(reason) => {
                    self.overtake(slot, identity.flow, header, layout, sink);
                    return self.pass(packet, length, Some(layout), reason, sink);
                }
            }
        } else if slot != NONE {
            let reason = self.table.slots[slot as usize].mismatch(header, &packet);
            self.emit(slot, reason, sink);
        }
        if let Err(reason) = self.make_room(&identity, header, layout, facts, sink) {
            return self.pass(packet, length, Some(layout), reason, sink);
        }
        let slot = self.table.insert(&identity, now);
        self.table.slots[slot as usize].start(&packet, header, layout, &constants, facts, &self.policy);
        self.counters.held += 1;
        self.last = slot;
        self.hold(slot, packet, facts, length, sink);
    }

    /// Makes room for a new flow, unless its first packet must pass.
    #[inline(always)]
    fn make_room<S: Sink<B> + ?Sized>(
        &mut self,
        identity: &Identity,
        header: &[u8],
        layout: &Layout,
        facts: &Facts,
        sink: &mut S,
    ) -> Result<(), Reason> {
        match self.policy.mode {
            Mode::Gro { .. } => {
                if facts.flags & (tcp::PSH | tcp::FIN) != 0 {
                    return Err(Reason::Push);
                }
            }
            Mode::Lro { .. } => {
                if facts.payload == 0 {
                    let refusal = eligible_ack(self.policy.mode, facts.flags).err();
                    if let Some(reason) = refusal.or_else(|| self.acknowledged.repeated(identity.flow, header, layout)) {
                        self.acknowledged.note(identity.flow, header, layout);
                        return Err(reason);
                    }
                }
            }
        }
        if let Room::Evict(oldest) = self.table.room(identity.flow) {
            if let Mode::Lro { .. } = self.policy.mode {
                // inet_lro has no eviction: a flow without a descriptor passes.
                self.counters.no_desc += 1;
                self.acknowledged.note(identity.flow, header, layout);
                return Err(Reason::NoDescriptor);
            }
            self.emit(oldest, Reason::Evicted, sink);
        }
        Ok(())
    }

    /// What rules a packet out before its checksums are looked at.
    #[inline]
    fn refusal(&self, packet: &RxPacket<B>, header: &[u8], layout: &Layout, length: usize) -> Option<Reason> {
        if layout.refusal.is_some() {
            return layout.refusal;
        }
        if packet.gso.is_some() {
            return Some(Reason::SuperPacket);
        }
        let end = layout.end as usize;
        match self.policy.mode {
            Mode::Gro { .. } => (end != length).then_some(Reason::Padded),
            Mode::Lro { .. } => {
                if end != length && !examine::padding_is_neutral(packet, end, length, self.terms.simd) {
                    return Some(Reason::Padded);
                }
                lro_refusal(header, layout)
            }
        }
    }

    /// Makes way for a packet that passes: what is held of its flow leaves before it.
    #[inline]
    fn overtake<S: Sink<B> + ?Sized>(&mut self, slot: u32, flow: u64, header: &[u8], layout: &Layout, sink: &mut S) {
        if slot != NONE {
            self.emit(slot, Reason::Overtaken, sink);
        }
        self.acknowledged.note(flow, header, layout);
    }

    /// Emits all flows that a packet without a flow of its own may belong to.
    #[cold]
    fn flush_scope<S: Sink<B> + ?Sized>(&mut self, scope: Scope, header: &[u8], sink: &mut S) {
        if let Scope::Pair { network, version } = scope {
            let pair = self.key.pair(header, usize::from(network), version);
            loop {
                let slot = self.table.of_pair(pair);
                if slot == NONE {
                    return;
                }
                self.emit(slot, Reason::Overtaken, sink);
            }
        }
    }

    /// Takes the buffers of a packet that joined or began a flow; the flow leaves if that completed it.
    #[inline(always)]
    fn hold<S: Sink<B> + ?Sized>(&mut self, slot: u32, packet: RxPacket<B>, facts: &Facts, length: usize, sink: &mut S) {
        self.counters.held_bytes += length as u64;
        self.counters.verified_in_software += u64::from(facts.read);
        if let Mode::Lro { .. } = self.policy.mode {
            self.counters.aggregated += 1;
        }
        let held = &mut self.table.slots[slot as usize];
        if let Some(chain) = held.attach(packet, facts, length, self.policy.storage) {
            recycle(&mut self.chains, chain);
        }
        if let Some(reason) = held.complete(facts.payload, self.policy.mode) {
            self.emit(slot, reason, sink);
        }
        self.limit_memory(sink);
    }

    /// Releases a pure ACK whose numbers its flow has taken over.
    fn absorb<S: Sink<B> + ?Sized>(&mut self, slot: u32, packet: RxPacket<B>, sink: &mut S) {
        self.counters.aggregated += 1;
        if let Some(mut chain) = packet.rest {
            chain.buffers_mut().clear();
            recycle(&mut self.chains, chain);
        }
        if let Some(reason) = self.table.slots[slot as usize].complete(0, self.policy.mode) {
            self.emit(slot, reason, sink);
        }
    }

    /// Gives a packet to the sink as it came.
    #[inline(never)]
    fn pass<S: Sink<B> + ?Sized>(&mut self, packet: RxPacket<B>, length: usize, layout: Option<&Layout>, reason: Reason, sink: &mut S) {
        let metadata = Metadata {
            layer: packet.layer,
            layout: layout.copied(),
            gso: packet.whole_gso(),
            checksum: packet.checksum,
            hash: packet.hash,
            vlan: packet.vlan,
            queue: packet.queue,
            time: packet.time,
            packets: 1,
            absorbed_acks: 0,
            largest_payload: layout.map_or(0, |layout| layout.end.saturating_sub(u32::from(layout.payload))),
            reason,
        };
        let whole = |buffer: B| Piece { length: buffer.as_ref().len() as u32, buffer: Some(buffer), start: 0, sum: 0, flags: 0 };
        self.passing.push(whole(packet.first));
        if let Some(mut chain) = packet.rest {
            self.passing.extend(chain.buffers_mut().drain(..).map(whole));
            recycle(&mut self.chains, chain);
        }
        self.counters.packets_out += 1;
        self.counters.bytes_out += length as u64;
        self.counters.reasons[reason as usize] += 1;
        sink.receive(SuperPacket { metadata, header: &[], pieces: &mut self.passing, linear: &[] });
        self.passing.clear();
    }

    /// Gives what a slot holds to the sink.
    #[inline(never)]
    fn emit<S: Sink<B> + ?Sized>(&mut self, slot: u32, reason: Reason, sink: &mut S) {
        let flow = self.table.remove(slot);
        self.table.prefetch_oldest();
        if self.last == slot {
            self.last = NONE;
        }
        let held = &mut self.table.slots[slot as usize];
        let merged = held.packets > 1;
        let left = if merged { held.finish(&self.policy, self.terms.simd) } else { held.restore_single() };
        self.counters.packets_out += 1;
        self.counters.bytes_out += left.length;
        self.counters.super_packets += u64::from(merged);
        self.counters.held -= 1;
        self.counters.held_bytes -= held.bytes;
        self.counters.reasons[reason as usize] += 1;
        if let Mode::Lro { .. } = self.policy.mode {
            self.counters.flushed += 1;
            self.acknowledged.note(flow, &held.header, &held.layout);
        }
        sink.receive(held.super_packet(&left, reason));
        held.pieces.clear();
        held.linear.clear();
        if held.pieces.capacity() > KEPT_PIECES {
            held.pieces.shrink_to(KEPT_PIECES);
        }
        if held.linear.capacity() > KEPT_LINEAR {
            held.linear.shrink_to(KEPT_LINEAR);
        }
    }

    fn flush<S: Sink<B> + ?Sized>(&mut self, reason: Reason, sink: &mut S) {
        while self.table.oldest() != NONE {
            self.emit(self.table.oldest(), reason, sink);
        }
    }

    /// Ends a poll: emits every held flow, or, with a [hold time](Policy::hold_time), those held for as long.
    pub fn poll_end<S: Sink<B> + ?Sized>(&mut self, now: u64, sink: &mut S) {
        if self.policy.hold_time == 0 {
            self.flush(Reason::PollEnd, sink);
        } else {
            self.flush_older_than(now, self.policy.hold_time, sink);
        }
    }

    /// Emits the flows that have been held for `age` nanoseconds or longer at `now`, the oldest first. A clock that ran backwards ages nothing.
    pub fn flush_older_than<S: Sink<B> + ?Sized>(&mut self, now: u64, age: u64, sink: &mut S) {
        loop {
            let oldest = self.table.oldest();
            if oldest == NONE || now.saturating_sub(self.table.slots[oldest as usize].since) < age {
                return;
            }
            self.emit(oldest, Reason::HoldTime, sink);
        }
    }

    /// Emits every held flow, the oldest first.
    pub fn flush_all<S: Sink<B> + ?Sized>(&mut self, sink: &mut S) {
        self.flush(Reason::Requested, sink);
    }

    /// Emits what is held of the flow that `packet` belongs to, or, where its ports cannot be told, of its address pair (`inet_lro`'s `flush_pkt`).
    pub fn flush_flow<S: Sink<B> + ?Sized>(&mut self, packet: &RxPacket<B>, sink: &mut S) {
        let gathered = Gathered::new(packet);
        let header = gathered.bytes();
        match parse(header, packet.length(), packet.layer) {
            Ok(layout) => {
                let identity = self.key.flow(header, &layout, packet.layer, packet.vlan);
                let slot = self.table.find(identity.flow, &mut self.counters.probes);
                if slot != NONE {
                    self.emit(slot, Reason::Requested, sink);
                }
            }
            Err(unparsed) => self.flush_scope(unparsed.scope, header, sink),
        }
    }

    /// When the oldest held flow will have been held for the policy's [hold time](Policy::hold_time), in nanoseconds: when to call
    /// [`poll_end`](Self::poll_end) next. `None` if nothing is held.
    pub fn deadline(&self) -> Option<u64> {
        match self.table.oldest() {
            NONE => None,
            oldest => Some(self.table.slots[oldest as usize].since.saturating_add(self.policy.hold_time)),
        }
    }
}

/// May a pure ACK with these flags start or join a session?
#[inline]
fn eligible_ack(mode: Mode, flags: u8) -> Result<(), Reason> {
    match mode {
        Mode::Lro { acks: true } if flags == tcp::ACK => Ok(()),
        Mode::Lro { .. } | Mode::Gro { .. } => Err(Reason::NoPayload),
    }
}

/// What LRO leaves alone besides what GRO does: everything but TCP in IP with no options but an aligned timestamp, and any sign of congestion.
fn lro_refusal(header: &[u8], layout: &Layout) -> Option<Reason> {
    let network = usize::from(layout.network);
    let transport = usize::from(layout.transport);
    if layout.protocol != Protocol::Tcp || layout.outer.is_some() {
        return Some(Reason::NotLro);
    }
    let congestion = match layout.version {
        IpVersion::V4 => byte(header, network + ipv4::TOS) & 3 == 3,
        IpVersion::V6 => be16(header, network) & 0x0030 == 0x0030,
    };
    let flags = byte(header, transport + tcp::FLAGS);
    // FIN ends a connection: inet_lro bypasses it with SYN, RST and URG, which `examine` refuses.
    if flags & (tcp::SYN | tcp::RST | tcp::URG | tcp::FIN | tcp::ACK) != tcp::ACK {
        return Some(Reason::TcpFlags);
    }
    if congestion || flags & (tcp::ECE | tcp::CWR) != 0 {
        return Some(Reason::Congestion);
    }
    let options = usize::from(layout.payload) - transport - tcp::HEADER_LENGTH;
    let aligned_timestamp = options == tcp::TIMESTAMP_OPTIONS_LENGTH
        && header.get(transport + tcp::OPTIONS..transport + tcp::OPTIONS + 4) == Some(&tcp::ALIGNED_TIMESTAMP[..])
        && be32(header, transport + tcp::TIMESTAMP_ECHO) != 0;
    (options != 0 && !aligned_timestamp).then_some(Reason::TcpOptions)
}

/// Keeps an empty chain for the next packet of several buffers, up to a number: a caller that never asks for one must not fill the memory.
fn recycle<B>(chains: &mut Vec<Chain<B>>, chain: Chain<B>) {
    if chains.len() < KEPT_CHAINS {
        chains.push(chain);
    }
}

/// The first bytes of a packet of several buffers, copied together.
struct Gathered {
    bytes: [u8; MAX_HEADER],
    filled: usize,
}

impl Gathered {
    #[cold]
    fn new<B: AsRef<[u8]>>(packet: &RxPacket<B>) -> Self {
        let mut gathered = Gathered { bytes: [0; MAX_HEADER], filled: 0 };
        for buffer in packet.buffers() {
            let bytes = buffer.as_ref();
            let take = bytes.len().min(MAX_HEADER - gathered.filled);
            if let (Some(to), Some(from)) = (gathered.bytes.get_mut(gathered.filled..gathered.filled + take), bytes.get(..take)) {
                to.copy_from_slice(from);
            }
            gathered.filled += take;
        }
        gathered
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.filled).unwrap_or(&self.bytes)
    }
}
