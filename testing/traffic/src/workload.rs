//! The workloads of the benches. Ethernet frames are made by patching a template, so that half a
//! million take about a second.

use std::rc::Rc;

use crate::checksum;
use crate::frame::{ACK, Checksum, Frame, Ip, PSH, Transport, stream_bytes};

/// Payload bytes of a full TCP segment with timestamps at an MTU of 1500.
pub const TCP_PAYLOAD: usize = 1_448;
/// Segments in a train of about 64 KB: 45 x 1448 = 65,160 bytes of payload, the maximum for a
/// super-packet.
pub const TRAIN: usize = 45;
/// Payload bytes of a full UDP datagram at an MTU of 1500.
pub const UDP_PAYLOAD: usize = 1_472;
/// Datagrams in a UDP super-packet: 44 x 1472 = 64,768 bytes.
pub const UDP_TRAIN: usize = 44;

/// Returns workload W1: one TCP/IPv4 flow of 1448-byte payloads with timestamps, and PSH on the
/// last frame of each train of [`TRAIN`] frames.
pub fn w1(frames: usize) -> Vec<Vec<u8>> {
    w2(1, frames)
}

/// Returns workload W2: `flows` flows as in [`w1`], one frame of each in turn.
///
/// # Panics
/// If `flows` is 0.
pub fn w2(flows: usize, frames: usize) -> Vec<Vec<u8>> {
    in_runs(flows, 1, frames, TCP_PAYLOAD)
}

/// Returns workload W2b: 1024 flows as in [`w1`], four frames of each in turn.
pub fn w2b(frames: usize) -> Vec<Vec<u8>> {
    in_runs(1_024, 4, frames, TCP_PAYLOAD)
}

/// Returns `flows` flows of small data segments (100 bytes), one per flow in turn. With more flows
/// than a table holds, each packet evicts another flow.
///
/// # Panics
/// If `flows` is 0.
pub fn hostile(flows: usize, frames: usize) -> Vec<Vec<u8>> {
    in_runs(flows, 1, frames, 100)
}

/// Returns workload W3: pure ACKs of one flow without options, each acknowledging two more
/// segments, padded to 60 bytes.
pub fn w3(frames: usize) -> Vec<Vec<u8>> {
    let mut bytes = Frame::tcp4(1, 0).padded_to(60).to_bytes();
    let offsets = Frame::tcp4(1, 0).offsets();
    let frame = |index: usize| {
        set(&mut bytes, offsets.network + 4, &(index as u16).to_be_bytes());
        set(
            &mut bytes,
            offsets.transport + 8,
            &(1 + (index * 2 * TCP_PAYLOAD) as u32).to_be_bytes(),
        );
        set_header_checksum(&mut bytes, offsets.network);
        set(&mut bytes, offsets.transport + 16, &[0, 0]);
        let pseudo = checksum::pseudo_v4([10, 0, 0, 1], [10, 0, 0, 2], 6, 20);
        let sum = checksum::add(pseudo, checksum::sum(&bytes[offsets.transport..offsets.end]));
        set(&mut bytes, offsets.transport + 16, &(!sum).to_be_bytes());
        bytes.clone()
    };
    (0..frames).map(frame).collect()
}

/// Returns workload W4: TCP super-packets of 65,160 payload bytes with timestamps, to be cut into
/// segments of [`TCP_PAYLOAD`] bytes.
///
/// `mode` says how the transport checksum is written; a stack gives a device [`Checksum::Partial`].
pub fn w4(frames: usize, mode: Checksum) -> Vec<Vec<u8>> {
    let length = TRAIN * TCP_PAYLOAD;
    let frame = |index: usize| {
        Frame::tcp4((index * length) as u32, length)
            .with_id((index * TRAIN) as u16)
            .with_timestamps(1_000, 2_000)
            .with_flags(ACK | PSH)
            .with_checksum(mode)
            .to_bytes()
    };
    (0..frames).map(frame).collect()
}

/// Returns workload W5 as received: one UDP/IPv4 flow of 1472-byte datagrams with consecutive IDs.
pub fn w5(frames: usize) -> Vec<Vec<u8>> {
    let mut flow = WorkloadFlow::new(&Frame::udp4(0), UDP_PAYLOAD, &blocks(UDP_PAYLOAD));
    (0..frames).map(|_| flow.next(false)).collect()
}

