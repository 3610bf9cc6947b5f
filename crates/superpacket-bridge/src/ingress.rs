//! Receives packets from one queue of a port: polls it, decides which checksum verdicts and hashes
//! of the device to trust, aggregates the packets, and distributes them.

use std::io;
use std::sync::Arc;

use superpacket::aggregate::{AggregateCounters, Aggregator, HashKey, Policy};
use superpacket::order::{GapLimits, Gaps};
use superpacket::packet::{RxChecksum, RxPacket};
use superpacket::super_packet::SuperPacket;
use superpacket_port::features::Feature;
use superpacket_port::{Buffer, POLL_LIMIT, PortError, Receive, wire_bytes, wire_segments};

use crate::counters::DropReason;
use crate::handover::Doorbell;
use crate::output::PacketForwarder;
use crate::queues::QueueCounts;
use crate::rewritten::copied;
use crate::runtime::{Runtime, SharedPort};
use crate::steering::{Dispatch, SteeringState};
use crate::switch::bucket::BucketLevel;
use crate::switch::tag;

/// Number of wire frames of the largest super-packet. A rate limit for packets reserves this much
/// for each packet before its size is known.
const MAX_SUPER_PACKET_FRAMES: u64 = 64;
/// Bytes of the largest super-packet. A rate limit for bytes reserves this much for each packet
/// before its size is known.
const MAX_SUPER_PACKET_BYTES: u64 = 65_536;

/// The packets of one poll. All queues of a thread use the same buffer, one after the other.
#[derive(Debug, Default)]
pub(crate) struct PollBuffer(Vec<RxPacket<Buffer>>);

impl PollBuffer {
    /// Allocates room for the packets of one poll, 200 KB; required before the first poll.
    ///
    /// # Errors
    /// There is not enough memory.
    pub(crate) fn reserve(&mut self) -> io::Result<()> {
        Ok(self.0.try_reserve_exact(POLL_LIMIT)?)
    }

    /// Drops the packets that a panic left in the buffer.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// A receive queue of a port.
#[derive(Debug)]
pub(crate) struct Ingress {
    pub(crate) shared: Arc<SharedPort>,
    pub(crate) receive: Box<dyn Receive>,
    runtime: Runtime,
    policy: Option<Policy>,
    key: HashKey,
    aggregator: Aggregator<Buffer>,
    /// Holds packets that arrived ahead of earlier ones of their TCP stream until those arrive.
    /// `None` unless the port's limit `gap_timeout` enables it.
    gaps: Option<Gaps<Buffer>>,
    /// The values of the aggregator's counters that were already added to the port's.
    reported: AggregateCounters,
    pub(crate) dispatch: Dispatch,
    /// Value that the aggregator's counter of received packets will have once it has processed all
    /// packets polled so far.
    expected_in: u64,
    /// The doorbell of the thread that polls the queue.
    bell: Arc<Doorbell>,
    /// How often the port had been reopened when this queue was created.
    pub(crate) opening: u32,
    /// Number of the queue in the thread's `epoll`, while it is registered there.
    pub(crate) token: u64,
    /// Whether the queue may have packets.
    pub(crate) ready: bool,
    /// The queue is not polled until this time, in nanoseconds, because its interface is down.
    pub(crate) paused_until: Option<u64>,
    /// The queue's counters.
    counts: Arc<QueueCounts>,
    /// Whether the port has a rate limit for what it receives.
    is_limited: bool,
    /// The queue is not polled until this time, in nanoseconds, because of its rate limit.
    pub(crate) throttled_until: Option<u64>,
    /// Whether the queue is not polled until a worker has processed some of its packets. The worker
    /// then wakes the thread.
    pub(crate) waits_for_worker: bool,
    /// Whether the queue's descriptor is registered as edge-triggered. The reason is in the module
    /// `poll_thread::sleep`.
    pub(crate) edge_triggered: bool,
    /// Whether no worker had packets of the queue when its descriptor was last checked.
    pub(crate) is_quiet: bool,
}

impl Ingress {
    /// Returns a receive queue of a port. `bell` is the doorbell of the thread that polls it. `key`
    /// is the hash key of the aggregator, which should be random.
    pub(crate) fn new(
        shared: Arc<SharedPort>,
        queue: u16,
        receive: Box<dyn Receive>,
        key: HashKey,
        steering: Arc<SteeringState>,
        bell: Arc<Doorbell>,
        token: u64,
    ) -> Self {
        let (runtime, opening, is_limited) =
            (shared.runtime(), shared.opening(), shared.buckets.limit_rx());
        let mut dispatch = Dispatch::new(steering, queue);
        dispatch.refresh(&shared, &bell, runtime.has(Feature::ReceiveHashing));
        let mut ingress = Ingress {
            counts: shared.counts.queues.receives_by(queue),
            shared,
            dispatch,
            expected_in: 0,
            bell,
            receive,
            runtime,
            policy: None,
            key,
            gaps: gaps(&runtime, key),
            aggregator: pass_through(key),
            reported: AggregateCounters::default(),
            opening,
            token,
            ready: true,
            paused_until: None,
            is_limited,
            throttled_until: None,
            waits_for_worker: false,
            edge_triggered: false,
            is_quiet: false,
        };
        ingress.set_policy(runtime.policy());
        ingress
    }

