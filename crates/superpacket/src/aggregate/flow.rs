//! A held flow. At first it stores only its first packet, unchanged. From the second packet on, it
//! also stores the headers that further packets are compared with, the expected sequence number and
//! identifications, and the payload so far.
//!
//! In a busy table most flows leave with only one packet. So the first packet is kept unchanged,
//! and the flow is [opened](Held::open) only when a second packet comes.

mod buffers;
mod join;
mod leave;
mod run;
mod super_packet;

pub(super) use join::{Attempt, Joined};
pub(super) use run::{JOIN_AHEAD, prefetch_ahead, prefetch_first, prefetch_payload};

use alloc::vec::Vec;

use super::examine::{ChecksumField, Constants, Facts, frame_sum, outer_checksums};
use super::mask::{self, HeaderBytes, LONGER_HEADER, USUAL_HEADER};
use super::policy::Policy;
use super::poll::Poll;
use super::{AggregateCounters, Reason};
use crate::memory::Memory;
use crate::packet::{Chain, FlowHash, Layer, RxChecksum, RxPacket, VlanTag};
use crate::segment::{Gso, IpId};
use crate::super_packet::Piece;
use crate::wire::{
    IpVersion, Layout, LinkHeader, MAX_HEADER, Protocol, be16, dccp_sequence_mask, ipv4, ipv6,
    parse_usual, tcp, usual,
};
use superpacket_simd::Simd;

/// Length in bytes of the source and destination ports, with which each transport header begins.
const PORTS: usize = 4;

/// A held flow: the packets that were merged so far, and the header values that the next packet
/// must have to join them.
#[derive(Debug)]
#[repr(C, align(64))] // what a flow of one packet needs, then what the next packet of a run needs first
pub(super) struct Held<B> {
    /// The flow's hash.
    pub(super) flow: u64,
    /// Time at which the flow began to be held, in nanoseconds of the caller's clock.
    pub(super) since: u64,
    /// Number of flows that the table had inserted before this one; it orders flows by age.
    pub(super) number: u64,
    /// Index of the flow in its hash bucket, or 8 plus its index in the neighbouring bucket if it
    /// is stored there.
    pub(super) place: u8,
    /// Number of tunnels around the flow. The flow is also in the list of each tunnel's address
    /// pair.
    pub(super) tunnels: u8,
    layer: Layer,
    /// Number of the header layout if it is one of the [usual] ones, for each of which code is
    /// compiled separately.
    usual: u8,
    vlan: Option<VlanTag>,
    pub(super) layout: Layout,
    /// Total length of the held frames in bytes, headers included.
    pub(super) bytes: u64,
    /// The [hash of ports and addresses](addresses_and_ports), by which most packets of other flows
    /// are quickly told apart.
    pub(super) addresses_and_ports: u64,
    /// The flow's first packet, until the flow is [opened](Self::open).
    pub(super) first: Option<First<B>>,
    /// One's-complement sum of the first packet's payload, if known.
    sum: Option<u16>,
    /// State of the first packet's checksum.
    first_checksum: FirstChecksum,
    /// The number, from [`shape`], of the header layout that the comparison mask was built for. A
    /// packet with another number needs another mask.
    mask_shape: u64,

    // The fields below are valid only in an open flow.
    /// Whether the next packet may join [in a run](Self::join_run).
    in_sequence: bool,
    field: ChecksumField,
    /// The TCP flags PSH and FIN if any packet had them, and CWR if only the first segment has it.
    flags: u8,
    /// Whether the payload sum of every packet of the flow is known.
    sums: bool,
    /// A bit for each tunnel that has a checksum, as in [`outer_checksums`].
    outer_checksums: u8,
    /// Whether it is known how the IPv4 identifications change: from the segments of a super-packet
    /// or from a second packet.
    ids_known: bool,
    queue: u16,
    id_run: IdRun,
    outer_id_run: IdRun,
    nested_id_run: IdRun,
    /// Number of payload bytes held so far.
    payload: u32,
    /// Payload of the first segment in bytes; in GRO mode no other segment may be longer.
    segment_size: u32,
    /// Maximum payload of the merged packet in bytes.
    payload_limit: u32,
    /// Maximum number of packets that may merge. A super-packet counts as one packet, and its other
    /// segments are subtracted from this limit.
    packet_limit: u32,
    pub(super) packets: u32,
    largest_payload: u32,
    /// The next expected sequence number; 0 for UDP.
    next_sequence: u64,
    sequence_mask: u64,
    time: u64,
    pub(super) pieces: Vec<Piece<B>>,
    pub(super) constants: Constants,
    absorbed_acks: u32,
    checksum: RxChecksum,
    hash: Option<FlowHash>,
    /// The segmentation metadata of the first packet; `None` if it is not a super-packet.
    gso: Option<Gso>,
    pub(super) linear: Vec<u8>,

