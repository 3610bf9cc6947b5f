//! Datagram sockets: peers that are named, learned, replaced, or silent.

use std::os::unix::net::UnixDatagram;

use superpacket::segment::{GsoKind, SegmentSize};
use superpacket_port::StopReason;

use super::*;

/// Binds the peer's socket at this name in the port's folder.
fn bind(folder: &TempDir, name: &str) -> UnixDatagram {
    let socket = UnixDatagram::bind(folder.path().join(name)).expect("a free path");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
    socket.set_write_timeout(Some(PATIENCE)).expect("a socket");
    socket
}

fn receive_datagram(socket: &UnixDatagram) -> Vec<u8> {
    let mut bytes = vec![0; 70_000];
    let length = socket.recv(&mut bytes).expect("a datagram");
    bytes.truncate(length);
    bytes
}

/// vfkit connects from a path of its own and greets; vmnet-helper and others do not greet.
#[test]
fn the_first_sender_is_the_peer_with_a_greeting_or_without() {
    for greets in [true, false] {
        let mut opened = Opened::new("?type=datagram");
        assert_eq!(opened.port.state().link, LinkState::Down);
        assert!(matches!(opened.send(&[&frame(60)]).stopped, Some(StopReason::Down)));
        let peer = bind(&opened.folder, "guest");
        peer.connect(opened.path("port")).expect("the port is there");
        if greets {
            peer.send(b"VFKT").expect("the port reads");
        }
        for length in [14, 60, 1514, 2112, 2113, 65_535] {
            peer.send(&frame(length)).expect("the port reads");
            assert_eq!(bytes(&opened.receive(1)[0]), frame(length));
            assert!(opened.send(&[&frame(length)]).stopped.is_none());
            assert_eq!(receive_datagram(&peer), frame(length));
        }
        assert_eq!(opened.port.state().link, LinkState::Up);
        assert_eq!(opened.port.counters().rx_errors, 0);
    }
}

/// QEMU names both paths, and sends without connecting.
#[test]
fn a_named_peer_may_come_leave_and_return() {
    let mut opened = Opened::new("?type=datagram&peer=@/qemu");
    assert_eq!(opened.port.state().link, LinkState::Down);
    for round in 0..3 {
        let peer = bind(&opened.folder, "qemu");
        assert_eq!(opened.port.state().link, LinkState::Up);
        assert!(opened.send(&[&frame(60)]).stopped.is_none());
        assert_eq!(receive_datagram(&peer), frame(60));
        peer.send_to(&frame(70 + round), opened.path("port")).expect("the port reads");
        assert_eq!(bytes(&opened.receive(1)[0]), frame(70 + round));
        drop(peer);
        assert!(matches!(opened.send(&[&frame(60)]).stopped, Some(StopReason::Down)));
        assert_eq!(opened.port.state().link, LinkState::Down);
        std::fs::remove_file(opened.path("qemu")).expect("is there");
    }
    // A peer that binds its path anew is found, although the old socket was not known to be gone.
    let first = bind(&opened.folder, "qemu");
    assert_eq!(opened.port.state().link, LinkState::Up);
    std::fs::remove_file(opened.path("qemu")).expect("is there");
    let second = bind(&opened.folder, "qemu");
    drop(first);
    assert_eq!(opened.port.state().link, LinkState::Up);
    assert!(opened.send(&[&frame(61)]).stopped.is_none());
    assert_eq!(receive_datagram(&second), frame(61));
}

#[test]
fn a_learned_peer_that_has_gone_is_followed_by_the_next_sender() {
    let mut opened = Opened::new("?type=datagram");
    for round in 0..3 {
        let peer = bind(&opened.folder, &format!("guest{round}"));
        peer.send_to(&frame(60 + round), opened.path("port")).expect("the port reads");
        assert_eq!(bytes(&opened.receive(1)[0]), frame(60 + round));
        assert_eq!(opened.port.state().link, LinkState::Up);
        drop(peer);
        assert_eq!(opened.port.state().link, LinkState::Down);
    }
}

#[test]
fn others_cannot_send_while_a_peer_is_there() {
    let mut opened = Opened::new("?type=datagram");
    let peer = bind(&opened.folder, "guest");
    peer.send_to(&frame(60), opened.path("port")).expect("the port reads");
    opened.receive(1);
    let other = bind(&opened.folder, "other");
    let refused = other.send_to(&frame(60), opened.path("port")).expect_err("refused");
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    assert!(opened.send(&[&frame(80)]).stopped.is_none());
    assert_eq!(receive_datagram(&peer), frame(80));
}

