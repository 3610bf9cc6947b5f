//! A tunnel in a tunnel, VXLAN or Geneve in VXLAN or Geneve: what merges, what must be equal at
//! each level, which flows wait for which, and Linux's GRO hint.

use crate::expect::*;
use crate::support::{PARTIAL_GRO, PARTIAL_GRO_UDP, Packet, gso_of, run, segments};
use superpacket::aggregate::{Policy, Reason::*};
use superpacket::packet::{Layer, RxChecksum};
use superpacket::segment::{Gso, GsoKind, GsoPacket, SegmentError, SegmentOptions, Segmenter};
use superpacket::virtio::{Format, Header, Offload, VirtioError, gso_type};
use superpacket::wire::{MAX_HEADER, Refusal, Tunnel as Kind, ip_headers, parse, parse_datagram};
use superpacket_traffic::frame::{
    Carrier, Checksum, Ethernet, Frame, Geneve, Transport, Tunnel as Around, Udp, Vlan,
};

type Through = fn(Frame) -> Frame;

const TUNNELS: [Through; 3] = [Frame::in_vxlan4, Frame::in_vxlan6, Frame::in_geneve];

fn inner() -> [Frame; 4] {
    [Frame::tcp4(1000, 100), Frame::tcp6(1000, 100), Frame::udp4(100), Frame::dccp6(9, 100)]
}

/// An inner frame in each pair of tunnels.
fn in_two(frame: &Frame) -> impl Iterator<Item = Frame> {
    let frame = frame.clone();
    TUNNELS.into_iter().flat_map(move |inside| {
        let frame = frame.clone();
        TUNNELS.into_iter().map(move |outside| outside(inside(frame.clone())))
    })
}

fn bases() -> Vec<Frame> {
    inner().iter().flat_map(in_two).collect()
}

/// The two tunnels, the outermost first.
fn levels() -> [fn(&mut Frame) -> &mut Around; 2] {
    [Frame::tunnel_mut, Frame::nested_mut]
}

fn geneve(tunnel: &mut Around) -> &mut Geneve {
    match &mut tunnel.carrier {
        Carrier::Geneve(geneve) => geneve,
        other => panic!("not Geneve: {other:?}"),
    }
}

#[test]
fn two_tunnels_merge_and_come_apart_byte_for_byte() {
    for base in bases() {
        merges(&base.run(5));
        merges(&base.clone().tagged(7).run(5));
        merges(&base.clone().at_ip().run(5));
        // The last may be shorter.
        let mut frames = base.run(4);
        if !matches!(base.transport, Transport::Dccp(_)) {
            frames[3].payload.truncate(40);
            arrive(&frames, &[4], &[ShortSegment]);
        }
    }
}

#[test]
fn the_layout_names_both_tunnels_from_the_outside_in() {
    let frame = Frame::tcp6(1, 100).in_vxlan6().in_geneve();
    let (bytes, offsets) = (frame.to_bytes(), frame.offsets());
    let layout = parse(&bytes, bytes.len(), Layer::Ethernet).expect("two tunnels");
    let found: Vec<_> = layout
        .outers()
        .map(|outer| (outer.tunnel, usize::from(outer.network), usize::from(outer.transport)))
        .collect();
    let (outer, nested) = (offsets.outer.expect("a tunnel"), offsets.nested.expect("another"));
    assert_eq!(found, [(Kind::Geneve, outer, outer + 20), (Kind::Vxlan, nested, nested + 40)]);
    assert_eq!(
        (usize::from(layout.network), usize::from(layout.payload)),
        (offsets.network, offsets.payload)
    );
    assert_eq!(
        (usize::from(layout.outermost()), layout.end as usize, layout.refusal),
        (outer, bytes.len(), None)
    );
    let networks = ip_headers(&bytes, bytes.len(), Layer::Ethernet)
        .map(|found| found.map(|(network, _)| usize::from(network)));
    assert_eq!(networks, [Some(outer), Some(nested), Some(offsets.network)]);
}