/// Returns workload W5 as sent: UDP super-packets of [`UDP_TRAIN`] datagrams, to be cut into
/// segments of [`UDP_PAYLOAD`] bytes. `mode` says how the transport checksum is written.
pub fn w5_super(frames: usize, mode: Checksum) -> Vec<Vec<u8>> {
    let frame = |index: usize| {
        Frame::udp4(UDP_TRAIN * UDP_PAYLOAD)
            .with_id((index * UDP_TRAIN) as u16)
            .with_checksum(mode)
            .to_bytes()
    };
    (0..frames).map(frame).collect()
}

/// Returns frames of `flows` TCP flows, `run` consecutive ones per flow in turn.
fn in_runs(flows: usize, run: usize, frames: usize, payload: usize) -> Vec<Vec<u8>> {
    assert!(flows > 0, "no flows");
    let blocks = blocks(payload);
    let mut flows: Vec<_> = (0..flows)
        .map(|number| {
            let [_, high, middle, low] = (number as u32 / 50_000).to_be_bytes();
            let frame = Frame::tcp4(1_000, 0).with_timestamps(1_000, 2_000).with(|frame| {
                frame.tcp_mut().source_port = 10_000 + (number % 50_000) as u16;
                frame.ipv4_mut().source = [10, high, middle, low.wrapping_add(1)];
            });
            WorkloadFlow::new(&frame, payload, &blocks)
        })
        .collect();
    let count = flows.len();
    (0..frames)
        .map(|index| {
            let flow = &mut flows[index / run % count];
            let last = flow.sent % TRAIN == TRAIN - 1;
            flow.next(last)
        })
        .collect()
}

/// Payload blocks, each with its one's-complement sum, used in turn by the frames of all flows.
type Blocks = Rc<[(Vec<u8>, u16)]>;

const BLOCKS: usize = 8;

fn blocks(length: usize) -> Blocks {
    let block = |index: usize| {
        let block = stream_bytes((index * length) as u32, length);
        let sum = checksum::sum(&block);
        (block, sum)
    };
    (0..BLOCKS).map(block).collect()
}

/// A flow whose frames differ in sequence number, ID, PSH and payload.
struct WorkloadFlow {
    header: Vec<u8>,
    network: usize,
    transport: usize,
    tcp: bool,
    pseudo: u16,
    sequence: u32,
    sent: usize,
    payload: usize,
    blocks: Blocks,
}

impl WorkloadFlow {
    fn new(frame: &Frame, payload: usize, blocks: &Blocks) -> Self {
        let full = Frame { payload: vec![0; payload], ..frame.clone() };
        let offsets = full.offsets();
        let mut header = full.to_bytes();
        header.truncate(offsets.payload);
        let (tcp, sequence) = match &frame.transport {
            Transport::Tcp(tcp) => (true, tcp.sequence),
            _ => (false, 0),
        };
        let Ip::V4(ip) = &frame.ip else { unreachable!("the workloads are IPv4") };
        let length = (offsets.end - offsets.transport) as u32;
        let pseudo =
            checksum::pseudo_v4(ip.source, ip.destination, if tcp { 6 } else { 17 }, length);
        WorkloadFlow {
            header,
            network: offsets.network,
            transport: offsets.transport,
            tcp,
            pseudo,
            sequence,
            sent: 0,
            payload,
            blocks: Rc::clone(blocks),
        }
    }

