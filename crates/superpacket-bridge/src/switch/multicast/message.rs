//! Parses messages about multicast groups: IGMP (RFC 2236, RFC 3376), MLD (RFC 2710, RFC 3810) and
//! PIM hellos (RFC 7761).
//!
//! Messages are parsed in place and without allocation, because every multicast packet is examined.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use superpacket::checksum::{pseudo_header, words};
use superpacket::wire::IpVersion;

/// Number of the IPv6 hop-by-hop options header.
const HOP_BY_HOP: u8 = 0;
/// Protocol number of IGMP.
const IGMP: u8 = 2;
/// Protocol number of ICMPv6, to which MLD belongs.
const ICMP6: u8 = 58;
/// Protocol number of PIM.
const PIM: u8 = 103;

/// Length in bytes of an IPv4 header without options.
const IPV4: usize = 20;
/// Length in bytes of an IPv6 header.
const IPV6: usize = 40;

/// Time within which hosts respond to an IGMPv1 query (RFC 2236, section 4).
pub(super) const V1_RESPONSE: Duration = Duration::from_secs(10);

/// What a multicast packet means for the bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupMessage<'a> {
    /// Data for all ports: it is not IP, or its group is one that every host is in without joining.
    ForAll,
    /// Data for the members of this group.
    ForGroup(IpAddr),
    /// A query that asks for the members of one group, or of all groups.
    Query(Query),
    /// A host joins this group. Other hosts do not receive the message, because it would make them
    /// suppress their own reports (RFC 4541, section 2.1.1).
    Join(IpAddr),
    /// A host leaves this group.
    Leave(IpAddr),
    /// A host reports its membership in several groups (IGMPv3, MLDv2).
    Report(ReportRecords<'a>),
    /// The hello message of a multicast router.
    Hello(IpVersion),
    /// A damaged or invalid message about groups.
    Malformed,
}

/// A query that asks hosts for their group memberships.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) version: IpVersion,
    /// The group whose members are asked; `None` for all groups.
    pub(super) group: Option<IpAddr>,
    /// The time within which hosts respond to the query.
    pub(super) response: Duration,
    /// The sender's address; `None` for a switch that acts as querier without an address.
    pub(super) source: Option<IpAddr>,
    /// Whether this is an IGMPv1 query. Hosts that receive one take up to ten seconds to answer any
    /// query, for some minutes (RFC 3376, section 7.2.1).
    pub(super) is_v1: bool,
}

/// One host's change of membership in one group, as its report says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupRecord {
    /// The host is a member.
    Join(IpAddr),
    /// The host is no longer a member.
    Leave(IpAddr),
}

/// The records of an IGMPv3 or MLDv2 report, read one after the other. All of them lie inside the
/// message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReportRecords<'a> {
    version: IpVersion,
    left: u16,
    bytes: &'a [u8],
}

impl<'a> ReportRecords<'a> {
    /// Returns the records of a report; `None` if the message is too short for them.
    fn new(version: IpVersion, count: u16, bytes: &'a [u8]) -> Option<Self> {
        let records = ReportRecords { version, left: count, bytes };
        let mut rest = records;
        while rest.left != 0 {
            rest.take_record()?;
        }
        Some(records)
    }

    /// Removes the first record from the bytes, and returns its type, its number of sources and its
    /// group.
    fn take_record(&mut self) -> Option<(u8, u16, IpAddr)> {
        let &[kind, auxiliary, a, b] = self.bytes.first_chunk()?;
        let sources = u16::from_be_bytes([a, b]);
        let address = match self.version {
            IpVersion::V4 => 4,
            IpVersion::V6 => 16,
        };
        let group = ip(self.bytes.get(4..4 + address)?)?;
        // The record has a header, a group, its sources, and 32-bit words of auxiliary data.
        let length = 4 + address * (1 + usize::from(sources)) + 4 * usize::from(auxiliary);
        self.bytes = self.bytes.get(length..)?;
        self.left -= 1;
        Some((kind, sources, group))
    }
}

