//! Tests of frames' metadata: flow hash, checksum state, and the port's capabilities.

use std::collections::HashSet;
use std::net::UdpSocket;

use superpacket::Simd;
use superpacket::checksum::{Sum, pseudo_header, sum_ranges};
use superpacket::packet::{Layer, RxChecksum};
use superpacket::wire::IpVersion;
use superpacket_port::features::Feature;
use superpacket_port::xdp::XdpPort;
use superpacket_port::{Port, PortError};

use super::{datagram, frame, has_program, open, receiver, refused, with_links};
use crate::cable::receive;
use crate::frames::bytes;
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

#[test]
fn capabilities_are_those_of_af_xdp() {
    with_links(1500, || {
        let port = open("xdp:a1");
        let capabilities = port.capabilities();
        for feature in [
            Feature::TxChecksumming,
            Feature::TcpSegmentationOffload,
            Feature::TxUdpSegmentation,
            Feature::ReceiveHashing,
        ] {
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