    /// Returns the next frame, with PSH if it is the `last` of a train.
    fn next(&mut self, last: bool) -> Vec<u8> {
        let (network, transport) = (self.network, self.transport);
        let (block, block_sum) = &self.blocks[self.sent % BLOCKS];
        set(&mut self.header, network + 4, &(self.sent as u16).to_be_bytes());
        set_header_checksum(&mut self.header, network);
        let field = transport + if self.tcp { 16 } else { 6 };
        if self.tcp {
            set(&mut self.header, transport + 4, &self.sequence.to_be_bytes());
            self.header[transport + 13] = (ACK | if last { PSH } else { 0 }) as u8;
        }
        set(&mut self.header, field, &[0, 0]);
        let sum = checksum::add(
            checksum::add(self.pseudo, checksum::sum(&self.header[transport..])),
            *block_sum,
        );
        let right = if sum == 0xffff && !self.tcp { 0xffff } else { !sum };
        set(&mut self.header, field, &right.to_be_bytes());
        self.sequence = self.sequence.wrapping_add(self.payload as u32);
        self.sent += 1;
        let mut bytes = Vec::with_capacity(self.header.len() + self.payload);
        bytes.extend_from_slice(&self.header);
        bytes.extend_from_slice(block);
        bytes
    }
}

fn set(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn set_header_checksum(bytes: &mut [u8], network: usize) {
    set(bytes, network + 10, &[0, 0]);
    let right = !checksum::sum(&bytes[network..network + 20]);
    set(bytes, network + 10, &right.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{self, Expect};

    fn all_right(frames: &[Vec<u8>], expect: Expect) {
        for (index, bytes) in frames.iter().enumerate() {
            let checked = check::frame(bytes, &expect)
                .unwrap_or_else(|problem| panic!("frame {index}: {problem}"));
            assert!(checked.canonical, "frame {index}");
        }
    }

    #[test]
    fn w1_is_one_stream_with_psh_at_the_end_of_each_train() {
        // Enough frames for the IDs to wrap.
        let frames = w1(70_000);
        all_right(&frames, Expect::default());
        let mut sequence = 1_000u32;
        for (index, bytes) in frames.iter().enumerate() {
            let fields = check::tcp_fields(bytes, false).unwrap();
            assert_eq!((fields.sequence, fields.payload, bytes.len()), (sequence, 1_448, 1_514));
            assert_eq!(fields.flags & PSH != 0, index % 45 == 44);
            assert_eq!(fields.timestamps, Some((1_000, 2_000)));
            assert_eq!(u16::from_be_bytes([bytes[18], bytes[19]]), index as u16);
            sequence = sequence.wrapping_add(1_448);
        }
    }

    #[test]
    fn the_others_interleave_as_they_say() {
        let keys = |frames: &[Vec<u8>]| {
            frames.iter().map(|bytes| check::flow_key(bytes, false).unwrap()).collect::<Vec<_>>()
        };
        let frames = w2(64, 200);
        all_right(&frames, Expect::default());
        let w2 = keys(&frames);
        assert!(
            w2[0] == w2[64]
                && w2[..64].iter().collect::<std::collections::HashSet<_>>().len() == 64
        );
        let frames = w2b(4_100);
        all_right(&frames, Expect::default());
        let w2b = keys(&frames);
        assert!(w2b[0] == w2b[3] && w2b[3] != w2b[4] && w2b[0] == w2b[4_096]);
        let frames = hostile(60_000, 60_001);
        all_right(&frames, Expect::default());
        let hostile = keys(&frames);
        assert_eq!(hostile[0], hostile[60_000]);
        assert_eq!(hostile.iter().collect::<std::collections::HashSet<_>>().len(), 60_000);
    }

    #[test]
    fn w3_is_padded_pure_acks() {
        let frames = w3(500);
        all_right(&frames, Expect { trailing: true, ..Expect::default() });
        for (index, bytes) in frames.iter().enumerate() {
            let fields = check::tcp_fields(bytes, false).unwrap();
            assert_eq!(
                (bytes.len(), fields.payload, fields.acknowledgement),
                (60, 0, 1 + index as u32 * 2_896)
            );
        }
    }

    #[test]
    fn super_packets_are_whole_or_partial() {
        for mode in [Checksum::Right, Checksum::Partial] {
            let expect = Expect { partial: true, ..Expect::default() };
            for (frames, length) in [(w4(3, mode), 65_160), (w5_super(3, mode), 64_768)] {
                for bytes in &frames {
                    let checked = check::frame(bytes, &expect).unwrap();
                    assert_eq!(
                        (checked.payload.len(), checked.partial.is_some()),
                        (length, mode == Checksum::Partial)
                    );
                }
            }
        }
        all_right(&w5(1_000), Expect::default());
    }
}
