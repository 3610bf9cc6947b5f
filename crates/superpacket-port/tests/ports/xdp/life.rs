//! Tests of interfaces that go down or disappear, and of programs that are attached or left behind.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::CapabilitySet;
use superpacket::packet::{Layer, RxChecksum};
use superpacket_port::xdp::XdpPort;
use superpacket_port::{
    LinkState, Outgoing, POLL_LIMIT, Port, PortError, Receive, StopReason, Transmit, TxBatch,
};

use super::{
    PATIENCE, Passage, frame, has_program, link, open, receiver, refused, send, until_error,
    with_links, without,
};
use crate::cable::receive;
use crate::frames::bytes;
use crate::support::{PacketSocket, ip};

#[test]
fn down_and_up_again() {
    with_links(1500, || {
        let mut port = open("xdp:a1");
        let (mut receiver, mut transmitter) =
            (receiver(&mut port), port.transmitter().expect("one"));
        let peer = PacketSocket::open("a0");
        assert_eq!(port.state().link, LinkState::Up);
        for _ in 0..3 {
            ip("link set a1 down");
            assert!(matches!(until_error(&mut *receiver), PortError::Down { .. }));
            assert_eq!(port.state().link, LinkState::Down);
            let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
            batch.push_bytes(
                &mut outgoing,
                &frame(5, 100),
                RxChecksum::None,
                None,
                Layer::Ethernet,
            );
            let stopped = (0..3).find_map(|_| transmitter.transmit(&outgoing, &batch, 0).stopped);
            assert!(matches!(stopped, Some(StopReason::Down)), "{stopped:?}");
            ip("link set a1 up");
            assert_eq!(port.state().link, LinkState::Up);
            let start = Instant::now();
            let mut packets = Vec::new();
            while packets.is_empty() {
                // The other end's queue is switched on with some delay, and drops until then.
                peer.send(&frame(7, 200));
                std::thread::sleep(Duration::from_millis(10));
                // What was said last may be said once more.
                let _ = receiver.poll(&mut packets, POLL_LIMIT);
                assert!(start.elapsed() < PATIENCE, "nothing comes");
            }
            assert_eq!(bytes(&packets[0]), frame(7, 200));
            drop(packets);
            receiver.give_back();
            send(&mut *transmitter, &[frame(9, 300)]);
            // A frame that was sent into the closed door may come first.
            while peer.receive() != frame(9, 300) {}
        }
        assert!(has_program("a1"), "still the same port");
    });
}

#[test]
fn an_interface_that_is_removed_is_gone_and_its_port_opens_again() {
    with_links(1500, || {
        for _ in 0..3 {
            let mut port = open("xdp:a1");
            let (mut receiver, mut transmitter) =
                (receiver(&mut port), port.transmitter().expect("one"));
            let peer = PacketSocket::open("a0");
            peer.send(&frame(1, 100));
            let held = receive(&mut *receiver, 1);
            ip("link del a0");
            let error = until_error(&mut *receiver);
            assert!(matches!(error, PortError::Gone { .. }) && error.is_transient(), "{error}");
            assert_eq!(port.state().link, LinkState::Gone);
            let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
            batch.push_bytes(
                &mut outgoing,
                &frame(5, 100),
                RxChecksum::None,
                None,
                Layer::Ethernet,
            );
            let stopped = (0..3).find_map(|_| transmitter.transmit(&outgoing, &batch, 0).stopped);
            assert!(matches!(stopped, Some(StopReason::Gone(_))), "{stopped:?}");
            port.counters();
            let error =
                XdpPort::open(&"xdp:a1".parse().expect("a port string")).expect_err("it is gone");
            assert!(matches!(error, PortError::NoInterface { .. }), "{error}");
            link("a0", "a1", 1500, "");
            drop((port, receiver, transmitter));
            assert_eq!(bytes(&held[0]), frame(1, 100));
        }
    });
}

#[test]
fn another_program_is_not_replaced() {
    with_links(1500, || {
        let first = open("xdp:a1");
        assert!(has_program("a1"));
        for mode in ["auto", "native", "generic"] {
            let message = refused(&format!("xdp:a1?mode={mode}"));
            assert!(
                message.contains("another XDP program (number ")
                    && message.contains("ip link set dev a1 xdp off"),
                "{message}"
            );
        }
        assert!(has_program("a1"));
        drop(first);
        assert!(!has_program("a1"), "the program goes with its port");
        // Again and again, at once: the queue may be busy for a moment after it was closed.
        for _ in 0..5 {
            drop(open("xdp:a1"));
        }
    });
}

