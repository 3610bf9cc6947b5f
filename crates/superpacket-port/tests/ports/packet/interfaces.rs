//! Tests of packet ports whose interface is missing, changes, goes down, or disappears.

use std::process::Command;
use std::time::{Duration, Instant};

use superpacket::packet::RxChecksum;
use superpacket_port::features::Feature;
use superpacket_port::{LinkState, PortError, PortState, StopReason, open};

use super::open_port::{OpenPort, bytes, wait};
use super::witness::{ETHTOOL_STSO, set_offload};
use super::{frame, pair};
use crate::support::{Host, PacketSocket, in_namespace, ip};

/// Time after which a test stops waiting, and fails.
const PATIENCE: Duration = Duration::from_secs(20);

fn error(spec: &str) -> PortError {
    open(&spec.parse().expect(spec)).expect_err(spec)
}

#[test]
fn what_cannot_be_opened_is_named() {
    in_namespace(|| {
        assert!(
            matches!(error("packet:none0"), PortError::NoInterface { interface, .. } if interface == "none0")
        );
        assert!(matches!(error("packet:lo?speed=9"), PortError::Spec(_)));
    });
}

#[test]
fn capabilities_are_the_device_s() {
    in_namespace(|| {
        pair();
        let capabilities = OpenPort::new("packet:port0").port.capabilities();
        for feature in [
            Feature::TxChecksumming,
            Feature::ScatterGather,
            Feature::TcpSegmentationOffload,
            Feature::TxUdpSegmentation,
        ] {
            assert!(capabilities.features.contains(feature), "{feature}: a veth has it");
        }
        assert!(!capabilities.features.contains(Feature::ReceiveHashing));
        assert!(
            OpenPort::new("packet:port0?version=v3&hash=on")
                .port
                .capabilities()
                .features
                .contains(Feature::ReceiveHashing)
        );
        assert_eq!(
            (
                capabilities.max_slices,
                capabilities.gso.max_ipv4_length,
                capabilities.gso.max_segments
            ),
            (1023, 65_517, 65_535)
        );
        assert!(!capabilities.gso.udp_tunnels && !capabilities.gso.fixed_ids);
        ip("link set port0 gso_max_size 40000 gso_max_segs 20");
        let capabilities = OpenPort::new("packet:port0").port.capabilities();
        assert_eq!((capabilities.gso.max_ipv6_length, capabilities.gso.max_segments), (39_981, 20));
        assert_eq!(capabilities.gso.max_ipv4_length, 39_981, "the kernel lowers both limits");
        ip("link set port0 gso_max_size 100000");
        let gso = OpenPort::new("packet:port0").port.capabilities().gso;
        assert_eq!(
            (gso.max_ipv4_length, gso.max_ipv6_length),
            (39_981, 99_981),
            "each IP version has its own"
        );
        set_offload("port0", ETHTOOL_STSO, false);
        let without = OpenPort::new("packet:port0?tso=device").port.capabilities().features;
        assert!(
            !without.contains(Feature::TcpSegmentationOffload)
                && without.contains(Feature::TxChecksumming),
            "{without:?}"
        );
        let handed_over = OpenPort::new("packet:port0").port.capabilities().features;
        assert!(handed_over.contains(Feature::TcpSegmentationOffload));
    });
}

#[test]
fn the_hardware_address_and_the_mtu_are_the_interface_s() {
    in_namespace(|| {
        pair();
        ip("link set port0 address 02:00:00:00:00:42");
        let mut port = OpenPort::new("packet:port0");
        assert_eq!(port.port.hardware_address(), Some([2, 0, 0, 0, 0, 0x42]));
        assert_eq!(port.port.state(), PortState { link: LinkState::Up, mtu: 1500 });
        let progress = port.send(&[frame(0, 1514), frame(1, 1515), frame(2, 60)]);
        assert!(
            progress.sent == 1 && matches!(progress.stopped, Some(StopReason::TooLong)),
            "{progress:?}"
        );
        // Too long is too long, and no fault of the offload's.
        let partial = RxChecksum::Partial { start: 34, offset: 6 };
        let progress = port.send_with(&[(&frame(1, 1515), partial, None)]);
        assert!(
            progress.sent == 0 && matches!(progress.stopped, Some(StopReason::TooLong)),
            "{progress:?}"
        );
        ip("link set port0 mtu 2000");
        ip("link set peer0 mtu 2000");
        assert_eq!(port.port.state().mtu, 2000);
        assert_eq!(port.send(&[frame(1, 2014)]).sent, 1);
        PacketSocket::open("peer0").send(&frame(3, 2014));
        assert!(bytes(&port.receive(1)) == [frame(3, 2014)]);
    });
}

