//! The aggregator for packets that own their buffers.

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

use super::poll::OwnedPoll;
use super::receive::PacketReceiver;
use super::{AggregateCounters, HashKey, Policy, Reason};
use crate::packet::{Chain, RxPacket};
use crate::super_packet::{Outcome, Sink, SuperPacket};
use superpacket_simd::Simd;

/// Aggregates the packets of one receive queue. The packets own their buffers and may be held
/// across polls.
///
/// It does no I/O and uses no threads or clock. In steady state it does not allocate. Times are
/// nanoseconds of the caller's clock.
///
/// Every call that may emit packets returns what its [`Sink`] returns: `()` or a `Result`.
#[derive(Debug)]
pub struct Aggregator<B> {
    receiver: PacketReceiver<B>,
    /// At most one packet: the one given to `receive` that is not processed yet, because a sink
    /// failed.
    single: Vec<RxPacket<B>>,
    /// Time at which `single` was received, in nanoseconds.
    single_at: u64,
}

/// A sink as a trait object. The closure stores the sink's error, and returns `Err(())` if the sink
/// fails.
type AnySink<'s, B> = dyn FnMut(SuperPacket<'_, B>) -> Result<(), ()> + 's;

impl<B: AsRef<[u8]>> Aggregator<B> {
    /// Makes an aggregator that holds no packets.
    ///
    /// Limits are brought into range; see [`Policy`]. `key` should be random if the traffic may be
    /// hostile. `HashKey::random` makes a key from the operating system's random numbers.
    pub fn new(policy: Policy, key: HashKey) -> Self {
        Aggregator {
            receiver: PacketReceiver::new(policy, key, Simd::detect()),
            single: Vec::new(),
            single_at: 0,
        }
    }

    /// Makes an aggregator as [`new`](Self::new) does, or fails if its tables cannot be allocated.
    ///
    /// # Errors
    /// The allocator's error.
    pub fn try_new(policy: Policy, key: HashKey) -> Result<Self, TryReserveError> {
        Ok(Aggregator {
            receiver: PacketReceiver::try_new(policy, key, Simd::detect())?,
            single: Vec::new(),
            single_at: 0,
        })
    }

    /// Returns the aggregator with this level of SIMD for checksums, instead of the best one.
    #[must_use]
    pub fn with_simd(mut self, simd: Simd) -> Self {
        self.receiver.set_simd(simd);
        self
    }

    /// Returns the policy in force.
    pub const fn policy(&self) -> &Policy {
        &self.receiver.policy
    }

    /// Emits all held packets, then changes the policy. If the sink fails, the policy does not
    /// change.
    pub fn set_policy<S: Sink<B> + ?Sized>(&mut self, policy: Policy, sink: &mut S) -> S::Outcome {
        let poll = &mut OwnedPoll { sink };
        let flushed =
            self.take_single(poll).and_then(|()| self.receiver.flush(Reason::Requested, poll));
        if flushed.is_ok() {
            self.receiver.set_policy(policy);
        }
        S::Outcome::from_result(flushed)
    }

    /// Returns the counters since the aggregator was made.
    pub const fn counters(&self) -> &AggregateCounters {
        &self.receiver.counters
    }

    /// Returns the number of packets that a failed sink has refused. The next call that emits gives
    /// them to its sink first.
    pub fn undelivered(&self) -> usize {
        self.receiver.undelivered()
    }

    /// Returns an empty chain for a packet of several buffers. It reuses the chain of an earlier
    /// packet if it can.
    pub fn chain(&mut self) -> Chain<B> {
        self.receiver.out.chains.pop().unwrap_or_default()
    }

    /// Receives all packets of a poll and empties `packets`. Packets that leave go to `sink`. If
    /// the sink fails, `packets` keeps those that were not processed.
    ///
    /// Packets of each flow are processed in order. If the flows were interleaved in the poll
    /// before, they are processed one flow after the other, which is faster. A packet whose flow
    /// does not follow from the usual header offsets (IP fragments, VLAN tags, tunnels) keeps its
    /// position among all packets.
    ///
    /// `now` is the time in nanoseconds from which [hold times](Policy::hold_time) count.
    #[inline]
    pub fn receive_batch<S: Sink<B> + ?Sized>(
        &mut self,
        packets: &mut Vec<RxPacket<B>>,
        now: u64,
        sink: &mut S,
    ) -> S::Outcome {
        let poll = &mut OwnedPoll { sink };
        S::Outcome::from_result(
            self.take_single(poll).and_then(|()| self.receiver.receive_batch(packets, now, poll)),
        )
    }

