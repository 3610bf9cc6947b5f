//! What surrounds the aggregator while it works: where bytes lie, and who takes what leaves.

use core::convert::Infallible;
use core::ops::Range;

use crate::memory::{InBuffers, Memory};
use crate::super_packet::{Outcome, Sink, SuperPacket};
use superpacket_simd::Simd;

/// One call of an aggregator: the caller's buffers, and the caller's sink.
pub(super) trait Poll<B>: Memory<B> {
    /// Are payloads joined in the first packet's own buffer?
    const IN_PLACE: bool = false;
    /// Is the sum of each payload kept for the sink, though no checksum needs it?
    const SUMS: bool = true;

    /// What the sink says when it fails.
    type Error;

    /// Gives a packet to the sink. What it leaves of the packet when it fails is kept.
    fn deliver(&mut self, packet: SuperPacket<'_, B, ()>) -> Result<(), Self::Error>;

    /// Returns how many payload bytes can be joined to the packet that lies in this buffer.
    #[inline(always)]
    fn room(&self, _first: &B) -> u32 {
        u32::MAX
    }

    /// Joins `payload` of one buffer to another, of which the first `kept` bytes stay: in place
    /// only.
    #[inline(always)]
    fn join(&mut self, _first: &B, _kept: usize, _buffer: &B, _payload: Range<usize>) {}

    /// Joins as [`join`](Self::join) does, and returns the payload's sum. The payload of the packet
    /// `ahead` will be joined soon, and may be prefetched.
    #[inline(always)]
    fn join_and_sum(
        &mut self,
        _first: &B,
        _kept: usize,
        _buffer: &B,
        _payload: Range<usize>,
        _ahead: Option<&B>,
        _simd: Simd,
    ) -> u16 {
        0
    }

    /// Takes back what was joined last: the first `kept` bytes stay.
    #[inline(always)]
    fn take_back(&mut self, _first: &B, _kept: usize) {}
}

/// A poll of packets that own their buffers.
pub(super) struct OwnedPoll<'s, S: ?Sized> {
    pub(super) sink: &'s mut S,
}

impl<B: AsRef<[u8]>, S: ?Sized> Memory<B> for OwnedPoll<'_, S> {
    #[inline(always)]
    fn bytes<'a>(&'a self, buffer: &'a B) -> &'a [u8] {
        buffer.as_ref()
    }
}

impl<B: AsRef<[u8]>, S: Sink<B> + ?Sized> Poll<B> for OwnedPoll<'_, S> {
    type Error = <S::Outcome as Outcome>::Error;

    #[inline(always)]
    fn deliver(&mut self, packet: SuperPacket<'_, B, ()>) -> Result<(), Self::Error> {
        self.sink.receive(packet.with_memory(InBuffers)).into_result()
    }
}

impl Outcome for () {
    type Error = Infallible;

    #[inline(always)]
    fn from_result(_: Result<(), Infallible>) {}

    #[inline(always)]
    fn into_result(self) -> Result<(), Infallible> {
        Ok(())
    }
}

impl<E> Outcome for Result<(), E> {
    type Error = E;

    #[inline(always)]
    fn from_result(result: Result<(), E>) -> Self {
        result
    }

    #[inline(always)]
    fn into_result(self) -> Result<(), E> {
        self
    }
}
