//! Runs: consecutive packets of one flow that join it without being parsed.

use alloc::vec::Drain;
use core::ops::Range;

use super::super::examine::{ExamineOptions, varying_sum};
use super::super::lro::lro_refusal;
use super::super::mask::{LONGER_HEADER, USUAL_HEADER};
use super::super::policy::{Mode, Storage};
use super::super::poll::Poll;
use super::super::{AggregateCounters, Reason};
use super::{Held, mask};
use crate::checksum::Sum;
use crate::memory::Memory;
use crate::packet::{RxChecksum, RxPacket};
use crate::super_packet::Piece;
use crate::wire::{IpVersion, Protocol, be16, be32, byte, ipv4, ipv6, tcp, udp, usual};
use superpacket_simd::{Simd, prefetch_lines, prefetch_range};

/// Distance in packets at which headers are prefetched: enough to hide a cache miss at about 10 ns
/// per packet.
const AHEAD: usize = 10;

/// Distance in packets at which payload is prefetched that will be summed. Shorter than the
/// distance for headers, since reading one payload takes as long as several headers.
const READ_AHEAD: usize = 4;

/// Distance in packets at which payload is prefetched if it will be copied into the first packet's
/// buffer. Shorter than `READ_AHEAD`, since the copy needs room in the cache too.
pub(in crate::aggregate) const JOIN_AHEAD: usize = 2;

/// Number of cache lines of headers that are prefetched: link, IP, and TCP with timestamps.
const AHEAD_LINES: usize = 2;

/// Prefetches the headers of the first `AHEAD` packets of a batch.
#[inline(always)]
pub(in crate::aggregate) fn prefetch_first<B>(batch: &[RxPacket<B>], memory: &impl Memory<B>) {
    for packet in batch.iter().take(AHEAD) {
        prefetch_lines::<AHEAD_LINES>(memory.bytes(&packet.first));
    }
}

/// Prefetches the headers of the packet that lies `AHEAD` packets after the first in `batch`.
#[inline(always)]
pub(in crate::aggregate) fn prefetch_ahead<B>(batch: &[RxPacket<B>], memory: &impl Memory<B>) {
    if let Some(ahead) = batch.get(AHEAD) {
        prefetch_lines::<AHEAD_LINES>(memory.bytes(&ahead.first));
    }
}

/// Prefetches all bytes of the packet at index `ahead` of `batch`, which will be joined soon.
#[inline(always)]
pub(in crate::aggregate) fn prefetch_payload<B>(
    batch: &[RxPacket<B>],
    ahead: usize,
    memory: &impl Memory<B>,
) {
    if let Some(packet) = batch.get(ahead) {
        let bytes = memory.bytes(&packet.first);
        prefetch_range(bytes, bytes.len());
    }
}

/// The result of joining a run of consecutive packets to a flow.
#[derive(Clone, Copy, Debug)]
pub(in crate::aggregate) struct JoinedRun {
    /// Number of packets that joined the flow in this run.
    pub(in crate::aggregate) packets: u32,
    /// The reason why the flow must leave the aggregator now; `None` if it may stay.
    pub(in crate::aggregate) complete: Option<Reason>,
}

impl<B> Held<B> {
    /// Joins a packet that this flow [expects](Self::expects), and all that follow it in sequence.
    /// The result equals that of [`attempt`](Self::attempt), which is slower. Stops when the flow
    /// is complete, or at a packet that does not join, for which `attempt` finds the reason. Counts
    /// the packets that joined.
    #[inline(always)]
    pub(in crate::aggregate) fn join_run<const LRO: bool, P: Poll<B>>(
        &mut self,
        batch: &mut Drain<'_, RxPacket<B>>,
        options: &ExamineOptions,
        storage: Storage,
        counters: &mut AggregateCounters,
        poll: &mut P,
    ) -> JoinedRun {
        // After a first packet that is longer than the merge limit, ACKs end the flow.
        let absorbs = LRO
            && matches!(options.mode, Mode::Lro { acks: true })
            && self.payload <= self.payload_limit;
        if absorbs && self.in_sequence {
            let run = match self.usual {
                usual::ETHERNET_IPV4 => {
                    self.absorb_run::<{ usual::ETHERNET_IPV4 }, P>(batch, options, counters, poll)
                }
                _ => self.absorb_run::<{ usual::NONE }, P>(batch, options, counters, poll),
            };
            if run.packets > 0 {
                return run;
            }
        }
        // Data that follows a held pure ACK is left to `attempt`, which counts the ACK as absorbed.
        let apt = self.in_sequence && !(LRO && self.payload == 0);
        let (true, Some(packet)) = (apt, batch.as_slice().first()) else {
            return JoinedRun { packets: 0, complete: None };
        };
        let length = poll.bytes(&packet.first).len();
        match packet.checksum {
            RxChecksum::Unnecessary { .. } if LRO || P::SUMS || options.want_sum => self
                .usual_run::<LRO, true, true, P>(length, batch, options, storage, counters, poll),
            RxChecksum::Unnecessary { .. } => self
                .usual_run::<LRO, true, false, P>(length, batch, options, storage, counters, poll),
            _ => self
                .usual_run::<LRO, false, true, P>(length, batch, options, storage, counters, poll),
        }
    }

