//! Super-packets without a `virtio_net_hdr`, for devices of other systems than Linux.

use std::hash::{BuildHasher, Hasher, RandomState};

use superpacket::aggregate::{Borrowed, BufferIndex};
use superpacket::segment::{Portion, SegmentBuffers, SegmentPlan};
use superpacket::super_packet::{Outcome, Piece};
use superpacket::{
    AggregateCounters, BatchAggregator, Gso, GsoKind, GsoPacket, HashKey, Layer, Policy,
    SegmentError, SegmentOptions, SegmentSize, Segmenter, SuperPacket, wire,
};

/// Merges packets for a device that takes long IP packets without a `virtio_net_hdr`: WinTUN, utun.
///
/// Only TCP merges: without a header, the device cannot know that a long datagram stands for
/// several. Merged packets have complete checksums. The system that receives them must be the end
/// point of the connection; a router would have to fragment them.
///
/// If the device refuses a long packet, [`resume_apart`](Self::resume_apart) returns the packets
/// that were merged into it, unchanged.
///
/// ```
/// use superpacket_tun::Joiner;
///
/// # let packets: Vec<Vec<u8>> = vec![superpacket_traffic::frame::Frame::tcp4(1, 1000).at_ip().to_bytes()];
/// # let mut ring = vec![0; 65_535];
/// let mut joiner = Joiner::new(65_535);
/// joiner.join(&packets, |joined| {
///     // `WintunAllocateSendPacket(session, joined.length())` would return the memory to copy to.
///     joined.copy_to(&mut ring);
/// });
/// ```
#[derive(Debug)]
pub struct Joiner {
    aggregator: BatchAggregator,
    /// Number of packets already passed to the sink, among those that were merged into a
    /// super-packet which is now passed as single packets.
    done: usize,
    /// Whether the super-packet that the sink refused is passed as the single packets that were
    /// merged into it.
    is_apart: bool,
}

impl Joiner {
    /// Creates a `Joiner` whose merged packets have at most `max_bytes` bytes (no more than
    /// 65,535): the length of the longest packet that the device takes. Checksums are verified
    /// before packets merge.
    pub fn new(max_bytes: u32) -> Self {
        Self::with_policy(Policy::gro().with_max_bytes(max_bytes.min(65_535)))
    }

    /// Creates a `Joiner` that merges TCP packets by this policy. UDP and DCCP packets are never
    /// merged.
    pub fn with_policy(policy: Policy) -> Self {
        Joiner {
            aggregator: BatchAggregator::new(Layer::Ip, policy, HashKey::random()),
            done: 0,
            is_apart: false,
        }
    }

    /// Merges these packets and passes the results to `sink`, in the order of each flow. Returns
    /// what the sink returns: nothing, or a `Result<(), E>`.
    ///
    /// If the sink fails, [`resume`](Self::resume) passes the same packet again, for a device that
    /// was full. [`resume_apart`](Self::resume_apart) is for a device that does not accept it.
    pub fn join<B: AsRef<[u8]>, O: Outcome>(
        &mut self,
        packets: &[B],
        mut sink: impl FnMut(Joined<'_, '_>) -> O,
    ) -> O {
        (self.done, self.is_apart) = (0, false);
        let Self { aggregator, done, is_apart } = self;
        O::from_result(
            aggregator
                .poll(packets, |packet| pass_to_sink(&packet, packets, done, is_apart, &mut sink)),
        )
    }

    /// Continues a call of [`join`](Self::join) that failed. `packets` must be those of that call.
    pub fn resume<B: AsRef<[u8]>, O: Outcome>(
        &mut self,
        packets: &[B],
        mut sink: impl FnMut(Joined<'_, '_>) -> O,
    ) -> O {
        let Self { aggregator, done, is_apart } = self;
        O::from_result(
            aggregator.resume(packets, |packet| {
                pass_to_sink(&packet, packets, done, is_apart, &mut sink)
            }),
        )
    }

