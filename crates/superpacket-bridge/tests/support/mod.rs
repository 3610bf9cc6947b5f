//! Hosts at the other ends of a bridge's memory links.

#![allow(dead_code, reason = "each test binary needs another part of it")]

use std::time::{Duration, Instant};

use superpacket::packet::{Layer, RxChecksum, RxPacket};
use superpacket::segment::{Gso, GsoKind, SegmentSize};
use superpacket_bridge::settings::PortSettings;
use superpacket_model::open;
use superpacket_port::{Buffer, Outgoing, Port, Receive, TxBatch};
use superpacket_traffic::frame::Frame;

/// Maximum wait for anything.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Payload of each of the [`frames`], in bytes.
pub const PAYLOAD: usize = 1_000;
/// Number of the [`frames`]. Together they are shorter than the longest super-packet.
pub const FRAMES: usize = 40;

/// One end of a memory link with a receive queue.
pub struct Host {
    pub port: Box<dyn Port>,
    pub input: Box<dyn Receive>,
}

impl Host {
    /// Opens an end of the link that this port string names.
    pub fn open(spec: &str) -> Host {
        let mut port = open(&spec.parse().expect("a port string")).expect("memory needs nothing");
        Host { input: port.receivers().remove(0), port }
    }

    /// Sends frames, all in one call.
    pub fn send(&mut self, frames: &[Vec<u8>]) {
        send_as(&mut *self.port, frames, RxChecksum::None, None);
    }

    /// Sends TCP super-packets as a host's kernel does, with partial checksums and segments of
    /// [`PAYLOAD`] bytes.
    pub fn send_super_packets(&mut self, packets: &[Vec<u8>]) {
        let gso = Gso::new(GsoKind::Tcp4, SegmentSize::new(PAYLOAD).expect("not 0"));
        let checksum = RxChecksum::Partial { start: 34, offset: 16 };
        send_as(&mut *self.port, packets, checksum, Some(gso));
    }

    /// Returns the packets that have arrived.
    pub fn packets(&mut self) -> Vec<RxPacket<Buffer>> {
        let mut packets = Vec::new();
        while self.input.poll(&mut packets, 512).expect("up") != 0 {}
        packets
    }

    /// Returns the bytes of the packets that have arrived, and gives their memory back.
    pub fn receive(&mut self) -> Vec<Vec<u8>> {
        let received = self.packets().iter().map(bytes).collect();
        self.input.give_back();
        received
    }
}

/// Sends frames by a port, all in one call and with the same metadata.
pub fn send_as(port: &mut dyn Port, frames: &[Vec<u8>], checksum: RxChecksum, gso: Option<Gso>) {
    let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
    for frame in frames {
        batch.push_bytes(&mut outgoing, frame, checksum, gso, Layer::Ethernet);
    }
    let progress = port.transmitter().expect("memory has many").transmit(&outgoing, &batch, 0);
    assert_eq!(progress.sent, frames.len());
}

/// Returns a packet's bytes.
pub fn bytes(packet: &RxPacket<Buffer>) -> Vec<u8> {
    packet.buffers().flat_map(Buffer::bytes).copied().collect()
}

/// Returns the default settings of ports with these port strings.
pub fn ports<S: AsRef<str>>(specs: impl IntoIterator<Item = S>) -> Vec<PortSettings> {
    let settings = |spec: S| PortSettings::new(spec.as_ref().parse().expect("a port string"));
    specs.into_iter().map(settings).collect()
}

/// Waits until a condition holds.
pub fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns frames of one flow without PSH, starting at number `from`.
pub fn frames(from: usize) -> Vec<Vec<u8>> {
    let first = Frame::tcp4((from * PAYLOAD) as u32, PAYLOAD).with_id(from as u16);
    first.run(FRAMES).iter().map(Frame::to_bytes).collect()
}