    /// LRO: absorbs consecutive pure ACKs of this flow, each newer than the one before, with the
    /// same result as `attempt`. Stops at a packet that cannot be absorbed, for which `attempt`
    /// finds the reason.
    ///
    /// `USUAL` is the number of its [usual] layout, or [`NONE`](usual::NONE) for any layout.
    #[inline(never)]
    fn absorb_run<const USUAL: u8, P: Poll<B>>(
        &mut self,
        batch: &mut Drain<'_, RxPacket<B>>,
        options: &ExamineOptions,
        counters: &mut AggregateCounters,
        poll: &mut P,
    ) -> JoinedRun {
        let layout = self.layout.known::<USUAL>();
        let (network, transport) = (usize::from(layout.network), usize::from(layout.transport));
        let start = usize::from(self.layout.payload);
        let (mut packets, mut bytes) = (0, 0);
        let mut complete = None;
        while complete.is_none()
            && let Some(packet) = batch.as_slice().first()
        {
            let frame = poll.bytes(&packet.first);
            let end = match layout.version {
                IpVersion::V4 => network + usize::from(be16(frame, network + ipv4::TOTAL_LENGTH)),
                IpVersion::V6 => {
                    network
                        + ipv6::HEADER_LENGTH
                        + usize::from(be16(frame, network + ipv6::PAYLOAD_LENGTH))
                }
            };
            // The first test is the cheapest that finds data and packets of other flows.
            if end != start
                || layout.protocol != Protocol::Tcp
                || be32(frame, transport + tcp::SEQUENCE) != self.next_sequence as u32
            {
                break;
            }
            if self.arrived_otherwise(packet) {
                break;
            }
            if frame.len() < start || !mask::equal(frame, &self.header, &self.mask, start) {
                break;
            }
            prefetch_ahead(batch.as_slice(), poll);
            let (Some(fields), Some(padding)) = (frame.get(transport..start), frame.get(start..))
            else {
                break;
            };
            if byte(fields, tcp::FLAGS) != tcp::ACK
                || lro_refusal(frame, &self.layout).is_some()
                || self.is_older(frame).is_some()
            {
                break;
            }
            // A repeated acknowledgement is a duplicate or a window update, which the sender must
            // see.
            if be32(fields, tcp::ACKNOWLEDGEMENT)
                == be32(&self.header, transport + tcp::ACKNOWLEDGEMENT)
            {
                break;
            }
            if layout.version == IpVersion::V4 {
                let length_and_id = be32(frame, network + ipv4::TOTAL_LENGTH);
                let (length, id) = ((length_and_id >> 16) as u16, length_and_id as u16);
                if !ipv4_sums_up(
                    self.constants.ip,
                    length,
                    id,
                    be16(frame, network + ipv4::CHECKSUM),
                ) {
                    break;
                }
            }
            let verified = match packet.checksum {
                RxChecksum::Unnecessary { .. } => true,
                RxChecksum::None => {
                    let headers = self.constants.transport.add32((end - transport) as u32);
                    headers.add_sum(varying_sum(fields, Protocol::Tcp, true)).is_valid()
                }
                _ => false,
            };
            // Padding that does not sum to zero may be part of a device's checksum.
            if !verified || !padding.is_empty() && !matches!(options.simd.sum(padding), 0 | 0xffff)
            {
                break;
            }
            self.copy_newest_fields(poll.bytes(&packet.first));
            self.time = packet.time;
            bytes += poll.bytes(&packet.first).len() as u64;
            packets += 1;
            self.packets += 1;
            complete = self.complete::<true>(0);
            let Some(packet) = batch.next() else { break };
            // The packet has no other buffers, so `rest` needs no drop.
            core::mem::forget(packet.rest);
        }
        self.absorbed_acks += packets;
        counters.packets_in += u64::from(packets);
        counters.bytes_in += bytes;
        counters.merged += u64::from(packets);
        counters.absorbed_acks += u64::from(packets);
        counters.aggregated += u64::from(packets);
        JoinedRun { packets, complete }
    }

