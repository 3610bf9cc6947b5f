//! The rows: the engine's workloads, and the lower limits for any engine.

use std::hint::black_box;
use std::ops::Range;

use superpacket::aggregate::{Policy, Storage};
use superpacket::packet::RxChecksum;
use superpacket_traffic::frame::Checksum;
use superpacket_traffic::workload::{
    TCP_PAYLOAD, TRAIN, UDP_PAYLOAD, hostile, w1, w2, w2b, w3, w4, w5, w5_super,
};

use crate::engine::{
    Cut, Cutter, InPlace, Joiner, Receive, Summer, Sums, ThreadlessBridge, Watcher, Writer,
};

/// Bytes before a TCP payload with timestamps, before a UDP payload, and before the transport
/// header.
const TCP_HEADERS: usize = 66;
const UDP_HEADERS: usize = 42;
const TRANSPORT: usize = 34;

/// Bytes of a cache line.
const LINE: usize = 64;

const LINEAR: Policy = Policy::gro().with_partial_checksums().with_storage(Storage::Linear);

/// A measured operation: a row of the results.
pub struct Row<'a> {
    pub name: &'static str,
    /// Number of frames, or segments, until the first one is used again.
    pub units: usize,
    /// Does the work once, and returns the number of frames or segments.
    pub poll: Box<dyn FnMut() -> usize + 'a>,
}

impl<'a> Row<'a> {
    fn new(name: &'static str, units: usize, poll: impl FnMut() -> usize + 'a) -> Self {
        Row { name, units, poll: Box::new(poll) }
    }
}

/// A sequence of frames, with as many copies of it in memory as needed.
struct Workload {
    frames: Vec<Vec<u8>>,
    /// Number of frames in one copy of the sequence.
    once: usize,
}

impl Workload {
    /// Creates copies of the frames until they have at least this number of bytes.
    fn new(frames: Vec<Vec<u8>>, bytes: usize) -> Self {
        let (once, length) = (frames.len(), frames.iter().map(Vec::len).sum());
        let copies = bytes.div_ceil(length).max(1);
        Workload { frames: frames.iter().cycle().take(copies * once).cloned().collect(), once }
    }
}

/// The frames of all rows.
pub struct Frames {
    w1: Workload,
    pushed: Workload,
    four_flows: Workload,
    sixteen_flows: Workload,
    w2: Workload,
    one_of_each: Workload,
    w2b: Workload,
    w3: Workload,
    hostile: Workload,
    datagrams: Workload,
    w4: Workload,
    w5: Workload,
}

impl Frames {
    /// Creates workloads of at least this number of bytes each; with 0, one copy of each.
    pub fn new(bytes: usize) -> Self {
        let workload = |frames| Workload::new(frames, bytes);
        let pushed = |(index, frame)| if index % 5 == 4 { with_push(frame) } else { frame };
        Frames {
            w1: workload(w1(TRAIN)),
            pushed: workload(w1(TRAIN).into_iter().enumerate().map(pushed).collect()),
            four_flows: workload(w2(4, 4 * TRAIN)),
            sixteen_flows: workload(w2(16, 16 * TRAIN)),
            w2: workload(w2(64, 64 * TRAIN)),
            one_of_each: workload(w2(64, 64)),
            w2b: workload(w2b(4_096)),
            w3: workload(w3(64)),
            hostile: workload(hostile(4_000, 4_000)),
            datagrams: workload(w5(64)),
            w4: workload(w4(1, Checksum::Partial)),
            w5: workload(w5_super(1, Checksum::Partial)),
        }
    }
}

/// Adds PSH to a TCP frame, and corrects the checksum for it.
fn with_push(mut frame: Vec<u8>) -> Vec<u8> {
    let (flags, checksum) = (TRANSPORT + 13, TRANSPORT + 16);
    if frame[flags] & 8 == 0 {
        frame[flags] |= 8;
        let (less, borrow) =
            u16::from_be_bytes([frame[checksum], frame[checksum + 1]]).overflowing_sub(8);
        frame[checksum..checksum + 2].copy_from_slice(&(less - u16::from(borrow)).to_be_bytes());
    }
    frame
}

/// The way in which a row receives its frames.
#[derive(Clone, Copy)]
struct Poll {
    receive: Receive,
    /// Frames per call.
    batch: usize,
    /// Calls per poll, after which all packets are flushed; `None` if polls do not end.
    calls: Option<usize>,
}

impl Poll {
    /// Returns up to 64 frames per call and one call per poll, with checksums verified by the
    /// device.
    const fn of(policy: Policy) -> Self {
        Poll {
            receive: Receive { policy, checksum: RxChecksum::Unnecessary { level: 0 } },
            batch: 64,
            calls: Some(1),
        }
    }

