//! Checksums that were captured before the device filled them in.
//!
//! A capture does not say which they are, so they are recognized: the field holds the pseudo-header's sum, not inverted, and the checksum as it
//! stands is wrong. Stacks seed the field with the transport length (Linux; with all its 32 bits in BIG TCP), or without it where the device is to
//! add each segment's (TSO on Windows and the BSDs, in frames of IP length 0). Every command asks [`Partial::find`].

use superpacket::Simd;
use superpacket::checksum::{Sum, at_offset, pseudo_header, transport_field};
use superpacket::packet::RxChecksum;
use superpacket::wire::{IpVersion, Layout, Protocol, ipv4, ipv6, udp};

/// One checksum that is to be filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seed {
    /// Where summing starts: the transport header, in bytes from the packet's start.
    start: usize,
    /// Where the field lies.
    place: usize,
    protocol: Protocol,
    /// What the field holds.
    found: u16,
    /// The pseudo-header's sum with the length as it is.
    pseudo: u16,
}

/// The unfinished checksums of a packet: the transport's, the outer UDP header's of a tunnel, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Partial {
    inner: Option<Seed>,
    outer: Option<Seed>,
    /// Where the inner packet's sum ends: inside a tunnel, there may be padding behind it.
    inner_end: usize,
    /// Where the outer packet's sum ends.
    outer_end: usize,
}

/// A field to be written: its place in bytes from the packet's start, and its value.
pub(crate) type Field = (usize, u16);

impl Partial {
    /// Looks for unfinished checksums in a packet whose headers are laid out as `layout` says.
    #[inline]
    pub(crate) fn find(packet: &[u8], layout: &Layout, simd: Simd) -> Option<Self> {
        let outer_end = (layout.end as usize).min(packet.len());
        let inner_end = inner_end(packet, layout);
        let inner = seed(packet, usize::from(layout.network), layout.version, usize::from(layout.transport), layout.protocol, inner_end);
        let outer = match layout.outer {
            Some(outer) if outer.tunnel.is_udp() => {
                seed(packet, usize::from(outer.network), outer.version, usize::from(outer.transport), Protocol::Udp, outer_end)
            }
            _ => None,
        };
        if inner.is_none() && outer.is_none() {
            return None;
        }
        Self::confirm(packet, Partial { inner, outer, inner_end, outer_end }, simd)
    }

    /// Keeps what does not verify as it stands: one seed in 65,535 is a right checksum too.
    #[cold]
    fn confirm(packet: &[u8], found: Partial, simd: Simd) -> Option<Self> {
        let wrong = |seed: &Seed, end: usize| !Sum::new(seed.pseudo).add(simd.sum(packet.get(seed.start..end).unwrap_or(&[]))).is_valid();
        let inner = found.inner.filter(|seed| wrong(seed, found.inner_end));
        let outer = found.outer.filter(|seed| wrong(seed, found.outer_end));
        let confirmed = Partial { inner, outer, ..found };
        (confirmed.inner.is_some() || confirmed.outer.is_some()).then_some(confirmed)
    }

    /// What to tell the engine, for which the field must hold the pseudo-header's sum with the real length.
    pub(crate) fn state(&self) -> RxChecksum {
        let seed = self.inner.or(self.outer);
        seed.map_or(RxChecksum::None, |seed| RxChecksum::Partial { start: seed.start as u16, offset: (seed.place - seed.start) as u16 })
    }

    /// The transport checksum's field as the engine expects it, if it holds another form.
    pub(crate) fn canonical(&self) -> Option<Field> {
        self.inner.filter(|seed| seed.found != seed.pseudo).map(|seed| (seed.place, seed.pseudo))
    }

    /// Is the transport checksum among them?
    pub(crate) fn is_transport(&self) -> bool {
        self.inner.is_some()
    }

    /// Is the outer checksum among them?
    pub(crate) fn is_outer(&self) -> bool {
        self.outer.is_some()
    }

