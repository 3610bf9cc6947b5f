//! Builds the packets of the flows that `superpacket generate` writes.

use superpacket::Simd;
use superpacket::checksum::{pseudo_header, transport_field};
use superpacket::segment::{Gso, GsoKind, SegmentSize};
use superpacket::wire::{IpVersion, Protocol, ethernet, ipv4, ipv6, tcp, udp, vxlan};

/// The kind of traffic that a flow has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlowKind {
    /// TCP over IPv4 with timestamps, 1448 bytes per segment.
    Tcp4,
    /// TCP over IPv6 with timestamps, 1428 bytes per segment.
    Tcp6,
    /// UDP over IPv4, 1472 bytes per datagram.
    Udp,
    /// TCP over IPv4 in VXLAN, 1398 bytes per segment.
    Vxlan,
    /// A single small datagram, like a DNS query.
    Query,
}

impl FlowKind {
    /// Returns what a flow of the mixed workload sends in a round: the traffic of the flow's own
    /// kind or, every fifth time, a small datagram.
    pub(super) fn mixed(flow: u32, round: u32) -> FlowKind {
        if (flow + round) % 5 == 4 {
            return FlowKind::Query;
        }
        [FlowKind::Tcp4, FlowKind::Tcp6, FlowKind::Udp, FlowKind::Vxlan][flow as usize % 4]
    }

    /// Returns the number of payload bytes in a full segment.
    fn payload_length(self) -> usize {
        match self {
            FlowKind::Tcp4 => 1448,
            FlowKind::Tcp6 => 1428,
            FlowKind::Udp => 1472,
            FlowKind::Vxlan => 1398,
            FlowKind::Query => 40,
        }
    }

    fn version(self) -> IpVersion {
        if self == FlowKind::Tcp6 { IpVersion::V6 } else { IpVersion::V4 }
    }

    fn protocol(self) -> Protocol {
        if matches!(self, FlowKind::Udp | FlowKind::Query) { Protocol::Udp } else { Protocol::Tcp }
    }
}

/// The direction of a packet in its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PacketDirection {
    ToClient,
    ToServer,
}

impl PacketDirection {
    /// Returns the source and the destination of a packet in this direction.
    fn ends<T>(self, client: T, server: T) -> [T; 2] {
        match self {
            PacketDirection::ToClient => [server, client],
            PacketDirection::ToServer => [client, server],
        }
    }
}

/// The fields of a TCP header that differ between packets of a flow.
#[derive(Clone, Copy, Debug)]
struct TcpFields {
    sequence: u32,
    acknowledgement: u32,
    flags: u8,
    timestamp: u32,
}

/// Builds one packet after the other in the same buffer.
#[derive(Debug)]
pub(super) struct PacketBuilder {
    /// Number of payload bytes in a full segment; `None` for the default of the flow's kind.
    payload: Option<usize>,
    packet: Vec<u8>,
    simd: Simd,
}

impl PacketBuilder {
    /// Creates a builder. Full segments carry `payload` bytes; with `None`, as many as fit in an IP
    /// packet of 1500 bytes.
    pub(super) fn new(payload: Option<usize>) -> Self {
        PacketBuilder { payload, packet: Vec::with_capacity(1 << 16), simd: Simd::detect() }
    }

    /// Returns the bytes of the packet that was built last.
    pub(super) fn packet(&self) -> &[u8] {
        &self.packet
    }

    /// Builds a burst of a flow: a super-packet of `segments` full segments. Returns the parameters
    /// to segment it, or `None` if it is a single small packet.
    pub(super) fn burst(
        &mut self,
        kind: FlowKind,
        flow: u32,
        round: u32,
        segments: u32,
    ) -> Option<Gso> {
        let size = self.segment_size(kind);
        let payload = if kind == FlowKind::Query { size } else { size * segments as usize };
        let sequence = first_sequence(flow).wrapping_add(round.wrapping_mul(payload as u32));
        // A burst ends with PSH. A burst of one segment counts as part of a longer stream, without
        // PSH.
        let flags = if segments > 1 { tcp::ACK | tcp::PSH } else { tcp::ACK };
        let fields = TcpFields { sequence, acknowledgement: 1, flags, timestamp: round + 1000 };
        self.build(
            kind,
            flow,
            round.wrapping_mul(segments),
            PacketDirection::ToClient,
            fields,
            payload,
        );
        let gso = match (kind, kind.version()) {
            (FlowKind::Query, _) => return None,
            (FlowKind::Udp, _) => GsoKind::Udp,
            (_, IpVersion::V4) => GsoKind::Tcp4,
            (_, IpVersion::V6) => GsoKind::Tcp6,
        };
        Some(Gso::new(gso, SegmentSize::new(size)?))
    }

