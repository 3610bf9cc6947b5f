//! Prepares a held flow to leave: writes the headers of a merged packet, or restores a single
//! packet unchanged.

use super::super::Reason;
use super::super::examine::{ChecksumField, constant_ip, outer_field};
use super::super::policy::{Mode, Policy, Storage};
use super::Held;
use crate::checksum::{Sum, sum_ranges, transport_field, transport_header, tunnel_seed};
use crate::memory::Memory;
use crate::packet::RxChecksum;
use crate::segment::{ChecksumForm, Cwr, Gso, GsoKind, IpId, SegmentSize};
use crate::super_packet::{Metadata, Piece, SuperPacket};
use crate::wire::{
    IpVersion, Layout, Outer, Protocol, be16, byte, ipv4, ipv6, pppoe, put16, tcp, udp, usual,
};
use superpacket_simd::Simd;

/// Lengths and metadata of a held packet that is about to leave.
#[derive(Clone, Copy, Debug)]
pub(in crate::aggregate) struct Leaving {
    /// Length of the rewritten headers in bytes; 0 if none were rewritten.
    header: usize,
    /// End of the outermost IP packet, in bytes from the start of the frame.
    end: u32,
    /// Length of the packet in bytes.
    pub(in crate::aggregate) length: u64,
    checksum: RxChecksum,
    gso: Option<Gso>,
}

impl<B> Held<B> {
    /// Prepares a merged packet to leave: rewrites its headers to match the merged payload.
    #[inline(always)]
    pub(in crate::aggregate) fn finish<M: Memory<B>>(
        &mut self,
        policy: &Policy,
        simd: Simd,
        memory: &M,
    ) -> Leaving {
        // The most frequent layout is tested first.
        if self.usual == usual::ETHERNET_IPV4 {
            self.finish_as::<{ usual::ETHERNET_IPV4 }, M>(policy, simd, memory)
        } else {
            self.finish_other(policy, simd, memory)
        }
    }

    #[inline(never)]
    fn finish_other<M: Memory<B>>(&mut self, policy: &Policy, simd: Simd, memory: &M) -> Leaving {
        match self.usual {
            usual::ETHERNET_IPV6 => {
                self.finish_as::<{ usual::ETHERNET_IPV6 }, M>(policy, simd, memory)
            }
            usual::IPV4 => self.finish_as::<{ usual::IPV4 }, M>(policy, simd, memory),
            usual::IPV6 => self.finish_as::<{ usual::IPV6 }, M>(policy, simd, memory),
            _ => self.finish_as::<{ usual::NONE }, M>(policy, simd, memory),
        }
    }

    #[inline(always)]
    fn finish_as<const USUAL: u8, M: Memory<B>>(
        &mut self,
        policy: &Policy,
        simd: Simd,
        memory: &M,
    ) -> Leaving {
        let layout = &self.layout.known::<USUAL>();
        self.write_lengths(layout);
        let lro = matches!(policy.mode, Mode::Lro { .. });
        let start = usize::from(layout.payload);
        let transport = usize::from(layout.transport);
        if layout.protocol == Protocol::Tcp {
            let flags = byte(&self.header, transport + tcp::FLAGS) | self.flags;
            if let Some(field) = self.header.get_mut(transport + tcp::FLAGS) {
                *field = flags;
            }
        }
        let transport_length = u32::from(layout.payload - layout.transport) + self.payload;
        let pseudo = self.constants.pseudo.add32(transport_length);
        let checksum = usize::from(layout.checksum());
        let full = lro || policy.checksum == ChecksumForm::Full;
        let state = if self.field == ChecksumField::Unused {
            // The field is already 0, and there is no checksum to verify.
            RxChecksum::Unnecessary { level: 0 }
        } else if full {
            put16(&mut self.header, checksum, 0);
            let header = transport_header(self.header.get(transport..start).unwrap_or(&[]));
            let total = pseudo.add_sum(header).add(self.payload_sum(simd, memory));
            put16(&mut self.header, checksum, transport_field(layout.protocol, total.checksum()));
            RxChecksum::Unnecessary {
                level: if layout.outer.is_some() {
                    self.outer_checksums.count_ones() as u8
                } else {
                    0
                },
            }
        } else {
            put16(&mut self.header, checksum, pseudo.fold());
            RxChecksum::Partial {
                start: layout.transport,
                offset: layout.protocol.checksum_offset(),
            }
        };
        if let Some(outer) = layout.outer {
            // The inner checksum first, since the outer one covers it.
            if let Some(nested) = layout.nested {
                self.write_outer_checksum(layout.transport, nested, start, pseudo);
            }
            self.write_outer_checksum(layout.transport, outer, start, pseudo);
        }
        if policy.storage == Storage::Linear {
            self.linear.truncate(start + self.payload as usize);
            if let (Some(to), Some(from)) = (self.linear.get_mut(..start), self.header.get(..start))
            {
                to.copy_from_slice(from);
            }
        }
        let end = u32::from(layout.payload) + self.payload;
        Leaving {
            header: start,
            end,
            length: u64::from(end),
            checksum: state,
            gso: if lro { None } else { self.gso(layout) },
        }
    }

