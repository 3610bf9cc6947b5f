//! Tests of the checker: each seeded fault is found at its position, no input causes a panic, and
//! keys distinguish flows.

use proptest::prelude::*;
use superpacket_traffic::check::{self, Expect, Field, Kind};
use superpacket_traffic::frame::*;

#[track_caller]
fn finds(frame: Frame, layer: Kind, field: Field) {
    let expect = Expect { starts_at_ip: frame.link.is_none(), ..Expect::default() };
    let problem = check::frame(&frame.to_bytes(), &expect).expect_err("a fault");
    assert_eq!((problem.layer, problem.field), (layer, field), "{problem}");
}

fn tcp() -> Frame {
    Frame::tcp4(1, 100)
}

#[test]
fn wrong_checksums() {
    finds(tcp().with_checksum(Checksum::Wrong), Kind::Tcp, Field::Checksum);
    finds(tcp().with_checksum(Checksum::Zero), Kind::Tcp, Field::Checksum);
    finds(Frame::tcp6(1, 9).with_checksum(Checksum::Wrong), Kind::Tcp, Field::Checksum);
    finds(Frame::udp4(9).with_checksum(Checksum::Wrong), Kind::Udp, Field::Checksum);
    finds(Frame::udp6(9).with_checksum(Checksum::Zero), Kind::Udp, Field::Checksum);
    finds(Frame::dccp6(1, 9).with_checksum(Checksum::Wrong), Kind::Dccp, Field::Checksum);
    for ip in [Ip::V4(Ipv4::default()), Ip::V6(Ipv6::default())] {
        let kind = if matches!(ip, Ip::V4(_)) { Kind::Icmp } else { Kind::Icmpv6 };
        let icmp = Icmp { checksum: Checksum::Wrong, ..Icmp::default() };
        finds(
            Frame { ip, transport: Transport::Icmp(icmp), ..Frame::default() },
            kind,
            Field::Checksum,
        );
    }
    let sctp = Sctp { checksum: Checksum::Wrong, ..Sctp::default() };
    finds(
        Frame { transport: Transport::Sctp(sctp), ..Frame::default() },
        Kind::Sctp,
        Field::Checksum,
    );
    finds(tcp().with_ipv4(|ip| ip.checksum = Checksum::Wrong), Kind::Ipv4, Field::HeaderChecksum);
    finds(tcp().with_ipv4(|ip| ip.checksum = Checksum::Zero), Kind::Ipv4, Field::HeaderChecksum);
    check::frame(&Frame::udp4(9).with_checksum(Checksum::Zero).to_bytes(), &Expect::default())
        .unwrap();
}

#[test]
fn wrong_outer_checksums() {
    for frame in [tcp().in_vxlan4(), tcp().in_vxlan6(), tcp().in_geneve()] {
        finds(frame.with_outer_checksum(Checksum::Wrong), Kind::Udp, Field::Checksum);
    }
    let gre = Gre { checksum: Some(Checksum::Wrong), ..Gre::default() };
    finds(
        tcp().in_gre().with(|frame| frame.tunnel_mut().carrier = Carrier::Gre(gre)),
        Kind::Gre,
        Field::Checksum,
    );
    let frame = tcp().in_ip4().with(|frame| frame.outer_ipv4_mut().checksum = Checksum::Wrong);
    let problem = check::frame(&frame.to_bytes(), &Expect::default()).unwrap_err();
    assert_eq!((problem.offset, problem.field), (14, Field::HeaderChecksum));
    // A fault in the inner packet, with correct outer checksums.
    let frame = tcp().in_vxlan6().with_checksum(Checksum::Wrong);
    let problem = check::frame(&frame.to_bytes(), &Expect::default()).unwrap_err();
    assert_eq!((problem.layer, problem.offset), (Kind::Tcp, frame.offsets().transport));
}

