//! Tests of the ICMP answers to packets that are too long for a port.

use std::time::{Duration, Instant};

use superpacket::packet::RxPacket;
use superpacket_bridge::Bridge;
use superpacket_bridge::fdb::Station;
use superpacket_bridge::settings::{BridgeSettings, TooBig};
use superpacket_port::Buffer;

mod support;

use support::{Host, bytes, ports};

/// Number of answers that a bridge sends at once, and per second.
const ANSWERS: usize = 100;

/// Returns a datagram of 1,400 bytes that must not be fragmented, from the host at this end.
fn datagram(from: u8) -> Vec<u8> {
    let ip = [0x45, 0, 5, 0x78, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, from, 10, 0, 0, 9];
    let mut frame =
        [&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, from, 8, 0][..], &ip, &[1, 0, 1, 0, 5, 0x64, 0, 0]]
            .concat();
    frame.resize(14 + 1_400, 7);
    frame
}

fn is_answer(packet: &RxPacket<Buffer>) -> bool {
    let bytes = bytes(packet);
    bytes.get(23) == Some(&1) && bytes.get(34..36) == Some(&[3, 4])
}

#[test]
fn threads_share_the_limit_of_answers() {
    let names =
        ["memory:big-a?slots=1024", "memory:big-b?slots=1024", "memory:big-narrow?mtu=1000"];
    let mut hosts = names.map(Host::open);
    let mut ports = ports(names);
    ports.iter_mut().for_each(|port| port.too_big = TooBig::Icmp);
    // A flooded packet that fits another port is not answered.
    ports[2].static_entries.insert(Station { vlan: 0, address: [2, 0, 0, 0, 0, 9] });
    // Each of the first two ports is received by its own thread, with its own forwarder.
    let settings = BridgeSettings { ports, threads: 2, ..BridgeSettings::default() };
    let bridge = Bridge::start(settings).expect("memory needs nothing");
    let started = Instant::now();
    for (from, host) in (1..).zip(&mut hosts[..2]) {
        host.send(&vec![datagram(from); 2 * ANSWERS]);
    }
    let received = || bridge.stats()[..2].iter().all(|port| port.rx_packets == 2 * ANSWERS as u64);
    while !received() {
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", bridge.stats());
        std::thread::yield_now();
    }
    // Answers are sent before a thread ends.
    bridge.stop();
    let most = ANSWERS + ANSWERS * (started.elapsed().as_millis() as usize + 1) / 1_000;
    let mut answers = 0;
    for host in &mut hosts[..2] {
        let packets = host.packets();
        answers += packets.iter().filter(|packet| is_answer(packet)).count();
    }
    assert!((ANSWERS..=most).contains(&answers), "{answers} answers, {most} at most");
}
