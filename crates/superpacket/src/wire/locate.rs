//! Which IP headers a packet has, and which of them a transport header belongs to, whatever
//! protocol it is of.
//!
//! [`parse`](super::parse) answers for what aggregates and segments. A partial checksum may be any
//! protocol's, and an IPv4 header has a checksum of its own whatever follows it: here the headers
//! alone are found, by the same walk.

use super::parse::{Cursor, Scope};
use super::{IpVersion, Layer, be16, be32, byte, ipv4, ipv6};

/// Finds the IP headers of a frame of `length` bytes, of which `header` holds the first
/// [`MAX_HEADER`](super::MAX_HEADER) (or all): the outermost, and the innermost that can be read,
/// if there is a tunnel. Each with its offset from the start of the frame, in bytes, and its
/// version.
///
/// At least the 20 bytes of an IPv4 header, or the 40 of an IPv6 header, are there. What they carry
/// does not matter: another protocol, a fragment, or what is not there whole.
pub fn ip_headers(header: &[u8], length: usize, layer: Layer) -> [Option<(u16, IpVersion)>; 2] {
    let cursor = Cursor::to_the_innermost(header, length, layer);
    let innermost = match cursor.scope {
        Scope::Pair { network, version } => Some((network, version)),
        Scope::None => None,
    };
    match cursor.outer.map(|outer| (outer.network, outer.version)) {
        Some(outer) if innermost == Some(outer) => [innermost, None],
        Some(outer) => [Some(outer), innermost],
        None => [innermost, None],
    }
}

/// Reads the protocol number of what the IP packet carries whose header starts at `network`, in
/// bytes from the start of the frame: behind the extension headers that are whole in `header`. 0
/// beyond its end.
#[inline]
pub fn protocol_number(header: &[u8], network: usize, version: IpVersion) -> u8 {
    match version {
        IpVersion::V4 => byte(header, network + ipv4::PROTOCOL),
        IpVersion::V6 => {
            let mut extensions = Extensions::new(header, network, header.len());
            while extensions.next().is_some() {}
            extensions.next_header()
        }
    }
}

/// An IP packet whose transport header has been found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Carried {
    /// Offset of the IP header, in bytes from the start of the frame.
    pub(crate) network: usize,
    /// Its version.
    pub(crate) version: IpVersion,
    /// The protocol number of what it carries, behind extension headers.
    pub(crate) number: u8,
    /// Where that starts.
    pub(crate) transport: usize,
    /// It is a part of a packet.
    pub(crate) is_fragment: bool,
    /// Where the packet ends by its length field; the limit, if the field is 0.
    pub(crate) end: usize,
    /// Where the outermost IP packet ends, or the frame before it.
    pub(crate) limit: usize,
}

/// Finds the IP packet whose transport header starts at `start`: the innermost that can be read, or
/// the outermost. `Err` holds the end of the outermost IP packet, or of the frame, if there is no
/// such header.
pub(crate) fn carrier(header: &[u8], length: usize, layer: Layer, start: usize) -> Result<Carried, usize> {
    let cursor = Cursor::to_the_innermost(header, length, layer);
    let limit = cursor.outer_end.unwrap_or(length);
    ip_headers(header, length, layer)
        .into_iter()
        .flatten()
        .map(|(network, version)| carried(cursor.header, usize::from(network), version, limit))
        // Behind a fragment's headers there is none to be found.
        .find(|carried| carried.transport == start || carried.is_fragment && carried.transport < start)
        .ok_or(limit)
}

