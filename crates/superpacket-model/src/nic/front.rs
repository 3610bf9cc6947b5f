//! The receiving side of the card: copies frames from the wire into buffers, and puts them into the
//! ring of a queue.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use superpacket::Simd;
use superpacket::checksum::{Sum, at_offset, sum_ranges, transport_field, words};
use superpacket::packet::{FlowHash, Layer, RxChecksum, RxPacket};
use superpacket::segment::{ChecksumOutput, Gso, SegmentOptions, Segmentable, Segmenter};
use superpacket::wire::{Layout, MAX_HEADER, ethernet, parse};
use superpacket_port::{Buffer, PortError, Receive};
use superpacket_steer::{FlowTuple, Toeplitz};

use super::arrival::{ArrivedFrame, is_plain};
use super::checksum::{FrameSums, covers_all, transport_sum, verify};
use super::counters::{NicCounters, NicMonitor};
use super::pages::Pages;
use super::settings::{NicSettings, Padding, RingFull, RxSums};

/// Maximum packets per poll of the wrapped port. Each of them may be a super-packet of about 45
/// frames.
const POLL_BATCH: usize = 64;

/// Maximum number of packets that one call of `pump` takes from the wrapped port, so that the call
/// ends under any load.
const MAX_PER_PUMP: usize = 1 << 16;

/// The receiving side of a card, shared by the receivers of all queues.
#[derive(Debug)]
pub(super) struct Front {
    inner: Vec<Box<dyn Receive>>,
    /// Index in `inner` of the receiver that is polled next.
    next_receiver: usize,
    /// Packets received from the wrapped port and not yet processed.
    waiting: VecDeque<RxPacket<Buffer>>,
    /// Buffer for the packets of one poll of the wrapped port; empty between polls.
    polled: Vec<RxPacket<Buffer>>,
    segmenter: Segmenter,
    device: NicDevice,
    monitor: NicMonitor,
}

/// The part of the receiving side that processes frames one at a time: settings, memory, rings and
/// counters.
#[derive(Debug)]
struct NicDevice {
    settings: NicSettings,
    /// Maximum length in bytes of an IP packet that the card receives.
    longest: usize,
    simd: Simd,
    toeplitz: Toeplitz,
    indirection: [u16; NicSettings::INDIRECTION],
    pages: Pages,
    queues: Vec<NicRing>,
    counters: NicCounters,
}

/// The received frames of a queue that the user has not polled yet.
#[derive(Debug)]
struct NicRing {
    frames: VecDeque<RxPacket<Buffer>>,
    /// Eventfd that is readable while this ring holds frames, or while packets of the wrapped port
    /// wait inside the card. The wrapped port's own descriptor does not signal these.
    event: OwnedFd,
    /// Whether `event` is readable.
    signalled: bool,
}

impl NicRing {
    /// Sets whether the eventfd is readable.
    fn signal(&mut self, readable: bool) {
        if self.signalled == readable {
            return;
        }
        self.signalled = readable;
        // Neither call can fail: the counter is at most 1, and it is read only while it is 1.
        if readable {
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        } else {
            let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
        }
    }
}

/// Metadata with which a frame is delivered.
struct FrameMeta {
    time: u64,
    /// Segmentation metadata of a super-packet that is delivered unsegmented.
    gso: Option<Gso>,
    /// `Partial` if the packet is delivered with a partial checksum, else `None`.
    checksum: RxChecksum,
    /// Whether the card computed the checksums itself, so that they need no verification.
    computed: bool,
    /// Whether the checksum is filled in while the frame is copied. The checksum field holds the
    /// sum of the pseudo-header until then.
    fill: bool,
}