    /// Like [`resume`](Self::resume), but the packet that the sink refused is passed as the packets
    /// that were merged into it, unchanged and in order. The packets behind it are passed merged.
    ///
    /// ```
    /// use superpacket_tun::{Joined, Joiner};
    ///
    /// /// Writes to a device that accepts no packet of more than 1500 bytes.
    /// fn write(joined: Joined<'_, '_>) -> Result<(), &'static str> {
    ///     if joined.length() > 1500 { Err("EINVAL") } else { Ok(()) }
    /// }
    ///
    /// # let frame = superpacket_traffic::frame::Frame::tcp4(1, 1000).at_ip();
    /// # let packets: Vec<Vec<u8>> = frame.run(9).iter().map(|frame| frame.to_bytes()).collect();
    /// let mut joiner = Joiner::new(65_535);
    /// let mut result = joiner.join(&packets, write);
    /// while result.is_err() {
    ///     result = joiner.resume_apart(&packets, write);
    /// }
    /// ```
    pub fn resume_apart<B: AsRef<[u8]>, O: Outcome>(
        &mut self,
        packets: &[B],
        sink: impl FnMut(Joined<'_, '_>) -> O,
    ) -> O {
        self.is_apart = true;
        self.resume(packets, sink)
    }

    /// Returns the aggregation counters: the numbers of packets received and merged, and the
    /// reasons for which packets left the aggregator.
    pub const fn aggregation(&self) -> &AggregateCounters {
        self.aggregator.counters()
    }
}

/// Passes a packet to the sink: whole, or as the packets that were merged into it.
fn pass_to_sink<B: AsRef<[u8]>, O: Outcome>(
    packet: &SuperPacket<'_, BufferIndex, Borrowed<'_, B>>,
    packets: &[B],
    done: &mut usize,
    is_apart: &mut bool,
    sink: &mut impl FnMut(Joined<'_, '_>) -> O,
) -> Result<(), O::Error> {
    // TCP inside a UDP tunnel must not merge either: its receiver expects single datagrams.
    let is_carried = packet.metadata.layout.is_some_and(|layout| layout.outer.is_some());
    let is_stream = !is_carried
        && packet.metadata.gso.is_none_or(|gso| matches!(gso.kind, GsoKind::Tcp4 | GsoKind::Tcp6));
    if (is_stream && !*is_apart) || !packet.is_merged() {
        let mut slices = packet.slices();
        let result = sink(Joined {
            length: packet.length(),
            packets: packet.metadata.packets,
            slices: &mut slices,
        })
        .into_result();
        *is_apart &= result.is_err();
        return result;
    }
    // There is one piece per packet, since each packet is in one buffer.
    for index in
        packet.pieces().iter().filter_map(Piece::buffer).map(|buffer| buffer.packet()).skip(*done)
    {
        let bytes = packets.get(index).map_or(&[][..], AsRef::as_ref);
        sink(Joined { length: bytes.len(), packets: 1, slices: &mut std::iter::once(bytes) })
            .into_result()?;
        *done += 1;
    }
    (*done, *is_apart) = (0, false);
    Ok(())
}

/// A packet for the device, merged or single. Its bytes remain in the buffers of the received
/// packets.
pub struct Joined<'a, 'p> {
    length: usize,
    packets: u32,
    slices: &'a mut dyn Iterator<Item = &'p [u8]>,
}

impl<'p> Joined<'_, 'p> {
    /// Returns the packet's length in bytes.
    pub const fn length(&self) -> usize {
        self.length
    }

    /// Returns the number of received packets of which this packet consists.
    pub const fn packets(&self) -> u32 {
        self.packets
    }

    /// Copies the packet to the start of `out`, such as a slot of the device's ring. Returns the
    /// number of bytes.
    ///
    /// # Panics
    /// If `out` is shorter than [`length`](Self::length).
    pub fn copy_to(self, out: &mut [u8]) -> usize {
        assert!(
            out.len() >= self.length,
            "a packet of {} bytes is copied to {}",
            self.length,
            out.len()
        );
        self.slices.fold(0, |start, slice| {
            let end = start + slice.len();
            out[start..end].copy_from_slice(slice);
            end
        })
    }

    /// Returns the packet's bytes, in order, for a vectored write.
    pub fn slices(&mut self) -> impl Iterator<Item = &'p [u8]> + '_ {
        &mut *self.slices
    }
}

impl std::fmt::Debug for Joined<'_, '_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Joined")
            .field("length", &self.length)
            .field("packets", &self.packets)
            .finish_non_exhaustive()
    }
}

/// Cuts packets of a device without a `virtio_net_hdr` into packets for a tunnel. The device's MTU
/// may be raised up to 65,535 bytes, so that the system passes few long packets.
///
/// TCP is cut into segments, all other packets into IP fragments, with complete checksums.
#[derive(Debug)]
pub struct Splitter {
    segmenter: Segmenter,
    mtu: usize,
    /// The identification of the last IPv6 packet that was fragmented.
    ipv6_id: u32,
}

