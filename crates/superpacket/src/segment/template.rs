//! The template: one header, prepared once and patched for each segment.

use super::fragment::{Outermost, SCRATCH, keep_copied_options};
use super::{ChecksumForm, Cwr, Gso, IpId};
use crate::checksum::{
    RxChecksum, Sum, ipv4_header, pseudo_header, transport_field, tunnel_field, words,
};
use crate::wire::{
    IpVersion, Layout, Outer as WireOuter, Protocol, be16, be32, byte, dccp, dccp_sequence,
    dccp_sequence_mask,
};
use crate::wire::{ipv4, ipv6, pppoe, put16, put32, tcp, udp, varying};

/// The part of the packet that a segment takes. The segments divide the *body*: the payload and, in
/// fragments, the headers before it that only the first one carries.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentCut {
    /// Number of the segment.
    pub(super) index: u32,
    /// Offset of its part in the body, in bytes.
    pub(super) offset: usize,
    /// Length of its part in bytes.
    pub(super) length: usize,
    /// Whether it is the last segment.
    pub(super) last: bool,
}

/// Sums of a segment's payload, if [wanted](WantedSums).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PayloadSums {
    /// Sum of all payload.
    pub(super) whole: u16,
    /// Sum of the part that the transport checksum covers.
    pub(super) covered: u16,
}

/// The sums of the payload that a segment's header needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WantedSums {
    /// Whether the sum of all payload is needed.
    pub(super) whole: bool,
    /// Number of leading payload bytes whose sum is needed too, because the checksum covers only
    /// these (DCCP's checksum coverage); `None` if it covers all payload.
    pub(super) covered: Option<usize>,
}

impl WantedSums {
    /// Only the sum of all payload.
    pub(super) const WHOLE: Self = WantedSums { whole: true, covered: None };
}

/// A template: the values with which the prepared header bytes are patched for each segment.
#[derive(Clone, Debug)]
pub(super) struct Template {
    /// Number of header bytes in each segment.
    pub(super) base: usize,
    /// Number of bytes of the body that follow the header in the scratch memory and belong to the
    /// first segment only.
    pub(super) extra: usize,
    /// Offsets of the PPPoE header and of the IP header after it.
    pub(super) pppoe: Option<(usize, usize)>,
    pub(super) outer: Option<Outer>,
    /// The headers of a second tunnel in the first.
    nested: Option<Nested>,
    pub(super) network: Option<Network>,
    pub(super) transport: TransportPatch,
    pub(super) wanted: WantedSums,
}

/// An IP header to patch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Network {
    offset: usize,
    version: IpVersion,
    /// Identification of the first segment.
    id: u16,
    /// Difference between the identifications of consecutive segments.
    id_step: u16,
    /// Flags and fragment offset of an IPv4 header.
    fragment: u16,
    /// Sum of the words of an IPv4 header that all segments share: without length, identification,
    /// fragment offset and checksum.
    fixed: Sum,
    /// Sum of `fixed` and the length.
    common: Sum,
}

/// The outer headers of a tunnel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outer {
    network: Network,
    transport: usize,
    /// Whether the tunnel has a UDP header, and so a length to patch.
    is_udp: bool,
    /// Offset of the tunnel's checksum, if it has one.
    checksum: Option<usize>,
    /// Sum of the outer pseudo-header without the length.
    pseudo: Sum,
    /// Offset of the inner transport header, if the sum of all bytes from there on is known without
    /// reading them: with a correct inner checksum it is the complement of the inner
    /// pseudo-header's sum.
    known_from: Option<usize>,
}

/// The outer headers of a tunnel inside another tunnel. Such packets are rare, so their checksums
/// are not prepared, which keeps the templates of all others small.
#[derive(Clone, Copy, Debug)]
struct Nested {
    outer: WireOuter,
    /// Identification of the first segment.
    id: u16,
    /// Difference between the identifications of consecutive segments.
    id_step: u16,
}

/// The fields that are patched after the innermost IP header.
#[derive(Clone, Debug)]
pub(super) enum TransportPatch {
    /// No field: the packet passes whole.
    Untouched,
    /// A TCP header.
    Tcp { header: TransportHeader, sequence: u32, flags: u16, cwr: Cwr },
    /// A UDP header.
    Udp { header: TransportHeader },
    /// A DCCP header.
    Dccp { header: TransportHeader, sequence: u64, mask: u64 },
    /// A fragment offset: in the IPv4 header, or in an IPv6 fragment header at this offset.
    Fragment { header: Option<usize>, first: u16, more: bool },
}

