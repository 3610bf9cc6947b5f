//! The way in by one receive queue: poll, believe of the device what is to be believed, aggregate,
//! hand on.

use std::io;
use std::sync::Arc;

use superpacket::aggregate::{Aggregator, Counters, HashKey, Policy};
use superpacket::order::{GapLimits, Gaps};
use superpacket::packet::{RxChecksum, RxPacket};
use superpacket::super_packet::SuperPacket;
use superpacket_port::features::Feature;
use superpacket_port::{Buffer, POLL_LIMIT, PortError, Receive, wire_bytes, wire_segments};

use crate::bucket::Has;
use crate::counters::DropReason;
use crate::handover::Doorbell;
use crate::output::Output;
use crate::queues::QueueCounts;
use crate::rewritten::copied;
use crate::runtime::{Runtime, Shared};
use crate::steering::{Dispatch, State};
use crate::tag;

/// The frames that a super-packet of a sender's kernel is on a wire, and its bytes: where rates are
/// limited, so much is reckoned with for each packet before it is known.
const MOST_PACKETS: u64 = 64;
const MOST_BYTES: u64 = 65_536;

/// What a thread takes of a receive queue at once: its queues use the same memory, one after the
/// other.
#[derive(Debug, Default)]
pub(crate) struct PollBuffer(Vec<RxPacket<Buffer>>);

impl PollBuffer {
    /// Has room for as many packets as a poll takes, 200 KB: a queue must not be polled before.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn reserve(&mut self) -> io::Result<()> {
        Ok(self.0.try_reserve_exact(POLL_LIMIT)?)
    }

    /// After a panic: what is left in it is lost.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// One receive queue of a port.
#[derive(Debug)]
pub(crate) struct Ingress {
    pub(crate) shared: Arc<Shared>,
    pub(crate) receive: Box<dyn Receive>,
    runtime: Runtime,
    policy: Option<Policy>,
    key: HashKey,
    aggregator: Aggregator<Buffer>,
    /// What came ahead of others waits here for them, where the port's limits say so.
    gaps: Option<Gaps<Buffer>>,
    /// The aggregator's counters as of the last time that they were added to the port's.
    counted: Counters,
    pub(crate) dispatch: Dispatch,
    /// What the aggregator's count of packets will be when it has seen all that was polled.
    polled: u64,
    /// The bell of the thread that polls it.
    bell: Arc<Doorbell>,
    /// Which opening of the port this is a queue of.
    pub(crate) opening: u32,
    /// Its descriptor's name in the thread's `epoll`, while it is there.
    pub(crate) token: u64,
    /// May there be packets?
    pub(crate) ready: bool,
    /// It is left alone until then, in nanoseconds: its interface is down.
    pub(crate) paused_until: Option<u64>,
    /// What the queue counts.
    counts: Arc<QueueCounts>,
    /// What it receives is limited to a rate.
    is_limited: bool,
    /// No more may be taken of what it received until then, in nanoseconds.
    pub(crate) throttled_until: Option<u64>,
    /// It waits for a worker: when the thread is woken, it may go on.
    pub(crate) watching: bool,
    /// Its readiness ends a wait only when it is new
    /// ([`PollThread`](crate::poll_thread::PollThread) says why).
    pub(crate) edge: bool,
    /// Nothing was with workers when its readiness was looked at last.
    pub(crate) armed: bool,
}

