//! The receiving side of the card: from the wire into buffers, and into the ring of a queue.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use superpacket::Simd;
use superpacket::checksum::{Sum, at_offset, sum_ranges, transport_field, words};
use superpacket::packet::{Layer, RxChecksum, RxPacket};
use superpacket::segment::{ChecksumOutput, Gso, SegmentOptions, Segmentable, Segmenter};
use superpacket::wire::{MAX_HEADER, ethernet, parse};
use superpacket_port::{Buffer, PortError, Receive};
use superpacket_steer::{FlowTuple, Toeplitz};

use super::arrival::{Arrival, is_plain};
use super::checksum::{Sums, covers_all, transport_sum, verify};
use super::counters::{NicCounters, NicMonitor};
use super::pages::Pages;
use super::settings::{NicSettings, Padding, RingFull, RxSums};

/// How many packets of the wrapped port are taken at a time: as many may be super-packets of some
/// 45 frames.
const TAKEN: usize = 64;

/// The most packets of the wrapped port that are let in before their frames are handed out.
const MOST: usize = 1 << 16;

/// The receiving side: one for all queues.
#[derive(Debug)]
pub(super) struct Front {
    inner: Vec<Box<dyn Receive>>,
    /// The receiver to be asked next.
    turn: usize,
    /// Taken from the wrapped port, and not yet looked at.
    waiting: VecDeque<RxPacket<Buffer>>,
    taken: Vec<RxPacket<Buffer>>,
    segmenter: Segmenter,
    device: Device,
    monitor: NicMonitor,
}

/// What happens to one frame.
#[derive(Debug)]
struct Device {
    settings: NicSettings,
    /// The longest IP packet in bytes.
    longest: usize,
    simd: Simd,
    toeplitz: Toeplitz,
    indirection: [u16; NicSettings::INDIRECTION],
    pages: Pages,
    queues: Vec<Ring>,
    counters: NicCounters,
}

/// The frames of a queue that have not been polled.
#[derive(Debug)]
struct Ring {
    frames: VecDeque<RxPacket<Buffer>>,
    /// Readable while frames are there that the wrapped port does not tell of.
    event: OwnedFd,
    signalled: bool,
}

impl Ring {
    fn signal(&mut self, readable: bool) {
        if self.signalled == readable {
            return;
        }
        self.signalled = readable;
        // Neither can fail: the counter never holds more than 1, and is read only when it does.
        if readable {
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        } else {
            let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
        }
    }
}

/// What is known of a frame besides its bytes.
struct Known {
    time: u64,
    /// How it is to be cut, and that its checksum is partial: of packets that pass whole.
    gso: Option<Gso>,
    checksum: RxChecksum,
    /// Its checksums were computed here, so they are right.
    computed: bool,
    /// Its checksum is computed as it is copied: what stands in its place is the sum of its
    /// pseudo-header.
    fill: bool,
}

impl Front {
    /// `events`: one for each queue. `longest`: the longest IP packet in bytes. `None`: there is no
    /// memory for its buffers.
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
        let device = Device {
            settings: *settings,
            longest,
            simd,
            toeplitz: if settings.symmetric { toeplitz.symmetric() } else { toeplitz },
            indirection: indirection.map(|queue| queue % queues),
            pages: Pages::new(settings, longest)?,
            queues: events
                .into_iter()
                .map(|event| Ring { frames: VecDeque::new(), event, signalled: false })
                .collect(),
            counters: NicCounters::default(),
        };
        Some(Front {
            inner,
            turn: 0,
            waiting: VecDeque::new(),
            taken: Vec::new(),
            segmenter: Segmenter::new().with_simd(simd),
            device,
            monitor,
        })
    }

    /// Hands out up to `limit` frames of a queue.
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
            // What it took is copied: the wrapped port can have its memory back.
            self.give_back();
            match pumped {
                Ok(0) => break,
                // All for other queues: they will be told.
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

    /// Lets what has arrived into the rings; how many packets of the wrapped port that were. A card
    /// whose ring overflows takes all there is.
    fn pump(&mut self) -> Result<usize, PortError> {
        let mut count = 0;
        let mut silent = 0;
        while silent < self.inner.len() && count < MOST {
            if self.waiting.is_empty() {
                let receivers = self.inner.len();
                let polled = self.inner[self.turn].poll(&mut self.taken, TAKEN);
                self.turn = (self.turn + 1) % receivers;
                self.waiting.extend(self.taken.drain(..));
                match polled {
                    Ok(0) => {
                        silent += 1;
                        continue;
                    }
                    Ok(_) => silent = 0,
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
                    self.device.pass(&packet)
                } else if !self.device.fill(&packet) {
                    self.device.cut(&packet, &mut self.segmenter)
                }
                count += 1;
            }
            if count != 0 && self.device.settings.full == RingFull::Wait {
                // A poll's worth at a time: what is not asked for stays in the wrapped port.
                break;
            }
        }
        Ok(count)
    }

    /// Buffers of the wrapped port have been dropped.
    pub(super) fn give_back(&mut self) {
        self.inner.iter_mut().for_each(|receive| receive.give_back());
    }

    pub(super) fn is_crowded(&self) -> bool {
        self.device.pages.is_crowded() || self.inner.iter().any(|receive| receive.is_crowded())
    }
}

