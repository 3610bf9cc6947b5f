//! Tests of TAP and TUN ports against the kernel, in network namespaces.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use crate::cable::{End, Passed, join, merge, receive, wait};
use crate::frames::{bytes, frame};
use crate::support::{
    Host, PacketSocket, has_link_type, in_namespace, interface_exists, ip, not_built_in, quiet,
};
use crate::without_memory::{is_run_in_a_child, limit_memory};
use superpacket::aggregate::{Aggregator, HashKey, Policy};
use superpacket::packet::{Layer, RxChecksum, RxPacket};
use superpacket::segment::{Gso, GsoKind, SegmentSize};
use superpacket_port::features::Feature;
use superpacket_port::{
    Buffer, LinkState, Outgoing, POLL_LIMIT, Port, PortError, Progress, StopReason, Transmit,
    TxBatch, open,
};
use superpacket_traffic::frame::Frame;

/// A port is refused before its device is created if there is no memory for its queues' slots. If
/// there is memory, the port uses none of it before packets arrive.
#[test]
fn queues_that_there_is_no_memory_for_are_refused() {
    if is_run_in_a_child("tap::queues_that_there_is_no_memory_for_are_refused") {
        return;
    }
    in_namespace(|| {
        let before = resident();
        let port = port("tap:t0?queues=64");
        assert!(resident() - before < 8 << 20, "{} bytes are taken", resident() - before);
        drop(port);
        limit_memory(64 << 20);
        let refused = try_port("tap:t1?queues=256&persist=on").expect_err("404 MiB").to_string();
        assert_eq!(
            refused,
            "tap:t1?queues=256&persist=on: taking memory for what is received: there are no 404 MiB for 256 queues: fewer by queues=N"
        );
        assert!(!interface_exists("t1"));
        try_port("tap:t1?queues=2").expect("13 MiB");
    });
}

/// Returns the memory that this process has touched, in bytes.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("lives");
    pages
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<usize>().ok())
        .expect("a number of pages")
        * rustix::param::page_size()
}

fn port(text: &str) -> Box<dyn Port> {
    try_port(text).unwrap_or_else(|error| panic!("{error}"))
}

fn try_port(text: &str) -> Result<Box<dyn Port>, PortError> {
    open(&text.parse().expect("well formed"))
}

/// Sends one frame.
fn send(
    transmitter: &mut dyn Transmit,
    frame: &[u8],
    checksum: RxChecksum,
    gso: Option<Gso>,
    layer: Layer,
) -> Progress {
    let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
    batch.push_bytes(&mut outgoing, frame, checksum, gso, layer);
    transmitter.transmit(&outgoing, &batch, 0)
}

fn send_plain(transmitter: &mut dyn Transmit, frame: &[u8]) -> Option<StopReason> {
    send(transmitter, frame, RxChecksum::None, None, Layer::Ethernet).stopped
}

#[test]
fn frames_pass_both_ways_bit_for_bit() {
    in_namespace(|| {
        quiet();
        for header in
            ["header=10", "header=12", "header=24", "header=10&endian=little", "offload=off"]
        {
            let mut port = port(&format!("tap:t0?mtu=9000&{header}"));
            let mut end = port.receivers().remove(0);
            let mut transmitter = port.transmitter().expect("an end");
            let socket = PacketSocket::open("t0");
            // Around the length of a small slot with each header, and beyond.
            for length in [
                14, 15, 60, 1514, 2087, 2088, 2089, 2100, 2101, 2102, 2103, 2111, 2112, 2113, 4096,
                9014,
            ] {
                socket.send(&frame(length));
                let packets = receive(&mut *end, 1);
                assert_eq!(
                    (packets.len(), bytes(&packets[0])),
                    (1, frame(length)),
                    "{header}: {length} bytes to the port"
                );
                assert_eq!(
                    (packets[0].layer, packets[0].checksum, packets[0].gso),
                    (Layer::Ethernet, RxChecksum::None, None)
                );
                assert!(send_plain(&mut *transmitter, &frame(length)).is_none());
                assert_eq!(
                    socket.receive(),
                    frame(length),
                    "{header}: {length} bytes from the port"
                );
            }
            assert_eq!(port.counters().rx_errors, 0);
        }
    });
}

