//! Every call of the engine that the rows make, as a user would write it.

use std::hint::black_box;

use superpacket::Simd;
use superpacket::aggregate::{Aggregator, HashKey, Policy, Storage};
use superpacket::packet::{Layer, RxChecksum, RxPacket};
use superpacket::segment::{
    BackToBack, ChecksumOutput, Gso, GsoKind, GsoPacket, Segment, SegmentBuffers, SegmentOptions, SegmentSize, Segmentable, Segmenter,
    Written,
};
use superpacket::super_packet::SuperPacket;
use superpacket::virtio::{ByteOrder, Format, Header, Offload};

/// Sums bytes at the best level of this processor.
pub struct Summer(Simd);

impl Summer {
    pub fn new() -> Self {
        Summer(Simd::detect())
    }

    pub fn sum(&self, bytes: &[u8]) -> u16 {
        self.0.sum(bytes)
    }
}

/// How frames are received.
#[derive(Clone, Copy)]
pub struct Receive {
    pub policy: Policy,
    /// What the device says of their checksums.
    pub checksum: RxChecksum,
}

/// Aggregates frames in buffers of the caller.
pub struct Joiner<'a> {
    receive: Receive,
    aggregator: Aggregator<&'a [u8]>,
    packets: Vec<RxPacket<&'a [u8]>>,
}

impl<'a> Joiner<'a> {
    pub fn new(receive: Receive) -> Self {
        Joiner { receive, aggregator: aggregator(receive.policy), packets: Vec::new() }
    }

    /// Takes a batch; what leaves is looked at as far as descriptors need it.
    pub fn take(&mut self, frames: &'a [Vec<u8>]) {
        let checksum = self.receive.checksum;
        self.packets.extend(frames.iter().map(|frame| RxPacket::new(&frame[..]).with_checksum(checksum)));
        self.aggregator.receive_batch(&mut self.packets, 0, &mut look_at);
    }

    /// Ends a poll: what is held leaves.
    pub fn end(&mut self) {
        self.aggregator.poll_end(0, &mut look_at);
    }

    /// Has every packet been accounted for?
    pub fn balances(&self) -> bool {
        self.aggregator.counters().balanced()
    }
}

fn aggregator<B: AsRef<[u8]>>(policy: Policy) -> Aggregator<B> {
    Aggregator::new(policy, HashKey::new(42))
}

fn look_at(packet: SuperPacket<'_, &[u8]>) {
    black_box(&packet.metadata);
    black_box((packet.header().as_ptr(), packet.length()));
}

/// Which checksums segments get.
#[derive(Clone, Copy)]
pub enum Sums {
    /// Partial ones, which a device completes.
    Device,
    /// Whole ones, in software.
    Whole,
}

impl Sums {
    fn options(self) -> SegmentOptions {
        let checksum = match self {
            Sums::Device => ChecksumOutput::Partial,
            Sums::Whole => ChecksumOutput::Full,
        };
        SegmentOptions { checksum, ..SegmentOptions::default() }
    }
}

/// What is cut, and into segments of how many bytes of payload.
#[derive(Clone, Copy)]
pub enum Cut {
    Tcp4(usize),
    Udp(usize),
}

impl Cut {
    fn gso(self) -> Gso {
        let (kind, size) = match self {
            Cut::Tcp4(size) => (GsoKind::Tcp4, size),
            Cut::Udp(size) => (GsoKind::Udp, size),
        };
        Gso::new(kind, SegmentSize::new(size).expect("not 0"))
    }
}

/// Cuts super-packets.
pub struct Cutter {
    segmenter: Segmenter,
    gso: Gso,
    options: SegmentOptions,
}

impl Cutter {
    pub fn new(cut: Cut, sums: Sums) -> Self {
        Cutter { segmenter: Segmenter::new(), gso: cut.gso(), options: sums.options() }
    }

    /// Into headers and ranges; returns how many segments.
    pub fn gather(&mut self, frame: &Vec<u8>) -> usize {
        let plan = self.segmenter.segment(&GsoPacket::linear(frame, self.gso), &self.options, fill_descriptors).expect("a super-packet");
        plan.segments as usize
    }

    /// Into one buffer, back to back; returns how many segments.
    pub fn copy(&mut self, frame: &Vec<u8>, out: &mut [u8]) -> usize {
        let mut out = BackToBack::new(out);
        let plan = self.segmenter.segment_linear(&GsoPacket::linear(frame, self.gso), &self.options, &mut out).expect("a super-packet");
        plan.segments as usize
    }
}

