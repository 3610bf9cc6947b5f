//! Where each header of a packet starts.

use crate::aggregate::Reason;

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
    /// Offset of what follows the outer IP header and its extension headers: UDP, GRE, or the inner IP header.
    pub transport: u16,
    /// What carries the inner packet.
    pub tunnel: Tunnel,
}

/// Offsets of a packet's headers, in bytes from the start of the frame (or of the IP packet, where there is no link header).
///
/// `outer.network < outer.transport <= network < transport < payload <= end`, and `payload <= MAX_HEADER`.
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
    /// The innermost IPv6 header is followed by a hop-by-hop header that holds just a jumbo payload option.
    pub jumbo: bool,
    /// The end of the outermost IP packet by its length field; the frame's end where that field is 0. What follows is padding.
    pub end: u32,
    /// Something that the parse saw and that rules out aggregation, although the flow is known.
    pub refusal: Option<Reason>,
}

impl Layout {
    /// The layout that most packets have: TCP in IPv4 without options, in Ethernet without tags.
    pub(crate) const fn usual(payload: u16, end: u32) -> Layout {
        let network = super::ethernet::HEADER_LENGTH as u16;
        let transport = network + super::ipv4::HEADER_LENGTH as u16;
        Layout {
            outer: None,
            network,
            version: IpVersion::V4,
            transport,
            protocol: Protocol::Tcp,
            payload,
            pppoe: 0,
            jumbo: false,
            end,
            refusal: None,
        }
    }

    /// Lends the layout to code that is not compiled into its caller's: one made anew, if it is [the usual](Self::usual), so that what the caller knows of its own stays
    /// known when compiled.
    #[inline(always)]
    pub(crate) fn lend<const USUAL: bool, R>(&self, to: impl FnOnce(&Layout) -> R) -> R {
        if USUAL { to(&Layout::usual(self.payload, self.end)) } else { to(self) }
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