#[test]
fn both_outer_headers_must_be_equal() {
    for base in bases() {
        for tunnel in levels() {
            differs(&base, TunnelHeader, |frame| tunnel(frame).udp_mut().source_port += 1);
            differs(&base, TunnelHeader, |frame| {
                tunnel(frame).link.as_mut().expect("Ethernet").source[5] ^= 1
            });
            differs(&base, TunnelHeader, |frame| tunnel(frame).vlans.push(Vlan::default()));
            let with_other = |edit: fn(&mut Around)| base.clone().with(|frame| edit(tunnel(frame)));
            two_flows(
                &base,
                &with_other(|tunnel| match &mut tunnel.carrier {
                    Carrier::Vxlan(vxlan) => vxlan.vni = 2,
                    Carrier::Geneve(geneve) => geneve.vni = 2,
                    other => panic!("not in UDP: {other:?}"),
                }),
            );
            if let superpacket_traffic::frame::Ip::V4(_) = tunnel(&mut base.clone()).ip {
                differs(&base, Ttl, |frame| tunnel(frame).ipv4_mut().ttl -= 1);
                differs(&base, Tos, |frame| tunnel(frame).ipv4_mut().tos = 3);
                differs(&base, DontFragment, |frame| {
                    tunnel(frame).ipv4_mut().dont_fragment = false
                });
                refused(&base, IpOptions, |frame| tunnel(frame).ipv4_mut().options = vec![1; 4]);
                refused(&base, BadIpChecksum, |frame| {
                    tunnel(frame).ipv4_mut().checksum = Checksum::Wrong
                });
                two_flows(&base, &with_other(|tunnel| tunnel.ipv4_mut().source[3] += 1));
            }
        }
    }
}

#[test]
fn identifications_of_each_level_have_their_own_step() {
    let base = Frame::tcp4(1000, 100).in_vxlan4().in_geneve();
    let with = |level: fn(&mut Frame) -> &mut Around, ids: [u16; 4]| -> Vec<Frame> {
        base.run(4)
            .into_iter()
            .zip(ids)
            .map(|(frame, id)| frame.with(|frame| level(frame).ipv4_mut().id = id))
            .collect()
    };
    for level in levels() {
        merges(&with(level, [0xffff, 0, 1, 2]));
        merges(&with(level, [5, 5, 5, 5]));
        arrive(&with(level, [5, 6, 7, 7]), &[3, 1], &[IpId, PollEnd]);
        arrive(&with(level, [5, 5, 5, 6]), &[3, 1], &[IpId, PollEnd]);
        arrive(&with(level, [5, 7, 9, 11]), &[1; 4], &[IpId, IpId, IpId, PollEnd]);
    }
}

#[test]
fn checksums_of_each_level_are_all_there_or_none_is() {
    for base in bases() {
        for outer in [Checksum::Zero, Checksum::Right] {
            for nested in [Checksum::Zero, Checksum::Right] {
                let base = base.clone().with(|frame| {
                    frame.outer_udp_mut().checksum = outer;
                    frame.nested_mut().udp_mut().checksum = nested;
                });
                merges(&base.run(5));
                let partial_inner: Vec<_> = base.run(5).iter().map(partial).collect();
                assert_eq!(counts(&in_order(&partial_inner)), [5]);
                for (level, checksum) in levels().into_iter().zip([outer, nested]) {
                    let other =
                        if checksum == Checksum::Zero { Checksum::Right } else { Checksum::Zero };
                    differs(&base, TunnelHeader, |frame| level(frame).udp_mut().checksum = other);
                    refused(&base, BadChecksum, |frame| {
                        level(frame).udp_mut().checksum = Checksum::Wrong
                    });
                }
                refused(&base, BadChecksum, |frame| frame.set_checksum(Checksum::Wrong));
            }
        }
    }
}

