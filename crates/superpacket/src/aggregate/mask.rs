//! The header bytes that must be equal for packets to merge, and the reason if one differs.

use super::Reason;
use super::policy::Mode;
use crate::wire::varying::{self, NEWEST, VaryingField};
use crate::wire::{IpVersion, Layout, MAX_HEADER, Protocol, byte, dccp, ipv4, ipv6, pppoe, tcp};
use superpacket_simd::equal_masked;

/// Builds a mask over the headers: bits that are set must be equal in all packets that merge.
///
/// The mask omits the fields that [`examine`](mod@super::examine) checks by value: lengths,
/// identifications, sequence numbers, checksums, PSH and FIN. In LRO mode it also omits the fields
/// that take the newest value.
pub(super) fn build(layout: &Layout, header: &[u8], mode: Mode) -> HeaderBytes {
    let mut mask = [0u8; MAX_HEADER];
    mask[..usize::from(layout.payload)].fill(0xff);
    let mut clear = |offset: usize, length: usize| {
        if let Some(bytes) = mask.get_mut(offset..offset + length) {
            bytes.fill(0);
        }
    };
    let ip = |clear: &mut dyn FnMut(usize, usize), network: u16, version: IpVersion| {
        let network = usize::from(network);
        match version {
            IpVersion::V4 => {
                clear(network + ipv4::TOTAL_LENGTH, 4); // and the identification, which follows
                clear(network + ipv4::CHECKSUM, 2);
            }
            IpVersion::V6 => clear(network + ipv6::PAYLOAD_LENGTH, 2),
        }
    };
    if layout.pppoe != 0 {
        clear(usize::from(layout.pppoe) + pppoe::LENGTH, 2);
    }
    if layout.outer.is_some() {
        for outer in layout.outers() {
            ip(&mut clear, outer.network, outer.version);
            let varying = outer.varying(header);
            clear(varying.start, varying.len());
        }
    }
    ip(&mut clear, layout.network, layout.version);
    let transport = usize::from(layout.transport);
    let newest: &[VaryingField] = match mode {
        Mode::Lro { .. } if layout.protocol == Protocol::Tcp => &NEWEST,
        _ => &[],
    };
    for field in varying::fields(header.get(transport..).unwrap_or(&[]), layout.protocol)
        .iter()
        .chain(newest)
    {
        let start = transport + field.offset;
        for byte in mask.get_mut(start..start + field.length).unwrap_or(&mut []) {
            *byte &= !field.bits;
        }
    }
    HeaderBytes(mask)
}

/// Bytes at the start of a frame, or a mask over them. Aligned, so that vector instructions can use
/// them as memory operands.
#[derive(Clone, Copy, Debug)]
#[repr(align(16))]
pub(super) struct HeaderBytes(pub(super) [u8; MAX_HEADER]);

