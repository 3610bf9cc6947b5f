//! A port with its socket, for tests.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use superpacket::packet::{Layer, RxChecksum, RxPacket};
use superpacket::segment::Gso;
use superpacket_front_end::{FrontEnd, Guest, GuestSettings};
use superpacket_port::{
    Buffer, LinkState, Outgoing, POLL_LIMIT, Port, Progress, Receive, Transmit, TxBatch, open,
};
use tempfile::TempDir;

use crate::frames::{bytes, frame};

pub struct Bench {
    pub port: Box<dyn Port>,
    pub receivers: Vec<Box<dyn Receive>>,
    pub transmitter: Box<dyn Transmit>,
    pub path: PathBuf,
    _folder: TempDir,
}

impl Bench {
    /// Opens a port that waits for guests.
    pub fn new(options: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("vm.sock");
        let text = format!("vhost:{}?{options}", path.display());
        let mut port = open(&text.parse().expect("well formed")).expect("it opens");
        let receivers = port.receivers();
        let transmitter = port.transmitter().expect("an end");
        Bench { port, receivers, transmitter, path, _folder: folder }
    }

    /// Connects a guest with these settings.
    pub fn guest(&mut self, settings: GuestSettings) -> Guest {
        let guest = Guest::connect(&self.path, settings).expect("the device accepts it");
        assert_eq!(self.port.state().link, LinkState::Up);
        guest
    }

    /// Waits for packets in a queue, for at most ten seconds.
    pub fn receive(&mut self, queue: usize, count: usize) -> Vec<RxPacket<Buffer>> {
        let (mut packets, since) = (Vec::new(), Instant::now());
        while packets.len() < count && since.elapsed() < Duration::from_secs(10) {
            // As a thread of the bridge does: it waits once a poll has found nothing.
            if self.poll(queue, &mut packets) == 0 {
                self.is_readable(queue, Duration::from_secs(10));
            }
        }
        packets
    }

    /// Polls a queue once.
    pub fn poll(&mut self, queue: usize, packets: &mut Vec<RxPacket<Buffer>>) -> usize {
        let receiver = &mut self.receivers[queue];
        receiver.poll(packets, POLL_LIMIT).expect("the port is never gone")
    }

    /// Waits until a queue is readable.
    pub fn is_readable(&self, queue: usize, timeout: Duration) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut descriptors =
            [PollFd::from_borrowed_fd(self.receivers[queue].readiness(), PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()) as _,
        };
        poll(&mut descriptors, Some(&timeout)).expect("it can be waited for") == 1
    }

    /// Sends a frame to the guest.
    pub fn send(&mut self, frame: &[u8], checksum: RxChecksum, gso: Option<Gso>) -> Progress {
        let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
        batch.push_bytes(&mut outgoing, frame, checksum, gso, Layer::Ethernet);
        self.transmitter.transmit(&outgoing, &batch, 0)
    }

    /// Sends a frame that needs nothing more, and returns whether it was sent.
    pub fn send_plain(&mut self, frame: &[u8]) -> bool {
        self.send(frame, RxChecksum::None, None).stopped.is_none()
    }

    /// Waits until the port has no guest, for at most ten seconds.
    pub fn is_left(&mut self) -> bool {
        let since = Instant::now();
        while self.port.state().link == LinkState::Up {
            if since.elapsed() > Duration::from_secs(10) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Checks that another guest can connect, send and receive.
    pub fn serves_the_next(&mut self) {
        assert!(self.is_left(), "the port does not leave the guest");
        let mut guest = self.guest(GuestSettings::default());
        let header = vec![0; guest.header_length()];
        for length in [60, 1514] {
            assert!(guest.send(0, &header, &frame(length)));
            let packets = self.receive(0, 1);
            assert_eq!(packets.iter().map(bytes).collect::<Vec<_>>(), [frame(length)]);
            assert!(self.send_plain(&frame(length)));
            let received = guest.wait_for_frame(0).expect("a frame");
            assert_eq!(received.bytes, frame(length));
        }
    }
}

/// Returns the bytes of 32-bit numbers, as messages have them.
pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Connects a guest that has agreed on features, but has set nothing up.
pub fn prepared(bench: &Bench) -> Guest {
    let front_end = FrontEnd::connect(&bench.path).expect("it listens");
    Guest::prepare(front_end, GuestSettings::default()).expect("the features are agreed")
}

/// Returns the read ends of new pipes.
pub fn pipes(count: usize) -> Vec<OwnedFd> {
    (0..count).map(|_| rustix::pipe::pipe().expect("a pipe").0).collect()
}
