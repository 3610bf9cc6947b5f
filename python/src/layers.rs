//! The headers of a packet, as far as they are understood.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use superpacket::packet::Layer;
use superpacket::wire::{
    IpVersion, Layout, MAX_HEADER, Outer, Protocol, Tunnel, ethernet, ip_headers, ipv4, ipv6,
    parse, udp,
};
use superpacket_captures::LinkType;
use superpacket_captures::file::{Start, start_of};
use superpacket_steer::FlowTuple;

/// Where a packet's headers lie, as far as they are understood: offsets from the start of what lies
/// behind the link header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layers {
    /// Where the engine's packet begins in the frame.
    pub(crate) link: usize,
    pub(crate) layout: Option<Layout>,
    pub(crate) tuple: Option<FlowTuple>,
    /// The innermost IP header that could be found, if the headers could not be read to their end.
    pub(crate) network: Option<u16>,
    is_ethernet: bool,
}

/// The TCP header without its options.
pub(crate) struct TcpHeader<'a>(&'a [u8; 20]);

impl TcpHeader<'_> {
    fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    pub(crate) fn sequence(&self) -> u32 {
        self.word(4)
    }

    pub(crate) fn acknowledgement(&self) -> u32 {
        self.word(8)
    }

    pub(crate) fn flags(&self) -> u8 {
        self.0[13]
    }

    pub(crate) fn window(&self) -> u16 {
        u16::from_be_bytes([self.0[14], self.0[15]])
    }
}

/// The length of a MAC address in bytes.
pub(crate) const MAC: usize = 6;

impl Layers {
    /// Finds the headers of a frame that was `original_length` bytes long.
    #[inline]
    pub(crate) fn find(link_type: LinkType, data: &[u8], original_length: u32) -> Layers {
        let (layer, link) = match start_of(link_type, data) {
            Start::Ethernet => (Layer::Ethernet, 0),
            Start::Ip { header_length } => (Layer::Ip, header_length),
            Start::Other => {
                let is_ethernet = false;
                return Layers { link: 0, layout: None, tuple: None, network: None, is_ethernet };
            }
        };
        let is_ethernet = layer == Layer::Ethernet;
        let packet = data.get(link..).unwrap_or(&[]);
        let length = packet.len().max((original_length as usize).saturating_sub(link));
        let header = packet.get(..MAX_HEADER).unwrap_or(packet);
        match parse(header, length, layer) {
            Ok(layout) => Layers {
                link,
                layout: Some(layout),
                tuple: Some(FlowTuple::from_layout(header, &layout)),
                network: Some(layout.network),
                is_ethernet,
            },
            Err(_) => {
                let network = ip_headers(header, length, layer)
                    .into_iter()
                    .flatten()
                    .last()
                    .map(|(network, _)| network);
                Layers {
                    link,
                    layout: None,
                    tuple: FlowTuple::innermost(header, length, layer),
                    network,
                    is_ethernet,
                }
            }
        }
    }

    /// Where the payload behind the transport header lies in the frame of so many bytes.
    #[inline]
    pub(crate) fn payload(&self, length: usize) -> Option<(usize, usize)> {
        let layout = self.layout.as_ref()?;
        let start = self.link + usize::from(layout.payload);
        let end = (self.link + layout.end as usize).min(length);
        (start <= end).then_some((start, end))
    }

    /// How many bytes of payload the IP header says there are.
    #[inline]
    pub(crate) fn payload_length(&self) -> Option<u32> {
        let layout = self.layout.as_ref()?;
        Some(layout.end.saturating_sub(u32::from(layout.payload)))
    }

