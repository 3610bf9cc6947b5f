//! `check` finds what is wrong, names it, and finds nothing wrong with what is right.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use superpacket::RxPacket;
use superpacket::aggregate::{BatchAggregator, HashKey, Policy};
use superpacket::virtio::{ByteOrder, Format, Framing, Header, flags, gso_type};
use superpacket::wire::Layer;
use superpacket_captures::{
    CheckOptions, CheckReport, CoalesceOptions, Input, LinkType, Output, Packets, SegmentOptions, Strictness, check, coalesce, segment,
};
use superpacket_traffic::frame::{ACK, CWR, Checksum, ECE, FIN, Frame, Ip, PSH, RST, Transport, stream_bytes, timestamps};
use superpacket_traffic::generate::{Config, Impairments, generate};
use tempfile::TempDir;

/// A packet that left, and its header.
type Left = (Frame, Header);

/// What an implementation was given, and what it made of it.
#[derive(Clone, Debug)]
struct Case {
    original: Vec<Frame>,
    left: Vec<Left>,
}

/// The header of a packet that is not to be cut.
fn plain() -> Header {
    Header { num_buffers: 1, ..Header::default() }
}

/// The packet that successive packets merge into, as the kernel has it.
fn merged(frames: &[Frame]) -> Left {
    let mut frame = frames[0].clone();
    frame.payload = frames.iter().flat_map(|frame| frame.payload.clone()).collect();
    let last = frames.last().expect("some");
    let version4 = matches!(frame.ip, Ip::V4(_));
    let kind = match (&mut frame.transport, &last.transport) {
        (Transport::Tcp(tcp), Transport::Tcp(last)) => {
            tcp.flags |= last.flags & (PSH | FIN);
            let ecn = if tcp.flags & CWR != 0 { gso_type::ECN } else { 0 };
            ecn | if version4 { gso_type::TCPV4 } else { gso_type::TCPV6 }
        }
        _ => gso_type::UDP_L4,
    };
    *frame.checksum_mut().expect("it has one") = Checksum::Partial;
    let (offsets, size) = (frame.offsets(), frames[0].payload.len());
    let header = Header {
        flags: flags::NEEDS_CSUM,
        gso_type: kind,
        gso_size: size as u16,
        hdr_len: offsets.payload as u16,
        csum_start: offsets.transport as u16,
        csum_offset: if kind == gso_type::UDP_L4 { 6 } else { 16 },
        num_buffers: 1,
        ..Header::default()
    };
    (frame, header)
}

impl Case {
    /// All packets in one.
    fn aggregation(frames: Vec<Frame>) -> Case {
        let left = vec![merged(&frames)];
        Case { original: frames, left }
    }

    /// Packets of which these merged, and the others left alone.
    fn with(original: Vec<Frame>, left: &[&[usize]]) -> Case {
        let left = left
            .iter()
            .map(|group| match group {
                [one] => (original[*one].clone(), plain()),
                group => merged(&group.iter().map(|&index| original[index].clone()).collect::<Vec<_>>()),
            })
            .collect();
        Case { original, left }
    }

    /// Checks the case: what left is a file of records.
    fn check(&self, rules: Strictness) -> CheckReport {
        let mut original = Packets::new();
        for frame in &self.original {
            original.push(LinkType::ETHERNET, Some(0), &frame.to_bytes()).expect("short");
        }
        let left: Vec<_> = self.left.iter().map(|(frame, header)| (frame.to_bytes(), *header)).collect();
        check_records(Format::Buffers, &left, Input::from(&original), rules)
    }

    fn rules(&self, rules: Strictness) -> BTreeSet<&'static str> {
        self.check(rules).by_rule.keys().map(|rule| rule.name()).collect()
    }

    /// The rules that are broken are these, and no other.
    #[track_caller]
    fn breaks(&self, expected: &[&str]) {
        let report = self.check(Strictness::Linux);
        let found: BTreeSet<_> = report.by_rule.keys().map(|rule| rule.name()).collect();
        assert_eq!(found, expected.iter().copied().collect(), "{:#?}", report.described);
        assert!(report.described.iter().all(|violation| !violation.field.is_empty() && !violation.found.is_empty()));
    }
}

/// Writes records, as a test in another language would.
fn records(path: &Path, format: Format, left: &[(Vec<u8>, Header)]) {
    let length = format.length();
    let mut file = format!("superpacket-records 1 ethernet {length}\n").into_bytes();
    for (packet, header) in left {
        let mut bytes = [0; Format::LONGEST];
        header.write(&mut bytes, format, ByteOrder::Little).expect("long enough");
        file.extend((length as u32 + packet.len() as u32).to_le_bytes());
        file.extend(&bytes[..length]);
        file.extend(packet);
    }
    std::fs::write(path, file).expect("writes");
}

fn check_records(format: Format, left: &[(Vec<u8>, Header)], original: Input<'_>, rules: Strictness) -> CheckReport {
    let folder: TempDir = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("left.records");
    records(&path, format, left);
    check(Input::Path(&path), original, &CheckOptions { rules, ..CheckOptions::default() }, &mut ()).expect("both can be read")
}

/// Packets of one flow, of which there are six kinds; the last of TCP has PSH.
fn flow(kind: u8, count: usize, size: usize) -> Vec<Frame> {
    let base = match kind % 6 {
        0 => Frame::tcp4(1000, size).with_id(7),
        1 => Frame::tcp6(u32::MAX - 500, size),
        2 => Frame::tcp4(1000, size).with_id(0xfffe).with_timestamps(9, 10),
        3 => Frame::tcp4(1000, size).with_id(7).tagged(12),
        4 => Frame::udp4(size).with_id(7),
        _ => Frame::udp6(size),
    };
    let mut frames = base.run(count);
    for (index, frame) in frames.iter_mut().enumerate().filter(|(_, frame)| matches!(frame.transport, Transport::Udp(_))) {
        frame.payload = stream_bytes(1 + (index * size) as u32, size);
    }
    if let Some(Transport::Tcp(tcp)) = frames.last_mut().map(|frame| &mut frame.transport) {
        tcp.flags |= PSH;
    }
    frames
}

fn is_tcp(case: &Case) -> bool {
    matches!(case.original[0].transport, Transport::Tcp(_))
}

fn is_v4(case: &Case) -> bool {
    matches!(case.original[0].ip, Ip::V4(_))
}

/// Edits a packet of the original.
type Edit = fn(&mut Frame);

/// One thing that is broken, and the rules that are to be found: `None`, where the packets have no
/// such thing.
type Damage = (&'static str, fn(&mut Case, usize) -> Option<&'static [&'static str]>);

/// Merges although a packet of the original is different.
fn differs(case: &mut Case, index: usize, edit: Edit, rules: &'static [&'static str]) -> Option<&'static [&'static str]> {
    edit(&mut case.original[index]);
    Some(rules)
}