impl Device {
    /// Is one of the rings full? Which queue the next packet goes to is not known before it is
    /// parsed.
    fn is_full(&self) -> bool {
        self.queues.iter().any(|ring| ring.frames.len() >= self.settings.ring)
    }

    /// A packet that is a frame already.
    fn pass(&mut self, packet: &RxPacket<Buffer>) {
        let checksum = match packet.checksum {
            partial @ RxChecksum::Partial { .. } => partial,
            // The card looks for itself.
            _ => RxChecksum::None,
        };
        let known =
            Known { time: packet.time, gso: packet.gso(), checksum, computed: false, fill: false };
        self.deliver(
            Arrival::new(
                packet.buffers().map(Buffer::bytes),
                packet.length(),
                packet.vlan,
                &self.settings,
            ),
            &known,
        );
    }

    /// A frame whose checksum is not filled in, which is done as it is copied; `false` if it is
    /// none, or an unusual one.
    fn fill(&mut self, packet: &RxPacket<Buffer>) -> bool {
        let RxChecksum::Partial { start, offset } = packet.checksum else { return false };
        let (length, first) =
            (packet.length(), packet.buffers().next().map_or(&[][..], Buffer::bytes));
        let head = &first[..first.len().min(MAX_HEADER)];
        // The checksum covers all behind its start, and is asked of a frame that is as long as its
        // headers say.
        let usual =
            packet.gso.is_none() && packet.vlan.is_none() && self.settings.padding == Padding::Off;
        if !usual || self.settings.sums != RxSums::Verified {
            return false;
        }
        let Ok(layout) = parse(head, length, Layer::Ethernet) else { return false };
        let asked = start == layout.transport && offset == layout.protocol.checksum_offset();
        if !asked
            || layout.end as usize != length
            || layout.outer.is_some()
            || layout.refusal.is_some()
            || !covers_all(head, &layout)
        {
            return false;
        }
        let place = usize::from(layout.checksum());
        // Of a wrong pseudo-header's sum comes a wrong checksum, which is found when it is
        // verified.
        if head.get(place..place + 2) != Some(&(!transport_sum(head, &layout)).to_be_bytes()) {
            return false;
        }
        self.counters.rx_filled += 1;
        let known = Known {
            time: packet.time,
            gso: None,
            checksum: RxChecksum::None,
            computed: true,
            fill: true,
        };
        self.deliver(
            Arrival::new(packet.buffers().map(Buffer::bytes), length, None, &self.settings),
            &known,
        );
        true
    }

