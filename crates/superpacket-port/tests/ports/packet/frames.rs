//! Tests that packet ports receive and send frames bit for bit.

use superpacket::packet::{RxChecksum, VlanTag};
use superpacket_port::{Outgoing, TxBatch};

use super::open_port::{OpenPort, bytes, push};
use super::witness::Witness;
use super::{frame, pair};
use crate::support::{PacketSocket, in_namespace, ip};

fn both_ways(options: &'static str) {
    in_namespace(move || {
        pair();
        let mut port = OpenPort::new(&format!("packet:port0{options}"));
        let peer = PacketSocket::open("peer0");
        let frames: Vec<_> = (0..300)
            .map(|number| frame(number, [60, 14, 61, 1514, 700, 1513][number % 6]))
            .collect();
        frames.iter().for_each(|frame| peer.send(frame));
        let received = port.receive(300);
        assert!(bytes(&received) == frames, "what came is not what was sent");
        assert!(received.iter().all(|packet| packet.checksum == RxChecksum::None
            && packet.gso.is_none()
            && packet.vlan.is_none()));
        assert!(
            received.iter().all(|packet| packet.time > 1_600_000_000 * 1_000_000_000),
            "in nanoseconds since 1970"
        );
        assert!(received.windows(2).all(|pair| pair[0].time <= pair[1].time));
        drop(received);
        port.receivers[0].give_back();
        // As many as the peer's queue holds.
        for some in frames.chunks(50) {
            let progress = port.send(some);
            assert!(progress.sent == 50 && progress.stopped.is_none(), "{progress:?}");
            assert!(
                some.iter().all(|frame| peer.receive() == *frame),
                "what arrived is not what was sent"
            );
        }
        // Neither what the port sent itself comes back, nor what another socket sent.
        PacketSocket::open("port0").send(&frames[0]);
        peer.send(&frames[1]);
        assert!(bytes(&port.receive(1)) == frames[1..2] && port.poll().is_empty());
        assert_eq!(port.port.counters(), superpacket_port::PortCounters::default());
    });
}

#[test]
fn frames_pass_both_ways_through_slots() {
    both_ways("");
}

#[test]
fn frames_pass_both_ways_through_blocks() {
    both_ways("?version=v3&hash=on");
}

#[test]
fn several_queues_do_not_see_what_is_sent() {
    both_ways("?queues=1&fanout=balance");
    in_namespace(|| {
        pair();
        let mut port = OpenPort::new("packet:port0?queues=2&fanout=balance");
        assert_eq!(port.receivers.len(), 2);
        port.send(&[frame(1, 60), frame(2, 60)]);
        let mut packets = Vec::new();
        for receiver in &mut port.receivers {
            assert_eq!(receiver.poll(&mut packets, 9).expect("up"), 0);
        }
    });
}

fn tags(options: &'static str) {
    in_namespace(move || {
        pair();
        // The kernel grants a tag of 0x8100 beyond the MTU only.
        ip("link set port0 mtu 1504");
        ip("link set peer0 mtu 1504");
        let mut port = OpenPort::new(&format!("packet:port0{options}"));
        let (peer, witness) = (PacketSocket::open("peer0"), Witness::open("peer0"));
        let plain = superpacket_traffic::workload::w1(1).remove(0);
        let kinds = [
            VlanTag { protocol: 0x8100, control: 0x2064 },
            VlanTag { protocol: 0x88a8, control: 0 },
        ];
        for tag in kinds {
            let ([a, b], [c, d]) = (tag.protocol.to_be_bytes(), tag.control.to_be_bytes());
            let tagged = [&plain[..12], &[a, b, c, d], &plain[12..]].concat();
            peer.send(&tagged);
            let mut received = port.receive(1);
            assert_eq!(received[0].vlan, Some(tag));
            assert!(bytes(&received)[0] == plain, "without the tag");
            let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
            push(&mut received, &mut outgoing, &mut batch, 1023);
            assert_eq!(port.transmitter.transmit(&outgoing, &batch, 0).sent, 1);
            let seen = witness.receive();
            assert_eq!(seen.tag, Some((tag.protocol, tag.control)));
            assert!(seen.bytes == plain, "the tag was all that was added");
        }
    });
}

#[test]
fn a_tag_is_stripped_from_a_slot_and_put_back() {
    tags("");
}

#[test]
fn a_tag_is_stripped_from_a_block_and_put_back() {
    tags("?version=v3");
}

#[test]
fn frames_longer_than_a_slot_keep_their_place() {
    in_namespace(|| {
        pair();
        ip("link set port0 mtu 60000");
        ip("link set peer0 mtu 60000");
        let peer = PacketSocket::open("peer0");
        let mut port = OpenPort::new("packet:port0");
        let frames: Vec<_> = (0..100)
            .map(|number| frame(number, [60, 9014, 1972, 1973, 60_014, 1800][number % 6]))
            .collect();
        frames.iter().for_each(|frame| peer.send(frame));
        let received = port.receive(100);
        assert!(bytes(&received) == frames, "one after the other, whole");
        assert_eq!(port.port.counters().rx_dropped, 0);
        // All buffers for long frames are lent: further frames are allocated separately.
        frames.iter().for_each(|frame| peer.send(frame));
        let more = port.receive(100);
        assert!(bytes(&more) == frames && bytes(&received) == frames);
    });
}

#[test]
fn long_frames_beyond_the_socket_s_memory_are_counted() {
    in_namespace(|| {
        pair();
        ip("link set port0 mtu 60000");
        ip("link set peer0 mtu 60000");
        let peer = PacketSocket::open("peer0");
        let mut port = OpenPort::new("packet:port0");
        let frames: Vec<_> = (0..400).map(|number| frame(number, 60_014)).collect();
        frames.iter().for_each(|frame| peer.send(frame));
        let received = bytes(&port.poll());
        let dropped = port.port.counters().rx_dropped as usize;
        assert!(
            dropped != 0 && received.len() + dropped == 400,
            "{} and {dropped}",
            received.len()
        );
        assert!(received == frames[..received.len()], "those that came first are whole");
        peer.send(&frames[0]);
        assert!(bytes(&port.receive(1)) == frames[..1], "it goes on");
    });
}
