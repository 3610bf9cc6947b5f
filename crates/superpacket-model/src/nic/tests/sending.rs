//! Tests of sent packets: segmentation, checksums, limits and refusals.

use superpacket::packet::RxChecksum;
use superpacket::segment::{GsoKind, GsoPacket, IpId, SegmentOptions, Segmentable, Segmenter};
use superpacket_port::{LinkState, Port, StopReason, Transmit};
use superpacket_traffic::check;
use superpacket_traffic::frame::Frame;

use super::super::{NicSettings, TsoLimit};
use super::Bench;
use crate::fixture::{TestPacket, batch, gathered, partial, receive, send, send_all};
use crate::memory::MemorySettings;

/// Returns the wire frames of a packet.
fn cut(packet: &TestPacket) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let packet = GsoPacket::linear(&packet.bytes, packet.gso).with_checksum(packet.checksum);
    Segmenter::new()
        .segment(&packet, &SegmentOptions::default(), |segment| {
            let mut frame = Vec::new();
            segment.copy_to(&mut frame);
            frames.push(frame);
        })
        .expect("well formed");
    frames
}

fn is_offload(port: &mut dyn Transmit, packet: &TestPacket) -> bool {
    matches!(send(port, std::slice::from_ref(packet)).stopped, Some(StopReason::Offload(_)))
}

#[test]
fn super_packets_are_cut_and_checksums_filled_in() {
    let mut bench = Bench::new(&NicSettings::default());
    let tcp = partial(&Frame::tcp4(1, 60_000).with_id(9), GsoKind::Tcp4, 1448);
    let mut fixed = tcp.clone();
    fixed.gso = fixed.gso.map(|gso| gso.with_id(IpId::Fixed));
    let six = partial(&Frame::tcp6(1, 9_999).tagged(3), GsoKind::Tcp6, 1000);
    let udp = partial(&Frame::udp4(5_000), GsoKind::Udp, 999);
    let single = partial(&Frame::udp6(77), GsoKind::Udp, 0);
    let plain = TestPacket::from(&Frame::tcp4(5, 6));
    let progress = send(
        &mut *bench.card_out,
        &[tcp.clone(), plain.clone(), fixed.clone(), six.clone(), udp.clone(), single],
    );
    assert!(progress.sent == 6 && progress.stopped.is_none(), "{progress:?}");
    let received = receive(&mut *bench.wire_in);
    let expected: Vec<_> = [
        cut(&tcp),
        vec![plain.bytes],
        cut(&fixed),
        cut(&six),
        cut(&udp),
        vec![Frame::udp6(77).to_bytes()],
    ]
    .into_iter()
    .flatten()
    .collect();
    assert_eq!(received.iter().map(gathered).collect::<Vec<_>>(), expected);
    for packet in &received {
        check::frame(&gathered(packet), &check::Expect::default()).expect("right");
        assert!(packet.gso.is_none() && !matches!(packet.checksum, RxChecksum::Partial { .. }));
    }
    let counters = bench.card.monitor().counters();
    assert_eq!(
        (counters.tx_cut, counters.tx_segments, counters.tx_filled),
        (4, (42 + 42 + 10 + 6), 1)
    );
    assert_eq!(counters.tx_frames, expected.len() as u64);
    assert_eq!(counters.tx_bytes, expected.iter().map(|frame| frame.len() as u64).sum::<u64>());
}

#[test]
fn plain_frames_are_sent_unchanged() {
    let mut bench = Bench::new(&NicSettings::default());
    let frames = Frame::tcp4(1, 500).run(9);
    send_all(&mut *bench.card_out, &frames);
    assert_eq!(
        receive(&mut *bench.wire_in).iter().map(gathered).collect::<Vec<_>>(),
        frames.iter().map(Frame::to_bytes).collect::<Vec<_>>()
    );
    assert_eq!(bench.card.monitor().counters().tx_frames, 9);
}

