//! Segmentation of W4, TCP super-packets of 65,160 bytes of payload into 45 segments of 1,448, and
//! of W5, UDP super-packets of 64,768 bytes into 44 datagrams of 1,472; the limit of each figure
//! (memcpy of the same bytes, the bare checksum of the same payload) in the same run.
//!
//! *Hot* takes the same super-packet again and again. *Streaming* goes round more than 500 MB of
//! them, so that what is read comes from memory; what is written is written to the same place,
//! which is hot.
#![allow(missing_docs, reason = "`criterion_group!` makes a public function without documentation")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use superpacket::Simd;
use superpacket::aggregate::{Aggregator, HashKey, Policy};
use superpacket::packet::RxPacket;
use superpacket::segment::{
    BackToBack, ChecksumOutput, Gso, GsoKind, GsoPacket, Segment, SegmentOptions, SegmentSize,
    Segmentable, Segmenter,
};
use superpacket::super_packet::SuperPacket;
use superpacket_traffic::frame::Checksum;
use superpacket_traffic::workload::{TCP_PAYLOAD, TRAIN, UDP_PAYLOAD, UDP_TRAIN, w1, w4, w5_super};

/// Super-packets of a streaming case: 521 MB and more.
const STREAM: usize = 8_000;

/// Super-packets of one kind, and how each is to be cut.
struct Workload {
    name: &'static str,
    frames: Vec<Vec<u8>>,
    gso: Gso,
    /// Length of the headers of each, and so of each segment.
    header: usize,
    /// Payload of each segment.
    size: usize,
    /// Segments of each.
    count: usize,
}

impl Workload {
    /// Without a last segment shorter than the others, so that all move the same bytes.
    fn new(
        name: &'static str,
        frames: Vec<Vec<u8>>,
        gso: Gso,
        header: usize,
        size: usize,
        count: usize,
    ) -> Self {
        assert!(frames.iter().all(|frame| frame.len() == header + size * count));
        Workload { name, frames, gso, header, size, count }
    }

    fn w4(frames: usize) -> Self {
        Workload::new(
            "W4",
            w4(frames, Checksum::Partial),
            gso(GsoKind::Tcp4, TCP_PAYLOAD),
            66,
            TCP_PAYLOAD,
            TRAIN,
        )
    }

    fn w5(frames: usize) -> Self {
        Workload::new(
            "W5",
            w5_super(frames, Checksum::Partial),
            gso(GsoKind::Udp, UDP_PAYLOAD),
            42,
            UDP_PAYLOAD,
            UDP_TRAIN,
        )
    }

    /// Its super-packets, one after the other without end.
    fn round<'a>(&'a self) -> impl FnMut() -> &'a Vec<u8> {
        let mut frames = self.frames.iter().cycle();
        move || black_box(frames.next().expect("at least one"))
    }
}

fn gso(kind: GsoKind, size: usize) -> Gso {
    Gso::new(kind, SegmentSize::new(size).expect("a size"))
}

fn options(checksum: ChecksumOutput) -> SegmentOptions {
    SegmentOptions::default().with_checksum(checksum)
}

/// What a sink that fills descriptors touches: the header's address and each range.
fn touch<P: Segmentable>(segment: Segment<'_, P>) {
    black_box(segment.header().as_ptr());
    for range in segment.ranges() {
        black_box((range.range, range.offset, range.length));
    }
}

fn scatter_gather(group: &mut BenchmarkGroup<'_, WallTime>, workload: &Workload) {
    let simd = Simd::detect();
    let mut segmenter = Segmenter::new().with_simd(simd);
    group.throughput(Throughput::Elements(workload.count as u64));
    for (name, checksum) in
        [("without checksums", ChecksumOutput::Partial), ("sums unknown", ChecksumOutput::Full)]
    {
        let mut next = workload.round();
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                segmenter.segment(
                    &GsoPacket::linear(next(), workload.gso),
                    &options(checksum),
                    touch,
                )
            });
        });
    }
    let mut next = workload.round();
    group.bench_function("limit: checksum of the payload", |bencher| {
        bencher.iter(|| {
            let segments = next()[workload.header..].chunks(workload.size);
            segments.map(|segment| simd.sum(black_box(segment))).fold(0u16, u16::wrapping_add)
        });
    });
}

