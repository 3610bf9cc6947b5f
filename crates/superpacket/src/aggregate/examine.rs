//! Checks of a single packet: whether its lengths, checksums and flags allow it to be held or
//! merged, and the facts that merging needs.

use super::Reason;
use super::policy::{Mode, Policy, Storage};
use crate::checksum::{
    Sum, at_offset, pseudo_header, pseudo_header_of, sum_of_array, sum_ranges, transport_header,
    tunnel_field, words,
};
use crate::memory::Memory;
use crate::packet::{Layer, RxChecksum, RxPacket};
use crate::segment::{ChecksumForm, Cwr, Gso, GsoSupport};
use crate::wire::{
    IpVersion, Layout, Outer, Protocol, be16, be32, byte, dccp, dccp_sequence, ethernet, ipv4, tcp,
    udp, varying,
};
use superpacket_simd::Simd;

/// The content of a transport checksum field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChecksumField {
    /// The field holds a complete checksum.
    Full,
    /// The sum of the pseudo-header; a device computes the rest.
    Partial,
    /// Zero: a UDP datagram without a checksum.
    Unused,
}

impl ChecksumField {
    /// Returns whether segments of a packet with such a field get a full or a partial checksum. A
    /// field that is zero stays zero.
    #[inline(always)]
    pub(super) fn form(self) -> ChecksumForm {
        if self == ChecksumField::Partial { ChecksumForm::Partial } else { ChecksumForm::Full }
    }
}

/// Properties of a packet that merging needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// Number of bytes of transport payload.
    pub(super) payload: u32,
    /// Offset of the end of the outermost IP packet in the frame; any bytes after it are padding.
    pub(super) end: u32,
    /// TCP or DCCP sequence number; 0 for UDP.
    pub(super) sequence: u64,
    /// Identification of the innermost IPv4 header; 0 for IPv6.
    pub(super) id: u16,
    /// Identification of a tunnel's outer IPv4 header; 0 if there is none.
    pub(super) outer_id: u16,
    /// TCP flags; 0 for other protocols.
    pub(super) flags: u8,
    /// Content of the transport checksum field.
    pub(super) field: ChecksumField,
    /// One's-complement sum of the payload, if known; for DCCP, of the bytes that the checksum
    /// covers.
    pub(super) sum: Option<u16>,
    /// Whether the payload's sum is computed from the headers, not from the payload, because the
    /// device has verified the checksum.
    pub(super) implied: bool,
    /// Whether the payload was read to verify the checksum.
    pub(super) read: bool,
    /// Whether the checksum is not verified yet. It is verified only when another packet is about
    /// to join this one.
    pub(super) unverified: bool,
}

impl Facts {
    /// Collects the facts from the headers of an examined packet. `sum` is the sum of its payload,
    /// if known.
    #[inline(always)]
    pub(super) fn of(
        header: &[u8],
        layout: &Layout,
        checksum: RxChecksum,
        sum: Option<u16>,
    ) -> Facts {
        let transport = header.get(usize::from(layout.transport)..).unwrap_or(&[]);
        let id = |network: u16, version: IpVersion| match version {
            IpVersion::V4 => be16(header, usize::from(network) + ipv4::ID),
            IpVersion::V6 => 0,
        };
        let field = match checksum {
            RxChecksum::Partial { .. } => ChecksumField::Partial,
            _ if layout.protocol == Protocol::Udp && be16(transport, udp::CHECKSUM) == 0 => {
                ChecksumField::Unused
            }
            _ => ChecksumField::Full,
        };
        Facts {
            payload: layout.end - u32::from(layout.payload),
            end: layout.end,
            sequence: match layout.protocol {
                Protocol::Tcp => u64::from(be32(transport, tcp::SEQUENCE)),
                Protocol::Udp => 0,
                Protocol::Dccp => dccp_sequence(transport),
            },
            id: id(layout.network, layout.version),
            outer_id: layout.outer.map_or(0, |outer| id(outer.network, outer.version)),
            flags: if layout.protocol == Protocol::Tcp { byte(transport, tcp::FLAGS) } else { 0 },
            field,
            sum,
            implied: field == ChecksumField::Full && sum.is_none(),
            read: false,
            unverified: false,
        }
    }
}

