//! The aggregator of packets that are borrowed for one call.

use alloc::vec::Vec;

use super::poll::Poll;
use super::receive::{Receiver, VERIFIED_BEFORE};
use super::{Counters, HashKey, Mode, Policy, Reason};
use crate::memory::Memory;
use crate::packet::{Layer, MAX_BUFFERS, RxChecksum, RxPacket};
use crate::super_packet::{Outcome, SuperPacket};
use crate::virtio::Framing;
use superpacket_simd::Simd;

/// Aggregates the packets of one call, which are borrowed for it, and holds nothing when the call
/// returns.
///
/// The aggregator is a value of its own (`Send + 'static`) and keeps its memory: in steady state
/// nothing is allocated.
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
    pub(super) receiver: Receiver<BufferIndex>,
    layer: Layer,
    /// The headers that packets leave behind, if any.
    pub(super) framing: Option<Framing>,
    /// The packets of the call that have not been looked at.
    packets: Vec<RxPacket<BufferIndex>>,
    /// Indices of the packets that leave a call in place.
    pub(super) written: Vec<usize>,
    /// Memory for the slices of a packet, empty between calls.
    #[cfg(feature = "std")]
    pub(super) slices: Vec<std::io::IoSlice<'static>>,
}

/// Which buffer of which packet, in the slice of packets that a call borrows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferIndex {
    packet: u32,
    buffer: u8,
}

impl BufferIndex {
    /// The packet's index in the slice.
    #[inline(always)]
    pub const fn packet(self) -> usize {
        self.packet as usize
    }

    /// The buffer's number in the packet, from 0.
    #[inline(always)]
    pub const fn buffer(self) -> usize {
        self.buffer as usize
    }
}

/// A packet that a call can borrow: anything that holds bytes, or an [`RxPacket`] with what its
/// device knows.
pub trait BorrowPacket {
    /// Returns what is known of the packet besides its bytes. `layer` is where packets start that
    /// do not say it themselves.
    fn received(&self, layer: Layer) -> RxPacket<()>;

    /// Returns how many buffers the packet has: 1 to [`MAX_BUFFERS`], of which the rest is not
    /// looked at.
    #[inline(always)]
    fn buffer_count(&self) -> usize {
        1
    }

    /// Returns the bytes of a buffer, by its number from 0.
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

/// The packets that a call borrows.
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

/// A sink of any type, which keeps the error to itself if it fails.
type AnySink<'s, P> =
    dyn FnMut(SuperPacket<'_, BufferIndex, Borrowed<'_, P>>) -> Result<(), ()> + 's;

/// One call with borrowed packets. `SUMS`: the sink may want to know [sums](Poll::SUMS).
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
    /// Makes an aggregator of packets that start at `layer`, unless they are [`RxPacket`]s, which
    /// say it themselves.
    ///
    /// `key` should be random where others choose the traffic. A policy's [hold
    /// time](Policy::hold_time) means nothing here.
    pub fn new(layer: Layer, policy: Policy, key: HashKey) -> Self {
        BatchAggregator {
            receiver: Receiver::new(policy, key, Simd::detect()),
            layer,
            framing: None,
            packets: Vec::new(),
            written: Vec::new(),
            #[cfg(feature = "std")]
            slices: Vec::new(),
        }
    }

    /// Makes an aggregator for a device that takes a `virtio_net_hdr` before each packet: what
    /// merges leaves with partial checksums, which the header asks the device to complete, whatever
    /// the policy says. With a header of 24 bytes, the outer UDP checksum of a tunnel is left to
    /// the device too: it holds the sum of its pseudo-header.
    pub fn framed(framing: Framing, policy: Policy, key: HashKey) -> Self {
        let mut aggregator =
            BatchAggregator { framing: Some(framing), ..Self::new(framing.layer, policy, key) };
        aggregator.receiver.set_support(framing.support);
        aggregator
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

    /// Goes on by another policy. What a failed call has left is given up.
    pub fn set_policy(&mut self, policy: Policy) {
        self.give_up();
        self.receiver.set_policy(policy);
    }

    /// What happened so far.
    pub const fn counters(&self) -> &Counters {
        &self.receiver.counters
    }

    /// Aggregates these packets, in order, and gives all that leaves to `sink`. Returns what the
    /// sink returns: nothing, or a `Result<(), E>`.
    ///
    /// If the sink fails, the call stops and returns its error. No packet is lost:
    /// [`resume`](Self::resume) goes on where it stopped.
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

    /// As [`poll`](Self::poll), for a sink that sends what it gets, and does not cut it: with
    /// [partial checksums](Policy::with_partial_checksums) the [sums] of packets whose checksums
    /// are verified are not kept, and such packets cost less.
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

    /// As [`poll_without_sums`](Self::poll_without_sums), with buffers kept whatever the policy
    /// says, and so many pieces at most.
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

    /// Goes on with a call of [`poll`](Self::poll) that failed, with the packet that its sink
    /// refused first, unless the sink had taken the pieces out of it. `packets` must be those of
    /// that call. Where nothing is left nothing happens.
    pub fn resume<P: BorrowPacket, O: Outcome>(
        &mut self,
        packets: &[P],
        sink: impl FnMut(SuperPacket<'_, BufferIndex, Borrowed<'_, P>>) -> O,
    ) -> O {
        let (mut sink, mut error) = (sink, None);
        // Of one type for all sinks: what seldom runs need not be compiled for each.
        let sink: &mut AnySink<'_, P> =
            &mut |packet| sink(packet).into_result().map_err(|failed| error = Some(failed));
        let result =
            self.go_on(&mut BorrowedPoll::<_, _, true> { packets: Borrowed(packets), sink });
        debug_assert_eq!(result.is_err(), error.is_some(), "only the sink fails");
        O::from_result(error.map_or(Ok(()), Err))
    }

    /// Takes the packets of a new call that borrows them.
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

    /// How many packets a failed call has left: refused by its sink, held, or not looked at.
    /// Packets that merged count as one.
    pub fn unfinished(&self) -> usize {
        self.receiver.undelivered() + self.receiver.counters.held as usize + self.packets.len()
    }

    /// Begins a new call, in which so many pieces merge at most.
    #[inline(always)]
    pub(super) fn begin(&mut self, keeps_buffers: bool, most_pieces: u32) {
        if self.unfinished() != 0 {
            self.give_up();
        }
        self.receiver.begin_call(keeps_buffers, most_pieces);
    }

    /// Takes the packets of a new call, of which `received` and `buffers` say what is known and how
    /// many buffers they have.
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
            // With nothing held there is nothing to find out of a packet that comes alone.
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

    /// Forgets what a failed call has left.
    #[cold]
    pub(super) fn give_up(&mut self) {
        self.packets.clear();
        self.receiver.give_up();
    }
}

/// The packet as the receiver sees it: numbers in place of buffers.
#[inline(always)]
fn number(
    receiver: &mut Receiver<BufferIndex>,
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
