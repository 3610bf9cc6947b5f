//! A held flow: the first packet's headers, what must be equal, what comes next, and the payload so far.

mod leave;

use alloc::vec::Vec;

use super::Reason;
use super::examine::{Constants, Facts, Terms, outer_checksum, ranges, varying};
use super::mask::{self, HeaderBytes, USUAL_HEADER};
use super::policy::{Mode, Policy, Storage};
use crate::packet::{FlowHash, Layer, RxChecksum, RxPacket, VlanTag};
use crate::segment::{ChecksumForm, IpId};
use crate::super_packet::Piece;
use crate::wire::{IpVersion, Layout, MAX_HEADER, Protocol, be16, be32, dccp_sequence_mask, ipv4, ipv6, put16, put32, tcp};

/// How an IPv4 identification runs: from the first packet's in steps of 1, until a second packet shows that it is fixed.
#[derive(Clone, Copy, Debug)]
struct IdRun {
    first: u16,
    step: u16,
}

impl IdRun {
    fn new(first: u16) -> Self {
        IdRun { first, step: 1 }
    }

    /// The identification of the packet after `count` packets.
    #[inline(always)]
    fn expected(self, count: u32) -> u16 {
        self.first.wrapping_add(self.step.wrapping_mul(count as u16))
    }

    /// The run with one more packet after `count`; `None` if its identification does not go on with it.
    #[inline(always)]
    fn next(self, count: u32, id: u16) -> Option<IdRun> {
        match (id == self.expected(count), count == 1 && id == self.first) {
            (true, _) => Some(self),
            (false, true) => Some(IdRun { step: 0, ..self }),
            (false, false) => None,
        }
    }

    fn form(self) -> IpId {
        if self.step == 0 { IpId::Fixed } else { IpId::Increment }
    }
}

/// One descriptor of the flow table.
#[derive(Debug)]
#[repr(C, align(64))] // in the order of the way in: what the next packet of a run needs first
pub(super) struct Held<B> {
    /// The next packet may take the [short way](Self::next_in_line).
    in_line: bool,
    form: ChecksumForm,
    /// PSH and FIN of all packets.
    flags: u8,
    /// All payload sums are known.
    sums: bool,
    vlan: Option<VlanTag>,
    layer: Layer,
    outer_has_checksum: bool,
    queue: u16,
    id_run: IdRun,
    outer_id_run: IdRun,
    /// Payload bytes so far.
    payload: u32,
    /// The first packet's payload, which no other may exceed in GRO mode.
    segment_size: u32,
    /// The most payload and packets that may be merged.
    payload_limit: u32,
    packet_limit: u32,
    pub(super) packets: u32,
    largest_payload: u32,
    /// The next sequence number expected; 0 in UDP.
    next_sequence: u64,
    sequence_mask: u64,
    time: u64,
    /// Frame bytes held, headers included.
    pub(super) bytes: u64,
    pub(super) pieces: Vec<Piece<B>>,
    pub(super) constants: Constants,
    pub(super) layout: Layout,
    /// The flow's hash.
    pub(super) flow: u64,
    /// Since when it is held, in nanoseconds.
    pub(super) since: u64,
    absorbed_acks: u32,
    checksum: RxChecksum,
    hash: Option<FlowHash>,
    pub(super) linear: Vec<u8>,

    // What its packets must be equal to, and where.
    pub(super) header: HeaderBytes,
    mask: HeaderBytes,
}

impl<B> Held<B> {
    pub(super) fn vacant() -> Self {
        Held {
            in_line: false,
            form: ChecksumForm::Full,
            flags: 0,
            sums: false,
            vlan: None,
            layer: Layer::Ethernet,
            outer_has_checksum: false,
            queue: 0,
            id_run: IdRun::new(0),
            outer_id_run: IdRun::new(0),
            payload: 0,
            segment_size: 0,
            payload_limit: 0,
            packet_limit: 0,
            packets: 0,
            largest_payload: 0,
            next_sequence: 0,
            sequence_mask: 0,
            time: 0,
            bytes: 0,
            pieces: Vec::new(),
            constants: Constants::default(),
            layout: Layout {
                outer: None,
                network: 0,
                version: IpVersion::V4,
                transport: 0,
                protocol: Protocol::Tcp,
                payload: 0,
                pppoe: 0,
                jumbo: false,
                end: 0,
                refusal: None,
            },
            flow: 0,
            since: 0,
            absorbed_acks: 0,
            checksum: RxChecksum::None,
            hash: None,
            linear: Vec::new(),
            header: HeaderBytes([0; MAX_HEADER]),
            mask: HeaderBytes([0; MAX_HEADER]),
        }
    }

