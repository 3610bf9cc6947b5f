//! Frames to be sent by a port. Each is a list of slices, which are ranges of bytes in an
//! [`Outgoing`].

use superpacket::checksum::{pseudo_header, update};
use superpacket::packet::{Layer, RxChecksum, VlanTag};
use superpacket::segment::{Gso, GsoKind, IpId, Segment, SegmentBuffers, WrittenSegment};
use superpacket::super_packet::SuperPacket;
use superpacket::wire::{IpVersion, Layout, MAX_HEADER, checksum_addresses, ipv4};

use super::Buffer;
use super::outgoing::{Outgoing, Slice};

/// Length in bytes of the destination and source addresses at the start of an Ethernet frame. A
/// VLAN tag is inserted after them.
const ADDRESSES: usize = 12;

/// Length of a VLAN tag in bytes.
const TAG: usize = 4;

/// A frame to be sent.
#[derive(Clone, Copy, Debug)]
pub struct TxFrame {
    first: u32,
    slices: u32,
    /// Length of the frame in bytes.
    pub length: u32,
    /// Number of frames on the wire: 1, or more for a super-packet.
    pub segments: u32,
    /// Which checksum the port must fill in, if any.
    pub checksum: RxChecksum,
    /// How the port must segment the frame; `None` if the port must not segment it.
    pub gso: Option<Gso>,
    /// The protocol layer of the frame's first header.
    pub layer: Layer,
}

impl TxFrame {
    /// Returns whether the frame needs neither segmentation nor a checksum from the port.
    #[inline]
    pub const fn is_plain(&self) -> bool {
        self.gso.is_none() && !matches!(self.checksum, RxChecksum::Partial { .. })
    }
}

/// Frames to be sent by one port, in order.
#[derive(Debug, Default)]
pub struct TxBatch {
    frames: Vec<TxFrame>,
    slices: Vec<Slice>,
}

impl TxBatch {
    /// Creates an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the frames.
    #[inline]
    pub fn frames(&self) -> &[TxFrame] {
        &self.frames
    }

    /// Returns the slices of a frame of this batch, in order. No slice is empty.
    #[inline]
    pub fn slices(&self, frame: &TxFrame) -> &[Slice] {
        &self.slices[frame.first as usize..][..frame.slices as usize]
    }

