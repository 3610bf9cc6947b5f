//! A run of packets that everything points to: of one flow, each the next.

use alloc::vec::Drain;

use super::super::Reason;
use super::super::examine::{Terms, varying_tcp};
use super::super::lro::lro_refusal;
use super::super::policy::Storage;
use super::Held;
use crate::packet::{RxChecksum, RxPacket};
use crate::super_packet::Piece;
use crate::wire::{IpVersion, be16, be32, ipv4, ipv6, tcp};
use superpacket_simd::prefetch_lines;

/// How many packets ahead headers are asked for: enough to cover a miss to memory at some 10 ns a packet.
const AHEAD: usize = 10;

/// How many packets ahead payload is asked for where it is read: each takes as long as several headers.
const READ_AHEAD: usize = 4;

/// The cache lines of a header that are asked for ahead: link, IP, TCP with timestamps.
const AHEAD_LINES: usize = 2;

/// Hints that the first packets of a batch come soon.
#[inline(always)]
pub(in crate::aggregate) fn ask_for_first<B: AsRef<[u8]>>(batch: &[RxPacket<B>]) {
    for packet in batch.iter().take(AHEAD) {
        prefetch_lines::<AHEAD_LINES>(packet.first.as_ref());
    }
}

/// Hints that a packet comes soon, while the first of `batch` is dealt with.
#[inline(always)]
pub(in crate::aggregate) fn ask_ahead<B: AsRef<[u8]>>(batch: &[RxPacket<B>]) {
    if let Some(ahead) = batch.get(AHEAD) {
        prefetch_lines::<AHEAD_LINES>(ahead.first.as_ref());
    }
}

/// What a run of packets added to its flow.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::aggregate) struct Run {
    pub(in crate::aggregate) packets: u64,
    pub(in crate::aggregate) bytes: u64,
    /// Packets whose payload was read.
    pub(in crate::aggregate) read: u64,
    /// Why the flow must leave now, if it must.
    pub(in crate::aggregate) complete: Option<Reason>,
}

/// What the run needs to know of a packet that comes in line.
struct Next {
    payload: u32,
    sequence: u32,
    flags: u8,
    /// The payload's sum.
    sum: u16,
    /// The payload was read for it.
    read: bool,
}

impl<B: AsRef<[u8]>> Held<B> {
    /// The short way of [`attempt`](Self::attempt), for a packet that this flow [expects](Self::expects) and for all that come in line after it. Where it
    /// stops, the long way must tell why. It also stops when the flow is complete, or when more than `room` bytes have been added.
    #[inline(never)]
    pub(in crate::aggregate) fn next_in_line<const LRO: bool>(
        &mut self,
        batch: &mut Drain<'_, RxPacket<B>>,
        terms: &Terms,
        storage: Storage,
        room: u64,
    ) -> Run {
        let mut run = Run::default();
        // Data on a held pure ACK is left to the long way, which counts the ACK as absorbed.
        if !self.in_line || LRO && self.payload == 0 {
            return run;
        }
        let packets = self.packets;
        while let Some(packet) = batch.as_slice().first() {
            if !self.is_alike(packet) {
                break;
            }
            ask_ahead(batch.as_slice());
            let header = packet.first.as_ref();
            // If this one's payload is read, so will be that of those which follow, most likely.
            let following = batch.as_slice().get(READ_AHEAD);
            let Some(next) = self.follows::<LRO>(packet, header, following, terms) else { break };
            if LRO {
                self.take_over(header);
            }
            self.next_sequence = u64::from(next.sequence.wrapping_add(next.payload));
            self.payload += next.payload;
            if LRO {
                // In GRO mode it is the first packet's.
                self.largest_payload = self.largest_payload.max(next.payload);
            }
            self.packets += 1;
            self.flags |= next.flags & (tcp::PSH | tcp::FIN);
            self.time = packet.time;
            run.bytes += header.len() as u64;
            run.read += u64::from(next.read);
            let Some(packet) = batch.next() else { break };
            // It has no other buffers, which need not be found out again to drop them.
            core::mem::forget(packet.rest);
            let start = u32::from(self.layout.payload);
            let (buffer, start) = match storage {
                Storage::Fragments => (Some(packet.first), start),
                Storage::Linear => (None, self.append(packet.first.as_ref().get(start as usize..), next.payload)),
            };
            let flags = Piece::<B>::FIRST | Piece::<B>::SUM;
            self.pieces.push(Piece { buffer, start, length: next.payload, sum: next.sum, flags });
            if let Some(reason) = self.complete::<LRO>(next.payload) {
                run.complete = Some(reason);
                break;
            }
            if run.bytes > room {
                break;
            }
        }
        self.bytes += run.bytes;
        run.packets = u64::from(self.packets - packets);
        run
    }

