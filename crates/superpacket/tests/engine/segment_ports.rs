//! Datagrams to the ports of VXLAN and Geneve that are no tunnel: nothing but the port announces
//! one, and the port may be anyone's.

use crate::support::*;
use superpacket::aggregate::Reason;
use superpacket::packet::RxChecksum;
use superpacket::segment::{
    ChecksumOutput, Gso, GsoKind, GsoPacket, SegmentError, SegmentOptions, Segmenter,
};
use superpacket::virtio::{Format, Header, VirtioError, flags, gso_type};
use superpacket::wire::{self, MAX_HEADER, Refusal, geneve, vxlan};
use superpacket_traffic::frame::{
    Carrier, Checksum, Frame, Geneve, Icmp, Transport, Vxlan, stream_bytes,
};

fn cut(frame: &Frame, gso: Gso) -> Result<Vec<Vec<u8>>, SegmentError> {
    let packet = Packet::from(frame);
    let whole = GsoPacket::linear(&packet.bytes, gso).with_layer(packet.layer);
    segments(&whole, &SegmentOptions::default().with_fragment_id(3))
}

/// Payloads that are no tunnel's, some of which begin like one.
fn payloads() -> Vec<Vec<u8>> {
    let mut vxlan_of_nothing = vec![0x08, 0, 0, 0, 0, 0, 1, 0];
    vxlan_of_nothing.extend(stream_bytes(3, 2500));
    let mut geneve_of_nothing = vec![0, 0, 0x08, 0, 0, 0, 1, 0];
    geneve_of_nothing.extend(stream_bytes(9, 2500));
    // An IPv4 header that does not end with the datagram.
    let mut short_packet = vec![0x08, 0, 0, 0, 0, 0, 1, 0];
    short_packet
        .extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, 1]);
    short_packet.extend(stream_bytes(4, 2500));
    // Where Geneve's options would reach beyond what is looked at.
    let long_options = [&[0x3f, 0, 0x11, 0x22][..], &stream_bytes(5, 2504)].concat();
    vec![
        long_options,
        stream_bytes(0, 2508),
        vec![0; 2508],
        vec![0xff; 2508],
        b"GET ".repeat(627),
        vxlan_of_nothing,
        geneve_of_nothing,
        short_packet,
    ]
}

/// Datagrams with such payloads, to both ports, under every header that may come before them.
fn datagrams() -> Vec<Frame> {
    let mut frames = Vec::new();
    for payload in payloads() {
        for port in [vxlan::PORT, geneve::PORT] {
            for base in [Frame::udp4(0).with_id(7), Frame::udp6(0)] {
                let frame = base.with(|frame| {
                    (frame.udp_mut().destination_port, frame.payload) = (port, payload.clone())
                });
                frames.extend([
                    frame.clone(),
                    frame.clone().tagged(5),
                    frame.clone().at_ip(),
                    frame.clone().in_ip4(),
                    frame.in_gre(),
                ]);
            }
        }
    }
    frames
}

#[test]
fn they_are_cut_like_any_datagram() {
    for frame in datagrams() {
        let segments = cut(&frame, gso_of(GsoKind::Udp, 1000))
            .unwrap_or_else(|error| panic!("{error}: {:?}", &frame.payload[..40]));
        let mut next = Frame { payload: Vec::new(), ..frame.clone() };
        let pieces: Vec<_> = frame.payload.chunks(1000).collect();
        assert_eq!(segments.len(), pieces.len());
        for (segment, piece) in segments.iter().zip(pieces) {
            assert!(*segment == next.clone().with(|next| next.payload = piece.to_vec()).to_bytes());
            next = next.following();
        }
        let frame = frame.with(|frame| {
            if let superpacket_traffic::frame::Ip::V4(ip) = &mut frame.ip {
                ip.dont_fragment = false
            }
        });
        let mut fragments = frame.fragments(1000, 3);
        for (index, fragment) in fragments.iter_mut().enumerate() {
            if let Some(superpacket_traffic::frame::Ip::V4(outer)) =
                fragment.tunnel.as_mut().map(|tunnel| &mut tunnel.ip)
            {
                outer.id = outer.id.wrapping_add(index as u16);
            }
        }
        assert!(
            cut(&frame, gso_of(GsoKind::UdpFragments, 1000))
                == Ok(fragments.iter().map(Frame::to_bytes).collect())
        );
    }
}

