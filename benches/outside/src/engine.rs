//! The engine's calls that the rows measure, as a user would write them.

use std::hint::black_box;
use std::ops::Range;

use superpacket::order::{GapLimits, Gaps};
use superpacket::packet::{RxChecksum, RxPacket};
use superpacket::segment::{
    BackToBack, ChecksumOutput, Gso, GsoKind, GsoPacket, Segment, SegmentOptions, SegmentSize,
    Segmentable, Segmenter,
};
use superpacket::virtio::Framing;
use superpacket::{Aggregator, BatchAggregator, HashKey, Policy, Simd, SuperPacket};

/// Sums bytes with the best instructions of this processor.
pub struct Summer(Simd);

impl Summer {
    pub fn new() -> Self {
        Summer(Simd::detect())
    }

    pub fn sum(&self, bytes: &[u8]) -> u16 {
        self.0.sum(bytes)
    }
}

/// The policy of a benchmark, and the checksum state of its frames.
#[derive(Clone, Copy)]
pub struct Receive {
    pub policy: Policy,
    /// The checksum state that the device reports.
    pub checksum: RxChecksum,
}

/// Aggregates frames in the caller's buffers.
pub struct Joiner<'a> {
    receive: Receive,
    aggregator: Aggregator<&'a [u8]>,
    packets: Vec<RxPacket<&'a [u8]>>,
    ranges: Vec<(*const u8, usize)>,
}

impl<'a> Joiner<'a> {
    pub fn new(receive: Receive) -> Self {
        Joiner {
            receive,
            aggregator: aggregator(receive.policy),
            packets: Vec::new(),
            ranges: Vec::new(),
        }
    }

    /// Receives a batch. Of packets that leave, as much is read as descriptors need.
    pub fn take(&mut self, frames: &'a [Vec<u8>]) {
        let checksum = self.receive.checksum;
        self.packets
            .extend(frames.iter().map(|frame| RxPacket::new(&frame[..]).with_checksum(checksum)));
        self.aggregator.receive_batch(&mut self.packets, 0, &mut look_at);
    }

    /// Receives a batch as a whole poll, and lists all ranges of the packets that leave.
    pub fn list(&mut self, frames: &'a [Vec<u8>]) {
        let Joiner { receive, aggregator, packets, ranges } = self;
        packets.extend(
            frames.iter().map(|frame| RxPacket::new(&frame[..]).with_checksum(receive.checksum)),
        );
        let mut list = |packet: SuperPacket<'_, &[u8]>| {
            ranges.clear();
            ranges.extend(packet.slices().map(|slice| (slice.as_ptr(), slice.len())));
            black_box((&packet.metadata, &ranges));
        };
        aggregator.receive_batch(packets, 0, &mut list);
        aggregator.poll_end(0, &mut list);
    }

    /// Ends a poll, so that all held packets leave.
    pub fn end(&mut self) {
        self.aggregator.poll_end(0, &mut look_at);
    }

    /// Returns whether every packet is accounted for.
    pub fn balances(&self) -> bool {
        self.aggregator.counters().balanced()
    }
}

/// Joins frames for `writev` to a TAP device.
pub struct Writer<'a> {
    aggregator: BatchAggregator,
    frames: Vec<&'a [u8]>,
}

impl<'a> Writer<'a> {
    pub fn new(policy: Policy) -> Self {
        Writer {
            aggregator: BatchAggregator::framed(Framing::TAP, policy, HashKey::new(42)),
            frames: Vec::new(),
        }
    }

    pub fn write(&mut self, frames: &'a [Vec<u8>]) {
        let Writer { aggregator, frames: slices } = self;
        slices.clear();
        slices.extend(frames.iter().map(Vec::as_slice));
        aggregator.poll_gathered(slices, |slices| {
            black_box(slices);
        });
    }
}

/// Joins frames in their own buffers, behind room for a `virtio_net_hdr`.
pub struct InPlace<'a> {
    aggregator: BatchAggregator,
    frames: &'a [Vec<u8>],
    buffers: Vec<Vec<u8>>,
}

impl<'a> InPlace<'a> {
    /// Gives each frame its own buffer, with room for the frames that may join it.
    pub fn new(policy: Policy, frames: &'a [Vec<u8>]) -> Self {
        let framing = Framing::TAP;
        let buffer = |frame: &Vec<u8>| {
            let mut buffer = Vec::with_capacity(IN_PLACE_CAPACITY);
            buffer.resize(framing.header_length(), 0);
            buffer.extend_from_slice(frame);
            buffer
        };
        let buffers = frames.iter().map(buffer).collect();
        InPlace {
            aggregator: BatchAggregator::framed(framing, policy, HashKey::new(42)),
            frames,
            buffers,
        }
    }

