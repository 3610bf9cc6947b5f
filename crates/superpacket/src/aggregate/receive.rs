//! Receives packets. This file shows all steps of a packet through the aggregator, from top to
//! bottom.
//!
//! [`PacketReceiver::receive_batch`] prefetches headers, and sorts packets by flow if flows are
//! interleaved (`by_flow`). Packets without payload, which GRO does not merge, pass in a run
//! (`empty`) while no flow is held. Packets that are next in sequence in the last flow join it in a
//! run (`flow::run`).
//!
//! Any other packet is [parsed](crate::wire::parse), and a keyed hash finds its flow (`identity`,
//! `table`). If the flow expects this packet, it begins a run there. Otherwise the packet is
//! examined alone (`examine`): lengths, checksums, flags. Then it joins its flow (`flow::join`); or
//! the flow leaves (`flow::leave`) and the packet is held instead; or the packet passes, after all
//! held packets of its flow.
//!
//! Each packet is delivered with a [`Reason`]. Packets that came as super-packets are handled in
//! `super_packet`, as if their segments had come one by one.
//!
//! If a sink fails, the call ends at once. The current packet is still in the batch then, unless it
//! has joined a flow.

mod empty;
mod super_packet;

use alloc::boxed::Box;
use alloc::collections::TryReserveError;
use alloc::vec::{Drain, Vec};

use self::super_packet::SuperPacketOutcome;
use super::acknowledged::Acknowledged;
use super::by_flow::{ByFlow, group};
use super::examine::{self, ExamineOptions, Facts, examine};
use super::flow::{
    Attempt, First, JOIN_AHEAD, Joined, addresses_and_ports, packet_limit, prefetch_ahead,
    prefetch_first, prefetch_payload,
};
use super::lro::{eligible_ack, lro_refusal};
use super::out::{PassThrough, keep};
use super::poll::Poll;
use super::segments::Segments;
use super::table::{FlowTable, NONE, Room};
use super::{AggregateCounters, Delivery, HashKey, Mode, Policy, Reason, Storage};
use crate::memory::Memory;
use crate::packet::{Gathered, RxChecksum, RxPacket};
use crate::packet_batch::PacketBatch;
use crate::segment::{ChecksumForm, GsoSupport, MaxSegments};
use crate::super_packet::SuperPacket;
use crate::wire::{Layout, MAX_HEADER, Protocol, Scope, parse, parse_usual, tcp, usual, walk};
use superpacket_simd::Simd;

/// Maximum number of pieces (buffer ranges) for which a flow-table slot keeps its allocation after
/// the flow has left: enough for 64 KB in segments of 256 bytes. Without this limit, flows of tiny
/// segments would leave every slot with memory for thousands of pieces.
const KEPT_PIECES: usize = 256;

/// Maximum size in bytes of the buffer for copied payload that a flow-table slot keeps after its
/// flow has left.
const KEPT_LINEAR: usize = 80 << 10;

/// The checksum state of packets whose checksums are trusted ([`Policy::trusted_input`]): as if a
/// device had verified the two outermost.
pub(super) const VERIFIED_BEFORE: RxChecksum = RxChecksum::Unnecessary { level: 1 };

/// Receives packets and holds flows: the common part of all aggregators. A [`Poll`] provides the
/// bytes of the buffers and the sink.
#[derive(Debug)]
pub(super) struct PacketReceiver<B> {
    pub(super) policy: Policy,
    /// The policy that applies during the current call: `policy`, with the storage and the limit of
    /// fragments that the call demands.
    in_force: Policy,
    key: HashKey,
    options: ExamineOptions,
    table: FlowTable<B>,
    /// The last acknowledgements of flows, if pure ACKs are aggregated.
    acknowledged: Acknowledged,
    /// Slot of the flow that the last packet belonged to; the next one often belongs to it too.
    last: u32,
    /// Whether flows were interleaved in the poll before, so that the packets of this one are
    /// sorted by flow.
    interleaved_before: bool,
    /// Whether flows were interleaved in this poll or the one before, so that recent flows are
    /// remembered.
    interleaved: bool,
    /// Whether packets of different flows were interleaved in this poll so far.
    interleaved_now: bool,
    /// Offset of the transport header in the flow that was put into `recent` last.
    recent_transport: u16,
    /// Slots of recent flows, each at the index that the function [`recent`] returns for the flow.
    recent: [u32; RECENT],
    pub(super) counters: AggregateCounters,
    /// Memory for packets that are delivered unchanged.
    pub(super) out: PassThrough<B>,
    /// Packets that a sink refused. They are delivered first in the next call.
    undelivered: PacketBatch<B>,
    /// Memory for the packets that return to the caller's vector after its sink failed.
    unreceived: Vec<RxPacket<B>>,
    by_flow: Option<Box<ByFlow>>,
}

impl<B> PacketReceiver<B> {
    pub(super) fn new(policy: Policy, key: HashKey, simd: Simd) -> Self {
        let policy = policy.in_range();
        let acknowledged =
            Acknowledged::new(policy.mode == Mode::Lro { acks: true }, policy.max_flows);
        Self::in_memory(policy, key, simd, FlowTable::new(policy.max_flows), acknowledged)
    }

    /// Makes a receiver as [`new`](Self::new) does, or fails if its tables cannot be allocated.
    pub(super) fn try_new(
        policy: Policy,
        key: HashKey,
        simd: Simd,
    ) -> Result<Self, TryReserveError> {
        let policy = policy.in_range();
        let acknowledged =
            Acknowledged::try_new(policy.mode == Mode::Lro { acks: true }, policy.max_flows)?;
        Ok(Self::in_memory(policy, key, simd, FlowTable::try_new(policy.max_flows)?, acknowledged))
    }

