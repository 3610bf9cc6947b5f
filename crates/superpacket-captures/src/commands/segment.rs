//! `segment`: cuts each frame of a capture that exceeds the MTU into the packets that a network
//! would have carried.

use std::iter::once;
use std::num::NonZeroU16;
use std::time::Duration;

use crate::file::{Block, CaptureError, Frame, Record, Sink, Start, start_of};
use serde::Serialize;
use superpacket::Simd;
use superpacket::aggregate::Reason;
use superpacket::packet::Layer;
use superpacket::segment::{
    Gso, GsoKind, GsoPacket, SegmentError, SegmentOptions as CutOptions, SegmentSize, Segmenter,
};
use superpacket::wire::{
    IpVersion, Layout, Protocol, Refusal, Unparsed, ethernet, ipv4, ipv6, parse_datagram, pppoe,
    tcp,
};

use crate::commands::checksums::{
    ChecksumState, Checksums, SHORTEST_FRAME, Wrong, be16, check, stated_length,
};
use crate::commands::coalesce::write_completed;
use crate::commands::destination::{OpenOutput, Output};
use crate::commands::error::Error;
use crate::commands::input::{FrameReceiver, Input, InputEnd, OpenInput};
use crate::commands::lanes::kind_of;
use crate::commands::progress::Progress;
use crate::commands::repair::{ChecksumRepairs, Repair};
use crate::commands::totals::{Blocks, CutShort, Totals};

/// Options of [`segment`].
#[derive(Clone, Debug)]
pub struct SegmentOptions {
    /// Maximum length in bytes of an IP packet that is not cut: 68 to 65,535.
    pub mtu: u32,
    /// Whether packets that cannot be segmented are cut into IP fragments: IPv4 packets whose
    /// don't-fragment bit is clear, and IPv6 packets as their sender would have done it.
    pub fragment: bool,
    /// Payload size in bytes of the datagrams into which UDP packets above the MTU are cut, because
    /// they were sent with `UDP_SEGMENT`, or merged by UDP GRO. `None` if there are no such
    /// packets.
    pub udp_size: Option<u16>,
    /// Whether wrong checksums are corrected, so that their frames can be cut.
    pub fix_checksums: bool,
    /// Whether frames that are longer than the MTU although their IP length is not are cut
    /// according to their real length. Some network cards expect only the length of the headers in
    /// the IP length of a frame that they are to segment.
    pub fix_lengths: bool,
    /// Whether frames that are not cut keep their unfinished checksums.
    pub keep_partial: bool,
    /// Whether a capture that ends within a record is an error, and so are frames that stay uncut
    /// because their checksums are wrong.
    pub strict: bool,
}

impl Default for SegmentOptions {
    fn default() -> Self {
        SegmentOptions {
            mtu: 1500,
            fragment: false,
            udp_size: None,
            fix_checksums: false,
            fix_lengths: false,
            keep_partial: false,
            strict: false,
        }
    }
}

/// The report of [`segment`].
#[derive(Clone, Debug, Serialize)]
pub struct SegmentReport {
    command: &'static str,
    /// The name of the capture that was read.
    pub input: String,
    /// The name of the capture that was written.
    pub output: String,
    /// Maximum length in bytes of an IP packet that was not cut.
    pub mtu: u32,
    /// Numbers of packets and bytes before and after segmentation.
    #[serde(flatten)]
    pub totals: Totals,
    /// Numbers of checksums that were completed or corrected, in frames of the input.
    #[serde(flatten)]
    pub checksums: ChecksumRepairs,
    /// Number of frames that were cut according to their real length, because their IP header
    /// states a shorter one.
    pub lengths_fixed: u64,
    /// Number of segments and fragments that were written.
    pub segments: u64,
    /// Number of frames above the MTU that were not cut.
    pub uncut: u64,
    /// Numbers of blocks of a pcapng file, other than packets and interfaces, that were kept or
    /// left out.
    pub blocks: Blocks,
    /// Where the input ends within a record; `None` if it does not.
    pub cut_short: Option<CutShort>,
    /// Whether [`Progress::end_requested`] ended the reading of the input.
    pub interrupted: bool,
}

impl SegmentReport {
    /// Returns the number of frames above the MTU that were not cut because their checksums are
    /// wrong.
    pub fn uncut_by_checksum(&self) -> u64 {
        self.totals.with_wrong_checksums()
    }

