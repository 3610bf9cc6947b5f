//! The super-packets that a receiver can segment.

use core::fmt;

use super::{Cwr, Gso, GsoKind, IpId, MaxSegments};
use crate::wire::{IpVersion, Layout, LinkHeader, Outer, Protocol, Tunnel};

/// Maximum length of an IP packet with a 16-bit length field, in bytes.
const MAX_IP_LENGTH: u32 = 65_535;

/// Minimum payload of the TCP segments that Linux makes, in bytes. Some kernels replace a smaller
/// size by this one.
const TCP_MIN_GSO_SIZE: u16 = 8;

/// The super-packets that a receiver can segment: the kernel behind a `virtio_net_hdr`, or a
/// device.
///
/// A `virtio_net_hdr` says how to segment, but not whether its receiver can. Linux finds the
/// segmentation function by the ethertype behind the VLAN tags (`skb_network_protocol`), and drops
/// a super-packet for which it has none: PPPoE, MPLS, other tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct GsoSupport {
    /// Whether TCP can be segmented.
    pub tcp: bool,
    /// Whether UDP can be segmented into datagrams (USO).
    pub udp: bool,
    /// The link headers behind which packets can be segmented.
    pub link_headers: LinkHeaders,
    /// Whether packets in one tunnel [over UDP](Tunnel::OVER_UDP) can be segmented.
    pub udp_tunnels: bool,
    /// Whether the receiver can be told that all segments have the same IPv4 identification.
    pub fixed_ids: bool,
    /// Whether the receiver can be told that all segments have CWR.
    pub cwr_on_all: bool,
    /// The longest super-packet over IPv4, in bytes from the outermost IP header.
    pub max_ipv4_length: u32,
    /// The longest super-packet over IPv6, in bytes from the outermost IP header.
    pub max_ipv6_length: u32,
    /// Maximum payload of one super-packet, in bytes.
    pub max_payload: u32,
    /// Maximum number of segments of one super-packet.
    pub max_segments: u32,
    /// Minimum payload of each TCP segment but the last, in bytes.
    pub min_segment_size: u16,
    /// Kinds of super-packets that the receiver has refused.
    pub refused: PacketKinds,
}

impl GsoSupport {
    /// Every Linux since 6.1, behind a `virtio_net_hdr`: TCP over Ethernet or IP, with VLAN tags or
    /// without, with any IPv4 options and IPv6 extension headers.
    ///
    /// UDP needs Linux 6.2; it merges only with a [policy](crate::Policy::gro_with_udp) for it.
    /// Tunnels need Linux 6.17; they merge only with the [format](crate::virtio::Format::Tunnel)
    /// that has fields for them.
    pub const LINUX: GsoSupport = GsoSupport {
        tcp: true,
        udp: true,
        link_headers: LinkHeaders::LINUX,
        udp_tunnels: true,
        fixed_ids: false,
        cwr_on_all: false,
        max_ipv4_length: MAX_IP_LENGTH,
        max_ipv6_length: MAX_IP_LENGTH,
        max_payload: u32::MAX,
        max_segments: u32::MAX,
        min_segment_size: TCP_MIN_GSO_SIZE,
        refused: PacketKinds::NONE,
    };

    /// This crate's [`Segmenter`](super::Segmenter), or a receiver that segments with it.
    pub const ALL: GsoSupport = GsoSupport {
        link_headers: LinkHeaders::ALL,
        fixed_ids: true,
        cwr_on_all: true,
        max_ipv4_length: u32::MAX,
        max_ipv6_length: u32::MAX,
        min_segment_size: 1,
        ..GsoSupport::LINUX
    };

    /// A receiver that cannot segment.
    pub const NONE: GsoSupport = GsoSupport {
        tcp: false,
        udp: false,
        link_headers: LinkHeaders::NONE,
        udp_tunnels: false,
        max_ipv4_length: 0,
        max_ipv6_length: 0,
        max_payload: 0,
        max_segments: 1,
        ..GsoSupport::LINUX
    };

