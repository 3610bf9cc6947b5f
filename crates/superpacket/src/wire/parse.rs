//! Parses the headers of a frame, from its first byte to its payload.

use super::addresses::checksum_addresses;
use super::extensions::{Extensions, ip_length};
use super::gro_hint::GroHint;
use super::layout::usual;
use super::link::{LinkWalk, Next, Tag};
use super::{
    IpVersion, Layer, Layout, LinkHeader, MAX_HEADER, Outer, Protocol, Refusal, Tunnel, be16, byte,
};
use super::{dccp, ethernet, ipv4, ipv6, pppoe, protocol, tcp, udp};

/// The flows that a packet may belong to if its own flow cannot be determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// No flow: the packet is not IP, or its protocol is never aggregated.
    None,
    /// Any flow between the addresses of one IP header: the packet is a fragment, has a truncated
    /// header, or is a tunnel packet that could not be read.
    Pair {
        /// Offset of that IP header, in bytes from the start of the frame.
        network: u16,
        /// Version of that IP header.
        version: IpVersion,
    },
}

/// The error for a packet whose flow cannot be determined, so that it is delivered unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unparsed {
    /// The reason why the flow is not known.
    pub reason: Refusal,
    /// Flows whose held packets must leave before the packet, so that order is kept.
    pub scope: Scope,
}

impl Unparsed {
    const fn new(reason: Refusal) -> Self {
        Unparsed { reason, scope: Scope::None }
    }
}

/// Parses the headers of a frame of `length` bytes, of which `header` holds the first.
///
/// Enters one tunnel, and a second inside it if both are over UDP.
///
/// `header` must hold at least the first `min(length, MAX_HEADER)` bytes; no others are read. Each
/// offset and length from the wire is checked against the available bytes before use. IPv4 header
/// checksums are not verified here.
///
/// # Errors
/// [`Unparsed`], with the reason and the flows that the packet may belong to, if the packet is not
/// TCP, UDP or DCCP over IP with complete headers.
#[inline(always)]
pub fn parse(header: &[u8], length: usize, layer: Layer) -> Result<Layout, Unparsed> {
    match parse_if_usual(header, length, layer) {
        Some(layout) => Ok(layout),
        None => walk(header, length, layer),
    }
}

/// Parses as [`parse`] does, except that a datagram to a tunnel's port that carries no packet is
/// plain UDP.
///
/// Only the port tells these tunnels, and other protocols may use it. A datagram is plain UDP if
/// [`parse`] cannot read it as a tunnel, and if no IP packet that ends with the datagram starts at
/// the end of the tunnel header, whatever the flags in that header. So tunnel extensions that the
/// engine does not rewrite (GPE, group policy) are not mistaken for plain UDP.
///
/// Use it for segmenting and for finding checksums. Aggregation uses [`parse`]: an unreadable
/// packet may carry any flow between these addresses, and is refused to keep all of them in order.
///
/// # Errors
/// As [`parse`].
#[inline(always)]
pub fn parse_datagram(header: &[u8], length: usize, layer: Layer) -> Result<Layout, Unparsed> {
    match parse_if_usual(header, length, layer) {
        Some(layout) => Ok(layout),
        None => walk_datagram(header, length, layer),
    }
}

#[inline(never)]
fn walk_datagram(header: &[u8], length: usize, layer: Layer) -> Result<Layout, Unparsed> {
    walk(header, length, layer).or_else(|unparsed| {
        let mut cursor =
            HeaderCursor { tunnel_ports_may_be_udp: true, ..HeaderCursor::new(header, length) };
        cursor.packet(layer).map_err(|_| unparsed)
    })
}

/// Parses as [`parse_datagram`] does, but treats the UDP header at offset `transport` of the frame,
/// if there is one, as the last header, even if its port is a tunnel's.
///
/// It is for UDP super-packets. A super-packet of tunnel datagrams (`UDP_SEGMENT` of VXLAN) has the
/// same headers as one sent through a tunnel device. Only the offset of the partial checksum tells
/// which UDP header is meant.
///
/// # Errors
/// As [`parse`].
pub(crate) fn parse_datagram_at(
    header: &[u8],
    length: usize,
    layer: Layer,
    transport: u16,
) -> Result<Layout, Unparsed> {
    let innermost = parse_datagram(header, length, layer);
    if matches!(innermost, Ok(layout) if layout.transport == transport) {
        return innermost;
    }
    match (HeaderCursor { tunnels_before: transport.into(), ..HeaderCursor::new(header, length) })
        .packet(layer)
    {
        Ok(found) if found.protocol == Protocol::Udp && found.transport == transport => Ok(found),
        _ => innermost,
    }
}