/// The part of a transport header that all protocols have: its offset and its checksum.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransportHeader {
    offset: usize,
    /// Form of the checksum; `None` leaves it as it is (UDP without one).
    form: Option<ChecksumForm>,
    /// Sum of the pseudo-header without the length.
    pseudo: Sum,
    /// Sum of the pseudo-header and the words of the header that all segments share.
    fixed: Sum,
    /// Sum of `fixed`, the length, and other words that stay the same until the template is
    /// [adapted](Template::adapt_to) again.
    common: Sum,
}

impl Network {
    pub(super) fn new(bytes: &[u8], offset: usize, version: IpVersion, id: IpId) -> Self {
        let header = bytes.get(offset..).unwrap_or(&[]);
        match version {
            IpVersion::V4 => Network {
                offset,
                version,
                id: be16(header, ipv4::ID),
                id_step: id_step(id),
                fragment: be16(header, ipv4::FRAGMENT),
                fixed: Self::fixed(header),
                common: Sum::default(),
            },
            IpVersion::V6 => Network {
                offset,
                version,
                id: 0,
                id_step: 0,
                fragment: 0,
                fixed: Sum::default(),
                common: Sum::default(),
            },
        }
    }

    /// Sums the words of an IPv4 header that all segments share.
    fn fixed(header: &[u8]) -> Sum {
        let length = usize::from(byte(header, 0) & 0x0f) * 4;
        let sum = words(header.get(..length).unwrap_or(&[]));
        [ipv4::TOTAL_LENGTH, ipv4::ID, ipv4::FRAGMENT, ipv4::CHECKSUM]
            .iter()
            .fold(sum, |sum, &field| sum.subtract(be16(header, field)))
    }

    /// Writes the length of an IP packet that ends at `end`.
    fn set_end(&mut self, bytes: &mut [u8], end: usize) {
        let length = (end - self.offset) as u16;
        match self.version {
            IpVersion::V4 => {
                self.common = self.fixed.add(length);
                put16(bytes, self.offset + ipv4::TOTAL_LENGTH, length);
            }
            IpVersion::V6 => put16(
                bytes,
                self.offset + ipv6::PAYLOAD_LENGTH,
                length.wrapping_sub(ipv6::HEADER_LENGTH as u16),
            ),
        }
    }

    /// Writes the identification, `fragment` (flags and offset) and the checksum of an IPv4 header.
    #[inline(always)]
    fn patch(&self, bytes: &mut [u8], index: u32, fragment: u16) {
        if self.version == IpVersion::V4
            && let Some(header) = header::<{ ipv4::HEADER_LENGTH }>(bytes, self.offset)
        {
            let id = self.id.wrapping_add(self.id_step.wrapping_mul(index as u16));
            put32(header, ipv4::ID, u32::from(id) << 16 | u32::from(fragment));
            put16(header, ipv4::CHECKSUM, self.common.add(id).add(fragment).checksum());
        }
    }
}

impl Template {
    /// Makes the template of a packet whose `base` header bytes stay as they are.
    pub(super) const fn untouched(base: usize) -> Self {
        Template {
            base,
            extra: 0,
            pppoe: None,
            outer: None,
            nested: None,
            network: None,
            transport: TransportPatch::Untouched,
            wanted: WantedSums { whole: false, covered: None },
        }
    }

    /// Makes a template of link and network headers, without a transport header. `lco`: whether the
    /// inner checksum tells the sum of the bytes that it covers (local checksum offload).
    fn headers(
        bytes: &[u8; SCRATCH],
        layout: &Layout,
        gso: &Gso,
        base: usize,
        extra: usize,
        lco: bool,
    ) -> Self {
        let outer = layout.outer.map(|outer| {
            let transport = usize::from(outer.transport);
            let is_udp = outer.tunnel.is_udp();
            let network = usize::from(outer.network);
            Outer {
                network: Network::new(bytes, network, outer.version, gso.outer_id),
                transport,
                is_udp,
                checksum: outer.checksum(bytes),
                pseudo: pseudo_header(&bytes[network..], outer.version, Protocol::Udp.number(), 0),
                known_from: Some(usize::from(layout.transport)).filter(|_| lco),
            }
        });
        let nested = layout.nested.map(|outer| Nested {
            outer,
            id: be16(bytes, usize::from(outer.network) + ipv4::ID),
            id_step: id_step(gso.nested_id),
        });
        let outermost = usize::from(layout.outermost());
        let has_checksum = outer.is_some_and(|outer| outer.checksum.is_some())
            || layout.nested.is_some_and(|nested| nested.checksum(bytes).is_some());
        let whole = !lco && has_checksum;
        Template {
            base,
            extra,
            pppoe: Some((usize::from(layout.pppoe), outermost)).filter(|_| layout.pppoe != 0),
            outer,
            nested,
            network: Some(Network::new(bytes, usize::from(layout.network), layout.version, gso.id)),
            transport: TransportPatch::Untouched,
            wanted: WantedSums { whole, covered: None },
        }
    }