    /// Builds the receiver's acknowledgement of the first `segments` segments of a burst of `burst`
    /// segments. Returns `false` if the flow has no acknowledgements.
    pub(super) fn acknowledge(
        &mut self,
        kind: FlowKind,
        flow: u32,
        round: u32,
        burst: u32,
        segments: u32,
    ) -> bool {
        if kind.protocol() != Protocol::Tcp {
            return false;
        }
        let size = self.segment_size(kind) as u32;
        let sequence = first_sequence(flow).wrapping_add(round.wrapping_mul(burst * size));
        let acknowledgement = sequence.wrapping_add(segments * size);
        let fields =
            TcpFields { sequence: 1, acknowledgement, flags: tcp::ACK, timestamp: round + 2000 };
        self.build(
            kind,
            flow,
            round.wrapping_mul(22).wrapping_add(segments / 2),
            PacketDirection::ToServer,
            fields,
            0,
        );
        true
    }

    fn segment_size(&self, kind: FlowKind) -> usize {
        self.payload.unwrap_or(kind.payload_length())
    }

    fn build(
        &mut self,
        kind: FlowKind,
        flow: u32,
        id: u32,
        direction: PacketDirection,
        fields: TcpFields,
        payload: usize,
    ) {
        self.packet.clear();
        if kind == FlowKind::Vxlan {
            let inner = ethernet::HEADER_LENGTH
                + ipv4::HEADER_LENGTH
                + transport_length(Protocol::Tcp)
                + payload;
            let length = udp::HEADER_LENGTH + vxlan::HEADER_LENGTH + inner;
            self.ethernet(IpVersion::V4, direction, 0x10);
            self.ip(IpVersion::V4, Protocol::Udp, 1000 + flow % 4, id, direction, length);
            self.udp(49_152 + (flow % 1024) as u16, vxlan::PORT, length);
            self.packet.extend_from_slice(&vxlan::FLAGS.to_be_bytes());
            self.packet.extend_from_slice(&[0, 0, 42, 0]);
        }
        self.ethernet(kind.version(), direction, 0x20);
        let protocol = kind.protocol();
        let length = transport_length(protocol) + payload;
        let network = self.packet.len();
        self.ip(kind.version(), protocol, flow, id, direction, length);
        let transport = self.packet.len();
        let (client, server) =
            (10_000 + (flow % 50_000) as u16, if kind == FlowKind::Query { 53 } else { 443 });
        let (source, destination) = if direction == PacketDirection::ToClient {
            (server, client)
        } else {
            (client, server)
        };
        match protocol {
            Protocol::Udp => self.udp(source, destination, length),
            _ => self.tcp(source, destination, fields),
        }
        self.append_payload(payload, flow);
        let sum = pseudo_header(
            &self.packet[network..],
            kind.version(),
            protocol.number(),
            length as u32,
        )
        .add(self.simd.sum(&self.packet[transport..]));
        let offset = transport + usize::from(protocol.checksum_offset());
        self.write_u16(offset, transport_field(protocol, sum.checksum()));
    }

    fn write_u16(&mut self, offset: usize, value: u16) {
        if let Some(field) = self.packet.get_mut(offset..offset + 2) {
            field.copy_from_slice(&value.to_be_bytes());
        }
    }

    fn ethernet(&mut self, version: IpVersion, direction: PacketDirection, host: u8) {
        let (client, server) = ([2, 0, 0, 0, host, 1], [2, 0, 0, 0, host, 2]);
        let [source, destination] = direction.ends(client, server);
        self.packet.extend_from_slice(&destination);
        self.packet.extend_from_slice(&source);
        let kind = if version == IpVersion::V4 { ethernet::IPV4 } else { ethernet::IPV6 };
        self.packet.extend_from_slice(&kind.to_be_bytes());
    }

