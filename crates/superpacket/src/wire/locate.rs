//! IP headers of a packet, and the transport header behind each, of whatever protocol.
//!
//! [`parse`](super::parse()) answers for what aggregates and segments. A partial checksum may be of
//! any protocol, and an IPv4 header has a checksum whatever follows it: here the headers alone are
//! found, by the same walk.

use super::parse::{Cursor, Scope};
use super::{IpVersion, Layer, be16, be32, byte, ipv4, ipv6};

/// Finds the IP headers of a frame of `length` bytes, of which `header` holds the first
/// [`MAX_HEADER`](super::MAX_HEADER) (or all): the outermost, and, if there are tunnels, those
/// inside that can be read, from the outside in. Returns for each its offset from the start of the
/// frame, in bytes, and its version.
///
/// All 20 bytes of an IPv4 header, or 40 of an IPv6 header, are there. What follows them does not
/// matter: any protocol, a fragment, a truncated packet.
pub fn ip_headers(header: &[u8], length: usize, layer: Layer) -> [Option<(u16, IpVersion)>; 3] {
    let cursor = Cursor::after_walk(header, length, layer);
    let innermost = match cursor.scope {
        Scope::Pair { network, version } => Some((network, version)),
        Scope::None => None,
    };
    let [outer, nested] = [cursor.outer, cursor.nested].map(|outer| outer.map(|outer| (outer.network, outer.version)));
    // A tunnel's header may have been the last that could be read.
    let innermost = innermost.filter(|_| innermost != nested.or(outer));
    match (outer, nested) {
        (None, _) => [innermost, None, None],
        (outer, None) => [outer, innermost, None],
        (outer, nested) => [outer, nested, innermost],
    }
}

/// Reads the protocol number of the payload of an IP packet whose header starts at `network`, in
/// bytes from the start of the frame: behind the extension headers that `header` holds completely.
/// 0 beyond its end.
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

/// Returns the length of an IP packet by the length field of its header at `network`, that header
/// included; 0 if the field is 0.
#[inline(always)]
pub(crate) fn ip_length(header: &[u8], network: usize, version: IpVersion) -> usize {
    match version {
        IpVersion::V4 => usize::from(be16(header, network + ipv4::TOTAL_LENGTH)),
        IpVersion::V6 => match usize::from(be16(header, network + ipv6::PAYLOAD_LENGTH)) {
            0 => 0,
            payload => ipv6::HEADER_LENGTH + payload,
        },
    }
}

/// An IP header and the place of the transport header behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TransportLocation {
    /// Offset of the IP header, in bytes from the start of the frame.
    pub(crate) network: usize,
    /// IP version.
    pub(crate) version: IpVersion,
    /// Protocol number of the transport header.
    pub(crate) number: u8,
    /// Offset of the transport header, behind extension headers.
    pub(crate) transport: usize,
    /// Whether the packet is an IP fragment.
    pub(crate) is_fragment: bool,
    /// End of the packet by its length field; the limit, if the field is 0.
    pub(crate) end: usize,
    /// End of the outermost IP packet, or of the frame, if that ends first.
    pub(crate) limit: usize,
}

/// Finds the IP packet whose transport header starts at `start`, among those that can be read. If
/// there is none, `Err` holds the end of the outermost IP packet, or of the frame.
pub(crate) fn locate_transport(header: &[u8], length: usize, layer: Layer, start: usize) -> Result<TransportLocation, usize> {
    let cursor = Cursor::after_walk(header, length, layer);
    let limit = cursor.outer_end.unwrap_or(length);
    ip_headers(header, length, layer)
        .into_iter()
        .flatten()
        .map(|(network, version)| transport_location(cursor.header, usize::from(network), version, limit))
        // Behind the headers of a fragment there may be no transport header.
        .find(|found| found.transport == start || found.is_fragment && found.transport < start)
        .ok_or(limit)
}

/// Locates the transport header of the IP packet at `network`.
fn transport_location(header: &[u8], network: usize, version: IpVersion, limit: usize) -> TransportLocation {
    let length = ip_length(header, network, version);
    let end = if length == 0 { limit } else { network + length };
    match version {
        IpVersion::V4 => {
            let fragment = be16(header, network + ipv4::FRAGMENT) & (ipv4::MORE_FRAGMENTS | ipv4::FRAGMENT_OFFSET);
            TransportLocation {
                network,
                version,
                number: byte(header, network + ipv4::PROTOCOL),
                transport: network + usize::from(byte(header, network) & 0x0f) * 4,
                is_fragment: fragment != 0,
                end,
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
            let jumbo_end = |payload: u32| (network + ipv6::HEADER_LENGTH).saturating_add(payload as usize);
            TransportLocation {
                network,
                version,
                number: extensions.next_header(),
                transport: extensions.offset,
                is_fragment,
                end: if length == 0 { jumbo.map_or(limit, jumbo_end) } else { end },
                limit,
            }
        }
    }
}

/// The extension headers of an IPv6 packet, one after the other (RFC 8200, section 4): hop-by-hop
/// options, routing, fragment, destination options. Ends before any other header, and before one
/// that reaches beyond the limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extensions<'a> {
    header: &'a [u8],
    /// Offset of the field that names the next header, in bytes from the start of the frame.
    pub(crate) next_header_field: usize,
    /// Offset of that header.
    pub(crate) offset: usize,
    limit: usize,
}

/// An extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extension {
    /// Protocol number.
    pub(crate) kind: u8,
    /// Start, in bytes from the start of the frame.
    pub(crate) offset: usize,
    /// End, likewise.
    pub(crate) end: usize,
}

impl<'a> Extensions<'a> {
    /// Begins behind the IPv6 header that starts at `network`.
    #[inline]
    pub(crate) fn new(header: &'a [u8], network: usize, limit: usize) -> Self {
        Extensions { header, next_header_field: network + ipv6::NEXT_HEADER, offset: network + ipv6::HEADER_LENGTH, limit }
    }

    /// Reads the protocol number of the next header: after the last extension header, that of the
    /// transport.
    #[inline]
    pub(crate) fn next_header(&self) -> u8 {
        byte(self.header, self.next_header_field)
    }

    /// Returns whether the iteration ended at an extension header that reaches beyond the limit.
    #[inline]
    pub(crate) fn reaches_beyond(&self) -> bool {
        self.peek().is_some()
    }

    /// Returns the next extension header, even if it reaches beyond the limit.
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
        (self.next_header_field, self.offset) = (self.offset, found.end);
        Some(found)
    }
}

impl Extension {
    /// Reads the length in a jumbo payload option, if that is the first option of this hop-by-hop
    /// header (RFC 2675, section 2).
    #[inline]
    pub(crate) fn jumbo_length(&self, header: &[u8]) -> Option<u32> {
        let is_jumbo = be16(header, self.offset + 2) == u16::from_be_bytes([ipv6::JUMBO_OPTION, 4]);
        is_jumbo.then(|| be32(header, self.offset + 4))
    }
}