/// Parses as [`parse`] does, but stops at the first transport header: datagrams of tunnels over UDP
/// are treated as plain UDP.
///
/// # Errors
/// As [`parse`]. Other tunnels are refused as an unknown
/// [`Protocol`](Refusal::Protocol), with the addresses of their IP header as scope.
pub fn parse_outermost(header: &[u8], length: usize, layer: Layer) -> Result<Layout, Unparsed> {
    match parse_if_usual(header, length, layer) {
        Some(layout) => Ok(layout),
        None => {
            HeaderCursor { tunnels_before: 0, ..HeaderCursor::new(header, length) }.packet(layer)
        }
    }
}

/// Parses a packet with a [usual] layout by a few comparisons at constant offsets instead of the
/// [`walk`], with the same result. `None` for any other packet.
#[inline(always)]
fn parse_if_usual(header: &[u8], length: usize, layer: Layer) -> Option<Layout> {
    macro_rules! first_of {
        ($($kind:expr),*) => {
            $(if let Some((payload, end)) = parse_usual::<{ $kind }>(header, length, layer) {
                return Some(Layout::usual($kind, payload, end));
            })*
        };
    }
    first_of!(usual::ETHERNET_IPV4, usual::ETHERNET_IPV6, usual::IPV4, usual::IPV6);
    None
}

/// Parses a packet with the layout [`USUAL`](usual), and returns the parts that are not constant:
/// the offset of the payload, and the end.
#[inline(always)]
pub(crate) fn parse_usual<const USUAL: u8>(
    header: &[u8],
    length: usize,
    layer: Layer,
) -> Option<(u16, u32)> {
    let in_ethernet =
        |ethertype| layer == Layer::Ethernet && be16(header, ethernet::ETHERTYPE) == ethertype;
    match USUAL {
        usual::ETHERNET_IPV4 if in_ethernet(ethernet::IPV4) => {
            usual_ipv4(header, length, ethernet::HEADER_LENGTH)
        }
        usual::ETHERNET_IPV6 if in_ethernet(ethernet::IPV6) => {
            usual_ipv6(header, length, ethernet::HEADER_LENGTH)
        }
        usual::IPV4 if layer == Layer::Ip => usual_ipv4(header, length, 0),
        usual::IPV6 if layer == Layer::Ip => usual_ipv6(header, length, 0),
        _ => None,
    }
}

#[inline(always)]
fn usual_ipv4(header: &[u8], length: usize, network: usize) -> Option<(u16, u32)> {
    let ip =
        header.get(network..)?.first_chunk::<{ ipv4::HEADER_LENGTH + tcp::HEADER_LENGTH }>()?;
    let whole = be16(ip, ipv4::FRAGMENT) & !ipv4::DONT_FRAGMENT == 0;
    let end = network + usize::from(be16(ip, ipv4::TOTAL_LENGTH));
    let data_offset = ip[ipv4::HEADER_LENGTH + tcp::DATA_OFFSET];
    let usual_fields = ip[0] == 0x45 && ip[ipv4::PROTOCOL] == protocol::TCP && whole;
    usual_tcp(header, length, network + ipv4::HEADER_LENGTH, data_offset, end)
        .filter(|_| usual_fields)
}

#[inline(always)]
fn usual_ipv6(header: &[u8], length: usize, network: usize) -> Option<(u16, u32)> {
    let transport = network + ipv6::HEADER_LENGTH;
    let ip =
        header.get(network..)?.first_chunk::<{ ipv6::HEADER_LENGTH + tcp::HEADER_LENGTH }>()?;
    let end = transport + usize::from(be16(ip, ipv6::PAYLOAD_LENGTH));
    let data_offset = ip[ipv6::HEADER_LENGTH + tcp::DATA_OFFSET];
    let usual_fields = ip[0] >> 4 == 6 && ip[ipv6::NEXT_HEADER] == protocol::TCP;
    usual_tcp(header, length, transport, data_offset, end).filter(|_| usual_fields)
}

