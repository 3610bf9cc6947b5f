//! The length of an IP packet and the extension headers of IPv6.

use super::{IpVersion, be16, be32, byte, ipv4, ipv6};

/// Reads the protocol number of the payload of an IP packet whose header starts at `network`, in
/// bytes from the start of the frame. The extension headers that `header` holds completely are
/// skipped. 0 if the field lies beyond the end of `header`.
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

/// Returns the length of an IP packet by the length field of its header at `network`, including
/// that header; 0 if the field is 0.
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

/// The extension headers of an IPv6 packet, one after the other (RFC 8200, section 4): hop-by-hop
/// options, routing, fragment, destination options. Ends before any other header, and before one
/// that reaches beyond the limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extensions<'a> {
    header: &'a [u8],
    /// Offset of the field that names the next header, in bytes from the start of the frame.
    pub(crate) next_header_field: usize,
    /// Offset of the next header.
    pub(crate) offset: usize,
    limit: usize,
}

/// An extension header of an IPv6 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extension {
    /// Protocol number.
    pub(crate) kind: u8,
    /// Start, in bytes from the start of the frame.
    pub(crate) offset: usize,
    /// End, in bytes from the start of the frame.
    pub(crate) end: usize,
}

impl<'a> Extensions<'a> {
    /// Starts the iteration after the IPv6 header at offset `network`.
    #[inline]
    pub(crate) fn new(header: &'a [u8], network: usize, limit: usize) -> Self {
        Extensions {
            header,
            next_header_field: network + ipv6::NEXT_HEADER,
            offset: network + ipv6::HEADER_LENGTH,
            limit,
        }
    }

    /// Reads the protocol number of the next header; after the last extension header, it is the
    /// transport protocol.
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
            ipv6::HOP_BY_HOP | ipv6::ROUTING | ipv6::DESTINATION => {
                8 + usize::from(byte(self.header, self.offset + 1)) * 8
            }
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
    /// Returns the length in a jumbo payload option, if that is the first option of this hop-by-hop
    /// header (RFC 2675, section 2).
    #[inline]
    pub(crate) fn jumbo_length(&self, header: &[u8]) -> Option<u32> {
        let is_jumbo = be16(header, self.offset + 2) == u16::from_be_bytes([ipv6::JUMBO_OPTION, 4]);
        is_jumbo.then(|| be32(header, self.offset + 4))
    }
}
