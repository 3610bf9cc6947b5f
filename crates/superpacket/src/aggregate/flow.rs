//! A held flow: its first packet as it came, and from the second on what must be equal, what comes
//! next, and the payload so far.
//!
//! Most flows of a busy table leave with the one packet they began with. So a packet that begins a
//! flow is kept as it is, and [opened](Held::open) for others to join when another comes.

mod buffers;
mod join;
mod leave;
mod run;
mod super_packet;
mod uneven;

pub(super) use join::{Attempt, Joined};
pub(super) use run::{JOIN_AHEAD, prefetch_ahead, prefetch_first, prefetch_payload};
pub(super) use uneven::may_be_uneven;

use alloc::vec::Vec;

use self::uneven::Uneven;
use super::examine::{ChecksumField, Constants, Facts, frame_sum, outer_checksums};
use super::mask::{self, HeaderBytes, LONGER_HEADER, USUAL_HEADER};
use super::policy::Policy;
use super::poll::Poll;
use super::{Counters, Reason};
use crate::memory::Memory;
use crate::packet::{Chain, FlowHash, Layer, RxChecksum, RxPacket, VlanTag};
use crate::segment::{Gso, IpId};
use crate::super_packet::Piece;
use crate::wire::{
    IpVersion, Layout, LinkHeader, MAX_HEADER, Protocol, be16, dccp_sequence_mask, ipv4, ipv6,
    parse_usual, tcp, usual,
};
use superpacket_simd::Simd;

/// Length of source and destination port, with which a transport header begins.
const PORTS: usize = 4;

/// One descriptor of the flow table.
#[derive(Debug)]
#[repr(C, align(64))] // what a flow of one packet needs, then what the next packet of a run needs first
pub(super) struct Held<B> {
    /// The flow's hash.
    pub(super) flow: u64,
    /// Since when it is held, in nanoseconds.
    pub(super) since: u64,
    /// How many flows were held before it.
    pub(super) number: u64,
    /// Its place in the bucket.
    pub(super) place: u8,
    /// How many tunnels it goes through: it hangs in the lists of their address pairs too.
    pub(super) tunnels: u8,
    layer: Layer,
    /// Which [usual] layout it is: what is done with such is compiled for each.
    usual: u8,
    vlan: Option<VlanTag>,
    pub(super) layout: Layout,
    /// Frame bytes held, headers included.
    pub(super) bytes: u64,
    /// Of its [ports and addresses](addresses_and_ports): by it most packets of other flows are
    /// known for such.
    pub(super) addresses_and_ports: u64,
    /// The packet that it began with, until it is [opened](Self::open).
    pub(super) first: Option<First<B>>,
    /// The first packet's payload sum, if it is known.
    sum: Option<u16>,
    /// What is known of the first packet's checksum.
    first_checksum: FirstChecksum,
    /// The [shape] of the layout that the mask is for.
    masked: u64,

    // What follows is that of an open flow.
    /// The next packet may join [in a run](Self::join_run).
    in_sequence: bool,
    field: ChecksumField,
    /// PSH and FIN of all packets, and a CWR that only the first segment carries.
    flags: u8,
    /// All payload sums are known.
    sums: bool,
    /// Which tunnels have a checksum of their own, as in [`outer_checksums`].
    outer_checksums: u8,
    /// How identifications run is known: by the segments of a super-packet, if not by a second
    /// packet.
    ids_known: bool,
    queue: u16,
    id_run: IdRun,
    outer_id_run: IdRun,
    nested_id_run: IdRun,
    /// Payload bytes so far.
    payload: u32,
    /// The first segment's payload, which no other may exceed in GRO mode.
    segment_size: u32,
    /// The most payload and packets that may be merged. Of a super-packet's segments one counts as
    /// the packet, and the others are taken off the limit.
    payload_limit: u32,
    packet_limit: u32,
    pub(super) packets: u32,
    largest_payload: u32,
    /// The next sequence number expected; 0 in UDP.
    next_sequence: u64,
    sequence_mask: u64,
    time: u64,
    pub(super) pieces: Vec<Piece<B>>,
    pub(super) constants: Constants,
    absorbed_acks: u32,
    checksum: RxChecksum,
    hash: Option<FlowHash>,
    /// How the first packet is to be cut, if it came as a super-packet.
    gso: Option<Gso>,
    pub(super) linear: Vec<u8>,
    uneven: Uneven,

