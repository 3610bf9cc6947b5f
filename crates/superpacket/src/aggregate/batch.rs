//! The aggregator for packets that are borrowed for one call.

use alloc::vec::Vec;

use super::poll::Poll;
use super::receive::{PacketReceiver, VERIFIED_BEFORE};
use super::{AggregateCounters, HashKey, Mode, Policy, Reason};
use crate::memory::Memory;
use crate::packet::{Layer, MAX_BUFFERS, RxChecksum, RxPacket};
use crate::super_packet::{Outcome, SuperPacket};
use crate::virtio::Framing;
use superpacket_simd::Simd;

/// Aggregates the packets of one call. It borrows them, and holds none when the call returns.
///
/// The aggregator itself borrows nothing (`Send + 'static`) and keeps its memory: in steady state
/// it does not allocate.
///
/// | call | what becomes of the packets |
/// |---|---|
/// | [`poll`](Self::poll) | a sink gets each super-packet as a header and ranges of the packets that were given |
/// | [`poll_gathered`](Self::poll_gathered) | a sink gets each as `IoSlice`s behind a `virtio_net_hdr`, for `writev` |
/// | [`join_in_place`](Self::join_in_place) | payloads are copied behind the first packet of each, in its own buffer |
///
/// ```
/// use superpacket::{BatchAggregator, HashKey, Layer, Policy};
///
/// # let packets: Vec<Vec<u8>> = superpacket_traffic::workload::w1(40);
/// let mut aggregator = BatchAggregator::new(Layer::Ethernet, Policy::gro(), HashKey::new(42));
/// let mut sizes = Vec::new();
/// aggregator.poll(&packets, |packet| sizes.push(packet.length()));
/// assert_eq!(sizes, [66 + 40 * 1448]);
/// ```
#[derive(Debug)]
pub struct BatchAggregator {
    pub(super) receiver: PacketReceiver<BufferIndex>,
    layer: Layer,
    /// Format of the `virtio_net_hdr` before each packet that leaves, if packets get one.
    pub(super) framing: Option<Framing>,
    /// The packets of the call that were not processed yet.
    packets: Vec<RxPacket<BufferIndex>>,
    /// Indices of the packets that are to be written after [`join_in_place`](Self::join_in_place).
    pub(super) written: Vec<usize>,
    /// Memory for the list of a packet's slices, reused by the next call; empty between calls.
    #[cfg(feature = "std")]
    pub(super) slices: Vec<std::io::IoSlice<'static>>,
}

/// Identifies a buffer of one of the packets that a call borrows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferIndex {
    packet: u32,
    buffer: u8,
}

impl BufferIndex {
    /// Returns the packet's index in the slice of packets that was passed to the call.
    #[inline(always)]
    pub const fn packet(self) -> usize {
        self.packet as usize
    }

    /// Returns the buffer's number in the packet, from 0.
    #[inline(always)]
    pub const fn buffer(self) -> usize {
        self.buffer as usize
    }
}

/// A packet that a call can borrow: anything that holds bytes, or an [`RxPacket`] with its device's
/// metadata.
pub trait BorrowPacket {
    /// Returns the packet's metadata. `layer` is the layer at which the packet starts; types that
    /// store their own ignore it.
    fn received(&self, layer: Layer) -> RxPacket<()>;

    /// Returns the number of buffers, from 1 to [`MAX_BUFFERS`]. Buffers beyond that limit are
    /// ignored.
    #[inline(always)]
    fn buffer_count(&self) -> usize {
        1
    }

    /// Returns the bytes of the buffer with this number, from 0.
    fn buffer(&self, index: usize) -> &[u8];
}

impl<B: AsRef<[u8]>> BorrowPacket for B {
    #[inline(always)]
    fn received(&self, layer: Layer) -> RxPacket<()> {
        RxPacket { layer, ..RxPacket::new(()) }
    }

    #[inline(always)]
    fn buffer(&self, _: usize) -> &[u8] {
        self.as_ref()
    }
}

impl<B: AsRef<[u8]>> BorrowPacket for RxPacket<B> {
    #[inline(always)]
    fn received(&self, _: Layer) -> RxPacket<()> {
        self.with_first(())
    }

    #[inline(always)]
    fn buffer_count(&self) -> usize {
        self.buffers().count()
    }

    #[inline(always)]
    fn buffer(&self, index: usize) -> &[u8] {
        match index {
            0 => self.first.as_ref(),
            _ => self.buffers().nth(index).map_or(&[], AsRef::as_ref),
        }
    }
}

/// The slice of packets that a call borrows.
#[derive(Debug)]
pub struct Borrowed<'a, P>(&'a [P]);

impl<P> Clone for Borrowed<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Borrowed<'_, P> {}

impl<P: BorrowPacket> Memory<BufferIndex> for Borrowed<'_, P> {
    #[inline(always)]
    fn bytes<'a>(&'a self, buffer: &'a BufferIndex) -> &'a [u8] {
        self.0.get(buffer.packet()).map_or(&[], |packet| packet.buffer(buffer.buffer()))
    }
}