    /// Changes the aggregation policy; `None` switches aggregation off. If there is no memory for
    /// the new policy, the old one stays, or aggregation is switched off. No packet may be held.
    fn set_policy(&mut self, policy: Option<Policy>) {
        match policy.map_or_else(
            || Ok(pass_through(self.key)),
            |policy| Aggregator::try_new(policy, self.key),
        ) {
            Ok(aggregator) => {
                (self.policy, self.aggregator) = (policy, aggregator);
                (self.reported, self.expected_in) = (AggregateCounters::default(), 0);
            }
            Err(error) => {
                let how =
                    if self.policy.is_some() { "aggregated as before" } else { "not aggregated" };
                tracing::error!(port = %self.shared.name, %error, "packets are {how}: there is no memory for what was set");
            }
        }
    }

    /// Reads the port's settings again.
    pub(crate) fn refresh(&mut self, forwarder: &mut PacketForwarder, packets: &mut PollBuffer) {
        self.runtime = self.shared.runtime();
        self.is_limited = self.shared.buckets.limit_rx();
        if self.throttled_until.take().is_some() {
            // The new rates may allow more packets.
            (self.paused_until, self.ready) = (None, true);
        }
        let policy = self.runtime.policy();
        if policy != self.policy
            || self.gaps.as_ref().map_or(0, |gaps| gaps.limits().hold_time)
                != gap_timeout(&self.runtime)
        {
            self.drain(forwarder, packets);
            self.gaps = gaps(&self.runtime, self.key);
            self.set_policy(policy);
        }
        // Held packets were received under the old settings, so they are sent before the new ones
        // apply.
        self.drain(forwarder, packets);
        self.dispatch.refresh(&self.shared, &self.bell, self.runtime.has(Feature::ReceiveHashing));
    }

    /// Does pending work that does not depend on new packets: sends packets to workers whose rings
    /// were full, and closes the backlogs of CPUs that are no longer in the mask.
    pub(crate) fn run_deferred(&mut self) {
        if self.dispatch.is_on() {
            if self.dispatch.is_stuck() {
                self.dispatch.end_of_round(&self.shared);
            }
            self.dispatch.leave(&self.shared, &self.bell);
        }
    }

    /// Counts the packets as lost that this thread was processing when it panicked. Of these,
    /// `unsent` waited to be sent.
    pub(crate) fn count_lost(&mut self, unsent: u64) {
        let counters = self.aggregator.counters();
        let unseen = self.expected_in.saturating_sub(counters.packets_in);
        self.shared.counts.dropped(DropReason::Panic, unsent + counters.held + unseen);
        self.gaps = gaps(&self.runtime, self.key);
        // Frees the old aggregator before the new one takes as much memory.
        let policy = self.policy.take();
        self.set_policy(None);
        self.set_policy(policy);
        self.dispatch.lose();
    }

