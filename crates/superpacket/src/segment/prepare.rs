//! Prepares a packet for segmentation: checks it, and builds the template of its segments.

use super::checked::{CheckedHeaders, check_headers};
use super::fragment::{
    FragmentIds, SCRATCH, header_boundary, insert_fragment_header, outermost, parts, remove_jumbo,
};
use super::output::SegmentPlan;
use super::payload::{Position, copy_first_bytes, position_of, slices, sum_payload};
use super::template::{SegmentCut, Template};
use super::{
    ChecksumForm, ChecksumOutput, Gso, GsoKind, MaxSegments, SegmentError, SegmentOptions,
    Segmentable,
};
use crate::checksum::{Completion, RxChecksum, Sum, at_offset, transport_field, words};
use superpacket_simd::Simd;

use crate::wire::{
    IpVersion, Layout, MAX_HEADER, Protocol, Refusal, be16, ip_length, ipv4, ipv6, pppoe, put16,
    udp,
};

/// A checked packet, and the template of its segments.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) template: Template,
    pub(super) plan: SegmentPlan,
    /// Bytes of the [body](SegmentCut) in each segment but the last.
    size: usize,
    /// Length in bytes of the [body](SegmentCut), which the segments divide.
    pub(super) body: usize,
    /// Start of the payload.
    pub(super) start: Position,
    /// State of the segments' checksums.
    pub(super) checksum: RxChecksum,
    /// Whether the packet is delivered unchanged, as its only segment.
    pub(super) passes: bool,
}

/// The memory for preparing a packet. It also holds the headers of its segments while it is
/// segmented.
#[derive(Clone, Debug)]
pub(super) struct Preparation {
    pub(super) simd: Simd,
    pub(super) scratch: [u8; SCRATCH],
    pub(super) fragment_ids: FragmentIds,
}

impl Preparation {
    pub(super) const fn new(simd: Simd) -> Self {
        Preparation { simd, scratch: [0; SCRATCH], fragment_ids: FragmentIds::new() }
    }

