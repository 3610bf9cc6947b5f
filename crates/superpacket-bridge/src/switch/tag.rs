//! Puts VLAN tags where VLAN filtering expects them: the tag that determines a packet's VLAN is in
//! the metadata, as most devices deliver it, and all other tags are in the frame.

use superpacket::packet::{Layer, RxChecksum, RxPacket, VlanTag};
use superpacket_port::Buffer;

use crate::rewritten::{replace, whole};
use crate::switch::frame::ETHERNET;
use crate::switch::vlan::VlanProtocol;

/// Offset of a VLAN tag in a frame: after the two hardware addresses.
const TAG_OFFSET: usize = 12;

/// Length of a VLAN tag in bytes.
const TAG_BYTES: usize = 4;

/// Puts a packet's VLAN tags where VLAN filtering expects them: moves the first tag of the frame to
/// the metadata if it has this protocol, and a tag of another protocol from the metadata into the
/// frame. If the frame must change, the packet is copied.
#[inline]
pub(crate) fn sort(packet: &mut RxPacket<Buffer>, protocol: VlanProtocol) {
    if packet.layer != Layer::Ethernet {
        return;
    }
    match packet.vlan {
        Some(tag) if tag.protocol == protocol.ether_type() => {}
        Some(tag) => put_in(packet, tag),
        None => {
            let first = packet.buffers().next().map_or(&[][..], Buffer::bytes);
            // If the first buffer is too short for the EtherType, all buffers are searched.
            let ether_type = first
                .get(TAG_OFFSET..ETHERNET)
                .map(|field| u16::from_be_bytes([field[0], field[1]]));
            if ether_type.is_none_or(|ether_type| ether_type == protocol.ether_type()) {
                take_out(packet, protocol);
            }
        }
    }
}

#[cold]
fn take_out(packet: &mut RxPacket<Buffer>, protocol: VlanProtocol) {
    let mut bytes = whole(packet, 0);
    let Some(&[a, b, c, d, e, f]) = bytes.get(TAG_OFFSET..).and_then(<[u8]>::first_chunk) else {
        return;
    };
    if u16::from_be_bytes([a, b]) != protocol.ether_type() {
        return;
    }
    bytes.drain(TAG_OFFSET..TAG_OFFSET + TAG_BYTES);
    let tag = VlanTag { protocol: protocol.ether_type(), control: u16::from_be_bytes([c, d]) };
    let checksum = match packet.checksum {
        RxChecksum::Partial { start, offset } => {
            RxChecksum::Partial { start: start.saturating_sub(TAG_BYTES as u16), offset }
        }
        // The checksum starts after the Ethernet header. It covered the tag's last two bytes and
        // the EtherType after them, and no longer covers the latter.
        RxChecksum::Complete(sum) => {
            RxChecksum::Complete(add(add(sum, !tag.control), !u16::from_be_bytes([e, f])))
        }
        other => other,
    };
    replace(packet, bytes, checksum, Some(tag));
}

#[cold]
fn put_in(packet: &mut RxPacket<Buffer>, tag: VlanTag) {
    let mut bytes = whole(packet, TAG_BYTES);
    let Some(&[a, b]) = bytes.get(TAG_OFFSET..).and_then(<[u8]>::first_chunk) else { return };
    let ([c, d], [e, f]) = (tag.protocol.to_be_bytes(), tag.control.to_be_bytes());
    bytes.splice(TAG_OFFSET..TAG_OFFSET, [c, d, e, f]);
    let checksum = match packet.checksum {
        RxChecksum::Partial { start, offset } => {
            RxChecksum::Partial { start: start.saturating_add(TAG_BYTES as u16), offset }
        }
        RxChecksum::Complete(sum) => {
            RxChecksum::Complete(add(add(sum, tag.control), u16::from_be_bytes([a, b])))
        }
        other => other,
    };
    replace(packet, bytes, checksum, None);
}