    /// Removes all frames.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.slices.clear();
    }

    /// Returns the first [`MAX_HEADER`] bytes of a frame, or all if it is shorter. If they lie in
    /// several slices, they are copied into `scratch`.
    pub fn head<'a>(
        &self,
        outgoing: &'a Outgoing,
        frame: &TxFrame,
        scratch: &'a mut [u8; MAX_HEADER],
    ) -> &'a [u8] {
        let slices = self.slices(frame);
        let wanted = (frame.length as usize).min(MAX_HEADER);
        if let Some(first) = slices.first().filter(|first| first.length() >= wanted) {
            return outgoing.slice(*first);
        }
        let mut filled = 0;
        for slice in slices {
            let bytes = outgoing.slice(*slice);
            let take = bytes.len().min(wanted - filled);
            scratch[filled..filled + take].copy_from_slice(&bytes[..take]);
            filled += take;
        }
        &scratch[..filled]
    }

    /// Appends a frame's bytes to `out`.
    pub fn copy_to(&self, outgoing: &Outgoing, frame: &TxFrame, out: &mut Vec<u8>) {
        self.slices(frame).iter().for_each(|slice| out.extend_from_slice(outgoing.slice(*slice)));
    }

    /// Appends the whole [staged](Outgoing::stage) packet as one frame. If the packet's metadata
    /// has a VLAN tag that a device removed, the tag is inserted again. A frame of more than
    /// `max_slices` slices is copied into one slice.
    pub fn push_packet(
        &mut self,
        outgoing: &mut Outgoing,
        packet: &SuperPacket<'_, Buffer>,
        max_slices: usize,
    ) {
        let metadata = &packet.metadata;
        let from = FrameProperties {
            vlan: metadata.vlan,
            layer: metadata.layer,
            checksum: metadata.checksum,
            gso: metadata.gso,
        };
        let segments = if metadata.gso.is_some() { segments(packet) } else { 1 };
        let first = self.slices.len();
        if !packet.header().is_empty() {
            self.slices.push(outgoing.own(packet.header()));
        }
        self.slices.extend(outgoing.pieces.iter().filter(|piece| piece.length != 0));
        self.finish(outgoing, first, packet.slices(), max_slices, segments, from);
    }

    /// Appends the whole staged packet as a super-packet, which the port segments as described by
    /// `gso`. All its headers must be in [`SuperPacket::header`], and `layout` describes them: TCP
    /// or UDP, without a tunnel.
    ///
    /// The checksum field is set to the pseudo-header's sum, whatever it contained. It stays
    /// unchanged if the checksum is partial and its addresses cannot be derived from the headers.
    /// The VLAN tag and the slices are treated as in [`push_packet`](Self::push_packet).
    pub fn push_super_packet(
        &mut self,
        outgoing: &mut Outgoing,
        packet: &SuperPacket<'_, Buffer>,
        gso: Gso,
        layout: &Layout,
        max_slices: usize,
    ) {
        let metadata = &packet.metadata;
        let mut copy = [0; MAX_HEADER];
        let header = &mut copy[..packet.header().len().min(MAX_HEADER)];
        header.copy_from_slice(&packet.header()[..header.len()]);
        let (network, transport) = (usize::from(layout.network), usize::from(layout.transport));
        let length = packet.length().saturating_sub(transport) as u32;
        let network = header.get(network..).unwrap_or(&[]);
        let sum = pseudo_header(network, layout.version, layout.protocol.number(), length);
        let partial = matches!(metadata.checksum, RxChecksum::Partial { start, .. } if start == layout.transport);
        let seeded = partial && checksum_addresses(network, layout.version).is_none();
        let place = usize::from(layout.checksum());
        if !seeded && let Some(field) = header.get_mut(place..place + 2) {
            field.copy_from_slice(&sum.fold().to_be_bytes());
        }
        let checksum = RxChecksum::Partial {
            start: layout.transport,
            offset: layout.protocol.checksum_offset(),
        };
        let first = self.slices.len();
        self.slices.push(outgoing.own(header));
        self.slices.extend(outgoing.pieces.iter().filter(|piece| piece.length != 0));
        let payload = packet.length() - usize::from(layout.payload).min(packet.length());
        let segments = payload.div_ceil(gso.size.get()).max(1) as u32;
        let parts = std::iter::once(&*header).chain(packet.payload());
        let from = FrameProperties {
            vlan: metadata.vlan,
            layer: metadata.layer,
            checksum,
            gso: Some(gso),
        };
        self.finish(outgoing, first, parts, max_slices, segments, from);
    }

    /// Appends one segment of the staged packet as a frame, with the `vlan` tag inserted. A frame
    /// of more than `max_slices` slices is copied into one slice.
    pub fn push_segment(
        &mut self,
        outgoing: &mut Outgoing,
        segment: &Segment<'_, SuperPacket<'_, Buffer>>,
        vlan: Option<VlanTag>,
        layer: Layer,
        max_slices: usize,
    ) {
        let from = FrameProperties { vlan, layer, checksum: segment.checksum, gso: None };
        let first = self.slices.len();
        if !segment.header().is_empty() {
            self.slices.push(outgoing.own(segment.header()));
        }
        self.slices.extend(segment.ranges().map(|range| {
            outgoing.pieces[range.range].part(range.offset..range.offset + range.length)
        }));
        let parts = std::iter::once(segment.header()).chain(segment.payload());
        self.finish(outgoing, first, parts, max_slices, 1, from);
    }

    /// Appends a part of the staged super-packet that is a smaller super-packet, which the port
    /// segments as described by `part`. Otherwise like [`push_segment`](Self::push_segment).
    pub fn push_part(
        &mut self,
        outgoing: &mut Outgoing,
        segment: &Segment<'_, SuperPacket<'_, Buffer>>,
        part: &SuperPacketPart<'_>,
        vlan: Option<VlanTag>,
        layer: Layer,
        max_slices: usize,
    ) {
        let mut copy = [0; MAX_HEADER];
        let header = &mut copy[..segment.header().len().min(MAX_HEADER)];
        header.copy_from_slice(&segment.header()[..header.len()]);
        part.skip_identifications(header);
        let payload = segment.length().saturating_sub(usize::from(part.layout.payload));
        let segments = payload.div_ceil(part.gso.size.get()).max(1) as u32;
        let from = FrameProperties {
            vlan,
            layer,
            checksum: segment.checksum,
            gso: (segments > 1).then_some(part.gso),
        };
        let first = self.slices.len();
        self.slices.push(outgoing.own(header));
        self.slices.extend(segment.ranges().map(|range| {
            outgoing.pieces[range.range].part(range.offset..range.offset + range.length)
        }));
        let parts = std::iter::once(&*header).chain(segment.payload());
        self.finish(outgoing, first, parts, max_slices, segments, from);
    }

    /// Appends a copy of a frame, which the port completes as described by `checksum` and `gso`.
    pub fn push_bytes(
        &mut self,
        outgoing: &mut Outgoing,
        frame: &[u8],
        checksum: RxChecksum,
        gso: Option<Gso>,
        layer: Layer,
    ) {
        let first = self.slices.len();
        self.slices.push(outgoing.own(frame));
        let segments = gso.map_or(1, |gso| (frame.len() / gso.size.get()).max(1) as u32);
        self.finish(
            outgoing,
            first,
            std::iter::once(frame),
            usize::MAX,
            segments,
            FrameProperties { vlan: None, layer, checksum, gso },
        );
    }

    /// Returns a writer that appends [segments written by a
    /// segmenter](superpacket::segment::Segmenter::segment_linear) to the batch, as frames that
    /// begin with a header of `layer`.
    pub fn writer<'a>(&'a mut self, outgoing: &'a mut Outgoing, layer: Layer) -> FrameWriter<'a> {
        FrameWriter { batch: self, outgoing, layer, start: 0 }
    }

    /// Removes all frames except the first `frames`.
    pub fn truncate(&mut self, frames: usize) {
        self.frames.truncate(frames);
        self.slices
            .truncate(self.frames.last().map_or(0, |last| (last.first + last.slices) as usize));
    }

    /// Appends a frame that consists of the slices from index `first` on, with the VLAN tag of
    /// `from` inserted. If these are more than `max_slices`, copies the frame's bytes, which
    /// `parts` yields, into one slice.
    fn finish<'p>(
        &mut self,
        outgoing: &mut Outgoing,
        first: usize,
        parts: impl Iterator<Item = &'p [u8]>,
        max_slices: usize,
        segments: u32,
        from: FrameProperties,
    ) {
        let mut checksum = from.checksum;
        let tag = from.vlan.filter(|_| from.layer == Layer::Ethernet);
        if self.slices.len() - first + usize::from(tag.is_some()) > max_slices {
            self.slices.truncate(first);
            let start = outgoing.bytes.len();
            parts.for_each(|part| outgoing.bytes.extend_from_slice(part));
            if let Some(tag) = tag {
                let behind = (start + ADDRESSES).min(outgoing.bytes.len());
                outgoing.bytes.splice(behind..behind, tag_bytes(tag));
            }
            self.slices.push(Slice {
                place: Slice::OWN,
                start: start as u32,
                length: (outgoing.bytes.len() - start) as u32,
            });
        } else if let Some(tag) = tag {
            self.insert(outgoing, first, tag, parts);
        }
        if let (Some(_), RxChecksum::Partial { start, offset }) = (tag, checksum) {
            // A start that saturates is refused by the port, or detected in software.
            checksum = RxChecksum::Partial { start: start.saturating_add(TAG as u16), offset };
        }
        let slices = &self.slices[first..];
        let length = slices.iter().map(|slice| slice.length).sum();
        self.frames.push(TxFrame {
            first: first as u32,
            slices: slices.len() as u32,
            length,
            segments,
            checksum,
            gso: from.gso,
            layer: from.layer,
        });
    }

    /// Inserts a VLAN tag after the hardware addresses of the frame whose slices begin at index
    /// `first` and whose bytes `parts` yields. Copies addresses and tag into a new first slice, and
    /// removes the addresses from the slices after it.
    fn insert<'p>(
        &mut self,
        outgoing: &mut Outgoing,
        first: usize,
        tag: VlanTag,
        parts: impl Iterator<Item = &'p [u8]>,
    ) {
        let addresses = outgoing.bytes.len();
        for part in parts {
            let rest = ADDRESSES - (outgoing.bytes.len() - addresses);
            outgoing.bytes.extend_from_slice(&part[..part.len().min(rest)]);
            if rest <= part.len() {
                break;
            }
        }
        let mut skip = outgoing.bytes.len() - addresses;
        outgoing.bytes.extend_from_slice(&tag_bytes(tag));
        let head =
            Slice { place: Slice::OWN, start: addresses as u32, length: (skip + TAG) as u32 };
        let mut index = first;
        while skip != 0 && index < self.slices.len() {
            let slice = self.slices[index];
            let take = skip.min(slice.length());
            skip -= take;
            if take == slice.length() {
                self.slices.remove(index);
            } else {
                self.slices[index] = slice.part(take..slice.length());
                index += 1;
            }
        }
        self.slices.insert(first, head);
    }
}

