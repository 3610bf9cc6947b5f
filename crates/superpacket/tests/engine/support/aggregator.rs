//! The aggregators behind sinks of one type: compiled once for each kind of buffer, not for each
//! closure of a test.

use std::io::IoSlice;
use std::ops::{Deref, DerefMut};

use superpacket::Simd;
use superpacket::aggregate::{self, BorrowPacket, Borrowed, BufferIndex, HashKey, Policy};
use superpacket::packet::{Layer, RxPacket};
use superpacket::super_packet::{Outcome, Sink, SuperPacket};
use superpacket::virtio::Framing;

/// [`aggregate::Aggregator`], whose calls hand their sinks on as `dyn Sink`.
#[derive(Debug)]
pub struct Aggregator<B>(aggregate::Aggregator<B>);

impl<B: AsRef<[u8]>> Aggregator<B> {
    pub fn new(policy: Policy, key: HashKey) -> Self {
        Aggregator(aggregate::Aggregator::new(policy, key))
    }

    pub fn with_simd(self, simd: Simd) -> Self {
        Aggregator(self.0.with_simd(simd))
    }

    pub fn set_policy<S: Sink<B>>(&mut self, policy: Policy, sink: &mut S) -> S::Outcome {
        self.0.set_policy(policy, sink as &mut dyn Sink<B, Outcome = S::Outcome>)
    }

    pub fn receive_batch<S: Sink<B>>(&mut self, packets: &mut Vec<RxPacket<B>>, now: u64, sink: &mut S) -> S::Outcome {
        self.0.receive_batch(packets, now, sink as &mut dyn Sink<B, Outcome = S::Outcome>)
    }

    pub fn receive<S: Sink<B>>(&mut self, packet: RxPacket<B>, now: u64, sink: &mut S) -> S::Outcome {
        self.0.receive(packet, now, sink as &mut dyn Sink<B, Outcome = S::Outcome>)
    }

    pub fn bypass<S: Sink<B>>(&mut self, packet: RxPacket<B>, sink: &mut S) -> S::Outcome {
        self.0.bypass(packet, sink as &mut dyn Sink<B, Outcome = S::Outcome>)
    }

    pub fn poll_end<S: Sink<B>>(&mut self, now: u64, sink: &mut S) -> S::Outcome {
        self.0.poll_end(now, sink as &mut dyn Sink<B, Outcome = S::Outcome>)
    }

    pub fn flush_older_than<S: Sink<B>>(&mut self, now: u64, age: u64, sink: &mut S) -> S::Outcome {
        self.0.flush_older_than(now, age, sink as &mut dyn Sink<B, Outcome = S::Outcome>)
    }

    pub fn flush_all<S: Sink<B>>(&mut self, sink: &mut S) -> S::Outcome {
        self.0.flush_all(sink as &mut dyn Sink<B, Outcome = S::Outcome>)
    }

    pub fn flush_flow<S: Sink<B>>(&mut self, packet: &RxPacket<B>, sink: &mut S) -> S::Outcome {
        self.0.flush_flow(packet, sink as &mut dyn Sink<B, Outcome = S::Outcome>)
    }
}

impl<B> Deref for Aggregator<B> {
    type Target = aggregate::Aggregator<B>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<B> DerefMut for Aggregator<B> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

/// [`aggregate::BatchAggregator`], whose calls hand their sinks on as `dyn FnMut`.
#[derive(Debug)]
pub struct BatchAggregator(aggregate::BatchAggregator);

/// What takes packets of one call.
type Taking<'s, P, O> = &'s mut dyn FnMut(SuperPacket<'_, BufferIndex, Borrowed<'_, P>>) -> O;

impl BatchAggregator {
    pub fn new(layer: Layer, policy: Policy, key: HashKey) -> Self {
        BatchAggregator(aggregate::BatchAggregator::new(layer, policy, key))
    }

    pub fn framed(framing: Framing, policy: Policy, key: HashKey) -> Self {
        BatchAggregator(aggregate::BatchAggregator::framed(framing, policy, key))
    }

    pub fn poll<P: BorrowPacket, O: Outcome>(
        &mut self,
        packets: &[P],
        mut sink: impl FnMut(SuperPacket<'_, BufferIndex, Borrowed<'_, P>>) -> O,
    ) -> O {
        let sink: Taking<'_, P, O> = &mut sink;
        self.0.poll(packets, sink)
    }

    pub fn resume<P: BorrowPacket, O: Outcome>(
        &mut self,
        packets: &[P],
        mut sink: impl FnMut(SuperPacket<'_, BufferIndex, Borrowed<'_, P>>) -> O,
    ) -> O {
        let sink: Taking<'_, P, O> = &mut sink;
        self.0.resume(packets, sink)
    }

    pub fn poll_gathered<P: BorrowPacket, O: Outcome>(&mut self, packets: &[P], mut sink: impl FnMut(&[IoSlice<'_>]) -> O) -> O {
        self.0.poll_gathered(packets, &mut sink as &mut dyn FnMut(&[IoSlice<'_>]) -> O)
    }

    pub fn resume_gathered<P: BorrowPacket, O: Outcome>(&mut self, packets: &[P], mut sink: impl FnMut(&[IoSlice<'_>]) -> O) -> O {
        self.0.resume_gathered(packets, &mut sink as &mut dyn FnMut(&[IoSlice<'_>]) -> O)
    }
}

impl Deref for BatchAggregator {
    type Target = aggregate::BatchAggregator;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for BatchAggregator {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}