    /// Checks a packet and builds the template of its segments in the scratch memory. `known` is
    /// the layout of its headers, if the caller has parsed them.
    #[inline(always)]
    pub(super) fn prepare<P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        options: &SegmentOptions,
        known: Option<&Layout>,
    ) -> Result<Job, SegmentError> {
        let Some(gso) = options.gso.or_else(|| packet.gso()) else {
            return self.whole(packet, options.checksum);
        };
        let length = packet.length();
        let header_bytes = copy_first_bytes(packet, &mut self.scratch[..MAX_HEADER]);
        let header = &self.scratch[..header_bytes];
        let layout = match known {
            Some(layout) => *layout,
            None => {
                let parsed = gso.kind.parse(header, length, packet.layer(), packet.checksum());
                parsed.map_err(|unparsed| SegmentError::Headers(unparsed.reason))?
            }
        };
        let found = check_headers(header, length, layout, gso.kind, packet.checksum())?;
        let mut layout = found.layout;
        let payload = found.end - usize::from(layout.payload);
        let start = position_of(packet, usize::from(layout.payload))?;
        if layout.jumbo {
            remove_jumbo(&mut self.scratch, &mut layout);
        }
        let form = match options.checksum {
            ChecksumOutput::Full => ChecksumForm::Full,
            ChecksumOutput::Partial => ChecksumForm::Partial,
            ChecksumOutput::AsMerged => gso.checksum,
        };
        if gso.kind == GsoKind::UdpFragments && payload + udp::HEADER_LENGTH > gso.size.get() {
            return self.datagram(packet, &gso, &found, layout, start, options);
        }
        let size = if gso.kind == GsoKind::UdpFragments { payload.max(1) } else { gso.size.get() };
        let template =
            Template::segments(&self.scratch, &layout, &gso, form, (found.partial, found.pseudo));
        if let Some(covered) = template.wanted.covered {
            let shortest = if payload > size && !payload.is_multiple_of(size) {
                payload % size
            } else {
                payload.min(size)
            };
            if covered > shortest {
                return Err(SegmentError::Coverage { needed: covered, got: shortest });
            }
        }
        let checksum = template.checksum_state(&self.scratch, &layout);
        Job::new(template, &layout, size, payload, start, checksum, options.max_segments)
    }

    /// Prepares a UDP datagram for IP fragments, and computes its checksum. `layout` is that of the
    /// headers in the scratch.
    fn datagram<P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        gso: &Gso,
        found: &CheckedHeaders,
        mut layout: Layout,
        start: Position,
        options: &SegmentOptions,
    ) -> Result<Job, SegmentError> {
        let payload = found.end - usize::from(found.layout.payload);
        let datagram = payload + udp::HEADER_LENGTH;
        if datagram > usize::from(u16::MAX) {
            return Err(SegmentError::SegmentTooLong {
                needed: datagram,
                limit: usize::from(u16::MAX),
            });
        }
        let base = match layout.version {
            IpVersion::V4 => usize::from(layout.transport),
            IpVersion::V6 => {
                let boundary = header_boundary(
                    &self.scratch,
                    usize::from(layout.network),
                    usize::from(layout.transport),
                );
                let boundary = boundary.ok_or(SegmentError::Headers(Refusal::HeaderTooLong))?;
                layout.transport += ipv6::FRAGMENT_HEADER_LENGTH as u16;
                layout.payload += ipv6::FRAGMENT_HEADER_LENGTH as u16;
                let id = if options.fragment_id == 0 {
                    self.fragment_ids.next()
                } else {
                    options.fragment_id
                };
                insert_fragment_header(&mut self.scratch, boundary, id)
            }
        };
        let extra = usize::from(layout.payload) - base;
        let size = gso.size.get() / 8 * 8;
        let least = extra.max(8);
        if size < least {
            return Err(SegmentError::SegmentTooSmall { needed: least, got: gso.size.get() });
        }
        let template = Template::fragments(&self.scratch, &layout, gso, base, extra);
        let job = Job::new(
            template,
            &layout,
            size,
            extra + payload,
            start,
            RxChecksum::None,
            options.max_segments,
        )?;
        let transport = usize::from(layout.transport);
        put16(&mut self.scratch, transport + udp::LENGTH, datagram as u16);
        if found.partial || be16(&self.scratch, transport + udp::CHECKSUM) != 0 {
            put16(&mut self.scratch, transport + udp::CHECKSUM, 0);
            let sum = found
                .pseudo
                .add(datagram as u16)
                .add_sum(words(&self.scratch[transport..transport + udp::HEADER_LENGTH]))
                .add(sum_payload(packet, self.simd, start, payload, true));
            put16(
                &mut self.scratch,
                transport + udp::CHECKSUM,
                transport_field(Protocol::Udp, sum.checksum()),
            );
        }
        Ok(job)
    }

    /// Prepares a packet that is not a super-packet: it is one segment, unchanged.
    fn whole<P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        checksum: ChecksumOutput,
    ) -> Result<Job, SegmentError> {
        let mut state = packet.checksum();
        let mut base = packet.header().len();
        if base > MAX_HEADER {
            return Err(SegmentError::HeaderLength { needed: MAX_HEADER, got: base });
        }
        let header_bytes = copy_first_bytes(packet, &mut self.scratch[..MAX_HEADER]);
        if let (ChecksumOutput::Full, RxChecksum::Partial { start, offset }) = (checksum, state) {
            let found = self.find_completion(packet, header_bytes, start, offset)?;
            base = self.complete_checksum(packet, header_bytes, base, &found)?;
            state = RxChecksum::Unnecessary { level: 0 };
        }
        let body = packet.length().saturating_sub(base);
        let plan = SegmentPlan {
            segments: 1,
            segment_length: base.saturating_add(body),
            last_length: base.saturating_add(body),
        };
        let start = position_of(packet, base)?;
        Ok(Job {
            template: Template::untouched(base),
            plan,
            size: body.max(1),
            body,
            start,
            checksum: state,
            passes: true,
        })
    }

    /// Prepares a packet for IP fragments of at most `mtu` bytes.
    pub(super) fn fragments<P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        mtu: usize,
        ipv6_id: Option<u32>,
    ) -> Result<Job, SegmentError> {
        let length = packet.length();
        let header_bytes = copy_first_bytes(packet, &mut self.scratch[..MAX_HEADER]);
        let header = &self.scratch[..header_bytes];
        let found = outermost(header, packet.layer())?;
        let network = found.network;
        let least = network
            + if found.version == IpVersion::V4 {
                ipv4::HEADER_LENGTH
            } else {
                ipv6::HEADER_LENGTH
            };
        if least > header_bytes {
            return Err(SegmentError::Truncated { needed: least, got: header_bytes });
        }
        let stated = ip_length(header, network, found.version);
        let end = if stated == 0 { length } else { network + stated };
        if end > length {
            return Err(SegmentError::Truncated { needed: end, got: length });
        }
        if end - network <= mtu {
            return self.whole(packet, ChecksumOutput::Full);
        }
        let parts = parts(header, &found, end, ipv6_id)?;
        // Each fragment repeats the first `base` bytes of the packet, and has a fragment header,
        // which may be inserted below.
        let base = parts.base;
        let repeated =
            base - network + if parts.insert.is_some() { ipv6::FRAGMENT_HEADER_LENGTH } else { 0 };
        let mut carried = base.max(packet.header().len());
        if carried > header_bytes.min(end) {
            return Err(SegmentError::HeaderLength { needed: header_bytes.min(end), got: carried });
        }
        let size = mtu.saturating_sub(repeated) / 8 * 8;
        let partial = match packet.checksum() {
            RxChecksum::Partial { start, .. } if usize::from(start) < base => {
                return Err(SegmentError::ChecksumPlace { needed: usize::from(start), got: base });
            }
            RxChecksum::Partial { start, offset } => {
                Some(self.find_completion(packet, header_bytes, start, offset)?)
            }
            _ => None,
        };
        if let Some(found) = &partial {
            carried = carried.max(found.field_end());
        }
        let extra = carried - base;
        let least = extra.max(8);
        if size < least {
            return Err(SegmentError::SegmentTooSmall { needed: repeated + least, got: mtu });
        }
        let body = end - base;
        // The reassembled packet must fit its length field (RFC 791; RFC 8200, section 4.5); then
        // all offsets fit theirs.
        let whole = parts.counted + usize::from(parts.first) * 8 + body;
        let limit = usize::from(u16::MAX);
        if whole > limit {
            return Err(SegmentError::SegmentTooLong { needed: whole, limit });
        }
        if let Some(found) = &partial {
            self.complete_checksum(packet, header_bytes, carried, found)?;
        }
        let position = position_of(packet, carried)?;
        let base = match parts.insert {
            Some((boundary, id)) => insert_fragment_header(&mut self.scratch, boundary, id),
            None => base,
        };
        let place = (found.version == IpVersion::V6).then(|| base - ipv6::FRAGMENT_HEADER_LENGTH);
        let template = Template::ip_fragments(
            &self.scratch,
            &found,
            base,
            extra,
            place,
            (parts.first, parts.more),
        );
        let plan = SegmentPlan::new(base, size, body, MaxSegments::ANY)?;
        Ok(Job {
            template,
            plan,
            size,
            body,
            start: position,
            checksum: RxChecksum::None,
            passes: false,
        })
    }

    /// Completes a partial checksum in the scratch, which holds `header_bytes`. Returns the number
    /// of header bytes that the segment must have: `carried`, or more, up to the end of the field.
    fn complete_checksum<P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        header_bytes: usize,
        carried: usize,
        found: &Completion,
    ) -> Result<usize, SegmentError> {
        let carried = carried.max(found.field_end());
        let position = position_of(packet, carried)?;
        // 0 if the header holds all covered bytes.
        let rest = found.end.saturating_sub(carried);
        let covered = self.scratch.get_mut(..carried.min(found.end)).unwrap_or(&mut []);
        if carried > header_bytes {
            return Err(SegmentError::HeaderLength { needed: header_bytes, got: carried });
        }
        if found.is_sum() {
            // Known sums belong to ranges that hold only payload.
            let known = !packet.header().is_empty();
            let payload = sum_payload(packet, self.simd, position, rest, known);
            let header = covered.get(found.start..).unwrap_or(&[]);
            let sum = words(header).fold();
            let sum = Sum::new(sum).add(at_offset(payload, carried - found.start)).fold();
            found.write_sum(covered, sum);
        } else {
            found.write_crc(covered, slices(packet, position, rest));
        }
        Ok(carried)
    }

    /// Finds the partial checksum of a packet whose first `header_bytes` are in the scratch.
    fn find_completion<P: Segmentable + ?Sized>(
        &self,
        packet: &P,
        header_bytes: usize,
        start: u16,
        offset: u16,
    ) -> Result<Completion, SegmentError> {
        let found = Completion::find(
            &self.scratch[..header_bytes],
            packet.length(),
            packet.layer(),
            start,
            offset,
        )?;
        match found.field_end() {
            needed if needed > header_bytes => {
                Err(SegmentError::ChecksumPlace { needed, got: header_bytes })
            }
            _ => Ok(found),
        }
    }
}