    /// The TCP header of a frame of these bytes.
    #[inline]
    pub(crate) fn tcp<'a>(&self, data: &'a [u8]) -> Option<TcpHeader<'a>> {
        let layout = self.layout.as_ref().filter(|layout| layout.protocol == Protocol::Tcp)?;
        let start = self.link + usize::from(layout.transport);
        data.get(start..)?.first_chunk().map(TcpHeader)
    }

    /// Destination and source of the frame's own Ethernet header.
    #[inline]
    pub(crate) fn macs<'a>(&self, data: &'a [u8]) -> Option<[&'a [u8; MAC]; 2]> {
        let (destination, rest) = data.split_first_chunk().filter(|_| self.is_ethernet)?;
        Some([destination, rest.first_chunk()?])
    }

    /// The identifier in the outermost VLAN tag of the frame's own Ethernet header.
    #[inline]
    pub(crate) fn vlan(&self, data: &[u8]) -> Option<u16> {
        let tag = data.get(ethernet::ETHERTYPE..)?.first_chunk::<4>()?;
        let is_tagged = self.is_ethernet && ethernet::is_vlan(u16::from_be_bytes([tag[0], tag[1]]));
        is_tagged.then_some(u16::from_be_bytes([tag[2], tag[3]]) & 0x0FFF)
    }

    /// The bytes from the innermost IP header on, and its version.
    #[inline]
    fn ip<'a>(&self, data: &'a [u8]) -> Option<(&'a [u8], IpVersion)> {
        let network = self.link + usize::from(self.network?);
        Some((data.get(network..)?, self.tuple?.version()))
    }

    /// Time to live, or hop limit, of the innermost IP header.
    #[inline]
    pub(crate) fn ttl(&self, data: &[u8]) -> Option<u8> {
        let (header, version) = self.ip(data)?;
        let field = if version == IpVersion::V4 { ipv4::TTL } else { ipv6::HOP_LIMIT };
        header.get(field).copied()
    }

    /// Identification of the innermost IPv4 header.
    #[inline]
    pub(crate) fn ip_id(&self, data: &[u8]) -> Option<u16> {
        let (header, version) = self.ip(data)?;
        let field = header.get(ipv4::ID..)?.first_chunk().filter(|_| version == IpVersion::V4)?;
        Some(u16::from_be_bytes(*field))
    }

    /// The headers of the outermost tunnel.
    #[inline]
    pub(crate) fn tunnel(&self) -> Option<Outer> {
        self.layout.as_ref().and_then(|layout| layout.outer)
    }

    /// Source and destination of the outermost tunnel.
    #[inline]
    pub(crate) fn tunnel_ends(&self, data: &[u8]) -> Option<[IpAddr; 2]> {
        let outer = self.tunnel()?;
        let header = data.get(self.link + usize::from(outer.network)..)?;
        if outer.version == IpVersion::V4 {
            let bytes: &[u8; 8] = header.get(ipv4::ADDRESSES..)?.first_chunk()?;
            let address = |at: usize| Ipv4Addr::from([0, 1, 2, 3].map(|byte| bytes[at + byte]));
            Some([address(0).into(), address(4).into()])
        } else {
            let (source, rest) = header.get(ipv6::ADDRESSES..)?.split_first_chunk::<16>()?;
            let destination = rest.first_chunk::<16>()?;
            Some([Ipv6Addr::from(*source).into(), Ipv6Addr::from(*destination).into()])
        }
    }

    /// The network identifier of the outermost tunnel, if it is VXLAN or Geneve.
    #[inline]
    pub(crate) fn vni(&self, data: &[u8]) -> Option<u32> {
        let outer = self.tunnel()?;
        if !matches!(outer.tunnel, Tunnel::Vxlan | Tunnel::Geneve) {
            return None;
        }
        let start = self.link + usize::from(outer.transport) + udp::HEADER_LENGTH + 4;
        let field: &[u8; 4] = data.get(start..)?.first_chunk()?;
        Some(u32::from_be_bytes(*field) >> 8)
    }
}

/// A MAC address as text: six numbers of two hexadecimal digits.
#[inline]
pub(crate) fn mac_text(address: &[u8; MAC]) -> [u8; 17] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [b':'; 17];
    for (digits, byte) in text.chunks_mut(3).zip(address) {
        digits[0] = DIGITS[usize::from(byte >> 4)];
        digits[1] = DIGITS[usize::from(byte & 0xF)];
    }
    text
}

/// An address as text: IPv4 without the general way of formatting, which takes three times as long.
#[inline]
pub(crate) fn with_address<T>(
    address: IpAddr,
    text: &mut String,
    then: impl FnOnce(&str) -> T,
) -> T {
    text.clear();
    match address {
        IpAddr::V4(address) => {
            let mut bytes = [b'.'; 15];
            let mut at = 0;
            for octet in address.octets() {
                if octet >= 100 {
                    bytes[at] = b'0' + octet / 100;
                    at += 1;
                }
                if octet >= 10 {
                    bytes[at] = b'0' + octet / 10 % 10;
                    at += 1;
                }
                bytes[at] = b'0' + octet % 10;
                at += 2;
            }
            // The last octet has no dot behind it; all bytes are ASCII.
            then(std::str::from_utf8(&bytes[..at - 1]).unwrap_or_default())
        }
        IpAddr::V6(address) => {
            // A string takes whatever is written.
            let _ = write!(text, "{address}");
            then(text)
        }
    }
}