    fn in_memory(
        policy: Policy,
        key: HashKey,
        simd: Simd,
        table: FlowTable<B>,
        acknowledged: Acknowledged,
    ) -> Self {
        PacketReceiver {
            policy,
            in_force: policy,
            key,
            options: ExamineOptions::new(&policy, None, simd),
            table,
            acknowledged,
            last: NONE,
            interleaved_before: false,
            interleaved: false,
            interleaved_now: false,
            recent_transport: 0,
            recent: [NONE; RECENT],
            counters: AggregateCounters::default(),
            out: PassThrough { pieces: Vec::new(), chains: Vec::new() },
            undelivered: PacketBatch::new(),
            unreceived: Vec::new(),
            by_flow: None,
        }
    }

    /// Restricts merging to super-packets that a receiver behind a `virtio_net_hdr` can segment:
    /// with partial checksums, within its limits of datagrams and bytes.
    pub(super) fn set_support(&mut self, support: GsoSupport) {
        let longest = support.max_ipv4_length.min(support.max_ipv6_length).min(support.max_payload);
        self.policy.max_bytes = self.policy.max_bytes.min(longest);
        self.policy.max_packets = self.policy.max_packets.min(support.max_segments).max(1);
        self.policy.checksum = ChecksumForm::Partial;
        self.policy.max_datagrams = self.policy.max_datagrams.min(MaxSegments::UDP.get());
        self.in_force = self.policy;
        self.options = ExamineOptions::new(&self.in_force, Some(support), self.options.simd);
    }

    /// Begins a call with borrowed packets, in which a merged packet refers to at most `most`
    /// buffers. If `keeps_buffers` is set, payload is never copied, whatever the policy's storage
    /// is. No packet may be held.
    #[inline(always)]
    pub(super) fn begin_call(&mut self, keeps_buffers: bool, most: u32) {
        let storage = if keeps_buffers { Storage::Fragments } else { self.policy.storage };
        let max_fragments = self.policy.max_fragments.min(most);
        if storage != self.in_force.storage || max_fragments != self.in_force.max_fragments {
            self.in_force = Policy { storage, max_fragments, ..self.policy };
            self.options =
                ExamineOptions::new(&self.in_force, self.options.support, self.options.simd);
        }
    }

    /// Sets the level of SIMD for checksums.
    pub(super) fn set_simd(&mut self, simd: Simd) {
        self.options.simd = simd;
    }

    /// Changes the policy. No packet may be held at that time.
    pub(super) fn set_policy(&mut self, policy: Policy) {
        let policy = policy.in_range();
        debug_assert_eq!(self.counters.held, 0, "what is held was held by the old policy");
        if policy != self.policy {
            // Memory that grew within the old limits is released, and state of the old mode is
            // dropped.
            self.table = FlowTable::new(policy.max_flows);
            self.acknowledged =
                Acknowledged::new(policy.mode == Mode::Lro { acks: true }, policy.max_flows);
            self.out = PassThrough { pieces: Vec::new(), chains: Vec::new() };
            self.last = NONE;
            self.forget_interleaving();
        }
        (self.policy, self.in_force) = (policy, policy);
        let support = self.options.support;
        self.options = ExamineOptions::new(&policy, None, self.options.simd);
        if let Some(support) = support {
            self.set_support(support);
        }
    }

    /// Delivers the only packet of a call unchanged and without parsing it. No packet may be held.
    #[inline(always)]
    pub(super) fn pass_alone<P: Poll<B>>(
        &mut self,
        packet: RxPacket<B>,
        poll: &mut P,
    ) -> Result<(), P::Error> {
        let length = packet.length_in(poll);
        self.counters.packets_in += 1;
        self.counters.bytes_in += length as u64;
        self.pass_on(packet, length, None, Reason::Alone, poll)
    }

    /// Discards the held packets and those that the sink refused.
    #[cold]
    pub(super) fn discard(&mut self) {
        self.undelivered.clear();
        while self.table.oldest() != NONE {
            // The packet is counted as it leaves, and then discarded.
            let _ = self.emit(self.table.oldest(), Reason::Requested, &mut RefusingPoll(&NoMemory));
            self.undelivered.clear();
        }
        // Packets that were discarded have acknowledged nothing.
        self.acknowledged.forget();
        self.forget_interleaving();
    }

    fn forget_interleaving(&mut self) {
        (self.interleaved_before, self.interleaved, self.interleaved_now) = (false, false, false);
    }

    /// Returns the number of packets that sinks have refused and that are still to be delivered.
    pub(super) fn undelivered(&self) -> usize {
        self.undelivered.len()
    }

    /// Receives all packets of a poll, in order. If the sink fails, `packets` keeps those that were
    /// not processed.
    #[inline]
    pub(super) fn receive_batch<P: Poll<B>>(
        &mut self,
        packets: &mut Vec<RxPacket<B>>,
        now: u64,
        poll: &mut P,
    ) -> Result<(), P::Error> {
        self.deliver_again(poll)?;
        if self.in_force.trusts_input() {
            trust(packets);
        }
        prefetch_first(packets, poll);
        if self.interleaved_before {
            self.sort(packets, poll);
        }
        let given = packets.len();
        let mut batch = packets.drain(..);
        let mut result = Ok(());
        while let Some(next) = batch.as_slice().first() {
            // Packets often come in runs, so most are expected by a recent flow.
            let last = self.last;
            let slot = self.expecting(next, poll);
            let run = if slot == NONE { Ok(false) } else { self.take_run(slot, &mut batch, poll) };
            result = match run {
                // The packet that ended the run belongs to another flow.
                Ok(true) if self.interleaved || batch.as_slice().is_empty() => {
                    self.interleaved_now |= slot != last;
                    continue;
                }
                // The packet that ended the run, or that began none, is parsed.
                Ok(_) => self.take(&mut batch, now, poll),
                Err(error) => Err(error),
            };
            if result.is_err() {
                break;
            }
        }
        if result.is_err() {
            self.unreceived.reserve(given);
            self.unreceived.extend(batch);
            packets.append(&mut self.unreceived);
            return result;
        }
        drop(batch);
        self.end_call(poll)
    }