    /// Does a packet with headers like those held come in line: TCP outside tunnels, in one buffer, with the next sequence number, right and canonical
    /// checksums, in GRO mode also the next identification and no longer than the others?
    #[inline(always)]
    fn follows<const LRO: bool>(
        &self,
        packet: &RxPacket<B>,
        header: &[u8],
        following: Option<&RxPacket<B>>,
        terms: &Terms,
    ) -> Option<Next> {
        let (network, transport, start) =
            (usize::from(self.layout.network), usize::from(self.layout.transport), usize::from(self.layout.payload));
        let headers = header.get(..start)?;
        let ip = headers.get(network..)?.first_chunk::<{ ipv4::HEADER_LENGTH }>()?;
        let transport_header = headers.get(transport..)?;
        let fields = transport_header.first_chunk::<{ tcp::HEADER_LENGTH }>()?;
        let payload = (header.len() - start) as u32;
        let sequence = be32(fields, tcp::SEQUENCE);
        let longest = if LRO { u32::MAX } else { self.segment_size };
        if payload.wrapping_sub(1) >= longest
            || self.payload + payload > self.payload_limit
            || u64::from(sequence) != self.next_sequence
            || self.pieces.len() >= terms.max_fragments
        {
            return None;
        }
        let end = match self.layout.version {
            IpVersion::V4 => {
                let (length_and_id, checksum) = (be32(ip, ipv4::TOTAL_LENGTH), be16(ip, ipv4::CHECKSUM));
                let (length, id) = (length_and_id >> 16, length_and_id & 0xffff);
                // The sum of bytes that are not all zero is that of a valid header if it is a multiple of 0xffff.
                let sum = u32::from(self.constants.ip) + length + id + u32::from(checksum);
                if sum % 0xffff != 0 || checksum == 0xffff || !LRO && id as u16 != self.id_run.expected(self.packets) {
                    return None;
                }
                network + length as usize
            }
            IpVersion::V6 => network + ipv6::HEADER_LENGTH + usize::from(be16(ip, ipv6::PAYLOAD_LENGTH)),
        };
        let field = be16(fields, tcp::CHECKSUM);
        if end != header.len() || field == 0xffff {
            return None;
        }
        if LRO && (lro_refusal(header, &self.layout).is_some() || self.is_older(header).is_some()) {
            return None;
        }
        let varying = varying_tcp::<LRO>(transport_header);
        let all_but_payload = self.constants.transport.add32((end - transport) as u32).add_sum(varying);
        let (sum, read) = match packet.checksum {
            RxChecksum::Unnecessary { .. } => (all_but_payload.checksum(), false),
            RxChecksum::None => {
                let ahead = following.and_then(|following| following.first.as_ref().get(start..)).unwrap_or(&[]);
                let sum = terms.simd.sum_ahead(header.get(start..)?, ahead);
                if !all_but_payload.add(sum).is_valid() {
                    return None;
                }
                (sum, true)
            }
            RxChecksum::Complete(_) | RxChecksum::Partial { .. } => return None,
        };
        Some(Next { payload, sequence, flags: fields[tcp::FLAGS], sum, read })
    }
}
