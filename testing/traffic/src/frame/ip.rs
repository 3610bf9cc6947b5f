//! IPv4 and IPv6 headers, outer and inner.

use super::Checksum;
use crate::{addresses, checksum};

/// An IP header of either version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ip {
    /// An IPv4 header.
    V4(Ipv4),
    /// An IPv6 header.
    V6(Ipv6),
}

/// An IPv4 header (RFC 791).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipv4 {
    /// Source address.
    pub source: [u8; 4],
    /// Destination address. If the options hold a source route, transport checksums cover that
    /// route's final destination instead.
    pub destination: [u8; 4],
    /// Time to live.
    pub ttl: u8,
    /// Type of service: DSCP in the upper 6 bits, ECN in the lower 2.
    pub tos: u8,
    /// Identification.
    pub id: u16,
    /// The reserved flag bit.
    pub reserved: bool,
    /// The flag "don't fragment".
    pub dont_fragment: bool,
    /// The flag "more fragments".
    pub more_fragments: bool,
    /// Fragment offset in units of 8 bytes, 13 bits.
    pub fragment_offset: u16,
    /// Options as raw bytes, padded with zeros to a multiple of 4 and at most 40.
    pub options: Vec<u8>,
    /// Protocol; derived from the next layer if `None`.
    pub protocol: Option<u8>,
    /// Total length in bytes. If `None`, the correct one, or 0 if that exceeds 65,535.
    pub total_length: Option<u16>,
    /// Header length in words of 4 bytes; the correct one if `None`.
    pub ihl: Option<u8>,
    /// How the header checksum is written. Both partial values mean a correct one.
    pub checksum: Checksum,
}

impl Default for Ipv4 {
    fn default() -> Self {
        Ipv4 {
            source: [10, 0, 0, 1],
            destination: [10, 0, 0, 2],
            ttl: 64,
            tos: 0,
            id: 0,
            reserved: false,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            options: Vec::new(),
            protocol: None,
            total_length: None,
            ihl: None,
            checksum: Checksum::Right,
        }
    }
}

/// An IPv6 header (RFC 8200) with its extension headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipv6 {
    /// Source address.
    pub source: [u8; 16],
    /// Destination address; checksums cover the final destination in the extension headers.
    pub destination: [u8; 16],
    /// Traffic class: DSCP in the upper 6 bits, ECN in the lower 2.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Extension headers in order.
    pub extensions: Vec<Extension>,
    /// The next header of the last header in the chain; derived from the next layer if `None`.
    pub next_header: Option<u8>,
    /// Payload length in bytes. If `None`, the correct one, or 0 if that exceeds 65,535.
    pub payload_length: Option<u16>,
}

impl Default for Ipv6 {
    fn default() -> Self {
        Ipv6 {
            source: [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
            destination: [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            extensions: Vec::new(),
            next_header: None,
            payload_length: None,
        }
    }
}

/// An IPv6 extension header. The contents exclude the next-header and length bytes, and are padded
/// with zeros (Pad1) to a multiple of 8 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extension {
    /// Hop-by-hop options (next-header number 0).
    HopByHop(Vec<u8>),
    /// A routing header (next-header number 43): type, segments left, data.
    Routing(Vec<u8>),
    /// Destination options (next-header number 60).
    DestinationOptions(Vec<u8>),
    /// Fragment (44). With offset 0 and without `more`, it is an atomic fragment.
    Fragment {
        /// Fragment offset in units of 8 bytes, 13 bits.
        offset: u16,
        /// The flag "more fragments".
        more: bool,
        /// Identification.
        id: u32,
    },
}

impl Extension {
    /// Returns a hop-by-hop header that contains only a jumbo payload option of `length` bytes (RFC
    /// 2675).
    pub fn jumbo(length: u32) -> Self {
        let mut contents = vec![0xc2, 4];
        contents.extend(length.to_be_bytes());
        Extension::HopByHop(contents)
    }

    fn number(&self) -> u8 {
        match self {
            Extension::HopByHop(_) => 0,
            Extension::Routing(_) => 43,
            Extension::DestinationOptions(_) => 60,
            Extension::Fragment { .. } => 44,
        }
    }

    /// Returns a segment routing header (RFC 8754, section 2). `segments` are in the order of
    /// travel with the final destination last. `left` is the value of the segments left field.
    pub fn segment_route(segments: &[[u8; 16]], left: u8) -> Self {
        let mut contents = vec![4, left, segments.len() as u8 - 1, 0, 0, 0];
        contents.extend(segments.iter().rev().flatten());
        Extension::Routing(contents)
    }

    /// Returns a routing header of type 0 (RFC 2460, section 4.4) or 2 (RFC 6275, section 6.4).
    /// `addresses` end with the final destination. `left` is the value of the segments left field.
    pub fn source_route(kind: u8, addresses: &[[u8; 16]], left: u8) -> Self {
        let mut contents = vec![kind, left, 0, 0, 0, 0];
        contents.extend(addresses.iter().flatten());
        Extension::Routing(contents)
    }

    /// Returns destination options with a home address (RFC 6275, section 6.3).
    pub fn home_address(address: [u8; 16]) -> Self {
        // PadN of 4 bytes aligns the address.
        let mut contents = vec![1, 2, 0, 0, 201, 16];
        contents.extend(address);
        Extension::DestinationOptions(contents)
    }

