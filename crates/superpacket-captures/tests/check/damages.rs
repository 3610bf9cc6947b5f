//! Each damage to a merged packet is found, and reported by its rule.

use super::*;

fn is_tcp(case: &Case) -> bool {
    matches!(case.original[0].transport, Transport::Tcp(_))
}

fn is_v4(case: &Case) -> bool {
    matches!(case.original[0].ip, Ip::V4(_))
}

/// The name of a damage, and a function that applies it. The function returns the rules that must
/// be reported; `None` if it does not apply to these packets.
type Damage = (&'static str, fn(&mut Case, usize) -> Option<&'static [&'static str]>);

/// Changes a packet of the original that was merged.
fn differs(
    case: &mut Case,
    index: usize,
    edit: Edit,
    rules: &'static [&'static str],
) -> Option<&'static [&'static str]> {
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
        // Their identifications do not count up any more, and the last one has PSH.
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
    ("in PPPoE, where Linux segments nothing", |case, _| {
        let in_pppoe = |frame: &mut Frame| frame.pppoe = Some(Pppoe::default());
        case.original.iter_mut().for_each(in_pppoe);
        for (frame, header) in &mut case.left {
            in_pppoe(frame);
            // A PPPoE header and the protocol number of PPP.
            (header.csum_start, header.hdr_len) = (header.csum_start + 8, header.hdr_len + 8);
        }
        case.original[0].tunnel.is_none().then_some(&["receiver"])
    }),
    ("csum_start is another", |case, _| {
        case.left[0].1.csum_start += 2;
        Some(&["virtio-header"])
    }),
    ("the partial checksum is another", |case, _| {
        let frame = &mut case.left[0].0;
        let right = frame.to_bytes();
        let another = [0x1234, 0x1235].into_iter().any(|value| {
            *frame.checksum_mut().expect("it has one") = Checksum::Raw(value);
            frame.to_bytes() != right
        });
        assert!(another, "two values differ");
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
        differs(
            case,
            index,
            |frame| *frame.checksum_mut().expect("it has one") = Checksum::Wrong,
            &["bad-checksum"],
        )
    }),
    ("PSH in the middle", |case, index| {
        let middle = index + 1 < case.original.len();
        (is_tcp(case) && middle)
            .then(|| differs(case, index, |frame| frame.tcp_mut().flags |= PSH, &["push-ends"]))?
    }),
    ("PSH of the last is gone", |case, _| {
        is_tcp(case).then(|| case.left[0].0.tcp_mut().flags &= !PSH)?;
        Some(&["flags"])
    }),
    ("ECE on one", |case, index| {
        is_tcp(case)
            .then(|| differs(case, index, |frame| frame.tcp_mut().flags |= ECE, &["flags"]))?
    }),
    ("CWR on one behind the first", |case, index| {
        is_tcp(case)
            .then(|| differs(case, index, |frame| frame.tcp_mut().flags |= CWR, &["cwr"]))?
    }),
    ("RST on one", |case, index| {
        is_tcp(case).then(|| {
            differs(case, index, |frame| frame.tcp_mut().flags |= RST, &["flags", "control-flags"])
        })?
    }),
    ("another window", |case, index| {
        is_tcp(case)
            .then(|| differs(case, index, |frame| frame.tcp_mut().window += 1, &["window"]))?
    }),
    ("another acknowledgement", |case, index| {
        is_tcp(case).then(|| {
            differs(
                case,
                index,
                |frame| frame.tcp_mut().acknowledgement += 300,
                &["acknowledgement"],
            )
        })?
    }),
    ("another urgent pointer", |case, index| {
        is_tcp(case).then(|| differs(case, index, |frame| frame.tcp_mut().urgent = 1, &[]))?
    }),
    ("options only on one", |case, index| {
        let options = |frame: &mut Frame| {
            frame.tcp_mut().options = [timestamps(1, 2), vec![1, 1, 1, 1]].concat()
        };
        is_tcp(case).then(|| differs(case, index, options, &["tcp-options"]))?
    }),
    ("another sequence number", |case, index| {
        is_tcp(case).then(|| {
            differs(case, index, |frame| frame.tcp_mut().sequence ^= 0x10000, &["sequence"])
        })?
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
        (!is_v4(case)).then(|| {
            differs(case, index, |frame| frame.ipv6_mut().flow_label += 1, &["flow-label"])
        })?
    }),
    ("another identification", |case, index| {
        is_v4(case)
            .then(|| differs(case, index, |frame| frame.ipv4_mut().id ^= 0x0770, &["ip-id"]))?
    }),
    ("DF on one", |case, index| {
        is_v4(case).then(|| {
            differs(case, index, |frame| frame.ipv4_mut().dont_fragment ^= true, &["dont-fragment"])
        })?
    }),
    ("IPv4 options on one", |case, index| {
        is_v4(case).then(|| {
            differs(
                case,
                index,
                |frame| frame.ipv4_mut().options = vec![1; 4],
                &["never-merges", "ip-header"],
            )
        })?
    }),
    ("padding behind one", |case, index| {
        differs(case, index, |frame| frame.trailer = vec![0; 3], &["never-merges"])
    }),
    ("another VLAN", |case, index| {
        let tagged = !case.original[0].vlans.is_empty();
        tagged.then(|| differs(case, index, |frame| frame.vlans[0].vid = 20, &["link-header"]))?
    }),
    ("another MAC address", |case, index| {
        differs(
            case,
            index,
            |frame| frame.link.as_mut().expect("Ethernet").source = [2, 0, 0, 0, 0, 9],
            &["link-header"],
        )
    }),
    ("a longer packet behind a shorter", |case, index| {
        let frame = &mut case.original[index];
        frame.payload.extend([7; 5]);
        for behind in &mut case.original[index + 1..] {
            // The following packets are in sequence again.
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
            let found = broken(&report);
            prop_assert_eq!(found, expected.iter().copied().collect(), "{} in packet {}: {:#?}", name, index, report.described);
        }
    }
}

/// Inverting the usual bits of this frame's checksum would give a partial one.
#[test]
fn a_wrong_checksum_is_not_mistaken_for_a_partial_one() {
    let mut case = Case::aggregation(flow(1, 3, 411));
    case.original[1].tcp_mut().checksum = Checksum::Wrong;
    case.breaks(&["bad-checksum"]);
}

/// Changes of Linux that cannot be undone violate separate rules.
#[test]
fn changes_by_linux_violate_only_stricter_rules() {
    let urgent = |kind| {
        let mut frames = flow(kind, 4, 100);
        frames[2].tcp_mut().urgent = 9;
        Case::aggregation(frames)
    };
    for kind in 0..4 {
        urgent(kind).breaks(&[]);
        assert_eq!(urgent(kind).rules(Strictness::Reversible), ["urgent-merged"].into());
        // The urgent pointer of the first packet is kept.
        let mut changed = Case::aggregation(flow(kind, 4, 100));
        changed.left[0].0.tcp_mut().urgent = 9;
        changed.breaks(&["urgent"]);
    }
    // Linux treats these packets as two flows.
    let mut two = flow(1, 4, 100);
    two[2].ipv6_mut().flow_label ^= 1;
    let case = Case::with(two, &[&[2], &[0, 1], &[3]]);
    case.breaks(&[]);
    assert_eq!(case.rules(Strictness::Reversible), ["refused-order"].into());
}

#[test]
fn packets_refused_by_linux_may_overtake_by_its_rules() {
    for edit in [
        |frame: &mut Frame| frame.tcp_mut().checksum = Checksum::Wrong,
        |frame: &mut Frame| frame.ipv4_mut().options = vec![1; 4],
    ] {
        let mut flow = flow(0, 4, 100);
        // The retransmitted packet is refused; the others are in sequence without it.
        let mut refused = flow[1].clone();
        edit(&mut refused);
        flow.insert(2, refused);
        let case = Case::with(flow, &[&[2], &[0, 1, 3, 4]]);
        case.breaks(&[]);
        assert_eq!(case.rules(Strictness::Reversible), ["refused-order"].into());
    }
}

/// A packet without known ports, such as a fragment, may belong to any flow between its addresses.
/// By the stricter rules it keeps order with all of them.
#[test]
fn packets_without_ports_keep_order_with_their_address_pair() {
    type Make = fn() -> Frame;
    let tunnel: Make = || flow(4, 1, 100)[0].clone().in_vxlan4();
    // A frame of a flow, and one of the same address pair whose fragments are not longer.
    for (name, of_flow, other) in [
        (
            "IPv4",
            (|| flow(0, 1, 100)[0].clone()) as Make,
            (|| Frame::tcp4(9000, 100).with_id(1)) as Make,
        ),
        ("IPv6", || flow(1, 1, 100)[0].clone(), || Frame::tcp6(9000, 100)),
        ("UDP", || flow(4, 1, 100)[0].clone(), || Frame::udp4(100).with_id(1)),
        ("tagged", || flow(3, 1, 100)[0].clone(), || Frame::tcp4(9000, 100).with_id(1).tagged(12)),
        ("in a tunnel", tunnel, || Frame::udp4(100).with_id(1).in_vxlan4()),
        (
            "in two tunnels",
            || flow(4, 1, 100)[0].clone().in_vxlan4().in_geneve(),
            || Frame::udp4(100).with_id(1).in_vxlan4().in_geneve(),
        ),
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
            assert_eq!(
                (violation.rule.name(), violation.field.as_str(), violation.origin),
                ("pair-order", "order", Some(1)),
                "{name}"
            );
            let place = left.iter().position(|group| group[0] == 0).expect("it left") as u64;
            assert_eq!(violation.packet, Some(place + 1), "{name}");
            let by = format!(
                "packet {place}, which is packet {} of the original and of the same addresses, left before it",
                place + 1
            );
            assert_eq!(violation.found, by, "{name}");
        }
        // Now the flow's packet came last.
        let case = Case::with(
            vec![fragments[0].clone(), fragments[1].clone(), of_flow.clone()],
            &[&[0], &[2], &[1]],
        );
        case.breaks(&[]);
        assert_eq!(case.rules(Strictness::Reversible), ["pair-order"].into(), "{name}");
        assert_eq!(case.check(Strictness::Reversible).described[0].origin, Some(2), "{name}");
    }
    // The overtaken packets are in a merged one.
    let mut merged = flow(0, 4, 100);
    merged.push(Frame::tcp4(9000, 100).with_id(1).fragments(64, 99)[1].clone());
    let late = Case::with(merged.clone(), &[&[4], &[0, 1, 2, 3]]);
    late.breaks(&[]);
    assert_eq!(late.rules(Strictness::Reversible), ["pair-order"].into());
    assert_eq!(late.check(Strictness::Reversible).violations, 1);
    assert_eq!(
        Case::with(merged, &[&[0, 1, 2, 3], &[4]]).rules(Strictness::Reversible),
        BTreeSet::new()
    );
}