    // The expected header bytes, and the mask of the bits that must be equal. The mask is kept for
    // the next flow and rebuilt if that flow's layout differs.
    header: HeaderBytes,
    mask: HeaderBytes,
}

/// State of the checksum of a flow's first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirstChecksum {
    /// The checksum is right, or the packet will leave unchanged.
    Right,
    /// The checksum was not verified yet.
    Unknown,
    /// The checksum is wrong, so no packet may join.
    Wrong,
}

/// The first packet of a flow, unchanged.
///
/// The discriminant of `Option<First>` lies after the packet, in `there`. If it were in one of the
/// packet's fields, the packet would be copied in words that straddle fields, and later reads would
/// stall.
#[derive(Debug)]
#[repr(C)]
pub(super) struct First<B> {
    pub(super) packet: RxPacket<B>,
    there: Present,
}

/// A type with a single valid value. The compiler uses one of its many invalid values to represent
/// `None` in `Option<First>`.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
enum Present {
    Yes = 1,
}

impl<B> Held<B> {
    pub(super) fn vacant() -> Self {
        Held {
            flow: 0,
            since: 0,
            number: 0,
            place: 0,
            tunnels: 0,
            layer: Layer::Ethernet,
            usual: usual::NONE,
            vlan: None,
            layout: NO_LAYOUT,
            bytes: 0,
            addresses_and_ports: 0,
            first: None,
            sum: None,
            first_checksum: FirstChecksum::Right,
            mask_shape: 0,
            in_sequence: false,
            field: ChecksumField::Full,
            flags: 0,
            sums: false,
            outer_checksums: 0,
            ids_known: false,
            queue: 0,
            id_run: IdRun::new(0),
            outer_id_run: IdRun::new(0),
            nested_id_run: IdRun::new(0),
            payload: 0,
            segment_size: 0,
            payload_limit: 0,
            packet_limit: 0,
            packets: 0,
            largest_payload: 0,
            next_sequence: 0,
            sequence_mask: 0,
            time: 0,
            pieces: Vec::new(),
            constants: Constants::default(),
            absorbed_acks: 0,
            checksum: RxChecksum::None,
            hash: None,
            gso: None,
            linear: Vec::new(),
            header: HeaderBytes([0; MAX_HEADER]),
            mask: HeaderBytes([0; MAX_HEADER]),
        }
    }