/// A field of 0xFFFF where the sum comes to 0.
#[test]
fn a_nested_checksum_that_computes_to_0_is_ffff() {
    for base in in_two(&Frame::tcp4(1000, 100)) {
        let mut probe = base.with(|frame| {
            let udp = frame.nested_mut().udp_mut();
            *udp = Udp { source_port: 0, checksum: Checksum::Right, ..*udp };
            frame.outer_udp_mut().checksum = Checksum::Right;
        });
        let nested = probe.offsets().nested.expect("a second tunnel");
        let field = nested
            + if matches!(probe.nested_mut().ip, superpacket_traffic::frame::Ip::V4(_)) {
                26
            } else {
                46
            };
        let read = |frame: &Frame| {
            u16::from_be_bytes([frame.to_bytes()[field], frame.to_bytes()[field + 1]])
        };
        probe.nested_mut().udp_mut().source_port = read(&probe);
        let frames = probe.run(5);
        assert!(
            frames.iter().all(|frame| read(frame) == 0xffff),
            "the sum depends on nothing that differs"
        );
        merges(&frames);
    }
}

/// Each checksum that is there takes one of those that a device vouches for.
#[test]
fn a_device_vouches_for_as_many_checksums_as_there_are() {
    let base = Frame::tcp4(1000, 100).in_vxlan4().in_geneve().with(|frame| {
        frame.outer_udp_mut().checksum = Checksum::Right;
        frame.nested_mut().udp_mut().checksum = Checksum::Right;
    });
    let verified = |level: u8| {
        let checksum = RxChecksum::Unnecessary { level };
        let mut packets =
            [&base, &base.following()].map(|frame| Packet::from(frame).with_checksum(checksum));
        // What the outer checksums cover too, but are not compared with.
        *packets[1].bytes.last_mut().expect("payload") ^= 1;
        run(PARTIAL_GRO, &packets).reasons()
    };
    for level in [0, 1] {
        assert_eq!(
            verified(level),
            [Overtaken, BadChecksum],
            "level {level} does not reach the innermost"
        );
    }
    assert_eq!(verified(2), [PollEnd], "it is believed");
    let merged = run(Policy::gro(), &[base.clone(), base.following()].map(Packet::from));
    assert_eq!(merged.outputs[0].metadata.checksum, RxChecksum::Unnecessary { level: 2 });
}

#[test]
fn lengths_that_contradict_each_other_are_refused_at_each_level() {
    for base in in_two(&Frame::tcp4(1000, 100)) {
        for level in levels() {
            refused(&base, UdpLength, |frame| {
                let udp = level(frame).udp_mut();
                (udp.length, udp.checksum) = (Some(40), Checksum::Zero);
            });
        }
        if let superpacket_traffic::frame::Ip::V4(_) = base.clone().nested_mut().ip {
            let length =
                (base.offsets().end - base.offsets().nested.expect("a second tunnel")) as u16;
            refused(&base, Padded, |frame| {
                frame.nested_mut().ipv4_mut().total_length = Some(length - 1)
            });
            refused(&base, Truncated, |frame| {
                frame.nested_mut().ipv4_mut().total_length = Some(length + 1)
            });
        }
        // Cut short within each header.
        let whole = base.to_bytes();
        for length in 0..base.offsets().payload {
            let found = parse(&whole[..length], length, Layer::Ethernet);
            assert!(found.is_err(), "{length} of {}: {found:?}", base.offsets().payload);
        }
    }
}

#[test]
fn headers_longer_than_the_limit_pass() {
    let long = Frame::tcp6(1, 100)
        .with_tcp(|tcp| tcp.options = vec![1; 40])
        .in_vxlan6()
        .in_vxlan6()
        .tagged(5);
    assert!(long.offsets().payload > MAX_HEADER);
    let bytes = long.to_bytes();
    let found = parse(&bytes[..MAX_HEADER], bytes.len(), Layer::Ethernet).expect_err("too long");
    assert_eq!(found.reason, Refusal::HeaderTooLong);
    // Tagged, with timestamps, IPv6 at all levels.
    merges(&Frame::tcp6(1, 100).with_timestamps(1, 2).in_vxlan6().in_vxlan6().tagged(5).run(3));
}

#[test]
fn a_nested_tunnel_header_that_cannot_be_read_waits_for_all_it_may_carry() {
    for base in bases() {
        refused(&base, Tunnel, |frame| match &mut frame.nested_mut().carrier {
            Carrier::Vxlan(vxlan) => vxlan.flags = 0,
            Carrier::Geneve(geneve) => geneve.flags = 0x40,
            other => panic!("not in UDP: {other:?}"),
        });
        refused(&base, Tunnel, |frame| match &mut frame.tunnel_mut().carrier {
            Carrier::Vxlan(vxlan) => vxlan.flags = 0,
            Carrier::Geneve(geneve) => geneve.flags = 0x40,
            other => panic!("not in UDP: {other:?}"),
        });
    }
}

