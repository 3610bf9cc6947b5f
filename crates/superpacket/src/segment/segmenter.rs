//! The segmenter: one loop that patches a header template serves all kinds of segments.

use super::fragment::SCRATCH;
use super::output::{Portion, Segment, SegmentBuffers, SegmentPlan, WrittenSegment};
use super::payload::{Position, copy_payload, payload_sums};
use super::prepare::{Job, Preparation};
use super::template::{SegmentCut, WantedSums};
use super::{SegmentCounters, SegmentError, SegmentOptions, Segmentable};
use crate::wire::Layout;
use superpacket_simd::Simd;

/// Segments super-packets. Holds counters and the scratch memory in which headers are built;
/// allocates no memory.
///
/// ```
/// use superpacket::{Gso, GsoKind, GsoPacket, Layer, SegmentOptions, SegmentSize, Segmenter};
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
/// let packet = GsoPacket::linear(&packet, gso).with_layer(Layer::Ip);
/// let plan = Segmenter::new()
///     .segment(&packet, &SegmentOptions::default(), |segment| lengths.push(segment.length()))?;
/// assert_eq!(plan.segments, 3);
/// assert_eq!(lengths, [1028, 1028, 528]);
/// # Ok::<(), superpacket::SegmentError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Segmenter {
    counters: SegmentCounters,
    preparation: Preparation,
}

impl Default for Segmenter {
    fn default() -> Self {
        Self::new()
    }
}

impl Segmenter {
    /// Makes a segmenter that computes checksums with the machine's best level of SIMD.
    pub fn new() -> Self {
        Segmenter {
            counters: SegmentCounters::default(),
            preparation: Preparation::new(Simd::detect()),
        }
    }

    /// Returns the segmenter with another level of SIMD for its checksums.
    #[must_use]
    pub const fn with_simd(mut self, simd: Simd) -> Self {
        self.preparation.simd = simd;
        self
    }

    /// Returns the counters.
    #[inline]
    pub const fn counters(&self) -> &SegmentCounters {
        &self.counters
    }

