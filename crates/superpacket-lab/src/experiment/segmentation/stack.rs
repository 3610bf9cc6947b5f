//! A model of a host's stack that sends one long stream in super-packets or MTU-sized packets, with
//! headers and partial checksums as Linux gives them to a device.

use superpacket::checksum::{ipv4_header, pseudo_header};
use superpacket::packet::{Layer, RxChecksum};
use superpacket::segment::{Gso, GsoKind, SegmentSize};
use superpacket::wire::{IpVersion, dccp, ethernet, ipv4, ipv6, protocol, tcp, udp};
use superpacket_port::{Outgoing, TxBatch};

use super::MTU;
use crate::pattern::Pattern;

/// Length of the longest IP packet.
const LONGEST: usize = 65_535;

/// The protocol of a stack's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StackProtocol {
    /// TCP with timestamps over IPv4.
    Tcp4,
    /// TCP with timestamps over IPv6.
    Tcp6,
    /// UDP over IPv4.
    Udp,
    /// DCCP-Data with 48-bit sequence numbers over IPv4.
    Dccp,
}

impl StackProtocol {
    /// All protocols, in the order of the GSO report of 2006.
    pub(crate) const ALL: [StackProtocol; 4] =
        [StackProtocol::Tcp4, StackProtocol::Tcp6, StackProtocol::Udp, StackProtocol::Dccp];

    /// Returns the name used in tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            StackProtocol::Tcp4 => "TCPv4",
            StackProtocol::Tcp6 => "TCPv6",
            StackProtocol::Udp => "UDP",
            StackProtocol::Dccp => "DCCP",
        }
    }

    const fn version(self) -> IpVersion {
        if matches!(self, StackProtocol::Tcp6) { IpVersion::V6 } else { IpVersion::V4 }
    }

    const fn network_length(self) -> usize {
        if matches!(self, StackProtocol::Tcp6) { ipv6::HEADER_LENGTH } else { ipv4::HEADER_LENGTH }
    }

    const fn header_length(self) -> usize {
        match self {
            StackProtocol::Tcp4 | StackProtocol::Tcp6 => {
                tcp::HEADER_LENGTH + tcp::TIMESTAMP_OPTIONS_LENGTH
            }
            StackProtocol::Udp => udp::HEADER_LENGTH,
            StackProtocol::Dccp => dccp::LONG_HEADER_LENGTH,
        }
    }

    const fn kind(self) -> GsoKind {
        match self {
            StackProtocol::Tcp4 => GsoKind::Tcp4,
            StackProtocol::Tcp6 => GsoKind::Tcp6,
            StackProtocol::Udp => GsoKind::Udp,
            StackProtocol::Dccp => GsoKind::Dccp,
        }
    }

    const fn protocol(self) -> (u8, usize) {
        match self {
            StackProtocol::Tcp4 | StackProtocol::Tcp6 => (protocol::TCP, tcp::CHECKSUM),
            StackProtocol::Udp => (protocol::UDP, udp::CHECKSUM),
            StackProtocol::Dccp => (protocol::DCCP, dccp::CHECKSUM),
        }
    }

    /// Returns the number of payload bytes in an MTU-sized packet.
    pub(crate) const fn segment_size(self) -> usize {
        MTU - self.network_length() - self.header_length()
    }

    /// Returns the number of payload bytes in the longest super-packet that consists of whole
    /// segments.
    pub(crate) const fn longest(self) -> usize {
        // The IPv6 length field excludes the IPv6 header.
        let headers = self.header_length()
            + if matches!(self, StackProtocol::Tcp6) { 0 } else { self.network_length() };
        (LONGEST - headers) / self.segment_size() * self.segment_size()
    }
}

/// Host number 1, which sends a number of bytes to another host.
#[derive(Clone, Debug)]
pub(crate) struct SenderStack {
    transport: StackProtocol,
    to: u8,
    payload: Pattern,
    sent: u64,
    end: u64,
    /// Maximum payload bytes per packet.
    largest: usize,
    bytes: Vec<u8>,
}

impl SenderStack {
    /// Creates a stack that sends `bytes` of payload to host number `to`. Packets carry at most
    /// `largest` bytes of payload, rounded down to whole segments, and at least one segment.
    pub(crate) fn new(transport: StackProtocol, to: u8, bytes: u64, largest: usize) -> Self {
        let size = transport.segment_size();
        let largest = (largest / size * size).clamp(size, transport.longest());
        Self {
            transport,
            to,
            payload: Pattern::new(4),
            sent: 0,
            end: bytes,
            largest,
            bytes: Vec::new(),
        }
    }

    /// Adds the next packet to the batch; returns `false` if all payload has been sent.
    pub(crate) fn push(&mut self, outgoing: &mut Outgoing, batch: &mut TxBatch) -> bool {
        let length = (self.end - self.sent).min(self.largest as u64) as usize;
        if length == 0 {
            return false;
        }
        let size = self.transport.segment_size();
        let gso = SegmentSize::new(size)
            .filter(|_| length > size)
            .map(|size| Gso::new(self.transport.kind(), size));
        self.write(length);
        let (_, offset) = self.transport.protocol();
        let start = ethernet::HEADER_LENGTH + self.transport.network_length();
        let checksum = RxChecksum::Partial { start: start as u16, offset: offset as u16 };
        batch.push_bytes(outgoing, &self.bytes, checksum, gso, Layer::Ethernet);
        self.sent += length as u64;
        true
    }

