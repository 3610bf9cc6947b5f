//! memcpy, sum and copy-and-sum, hot and streaming, at every level of this processor.
//!
//! memcpy stands beside each figure as the limit of the machine.
#![allow(missing_docs, reason = "`criterion_group!` makes a public function without documentation")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use superpacket_simd::Simd;

/// Lengths in bytes to measure: a frame with a pure ACK or a tunnel header, TCP payloads at an MTU
/// of 1500, a jumbo frame, a super-packet.
const SIZES: [usize; 6] = [64, 1448, 1480, 2048, 9000, 65_536];

/// Number of frames in the streaming case: 256 MiB in slots of 2 KiB, many times the cache of any
/// processor.
const FRAMES: usize = 1 << 17;
const SLOT: usize = 2048;
const PAGE: usize = 4096;
/// Number of frames per call in the streaming case.
const BATCH: usize = 64;

fn hot(criterion: &mut Criterion) {
    for size in SIZES {
        // Alignment as of a received IP header and a sent TCP payload in aligned frames. Source and
        // destination are half a page apart, because a load whose low 12 address bits match a
        // pending store must wait for it.
        let mut memory = vec![0x5a_u8; 2 * size + 3 * PAGE];
        let start = memory.as_ptr().align_offset(PAGE);
        let (source, destination) =
            memory[start..].split_at_mut((size + 14).next_multiple_of(PAGE));
        let source = &source[14..][..size];
        let destination = &mut destination[PAGE / 2 + 66..][..size];
        let mut group = criterion.benchmark_group(format!("hot/{size}"));
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function("memcpy", |bencher| {
            bencher.iter(|| black_box(&mut *destination).copy_from_slice(black_box(source)));
        });
        for simd in Simd::available() {
            group.bench_function(BenchmarkId::new("sum", simd.name()), |bencher| {
                bencher.iter(|| simd.sum(black_box(source)));
            });
        }
        for simd in Simd::available() {
            group.bench_function(BenchmarkId::new("copy_and_sum", simd.name()), |bencher| {
                bencher.iter(|| simd.copy_and_sum(black_box(source), black_box(&mut *destination)));
            });
        }
        group.finish();
    }
}

fn short(criterion: &mut Criterion) {
    let header = [0x5a_u8; 40];
    let mut group = criterion.benchmark_group("short");
    for size in [20, 40] {
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::new("sum", size), |bencher| {
            let simd = Simd::detect();
            bencher.iter(|| simd.sum(black_box(&header[..size])));
        });
    }
    group.finish();
}

/// Measures frames that were last touched 256 MiB of data ago.
fn streaming(criterion: &mut Criterion) {
    const SIZE: usize = 1480;
    let memory: Vec<u8> = (0..FRAMES * SLOT).map(|index| index as u8).collect();
    let mut segments = vec![0_u8; BATCH * SLOT];
    let mut next = 0;
    let mut batch = move || {
        let first = next;
        next = (next + BATCH) % FRAMES;
        first
    };
    let frame = |index: usize| &memory[index * SLOT + 14..][..SIZE];

    let mut group = criterion.benchmark_group(format!("streaming/{BATCH}x{SIZE}"));
    group.throughput(Throughput::Bytes((BATCH * SIZE) as u64));
    group.bench_function("memcpy", |bencher| {
        bencher.iter(|| {
            let first = batch();
            for (index, segment) in segments.chunks_exact_mut(SLOT).enumerate() {
                segment[66..][..SIZE].copy_from_slice(frame(first + index));
            }
        });
    });
    for simd in Simd::available() {
        group.bench_function(BenchmarkId::new("sum", simd.name()), |bencher| {
            bencher.iter(|| {
                let first = batch();
                (0..BATCH).fold(0_u64, |sum, index| sum + u64::from(simd.sum(frame(first + index))))
            });
        });
        group.bench_function(BenchmarkId::new("sum_batch", simd.name()), |bencher| {
            let mut sums = [0; BATCH];
            bencher.iter(|| {
                let first = batch();
                let ranges: [&[u8]; BATCH] = std::array::from_fn(|index| frame(first + index));
                simd.sum_batch(&ranges, &mut sums);
                black_box(&sums);
            });
        });
        group.bench_function(BenchmarkId::new("copy_and_sum", simd.name()), |bencher| {
            bencher.iter(|| {
                let first = batch();
                for (index, segment) in segments.chunks_exact_mut(SLOT).enumerate() {
                    black_box(simd.copy_and_sum(frame(first + index), &mut segment[66..][..SIZE]));
                }
            });
        });
    }
    group.finish();
}

fn configuration() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(1))
        .without_plots()
}

criterion_group! {
    name = benches;
    config = configuration();
    targets = hot, short, streaming
}
criterion_main!(benches);
