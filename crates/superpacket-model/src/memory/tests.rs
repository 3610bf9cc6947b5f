use superpacket::packet::RxChecksum;
use superpacket::segment::{GsoKind, IpId, Segmentable};
use superpacket_port::{LinkState, StopReason};
use superpacket_traffic::frame::Frame;

use super::*;
use crate::fixture::{
    TestPacket, batch, ends, gathered, is_readable, partial, receive, send, send_all,
};
use crate::open;

fn frames(count: u32) -> Vec<Frame> {
    (0..count).map(|index| Frame::tcp4(index * 10, 10 + index as usize)).collect()
}

fn linked(left: &MemorySettings, right: &MemorySettings) -> (MemoryPort, MemoryPort) {
    pair(left, right).expect("opens")
}

#[test]
fn frames_cross_in_order_both_ways() {
    let (mut left, mut right) = linked(&MemorySettings::default(), &MemorySettings::default());
    let ((mut left_in, mut left_out), (mut right_in, mut right_out)) =
        (ends(&mut left), ends(&mut right));
    assert!(left.receivers().is_empty(), "handed out once");
    for round in 0..100 {
        let sent = frames(round % 7 + 1);
        send_all(&mut *left_out, &sent);
        send_all(&mut *right_out, sent.iter().rev());
        let received: Vec<_> = receive(&mut *right_in).iter().map(gathered).collect();
        assert_eq!(received, sent.iter().map(Frame::to_bytes).collect::<Vec<_>>());
        let received: Vec<_> = receive(&mut *left_in).iter().map(gathered).collect();
        assert_eq!(received, sent.iter().rev().map(Frame::to_bytes).collect::<Vec<_>>());
    }
}

#[test]
fn super_packets_pass_whole_with_their_metadata() {
    let (mut left, mut right) = linked(&MemorySettings::default(), &MemorySettings::default());
    let ((_, mut out), (mut input, _)) = (ends(&mut left), ends(&mut right));
    let mut large = partial(&Frame::tcp4(1, 60_000), GsoKind::Tcp4, 1448);
    let fixed =
        large.gso.expect("one").with_id(IpId::Fixed).with_cwr(superpacket::segment::Cwr::All);
    large.gso = Some(fixed);
    let complete =
        TestPacket { checksum: RxChecksum::Complete(7), ..TestPacket::from(&Frame::tcp4(1, 9)) };
    let verified =
        TestPacket { checksum: RxChecksum::Unnecessary { level: 1 }, ..complete.clone() };
    let huge = TestPacket { bytes: vec![3; 200_000], ..complete.clone() };
    assert_eq!(send(&mut *out, &[large.clone(), complete, verified, huge]).sent, 4);
    let received = receive(&mut *input);
    assert_eq!(gathered(&received[0]), large.bytes);
    assert_eq!(
        (received[0].checksum, received[0].buffers().count()),
        (RxChecksum::Partial { start: 34, offset: 16 }, 1)
    );
    let gso = received[0].gso().expect("a super-packet");
    assert_eq!(
        (gso.kind, gso.size, gso.id, gso.cwr),
        (fixed.kind, fixed.size, fixed.id, fixed.cwr)
    );
    assert_eq!(received[1].checksum, RxChecksum::None, "the sum may be of another form of it");
    assert_eq!(received[2].checksum, RxChecksum::Unnecessary { level: 1 });
    assert_eq!(received[3].length(), 200_000);
}

#[test]
fn a_full_queue_stops_its_sender() {
    let (mut left, mut right) = linked(
        &MemorySettings::default(),
        &MemorySettings { slots: 3, ..MemorySettings::default() },
    );
    let ((_, mut out), (mut input, _)) = (ends(&mut left), ends(&mut right));
    let sent: Vec<_> = frames(5).iter().map(TestPacket::from).collect();
    let (outgoing, batch) = batch(&sent);
    let progress = out.transmit(&outgoing, &batch, 0);
    assert!(
        progress.sent == 3 && matches!(progress.stopped, Some(StopReason::Full)),
        "{progress:?}"
    );
    assert!(matches!(out.transmit(&outgoing, &batch, 3).stopped, Some(StopReason::Full)));
    let mut packets = Vec::new();
    assert_eq!(input.poll(&mut packets, 1).expect("up"), 1);
    assert_eq!(out.transmit(&outgoing, &batch, 3).sent, 1, "one place is free");
    packets.extend(receive(&mut *input));
    assert_eq!(out.transmit(&outgoing, &batch, 4).sent, 1);
    packets.extend(receive(&mut *input));
    assert_eq!(
        packets.iter().map(gathered).collect::<Vec<_>>(),
        sent.iter().map(|sent| sent.bytes.clone()).collect::<Vec<_>>()
    );
    assert_eq!((left.counters().tx_full, right.counters().rx_dropped), (3, 0));
}