#[test]
fn wrong_lengths() {
    finds(tcp().with_ipv4(|ip| ip.total_length = Some(141)), Kind::Ipv4, Field::TotalLength);
    finds(tcp().with_ipv4(|ip| ip.total_length = Some(0)), Kind::Ipv4, Field::TotalLength);
    finds(tcp().with_ipv4(|ip| ip.total_length = Some(139)), Kind::Ipv4, Field::Trailing);
    finds(
        Frame::tcp6(1, 9).with_ipv6(|ip| ip.payload_length = Some(30)),
        Kind::Ipv6,
        Field::PayloadLength,
    );
    finds(
        Frame::tcp6(1, 9).with_ipv6(|ip| ip.payload_length = Some(28)),
        Kind::Ipv6,
        Field::Trailing,
    );
    for length in [0, 7, 16, 18] {
        finds(
            Frame::udp4(9).with_udp(|udp| udp.length = Some(length)),
            Kind::Udp,
            Field::UdpLength,
        );
    }
    finds(
        tcp().in_vxlan4().with(|frame| frame.outer_udp_mut().length = Some(60)),
        Kind::Udp,
        Field::UdpLength,
    );
    finds(
        tcp().in_ip6().with(|frame| frame.outer_ipv6_mut().payload_length = Some(300)),
        Kind::Ipv6,
        Field::PayloadLength,
    );
    let pppoe = |length| {
        tcp().with(|frame| frame.pppoe = Some(Pppoe { length: Some(length), ..Pppoe::default() }))
    };
    finds(pppoe(143), Kind::Pppoe, Field::PppoeLength);
    finds(pppoe(141), Kind::Pppoe, Field::Trailing);
    finds(pppoe(1), Kind::Pppoe, Field::Trailing);
    finds(Frame::dccp4(1, 4).with_dccp(|dccp| dccp.coverage = 9), Kind::Dccp, Field::Coverage);
    finds(tcp().with(|frame| frame.trailer = vec![0]), Kind::Ipv4, Field::Trailing);
    // Padding inside a tunnel.
    let inner = tcp().in_vxlan4().with_ipv4(|ip| ip.total_length = Some(138));
    finds(inner, Kind::Ipv4, Field::Trailing);
}

#[test]
fn headers_that_are_not_whole() {
    finds(tcp().with_ipv4(|ip| ip.ihl = Some(4)), Kind::Ipv4, Field::Header);
    finds(tcp().with_tcp(|tcp| tcp.data_offset = Some(4)), Kind::Tcp, Field::Header);
    finds(Frame::tcp4(1, 3).with_tcp(|tcp| tcp.data_offset = Some(15)), Kind::Tcp, Field::Header);
    finds(
        Frame::dccp4(1, 9).with_dccp(|dccp| dccp.data_offset = Some(3)),
        Kind::Dccp,
        Field::Header,
    );
    let frame = Frame { transport: Transport::Raw(17), payload: vec![0; 7], ..Frame::default() };
    finds(frame, Kind::Udp, Field::Header);
    let frame = Frame { transport: Transport::Raw(6), payload: vec![0; 19], ..Frame::default() };
    finds(frame.at_ip(), Kind::Tcp, Field::Header);
    let geneve = Geneve { option_words: Some(63), ..Geneve::default() };
    finds(
        tcp().in_geneve().with(|frame| frame.tunnel_mut().carrier = Carrier::Geneve(geneve)),
        Kind::Geneve,
        Field::Header,
    );
    let bytes = tcp().at_ip().to_bytes();
    let mut turned = bytes.clone();
    turned[0] = 0x55;
    let problem =
        check::frame(&turned, &Expect { starts_at_ip: true, ..Expect::default() }).unwrap_err();
    assert_eq!((problem.field, problem.actual), (Field::Version, 5));
    let problem = check::frame(&tcp().to_bytes()[..13], &Expect::default()).unwrap_err();
    assert_eq!(
        (problem.layer, problem.field, problem.expected, problem.actual),
        (Kind::Ethernet, Field::Header, 14, 13)
    );
    assert_eq!(problem.to_string(), "Ethernet at byte 0: Header is 0xd, expected 0xe");
}

