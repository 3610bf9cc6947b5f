//! One packet by itself: are its lengths, checksums and flags such that it may be held or merged,
//! and what follows from them.

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

/// How the field of a transport checksum stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChecksumField {
    /// Complete.
    Full,
    /// Holds the pseudo-header's sum.
    Partial,
    /// UDP without a checksum.
    Unused,
}

impl ChecksumField {
    /// The form of the segments' checksums: one that is not used is left as it is.
    #[inline(always)]
    pub(super) fn form(self) -> ChecksumForm {
        if self == ChecksumField::Partial { ChecksumForm::Partial } else { ChecksumForm::Full }
    }
}

/// What merging needs to know of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// Bytes of transport payload.
    pub(super) payload: u32,
    /// End of the outermost IP packet in the frame: where padding would start.
    pub(super) end: u32,
    /// TCP or DCCP sequence number; 0 in UDP.
    pub(super) sequence: u64,
    /// Identification of the innermost IPv4 header; 0 in IPv6.
    pub(super) id: u16,
    /// Identification of the outer IPv4 header, likewise.
    pub(super) outer_id: u16,
    /// TCP flags; 0 otherwise.
    pub(super) flags: u8,
    /// How the transport checksum stands.
    pub(super) field: ChecksumField,
    /// The payload's sum, or the covered part's in DCCP, if it is known.
    pub(super) sum: Option<u16>,
    /// The sum is not known, but follows from the headers: the device has verified the checksum.
    pub(super) implied: bool,
    /// The payload was read to verify it.
    pub(super) read: bool,
    /// The checksum has not been verified: it will be when another packet comes to join.
    pub(super) unverified: bool,
}

impl Facts {
    /// What the headers say of a packet that has been examined. `sum` is its payload's, if it is
    /// known.
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

/// Sums over the header bytes that all packets of a held flow share, so that a packet's checksums
/// are verified from its few other fields.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Constants {
    /// The pseudo-header but the length, and the transport header but the fields that
    /// [`varying_sum`] sums.
    pub(super) transport: Sum,
    /// The innermost IPv4 header but length, identification and checksum.
    pub(super) ip: u16,
    /// The outer one, likewise.
    pub(super) outer_ip: u16,
    /// The pseudo-header but the length.
    pub(super) pseudo: Sum,
}

impl Constants {
    /// The sums of this packet's headers, and that of its pseudo-header and its transport header
    /// whole, but for the length in the former.
    #[inline(always)]
    pub(super) fn new(header: &[u8], layout: &Layout, mode: Mode) -> (Self, Sum) {
        let transport =
            header.get(usize::from(layout.transport)..usize::from(layout.payload)).unwrap_or(&[]);
        // The parse refuses a packet whose addresses are not known.
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

    /// The sum of the pseudo-header and the transport header of a packet of this flow, whose IP
    /// packet ends at `end`: with the payload's they make a valid packet.
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

    /// The sum of a payload under these headers, whose checksum is right.
    #[inline(always)]
    pub(super) fn implied_sum(&self, header: &[u8], layout: &Layout, end: u32, mode: Mode) -> u16 {
        self.headers(header, layout, end, mode).checksum()
    }
}

/// The sum of an IPv4 header's fields but length, identification and checksum; 0 in IPv6, whose
/// headers have no checksum.
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

/// The sum of the transport header's fields that differ from packet to packet.
#[inline(always)]
pub(super) fn varying_sum(transport: &[u8], protocol: Protocol, lro: bool) -> Sum {
    let sum = varying::sum(transport, protocol);
    if lro && protocol == Protocol::Tcp {
        sum.add_sum(varying::sum_of(&varying::NEWEST, transport))
    } else {
        sum
    }
}

/// What of the policy an examination depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExamineOptions {
    pub(super) mode: Mode,
    /// A full checksum is due on the way out, so the payload of a partial one must be summed.
    pub(super) want_sum: bool,
    pub(super) max_fragments: usize,
    /// A packet's checksum is verified when a second one comes. Not in LRO, whose counters tell
    /// what was accepted, and not where payloads are copied at once.
    pub(super) defer: bool,
    /// UDP over IPv4 without a checksum may merge.
    pub(super) without_checksum: bool,
    /// What the receiver of the merged packets can segment, if they leave behind a header.
    pub(super) support: Option<GsoSupport>,
    /// Whether it can segment packets with [usual](crate::wire::usual) layouts.
    pub(super) usual_segments: bool,
    /// The TCP flags of which ACK alone may be set: [`CONTROL`], and CWR for a framing.
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

/// The TCP flags of which those of a packet that may be held have ACK alone.
const CONTROL: u8 = tcp::SYN | tcp::RST | tcp::URG | tcp::ACK;

/// Why a packet with these flags may not be held, if so.
#[cold]
fn refused_flags(flags: u8, gso: Option<&Gso>, payload: usize) -> Option<Reason> {
    if flags & CONTROL != tcp::ACK {
        return Some(Reason::TcpFlags);
    }
    // CWR, for which a header has words where the first packet alone has it, as a super-packet's
    // may. Accurate ECN (RFC 9768) sets it on packet after packet: merged, all would have it, and
    // whoever cuts behind a virtio header leaves it on the first.
    // A packet that is its own only segment merges as any single one, whatever its GSO type.
    gso.is_none_or(|gso| gso.cwr == Cwr::All || payload <= gso.size.get())
        .then_some(Reason::CannotSegment)
}

/// Examines a packet whose headers are laid out as `layout` says and whose lengths agree with it.
/// `known` are its flow's sums; where there is none yet, no more is summed than must be: nothing of
/// a packet that begins a flow, if `DEFER`.
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