    /// Returns what both receivers can segment.
    #[must_use]
    pub fn and(self, other: GsoSupport) -> Self {
        GsoSupport {
            tcp: self.tcp && other.tcp,
            udp: self.udp && other.udp,
            link_headers: LinkHeaders(self.link_headers.0 & other.link_headers.0),
            udp_tunnels: self.udp_tunnels && other.udp_tunnels,
            fixed_ids: self.fixed_ids && other.fixed_ids,
            cwr_on_all: self.cwr_on_all && other.cwr_on_all,
            max_ipv4_length: self.max_ipv4_length.min(other.max_ipv4_length),
            max_ipv6_length: self.max_ipv6_length.min(other.max_ipv6_length),
            max_payload: self.max_payload.min(other.max_payload),
            max_segments: self.max_segments.min(other.max_segments),
            min_segment_size: self.min_segment_size.max(other.min_segment_size),
            refused: PacketKinds(self.refused.0 | other.refused.0),
        }
    }

    /// Returns the longest super-packet with this layout, in bytes from the outermost IP header.
    #[inline]
    pub const fn max_length(&self, layout: &Layout) -> u32 {
        let version = match layout.outer {
            Some(outer) => outer.version,
            None => layout.version,
        };
        match version {
            IpVersion::V4 => self.max_ipv4_length,
            IpVersion::V6 => self.max_ipv6_length,
        }
    }

    /// Returns whether TCP over IPv4 and IPv6 can be segmented, without headers other than
    /// Ethernet's before the IP header.
    pub(crate) fn takes_plain_tcp(&self) -> bool {
        let kind = |version| PacketKind {
            link: LinkHeader::Plain,
            tunnel: None,
            protocol: Protocol::Tcp,
            version,
        };
        let refused =
            PacketKind::VERSIONS.into_iter().any(|version| self.refused.contains(kind(version)));
        self.tcp && self.link_headers.contains(LinkHeader::Plain) && !refused
    }

    /// Returns why no packet with these headers can be segmented, whatever its size and flags;
    /// `None` if it can.
    #[inline(never)]
    pub fn refuses_headers(&self, layout: &Layout) -> Option<Unsupported> {
        let supported = match layout.protocol {
            Protocol::Tcp => self.tcp,
            Protocol::Udp => self.udp,
            Protocol::Dccp => false,
        };
        if !supported {
            return Some(Unsupported::Protocol);
        }
        if !self.link_headers.contains(layout.link) {
            return Some(Unsupported::LinkHeader);
        }
        // A `virtio_net_hdr` has a type for one UDP tunnel, and for no other tunnel.
        let in_udp = |outer: Outer| self.udp_tunnels && outer.tunnel.is_udp();
        if layout.nested.is_some() || !layout.outer.is_none_or(in_udp) {
            return Some(Unsupported::Tunnel);
        }
        (self.refused.0 != 0
            && PacketKind::of(layout).is_some_and(|kind| self.refused.contains(kind)))
        .then_some(Unsupported::Refused)
    }

    /// Returns why this super-packet cannot be segmented; `None` if it can. `length` counts from
    /// the outermost IP header, and `payload` behind the transport header, both in bytes.
    pub fn refuses(
        &self,
        layout: &Layout,
        gso: &Gso,
        length: usize,
        payload: usize,
    ) -> Option<Unsupported> {
        if matches!(gso.kind, GsoKind::UdpFragments | GsoKind::Dccp) {
            return Some(Unsupported::Protocol);
        }
        if let Some(unsupported) = self.refuses_headers(layout) {
            return Some(unsupported);
        }
        if !self.cwr_on_all && gso.cwr == Cwr::All {
            return Some(Unsupported::Cwr);
        }
        if !self.fixed_ids && has_fixed_ids(layout, gso) {
            return Some(Unsupported::FixedIds);
        }
        if gso.kind != GsoKind::Udp && gso.size.get() < usize::from(self.min_segment_size) {
            return Some(Unsupported::SegmentSize);
        }
        let segments = payload.div_ceil(gso.size.get());
        let too_many_datagrams =
            gso.kind == GsoKind::Udp && segments > MaxSegments::UDP.get() as usize;
        if too_many_datagrams || segments > self.max_segments as usize {
            return Some(Unsupported::Segments);
        }
        (length > self.max_length(layout) as usize || payload > self.max_payload as usize)
            .then_some(Unsupported::Size)
    }
}

impl Default for GsoSupport {
    fn default() -> Self {
        GsoSupport::LINUX
    }
}

/// Returns whether all segments have the same IPv4 identification, in any of the IP headers.
fn has_fixed_ids(layout: &Layout, gso: &Gso) -> bool {
    let fixed = |version: IpVersion, id: IpId| version == IpVersion::V4 && id == IpId::Fixed;
    fixed(layout.version, gso.id)
        || layout.outer.is_some_and(|outer| fixed(outer.version, gso.outer_id))
        || layout.nested.is_some_and(|nested| fixed(nested.version, gso.nested_id))
}