const DAMAGES: &[Damage] = &[
    ("a byte of payload changed", |case, index| {
        let size = case.original[0].payload.len();
        case.left[0].0.payload[index * size + 3] ^= 1;
        Some(&["bytes"])
    }),
    ("a byte of payload dropped", |case, index| {
        let size = case.original[0].payload.len();
        case.left[0].0.payload.remove(index * size + 3);
        Some(&["bytes"])
    }),
    ("a byte of payload too many", |case, _| {
        case.left[0].0.payload.push(0x5a);
        Some(&["bytes"])
    }),
    ("two packets in another order", |case, index| {
        case.original.swap(index - 1, index);
        // Their identifications do not count up then, and the last has PSH.
        is_tcp(case).then_some(&["order"])
    }),
    ("a packet is lost", |case, _| {
        let following = case.original.last().expect("some").following();
        case.original.push(following);
        Some(&["lost"])
    }),
    ("a packet leaves twice", |case, _| {
        let again = case.left[0].clone();
        case.left.push(again);
        Some(&["invented"])
    }),
    ("gso_size is another", |case, _| {
        case.left[0].1.gso_size += 1;
        Some(&["gso-size"])
    }),
    ("gso_size is 0", |case, _| {
        case.left[0].1.gso_size = 0;
        Some(&["virtio-header"])
    }),
    ("gso_type is none", |case, _| {
        (case.left[0].1.gso_type, case.left[0].1.gso_size) = (0, 0);
        Some(&["gso-type"])
    }),
    ("gso_type is another's", |case, _| {
        case.left[0].1.gso_type = if is_tcp(case) { gso_type::UDP_L4 } else { gso_type::TCPV4 };
        Some(&["virtio-header"])
    }),
    ("csum_start is another", |case, _| {
        case.left[0].1.csum_start += 2;
        Some(&["virtio-header"])
    }),
    ("the partial checksum is another", |case, _| {
        *case.left[0].0.checksum_mut().expect("it has one") = Checksum::Raw(0x1234);
        Some(&["partial-checksum"])
    }),
    ("the partial checksum lacks the length", |case, _| {
        *case.left[0].0.checksum_mut().expect("it has one") = Checksum::PartialWithoutLength;
        Some(&["partial-checksum"])
    }),
    ("the whole checksum is wrong", |case, _| {
        case.left[0].1.flags = 0;
        *case.left[0].0.checksum_mut().expect("it has one") = Checksum::Wrong;
        is_tcp(case).then_some(&["checksum"])
    }),
    ("the header checksum is wrong", |case, _| {
        is_v4(case).then(|| case.left[0].0.ipv4_mut().checksum = Checksum::Wrong)?;
        Some(&["ip-checksum"])
    }),
    ("a packet with a wrong checksum merged", |case, index| {
        differs(case, index, |frame| *frame.checksum_mut().expect("it has one") = Checksum::Wrong, &["bad-checksum"])
    }),
    ("PSH in the middle", |case, index| {
        let middle = index + 1 < case.original.len();
        (is_tcp(case) && middle).then(|| differs(case, index, |frame| frame.tcp_mut().flags |= PSH, &["push-ends"]))?
    }),
    ("PSH of the last is gone", |case, _| {
        is_tcp(case).then(|| case.left[0].0.tcp_mut().flags &= !PSH)?;
        Some(&["flags"])
    }),
    ("ECE on one", |case, index| is_tcp(case).then(|| differs(case, index, |frame| frame.tcp_mut().flags |= ECE, &["flags"]))?),
    ("CWR on one behind the first", |case, index| {
        is_tcp(case).then(|| differs(case, index, |frame| frame.tcp_mut().flags |= CWR, &["cwr"]))?
    }),
    ("RST on one", |case, index| {
        is_tcp(case).then(|| differs(case, index, |frame| frame.tcp_mut().flags |= RST, &["flags", "control-flags"]))?
    }),
    ("another window", |case, index| is_tcp(case).then(|| differs(case, index, |frame| frame.tcp_mut().window += 1, &["window"]))?),
    ("another acknowledgement", |case, index| {
        is_tcp(case).then(|| differs(case, index, |frame| frame.tcp_mut().acknowledgement += 300, &["acknowledgement"]))?
    }),
    ("another urgent pointer", |case, index| {
        is_tcp(case).then(|| differs(case, index, |frame| frame.tcp_mut().urgent = 1, &["urgent"]))?
    }),
    ("options only on one", |case, index| {
        let options = |frame: &mut Frame| frame.tcp_mut().options = [timestamps(1, 2), vec![1, 1, 1, 1]].concat();
        is_tcp(case).then(|| differs(case, index, options, &["tcp-options"]))?
    }),
    ("another sequence number", |case, index| {
        is_tcp(case).then(|| differs(case, index, |frame| frame.tcp_mut().sequence ^= 0x10000, &["sequence"]))?
    }),
    ("another TTL", |case, index| {
        let edit = |frame: &mut Frame| match &mut frame.ip {
            Ip::V4(ip) => ip.ttl -= 1,
            Ip::V6(ip) => ip.hop_limit -= 1,
        };
        differs(case, index, edit, &["ttl"])
    }),
    ("CE on one", |case, index| {
        let edit = |frame: &mut Frame| match &mut frame.ip {
            Ip::V4(ip) => ip.tos |= 3,
            Ip::V6(ip) => ip.traffic_class |= 3,
        };
        differs(case, index, edit, &["traffic-class"])
    }),
    ("another flow label", |case, index| {
        (!is_v4(case)).then(|| differs(case, index, |frame| frame.ipv6_mut().flow_label += 1, &["flow-label"]))?
    }),
    ("another identification", |case, index| {
        is_v4(case).then(|| differs(case, index, |frame| frame.ipv4_mut().id ^= 0x0770, &["ip-id"]))?
    }),
    ("DF on one", |case, index| {
        is_v4(case).then(|| differs(case, index, |frame| frame.ipv4_mut().dont_fragment ^= true, &["dont-fragment"]))?
    }),
    ("IPv4 options on one", |case, index| {
        is_v4(case).then(|| differs(case, index, |frame| frame.ipv4_mut().options = vec![1; 4], &["never-merges", "ip-header"]))?
    }),
    ("padding behind one", |case, index| differs(case, index, |frame| frame.trailer = vec![0; 3], &["never-merges"])),
    ("another VLAN", |case, index| {
        let tagged = !case.original[0].vlans.is_empty();
        tagged.then(|| differs(case, index, |frame| frame.vlans[0].vid = 20, &["link-header"]))?
    }),
    ("another MAC address", |case, index| {
        differs(case, index, |frame| frame.link.as_mut().expect("Ethernet").source = [2, 0, 0, 0, 0, 9], &["link-header"])
    }),
    ("a longer packet behind a shorter", |case, index| {
        let frame = &mut case.original[index];
        frame.payload.extend([7; 5]);
        for behind in &mut case.original[index + 1..] {
            // What follows is in sequence again.
            if let Transport::Tcp(tcp) = &mut behind.transport {
                tcp.sequence = tcp.sequence.wrapping_add(5);
            }
        }
        case.left = vec![merged(&case.original)];
        Some(&["segment-sizes"])
    }),
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_damage_is_found_and_named(kind in 0u8..6, count in 3usize..12, size in 20usize..1200, place in 1usize..11) {
        let case = Case::aggregation(flow(kind, count, size));
        for rules in [Strictness::Linux, Strictness::Reversible] {
            prop_assert_eq!(case.rules(rules), BTreeSet::new(), "{:?}", case.check(rules).described);
        }
        let index = 1 + place % (count - 1);
        for (name, damage) in DAMAGES {
            let mut damaged = case.clone();
            let Some(expected) = damage(&mut damaged, index) else { continue };
            let report = damaged.check(Strictness::Linux);
            let found: BTreeSet<_> = report.by_rule.keys().map(|rule| rule.name()).collect();
            prop_assert_eq!(found, expected.iter().copied().collect(), "{} in packet {}: {:#?}", name, index, report.described);
        }
    }
}

