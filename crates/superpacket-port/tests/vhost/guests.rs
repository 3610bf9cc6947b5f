//! Guests that keep to the rules.

use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use superpacket::packet::RxChecksum;
use superpacket::segment::{Gso, GsoKind, SegmentSize};
use superpacket::virtio::{ByteOrder, Format, Header, Offload, flags};
use superpacket_front_end::{FrontEnd, Guest, GuestSettings, feature};
use superpacket_port::features::Feature;
use superpacket_port::{LinkState, StopReason, open};
use superpacket_traffic::frame::{Checksum, Frame};

use crate::bench::Bench;
use crate::frames::{bytes, frame};

fn without(features: &[u32]) -> u64 {
    features.iter().fold(u64::MAX, |all, feature| all & !(1 << feature))
}

fn only(features: &[u32]) -> u64 {
    features.iter().fold(1 << feature::VERSION_1, |all, feature| all | 1 << feature)
}

const TUNNELS: [u32; 4] = [
    feature::GUEST_UDP_TUNNEL_GSO,
    feature::GUEST_UDP_TUNNEL_GSO_CSUM,
    feature::HOST_UDP_TUNNEL_GSO,
    feature::HOST_UDP_TUNNEL_GSO_CSUM,
];

#[test]
fn frames_pass_both_ways_with_all_features_and_with_none() {
    for features in [
        u64::MAX,
        0,
        without(&[feature::MRG_RXBUF]),
        without(&[feature::EVENT_IDX]),
        without(&TUNNELS),
        without(&[feature::VERSION_1]) & without(&TUNNELS),
        only(&[feature::MRG_RXBUF]),
        only(&[]),
        only(&[feature::IN_ORDER, feature::EVENT_IDX]),
    ] {
        let mut bench = Bench::new("mtu=9000");
        let mut guest = bench.guest(GuestSettings {
            features,
            // Without mergeable buffers, each takes the longest frame.
            receive_buffer: 10_000,
            ..GuestSettings::default()
        });
        let header = vec![0; guest.header_length()];
        // More frames than the rings are long.
        for round in 0..60 {
            for length in [14, 60, 1514, 2100, 9014].map(|length| length + round % 3) {
                assert!(guest.send(0, &header, &frame(length)), "{features:#x}");
                let packets = bench.receive(0, 1);
                assert_eq!(packets.len(), 1, "{features:#x} {length}");
                assert_eq!(bytes(&packets[0]), frame(length));
                assert_eq!((packets[0].checksum, packets[0].gso), (RxChecksum::None, None));
                assert!(bench.send_plain(&frame(length)));
                let received = guest.wait_for_frame(0).expect("it was sent");
                assert_eq!(received.bytes, frame(length), "{features:#x}");
                let mut plain = vec![0; header.len()];
                if header.len() >= 12 {
                    plain[10] = 1;
                }
                assert_eq!(received.header, plain, "{features:#x}");
            }
        }
        assert_eq!(bench.port.counters().rx_errors, 0);
    }
}

#[test]
fn buffers_may_consist_of_any_parts() {
    for (receive_buffer, receive_parts, send_parts) in [
        (2048, vec![12], vec![12]),
        (2048, vec![1, 2, 3, 4], vec![1, 2, 3, 4, 5, 6]),
        (64, vec![], vec![24, 14]),
        (100, vec![13, 1], vec![0, 11, 0, 7]),
    ] {
        let mut bench = Bench::new("mtu=9000");
        let mut guest = bench.guest(GuestSettings {
            receive_buffer,
            receive_parts,
            send_parts,
            ..GuestSettings::default()
        });
        let header = vec![0; guest.header_length()];
        for length in [14, 15, 60, 1514, 4000] {
            assert!(guest.send(0, &header, &frame(length)));
            assert_eq!(bytes(&bench.receive(0, 1)[0]), frame(length));
            assert!(bench.send_plain(&frame(length)), "{receive_buffer} {length}");
            assert_eq!(guest.wait_for_frame(0).expect("it was sent").bytes, frame(length));
        }
    }
}