    /// Makes the template of segments that each have a transport header. `partial`: they get a
    /// checksum even if UDP's field holds 0. `pseudo` is the sum of the pseudo-header without its
    /// length.
    pub(super) fn segments(
        bytes: &[u8; SCRATCH],
        layout: &Layout,
        gso: &Gso,
        form: ChecksumForm,
        (partial, pseudo): (bool, Sum),
    ) -> Self {
        let offset = usize::from(layout.transport);
        let base = usize::from(layout.payload);
        let header = &bytes[offset..base];
        let coverage = match layout.protocol {
            Protocol::Dccp => usize::from(byte(header, dccp::COVERAGE) & 0x0f)
                .checked_sub(1)
                .map(|words| words * 4),
            _ => None,
        };
        let no_checksum =
            !partial && layout.protocol == Protocol::Udp && be16(header, udp::CHECKSUM) == 0;
        let form = Some(form).filter(|_| !no_checksum);
        // The flags share a word with TCP's data offset, so the whole word is rewritten.
        let changing =
            varying::fields(header, layout.protocol).iter().flat_map(|field| field.words());
        let fixed = changing
            .fold(words(header).add_sum(pseudo), |sum, word| sum.subtract(be16(header, word)));
        let transport = TransportHeader { offset, form, pseudo, fixed, common: Sum::default() };
        // The sum follows only from a checksum over the whole payload.
        let lco = form.is_some() && coverage.is_none();
        let mut template = Self::headers(bytes, layout, gso, base, 0, lco);
        if form == Some(ChecksumForm::Full) {
            match coverage {
                Some(covered) => template.wanted.covered = Some(covered),
                None => template.wanted.whole = true,
            }
        }
        template.transport = match layout.protocol {
            Protocol::Tcp => TransportPatch::Tcp {
                header: transport,
                sequence: be32(header, tcp::SEQUENCE),
                flags: be16(header, tcp::DATA_OFFSET),
                cwr: gso.cwr,
            },
            Protocol::Udp => TransportPatch::Udp { header: transport },
            Protocol::Dccp => TransportPatch::Dccp {
                header: transport,
                sequence: dccp_sequence(header),
                mask: dccp_sequence_mask(header),
            },
        };
        template
    }

    /// Makes the template of a UDP datagram's IP fragments. Each has the first `base` header bytes,
    /// and the first has `extra` bytes more.
    pub(super) fn fragments(
        bytes: &[u8; SCRATCH],
        layout: &Layout,
        gso: &Gso,
        base: usize,
        extra: usize,
    ) -> Self {
        // All fragments of a datagram have one identification.
        let gso = Gso { id: IpId::Fixed, ..*gso };
        let mut template = Self::headers(bytes, layout, &gso, base, extra, false);
        let header = match layout.version {
            IpVersion::V4 => None,
            IpVersion::V6 => Some(base - ipv6::FRAGMENT_HEADER_LENGTH),
        };
        template.transport = TransportPatch::Fragment { header, first: 0, more: false };
        template
    }

    /// Makes the template of fragments of an IP packet with any content. `place` is the offset of
    /// the IPv6 fragment header. `offset` is the packet's own offset as a fragment, in units of 8
    /// bytes, and whether more fragments follow it.
    pub(super) fn ip_fragments(
        bytes: &[u8; SCRATCH],
        packet: &Outermost,
        base: usize,
        extra: usize,
        place: Option<usize>,
        offset: (u16, bool),
    ) -> Self {
        Template {
            base,
            extra,
            pppoe: packet.pppoe.map(|place| (place, packet.network)),
            outer: None,
            nested: None,
            network: Some(Network::new(bytes, packet.network, packet.version, IpId::Fixed)),
            transport: TransportPatch::Fragment { header: place, first: offset.0, more: offset.1 },
            wanted: WantedSums::default(),
        }
    }