    /// Sorts packets by flow.
    #[inline(never)]
    fn sort<P: Poll<B>>(&mut self, packets: &mut [RxPacket<B>], poll: &P) {
        let by_flow = self.by_flow.get_or_insert_with(ByFlow::new);
        let interleaved = by_flow.sort(packets, |packets, index| {
            prefetch_ahead(packets.get(index..)?, poll);
            let packet = packets.get(index)?;
            group(poll.bytes(&packet.first), packet.layer)
        });
        self.interleaved_now |= interleaved;
    }

    #[inline]
    fn end_call<P: Poll<B>>(&mut self, poll: &mut P) -> Result<(), P::Error> {
        match self.in_force.delivery {
            Delivery::PerPoll => Ok(()),
            Delivery::AtOnce => self.flush(Reason::PollEnd, poll),
        }
    }

    /// Returns the slot of the flow, among the last one and the recent ones, that expects this
    /// packet; [`NONE`] if there is none.
    #[inline(always)]
    fn expecting<P: Poll<B>>(&self, packet: &RxPacket<B>, poll: &P) -> u32 {
        let expects = |slot: u32| {
            self.table.slots.get(slot as usize).is_some_and(|held| held.expects(packet, poll))
        };
        if expects(self.last) {
            return self.last;
        }
        if !self.interleaved {
            return NONE;
        }
        // If flows are interleaved, packets with the same layout find their flow without a parse.
        let slot = self.recent
            [recent(addresses_and_ports(poll.bytes(&packet.first), self.recent_transport))];
        if slot != self.last && expects(slot) { slot } else { NONE }
    }

    /// Remembers that flows are interleaved, and which flow this packet joined: it is not the flow
    /// that the packet before belonged to.
    #[inline(always)]
    fn note_interleaved(&mut self, slot: u32) {
        self.remember(slot);
        (self.interleaved, self.interleaved_now) = (true, true);
    }

    #[inline(always)]
    fn remember(&mut self, slot: u32) {
        let held = &self.table.slots[slot as usize];
        self.recent[recent(held.addresses_and_ports)] = slot;
        self.recent_transport = held.layout.transport;
    }

    /// Joins all packets at the start of the batch that are next in sequence to the flow in `slot`,
    /// which must expect the first of them. If that completes the flow, it leaves. Returns whether
    /// any packet joined.
    #[inline(always)]
    fn take_run<P: Poll<B>>(
        &mut self,
        slot: u32,
        batch: &mut Drain<'_, RxPacket<B>>,
        poll: &mut P,
    ) -> Result<bool, P::Error> {
        // A run does not check the limit of held bytes. If it could exceed the limit, packets are
        // processed one by one.
        let most = u64::from(self.in_force.max_bytes) + batch.len() as u64 * MAX_HEADER as u64;
        if self.counters.held_bytes + most > self.in_force.max_held_bytes {
            return Ok(false);
        }
        let held = &self.table.slots[slot as usize];
        if held.is_unverified() {
            if !batch.as_slice().first().is_some_and(|next| held.would_verify(next, poll)) {
                return Ok(false);
            }
            // Prefetches the payload of the next packet, which was not requested yet.
            if P::IN_PLACE {
                prefetch_payload(batch.as_slice(), JOIN_AHEAD - 1, poll);
            }
        }
        if !self.open(slot, poll) {
            return Ok(false);
        }
        let held = &mut self.table.slots[slot as usize];
        // Compiled separately for each mode, so that the run does not test it.
        let run = match self.in_force.mode {
            Mode::Gro { .. } => held.join_run::<false, P>(
                batch,
                &self.options,
                self.in_force.storage,
                &mut self.counters,
                poll,
            ),
            Mode::Lro { .. } => held.join_run::<true, P>(
                batch,
                &self.options,
                self.in_force.storage,
                &mut self.counters,
                poll,
            ),
        };
        if run.packets == 0 {
            return Ok(false);
        }
        self.last = slot;
        if let Some(reason) = run.complete {
            self.emit(slot, reason, poll)?;
        }
        self.limit_memory(poll)?;
        Ok(true)
    }

    /// Receives a packet that belongs to another flow than the packet before, or that is not in
    /// sequence.
    #[inline(never)]
    fn take<P: Poll<B>>(
        &mut self,
        batch: &mut Drain<'_, RxPacket<B>>,
        now: u64,
        poll: &mut P,
    ) -> Result<(), P::Error> {
        prefetch_ahead(batch.as_slice(), poll);
        // Compiled separately for the most frequent layouts, the most frequent first.
        match self.take_usual::<{ usual::ETHERNET_IPV4 }, _>(batch, now, poll)? {
            true => Ok(()),
            false => self.take_other(batch, now, poll),
        }
    }

    /// Receives a packet whose layout is not the most frequent one.
    #[inline(never)]
    fn take_other<P: Poll<B>>(
        &mut self,
        batch: &mut Drain<'_, RxPacket<B>>,
        now: u64,
        poll: &mut P,
    ) -> Result<(), P::Error> {
        let taken = self.take_usual::<{ usual::ETHERNET_IPV6 }, _>(batch, now, poll)?
            || self.take_usual::<{ usual::IPV4 }, _>(batch, now, poll)?
            || self.take_usual::<{ usual::IPV6 }, _>(batch, now, poll)?;
        if taken { Ok(()) } else { self.take_any(batch, now, poll) }
    }

