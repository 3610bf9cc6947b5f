//! The checksums of a packet: which are unfinished or wrong, and their right values.
//!
//! An unfinished checksum was captured before the network device filled it in. Captures do not mark
//! such checksums, so they are recognized by their values. A transport checksum is unfinished if
//! its field holds the sum of the pseudo-header, not inverted, and is wrong as a checksum. The
//! checksum of an IPv4 header is unfinished if its field holds 0 (Windows) and this is wrong.
//!
//! Linux includes the transport length in the sum of the pseudo-header, for BIG TCP with all of its
//! 32 bits. Windows and the BSDs leave the length out if the device is to add the length of each
//! segment (TSO, in frames with IP length 0). All commands use [`Checksums::find`].

use superpacket::Simd;
use superpacket::checksum::{Sum, at_offset, pseudo_header, transport_field};
use superpacket::packet::{Layer, RxChecksum};
use superpacket::wire::{
    IpVersion, Layout, Outer, Protocol, checksum_addresses, dccp, ip_headers, ipv4, ipv6, udp,
};

/// Length in bytes up to which Ethernet frames may be padded. If such a frame has no IP length
/// because the network device was to fill it in, padding cannot be told from data.
pub(crate) const SHORTEST_FRAME: usize = 60;

/// The kinds of checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChecksumKind {
    /// The checksum of an IPv4 header, also in a tunnel.
    Ipv4Header,
    /// The checksum of TCP.
    Tcp,
    /// The checksum of UDP.
    Udp,
    /// The checksum of DCCP.
    Dccp,
    /// The checksum of a tunnel's outer UDP header.
    OuterUdp,
    /// The checksum of a GRE header.
    Gre,
}

/// What a checksum field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChecksumState {
    /// The right checksum, or 0 in UDP without a checksum. A checksum also counts as right if it
    /// covers addresses that are not known.
    Right,
    /// An unfinished checksum: a value with which the network device would have computed the
    /// checksum, such as the sum of the pseudo-header.
    Unfinished,
    /// A wrong checksum that does not prevent the packet from being segmented: it may have been
    /// left to the network device, and each segment gets a new one.
    Minor,
    /// A wrong checksum.
    Wrong,
    /// A checksum that seems wrong, but the packet's lengths contradict each other, so the bytes
    /// that it covers are not certain.
    Uncertain,
}

/// A checksum of a packet. Offsets are in bytes from the start of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checksum {
    /// The kind of checksum.
    pub(crate) kind: ChecksumKind,
    /// Offset at which the covered bytes begin.
    start: usize,
    /// Offset at which the covered bytes end.
    end: usize,
    /// Offset of the checksum field in the frame, in bytes.
    place: usize,
    /// The value that the field holds.
    found: u16,
    /// The sum of the pseudo-header, with the real length; 0 if there is none.
    pseudo: u16,
    /// The sum of the pseudo-header without the length.
    pseudo_without_length: u16,
    /// What the field holds; [`ChecksumState::Right`] until this is known.
    pub(crate) state: ChecksumState,
    /// The right value of the field, computed with the right values of all checksums that it
    /// covers.
    right: u16,
}

impl Checksum {
    /// Returns a checksum without a pseudo-header; `None` if its field is beyond the end.
    #[inline]
    fn new(
        packet: &[u8],
        kind: ChecksumKind,
        start: usize,
        end: usize,
        place: usize,
    ) -> Option<Self> {
        let found = be16(packet, place)?;
        Some(Checksum {
            kind,
            start,
            end,
            place,
            found,
            pseudo: 0,
            pseudo_without_length: 0,
            state: ChecksumState::Right,
            right: found,
        })
    }

    /// Returns the checksum of an IPv4 header; `None` for IPv6, or if the header is incomplete.
    #[inline]
    fn of_ip_header(packet: &[u8], network: u16, version: IpVersion) -> Option<Self> {
        if version != IpVersion::V4 {
            return None;
        }
        let start = usize::from(network);
        let end = start + usize::from(packet.get(start)? & 0x0f) * 4;
        (end >= start + ipv4::HEADER_LENGTH && end <= packet.len())
            .then(|| {
                Self::new(packet, ChecksumKind::Ipv4Header, start, end, start + ipv4::CHECKSUM)
            })
            .flatten()
    }