impl Front {
    /// Creates the receiving side; `None` if its buffers take too much memory. `longest` is the
    /// maximum length of an IP packet in bytes; `events` has an eventfd per queue.
    pub(super) fn new(
        settings: &NicSettings,
        longest: usize,
        inner: Vec<Box<dyn Receive>>,
        events: Vec<OwnedFd>,
        monitor: NicMonitor,
    ) -> Option<Self> {
        let simd = Simd::detect();
        let toeplitz = Toeplitz::new(&settings.key);
        let queues = settings.queues;
        let indirection =
            settings.indirection.unwrap_or_else(|| std::array::from_fn(|entry| entry as u16));
        let device = NicDevice {
            settings: *settings,
            longest,
            simd,
            toeplitz: if settings.symmetric { toeplitz.symmetric() } else { toeplitz },
            indirection: indirection.map(|queue| queue % queues),
            pages: Pages::new(settings, longest)?,
            queues: events
                .into_iter()
                .map(|event| NicRing { frames: VecDeque::new(), event, signalled: false })
                .collect(),
            counters: NicCounters::default(),
        };
        Some(Front {
            inner,
            next_receiver: 0,
            waiting: VecDeque::new(),
            polled: Vec::new(),
            segmenter: Segmenter::new().with_simd(simd),
            device,
            monitor,
        })
    }

    /// Appends up to `limit` frames of a queue to `packets`, and returns their number.
    ///
    /// # Errors
    /// An error of the wrapped port, if no frame was there.
    pub(super) fn poll(
        &mut self,
        queue: usize,
        packets: &mut Vec<RxPacket<Buffer>>,
        limit: usize,
    ) -> Result<usize, PortError> {
        self.device.pages.rewind();
        let mut count = 0;
        let mut result = Ok(());
        loop {
            let ring = &mut self.device.queues[queue].frames;
            let ready = ring.len().min(limit - count);
            packets.extend(ring.drain(..ready));
            count += ready;
            if count == limit || result.is_err() {
                break;
            }
            let pumped = self.pump();
            // The frames have been copied, so the wrapped port's buffers are free again.
            self.give_back();
            match pumped {
                Ok(0) => break,
                // All frames went to other queues; their eventfds are set below.
                Ok(_) if self.device.queues[queue].frames.is_empty() => break,
                Ok(_) => {}
                Err(error) => result = Err(error),
            }
        }
        let waiting = !self.waiting.is_empty();
        for ring in &mut self.device.queues {
            let readable = waiting || !ring.frames.is_empty();
            ring.signal(readable);
        }
        let counters = std::mem::take(&mut self.device.counters);
        self.monitor.count(|sum| sum.add_received(&counters, self.device.pages.begun));
        match result {
            Err(error) if count == 0 => Err(error),
            _ => Ok(count),
        }
    }

    /// Moves packets from the wrapped port into the rings, and returns their number. With
    /// [`RingFull::Drop`] it takes all available packets, with [`RingFull::Wait`] one batch.
    fn pump(&mut self) -> Result<usize, PortError> {
        let mut count = 0;
        let mut idle_receivers = 0;
        while idle_receivers < self.inner.len() && count < MAX_PER_PUMP {
            if self.waiting.is_empty() {
                let receivers = self.inner.len();
                let result = self.inner[self.next_receiver].poll(&mut self.polled, POLL_BATCH);
                self.next_receiver = (self.next_receiver + 1) % receivers;
                self.waiting.extend(self.polled.drain(..));
                match result {
                    Ok(0) => {
                        idle_receivers += 1;
                        continue;
                    }
                    Ok(_) => idle_receivers = 0,
                    Err(error) if count == 0 => return Err(error),
                    Err(_) => return Ok(count),
                }
            }
            while let Some(packet) = self.waiting.front() {
                if self.device.settings.full == RingFull::Wait && self.device.is_full() {
                    return Ok(count);
                }
                let plain = is_plain(packet) || !self.device.settings.wire;
                let Some(packet) = self.waiting.pop_front() else { break };
                if plain {
                    self.device.deliver_unchanged(&packet)
                } else if !self.device.deliver_filled(&packet) {
                    self.device.deliver_segments(&packet, &mut self.segmenter)
                }
                count += 1;
            }
            if count != 0 && self.device.settings.full == RingFull::Wait {
                // One batch at a time: packets that are not polled stay in the wrapped port.
                break;
            }
        }
        Ok(count)
    }