    /// Receives a packet if it has this [usual] layout; returns `false` if it has another.
    #[inline(always)]
    fn take_usual<const USUAL: u8, P: Poll<B>>(
        &mut self,
        batch: &mut Drain<'_, RxPacket<B>>,
        now: u64,
        poll: &mut P,
    ) -> Result<bool, P::Error> {
        let Some(RxPacket { first, rest: None, layer, gso, .. }) = batch.as_slice().first() else {
            return Ok(false);
        };
        let header = poll.bytes(first);
        let length = header.len();
        let Some((payload, end)) = parse_usual::<USUAL>(header, length, *layer) else {
            return Ok(false);
        };
        if end == u32::from(payload) && self.passes_empty() && gso.is_none() {
            return self.pass_empty::<USUAL, _>(batch, poll).map(|()| true);
        }
        self.take_parsed::<USUAL, _>(
            batch,
            &Layout::usual(USUAL, payload, end),
            None,
            length,
            now,
            poll,
        )?;
        Ok(true)
    }

    /// Receives a packet with any layout.
    #[inline(never)]
    fn take_any<P: Poll<B>>(
        &mut self,
        batch: &mut Drain<'_, RxPacket<B>>,
        now: u64,
        poll: &mut P,
    ) -> Result<(), P::Error> {
        let Some(next) = batch.as_slice().first() else { return Ok(()) };
        let length = next.length_in(poll);
        let gathered = (next.rest.is_some() && poll.bytes(&next.first).len() < MAX_HEADER)
            .then(|| Gathered::new(next.buffers().map(|buffer| poll.bytes(buffer))));
        let header = gathered.as_ref().map_or(poll.bytes(&next.first), Gathered::bytes);
        // The layout is not copied: it was just written field by field, and a copy would stall on
        // these writes.
        match &walk(header, length, next.layer) {
            Ok(layout) => self.take_parsed::<{ usual::NONE }, _>(
                batch,
                layout,
                gathered.as_ref(),
                length,
                now,
                poll,
            ),
            Err(unparsed) => {
                // A packet whose flow is not known passes after all flows that it may belong to.
                if let Some(pair) = self.pair(unparsed.scope, header) {
                    self.flush_pair(pair, poll)?;
                }
                match self.arrived(batch, length) {
                    Some(packet) => {
                        self.pass_on(packet, length, None, unparsed.reason.into(), poll)
                    }
                    None => Ok(()),
                }
            }
        }
    }

    /// Receives a packet of `length` bytes with this layout. `gathered` holds its first bytes if
    /// they lie in several buffers.
    ///
    /// `USUAL` is the number of its [usual] layout. Such a layout consists of constants, so
    /// functions that are not inlined get [a copy](Layout::lend).
    #[inline(always)]
    fn take_parsed<const USUAL: u8, P: Poll<B>>(
        &mut self,
        batch: &mut Drain<'_, RxPacket<B>>,
        layout: &Layout,
        gathered: Option<&Gathered>,
        length: usize,
        now: u64,
        poll: &mut P,
    ) -> Result<(), P::Error> {
        // The headers of the current packet. They must be read again after a packet was emitted.
        macro_rules! header {
            ($packet:expr) => {
                gathered.map_or_else(|| poll.bytes(&$packet.first), Gathered::bytes)
            };
        }
        let Some(next) = batch.as_slice().first() else { return Ok(()) };
        if layout.protocol == Protocol::Udp && self.in_force.mode != (Mode::Gro { udp: true }) {
            // No packet of its flow is held, so none can be overtaken.
            return self.pass::<USUAL, _>(
                batch,
                length,
                layout,
                layout.refusal.map_or(Reason::UdpOff, Reason::from),
                poll,
            );
        }
        let header = header!(next);
        let identity = self.key.flow(header, layout, next.layer, next.vlan);
        let flow = identity.flow;
        let slot = self.table.find(flow, &mut self.counters.probes);
        // The recent flows have been tried already, so only other flows can expect the packet.
        let expected = slot != self.last
            && self.table.slots.get(slot as usize).is_some_and(|held| held.expects(next, poll));
        // Read again only after a run, so that the header length found by the parse stays known to
        // the compiler.
        let (next, header) = if expected {
            if self.take_run(slot, batch, poll)? {
                self.note_interleaved(slot);
                return Ok(());
            }
            let Some(next) = batch.as_slice().first() else { return Ok(()) };
            (next, header!(next))
        } else {
            (next, header)
        };
        let refusal = self.refusal::<USUAL, _>(next, header, layout, length, poll);
        let facts = match refusal.or_else(|| self.cannot_segment::<USUAL>(layout)) {
            Some(reason) => Err(reason),
            None if next.gso.is_some() => {
                match layout.lend::<USUAL, _>(|layout| {
                    self.receive_super_packet(next, slot, layout, gathered, poll)
                })? {
                    SuperPacketOutcome::Joined(facts, last) => {
                        let Some(packet) = self.arrived(batch, length) else { return Ok(()) };
                        return self.hold(slot, packet, &facts, last, length, poll);
                    }
                    SuperPacketOutcome::Refused(reason) => Err(reason),
                    SuperPacketOutcome::Begins(facts) => Ok(facts),
                    SuperPacketOutcome::Ended(reason) => {
                        return self.pass::<USUAL, _>(batch, length, layout, reason, poll);
                    }
                }
            }
            None if slot == NONE => {
                examine::<true, _>(next, header, layout, None, &self.options, poll)
            }
            None => match layout.lend::<USUAL, _>(|layout| {
                self.try_join::<false, _>(slot, next, header, layout, poll)
            }) {
                Ok((Attempt::Joined(joined), facts)) => {
                    let Some(packet) = self.arrived(batch, length) else { return Ok(()) };
                    return match joined {
                        Joined::Absorbed => self.absorb(slot, packet, poll),
                        Joined::Merged | Joined::AbsorbedHead => {
                            self.hold(slot, packet, &facts, facts.payload, length, poll)
                        }
                    };
                }
                Ok((Attempt::Ended(reason), facts)) => {
                    self.emit(slot, reason, poll)?;
                    Ok(facts)
                }
                Err(reason) => Err(reason),
            },
        };
        let facts = match facts {
            Ok(facts) => facts,
            Err(reason) => {
                // The held packets of its flow leave before it.
                if slot != NONE {
                    self.emit(slot, Reason::Overtaken, poll)?;
                }
                self.note_ack::<USUAL>(flow, header!(next), layout);
                return self.pass::<USUAL, _>(batch, length, layout, reason, poll);
            }
        };
        match self.room::<USUAL, P>(flow, header!(next), layout, &facts) {
            Ok(Room::Free) => {}
            Ok(Room::Evict(oldest)) => self.emit(oldest, Reason::Evicted, poll)?,
            Err(reason) => return self.pass::<USUAL, _>(batch, length, layout, reason, poll),
        }
        let slot = self.table.insert(identity, now);
        self.last = slot;
        self.count_new(&facts, length);
        let held = &mut self.table.slots[slot as usize];
        held.start::<USUAL>(next, header!(next), layout, length);
        if let Some(packet) = batch.next() {
            held.begin(packet, &facts);
        }
        self.finish_new(slot, packet_limit(layout, &self.in_force) == 1, poll)
    }