    /// Adds a hop-by-hop header with the length to an IPv6 packet whose length field cannot hold it
    /// (RFC 2675, section 2), if there is room for the header.
    #[cold]
    pub(in crate::aggregate) fn add_jumbo_option(&mut self, leaving: &mut Leaving) {
        const ADDED: usize = ipv6::JUMBO_HEADER_LENGTH;
        let network = usize::from(self.layout.network);
        let place = network + ipv6::HEADER_LENGTH;
        let left_out = leaving.end as usize > place + usize::from(u16::MAX);
        if self.layout.version == IpVersion::V4
            || !left_out
            || leaving.header + ADDED > self.header.len()
        {
            return;
        }
        self.header.copy_within(place..leaving.header, place + ADDED);
        let next = byte(&self.header, network + ipv6::NEXT_HEADER);
        let length = (leaving.end as usize - place + ADDED) as u32;
        let [a, b, c, d] = length.to_be_bytes();
        let option = [next, 0, ipv6::JUMBO_OPTION, 4, a, b, c, d];
        if let Some(header) = self.header.get_mut(place..place + ADDED) {
            header.copy_from_slice(&option);
        }
        if let Some(field) = self.header.get_mut(network + ipv6::NEXT_HEADER) {
            *field = ipv6::HOP_BY_HOP;
        }
        leaving.header += ADDED;
        leaving.end += ADDED as u32;
        leaving.length += ADDED as u64;
        self.layout.transport += ADDED as u16;
        self.layout.payload += ADDED as u16;
        self.layout.jumbo = true;
        if let RxChecksum::Partial { start, .. } = &mut leaving.checksum {
            *start += ADDED as u16;
        }
        if !self.linear.is_empty() {
            self.linear.splice(place..place, [0; ADDED]);
            self.pieces.iter_mut().for_each(|piece| piece.start += ADDED as u32);
            if let (Some(to), Some(from)) =
                (self.linear.get_mut(..leaving.header), self.header.get(..leaving.header))
            {
                to.copy_from_slice(from);
            }
        }
    }

    /// Marks UDP datagrams without a checksum that were merged to leave with a partial checksum,
    /// because a `virtio_net_hdr` cannot express that a packet has none.
    #[inline(always)]
    pub(in crate::aggregate) fn use_checksum_field(&mut self) {
        if self.field == ChecksumField::Unused {
            self.field = ChecksumField::Full;
        }
    }

    /// Writes the sum of the pseudo-header into the outer UDP checksum of a super-packet in a
    /// tunnel. Linux needs it there if the `virtio_net_hdr` describes the tunnel.
    #[cold]
    pub(in crate::aggregate) fn seed_outer_checksum(&mut self, leaving: &Leaving) {
        let Some(outer) =
            self.layout.outer.filter(|outer| outer.tunnel.is_udp() && leaving.gso.is_some())
        else {
            return;
        };
        if outer.checksum(&self.header).is_none() {
            return;
        }
        let (place, sum) = tunnel_seed(&self.header, &outer, leaving.end as usize);
        put16(&mut self.header, place, sum);
        if !self.linear.is_empty() {
            put16(&mut self.linear, place, sum);
        }
    }