    /// Tells the wrapped port that buffers lent from its memory have been dropped.
    pub(super) fn give_back(&mut self) {
        self.inner.iter_mut().for_each(|receive| receive.give_back());
    }

    pub(super) fn is_crowded(&self) -> bool {
        self.device.pages.is_crowded() || self.inner.iter().any(|receive| receive.is_crowded())
    }
}

impl NicDevice {
    /// Returns whether any ring is full. All rings are checked, because the queue of the next
    /// packet is unknown until the packet is parsed.
    fn is_full(&self) -> bool {
        self.queues.iter().any(|ring| ring.frames.len() >= self.settings.ring)
    }

    /// Delivers a packet as one frame, without segmentation and without filling in its checksum.
    fn deliver_unchanged(&mut self, packet: &RxPacket<Buffer>) {
        let checksum = match packet.checksum {
            partial @ RxChecksum::Partial { .. } => partial,
            // The card verifies checksums itself.
            _ => RxChecksum::None,
        };
        let meta = FrameMeta {
            time: packet.time,
            gso: packet.gso(),
            checksum,
            computed: false,
            fill: false,
        };
        self.deliver(
            ArrivedFrame::new(
                packet.buffers().map(Buffer::bytes),
                packet.length(),
                packet.vlan,
                &self.settings,
            ),
            &meta,
        );
    }

    /// Delivers a frame with a partial checksum, which is filled in during the copy. Returns
    /// `false`, and delivers no frame, if the packet has no partial checksum or is not simple
    /// enough. The caller then uses [`deliver_segments`](Self::deliver_segments).
    fn deliver_filled(&mut self, packet: &RxPacket<Buffer>) -> bool {
        let RxChecksum::Partial { start, offset } = packet.checksum else { return false };
        let (length, first) =
            (packet.length(), packet.buffers().next().map_or(&[][..], Buffer::bytes));
        let head = &first[..first.len().min(MAX_HEADER)];
        // This path is for plain frames that are exactly as long as their headers say: the checksum
        // covers everything after `start`.
        let simple =
            packet.gso.is_none() && packet.vlan.is_none() && self.settings.padding == Padding::Off;
        if !simple || self.settings.sums != RxSums::Verified {
            return false;
        }
        let Ok(layout) = parse(head, length, Layer::Ethernet) else { return false };
        let matches_headers =
            start == layout.transport && offset == layout.protocol.checksum_offset();
        if !matches_headers
            || layout.end as usize != length
            || layout.outer.is_some()
            || layout.refusal.is_some()
            || !covers_all(head, &layout)
        {
            return false;
        }
        let field = usize::from(layout.checksum());
        // With a wrong pseudo-header sum, the filled checksum would be wrong, and the card has to
        // report that. `deliver_segments` does so.
        if head.get(field..field + 2) != Some(&(!transport_sum(head, &layout)).to_be_bytes()) {
            return false;
        }
        self.counters.rx_filled += 1;
        let meta = FrameMeta {
            time: packet.time,
            gso: None,
            checksum: RxChecksum::None,
            computed: true,
            fill: true,
        };
        self.deliver(
            ArrivedFrame::new(packet.buffers().map(Buffer::bytes), length, None, &self.settings),
            &meta,
        );
        true
    }

    /// Segments a super-packet, or fills in a partial checksum, and delivers the resulting frames.
    fn deliver_segments(&mut self, packet: &RxPacket<Buffer>, segmenter: &mut Segmenter) {
        let options = SegmentOptions::default().with_checksum(ChecksumOutput::Full);
        // A packet that is not segmented carries its sender's pseudo-header sum, which may be
        // wrong.
        let meta = FrameMeta {
            time: packet.time,
            gso: None,
            checksum: RxChecksum::None,
            computed: packet.gso.is_some(),
            fill: false,
        };
        let cut = segmenter.segment(packet, &options, |segment| {
            self.counters.rx_filled += 1;
            let slices = std::iter::once(segment.header()).chain(segment.payload());
            self.deliver(
                ArrivedFrame::new(slices, segment.length(), packet.vlan, &self.settings),
                &meta,
            );
        });
        match cut {
            Ok(_) => self.counters.rx_cut += u64::from(packet.gso.is_some()),
            Err(_) => self.counters.rx_malformed += 1,
        }
    }

