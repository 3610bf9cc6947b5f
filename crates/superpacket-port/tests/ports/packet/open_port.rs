//! An open port with one sending end, and what tests do with this port.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use superpacket::aggregate::{Aggregator, HashKey, Policy};
use superpacket::packet::{Layer, RxChecksum, RxPacket};
use superpacket::segment::Gso;
use superpacket_port::{
    Buffer, Outgoing, POLL_LIMIT, Port, Progress, Receive, Transmit, TxBatch, open,
};

use crate::cable::merge;
use crate::frames;

pub struct OpenPort {
    pub port: Box<dyn Port>,
    pub receivers: Vec<Box<dyn Receive>>,
    pub transmitter: Box<dyn Transmit>,
}

impl OpenPort {
    pub fn new(spec: &str) -> Self {
        let mut port = open(&spec.parse().expect(spec)).expect(spec);
        assert_eq!(port.name(), spec);
        let (receivers, transmitter) = (port.receivers(), port.transmitter().expect("the first"));
        assert!(port.receivers().is_empty(), "receivers are handed out once");
        OpenPort { port, receivers, transmitter }
    }

    /// Returns the packets that have arrived.
    pub fn poll(&mut self) -> Vec<RxPacket<Buffer>> {
        let mut packets = Vec::new();
        let count = self.receivers[0].poll(&mut packets, POLL_LIMIT).expect("the interface is up");
        assert_eq!(count, packets.len());
        packets
    }

    /// Waits for `count` packets, and returns them. Their memory is not given back.
    pub fn receive(&mut self, count: usize) -> Vec<RxPacket<Buffer>> {
        let mut packets = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(5);
        while packets.len() < count {
            assert!(
                Instant::now() < deadline,
                "{} packets came of {count}, {:?}",
                packets.len(),
                self.port.counters()
            );
            wait(&*self.receivers[0], 100);
            let limit = (count - packets.len()).min(POLL_LIMIT);
            self.receivers[0].poll(&mut packets, limit).expect("the interface is up");
        }
        packets
    }

    /// Sends frames unchanged.
    pub fn send(&mut self, frames: &[Vec<u8>]) -> Progress {
        let frames: Vec<_> =
            frames.iter().map(|frame| (&frame[..], RxChecksum::None, None)).collect();
        self.send_with(&frames)
    }

    /// Sends frames whose checksums the port completes, and which it segments, as described with
    /// each.
    pub fn send_with(&mut self, frames: &[(&[u8], RxChecksum, Option<Gso>)]) -> Progress {
        let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
        for &(frame, checksum, gso) in frames {
            batch.push_bytes(&mut outgoing, frame, checksum, gso, Layer::Ethernet);
        }
        self.transmitter.transmit(&outgoing, &batch, 0)
    }
}

/// Waits until the receiver is readable.
pub fn wait(receiver: &dyn Receive, milliseconds: i64) -> bool {
    let timeout = Timespec { tv_sec: 0, tv_nsec: milliseconds * 1_000_000 };
    poll(&mut [PollFd::new(&receiver.readiness().as_fd(), PollFlags::IN)], Some(&timeout))
        .expect("poll")
        != 0
}

/// Returns the bytes of each packet.
pub fn bytes(packets: &[RxPacket<Buffer>]) -> Vec<Vec<u8>> {
    packets.iter().map(frames::bytes).collect()
}

/// Passes packets through an aggregator, so that they can be pushed to a batch.
pub fn push(
    packets: &mut Vec<RxPacket<Buffer>>,
    outgoing: &mut Outgoing,
    batch: &mut TxBatch,
    max_slices: usize,
) {
    let mut aggregator = Aggregator::new(Policy::gro().with_partial_checksums(), HashKey::new(1));
    merge(&mut aggregator, packets, outgoing, batch, max_slices);
}