/// Sums of the header bytes that all packets of a held flow share. With them, a packet's checksums
/// are verified from its few other fields.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Constants {
    /// Sum of the pseudo-header without its length, and of the transport header without the fields
    /// that [`varying_sum`] sums.
    pub(super) transport: Sum,
    /// Sum of the innermost IPv4 header without length, identification and checksum.
    pub(super) ip: u16,
    /// Sum of the outer IPv4 header without length, identification and checksum.
    pub(super) outer_ip: u16,
    /// Sum of the pseudo-header without its length.
    pub(super) pseudo: Sum,
}

impl Constants {
    /// Returns the constant sums of this packet's headers, and the sum of its pseudo-header without
    /// the length and its whole transport header.
    #[inline(always)]
    pub(super) fn new(header: &[u8], layout: &Layout, mode: Mode) -> (Self, Sum) {
        let transport =
            header.get(usize::from(layout.transport)..usize::from(layout.payload)).unwrap_or(&[]);
        // The parse refuses packets whose addresses are not known, so the default is not used.
        let pseudo = pseudo_header_of(header, layout).unwrap_or_default();
        let headers = transport_header(transport).add_sum(pseudo);
        let constants = Constants {
            transport: headers
                .subtract(varying_sum(transport, layout.protocol, is_lro(mode)).fold()),
            ip: constant_ip(header, layout.network, layout.version),
            outer_ip: layout
                .outer
                .map_or(0, |outer| constant_ip(header, outer.network, outer.version)),
            pseudo,
        };
        (constants, headers)
    }

    /// Returns the sum of the pseudo-header and the transport header of a packet of this flow,
    /// whose IP packet ends at offset `end`. In a packet with a correct checksum, this sum and the
    /// payload's add up to 0xFFFF.
    #[inline(always)]
    fn headers(&self, header: &[u8], layout: &Layout, end: u32, mode: Mode) -> Sum {
        let transport =
            header.get(usize::from(layout.transport)..usize::from(layout.payload)).unwrap_or(&[]);
        self.transport.add32(end - u32::from(layout.transport)).add_sum(varying_sum(
            transport,
            layout.protocol,
            is_lro(mode),
        ))
    }

    /// Returns the sum that the payload has if the checksum in these headers is correct.
    #[inline(always)]
    pub(super) fn implied_sum(&self, header: &[u8], layout: &Layout, end: u32, mode: Mode) -> u16 {
        self.headers(header, layout, end, mode).checksum()
    }
}

/// Returns the sum of an IPv4 header without length, identification and checksum; 0 for IPv6, whose
/// header has no checksum.
#[inline(always)]
pub(super) fn constant_ip(header: &[u8], network: u16, version: IpVersion) -> u16 {
    match version {
        IpVersion::V4 => {
            ipv4_fields(header, network).map_or(0, |fields| constant_ipv4(fields).fold())
        }
        IpVersion::V6 => 0,
    }
}

#[inline(always)]
fn constant_ipv4(fields: &[u8; ipv4::HEADER_LENGTH]) -> Sum {
    Sum::new(be16(fields, 0))
        .add32(be32(fields, ipv4::FRAGMENT))
        .add32(be32(fields, ipv4::ADDRESSES))
        .add32(be32(fields, ipv4::ADDRESSES + 4))
}

const fn is_lro(mode: Mode) -> bool {
    matches!(mode, Mode::Lro { .. })
}

/// Returns the sum of the transport header's fields that differ from packet to packet.
#[inline(always)]
pub(super) fn varying_sum(transport: &[u8], protocol: Protocol, lro: bool) -> Sum {
    let sum = varying::sum(transport, protocol);
    if lro && protocol == Protocol::Tcp {
        sum.add_sum(varying::sum_of(&varying::NEWEST, transport))
    } else {
        sum
    }
}

