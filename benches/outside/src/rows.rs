//! The rows: the engine's workloads, and beside them what no engine can be faster than.

use std::hint::black_box;
use std::ops::Range;

use superpacket::aggregate::{Policy, Storage};
use superpacket::packet::RxChecksum;
use superpacket_traffic::frame::Checksum;
use superpacket_traffic::workload::{TCP_PAYLOAD, TRAIN, UDP_PAYLOAD, hostile, w1, w2, w2b, w3, w4, w5, w5_super};

use crate::engine::{Cut, Cutter, Forwarder, Joiner, Receive, Summer, Sums, Watcher};

/// Bytes before a TCP payload with timestamps, before a UDP payload, and before the transport
/// header of either.
const TCP_HEADERS: usize = 66;
const UDP_HEADERS: usize = 42;
const TRANSPORT: usize = 34;

/// Bytes of a cache line.
const LINE: usize = 64;

const LINEAR: Policy = Policy::gro().with_partial_checksums().with_storage(Storage::Linear);

/// Something to measure.
pub struct Row<'a> {
    pub name: &'static str,
    /// Does it once, and says with how many frames or segments.
    pub poll: Box<dyn FnMut() -> usize + 'a>,
}

impl<'a> Row<'a> {
    fn new(name: &'static str, poll: impl FnMut() -> usize + 'a) -> Self {
        Row { name, poll: Box::new(poll) }
    }
}

/// The frames of all rows.
pub struct Frames {
    w1: Vec<Vec<u8>>,
    pushed: Vec<Vec<u8>>,
    four_flows: Vec<Vec<u8>>,
    sixteen_flows: Vec<Vec<u8>>,
    w2: Vec<Vec<u8>>,
    w2b: Vec<Vec<u8>>,
    w3: Vec<Vec<u8>>,
    hostile: Vec<Vec<u8>>,
    datagrams: Vec<Vec<u8>>,
    w4: Vec<u8>,
    w5: Vec<u8>,
}

impl Frames {
    pub fn new() -> Self {
        let only = |frames: Vec<Vec<u8>>| frames.into_iter().next().expect("one was asked for");
        Frames {
            w1: w1(TRAIN),
            pushed: w1(TRAIN).into_iter().enumerate().map(|(index, frame)| if index % 5 == 4 { with_push(frame) } else { frame }).collect(),
            four_flows: w2(4, 4 * TRAIN),
            sixteen_flows: w2(16, 16 * TRAIN),
            w2: w2(64, 64 * TRAIN),
            w2b: w2b(4_096),
            w3: w3(64),
            hostile: hostile(4_000, 4_000),
            datagrams: w5(64),
            w4: only(w4(1, Checksum::Partial)),
            w5: only(w5_super(1, Checksum::Partial)),
        }
    }
}

/// A TCP frame with PSH, which counts 8 in its checksum.
fn with_push(mut frame: Vec<u8>) -> Vec<u8> {
    let (flags, checksum) = (TRANSPORT + 13, TRANSPORT + 16);
    if frame[flags] & 8 == 0 {
        frame[flags] |= 8;
        let (less, borrow) = u16::from_be_bytes([frame[checksum], frame[checksum + 1]]).overflowing_sub(8);
        frame[checksum..checksum + 2].copy_from_slice(&(less - u16::from(borrow)).to_be_bytes());
    }
    frame
}

/// How a row receives its frames.
#[derive(Clone, Copy)]
struct Poll {
    receive: Receive,
    /// Frames a call.
    batch: usize,
    /// Calls until the poll ends and all is flushed; `None`: it never ends.
    calls: Option<usize>,
}

impl Poll {
    /// Up to 64 frames a call, one call a poll, checksums verified by the device.
    const fn of(policy: Policy) -> Self {
        Poll { receive: Receive { policy, checksum: RxChecksum::Unnecessary { level: 0 } }, batch: 64, calls: Some(1) }
    }

    /// Nobody has verified the checksums, and the engine must.
    const fn unverified(policy: Policy) -> Self {
        let mut poll = Poll::of(policy);
        poll.receive.checksum = RxChecksum::None;
        poll
    }
}

/// Frames without end: the list again and again, in runs of up to a batch.
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

fn join<'a>(name: &'static str, frames: &'a [Vec<u8>], poll: Poll) -> Row<'a> {
    let mut joiner = Joiner::new(poll.receive);
    let mut round = Round { frames, next: 0 };
    Row::new(name, move || {
        let mut taken = 0;
        for _ in 0..poll.calls.unwrap_or(1) {
            let run = round.run(poll.batch);
            joiner.take(run);
            taken += run.len();
        }
        if poll.calls.is_some() {
            joiner.end();
        }
        debug_assert!(joiner.balances());
        taken
    })
}

/// What it costs to look for gaps where there are none.
fn watch<'a>(name: &'static str, frames: &'a [Vec<u8>], batch: usize) -> Row<'a> {
    let mut watcher = Watcher::new();
    let mut round = Round { frames, next: 0 };
    Row::new(name, move || {
        let run = round.run(batch);
        watcher.take(run);
        run.len()
    })
}

