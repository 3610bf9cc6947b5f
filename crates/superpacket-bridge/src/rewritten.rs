//! Copies received packets into new buffers, changed or unchanged.

use superpacket::packet::{RxChecksum, RxPacket, VlanTag};
use superpacket_port::Buffer;

/// Returns all bytes of a packet in a vector with capacity for `more` bytes.
pub(crate) fn whole(packet: &RxPacket<Buffer>, more: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(packet.length() + more);
    packet.buffers().for_each(|buffer| bytes.extend_from_slice(buffer.bytes()));
    bytes
}

/// Replaces a packet's bytes, and the metadata that depends on them.
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

/// Returns a packet with its bytes copied to newly allocated memory, so that a held packet takes no
/// room in a receive ring.
pub(crate) fn copied(mut packet: RxPacket<Buffer>) -> RxPacket<Buffer> {
    let (bytes, checksum, vlan) = (whole(&packet, 0), packet.checksum, packet.vlan);
    replace(&mut packet, bytes, checksum, vlan);
    packet
}