    /// Remembers the acknowledgement of a packet that was not held, if acknowledgements are kept.
    #[inline(always)]
    fn note_ack<const USUAL: u8>(&mut self, flow: u64, header: &[u8], layout: &Layout) {
        if self.acknowledged.is_kept() {
            layout.lend::<USUAL, _>(|layout| self.acknowledged.note(flow, header, layout));
        }
    }

    /// Counts a packet of `length` bytes that begins a flow: as received, and as held.
    #[inline(always)]
    fn count_new(&mut self, facts: &Facts, length: usize) {
        self.counters.held += 1;
        self.count_in(facts, length);
        self.counters.packets_in += 1;
        self.counters.bytes_in += length as u64;
    }

    /// Finishes the insertion of a new flow, so that later packets find it. If `alone` is set, no
    /// other packet may join it and it leaves at once.
    #[inline(always)]
    fn finish_new<P: Poll<B>>(
        &mut self,
        slot: u32,
        alone: bool,
        poll: &mut P,
    ) -> Result<(), P::Error> {
        if self.interleaved {
            self.remember(slot);
        }
        if self.in_force.storage == Storage::Linear {
            self.open(slot, poll);
        }
        if alone {
            self.emit(slot, Reason::PacketLimit, poll)?;
        }
        self.limit_memory(poll)
    }

    /// Returns why the receiver of merged packets could not segment a packet with this layout;
    /// `None` if it could.
    #[inline(always)]
    fn cannot_segment<const USUAL: u8>(&self, layout: &Layout) -> Option<Reason> {
        if USUAL != usual::NONE && self.options.usual_segments {
            return None;
        }
        let support = self.options.support.as_ref()?;
        layout
            .lend::<USUAL, _>(|layout| support.refuses_headers(layout))
            .map(|_| Reason::CannotSegment)
    }

    /// Returns the reason why a packet cannot merge that is known before its checksums are
    /// examined; `None` if there is none.
    #[inline(always)]
    fn refusal<const USUAL: u8, P: Poll<B>>(
        &self,
        packet: &RxPacket<B>,
        header: &[u8],
        layout: &Layout,
        length: usize,
        poll: &P,
    ) -> Option<Reason> {
        if layout.refusal.is_some() {
            return layout.refusal.map(Reason::from);
        }
        let end = layout.end as usize;
        match self.in_force.mode {
            Mode::Gro { .. } => (end != length).then_some(Reason::Padded),
            Mode::Lro { .. } => {
                if end != length
                    && !examine::padding_is_neutral(packet, end, length, self.options.simd, poll)
                {
                    return Some(Reason::Padded);
                }
                layout.lend::<USUAL, _>(|layout| lro_refusal(header, layout))
            }
        }
    }

    /// Joins a packet to its flow, or finds that the flow must leave and the packet may begin a new
    /// one. `Err` holds the reason if the packet may do neither. `SUPER`: whether the packet was
    /// received as a super-packet.
    #[inline(never)]
    fn try_join<const SUPER: bool, P: Poll<B>>(
        &mut self,
        slot: u32,
        packet: &RxPacket<B>,
        header: &[u8],
        layout: &Layout,
        poll: &P,
    ) -> Result<(Attempt, Facts), Reason> {
        if !self.open(slot, poll) {
            let facts = examine::<true, _>(packet, header, layout, None, &self.options, poll)?;
            return Ok((Attempt::Ended(Reason::BadChecksum), facts));
        }
        let held = &mut self.table.slots[slot as usize];
        // Headers that match the held ones have the same layout and the same constant sums.
        let fits = held.matches(header, packet);
        if !fits {
            let facts = examine::<true, _>(packet, header, layout, None, &self.options, poll)?;
            return Ok((Attempt::Ended(held.mismatch(header, packet)), facts));
        }
        // A device that verified a super-packet may have left the checksum of the first segment in
        // it. No payload sum follows from that.
        let known = if SUPER { None } else { Some(&held.constants) };
        let mut facts = examine::<false, _>(packet, header, layout, known, &self.options, poll)?;
        let pushes = SUPER && facts.flags & tcp::PSH != 0 && self.in_force.merge_past_push;
        if pushes {
            facts.flags &= !tcp::PSH;
        }
        let segments = match &packet.gso {
            Some(gso) if SUPER => Segments::of(gso, facts.payload),
            _ => Segments::one(facts.payload),
        };
        let attempt = held.attempt(packet, header, &facts, &segments, &self.in_force)?;
        if let Attempt::Joined(joined) = attempt {
            if pushes {
                held.push();
            }
            self.counters.merged += 1;
            self.counters.absorbed_acks += u64::from(joined != Joined::Merged);
            if slot != self.last {
                self.note_interleaved(slot);
            }
            self.last = slot;
        }
        Ok((attempt, facts))
    }

