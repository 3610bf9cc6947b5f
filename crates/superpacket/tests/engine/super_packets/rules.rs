//! By which rules super-packets join, one by one.

use superpacket::aggregate::Reason::*;
use superpacket::segment::{Cwr, GsoKind, IpId};
use superpacket::virtio::Framing;
use superpacket_traffic::frame::{ACK, CWR, Checksum, FIN, Frame, PSH, stream_bytes};

use super::*;
use crate::support::{BatchAggregator, lent};

/// One flow each, behind different headers.
fn bases() -> Vec<Frame> {
    let tcp4 = Frame::tcp4(u32::MAX - 700, 100).with_id(0xfff9);
    vec![
        tcp4.clone(),
        tcp4.clone().with_timestamps(5, 6).tagged(7),
        tcp4.at_ip(),
        Frame::tcp6(1, 100).with_timestamps(5, 6),
        Frame::tcp6(1, 100).in_ip4(),
        Frame::tcp4(1, 100).in_vxlan4().with_outer_checksum(Checksum::Zero),
        Frame::udp4(100),
        Frame::udp6(100).at_ip(),
    ]
}

fn is_tcp(frame: &Frame) -> bool {
    matches!(frame.transport, Transport::Tcp(_))
}

const ALL_KNOWN: [Known; 4] = [Known::Nothing, Known::Verified, Known::Vouched, Known::Partial];

fn gro() -> Policy {
    Policy::gro_with_udp()
}

/// A frame of the flow with another length, and the one behind it.
fn shorter(frame: &Frame, length: usize) -> Frame {
    frame.clone().with(|frame| frame.payload = stream_bytes(9, length))
}

#[test]
fn super_packets_of_a_flow_merge() {
    for base in bases() {
        for known in ALL_KNOWN {
            let outputs = arrive(gro(), &grouped(&base.run(12), 4, known), &[(3, 12, PollEnd)]);
            let gso = outputs[0].metadata.gso.expect("merged");
            assert_eq!((gso.size.get(), outputs[0].metadata.largest_payload), (100, 400));
        }
    }
}

#[test]
fn single_packets_join_between_them() {
    for base in bases() {
        let frames = base.run(13);
        for known in [Known::Nothing, Known::Verified, Known::Partial] {
            let of = |from: usize, to: usize| Arrival::of(&frames[from..to], known);
            arrive(
                gro(),
                &[of(0, 4), of(4, 5), of(5, 6), of(6, 9), of(9, 10), of(10, 13)],
                &[(6, 13, PollEnd)],
            );
            arrive(gro(), &[of(0, 1), of(1, 5), of(5, 6), of(6, 12)], &[(4, 12, PollEnd)]);
            // Fewer bytes than a segment end it.
            let short = Arrival::of(&[shorter(&frames[4], 60)], known);
            arrive(gro(), &[of(0, 4), short], &[(2, 5, ShortSegment)]);
        }
    }
}

#[test]
fn a_super_packet_of_one_segment_is_a_packet() {
    for base in bases() {
        let frames = base.run(6);
        let size = |gso: Gso, size: usize| gso.with_size(SegmentSize::new(size).expect("not 0"));
        let one = |frame: &Frame| Arrival {
            gso: Some(size(gso(&frames), 1000)),
            ..Arrival::of(std::slice::from_ref(frame), Known::Nothing)
        };
        arrive(
            gro(),
            &[one(&frames[0]), one(&frames[1]), Arrival::of(&frames[2..6], Known::Nothing)],
            &[(3, 6, PollEnd)],
        );
    }
}

#[test]
fn what_ends_short_ends_the_run() {
    for base in bases() {
        let mut frames = base.run(4);
        frames[3] = shorter(&frames[3], 1);
        let short = Arrival::of(&frames, Known::Nothing);
        // Nothing may follow it: alone it is not held.
        arrive(gro(), std::slice::from_ref(&short), &[(1, 4, ShortSegment)]);
        let next = base.run(12);
        if is_tcp(&base) {
            let (mut begun, mut behind) =
                (Arrival::of(&next[..4], Known::Nothing), next[4..8].to_vec());
            behind[3] = shorter(&next[7], 99);
            let ends = Arrival::of(&behind, Known::Nothing);
            arrive(gro(), &[begun.clone(), ends.clone()], &[(2, 8, ShortSegment)]);
            let other = Arrival::of(&next[8..12], Known::Nothing);
            arrive(gro(), &[begun.clone(), ends, other], &[(2, 8, ShortSegment), (1, 4, PollEnd)]);
            begun.packet.time = 1;
            arrive(gro(), &[short, begun], &[(1, 4, ShortSegment), (1, 4, PollEnd)]);
        }
    }
}