    /// Receives one packet. If the sink fails before the packet is processed, the next call
    /// processes it first.
    #[inline]
    pub fn receive<S: Sink<B> + ?Sized>(
        &mut self,
        packet: RxPacket<B>,
        now: u64,
        sink: &mut S,
    ) -> S::Outcome {
        let poll = &mut OwnedPoll { sink };
        let left = self.take_single(poll);
        self.single.push(packet);
        self.single_at = now;
        let result = left.and_then(|()| self.receiver.receive_batch(&mut self.single, now, poll));
        S::Outcome::from_result(result)
    }

    /// Processes the packet that [`receive`](Self::receive) kept because a sink failed before it
    /// was processed, if there is one.
    #[inline(always)]
    fn take_single<S: Sink<B> + ?Sized>(
        &mut self,
        poll: &mut OwnedPoll<'_, S>,
    ) -> Result<(), <S::Outcome as Outcome>::Error> {
        if self.single.is_empty() {
            return Ok(());
        }
        let mut error = None;
        let result = self.take_left(&mut |packet| {
            poll.sink.receive(packet).into_result().map_err(|failed| error = Some(failed))
        });
        debug_assert_eq!(result.is_err(), error.is_some(), "only the sink fails");
        error.map_or(Ok(()), Err)
    }

    /// Processes the packet in `single`. The sink is a trait object, so that methods that only
    /// flush do not contain another copy of the receive code.
    #[cold]
    fn take_left(&mut self, sink: &mut AnySink<'_, B>) -> Result<(), ()> {
        self.receiver.receive_batch(&mut self.single, self.single_at, &mut OwnedPoll { sink })
    }

    /// Gives a packet to the sink unchanged, without trying to merge it; for use while aggregation
    /// is switched off. The held packets of its flow are emitted first, so that order is kept. The
    /// layout of the packet's headers is not reported to the sink.
    #[inline]
    pub fn bypass<S: Sink<B> + ?Sized>(&mut self, packet: RxPacket<B>, sink: &mut S) -> S::Outcome {
        let poll = &mut OwnedPoll { sink };
        let result = match self.take_single(poll) {
            Ok(()) => self.receiver.bypass(packet, poll),
            Err(error) => {
                // The packet waits behind refused ones, so it is received as they are.
                self.single.push(packet);
                Err(error)
            }
        };
        S::Outcome::from_result(result)
    }

    /// Ends a poll: emits every held flow or, with a [hold time](Policy::hold_time), only flows
    /// held for at least that time.
    pub fn poll_end<S: Sink<B> + ?Sized>(&mut self, now: u64, sink: &mut S) -> S::Outcome {
        let poll = &mut OwnedPoll { sink };
        S::Outcome::from_result(
            self.take_single(poll).and_then(|()| self.receiver.poll_end(now, poll)),
        )
    }

    /// Emits the flows that have been held for `age` nanoseconds or longer at time `now`, the
    /// oldest first. If the clock ran backwards, a flow's age counts as 0.
    pub fn flush_older_than<S: Sink<B> + ?Sized>(
        &mut self,
        now: u64,
        age: u64,
        sink: &mut S,
    ) -> S::Outcome {
        let poll = &mut OwnedPoll { sink };
        S::Outcome::from_result(
            self.take_single(poll).and_then(|()| self.receiver.flush_older_than(now, age, poll)),
        )
    }

    /// Emits every held flow, the oldest first.
    pub fn flush_all<S: Sink<B> + ?Sized>(&mut self, sink: &mut S) -> S::Outcome {
        let poll = &mut OwnedPoll { sink };
        S::Outcome::from_result(
            self.take_single(poll).and_then(|()| self.receiver.flush(Reason::Requested, poll)),
        )
    }

    /// Emits the held packets of the flow that `packet` belongs to (`flush_pkt` of `inet_lro`). If
    /// the ports are not known, emits all flows of its address pair.
    pub fn flush_flow<S: Sink<B> + ?Sized>(
        &mut self,
        packet: &RxPacket<B>,
        sink: &mut S,
    ) -> S::Outcome {
        let poll = &mut OwnedPoll { sink };
        S::Outcome::from_result(
            self.take_single(poll).and_then(|()| self.receiver.flush_flow(packet, poll)),
        )
    }

    /// Returns the time at which the oldest held flow reaches the policy's [hold
    /// time](Policy::hold_time), in nanoseconds: the time for the next
    /// [`poll_end`](Self::poll_end). `None` if no flow is held.
    pub fn deadline(&self) -> Option<u64> {
        self.receiver.held_since().map(|since| since.saturating_add(self.policy().hold_time))
    }
}
