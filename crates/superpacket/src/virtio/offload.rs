//! Conversion between a `virtio_net_hdr` and the engine's metadata.

use super::{Format, Header, VirtioError, flags, gso_type};
use crate::checksum::{RxChecksum, Sum, tunnel_field, tunnel_seed};
use crate::packet::FlowHash;
use crate::segment::{Cwr, Gso, GsoKind, GsoSupport, MaxSegments, SegmentSize};
use crate::wire::{self, IpVersion, Layer, Layout, Protocol, be16, byte, tcp, udp};

/// The meaning of a `virtio_net_hdr` in the engine's types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Offload {
    /// The state of the packet's checksums.
    pub checksum: RxChecksum,
    /// How the packet is to be segmented; `None` if it is not a super-packet.
    pub gso: Option<Gso>,
    /// The flow hash.
    pub hash: Option<FlowHash>,
}

impl Offload {
    /// Makes the meaning of a header that has no flow hash.
    #[inline]
    pub const fn new(checksum: RxChecksum, gso: Option<Gso>) -> Self {
        Offload { checksum, gso, hash: None }
    }

    /// Returns this meaning with a flow hash, or without one.
    #[inline]
    #[must_use]
    pub const fn with_hash(self, hash: Option<FlowHash>) -> Self {
        Offload { hash, ..self }
    }
}

/// Valid hash reports, `IPv4` to `UDPv6_EX` (virtio 1.3, section 5.1.6.4.4).
const HASH_REPORTS: core::ops::RangeInclusive<u16> = 1..=9;

/// Returns the hash report for a hash of unknown origin, by the packet's protocols.
const fn hash_report(layout: &Layout) -> u16 {
    match (layout.version, layout.protocol) {
        (IpVersion::V4, Protocol::Tcp) => 2,
        (IpVersion::V4, Protocol::Udp) => 3,
        (IpVersion::V4, Protocol::Dccp) => 1,
        (IpVersion::V6, Protocol::Tcp) => 5,
        (IpVersion::V6, Protocol::Udp) => 6,
        (IpVersion::V6, Protocol::Dccp) => 4,
    }
}

/// Returns the number of bytes that are divided among the segments: the payload and, in UFO, also
/// the UDP header.
fn divided_length(kind: GsoKind, layout: &Layout, length: usize) -> usize {
    // Padding after the IP packet is excluded.
    let end = (layout.end as usize).min(length);
    let payload = end.saturating_sub(usize::from(layout.payload));
    if kind == GsoKind::UdpFragments { payload + udp::HEADER_LENGTH } else { payload }
}

impl Header {
    /// Checks the header against a packet of `length` bytes, and returns its meaning. `packet`
    /// holds the first [`MAX_HEADER`](wire::MAX_HEADER) bytes (or all), and `format` is the format
    /// that the header was read in.
    ///
    /// # Errors
    /// [`VirtioError`] names the field that breaks a rule of the [module](super).
    pub fn offload(
        &self,
        format: Format,
        packet: &[u8],
        length: usize,
        layer: Layer,
    ) -> Result<Offload, VirtioError> {
        self.offload_and_layout(format, packet, length, layer).map(|(offload, _)| offload)
    }

    /// Checks as [`offload`](Self::offload) does, and returns the layout of a super-packet too.
    #[inline(always)]
    pub(super) fn offload_and_layout(
        &self,
        format: Format,
        packet: &[u8],
        length: usize,
        layer: Layer,
    ) -> Result<(Offload, Option<Layout>), VirtioError> {
        let needs_checksum = self.flags & flags::NEEDS_CSUM != 0;
        if needs_checksum && self.flags & flags::RSC_INFO != 0 {
            return Err(VirtioError::Flags(self.flags));
        }
        let checksum = if needs_checksum {
            let needed = usize::from(self.csum_start) + usize::from(self.csum_offset) + 2;
            if needed > length {
                return Err(VirtioError::ChecksumPlace { needed, got: length });
            }
            RxChecksum::Partial { start: self.csum_start, offset: self.csum_offset }
        } else if self.flags & flags::DATA_VALID != 0 {
            RxChecksum::Unnecessary { level: 0 }
        } else {
            RxChecksum::None
        };
        let (gso, layout) = match self.gso_type {
            gso_type::NONE => (None, None),
            _ => self.gso_and_layout(format, packet, length, layer)?,
        };
        let has_hash = matches!(format, Format::Hash | Format::Tunnel)
            && HASH_REPORTS.contains(&self.hash_report);
        Ok((
            Offload { checksum, gso, hash: Some(FlowHash(self.hash_value)).filter(|_| has_hash) },
            layout,
        ))
    }