    /// Hints that the flow will leave soon, and that its place will be taken.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        superpacket_simd::prefetch_read(&self.in_line);
        superpacket_simd::prefetch_read(&self.pieces);
        superpacket_simd::prefetch_read(&self.flow);
        superpacket_simd::prefetch_read(&self.linear);
        superpacket_simd::prefetch_range(&self.header, USUAL_HEADER);
        superpacket_simd::prefetch_range(&self.mask, USUAL_HEADER);
    }

    /// Hints that the packets will leave next.
    #[inline(always)]
    pub(super) fn prefetch_pieces(&self) {
        if let Some(piece) = self.pieces.first() {
            superpacket_simd::prefetch_read(piece);
        }
    }

    /// Are these headers those of the held packets, but for what may differ?
    #[inline(always)]
    pub(super) fn matches<C>(&self, header: &[u8], packet: &RxPacket<C>) -> bool {
        mask::equal(header, &self.header, &self.mask, usize::from(self.layout.payload))
            && self.vlan == packet.vlan
            && self.layer == packet.layer
    }

    /// Why they are not.
    #[cold]
    pub(super) fn mismatch<C>(&self, header: &[u8], packet: &RxPacket<C>) -> Reason {
        if self.vlan != packet.vlan {
            return Reason::LinkHeader;
        }
        mask::difference(header, &self.header, &self.mask, &self.layout)
    }
}

impl<B: AsRef<[u8]>> Held<B> {
    /// Starts to hold a flow with its first packet; the buffers follow by [`attach`](Self::attach).
    #[inline]
    pub(super) fn start(
        &mut self,
        packet: &RxPacket<B>,
        header: &[u8],
        layout: &Layout,
        constants: &Constants,
        facts: &Facts,
        policy: &Policy,
    ) {
        self.keep(header, usize::from(layout.payload));
        // Flows of one kind follow each other: their masks are equal more often than not.
        if self.layout.payload == 0 || !same_shape(&self.layout, layout) || layout.outer.is_some() || layout.protocol == Protocol::Dccp {
            self.mask = mask::build(layout, header, policy.mode);
        }
        self.layout = *layout;
        self.constants = *constants;
        self.payload_limit = byte_limit(layout, policy).saturating_sub(u32::from(layout.payload - layout.outermost()));
        self.packet_limit =
            if layout.protocol == Protocol::Udp { policy.max_datagrams.min(policy.max_packets) } else { policy.max_packets };
        self.layer = packet.layer;
        self.vlan = packet.vlan;
        self.form = facts.form;
        self.outer_has_checksum = outer_checksum(header, layout).is_some();
        self.sequence_mask = match layout.protocol {
            Protocol::Tcp => u64::from(u32::MAX),
            Protocol::Udp => 0,
            Protocol::Dccp => dccp_sequence_mask(header.get(usize::from(layout.transport)..).unwrap_or(&[])),
        };
        self.segment_size = facts.payload;
        self.payload = 0;
        self.largest_payload = 0;
        self.packets = 0;
        self.absorbed_acks = 0;
        self.id_run = IdRun::new(facts.id);
        self.outer_id_run = IdRun::new(facts.outer_id);
        self.flags = 0;
        self.sums = true;
        self.bytes = 0;
        self.in_line = layout.protocol == Protocol::Tcp && layout.outer.is_none() && layout.pppoe == 0 && facts.form == ChecksumForm::Full;
        self.checksum = packet.checksum;
        self.hash = packet.hash;
        self.queue = packet.queue;
        self.advance(packet, facts);
    }