/// A part of a super-packet that is sent as a smaller super-packet.
#[derive(Clone, Copy, Debug)]
pub struct SuperPacketPart<'a> {
    /// How the port must segment this smaller super-packet.
    pub gso: Gso,
    /// The layout of the headers of this smaller super-packet: TCP, without a tunnel.
    pub layout: &'a Layout,
    /// Amount to add to the IPv4 identification of the part's first segment: the number of segments
    /// in earlier parts, minus the number of these parts.
    pub skipped: u16,
}

impl SuperPacketPart<'_> {
    /// Adds `skipped` to the IPv4 identification in `header`, if the identification increments from
    /// segment to segment.
    fn skip_identifications(&self, header: &mut [u8]) {
        if self.layout.version != IpVersion::V4 || self.gso.id != IpId::Increment {
            return;
        }
        let network = usize::from(self.layout.network);
        let (Some(old), Some(sum)) =
            (word(header, network + ipv4::ID), word(header, network + ipv4::CHECKSUM))
        else {
            return;
        };
        let new = old.wrapping_add(self.skipped);
        header[network + ipv4::ID..][..2].copy_from_slice(&new.to_be_bytes());
        header[network + ipv4::CHECKSUM..][..2]
            .copy_from_slice(&update(sum, old, new).to_be_bytes());
    }
}

