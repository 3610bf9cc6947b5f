//! Segmentation of W4: TCP super-packets of 65,160 bytes of payload into 45 segments of 1,448, hot; the limit of each figure (memcpy of the
//! same bytes, the bare checksum of the same payload) in the same run.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use superpacket::Simd;
use superpacket::aggregate::{Aggregator, HashKey, Policy};
use superpacket::packet::RxPacket;
use superpacket::segment::{
    BackToBack, ChecksumOutput, Gso, GsoKind, GsoPacket, Segment, SegmentOptions, SegmentSize, Segmentable, Segmenter,
};
use superpacket::super_packet::SuperPacket;
use superpacket_traffic::frame::Checksum;
use superpacket_traffic::workload::{TCP_PAYLOAD, TRAIN, UDP_PAYLOAD, UDP_TRAIN, w1, w4, w5_super};

const HEADER: usize = 66;

fn gso(kind: GsoKind, size: usize) -> Gso {
    Gso::new(kind, SegmentSize::new(size).expect("a size"))
}

fn options(checksum: ChecksumOutput) -> SegmentOptions {
    SegmentOptions { checksum, ..SegmentOptions::default() }
}

/// What a sink that fills descriptors touches: the header's address and each range.
fn touch<P: Segmentable>(segment: Segment<'_, P>) {
    black_box(segment.header().as_ptr());
    for range in segment.ranges() {
        black_box((range.range, range.offset, range.length));
    }
}

fn scatter_gather(criterion: &mut Criterion) {
    let simd = Simd::detect();
    let mut segmenter = Segmenter::new(simd);
    let frames = w4(1, Checksum::Partial);
    let frame = &frames[0];
    let payload = &frame[HEADER..];
    let packet = GsoPacket::linear(frame, gso(GsoKind::Tcp4, TCP_PAYLOAD));

    let mut group = criterion.benchmark_group("W4 scatter/gather, hot");
    group.throughput(Throughput::Elements(TRAIN as u64));
    group.bench_function("without checksums", |bencher| {
        bencher.iter(|| segmenter.segment(black_box(&packet), &options(ChecksumOutput::Partial), touch));
    });
    group.bench_function("sums unknown", |bencher| {
        bencher.iter(|| segmenter.segment(black_box(&packet), &options(ChecksumOutput::Full), touch));
    });
    group.bench_function("limit: checksum of the payload", |bencher| {
        bencher.iter(|| payload.chunks(TCP_PAYLOAD).map(|segment| simd.sum(black_box(segment))).fold(0u16, u16::wrapping_add));
    });

    // What the aggregator merged knows the sums of its payloads, and lies in 45 buffers.
    let buffers = w1(TRAIN);
    let mut aggregator = Aggregator::new(Policy::gro(), HashKey::new(1), simd);
    let mut bench_merged = |name: &str, checksum: ChecksumOutput| {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|rounds| {
                let mut elapsed = std::time::Duration::ZERO;
                let mut sink = |packet: SuperPacket<'_, &[u8]>| {
                    assert!(packet.is_merged(), "{:?}", packet.metadata);
                    let start = std::time::Instant::now();
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
    };
    bench_merged("merged, without checksums", ChecksumOutput::Partial);
    bench_merged("merged, sums known", ChecksumOutput::Full);
    group.finish();
}

fn linear(criterion: &mut Criterion) {
    let mut segmenter = Segmenter::new(Simd::detect());
    let mut out = vec![0u8; (HEADER + TCP_PAYLOAD) * TRAIN];
    let cases = [
        ("W4", w4(1, Checksum::Partial), gso(GsoKind::Tcp4, TCP_PAYLOAD), HEADER, TCP_PAYLOAD, TRAIN),
        ("W5", w5_super(1, Checksum::Partial), gso(GsoKind::Udp, UDP_PAYLOAD), 42, UDP_PAYLOAD, UDP_TRAIN),
    ];
    for (name, frames, gso, header, size, count) in &cases {
        let frame = &frames[0];
        let packet = GsoPacket::linear(frame, *gso);
        let mut group = criterion.benchmark_group(format!("{name} linear, hot"));
        group.throughput(Throughput::Bytes(((header + size) * count) as u64));
        for (mode, checksum) in [("copy and checksum", ChecksumOutput::Full), ("copy", ChecksumOutput::Partial)] {
            group.bench_function(BenchmarkId::from_parameter(mode), |bencher| {
                bencher.iter(|| segmenter.segment_linear(black_box(&packet), &options(checksum), &mut BackToBack::new(&mut out)));
            });
        }
        group.bench_function("limit: memcpy of the same pieces", |bencher| {
            bencher.iter(|| {
                let (head, payload) = black_box(frame).split_at(*header);
                for (segment, payload) in out.chunks_mut(header + size).zip(payload.chunks(*size)) {
                    segment[..*header].copy_from_slice(head);
                    segment[*header..].copy_from_slice(payload);
                }
                black_box(&mut out);
            });
        });
        group.finish();
    }
}

fn config() -> Criterion {
    Criterion::default()
        .sample_size(30)
        .warm_up_time(std::time::Duration::from_millis(500))
        .measurement_time(std::time::Duration::from_secs(2))
}

criterion_group! { name = benches; config = config(); targets = scatter_gather, linear }
criterion_main!(benches);
