//! The headers between an Ethernet header and an IP header: VLAN tags, PPPoE, MPLS labels.

use super::{LinkHeader, be16, byte, ethernet, pppoe};

/// A header between the Ethernet header and the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    /// A VLAN tag with this ethertype: 2 bytes of priority and ID, then the next ethertype.
    Vlan(u16),
    /// A PPPoE session header and the PPP protocol.
    Pppoe,
    /// An MPLS label stack entry.
    Mpls,
}

impl Tag {
    /// Returns the length of the tag in bytes.
    #[inline]
    pub(crate) const fn length(self) -> usize {
        match self {
            Tag::Vlan(_) | Tag::Mpls => 4,
            Tag::Pppoe => pppoe::HEADER_LENGTH,
        }
    }

    /// Returns the kind of link header of a frame that has this tag. `number` counts the frame's
    /// tags up to this one, from 1.
    #[inline]
    pub(crate) const fn link_header(self, number: u32) -> LinkHeader {
        match self {
            Tag::Vlan(ethernet::VLAN | ethernet::SERVICE_VLAN) if number <= 2 => LinkHeader::Vlan,
            Tag::Vlan(_) => LinkHeader::OtherTags,
            Tag::Pppoe => LinkHeader::Pppoe,
            Tag::Mpls => LinkHeader::Mpls,
        }
    }
}

/// The next header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Tag(Tag),
    Ipv4,
    Ipv6,
    /// IPv4 or IPv6, which only the first byte of the IP header tells.
    Ip,
    Other,
}

impl Next {
    fn of_ethertype(ethertype: u16) -> Self {
        match ethertype {
            ethernet::IPV4 => Next::Ipv4,
            ethernet::IPV6 => Next::Ipv6,
            ethernet::PPPOE_SESSION => Next::Tag(Tag::Pppoe),
            ethernet::MPLS | ethernet::MPLS_MULTICAST => Next::Tag(Tag::Mpls),
            _ if ethernet::is_vlan(ethertype) => Next::Tag(Tag::Vlan(ethertype)),
            _ => Next::Other,
        }
    }
}

/// Walks over the headers between Ethernet and IP. Bytes beyond the end read as 0, so callers must
/// compare lengths before each step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkWalk<'a> {
    header: &'a [u8],
    /// Offset of the next header, in bytes from the start of `header`.
    pub(crate) offset: usize,
    /// The next header.
    pub(crate) next: Next,
}

impl<'a> LinkWalk<'a> {
    /// Starts after the Ethernet header at `start`.
    #[inline]
    pub(crate) fn new(header: &'a [u8], start: usize) -> Self {
        let next = Next::of_ethertype(be16(header, start + ethernet::ETHERTYPE));
        LinkWalk { header, offset: start + ethernet::HEADER_LENGTH, next }
    }

    /// Skips `tag`, which is the next header.
    #[inline]
    pub(crate) fn step_over(&mut self, tag: Tag) {
        self.next = match tag {
            Tag::Vlan(_) => Next::of_ethertype(be16(self.header, self.offset + 2)),
            Tag::Pppoe => match be16(self.header, self.offset + pppoe::PROTOCOL) {
                pppoe::PPP_IPV4 => Next::Ipv4,
                pppoe::PPP_IPV6 => Next::Ipv6,
                _ => Next::Other,
            },
            // The last entry of the stack has the bottom bit (RFC 3032, section 2.1).
            Tag::Mpls if byte(self.header, self.offset + 2) & 1 == 1 => Next::Ip,
            Tag::Mpls => Next::Tag(Tag::Mpls),
        };
        self.offset += tag.length();
    }
}