/// What the aggregator merged knows the sums of its payloads, and lies in 45 buffers.
fn merged(group: &mut BenchmarkGroup<'_, WallTime>) {
    let simd = Simd::detect();
    let mut segmenter = Segmenter::new().with_simd(simd);
    let buffers = w1(TRAIN);
    let mut aggregator =
        Aggregator::new(Policy::gro().with_partial_checksums(), HashKey::new(1)).with_simd(simd);
    group.throughput(Throughput::Elements(TRAIN as u64));
    for (name, checksum) in [
        ("merged, without checksums", ChecksumOutput::Partial),
        ("merged, sums known", ChecksumOutput::Full),
    ] {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|rounds| {
                let mut elapsed = Duration::ZERO;
                let mut sink = |packet: SuperPacket<'_, &[u8]>| {
                    assert!(packet.is_merged(), "{:?}", packet.metadata);
                    let start = Instant::now();
                    for _ in 0..rounds {
                        let plan = segmenter.segment(black_box(&packet), &options(checksum), touch);
                        assert_eq!(plan.map(|plan| plan.segments), Ok(TRAIN as u32));
                    }
                    elapsed = start.elapsed();
                };
                for buffer in &buffers {
                    aggregator.receive(RxPacket::new(buffer.as_slice()), 0, &mut sink);
                }
                aggregator.flush_all(&mut sink);
                elapsed
            });
        });
    }
}

fn linear(group: &mut BenchmarkGroup<'_, WallTime>, workload: &Workload) {
    let &Workload { gso, header, size, count, .. } = workload;
    let mut segmenter = Segmenter::new();
    let mut out = vec![0u8; (header + size) * count];
    group.throughput(Throughput::Bytes(out.len() as u64));
    for (name, checksum) in
        [("copy and checksum", ChecksumOutput::Full), ("copy", ChecksumOutput::Partial)]
    {
        let mut next = workload.round();
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                segmenter
                    .segment_linear(
                        &GsoPacket::linear(next(), gso),
                        &options(checksum),
                        &mut BackToBack::new(&mut out),
                    )
                    .map(black_box)
            });
        });
    }
    let mut next = workload.round();
    group.bench_function("limit: memcpy of the same pieces", |bencher| {
        bencher.iter(|| {
            let (head, payload) = next().split_at(header);
            for (segment, payload) in out.chunks_mut(header + size).zip(payload.chunks(size)) {
                segment[..header].copy_from_slice(head);
                segment[header..].copy_from_slice(payload);
            }
            black_box(&mut out);
        });
    });
}

/// Both ways of cutting a workload, each with its limit.
fn both(criterion: &mut Criterion, workload: &Workload, temperature: &str) {
    let mut group =
        criterion.benchmark_group(format!("{} scatter/gather, {temperature}", workload.name));
    scatter_gather(&mut group, workload);
    group.finish();
    let mut group = criterion.benchmark_group(format!("{} linear, {temperature}", workload.name));
    linear(&mut group, workload);
    group.finish();
}

fn hot(criterion: &mut Criterion) {
    both(criterion, &Workload::w4(1), "hot");
    let mut group = criterion.benchmark_group("W4 scatter/gather, hot");
    merged(&mut group);
    group.finish();
    both(criterion, &Workload::w5(1), "hot");
}

fn streaming(criterion: &mut Criterion) {
    // One after the other, so that only one of them lies in memory.
    both(criterion, &Workload::w4(STREAM), "streaming");
    both(criterion, &Workload::w5(STREAM), "streaming");
}

fn config() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1_000))
}

criterion_group! { name = benches; config = config(); targets = hot, streaming }
criterion_main!(benches);
