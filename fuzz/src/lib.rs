//! Functions that the fuzz targets share: reading an input as packets, and a stream for captures.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use superpacket::packet::{Layer, MAX_BUFFERS, RxChecksum, RxPacket, VlanTag};

/// A packet read from a fuzz input.
#[derive(Clone, Debug)]
pub struct Packet {
    /// The packet's bytes.
    pub bytes: Vec<u8>,
    /// The layer at which the packet starts.
    pub layer: Layer,
    /// The checksum state that the device reports, whether true or not.
    pub checksum: RxChecksum,
    /// A VLAN tag that the device stripped.
    pub vlan: Option<VlanTag>,
    /// Length of each buffer except the last, in bytes.
    pub buffer: usize,
}

/// Reads packets from an input: per packet a flags byte, a buffer length, a 16-bit length
/// (big-endian), and as many bytes. The last packet ends where the input ends.
///
/// Flags: bit 0: starts at IP; bits 1 and 2: checksum state; bit 3: a stripped tag; bit 4: several
/// buffers.
pub fn packets(mut input: &[u8]) -> Vec<Packet> {
    let mut packets = Vec::new();
    while let [flags, buffer, high, low, rest @ ..] = input {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        let (bytes, others) = rest.split_at(length);
        input = others;
        packets.push(Packet {
            bytes: bytes.to_vec(),
            layer: if flags & 1 == 0 { Layer::Ethernet } else { Layer::Ip },
            checksum: match flags >> 1 & 3 {
                0 => RxChecksum::None,
                1 => RxChecksum::Unnecessary { level: buffer & 1 },
                2 => RxChecksum::Complete(u16::from(*buffer) << 8 | u16::from(*flags)),
                _ => RxChecksum::Partial {
                    start: u16::from(*buffer),
                    offset: if flags & 0x40 == 0 { 16 } else { 6 },
                },
            },
            vlan: (flags & 8 != 0)
                .then_some(VlanTag { protocol: 0x8100, control: u16::from(*buffer) }),
            buffer: if flags & 16 != 0 { usize::from(*buffer) } else { usize::MAX },
        });
    }
    packets
}

/// Writes packets in the form that [`packets`] reads.
pub fn write(frames: &[(u8, u8, Vec<u8>)]) -> Vec<u8> {
    let mut input = Vec::new();
    for (flags, buffer, bytes) in frames {
        input.extend([*flags, *buffer]);
        input.extend((bytes.len() as u16).to_be_bytes());
        input.extend(bytes);
    }
    input
}

impl Packet {
    /// Returns the packet in the form in which the engine receives it.
    pub fn receive(&self) -> RxPacket<Vec<u8>> {
        let size = self.buffer.max(1);
        let head = self.bytes.len().min(size);
        let (first, rest) = self.bytes.split_at(head);
        let mut packet = RxPacket::new(first.to_vec());
        let mut rest = rest;
        for index in 1..MAX_BUFFERS {
            if rest.is_empty() {
                break;
            }
            let take = if index + 1 == MAX_BUFFERS { rest.len() } else { rest.len().min(size) };
            let (piece, others) = rest.split_at(take);
            packet.push(piece.to_vec()).expect("at most 17 buffers");
            rest = others;
        }
        packet.layer = self.layer;
        packet.checksum = self.checksum;
        packet.vlan = self.vlan;
        packet
    }
}

/// A stream that keeps the written bytes in memory. Clones share the same bytes.
#[derive(Clone, Debug, Default)]
pub struct SharedBytes(Arc<Mutex<Vec<u8>>>);

impl SharedBytes {
    /// Returns the bytes written so far.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Write for SharedBytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