    /// Polls the queue, forwards the packets, and returns their number.
    pub(crate) fn poll(
        &mut self,
        forwarder: &mut PacketForwarder,
        PollBuffer(packets): &mut PollBuffer,
        now: u64,
    ) -> Result<usize, PortError> {
        if self.dispatch.must_wait() {
            // No packet is lost: packets wait in the port, and workers wake this thread when they
            // make progress.
            self.receive.give_back();
            return Ok(0);
        }
        let limit = if self.is_limited { self.packet_allowance(now) } else { POLL_LIMIT };
        if limit == 0 {
            self.receive.give_back();
            return Ok(0);
        }
        let polled = self.receive.poll(packets, limit);
        let received = packets.len();
        if received != 0 {
            if forwarder.copies.is_on() {
                forwarder.copies.received(&self.shared, packets);
            }
            if self.is_limited {
                self.charge(packets, now);
            }
            self.take(forwarder, packets, now);
        } else if self
            .gaps
            .as_ref()
            .and_then(Gaps::deadline)
            .is_some_and(|deadline| deadline <= now)
        {
            self.fill_gaps(packets, now);
            self.aggregate(forwarder, packets, now);
        } else if self.policy.is_some_and(|policy| policy.hold_time != 0)
            && self.aggregator.counters().held != 0
        {
            self.end(forwarder, now);
        }
        self.receive.give_back();
        polled.map(|_| received)
    }

    /// Returns how many packets may be received under the rate limits, if each has the maximum
    /// size. If the result is 0, sets the time of the next poll.
    #[cold]
    fn packet_allowance(&mut self, now: u64) -> usize {
        let buckets = &self.shared.buckets;
        let mut allowed = POLL_LIMIT;
        self.throttled_until = None;
        for (has, of_each) in [
            (buckets.rx_packets.has(now), MAX_SUPER_PACKET_FRAMES),
            (buckets.rx_bytes.has(now), MAX_SUPER_PACKET_BYTES),
        ] {
            match has {
                BucketLevel::Some(amount) => {
                    allowed = allowed.min((amount / of_each).clamp(1, POLL_LIMIT as u64) as usize)
                }
                BucketLevel::EmptyUntil(time) => {
                    self.throttled_until = self.throttled_until.max(Some(time))
                }
            }
        }
        if self.throttled_until.is_none() {
            return allowed;
        }
        self.shared.counts.rx_throttled.add(1);
        0
    }

    /// Takes the tokens of received packets from the port's rate limits.
    #[cold]
    fn charge(&self, packets: &[RxPacket<Buffer>], now: u64) {
        let size = |packet: &RxPacket<Buffer>| {
            let (head, length) =
                (packet.buffers().next().map_or(&[][..], Buffer::bytes), packet.length());
            packet.gso.map_or(length as u64, |gso| wire_bytes(head, length, gso, packet.checksum))
        };
        let buckets = &self.shared.buckets;
        buckets
            .rx_packets
            .charge(packets.iter().map(|packet| u64::from(segments(packet))).sum(), now);
        buckets.rx_bytes.charge(packets.iter().map(size).sum(), now);
    }

    fn take(
        &mut self,
        forwarder: &mut PacketForwarder,
        packets: &mut Vec<RxPacket<Buffer>>,
        now: u64,
    ) {
        let waiting = self.gaps.as_ref().map_or(0, |gaps| gaps.counters().waiting);
        self.expected_in = self.aggregator.counters().packets_in + waiting + packets.len() as u64;
        self.dispatch.received(&self.shared, packets.len(), now);
        let (checksums, hashes) =
            (self.runtime.has(Feature::RxChecksumming), self.runtime.has(Feature::ReceiveHashing));
        if !checksums || !hashes {
            for packet in &mut *packets {
                packet.hash = packet.hash.filter(|_| hashes);
                // A partial checksum is kept: it is no verdict of the device, and the checksum must
                // still be completed.
                if !checksums && !matches!(packet.checksum, RxChecksum::Partial { .. }) {
                    packet.checksum = RxChecksum::None;
                }
            }
        }
        self.counts.packets.add(packets.len() as u64);
        self.counts.bytes.add(packets.iter().map(|packet| packet.length() as u64).sum());
        let counts = &self.shared.counts;
        for packet in packets.iter().filter(|packet| packet.gso.is_some()) {
            counts.rx_super_packets.add(1);
            counts.rx_super_segments.add(u64::from(segments(packet)));
        }
        if let Some(protocol) = self.shared.vlan_filtering {
            packets.iter_mut().for_each(|packet| tag::sort(packet, protocol));
        }
        self.fill_gaps(packets, now);
        self.aggregate(forwarder, packets, now);
    }