/// A sink as a trait object. The closure stores the sink's error, and returns `Err(())` if the sink
/// fails.
type AnySink<'s, P> =
    dyn FnMut(SuperPacket<'_, BufferIndex, Borrowed<'_, P>>) -> Result<(), ()> + 's;

/// The environment of one call: the packets that it borrows, and the sink to which packets are
/// delivered. `SUMS`: whether the sink may ask for [payload sums](Poll::SUMS).
struct BorrowedPoll<'p, P, F, const SUMS: bool> {
    packets: Borrowed<'p, P>,
    sink: F,
}

impl<P: BorrowPacket, F, const SUMS: bool> Memory<BufferIndex> for BorrowedPoll<'_, P, F, SUMS> {
    #[inline(always)]
    fn bytes<'a>(&'a self, buffer: &'a BufferIndex) -> &'a [u8] {
        self.packets.bytes(buffer)
    }
}

impl<'p, P, F, O, const SUMS: bool> Poll<BufferIndex> for BorrowedPoll<'p, P, F, SUMS>
where
    P: BorrowPacket,
    F: FnMut(SuperPacket<'_, BufferIndex, Borrowed<'p, P>>) -> O,
    O: Outcome,
{
    const SUMS: bool = SUMS;

    type Error = O::Error;

    #[inline(always)]
    fn deliver(&mut self, packet: SuperPacket<'_, BufferIndex, ()>) -> Result<(), O::Error> {
        (self.sink)(packet.with_memory(self.packets)).into_result()
    }
}

impl BatchAggregator {
    /// Makes an aggregator for packets that start at `layer`. An [`RxPacket`] has its own layer.
    ///
    /// `key` should be random if the traffic may be hostile. The policy's [hold
    /// time](Policy::hold_time) is ignored.
    pub fn new(layer: Layer, policy: Policy, key: HashKey) -> Self {
        BatchAggregator {
            receiver: PacketReceiver::new(policy, key, Simd::detect()),
            layer,
            framing: None,
            packets: Vec::new(),
            written: Vec::new(),
            #[cfg(feature = "std")]
            slices: Vec::new(),
        }
    }

