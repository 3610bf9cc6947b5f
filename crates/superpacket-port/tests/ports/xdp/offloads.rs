//! Tests of frames' metadata: flow hash, checksum state, and the port's capabilities.

use std::collections::HashSet;
use std::net::UdpSocket;

use superpacket::Simd;
use superpacket::checksum::{Sum, pseudo_header, sum_ranges};
use superpacket::packet::{Layer, RxChecksum};
use superpacket::wire::IpVersion;
use superpacket_port::features::Feature;
use superpacket_port::xdp::XdpPort;
use superpacket_port::{Outgoing, Port, PortError, TxBatch};

use super::{Passage, datagram, frame, has_program, open, receiver, refused, send_all, with_links};
use crate::cable::{bytes, receive};
use crate::packet::witness::{ETHTOOL_STXCSUM, Witness, set_offload};
use crate::support::{PacketSocket, ip, not_built_in};

/// The XDP program asks the driver for the hash, and stores it before each frame.
#[test]
fn the_driver_is_asked_for_the_flow_hash() {
    with_links(1500, || {
        let port = match XdpPort::open(&"xdp:a1?hash=on".parse().expect("a port string")) {
            Err(PortError::Unsupported { reason, .. })
                if reason.contains("hash=on needs Linux 6.3") =>
            {
                return not_built_in(&reason);
            }
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
                        let (flow, hash) =
                            (usize::from(frame[35]), packet.hash.expect("a flow has a hash"));
                        assert_eq!(
                            frame,
                            datagram(flow as u8),
                            "nothing else of the frame has changed"
                        );
                        flows.insert(hash.0);
                        if round == 0 {
                            assert_eq!(flow, hashes.len(), "in order");
                            hashes.push(hash);
                        }
                        assert_eq!(hashes[flow], hash, "a flow has the same hash each time");
                    }
                    // The kernel hashes what it knows by addresses: the same for all that have the
                    // same.
                    _ => assert!(
                        packet.hash.is_none_or(|hash| !flows.contains(&hash.0)),
                        "no flow's hash"
                    ),
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
                let pseudo =
                    pseudo_header(&frame[14..], IpVersion::V4, protocol, (frame.len() - 34) as u32);
                let sum = sum_ranges(Simd::scalar(), [&frame[34..]]);
                assert!(!pseudo.add(sum).is_valid(), "the other end left it unfinished");
                states.push((partial, protocol, packet.checksum));
                if let RxChecksum::Partial { start, offset: found } = packet.checksum {
                    assert_eq!((start, found), (34, offset));
                    // Filled in as a device would: over the field as it is.
                    let mut filled = frame.clone();
                    let place = 34 + usize::from(offset);
                    filled[place..place + 2]
                        .copy_from_slice(&Sum::new(sum).checksum().to_be_bytes());
                    assert!(pseudo.add(sum_ranges(Simd::scalar(), [&filled[34..]])).is_valid());
                }
            }
        }
        let recognized =
            |state: &&(&str, u8, RxChecksum)| matches!(state.2, RxChecksum::Partial { .. });
        assert_eq!(
            states
                .iter()
                .filter(recognized)
                .map(|state| (state.0, state.1))
                .collect::<HashSet<_>>()
                .len(),
            4,
            "{states:?}"
        );
        assert!(
            states.iter().all(|state| (state.0 == "off") == (state.2 == RxChecksum::None)),
            "{states:?}"
        );
    });
}

/// Sends what the other end's stack left to its device on to a second device: as it was received,
/// and copied. The second device's other end sees it as it was, or completed by the kernel.
#[test]
fn unfinished_checksums_are_left_to_the_device() {
    with_links(9000, || {
        ip("addr add 192.0.2.1/24 dev a0");
        ip("neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev a0");
        let sender = UdpSocket::bind("192.0.2.1:0").expect("the address is ours");
        for options in ["?mode=native", "?mode=generic", "?gather=on"] {
            set_offload("b1", ETHTOOL_STXCSUM, true);
            let (mut one, mut other) =
                (open(&format!("xdp:a1{options}")), open(&format!("xdp:b1{options}")));
            if !other.capabilities().features.contains(Feature::TxChecksumming) {
                return not_built_in("requests to an AF_XDP port's device (Linux 6.8)");
            }
            let (mut receiver, mut transmitter) =
                (receiver(&mut one), other.transmitter().expect("one"));
            let witness = Witness::open("b0");
            let (mut passage, mut outgoing, mut batch) =
                (Passage::new(), Outgoing::new(), TxBatch::new());
            for device in [true, false] {
                set_offload("b1", ETHTOOL_STXCSUM, device);
                // In one chunk; in two that fit one; in several.
                for length in [333, 1760, 8000] {
                    sender.send_to(&vec![7; length], "192.0.2.2:9").expect("sent");
                    let mut packets = receive(&mut *receiver, 1);
                    let (sent, checksum) = (bytes(&packets[0]), packets[0].checksum);
                    assert_eq!(checksum, RxChecksum::Partial { start: 34, offset: 6 });
                    batch.push_bytes(&mut outgoing, &sent, checksum, None, Layer::Ethernet);
                    passage.pass(&mut packets, &mut *transmitter);
                    send_all(&mut *transmitter, &outgoing, &batch);
                    outgoing.clear();
                    batch.clear();
                    receiver.give_back();
                    for way in ["as received", "copied"] {
                        let what = format!("{length} bytes {way}, {other}, by device {device}");
                        let seen = witness.receive();
                        if device {
                            assert_eq!(seen.kind.0 & 1, 1, "{what}");
                            assert_eq!((seen.numbers.1, seen.numbers.2), (34, 6), "{what}");
                            assert_eq!(seen.bytes, sent, "{what}");
                        } else {
                            assert_eq!(seen.kind.0 & 1, 0, "{what}");
                            let transport = seen.bytes.len() as u32 - 34;
                            let pseudo =
                                pseudo_header(&seen.bytes[14..], IpVersion::V4, 17, transport);
                            let sum = sum_ranges(Simd::scalar(), [&seen.bytes[34..]]);
                            assert!(pseudo.add(sum).is_valid(), "{what}");
                            assert_eq!(seen.bytes[42..], sent[42..], "{what}");
                        }
                    }
                }
            }
            let statistics = other.statistics();
            assert!(statistics.sent_in_place >= 4, "{statistics:?}");
            assert_eq!((statistics.tx_invalid, statistics.tx_refused), (0, 0), "{statistics:?}");
        }
    });
}

#[test]
fn capabilities_are_those_of_af_xdp() {
    with_links(1500, || {
        let port = open("xdp:a1");
        let capabilities = port.capabilities();
        for feature in
            [Feature::TcpSegmentationOffload, Feature::TxUdpSegmentation, Feature::ReceiveHashing]
        {
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