/// Returns the offset of the payload behind a TCP header at `transport`, and the end of the packet,
/// if the lengths are those of a complete packet.
#[inline(always)]
fn usual_tcp(
    header: &[u8],
    length: usize,
    transport: usize,
    data_offset: u8,
    end: usize,
) -> Option<(u16, u32)> {
    let payload = transport + usize::from(data_offset >> 4) * 4;
    let whole = payload >= transport + tcp::HEADER_LENGTH
        && payload <= header.len()
        && payload <= end
        && end <= length;
    whole.then_some((payload as u16, end as u32))
}

/// Parses any packet, header by header, with the result of [`parse`].
///
/// # Errors
/// As [`parse`].
#[inline(never)]
pub(crate) fn walk(header: &[u8], length: usize, layer: Layer) -> Result<Layout, Unparsed> {
    HeaderCursor::new(header, length).packet(layer)
}

/// Marks a PPPoE packet as refused, unless its IP packet ends at `end`, where the PPPoE payload
/// ends.
#[cold]
fn with_pppoe_end(layout: Layout, end: usize) -> Layout {
    let refusal = match end.cmp(&(layout.end as usize)) {
        core::cmp::Ordering::Equal => None,
        core::cmp::Ordering::Greater => Some(Refusal::Padded),
        core::cmp::Ordering::Less => Some(Refusal::Malformed),
    };
    Layout { refusal: layout.refusal.or(refusal), ..layout }
}

/// The state of a [`walk`], the parse of a packet header by header.
#[derive(Clone)]
pub(super) struct HeaderCursor<'a> {
    pub(super) header: &'a [u8],
    length: usize,
    pub(super) outer: Option<Outer>,
    pub(super) nested: Option<Outer>,
    /// The addresses of the IP header that was read last: the flows that the packet may belong to
    /// if the walk fails.
    pub(super) scope: Scope,
    refusal: Option<Refusal>,
    /// The headers between Ethernet and IP headers.
    link: LinkHeader,
    pppoe: u8,
    /// End of the outermost IP packet, once known.
    pub(super) outer_end: Option<usize>,
    /// Whether a datagram to a tunnel's port may be parsed as plain UDP, if it contains no packet.
    tunnel_ports_may_be_udp: bool,
    /// Offset in the frame from which on transport headers are treated as the last header, not as
    /// the start of a tunnel.
    tunnels_before: usize,
}

impl<'a> HeaderCursor<'a> {
    fn new(header: &'a [u8], length: usize) -> Self {
        HeaderCursor {
            header: header.get(..length.min(header.len())).unwrap_or(header),
            length,
            outer: None,
            nested: None,
            scope: Scope::None,
            refusal: None,
            link: LinkHeader::Plain,
            pppoe: 0,
            outer_end: None,
            tunnel_ports_may_be_udp: false,
            tunnels_before: usize::MAX,
        }
    }

    /// Walks as far as the headers can be read, and returns the final state.
    pub(super) fn after_walk(header: &'a [u8], length: usize, layer: Layer) -> Self {
        let mut cursor =
            HeaderCursor { tunnel_ports_may_be_udp: true, ..HeaderCursor::new(header, length) };
        // Only the headers that were read matter, not whether the packet is refused.
        let _ = cursor.packet(layer);
        cursor
    }

    fn packet(&mut self, layer: Layer) -> Result<Layout, Unparsed> {
        match layer {
            Layer::Ip => self.ip(0, self.length),
            Layer::Ethernet => self.link(0, self.length),
        }
    }

    /// Returns an error unless `bytes` bytes at `offset` lie before `limit` and in the first bytes
    /// of the frame, which may be read.
    #[inline(always)]
    fn require(&self, offset: usize, bytes: usize, limit: usize) -> Result<(), Unparsed> {
        if offset + bytes > limit {
            return Err(self.unparsed(Refusal::Truncated));
        }
        if offset + bytes > self.header.len() || offset + bytes > MAX_HEADER {
            return Err(self.unparsed(Refusal::HeaderTooLong));
        }
        Ok(())
    }

