//! Aggregation of the workloads W1-W3 and W5, and of hostile flows: nanoseconds a frame, with
//! parse, look-up, merge, flush and sink in the time, and with it the making of the received
//! packets from a list of frames. The limits, memcpy and the bare checksum of the same frames, come
//! in the same run; those of W1 are also those of W2, whose frames have the same lengths.
//!
//! Each poll is timed by itself, with some 20 ns for the clock, and the median poll counts: on a
//! machine that is shared with others their interruptions are not ours.
//!
//! *Hot* takes the same frames again and again. *Streaming* goes round more than 400 MB of them, so
//! that each comes from memory; the small frames of the hostile flows have no such case, since
//! headers alone are read of them, as of the acknowledgements of W3.
#![allow(missing_docs, reason = "`criterion_group!` makes a public function without documentation")]

use std::hint::black_box;
use std::ops::Range;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use superpacket::Simd;
use superpacket::aggregate::{Aggregator, HashKey, Policy, Storage};
use superpacket::packet::{RxChecksum, RxPacket};
use superpacket::super_packet::SuperPacket;
use superpacket_traffic::workload::{
    TCP_PAYLOAD, TRAIN, UDP_PAYLOAD, hostile, w1, w2, w2b, w3, w5,
};

/// Frames of a streaming case: 545 MB of the longest.
const STREAM: usize = 360_000;

/// The same of acknowledgements: 416 MB with what the allocator and the list add to 60 bytes.
const STREAM_OF_ACKS: usize = 4_000_000;

/// Frames of a hot W1: one train, a super-packet of 64 KB.
const HOT: usize = TRAIN;

/// The device has verified all checksums.
const VERIFIED: RxChecksum = RxChecksum::Unnecessary { level: 0 };
/// It has not, and the aggregator must.
const UNVERIFIED: RxChecksum = RxChecksum::None;

const LINEAR: Policy = Policy::gro().with_partial_checksums().with_storage(Storage::Linear);

/// Bytes before a TCP payload with timestamps, before a UDP payload, and before the transport
/// header of either.
const TCP_HEADERS: usize = 66;
const UDP_HEADERS: usize = 42;
const TRANSPORT: usize = 34;

/// How the frames are received.
#[derive(Clone, Copy)]
struct Poll {
    policy: Policy,
    checksum: RxChecksum,
    /// Frames a call.
    batch: usize,
    /// Calls until the poll ends and all is flushed; `None`: it never ends.
    calls: Option<usize>,
}

impl Poll {
    /// GRO of 64 frames a call and poll, checksums verified by the device.
    const GRO: Poll = Poll {
        policy: Policy::gro().with_partial_checksums(),
        checksum: VERIFIED,
        batch: 64,
        calls: Some(1),
    };
}

/// Frames without end: the list again and again, in runs of up to `batch`.
struct Round<'a> {
    frames: &'a [Vec<u8>],
    next: usize,
}

impl<'a> Round<'a> {
    fn run(&mut self, batch: usize) -> &'a [Vec<u8>] {
        let frames = self.frames;
        let end = (self.next + batch).min(frames.len());
        let run = &frames[self.next..end];
        self.next = if end == frames.len() { 0 } else { end };
        run
    }
}

/// Times `work`, which takes the frames of a poll and says how many, until it has taken as many as
/// criterion asked for: the unit is the frame.
fn per_frame(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    mut work: impl FnMut() -> usize,
) {
    group.throughput(Throughput::Elements(1));
    group.bench_function(name, |bencher| {
        let mut polls = Vec::new();
        bencher.iter_custom(|wanted| {
            polls.clear();
            let mut taken = 0;
            while taken < wanted {
                let start = Instant::now();
                let frames = work();
                polls.push(start.elapsed().as_secs_f64() / frames as f64);
                taken += frames as u64;
            }
            let middle = polls.len() / 2;
            let (_, median, _) = polls.select_nth_unstable_by(middle, f64::total_cmp);
            Duration::from_secs_f64(*median * wanted as f64)
        });
    });
}

fn aggregate(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, frames: &[Vec<u8>], poll: Poll) {
    let mut aggregator: Aggregator<&[u8]> = Aggregator::new(poll.policy, HashKey::new(42));
    let mut packets = Vec::with_capacity(poll.batch);
    let mut sink = |packet: SuperPacket<'_, &[u8]>| {
        black_box(&packet.metadata);
        black_box((packet.header().as_ptr(), packet.length()));
    };
    let mut round = Round { frames, next: 0 };
    per_frame(group, name, || {
        let mut taken = 0;
        for _ in 0..poll.calls.unwrap_or(1) {
            let run = round.run(poll.batch);
            packets.extend(
                run.iter().map(|frame| RxPacket::new(&frame[..]).with_checksum(poll.checksum)),
            );
            aggregator.receive_batch(&mut packets, 0, &mut sink);
            taken += run.len();
        }
        if poll.calls.is_some() {
            aggregator.poll_end(0, &mut sink);
        }
        taken
    });
    assert!(aggregator.counters().balanced());
}

