//! Frames that tests send and compare.

use superpacket::packet::RxPacket;
use superpacket_port::Buffer;

/// Returns a frame of `length` bytes that no protocol understands.
pub fn frame(length: usize) -> Vec<u8> {
    let head = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
    head.into_iter()
        .chain((0..).map(|index: usize| (index * 7 + length) as u8))
        .take(length)
        .collect()
}

/// Returns the bytes of a packet.
pub fn bytes(packet: &RxPacket<Buffer>) -> Vec<u8> {
    packet.buffers().flat_map(Buffer::bytes).copied().collect()
}