#[test]
fn more_than_the_memory_holds_comes_when_buffers_are_given_back() {
    in_namespace(|| {
        quiet();
        let mut port = port("tap:t0?mtu=9000");
        let mut end = port.receivers().remove(0);
        let socket = PacketSocket::open("t0");
        // Large ones take a slot each, small ones their own.
        let lengths: Vec<_> =
            (0..400).map(|index| if index % 4 == 0 { 200 + index } else { 4000 + index }).collect();
        lengths.iter().for_each(|length| socket.send(&frame(*length)));
        let mut held = Vec::new();
        wait(&*end);
        let mut got = end.poll(&mut held, POLL_LIMIT).expect("the port lives");
        assert!(
            (64..300).contains(&got) && end.is_crowded(),
            "{got} packets while nothing came back"
        );
        assert_eq!(end.poll(&mut held, POLL_LIMIT).expect("not an error"), 0, "no memory is left");
        let mut seen: Vec<Vec<u8>> = Vec::new();
        while got != 0 {
            seen.extend(held.iter().map(bytes));
            held.clear();
            assert!(!end.is_crowded());
            got = end.poll(&mut held, POLL_LIMIT).expect("the port lives");
        }
        assert_eq!(seen, lengths.iter().map(|length| frame(*length)).collect::<Vec<_>>());
        // What a poll was limited to, the next one gets.
        lengths.iter().take(10).for_each(|length| socket.send(&frame(*length)));
        wait(&*end);
        assert_eq!(end.poll(&mut held, 3).expect("the port lives"), 3);
        assert_eq!(end.poll(&mut held, POLL_LIMIT).expect("the port lives"), 7);
    });
}

/// A stream of bytes that does not repeat.
struct Stream(u64);

impl Stream {
    fn fill(&mut self, to: &mut [u8]) {
        for byte in to.chunks_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            byte.copy_from_slice(&self.0.to_le_bytes()[..byte.len()]);
        }
    }
}

const TRANSFER: usize = 24 << 20;
const CHUNK: usize = 1 << 16;

/// Sends a stream by kernel TCP from one host to the other through two ports that are joined, and
/// compares the bytes that arrive.
fn transfer(from: &Host, to: &Host, a: &mut End, b: &mut End, address: &str) -> [Passed; 2] {
    let address: IpAddr = address.parse().expect("an address");
    let listener = to.run(move || TcpListener::bind((address, 0)).expect("the address is there"));
    let target = listener.local_addr().expect("bound");
    let sender = from.start(move || {
        let mut stream =
            TcpStream::connect_timeout(&target, Duration::from_secs(20)).expect("connected");
        let (mut bytes, mut source) = (vec![0; CHUNK], Stream(88_172_645_463_325_252));
        for _ in 0..TRANSFER / CHUNK {
            source.fill(&mut bytes);
            stream.write_all(&bytes).expect("sent");
        }
    });
    let receiver = to.start(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        let (mut bytes, mut expected, mut source) =
            (vec![0; CHUNK], vec![0; CHUNK], Stream(88_172_645_463_325_252));
        for _ in 0..TRANSFER / CHUNK {
            stream.read_exact(&mut bytes).expect("received");
            source.fill(&mut expected);
            assert!(bytes == expected, "other bytes arrived");
        }
    });
    let (mut sender, mut receiver) = (Some(sender), Some(receiver));
    join(a, b, move || {
        sender = sender.take().and_then(|running| running.try_wait().err());
        receiver = receiver.take().and_then(|running| running.try_wait().err());
        sender.is_none() && receiver.is_none()
    })
}

/// Creates two hosts with a device `t0` each, and returns them with the ports of these devices.
fn two_hosts(kind: &str, options: &str) -> (Host, Host, End, End) {
    let hosts = [Host::new(), Host::new()];
    let ends = [1, 2].map(|number| {
        let text = format!("{kind}:t0{options}");
        let port = hosts[number - 1].run(move || {
            // Pacing by the default congestion control would keep super-packets small; where there
            // is no choice, there is no harm.
            let _ = std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "cubic");
            let port = port(&text);
            ip(&format!("addr add 10.9.0.{number}/24 dev t0"));
            ip(&format!("addr add fd09::{number}/64 dev t0 nodad"));
            port
        });
        End::new(port)
    });
    let ([a, b], [end_a, end_b]) = (hosts, ends);
    (a, b, end_a, end_b)
}

