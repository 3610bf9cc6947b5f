//! Tests that frames pass unchanged, and are sent from the chunks in which they were received.

use std::time::Duration;

use superpacket::aggregate::{Aggregator, HashKey, Policy};
use superpacket::packet::{Layer, RxChecksum};
use superpacket::super_packet::SuperPacket;
use superpacket_port::{Buffer, Outgoing, Port, StopReason, TxBatch};

use super::{
    Passage, frame, has_program, link, open, receiver, refused, send, send_all, with_links,
};
use crate::cable::receive;
use crate::frames::bytes;
use crate::support::{PacketSocket, ip};

#[test]
fn frames_pass_both_ways_bit_for_bit() {
    with_links(1500, || {
        for options in [
            "",
            "?mode=native&frame=4k",
            "?mode=generic",
            "?multi_buffer=off&copy=copy&frames=256",
            "?queue=0&busy_poll=20&promiscuous=off",
        ] {
            let mut port = open(&format!("xdp:a1{options}"));
            assert_eq!(port.is_native(), !options.contains("generic"), "veth has XDP");
            assert!(!port.is_zero_copy(), "veth copies");
            let (mut receiver, mut transmitter) =
                (receiver(&mut port), port.transmitter().expect("one"));
            let peer = PacketSocket::open("a0");
            for round in 0..8 {
                let lengths = [14, 15, 59, 60, 61, 64, 65, 128, 590, 1024, 1513, 1514];
                let mut frames: Vec<_> = lengths
                    .iter()
                    .cycle()
                    .take(60)
                    .enumerate()
                    .map(|(number, length)| frame(round * 60 + number, *length))
                    .collect();
                send(&mut *transmitter, &frames);
                for frame in &frames {
                    assert_eq!(peer.receive(), *frame, "from {port}");
                }
                // A tag in the frame stays there, and its 4 bytes are not the MTU's.
                let mut tagged = frame(round, 1518);
                tagged[12..18].copy_from_slice(&[0x81, 0, 0x20, 0x05, 0x88, 0xb5]);
                frames.push(tagged);
                frames.iter().for_each(|frame| peer.send(frame));
                let packets = receive(&mut *receiver, frames.len());
                assert_eq!(packets.iter().map(bytes).collect::<Vec<_>>(), frames, "to {port}");
                assert!(packets.iter().all(|packet| packet.checksum == RxChecksum::None
                    && packet.vlan.is_none()
                    && packet.time != 0));
                drop(packets);
                receiver.give_back();
            }
            let (statistics, counters) = (port.statistics(), port.counters());
            assert_eq!(
                (statistics.sent_by_copy, statistics.sent_in_place, statistics.tx_invalid),
                (480, 0, 0)
            );
            assert_eq!(
                (counters.rx_dropped, counters.rx_errors, counters.tx_refused),
                (0, 0, 0),
                "{statistics:?}"
            );
        }
    });
}

#[test]
fn an_interface_whose_driver_has_no_xdp_is_opened_behind_it() {
    with_links(1500, || {
        // The one interface without XDP in its driver that every kernel has; what is sent by it
        // comes in by it. Its MTU would need frames in several chunks.
        ip("link set lo mtu 1500");
        for options in ["", "?mode=auto&copy=auto&frames=256"] {
            let mut port = open(&format!("xdp:lo{options}"));
            assert!(!port.is_native() && !port.is_zero_copy(), "{port}");
            assert!(port.to_string().contains("generic"), "{port}");
            assert_eq!(port.queues(), [0]);
            assert!(has_program("lo"));
            let (mut receiver, mut transmitter) =
                (receiver(&mut port), port.transmitter().expect("one"));
            let frames: Vec<_> = (0..40).map(|number| frame(number, 60 + 36 * number)).collect();
            send(&mut *transmitter, &frames);
            let packets = receive(&mut *receiver, frames.len());
            assert_eq!(packets.iter().map(bytes).collect::<Vec<_>>(), frames);
            assert_eq!((port.counters().rx_dropped, port.statistics().sent_by_copy), (0, 40));
            drop((port, receiver, transmitter));
            assert!(!has_program("lo"), "the program goes with its port");
        }
        // What was asked for by name has nothing to fall back to, and leaves nothing behind.
        for (spec, says) in [
            ("xdp:lo?mode=native", "has no XDP: mode=generic needs none"),
            ("xdp:lo?copy=zero", "copy=zero needs mode=native"),
        ] {
            let message = refused(spec);
            assert!(message.contains(says), "{message}");
            assert!(!has_program("lo"));
        }
    });
}