    fn ip(
        &mut self,
        version: IpVersion,
        protocol: Protocol,
        flow: u32,
        id: u32,
        direction: PacketDirection,
        length: usize,
    ) {
        // Flows with the same ports have clients with different addresses.
        let host = (flow / 50_000).wrapping_add(1);
        match version {
            IpVersion::V4 => {
                let client =
                    (0x0a01_0000u32 | (flow % 50_000)).wrapping_add(host << 17).to_be_bytes();
                let server = [10, 0, 0, 1];
                let start = self.packet.len();
                let total = (ipv4::HEADER_LENGTH + length) as u16;
                self.packet.extend_from_slice(&[0x45, 0]);
                self.packet.extend_from_slice(&total.to_be_bytes());
                self.packet.extend_from_slice(&(id as u16).to_be_bytes());
                self.packet.extend_from_slice(&[0x40, 0, 64, protocol.number(), 0, 0]);
                self.packet.extend_from_slice(&direction.ends(client, server).concat());
                let sum = superpacket::checksum::ipv4_header(&self.packet[start..]);
                self.write_u16(start + ipv4::CHECKSUM, sum);
            }
            IpVersion::V6 => {
                let mut client = [0; 16];
                client[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
                client[12..].copy_from_slice(&(flow + 2).to_be_bytes());
                let mut server = client;
                server[12..].copy_from_slice(&1u32.to_be_bytes());
                self.packet.extend_from_slice(&[0x60, 0, 0, 0]);
                self.packet.extend_from_slice(&(length as u16).to_be_bytes());
                self.packet.extend_from_slice(&[protocol.number(), 64]);
                self.packet.extend_from_slice(&direction.ends(client, server).concat());
                const _: () = assert!(ipv6::HEADER_LENGTH == 4 + 2 + 2 + 16 + 16);
            }
        }
    }

    /// Appends a UDP header whose checksum field is 0.
    fn udp(&mut self, source: u16, destination: u16, length: usize) {
        for field in [source, destination, length as u16, 0] {
            self.packet.extend_from_slice(&field.to_be_bytes());
        }
    }

    /// Appends a TCP header with timestamps, whose checksum field is 0.
    fn tcp(&mut self, source: u16, destination: u16, fields: TcpFields) {
        self.packet.extend_from_slice(&source.to_be_bytes());
        self.packet.extend_from_slice(&destination.to_be_bytes());
        self.packet.extend_from_slice(&fields.sequence.to_be_bytes());
        self.packet.extend_from_slice(&fields.acknowledgement.to_be_bytes());
        self.packet.extend_from_slice(&[0x80, fields.flags, 0x01, 0xf5, 0, 0, 0, 0]);
        self.packet.extend_from_slice(&tcp::ALIGNED_TIMESTAMP);
        self.packet.extend_from_slice(&fields.timestamp.to_be_bytes());
        self.packet.extend_from_slice(&999u32.to_be_bytes());
    }

    /// Appends payload with a pattern that differs between flows. It repeats after a prime number
    /// of bytes, so that segments after each other have different bytes.
    fn append_payload(&mut self, length: usize, flow: u32) {
        const PERIOD: usize = 251;
        let mut pattern = [0u8; PERIOD];
        for (index, byte) in pattern.iter_mut().enumerate() {
            *byte = (index as u32).wrapping_mul(flow.wrapping_mul(2) | 1) as u8;
        }
        let end = self.packet.len() + length;
        while self.packet.len() < end {
            let take = PERIOD.min(end - self.packet.len());
            self.packet.extend_from_slice(&pattern[..take]);
        }
    }
}

fn transport_length(protocol: Protocol) -> usize {
    match protocol {
        Protocol::Udp => udp::HEADER_LENGTH,
        _ => tcp::HEADER_LENGTH + tcp::TIMESTAMP_OPTIONS_LENGTH,
    }
}

/// Returns the sequence number of a flow's first segment.
fn first_sequence(flow: u32) -> u32 {
    flow.wrapping_mul(0x9e37_79b1)
}