/// Adds two checksums in one's complement arithmetic.
const fn add(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + carry as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use superpacket::packet::FlowHash;

    const TAGGED: [u8; 22] =
        [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x81, 0, 0xe0, 7, 0x88, 0xb5, 1, 2, 3, 4];

    fn bytes(packet: &RxPacket<Buffer>) -> Vec<u8> {
        whole(packet, 0)
    }

    /// Returns the complete checksum that a device reports: of all bytes after the first 14.
    fn complete(frame: &[u8]) -> RxChecksum {
        RxChecksum::Complete(
            frame[14..]
                .chunks(2)
                .fold(0, |sum, pair| add(sum, u16::from_be_bytes([pair[0], pair[1]]))),
        )
    }

    #[test]
    fn a_vlan_tag_moves_to_the_metadata_from_any_buffer_layout() {
        let untagged = [&TAGGED[..12], &TAGGED[16..]].concat();
        for pieces in [&[22][..], &[5, 17], &[13, 2, 7], &[12, 10], &[18, 4]] {
            let mut rest = &TAGGED[..];
            let mut buffers = pieces.iter().map(|&length| {
                let (piece, behind) = rest.split_at(length);
                rest = behind;
                Buffer::from(piece.to_vec())
            });
            let mut packet = RxPacket::new(buffers.next().expect("one at least"));
            buffers.for_each(|buffer| packet.push(buffer).expect("a few"));
            packet.checksum = complete(&TAGGED);
            (packet.queue, packet.hash, packet.time) = (3, Some(FlowHash(9)), 11);
            sort(&mut packet, VlanProtocol::Dot1Q);
            assert_eq!(bytes(&packet), untagged, "{pieces:?}");
            assert_eq!(packet.vlan, Some(VlanTag { protocol: 0x8100, control: 0xe007 }));
            assert_eq!(packet.checksum, complete(&untagged));
            assert_eq!((packet.queue, packet.hash, packet.time), (3, Some(FlowHash(9)), 11));
            sort(&mut packet, VlanProtocol::Dot1Q);
            assert_eq!(bytes(&packet), untagged, "once is enough");
        }
        let mut partial = RxPacket::new(Buffer::from(TAGGED.to_vec()))
            .with_checksum(RxChecksum::Partial { start: 38, offset: 16 });
        sort(&mut partial, VlanProtocol::Dot1Q);
        assert_eq!(partial.checksum, RxChecksum::Partial { start: 34, offset: 16 });
    }

    #[test]
    fn a_tag_of_another_type_moves_into_the_frame() {
        let untagged = [&TAGGED[..12], &TAGGED[16..]].concat();
        let mut service = TAGGED.to_vec();
        service[12..14].copy_from_slice(&[0x88, 0xa8]);
        let tag = VlanTag { protocol: 0x88a8, control: 0xe007 };
        let mut packet = RxPacket::new(Buffer::from(untagged.clone()))
            .with_vlan(tag)
            .with_checksum(complete(&untagged));
        sort(&mut packet, VlanProtocol::Dot1Q);
        assert_eq!(
            (bytes(&packet), packet.vlan, packet.checksum),
            (service.clone(), None, complete(&service))
        );
        sort(&mut packet, VlanProtocol::Dot1Q);
        assert_eq!(
            (bytes(&packet), packet.vlan),
            (service.clone(), None),
            "it says no VLAN of this bridge"
        );
        // A provider bridge moves a service tag, and leaves a customer's tag in the frame.
        sort(&mut packet, VlanProtocol::Dot1Ad);
        assert_eq!(
            (bytes(&packet), packet.vlan, packet.checksum),
            (untagged.clone(), Some(tag), complete(&untagged))
        );
        let tag = VlanTag { protocol: 0x8100, control: 0xe007 };
        let mut packet = RxPacket::new(Buffer::from(untagged.clone()))
            .with_vlan(tag)
            .with_checksum(complete(&untagged));
        sort(&mut packet, VlanProtocol::Dot1Ad);
        assert_eq!(
            (bytes(&packet), packet.vlan, packet.checksum),
            (TAGGED.to_vec(), None, complete(&TAGGED))
        );
    }

    #[test]
    fn packets_without_the_tag_are_unchanged() {
        let untagged = [&TAGGED[..12], &TAGGED[16..]].concat();
        let mut short = TAGGED[..17].to_vec();
        for frame in [untagged, TAGGED[..9].to_vec(), Vec::new(), std::mem::take(&mut short)] {
            let mut packet = RxPacket::new(Buffer::from(frame.clone()));
            sort(&mut packet, VlanProtocol::Dot1Q);
            assert_eq!((bytes(&packet), packet.vlan), (frame, None));
        }
        let mut ip = RxPacket::ip(Buffer::from(TAGGED.to_vec()));
        sort(&mut ip, VlanProtocol::Dot1Q);
        assert_eq!((bytes(&ip), ip.vlan), (TAGGED.to_vec(), None));
    }
}