#[test]
fn their_partial_checksums_are_filled_in_without_the_padding() {
    for frame in datagrams().into_iter().filter(|frame| frame.link.is_some()) {
        let partial = frame.clone().with(|frame| {
            (frame.udp_mut().checksum, frame.trailer) = (Checksum::Partial, vec![7; 9])
        });
        let state = RxChecksum::Partial { start: partial.offsets().transport as u16, offset: 6 };
        let bytes = partial.to_bytes();
        let mut whole = Vec::new();
        Segmenter::new()
            .segment(
                &GsoPacket::uncut(std::slice::from_ref(&bytes)).with_checksum(state),
                &SegmentOptions::default(),
                |segment| segment.copy_to(&mut whole),
            )
            .expect("it passes");
        assert!(whole == frame.with(|frame| frame.trailer = vec![7; 9]).to_bytes());
    }
}

/// They might be anything between these addresses, so they wait for all of it and are not merged:
/// reversible, and in order.
#[test]
fn they_pass_aggregation_untouched() {
    for frame in datagrams() {
        let small = frame.with(|frame| frame.payload.truncate(200));
        let run = reversible_packets(PARTIAL_GRO_UDP, &packets(&small.run(3)));
        assert_eq!(run.outputs.len(), 3);
        assert!(
            run.reasons().iter().all(|reason| !matches!(reason, Reason::PollEnd | Reason::UdpOff)),
            "{:?}",
            run.reasons()
        );
    }
}

#[test]
fn what_may_be_a_tunnel_is_not_cut_as_a_datagram() {
    let through = |frame: Frame, carrier| {
        frame.through(superpacket_traffic::frame::Ip::V4(Default::default()), carrier, true)
    };
    let icmp = Frame::udp4(3000).with(|frame| frame.transport = Transport::Icmp(Icmp::default()));
    let fragment = Frame::udp4(3000).with_ipv4(|ip| ip.more_fragments = true);
    let mut frames = vec![
        // Group policy, a remote checksum offload, a version of tomorrow.
        through(
            Frame::udp4(3000),
            Carrier::Vxlan(Vxlan { flags: 0x88, reserved: 7, ..Vxlan::default() }),
        ),
        through(
            Frame::tcp4(1, 3000),
            Carrier::Vxlan(Vxlan { reserved: 0x20_0000, last_reserved: 8, ..Vxlan::default() }),
        ),
        through(
            Frame::udp6(3000),
            Carrier::Geneve(Geneve { flags: 0x40, options: vec![9; 8], ..Geneve::default() }),
        ),
        through(Frame::udp4(3000), Carrier::Geneve(Geneve { version: 1, ..Geneve::default() })),
    ];
    for inner in [icmp, fragment] {
        frames.extend([
            inner.clone().in_vxlan4(),
            inner.clone().in_vxlan6(),
            inner.clone().in_geneve(),
        ]);
        // Options that reach beyond what is looked at.
        frames.push(through(
            inner,
            Carrier::Geneve(Geneve { options: vec![9; 200], ..Geneve::default() }),
        ));
    }
    for frame in &frames {
        let refused = cut(frame, gso_of(GsoKind::Udp, 1000));
        assert!(matches!(refused, Err(SegmentError::Headers(_))), "{refused:?}");
    }
    // GPE that carries IP without Ethernet, and a length that is left to the device.
    let inner = Frame::tcp4(1, 3000).at_ip();
    for inner in
        [inner.clone(), inner.with_ipv4(|ip| ip.total_length = Some(0)), Frame::udp6(3000).at_ip()]
    {
        let payload = [&[0x0c, 0, 0, 1, 0, 0, 7, 0][..], &inner.to_bytes()].concat();
        let frame = Frame::udp4(0).with(|frame| {
            (frame.udp_mut().destination_port, frame.payload) = (vxlan::PORT, payload)
        });
        assert_eq!(
            cut(&frame, gso_of(GsoKind::Udp, 1000)),
            Err(SegmentError::Headers(Refusal::Tunnel))
        );
    }
    // What the engine can cut as a tunnel is one.
    let frame = Frame::tcp4(1, 3000).in_vxlan4();
    assert!(matches!(cut(&frame, gso_of(GsoKind::Udp, 1000)), Err(SegmentError::Kind { .. })));
    assert_eq!(cut(&frame, gso_of(GsoKind::Tcp4, 1000)).map(|segments| segments.len()), Ok(3));
}

#[test]
fn the_two_parses_differ_in_nothing_else() {
    for base in [Frame::tcp4(1, 100), Frame::udp6(100), Frame::dccp4(1, 100)] {
        for frame in base.shapes(7) {
            let packet = Packet::from(&frame);
            let head = &packet.bytes[..packet.bytes.len().min(MAX_HEADER)];
            for length in 0..head.len() {
                let both = [wire::parse, wire::parse_datagram]
                    .map(|parse| parse(&head[..length], length, packet.layer));
                // Cut within the inner headers, nothing tells a tunnel from a datagram.
                assert!(
                    both[0] == both[1] || (frame.tunnel.is_some() && both[0].is_err()),
                    "{length}: {both:?}"
                );
            }
            let both = [wire::parse, wire::parse_datagram]
                .map(|parse| parse(head, packet.bytes.len(), packet.layer));
            assert!(both[0] == both[1] && both[0].is_ok());
        }
    }
}