impl core::ops::Deref for HeaderBytes {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl core::ops::DerefMut for HeaderBytes {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// Number of header bytes that is enough for most IPv4 packets (Ethernet without tags, IPv4, TCP
/// with timestamps). Copies and comparisons of constant length need few instructions.
pub(super) const USUAL_HEADER: usize = 80;

/// Number of header bytes that is enough for most IPv6 packets.
pub(super) const LONGER_HEADER: usize = 96;

/// Returns whether the first `length` bytes of `packet` equal `expected` in all bits that are set
/// in `mask`. No bit of `mask` after the first `length` bytes may be set.
///
/// `length` must be at least 16; no header chain is shorter.
#[inline(always)]
pub(super) fn equal(
    packet: &[u8],
    expected: &HeaderBytes,
    mask: &HeaderBytes,
    length: usize,
) -> bool {
    if let (true, Some(packet)) = (length <= USUAL_HEADER, packet.first_chunk()) {
        return equal_in::<USUAL_HEADER>(packet, expected, mask);
    }
    if let (true, Some(packet)) = (length <= LONGER_HEADER, packet.first_chunk()) {
        return equal_in::<LONGER_HEADER>(packet, expected, mask);
    }
    let (Some(packet), Some(expected), Some(mask)) =
        (packet.get(..length), expected.get(..length), mask.get(..length))
    else {
        return false;
    };
    // The last block overlaps the one before.
    if length >= 32 {
        equal_blocks::<32>(packet, expected, mask)
    } else {
        equal_blocks::<16>(packet, expected, mask)
    }
}

/// Compares as [`equal`] does, but always `LENGTH` bytes, which must include all headers. Payload
/// bytes among them are ignored, since their mask is 0.
#[inline(always)]
pub(super) fn equal_in<const LENGTH: usize>(
    packet: &[u8; LENGTH],
    expected: &HeaderBytes,
    mask: &HeaderBytes,
) -> bool {
    match (expected.first_chunk(), mask.first_chunk()) {
        (Some(expected), Some(mask)) => equal_masked(packet, expected, mask),
        _ => false,
    }
}

#[inline(always)]
fn equal_blocks<const BLOCK: usize>(packet: &[u8], expected: &[u8], mask: &[u8]) -> bool {
    let (packets, expecteds, masks) = (
        packet.as_chunks::<BLOCK>().0,
        expected.as_chunks::<BLOCK>().0,
        mask.as_chunks::<BLOCK>().0,
    );
    let (expecteds, masks) = (&expecteds[..packets.len()], &masks[..packets.len()]);
    // By index: without optimisation across crates, each step of a `zip` would be a call.
    for index in 0..packets.len() {
        // The headers of another flow differ early, in the addresses.
        if !equal_masked(&packets[index], &expecteds[index], &masks[index]) {
            return false;
        }
    }
    match (packet.last_chunk(), expected.last_chunk(), mask.last_chunk()) {
        (Some(packet), Some(expected), Some(mask)) => equal_masked::<BLOCK>(packet, expected, mask),
        _ => false,
    }
}

/// Returns the reason why a packet of the same flow does not match the held headers, from the
/// header field that contains the first byte that differs.
#[cold]
pub(super) fn difference(packet: &[u8], expected: &[u8], mask: &[u8], layout: &Layout) -> Reason {
    let first = packet
        .iter()
        .zip(expected)
        .zip(mask)
        .position(|((packet, expected), mask)| (packet ^ expected) & mask != 0);
    let Some(offset) = first else {
        return Reason::HeaderChanged;
    };
    if offset < usize::from(layout.outermost()) {
        return Reason::LinkHeader;
    }
    for outer in layout.outers() {
        let network = usize::from(outer.network);
        if offset < network {
            return Reason::TunnelHeader;
        }
        if offset < usize::from(outer.transport) {
            return ip_field(offset - network, outer.version, packet, expected, network);
        }
    }
    if offset < usize::from(layout.network) {
        return Reason::TunnelHeader;
    }
    let network = usize::from(layout.network);
    let transport = usize::from(layout.transport);
    if offset < transport {
        return ip_field(offset - network, layout.version, packet, expected, network);
    }
    match (layout.protocol, offset - transport) {
        (Protocol::Tcp, tcp::ACKNOWLEDGEMENT..12) => Reason::Acknowledgement,
        (Protocol::Tcp, tcp::DATA_OFFSET)
            if (byte(packet, offset) ^ byte(expected, offset)) & 0xf0 != 0 =>
        {
            Reason::OptionsChanged
        }
        (Protocol::Tcp, tcp::DATA_OFFSET | tcp::FLAGS) => Reason::FlagsChanged,
        (Protocol::Tcp, tcp::WINDOW..16) => Reason::Window,
        (Protocol::Tcp, tcp::OPTIONS..) => Reason::OptionsChanged,
        (Protocol::Dccp, dccp::SHORT_HEADER_LENGTH..) => Reason::OptionsChanged,
        _ => Reason::HeaderChanged,
    }
}

fn ip_field(
    field: usize,
    version: IpVersion,
    packet: &[u8],
    expected: &[u8],
    network: usize,
) -> Reason {
    match (version, field) {
        (IpVersion::V4, ipv4::TOS) => Reason::Tos,
        (IpVersion::V4, ipv4::FRAGMENT) => Reason::DontFragment,
        (IpVersion::V4, ipv4::TTL) => Reason::Ttl,
        (IpVersion::V6, 0) => Reason::Tos,
        (IpVersion::V6, 1)
            if (byte(packet, network + 1) ^ byte(expected, network + 1)) & 0xf0 != 0 =>
        {
            Reason::Tos
        }
        (IpVersion::V6, 1..4) => Reason::FlowLabel,
        (IpVersion::V6, ipv6::HOP_LIMIT) => Reason::Ttl,
        (IpVersion::V6, ipv6::NEXT_HEADER | ipv6::HEADER_LENGTH..) => Reason::ExtensionHeader,
        _ => Reason::HeaderChanged,
    }
}