#[test]
fn the_program_stays_until_the_last_end_is_dropped() {
    with_links(1500, || {
        let mut port = open("xdp:a1");
        let mut receiver = receiver(&mut port);
        drop(port);
        let peer = PacketSocket::open("a0");
        peer.send(&frame(1, 100));
        assert_eq!(bytes(&receive(&mut *receiver, 1)[0]), frame(1, 100));
        assert!(has_program("a1"));
        drop(receiver);
        assert!(!has_program("a1"));
    });
}

#[test]
fn a_killed_process_leaves_no_program() {
    /// Minimum number of frames that have passed when the process is killed.
    const PASSED: usize = 500;
    const HOLD: &str = "SUPERPACKET_TEST_XDP_HOLD";
    if let Some(interface) = std::env::var_os(HOLD) {
        let mut port = open(&format!("xdp:{}", interface.to_string_lossy()));
        send_back(&mut *receiver(&mut port), &mut *port.transmitter().expect("one"), |passed| {
            if passed == PASSED {
                println!("frames pass");
            }
        });
        panic!("nobody killed this process");
    }
    with_links(1500, || {
        let interface = || output("ip", &["-d", "link", "show", "a1"]);
        let start = Instant::now();
        while !interface().contains(" state UP ") {
            assert!(start.elapsed() < PATIENCE, "a1 does not come up");
        }
        let before = interface();
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["xdp::life::a_killed_process_leaves_no_program", "--exact", "--nocapture"])
            .env(HOLD, "a1")
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let peer = PacketSocket::open("a0");
        let killed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let start = Instant::now();
                while !killed.load(Ordering::Relaxed) && start.elapsed() < PATIENCE {
                    (0..8).for_each(|number| peer.send(&frame(number, 100)));
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
            let passes = lines.map_while(Result::ok).any(|line| line.contains("frames pass"));
            let (had_program, taken) = (
                has_program("a1"),
                XdpPort::open(&"xdp:a1".parse().expect("a port string")).is_err(),
            );
            child.kill().expect("it runs");
            child.wait().expect("it is ours");
            // The peer goes on sending for a while.
            std::thread::sleep(Duration::from_millis(5));
            killed.store(true, Ordering::Relaxed);
            assert!(
                passes && had_program && taken,
                "it held the port: {passes}, {had_program}, {taken}"
            );
        });
        // As many as its socket surely had room for.
        for _ in 0..PASSED / 5 {
            let came_back = peer.receive();
            assert!((0..8).any(|number| came_back == frame(number, 100)), "{came_back:?}");
        }
        let start = Instant::now();
        while has_program("a1") || interface() != before {
            assert!(
                start.elapsed() < PATIENCE,
                "the program is still there, or its interface is not as before"
            );
        }
        let mut port = open("xdp:a1");
        let mut receiver = receiver(&mut port);
        let peer = PacketSocket::open("a0");
        peer.send(&frame(9, 100));
        assert_eq!(bytes(&receive(&mut *receiver, 1)[0]), frame(9, 100));
    });
}

/// Sends all received frames back, unchanged; `passed` is called with the number of frames so far.
fn send_back(
    receiver: &mut dyn Receive,
    transmitter: &mut dyn Transmit,
    mut passed: impl FnMut(usize),
) {
    let (mut passage, mut packets, mut count) = (Passage::new(), Vec::new(), 0);
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        receiver.poll(&mut packets, 1).expect("the port is up");
        if !packets.is_empty() {
            passage.pass(&mut packets, transmitter);
            count += 1;
            passed(count);
        }
        receiver.give_back();
    }
}

/// Returns the output of a command that must succeed.
fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect("is installed");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn what_cannot_be_opened_says_why() {
    with_links(1500, || {
        for (spec, says) in [
            ("xdp:none0", "there is no such interface"),
            ("xdp:a1?queue=5", "has 1 receive queues in use"),
            ("xdp:a1?copy=zero", "\"veth\" cannot move frames itself"),
            ("xdp:lo?mode=native", "the driver \"\" has no XDP: mode=generic needs none"),
            ("xdp:a1?frames=100", "power of two"),
        ] {
            let message = refused(spec);
            assert!(message.contains(says), "{spec}: {message}");
            assert!(message.contains(spec), "{message}");
            assert!(!has_program("a1"), "{spec} leaves nothing behind");
        }
        let without = |removed| without(removed, || refused("xdp:a1"));
        let message = without(CapabilitySet::BPF | CapabilitySet::SYS_ADMIN);
        assert!(message.contains("CAP_BPF") && message.contains("BPF_MAP_CREATE"), "{message}");
        let message = without(CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN);
        assert!(message.contains("CAP_NET_ADMIN"), "{message}");
        let message = without(CapabilitySet::NET_RAW);
        assert!(message.contains("CAP_NET_RAW") && message.contains("AF_XDP socket"), "{message}");
    });
}
