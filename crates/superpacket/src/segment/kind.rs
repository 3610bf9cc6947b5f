//! Kinds and sizes of segments, in types that cannot hold invalid values.

use core::num::{NonZeroU16, NonZeroU32};

use crate::checksum::RxChecksum;
use crate::wire::{self, IpVersion, Layer, Layout, Unparsed, ipv6};

/// The kind of segments that a super-packet is cut into (the kernel's `gso_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP datagrams of equal size, of which the last may be shorter (USO, `SKB_GSO_UDP_L4`).
    Udp,
    /// One UDP datagram, cut into IP fragments (UFO, `SKB_GSO_UDP`).
    UdpFragments,
    /// DCCP data packets, which no kernel segments.
    Dccp,
}

impl GsoKind {
    /// Parses the headers that each segment of a super-packet of this kind repeats. `header` holds
    /// the first [`MAX_HEADER`](wire::MAX_HEADER) of its `length` bytes (or all), and `checksum` is
    /// the state of its checksums.
    ///
    /// For UDP, the offset of the partial checksum tells which UDP header is meant: a super-packet
    /// of tunnel datagrams (`UDP_SEGMENT` of VXLAN) has the same headers as one sent through a
    /// tunnel device.
    ///
    /// # Errors
    /// As [`parse`](wire::parse). Whether the headers match this kind is not checked.
    #[inline]
    pub fn parse(
        self,
        header: &[u8],
        length: usize,
        layer: Layer,
        checksum: RxChecksum,
    ) -> Result<Layout, Unparsed> {
        match (self, checksum) {
            (GsoKind::Udp | GsoKind::UdpFragments, RxChecksum::Partial { start, .. }) => {
                wire::parse_datagram_at(header, length, layer, start)
            }
            _ => wire::parse_datagram(header, length, layer),
        }
    }
}

/// Bytes of transport payload in each segment: 1 to 65,535. For [`GsoKind::UdpFragments`] it counts
/// the bytes after the IP header of each fragment, the UDP header of the first included, and is
/// rounded down to a multiple of 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentSize(NonZeroU16);

impl SegmentSize {
    /// Makes a size of 1 to 65,535 bytes; `None` for anything else.
    #[inline]
    pub const fn new(bytes: usize) -> Option<Self> {
        if bytes > u16::MAX as usize {
            return None;
        }
        match NonZeroU16::new(bytes as u16) {
            Some(size) => Some(SegmentSize(size)),
            None => None,
        }
    }

    /// Returns the largest size with which segments of `kind` fit an MTU: at most `mtu` bytes from
    /// the outermost IP header on. Outer headers count. Link headers, tags, PPPoE and a hop-by-hop
    /// header with a jumbo payload option, which is removed, do not.
    ///
    /// `None` if the headers leave no room for payload.
    pub const fn for_mtu(layout: &Layout, kind: GsoKind, mtu: usize) -> Option<Self> {
        let jumbo = if layout.jumbo { ipv6::JUMBO_HEADER_LENGTH } else { 0 };
        let (headers, unit) = match (kind, layout.version) {
            (GsoKind::UdpFragments, IpVersion::V4) => (layout.transport, 8),
            (GsoKind::UdpFragments, IpVersion::V6) => {
                (layout.transport.saturating_add(ipv6::FRAGMENT_HEADER_LENGTH as u16), 8)
            }
            _ => (layout.payload, 1),
        };
        let headers = (headers.saturating_sub(layout.outermost()) as usize).saturating_sub(jumbo);
        let room = mtu.saturating_sub(headers);
        Self::new((if room > u16::MAX as usize { u16::MAX as usize } else { room }) / unit * unit)
    }

    /// Returns the size in bytes.
    #[inline]
    pub const fn get(self) -> usize {
        self.0.get() as usize
    }
}

/// Maximum number of segments of one super-packet; at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MaxSegments(NonZeroU32);

impl MaxSegments {
    /// A limit that no packet of the engine can exceed: 524,280 bytes of BIG TCP in segments of 1
    /// byte.
    pub const ANY: MaxSegments = MaxSegments(NonZeroU32::new(524_280).expect("not zero"));
    /// The maximum of Linux for one `UDP_SEGMENT` send (`UDP_MAX_SEGMENTS`).
    pub const UDP: MaxSegments = MaxSegments(NonZeroU32::new(128).expect("not zero"));