fn word(bytes: &[u8], place: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(place..)?.first_chunk()?))
}

/// A sink that writes segments into an [`Outgoing`], each as one frame of a [`TxBatch`].
#[derive(Debug)]
pub struct FrameWriter<'a> {
    batch: &'a mut TxBatch,
    outgoing: &'a mut Outgoing,
    layer: Layer,
    /// Offset at which the segment that is being written begins, in the bytes of the `Outgoing`.
    start: usize,
}

impl SegmentBuffers for FrameWriter<'_> {
    fn buffer(&mut self, length: usize) -> Option<&mut [u8]> {
        self.start = self.outgoing.bytes.len();
        self.outgoing.bytes.resize(self.start + length, 0);
        self.outgoing.bytes.get_mut(self.start..)
    }

    fn written(&mut self, segment: WrittenSegment) {
        let length = segment.length as u32;
        let first = self.batch.slices.len() as u32;
        self.batch.slices.push(Slice { place: Slice::OWN, start: self.start as u32, length });
        let WrittenSegment { checksum, .. } = segment;
        self.batch.frames.push(TxFrame {
            first,
            slices: 1,
            length,
            segments: 1,
            checksum,
            gso: None,
            layer: self.layer,
        });
    }
}

/// The properties that a frame inherits from the packet from which it is made.
struct FrameProperties {
    vlan: Option<VlanTag>,
    layer: Layer,
    checksum: RxChecksum,
    gso: Option<Gso>,
}