impl Ingress {
    /// A queue of a port, polled by the thread with this bell. `key` should be random.
    pub(crate) fn new(
        shared: Arc<Shared>,
        queue: u16,
        receive: Box<dyn Receive>,
        key: HashKey,
        steering: Arc<State>,
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
            polled: 0,
            bell,
            receive,
            runtime,
            policy: None,
            key,
            gaps: gaps(&runtime, key),
            aggregator: passing(key),
            counted: Counters::default(),
            opening,
            token,
            ready: true,
            paused_until: None,
            is_limited,
            throttled_until: None,
            watching: false,
            edge: false,
            armed: false,
        };
        ingress.set_policy(runtime.policy());
        ingress
    }

    /// Aggregates so from here on; where there is no memory for it, as before, or not at all.
    /// Nothing may be held.
    fn set_policy(&mut self, policy: Option<Policy>) {
        match policy
            .map_or_else(|| Ok(passing(self.key)), |policy| Aggregator::try_new(policy, self.key))
        {
            Ok(aggregator) => {
                (self.policy, self.aggregator) = (policy, aggregator);
                (self.counted, self.polled) = (Counters::default(), 0);
            }
            Err(error) => {
                let how =
                    if self.policy.is_some() { "aggregated as before" } else { "not aggregated" };
                tracing::error!(port = %self.shared.name, %error, "packets are {how}: there is no memory for what was set");
            }
        }
    }

    /// Settings have changed.
    pub(crate) fn refresh(&mut self, output: &mut Output, packets: &mut PollBuffer) {
        self.runtime = self.shared.runtime();
        self.is_limited = self.shared.buckets.limit_rx();
        if self.throttled_until.take().is_some() {
            // By the rates that hold now, more may be allowed.
            (self.paused_until, self.ready) = (None, true);
        }
        let policy = self.runtime.policy();
        if policy != self.policy
            || self.gaps.as_ref().map_or(0, |gaps| gaps.limits().hold_time)
                != gap_timeout(&self.runtime)
        {
            self.drain(output, packets);
            self.gaps = gaps(&self.runtime, self.key);
            self.set_policy(policy);
        }
        // What is held was received under the old settings, and is steered by them.
        self.drain(output, packets);
        self.dispatch.refresh(&self.shared, &self.bell, self.runtime.has(Feature::ReceiveHashing));
    }

    /// Does what is due without packets: sends what waited for room, leaves CPUs that are not
    /// wanted any more.
    pub(crate) fn tend(&mut self) {
        if self.dispatch.is_on() {
            if self.dispatch.is_stuck() {
                self.dispatch.end_of_round(&self.shared);
            }
            self.dispatch.leave(&self.shared, &self.bell);
        }
    }

    /// After a panic: what is in the thread's hands is lost, and counted; `unsent` of it were on
    /// their way out.
    pub(crate) fn lose(&mut self, unsent: u64) {
        let counters = self.aggregator.counters();
        let unseen = self.polled.saturating_sub(counters.packets_in);
        self.shared.counts.dropped(DropReason::Panic, unsent + counters.held + unseen);
        self.gaps = gaps(&self.runtime, self.key);
        // The old one's memory is given back first: the new one needs as much.
        let policy = self.policy.take();
        self.set_policy(None);
        self.set_policy(policy);
        self.dispatch.lose();
    }

    /// Takes what has arrived, and sends it on its way; says how many packets that were.
    pub(crate) fn poll(
        &mut self,
        output: &mut Output,
        PollBuffer(packets): &mut PollBuffer,
        now: u64,
    ) -> Result<usize, PortError> {
        if self.dispatch.must_wait() {
            // Nothing is lost by it: the packets wait in the port. When workers have gone on, this
            // thread is woken.
            self.receive.give_back();
            return Ok(0);
        }
        let limit = if self.is_limited { self.allowed(now) } else { POLL_LIMIT };
        if limit == 0 {
            self.receive.give_back();
            return Ok(0);
        }
        let polled = self.receive.poll(packets, limit);
        let received = packets.len();
        if received != 0 {
            if output.copies.is_on() {
                output.copies.received(&self.shared, packets);
            }
            if self.is_limited {
                self.charge(packets, now);
            }
            self.take(output, packets, now);
        } else if self
            .gaps
            .as_ref()
            .and_then(Gaps::deadline)
            .is_some_and(|deadline| deadline <= now)
        {
            self.fill_gaps(packets, now);
            self.aggregate(output, packets, now);
        } else if self.policy.is_some_and(|policy| policy.hold_time != 0)
            && self.aggregator.counters().held != 0
        {
            self.end(output, now);
        }
        self.receive.give_back();
        polled.map(|_| received)
    }

    /// How many packets may be taken of what was received, each of which may be the longest there
    /// is; 0: none, until a time that is set.
    #[cold]
    fn allowed(&mut self, now: u64) -> usize {
        let buckets = &self.shared.buckets;
        let mut allowed = POLL_LIMIT;
        self.throttled_until = None;
        for (has, of_each) in
            [(buckets.rx_packets.has(now), MOST_PACKETS), (buckets.rx_bytes.has(now), MOST_BYTES)]
        {
            match has {
                Has::Some(amount) => {
                    allowed = allowed.min((amount / of_each).clamp(1, POLL_LIMIT as u64) as usize)
                }
                Has::NothingUntil(time) => {
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

    /// Takes from the buckets what was received.
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

    fn take(&mut self, output: &mut Output, packets: &mut Vec<RxPacket<Buffer>>, now: u64) {
        let waiting = self.gaps.as_ref().map_or(0, |gaps| gaps.counters().waiting);
        self.polled = self.aggregator.counters().packets_in + waiting + packets.len() as u64;
        self.dispatch.received(&self.shared, packets.len(), now);
        let (checksums, hashes) =
            (self.runtime.has(Feature::RxChecksumming), self.runtime.has(Feature::ReceiveHashing));
        if !checksums || !hashes {
            for packet in &mut *packets {
                packet.hash = packet.hash.filter(|_| hashes);
                // A partial checksum is no verdict of the device's: the packet has none yet.
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
        self.aggregate(output, packets, now);
    }

    /// Takes out what came ahead of others, and puts in what has waited.
    #[inline]
    fn fill_gaps(&mut self, packets: &mut Vec<RxPacket<Buffer>>, now: u64) {
        if let Some(gaps) = &mut self.gaps {
            let before = *gaps.counters();
            gaps.receive_keeping(packets, now, copied);
            self.shared.counts.gaps(&before, gaps.counters());
        }
    }

    fn aggregate(&mut self, output: &mut Output, packets: &mut Vec<RxPacket<Buffer>>, now: u64) {
        let Ingress { shared, aggregator, policy, dispatch, .. } = self;
        let mut sink = |packet: SuperPacket<'_, Buffer>| dispatch.forward(shared, output, packet);
        if policy.is_some() {
            aggregator.receive_batch(packets, now, &mut sink);
        } else {
            packets.drain(..).for_each(|packet| aggregator.bypass(packet, &mut sink));
        }
        self.end(output, now);
    }

    /// Ends a poll: what may not be held leaves, and all that waits is sent.
    fn end(&mut self, output: &mut Output, now: u64) {
        let Ingress { shared, aggregator, dispatch, .. } = self;
        aggregator.poll_end(now, &mut |packet: SuperPacket<'_, Buffer>| {
            dispatch.forward(shared, output, packet)
        });
        self.count();
        output.flush();
        self.dispatch.end_of_round(&self.shared);
    }

    fn count(&mut self) {
        // The aggregator's counters only grow, and are this thread's: what is new is what is not
        // counted yet.
        let (counters, counts) = (*self.aggregator.counters(), &self.shared.counts);
        counts.received(&self.counted, &counters);
        self.counted = counters;
    }

    /// Sends on its way all that is held.
    pub(crate) fn drain(&mut self, output: &mut Output, PollBuffer(packets): &mut PollBuffer) {
        let Ingress { shared, aggregator, dispatch, gaps, .. } = self;
        if let Some(gaps) = gaps
            && gaps.counters().waiting != 0
        {
            gaps.release_all(packets);
            aggregator.receive_batch(packets, 0, &mut |packet: SuperPacket<'_, Buffer>| {
                dispatch.forward(shared, output, packet)
            });
        }
        aggregator.flush_all(&mut |packet: SuperPacket<'_, Buffer>| {
            dispatch.forward(shared, output, packet)
        });
        self.count();
        output.flush();
        self.dispatch.end_of_round(&self.shared);
    }

    /// When something held must leave, in nanoseconds; `None`: nothing is held.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let gaps = self.gaps.as_ref().and_then(Gaps::deadline);
        self.aggregator.deadline().into_iter().chain(gaps).min()
    }
}

/// What packets pass that are not aggregated: it holds nothing, and takes next to no memory.
fn passing(key: HashKey) -> Aggregator<Buffer> {
    Aggregator::new(Policy::gro().with_partial_checksums().with_max_flows(8), key)
}

/// How long segments may wait for those before them: only what is aggregated gains by it.
fn gap_timeout(runtime: &Runtime) -> u64 {
    if runtime.policy().is_some() { runtime.limits.gap_timeout } else { 0 }
}

fn gaps(runtime: &Runtime, key: HashKey) -> Option<Gaps<Buffer>> {
    let hold_time = gap_timeout(runtime);
    (hold_time != 0).then(|| Gaps::new(GapLimits::new(hold_time), key))
}

/// How many frames a received packet is on a wire.
fn segments(packet: &RxPacket<Buffer>) -> u32 {
    let head = packet.buffers().next().map_or(&[][..], Buffer::bytes);
    packet.gso.map_or(1, |gso| wire_segments(head, packet.length(), gso, packet.checksum))
}
