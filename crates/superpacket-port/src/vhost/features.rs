//! The virtio features that the device offers to guests, and their consequences for packets.

use superpacket::packet::RxChecksum;
use superpacket::segment::GsoSupport;
use superpacket::virtio::{ByteOrder, Format, Header, flags, gso_type};

use crate::features::{Feature, FeatureSet};
use crate::{Capabilities, MAX_SLICES, TxFrame};

/// Numbers of feature bits (virtio 1.3, sections 5.1.3 and 6; vhost-user for bit 30).
mod bit {
    pub(super) const CSUM: u32 = 0;
    pub(super) const GUEST_CSUM: u32 = 1;
    pub(super) const GUEST_TSO4: u32 = 7;
    pub(super) const GUEST_TSO6: u32 = 8;
    pub(super) const GUEST_ECN: u32 = 9;
    pub(super) const HOST_TSO4: u32 = 11;
    pub(super) const HOST_TSO6: u32 = 12;
    pub(super) const HOST_ECN: u32 = 13;
    pub(super) const MRG_RXBUF: u32 = 15;
    pub(super) const MQ: u32 = 22;
    pub(super) const ANY_LAYOUT: u32 = 27;
    pub(super) const EVENT_IDX: u32 = 29;
    pub(super) const PROTOCOL_FEATURES: u32 = 30;
    pub(super) const VERSION_1: u32 = 32;
    pub(super) const IN_ORDER: u32 = 35;
    pub(super) const GUEST_UDP_TUNNEL_GSO: u32 = 46;
    pub(super) const GUEST_UDP_TUNNEL_GSO_CSUM: u32 = 47;
    pub(super) const HOST_UDP_TUNNEL_GSO: u32 = 48;
    pub(super) const HOST_UDP_TUNNEL_GSO_CSUM: u32 = 49;
    pub(super) const GUEST_USO4: u32 = 54;
    pub(super) const GUEST_USO6: u32 = 55;
    pub(super) const HOST_USO: u32 = 56;
}

/// All features that are offered to a guest with several queues.
const OFFERED: [u32; 22] = [
    bit::CSUM,
    bit::GUEST_CSUM,
    bit::GUEST_TSO4,
    bit::GUEST_TSO6,
    bit::GUEST_ECN,
    bit::HOST_TSO4,
    bit::HOST_TSO6,
    bit::HOST_ECN,
    bit::MRG_RXBUF,
    bit::MQ,
    bit::ANY_LAYOUT,
    bit::EVENT_IDX,
    bit::PROTOCOL_FEATURES,
    bit::VERSION_1,
    bit::IN_ORDER,
    bit::GUEST_UDP_TUNNEL_GSO,
    bit::GUEST_UDP_TUNNEL_GSO_CSUM,
    bit::HOST_UDP_TUNNEL_GSO,
    bit::HOST_UDP_TUNNEL_GSO_CSUM,
    bit::GUEST_USO4,
    bit::GUEST_USO6,
    bit::HOST_USO,
];

/// Features of a virtio network device, as a bit mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GuestFeatures(pub(super) u64);

impl GuestFeatures {
    /// Returns the features that a device with this number of pairs of queues offers.
    pub(super) fn offered(queues: u16) -> Self {
        let all = OFFERED.iter().fold(0, |all, bit| all | 1 << bit);
        GuestFeatures(if queues == 1 { all & !(1 << bit::MQ) } else { all })
    }

    #[inline]
    const fn has(self, bit: u32) -> bool {
        self.0 & 1 << bit != 0
    }

    /// Returns whether the guest has accepted `VIRTIO_F_EVENT_IDX`: notifications are limited by
    /// event indexes in the rings.
    pub(super) const fn has_event_index(self) -> bool {
        self.has(bit::EVENT_IDX)
    }

    /// Returns whether rings are disabled until the front end enables them by a message.
    pub(super) const fn enables_rings(self) -> bool {
        self.has(bit::PROTOCOL_FEATURES)
    }

    /// Returns whether a frame may lie in several receive buffers.
    pub(super) const fn has_mergeable_buffers(self) -> bool {
        self.has(bit::MRG_RXBUF)
    }

    /// Returns the format of the header before each packet.
    pub(super) const fn format(self) -> Format {
        if self.has(bit::GUEST_UDP_TUNNEL_GSO) || self.has(bit::HOST_UDP_TUNNEL_GSO) {
            Format::Tunnel
        } else if self.has(bit::VERSION_1) || self.has(bit::MRG_RXBUF) {
            Format::Buffers
        } else {
            Format::Plain
        }
    }

