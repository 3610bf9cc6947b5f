//! Positions of the headers in a packet, for C.

use superpacket::wire::{IpVersion, Layout, Outer, Tunnel};

/// No tunnel.
pub const SP_TUNNEL_NONE: u8 = 0;
/// VXLAN over UDP: the inner packet is an Ethernet frame.
pub const SP_TUNNEL_VXLAN: u8 = 1;
/// Geneve over UDP: the inner packet is an Ethernet frame or an IP packet.
pub const SP_TUNNEL_GENEVE: u8 = 2;
/// GRE: the inner packet is an IP packet or an Ethernet frame.
pub const SP_TUNNEL_GRE: u8 = 3;
/// IP directly in IP: IPIP, SIT, IPv4 or IPv6 in IPv6.
pub const SP_TUNNEL_IP: u8 = 4;

/// Positions of the headers in a packet, in bytes from its start (behind the virtio_net_hdr, if
/// there is one).
///
/// A device needs these lengths to segment the packet. The link header has outer_network bytes in a
/// tunnel, and network bytes otherwise. The IP header has transport - network bytes. If all fields
/// are zero, the headers are unknown. The layout of this structure does not change while the
/// library keeps its soname.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct sp_layout {
    /// Position of the IP header; in a tunnel, of the inner one.
    pub network: u16,
    /// Position of the TCP, UDP or DCCP header.
    pub transport: u16,
    /// Position of the payload, which is also the length of all headers.
    pub payload: u16,
    /// In a tunnel: position of the outermost IP header.
    pub outer_network: u16,
    /// In a tunnel: position of the header behind the outermost IP header, which is that of UDP or
    /// GRE, or the inner IP header.
    pub outer_transport: u16,
    /// In a tunnel in a tunnel: position of the IP header of the second tunnel.
    pub nested_network: u16,
    /// In a tunnel in a tunnel: position of the UDP header of the second tunnel.
    pub nested_transport: u16,
    /// Version of the IP header at network: 4 or 6. 0: the headers are unknown.
    pub ip_version: u8,
    /// Protocol at transport: 6 (TCP), 17 (UDP) or 33 (DCCP).
    pub protocol: u8,
    /// Kind of the outermost tunnel, or SP_TUNNEL_NONE.
    pub tunnel: u8,
    /// In a tunnel: version of the outermost IP header, 4 or 6.
    pub outer_ip_version: u8,
    /// Kind of the second tunnel, or SP_TUNNEL_NONE.
    pub nested_tunnel: u8,
    /// In a tunnel in a tunnel: version of the second tunnel's IP header, 4 or 6.
    pub nested_ip_version: u8,
}

fn version(version: IpVersion) -> u8 {
    match version {
        IpVersion::V4 => 4,
        IpVersion::V6 => 6,
    }
}

fn tunnel(tunnel: Tunnel) -> u8 {
    match tunnel {
        Tunnel::Vxlan => SP_TUNNEL_VXLAN,
        Tunnel::Geneve => SP_TUNNEL_GENEVE,
        Tunnel::Gre => SP_TUNNEL_GRE,
        Tunnel::Ip => SP_TUNNEL_IP,
    }
}

impl From<&Layout> for sp_layout {
    fn from(layout: &Layout) -> Self {
        let mut made = sp_layout {
            network: layout.network,
            transport: layout.transport,
            payload: layout.payload,
            ip_version: version(layout.version),
            protocol: layout.protocol.number(),
            ..Self::default()
        };
        if let Some(Outer { network, version: outer_version, transport, tunnel: kind, .. }) =
            layout.outer
        {
            (made.outer_network, made.outer_transport) = (network, transport);
            (made.tunnel, made.outer_ip_version) = (tunnel(kind), version(outer_version));
        }
        if let Some(Outer { network, version: nested_version, transport, tunnel: kind, .. }) =
            layout.nested
        {
            (made.nested_network, made.nested_transport) = (network, transport);
            (made.nested_tunnel, made.nested_ip_version) = (tunnel(kind), version(nested_version));
        }
        made
    }
}
