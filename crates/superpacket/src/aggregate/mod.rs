//! Aggregation: many received packets in, few large ones out.
//!
//! The life of a packet, in this file from top to bottom: [`Aggregator::receive_batch`] asks ahead for the headers of packets to come. Packets that come
//! in line of the flow hit last join it in a run (`held::line`). Any other is [parsed](crate::wire::parse), and its flow is looked up by a keyed hash
//! (`identity`, `table`). If the packet is what that flow expects, it begins a run there; else it is examined by itself (`examine`): lengths, checksums,
//! flags. Then it joins what is held (`held`), or what is held leaves and it is held instead, or it passes; in any case after all that was held of its flow.
//! What leaves is given to the [`Sink`] with a [`Reason`].

mod acknowledged;
mod bypass;
mod counters;
mod examine;
mod held;
mod identity;
mod lro;
mod mask;
mod out;
mod policy;
mod reason;
mod table;

pub use counters::Counters;
pub use identity::HashKey;
pub use policy::{Delivery, MAX_BIG_LENGTH, MAX_IP_LENGTH, Mode, Policy, Storage};
pub use reason::Reason;

use alloc::vec::{Drain, Vec};

use crate::packet::{Chain, Gathered, RxPacket};
use crate::segment::ChecksumForm;
use crate::super_packet::Sink;
use crate::wire::{Layout, MAX_HEADER, Protocol, Scope, parse, parse_usual, tcp, usual, walk};
use acknowledged::Acknowledged;
use examine::{Facts, Terms, examine};
use held::{Attempt, First, Joined, ask_ahead, ask_for_first};
use lro::{eligible_ack, lro_refusal};
use out::Out;
use superpacket_simd::Simd;
use table::{NONE, Room, Table};

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
    /// For packets that leave as they came.
    out: Out<B>,
    /// A batch of one.
    single: Vec<RxPacket<B>>,
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
            out: Out { pieces: Vec::new(), chains: Vec::new() },
            single: Vec::new(),
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
        self.out.chains.pop().unwrap_or_default()
    }

    /// Takes all packets of a poll, in order; `packets` is left empty. What leaves goes to `sink`.
    ///
    /// `now` is the time in nanoseconds from which [hold times](Policy::hold_time) count.
    #[inline]
    pub fn receive_batch<S: Sink<B> + ?Sized>(&mut self, packets: &mut Vec<RxPacket<B>>, now: u64, sink: &mut S) {
        ask_for_first(packets);
        let mut batch = packets.drain(..);
        while let Some(next) = batch.as_slice().first() {
            // Packets come in runs: most are what the flow hit last expects.
            if self.table.slots.get(self.last as usize).is_some_and(|held| held.expects(next)) {
                self.take_run(self.last, &mut batch, sink);
            }
            // What ends a run does not go on with it.
            if !batch.as_slice().is_empty() {
                self.take(&mut batch, now, sink);
            }
        }
        self.end_call(sink);
    }

    /// Takes one packet.
    #[inline]
    pub fn receive<S: Sink<B> + ?Sized>(&mut self, packet: RxPacket<B>, now: u64, sink: &mut S) {
        let mut batch = core::mem::take(&mut self.single);
        batch.push(packet);
        self.receive_batch(&mut batch, now, sink);
        self.single = batch;
    }

    #[inline]
    fn end_call<S: Sink<B> + ?Sized>(&mut self, sink: &mut S) {
        if self.policy.delivery == Delivery::AtOnce {
            self.flush(Reason::PollEnd, sink);
        }
    }

    /// Takes as many packets as come in line of a flow that expects the first of them; it leaves if they completed it. `false` if none did.
    #[inline(always)]
    fn take_run<S: Sink<B> + ?Sized>(&mut self, slot: u32, batch: &mut Drain<'_, RxPacket<B>>, sink: &mut S) -> bool {
        self.open(slot);
        let held = &mut self.table.slots[slot as usize];
        // Compiled for each mode, which so is asked for only here.
        let run = match self.policy.mode {
            Mode::Gro { .. } => held.next_in_line::<false>(batch, &self.terms, self.policy.storage, &mut self.counters),
            Mode::Lro { .. } => held.next_in_line::<true>(batch, &self.terms, self.policy.storage, &mut self.counters),
        };
        if run.packets == 0 {
            return false;
        }
        self.last = slot;
        if let Some(reason) = run.complete {
            self.emit(slot, reason, sink);
        }
        self.limit_memory(sink);
        true
    }

    /// What ends a flow right after a packet joined, if anything does.
    #[inline(always)]
    fn complete(&self, slot: u32, last_payload: u32) -> Option<Reason> {
        let held = &self.table.slots[slot as usize];
        match self.policy.mode {
            Mode::Gro { .. } => held.complete::<false>(last_payload),
            Mode::Lro { .. } => held.complete::<true>(last_payload),
        }
    }

    #[inline(always)]
    fn limit_memory<S: Sink<B> + ?Sized>(&mut self, sink: &mut S) {
        while self.counters.held_bytes > self.policy.max_held_bytes {
            self.emit(self.table.oldest(), Reason::MemoryLimit, sink);
        }
    }

    /// Takes a packet of another flow than the last, or one that did not come in line.
    #[inline(never)]
    fn take<S: Sink<B> + ?Sized>(&mut self, batch: &mut Drain<'_, RxPacket<B>>, now: u64, sink: &mut S) {
        ask_ahead(batch.as_slice());
        // Compiled apart for the layouts that most packets have, the first of them nearest.
        if self.take_usual::<{ usual::ETHERNET_IPV4 }, _>(batch, now, sink) {
            return;
        }
        self.take_other(batch, now, sink);
    }

    /// Takes a packet with another layout.
    #[inline(never)]
    fn take_other<S: Sink<B> + ?Sized>(&mut self, batch: &mut Drain<'_, RxPacket<B>>, now: u64, sink: &mut S) {
        let taken = self.take_usual::<{ usual::ETHERNET_IPV6 }, _>(batch, now, sink)
            || self.take_usual::<{ usual::IPV4 }, _>(batch, now, sink)
            || self.take_usual::<{ usual::IPV6 }, _>(batch, now, sink);
        if !taken {
            self.take_any(batch, now, sink);
        }
    }

    /// Takes a packet with this [usual] layout; `false` if it has another.
    #[inline(always)]
    fn take_usual<const USUAL: u8, S: Sink<B> + ?Sized>(&mut self, batch: &mut Drain<'_, RxPacket<B>>, now: u64, sink: &mut S) -> bool {
        let Some(RxPacket { first, rest: None, layer, .. }) = batch.as_slice().first() else { return false };
        let header = first.as_ref();
        let length = header.len();
        let Some((payload, end)) = parse_usual::<USUAL>(header, length, *layer) else { return false };
        self.take_parsed::<USUAL, _>(batch, &Layout::usual(USUAL, payload, end), None, length, now, sink);
        true
    }

    /// Takes a packet whatever it is.
    #[inline(never)]
    fn take_any<S: Sink<B> + ?Sized>(&mut self, batch: &mut Drain<'_, RxPacket<B>>, now: u64, sink: &mut S) {
        let Some(next) = batch.as_slice().first() else { return };
        let length = next.length();
        let gathered =
            (next.rest.is_some() && next.first.as_ref().len() < MAX_HEADER).then(|| Gathered::new(next.buffers().map(AsRef::as_ref)));
        let header = gathered.as_ref().map_or(next.first.as_ref(), Gathered::bytes);
        // The layout is looked at where it lies: it was written field by field, and a copy would wait for all of these writes.
        match &walk(header, length, next.layer) {
            Ok(layout) => self.take_parsed::<{ usual::NONE }, _>(batch, layout, gathered.as_ref(), length, now, sink),
            Err(unparsed) => {
                // A packet whose flow is not known passes after all flows that it may belong to.
                self.flush_scope(unparsed.scope, header, sink);
                if let Some(packet) = self.arrived(batch, length) {
                    self.out.pass_unknown(packet, length, unparsed.reason, &mut self.counters, sink);
                }
            }
        }
    }

    /// Takes a packet of `length` bytes, laid out like this; `gathered` are its first bytes if they lie in several buffers.
    ///
    /// `USUAL` says which [usual] layout it is, which so is made of constants: who is not compiled into this function gets one [of its own](Layout::lend).
    #[inline(always)]
    fn take_parsed<const USUAL: u8, S: Sink<B> + ?Sized>(
        &mut self,
        batch: &mut Drain<'_, RxPacket<B>>,
        layout: &Layout,
        gathered: Option<&Gathered>,
        length: usize,
        now: u64,
        sink: &mut S,
    ) {
        let Some(next) = batch.as_slice().first() else { return };
        if layout.protocol == Protocol::Udp && self.policy.mode != (Mode::Gro { udp: true }) {
            // Nothing of its flow is held, so nothing can be overtaken.
            return self.pass::<USUAL, _>(batch, length, layout, layout.refusal.unwrap_or(Reason::UdpOff), sink);
        }
        let header = gathered.map_or(next.first.as_ref(), Gathered::bytes);
        let identity = self.key.flow(header, layout, next.layer, next.vlan);
        let flow = identity.flow;
        let slot = self.table.find(flow, &mut self.counters.probes);
        let expected = slot != self.last && self.table.slots.get(slot as usize).is_some_and(|held| held.expects(next));
        if expected && self.take_run(slot, batch, sink) {
            return;
        }
        let Some(next) = batch.as_slice().first() else { return };
        let header = gathered.map_or(next.first.as_ref(), Gathered::bytes);
        let facts = match self.refusal::<USUAL>(next, header, layout, length) {
            Some(reason) => Err(reason),
            None if slot == NONE => examine(next, header, layout, None, &self.terms),
            None => match layout.lend::<USUAL, _>(|layout| self.meet(slot, next, header, layout)) {
                Ok((Attempt::Joined(joined), facts)) => {
                    let Some(packet) = self.arrived(batch, length) else { return };
                    return match joined {
                        Joined::Absorbed => self.absorb(slot, packet, sink),
                        Joined::Merged | Joined::AbsorbedHead => self.hold(slot, packet, &facts, length, sink),
                    };
                }
                Ok((Attempt::Ended(reason), facts)) => {
                    self.emit(slot, reason, sink);
                    Ok(facts)
                }
                Err(reason) => Err(reason),
            },
        };
        let facts = match facts {
            Ok(facts) => facts,
            Err(reason) => {
                layout.lend::<USUAL, _>(|layout| self.overtake(slot, flow, header, layout, sink));
                return self.pass::<USUAL, _>(batch, length, layout, reason, sink);
            }
        };
        if let Err(reason) = self.make_room::<USUAL, _>(flow, header, layout, &facts, sink) {
            return self.pass::<USUAL, _>(batch, length, layout, reason, sink);
        }
        let slot = self.table.insert(identity, now);
        self.last = slot;
        self.counters.held += 1;
        self.count_in(&facts, length);
        self.counters.packets_in += 1;
        self.counters.bytes_in += length as u64;
        let held = &mut self.table.slots[slot as usize];
        held.start::<USUAL>(next, header, layout, length);
        if let Some(packet) = batch.next() {
            held.begin(packet, facts.sum);
        }
        let alone = held::packet_limit(layout, &self.policy) == 1;
        if self.policy.storage == Storage::Linear {
            self.open(slot);
        }
        if alone {
            self.emit(slot, Reason::PacketLimit, sink);
        }
        self.limit_memory(sink);
    }

    /// The next packet passes.
    #[inline(always)]
    fn pass<const USUAL: u8, S: Sink<B> + ?Sized>(
        &mut self,
        batch: &mut Drain<'_, RxPacket<B>>,
        length: usize,
        layout: &Layout,
        reason: Reason,
        sink: &mut S,
    ) {
        if let Some(packet) = self.arrived(batch, length) {
            layout.lend::<USUAL, _>(|layout| self.out.pass(packet, length, layout, reason, &mut self.counters, sink));
        }
    }

    /// A packet meets its flow, and joins it or ends it. `Err` says why it may do neither.
    #[inline(never)]
    fn meet(&mut self, slot: u32, packet: &RxPacket<B>, header: &[u8], layout: &Layout) -> Result<(Attempt, Facts), Reason> {
        self.open(slot);
        let held = &mut self.table.slots[slot as usize];
        // Headers that fit the held ones are laid out as those are, and sum up to the same.
        let fits = held.matches(header, packet);
        let facts = examine(packet, header, layout, fits.then_some(&held.constants), &self.terms)?;
        if !fits {
            return Ok((Attempt::Ended(held.mismatch(header, packet)), facts));
        }
        let attempt = held.attempt(packet, header, &facts, &self.policy)?;
        if let Attempt::Joined(joined) = attempt {
            self.counters.merged += 1;
            self.counters.absorbed_acks += u64::from(joined != Joined::Merged);
            self.last = slot;
        }
        Ok((attempt, facts))
    }

    /// The next packet, counted in.
    #[inline(always)]
    fn arrived(&mut self, batch: &mut Drain<'_, RxPacket<B>>, length: usize) -> Option<RxPacket<B>> {
        self.counters.packets_in += 1;
        self.counters.bytes_in += length as u64;
        batch.next()
    }

    /// Makes a held packet the first of others, if it was alone until now.
    #[inline(always)]
    fn open(&mut self, slot: u32) {
        let held = &mut self.table.slots[slot as usize];
        if held.first.is_some()
            && let Some(chain) = held.open(&self.policy)
        {
            self.out.recycle(chain);
        }
    }

    /// Counts a packet that joined or began a flow.
    #[inline(always)]
    fn count_in(&mut self, facts: &Facts, length: usize) {
        self.counters.held_bytes += length as u64;
        self.counters.verified_in_software += u64::from(facts.read);
        if let Mode::Lro { .. } = self.policy.mode {
            self.counters.aggregated += 1;
        }
    }

    /// Makes room for a new flow, unless its first packet must pass.
    #[inline(always)]
    fn make_room<const USUAL: u8, S: Sink<B> + ?Sized>(
        &mut self,
        flow: u64,
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
                    let repeated = |layout: &Layout| self.acknowledged.repeated(flow, header, layout);
                    if let Some(reason) = refusal.or_else(|| layout.lend::<USUAL, _>(repeated)) {
                        layout.lend::<USUAL, _>(|layout| self.acknowledged.note(flow, header, layout));
                        return Err(reason);
                    }
                }
            }
        }
        if let Room::Evict(oldest) = self.table.room(flow) {
            if let Mode::Lro { .. } = self.policy.mode {
                // inet_lro has no eviction: a flow without a descriptor passes.
                self.counters.no_desc += 1;
                layout.lend::<USUAL, _>(|layout| self.acknowledged.note(flow, header, layout));
                return Err(Reason::NoDescriptor);
            }
            self.emit(oldest, Reason::Evicted, sink);
        }
        Ok(())
    }

    /// What rules a packet out before its checksums are looked at.
    #[inline(always)]
    fn refusal<const USUAL: u8>(&self, packet: &RxPacket<B>, header: &[u8], layout: &Layout, length: usize) -> Option<Reason> {
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
                layout.lend::<USUAL, _>(|layout| lro_refusal(header, layout))
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

    /// Takes the buffers of a packet that joined a flow; the flow leaves if that completed it.
    #[inline(always)]
    fn hold<S: Sink<B> + ?Sized>(&mut self, slot: u32, packet: RxPacket<B>, facts: &Facts, length: usize, sink: &mut S) {
        self.count_in(facts, length);
        let held = &mut self.table.slots[slot as usize];
        held.bytes += length as u64;
        if let Some(chain) = held.attach(packet, facts, usize::from(held.layout.payload), self.policy.storage) {
            self.out.recycle(chain);
        }
        if let Some(reason) = self.complete(slot, facts.payload) {
            self.emit(slot, reason, sink);
        }
        self.limit_memory(sink);
    }

    /// Releases a pure ACK whose numbers its flow has taken over.
    fn absorb<S: Sink<B> + ?Sized>(&mut self, slot: u32, packet: RxPacket<B>, sink: &mut S) {
        self.counters.aggregated += 1;
        if let Some(mut chain) = packet.rest {
            chain.buffers_mut().clear();
            self.out.recycle(chain);
        }
        if let Some(reason) = self.complete(slot, 0) {
            self.emit(slot, reason, sink);
        }
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
        self.counters.held -= 1;
        self.counters.held_bytes -= held.bytes;
        if let Mode::Lro { .. } = self.policy.mode {
            self.counters.flushed += 1;
            self.acknowledged.note(flow, held.header(), &held.layout);
        }
        if let Some(First { packet, .. }) = held.first.take() {
            return self.out.pass(packet, held.bytes as usize, &held.layout, reason, &mut self.counters, sink);
        }
        let merged = held.packets > 1;
        let left = if merged { held.finish(&self.policy, self.terms.simd) } else { held.restore_single() };
        self.counters.packets_out += 1;
        self.counters.bytes_out += left.length;
        self.counters.super_packets += u64::from(merged);
        self.counters.reasons[reason as usize] += 1;
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
        let gathered = Gathered::new(packet.buffers().map(AsRef::as_ref));
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