    // What its packets must be equal to, and where: a mask is kept for the next flow, and rebuilt
    // if that is laid out otherwise.
    header: HeaderBytes,
    mask: HeaderBytes,
}

/// What is known of the checksum of the packet that a flow began with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirstChecksum {
    /// It is right, or the packet leaves as it came.
    Right,
    /// Nobody has verified it.
    Unknown,
    /// It is wrong: nothing may join.
    Wrong,
}

/// The packet that a flow began with, as it came.
///
/// What tells `Some` from `None` lies behind the packet: hidden in one of its fields, it would have
/// the packet moved in words that straddle others, and who reads those waits for them.
#[derive(Debug)]
#[repr(C)]
pub(super) struct First<B> {
    pub(super) packet: RxPacket<B>,
    there: There,
}

/// It has only one value, and so more of others than any field of a packet.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
enum There {
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
            masked: 0,
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
            uneven: Uneven::default(),
            header: HeaderBytes([0; MAX_HEADER]),
            mask: HeaderBytes([0; MAX_HEADER]),
        }
    }

    /// Hints that the flow will leave soon, and that its place will be taken.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        superpacket_simd::prefetch_read(&self.flow);
        superpacket_simd::prefetch_read(&self.bytes);
        superpacket_simd::prefetch_read(&self.in_sequence);
    }

    /// Are these headers those of the held packets, but for what may differ?
    #[inline(always)]
    pub(super) fn matches<C>(&self, header: &[u8], packet: &RxPacket<C>) -> bool {
        mask::equal(header, &self.header, &self.mask, usize::from(self.layout.payload))
            && self.vlan == packet.vlan
            && self.layer == packet.layer
    }

    /// May this packet be the next [in sequence](Self::join_run)? Whether its headers are like
    /// those held is asked for there.
    #[inline(always)]
    pub(super) fn expects<C>(&self, packet: &RxPacket<C>, memory: &impl Memory<C>) -> bool {
        addresses_and_ports(memory.bytes(&packet.first), self.layout.transport)
            == self.addresses_and_ports
            && (self.in_sequence
                || self.first.is_some() && self.first_checksum != FirstChecksum::Wrong)
    }

    /// Must the first packet's checksum be verified before another joins?
    #[inline(always)]
    pub(super) fn is_unverified(&self) -> bool {
        self.first.is_some() && self.first_checksum == FirstChecksum::Unknown
    }

    /// Is this packet of the flow of the first one, whose checksum is not verified, and laid out
    /// [as usual](usual), so that the long way would verify that of the first?
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

    /// Why they are not.
    #[cold]
    pub(super) fn mismatch<C>(&self, header: &[u8], packet: &RxPacket<C>) -> Reason {
        if self.vlan != packet.vlan {
            return Reason::LinkHeader;
        }
        mask::difference(header, &self.header, &self.mask, &self.layout)
    }
}

