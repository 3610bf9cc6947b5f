//! The cutter: one loop for all kinds of segments, over a template.

use super::fragment::{insert_fragment_header, outermost, remove_jumbo};
use super::output::{Plan, Segment, SegmentBuffers, Written};
use super::shape::shape;
use super::source::{Position, Segmentable, bytes, gather, known_sum, step};
use super::template::{Cut, PayloadSums, SCRATCH, Template, Wanted};
use super::{ChecksumForm, Gso, GsoKind, MaxSegments, SegmentCounters, SegmentError};
use crate::checksum::{Sum, at_offset, pseudo_header, transport_field, words};
use crate::packet::RxChecksum;
use crate::wire::{self, IpVersion, Layout, MAX_HEADER, Protocol, be16, byte, ipv4, ipv6, pppoe, put16, udp};
use superpacket_simd::Simd;

/// How the transport checksums of segments are to stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChecksumOutput {
    /// The whole checksum.
    #[default]
    Full,
    /// The sum of the pseudo-header with the segment's length, not inverted; a device fills in the rest. IP fragments, which no device
    /// completes, carry full ones.
    Partial,
    /// As the packets had them that merged ([`Gso::checksum`]). A packet that passes whole keeps what it has.
    AsMerged,
}

/// What may be chosen for each packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentOptions {
    /// How to cut, in place of what the packet's own metadata says.
    pub gso: Option<Gso>,
    /// How the checksums are to stand.
    pub checksum: ChecksumOutput,
    /// The most segments; a packet that needs more is refused.
    pub max_segments: MaxSegments,
    /// The identification of IPv6 fragments (RFC 8200, section 4.5): the caller sees to it that it does not repeat.
    pub fragment_id: u32,
}

impl Default for SegmentOptions {
    fn default() -> Self {
        SegmentOptions { gso: None, checksum: ChecksumOutput::Full, max_segments: MaxSegments::ANY, fragment_id: 0 }
    }
}

/// Cuts super-packets. Holds the scratch that headers are built in, and counters; allocates nothing.
///
/// ```
/// use superpacket::Simd;
/// use superpacket::packet::Layer;
/// use superpacket::segment::{Gso, GsoKind, GsoPacket, SegmentOptions, SegmentSize, Segmenter};
///
/// // A UDP datagram with 2,500 bytes of payload.
/// let mut packet = vec![0u8; 28 + 2500];
/// packet[0] = 0x45;
/// packet[2..4].copy_from_slice(&2528u16.to_be_bytes());
/// packet[9] = 17;
/// packet[24..26].copy_from_slice(&2508u16.to_be_bytes());
///
/// let gso = Gso::new(GsoKind::Udp, SegmentSize::new(1000).expect("not zero"));
/// let mut lengths = Vec::new();
/// let plan = Segmenter::new(Simd::detect())
///     .segment(&GsoPacket::linear(&packet, gso).at(Layer::Ip), &SegmentOptions::default(), |segment| lengths.push(segment.length()))?;
/// assert_eq!(plan.segments, 3);
/// assert_eq!(lengths, [1028, 1028, 528]);
/// # Ok::<(), superpacket::segment::SegmentError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Segmenter {
    simd: Simd,
    counters: SegmentCounters,
    scratch: [u8; SCRATCH],
}

/// A packet that has been checked, and its template.
#[derive(Clone, Debug)]
struct Job {
    template: Template,
    plan: Plan,
    /// Bytes of body in each segment but the last.
    size: usize,
    /// Bytes of body.
    body: usize,
    /// Where the payload starts.
    start: Position,
    checksum: RxChecksum,
    passes: bool,
}

impl Segmenter {
    /// A segmenter that sums with `simd`.
    pub const fn new(simd: Simd) -> Self {
        Segmenter {
            simd,
            counters: SegmentCounters {
                packets: 0,
                cut: 0,
                passed: 0,
                segments: 0,
                payload_in: 0,
                payload_out: 0,
                errors: [0; SegmentError::COUNT],
            },
            scratch: [0; SCRATCH],
        }
    }

