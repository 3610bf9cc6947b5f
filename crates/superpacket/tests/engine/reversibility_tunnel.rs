//! Reversibility where it is subtle, the tunnels' share: VXLAN, Geneve and GRE headers, outer UDP
//! ports and checksums, outer IP headers.

use crate::expect::*;
use superpacket::aggregate::Reason::*;
use superpacket_traffic::frame::{
    Carrier, Checksum, Dccp, Ethernet, Frame, Geneve, Gre, Ip, Ipv4, Ipv6, Udp, Vlan, Vxlan,
};

fn vxlan(frame: &mut Frame) -> &mut Vxlan {
    match &mut frame.tunnel_mut().carrier {
        Carrier::Vxlan(vxlan) => vxlan,
        other => panic!("not VXLAN: {other:?}"),
    }
}

fn geneve(frame: &mut Frame) -> &mut Geneve {
    match &mut frame.tunnel_mut().carrier {
        Carrier::Geneve(geneve) => geneve,
        other => panic!("not Geneve: {other:?}"),
    }
}

fn gre(frame: &mut Frame) -> &mut Gre {
    match &mut frame.tunnel_mut().carrier {
        Carrier::Gre(gre) => gre,
        other => panic!("not GRE: {other:?}"),
    }
}

fn inner() -> [Frame; 4] {
    [Frame::tcp4(1000, 100), Frame::tcp6(1000, 100), Frame::udp4(100), Frame::dccp6(9, 100)]
}

fn in_gre_with_checksum(frame: Frame) -> Frame {
    frame.in_gre().with(|frame| gre(frame).checksum = Some(Checksum::Right))
}

/// Inner frames in every tunnel whose outer header is UDP, with and without an outer checksum.
fn over_udp() -> Vec<Frame> {
    inner()
        .into_iter()
        .flat_map(|frame| [frame.clone().in_vxlan4(), frame.clone().in_vxlan6(), frame.in_geneve()])
        .collect()
}

/// Inner frames in every tunnel over IPv4.
fn over_ipv4() -> Vec<Frame> {
    inner()
        .into_iter()
        .flat_map(|frame| {
            [
                frame.clone().in_vxlan4(),
                frame.clone().in_geneve(),
                frame.clone().in_gre(),
                frame.in_ip4(),
            ]
        })
        .collect()
}

/// Inner frames in tunnels over IPv6.
fn over_ipv6() -> Vec<Frame> {
    let outer = |frame: &Frame| frame.clone().in_ip6().tunnel_mut().ip.clone();
    inner()
        .into_iter()
        .flat_map(|frame| {
            [
                frame.clone().in_vxlan6(),
                frame.clone().in_ip6(),
                frame.clone().through(outer(&frame), Carrier::Gre(Gre::default()), false),
            ]
        })
        .collect()
}

#[test]
fn vxlan_with_any_other_bit_is_not_merged() {
    for base in inner().map(Frame::in_vxlan4).into_iter().chain(inner().map(Frame::in_vxlan6)) {
        // No VNI; GPE's P and O; group policy; any reserved bit.
        for flags in [0x00, 0x0c, 0x09, 0x88, 0xff] {
            refused(&base, Tunnel, |frame| vxlan(frame).flags = flags);
        }
        for reserved in [1, 0x80_0000] {
            refused(&base, Tunnel, |frame| vxlan(frame).reserved = reserved);
        }
        refused(&base, Tunnel, |frame| vxlan(frame).last_reserved = 3);
        two_flows(&base, &base.clone().with(|frame| vxlan(frame).vni = 2));
    }
}

#[test]
fn geneve_with_any_flag_is_not_merged() {
    for base in inner().map(Frame::in_geneve) {
        // O: control. C: critical options. The six bits after them; the byte after the VNI; another
        // version.
        for flags in [0x80, 0x40, 0x01, 0x20] {
            refused(&base, Tunnel, |frame| geneve(frame).flags = flags);
        }
        refused(&base, Tunnel, |frame| geneve(frame).last_reserved = 1);
        refused(&base, Tunnel, |frame| geneve(frame).version = 1);
        differs(&base, TunnelHeader, |frame| geneve(frame).options[7] = 0);
        differs(&base, TunnelHeader, |frame| geneve(frame).options.clear());
        differs(&base, TunnelHeader, |frame| geneve(frame).options.extend([1, 2, 4, 0]));
        two_flows(&base, &base.clone().with(|frame| geneve(frame).vni = 2));
        // Without an inner Ethernet header.
        merges(&base.clone().with(|frame| frame.tunnel_mut().link = None).run(5));
    }
}

