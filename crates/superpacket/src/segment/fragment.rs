//! IP fragments, and the headers that each of them carries.

use super::SegmentError;
use crate::wire::link::{LinkWalk, Next, Tag};
use crate::wire::{
    Extension, Extensions, IpVersion, Layer, Layout, MAX_HEADER, Refusal, be16, byte, ipv4, ipv6,
    put16, put32,
};

/// Size in bytes of the memory for a segment's headers: the longest that are parsed, and an IPv6
/// fragment header.
pub(super) const SCRATCH: usize = MAX_HEADER + ipv6::FRAGMENT_HEADER_LENGTH;

/// Identifications of IPv6 fragments, if the caller gives none. All 32-bit numbers occur once
/// before one repeats, in an order that a random key determines, so that they cannot be predicted
/// (RFC 7739).
#[derive(Debug)]
pub(super) struct FragmentIds {
    /// The random key; made with the first identification, since few segmenters need it.
    key: Option<u64>,
    count: u32,
    /// Whether the next identification to be given is the same as the previous one.
    repeats: bool,
}

/// A clone starts with a new key, so that it does not repeat the identifications of the original.
impl Clone for FragmentIds {
    fn clone(&self) -> Self {
        Self::new()
    }
}

impl FragmentIds {
    pub(super) const fn new() -> Self {
        FragmentIds { key: None, count: 0, repeats: false }
    }

    /// Sets whether [`next`](Self::next) returns the last identification again, for more fragments
    /// of the same packet.
    pub(super) const fn repeat(&mut self, repeats: bool) {
        self.repeats = repeats;
    }

    pub(super) fn next(&mut self) -> u32 {
        let key = *self.key.get_or_insert_with(random);
        if !self.repeats {
            self.count = self.count.wrapping_add(1);
        }
        permuted(self.count, key)
    }
}

/// Returns the image of a number under a permutation of all 32-bit numbers: a Feistel network of
/// four rounds.
fn permuted(number: u32, key: u64) -> u32 {
    let (mut left, mut right) = ((number >> 16) as u16, number as u16);
    for round in 0..4 {
        let mixed =
            (u64::from(right) ^ key.rotate_left(16 * round)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (left, right) = (right, left ^ (mixed >> 48) as u16);
    }
    u32::from(left) << 16 | u32::from(right)
}

#[cfg(feature = "os-random")]
fn random() -> u64 {
    let mut bits = [0; 8];
    // Without random numbers, the identifications still differ from each other.
    let _ = getrandom::fill(&mut bits);
    u64::from_ne_bytes(bits)
}

#[cfg(not(feature = "os-random"))]
fn random() -> u64 {
    0
}

/// Removes the hop-by-hop header with the jumbo payload option, which segments do not need.
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

/// The boundary between the headers that every fragment of an IPv6 packet carries, and those that
/// only the first one has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeaderBoundary {
    /// Offset of the end of the headers that every fragment carries, in bytes.
    repeated_end: usize,
    /// Offset of the next-header field in the last header that every fragment carries.
    next_header_field: usize,
    /// Offset of the fragment header that the packet already has; `None` if it has none.
    fragment: Option<usize>,
}

/// Finds the boundary in the headers of the IPv6 packet at `network` (RFC 8200, section 4.5):
/// behind the last hop-by-hop or routing header. Destination options behind that are fragmented
/// with the payload. `None` if an extension header reaches beyond `limit`.
pub(super) fn header_boundary(
    bytes: &[u8],
    network: usize,
    limit: usize,
) -> Option<HeaderBoundary> {
    let mut extensions = Extensions::new(bytes, network, limit);
    let mut found = HeaderBoundary {
        repeated_end: extensions.offset,
        next_header_field: extensions.next_header_field,
        fragment: None,
    };
    loop {
        let next_header_field = extensions.next_header_field;
        match extensions.next() {
            Some(Extension { kind: ipv6::FRAGMENT, offset, .. }) => {
                return Some(HeaderBoundary {
                    repeated_end: offset,
                    next_header_field,
                    fragment: Some(offset),
                });
            }
            Some(Extension { kind: ipv6::DESTINATION, .. }) => {}
            Some(Extension { offset, end, .. }) => {
                found =
                    HeaderBoundary { repeated_end: end, next_header_field: offset, fragment: None }
            }
            None if extensions.reaches_beyond() => return None,
            None => return Some(found),
        }
    }
}