    /// Finds how the packet is to be segmented, and its layout.
    #[inline(always)]
    fn gso_and_layout(
        &self,
        format: Format,
        packet: &[u8],
        length: usize,
        layer: Layer,
    ) -> Result<(Option<Gso>, Option<Layout>), VirtioError> {
        let (kind, size) = self.kind_and_size(format)?;
        // A type that names a tunnel means the inner headers, not those at `csum_start`.
        let partial = RxChecksum::Partial { start: self.csum_start, offset: self.csum_offset };
        let needs_checksum = self.flags & flags::NEEDS_CSUM != 0;
        let checksum = if needs_checksum && self.gso_type & gso_type::UDP_TUNNEL == 0 {
            partial
        } else {
            RxChecksum::None
        };
        let layout = kind
            .parse(packet, length, layer, checksum)
            .map_err(|unparsed| VirtioError::Headers(unparsed.reason))?;
        let gso = self.checked_gso(kind, size, packet, length, &layout)?;
        Ok((gso, Some(layout)))
    }

    /// Returns kind and size of the segments, unless the header contradicts itself.
    #[inline(always)]
    fn kind_and_size(&self, format: Format) -> Result<(GsoKind, SegmentSize), VirtioError> {
        let unknown = Err(VirtioError::GsoType(self.gso_type));
        let tunnel = self.gso_type & gso_type::UDP_TUNNEL;
        let ecn = self.gso_type & gso_type::ECN != 0;
        let kind = match self.gso_type & !(gso_type::UDP_TUNNEL | gso_type::ECN) {
            gso_type::TCPV4 => GsoKind::Tcp4,
            gso_type::TCPV6 => GsoKind::Tcp6,
            gso_type::UDP_L4 if !ecn => GsoKind::Udp,
            gso_type::UDP if !ecn && tunnel == 0 => GsoKind::UdpFragments,
            _ => return unknown,
        };
        if tunnel == gso_type::UDP_TUNNEL {
            return unknown;
        }
        let size = match SegmentSize::new(usize::from(self.gso_size)) {
            Some(size) if self.gso_size != u16::MAX => size,
            _ => return Err(VirtioError::GsoSize(self.gso_size)),
        };
        let needs_checksum = self.flags & flags::NEEDS_CSUM != 0;
        if !needs_checksum && (kind == GsoKind::Udp || tunnel != 0) {
            return Err(VirtioError::NeedsChecksum);
        }
        if tunnel != 0 && format != Format::Tunnel {
            return Err(VirtioError::Format);
        }
        Ok((kind, size))
    }

    /// Returns how a packet with this layout is to be segmented, if the header agrees with it.
    #[inline(always)]
    fn checked_gso(
        &self,
        kind: GsoKind,
        size: SegmentSize,
        packet: &[u8],
        length: usize,
        layout: &Layout,
    ) -> Result<Option<Gso>, VirtioError> {
        let tunnel = self.gso_type & gso_type::UDP_TUNNEL;
        let fits = match kind {
            GsoKind::Tcp4 => (layout.version, layout.protocol) == (IpVersion::V4, Protocol::Tcp),
            GsoKind::Tcp6 => (layout.version, layout.protocol) == (IpVersion::V6, Protocol::Tcp),
            _ => layout.protocol == Protocol::Udp,
        };
        let outer =
            layout.outer.filter(|outer| outer.tunnel.is_udp()).map(|outer| match outer.version {
                IpVersion::V4 => gso_type::UDP_TUNNEL_IPV4,
                IpVersion::V6 => gso_type::UDP_TUNNEL_IPV6,
            });
        // A tunnel that the type does not name would keep wrong lengths in its outer headers.
        let named = if tunnel == 0 {
            layout.outer.is_none()
        } else {
            outer == Some(tunnel) && layout.nested.is_none()
        };
        if !fits || !named {
            return Err(VirtioError::Protocol { gso_type: self.gso_type });
        }
        if let Some(outer) = layout.outer {
            if self.outer_th_offset != outer.transport {
                return Err(VirtioError::OuterTransport {
                    expected: outer.transport,
                    got: self.outer_th_offset,
                });
            }
            if self.inner_nh_offset != layout.network {
                return Err(VirtioError::InnerNetwork {
                    expected: layout.network,
                    got: self.inner_nh_offset,
                });
            }
            if self.flags & flags::UDP_TUNNEL_CSUM != 0
                && be16(packet, usize::from(outer.transport) + udp::CHECKSUM) == 0
            {
                return Err(VirtioError::TunnelChecksum);
            }
        }
        if self.flags & flags::NEEDS_CSUM != 0 {
            let expected = layout.protocol.checksum_offset();
            if self.csum_offset != expected {
                return Err(VirtioError::ChecksumOffset { expected, got: self.csum_offset });
            }
            if self.csum_start != layout.transport {
                return Err(VirtioError::ChecksumStart {
                    expected: layout.transport,
                    got: self.csum_start,
                });
            }
        }
        let payload = divided_length(kind, layout, length);
        if kind == GsoKind::Udp && payload > size.get() * MaxSegments::UDP.get() as usize {
            return Err(VirtioError::TooManySegments { payload, size: size.get() });
        }
        let with_cwr = layout.protocol == Protocol::Tcp
            && byte(packet, usize::from(layout.transport) + tcp::FLAGS) & tcp::CWR != 0;
        // Linux sets the ECN bit if only the first segment is to have CWR, and no bit if all are
        // (`virtio_net_hdr_from_skb`).
        let cwr =
            if with_cwr && self.gso_type & gso_type::ECN == 0 { Cwr::All } else { Cwr::First };
        Ok((payload > size.get()).then(|| Gso::new(kind, size).with_cwr(cwr)))
    }