#[test]
fn gre_with_more_than_checksum_and_key_is_not_merged() {
    for base in inner().map(Frame::in_gre).into_iter().chain(inner().map(in_gre_with_checksum)) {
        merges(&base.run(5));
        refused(&base, Tunnel, |frame| gre(frame).sequence = Some(1));
        // Version 1 (PPTP), routing present, strict source route.
        for flags in [0x0001, 0x4000, 0x0800, 0x0080] {
            refused(&base, Tunnel, |frame| gre(frame).flags = flags);
        }
        two_flows(&base, &base.clone().with(|frame| gre(frame).key = Some(8)));
        two_flows(&base, &base.clone().with(|frame| gre(frame).key = None));
        merges(&base.clone().with(|frame| gre(frame).key = None).run(5));
        // A key of 0 and none are one flow, in order, but not one packet.
        differs(&base.clone().with(|frame| gre(frame).key = None), TunnelHeader, |frame| {
            gre(frame).key = Some(0)
        });
        // Bridged.
        merges(
            &base.clone().with(|frame| frame.tunnel_mut().link = Some(Ethernet::default())).run(5),
        );
    }
}

#[test]
fn gre_checksums_are_right_and_canonical() {
    for base in inner().map(in_gre_with_checksum) {
        // A key that makes the right checksum 0. The sum does not depend on the payload, which the
        // inner checksum balances, nor on the inner identification, which the header checksum does.
        let mut zero = base.clone().with(|frame| gre(frame).key = Some(0x0007_0000));
        let field = zero.offsets().outer.expect("a tunnel") + 20 + 4;
        let read = |frame: &Frame| {
            u16::from_be_bytes([frame.to_bytes()[field], frame.to_bytes()[field + 1]])
        };
        let low = read(&zero);
        gre(&mut zero).key = Some(0x0007_0000 | u32::from(low));
        let mut frames = zero.run(5);
        assert!(frames.iter().all(|frame| read(frame) == 0));
        merges(&frames);
        gre(&mut frames[2]).checksum = Some(Checksum::NonCanonical);
        assert_eq!(read(&frames[2]), 0xffff);
        arrive(&frames, &[2, 1, 2], &[Overtaken, NonCanonicalChecksum, PollEnd]);

        refused(&base, BadChecksum, |frame| gre(frame).checksum = Some(Checksum::Wrong));
        refused(&base, Tunnel, |frame| gre(frame).reserved1 = 1);
        // With and without, by turns.
        differs(&base, TunnelHeader, |frame| gre(frame).checksum = None);
    }
}

#[test]
fn the_outer_source_port_must_be_equal() {
    // It is chosen by a hash of the inner flow and may move with it; order is kept across the
    // change, but no two ports merge.
    for base in over_udp() {
        differs(&base, TunnelHeader, |frame| frame.outer_udp_mut().source_port += 1);
    }
}

#[test]
fn outer_checksums_are_all_there_or_none_is() {
    for base in over_udp() {
        let with = base.clone().with_outer_checksum(Checksum::Right);
        let without = base.with_outer_checksum(Checksum::Zero);
        differs(&with, TunnelHeader, |frame| frame.outer_udp_mut().checksum = Checksum::Zero);
        differs(&without, TunnelHeader, |frame| frame.outer_udp_mut().checksum = Checksum::Right);
        refused(&with, BadChecksum, |frame| frame.outer_udp_mut().checksum = Checksum::Wrong);
        // A right sum over a wrong inner checksum.
        refused(&with, BadChecksum, |frame| frame.set_checksum(Checksum::Wrong));
        refused(&without, BadChecksum, |frame| frame.set_checksum(Checksum::Wrong));
    }
}

#[test]
fn an_outer_checksum_that_computes_to_0_is_ffff() {
    for base in over_udp() {
        let mut probe = base.with(|frame| {
            *frame.outer_udp_mut() =
                Udp { source_port: 0, checksum: Checksum::Right, ..*frame.outer_udp_mut() }
        });
        let outer = probe.offsets().outer.expect("a tunnel");
        let field = outer + if matches!(probe.tunnel_mut().ip, Ip::V4(_)) { 26 } else { 46 };
        let read = |frame: &Frame| {
            u16::from_be_bytes([frame.to_bytes()[field], frame.to_bytes()[field + 1]])
        };
        probe.outer_udp_mut().source_port = read(&probe);
        let frames = probe.run(5);
        assert!(
            frames.iter().all(|frame| read(frame) == 0xffff),
            "the sum depends on nothing that differs"
        );
        merges(&frames);
    }
}