    /// Returns the error that ends the walk. The packet may belong to any flow between the
    /// addresses read last.
    #[cold]
    fn unparsed(&self, reason: Refusal) -> Unparsed {
        Unparsed { reason, scope: self.scope }
    }

    fn refuse(&mut self, reason: Refusal) {
        self.refusal.get_or_insert(reason);
    }

    /// Parses an Ethernet header, with tags, PPPoE and MPLS.
    #[inline]
    fn link(&mut self, start: usize, limit: usize) -> Result<Layout, Unparsed> {
        self.require(start, ethernet::HEADER_LENGTH, limit)?;
        let mut link = LinkWalk::new(self.header, start);
        let mut pppoe_end = None;
        let mut tags = 0;
        while let Next::Tag(tag) = link.next {
            tags += 1;
            // In a tunnel only VLAN tags are understood.
            if self.outer.is_some() && !matches!(tag, Tag::Vlan(_)) {
                return Err(self.unparsed(Refusal::Tunnel));
            }
            self.require(link.offset, tag.length(), limit)?;
            if tag == Tag::Pppoe {
                pppoe_end = Some(self.pppoe(link.offset)?);
            }
            self.link = self.link.max(tag.link_header(tags));
            link.step_over(tag);
        }
        let layout = match link.next {
            Next::Ipv4 => self.ipv4(link.offset, limit),
            Next::Ipv6 => self.ipv6(link.offset, limit),
            Next::Ip => self.ip(link.offset, limit),
            Next::Other | Next::Tag(_) => Err(Unparsed::new(Refusal::NotIp)),
        }?;
        Ok(match pppoe_end {
            Some(end) => with_pppoe_end(layout, end),
            None => layout,
        })
    }

    /// Parses a PPPoE header, which is known to be complete (and so lies in the first 256 bytes),
    /// and returns the end of its payload.
    #[cold]
    fn pppoe(&mut self, offset: usize) -> Result<usize, Unparsed> {
        // Version 1, type 1, code 0: a session's data (RFC 2516, section 4).
        if be16(self.header, offset) != 0x1100 {
            return Err(Unparsed::new(Refusal::Malformed));
        }
        self.pppoe = offset as u8;
        Ok(offset + pppoe::PROTOCOL + usize::from(be16(self.header, offset + pppoe::LENGTH)))
    }

    /// Parses an IP header whose version is told only by its first byte.
    fn ip(&mut self, offset: usize, limit: usize) -> Result<Layout, Unparsed> {
        self.require(offset, 1, limit)?;
        match byte(self.header, offset) >> 4 {
            4 => self.ipv4(offset, limit),
            6 => self.ipv6(offset, limit),
            _ => Err(Unparsed::new(Refusal::NotIp)),
        }
    }

    #[inline(always)]
    fn ipv4(&mut self, offset: usize, limit: usize) -> Result<Layout, Unparsed> {
        self.require(offset, ipv4::HEADER_LENGTH, limit)?;
        let first = byte(self.header, offset);
        if first >> 4 != 4 {
            return Err(Unparsed::new(Refusal::Malformed));
        }
        self.scope = Scope::Pair { network: offset as u16, version: IpVersion::V4 };
        let header_length = usize::from(first & 0x0f) * 4;
        if header_length < ipv4::HEADER_LENGTH {
            return Err(self.unparsed(Refusal::Malformed));
        }
        let fragment = be16(self.header, offset + ipv4::FRAGMENT);
        if fragment & (ipv4::MORE_FRAGMENTS | ipv4::FRAGMENT_OFFSET) != 0 {
            return Err(self.unparsed(Refusal::Fragment));
        }
        let end =
            self.ip_end(offset, usize::from(be16(self.header, offset + ipv4::TOTAL_LENGTH)), limit);
        if end < offset + header_length {
            return Err(self.unparsed(Refusal::Malformed));
        }
        if fragment & ipv4::RESERVED != 0 {
            self.refuse(Refusal::ReservedBit);
        }
        if header_length != ipv4::HEADER_LENGTH {
            self.require(offset, header_length, limit)?;
            self.refuse(Refusal::IpOptions);
        }
        let number = byte(self.header, offset + ipv4::PROTOCOL);
        self.transport(offset, IpVersion::V4, offset + header_length, number, end, false)
    }

