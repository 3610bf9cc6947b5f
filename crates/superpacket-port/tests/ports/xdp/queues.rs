//! Tests of several queues, and of the memory that they share.

use std::collections::HashSet;
use std::time::Instant;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::CapabilitySet;
use superpacket_port::xdp::XdpPort;
use superpacket_port::{POLL_LIMIT, Port};

use super::{
    PATIENCE, Passage, datagram, frame, link, open, receiver, refused, send, with_links, without,
};
use crate::cable::receive;
use crate::frames::bytes;
use crate::support::{PacketSocket, ip};

fn in_namespace_with_queues(test: impl FnOnce()) {
    with_links(1500, || {
        link("q0", "q1", 1500, "numtxqueues 2 numrxqueues 2");
        test();
    });
}

#[test]
fn several_queues() {
    in_namespace_with_queues(|| {
        let mut port = open("xdp:q1");
        assert_eq!(port.queues(), [0, 1]);
        let mut receivers = port.receivers();
        assert_eq!(receivers.len(), 2);
        let peer = PacketSocket::open("q0");
        // The other end chooses the queue by the flow, and the flow is the ports.
        let frames: HashSet<Vec<u8>> = (0..64u8).map(datagram).collect();
        frames.iter().for_each(|frame| peer.send(frame));
        let (mut seen, mut counts, start) = (HashSet::new(), [0, 0], Instant::now());
        while seen.len() < frames.len() {
            for (queue, receiver) in receivers.iter_mut().enumerate() {
                let mut packets = Vec::new();
                counts[queue] += receiver.poll(&mut packets, POLL_LIMIT).expect("the port lives");
                assert!(packets.iter().all(|packet| usize::from(packet.queue) == queue));
                seen.extend(packets.iter().map(bytes));
                receiver.give_back();
            }
            assert!(start.elapsed() < PATIENCE, "{counts:?}");
        }
        assert_eq!(seen, frames);
        assert!(counts[0] != 0 && counts[1] != 0, "{counts:?}");

        // Ends for sending go round the queues.
        let mut transmitters =
            [port.transmitter().expect("one"), port.transmitter().expect("another")];
        for (index, transmitter) in transmitters.iter_mut().enumerate() {
            send(&mut **transmitter, &[frame(index, 90)]);
            assert_eq!(peer.receive(), frame(index, 90));
        }
        drop((port, receivers, transmitters));

        let mut port = open("xdp:q1?queue=1");
        assert_eq!(port.queues(), [1]);
        let mut receiver = receiver(&mut port);
        frames.iter().for_each(|frame| peer.send(frame));
        let packets = receive(&mut *receiver, counts[1]);
        assert!(packets.iter().all(|packet| packet.queue == 1));
        let message = refused("xdp:q1?queue=2");
        assert!(message.contains("has 2 receive queues"), "{message}");
    });
}

#[test]
fn memory_is_charged_once_for_all_queues() {
    // Of a size that no other test takes.
    const OPTIONS: &str = "frames=64&frame=4k&mode=native&copy=copy";
    const CHUNKS: u64 = 64 * 4096;
    with_links(1500, || {
        for (queues, parts) in [(1u64, 4), (4, 8), (16, 32)] {
            let count = format!("numtxqueues {queues} numrxqueues {queues}");
            for (one, other) in [("c0", "c1"), ("d0", "d1")] {
                link(one, other, 1500, &count);
            }
            without(CapabilitySet::IPC_LOCK, || {
                let spec = |name: &str| format!("xdp:{name}?{OPTIONS}");
                // Half of the parts are for a second port.
                let charged = parts * CHUNKS;
                limit_locked_memory(charged - 4096);
                let error = refused(&spec("c1"));
                assert!(error.contains("RLIMIT_MEMLOCK"), "a page too little: {error}");
                limit_locked_memory(charged);
                let first = open(&spec("c1"));
                assert_eq!(first.queues().len() as u64, queues);
                let second = open(&spec("d1"));
                assert_eq!(second.queues().len() as u64, queues);
                // What stays is shared with who comes, also where the first is gone.
                drop(first);
                let mut third = open(&spec("c1"));
                drop(second);
                let mut fourth = open(&spec("d1"));
                exchange(&mut third, "c0", &mut fourth, "d0");
            });
            ip("link del c0");
            ip("link del d0");
        }
    });
}

/// Limits the memory that this process may lock, where it lacks `CAP_IPC_LOCK`, to `bytes`.
fn limit_locked_memory(bytes: u64) {
    let maximum = getrlimit(Resource::Memlock).maximum.map(|maximum| maximum.max(bytes));
    setrlimit(Resource::Memlock, Rlimit { current: Some(bytes), maximum })
        .expect("a privilege to raise it");
}

/// Sends a frame from `first_peer` through both ports to `second_peer`.
fn exchange(first: &mut XdpPort, first_peer: &str, second: &mut XdpPort, second_peer: &str) {
    let (source, target) = (PacketSocket::open(first_peer), PacketSocket::open(second_peer));
    let mut receivers = first.receivers();
    let mut transmitter = second.transmitter().expect("an end");
    source.send(&frame(1, 200));
    let (mut packets, start) = (Vec::new(), Instant::now());
    while packets.is_empty() {
        for receiver in &mut receivers {
            receiver.poll(&mut packets, POLL_LIMIT).expect("the port lives");
        }
        assert!(start.elapsed() < PATIENCE, "no frame came");
    }
    Passage::new().pass(&mut packets, &mut *transmitter);
    assert_eq!(target.receive(), frame(1, 200));
    assert_eq!((second.statistics().sent_in_place, second.statistics().sent_by_copy), (1, 0));
}