/// What a sink that fills descriptors does: the header's address and each range.
fn fill_descriptors<P: Segmentable>(segment: Segment<'_, P>) {
    black_box(segment.header().as_ptr());
    for range in segment.ranges() {
        black_box((range.range, range.offset, range.length));
    }
}

/// Joins frames and cuts what leaves again, with the sums kept on the way in.
pub struct Forwarder<'a> {
    aggregator: Aggregator<&'a [u8]>,
    segmenter: Segmenter,
    packets: Vec<RxPacket<&'a [u8]>>,
}

impl<'a> Forwarder<'a> {
    pub fn new() -> Self {
        Forwarder { aggregator: aggregator(Policy::gro().with_partial_checksums()), segmenter: Segmenter::new(), packets: Vec::new() }
    }

    /// Frames with checksums that the device verified; all leave before this returns.
    pub fn take(&mut self, frames: &'a [Vec<u8>]) {
        let verified = RxChecksum::Unnecessary { level: 0 };
        self.packets.extend(frames.iter().map(|frame| RxPacket::new(&frame[..]).with_checksum(verified)));
        let (segmenter, options) = (&mut self.segmenter, Sums::Whole.options());
        let mut cut = |packet: SuperPacket<'_, &[u8]>| {
            segmenter.segment(&packet, &options, fill_descriptors).expect("what merged can be cut");
        };
        self.aggregator.receive_batch(&mut self.packets, 0, &mut cut);
        self.aggregator.poll_end(0, &mut cut);
    }
}

/// Joins IP packets for a TUN device: each that leaves lies in one piece, with a `virtio_net_hdr` made for it.
pub struct TunJoiner<'a> {
    aggregator: Aggregator<&'a [u8]>,
    packets: Vec<RxPacket<&'a [u8]>>,
}

impl<'a> TunJoiner<'a> {
    pub fn new() -> Self {
        let policy = Policy::gro().with_partial_checksums().with_storage(Storage::Linear);
        TunJoiner { aggregator: aggregator(policy), packets: Vec::new() }
    }

    /// Joins packets that start at `offset` of each buffer, and whose checksums nobody has verified. All leave, each as its header and bytes.
    pub fn join(&mut self, buffers: &'a [Vec<u8>], offset: usize, mut write: impl FnMut([u8; 10], &[u8])) {
        let mut sink = |packet: SuperPacket<'_, &[u8]>| {
            let offload = Offload { checksum: packet.metadata.checksum, gso: packet.metadata.gso, hash: None };
            let bytes = packet.contiguous().expect("linear storage");
            let mut header = [0; 10];
            Header::describe(&offload, Format::Plain, bytes, bytes.len(), Layer::Ip)
                .and_then(|described| described.write(&mut header, Format::Plain, ByteOrder::NATIVE))
                .expect("what merged can be described");
            write(header, bytes);
        };
        self.packets.extend(buffers.iter().map(|buffer| RxPacket::ip(&buffer[offset..])));
        self.aggregator.receive_batch(&mut self.packets, 0, &mut sink);
        self.aggregator.poll_end(0, &mut sink);
    }
}

/// Cuts what one read of a TUN device gave.
pub struct TunCutter {
    segmenter: Segmenter,
}

impl TunCutter {
    pub fn new() -> Self {
        TunCutter { segmenter: Segmenter::new() }
    }

    /// Cuts a `virtio_net_hdr` and a packet into segments that start at `offset` of each buffer; returns how many there are.
    pub fn cut(&mut self, read: &[u8], buffers: &mut [Vec<u8>], sizes: &mut [usize], offset: usize) -> usize {
        let header = Header::read(read, Format::Plain, ByteOrder::NATIVE).expect("a whole header");
        let packet = &read[Format::Plain.length()..];
        let offload = header.offload(Format::Plain, packet, packet.len(), Layer::Ip).expect("a valid header");
        let packet = GsoPacket { buffers: &[packet], layer: Layer::Ip, gso: offload.gso, checksum: offload.checksum };
        let mut slots = Slots { buffers, sizes, offset, next: 0 };
        let plan = self.segmenter.segment_linear(&packet, &SegmentOptions::default(), &mut slots).expect("a super-packet");
        plan.segments as usize
    }
}

/// A buffer for each segment.
struct Slots<'a> {
    buffers: &'a mut [Vec<u8>],
    sizes: &'a mut [usize],
    offset: usize,
    next: usize,
}

impl SegmentBuffers for Slots<'_> {
    #[inline]
    fn buffer(&mut self, length: usize) -> Option<&mut [u8]> {
        self.buffers.get_mut(self.next)?.get_mut(self.offset..self.offset + length)
    }

    #[inline]
    fn written(&mut self, segment: Written) {
        self.sizes[self.next] = segment.length;
        self.next += 1;
    }
}