/// Of the outermost, of the nested and of the innermost IP packet.
#[test]
fn fragments_of_each_ip_packet_wait() {
    let base = Frame::tcp4(1000, 100).in_vxlan4().in_geneve().with(|frame| {
        // Another pair of addresses at each level.
        (frame.nested_mut().ipv4_mut().source, frame.nested_mut().ipv4_mut().destination) =
            ([10, 7, 0, 1], [10, 7, 0, 2]);
    });
    refused(&base, Fragment, |frame| frame.outer_ipv4_mut().fragment_offset = 5);
    refused(&base, Fragment, |frame| frame.nested_mut().ipv4_mut().fragment_offset = 5);
    refused(&base, Fragment, |frame| frame.ipv4_mut().fragment_offset = 5);
    // Those between other addresses do not.
    let frames = base.run(3);
    for level in levels() {
        let mut packets: Vec<_> = frames.iter().map(Packet::from).collect();
        let other = frames[0].clone().with(|frame| {
            let ip = level(frame).ipv4_mut();
            (ip.source, ip.fragment_offset) = ([10, 99, 99, 99], 5);
        });
        packets.insert(1, other.into());
        let run = run(PARTIAL_GRO_UDP, &packets);
        left(&run, &[1, 3], &[Fragment, PollEnd]);
    }
}

/// Flows of two tunnels come and go, and with them the lists of the pairs between.
#[test]
fn many_flows_in_two_tunnels_keep_their_order() {
    let flow = |number: u8| {
        Frame::tcp4(1000, 100).in_vxlan4().in_geneve().with(|frame| {
            frame.tcp_mut().source_port = 2_000 + u16::from(number);
            frame.nested_mut().ipv4_mut().source = [10, 7, number % 5, 1];
        })
    };
    let mut packets = Vec::new();
    for round in 0..6 {
        for number in 0..40 {
            let frame = flow(number).run(round + 1).pop().expect("a frame");
            packets.push(Packet::from(&frame));
            if (usize::from(number) + round).is_multiple_of(9) {
                packets.push(
                    frame.with(|frame| frame.nested_mut().ipv4_mut().fragment_offset = 5).into(),
                );
            }
        }
    }
    for most in [1, 3, 8, 64] {
        reversed_by(Policy::gro().with_max_flows(most), &packets);
    }
}

#[test]
fn a_third_tunnel_is_not_entered() {
    for base in in_two(&Frame::udp4(100)) {
        for port in [4789, 6081] {
            refused(&base, Tunnel, |frame| frame.udp_mut().destination_port = port);
        }
        let third = |frame: &mut Frame| {
            let mut payload = vec![0x08, 0, 0, 0, 0, 0, 1, 0];
            payload.extend(Frame::tcp4(1, 20).to_bytes());
            (frame.udp_mut().destination_port, frame.payload) = (4789, payload);
        };
        refused(&base, Tunnel, third);
    }
}

#[test]
fn only_tunnels_in_udp_are_nested() {
    for inside in [Frame::in_gre, Frame::in_ip4] {
        for frame in
            [inside(Frame::tcp4(1, 100)).in_vxlan4(), inside(Frame::tcp4(1, 100)).in_geneve()]
        {
            let bytes = frame.to_bytes();
            assert_eq!(
                parse(&bytes, bytes.len(), Layer::Ethernet).expect_err("refused").reason,
                Refusal::Tunnel
            );
        }
    }
    for outside in [Frame::in_gre, Frame::in_ip6] {
        let bytes = outside(Frame::tcp4(1, 100).in_vxlan4()).to_bytes();
        assert_eq!(
            parse(&bytes, bytes.len(), Layer::Ethernet).expect_err("refused").reason,
            Refusal::Tunnel
        );
    }
}