    /// Prefetches this entry, because its flow will leave soon and another will be stored in it.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        superpacket_simd::prefetch_read(&self.flow);
        superpacket_simd::prefetch_read(&self.bytes);
        superpacket_simd::prefetch_read(&self.in_sequence);
    }

    /// Returns whether these headers equal those of the held packets, except for the fields that
    /// may differ.
    #[inline(always)]
    pub(super) fn matches<C>(&self, header: &[u8], packet: &RxPacket<C>) -> bool {
        mask::equal(header, &self.header, &self.mask, usize::from(self.layout.payload))
            && self.vlan == packet.vlan
            && self.layer == packet.layer
    }

    /// Returns whether this packet may be the next to join [in a run](Self::join_run). Only
    /// addresses and ports are compared; `join_run` compares the other headers.
    #[inline(always)]
    pub(super) fn expects<C>(&self, packet: &RxPacket<C>, memory: &impl Memory<C>) -> bool {
        addresses_and_ports(memory.bytes(&packet.first), self.layout.transport)
            == self.addresses_and_ports
            && (self.in_sequence
                || self.first.is_some() && self.first_checksum != FirstChecksum::Wrong)
    }

    /// Returns whether the first packet's checksum must be verified before another packet joins.
    #[inline(always)]
    pub(super) fn is_unverified(&self) -> bool {
        self.first.is_some() && self.first_checksum == FirstChecksum::Unknown
    }

    /// Returns whether this packet has the same addresses and ports as the flow's first packet and
    /// the flow's [usual](usual) layout, so that receiving it would verify the checksum of the
    /// first packet, which is not verified yet.
    #[inline(always)]
    pub(super) fn would_verify(&self, next: &RxPacket<B>, memory: &impl Memory<B>) -> bool {
        match self.usual {
            usual::ETHERNET_IPV4 => self.would_verify_as::<{ usual::ETHERNET_IPV4 }>(next, memory),
            usual::ETHERNET_IPV6 => self.would_verify_as::<{ usual::ETHERNET_IPV6 }>(next, memory),
            usual::IPV4 => self.would_verify_as::<{ usual::IPV4 }>(next, memory),
            usual::IPV6 => self.would_verify_as::<{ usual::IPV6 }>(next, memory),
            _ => false,
        }
    }

    #[inline(always)]
    fn would_verify_as<const USUAL: u8>(
        &self,
        next: &RxPacket<B>,
        memory: &impl Memory<B>,
    ) -> bool {
        let Some(First { packet: first, .. }) = &self.first else { return false };
        let (held, header) = (memory.bytes(&first.first), memory.bytes(&next.first));
        let Some((payload, end)) = parse_usual::<USUAL>(header, header.len(), next.layer) else {
            return false;
        };
        let layout = Layout::usual(USUAL, payload, end);
        let network = usize::from(layout.network);
        let addresses = match layout.version {
            IpVersion::V4 => network + ipv4::ADDRESSES,
            IpVersion::V6 => network + ipv6::ADDRESSES,
        };
        let alike = |from: usize, to: usize| header.get(from..to) == held.get(from..to);
        let whole = end as usize == header.len() && next.rest.is_none() && next.gso.is_none();
        whole
            && next.vlan == self.vlan
            && alike(0, network)
            && alike(addresses, usize::from(layout.transport) + PORTS)
    }

    /// Returns the reason why the headers do not [match](Self::matches).
    #[cold]
    pub(super) fn mismatch<C>(&self, header: &[u8], packet: &RxPacket<C>) -> Reason {
        if self.vlan != packet.vlan {
            return Reason::LinkHeader;
        }
        mask::difference(header, &self.header, &self.mask, &self.layout)
    }
}

impl<B> Held<B> {
    /// Begins a held flow: stores the layout and the metadata of its first packet, of `length`
    /// bytes, whose headers are `header`. The packet itself is stored by [`begin`](Self::begin).
    ///
    /// `USUAL` is the number of its [usual] layout.
    #[inline(always)]
    pub(super) fn start<const USUAL: u8>(
        &mut self,
        packet: &RxPacket<B>,
        header: &[u8],
        layout: &Layout,
        length: usize,
    ) {
        self.usual = USUAL;
        self.addresses_and_ports = addresses_and_ports(header, layout.transport);
        if USUAL == usual::NONE && packet.rest.is_some() {
            // The headers are copied: they are spread over several buffers and were only gathered
            // for this call.
            self.keep(header, usize::from(layout.payload));
        }
        self.layout = *layout;
        self.layer = packet.layer;
        self.vlan = packet.vlan;
        self.bytes = length as u64;
    }

    /// Stores the first packet of a flow that was [started](Self::start).
    #[inline(always)]
    pub(super) fn begin(&mut self, packet: RxPacket<B>, facts: &Facts) {
        // The first write, so that the packet is copied directly: after another write it would be
        // copied via the stack.
        let before = self.first.replace(First { packet, there: Present::Yes });
        // The slot was empty, so no packet needs to be dropped.
        debug_assert!(before.is_none(), "a vacant slot holds no packet");
        core::mem::forget(before);
        self.sum = facts.sum;
        self.first_checksum =
            if facts.unverified { FirstChecksum::Unknown } else { FirstChecksum::Right };
    }