#[test]
fn a_full_queue_drops_and_counts() {
    let settings = MemorySettings { slots: 3, full: WhenFull::Drop, ..MemorySettings::default() };
    let (mut left, mut right) = linked(&MemorySettings::default(), &settings);
    let ((_, mut out), (mut input, _)) = (ends(&mut left), ends(&mut right));
    send_all(&mut *out, &frames(5));
    assert_eq!(receive(&mut *input).len(), 3);
    assert_eq!((left.counters().tx_full, right.counters().rx_dropped), (0, 2));
    assert_eq!((left.queue_drops(), right.queue_drops()), (vec![0], vec![2]));
}

#[test]
fn readiness_follows_the_queue() {
    let (mut left, mut right) = linked(&MemorySettings::default(), &MemorySettings::default());
    let ((_, mut out), (mut input, _)) = (ends(&mut left), ends(&mut right));
    assert!(!is_readable(&*input));
    send_all(&mut *out, &frames(3));
    let mut packets = Vec::new();
    for left in [true, true, false] {
        assert!(is_readable(&*input));
        assert_eq!(input.poll(&mut packets, 1).expect("up"), 1);
        assert_eq!(is_readable(&*input), left);
    }
    assert_eq!(input.poll(&mut packets, 1).expect("up"), 0);
}

#[test]
fn offloads_that_are_off_are_refused() {
    let tcp = partial(&Frame::tcp4(1, 5000), GsoKind::Tcp4, 1000);
    let udp = partial(&Frame::udp4(5000), GsoKind::Udp, 1000);
    let unfilled = partial(&Frame::tcp4(1, 50), GsoKind::Tcp4, 0);
    let default = MemorySettings::default();
    for (settings, refused, taken) in [
        (MemorySettings { tso: false, ..default }, vec![&tcp], vec![&udp, &unfilled]),
        (MemorySettings { uso: false, ..default }, vec![&udp], vec![&tcp, &unfilled]),
        (MemorySettings { checksums: false, ..default }, vec![&tcp, &udp, &unfilled], vec![]),
        (MemorySettings { scatter_gather: false, ..default }, vec![&tcp, &udp], vec![&unfilled]),
    ] {
        let (mut left, _right) = linked(&settings, &default);
        let mut out = left.transmitter().expect("opens");
        for packet in &refused {
            assert!(
                matches!(
                    send(&mut *out, &[(*packet).clone()]).stopped,
                    Some(StopReason::Offload(_))
                ),
                "{settings:?}"
            );
        }
        for packet in taken {
            assert_eq!(send(&mut *out, std::slice::from_ref(packet)).sent, 1, "{settings:?}");
        }
        assert_eq!(left.counters().tx_refused, refused.len() as u64);
        assert_eq!(left.capabilities().max_slices, if settings.scatter_gather { 1024 } else { 1 });
    }
}

#[test]
fn the_mtu_counts_from_the_ip_header_on() {
    let (mut left, _right) = linked(
        &MemorySettings { mtu: 1500, ..MemorySettings::default() },
        &MemorySettings::default(),
    );
    let mut out = left.transmitter().expect("opens");
    let fits = Frame::tcp4(1, 1460);
    send_all(&mut *out, [&fits, &fits.clone().tagged(1), &fits.clone().tagged(1).tagged(2)]);
    assert_eq!(send(&mut *out, &[partial(&Frame::tcp4(1, 9000), GsoKind::Tcp4, 1460)]).sent, 1);
    for long in [
        TestPacket::from(&Frame::tcp4(1, 1461)),
        partial(&Frame::tcp4(1, 9000), GsoKind::Tcp4, 1461),
    ] {
        assert!(matches!(send(&mut *out, &[long]).stopped, Some(StopReason::TooLong)));
    }
    assert_eq!(left.state().mtu, 1500);
    left.control().set_mtu(9000);
    assert_eq!(
        (left.state().mtu, send(&mut *out, &[TestPacket::from(&Frame::tcp4(1, 1461))]).sent),
        (9000, 1)
    );
}

