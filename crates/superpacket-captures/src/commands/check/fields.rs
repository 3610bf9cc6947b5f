//! Tells for a byte of a packet's headers in which field it is, and which rule concerns the field.

use superpacket::packet::Layer;
use superpacket::wire::{IpVersion, Layout, Outer, Protocol, ethernet, ipv4, ipv6, pppoe, tcp};

use super::rule::Rule;
use crate::commands::checksums::be16;

/// A field of a packet's headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeaderField {
    pub(super) name: String,
    pub(super) rule: Rule,
    /// Whether the field is a checksum, which depends on all other fields.
    pub(super) is_checksum: bool,
}

fn field(prefix: &str, name: &str, rule: Rule) -> HeaderField {
    HeaderField {
        name: format!("{prefix}{name}"),
        rule,
        is_checksum: matches!(rule, Rule::Checksum | Rule::IpChecksum),
    }
}

/// Returns the header field that contains the byte at offset `place`. In `difference`, the bits are
/// set in which this byte differs between two packets.
pub(super) fn field_at(
    bytes: &[u8],
    layout: &Layout,
    layer: Layer,
    place: usize,
    difference: u8,
) -> HeaderField {
    let network = usize::from(layout.network);
    let transport = usize::from(layout.transport);
    if place < usize::from(layout.outermost()) {
        return link_field(bytes, layer, place);
    }
    for (prefix, outer) in [("nested ", layout.nested), ("outer ", layout.outer)] {
        let Some(outer) = outer else { continue };
        let (outer_network, outer_transport) =
            (usize::from(outer.network), usize::from(outer.transport));
        if (outer_network..outer_transport).contains(&place) {
            return ip_field(prefix, outer.version, place - outer_network, difference);
        }
        if (outer_transport..network).contains(&place) {
            return tunnel_field(bytes, prefix, outer, place);
        }
    }
    if place < transport {
        return ip_field("", layout.version, place - network, difference);
    }
    transport_field(layout.protocol, place - transport, difference)
}

fn link_field(bytes: &[u8], layer: Layer, place: usize) -> HeaderField {
    let name = match (layer, place) {
        (Layer::Ip, _) => "link header",
        (_, 0..6) => "ethernet.destination",
        (_, 6..12) => "ethernet.source",
        (_, 12..14) => "ethernet.type",
        _ => {
            let mut kind = be16(bytes, ethernet::ETHERTYPE).unwrap_or(0);
            let mut offset = ethernet::HEADER_LENGTH;
            while ethernet::is_vlan(kind) && place >= offset + 4 {
                kind = be16(bytes, offset + 2).unwrap_or(0);
                offset += 4;
            }
            match kind {
                _ if ethernet::is_vlan(kind) => "vlan",
                ethernet::PPPOE_SESSION
                    if (pppoe::LENGTH..pppoe::LENGTH + 2).contains(&(place - offset)) =>
                {
                    return field("", "pppoe.length", Rule::Length);
                }
                ethernet::PPPOE_SESSION => "pppoe",
                ethernet::MPLS => "mpls",
                _ => "link header",
            }
        }
    };
    field("", name, Rule::LinkHeader)
}

fn ip_field(prefix: &str, version: IpVersion, offset: usize, difference: u8) -> HeaderField {
    let (name, rule) = match (version, offset) {
        (IpVersion::V4, 0) => ("ipv4.version", Rule::IpHeader),
        (IpVersion::V4, ipv4::TOS) => ("ipv4.tos", Rule::TrafficClass),
        (IpVersion::V4, 2..4) => ("ipv4.total_length", Rule::Length),
        (IpVersion::V4, 4..6) => ("ipv4.id", Rule::IpId),
        (IpVersion::V4, 6..8) => ("ipv4.fragment", Rule::DontFragment),
        (IpVersion::V4, ipv4::TTL) => ("ipv4.ttl", Rule::Ttl),
        (IpVersion::V4, ipv4::PROTOCOL) => ("ipv4.protocol", Rule::IpHeader),
        (IpVersion::V4, 10..12) => ("ipv4.checksum", Rule::IpChecksum),
        (IpVersion::V4, 12..20) => ("ipv4.addresses", Rule::IpHeader),
        (IpVersion::V4, _) => ("ipv4.options", Rule::IpHeader),
        (IpVersion::V6, 0) if difference & 0xf0 != 0 => ("ipv6.version", Rule::IpHeader),
        (IpVersion::V6, 0) => ("ipv6.traffic_class", Rule::TrafficClass),
        (IpVersion::V6, 1) if difference & 0xf0 != 0 => ("ipv6.traffic_class", Rule::TrafficClass),
        (IpVersion::V6, 1..4) => ("ipv6.flow_label", Rule::FlowLabel),
        (IpVersion::V6, 4..6) => ("ipv6.payload_length", Rule::Length),
        (IpVersion::V6, ipv6::NEXT_HEADER) => ("ipv6.next_header", Rule::IpHeader),
        (IpVersion::V6, ipv6::HOP_LIMIT) => ("ipv6.hop_limit", Rule::Ttl),
        (IpVersion::V6, 8..40) => ("ipv6.addresses", Rule::IpHeader),
        (IpVersion::V6, _) => ("ipv6.extension_header", Rule::IpHeader),
    };
    field(prefix, name, rule)
}