#[test]
fn order_is_that_of_each_flow() {
    let flow = flow(0, 4, 100);
    // Whatever leaves by itself may leave later, as long as its flow does.
    Case::with(flow.clone(), &[&[0, 1], &[2, 3]]).breaks(&[]);
    Case::with(flow.clone(), &[&[2, 3], &[0, 1]]).breaks(&["order"]);
    Case::with(flow.clone(), &[&[0], &[2], &[1], &[3]]).breaks(&["order"]);
    let mut two = flow.clone();
    two.extend(flow.iter().map(|frame| frame.clone().with(|frame| frame.tcp_mut().source_port = 9)));
    Case::with(two.clone(), &[&[4, 5, 6, 7], &[0, 1, 2, 3]]).breaks(&[]);
    Case::with(two, &[&[4, 5], &[0, 1, 2, 3], &[7], &[6]]).breaks(&["order"]);
}

#[test]
fn what_linux_refuses_may_overtake_by_its_rules_alone() {
    for edit in [|frame: &mut Frame| frame.tcp_mut().checksum = Checksum::Wrong, |frame: &mut Frame| frame.ipv4_mut().options = vec![1; 4]]
    {
        let mut flow = flow(0, 4, 100);
        // Retransmitted, it is refused; the others are in sequence without it.
        let mut refused = flow[1].clone();
        edit(&mut refused);
        flow.insert(2, refused);
        let case = Case::with(flow, &[&[2], &[0, 1, 3, 4]]);
        case.breaks(&[]);
        assert_eq!(case.rules(Strictness::Reversible), ["refused-order"].into());
    }
}

/// A fragment, or what else has no known ports, may be of any flow between its addresses: it keeps
/// order with all of them, by the stricter rules.
#[test]
fn what_has_no_known_ports_keeps_order_with_its_address_pair() {
    type Make = fn() -> Frame;
    let tunnel: Make = || flow(4, 1, 100)[0].clone().in_vxlan4();
    // Frames of a flow, and one of the same pair that is no longer than its fragments are.
    for (name, of_flow, other) in [
        ("IPv4", (|| flow(0, 1, 100)[0].clone()) as Make, (|| Frame::tcp4(9000, 100).with_id(1)) as Make),
        ("IPv6", || flow(1, 1, 100)[0].clone(), || Frame::tcp6(9000, 100)),
        ("UDP", || flow(4, 1, 100)[0].clone(), || Frame::udp4(100).with_id(1)),
        ("tagged", || flow(3, 1, 100)[0].clone(), || Frame::tcp4(9000, 100).with_id(1).tagged(12)),
        ("in a tunnel", tunnel, || Frame::udp4(100).with_id(1).in_vxlan4()),
    ] {
        let of_flow = of_flow();
        let fragments = other().fragments(64, 99);
        assert!(fragments.len() > 1, "{name}");
        let original = || vec![of_flow.clone(), fragments[0].clone(), fragments[1].clone()];
        let held = Case::with(original(), &[&[0], &[1], &[2]]);
        assert_eq!(held.rules(Strictness::Reversible), BTreeSet::new(), "{name}");
        for left in [&[&[1][..], &[2], &[0]][..], &[&[1], &[0], &[2]]] {
            let case = Case::with(original(), left);
            case.breaks(&[]);
            let report = case.check(Strictness::Reversible);
            assert_eq!(report.violations, 1, "{name}: {:#?}", report.described);
            let violation = &report.described[0];
            assert_eq!((violation.rule.name(), violation.field.as_str(), violation.origin), ("pair-order", "order", Some(1)), "{name}");
            let place = left.iter().position(|group| group[0] == 0).expect("it left") as u64;
            assert_eq!(violation.packet, Some(place + 1), "{name}");
            let by = format!("packet {place}, which is packet {} of the original and of the same addresses, left before it", place + 1);
            assert_eq!(violation.found, by, "{name}");
        }
        // The other way round: the flow's packet came last.
        let case = Case::with(vec![fragments[0].clone(), fragments[1].clone(), of_flow.clone()], &[&[0], &[2], &[1]]);
        case.breaks(&[]);
        assert_eq!(case.rules(Strictness::Reversible), ["pair-order"].into(), "{name}");
        assert_eq!(case.check(Strictness::Reversible).described[0].origin, Some(2), "{name}");
    }
    // The packets that it overtakes are in a merged one.
    let mut merged = flow(0, 4, 100);
    merged.push(Frame::tcp4(9000, 100).with_id(1).fragments(64, 99)[1].clone());
    let late = Case::with(merged.clone(), &[&[4], &[0, 1, 2, 3]]);
    late.breaks(&[]);
    assert_eq!(late.rules(Strictness::Reversible), ["pair-order"].into());
    assert_eq!(late.check(Strictness::Reversible).violations, 1);
    assert_eq!(Case::with(merged, &[&[0, 1, 2, 3], &[4]]).rules(Strictness::Reversible), BTreeSet::new());
}

