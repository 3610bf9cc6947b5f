//! Flow keys, TCP fields and payloads, parsed independently of the engine.

use core::net::IpAddr;

use etherparse::{Ipv4HeaderSlice, Ipv6HeaderSlice, TcpHeaderSlice};

use super::Kind;
use super::walk::{Walk, walk};

/// A flow in one direction. Packets with equal keys must stay in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowKey {
    /// Destination and source MAC address of the outermost Ethernet header.
    pub macs: Option<([u8; 6], [u8; 6])>,
    /// VLAN tags in the frame, outermost first: protocol and control information (priority, DEI,
    /// VLAN ID).
    pub vlans: Vec<(u16, u16)>,
    /// Session ID of the PPPoE header; `None` without one.
    pub pppoe: Option<u16>,
    /// MPLS labels, top first.
    pub mpls: Vec<u32>,
    /// Tunnels, outermost first.
    pub tunnels: Vec<TunnelKey>,
    /// Source address in the innermost IP header.
    pub source: Option<IpAddr>,
    /// Destination address in the innermost IP header.
    pub destination: Option<IpAddr>,
    /// The protocol number behind the innermost IP header and its extension headers; for a
    /// fragment, the one that its fragment header names.
    pub protocol: u8,
    /// Source and destination port; `None` for fragments and protocols without ports.
    pub ports: Option<(u16, u16)>,
}

/// The part of a flow key that describes a tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TunnelKey {
    /// Source address in the tunnel's outer IP header.
    pub source: IpAddr,
    /// Destination address in the tunnel's outer IP header.
    pub destination: IpAddr,
    /// Outer UDP ports; `None` for tunnels other than VXLAN and Geneve.
    pub ports: Option<(u16, u16)>,
    /// VNI or GRE key; `None` for IP in IP and GRE without a key.
    pub identifier: Option<u32>,
    /// Destination and source MAC address of the inner Ethernet header.
    pub macs: Option<([u8; 6], [u8; 6])>,
    /// VLAN tags of the inner Ethernet header: EtherType and tag control information.
    pub vlans: Vec<(u16, u16)>,
}

/// The fields of the innermost TCP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpFields {
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgement: u32,
    /// The 12 bits after the data offset, reserved bits and AE included (bits of
    /// [`crate::frame::FIN`] and so on).
    pub flags: u16,
    /// Window field, without the window scale applied.
    pub window: u16,
    /// Urgent pointer.
    pub urgent: u16,
    /// Options as raw bytes.
    pub options: Vec<u8>,
    /// TSval and TSecr of the timestamps option; `None` without it.
    pub timestamps: Option<(u32, u32)>,
    /// Length of the payload in bytes.
    pub payload: usize,
}

