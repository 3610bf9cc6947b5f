//! Steering: nanoseconds per hash, and per choice of a CPU.
//!
//! The limit beside each hash is the same number of look-ups in a table of the same size at full
//! speed: one per hashed byte.
#![allow(missing_docs, reason = "`criterion_group!` makes a public function without documentation")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use superpacket::packet::{FlowHash, RxPacket};
use superpacket_steer::{
    CompletionCounts, Cpu, CpuMask, FlowHashKey, FlowHasher, FlowTuple, Rps, SockFlowTable,
    Steering, SteeringTarget, Toeplitz, ToeplitzKey,
};
use superpacket_traffic::frame::Frame;
use superpacket_traffic::random::Random;

/// Number of distinct flows; their tuples fit the first-level cache.
const FLOWS: usize = 256;

/// Measures `work` on the items repeatedly, in time per item.
fn per_item<T>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    items: &[T],
    mut work: impl FnMut(&T) -> u32,
) {
    group.throughput(Throughput::Elements(1));
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|wanted| {
            let rounds = wanted.div_ceil(items.len() as u64);
            let start = Instant::now();
            for _ in 0..rounds {
                // The hashes are consumed in order, so that one may begin before the previous one
                // is finished, as in a poll.
                black_box(
                    black_box(items).iter().fold(0, |sum: u32, item| sum.wrapping_add(work(item))),
                );
            }
            Duration::from_secs_f64(
                start.elapsed().as_secs_f64() * wanted as f64
                    / (rounds * items.len() as u64) as f64,
            )
        });
    });
}

fn bytes<const N: usize>(random: &mut Random) -> [u8; N] {
    random.bytes(N).try_into().expect("as many as asked for")
}

fn port(random: &mut Random) -> u16 {
    u16::from_be_bytes(bytes(random))
}

fn hashes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("hash");
    let mut random = Random::new(1);
    let toeplitz = Toeplitz::new(&ToeplitzKey::MICROSOFT);
    let symmetric = Toeplitz::new(&ToeplitzKey::MICROSOFT).symmetric();
    let keyed = FlowHasher::keyed(FlowHashKey::new(42));
    let v4: Vec<_> = (0..FLOWS)
        .map(|_| {
            FlowTuple::v4(
                bytes(&mut random),
                bytes(&mut random),
                Some([port(&mut random), port(&mut random)]),
            )
        })
        .collect();
    let v6: Vec<_> = (0..FLOWS)
        .map(|_| {
            FlowTuple::v6(
                bytes(&mut random),
                bytes(&mut random),
                Some([port(&mut random), port(&mut random)]),
            )
        })
        .collect();

    // The minimum work of any table-based implementation.
    let tables: Vec<[u32; 256]> =
        (0..36).map(|_| std::array::from_fn(|_| u32::from_be_bytes(bytes(&mut random)))).collect();
    let tables: [[u32; 256]; 36] = tables.try_into().expect("36 of them");
    let short: Vec<[u8; 12]> = (0..FLOWS).map(|_| bytes(&mut random)).collect();
    let long: Vec<[u8; 36]> = (0..FLOWS).map(|_| bytes(&mut random)).collect();
    let looked_up = |input: &[u8]| {
        input.iter().zip(&tables).fold(0, |sum, (byte, table)| sum ^ table[usize::from(*byte)])
    };
    per_item(&mut group, "limit: 12 look-ups", &short, |input| looked_up(input));
    per_item(&mut group, "limit: 36 look-ups", &long, |input| looked_up(input));

    per_item(&mut group, "Toeplitz, IPv4 addresses and ports", &v4, |tuple| {
        toeplitz.hash_flow(tuple).0
    });
    per_item(&mut group, "Toeplitz, IPv6 addresses and ports", &v6, |tuple| {
        toeplitz.hash_flow(tuple).0
    });
    per_item(&mut group, "Toeplitz, symmetric, IPv4", &v4, |tuple| symmetric.hash_flow(tuple).0);
    per_item(&mut group, "Toeplitz, symmetric, IPv6", &v6, |tuple| symmetric.hash_flow(tuple).0);
    per_item(&mut group, "keyed, IPv4", &v4, |tuple| keyed.hash_flow(tuple).0);
    per_item(&mut group, "keyed, IPv6", &v6, |tuple| keyed.hash_flow(tuple).0);
    group.finish();
}

fn flow(index: usize) -> Frame {
    Frame::tcp4(1, 1).with_tcp(|tcp| tcp.source_port = 1024 + index as u16)
}

/// Returns the frames as received packets, with or without the device's hash.
fn packets(frames: &[Vec<u8>], reported: bool) -> Vec<RxPacket<&[u8]>> {
    let toeplitz = Toeplitz::default();
    let received = frames.iter().map(|frame| {
        let mut packet = RxPacket::new(&**frame);
        packet.hash = toeplitz.hash_frame(frame, frame.len(), packet.layer).filter(|_| reported);
        packet
    });
    received.collect()
}

fn choices(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("choice");
    let mask = CpuMask::first_cpus(16);
    let frames: Vec<Vec<u8>> = (0..FLOWS).map(|index| flow(index).to_bytes()).collect();
    let (with_hash, without) = (packets(&frames, true), packets(&frames, false));

    let rps = Rps::new(&mask);
    let mut random = Random::new(2);
    let numbers: Vec<FlowHash> =
        (0..FLOWS).map(|_| FlowHash(u32::from_be_bytes(bytes(&mut random)))).collect();
    per_item(&mut group, "mask of 16 CPUs, hash given", &numbers, |&hash| {
        rps.cpu(hash).map_or(0, |cpu| cpu.number() as u32)
    });

    let sock_flows = Arc::new(SockFlowTable::new(4096, 16).expect("small").expect("on"));
    for (index, packet) in with_hash.iter().enumerate() {
        sock_flows
            .record(packet.hash.expect("computed"), Cpu::new(index % 16).expect("below 8192"));
    }
    for (name, packets, rfs) in [
        ("steering, hash of the device", &with_hash, false),
        ("steering, hash of the device, RFS", &with_hash, true),
        ("steering, headers parsed and hashed", &without, false),
    ] {
        let mut steering = Steering::new(FlowHasher::keyed(FlowHashKey::new(42)));
        steering.set_mask(&mask);
        if rfs {
            steering.set_sock_flows(Some(sock_flows.clone()));
            steering.set_flow_count(4096).expect("small");
        }
        // No packet is ever completed, so every packet takes the common path: its bucket stays.
        let completions = CompletionCounts::default();
        per_item(&mut group, name, packets, |packet| match steering.choose(packet, &completions) {
            Some(choice) => {
                let place = choice.place();
                choice.enqueued();
                match place {
                    SteeringTarget::Cpu(cpu) => cpu.number() as u32,
                    SteeringTarget::Here => u32::MAX,
                }
            }
            None => 0,
        });
        assert_eq!(steering.counters().here, 0, "{name}: all are steered");
    }
    group.finish();
}

/// Returns settings for short runs: only the first-level cache needs a warm-up.
fn settings() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .sample_size(30)
}

criterion_group! { name = benches; config = settings(); targets = hashes, choices }
criterion_main!(benches);