    /// What went in and came out so far.
    #[inline]
    pub const fn counters(&self) -> &SegmentCounters {
        &self.counters
    }

    /// How many segments a packet would give, and how long. Counts nothing.
    ///
    /// # Errors
    /// As [`segment`](Self::segment).
    pub fn plan<P: Segmentable + ?Sized>(&mut self, packet: &P, options: &SegmentOptions) -> Result<Plan, SegmentError> {
        self.prepare(packet, options).map(|job| job.plan)
    }

    /// Cuts a packet into segments of header bytes and payload ranges. Payload is read only where a checksum needs it and its sum is not known.
    ///
    /// A packet without [`Gso`] passes whole, bit for bit, as one segment (with its checksum filled in, if it was partial and
    /// [`ChecksumOutput::Full`] is asked for).
    ///
    /// # Errors
    /// [`SegmentError`]; the sink has not been called then.
    #[inline]
    pub fn segment<P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        options: &SegmentOptions,
        sink: impl FnMut(Segment<'_, P>),
    ) -> Result<Plan, SegmentError> {
        let job = self.prepare(packet, options).map_err(|error| self.refuse(error))?;
        Ok(self.gather_segments(packet, job, sink))
    }

    /// Cuts a packet into segments that are written into buffers, copied and summed in one pass.
    ///
    /// # Errors
    /// [`SegmentError`]; nothing has been written then, unless `buffers` accepted the plan and then had no buffer.
    #[inline]
    pub fn segment_linear<P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        options: &SegmentOptions,
        buffers: &mut (impl SegmentBuffers + ?Sized),
    ) -> Result<Plan, SegmentError> {
        let job = self.prepare(packet, options).map_err(|error| self.refuse(error))?;
        self.write_segments(packet, job, buffers)
    }

    /// Fragments a packet over IPv4 so that each fragment has at most `mtu` bytes from its outermost IP header on, whatever the packet carries
    /// (RFC 791, section 3.2). What fits passes whole. A fragment may be fragmented again.
    ///
    /// A partial checksum is filled in first. Options without the copied flag are replaced by no-operations from the second fragment on.
    ///
    /// # Errors
    /// [`SegmentError::DontFragment`] if the packet is longer and has the don't-fragment bit, or is IPv6; other errors if it is malformed. The
    /// sink has not been called then.
    pub fn fragment<P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        mtu: usize,
        sink: impl FnMut(Segment<'_, P>),
    ) -> Result<Plan, SegmentError> {
        let job = self.prepare_fragments(packet, mtu).map_err(|error| self.refuse(error))?;
        Ok(self.gather_segments(packet, job, sink))
    }

    /// As [`fragment`](Self::fragment), written into buffers.
    ///
    /// # Errors
    /// As [`fragment`](Self::fragment) and [`segment_linear`](Self::segment_linear).
    pub fn fragment_linear<P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        mtu: usize,
        buffers: &mut (impl SegmentBuffers + ?Sized),
    ) -> Result<Plan, SegmentError> {
        let job = self.prepare_fragments(packet, mtu).map_err(|error| self.refuse(error))?;
        self.write_segments(packet, job, buffers)
    }

    #[cold]
    fn refuse(&mut self, error: SegmentError) -> SegmentError {
        self.counters.packets += 1;
        self.counters.errors[error.number()] += 1;
        error
    }

    fn accept(&mut self, job: &Job) {
        self.counters.packets += 1;
        *(if job.passes { &mut self.counters.passed } else { &mut self.counters.cut }) += 1;
        self.counters.payload_in += (job.body - job.template.extra) as u64;
    }

    fn gather_segments<P: Segmentable + ?Sized>(&mut self, packet: &P, mut job: Job, mut sink: impl FnMut(Segment<'_, P>)) -> Plan {
        self.accept(&job);
        let mut position = job.start;
        let mut payload_out = 0;
        for index in 0..job.plan.segments {
            let cut = job.cut(index);
            let length = job.template.payload_length(cut);
            let sums = payload_sums(packet, self.simd, position, length, job.template.wanted);
            job.template.patch(&mut self.scratch, cut, sums);
            let header = &self.scratch[..job.template.header_length(cut)];
            sink(Segment { header, packet, position, length, index, last: cut.last, checksum: job.checksum });
            position = position.advance(packet, length);
            payload_out += length as u64;
        }
        self.counters.segments += u64::from(job.plan.segments);
        self.counters.payload_out += payload_out;
        job.plan
    }

    fn write_segments<P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        mut job: Job,
        buffers: &mut (impl SegmentBuffers + ?Sized),
    ) -> Result<Plan, SegmentError> {
        buffers.prepare(&job.plan).map_err(|error| self.refuse(error))?;
        self.accept(&job);
        let mut position = job.start;
        for index in 0..job.plan.segments {
            let cut = job.cut(index);
            let header_length = job.template.header_length(cut);
            let payload = job.template.payload_length(cut);
            let length = header_length + payload;
            let buffer = buffers.buffer(length).unwrap_or(&mut []);
            let got = buffer.len();
            let Some((header, body)) = buffer.get_mut(..length).and_then(|buffer| buffer.split_at_mut_checked(header_length)) else {
                return Err(SegmentError::OutputTooSmall { needed: length, got });
            };
            let sums = copy_payload(packet, self.simd, &mut position, body, job.template.wanted);
            job.template.patch(&mut self.scratch, cut, sums);
            header.copy_from_slice(&self.scratch[..header_length]);
            buffers.written(Written { index, length, last: cut.last, checksum: job.checksum });
            self.counters.segments += 1;
            self.counters.payload_out += payload as u64;
        }
        Ok(job.plan)
    }

    /// Checks a packet, and builds its template in the scratch.
    fn prepare<P: Segmentable + ?Sized>(&mut self, packet: &P, options: &SegmentOptions) -> Result<Job, SegmentError> {
        let Some(gso) = options.gso.or_else(|| packet.gso()) else {
            return self.prepare_whole(packet, options.checksum);
        };
        let length = packet.length();
        let header_bytes = gather(packet, &mut self.scratch[..MAX_HEADER]);
        let found = shape(&self.scratch[..header_bytes], length, packet.layer(), gso.kind)?;
        let mut layout = found.layout;
        let payload = found.end - usize::from(layout.payload);
        let start = start_of(packet, usize::from(layout.payload))?;
        if layout.jumbo {
            remove_jumbo(&mut self.scratch, &mut layout);
        }
        let form = match options.checksum {
            ChecksumOutput::Full => ChecksumForm::Full,
            ChecksumOutput::Partial => ChecksumForm::Partial,
            ChecksumOutput::AsMerged => gso.checksum,
        };
        if gso.kind == GsoKind::UdpFragments && payload + udp::HEADER_LENGTH > gso.size.get() {
            return self.prepare_datagram(packet, &gso, layout, payload, start, options);
        }
        let size = if gso.kind == GsoKind::UdpFragments { payload.max(1) } else { gso.size.get() };
        let template = Template::segments(&self.scratch, &layout, &gso, form);
        if let Some(covered) = template.wanted.covered {
            let shortest = if payload > size && !payload.is_multiple_of(size) { payload % size } else { payload.min(size) };
            if covered > shortest {
                return Err(SegmentError::Coverage { needed: covered, got: shortest });
            }
        }
        let checksum = template.checksum_state(&layout);
        Job::new(template, &layout, size, payload, start, checksum, options.max_segments)
    }

    /// A UDP datagram to be cut into IP fragments: its checksum is computed once, over all of it.
    fn prepare_datagram<P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        gso: &Gso,
        mut layout: Layout,
        payload: usize,
        start: Position,
        options: &SegmentOptions,
    ) -> Result<Job, SegmentError> {
        let datagram = payload + udp::HEADER_LENGTH;
        if datagram > usize::from(u16::MAX) {
            return Err(SegmentError::SegmentTooLong { needed: datagram, limit: usize::from(u16::MAX) });
        }
        let base = match layout.version {
            IpVersion::V4 => usize::from(layout.transport),
            IpVersion::V6 => insert_fragment_header(&mut self.scratch, &mut layout, options.fragment_id),
        };
        let extra = usize::from(layout.payload) - base;
        let size = gso.size.get() / 8 * 8;
        let least = extra.max(8);
        if size < least {
            return Err(SegmentError::SegmentTooSmall { needed: least, got: gso.size.get() });
        }
        let template = Template::fragments(&self.scratch, &layout, gso, base, extra);
        let job = Job::new(template, &layout, size, extra + payload, start, RxChecksum::None, options.max_segments)?;
        let transport = usize::from(layout.transport);
        put16(&mut self.scratch, transport + udp::LENGTH, datagram as u16);
        if be16(&self.scratch, transport + udp::CHECKSUM) != 0 {
            put16(&mut self.scratch, transport + udp::CHECKSUM, 0);
            let sum = pseudo_header(&self.scratch[usize::from(layout.network)..], layout.version, Protocol::Udp.number(), datagram as u32)
                .add_sum(words(&self.scratch[transport..transport + udp::HEADER_LENGTH]))
                .add(sum_payload(packet, self.simd, start, payload, true));
            put16(&mut self.scratch, transport + udp::CHECKSUM, transport_field(Protocol::Udp, sum.checksum()));
        }
        Ok(job)
    }

    /// A packet that is no super-packet: one segment, as it is.
    fn prepare_whole<P: Segmentable + ?Sized>(&mut self, packet: &P, checksum: ChecksumOutput) -> Result<Job, SegmentError> {
        let mut state = packet.checksum();
        let mut base = packet.header().len();
        if base > MAX_HEADER {
            return Err(SegmentError::HeaderLength { needed: MAX_HEADER, got: base });
        }
        let header_bytes = gather(packet, &mut self.scratch[..MAX_HEADER]);
        if let (ChecksumOutput::Full, RxChecksum::Partial { start, offset }) = (checksum, state) {
            base = self.fill_in(packet, header_bytes, base, usize::from(start), usize::from(offset))?;
            state = RxChecksum::Unnecessary { level: 0 };
        }
        let body = packet.length().saturating_sub(base);
        let plan = Plan { segments: 1, segment_length: base.saturating_add(body), last_length: base.saturating_add(body) };
        let start = start_of(packet, base)?;
        Ok(Job { template: Template::untouched(base), plan, size: body.max(1), body, start, checksum: state, passes: true })
    }

    fn prepare_fragments<P: Segmentable + ?Sized>(&mut self, packet: &P, mtu: usize) -> Result<Job, SegmentError> {
        let length = packet.length();
        let header_bytes = gather(packet, &mut self.scratch[..MAX_HEADER]);
        let header = &self.scratch[..header_bytes];
        let found = outermost(header, packet.layer())?;
        let network = found.network;
        let least = network + if found.version == IpVersion::V4 { ipv4::HEADER_LENGTH } else { ipv6::HEADER_LENGTH };
        if least > header_bytes {
            return Err(SegmentError::Truncated { needed: least, got: header_bytes });
        }
        let stated = match found.version {
            IpVersion::V4 => usize::from(be16(header, network + ipv4::TOTAL_LENGTH)),
            IpVersion::V6 => match usize::from(be16(header, network + ipv6::PAYLOAD_LENGTH)) {
                0 => 0,
                payload => payload + ipv6::HEADER_LENGTH,
            },
        };
        let end = if stated == 0 { length } else { network + stated };
        if end > length {
            return Err(SegmentError::Truncated { needed: end, got: length });
        }
        if end - network <= mtu {
            return self.prepare_whole(packet, ChecksumOutput::Full);
        }
        let fragment = be16(header, network + ipv4::FRAGMENT);
        if found.version == IpVersion::V6 || fragment & ipv4::DONT_FRAGMENT != 0 {
            return Err(SegmentError::DontFragment);
        }
        let base = network + usize::from(byte(header, network) & 0x0f) * 4;
        if base < network + ipv4::HEADER_LENGTH || base > end {
            return Err(SegmentError::Length { needed: ipv4::HEADER_LENGTH, got: base - network });
        }
        if base > header_bytes {
            return Err(SegmentError::Truncated { needed: base, got: header_bytes });
        }
        let mut carried = base.max(packet.header().len());
        if carried > header_bytes.min(end) {
            return Err(SegmentError::HeaderLength { needed: header_bytes.min(end), got: carried });
        }
        let size = mtu.saturating_sub(base - network) / 8 * 8;
        if let RxChecksum::Partial { start, offset } = packet.checksum() {
            let (start, offset) = (usize::from(start), usize::from(offset));
            if start < base {
                return Err(SegmentError::ChecksumPlace { needed: start, got: base });
            }
            carried = carried.max(start + offset + 2);
        }
        let least = (carried - base).max(8);
        if size < least {
            return Err(SegmentError::SegmentTooSmall { needed: base - network + least, got: mtu });
        }
        let body = end - base;
        // The last fragment's offset must fit its 13 bits, and what it ends at 65,535 (RFC 791).
        let first = usize::from(fragment & ipv4::FRAGMENT_OFFSET) * 8;
        let limit = usize::from(u16::MAX);
        if first + body + (base - network) > limit {
            return Err(SegmentError::SegmentTooLong { needed: first + body + (base - network), limit });
        }
        if let RxChecksum::Partial { start, offset } = packet.checksum() {
            self.fill_in(packet, header_bytes, carried, usize::from(start), usize::from(offset))?;
        }
        let position = start_of(packet, carried)?;
        let template = Template::ipv4_fragments(&self.scratch, network, found.pppoe, base, carried - base);
        let plan = Plan::new(base, size, body, MaxSegments::ANY)?;
        Ok(Job { template, plan, size, body, start: position, checksum: RxChecksum::None, passes: false })
    }

    /// Completes a partial checksum in the scratch, which holds `header_bytes`. Returns how many header bytes the segment must carry: those it
    /// has, or those up to the checksum.
    fn fill_in<P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        header_bytes: usize,
        carried: usize,
        start: usize,
        offset: usize,
    ) -> Result<usize, SegmentError> {
        let place = start + offset;
        let layout = wire::parse(&self.scratch[..header_bytes], packet.length(), packet.layer()).ok();
        let layout = layout.filter(|layout| usize::from(layout.transport) == start);
        // Padding is no part of what is summed; where the headers cannot be read, the packet's end is all there is.
        let end = layout.map_or(packet.length(), |layout| layout.end as usize);
        let reach = header_bytes.min(end);
        if place + 2 > reach {
            return Err(SegmentError::ChecksumPlace { needed: place + 2, got: reach });
        }
        let carried = carried.max(place + 2);
        if carried > reach {
            return Err(SegmentError::HeaderLength { needed: reach, got: carried });
        }
        let position = start_of(packet, carried)?;
        // Only where the payload has ranges of its own are known sums those of what lies there.
        let known = !packet.header().is_empty();
        let payload = sum_payload(packet, self.simd, position, end - carried, known);
        let sum = Sum::new(words(&self.scratch[start..carried]).fold()).add(at_offset(payload, carried - start));
        let protocol = match layout {
            Some(layout) => layout.protocol,
            None if offset == udp::CHECKSUM => Protocol::Udp,
            None => Protocol::Tcp,
        };
        put16(&mut self.scratch, place, transport_field(protocol, sum.checksum()));
        Ok(carried)
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
        let plan = Plan::new(template.base, size, body, limit)?;
        Ok(Job { template, plan, size, body, start, checksum, passes: false })
    }

    #[inline(always)]
    fn cut(&self, index: u32) -> Cut {
        let offset = index as usize * self.size;
        let last = index + 1 == self.plan.segments;
        let length = if last { self.body - offset } else { self.size };
        Cut { index, offset, length, last }
    }
}