#[test]
fn the_tso_limit_is_exact() {
    let packet = |payload| partial(&Frame::tcp4(1, payload), GsoKind::Tcp4, 1448);
    let mut bench =
        Bench::new(&NicSettings { tso: TsoLimit::Payload(15_928), ..NicSettings::default() });
    assert_eq!(bench.card.capabilities().gso.max_payload, 15_928);
    assert_eq!(send(&mut *bench.card_out, &[packet(15_928)]).sent, 1);
    assert!(is_offload(&mut *bench.card_out, &packet(15_929)));
    assert_eq!(receive(&mut *bench.wire_in).len(), 11);
    // The limit does not apply to UDP.
    assert_eq!(
        send(&mut *bench.card_out, &[partial(&Frame::udp4(40_000), GsoKind::Udp, 1000)]).sent,
        1
    );

    let mut full = Bench::new(&NicSettings::default());
    assert_eq!(
        (full.card.capabilities().gso.max_payload, full.card.capabilities().gso.max_ipv4_length),
        (u32::MAX, 65_536)
    );
    assert_eq!(send(&mut *full.card_out, &[packet(65_495)]).sent, 1);
    let mut big = packet(65_495);
    big.bytes.resize(65_537 + 14, 0);
    big.bytes[16..18].fill(0);
    assert!(is_offload(&mut *full.card_out, &big));

    let mut off = Bench::new(&NicSettings { tso: TsoLimit::Off, ..NicSettings::default() });
    assert!(is_offload(&mut *off.card_out, &packet(2000)));
    assert_eq!(off.card.monitor().counters().tx_refused, 1);
    assert_eq!(off.card.counters().tx_refused, 1);
}

#[test]
fn unsupported_offloads_are_refused() {
    let tcp = partial(&Frame::tcp4(1, 5000), GsoKind::Tcp4, 1000);
    let udp = partial(&Frame::udp4(5000), GsoKind::Udp, 1000);
    let single = partial(&Frame::tcp4(1, 50), GsoKind::Tcp4, 0);
    let tunnel = partial(&Frame::tcp4(1, 5000).in_vxlan4(), GsoKind::Tcp4, 1000);
    let two_tunnels = partial(&Frame::tcp4(1, 5000).in_vxlan4().in_geneve(), GsoKind::Tcp4, 1000);
    let default = NicSettings::default();
    for (settings, refused, taken) in [
        (default, vec![&tunnel, &two_tunnels], vec![&tcp, &udp, &single]),
        (NicSettings { tunnels: true, ..default }, vec![&two_tunnels], vec![&tunnel]),
        (NicSettings { uso: false, ..default }, vec![&udp], vec![&tcp]),
        (NicSettings { checksums: false, ..default }, vec![&tcp, &udp, &single], vec![]),
        (NicSettings { scatter_gather: false, ..default }, vec![&tcp, &udp], vec![&single]),
    ] {
        let mut bench = Bench::new(&settings);
        assert!(
            refused.iter().all(|packet| is_offload(&mut *bench.card_out, packet)),
            "{settings:?}"
        );
        assert!(
            taken.iter().all(|packet| send(&mut *bench.card_out, &[(*packet).clone()]).sent == 1),
            "{settings:?}"
        );
        assert_eq!(bench.card.capabilities().max_slices == 1, !settings.scatter_gather);
    }
    let mut bench = Bench::new(&default);
    for long in [
        TestPacket::from(&Frame::tcp4(1, 1461)),
        partial(&Frame::tcp4(1, 5000), GsoKind::Tcp4, 1461),
    ] {
        assert!(matches!(send(&mut *bench.card_out, &[long]).stopped, Some(StopReason::TooLong)));
    }
    // The packets before the refused one are sent.
    let progress = send(&mut *bench.card_out, &[single, tcp, tunnel, udp]);
    assert!(
        progress.sent == 2 && matches!(progress.stopped, Some(StopReason::Offload(_))),
        "{progress:?}"
    );
    assert_eq!(receive(&mut *bench.wire_in).len(), 1 + 5);
}