fn tunnel_field(bytes: &[u8], prefix: &str, outer: Outer, place: usize) -> HeaderField {
    match (outer.tunnel.is_udp(), place - usize::from(outer.transport)) {
        (true, 0..4) => field(prefix, "udp.ports", Rule::TunnelHeader),
        (true, 4..6) => field(prefix, "udp.length", Rule::Length),
        (true, 6..8) => field(prefix, "udp.checksum", Rule::Checksum),
        _ => {
            let name = outer.tunnel.name();
            match outer.checksum(bytes) {
                Some(checksum) if (checksum..checksum + 2).contains(&place) => {
                    field(prefix, &format!("{name}.checksum"), Rule::Checksum)
                }
                _ => field(prefix, name, Rule::TunnelHeader),
            }
        }
    }
}

fn transport_field(protocol: Protocol, offset: usize, difference: u8) -> HeaderField {
    let (name, rule) = match (protocol, offset) {
        (Protocol::Tcp, 0..4) => ("tcp.ports", Rule::Transport),
        (Protocol::Tcp, 4..8) => ("tcp.sequence", Rule::Sequence),
        (Protocol::Tcp, 8..12) => ("tcp.acknowledgement", Rule::Acknowledgement),
        (Protocol::Tcp, tcp::DATA_OFFSET) if difference & 0xf0 != 0 => {
            ("tcp.data_offset", Rule::TcpOptions)
        }
        (Protocol::Tcp, tcp::FLAGS) if difference == tcp::CWR => ("tcp.flags", Rule::Cwr),
        (Protocol::Tcp, tcp::DATA_OFFSET | tcp::FLAGS) => ("tcp.flags", Rule::Flags),
        (Protocol::Tcp, 14..16) => ("tcp.window", Rule::Window),
        (Protocol::Tcp, 16..18) => ("tcp.checksum", Rule::Checksum),
        (Protocol::Tcp, 18..20) => ("tcp.urgent", Rule::Urgent),
        (Protocol::Tcp, _) => ("tcp.options", Rule::TcpOptions),
        (Protocol::Udp, 0..4) => ("udp.ports", Rule::Transport),
        (Protocol::Udp, 4..6) => ("udp.length", Rule::Length),
        (Protocol::Udp, _) => ("udp.checksum", Rule::Checksum),
        (Protocol::Dccp, 0..4) => ("dccp.ports", Rule::Transport),
        (Protocol::Dccp, 6..8) => ("dccp.checksum", Rule::Checksum),
        (Protocol::Dccp, _) => ("dccp.header", Rule::Transport),
    };
    field("", name, rule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use superpacket::wire::parse;
    use superpacket_traffic::frame::Frame;

    #[test]
    fn a_field_is_that_of_its_tunnel() {
        let frame = Frame::tcp4(1, 10).in_vxlan4().in_geneve();
        let (bytes, offsets) = (frame.to_bytes(), frame.offsets());
        let layout = parse(&bytes, bytes.len(), Layer::Ethernet).expect("headers are whole");
        let (outer, nested) =
            (offsets.outer.expect("a tunnel"), offsets.nested.expect("a second tunnel"));
        for (place, name) in [
            (3, "ethernet.destination"),
            (outer + 8, "outer ipv4.ttl"),
            (outer + 26, "outer udp.checksum"),
            (outer + 28, "outer geneve"),
            // The Ethernet header inside the outer tunnel.
            (nested - 1, "outer geneve"),
            (nested + 8, "nested ipv4.ttl"),
            (nested + 20, "nested udp.ports"),
            (nested + 28, "nested vxlan"),
            (offsets.network - 1, "nested vxlan"),
            (offsets.network + 8, "ipv4.ttl"),
            (offsets.transport, "tcp.ports"),
        ] {
            assert_eq!(
                field_at(&bytes, &layout, Layer::Ethernet, place, 0xff).name,
                name,
                "at {place}"
            );
        }
    }
}
