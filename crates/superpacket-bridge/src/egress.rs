//! Sends packets by a port. Packets that the port supports are sent unchanged. Others are adapted
//! in software, as late as possible.
//!
//! [`Egress::add`] decides for each packet: send it whole, segment it, complete its checksum,
//! fragment it, or drop it. [`Egress::flush`] sends the frames that were added, and falls back to
//! software if the kernel refuses one.

mod action;

use std::ops::Range;
use std::sync::Arc;

use superpacket::packet::{Layer, RxChecksum, VlanTag};
use superpacket::segment::{
    ChecksumForm, ChecksumOutput, Gso, GsoPacket, MaxSegments, PacketKind, SegmentError,
    SegmentOptions, SegmentPlan, SegmentSize, Segmenter, Unsupported,
};
use superpacket::super_packet::SuperPacket;
use superpacket::wire::{Layout, MAX_HEADER, parse_datagram};
use superpacket_port::features::Feature;
use superpacket_port::{
    Buffer, Outgoing, Progress, StopReason, SuperPacketPart, Transmit, TxBatch, TxFrame,
};

use crate::counters::DropReason;
use crate::monitor::Copies;
use crate::queues::QueueCounts;
use crate::runtime::{Runtime, SharedPort};
use crate::settings::TooBig;
use crate::switch::bucket::taken_by;
use crate::switch::vlan::{PortVlans, number};
use action::{EgressAction, egress_action};

/// Number of times that sending is retried at a full port before its frames are dropped.
const FULL_RETRIES: u32 = 4;

/// Maximum segments per packet: 64 KB in segments of 8 bytes, the smallest size that the kernel's
/// TCP uses (`TCP_MIN_GSO_SIZE`). Smaller segments would let a few packets keep a thread busy for a
/// second.
const MAX_SEGMENTS: MaxSegments = MaxSegments::new(8192).expect("not zero");

/// Number of refusals in a row by the kernel after which an offload is no longer used for this kind
/// of packet at the port.
const REFUSAL_LIMIT: u32 = 16;

/// The sending end of a port for one thread, with the frames that wait to be sent.
#[derive(Debug)]
pub(crate) struct Egress {
    pub(crate) shared: Arc<SharedPort>,
    pub(crate) runtime: Runtime,
    /// The port's VLANs; `None` if the bridge does not filter by VLAN.
    pub(crate) vlans: Option<Arc<PortVlans>>,
    transmit: Box<dyn Transmit>,
    /// The packets and bytes that this thread has sent by its transmit queue.
    counts: Arc<QueueCounts>,
    batch: TxBatch,
    /// Frames made in software from a frame whose offload the kernel refused.
    fallback: TxBatch,
    /// For each kind of packet, how often the kernel refused an offload.
    refusals: Vec<Refusals>,
    /// Whether the port has a rate limit for what it sends.
    is_limited: bool,
    /// How often the port had been reopened when this end was created.
    pub(crate) opening: u32,
}

/// Counts how often the kernel refused an offload for one kind of packet.
#[derive(Debug)]
struct Refusals {
    /// The kind of packet (protocols and tunnel); `None` if it is unknown, in which case the
    /// offload stays in use.
    kind: Option<PacketKind>,
    /// Whether the refused packets are super-packets; otherwise they have a partial checksum.
    super_packets: bool,
    /// Number of refusals since the kernel last accepted a packet of this kind.
    consecutive: u32,
}

/// The error that the port can no longer be used, because its interface is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

impl Egress {
    /// Returns an end of a port that sends by `transmit`.
    pub(crate) fn new(shared: Arc<SharedPort>, transmit: Box<dyn Transmit>) -> Self {
        let (runtime, opening) = (shared.runtime(), shared.opening());
        let (vlans, is_limited) = (shared.vlans(), shared.buckets.limit_tx());
        Egress {
            counts: shared.counts.queues.sends_by(transmit.queue()),
            shared,
            runtime,
            vlans,
            transmit,
            batch: TxBatch::new(),
            fallback: TxBatch::new(),
            refusals: Vec::new(),
            is_limited,
            opening,
        }
    }

