//! Tests of rings, queues and readiness.

use std::collections::{HashMap, HashSet};

use superpacket::packet::FlowHash;
use superpacket::segment::GsoKind;
use superpacket_port::{LinkState, Port, PortError, StopReason};
use superpacket_steer::{FlowTuple, Toeplitz, ToeplitzKey};
use superpacket_traffic::frame::{Frame, Ip};

use super::super::{NicPort, NicSettings, PageSize, RingFull, pair};
use super::{Bench, of_flow};
use crate::fixture::{TestPacket, gathered, is_readable, partial, receive, send, send_all};
use crate::memory::{self, MemorySettings};

#[test]
fn frames_for_a_full_ring_are_dropped_and_counted() {
    let mut bench = Bench::new(&NicSettings { ring: 16, ..NicSettings::default() });
    let frames: Vec<_> = (0..20).map(|index| of_flow(index, 10)).collect();
    send_all(&mut *bench.wire_out, &frames);
    let mut packets = Vec::new();
    assert_eq!(bench.card_in.poll(&mut packets, 6).expect("up"), 6);
    assert_eq!(bench.card.monitor().counters().rx_ring_drops, 4);
    assert!(is_readable(&*bench.card_in), "ten are left");
    // The ring holds ten frames, so six more fit.
    send_all(&mut *bench.wire_out, &frames);
    assert_eq!(bench.card_in.poll(&mut packets, 10).expect("up"), 10);
    assert_eq!(receive(&mut *bench.card_in).len(), 16);
    assert_eq!(
        packets.iter().map(gathered).collect::<Vec<_>>(),
        frames[..16].iter().map(Frame::to_bytes).collect::<Vec<_>>()
    );
    let counters = bench.card.monitor().counters();
    assert_eq!((counters.rx_ring_drops, counters.rx_frames, counters.rx_delivered), (8, 40, 32));
    assert_eq!(bench.card.counters().rx_dropped, 8);
    assert!(!is_readable(&*bench.card_in));
}

#[test]
fn frames_for_a_full_ring_wait_in_the_wrapped_port() {
    let mut bench =
        Bench::new(&NicSettings { ring: 16, full: RingFull::Wait, ..NicSettings::default() });
    let frames: Vec<_> = (0..300).map(|index| of_flow(index, 10)).collect();
    send_all(&mut *bench.wire_out, &frames);
    assert_eq!(
        send(&mut *bench.wire_out, &[partial(&Frame::tcp4(1, 40_000), GsoKind::Tcp4, 1000)]).sent,
        1
    );
    let mut packets = Vec::new();
    assert_eq!(bench.card_in.poll(&mut packets, 7).expect("up"), 7);
    packets.extend(receive(&mut *bench.card_in));
    assert_eq!(packets.len(), 340, "a super-packet is not parted");
    assert_eq!(
        packets.iter().map(gathered).take(300).collect::<Vec<_>>(),
        frames.iter().map(Frame::to_bytes).collect::<Vec<_>>()
    );
    assert_eq!(bench.card.counters().rx_dropped, 0);
    assert!(!is_readable(&*bench.card_in));
}

#[test]
fn frames_without_a_buffer_are_dropped_and_counted() {
    for page in [PageSize::Page4K, PageSize::Linear] {
        let mut bench =
            Bench::new(&NicSettings { ring: 64, page, copy: 20, ..NicSettings::default() });
        let frames: Vec<_> = (0..64).map(|index| of_flow(index, 1000)).collect();
        let mut held = Vec::new();
        let mut crowded = false;
        while bench.card.monitor().counters().rx_no_buffer == 0 {
            assert!(held.len() < 10_000);
            send_all(&mut *bench.wire_out, &frames);
            held.extend(receive(&mut *bench.card_in));
            crowded |=
                bench.card.monitor().counters().rx_no_buffer == 0 && bench.card_in.is_crowded();
        }
        assert!(crowded, "its user was told before");
        assert_eq!(bench.card.counters().rx_dropped, bench.card.monitor().counters().rx_no_buffer);
        // Held frames are unchanged, and their buffers can be reused when they are dropped.
        assert!(
            held.iter()
                .zip(frames.iter().cycle())
                .all(|(packet, frame)| gathered(packet) == frame.to_bytes())
        );
        held.clear();
        let dropped = bench.card.monitor().counters().rx_no_buffer;
        send_all(&mut *bench.wire_out, &frames);
        assert_eq!(
            (receive(&mut *bench.card_in).len(), bench.card.monitor().counters().rx_no_buffer),
            (64, dropped)
        );
    }
}