/// Returns super-packets of each kind with their headers' meaning.
fn super_packets() -> Vec<(Vec<u8>, Offload)> {
    let gso = |kind| Gso::new(kind, SegmentSize::new(1000).expect("not 0"));
    let transport = |frame: &Frame| frame.offsets().transport as u16;
    let partial = |frame: Frame| frame.with_checksum(Checksum::Partial);
    let of = |frame: Frame, offset, kind| {
        let frame = partial(frame);
        let checksum = RxChecksum::Partial { start: transport(&frame), offset };
        (frame.to_bytes(), Offload::new(checksum, Some(gso(kind))))
    };
    vec![
        of(Frame::tcp4(1, 60_000), 16, GsoKind::Tcp4),
        of(Frame::tcp6(1, 60_000), 16, GsoKind::Tcp6),
        of(Frame::udp4(40_000), 6, GsoKind::Udp),
        of(Frame::udp6(40_000), 6, GsoKind::Udp),
        of(
            Frame::tcp4(1, 30_000).in_vxlan4().with_outer_checksum(Checksum::Zero),
            16,
            GsoKind::Tcp4,
        ),
        of(
            Frame::tcp6(1, 30_000).in_geneve().with_outer_checksum(Checksum::Zero),
            16,
            GsoKind::Tcp6,
        ),
    ]
}

#[test]
fn super_packets_pass_both_ways_with_what_they_mean() {
    let mut bench = Bench::new("");
    let mut guest = bench.guest(GuestSettings::default());
    assert_eq!(guest.header_length(), 24);
    let capabilities = bench.port.capabilities();
    assert!(capabilities.gso.tcp && capabilities.gso.udp && capabilities.gso.udp_tunnels);
    for (bytes_sent, offload) in super_packets() {
        let describe = |format| {
            let layer = superpacket::packet::Layer::Ethernet;
            Header::describe(&offload, format, &bytes_sent, bytes_sent.len(), layer)
                .expect("virtio can say it")
        };
        let mut header = [0; 24];
        describe(Format::Tunnel).write(&mut header, Format::Tunnel, ByteOrder::Little).expect("24");
        assert!(guest.send(0, &header, &bytes_sent));
        let packets = bench.receive(0, 1);
        assert_eq!(bytes(&packets[0]), bytes_sent);
        assert_eq!((packets[0].checksum, packets[0].gso), (offload.checksum, offload.gso));
        assert!(bench.send(&bytes_sent, offload.checksum, offload.gso).stopped.is_none());
        let received = guest.wait_for_frame(0).expect("it was sent");
        assert_eq!(received.bytes, bytes_sent);
        let said = Header::read(&received.header, Format::Tunnel, ByteOrder::Little).expect("24");
        let buffers = (24 + bytes_sent.len()).div_ceil(2048) as u16;
        assert_eq!(said, Header { num_buffers: buffers, ..describe(Format::Tunnel) });
    }
    assert_eq!(bench.port.counters().rx_errors, 0);
}

/// A partial checksum that a guest left is left to the guest that receives the frame.
#[test]
fn partial_checksums_pass_unchanged_between_guests() {
    let (mut from, mut to) = (Bench::new(""), Bench::new(""));
    let (mut sender, mut receiver) =
        (from.guest(GuestSettings::default()), to.guest(GuestSettings::default()));
    let frame = Frame::tcp4(1, 500).with_checksum(Checksum::Partial);
    let start = frame.offsets().transport as u16;
    let mut header = [0; 24];
    let described = Header {
        flags: flags::NEEDS_CSUM,
        csum_start: start,
        csum_offset: 16,
        ..Header::default()
    };
    described.write(&mut header, Format::Tunnel, ByteOrder::Little).expect("24 bytes");
    assert!(sender.send(0, &header, &frame.to_bytes()));
    let packets = from.receive(0, 1);
    assert_eq!(packets[0].checksum, RxChecksum::Partial { start, offset: 16 });
    assert!(to.send(&bytes(&packets[0]), packets[0].checksum, None).stopped.is_none());
    let received = receiver.wait_for_frame(0).expect("it was sent");
    assert_eq!(received.bytes, frame.to_bytes());
    let said = Header::read(&received.header, Format::Tunnel, ByteOrder::Little).expect("24");
    assert_eq!((said.flags, said.csum_start, said.csum_offset), (flags::NEEDS_CSUM, start, 16));
}