/// What cannot be of the flow may leave before what is held of it.
#[test]
fn what_is_of_other_addresses_keeps_no_order() {
    let of_flow = flow(0, 1, 100)[0].clone();
    let others: [(&str, Edit); 5] = [
        ("other addresses", |frame| frame.ipv4_mut().source = [10, 9, 9, 9]),
        ("the other direction", |frame| {
            let ip = frame.ipv4_mut();
            (ip.source, ip.destination) = (ip.destination, ip.source);
        }),
        ("another MAC address", |frame| frame.link.as_mut().expect("Ethernet").source = [2, 0, 0, 0, 0, 9]),
        ("another VLAN", |frame| *frame = frame.clone().tagged(30)),
        ("of UDP", |frame| *frame = Frame::udp4(100).with_id(1).fragments(64, 99)[1].clone()),
    ];
    for (name, edit) in others {
        let mut fragment = Frame::tcp4(9000, 100).with_id(1).fragments(64, 99)[1].clone();
        edit(&mut fragment);
        let case = Case::with(vec![of_flow.clone(), fragment], &[&[1], &[0]]);
        assert_eq!(case.rules(Strictness::Reversible), BTreeSet::new(), "{name}: {:?}", case.check(Strictness::Reversible).described);
    }
    // A protocol without ports is of no flow.
    let ping = of_flow.clone().with(|frame| frame.transport = Transport::Raw(1));
    assert_eq!(Case::with(vec![of_flow.clone(), ping], &[&[1], &[0]]).rules(Strictness::Reversible), BTreeSet::new());
    // A truncated header is of some flow.
    let stub = of_flow.clone().with(|frame| (frame.transport, frame.payload) = (Transport::Raw(6), vec![1, 2, 3, 4, 5, 6, 7, 8]));
    assert_eq!(Case::with(vec![of_flow, stub], &[&[1], &[0]]).rules(Strictness::Reversible), ["pair-order"].into());
}

/// Packets in memory, each with its link type.
fn mixed<'a>(packets: impl IntoIterator<Item = (LinkType, &'a Frame)>) -> Packets {
    let mut all = Packets::new();
    for (link_type, frame) in packets {
        all.push(link_type, Some(0), &frame.to_bytes()).expect("short");
    }
    all
}

fn ping() -> Frame {
    Frame::udp4(50).at_ip().with(|frame| frame.transport = Transport::Raw(1))
}

/// The same packet, from another MAC address.
fn twin(frame: &Frame) -> Frame {
    frame.clone().with(|frame| frame.link.as_mut().expect("Ethernet").source = [2, 0, 0, 0, 0, 9])
}

fn stricter() -> CheckOptions {
    CheckOptions { rules: Strictness::Reversible, ..CheckOptions::default() }
}

/// A file that mixes Ethernet frames and IP packets is compared with its link headers, whatever it
/// begins with: without them, the packets of two flows would be taken for each other.
#[test]
fn files_that_mix_link_types_and_begin_with_different_ones_are_compared_whole() {
    use LinkType as Link;
    let run = flow(1, 2, 100);
    let other = twin(&run[0]);
    let ping = ping();
    let original = mixed([(Link::ETHERNET, &run[0]), (Link::ETHERNET, &run[1]), (Link::ETHERNET, &other), (Link::RAW, &ping)]);
    let left = mixed([(Link::RAW, &ping), (Link::ETHERNET, &other), (Link::ETHERNET, &merged(&run).0)]);
    let report = check(Input::from(&left), Input::from(&original), &stricter(), &mut ()).expect("both");
    assert_eq!(report.violations, 0, "{:#?}", report.described);
    assert!(!report.not_judged.link_headers && report.merged == 1, "{report:#?}");
    // Its link header is judged.
    let left = mixed([(Link::RAW, &ping), (Link::ETHERNET, &other), (Link::ETHERNET, &twin(&merged(&run).0))]);
    let report = check(Input::from(&left), Input::from(&original), &stricter(), &mut ()).expect("both");
    assert!(report.violations > 0);
}

/// A packet that is not understood says nothing of what a file begins with.
#[test]
fn a_packet_that_is_not_ip_says_nothing_of_link_headers() {
    let cooked = |protocol: u16, data: &[u8]| [&[0; 14], &protocol.to_be_bytes()[..], data].concat();
    let [first, second] = [1, 2].map(|number| cooked(0x0800, &Frame::tcp4(number, 100).at_ip().to_bytes()));
    let arp = cooked(0x0806, &[7; 28]);
    let packets = |all: &[&[u8]]| {
        let mut packets = Packets::new();
        all.iter().for_each(|data| packets.push(LinkType::LINUX_SLL, Some(0), data).expect("short"));
        packets
    };
    let (original, left) = (packets(&[&first, &arp, &second]), packets(&[&arp, &first, &second]));
    let report = check(Input::from(&left), Input::from(&original), &stricter(), &mut ()).expect("both");
    assert_eq!(report.violations, 0, "{:#?}", report.described);
    assert!(!report.not_judged.link_headers);
}

/// Where the one file has nothing that begins as the other does, link headers are left out.
#[test]
fn link_headers_are_left_out_where_only_one_file_mixes_them() {
    let (frame, ping) = (Frame::udp4(100), ping());
    let original = mixed([(LinkType::ETHERNET, &frame), (LinkType::RAW, &ping)]);
    let left = mixed([(LinkType::RAW, &frame.clone().at_ip()), (LinkType::RAW, &ping)]);
    let report = check(Input::from(&left), Input::from(&original), &stricter(), &mut ()).expect("both");
    assert_eq!(report.violations, 0, "{:#?}", report.described);
    assert!(report.not_judged.link_headers);
}

#[test]
fn files_that_mix_link_types_too_late_are_refused() {
    let frames: Vec<_> = (0..4096).map(|number| Frame::tcp4(number * 10, 10)).collect();
    let ping = ping();
    let ethernet = || frames.iter().map(|frame| (LinkType::ETHERNET, frame));
    let original = mixed(ethernet().chain([(LinkType::RAW, &ping)]));
    let left = mixed([(LinkType::RAW, &ping)].into_iter().chain(ethernet()));
    let refused = check(Input::from(&left), Input::from(&original), &stricter(), &mut ()).expect_err("too late").to_string();
    for words in ["begins with packets that have an IP header, and packet 2 has an Ethernet header", "and packet 4097 has an IP header"] {
        assert!(refused.contains(words), "{refused}");
    }
    // One less is seen in time.
    let original = mixed(ethernet().skip(1).chain([(LinkType::RAW, &ping)]));
    let left = mixed([(LinkType::RAW, &ping)].into_iter().chain(ethernet().skip(1)));
    let report = check(Input::from(&left), Input::from(&original), &CheckOptions::default(), &mut ()).expect("in time");
    assert_eq!((report.violations, report.not_judged.link_headers), (0, false), "{:#?}", report.described);
}

