//! Generated flows whose frames come as super-packets and single packets, in any mixture.

use proptest::prelude::*;
use superpacket::aggregate::{Mode, Policy, Storage};
use superpacket::packet::{Layer, RxChecksum};
use superpacket::segment::ChecksumForm;
use superpacket_traffic::check;
use superpacket_traffic::frame::{ACK, CWR, Checksum, FIN, Frame, PSH, stream_bytes};
use superpacket_traffic::random::Random;

use super::*;
use crate::support::segments;

/// The flows; no two are the same.
fn flows() -> Vec<Frame> {
    let port = |port: u16, frame: Frame| {
        frame.with(|frame| match &mut frame.transport {
            Transport::Tcp(tcp) => tcp.source_port = port,
            Transport::Udp(udp) => udp.source_port = port,
            _ => {}
        })
    };
    vec![
        port(1, Frame::tcp4(u32::MAX - 3000, 90).with_id(0xfff0)),
        port(2, Frame::tcp6(5, 70).with_timestamps(8, 9)),
        port(3, Frame::tcp4(5, 61).tagged(9)),
        port(4, Frame::udp4(80)),
        port(5, Frame::tcp6(5, 90).in_ip4()),
        port(6, Frame::tcp4(5, 64).in_vxlan4().with_outer_checksum(Checksum::Zero)),
    ]
}

/// The frames of a flow, of which some differ from what a run expects.
fn frames(base: &Frame, random: &mut Random, count: usize) -> Vec<Frame> {
    let mut next = base.clone();
    let mut frames = Vec::new();
    let fixed = random.below(3) == 0;
    for _ in 0..count {
        let mut frame = next.clone();
        let tcp = matches!(frame.transport, Transport::Tcp(_));
        match random.below(40) {
            0 => frame.payload = stream_bytes(3, 1 + random.below(200) as usize),
            1 if tcp => frame.tcp_mut().flags = ACK | PSH,
            2 if tcp => frame.tcp_mut().flags = ACK | FIN,
            3 if tcp => frame.tcp_mut().flags = ACK | CWR,
            4 if tcp => next.tcp_mut().window ^= 1,
            5 if tcp => next.tcp_mut().flags ^= CWR,
            6 => frame = frame.following(),
            7 => {
                if let Ip::V4(ip) = &mut frame.ip {
                    ip.id = ip.id.wrapping_add(random.below(3) as u16);
                }
            }
            _ => {}
        }
        let mut following = frame.following();
        following.payload = stream_bytes(random.below(1000) as u32, next.payload.len());
        if let (Transport::Tcp(following), Transport::Tcp(next)) =
            (&mut following.transport, &next.transport)
        {
            (following.flags, following.window) = (next.flags, next.window);
        }
        if fixed && let (Ip::V4(following), Ip::V4(frame)) = (&mut following.ip, &frame.ip) {
            following.id = frame.id;
        }
        next = following;
        frames.push(frame);
    }
    frames
}

/// How many of these frames, `most` at most, a sender may have put into one super-packet: those
/// that its segments, cut from it, are.
fn together(frames: &[Frame], most: usize) -> usize {
    let is_cut_into = |count: usize| {
        let arrival = Arrival::of(&frames[..count], Known::Nothing);
        let gso = arrival.gso.expect("several");
        let packet = superpacket::segment::GsoPacket::linear(&arrival.packet.bytes, gso)
            .with_layer(arrival.packet.layer);
        segments(&packet, &Default::default()).is_ok_and(|cut| cut == arrival.frames)
    };
    (2..=most.min(frames.len())).take_while(|&count| is_cut_into(count)).last().unwrap_or(1)
}

/// The arrivals of all flows, in any order but their own, each with the number of its flow.
fn traffic(seed: u64, one_form: bool) -> Vec<(usize, Arrival)> {
    let mut random = Random::new(seed);
    let mut queues: Vec<_> = flows().iter().map(|base| frames(base, &mut random, 40)).collect();
    let mut arrivals = Vec::new();
    while queues.iter().any(|queue| !queue.is_empty()) {
        let flow = random.below(queues.len() as u64) as usize;
        // Bursts, as they come from a wire.
        for _ in 0..=random.below(4) {
            let queue = &mut queues[flow];
            if queue.is_empty() {
                break;
            }
            let most = if random.below(3) == 0 { 1 } else { 1 + random.below(12) as usize };
            let known = match (one_form, random.below(12)) {
                (true, _) | (_, 0..6) => Known::Partial,
                (_, 6..9) => Known::Nothing,
                (_, 9..11) => Known::Verified,
                _ => Known::Vouched,
            };
            let taken: Vec<_> = queue.drain(..together(queue, most)).collect();
            // Of a single packet, who says that its checksum is right must be believed.
            let known =
                if taken.len() == 1 && known == Known::Vouched { Known::Verified } else { known };
            arrivals.push((flow, Arrival::of(&taken, known)));
        }
    }
    arrivals
}