/// What the IP packet at `network` carries.
fn carried(header: &[u8], network: usize, version: IpVersion, limit: usize) -> Carried {
    match version {
        IpVersion::V4 => {
            let fragment = be16(header, network + ipv4::FRAGMENT) & (ipv4::MORE_FRAGMENTS | ipv4::FRAGMENT_OFFSET);
            let length = usize::from(be16(header, network + ipv4::TOTAL_LENGTH));
            Carried {
                network,
                version,
                number: byte(header, network + ipv4::PROTOCOL),
                transport: network + usize::from(byte(header, network) & 0x0f) * 4,
                is_fragment: fragment != 0,
                end: if length == 0 { limit } else { network + length },
                limit,
            }
        }
        IpVersion::V6 => {
            let mut extensions = Extensions::new(header, network, header.len());
            let (mut is_fragment, mut jumbo) = (false, None);
            for extension in &mut extensions {
                is_fragment |= extension.kind == ipv6::FRAGMENT;
                if extension.kind == ipv6::HOP_BY_HOP {
                    jumbo = extension.jumbo_length(header);
                }
            }
            let length = usize::from(be16(header, network + ipv6::PAYLOAD_LENGTH));
            let length = if length == 0 { jumbo.map(|jumbo| jumbo as usize) } else { Some(length) };
            Carried {
                network,
                version,
                number: extensions.next_header(),
                transport: extensions.offset,
                is_fragment,
                end: length.map_or(limit, |length| (network + ipv6::HEADER_LENGTH).saturating_add(length)),
                limit,
            }
        }
    }
}

/// The extension headers of an IPv6 packet, one after the other (RFC 8200, section 4): hop-by-hop
/// options, routing, fragment, destination options. What follows them, or reaches beyond the limit,
/// ends them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extensions<'a> {
    header: &'a [u8],
    /// Where the field lies that says what comes next, in bytes from the start of the frame.
    pub(crate) field: usize,
    /// Where that starts.
    pub(crate) offset: usize,
    limit: usize,
}

/// An extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extension {
    /// Its protocol number.
    pub(crate) kind: u8,
    /// Where it starts, in bytes from the start of the frame.
    pub(crate) offset: usize,
    /// Where it ends.
    pub(crate) end: usize,
}

impl<'a> Extensions<'a> {
    /// Those of the packet whose IPv6 header starts at `network`, as far as they end at `limit` or
    /// before.
    #[inline]
    pub(crate) fn new(header: &'a [u8], network: usize, limit: usize) -> Self {
        Extensions { header, field: network + ipv6::NEXT_HEADER, offset: network + ipv6::HEADER_LENGTH, limit }
    }

    /// The protocol number of what comes next: of what the packet carries, after the last.
    #[inline]
    pub(crate) fn next_header(&self) -> u8 {
        byte(self.header, self.field)
    }

    /// Is what comes next an extension header, which reaches beyond the limit?
    #[inline]
    pub(crate) fn reaches_beyond(&self) -> bool {
        self.peek().is_some()
    }

    /// The extension header that comes next, also if it reaches beyond the limit.
    #[inline(always)]
    pub(super) fn peek(&self) -> Option<Extension> {
        let kind = self.next_header();
        let length = match kind {
            ipv6::FRAGMENT => ipv6::FRAGMENT_HEADER_LENGTH,
            ipv6::HOP_BY_HOP | ipv6::ROUTING | ipv6::DESTINATION => 8 + usize::from(byte(self.header, self.offset + 1)) * 8,
            _ => return None,
        };
        Some(Extension { kind, offset: self.offset, end: self.offset + length })
    }
}

impl Iterator for Extensions<'_> {
    type Item = Extension;

    #[inline]
    fn next(&mut self) -> Option<Extension> {
        let found = self.peek().filter(|extension| extension.end <= self.limit)?;
        (self.field, self.offset) = (self.offset, found.end);
        Some(found)
    }
}

impl Extension {
    /// The length that a jumbo payload option says, if it stands first in this hop-by-hop header
    /// (RFC 2675, section 2).
    #[inline]
    pub(crate) fn jumbo_length(&self, header: &[u8]) -> Option<u32> {
        let is_jumbo = be16(header, self.offset + 2) == u16::from_be_bytes([ipv6::JUMBO_OPTION, 4]);
        is_jumbo.then(|| be32(header, self.offset + 4))
    }
}