    /// Writes the packet with the next `length` bytes of payload.
    fn write(&mut self, length: usize) {
        let transport = self.transport;
        let network = ethernet::HEADER_LENGTH;
        let header = network + transport.network_length();
        let payload = header + transport.header_length();
        let (number, checksum) = transport.protocol();
        // The number of segments sent before.
        let segments = self.sent.div_ceil(transport.segment_size() as u64);
        let to = self.to;
        self.bytes.clear();
        self.bytes.resize(payload + length, 0);
        let bytes = &mut self.bytes;
        self.payload.fill(self.sent, &mut bytes[payload..]);
        bytes[..12].copy_from_slice(&[2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, 1]);
        let rest = (transport.header_length() + length) as u32;
        match transport.version() {
            IpVersion::V4 => {
                put16(bytes, ethernet::ETHERTYPE, ethernet::IPV4);
                let ip = &mut bytes[network..];
                ip[0] = 0x45;
                put16(ip, ipv4::TOTAL_LENGTH, (ipv4::HEADER_LENGTH + rest as usize) as u16);
                put16(ip, ipv4::ID, segments as u16);
                put16(ip, ipv4::FRAGMENT, ipv4::DONT_FRAGMENT);
                (ip[ipv4::TTL], ip[ipv4::PROTOCOL]) = (64, number);
                ip[ipv4::ADDRESSES..ipv4::HEADER_LENGTH]
                    .copy_from_slice(&[10, 77, 0, 1, 10, 77, 0, to]);
                let sum = ipv4_header(&ip[..ipv4::HEADER_LENGTH]);
                put16(ip, ipv4::CHECKSUM, sum);
            }
            IpVersion::V6 => {
                put16(bytes, ethernet::ETHERTYPE, ethernet::IPV6);
                let ip = &mut bytes[network..];
                ip[0] = 0x60;
                put16(ip, ipv6::PAYLOAD_LENGTH, rest as u16);
                (ip[ipv6::NEXT_HEADER], ip[ipv6::HOP_LIMIT]) = (number, 64);
                for (place, host) in [(ipv6::ADDRESSES, 1), (ipv6::ADDRESSES + 16, to)] {
                    (ip[place], ip[place + 1], ip[place + 15]) = (0xfd, 0x77, host);
                }
            }
        }
        let own = &mut bytes[header..payload];
        put16(own, 0, 40_000);
        put16(own, 2, 5_001);
        match transport {
            StackProtocol::Tcp4 | StackProtocol::Tcp6 => {
                own[tcp::SEQUENCE..tcp::SEQUENCE + 4]
                    .copy_from_slice(&(self.sent as u32 + 1).to_be_bytes());
                own[tcp::ACKNOWLEDGEMENT + 3] = 1;
                (own[tcp::DATA_OFFSET], own[tcp::FLAGS]) = (8 << 4, tcp::ACK);
                put16(own, tcp::WINDOW, 501);
                own[tcp::OPTIONS..tcp::OPTIONS + 4].copy_from_slice(&tcp::ALIGNED_TIMESTAMP);
            }
            StackProtocol::Udp => put16(own, udp::LENGTH, rest as u16),
            StackProtocol::Dccp => {
                // Long sequence numbers (X); the checksum covers the whole payload (CsCov 0).
                (own[dccp::DATA_OFFSET], own[dccp::TYPE]) = (4, dccp::DATA << 1 | 1);
                own[dccp::LONG_SEQUENCE..dccp::LONG_SEQUENCE + 6]
                    .copy_from_slice(&segments.to_be_bytes()[2..]);
            }
        }
        let sum = pseudo_header(&bytes[network..header], transport.version(), number, rest).fold();
        put16(bytes, header + checksum, sum);
    }
}

fn put16(bytes: &mut [u8], offset: usize, value: u16) {
    bytes[offset..offset + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_sources() {
        // The TSO report of 2005 has 15,928 = 11 x 1448.
        assert_eq!(StackProtocol::Tcp4.segment_size(), 1448);
        assert_eq!(SenderStack::new(StackProtocol::Tcp4, 2, 1, 15_928).largest, 15_928);
        assert_eq!(
            StackProtocol::ALL.map(StackProtocol::longest),
            [65_160, 64_260, 64_768, 64_416]
        );
        assert_eq!(SenderStack::new(StackProtocol::Udp, 2, 1, 0).largest, 1472);
    }

    #[test]
    fn the_last_packet_holds_what_is_left() {
        let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
        let mut stack = SenderStack::new(StackProtocol::Dccp, 2, 4_000, 3_000);
        while stack.push(&mut outgoing, &mut batch) {}
        let lengths: Vec<u32> = batch.frames().iter().map(|frame| frame.length).collect();
        assert_eq!(lengths, [14 + 20 + 16 + 2 * 1464, 14 + 20 + 16 + 4_000 - 2 * 1464]);
        assert_eq!(
            batch.frames().iter().map(|frame| frame.gso.is_some()).collect::<Vec<_>>(),
            [true, false]
        );
    }
}