#[test]
fn frames_that_cannot_be_sent_are_refused_by_cause() {
    with_links(1500, || {
        let mut port = open("xdp:a1");
        let mut transmitter = port.transmitter().expect("one");
        let peer = PacketSocket::open("a0");
        let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
        let good = frame(1, 100);
        let partial = RxChecksum::Partial { start: 34, offset: 16 };
        batch.push_bytes(&mut outgoing, &good, RxChecksum::None, None, Layer::Ethernet);
        batch.push_bytes(&mut outgoing, &frame(2, 1519), RxChecksum::None, None, Layer::Ethernet);
        batch.push_bytes(&mut outgoing, &[0; 13], RxChecksum::None, None, Layer::Ethernet);
        batch.push_bytes(&mut outgoing, &good, partial, None, Layer::Ethernet);
        let mut attempt = |from| transmitter.transmit(&outgoing, &batch, from);
        let first = attempt(0);
        assert!(matches!((first.sent, first.stopped), (1, Some(StopReason::TooLong))));
        assert_eq!(peer.receive(), good, "what comes before is sent");
        assert!(matches!(attempt(2).stopped, Some(StopReason::Refused(_))));
        assert!(matches!(attempt(3).stopped, Some(StopReason::Offload(_))));
        assert_eq!(port.counters().tx_refused, 1);
        // The MTU may change while the port is open.
        ip("link set a0 mtu 1600");
        ip("link set a1 mtu 1600");
        std::thread::sleep(Duration::from_millis(20));
        assert!(
            matches!(attempt(1).stopped, Some(StopReason::Refused(_))),
            "the long frame passed, and the next is wrong"
        );
        assert_eq!(peer.receive(), frame(2, 1519));
        assert_eq!(port.state().mtu, 1600);
    });
}

#[test]
fn a_frame_is_forwarded_from_where_it_came_in() {
    with_links(1500, || {
        // So few chunks that each is used hundreds of times.
        let (mut one, mut other) = (open("xdp:a1?frames=128"), open("xdp:b1?frames=128"));
        let (mut receiver, mut transmitter) =
            (receiver(&mut one), other.transmitter().expect("one"));
        let (source, target) = (PacketSocket::open("a0"), PacketSocket::open("b0"));
        let mut passage = Passage::new();
        let rounds = 500;
        for round in 0..rounds {
            let frames: Vec<_> = (0..24)
                .map(|number| frame(round * 24 + number, 60 + (round * 31 + number * 101) % 1455))
                .collect();
            frames.iter().for_each(|frame| source.send(frame));
            let mut packets = receive(&mut *receiver, frames.len());
            passage.pass(&mut packets, &mut *transmitter);
            receiver.give_back();
            for frame in &frames {
                assert_eq!(target.receive(), *frame);
            }
        }
        let (received, sent) = (one.statistics(), other.statistics());
        assert_eq!(
            (sent.sent_in_place, sent.sent_by_copy),
            (rounds as u64 * 24, 0),
            "every frame left the chunk that it came in, none was copied"
        );
        assert_eq!(
            (received.rx_dropped, received.rx_ring_full, sent.tx_invalid),
            (0, 0, 0),
            "{received:?}"
        );

        // With chunks of another size the memory is another, and frames are copied.
        let mut third = open("xdp:b0?frame=4k");
        let mut transmitter = third.transmitter().expect("one");
        source.send(&frame(1, 200));
        passage.pass(&mut receive(&mut *receiver, 1), &mut *transmitter);
        assert_eq!((third.statistics().sent_in_place, third.statistics().sent_by_copy), (0, 1));
    });
}

#[test]
fn a_chunk_sent_through_two_ports_comes_back_when_both_are_done() {
    with_links(1500, || {
        link("c0", "c1", 1500, "");
        let mut ports = ["a1", "b1", "c1"].map(|name| open(&format!("xdp:{name}?frames=64")));
        let mut receiver = receiver(&mut ports[0]);
        let mut transmitters = [1, 2].map(|index: usize| ports[index].transmitter().expect("one"));
        let (source, targets) = (PacketSocket::open("a0"), ["b0", "c0"].map(PacketSocket::open));
        for round in 0..300 {
            let frames: Vec<_> = (0..16).map(|number| frame(round * 16 + number, 300)).collect();
            frames.iter().for_each(|frame| source.send(frame));
            let mut packets = receive(&mut *receiver, frames.len());
            let policy = Policy::gro().with_partial_checksums().with_max_packets(1);
            let mut aggregator = Aggregator::new(policy, HashKey::new(1));
            let (mut outgoing, mut batches) = (Outgoing::new(), [TxBatch::new(), TxBatch::new()]);
            let sink: &mut dyn FnMut(SuperPacket<'_, Buffer>) = &mut |mut packet| {
                outgoing.stage(&packet);
                batches
                    .iter_mut()
                    .for_each(|batch| batch.push_packet(&mut outgoing, &packet, 1024));
                outgoing.keep(&mut packet);
            };
            aggregator.receive_batch(&mut packets, 0, sink);
            aggregator.poll_end(0, sink);
            transmitters
                .iter_mut()
                .zip(&batches)
                .for_each(|(transmitter, batch)| send_all(&mut **transmitter, &outgoing, batch));
            drop(outgoing);
            receiver.give_back();
            for target in &targets {
                frames.iter().for_each(|frame| assert_eq!(target.receive(), *frame));
            }
        }
        assert!(
            ports[1..].iter_mut().all(|port| port.statistics().sent_in_place == 4800
                && port.statistics().sent_by_copy == 0)
        );
        assert_eq!(ports[0].counters().rx_dropped, 0, "no chunk was lost on the way");
    });
}