    /// Finds room in the table for a new flow. `Err` holds the reason if its first packet must be
    /// delivered unchanged instead.
    #[inline(always)]
    fn room<const USUAL: u8, P: Poll<B>>(
        &mut self,
        flow: u64,
        header: &[u8],
        layout: &Layout,
        facts: &Facts,
    ) -> Result<Room, Reason> {
        match self.in_force.mode {
            Mode::Gro { .. } => {
                if facts.flags & (tcp::PSH | tcp::FIN) != 0 {
                    return Err(Reason::Push);
                }
            }
            Mode::Lro { .. } => {
                if facts.payload == 0 {
                    let refusal = eligible_ack(self.in_force.mode, facts.flags).err();
                    let repeated =
                        |layout: &Layout| self.acknowledged.repeated(flow, header, layout);
                    if let Some(reason) = refusal.or_else(|| layout.lend::<USUAL, _>(repeated)) {
                        layout.lend::<USUAL, _>(|layout| {
                            self.acknowledged.note(flow, header, layout)
                        });
                        return Err(reason);
                    }
                }
            }
        }
        let room = self.table.room(flow);
        if let (Room::Evict(_), Mode::Lro { .. }) = (room, self.in_force.mode) {
            // `inet_lro` evicts no flow: a packet without a descriptor passes.
            self.counters.no_desc += 1;
            layout.lend::<USUAL, _>(|layout| self.acknowledged.note(flow, header, layout));
            return Err(Reason::NoDescriptor);
        }
        Ok(room)
    }

    /// Stores the buffers of a packet that joined a flow. If that completes the flow, it leaves.
    /// `last` is the payload length of the packet's last segment in bytes.
    #[inline(always)]
    fn hold<P: Poll<B>>(
        &mut self,
        slot: u32,
        packet: RxPacket<B>,
        facts: &Facts,
        last: u32,
        length: usize,
        poll: &mut P,
    ) -> Result<(), P::Error> {
        self.count_in(facts, length);
        let held = &mut self.table.slots[slot as usize];
        held.bytes += length as u64;
        if P::IN_PLACE {
            held.join_in_place(&packet, facts, poll);
        }
        if let Some(chain) = held.attach(
            packet,
            facts,
            usize::from(held.layout.payload),
            self.in_force.storage,
            poll,
        ) {
            self.out.recycle(chain);
        }
        if let Some(reason) = self.complete(slot, last) {
            self.emit(slot, reason, poll)?;
        }
        self.limit_memory(poll)
    }

    /// Drops the buffers of a pure ACK that the held packet of its flow has absorbed, and emits the
    /// flow if it is complete.
    fn absorb<P: Poll<B>>(
        &mut self,
        slot: u32,
        packet: RxPacket<B>,
        poll: &mut P,
    ) -> Result<(), P::Error> {
        self.counters.aggregated += 1;
        if let Some(mut chain) = packet.rest {
            chain.buffers_mut().clear();
            self.out.recycle(chain);
        }
        match self.complete(slot, 0) {
            Some(reason) => self.emit(slot, reason, poll),
            None => Ok(()),
        }
    }

    /// Takes the next packet from the batch and delivers it unchanged. `reason` says why it was not
    /// held.
    #[inline(always)]
    fn pass<const USUAL: u8, P: Poll<B>>(
        &mut self,
        batch: &mut Drain<'_, RxPacket<B>>,
        length: usize,
        layout: &Layout,
        reason: Reason,
        poll: &mut P,
    ) -> Result<(), P::Error> {
        match self.arrived(batch, length) {
            Some(packet) => layout.lend::<USUAL, _>(|layout| {
                self.pass_on(packet, length, Some(layout), reason, poll)
            }),
            None => Ok(()),
        }
    }

    /// Delivers a packet unchanged to the sink. `reason` says why it was not held.
    #[inline(always)]
    pub(super) fn pass_on<P: Poll<B>>(
        &mut self,
        packet: RxPacket<B>,
        length: usize,
        layout: Option<&Layout>,
        reason: Reason,
        poll: &mut P,
    ) -> Result<(), P::Error> {
        self.out.pass(
            packet,
            length,
            layout,
            reason,
            &mut self.counters,
            &mut self.undelivered,
            poll,
        )
    }

    /// Takes the next packet from the batch, and counts it as a received packet of `length` bytes.
    #[inline(always)]
    fn arrived(
        &mut self,
        batch: &mut Drain<'_, RxPacket<B>>,
        length: usize,
    ) -> Option<RxPacket<B>> {
        self.counters.packets_in += 1;
        self.counters.bytes_in += length as u64;
        batch.next()
    }

    /// Opens a flow for other packets to join, unless it is open; `false` if its first packet's
    /// checksum is wrong.
    #[inline(always)]
    fn open<P: Poll<B>>(&mut self, slot: u32, poll: &P) -> bool {
        let held = &mut self.table.slots[slot as usize];
        if held.first.is_none() {
            return true;
        }
        let Ok(chain) = held.open(&self.in_force, self.options.simd, &mut self.counters, poll)
        else {
            return false;
        };
        if let Some(support) = &self.options.support {
            held.end_below(support.min_segment_size);
        }
        if let Some(chain) = chain {
            self.out.recycle(chain);
        }
        true
    }