#[test]
fn a_guest_is_sent_nothing_that_it_has_not_accepted() {
    for (features, accepted) in [
        (without(&[feature::GUEST_TSO4]), [false, true, true, true, false, true]),
        (without(&[feature::GUEST_TSO6]), [true, false, true, true, true, false]),
        (without(&[feature::GUEST_USO4]), [true, true, false, false, true, true]),
        (without(&[feature::GUEST_UDP_TUNNEL_GSO]), [true, true, true, true, false, false]),
        (without(&[feature::GUEST_CSUM]), [false; 6]),
        (0, [false; 6]),
    ] {
        let mut bench = Bench::new("");
        let mut guest = bench.guest(GuestSettings {
            features,
            receive_buffer: 68 * 1024,
            ring: 64,
            ..GuestSettings::default()
        });
        for ((bytes, offload), is_accepted) in super_packets().into_iter().zip(accepted) {
            let stopped = bench.send(&bytes, offload.checksum, offload.gso).stopped;
            match stopped {
                None => assert!(is_accepted, "{features:#x} {offload:?}"),
                Some(StopReason::Offload(_)) => assert!(!is_accepted, "{features:#x} {offload:?}"),
                other => panic!("{other:?}"),
            }
        }
        let count = accepted.iter().filter(|accepted| **accepted).count();
        assert_eq!((0..count).filter_map(|_| guest.wait_for_frame(0)).count(), count);
        assert_eq!(bench.port.counters().tx_refused, 6 - count as u64);
        let active = bench.port.capabilities().features;
        let takes_checksums = features & 1 << feature::GUEST_CSUM != 0;
        assert_eq!(active.contains(Feature::TxChecksumming), takes_checksums);
    }
}

#[test]
fn what_a_guest_says_of_verified_checksums_is_no_verdict() {
    let mut bench = Bench::new("");
    let mut guest = bench.guest(GuestSettings::default());
    for said in [flags::DATA_VALID, flags::RSC_INFO, flags::DATA_VALID | flags::RSC_INFO] {
        let mut header = [0; 24];
        header[0] = said;
        assert!(guest.send(0, &header, &Frame::tcp4(1, 100).to_bytes()));
        assert_eq!(bench.receive(0, 1)[0].checksum, RxChecksum::None);
    }
}

#[test]
fn each_pair_of_queues_is_its_own() {
    let mut bench = Bench::new("queues=4");
    let settings = GuestSettings { queues: 3, ..GuestSettings::default() };
    let mut guest = bench.guest(settings);
    assert!(guest.has(feature::MQ));
    let queues = guest.front_end.ask(superpacket_front_end::request::GET_QUEUE_NUM, &[], &[]);
    assert_eq!(queues.expect("an answer").number(), 4);
    let header = vec![0; guest.header_length()];
    for pair in 0..3 {
        assert!(guest.send(pair, &header, &frame(100 + pair)));
        let packets = bench.receive(pair, 1);
        assert_eq!((packets[0].queue, bytes(&packets[0])), (pair as u16, frame(100 + pair)));
    }
    // The first end uses the first queue, and the fourth one that the guest has.
    let mut ends: Vec<_> = (1..4).map(|_| bench.port.transmitter().expect("an end")).collect();
    assert_eq!(ends.iter().map(|end| end.queue()).collect::<Vec<_>>(), [1, 2, 3]);
    for (end, pair) in ends.iter_mut().zip([1, 2, 0]) {
        std::mem::swap(&mut bench.transmitter, end);
        assert!(bench.send_plain(&frame(200 + pair)));
        assert_eq!(guest.wait_for_frame(pair).expect("it was sent").bytes, frame(200 + pair));
    }
}