fn assert_super_packets(passed: &Passed, least: usize) {
    let average = passed.super_bytes / passed.super_packets.max(1);
    assert!(
        passed.super_bytes > TRANSFER / 2 && average >= least,
        "{passed:?}: {average} bytes each on average"
    );
}

#[test]
fn super_packets_of_kernel_tcp_pass_a_tap() {
    in_namespace(|| {
        let (a, b, mut end_a, mut end_b) = two_hosts("tap", "");
        for address in ["10.9.0.2", "fd09::2"] {
            let passed = transfer(&a, &b, &mut end_a, &mut end_b, address);
            assert_super_packets(&passed[0], 20_000);
            eprintln!("tap, {address}: {passed:?}");
        }
        let back = transfer(&b, &a, &mut end_b, &mut end_a, "10.9.0.1");
        assert_super_packets(&back[0], 20_000);
        for end in [&mut end_a, &mut end_b] {
            let counters = end.port.counters();
            assert_eq!((counters.rx_errors, counters.tx_refused), (0, 0));
        }
    });
}

#[test]
fn super_packets_of_kernel_tcp_pass_a_tun() {
    in_namespace(|| {
        let (a, b, mut end_a, mut end_b) = two_hosts("tun", "");
        assert_eq!((end_a.port.layer(), end_a.port.hardware_address()), (Layer::Ip, None));
        for address in ["10.9.0.2", "fd09::2"] {
            let passed = transfer(&a, &b, &mut end_a, &mut end_b, address);
            assert_super_packets(&passed[0], 20_000);
        }
        assert_eq!(end_a.port.counters().rx_errors, 0);
    });
}

#[test]
fn every_header_carries_super_packets() {
    in_namespace(|| {
        for options in [
            "?header=10",
            "?header=12&endian=little",
            "?header=24",
            "?offload=csum,tso4",
            "?queues=2",
        ] {
            let (a, b, mut end_a, mut end_b) = two_hosts("tap", options);
            let passed = transfer(&a, &b, &mut end_a, &mut end_b, "10.9.0.2");
            assert_super_packets(&passed[0], 20_000);
            assert_eq!(end_a.port.counters().rx_errors, 0, "{options}");
        }
    });
}

#[test]
fn without_offloads_the_host_cuts_and_fills_in() {
    in_namespace(|| {
        let (a, b, mut end_a, mut end_b) = two_hosts("tap", "?offload=off");
        let passed = transfer(&a, &b, &mut end_a, &mut end_b, "10.9.0.2");
        assert_eq!(passed[0].super_packets + passed[1].super_packets, 0);
        assert!(passed[0].frames >= TRANSFER / 1460);
        let (a, b, mut end_a, mut end_b) = two_hosts("tap", "?offload=csum,tso4");
        let passed = transfer(&a, &b, &mut end_a, &mut end_b, "fd09::2");
        assert_eq!(passed[0].super_packets, 0, "IPv6 was not asked for");
    });
}

#[test]
fn tagged_super_packets_pass() {
    in_namespace(|| {
        if !has_link_type("vlan") {
            return not_built_in("VLAN devices");
        }
        let (a, b, mut end_a, mut end_b) = two_hosts("tap", "");
        for (host, number) in [(&a, 1), (&b, 2)] {
            host.ip("link add link t0 name t0.5 type vlan id 5");
            host.ip("link set t0.5 up");
            host.ip(&format!("addr add 10.8.0.{number}/24 dev t0.5"));
        }
        let passed = transfer(&a, &b, &mut end_a, &mut end_b, "10.8.0.2");
        assert_super_packets(&passed[0], 20_000);
    });
}

#[test]
fn the_kernel_takes_a_tagged_super_packet() {
    in_namespace(|| {
        quiet();
        let mut port = port("tap:t0");
        let mut transmitter = port.transmitter().expect("an end");
        let raw = PacketSocket::open("t0");
        let mut aggregator =
            Aggregator::new(Policy::gro().with_partial_checksums(), HashKey::new(1))
                .with_simd(superpacket::Simd::detect());
        let tag = superpacket::packet::VlanTag { protocol: 0x8100, control: 5 };
        let frames = superpacket_traffic::workload::w1(40);
        let mut packets: Vec<_> = frames
            .iter()
            .map(|frame| RxPacket::new(Buffer::from(frame.clone())).with_vlan(tag))
            .collect();
        let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
        merge(&mut aggregator, &mut packets, &mut outgoing, &mut batch, 1023);
        let [frame] = batch.frames() else { panic!("they are one flow: {:?}", batch.frames()) };
        assert!(
            frame.gso.is_some()
                && matches!(frame.checksum, RxChecksum::Partial { start: 38, offset: 16 }),
            "{frame:?}"
        );
        let progress = transmitter.transmit(&outgoing, &batch, 0);
        assert!(progress.stopped.is_none(), "{:?}", progress.stopped);
        let mut expected = Vec::new();
        batch.copy_to(&outgoing, frame, &mut expected);
        // The kernel keeps the tag beside the packet.
        expected.drain(12..16);
        assert_eq!(raw.receive(), expected);
    });
}