    /// Makes the header for a packet of `length` bytes from the metadata of a
    /// [`SuperPacket`](crate::super_packet::SuperPacket) or [`Segment`](crate::segment::Segment).
    /// `packet` holds the first [`MAX_HEADER`](wire::MAX_HEADER) bytes (or all). `num_buffers` is
    /// 1.
    ///
    /// The header omits what virtio has no field for: fixed identifications,
    /// [`RxChecksum::Complete`] and, for a packet whose headers cannot be read, the hash.
    ///
    /// A packet with `UDP_TUNNEL_CSUM` in its header may need another outer checksum before it goes
    /// to a kernel; see [`outer_checksum`](Self::outer_checksum).
    ///
    /// # Errors
    /// [`VirtioError`] if no header of this format would be valid: the headers of a packet
    /// with [`Gso`] cannot be read, a super-packet's checksum is not partial, a partial checksum
    /// lies outside the packet, virtio has no type for the segments or tunnels, all segments have
    /// CWR, UDP would have more than 128 segments, or the segment size is 65,535.
    #[inline]
    pub fn describe(
        offload: &Offload,
        format: Format,
        packet: &[u8],
        length: usize,
        layer: Layer,
    ) -> Result<Header, VirtioError> {
        let mut header = Header::default();
        header.fill_in(offload, format, None, packet, length, layer, None)?;
        Ok(header)
    }

    /// Returns the offset of the outer UDP checksum of a packet with this header, and the value
    /// that must be written there before the packet goes to a kernel. `packet` holds the first
    /// [`MAX_HEADER`](wire::MAX_HEADER) of `length` bytes, or all.
    ///
    /// With `UDP_TUNNEL_CSUM` the field of a super-packet must hold the sum of its pseudo-header,
    /// and Linux adds the rest for each segment (`__skb_udp_tunnel_segment`). A merged packet
    /// instead holds the right checksum of the whole packet, unless an aggregator [for a
    /// framing](crate::BatchAggregator::framed) of 24 bytes merged it.
    ///
    /// `None` if the field needs no change: the header has no `UDP_TUNNEL_CSUM`, or the field does
    /// not hold the right checksum of the whole packet.
    pub fn outer_checksum(
        &self,
        packet: &[u8],
        length: usize,
        layer: Layer,
    ) -> Option<(usize, u16)> {
        if self.flags & flags::UDP_TUNNEL_CSUM == 0 || self.gso_type & gso_type::UDP_TUNNEL == 0 {
            return None;
        }
        let outer = wire::parse_datagram(packet, length, layer)
            .ok()?
            .outer
            .filter(|outer| outer.tunnel.is_udp())?;
        let inner = usize::from(self.csum_start);
        let (place, sum) = tunnel_seed(packet, &outer, length);
        // The inner packet sums to the complement of its pseudo-header.
        let rest = !be16(packet, inner + usize::from(self.csum_offset));
        let found = be16(packet, place);
        let headers = packet.get(usize::from(outer.transport)..inner)?;
        (found == tunnel_field(headers, found, rest, Some(Sum::new(sum)))).then_some((place, sum))
    }