#[test]
fn segments_of_another_size_do_not_merge() {
    for base in bases().into_iter().filter(is_tcp) {
        let begun = base.run(4);
        for (size, reason) in [(101, LongerSegment), (99, ShortSegment)] {
            let other =
                begun[3].following().with(|frame| frame.payload = stream_bytes(1, size)).run(3);
            let (begun, other) =
                (Arrival::of(&begun, Known::Nothing), Arrival::of(&other, Known::Nothing));
            arrive(gro(), &[begun.clone(), other], &[(1, 4, reason), (1, 3, PollEnd)]);
        }
        // A single packet that is longer, too.
        let longer = begun[3].following().with(|frame| frame.payload = stream_bytes(1, 101));
        arrive(
            gro(),
            &[Arrival::of(&begun, Known::Nothing), Arrival::of(&[longer], Known::Nothing)],
            &[(1, 4, LongerSegment), (1, 1, PollEnd)],
        );
    }
}

#[test]
fn what_differs_ends_the_run() {
    for base in bases().into_iter().filter(is_tcp) {
        let frames = base.run(9);
        let gap =
            [Arrival::of(&frames[..4], Known::Nothing), Arrival::of(&frames[5..9], Known::Nothing)];
        arrive(gro(), &gap, &[(1, 4, Sequence), (1, 4, PollEnd)]);
        let window: Vec<_> = frames[4..8]
            .iter()
            .map(|frame| frame.clone().with_tcp(|tcp| tcp.window += 1))
            .collect();
        arrive(
            gro(),
            &[Arrival::of(&frames[..4], Known::Nothing), Arrival::of(&window, Known::Nothing)],
            &[(1, 4, Window), (1, 4, PollEnd)],
        );
        let forms =
            [Arrival::of(&frames[..4], Known::Partial), Arrival::of(&frames[4..8], Known::Nothing)];
        arrive(gro(), &forms, &[(1, 4, ChecksumForm), (1, 4, PollEnd)]);
    }
}

#[test]
fn psh_and_fin_are_the_last_segments() {
    for base in bases().into_iter().filter(is_tcp) {
        for flag in [PSH, FIN, PSH | FIN] {
            let mut frames = base.run(12);
            frames[7] = frames[7].clone().with_flags(ACK | flag);
            arrive(gro(), &grouped(&frames, 4, Known::Nothing), &[(2, 8, Push), (1, 4, PollEnd)]);
            // At the front it leaves at once.
            arrive(
                gro(),
                &grouped(&frames[4..12], 4, Known::Nothing),
                &[(1, 4, Push), (1, 4, PollEnd)],
            );
        }
    }
}