#[test]
fn a_super_packet_stopped_in_the_middle_is_finished() {
    for by_receiver in [false, true] {
        let mut bench = Bench::with(
            &NicSettings::default(),
            &MemorySettings { slots: 7, ..MemorySettings::default() },
        );
        let packets: Vec<_> = (0..4)
            .map(|index| partial(&Frame::tcp4(index * 10_000, 5000), GsoKind::Tcp4, 1000))
            .collect();
        let (outgoing, batch) = batch(&packets);
        let (mut from, mut received) = (0, Vec::new());
        for round in 0.. {
            assert!(round < 20);
            let progress = bench.card_out.transmit(&outgoing, &batch, from);
            if round == 0 {
                assert!(
                    progress.sent == 2 && matches!(progress.stopped, Some(StopReason::Full)),
                    "the second is begun: {progress:?}"
                );
            }
            from += progress.sent;
            received.extend(receive(&mut *bench.wire_in).iter().map(gathered));
            if from == packets.len() {
                break;
            }
        }
        // The last packet was sent in part. The rest follows with the next packet, or on a poll.
        if by_receiver {
            assert!(receive(&mut *bench.card_in).is_empty());
        } else {
            send_all(&mut *bench.card_out, Vec::<&Frame>::new());
        }
        received.extend(receive(&mut *bench.wire_in).iter().map(gathered));
        assert_eq!(received, packets.iter().flat_map(cut).collect::<Vec<_>>());
        let counters = bench.card.monitor().counters();
        assert_eq!(
            (counters.tx_cut, counters.tx_segments, counters.tx_frames, counters.tx_lost),
            (4, 20, 20, 0)
        );
    }
}

#[test]
fn frames_left_when_the_link_goes_down_are_counted_as_lost() {
    let mut bench = Bench::with(
        &NicSettings::default(),
        &MemorySettings { slots: 3, ..MemorySettings::default() },
    );
    let progress =
        send(&mut *bench.card_out, &[partial(&Frame::tcp4(1, 5000), GsoKind::Tcp4, 1000)]);
    assert!(progress.sent == 1 && progress.stopped.is_none(), "{progress:?}");
    bench.other.control().set_state(LinkState::Down);
    assert!(matches!(
        send(&mut *bench.card_out, &[TestPacket::from(&Frame::tcp4(1, 1))]).stopped,
        Some(StopReason::Down)
    ));
    assert_eq!(bench.card.monitor().counters().tx_lost, 2);
    bench.other.control().set_state(LinkState::Up);
    assert_eq!(receive(&mut *bench.wire_in).len(), 3);
    send_all(&mut *bench.card_out, [&Frame::tcp4(1, 1)]);
    assert_eq!(receive(&mut *bench.wire_in).len(), 1);
}

#[test]
fn without_a_wire_super_packets_leave_whole_within_the_limits() {
    let mut bench = Bench::new(&NicSettings {
        wire: false,
        tso: TsoLimit::Payload(15_928),
        ..NicSettings::default()
    });
    let fits = partial(&Frame::tcp4(1, 15_928), GsoKind::Tcp4, 1448);
    let long = partial(&Frame::tcp4(1, 15_929), GsoKind::Tcp4, 1448);
    assert_eq!(send(&mut *bench.card_out, std::slice::from_ref(&fits)).sent, 1);
    let progress = send(&mut *bench.card_out, &[fits.clone(), long, fits.clone()]);
    assert!(
        progress.sent == 1 && matches!(progress.stopped, Some(StopReason::Offload(_))),
        "{progress:?}"
    );
    let received = receive(&mut *bench.wire_in);
    assert_eq!(received.len(), 2);
    assert!(received.iter().all(|packet| gathered(packet) == fits.bytes
        && packet.gso().map(|gso| gso.size.get()) == Some(1448)));
    assert_eq!(bench.card.monitor().counters().tx_cut, 0);
}

#[test]
fn a_frame_that_the_wrapped_port_refuses_does_not_stop_the_rest() {
    use crate::memory;
    let narrow = MemorySettings { mtu: 1000, ..MemorySettings::default() };
    let (inner, mut other) = memory::pair(&narrow, &MemorySettings::default()).expect("opens");
    let control = inner.control();
    control.set_mtu(0);
    let mut card = super::NicPort::new(
        "nic",
        &NicSettings { mtu: 1500, ..NicSettings::default() },
        Box::new(inner),
    )
    .expect("opens");
    // The wrapped port's MTU is lower now.
    control.set_mtu(1000);
    assert_eq!(card.state().mtu, 1000);
    let mut out = card.transmitter().expect("opens");
    let progress = send(
        &mut *out,
        &[
            partial(&Frame::tcp4(1, 3000), GsoKind::Tcp4, 1400),
            partial(&Frame::tcp4(1, 90), GsoKind::Tcp4, 0),
        ],
    );
    assert!(progress.sent == 2 && progress.stopped.is_none(), "{progress:?}");
    assert_eq!(receive(&mut *other.receivers().remove(0)).len(), 2, "the short ones");
    assert_eq!(card.monitor().counters().tx_lost, 2);
}