/// Packets of different MAC addresses keep no order, also where link headers are left out of what
/// is compared.
#[test]
fn link_headers_that_are_left_out_tell_flows_apart() {
    let run = flow(1, 3, 100);
    let original = mixed([&run[0], &run[1], &twin(&run[2])].map(|frame| (LinkType::ETHERNET, frame)));
    let left: Vec<_> = [&run[2], &run[0], &run[1]].map(|frame| frame.clone().at_ip()).into();
    let left = mixed(left.iter().map(|frame| (LinkType::RAW, frame)));
    let report = check(Input::from(&left), Input::from(&original), &stricter(), &mut ()).expect("both");
    assert!(report.not_judged.link_headers);
    assert_eq!(report.violations, 0, "{:#?}", report.described);
}

/// Of datagrams with the same payload, one that is of another flow is not taken for that which
/// merged, although it came first.
#[test]
fn a_packet_of_another_flow_is_not_taken_for_one_that_comes_later() {
    let run = flow(4, 3, 100);
    let twin = run[2].clone().with(|frame| frame.link.as_mut().expect("Ethernet").source = [2, 0, 0, 0, 0, 9]);
    let original = vec![twin, run[0].clone(), run[1].clone(), run[2].clone()];
    let case = Case::with(original, &[&[1, 2, 3], &[0]]);
    assert_eq!(case.rules(Strictness::Reversible), BTreeSet::new(), "{:#?}", case.check(Strictness::Reversible).described);
}

/// A capture on both ports of a bridge has each packet twice, and packets of different interfaces
/// neither merge nor keep order.
#[test]
fn each_interface_has_flows_of_its_own() {
    use superpacket_io::capture::{
        ByteOrder as Order, Compression, Container, FrameOptions, Interface, OutputFormat, Record, Sink, TimeResolution, Timestamp, Writer,
    };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("both.pcapng");
    let format = OutputFormat { container: Container::PcapNg, byte_order: Order::Little, resolution: None, compression: Compression::None };
    let mut writer = Writer::create(&path, format).expect("creates");
    let interface = Interface::new(LinkType::ETHERNET, TimeResolution::NANOSECONDS);
    writer.declare(&[interface.clone(), interface]).expect("declares");
    let fragment = Frame::tcp4(9000, 100).with_id(1).fragments(64, 99)[1].clone();
    for (number, frame) in flow(0, 8, 100).into_iter().chain([fragment]).enumerate() {
        // The fragment comes at the first alone, and so before what is held of the second.
        for interface in if number < 8 { 0..2 } else { 0..1 } {
            let record = Record {
                interface,
                time: Some(Timestamp::from_nanoseconds(number as u64)),
                original_length: None,
                options: FrameOptions::NONE,
            };
            writer.write(record, [&frame.to_bytes()[..]]).expect("writes");
        }
    }
    writer.finish().expect("finishes");
    let mut merged = Packets::new();
    coalesce(Input::Path(&path), Output::Packets(&mut merged), &CoalesceOptions::default(), &mut ()).expect("a capture");
    for rules in [Strictness::Linux, Strictness::Reversible] {
        let options = CheckOptions { rules, ..CheckOptions::default() };
        let report = check(Input::from(&merged), Input::Path(&path), &options, &mut ()).expect("both");
        assert_eq!(report.violations, 0, "{:#?}", report.described);
        assert!(report.merged > 4);
    }
}

#[test]
fn what_a_header_cannot_say_is_not_reversible() {
    let same_ids: Vec<_> = flow(0, 4, 100).into_iter().map(|frame| frame.with_id(9)).collect();
    let case = Case::aggregation(same_ids.clone());
    case.breaks(&[]);
    assert_eq!(case.rules(Strictness::Reversible), ["ip-id-fixed"].into());
    // Once the identifications count, they go on counting.
    let mut mixed = same_ids;
    mixed[2] = mixed[2].clone().with_id(10);
    Case::aggregation(mixed).breaks(&["ip-id"]);
    let cwr: Vec<_> = flow(0, 3, 100).into_iter().map(|frame| frame.with(|frame| frame.tcp_mut().flags |= CWR)).collect();
    let mut case = Case::aggregation(cwr);
    case.breaks(&[]);
    assert_eq!(case.rules(Strictness::Reversible), ["cwr-on-all"].into());
    case.left[0].1.gso_type &= !gso_type::ECN;
    case.breaks(&["gso-ecn"]);
    let mut case = Case::aggregation(flow(0, 3, 100));
    case.left[0].1.hdr_len = 0;
    case.breaks(&[]);
    assert_eq!(case.rules(Strictness::Reversible), ["header-length"].into());
}

#[test]
fn a_single_packet_leaves_as_it_came() {
    for (edit, rule) in [
        ((|frame: &mut Frame| frame.ipv4_mut().ttl -= 1) as Edit, "ttl"),
        (|frame| frame.tcp_mut().window = 9, "window"),
        (|frame| frame.ipv4_mut().id = 77, "ip-id"),
        (|frame| frame.tcp_mut().checksum = Checksum::Wrong, "checksum"),
        (|frame| frame.ipv4_mut().checksum = Checksum::Wrong, "ip-checksum"),
        (|frame| frame.payload[50] ^= 1, "bytes"),
        (|frame| frame.trailer = vec![0; 6], "length"),
        (|frame| frame.tcp_mut().flags = ACK | FIN, "flags"),
    ] {
        let mut case = Case::with(flow(0, 2, 100), &[&[0], &[1]]);
        edit(&mut case.left[1].0);
        case.left[1].0.tcp_mut().flags &= !PSH;
        case.original[1].tcp_mut().flags &= !PSH;
        case.breaks(&[rule]);
    }
    // One with a wrong checksum leaves so.
    let mut case = Case::with(vec![flow(0, 1, 100)[0].clone().with(|frame| frame.tcp_mut().checksum = Checksum::Wrong)], &[&[0]]);
    case.breaks(&[]);
    case.left[0].0.tcp_mut().checksum = Checksum::Right;
    case.breaks(&["bad-checksum"]);
    // A checksum that is left to the device is no other.
    let mut case = Case::with(flow(0, 1, 100), &[&[0]]);
    let (frame, header) = merged(&case.original);
    case.left = vec![(frame, Header { gso_type: 0, gso_size: 0, ..header })];
    case.breaks(&[]);
}