#[test]
fn the_second_port_of_a_name_is_the_other_end() {
    let spec = |text: &str| text.parse::<PortSpec>().expect("well formed");
    let mut first = open(&spec("memory:registry?slots=9")).expect("opens");
    assert_eq!(first.state().link, LinkState::Down, "nobody is at the other end");
    let (mut first_in, mut first_out) = ends(&mut *first);
    assert!(matches!(
        send(&mut *first_out, &[TestPacket::from(&Frame::tcp4(1, 1))]).stopped,
        Some(StopReason::Down)
    ));
    let mut second = open(&spec("memory:registry")).expect("opens");
    assert_eq!((first.state().link, second.state().link), (LinkState::Up, LinkState::Up));
    let third = open(&spec("memory:registry")).expect_err("both are open").to_string();
    assert!(third.contains("registry") && third.contains("both ends"), "{third}");
    send_all(&mut *second.transmitter().expect("opens"), &frames(9));
    assert_eq!(receive(&mut *first_in).len(), 9);
    // An end stays open until the port and all its receivers and transmitters are dropped.
    let out = second.transmitter().expect("opens");
    drop(second);
    assert_eq!(first.state().link, LinkState::Up);
    drop(out);
    assert_eq!(first.state().link, LinkState::Down);
    let again = open(&spec("memory:registry")).expect("its end is free");
    assert_eq!((first.state().link, again.name()), (LinkState::Up, "memory:registry"));
}

#[test]
fn a_link_goes_down_and_up_and_away() {
    let join = || port::join("plug", "memory:plug", &MemorySettings::default()).expect("opens");
    let (mut left, mut right) = (join(), join());
    let ((_, mut out), (mut input, _)) = (ends(&mut left), ends(&mut right));
    let control = left.control();
    send_all(&mut *out, &frames(1));
    control.set_state(LinkState::Down);
    assert!(is_readable(&*input));
    let mut packets = Vec::new();
    assert_eq!(input.poll(&mut packets, 9).expect("it had arrived"), 1);
    assert!(matches!(input.poll(&mut packets, 9), Err(PortError::Down { .. })));
    assert!(matches!(
        send(&mut *out, &[TestPacket::from(&Frame::tcp4(1, 1))]).stopped,
        Some(StopReason::Down)
    ));
    control.set_state(LinkState::Up);
    send_all(&mut *out, &frames(2));
    assert_eq!(receive(&mut *input).len(), 2);
    control.set_state(LinkState::Gone);
    control.set_state(LinkState::Up);
    assert_eq!(
        (left.state().link, right.state().link),
        (LinkState::Gone, LinkState::Gone),
        "for good"
    );
    assert!(is_readable(&*input), "who waits shall see it");
    assert!(matches!(input.poll(&mut packets, 9), Err(PortError::Gone { .. })));
    assert!(matches!(
        send(&mut *out, &[TestPacket::from(&Frame::tcp4(1, 1))]).stopped,
        Some(StopReason::Gone(_))
    ));
    let (mut left, _right) = (join(), join());
    assert_eq!(left.state().link, LinkState::Up, "a new link of the name");
}

#[test]
fn flows_keep_to_their_queues() {
    let (mut left, mut right) = linked(
        &MemorySettings::default(),
        &MemorySettings { queues: 4, ..MemorySettings::default() },
    );
    let mut out = left.transmitter().expect("opens");
    let flow = |port: u16| Frame::tcp4(1, 8).with_tcp(|tcp| tcp.source_port = port);
    let sent: Vec<_> = (0..400).map(|index| flow(1000 + index % 40)).collect();
    send_all(&mut *out, &sent);
    let mut queues_of = std::collections::HashMap::new();
    let mut counts = Vec::new();
    for (queue, input) in right.receivers().iter_mut().enumerate() {
        let packets = receive(&mut **input);
        counts.push(packets.len());
        for packet in packets {
            assert_eq!(usize::from(packet.queue), queue);
            assert_eq!(*queues_of.entry(gathered(&packet)).or_insert(queue), queue);
        }
    }
    assert_eq!((counts.iter().sum::<usize>(), queues_of.len()), (400, 40));
    assert!(counts.iter().all(|&count| count >= 40), "{counts:?}");
}