/// Every tunnel in Geneve, with and without an Ethernet header.
fn in_geneve() -> Vec<Frame> {
    let bare = |frame: Frame| frame.with(|frame| frame.tunnel_mut().link = None);
    let inside = |frame: &Frame| {
        TUNNELS
            .map(|through| through(frame.clone()))
            .into_iter()
            .chain([bare(frame.clone().in_geneve())])
    };
    let outside = |frame: Frame| [frame.clone().in_geneve(), bare(frame.in_geneve())];
    inner().iter().flat_map(inside).flat_map(outside).collect()
}

#[test]
fn a_gro_hint_that_agrees_merges() {
    for base in in_geneve() {
        merges(&base.clone().with_gro_hint().run(5));
        // Behind what lies before the second tunnel's IP header.
        if let Some(Ethernet { .. }) = base.clone().tunnel_mut().link {
            merges(
                &base
                    .with(|frame| frame.tunnel_mut().vlans.push(Vlan::default()))
                    .with_gro_hint()
                    .run(5),
            );
        }
    }
}

#[test]
fn a_gro_hint_that_contradicts_the_headers_is_refused() {
    for base in in_geneve() {
        let base = base.with_gro_hint();
        let place = geneve(base.clone().tunnel_mut()).options.len() - 4;
        // The nested protocol, its IP version, its IP and UDP headers, the length of all.
        for (byte, bits) in [(0, 0x01), (0, 0x03), (0, 0x04), (1, 1), (2, 1), (3, 1), (3, 0x80)] {
            refused(&base, Tunnel, |frame| {
                geneve(frame.tunnel_mut()).options[place + byte] ^= bits
            });
        }
        // Bits that the hint does not define are like any others of an option.
        differs(&base, TunnelHeader, |frame| geneve(frame.tunnel_mut()).options[place] ^= 0x80);
        // Not the hint: other options must be equal, no more.
        for (byte, bits) in [(0, 0x02), (1, 0x01), (2, 0x02)] {
            differs(&base, TunnelHeader, |frame| {
                geneve(frame.tunnel_mut()).options[place - 4 + byte] ^= bits
            });
        }
    }
}

#[test]
fn a_gro_hint_where_there_is_no_further_tunnel_is_refused() {
    let hint = [0x01, 0x00, 1, 1, 0, 14, 34, 50];
    for base in inner() {
        refused(&base.clone().in_geneve(), Tunnel, |frame| {
            geneve(frame.tunnel_mut()).options.extend(hint)
        });
        // In the second tunnel it would speak of a third.
        for base in [base.clone().in_geneve().in_geneve(), base.in_geneve().in_vxlan6()] {
            refused(&base, Tunnel, |frame| geneve(frame.nested_mut()).options.extend(hint));
        }
    }
}

#[test]
fn no_virtio_header_names_two_tunnels() {
    let frame = Frame::tcp4(1, 3000).in_vxlan4().in_geneve();
    let (bytes, offsets) = (frame.to_bytes(), frame.offsets());
    let gso = gso_of(GsoKind::Tcp4, 1000);
    let checksum = RxChecksum::Partial { start: offsets.transport as u16, offset: 16 };
    for format in [Format::Plain, Format::Buffers, Format::Hash, Format::Tunnel] {
        let described = Header::describe(
            &Offload::new(checksum, Some(gso)),
            format,
            &bytes,
            bytes.len(),
            Layer::Ethernet,
        );
        assert_eq!(described, Err(VirtioError::Unnamed(GsoKind::Tcp4)));
    }
    // One that claims to: the outermost tunnel, and either of the packets inside.
    let outer = offsets.outer.expect("a tunnel") + 20;
    for (kind, network) in [
        (gso_type::TCPV4, 0),
        (gso_type::TCPV4 | gso_type::UDP_TUNNEL_IPV4, offsets.network),
        (gso_type::TCPV4 | gso_type::UDP_TUNNEL_IPV4, offsets.nested.expect("a second tunnel")),
    ] {
        let header = Header {
            flags: superpacket::virtio::flags::NEEDS_CSUM,
            gso_type: kind,
            gso_size: 1000,
            csum_start: offsets.transport as u16,
            csum_offset: 16,
            outer_th_offset: outer as u16,
            inner_nh_offset: network as u16,
            ..Header::default()
        };
        let read = header.offload(Format::Tunnel, &bytes, bytes.len(), Layer::Ethernet);
        assert_eq!(read, Err(VirtioError::Protocol { gso_type: kind }));
    }
}