    /// Returns the state of the segments' checksums.
    pub(super) fn checksum_state(&self, bytes: &[u8; SCRATCH], layout: &Layout) -> RxChecksum {
        let outer =
            u8::from(self.outer.is_some_and(|outer| outer.is_udp && outer.checksum.is_some()))
                + u8::from(
                    self.nested.is_some_and(|nested| nested.outer.checksum(bytes).is_some()),
                );
        let form = match &self.transport {
            TransportPatch::Tcp { header, .. }
            | TransportPatch::Udp { header }
            | TransportPatch::Dccp { header, .. } => header.form,
            TransportPatch::Untouched | TransportPatch::Fragment { .. } => None,
        };
        match (form, outer) {
            (Some(ChecksumForm::Partial), _) => RxChecksum::Partial {
                start: layout.transport,
                offset: layout.protocol.checksum_offset(),
            },
            (Some(ChecksumForm::Full), outer) => RxChecksum::Unnecessary { level: outer },
            (None, 0) => RxChecksum::None,
            (None, outer) => RxChecksum::Unnecessary { level: outer - 1 },
        }
    }

    /// Returns the length of a segment's header in bytes.
    #[inline(always)]
    pub(super) const fn header_length(&self, cut: SegmentCut) -> usize {
        if cut.index == 0 { self.base + self.extra } else { self.base }
    }

    /// Returns the length of a segment's payload in bytes.
    #[inline(always)]
    pub(super) const fn payload_length(&self, cut: SegmentCut) -> usize {
        if cut.index == 0 { cut.length - self.extra } else { cut.length }
    }

    /// Adapts the prepared bytes to a segment: the first, the second and the last differ in
    /// lengths, flags and options. Must be called before each segment is [patched](Self::patch).
    #[inline(always)]
    pub(super) fn adapt_to(&mut self, bytes: &mut [u8; SCRATCH], cut: SegmentCut) {
        if cut.index <= 1 || cut.last {
            self.adapt(bytes, self.base + cut.length, cut.index, cut.last);
        }
    }

    // Takes the parts of the cut by value: a reference would force it into memory.
    #[inline(never)]
    fn adapt(&mut self, bytes: &mut [u8; SCRATCH], end: usize, index: u32, last: bool) {
        match &mut self.transport {
            TransportPatch::Untouched => return,
            TransportPatch::Tcp { header, flags, cwr, .. } => {
                let mut word = *flags;
                if !last {
                    word &= !u16::from(tcp::FIN | tcp::PSH);
                }
                if index != 0 && *cwr == Cwr::First {
                    word &= !u16::from(tcp::CWR);
                }
                put16(bytes, header.offset + tcp::DATA_OFFSET, word);
                header.set_common(bytes, end, word, Protocol::Tcp);
            }
            TransportPatch::Udp { header } => {
                let length = (end - header.offset) as u16;
                put16(bytes, header.offset + udp::LENGTH, length);
                header.set_common(bytes, end, length, Protocol::Udp);
            }
            TransportPatch::Dccp { header, .. } => header.set_common(bytes, end, 0, Protocol::Dccp),
            TransportPatch::Fragment { header, .. } => {
                if let (1, None, Some(network)) = (index, header, &mut self.network) {
                    keep_copied_options(bytes, network.offset);
                    network.fixed = Network::fixed(bytes.get(network.offset..).unwrap_or(&[]));
                }
            }
        }
        if let Some(network) = &mut self.network {
            network.set_end(bytes, end);
        }
        if let Some(outer) = &mut self.outer {
            outer.set_end(bytes, end);
            if let Some(nested) = &self.nested {
                nested.set_end(bytes, end);
            }
        }
        if let Some((place, network)) = self.pppoe {
            put16(bytes, place + pppoe::LENGTH, (end - network + pppoe::PPP_LENGTH) as u16);
        }
    }

    /// Returns whether this is TCP outside of tunnels with full checksums.
    pub(super) fn is_usual(&self) -> bool {
        let full = matches!(&self.transport, TransportPatch::Tcp { header, .. } if header.form == Some(ChecksumForm::Full));
        full && self.outer.is_none() && self.wanted == WantedSums::WHOLE && self.extra == 0
    }

