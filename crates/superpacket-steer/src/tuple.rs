//! The fields of a packet that identify its flow, as receive-side scaling uses them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use superpacket::packet::Layer;
use superpacket::wire::{
    IpVersion, Layout, Scope, Unparsed, ip_headers, ipv4, ipv6, parse, parse_outermost,
    protocol_number,
};

use crate::header::be16;

/// Maximum length of a hash's input in bytes: two IPv6 addresses and two ports.
pub(crate) const MAX_INPUT: usize = 36;

/// The addresses of a flow, source and destination, in network byte order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Addresses {
    V4([u8; 4], [u8; 4]),
    V6([u8; 16], [u8; 16]),
}

/// The headers of a tunnelled packet that identify its flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FlowHeaders {
    /// The innermost headers that can be parsed: the flows within a tunnel spread over the CPUs.
    #[default]
    Inner,
    /// The outermost headers: a tunnel is a single flow, unless its outer UDP source port varies.
    Outer,
}

/// The addresses and ports of a flow, which are hashed, and its protocol, which is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowTuple {
    version: IpVersion,
    /// Source address in network byte order; an IPv4 address takes the first 4 bytes.
    source: [u8; 16],
    /// Destination address, in the same format as `source`.
    destination: [u8; 16],
    ports: Option<[u16; 2]>,
    protocol: Option<u8>,
}

impl FlowTuple {
    /// Creates an IPv4 tuple. `ports` are the source and destination port, or `None` for fragments
    /// and protocols without ports.
    pub const fn v4(source: [u8; 4], destination: [u8; 4], ports: Option<[u16; 2]>) -> Self {
        FlowTuple {
            version: IpVersion::V4,
            source: wide(source),
            destination: wide(destination),
            ports,
            protocol: None,
        }
    }

    /// Creates an IPv6 tuple; `ports` as in [`v4`](Self::v4).
    pub const fn v6(source: [u8; 16], destination: [u8; 16], ports: Option<[u16; 2]>) -> Self {
        FlowTuple { version: IpVersion::V6, source, destination, ports, protocol: None }
    }

    /// Reads the innermost addresses and ports of a frame of `length` bytes. `header` holds its
    /// first [`MAX_HEADER`](superpacket::wire::MAX_HEADER) bytes, or all if it is shorter.
    /// Fragments, and protocols other than TCP, UDP and DCCP, have no ports. Returns `None` if the
    /// frame is not IP.
    pub fn innermost(header: &[u8], length: usize, layer: Layer) -> Option<Self> {
        Self::from_parse(header, length, layer, parse(header, length, layer))
    }

    /// Reads the outermost IP header and the ports after it, like [`innermost`](Self::innermost).
    /// The packets of a tunnel then have the ports of its UDP header, or none.
    pub fn outermost(header: &[u8], length: usize, layer: Layer) -> Option<Self> {
        Self::from_parse(header, length, layer, parse_outermost(header, length, layer))
    }

    /// Reads the innermost addresses and ports of a frame whose headers are already parsed.
    pub fn from_layout(header: &[u8], layout: &Layout) -> Self {
        let transport = usize::from(layout.transport);
        let ports = [be16(header, transport), be16(header, transport + 2)];
        Self::read(
            header,
            usize::from(layout.network),
            layout.version,
            Some(ports),
            layout.protocol.number(),
        )
    }

    /// Returns the IP version.
    pub const fn version(&self) -> IpVersion {
        self.version
    }

    /// Returns the source address.
    pub fn source(&self) -> IpAddr {
        self.address(&self.source)
    }

    /// Returns the destination address.
    pub fn destination(&self) -> IpAddr {
        self.address(&self.destination)
    }

    /// Returns the source and destination port, or `None` in fragments and in protocols other than
    /// TCP, UDP and DCCP.
    pub const fn ports(&self) -> Option<[u16; 2]> {
        self.ports
    }

    /// Returns the IP protocol number, or `None` if the tuple was not read from a packet. It is not
    /// hashed.
    pub const fn protocol(&self) -> Option<u8> {
        self.protocol
    }

    /// Replaces source and destination, addresses and ports, by their XOR, so that both directions
    /// of a connection have the same tuple (the kernel's `RXH_XFRM_SYM_XOR`).
    #[must_use]
    #[inline]
    pub fn symmetric(mut self) -> Self {
        for (source, destination) in self.source.iter_mut().zip(&mut self.destination) {
            *source ^= *destination;
            *destination = *source;
        }
        self.ports = self.ports.map(|[source, destination]| [source ^ destination; 2]);
        self
    }