    /// Opens the flow, unless it is open: prepares it for other packets to join. If the first
    /// packet had several buffers, returns the list that held them, which is now empty and can be
    /// reused.
    ///
    /// # Errors
    /// [`BadChecksum`]; the flow is unchanged then.
    #[inline(always)]
    pub(super) fn open<P: Poll<B>>(
        &mut self,
        policy: &Policy,
        simd: Simd,
        counters: &mut AggregateCounters,
        poll: &P,
    ) -> Result<Option<Chain<B>>, BadChecksum> {
        if let Some(First { packet: RxPacket { gso: Some(gso), .. }, .. }) = self.first {
            return self.open_super_packet(gso, policy, simd, counters, poll);
        }
        match self.usual {
            usual::ETHERNET_IPV4 => {
                self.open_as::<{ usual::ETHERNET_IPV4 }, P>(policy, simd, counters, poll)
            }
            usual::ETHERNET_IPV6 => {
                self.open_as::<{ usual::ETHERNET_IPV6 }, P>(policy, simd, counters, poll)
            }
            usual::IPV4 => self.open_as::<{ usual::IPV4 }, P>(policy, simd, counters, poll),
            usual::IPV6 => self.open_as::<{ usual::IPV6 }, P>(policy, simd, counters, poll),
            _ => self.open_as::<{ usual::NONE }, P>(policy, simd, counters, poll),
        }
    }

    /// Prevents further packets from joining if the flow is TCP and its segments are smaller than
    /// `least` bytes.
    #[inline(always)]
    pub(super) fn end_below(&mut self, least: u16) {
        if self.segment_size < u32::from(least) && self.layout.protocol == Protocol::Tcp {
            self.payload_limit = self.payload;
        }
    }

    #[inline(never)]
    fn open_as<const USUAL: u8, P: Poll<B>>(
        &mut self,
        policy: &Policy,
        simd: Simd,
        counters: &mut AggregateCounters,
        poll: &P,
    ) -> Result<Option<Chain<B>>, BadChecksum> {
        if self.first_checksum == FirstChecksum::Wrong && self.first.is_some() {
            return Err(BadChecksum);
        }
        let Some(First { packet, .. }) = self.first.take() else { return Ok(None) };
        let layout = &self.layout.known::<USUAL>();
        if packet.rest.is_none() {
            self.keep(poll.bytes(&packet.first), usize::from(layout.payload));
        }
        let header = &self.header[..];
        // Flows with the same layout often follow each other, so the mask can often be reused.
        let shape = shape(layout);
        if shape == 0 || shape != self.mask_shape {
            self.mask = layout.lend::<USUAL, _>(|layout| mask::build(layout, header, policy.mode));
            self.mask_shape = shape;
        }
        let (constants, headers) = Constants::new(header, layout, policy.mode);
        self.constants = constants;
        if self.first_checksum == FirstChecksum::Unknown {
            counters.verified_in_software += 1;
            let sum =
                frame_sum(&packet, usize::from(layout.payload), layout.end as usize, simd, poll);
            if !headers.add32(layout.end - u32::from(layout.transport)).add(sum).is_valid() {
                self.first = Some(First { packet, there: Present::Yes });
                self.first_checksum = FirstChecksum::Wrong;
                return Err(BadChecksum);
            }
            self.first_checksum = FirstChecksum::Right;
            self.sum = Some(sum);
        }
        let mut facts = Facts::of(header, layout, packet.checksum, self.sum);
        if facts.payload == 0 {
            // The sum of an empty payload is 0, whatever a checksum that the device calls right
            // implies.
            facts.sum = Some(0);
        } else if facts.implied {
            facts.sum = Some(headers.add32(facts.end - u32::from(layout.transport)).checksum());
        }
        self.payload_limit = byte_limit(layout, policy)
            .saturating_sub(u32::from(layout.payload - layout.outermost()));
        if P::IN_PLACE {
            self.payload_limit =
                self.payload_limit.min(facts.payload.saturating_add(poll.room(&packet.first)));
        }
        self.packet_limit = packet_limit(layout, policy);
        self.field = facts.field;
        self.outer_checksums = outer_checksums(header, layout.outer, layout.nested);
        self.sequence_mask = match layout.protocol {
            Protocol::Tcp => u64::from(u32::MAX),
            Protocol::Udp => 0,
            Protocol::Dccp => {
                dccp_sequence_mask(header.get(usize::from(layout.transport)..).unwrap_or(&[]))
            }
        };
        self.segment_size = facts.payload;
        // Pieces are left only if a sink panicked.
        self.pieces.clear();
        self.payload = 0;
        self.largest_payload = 0;
        self.packets = 0;
        self.absorbed_acks = 0;
        self.id_run = IdRun::new(facts.id);
        self.outer_id_run = IdRun::new(facts.outer_id);
        if let Some(nested) = layout.nested {
            self.nested_id_run = IdRun::new(be16(header, usize::from(nested.network) + ipv4::ID));
        }
        (self.ids_known, self.gso) = (false, None);
        self.flags = 0;
        self.sums = true;
        self.in_sequence = layout.protocol != Protocol::Dccp
            && layout.outer.is_none()
            && layout.pppoe == 0
            && facts.field == ChecksumField::Full;
        self.checksum = packet.checksum;
        self.hash = packet.hash;
        self.queue = packet.queue;
        self.advance(&packet, &facts, layout.protocol);
        Ok(self.attach(packet, &facts, usize::from(layout.payload), policy.storage, poll))
    }

