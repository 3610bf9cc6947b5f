//! Sorts the packets of interleaved flows by flow.
//!
//! Joining a run of packets (`flow::run`) costs little per packet, but beginning one costs more. If
//! flows are interleaved, each packet would be a run of its own. A batch is complete before its
//! first packet is processed, so the packets of a flow can be moved together.

use alloc::boxed::Box;

use super::flow::addresses_and_ports;
use crate::packet::Layer;
use crate::wire::{Tunnel, be16, byte, ethernet, ipv4, ipv6, protocol, tcp, udp};

/// Maximum number of packets that are sorted together.
const SPAN: usize = 256;

/// Number of groups into which flows are hashed. Packets of the same group are not reordered, even
/// if they belong to different flows.
const GROUPS: usize = 256;

/// The value of an index that refers to no packet.
const NONE: u16 = u16::MAX;

/// Sorts the packets of a batch by flow. Its memory is reused for the next batch.
#[derive(Debug)]
pub(super) struct ByFlow {
    /// For each group, the number of its last packet so far. Packets are numbered across spans: a
    /// number below `span` means that the current span has no packet of the group yet.
    last: [u32; GROUPS],
    /// Number of the first packet of the current span, counted across all spans.
    span: u32,
    /// For each packet of the span, the index in the span of the next packet of the same group, or
    /// `NONE`.
    next: [u16; SPAN],
    /// Index in the span of the first packet of each group, in the order in which the groups
    /// appear.
    first: [u16; SPAN],
    /// For each packet of the span, its index in the span after sorting.
    place: [u16; SPAN],
}

/// Result of linking the packets of a span by group.
struct Linked {
    /// Number of packets in the span.
    packets: usize,
    /// Number of groups that the packets belong to.
    groups: usize,
    /// Whether packets of other groups lie between two packets of a group.
    interleaved: bool,
}

impl ByFlow {
    pub(super) fn new() -> Box<Self> {
        Box::new(ByFlow {
            last: [0; GROUPS],
            span: 0,
            next: [NONE; SPAN],
            first: [NONE; SPAN],
            place: [NONE; SPAN],
        })
    }

    /// Moves the packets of each flow together, with the flows in the order of their first packets.
    /// `group` returns the [group] of a packet. A packet without a group may belong to any flow, so
    /// no packet is moved past it. Returns whether flows were interleaved.
    #[inline(always)]
    pub(super) fn sort<T>(
        &mut self,
        packets: &mut [T],
        group: impl Fn(&[T], usize) -> Option<u8>,
    ) -> bool {
        let (mut begin, mut interleaved) = (0, false);
        while begin < packets.len() {
            let Some(linked) = self.link(begin, packets.len(), &|index| group(packets, index))
            else {
                begin += 1;
                continue;
            };
            if linked.interleaved {
                self.find_places(linked.groups);
                let span = &mut packets[begin..begin + linked.packets];
                for place in 0..linked.packets {
                    // Each swap brings one packet to its final index.
                    while let goes = usize::from(self.place[place % SPAN])
                        && goes != place
                    {
                        span.swap(place, goes);
                        self.place.swap(place % SPAN, goes % SPAN);
                    }
                }
            }
            interleaved |= linked.interleaved;
            begin += linked.packets;
        }
        interleaved
    }

    /// Computes the new index of each packet of the span.
    #[inline(always)]
    fn find_places(&mut self, groups: usize) {
        let mut place = 0;
        for &first in &self.first[..groups] {
            let mut index = first;
            while index != NONE {
                self.place[usize::from(index) % SPAN] = place;
                place += 1;
                index = self.next[usize::from(index) % SPAN];
            }
        }
    }

    /// Links the packets of each group, from index `begin` to the next packet without a group, but
    /// at most [`SPAN`] packets. `None` if the packet at `begin` has no group.
    #[inline(always)]
    fn link(
        &mut self,
        begin: usize,
        count: usize,
        group: &impl Fn(usize) -> Option<u8>,
    ) -> Option<Linked> {
        let mut next_group = Some(group(begin)?);
        if self.span > u32::MAX - 2 * SPAN as u32 {
            (self.last, self.span) = ([0; GROUPS], 0);
        }
        self.span += SPAN as u32;
        let (span, end) = (self.span, count.min(begin + SPAN));
        let mut linked = Linked { packets: 0, groups: 0, interleaved: false };
        while let Some(group_of_it) = next_group {
            let index = linked.packets as u16;
            let before = core::mem::replace(
                &mut self.last[usize::from(group_of_it)],
                span + u32::from(index),
            );
            self.next[linked.packets % SPAN] = NONE;
            match before.checked_sub(span) {
                None => {
                    self.first[linked.groups % SPAN] = index;
                    linked.groups += 1;
                }
                Some(before) => {
                    self.next[before as usize % SPAN] = index;
                    linked.interleaved |= u32::from(index) - before != 1;
                }
            }
            linked.packets += 1;
            next_group =
                if begin + linked.packets < end { group(begin + linked.packets) } else { None };
        }
        Some(linked)
    }
}

