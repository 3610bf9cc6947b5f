//! Finds the IP headers of a packet, and the transport header of any protocol after each.
//!
//! [`parse`](super::parse()) accepts only protocols that are aggregated and segmented. But a
//! partial checksum may belong to any protocol, and every IPv4 header has a checksum. These
//! functions find the headers with the same walk.

use super::extensions::{Extensions, ip_length};
use super::parse::{HeaderCursor, Scope};
use super::{IpVersion, Layer, be16, byte, ipv4, ipv6};

/// Finds the IP headers of a frame of `length` bytes, of which `header` holds the first
/// [`MAX_HEADER`](super::MAX_HEADER) (or all). Returns the outermost header and the readable
/// headers in tunnels, from the outside in: for each its offset from the start of the frame, in
/// bytes, and its version.
///
/// All 20 bytes of an IPv4 header, or 40 of an IPv6 header, are present. The rest of the packet
/// does not matter: it may be of any protocol, a fragment, or truncated.
pub fn ip_headers(header: &[u8], length: usize, layer: Layer) -> [Option<(u16, IpVersion)>; 3] {
    let cursor = HeaderCursor::after_walk(header, length, layer);
    let innermost = match cursor.scope {
        Scope::Pair { network, version } => Some((network, version)),
        Scope::None => None,
    };
    let [outer, nested] = [cursor.outer, cursor.nested]
        .map(|outer| outer.map(|outer| (outer.network, outer.version)));
    // A tunnel's header may have been the last that could be read.
    let innermost = innermost.filter(|_| innermost != nested.or(outer));
    match (outer, nested) {
        (None, _) => [innermost, None, None],
        (outer, None) => [outer, innermost, None],
        (outer, nested) => [outer, nested, innermost],
    }
}

/// An IP header, and the offset and protocol of the transport header after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TransportLocation {
    /// Offset of the IP header, in bytes from the start of the frame.
    pub(crate) network: usize,
    /// IP version.
    pub(crate) version: IpVersion,
    /// Protocol number of the transport header.
    pub(crate) number: u8,
    /// Offset of the transport header, after extension headers.
    pub(crate) transport: usize,
    /// Whether the packet is an IP fragment.
    pub(crate) is_fragment: bool,
    /// End of the packet by its length field; equals `limit` if the field is 0.
    pub(crate) end: usize,
    /// End of the outermost IP packet, or of the frame if it ends first.
    pub(crate) limit: usize,
}

/// Finds the IP packet whose transport header starts at `start`. If no readable one does, `Err`
/// holds the end of the outermost IP packet, or of the frame.
pub(crate) fn locate_transport(
    header: &[u8],
    length: usize,
    layer: Layer,
    start: usize,
) -> Result<TransportLocation, usize> {
    let cursor = HeaderCursor::after_walk(header, length, layer);
    let limit = cursor.outer_end.unwrap_or(length);
    ip_headers(header, length, layer)
        .into_iter()
        .flatten()
        .map(|(network, version)| {
            transport_location(cursor.header, usize::from(network), version, limit)
        })
        // There may be no transport header after the headers of a fragment.
        .find(|found| found.transport == start || found.is_fragment && found.transport < start)
        .ok_or(limit)
}

/// Locates the transport header of the IP packet at `network`.
fn transport_location(
    header: &[u8],
    network: usize,
    version: IpVersion,
    limit: usize,
) -> TransportLocation {
    let length = ip_length(header, network, version);
    let end = if length == 0 { limit } else { network + length };
    match version {
        IpVersion::V4 => {
            let fragment = be16(header, network + ipv4::FRAGMENT)
                & (ipv4::MORE_FRAGMENTS | ipv4::FRAGMENT_OFFSET);
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
            let jumbo_end =
                |payload: u32| (network + ipv6::HEADER_LENGTH).saturating_add(payload as usize);
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