#[test]
fn a_port_waits_for_an_interface_that_is_down() {
    for version in ["v2", "v3"] {
        in_namespace(move || {
            pair();
            let mut port = OpenPort::new(&format!("packet:port0?version={version}"));
            let peer = PacketSocket::open("peer0");
            for round in 0..2 {
                // The peer's queue starts some time after its carrier is back; until then it
                // swallows everything.
                let arrived = (0..100).any(|_| {
                    peer.send(&frame(round, 99));
                    wait(&*port.receivers[0], 50)
                });
                assert!(arrived && bytes(&port.receive(1)) == [frame(round, 99)]);
                port.receivers[0].give_back();
                ip("link set port0 down");
                assert!(wait(&*port.receivers[0], 900), "whoever waits is told");
                let mut packets = Vec::new();
                let told = (0..2).find_map(|_| port.receivers[0].poll(&mut packets, 9).err());
                assert!(matches!(told, Some(PortError::Down { .. })), "{told:?}");
                assert!(!wait(&*port.receivers[0], 10), "and then can wait again");
                assert_eq!(port.port.state().link, LinkState::Down);
                let progress = port.send(&[frame(1, 60)]);
                assert!(
                    progress.sent == 0 && matches!(progress.stopped, Some(StopReason::Down)),
                    "{progress:?}"
                );
                ip("link set port0 up");
                assert_eq!(port.port.state().link, LinkState::Up);
                assert_eq!(port.receivers[0].poll(&mut packets, 9).expect("up again"), 0);
                assert_eq!(port.send(&[frame(1, 60)]).sent, 1);
            }
        });
    }
}

#[test]
fn a_port_may_be_opened_on_an_interface_that_is_down() {
    in_namespace(|| {
        pair();
        ip("link set port0 down");
        let mut port = OpenPort::new("packet:port0");
        assert_eq!(port.port.state().link, LinkState::Down);
        ip("link set port0 up");
        let peer = PacketSocket::open("peer0");
        let arrived = (0..100).any(|_| {
            peer.send(&frame(3, 80));
            port.receivers[0].poll(&mut Vec::new(), 9).is_ok_and(|count| count != 0) || {
                wait(&*port.receivers[0], 50);
                false
            }
        });
        assert!(arrived);
    });
}

/// Asserts that the interface of the port is gone for good, so that nothing is received or sent.
fn assert_gone(port: &mut OpenPort) {
    let mut packets = Vec::new();
    let told = (0..2).find_map(|_| port.receivers[0].poll(&mut packets, 9).err());
    assert!(matches!(told, Some(PortError::Gone { .. })), "{told:?}");
    assert!(
        matches!(port.receivers[0].poll(&mut packets, 9), Err(PortError::Gone { .. })),
        "and it stays gone"
    );
    assert_eq!(port.port.state(), PortState { link: LinkState::Gone, mtu: 0 });
    let progress = port.send(&[frame(1, 60)]);
    assert!(
        progress.sent == 0 && matches!(progress.stopped, Some(StopReason::Gone(_))),
        "{progress:?}"
    );
}

#[test]
fn an_interface_that_goes_is_gone_even_if_another_takes_its_name() {
    in_namespace(|| {
        pair();
        let (mut port, mut unaware) =
            (OpenPort::new("packet:port0"), OpenPort::new("packet:port0?version=v3"));
        PacketSocket::open("peer0").send(&frame(3, 80));
        ip("link del port0");
        // What came before can still be read.
        assert!(bytes(&port.poll()) == [frame(3, 80)]);
        assert_gone(&mut port);
        pair();
        assert_gone(&mut port);
        drop(unaware.receive(1));
        assert_gone(&mut unaware);
        assert_eq!(
            OpenPort::new("packet:port0").port.state().link,
            LinkState::Up,
            "it can be opened again"
        );
    });
}

