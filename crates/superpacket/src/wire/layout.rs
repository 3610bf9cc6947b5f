//! Where each header of a packet starts.

use super::Refusal;

/// The layer that a packet's first byte belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layer {
    /// At the Ethernet header.
    #[default]
    Ethernet,
    /// At the IP header: TUN devices, raw-IP captures.
    Ip,
}

/// The headers between an Ethernet header and an IP header, by what a receiver must know to segment
/// the packet.
///
/// Of several kinds in one frame, the Ethernet frame inside a tunnel among them, the layout names
/// the last in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LinkHeader {
    /// None, or an Ethernet header alone.
    #[default]
    Plain,
    /// One or two VLAN tags of IEEE 802.1Q (0x8100) or 802.1ad (0x88a8).
    Vlan,
    /// A VLAN tag of another type (0x9100), or more than two tags.
    OtherTags,
    /// A PPPoE session header (RFC 2516).
    Pppoe,
    /// MPLS labels (RFC 3032).
    Mpls,
}

impl LinkHeader {
    /// All kinds, in order.
    pub const ALL: [LinkHeader; 5] = [
        LinkHeader::Plain,
        LinkHeader::Vlan,
        LinkHeader::OtherTags,
        LinkHeader::Pppoe,
        LinkHeader::Mpls,
    ];

    /// Returns the name that reports use.
    pub const fn name(self) -> &'static str {
        match self {
            LinkHeader::Plain => "plain",
            LinkHeader::Vlan => "vlan",
            LinkHeader::OtherTags => "other-tags",
            LinkHeader::Pppoe => "pppoe",
            LinkHeader::Mpls => "mpls",
        }
    }
}

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpVersion {
    /// Version 4.
    V4,
    /// Version 6.
    V6,
}

/// The transport protocols that aggregate and segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// DCCP.
    Dccp,
}

impl Protocol {
    /// Returns the IP protocol number.
    #[inline]
    pub const fn number(self) -> u8 {
        match self {
            Protocol::Tcp => super::protocol::TCP,
            Protocol::Udp => super::protocol::UDP,
            Protocol::Dccp => super::protocol::DCCP,
        }
    }

    /// Returns the offset of the checksum in the transport header, in bytes.
    #[inline]
    pub const fn checksum_offset(self) -> u16 {
        match self {
            Protocol::Tcp => super::tcp::CHECKSUM as u16,
            Protocol::Udp => super::udp::CHECKSUM as u16,
            Protocol::Dccp => super::dccp::CHECKSUM as u16,
        }
    }
}

/// The kinds of tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tunnel {
    /// VXLAN over UDP: the inner packet is an Ethernet frame.
    Vxlan,
    /// Geneve over UDP: the inner packet is an Ethernet frame or IP.
    Geneve,
    /// GRE: the inner packet is IP or an Ethernet frame.
    Gre,
    /// IP directly in IP: IPIP, SIT, IPv4 or IPv6 in IPv6.
    Ip,
}

impl Tunnel {
    /// Returns whether the tunnel has an outer UDP header.
    #[inline]
    pub const fn is_udp(self) -> bool {
        matches!(self, Tunnel::Vxlan | Tunnel::Geneve)
    }
}

/// The outer headers of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Outer {
    /// Offset of the outer IP header from the start of the frame, in bytes.
    pub network: u16,
    /// Version of the outer IP header.
    pub version: IpVersion,
    /// Offset of what follows the outer IP header and its extension headers: UDP, GRE, or the inner
    /// IP header.
    pub transport: u16,
    /// Kind of tunnel.
    pub tunnel: Tunnel,
}

impl Outer {
    /// Returns the offset of the tunnel's own checksum from the start of the frame, in bytes;
    /// `None` if the packet has none. The checksum of [UDP](Tunnel::is_udp) covers a pseudo-header,
    /// that of GRE does not.
    #[inline]
    pub fn checksum(&self, header: &[u8]) -> Option<usize> {
        let transport = usize::from(self.transport);
        match self.tunnel {
            Tunnel::Vxlan | Tunnel::Geneve => Some(transport + super::udp::CHECKSUM)
                .filter(|&place| super::be16(header, place) != 0),
            Tunnel::Gre => Some(transport + super::gre::CHECKSUM)
                .filter(|_| super::be16(header, transport) & super::gre::CHECKSUM_PRESENT != 0),
            Tunnel::Ip => None,
        }
    }
}