/// The settings of a policy that examining a packet depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExamineOptions {
    pub(super) mode: Mode,
    /// Whether merged packets leave with complete checksums, so that a packet's payload must be
    /// summed even if its checksum is partial.
    pub(super) want_sum: bool,
    pub(super) max_fragments: usize,
    /// Whether the checksum of a flow's first packet is verified only when a second packet arrives.
    /// Off in LRO mode, because its counters include the packets that were accepted, and with
    /// storage that copies payloads at once.
    pub(super) defer: bool,
    /// Whether UDP datagrams over IPv4 without a checksum may merge.
    pub(super) without_checksum: bool,
    /// The super-packets that the receiver of a `virtio_net_hdr` can segment; `None` if packets
    /// leave without such a header.
    pub(super) support: Option<GsoSupport>,
    /// Whether the receiver of the packets can segment merged TCP packets with
    /// [usual](crate::wire::usual) layouts. True if packets leave without a `virtio_net_hdr`.
    pub(super) usual_segments: bool,
    /// Mask of the TCP flags that are tested; a packet may merge only if ACK is the only one of
    /// them that is set. The mask is [`CONTROL`], plus CWR if packets leave with a
    /// `virtio_net_hdr`.
    flags: u8,
    pub(super) simd: Simd,
}

impl ExamineOptions {
    pub(super) fn new(policy: &Policy, support: Option<GsoSupport>, simd: Simd) -> Self {
        ExamineOptions {
            mode: policy.mode,
            want_sum: policy.checksum == ChecksumForm::Full,
            max_fragments: if policy.storage == Storage::Fragments {
                policy.max_fragments as usize
            } else {
                usize::MAX
            },
            defer: matches!(policy.mode, Mode::Gro { .. }) && policy.storage == Storage::Fragments,
            without_checksum: policy.merge_udp_without_checksum,
            support,
            usual_segments: support.is_none_or(|support| support.takes_plain_tcp()),
            flags: CONTROL | if support.is_some() { tcp::CWR } else { 0 },
            simd,
        }
    }
}

/// Mask of the TCP flags that decide whether a packet may be held: ACK must be set, and none of the
/// others.
const CONTROL: u8 = tcp::SYN | tcp::RST | tcp::URG | tcp::ACK;

/// Returns why a packet with these flags may not be held; `None` if it may.
#[cold]
fn refused_flags(flags: u8, gso: Option<&Gso>, payload: usize) -> Option<Reason> {
    if flags & CONTROL != tcp::ACK {
        return Some(Reason::TcpFlags);
    }
    // A virtio header can express CWR only on the first segment. Accurate ECN (RFC 9768) sets CWR
    // on many packets in a row: all merged segments would have it, but the receiver of the header
    // would leave it on the first only. A packet of a single segment merges like any other,
    // whatever its GSO type.
    gso.is_none_or(|gso| gso.cwr == Cwr::All || payload <= gso.size.get())
        .then_some(Reason::CannotSegment)
}