    /// Copies an arrived frame into buffers and puts it into the ring of its queue, or drops and
    /// counts it.
    fn deliver<'a, I: Iterator<Item = &'a [u8]>>(
        &mut self,
        mut arrival: ArrivedFrame<'a, I>,
        meta: &FrameMeta,
    ) {
        let counters = &mut self.counters;
        counters.rx_frames += 1;
        counters.rx_bytes += arrival.wire_length as u64;
        counters.rx_padded += u64::from(arrival.padded);
        counters.rx_stripped += u64::from(arrival.stripped);
        let length = arrival.length;
        if length == 0 || arrival.above_link() > self.longest {
            counters.rx_too_long += 1;
            return;
        }
        let passes = meta.gso.is_some() || meta.checksum != RxChecksum::None;
        let sums = if passes { RxSums::None } else { self.settings.sums };
        let steers = self.settings.hash || self.settings.queues > 1;
        let (mut layout, mut hash) = (None, None);
        if steers || sums == RxSums::Verified || (sums == RxSums::Complete && meta.computed) {
            counters.rx_parsed += 1;
            layout = parse(arrival.head(), length, Layer::Ethernet).ok();
            if steers {
                hash = flow_hash(&self.toeplitz, arrival.head(), length, layout.as_ref());
            }
        }
        let queue =
            hash.map_or(0, |hash| self.indirection[hash.0 as usize % NicSettings::INDIRECTION]);
        let ring = &mut self.queues[usize::from(queue)].frames;
        if self.settings.full == RingFull::Drop && ring.len() >= self.settings.ring {
            counters.rx_ring_drops += 1;
            return;
        }
        let Some(buffers) = self.pages.find(length) else {
            counters.rx_no_buffer += 1;
            return;
        };
        // A checksum that the card computed itself gives the payload's sum without reading it.
        let computed_layout = layout.filter(|layout| {
            meta.computed && layout.refusal.is_none() && covers_all(arrival.head(), layout)
        });
        let summing = meta.fill
            || computed_layout.is_none()
                && (sums == RxSums::Complete || (sums == RxSums::Verified && layout.is_some()));
        let total = copy(&mut self.pages, &mut arrival, summing.then_some(self.simd));
        if meta.fill
            && let Some(layout) = &computed_layout
        {
            fill_checksum(&mut self.pages, arrival.head(), layout, total);
        }

        let mut lent = self.pages.lend();
        let Some(first) = lent.next() else { return };
        let mut packet = RxPacket::new(first);
        // `find` never returns more buffers than a packet may have.
        lent.for_each(|buffer| drop(packet.push(buffer)));
        counters.rx_delivered += 1;
        counters.rx_buffers += buffers as u64;
        counters.rx_copied += length as u64;
        packet.time = meta.time;
        packet.hash = hash.filter(|_| self.settings.hash);
        packet.vlan = arrival.vlan;
        packet.queue = queue;
        packet.checksum = meta.checksum;

        let head = arrival.head();
        let end = layout.map_or(length, |layout| layout.end as usize);
        let tail = if end < length {
            at_offset(tail_sum(&packet, end, self.simd), end - ethernet::HEADER_LENGTH)
        } else {
            0
        };
        let sum = match &computed_layout {
            Some(layout) => computed_sum(head, layout),
            None => total
                .subtract(words(&head[..head.len().min(ethernet::HEADER_LENGTH)]).fold())
                .subtract(tail),
        };
        match (sums, &layout) {
            (RxSums::Complete, _) => {
                counters.sums_complete += 1;
                packet.checksum = RxChecksum::Complete(sum.add(tail).fold());
            }
            (RxSums::Verified, Some(layout)) => {
                let verdict = verify(&FrameSums { head, packet: sum.fold() }, layout);
                counters.sums_verified += u64::from(verdict.right);
                counters.sums_wrong += u64::from(verdict.wrong);
                packet.checksum = verdict.checksum;
            }
            (RxSums::None | RxSums::Verified, _) => {}
        }
        let packet = match meta.gso {
            Some(gso) => packet.with_gso(gso),
            None => packet,
        };
        ring.push_back(packet);
    }
}