impl Plan {
    fn new(base: usize, size: usize, body: usize, limit: MaxSegments) -> Result<Plan, SegmentError> {
        let needed = u32::try_from(body.div_ceil(size)).unwrap_or(u32::MAX).max(1);
        if needed > limit.get() {
            return Err(SegmentError::TooManySegments { needed, limit: limit.get() });
        }
        let last_length = base + (body - (needed as usize - 1) * size);
        Ok(Plan { segments: needed, segment_length: base + size.min(body), last_length })
    }
}

/// The place of the byte at `offset` of the packet, which must not lie in the packet's own header.
fn start_of<P: Segmentable + ?Sized>(packet: &P, offset: usize) -> Result<Position, SegmentError> {
    let got = packet.header().len();
    match offset.checked_sub(got) {
        Some(bytes) => Ok(Position::default().advance(packet, bytes)),
        None => Err(SegmentError::HeaderLength { needed: offset, got }),
    }
}

/// The sums that a header needs over the payload at a place.
#[inline(always)]
fn payload_sums<P: Segmentable + ?Sized>(packet: &P, simd: Simd, at: Position, length: usize, wanted: Wanted) -> PayloadSums {
    let mut sums = PayloadSums::default();
    if wanted.whole {
        sums.whole = sum_payload(packet, simd, at, length, true);
        sums.covered = sums.whole;
    }
    if let Some(covered) = wanted.covered {
        sums.covered = sum_payload(packet, simd, at, length.min(covered), true);
    }
    sums
}