/// Examines a packet whose lengths agree with `layout`. `known` holds the constant sums of its
/// flow. If `known` is `None` and `DEFER` is set, the checksum is not verified yet.
#[inline(always)]
pub(super) fn examine<const DEFER: bool, B>(
    packet: &RxPacket<B>,
    header: &[u8],
    layout: &Layout,
    known: Option<&Constants>,
    options: &ExamineOptions,
    memory: &impl Memory<B>,
) -> Result<Facts, Reason> {
    let lro = matches!(options.mode, Mode::Lro { .. });
    let transport = usize::from(layout.transport);
    let payload = usize::from(layout.payload);
    let end = layout.end as usize;
    let transport_length = (end - transport) as u32;

    verify_ip_headers(header, layout, known, lro)?;

    let mut covered = end;
    let transport_header = header.get(transport..payload).unwrap_or(&[]);
    let field;
    match layout.protocol {
        Protocol::Tcp => {
            // One comparison is enough: the parse has found a complete header, whatever its
            // options.
            let fields = header.get(transport..).and_then(<[u8]>::first_chunk);
            let fields: &[u8; tcp::HEADER_LENGTH] = fields.ok_or(Reason::Truncated)?;
            field = be16(fields, tcp::CHECKSUM);
            let flags = fields[tcp::FLAGS];
            if flags & options.flags != tcp::ACK
                && let Some(reason) = refused_flags(flags, packet.gso.as_ref(), end - payload)
            {
                return Err(reason);
            }
            if end == payload && !lro {
                return Err(Reason::NoPayload);
            }
            if field == 0xffff && !lro {
                return Err(Reason::NonCanonicalChecksum);
            }
        }
        Protocol::Udp => {
            field = be16(transport_header, udp::CHECKSUM);
            if end == payload {
                return Err(Reason::NoPayload);
            }
            if field == 0 && !matches!(packet.checksum, RxChecksum::Partial { .. }) {
                // A copy: if the layout's own address escaped, the compiler could no longer treat
                // it as constant.
                let copy = *layout;
                return examine_without_checksum(packet, header, &copy, options);
            }
        }
        Protocol::Dccp => {
            field = be16(transport_header, dccp::CHECKSUM);
            if end == payload {
                return Err(Reason::NoPayload);
            }
            covered = dccp_covered_end(transport_header, payload, end)?;
            if field == 0xffff {
                return Err(Reason::NonCanonicalChecksum);
            }
        }
    }

    let constants =
        || known.copied().unwrap_or_else(|| Constants::new(header, layout, options.mode).0);
    let mut read = false;
    let sum = match packet.checksum {
        RxChecksum::Unnecessary { level } if trusted(header, layout, level) => {
            known.map(|known| known.implied_sum(header, layout, end as u32, options.mode))
        }
        RxChecksum::Partial { start, offset } => {
            let pseudo = constants().pseudo.add32(transport_length).fold();
            if start != layout.transport
                || offset != layout.protocol.checksum_offset()
                || field != pseudo
            {
                return Err(Reason::PartialChecksum);
            }
            (lro || options.want_sum)
                .then(|| frame_sum(packet, payload, covered, options.simd, memory))
        }
        RxChecksum::Complete(complete) if covered == end => {
            let rest = transport_sum(complete, header, packet.layer, transport);
            let constants = constants();
            if !constants.pseudo.add32(transport_length).add(rest).is_valid() {
                return Err(Reason::BadChecksum);
            }
            Some(constants.implied_sum(header, layout, end as u32, options.mode))
        }
        // Most packets of a busy table leave without merging. They leave with the checksum state
        // that they came with.
        RxChecksum::None
            if DEFER
                && options.defer
                && layout.outer.is_none()
                && layout.protocol != Protocol::Dccp =>
        {
            return Ok(Facts {
                unverified: true,
                ..Facts::of(header, layout, packet.checksum, None)
            });
        }
        RxChecksum::Complete(_) | RxChecksum::Unnecessary { .. } | RxChecksum::None => {
            let sum = frame_sum(packet, payload, covered, options.simd, memory);
            if !constants().headers(header, layout, end as u32, options.mode).add(sum).is_valid() {
                return Err(Reason::BadChecksum);
            }
            read = true;
            Some(sum)
        }
    };

    if layout.outer.is_some() {
        let pseudo = constants().pseudo.add32(transport_length);
        verify_tunnels(header, layout, pseudo, end, covered == end)?;
    }
    Ok(Facts { read, ..Facts::of(header, layout, packet.checksum, sum) })
}

/// Verifies the checksums of all IPv4 headers of a packet.
#[inline(always)]
fn verify_ip_headers(
    header: &[u8],
    layout: &Layout,
    known: Option<&Constants>,
    lro: bool,
) -> Result<(), Reason> {
    if layout.version == IpVersion::V4 {
        ipv4_checksum(header, layout.network, known.map(|known| known.ip), lro)?;
    }
    if let Some(outer) = &layout.outer
        && outer.version == IpVersion::V4
    {
        ipv4_checksum(header, outer.network, known.map(|known| known.outer_ip), lro)?;
    }
    if let Some(nested) = &layout.nested
        && nested.version == IpVersion::V4
    {
        ipv4_checksum(header, nested.network, None, lro)?;
    }
    Ok(())
}