#[test]
fn datagrams_that_are_no_frames_are_left_out_and_counted() {
    let mut opened = Opened::new("?type=datagram&header=10");
    let peer = bind(&opened.folder, "guest");
    peer.connect(opened.path("port")).expect("the port is there");
    // Empty, shorter than a header, shorter than a frame, too long, with an unusable header.
    let bad_header = [&[0, 99][..], &[0; 98]].concat();
    for bad in [&[][..], &[1; 9], &[0; 23], &[0; 65_546], &[0; 69_700], &bad_header] {
        peer.send(bad).expect("the port reads");
    }
    peer.send(&[&[0; 10][..], &frame(60)].concat()).expect("the port reads");
    assert_eq!(bytes(&opened.receive(1)[0]), frame(60));
    assert_eq!(opened.port.counters().rx_errors, 6);
    // A sender without a path cannot be answered.
    let mut opened = Opened::new("?type=datagram");
    let nameless = UnixDatagram::unbound().expect("a socket");
    nameless.send_to(&frame(60), opened.path("port")).expect("the port reads");
    assert_eq!(opened.poll().expect("the port lives").len(), 0);
    assert_eq!((opened.port.counters().rx_errors, opened.port.state().link), (1, LinkState::Down));
}

#[test]
fn an_empty_frame_is_never_sent() {
    let mut opened = Opened::new("?type=datagram&peer=@/qemu");
    let peer = bind(&opened.folder, "qemu");
    assert_eq!(opened.port.state().link, LinkState::Up);
    let progress = opened.send(&[&[], &frame(60)]);
    assert_eq!(progress.sent, 0);
    assert!(matches!(progress.stopped, Some(StopReason::Refused(_))), "{progress:?}");
    assert!(opened.send(&[&frame(60)]).stopped.is_none());
    assert_eq!(receive_datagram(&peer), frame(60));
}

#[test]
fn frames_wait_for_a_peer_whose_queue_is_full() {
    let mut opened = Opened::new("?type=datagram&peer=@/qemu");
    let peer = bind(&opened.folder, "qemu");
    assert_eq!(opened.port.state().link, LinkState::Up);
    let (mut sent, full) = (0, loop_until_full(&mut opened));
    assert!(matches!(full.1, StopReason::Full), "{full:?}");
    let reader = std::thread::spawn(move || {
        (0..full.0).for_each(|number| assert!(receive_datagram(&peer) == frame(1000 + number % 7)));
    });
    let start = Instant::now();
    while !reader.is_finished() {
        assert!(start.elapsed() < PATIENCE, "{sent} polls");
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let timeout = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let mut ready = [PollFd::from_borrowed_fd(opened.receiver.readiness(), PollFlags::IN)];
        if poll(&mut ready, Some(&timeout)) == Ok(1) {
            let _ = opened.receiver.poll(&mut Vec::new(), 64);
            sent += 1;
        }
    }
    reader.join().expect("all arrived");
}

/// Sends until the port is full. Returns the number of frames sent, and the reason to stop.
fn loop_until_full(opened: &mut Opened) -> (usize, StopReason) {
    for number in 0..100_000 {
        if let Some(stopped) = opened.send(&[&frame(1000 + number % 7)]).stopped {
            return (number, stopped);
        }
    }
    panic!("it is never full");
}

#[test]
fn super_packets_pass_with_a_header() {
    let mut opened = Opened::new("?type=datagram&header=12&peer=@/guest");
    let peer = bind(&opened.folder, "guest");
    assert_eq!(opened.port.state().link, LinkState::Up);
    let frame = superpacket_traffic::frame::Frame::tcp4(1, 30_000)
        .with_checksum(superpacket_traffic::frame::Checksum::Partial);
    let gso = Gso::new(GsoKind::Tcp4, SegmentSize::new(1448).expect("not 0"));
    let partial = RxChecksum::Partial { start: frame.offsets().transport as u16, offset: 16 };
    assert!(opened.send_with(&frame.to_bytes(), partial, Some(gso)).stopped.is_none());
    let sent = receive_datagram(&peer);
    assert_eq!(sent[12..], frame.to_bytes());
    peer.send_to(&sent, opened.path("port")).expect("the port reads");
    let packet = &opened.receive(1)[0];
    assert_eq!((packet.gso, packet.checksum), (Some(gso), partial));
}
