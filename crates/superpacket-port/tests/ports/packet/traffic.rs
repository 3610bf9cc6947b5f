//! Tests with TCP of the kernel, from one host to another, through two ports.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use superpacket::packet::{RxChecksum, RxPacket};
use superpacket_port::{Buffer, Outgoing, POLL_LIMIT, StopReason, TxBatch};

use super::open_port::{OpenPort, push, wait};
use super::super_packets::header;
use super::witness::Witness;
use crate::support::{Host, in_namespace, ip, quiet};

/// Numbers of the packets that were passed from the first port to the second.
#[derive(Debug, Default)]
struct Passed {
    packets: usize,
    super_packets: usize,
    longest: usize,
    partial: usize,
    refused: usize,
}

/// Passes packets from one port to the other, until both are empty after `done`.
fn forward(ports: &mut [OpenPort; 2], done: &AtomicBool) -> Passed {
    let mut passed = Passed::default();
    let (mut packets, mut outgoing, mut batch) =
        (Vec::<RxPacket<Buffer>>::new(), Outgoing::new(), TxBatch::new());
    loop {
        let was_done = done.load(Ordering::Acquire);
        let mut idle = true;
        for from in 0..2 {
            for queue in 0..ports[from].receivers.len() {
                let count =
                    ports[from].receivers[queue].poll(&mut packets, POLL_LIMIT).expect("up");
                idle &= count == 0;
                if from == 0 {
                    passed.packets += count;
                    passed.super_packets +=
                        packets.iter().filter(|packet| packet.gso.is_some()).count();
                    passed.longest =
                        packets.iter().map(RxPacket::length).fold(passed.longest, usize::max);
                    passed.partial += packets
                        .iter()
                        .filter(|packet| matches!(packet.checksum, RxChecksum::Partial { .. }))
                        .count();
                }
                push(&mut packets, &mut outgoing, &mut batch, 1023);
                let mut sent = 0;
                while sent < batch.frames().len() {
                    let progress = ports[1 - from].transmitter.transmit(&outgoing, &batch, sent);
                    sent += progress.sent;
                    match progress.stopped {
                        None => {}
                        Some(StopReason::Full) => std::thread::yield_now(),
                        Some(_) => (sent, passed.refused) = (sent + 1, passed.refused + 1),
                    }
                }
                batch.clear();
                outgoing.clear();
                ports[from].receivers[queue].give_back();
            }
        }
        if idle && was_done {
            return passed;
        }
        if idle {
            wait(&*ports[0].receivers[0], 1);
        }
    }
}

/// Returns the byte at the position `at` of the stream that is sent.
fn pattern(at: usize) -> u8 {
    (at * 13 + at / 251) as u8
}

/// Sends `length` bytes from host `a` to `address` on host `b`, through ports with these options;
/// `prepare` sets up the hosts and devices: `a0` and `b0` there, `port0` and `port1` here.
fn transfer(
    options: &str,
    length: usize,
    address: &'static str,
    prepare: impl FnOnce(&Host, &Host),
) -> Passed {
    quiet();
    let (a, b) = (Host::new(), Host::new());
    ip(&format!("link add port0 type veth peer name a0 netns {}", a.namespace()));
    ip(&format!("link add port1 type veth peer name b0 netns {}", b.namespace()));
    prepare(&a, &b);
    a.ip("link set a0 up");
    b.ip("link set b0 up");
    ip("link set port0 up");
    ip("link set port1 up");
    let mut ports =
        ["packet:port0", "packet:port1"].map(|port| OpenPort::new(&format!("{port}{options}")));
    let (listening, port) = std::sync::mpsc::channel();
    let receiver = b.start(move || {
        let listener = TcpListener::bind((address, 0)).expect("bind");
        listening.send(listener.local_addr().expect("bound").port()).expect("somebody waits");
        let (mut stream, _) = listener.accept().expect("accept");
        let mut bytes = Vec::with_capacity(length);
        stream.read_to_end(&mut bytes).expect("read");
        stream.write_all(b"thanks").expect("write");
        bytes
    });
    let done = Arc::new(AtomicBool::new(false));
    let finished = Arc::clone(&done);
    let port = port.recv().expect("the receiver listens");
    let sender = a.start(move || {
        let bytes: Vec<u8> = (0..length).map(pattern).collect();
        let mut stream = TcpStream::connect((address, port)).expect("connect");
        rustix::net::sockopt::set_tcp_congestion(&stream, "cubic").expect("cubic is always there");
        stream.write_all(&bytes).expect("write");
        stream.shutdown(std::net::Shutdown::Write).expect("shutdown");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("read");
        finished.store(true, Ordering::Release);
        answer
    });
    let passed = forward(&mut ports, &done);
    assert_eq!(sender.wait(), "thanks");
    let received = receiver.wait();
    assert!(
        received.len() == length
            && received.iter().enumerate().all(|(at, &byte)| byte == pattern(at)),
        "every byte in its place"
    );
    assert_eq!(passed.refused, 0, "{passed:?}");
    passed
}