/// The reason why a receiver cannot segment a super-packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unsupported {
    /// The receiver does not segment this protocol.
    Protocol,
    /// The receiver does not segment behind this link header: PPPoE, MPLS, a VLAN tag of type
    /// 0x9100, or more than two tags.
    LinkHeader,
    /// The receiver does not segment inside this tunnel or these tunnels.
    Tunnel,
    /// The receiver has refused a packet of this kind before.
    Refused,
    /// The receiver cannot be told that all segments have CWR.
    Cwr,
    /// The receiver cannot be told that all segments have the same IPv4 identification.
    FixedIds,
    /// The segments are smaller than the smallest that the receiver makes.
    SegmentSize,
    /// The super-packet has more segments than the receiver accepts.
    Segments,
    /// The super-packet is longer than the receiver accepts.
    Size,
}

impl Unsupported {
    /// Returns a description of what the receiver cannot segment.
    pub const fn description(self) -> &'static str {
        match self {
            Unsupported::Protocol => "this protocol",
            Unsupported::LinkHeader => {
                "behind this link header (PPPoE, MPLS, a tag of another type, more than two tags)"
            }
            Unsupported::Tunnel => "in this tunnel",
            Unsupported::Refused => "a packet of a kind that it has refused before",
            Unsupported::Cwr => "into segments that all have CWR",
            Unsupported::FixedIds => "into segments with the same IPv4 identification",
            Unsupported::SegmentSize => "into segments of so few bytes",
            Unsupported::Segments => "into so many segments",
            Unsupported::Size => "a packet of this length",
        }
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.description())
    }
}

/// A set of kinds of link headers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkHeaders(u8);

impl LinkHeaders {
    /// The empty set.
    pub const NONE: LinkHeaders = LinkHeaders(0);
    /// The link headers behind which Linux segments: Ethernet without tags, or with one or two tags
    /// of 802.1Q or 802.1ad.
    pub const LINUX: LinkHeaders = LinkHeaders::NONE.with(LinkHeader::Plain).with(LinkHeader::Vlan);
    /// All link headers that the engine knows.
    pub const ALL: LinkHeaders = LinkHeaders((1 << LinkHeader::ALL.len()) - 1);

    /// Returns the set with `link` added.
    #[must_use]
    pub const fn with(self, link: LinkHeader) -> Self {
        LinkHeaders(self.0 | 1 << link as u8)
    }

    /// Returns whether the set contains `link`.
    #[inline]
    pub const fn contains(self, link: LinkHeader) -> bool {
        self.0 & 1 << link as u8 != 0
    }

    /// Returns the members of the set, in order.
    pub fn iter(self) -> impl Iterator<Item = LinkHeader> {
        LinkHeader::ALL.into_iter().filter(move |link| self.contains(*link))
    }
}

impl fmt::Debug for LinkHeaders {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.iter()).finish()
    }
}

/// A kind of packet that a receiver may refuse while it accepts others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PacketKind {
    /// The headers between Ethernet and IP headers.
    pub link: LinkHeader,
    /// The UDP tunnel that the packet is in, if any.
    pub tunnel: Option<Tunnel>,
    /// The transport protocol: TCP or UDP.
    pub protocol: Protocol,
    /// The version of the innermost IP header.
    pub version: IpVersion,
}

