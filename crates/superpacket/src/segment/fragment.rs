//! Where IP fragments part: which headers each of them carries.

use super::SegmentError;
use super::template::{FRAGMENT_HEADER, SCRATCH};
use crate::aggregate::Reason;
use crate::packet::Layer;
use crate::wire::{IpVersion, Layout, MAX_HEADER, be16, byte, ethernet, ipv4, ipv6, pppoe, put16, put32};

/// Takes the hop-by-hop header with the jumbo payload option out of the header bytes; the segments fit their length fields.
pub(super) fn remove_jumbo(bytes: &mut [u8; SCRATCH], layout: &mut Layout) {
    let at = usize::from(layout.network) + ipv6::HEADER_LENGTH;
    if let Some(next) = bytes.get(at).copied()
        && let Some(field) = bytes.get_mut(usize::from(layout.network) + ipv6::NEXT_HEADER)
    {
        *field = next;
    }
    if at + ipv6::JUMBO_HEADER_LENGTH <= SCRATCH {
        bytes.copy_within(at + ipv6::JUMBO_HEADER_LENGTH.., at);
    }
    layout.transport -= ipv6::JUMBO_HEADER_LENGTH as u16;
    layout.payload -= ipv6::JUMBO_HEADER_LENGTH as u16;
    layout.jumbo = false;
}

/// Makes room for an IPv6 fragment header and writes it (RFC 8200, section 4.5): behind hop-by-hop and routing headers and what stands before
/// them; destination options behind those are fragmented with the payload. The layout's transport and payload move.
///
/// Returns the length of the headers that every fragment carries.
pub(super) fn insert_fragment_header(bytes: &mut [u8; SCRATCH], layout: &mut Layout, id: u32) -> usize {
    let network = usize::from(layout.network);
    let mut at = network + ipv6::HEADER_LENGTH;
    let (mut split, mut field) = (at, network + ipv6::NEXT_HEADER);
    let mut next = byte(bytes, field);
    while at < usize::from(layout.transport) {
        let end = at + 8 + usize::from(byte(bytes, at + 1)) * 8;
        if next == ipv6::HOP_BY_HOP || next == ipv6::ROUTING {
            (split, field) = (end, at);
        }
        next = byte(bytes, at);
        at = end;
    }
    let split = split.min(MAX_HEADER);
    let follows = byte(bytes, field);
    bytes.copy_within(split..MAX_HEADER, split + FRAGMENT_HEADER);
    bytes[field.min(SCRATCH - 1)] = ipv6::FRAGMENT;
    put16(bytes, split, u16::from(follows) << 8);
    put16(bytes, split + 2, 0);
    put32(bytes, split + 4, id);
    layout.transport += FRAGMENT_HEADER as u16;
    layout.payload += FRAGMENT_HEADER as u16;
    split + FRAGMENT_HEADER
}

/// The outermost IP header of a packet, whatever it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outermost {
    pub(super) network: usize,
    pub(super) version: IpVersion,
    pub(super) pppoe: Option<usize>,
}

/// Finds the outermost IP header; `header` holds the first bytes of the packet.
pub(super) fn outermost(header: &[u8], layer: Layer) -> Result<Outermost, SegmentError> {
    let not_ip = Err(SegmentError::Headers(Reason::NotIp));
    let (mut network, mut pppoe_at) = (0, None);
    if layer == Layer::Ethernet {
        let mut ethertype = be16(header, ethernet::ETHERTYPE);
        network = ethernet::HEADER_LENGTH;
        while ethernet::is_vlan(ethertype) && network + 4 <= header.len() {
            ethertype = be16(header, network + 2);
            network += 4;
        }
        match ethertype {
            ethernet::IPV4 | ethernet::IPV6 => {}
            ethernet::PPPOE_SESSION => {
                if !matches!(be16(header, network + 6), pppoe::PPP_IPV4 | pppoe::PPP_IPV6) {
                    return not_ip;
                }
                pppoe_at = Some(network);
                network += pppoe::HEADER_LENGTH;
            }
            ethernet::MPLS | ethernet::MPLS_MULTICAST => loop {
                let bottom = byte(header, network + 2) & 1 == 1;
                network += 4;
                if bottom {
                    break;
                }
                if network >= header.len() {
                    return not_ip;
                }
            },
            _ => return not_ip,
        }
    }
    match byte(header, network) >> 4 {
        4 => Ok(Outermost { network, version: IpVersion::V4, pppoe: pppoe_at }),
        6 => Ok(Outermost { network, version: IpVersion::V6, pppoe: pppoe_at }),
        _ => not_ip,
    }
}

/// Later fragments carry only the options whose copied flag is set (RFC 791, section 3.1): the others become no-operations, so that the
/// header keeps its length (`ip_options_fragment`).
pub(super) fn keep_copied_options(bytes: &mut [u8; SCRATCH], network: usize) {
    const COPIED: u8 = 0x80;
    let end = network + usize::from(byte(bytes, network) & 0x0f) * 4;
    let mut at = network + ipv4::HEADER_LENGTH;
    while at < end {
        let length = match byte(bytes, at) {
            0 => return,
            1 => 1,
            _ => usize::from(byte(bytes, at + 1)),
        };
        if length == 0 || at + length > end || (length < 2 && byte(bytes, at) != 1) {
            return;
        }
        if byte(bytes, at) & COPIED == 0
            && let Some(option) = bytes.get_mut(at..at + length)
        {
            option.fill(1);
        }
        at += length;
    }
}