/// Verifies the checksum of each tunnel header that has one. `pseudo` is the sum of the innermost
/// pseudo-header, and `whole` says whether the innermost checksum covers all of the payload.
#[inline(always)]
fn verify_tunnels(
    header: &[u8],
    layout: &Layout,
    pseudo: Sum,
    end: usize,
    whole: bool,
) -> Result<(), Reason> {
    if let Some(outer) = layout.outer {
        verify_outer(header, layout.transport, outer, pseudo, end, whole)?;
        if let Some(nested) = layout.nested {
            verify_outer(header, layout.transport, nested, pseudo, end, whole)?;
        }
    }
    Ok(())
}

/// Returns the sum of all bytes from the transport header on. `complete` is the device's sum: it
/// starts after the Ethernet header, and includes a VLAN header that was not stripped.
#[inline(always)]
fn transport_sum(complete: u16, header: &[u8], layer: Layer, transport: usize) -> u16 {
    let first = if layer == Layer::Ethernet { ethernet::HEADER_LENGTH } else { 0 };
    let before = words(header.get(first..transport).unwrap_or(&[])).fold();
    at_offset(Sum::new(complete).subtract(before).fold(), transport - first)
}

/// Returns the end of the bytes that a DCCP checksum covers, by the header's coverage field.
#[inline(always)]
fn dccp_covered_end(transport_header: &[u8], payload: usize, end: usize) -> Result<usize, Reason> {
    // RFC 4340, section 9.2: n > 0 covers the header, the options and (n - 1) * 4 bytes of data.
    let coverage = usize::from(byte(transport_header, dccp::COVERAGE) & 0x0f);
    let covered = if coverage > 0 { payload + (coverage - 1) * 4 } else { end };
    if covered > end { Err(Reason::DccpCoverage) } else { Ok(covered) }
}

/// Examines a UDP datagram whose checksum field is 0.
#[cold]
fn examine_without_checksum<B>(
    packet: &RxPacket<B>,
    header: &[u8],
    layout: &Layout,
    options: &ExamineOptions,
) -> Result<Facts, Reason> {
    // UDP over IPv6 must have a checksum, except in some tunnels (RFC 8200, section 8.1; RFC 6935).
    if !options.without_checksum || layout.version == IpVersion::V6 {
        return Err(Reason::UdpNoChecksum);
    }
    // A tunnel's own checksum could be verified only by reading the payload.
    match outer_checksums(header, layout.outer, layout.nested) {
        0 => Ok(Facts::of(header, layout, packet.checksum, None)),
        _ => Err(Reason::Tunnel),
    }
}

/// Verifies a tunnel's own checksum, if it has one, without reading the payload. If the innermost
/// checksum is right or partial, everything from its transport header on, at `transport`, sums to
/// the complement of its pseudo-header (local checksum offload).
///
/// The layout is not passed to functions that may not be inlined, since it would no longer be
/// constant in the caller.
#[inline]
fn verify_outer(
    header: &[u8],
    transport: u16,
    outer: Outer,
    inner_pseudo: Sum,
    end: usize,
    inner_covers_all: bool,
) -> Result<(), Reason> {
    let Some(place) = outer.checksum(header) else { return Ok(()) };
    if !inner_covers_all {
        return Err(Reason::Tunnel);
    }
    let found = be16(header, place);
    let right = outer_field(header, transport, outer, end, inner_pseudo, found);
    match found == right {
        true => Ok(()),
        false if found ^ right == 0xffff && (found == 0 || right == 0) => {
            Err(Reason::NonCanonicalChecksum)
        }
        false => Err(Reason::BadChecksum),
    }
}

/// Returns a bit mask of the tunnels whose outer headers have a checksum in this packet; the lowest
/// bit is the outermost tunnel.
#[inline]
pub(super) fn outer_checksums(header: &[u8], outer: Option<Outer>, nested: Option<Outer>) -> u8 {
    let bit = |outer: Option<Outer>| {
        u8::from(outer.is_some_and(|outer| outer.checksum(header).is_some()))
    };
    bit(outer) | bit(nested) << 1
}

