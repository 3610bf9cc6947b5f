//! Finds the addresses of a packet and the offset of its IP header from its first bytes.

use superpacket::packet::Layer;
use superpacket::super_packet::{Metadata, SuperPacket};
use superpacket::wire::MAX_HEADER;
use superpacket_port::Buffer;

use crate::switch::fdb::Station;

/// EtherTypes of VLAN tags.
const TAGS: [u16; 2] = [0x8100, 0x88a8];

/// Bytes of an Ethernet header.
pub(crate) const ETHERNET: usize = 14;

/// Number of first bytes that contain the addresses of any packet: an Ethernet header and a tag, or
/// an IPv6 header.
pub(crate) const ADDRESSES: usize = 40;

/// The first bytes of a packet in one piece. They are copied, at most [`MAX_HEADER`] bytes, only if
/// the packet has them in several buffers.
#[derive(Debug)]
pub(crate) struct PacketHead {
    gathered: Option<([u8; MAX_HEADER], usize)>,
}

impl PacketHead {
    /// Finds at least the first `wanted` bytes, or the whole packet if it is shorter.
    #[inline]
    pub(crate) fn new(packet: &SuperPacket<'_, Buffer>, wanted: usize) -> PacketHead {
        let first = packet.slices().next().map_or(0, <[u8]>::len);
        if first >= wanted || first == packet.length() {
            return PacketHead { gathered: None };
        }
        PacketHead::gather(packet)
    }

    #[cold]
    fn gather(packet: &SuperPacket<'_, Buffer>) -> PacketHead {
        let (mut bytes, mut filled) = ([0; MAX_HEADER], 0);
        for slice in packet.slices() {
            let take = slice.len().min(MAX_HEADER - filled);
            bytes[filled..filled + take].copy_from_slice(&slice[..take]);
            filled += take;
        }
        PacketHead { gathered: Some((bytes, filled)) }
    }

    /// Returns the first bytes of the packet from which this was made.
    #[inline]
    pub(crate) fn bytes<'a>(&'a self, packet: &'a SuperPacket<'_, Buffer>) -> &'a [u8] {
        match &self.gathered {
            Some((bytes, filled)) => &bytes[..*filled],
            None => packet.slices().next().unwrap_or(&[]),
        }
    }
}

/// A source or destination address together with its VLAN, as a 64-bit key of the address table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressKey(pub(crate) u64);

impl From<Station> for AddressKey {
    fn from(station: Station) -> AddressKey {
        AddressKey::ethernet(station.address, station.vlan)
    }
}

impl AddressKey {
    /// Returns the key of a hardware address in a VLAN (0 for untagged).
    pub(crate) fn ethernet(address: [u8; 6], vlan: u16) -> AddressKey {
        let [a, b, c, d, e, f] = address;
        AddressKey(
            u64::from_be_bytes([0, 0, a, b, c, d, e, f]) | u64::from(vlan & 0x0fff) << 48 | 1 << 60,
        )
    }

    /// Returns the hardware address and the VLAN; `None` for an IP address.
    pub(crate) fn station(self) -> Option<Station> {
        let [_, _, address @ ..] = self.0.to_be_bytes();
        (self.0 & 1 << 60 != 0).then_some(Station { vlan: (self.0 >> 48) as u16 & 0x0fff, address })
    }

    /// Returns the key of an IP address, for ports without a link layer. It contains a 60-bit hash.
    pub(crate) fn ip(address: &[u8]) -> AddressKey {
        let mut hash = 0x9e37_79b9_7f4a_7c15u64;
        for chunk in address.chunks(4) {
            let word = chunk.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
            hash = (hash ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
            hash ^= hash >> 32;
        }
        AddressKey(hash >> 4 | 1 << 61)
    }
}

/// The source and destination addresses of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Addresses {
    /// The source address; `None` if it is not a valid unicast address.
    pub(crate) source: Option<AddressKey>,
    pub(crate) destination: FrameDestination,
}

/// The kind of destination address of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameDestination {
    /// A unicast address: one station.
    Station(AddressKey),
    /// A multicast address, for a group of stations.
    Many,
    /// The broadcast address, for all stations.
    All,
    /// A link-local address that bridges do not forward to.
    Neighbour,
}

/// Returns a packet's addresses; `None` if it is too short to have any.
#[inline]
pub(crate) fn addresses(head: &[u8], metadata: &Metadata) -> Option<Addresses> {
    if metadata.layer == Layer::Ip {
        return ip_addresses(head);
    }
    let header = head.first_chunk::<ETHERNET>()?;
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *header;
    let (to, from) = ([d0, d1, d2, d3, d4, d5], [s0, s1, s2, s3, s4, s5]);
    let vlan = match metadata.vlan {
        Some(tag) => tag.control & 0x0fff,
        None if TAGS.contains(&u16::from_be_bytes([t0, t1])) => head
            .get(ETHERNET..ETHERNET + 2)
            .map_or(0, |control| u16::from_be_bytes([control[0], control[1]]) & 0x0fff),
        None => 0,
    };
    let destination = if d0 & 1 == 0 {
        FrameDestination::Station(AddressKey::ethernet(to, vlan))
    } else if to[..5] == [0x01, 0x80, 0xc2, 0x00, 0x00] && d5 & 0xf0 == 0 && d5 != 0 {
        // IEEE 802.1Q, table 8-1. The first of these addresses carries the spanning tree protocol.
        // Like the kernel's bridge without that protocol, this one forwards it.
        FrameDestination::Neighbour
    } else if to == [0xff; 6] {
        FrameDestination::All
    } else {
        FrameDestination::Many
    };
    let source = (s0 & 1 == 0 && from != [0; 6]).then(|| AddressKey::ethernet(from, vlan));
    Some(Addresses { source, destination })
}