/// What a virtio header says of a UDP super-packet in segments of `size`, and how it is cut then.
fn cut_as_said(frame: &Frame, size: u16) -> Result<Vec<Vec<u8>>, VirtioError> {
    let packet = Packet::from(frame);
    let header = Header {
        flags: flags::NEEDS_CSUM,
        gso_type: gso_type::UDP_L4,
        gso_size: size,
        csum_start: frame.offsets().transport as u16,
        csum_offset: 6,
        num_buffers: 1,
        hdr_len: frame.offsets().payload as u16,
        ..Header::default()
    };
    let offload = header.offload(Format::Plain, &packet.bytes, packet.bytes.len(), packet.layer)?;
    // The way back says the same.
    assert_eq!(
        Header::describe(&offload, Format::Plain, &packet.bytes, packet.bytes.len(), packet.layer),
        Ok(header)
    );
    let whole = GsoPacket::linear(&packet.bytes, offload.gso)
        .with_layer(packet.layer)
        .with_checksum(offload.checksum);
    Ok(segments(&whole, &SegmentOptions::default()).expect("it can be cut"))
}

/// The frames that a wire would carry of such a super-packet.
fn pieces(frame: &Frame, size: usize) -> Vec<Vec<u8>> {
    let mut next = Frame { payload: Vec::new(), ..frame.clone() };
    let cut = frame.payload.chunks(size).map(|piece| {
        let bytes = next.clone().with(|next| next.payload = piece.to_vec()).to_bytes();
        next = next.following();
        bytes
    });
    cut.collect()
}

#[test]
fn a_virtio_header_announces_them_like_any_datagram() {
    for frame in datagrams().into_iter().filter(|frame| frame.tunnel.is_none()) {
        let partial = frame.clone().with_checksum(Checksum::Partial);
        let segments = cut_as_said(&partial, 1000)
            .unwrap_or_else(|error| panic!("{error}: {:?}", &frame.payload[..40]));
        assert!(segments == pieces(&frame, 1000));
    }
}

#[test]
fn segments_that_each_are_a_datagram_of_a_tunnel_are_cut_at_the_outer_header() {
    // As a sender of VXLAN in user space has it, by `UDP_SEGMENT`: each segment has a VXLAN header,
    // and a frame, of its own.
    let inner = [
        Frame::tcp4(1, 300),
        Frame::udp6(300),
        Frame::tcp4(1, 300).with(|frame| frame.transport = Transport::Icmp(Icmp::default())),
    ];
    for inner in inner {
        for base in [Frame::udp4(0).with_id(7), Frame::udp6(0)] {
            let mut datagram = vec![0x08, 0, 0, 0, 0, 0, 1, 0];
            datagram.extend(inner.to_bytes());
            let frame = base.with(|frame| {
                (frame.udp_mut().destination_port, frame.payload) =
                    (vxlan::PORT, datagram.repeat(4))
            });
            for frame in [frame.clone(), frame.clone().tagged(5), frame.at_ip()] {
                let partial = frame.clone().with_checksum(Checksum::Partial);
                let segments = cut_as_said(&partial, datagram.len() as u16)
                    .unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(segments.len(), 4);
                assert!(segments == pieces(&frame, datagram.len()));
            }
        }
    }
}

#[test]
fn a_partial_checksum_is_wanted_whatever_its_field_holds() {
    for base in [Frame::udp4(2500).with_ipv4(|ip| ip.dont_fragment = false), Frame::udp6(2500)] {
        let whole = base.clone().with_checksum(Checksum::Zero).to_bytes();
        let start = base.offsets().transport as u16;
        for (kind, checksum) in [
            (GsoKind::Udp, ChecksumOutput::Full),
            (GsoKind::Udp, ChecksumOutput::Partial),
            (GsoKind::UdpFragments, ChecksumOutput::Full),
        ] {
            let packet = GsoPacket::linear(&whole, gso_of(kind, 1000))
                .with_checksum(RxChecksum::Partial { start, offset: 6 });
            let options = SegmentOptions::default().with_checksum(checksum).with_fragment_id(3);
            let segments = segments(&packet, &options).expect("it can be cut");
            assert_eq!(segments.len(), 3);
            let expected = match (kind, checksum) {
                (GsoKind::UdpFragments, _) => {
                    base.fragments(1000, 3).iter().map(Frame::to_bytes).collect()
                }
                (_, ChecksumOutput::Partial) => {
                    pieces(&base.clone().with_checksum(Checksum::Partial), 1000)
                }
                _ => pieces(&base, 1000),
            };
            assert!(segments == expected, "{kind:?} {checksum:?}");
        }
    }
}
