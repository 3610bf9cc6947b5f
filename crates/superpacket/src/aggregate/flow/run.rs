//! A run: packets of one flow, each the next in sequence, taken without a parse.

use alloc::vec::Drain;

use super::super::examine::{ExamineOptions, varying_sum};
use super::super::lro::lro_refusal;
use super::super::mask::{LONGER_HEADER, USUAL_HEADER};
use super::super::policy::{Mode, Storage};
use super::super::poll::Poll;
use super::super::{Counters, Reason};
use super::{Held, mask};
use crate::memory::Memory;
use crate::packet::{RxChecksum, RxPacket};
use crate::super_packet::Piece;
use crate::wire::{IpVersion, Protocol, be16, be32, byte, ipv4, ipv6, tcp, udp, usual};
use superpacket_simd::{prefetch_lines, prefetch_range};

/// How many packets ahead headers are asked for: enough to cover a miss to memory at some 10 ns a
/// packet.
const AHEAD: usize = 10;

/// How many packets ahead payload is asked for where it is read: each takes as long as several
/// headers.
const READ_AHEAD: usize = 4;

/// The same where it is copied behind the first packet's: the place it goes to takes its share of
/// the cache.
pub(in crate::aggregate) const JOIN_AHEAD: usize = 2;

/// The cache lines of a header that are asked for ahead: link, IP, TCP with timestamps.
const AHEAD_LINES: usize = 2;

/// Hints that the first packets of a batch come soon.
#[inline(always)]
pub(in crate::aggregate) fn prefetch_first<B>(batch: &[RxPacket<B>], memory: &impl Memory<B>) {
    for packet in batch.iter().take(AHEAD) {
        prefetch_lines::<AHEAD_LINES>(memory.bytes(&packet.first));
    }
}

/// Hints that a packet comes soon, while the first of `batch` is dealt with.
#[inline(always)]
pub(in crate::aggregate) fn prefetch_ahead<B>(batch: &[RxPacket<B>], memory: &impl Memory<B>) {
    if let Some(ahead) = batch.get(AHEAD) {
        prefetch_lines::<AHEAD_LINES>(memory.bytes(&ahead.first));
    }
}

/// Hints that the packet `ahead` of the first of `batch` will be joined soon.
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

/// How a run of packets of one flow ended.
#[derive(Clone, Copy, Debug)]
pub(in crate::aggregate) struct Run {
    /// How many packets joined.
    pub(in crate::aggregate) packets: u32,
    /// Why the flow must leave now, if it must.
    pub(in crate::aggregate) complete: Option<Reason>,
}

