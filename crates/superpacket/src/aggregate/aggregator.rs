//! The aggregator of packets that own their buffers.

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

use super::poll::OwnedPoll;
use super::receive::Receiver;
use super::{Counters, HashKey, Policy, Reason};
use crate::packet::{Chain, RxPacket};
use crate::super_packet::{Outcome, Sink, SuperPacket};
use superpacket_simd::Simd;

/// Aggregates packets of one receive queue, which own their buffers and may be held across polls.
///
/// Pure: no I/O, no threads, no clock, and in steady state no allocation. Times are nanoseconds of
/// the caller's clock.
///
/// Every call that may emit packets returns what its [`Sink`] returns: nothing, or a `Result`.
#[derive(Debug)]
pub struct Aggregator<B> {
    receiver: Receiver<B>,
    /// A batch of one: what a failed sink kept from being taken goes on to the next call.
    single: Vec<RxPacket<B>>,
    /// When it was received.
    single_at: u64,
}

/// A sink of any type, which keeps the error to itself if it fails.
type AnySink<'s, B> = dyn FnMut(SuperPacket<'_, B>) -> Result<(), ()> + 's;

impl<B: AsRef<[u8]>> Aggregator<B> {
    /// Makes an aggregator with nothing held.
    ///
    /// Limits are brought into range: see [`Policy`]. `key` should be random where others choose
    /// the traffic: `HashKey::random` makes one of the operating system's.
    pub fn new(policy: Policy, key: HashKey) -> Self {
        Aggregator {
            receiver: Receiver::new(policy, key, Simd::detect()),
            single: Vec::new(),
            single_at: 0,
        }
    }

    /// Makes an aggregator as [`new`](Self::new) does, unless there is no memory for its tables.
    ///
    /// # Errors
    /// What the allocator refused.
    pub fn try_new(policy: Policy, key: HashKey) -> Result<Self, TryReserveError> {
        Ok(Aggregator {
            receiver: Receiver::try_new(policy, key, Simd::detect())?,
            single: Vec::new(),
            single_at: 0,
        })
    }

    /// The same aggregator, which computes checksums with this level of SIMD in place of the best.
    #[must_use]
    pub fn with_simd(mut self, simd: Simd) -> Self {
        self.receiver.set_simd(simd);
        self
    }

    /// The policy in force.
    pub const fn policy(&self) -> &Policy {
        &self.receiver.policy
    }

    /// Emits all that is held, and goes on by another policy. If the sink fails the policy stays as
    /// it was.
    pub fn set_policy<S: Sink<B> + ?Sized>(&mut self, policy: Policy, sink: &mut S) -> S::Outcome {
        let poll = &mut OwnedPoll { sink };
        let flushed =
            self.take_single(poll).and_then(|()| self.receiver.flush(Reason::Requested, poll));
        if flushed.is_ok() {
            self.receiver.set_policy(policy);
        }
        S::Outcome::from_result(flushed)
    }

    /// What happened so far.
    pub const fn counters(&self) -> &Counters {
        &self.receiver.counters
    }

    /// How many packets a failed sink has refused: the next call that emits gives them to its sink
    /// first.
    pub fn undelivered(&self) -> usize {
        self.receiver.undelivered()
    }

    /// An empty chain for a packet of several buffers: one that an earlier packet left behind, if
    /// there is one.
    pub fn chain(&mut self) -> Chain<B> {
        self.receiver.out.chains.pop().unwrap_or_default()
    }

    /// Takes all packets of a poll; `packets` is left empty. What leaves goes to `sink`. If that
    /// fails, `packets` keeps those that have not been looked at.
    ///
    /// Packets of each flow are taken in order. Flows that came in turn in the poll before are
    /// taken one after the other, which is faster; a packet whose flow does not follow from the
    /// usual places of its headers (IP fragments, VLAN tags, tunnels) keeps its place among all.
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

    /// Takes one packet. If the sink fails before the packet is looked at, the next call takes it
    /// first.
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

    /// Takes packets that were received one by one while a sink failed.
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

    /// Of one type for all sinks: a call that only flushes need not be compiled with all that
    /// receives.
    #[cold]
    fn take_left(&mut self, sink: &mut AnySink<'_, B>) -> Result<(), ()> {
        self.receiver.receive_batch(&mut self.single, self.single_at, &mut OwnedPoll { sink })
    }

    /// Gives a packet to the sink as it came, unread, after what is held of its flow: where
    /// aggregation is switched off. Its layout is not known then.
    #[inline]
    pub fn bypass<S: Sink<B> + ?Sized>(&mut self, packet: RxPacket<B>, sink: &mut S) -> S::Outcome {
        let poll = &mut OwnedPoll { sink };
        let result = match self.take_single(poll) {
            Ok(()) => self.receiver.bypass(packet, poll),
            Err(error) => {
                // It comes after those, and so is received as they are.
                self.single.push(packet);
                Err(error)
            }
        };
        S::Outcome::from_result(result)
    }

    /// Ends a poll: emits every held flow, or, with a [hold time](Policy::hold_time), those held
    /// for as long.
    pub fn poll_end<S: Sink<B> + ?Sized>(&mut self, now: u64, sink: &mut S) -> S::Outcome {
        let poll = &mut OwnedPoll { sink };
        S::Outcome::from_result(
            self.take_single(poll).and_then(|()| self.receiver.poll_end(now, poll)),
        )
    }

    /// Emits the flows that have been held for `age` nanoseconds or longer at `now`, the oldest
    /// first. A clock that ran backwards ages nothing.
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

    /// Emits what is held of the flow that `packet` belongs to, or, where its ports cannot be told,
    /// of its address pair (`inet_lro`'s `flush_pkt`).
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

    /// When the oldest held flow will have been held for the policy's [hold
    /// time](Policy::hold_time), in nanoseconds: when to call [`poll_end`](Self::poll_end) next.
    /// `None` if nothing is held.
    pub fn deadline(&self) -> Option<u64> {
        self.receiver.held_since().map(|since| since.saturating_add(self.policy().hold_time))
    }
}