    /// Calls the version of [`run`](Self::run) that is compiled for the flow's layout, if the first
    /// packet, of `length` bytes, is long enough for it; otherwise the version for any layout.
    #[inline(always)]
    fn usual_run<const LRO: bool, const VERIFIED: bool, const SUMS: bool, P: Poll<B>>(
        &mut self,
        length: usize,
        batch: &mut Drain<'_, RxPacket<B>>,
        options: &ExamineOptions,
        storage: Storage,
        counters: &mut AggregateCounters,
        poll: &mut P,
    ) -> JoinedRun {
        let holds = |most: usize| {
            usize::from(self.layout.payload) <= most
                && most <= length
                && storage == Storage::Fragments
        };
        match self.usual {
            usual::ETHERNET_IPV4 if holds(USUAL_HEADER) => self
                .run::<LRO, VERIFIED, SUMS, { usual::ETHERNET_IPV4 }, USUAL_HEADER, P>(
                    batch, options, storage, counters, poll,
                ),
            usual::ETHERNET_IPV6 if holds(LONGER_HEADER) => self
                .run::<LRO, VERIFIED, SUMS, { usual::ETHERNET_IPV6 }, LONGER_HEADER, P>(
                    batch, options, storage, counters, poll,
                ),
            usual::IPV4 if holds(USUAL_HEADER) => self
                .run::<LRO, VERIFIED, SUMS, { usual::IPV4 }, USUAL_HEADER, P>(
                    batch, options, storage, counters, poll,
                ),
            usual::IPV6 if holds(USUAL_HEADER) => self
                .run::<LRO, VERIFIED, SUMS, { usual::IPV6 }, USUAL_HEADER, P>(
                    batch, options, storage, counters, poll,
                ),
            _ => self.run::<LRO, VERIFIED, true, { usual::NONE }, 0, P>(
                batch, options, storage, counters, poll,
            ),
        }
    }