    /// Removes packets from the batch that arrived ahead of earlier ones of their TCP stream, and
    /// adds those whose wait is over.
    #[inline]
    fn fill_gaps(&mut self, packets: &mut Vec<RxPacket<Buffer>>, now: u64) {
        if let Some(gaps) = &mut self.gaps {
            let before = *gaps.counters();
            gaps.receive_keeping(packets, now, copied);
            self.shared.counts.gaps(&before, gaps.counters());
        }
    }

    fn aggregate(
        &mut self,
        forwarder: &mut PacketForwarder,
        packets: &mut Vec<RxPacket<Buffer>>,
        now: u64,
    ) {
        let Ingress { shared, aggregator, policy, dispatch, .. } = self;
        let mut sink =
            |packet: SuperPacket<'_, Buffer>| dispatch.forward(shared, forwarder, packet);
        if policy.is_some() {
            aggregator.receive_batch(packets, now, &mut sink);
        } else {
            packets.drain(..).for_each(|packet| aggregator.bypass(packet, &mut sink));
        }
        self.end(forwarder, now);
    }

    /// Ends a poll: flushes packets that may not be held longer, sends all queued frames, and wakes
    /// workers.
    fn end(&mut self, forwarder: &mut PacketForwarder, now: u64) {
        let Ingress { shared, aggregator, dispatch, .. } = self;
        aggregator.poll_end(now, &mut |packet: SuperPacket<'_, Buffer>| {
            dispatch.forward(shared, forwarder, packet)
        });
        self.count();
        forwarder.flush();
        self.dispatch.end_of_round(&self.shared);
    }

    fn count(&mut self) {
        // The aggregator's counters only increase and belong to this thread, so the difference has
        // not been reported yet.
        let (counters, counts) = (*self.aggregator.counters(), &self.shared.counts);
        counts.received(&self.reported, &counters);
        self.reported = counters;
    }

    /// Sends, or hands to workers, all packets that are held for aggregation or until earlier
    /// packets arrive.
    pub(crate) fn drain(
        &mut self,
        forwarder: &mut PacketForwarder,
        PollBuffer(packets): &mut PollBuffer,
    ) {
        let Ingress { shared, aggregator, dispatch, gaps, .. } = self;
        if let Some(gaps) = gaps
            && gaps.counters().waiting != 0
        {
            gaps.release_all(packets);
            aggregator.receive_batch(packets, 0, &mut |packet: SuperPacket<'_, Buffer>| {
                dispatch.forward(shared, forwarder, packet)
            });
        }
        aggregator.flush_all(&mut |packet: SuperPacket<'_, Buffer>| {
            dispatch.forward(shared, forwarder, packet)
        });
        self.count();
        forwarder.flush();
        self.dispatch.end_of_round(&self.shared);
    }

    /// Returns the time in nanoseconds by which a held packet must leave; `None` if none is held.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let gaps = self.gaps.as_ref().and_then(Gaps::deadline);
        self.aggregator.deadline().into_iter().chain(gaps).min()
    }
}

/// Returns an aggregator for packets that are not aggregated. It holds no packets and takes almost
/// no memory.
fn pass_through(key: HashKey) -> Aggregator<Buffer> {
    Aggregator::new(Policy::gro().with_partial_checksums().with_max_flows(8), key)
}

/// Returns how long TCP segments may wait for earlier ones of their stream. This is 0 if the port
/// does not aggregate, since the order matters only for aggregation.
fn gap_timeout(runtime: &Runtime) -> u64 {
    if runtime.policy().is_some() { runtime.limits.gap_timeout } else { 0 }
}

fn gaps(runtime: &Runtime, key: HashKey) -> Option<Gaps<Buffer>> {
    let hold_time = gap_timeout(runtime);
    (hold_time != 0).then(|| Gaps::new(GapLimits::new(hold_time), key))
}

/// Returns the number of wire frames of a received packet.
fn segments(packet: &RxPacket<Buffer>) -> u32 {
    let head = packet.buffers().next().map_or(&[][..], Buffer::bytes);
    packet.gso.map_or(1, |gso| wire_segments(head, packet.length(), gso, packet.checksum))
}