#[test]
fn a_guest_that_leaves_and_returns_is_the_same_port() {
    let mut bench = Bench::new("");
    assert_eq!(bench.port.state().link, LinkState::Down);
    assert!(!bench.send_plain(&frame(60)), "there is no guest");
    for round in 0..20 {
        // A guest that is killed in the middle of traffic in both directions.
        let mut guest = bench.guest(GuestSettings::default());
        let header = vec![0; guest.header_length()];
        while guest.send(0, &header, &frame(100)) {}
        bench.send_plain(&frame(100));
        if round % 2 == 0 {
            let mut packets = Vec::new();
            bench.poll(0, &mut packets);
            drop(guest);
            assert!(packets.iter().all(|packet| bytes(packet) == frame(100)));
        }
        assert!(round % 2 == 0 || bench.port.state().link == LinkState::Up);
    }
    bench.serves_the_next();
    assert_eq!(bench.port.counters().rx_errors, 0);
}

/// A device that is replaced while frames wait in both rings: none is stuck, and none comes twice.
#[test]
fn a_port_that_is_opened_again_continues_where_the_guest_stands() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("vm.sock");
    let text = format!("vhost:{}", path.display());
    let spec = text.parse().expect("well formed");
    let mut port = open(&spec).expect("it opens");
    let mut guest = Guest::connect(&path, GuestSettings::default()).expect("accepted");
    let header = vec![0; guest.header_length()];
    let mut packets = Vec::new();
    let mut receiver = port.receivers().remove(0);
    for number in 0..3 {
        assert!(guest.send(0, &header, &frame(100 + number)));
    }
    assert_eq!(receiver.poll(&mut packets, 2).expect("it is there"), 2);
    drop((port, receiver));
    assert!(guest.front_end.is_closed());
    assert!(guest.send(0, &header, &frame(103)), "it waits in the ring");
    let mut port = open(&spec).expect("the socket's file was removed");
    guest.front_end = FrontEnd::connect(&path).expect("it listens");
    let renewed = Guest::prepare(
        FrontEnd::new(guest.front_end.socket().try_clone().expect("a copy")),
        GuestSettings::default(),
    );
    drop(renewed.expect("the features are agreed again"));
    guest.pass_memory().expect("accepted");
    (0..2).for_each(|index| guest.start_queue(index).expect("accepted"));
    let mut receiver = port.receivers().remove(0);
    let since = Instant::now();
    while packets.len() < 4 && since.elapsed() < Duration::from_secs(10) {
        receiver.poll(&mut packets, 512).expect("it is there");
    }
    let lengths: Vec<_> = packets.iter().map(|packet| packet.length()).collect();
    assert_eq!(lengths, [100, 101, 102, 103]);
}

#[test]
fn a_port_connects_to_a_front_end_that_listens() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("vm.sock");
    let text = format!("vhost:{}?connect=on", path.display());
    let mut port = open(&text.parse().expect("well formed")).expect("nobody need listen yet");
    let listener = UnixListener::bind(&path).expect("the folder is ours");
    for _ in 0..2 {
        let (socket, _) = listener.accept().expect("the port connects, and connects again");
        let mut guest =
            Guest::prepare(FrontEnd::new(socket), GuestSettings::default()).expect("agreed");
        guest.start().expect("accepted");
        assert_eq!(port.state().link, LinkState::Up);
    }
}