    /// Keeps the first `length` bytes as those that the next packets are compared with.
    #[inline(always)]
    fn keep(&mut self, header: &[u8], length: usize) {
        // A copy of constant length takes a few moves; what it takes too much is never looked at.
        if let (true, Some(from), Some(to)) =
            (length <= USUAL_HEADER, header.first_chunk::<USUAL_HEADER>(), self.header.first_chunk_mut::<USUAL_HEADER>())
        {
            *to = *from;
        } else if let (Some(from), Some(to)) = (header.get(..length), self.header.get_mut(..length)) {
            to.copy_from_slice(from);
        }
    }

    /// Counts a packet in, which fits.
    #[inline(always)]
    fn advance(&mut self, packet: &RxPacket<B>, facts: &Facts) {
        let step = match self.layout.protocol {
            Protocol::Tcp => u64::from(facts.payload),
            Protocol::Udp => 0,
            Protocol::Dccp => 1,
        };
        self.next_sequence = (facts.sequence + step) & self.sequence_mask;
        self.payload += facts.payload;
        self.largest_payload = self.largest_payload.max(facts.payload);
        self.packets += 1;
        self.flags |= facts.flags & (tcp::PSH | tcp::FIN);
        self.sums &= facts.sum.is_some();
        self.time = packet.time;
    }

    /// Takes a packet whose headers [match](Self::matches), if the rules allow it. Nothing changes if they do not.
    #[inline(always)]
    pub(super) fn attempt(&mut self, packet: &RxPacket<B>, header: &[u8], facts: &Facts, policy: &Policy) -> Attempt {
        if facts.payload == 0
            && let Err(reason) = super::eligible_ack(policy.mode, facts.flags)
        {
            return Attempt::Refused(reason);
        }
        let joined = if facts.payload > 0 && self.too_many_fragments(packet, policy) {
            Err(Reason::FragmentLimit)
        } else {
            match policy.mode {
                Mode::Gro { .. } => self.join_gro(packet, header, facts),
                Mode::Lro { .. } => self.join_lro(packet, header, facts),
            }
        };
        match joined {
            Ok(joined) => Attempt::Joined(joined),
            // An ACK that may not be absorbed tells the sender something by being one of its own.
            Err(reason) if facts.payload == 0 && matches!(reason, Reason::DuplicateAck | Reason::WindowUpdate | Reason::AckOlder) => {
                Attempt::Refused(reason)
            }
            Err(reason) => Attempt::Ended(reason),
        }
    }

    /// Takes a packet whose headers [match](Self::matches), by GRO's rules. `Err` says why the flow must end before it.
    #[inline(always)]
    fn join_gro(&mut self, packet: &RxPacket<B>, header: &[u8], facts: &Facts) -> Result<Joined, Reason> {
        if facts.sequence != self.next_sequence {
            return Err(Reason::Sequence);
        }
        if facts.payload > self.segment_size {
            return Err(Reason::LongerSegment);
        }
        if facts.form != self.form {
            return Err(Reason::ChecksumForm);
        }
        if self.payload + facts.payload > self.payload_limit {
            return Err(Reason::ByteLimit);
        }
        // DCCP's packets are counted, not its bytes, and all are of one length.
        if self.layout.protocol == Protocol::Dccp && facts.payload != self.segment_size {
            return Err(Reason::ShortSegment);
        }
        let mut id_run = self.id_run;
        if self.layout.version == IpVersion::V4 {
            id_run = self.id_run.next(self.packets, facts.id).ok_or(Reason::IpId)?;
        }
        if let Some(outer) = &self.layout.outer {
            if outer_checksum(header, &self.layout).is_some() != self.outer_has_checksum {
                return Err(Reason::TunnelHeader);
            }
            if outer.version == IpVersion::V4 {
                self.outer_id_run = self.outer_id_run.next(self.packets, facts.outer_id).ok_or(Reason::IpId)?;
            }
        }
        self.id_run = id_run;
        self.advance(packet, facts);
        Ok(Joined::Merged)
    }