    /// Marks a flow that has left the aggregator, so that no packet is compared with it any more.
    #[inline(always)]
    pub(super) fn close(&mut self) {
        self.in_sequence = false;
    }

    /// Returns the headers of the held packets, from the start of the frame. The slice may contain
    /// more bytes behind the headers.
    pub(super) fn header<'a>(&'a self, memory: &'a impl Memory<B>) -> &'a [u8] {
        match &self.first {
            Some(First { packet: RxPacket { first, rest: None, .. }, .. }) => memory.bytes(first),
            _ => &self.header,
        }
    }

    /// Stores the first `length` bytes of `header`. Later packets are compared with them.
    #[inline(always)]
    fn keep(&mut self, header: &[u8], length: usize) {
        let kept = self.keep_in::<USUAL_HEADER>(header, length)
            || self.keep_in::<LONGER_HEADER>(header, length);
        if !kept
            && let (Some(from), Some(to)) = (header.get(..length), self.header.get_mut(..length))
        {
            to.copy_from_slice(from);
        }
    }

    /// Copies `MOST` bytes, if the headers are no longer than that and the packet has as many;
    /// returns whether it did. A copy of constant length needs few instructions, and the extra
    /// bytes are never read.
    #[inline(always)]
    fn keep_in<const MOST: usize>(&mut self, header: &[u8], length: usize) -> bool {
        match (header.first_chunk::<MOST>(), self.header.first_chunk_mut::<MOST>()) {
            (Some(from), Some(to)) if length <= MOST => {
                *to = *from;
                true
            }
            _ => false,
        }
    }