    let mut covered = end;
    let transport_header = header.get(transport..payload).unwrap_or(&[]);
    let field;
    match layout.protocol {
        Protocol::Tcp => {
            // Whatever its options, the parse has found that much: one comparison.
            let Some(fields) =
                header.get(transport..).and_then(<[u8]>::first_chunk::<{ tcp::HEADER_LENGTH }>)
            else {
                return Err(Reason::Truncated);
            };
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
                // A copy: were the layout itself lent, the compiler could no longer take it for
                // constant.
                let copy = *layout;
                return examine_without_checksum(packet, header, &copy, options);
            }
        }
        Protocol::Dccp => {
            field = be16(transport_header, dccp::CHECKSUM);
            if end == payload {
                return Err(Reason::NoPayload);
            }
            // RFC 4340, section 9.2: n > 0 covers the header, the options and (n - 1) * 4 bytes of
            // data.
            let coverage = usize::from(byte(transport_header, dccp::COVERAGE) & 0x0f);
            if coverage > 0 {
                covered = payload + (coverage - 1) * 4;
                if covered > end {
                    return Err(Reason::DccpCoverage);
                }
            }
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
            // The device's sum starts after the Ethernet header and so holds an unstripped VLAN
            // header too: all up to the transport header goes.
            let first = if packet.layer == Layer::Ethernet { ethernet::HEADER_LENGTH } else { 0 };
            let before = words(header.get(first..transport).unwrap_or(&[])).fold();
            let rest = at_offset(Sum::new(complete).subtract(before).fold(), transport - first);
            let constants = constants();
            if !constants.pseudo.add32(transport_length).add(rest).is_valid() {
                return Err(Reason::BadChecksum);
            }
            Some(constants.implied_sum(header, layout, end as u32, options.mode))
        }
        // Most packets of a busy table leave alone. Who joins no other leaves with the knowledge
        // that it came with.
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

    if let Some(outer) = layout.outer {
        let pseudo = constants().pseudo.add32(transport_length);
        verify_outer(header, layout.transport, outer, pseudo, end, covered == end)?;
        if let Some(nested) = layout.nested {
            verify_outer(header, layout.transport, nested, pseudo, end, covered == end)?;
        }
    }
    Ok(Facts { read, ..Facts::of(header, layout, packet.checksum, sum) })
}

/// Examines a UDP datagram whose checksum field is 0.
#[cold]
fn examine_without_checksum<B>(
    packet: &RxPacket<B>,
    header: &[u8],
    layout: &Layout,
    options: &ExamineOptions,
) -> Result<Facts, Reason> {
    // Over IPv6 there must be one, but for some tunnels (RFC 8200, section 8.1; RFC 6935).
    if !options.without_checksum || layout.version == IpVersion::V6 {
        return Err(Reason::UdpNoChecksum);
    }
    // A tunnel's own checksum could be verified only by reading the payload.
    match outer_checksums(header, layout.outer, layout.nested) {
        0 => Ok(Facts::of(header, layout, packet.checksum, None)),
        _ => Err(Reason::Tunnel),
    }
}

/// Verifies a tunnel's own checksum, if it has one, without reading the payload: with the innermost
/// checksum right, or to be filled in, everything from its transport header on, at `transport`,
/// sums to minus its pseudo-header (local checksum offload).
///
/// The layout itself is not given to this or to others that may not be inlined: it would no longer
/// be one of constants.
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

/// Which tunnels have a checksum of their own in this packet: a bit each, the outermost lowest.
#[inline]
pub(super) fn outer_checksums(header: &[u8], outer: Option<Outer>, nested: Option<Outer>) -> u8 {
    let bit = |outer: Option<Outer>| {
        u8::from(outer.is_some_and(|outer| outer.checksum(header).is_some()))
    };
    bit(outer) | bit(nested) << 1
}

/// What the outer checksum of a packet that ends at `end` should be, from its headers alone; its
/// field now holds `found`. Those of the tunnels inside must be right.
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

/// Did the device verify the innermost transport checksum? Each outer checksum that is there takes
/// one of the `level + 1` it vouches for.
#[inline(always)]
fn trusted(header: &[u8], layout: &Layout, level: u8) -> bool {
    layout.outer.is_none()
        || u32::from(level) >= outer_checksums(header, layout.outer, layout.nested).count_ones()
}

/// Verifies an IPv4 header's checksum, from the sum of its constant fields if that is known.
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

/// The sum of the frame's bytes from `start` to `end`, over all buffers.
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

/// The parts of a packet's buffers that lie in `start..end` of the frame.
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

/// May the bytes after the IP packet's end be cut off without a trace in any checksum: do they sum
/// to 0 or to -0?
pub(super) fn padding_is_neutral<B>(
    packet: &RxPacket<B>,
    end: usize,
    frame: usize,
    simd: Simd,
    memory: &impl Memory<B>,
) -> bool {
    matches!(frame_sum(packet, end, frame, simd, memory), 0 | 0xffff)
}