#[test]
fn each_bit_of_a_packet_counts() {
    // An inverted bit is a fault, changes the flow, or is in a header that no checksum covers.
    for frame in [tcp(), Frame::udp6(40), Frame::dccp4(3, 40), Frame::tcp6(1, 40).in_vxlan6()] {
        let bytes = frame.to_bytes();
        let key = check::flow_key(&bytes, false);
        let network = frame.offsets().outer.unwrap_or(frame.offsets().network);
        for bit in network * 8..bytes.len() * 8 {
            let mut turned = bytes.clone();
            turned[bit / 8] ^= 1 << (bit % 8);
            let found = check::frame(&turned, &Expect::default()).is_err();
            let other = check::flow_key(&turned, false) != key;
            // IPv6 has no header checksum: traffic class, flow label and hop limit are free.
            let free =
                turned[network] >> 4 == 6 && (bit / 8 < network + 4 || bit / 8 == network + 7);
            // After a change of VXLAN's flags, an EtherType or a protocol, the rest is opaque, and
            // only outer checksums remain.
            assert!(found || other || free, "bit {bit}");
        }
    }
}

#[test]
fn keys_tell_flows_apart_and_directions() {
    let base = || Frame::tcp4(1, 10).in_vxlan4().tagged(5);
    let key = |frame: &Frame| check::flow_key(&frame.to_bytes(), frame.link.is_none()).unwrap();
    let same = base().with(|frame| {
        frame.tcp_mut().sequence = 99;
        frame.ipv4_mut().ttl = 3;
        frame.outer_ipv4_mut().tos = 1;
        frame.trailer = vec![1, 2];
    });
    assert_eq!(key(&base()), key(&same));
    type Edit = fn(&mut Frame);
    let others: [Edit; 13] = [
        |frame| frame.tcp_mut().source_port += 1,
        |frame| frame.tcp_mut().destination_port += 1,
        |frame| frame.ipv4_mut().source[3] += 1,
        |frame| frame.ipv4_mut().destination[3] += 1,
        |frame| frame.outer_ipv4_mut().source[3] += 1,
        |frame| frame.outer_udp_mut().source_port += 1,
        |frame| frame.vlans[0].vid += 1,
        |frame| frame.vlans[0].tpid = 0x88a8,
        |frame| frame.link.as_mut().unwrap().source[0] += 4,
        |frame| frame.tunnel_mut().link.as_mut().unwrap().source[0] += 4,
        |frame| frame.tunnel_mut().vlans.push(Vlan::default()),
        |frame| frame.tunnel_mut().carrier = Carrier::Vxlan(Vxlan { vni: 2, ..Vxlan::default() }),
        |frame| *frame = frame.reversed(),
    ];
    for (index, edit) in others.into_iter().enumerate() {
        assert_ne!(key(&base()), key(&base().with(edit)), "edit {index}");
    }
    let key = key(&base());
    assert_eq!(
        (key.protocol, key.ports, key.vlans.as_slice()),
        (6, Some((40_000, 443)), &[(0x8100, 5)][..])
    );
    assert_eq!(key.tunnels[0].identifier, Some(1));
    assert_eq!(key.tunnels[0].ports, Some((50_000, 4_789)));
}

#[test]
fn keys_of_fragments_and_of_what_is_no_flow() {
    let fragments = Frame::udp6(100).fragments(40, 3);
    for fragment in fragments {
        let key = check::flow_key(&fragment.to_bytes(), false).unwrap();
        assert_eq!((key.protocol, key.ports), (17, None));
    }
    let gre = |key| {
        Frame::tcp4(1, 1).in_gre().with(|frame| {
            frame.tunnel_mut().carrier =
                Carrier::Gre(Gre { key, checksum: Some(Checksum::Right), ..Gre::default() })
        })
    };
    let identifier =
        |frame: Frame| check::flow_key(&frame.to_bytes(), false).unwrap().tunnels[0].identifier;
    assert_eq!((identifier(gre(Some(9))), identifier(gre(None))), (Some(9), None));
    let labels = Frame { mpls: vec![Mpls { label: 77, ..Mpls::default() }], ..Frame::tcp4(1, 1) };
    assert_eq!(check::flow_key(&labels.to_bytes(), false).unwrap().mpls, [77]);
    let session =
        Frame { pppoe: Some(Pppoe { session: 9, ..Pppoe::default() }), ..Frame::tcp4(1, 1) };
    assert_eq!(check::flow_key(&session.to_bytes(), false).unwrap().pppoe, Some(9));
    assert_eq!(check::flow_key(&[0; 60], false), None);
    assert_eq!(check::flow_key(&Frame::tcp4(1, 0).to_bytes()[..40], false), None);
    assert_eq!(check::tcp_fields(&Frame::udp4(1).to_bytes(), false), None);
}

