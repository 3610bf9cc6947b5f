//! Super-packets that are sent whole, refused, or malformed.

use superpacket::aggregate::MAX_IP_LENGTH;
use superpacket::packet::{RxChecksum, RxPacket};
use superpacket::segment::{Gso, GsoKind, GsoPacket, SegmentOptions, SegmentSize, Segmenter};
use superpacket_port::{Buffer, Outgoing, StopReason, TxBatch};
use superpacket_traffic::frame::{Checksum, Frame};
use superpacket_traffic::workload::{TCP_PAYLOAD, UDP_PAYLOAD, w4, w5_super};

use super::open_port::{OpenPort, bytes, push};
use super::witness::{ETHTOOL_STXCSUM, Witness, set_offload};
use super::{frame, pair};
use crate::support::in_namespace;

const TCP: RxChecksum = RxChecksum::Partial { start: 34, offset: 16 };
const UDP: RxChecksum = RxChecksum::Partial { start: 34, offset: 6 };

fn gso(kind: GsoKind, size: usize) -> Gso {
    Gso::new(kind, SegmentSize::new(size).expect("in range"))
}

/// A virtio header with NEEDS_CSUM: `gso_type`, `hdr_len`, `gso_size`, `csum_start`, `csum_offset`.
pub fn header(kind: u8, length: u16, size: usize, start: u16, offset: u16) -> [u8; 10] {
    let numbers = [length, size as u16, start, offset].map(u16::to_ne_bytes).concat();
    [&[1, kind], &numbers[..]].concat().try_into().expect("10 bytes")
}

#[test]
fn super_packets_cross_as_one_in_each_direction() {
    for version in ["v2", "v3"] {
        in_namespace(move || {
            pair();
            let mut port = OpenPort::new(&format!("packet:port0?version={version}"));
            let witness = Witness::open("peer0");
            let (tcp, udp) =
                (w4(1, Checksum::Partial).remove(0), w5_super(1, Checksum::Partial).remove(0));
            let small = frame(1, 60);
            let progress = port.send_with(&[
                (&tcp, TCP, Some(gso(GsoKind::Tcp4, TCP_PAYLOAD))),
                (&small, RxChecksum::None, None),
                (&udp, UDP, Some(gso(GsoKind::Udp, UDP_PAYLOAD))),
            ]);
            assert!(progress.sent == 3 && progress.stopped.is_none(), "{progress:?}");
            let [first, second, third] = [(); 3].map(|()| witness.receive());
            assert_eq!((first.kind, first.numbers), ((1, 1), (TCP_PAYLOAD as u16, 34, 16)));
            assert_eq!(second.kind.1, 0);
            assert_eq!((third.kind, third.numbers), ((1, 5), (UDP_PAYLOAD as u16, 34, 6)));
            assert!(first.bytes == tcp && second.bytes == small && third.bytes == udp);
            witness.send(header(1, 66, TCP_PAYLOAD, 34, 16), &tcp);
            witness.send([0; 10], &small);
            witness.send(header(5, 42, UDP_PAYLOAD, 34, 6), &udp);
            let received = port.receive(3);
            assert!(bytes(&received) == [tcp, small, udp]);
            let size = |bytes| SegmentSize::new(bytes).expect("in range");
            assert_eq!(received[0].gso, Some(Gso::new(GsoKind::Tcp4, size(TCP_PAYLOAD))));
            assert_eq!(received[2].gso, Some(Gso::new(GsoKind::Udp, size(UDP_PAYLOAD))));
            assert_eq!(
                received.iter().map(|packet| packet.checksum).collect::<Vec<_>>(),
                [TCP, RxChecksum::None, UDP]
            );
        });
    }
}