    /// Counts a packet that joined or began a flow: its `length` bytes as held, and whether its
    /// checksum was verified in software.
    #[inline(always)]
    fn count_in(&mut self, facts: &Facts, length: usize) {
        self.counters.held_bytes += length as u64;
        self.counters.verified_in_software += u64::from(facts.read);
        if let Mode::Lro { .. } = self.in_force.mode {
            self.counters.aggregated += 1;
        }
    }

    /// Returns the reason why a flow is complete after a packet joined; `None` if it is not.
    #[inline(always)]
    fn complete(&self, slot: u32, last_payload: u32) -> Option<Reason> {
        let held = &self.table.slots[slot as usize];
        match self.in_force.mode {
            Mode::Gro { .. } => held.complete::<false>(last_payload),
            Mode::Lro { .. } => held.complete::<true>(last_payload),
        }
    }

    #[inline(always)]
    fn limit_memory<P: Poll<B>>(&mut self, poll: &mut P) -> Result<(), P::Error> {
        while self.counters.held_bytes > self.in_force.max_held_bytes {
            self.emit(self.table.oldest(), Reason::MemoryLimit, poll)?;
        }
        Ok(())
    }

    /// Removes the flow in this slot from the table, and gives its packet to the sink. `reason`
    /// says why it leaves.
    #[inline(never)]
    fn emit<P: Poll<B>>(
        &mut self,
        slot: u32,
        reason: Reason,
        poll: &mut P,
    ) -> Result<(), P::Error> {
        let flow = self.table.remove(slot);
        self.table.prefetch_oldest();
        if self.last == slot {
            self.last = NONE;
        }
        let held = &mut self.table.slots[slot as usize];
        held.close();
        self.counters.held -= 1;
        self.counters.held_bytes -= held.bytes;
        if let Mode::Lro { .. } = self.in_force.mode {
            self.counters.flushed += 1;
            self.acknowledged.note(flow, held.header(poll), &held.layout);
        }
        if let Some(First { packet, .. }) = held.first.take() {
            let length = held.bytes as usize;
            return self.out.pass(
                packet,
                length,
                Some(&held.layout),
                reason,
                &mut self.counters,
                &mut self.undelivered,
                poll,
            );
        }
        let merged = held.packets > 1;
        if self.options.support.is_some() {
            held.use_checksum_field();
        }
        let mut left = if merged {
            held.finish(&self.in_force, self.options.simd, poll)
        } else {
            held.restore_single(poll)
        };
        if !P::IN_PLACE && self.in_force.jumbo_option && merged {
            held.add_jumbo_option(&mut left);
        }
        if merged && held.layout.outer.is_some() && self.options.support.is_some() {
            held.seed_outer_checksum(&left);
        }
        self.counters.packets_out += 1;
        self.counters.bytes_out += left.length;
        self.counters.super_packets += u64::from(merged);
        self.counters.reasons[reason as usize] += 1;
        let pieces = held.pieces.len();
        let result = poll.deliver(held.super_packet(&left, reason));
        if result.is_err() {
            keep(&mut self.undelivered, held.super_packet(&left, reason), pieces);
        }
        held.pieces.clear();
        held.linear.clear();
        if held.pieces.capacity() > KEPT_PIECES {
            held.pieces.shrink_to(KEPT_PIECES);
        }
        if held.linear.capacity() > KEPT_LINEAR {
            held.linear.shrink_to(KEPT_LINEAR);
        }
        result
    }

    /// Gives the sink the packets that were refused before, in order.
    #[inline(always)]
    fn deliver_again<P: Poll<B>>(&mut self, poll: &mut P) -> Result<(), P::Error> {
        if self.undelivered.is_empty() { Ok(()) } else { self.deliver_undelivered(poll) }
    }

    #[cold]
    fn deliver_undelivered<P: Poll<B>>(&mut self, poll: &mut P) -> Result<(), P::Error> {
        while let Some(packet) = self.undelivered.next_in(()) {
            let result = poll.deliver(packet);
            if result.is_err() {
                self.undelivered.take_back();
                self.undelivered.forget_taken();
                return result;
            }
        }
        self.undelivered.clear();
        Ok(())
    }

    /// Emits all held flows, the oldest first.
    pub(super) fn flush<P: Poll<B>>(
        &mut self,
        reason: Reason,
        poll: &mut P,
    ) -> Result<(), P::Error> {
        self.deliver_again(poll)?;
        while self.table.oldest() != NONE {
            self.emit(self.table.oldest(), reason, poll)?;
        }
        self.end_interleaving();
        Ok(())
    }

    /// Ends a poll: emits all held flows or, with a hold time, those that have been held for at
    /// least that time.
    pub(super) fn poll_end<P: Poll<B>>(&mut self, now: u64, poll: &mut P) -> Result<(), P::Error> {
        if self.in_force.hold_time == 0 {
            self.flush(Reason::PollEnd, poll)
        } else {
            self.flush_older_than(now, self.in_force.hold_time, poll)?;
            self.end_interleaving();
            Ok(())
        }
    }

    /// Ends the poll's record of whether flows were interleaved, which the next poll uses.
    #[inline(always)]
    fn end_interleaving(&mut self) {
        self.interleaved = core::mem::take(&mut self.interleaved_now);
        self.interleaved_before = self.interleaved;
    }