#[test]
fn outer_ip_headers_must_be_equal() {
    for base in over_ipv4() {
        differs(&base, Ttl, |frame| frame.outer_ipv4_mut().ttl -= 1);
        differs(&base, Tos, |frame| frame.outer_ipv4_mut().tos = 0x20);
        differs(&base, Tos, |frame| frame.outer_ipv4_mut().tos = 0x03);
        differs(&base, DontFragment, |frame| frame.outer_ipv4_mut().dont_fragment = false);
        refused(&base, IpOptions, |frame| frame.outer_ipv4_mut().options = vec![1, 1, 1, 1]);
        refused(&base, BadIpChecksum, |frame| frame.outer_ipv4_mut().checksum = Checksum::Wrong);
        two_flows(&base, &base.clone().with(|frame| frame.outer_ipv4_mut().source[3] += 1));
    }
    for base in over_ipv6() {
        differs(&base, FlowLabel, |frame| frame.outer_ipv6_mut().flow_label = 77);
        differs(&base, Tos, |frame| frame.outer_ipv6_mut().traffic_class = 1);
        differs(&base, Ttl, |frame| frame.outer_ipv6_mut().hop_limit = 3);
        two_flows(&base, &base.clone().with(|frame| frame.outer_ipv6_mut().destination[15] ^= 1));
    }
}

#[test]
fn outer_identifications_have_their_own_step() {
    for base in over_ipv4() {
        let outer = |ids: [u16; 4]| {
            base.run(4)
                .into_iter()
                .zip(ids)
                .map(|(frame, id)| frame.with(|frame| frame.outer_ipv4_mut().id = id))
                .collect::<Vec<_>>()
        };
        merges(&outer([0xffff, 0, 1, 2]));
        merges(&outer([5, 5, 5, 5]));
        arrive(&outer([5, 6, 7, 7]), &[3, 1], &[IpId, PollEnd]);
        arrive(&outer([5, 5, 5, 6]), &[3, 1], &[IpId, PollEnd]);
        arrive(&outer([5, 7, 9, 11]), &[1; 4], &[IpId, IpId, IpId, PollEnd]);
    }
}

#[test]
fn inner_link_headers_must_be_equal() {
    for base in over_udp() {
        let base = base.with(|frame| frame.tunnel_mut().vlans = vec![Vlan::default()]);
        merges(&base.run(5));
        differs(&base, TunnelHeader, |frame| {
            frame.tunnel_mut().link.as_mut().expect("Ethernet").source[5] ^= 1
        });
        differs(&base, TunnelHeader, |frame| frame.tunnel_mut().vlans[0].pcp = 1);
        differs(&base, TunnelHeader, |frame| frame.tunnel_mut().vlans[0].vid = 2);
        differs(&base, TunnelHeader, |frame| frame.tunnel_mut().vlans.clear());
    }
}

#[test]
fn a_second_tunnel_is_not_merged() {
    // UDP to VXLAN's port inside a tunnel is a second one; so is IP in IP in IP.
    let base = Frame::udp4(100).in_vxlan4();
    refused(&base, Tunnel, |frame| frame.udp_mut().destination_port = 4789);
    let base = Frame::tcp4(1000, 100).in_ip6();
    refused(&base, Tunnel, |frame| {
        let inner = frame.clone().at_ip().with(|frame| frame.tunnel = None).to_bytes();
        frame.transport = superpacket_traffic::frame::Transport::Raw(4);
        frame.payload = inner;
    });
}

#[test]
fn an_outer_checksum_cannot_cover_what_an_inner_one_does_not() {
    // Partial coverage leaves data that only the outer checksum sums: reading it again to restore
    // that is more than merging is worth.
    for tunnelled in [Frame::dccp4(9, 100).in_vxlan6(), in_gre_with_checksum(Frame::dccp4(9, 100))]
    {
        refused(&tunnelled, Tunnel, |frame| frame.dccp_mut().coverage = 2);
    }
    merges(
        &Frame::dccp4(9, 100)
            .in_vxlan4()
            .with(|frame| *frame.dccp_mut() = Dccp { coverage: 2, ..frame.dccp_mut().clone() })
            .run(5),
    );
}

#[test]
fn partial_inner_checksums_go_through_tunnels() {
    for base in over_udp()
        .into_iter()
        .chain(over_ipv4())
        .chain(over_ipv6())
        .chain(inner().map(in_gre_with_checksum))
    {
        differs_packet(&base, ChecksumForm, partial);
        let all: Vec<_> = base.run(5).iter().map(partial).collect();
        assert_eq!(counts(&in_order(&all)), [5]);
    }
}

#[test]
fn every_pair_of_ip_versions_tunnels() {
    for inner in inner() {
        for ip in [Ip::V4(Ipv4::default()), Ip::V6(Ipv6::default())] {
            // The outer addresses may even be the inner ones.
            merges(&inner.clone().through(ip, Carrier::Ip, false).run(5));
        }
    }
}