    /// Puts the lower one of source and destination first, so that both directions of a connection
    /// have the same tuple (like the kernel's `__flow_hash_consistentify`). Unlike XOR, this keeps
    /// different connections different.
    #[must_use]
    #[inline]
    pub fn ordered(self) -> Self {
        let FlowTuple { source, destination, ports, .. } = self;
        let [from, to] = ports.unwrap_or_default();
        if (source, from) <= (destination, to) {
            return self;
        }
        FlowTuple {
            source: destination,
            destination: source,
            ports: ports.map(|[from, to]| [to, from]),
            ..self
        }
    }

    /// Returns the source and destination address in network byte order, as they are hashed.
    #[inline]
    pub(crate) const fn addresses(&self) -> Addresses {
        match self.version {
            IpVersion::V4 => Addresses::V4(narrow(self.source), narrow(self.destination)),
            IpVersion::V6 => Addresses::V6(self.source, self.destination),
        }
    }

    /// Returns the source and destination port in network byte order, as they are hashed.
    #[inline]
    pub(crate) const fn port_bytes(&self) -> Option<[u8; 4]> {
        let Some([source, destination]) = self.ports else { return None };
        let ([a, b], [c, d]) = (source.to_be_bytes(), destination.to_be_bytes());
        Some([a, b, c, d])
    }

    fn from_parse(
        header: &[u8],
        length: usize,
        layer: Layer,
        parsed: Result<Layout, Unparsed>,
    ) -> Option<Self> {
        let (network, version) = match parsed {
            Ok(layout) => return Some(Self::from_layout(header, &layout)),
            Err(Unparsed { scope: Scope::Pair { network, version }, .. }) => (network, version),
            Err(Unparsed { scope: Scope::None, .. }) => {
                let [outermost, ..] = ip_headers(header, length, layer);
                outermost?
            }
        };
        let network = usize::from(network);
        Some(Self::read(header, network, version, None, protocol_number(header, network, version)))
    }

    #[inline]
    fn read(
        header: &[u8],
        network: usize,
        version: IpVersion,
        ports: Option<[u16; 2]>,
        protocol: u8,
    ) -> Self {
        let at = |offset: usize, length: usize| {
            let mut address = [0; 16];
            if let Some(bytes) = header.get(offset..offset + length) {
                address[..length].copy_from_slice(bytes);
            }
            address
        };
        let (addresses, length) = match version {
            IpVersion::V4 => (network + ipv4::ADDRESSES, 4),
            IpVersion::V6 => (network + ipv6::ADDRESSES, 16),
        };
        FlowTuple {
            version,
            source: at(addresses, length),
            destination: at(addresses + length, length),
            ports,
            protocol: Some(protocol),
        }
    }

    fn address(&self, address: &[u8; 16]) -> IpAddr {
        match self.version {
            IpVersion::V4 => {
                IpAddr::V4(Ipv4Addr::new(address[0], address[1], address[2], address[3]))
            }
            IpVersion::V6 => IpAddr::V6(Ipv6Addr::from(*address)),
        }
    }
}

