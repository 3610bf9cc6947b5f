//! Headers whose lengths agree with each other and with the packet, so that it may be segmented.
//!
//! The parse keeps only the first refusal. Many do not prevent segmentation (IPv4 options, a length
//! left to the device), but one that does may follow. So all lengths are compared again here.

use super::{GsoKind, SegmentError};
use crate::checksum::{RxChecksum, Sum, pseudo_header_of};
use crate::wire::{
    IpVersion, Layout, Outer, Protocol, Refusal, are_addresses_known, be16, be32, byte, dccp,
    ip_length, ipv6, pppoe, udp,
};

/// The checked headers of a packet that may be segmented.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckedHeaders {
    pub(super) layout: Layout,
    /// End of the payload, in bytes from the start of the frame: what follows is padding.
    pub(super) end: usize,
    /// Whether the transport checksum is partial. If so, segments get a checksum even if the field
    /// holds 0, which in UDP would mean "no checksum".
    pub(super) partial: bool,
    /// The sum of the pseudo-header without its length; 0 for UDP without a checksum.
    pub(super) pseudo: Sum,
}

/// Checks the headers of a packet of `length` bytes, of which `header` holds the first, for
/// segments of `kind`. `checksum` is the state of its checksums.
#[inline(always)]
pub(super) fn check_headers(
    header: &[u8],
    length: usize,
    layout: Layout,
    kind: GsoKind,
    checksum: RxChecksum,
) -> Result<CheckedHeaders, SegmentError> {
    let fits = matches!(
        (kind, layout.version, layout.protocol),
        (GsoKind::Tcp4, IpVersion::V4, Protocol::Tcp)
            | (GsoKind::Tcp6, IpVersion::V6, Protocol::Tcp)
            | (GsoKind::Udp | GsoKind::UdpFragments, _, Protocol::Udp)
            | (GsoKind::Dccp, _, Protocol::Dccp)
    );
    if !fits {
        return Err(SegmentError::Kind {
            kind,
            version: layout.version,
            protocol: layout.protocol,
        });
    }
    let mut end = length;
    let mut stated = false;
    if let Some(outer) = layout.outer {
        (end, stated) = outer_end(header, outer, end, false)?;
        if let Some(nested) = layout.nested {
            stated |= outer_end(header, nested, end, true)?.1;
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
        Protocol::Udp => {
            check_udp_length(header, usize::from(layout.transport), end, inner_stated)?
        }
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
    let partial =
        matches!(checksum, RxChecksum::Partial { start, .. } if start == layout.transport);
    let pseudo = pseudo_sum(header, &layout, end, checksum)
        .ok_or(SegmentError::Headers(Refusal::FinalDestination))?;
    Ok(CheckedHeaders { layout, end, partial, pseudo })
}

/// Returns the sum of the pseudo-header without its length, of a packet that ends at `end`; `None`
/// if it is not known.
///
/// A partial checksum holds this sum in its field, and it is right whatever addresses the sender
/// used. It is adjusted by the difference of the lengths, as in Linux (`tcp_gso_segment`). A field
/// of 0 does not hold it.
#[inline(always)]
fn pseudo_sum(header: &[u8], layout: &Layout, end: usize, checksum: RxChecksum) -> Option<Sum> {
    let length = (end - usize::from(layout.transport)) as u32;
    match (be16(header, usize::from(layout.checksum())), checksum) {
        (seed @ 1.., RxChecksum::Partial { start, offset })
            if start == layout.transport && offset == layout.protocol.checksum_offset() =>
        {
            Some(Sum::new(seed).subtract((length >> 16) as u16).subtract(length as u16))
        }
        (0, RxChecksum::None | RxChecksum::Unnecessary { .. } | RxChecksum::Complete(_))
            if layout.protocol == Protocol::Udp =>
        {
            Some(Sum::default())
        }
        _ => pseudo_header_of(header, layout),
    }
}

/// Returns the offset at which a tunnel's packet ends by the length field of its outer IP header,
/// and whether that field is set, as [`ip_end`] does. A `nested` tunnel must end at `limit`.
fn outer_end(
    header: &[u8],
    outer: Outer,
    limit: usize,
    nested: bool,
) -> Result<(usize, bool), SegmentError> {
    let network = usize::from(outer.network);
    if outer.version == IpVersion::V6
        && be16(header, network + ipv6::PAYLOAD_LENGTH) == 0
        && byte(header, network + ipv6::NEXT_HEADER) == ipv6::HOP_BY_HOP
    {
        // A jumbo payload option of the outer header is not removed, and would contradict the
        // lengths of segments.
        return Err(SegmentError::Headers(Refusal::ExtensionHeader));
    }
    let (end, stated) = ip_end(header, network, outer.version, false, limit)?;
    if nested && end != limit {
        return Err(SegmentError::Length { needed: limit - network, got: end - network });
    }
    if outer.tunnel.is_udp() {
        check_udp_length(header, usize::from(outer.transport), end, stated)?;
        let known = are_addresses_known(header.get(network..).unwrap_or(&[]), outer.version);
        if !known && outer.checksum(header).is_some() {
            return Err(SegmentError::Headers(Refusal::FinalDestination));
        }
    }
    Ok((end, stated))
}

/// Returns the offset at which an IP packet ends by its length field, and `true`. If the field is 0
/// (left to the device, or BIG TCP over IPv4), returns `limit` and `false`.
fn ip_end(
    header: &[u8],
    network: usize,
    version: IpVersion,
    jumbo: bool,
    limit: usize,
) -> Result<(usize, bool), SegmentError> {
    let length = match version {
        IpVersion::V6 if jumbo => ipv6::HEADER_LENGTH
            .saturating_add(be32(header, network + ipv6::HEADER_LENGTH + 4) as usize),
        _ => ip_length(header, network, version),
    };
    if length == 0
        && version == IpVersion::V6
        && byte(header, network + ipv6::NEXT_HEADER) == ipv6::HOP_BY_HOP
    {
        return Err(SegmentError::Headers(Refusal::ExtensionHeader));
    }
    match length {
        0 => Ok((limit, false)),
        _ if network.saturating_add(length) > limit => {
            Err(SegmentError::Truncated { needed: network.saturating_add(length), got: limit })
        }
        _ => Ok((network + length, true)),
    }
}

/// Returns an error unless the datagram ends, by its UDP length, where the IP packet ends. The UDP
/// length may be 0 if the IP length is 0 too.
fn check_udp_length(
    header: &[u8],
    transport: usize,
    end: usize,
    stated: bool,
) -> Result<(), SegmentError> {
    let got = usize::from(be16(header, transport + udp::LENGTH));
    let needed = end.saturating_sub(transport);
    // A jumbo packet has a UDP length of 0 (RFC 2675, section 4), although its IP length is known.
    if got == needed || (got == 0 && (!stated || needed > usize::from(u16::MAX))) {
        Ok(())
    } else {
        Err(SegmentError::Length { needed, got })
    }
}