    /// Makes a limit of at least 1; `None` for 0.
    #[inline]
    pub const fn new(segments: u32) -> Option<Self> {
        match NonZeroU32::new(segments) {
            Some(limit) => Some(MaxSegments(limit)),
            None => None,
        }
    }

    /// Returns the limit as a number.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

/// How the IPv4 identification changes from segment to segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum IpId {
    /// Each segment's identification is one more than the previous one, modulo 65,536.
    #[default]
    Increment,
    /// All segments have the same identification (`SKB_GSO_TCP_FIXEDID`).
    Fixed,
}

/// The segments that carry the super-packet's CWR flag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cwr {
    /// Only the first segment (RFC 3168; `SKB_GSO_TCP_ECN`).
    #[default]
    First,
    /// All segments (accurate ECN; `SKB_GSO_TCP_ACCECN`).
    All,
}

/// The form that the checksums had in the packets that merged. Segmentation needs it to restore the
/// same bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChecksumForm {
    /// The field holds the whole checksum.
    #[default]
    Full,
    /// The field holds the sum of the pseudo-header, and a device computes the rest.
    Partial,
}

/// How a super-packet is segmented into the packets that a wire would have carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Gso {
    /// The kind of segments.
    pub kind: GsoKind,
    /// Payload bytes of each segment except the last.
    pub size: SegmentSize,
    /// How the identification in the innermost IPv4 headers changes from segment to segment.
    pub id: IpId,
    /// How the identification in a tunnel's outer IPv4 headers changes from segment to segment. In
    /// two tunnels, the outermost header is meant.
    pub outer_id: IpId,
    /// How the identification in the IPv4 headers of the second of two tunnels changes from segment
    /// to segment.
    pub nested_id: IpId,
    /// The segments that carry the super-packet's CWR flag.
    pub cwr: Cwr,
    /// The form that the checksums had in the packets that merged.
    pub checksum: ChecksumForm,
}

impl Gso {
    /// Makes the metadata of a TSO device: identifications that increment, CWR on the first segment
    /// only, complete checksums.
    #[inline]
    pub const fn new(kind: GsoKind, size: SegmentSize) -> Self {
        let (id, outer_id, nested_id) = (IpId::Increment, IpId::Increment, IpId::Increment);
        Gso { kind, size, id, outer_id, nested_id, cwr: Cwr::First, checksum: ChecksumForm::Full }
    }

    /// Returns this metadata with another number of payload bytes in each segment.
    #[inline]
    #[must_use]
    pub const fn with_size(self, size: SegmentSize) -> Self {
        Gso { size, ..self }
    }

    /// Returns this metadata with another rule for the identifications of the innermost IPv4
    /// headers.
    #[inline]
    #[must_use]
    pub const fn with_id(self, id: IpId) -> Self {
        Gso { id, ..self }
    }

    /// Returns this metadata with another rule for the identifications of a tunnel's outer IPv4
    /// headers.
    #[inline]
    #[must_use]
    pub const fn with_outer_id(self, outer_id: IpId) -> Self {
        Gso { outer_id, ..self }
    }

    /// Returns this metadata with another rule for the identifications of the outer IPv4 headers of
    /// a tunnel in a tunnel.
    #[inline]
    #[must_use]
    pub const fn with_nested_id(self, nested_id: IpId) -> Self {
        Gso { nested_id, ..self }
    }

    /// Returns this metadata with identifications that increment in all IPv4 headers.
    #[inline]
    #[must_use]
    pub const fn with_incrementing_ids(self) -> Self {
        Gso { id: IpId::Increment, outer_id: IpId::Increment, nested_id: IpId::Increment, ..self }
    }

    /// Returns this metadata with CWR on the segments that `cwr` says.
    #[inline]
    #[must_use]
    pub const fn with_cwr(self, cwr: Cwr) -> Self {
        Gso { cwr, ..self }
    }

    /// Returns this metadata with another form of the checksums of the packets that merged.
    #[inline]
    #[must_use]
    pub const fn with_checksum(self, checksum: ChecksumForm) -> Self {
        Gso { checksum, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_mean_nothing_cannot_be_made() {
        assert!(SegmentSize::new(0).is_none());
        assert!(SegmentSize::new(65_536).is_none());
        assert_eq!(SegmentSize::new(65_535).map(SegmentSize::get), Some(65_535));
        assert!(MaxSegments::new(0).is_none());
    }

    #[test]
    fn options_cost_nothing() {
        assert_eq!(size_of::<Option<SegmentSize>>(), 2);
        assert_eq!(size_of::<Option<MaxSegments>>(), 4);
    }
}