/// Returns the hash of the frame's flow; `None` if the frame has no IP header. `layout` is the
/// parsed header, if it could be parsed.
#[inline(always)]
fn flow_hash(
    toeplitz: &Toeplitz,
    head: &[u8],
    length: usize,
    layout: Option<&Layout>,
) -> Option<FlowHash> {
    let tuple = match layout {
        Some(layout) => Some(FlowTuple::from_layout(head, layout)),
        None => FlowTuple::innermost(head, length, Layer::Ethernet),
    };
    tuple.map(|tuple| toeplitz.hash_flow(&tuple))
}

/// Writes the transport checksum of the frame that was copied last. `total` is the sum of the
/// frame's bytes, in which the checksum field holds the pseudo-header's sum.
#[inline(always)]
fn fill_checksum(pages: &mut Pages, head: &[u8], layout: &Layout, total: Sum) {
    let transport = usize::from(layout.transport);
    let before = words(head.get(..transport).unwrap_or(&[])).fold();
    let sum = Sum::new(at_offset(total.subtract(before).fold(), transport));
    pages.overwrite(
        usize::from(layout.checksum()),
        transport_field(layout.protocol, sum.checksum()).to_be_bytes(),
    );
}

/// Returns the one's complement sum of the bytes after the Ethernet header, for a frame whose
/// transport checksum is correct. Does not read the payload.
#[inline(always)]
fn computed_sum(head: &[u8], layout: &Layout) -> Sum {
    let transport = usize::from(layout.transport);
    let before = words(head.get(ethernet::HEADER_LENGTH..transport).unwrap_or(&[]));
    before.add(at_offset(transport_sum(head, layout), transport - ethernet::HEADER_LENGTH))
}

/// Copies a frame into the memory that [`Pages::find`] found for it. Returns the one's complement
/// sum of the frame's bytes if `simd` is given, otherwise zero.
fn copy<'a, I: Iterator<Item = &'a [u8]>>(
    pages: &mut Pages,
    arrival: &mut ArrivedFrame<'a, I>,
    simd: Option<Simd>,
) -> Sum {
    let mut source = arrival.slices();
    let mut current: &[u8] = &[];
    let (mut offset, mut total) = (0, Sum::default());
    pages.fill(|mut target| {
        while !target.is_empty() {
            if current.is_empty() {
                match source.next() {
                    Some(slice) => current = slice,
                    None => return target.fill(0),
                }
            }
            let (now, later) = current.split_at(current.len().min(target.len()));
            let (part, rest) = target.split_at_mut(now.len());
            match simd {
                Some(simd) => total = total.add(at_offset(simd.copy_and_sum(now, part), offset)),
                None => part.copy_from_slice(now),
            }
            offset += now.len();
            (current, target) = (later, rest);
        }
    });
    total
}

/// Returns the one's complement sum of a packet's bytes from offset `from` to the end, as if `from`
/// were even.
fn tail_sum(packet: &RxPacket<Buffer>, from: usize, simd: Simd) -> u16 {
    let mut skip = from;
    sum_ranges(
        simd,
        packet.buffers().map(|buffer| {
            let bytes = buffer.bytes();
            let skipped = skip.min(bytes.len());
            skip -= skipped;
            &bytes[skipped..]
        }),
    )
}