    /// Joins a run of packets to the flow. `USUAL` is the number of the flow's [usual
    /// layout](usual), or stands for any layout. With a usual layout, all headers lie in the first
    /// `HEADERS` bytes, the run stops at a shorter packet, and payloads are not copied. `VERIFIED`:
    /// whether the device has verified the checksums of all packets of the run, or of none. `SUMS`:
    /// whether payload sums are kept; if not, checksums are verified and no sum is needed.
    #[inline(never)]
    fn run<
        const LRO: bool,
        const VERIFIED: bool,
        const SUMS: bool,
        const USUAL: u8,
        const HEADERS: usize,
        P: Poll<B>,
    >(
        &mut self,
        batch: &mut Drain<'_, RxPacket<B>>,
        options: &ExamineOptions,
        storage: Storage,
        counters: &mut AggregateCounters,
        poll: &mut P,
    ) -> JoinedRun {
        let layout = self.layout.known::<USUAL>();
        let (version, protocol) = (layout.version, layout.protocol);
        let (network, transport) = (usize::from(layout.network), usize::from(layout.transport));
        let storage = if USUAL == usual::NONE { storage } else { Storage::Fragments };
        let mut complete = None;
        let start = usize::from(self.layout.payload);
        let held = self.payload;
        let longest = if LRO { u32::MAX } else { self.segment_size };
        // State that each packet changes; it is stored in the flow when the run ends.
        let (mut sequence, mut payload, mut packets) =
            (self.next_sequence as u32, self.payload, self.packets);
        let mut id = self.id_run.expected(packets);
        while let Some(packet) = batch.as_slice().first() {
            let frame = poll.bytes(&packet.first);
            let Some(headers) = first_bytes::<HEADERS>(frame) else { break };
            // The first test is the cheapest that finds packets of other flows: one of these ends
            // most runs.
            if protocol == Protocol::Tcp && be32(headers, transport + tcp::SEQUENCE) != sequence {
                break;
            }
            if self.arrived_otherwise(packet) {
                break;
            }
            if !self.has_equal_headers::<HEADERS>(headers, start) {
                break;
            }
            // In place, the payload prefetch of a packet includes its headers.
            if !P::IN_PLACE {
                prefetch_ahead(batch.as_slice(), poll);
            }
            let (Some(transport_header), Some(more)) =
                (headers.get(transport..), frame.len().checked_sub(start))
            else {
                break;
            };
            let more = more as u32;
            if more.wrapping_sub(1) >= longest
                || payload + more > self.payload_limit
                || self.pieces.len() >= options.max_fragments
            {
                break;
            }
            let Some(end) = self.ip_end::<LRO>(headers, version, network, &mut id) else { break };
            if end != frame.len()
                || !is_canonical(transport_header, protocol, end - transport)
                || LRO
                    && (lro_refusal(headers, &self.layout).is_some()
                        || self.is_older(headers).is_some())
            {
                break;
            }
            // The fields that LRO sums end where the header ends.
            let fields =
                if LRO { headers.get(transport..start).unwrap_or(&[]) } else { transport_header };
            let varying = varying_sum(fields, protocol, LRO);
            let all_but_payload =
                self.constants.transport.add32((end - transport) as u32).add_sum(varying);
            let flags = last_flags(transport_header, protocol);
            let joined = start + payload as usize;
            let Some(sum) = self.join_payload::<VERIFIED, SUMS, P>(
                (packet, batch.as_slice()),
                start..end,
                joined,
                all_but_payload,
                (options.simd, storage),
                poll,
            ) else {
                break;
            };
            if LRO {
                self.copy_newest_fields(poll.bytes(&packet.first));
                // In GRO mode the first packet is the largest.
                self.largest_payload = self.largest_payload.max(more);
            }
            if protocol == Protocol::Tcp {
                sequence = sequence.wrapping_add(more);
            }
            self.flags |= flags;
            payload += more;
            packets += 1;
            id = id.wrapping_add(self.id_run.step);
            self.time = packet.time;
            let Some(packet) = batch.next() else { break };
            // The packet has no other buffers, so `rest` needs no drop.
            core::mem::forget(packet.rest);
            let (buffer, start) = match storage {
                Storage::Fragments => (Some(packet.first), start as u32),
                Storage::Linear => {
                    // `append` derives its offset from the payload so far.
                    self.payload = payload;
                    (None, self.append(poll.bytes(&packet.first).get(start..), more))
                }
            };
            let piece_flags = Piece::<B>::FIRST | if SUMS { Piece::<B>::SUM } else { 0 };
            self.pieces.push(Piece { buffer, start, length: more, sum, flags: piece_flags });
            complete = self.completed_by::<LRO>(flags, more < longest, packets);
            if complete.is_some() {
                break;
            }
        }
        let joined = packets - self.packets;
        // The packets of a run end with their payload: they have no padding.
        let bytes = u64::from(payload - held) + u64::from(joined) * start as u64;
        self.next_sequence = u64::from(sequence);
        (self.payload, self.packets) = (payload, packets);
        self.sums &= SUMS || joined == 0;
        self.bytes += bytes;
        count_run::<LRO, VERIFIED>(counters, joined, bytes);
        JoinedRun { packets: joined, complete }
    }

    /// Returns the reason why a packet with these flags completes the flow; `None` if it does not.
    /// `flags` holds PSH and FIN, `is_short` says whether the packet is shorter than the first, and
    /// `packets` counts all packets so far.
    #[inline(always)]
    fn completed_by<const LRO: bool>(
        &self,
        flags: u8,
        is_short: bool,
        packets: u32,
    ) -> Option<Reason> {
        if !LRO && flags != 0 {
            Some(Reason::Push)
        } else if !LRO && is_short {
            Some(Reason::ShortSegment)
        } else {
            (packets >= self.packet_limit).then_some(Reason::PacketLimit)
        }
    }

