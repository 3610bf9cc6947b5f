//! A received packet in a buffer of its own, with other bytes or the same.

use superpacket::packet::{RxChecksum, RxPacket, VlanTag};
use superpacket_port::Buffer;

/// All bytes of a packet, with room for more.
pub(crate) fn whole(packet: &RxPacket<Buffer>, more: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(packet.length() + more);
    packet.buffers().for_each(|buffer| bytes.extend_from_slice(buffer.bytes()));
    bytes
}

/// Gives a packet other bytes, and what these change.
pub(crate) fn replace(
    packet: &mut RxPacket<Buffer>,
    bytes: Vec<u8>,
    checksum: RxChecksum,
    vlan: Option<VlanTag>,
) {
    let mut other = RxPacket::new(Buffer::from(bytes));
    (other.queue, other.layer, other.hash, other.gso, other.time) =
        (packet.queue, packet.layer, packet.hash, packet.gso, packet.time);
    (other.checksum, other.vlan) = (checksum, vlan);
    *packet = other;
}

/// A copy of a packet: what waits must not keep a ring from moving on.
pub(crate) fn copied(mut packet: RxPacket<Buffer>) -> RxPacket<Buffer> {
    let (bytes, checksum, vlan) = (whole(&packet, 0), packet.checksum, packet.vlan);
    replace(&mut packet, bytes, checksum, vlan);
    packet
}