#[test]
fn the_hash_matches_the_published_vectors() {
    let mut frame =
        Frame::tcp4(1, 10).with_tcp(|tcp| (tcp.source_port, tcp.destination_port) = (2794, 1766));
    let Ip::V4(header) = &mut frame.ip else { panic!("IPv4") };
    (header.source, header.destination) = ([66, 9, 149, 187], [161, 142, 100, 80]);
    let mut bench = Bench::new(&NicSettings::default());
    send_all(&mut *bench.wire_out, [&frame, &frame.clone().tagged(3)]);
    send_all(&mut *bench.wire_out, &frame.fragments(16, 9)[..1]);
    let hashes: Vec<_> = receive(&mut *bench.card_in).iter().map(|packet| packet.hash).collect();
    assert_eq!(
        hashes,
        [0x51cc_c178, 0x51cc_c178, 0x323e_8fc2].map(|hash| Some(FlowHash(hash))),
        "a fragment: of the addresses"
    );
    let mut silent = Bench::new(&NicSettings { hash: false, ..NicSettings::default() });
    send_all(&mut *silent.wire_out, [&frame]);
    assert_eq!(receive(&mut *silent.card_in)[0].hash, None);
}

#[test]
fn flows_spread_over_queues_and_keep_to_them() {
    let key = ToeplitzKey::new([0x6d; 40]);
    let reversed: [u16; NicSettings::INDIRECTION] =
        std::array::from_fn(|entry| 3 - entry as u16 % 4);
    let default = NicSettings { queues: 4, ring: 4096, ..NicSettings::default() };
    for settings in [
        default,
        NicSettings { indirection: Some(reversed), symmetric: true, ..default },
        NicSettings { key, ..default },
    ] {
        let (mut card, mut other) = pair(&settings, &MemorySettings::default()).expect("opens");
        let mut out = other.transmitter().expect("opens");
        send_all(
            &mut *out,
            &(0..1000).map(|index| of_flow(1000 + index % 100, 8)).collect::<Vec<_>>(),
        );
        let toeplitz = Toeplitz::new(&settings.key);
        let toeplitz = if settings.symmetric { toeplitz.symmetric() } else { toeplitz };
        let (mut seen, mut total, mut used) = (HashMap::new(), 0, HashSet::new());
        let mut receivers = card.receivers();
        assert_eq!(receivers.len(), 4);
        for (queue, receiver) in receivers.iter_mut().enumerate() {
            assert!(is_readable(&**receiver), "each queue is told");
            for packet in receive(&mut **receiver) {
                total += 1;
                used.insert(queue);
                let bytes = gathered(&packet);
                let tuple =
                    FlowTuple::innermost(&bytes, bytes.len(), superpacket::packet::Layer::Ethernet)
                        .expect("IP");
                let hash = toeplitz.hash_flow(&tuple);
                assert_eq!((packet.hash, usize::from(packet.queue)), (Some(hash), queue));
                let entry = hash.0 as usize % 128;
                assert_eq!(
                    queue,
                    if settings.indirection.is_some() { 3 - entry % 4 } else { entry % 4 }
                );
                assert_eq!(*seen.entry(bytes).or_insert(queue), queue);
            }
        }
        assert_eq!((total, seen.len()), (1000, 100));
        assert!(settings.key == key || used.len() == 4, "{used:?}");
        assert!(receivers.iter().all(|receiver| !is_readable(&**receiver)));
    }
}

#[test]
fn a_card_wraps_a_port_of_several_queues() {
    let wire = MemorySettings { queues: 3, ..MemorySettings::default() };
    let (inner, mut other) = memory::pair(&wire, &MemorySettings::default()).expect("opens");
    let mut card =
        NicPort::new("nic", &NicSettings { queues: 2, ..NicSettings::default() }, Box::new(inner))
            .expect("opens");
    send_all(
        &mut *other.transmitter().expect("opens"),
        &(0..200).map(|index| of_flow(index, 8)).collect::<Vec<_>>(),
    );
    let counts: Vec<_> =
        card.receivers().iter_mut().map(|receiver| receive(&mut **receiver).len()).collect();
    assert_eq!(counts.iter().sum::<usize>(), 200);
    assert!(counts.iter().all(|&count| count > 50), "{counts:?}");
    assert!(card.receivers().is_empty(), "handed out once");
}

#[test]
fn a_link_that_is_down_is_reported() {
    let mut bench = Bench::new(&NicSettings::default());
    let control = bench.other.control();
    send_all(&mut *bench.wire_out, [&Frame::tcp4(1, 1)]);
    control.set_state(LinkState::Down);
    let mut packets = Vec::new();
    assert_eq!(bench.card_in.poll(&mut packets, 9).expect("it had arrived"), 1);
    assert!(matches!(bench.card_in.poll(&mut packets, 9), Err(PortError::Down { .. })));
    assert_eq!(bench.card.state().link, LinkState::Down);
    assert!(matches!(
        send(&mut *bench.card_out, &[TestPacket::from(&Frame::tcp4(1, 1))]).stopped,
        Some(StopReason::Down)
    ));
    control.set_state(LinkState::Up);
    send_all(&mut *bench.card_out, [&Frame::tcp4(1, 1)]);
    assert_eq!(receive(&mut *bench.wire_in).len(), 1);
    bench.other.control().set_mtu(0);
    control.set_state(LinkState::Gone);
    assert!(matches!(bench.card_in.poll(&mut packets, 9), Err(PortError::Gone { .. })));
}
