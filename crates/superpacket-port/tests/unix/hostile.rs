//! Peers that break the rules: lengths out of bounds, cut frames, unusable headers, silence.

use superpacket_port::StopReason;

use super::*;

/// Waits until the port has closed the connection.
fn wait_until_closed(opened: &mut Opened, peer: &mut Peer) {
    opened.wait_for(LinkState::Down);
    let mut rest = Vec::new();
    // A reset if bytes were left unread.
    let _ = peer.0.read_to_end(&mut rest);
    assert!(rest.is_empty());
}

#[test]
fn a_length_out_of_bounds_closes_the_connection_and_counts() {
    for (options, header) in [("", 0), ("?header=10", 10), ("?header=12", 12)] {
        let mut opened = Opened::new(options);
        let lengths = [0, 1, 13, 13 + header, 65_536 + header, 1 << 24, u32::MAX];
        for (number, length) in lengths.into_iter().enumerate() {
            let mut peer = opened.connect();
            peer.send(&frame(100 + header as usize));
            opened.receive(1);
            peer.0.write_all(&length.to_be_bytes()).expect("read");
            wait_until_closed(&mut opened, &mut peer);
            assert_eq!(opened.port.counters().rx_errors, number as u64 + 1, "{options} {length}");
        }
        // The next peer is served.
        let mut peer = opened.connect();
        peer.send(&frame(60 + header as usize));
        opened.receive(1);
    }
}

#[test]
fn frames_before_a_wrong_length_arrive() {
    let mut opened = Opened::new("");
    let mut peer = opened.connect();
    let stream = [stream_frame(&frame(100)), stream_frame(&frame(3000)), vec![0; 4]].concat();
    peer.0.write_all(&stream).expect("read");
    let packets = opened.receive(2);
    assert_eq!([bytes(&packets[0]), bytes(&packets[1])], [frame(100), frame(3000)]);
    opened.wait_for(LinkState::Down);
    assert_eq!(opened.port.counters().rx_errors, 1);
}

#[test]
fn a_peer_that_leaves_in_the_middle_of_a_frame_leaves_nothing_behind() {
    let mut opened = Opened::new("");
    for (number, cut) in [1, 3, 4, 5, 17, 1503, 3000, 64_000].into_iter().enumerate() {
        let mut peer = opened.connect();
        let long = stream_frame(&frame(if cut < 1504 { 1500 } else { 65_000 }));
        peer.0.write_all(&long[..cut]).expect("read");
        let _ = opened.receiver.poll(&mut Vec::new(), 64);
        drop(peer);
        opened.wait_for(LinkState::Down);
        assert_eq!(opened.port.counters().rx_errors, number as u64 + 1);
        let mut peer = opened.connect();
        peer.send(&frame(2000));
        assert_eq!(bytes(&opened.receive(1)[0]), frame(2000), "after {cut} bytes");
        drop(peer);
        opened.wait_for(LinkState::Down);
    }
}