impl Iterator for ReportRecords<'_> {
    type Item = GroupRecord;

    /// Returns the next record of interest to a switch which does not track sources (RFC 3376,
    /// section 4.2.12).
    fn next(&mut self) -> Option<GroupRecord> {
        while self.left != 0 {
            let (kind, sources, group) = self.take_record()?;
            match (kind, sources) {
                _ if !is_reported(group) => {}
                (1 | 3, 0) => return Some(GroupRecord::Leave(group)),
                (1..=4, _) | (5, 1..) => return Some(GroupRecord::Join(group)),
                _ => {}
            }
        }
        None
    }
}

/// Returns whether hosts report that they join this group. They do not for groups that every host
/// is in (RFC 4541, section 2.1.2). For IPv6, they report all groups except all-nodes (RFC 3810,
/// section 6).
fn is_reported(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(group) => group.is_multicast() && group.octets()[..3] != [224, 0, 0],
        IpAddr::V6(group) => group.is_multicast() && group != ALL_NODES,
    }
}

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

fn word(bytes: &[u8], place: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(place..)?.first_chunk()?))
}

/// Returns whether [`read`] needs all bytes of a packet, which is given from its IP header on.
pub(super) fn is_message(packet: &[u8]) -> bool {
    match packet.first().map_or(0, |first| first >> 4) {
        4 => matches!(packet.get(9), Some(&(IGMP | PIM))),
        6 => matches!(packet.get(6), Some(&(HOP_BY_HOP | PIM))),
        _ => false,
    }
}

/// Finds the meaning of a packet, which is given from its IP header on.
pub(super) fn read(packet: &[u8]) -> GroupMessage<'_> {
    match packet.first().map_or(0, |first| first >> 4) {
        4 => read4(packet).unwrap_or(GroupMessage::ForAll),
        6 => read6(packet).unwrap_or(GroupMessage::ForAll),
        _ => GroupMessage::ForAll,
    }
}

/// Returns the meaning of a packet that is not a message about groups.
fn data(group: IpAddr) -> GroupMessage<'static> {
    if is_reported(group) { GroupMessage::ForGroup(group) } else { GroupMessage::ForAll }
}

/// Finds the meaning of an IPv4 packet; `None` if it is invalid.
fn read4(packet: &[u8]) -> Option<GroupMessage<'_>> {
    let header = packet.get(..IPV4)?;
    let group = ip(&header[16..20])?;
    let is_fragment = word(header, 6)? & 0x3fff != 0;
    if is_fragment || !matches!(header[9], IGMP | PIM) {
        return Some(data(group));
    }
    let start = usize::from(header[0] & 0xf) * 4;
    let message =
        packet.get(..usize::from(word(header, 2)?)).and_then(|packet| packet.get(start..));
    let (Some(message), true) =
        (message, start >= IPV4 && words(&packet[..start.min(packet.len())]).is_valid())
    else {
        return Some(GroupMessage::Malformed);
    };
    if header[9] == PIM {
        return Some(
            hello(message, group == IpAddr::from([224, 0, 0, 13]), IpVersion::V4)
                .unwrap_or(data(group)),
        );
    }
    if message.len() < 8 || !words(message).is_valid() {
        return Some(GroupMessage::Malformed);
    }
    let of = ip(&message[4..8])?;
    let asked = |heard: GroupMessage<'static>| match of {
        IpAddr::V4(of) if !of.is_multicast() => GroupMessage::Malformed,
        _ if is_reported(of) => heard,
        _ => GroupMessage::ForAll,
    };
    Some(match message[0] {
        0x11 => query4(message, group, of, ip(&header[12..16])?),
        0x12 | 0x16 => asked(GroupMessage::Join(of)),
        0x17 => asked(GroupMessage::Leave(of)),
        0x22 => ReportRecords::new(IpVersion::V4, word(message, 6)?, &message[8..])
            .map_or(GroupMessage::Malformed, GroupMessage::Report),
        _ => data(group),
    })
}