/// As Linux hands them over: PSH on each. Cut again, all is as it was but for that flag.
#[test]
fn merged_past_push_only_that_flag_is_lost() {
    for base in bases().into_iter().filter(is_tcp) {
        for known in ALL_KNOWN {
            let frames = base.run(13);
            let pushed: Vec<_> = frames
                .iter()
                .enumerate()
                .map(|(index, frame)| {
                    if index % 4 == 3 && index < 12 {
                        frame.clone().with_flags(ACK | PSH)
                    } else {
                        frame.clone()
                    }
                })
                .collect();
            let mut arrivals = grouped(&pushed[..12], 4, known);
            for policy in
                [gro(), gro().with_partial_checksums(), gro().with_storage(Storage::Linear)]
            {
                let policy = policy.with_merge_past_push();
                let outputs = run(policy, &arrivals, 3);
                assert_eq!(
                    (outputs.len(), outputs[0].metadata.packets, outputs[0].metadata.reason),
                    (1, 3, PollEnd)
                );
                // Those that a sender without PSH but on the last would have sent.
                let mut last_only = frames[..12].to_vec();
                last_only[11] = pushed[11].clone();
                assert_eq!(outputs[0].cut(), Arrival::of(&last_only, known).frames);
            }
            let past = gro().with_merge_past_push();
            // The second of three alone has it.
            let second = [
                Arrival::of(&frames[..4], known),
                arrivals[1].clone(),
                Arrival::of(&frames[8..12], known),
            ];
            let mut last_only = frames[..12].to_vec();
            last_only[11] = last_only[11].clone().with_flags(ACK | PSH);
            assert_eq!(run(past, &second, 1)[0].cut(), Arrival::of(&last_only, known).frames);
            // One that nothing joins leaves as it came.
            assert_untouched(&run(past, &arrivals[..1], 1)[0], &arrivals[0]);
            // FIN, and PSH of a single packet, end it as ever.
            arrivals.truncate(1);
            let single = Arrival::of(
                &[frames[4].clone().with_flags(ACK | PSH)],
                if known == Known::Vouched { Known::Verified } else { known },
            );
            let outputs = run(past, &[arrivals[0].clone(), single], 2);
            assert_eq!(
                (outputs.len(), outputs[0].metadata.packets, outputs[0].metadata.reason),
                (1, 2, Push)
            );
            let mut end = frames[4..8].to_vec();
            end[3] = end[3].clone().with_flags(ACK | FIN | PSH);
            let outputs = run(past, &[arrivals[0].clone(), Arrival::of(&end, known)], 2);
            assert_eq!(
                (outputs.len(), outputs[0].metadata.packets, outputs[0].metadata.reason),
                (1, 2, Push)
            );
            assert_eq!(outputs[0].cut()[4..], Arrival::of(&end, known).frames);
        }
    }
}

#[test]
fn identifications_go_on_by_the_number_of_segments() {
    let base = Frame::tcp4(1, 100).with_id(0xfffe);
    let frames = base.run(12);
    let fixed: Vec<_> = frames.iter().map(|frame| frame.clone().with_id(7)).collect();
    let of = |frames: &[Frame]| Arrival::of(frames, Known::Nothing);
    let merged = arrive(gro(), &grouped(&frames, 4, Known::Nothing), &[(3, 12, PollEnd)]);
    assert_eq!(merged[0].metadata.gso.map(|gso| gso.id), Some(IpId::Increment));
    let merged = arrive(gro(), &grouped(&fixed, 4, Known::Nothing), &[(3, 12, PollEnd)]);
    assert_eq!(merged[0].metadata.gso.map(|gso| gso.id), Some(IpId::Fixed));
    // As many identifications as packets, not segments.
    let by_one: Vec<_> = frames[4].clone().with_id(0xffff).run(4);
    arrive(gro(), &[of(&frames[..4]), of(&by_one)], &[(1, 4, IpId), (1, 4, PollEnd)]);
    // A packet that repeats the last identification, or the first.
    for id in [0x0001, 0xfffe] {
        let repeated = frames[4].clone().with_id(id);
        arrive(gro(), &[of(&frames[..4]), of(&[repeated])], &[(1, 4, IpId), (1, 1, PollEnd)]);
    }
    // Single packets that are fixed or not, with super-packets that are not or are.
    arrive(gro(), &[of(&fixed[..1]), of(&fixed[1..4])], &[(2, 4, PollEnd)]);
    arrive(
        gro(),
        &[of(&fixed[..1]), of(&fixed[1..2]), of(&fixed[2..6]), of(&fixed[6..7])],
        &[(4, 7, PollEnd)],
    );
    arrive(gro(), &[of(&fixed[..4]), of(&fixed[4..5]), of(&fixed[5..8])], &[(3, 8, PollEnd)]);
    let increment_from_7 = |at: usize| frames[at].clone().with_id(7).run(4);
    arrive(gro(), &[of(&fixed[..1]), of(&increment_from_7(1))], &[(1, 1, IpId), (1, 4, PollEnd)]);
    arrive(gro(), &[of(&fixed[..4]), of(&increment_from_7(4))], &[(1, 4, IpId), (1, 4, PollEnd)]);
    let fixed_at = |id: u16, frames: &[Frame]| {
        frames.iter().map(|frame| frame.clone().with_id(id)).collect::<Vec<_>>()
    };
    arrive(
        gro(),
        &[of(&frames[..1]), of(&fixed_at(0xffff, &frames[1..4]))],
        &[(1, 1, IpId), (1, 3, PollEnd)],
    );
    arrive(
        gro(),
        &[of(&frames[..4]), of(&fixed_at(0x0002, &frames[4..8]))],
        &[(1, 4, IpId), (1, 4, PollEnd)],
    );
    arrive(
        gro(),
        &[of(&frames[..1]), of(&frames[1..2]), of(&fixed_at(0x0000, &frames[2..4]))],
        &[(2, 2, IpId), (1, 2, PollEnd)],
    );
}