impl<B> Held<B> {
    /// Starts to hold a flow with this packet of `length` bytes, whose headers these are; the
    /// packet itself follows by [`begin`](Self::begin).
    ///
    /// `USUAL` says which [usual] layout it is.
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
            // They may not lie together again.
            self.keep(header, usize::from(layout.payload));
        }
        self.layout = *layout;
        self.layer = packet.layer;
        self.vlan = packet.vlan;
        self.bytes = length as u64;
    }

    /// Holds the packet that the flow was [started](Self::start) with.
    #[inline(always)]
    pub(super) fn begin(&mut self, packet: RxPacket<B>, facts: &Facts) {
        // First, and so copied at once: behind another write it would take a copy on the stack.
        let before = self.first.replace(First { packet, there: There::Yes });
        // Nothing was kept there: there is nothing to drop, and so no need to look.
        debug_assert!(before.is_none(), "a vacant slot holds no packet");
        core::mem::forget(before);
        self.sum = facts.sum;
        self.first_checksum =
            if facts.unverified { FirstChecksum::Unknown } else { FirstChecksum::Right };
    }

    /// Makes a flow that others can join of the packet that it began with, if that has not been
    /// done. Returns the chain of its buffers, emptied.
    ///
    /// # Errors
    /// [`BadChecksum`]; nothing has changed then.
    #[inline(always)]
    pub(super) fn open<P: Poll<B>>(
        &mut self,
        policy: &Policy,
        simd: Simd,
        counters: &mut Counters,
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

    /// Lets nothing join a flow of TCP segments that are smaller than `least`, in bytes.
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
        counters: &mut Counters,
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
        // Flows of one kind follow each other: their masks are equal more often than not.
        let shape = shape(layout);
        if shape == 0 || shape != self.masked {
            self.mask = layout.lend::<USUAL, _>(|layout| mask::build(layout, header, policy.mode));
            self.masked = shape;
        }
        let (constants, headers) = Constants::new(header, layout, policy.mode);
        self.constants = constants;
        if self.first_checksum == FirstChecksum::Unknown {
            counters.verified_in_software += 1;
            let sum =
                frame_sum(&packet, usize::from(layout.payload), layout.end as usize, simd, poll);
            if !headers.add32(layout.end - u32::from(layout.transport)).add(sum).is_valid() {
                self.first = Some(First { packet, there: There::Yes });
                self.first_checksum = FirstChecksum::Wrong;
                return Err(BadChecksum);
            }
            self.first_checksum = FirstChecksum::Right;
            self.sum = Some(sum);
        }
        let mut facts = Facts::of(header, layout, packet.checksum, self.sum);
        if facts.payload == 0 {
            // Nothing sums to nothing, whatever follows from a checksum that a device calls right.
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
        // None are left but those of a packet whose sink panicked.
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
        if policy.merge_uneven {
            self.open_uneven::<P>(policy, facts.id);
        }
        Ok(self.attach(packet, &facts, usize::from(layout.payload), policy.storage, poll))
    }

    /// Expects no packet any more: the flow has left.
    #[inline(always)]
    pub(super) fn close(&mut self) {
        self.in_sequence = false;
    }

    /// The headers of what is held; more bytes may follow.
    pub(super) fn header<'a>(&'a self, memory: &'a impl Memory<B>) -> &'a [u8] {
        match &self.first {
            Some(First { packet: RxPacket { first, rest: None, .. }, .. }) => memory.bytes(first),
            _ => &self.header,
        }
    }

    /// Keeps the first `length` bytes as those that the next packets are compared with.
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

    /// Keeps `MOST` bytes, if as many as that are there and no more are asked for: a copy of
    /// constant length takes a few moves, and what it takes too much is never looked at.
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

    /// Counts a packet in, which fits.
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

    /// What ends the flow right after a packet joined, if anything does.
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

/// The first packet's checksum is wrong: it must leave alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct BadChecksum;

/// The ports, and the 8 bytes before them, which in IPv4 are the addresses, made one.
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

/// How an IPv4 identification runs: from the first packet's in steps of 1, until a second packet
/// shows that it is fixed.
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

    /// The run with one more packet after `count`; `None` if its identification does not go on with
    /// it. `only_one`: there is one packet before, which does not tell how the run goes on. `form`
    /// is what the packet says of that.
    #[inline(always)]
    fn next(self, count: u32, only_one: bool, id: u16, form: Option<IpId>) -> Option<IdRun> {
        let run = match (
            id == self.expected(count),
            only_one && id == self.expected(count).wrapping_sub(1),
        ) {
            (true, _) => self,
            (false, true) => IdRun { first: id, step: 0 },
            (false, false) => return None,
        };
        form.is_none_or(|form| form == run.form()).then_some(run)
    }

    /// Leaves out as many identifications.
    fn skip(&mut self, count: u32) {
        self.first = self.expected(count);
    }

    fn form(self) -> IpId {
        if self.step == 0 { IpId::Fixed } else { IpId::Increment }
    }
}

/// The longest merged packet of a flow: more than 65,535 bytes only where a header can leave its
/// length out.
#[inline]
fn byte_limit(layout: &Layout, policy: &Policy) -> u32 {
    // A hop-by-hop header under a payload length of 0 says that the packet is a jumbogram (RFC
    // 2675, section 3): extension headers keep to 16 bits.
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

/// The most packets of a flow.
#[inline]
pub(super) fn packet_limit(layout: &Layout, policy: &Policy) -> u32 {
    if layout.protocol == Protocol::Udp {
        policy.max_datagrams.min(policy.max_packets)
    } else {
        policy.max_packets
    }
}

/// Of a descriptor that was never in use.
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

/// What a mask built for a layout depends on, as a number that is not 0; 0 if it depends on header
/// bytes too, as DCCP's and tunnels' do.
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
