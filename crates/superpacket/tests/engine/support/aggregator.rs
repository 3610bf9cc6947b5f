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
}

/// Defines calls that hand their sinks on as [`AnySink`].
macro_rules! calls {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        impl<B: AsRef<[u8]>> Aggregator<B> {$(
            pub fn $name<S: Sink<B> + ?Sized>(
                &mut self, $($argument: $type,)* sink: &mut S,
            ) -> S::Outcome {
                any(sink, |sink| self.0.$name($($argument,)* sink))
            }
        )*}
    };
}

calls! {
    set_policy(policy: Policy);
    receive_batch(packets: &mut Vec<RxPacket<B>>, now: u64);
    receive(packet: RxPacket<B>, now: u64);
    bypass(packet: RxPacket<B>);
    poll_end(now: u64);
    flush_older_than(now: u64, age: u64);
    flush_all();
    flush_flow(packet: &RxPacket<B>);
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

impl BatchAggregator {
    pub fn new(layer: Layer, policy: Policy, key: HashKey) -> Self {
        BatchAggregator(aggregate::BatchAggregator::new(layer, policy, key))
    }

    pub fn framed(framing: Framing, policy: Policy, key: HashKey) -> Self {
        BatchAggregator(aggregate::BatchAggregator::framed(framing, policy, key))
    }
}

/// Defines calls of borrowed packets, whose sinks get this.
macro_rules! borrowed_calls {
    ($($name:ident: |$packet:ty|;)*) => {
        impl BatchAggregator {$(
            pub fn $name<P: BorrowPacket, O: Outcome>(
                &mut self, packets: &[P], mut sink: impl FnMut($packet) -> O,
            ) -> O {
                let mut error = None;
                let sink: &mut dyn FnMut($packet) -> Result<(), ()> =
                    &mut |packet| sink(packet).into_result().map_err(|failed| error = Some(failed));
                let result = self.0.$name(packets, sink);
                outcome(result, error)
            }
        )*}
    };
}

borrowed_calls! {
    poll: |SuperPacket<'_, BufferIndex, Borrowed<'_, P>>|;
    poll_without_sums: |SuperPacket<'_, BufferIndex, Borrowed<'_, P>>|;
    resume: |SuperPacket<'_, BufferIndex, Borrowed<'_, P>>|;
    poll_gathered: |&[IoSlice<'_>]|;
    resume_gathered: |&[IoSlice<'_>]|;
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