impl PacketKind {
    const TUNNELS: [Option<Tunnel>; 1 + Tunnel::OVER_UDP.len()] = {
        let mut tunnels = [None; 1 + Tunnel::OVER_UDP.len()];
        let mut index = 0;
        while index < Tunnel::OVER_UDP.len() {
            tunnels[index + 1] = Some(Tunnel::OVER_UDP[index]);
            index += 1;
        }
        tunnels
    };
    const PROTOCOLS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];
    const VERSIONS: [IpVersion; 2] = [IpVersion::V4, IpVersion::V6];

    /// Returns the kind of a packet with this layout. `None` for packets that are never handed over
    /// as super-packets: DCCP, and tunnels other than a single one in UDP.
    pub fn of(layout: &Layout) -> Option<Self> {
        let kind = PacketKind {
            link: layout.link,
            tunnel: layout.outer.map(|outer| outer.tunnel),
            protocol: layout.protocol,
            version: layout.version,
        };
        (layout.nested.is_none() && kind.bit().is_some()).then_some(kind)
    }

    fn all() -> impl Iterator<Item = PacketKind> {
        LinkHeader::ALL.into_iter().flat_map(|link| {
            Self::TUNNELS.into_iter().flat_map(move |tunnel| {
                Self::PROTOCOLS.into_iter().flat_map(move |protocol| {
                    Self::VERSIONS.into_iter().map(move |version| PacketKind {
                        link,
                        tunnel,
                        protocol,
                        version,
                    })
                })
            })
        })
    }

    /// Returns the kind's bit in a set: its number among [`all`](Self::all).
    fn bit(self) -> Option<u64> {
        let tunnel = Self::TUNNELS.iter().position(|tunnel| *tunnel == self.tunnel)?;
        let protocol = Self::PROTOCOLS.iter().position(|protocol| *protocol == self.protocol)?;
        let number =
            (self.link as usize * Self::TUNNELS.len() + tunnel) * Self::PROTOCOLS.len() + protocol;
        const { assert!(LinkHeader::ALL.len() * Self::TUNNELS.len() * Self::PROTOCOLS.len() * 2 <= 64) };
        Some(1 << (number * 2 + self.version as usize))
    }
}

impl fmt::Display for PacketKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = if self.protocol == Protocol::Udp { "UDP" } else { "TCP" };
        let version = if self.version == IpVersion::V6 { "IPv6" } else { "IPv4" };
        write!(formatter, "{protocol} over {version}")?;
        if let Some(tunnel) = self.tunnel {
            write!(formatter, " in {}", tunnel.title())?;
        }
        match self.link {
            LinkHeader::Plain => Ok(()),
            LinkHeader::Vlan => formatter.write_str(" behind VLAN tags"),
            LinkHeader::OtherTags => formatter.write_str(" behind other tags"),
            LinkHeader::Pppoe => formatter.write_str(" in PPPoE"),
            LinkHeader::Mpls => formatter.write_str(" in MPLS"),
        }
    }
}

/// A set of kinds of packets.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct PacketKinds(u64);

impl PacketKinds {
    /// The empty set.
    pub const NONE: PacketKinds = PacketKinds(0);

    /// Makes a set from its [bits](Self::bits).
    pub const fn from_bits(bits: u64) -> Self {
        PacketKinds(bits)
    }

    /// Returns the set as a number, which fits an atomic.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns whether the set contains `kind`.
    pub fn contains(self, kind: PacketKind) -> bool {
        kind.bit().is_some_and(|bit| self.0 & bit != 0)
    }

    /// Returns the set with `kind` added.
    #[must_use]
    pub fn with(self, kind: PacketKind) -> Self {
        PacketKinds(self.0 | kind.bit().unwrap_or(0))
    }

    /// Returns the members of the set.
    pub fn iter(self) -> impl Iterator<Item = PacketKind> {
        PacketKind::all().filter(move |kind| self.contains(*kind))
    }
}

impl fmt::Debug for PacketKinds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec::Vec;

    #[test]
    fn each_kind_has_a_bit_of_its_own() {
        let mut seen = PacketKinds::NONE;
        for kind in PacketKind::all() {
            assert!(!seen.contains(kind), "{kind}");
            seen = seen.with(kind);
            assert!(seen.contains(kind), "{kind}");
        }
        assert_eq!(seen.iter().collect::<Vec<_>>(), PacketKind::all().collect::<Vec<_>>());
        assert_eq!(seen.iter().count(), 60);
        assert_eq!(PacketKinds::from_bits(seen.bits()), seen);
        let kind = PacketKind {
            link: LinkHeader::Pppoe,
            tunnel: Some(Tunnel::Vxlan),
            protocol: Protocol::Udp,
            version: IpVersion::V6,
        };
        assert_eq!(kind.to_string(), "UDP over IPv6 in VXLAN in PPPoE");
    }

    #[test]
    fn both_receivers_must_support_it() {
        let one = GsoSupport { max_segments: 7, udp_tunnels: false, ..GsoSupport::ALL };
        let both = one.and(GsoSupport::LINUX);
        assert_eq!(both, GsoSupport { max_segments: 7, udp_tunnels: false, ..GsoSupport::LINUX });
        assert_eq!(both.and(GsoSupport::NONE), GsoSupport::NONE);
    }
}
