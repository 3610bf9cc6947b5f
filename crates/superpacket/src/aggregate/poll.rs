//! What the aggregator needs from its caller during a call: access to the bytes of the buffers, and
//! the sink.

use core::convert::Infallible;
use core::ops::Range;

use crate::memory::{InBuffers, Memory};
use crate::super_packet::{Outcome, Sink, SuperPacket};
use superpacket_simd::Simd;

/// The environment of one call of an aggregator: the caller's buffers and sink.
pub(super) trait Poll<B>: Memory<B> {
    /// Whether payloads are copied into the first packet's own buffer when packets merge.
    const IN_PLACE: bool = false;
    /// Whether the sum of each payload is kept for the sink, even if no checksum needs it.
    const SUMS: bool = true;

    /// The sink's error.
    type Error;

    /// Gives a packet to the sink. If the sink fails, the buffers of the packet that the sink has
    /// not taken are kept for later delivery.
    fn deliver(&mut self, packet: SuperPacket<'_, B, ()>) -> Result<(), Self::Error>;

    /// Returns the number of payload bytes that fit behind the packet in this buffer.
    #[inline(always)]
    fn room(&self, _first: &B) -> u32 {
        u32::MAX
    }

    /// Truncates the packet in buffer `first` to `kept` bytes and appends the bytes `payload` of
    /// the packet in `buffer`. Called only if packets are merged in their own buffers.
    #[inline(always)]
    fn join(&mut self, _first: &B, _kept: usize, _buffer: &B, _payload: Range<usize>) {}

    /// Does the same as [`join`](Self::join), and returns the payload's sum. The payload of the
    /// packet in `ahead` will be joined soon, and may be prefetched.
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

    /// Undoes the last [`join`](Self::join): truncates the packet in `first` to `kept` bytes.
    #[inline(always)]
    fn take_back(&mut self, _first: &B, _kept: usize) {}
}

/// The environment of a call whose packets own their buffers.
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