    /// Receives these frames as a whole poll, and restores their buffers. In buffers that others
    /// joined, only the header has changed, and is copied.
    pub fn take(&mut self, batch: Range<usize>) {
        let offset = Framing::TAP.header_length();
        let (frames, buffers) = (&self.frames[batch.clone()], &mut self.buffers[batch]);
        let written =
            self.aggregator.join_in_place(buffers, offset).expect("there is room for the header");
        for &index in black_box(written) {
            let (frame, buffer) = (&frames[index], &mut buffers[index]);
            if buffer.len() != offset + frame.len() {
                let header = frame.len().min(IN_PLACE_HEADER);
                buffer.truncate(offset + frame.len());
                buffer[offset..offset + header].copy_from_slice(&frame[..header]);
            }
        }
    }
}

/// Size of a buffer for joined frames, in bytes: the longest packet, and the bytes before it.
const IN_PLACE_CAPACITY: usize = 66 << 10;

/// More than the header bytes of any frame here.
const IN_PLACE_HEADER: usize = 80;

/// Searches arriving frames for gaps in their sequence numbers.
pub struct Watcher<'a> {
    gaps: Gaps<&'a [u8]>,
    packets: Vec<RxPacket<&'a [u8]>>,
}

impl<'a> Watcher<'a> {
    pub fn new() -> Self {
        Watcher { gaps: Gaps::new(GapLimits::new(50_000), HashKey::new(42)), packets: Vec::new() }
    }

    /// Receives a batch without gaps.
    pub fn take(&mut self, frames: &'a [Vec<u8>]) {
        self.packets.extend(frames.iter().map(|frame| RxPacket::new(&frame[..])));
        self.gaps.receive(&mut self.packets, 0);
        black_box(self.packets.as_ptr());
        debug_assert_eq!(self.packets.len(), frames.len());
        self.packets.clear();
    }
}

fn aggregator<B: AsRef<[u8]>>(policy: Policy) -> Aggregator<B> {
    Aggregator::new(policy, HashKey::new(42))
}

fn look_at(packet: SuperPacket<'_, &[u8]>) {
    black_box(&packet.metadata);
    black_box((packet.header().as_ptr(), packet.length()));
}

/// The form of the segments' checksums.
#[derive(Clone, Copy)]
pub enum Sums {
    /// Partial checksums, which a device completes.
    Device,
    /// Complete checksums, computed in software.
    Whole,
}

impl Sums {
    fn options(self) -> SegmentOptions {
        let checksum = match self {
            Sums::Device => ChecksumOutput::Partial,
            Sums::Whole => ChecksumOutput::Full,
        };
        SegmentOptions::default().with_checksum(checksum)
    }
}

/// The kind of super-packet, and the payload bytes per segment.
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

/// Segments super-packets.
pub struct Cutter {
    segmenter: Segmenter,
    gso: Gso,
    options: SegmentOptions,
}

impl Cutter {
    pub fn new(cut: Cut, sums: Sums) -> Self {
        Cutter { segmenter: Segmenter::new(), gso: cut.gso(), options: sums.options() }
    }

    /// Segments a frame into headers and ranges; returns the number of segments.
    pub fn gather(&mut self, frame: &Vec<u8>) -> usize {
        let plan = self
            .segmenter
            .segment(&GsoPacket::linear(frame, self.gso), &self.options, fill_descriptors)
            .expect("a super-packet");
        plan.segments as usize
    }

    /// Segments a frame into one buffer; returns the number of segments.
    pub fn copy(&mut self, frame: &Vec<u8>, out: &mut [u8]) -> usize {
        let mut out = BackToBack::new(out);
        let plan = self
            .segmenter
            .segment_linear(&GsoPacket::linear(frame, self.gso), &self.options, &mut out)
            .expect("a super-packet");
        plan.segments as usize
    }
}

/// Does the work of a sink that fills descriptors, with the header's address and each range.
fn fill_descriptors<P: Segmentable>(segment: Segment<'_, P>) {
    black_box(segment.header().as_ptr());
    for range in segment.ranges() {
        black_box((range.range, range.offset, range.length));
    }
}

/// Joins frames and segments the results, with the checksums kept from reception.
pub struct ThreadlessBridge<'a> {
    aggregator: Aggregator<&'a [u8]>,
    segmenter: Segmenter,
    packets: Vec<RxPacket<&'a [u8]>>,
}

impl<'a> ThreadlessBridge<'a> {
    pub fn new(policy: Policy) -> Self {
        ThreadlessBridge {
            aggregator: aggregator(policy),
            segmenter: Segmenter::new(),
            packets: Vec::new(),
        }
    }

    /// Forwards frames whose checksums the device has verified; all have left when this returns.
    pub fn take(&mut self, frames: &'a [Vec<u8>]) {
        let verified = RxChecksum::Unnecessary { level: 0 };
        self.packets
            .extend(frames.iter().map(|frame| RxPacket::new(&frame[..]).with_checksum(verified)));
        let (segmenter, options) = (&mut self.segmenter, Sums::Whole.options());
        let mut cut = |packet: SuperPacket<'_, &[u8]>| {
            segmenter.segment(&packet, &options, fill_descriptors).expect("what merged can be cut");
        };
        self.aggregator.receive_batch(&mut self.packets, 0, &mut cut);
        self.aggregator.poll_end(0, &mut cut);
    }
}