/// The sum of payload, from sums that are `known` where they fit.
fn sum_payload<P: Segmentable + ?Sized>(packet: &P, simd: Simd, mut at: Position, length: usize, known: bool) -> u16 {
    let mut total = Sum::default();
    let mut offset = 0;
    while offset < length {
        let (sum, taken, next) = match known_sum(packet, at, length - offset) {
            Some(found) if known => found,
            _ => match step(packet, at, length - offset) {
                Some((taken, next)) => (simd.sum(bytes(packet, at, taken)), taken, next),
                None => break,
            },
        };
        total = Sum::new(total.fold()).add(at_offset(sum, offset));
        offset += taken;
        at = next;
    }
    total.fold()
}

/// Copies payload to `out` and sums it on the way, where a sum is wanted and not known. Moves `at` behind it.
#[inline(always)]
fn copy_payload<P: Segmentable + ?Sized>(packet: &P, simd: Simd, at: &mut Position, out: &mut [u8], wanted: Wanted) -> PayloadSums {
    let mut total = Sum::default();
    let mut filled = 0;
    // Up to here the sum is known, and bytes are only copied.
    let mut known_to = 0;
    while filled < out.len() {
        if wanted.whole
            && filled >= known_to
            && let Some((sum, span, _)) = known_sum(packet, *at, out.len() - filled)
        {
            total = Sum::new(total.fold()).add(at_offset(sum, filled));
            known_to = filled + span;
        }
        let Some((taken, next)) = step(packet, *at, out.len() - filled) else { break };
        let source = bytes(packet, *at, taken);
        let target = &mut out[filled..filled + taken];
        if source.len() == taken {
            if wanted.whole && filled >= known_to {
                total = Sum::new(total.fold()).add(at_offset(simd.copy_and_sum(source, target), filled));
            } else {
                target.copy_from_slice(source);
            }
        }
        filled += taken;
        *at = next;
    }
    let whole = total.fold();
    let covered = match wanted.covered {
        Some(covered) => simd.sum(&out[..covered.min(out.len())]),
        None => whole,
    };
    PayloadSums { whole, covered }
}
