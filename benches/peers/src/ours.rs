//! The engine, used in the two ways of the peers: by reference, as DPDK, and in buffers, as tun-rs.

use std::cell::RefCell;
use std::hint::black_box;

use superpacket::packet::{RxChecksum, RxPacket};
use superpacket::segment::{
    ChecksumOutput, EachBuffer, Gso, GsoKind, GsoPacket, Segment, SegmentOptions, SegmentSize,
    Segmentable, Segmenter,
};
use superpacket::{Aggregator, BatchAggregator, Framing, HashKey, Policy, SuperPacket};
use superpacket_traffic::workload::{TCP_PAYLOAD, TRAIN};

use crate::clock::{Clock, Work};
use crate::rows::Join;
use crate::tun::{Buffers, OFFSET, Read, SegmentBuffers};

/// Joins frames by reference: results are lists of ranges, with a new header first.
pub struct Gatherer<'a> {
    cycles: &'a [Vec<Vec<u8>>],
    batch: usize,
    checksum: RxChecksum,
    aggregator: Aggregator<&'a [u8]>,
    packets: Vec<RxPacket<&'a [u8]>>,
    ranges: Vec<(*const u8, usize)>,
}

impl<'a> Gatherer<'a> {
    pub fn new(join: &Join, cycles: &'a [Vec<Vec<u8>>]) -> Self {
        Gatherer {
            cycles,
            batch: join.batch,
            checksum: if join.verified {
                RxChecksum::Unnecessary { level: 0 }
            } else {
                RxChecksum::None
            },
            aggregator: Aggregator::new(Policy::gro().with_partial_checksums(), HashKey::new(42)),
            packets: Vec::new(),
            ranges: Vec::new(),
        }
    }

    /// Returns the frames that leave for the frames of a cycle.
    pub fn outputs(&mut self) -> Vec<Vec<u8>> {
        let (frames, checksum) = (&self.cycles[0], self.checksum);
        let mut outputs = Vec::new();
        let mut keep = |packet: SuperPacket<'_, &[u8]>| {
            let mut bytes = Vec::new();
            packet.copy_to(&mut bytes);
            outputs.push(bytes);
        };
        for batch in frames.chunks(self.batch) {
            self.packets.extend(
                batch.iter().map(|frame| RxPacket::new(&frame[..]).with_checksum(checksum)),
            );
            self.aggregator.receive_batch(&mut self.packets, 0, &mut keep);
        }
        self.aggregator.poll_end(0, &mut keep);
        outputs
    }
}

impl Work for Gatherer<'_> {
    fn copies(&self) -> usize {
        self.cycles.len()
    }

    fn units(&self) -> usize {
        self.cycles[0].len()
    }

    fn cycle(&mut self, copy: usize, clock: &Clock) -> f64 {
        let Gatherer { cycles, batch, checksum, aggregator, packets, ranges } = self;
        let mut list = |packet: SuperPacket<'_, &[u8]>| {
            ranges.clear();
            ranges.extend(packet.slices().map(|slice| (slice.as_ptr(), slice.len())));
            black_box((&packet.metadata, &ranges));
        };
        let mut total = 0.0;
        let mut left = cycles[copy].len();
        for batch in cycles[copy].chunks(*batch) {
            left -= batch.len();
            total += clock.time(|| {
                packets.extend(
                    batch.iter().map(|frame| RxPacket::new(&frame[..]).with_checksum(*checksum)),
                );
                aggregator.receive_batch(packets, 0, &mut list);
                if left == 0 {
                    aggregator.poll_end(0, &mut list);
                }
            });
        }
        total
    }
}

/// Segments super-packets by reference, into headers and ranges of the payload.
pub struct ReferenceCutter<'a> {
    packets: &'a [Vec<u8>],
    segmenter: Segmenter,
    ranges: Vec<(*const u8, usize, usize)>,
}

fn tcp4() -> Gso {
    Gso::new(GsoKind::Tcp4, SegmentSize::new(TCP_PAYLOAD).expect("not 0"))
}

fn without_sums() -> SegmentOptions {
    SegmentOptions::default().with_checksum(ChecksumOutput::Partial)
}

impl<'a> ReferenceCutter<'a> {
    pub fn new(packets: &'a [Vec<u8>]) -> Self {
        ReferenceCutter { packets, segmenter: Segmenter::new(), ranges: Vec::new() }
    }