/// Offsets of a packet's headers, in bytes from the start of the frame (of the IP packet, if there
/// is no link header).
///
/// `outer.network < outer.transport <= network < transport < payload <= end`, and
/// `payload <= MAX_HEADER`. In a tunnel in a tunnel `nested` lies between the two:
/// `outer.transport < nested.network < nested.transport < network`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Layout {
    /// The outermost headers, if the packet is tunnelled.
    pub outer: Option<Outer>,
    /// The headers of the second tunnel, if there is one in the first: VXLAN or Geneve in VXLAN or
    /// Geneve. `None` if `outer` is.
    pub nested: Option<Outer>,
    /// The headers between Ethernet and IP headers.
    pub link: LinkHeader,
    /// The innermost IP header.
    pub network: u16,
    /// Version of the innermost IP header.
    pub version: IpVersion,
    /// The transport header.
    pub transport: u16,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The first byte of payload, and so the length of all headers.
    pub payload: u16,
    /// The PPPoE header, or 0 if there is none (a frame cannot start with one).
    pub pppoe: u8,
    /// Whether the innermost IPv6 header is followed by a hop-by-hop header with a jumbo payload
    /// option alone.
    pub jumbo: bool,
    /// The end of the outermost IP packet by its length field; the end of the frame if that field
    /// is 0. What follows is padding.
    pub end: u32,
    /// What rules out aggregation, although the flow is known.
    pub refusal: Option<Refusal>,
}

// A layout leaves with each packet: with one byte more, more would be copied.
const _: () = assert!(size_of::<Layout>() == 28);

impl Layout {
    /// Makes a [usual] layout.
    #[inline(always)]
    pub(crate) const fn usual(kind: u8, payload: u16, end: u32) -> Layout {
        let network = if matches!(usual::layer(kind), Layer::Ethernet) {
            super::ethernet::HEADER_LENGTH
        } else {
            0
        };
        let (version, length) = match kind {
            usual::ETHERNET_IPV4 | usual::IPV4 => (IpVersion::V4, super::ipv4::HEADER_LENGTH),
            _ => (IpVersion::V6, super::ipv6::HEADER_LENGTH),
        };
        Layout {
            outer: None,
            nested: None,
            link: LinkHeader::Plain,
            network: network as u16,
            version,
            transport: (network + length) as u16,
            protocol: Protocol::Tcp,
            payload,
            pppoe: 0,
            jumbo: false,
            end,
            refusal: None,
        }
    }

    /// Returns the same layout, made of constants if it is this [usual] one.
    #[inline(always)]
    pub(crate) fn known<const USUAL: u8>(&self) -> Layout {
        if USUAL == usual::NONE { *self } else { Layout::usual(USUAL, self.payload, self.end) }
    }

    /// Lends the layout to a function that may not be inlined. A [usual] one is made anew from
    /// constants: were its own address lent, the compiler could no longer take the caller's for
    /// constant. Any other is lent where it lies.
    #[inline(always)]
    pub(crate) fn lend<const USUAL: u8, R>(&self, to: impl FnOnce(&Layout) -> R) -> R {
        if USUAL == usual::NONE { to(self) } else { to(&self.known::<USUAL>()) }
    }

    /// Returns the outer headers of each tunnel, from the outermost to the innermost.
    #[inline(always)]
    pub fn outers(&self) -> impl DoubleEndedIterator<Item = Outer> + use<> {
        self.outer.into_iter().chain(self.nested)
    }

    /// Returns the offset of the outermost IP header, and so the length of the link header.
    #[inline]
    pub const fn outermost(&self) -> u16 {
        match self.outer {
            Some(outer) => outer.network,
            None => self.network,
        }
    }

    /// Returns the offset of the transport checksum from the start of the frame.
    #[inline]
    pub const fn checksum(&self) -> u16 {
        self.transport + self.protocol.checksum_offset()
    }
}

/// The layouts that most packets have: TCP in IP without options or extension headers, in Ethernet
/// without tags or by itself. Code is compiled once for each, with all but `payload` and `end`
/// constant. Numbers, since const parameters cannot be enums.
pub(crate) mod usual {
    /// Any other layout.
    pub(crate) const NONE: u8 = 0;
    pub(crate) const ETHERNET_IPV4: u8 = 1;
    pub(crate) const ETHERNET_IPV6: u8 = 2;
    pub(crate) const IPV4: u8 = 3;
    pub(crate) const IPV6: u8 = 4;

    /// Returns the layer at which a packet with such a layout starts.
    pub(crate) const fn layer(kind: u8) -> super::Layer {
        if matches!(kind, ETHERNET_IPV4 | ETHERNET_IPV6) {
            super::Layer::Ethernet
        } else {
            super::Layer::Ip
        }
    }
}