    /// Returns the number of frames above the MTU that were not cut because their IP length is
    /// within the MTU.
    pub fn uncut_by_length(&self) -> u64 {
        self.totals.reasons.get(IP_LENGTH).copied().unwrap_or(0)
    }
}

/// Name of the reason why a frame above the MTU is not cut: its IP length is shorter than the
/// frame, and within the MTU.
const IP_LENGTH: &str = "ip_length";

/// Cuts frames above the MTU into the packets that a network would have carried.
///
/// [Packets in memory](crate::Packets) that are known to be super-packets are cut into their own
/// segments, even below the MTU.
///
/// Frames that cannot be cut are written as they are, except that their unfinished checksums are
/// completed (unless [`SegmentOptions::keep_partial`] is set) and, on request, wrong ones are
/// corrected. They are counted by reason.
///
/// # Errors
/// Any error of reading or writing, and options that are out of range. After an error, the output
/// file is as it was before.
pub fn segment(
    input: Input<'_>,
    output: Output<'_>,
    options: &SegmentOptions,
    progress: &mut dyn Progress,
) -> Result<SegmentReport, Error> {
    if !(68..=65_535).contains(&options.mtu) {
        return Err(Error::Options(format!("mtu: {} is not between 68 and 65535", options.mtu)));
    }
    if options.udp_size == Some(0) {
        return Err(Error::Options("udp_size: 0 is not between 1 and 65535".to_owned()));
    }
    output.check(&input)?;
    let mut input = OpenInput::open(input, options.strict, progress)?;
    let output_name = output.name();
    let writer = output.create(&input)?;
    let simd = Simd::detect();
    let mut cutter = Cutter {
        writer,
        segmenter: Segmenter::new().with_simd(simd),
        simd,
        mtu: options.mtu as usize,
        fragment: options.fragment,
        udp_size: options.udp_size.and_then(|size| SegmentSize::new(usize::from(size))),
        fix_lengths: options.fix_lengths,
        repair: Repair::new(options.fix_checksums, options.keep_partial),
        totals: Totals::default(),
        fits: 0,
        cut: 0,
        segments: 0,
        uncut: 0,
        lengths_fixed: 0,
        fragment_id: 0,
        changed: Vec::new(),
    };
    cutter.writer.declare(input.interfaces())?;
    input.deliver(&mut cutter)?;
    cutter.writer.declare(input.interfaces())?;
    let name = input.file().to_owned();
    cutter.totals.filtered_out = input.filtered_out();
    let end = input.finish()?;
    match cutter.totals.with_wrong_checksums() {
        frames @ 1.. if options.strict => Err(Error::WrongChecksums(frames)),
        _ => cutter.finish(name, output_name, options.mtu, end),
    }
}

/// How a frame is written: unchanged, segmented, or repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FramePlan {
    /// The frame is written whole: it fits the MTU, or the MTU does not apply to it.
    Whole,
    /// The frame is segmented with these parameters.
    Cut(Gso),
    /// The frame exceeds the MTU but cannot be segmented, for the reason of this name. It may be
    /// cut into IP fragments.
    Uncuttable(&'static str),
    /// The frame exceeds the MTU but must be written whole, for the reason of this name.
    Untouchable(&'static str),
}

struct Cutter<'a> {
    writer: OpenOutput<'a>,
    segmenter: Segmenter,
    simd: Simd,
    mtu: usize,
    fragment: bool,
    udp_size: Option<SegmentSize>,
    fix_lengths: bool,
    repair: Repair,
    totals: Totals,
    fits: u64,
    cut: u64,
    segments: u64,
    uncut: u64,
    lengths_fixed: u64,
    /// Identification of the IPv6 datagram that was fragmented last.
    fragment_id: u32,
    /// Buffer for a copy of a frame that has to be changed before it is cut; reused for every such
    /// frame.
    changed: Vec<u8>,
}

impl FrameReceiver for Cutter<'_> {
    #[inline]
    fn frame(&mut self, frame: &Frame<'_>) -> Result<(), Error> {
        Ok(self.write_frame(frame)?)
    }

    fn block(&mut self, block: &Block<'_>) -> Result<(), Error> {
        Ok(self.writer.block(block)?)
    }

    fn idle(&mut self, _waited: Duration) -> Result<Option<Duration>, Error> {
        self.writer.flush()?;
        Ok(None)
    }
}

