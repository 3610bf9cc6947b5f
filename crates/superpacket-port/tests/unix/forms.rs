//! The forms of frames: with a virtio header of both lengths, without, and super-packets whose
//! header was stripped.

use superpacket::Simd;
use superpacket::checksum::complete_partial;
use superpacket::packet::RxChecksum;
use superpacket::segment::{Gso, GsoKind, SegmentSize};
use superpacket::virtio::{ByteOrder, Format, Header, Offload};
use superpacket_port::StopReason;
use superpacket_port::features::Feature;
use superpacket_traffic::frame::{Checksum, Frame};

use super::*;

/// Lengths around those of a small slot with each header, and the shortest and the longest.
const LENGTHS: [usize; 14] =
    [14, 15, 60, 1514, 2087, 2088, 2098, 2100, 2111, 2112, 2113, 4096, 9014, 65_535];

fn gso(kind: GsoKind, size: usize) -> Gso {
    Gso::new(kind, SegmentSize::new(size).expect("not 0"))
}

fn partial(frame: &Frame) -> RxChecksum {
    RxChecksum::Partial { start: frame.offsets().transport as u16, offset: 16 }
}

#[test]
fn frames_pass_a_stream_both_ways_bit_for_bit() {
    for options in ["?mtu=9000", "?header=10", "?header=12", "?offload=on"] {
        let mut opened = Opened::new(options);
        let mut peer = opened.connect();
        let header = if options.contains("header") { &options[8..10] } else { "0" };
        let header = vec![0u8; header.parse().expect("a number")];
        for length in LENGTHS {
            peer.send(&[&header[..], &frame(length)].concat());
            let packets = opened.receive(1);
            assert_eq!(bytes(&packets[0]), frame(length), "{options}: {length} bytes to the port");
            assert_eq!(
                (packets[0].layer, packets[0].checksum, packets[0].gso),
                (Layer::Ethernet, RxChecksum::None, None)
            );
            assert!(opened.send(&[&frame(length)]).stopped.is_none());
            let received = peer.receive();
            assert_eq!(received[header.len()..], frame(length), "{options}: {length} bytes");
            if header.len() == 12 {
                assert_eq!(received[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0], "num_buffers");
            } else {
                assert_eq!(received[..header.len()], header);
            }
        }
        assert_eq!(opened.port.counters().rx_errors, 0);
    }
}

#[test]
fn a_stream_may_be_cut_anywhere() {
    let mut opened = Opened::new("?header=12");
    let peer = opened.connect();
    let frames: Vec<_> =
        LENGTHS.iter().map(|&length| [&[0; 12][..], &frame(length)].concat()).collect();
    for piece in [1, 3, 4, 5, 17, 1000, 2112, 4097, 70_000] {
        // Single bytes of all frames would take long.
        let frames = if piece < 10 { &frames[..7] } else { &frames[..] };
        let stream: Vec<u8> = frames.iter().flat_map(|frame| stream_frame(frame)).collect();
        let mut socket = peer.0.try_clone().expect("a socket");
        let sender = std::thread::spawn(move || {
            stream.chunks(piece).for_each(|part| socket.write_all(part).expect("read"))
        });
        for (packet, expected) in opened.receive(frames.len()).iter().zip(frames) {
            assert_eq!(bytes(packet), expected[12..], "pieces of {piece} bytes");
        }
        sender.join().expect("all was written");
    }
}

#[test]
fn virtio_headers_carry_super_packets_and_partial_checksums() {
    let super_packet = Frame::tcp4(1, 5000).with_checksum(Checksum::Partial);
    let short = Frame::tcp6(1, 700).with_checksum(Checksum::Partial);
    for (options, format) in [("?header=10", Format::Plain), ("?header=12", Format::Buffers)] {
        let mut opened = Opened::new(options);
        let mut peer = opened.connect();
        for (frame, gso) in [(&super_packet, Some(gso(GsoKind::Tcp4, 1000))), (&short, None)] {
            let plain = frame.to_bytes();
            let offload = Offload::new(partial(frame), gso);
            let header = Header::describe(&offload, format, &plain, plain.len(), Layer::Ethernet)
                .expect("virtio can say it");
            let mut described = vec![0; format.length()];
            header.write(&mut described, format, ByteOrder::Little).expect("fits");
            let sent = [&described[..], &plain].concat();
            peer.send(&sent);
            let packet = &opened.receive(1)[0];
            assert_eq!((packet.checksum, packet.gso), (offload.checksum, gso), "{options}");
            assert_eq!(bytes(packet), plain);
            assert!(opened.send_with(&plain, offload.checksum, gso).stopped.is_none());
            assert_eq!(peer.receive(), sent, "{options}");
        }
        let features = opened.port.capabilities().features;
        assert!(features.contains(Feature::TcpSegmentationOffload));
        assert!(!features.contains(Feature::TxUdpSegmentation), "old guests cannot");
    }
}