    #[inline(always)]
    fn ipv6(&mut self, offset: usize, limit: usize) -> Result<Layout, Unparsed> {
        self.require(offset, ipv6::HEADER_LENGTH, limit)?;
        if byte(self.header, offset) >> 4 != 6 {
            return Err(Unparsed::new(Refusal::Malformed));
        }
        self.scope = Scope::Pair { network: offset as u16, version: IpVersion::V6 };
        let payload_length = usize::from(be16(self.header, offset + ipv6::PAYLOAD_LENGTH));
        let whole = if payload_length == 0 { 0 } else { payload_length + ipv6::HEADER_LENGTH };
        let mut end = self.ip_end(offset, whole, limit);
        let (mut jumbo, mut may_have_addresses) = (false, false);
        let first = offset + ipv6::HEADER_LENGTH;
        // No limit: `require` below ends the walk at an incomplete header.
        let mut extensions = Extensions::new(self.header, offset, usize::MAX);
        while let Some(extension) = extensions.peek() {
            if extension.kind == ipv6::FRAGMENT {
                return Err(self.unparsed(Refusal::Fragment));
            }
            let length = extension.end - extension.offset;
            self.require(extension.offset, 8, end)?;
            self.require(extension.offset, length, end)?;
            if payload_length == 0
                && extension.kind == ipv6::HOP_BY_HOP
                && extension.offset == first
                && length == ipv6::JUMBO_HEADER_LENGTH
                && let Some(stated) = extension.jumbo_length(self.header)
            {
                jumbo = true;
                // The only 32-bit length: on 32-bit targets the sum could overflow.
                let jumbo_end = first.saturating_add(stated as usize);
                if jumbo_end <= limit && jumbo_end >= extension.end {
                    end = jumbo_end;
                    if self.outer.is_none() {
                        self.outer_end = Some(end);
                    }
                } else {
                    self.refuse(Refusal::Truncated);
                }
            }
            may_have_addresses |= matches!(extension.kind, ipv6::ROUTING | ipv6::DESTINATION);
            extensions.next();
        }
        if may_have_addresses
            && checksum_addresses(self.header.get(offset..).unwrap_or(&[]), IpVersion::V6).is_none()
        {
            self.refuse(Refusal::FinalDestination);
        }
        self.transport(
            offset,
            IpVersion::V6,
            extensions.offset,
            extensions.next_header(),
            end,
            jumbo,
        )
    }

    /// Returns the offset at which an IP packet ends that starts at `offset` and whose length field
    /// holds `whole`. Refuses the packet if the field is 0 or reaches beyond `limit`; its end is
    /// `limit` then.
    #[inline(always)]
    fn ip_end(&mut self, offset: usize, whole: usize, limit: usize) -> usize {
        let end = if whole == 0 {
            // The length was left to the device (TSO), or did not fit (BIG TCP).
            self.refuse(Refusal::NoLength);
            limit
        } else if offset + whole > limit {
            self.refuse(Refusal::Truncated);
            limit
        } else {
            offset + whole
        };
        if self.outer.is_none() {
            self.outer_end = Some(end);
        } else if end != limit {
            // Removing padding inside a tunnel would require rewriting the outer headers.
            self.refuse(Refusal::Padded);
        }
        end
    }