impl Cutter<'_> {
    /// Writes a frame of the input, whole or cut.
    fn write_frame(&mut self, frame: &Frame<'_>) -> Result<(), CaptureError> {
        self.writer.declare(frame.interfaces)?;
        self.totals.packets_in += 1;
        self.totals.bytes_in += frame.data.len() as u64;
        let (layer, link) = match start_of(frame.link_type(), frame.data) {
            Start::Ethernet => (Layer::Ethernet, 0),
            Start::Ip { header_length } => (Layer::Ip, header_length),
            Start::Other => {
                self.totals.reason("link_type");
                return self.write_whole(frame, 0, None);
            }
        };
        let packet = frame.data.get(link..).unwrap_or(&[]);
        let layout = parse_datagram(packet, packet.len(), layer);
        let truncated = frame.is_truncated()
            || matches!(&layout, Ok(layout) if layout.refusal == Some(Refusal::Truncated));
        let found = self.repair.find(packet, layer, &layout, truncated, self.simd);
        let plan = match &layout {
            _ if truncated => match frame.original_length as usize
                > self.mtu + link + network_offset(packet, layer).unwrap_or(0)
            {
                true => FramePlan::Untouchable("truncated"),
                false => FramePlan::Whole,
            },
            _ if self.is_length_left_out(packet, layer, &layout) => match self.fix_lengths {
                true => match self.cut_by_real_length(frame, link, layer)? {
                    Ok(()) => return Ok(()),
                    Err(reason) => FramePlan::Untouchable(reason),
                },
                false => FramePlan::Untouchable(IP_LENGTH),
            },
            Ok(layout) => {
                let size = frame.options.segment_size();
                self.plan(packet, layer, layout, found.as_ref(), size)
            }
            Err(unparsed) => match ip_length(packet, layer) {
                Some(length) if length > self.mtu => FramePlan::Uncuttable(unparsed.reason.name()),
                _ => FramePlan::Whole,
            },
        };
        let found = found.as_ref();
        match plan {
            FramePlan::Whole => {
                self.fits += 1;
                self.write_whole(frame, link, found)
            }
            FramePlan::Cut(gso) => match self.cut(frame, link, layer, gso)? {
                Ok(()) => {
                    found.map(|found| self.repair.rewrite(found));
                    Ok(())
                }
                Err(error) => {
                    let reason = reason_name(&error);
                    self.write_uncuttable(frame, link, layer, found, layout.ok(), reason)
                }
            },
            FramePlan::Uncuttable(reason) => {
                self.write_uncuttable(frame, link, layer, found, layout.ok(), reason)
            }
            FramePlan::Untouchable(reason) => {
                self.uncut += 1;
                self.totals.reason(reason);
                self.write_whole(frame, link, found.map(|found| found.of_header()).as_ref())
            }
        }
    }

    /// Returns whether a packet fits the MTU by its IP length, but the frame exceeds the MTU by
    /// more bytes than padding or a trailer has.
    fn is_length_left_out(
        &self,
        packet: &[u8],
        layer: Layer,
        layout: &Result<Layout, Unparsed>,
    ) -> bool {
        let end = match layout {
            _ if packet.len() <= self.mtu => None,
            Ok(layout) => Some(layout.end as usize),
            Err(_) => network_offset(packet, layer)
                .zip(ip_length(packet, layer))
                .map(|(network, length)| network + length),
        };
        end.is_some_and(|end| {
            let behind = packet.len().saturating_sub(end);
            let network = network_offset(packet, layer).unwrap_or(0);
            behind > SHORTEST_FRAME
                && end <= network + self.mtu
                && packet.len() > network + self.mtu
        })
    }

    /// Cuts a frame as if its IP length had been left to the network device. If this is not
    /// possible, returns the name of the reason.
    #[cold]
    fn cut_by_real_length(
        &mut self,
        frame: &Frame<'_>,
        link: usize,
        layer: Layer,
    ) -> Result<Result<(), &'static str>, CaptureError> {
        let mut changed = std::mem::take(&mut self.changed);
        changed.clear();
        changed.extend_from_slice(frame.data);
        let packet = changed.get_mut(link..).unwrap_or(&mut []);
        clear_length(packet, layer);
        let layout = parse_datagram(packet, packet.len(), layer);
        let found = self.repair.find(packet, layer, &layout, false, self.simd);
        let plan = layout.map(|layout| self.plan(packet, layer, &layout, found.as_ref(), None));
        let cut = match plan {
            Ok(FramePlan::Cut(gso)) => {
                let frame = &Frame { data: &changed, ..*frame };
                self.cut(frame, link, layer, gso)?.map_err(|error| reason_name(&error))
            }
            Ok(FramePlan::Uncuttable(reason) | FramePlan::Untouchable(reason)) => Err(reason),
            Ok(FramePlan::Whole) | Err(_) => Err(IP_LENGTH),
        };
        if cut.is_ok() {
            self.lengths_fixed += 1;
            found.map(|found| self.repair.rewrite(&found));
        }
        self.changed = changed;
        Ok(cut)
    }

    /// Decides how to write a complete packet whose headers were read. `size` is the number of
    /// payload bytes per segment of a packet that is known to be a super-packet.
    fn plan(
        &self,
        packet: &[u8],
        layer: Layer,
        layout: &Layout,
        found: Option<&Checksums>,
        size: Option<NonZeroU16>,
    ) -> FramePlan {
        let network = usize::from(layout.outermost());
        let payload = (layout.end as usize).saturating_sub(usize::from(layout.payload));
        let above = (layout.end as usize).saturating_sub(network) > self.mtu
            || size.is_some_and(|size| payload > usize::from(size.get()));
        // A length that was left to the network device is filled in, unless the frame may be
        // padded.
        let unfinished = layout.refusal == Some(Refusal::NoLength)
            && (layer == Layer::Ip || packet.len() > SHORTEST_FRAME);
        if !above && !unfinished {
            return FramePlan::Whole;
        }
        let is_uncertain = |found: &Checksums| {
            found.iter().any(|checksum| checksum.state == ChecksumState::Uncertain)
        };
        let checked = match self.repair.fixes() {
            true if above && found.is_some_and(is_uncertain) => {
                return FramePlan::Untouchable("length");
            }
            true => Ok(()),
            false => check(packet, layer, layout, found, self.simd),
        };
        match checked {
            Ok(()) => {}
            Err(_) if !above => return FramePlan::Whole,
            Err(Wrong::Ip) => return FramePlan::Untouchable(Reason::BadIpChecksum.name()),
            Err(Wrong::Transport) => return FramePlan::Untouchable(Reason::BadChecksum.name()),
        }
        let headers = usize::from(layout.payload)
            - network
            - if layout.jumbo { ipv6::JUMBO_HEADER_LENGTH } else { 0 };
        let Some(room) = SegmentSize::new(self.mtu.saturating_sub(headers)) else {
            return FramePlan::Uncuttable("segment_too_small");
        };
        let own = size.and_then(|size| SegmentSize::new(usize::from(size.get())));
        let size = match layout.protocol {
            Protocol::Tcp => {
                let flags =
                    packet.get(usize::from(layout.transport) + tcp::FLAGS).copied().unwrap_or(0);
                if above && flags & (tcp::SYN | tcp::RST | tcp::URG) != 0 {
                    return FramePlan::Uncuttable(Reason::TcpFlags.name());
                }
                own.map_or(room, |own| own.min(room))
            }
            Protocol::Dccp => own.map_or(room, |own| own.min(room)),
            // The packet becomes a single segment, so that only its lengths are filled in.
            Protocol::Udp if !above => room,
            // Datagrams have borders, so the MTU does not say where to cut.
            Protocol::Udp => match own.or(self.udp_size) {
                Some(size) => size,
                None => return FramePlan::Uncuttable("udp_datagram"),
            },
        };
        FramePlan::Cut(Gso::new(kind_of(layout), size))
    }

    fn cut(
        &mut self,
        frame: &Frame<'_>,
        link: usize,
        layer: Layer,
        gso: Gso,
    ) -> Result<Result<(), SegmentError>, CaptureError> {
        let (header, packet) = frame.data.split_at(link.min(frame.data.len()));
        let options = CutOptions::default().with_fragment_id(self.next_fragment_id());
        let Cutter { writer, segmenter, totals, .. } = self;
        let mut written = Ok(());
        let record = record(frame);
        let plan = segmenter.segment(
            &GsoPacket::linear(&packet, gso).with_layer(layer),
            &options,
            |segment| {
                totals.bytes_out += (header.len() + segment.length()) as u64;
                if written.is_ok() {
                    written = writer.write(
                        record,
                        once(header).chain(once(segment.header())).chain(segment.payload()),
                    );
                }
            },
        );
        written?;
        Ok(plan.map(|plan| {
            self.count_cut(
                plan.segments,
                if gso.kind == GsoKind::UdpFragments { "fragmented" } else { "cut" },
            )
        }))
    }

    fn next_fragment_id(&mut self) -> u32 {
        // The identification must not be 0, with which the segmenter would choose one itself.
        self.fragment_id = self.fragment_id.wrapping_add(1).max(1);
        self.fragment_id
    }

    fn count_cut(&mut self, pieces: u32, reason: &'static str) {
        let pieces = u64::from(pieces);
        self.totals.packets_out += pieces;
        self.segments += pieces;
        if pieces > 1 {
            self.totals.super_packets += 1;
            self.totals.merged += pieces - 1;
        }
        match reason {
            "cut" => self.cut += 1,
            _ => self.totals.reason(reason),
        }
    }

    /// Writes a frame above the MTU that cannot be segmented: cut into IP fragments if this is
    /// requested and allowed, otherwise whole.
    fn write_uncuttable(
        &mut self,
        frame: &Frame<'_>,
        link: usize,
        layer: Layer,
        found: Option<&Checksums>,
        layout: Option<Layout>,
        reason: &'static str,
    ) -> Result<(), CaptureError> {
        let reason = match self.fragment {
            false => reason,
            true => match self.fragments(frame, link, layer, found, layout)? {
                Ok(()) => {
                    found.map(|found| self.repair.rewrite(found));
                    return Ok(());
                }
                Err(error) => reason_name(&error),
            },
        };
        self.uncut += 1;
        self.totals.reason(reason);
        self.write_whole(frame, link, found)
    }

    fn fragments(
        &mut self,
        frame: &Frame<'_>,
        link: usize,
        layer: Layer,
        found: Option<&Checksums>,
        layout: Option<Layout>,
    ) -> Result<Result<(), SegmentError>, CaptureError> {
        // When a datagram is fragmented, lengths that were left to the network device are filled
        // in.
        if let Some(layout) = layout.filter(|layout| {
            let ipv6_udp = layout.version == IpVersion::V6 && layout.protocol == Protocol::Udp;
            ipv6_udp && layout.outer.is_none() && layout.refusal == Some(Refusal::NoLength)
        }) {
            let headers = usize::from(layout.transport - layout.network) + 8;
            return match SegmentSize::new(self.mtu.saturating_sub(headers)) {
                Some(size) => self.cut(frame, link, layer, Gso::new(GsoKind::UdpFragments, size)),
                None => {
                    Ok(Err(SegmentError::SegmentTooSmall { needed: headers + 8, got: self.mtu }))
                }
            };
        }
        // Only its source may fragment an IPv6 packet, so the result is what the source would have
        // sent.
        let ipv6_id = Some(self.next_fragment_id());
        let (header, packet) = frame.data.split_at(link.min(frame.data.len()));
        let all = self.repair.all();
        let Cutter { writer, segmenter, totals, changed, .. } = self;
        let packet = match found {
            None => packet,
            Some(found) => {
                changed.clear();
                changed.extend_from_slice(packet);
                for (place, value) in
                    found.fields(|checksum| all.includes(checksum)).into_iter().flatten()
                {
                    if let Some(field) = changed.get_mut(place..place + 2) {
                        field.copy_from_slice(&value.to_be_bytes());
                    }
                }
                changed.as_slice()
            }
        };
        let mut written = Ok(());
        let record = record(frame);
        let buffers = [packet];
        let packet = GsoPacket::uncut(&buffers).with_layer(layer);
        let plan = segmenter.fragment(&packet, self.mtu, ipv6_id, |fragment| {
            totals.bytes_out += (header.len() + fragment.length()) as u64;
            if written.is_ok() {
                written = writer.write(
                    record,
                    once(header).chain(once(fragment.header())).chain(fragment.payload()),
                );
            }
        });
        written?;
        Ok(plan.map(|plan| self.count_cut(plan.segments, "fragmented")))
    }

    /// Writes a frame whole, but completes or corrects its checksums as the options say.
    fn write_whole(
        &mut self,
        frame: &Frame<'_>,
        link: usize,
        found: Option<&Checksums>,
    ) -> Result<(), CaptureError> {
        self.totals.packets_out += 1;
        self.totals.bytes_out += frame.data.len() as u64;
        match found {
            None => self.writer.write(frame.record(), [frame.data]),
            Some(found) => {
                let fields = self.repair.pass(found);
                write_completed(&mut self.writer, frame.record(), frame.data, link, fields)
            }
        }
    }

    fn finish(
        mut self,
        input: String,
        output: String,
        mtu: u32,
        end: InputEnd,
    ) -> Result<SegmentReport, Error> {
        let blocks = self.writer.finish()?;
        for (name, count) in [("fits", self.fits), ("cut", self.cut)] {
            if count > 0 {
                self.totals.reasons.insert(name, count);
            }
        }
        Ok(SegmentReport {
            command: "segment",
            input,
            output,
            mtu,
            totals: self.totals,
            checksums: self.repair.counts,
            lengths_fixed: self.lengths_fixed,
            segments: self.segments,
            uncut: self.uncut,
            blocks,
            cut_short: end.cut_short,
            interrupted: end.interrupted,
        })
    }
}