fn query4(message: &[u8], sent_to: IpAddr, of: IpAddr, source: IpAddr) -> GroupMessage<'static> {
    let tenths = |tenths: u32| Duration::from_millis(u64::from(tenths) * 100);
    let (response, sources) = match (message.len(), message[1]) {
        (8, 0) => (V1_RESPONSE, 0),
        (8, code) => (tenths(code.into()), 0),
        (12.., code @ ..0x80) => (tenths(code.into()), word(message, 10).unwrap_or(0)),
        // Floating-point response code (RFC 3376, section 4.1.1).
        (12.., code) => (
            tenths((u32::from(code & 0xf) | 0x10) << ((code >> 4 & 7) + 3)),
            word(message, 10).unwrap_or(0),
        ),
        _ => return GroupMessage::Malformed,
    };
    let source = Some(source).filter(|source| !source.is_unspecified());
    let is_v1 = message.len() == 8 && message[1] == 0;
    query(
        Query { version: IpVersion::V4, group: Some(of), response, source, is_v1 },
        sent_to,
        sources,
    )
}

/// Checks that a query was sent to the right destination. The query's own group is unspecified if
/// it asks for all groups.
fn query(query: Query, sent_to: IpAddr, sources: u16) -> GroupMessage<'static> {
    let Some(of) = query.group else { return GroupMessage::Malformed };
    let is_to_all = sent_to == IpAddr::from(ALL_HOSTS) || sent_to == IpAddr::from(ALL_NODES);
    // A query reaches the members of its group only if it was sent to that group or to all hosts.
    let reaches_members = is_to_all || sent_to == of;
    match (of.is_unspecified(), of.is_multicast()) {
        (true, _) if is_to_all => GroupMessage::Query(Query { group: None, ..query }),
        // A source-specific query; sources are not tracked here.
        (false, true) if sources != 0 => GroupMessage::ForAll,
        (false, true) if reaches_members => GroupMessage::Query(query),
        _ => GroupMessage::Malformed,
    }
}

/// Checks a PIM version 2 hello, which must be sent to all PIM routers.
fn hello(message: &[u8], is_to_routers: bool, version: IpVersion) -> Option<GroupMessage<'static>> {
    (is_to_routers && message.first() == Some(&0x20)).then_some(GroupMessage::Hello(version))
}

/// Finds the meaning of an IPv6 packet; `None` if it is invalid.
fn read6(packet: &[u8]) -> Option<GroupMessage<'_>> {
    let header = packet.get(..IPV6)?;
    let group = ip(&header[24..40])?;
    let end = IPV6 + usize::from(word(header, 4)?);
    if header[6] == PIM {
        let routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xd);
        let message = packet.get(IPV6..).unwrap_or(&[]);
        return Some(
            hello(message, group == IpAddr::from(routers), IpVersion::V6).unwrap_or(data(group)),
        );
    }
    // MLD follows a hop-by-hop header with a router alert (RFC 3810, section 5).
    let (HOP_BY_HOP, Some(&[ICMP6, eights, ..])) = (header[6], packet.get(IPV6..)) else {
        return Some(data(group));
    };
    let start = IPV6 + (usize::from(eights) + 1) * 8;
    let Some(message) = packet.get(start..end) else { return Some(GroupMessage::Malformed) };
    let Some(kind @ (130..=132 | 143)) = message.first().copied() else { return Some(data(group)) };
    let sum =
        pseudo_header(header, IpVersion::V6, ICMP6, message.len() as u32).add_sum(words(message));
    if !sum.is_valid() || message.len() < 8 {
        return Some(GroupMessage::Malformed);
    }
    if kind == 143 {
        return Some(
            ReportRecords::new(IpVersion::V6, word(message, 6)?, &message[8..])
                .map_or(GroupMessage::Malformed, GroupMessage::Report),
        );
    }
    let Some(of) = message.get(8..24).and_then(ip) else { return Some(GroupMessage::Malformed) };
    Some(match kind {
        130 => query6(
            message,
            group,
            of,
            header,
            has_router_alert(packet.get(IPV6..start).unwrap_or(&[])),
        ),
        _ if !of.is_multicast() => GroupMessage::Malformed,
        _ if !is_reported(of) => GroupMessage::ForAll,
        131 => GroupMessage::Join(of),
        _ => GroupMessage::Leave(of),
    })
}

