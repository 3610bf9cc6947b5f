//! Finds and completes checksums that were captured before the network device filled them in.
//!
//! Captures do not mark such unfinished checksums, so they are recognized by their values. A
//! transport checksum is unfinished if its field holds the sum of the pseudo-header, not inverted,
//! and is wrong as a checksum. The checksum of an IPv4 header is unfinished if its field holds 0
//! (Windows) and this is wrong.
//!
//! Linux includes the transport length in the sum of the pseudo-header, for BIG TCP with all of its
//! 32 bits. Windows and the BSDs leave the length out if the device is to add the length of each
//! segment (TSO, in frames with IP length 0). All commands use [`Partial::find`].

use superpacket::Simd;
use superpacket::checksum::{Sum, at_offset, ipv4_header, pseudo_header, transport_field};
use superpacket::packet::{Layer, RxChecksum};
use superpacket::wire::{
    IpVersion, Layout, Protocol, checksum_addresses, ip_headers, ipv4, ipv6, udp,
};

/// An unfinished transport checksum, whose field holds the sum of a pseudo-header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seed {
    /// Offset of the transport header from the start of the packet, in bytes. The checksum covers
    /// the bytes from there on.
    start: usize,
    /// Offset of the checksum field from the start of the packet, in bytes.
    place: usize,
    protocol: Protocol,
    /// The value that the field holds.
    found: u16,
    /// The sum of the pseudo-header, with the real length.
    pseudo: u16,
}

/// The unfinished checksums of a packet: of the transport header, of the tunnels' outer UDP
/// headers, and of IPv4 headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Partial {
    inner: Option<Seed>,
    /// The outer UDP checksums of tunnels, from the outermost inwards.
    outers: [Option<Seed>; 2],
    /// The IPv4 header checksums, from the outermost header inwards: the index is the number of
    /// tunnels around the header.
    headers: [Option<ChecksumField>; 3],
    /// Offset at which the bytes end that the inner transport checksum covers; in a tunnel, padding
    /// may follow.
    inner_end: usize,
    /// Offset at which the bytes end that the outer UDP checksums cover.
    outer_end: usize,
}

/// A checksum that is to be written: offset of its field from the start of the packet in bytes, and
/// value.
pub(crate) type ChecksumField = (usize, u16);

/// All checksums that a packet may need, in the order of their fields' offsets.
pub(crate) type ChecksumFields = [Option<ChecksumField>; 6];

impl Partial {
    /// Finds the unfinished checksums of a packet; `None` if there are none. `layout` must be
    /// `None` if the headers cannot be read or the packet is incomplete; then only the outermost
    /// IPv4 header is examined.
    #[inline]
    pub(crate) fn find(
        packet: &[u8],
        layer: Layer,
        layout: Option<&Layout>,
        simd: Simd,
    ) -> Option<Self> {
        let Some(layout) = layout else { return Self::find_headers(packet, layer) };
        let outer_end = (layout.end as usize).min(packet.len());
        let inner_end = inner_end(packet, layout);
        let inner = seed(
            packet,
            usize::from(layout.network),
            layout.version,
            usize::from(layout.transport),
            layout.protocol,
            inner_end,
        );
        let (mut outers, mut headers) = ([None; 2], [None; 3]);
        let (mut level, mut covered) = (0, false);
        for outer in layout.outers() {
            headers[level] = ip_header(packet, outer.network, outer.version).filter(|_| !covered);
            if outer.tunnel.is_udp() {
                outers[level] = seed(
                    packet,
                    usize::from(outer.network),
                    outer.version,
                    usize::from(outer.transport),
                    Protocol::Udp,
                    outer_end,
                );
            }
            covered |= outers[level].is_none() && outer.checksum(packet).is_some();
            level += 1;
        }
        headers[level] = ip_header(packet, layout.network, layout.version).filter(|_| !covered);
        if inner.is_none() && outers == [None; 2] && headers == [None; 3] {
            return None;
        }
        Self::confirm(packet, Partial { inner, outers, headers, inner_end, outer_end }, simd)
    }

    /// Finds out whether the checksum of the outermost IPv4 header is unfinished, without other
    /// checksums.
    #[cold]
    fn find_headers(packet: &[u8], layer: Layer) -> Option<Self> {
        let (network, version) = ip_headers(packet, packet.len(), layer)[0]?;
        let header = ip_header(packet, network, version)?;
        Some(Partial {
            inner: None,
            outers: [None; 2],
            headers: [Some(header), None, None],
            inner_end: 0,
            outer_end: 0,
        })
    }