    /// Returns the segments of a super-packet.
    pub fn outputs(&mut self) -> Vec<Vec<u8>> {
        let packet = &self.packets[0];
        let mut outputs = Vec::new();
        self.segmenter
            .segment(
                &GsoPacket::linear(packet, tcp4()),
                &without_sums(),
                |segment: Segment<'_, _>| {
                    let mut bytes = segment.header().to_vec();
                    segment.ranges().for_each(|range| {
                        bytes.extend_from_slice(&packet[range.offset..range.offset + range.length])
                    });
                    outputs.push(bytes);
                },
            )
            .expect("a super-packet");
        outputs
    }
}

impl Work for ReferenceCutter<'_> {
    fn copies(&self) -> usize {
        self.packets.len()
    }

    fn units(&self) -> usize {
        TRAIN
    }

    fn cycle(&mut self, copy: usize, clock: &Clock) -> f64 {
        let ReferenceCutter { packets, segmenter, ranges } = self;
        clock.time(|| {
            ranges.clear();
            let packet = GsoPacket::linear(black_box(&packets[copy]), tcp4());
            segmenter
                .segment(&packet, &without_sums(), |segment| list(segment, ranges))
                .expect("a super-packet");
            black_box(&ranges);
        })
    }
}

/// Lists the header and payload of a segment, as one fills a device's descriptors.
fn list<P: Segmentable>(segment: Segment<'_, P>, ranges: &mut Vec<(*const u8, usize, usize)>) {
    let header = segment.header();
    ranges.push((header.as_ptr(), 0, header.len()));
    ranges.extend(segment.ranges().map(|range| (std::ptr::null(), range.offset, range.length)));
}

/// Joins packets with unverified checksums in their own buffers.
pub struct InPlaceJoiner<'a> {
    buffers: &'a RefCell<Buffers>,
    batch: usize,
    aggregator: BatchAggregator,
}

impl<'a> InPlaceJoiner<'a> {
    pub fn new(join: &Join, buffers: &'a RefCell<Buffers>) -> Self {
        let aggregator = BatchAggregator::framed(Framing::TUN, Policy::gro(), HashKey::new(42));
        InPlaceJoiner { buffers, batch: join.batch, aggregator }
    }

    /// Returns the data to write for the packets of a cycle: header and packet.
    pub fn outputs(&mut self) -> Vec<Vec<u8>> {
        let mut buffers = self.buffers.borrow_mut();
        buffers.restore(0);
        let mut outputs = Vec::new();
        for batch in buffers.cycle(0).chunks_mut(self.batch) {
            let written =
                self.aggregator.join_in_place(batch, OFFSET).expect("room for the header");
            outputs.extend(written.iter().map(|&index| batch[index].clone()));
        }
        outputs
    }
}

impl Work for InPlaceJoiner<'_> {
    fn copies(&self) -> usize {
        self.buffers.borrow().copies()
    }

    fn units(&self) -> usize {
        self.buffers.borrow().packets()
    }

    fn prepare(&mut self, copy: usize) {
        self.buffers.borrow_mut().restore(copy);
    }

    fn cycle(&mut self, copy: usize, clock: &Clock) -> f64 {
        let mut buffers = self.buffers.borrow_mut();
        let join = |batch: &mut [Vec<u8>]| {
            clock.time(|| {
                black_box(
                    self.aggregator
                        .join_in_place(black_box(batch), OFFSET)
                        .expect("room for the header"),
                );
            })
        };
        buffers.cycle(copy).chunks_mut(self.batch).map(join).sum()
    }
}

/// Segments the data of reads from a TUN device into buffers, with checksums.
pub struct BufferCutter<'a> {
    reads: &'a RefCell<Vec<Read>>,
    segmenter: Segmenter,
    pub out: SegmentBuffers,
}

impl<'a> BufferCutter<'a> {
    pub fn new(reads: &'a RefCell<Vec<Read>>) -> Self {
        BufferCutter { reads, segmenter: Segmenter::new(), out: SegmentBuffers::new() }
    }
}

impl Work for BufferCutter<'_> {
    fn copies(&self) -> usize {
        self.reads.borrow().len()
    }

    fn units(&self) -> usize {
        TRAIN
    }

    fn cycle(&mut self, copy: usize, clock: &Clock) -> f64 {
        let reads = self.reads.borrow();
        let (segmenter, out) = (&mut self.segmenter, &mut self.out);
        clock.time(|| {
            let mut sink = EachBuffer::new(&mut out.buffers, OFFSET, &mut out.sizes);
            let plan = segmenter
                .split(Framing::TUN, black_box(&reads[copy].bytes), &mut sink)
                .expect("a super-packet");
            out.segments = plan.segments as usize;
            black_box(&out);
        })
    }
}