    /// Writes the fields that differ in each segment, such as numbers and checksums, to a segment's
    /// header: a copy of the prepared bytes, or these themselves. `USUAL` must be the result of
    /// [`is_usual`](Self::is_usual).
    #[inline(always)]
    pub(super) fn patch<const USUAL: bool>(
        &self,
        bytes: &mut [u8],
        cut: SegmentCut,
        sums: PayloadSums,
    ) {
        if USUAL {
            let (TransportPatch::Tcp { header, sequence, .. }, Some(network)) =
                (&self.transport, &self.network)
            else {
                return;
            };
            header.patch_tcp(bytes, sequence.wrapping_add(cut.offset as u32), true, sums.covered);
            network.patch(bytes, cut.index, network.fragment);
            return;
        }
        let mut fragment = self.network.as_ref().map_or(0, |network| network.fragment);
        match &self.transport {
            TransportPatch::Untouched => return,
            TransportPatch::Tcp { header: transport, sequence, .. } => {
                let full = transport.form == Some(ChecksumForm::Full);
                transport.patch_tcp(
                    bytes,
                    sequence.wrapping_add(cut.offset as u32),
                    full,
                    sums.covered,
                );
            }
            TransportPatch::Udp { header: transport } => {
                if let Some(checksum) =
                    transport.checksum(Sum::default(), Protocol::Udp, sums.covered)
                {
                    put16(bytes, transport.offset + udp::CHECKSUM, checksum);
                }
            }
            TransportPatch::Dccp { header, sequence, mask } => {
                let number = sequence.wrapping_add(u64::from(cut.index)) & *mask;
                let changed = if *mask >> 24 == 0 {
                    let word =
                        (u32::from(byte(bytes, header.offset + dccp::TYPE)) << 24) | number as u32;
                    put32(bytes, header.offset + dccp::TYPE, word);
                    Sum::default().add32(word)
                } else {
                    put16(bytes, header.offset + dccp::LONG_SEQUENCE, (number >> 32) as u16);
                    put32(bytes, header.offset + dccp::LONG_SEQUENCE + 2, number as u32);
                    Sum::new((number >> 32) as u16).add32(number as u32)
                };
                if let Some(checksum) = header.checksum(changed, Protocol::Dccp, sums.covered) {
                    put16(bytes, header.offset + dccp::CHECKSUM, checksum);
                }
            }
            TransportPatch::Fragment { header, first, more } => {
                let more = *more || !cut.last;
                let units = first.wrapping_add((cut.offset / 8) as u16);
                match *header {
                    Some(place) => put16(bytes, place + 2, (units << 3) | u16::from(more)),
                    None => {
                        fragment &= ipv4::RESERVED | ipv4::DONT_FRAGMENT;
                        fragment |= (units & ipv4::FRAGMENT_OFFSET)
                            | if more { ipv4::MORE_FRAGMENTS } else { 0 };
                    }
                }
            }
        }
        if let Some(network) = &self.network {
            network.patch(bytes, cut.index, fragment);
        }
        if let Some(outer) = &self.outer {
            // The inner checksum first, since the outer one covers it.
            let end = self.base + cut.length;
            let known = outer.known(end, self.header_length(cut), &self.transport, sums.whole);
            if let Some(nested) = &self.nested {
                nested.patch(bytes, cut.index, end, known);
            }
            outer.patch(bytes, cut.index, end, known);
        }
    }
}

impl TransportHeader {
    /// Computes the sum of the words that are the same in all segments that end at offset `end`,
    /// including `words`. If the checksum is partial, also writes it, since it depends only on
    /// these.
    fn set_common(&mut self, bytes: &mut [u8], end: usize, words: u16, protocol: Protocol) {
        let length = (end - self.offset) as u16;
        self.common = self.fixed.add(length).add(words);
        if self.form == Some(ChecksumForm::Partial) {
            put16(
                bytes,
                self.offset + usize::from(protocol.checksum_offset()),
                self.pseudo.add(length).fold(),
            );
        }
    }

    /// Writes a TCP header's sequence number, and its checksum if it is `full`.
    #[inline(always)]
    fn patch_tcp(&self, bytes: &mut [u8], number: u32, full: bool, payload: u16) {
        if let Some(header) = header::<{ tcp::HEADER_LENGTH }>(bytes, self.offset) {
            put32(header, tcp::SEQUENCE, number);
            if full {
                put16(header, tcp::CHECKSUM, self.common.add32(number).add(payload).checksum());
            }
        }
    }

