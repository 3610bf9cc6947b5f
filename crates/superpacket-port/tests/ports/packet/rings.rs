//! Tests of the memory of packet ports' rings: lent, returned, exhausted and shared.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use superpacket_port::POLL_LIMIT;
use superpacket_traffic::workload::w2;

use super::open_port::{OpenPort, bytes, wait};
use super::{frame, pair};
use crate::support::{PacketSocket, in_namespace};

#[test]
fn what_finds_no_slot_is_counted() {
    in_namespace(|| {
        pair();
        let mut port = OpenPort::new("packet:port0?ring=16k&slot=2k");
        let peer = PacketSocket::open("peer0");
        let frames: Vec<_> = (0..100).map(|number| frame(number, 100)).collect();
        frames.iter().for_each(|frame| peer.send(frame));
        let received = port.poll();
        assert!(bytes(&received) == frames[..8]);
        assert_eq!(port.port.counters().rx_dropped, 92);
        assert_eq!(port.port.queue_drops(), [92]);
        assert_eq!(port.port.counters().rx_dropped, 92, "counted once");
    });
}

#[test]
fn a_held_slot_stops_the_ring_until_it_is_let_go() {
    in_namespace(|| {
        pair();
        let mut port = OpenPort::new("packet:port0?ring=16k&slot=2k");
        let peer = PacketSocket::open("peer0");
        for round in 0..3 {
            let frames: Vec<_> = (0..8).map(|number| frame(round * 100 + number, 100)).collect();
            frames.iter().for_each(|frame| peer.send(frame));
            let mut received = port.receive(8);
            assert!(port.receivers[0].is_crowded());
            received.truncate(1);
            port.receivers[0].give_back();
            assert!(
                port.receivers[0].is_crowded(),
                "behind the one that is held, nothing goes back"
            );
            peer.send(&frame(99, 100));
            assert!(port.poll().is_empty());
            assert!(bytes(&received) == frames[..1], "nobody wrote to it");
            drop(received);
            port.receivers[0].give_back();
            assert!(!port.receivers[0].is_crowded());
            assert_eq!(port.port.counters().rx_dropped, round as u64 + 1);
        }
    });
}

#[test]
fn a_held_frame_stops_the_blocks_until_it_is_let_go() {
    in_namespace(|| {
        pair();
        let mut port = OpenPort::new("packet:port0?version=v3&blocks=4&block=8k");
        let peer = PacketSocket::open("peer0");
        let frames: Vec<_> = (0..200).map(|number| frame(number, 1000)).collect();
        for _ in 0..3 {
            frames.iter().for_each(|frame| peer.send(frame));
            // The last block may wait for its time.
            std::thread::sleep(Duration::from_millis(20));
            let mut received = port.poll();
            let count = received.len();
            assert!((20..40).contains(&count) && bytes(&received) == frames[..count], "{count}");
            assert!(port.receivers[0].is_crowded());
            let middle = received.swap_remove(count / 2);
            let held = bytes(std::slice::from_ref(&middle));
            drop(received);
            port.receivers[0].give_back();
            frames.iter().for_each(|frame| peer.send(frame));
            std::thread::sleep(Duration::from_millis(20));
            let more = port.poll();
            assert!(
                !more.is_empty() && more.len() < count,
                "the blocks before the held frame's came back: {} of {count}",
                more.len()
            );
            assert_eq!(bytes(&[middle]), held);
            drop(more);
            port.receivers[0].give_back();
            assert!(!port.receivers[0].is_crowded());
            // What has come since is not wanted.
            while !port.poll().is_empty() {
                port.receivers[0].give_back();
            }
        }
        assert!(port.port.counters().rx_dropped > 0);
    });
}

#[test]
fn a_block_is_read_in_parts() {
    in_namespace(|| {
        pair();
        let mut port = OpenPort::new("packet:port0?version=v3");
        let peer = PacketSocket::open("peer0");
        let frames: Vec<_> = (0..50).map(|number| frame(number, 60 + number)).collect();
        frames.iter().for_each(|frame| peer.send(frame));
        assert!(wait(&*port.receivers[0], 900));
        let mut received = Vec::new();
        while received.len() < 50 {
            let before = received.len();
            assert!(port.receivers[0].poll(&mut received, 7).expect("up") <= 7);
            port.receivers[0].give_back();
            assert!(received.len() > before || wait(&*port.receivers[0], 900));
        }
        assert!(bytes(&received) == frames);
    });
}

#[test]
fn a_lone_frame_waits_in_a_block_and_not_in_a_slot() {
    in_namespace(|| {
        pair();
        let peer = PacketSocket::open("peer0");
        let mut slots = OpenPort::new("packet:port0");
        peer.send(&frame(1, 60));
        assert_eq!(slots.poll().len(), 1, "it is there when the sender's call returns");
        drop(slots);
        let mut blocks = OpenPort::new("packet:port0?version=v3&retire=200");
        let sent = Instant::now();
        peer.send(&frame(1, 60));
        assert!(blocks.poll().is_empty());
        assert_eq!(blocks.receive(1).len(), 1);
        assert!(sent.elapsed() > Duration::from_millis(50), "{:?}", sent.elapsed());
    });
}

#[test]
fn queues_share_flows_and_lose_none() {
    for mode in ["hash", "balance"] {
        in_namespace(move || {
            pair();
            let mut port = OpenPort::new(&format!("packet:port0?queues=2&fanout={mode}"));
            let peer = PacketSocket::open("peer0");
            let frames = w2(64, 512);
            frames.iter().for_each(|frame| peer.send(frame));
            let mut all = Vec::new();
            let mut flows = Vec::new();
            for (queue, receiver) in port.receivers.iter_mut().enumerate() {
                let mut packets = Vec::new();
                while receiver.poll(&mut packets, POLL_LIMIT).expect("up") != 0 {}
                assert!(packets.len() > 50, "{mode}: queue {queue} has {}", packets.len());
                assert!(packets.iter().all(|packet| usize::from(packet.queue) == queue));
                let bytes = bytes(&packets);
                flows.push(
                    bytes.iter().map(|frame| frame[26..38].to_vec()).collect::<BTreeSet<_>>(),
                );
                all.extend(bytes);
            }
            assert_eq!(all.len(), 512, "{mode}");
            assert!(
                all.iter().collect::<BTreeSet<_>>() == frames.iter().collect(),
                "{mode}: each once"
            );
            if mode == "hash" {
                assert!(flows[0].is_disjoint(&flows[1]), "a flow stays in its queue");
            }
        });
    }
}

#[test]
fn buffers_outlive_their_port() {
    in_namespace(|| {
        pair();
        for version in ["v2", "v3"] {
            let mut port = OpenPort::new(&format!("packet:port0?version={version}"));
            let peer = PacketSocket::open("peer0");
            peer.send(&frame(5, 500));
            let received = port.receive(1);
            drop(port);
            (0..5000).for_each(|number| peer.send(&frame(number, 500)));
            assert!(
                bytes(&received)[0] == frame(5, 500),
                "nothing is written to what is left of the ring"
            );
        }
    });
}