/// Returns the number of the group into which a packet's flow is hashed. `None` unless the packet
/// is TCP or UDP over IP without VLAN tags, tunnel, IPv4 options or IPv6 extension headers, and its
/// headers are complete and consistent.
///
/// All packets of a flow have the same group.
#[inline(always)]
pub(super) fn group(header: &[u8], layer: Layer) -> Option<u8> {
    let ip = match layer {
        Layer::Ip => header,
        Layer::Ethernet => match be16(header, ethernet::ETHERTYPE) {
            ethernet::IPV4 | ethernet::IPV6 => header.get(ethernet::HEADER_LENGTH..)?,
            _ => return None,
        },
    };
    // The lengths are checked once, since the offsets of addresses and ports are constant.
    match byte(ip, 0) {
        0x45 => {
            let first: &[u8; IPV4_AND_PORTS] = ip.first_chunk()?;
            let whole = be16(first, ipv4::FRAGMENT) & !ipv4::DONT_FRAGMENT == 0;
            let end = usize::from(be16(first, ipv4::TOTAL_LENGTH));
            if whole { group_of(ip, first, first[ipv4::PROTOCOL], end) } else { None }
        }
        0x60..=0x6f => {
            let first: &[u8; IPV6_AND_PORTS] = ip.first_chunk()?;
            let end = ipv6::HEADER_LENGTH + usize::from(be16(first, ipv6::PAYLOAD_LENGTH));
            group_of(ip, first, first[ipv6::NEXT_HEADER], end)
        }
        _ => None,
    }
}

/// Length of an IPv4 header without options, plus the first 8 bytes after it: TCP and UDP headers
/// have at least as many.
const IPV4_AND_PORTS: usize = ipv4::HEADER_LENGTH + udp::HEADER_LENGTH;

/// Length of an IPv6 header, plus the first 8 bytes after it.
const IPV6_AND_PORTS: usize = ipv6::HEADER_LENGTH + udp::HEADER_LENGTH;