/// libkrun with offloads removes the virtio header: the frame is longer than the MTU, nothing tells
/// its segment size, and its checksum is partial (older) or complete (newer).
#[test]
fn a_stripped_super_packet_is_recognized_whatever_its_checksum() {
    for (frame, kind, size) in [
        (Frame::tcp4(1, 20_000), GsoKind::Tcp4, 1460),
        (Frame::tcp6(1, 20_000), GsoKind::Tcp6, 1440),
        (
            Frame::tcp4(1, 20_000).with(|frame| frame.vlans = vec![Default::default()]),
            GsoKind::Tcp4,
            1460,
        ),
    ] {
        let expected = frame.clone().with_checksum(Checksum::Partial);
        for checksum in [Checksum::Partial, Checksum::Right, Checksum::Raw(0x1234)] {
            let mut opened = Opened::new("");
            let mut peer = opened.connect();
            peer.send(&frame.clone().with_checksum(checksum).to_bytes());
            let packet = &opened.receive(1)[0];
            assert_eq!(packet.gso, Some(gso(kind, size)));
            assert_eq!(packet.checksum, partial(&expected));
            assert_eq!(bytes(packet), expected.to_bytes());
        }
    }
}

#[test]
fn stripped_short_packets_are_recognized_by_their_partial_checksum() {
    let mut opened = Opened::new("");
    let mut peer = opened.connect();
    for frame in [Frame::tcp4(1, 0), Frame::tcp4(1, 700), Frame::tcp6(1, 701)] {
        peer.send(&frame.clone().with_checksum(Checksum::Partial).to_bytes());
        peer.send(&frame.to_bytes());
        let packets = opened.receive(2);
        assert_eq!((packets[0].checksum, packets[0].gso), (partial(&frame), None));
        assert_eq!((packets[1].checksum, packets[1].gso), (RxChecksum::None, None));
        let mut completed = bytes(&packets[0]);
        let RxChecksum::Partial { start, offset } = packets[0].checksum else { panic!("partial") };
        complete_partial(&mut completed, Layer::Ethernet, start, offset, Simd::detect())
            .expect("lies in the frame");
        assert_eq!(completed, frame.to_bytes());
    }
    // A datagram without a checksum stays without.
    let without = Frame::udp4(100).with_checksum(Checksum::Zero).to_bytes();
    peer.send(&without);
    let packet = &opened.receive(1)[0];
    assert_eq!((packet.checksum, bytes(packet)), (RxChecksum::None, without));
}

#[test]
fn a_peer_without_header_that_takes_super_packets_gets_complete_checksums() {
    let mut opened = Opened::new("?offload=on");
    let mut peer = opened.connect();
    for (frame, gso) in [
        (Frame::tcp4(1, 20_000), Some(gso(GsoKind::Tcp4, 1000))),
        (Frame::tcp6(1, 20_001), Some(gso(GsoKind::Tcp6, 1000))),
        (Frame::tcp4(1, 101), None),
    ] {
        let sent = frame.clone().with_checksum(Checksum::Partial).to_bytes();
        assert!(opened.send_with(&sent, partial(&frame), gso).stopped.is_none());
        assert_eq!(peer.receive(), frame.to_bytes());
    }
    let plain = Opened::new("");
    let features = plain.port.capabilities().features;
    for feature in [Feature::TxChecksumming, Feature::TcpSegmentationOffload] {
        assert!(!features.contains(feature), "{feature} is not for a peer that says nothing");
    }
}

#[test]
fn a_frame_that_no_peer_would_accept_is_too_long() {
    let mut opened = Opened::new("?mtu=65535");
    let mut peer = opened.connect();
    let progress = opened.send(&[&frame(100), &frame(65_536), &frame(200)]);
    assert_eq!(progress.sent, 1);
    assert!(matches!(progress.stopped, Some(StopReason::TooLong)), "{progress:?}");
    assert_eq!(peer.receive(), frame(100));
}

#[test]
fn a_batch_of_thousands_of_frames_arrives_in_order() {
    let mut opened = Opened::new("");
    let mut peer = opened.connect();
    let frames: Vec<_> = (0..3000).map(|number| frame(14 + number % 1500)).collect();
    let slices: Vec<_> = frames.iter().map(Vec::as_slice).collect();
    let reader = std::thread::spawn(move || (0..3000).map(|_| peer.receive()).collect::<Vec<_>>());
    let mut sent = 0;
    let start = Instant::now();
    while sent < frames.len() {
        sent += opened.send(&slices[sent..]).sent;
        assert!(start.elapsed() < PATIENCE);
    }
    while !reader.is_finished() {
        // Sends what waits for room.
        let _ = opened.receiver.poll(&mut Vec::new(), 64);
        std::thread::sleep(Duration::from_millis(1));
        assert!(start.elapsed() < PATIENCE);
    }
    assert!(reader.join().expect("all arrived") == frames);
}
