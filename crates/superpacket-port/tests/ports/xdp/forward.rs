//! Tests the example `xdp_forward`, between two hosts with kernel TCP.

#[allow(dead_code, reason = "its `main` runs for ever")]
#[path = "../../../examples/xdp_forward.rs"]
mod example;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{PATIENCE, with_links};
use crate::support::{Host, ip};
use example::Way;

/// Number of bytes that each host sends to the other.
const LENGTH: usize = 8 << 20;

/// Length in bytes of a segment's headers: Ethernet, IPv4 or IPv6, TCP with timestamps.
const HEADERS: std::ops::RangeInclusive<u64> = 66..=86;

fn byte(index: usize) -> u8 {
    (index.wrapping_mul(0x9e37_79b1) >> 24) as u8
}

/// Sends bytes and receives as many at the same time, and compares them.
fn exchange(mut stream: TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream.set_write_timeout(Some(PATIENCE)).expect("a socket");
    let mut sender = stream.try_clone().expect("a descriptor");
    let sending = std::thread::spawn(move || {
        sender.write_all(&(0..LENGTH).map(byte).collect::<Vec<_>>()).expect("the other end reads")
    });
    let mut bytes = vec![0; LENGTH];
    stream.read_exact(&mut bytes).expect("the other end sends");
    sending.join().expect("sent");
    assert!(
        bytes.iter().enumerate().all(|(index, &found)| found == byte(index)),
        "the bytes are not those that were sent"
    );
}

#[test]
fn packets_are_joined_and_cut_in_one_umem_and_no_payload_is_copied() {
    with_links(1500, || {
        let hosts = [Host::new(), Host::new()];
        for (host, (interface, number)) in hosts.iter().zip([("a0", 1), ("b0", 2)]) {
            ip(&format!("link set {interface} netns {}", host.namespace()));
            host.ip(&format!("link set {interface} up"));
            host.ip(&format!("addr add 10.0.0.{number}/24 dev {interface}"));
            host.ip(&format!("addr add fd00::{number}/64 dev {interface} nodad"));
        }
        let (mut one, mut other) =
            (example::open("a1").expect("a port"), example::open("b1").expect("a port"));
        let mut ways = [
            Way::new(&mut one, &mut other).expect("a direction"),
            Way::new(&mut other, &mut one).expect("the other direction"),
        ];
        for address in ["10.0.0.2", "fd00::2"] {
            let listener = hosts[1]
                .run(move || TcpListener::bind((address, 7)).expect("the address is the host's"));
            let mut tasks = [
                Some(hosts[1].start(move || exchange(listener.accept().expect("a connection").0))),
                Some(hosts[0].start(move || {
                    exchange(TcpStream::connect((address, 7)).expect("a connection"))
                })),
            ];
            let start = Instant::now();
            while tasks.iter().any(Option::is_some) {
                assert!(start.elapsed() < 3 * PATIENCE, "the transfer has stopped");
                let ends = ways.iter().flat_map(|way| &way.receivers);
                let mut ready: Vec<_> = ends
                    .map(|end| PollFd::from_borrowed_fd(end.readiness(), PollFlags::IN))
                    .collect();
                poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 5_000_000 })).expect("poll");
                ways.iter_mut().for_each(|way| way.forward().expect("the ports live"));
                for task in &mut tasks {
                    *task = task.take().and_then(|task| task.try_wait().err());
                }
            }
        }
        for (way, port) in ways.iter().zip([&mut other, &mut one]) {
            let statistics = port.statistics();
            assert!(
                way.received > 2 * way.decisions && way.received > 10_000,
                "{} packets, {} decisions",
                way.received,
                way.decisions
            );
            assert_eq!(
                (way.dropped, statistics.tx_invalid, statistics.tx_refused),
                (0, 0, 0),
                "{statistics:?}"
            );
            // All that came has left, and no frame was copied whole.
            assert_eq!(
                statistics.sent_gathered + statistics.sent_in_place,
                way.received,
                "{statistics:?}"
            );
            assert!(
                statistics.sent_by_copy == 0 && statistics.sent_gathered > 10_000,
                "{statistics:?}"
            );
            let copied = statistics.bytes_copied / statistics.sent_gathered;
            assert!(
                HEADERS.contains(&copied),
                "{copied} bytes of a frame were copied: {statistics:?}"
            );
        }
    });
}