#[test]
fn super_packets_in_tunnels_pass() {
    in_namespace(|| {
        let (a, b, mut end_a, mut end_b) = two_hosts("tap", "");
        if !end_a.port.capabilities().gso.udp_tunnels || !has_link_type("vxlan") {
            return not_built_in("tunnel offload for TUN devices, or VXLAN");
        }
        for (host, number, other) in [(&a, 1, 2), (&b, 2, 1)] {
            host.ip(&format!("link add vx0 type vxlan id 7 local 10.9.0.{number} remote 10.9.0.{other} dstport 4789 dev t0"));
            host.ip("link set vx0 up");
            host.ip(&format!("addr add 10.7.0.{number}/24 dev vx0"));
        }
        let passed = transfer(&a, &b, &mut end_a, &mut end_b, "10.7.0.2");
        assert_super_packets(&passed[0], 20_000);
        let counters = end_a.port.counters();
        assert_eq!((counters.rx_errors, end_b.port.counters().tx_refused), (0, 0));
    });
}

const UDP_SEGMENT: i32 = 103;

#[test]
fn udp_super_packets_pass() {
    in_namespace(|| {
        let (a, b, mut end_a, mut end_b) = two_hosts("tap", "");
        assert!(
            end_a.port.capabilities().features.contains(Feature::TxUdpSegmentation),
            "Linux 6.2 or later is needed"
        );
        for address in ["10.9.0.2", "fd09::2"] {
            let address: IpAddr = address.parse().expect("an address");
            let receiver =
                b.run(move || UdpSocket::bind((address, 0)).expect("the address is there"));
            let target = receiver.local_addr().expect("bound");
            let received = b.start(move || {
                receiver.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
                let mut datagram = [0; 2000];
                (0..20)
                    .map(|_| {
                        receiver
                            .recv(&mut datagram)
                            .map(|length| datagram[..length].to_vec())
                            .expect("a datagram")
                    })
                    .collect::<Vec<_>>()
            });
            let sent = a.start(move || {
                let any: SocketAddr = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }
                    .parse()
                    .expect("an address");
                let sender = UdpSocket::bind(any).expect("bound");
                let size = 1000i32;
                // SAFETY: the value lives through the call and has this length.
                let set = unsafe {
                    libc::setsockopt(
                        sender.as_raw_fd(),
                        libc::IPPROTO_UDP,
                        UDP_SEGMENT,
                        (&raw const size).cast(),
                        4,
                    )
                };
                assert_eq!(set, 0);
                // The last of 20 datagrams is shorter.
                let mut payload = vec![0; 19_500];
                Stream(7).fill(&mut payload);
                sender.send_to(&payload, target).expect("sent");
                payload
            });
            let (mut waiting, mut arrived) = (Some(received), Vec::new());
            let passed = join(&mut end_a, &mut end_b, || {
                match waiting.take().map(|running| running.try_wait()) {
                    Some(Ok(datagrams)) => {
                        arrived = datagrams;
                        true
                    }
                    Some(Err(running)) => {
                        waiting = Some(running);
                        false
                    }
                    None => true,
                }
            });
            let payload = sent.wait();
            assert_eq!(arrived, payload.chunks(1000).map(<[u8]>::to_vec).collect::<Vec<_>>());
            assert_eq!(passed[0].super_packets, 1, "{passed:?}");
        }
    });
}

