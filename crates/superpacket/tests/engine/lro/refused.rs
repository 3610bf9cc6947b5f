//! What LRO leaves alone passes untouched after what is held of its flow; what does not fit ends a
//! session and starts another.

use superpacket::aggregate::Reason;
use superpacket::segment::GsoKind;
use superpacket::super_packet::SuperPacket;
use superpacket_traffic::frame::{
    ACK, CWR, ECE, FIN, Frame, PSH, RST, SYN, Transport, URG, sack, timestamps,
};

use super::{assert_all_untouched, assert_merged, assert_refused, both_modes, tcp};
use crate::support::*;

/// Asserts that the third of four segments, after `edit`, ends the session before it for `reason`
/// and starts the next.
#[track_caller]
fn assert_ends(base: &Frame, edit: impl Fn(&mut Frame), reason: Reason) {
    let mut frames = base.run(4);
    frames[2..].iter_mut().for_each(edit);
    let length = base.payload.len();
    for policy in both_modes() {
        let run = run(policy, &packets(&frames));
        assert_eq!(run.reasons(), [reason, Reason::PollEnd]);
        assert_merged(&run.outputs[0], 1, 2 * length, 2);
        assert_eq!(tcp(&run.outputs[1]).payload, 2 * length);
        assert_eq!((run.counters.aggregated, run.counters.flushed), (4, 2));
    }
}

fn refused(base: &Frame, edit: impl FnOnce(&mut Frame)) -> Packet {
    base.run(3)[2].clone().with(edit).into()
}

/// Asserts that the third of four segments, after `edit`, passes for `reason`.
#[track_caller]
fn refuses(base: &Frame, edit: impl FnOnce(&mut Frame), reason: Reason) {
    assert_refused(&refused(base, edit), base, reason);
}

#[test]
fn connection_control() {
    for base in [
        Frame::tcp4(1, 500),
        Frame::tcp6(1, 500).with_timestamps(1, 2),
        Frame::tcp4(1, 500).tagged(7),
    ] {
        for flags in [SYN, SYN | ACK, RST, RST | ACK, ACK | URG, ACK | FIN, ACK | FIN | PSH, PSH, 0]
        {
            refuses(&base, |frame| frame.tcp_mut().flags = flags, Reason::TcpFlags);
        }
    }
}

#[test]
fn congestion_echo() {
    for base in [Frame::tcp4(1, 500), Frame::tcp6(1, 500)] {
        for flags in [ACK | ECE, ACK | CWR, ACK | ECE | CWR] {
            refuses(&base, |frame| frame.tcp_mut().flags = flags, Reason::Congestion);
        }
    }
}

#[test]
fn congestion_experienced() {
    // The whole flow is ECN-capable, and one packet met congestion.
    let base = Frame::tcp4(1, 500).with_ipv4(|ip| ip.tos = 2);
    refuses(&base, |frame| frame.ipv4_mut().tos = 3, Reason::Congestion);
    let base = Frame::tcp6(1, 500).with_ipv6(|ip| ip.traffic_class = 2);
    refuses(&base, |frame| frame.ipv6_mut().traffic_class = 3, Reason::Congestion);
}

#[test]
fn ip_options() {
    let base = Frame::tcp4(1, 500);
    refuses(&base, |frame| frame.ipv4_mut().options = vec![1, 1, 1, 0], Reason::IpOptions);
}

#[test]
fn fragments() {
    let base = Frame::tcp4(1, 500);
    for fragment in base.run(3)[2].fragments(256, 1) {
        assert_refused(&fragment.into(), &base, Reason::Fragment);
    }
}

#[test]
fn tcp_options_other_than_an_aligned_timestamp() {
    for base in [Frame::tcp4(1, 500), Frame::tcp4(1, 500).with_timestamps(1, 2)] {
        let unaligned = [vec![8, 10], timestamps(1, 2)[4..].to_vec(), vec![1, 1]].concat();
        let reversed = [vec![8, 10], timestamps(1, 2)[4..].to_vec(), vec![0, 0]].concat();
        for options in [
            vec![1, 1, 1, 0],
            sack(&[(1, 2)]),
            unaligned,
            reversed,
            [timestamps(1, 2), vec![1, 1, 1, 1]].concat(),
            vec![1; 12],
            [timestamps(1, 2), sack(&[(1, 2)])].concat(),
        ] {
            refuses(&base, |frame| frame.tcp_mut().options = options, Reason::TcpOptions);
        }
    }
}

#[test]
fn a_timestamp_without_an_echo() {
    let base = Frame::tcp4(1, 500).with_timestamps(1, 2);
    refuses(&base, |frame| frame.tcp_mut().options = timestamps(1, 0), Reason::TcpOptions);
    refuses(
        &base.tagged(7),
        |frame| frame.tcp_mut().options = timestamps(1, 0),
        Reason::TcpOptions,
    );
}

#[test]
fn a_flow_that_is_refused_from_the_start_is_never_held() {
    for frame in [
        Frame::tcp4(1, 500).with_timestamps(1, 0),
        Frame::tcp4(1, 500).with_flags(ACK | ECE),
        Frame::tcp4(1, 500).with_ipv4(|ip| ip.tos = 3),
    ] {
        let input = packets(&frame.run(3));
        for policy in both_modes() {
            let run = run(policy, &input);
            assert_eq!(
                (run.counters.aggregated, run.counters.flushed, run.counters.packets_out),
                (0, 0, 3)
            );
            assert_all_untouched(&run, &input);
        }
    }
}