/// Fragments of each of the three IP headers of a packet in two tunnels.
#[test]
fn fragments_at_each_level_of_two_tunnels_keep_order() {
    let of_flow = flow(4, 1, 100)[0].clone().in_vxlan4().in_geneve();
    let levels: [fn(&mut Frame) -> &mut Ip; 3] = [
        |frame| &mut frame.tunnel_mut().ip,
        |frame| &mut frame.nested_mut().ip,
        |frame| &mut frame.ip,
    ];
    for (level, ip) in levels.into_iter().enumerate() {
        let with = |edit: fn(&mut Ip)| of_flow.clone().with(|frame| edit(ip(frame)));
        let offset = |ip: &mut Ip| match ip {
            Ip::V4(ip) => ip.fragment_offset = 5,
            Ip::V6(_) => panic!("not IPv4"),
        };
        let fragment = with(offset);
        let overtaken = Case::with(vec![of_flow.clone(), fragment], &[&[1], &[0]]);
        assert_eq!(overtaken.rules(Strictness::Reversible), ["pair-order"].into(), "level {level}");
        let other = with(|ip| match ip {
            Ip::V4(ip) => (ip.fragment_offset, ip.source) = (5, [10, 99, 99, 99]),
            Ip::V6(_) => panic!("not IPv4"),
        });
        assert_eq!(
            Case::with(vec![of_flow.clone(), other], &[&[1], &[0]]).rules(Strictness::Reversible),
            BTreeSet::new(),
            "level {level}"
        );
    }
}

