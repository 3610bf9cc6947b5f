//! AF_XDP ports on veth links of namespaces of their own, against raw packet sockets at the other
//! ends.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use superpacket::Simd;
use superpacket::aggregate::{Aggregator, HashKey, Policy};
use superpacket::checksum::{Sum, pseudo_header, sum_ranges};
use superpacket::packet::{Layer, RxChecksum, RxPacket};
use superpacket::super_packet::SuperPacket;
use superpacket::wire::IpVersion;
use superpacket_features::Feature;
use superpacket_io::port::xdp::XdpPort;
use superpacket_io::port::{Buffer, LinkState, Outgoing, POLL_LIMIT, Port, PortError, Receive, Stop, Transmit, TxBatch};

use crate::cable::{bytes, receive, wait};
use crate::support::{PacketSocket, in_namespace, ip, not_built_in, quiet, skip};

/// How long anything is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs a test in a namespace with the links `a0`-`a1` and `b0`-`b1`, where XDP programs may be
/// loaded.
fn with_links(mtu: u32, test: impl FnOnce()) {
    in_namespace(|| {
        quiet();
        for (one, other) in [("a0", "a1"), ("b0", "b1")] {
            link(one, other, mtu, "");
        }
        match XdpPort::open(&"xdp:a1?mode=generic".parse().expect("a port string")) {
            Err(PortError::System { action, source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
                skip(&format!("XDP programs are forbidden here: {action}: {source}"));
            }
            Err(error) => panic!("{error}"),
            Ok(probe) => {
                drop(probe);
                test();
            }
        }
    });
}

fn link(one: &str, other: &str, mtu: u32, queues: &str) {
    ip(&format!("link add {one} mtu {mtu} {queues} type veth peer name {other} mtu {mtu} {queues}"));
    ip(&format!("link set {one} up"));
    ip(&format!("link set {other} up"));
}

fn open(spec: &str) -> XdpPort {
    XdpPort::open(&spec.parse().expect("a port string")).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(spec: &str) -> String {
    XdpPort::open(&spec.parse().expect("a port string")).expect_err(spec).to_string()
}

/// Frame number `number`: of an experimental ethertype, so that no stack answers, and like no
/// other.
fn frame(number: usize, length: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..length).map(|index| (index * 7 + number * 13 + index * number / 251) as u8).collect();
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 1, (number >> 8) as u8, number as u8]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

/// A port's only receiver.
fn receiver(port: &mut XdpPort) -> Box<dyn Receive> {
    let mut receivers = port.receivers();
    assert_eq!(receivers.len(), 1);
    assert!(port.receivers().is_empty(), "they are handed out once");
    receivers.remove(0)
}

/// Sends frames that lie in no port's memory.
fn send(transmitter: &mut dyn Transmit, frames: &[Vec<u8>]) {
    let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
    for frame in frames {
        batch.push_bytes(&mut outgoing, frame, RxChecksum::None, None, Layer::Ethernet);
    }
    send_all(transmitter, &outgoing, &batch);
}

fn send_all(transmitter: &mut dyn Transmit, outgoing: &Outgoing, batch: &TxBatch) {
    let (mut from, start) = (0, Instant::now());
    while from < batch.frames().len() {
        let progress = transmitter.transmit(outgoing, batch, from);
        from += progress.sent;
        match progress.stopped {
            None | Some(Stop::Full) => assert!(start.elapsed() < PATIENCE, "stuck at {from}"),
            Some(stop) => panic!("frame {from}: {stop:?}"),
        }
    }
}

/// What passes packets on as they came.
struct Passage {
    aggregator: Aggregator<Buffer>,
    outgoing: Outgoing,
    batch: TxBatch,
}

impl Passage {
    fn new() -> Self {
        let policy = Policy::gro().with_partial_checksums().with_max_packets(1);
        Passage { aggregator: Aggregator::new(policy, HashKey::new(1)), outgoing: Outgoing::new(), batch: TxBatch::new() }
    }

    fn pass(&mut self, packets: &mut Vec<RxPacket<Buffer>>, to: &mut dyn Transmit) {
        let Passage { aggregator, outgoing, batch } = self;
        let sink: &mut dyn FnMut(SuperPacket<'_, Buffer>) = &mut |mut packet| {
            let staged = outgoing.stage(&packet);
            batch.push_packet(outgoing, &staged, &packet, 1024);
            outgoing.keep(staged, &mut packet);
        };
        aggregator.receive_batch(packets, 0, sink);
        aggregator.poll_end(0, sink);
        send_all(to, outgoing, batch);
        outgoing.clear();
        batch.clear();
    }
}

/// Is an XDP program attached?
fn has_program(interface: &str) -> bool {
    let output = Command::new("ip").args(["-d", "link", "show", "dev", interface]).output().expect("iproute2 is installed");
    assert!(output.status.success());
    String::from_utf8_lossy(&output.stdout).contains("xdp")
}

/// Polls until the port says something other than that it has nothing.
fn until_error(receiver: &mut dyn Receive) -> PortError {
    let (start, mut packets) = (Instant::now(), Vec::new());
    loop {
        if let Err(error) = receiver.poll(&mut packets, POLL_LIMIT) {
            return error;
        }
        receiver.give_back();
        assert!(start.elapsed() < PATIENCE, "no error came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn frames_pass_both_ways_bit_for_bit() {
    with_links(1500, || {
        for options in [
            "",
            "?mode=native&frame=4k",
            "?mode=generic",
            "?multi_buffer=off&copy=copy&frames=256",
            "?queue=0&busy_poll=20&promiscuous=off",
        ] {
            let mut port = open(&format!("xdp:a1{options}"));
            assert_eq!(port.is_native(), !options.contains("generic"), "veth has XDP");
            assert!(!port.is_zero_copy(), "veth copies");
            let (mut receiver, mut transmitter) = (receiver(&mut port), port.transmitter().expect("one"));
            let peer = PacketSocket::open("a0");
            for round in 0..8 {
                let lengths = [14, 15, 59, 60, 61, 64, 65, 128, 590, 1024, 1513, 1514];
                let mut frames: Vec<_> =
                    lengths.iter().cycle().take(60).enumerate().map(|(number, length)| frame(round * 60 + number, *length)).collect();
                send(&mut *transmitter, &frames);
                for frame in &frames {
                    assert_eq!(peer.receive(), *frame, "from {port}");
                }
                // A tag in the frame stays there, and its 4 bytes are not the MTU's.
                let mut tagged = frame(round, 1518);
                tagged[12..18].copy_from_slice(&[0x81, 0, 0x20, 0x05, 0x88, 0xb5]);
                frames.push(tagged);
                frames.iter().for_each(|frame| peer.send(frame));
                let packets = receive(&mut *receiver, frames.len());
                assert_eq!(packets.iter().map(bytes).collect::<Vec<_>>(), frames, "to {port}");
                assert!(packets.iter().all(|packet| packet.checksum == RxChecksum::None && packet.vlan.is_none() && packet.time != 0));
                drop(packets);
                receiver.give_back();
            }
            let (statistics, counters) = (port.statistics(), port.counters());
            assert_eq!((statistics.sent_by_copy, statistics.sent_in_place, statistics.tx_invalid), (480, 0, 0));
            assert_eq!((counters.rx_dropped, counters.rx_errors, counters.tx_refused), (0, 0, 0), "{statistics:?}");
        }
    });
}

#[test]
fn an_interface_whose_driver_has_no_xdp_is_opened_behind_it() {
    with_links(1500, || {
        // The one interface without XDP in its driver that every kernel has; what is sent by it
        // comes in by it. Its MTU would need frames in several chunks.
        ip("link set lo mtu 1500");
        for options in ["", "?mode=auto&copy=auto&frames=256"] {
            let mut port = open(&format!("xdp:lo{options}"));
            assert!(!port.is_native() && !port.is_zero_copy(), "{port}");
            assert!(port.to_string().contains("generic"), "{port}");
            assert_eq!(port.queues(), [0]);
            assert!(has_program("lo"));
            let (mut receiver, mut transmitter) = (receiver(&mut port), port.transmitter().expect("one"));
            let frames: Vec<_> = (0..40).map(|number| frame(number, 60 + 36 * number)).collect();
            send(&mut *transmitter, &frames);
            let packets = receive(&mut *receiver, frames.len());
            assert_eq!(packets.iter().map(bytes).collect::<Vec<_>>(), frames);
            assert_eq!((port.counters().rx_dropped, port.statistics().sent_by_copy), (0, 40));
            drop((port, receiver, transmitter));
            assert!(!has_program("lo"), "the program goes with its port");
        }
        // What was asked for by name has nothing to fall back to, and leaves nothing behind.
        for (spec, says) in
            [("xdp:lo?mode=native", "has no XDP: mode=generic needs none"), ("xdp:lo?copy=zero", "copy=zero needs mode=native")]
        {
            let message = refused(spec);
            assert!(message.contains(says), "{message}");
            assert!(!has_program("lo"));
        }
    });
}

#[test]
fn frames_that_cannot_be_sent_are_refused_by_cause() {
    with_links(1500, || {
        let mut port = open("xdp:a1");
        let mut transmitter = port.transmitter().expect("one");
        let peer = PacketSocket::open("a0");
        let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
        let good = frame(1, 100);
        let partial = RxChecksum::Partial { start: 34, offset: 16 };
        batch.push_bytes(&mut outgoing, &good, RxChecksum::None, None, Layer::Ethernet);
        batch.push_bytes(&mut outgoing, &frame(2, 1519), RxChecksum::None, None, Layer::Ethernet);
        batch.push_bytes(&mut outgoing, &[0; 13], RxChecksum::None, None, Layer::Ethernet);
        batch.push_bytes(&mut outgoing, &good, partial, None, Layer::Ethernet);
        let mut attempt = |from| transmitter.transmit(&outgoing, &batch, from);
        let first = attempt(0);
        assert!(matches!((first.sent, first.stopped), (1, Some(Stop::TooLong))));
        assert_eq!(peer.receive(), good, "what comes before is sent");
        assert!(matches!(attempt(2).stopped, Some(Stop::Refused(_))));
        assert!(matches!(attempt(3).stopped, Some(Stop::Offload(_))));
        assert_eq!(port.counters().tx_refused, 1);
        // The MTU may change while the port is open.
        ip("link set a0 mtu 1600");
        ip("link set a1 mtu 1600");
        std::thread::sleep(Duration::from_millis(20));
        assert!(matches!(attempt(1).stopped, Some(Stop::Refused(_))), "the long frame passed, and the next is wrong");
        assert_eq!(peer.receive(), frame(2, 1519));
        assert_eq!(port.state().mtu, 1600);
    });
}

#[test]
fn a_frame_is_forwarded_from_where_it_came_in() {
    with_links(1500, || {
        // So few chunks that each is used hundreds of times.
        let (mut one, mut other) = (open("xdp:a1?frames=128"), open("xdp:b1?frames=128"));
        let (mut receiver, mut transmitter) = (receiver(&mut one), other.transmitter().expect("one"));
        let (source, target) = (PacketSocket::open("a0"), PacketSocket::open("b0"));
        let mut passage = Passage::new();
        let rounds = 500;
        for round in 0..rounds {
            let frames: Vec<_> = (0..24).map(|number| frame(round * 24 + number, 60 + (round * 31 + number * 101) % 1455)).collect();
            frames.iter().for_each(|frame| source.send(frame));
            let mut packets = receive(&mut *receiver, frames.len());
            passage.pass(&mut packets, &mut *transmitter);
            receiver.give_back();
            for frame in &frames {
                assert_eq!(target.receive(), *frame);
            }
        }
        let (received, sent) = (one.statistics(), other.statistics());
        assert_eq!(
            (sent.sent_in_place, sent.sent_by_copy),
            (rounds as u64 * 24, 0),
            "every frame left the chunk that it came in, none was copied"
        );
        assert_eq!((received.rx_dropped, received.rx_ring_full, sent.tx_invalid), (0, 0, 0), "{received:?}");

        // With chunks of another size the memory is another, and frames are copied.
        let mut third = open("xdp:b0?frame=4k");
        let mut transmitter = third.transmitter().expect("one");
        source.send(&frame(1, 200));
        passage.pass(&mut receive(&mut *receiver, 1), &mut *transmitter);
        assert_eq!((third.statistics().sent_in_place, third.statistics().sent_by_copy), (0, 1));
    });
}

#[test]
fn a_chunk_sent_through_two_ports_comes_back_when_both_are_done() {
    with_links(1500, || {
        link("c0", "c1", 1500, "");
        let mut ports = ["a1", "b1", "c1"].map(|name| open(&format!("xdp:{name}?frames=64")));
        let mut receiver = receiver(&mut ports[0]);
        let mut transmitters = [1, 2].map(|index: usize| ports[index].transmitter().expect("one"));
        let (source, targets) = (PacketSocket::open("a0"), ["b0", "c0"].map(PacketSocket::open));
        for round in 0..300 {
            let frames: Vec<_> = (0..16).map(|number| frame(round * 16 + number, 300)).collect();
            frames.iter().for_each(|frame| source.send(frame));
            let mut packets = receive(&mut *receiver, frames.len());
            let policy = Policy::gro().with_partial_checksums().with_max_packets(1);
            let mut aggregator = Aggregator::new(policy, HashKey::new(1));
            let (mut outgoing, mut batches) = (Outgoing::new(), [TxBatch::new(), TxBatch::new()]);
            let sink: &mut dyn FnMut(SuperPacket<'_, Buffer>) = &mut |mut packet| {
                let staged = outgoing.stage(&packet);
                batches.iter_mut().for_each(|batch| batch.push_packet(&mut outgoing, &staged, &packet, 1024));
                outgoing.keep(staged, &mut packet);
            };
            aggregator.receive_batch(&mut packets, 0, sink);
            aggregator.poll_end(0, sink);
            transmitters.iter_mut().zip(&batches).for_each(|(transmitter, batch)| send_all(&mut **transmitter, &outgoing, batch));
            drop(outgoing);
            receiver.give_back();
            for target in &targets {
                frames.iter().for_each(|frame| assert_eq!(target.receive(), *frame));
            }
        }
        assert!(ports[1..].iter_mut().all(|port| port.statistics().sent_in_place == 4800 && port.statistics().sent_by_copy == 0));
        assert_eq!(ports[0].counters().rx_dropped, 0, "no chunk was lost on the way");
    });
}

#[test]
fn ends_work_on_different_threads() {
    with_links(1500, || {
        // Twice the frames on the way may lie in chunks that their port has not looked at again.
        const ON_THE_WAY: usize = 60;
        const FRAMES: usize = 12_000;
        let expected = |number| frame(number, 60 + number % 1400);
        let (mut one, mut other) = (open("xdp:a1?frames=512"), open("xdp:b1?frames=512"));
        let (mut receiver, mut transmitter) = (receiver(&mut one), other.transmitter().expect("one"));
        let (source, target) = (PacketSocket::open("a0"), PacketSocket::open("b0"));
        let (queue, received) = std::sync::mpsc::sync_channel::<Vec<RxPacket<Buffer>>>(4);
        let (acknowledge, acknowledged) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut passage = Passage::new();
                received.iter().for_each(|mut packets| passage.pass(&mut packets, &mut *transmitter));
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
        assert_eq!((one.counters().rx_dropped, other.statistics().sent_in_place), (0, FRAMES as u64));
    });
}

#[test]
fn frames_in_several_chunks() {
    with_links(9000, || {
        for mode in ["native", "generic"] {
            let (mut one, mut other) = (open(&format!("xdp:a1?mode={mode}&frames=256")), open(&format!("xdp:b1?mode={mode}&frames=256")));
            assert!(one.to_string().contains("multi-buffer"), "{one}");
            let (mut receiver, mut transmitter) = (receiver(&mut one), other.transmitter().expect("one"));
            let (source, target) = (PacketSocket::open("a0"), PacketSocket::open("b0"));
            let mut passage = Passage::new();
            for round in 0..100 {
                let lengths = [9014, 60, 1792, 1793, 2048, 2049, 3584, 3585, 9013, 8960];
                let frames: Vec<_> = lengths.iter().enumerate().map(|(number, length)| frame(round * 10 + number, *length)).collect();
                frames.iter().for_each(|frame| source.send(frame));
                let mut packets = receive(&mut *receiver, frames.len());
                let pieces: Vec<_> = packets.iter().map(|packet| packet.buffers().count()).collect();
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
            assert_eq!((statistics.sent_in_place, statistics.sent_by_copy, statistics.tx_invalid), (800, 1200, 0));
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
            assert_eq!(receiver.poll(&mut Vec::new(), POLL_LIMIT).expect("the port lives"), 0, "nothing can come");
            assert!(start.elapsed() < PATIENCE, "{:?}", port.statistics());
        }
        assert_eq!(port.counters().rx_dropped, 50);
        assert!(port.statistics().fill_ring_empty >= 50);
        drop(held);
        receiver.give_back();
        assert!(!receiver.is_crowded());
        (0..32).for_each(|number| peer.send(&frame(1000 + number, 100)));
        let packets = receive(&mut *receiver, 32);
        assert!(packets.iter().enumerate().all(|(number, packet)| bytes(packet) == frame(1000 + number, 100)));
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
        let (mut receiver, mut transmitter) = (receiver(&mut port), port.transmitter().expect("one"));
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
        assert_eq!(port.statistics().rx_wakeups, before, "a copying kernel looks at the fill ring by itself");
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
        let mut transmitters = [port.transmitter().expect("one"), port.transmitter().expect("another")];
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
    setrlimit(Resource::Memlock, Rlimit { current: Some(bytes), maximum }).expect("a privilege to raise it");
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

/// Runs `test` on a thread that lacks some capabilities: they are each thread's own.
fn without<T: Send>(removed: CapabilitySet, test: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let mut own = capabilities(None).expect("asked");
            own.effective.remove(removed);
            set_capabilities(None, own).expect("fewer are always granted");
            test()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The driver's hash, which comes before each frame.
#[test]
fn the_driver_is_asked_for_the_flow_hash() {
    with_links(1500, || {
        let port = match XdpPort::open(&"xdp:a1?hash=on".parse().expect("a port string")) {
            Err(PortError::Unsupported { reason, .. }) if reason.contains("hash=on needs Linux 6.3") => return not_built_in(&reason),
            Err(error) => panic!("{error}"),
            Ok(port) => port,
        };
        assert!(port.is_native() && port.capabilities().features.contains(Feature::ReceiveHashing));
        let mut port = port;
        let mut receiver = receiver(&mut port);
        let peer = PacketSocket::open("a0");
        let mut hashes = Vec::new();
        // Several times round the ring, so that chunks are used again.
        for round in 0..200 {
            let mut flows = HashSet::new();
            for number in 0..20u8 {
                peer.send(&datagram(number));
                peer.send(&frame(usize::from(number), 60));
            }
            for packet in receive(&mut *receiver, 40) {
                let frame = bytes(&packet);
                match frame[12..14] {
                    [8, 0] => {
                        let (flow, hash) = (usize::from(frame[35]), packet.hash.expect("a flow has a hash"));
                        assert_eq!(frame, datagram(flow as u8), "nothing else of the frame has changed");
                        flows.insert(hash.0);
                        if round == 0 {
                            assert_eq!(flow, hashes.len(), "in order");
                            hashes.push(hash);
                        }
                        assert_eq!(hashes[flow], hash, "a flow has the same hash each time");
                    }
                    // The kernel hashes what it knows by addresses: the same for all that have the
                    // same.
                    _ => assert!(packet.hash.is_none_or(|hash| !flows.contains(&hash.0)), "no flow's hash"),
                }
            }
            receiver.give_back();
            assert!(flows.len() > 15, "{flows:?}");
        }
        drop((port, receiver));

        let mut port = open("xdp:a1");
        assert!(!port.capabilities().features.contains(Feature::ReceiveHashing));
        let mut receiver = self::receiver(&mut port);
        peer.send(&datagram(1));
        assert_eq!(receive(&mut *receiver, 1)[0].hash, None);
        let message = refused("xdp:lo?hash=on");
        assert!(message.contains("hash=on: the driver \"\" gives no hash"), "{message}");
        assert!(!has_program("lo"));
    });
}

/// A frame with an IPv4 UDP packet without checksum, from port `port`.
fn datagram(port: u8) -> Vec<u8> {
    let mut frame = frame(1, 14 + 48);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..34].copy_from_slice(&[0x45, 0, 0, 48, 0, 1, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    let checksum = superpacket::checksum::ipv4_header(&frame[14..34]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame[34..42].copy_from_slice(&[0x80, port, 0, 9, 0, 28, 0, 0]);
    frame
}

fn in_namespace_with_queues(test: impl FnOnce()) {
    with_links(1500, || {
        link("q0", "q1", 1500, "numtxqueues 2 numrxqueues 2");
        test();
    });
}

#[test]
fn down_and_up_again() {
    with_links(1500, || {
        let mut port = open("xdp:a1");
        let (mut receiver, mut transmitter) = (receiver(&mut port), port.transmitter().expect("one"));
        let peer = PacketSocket::open("a0");
        assert_eq!(port.state().link, LinkState::Up);
        for _ in 0..3 {
            ip("link set a1 down");
            assert!(matches!(until_error(&mut *receiver), PortError::Down { .. }));
            assert_eq!(port.state().link, LinkState::Down);
            let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
            batch.push_bytes(&mut outgoing, &frame(5, 100), RxChecksum::None, None, Layer::Ethernet);
            let stopped = (0..3).find_map(|_| transmitter.transmit(&outgoing, &batch, 0).stopped);
            assert!(matches!(stopped, Some(Stop::Down)), "{stopped:?}");
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
            let (mut receiver, mut transmitter) = (receiver(&mut port), port.transmitter().expect("one"));
            let peer = PacketSocket::open("a0");
            peer.send(&frame(1, 100));
            let held = receive(&mut *receiver, 1);
            ip("link del a0");
            let error = until_error(&mut *receiver);
            assert!(matches!(error, PortError::Gone { .. }) && error.is_transient(), "{error}");
            assert_eq!(port.state().link, LinkState::Gone);
            let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
            batch.push_bytes(&mut outgoing, &frame(5, 100), RxChecksum::None, None, Layer::Ethernet);
            let stopped = (0..3).find_map(|_| transmitter.transmit(&outgoing, &batch, 0).stopped);
            assert!(matches!(stopped, Some(Stop::Gone(_))), "{stopped:?}");
            port.counters();
            let error = XdpPort::open(&"xdp:a1".parse().expect("a port string")).expect_err("it is gone");
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
            assert!(message.contains("another XDP program (number ") && message.contains("ip link set dev a1 xdp off"), "{message}");
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
    const HOLD: &str = "SUPERPACKET_TEST_XDP_HOLD";
    if let Some(interface) = std::env::var_os(HOLD) {
        let mut port = open(&format!("xdp:{}", interface.to_string_lossy()));
        let _ends = (port.receivers(), port.transmitter());
        println!("open");
        std::thread::sleep(3 * PATIENCE);
        panic!("nobody killed this process");
    }
    with_links(1500, || {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["xdp::a_killed_process_leaves_no_program", "--exact", "--nocapture"])
            .env(HOLD, "a1")
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let is_open = lines.map_while(Result::ok).any(|line| line.contains("open"));
        let (had_program, taken) = (has_program("a1"), XdpPort::open(&"xdp:a1".parse().expect("a port string")).is_err());
        child.kill().expect("it runs");
        child.wait().expect("it is ours");
        assert!(is_open && had_program && taken, "it held the port");
        let start = Instant::now();
        while has_program("a1") {
            assert!(start.elapsed() < PATIENCE, "the program is still there");
        }
        let mut port = open("xdp:a1");
        let mut receiver = receiver(&mut port);
        let peer = PacketSocket::open("a0");
        peer.send(&frame(3, 100));
        assert_eq!(bytes(&receive(&mut *receiver, 1)[0]), frame(3, 100));
    });
}

#[test]
fn unfinished_checksums_of_a_veth_are_recognized() {
    with_links(1500, || {
        ip("addr add 192.0.2.1/24 dev a0");
        ip("neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev a0");
        let mut states = Vec::new();
        for partial in ["auto", "detect", "off"] {
            let mut port = open(&format!("xdp:a1?partial={partial}"));
            let mut receiver = receiver(&mut port);
            let sender = UdpSocket::bind("192.0.2.1:0").expect("the address is ours");
            sender.send_to(&[7; 333], "192.0.2.2:9").expect("sent");
            let stream = rustix::net::socket_with(
                rustix::net::AddressFamily::INET,
                rustix::net::SocketType::STREAM,
                rustix::net::SocketFlags::NONBLOCK,
                None,
            );
            let stream = stream.expect("a socket");
            let target: std::net::SocketAddrV4 = "192.0.2.2:80".parse().expect("an address");
            assert_eq!(rustix::net::connect(&stream, &target), Err(rustix::io::Errno::INPROGRESS));
            let packets = receive(&mut *receiver, 2);
            for packet in &packets {
                let frame = bytes(packet);
                let (protocol, offset) = (frame[23], if frame[23] == 17 { 6 } else { 16 });
                let pseudo = pseudo_header(&frame[14..], IpVersion::V4, protocol, (frame.len() - 34) as u32);
                let sum = sum_ranges(Simd::scalar(), [&frame[34..]]);
                assert!(!pseudo.add(sum).is_valid(), "the other end left it unfinished");
                states.push((partial, protocol, packet.checksum));
                if let RxChecksum::Partial { start, offset: found } = packet.checksum {
                    assert_eq!((start, found), (34, offset));
                    // Filled in as a device would: over the field as it is.
                    let mut filled = frame.clone();
                    let place = 34 + usize::from(offset);
                    filled[place..place + 2].copy_from_slice(&Sum::new(sum).checksum().to_be_bytes());
                    assert!(pseudo.add(sum_ranges(Simd::scalar(), [&filled[34..]])).is_valid());
                }
            }
        }
        let recognized = |state: &&(&str, u8, RxChecksum)| matches!(state.2, RxChecksum::Partial { .. });
        assert_eq!(states.iter().filter(recognized).map(|state| (state.0, state.1)).collect::<HashSet<_>>().len(), 4, "{states:?}");
        assert!(states.iter().all(|state| (state.0 == "off") == (state.2 == RxChecksum::None)), "{states:?}");
    });
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

#[test]
fn capabilities_are_those_of_af_xdp() {
    with_links(1500, || {
        let port = open("xdp:a1");
        let capabilities = port.capabilities();
        for feature in [Feature::TxChecksumming, Feature::TcpSegmentationOffload, Feature::TxUdpSegmentation, Feature::ReceiveHashing] {
            assert!(!capabilities.features.contains(feature), "{feature}");
        }
        for feature in [Feature::ScatterGather, Feature::GenericReceiveOffload] {
            assert!(capabilities.features.contains(feature), "{feature}");
        }
        assert_eq!((port.name(), port.layer()), ("xdp:a1", Layer::Ethernet));
        let address = std::fs::read_to_string("/proc/net/dev").map(|_| port.hardware_address());
        assert!(address.expect("proc is there").is_some_and(|address| address != [0; 6]));
    });
}