    /// Returns whether a packet cannot be part of a run, because it has several buffers, is a
    /// super-packet, or differs from the held packets in its VLAN tag or its layer.
    #[inline(always)]
    fn arrived_otherwise(&self, packet: &RxPacket<B>) -> bool {
        packet.rest.is_some()
            || packet.gso.is_some()
            || packet.vlan != self.vlan
            || packet.layer != self.layer
    }

    /// Returns whether headers of `length` bytes equal the held ones, except for the fields that
    /// may differ. If `HEADERS` is not 0, the first `HEADERS` bytes are compared instead, which is
    /// faster.
    #[inline(always)]
    fn has_equal_headers<const HEADERS: usize>(&self, headers: &[u8], length: usize) -> bool {
        match headers.first_chunk::<HEADERS>() {
            Some(headers) if HEADERS > 0 => {
                mask::equal_in::<HEADERS>(headers, &self.header, &self.mask)
            }
            _ => mask::equal(headers, &self.header, &self.mask, length),
        }
    }

    /// Returns the offset in the frame at which the IP packet ends according to its length field.
    /// `None` if the IPv4 checksum is wrong, or if the IPv4 identification is not `id`. In LRO mode
    /// any identification is accepted and stored in `id`.
    #[inline(always)]
    fn ip_end<const LRO: bool>(
        &self,
        headers: &[u8],
        version: IpVersion,
        network: usize,
        id: &mut u16,
    ) -> Option<usize> {
        match version {
            IpVersion::V4 => {
                let length_and_id = be32(headers, network + ipv4::TOTAL_LENGTH);
                let length = (length_and_id >> 16) as u16;
                if LRO {
                    *id = length_and_id as u16;
                } else if length_and_id as u16 != *id {
                    return None;
                }
                let checksum = be16(headers, network + ipv4::CHECKSUM);
                if !ipv4_sums_up(self.constants.ip, length, *id, checksum) {
                    return None;
                }
                Some(network + usize::from(length))
            }
            IpVersion::V6 => Some(
                network
                    + ipv6::HEADER_LENGTH
                    + usize::from(be16(headers, network + ipv6::PAYLOAD_LENGTH)),
            ),
        }
    }

    /// Verifies the checksum of `packet`, whose payload lies at `range` of its buffer, unless the
    /// device has done so, and returns the payload's sum. When merging in place, also copies the
    /// payload to offset `joined` of the flow's first buffer. `batch` starts with `packet` and is
    /// used to prefetch. `None` if the checksum is wrong.
    #[inline(always)]
    fn join_payload<const VERIFIED: bool, const SUMS: bool, P: Poll<B>>(
        &self,
        (packet, batch): (&RxPacket<B>, &[RxPacket<B>]),
        range: Range<usize>,
        joined: usize,
        all_but_payload: Sum,
        (simd, storage): (Simd, Storage),
        poll: &mut P,
    ) -> Option<u16> {
        let start = range.start;
        // If the payload of this packet is read, the payloads of the next ones probably are too.
        let ahead =
            batch.get(if P::IN_PLACE { JOIN_AHEAD } else { READ_AHEAD }).map(|ahead| &ahead.first);
        let first = if P::IN_PLACE {
            self.pieces.first().and_then(|piece| piece.buffer.as_ref())
        } else {
            None
        };
        let sum = match packet.checksum {
            RxChecksum::Unnecessary { .. } if VERIFIED && !SUMS => 0,
            RxChecksum::Unnecessary { .. } if VERIFIED => all_but_payload.checksum(),
            RxChecksum::None if !VERIFIED => {
                let sum = match first {
                    // Copied and summed in one pass; the copy is undone if the sum is wrong.
                    Some(first) => {
                        poll.join_and_sum(first, joined, &packet.first, range.clone(), ahead, simd)
                    }
                    None => simd.sum_ahead(
                        poll.bytes(&packet.first).get(start..).unwrap_or(&[]),
                        bytes_from(start, ahead, poll),
                    ),
                };
                if !all_but_payload.add(sum).is_valid() {
                    if let Some(first) = first {
                        poll.take_back(first, joined);
                    }
                    return None;
                }
                sum
            }
            _ => return None,
        };
        if VERIFIED && (P::IN_PLACE || storage == Storage::Linear) {
            prefetch_range(bytes_from(start, ahead, poll), range.end - range.start);
        }
        if let (true, Some(first)) = (VERIFIED, first) {
            poll.join(first, joined, &packet.first, range);
        }
        Some(sum)
    }
}

