//! Do the headers of a packet fit together, and the bytes there are, so that it may be cut?
//!
//! The parse stops a packet at the first thing that rules out aggregation; much of that does not
//! matter for cutting (IPv4 options, a length left to the device), and what does may hide behind
//! it. So the lengths are compared here once more, all of them.

use super::{GsoKind, SegmentError};
use crate::checksum::RxChecksum;
use crate::wire::{IpVersion, Layout, Protocol, Refusal, be16, be32, byte, dccp, ipv4, ipv6, pppoe, udp};

/// The parsed headers of a packet that may be cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) layout: Layout,
    /// End of the payload, in bytes from the start of the frame: what follows is padding.
    pub(super) end: usize,
    /// The transport checksum is partial: one is wanted, whatever its field holds.
    pub(super) partial: bool,
}

/// Checks a packet of `length` bytes, of which `header` holds the first, laid out as `layout` says,
/// for segments of `kind`. `checksum` is the state of its checksums.
#[inline(always)]
pub(super) fn shape(header: &[u8], length: usize, layout: Layout, kind: GsoKind, checksum: RxChecksum) -> Result<Shape, SegmentError> {
    let fits = matches!(
        (kind, layout.version, layout.protocol),
        (GsoKind::Tcp4, IpVersion::V4, Protocol::Tcp)
            | (GsoKind::Tcp6, IpVersion::V6, Protocol::Tcp)
            | (GsoKind::Udp | GsoKind::UdpFragments, _, Protocol::Udp)
            | (GsoKind::Dccp, _, Protocol::Dccp)
    );
    if !fits {
        return Err(SegmentError::Kind { kind, version: layout.version, protocol: layout.protocol });
    }
    let mut end = length;
    let mut stated = false;
    if let Some(outer) = layout.outer {
        let network = usize::from(outer.network);
        if outer.version == IpVersion::V6
            && be16(header, network + ipv6::PAYLOAD_LENGTH) == 0
            && byte(header, network + ipv6::NEXT_HEADER) == ipv6::HOP_BY_HOP
        {
            // A jumbo payload option in the outer header: not removed, so it would contradict the
            // segments' lengths.
            return Err(SegmentError::Headers(Refusal::ExtensionHeader));
        }
        (end, stated) = ip_end(header, network, outer.version, false, end)?;
        if outer.tunnel.is_udp() {
            udp_length(header, usize::from(outer.transport), end, stated)?;
        }
    }
    let network = usize::from(layout.network);
    let (inner, inner_stated) = ip_end(header, network, layout.version, layout.jumbo, end)?;
    if layout.outer.is_some() && inner != end {
        return Err(SegmentError::Length { needed: end - network, got: inner - network });
    }
    stated |= inner_stated;
    end = inner;
    match layout.protocol {
        Protocol::Udp => udp_length(header, usize::from(layout.transport), end, inner_stated)?,
        Protocol::Dccp => {
            let kind = (byte(header, usize::from(layout.transport) + dccp::TYPE) >> 1) & 0x0f;
            if kind != dccp::DATA && kind != dccp::DATA_ACK {
                return Err(SegmentError::Headers(Refusal::DccpType));
            }
        }
        Protocol::Tcp => {}
    }
    if layout.pppoe != 0 && stated {
        let counted = usize::from(be16(header, usize::from(layout.pppoe) + pppoe::LENGTH));
        let needed = end - usize::from(layout.outermost()) + pppoe::PPP_LENGTH;
        if counted < needed {
            return Err(SegmentError::Length { needed, got: counted });
        }
    }
    if usize::from(layout.payload) > end {
        return Err(SegmentError::Truncated { needed: usize::from(layout.payload), got: end });
    }
    let partial = matches!(checksum, RxChecksum::Partial { start, .. } if start == layout.transport);
    Ok(Shape { layout, end, partial })
}

/// The end of an IP packet by its length field, or `limit` where that is 0 (left to the device, or
/// BIG TCP over IPv4); and which of both.
fn ip_end(header: &[u8], network: usize, version: IpVersion, jumbo: bool, limit: usize) -> Result<(usize, bool), SegmentError> {
    let length = match version {
        IpVersion::V4 => usize::from(be16(header, network + ipv4::TOTAL_LENGTH)),
        IpVersion::V6 if jumbo => ipv6::HEADER_LENGTH.saturating_add(be32(header, network + ipv6::HEADER_LENGTH + 4) as usize),
        IpVersion::V6 => match usize::from(be16(header, network + ipv6::PAYLOAD_LENGTH)) {
            0 if byte(header, network + ipv6::NEXT_HEADER) == ipv6::HOP_BY_HOP => {
                return Err(SegmentError::Headers(Refusal::ExtensionHeader));
            }
            0 => 0,
            payload => ipv6::HEADER_LENGTH + payload,
        },
    };
    match length {
        0 => Ok((limit, false)),
        _ if network.saturating_add(length) > limit => Err(SegmentError::Truncated { needed: network.saturating_add(length), got: limit }),
        _ => Ok((network + length, true)),
    }
}

/// A UDP length must count what the IP header leaves it; 0 is taken where the IP length is missing
/// too.
fn udp_length(header: &[u8], transport: usize, end: usize, stated: bool) -> Result<(), SegmentError> {
    let got = usize::from(be16(header, transport + udp::LENGTH));
    let needed = end.saturating_sub(transport);
    // A jumbo packet has a UDP length of 0 (RFC 2675, section 4), although its IP length is known.
    if got == needed || (got == 0 && (!stated || needed > usize::from(u16::MAX))) {
        Ok(())
    } else {
        Err(SegmentError::Length { needed, got })
    }
}
