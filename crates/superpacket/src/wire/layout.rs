//! The offsets of a packet's headers.

use super::{IpVersion, Outer, Refusal};

/// The layer that a packet's first byte belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layer {
    /// Ethernet: the first byte belongs to an Ethernet header.
    #[default]
    Ethernet,
    /// IP: the first byte belongs to an IP header, as in TUN devices and raw-IP captures.
    Ip,
}

/// The kind of headers between an Ethernet header and an IP header. Some receivers can segment
/// packets with certain kinds only.
///
/// If a frame has several kinds, also inside a tunnel, the layout has the last in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LinkHeader {
    /// No link header, or an Ethernet header without VLAN tags.
    #[default]
    Plain,
    /// One or two VLAN tags of IEEE 802.1Q (0x8100) or 802.1ad (0x88a8).
    Vlan,
    /// A VLAN tag of another type (0x9100), or more than two tags. Linux does not segment behind
    /// them.
    OtherTags,
    /// A PPPoE session header (RFC 2516). Linux does not segment behind it.
    Pppoe,
    /// MPLS labels (RFC 3032). Linux does not segment behind them.
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

/// The transport protocols that are aggregated and segmented.
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

/// Offsets of a packet's headers, in bytes from the start of the frame (of the IP packet, if there
/// is no link header).
///
/// `outer.network < outer.transport <= network < transport < payload <= end`, and `payload <=
/// MAX_HEADER`. For a tunnel in a tunnel, `nested` lies between the two: `outer.transport <
/// nested.network < nested.transport < network`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Layout {
    /// The outermost headers, if the packet is in a tunnel.
    pub outer: Option<Outer>,
    /// The headers of the second tunnel, if the packet is in a UDP tunnel inside another one.
    /// `None` if `outer` is `None`.
    pub nested: Option<Outer>,
    /// The headers between Ethernet and IP headers.
    pub link: LinkHeader,
    /// Offset of the innermost IP header.
    pub network: u16,
    /// Version of the innermost IP header.
    pub version: IpVersion,
    /// Offset of the transport header.
    pub transport: u16,
    /// The transport protocol.
    pub protocol: Protocol,
    /// Offset of the payload, which is the length of all headers.
    pub payload: u16,
    /// Offset of the PPPoE header; 0 if there is none (a frame cannot start with one).
    pub pppoe: u8,
    /// Whether the innermost IPv6 header is followed only by a hop-by-hop header with a jumbo
    /// payload option.
    pub jumbo: bool,
    /// End of the outermost IP packet by its length field; the end of the frame if that field is 0.
    /// Later bytes are padding.
    pub end: u32,
    /// The reason why the packet must not be aggregated, although its flow is known.
    pub refusal: Option<Refusal>,
}

/// An IP header of a packet, and the header after it. Offsets are in bytes from the start of the
/// frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Level {
    /// Offset of the IP header.
    pub network: u16,
    /// Version of the IP header.
    pub version: IpVersion,
    /// Offset of the header after the IP header and its extension headers.
    pub transport: u16,
}

// Each packet leaves with a layout, so its size adds to every copy.
const _: () = assert!(size_of::<Layout>() == 28);

impl Layout {
    /// Makes one of the [most frequent layouts](usual), without options, extension headers and
    /// tunnel. `kind` is its number in that module, `payload` the offset of the payload, and `end`
    /// that of the payload's end. All other fields are constants.
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

    /// Returns the same layout, made of constants if it has this [usual] kind.
    #[inline(always)]
    pub(crate) fn known<const USUAL: u8>(&self) -> Layout {
        if USUAL == usual::NONE { *self } else { Layout::usual(USUAL, self.payload, self.end) }
    }

    /// Passes the layout to a function that may not be inlined. A [usual] one is passed as a copy
    /// made of constants: if its own address escaped, the compiler could no longer treat the
    /// caller's layout as constant. Any other is passed by reference.
    #[inline(always)]
    pub(crate) fn lend<const USUAL: u8, R>(&self, to: impl FnOnce(&Layout) -> R) -> R {
        if USUAL == usual::NONE { to(self) } else { to(&self.known::<USUAL>()) }
    }

    /// Returns the outer headers of each tunnel, from the outermost to the innermost.
    #[inline(always)]
    pub fn outers(&self) -> impl DoubleEndedIterator<Item = Outer> + use<> {
        self.outer.into_iter().chain(self.nested)
    }

    /// Returns the IP headers, from the outermost to the innermost.
    #[inline]
    pub fn levels(&self) -> impl DoubleEndedIterator<Item = Level> + use<> {
        let innermost =
            Level { network: self.network, version: self.version, transport: self.transport };
        let outer = |outer: Outer| Level {
            network: outer.network,
            version: outer.version,
            transport: outer.transport,
        };
        self.outers().map(outer).chain([innermost])
    }

    /// Returns the offset of the outermost IP header, which is the length of the link header.
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
/// without tags or without Ethernet. Code is compiled separately for each, with all fields but
/// `payload` and `end` constant. They are numbers because const parameters cannot be enums.
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