#[test]
fn memory_may_come_in_slots_and_change_while_rings_run() {
    use superpacket_front_end::{MemoryRegion, request};
    let mut bench = Bench::new("");
    let mut guest = bench.guest(GuestSettings::default());
    let header = vec![0; guest.header_length()];
    let slots = guest.front_end.ask(request::GET_MAX_MEM_SLOTS, &[], &[]).expect("an answer");
    assert_eq!(slots.number(), 32);
    let end = guest.memory.regions[0].length;
    let more = MemoryRegion::new(end, 0x1_0000);
    let body: Vec<u8> = std::iter::once(0)
        .chain(more.description())
        .flat_map(|word: u64| word.to_ne_bytes())
        .collect();
    use std::os::fd::AsFd;
    guest.front_end.demand(request::ADD_MEM_REG, &body, &[more.file.as_fd()]).expect("added");
    guest.memory.regions.push(more);
    let before = guest.queues[1].buffers;
    guest.queues[1].buffers = end;
    guest.queues[1].buffer_length = 100;
    assert!(guest.send(0, &header, &frame(60)));
    assert_eq!(bytes(&bench.receive(0, 1)[0]), frame(60));
    guest.queues[1].buffers = before;
    guest.front_end.demand(request::REM_MEM_REG, &body, &[]).expect("removed");
    // The whole table again, with rings that run.
    guest.memory.regions.pop();
    guest.pass_memory().expect("accepted");
    assert!(guest.send(0, &header, &frame(61)));
    assert_eq!(bytes(&bench.receive(0, 1)[0]), frame(61));
    assert!(bench.send_plain(&frame(62)));
    assert_eq!(guest.wait_for_frame(0).expect("it was sent").bytes, frame(62));
}

#[test]
fn rings_stop_and_start_again_on_request() {
    use superpacket_front_end::request;
    let mut bench = Bench::new("");
    let mut guest = bench.guest(GuestSettings::default());
    let header = vec![0; guest.header_length()];
    for round in 1..4 {
        assert!(guest.send(0, &header, &frame(100)));
        assert_eq!(bench.receive(0, 1).len(), 1);
        assert_eq!(guest.stop_queue(1).expect("an answer"), round);
        guest.start_queue(1).expect("accepted");
    }
    let enable = |guest: &Guest, on: u32| {
        let body = [1, on].map(u32::to_ne_bytes).concat();
        guest.front_end.demand(request::SET_VRING_ENABLE, &body, &[]).expect("accepted");
    };
    enable(&guest, 0);
    assert!(guest.send(0, &header, &frame(100)));
    let mut packets = Vec::new();
    assert_eq!(bench.poll(0, &mut packets), 0, "the ring is disabled");
    enable(&guest, 1);
    assert_eq!(bench.receive(0, 1).len(), 1);
    bench.receivers.clear();
}

#[test]
fn the_guest_is_not_notified_more_often_than_it_asks() {
    for features in [u64::MAX, without(&[feature::EVENT_IDX])] {
        let mut bench = Bench::new("");
        let mut guest = bench.guest(GuestSettings { features, ..GuestSettings::default() });
        let header = vec![0; guest.header_length()];
        for _ in 0..20 {
            assert!(guest.send(0, &header, &frame(60)));
        }
        assert_eq!(bench.receive(0, 20).len(), 20);
        assert_eq!(guest.calls(1), 1, "once for all that were taken together");
        let ring = &guest.queues[1].ring;
        ring.set_no_interrupt(&guest.memory, true);
        ring.set_used_event(&guest.memory, ring.next_available.wrapping_add(1000));
        for _ in 0..10 {
            assert!(guest.send(0, &header, &frame(60)));
        }
        assert_eq!(bench.receive(0, 10).len(), 10);
        assert_eq!(guest.calls(1), 0);
    }
}