    /// Returns the bytes of the header; `next` is the number of the following header.
    fn bytes(&self, next: u8) -> Vec<u8> {
        match self {
            Extension::Fragment { offset, more, id } => {
                let offset = (offset << 3 | u16::from(*more)).to_be_bytes();
                [&[next, 0], &offset[..], &id.to_be_bytes()].concat()
            }
            Extension::HopByHop(contents)
            | Extension::Routing(contents)
            | Extension::DestinationOptions(contents) => {
                let length = (2 + contents.len()).next_multiple_of(8);
                let mut bytes = [&[next, (length / 8 - 1) as u8], &contents[..]].concat();
                bytes.resize(length, 0);
                bytes
            }
        }
    }
}

impl Ip {
    /// Returns the length of the header with its options or extension headers, in bytes.
    pub(super) fn header_length(&self) -> usize {
        let mut header = Vec::new();
        self.write(&mut header, 0);
        header.len()
    }

    pub(super) fn ethertype(&self) -> u16 {
        match self {
            Ip::V4(_) => 0x0800,
            Ip::V6(_) => 0x86dd,
        }
    }

    /// Returns the protocol number by which the header before this one refers to it.
    pub(super) fn number(&self) -> u8 {
        match self {
            Ip::V4(_) => 4,
            Ip::V6(_) => 41,
        }
    }

    /// Returns the pseudo-header's sum. It covers the addresses in the header if those of sender
    /// and final destination are unknown.
    pub fn pseudo(&self, protocol: u8, length: u32) -> u16 {
        match self {
            Ip::V4(ip) => {
                let destination =
                    addresses::final_v4(ip.destination, &ip.options).unwrap_or(ip.destination);
                checksum::pseudo_v4(ip.source, destination, protocol, length)
            }
            Ip::V6(ip) => {
                let headers: Vec<_> = ip
                    .extensions
                    .iter()
                    .map(|extension| (extension.number(), extension.bytes(0)))
                    .collect();
                let headers: Vec<_> =
                    headers.iter().map(|(number, bytes)| (*number, &bytes[..])).collect();
                let (source, destination) =
                    addresses::final_v6(ip.source, ip.destination, &headers)
                        .unwrap_or((ip.source, ip.destination));
                checksum::pseudo_v6(source, destination, protocol, length)
            }
        }
    }

    /// Appends the header; `finish` writes the lengths and the checksum.
    pub(super) fn write(&self, out: &mut Vec<u8>, protocol: u8) {
        match self {
            Ip::V4(ip) => {
                let words = 5 + ip.options.len().div_ceil(4);
                assert!(words <= 15, "IPv4 options of {} bytes", ip.options.len());
                out.extend([0x40 | ip.ihl.unwrap_or(words as u8) & 0xf, ip.tos, 0, 0]);
                out.extend(ip.id.to_be_bytes());
                let flags = u16::from(ip.reserved) << 15
                    | u16::from(ip.dont_fragment) << 14
                    | u16::from(ip.more_fragments) << 13;
                out.extend((flags | ip.fragment_offset & 0x1fff).to_be_bytes());
                out.extend([ip.ttl, ip.protocol.unwrap_or(protocol), 0, 0]);
                out.extend(ip.source);
                out.extend(ip.destination);
                out.extend(&ip.options);
                out.resize(out.len() + (words * 4 - 20 - ip.options.len()), 0);
            }
            Ip::V6(ip) => {
                let last = ip.next_header.unwrap_or(protocol);
                let next = |index: usize| ip.extensions.get(index).map_or(last, Extension::number);
                out.extend(
                    (6 << 28 | u32::from(ip.traffic_class) << 20 | ip.flow_label & 0xf_ffff)
                        .to_be_bytes(),
                );
                out.extend([0, 0, next(0), ip.hop_limit]);
                out.extend(ip.source);
                out.extend(ip.destination);
                for (index, extension) in ip.extensions.iter().enumerate() {
                    out.extend(extension.bytes(next(index + 1)));
                }
            }
        }
    }

    /// Writes the length and the checksum of the header at `start`. Its packet ends at the end of
    /// `out`.
    pub(super) fn finish(&self, out: &mut [u8], start: usize) {
        let whole = out.len() - start;
        match self {
            Ip::V4(ip) => {
                let length = ip.total_length.unwrap_or(u16::try_from(whole).unwrap_or(0));
                out[start + 2..start + 4].copy_from_slice(&length.to_be_bytes());
                let header = start..start + 20 + ip.options.len().next_multiple_of(4);
                let right = !checksum::sum(&out[header]);
                let field = match ip.checksum {
                    Checksum::Partial | Checksum::PartialWithoutLength => right,
                    mode => mode.field(right, right, right),
                };
                out[start + 10..start + 12].copy_from_slice(&field.to_be_bytes());
            }
            Ip::V6(ip) => {
                let length = ip.payload_length.unwrap_or(u16::try_from(whole - 40).unwrap_or(0));
                out[start + 4..start + 6].copy_from_slice(&length.to_be_bytes());
            }
        }
    }
}
