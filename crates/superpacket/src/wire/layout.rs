//! Where each header of a packet starts.

use super::Refusal;

/// Where a packet starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layer {
    /// At the Ethernet header.
    #[default]
    Ethernet,
    /// At the IP header: TUN devices, raw-IP captures.
    Ip,
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
    /// The IP protocol number.
    #[inline]
    pub const fn number(self) -> u8 {
        match self {
            Protocol::Tcp => super::protocol::TCP,
            Protocol::Udp => super::protocol::UDP,
            Protocol::Dccp => super::protocol::DCCP,
        }
    }

    /// Offset of the checksum in the transport header, in bytes.
    #[inline]
    pub const fn checksum_offset(self) -> u16 {
        match self {
            Protocol::Tcp => super::tcp::CHECKSUM as u16,
            Protocol::Udp => super::udp::CHECKSUM as u16,
            Protocol::Dccp => super::dccp::CHECKSUM as u16,
        }
    }
}

/// What carries the inner packet.
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
    /// Does an outer UDP header carry it?
    #[inline]
    pub const fn is_udp(self) -> bool {
        matches!(self, Tunnel::Vxlan | Tunnel::Geneve)
    }
}

/// The outer headers of a tunnelled packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Outer {
    /// Offset of the outer IP header from the start of the frame, in bytes.
    pub network: u16,
    /// Its version.
    pub version: IpVersion,
    /// Offset of what follows the outer IP header and its extension headers: UDP, GRE, or the inner
    /// IP header.
    pub transport: u16,
    /// What carries the inner packet.
    pub tunnel: Tunnel,
}

impl Outer {
    /// Offset of the tunnel's own checksum from the start of the frame, in bytes; `None` if the
    /// tunnel has none in this packet. It is UDP's, with a pseudo-header, where the
    /// [tunnel](Tunnel::is_udp) is, and GRE's, without, else.
    #[inline]
    pub fn checksum(&self, header: &[u8]) -> Option<usize> {
        let transport = usize::from(self.transport);
        match self.tunnel {
            Tunnel::Vxlan | Tunnel::Geneve => Some(transport + super::udp::CHECKSUM).filter(|&place| super::be16(header, place) != 0),
            Tunnel::Gre => {
                Some(transport + super::gre::CHECKSUM).filter(|_| super::be16(header, transport) & super::gre::CHECKSUM_PRESENT != 0)
            }
            Tunnel::Ip => None,
        }
    }
}

/// Offsets of a packet's headers, in bytes from the start of the frame (or of the IP packet, where
/// there is no link header).
///
/// `outer.network < outer.transport <= network < transport < payload <= end`, and
/// `payload <= MAX_HEADER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// The outer headers, if the packet is tunnelled.
    pub outer: Option<Outer>,
    /// The innermost IP header.
    pub network: u16,
    /// Its version.
    pub version: IpVersion,
    /// The transport header.
    pub transport: u16,
    /// Its protocol.
    pub protocol: Protocol,
    /// The first byte of payload: the length of all headers.
    pub payload: u16,
    /// The PPPoE header, or 0 if there is none (a frame cannot start with one).
    pub pppoe: u16,
    /// The innermost IPv6 header is followed by a hop-by-hop header that holds just a jumbo payload
    /// option.
    pub jumbo: bool,
    /// The end of the outermost IP packet by its length field, or the frame's end where that field
    /// is 0. What follows is padding.
    pub end: u32,
    /// Something that the parse saw and that rules out aggregation, although the flow is known.
    pub refusal: Option<Refusal>,
}

impl Layout {
    /// A [usual] layout.
    #[inline(always)]
    pub(crate) const fn usual(kind: u8, payload: u16, end: u32) -> Layout {
        let network = if matches!(kind, usual::ETHERNET_IPV4 | usual::ETHERNET_IPV6) { super::ethernet::HEADER_LENGTH } else { 0 };
        let (version, length) = match kind {
            usual::ETHERNET_IPV4 | usual::IPV4 => (IpVersion::V4, super::ipv4::HEADER_LENGTH),
            _ => (IpVersion::V6, super::ipv6::HEADER_LENGTH),
        };
        Layout {
            outer: None,
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

    /// The same layout, made of constants if it is this [usual] one.
    #[inline(always)]
    pub(crate) fn known<const USUAL: u8>(&self) -> Layout {
        if USUAL == usual::NONE { *self } else { Layout::usual(USUAL, self.payload, self.end) }
    }

    /// Lends the layout to code that is not compiled into its caller's: one made anew, if it is
    /// [usual], so that what the caller knows of its own stays known when compiled. Any other is
    /// lent where it lies.
    #[inline(always)]
    pub(crate) fn lend<const USUAL: u8, R>(&self, to: impl FnOnce(&Layout) -> R) -> R {
        if USUAL == usual::NONE { to(self) } else { to(&self.known::<USUAL>()) }
    }

    /// Offset of the outermost IP header: the length of the link header.
    #[inline]
    pub const fn outermost(&self) -> u16 {
        match self.outer {
            Some(outer) => outer.network,
            None => self.network,
        }
    }

    /// Offset of the transport checksum from the start of the frame.
    #[inline]
    pub const fn checksum(&self) -> u16 {
        self.transport + self.protocol.checksum_offset()
    }
}

/// The layouts that most packets have: TCP in IP without options or extension headers, in Ethernet
/// without tags or by itself. Of such a layout all but `payload` and `end` is known when compiled,
/// and so is what follows from it in code that is compiled for it apart: for each of these numbers,
/// as values of other types cannot be parameters.
pub(crate) mod usual {
    /// None of these.
    pub(crate) const NONE: u8 = 0;
    pub(crate) const ETHERNET_IPV4: u8 = 1;
    pub(crate) const ETHERNET_IPV6: u8 = 2;
    pub(crate) const IPV4: u8 = 3;
    pub(crate) const IPV6: u8 = 4;
}