#[test]
fn a_super_packet_s_tag_is_stripped_and_put_back() {
    in_namespace(|| {
        pair();
        let mut port = OpenPort::new("packet:port0");
        let witness = Witness::open("peer0");
        let tcp = w4(1, Checksum::Partial).remove(0);
        let tagged = [&tcp[..12], &[0x81, 0, 0x20, 0x64], &tcp[12..]].concat();
        witness.send(header(1, 70, TCP_PAYLOAD, 38, 16), &tagged);
        let mut received = port.receive(1);
        assert!(bytes(&received)[0] == tcp);
        let tag = superpacket::packet::VlanTag { protocol: 0x8100, control: 0x2064 };
        assert_eq!(
            (received[0].vlan, received[0].checksum),
            (Some(tag), TCP),
            "the checksum starts where it does without the tag"
        );
        let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
        push(&mut received, &mut outgoing, &mut batch, 1023);
        assert_eq!(batch.frames()[0].checksum, RxChecksum::Partial { start: 38, offset: 16 });
        assert_eq!(port.transmitter.transmit(&outgoing, &batch, 0).sent, 1);
        let seen = witness.receive();
        assert_eq!(
            (seen.kind, seen.numbers, seen.tag),
            ((1, 1), (TCP_PAYLOAD as u16, 34, 16), Some((0x8100, 0x2064)))
        );
        assert!(seen.bytes == tcp);
    });
}

#[test]
fn what_the_device_lacks_the_kernel_does() {
    in_namespace(|| {
        pair();
        let mut port = OpenPort::new("packet:port0");
        let witness = Witness::open("peer0");
        let partial = Frame::tcp4(1, 100).with_checksum(Checksum::Partial).to_bytes();
        assert_eq!(port.send_with(&[(&partial, TCP, None)]).sent, 1);
        let seen = witness.receive();
        assert!(
            (seen.kind, seen.numbers) == ((1, 0), (0, 34, 16)) && seen.bytes == partial,
            "left to whoever receives it"
        );
        set_offload("port0", ETHTOOL_STXCSUM, false);
        assert_eq!(port.send_with(&[(&partial, TCP, None)]).sent, 1);
        let seen = witness.receive();
        assert!(seen.kind.0 & 1 == 0 && seen.bytes == Frame::tcp4(1, 100).to_bytes(), "{seen:?}");
        let tcp = w4(1, Checksum::Partial).remove(0);
        assert_eq!(port.send_with(&[(&tcp, TCP, Some(gso(GsoKind::Tcp4, TCP_PAYLOAD)))]).sent, 1);
        let segments: Vec<_> = (0..45).map(|_| witness.receive()).collect();
        assert!(
            segments.iter().all(|seen| seen.kind.1 == 0 && seen.bytes.len() == 66 + TCP_PAYLOAD)
        );
        let payload: Vec<u8> =
            segments.iter().flat_map(|seen| &seen.bytes[66..]).copied().collect();
        assert!(payload == tcp[66..]);
    });
}

#[test]
fn a_super_packet_of_more_slices_than_a_message_takes_is_sent_in_one_piece() {
    in_namespace(|| {
        pair();
        let mut port = OpenPort::new("packet:port0");
        let witness = Witness::open("peer0");
        let whole = Frame::tcp4(7, 48 * 1300).with_checksum(Checksum::Partial).to_bytes();
        let cut = gso(GsoKind::Tcp4, 48).with_checksum(superpacket::segment::ChecksumForm::Partial);
        let mut segments = Vec::new();
        let mut segmenter = Segmenter::new();
        let slices = [&whole[..]];
        let packet = GsoPacket::new(&slices, cut).with_checksum(TCP);
        let done = segmenter.segment(&packet, &SegmentOptions::default(), |segment| {
            let mut bytes = segment.header().to_vec();
            segment.payload().for_each(|part| bytes.extend_from_slice(part));
            segments.push(RxPacket::new(Buffer::from(bytes)));
        });
        done.expect("it can be cut");
        assert_eq!(segments.len(), 1300);
        let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
        push(&mut segments, &mut outgoing, &mut batch, port.port.capabilities().max_slices);
        assert_eq!(batch.frames().len(), 1, "they merge to one of {} bytes at most", MAX_IP_LENGTH);
        assert_eq!(batch.slices(&batch.frames()[0]).len(), 1, "too many to be gathered");
        let progress = port.transmitter.transmit(&outgoing, &batch, 0);
        assert!(progress.sent == 1, "{progress:?}");
        let seen = witness.receive();
        assert_eq!((seen.kind, seen.numbers.0), ((1, 1), 48));
        assert!(seen.bytes[66 - 12..] == whole[66 - 12..] && seen.bytes.len() == whole.len());
    });
}