    /// Makes an aggregator for a device that takes a `virtio_net_hdr` before each packet. Merged
    /// packets always leave with partial checksums, which the header asks the device to complete.
    /// With a header of 24 bytes, the device also completes the outer UDP checksum of a tunnel: the
    /// field holds the sum of its pseudo-header.
    pub fn framed(framing: Framing, policy: Policy, key: HashKey) -> Self {
        let mut aggregator =
            BatchAggregator { framing: Some(framing), ..Self::new(framing.layer, policy, key) };
        aggregator.receiver.set_support(framing.support);
        aggregator
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

    /// Changes the policy. The packets that a failed call has left are discarded.
    pub fn set_policy(&mut self, policy: Policy) {
        self.discard();
        self.receiver.set_policy(policy);
    }

    /// Returns the counters since the aggregator was made.
    pub const fn counters(&self) -> &AggregateCounters {
        &self.receiver.counters
    }

    /// Aggregates these packets, in order, and gives the results to `sink`. Returns what the sink
    /// returns: `()` or a `Result<(), E>`.
    ///
    /// If the sink fails, the call stops and returns its error. No packet is lost:
    /// [`resume`](Self::resume) continues where it stopped.
    ///
    /// # Panics
    /// With more than `u32::MAX` packets.
    #[inline]
    pub fn poll<P: BorrowPacket, O: Outcome>(
        &mut self,
        packets: &[P],
        sink: impl FnMut(SuperPacket<'_, BufferIndex, Borrowed<'_, P>>) -> O,
    ) -> O {
        let poll = &mut BorrowedPoll::<_, _, true> { packets: Borrowed(packets), sink };
        O::from_result(self.take_borrowed(packets, false, u32::MAX, poll))
    }

    /// Aggregates as [`poll`](Self::poll) does, for a sink that sends the packets and does not
    /// segment them. With [partial checksums](Policy::with_partial_checksums), the [sums] of
    /// packets whose checksums are verified are not computed, so they cost less.
    ///
    /// [sums]: crate::super_packet::Piece::segment_sum
    ///
    /// # Panics
    /// As `poll`.
    #[inline]
    pub fn poll_without_sums<P: BorrowPacket, O: Outcome>(
        &mut self,
        packets: &[P],
        sink: impl FnMut(SuperPacket<'_, BufferIndex, Borrowed<'_, P>>) -> O,
    ) -> O {
        let poll = &mut BorrowedPoll::<_, _, false> { packets: Borrowed(packets), sink };
        O::from_result(self.take_borrowed(packets, false, u32::MAX, poll))
    }

    /// Aggregates as [`poll_without_sums`](Self::poll_without_sums) does, but never copies payload,
    /// whatever the policy's storage is. A merged packet refers to at most `most` buffers.
    #[cfg(feature = "std")]
    #[inline]
    pub(super) fn poll_pieces<P: BorrowPacket, O: Outcome>(
        &mut self,
        packets: &[P],
        most: u32,
        sink: impl FnMut(SuperPacket<'_, BufferIndex, Borrowed<'_, P>>) -> O,
    ) -> O {
        let poll = &mut BorrowedPoll::<_, _, false> { packets: Borrowed(packets), sink };
        O::from_result(self.take_borrowed(packets, true, most, poll))
    }

    /// Continues a call of [`poll`](Self::poll) that failed because its sink returned an error. The
    /// packet that the sink refused is delivered again first, unless the sink has taken its
    /// buffers. `packets` must be the packets of that call. Does nothing if no packet is left.
    pub fn resume<P: BorrowPacket, O: Outcome>(
        &mut self,
        packets: &[P],
        sink: impl FnMut(SuperPacket<'_, BufferIndex, Borrowed<'_, P>>) -> O,
    ) -> O {
        let (mut sink, mut error) = (sink, None);
        // An untyped sink: code that seldom runs need not be compiled for each sink.
        let sink: &mut AnySink<'_, P> =
            &mut |packet| sink(packet).into_result().map_err(|failed| error = Some(failed));
        let result =
            self.go_on(&mut BorrowedPoll::<_, _, true> { packets: Borrowed(packets), sink });
        debug_assert_eq!(result.is_err(), error.is_some(), "only the sink fails");
        O::from_result(error.map_or(Ok(()), Err))
    }

    /// Receives the packets that a new call borrows.
    #[inline(always)]
    fn take_borrowed<P: BorrowPacket, Q: Poll<BufferIndex>>(
        &mut self,
        packets: &[P],
        keeps_buffers: bool,
        most_pieces: u32,
        poll: &mut Q,
    ) -> Result<(), Q::Error> {
        self.begin(keeps_buffers, most_pieces);
        let received = |index: usize, layer| packets[index].received(layer);
        self.take(packets.len(), received, |index| packets[index].buffer_count(), poll)
    }

    /// Returns the number of packets that a failed call has left: refused by the sink, held, or not
    /// processed. Packets that merged count as one.
    pub fn unfinished(&self) -> usize {
        self.receiver.undelivered() + self.receiver.counters.held as usize + self.packets.len()
    }

    /// Begins a new call, in which a merged packet refers to at most `most_pieces` buffers.
    /// Discards the packets that a failed call has left.
    #[inline(always)]
    pub(super) fn begin(&mut self, keeps_buffers: bool, most_pieces: u32) {
        if self.unfinished() != 0 {
            self.discard();
        }
        self.receiver.begin_call(keeps_buffers, most_pieces);
    }

    /// Receives the packets of a new call. `received` returns the metadata of a packet, and
    /// `buffers` its number of buffers.
    #[inline(always)]
    pub(super) fn take<Q: Poll<BufferIndex>>(
        &mut self,
        count: usize,
        received: impl Fn(usize, Layer) -> RxPacket<()>,
        buffers: impl Fn(usize) -> usize,
        poll: &mut Q,
    ) -> Result<(), Q::Error> {
        assert!(u32::try_from(count).is_ok(), "a call takes at most u32::MAX packets");
        if let (1, Mode::Gro { .. }) = (count, self.receiver.policy.mode) {
            // A single packet cannot merge while no other is held, so it is not parsed.
            let packet = number(&mut self.receiver, received(0, self.layer), buffers(0), 0);
            return self.receiver.pass_alone(packet, poll);
        }
        let BatchAggregator { receiver, packets, layer, .. } = self;
        for index in 0..count {
            packets.push(number(receiver, received(index, *layer), buffers(index), index as u32));
        }
        self.go_on(poll)
    }

    #[inline(always)]
    fn go_on<Q: Poll<BufferIndex>>(&mut self, poll: &mut Q) -> Result<(), Q::Error> {
        self.receiver.receive_batch(&mut self.packets, 0, poll)?;
        self.receiver.flush(Reason::PollEnd, poll)
    }

    /// Discards the packets that a failed call has left.
    #[cold]
    pub(super) fn discard(&mut self) {
        self.packets.clear();
        self.receiver.discard();
    }
}

/// Converts packet number `index` of a call for the receiver: keeps its metadata, and puts a
/// [`BufferIndex`] in place of each of its `buffers` buffers.
#[inline(always)]
fn number(
    receiver: &mut PacketReceiver<BufferIndex>,
    packet: RxPacket<()>,
    buffers: usize,
    index: u32,
) -> RxPacket<BufferIndex> {
    let buffer = |buffer: usize| BufferIndex { packet: index, buffer: buffer as u8 };
    let mut numbered = packet.with_first(buffer(0));
    if receiver.policy.trusts_input() && numbered.checksum == RxChecksum::None {
        numbered.checksum = VERIFIED_BEFORE;
    }
    if buffers > 1 {
        let mut chain = receiver.out.chains.pop().unwrap_or_default();
        chain.buffers_mut().extend((1..buffers.min(MAX_BUFFERS)).map(buffer));
        numbered.rest = Some(chain);
    }
    numbered
}