    /// The short way of [`attempt`](Self::attempt) for the packet that everything points to: TCP outside tunnels, in one buffer, with the next
    /// sequence number, right and canonical checksums, in GRO mode also the next identification and no longer than the others. `None` says nothing but
    /// that the long way must tell.
    ///
    /// All conditions are computed and decided at once, which costs a third of deciding them one by one.
    #[inline(always)]
    pub(super) fn next_in_line<const LRO: bool>(&mut self, packet: &RxPacket<B>, header: &[u8], terms: &Terms) -> Option<Facts> {
        let (network, transport, start) =
            (usize::from(self.layout.network), usize::from(self.layout.transport), usize::from(self.layout.payload));
        let length = header.len();
        if !self.in_line || length < start {
            return None;
        }
        let ip = header.get(network..)?.first_chunk::<{ ipv4::HEADER_LENGTH }>()?;
        let fields = header.get(transport..)?.first_chunk::<{ tcp::HEADER_LENGTH }>()?;
        let payload = (length - start) as u32;
        let sequence = be32(fields, tcp::SEQUENCE);
        let flags = fields[tcp::FLAGS];
        let longest = if LRO { u32::MAX } else { self.segment_size };
        let mut fits = payload.wrapping_sub(1) < longest
            && self.payload + payload <= self.payload_limit
            && u64::from(sequence) == self.next_sequence
            && self.pieces.len() < terms.max_fragments;
        let mut id = 0;
        match self.layout.version {
            IpVersion::V4 => {
                let length_and_id = be32(ip, ipv4::TOTAL_LENGTH);
                id = length_and_id as u16;
                // A computed checksum is canonical, so one comparison tells both right and canonical.
                fits &= self.constants.ip.add32(length_and_id).checksum() == be16(ip, ipv4::CHECKSUM);
                fits &= network + (length_and_id >> 16) as usize == length && (LRO || id == self.id_run.expected(self.packets));
            }
            IpVersion::V6 => fits &= network + ipv6::HEADER_LENGTH + usize::from(be16(ip, ipv6::PAYLOAD_LENGTH)) == length,
        }
        if !fits || LRO && super::lro_refusal(header, &self.layout).is_some() {
            return None;
        }
        let field = be16(fields, tcp::CHECKSUM);
        let mode = if LRO { Mode::Lro { acks: false } } else { Mode::Gro { udp: false } };
        let varying = varying(header.get(transport..start)?, Protocol::Tcp, mode).subtract(field);
        let headers = self.constants.transport.add32((length - transport) as u32).add_sum(varying);
        let (sum, read) = match packet.checksum {
            RxChecksum::Unnecessary { .. } if field != 0xffff => (headers.add(field).checksum(), false),
            RxChecksum::None => {
                let sum = terms.simd.sum(header.get(start..)?);
                if headers.add(sum).checksum() != field {
                    return None;
                }
                (sum, true)
            }
            _ => return None,
        };
        let facts = Facts {
            payload,
            end: length as u32,
            sequence: u64::from(sequence),
            id,
            outer_id: 0,
            flags,
            form: ChecksumForm::Full,
            sum: Some(sum),
            read,
        };
        if LRO {
            // Data on a held pure ACK is left to the long way, which counts the ACK as absorbed.
            return (self.payload > 0 && self.join_lro(packet, header, &facts).is_ok()).then_some(facts);
        }
        self.advance(packet, &facts);
        Some(facts)
    }