    /// A packet that stands for frames: a super-packet, or one whose checksum is not filled in.
    fn cut(&mut self, packet: &RxPacket<Buffer>, segmenter: &mut Segmenter) {
        let options = SegmentOptions::default().with_checksum(ChecksumOutput::Full);
        // The pseudo-header's sum of a packet that is not cut is its sender's word.
        let known = Known {
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
                Arrival::new(slices, segment.length(), packet.vlan, &self.settings),
                &known,
            );
        });
        match cut {
            Ok(_) => self.counters.rx_cut += u64::from(packet.gso.is_some()),
            Err(_) => self.counters.rx_malformed += 1,
        }
    }

    /// A frame comes in.
    fn deliver<'a, I: Iterator<Item = &'a [u8]>>(
        &mut self,
        mut arrival: Arrival<'a, I>,
        known: &Known,
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
        let passes = known.gso.is_some() || known.checksum != RxChecksum::None;
        let sums = if passes { RxSums::None } else { self.settings.sums };
        let steers = self.settings.hash || self.settings.queues > 1;
        let (mut layout, mut hash) = (None, None);
        if steers || sums == RxSums::Verified || (sums == RxSums::Complete && known.computed) {
            counters.rx_parsed += 1;
            layout = parse(arrival.head(), length, Layer::Ethernet).ok();
            if steers {
                let tuple = match &layout {
                    Some(layout) => Some(FlowTuple::from_layout(arrival.head(), layout)),
                    None => FlowTuple::innermost(arrival.head(), length, Layer::Ethernet),
                };
                hash = tuple.map(|tuple| self.toeplitz.hash_flow(&tuple));
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
        // Where the sum of all that follows the transport header is known, the payload is only
        // copied.
        let known_layout = layout.filter(|layout| {
            known.computed && layout.refusal.is_none() && covers_all(arrival.head(), layout)
        });
        let summing = known.fill
            || known_layout.is_none()
                && (sums == RxSums::Complete || (sums == RxSums::Verified && layout.is_some()));
        let total = copy(&mut self.pages, &mut arrival, summing.then_some(self.simd));
        if known.fill
            && let Some(layout) = &known_layout
        {
            let transport = usize::from(layout.transport);
            let before = words(arrival.head().get(..transport).unwrap_or(&[])).fold();
            let sum = Sum::new(at_offset(total.subtract(before).fold(), transport));
            self.pages.overwrite(
                usize::from(layout.checksum()),
                transport_field(layout.protocol, sum.checksum()).to_be_bytes(),
            );
        }

        let mut lent = self.pages.lend();
        let Some(first) = lent.next() else { return };
        let mut packet = RxPacket::new(first);
        // As many as `find` promised, and no packet has more.
        lent.for_each(|buffer| drop(packet.push(buffer)));
        counters.rx_delivered += 1;
        counters.rx_buffers += buffers as u64;
        counters.rx_copied += length as u64;
        packet.time = known.time;
        packet.hash = hash.filter(|_| self.settings.hash);
        packet.vlan = arrival.vlan;
        packet.queue = queue;
        packet.checksum = known.checksum;

        let head = arrival.head();
        let end = layout.map_or(length, |layout| layout.end as usize);
        let tail = if end < length {
            at_offset(tail_sum(&packet, end, self.simd), end - ethernet::HEADER_LENGTH)
        } else {
            0
        };
        let sum = match &known_layout {
            Some(layout) => {
                let transport = usize::from(layout.transport);
                let before = words(head.get(ethernet::HEADER_LENGTH..transport).unwrap_or(&[]));
                before.add(at_offset(
                    transport_sum(head, layout),
                    transport - ethernet::HEADER_LENGTH,
                ))
            }
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
                let verdict = verify(&Sums { head, packet: sum.fold() }, layout);
                counters.sums_verified += u64::from(verdict.right);
                counters.sums_wrong += u64::from(verdict.wrong);
                packet.checksum = verdict.checksum;
            }
            (RxSums::None | RxSums::Verified, _) => {}
        }
        let packet = match known.gso {
            Some(gso) => packet.with_gso(gso),
            None => packet,
        };
        ring.push_back(packet);
    }
}

/// Copies a frame to the places that were found for it; its sum, if it is summed on the way.
fn copy<'a, I: Iterator<Item = &'a [u8]>>(
    pages: &mut Pages,
    arrival: &mut Arrival<'a, I>,
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

/// The sum of a packet's bytes from a place on, as if it were even.
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
