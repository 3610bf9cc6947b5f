//! Tests of the frame builder against etherparse's parsers, layer by layer.

use etherparse::{LinkExtHeader, NetHeaders, PacketHeaders, TransportHeader};
use superpacket_traffic::check::{self, Expect, Kind};
use superpacket_traffic::checksum;
use superpacket_traffic::frame::*;

fn right(frame: &Frame) -> check::Checked {
    let expect = Expect {
        starts_at_ip: frame.link.is_none(),
        trailing: !frame.trailer.is_empty(),
        partial: true,
        big: true,
    };
    check::frame(&frame.to_bytes(), &expect)
        .unwrap_or_else(|problem| panic!("{problem}\n{frame:?}"))
}

fn kinds(frame: &Frame) -> Vec<Kind> {
    right(frame).layers.iter().map(|layer| layer.kind).collect()
}

#[test]
fn ethernet_and_tags() {
    let frame = Frame::tcp4(1, 10).with(|frame| {
        frame.vlans = vec![
            Vlan { tpid: 0x88a8, pcp: 5, dei: true, vid: 0xabc },
            Vlan { tpid: 0x8100, pcp: 2, dei: false, vid: 0x123 },
        ];
    });
    let bytes = frame.to_bytes();
    let headers = PacketHeaders::from_ethernet_slice(&bytes).unwrap();
    let Some(etherparse::LinkHeader::Ethernet2(ethernet)) = headers.link else {
        panic!("no Ethernet header")
    };
    assert_eq!((ethernet.source, ethernet.destination), ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]));
    assert_eq!(ethernet.ether_type.0, 0x88a8);
    let tags: Vec<_> = headers
        .link_exts
        .iter()
        .map(|extension| match extension {
            LinkExtHeader::Vlan(tag) => (
                tag.pcp.value(),
                tag.drop_eligible_indicator,
                tag.vlan_id.value(),
                tag.ether_type.0,
            ),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(tags, [(5, true, 0xabc, 0x8100), (2, false, 0x123, 0x0800)]);
    assert_eq!(kinds(&frame), [Kind::Ethernet, Kind::Vlan, Kind::Vlan, Kind::Ipv4, Kind::Tcp]);
}

#[test]
fn ipv4_fields() {
    let ip = Ipv4 {
        ttl: 7,
        tos: 0xb9,
        id: 0x1234,
        dont_fragment: false,
        options: vec![0x94, 4, 0, 0, 1],
        source: [1, 2, 3, 4],
        destination: [5, 6, 7, 8],
        ..Ipv4::default()
    };
    let frame = Frame { ip: Ip::V4(ip), ..Frame::udp4(33) };
    let bytes = frame.to_bytes();
    let headers = PacketHeaders::from_ethernet_slice(&bytes).unwrap();
    let Some(NetHeaders::Ipv4(ip, _)) = headers.net else { panic!("no IPv4") };
    assert_eq!((ip.source, ip.destination), ([1, 2, 3, 4], [5, 6, 7, 8]));
    assert_eq!((ip.time_to_live, ip.dscp.value(), ip.ecn as u8), (7, 0xb9 >> 2, 1));
    assert_eq!((ip.identification, ip.dont_fragment, ip.more_fragments), (0x1234, false, false));
    assert_eq!(&ip.options[..], [0x94, 4, 0, 0, 1, 0, 0, 0]);
    assert_eq!(ip.total_len, 20 + 8 + 8 + 33);
    assert_eq!(ip.header_checksum, ip.calc_header_checksum());
    let Some(TransportHeader::Udp(udp)) = headers.transport else { panic!("no UDP") };
    assert_eq!((udp.source_port, udp.destination_port, udp.length), (40_000, 443, 41));
    assert_eq!(udp.checksum, udp.calc_checksum_ipv4(&ip, headers.payload.slice()).unwrap());
}

#[test]
fn ipv4_flags_and_offset() {
    let frame = Frame::tcp4(1, 64).with_ipv4(|ip| {
        (ip.reserved, ip.more_fragments, ip.fragment_offset) = (true, true, 0x1abc)
    });
    let bytes = frame.to_bytes();
    assert_eq!(u16::from_be_bytes([bytes[20], bytes[21]]), 0x8000 | 0x4000 | 0x2000 | 0x1abc);
    let checked = right(&frame);
    assert!(checked.fragment && checked.innermost(Kind::Tcp).is_none());
}

#[test]
fn ipv6_fields_and_extensions() {
    let ip = Ipv6 {
        traffic_class: 0xb9,
        flow_label: 0xabcde,
        hop_limit: 9,
        extensions: vec![
            Extension::HopByHop(vec![5, 2, 0, 0, 1, 0]),
            Extension::DestinationOptions(vec![0x1e, 12]),
            Extension::Routing(vec![4, 0, 0, 0, 0, 0]),
            Extension::Fragment { offset: 0, more: false, id: 0x0102_0304 },
        ],
        ..Ipv6::default()
    };
    let frame = Frame { ip: Ip::V6(ip), ..Frame::tcp4(77, 5) };
    let bytes = frame.to_bytes();
    let headers = PacketHeaders::from_ethernet_slice(&bytes).unwrap();
    let Some(NetHeaders::Ipv6(ip, extensions)) = headers.net else { panic!("no IPv6") };
    assert_eq!((ip.traffic_class, ip.flow_label.value(), ip.hop_limit), (0xb9, 0xabcde, 9));
    assert_eq!(ip.payload_length, 8 + 8 + 8 + 8 + 20 + 5);
    assert_eq!(extensions.hop_by_hop_options.unwrap().payload(), [5, 2, 0, 0, 1, 0]);
    assert_eq!(extensions.destination_options.unwrap().payload(), [0x1e, 12, 0, 0, 0, 0]);
    assert_eq!(extensions.routing.unwrap().routing.payload(), [4, 0, 0, 0, 0, 0]);
    assert_eq!(extensions.fragment.unwrap().identification, 0x0102_0304);
    let Some(TransportHeader::Tcp(tcp)) = headers.transport else { panic!("no TCP") };
    assert_eq!(tcp.checksum, tcp.calc_checksum_ipv6(&ip, headers.payload.slice()).unwrap());
    assert_eq!(right(&frame).layers.len(), 7);
}

#[test]
fn jumbograms() {
    let frame = Frame::tcp6(1, 70_000).with_ipv6(|ip| {
        ip.extensions = vec![Extension::jumbo(8 + 20 + 70_000)];
    });
    assert_eq!(&frame.to_bytes()[18..20], [0, 0]);
    let checked = check::frame(&frame.to_bytes(), &Expect::default()).unwrap();
    assert_eq!(checked.payload.len(), 70_000);
}

#[test]
fn big_tcp_has_no_ip_length() {
    for frame in [Frame::tcp4(1, 100_000), Frame::tcp6(1, 100_000)] {
        let bytes = frame.to_bytes();
        assert!(check::frame(&bytes, &Expect::default()).is_err());
        let checked = check::frame(&bytes, &Expect { big: true, ..Expect::default() }).unwrap();
        assert_eq!(checked.payload.len(), 100_000);
    }
}

#[test]
fn tcp_fields() {
    let all = FIN | SYN | RST | PSH | ACK | URG | ECE | CWR | AE;
    let tcp = Tcp {
        source_port: 1,
        destination_port: 2,
        sequence: 0xdead_beef,
        acknowledgement: 0xcafe_f00d,
        flags: all,
        window: 0x1122,
        urgent: 0x3344,
        options: [timestamps(5, 6), sack(&[(7, 8), (9, 10)])].concat(),
        ..Tcp::default()
    };
    let frame = Frame { transport: Transport::Tcp(tcp), ..Frame::tcp4(0, 3) };
    let bytes = frame.to_bytes();
    let headers = PacketHeaders::from_ethernet_slice(&bytes).unwrap();
    let Some(TransportHeader::Tcp(tcp)) = headers.transport else { panic!("no TCP") };
    assert_eq!((tcp.source_port, tcp.destination_port), (1, 2));
    assert_eq!((tcp.sequence_number, tcp.acknowledgment_number), (0xdead_beef, 0xcafe_f00d));
    assert!(
        tcp.fin
            && tcp.syn
            && tcp.rst
            && tcp.psh
            && tcp.ack
            && tcp.urg
            && tcp.ece
            && tcp.cwr
            && tcp.ns
    );
    assert_eq!(
        (tcp.window_size, tcp.urgent_pointer, tcp.data_offset()),
        (0x1122, 0x3344, 5 + 3 + 5)
    );
    let options: Vec<_> = tcp.options_iterator().map(|option| option.unwrap()).collect();
    assert!(options.contains(&etherparse::TcpOptionElement::Timestamp(5, 6)));
    assert!(options.contains(&etherparse::TcpOptionElement::SelectiveAcknowledgement(
        (7, 8),
        [Some((9, 10)), None, None]
    )));
    let fields = check::tcp_fields(&bytes, false).unwrap();
    assert_eq!((fields.flags, fields.timestamps, fields.payload), (all, Some((5, 6)), 3));
    for bit in 0..12 {
        let frame = Frame::tcp4(1, 1).with_flags(1 << bit);
        right(&frame);
        assert_eq!(check::tcp_fields(&frame.to_bytes(), false).unwrap().flags, 1 << bit);
    }
}

#[test]
fn dccp_layout() {
    let short = Dccp {
        kind: Dccp::DATA_ACK,
        extended: false,
        sequence: 0x0a_bcde,
        acknowledgement: Some(0x01_0203),
        ccval: 7,
        ..Dccp::default()
    };
    let frame = Frame { transport: Transport::Dccp(short), ..Frame::dccp4(0, 9) };
    let bytes = frame.at_ip().to_bytes();
    // RFC 4340, section 5.1: data offset 4 words, CCVal 7, type 4 with X = 0, 24-bit numbers.
    assert_eq!(bytes[24..26], [4, 0x70]);
    assert_eq!(bytes[28..36], [4 << 1, 0x0a, 0xbc, 0xde, 0, 1, 2, 3]);
    let long =
        Dccp { kind: Dccp::DATA, sequence: 0x0102_0304_0506, options: vec![1], ..Dccp::default() };
    let frame = Frame { transport: Transport::Dccp(long), ..Frame::dccp6(0, 9) };
    let bytes = frame.clone().at_ip().to_bytes();
    assert_eq!(bytes[44], 5);
    assert_eq!(bytes[48..60], [2 << 1 | 1, 0, 1, 2, 3, 4, 5, 6, 1, 0, 0, 0]);
    assert_eq!(kinds(&frame), [Kind::Ethernet, Kind::Ipv6, Kind::Dccp]);
}

#[test]
fn dccp_coverage_leaves_the_rest_out() {
    let frame = Frame::dccp4(5, 100).with_dccp(|dccp| dccp.coverage = 3);
    let mut bytes = frame.to_bytes();
    right(&frame);
    let payload = frame.offsets().payload;
    bytes[payload + 8] ^= 1;
    check::frame(&bytes, &Expect::default()).unwrap();
    bytes[payload + 7] ^= 1;
    assert!(check::frame(&bytes, &Expect::default()).is_err());
}

#[test]
fn sctp_and_icmp() {
    let chunk = vec![0, 3, 0, 20, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4];
    let sctp =
        Frame { transport: Transport::Sctp(Sctp::default()), payload: chunk, ..Frame::default() };
    assert_eq!(kinds(&sctp), [Kind::Ethernet, Kind::Ipv4, Kind::Sctp]);
    let echo = Frame {
        transport: Transport::Icmp(Icmp::default()),
        payload: vec![9; 31],
        ..Frame::default()
    };
    let bytes = echo.to_bytes();
    let Some(TransportHeader::Icmpv4(icmp)) =
        PacketHeaders::from_ethernet_slice(&bytes).unwrap().transport
    else {
        panic!("no ICMP")
    };
    assert_eq!(icmp.checksum, icmp.icmp_type.calc_checksum(&[9; 31]));
    let echo6 = Frame {
        ip: Ip::V6(Ipv6::default()),
        transport: Transport::Icmp(Icmp { kind: 128, ..Icmp::default() }),
        ..echo
    };
    let bytes = echo6.to_bytes();
    let headers = PacketHeaders::from_ethernet_slice(&bytes).unwrap();
    let (Some(NetHeaders::Ipv6(ip, _)), Some(TransportHeader::Icmpv6(icmp))) =
        (headers.net, headers.transport)
    else {
        panic!("no ICMPv6")
    };
    assert_eq!(
        icmp.checksum,
        icmp.icmp_type.calc_checksum(ip.source, ip.destination, &[9; 31]).unwrap()
    );
    assert_eq!(kinds(&echo6), [Kind::Ethernet, Kind::Ipv6, Kind::Icmpv6]);
}

#[test]
fn pppoe_and_mpls() {
    let frame = Frame::tcp6(1, 10)
        .with(|frame| frame.pppoe = Some(Pppoe { session: 0x1234, ..Pppoe::default() }));
    // 2 bytes of PPP protocol, 40 + 20 + 10 bytes of packet.
    assert_eq!(frame.to_bytes()[12..22], [0x88, 0x64, 0x11, 0, 0x12, 0x34, 0, 72, 0, 0x57]);
    assert_eq!(kinds(&frame), [Kind::Ethernet, Kind::Pppoe, Kind::Ipv6, Kind::Tcp]);
    let stack = vec![
        Mpls { label: 0xabcde, exp: 5, ttl: 7, bottom: None },
        Mpls { label: 16, exp: 0, ttl: 255, bottom: None },
    ];
    let frame = Frame { mpls: stack, ..Frame::tcp4(1, 10) };
    assert_eq!(frame.to_bytes()[12..22], [0x88, 0x47, 0xab, 0xcd, 0xea, 7, 0, 1, 1, 255]);
    assert_eq!(kinds(&frame), [Kind::Ethernet, Kind::Mpls, Kind::Mpls, Kind::Ipv4, Kind::Tcp]);
}

#[test]
fn tunnels() {
    use Kind::{Ethernet as E, Ipv4 as V4, Ipv6 as V6};
    let tcp = || Frame::tcp4(1, 100);
    assert_eq!(kinds(&tcp().in_vxlan4()), [E, V4, Kind::Udp, Kind::Vxlan, E, V4, Kind::Tcp]);
    assert_eq!(kinds(&tcp().in_vxlan6()), [E, V6, Kind::Udp, Kind::Vxlan, E, V4, Kind::Tcp]);
    assert_eq!(
        kinds(&Frame::udp6(9).in_geneve()),
        [E, V4, Kind::Udp, Kind::Geneve, E, V6, Kind::Udp]
    );
    assert_eq!(kinds(&Frame::dccp6(1, 9).in_gre()), [E, V4, Kind::Gre, V6, Kind::Dccp]);
    assert_eq!(kinds(&tcp().in_ip4()), [E, V4, V4, Kind::Tcp]);
    assert_eq!(kinds(&Frame::tcp6(1, 1).in_ip4()), [E, V4, V6, Kind::Tcp]);
    assert_eq!(kinds(&tcp().in_ip6()), [E, V6, V4, Kind::Tcp]);
    assert_eq!(kinds(&Frame::tcp6(1, 1).in_ip6().at_ip()), [V6, V6, Kind::Tcp]);
    let bytes = tcp().in_vxlan4().to_bytes();
    assert_eq!(bytes[14 + 20 + 2..14 + 20 + 4], 4789u16.to_be_bytes());
    assert_eq!(bytes[14 + 28..14 + 36], [8, 0, 0, 0, 0, 0, 1, 0]);
    let bytes = tcp().in_geneve().to_bytes();
    assert_eq!(bytes[14 + 28..14 + 36], [2, 0, 0x65, 0x58, 0, 0, 1, 0]);
}

#[test]
fn gre_fields_in_order() {
    let gre = Gre {
        checksum: Some(Checksum::Right),
        key: Some(0x0102_0304),
        sequence: Some(0x0506_0708),
        ..Gre::default()
    };
    let frame =
        Frame::tcp4(1, 10).in_gre().with(|frame| frame.tunnel_mut().carrier = Carrier::Gre(gre));
    let bytes = frame.to_bytes();
    assert_eq!(bytes[34..38], [0xb0, 0, 0x08, 0]);
    assert_eq!(bytes[40..50], [0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(checksum::sum(&bytes[34..]), 0xffff);
    assert_eq!(right(&frame).checksums, 2);
}

#[test]
fn checksum_modes() {
    let with = |mode| Frame::tcp4(1, 10).with_checksum(mode).to_bytes();
    let field = |bytes: &[u8]| u16::from_be_bytes([bytes[50], bytes[51]]);
    let pseudo = |length| checksum::pseudo_v4([10, 0, 0, 1], [10, 0, 0, 2], 6, length);
    assert!(check::frame(&with(Checksum::Wrong), &Expect::default()).is_err());
    assert_eq!(field(&with(Checksum::Zero)), 0);
    assert_eq!(field(&with(Checksum::Raw(0xabcd))), 0xabcd);
    assert_eq!(field(&with(Checksum::Partial)), pseudo(30));
    assert_eq!(field(&with(Checksum::PartialWithoutLength)), pseudo(0));
    for mode in [Checksum::Partial, Checksum::PartialWithoutLength] {
        assert!(check::frame(&with(mode), &Expect::default()).is_err());
        let checked =
            check::frame(&with(mode), &Expect { partial: true, ..Expect::default() }).unwrap();
        assert_eq!((checked.partial, checked.checksums), (Some(50), 0));
    }
}

#[test]
fn zero_checksums_and_their_alias() {
    for frame in [
        Frame::tcp4(1, 101),
        Frame::tcp6(1, 100),
        Frame::dccp4(1, 11),
        Frame::tcp4(1, 50).in_vxlan4(),
    ] {
        for (mode, value, canonical) in
            [(Checksum::Right, 0u16, true), (Checksum::NonCanonical, 0xffff, false)]
        {
            let mut frame = frame.clone();
            *frame.checksum_mut().unwrap() = mode;
            let frame = frame.with_zero_checksum();
            let at = frame.offsets().transport
                + if matches!(frame.transport, Transport::Tcp(_)) { 16 } else { 6 };
            assert_eq!(frame.to_bytes()[at..at + 2], value.to_be_bytes());
            assert_eq!(right(&frame).canonical, canonical);
        }
    }
    let udp = Frame::udp4(10).with_zero_checksum();
    assert_eq!(udp.to_bytes()[40..42], [0xff, 0xff]);
    assert!(right(&udp).canonical);
    for (mode, value, canonical) in
        [(Checksum::Right, 0u16, true), (Checksum::NonCanonical, 0xffff, false)]
    {
        let frame =
            Frame::tcp4(1, 1).with_ipv4(|ip| ip.checksum = mode).with_zero_header_checksum();
        assert_eq!(frame.to_bytes()[24..26], value.to_be_bytes());
        assert_eq!(right(&frame).canonical, canonical);
    }
}

#[test]
fn outer_sums_cover_what_the_device_makes_of_a_partial_checksum() {
    let frame = Frame::tcp4(1, 99).in_vxlan6();
    let complete = frame.to_bytes();
    let partial = frame.clone().with_checksum(Checksum::Partial).to_bytes();
    let field = frame.offsets().transport + 16;
    let differing: Vec<_> =
        (0..complete.len()).filter(|at| complete[*at] != partial[*at]).collect();
    assert!(
        !differing.is_empty() && differing.iter().all(|at| (field..field + 2).contains(at)),
        "{differing:?}"
    );
    check::frame(&partial, &Expect { partial: true, ..Expect::default() }).unwrap();
}

#[test]
fn fragments_hold_the_packet() {
    for frame in [Frame::udp4(1_000), Frame::udp6(1_000), Frame::udp4(1_000).in_gre()] {
        let whole = frame.to_bytes();
        let offsets = frame.offsets();
        let fragments = frame.fragments(400, 9);
        assert_eq!(fragments.len(), 3);
        let mut contents = Vec::new();
        for fragment in &fragments {
            let checked = right(fragment);
            assert!(checked.fragment);
            contents.extend_from_slice(&fragment.to_bytes()[checked.payload]);
        }
        assert_eq!(contents, whole[offsets.transport..offsets.end]);
    }
}

#[test]
fn runs_are_consecutive() {
    let run = Frame::tcp4(u32::MAX - 50, 100).with_id(0xffff).in_ip4().run(3);
    let sequences: Vec<_> = run
        .iter()
        .map(|frame| check::tcp_fields(&frame.to_bytes(), false).unwrap().sequence)
        .collect();
    assert_eq!(sequences, [u32::MAX - 50, 49, 149]);
    let ids: Vec<_> =
        run.into_iter().map(|mut frame| (frame.ipv4_mut().id, frame.outer_ipv4_mut().id)).collect();
    assert_eq!(ids, [(0xffff, 0), (0, 1), (1, 2)]);
    let run = Frame::dccp4(0xffff_ffff_ffff, 10).run(2);
    assert!(matches!(&run[1].transport, Transport::Dccp(dccp) if dccp.sequence == 0));
    assert_ne!(run[0].payload, run[1].payload);
}

#[test]
fn trailers_follow_the_packet() {
    let frame = Frame::tcp4(1, 1).padded_to(60);
    let bytes = frame.to_bytes();
    assert_eq!(
        (bytes.len(), right(&frame).trailing, check::payload(&bytes, false).unwrap().len()),
        (60, 5, 1)
    );
    assert!(check::frame(&bytes, &Expect::default()).is_err());
}