    /// Returns the byte order of the header. That of older drivers is the machine's.
    pub(super) const fn order(self) -> ByteOrder {
        if self.has(bit::VERSION_1) { ByteOrder::Little } else { ByteOrder::NATIVE }
    }

    const fn takes_udp(self) -> bool {
        self.has(bit::GUEST_USO4) && self.has(bit::GUEST_USO6)
    }

    /// Returns the offloads and packet sizes that the guest accepts.
    pub(super) fn capabilities(self) -> Capabilities {
        let (tso4, tso6) = (self.has(bit::GUEST_TSO4), self.has(bit::GUEST_TSO6));
        let features = FeatureSet::all()
            .without(Feature::ReceiveHashing)
            .set(Feature::TxChecksumming, self.has(bit::GUEST_CSUM))
            .set(Feature::TcpSegmentationOffload, tso4 || tso6)
            .set(Feature::TxUdpSegmentation, self.takes_udp());
        let mut gso = GsoSupport::LINUX;
        (gso.tcp, gso.udp) = (tso4 || tso6, self.takes_udp());
        gso.udp_tunnels = self.has(bit::GUEST_UDP_TUNNEL_GSO);
        gso.max_segments = u32::from(u16::MAX);
        // A guest that takes super-packets over one version of IP only.
        if !tso4 && !self.takes_udp() {
            gso.max_ipv4_length = 0;
        }
        if !tso6 && !self.takes_udp() {
            gso.max_ipv6_length = 0;
        }
        Capabilities { features, gso, max_slices: MAX_SLICES }
    }

    /// Returns whether the guest takes frames with this header. The bridge may learn of a guest's
    /// features later than the guest begins to use its rings.
    pub(super) fn takes(self, header: &Header, frame: &TxFrame) -> bool {
        if matches!(frame.checksum, RxChecksum::Partial { .. }) && !self.has(bit::GUEST_CSUM) {
            return false;
        }
        let inner = header.gso_type & !(gso_type::UDP_TUNNEL | gso_type::ECN);
        let takes_type = match inner {
            gso_type::NONE => true,
            gso_type::TCPV4 => self.has(bit::GUEST_TSO4),
            gso_type::TCPV6 => self.has(bit::GUEST_TSO6),
            gso_type::UDP_L4 => self.takes_udp(),
            _ => false,
        };
        takes_type
            && (header.gso_type & gso_type::ECN == 0 || self.has(bit::GUEST_ECN))
            && (header.gso_type & gso_type::UDP_TUNNEL == 0 || self.has(bit::GUEST_UDP_TUNNEL_GSO))
            && (header.flags & flags::UDP_TUNNEL_CSUM == 0
                || self.has(bit::GUEST_UDP_TUNNEL_GSO_CSUM))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features(bits: &[u32]) -> GuestFeatures {
        GuestFeatures(bits.iter().fold(0, |all, bit| all | 1 << bit))
    }

    #[test]
    fn several_queues_are_offered_if_there_are_several() {
        let [one, two] = [1, 2].map(|queues| GuestFeatures::offered(queues).0);
        assert_eq!(two ^ one, 1 << bit::MQ);
        assert_eq!(one.count_ones(), 21);
    }

    #[test]
    fn the_header_is_as_long_as_the_features_need() {
        for (bits, format) in [
            (&[][..], Format::Plain),
            (&[bit::MRG_RXBUF], Format::Buffers),
            (&[bit::VERSION_1], Format::Buffers),
            (&[bit::VERSION_1, bit::HOST_UDP_TUNNEL_GSO], Format::Tunnel),
            (&[bit::VERSION_1, bit::GUEST_UDP_TUNNEL_GSO], Format::Tunnel),
        ] {
            assert_eq!(features(bits).format(), format);
        }
    }

    #[test]
    fn a_guest_is_given_what_it_takes() {
        let none = features(&[]).capabilities();
        assert!(!none.features.contains(Feature::TxChecksumming) && !none.gso.tcp);
        assert_eq!((none.gso.max_ipv4_length, none.gso.max_ipv6_length), (0, 0));
        let only4 = features(&[bit::GUEST_CSUM, bit::GUEST_TSO4]).capabilities();
        assert!(only4.features.contains(Feature::TcpSegmentationOffload));
        assert_eq!((only4.gso.max_ipv4_length, only4.gso.max_ipv6_length), (65_535, 0));
        assert!(!only4.gso.udp && !only4.gso.udp_tunnels);
        let all = GuestFeatures::offered(1).capabilities();
        assert!(all.gso.tcp && all.gso.udp && all.gso.udp_tunnels);
        assert_eq!((all.gso.max_ipv4_length, all.gso.max_ipv6_length), (65_535, 65_535));
    }
}