#[test]
fn an_unusable_virtio_header_costs_its_frame_only() {
    for header in [10, 12] {
        let mut opened = Opened::new(&format!("?header={header}"));
        let mut peer = opened.connect();
        for length in [100, 3000] {
            // An unknown segmentation type, a checksum behind the end, a segment size of 0.
            for begin in [
                [0, 99, 0, 0, 1, 0, 0, 0, 0, 0],
                [1, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
                [1, 1, 0, 0, 0, 0, 34, 0, 16, 0],
            ] {
                let mut bytes = vec![0xff; header + length];
                bytes[..10].copy_from_slice(&begin);
                peer.send(&bytes);
            }
        }
        peer.send(&[&vec![0; header][..], &frame(60)].concat());
        assert_eq!(bytes(&opened.receive(1)[0]), frame(60));
        assert_eq!(opened.port.counters().rx_errors, 6);
        assert_eq!(opened.port.state().link, LinkState::Up);
    }
}

#[test]
fn unusable_headers_count_towards_the_limit_of_a_poll() {
    let mut opened = Opened::new("?header=10");
    let mut peer = opened.connect();
    for length in [100, 3000] {
        let before = opened.port.counters().rx_errors;
        let bad = [&[0, 99][..], &vec![0; 8 + length]].concat();
        (0..20).for_each(|_| peer.send(&bad));
        let mut packets = Vec::new();
        for polls in 1..=4 {
            opened.receiver.poll(&mut packets, 5).expect("the port lives");
            assert_eq!(opened.port.counters().rx_errors, before + 5 * polls);
        }
        assert!(packets.is_empty());
    }
    peer.send(&[&[0; 10][..], &frame(60)].concat());
    assert_eq!(bytes(&opened.receive(1)[0]), frame(60));
}

#[test]
fn single_bytes_end_a_poll_all_the_same() {
    let mut opened = Opened::new("");
    let peer = opened.connect();
    let mut socket = peer.0.try_clone().expect("a socket");
    let writer = std::thread::spawn(move || {
        stream_frame(&frame(20_000))
            .iter()
            .for_each(|byte| socket.write_all(&[*byte]).expect("read"))
    });
    assert_eq!(bytes(&opened.receive(1)[0]), frame(20_000));
    writer.join().expect("all was written");
}

/// Returns pseudo-random bytes.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

#[test]
fn garbage_harms_nobody() {
    for options in ["", "?header=10", "?header=12&offload=on", "?offload=on"] {
        let mut opened = Opened::new(options);
        for seed in 1..200 {
            let mut peer = opened.connect();
            let length = 14 + 12 + (seed as usize * 37) % 5000;
            let mut garbage = noise(seed, length);
            if seed % 2 == 0 {
                // Something that looks like TCP over IPv4, so that it is looked into.
                let ip = [8, 0, 0x45, 0, 0xff, 0xff, 0, 0, 0x40, 0, 64, 6];
                let begin = if options.contains("header") { &options[8..10] } else { "0" };
                let begin: usize = begin.parse().expect("a number");
                garbage[begin + 12..begin + 24].copy_from_slice(&ip);
            }
            peer.send(&garbage);
            peer.0.write_all(&noise(seed + 1000, 300)).expect("read");
            drop(peer);
            let start = Instant::now();
            while opened.port.state().link == LinkState::Up {
                let _ = opened.receiver.poll(&mut Vec::new(), 64);
                assert!(start.elapsed() < PATIENCE);
            }
        }
        let mut peer = opened.connect();
        let header =
            if options.contains("header") { options[8..10].parse().unwrap_or(0) } else { 0 };
        peer.send(&[&vec![0; header][..], &frame(60)].concat());
        assert_eq!(bytes(&opened.receive(1)[0]), frame(60), "{options}");
    }
}

#[test]
fn a_peer_that_never_reads_fills_its_own_queue_only() {
    let mut opened = Opened::new("");
    let mut peer = opened.connect();
    let (mut sent, mut number) = (0, 0);
    let full = loop {
        let progress = opened.send(&[&frame(1514 - number % 3)]);
        sent += progress.sent;
        number += 1;
        if let Some(stopped) = progress.stopped {
            break stopped;
        }
        assert!(number < 100_000, "it is never full");
    };
    assert!(matches!(full, StopReason::Full), "{full:?}");
    assert!(opened.port.counters().tx_full > 0);
    // It still sends.
    peer.send(&frame(100));
    assert_eq!(bytes(&opened.receive(1)[0]), frame(100));
    // What was accepted arrives, in order, although nothing else is sent.
    let reader = std::thread::spawn(move || {
        (0..sent).for_each(|number| assert!(peer.receive() == frame(1514 - number % 3)));
        peer
    });
    let start = Instant::now();
    while !reader.is_finished() {
        assert!(start.elapsed() < PATIENCE);
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let timeout = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let mut ready = [PollFd::from_borrowed_fd(opened.receiver.readiness(), PollFlags::IN)];
        if poll(&mut ready, Some(&timeout)) == Ok(1) {
            let _ = opened.receiver.poll(&mut Vec::new(), 64);
        }
    }
    let peer = reader.join().expect("all arrived");
    let mut packets = Vec::new();
    opened.receiver.poll(&mut packets, 64).expect("nothing arrives");
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut ready = [PollFd::from_borrowed_fd(opened.receiver.readiness(), PollFlags::IN)];
    assert_eq!(poll(&mut ready, Some(&Timespec::default())), Ok(0), "the port is idle");
    drop(peer);
}

#[test]
fn a_peer_that_never_reads_and_leaves_is_followed_by_another() {
    let mut opened = Opened::new("");
    let peer = opened.connect();
    while opened.send(&[&frame(1514)]).stopped.is_none() {}
    drop(peer);
    opened.wait_for(LinkState::Down);
    assert!(matches!(opened.send(&[&frame(60)]).stopped, Some(StopReason::Down)));
    let mut peer = opened.connect();
    assert!(opened.send(&[&frame(60)]).stopped.is_none());
    assert_eq!(peer.receive(), frame(60), "nothing is left of the frames for the first one");
}

#[test]
fn frames_wait_in_the_stream_while_all_slots_are_lent() {
    let mut opened = Opened::new("");
    let mut peer = opened.connect();
    let sender = std::thread::spawn(move || {
        (0..200).for_each(|number| peer.send(&frame(60_000 + number)));
        peer
    });
    let mut lent = opened.receive(64);
    assert!(opened.receiver.is_crowded());
    assert_eq!(opened.poll().expect("the port lives").len(), 0, "no slot is free");
    let mut number = 0;
    while number < 200 {
        for packet in std::mem::take(&mut lent) {
            assert!(bytes(&packet) == frame(60_000 + number));
            number += 1;
        }
        if number < 200 {
            lent = opened.receive(1);
        }
    }
    drop(sender.join().expect("all were sent"));
}

#[test]
fn a_poll_delivers_no_more_than_wanted_and_the_rest_stays_readable() {
    let mut opened = Opened::new("");
    let mut peer = opened.connect();
    (0..10).for_each(|number| peer.send(&frame(60 + number)));
    for number in 0..10 {
        let mut packets = Vec::new();
        assert_eq!(opened.receiver.poll(&mut packets, 1).expect("the port lives"), 1);
        assert_eq!(bytes(&packets[0]), frame(60 + number));
    }
    assert_eq!(opened.receiver.poll(&mut Vec::new(), 1).expect("the port lives"), 0);
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut ready = [PollFd::from_borrowed_fd(opened.receiver.readiness(), PollFlags::IN)];
    assert_eq!(poll(&mut ready, Some(&Timespec::default())), Ok(0), "all is delivered");
}
