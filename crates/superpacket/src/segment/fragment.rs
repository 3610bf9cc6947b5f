//! Where IP fragments part: which headers each of them carries.

use super::SegmentError;
use super::template::{FRAGMENT_HEADER, SCRATCH};
use crate::wire::link::{Link, Next, Tag};
use crate::wire::{Extension, Extensions, IpVersion, Layer, Layout, MAX_HEADER, Refusal, be16, byte, ipv4, ipv6, put16, put32};

/// Takes the hop-by-hop header with the jumbo payload option out of the header bytes; the segments
/// fit their length fields.
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

/// Where the headers of an IPv6 packet part that every fragment carries, and those that only the
/// first one has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parting {
    /// End of those that every fragment carries.
    split: usize,
    /// The next-header field of the last of them.
    field: usize,
    /// A fragment header that is there already.
    fragment: Option<usize>,
}

/// Finds where the headers of the IPv6 packet at `network` part (RFC 8200, section 4.5): behind
/// hop-by-hop and routing headers and what stands before them; destination options behind those are
/// fragmented with the payload. `None` if an extension header reaches beyond `limit`.
pub(super) fn parting(bytes: &[u8], network: usize, limit: usize) -> Option<Parting> {
    let mut extensions = Extensions::new(bytes, network, limit);
    let mut found = Parting { split: extensions.offset, field: extensions.next_header_field, fragment: None };
    loop {
        let field = extensions.next_header_field;
        match extensions.next() {
            Some(Extension { kind: ipv6::FRAGMENT, offset, .. }) => return Some(Parting { split: offset, field, fragment: Some(offset) }),
            Some(Extension { kind: ipv6::DESTINATION, .. }) => {}
            Some(Extension { offset, end, .. }) => found = Parting { split: end, field: offset, fragment: None },
            None if extensions.reaches_beyond() => return None,
            None => return Some(found),
        }
    }
}

/// Makes room for a fragment header where the headers part, and writes it. All behind it moves.
///
/// Returns the length of the headers that every fragment carries.
pub(super) fn insert_fragment_header(bytes: &mut [u8; SCRATCH], parting: Parting, id: u32) -> usize {
    let split = parting.split.min(MAX_HEADER);
    let follows = byte(bytes, parting.field);
    bytes.copy_within(split..MAX_HEADER, split + FRAGMENT_HEADER);
    bytes[parting.field.min(SCRATCH - 1)] = ipv6::FRAGMENT;
    put16(bytes, split, u16::from(follows) << 8);
    put16(bytes, split + 2, 0);
    put32(bytes, split + 4, id);
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
    let not_ip = Err(SegmentError::Headers(Refusal::NotIp));
    let (mut network, mut pppoe_at) = (0, None);
    if layer == Layer::Ethernet {
        let mut link = Link::new(header, 0);
        while let Next::Tag(tag) = link.next {
            if link.offset + tag.length() > header.len() {
                return not_ip;
            }
            if tag == Tag::Pppoe {
                pppoe_at = Some(link.offset);
            }
            link.step_over(tag);
        }
        if link.next == Next::Other {
            return not_ip;
        }
        network = link.offset;
    }
    match byte(header, network) >> 4 {
        4 => Ok(Outermost { network, version: IpVersion::V4, pppoe: pppoe_at }),
        6 => Ok(Outermost { network, version: IpVersion::V6, pppoe: pppoe_at }),
        _ => not_ip,
    }
}

/// How an IP packet is taken apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    /// End of the headers that each fragment carries, in bytes from the start of the frame.
    pub(super) base: usize,
    /// Bytes of those headers that the packet's length field counts, but a fragment header.
    pub(super) counted: usize,
    /// Offset of the first fragment, in units of 8 bytes: the packet may be one itself.
    pub(super) first: u16,
    /// Do fragments follow the packet?
    pub(super) more: bool,
    /// The fragment header to be made: where, and its identification.
    pub(super) insert: Option<(Parting, u32)>,
}

/// Takes a packet apart that ends at `end` and whose fragments, over IPv6, are to have the
/// identification `ipv6_id`.
pub(super) fn parts(header: &[u8], packet: &Outermost, end: usize, ipv6_id: Option<u32>) -> Result<Parts, SegmentError> {
    match packet.version {
        IpVersion::V4 => ipv4_parts(header, packet.network, end),
        IpVersion::V6 => ipv6_parts(header, packet.network, end, ipv6_id.ok_or(SegmentError::DontFragment)?),
    }
}

/// The parts of the IPv4 packet at `network`, which ends at `end`.
fn ipv4_parts(header: &[u8], network: usize, end: usize) -> Result<Parts, SegmentError> {
    let fragment = be16(header, network + ipv4::FRAGMENT);
    if fragment & ipv4::DONT_FRAGMENT != 0 {
        return Err(SegmentError::DontFragment);
    }
    let base = network + usize::from(byte(header, network) & 0x0f) * 4;
    if base < network + ipv4::HEADER_LENGTH || base > end {
        return Err(SegmentError::Length { needed: ipv4::HEADER_LENGTH, got: base - network });
    }
    if base > header.len() {
        return Err(SegmentError::Truncated { needed: base, got: header.len() });
    }
    let (first, more) = (fragment & ipv4::FRAGMENT_OFFSET, fragment & ipv4::MORE_FRAGMENTS != 0);
    Ok(Parts { base, counted: base - network, first, more, insert: None })
}

/// The parts of the IPv6 packet at `network`, which ends at `end`; fragments get the identification
/// `id`, unless the packet is one.
fn ipv6_parts(header: &[u8], network: usize, end: usize, id: u32) -> Result<Parts, SegmentError> {
    let options = byte(header, network + ipv6::NEXT_HEADER) == ipv6::HOP_BY_HOP;
    if options && be16(header, network + ipv6::PAYLOAD_LENGTH) == 0 {
        // A jumbo payload option, which would contradict the fragments' lengths (RFC 2675, section
        // 3).
        return Err(SegmentError::Headers(Refusal::ExtensionHeader));
    }
    let limit = header.len().min(end);
    let beyond = if limit == end { Refusal::Malformed } else { Refusal::HeaderTooLong };
    let at = parting(header, network, limit).ok_or(SegmentError::Headers(beyond))?;
    let counted = at.split - network - ipv6::HEADER_LENGTH;
    Ok(match at.fragment {
        Some(place) => {
            let field = be16(header, place + 2);
            Parts { base: place + FRAGMENT_HEADER, counted, first: field >> 3, more: field & 1 != 0, insert: None }
        }
        None => Parts { base: at.split, counted, first: 0, more: false, insert: Some((at, id)) },
    })
}

/// Later fragments carry only the options whose copied flag is set (RFC 791, section 3.1): the
/// others become no-operations, so that the header keeps its length (`ip_options_fragment`).
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