/// Bugs that peers were seen to have, each with what names it.
#[test]
fn known_bugs_of_peers_are_found() {
    let plain_flow = || flow(0, 3, 100);
    let edited = |index: usize, edit: Edit| {
        let mut flow = plain_flow();
        edit(&mut flow[index]);
        flow
    };
    // DPDK: tags, CE marks, TTLs, wrong checksums and options are not compared; a RST and PSH leave
    // in another order; unequal sizes merge with segment size 0; the header checksum is left wrong.
    let tagged: Vec<_> = flow(3, 2, 100);
    let mut vlans = tagged.clone();
    vlans[1].vlans[0].vid = 20;
    Case::aggregation(vlans).breaks(&["link-header"]);
    Case::aggregation(edited(1, |frame| frame.ipv4_mut().tos |= 3)).breaks(&["traffic-class"]);
    Case::aggregation(edited(1, |frame| frame.ipv4_mut().ttl -= 1)).breaks(&["ttl"]);
    Case::aggregation(edited(1, |frame| frame.ipv4_mut().checksum = Checksum::Wrong)).breaks(&["bad-checksum"]);
    Case::aggregation(edited(1, |frame| frame.ipv4_mut().options = vec![1; 4])).breaks(&["ip-header", "never-merges"]);
    let mut reset = plain_flow();
    reset.push(reset[2].following().with(|frame| (frame.tcp_mut().flags, frame.payload) = (ACK | RST, Vec::new())));
    Case::with(reset, &[&[3], &[0, 1, 2]]).breaks(&["order"]);
    let mut pushed = flow(0, 4, 100);
    pushed[1].tcp_mut().flags |= PSH;
    Case::with(pushed, &[&[0], &[2, 3], &[1]]).breaks(&["order"]);
    let mut unequal = Case::aggregation(edited(2, |frame| frame.payload.extend([1; 20])));
    unequal.left[0].1.gso_size = 0;
    unequal.breaks(&["segment-sizes", "virtio-header"]);
    let mut wrong = Case::aggregation(plain_flow());
    wrong.left[0].0.ipv4_mut().checksum = Checksum::Wrong;
    wrong.breaks(&["ip-checksum"]);
    // VPP: options and windows are not compared; a pure ACK leaves before what is held.
    Case::aggregation(edited(1, |frame| frame.tcp_mut().window += 1)).breaks(&["window"]);
    let mut timed = flow(2, 3, 100);
    timed[1].tcp_mut().options = timestamps(10, 10);
    Case::aggregation(timed).breaks(&["tcp-options"]);
    let mut acknowledged = plain_flow();
    acknowledged.push(acknowledged[2].following().with(|frame| frame.payload.clear()));
    Case::with(acknowledged, &[&[3], &[0, 1, 2]]).breaks(&["order"]);
    // gVisor: the padding of a pure ACK becomes data of the stream.
    let mut padded = flow(0, 1, 0);
    padded[0].trailer = vec![0; 6];
    padded.push(padded[0].following().with(|frame| (frame.payload, frame.trailer) = (vec![7; 100], Vec::new())));
    let mut case = Case::with(padded, &[&[0], &[1]]);
    case.left.truncate(1);
    case.left[0].0.trailer.clear();
    case.left[0].0.payload = [vec![0; 6], vec![7; 100]].concat();
    assert!(case.rules(Strictness::Linux).contains("lost"), "{:?}", case.rules(Strictness::Linux));
    // wireguard-go: identifications are not compared; a later segment jumps ahead.
    Case::aggregation(edited(1, |frame| frame.ipv4_mut().id = 4711)).breaks(&["ip-id"]);
    let mut jumps = flow(0, 5, 100);
    jumps[2].tcp_mut().window += 1;
    Case::with(jumps, &[&[0, 1], &[3, 4], &[2]]).breaks(&["order"]);
    // tun-rs: flow labels are not compared.
    let mut labelled = flow(1, 3, 100);
    labelled[1].ipv6_mut().flow_label += 1;
    Case::aggregation(labelled).breaks(&["flow-label"]);
    // inet_lro: the newest acknowledgement and window win, PSH is gone.
    let mut newest = Case::aggregation(plain_flow());
    newest.original[0].tcp_mut().acknowledgement += 5;
    newest.original[0].tcp_mut().window += 5;
    newest.left[0].0.tcp_mut().flags &= !PSH;
    newest.breaks(&["acknowledgement", "flags", "window"]);
    // quinn-udp: a batch is lost.
    let mut batch = Case::with(flow(4, 4, 100), &[&[0, 1], &[2, 3]]);
    batch.left.pop();
    batch.breaks(&["lost"]);
    assert_eq!(batch.check(Strictness::Linux).violations, 2);
}

/// A super-packet with its header, and what it was cut into.
fn check_cut(whole: Left, cut: &[Frame]) -> BTreeSet<&'static str> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sent.records");
    records(&path, Format::Buffers, &[(whole.0.to_bytes(), whole.1)]);
    let mut left = Packets::new();
    for frame in cut {
        left.push(LinkType::ETHERNET, None, &frame.to_bytes()).expect("short");
    }
    let report = check(Input::from(&left), Input::Path(&path), &CheckOptions::default(), &mut ()).expect("both");
    assert_eq!(report.packets_in, 1);
    report.by_rule.keys().map(|rule| rule.name()).collect()
}

#[test]
fn segments_are_those_that_the_kernel_would_cut() {
    let edited = |kind: u8, edit: fn(usize, &mut Frame)| {
        let mut cut = flow(kind, 4, 100);
        cut.iter_mut().enumerate().for_each(|(index, frame)| edit(index, frame));
        check_cut(merged(&flow(kind, 4, 100)), &cut)
    };
    for kind in 0..6 {
        assert_eq!(edited(kind, |_, _| {}), BTreeSet::new(), "{kind}");
    }
    // DPDK, OVS and wireguard-go: CWR on every segment.
    let cwr = |cut: &[Frame]| {
        let first = flow(0, 4, 100).into_iter().enumerate().map(|(index, mut frame)| {
            frame.tcp_mut().flags |= if index == 0 { CWR } else { 0 };
            frame
        });
        check_cut(merged(&first.collect::<Vec<_>>()), cut)
    };
    let repeated: Vec<_> = flow(0, 4, 100).into_iter().map(|frame| frame.with(|frame| frame.tcp_mut().flags |= CWR)).collect();
    assert_eq!(cwr(&repeated), ["cwr"].into());
    // VPP: every segment has the same identification.
    assert_eq!(edited(0, |_, frame| frame.ipv4_mut().id = 7), ["ip-id"].into());
    assert_eq!(edited(0, |_, frame| frame.tcp_mut().flags |= PSH), ["flags"].into());
    assert_eq!(edited(0, |index, frame| frame.tcp_mut().sequence -= index as u32), ["sequence"].into());
    assert_eq!(edited(0, |_, frame| frame.tcp_mut().checksum = Checksum::Wrong), ["checksum"].into());
    assert_eq!(edited(1, |_, frame| frame.ipv6_mut().hop_limit = 1), ["ttl"].into());
    assert_eq!(edited(4, |_, frame| frame.payload[60] ^= 1), ["bytes"].into());
    let lost: Vec<_> = flow(0, 4, 100).into_iter().take(3).collect();
    assert_eq!(check_cut(merged(&flow(0, 4, 100)), &lost), ["lost"].into());
    let other_sizes = flow(0, 8, 50);
    assert!(check_cut(merged(&flow(0, 4, 100)), &other_sizes).contains("bytes"));
    // wireguard-go: a computed UDP checksum of 0 is not sent as 0xFFFF.
    let zero: Vec<_> = flow(5, 2, 100).into_iter().map(Frame::with_zero_checksum).collect();
    let without = |frame: &Frame| frame.clone().with(|frame| frame.udp_mut().checksum = Checksum::Raw(0));
    let whole = merged(&zero);
    assert_eq!(check_cut(whole.clone(), &zero), BTreeSet::new());
    assert_eq!(check_cut(whole, &zero.iter().map(without).collect::<Vec<_>>()), ["udp-zero"].into());
}