/// Returns the flow of a packet; `None` if it is not IP or a header is incomplete.
///
/// Padding, checksums and length fields beyond the packet's end make no difference.
pub fn flow_key(bytes: &[u8], starts_at_ip: bool) -> Option<FlowKey> {
    let walk = walk(bytes, starts_at_ip, true);
    let mut key = FlowKey::default();
    let be16 = |offset: usize| u16::from_be_bytes([bytes[offset], bytes[offset + 1]]);
    let be32 = |offset: usize| {
        u32::from_be_bytes([bytes[offset], bytes[offset + 1], bytes[offset + 2], bytes[offset + 3]])
    };
    let mut identifier = None;
    for layer in &walk.layers {
        let at = layer.offset;
        match layer.kind {
            Kind::Ethernet => {
                let macs = Some((
                    bytes[at..at + 6].try_into().ok()?,
                    bytes[at + 6..at + 12].try_into().ok()?,
                ));
                match key.enter(&mut identifier) {
                    Some(tunnel) => tunnel.macs = macs,
                    None => key.macs = macs,
                }
            }
            Kind::Vlan => {
                let tag = (be16(at - 2), be16(at));
                match key.tunnels.last_mut() {
                    Some(tunnel) => tunnel.vlans.push(tag),
                    None => key.vlans.push(tag),
                }
            }
            Kind::Pppoe => key.pppoe = Some(be16(at + 2)),
            Kind::Mpls => key.mpls.push(be32(at) >> 12),
            Kind::Ipv4 => {
                key.enter(&mut identifier);
                let header = Ipv4HeaderSlice::from_slice(&bytes[at..layer.end]).ok()?;
                key.address(
                    header.source_addr().into(),
                    header.destination_addr().into(),
                    header.protocol().0,
                );
            }
            Kind::Ipv6 => {
                key.enter(&mut identifier);
                let header = Ipv6HeaderSlice::from_slice(&bytes[at..layer.end]).ok()?;
                key.address(
                    header.source_addr().into(),
                    header.destination_addr().into(),
                    header.next_header().0,
                );
            }
            Kind::Extension(_) => key.protocol = bytes[at],
            Kind::Tcp | Kind::Udp | Kind::Dccp | Kind::Sctp => {
                key.ports = Some((be16(at), be16(at + 2)))
            }
            Kind::Vxlan | Kind::Geneve => identifier = Some(be32(at + 4) >> 8),
            Kind::Gre => {
                let flags = be16(at);
                identifier =
                    (flags & 0x2000 != 0).then(|| be32(at + 4 + usize::from(flags >> 15) * 4));
            }
            Kind::Icmp | Kind::Icmpv6 => {}
        }
    }
    // A packet with an incomplete transport header or without addresses belongs to no flow.
    let headless =
        !walk.fragment && key.ports.is_none() && matches!(key.protocol, 6 | 17 | 33 | 132);
    (key.source.is_some() && !headless).then_some(key)
}

impl FlowKey {
    /// Begins the next level of headers. If an IP header has been parsed already, its fields move
    /// to a new tunnel.
    fn enter(&mut self, identifier: &mut Option<u32>) -> Option<&mut TunnelKey> {
        if let (Some(source), Some(destination)) = (self.source.take(), self.destination.take()) {
            let (ports, identifier) = (self.ports.take(), identifier.take());
            self.tunnels.push(TunnelKey {
                source,
                destination,
                ports,
                identifier,
                macs: None,
                vlans: Vec::new(),
            });
        }
        self.tunnels.last_mut()
    }

    fn address(&mut self, source: IpAddr, destination: IpAddr, protocol: u8) {
        (self.source, self.destination, self.protocol) =
            (Some(source), Some(destination), protocol);
    }
}

/// Returns the fields of a packet's innermost TCP header; `None` if there is none, or it is
/// incomplete.
pub fn tcp_fields(bytes: &[u8], starts_at_ip: bool) -> Option<TcpFields> {
    let walk = walk(bytes, starts_at_ip, true);
    let layer = walk.layers.last().filter(|layer| layer.kind == Kind::Tcp)?;
    let header = TcpHeaderSlice::from_slice(&bytes[layer.offset..layer.end]).ok()?;
    let timestamps = header.options_iterator().find_map(|option| match option {
        Ok(etherparse::TcpOptionElement::Timestamp(value, echo)) => Some((value, echo)),
        _ => None,
    });
    Some(TcpFields {
        sequence: header.sequence_number(),
        acknowledgement: header.acknowledgment_number(),
        flags: u16::from_be_bytes([header.slice()[12], header.slice()[13]]) & 0xfff,
        window: header.window_size(),
        urgent: header.urgent_pointer(),
        options: header.options().to_vec(),
        timestamps,
        payload: walk.payload().len(),
    })
}

/// Returns the bytes behind the last header that can be parsed, up to the end of the IP packet.
pub fn payload(bytes: &[u8], starts_at_ip: bool) -> Option<&[u8]> {
    let walk: Walk = walk(bytes, starts_at_ip, true);
    bytes.get(walk.payload()).filter(|_| !walk.layers.is_empty())
}