    /// The fields with whole checksums, in the order of their places.
    pub(crate) fn completed(&self, packet: &[u8], simd: Simd) -> [Option<Field>; 2] {
        let sum =
            |seed: &Seed, end: usize| Sum::new(simd.sum(packet.get(seed.start..end).unwrap_or(&[]))).subtract(seed.found).add(seed.pseudo);
        let inner = self.inner.map(|seed| (seed.place, transport_field(seed.protocol, sum(&seed, self.inner_end).checksum())));
        let outer = self.outer.map(|seed| {
            let mut total = sum(&seed, self.outer_end);
            if let (Some(before), Some((place, after))) = (self.inner, inner) {
                let offset = place - seed.start;
                total = Sum::new(total.fold()).subtract(at_offset(before.found, offset)).add(at_offset(after, offset));
            }
            (seed.place, transport_field(seed.protocol, total.checksum()))
        });
        [outer, inner]
    }
}

/// Where the innermost IP packet ends by its length field, or the outermost's end where that field is 0.
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

/// A checksum field that holds the pseudo-header's sum, with the length or without it.
#[inline]
fn seed(packet: &[u8], network: usize, version: IpVersion, start: usize, protocol: Protocol, end: usize) -> Option<Seed> {
    let place = start + usize::from(protocol.checksum_offset());
    let found = be16(packet, place)?;
    let length = u32::try_from(end.checked_sub(start)?).ok()?;
    let without = pseudo_header(packet.get(network..)?, version, protocol.number(), 0);
    let pseudo = without.add32(length).fold();
    // A zero UDP checksum means that there is none.
    let seeded = found == pseudo || found == without.fold();
    (seeded && found != 0).then_some(Seed { start, place, protocol, found, pseudo })
}

/// What is wrong with a packet's checksums, besides being unfinished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// An IPv4 header's.
    Ip,
    /// The transport's, or a tunnel's.
    Transport,
}