/// Super-packets of so many frames each, and what is left, with their headers.
fn sent_together(frames: &[Frame], counts: &[usize]) -> Vec<Left> {
    let mut rest = frames;
    let mut sent = Vec::new();
    for &count in counts {
        let (together, others) = rest.split_at(count);
        sent.push(if count == 1 { (together[0].clone(), plain()) } else { merged(together) });
        rest = others;
    }
    sent
}

/// What was received as super-packets and merged further, both ways: what merged is faithful to
/// what came, and to the frames that it stands for; of the wrong merge that is not true.
#[test]
fn super_packets_that_merge_further_are_judged_by_their_segments() {
    let framing = Framing::new(Format::Buffers, ByteOrder::Little, Layer::Ethernet);
    for kind in 0..6 {
        let frames = flow(kind, 24, 100);
        let came = sent_together(&frames, &[8, 8, 8]);
        let received: Vec<_> = came
            .iter()
            .map(|(frame, header)| {
                let bytes = frame.to_bytes();
                let offload = header.offload(framing.format, &bytes, bytes.len(), Layer::Ethernet).expect("valid");
                let mut packet = RxPacket::new(bytes).with_checksum(offload.checksum);
                packet.gso = offload.gso;
                packet
            })
            .collect();
        let mut left = Vec::new();
        BatchAggregator::framed(framing, Policy::gro_with_udp(), HashKey::new(5)).poll_gathered(&received, |slices| {
            let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
            let header = Header::read(&bytes, framing.format, framing.order).expect("12 bytes");
            left.push((bytes[framing.header_length()..].to_vec(), header));
        });
        assert_eq!(left.len(), 1, "{kind}");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("came.records");
        let came: Vec<_> = came.iter().map(|(frame, header)| (frame.to_bytes(), *header)).collect();
        records(&path, framing.format, &came);
        let mut single = Packets::new();
        for frame in &frames {
            single.push(LinkType::ETHERNET, None, &frame.to_bytes()).expect("short");
        }
        for rules in [Strictness::Linux, Strictness::Reversible] {
            let report = check_records(framing.format, &left, Input::Path(&path), rules);
            assert_eq!((report.violations, report.packets_in, report.super_packets), (0, 3, 1), "{kind}: {:#?}", report.described);
            let report = check_records(framing.format, &left, Input::from(&single), rules);
            assert_eq!((report.violations, report.packets_in), (0, 24), "{kind}: {:#?}", report.described);
        }
        // The last but one is left out of the middle.
        let wrong = sent_together(&[&frames[..8], &frames[16..]].concat(), &[16]);
        let wrong: Vec<_> = wrong.iter().map(|(frame, header)| (frame.to_bytes(), *header)).collect();
        assert!(check_records(framing.format, &wrong, Input::Path(&path), Strictness::Linux).violations > 0, "{kind}");
    }
}

/// What the engine makes of packets, for a device with headers.
fn by_the_engine(original: &Packets) -> Vec<(Vec<u8>, Header)> {
    let framing = Framing::new(Format::Tunnel, ByteOrder::Little, Layer::Ethernet);
    let mut left = Vec::new();
    let mut aggregator = BatchAggregator::framed(framing, Policy::gro_with_udp(), HashKey::new(5));
    let packets: Vec<_> = original.iter().map(|frame| frame.data.to_vec()).collect();
    for batch in packets.chunks(64) {
        aggregator.poll_gathered(batch, |slices| {
            let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
            let header = Header::read(&bytes, framing.format, framing.order).expect("24 bytes");
            left.push((bytes[framing.header_length()..].to_vec(), header));
        });
    }
    left
}

fn captures() -> Vec<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = vec![here.join("../../captures/demo.pcap.gz")];
    let root = here.join("../../../shared/captures");
    if root.is_dir() {
        for folder in std::fs::read_dir(&root).expect("lists").map(|folder| folder.expect("lists").path()).filter(|path| path.is_dir()) {
            files.extend(std::fs::read_dir(folder).expect("lists").map(|file| file.expect("lists").path()));
        }
    } else {
        assert!(std::env::var_os("SUPERPACKET_REQUIRE_CAPTURES").is_none(), "{} is missing", root.display());
        eprintln!("skipped: {} is missing", root.display());
    }
    files.sort();
    files
}

/// The packets of a capture in memory, if it can be read and is of Ethernet frames that are whole.
fn ethernet(path: &Path) -> Option<Packets> {
    use superpacket_captures::Reader;
    use superpacket_io::capture::Source;
    let mut reader = Reader::open(path).ok()?;
    let mut packets = Packets::new();
    while let Ok(Some(frame)) = reader.next_frame() {
        if frame.link_type() != LinkType::ETHERNET || frame.is_truncated() {
            return None;
        }
        packets.push(frame.link_type(), None, frame.data).ok()?;
    }
    Some(packets)
}

#[test]
fn the_engines_own_work_is_faithful_over_all_captures() {
    let (mut super_packets, mut segments, mut with_headers) = (0, 0, 0);
    for path in captures() {
        let (mut merged, mut cut) = (Packets::new(), Packets::new());
        if coalesce(Input::Path(&path), Output::Packets(&mut merged), &CoalesceOptions::default(), &mut ()).is_err() {
            continue;
        }
        for rules in [Strictness::Linux, Strictness::Reversible] {
            let options = CheckOptions { rules, ..CheckOptions::default() };
            let report = check(Input::from(&merged), Input::Path(&path), &options, &mut ()).expect("both");
            assert_eq!(report.violations, 0, "{}: {:#?}", path.display(), report.described);
            assert_eq!(report.not_judged.headers, report.super_packets);
            super_packets += report.super_packets;
        }
        segment(Input::from(&merged), Output::Packets(&mut cut), &SegmentOptions::default(), &mut ()).expect("packets");
        let report = check(Input::from(&cut), Input::from(&merged), &CheckOptions::default(), &mut ()).expect("both");
        assert_eq!(report.violations, 0, "{}: {:#?}", path.display(), report.described);
        segments += report.segments;
        if let Some(original) = ethernet(&path) {
            let left = by_the_engine(&original);
            let report = check_records(Format::Tunnel, &left, Input::from(&original), Strictness::Linux);
            assert_eq!(report.violations, 0, "{}: {:#?}", path.display(), report.described);
            with_headers += report.super_packets - report.not_judged.headers;
        }
    }
    assert!(super_packets >= 56 && segments >= 100 && with_headers >= 28, "{super_packets} {segments} {with_headers}");
}