impl Job {
    fn new(
        template: Template,
        layout: &Layout,
        size: usize,
        body: usize,
        start: Position,
        checksum: RxChecksum,
        limit: MaxSegments,
    ) -> Result<Job, SegmentError> {
        let outermost = usize::from(layout.outermost());
        let version = layout.outer.map_or(layout.version, |outer| outer.version);
        let mut most = usize::from(u16::MAX);
        if layout.pppoe != 0 {
            most -= pppoe::PPP_LENGTH;
        } else if version == IpVersion::V6 {
            most += ipv6::HEADER_LENGTH;
        }
        let needed = template.base - outermost + size.min(body);
        if needed > most {
            return Err(SegmentError::SegmentTooLong { needed, limit: most });
        }
        let plan = SegmentPlan::new(template.base, size, body, limit)?;
        Ok(Job { template, plan, size, body, start, checksum, passes: false })
    }

    /// Returns which part of the packet the segment with this number contains.
    #[inline(always)]
    pub(super) fn cut(&self, index: u32) -> SegmentCut {
        let offset = index as usize * self.size;
        let last = index + 1 == self.plan.segments;
        let length = if last { self.body - offset } else { self.size };
        SegmentCut { index, offset, length, last }
    }

    /// Returns the bytes of payload in the segments before this one.
    pub(super) const fn payload_before(&self, cut: SegmentCut) -> usize {
        cut.offset.saturating_sub(self.template.extra)
    }

    /// Returns the bytes of payload in all segments before the one with this number.
    pub(super) fn payload_up_to(&self, index: u32) -> usize {
        let offset = (index as usize * self.size).min(self.body);
        offset.saturating_sub(self.template.extra)
    }
}

impl SegmentPlan {
    fn new(
        base: usize,
        size: usize,
        body: usize,
        limit: MaxSegments,
    ) -> Result<SegmentPlan, SegmentError> {
        let needed = u32::try_from(body.div_ceil(size)).unwrap_or(u32::MAX).max(1);
        if needed > limit.get() {
            return Err(SegmentError::TooManySegments { needed, limit: limit.get() });
        }
        let last_length = base + (body - (needed as usize - 1) * size);
        Ok(SegmentPlan { segments: needed, segment_length: base + size.min(body), last_length })
    }
}