    /// Returns the checksum of the innermost transport header.
    #[inline]
    fn of_transport(packet: &[u8], layout: &Layout) -> Option<Self> {
        let end = inner_end(packet, layout);
        let start = usize::from(layout.transport);
        let (kind, covered) = match layout.protocol {
            Protocol::Tcp => (ChecksumKind::Tcp, end),
            Protocol::Udp => (ChecksumKind::Udp, end),
            Protocol::Dccp => (ChecksumKind::Dccp, dccp_end(packet, layout, end)),
        };
        let checksum = Self::new(packet, kind, start, covered, usize::from(layout.checksum()))?;
        checksum.with_pseudo_header(packet, layout.network, layout.version, layout.protocol, end)
    }

    /// Returns the checksum of a tunnel header; `None` if there is none. `end` is the end of the
    /// outermost packet.
    fn of_tunnel(packet: &[u8], outer: &Outer, end: usize) -> Option<Self> {
        let start = usize::from(outer.transport);
        let place = outer.checksum(packet)?;
        if !outer.tunnel.is_udp() {
            return Self::new(packet, ChecksumKind::Gre, start, end, place);
        }
        let checksum = Self::new(packet, ChecksumKind::OuterUdp, start, end, place)?;
        checksum.with_pseudo_header(packet, outer.network, outer.version, Protocol::Udp, end)
    }

    /// Adds the pseudo-header of the IP header at `network`, whose payload ends at `end`.
    #[inline(always)]
    fn with_pseudo_header(
        self,
        packet: &[u8],
        network: u16,
        version: IpVersion,
        protocol: Protocol,
        end: usize,
    ) -> Option<Self> {
        let length = u32::try_from(end.checked_sub(self.start)?).ok()?;
        let network = packet.get(usize::from(network)..)?;
        let without = pseudo_header(network, version, protocol.number(), 0);
        Some(Checksum {
            pseudo: without.add32(length).fold(),
            pseudo_without_length: without.fold(),
            ..self
        })
    }

    /// Returns whether the field holds the value of an unfinished checksum. With a probability of 1
    /// in 65,535, the sum of a pseudo-header is also the right checksum.
    #[inline]
    fn looks_unfinished(&self) -> bool {
        match self.kind {
            ChecksumKind::Ipv4Header => self.found == 0,
            ChecksumKind::Gre => false,
            // In UDP, a checksum of 0 means that the packet has none.
            _ => {
                (self.found == self.pseudo || self.found == self.pseudo_without_length)
                    && self.found != 0
            }
        }
    }

    /// Returns the state of a checksum that neither is right nor looks unfinished.
    fn if_wrong(&self, packet: &[u8], layer: Layer, layout: Option<&Layout>) -> ChecksumState {
        let left_out = |network: usize, version| stated_length(packet, network, version) == Some(0);
        let outer = layout.and_then(|layout| {
            layout.outers().find(|outer| usize::from(outer.transport) == self.start)
        });
        let (network, version) = match (self.kind, layout, outer) {
            (ChecksumKind::Ipv4Header, ..) if left_out(self.start, IpVersion::V4) => {
                return ChecksumState::Minor;
            }
            (ChecksumKind::Ipv4Header, ..) | (_, None, _) => return ChecksumState::Wrong,
            (ChecksumKind::Gre, ..) => return ChecksumState::Minor,
            (_, _, Some(outer)) => (usize::from(outer.network), outer.version),
            (_, Some(layout), None) => (usize::from(layout.network), layout.version),
        };
        let header = packet.get(network..).unwrap_or(&[]);
        if checksum_addresses(header, version).is_none()
            || self.kind == ChecksumKind::Udp && self.found == 0 && version == IpVersion::V4
        {
            return ChecksumState::Right;
        }
        let left_out = left_out(network, version);
        let certain = match self.kind {
            ChecksumKind::Udp | ChecksumKind::OuterUdp => {
                match be16(packet, self.start + udp::LENGTH).map(usize::from) {
                    Some(0) => left_out,
                    length => length == Some(self.end - self.start),
                }
            }
            _ => layout.is_some_and(|layout| self.end <= inner_end(packet, layout)),
        };
        let padded = left_out && layer == Layer::Ethernet && packet.len() <= SHORTEST_FRAME;
        match self.found {
            _ if !certain || padded => ChecksumState::Uncertain,
            // Only over IPv6 must UDP have a checksum (RFC 8200, section 8.1), and tunnels need
            // none even there (RFC 6935).
            0 if self.kind == ChecksumKind::Udp => ChecksumState::Minor,
            _ => ChecksumState::Wrong,
        }
    }

