//! Order: what cannot merge waits for what is held of its flow. A fragment, a bad checksum, an IP
//! option, a cut frame, each between frames that merge, in every tunnel.

use crate::expect::*;
use crate::support::*;
use superpacket::aggregate::{Reason, Reason::*};
use superpacket_traffic::frame::{
    Carrier, Checksum, Extension, Frame, Gre, Icmp, Ip, Ipv4, Transport,
};

fn inner() -> [Frame; 4] {
    [Frame::tcp4(1000, 100), Frame::tcp6(1000, 100), Frame::udp4(100), Frame::udp6(100)]
}

/// Each in every tunnel and under every link header.
fn everywhere() -> Vec<Frame> {
    let checked =
        Carrier::Gre(Gre { key: Some(7), checksum: Some(Checksum::Right), ..Gre::default() });
    let with_checksum =
        |frame: &Frame| frame.clone().through(Ip::V4(Ipv4::default()), checked.clone(), false);
    inner()
        .iter()
        .flat_map(|frame| frame.shapes(7).into_iter().chain([with_checksum(frame)]))
        .collect()
}

/// The frame's fragment that `pick` takes.
fn fragment(frame: &Frame, pick: impl Fn(usize) -> usize) -> Packet {
    let fragments = frame.fragments(48, 77);
    assert!(fragments.len() > 1);
    Packet::from(&fragments[pick(fragments.len())])
}

#[test]
fn a_fragment_waits_for_its_address_pair() {
    for base in everywhere() {
        refused_packet(&base, Fragment, |frame| fragment(frame, |_| 0));
        // Without ports: only the addresses tell whom it may belong to.
        refused_packet(&base, Fragment, |frame| fragment(frame, |_| 1));
        refused_packet(&base, Fragment, |frame| fragment(frame, |count| count - 1));
    }
}

#[test]
fn a_fragment_of_the_outer_packet_waits_for_all_it_may_carry() {
    for base in everywhere().into_iter().filter(|frame| frame.tunnel.is_some()) {
        for (offset, more) in [(0, true), (3, false)] {
            refused(&base, Fragment, |frame| match &mut frame.tunnel_mut().ip {
                Ip::V4(ip) => {
                    (ip.dont_fragment, ip.fragment_offset, ip.more_fragments) =
                        (false, offset, more)
                }
                Ip::V6(ip) => ip.extensions.push(Extension::Fragment { offset, more, id: 5 }),
            });
        }
    }
}

#[test]
fn a_bad_checksum_waits_for_its_flow() {
    for base in everywhere() {
        refused(&base, BadChecksum, |frame| frame.set_checksum(Checksum::Wrong));
        if let Ip::V4(_) = base.ip {
            refused(&base, BadIpChecksum, |frame| frame.ipv4_mut().checksum = Checksum::Wrong);
        }
    }
}

#[test]
fn ip_options_wait_for_their_flow() {
    for base in everywhere().into_iter().filter(|frame| matches!(frame.ip, Ip::V4(_))) {
        for options in [
            vec![1, 1, 1, 1],
            vec![0x94, 4, 0, 0],
            vec![7, 39].into_iter().chain([0; 38]).collect(),
        ] {
            refused(&base, IpOptions, |frame| frame.ipv4_mut().options = options.clone());
        }
    }
}

#[test]
fn a_cut_frame_waits_for_its_flow() {
    for base in everywhere() {
        let offsets = base.offsets();
        // In the payload, by its last byte; in the transport header, where the ports are there or
        // not.
        for length in [
            offsets.end - 1,
            offsets.payload + 1,
            offsets.payload,
            offsets.payload - 1,
            offsets.transport + 4,
            offsets.transport + 1,
            offsets.transport,
        ] {
            refused_packet(&base, Truncated, |frame| truncated(frame, length));
        }
        // In the inner IP header: the outer addresses are there, and whatever goes through that
        // tunnel may be its own.
        if base.tunnel.is_some() {
            refused_packet(&base, Truncated, |frame| truncated(frame, offsets.network + 7));
        }
    }
}