    /// Rereads the port's settings.
    pub(crate) fn refresh(&mut self) {
        self.runtime = self.shared.runtime();
        self.vlans = self.shared.vlans();
        self.is_limited = self.shared.buckets.limit_tx();
    }

    /// Returns whether the port is a member of the VLAN of `tag`. Without VLAN filtering every port
    /// is.
    #[inline]
    pub(crate) fn is_in(&self, tag: Option<VlanTag>) -> bool {
        match (&self.vlans, tag) {
            (None, _) => true,
            (Some(vlans), Some(tag)) => vlans.has(number(tag)),
            (Some(_), None) => false,
        }
    }

    /// Returns the number of frames that wait to be sent.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.batch.frames().len()
    }

    /// Adds a packet to the frames to be sent, at the time `now` in nanoseconds. Returns `false` if
    /// the packet is too long for the port and its sender should be told so by ICMP.
    pub(crate) fn add(
        &mut self,
        outgoing: &mut Outgoing,
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
        match egress_action(&self.runtime, packet) {
            EgressAction::Unchanged => {
                self.batch.push_packet(outgoing, packet, self.runtime.max_slices())
            }
            EgressAction::CompleteChecksum => {
                if self.cut(outgoing, packet, segmenter, SegmentOptions::default()) {
                    self.shared.counts.checksummed.add(1);
                }
            }
            EgressAction::SmallerSuperPackets(gso, size, layout) => {
                self.cut_into_parts(outgoing, packet, segmenter, gso, size, &layout)
            }
            EgressAction::Offload(gso, layout) => {
                self.batch.push_super_packet(
                    outgoing,
                    packet,
                    gso,
                    &layout,
                    self.runtime.max_slices(),
                );
            }
            EgressAction::Segment(gso, unsupported) => {
                let partial = self.runtime.has(Feature::TxChecksumming);
                let checksum =
                    if partial { ChecksumOutput::AsMerged } else { ChecksumOutput::Full };
                let before = self.waiting();
                let options = SegmentOptions::default()
                    .with_gso(gso)
                    .with_checksum(checksum)
                    .with_max_segments(MAX_SEGMENTS);
                if self.cut(outgoing, packet, segmenter, options) {
                    self.count_segments(before);
                    self.count_unsupported(unsupported);
                }
            }
            EgressAction::TooLong => match self.runtime.too_big {
                TooBig::Fragment => {
                    let (batch, slices) = (&mut self.batch, self.runtime.max_slices());
                    let before = batch.frames().len();
                    // Only the sender may fragment IPv6 packets (RFC 8200, section 4.5).
                    let done = segmenter.fragment(packet, self.runtime.mtu, None, |segment| {
                        batch.push_segment(
                            outgoing,
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

    /// Returns whether the port's rate limits allow these packets to leave. If not, counts one
    /// packet as dropped.
    #[cold]
    fn allows(&self, packets: u64, bytes: u64, now: u64) -> bool {
        let allowed = self.shared.buckets.take_tx(packets, bytes, now);
        if !allowed {
            self.shared.counts.dropped(DropReason::TxRate, 1);
        }
        allowed
    }

    /// Adds a frame that a consumer sends, at the time `now` in nanoseconds.
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

    /// Adds a frame that the bridge itself generated.
    pub(crate) fn add_bytes(&mut self, outgoing: &mut Outgoing, frame: &[u8], layer: Layer) {
        self.batch.push_bytes(outgoing, frame, RxChecksum::None, None, layer);
    }

    /// Discards the frames that were added.
    pub(crate) fn abandon(&mut self) {
        self.batch.clear();
        self.fallback.clear();
    }

    fn cut(
        &mut self,
        outgoing: &mut Outgoing,
        packet: &SuperPacket<'_, Buffer>,
        segmenter: &mut Segmenter,
        options: SegmentOptions,
    ) -> bool {
        let (batch, slices) = (&mut self.batch, self.runtime.max_slices());
        let (vlan, layer) = (packet.metadata.vlan, packet.metadata.layer);
        let done = segmenter.segment(packet, &options, |segment| {
            batch.push_segment(outgoing, &segment, vlan, layer, slices)
        });
        self.is_cut(&done)
    }

    /// Returns whether a packet was segmented. If it was not, counts it as dropped.
    fn is_cut(&self, done: &Result<SegmentPlan, SegmentError>) -> bool {
        if let Err(error) = done {
            tracing::debug!(port = %self.shared.name, %error, "a packet cannot be segmented");
            self.shared.counts.dropped(DropReason::CannotSegment, 1);
        }
        done.is_ok()
    }

    /// Counts a packet that was segmented, and its segments: all waiting frames but the first
    /// `before`.
    fn count_segments(&self, before: usize) {
        self.shared.counts.segmented.add(1);
        self.shared.counts.segments.add((self.waiting() - before) as u64);
    }

    /// Counts a packet that was segmented in software because the port could not, for the given
    /// reason.
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
            // Not counted: the port's offload is switched off, as `superpacket features` shows.
            _ => return,
        };
        count.add(1);
    }

    /// Adds a super-packet as several smaller super-packets, with `size` payload bytes each.
    fn cut_into_parts(
        &mut self,
        outgoing: &mut Outgoing,
        packet: &SuperPacket<'_, Buffer>,
        segmenter: &mut Segmenter,
        gso: Gso,
        size: SegmentSize,
        layout: &Layout,
    ) {
        // The segmenter numbers the parts one by one, but a part's segments need one number each.
        let extra = (size.get() / gso.size.get() - 1) as u16;
        let whole = gso.with_size(size).with_checksum(ChecksumForm::Partial);
        let options =
            SegmentOptions::default().with_gso(whole).with_checksum(ChecksumOutput::AsMerged);
        let (batch, slices) = (&mut self.batch, self.runtime.max_slices());
        let (vlan, layer) = (packet.metadata.vlan, packet.metadata.layer);
        let before = batch.frames().len();
        let done = segmenter.segment(packet, &options, |segment| {
            let part =
                SuperPacketPart { gso, layout, skipped: extra.wrapping_mul(segment.index as u16) };
            batch.push_part(outgoing, &segment, &part, vlan, layer, slices);
        });
        if self.is_cut(&done) {
            self.count_segments(before);
        }
    }

    /// Sends the waiting frames, and copies them for monitors of the port.
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
            if self.refusals.iter().any(|refusals| refusals.consecutive != 0) {
                self.note_taken(outgoing, from..from + sent);
            }
            if let Some(time) = time {
                copies.sent(&self.shared, outgoing, &self.batch, from..from + sent, time);
            }
            from += sent;
            let Some(stop) = stopped else { break };
            let left = (total - from) as u64;
            match stop {
                StopReason::Full if retries != 0 => {
                    retries -= 1;
                    std::thread::yield_now();
                    continue;
                }
                StopReason::Full => {
                    // Drop half, not one frame: a port checks all remaining frames before it
                    // refuses the first, so single drops would make a full port expensive.
                    let dropped = left.div_ceil(2);
                    self.shared.counts.dropped(DropReason::Full, dropped);
                    from += dropped as usize;
                    continue;
                }
                StopReason::Offload(error) => {
                    self.fall_back(outgoing, segmenter, copies, from, &error)
                }
                StopReason::TooLong => self.shared.counts.dropped(DropReason::TooBig, 1),
                StopReason::Down => {
                    self.shared.counts.dropped(DropReason::Down, left);
                    break;
                }
                StopReason::Gone(error) => {
                    tracing::debug!(port = %self.shared.name, %error, "the port cannot send any more");
                    self.shared.counts.dropped(DropReason::Gone, left);
                    done = Err(Broken);
                    break;
                }
                StopReason::Refused(error) => self.refused(&error),
                // An error that this bridge does not know yet.
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

    /// Counts the frames of the batch that were sent.
    fn count(&mut self, sent: Range<usize>) {
        let (counts, frames) = (&self.shared.counts, &self.batch.frames()[sent]);
        self.counts.packets.add(frames.len() as u64);
        self.counts.bytes.add(frames.iter().map(|frame| u64::from(frame.length)).sum());
        let whole = || frames.iter().filter(|frame| frame.gso.is_some());
        counts.tx_super_packets.add(whole().count() as u64);
        counts.tx_super_segments.add(whole().map(|frame| u64::from(frame.segments)).sum());
    }

    /// Restarts the counts of refusals for the kinds of packets that the kernel has just accepted.
    #[cold]
    fn note_taken(&mut self, outgoing: &Outgoing, sent: Range<usize>) {
        for frame in self.batch.frames()[sent].iter().filter(|frame| !frame.is_plain()) {
            let (kind, super_packets) = kind_of(outgoing, &self.batch, frame);
            for refusals in self
                .refusals
                .iter_mut()
                .filter(|known| known.kind == kind && known.super_packets == super_packets)
            {
                refusals.consecutive = 0;
            }
        }
    }

    /// Sends a frame again after the kernel refused its offload: software does the work of the
    /// offload.
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
            tracing::warn!(port = %self.shared.name, %error, offload, kind = name, "the kernel refused an offload: the packet is processed in software");
            self.refusals.push(Refusals { kind, super_packets, consecutive: 0 });
            self.refusals.len() - 1
        });
        let refusals = &mut self.refusals[index];
        refusals.consecutive += 1;
        if refusals.consecutive == REFUSAL_LIMIT {
            refusals.consecutive = 0;
            if let Some(kind) = kind {
                tracing::warn!(port = %self.shared.name, offload, %kind, "the kernel refuses an offload repeatedly: it is done in software from now on");
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
        let (fallback, layer) = (&mut self.fallback, frame.layer);
        fallback.clear();
        let mut segment_bytes = Vec::new();
        let done = segmenter.segment(&packet, &SegmentOptions::default(), |segment| {
            segment_bytes.clear();
            segment.copy_to(&mut segment_bytes);
            fallback.push_bytes(outgoing, &segment_bytes, RxChecksum::None, None, layer);
        });
        if done.is_err() {
            return self.shared.counts.dropped(DropReason::CannotSegment, 1);
        }
        let (mut from, total) = (0, self.fallback.frames().len());
        if frame.gso.is_some() {
            self.shared.counts.segmented.add(1);
            self.shared.counts.segments.add(total as u64);
        }
        while from < total {
            let time = copies.time();
            let Progress { sent, stopped } = self.transmit.transmit(outgoing, &self.fallback, from);
            self.counts.packets.add(sent as u64);
            self.counts.bytes.add(
                self.fallback.frames()[from..from + sent]
                    .iter()
                    .map(|frame| u64::from(frame.length))
                    .sum(),
            );
            if let Some(time) = time {
                copies.sent(&self.shared, outgoing, &self.fallback, from..from + sent, time);
            }
            from += sent;
            if let Some(stop) = stopped {
                tracing::debug!(port = %self.shared.name, ?stop, "a segment was refused too");
                let cause = match stop {
                    StopReason::Full => DropReason::Full,
                    StopReason::TooLong => DropReason::TooBig,
                    StopReason::Down => DropReason::Down,
                    StopReason::Gone(_) => DropReason::Gone,
                    _ => DropReason::Refused,
                };
                // If the port is full, down or gone for one segment, it is so for the others too.
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

/// Returns what kind of packet a frame with an offload is, and whether it is a super-packet.
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
pub(crate) mod recorder;
#[cfg(test)]
mod tests;