    /// Returns whether this is the checksum of a tunnel, which covers all that is inside it.
    fn is_of_tunnel(&self) -> bool {
        matches!(self.kind, ChecksumKind::OuterUdp | ChecksumKind::Gre)
    }

    /// Returns whether the checksum is unfinished.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.state == ChecksumState::Unfinished
    }

    /// Returns whether the checksum is wrong, and its right value is certain.
    pub(crate) fn is_correctable(&self) -> bool {
        matches!(self.state, ChecksumState::Minor | ChecksumState::Wrong)
    }

    fn field(&self) -> ChecksumField {
        (self.place, self.right)
    }
}

/// A checksum that is to be written: offset of its field from the start of the packet in bytes, and
/// value.
pub(crate) type ChecksumField = (usize, u16);

/// All checksums that a packet may need, in the order of their fields' offsets.
pub(crate) type ChecksumFields = [Option<ChecksumField>; 6];

/// The set of checksums of a packet that are to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// No checksum is written.
    Nothing,
    /// Unfinished checksums are written, with their completed values.
    Unfinished,
    /// Unfinished and wrong checksums are written, with their right values.
    All,
}

impl Written {
    /// Returns whether a checksum is to be written.
    pub(crate) fn includes(self, checksum: &Checksum) -> bool {
        match self {
            Written::Nothing => false,
            Written::Unfinished => checksum.is_unfinished(),
            Written::All => checksum.is_unfinished() || checksum.is_correctable(),
        }
    }
}

/// The checksums of a packet, in the order of their fields' offsets: for each tunnel those of the
/// outer IPv4 header and of the tunnel, then that of the innermost IPv4 header, and at
/// [`TRANSPORT`] that of the transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checksums([Option<Checksum>; 6]);

/// Index of the transport checksum in [`Checksums`].
const TRANSPORT: usize = 5;

impl Checksums {
    /// Returns the checksums of a packet if any of them is unfinished. `layout` must be `None` if
    /// the headers cannot be read or the packet is incomplete; then only the outermost IPv4 header
    /// is examined.
    #[inline]
    pub(crate) fn find(
        packet: &[u8],
        layer: Layer,
        layout: Option<&Layout>,
        simd: Simd,
    ) -> Option<Self> {
        let suspected = match layout {
            None => true,
            Some(layout) => {
                looks_unfinished(Checksum::of_transport(packet, layout))
                    || looks_unfinished(Checksum::of_ip_header(
                        packet,
                        layout.network,
                        layout.version,
                    ))
                    || layout.outer.is_some() && look_unfinished_in_tunnels(packet, layout)
            }
        };
        if !suspected {
            return None;
        }
        let checksums = Self::examine(packet, layer, layout, Written::Unfinished, simd);
        checksums.iter().any(Checksum::is_unfinished).then_some(checksums)
    }