#[test]
fn several_queues_share_the_flows() {
    in_namespace(|| {
        quiet();
        let mut port = port("tap:t0?queues=2");
        ip("addr add 10.9.0.1/24 dev t0");
        ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev t0 nud permanent");
        let mut ends = port.receivers();
        assert_eq!(ends.len(), 2);
        assert!(port.receivers().is_empty(), "they are handed out once");
        let socket = UdpSocket::bind("10.9.0.1:0").expect("bound");
        for flow in 0..200u16 {
            socket.send_to(&flow.to_be_bytes(), ("10.9.0.2", 2000 + flow)).expect("sent");
        }
        let mut seen = Vec::new();
        for (queue, end) in ends.iter_mut().enumerate() {
            let packets = receive(&mut **end, 20);
            assert!(packets.iter().all(|packet| usize::from(packet.queue) == queue));
            seen.extend(packets.iter().map(|packet| bytes(packet)[42..44].to_vec()));
        }
        seen.sort();
        assert_eq!(seen, (0..200u16).map(|flow| flow.to_be_bytes().to_vec()).collect::<Vec<_>>());
        // Each transmitter has a queue, and there may be more of them than queues.
        let raw = PacketSocket::open("t0");
        for length in [60, 61, 62] {
            let mut transmitter = port.transmitter().expect("an end");
            assert!(send_plain(&mut *transmitter, &frame(length)).is_none());
            assert_eq!(raw.receive(), frame(length));
        }
    });
}

#[test]
fn refusals_say_what_was_refused() {
    in_namespace(|| {
        quiet();
        let mut tun = port("tun:u0");
        let mut transmitter = tun.transmitter().expect("an end");
        // The kernel takes no packet of IP version 0.
        let junk = [0; 64];
        let partial = RxChecksum::Partial { start: 20, offset: 6 };
        let refused = |progress: Progress| (progress.sent, progress.stopped);
        assert!(matches!(
            refused(send(&mut *transmitter, &junk, partial, None, Layer::Ip)),
            (0, Some(StopReason::Offload(_)))
        ));
        assert!(matches!(
            refused(send(&mut *transmitter, &junk, RxChecksum::None, None, Layer::Ip)),
            (0, Some(StopReason::Refused(_)))
        ));
        assert_eq!(tun.counters().tx_refused, 1);
        // No header can say this: the checksum of a super-packet must be partial, and lie in it.
        let gso = Some(Gso::new(GsoKind::Tcp4, SegmentSize::new(8).expect("above 0")));
        assert!(matches!(
            refused(send(&mut *transmitter, &junk, RxChecksum::None, gso, Layer::Ip)),
            (0, Some(StopReason::Offload(_)))
        ));
        let beyond = RxChecksum::Partial { start: 60, offset: 16 };
        assert!(matches!(
            refused(send(&mut *transmitter, &junk, beyond, None, Layer::Ip)),
            (0, Some(StopReason::Offload(_)))
        ));
        // Those before the refused one are sent, and it can be passed over.
        let mut tap = port("tap:t0");
        let raw = PacketSocket::open("t0");
        let mut transmitter = tap.transmitter().expect("an end");
        let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
        for length in [60, 13, 61] {
            batch.push_bytes(
                &mut outgoing,
                &frame(length),
                RxChecksum::None,
                None,
                Layer::Ethernet,
            );
        }
        let progress = transmitter.transmit(&outgoing, &batch, 0);
        assert!(
            matches!((progress.sent, progress.stopped), (1, Some(StopReason::Refused(_)))),
            "13 bytes are no frame"
        );
        let progress = transmitter.transmit(&outgoing, &batch, 2);
        assert!(matches!((progress.sent, progress.stopped), (1, None)));
        assert_eq!([raw.receive(), raw.receive()], [frame(60), frame(61)]);
    });
}