#[test]
fn outer_identifications_go_on_too() {
    let base = Frame::tcp6(1, 100).in_ip4();
    let frames = base.run(8);
    let fixed: Vec<_> = frames
        .iter()
        .map(|frame| frame.clone().with(|frame| frame.outer_ipv4_mut().id = 9))
        .collect();
    let merged = arrive(gro(), &grouped(&fixed, 4, Known::Nothing), &[(2, 8, PollEnd)]);
    assert_eq!(merged[0].metadata.gso.map(|gso| gso.outer_id), Some(IpId::Fixed));
    let mixed =
        [Arrival::of(&frames[..4], Known::Nothing), Arrival::of(&fixed[4..8], Known::Nothing)];
    arrive(gro(), &mixed, &[(1, 4, IpId), (1, 4, PollEnd)]);
}

#[test]
fn behind_a_header_packets_of_one_segment_with_cwr_do_not_merge() {
    let frames = Frame::tcp4(1, 100).with_flags(ACK | CWR).run(2);
    for size in [100, 1000] {
        let receive = |frame: &Frame| {
            let mut packet = Packet::from(frame).receive();
            packet.gso = SegmentSize::new(size).map(|size| Gso::new(GsoKind::Tcp4, size));
            packet
        };
        let packets: Vec<_> = frames.iter().map(receive).collect();
        let packets: Vec<_> = packets.iter().map(lent).collect();
        let mut left = Vec::new();
        let mut aggregator = BatchAggregator::framed(Framing::TAP, Policy::gro(), HashKey::new(7));
        let done = aggregator.poll(&packets, |packet| {
            left.push((packet.metadata.packets, packet.metadata.reason));
            Framing::TAP.header(&packet).map(drop)
        });
        assert_eq!(done, Ok(()));
        assert_eq!(left, [(1, CannotSegment); 2]);
    }
}

#[test]
fn cwr_stays_where_it_was() {
    for base in [Frame::tcp4(1, 100), Frame::tcp6(1, 100).tagged(3)] {
        for known in ALL_KNOWN {
            let frames = base.run(12);
            let on = |indices: &[usize]| -> Vec<Frame> {
                let at = |(index, frame): (usize, &Frame)| {
                    if indices.contains(&index) {
                        frame.clone().with_flags(ACK | CWR)
                    } else {
                        frame.clone()
                    }
                };
                frames.iter().enumerate().map(at).collect()
            };
            // On the first of all: what follows has none.
            let merged = arrive(gro(), &grouped(&on(&[0]), 4, known), &[(3, 12, PollEnd)]);
            assert_eq!(merged[0].metadata.gso.map(|gso| gso.cwr), Some(Cwr::First));
            let single = on(&[0]);
            arrive(
                gro(),
                &[Arrival::of(&single[..4], known), Arrival::of(&single[4..5], known)],
                &[(2, 5, PollEnd)],
            );
            // On the first of each, on that of the second, on all.
            let each = on(&[0, 4, 8]);
            arrive(
                gro(),
                &grouped(&each, 4, known),
                &[(1, 4, FlagsChanged), (1, 4, FlagsChanged), (1, 4, PollEnd)],
            );
            arrive(gro(), &grouped(&on(&[4]), 4, known), &[(1, 4, FlagsChanged), (2, 8, PollEnd)]);
            let all = on(&(0..12).collect::<Vec<_>>());
            let merged = arrive(gro(), &grouped(&all, 4, known), &[(3, 12, PollEnd)]);
            assert_eq!(merged[0].metadata.gso.map(|gso| gso.cwr), Some(Cwr::All));
            // Single packets all carry it; of a super-packet behind them only the first does.
            let ends = on(&[0, 1, 2]);
            let arrivals = [
                Arrival::of(&ends[..1], known),
                Arrival::of(&ends[1..2], known),
                Arrival::of(&ends[2..6], known),
            ];
            if known != Known::Vouched {
                arrive(gro(), &arrivals, &[(2, 2, FlagsChanged), (1, 4, PollEnd)]);
            }
        }
    }
}