    /// Removes checksums that are right as they are: one of 65,535 sums of a pseudo-header is also
    /// a right checksum.
    #[cold]
    fn confirm(packet: &[u8], found: Partial, simd: Simd) -> Option<Self> {
        let wrong = |seed: &Seed, end: usize| {
            !Sum::new(seed.pseudo)
                .add(simd.sum(packet.get(seed.start..end).unwrap_or(&[])))
                .is_valid()
        };
        let inner = found.inner.filter(|seed| wrong(seed, found.inner_end));
        let outers = found.outers.map(|seed| seed.filter(|seed| wrong(seed, found.outer_end)));
        // An outer checksum that is complete covers the inner headers as they are, even unfinished
        // ones.
        let (mut headers, mut covered) = (found.headers, false);
        for (header, (outer, before)) in
            headers[1..].iter_mut().zip(outers.into_iter().zip(found.outers))
        {
            covered |= outer != before;
            *header = header.filter(|_| !covered);
        }
        let confirmed = Partial { inner, outers, headers, ..found };
        (inner.is_some() || outers != [None; 2] || headers != [None; 3]).then_some(confirmed)
    }

    /// Keeps only the checksum of the outermost IPv4 header, for a packet that must not be changed
    /// otherwise.
    pub(crate) fn of_header(self) -> Option<Self> {
        let headers = [self.headers[0], None, None];
        headers[0].map(|_| Partial { inner: None, outers: [None; 2], headers, ..self })
    }

    /// Returns the state of the transport checksum for the aggregation engine. The engine expects
    /// the sum of the pseudo-header with the real length in the field.
    pub(crate) fn state(&self) -> RxChecksum {
        let [outer, nested] = self.outers;
        let seed = self.inner.or(nested).or(outer);
        seed.map_or(RxChecksum::None, |seed| RxChecksum::Partial {
            start: seed.start as u16,
            offset: (seed.place - seed.start) as u16,
        })
    }

    /// Returns the fields to write before the engine receives the packet: checksums of IPv4
    /// headers, and a transport checksum whose field lacks the length.
    pub(crate) fn canonical(&self) -> impl Iterator<Item = ChecksumField> + use<> {
        let transport = self
            .inner
            .filter(|seed| seed.found != seed.pseudo)
            .map(|seed| (seed.place, seed.pseudo));
        self.headers.into_iter().chain([transport]).flatten()
    }

    /// Returns whether the transport checksum is unfinished.
    pub(crate) fn is_transport(&self) -> bool {
        self.inner.is_some()
    }