    /// Updates the expected sequence number and the totals of the flow for a packet that joins.
    #[inline(always)]
    fn advance(&mut self, packet: &RxPacket<B>, facts: &Facts, protocol: Protocol) {
        let step = match protocol {
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

    /// Returns the reason why the flow is complete after a packet has joined; `None` if more
    /// packets may join.
    #[inline(always)]
    pub(super) fn complete<const LRO: bool>(&self, last_payload: u32) -> Option<Reason> {
        if !LRO {
            if self.flags & (tcp::PSH | tcp::FIN) != 0 {
                return Some(Reason::Push);
            }
            if last_payload < self.segment_size {
                return Some(Reason::ShortSegment);
            }
        }
        (self.packets >= self.packet_limit).then_some(Reason::PacketLimit)
    }
}

/// The error that the first packet's checksum is wrong, so that no packet may join it.
#[derive(Clone, Copy, Debug)]
pub(super) struct BadChecksum;

/// Returns the ports and the 8 bytes before them (in IPv4 the addresses), combined in one number.
#[inline(always)]
pub(super) fn addresses_and_ports(header: &[u8], transport: u16) -> u64 {
    match header
        .get(usize::from(transport).wrapping_sub(8)..)
        .and_then(|header| header.first_chunk::<12>())
    {
        Some([a, b, c, d, e, f, g, h, ports @ ..]) => {
            u64::from_ne_bytes([*a, *b, *c, *d, *e, *f, *g, *h])
                ^ u64::from(u32::from_ne_bytes(*ports)) << 16
        }
        None => 0,
    }
}

/// The sequence of IPv4 identifications: from the first packet's in steps of 1, unless the second
/// packet shows that it is fixed.
#[derive(Clone, Copy, Debug)]
struct IdRun {
    first: u16,
    step: u16,
}

impl IdRun {
    fn new(first: u16) -> Self {
        IdRun { first, step: 1 }
    }

    /// Returns the identification that the next packet must have after `count` packets of the
    /// sequence.
    #[inline(always)]
    fn expected(self, count: u32) -> u16 {
        self.first.wrapping_add(self.step.wrapping_mul(count as u16))
    }

    /// Returns the sequence with one more packet, whose identification is `id`, after `count`
    /// packets; `None` if `id` does not continue it. `only_one` says that there was only one packet
    /// before, so that the step is not known yet. `form` is how the identification changes between
    /// the segments of the new packet, if it is a super-packet.
    #[inline(always)]
    fn next(self, count: u32, only_one: bool, id: u16, form: Option<IpId>) -> Option<IdRun> {
        let run = match (id == self.expected(count), only_one && id == self.first) {
            (true, _) => self,
            (false, true) => IdRun { step: 0, ..self },
            (false, false) => return None,
        };
        form.is_none_or(|form| form == run.form()).then_some(run)
    }

    /// Adds `count` to the first identification of the sequence.
    fn skip(&mut self, count: u32) {
        self.first = self.expected(count);
    }

    fn form(self) -> IpId {
        if self.step == 0 { IpId::Fixed } else { IpId::Increment }
    }
}

/// Returns the maximum length of a merged packet of a flow, in bytes. It exceeds 65,535 only if the
/// header format allows a larger length (BIG TCP).
#[inline]
fn byte_limit(layout: &Layout, policy: &Policy) -> u32 {
    // With a hop-by-hop header, a payload length of 0 means a jumbogram (RFC 2675, section 3). So
    // packets with extension headers keep 16-bit lengths.
    let extended = layout.version == IpVersion::V6
        && usize::from(layout.transport - layout.network) != ipv6::HEADER_LENGTH;
    let big = layout.protocol == Protocol::Tcp
        && layout.outer.is_none()
        && layout.pppoe == 0
        && !extended;
    // PPPoE's 16-bit length counts the two bytes of its protocol field too (RFC 2516, section 4).
    let most = super::policy::MAX_IP_LENGTH - if layout.pppoe == 0 { 0 } else { 2 };
    let option = if policy.jumbo_option && layout.version == IpVersion::V6 {
        ipv6::JUMBO_HEADER_LENGTH as u32
    } else {
        0
    };
    if big { policy.max_bytes.saturating_sub(option) } else { policy.max_bytes.min(most) }
}

/// Returns the maximum number of packets that may merge into one packet with this layout.
#[inline]
pub(super) fn packet_limit(layout: &Layout, policy: &Policy) -> u32 {
    if layout.protocol == Protocol::Udp {
        policy.max_datagrams.min(policy.max_packets)
    } else {
        policy.max_packets
    }
}

/// The layout stored in a flow-table entry that was never used.
const NO_LAYOUT: Layout = Layout {
    outer: None,
    nested: None,
    link: LinkHeader::Plain,
    network: 0,
    version: IpVersion::V4,
    transport: 0,
    protocol: Protocol::Tcp,
    payload: 0,
    pppoe: 0,
    jumbo: false,
    end: 0,
    refusal: None,
};

/// Returns a number for the parts of a layout that determine its comparison mask: layouts with the
/// same nonzero number have the same mask. 0 if the mask also depends on header bytes, as for DCCP
/// and tunnels.
#[inline(always)]
fn shape(layout: &Layout) -> u64 {
    const { assert!(MAX_HEADER <= 1 << 9) };
    if layout.outer.is_some() || layout.protocol == Protocol::Dccp {
        return 0;
    }
    let offsets = [layout.network, layout.transport, layout.payload, layout.pppoe.into()]
        .iter()
        .fold(0, |all, offset| all << 9 | u64::from(*offset));
    offsets << 2
        | u64::from(layout.version == IpVersion::V6) << 1
        | u64::from(layout.protocol == Protocol::Udp)
}
