//! The outer UDP checksum of a super-packet in a tunnel behind a header of 24 bytes: the sum of the
//! pseudo-header, to which Linux adds what each segment has. Whichever form it has, the segments
//! are the same.

use superpacket::aggregate::{Policy, Storage};
use superpacket::segment::Segmenter;
use superpacket::virtio::{ByteOrder, Format, Framing, Header, Offload, flags};
use superpacket::{Layer, RxPacket};
use superpacket_traffic::checksum::{pseudo_v4, pseudo_v6};
use superpacket_traffic::frame::{Checksum, Frame, Ip};

use super::traffic::KEY;
use crate::support::{BatchAggregator, PARTIAL_GRO_UDP, unknown};

fn framing(layer: Layer) -> Framing {
    Framing::new(Format::Tunnel, ByteOrder::Little, layer)
}

/// Packets of one flow in each kind of tunnel in UDP, with this outer checksum.
fn flows(outer: Checksum) -> Vec<Vec<Frame>> {
    let inner = [Frame::tcp4(1, 500), Frame::tcp6(1, 500), Frame::udp4(500), Frame::udp6(500)];
    let tunnels: [fn(Frame) -> Frame; 4] =
        [Frame::in_vxlan4, Frame::in_vxlan6, Frame::in_geneve, Frame::in_geneve6];
    let in_tunnels =
        inner.iter().flat_map(|inner| tunnels.iter().map(|through| through(inner.clone())));
    let with_checksum = in_tunnels.map(|frame| frame.with_outer_checksum(outer));
    with_checksum.flat_map(|frame| [frame.clone().at_ip().run(4), frame.run(4)]).collect()
}

/// Where the outer checksum of a packet lies, and the sum of its pseudo-header.
fn expected(frame: &Frame, length: usize) -> (usize, u16) {
    let network = frame.offsets().outer.expect("a tunnel");
    let (transport, sum) = match &frame.tunnel.as_ref().expect("a tunnel").ip {
        Ip::V4(ip) => {
            (network + 20, pseudo_v4(ip.source, ip.destination, 17, (length - network - 20) as u32))
        }
        Ip::V6(ip) => {
            (network + 40, pseudo_v6(ip.source, ip.destination, 17, (length - network - 40) as u32))
        }
    };
    (transport + 6, sum)
}

fn layer(frame: &Frame) -> Layer {
    if frame.link.is_some() { Layer::Ethernet } else { Layer::Ip }
}

fn field(bytes: &[u8], place: usize) -> u16 {
    u16::from_be_bytes([bytes[place], bytes[place + 1]])
}

/// What a write and a join in place give of one flow, header and packet.
fn framed(frames: &[Frame]) -> [Vec<u8>; 2] {
    let framing = framing(layer(&frames[0]));
    let packets: Vec<_> = frames.iter().map(Frame::to_bytes).collect();
    let mut aggregator = BatchAggregator::framed(framing, Policy::gro_with_udp(), KEY);
    let mut gathered = Vec::new();
    aggregator.poll_gathered(&packets, |slices| {
        gathered.push(slices.iter().flat_map(|slice| slice.iter().copied()).collect::<Vec<_>>())
    });
    assert_eq!(gathered.len(), 1, "all merge");
    let mut buffers: Vec<_> =
        packets.iter().map(|packet| [&[0; 24][..], packet].concat()).collect();
    buffers.iter_mut().for_each(|buffer| buffer.reserve_exact(4_000));
    assert_eq!(aggregator.join_in_place(&mut buffers, 24), Ok(&[0][..]));
    [gathered.remove(0), buffers.remove(0)]
}

#[test]
fn a_merged_packet_has_the_sum_of_the_pseudo_header_there() {
    for frames in flows(Checksum::Right) {
        let packets: Vec<_> = frames.iter().map(Frame::to_bytes).collect();
        let framing = framing(layer(&frames[0]));
        for storage in [Storage::Fragments, Storage::Linear] {
            let policy = Policy::gro_with_udp().with_storage(storage);
            let mut aggregator = BatchAggregator::framed(framing, policy, KEY);
            aggregator.poll(&unknown(framing.layer, &packets), |packet| {
                let mut bytes = Vec::new();
                packet.copy_to(&mut bytes);
                let (place, sum) = expected(&frames[0], bytes.len());
                assert_eq!(field(&bytes, place), sum, "{storage:?}");
            });
        }
        for left in framed(&frames) {
            let header = Header::read(&left, Format::Tunnel, ByteOrder::Little).expect("24 bytes");
            assert_eq!(header.flags, flags::NEEDS_CSUM | flags::UDP_TUNNEL_CSUM);
            let (place, sum) = expected(&frames[0], left.len() - 24);
            assert_eq!(field(&left[24..], place), sum);
            assert_eq!(
                header.outer_checksum(&left[24..], left.len() - 24, framing.layer),
                None,
                "nothing is left to do"
            );
        }
    }
    for frames in flows(Checksum::Zero) {
        for left in framed(&frames) {
            let (place, _) = expected(&frames[0], left.len() - 24);
            assert_eq!((left[0], field(&left[24..], place)), (flags::NEEDS_CSUM, 0));
        }
    }
}