#[test]
fn other_protocols_and_tunnels() {
    for frame in [
        Frame::tcp4(1, 500).in_vxlan4(),
        Frame::tcp4(1, 500).in_gre(),
        Frame::tcp6(1, 500).in_ip4(),
        Frame::tcp4(1, 500).in_ip6(),
        Frame::dccp4(1, 500),
        Frame::udp4(500),
    ] {
        let input = packets(&frame.run(3));
        for policy in both_modes() {
            let run = run(policy, &input);
            assert_eq!(run.counters.merged, 0);
            let udp = matches!(frame.transport, Transport::Udp(_));
            let reason = if udp { Reason::UdpOff } else { Reason::NotLro };
            assert_eq!(run.reasons(), [reason; 3]);
            assert_all_untouched(&run, &input);
        }
    }
}

#[test]
fn no_payload_where_acks_are_not_aggregated() {
    for base in [Frame::tcp4(1, 500), Frame::tcp6(1, 500).with_timestamps(1, 2)] {
        refuses(&base, |frame| frame.payload.clear(), Reason::NoPayload);
        let ack = refused(&base, |frame| frame.payload.clear());
        for policy in both_modes() {
            assert_eq!(run(policy, std::slice::from_ref(&ack)).reasons(), [Reason::NoPayload]);
        }
    }
}

#[test]
fn an_older_timestamp_ends_the_session() {
    let older = |frame: &mut Frame| frame.tcp_mut().options = timestamps(99, 7);
    assert_ends(&Frame::tcp4(1, 500).with_timestamps(100, 7), older, Reason::TimestampOlder);
    assert_ends(&Frame::tcp6(1, 500).with_timestamps(100, 7), older, Reason::TimestampOlder);
    // By sequence arithmetic: 99 is before 0x8000_0062 and after 0x8000_0064.
    assert_ends(
        &Frame::tcp4(1, 500).with_timestamps(0x8000_0062, 7),
        older,
        Reason::TimestampOlder,
    );
    let mut frames = Frame::tcp4(1, 500).with_timestamps(0x8000_0064, 7).run(2);
    older(&mut frames[1]);
    for policy in both_modes() {
        assert_eq!(run(policy, &packets(&frames)).payloads(), [1000]);
    }
}

#[test]
fn an_older_ack_on_data_ends_the_session() {
    // The merged packet would claim the older acknowledgement.
    assert_ends(
        &Frame::tcp4(1, 500).with_tcp(|tcp| tcp.acknowledgement = 5),
        |frame| frame.tcp_mut().acknowledgement = u32::MAX,
        Reason::AckOlder,
    );
}

#[test]
fn a_gap_in_the_sequence_ends_the_session() {
    assert_ends(&Frame::tcp4(1, 500), |frame| frame.tcp_mut().sequence += 1, Reason::Sequence);
    assert_ends(&Frame::tcp4(1, 500), |frame| frame.tcp_mut().sequence -= 1, Reason::Sequence);
    assert_ends(&Frame::tcp6(1, 500), |frame| frame.tcp_mut().sequence += 500, Reason::Sequence);
    assert_ends(&Frame::tcp4(1, 500), |frame| frame.tcp_mut().sequence -= 1000, Reason::Sequence);
}

#[test]
fn another_header_ends_the_session() {
    let base = Frame::tcp4(1, 500);
    assert_ends(&base, |frame| frame.ipv4_mut().ttl = 63, Reason::Ttl);
    assert_ends(&base, |frame| frame.ipv4_mut().tos = 4, Reason::Tos);
    assert_ends(&base, |frame| frame.ipv4_mut().dont_fragment = false, Reason::DontFragment);
    assert_ends(&base, |frame| frame.tcp_mut().options = timestamps(1, 2), Reason::OptionsChanged);
    assert_ends(&Frame::tcp6(1, 500), |frame| frame.ipv6_mut().flow_label = 4, Reason::FlowLabel);
    assert_ends(&Frame::tcp6(1, 500), |frame| frame.ipv6_mut().hop_limit = 4, Reason::Ttl);
}

#[test]
fn flows_differ_in_ports_addresses_and_links() {
    let base = Frame::tcp4(1, 500);
    let others = [
        base.clone().with_tcp(|tcp| tcp.source_port += 1),
        base.clone().with_tcp(|tcp| tcp.destination_port += 1),
        base.clone().with_ipv4(|ip| ip.source[3] += 1),
        base.clone().with_ipv4(|ip| ip.destination[3] += 1),
        base.clone().with(|frame| frame.link.as_mut().expect("a link").source[5] += 1),
        base.reversed(),
    ];
    for other in others {
        // In turns, so that one flow for both would end at each packet.
        let input: Vec<_> = base
            .run(3)
            .iter()
            .zip(&other.run(3))
            .flat_map(|(one, other)| [one.into(), other.into()])
            .collect();
        for policy in both_modes() {
            let run = run(policy, &input);
            assert_eq!(run.reasons(), [Reason::PollEnd; 2]);
            run.outputs.iter().for_each(|output| assert_merged(output, 1, 1500, 3));
        }
    }
}

#[test]
fn a_super_packet_is_not_merged_again() {
    let input = packets(&Frame::tcp4(1, 500).run(3));
    for policy in both_modes() {
        let mut aggregator = aggregator(policy);
        let mut outputs = Vec::new();
        let mut sink = |packet: SuperPacket<'_, Vec<u8>>| outputs.push(Output::of(&packet));
        for (index, packet) in input.iter().enumerate() {
            let mut packet = packet.receive();
            if index == 1 {
                packet.gso = Some(gso_of(GsoKind::Tcp4, 100));
            }
            aggregator.receive(packet, 0, &mut sink);
        }
        aggregator.poll_end(0, &mut sink);
        let reasons: Vec<_> = outputs.iter().map(|output| output.metadata.reason).collect();
        assert_eq!(reasons, [Reason::Overtaken, Reason::SuperPacket, Reason::PollEnd]);
    }
}