/// Counts the packets and bytes that joined a flow in a run.
#[inline(always)]
fn count_run<const LRO: bool, const VERIFIED: bool>(
    counters: &mut AggregateCounters,
    packets: u32,
    bytes: u64,
) {
    counters.packets_in += u64::from(packets);
    counters.bytes_in += bytes;
    counters.merged += u64::from(packets);
    counters.held_bytes += bytes;
    if !VERIFIED {
        counters.verified_in_software += u64::from(packets);
    }
    if LRO {
        counters.aggregated += u64::from(packets);
    }
}

/// Returns the first `HEADERS` bytes of a frame, or the whole frame if `HEADERS` is 0. `None` if
/// the frame is shorter.
#[inline(always)]
fn first_bytes<const HEADERS: usize>(frame: &[u8]) -> Option<&[u8]> {
    let first = frame.first_chunk::<HEADERS>()?;
    Some(if HEADERS > 0 { first } else { frame })
}

/// Returns the flags PSH and FIN of a TCP header, which only the last segment of a merged packet
/// may carry; 0 for other protocols.
#[inline(always)]
fn last_flags(transport_header: &[u8], protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => byte(transport_header, tcp::FLAGS) & (tcp::PSH | tcp::FIN),
        Protocol::Udp | Protocol::Dccp => 0,
    }
}

/// Returns whether a TCP checksum is one that a sender computes, not 0xFFFF; for UDP, whether there
/// is a checksum and the UDP length is `length`. `false` for DCCP, which never joins in a run.
#[inline(always)]
fn is_canonical(transport_header: &[u8], protocol: Protocol, length: usize) -> bool {
    match protocol {
        Protocol::Tcp => be16(transport_header, tcp::CHECKSUM) != 0xffff,
        // A UDP checksum of 0 means that there is none.
        Protocol::Udp => {
            usize::from(be16(transport_header, udp::LENGTH)) == length
                && be16(transport_header, udp::CHECKSUM) != 0
        }
        Protocol::Dccp => false,
    }
}

/// Returns the bytes of a buffer from offset `start` on; an empty slice if there is no buffer.
#[inline(always)]
fn bytes_from<'a, B>(start: usize, buffer: Option<&'a B>, memory: &'a impl Memory<B>) -> &'a [u8] {
    buffer.and_then(|buffer| memory.bytes(buffer).get(start..)).unwrap_or(&[])
}

/// Returns whether an IPv4 header with these fields is valid, with its checksum in canonical form.
/// `constant` is the sum of the other fields.
#[inline(always)]
fn ipv4_sums_up(constant: u16, length: u16, id: u16, checksum: u16) -> bool {
    let sum = u32::from(constant) + u32::from(length) + u32::from(id) + u32::from(checksum);
    // A valid header sums to 0xffff times 1 to 4. For exactly these sums, both halves add up to
    // 0xffff.
    checksum != 0xffff && (sum & 0xffff) + (sum >> 16) == 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_header_sums_up_if_its_checksum_is_that_of_its_fields() {
        let edges = [0, 1, 2, 0x4500, 0x7fff, 0x8000, 0xfffd, 0xfffe, 0xffff];
        for (constant, length, id) in
            edges.iter().flat_map(|a| edges.iter().flat_map(move |b| edges.map(|c| (*a, *b, c))))
        {
            let right = Sum::new(constant).add(length).add(id).checksum();
            for checksum in 0..=u16::MAX {
                // No canonical header has 0xffff in place of 0, and all zeros are not a header.
                let valid = checksum == right && checksum != 0xffff;
                assert_eq!(
                    ipv4_sums_up(constant, length, id, checksum),
                    valid,
                    "{constant:x} {length:x} {id:x} {checksum:x}"
                );
            }
        }
    }
}