/// Inserts a fragment header at the boundary: the headers behind it move. Returns the length of the
/// headers that every fragment carries.
pub(super) fn insert_fragment_header(
    bytes: &mut [u8; SCRATCH],
    boundary: HeaderBoundary,
    id: u32,
) -> usize {
    let split = boundary.repeated_end.min(MAX_HEADER);
    let follows = byte(bytes, boundary.next_header_field);
    bytes.copy_within(split..MAX_HEADER, split + ipv6::FRAGMENT_HEADER_LENGTH);
    bytes[boundary.next_header_field.min(SCRATCH - 1)] = ipv6::FRAGMENT;
    put16(bytes, split, u16::from(follows) << 8);
    put16(bytes, split + 2, 0);
    put32(bytes, split + 4, id);
    split + ipv6::FRAGMENT_HEADER_LENGTH
}

/// The outermost IP header of a packet, found without parsing the headers after it.
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
        let mut link = LinkWalk::new(header, 0);
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

/// The layout of an IP packet that is to be fragmented, and of its fragments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    /// End of the headers that each fragment carries, in bytes from the start of the frame.
    pub(super) base: usize,
    /// Number of header bytes in each fragment that the IP length field counts, not including a
    /// fragment header that is inserted.
    pub(super) counted: usize,
    /// Fragment offset of the first fragment, in units of 8 bytes; not 0 if the packet is itself a
    /// later fragment.
    pub(super) first: u16,
    /// Whether the packet is itself a fragment with the "more fragments" flag, so that it is not
    /// the last.
    pub(super) more: bool,
    /// Position and identification of the fragment header to be inserted.
    pub(super) insert: Option<(HeaderBoundary, u32)>,
}

/// Finds how to fragment a packet that ends at offset `end`. IPv6 fragments get the identification
/// `ipv6_id`.
pub(super) fn parts(
    header: &[u8],
    packet: &Outermost,
    end: usize,
    ipv6_id: Option<u32>,
) -> Result<Parts, SegmentError> {
    match packet.version {
        IpVersion::V4 => ipv4_parts(header, packet.network, end),
        IpVersion::V6 => {
            ipv6_parts(header, packet.network, end, ipv6_id.ok_or(SegmentError::DontFragment)?)
        }
    }
}

/// Finds how to fragment the IPv4 packet at offset `network`, which ends at offset `end`.
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

/// Finds how to fragment the IPv6 packet at offset `network`, which ends at offset `end`. Its
/// fragments get the identification `id`, unless the packet is a fragment itself.
fn ipv6_parts(header: &[u8], network: usize, end: usize, id: u32) -> Result<Parts, SegmentError> {
    let options = byte(header, network + ipv6::NEXT_HEADER) == ipv6::HOP_BY_HOP;
    if options && be16(header, network + ipv6::PAYLOAD_LENGTH) == 0 {
        // A jumbo payload option would contradict the fragments' lengths (RFC 2675, section 3).
        return Err(SegmentError::Headers(Refusal::ExtensionHeader));
    }
    let limit = header.len().min(end);
    let beyond = if limit == end { Refusal::Malformed } else { Refusal::HeaderTooLong };
    let boundary = header_boundary(header, network, limit).ok_or(SegmentError::Headers(beyond))?;
    let counted = boundary.repeated_end - network - ipv6::HEADER_LENGTH;
    Ok(match boundary.fragment {
        Some(place) => {
            let field = be16(header, place + 2);
            Parts {
                base: place + ipv6::FRAGMENT_HEADER_LENGTH,
                counted,
                first: field >> 3,
                more: field & 1 != 0,
                insert: None,
            }
        }
        None => Parts {
            base: boundary.repeated_end,
            counted,
            first: 0,
            more: false,
            insert: Some((boundary, id)),
        },
    })
}

/// Replaces options without the copied flag, which only the first fragment carries (RFC 791,
/// section 3.1), by no-operations. The header keeps its length (`ip_options_fragment`).
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifications_come_once_each() {
        for key in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef] {
            let mut seen: alloc::vec::Vec<u32> =
                (0..20_000u32).map(|number| permuted(number.wrapping_sub(10_000), key)).collect();
            seen.sort_unstable();
            assert!(seen.windows(2).all(|pair| pair[0] != pair[1]), "{key:x}");
        }
        // Two keys give different identifications.
        assert_ne!(permuted(1, 2), permuted(1, 3));
    }
}