    /// Returns the number of segments of a packet, and their lengths. Counters do not change.
    ///
    /// # Errors
    /// As [`segment`](Self::segment).
    pub fn plan<P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        options: &SegmentOptions,
    ) -> Result<SegmentPlan, SegmentError> {
        self.preparation.prepare(packet, options, None).map(|job| job.plan)
    }

    /// Segments a packet into header bytes and payload ranges. Payload is read only if a checksum
    /// needs it and its sum is not known.
    ///
    /// A packet without [`Gso`](super::Gso) passes whole as one segment, bit for bit. With
    /// [`ChecksumOutput::Full`](super::ChecksumOutput::Full), a partial checksum is completed.
    ///
    /// # Errors
    /// [`SegmentError`]; the sink was not called then.
    #[inline]
    pub fn segment<P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        options: &SegmentOptions,
        sink: impl FnMut(Segment<'_, P>),
    ) -> Result<SegmentPlan, SegmentError> {
        let job =
            self.preparation.prepare(packet, options, None).map_err(|error| self.refuse(error))?;
        Ok(self.gather_segments(packet, job, sink))
    }

    /// Segments as [`segment`](Self::segment) does, but writes each header into a buffer of the
    /// caller, where it stays: a slot of the device's header ring, an mbuf.
    ///
    /// `headers` provides a buffer for each header; all bytes of it may be overwritten. The sink
    /// receives each segment; [`SegmentBuffers::written`] is not called.
    ///
    /// # Errors
    /// [`SegmentError`]; the sink was not called then, unless `headers` accepted the plan
    /// but had too few buffers.
    #[inline]
    pub fn segment_with_headers<P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        options: &SegmentOptions,
        headers: &mut (impl SegmentBuffers + ?Sized),
        mut sink: impl FnMut(Segment<'_, P>),
    ) -> Result<SegmentPlan, SegmentError> {
        let mut job =
            self.preparation.prepare(packet, options, None).map_err(|error| self.refuse(error))?;
        headers.prepare(&job.plan).map_err(|error| self.refuse(error))?;
        let mut position = job.start;
        for index in 0..job.plan.segments {
            let cut = job.cut(index);
            let needed = job.template.header_length(cut);
            let buffer = headers.buffer(needed).unwrap_or(&mut []);
            let got = buffer.len();
            if got < needed {
                self.count_incomplete(&job, cut, index);
                return Err(self.refuse(SegmentError::OutputTooSmall { needed, got }));
            }
            let length = job.template.payload_length(cut);
            let sums =
                payload_sums(packet, self.preparation.simd, position, length, job.template.wanted);
            job.template.adapt_to(&mut self.preparation.scratch, cut);
            put_header(buffer, &self.preparation.scratch, needed);
            job.template.patch::<false>(buffer, cut, sums);
            sink(Segment {
                header: &buffer[..needed],
                packet,
                position,
                length,
                index,
                last: cut.last,
                checksum: job.checksum,
            });
            position = position.advance(packet, length);
        }
        self.counters.segments += u64::from(job.plan.segments);
        self.counters.payload_out += (job.body - job.template.extra) as u64;
        self.count(&job);
        Ok(job.plan)
    }

    /// Segments a packet into buffers, to which payload is copied and summed in one pass.
    ///
    /// # Errors
    /// [`SegmentError`]; no segment was written then, unless `buffers` accepted the plan
    /// but had too few buffers. [`SegmentCounters`] says how that is counted.
    #[inline]
    pub fn segment_linear<P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        options: &SegmentOptions,
        buffers: &mut (impl SegmentBuffers + ?Sized),
    ) -> Result<SegmentPlan, SegmentError> {
        self.segment_known(packet, options, None, buffers)
    }

    /// Segments as [`segment_linear`](Self::segment_linear) does. `known` is the layout of the
    /// packet's headers, if the caller has parsed them.
    #[inline]
    pub(crate) fn segment_known<P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        options: &SegmentOptions,
        known: Option<&Layout>,
        buffers: &mut (impl SegmentBuffers + ?Sized),
    ) -> Result<SegmentPlan, SegmentError> {
        let job =
            self.preparation.prepare(packet, options, known).map_err(|error| self.refuse(error))?;
        self.write_segments(packet, job, buffers)
    }

    /// Segments as [`segment_linear`](Self::segment_linear) does, but writes only as many segments
    /// as the buffers hold, from number `first` on. It is 0 in a packet's first call, and the
    /// number of segments written so far in later calls. The calls for a packet must not be
    /// interleaved with calls for others.
    ///
    /// ```
    /// use superpacket::segment::{BackToBack, GsoPacket, SegmentOptions, Segmenter};
    /// use superpacket::{Gso, GsoKind, Layer, SegmentSize};
    ///
    /// # let mut packet = vec![0u8; 28 + 2500];
    /// # packet[0] = 0x45;
    /// # packet[2..4].copy_from_slice(&2528u16.to_be_bytes());
    /// # packet[9] = 17;
    /// # packet[24..26].copy_from_slice(&2508u16.to_be_bytes());
    /// # let gso = Gso::new(GsoKind::Udp, SegmentSize::new(1000).expect("not zero"));
    /// // Three segments, and room for two.
    /// let packet = GsoPacket::linear(&packet, gso).with_layer(Layer::Ip);
    /// let (mut segmenter, mut room) = (Segmenter::new(), [0; 2500]);
    /// let mut done = 0;
    /// loop {
    ///     let buffers = &mut BackToBack::new(&mut room);
    ///     let portion = segmenter.segment_portion(&packet, &SegmentOptions::default(), done, buffers)?;
    ///     done += portion.plan.segments;
    ///     if portion.left == 0 {
    ///         break;
    ///     }
    /// }
    /// assert_eq!(done, 3);
    /// # Ok::<(), superpacket::SegmentError>(())
    /// ```
    ///
    /// # Errors
    /// [`SegmentError`]; no segment was written then. Buffers that hold no segment are an
    /// error; the next call may have others.
    #[inline]
    pub fn segment_portion<P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        options: &SegmentOptions,
        first: u32,
        buffers: &mut (impl SegmentBuffers + ?Sized),
    ) -> Result<Portion, SegmentError> {
        self.portion_known(packet, options, None, first, buffers)
    }

    /// Segments as [`segment_portion`](Self::segment_portion) does. `known` is the layout of the
    /// packet's headers, if the caller has parsed them.
    #[inline]
    pub(crate) fn portion_known<P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        options: &SegmentOptions,
        known: Option<&Layout>,
        first: u32,
        buffers: &mut (impl SegmentBuffers + ?Sized),
    ) -> Result<Portion, SegmentError> {
        self.preparation.fragment_ids.repeat(first != 0);
        let job = self.preparation.prepare(packet, options, known);
        self.preparation.fragment_ids.repeat(false);
        let job = job.map_err(|error| self.refuse(error))?;
        self.write_portion(packet, job, first, buffers)
    }

    /// Fragments a packet into fragments of at most `mtu` bytes from the outermost IP header on.
    /// The packet may have any content (RFC 791, section 3.2; RFC 8200, section 4.5). A packet that
    /// fits passes whole. A fragment may be fragmented again.
    ///
    /// `ipv6_id` is the identification of IPv6 fragments, which the caller must not repeat. Only
    /// their source may fragment IPv6 packets. A forwarder passes `None`, and they are refused.
    ///
    /// A partial checksum is completed first. IPv4 options without the copied flag are replaced by
    /// no-operations from the second fragment on. An IPv6 packet gets a fragment header behind its
    /// hop-by-hop and routing headers, unless it has one.
    ///
    /// # Errors
    /// [`SegmentError::DontFragment`] if the packet is too long and has the don't-fragment
    /// bit, or is IPv6 without `ipv6_id`; other errors if it is malformed. The sink was not called
    /// then.
    pub fn fragment<P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        mtu: usize,
        ipv6_id: Option<u32>,
        sink: impl FnMut(Segment<'_, P>),
    ) -> Result<SegmentPlan, SegmentError> {
        let job =
            self.preparation.fragments(packet, mtu, ipv6_id).map_err(|error| self.refuse(error))?;
        Ok(self.gather_segments(packet, job, sink))
    }

    /// Fragments as [`fragment`](Self::fragment) does, and writes the fragments into buffers.
    ///
    /// # Errors
    /// As [`fragment`](Self::fragment) and [`segment_linear`](Self::segment_linear).
    pub fn fragment_linear<P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        mtu: usize,
        ipv6_id: Option<u32>,
        buffers: &mut (impl SegmentBuffers + ?Sized),
    ) -> Result<SegmentPlan, SegmentError> {
        let job =
            self.preparation.fragments(packet, mtu, ipv6_id).map_err(|error| self.refuse(error))?;
        self.write_segments(packet, job, buffers)
    }

    /// Fragments as [`fragment_linear`](Self::fragment_linear) does, but writes only as many
    /// fragments as the buffers hold, as [`segment_portion`](Self::segment_portion) does. `ipv6_id`
    /// must be the same in all calls for a packet.
    ///
    /// # Errors
    /// As [`fragment`](Self::fragment) and [`segment_portion`](Self::segment_portion).
    pub fn fragment_portion<P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        mtu: usize,
        ipv6_id: Option<u32>,
        first: u32,
        buffers: &mut (impl SegmentBuffers + ?Sized),
    ) -> Result<Portion, SegmentError> {
        let job =
            self.preparation.fragments(packet, mtu, ipv6_id).map_err(|error| self.refuse(error))?;
        self.write_portion(packet, job, first, buffers)
    }

    #[cold]
    fn refuse(&mut self, error: SegmentError) -> SegmentError {
        self.counters.packets += 1;
        self.counters.errors[error.number()] += 1;
        error
    }

    /// Counts a packet after all its segments were delivered.
    #[inline]
    fn count(&mut self, job: &Job) {
        self.counters.packets += 1;
        *(if job.passes { &mut self.counters.passed } else { &mut self.counters.cut }) += 1;
        self.counters.payload_in += (job.body - job.template.extra) as u64;
    }

    /// Counts the part that was written of a refused packet: `segments` segments, until the buffers
    /// were too small.
    #[cold]
    fn count_incomplete(&mut self, job: &Job, cut: SegmentCut, segments: u32) {
        let taken = job.payload_before(cut) as u64;
        self.counters.segments += u64::from(segments);
        self.counters.payload_in += taken;
        self.counters.payload_out += taken;
    }

    #[inline]
    fn gather_segments<P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        mut job: Job,
        mut sink: impl FnMut(Segment<'_, P>),
    ) -> SegmentPlan {
        self.count(&job);
        let mut position = job.start;
        let mut payload_out = 0;
        for index in 0..job.plan.segments {
            let cut = job.cut(index);
            let length = job.template.payload_length(cut);
            let sums =
                payload_sums(packet, self.preparation.simd, position, length, job.template.wanted);
            job.template.adapt_to(&mut self.preparation.scratch, cut);
            job.template.patch::<false>(&mut self.preparation.scratch, cut, sums);
            let header = &self.preparation.scratch[..job.template.header_length(cut)];
            sink(Segment {
                header,
                packet,
                position,
                length,
                index,
                last: cut.last,
                checksum: job.checksum,
            });
            position = position.advance(packet, length);
            payload_out += length as u64;
        }
        self.counters.segments += u64::from(job.plan.segments);
        self.counters.payload_out += payload_out;
        job.plan
    }

    #[inline]
    fn write_segments<P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        job: Job,
        buffers: &mut (impl SegmentBuffers + ?Sized),
    ) -> Result<SegmentPlan, SegmentError> {
        buffers.prepare(&job.plan).map_err(|error| self.refuse(error))?;
        let plan = job.plan;
        // Compiled separately for the most frequent super-packets.
        if job.template.is_usual() {
            self.write_segments_as::<true, false, P>(packet, job, 0, buffers)?;
        } else {
            self.write_segments_as::<false, false, P>(packet, job, 0, buffers)?;
        }
        Ok(plan)
    }

    #[inline]
    fn write_portion<P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        job: Job,
        first: u32,
        buffers: &mut (impl SegmentBuffers + ?Sized),
    ) -> Result<Portion, SegmentError> {
        let whole = job.plan;
        let Some(count) = whole.segments.checked_sub(first).filter(|&count| count != 0) else {
            return Err(self.refuse(SegmentError::TooManySegments {
                needed: first.saturating_add(1),
                limit: whole.segments,
            }));
        };
        let offered = whole.portion(first, count);
        if let Err(error) = buffers.prepare(&offered) {
            let fitting = offered.that_fit(&error);
            if fitting == 0 {
                return Err(self.refuse(error));
            }
            buffers.prepare(&whole.portion(first, fitting)).map_err(|error| self.refuse(error))?;
        }
        let done = if job.template.is_usual() {
            self.write_segments_as::<true, true, P>(packet, job, first, buffers)?
        } else {
            self.write_segments_as::<false, true, P>(packet, job, first, buffers)?
        };
        Ok(Portion { plan: whole.portion(first, done - first), left: whole.segments - done })
    }

    /// Counts the segments of a portion, and their payload in bytes, when the buffers are full
    /// before the packet is complete.
    #[cold]
    fn count_portion(&mut self, segments: u32, payload: usize) {
        self.counters.segments += u64::from(segments);
        self.counters.payload_in += payload as u64;
        self.counters.payload_out += payload as u64;
    }

    /// Moves to segment `first`: returns the start of its payload.
    #[cold]
    fn skip<P: Segmentable + ?Sized>(&mut self, packet: &P, job: &mut Job, first: u32) -> Position {
        // The first and the second segment change the template for all later ones.
        for index in 0..first.min(2) {
            job.template.adapt_to(&mut self.preparation.scratch, job.cut(index));
        }
        job.start.advance(packet, job.payload_up_to(first))
    }

    /// Writes the segments of a packet from number `first` on, and returns how many of its segments
    /// are written so far. Only if `PORTION` is set may `first` be more than 0, and may the buffers
    /// be too few for all segments.
    #[inline(always)]
    fn write_segments_as<const USUAL: bool, const PORTION: bool, P: Segmentable + ?Sized>(
        &mut self,
        packet: &P,
        mut job: Job,
        first: u32,
        buffers: &mut (impl SegmentBuffers + ?Sized),
    ) -> Result<u32, SegmentError> {
        let mut position = job.start;
        if PORTION && first != 0 {
            position = self.skip(packet, &mut job, first);
        }
        let before = if PORTION { job.payload_up_to(first) } else { 0 };
        for index in first..job.plan.segments {
            let cut = job.cut(index);
            let header_length = job.template.header_length(cut);
            let payload = job.template.payload_length(cut);
            let length = header_length + payload;
            let buffer = buffers.buffer(length).unwrap_or(&mut []);
            let got = buffer.len();
            let Some(segment) = buffer.get_mut(..length) else {
                if PORTION && index > first {
                    self.count_portion(index - first, job.payload_before(cut) - before);
                    return Ok(index);
                }
                self.count_incomplete(&job, cut, index);
                return Err(self.refuse(SegmentError::OutputTooSmall { needed: length, got }));
            };
            job.template.adapt_to(&mut self.preparation.scratch, cut);
            // Patched in the buffer: copying bytes that were just patched would stall on each
            // of these short writes.
            put_header(segment, &self.preparation.scratch, header_length);
            let (header, body) = segment.split_at_mut(header_length);
            let wanted = if USUAL { WantedSums::WHOLE } else { job.template.wanted };
            let (sums, next) = copy_payload(packet, self.preparation.simd, position, body, wanted);
            position = next;
            job.template.patch::<USUAL>(header, cut, sums);
            buffers.written(WrittenSegment {
                index,
                length,
                last: cut.last,
                checksum: job.checksum,
            });
        }
        self.counters.segments += u64::from(job.plan.segments - first);
        self.counters.payload_out += (job.body - job.template.extra - before) as u64;
        self.count(&job);
        // Earlier portions have counted their payload.
        self.counters.payload_in -= before as u64;
        Ok(job.plan.segments)
    }
}

/// Copies the first `length` bytes of the scratch to a segment that is at least as long. Later
/// bytes may be overwritten, since a copy of constant length is fast.
#[inline(always)]
fn put_header(segment: &mut [u8], scratch: &[u8; SCRATCH], length: usize) {
    const USUAL: usize = 96;
    match (segment.first_chunk_mut::<USUAL>(), scratch.first_chunk::<USUAL>()) {
        (Some(place), Some(scratch)) if length <= USUAL => *place = *scratch,
        _ => put_unusual_header(segment, scratch, length),
    }
}

// Not inlined: otherwise the compiler would merge both copies into one of variable length.
#[inline(never)]
fn put_unusual_header(segment: &mut [u8], scratch: &[u8; SCRATCH], length: usize) {
    segment[..length].copy_from_slice(&scratch[..length]);
}