#[test]
fn payloads_end_where_their_packet_ends() {
    let frame = Frame::udp4(3).in_geneve().padded_to(200);
    assert_eq!(check::payload(&frame.to_bytes(), false).unwrap(), frame.payload);
    assert_eq!(check::payload(&[1, 2, 3], false), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120), starts_at_ip: bool) {
        let _ = check::frame(&bytes, &Expect { starts_at_ip, trailing: true, partial: true, big: true });
        let _ = check::flow_key(&bytes, starts_at_ip);
        let _ = check::tcp_fields(&bytes, starts_at_ip);
        let _ = check::payload(&bytes, starts_at_ip);
    }

    #[test]
    fn no_damage_makes_it_panic(kind in 0usize..8, edits in proptest::collection::vec((0usize..160, any::<u8>()), 1..6), cut in 0usize..200) {
        let frame = match kind {
            0 => Frame::tcp4(1, 20).in_vxlan4(),
            1 => Frame::udp6(20).in_geneve(),
            2 => Frame::dccp4(1, 20).in_gre(),
            3 => Frame::tcp6(1, 20).in_ip6(),
            4 => Frame::tcp4(1, 20).in_pppoe(),
            5 => Frame::tcp6(1, 20).with_ipv6(|ip| ip.extensions = vec![Extension::jumbo(48)]),
            6 => Frame { mpls: vec![Mpls::default(); 2], ..Frame::udp4(20) },
            _ => Frame { transport: Transport::Sctp(Sctp::default()), ..Frame::udp6(20) },
        };
        let mut bytes = frame.to_bytes();
        for (at, value) in edits {
            let length = bytes.len();
            bytes[at % length] = value;
        }
        bytes.truncate(cut);
        let _ = check::frame(&bytes, &Expect { trailing: true, partial: true, big: true, starts_at_ip: false });
        let _ = (check::flow_key(&bytes, false), check::tcp_fields(&bytes, false), check::payload(&bytes, false));
    }

    #[test]
    fn what_the_builder_calls_right_is_right(
        sequence: u32, acknowledgement: u32, flags in 0u16..0x1000, window: u16, urgent: u16, id: u16, tos: u8, ttl: u8, reserved: bool,
        payload in 0usize..300, options in 0usize..10, v6: bool, tunnel in 0usize..6,
    ) {
        let frame = Frame::tcp4(sequence, payload).with(|frame| {
            let tcp = Tcp { acknowledgement, flags, window, urgent, options: vec![1; options * 4], sequence, ..Tcp::default() };
            frame.transport = Transport::Tcp(tcp);
            frame.ip = if v6 {
                Ip::V6(Ipv6 { traffic_class: tos, hop_limit: ttl, ..Ipv6::default() })
            } else {
                Ip::V4(Ipv4 { id, tos, ttl, reserved, ..Ipv4::default() })
            };
        });
        let frame = match tunnel {
            0 => frame,
            1 => frame.in_vxlan6(),
            2 => frame.in_geneve(),
            3 => frame.in_gre(),
            4 => frame.in_ip4(),
            _ => frame.in_ip6(),
        };
        let bytes = frame.to_bytes();
        let checked = check::frame(&bytes, &Expect::default());
        prop_assert!(checked.is_ok(), "{:?}", checked);
        let fields = check::tcp_fields(&bytes, false).unwrap();
        prop_assert_eq!((fields.sequence, fields.acknowledgement, fields.flags), (sequence, acknowledgement, flags));
        prop_assert_eq!((fields.window, fields.urgent, fields.payload), (window, urgent, payload));
        prop_assert_eq!(check::payload(&bytes, false).unwrap(), &frame.payload[..]);
    }
}