    /// Emits the flows that have been held for `age` nanoseconds or longer.
    pub(super) fn flush_older_than<P: Poll<B>>(
        &mut self,
        now: u64,
        age: u64,
        poll: &mut P,
    ) -> Result<(), P::Error> {
        self.deliver_again(poll)?;
        loop {
            let oldest = self.table.oldest();
            if oldest == NONE || now.saturating_sub(self.table.slots[oldest as usize].since) < age {
                return Ok(());
            }
            self.emit(oldest, Reason::HoldTime, poll)?;
        }
    }

    /// Emits the flow that a packet belongs to; if that is not known, all flows of its address
    /// pair.
    pub(super) fn flush_flow<P: Poll<B>>(
        &mut self,
        packet: &RxPacket<B>,
        poll: &mut P,
    ) -> Result<(), P::Error> {
        self.deliver_again(poll)?;
        let related = self.related(packet, poll);
        while let Some(slot) = self.held_of(related) {
            self.emit(slot, Reason::Requested, poll)?;
        }
        Ok(())
    }

    /// Delivers a packet unchanged, without trying to merge it. The held packets of its flow are
    /// delivered first, so that order is kept.
    pub(super) fn bypass<P: Poll<B>>(
        &mut self,
        packet: RxPacket<B>,
        poll: &mut P,
    ) -> Result<(), P::Error> {
        let mut result = self.deliver_again(poll);
        let related =
            if self.counters.held == 0 { Related::None } else { self.related(&packet, poll) };
        while let Some(slot) = self.held_of(related) {
            // Packets that come after a refused one wait behind it.
            match result {
                Ok(()) => result = self.emit(slot, Reason::Requested, poll),
                Err(_) => {
                    let _ = self.emit(slot, Reason::Requested, &mut RefusingPoll(&*poll));
                }
            }
        }
        let length = packet.length_in(poll);
        self.counters.packets_in += 1;
        self.counters.bytes_in += length as u64;
        match result {
            Ok(()) => self.pass_on(packet, length, None, Reason::Requested, poll),
            Err(error) => {
                let _ = self.pass_on(
                    packet,
                    length,
                    None,
                    Reason::Requested,
                    &mut RefusingPoll(&*poll),
                );
                Err(error)
            }
        }
    }

    /// Returns the flow that a packet belongs to, or the flows that it may belong to: they must
    /// leave before the packet.
    fn related<P: Poll<B>>(&self, packet: &RxPacket<B>, poll: &P) -> Related {
        let gathered = Gathered::new(packet.buffers().map(|buffer| poll.bytes(buffer)));
        let header = gathered.bytes();
        match parse(header, packet.length_in(poll), packet.layer) {
            Ok(layout) => {
                Related::Flow(self.key.flow(header, &layout, packet.layer, packet.vlan).flow)
            }
            Err(unparsed) => self.pair(unparsed.scope, header).map_or(Related::None, Related::Pair),
        }
    }

    /// Returns a flow-table slot that holds one of the related flows; `None` if none is held.
    fn held_of(&mut self, related: Related) -> Option<u32> {
        let slot = match related {
            Related::Flow(flow) => self.table.find(flow, &mut self.counters.probes),
            Related::Pair(pair) => self.table.of_pair(pair),
            Related::None => NONE,
        };
        (slot != NONE).then_some(slot)
    }

    /// Returns the address pair of a packet whose flow cannot be determined; it may belong to any
    /// flow between these addresses. `None` if the addresses are not known either.
    #[cold]
    fn pair(&self, scope: Scope, header: &[u8]) -> Option<u64> {
        match scope {
            Scope::Pair { network, version } => {
                Some(self.key.pair(header, usize::from(network), version))
            }
            Scope::None => None,
        }
    }

    /// Emits all flows of an address pair.
    #[cold]
    fn flush_pair<P: Poll<B>>(&mut self, pair: u64, poll: &mut P) -> Result<(), P::Error> {
        while let Some(slot) = self.held_of(Related::Pair(pair)) {
            self.emit(slot, Reason::Overtaken, poll)?;
        }
        Ok(())
    }

    /// Returns the time since which the oldest flow is held, in nanoseconds of the caller's clock.
    pub(super) fn held_since(&self) -> Option<u64> {
        match self.table.oldest() {
            NONE => None,
            oldest => Some(self.table.slots[oldest as usize].since),
        }
    }
}

/// The held flows to which a packet belongs, or may belong: one flow, all flows of an address pair,
/// or none.
#[derive(Clone, Copy, Debug)]
enum Related {
    Flow(u64),
    Pair(u64),
    None,
}

/// A poll whose sink refuses every packet.
struct RefusingPoll<'p, P>(&'p P);

impl<B, P: Memory<B>> Memory<B> for RefusingPoll<'_, P> {
    fn bytes<'a>(&'a self, buffer: &'a B) -> &'a [u8] {
        self.0.bytes(buffer)
    }
}

impl<B, P: Memory<B>> Poll<B> for RefusingPoll<'_, P> {
    type Error = ();

    fn deliver(&mut self, _: SuperPacket<'_, B, ()>) -> Result<(), ()> {
        Err(())
    }
}

/// A [`Memory`] in which every buffer is empty.
struct NoMemory;

impl<B> Memory<B> for NoMemory {
    fn bytes<'a>(&'a self, _: &'a B) -> &'a [u8] {
        &[]
    }
}

/// Number of recent flows that are remembered; a power of two.
const RECENT: usize = 64;

/// Returns the index of a flow among the recent ones, from its combined addresses and ports.
#[inline(always)]
fn recent(addresses_and_ports: u64) -> usize {
    (addresses_and_ports.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % RECENT
}

/// Sets the checksum state of packets that no device has verified to "verified".
fn trust<B>(packets: &mut [RxPacket<B>]) {
    for packet in packets {
        if packet.checksum == RxChecksum::None {
            packet.checksum = VERIFIED_BEFORE;
        }
    }
}