fn ipv4(a: &Host, b: &Host) {
    a.ip("address add 10.0.0.1/24 dev a0");
    b.ip("address add 10.0.0.2/24 dev b0");
}

fn tcp(options: &'static str) {
    in_namespace(move || {
        let passed = transfer(options, 8 << 20, "10.0.0.2", ipv4);
        assert!(
            passed.super_packets > 50
                && passed.longest > 20_000
                && passed.partial >= passed.super_packets,
            "{options}: {passed:?}"
        );
    });
}

#[test]
fn tcp_passes_slots() {
    tcp("");
}

#[test]
fn tcp_passes_blocks() {
    tcp("?version=v3");
}

#[test]
fn tcp_passes_long_slots() {
    tcp("?ring=16m&slot=128k");
}

#[test]
fn tcp_passes_two_queues() {
    tcp("?queues=2");
}

#[test]
fn big_tcp_passes_whole() {
    for options in ["", "?version=v3"] {
        in_namespace(move || {
            // Enough for some of the longest, also where others keep the CPUs busy.
            let passed = transfer(options, 48 << 20, "fd00::2", |a, b| {
                for (host, device, address) in [(a, "a0", "fd00::1"), (b, "b0", "fd00::2")] {
                    host.ip(&format!("link set {device} gso_max_size 185000 gro_max_size 185000"));
                    host.run(move || {
                        std::fs::write(
                            format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6"),
                            "0",
                        )
                        .expect("its own")
                    });
                    host.ip(&format!("address add {address}/64 dev {device} nodad"));
                }
                ip("link set port0 gso_max_size 185000");
                ip("link set port1 gso_max_size 185000");
            });
            assert!(passed.super_packets > 20 && passed.longest > 66_000, "{options}: {passed:?}");
        });
    }
}

#[test]
fn super_packets_in_vxlan_are_received() {
    in_namespace(|| {
        use superpacket::segment::{Gso, GsoPacket, SegmentOptions, Segmenter};
        quiet();
        let a = Host::new();
        a.run(quiet);
        ip(&format!("link add port0 type veth peer name a0 netns {}", a.namespace()));
        // Room for the outer headers.
        a.ip("link set a0 mtu 1600");
        a.ip("address add 10.0.0.1/24 dev a0");
        // First: an interface that comes up before its peer sends nothing until the kernel has
        // noticed that the peer is there, and drops what it is given.
        ip("link set port0 up");
        a.ip("link set a0 up");
        a.ip("neighbour add 10.0.0.2 lladdr 02:00:00:00:00:02 dev a0");
        a.ip("link add vx0 type vxlan id 5 local 10.0.0.1 remote 10.0.0.2 dstport 4789");
        a.ip("link set vx0 up");
        let mut port = OpenPort::new("packet:port0");
        // What a stack behind the tunnel would send.
        let inner =
            superpacket_traffic::workload::w4(1, superpacket_traffic::frame::Checksum::Partial)
                .remove(0);
        let sent = inner.clone();
        a.run(move || {
            Witness::open("vx0").send(header(1, 66, 1448, 34, 16), &sent);
        });
        let packet = port.receive(1).remove(0);
        let received = super::open_port::bytes(std::slice::from_ref(&packet)).remove(0);
        assert!(received[50..] == inner, "behind outer Ethernet, IP, UDP and VXLAN headers");
        let said = packet.gso.expect("a super-packet");
        assert_eq!(
            (said.size.get(), packet.checksum),
            (1448, RxChecksum::Partial { start: 84, offset: 16 })
        );
        let slices = [&received[..]];
        let whole = GsoPacket::new(&slices, Gso::new(said.kind, said.size))
            .with_layer(packet.layer)
            .with_checksum(packet.checksum);
        let mut count = 0;
        let cut = Segmenter::new().segment(&whole, &SegmentOptions::default(), |_| count += 1);
        cut.expect("the engine cuts it");
        assert_eq!(count, 45);
    });
}