/// An idle port is not readable; one notification makes it so until it was polled.
#[test]
fn an_idle_port_lets_its_thread_sleep() {
    let mut bench = Bench::new("");
    let mut guest = bench.guest(GuestSettings::default());
    let header = vec![0; guest.header_length()];
    let mut packets = Vec::new();
    while bench.poll(0, &mut packets) != 0 || bench.is_readable(0, Duration::ZERO) {}
    for _ in 0..3 {
        assert!(!bench.is_readable(0, Duration::from_millis(20)));
        assert!(guest.send(0, &header, &frame(60)));
        assert!(bench.is_readable(0, Duration::from_secs(5)));
        assert_eq!(bench.poll(0, &mut packets), 1);
        // While the port is busy, the guest need not notify.
        assert!(!guest.queues[1].ring.is_kick_wanted(&guest.memory, true, 0));
        assert_eq!(bench.poll(0, &mut packets), 0);
    }
}

#[test]
fn frames_wait_in_the_ring_while_the_port_has_no_memory() {
    let mut bench = Bench::new("");
    let mut guest = bench.guest(GuestSettings::default());
    let header = vec![0; guest.header_length()];
    let (mut packets, mut sent) = (Vec::new(), 0);
    // Frames of this length need one of 64 large slots each.
    for _ in 0..200 {
        while guest.send(0, &header, &frame(4000 + sent)) {
            sent += 1;
        }
        bench.poll(0, &mut packets);
    }
    assert_eq!(packets.len(), 64);
    assert!(bench.receivers[0].is_crowded());
    assert!(bench.is_readable(0, Duration::ZERO), "there is more");
    let mut all = packets.iter().map(|packet| packet.length()).collect::<Vec<_>>();
    packets.clear();
    packets.extend(bench.receive(0, sent - 64));
    all.extend(packets.iter().map(|packet| packet.length()));
    assert_eq!(all, (0..sent).map(|number| 4000 + number).collect::<Vec<_>>());
}

/// QEMU enables rings before it accepts features, and does not repeat that.
#[test]
fn rings_may_be_enabled_before_features_are_accepted() {
    use superpacket_front_end::request;
    for flags in [1_u32, 9] {
        let mut bench = Bench::new("queues=2");
        let front_end = FrontEnd::connect(&bench.path).expect("it listens");
        let protocol = front_end.ask(request::GET_PROTOCOL_FEATURES, &[], &[]).expect("an answer");
        let body = protocol.number().to_ne_bytes();
        front_end.send(request::SET_PROTOCOL_FEATURES, &body, &[]).expect("it listens");
        for (index, on) in [(0, 1), (1, 1), (0, 0), (0, 1), (2, 0), (3, 0)] {
            let words = [request::SET_VRING_ENABLE, flags, 8, index, on];
            front_end.send_bytes(&words.map(u32::to_ne_bytes).concat(), &[]).expect("it listens");
            if flags & 8 != 0 {
                assert_eq!(front_end.reply().expect("an answer").number(), 0);
            }
        }
        let settings = GuestSettings { queues: 2, ..GuestSettings::default() };
        let mut guest = Guest::prepare(front_end, settings).expect("agreed");
        guest.enables_rings = false;
        guest.start().expect("accepted");
        let header = vec![0; guest.header_length()];
        assert!(guest.send(0, &header, &frame(60)) && guest.send(1, &header, &frame(61)));
        assert_eq!(bytes(&bench.receive(0, 1)[0]), frame(60));
        let mut packets = Vec::new();
        assert_eq!(bench.poll(1, &mut packets), 0, "the second pair is not enabled");
        assert!(bench.send_plain(&frame(62)));
        assert_eq!(guest.wait_for_frame(0).expect("it was sent").bytes, frame(62));
    }
    // A ring that there is not.
    let bench = Bench::new("");
    let front_end = FrontEnd::connect(&bench.path).expect("it listens");
    let body = [2_u32, 1].map(u32::to_ne_bytes).concat();
    front_end.send(request::SET_VRING_ENABLE, &body, &[]).expect("it listens");
    assert!(front_end.is_closed());
}