    /// Returns the checksum field of a segment if it must be computed. `changed` is the sum of the
    /// words that differ in each segment.
    #[inline(always)]
    fn checksum(&self, changed: Sum, protocol: Protocol, payload: u16) -> Option<u16> {
        match self.form? {
            ChecksumForm::Partial => None,
            ChecksumForm::Full => Some(transport_field(
                protocol,
                self.common.add_sum(changed).add(payload).checksum(),
            )),
        }
    }
}

impl Outer {
    /// Writes the lengths of a packet that ends at `end`.
    fn set_end(&mut self, bytes: &mut [u8], end: usize) {
        self.network.set_end(bytes, end);
        if self.is_udp {
            put16(bytes, self.transport + udp::LENGTH, (end - self.transport) as u16);
        }
    }

    /// Returns an offset and the sum of all bytes of the segment from that offset on.
    #[inline(always)]
    fn known(
        &self,
        end: usize,
        header_length: usize,
        inner: &TransportPatch,
        payload: u16,
    ) -> (usize, u16) {
        match (self.known_from, inner) {
            (
                Some(from),
                TransportPatch::Tcp { header, .. }
                | TransportPatch::Udp { header }
                | TransportPatch::Dccp { header, .. },
            ) => (from, header.pseudo.add((end - header.offset) as u16).checksum()),
            _ => (header_length, payload),
        }
    }

    fn patch(&self, bytes: &mut [u8], index: u32, end: usize, (headers, rest): (usize, u16)) {
        self.network.patch(bytes, index, self.network.fragment);
        let Some(place) = self.checksum else { return };
        let pseudo = self.is_udp.then(|| self.pseudo.add((end - self.transport) as u16));
        let checksum =
            tunnel_field(&bytes[self.transport..headers], be16(bytes, place), rest, pseudo);
        put16(bytes, place, checksum);
    }
}

impl Nested {
    /// Writes the lengths of a packet that ends at `end`.
    #[cold]
    fn set_end(&self, bytes: &mut [u8], end: usize) {
        let (network, transport) =
            (usize::from(self.outer.network), usize::from(self.outer.transport));
        match self.outer.version {
            IpVersion::V4 => put16(bytes, network + ipv4::TOTAL_LENGTH, (end - network) as u16),
            IpVersion::V6 => put16(
                bytes,
                network + ipv6::PAYLOAD_LENGTH,
                (end - network - ipv6::HEADER_LENGTH) as u16,
            ),
        }
        put16(bytes, transport + udp::LENGTH, (end - transport) as u16);
    }

    /// Writes identification and checksums. `rest` is the sum of all bytes after `headers`.
    #[cold]
    fn patch(&self, bytes: &mut [u8], index: u32, end: usize, (headers, rest): (usize, u16)) {
        let (network, transport) =
            (usize::from(self.outer.network), usize::from(self.outer.transport));
        if self.outer.version == IpVersion::V4 {
            let id = self.id.wrapping_add(self.id_step.wrapping_mul(index as u16));
            put16(bytes, network + ipv4::ID, id);
            let length = usize::from(byte(bytes, network) & 0x0f) * 4;
            let checksum = ipv4_header(&bytes[network..network + length]);
            put16(bytes, network + ipv4::CHECKSUM, checksum);
        }
        if let Some(place) = self.outer.checksum(bytes) {
            let pseudo = pseudo_header(
                &bytes[network..],
                self.outer.version,
                Protocol::Udp.number(),
                (end - transport) as u32,
            );
            let checksum =
                tunnel_field(&bytes[transport..headers], be16(bytes, place), rest, Some(pseudo));
            put16(bytes, place, checksum);
        }
    }
}

/// Returns the difference between the identifications of consecutive segments.
const fn id_step(id: IpId) -> u16 {
    match id {
        IpId::Increment => 1,
        IpId::Fixed => 0,
    }
}

/// Returns the `N` bytes of a header at `offset`. The length is tested once, so that fields need no
/// test.
#[inline(always)]
fn header<const N: usize>(bytes: &mut [u8], offset: usize) -> Option<&mut [u8; N]> {
    bytes.get_mut(offset..)?.first_chunk_mut()
}