/// Checks a packet that is to be cut: the IPv4 headers', the transport's, and the outer UDP header's checksum.
///
/// An IPv4 header checksum of 0 was left to the device. A packet whose IP length was left to the device has no IPv4 checksum to be compared.
pub(crate) fn check(packet: &[u8], layout: &Layout, partial: Option<&Partial>, simd: Simd) -> Result<(), Wrong> {
    let outer = layout.outer.map(|outer| (usize::from(outer.network), outer.version));
    for (network, version) in outer.into_iter().chain([(usize::from(layout.network), layout.version)]) {
        if version == IpVersion::V4 {
            let length = usize::from(packet.get(network).copied().unwrap_or(0) & 0x0f) * 4;
            let header = packet.get(network..network + length).unwrap_or(&[]);
            let left_to_device = be16(header, ipv4::CHECKSUM) == Some(0) || be16(header, ipv4::TOTAL_LENGTH) == Some(0);
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
    let pseudo = pseudo_header(network, layout.version, layout.protocol.number(), (end - start.min(end)) as u32);
    if !none
        && !partial_transport
        && layout.protocol != Protocol::Dccp
        && !pseudo.add(simd.sum(packet.get(start..end).unwrap_or(&[]))).is_valid()
    {
        return Err(Wrong::Transport);
    }
    if layout.protocol == Protocol::Dccp && !partial_transport && !dccp_is_valid(packet, layout, end, pseudo, simd) {
        return Err(Wrong::Transport);
    }
    if let Some(outer) = layout.outer.filter(|outer| outer.tunnel.is_udp()) {
        let outer_start = usize::from(outer.transport);
        let found = be16(packet, outer_start + udp::CHECKSUM).unwrap_or(0);
        if found != 0 && !partial.is_some_and(Partial::is_outer) {
            let network = packet.get(usize::from(outer.network)..).unwrap_or(&[]);
            let outer_pseudo =
                pseudo_header(network, outer.version, Protocol::Udp.number(), (outer_end - outer_start.min(outer_end)) as u32);
            // With the inner checksum to be filled in, all from the inner transport header on sums to minus its pseudo-header's sum.
            let total = match partial_transport {
                true => {
                    let padding = at_offset(simd.sum(packet.get(end..outer_end).unwrap_or(&[])), end - outer_start.min(end));
                    outer_pseudo.add(simd.sum(packet.get(outer_start..start).unwrap_or(&[]))).subtract(pseudo.fold()).add(padding)
                }
                false => outer_pseudo.add(simd.sum(packet.get(outer_start..outer_end).unwrap_or(&[]))),
            };
            if !total.is_valid() {
                return Err(Wrong::Transport);
            }
        }
    }
    Ok(())
}

/// A DCCP checksum covers all, or the header and the first `(coverage - 1) * 4` bytes of data (RFC 4340, section 9.2).
fn dccp_is_valid(packet: &[u8], layout: &Layout, end: usize, pseudo: Sum, simd: Simd) -> bool {
    let start = usize::from(layout.transport);
    let coverage = usize::from(packet.get(start + superpacket::wire::dccp::COVERAGE).copied().unwrap_or(0) & 0x0f);
    let covered = if coverage == 0 { end } else { usize::from(layout.payload) + (coverage - 1) * 4 };
    packet.get(start..covered).is_some_and(|bytes| pseudo.add(simd.sum(bytes)).is_valid())
}

/// A big-endian field, where there is one.
#[inline]
pub(crate) fn be16(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(offset..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use superpacket::packet::Layer;
    use superpacket::wire::parse;

    /// An IPv4 or IPv6 TCP packet with `payload` bytes of data and its checksum field as `field` makes it of the pseudo-header's sum without length.
    fn packet(version: IpVersion, payload: usize, field: impl Fn(Sum, u32) -> u16) -> Vec<u8> {
        let network = if version == IpVersion::V4 { 20 } else { 40 };
        let mut packet: Vec<u8> = (0..network + 20 + payload).map(|index| (index * 7 + 3) as u8).collect();
        let length = packet.len();
        match version {
            IpVersion::V4 => {
                packet[..10].copy_from_slice(&[0x45, 0, (length >> 8) as u8, length as u8, 0, 1, 0x40, 0, 64, 6]);
                packet[10..12].fill(0);
            }
            IpVersion::V6 => {
                let length = length - 40;
                packet[..8].copy_from_slice(&[0x60, 0, 0, 0, (length >> 8) as u8, length as u8, 6, 64]);
            }
        }
        packet[network + 12..network + 14].copy_from_slice(&[0x50, 0x10]);
        let value = field(pseudo_header(&packet, version, 6, 0), 20 + payload as u32);
        packet[network + 16..network + 18].copy_from_slice(&value.to_be_bytes());
        packet
    }

    fn find(packet: &[u8]) -> Option<Partial> {
        let layout = parse(packet, packet.len(), Layer::Ip).expect("headers are whole");
        Partial::find(packet, &layout, Simd::scalar())
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
                    let mut bytes =
                        packet(version, payload, |pseudo, length| if with_length { pseudo.add32(length).fold() } else { pseudo.fold() });
                    let partial = find(&bytes).expect("recognized");
                    assert_eq!(partial.canonical().is_none(), with_length);
                    let start = if version == IpVersion::V4 { 20 } else { 40 };
                    assert_eq!(partial.state(), RxChecksum::Partial { start, offset: 16 });
                    assert!(!is_right(&bytes));
                    let [None, Some((place, value))] = partial.completed(&bytes, Simd::scalar()) else { panic!("one field") };
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
        let mut bytes = packet(IpVersion::V6, 100_000, |pseudo, length| pseudo.add32(length).fold());
        bytes[4..6].fill(0);
        let partial = find(&bytes).expect("recognized");
        assert_eq!(partial.canonical(), None);
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
        let partial = find(&bytes).expect("recognized");
        let [None, Some((place, value))] = partial.completed(&bytes, Simd::scalar()) else { panic!("one field") };
        bytes[place..place + 2].copy_from_slice(&value.to_be_bytes());
        assert!(is_right(&bytes));
    }

    #[test]
    fn other_wrong_checksums_are_not_partial() {
        let bytes = packet(IpVersion::V4, 100, |pseudo, length| pseudo.add32(length).add(1).fold());
        assert_eq!(find(&bytes), None);
        assert!(!is_right(&bytes));
    }
}