/// Returns the addresses of a packet that starts at its IP header.
fn ip_addresses(head: &[u8]) -> Option<Addresses> {
    let (source, destination, is_multicast) = match head.first()? >> 4 {
        4 => {
            let (source, destination) = (head.get(12..16)?, head.get(16..20)?);
            (source, destination, destination[0] >> 4 == 0xe)
        }
        6 => {
            let (source, destination) = (head.get(8..24)?, head.get(24..40)?);
            (source, destination, destination[0] == 0xff)
        }
        _ => return None,
    };
    let destination = match destination {
        [0xff, 0xff, 0xff, 0xff] => FrameDestination::All,
        _ if is_multicast => FrameDestination::Many,
        _ => FrameDestination::Station(AddressKey::ip(destination)),
    };
    // The unspecified address (0.0.0.0 or ::, used by DHCP and duplicate address detection)
    // identifies no host.
    Some(Addresses {
        source: source.iter().any(|&byte| byte != 0).then(|| AddressKey::ip(source)),
        destination,
    })
}

/// Returns the offset of the outermost IP header from the start of the packet. For a packet that is
/// not IP, this is the offset after the link header.
#[inline]
pub(crate) fn network_offset(head: &[u8], metadata: &Metadata) -> usize {
    if let Some(layout) = &metadata.layout {
        return usize::from(layout.outermost());
    }
    if metadata.layer == Layer::Ip {
        return 0;
    }
    let mut offset = ETHERNET;
    while let Some(&[a, b]) = head.get(offset - 2..offset)
        && TAGS.contains(&u16::from_be_bytes([a, b]))
    {
        offset += 4;
    }
    offset
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::recorder::{aggregate, gro};
    use superpacket::packet::{RxPacket, VlanTag};

    /// Returns the addresses of a frame, and the offset of its IP header, for tests.
    fn read(frame: &[u8], layer: Layer, vlan: Option<VlanTag>) -> (Option<Addresses>, usize) {
        let mut packet = RxPacket::new(Buffer::from(frame.to_vec()));
        (packet.layer, packet.vlan) = (layer, vlan);
        let mut result = None;
        let sink: &mut dyn FnMut(SuperPacket<'_, Buffer>) = &mut |packet| {
            let head = PacketHead::new(&packet, MAX_HEADER);
            result = Some((
                addresses(head.bytes(&packet), &packet.metadata),
                network_offset(head.bytes(&packet), &packet.metadata),
            ));
        };
        aggregate(gro(), [packet], sink);
        result.expect("one packet")
    }

    fn ethernet(destination: [u8; 6], source: [u8; 6], rest: &[u8]) -> Vec<u8> {
        [&destination[..], &source, rest].concat()
    }

    const A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
    const B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];

    #[test]
    fn the_vlan_is_part_of_the_address_wherever_the_tag_is() {
        let tagged = ethernet(B, A, &[0x81, 0, 0x20, 7, 0x88, 0xb5, 1, 2]);
        let plain = ethernet(B, A, &[0x88, 0xb5, 1, 2]);
        let expected = Addresses {
            source: Some(AddressKey::ethernet(A, 7)),
            destination: FrameDestination::Station(AddressKey::ethernet(B, 7)),
        };
        assert_eq!(read(&tagged, Layer::Ethernet, None), (Some(expected), 18));
        assert_eq!(
            read(&plain, Layer::Ethernet, Some(VlanTag { protocol: 0x8100, control: 7 })),
            (Some(expected), 14)
        );
    }

    #[test]
    fn multicast_and_link_local_destinations_are_recognized() {
        let to = |address| {
            read(&ethernet(address, A, &[0x88, 0xb5]), Layer::Ethernet, None)
                .0
                .map(|read| read.destination)
        };
        assert_eq!(to([0xff; 6]), Some(FrameDestination::All));
        assert_eq!(to([1, 0, 0x5e, 0, 0, 1]), Some(FrameDestination::Many));
        assert_eq!(to([1, 0x80, 0xc2, 0, 0, 0]), Some(FrameDestination::Many));
        assert_eq!(to([1, 0x80, 0xc2, 0, 0, 0xe]), Some(FrameDestination::Neighbour));
        assert_eq!(to([1, 0x80, 0xc2, 0, 0, 0x10]), Some(FrameDestination::Many));
        assert_eq!(
            read(&ethernet(B, [3, 0, 0, 0, 0, 1], &[8, 0]), Layer::Ethernet, None)
                .0
                .map(|read| read.source),
            Some(None)
        );
        assert_eq!(read(&ethernet(B, A, &[])[..12], Layer::Ethernet, None).0, None);
    }

    #[test]
    fn packets_without_a_link_layer_use_their_ip_addresses() {
        let mut packet = [0; 20];
        packet[0] = 0x45;
        packet[12..16].copy_from_slice(&[10, 0, 0, 1]);
        packet[16..20].copy_from_slice(&[10, 0, 0, 2]);
        let (read, network) = read(&packet, Layer::Ip, None);
        let expected = Addresses {
            source: Some(AddressKey::ip(&[10, 0, 0, 1])),
            destination: FrameDestination::Station(AddressKey::ip(&[10, 0, 0, 2])),
        };
        assert_eq!((read, network), (Some(expected), 0));
        for (destination, expected) in [
            ([255, 255, 255, 255], FrameDestination::All),
            ([224, 0, 0, 251], FrameDestination::Many),
        ] {
            packet[16..20].copy_from_slice(&destination);
            assert_eq!(
                self::read(&packet, Layer::Ip, None).0.map(|read| read.destination),
                Some(expected)
            );
        }
    }
}