/// As the packets of the flow were: whichever form the outer checksum has.
#[test]
fn both_forms_are_cut_into_the_same_segments() {
    for frames in flows(Checksum::Right).into_iter().chain(flows(Checksum::Zero)) {
        let framing = framing(layer(&frames[0]));
        let packets: Vec<_> = frames.iter().map(Frame::to_bytes).collect();
        let [seeded, in_place] = framed(&frames);
        assert_eq!(seeded, in_place);
        // Without a framing it holds the checksum that is right for the whole.
        let mut whole = Vec::new();
        let mut aggregator = BatchAggregator::new(framing.layer, PARTIAL_GRO_UDP, KEY);
        aggregator.poll(&packets, |packet| {
            whole.extend_from_slice(&framing.header(&packet).expect("a header"));
            packet.copy_to(&mut whole);
        });
        let (place, sum) = expected(&frames[0], whole.len() - 24);
        let has_checksum = field(&whole[24..], place) != 0;
        assert_eq!(has_checksum, whole != seeded);
        let header = Header::read(&whole, Format::Tunnel, ByteOrder::Little).expect("24 bytes");
        assert_eq!(
            header.outer_checksum(&whole[24..], whole.len() - 24, framing.layer),
            has_checksum.then_some((place, sum))
        );
        for read in [&seeded, &whole] {
            let mut segments = Vec::new();
            let plan = Segmenter::new().split(framing, read, &mut segments).expect("it can be cut");
            assert!(segments.chunks(plan.segment_length).eq(packets.iter().map(Vec::as_slice)));
        }
    }
}

/// A packet that came as a super-packet gets the sum that a kernel needs; one that has it, or whose
/// checksum is damaged, leaves as it came.
#[test]
fn a_super_packet_that_passes_gets_the_sum_too() {
    for frames in flows(Checksum::Right) {
        let framing = framing(layer(&frames[0]));
        let [seeded, _] = framed(&frames);
        let header = Header::read(&seeded, Format::Tunnel, ByteOrder::Little).expect("24 bytes");
        let (place, _) = expected(&frames[0], seeded.len() - 24);
        let Offload { checksum, gso, .. } = header
            .offload(Format::Tunnel, &seeded[24..], seeded.len() - 24, framing.layer)
            .expect("a valid header");
        let mut whole = frames[0].clone();
        whole.payload = frames.iter().flat_map(|frame| frame.payload.clone()).collect();
        whole.set_checksum(Checksum::Partial);
        let right = whole.to_bytes();
        let damaged = whole.with_outer_checksum(Checksum::Wrong).to_bytes();
        for (bytes, left) in [
            (&right, field(&seeded[24..], place)),
            (&seeded[24..].to_vec(), field(&seeded[24..], place)),
            (&damaged, field(&damaged, place)),
        ] {
            for cut in [0, 1, place - 1, place + 1, place + 2, place + 30] {
                let (first, rest) = bytes.split_at(cut);
                let mut packet = RxPacket::new(first)
                    .with_checksum(checksum)
                    .with_gso(gso.expect("a super-packet"));
                packet.layer = framing.layer;
                assert!(packet.push(rest).is_ok());
                let mut gathered = Vec::new();
                BatchAggregator::framed(framing, Policy::gro_with_udp(), KEY).poll_gathered(
                    &[packet],
                    |slices| {
                        gathered.extend(slices.iter().flat_map(|slice| slice.iter().copied()));
                    },
                );
                assert_eq!(field(&gathered[24..], place), left);
                let mut others = gathered[24..].to_vec();
                others[place..place + 2].copy_from_slice(&bytes[place..place + 2]);
                assert!(others == *bytes, "nothing else changes");
            }
        }
    }
}