#[test]
fn the_most_slices_are_taken() {
    in_namespace(|| {
        quiet();
        let mut port = port("tap:t0");
        let raw = PacketSocket::open("t0");
        let max_slices = port.capabilities().max_slices;
        assert_eq!(max_slices, 1023);
        // Segments of 48 bytes that merge: a slice each, and one for the header.
        let mut transmitter = port.transmitter().expect("an end");
        for segments in [60usize, 64, 65, 1022, 1023, 1300] {
            let simd = superpacket::Simd::detect();
            let policy = Policy::gro().with_partial_checksums().with_max_packets(2000);
            let mut aggregator = Aggregator::new(policy, HashKey::new(1)).with_simd(simd);
            let frames = Frame::tcp4(1, 48).run(segments);
            let mut packets: Vec<_> =
                frames.iter().map(|frame| RxPacket::new(Buffer::from(frame.to_bytes()))).collect();
            let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
            merge(&mut aggregator, &mut packets, &mut outgoing, &mut batch, max_slices);
            let [only] = batch.frames() else {
                panic!("{segments} segments merge to one, not {}", batch.frames().len())
            };
            // With more than there may be, all is copied into one.
            assert_eq!(
                batch.slices(only).len(),
                if segments < max_slices { segments + 1 } else { 1 }
            );
            let progress = transmitter.transmit(&outgoing, &batch, 0);
            assert!(progress.stopped.is_none(), "{segments} segments: {:?}", progress.stopped);
            for frame in batch.frames() {
                let mut expected = Vec::new();
                batch.copy_to(&outgoing, frame, &mut expected);
                assert_eq!(raw.receive(), expected);
            }
        }
    });
}

/// Waits until the interface disappears, and returns whether it does. If another test starts a
/// program, its child may hold the device a moment longer.
fn goes(name: &str) -> bool {
    (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        !interface_exists(name)
    })
}

#[test]
fn a_device_stays_only_if_it_is_persistent() {
    in_namespace(|| {
        quiet();
        drop(port("tap:t0"));
        assert!(goes("t0"));
        drop(port("tap:t0?persist=on&queues=2"));
        assert!(interface_exists("t0"));
        // As it is, neither asked for nor against; its state is left alone.
        ip("link set t0 down");
        let mut again = port("tap:t0?queues=2");
        assert_eq!(again.state().link, LinkState::Down);
        drop(again);
        assert!(interface_exists("t0"));
        let mut up = port("tap:t0?queues=2&up=on&persist=off");
        assert_eq!(up.state().link, LinkState::Up);
        drop(up);
        assert!(goes("t0"));
        let mut down = port("tap:t0?up=off");
        assert_eq!(down.state().link, LinkState::Down);
    });
}

#[test]
fn a_device_left_by_another_program_is_set_up_anew() {
    in_namespace(|| {
        quiet();
        drop(port("tap:t0?persist=on&header=24&endian=little"));
        let mut port = port("tap:t0?header=10&offload=off&up=on");
        let mut end = port.receivers().remove(0);
        let mut transmitter = port.transmitter().expect("an end");
        let socket = PacketSocket::open("t0");
        socket.send(&frame(100));
        assert_eq!(bytes(&receive(&mut *end, 1)[0]), frame(100));
        assert!(send_plain(&mut *transmitter, &frame(101)).is_none());
        assert_eq!(socket.receive(), frame(101));
    });
}

#[test]
fn down_and_up_again_is_survived() {
    in_namespace(|| {
        quiet();
        let mut port = port("tap:t0");
        let mut end = port.receivers().remove(0);
        let mut transmitter = port.transmitter().expect("an end");
        assert_eq!(port.state().link, LinkState::Up);
        ip("link set t0 down");
        assert_eq!(port.state().link, LinkState::Down);
        assert!(matches!(send_plain(&mut *transmitter, &frame(60)), Some(StopReason::Down)));
        assert!(matches!(
            send(
                &mut *transmitter,
                &frame(60),
                RxChecksum::Partial { start: 34, offset: 6 },
                None,
                Layer::Ethernet
            )
            .stopped,
            Some(StopReason::Down)
        ));
        assert_eq!(end.poll(&mut Vec::new(), POLL_LIMIT).expect("down is no error of reading"), 0);
        ip("link set t0 up");
        assert_eq!(port.state().link, LinkState::Up);
        let socket = PacketSocket::open("t0");
        assert!(send_plain(&mut *transmitter, &frame(60)).is_none());
        assert_eq!(socket.receive(), frame(60));
        socket.send(&frame(61));
        assert_eq!(bytes(&receive(&mut *end, 1)[0]), frame(61));
        assert_eq!(port.counters().tx_refused, 0);
    });
}