    /// Prepares a single packet to leave unchanged, with all bytes of all its buffers.
    #[inline(always)]
    pub(in crate::aggregate) fn restore_single(&mut self, memory: &impl Memory<B>) -> Leaving {
        if self.linear.is_empty() {
            for piece in &mut self.pieces {
                piece.start = 0;
                piece.length =
                    piece.buffer.as_ref().map_or(0, |buffer| memory.bytes(buffer).len()) as u32;
                piece.flags = 0;
            }
        } else {
            self.pieces.clear();
            self.pieces.push(Piece {
                buffer: None,
                start: 0,
                length: self.linear.len() as u32,
                sum: 0,
                flags: 0,
            });
        }
        let form = if let RxChecksum::Partial { .. } = self.checksum {
            ChecksumForm::Partial
        } else {
            ChecksumForm::Full
        };
        let gso = self.gso.map(|gso| gso.with_checksum(form));
        Leaving {
            header: 0,
            end: self.layout.end,
            length: self.bytes,
            checksum: self.checksum,
            gso,
        }
    }

    /// Returns the packet for the sink.
    #[inline(always)]
    pub(in crate::aggregate) fn super_packet(
        &mut self,
        leaving: &Leaving,
        reason: Reason,
    ) -> SuperPacket<'_, B, ()> {
        let metadata = Metadata {
            layer: self.layer,
            layout: Some(Layout { end: leaving.end, ..self.layout }),
            gso: leaving.gso,
            checksum: leaving.checksum,
            hash: self.hash,
            vlan: self.vlan,
            queue: self.queue,
            time: self.time,
            packets: self.packets,
            absorbed_acks: self.absorbed_acks,
            largest_payload: self.largest_payload,
            reason,
        };
        let bytes = if self.linear.is_empty() { &self.header[..] } else { &self.linear };
        SuperPacket {
            metadata,
            header: bytes.get(..leaving.header).unwrap_or(&[]),
            pieces: &mut self.pieces,
            linear: &self.linear,
            memory: (),
        }
    }

    /// Returns the metadata by which segmentation can restore the packets that were merged.
    #[inline(always)]
    fn gso(&self, layout: &Layout) -> Option<Gso> {
        let kind = match (layout.protocol, layout.version) {
            (Protocol::Tcp, IpVersion::V4) => GsoKind::Tcp4,
            (Protocol::Tcp, IpVersion::V6) => GsoKind::Tcp6,
            (Protocol::Udp, _) => GsoKind::Udp,
            (Protocol::Dccp, _) => GsoKind::Dccp,
        };
        // All packets had the same CWR flag, since flags must be equal. So all segments have it,
        // unless only the first segment of a super-packet did.
        let flags = byte(&self.header, usize::from(layout.transport) + tcp::FLAGS) & !self.flags;
        let cwr = if layout.protocol == Protocol::Tcp && flags & tcp::CWR != 0 {
            Cwr::All
        } else {
            Cwr::First
        };
        Some(Gso {
            id: self.id_run.form(),
            outer_id: self.outer_id_run.form(),
            nested_id: if layout.nested.is_some() {
                self.nested_id_run.form()
            } else {
                IpId::Increment
            },
            cwr,
            checksum: self.field.form(),
            ..Gso::new(kind, SegmentSize::new(self.segment_size as usize)?)
        })
    }

    /// Writes the length fields of all layers, and the IPv4 checksums over them.
    #[inline(always)]
    fn write_lengths(&mut self, layout: &Layout) {
        let end = usize::from(layout.payload) + self.payload as usize;
        if layout.pppoe != 0 {
            let pppoe = usize::from(layout.pppoe);
            put16(&mut self.header, pppoe + pppoe::LENGTH, (end - pppoe - 6) as u16);
        }
        if let Some(outer) = layout.outer {
            self.write_outer_lengths(outer, end, self.constants.outer_ip);
        }
        if let Some(nested) = layout.nested {
            let constant = constant_ip(&self.header, nested.network, nested.version);
            self.write_outer_lengths(nested, end, constant);
        }
        self.write_ip_length(usize::from(layout.network), layout.version, end, self.constants.ip);
        if layout.protocol == Protocol::Udp {
            let transport = usize::from(layout.transport);
            put16(&mut self.header, transport + udp::LENGTH, (end - transport) as u16);
        }
    }

    /// Writes the length fields of a tunnel's outer headers.
    #[inline(always)]
    fn write_outer_lengths(&mut self, outer: Outer, end: usize, constant: u16) {
        self.write_ip_length(usize::from(outer.network), outer.version, end, constant);
        if outer.tunnel.is_udp() {
            let transport = usize::from(outer.transport);
            put16(&mut self.header, transport + udp::LENGTH, (end - transport) as u16);
        }
    }

    /// Writes the length and the checksum of an IP header. `constant` is the sum of the fields that
    /// [all packets share](super::super::examine::Constants).
    #[inline(always)]
    fn write_ip_length(&mut self, network: usize, version: IpVersion, end: usize, constant: u16) {
        // A length that does not fit 16 bits is written as 0, as Linux does for BIG TCP.
        match version {
            IpVersion::V4 => {
                let length = u16::try_from(end - network).unwrap_or(0);
                let id = be16(&self.header, network + ipv4::ID);
                put16(&mut self.header, network + ipv4::TOTAL_LENGTH, length);
                put16(
                    &mut self.header,
                    network + ipv4::CHECKSUM,
                    Sum::new(constant).add(length).add(id).checksum(),
                );
            }
            IpVersion::V6 => {
                let length = u16::try_from(end - network - ipv6::HEADER_LENGTH).unwrap_or(0);
                put16(&mut self.header, network + ipv6::PAYLOAD_LENGTH, length);
            }
        }
    }

    /// Writes a tunnel's own checksum, if it has one, from the headers alone. The inner
    /// packet sums to the complement of its pseudo-header.
    fn write_outer_checksum(
        &mut self,
        transport: u16,
        outer: Outer,
        payload: usize,
        inner_pseudo: Sum,
    ) {
        if let Some(place) = outer.checksum(&self.header) {
            let end = payload + self.payload as usize;
            let found = be16(&self.header, place);
            let field = outer_field(&self.header, transport, outer, end, inner_pseudo, found);
            put16(&mut self.header, place, field);
        }
    }

    /// Returns the one's-complement sum of the payload that the checksum covers. Adds up the known
    /// sums of the packets if it can; otherwise reads the payload.
    fn payload_sum(&self, simd: Simd, memory: &impl Memory<B>) -> u16 {
        let partly_covered = self.layout.protocol == Protocol::Dccp
            && byte(&self.header, usize::from(self.layout.transport) + crate::wire::dccp::COVERAGE)
                & 0x0f
                != 0;
        if partly_covered {
            // The coverage counts from the start of the data, as in the first packet.
            let covered = (usize::from(
                byte(
                    &self.header,
                    usize::from(self.layout.transport) + crate::wire::dccp::COVERAGE,
                ) & 0x0f,
            ) - 1)
                * 4;
            let mut left = covered;
            return sum_ranges(
                simd,
                self.pieces.iter().map(|piece| {
                    let bytes = piece.bytes(memory, &self.linear);
                    let take = bytes.len().min(left);
                    left -= take;
                    bytes.get(..take).unwrap_or(&[])
                }),
            );
        }
        if !self.sums {
            return sum_ranges(
                simd,
                self.pieces.iter().map(|piece| piece.bytes(memory, &self.linear)),
            );
        }
        let mut offset = 0;
        let mut total = Sum::default();
        for piece in &self.pieces {
            if let Some(sum) = piece.segment_sum() {
                total = total.add(crate::checksum::at_offset(sum, offset));
            }
            offset += piece.length();
        }
        total.fold()
    }
}