    /// Finds the checksums of a packet, the state of their fields, and their right values. `layout`
    /// has the meaning that it has in [`Checksums::find`]. The checksum of a tunnel counts as right
    /// if it is right once the checksums that it covers are `written`.
    #[cold]
    pub(crate) fn examine(
        packet: &[u8],
        layer: Layer,
        layout: Option<&Layout>,
        written: Written,
        simd: Simd,
    ) -> Self {
        let mut found = Self::locate(packet, layer, layout).0;
        let sums = found.map(|checksum| {
            checksum.map_or(Sum::default(), |Checksum { start, end, pseudo, .. }| {
                Sum::new(pseudo).add(simd.sum(packet.get(start..end).unwrap_or(&[])))
            })
        });
        let mut covered = false;
        for (checksum, sum) in found.iter_mut().zip(sums) {
            let Some(checksum) = checksum else { continue };
            checksum.state = match checksum.looks_unfinished() {
                _ if sum.is_valid() => ChecksumState::Right,
                // A tunnel's checksum that is complete covers the IPv4 headers inside as they are.
                true if checksum.kind == ChecksumKind::Ipv4Header && covered => {
                    ChecksumState::Minor
                }
                true => ChecksumState::Unfinished,
                false => checksum.if_wrong(packet, layer, layout),
            };
            covered |= checksum.is_of_tunnel() && !checksum.is_unfinished();
        }
        for index in (0..found.len()).rev() {
            let (outside, inside) = found.split_at_mut(index + 1);
            let Some(checksum) = &mut outside[index] else { continue };
            let mut sum = sums[index];
            if checksum.is_of_tunnel() {
                for inner in inside.iter().flatten().filter(|inner| written.includes(inner)) {
                    let offset = inner.place - checksum.start;
                    sum = Sum::new(sum.fold())
                        .subtract(at_offset(inner.found, offset))
                        .add(at_offset(inner.right, offset));
                }
                if !checksum.is_unfinished() {
                    checksum.state = match sum.is_valid() {
                        true => ChecksumState::Right,
                        false => checksum.if_wrong(packet, layer, layout),
                    };
                }
            }
            let right = Sum::new(sum.fold()).subtract(checksum.found).checksum();
            checksum.right = match checksum.kind {
                ChecksumKind::Udp | ChecksumKind::OuterUdp => transport_field(Protocol::Udp, right),
                _ => right,
            };
        }
        Checksums(found)
    }

    /// Finds the checksums of a packet.
    fn locate(packet: &[u8], layer: Layer, layout: Option<&Layout>) -> Self {
        let mut found = [None; 6];
        let Some(layout) = layout else {
            let outermost = ip_headers(packet, packet.len(), layer)[0];
            found[0] = outermost
                .and_then(|(network, version)| Checksum::of_ip_header(packet, network, version));
            return Checksums(found);
        };
        let end = (layout.end as usize).min(packet.len());
        let mut next = 0;
        for outer in layout.outers() {
            found[next] = Checksum::of_ip_header(packet, outer.network, outer.version);
            found[next + 1] = Checksum::of_tunnel(packet, &outer, end);
            next += 2;
        }
        found[next] = Checksum::of_ip_header(packet, layout.network, layout.version);
        found[TRANSPORT] = Checksum::of_transport(packet, layout);
        Checksums(found)
    }

    /// Returns the checksums in the order of their fields' offsets.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Checksum> {
        self.0.iter().flatten()
    }

    /// Keeps only the checksum of the outermost IPv4 header, for a packet that must not be changed
    /// otherwise.
    pub(crate) fn of_header(self) -> Self {
        Checksums([self.0[0], None, None, None, None, None])
    }

    /// Returns the state of the transport checksum for the aggregation engine. The engine expects
    /// the sum of the pseudo-header with the real length in the field.
    pub(crate) fn state(&self) -> RxChecksum {
        let [_, outer, _, nested, _, inner] = self.0;
        let seed = [inner, nested, outer].into_iter().flatten().find(Checksum::is_unfinished);
        seed.map_or(RxChecksum::None, |seed| RxChecksum::Partial {
            start: seed.start as u16,
            offset: (seed.place - seed.start) as u16,
        })
    }

    /// Returns the fields to write before the engine receives a packet with unfinished checksums:
    /// those of IPv4 headers, and a transport checksum whose field lacks the length.
    pub(crate) fn canonical(&self) -> impl Iterator<Item = ChecksumField> + '_ {
        self.iter().filter(|checksum| checksum.is_unfinished()).filter_map(
            |checksum| match checksum.kind {
                ChecksumKind::Ipv4Header => Some(checksum.field()),
                ChecksumKind::OuterUdp | ChecksumKind::Gre => None,
                _ => Some((checksum.place, checksum.pseudo))
                    .filter(|&(_, pseudo)| pseudo != checksum.found),
            },
        )
    }

    /// Returns the fields of the checksums for which `chosen` returns true, with their right
    /// values.
    pub(crate) fn fields(&self, chosen: impl Fn(&Checksum) -> bool) -> ChecksumFields {
        self.0.map(|checksum| checksum.filter(&chosen).map(|checksum| checksum.field()))
    }
}