/// Returns a VLAN tag in wire format.
fn tag_bytes(tag: VlanTag) -> [u8; TAG] {
    let ([a, b], [c, d]) = (tag.protocol.to_be_bytes(), tag.control.to_be_bytes());
    [a, b, c, d]
}

/// Returns the number of frames that a super-packet becomes when it is segmented.
fn segments(packet: &SuperPacket<'_, Buffer>) -> u32 {
    wire_size(packet).0
}

/// Returns the number of frames into which a packet is segmented, and their total length in bytes.
/// A packet merged by LRO has no segment size and counts as one frame.
pub fn wire_size(packet: &SuperPacket<'_, Buffer>) -> (u32, u64) {
    let (metadata, length) = (&packet.metadata, packet.length());
    let Some(gso) = metadata.gso else { return (1, length as u64) };
    let headers = match metadata.layout {
        Some(layout) => usize::from(layout.payload),
        None => headers(packet.slices().next().unwrap_or(&[]), gso, metadata.checksum),
    };
    let segments = cut_in(length, headers, gso);
    (segments, all_bytes(length, headers, segments))
}

/// Returns the number of frames into which a super-packet of `length` bytes is segmented. `head` is
/// the start of the super-packet.
///
/// The end of the headers is derived from the partial checksum, which every super-packet of a
/// device or kernel has. Without it, the headers are counted as payload.
pub fn wire_segments(head: &[u8], length: usize, gso: Gso, checksum: RxChecksum) -> u32 {
    cut_in(length, headers(head, gso, checksum), gso)
}

/// Returns the total length in bytes, with headers, of the frames into which a super-packet of
/// `length` bytes is segmented. `head` is the start of the super-packet.
pub fn wire_bytes(head: &[u8], length: usize, gso: Gso, checksum: RxChecksum) -> u64 {
    let headers = headers(head, gso, checksum);
    all_bytes(length, headers, cut_in(length, headers, gso))
}

/// Returns the length in bytes of the headers that are repeated in each frame of a super-packet; 0
/// if unknown.
fn headers(head: &[u8], gso: Gso, checksum: RxChecksum) -> usize {
    match checksum {
        RxChecksum::Partial { start, .. } => {
            let transport = usize::from(start);
            match gso.kind {
                GsoKind::Tcp4 | GsoKind::Tcp6 => {
                    // The data offset: the length of the TCP header in 32-bit words (RFC 9293,
                    // section 3.1).
                    head.get(transport + 12)
                        .map_or(0, |offset| transport + usize::from(offset >> 4) * 4)
                }
                // The UDP header is part of the first fragment's payload.
                GsoKind::UdpFragments => transport,
                _ => transport + 8,
            }
        }
        _ => 0,
    }
}

/// Returns the total length of the `segments` frames into which a packet of `length` bytes is
/// segmented. Every frame has a copy of the headers.
fn all_bytes(length: usize, headers: usize, segments: u32) -> u64 {
    length as u64 + u64::from(segments - 1) * headers as u64
}

