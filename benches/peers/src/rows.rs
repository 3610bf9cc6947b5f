//! The rows: frames, and the work to do with them.

use superpacket_traffic::frame::Checksum;
use superpacket_traffic::random::Random;
use superpacket_traffic::workload::{hostile, w1, w2, w3, w4};

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;

/// Bytes of a receive buffer for one frame.
const BUFFER: usize = 2_048;

/// Minimum number of frames, or super-packets to segment, that a sample loads from memory.
const FRAMES_IN_MEMORY: usize = 4_096;
const SUPER_PACKETS_IN_MEMORY: usize = 64;

/// A row of the table.
pub struct Row {
    pub name: &'static str,
    pub task: Task,
}

/// The work of a row.
pub enum Task {
    Join(Join),
    /// A super-packet is segmented by reference: headers are made, the payload stays in place, and
    /// no checksum is computed.
    Gather(Vec<u8>),
    /// A super-packet is segmented into buffers, with checksums.
    Copy(Vec<u8>),
}

/// Frames to join, batch by batch; held packets leave at the end.
pub struct Join {
    pub frames: Vec<Vec<u8>>,
    pub flows: usize,
    pub batch: usize,
    /// Whether a device has verified the checksums. A peer that does not verify any assumes so.
    pub verified: bool,
}

/// Returns all rows whose name contains `only`.
pub fn rows(only: &str) -> Vec<Row> {
    let join = |name, frames, flows, batch, verified| Row {
        name,
        task: Task::Join(Join { frames, flows, batch, verified }),
    };
    let super_packet = || w4(1, Checksum::Partial).remove(0);
    let mut rows = vec![
        join("join, one flow (W1)", w1(64), 1, 64, true),
        join("join, 4 flows interleaved", w2(4, 64), 4, 64, true),
        join("join, 16 flows interleaved", w2(16, 64), 16, 64, true),
        join("join, 64 flows interleaved, batch 256 (W2)", w2(64, 256), 64, 256, true),
        join("join, 64 flows of one packet, sums not known", w2(64, 64), 64, 64, false),
        join("join, pure ACKs (W3)", w3(64), 1, 64, true),
        join("join, 4,000 hostile flows, batch 250", hostile(4_000, 4_000), 4_000, 250, true),
        Row { name: "cut by reference, no sums (W4)", task: Task::Gather(super_packet()) },
        Row { name: "cut into buffers, with sums (W4)", task: Task::Copy(super_packet()) },
    ];
    rows.retain(|row| row.name.contains(only));
    rows
}

impl Join {
    /// Returns the number of copies of the frames in memory.
    pub fn copies(&self) -> usize {
        FRAMES_IN_MEMORY.div_ceil(self.frames.len())
    }

    /// Returns copies of the frames in buffers in random order, like those of a pool that has been
    /// in use for a while.
    pub fn cycles(&self) -> Vec<Vec<Vec<u8>>> {
        scattered(&self.frames, self.copies(), BUFFER)
    }

    /// Returns the frames as IP packets, without padding.
    pub fn packets(&self) -> Vec<Vec<u8>> {
        let packet = |frame: &Vec<u8>| {
            let length =
                usize::from(u16::from_be_bytes([frame[ETHERNET + 2], frame[ETHERNET + 3]]));
            frame[ETHERNET..ETHERNET + length].to_vec()
        };
        self.frames.iter().map(packet).collect()
    }
}

/// Returns copies of a super-packet.
pub fn super_packets(packet: &[u8]) -> Vec<Vec<u8>> {
    vec![packet.to_vec(); SUPER_PACKETS_IN_MEMORY]
}

/// Returns copies of packets in random order, each in a buffer of at least `capacity` bytes.
pub fn scattered(packets: &[Vec<u8>], copies: usize, capacity: usize) -> Vec<Vec<Vec<u8>>> {
    let mut buffers: Vec<_> =
        (0..copies * packets.len()).map(|_| Vec::<u8>::with_capacity(capacity)).collect();
    Random::new(1).shuffle(&mut buffers);
    let mut fill = |packet: &Vec<u8>| {
        let mut buffer = buffers.pop().expect("one for each packet");
        buffer.extend_from_slice(packet);
        buffer
    };
    (0..copies).map(|_| packets.iter().map(&mut fill).collect()).collect()
}