/// Returns the correct value of the outer checksum of a packet that ends at offset `end`, computed
/// from its headers alone. `found` is the value that the field holds now. The checksums of inner
/// headers must be correct.
pub(super) fn outer_field(
    header: &[u8],
    transport: u16,
    outer: Outer,
    end: usize,
    inner_pseudo: Sum,
    found: u16,
) -> u16 {
    let start = usize::from(outer.transport);
    let headers = header.get(start..usize::from(transport)).unwrap_or(&[]);
    let pseudo = outer.tunnel.is_udp().then(|| {
        let network = header.get(usize::from(outer.network)..).unwrap_or(&[]);
        pseudo_header(network, outer.version, Protocol::Udp.number(), (end - start) as u32)
    });
    tunnel_field(headers, found, inner_pseudo.checksum(), pseudo)
}

/// Returns whether the device verified the innermost transport checksum. Each outer checksum in the
/// packet uses up one of the `level + 1` checksums that the device verified.
#[inline(always)]
fn trusted(header: &[u8], layout: &Layout, level: u8) -> bool {
    layout.outer.is_none()
        || u32::from(level) >= outer_checksums(header, layout.outer, layout.nested).count_ones()
}

/// Verifies an IPv4 header's checksum, from the sum of its constant fields if it is known.
#[inline(always)]
fn ipv4_checksum(
    header: &[u8],
    network: u16,
    constant: Option<u16>,
    lro: bool,
) -> Result<(), Reason> {
    let Some(fields) = ipv4_fields(header, network) else {
        return Err(Reason::Truncated);
    };
    let checksum = be16(fields, ipv4::CHECKSUM);
    let sum = match constant {
        Some(constant) => Sum::new(constant).add32(be32(fields, ipv4::TOTAL_LENGTH)).add(checksum),
        None => sum_of_array(fields),
    };
    if !sum.is_valid() {
        return Err(Reason::BadIpChecksum);
    }
    if checksum == 0xffff && !lro {
        return Err(Reason::NonCanonicalChecksum);
    }
    Ok(())
}

#[inline(always)]
fn ipv4_fields(header: &[u8], network: u16) -> Option<&[u8; ipv4::HEADER_LENGTH]> {
    header.get(usize::from(network)..)?.first_chunk()
}

/// Returns the sum of the frame's bytes from `start` to `end`, over all buffers.
#[inline(always)]
pub(super) fn frame_sum<B>(
    packet: &RxPacket<B>,
    start: usize,
    end: usize,
    simd: Simd,
    memory: &impl Memory<B>,
) -> u16 {
    match &packet.rest {
        None => simd.sum(memory.bytes(&packet.first).get(start..end).unwrap_or(&[])),
        Some(_) => sum_ranges(simd, ranges(packet, start, end, memory)),
    }
}

/// Returns the byte slices of a packet's buffers that lie at the offsets `start..end` of the frame.
pub(super) fn ranges<'a, B>(
    packet: &'a RxPacket<B>,
    start: usize,
    end: usize,
    memory: &'a impl Memory<B>,
) -> impl Iterator<Item = &'a [u8]> {
    let mut offset = 0;
    packet.buffers().map(move |buffer| {
        let bytes = memory.bytes(buffer);
        let from = start.saturating_sub(offset).min(bytes.len());
        let to = end.saturating_sub(offset).min(bytes.len());
        offset += bytes.len();
        bytes.get(from..to).unwrap_or(&[])
    })
}

/// Returns whether the bytes after the end of the IP packet sum to zero (0 or 0xFFFF), so that they
/// can be removed without changing any checksum.
pub(super) fn padding_is_neutral<B>(
    packet: &RxPacket<B>,
    end: usize,
    frame: usize,
    simd: Simd,
    memory: &impl Memory<B>,
) -> bool {
    matches!(frame_sum(packet, end, frame, simd, memory), 0 | 0xffff)
}