/// Returns the properties of a segment for the output file: time and interface of the frame from
/// which it was cut, without options that describe the frame as a whole.
fn record<'a>(frame: &Frame<'a>) -> Record<'a> {
    Record {
        interface: frame.interface,
        time: frame.time,
        original_length: None,
        options: frame.options.of_segment(),
    }
}

/// Returns the name by which the report counts a frame that could not be segmented.
fn reason_name(error: &SegmentError) -> &'static str {
    match error {
        SegmentError::Headers(reason) => reason.name(),
        other => other.name(),
    }
}

/// Returns the offset of the outermost IP header in a packet whose headers could not all be read;
/// `None` if it is not known.
fn network_offset(packet: &[u8], layer: Layer) -> Option<usize> {
    if layer == Layer::Ip {
        return Some(0);
    }
    let mut kind = be16(packet, ethernet::ETHERTYPE)?;
    let mut offset = ethernet::HEADER_LENGTH;
    while ethernet::is_vlan(kind) {
        kind = be16(packet, offset + 2)?;
        offset += 4;
    }
    match kind {
        ethernet::IPV4 | ethernet::IPV6 => Some(offset),
        ethernet::PPPOE_SESSION => Some(offset + pppoe::HEADER_LENGTH),
        _ => None,
    }
}