#[test]
fn a_thread_at_each_end() {
    let (mut left, mut right) = linked(
        &MemorySettings::default(),
        &MemorySettings { slots: 64, ..MemorySettings::default() },
    );
    let ((_, mut out), (mut input, _)) = (ends(&mut left), ends(&mut right));
    const COUNT: u32 = 30_000;
    let sender = std::thread::spawn(move || {
        let sent: Vec<_> = (0..COUNT)
            .map(|index| TestPacket {
                bytes: index.to_be_bytes().repeat(20),
                ..TestPacket::from(&Vec::new())
            })
            .collect();
        let (outgoing, batch) = batch(&sent);
        let mut from = 0;
        while from < COUNT as usize {
            from += out.transmit(&outgoing, &batch, from).sent;
            std::thread::yield_now();
        }
    });
    let (mut next, mut held) = (0u32, Vec::new());
    while next < COUNT {
        let descriptor = input.readiness();
        let mut watched = [rustix::event::PollFd::new(&descriptor, rustix::event::PollFlags::IN)];
        let patience = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(
            rustix::event::poll(&mut watched, Some(&patience)).expect("can be polled"),
            1,
            "a wake-up is lost after {next}"
        );
        let start = held.len();
        input.poll(&mut held, 50).expect("up");
        for packet in &held[start..] {
            assert_eq!(gathered(packet), next.to_be_bytes().repeat(20));
            next += 1;
        }
        // Hold some packets longer than others.
        if held.len() > 200 {
            held.drain(100..);
        }
    }
    sender.join().expect("no panic");
}

#[test]
fn options_are_read_and_wrong_ones_named() {
    let parse = |text: &str| {
        MemorySettings::from_options(text.parse::<PortSpec>().expect("well formed").options())
    };
    let read = parse("memory:a?slots=7&queues=2&full=drop&mtu=9000&tx=off&sg=off&tso=off&uso=off");
    let settings = MemorySettings {
        slots: 7,
        queues: 2,
        full: WhenFull::Drop,
        mtu: 9000,
        checksums: false,
        scatter_gather: false,
        tso: false,
        uso: false,
    };
    assert_eq!(read, Ok(settings));
    assert_eq!(parse("memory:a"), Ok(MemorySettings::default()));
    for wrong in [
        "slots=0",
        "slots=x",
        "slots=1048577",
        "queues=0",
        "queues=1025",
        "full=wait",
        "mtu=-1",
        "tso=maybe",
        "ring=5",
    ] {
        let error = parse(&format!("memory:a?{wrong}")).expect_err(wrong).to_string();
        assert!(error.contains(wrong), "{error}");
    }
}

#[test]
fn tunnel_datagrams_are_measured_at_the_udp_header_that_is_segmented() {
    // As a sender passes them to the kernel with `UDP_SEGMENT`: each datagram holds a VXLAN header
    // and a TCP frame.
    let mut datagram = vec![0x08, 0, 0, 0, 0, 0, 1, 0];
    datagram.extend(Frame::tcp4(1, 1_400).to_bytes());
    let frame = Frame::udp4(0).with(|frame| {
        (frame.udp_mut().destination_port, frame.payload) = (4_789, datagram.repeat(4))
    });
    let sent = partial(&frame, GsoKind::Udp, datagram.len());
    for (room, fits) in [(20 + 8 + datagram.len(), true), (20 + 8 + datagram.len() - 1, false)] {
        let settings = MemorySettings { mtu: room as u32, ..MemorySettings::default() };
        let (mut left, _right) = linked(&settings, &settings);
        let (_, mut out) = ends(&mut left);
        let progress = send(&mut *out, std::slice::from_ref(&sent));
        assert_eq!(
            (progress.sent == 1, matches!(progress.stopped, Some(StopReason::TooLong))),
            (fits, !fits),
            "{room}: {progress:?}"
        );
    }
}