fn query6(
    message: &[u8],
    sent_to: IpAddr,
    of: IpAddr,
    header: &[u8],
    has_alert: bool,
) -> GroupMessage<'static> {
    let code = word(message, 4).unwrap_or(0);
    // Floating-point response code (RFC 3810, section 5.1.3).
    let milliseconds = match code {
        ..0x8000 => u64::from(code),
        _ => (u64::from(code & 0xfff) | 0x1000) << ((code >> 12 & 7) + 3),
    };
    let (response, sources) = match message.len() {
        24 => (u64::from(code), 0),
        28.. => (milliseconds, word(message, 26).unwrap_or(0)),
        _ => return GroupMessage::Malformed,
    };
    let Some(source) = ip(&header[8..24]) else { return GroupMessage::Malformed };
    // Hosts ignore messages that lack a link-local source, a hop limit of 1, or a router alert (RFC
    // 3810, section 6.2).
    let is_heeded = header[8] == 0xfe && header[9] & 0xc0 == 0x80 && header[7] == 1 && has_alert;
    if !is_heeded {
        return GroupMessage::Malformed;
    }
    let query_of = Query {
        version: IpVersion::V6,
        group: Some(of),
        response: Duration::from_millis(response),
        source: Some(source),
        is_v1: false,
    };
    query(query_of, sent_to, sources)
}