    /// Takes a packet whose headers match, by LRO's rules. `Err` says why the flow must end before it.
    #[inline]
    fn join_lro(&mut self, packet: &RxPacket<B>, header: &[u8], facts: &Facts) -> Result<Joined, Reason> {
        if facts.sequence != self.next_sequence {
            return Err(Reason::Sequence);
        }
        let transport = usize::from(self.layout.transport);
        let timestamps = usize::from(self.layout.payload) - transport > tcp::HEADER_LENGTH;
        if timestamps && is_before(be32(header, transport + tcp::TIMESTAMP_VALUE), be32(&self.header, transport + tcp::TIMESTAMP_VALUE)) {
            return Err(Reason::TimestampOlder);
        }
        let held_ack = be32(&self.header, transport + tcp::ACKNOWLEDGEMENT);
        let ack = be32(header, transport + tcp::ACKNOWLEDGEMENT);
        if is_before(ack, held_ack) {
            return Err(Reason::AckOlder);
        }
        let pure = facts.payload == 0;
        if pure && ack == held_ack {
            let same_window = be16(header, transport + tcp::WINDOW) == be16(&self.header, transport + tcp::WINDOW);
            return Err(if same_window { Reason::DuplicateAck } else { Reason::WindowUpdate });
        }
        if self.payload + facts.payload > self.payload_limit {
            return Err(Reason::ByteLimit);
        }
        // The newest acknowledgement, window and timestamps leave on the merged packet.
        put32(&mut self.header, transport + tcp::ACKNOWLEDGEMENT, ack);
        put16(&mut self.header, transport + tcp::WINDOW, be16(header, transport + tcp::WINDOW));
        if timestamps {
            put32(&mut self.header, transport + tcp::TIMESTAMP_VALUE, be32(header, transport + tcp::TIMESTAMP_VALUE));
            put32(&mut self.header, transport + tcp::TIMESTAMP_ECHO, be32(header, transport + tcp::TIMESTAMP_ECHO));
        }
        // Data on top of a held pure ACK absorbs that ACK.
        let absorbs = pure || self.payload == 0;
        self.absorbed_acks += u32::from(absorbs);
        self.advance(packet, facts);
        Ok(if pure {
            Joined::Absorbed
        } else if absorbs {
            Joined::AbsorbedHead
        } else {
            Joined::Merged
        })
    }

    /// What ends the flow right after a packet joined, if anything does.
    #[inline(always)]
    pub(super) fn complete(&self, last_payload: u32, mode: Mode) -> Option<Reason> {
        if let Mode::Gro { .. } = mode {
            if self.flags != 0 {
                return Some(Reason::Push);
            }
            if last_payload < self.segment_size {
                return Some(Reason::ShortSegment);
            }
        }
        (self.packets >= self.packet_limit).then_some(Reason::PacketLimit)
    }

    /// Takes the one buffer of a packet that was [next in line](Self::next_in_line).
    #[inline(always)]
    pub(super) fn extend(&mut self, buffer: B, facts: &Facts, storage: Storage) {
        self.bytes += u64::from(facts.end);
        let start = u32::from(self.layout.payload);
        let (buffer, start) = match storage {
            Storage::Fragments => (Some(buffer), start),
            Storage::Linear => (None, self.append(buffer.as_ref().get(start as usize..), facts.payload)),
        };
        self.pieces.push(Piece {
            buffer,
            start,
            length: facts.payload,
            sum: facts.sum.unwrap_or(0),
            flags: Piece::<B>::FIRST | Piece::<B>::SUM,
        });
    }