    #[inline(always)]
    fn transport(
        &mut self,
        network: usize,
        version: IpVersion,
        offset: usize,
        number: u8,
        end: usize,
        jumbo: bool,
    ) -> Result<Layout, Unparsed> {
        let outer =
            |tunnel| Outer { network: network as u16, version, transport: offset as u16, tunnel };
        let (protocol, header_length) = match number {
            protocol::TCP => {
                self.require(offset, tcp::HEADER_LENGTH, end)?;
                let header_length =
                    usize::from(byte(self.header, offset + tcp::DATA_OFFSET) >> 4) * 4;
                if header_length < tcp::HEADER_LENGTH || offset + header_length > end {
                    return Err(self.unparsed(
                        if offset + header_length > end && self.refusal == Some(Refusal::Truncated)
                        {
                            Refusal::Truncated
                        } else {
                            Refusal::Malformed
                        },
                    ));
                }
                self.require(offset, header_length, end)?;
                (Protocol::Tcp, header_length)
            }
            protocol::UDP => {
                self.require(offset, udp::HEADER_LENGTH, end)?;
                let length = usize::from(be16(self.header, offset + udp::LENGTH));
                if offset + length != end
                    && !(length == 0 && self.refusal == Some(Refusal::NoLength))
                {
                    self.refuse(Refusal::UdpLength);
                }
                let port = be16(self.header, offset + udp::DESTINATION_PORT);
                if offset < self.tunnels_before
                    && let Some(tunnel) = Tunnel::with_port(port)
                    && !(self.tunnel_ports_may_be_udp && self.is_plain_udp(tunnel, offset, end))
                {
                    return self.tunnel(outer(tunnel), number, end);
                }
                (Protocol::Udp, udp::HEADER_LENGTH)
            }
            protocol::DCCP => {
                self.require(offset, dccp::SHORT_HEADER_LENGTH, end)?;
                let header_length = usize::from(byte(self.header, offset + dccp::DATA_OFFSET)) * 4;
                let kind = byte(self.header, offset + dccp::TYPE);
                let mut least = if kind & 1 == 1 {
                    dccp::LONG_HEADER_LENGTH
                } else {
                    dccp::SHORT_HEADER_LENGTH
                };
                match (kind >> 1) & 0x0f {
                    dccp::DATA => {}
                    dccp::DATA_ACK => least += if kind & 1 == 1 { 8 } else { 4 },
                    _ => self.refuse(Refusal::DccpType),
                }
                if header_length < least || offset + header_length > end {
                    return Err(self.unparsed(Refusal::Malformed));
                }
                self.require(offset, header_length, end)?;
                (Protocol::Dccp, header_length)
            }
            _ => {
                return match Tunnel::with_protocol(number) {
                    None => Err(Unparsed::new(Refusal::Protocol)),
                    Some(_) if offset >= self.tunnels_before => {
                        Err(self.unparsed(Refusal::Protocol))
                    }
                    Some(tunnel) => self.tunnel(outer(tunnel), number, end),
                };
            }
        };
        Ok(Layout {
            outer: self.outer,
            nested: self.nested,
            link: self.link,
            network: network as u16,
            version,
            transport: offset as u16,
            protocol,
            payload: (offset + header_length) as u16,
            pppoe: self.pppoe,
            jumbo,
            end: self.outer_end.unwrap_or(self.length) as u32,
            refusal: self.refusal,
        })
    }

    /// Records the outer headers of one tunnel, or of two in UDP. More tunnels are refused.
    fn enter_tunnel(&mut self, found: Outer) -> Result<(), Unparsed> {
        match (self.outer, self.nested) {
            (None, _) => self.outer = Some(found),
            (Some(outer), None) if outer.tunnel.is_udp() && found.tunnel.is_udp() => {
                self.nested = Some(found)
            }
            _ => return Err(self.unparsed(Refusal::Tunnel)),
        }
        Ok(())
    }

    /// Returns whether a datagram to a tunnel's port is plain UDP, because no IP packet follows the
    /// tunnel header.
    #[cold]
    fn is_plain_udp(&self, tunnel: Tunnel, offset: usize, end: usize) -> bool {
        let start = offset + udp::HEADER_LENGTH;
        let header = self.header.get(start..).unwrap_or(&[]);
        let inner = start + tunnel.length(header);
        // Bytes of an inner Ethernet header with two tags and an IPv6 header.
        const PROBED: usize = ethernet::HEADER_LENGTH + 8 + ipv6::HEADER_LENGTH;
        if inner + PROBED > self.header.len().min(MAX_HEADER) && inner < end {
            // The inner packet is out of reach, so the tunnel header must tell.
            return !tunnel.is_likely(header);
        }
        // The probe enters no further tunnel by its port, so that the work is bounded.
        let fresh = || HeaderCursor {
            outer: None,
            nested: None,
            scope: Scope::None,
            tunnel_ports_may_be_udp: false,
            ..self.clone()
        };
        let mut probe = fresh();
        // The result does not matter, only whether an IP header was read.
        let _ = probe.link(inner, end);
        if probe.ends_at(end) {
            return false;
        }
        probe = fresh();
        let _ = probe.ip(inner, end);
        !probe.ends_at(end)
    }