#[test]
fn the_most_slices_are_gathered() {
    in_namespace(|| {
        pair();
        let mut port = OpenPort::new("packet:port0");
        let witness = Witness::open("peer0");
        // 1,022 segments and a header.
        let first = Frame::tcp4(7, 60);
        let frames: Vec<_> = first.run(1022).iter().map(Frame::to_bytes).collect();
        let mut packets: Vec<_> =
            frames.iter().map(|frame| RxPacket::new(Buffer::from(frame.clone()))).collect();
        let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
        push(&mut packets, &mut outgoing, &mut batch, port.port.capabilities().max_slices);
        assert_eq!(batch.slices(&batch.frames()[0]).len(), 1023);
        let progress = port.transmitter.transmit(&outgoing, &batch, 0);
        assert!(progress.sent == 1 && progress.stopped.is_none(), "{progress:?}");
        let payload = frames.iter().flat_map(|frame| &frame[54..]).copied().collect::<Vec<_>>();
        assert!(witness.receive().bytes[54..] == payload);
    });
}

#[test]
fn what_no_header_can_say_is_refused_and_the_rest_is_not_sent() {
    in_namespace(|| {
        pair();
        let mut port = OpenPort::new("packet:port0");
        let witness = Witness::open("peer0");
        let (tcp, small) = (w4(1, Checksum::Partial).remove(0), frame(1, 60));
        for (checksum, wrong) in
            [(TCP, GsoKind::Dccp), (RxChecksum::None, GsoKind::Tcp4), (TCP, GsoKind::Tcp6)]
        {
            let frames: [(&[u8], _, _); 3] = [
                (&small, RxChecksum::None, None),
                (&tcp, checksum, Some(gso(wrong, TCP_PAYLOAD))),
                (&small, RxChecksum::None, None),
            ];
            let progress = port.send_with(&frames);
            assert!(
                progress.sent == 1 && matches!(progress.stopped, Some(StopReason::Offload(_))),
                "{progress:?}"
            );
            assert!(witness.receive().bytes == small);
        }
        assert_eq!(port.port.counters().tx_refused, 3);
    });
}

#[test]
fn what_the_kernel_refuses_of_a_partial_checksum_is_an_offload_s_fault() {
    in_namespace(|| {
        pair();
        let mut port = OpenPort::new("packet:port0");
        // As long as the MTU allows only with segmentation: a checksum does not help.
        let long = Frame::tcp4(1, 3000).with_checksum(Checksum::Partial).to_bytes();
        let progress = port.send_with(&[(&long, TCP, None)]);
        assert!(
            progress.sent == 0
                && matches!(progress.stopped, Some(StopReason::Offload(_) | StopReason::TooLong)),
            "{progress:?}"
        );
    });
}

#[test]
fn a_header_that_contradicts_its_frame_is_left_out() {
    for version in ["v2", "v3"] {
        in_namespace(move || {
            pair();
            let mut port = OpenPort::new(&format!("packet:port0?version={version}"));
            let witness = Witness::open("peer0");
            let mut tcp = w4(1, Checksum::Partial).remove(0);
            // A fragment is no super-packet: the kernel passes it on.
            tcp[20] |= 0x20;
            witness.send(header(1, 66, TCP_PAYLOAD, 34, 16), &tcp);
            witness.send([0; 10], &frame(2, 70));
            assert!(bytes(&port.receive(1)) == [frame(2, 70)]);
            assert_eq!(port.port.counters().rx_errors, 1);
            port.receivers[0].give_back();
            assert!(!port.receivers[0].is_crowded());
        });
    }
}
