//! The way out of a port: what the port takes goes whole, what it lacks is done here, as late as
//! possible.
//!
//! [`Egress::add`] decides for each packet: whole, cut into segments, its checksum filled in,
//! fragmented, or dropped. [`Egress::flush`] sends what was added, and falls back to software for
//! what the kernel refuses.

mod need;

use std::ops::Range;
use std::sync::Arc;

use superpacket::packet::{Layer, RxChecksum, VlanTag};
use superpacket::segment::{
    ChecksumForm, ChecksumOutput, Gso, GsoPacket, MaxSegments, PacketKind, Plan, SegmentError,
    SegmentOptions, SegmentSize, Segmenter, Unsupported,
};
use superpacket::super_packet::SuperPacket;
use superpacket::wire::{Layout, MAX_HEADER, parse_datagram};
use superpacket_port::features::Feature;
use superpacket_port::{
    Buffer, Outgoing, Part, Progress, Staged, Stop, Transmit, TxBatch, TxFrame,
};

use crate::bucket::taken_by;
use crate::counters::DropReason;
use crate::monitor::Copies;
use crate::queues::QueueCounts;
use crate::runtime::{Runtime, Shared};
use crate::settings::TooBig;
use crate::vlan::{PortVlans, number};
use need::{Need, need};

/// How often a full port is tried again before its frames are dropped.
const FULL_RETRIES: u32 = 4;

/// The most segments of a packet: 64 KB in segments of 8 bytes, the least that the kernel's TCP
/// cuts (`TCP_MIN_GSO_SIZE`). With less, few packets would keep a thread busy for a second.
const MOST_SEGMENTS: MaxSegments = MaxSegments::new(8192).expect("not zero");

/// Refusals of a kind of packet without a success in between, after which it is no longer left to
/// the port.
const REFUSAL_LIMIT: u32 = 16;

/// The sending end of a port for one thread, and what is about to be sent.
#[derive(Debug)]
pub(crate) struct Egress {
    pub(crate) shared: Arc<Shared>,
    pub(crate) runtime: Runtime,
    /// Its VLANs; `None` where the bridge does not filter by them.
    pub(crate) vlans: Option<Arc<PortVlans>>,
    transmit: Box<dyn Transmit>,
    /// What this end of its transmit queue counts.
    counts: Arc<QueueCounts>,
    batch: TxBatch,
    /// What the kernel refused is sent from here.
    again: TxBatch,
    /// What the kernel has refused.
    refusals: Vec<Refusals>,
    /// What leaves is limited to a rate.
    is_limited: bool,
    /// Which opening of the port this is an end of.
    pub(crate) opening: u32,
}

/// The refusals of one kind of packet.
#[derive(Debug)]
struct Refusals {
    /// The kind; `None` for packets that are of none, whose refusal is not remembered.
    kind: Option<PacketKind>,
    /// Whether they were super-packets; else they had a partial checksum.
    super_packets: bool,
    /// The number of refusals since one was taken.
    in_a_row: u32,
}

/// The port can be used no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

impl Egress {
    /// An end that sends by `transmit`.
    pub(crate) fn new(shared: Arc<Shared>, transmit: Box<dyn Transmit>) -> Self {
        let (runtime, opening) = (shared.runtime(), shared.opening());
        let (vlans, is_limited) = (shared.vlans(), shared.buckets.limit_tx());
        Egress {
            counts: shared.counts.queues.sends_by(transmit.queue()),
            shared,
            runtime,
            vlans,
            transmit,
            batch: TxBatch::new(),
            again: TxBatch::new(),
            refusals: Vec::new(),
            is_limited,
            opening,
        }
    }

    /// Settings have changed.
    pub(crate) fn refresh(&mut self) {
        self.runtime = self.shared.runtime();
        self.vlans = self.shared.vlans();
        self.is_limited = self.shared.buckets.limit_tx();
    }

    /// Is the port in the VLAN that the tag says? Where the bridge does not filter, each is in all.
    #[inline]
    pub(crate) fn is_in(&self, tag: Option<VlanTag>) -> bool {
        match (&self.vlans, tag) {
            (None, _) => true,
            (Some(vlans), Some(tag)) => vlans.has(number(tag)),
            (Some(_), None) => false,
        }
    }