/// Returns whether a checksum in the headers of a packet's tunnels looks unfinished.
#[cold]
fn look_unfinished_in_tunnels(packet: &[u8], layout: &Layout) -> bool {
    let end = (layout.end as usize).min(packet.len());
    layout.outers().any(|outer| {
        looks_unfinished(Checksum::of_ip_header(packet, outer.network, outer.version))
            || looks_unfinished(Checksum::of_tunnel(packet, &outer, end))
    })
}

#[inline]
fn looks_unfinished(checksum: Option<Checksum>) -> bool {
    checksum.is_some_and(|checksum| checksum.looks_unfinished())
}

/// Returns the end of the bytes that a DCCP checksum covers: the whole packet, or the header and
/// the first `(coverage - 1) * 4` bytes of data (RFC 4340, section 9.2).
#[cold]
fn dccp_end(packet: &[u8], layout: &Layout, end: usize) -> usize {
    let place = usize::from(layout.transport) + dccp::COVERAGE;
    match packet.get(place).map_or(0, |byte| byte & 0x0f) {
        0 => end,
        coverage => usize::from(layout.payload) + (usize::from(coverage) - 1) * 4,
    }
}

/// Returns the length in bytes that an IP header states for its packet, the header included; 0 if
/// it leaves the length to the network device or is too long for the field.
#[inline]
pub(crate) fn stated_length(packet: &[u8], network: usize, version: IpVersion) -> Option<usize> {
    match version {
        IpVersion::V4 => be16(packet, network + ipv4::TOTAL_LENGTH).map(usize::from),
        IpVersion::V6 => {
            be16(packet, network + ipv6::PAYLOAD_LENGTH).map(|payload| match payload {
                0 => 0,
                payload => usize::from(payload) + ipv6::HEADER_LENGTH,
            })
        }
    }
}

/// Returns where the innermost IP packet ends according to its length field or, if that is 0, where
/// the outermost packet ends.
#[inline]
fn inner_end(packet: &[u8], layout: &Layout) -> usize {
    let end = (layout.end as usize).min(packet.len());
    if layout.outer.is_none() {
        return end;
    }
    let network = usize::from(layout.network);
    match stated_length(packet, network, layout.version) {
        Some(length @ 1..) => end.min(network + length),
        _ => end,
    }
}

/// Which checksum of a packet is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// The checksum of an IPv4 header.
    Ip,
    /// The checksum of the transport header, or a tunnel's outer UDP checksum.
    Transport,
}

/// Verifies the checksums of all IPv4 headers, of the transport header, and of outer UDP headers.
/// If the packet's checksums are given as `found`, unfinished ones count as right, otherwise as
/// wrong.
///
/// A checksum of an IPv4 header is skipped if it is 0 or the header's length field is 0, because it
/// was then left to the network device. So is a checksum that covers addresses which are not known.
pub(crate) fn check(
    packet: &[u8],
    layer: Layer,
    layout: &Layout,
    found: Option<&Checksums>,
    simd: Simd,
) -> Result<(), Wrong> {
    let checksums = found
        .copied()
        .unwrap_or_else(|| Checksums::examine(packet, layer, Some(layout), Written::Nothing, simd));
    let (mut ip, mut transport) = (false, false);
    for checksum in checksums.iter() {
        let is_header = checksum.kind == ChecksumKind::Ipv4Header;
        let is_wrong = match checksum.state {
            ChecksumState::Right | ChecksumState::Minor => false,
            ChecksumState::Unfinished => found.is_none() && !is_header,
            ChecksumState::Wrong | ChecksumState::Uncertain => true,
        };
        ip |= is_wrong && is_header;
        transport |= is_wrong;
    }
    match (ip, transport) {
        (true, _) => Err(Wrong::Ip),
        (false, true) => Err(Wrong::Transport),
        (false, false) => Ok(()),
    }
}

/// Returns the big-endian 16-bit number at `offset`; `None` beyond the end.
#[inline]
pub(crate) fn be16(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(offset..)?.first_chunk()?))
}

#[cfg(test)]
mod tests;