#[test]
fn removal_is_told_by_every_end() {
    in_namespace(|| {
        quiet();
        let mut first = port("tap:t0");
        let mut end = first.receivers().remove(0);
        let mut transmitter = first.transmitter().expect("an end");
        ip("link del t0");
        assert_eq!(first.state().link, LinkState::Gone);
        assert!(matches!(
            send_plain(&mut *transmitter, &frame(60)),
            Some(StopReason::Gone(PortError::Gone { .. }))
        ));
        let error = end.poll(&mut Vec::new(), POLL_LIMIT).expect_err("nothing more can come");
        assert!(
            matches!(&error, PortError::Gone { port } if port == "tap:t0") && error.is_transient(),
            "{error}"
        );
        // Another of the same name is another device.
        let mut second = port("tap:t0");
        assert_eq!((first.state().link, second.state().link), (LinkState::Gone, LinkState::Up));
        drop((first, end, transmitter));
        assert_eq!(second.state().link, LinkState::Up);
    });
}

#[test]
fn the_mtu_is_set_and_followed() {
    in_namespace(|| {
        quiet();
        let mut port = port("tap:t0?mtu=9000");
        assert_eq!(port.state().mtu, 9000);
        ip("link set t0 mtu 1300");
        assert_eq!(port.state().mtu, 1300);
        let error =
            try_port("tap:t1?mtu=70000").expect_err("more than an IP packet holds").to_string();
        assert!(error.contains("tap:t1?mtu=70000") && error.contains("MTU"), "{error}");
        assert!(goes("t1"), "nothing is left of it");
    });
}

#[test]
fn a_device_that_is_moved_or_renamed_is_followed() {
    in_namespace(|| {
        let (a, b) = (Host::new(), Host::new());
        let mut end_a = End::new(port("tap:t0?mtu=1400"));
        let mut end_b = End::new(port("tap:t1?mtu=1400"));
        for (host, device, number) in [(&a, "t0", 1), (&b, "t1", 2)] {
            ip(&format!("link set {device} netns {}", host.namespace()));
            host.ip(&format!("link set {device} name moved up"));
            host.ip(&format!("addr add 10.9.0.{number}/24 dev moved"));
        }
        let state = end_a.port.state();
        assert_eq!((state.link, state.mtu), (LinkState::Up, 1400));
        let passed = transfer(&a, &b, &mut end_a, &mut end_b, "10.9.0.2");
        assert_super_packets(&passed[0], 20_000);
        a.ip("link set moved down");
        assert_eq!(end_a.port.state().link, LinkState::Down);
        a.ip("link del moved");
        assert_eq!(end_a.port.state().link, LinkState::Gone);
    });
}

#[test]
fn a_name_may_leave_the_number_open() {
    in_namespace(|| {
        quiet();
        let (first, second) = (port("tap:test%d?mtu=1400"), port("tun:test%d"));
        assert_eq!((first.name(), second.name()), ("tap:test0?mtu=1400", "tun:test1"));
        assert!(interface_exists("test0") && interface_exists("test1"));
        assert!(first.hardware_address().is_some());
    });
}

#[test]
fn what_cannot_be_opened_is_explained() {
    in_namespace(|| {
        quiet();
        let _tun = port("tun:u0?persist=on");
        let _several = port("tap:m0?queues=2");
        ip("link add d0 type veth peer name d1");
        for (text, says) in [
            ("tun:u0", "another process has open"),
            ("tap:u0", "is not a tap device with one queue"),
            ("tap:m0", "is not a tap device with one queue"),
            ("tun:u0?queues=2", "is not a tun device with several queues"),
            ("tap:d0", "is not a tap device but veth"),
            ("tap:a-name-that-is-too-long", "1 to 15 bytes"),
            ("tap:t0?header=10&offload=csum,tso4,tunnel", "has no tunnel"),
            ("tap:t0?ring=v3", "is not known"),
        ] {
            let error = try_port(text).expect_err(text).to_string();
            assert!(error.contains(text) && error.contains(says), "{text}: {error}");
        }
        assert!(goes("t0"));
    });
}

#[test]
fn what_the_host_drops_is_counted() {
    in_namespace(|| {
        quiet();
        let mut port = port("tap:t0");
        let socket = PacketSocket::open("t0");
        // The queue is as long as the interface's.
        ip("link set t0 txqueuelen 10");
        for _ in 0..100 {
            socket.send(&frame(60));
        }
        let dropped = port.counters().rx_dropped;
        assert!((85..=90).contains(&dropped), "{dropped}");
        let mut end = port.receivers().remove(0);
        let mut packets = Vec::new();
        let got = end.poll(&mut packets, POLL_LIMIT).expect("the port lives") as u64;
        assert_eq!(got + dropped, 100);
    });
}