/// What no aggregation that copies can be faster than.
fn copy_limit<'a>(name: &'static str, frames: &'a [Vec<u8>], copied: Range<usize>) -> Row<'a> {
    let mut out = vec![0; copied.len() * frames.len()];
    Row::new(name, move || {
        for (frame, place) in frames.iter().zip(out.chunks_exact_mut(copied.len())) {
            place.copy_from_slice(&frame[copied.clone()]);
        }
        black_box(&mut out);
        frames.len()
    })
}

/// What none that verifies checksums can be faster than.
fn sum_limit<'a>(name: &'static str, frames: &'a [Vec<u8>], summed: Range<usize>) -> Row<'a> {
    let summer = Summer::new();
    Row::new(name, move || {
        for frame in frames {
            black_box(summer.sum(&frame[summed.clone()]));
        }
        frames.len()
    })
}

fn gather<'a>(name: &'static str, frame: &'a Vec<u8>, cut: Cut, sums: Sums) -> Row<'a> {
    let mut cutter = Cutter::new(cut, sums);
    Row::new(name, move || cutter.gather(black_box(frame)))
}

fn copy<'a>(name: &'static str, frame: &'a Vec<u8>, cut: Cut, sums: Sums) -> Row<'a> {
    let mut cutter = Cutter::new(cut, sums);
    let mut out = vec![0; frame.len() + 64 * TCP_HEADERS + LINE];
    // Where an aligned copy begins depends on the address, and so would the instructions.
    let start = out.as_ptr().align_offset(LINE);
    Row::new(name, move || cutter.copy(black_box(frame), black_box(&mut out[start..])))
}

fn forward<'a>(name: &'static str, frames: &'a [Vec<u8>], policy: Policy) -> Row<'a> {
    let mut forwarder = Forwarder::new(policy);
    Row::new(name, move || {
        forwarder.take(frames);
        frames.len()
    })
}

/// All rows whose name contains `only`, in the order of docs/performance.md.
pub fn rows<'a>(frames: &'a Frames, only: &str) -> Vec<Row<'a>> {
    let gro = Policy::gro().with_partial_checksums();
    let udp = Policy::gro_with_udp().with_partial_checksums();
    let (tcp_end, udp_end) = (TCP_HEADERS + TCP_PAYLOAD, UDP_HEADERS + UDP_PAYLOAD);
    let (tcp_cut, udp_cut) = (Cut::Tcp4(TCP_PAYLOAD), Cut::Udp(UDP_PAYLOAD));
    let mut rows = vec![
        copy_limit("limit: memcpy of 1448 bytes", &frames.w1, TCP_HEADERS..tcp_end),
        sum_limit("limit: checksum of 1480 bytes", &frames.w1, TRANSPORT..tcp_end),
        join("W1 GRO", &frames.w1, Poll::of(gro)),
        join("W1 GRO, verifying", &frames.w1, Poll::unverified(gro)),
        join("W1 GRO linear", &frames.w1, Poll::of(LINEAR)),
        join("W1 GRO linear, verifying", &frames.w1, Poll::unverified(LINEAR)),
        join("W1 LRO", &frames.w1, Poll::of(Policy::lro())),
        forward("W1 GRO, cut again with known sums", &frames.w1, gro),
        join("PSH on each 5th, GRO", &frames.pushed, Poll::of(gro)),
        join("PSH on each 5th, uneven", &frames.pushed, Poll::of(gro.with_merge_uneven())),
        forward("PSH on each 5th, uneven, cut again", &frames.pushed, gro.with_merge_uneven()),
        watch("W1, no gaps to hold open", &frames.w1, 64),
        watch("W2, 64 flows, no gaps to hold open", &frames.w2, 64),
        join("4 flows interleaved", &frames.four_flows, Poll::of(gro)),
        join("16 flows interleaved", &frames.sixteen_flows, Poll::of(gro)),
        join("W2, 64 flows, batch 64", &frames.w2, Poll::of(gro)),
        join("W2, 64 flows, batch 256", &frames.w2, Poll { batch: 256, ..Poll::of(gro) }),
        join("W2b, 1024 flows, flushed", &frames.w2b, Poll { batch: 256, ..Poll::of(gro) }),
        join("W2b, 1024 flows, resident", &frames.w2b, Poll { batch: 256, calls: Some(16), ..Poll::of(gro) }),
        join("W3 GRO, nothing merges", &frames.w3, Poll::of(gro)),
        join("W3 LRO, ACKs absorbed", &frames.w3, Poll::of(Policy::lro_with_acks())),
        join("4,000 hostile flows", &frames.hostile, Poll { batch: 250, calls: None, ..Poll::of(gro) }),
        join("UDP GRO", &frames.datagrams, Poll::of(udp)),
        join("UDP GRO, verifying", &frames.datagrams, Poll::unverified(udp)),
        gather("W4 scatter/gather, no checksums", &frames.w4, tcp_cut, Sums::Device),
        gather("W4 scatter/gather, summed", &frames.w4, tcp_cut, Sums::Whole),
        copy("W4 copied and summed", &frames.w4, tcp_cut, Sums::Whole),
        copy_limit("limit: memcpy of 1472 bytes", &frames.datagrams, UDP_HEADERS..udp_end),
        gather("W5 scatter/gather, no checksums", &frames.w5, udp_cut, Sums::Device),
        copy("W5 copied and summed", &frames.w5, udp_cut, Sums::Whole),
    ];
    rows.retain(|row| row.name.contains(only));
    rows
}