#[test]
fn lro_is_found_out() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/demo.pcap.gz");
    let mut merged = Packets::new();
    let options = CoalesceOptions { rules: superpacket_captures::Rules::Lro, acks: true, ..CoalesceOptions::default() };
    coalesce(Input::Path(&path), Output::Packets(&mut merged), &options, &mut ()).expect("a capture");
    let report = check(Input::from(&merged), Input::Path(&path), &CheckOptions::default(), &mut ()).expect("both");
    let rules: BTreeSet<_> = report.by_rule.keys().map(|rule| rule.name()).collect();
    assert!(rules.contains("lost") && rules.len() > 1, "{rules:?}");
    assert_eq!(report.described.len(), 10, "one screen");
}

#[test]
fn the_manual_has_every_rule() {
    let manual = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/check.md")).expect("it is there");
    let (linux, stricter) = manual.split_once("By `--rules reversible`").expect("two tables");
    for rule in superpacket_captures::Rule::ALL {
        let row = format!("| `{}` | {} |", rule.name(), rule.sentence());
        let table = if rule.strictness() == Strictness::Linux { linux } else { stricter };
        assert!(table.contains(&row), "{row}");
    }
}

/// Nothing of one file is in the other, all of one flow: that takes no longer than its size
/// demands.
#[test]
fn files_of_which_nothing_fits_are_compared_in_bounded_time() {
    let (mut left, mut original) = (Packets::new(), Packets::new());
    let mut frame = Frame::tcp4(0, 200);
    for number in 0..40_000u32 {
        frame.tcp_mut().sequence = number * 200;
        original.push(LinkType::ETHERNET, None, &frame.to_bytes()).expect("short");
        frame.tcp_mut().sequence = number.wrapping_mul(200).wrapping_add(1 << 31);
        let bytes = frame.clone().with(|frame| frame.payload = vec![number as u8; 200]).to_bytes();
        left.push(LinkType::ETHERNET, None, &bytes).expect("short");
    }
    let started = std::time::Instant::now();
    let report = check(Input::from(&left), Input::from(&original), &CheckOptions::default(), &mut ()).expect("both");
    assert!(report.violations >= 80_000, "{}", report.violations);
    // A scan of all that is held, for each, would take an hour.
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
}

/// A super-packet that a header has cut into single bytes, of more than a network has: it is taken
/// for whole.
#[test]
fn a_header_does_not_choose_how_much_memory_is_taken() {
    let (frame, header) = merged(&[Frame::tcp4(1, 60_000)]);
    let header = Header { gso_size: 1, ..header };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sent.records");
    records(&path, Format::Buffers, &[(frame.to_bytes(), header)]);
    let report = check(Input::Path(&path), Input::Path(&path), &CheckOptions::default(), &mut ()).expect("both");
    assert_eq!((report.violations, report.not_judged.origin_headers), (0, 1), "{:?}", report.described);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_file_of_records_makes_it_panic(
        kind in 0u8..6,
        changes in proptest::collection::vec((0usize..4000, any::<u8>()), 0..12),
        end in 0usize..4000,
        is_original in any::<bool>(),
    ) {
        let case = Case::aggregation(flow(kind, 4, 300));
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("left.records");
        let mut left: Vec<_> = case.left.iter().map(|(frame, header)| (frame.to_bytes(), *header)).collect();
        left.extend(case.original.iter().map(|frame| (frame.to_bytes(), plain())));
        records(&path, Format::Buffers, &left);
        let mut bytes = std::fs::read(&path).expect("it was written");
        for (place, value) in changes {
            let place = place % bytes.len();
            bytes[place] = value;
        }
        bytes.truncate(34 + end);
        std::fs::write(&path, bytes).expect("writes");
        let mut original = Packets::new();
        for frame in &case.original {
            original.push(LinkType::ETHERNET, None, &frame.to_bytes()).expect("short");
        }
        let (records, packets) = (Input::Path(&path), Input::from(&original));
        let (checked, origin) = if is_original { (packets, records) } else { (records, packets) };
        let _ = check(checked, origin, &CheckOptions { rules: Strictness::Reversible, ..CheckOptions::default() }, &mut ());
    }
}

/// Flows of every protocol in every tunnel, a third of their packets a trap of some kind: what the
/// engine makes of them is faithful, and so is what comes of cutting it again.
#[test]
fn traps_of_every_kind_raise_no_false_alarm() {
    let impairments = Impairments {
        other_field: 0.15,
        corrupt: 0.05,
        pad: 0.05,
        truncate: 0.02,
        fragments: 0.02,
        other_protocol: 0.05,
        ..Impairments::default()
    };
    for seed in 0..8 {
        let mut original = Packets::new();
        for packet in generate(seed, &Config { impairments, ..Config::default() }, 4000) {
            let link_type = if packet.starts_at_ip { LinkType::RAW } else { LinkType::ETHERNET };
            original.push(link_type, Some(packet.time_ns), &packet.bytes).expect("short");
        }
        let (mut merged, mut cut) = (Packets::new(), Packets::new());
        coalesce(Input::from(&original), Output::Packets(&mut merged), &CoalesceOptions::default(), &mut ()).expect("packets");
        for rules in [Strictness::Linux, Strictness::Reversible] {
            let options = CheckOptions { rules, ..CheckOptions::default() };
            let report = check(Input::from(&merged), Input::from(&original), &options, &mut ()).expect("both");
            assert_eq!(report.violations, 0, "seed {seed}: {:#?}", report.described);
            assert!(report.merged > 500, "seed {seed}: {}", report.merged);
        }
        segment(Input::from(&merged), Output::Packets(&mut cut), &SegmentOptions { mtu: 1000, ..SegmentOptions::default() }, &mut ())
            .expect("packets");
        let report = check(Input::from(&cut), Input::from(&merged), &CheckOptions::default(), &mut ()).expect("both");
        assert_eq!(report.violations, 0, "seed {seed}: {:#?}", report.described);
    }
}