    /// Returns the unfinished checksums with their right values, in the order of their fields'
    /// offsets.
    pub(crate) fn completed(&self, packet: &[u8], simd: Simd) -> ChecksumFields {
        let sum = |seed: &Seed, end: usize| {
            Sum::new(simd.sum(packet.get(seed.start..end).unwrap_or(&[])))
                .subtract(seed.found)
                .add(seed.pseudo)
        };
        let [outermost, between, inside] = self.headers;
        let inner = self.inner.map(|seed| {
            (seed.place, transport_field(seed.protocol, sum(&seed, self.inner_end).checksum()))
        });
        let mut fields = [outermost, None, between, None, inside, inner];
        // The inner checksums are completed first, because the outer ones cover them.
        for (level, seed) in self.outers.into_iter().enumerate().rev() {
            fields[2 * level + 1] = seed.map(|seed| {
                let covered = fields[2 * level + 2..].iter().flatten();
                let total = covered.fold(sum(&seed, self.outer_end), |total, &(place, after)| {
                    let offset = place - seed.start;
                    let before = be16(packet, place).unwrap_or(0);
                    Sum::new(total.fold())
                        .subtract(at_offset(before, offset))
                        .add(at_offset(after, offset))
                });
                (seed.place, transport_field(seed.protocol, total.checksum()))
            });
        }
        fields
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
    let length = match layout.version {
        IpVersion::V4 => be16(packet, network + ipv4::TOTAL_LENGTH).map(usize::from),
        IpVersion::V6 => be16(packet, network + ipv6::PAYLOAD_LENGTH)
            .filter(|&length| length != 0)
            .map(|length| usize::from(length) + ipv6::HEADER_LENGTH),
    };
    match length {
        Some(length @ 1..) => end.min(network + length),
        _ => end,
    }
}

/// Returns the checksum of an IPv4 header if it was left to the network device: if the field holds
/// 0, and 0 is wrong.
#[inline]
fn ip_header(packet: &[u8], network: u16, version: IpVersion) -> Option<ChecksumField> {
    let place = usize::from(network) + ipv4::CHECKSUM;
    if version != IpVersion::V4 || be16(packet, place)? != 0 {
        return None;
    }
    let header = packet.get(usize::from(network)..)?;
    let header = header
        .get(..usize::from(header.first()? & 0x0f) * 4)
        .filter(|header| header.len() >= ipv4::HEADER_LENGTH)?;
    Some((place, ipv4_header(header))).filter(|&(_, checksum)| checksum != 0)
}

/// Returns the checksum of a transport header if it is unfinished: if its field holds the sum of
/// the pseudo-header, with or without the length.
#[inline]
fn seed(
    packet: &[u8],
    network: usize,
    version: IpVersion,
    start: usize,
    protocol: Protocol,
    end: usize,
) -> Option<Seed> {
    let place = start + usize::from(protocol.checksum_offset());
    let found = be16(packet, place)?;
    let length = u32::try_from(end.checked_sub(start)?).ok()?;
    let without = pseudo_header(packet.get(network..)?, version, protocol.number(), 0);
    let pseudo = without.add32(length).fold();
    // In UDP, a checksum of 0 means that the packet has none.
    let seeded = found == pseudo || found == without.fold();
    (seeded && found != 0).then_some(Seed { start, place, protocol, found, pseudo })
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
/// Those in `partial` are skipped.
///
/// A checksum of an IPv4 header is also skipped if it is 0 or the header's length field is 0,
/// because it was then left to the network device. So is a checksum that covers addresses which are
/// not known.
pub(crate) fn check(
    packet: &[u8],
    layout: &Layout,
    partial: Option<&Partial>,
    simd: Simd,
) -> Result<(), Wrong> {
    for level in layout.levels() {
        let network = usize::from(level.network);
        if level.version == IpVersion::V4 {
            let length = usize::from(packet.get(network).copied().unwrap_or(0) & 0x0f) * 4;
            let header = packet.get(network..network + length).unwrap_or(&[]);
            let left_to_device = be16(header, ipv4::CHECKSUM) == Some(0)
                || be16(header, ipv4::TOTAL_LENGTH) == Some(0);
            if !left_to_device && !Sum::new(simd.sum(header)).is_valid() {
                return Err(Wrong::Ip);
            }
        }
    }
    let outer_end = (layout.end as usize).min(packet.len());
    let end = inner_end(packet, layout);
    let start = usize::from(layout.transport);
    let field = be16(packet, usize::from(layout.checksum())).unwrap_or(0);
    let none = layout.protocol == Protocol::Udp && field == 0;
    let partial_transport = partial.is_some_and(Partial::is_transport);
    let network = packet.get(usize::from(layout.network)..).unwrap_or(&[]);
    let pseudo = pseudo_header(
        network,
        layout.version,
        layout.protocol.number(),
        (end - start.min(end)) as u32,
    );
    let known = checksum_addresses(network, layout.version).is_some();
    if !none
        && !partial_transport
        && known
        && layout.protocol != Protocol::Dccp
        && !pseudo.add(simd.sum(packet.get(start..end).unwrap_or(&[]))).is_valid()
    {
        return Err(Wrong::Transport);
    }
    if layout.protocol == Protocol::Dccp
        && !partial_transport
        && known
        && !dccp_is_valid(packet, layout, end, pseudo, simd)
    {
        return Err(Wrong::Transport);
    }
    // The nearest unfinished checksum inside this one: where the bytes that it covers begin and
    // end, and the sum of its pseudo-header.
    let mut seeded = partial_transport.then(|| (start, end, pseudo.fold()));
    let seeds = partial.map_or([None; 2], |partial| partial.outers);
    for (outer, seed) in [(layout.nested, seeds[1]), (layout.outer, seeds[0])] {
        let Some(outer) = outer.filter(|outer| outer.tunnel.is_udp()) else { continue };
        let outer_start = usize::from(outer.transport);
        if let Some(seed) = seed {
            seeded = Some((outer_start, outer_end, seed.pseudo));
        } else if be16(packet, outer_start + udp::CHECKSUM).unwrap_or(0) != 0 {
            let network = packet.get(usize::from(outer.network)..).unwrap_or(&[]);
            if checksum_addresses(network, outer.version).is_none() {
                continue;
            }
            let outer_pseudo = pseudo_header(
                network,
                outer.version,
                Protocol::Udp.number(),
                (outer_end - outer_start.min(outer_end)) as u32,
            );
            // When the inner checksum is filled in, the sum of the bytes that it covers will be
            // minus the sum of its pseudo-header.
            let total = match seeded {
                Some((start, end, pseudo)) => {
                    let padding = at_offset(
                        simd.sum(packet.get(end..outer_end).unwrap_or(&[])),
                        end - outer_start.min(end),
                    );
                    outer_pseudo
                        .add(simd.sum(packet.get(outer_start..start).unwrap_or(&[])))
                        .subtract(pseudo)
                        .add(padding)
                }
                None => {
                    outer_pseudo.add(simd.sum(packet.get(outer_start..outer_end).unwrap_or(&[])))
                }
            };
            if !total.is_valid() {
                return Err(Wrong::Transport);
            }
        }
    }
    Ok(())
}

/// Returns whether a DCCP checksum is right. It covers the whole packet, or the header and the
/// first `(coverage - 1) * 4` bytes of data (RFC 4340, section 9.2).
fn dccp_is_valid(packet: &[u8], layout: &Layout, end: usize, pseudo: Sum, simd: Simd) -> bool {
    let start = usize::from(layout.transport);
    let coverage = usize::from(
        packet.get(start + superpacket::wire::dccp::COVERAGE).copied().unwrap_or(0) & 0x0f,
    );
    let covered =
        if coverage == 0 { end } else { usize::from(layout.payload) + (coverage - 1) * 4 };
    packet.get(start..covered).is_some_and(|bytes| pseudo.add(simd.sum(bytes)).is_valid())
}

/// Returns the big-endian 16-bit number at `offset`; `None` beyond the end.
#[inline]
pub(crate) fn be16(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(offset..)?.first_chunk()?))
}

#[cfg(test)]
mod tests;