#[test]
fn limits_count_segments() {
    for base in bases() {
        let frames = base.run(16);
        let arrivals = grouped(&frames, 4, Known::Nothing);
        let limit = |most| gro().with_max_packets(most).with_max_datagrams(most);
        arrive(limit(8), &arrivals, &[(2, 8, PacketLimit), (2, 8, PacketLimit)]);
        arrive(limit(10), &arrivals, &[(2, 8, PacketLimit), (2, 8, PollEnd)]);
        arrive(
            limit(5),
            &arrivals,
            &[(1, 4, PacketLimit), (1, 4, PacketLimit), (1, 4, PacketLimit), (1, 4, PollEnd)],
        );
        // Nothing may follow what is at the limit, or beyond.
        for most in 1..=4 {
            arrive(limit(most), &arrivals[..2], &[(1, 4, PacketLimit); 2]);
        }
        let headers = frames[0].to_bytes().len()
            - 100
            - if frames[0].link.is_some() { 14 } else { 0 }
            - 4 * frames[0].vlans.len();
        let bytes = |payload: usize| gro().with_max_bytes((headers + payload) as u32);
        arrive(bytes(800), &arrivals, &[(2, 8, ByteLimit), (2, 8, PollEnd)]);
        arrive(bytes(799), &arrivals[..2], &[(1, 4, ByteLimit), (1, 4, PollEnd)]);
        arrive(bytes(100), &arrivals[..2], &[(1, 4, ByteLimit), (1, 4, PollEnd)]);
        // A single packet that reaches the limit completes it.
        let single = Arrival::of(&frames[4..5], Known::Nothing);
        arrive(limit(5), &[arrivals[0].clone(), single], &[(2, 5, PacketLimit)]);
    }
}

#[test]
fn datagrams_are_as_many_as_a_header_names() {
    let arrivals = grouped(&Frame::udp4(100).run(160), 32, Known::Partial);
    arrive(gro(), &arrivals, &[(2, 64, PacketLimit), (2, 64, PacketLimit), (1, 32, PollEnd)]);
    arrive(Policy::gro(), &arrivals[..2], &[(1, 32, UdpOff); 2]);
}

#[test]
fn as_many_as_fit_merge_into_one() {
    let arrivals = grouped(&Frame::tcp4(1, 1448).with_timestamps(1, 2).run(55), 11, Known::Partial);
    arrive(Policy::gro(), &arrivals, &[(4, 44, ByteLimit), (1, 11, PollEnd)]);
    // Beyond 65,535 bytes: BIG TCP.
    arrive(Policy::gro().with_max_bytes(500_000), &arrivals, &[(5, 55, PollEnd)]);
    let arrivals = grouped(&Frame::tcp6(1, 1440).run(132), 44, Known::Partial);
    arrive(Policy::gro().with_max_bytes(500_000), &arrivals, &[(3, 132, PollEnd)]);
}

#[test]
fn pieces_are_limited() {
    let arrivals = grouped(&Frame::tcp4(1, 100).run(16), 4, Known::Nothing);
    let outputs = run(Policy::gro().with_max_fragments(3), &arrivals, 4);
    let found: Vec<_> =
        outputs.iter().map(|output| (output.metadata.packets, output.metadata.reason)).collect();
    assert_eq!(found, [(3, FragmentLimit), (1, PollEnd)]);
}

