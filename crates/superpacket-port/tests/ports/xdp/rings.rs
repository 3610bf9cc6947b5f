//! Tests with several threads and chunk sizes, and with exhausted or full rings.

use std::time::Instant;

use superpacket::packet::RxPacket;
use superpacket_port::{Buffer, POLL_LIMIT, Port};

use super::{PATIENCE, Passage, frame, open, receiver, refused, send, with_links};
use crate::cable::{receive, wait};
use crate::frames::bytes;
use crate::support::PacketSocket;

#[test]
fn ends_work_on_different_threads() {
    with_links(1500, || {
        // Twice the frames on the way may lie in chunks that their port has not looked at again.
        const ON_THE_WAY: usize = 60;
        const FRAMES: usize = 12_000;
        let expected = |number| frame(number, 60 + number % 1400);
        let (mut one, mut other) = (open("xdp:a1?frames=512"), open("xdp:b1?frames=512"));
        let (mut receiver, mut transmitter) =
            (receiver(&mut one), other.transmitter().expect("one"));
        let (source, target) = (PacketSocket::open("a0"), PacketSocket::open("b0"));
        let (queue, received) = std::sync::mpsc::sync_channel::<Vec<RxPacket<Buffer>>>(4);
        let (acknowledge, acknowledged) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut passage = Passage::new();
                received
                    .iter()
                    .for_each(|mut packets| passage.pass(&mut packets, &mut *transmitter));
            });
            scope.spawn(move || {
                let mut count = 0;
                while count < FRAMES {
                    wait(&*receiver);
                    let mut packets = Vec::new();
                    count += receiver.poll(&mut packets, 16).expect("the port lives");
                    queue.send(packets).expect("the other thread lives");
                    receiver.give_back();
                }
            });
            scope.spawn(move || {
                for number in 0..FRAMES {
                    assert!(target.receive() == expected(number), "frame {number}");
                    acknowledge.send(()).expect("the test waits");
                }
            });
            for number in 0..FRAMES {
                source.send(&expected(number));
                if number >= ON_THE_WAY {
                    acknowledged.recv_timeout(PATIENCE).expect("frames arrive");
                }
            }
        });
        assert_eq!(
            (one.counters().rx_dropped, other.statistics().sent_in_place),
            (0, FRAMES as u64)
        );
    });
}

#[test]
fn frames_in_several_chunks() {
    with_links(9000, || {
        for mode in ["native", "generic"] {
            let (mut one, mut other) = (
                open(&format!("xdp:a1?mode={mode}&frames=256")),
                open(&format!("xdp:b1?mode={mode}&frames=256")),
            );
            assert!(one.to_string().contains("multi-buffer"), "{one}");
            let (mut receiver, mut transmitter) =
                (receiver(&mut one), other.transmitter().expect("one"));
            let (source, target) = (PacketSocket::open("a0"), PacketSocket::open("b0"));
            let mut passage = Passage::new();
            for round in 0..100 {
                let lengths = [9014, 60, 1792, 1793, 2048, 2049, 3584, 3585, 9013, 8960];
                let frames: Vec<_> = lengths
                    .iter()
                    .enumerate()
                    .map(|(number, length)| frame(round * 10 + number, *length))
                    .collect();
                frames.iter().for_each(|frame| source.send(frame));
                let mut packets = receive(&mut *receiver, frames.len());
                let pieces: Vec<_> =
                    packets.iter().map(|packet| packet.buffers().count()).collect();
                assert_eq!(pieces, lengths.map(|length| length.div_ceil(1792)), "{mode}");
                assert_eq!(packets.iter().map(bytes).collect::<Vec<_>>(), frames);
                passage.pass(&mut packets, &mut *transmitter);
                receiver.give_back();
                frames.iter().for_each(|frame| assert_eq!(target.receive(), *frame));
                // Bytes of no port: copied to several chunks.
                send(&mut *transmitter, &frames);
                frames.iter().for_each(|frame| assert_eq!(target.receive(), *frame));
            }
            let statistics = other.statistics();
            // Two frames in two chunks each, of 1,793 and 2,048 bytes, fit one.
            assert_eq!(
                (statistics.sent_in_place, statistics.sent_by_copy, statistics.tx_invalid),
                (800, 1200, 0)
            );
            assert_eq!(one.counters().rx_dropped, 0);
        }
        let message = refused("xdp:a1?multi_buffer=off");
        assert!(message.contains("the MTU is 1774 at most, and it is 9000"), "{message}");
        let message = refused("xdp:a1?multi_buffer=off&frame=4k");
        assert!(message.contains("the MTU is 3822 at most"), "{message}");
    });
}

