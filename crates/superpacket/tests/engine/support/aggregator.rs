//! The aggregators behind sinks of one type: compiled once for each kind of buffer, not for each
//! closure of a test.

use std::io::IoSlice;
use std::ops::{Deref, DerefMut};

use superpacket::Simd;
use superpacket::aggregate::{self, BorrowPacket, Borrowed, BufferIndex, HashKey, Policy};
use superpacket::packet::{Layer, RxPacket};
use superpacket::super_packet::{Outcome, Sink, SuperPacket};
use superpacket::virtio::Framing;

/// A sink of any type, which keeps its error to itself: the type that the engine uses itself, where
/// it wants no copy of its own for each.
type AnySink<'s, B> = dyn FnMut(SuperPacket<'_, B>) -> Result<(), ()> + 's;

/// Makes a call with a sink of any type.
fn any<B, S: Sink<B> + ?Sized>(
    sink: &mut S,
    call: impl FnOnce(&mut AnySink<'_, B>) -> Result<(), ()>,
) -> S::Outcome {
    let mut error = None;
    let result = call(&mut |packet| {
        sink.receive(packet).into_result().map_err(|failed| error = Some(failed))
    });
    outcome(result, error)
}

/// What a call returns whose sink has kept its error.
fn outcome<O: Outcome>(result: Result<(), ()>, error: Option<O::Error>) -> O {
    assert_eq!(result.is_err(), error.is_some(), "a call fails if its sink does");
    O::from_result(error.map_or(Ok(()), Err))
}

/// [`aggregate::Aggregator`], whose calls hand their sinks on as [`AnySink`].
#[derive(Debug)]
pub struct Aggregator<B>(aggregate::Aggregator<B>);

impl<B: AsRef<[u8]>> Aggregator<B> {
    pub fn new(policy: Policy, key: HashKey) -> Self {
        Aggregator(aggregate::Aggregator::new(policy, key))
    }

    pub fn with_simd(self, simd: Simd) -> Self {
        Aggregator(self.0.with_simd(simd))
    }

    pub fn set_policy<S: Sink<B> + ?Sized>(&mut self, policy: Policy, sink: &mut S) -> S::Outcome {
        any(sink, |sink| self.0.set_policy(policy, sink))
    }

    pub fn receive_batch<S: Sink<B> + ?Sized>(
        &mut self,
        packets: &mut Vec<RxPacket<B>>,
        now: u64,
        sink: &mut S,
    ) -> S::Outcome {
        any(sink, |sink| self.0.receive_batch(packets, now, sink))
    }

    pub fn receive<S: Sink<B> + ?Sized>(
        &mut self,
        packet: RxPacket<B>,
        now: u64,
        sink: &mut S,
    ) -> S::Outcome {
        any(sink, |sink| self.0.receive(packet, now, sink))
    }

    pub fn bypass<S: Sink<B> + ?Sized>(&mut self, packet: RxPacket<B>, sink: &mut S) -> S::Outcome {
        any(sink, |sink| self.0.bypass(packet, sink))
    }

    pub fn poll_end<S: Sink<B> + ?Sized>(&mut self, now: u64, sink: &mut S) -> S::Outcome {
        any(sink, |sink| self.0.poll_end(now, sink))
    }

    pub fn flush_older_than<S: Sink<B> + ?Sized>(
        &mut self,
        now: u64,
        age: u64,
        sink: &mut S,
    ) -> S::Outcome {
        any(sink, |sink| self.0.flush_older_than(now, age, sink))
    }

    pub fn flush_all<S: Sink<B> + ?Sized>(&mut self, sink: &mut S) -> S::Outcome {
        any(sink, |sink| self.0.flush_all(sink))
    }

    pub fn flush_flow<S: Sink<B> + ?Sized>(
        &mut self,
        packet: &RxPacket<B>,
        sink: &mut S,
    ) -> S::Outcome {
        any(sink, |sink| self.0.flush_flow(packet, sink))
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

/// [`aggregate::BatchAggregator`], whose calls hand their sinks on as `dyn FnMut` without errors of
/// their own.
#[derive(Debug)]
pub struct BatchAggregator(aggregate::BatchAggregator);

/// A sink of any type of a call that borrows packets.
type AnyBorrowedSink<'s, P> =
    dyn FnMut(SuperPacket<'_, BufferIndex, Borrowed<'_, P>>) -> Result<(), ()> + 's;

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
        let mut error = None;
        let sink: &mut AnyBorrowedSink<'_, P> =
            &mut |packet| sink(packet).into_result().map_err(|failed| error = Some(failed));
        let result = self.0.poll(packets, sink);
        outcome(result, error)
    }

    pub fn poll_without_sums<P: BorrowPacket, O: Outcome>(
        &mut self,
        packets: &[P],
        mut sink: impl FnMut(SuperPacket<'_, BufferIndex, Borrowed<'_, P>>) -> O,
    ) -> O {
        let mut error = None;
        let sink: &mut AnyBorrowedSink<'_, P> =
            &mut |packet| sink(packet).into_result().map_err(|failed| error = Some(failed));
        let result = self.0.poll_without_sums(packets, sink);
        outcome(result, error)
    }

    pub fn resume<P: BorrowPacket, O: Outcome>(
        &mut self,
        packets: &[P],
        mut sink: impl FnMut(SuperPacket<'_, BufferIndex, Borrowed<'_, P>>) -> O,
    ) -> O {
        let mut error = None;
        let sink: &mut AnyBorrowedSink<'_, P> =
            &mut |packet| sink(packet).into_result().map_err(|failed| error = Some(failed));
        let result = self.0.resume(packets, sink);
        outcome(result, error)
    }

    pub fn poll_gathered<P: BorrowPacket, O: Outcome>(
        &mut self,
        packets: &[P],
        mut sink: impl FnMut(&[IoSlice<'_>]) -> O,
    ) -> O {
        let mut error = None;
        let sink: &mut dyn FnMut(&[IoSlice<'_>]) -> Result<(), ()> =
            &mut |slices| sink(slices).into_result().map_err(|failed| error = Some(failed));
        let result = self.0.poll_gathered(packets, sink);
        outcome(result, error)
    }

    pub fn resume_gathered<P: BorrowPacket, O: Outcome>(
        &mut self,
        packets: &[P],
        mut sink: impl FnMut(&[IoSlice<'_>]) -> O,
    ) -> O {
        let mut error = None;
        let sink: &mut dyn FnMut(&[IoSlice<'_>]) -> Result<(), ()> =
            &mut |slices| sink(slices).into_result().map_err(|failed| error = Some(failed));
        let result = self.0.resume_gathered(packets, sink);
        outcome(result, error)
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