#[test]
fn headers_that_contradict_themselves_wait_for_their_flow() {
    for base in everywhere() {
        if let Transport::Tcp(_) = base.transport {
            // A data offset below the header's own length, and one behind the packet's end.
            refused(&base, Malformed, |frame| frame.tcp_mut().data_offset = Some(4));
            refused(&base.clone().with(|frame| frame.payload.truncate(8)), Malformed, |frame| {
                frame.tcp_mut().data_offset = Some(15)
            });
        }
        if let Ip::V4(_) = base.ip {
            refused(&base, Malformed, |frame| frame.ipv4_mut().ihl = Some(4));
        }
    }
}

#[test]
fn a_tunnel_header_that_cannot_be_read_waits_for_all_it_may_carry() {
    for base in inner() {
        refused(&base.clone().in_vxlan4(), Tunnel, |frame| match &mut frame.tunnel_mut().carrier {
            Carrier::Vxlan(vxlan) => vxlan.flags = 0,
            _ => unreachable!("VXLAN"),
        });
        refused(&base.in_gre(), Tunnel, |frame| match &mut frame.tunnel_mut().carrier {
            Carrier::Gre(gre) => gre.sequence = Some(9),
            _ => unreachable!("GRE"),
        });
    }
}

#[test]
fn what_is_of_another_flow_for_sure_does_not_wait() {
    // ICMP between the same addresses, and fragments between others.
    let frames = Frame::tcp4(1000, 100).run(4);
    let echo = Frame { transport: Transport::Icmp(Icmp::default()), ..frames[0].clone() };
    let other = frames[0].clone().with_ipv4(|ip| {
        ip.source = [10, 9, 9, 9];
        ip.fragment_offset = 5;
    });
    let mut turns = packets(&frames);
    turns.insert(2, Packet::from(&other));
    turns.insert(2, Packet::from(&echo));
    let run = reversed(&turns);
    left(&run, &[1, 1, 4], &[Protocol, Fragment, PollEnd]);
}

#[test]
fn a_change_between_frames_does_not_reorder_them() {
    // Each of these is of the flow that is held, ends it, and is followed by frames as before.
    let base = Frame::tcp4(1000, 100).tagged(7);
    type Edit = fn(&mut Frame);
    let edits: [(Reason, Edit); 6] = [
        (LinkHeader, |frame| frame.vlans[0].pcp = 1),
        (Ttl, |frame| frame.ipv4_mut().ttl = 1),
        (Tos, |frame| frame.ipv4_mut().tos = 1),
        (Window, |frame| frame.tcp_mut().window = 1),
        (FlagsChanged, |frame| frame.tcp_mut().flags |= 0x40),
        (Acknowledgement, |frame| frame.tcp_mut().acknowledgement = 9),
    ];
    // All of them by turns, with plain frames between.
    let mut frames = base.run(edits.len() * 3);
    for (index, (_, edit)) in edits.iter().enumerate() {
        edit(&mut frames[index * 3 + 2]);
    }
    let reasons: Vec<_> =
        edits.iter().flat_map(|&(reason, _)| [reason, reason]).take(11).chain([PollEnd]).collect();
    arrive(&frames, &[2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1], &reasons);
}

#[test]
fn order_holds_across_polls_that_hold() {
    let policy = PARTIAL_GRO_UDP.with_hold_time(1_000_000);
    for base in everywhere() {
        let frames = base.run(6);
        let mut packets = packets(&frames);
        packets[3] = fragment(&frames[3], |_| 1);
        let run = run_polls(policy, &packets, 1);
        left(&run, &[3, 1, 2], &[Overtaken, Fragment, Requested]);
        let back: Vec<_> = run.outputs.iter().flat_map(Output::cut).collect();
        assert_eq!(back, packets.iter().map(|packet| packet.bytes.clone()).collect::<Vec<_>>());
    }
}