    /// Copies the last packet's payload behind the others'; returns where it starts.
    #[inline(always)]
    fn append<'a>(&mut self, payload: impl IntoIterator<Item = &'a [u8]>, length: u32) -> u32 {
        // Padding behind the first packet goes as soon as something follows it.
        self.linear.truncate(usize::from(self.layout.payload) + (self.payload - length) as usize);
        let start = self.linear.len() as u32;
        payload.into_iter().for_each(|bytes| self.linear.extend_from_slice(bytes));
        start
    }

    /// Takes the packet's buffers, or a copy of their bytes.
    #[inline(always)]
    pub(super) fn attach(
        &mut self,
        packet: RxPacket<B>,
        facts: &Facts,
        length: usize,
        storage: Storage,
    ) -> Option<crate::packet::Chain<B>> {
        let header = usize::from(self.layout.payload);
        let end = facts.end as usize;
        let first = self.packets == 1;
        self.bytes += length as u64;
        let flags = Piece::<B>::FIRST | if facts.sum.is_some() { Piece::<B>::SUM } else { 0 };
        let sum = facts.sum.unwrap_or(0);
        match (storage, packet.rest) {
            (Storage::Fragments, None) => {
                self.pieces.push(Piece { buffer: Some(packet.first), start: header as u32, length: facts.payload, sum, flags });
                None
            }
            (Storage::Fragments, Some(mut chain)) => {
                let mut offset = 0;
                let mut flags = flags;
                for buffer in core::iter::once(packet.first).chain(chain.buffers_mut().drain(..)) {
                    let size = buffer.as_ref().len();
                    let start = header.saturating_sub(offset).min(size);
                    let stop = end.saturating_sub(offset).min(size).max(start);
                    offset += size;
                    // A head may have to leave as it came, so all its buffers stay; of others only those with payload.
                    if first || stop > start {
                        let has_payload = stop > start;
                        self.pieces.push(Piece {
                            buffer: Some(buffer),
                            start: start as u32,
                            length: (stop - start) as u32,
                            sum,
                            flags: if has_payload { flags } else { 0 },
                        });
                        if has_payload {
                            flags = 0;
                        }
                    }
                }
                Some(chain)
            }
            (Storage::Linear, rest) => {
                let packet = RxPacket { rest, ..RxPacket::new(packet.first) };
                let start = if first {
                    self.linear.clear();
                    packet.buffers().for_each(|buffer| self.linear.extend_from_slice(buffer.as_ref()));
                    header as u32
                } else {
                    self.append(ranges(&packet, header, end), facts.payload)
                };
                if facts.payload > 0 {
                    self.pieces.push(Piece { buffer: None, start, length: facts.payload, sum, flags });
                }
                packet.rest.map(|mut chain| {
                    chain.buffers_mut().clear();
                    chain
                })
            }
        }
    }

    /// Would these buffers pass the limit of fragments?
    #[inline(always)]
    fn too_many_fragments(&self, packet: &RxPacket<B>, policy: &Policy) -> bool {
        let more = match &packet.rest {
            None => 1,
            Some(chain) => 1 + chain.buffers().len(),
        };
        policy.storage == Storage::Fragments && self.pieces.len() + more > policy.max_fragments as usize
    }
}

/// What became of a packet that met a held flow.
#[derive(Clone, Copy, Debug)]
pub(super) enum Attempt {
    /// It is part of the flow now, but for its buffers.
    Joined(Joined),
    /// The flow must leave, and the packet may begin another.
    Ended(Reason),
    /// The flow must leave, and the packet pass.
    Refused(Reason),
}

/// The longest merged packet of a flow: more than 65,535 bytes only where a header can leave its length out.
#[inline]
fn byte_limit(layout: &Layout, policy: &Policy) -> u32 {
    // A hop-by-hop header under a payload length of 0 says that the packet is a jumbogram (RFC 2675, section 3): extension headers keep to 16 bits.
    let extended = layout.version == IpVersion::V6 && usize::from(layout.transport - layout.network) != ipv6::HEADER_LENGTH;
    let big = layout.protocol == Protocol::Tcp && layout.outer.is_none() && layout.pppoe == 0 && !extended;
    // PPPoE's 16-bit length counts the two bytes of its protocol field too (RFC 2516, section 4).
    let most = super::policy::MAX_IP_LENGTH - if layout.pppoe == 0 { 0 } else { 2 };
    if big { policy.max_bytes } else { policy.max_bytes.min(most) }
}

/// How a packet joined in LRO mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joined {
    /// Its payload was added.
    Merged,
    /// Its payload was added to a held pure ACK, which so was absorbed.
    AbsorbedHead,
    /// It was a pure ACK and is gone.
    Absorbed,
}

/// Do masks built for these layouts have bits at the same places? DCCP's and tunnels' also depend on header bytes.
fn same_shape(held: &Layout, new: &Layout) -> bool {
    held.outer.is_none()
        && held.network == new.network
        && held.version == new.version
        && held.transport == new.transport
        && held.protocol == new.protocol
        && held.payload == new.payload
        && held.pppoe == new.pppoe
}

/// Is sequence number `left` before `right` (RFC 9293, section 3.4)?
#[inline(always)]
fn is_before(left: u32, right: u32) -> bool {
    (left.wrapping_sub(right) as i32) < 0
}