#[test]
fn a_damaged_super_packet_passes() {
    for base in bases() {
        let mut arrivals = grouped(&base.run(12), 4, Known::Nothing);
        let field = usize::from(if is_tcp(&base) { 16u8 } else { 6 }) + base.offsets().transport;
        for (damaged, expected) in [
            (0, vec![(1, 4, BadChecksum), (2, 8, PollEnd)]),
            (1, vec![(1, 4, Overtaken), (1, 4, BadChecksum), (1, 4, PollEnd)]),
        ] {
            arrivals[damaged].packet.bytes[field] ^= 0x55;
            let outputs = run(gro(), &arrivals, 1);
            let found: Vec<Out> = outputs
                .iter()
                .map(|output| (output.metadata.packets, output.cut().len(), output.metadata.reason))
                .collect();
            // What is in a tunnel is not verified later.
            if base.tunnel.is_none() || damaged == 1 {
                assert_eq!(found, expected);
            }
            assert_eq!(outputs[damaged].bytes, arrivals[damaged].packet.bytes);
            arrivals[damaged].packet.bytes[field] ^= 0x55;
        }
    }
}

#[test]
fn what_cannot_be_restored_passes() {
    let udp = |kind| {
        Arrival::of(&Frame::udp4(100).run(4), Known::Partial).cut_by(|gso| Gso::new(kind, gso.size))
    };
    let tcp = |kind| {
        Arrival::of(&Frame::tcp4(1, 100).run(4), Known::Partial)
            .cut_by(|gso| Gso::new(kind, gso.size))
    };
    for arrival in [
        udp(GsoKind::UdpFragments),
        udp(GsoKind::Tcp4),
        tcp(GsoKind::Tcp6),
        tcp(GsoKind::Udp),
        tcp(GsoKind::Dccp),
    ] {
        assert_passes(gro(), &arrival, SuperPacket);
    }
    assert_passes(gro(), &Arrival::of(&Frame::dccp4(1, 100).run(4), Known::Nothing), SuperPacket);
    // A tunnel's own checksum is right only after the cut.
    assert_passes(
        gro(),
        &Arrival::of(&Frame::tcp4(1, 100).in_vxlan6().run(4), Known::Nothing),
        SuperPacket,
    );
    // A device never receives super-packets.
    for policy in [Policy::lro(), Policy::lro_with_acks()] {
        assert_passes(policy, &tcp(GsoKind::Tcp4), SuperPacket);
    }
    // A length that the device is to fill in.
    let mut long = tcp(GsoKind::Tcp4);
    long.packet.bytes[16..18].fill(0);
    assert_passes(gro(), &long, NoLength);
}

/// Twice, untouched each time.
#[track_caller]
fn assert_passes(policy: Policy, arrival: &Arrival, reason: Reason) {
    for size in [1, 2] {
        let outputs = run(policy, &[arrival.clone(), arrival.clone()], size);
        assert_eq!(outputs.len(), 2);
        for output in outputs {
            assert_untouched(&output, arrival);
            assert_eq!(output.metadata.reason, reason);
        }
    }
}

#[track_caller]
fn assert_untouched(output: &Output, arrival: &Arrival) {
    assert_eq!(output.bytes, arrival.packet.bytes);
    let metadata = output.metadata;
    assert_eq!((metadata.packets, metadata.checksum), (1, arrival.packet.checksum));
    let form = |gso: Gso| gso.with_checksum(superpacket::segment::ChecksumForm::Full);
    assert_eq!(metadata.gso.map(form), arrival.gso.map(form));
}

#[test]
fn one_that_nothing_joins_leaves_as_it_came() {
    for base in bases().into_iter().filter(is_tcp) {
        for known in ALL_KNOWN {
            let frames = base.run(9);
            let (first, second) =
                (Arrival::of(&frames[..4], known), Arrival::of(&frames[5..9], known));
            for storage in [Storage::Fragments, Storage::Linear] {
                // The second makes the flow look at the first, and does not fit.
                let outputs = run(gro().with_storage(storage), &[first.clone(), second.clone()], 2);
                assert_eq!(outputs.len(), 2);
                assert_untouched(&outputs[0], &first);
                assert_untouched(&outputs[1], &second);
            }
        }
    }
}