/// Packets of other flows may leave before held packets of a flow.
#[test]
fn packets_of_other_addresses_keep_no_order() {
    let of_flow = flow(0, 1, 100)[0].clone();
    let others: [(&str, Edit); 5] = [
        ("other addresses", |frame| frame.ipv4_mut().source = [10, 9, 9, 9]),
        ("the other direction", |frame| {
            let ip = frame.ipv4_mut();
            (ip.source, ip.destination) = (ip.destination, ip.source);
        }),
        ("another MAC address", |frame| {
            frame.link.as_mut().expect("Ethernet").source = [2, 0, 0, 0, 0, 9]
        }),
        ("another VLAN", |frame| *frame = frame.clone().tagged(30)),
        ("of UDP", |frame| *frame = Frame::udp4(100).with_id(1).fragments(64, 99)[1].clone()),
    ];
    for (name, edit) in others {
        let mut fragment = Frame::tcp4(9000, 100).with_id(1).fragments(64, 99)[1].clone();
        edit(&mut fragment);
        let case = Case::with(vec![of_flow.clone(), fragment], &[&[1], &[0]]);
        assert_eq!(
            case.rules(Strictness::Reversible),
            BTreeSet::new(),
            "{name}: {:?}",
            case.check(Strictness::Reversible).described
        );
    }
    // A protocol without ports belongs to no flow.
    let ping = of_flow.clone().with(|frame| frame.transport = Transport::Raw(1));
    assert_eq!(
        Case::with(vec![of_flow.clone(), ping], &[&[1], &[0]]).rules(Strictness::Reversible),
        BTreeSet::new()
    );
    // A packet with a truncated header belongs to some flow.
    let stub = of_flow.clone().with(|frame| {
        (frame.transport, frame.payload) = (Transport::Raw(6), vec![1, 2, 3, 4, 5, 6, 7, 8])
    });
    assert_eq!(
        Case::with(vec![of_flow, stub], &[&[1], &[0]]).rules(Strictness::Reversible),
        ["pair-order"].into()
    );
}