#[test]
fn chunks_come_back_in_any_order() {
    with_links(1500, || {
        let mut port = open("xdp:a1?frames=64");
        let mut receiver = receiver(&mut port);
        let peer = PacketSocket::open("a0");
        let mut held: Vec<(usize, RxPacket<Buffer>)> = Vec::new();
        let mut next = 0;
        for round in 0..200 {
            let count = (32 - held.len()).min(12);
            (next..next + count).for_each(|number| peer.send(&frame(number, 700)));
            held.extend((next..).zip(receive(&mut *receiver, count)));
            next += count;
            for (number, packet) in &held {
                assert_eq!(bytes(packet), frame(*number, 700), "what is held does not change");
            }
            // Neither the first nor the last come back first, and some stay for long.
            let mut place = round % 5;
            while held.len() > 12 {
                place = (place * 7 + 3) % held.len();
                held.remove(place);
            }
            receiver.give_back();
            assert!(!receiver.is_crowded());
        }
        assert!(next > 2000);
        assert_eq!(port.counters().rx_dropped, 0);
        drop(receiver);
        drop(port);
        // The port is gone, what it lent is not.
        for (number, packet) in &held {
            assert_eq!(bytes(packet), frame(*number, 700));
        }
        // Nor does the memory's next user touch it.
        let mut port = open("xdp:a1?frames=64");
        let mut receiver = self::receiver(&mut port);
        for number in 0..200 {
            peer.send(&frame(number, 900));
            assert_eq!(bytes(&receive(&mut *receiver, 1)[0]), frame(number, 900));
            receiver.give_back();
        }
        for (number, packet) in &held {
            assert_eq!(bytes(packet), frame(*number, 700));
        }
    });
}

#[test]
fn an_exhausted_ring_is_counted_and_recovers() {
    with_links(1500, || {
        let mut port = open("xdp:a1?frames=64");
        let mut receiver = receiver(&mut port);
        let peer = PacketSocket::open("a0");
        (0..32).for_each(|number| peer.send(&frame(number, 100)));
        let held = receive(&mut *receiver, 32);
        assert!(receiver.is_crowded());
        (0..50).for_each(|number| peer.send(&frame(number, 100)));
        let start = Instant::now();
        while port.counters().rx_dropped < 50 {
            receiver.give_back();
            assert_eq!(
                receiver.poll(&mut Vec::new(), POLL_LIMIT).expect("the port lives"),
                0,
                "nothing can come"
            );
            assert!(start.elapsed() < PATIENCE, "{:?}", port.statistics());
        }
        assert_eq!(port.counters().rx_dropped, 50);
        assert!(port.statistics().fill_ring_empty >= 50);
        drop(held);
        receiver.give_back();
        assert!(!receiver.is_crowded());
        (0..32).for_each(|number| peer.send(&frame(1000 + number, 100)));
        let packets = receive(&mut *receiver, 32);
        assert!(
            packets
                .iter()
                .enumerate()
                .all(|(number, packet)| bytes(packet) == frame(1000 + number, 100))
        );
        assert_eq!(port.counters().rx_dropped, 50);

        // A full TX ring refuses, and takes more when there is room: 32 chunks for 100 frames.
        let mut transmitter = port.transmitter().expect("one");
        let frames: Vec<_> = (0..100).map(|number| frame(number, 400)).collect();
        send(&mut *transmitter, &frames);
        frames.iter().for_each(|frame| assert_eq!(peer.receive(), *frame));
    });
}

#[test]
fn the_kernel_is_called_for_batches_not_for_frames() {
    with_links(1500, || {
        let mut port = open("xdp:a1");
        let (mut receiver, mut transmitter) =
            (receiver(&mut port), port.transmitter().expect("one"));
        let peer = PacketSocket::open("a0");
        let frames: Vec<_> = (0..128).map(|number| frame(number, 100)).collect();
        send(&mut *transmitter, &frames);
        let calls = port.statistics().tx_wakeups;
        // 32 frames a call on kernels that cannot be told otherwise.
        assert!((1..=5).contains(&calls), "{calls} calls for 128 frames");
        frames.iter().for_each(|frame| assert_eq!(peer.receive(), *frame));
        frames.iter().for_each(|frame| peer.send(frame));
        let before = port.statistics().rx_wakeups;
        let packets = receive(&mut *receiver, 128);
        drop(packets);
        receiver.give_back();
        assert_eq!(
            port.statistics().rx_wakeups,
            before,
            "a copying kernel looks at the fill ring by itself"
        );
    });
}
