//! Headers of the protocols that the engine understands: offsets, numbers and masks, and one parse
//! into a [`Layout`].
//!
//! Offsets are bytes from the start of the header they belong to. No header is copied into a
//! struct: a packet is parsed once into a [`Layout`] of offsets, and fields are read where they
//! lie, in network byte order.

mod addresses;
mod extensions;
mod gro_hint;
mod layout;
pub(crate) mod link;
mod locate;
mod parse;
mod refusal;
mod tunnel;
pub(crate) mod varying;

pub use addresses::checksum_addresses;
pub(crate) use addresses::{are_addresses_known, may_have_other_addresses};
pub use extensions::protocol_number;
pub(crate) use extensions::{Extension, Extensions, ip_length};
pub(crate) use layout::usual;
pub use layout::{Layer, Layout, Level, LinkHeader, Protocol};
pub use locate::ip_headers;
pub(crate) use locate::{TransportLocation, locate_transport};
pub use parse::{Scope, Unparsed, parse, parse_datagram, parse_outermost};
pub(crate) use parse::{parse_datagram_at, parse_usual, walk};
pub use refusal::Refusal;
pub use tunnel::{Outer, Tunnel, geneve, gre, vxlan};

/// Maximum length of all headers of a packet, in bytes from the start of the frame to the payload.
///
/// A tagged packet in a tunnel, with IPv6 and TCP options in both layers, has about 200 bytes of
/// headers, and one in two tunnels about 250.
pub const MAX_HEADER: usize = 256;

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpVersion {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Ethernet (IEEE 802.3, RFC 894).
pub mod ethernet {
    /// Length of an Ethernet header without tags, in bytes.
    pub const HEADER_LENGTH: usize = 14;
    /// Offset of the ethertype in an Ethernet header.
    pub const ETHERTYPE: usize = 12;
    /// Ethertype of IPv4.
    pub const IPV4: u16 = 0x0800;
    /// Ethertype of IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// Ethertype of an 802.1Q customer tag.
    pub const VLAN: u16 = 0x8100;
    /// Ethertype of an 802.1ad service tag.
    pub(crate) const SERVICE_VLAN: u16 = 0x88a8;
    /// Ethertype of the outer tag of stacked VLANs before 802.1ad, still seen.
    pub(crate) const OLD_SERVICE_VLAN: u16 = 0x9100;
    /// Ethertype of the PPPoE session stage (RFC 2516).
    pub const PPPOE_SESSION: u16 = 0x8864;
    /// Ethertype of MPLS unicast (RFC 3032).
    pub const MPLS: u16 = 0x8847;
    /// Ethertype of MPLS multicast (RFC 5332).
    pub(crate) const MPLS_MULTICAST: u16 = 0x8848;
    /// Ethertype of Ethernet frames in GRE and Geneve: transparent Ethernet bridging (RFC 1701, RFC
    /// 8926).
    pub const BRIDGED: u16 = 0x6558;

    /// Returns whether this ethertype is that of a VLAN tag.
    #[inline]
    pub const fn is_vlan(ethertype: u16) -> bool {
        matches!(ethertype, VLAN | SERVICE_VLAN | OLD_SERVICE_VLAN)
    }
}

/// PPPoE session frames (RFC 2516, section 4).
pub mod pppoe {
    /// Length of the PPPoE header and the two bytes of the PPP protocol.
    pub const HEADER_LENGTH: usize = 8;
    /// Offset of the length field in a PPPoE header. It counts all bytes after the 6-byte header:
    /// the PPP protocol and the IP packet.
    pub const LENGTH: usize = 4;
    /// Offset of the session ID in a PPPoE header.
    pub(crate) const SESSION: usize = 2;
    /// Offset of the PPP protocol, which follows the 6-byte PPPoE header.
    pub const PROTOCOL: usize = 6;
    /// Length of the PPP protocol in bytes, which the length field of a PPPoE header counts too.
    pub(crate) const PPP_LENGTH: usize = 2;
    /// PPP protocol number of IPv4.
    pub(crate) const PPP_IPV4: u16 = 0x0021;
    /// PPP protocol number of IPv6.
    pub(crate) const PPP_IPV6: u16 = 0x0057;
}

/// IPv4 (RFC 791).
pub mod ipv4 {
    /// Length of an IPv4 header without options, in bytes.
    pub const HEADER_LENGTH: usize = 20;
    /// Offset of the type of service in an IPv4 header.
    pub const TOS: usize = 1;
    /// Offset of the total length, which includes the header, in an IPv4 header.
    pub const TOTAL_LENGTH: usize = 2;
    /// Offset of the identification in an IPv4 header.
    pub const ID: usize = 4;
    /// Offset of flags and fragment offset in an IPv4 header.
    pub const FRAGMENT: usize = 6;
    /// Offset of the time to live in an IPv4 header.
    pub const TTL: usize = 8;
    /// Offset of the protocol in an IPv4 header.
    pub const PROTOCOL: usize = 9;
    /// Offset of the header checksum in an IPv4 header.
    pub const CHECKSUM: usize = 10;
    /// Offset of the source address in an IPv4 header; the destination follows.
    pub const ADDRESSES: usize = 12;
    /// Reserved bit, which must be zero (RFC 791), in the word at [`FRAGMENT`] of an IPv4 header.
    pub const RESERVED: u16 = 0x8000;
    /// Don't-fragment bit, in the word at [`FRAGMENT`] of an IPv4 header.
    pub const DONT_FRAGMENT: u16 = 0x4000;
    /// More-fragments bit, in the word at [`FRAGMENT`] of an IPv4 header.
    pub(crate) const MORE_FRAGMENTS: u16 = 0x2000;
    /// Mask of the fragment offset, which counts units of 8 bytes, in the word at [`FRAGMENT`] of
    /// an IPv4 header.
    pub(crate) const FRAGMENT_OFFSET: u16 = 0x1fff;
    /// Type of the IPv4 option that ends the list of options.
    pub(crate) const OPTION_END: u8 = 0;
    /// Type of the IPv4 option of one byte without meaning.
    pub(crate) const OPTION_NOP: u8 = 1;
    /// Type of the loose source route option of IPv4.
    pub(crate) const LOOSE_ROUTE: u8 = 0x83;
    /// Type of the strict source route option of IPv4.
    pub(crate) const STRICT_ROUTE: u8 = 0x89;
}

/// IPv6 (RFC 8200).
pub mod ipv6 {
    /// Length of an IPv6 header without extension headers, in bytes.
    pub const HEADER_LENGTH: usize = 40;
    /// Offset of the payload length in an IPv6 header. It counts all bytes after the 40-byte
    /// header, extension headers included.
    pub const PAYLOAD_LENGTH: usize = 4;
    /// Offset of the next-header field in an IPv6 header.
    pub const NEXT_HEADER: usize = 6;
    /// Offset of the hop limit in an IPv6 header.
    pub const HOP_LIMIT: usize = 7;
    /// Offset of the source address in an IPv6 header; the destination follows.
    pub const ADDRESSES: usize = 8;
    /// Protocol number of an IPv6 header of hop-by-hop options.
    pub(crate) const HOP_BY_HOP: u8 = 0;
    /// Protocol number of an IPv6 routing header.
    pub(crate) const ROUTING: u8 = 43;
    /// Protocol number of an IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// Protocol number of an IPv6 header of destination options.
    pub(crate) const DESTINATION: u8 = 60;
    /// Length of an IPv6 fragment header, in bytes.
    pub(crate) const FRAGMENT_HEADER_LENGTH: usize = 8;
    /// Length in bytes of an IPv6 hop-by-hop header with the jumbo payload option alone, as Linux
    /// writes it for BIG TCP.
    pub const JUMBO_HEADER_LENGTH: usize = 8;
    /// Type of the IPv6 option of a jumbo payload (RFC 2675).
    pub(crate) const JUMBO_OPTION: u8 = 0xc2;
    /// Type of the IPv6 option that is one byte of padding.
    pub(crate) const PAD1: u8 = 0;
    /// Type of the IPv6 option of a home address (RFC 6275, section 6.3).
    pub(crate) const HOME_ADDRESS: u8 = 0xc9;
    /// IPv6 routing type of the source route, deprecated by RFC 5095.
    pub(crate) const ROUTING_SOURCE: u8 = 0;
    /// IPv6 routing type that carries a mobile node's home address (RFC 6275, section 6.4).
    pub(crate) const ROUTING_HOME: u8 = 2;
    /// IPv6 routing type of RPL source routes (RFC 6554).
    pub(crate) const ROUTING_RPL: u8 = 3;
    /// IPv6 routing type of segment routing (RFC 8754).
    pub(crate) const ROUTING_SEGMENTS: u8 = 4;
}

/// IP protocol numbers.
pub mod protocol {
    /// IP protocol number of IPv4 in IP (RFC 2003).
    pub const IPIP: u8 = 4;
    /// IP protocol number of TCP.
    pub const TCP: u8 = 6;
    /// IP protocol number of UDP.
    pub const UDP: u8 = 17;
    /// IP protocol number of DCCP.
    pub const DCCP: u8 = 33;
    /// IP protocol number of IPv6 in IP (RFC 4213).
    pub const IPV6: u8 = 41;
    /// IP protocol number of GRE (generic routing encapsulation).
    pub const GRE: u8 = 47;
    /// IP protocol number of SCTP.
    pub const SCTP: u8 = 132;
}

/// TCP (RFC 9293).
pub mod tcp {
    /// Length of a TCP header without options, in bytes.
    pub const HEADER_LENGTH: usize = 20;
    /// Offset of the sequence number in a TCP header.
    pub const SEQUENCE: usize = 4;
    /// Offset of the acknowledgement number in a TCP header.
    pub const ACKNOWLEDGEMENT: usize = 8;
    /// Offset in a TCP header of the byte that holds the data offset (high 4 bits), reserved bits
    /// and AE.
    pub const DATA_OFFSET: usize = 12;
    /// Offset of the flags in a TCP header.
    pub const FLAGS: usize = 13;
    /// Offset of the window in a TCP header.
    pub const WINDOW: usize = 14;
    /// Offset of the checksum in a TCP header.
    pub const CHECKSUM: usize = 16;
    /// Offset of the options in a TCP header.
    pub const OPTIONS: usize = 20;
    /// TCP flag FIN.
    pub const FIN: u8 = 0x01;
    /// TCP flag SYN.
    pub const SYN: u8 = 0x02;
    /// TCP flag RST.
    pub const RST: u8 = 0x04;
    /// TCP flag PSH.
    pub const PSH: u8 = 0x08;
    /// TCP flag ACK.
    pub const ACK: u8 = 0x10;
    /// TCP flag URG.
    pub const URG: u8 = 0x20;
    /// TCP flag ECE (RFC 3168).
    pub const ECE: u8 = 0x40;
    /// TCP flag CWR (RFC 3168).
    pub const CWR: u8 = 0x80;
    /// First bytes of the TCP options that every stack sends: NOP, NOP, timestamp, length 10 (RFC
    /// 7323, appendix A).
    pub const ALIGNED_TIMESTAMP: [u8; 4] = [1, 1, 8, 10];
    /// Length in bytes of TCP options that are an aligned timestamp alone ([`ALIGNED_TIMESTAMP`]).
    pub const TIMESTAMP_OPTIONS_LENGTH: usize = 12;
    /// Offset of TSval in a TCP header whose options are an aligned timestamp
    /// ([`ALIGNED_TIMESTAMP`]).
    pub(crate) const TIMESTAMP_VALUE: usize = 24;
    /// Offset of TSecr in a TCP header whose options are an aligned timestamp
    /// ([`ALIGNED_TIMESTAMP`]).
    pub(crate) const TIMESTAMP_ECHO: usize = 28;
}

/// UDP (RFC 768).
pub mod udp {
    /// Length of a UDP header, in bytes.
    pub const HEADER_LENGTH: usize = 8;
    /// Offset of the destination port in a UDP header.
    pub(crate) const DESTINATION_PORT: usize = 2;
    /// Offset of the length, which includes the header, in a UDP header.
    pub const LENGTH: usize = 4;
    /// Offset of the checksum in a UDP header.
    pub const CHECKSUM: usize = 6;
}

/// DCCP (RFC 4340).
pub mod dccp {
    /// Length of a generic DCCP header with short (24-bit) sequence numbers, in bytes.
    pub(crate) const SHORT_HEADER_LENGTH: usize = 12;
    /// Length of a generic DCCP header with long (48-bit) sequence numbers, in bytes.
    pub const LONG_HEADER_LENGTH: usize = 16;
    /// Offset of the data offset, which counts 4-byte words, in a DCCP header.
    pub const DATA_OFFSET: usize = 4;
    /// Offset in a DCCP header of the byte that holds CCVal (high 4 bits) and checksum coverage
    /// (low 4 bits).
    pub const COVERAGE: usize = 5;
    /// Offset of the checksum in a DCCP header.
    pub const CHECKSUM: usize = 6;
    /// Offset in a DCCP header of the byte that holds reserved (3 bits), type (4 bits) and X (1
    /// bit).
    pub const TYPE: usize = 8;
    /// Packet type DCCP-Data.
    pub const DATA: u8 = 2;
    /// Packet type DCCP-DataAck.
    pub const DATA_ACK: u8 = 4;
    /// Offset of a 24-bit sequence number in a DCCP header (X = 0).
    pub(crate) const SHORT_SEQUENCE: usize = 9;
    /// Offset of a 48-bit sequence number in a DCCP header (X = 1).
    pub const LONG_SEQUENCE: usize = 10;
}

/// SCTP (RFC 9260).
pub mod sctp {
    /// Length of the common SCTP header, in bytes.
    pub const HEADER_LENGTH: usize = 12;
    /// Offset of the checksum in an SCTP header: a CRC32c of 4 bytes, the first of which holds its
    /// lowest 8 bits (RFC 9260, appendix A).
    pub const CHECKSUM: usize = 8;
}

/// Reads a big-endian 16-bit field; 0 beyond the end.
///
/// The parse checks that a header is complete before its fields are read, so the default is never
/// used. It only removes a panic branch from the hot path.
#[inline(always)]
pub(crate) fn be16(bytes: &[u8], offset: usize) -> u16 {
    match bytes.get(offset..offset + 2) {
        Some(field) => u16::from_be_bytes([field[0], field[1]]),
        None => 0,
    }
}

/// Reads a big-endian 32-bit field; 0 beyond the end.
#[inline(always)]
pub(crate) fn be32(bytes: &[u8], offset: usize) -> u32 {
    match bytes.get(offset..offset + 4) {
        Some(field) => u32::from_be_bytes([field[0], field[1], field[2], field[3]]),
        None => 0,
    }
}

/// Reads a byte; 0 beyond the end.
#[inline(always)]
pub(crate) fn byte(bytes: &[u8], offset: usize) -> u8 {
    bytes.get(offset).copied().unwrap_or(0)
}

/// Writes a big-endian 16-bit field; does not write beyond the end.
#[inline(always)]
pub(crate) fn put16(bytes: &mut [u8], offset: usize, value: u16) {
    if let Some(field) = bytes.get_mut(offset..).and_then(<[u8]>::first_chunk_mut) {
        *field = value.to_be_bytes();
    }
}

/// Writes a big-endian 32-bit field; does not write beyond the end.
#[inline(always)]
pub(crate) fn put32(bytes: &mut [u8], offset: usize, value: u32) {
    if let Some(field) = bytes.get_mut(offset..).and_then(<[u8]>::first_chunk_mut) {
        *field = value.to_be_bytes();
    }
}

/// Returns the DCCP sequence number of a header: 48 or 24 bits, by its X bit.
#[inline]
pub(crate) fn dccp_sequence(transport: &[u8]) -> u64 {
    if byte(transport, dccp::TYPE) & 1 == 1 {
        (u64::from(be16(transport, dccp::LONG_SEQUENCE)) << 32)
            | u64::from(be32(transport, dccp::LONG_SEQUENCE + 2))
    } else {
        u64::from(be32(transport, dccp::SHORT_SEQUENCE - 1) & 0x00ff_ffff)
    }
}

/// Returns the mask of a header's DCCP sequence numbers: 48 or 24 bits, by its X bit.
#[inline]
pub(crate) fn dccp_sequence_mask(transport: &[u8]) -> u64 {
    if byte(transport, dccp::TYPE) & 1 == 1 { (1 << 48) - 1 } else { (1 << 24) - 1 }
}