    /// Returns the same with unverified checksums, so that the engine must verify them.
    const fn unverified(policy: Policy) -> Self {
        let mut poll = Poll::of(policy);
        poll.receive.checksum = RxChecksum::None;
        poll
    }
}

/// An endless repetition of a workload, in runs of at most a batch within one copy.
struct Round<'a> {
    workload: &'a Workload,
    next: usize,
}

impl<'a> Round<'a> {
    fn new(workload: &'a Workload) -> Self {
        Round { workload, next: 0 }
    }

    fn run(&mut self, batch: usize) -> &'a [Vec<u8>] {
        let Workload { frames, once } = self.workload;
        let end = (self.next + batch).min(self.next - self.next % once + once);
        let run = &frames[self.next..end];
        self.next = if end == frames.len() { 0 } else { end };
        run
    }
}

fn join<'a>(name: &'static str, workload: &'a Workload, poll: Poll) -> Row<'a> {
    let mut joiner = Joiner::new(poll.receive);
    let mut round = Round::new(workload);
    Row::new(name, workload.frames.len(), move || {
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

/// As `join`, with a sink that lists all ranges.
fn list<'a>(name: &'static str, workload: &'a Workload, poll: Poll) -> Row<'a> {
    let mut joiner = Joiner::new(poll.receive);
    let mut round = Round::new(workload);
    Row::new(name, workload.frames.len(), move || {
        let run = round.run(poll.batch);
        joiner.list(run);
        run.len()
    })
}

/// Joins frames for `writev`, up to 64 per call.
fn write<'a>(name: &'static str, workload: &'a Workload, policy: Policy) -> Row<'a> {
    let (mut writer, mut round) = (Writer::new(policy), Round::new(workload));
    Row::new(name, workload.frames.len(), move || {
        let run = round.run(64);
        writer.write(run);
        run.len()
    })
}

/// Joins frames in their own buffers, up to 64 per call. There is one buffer per frame of the
/// workload, without copies, so these rows never read from memory.
fn in_place<'a>(name: &'static str, workload: &'a Workload, policy: Policy) -> Row<'a> {
    let frames = &workload.frames[..workload.once];
    let mut in_place = InPlace::new(policy, frames);
    let mut next = 0;
    Row::new(name, frames.len(), move || {
        let batch = next..(next + 64).min(frames.len());
        next = if batch.end == frames.len() { 0 } else { batch.end };
        in_place.take(batch.clone());
        batch.len()
    })
}

/// Measures the search for gaps where there are none.
fn watch<'a>(name: &'static str, workload: &'a Workload, batch: usize) -> Row<'a> {
    let mut watcher = Watcher::new();
    let mut round = Round::new(workload);
    Row::new(name, workload.frames.len(), move || {
        let run = round.run(batch);
        watcher.take(run);
        run.len()
    })
}

/// Measures the lower limit for any aggregation that copies.
fn copy_limit<'a>(name: &'static str, workload: &'a Workload, copied: Range<usize>) -> Row<'a> {
    let mut out = vec![0; copied.len() * TRAIN];
    let mut round = Round::new(workload);
    Row::new(name, workload.frames.len(), move || {
        let run = round.run(TRAIN);
        for (frame, place) in run.iter().zip(out.chunks_exact_mut(copied.len())) {
            place.copy_from_slice(&frame[copied.clone()]);
        }
        black_box(&mut out);
        run.len()
    })
}

/// Measures the lower limit for any aggregation that verifies checksums.
fn sum_limit<'a>(name: &'static str, workload: &'a Workload, summed: Range<usize>) -> Row<'a> {
    let summer = Summer::new();
    let mut round = Round::new(workload);
    Row::new(name, workload.frames.len(), move || {
        let run = round.run(TRAIN);
        for frame in run {
            black_box(summer.sum(&frame[summed.clone()]));
        }
        run.len()
    })
}

/// Returns the number of segments of all super-packets of a workload, which are all alike.
fn segments(workload: &Workload, cutter: &mut Cutter) -> usize {
    workload.frames.len() * cutter.gather(&workload.frames[0])
}

fn gather<'a>(name: &'static str, workload: &'a Workload, cut: Cut, sums: Sums) -> Row<'a> {
    let mut cutter = Cutter::new(cut, sums);
    let mut round = Round::new(workload);
    Row::new(name, segments(workload, &mut cutter), move || {
        round.run(1).iter().map(|frame| cutter.gather(black_box(frame))).sum()
    })
}

fn copy<'a>(name: &'static str, workload: &'a Workload, cut: Cut, sums: Sums) -> Row<'a> {
    let mut cutter = Cutter::new(cut, sums);
    let mut out = vec![0; workload.frames[0].len() + 64 * TCP_HEADERS + LINE];
    // The start of an aligned copy depends on the address, and the instructions would too.
    let start = out.as_ptr().align_offset(LINE);
    let mut round = Round::new(workload);
    Row::new(name, segments(workload, &mut cutter), move || {
        round
            .run(1)
            .iter()
            .map(|frame| cutter.copy(black_box(frame), black_box(&mut out[start..])))
            .sum()
    })
}

fn forward<'a>(name: &'static str, workload: &'a Workload, policy: Policy) -> Row<'a> {
    let mut forwarder = ThreadlessBridge::new(policy);
    let mut round = Round::new(workload);
    Row::new(name, workload.frames.len(), move || {
        let run = round.run(TRAIN);
        forwarder.take(run);
        run.len()
    })
}

/// Returns all rows whose name contains `only`, in the order of docs/measured.md.
pub fn rows<'a>(frames: &'a Frames, only: &str) -> Vec<Row<'a>> {
    let gro = Policy::gro().with_partial_checksums();
    let udp = Policy::gro_with_udp().with_partial_checksums();
    let trusted = gro.with_trusted_input();
    let (tcp_end, udp_end) = (TCP_HEADERS + TCP_PAYLOAD, UDP_HEADERS + UDP_PAYLOAD);
    let (tcp_cut, udp_cut) = (Cut::Tcp4(TCP_PAYLOAD), Cut::Udp(UDP_PAYLOAD));
    let mut rows = vec![
        copy_limit("limit: memcpy of 1448 bytes", &frames.w1, TCP_HEADERS..tcp_end),
        sum_limit("limit: checksum of 1480 bytes", &frames.w1, TRANSPORT..tcp_end),
        join("W1 GRO", &frames.w1, Poll::of(gro)),
        list("W1 GRO, ranges listed", &frames.w1, Poll::of(gro)),
        join("W1 GRO, verifying", &frames.w1, Poll::unverified(gro)),
        join("W1 GRO linear", &frames.w1, Poll::of(LINEAR)),
        join("W1 GRO linear, verifying", &frames.w1, Poll::unverified(LINEAR)),
        join("W1 LRO", &frames.w1, Poll::of(Policy::lro())),
        forward("W1 GRO, cut again with known sums", &frames.w1, gro),
        join("PSH on each 5th, GRO", &frames.pushed, Poll::of(gro)),
        watch("W1, no gaps to hold open", &frames.w1, 64),
        watch("W2, 64 flows, no gaps to hold open", &frames.w2, 64),
        join("4 flows interleaved", &frames.four_flows, Poll::of(gro)),
        join("16 flows interleaved", &frames.sixteen_flows, Poll::of(gro)),
        join("W2, 64 flows, batch 64", &frames.w2, Poll::of(gro)),
        join("W2, 64 flows, batch 64, sums not known", &frames.w2, Poll::unverified(gro)),
        join("W2, 64 flows, batch 256", &frames.w2, Poll { batch: 256, ..Poll::of(gro) }),
        join("W2b, 1024 flows, flushed", &frames.w2b, Poll { batch: 256, ..Poll::of(gro) }),
        join(
            "W2b, 1024 flows, resident",
            &frames.w2b,
            Poll { batch: 256, calls: Some(16), ..Poll::of(gro) },
        ),
        join("W3 GRO, nothing merges", &frames.w3, Poll::of(gro)),
        list("W3 GRO, ranges listed", &frames.w3, Poll::of(gro)),
        join("W3 LRO, ACKs absorbed", &frames.w3, Poll::of(Policy::lro_with_acks())),
        join(
            "4,000 hostile flows",
            &frames.hostile,
            Poll { batch: 250, calls: None, ..Poll::of(gro) },
        ),
        join("UDP GRO", &frames.datagrams, Poll::of(udp)),
        join("UDP GRO, verifying", &frames.datagrams, Poll::unverified(udp)),
        write("W1 for writev", &frames.w1, trusted),
        in_place("W1 in place", &frames.w1, trusted),
        in_place("W1 in place, verifying", &frames.w1, gro),
        in_place("16 flows interleaved, in place", &frames.sixteen_flows, trusted),
        in_place("64 flows of one packet, in place, sums not known", &frames.one_of_each, gro),
        in_place("W3 in place, nothing merges", &frames.w3, trusted),
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