/// Returns the number of segments into which a packet of `length` bytes is divided, of which the
/// first `headers` bytes are its headers.
fn cut_in(length: usize, headers: usize, gso: Gso) -> u32 {
    length.saturating_sub(headers).div_ceil(gso.size.get()).max(1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use superpacket::aggregate::{Aggregator, HashKey, Policy};
    use superpacket::packet::RxPacket;
    use superpacket::segment::{ChecksumOutput, SegmentOptions, SegmentSize, Segmenter};

    #[test]
    fn super_packets_count_as_the_frames_that_they_are_on_a_wire() {
        let size = |bytes| SegmentSize::new(bytes).expect("not zero");
        // A TCP header of 32 bytes, with timestamps.
        let mut head = vec![0; 66];
        head[34 + 12] = 8 << 4;
        let tcp = Gso::new(GsoKind::Tcp4, size(1448));
        let partial = RxChecksum::Partial { start: 34, offset: 16 };
        for (payload, segments) in [(1448, 1), (1449, 2), (45 * 1448, 45), (45 * 1448 + 1, 46)] {
            assert_eq!(wire_segments(&head, 66 + payload, tcp, partial), segments, "{payload}");
            assert_eq!(
                wire_bytes(&head, 66 + payload, tcp, partial),
                payload as u64 + u64::from(segments) * 66,
                "{payload}"
            );
        }
        // If the device does not tell the length of the headers, they count as payload. Must not
        // panic on an empty head.
        assert_eq!(wire_segments(&head, 66 + 1448, tcp, RxChecksum::None), 2);
        assert_eq!(wire_segments(&[], 10, tcp, partial), 1);
        let udp = Gso::new(GsoKind::Udp, size(1200));
        assert_eq!(
            wire_segments(&[], 42 + 3 * 1200, udp, RxChecksum::Partial { start: 34, offset: 6 }),
            3
        );
        // A packet that the kernel delivers with its headers in a separate buffer.
        assert_eq!(
            wire_segments(
                &[],
                34 + 3 * 1480,
                Gso::new(GsoKind::UdpFragments, size(1480)),
                RxChecksum::Partial { start: 34, offset: 6 }
            ),
            3
        );
    }

    /// Aggregates 40 segments of a flow, and pushes the super-packet unsegmented and segmented.
    fn merged(
        vlan: Option<VlanTag>,
        max_slices: usize,
        storage: superpacket::aggregate::Storage,
    ) -> [Vec<Vec<u8>>; 3] {
        let frames = superpacket_traffic::workload::w1(40);
        let policy = Policy::gro().with_partial_checksums().with_storage(storage);
        let mut aggregator = Aggregator::new(policy, HashKey::new(1));
        let (mut outgoing, mut whole, mut cut) = (Outgoing::new(), TxBatch::new(), TxBatch::new());
        let mut segmenter = Segmenter::new();
        let mut packets: Vec<_> = frames
            .iter()
            .map(|frame| {
                let mut packet = RxPacket::new(Buffer::from(frame.clone()));
                packet.vlan = vlan;
                packet
            })
            .collect();
        let sink: &mut dyn FnMut(SuperPacket<'_, Buffer>) = &mut |mut packet| {
            outgoing.stage(&packet);
            whole.push_packet(&mut outgoing, &packet, max_slices);
            let options = SegmentOptions::default().with_checksum(ChecksumOutput::AsMerged);
            let done = segmenter.segment(&packet, &options, |segment| {
                cut.push_segment(
                    &mut outgoing,
                    &segment,
                    packet.metadata.vlan,
                    packet.metadata.layer,
                    max_slices,
                );
            });
            done.expect("what merged can be cut");
            outgoing.keep(&mut packet);
        };
        aggregator.receive_batch(&mut packets, 0, sink);
        aggregator.poll_end(0, sink);
        let bytes = |batch: &TxBatch| {
            let copy = |frame| {
                let mut bytes = Vec::new();
                batch.copy_to(&outgoing, frame, &mut bytes);
                bytes
            };
            batch.frames().iter().map(copy).collect::<Vec<_>>()
        };
        assert!(
            whole
                .frames()
                .iter()
                .chain(cut.frames())
                .all(|frame| frame.slices as usize <= max_slices)
        );
        [frames, bytes(&whole), bytes(&cut)]
    }

    #[test]
    fn what_is_cut_from_slices_is_what_came() {
        use superpacket::aggregate::Storage::{Fragments, Linear};
        for (max_slices, storage) in
            [(1024, Fragments), (1, Fragments), (1024, Linear), (1, Linear), (3, Fragments)]
        {
            let [frames, whole, cut] = merged(None, max_slices, storage);
            assert_eq!(cut, frames);
            assert_eq!(whole.len(), 1);
            assert_eq!(
                whole[0].len(),
                frames.iter().map(|frame| frame.len() - 66).sum::<usize>() + 66
            );
        }
    }

    #[test]
    fn segments_are_written_as_frames() {
        let frame = superpacket_traffic::frame::Frame::tcp4(1, 2500);
        let bytes = frame.to_bytes();
        let gso = Gso::new(
            superpacket::segment::GsoKind::Tcp4,
            superpacket::segment::SegmentSize::new(1000).expect("not 0"),
        );
        let packet = superpacket::segment::GsoPacket::linear(&bytes, gso);
        let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
        batch.push_bytes(&mut outgoing, &[1, 2, 3], RxChecksum::None, None, Layer::Ethernet);
        let mut segmenter = Segmenter::new();
        segmenter
            .segment_linear(
                &packet,
                &SegmentOptions::default(),
                &mut batch.writer(&mut outgoing, Layer::Ethernet),
            )
            .expect("well formed");
        let mut expected = Vec::new();
        segmenter
            .segment(&packet, &SegmentOptions::default(), |segment| segment.copy_to(&mut expected))
            .expect("well formed");
        assert_eq!(
            batch.frames().iter().map(|frame| frame.length).collect::<Vec<_>>(),
            [3, 1054, 1054, 554]
        );
        let mut written = Vec::new();
        batch.frames()[1..].iter().for_each(|frame| batch.copy_to(&outgoing, frame, &mut written));
        assert_eq!(written, expected);
        batch.truncate(2);
        assert_eq!(batch.frames().len(), 2);
        assert_eq!(outgoing.slice(batch.slices(&batch.frames()[0])[0]), [1, 2, 3]);
        batch.push_bytes(&mut outgoing, &[4], RxChecksum::None, None, Layer::Ethernet);
        assert_eq!(outgoing.slice(batch.slices(&batch.frames()[2])[0]), [4]);
    }

    #[test]
    fn a_stripped_tag_is_put_back() {
        let tag = VlanTag { protocol: 0x8100, control: 0x2064 };
        for max_slices in [1024, 1] {
            let [frames, whole, cut] =
                merged(Some(tag), max_slices, superpacket::aggregate::Storage::Fragments);
            let tagged =
                |frame: &Vec<u8>| [&frame[..12], &[0x81, 0, 0x20, 0x64], &frame[12..]].concat();
            assert_eq!(cut, frames.iter().map(tagged).collect::<Vec<_>>());
            assert_eq!(whole[0][..18], [&frames[0][..12], &[0x81, 0, 0x20, 0x64, 8, 0]].concat());
        }
    }

    #[test]
    fn addresses_in_several_buffers_keep_their_order_under_a_tag() {
        let frame = superpacket_traffic::workload::w1(1).remove(0);
        let mut packet = RxPacket::new(Buffer::from(frame[..5].to_vec()))
            .with_vlan(VlanTag { protocol: 0x88a8, control: 7 });
        packet.push(Buffer::from(frame[5..12].to_vec())).expect("room");
        packet.push(Buffer::from(frame[12..].to_vec())).expect("room");
        let mut aggregator =
            Aggregator::new(Policy::gro().with_partial_checksums(), HashKey::new(1));
        let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
        let sink: &mut dyn FnMut(SuperPacket<'_, Buffer>) = &mut |mut packet| {
            outgoing.stage(&packet);
            batch.push_packet(&mut outgoing, &packet, 9);
            outgoing.keep(&mut packet);
        };
        aggregator.receive(packet, 0, sink);
        aggregator.flush_all(sink);
        let mut bytes = Vec::new();
        batch.copy_to(&outgoing, &batch.frames()[0], &mut bytes);
        assert_eq!(bytes, [&frame[..12], &[0x88, 0xa8, 0, 7], &frame[12..]].concat());
        let mut scratch = [0; MAX_HEADER];
        assert_eq!(batch.head(&outgoing, &batch.frames()[0], &mut scratch), &bytes[..MAX_HEADER]);
    }
}