/// Returns the group of an IP packet that ends at offset `end`. `first` holds the IP header and the
/// first bytes of the transport header, whose protocol number is `next`.
#[inline(always)]
fn group_of<const LENGTH: usize>(
    ip: &[u8],
    first: &[u8; LENGTH],
    next: u8,
    end: usize,
) -> Option<u8> {
    let transport = LENGTH - udp::HEADER_LENGTH;
    let alone = match next {
        // A header that is incomplete or contradicts itself has no flow.
        protocol::TCP => {
            let length = usize::from(byte(ip, transport + tcp::DATA_OFFSET) >> 4) * 4;
            length >= tcp::HEADER_LENGTH && transport + length <= end.min(ip.len())
        }
        // The packets of a tunnel belong to the flows inside it.
        protocol::UDP => {
            let port = be16(first, transport + udp::DESTINATION_PORT);
            end >= LENGTH && Tunnel::with_port(port).is_none()
        }
        _ => false,
    };
    let mixed = addresses_and_ports(first, transport as u16).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    alone.then_some((mixed >> 56) as u8)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use superpacket_traffic::frame::Frame;
    use superpacket_traffic::generate::{Config, generate};

    use super::*;
    use crate::wire::parse;

    /// Returns the order of packets with these groups after sorting, and whether groups were
    /// interleaved.
    fn order(groups: &[Option<u8>]) -> (Vec<usize>, bool) {
        order_by(&mut ByFlow::new(), groups)
    }

    fn order_by(by_flow: &mut ByFlow, groups: &[Option<u8>]) -> (Vec<usize>, bool) {
        let mut sorted: Vec<_> = groups.iter().copied().enumerate().collect();
        let interleaved = by_flow.sort(&mut sorted, |packets, index| packets[index].1);
        (sorted.into_iter().map(|(index, _)| index).collect(), interleaved)
    }

    #[test]
    fn nothing_is_left_of_the_spans_before_however_many() {
        let mut by_flow = ByFlow::new();
        for span in [0, u32::MAX - 6 * SPAN as u32] {
            by_flow.span = span;
            for groups in [[1, 2, 1, 3], [3, 3, 1, 2], [2, 1, 2, 1], [9, 1, 2, 3]] {
                let groups = groups.map(Some);
                assert_eq!(order_by(&mut by_flow, &groups), order(&groups));
            }
        }
    }

    #[test]
    fn flows_in_turn_are_taken_one_after_the_other() {
        let groups = [1, 2, 1, 3, 2, 1].map(Some);
        assert_eq!(order(&groups), (vec![0, 2, 5, 1, 4, 3], true));
        assert_eq!(order(&[1, 1, 2, 2].map(Some)), (vec![0, 1, 2, 3], false));
        assert_eq!(order(&[]), (vec![], false));
    }

    #[test]
    fn nothing_passes_a_packet_that_may_belong_to_any_flow() {
        let groups = [Some(1), Some(2), Some(1), None, Some(2), Some(1), Some(2), None];
        assert_eq!(order(&groups), (vec![0, 2, 1, 3, 4, 6, 5, 7], true));
    }

    proptest::proptest! {
        #[test]
        fn each_packet_is_taken_once_and_none_passes_another_of_its_group(
            groups in proptest::collection::vec(proptest::option::weighted(0.97, 0u8..5), 0..SPAN * 3),
        ) {
            let (taken, _) = order(&groups);
            let mut sorted = taken.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..groups.len()));
            for (place, &index) in taken.iter().enumerate() {
                let must_follow = |other: usize| groups[other].is_none() || groups[index].is_none() || groups[other] == groups[index];
                assert!(taken[place..].iter().all(|&later| later >= index || !must_follow(later)));
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn what_has_a_group_has_a_flow(seed: u64, place in 0usize..80, value: u8, cut in 0usize..100) {
            for generated in generate(seed, &Config::default(), 40) {
                let layer = if generated.starts_at_ip { Layer::Ip } else { Layer::Ethernet };
                let mut bytes = generated.bytes.clone();
                if let Some(byte) = bytes.get_mut(place) {
                    *byte = value;
                }
                for bytes in [&bytes[..], &bytes[..bytes.len().min(cut)], &generated.bytes[..generated.bytes.len().min(cut)]] {
                    assert!(group(bytes, layer).is_none() || parse(bytes, bytes.len(), layer).is_ok(), "{bytes:x?}");
                }
            }
        }
    }

    #[test]
    fn a_group_is_that_of_addresses_and_ports_where_these_are_the_flow() {
        let of = |frame: &Frame, layer| group(&frame.to_bytes(), layer);
        for frame in [Frame::tcp4(1, 100), Frame::tcp6(1, 100), Frame::udp4(100), Frame::udp6(100)]
        {
            let groups: Vec<_> =
                frame.run(5).iter().map(|frame| of(frame, Layer::Ethernet)).collect();
            assert!(
                groups[0].is_some() && groups.iter().all(|group| *group == groups[0]),
                "{groups:?}"
            );
            assert_eq!(of(&frame.clone().at_ip(), Layer::Ip), groups[0]);
            assert_eq!(of(&frame, Layer::Ip), None);
            let bytes = frame.at_ip().to_bytes();
            // Cut off behind the ports, where the checksum should be; with a length field that ends
            // there.
            let ports_end =
                if bytes[0] >> 4 == 4 { ipv4::HEADER_LENGTH } else { ipv6::HEADER_LENGTH } + 7;
            assert_eq!(group(&bytes[..ports_end], Layer::Ip), None);
            let mut short = bytes.clone();
            let (field, value) = if bytes[0] >> 4 == 4 {
                (ipv4::TOTAL_LENGTH, 27)
            } else {
                (ipv6::PAYLOAD_LENGTH, 7)
            };
            short[field..field + 2].copy_from_slice(&u16::to_be_bytes(value));
            assert_eq!(group(&short, Layer::Ip), None);
        }
        // A fragment has ports only if it is the first, and options lie where ports are looked for.
        let mut fragment = Frame::udp4(100).at_ip().to_bytes();
        fragment[ipv4::FRAGMENT] |= 0x20;
        assert_eq!(group(&fragment, Layer::Ip), None);
        let mut options = Frame::tcp4(1, 100).at_ip().to_bytes();
        options[0] = 0x46;
        assert_eq!(group(&options, Layer::Ip), None);
        // The flows of a tunnel are those in it.
        for port in [crate::wire::vxlan::PORT, crate::wire::geneve::PORT] {
            let mut tunnel = Frame::udp4(100).at_ip().to_bytes();
            tunnel[22..24].copy_from_slice(&port.to_be_bytes());
            assert_eq!(group(&tunnel, Layer::Ip), None);
        }
        let mut other = Frame::tcp4(1, 100).at_ip().to_bytes();
        other[ipv4::PROTOCOL] = protocol::GRE;
        assert_eq!(group(&other, Layer::Ip), None);
    }
}
