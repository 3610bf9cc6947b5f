//! The way out of a port: what the port takes goes whole, what it lacks is done here, as late as
//! possible.
//!
//! [`Egress::add`] decides for each packet: whole, cut into segments, its checksum filled in,
//! fragmented, or dropped. [`Egress::flush`] sends what was added, and falls back to software for
//! what the kernel refuses.

use std::ops::Range;
use std::sync::Arc;

use superpacket::packet::{Layer, RxChecksum, VlanTag};
use superpacket::segment::{
    ChecksumForm, ChecksumOutput, Cwr, Gso, GsoKind, GsoPacket, IpId, MaxSegments, SegmentOptions, SegmentSize, Segmenter,
};
use superpacket::super_packet::{Metadata, SuperPacket};
use superpacket::wire::{IpVersion, Layout, MAX_HEADER, Protocol, ipv4, parse, sctp};
use superpacket_features::Feature;
use superpacket_io::port::{Buffer, Outgoing, Part, Progress, Staged, Stop, Transmit, TxBatch};

use crate::bucket::taken_by;
use crate::counters::DropReason;
use crate::frame::{Head, network_offset};
use crate::monitor::Copies;
use crate::queues::QueueCounts;
use crate::runtime::{Runtime, Shared};
use crate::settings::TooBig;
use crate::vlan::{PortVlans, number};

/// How often a full port is tried again before its frames are dropped.
const FULL_RETRIES: u32 = 4;

/// The most segments of a packet: 64 KB in segments of 8 bytes, the least that the kernel's TCP
/// cuts (`TCP_MIN_GSO_SIZE`). With less, few packets would keep a thread busy for a second.
const MOST_SEGMENTS: MaxSegments = MaxSegments::new(8192).expect("not zero");

/// So many refusals without a success in between, and an offload is no longer left to the port.
const REFUSAL_LIMIT: u32 = 16;