#[test]
fn order_is_that_of_each_flow() {
    let flow = flow(0, 4, 100);
    // Packets may leave later, provided that their flow keeps its order.
    Case::with(flow.clone(), &[&[0, 1], &[2, 3]]).breaks(&[]);
    Case::with(flow.clone(), &[&[2, 3], &[0, 1]]).breaks(&["order"]);
    Case::with(flow.clone(), &[&[0], &[2], &[1], &[3]]).breaks(&["order"]);
    let mut two = flow.clone();
    two.extend(
        flow.iter().map(|frame| frame.clone().with(|frame| frame.tcp_mut().source_port = 9)),
    );
    Case::with(two.clone(), &[&[4, 5, 6, 7], &[0, 1, 2, 3]]).breaks(&[]);
    Case::with(two, &[&[4, 5], &[0, 1, 2, 3], &[7], &[6]]).breaks(&["order"]);
}

/// Returns the violated rules if packets with `NEEDS_CSUM` were merged, one of which `edit` has
/// changed: by the Linux rules, and by the stricter ones.
fn merged_unverified(edit: Edit) -> [BTreeSet<&'static str>; 2] {
    let mut frames = flow(0, 4, 100);
    let left = merged(&frames);
    edit(&mut frames[2]);
    let header = Header { gso_type: gso_type::NONE, gso_size: 0, ..left.1 };
    let original: Vec<_> = frames
        .into_iter()
        .map(|mut frame| {
            if frame.tcp_mut().checksum == Checksum::Right {
                frame.tcp_mut().checksum = Checksum::Partial;
            }
            (frame.to_bytes(), header)
        })
        .collect();
    let file = records(Format::Buffers, &original);
    [Strictness::Linux, Strictness::Reversible].map(|rules| {
        let left = [(left.0.to_bytes(), left.1)];
        let report = check_records(Format::Buffers, &left, stream(&file), rules);
        report.by_rule.keys().map(|rule| rule.name()).collect()
    })
}

/// With `NEEDS_CSUM`, Linux verifies the checksum of the IPv4 header, but not that of TCP.
#[test]
fn linux_verifies_the_header_checksum_of_packets_with_a_partial_checksum() {
    assert_eq!(merged_unverified(|_| {}), [[].into(), [].into()]);
    let wrong_tcp: Edit = |frame| frame.tcp_mut().checksum = Checksum::Raw(0x1234);
    assert_eq!(merged_unverified(wrong_tcp), [[].into(), ["unverified"].into()]);
    let wrong_header: Edit = |frame| frame.ipv4_mut().checksum = Checksum::Wrong;
    let both: Edit = |frame| {
        frame.ipv4_mut().checksum = Checksum::Wrong;
        frame.tcp_mut().checksum = Checksum::Raw(0x1234);
    };
    for edit in [wrong_header, both] {
        assert_eq!(merged_unverified(edit), [["bad-checksum"].into(), ["bad-checksum"].into()]);
    }
}

/// A packet that is refused for another reason than its wrong outer UDP length.
#[test]
fn a_wrong_outer_length_hides_no_other_refusal() {
    let merged_with = |edit: Edit| {
        let frames: Vec<_> = flow(0, 4, 100).into_iter().map(Frame::in_vxlan4).collect();
        let mut case = Case::aggregation(frames);
        edit(&mut case.original[2]);
        let found = case.check(Strictness::Reversible).described.into_iter();
        found.map(|violation| (violation.rule.name(), violation.field)).collect::<Vec<_>>()
    };
    let outer_length = ("outer-length", "outer udp.length".to_owned());
    let refused = ("never-merges", "reserved_bit".to_owned());
    let found = merged_with(|frame| frame.outer_udp_mut().length = Some(77));
    assert!(found.contains(&outer_length) && !found.contains(&refused), "{found:?}");
    let found = merged_with(|frame| {
        frame.outer_udp_mut().length = Some(77);
        frame.outer_ipv4_mut().reserved = true;
    });
    assert!(found.contains(&refused), "{found:?}");
}