impl Splitter {
    /// Returns a splitter for a tunnel that carries IP packets of at most `mtu` bytes.
    pub fn new(mtu: usize) -> Self {
        // RFC 7739: identifications should not be predictable.
        let ipv6_id = RandomState::new().build_hasher().finish() as u32;
        Splitter { segmenter: Segmenter::new(), mtu, ipv6_id }
    }

    /// Cuts a packet and writes the results to `buffers`. A packet that fits the MTU is written
    /// unchanged.
    ///
    /// The packet must come from this host itself: it alone may fragment IPv6.
    ///
    /// # Errors
    /// [`SegmentError`]; nothing is written then.
    /// [`DontFragment`](SegmentError::DontFragment) is to be answered by an ICMP message with the
    /// tunnel's MTU.
    pub fn split(
        &mut self,
        packet: &[u8],
        buffers: &mut (impl SegmentBuffers + ?Sized),
    ) -> Result<SegmentPlan, SegmentError> {
        let (packet, is_long) = self.with_segmentation(&packet);
        if is_long {
            self.ipv6_id = self.ipv6_id.wrapping_add(1);
            return self.segmenter.fragment_linear(&packet, self.mtu, Some(self.ipv6_id), buffers);
        }
        self.segmenter.segment_linear(&packet, &SegmentOptions::default(), buffers)
    }

    /// Like [`split`](Self::split), but writes only as many packets as fit the buffers, starting
    /// with number `first`: 0 in the first call for a packet, then the number of packets written so
    /// far. So a fixed pool of buffers may be smaller than a long packet's results.
    ///
    /// ```
    /// use superpacket_tun::{EachBuffer, Splitter};
    ///
    /// # let packet = superpacket_traffic::frame::Frame::tcp4(1, 60_000).at_ip().to_bytes();
    /// # fn seal(_: &[u8]) {}
    /// let (mut splitter, mut pool, mut sizes) = (Splitter::new(1420), vec![[0; 1500]; 16], [0; 16]);
    /// let mut done = 0;
    /// loop {
    ///     let portion = splitter.split_portion(&packet, done, &mut EachBuffer::new(&mut pool, 0, &mut sizes))?;
    ///     let written = portion.plan.segments as usize;
    ///     pool.iter().zip(sizes).take(written).for_each(|(buffer, size)| seal(&buffer[..size]));
    ///     done += portion.plan.segments;
    ///     if portion.left == 0 {
    ///         break;
    ///     }
    /// }
    /// # assert_eq!(done, 44);
    /// # Ok::<(), superpacket::SegmentError>(())
    /// ```
    ///
    /// # Errors
    /// As [`split`](Self::split); the buffers must have room for at least one packet.
    pub fn split_portion(
        &mut self,
        packet: &[u8],
        first: u32,
        buffers: &mut (impl SegmentBuffers + ?Sized),
    ) -> Result<Portion, SegmentError> {
        let (packet, is_long) = self.with_segmentation(&packet);
        if is_long {
            // All fragments of a packet have the same identification.
            self.ipv6_id = self.ipv6_id.wrapping_add(u32::from(first == 0));
            return self.segmenter.fragment_portion(
                &packet,
                self.mtu,
                Some(self.ipv6_id),
                first,
                buffers,
            );
        }
        self.segmenter.segment_portion(&packet, &SegmentOptions::default(), first, buffers)
    }

    /// Returns the packet as the segmenter takes it, and whether it must be cut into IP fragments.
    fn with_segmentation<'a, 'p>(&self, packet: &'a &'p [u8]) -> (GsoPacket<'a, &'p [u8]>, bool) {
        let is_long = packet.len() > self.mtu;
        let gso = if is_long { self.tcp_segmentation(packet) } else { None };
        (GsoPacket::linear(packet, gso).with_layer(Layer::Ip), is_long && gso.is_none())
    }

    /// Returns how a TCP packet is cut into segments; `None` for packets of all other protocols.
    fn tcp_segmentation(&self, packet: &[u8]) -> Option<Gso> {
        let header = packet.get(..wire::MAX_HEADER).unwrap_or(packet);
        let layout = wire::parse(header, packet.len(), Layer::Ip).ok()?;
        let kind = match (layout.protocol, layout.version, layout.outer) {
            (wire::Protocol::Tcp, wire::IpVersion::V4, None) => GsoKind::Tcp4,
            (wire::Protocol::Tcp, wire::IpVersion::V6, None) => GsoKind::Tcp6,
            _ => return None,
        };
        Some(Gso::new(kind, SegmentSize::for_mtu(&layout, kind, self.mtu)?))
    }
}