const fn wide(address: [u8; 4]) -> [u8; 16] {
    let [a, b, c, d] = address;
    [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
}

const fn narrow(address: [u8; 16]) -> [u8; 4] {
    let [a, b, c, d, ..] = address;
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;
    use std::vec;
    use superpacket::wire::protocol;
    use superpacket_traffic::frame::{Frame, Icmp, Mpls, Transport};

    fn both(frame: &Frame) -> [Option<FlowTuple>; 2] {
        let bytes = frame.to_bytes();
        let layer = if frame.link.is_some() { Layer::Ethernet } else { Layer::Ip };
        [
            FlowTuple::innermost(&bytes, bytes.len(), layer),
            FlowTuple::outermost(&bytes, bytes.len(), layer),
        ]
    }

    #[test]
    fn a_tunnel_has_two_flows() {
        let plain = Frame::tcp4(1000, 500);
        let [inner, outer] = both(&plain);
        assert!(inner.is_some() && inner == outer, "outside tunnels there is one");
        for (tunnelled, carrier, with_ports) in [
            (plain.clone().in_vxlan4(), protocol::UDP, true),
            (plain.clone().in_vxlan6(), protocol::UDP, true),
            (plain.clone().in_geneve(), protocol::UDP, true),
            (plain.clone().in_gre(), protocol::GRE, false),
            (plain.clone().in_ip4(), protocol::IPIP, false),
            (plain.clone().in_ip6(), protocol::IPIP, false),
            (plain.clone().in_vxlan4().tagged(7), protocol::UDP, true),
        ] {
            let [within, around] = both(&tunnelled);
            assert_eq!(within, inner, "{tunnelled:?}");
            let around = around.expect("IP");
            assert_eq!(
                (around.protocol(), around.ports().is_some()),
                (Some(carrier), with_ports),
                "{tunnelled:?}"
            );
            assert_ne!(around.source(), inner.expect("IP").source());
            // The flow of the tunnel itself is the same, whatever the tunnel carries.
            let mut bytes = tunnelled.to_bytes();
            let frame = bytes.len();
            bytes[frame - 500 - 20 - 20..].fill(0xff);
            assert_eq!(
                FlowTuple::outermost(&bytes, frame, Layer::Ethernet),
                Some(around),
                "{tunnelled:?}"
            );
        }
    }

    #[test]
    fn fields_are_told() {
        let [tuple, _] = both(&Frame::tcp4(1, 1));
        let tuple = tuple.expect("IP");
        assert_eq!((tuple.version(), tuple.protocol()), (IpVersion::V4, Some(protocol::TCP)));
        let made = FlowTuple::v6([1; 16], [2; 16], None);
        assert_eq!(
            (made.source().to_string(), made.destination().to_string()),
            (
                "101:101:101:101:101:101:101:101".to_string(),
                "202:202:202:202:202:202:202:202".to_string()
            )
        );
        assert_eq!((made.ports(), made.protocol()), (None, None));
        assert_eq!(
            FlowTuple::v4([10, 0, 0, 1], [10, 0, 0, 2], None).source().to_string(),
            "10.0.0.1"
        );
        // Fragments have no ports but a protocol; over IPv6 it follows in the fragment header.
        for (whole, layer) in
            [(Frame::udp4(3000), Layer::Ethernet), (Frame::udp6(3000), Layer::Ethernet)]
        {
            for fragment in whole.fragments(1400, 9) {
                let bytes = fragment.to_bytes();
                let tuple = FlowTuple::innermost(&bytes, bytes.len(), layer).expect("IP");
                assert_eq!((tuple.ports(), tuple.protocol()), (None, Some(protocol::UDP)));
            }
        }
    }

    #[test]
    fn a_protocol_without_ports_is_found_behind_every_link_header() {
        let ping =
            Frame::tcp4(1, 1).with(|frame| frame.transport = Transport::Icmp(Icmp::default()));
        let [plain, _] = both(&ping);
        assert_eq!(plain.and_then(|tuple| tuple.protocol()), Some(1));
        let tags = (1..6).fold(ping.clone(), Frame::tagged);
        let session = ping.clone().in_pppoe();
        let labels = ping.with(|frame| frame.mpls = vec![Mpls::default(); 2]);
        for frame in [tags, session, labels] {
            assert_eq!(both(&frame), [plain; 2], "{frame:?}");
        }
    }

    #[test]
    fn the_lower_end_comes_first() {
        let there = FlowTuple::v4([10, 0, 0, 1], [10, 0, 0, 2], Some([80, 4000]));
        let back = FlowTuple::v4([10, 0, 0, 2], [10, 0, 0, 1], Some([4000, 80]));
        assert_eq!((there.ordered(), back.ordered()), (there, there));
        let within = FlowTuple::v4([10, 0, 0, 1], [10, 0, 0, 1], Some([4000, 80]));
        assert_eq!(within.ordered().ports(), Some([80, 4000]), "of one address, the ports tell");
        // XOR gives these two connections the same tuple.
        let (a, b) = (
            FlowTuple::v4([10, 0, 0, 1], [10, 0, 0, 2], None),
            FlowTuple::v4([10, 0, 0, 5], [10, 0, 0, 6], None),
        );
        assert_eq!(a.symmetric(), b.symmetric());
        assert_ne!(a.ordered(), b.ordered());
    }
}