/// What a packet needs at the port that it leaves by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Need {
    /// Nothing.
    Nothing,
    /// Its partial checksum filled in.
    Checksum,
    /// To be cut like this.
    Cut(Gso),
    /// To be cut into super-packets of so much payload, since it is more than the port takes at
    /// once.
    Parts(Gso, SegmentSize, Layout),
    /// To go whole, and the port to be told how to cut it: it is what LRO merged, as a card hands
    /// it to its host.
    Whole(Gso, Layout),
    /// To be shorter, and it cannot be cut.
    Shorter,
}

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
    /// Refusals in a row of super-packets, and of partial checksums.
    refusals: [u32; 2],
    /// Which of them the log has reported.
    told: [bool; 2],
    /// What leaves is limited to a rate.
    is_limited: bool,
    /// Which opening of the port this is an end of.
    pub(crate) opening: u32,
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
            refusals: [0; 2],
            told: [false; 2],
            is_limited,
            opening,
        }
    }

    /// Wishes have changed.
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
            Need::Nothing => self.batch.push_packet(outgoing, staged, packet, self.runtime.max_slices()),
            Need::Checksum => {
                if self.cut(outgoing, staged, packet, segmenter, SegmentOptions::default()) {
                    self.shared.counts.checksummed.add(1);
                }
            }
            Need::Parts(gso, size, layout) => self.cut_into_parts(outgoing, staged, packet, segmenter, gso, size, &layout),
            Need::Whole(gso, layout) => {
                self.batch.push_super_packet(outgoing, staged, packet, gso, &layout, self.runtime.max_slices());
            }
            Need::Cut(gso) => {
                let partial = self.runtime.has(Feature::TxChecksumming);
                let checksum = if partial { ChecksumOutput::AsMerged } else { ChecksumOutput::Full };
                let before = self.waiting();
                if self.cut(
                    outgoing,
                    staged,
                    packet,
                    segmenter,
                    SegmentOptions::default().with_gso(gso).with_checksum(checksum).with_max_segments(MOST_SEGMENTS),
                ) {
                    self.shared.counts.segmented.add(1);
                    self.shared.counts.segments.add((self.waiting() - before) as u64);
                    if is_cut_for_ids(&self.runtime, packet) {
                        self.shared.counts.segmented_for_ids.add(1);
                    }
                }
            }
            Need::Shorter => match self.runtime.too_big {
                TooBig::Fragment => {
                    let (batch, slices) = (&mut self.batch, self.runtime.max_slices());
                    let before = batch.frames().len();
                    // Over IPv6 only the sender's host may fragment (RFC 8200, section 4.5).
                    let done = segmenter.fragment(packet, self.runtime.mtu, None, |segment| {
                        batch.push_segment(outgoing, staged, &segment, metadata.vlan, metadata.layer, slices);
                    });
                    match done {
                        Ok(_) => {
                            self.shared.counts.segmented.add(1);
                            self.shared.counts.segments.add((self.waiting() - before) as u64);
                        }
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
    pub(crate) fn add_frame(&mut self, outgoing: &mut Outgoing, frame: &[u8], layer: Layer, now: u64) {
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
        let done = segmenter.segment(packet, &options, |segment| batch.push_segment(outgoing, staged, &segment, vlan, layer, slices));
        if let Err(error) = &done {
            tracing::debug!(port = %self.shared.name, %error, "a packet cannot be cut");
            self.shared.counts.dropped(DropReason::CannotSegment, 1);
        }
        done.is_ok()
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
        let (batch, slices) = (&mut self.batch, self.runtime.max_slices());
        let (vlan, layer) = (packet.metadata.vlan, packet.metadata.layer);
        let before = batch.frames().len();
        // Each part counts as one identification where it is cut, and takes one for each of its
        // segments.
        let extra = (size.get() / gso.size.get() - 1) as u16;
        let mut skipped = 0u16;
        let whole = gso.with_size(size).with_checksum(ChecksumForm::Partial);
        let options = SegmentOptions::default().with_gso(whole).with_checksum(ChecksumOutput::AsMerged);
        let done = segmenter.segment(packet, &options, |segment| {
            batch.push_part(outgoing, staged, &segment, &Part { gso, layout, skipped }, vlan, layer, slices);
            skipped = skipped.wrapping_add(extra);
        });
        match done {
            Ok(_) => {
                self.shared.counts.segmented.add(1);
                self.shared.counts.segments.add((self.waiting() - before) as u64);
            }
            Err(error) => {
                tracing::debug!(port = %self.shared.name, %error, "a packet cannot be cut");
                self.shared.counts.dropped(DropReason::CannotSegment, 1);
            }
        }
    }

    /// Sends what was added, and copies it for who monitors the port.
    pub(crate) fn flush(&mut self, outgoing: &mut Outgoing, segmenter: &mut Segmenter, copies: &mut Copies) -> Result<(), Broken> {
        let total = self.batch.frames().len();
        let (mut from, mut retries, mut done) = (0, FULL_RETRIES, Ok(()));
        while from < total {
            let time = copies.time();
            let Progress { sent, stopped } = self.transmit.transmit(outgoing, &self.batch, from);
            self.count(from..from + sent);
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
        if self.refusals != [0; 2] {
            for frame in frames.iter().filter(|frame| !frame.is_plain()) {
                self.refusals[usize::from(frame.gso.is_none())] = 0;
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
        let feature = match frame.gso.map(|gso| gso.kind) {
            Some(GsoKind::Udp) => Feature::TxUdpSegmentation,
            Some(_) => Feature::TcpSegmentationOffload,
            None => Feature::TxChecksumming,
        };
        let kind = usize::from(frame.gso.is_none());
        let refusals = &mut self.refusals[kind];
        *refusals += 1;
        if !std::mem::replace(&mut self.told[kind], true) {
            tracing::warn!(port = %self.shared.name, %error, offload = %feature, "the kernel refused an offload: it is done in software");
        }
        if *refusals == REFUSAL_LIMIT {
            tracing::warn!(port = %self.shared.name, offload = %feature, "the kernel refuses this offload again and again: it is switched off");
            self.shared.refuse(feature);
            self.runtime = self.shared.runtime();
            *refusals = 0;
        }
        self.shared.counts.fallbacks.add(1);
        let mut bytes = Vec::with_capacity(frame.length as usize);
        self.batch.copy_to(outgoing, &frame, &mut bytes);
        let packet = GsoPacket::new(std::slice::from_ref(&bytes), frame.gso).with_layer(frame.layer).with_checksum(frame.checksum);
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
            self.counts.bytes.add(self.again.frames()[from..from + sent].iter().map(|frame| u64::from(frame.length)).sum());
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
                let dropped = if matches!(cause, DropReason::Full | DropReason::Down | DropReason::Gone) { total - from } else { 1 };
                self.shared.counts.dropped(cause, dropped as u64);
                from += dropped;
            }
        }
    }
}

/// What a packet needs at a port.
pub(crate) fn need(runtime: &Runtime, packet: &SuperPacket<'_, Buffer>) -> Need {
    let metadata = &packet.metadata;
    let length = packet.length();
    let partial = matches!(metadata.checksum, RxChecksum::Partial { .. });
    // At byte 8 lies SCTP's, which is no sum: no port can be asked for it.
    let only_here = matches!(metadata.checksum, RxChecksum::Partial { offset, .. } if usize::from(offset) == sctp::CHECKSUM);
    let checksum = if partial && (only_here || !runtime.has(Feature::TxChecksumming)) { Need::Checksum } else { Need::Nothing };
    // LRO's, with headers written anew: only there can a checksum be made partial without touching
    // what came.
    let merged = metadata.gso.is_none() && metadata.packets > 1 && metadata.largest_payload != 0 && !packet.header().is_empty();
    // What fits with the link header fits without it.
    if metadata.gso.is_none() && !merged && length <= runtime.mtu {
        return checksum;
    }
    // Where the headers are known, no byte is read.
    let known = metadata.layout.filter(|layout| cut_at(metadata, layout));
    let head = Head::new(packet, if known.is_some() { 0 } else { MAX_HEADER });
    let bytes = head.bytes(packet);
    let network = network_offset(bytes, metadata);
    let short = length.saturating_sub(network) <= runtime.mtu;
    if metadata.gso.is_none() && !merged && short {
        return checksum;
    }
    let layout = known.or_else(|| match metadata.gso {
        Some(gso) => gso.kind.parse(bytes, length, metadata.layer, metadata.checksum).ok(),
        None => parse(bytes, length, metadata.layer).ok(),
    });
    let Some(layout) = layout else {
        // Nobody can cut what nobody can read; but a super-packet is what the sender's kernel made,
        // and says so.
        return if metadata.gso.is_none() { Need::Shorter } else { metadata.gso.map_or(Need::Shorter, Need::Cut) };
    };
    let payload = length.saturating_sub(usize::from(layout.payload));
    match metadata.gso {
        Some(gso) => {
            let fitting = SegmentSize::for_mtu(&layout, gso.kind, runtime.mtu);
            let told = match has_same_ids(&layout, gso) && may_change_ids(runtime, packet, &layout) {
                true => gso.with_id(IpId::Increment).with_outer_id(IpId::Increment),
                false => gso,
            };
            let fits = fitting.is_some_and(|fitting| gso.size <= fitting) || payload <= gso.size.get() && length - network <= runtime.mtu;
            // Datagrams without a checksum, with headers written anew: a port that cuts them itself
            // asks for one.
            let unused =
                !partial && gso.kind == GsoKind::Udp && metadata.packets > 1 && layout.outer.is_none() && !packet.header().is_empty();
            if fits && (partial || unused) && takes(runtime, &layout, told, length - network, payload) {
                if partial { Need::Nothing } else { Need::Whole(told, layout) }
            } else if fits
                && partial
                && let Some(size) = part(runtime, &layout, told)
            {
                Need::Parts(told, size, layout)
            } else if fits {
                Need::Cut(gso)
            } else {
                match (gso.kind, fitting) {
                    // A stream may be cut anywhere; so may a datagram be fragmented.
                    (GsoKind::Tcp4 | GsoKind::Tcp6 | GsoKind::UdpFragments, Some(size)) => Need::Cut(gso.with_size(size)),
                    _ => Need::Shorter,
                }
            }
        }
        None => {
            let kind = match (layout.protocol, layout.version) {
                (Protocol::Tcp, IpVersion::V4) => GsoKind::Tcp4,
                (Protocol::Tcp, IpVersion::V6) => GsoKind::Tcp6,
                (Protocol::Udp | Protocol::Dccp, _) => return if short { checksum } else { Need::Shorter },
            };
            let Some(fitting) = SegmentSize::for_mtu(&layout, kind, runtime.mtu) else { return Need::Shorter };
            // What LRO merged is cut no longer than what its sender sent.
            let size = SegmentSize::new(metadata.largest_payload as usize)
                .filter(|_| metadata.packets > 1)
                .map_or(fitting, |size| size.min(fitting));
            let form = if partial { ChecksumForm::Partial } else { ChecksumForm::Full };
            let gso = Gso::new(kind, size).with_checksum(form);
            // Even where it is no longer than the MTU: a receiver learns from it how long segments
            // are, and acknowledges by that.
            if merged && payload > size.get() && takes(runtime, &layout, gso, length - network, payload) {
                Need::Whole(gso, layout)
            } else if merged
                && let Some(size) = part(runtime, &layout, gso)
                && payload > size.get()
            {
                Need::Parts(gso, size, layout)
            } else if short {
                checksum
            } else {
                Need::Cut(gso)
            }
        }
    }
}

/// Are these the headers at which the packet is cut? In UDP the place of its partial checksum says
/// so, as [`GsoKind::parse`] has it.
fn cut_at(metadata: &Metadata, layout: &Layout) -> bool {
    match (metadata.gso, metadata.checksum) {
        (Some(Gso { kind: GsoKind::Udp | GsoKind::UdpFragments, .. }), RxChecksum::Partial { start, .. }) => start == layout.transport,
        _ => true,
    }
}

/// Does the port cut super-packets of this kind itself, if they are not too large?
fn cuts(runtime: &Runtime, layout: &Layout, gso: Gso) -> bool {
    let capabilities = &runtime.capabilities;
    let offload = match gso.kind {
        GsoKind::Tcp4 | GsoKind::Tcp6 => runtime.has(Feature::TcpSegmentationOffload),
        GsoKind::Udp => runtime.has(Feature::TxUdpSegmentation),
        _ => false,
    };
    offload
        && (layout.outer.is_none() || capabilities.tunnels && layout.outer.is_some_and(|outer| outer.tunnel.is_udp()))
        // A virtio header has no place for identifications that stay the same, nor for CWR on all
        // segments.
        && (capabilities.fixed_ids || !(has_same_ids(layout, gso) || gso.cwr == Cwr::All))
}

/// Do all segments have the same IPv4 identification, or the same outer one?
fn has_same_ids(layout: &Layout, gso: Gso) -> bool {
    gso.id == IpId::Fixed && layout.version == IpVersion::V4 || gso.outer_id == IpId::Fixed && layout.outer.is_some()
}

/// May the port number the segments anew? Of IPv4 packets that must not be fragmented nobody reads
/// the identification (RFC 6864, section 4.1).
fn may_change_ids(runtime: &Runtime, packet: &SuperPacket<'_, Buffer>, layout: &Layout) -> bool {
    if runtime.capabilities.fixed_ids || !runtime.has(Feature::TxTcpMangleidSegmentation) {
        return false;
    }
    let head = Head::new(packet, usize::from(layout.payload));
    let bytes = head.bytes(packet);
    let dont_fragment = |network: u16, version: IpVersion| {
        let place = usize::from(network) + ipv4::FRAGMENT;
        let flags = bytes.get(place..place + 2).map_or(0, |flags| u16::from_be_bytes([flags[0], flags[1]]));
        version == IpVersion::V6 || flags & ipv4::DONT_FRAGMENT != 0
    };
    dont_fragment(layout.network, layout.version) && layout.outer.is_none_or(|outer| dont_fragment(outer.network, outer.version))
}

/// Is a packet cut at this port only because the port cannot be told that its identifications stay
/// the same?
fn is_cut_for_ids(runtime: &Runtime, packet: &SuperPacket<'_, Buffer>) -> bool {
    let same = |gso: Gso| (gso.id == IpId::Fixed || gso.outer_id == IpId::Fixed) && gso.cwr != Cwr::All;
    if runtime.capabilities.fixed_ids || !packet.metadata.gso.is_some_and(same) {
        return false;
    }
    let mut able = *runtime;
    able.capabilities.fixed_ids = true;
    matches!(need(&able, packet), Need::Nothing | Need::Parts(..))
}

/// Does the port cut this super-packet itself? `length` counts from the IP header on.
fn takes(runtime: &Runtime, layout: &Layout, gso: Gso, length: usize, payload: usize) -> bool {
    let capabilities = &runtime.capabilities;
    let segments = payload.div_ceil(gso.size.get());
    cuts(runtime, layout, gso)
        && (gso.kind != GsoKind::Udp || segments <= MaxSegments::UDP.get() as usize)
        && length <= runtime.max_gso_size()
        && payload <= capabilities.max_gso_payload as usize
        && segments <= capabilities.max_gso_segments as usize
}

/// The payload of the largest super-packets that the port takes of this one, of which it takes
/// smaller ones only: whole segments, and two at least, or nothing is gained.
fn part(runtime: &Runtime, layout: &Layout, gso: Gso) -> Option<SegmentSize> {
    if !matches!(gso.kind, GsoKind::Tcp4 | GsoKind::Tcp6) || layout.outer.is_some() || !cuts(runtime, layout, gso) {
        return None;
    }
    let (capabilities, size) = (&runtime.capabilities, gso.size.get());
    let headers = usize::from(layout.payload - layout.network);
    let payload = runtime.max_gso_size().checked_sub(headers)?.min(capabilities.max_gso_payload as usize).min(usize::from(u16::MAX));
    let segments = (payload / size).min(capabilities.max_gso_segments as usize);
    if segments < 2 { None } else { SegmentSize::new(segments * size) }
}

#[cfg(test)]
mod tests;