    /// Fills in the header that [describes](Self::describe) a packet, for a receiver with this
    /// `support`. `known` is the packet's layout, if the caller has parsed it.
    ///
    /// Written in place and field by field: a returned header would be copied in words, which stall
    /// on the single fields.
    #[expect(
        clippy::too_many_arguments,
        reason = "the packet and what is known of it and of its receiver"
    )]
    #[inline(always)]
    pub(super) fn fill_in(
        &mut self,
        offload: &Offload,
        format: Format,
        support: Option<&GsoSupport>,
        packet: &[u8],
        length: usize,
        layer: Layer,
        known: Option<&Layout>,
    ) -> Result<(), VirtioError> {
        let &Offload { checksum, ref gso, hash } = offload;
        self.num_buffers = 1;
        match checksum {
            RxChecksum::Partial { start, offset } => {
                (self.flags, self.csum_start, self.csum_offset) =
                    (flags::NEEDS_CSUM, start, offset);
                let needed = usize::from(start) + usize::from(offset) + 2;
                if needed > length {
                    return Err(VirtioError::ChecksumPlace { needed, got: length });
                }
            }
            RxChecksum::Unnecessary { .. } => self.flags = flags::DATA_VALID,
            RxChecksum::None | RxChecksum::Complete(_) => {}
        }
        let with_hash = matches!(format, Format::Hash | Format::Tunnel);
        let found;
        let layout = match (known, gso) {
            (Some(layout), _) => Ok(layout),
            (None, gso) => {
                found = match gso {
                    Some(gso) => gso.kind.parse(packet, length, layer, checksum),
                    None => wire::parse_datagram(packet, length, layer),
                };
                found.as_ref()
            }
        };
        if let (true, Some(hash), Ok(layout)) = (with_hash, hash, layout) {
            (self.hash_value, self.hash_report) = (hash.0, hash_report(layout));
        }
        let Some(gso) = gso else { return Ok(()) };
        let layout = layout.map_err(|unparsed| VirtioError::Headers(unparsed.reason))?;
        let is_super_packet = divided_length(gso.kind, layout, length) > gso.size.get();
        if self.flags & flags::NEEDS_CSUM == 0 && is_super_packet {
            return Err(VirtioError::NeedsChecksum);
        }
        self.gso_type = match gso.kind {
            GsoKind::Tcp4 => gso_type::TCPV4,
            GsoKind::Tcp6 => gso_type::TCPV6,
            GsoKind::Udp => gso_type::UDP_L4,
            GsoKind::UdpFragments => gso_type::UDP,
            GsoKind::Dccp => return Err(VirtioError::Unnamed(gso.kind)),
        };
        self.gso_size = gso.size.get() as u16;
        self.hdr_len = layout.payload;
        if layout.protocol == Protocol::Tcp
            && byte(packet, usize::from(layout.transport) + tcp::FLAGS) & tcp::CWR != 0
        {
            if gso.cwr == Cwr::All && is_super_packet {
                return Err(VirtioError::CwrOnAll);
            }
            self.gso_type |= gso_type::ECN;
        }
        if let Some(outer) = layout.outer {
            if !outer.tunnel.is_udp()
                || layout.nested.is_some()
                || gso.kind == GsoKind::UdpFragments
            {
                return Err(VirtioError::Unnamed(gso.kind));
            }
            self.gso_type |= match outer.version {
                IpVersion::V4 => gso_type::UDP_TUNNEL_IPV4,
                IpVersion::V6 => gso_type::UDP_TUNNEL_IPV6,
            };
            (self.outer_th_offset, self.inner_nh_offset) = (outer.transport, layout.network);
            if be16(packet, usize::from(outer.transport) + udp::CHECKSUM) != 0 {
                self.flags |= flags::UDP_TUNNEL_CSUM;
            }
        }
        if !is_super_packet {
            // The receiver would ignore the fields about segments and tunnels.
            self.flags &= !flags::UDP_TUNNEL_CSUM;
            (self.gso_type, self.gso_size) = (gso_type::NONE, 0);
            (self.outer_th_offset, self.inner_nh_offset) = (0, 0);
            return Ok(());
        }
        if let Some(support) = support {
            let end = (layout.end as usize).min(length);
            let (ip, payload) = (
                end.saturating_sub(layout.outermost().into()),
                end.saturating_sub(layout.payload.into()),
            );
            // Fixed identifications are no reason to refuse: the segments get new numbers, as in
            // Linux for packets that its own GRO merged.
            if let Some(unsupported) =
                support.refuses(layout, &gso.with_incrementing_ids(), ip, payload)
            {
                return Err(VirtioError::Unsupported(unsupported));
            }
        }
        // A header that reading would refuse must not be sent.
        let (kind, size) = self.kind_and_size(format)?;
        self.checked_gso(kind, size, packet, length, layout)?;
        Ok(())
    }
}