#[test]
fn an_interface_that_went_and_came_back_has_left_its_port() {
    in_namespace(|| {
        pair();
        let mut port = OpenPort::new("packet:port0");
        // The host's thread outlives the interface's stay there.
        let (host, here) = (
            Host::new(),
            format!(
                "/proc/{}/task/{}/ns/net",
                std::process::id(),
                rustix::thread::gettid().as_raw_nonzero()
            ),
        );
        ip(&format!("link set port0 netns {}", host.namespace()));
        host.ip(&format!("link set port0 netns {here}"));
        ip("link set port0 up");
        assert_gone(&mut port);
    });
}

/// Returns the packet sockets of this thread's namespace: for each, the number of the interface to
/// which it is bound, and its inode.
fn packet_sockets() -> Vec<(u32, String)> {
    let table =
        std::fs::read_to_string("/proc/thread-self/net/packet").expect("sockets of packet(7)");
    let columns = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    columns.map(|columns| (columns[4].parse().expect("a number"), columns[8].to_owned())).collect()
}

/// Returns how many of these sockets have a mapped ring.
fn rings(sockets: &[(u32, String)]) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("mappings");
    maps.lines()
        .filter(|line| sockets.iter().any(|(_, inode)| line.contains(&format!("socket:[{inode}]"))))
        .count()
}

fn promiscuity(interface: &str) -> u32 {
    let output = Command::new("ip")
        .args(["-d", "link", "show", "dev", interface])
        .output()
        .expect("iproute2 is installed");
    let text = String::from_utf8(output.stdout).expect("text");
    let mut words = text.split_whitespace().skip_while(|word| *word != "promiscuity");
    words.nth(1).expect("promiscuity").parse().expect("a number")
}

#[test]
fn a_port_that_is_closed_while_its_packets_are_in_use_leaves_nothing_behind() {
    in_namespace(|| {
        pair();
        let peer = PacketSocket::open("peer0");
        let before = packet_sockets().len();
        // Sockets that share with others (`PACKET_FANOUT`) cannot be unbound.
        for (options, is_shared) in [
            ("ring=64k", false),
            ("version=v3&blocks=4&block=64k", false),
            ("ring=64k&queues=2", true),
        ] {
            let mut port = OpenPort::new(&format!("packet:port0?{options}"));
            assert_eq!(promiscuity("port0"), if is_shared { 2 } else { 1 }, "{options}");
            let sent = (0..8).map(|number| frame(number, 300)).collect::<Vec<_>>();
            let held = if is_shared {
                // By whichever of its queues they come.
                let mut held = Vec::new();
                let start = Instant::now();
                while held.is_empty() {
                    assert!(start.elapsed() < PATIENCE, "nothing comes");
                    sent.iter().for_each(|frame| peer.send(frame));
                    port.receivers.iter_mut().for_each(|receiver| {
                        _ = receiver.poll(&mut held, 8).expect("the interface is up")
                    });
                }
                held
            } else {
                sent.iter().for_each(|frame| peer.send(frame));
                port.receive(sent.len())
            };
            let content = bytes(&held);
            assert!(content.iter().all(|frame| sent.contains(frame)), "{options}");
            drop(port);
            // Programs that other tests start have the descriptors of this process for a moment.
            let start = Instant::now();
            while promiscuity("port0") != 0 {
                assert!(start.elapsed() < PATIENCE, "{options}: {}", promiscuity("port0"));
            }
            let left = packet_sockets();
            let bound = left.iter().filter(|(interface, _)| *interface != 0).count();
            assert!(is_shared || bound == before, "{options}: {left:?}");
            assert!(rings(&left) >= 1, "{options}: the packets lie in a ring");
            // Nothing is written to it any more, and the interface may be used again.
            let mut again = OpenPort::new(&format!("packet:port0?{options}"));
            for number in 0..500 {
                peer.send(&frame(100 + number, 300));
                again.receivers.iter_mut().for_each(|receiver| {
                    receiver.poll(&mut Vec::new(), 512).expect("the interface is up");
                    receiver.give_back();
                });
            }
            assert_eq!(bytes(&held), content, "{options}");
            drop(again);
            // The last packet takes the ring and its socket with it.
            drop(held);
            let start = Instant::now();
            while packet_sockets().len() > before || rings(&left) != 0 {
                assert!(
                    start.elapsed() < PATIENCE,
                    "{options}: {:?}, {} rings",
                    packet_sockets(),
                    rings(&left)
                );
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    });
}
