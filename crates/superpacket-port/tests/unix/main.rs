//! Tests of UNIX socket ports, with peers that keep the rules and peers that do not.
//!
//! They have a process of their own that starts no other: a child holds its parent's sockets open
//! until it runs its program, and these tests see at once that a socket was closed.
#![cfg(target_os = "linux")]

mod datagram;
mod forms;
#[path = "../support/frames.rs"]
mod frames;
mod hostile;
mod life;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use superpacket::packet::{Layer, RxChecksum, RxPacket};
use superpacket::segment::Gso;
use superpacket_port::{
    Buffer, LinkState, Outgoing, Port, PortError, Progress, Receive, Transmit, TxBatch, open,
};
use tempfile::TempDir;

use frames::{bytes, frame};

/// How long a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(10);

/// A port with both ends, and the folder of its socket.
struct Opened {
    port: Box<dyn Port>,
    receiver: Box<dyn Receive>,
    transmitter: Box<dyn Transmit>,
    folder: TempDir,
}

impl Opened {
    /// Opens a port that creates the socket `port` in a new folder.
    fn new(options: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Opened::at(folder, "port", options)
    }

    /// Opens a port at the socket `name` of a folder. In the options, `@` stands for the folder.
    fn at(folder: TempDir, name: &str, options: &str) -> Self {
        let port = try_open(&folder, name, options).unwrap_or_else(|error| panic!("{error}"));
        Opened::with(port, folder)
    }

    fn with(mut port: Box<dyn Port>, folder: TempDir) -> Self {
        let receiver = port.receivers().remove(0);
        let transmitter = port.transmitter().expect("an end");
        Opened { port, receiver, transmitter, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Connects a peer to the port's socket.
    fn connect(&mut self) -> Peer {
        let peer = Peer::new(UnixStream::connect(self.path("port")).expect("the port listens"));
        self.wait_for(LinkState::Up);
        peer
    }

    /// Polls until the link has this state.
    fn wait_for(&mut self, link: LinkState) {
        let start = Instant::now();
        while self.port.state().link != link {
            let mut packets = Vec::new();
            let _ = self.receiver.poll(&mut packets, 64);
            assert!(packets.is_empty(), "no frame was sent");
            assert!(start.elapsed() < PATIENCE, "the link never is {link:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the port is readable, and returns what has arrived.
    fn poll(&mut self) -> Result<Vec<RxPacket<Buffer>>, PortError> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let timeout = Timespec { tv_sec: 10, tv_nsec: 0 };
        let mut descriptors = [PollFd::from_borrowed_fd(self.receiver.readiness(), PollFlags::IN)];
        assert_eq!(poll(&mut descriptors, Some(&timeout)), Ok(1), "the port is never readable");
        let mut packets = Vec::new();
        self.receiver.poll(&mut packets, 64).map(|_| packets)
    }

    /// Receives this many frames.
    fn receive(&mut self, count: usize) -> Vec<RxPacket<Buffer>> {
        let (mut packets, start) = (Vec::new(), Instant::now());
        while packets.len() < count {
            packets.extend(self.poll().expect("the port can receive"));
            assert!(start.elapsed() < PATIENCE, "{} of {count} frames", packets.len());
        }
        packets
    }

    /// Sends frames in one batch.
    fn send(&mut self, frames: &[&[u8]]) -> Progress {
        let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
        for frame in frames {
            batch.push_bytes(&mut outgoing, frame, RxChecksum::None, None, Layer::Ethernet);
        }
        self.transmitter.transmit(&outgoing, &batch, 0)
    }

    /// Sends a frame with this metadata.
    fn send_with(&mut self, frame: &[u8], checksum: RxChecksum, gso: Option<Gso>) -> Progress {
        let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
        batch.push_bytes(&mut outgoing, frame, checksum, gso, Layer::Ethernet);
        self.transmitter.transmit(&outgoing, &batch, 0)
    }
}

fn try_open(folder: &TempDir, name: &str, options: &str) -> Result<Box<dyn Port>, PortError> {
    let options = options.replace('@', &folder.path().display().to_string());
    open(&format!("unix:{}{options}", folder.path().join(name).display()).parse().expect("formed"))
}

/// The other end of a stream.
struct Peer(UnixStream);

impl Peer {
    fn new(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.set_write_timeout(Some(PATIENCE)).expect("a socket");
        Peer(stream)
    }

    /// Sends bytes after their length.
    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(&stream_frame(bytes)).expect("the port reads");
    }

    /// Returns the bytes after the next length.
    fn receive(&mut self) -> Vec<u8> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length).expect("a length");
        let mut bytes = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut bytes).expect("as many bytes");
        bytes
    }
}

/// Returns bytes after their length, as a stream carries them.
fn stream_frame(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes()[..], bytes].concat()
}