/// What no aggregation that copies, or verifies, can be faster than: of each frame, the bytes that
/// would be copied, and those that a checksum covers.
fn limits(
    group: &mut BenchmarkGroup<'_, WallTime>,
    of: [&str; 2],
    frames: &[Vec<u8>],
    copied: Range<usize>,
    summed: Range<usize>,
) {
    let [copy, checksum] = of;
    let mut round = Round { frames, next: 0 };
    let mut linear = vec![0u8; copied.len() * TRAIN];
    per_frame(group, copy, || {
        let run = round.run(TRAIN);
        for (frame, to) in run.iter().zip(linear.chunks_exact_mut(copied.len())) {
            to.copy_from_slice(&frame[copied.clone()]);
        }
        black_box(&mut linear);
        run.len()
    });
    let simd = Simd::detect();
    let mut round = Round { frames, next: 0 };
    per_frame(group, checksum, || {
        let run = round.run(TRAIN);
        for frame in run {
            black_box(simd.sum(&frame[summed.clone()]));
        }
        run.len()
    });
}

/// One flow: by all policies.
fn one_flow(group: &mut BenchmarkGroup<'_, WallTime>, frames: &[Vec<u8>]) {
    aggregate(group, "W1 GRO", frames, Poll::GRO);
    aggregate(group, "W1 GRO, verifying", frames, Poll { checksum: UNVERIFIED, ..Poll::GRO });
    aggregate(group, "W1 LRO", frames, Poll { policy: Policy::lro(), ..Poll::GRO });
    aggregate(group, "W1 GRO linear", frames, Poll { policy: LINEAR, ..Poll::GRO });
    aggregate(
        group,
        "W1 GRO linear, verifying",
        frames,
        Poll { policy: LINEAR, checksum: UNVERIFIED, ..Poll::GRO },
    );
    let length = TCP_HEADERS + TCP_PAYLOAD;
    limits(
        group,
        ["limit: memcpy of the payloads", "limit: checksum of the segments"],
        frames,
        TCP_HEADERS..length,
        TRANSPORT..length,
    );
}

/// Many flows, and UDP.
fn many_flows(group: &mut BenchmarkGroup<'_, WallTime>, w2: &[Vec<u8>], w2b: &[Vec<u8>]) {
    aggregate(group, "W2, 64 flows, batch 64", w2, Poll::GRO);
    aggregate(group, "W2, 64 flows, batch 256", w2, Poll { batch: 256, ..Poll::GRO });
    aggregate(group, "W2b, 1024 flows, flushed", w2b, Poll { batch: 256, ..Poll::GRO });
    aggregate(
        group,
        "W2b, 1024 flows, resident",
        w2b,
        Poll { batch: 256, calls: Some(16), ..Poll::GRO },
    );
}

/// Pure acknowledgements. What stands for the payload in their limits is the whole frame; padding
/// is not summed.
fn acknowledgements(group: &mut BenchmarkGroup<'_, WallTime>, frames: &[Vec<u8>]) {
    assert!(frames.iter().all(|frame| frame.len() == 60));
    aggregate(group, "W3 GRO, nothing merges", frames, Poll::GRO);
    aggregate(
        group,
        "W3 LRO, ACKs absorbed",
        frames,
        Poll { policy: Policy::lro_with_acks(), ..Poll::GRO },
    );
    limits(
        group,
        ["W3 limit: memcpy of the frames", "W3 limit: checksum of the segments"],
        frames,
        0..60,
        TRANSPORT..TRANSPORT + 20,
    );
}

fn udp(group: &mut BenchmarkGroup<'_, WallTime>, frames: &[Vec<u8>]) {
    let length = UDP_HEADERS + UDP_PAYLOAD;
    assert!(frames.iter().all(|frame| frame.len() == length));
    let poll = Poll { policy: Policy::gro_with_udp().with_partial_checksums(), ..Poll::GRO };
    aggregate(group, "UDP GRO, 64 datagrams", frames, poll);
    aggregate(
        group,
        "UDP GRO, 64 datagrams, verifying",
        frames,
        Poll { checksum: UNVERIFIED, ..poll },
    );
    limits(
        group,
        ["UDP limit: memcpy of the payloads", "UDP limit: checksum of the datagrams"],
        frames,
        UDP_HEADERS..length,
        TRANSPORT..length,
    );
}

fn hot(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("hot");
    one_flow(&mut group, &w1(HOT));
    many_flows(&mut group, &w2(64, 64 * TRAIN), &w2b(4_096));
    acknowledgements(&mut group, &w3(64));
    // Never flushed: each packet finds the table full, evicts a flow, and takes its place.
    aggregate(
        &mut group,
        "4,000 hostile flows",
        &hostile(4_000, 4_000),
        Poll { batch: 250, calls: None, ..Poll::GRO },
    );
    udp(&mut group, &w5(64));
    group.finish();
}

fn streaming(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("streaming");
    one_flow(&mut group, &w1(STREAM));
    // The frames of both lie in memory together.
    many_flows(&mut group, &w2(64, STREAM), &w2b(STREAM));
    acknowledgements(&mut group, &w3(STREAM_OF_ACKS));
    udp(&mut group, &w5(STREAM));
    group.finish();
}

fn config() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1_000))
}

criterion_group! { name = benches; config = config(); targets = hot, streaming }
criterion_main!(benches);