/// Returns whether a hop-by-hop header, from its next-header field on, has a router alert for MLD
/// (RFC 2711).
fn has_router_alert(header: &[u8]) -> bool {
    let mut options = header.get(2..).unwrap_or(&[]);
    loop {
        match *options {
            [5, 2, 0, 0, ..] => return true,
            // One-byte padding has no length field.
            [0, ref rest @ ..] => options = rest,
            [_, length, ref rest @ ..] => options = rest.get(usize::from(length)..).unwrap_or(&[]),
            _ => return false,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use superpacket::checksum::Sum;

    fn group4(text: &str) -> [u8; 4] {
        text.parse::<Ipv4Addr>().expect("an address").octets()
    }

    /// Returns an IPv4 packet with a router alert and correct checksums.
    pub(crate) fn packet4(
        protocol: u8,
        source: &str,
        destination: &str,
        message: &[u8],
    ) -> Vec<u8> {
        let mut message = message.to_vec();
        if protocol == IGMP {
            let sum = words(&message).checksum();
            message[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        let length = (24 + message.len() as u16).to_be_bytes();
        let mut header = [0x46, 0xc0, length[0], length[1], 0, 0, 0, 0, 1, protocol, 0, 0].to_vec();
        header.extend([group4(source), group4(destination), [0x94, 4, 0, 0]].concat());
        let sum = words(&header).checksum();
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        [header, message].concat()
    }

    /// Returns an IGMP message of 8 bytes.
    pub(crate) fn igmp(kind: u8, code: u8, group: &str) -> Vec<u8> {
        [&[kind, code, 0, 0][..], &group4(group)].concat()
    }

    /// Returns an IPv6 packet with a router alert and a correct message checksum.
    fn packet6(source: &str, destination: &str, message: &[u8]) -> Vec<u8> {
        let address = |text: &str| text.parse::<Ipv6Addr>().expect("an address").octets();
        let length = (8 + message.len() as u16).to_be_bytes();
        let mut packet = [
            &[0x60, 0, 0, 0, length[0], length[1], HOP_BY_HOP, 1][..],
            &address(source),
            &address(destination),
        ]
        .concat();
        let pseudo: Sum = pseudo_header(&packet, IpVersion::V6, ICMP6, message.len() as u32);
        packet.extend([ICMP6, 0, 5, 2, 0, 0, 1, 0]);
        let mut message = message.to_vec();
        let sum = pseudo.add_sum(words(&message)).checksum();
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        [packet, message].concat()
    }

    fn mld(kind: u8, code: u16, group: &str) -> Vec<u8> {
        [
            &[kind, 0, 0, 0][..],
            &code.to_be_bytes(),
            &[0, 0],
            &group.parse::<Ipv6Addr>().expect("an address").octets(),
        ]
        .concat()
    }

    fn group(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// Returns a record of an MLDv2 or IGMPv3 report.
    fn record(kind: u8, group: &[u8], sources: u16) -> Vec<u8> {
        let sources_bytes = vec![7; usize::from(sources) * group.len()];
        [&[kind, 1][..], &sources.to_be_bytes(), group, &sources_bytes, &[0; 4]].concat()
    }

    #[test]
    fn messages_of_igmp() {
        let heard = |destination: &str, message: &[u8]| {
            let packet = packet4(IGMP, "10.0.0.1", destination, message);
            assert!(is_message(&packet));
            // Compare values that do not borrow from the packet.
            match read(&packet) {
                GroupMessage::Report(_) => panic!("reports have a test of their own"),
                GroupMessage::ForGroup(group) => GroupMessage::ForGroup(group),
                GroupMessage::Query(query) => GroupMessage::Query(query),
                GroupMessage::Join(group) => GroupMessage::Join(group),
                GroupMessage::Leave(group) => GroupMessage::Leave(group),
                GroupMessage::Hello(version) => GroupMessage::Hello(version),
                GroupMessage::ForAll => GroupMessage::ForAll,
                GroupMessage::Malformed => GroupMessage::Malformed,
            }
        };
        let query = |group: Option<IpAddr>, milliseconds| {
            let (response, source) = (
                Duration::from_millis(milliseconds),
                Some("10.0.0.1".parse().expect("an address")),
            );
            GroupMessage::Query(Query {
                version: IpVersion::V4,
                group,
                response,
                source,
                is_v1: false,
            })
        };
        let of = Some(group("239.1.2.3"));
        for kind in [0x12, 0x16] {
            assert_eq!(
                heard("239.1.2.3", &igmp(kind, 0, "239.1.2.3")),
                GroupMessage::Join(group("239.1.2.3"))
            );
        }
        assert_eq!(
            heard("224.0.0.2", &igmp(0x17, 0, "239.1.2.3")),
            GroupMessage::Leave(group("239.1.2.3"))
        );
        assert_eq!(
            heard("224.0.0.251", &igmp(0x16, 0, "224.0.0.251")),
            GroupMessage::ForAll,
            "everybody is in it"
        );
        let GroupMessage::Query(first) = query(None, 10_000) else { panic!("a query") };
        assert_eq!(
            heard("224.0.0.1", &igmp(0x11, 0, "0.0.0.0")),
            GroupMessage::Query(Query { is_v1: true, ..first }),
            "version 1"
        );
        assert_eq!(heard("224.0.0.1", &igmp(0x11, 100, "0.0.0.0")), query(None, 10_000));
        assert_eq!(heard("239.1.2.3", &igmp(0x11, 10, "239.1.2.3")), query(of, 1_000));
        let third = |code: u8, group: &str, sources: u8| {
            [
                &igmp(0x11, code, group)[..],
                &[2, 125, 0, sources],
                &vec![7; 4 * usize::from(sources)],
            ]
            .concat()
        };
        assert_eq!(
            heard("224.0.0.1", &third(0x80, "0.0.0.0", 0)),
            query(None, 12_800),
            "(0x10 << 3) tenths"
        );
        assert_eq!(
            heard("239.1.2.3", &third(10, "239.1.2.3", 2)),
            GroupMessage::ForAll,
            "it asks for sources"
        );
        // Invalid messages.
        for (destination, message) in [
            ("239.1.2.3", igmp(0x16, 0, "10.0.0.1")),
            ("239.1.2.3", igmp(0x11, 10, "0.0.0.0")),
            ("239.9.9.9", igmp(0x11, 10, "239.1.2.3")),
            ("224.0.0.1", igmp(0x11, 10, "10.0.0.9")),
            ("224.0.0.1", [igmp(0x11, 10, "0.0.0.0"), vec![0; 2]].concat()),
            ("224.0.0.22", igmp(0x16, 0, "239.1.2.3")[..7].to_vec()),
        ] {
            assert_eq!(heard(destination, &message), GroupMessage::Malformed, "{message:?}");
        }
        // A message of an unknown type is forwarded by its destination.
        assert_eq!(
            heard("239.1.2.3", &igmp(0x30, 0, "239.1.2.3")),
            GroupMessage::ForGroup(group("239.1.2.3"))
        );
    }

    #[test]
    fn messages_of_mld() {
        let local = "fe80::1";
        let query = |group: Option<IpAddr>, milliseconds| {
            let (response, source) =
                (Duration::from_millis(milliseconds), Some(local.parse().expect("an address")));
            GroupMessage::Query(Query {
                version: IpVersion::V6,
                group,
                response,
                source,
                is_v1: false,
            })
        };
        let second = |code: u16, group: &str, sources: u8| {
            [&mld(130, code, group)[..], &[2, 125, 0, sources]].concat()
        };
        for (source, destination, message, expected) in [
            (local, "ff02::1", mld(130, 10_000, "::"), query(None, 10_000)),
            (local, "ff05::7", mld(130, 1_000, "ff05::7"), query(Some(group("ff05::7")), 1_000)),
            (local, "ff02::1", second(0x8001, "::", 0), query(None, 0x1001 << 3)),
            (local, "ff05::7", second(1_000, "ff05::7", 1), GroupMessage::ForAll),
            (local, "ff05::7", mld(131, 0, "ff05::7"), GroupMessage::Join(group("ff05::7"))),
            (local, "ff02::2", mld(132, 0, "ff05::7"), GroupMessage::Leave(group("ff05::7"))),
            (local, "ff02::1", mld(131, 0, "ff02::1"), GroupMessage::ForAll),
            ("2001:db8::1", "ff02::1", mld(130, 10_000, "::"), GroupMessage::Malformed),
            (local, "ff05::7", mld(130, 10_000, "::"), GroupMessage::Malformed),
            (local, "ff05::7", mld(131, 0, "2001:db8::1"), GroupMessage::Malformed),
            (local, "ff02::1", mld(130, 0, "::")[..20].to_vec(), GroupMessage::Malformed),
            (local, "ff05::8", mld(130, 1_000, "ff05::7"), GroupMessage::Malformed),
        ] {
            let packet = packet6(source, destination, &message);
            assert!(is_message(&packet));
            assert_eq!(read(&packet), expected, "{source} {destination} {message:?}");
        }
        // Hosts ignore a query with another hop limit, or without a router alert for MLD.
        let packet = packet6(local, "ff02::1", &mld(130, 10_000, "::"));
        assert!(matches!(read(&packet), GroupMessage::Query(_)));
        for (place, value) in [(7, 64), (42, 1), (45, 1)] {
            let mut ignored = packet.clone();
            ignored[place] = value;
            assert_eq!(read(&ignored), GroupMessage::Malformed, "{place}");
        }
        // Neighbour discovery has no router alert.
        let mut packet = packet6(local, "ff02::1:ff00:7", &mld(135, 0, "fe80::7"));
        assert_eq!(read(&packet), GroupMessage::ForGroup(group("ff02::1:ff00:7")));
        packet[6] = ICMP6;
        assert_eq!(read(&packet), GroupMessage::ForGroup(group("ff02::1:ff00:7")));
    }

    #[test]
    fn reports_list_joined_and_left_groups() {
        let of = |last: u8| [239, 1, 2, last];
        let records: Vec<Vec<u8>> = [
            (1, 0),
            (1, 2),
            (2, 0),
            (3, 0),
            (3, 1),
            (4, 0),
            (4, 3),
            (5, 1),
            (5, 0),
            (6, 1),
            (9, 0),
        ]
        .into_iter()
        .zip(1..)
        .map(|((kind, sources), last)| record(kind, &of(last), sources))
        .chain([record(4, &[224, 0, 0, 251], 0)])
        .collect();
        let message =
            [&[0x22, 0, 0, 0, 0, 0, 0, records.len() as u8][..], &records.concat()].concat();
        let packet = packet4(IGMP, "10.0.0.1", "224.0.0.22", &message);
        let GroupMessage::Report(heard) = read(&packet) else { panic!("a report") };
        let (join, leave) =
            (|last| GroupRecord::Join(of(last).into()), |last| GroupRecord::Leave(of(last).into()));
        let expected = [leave(1), join(2), join(3), leave(4), join(5), join(6), join(7), join(8)];
        assert_eq!(heard.collect::<Vec<_>>(), expected);
        // One more record, or source, than there are bytes for.
        let mut longer = message.clone();
        longer[7] += 1;
        assert_eq!(
            read(&packet4(IGMP, "10.0.0.1", "224.0.0.22", &longer)),
            GroupMessage::Malformed
        );
        assert_eq!(
            read(&packet4(IGMP, "10.0.0.1", "224.0.0.22", &message[..message.len() - 1])),
            GroupMessage::Malformed
        );
        let address = "ff05::7".parse::<Ipv6Addr>().expect("an address").octets();
        let message = [&[143, 0, 0, 0, 0, 0, 0, 1][..], &record(4, &address, 0)].concat();
        let packet = packet6("fe80::1", "ff02::16", &message);
        let GroupMessage::Report(heard) = read(&packet) else { panic!("a report") };
        assert_eq!(heard.collect::<Vec<_>>(), [GroupRecord::Join(address.into())]);
    }

    #[test]
    fn damaged_messages_are_rejected_without_panic() {
        for packet in [
            packet4(IGMP, "10.0.0.1", "239.1.2.3", &igmp(0x16, 0, "239.1.2.3")),
            packet6("fe80::1", "ff05::7", &mld(131, 0, "ff05::7")),
        ] {
            assert!(matches!(read(&packet), GroupMessage::Join(_)));
            for place in 0..packet.len() {
                assert!(!matches!(read(&packet[..place]), GroupMessage::Join(_)), "cut at {place}");
                for bit in 0..8 {
                    let mut damaged = packet.clone();
                    damaged[place] ^= 1 << bit;
                    // IPv6 has no header checksum that would reveal damage in its first words.
                    assert!(
                        place < 8 && packet[0] >> 4 == 6
                            || !matches!(read(&damaged), GroupMessage::Join(_))
                            || (40..48).contains(&place),
                        "{place}"
                    );
                }
            }
        }
        let mut fragment = packet4(IGMP, "10.0.0.1", "239.1.2.3", &igmp(0x16, 0, "239.1.2.3"));
        fragment[7] = 1;
        assert_eq!(read(&fragment), GroupMessage::ForGroup(group("239.1.2.3")));
    }

    #[test]
    fn hellos_are_recognized_and_data_is_no_message() {
        let pim =
            |destination: &str, kind: u8| packet4(PIM, "10.0.0.1", destination, &[kind, 0, 0, 0]);
        assert_eq!(read(&pim("224.0.0.13", 0x20)), GroupMessage::Hello(IpVersion::V4));
        assert_eq!(read(&pim("224.0.0.13", 0x23)), GroupMessage::ForAll);
        assert_eq!(read(&pim("239.1.2.3", 0x20)), GroupMessage::ForGroup(group("239.1.2.3")));
        let mut pim6 = packet6("fe80::1", "ff02::d", &[0; 8]);
        (pim6[6], pim6[40]) = (PIM, 0x20);
        assert_eq!(read(&pim6), GroupMessage::Hello(IpVersion::V6));
        for (destination, expected) in [
            ("239.1.2.3", GroupMessage::ForGroup(group("239.1.2.3"))),
            ("224.0.0.5", GroupMessage::ForAll),
            ("10.0.0.2", GroupMessage::ForAll),
        ] {
            let packet = packet4(17, "10.0.0.1", destination, &[0; 8]);
            assert_eq!((read(&packet), is_message(&packet)), (expected, false), "{destination}");
        }
        assert_eq!(
            (read(&[]), read(&[0x45]), read(&[0x60; 39])),
            (GroupMessage::ForAll, GroupMessage::ForAll, GroupMessage::ForAll)
        );
    }
}
