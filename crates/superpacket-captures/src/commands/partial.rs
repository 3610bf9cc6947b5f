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
mod tests {
    use super::*;
    use superpacket::wire::parse;

    /// Returns a TCP packet with `payload` bytes of data. `field` computes the value of the
    /// checksum field from the sum of the pseudo-header without the length, and the length.
    fn packet(version: IpVersion, payload: usize, field: impl Fn(Sum, u32) -> u16) -> Vec<u8> {
        let network = if version == IpVersion::V4 { 20 } else { 40 };
        let mut packet: Vec<u8> =
            (0..network + 20 + payload).map(|index| (index * 7 + 3) as u8).collect();
        let length = packet.len();
        match version {
            IpVersion::V4 => {
                packet[..10].copy_from_slice(&[
                    0x45,
                    0,
                    (length >> 8) as u8,
                    length as u8,
                    0,
                    1,
                    0x40,
                    0,
                    64,
                    6,
                ]);
                packet[10..12].fill(0);
            }
            IpVersion::V6 => {
                let length = length - 40;
                packet[..8].copy_from_slice(&[
                    0x60,
                    0,
                    0,
                    0,
                    (length >> 8) as u8,
                    length as u8,
                    6,
                    64,
                ]);
            }
        }
        packet[network + 12..network + 14].copy_from_slice(&[0x50, 0x10]);
        if version == IpVersion::V4 {
            let checksum = ipv4_header(&packet[..20]);
            packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        let value = field(pseudo_header(&packet, version, 6, 0), 20 + payload as u32);
        packet[network + 16..network + 18].copy_from_slice(&value.to_be_bytes());
        packet
    }

    fn find(packet: &[u8]) -> Option<Partial> {
        let layout = parse(packet, packet.len(), Layer::Ip).expect("headers are whole");
        Partial::find(packet, Layer::Ip, Some(&layout), Simd::scalar())
    }

    fn is_right(packet: &[u8]) -> bool {
        let layout = parse(packet, packet.len(), Layer::Ip).expect("headers are whole");
        check(packet, &layout, None, Simd::scalar()).is_ok()
    }

    #[test]
    fn both_seeds_are_recognized_and_completed() {
        for version in [IpVersion::V4, IpVersion::V6] {
            for payload in [0, 1, 1448, 60_001] {
                for with_length in [true, false] {
                    let mut bytes = packet(version, payload, |pseudo, length| {
                        if with_length { pseudo.add32(length).fold() } else { pseudo.fold() }
                    });
                    let partial = find(&bytes).expect("recognized");
                    assert_eq!(partial.canonical().count(), usize::from(!with_length));
                    let start = if version == IpVersion::V4 { 20 } else { 40 };
                    assert_eq!(partial.state(), RxChecksum::Partial { start, offset: 16 });
                    assert!(!is_right(&bytes));
                    let [None, None, None, None, None, Some((place, value))] =
                        partial.completed(&bytes, Simd::scalar())
                    else {
                        panic!("one field")
                    };
                    bytes[place..place + 2].copy_from_slice(&value.to_be_bytes());
                    assert!(is_right(&bytes), "{version:?} {payload} {with_length}");
                    assert_eq!(find(&bytes), None, "a whole checksum is none");
                }
            }
        }
    }

    #[test]
    fn lengths_above_16_bits_count_whole() {
        // BIG TCP: an IP length of 0, and a 32-bit length in the sum.
        let mut bytes =
            packet(IpVersion::V6, 100_000, |pseudo, length| pseudo.add32(length).fold());
        bytes[4..6].fill(0);
        let partial = find(&bytes).expect("recognized");
        assert_eq!(partial.canonical().count(), 0);
    }

    #[test]
    fn padding_in_a_tunnel_is_not_summed() {
        let inner = packet(IpVersion::V4, 11, |pseudo, length| pseudo.add32(length).fold());
        let mut bytes = packet(IpVersion::V4, 0, |_, _| 0)[..20].to_vec();
        bytes[9] = 4;
        bytes.extend_from_slice(&inner);
        bytes.extend_from_slice(&[9; 5]);
        let length = bytes.len() as u16;
        bytes[2..4].copy_from_slice(&length.to_be_bytes());
        bytes[10..12].fill(0);
        let checksum = ipv4_header(&bytes[..20]);
        bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        let partial = find(&bytes).expect("recognized");
        let [None, None, None, None, None, Some((place, value))] =
            partial.completed(&bytes, Simd::scalar())
        else {
            panic!("one field")
        };
        bytes[place..place + 2].copy_from_slice(&value.to_be_bytes());
        assert!(is_right(&bytes));
    }

    #[test]
    fn other_wrong_checksums_are_not_partial() {
        let bytes = packet(IpVersion::V4, 100, |pseudo, length| pseudo.add32(length).add(1).fold());
        assert_eq!(find(&bytes), None);
        assert!(!is_right(&bytes));
    }

    /// Completes the unfinished checksums, and returns the offsets of their fields.
    fn fill_in(bytes: &mut [u8], partial: &Partial) -> Vec<usize> {
        let fields: Vec<ChecksumField> =
            partial.completed(bytes, Simd::scalar()).into_iter().flatten().collect();
        fields.iter().for_each(|&(place, value)| {
            bytes[place..place + 2].copy_from_slice(&value.to_be_bytes())
        });
        fields.iter().map(|field| field.0).collect()
    }

    #[test]
    fn an_ipv4_header_checksum_of_zero_is_unfinished_like_a_seed() {
        let right = packet(IpVersion::V4, 100, |_, _| 0);
        // The transport checksum is complete, wrong, or unfinished. The header's checksum is always
        // filled in, and the transport checksum only if it is unfinished.
        for (field, places) in [(None, vec![10]), (Some(0x1234), vec![10]), (Some(0), vec![10, 36])]
        {
            let mut bytes = right.clone();
            let pseudo = pseudo_header(&bytes, IpVersion::V4, 6, 120).fold();
            bytes[36..38].copy_from_slice(&pseudo.to_be_bytes());
            match field {
                None => {
                    let checksum = Sum::new(Simd::scalar().sum(&bytes[20..])).checksum();
                    bytes[36..38].copy_from_slice(&checksum.to_be_bytes());
                }
                Some(0) => {}
                Some(wrong) => bytes[36..38].copy_from_slice(&u16::to_be_bytes(wrong)),
            }
            bytes[10..12].fill(0);
            let partial = find(&bytes).expect("recognized");
            assert_eq!(
                partial.canonical().collect::<Vec<_>>(),
                [(10, be16(&right, 10).expect("a field"))]
            );
            assert_eq!(fill_in(&mut bytes, &partial), places);
            assert_eq!(bytes[..20], right[..20]);
            assert_eq!(find(&bytes), None);
            // If the packet is cut short, or its protocol is not known, only the IPv4 header is
            // completed.
            let mut unknown = bytes[..60].to_vec();
            (unknown[9], unknown[10], unknown[11]) = (1, 0, 0);
            let partial =
                Partial::find(&unknown, Layer::Ip, None, Simd::scalar()).expect("recognized");
            assert_eq!((partial.state(), partial.is_transport()), (RxChecksum::None, false));
            assert_eq!(fill_in(&mut unknown, &partial), [10]);
            assert!(Sum::new(Simd::scalar().sum(&unknown[..20])).is_valid());
        }
        // An IPv4 header whose right checksum is 0.
        let mut bytes = right.clone();
        bytes[10..12].fill(0);
        bytes[4..6].fill(0);
        let rest = Simd::scalar().sum(&bytes[..20]);
        bytes[4..6].copy_from_slice(&(!rest).to_be_bytes());
        assert!(Sum::new(Simd::scalar().sum(&bytes[..20])).is_valid());
        assert_eq!(Partial::find(&bytes, Layer::Ip, None, Simd::scalar()), None);
    }

    #[test]
    fn a_header_in_a_tunnel_is_filled_in_unless_a_whole_checksum_covers_it() {
        use superpacket_traffic::frame::{Checksum, Frame, Ip};
        for (outer, places) in [
            (Checksum::Zero, vec![24, 60 + 14]),
            (Checksum::Partial, vec![24, 40, 60 + 14]),
            (Checksum::Right, vec![24]),
        ] {
            let frame =
                Frame::tcp4(1, 99).in_vxlan4().with(|frame| frame.outer_udp_mut().checksum = outer);
            let unfinished = frame.clone().with(|frame| {
                frame.ipv4_mut().checksum = Checksum::Zero;
                if let Ip::V4(outer) = &mut frame.tunnel_mut().ip {
                    outer.checksum = Checksum::Zero;
                }
            });
            let mut bytes = unfinished.to_bytes();
            let layout = parse(&bytes, bytes.len(), Layer::Ethernet).expect("headers are whole");
            let partial = Partial::find(&bytes, Layer::Ethernet, Some(&layout), Simd::scalar())
                .expect("recognized");
            assert_eq!(fill_in(&mut bytes, &partial), places, "{outer:?}");
            if outer != Checksum::Right {
                let right = frame.with(|frame| {
                    frame.outer_udp_mut().checksum =
                        if outer == Checksum::Zero { outer } else { Checksum::Right }
                });
                assert_eq!(bytes, right.to_bytes());
            }
            assert!(check(&bytes, &layout, None, Simd::scalar()).is_ok());
        }
    }

    /// Tests combinations of complete, absent and unfinished checksums in two nested tunnels.
    #[test]
    fn unfinished_checksums_in_two_tunnels_are_filled_in() {
        use superpacket_traffic::frame::{Checksum, Frame};
        let forms = [Checksum::Zero, Checksum::Right, Checksum::Partial];
        let whole = |form: Checksum| if form == Checksum::Partial { Checksum::Right } else { form };
        for (outer, nested, inner) in forms.into_iter().flat_map(|outer| {
            forms.into_iter().flat_map(move |nested| {
                [Checksum::Right, Checksum::Partial].map(|inner| (outer, nested, inner))
            })
        }) {
            let with = |outer: Checksum, nested: Checksum, inner: Checksum| {
                Frame::tcp4(1, 99).in_vxlan4().in_geneve().with(|frame| {
                    frame.outer_udp_mut().checksum = outer;
                    frame.nested_mut().udp_mut().checksum = nested;
                    frame.tcp_mut().checksum = inner;
                })
            };
            let mut frame = with(outer, nested, inner);
            let places = frame.offsets();
            let mut expected = vec![];
            // No other checksum covers the outermost IPv4 header, but outer UDP checksums may cover
            // the inner ones.
            frame.outer_ipv4_mut().checksum = Checksum::Zero;
            expected.push(places.outer.expect("a tunnel") + 10);
            expected.extend(
                (outer == Checksum::Partial).then_some(places.outer.expect("a tunnel") + 26),
            );
            if outer != Checksum::Right {
                frame.nested_mut().ipv4_mut().checksum = Checksum::Zero;
                expected.push(places.nested.expect("a second tunnel") + 10);
            }
            expected.extend(
                (nested == Checksum::Partial)
                    .then_some(places.nested.expect("a second tunnel") + 26),
            );
            if outer != Checksum::Right && nested != Checksum::Right {
                frame.ipv4_mut().checksum = Checksum::Zero;
                expected.push(places.network + 10);
            }
            expected.extend((inner == Checksum::Partial).then_some(places.transport + 16));
            let mut bytes = frame.to_bytes();
            let layout = parse(&bytes, bytes.len(), Layer::Ethernet).expect("headers are whole");
            let partial = Partial::find(&bytes, Layer::Ethernet, Some(&layout), Simd::scalar())
                .expect("recognized");
            assert_eq!(
                check(&bytes, &layout, Some(&partial), Simd::scalar()),
                Ok(()),
                "{outer:?} {nested:?} {inner:?}"
            );
            let what = format!("{outer:?} {nested:?} {inner:?}");
            assert_eq!(fill_in(&mut bytes, &partial), expected, "{what}");
            assert_eq!(bytes, with(whole(outer), whole(nested), whole(inner)).to_bytes(), "{what}");
            assert_eq!(check(&bytes, &layout, None, Simd::scalar()), Ok(()), "{what}");
            for wrong in
                [places.outer.expect("a tunnel") + 26, places.nested.expect("a second tunnel") + 26]
            {
                if be16(&bytes, wrong) != Some(0) {
                    let mut damaged = bytes.clone();
                    damaged[wrong] ^= 0x11;
                    assert_eq!(
                        check(&damaged, &layout, None, Simd::scalar()),
                        Err(Wrong::Transport),
                        "{what}"
                    );
                }
            }
        }
    }
}