/// Cuts what comes out, and compares it with the segments of what went in: of each flow, in order.
fn holds(policy: Policy, arrivals: &[(usize, Arrival)], size: usize) -> Vec<Output> {
    let plain: Vec<_> = arrivals.iter().map(|(_, arrival)| arrival.clone()).collect();
    let outputs = run(policy, &plain, size);
    let mut expected = vec![Vec::new(); flows().len()];
    for (flow, arrival) in arrivals {
        expected[*flow].extend(arrival.frames.iter().cloned());
    }
    let mut found = vec![Vec::new(); flows().len()];
    let key = |bytes: &[u8], layer| check::flow_key(bytes, layer == Layer::Ip);
    let keys: Vec<_> =
        flows().iter().map(|frame| key(&frame.to_bytes(), Layer::Ethernet)).collect();
    for output in &outputs {
        let flow = keys
            .iter()
            .position(|known| *known == key(&output.bytes, output.metadata.layer))
            .expect("one of the flows");
        found[flow].extend(output.cut());
    }
    for (flow, (found, expected)) in found.iter().zip(&expected).enumerate() {
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert_eq!(found, expected, "frame {index} of flow {flow}: {policy:?}");
        }
        assert_eq!(found.len(), expected.len(), "flow {flow}");
    }
    outputs
}

/// Merged packets are right by an independent check, and within the limits of the policy.
fn are_well_formed(policy: Policy, outputs: &[Output]) {
    for output in outputs.iter().filter(|output| output.metadata.packets > 1) {
        let partial = matches!(output.metadata.checksum, RxChecksum::Partial { .. });
        assert_eq!(partial, policy.checksum == ChecksumForm::Partial);
        let expect = check::Expect {
            starts_at_ip: output.metadata.layer == Layer::Ip,
            partial,
            ..check::Expect::default()
        };
        let checked = check::frame(&output.bytes, &expect);
        assert!(checked.is_ok(), "{checked:?}: {:?}", output.metadata);
        let layout = output.metadata.layout.expect("merged packets are understood");
        assert!(output.bytes.len() - usize::from(layout.outermost()) <= policy.max_bytes as usize);
        assert!(output.cut().len() <= policy.max_packets as usize);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 64 }, ..ProptestConfig::default() })]

    #[test]
    fn segments_come_back(seed: u64, one_form: bool, linear: bool, full: bool, size in 1usize..60) {
        let storage = if linear { Storage::Linear } else { Storage::Fragments };
        let checksum = if full { ChecksumForm::Full } else { ChecksumForm::Partial };
        let policy = Policy::gro_with_udp().with_storage(storage).with_checksum(checksum);
        are_well_formed(policy, &holds(policy, &traffic(seed, one_form), size));
    }

    #[test]
    fn segments_come_back_at_the_limits(seed: u64, bytes in 200u32..3000, packets in 1u32..30, fragments in 1u32..9, held in 1_000u64..30_000) {
        let limits = Policy::gro_with_udp().with_max_bytes(bytes).with_max_packets(packets).with_max_datagrams(packets);
        let policy = limits.with_max_fragments(fragments).with_max_held_bytes(held);
        // A super-packet may come longer than what may merge: it is left as it is.
        let outputs = holds(policy, &traffic(seed, false), 64);
        are_well_formed(policy, &outputs);
    }

    /// With LRO, and with UDP switched off, they pass.
    #[test]
    fn what_does_not_merge_passes_untouched(seed: u64) {
        let policy = Policy::gro().with_mode(Mode::Lro { acks: true }).with_max_flows(64);
        let arrivals: Vec<_> = traffic(seed, true).into_iter().map(|(_, arrival)| arrival).collect();
        let outputs = run(policy, &arrivals, 50);
        let mut came: Vec<_> = arrivals.iter().filter(|arrival| arrival.gso.is_some()).map(|arrival| &arrival.packet.bytes).collect();
        let mut left: Vec<_> = outputs.iter().filter(|output| output.metadata.gso.is_some()).map(|output| &output.bytes).collect();
        // Flows that come in turn may leave one after the other.
        came.sort();
        left.sort();
        prop_assert_eq!(left, came);
    }
}

/// So that the tests above say something.
#[test]
fn most_super_packets_merge() {
    let (mut super_packets, mut merged) = (0, 0);
    for seed in 0..20 {
        let arrivals = traffic(seed, true);
        super_packets += arrivals.iter().filter(|(_, arrival)| arrival.gso.is_some()).count();
        let outputs = holds(Policy::gro_with_udp(), &arrivals, 50);
        let came = |output: &&Output| output.metadata.packets == 1 && output.metadata.gso.is_some();
        merged += super_packets_in(&arrivals) - outputs.iter().filter(came).count();
    }
    assert!(super_packets > 500 && merged * 2 > super_packets, "{merged} of {super_packets}");
}

fn super_packets_in(arrivals: &[(usize, Arrival)]) -> usize {
    arrivals.iter().filter(|(_, arrival)| arrival.gso.is_some()).count()
}