fn cut(bytes: &[u8], gso: Gso, checksum: RxChecksum) -> Result<Vec<Vec<u8>>, SegmentError> {
    let packet = GsoPacket::linear(&bytes, gso).with_checksum(checksum);
    segments(&packet, &SegmentOptions::default())
}

#[test]
fn lengths_that_contradict_each_other_are_not_cut() {
    let gso = gso_of(GsoKind::Tcp4, 100);
    let base = Frame::tcp4(1, 300).in_vxlan4().in_geneve();
    let refused = |edit: fn(&mut Frame)| {
        cut(&base.clone().with(edit).to_bytes(), gso, RxChecksum::None).expect_err("refused")
    };
    let nested = base.offsets().end - base.offsets().nested.expect("a second tunnel");
    assert_eq!(
        refused(|frame| frame.nested_mut().ipv4_mut().total_length = Some(300)),
        SegmentError::Length { needed: nested, got: 300 }
    );
    assert!(matches!(
        refused(|frame| frame.nested_mut().ipv4_mut().total_length = Some(3000)),
        SegmentError::Truncated { .. }
    ));
    assert!(matches!(
        refused(|frame| frame.nested_mut().udp_mut().length = Some(9)),
        SegmentError::Length { got: 9, .. }
    ));
    assert!(matches!(
        refused(|frame| frame.ipv4_mut().total_length = Some(100)),
        SegmentError::Length { got: 100, .. }
    ));
}

/// A device that cuts UDP is told by the place of the partial checksum which of three headers is
/// meant.
#[test]
fn datagrams_are_cut_at_the_header_of_their_partial_checksum() {
    let mut datagram = vec![0x08, 0, 0, 0, 0, 0, 1, 0];
    datagram.extend(Frame::udp4(300).to_bytes());
    let size = datagram.len();
    let tunnelled = Frame::udp4(0).with(|frame| {
        (frame.udp_mut().destination_port, frame.payload) = (4789, datagram.repeat(3))
    });
    let frame = tunnelled.in_geneve();
    let (partial, offsets) = (frame.clone().with_checksum(Checksum::Partial), frame.offsets());
    let checksum = RxChecksum::Partial { start: offsets.transport as u16, offset: 6 };
    let gso = gso_of(GsoKind::Udp, size);
    let segments =
        cut(&partial.to_bytes(), gso, checksum).expect("three datagrams of VXLAN in Geneve");
    let whole = frame.clone().with(|frame| frame.payload.truncate(size)).run_bytes(3);
    assert_eq!(segments, whole);
    // Without it, the innermost that can be read.
    let bytes = frame.to_bytes();
    let layout =
        parse_datagram(&bytes, bytes.len(), Layer::Ethernet).expect("a datagram in two tunnels");
    assert!(layout.nested.is_some() && usize::from(layout.transport) > offsets.transport);
}

/// A partial checksum of the nested tunnel's UDP header is completed, as of any other.
#[test]
fn a_partial_checksum_between_the_tunnels_is_completed() {
    for through in TUNNELS {
        let frame = through(Frame::tcp4(1, 100).in_vxlan4().with_outer_checksum(Checksum::Right));
        let partial =
            frame.clone().with(|frame| frame.nested_mut().udp_mut().checksum = Checksum::Partial);
        let start = frame.offsets().nested.expect("a second tunnel") + 20;
        let bytes = partial.to_bytes();
        let packet = GsoPacket::linear(&bytes, None)
            .with_checksum(RxChecksum::Partial { start: start as u16, offset: 6 });
        let mut completed = Vec::new();
        Segmenter::new()
            .segment(&packet, &SegmentOptions::default(), |segment| segment.copy_to(&mut completed))
            .expect("completed");
        // The outer checksum is that of the packet once it is completed.
        assert_eq!(completed, frame.to_bytes());
    }
}