impl<B> Held<B> {
    /// Joins, as [`attempt`](Self::attempt) does, but faster, a packet that this flow
    /// [expects](Self::expects), and all that follow it in sequence. Where it stops, the long
    /// way must tell why. It also stops when the flow is complete. What joined is counted.
    #[inline(always)]
    pub(in crate::aggregate) fn join_run<const LRO: bool, P: Poll<B>>(
        &mut self,
        batch: &mut Drain<'_, RxPacket<B>>,
        options: &ExamineOptions,
        storage: Storage,
        counters: &mut Counters,
        poll: &mut P,
    ) -> Run {
        // Behind a first packet that is longer than what may merge, ACKs end the flow.
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
        // Data on a held pure ACK is left to the long way, which counts the ACK as absorbed.
        let apt = self.in_sequence && !(LRO && self.payload == 0);
        let (true, Some(packet)) = (apt, batch.as_slice().first()) else {
            return Run { packets: 0, complete: None };
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

    /// Absorbs, as the long way does, pure ACKs of this flow, each newer than the one before: LRO.
    /// What stops it, the long way must tell.
    ///
    /// `USUAL` says which [usual] layout it is, or any.
    #[inline(never)]
    fn absorb_run<const USUAL: u8, P: Poll<B>>(
        &mut self,
        batch: &mut Drain<'_, RxPacket<B>>,
        options: &ExamineOptions,
        counters: &mut Counters,
        poll: &mut P,
    ) -> Run {
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
            // First what tells data and packets of other flows most cheaply.
            if end != start
                || layout.protocol != Protocol::Tcp
                || be32(frame, transport + tcp::SEQUENCE) != self.next_sequence as u32
            {
                break;
            }
            if packet.rest.is_some()
                || packet.gso.is_some()
                || packet.vlan != self.vlan
                || packet.layer != self.layer
            {
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
            // The same acknowledgement again is a duplicate or a window update, and tells by
            // itself.
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
            self.take_over(poll.bytes(&packet.first));
            self.time = packet.time;
            bytes += poll.bytes(&packet.first).len() as u64;
            packets += 1;
            self.packets += 1;
            complete = self.complete::<true>(0);
            let Some(packet) = batch.next() else { break };
            // It has no other buffers, which need not be found out again to drop them.
            core::mem::forget(packet.rest);
        }
        self.absorbed_acks += packets;
        counters.packets_in += u64::from(packets);
        counters.bytes_in += bytes;
        counters.merged += u64::from(packets);
        counters.absorbed_acks += u64::from(packets);
        counters.aggregated += u64::from(packets);
        Run { packets, complete }
    }

    /// The run that is compiled for the flow's layout, if its first packet, of `length` bytes, fits
    /// it.
    #[inline(always)]
    fn usual_run<const LRO: bool, const VERIFIED: bool, const SUMS: bool, P: Poll<B>>(
        &mut self,
        length: usize,
        batch: &mut Drain<'_, RxPacket<B>>,
        options: &ExamineOptions,
        storage: Storage,
        counters: &mut Counters,
        poll: &mut P,
    ) -> Run {
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

    /// The run of packets of a flow with a [`USUAL`](usual) layout, or any; in the former the first
    /// `HEADERS` bytes hold all headers, the run ends at a packet that is shorter, and storage is
    /// in fragments. `VERIFIED`: the device has verified the checksums of them all, else of none.
    /// `SUMS`: their sums are kept; else they are verified and nobody asks.
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
        counters: &mut Counters,
        poll: &mut P,
    ) -> Run {
        let layout = self.layout.known::<USUAL>();
        let (version, protocol) = (layout.version, layout.protocol);
        let (network, transport) = (usize::from(layout.network), usize::from(layout.transport));
        let storage = if USUAL == usual::NONE { storage } else { Storage::Fragments };
        let mut complete = None;
        let start = usize::from(self.layout.payload);
        let held = self.payload;
        let longest = if LRO { u32::MAX } else { self.segment_size };
        // What each packet changes is kept here until the run ends.
        let (mut sequence, mut payload, mut packets) =
            (self.next_sequence as u32, self.payload, self.packets);
        let mut id = self.id_run.expected(packets);
        while let Some(packet) = batch.as_slice().first() {
            let frame = poll.bytes(&packet.first);
            let headers = match frame.first_chunk::<HEADERS>() {
                Some(headers) if HEADERS > 0 => headers.as_slice(),
                Some(_) => frame,
                None => break,
            };
            // First what tells packets of other flows most cheaply: one of these ends most runs.
            if protocol == Protocol::Tcp && be32(headers, transport + tcp::SEQUENCE) != sequence {
                break;
            }
            if packet.rest.is_some()
                || packet.gso.is_some()
                || packet.vlan != self.vlan
                || packet.layer != self.layer
            {
                break;
            }
            let alike = match headers.first_chunk::<HEADERS>() {
                Some(headers) if HEADERS > 0 => {
                    mask::equal_in::<HEADERS>(headers, &self.header, &self.mask)
                }
                _ => mask::equal(headers, &self.header, &self.mask, start),
            };
            if !alike {
                break;
            }
            // In place, what is asked for of a packet that is joined soon begins with its header.
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
            let end = match version {
                IpVersion::V4 => {
                    let length_and_id = be32(headers, network + ipv4::TOTAL_LENGTH);
                    let length = (length_and_id >> 16) as u16;
                    if LRO {
                        id = length_and_id as u16;
                    } else if length_and_id as u16 != id {
                        break;
                    }
                    if !ipv4_sums_up(
                        self.constants.ip,
                        length,
                        id,
                        be16(headers, network + ipv4::CHECKSUM),
                    ) {
                        break;
                    }
                    network + usize::from(length)
                }
                IpVersion::V6 => {
                    network
                        + ipv6::HEADER_LENGTH
                        + usize::from(be16(headers, network + ipv6::PAYLOAD_LENGTH))
                }
            };
            if end != frame.len() {
                break;
            }
            let canonical = match protocol {
                Protocol::Tcp => be16(transport_header, tcp::CHECKSUM) != 0xffff,
                // None is not 0 that was summed.
                Protocol::Udp
                    if usize::from(be16(transport_header, udp::LENGTH)) == end - transport =>
                {
                    be16(transport_header, udp::CHECKSUM) != 0
                }
                Protocol::Udp | Protocol::Dccp => break,
            };
            if !canonical
                || LRO
                    && (lro_refusal(headers, &self.layout).is_some()
                        || self.is_older(headers).is_some())
            {
                break;
            }
            // LRO's fields end where the header does.
            let fields =
                if LRO { headers.get(transport..start).unwrap_or(&[]) } else { transport_header };
            let varying = varying_sum(fields, protocol, LRO);
            let all_but_payload =
                self.constants.transport.add32((end - transport) as u32).add_sum(varying);
            // If this one's payload is read, so will be that of those which follow, most likely.
            let ahead = batch
                .as_slice()
                .get(if P::IN_PLACE { JOIN_AHEAD } else { READ_AHEAD })
                .map(|ahead| &ahead.first);
            let flags = if protocol == Protocol::Tcp {
                byte(transport_header, tcp::FLAGS) & (tcp::PSH | tcp::FIN)
            } else {
                0
            };
            let first = if P::IN_PLACE {
                self.pieces.first().and_then(|piece| piece.buffer.as_ref())
            } else {
                None
            };
            let kept = start + payload as usize;
            let sum = match packet.checksum {
                RxChecksum::Unnecessary { .. } if VERIFIED && !SUMS => 0,
                RxChecksum::Unnecessary { .. } if VERIFIED => all_but_payload.checksum(),
                RxChecksum::None if !VERIFIED => {
                    let sum = match first {
                        // Copied and summed in one pass, and taken back if the sum is wrong.
                        Some(first) => poll.join_and_sum(
                            first,
                            kept,
                            &packet.first,
                            start..end,
                            ahead,
                            options.simd,
                        ),
                        None => options.simd.sum_ahead(
                            frame.get(start..).unwrap_or(&[]),
                            bytes_from(start, ahead, poll),
                        ),
                    };
                    if !all_but_payload.add(sum).is_valid() {
                        if let Some(first) = first {
                            poll.take_back(first, kept);
                        }
                        break;
                    }
                    sum
                }
                _ => break,
            };
            if VERIFIED && (P::IN_PLACE || storage == Storage::Linear) {
                prefetch_range(bytes_from(start, ahead, poll), more as usize);
            }
            if let (true, Some(first)) = (VERIFIED, first) {
                poll.join(first, kept, &packet.first, start..end);
            }
            if LRO {
                self.take_over(poll.bytes(&packet.first));
                // In GRO mode it is the first packet's.
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
            // It has no other buffers, which need not be found out again to drop them.
            core::mem::forget(packet.rest);
            let (buffer, start) = match storage {
                Storage::Fragments => (Some(packet.first), start as u32),
                Storage::Linear => {
                    // What is appended goes behind the payload so far.
                    self.payload = payload;
                    (None, self.append(poll.bytes(&packet.first).get(start..), more))
                }
            };
            let flags_of_piece = Piece::<B>::FIRST | if SUMS { Piece::<B>::SUM } else { 0 };
            self.pieces.push(Piece { buffer, start, length: more, sum, flags: flags_of_piece });
            complete = if !LRO && flags != 0 {
                Some(Reason::Push)
            } else if !LRO && more < longest {
                Some(Reason::ShortSegment)
            } else if packets >= self.packet_limit {
                Some(Reason::PacketLimit)
            } else {
                None
            };
            if complete.is_some() {
                break;
            }
        }
        let joined = packets - self.packets;
        // Nothing follows the payload of a packet in sequence.
        let bytes = u64::from(payload - held) + u64::from(joined) * start as u64;
        self.next_sequence = u64::from(sequence);
        self.payload = payload;
        self.packets = packets;
        self.sums &= SUMS || joined == 0;
        self.bytes += bytes;
        counters.packets_in += u64::from(joined);
        counters.bytes_in += bytes;
        counters.merged += u64::from(joined);
        counters.held_bytes += bytes;
        if !VERIFIED {
            counters.verified_in_software += u64::from(joined);
        }
        if LRO {
            counters.aggregated += u64::from(joined);
        }
        Run { packets: joined, complete }
    }
}

/// The bytes of a buffer from `start` on; none without a buffer.
#[inline(always)]
fn bytes_from<'a, B>(start: usize, buffer: Option<&'a B>, memory: &'a impl Memory<B>) -> &'a [u8] {
    buffer.and_then(|buffer| memory.bytes(buffer).get(start..)).unwrap_or(&[])
}

/// Is an IPv4 header with these fields valid, and its checksum in canonical form? `constant` is the
/// sum of the others.
#[inline(always)]
fn ipv4_sums_up(constant: u16, length: u16, id: u16, checksum: u16) -> bool {
    let sum = u32::from(constant) + u32::from(length) + u32::from(id) + u32::from(checksum);
    // Of a valid header it is a multiple of 0xffff up to the fourth, but not 0: of these alone both
    // halves add up to 0xffff.
    checksum != 0xffff && (sum & 0xffff) + (sum >> 16) == 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::Sum;

    #[test]
    fn an_ipv4_header_sums_up_if_its_checksum_is_that_of_its_fields() {
        let edges = [0, 1, 2, 0x4500, 0x7fff, 0x8000, 0xfffd, 0xfffe, 0xffff];
        for (constant, length, id) in
            edges.iter().flat_map(|a| edges.iter().flat_map(move |b| edges.map(|c| (*a, *b, c))))
        {
            let right = Sum::new(constant).add(length).add(id).checksum();
            for checksum in 0..=u16::MAX {
                // 0xffff stands for 0 in no canonical header; all zeros are no header.
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
