//! A cable between two ports: packets received by one are sent by the other.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use superpacket::aggregate::{Aggregator, HashKey, Policy};
use superpacket::packet::RxPacket;
use superpacket::super_packet::SuperPacket;
use superpacket_port::{
    Buffer, Outgoing, POLL_LIMIT, Port, Receive, StopReason, Transmit, TxBatch,
};

/// A port with its ends.
pub struct End {
    pub port: Box<dyn Port>,
    pub receivers: Vec<Box<dyn Receive>>,
    pub transmitter: Box<dyn Transmit>,
    aggregator: Aggregator<Buffer>,
    packets: Vec<RxPacket<Buffer>>,
}

/// Counters of one direction of a cable.
#[derive(Debug, Default)]
pub struct Passed {
    pub frames: usize,
    /// Number of the frames that were received as super-packets.
    pub super_packets: usize,
    /// Bytes of the frames that were received as super-packets.
    pub super_bytes: usize,
}

impl End {
    pub fn new(mut port: Box<dyn Port>) -> Self {
        let receivers = port.receivers();
        let transmitter = port.transmitter().expect("an end to send through");
        // Nothing merges in between: what is sent is what came.
        let policy = Policy::gro().with_partial_checksums().with_max_packets(1);
        let aggregator = Aggregator::new(policy, HashKey::new(1));
        End { port, receivers, transmitter, aggregator, packets: Vec::new() }
    }

    /// Forwards the packets that have arrived.
    fn pass(&mut self, to: &mut dyn Transmit, max_slices: usize, passed: &mut Passed) -> usize {
        let End { receivers, aggregator, packets, .. } = self;
        for receiver in receivers {
            receiver.poll(packets, POLL_LIMIT).expect("the port lives");
        }
        let count = packets.len();
        for packet in &*packets {
            passed.frames += 1;
            passed.super_packets += usize::from(packet.gso.is_some());
            passed.super_bytes += if packet.gso.is_some() { packet.length() } else { 0 };
        }
        let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
        merge(aggregator, packets, &mut outgoing, &mut batch, max_slices);
        let mut from = 0;
        while from < batch.frames().len() {
            let progress = to.transmit(&outgoing, &batch, from);
            from += progress.sent;
            match progress.stopped {
                None | Some(StopReason::Full) => {}
                Some(stopped) => {
                    panic!("frame {:?} was not sent: {stopped:?}", batch.frames()[from])
                }
            }
        }
        count
    }
}

/// Forwards packets between two ports until `done` returns true.
///
/// # Panics
/// After 60 seconds.
pub fn join(a: &mut End, b: &mut End, mut done: impl FnMut() -> bool) -> [Passed; 2] {
    let mut passed = [Passed::default(), Passed::default()];
    let deadline = Instant::now() + Duration::from_secs(60);
    let (slices_a, slices_b) = (a.port.capabilities().max_slices, b.port.capabilities().max_slices);
    while !done() {
        assert!(Instant::now() < deadline, "stuck after {passed:?}");
        let moved = a.pass(&mut *b.transmitter, slices_b, &mut passed[0])
            + b.pass(&mut *a.transmitter, slices_a, &mut passed[1]);
        if moved == 0 {
            let mut ready: Vec<_> = a
                .receivers
                .iter()
                .chain(&b.receivers)
                .map(|end| PollFd::from_borrowed_fd(end.readiness(), PollFlags::IN))
                .collect();
            poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 5_000_000 })).expect("poll");
        }
    }
    passed
}

/// Waits until the port has something to receive; 5 seconds at most.
pub fn wait(receiver: &dyn Receive) {
    let timeout = Timespec { tv_sec: 5, tv_nsec: 0 };
    let ready =
        poll(&mut [PollFd::from_borrowed_fd(receiver.readiness(), PollFlags::IN)], Some(&timeout));
    assert_eq!(ready, Ok(1), "nothing within 5 seconds");
}

/// Waits for `count` packets, and returns them.
pub fn receive(receiver: &mut dyn Receive, count: usize) -> Vec<RxPacket<Buffer>> {
    let mut packets = Vec::new();
    while packets.len() < count {
        wait(receiver);
        receiver.poll(&mut packets, POLL_LIMIT).expect("the port lives");
    }
    packets
}

/// Puts packets through an aggregator into a batch.
pub fn merge(
    aggregator: &mut Aggregator<Buffer>,
    packets: &mut Vec<RxPacket<Buffer>>,
    outgoing: &mut Outgoing,
    batch: &mut TxBatch,
    max_slices: usize,
) {
    let sink: &mut dyn FnMut(SuperPacket<'_, Buffer>) = &mut |mut packet| {
        outgoing.stage(&packet);
        batch.push_packet(outgoing, &packet, max_slices);
        outgoing.keep(&mut packet);
    };
    aggregator.receive_batch(packets, 0, sink);
    aggregator.poll_end(0, sink);
}