    /// Returns whether the IP packet whose header was read last ends at `end` by its length field,
    /// or leaves its length to the device.
    fn ends_at(&self, end: usize) -> bool {
        let Scope::Pair { network, version } = self.scope else { return false };
        match ip_length(self.header, usize::from(network), version) {
            0 => true,
            length => usize::from(network) + length == end,
        }
    }

    /// Enters a tunnel, if the engine can rewrite its header, and parses the inner packet. `number`
    /// is the protocol number in the outer IP header.
    #[cold]
    fn tunnel(&mut self, outer: Outer, number: u8, end: usize) -> Result<Layout, Unparsed> {
        self.enter_tunnel(outer)?;
        let tunnel = outer.tunnel;
        let start = usize::from(outer.transport) + tunnel.length_before();
        self.require(start, tunnel.min_length(), end)?;
        let readable = self.header.len().min(MAX_HEADER).min(end);
        let header = self.header.get(start..readable).unwrap_or(&[]);
        if !tunnel.is_writable(header) {
            return Err(self.unparsed(Refusal::Tunnel));
        }
        let length = tunnel.length(header);
        self.require(start, length, end)?;
        let hint = GroHint::find(tunnel.options(header.get(..length).unwrap_or(&[])));
        let (inner, is_nested) = (start + length, self.nested.is_some());
        let layout = self.inner_packet(tunnel.ethertype(header, number), inner, end)?;
        // A hint in the second tunnel's header would describe a third.
        Ok(match hint {
            Some(hint) if is_nested || !hint.agrees(self.header, &layout, inner) => {
                Layout { refusal: layout.refusal.or(Some(Refusal::Tunnel)), ..layout }
            }
            _ => layout,
        })
    }

    /// Parses the inner packet of a tunnel by its ethertype.
    fn inner_packet(
        &mut self,
        ethertype: u16,
        inner: usize,
        end: usize,
    ) -> Result<Layout, Unparsed> {
        match ethertype {
            ethernet::BRIDGED => self.link(inner, end),
            ethernet::IPV4 => self.ipv4(inner, end),
            ethernet::IPV6 => self.ipv6(inner, end),
            _ => Err(Unparsed::new(Refusal::NotIp)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test frames of the usual layouts, without padding or payload.
    const IPV4: [u8; 54] = {
        let mut frame = [0; 54];
        (frame[12], frame[14], frame[17], frame[23], frame[46]) =
            (0x08, 0x45, 40, protocol::TCP, 0x50);
        frame
    };
    const IPV6: [u8; 74] = {
        let mut frame = [0; 74];
        (frame[12], frame[13], frame[14], frame[19], frame[20], frame[66]) =
            (0x86, 0xdd, 0x60, 20, protocol::TCP, 0x50);
        frame
    };

    #[test]
    fn a_usual_layout_is_what_the_walk_finds() {
        let mut usual_layouts = 0;
        for (frame, layer) in [
            (&IPV4[..], Layer::Ethernet),
            (&IPV6, Layer::Ethernet),
            (&IPV4[14..], Layer::Ip),
            (&IPV6[14..], Layer::Ip),
        ] {
            let mut compare = |frame: &[u8], length: usize| {
                if let Some(layout) = parse_if_usual(frame, length, layer) {
                    usual_layouts += 1;
                    assert_eq!(walk(frame, length, layer), Ok(layout), "{frame:02x?} of {length}");
                }
            };
            assert!(parse_if_usual(frame, frame.len(), layer).is_some(), "{frame:02x?}");
            let mut bytes = [frame, &[0; 20]].concat();
            for offset in 0..frame.len() {
                for value in 0..=u8::MAX {
                    let before = core::mem::replace(&mut bytes[offset], value);
                    for length in frame.len() - 1..=bytes.len() {
                        compare(&bytes[..length], length);
                        compare(&bytes[..length.min(frame.len() - 2)], length);
                    }
                    bytes[offset] = before;
                }
            }
        }
        assert!(usual_layouts > 100_000, "{usual_layouts}");
    }
}