/// Returns the length in bytes of a packet whose headers could not all be read, according to its
/// outermost IP header. If the header states 0, as for a packet above 65,535 bytes (RFC 2675) or
/// one whose length was left to the network device, the packet consists of all bytes that follow.
fn ip_length(packet: &[u8], layer: Layer) -> Option<usize> {
    let network = network_offset(packet, layer)?;
    let stated = stated_length(packet, network, ip_version(packet, network)?)?;
    Some(if stated == 0 { packet.len() - network } else { stated })
}

fn ip_version(packet: &[u8], network: usize) -> Option<IpVersion> {
    match packet.get(network)? >> 4 {
        4 => Some(IpVersion::V4),
        6 => Some(IpVersion::V6),
        _ => None,
    }
}

/// Sets the length of the outermost IP header, and the checksum of an IPv4 header, to 0, as senders
/// do that leave them to the network device.
fn clear_length(packet: &mut [u8], layer: Layer) {
    let Some(network) = network_offset(packet, layer) else { return };
    let fields: &[usize] = match ip_version(packet, network) {
        Some(IpVersion::V4) => &[ipv4::TOTAL_LENGTH, ipv4::CHECKSUM],
        Some(IpVersion::V6) => &[ipv6::PAYLOAD_LENGTH],
        None => &[],
    };
    for field in fields {
        if let Some(field) = packet.get_mut(network + field..network + field + 2) {
            field.fill(0);
        }
    }
}