    /// How many frames wait to be sent.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.batch.frames().len()
    }

    /// Adds a packet that is to leave by this port, at this time in nanoseconds. `false`: it is too
    /// long for the port, and its sender should be told.
    pub(crate) fn add(
        &mut self,
        outgoing: &mut Outgoing,
        staged: &Staged,
        packet: &SuperPacket<'_, Buffer>,
        segmenter: &mut Segmenter,
        now: u64,
    ) -> bool {
        if self.is_limited {
            let (packets, bytes) = taken_by(packet);
            if !self.allows(packets, bytes, now) {
                return true;
            }
        }
        let metadata = &packet.metadata;
        match need(&self.runtime, packet) {
            Need::Nothing => {
                self.batch.push_packet(outgoing, staged, packet, self.runtime.max_slices())
            }
            Need::Checksum => {
                if self.cut(outgoing, staged, packet, segmenter, SegmentOptions::default()) {
                    self.shared.counts.checksummed.add(1);
                }
            }
            Need::Parts(gso, size, layout) => {
                self.cut_into_parts(outgoing, staged, packet, segmenter, gso, size, &layout)
            }
            Need::WholeParts(layout) => {
                let options = SegmentOptions::default()
                    .with_checksum(ChecksumOutput::Partial)
                    .with_whole_parts();
                let part = |index: u32| Part {
                    gso: packet.parts()[index as usize].gso(),
                    layout: &layout,
                    skipped: 0,
                };
                self.push_parts(outgoing, staged, packet, segmenter, options, part);
            }
            Need::Whole(gso, layout) => {
                self.batch.push_super_packet(
                    outgoing,
                    staged,
                    packet,
                    gso,
                    &layout,
                    self.runtime.max_slices(),
                );
            }
            need @ (Need::Cut(..) | Need::CutUneven) => {
                let partial = self.runtime.has(Feature::TxChecksumming);
                let checksum =
                    if partial { ChecksumOutput::AsMerged } else { ChecksumOutput::Full };
                let before = self.waiting();
                let options = SegmentOptions::default()
                    .with_checksum(checksum)
                    .with_max_segments(MOST_SEGMENTS);
                let (options, unsupported) = match need {
                    Need::Cut(gso, unsupported) => (options.with_gso(gso), unsupported),
                    _ => (options, None),
                };
                if self.cut(outgoing, staged, packet, segmenter, options) {
                    self.count_segments(before);
                    self.count_unsupported(unsupported);
                }
            }
            Need::Shorter => match self.runtime.too_big {
                TooBig::Fragment => {
                    let (batch, slices) = (&mut self.batch, self.runtime.max_slices());
                    let before = batch.frames().len();
                    // Over IPv6 only the sender's host may fragment (RFC 8200, section 4.5).
                    let done = segmenter.fragment(packet, self.runtime.mtu, None, |segment| {
                        batch.push_segment(
                            outgoing,
                            staged,
                            &segment,
                            metadata.vlan,
                            metadata.layer,
                            slices,
                        );
                    });
                    match done {
                        Ok(_) => self.count_segments(before),
                        Err(_) => self.shared.counts.dropped(DropReason::TooBig, 1),
                    }
                }
                too_big => {
                    self.shared.counts.dropped(DropReason::TooBig, 1);
                    return too_big != TooBig::Icmp;
                }
            },
        }
        true
    }

    /// May so many packets leave? What may not is counted.
    #[cold]
    fn allows(&self, packets: u64, bytes: u64, now: u64) -> bool {
        let allowed = self.shared.buckets.take_tx(packets, bytes, now);
        if !allowed {
            self.shared.counts.dropped(DropReason::TxRate, 1);
        }
        allowed
    }

    /// Adds a frame of a consumer's, at this time in nanoseconds.
    pub(crate) fn add_frame(
        &mut self,
        outgoing: &mut Outgoing,
        frame: &[u8],
        layer: Layer,
        now: u64,
    ) {
        if !self.is_limited || self.allows(1, frame.len() as u64, now) {
            self.add_bytes(outgoing, frame, layer);
        }
    }

    /// Adds a frame of the bridge's own.
    pub(crate) fn add_bytes(&mut self, outgoing: &mut Outgoing, frame: &[u8], layer: Layer) {
        self.batch.push_bytes(outgoing, frame, RxChecksum::None, None, layer);
    }

    /// Forgets what was added.
    pub(crate) fn abandon(&mut self) {
        self.batch.clear();
        self.again.clear();
    }

    fn cut(
        &mut self,
        outgoing: &mut Outgoing,
        staged: &Staged,
        packet: &SuperPacket<'_, Buffer>,
        segmenter: &mut Segmenter,
        options: SegmentOptions,
    ) -> bool {
        let (batch, slices) = (&mut self.batch, self.runtime.max_slices());
        let (vlan, layer) = (packet.metadata.vlan, packet.metadata.layer);
        let done = segmenter.segment(packet, &options, |segment| {
            batch.push_segment(outgoing, staged, &segment, vlan, layer, slices)
        });
        self.is_cut(&done)
    }

    /// Was it? A packet that cannot be cut is dropped.
    fn is_cut(&self, done: &Result<Plan, SegmentError>) -> bool {
        if let Err(error) = done {
            tracing::debug!(port = %self.shared.name, %error, "a packet cannot be cut");
            self.shared.counts.dropped(DropReason::CannotSegment, 1);
        }
        done.is_ok()
    }

    /// Counts a packet whose segments were added to so many frames.
    fn count_segments(&self, before: usize) {
        self.shared.counts.segmented.add(1);
        self.shared.counts.segments.add((self.waiting() - before) as u64);
    }

    /// Counts a packet that was segmented because the port could not.
    fn count_unsupported(&self, unsupported: Option<Unsupported>) {
        let counts = &self.shared.counts;
        let count = match unsupported {
            Some(Unsupported::LinkHeader) => &counts.segmented_for_link,
            Some(Unsupported::Tunnel) => &counts.segmented_for_tunnel,
            Some(Unsupported::Refused) => &counts.segmented_for_refusal,
            Some(Unsupported::Cwr) => &counts.segmented_for_cwr,
            Some(Unsupported::FixedIds) => &counts.segmented_for_ids,
            Some(Unsupported::SegmentSize | Unsupported::Segments | Unsupported::Size) => {
                &counts.segmented_for_size
            }
            // The port's offload is off, and `features` shows it.
            _ => return,
        };
        count.add(1);
    }

    /// Adds a super-packet in smaller ones, of `size` bytes of payload each.
    #[expect(clippy::too_many_arguments, reason = "what `cut` takes, and how")]
    fn cut_into_parts(
        &mut self,
        outgoing: &mut Outgoing,
        staged: &Staged,
        packet: &SuperPacket<'_, Buffer>,
        segmenter: &mut Segmenter,
        gso: Gso,
        size: SegmentSize,
        layout: &Layout,
    ) {
        // Each part counts as one identification where it is cut, and takes one for each of its
        // segments.
        let extra = (size.get() / gso.size.get() - 1) as u16;
        let whole = gso.with_size(size).with_checksum(ChecksumForm::Partial);
        let options =
            SegmentOptions::default().with_gso(whole).with_checksum(ChecksumOutput::AsMerged);
        let part = |index: u32| Part { gso, layout, skipped: extra.wrapping_mul(index as u16) };
        self.push_parts(outgoing, staged, packet, segmenter, options, part);
    }

    /// Adds the segments of a packet, each of which is a super-packet: the part of that number.
    fn push_parts<'l>(
        &mut self,
        outgoing: &mut Outgoing,
        staged: &Staged,
        packet: &SuperPacket<'_, Buffer>,
        segmenter: &mut Segmenter,
        options: SegmentOptions,
        part: impl Fn(u32) -> Part<'l>,
    ) {
        let (batch, slices) = (&mut self.batch, self.runtime.max_slices());
        let (vlan, layer) = (packet.metadata.vlan, packet.metadata.layer);
        let before = batch.frames().len();
        let done = segmenter.segment(packet, &options, |segment| {
            batch.push_part(outgoing, staged, &segment, &part(segment.index), vlan, layer, slices);
        });
        if self.is_cut(&done) {
            self.count_segments(before);
        }
    }

    /// Sends what was added, and copies it for who monitors the port.
    pub(crate) fn flush(
        &mut self,
        outgoing: &mut Outgoing,
        segmenter: &mut Segmenter,
        copies: &mut Copies,
    ) -> Result<(), Broken> {
        let total = self.batch.frames().len();
        let (mut from, mut retries, mut done) = (0, FULL_RETRIES, Ok(()));
        while from < total {
            let time = copies.time();
            let Progress { sent, stopped } = self.transmit.transmit(outgoing, &self.batch, from);
            self.count(from..from + sent);
            if self.refusals.iter().any(|refusals| refusals.in_a_row != 0) {
                self.note_taken(outgoing, from..from + sent);
            }
            if let Some(time) = time {
                copies.sent(&self.shared, outgoing, &self.batch, from..from + sent, time);
            }
            from += sent;
            let Some(stop) = stopped else { break };
            let left = (total - from) as u64;
            match stop {
                Stop::Full if retries != 0 => {
                    retries -= 1;
                    std::thread::yield_now();
                    continue;
                }
                Stop::Full => {
                    // A port looks at all that is left before it refuses the first: frame by frame,
                    // a full port would cost many times what one costs that sends.
                    let dropped = left.div_ceil(2);
                    self.shared.counts.dropped(DropReason::Full, dropped);
                    from += dropped as usize;
                    continue;
                }
                Stop::Offload(error) => self.fall_back(outgoing, segmenter, copies, from, &error),
                Stop::TooLong => self.shared.counts.dropped(DropReason::TooBig, 1),
                Stop::Down => {
                    self.shared.counts.dropped(DropReason::Down, left);
                    break;
                }
                Stop::Gone(error) => {
                    tracing::debug!(port = %self.shared.name, %error, "nothing can be sent any more");
                    self.shared.counts.dropped(DropReason::Gone, left);
                    done = Err(Broken);
                    break;
                }
                Stop::Refused(error) => self.refused(&error),
                // A reason that this bridge does not know yet.
                other => {
                    tracing::debug!(port = %self.shared.name, ?other, "a frame was not sent");
                    self.shared.counts.dropped(DropReason::Refused, 1);
                }
            }
            from += 1;
        }
        self.batch.clear();
        done
    }

    fn refused(&self, error: &std::io::Error) {
        tracing::debug!(port = %self.shared.name, %error, "a frame was refused");
        self.shared.counts.dropped(DropReason::Refused, 1);
    }

    /// Counts frames that were sent.
    fn count(&mut self, sent: Range<usize>) {
        let (counts, frames) = (&self.shared.counts, &self.batch.frames()[sent]);
        self.counts.packets.add(frames.len() as u64);
        self.counts.bytes.add(frames.iter().map(|frame| u64::from(frame.length)).sum());
        let whole = || frames.iter().filter(|frame| frame.gso.is_some());
        counts.tx_super_packets.add(whole().count() as u64);
        counts.tx_super_segments.add(whole().map(|frame| u64::from(frame.segments)).sum());
    }

    /// Begins to count anew where the kernel has taken frames of a kind that it refused before.
    #[cold]
    fn note_taken(&mut self, outgoing: &Outgoing, sent: Range<usize>) {
        for frame in self.batch.frames()[sent].iter().filter(|frame| !frame.is_plain()) {
            let (kind, super_packets) = kind_of(outgoing, &self.batch, frame);
            for refusals in self
                .refusals
                .iter_mut()
                .filter(|known| known.kind == kind && known.super_packets == super_packets)
            {
                refusals.in_a_row = 0;
            }
        }
    }

    /// Sends a frame in software that the kernel refused with its offloads.
    #[cold]
    fn fall_back(
        &mut self,
        outgoing: &mut Outgoing,
        segmenter: &mut Segmenter,
        copies: &mut Copies,
        number: usize,
        error: &std::io::Error,
    ) {
        let frame = self.batch.frames()[number];
        let (kind, super_packets) = kind_of(outgoing, &self.batch, &frame);
        let offload = if super_packets { "segmentation" } else { "tx-checksumming" };
        let known = self
            .refusals
            .iter()
            .position(|known| known.kind == kind && known.super_packets == super_packets);
        let index = known.unwrap_or_else(|| {
            let name = kind.map_or("packets of an unknown kind".to_owned(), |kind| kind.to_string());
            tracing::warn!(port = %self.shared.name, %error, offload, kind = name, "the kernel refused an offload: it is done in software");
            self.refusals.push(Refusals { kind, super_packets, in_a_row: 0 });
            self.refusals.len() - 1
        });
        let refusals = &mut self.refusals[index];
        refusals.in_a_row += 1;
        if refusals.in_a_row == REFUSAL_LIMIT {
            refusals.in_a_row = 0;
            if let Some(kind) = kind {
                tracing::warn!(port = %self.shared.name, offload, %kind, "the kernel refuses this again and again: it is done in software from now on");
                self.shared.refuse(kind, super_packets);
                self.runtime = self.shared.runtime();
            }
        }
        self.shared.counts.fallbacks.add(1);
        let mut bytes = Vec::with_capacity(frame.length as usize);
        self.batch.copy_to(outgoing, &frame, &mut bytes);
        let packet = GsoPacket::new(std::slice::from_ref(&bytes), frame.gso)
            .with_layer(frame.layer)
            .with_checksum(frame.checksum);
        let (again, layer) = (&mut self.again, frame.layer);
        again.clear();
        let mut segment_bytes = Vec::new();
        let done = segmenter.segment(&packet, &SegmentOptions::default(), |segment| {
            segment_bytes.clear();
            segment.copy_to(&mut segment_bytes);
            again.push_bytes(outgoing, &segment_bytes, RxChecksum::None, None, layer);
        });
        if done.is_err() {
            return self.shared.counts.dropped(DropReason::CannotSegment, 1);
        }
        let (mut from, total) = (0, self.again.frames().len());
        if frame.gso.is_some() {
            self.shared.counts.segmented.add(1);
            self.shared.counts.segments.add(total as u64);
        }
        while from < total {
            let time = copies.time();
            let Progress { sent, stopped } = self.transmit.transmit(outgoing, &self.again, from);
            self.counts.packets.add(sent as u64);
            self.counts.bytes.add(
                self.again.frames()[from..from + sent]
                    .iter()
                    .map(|frame| u64::from(frame.length))
                    .sum(),
            );
            if let Some(time) = time {
                copies.sent(&self.shared, outgoing, &self.again, from..from + sent, time);
            }
            from += sent;
            if let Some(stop) = stopped {
                tracing::debug!(port = %self.shared.name, ?stop, "a segment was refused too");
                let cause = match stop {
                    Stop::Full => DropReason::Full,
                    Stop::TooLong => DropReason::TooBig,
                    Stop::Down => DropReason::Down,
                    Stop::Gone(_) => DropReason::Gone,
                    _ => DropReason::Refused,
                };
                // What does not fit now does not fit in a moment.
                let dropped =
                    if matches!(cause, DropReason::Full | DropReason::Down | DropReason::Gone) {
                        total - from
                    } else {
                        1
                    };
                self.shared.counts.dropped(cause, dropped as u64);
                from += dropped;
            }
        }
    }
}

/// Returns the kind of a frame that has offloads, and whether it is a super-packet.
fn kind_of(outgoing: &Outgoing, batch: &TxBatch, frame: &TxFrame) -> (Option<PacketKind>, bool) {
    let mut scratch = [0; MAX_HEADER];
    let head = batch.head(outgoing, frame, &mut scratch);
    let layout = match frame.gso {
        Some(gso) => gso.kind.parse(head, frame.length as usize, frame.layer, frame.checksum),
        None => parse_datagram(head, frame.length as usize, frame.layer),
    };
    (layout.ok().as_ref().and_then(PacketKind::of), frame.gso.is_some())
}

#[cfg(test)]
mod tests;
