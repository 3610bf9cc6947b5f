//! `virtio_net_hdr`: layouts, every validity rule, and the way there and back.

use crate::support::{VERIFIED, gso_of, segments};
use proptest::prelude::*;
use superpacket::packet::{FlowHash, Layer, RxChecksum};
use superpacket::segment::{
    ChecksumOutput, Cwr, Gso, GsoKind, GsoPacket, IpId, SegmentOptions, SegmentSize, Segmenter,
};
use superpacket::virtio::{ByteOrder, Format, Header, Offload, VirtioError, flags, gso_type};
use superpacket_traffic::frame::{ACK, CWR, Checksum, Frame};

const FORMATS: [Format; 4] = [Format::Plain, Format::Buffers, Format::Hash, Format::Tunnel];

fn partial(frame: Frame) -> Frame {
    frame.with_checksum(Checksum::Partial)
}

/// A frame, and the header of a super-packet of it.
fn sample(frame: Frame, gso_type: u8, gso_size: u16) -> (Vec<u8>, Header) {
    let frame = partial(frame);
    let bytes = frame.to_bytes();
    let offsets = frame.offsets();
    let csum_offset =
        if matches!(gso_type & 7, gso_type::TCPV4 | gso_type::TCPV6) { 16 } else { 6 };
    let header = Header {
        flags: flags::NEEDS_CSUM,
        gso_type,
        gso_size,
        csum_start: offsets.transport as u16,
        csum_offset,
        num_buffers: 1,
        hdr_len: offsets.payload as u16,
        ..Header::default()
    };
    (bytes, header)
}

fn offload(header: &Header, bytes: &[u8]) -> Result<Offload, VirtioError> {
    header.offload(Format::Tunnel, bytes, bytes.len(), Layer::Ethernet)
}

fn tcp4() -> (Vec<u8>, Header) {
    sample(Frame::tcp4(1, 3000), gso_type::TCPV4, 1000)
}

fn tunnelled() -> (Vec<u8>, Header) {
    let frame = Frame::tcp4(1, 3000).in_vxlan6();
    let (bytes, header) = sample(frame, gso_type::TCPV4 | gso_type::UDP_TUNNEL_IPV6, 1000);
    (bytes, Header { outer_th_offset: 54, inner_nh_offset: 54 + 16 + 14, ..header })
}

#[test]
fn the_bytes_are_those_of_the_kernels_structures() {
    let header = Header {
        flags: 1,
        gso_type: 0x81,
        hdr_len: 0x0102,
        gso_size: 0x0304,
        csum_start: 0x0506,
        csum_offset: 0x0708,
        num_buffers: 0x090a,
        hash_value: 0x0b0c_0d0e,
        hash_report: 0x0f10,
        outer_th_offset: 0x1112,
        inner_nh_offset: 0x1314,
    };
    let little = [
        1, 0x81, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 14, 13, 12, 11, 16, 15, 0, 0, 0x12, 0x11, 0x14,
        0x13,
    ];
    // What follows num_buffers exists in virtio 1.0 and later only, and is little-endian.
    let big = [
        1, 0x81, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 14, 13, 12, 11, 16, 15, 0, 0, 0x12, 0x11, 0x14,
        0x13,
    ];
    for format in FORMATS {
        for (order, expected) in [(ByteOrder::Little, little), (ByteOrder::Big, big)] {
            let length = format.length();
            let mut bytes = [0xee; 30];
            assert_eq!(header.write(&mut bytes, format, order), Ok(length));
            assert_eq!(bytes[..length], expected[..length]);
            assert!(bytes[length..].iter().all(|byte| *byte == 0xee));
            let read = Header::read(&bytes, format, order).expect("long enough");
            let mut again = [0; 30];
            read.write(&mut again, format, order).expect("long enough");
            assert_eq!(again[..length], bytes[..length]);
            if format == Format::Tunnel {
                assert_eq!(read, header);
            }
            assert_eq!(
                Header::read(&bytes[..length - 1], format, order),
                Err(VirtioError::Short { needed: length, got: length - 1 })
            );
            assert_eq!(
                header.write(&mut bytes[..length - 1], format, order),
                Err(VirtioError::Short { needed: length, got: length - 1 })
            );
        }
        assert_eq!(Format::of_length(format.length()), Some(format));
    }
    assert_eq!(Format::of_length(11), None);
}

#[test]
fn checksum_flags() {
    let (bytes, header) = tcp4();
    let plain = Header { gso_type: 0, gso_size: 0, ..header };
    let partial = RxChecksum::Partial { start: 34, offset: 16 };
    assert_eq!(offload(&plain, &bytes), Ok(Offload::new(partial, None)));
    // NEEDS_CSUM wins over DATA_VALID; unknown flags mean nothing.
    assert_eq!(
        offload(&Header { flags: 0xf3, ..plain }, &bytes).map(|offload| offload.checksum),
        Ok(partial)
    );
    assert_eq!(
        offload(&Header { flags: 2, ..plain }, &bytes).map(|offload| offload.checksum),
        Ok(VERIFIED)
    );
    assert_eq!(
        offload(&Header { flags: 0, ..plain }, &bytes).map(|offload| offload.checksum),
        Ok(RxChecksum::None)
    );
    let both = flags::NEEDS_CSUM | flags::RSC_INFO;
    assert_eq!(offload(&Header { flags: both, ..plain }, &bytes), Err(VirtioError::Flags(both)));
    // RSC_INFO: the two fields hold something else, which is no business of the checksum.
    let coalesced = Header {
        flags: flags::DATA_VALID | flags::RSC_INFO,
        csum_start: u16::MAX,
        csum_offset: u16::MAX,
        ..plain
    };
    assert!(offload(&coalesced, &bytes).is_ok());
}

#[test]
fn the_checksum_must_lie_in_the_packet() {
    let (bytes, header) = tcp4();
    let plain = Header { gso_type: 0, ..header };
    let last = (bytes.len() - 2) as u16;
    for (csum_start, csum_offset, fits) in [
        (last, 0, true),
        (0, last, true),
        (last, 1, false),
        (last - 16, 17, false),
        (u16::MAX, u16::MAX, false),
    ] {
        let result = offload(&Header { csum_start, csum_offset, ..plain }, &bytes);
        if fits {
            assert_eq!(
                result.map(|offload| offload.checksum),
                Ok(RxChecksum::Partial { start: csum_start, offset: csum_offset })
            );
        } else {
            let needed = usize::from(csum_start) + usize::from(csum_offset) + 2;
            assert_eq!(result, Err(VirtioError::ChecksumPlace { needed, got: bytes.len() }));
        }
    }
}

#[test]
fn types_that_exist() {
    let (bytes, header) = tcp4();
    for value in 0..=u8::MAX {
        let base = value & !(gso_type::ECN | gso_type::UDP_TUNNEL);
        let result = offload(&Header { gso_type: value, ..header }, &bytes);
        match value {
            gso_type::NONE => assert_eq!(result.map(|offload| offload.gso), Ok(None)),
            0x01 | 0x81 => assert!(result.expect("TCP").gso.is_some()),
            // Known, but not of this packet.
            0x04 | 0x84 | 0x03 | 0x05 => {
                assert_eq!(result, Err(VirtioError::Protocol { gso_type: value }))
            }
            _ if base == 1 && value & 0x60 != 0x60 => {
                assert_eq!(result, Err(VirtioError::Protocol { gso_type: value }))
            }
            _ if base == 4 && value & 0x60 != 0x60 => {
                assert_eq!(result, Err(VirtioError::Protocol { gso_type: value }))
            }
            0x25 | 0x45 => assert_eq!(result, Err(VirtioError::Protocol { gso_type: value })),
            // ECN without TCP, both tunnel types, UFO in a tunnel, a tunnel of nothing, unknown
            // numbers.
            _ => assert_eq!(result, Err(VirtioError::GsoType(value)), "{value:#x}"),
        }
    }
}

#[test]
fn sizes_that_mean_nothing() {
    let (bytes, header) = tcp4();
    for gso_size in [0, 0xffff] {
        assert_eq!(
            offload(&Header { gso_size, ..header }, &bytes),
            Err(VirtioError::GsoSize(gso_size))
        );
        // Without a type the field means nothing.
        assert!(offload(&Header { gso_size, gso_type: 0, ..header }, &bytes).is_ok());
    }
}

#[test]
fn the_type_must_be_that_of_the_packet() {
    let frames = [
        (Frame::tcp4(1, 3000), gso_type::TCPV4, GsoKind::Tcp4),
        (Frame::tcp6(1, 3000), gso_type::TCPV6, GsoKind::Tcp6),
        (Frame::udp4(3000), gso_type::UDP_L4, GsoKind::Udp),
        (Frame::udp6(3000), gso_type::UDP_L4, GsoKind::Udp),
        (Frame::udp4(3000), gso_type::UDP, GsoKind::UdpFragments),
        (Frame::tcp4(1, 3000).tagged(3), gso_type::TCPV4, GsoKind::Tcp4),
    ];
    for (frame, right, kind) in frames {
        let udp = matches!(kind, GsoKind::Udp | GsoKind::UdpFragments);
        for gso_type in [1, 3, 4, 5] {
            let (bytes, header) = sample(frame.clone(), gso_type, 1000);
            let result = offload(&header, &bytes);
            if gso_type == right {
                let gso = gso_of(kind, 1000);
                assert_eq!(result.map(|offload| offload.gso), Ok(Some(gso)));
            } else if !(udp && matches!(gso_type, gso_type::UDP | gso_type::UDP_L4)) {
                assert_eq!(result, Err(VirtioError::Protocol { gso_type }), "{gso_type} {kind:?}");
            }
        }
    }
    // Not IP; DCCP; a tunnel that the type does not name.
    let (_, header) = tcp4();
    assert!(matches!(offload(&header, &[0; 100]), Err(VirtioError::Headers(_))));
    let dccp = Frame::dccp4(1, 3000).to_bytes();
    assert_eq!(offload(&header, &dccp), Err(VirtioError::Protocol { gso_type: 1 }));
    for tunnel in [Frame::in_vxlan4, Frame::in_gre, Frame::in_ip4] {
        let (bytes, header) = sample(tunnel(Frame::tcp4(1, 3000)), gso_type::TCPV4, 1000);
        assert_eq!(offload(&header, &bytes), Err(VirtioError::Protocol { gso_type: 1 }));
    }
}

#[test]
fn the_checksum_of_a_super_packet_lies_where_its_protocol_has_it() {
    let (bytes, header) = tcp4();
    assert_eq!(
        offload(&Header { csum_offset: 6, ..header }, &bytes),
        Err(VirtioError::ChecksumOffset { expected: 16, got: 6 })
    );
    assert_eq!(
        offload(&Header { csum_start: 14, ..header }, &bytes),
        Err(VirtioError::ChecksumStart { expected: 34, got: 14 })
    );
    // TCP may come without; the kernel then looks for the header itself.
    let without = Header { flags: 0, csum_start: 1, csum_offset: 2, ..header };
    assert!(offload(&without, &bytes).expect("valid").gso.is_some());

    let (bytes, header) = sample(Frame::udp6(3000), gso_type::UDP_L4, 1000);
    assert_eq!(
        offload(&Header { csum_offset: 16, ..header }, &bytes),
        Err(VirtioError::ChecksumOffset { expected: 6, got: 16 })
    );
    assert_eq!(offload(&Header { flags: 0, ..header }, &bytes), Err(VirtioError::NeedsChecksum));
    let (bytes, header) = sample(Frame::udp4(3000), gso_type::UDP, 1000);
    assert!(
        offload(&Header { flags: 0, ..header }, &bytes)
            .expect("UFO may come without")
            .gso
            .is_some()
    );
}

#[test]
fn a_udp_super_packet_has_at_most_128_segments() {
    let (bytes, header) = sample(Frame::udp4(1280), gso_type::UDP_L4, 10);
    assert!(offload(&header, &bytes).expect("valid").gso.is_some());
    let (bytes, header) = sample(Frame::udp4(1281), gso_type::UDP_L4, 10);
    assert_eq!(
        offload(&header, &bytes),
        Err(VirtioError::TooManySegments { payload: 1281, size: 10 })
    );
    // TCP may have any number.
    let (bytes, header) = sample(Frame::tcp4(1, 1281), gso_type::TCPV4, 1);
    assert!(offload(&header, &bytes).expect("valid").gso.is_some());
}

#[test]
fn what_fits_one_segment_is_no_super_packet() {
    for (payload, gso) in [(999, false), (1000, false), (1001, true)] {
        for (frame, gso_type) in
            [(Frame::tcp4(1, payload), 1), (Frame::tcp6(1, payload), 4), (Frame::udp4(payload), 5)]
        {
            let (bytes, header) = sample(frame, gso_type, 1000);
            assert_eq!(
                offload(&header, &bytes).expect("valid").gso.is_some(),
                gso,
                "{gso_type} {payload}"
            );
        }
        // UFO counts the UDP header.
        let (bytes, header) = sample(Frame::udp4(payload), gso_type::UDP, 1008);
        assert_eq!(offload(&header, &bytes).expect("valid").gso.is_some(), gso, "{payload}");
    }
    // Padding does not count.
    let (bytes, header) = sample(Frame::tcp4(1, 3).padded_to(60), gso_type::TCPV4, 4);
    assert_eq!(offload(&header, &bytes).expect("valid").gso, None);
}

#[test]
fn the_header_length_is_a_hint() {
    let (bytes, header) = tcp4();
    let expected = offload(&header, &bytes);
    for hdr_len in [0, 1, 33, u16::MAX] {
        assert_eq!(offload(&Header { hdr_len, ..header }, &bytes), expected);
    }
}

#[test]
fn tunnels() {
    let (bytes, header) = tunnelled();
    let gso = offload(&header, &bytes).expect("valid").gso.expect("a super-packet");
    assert_eq!(gso, gso_of(GsoKind::Tcp4, 1000));
    assert_eq!(
        header.offload(Format::Hash, &bytes, bytes.len(), Layer::Ethernet),
        Err(VirtioError::Format)
    );
    assert_eq!(offload(&Header { flags: 0, ..header }, &bytes), Err(VirtioError::NeedsChecksum));
    let wrong = Header { outer_th_offset: 0, ..header };
    assert_eq!(offload(&wrong, &bytes), Err(VirtioError::OuterTransport { expected: 54, got: 0 }));
    let wrong = Header { inner_nh_offset: 54, ..header };
    assert_eq!(offload(&wrong, &bytes), Err(VirtioError::InnerNetwork { expected: 84, got: 54 }));
    let other = gso_type::TCPV4 | gso_type::UDP_TUNNEL_IPV4;
    assert_eq!(
        offload(&Header { gso_type: other, ..header }, &bytes),
        Err(VirtioError::Protocol { gso_type: other })
    );
    // The outer checksum: there as the flag says.
    let with = Header { flags: header.flags | flags::UDP_TUNNEL_CSUM, ..header };
    assert!(offload(&with, &bytes).is_ok());
    let (bytes, zero) = sample(Frame::tcp4(1, 3000).in_vxlan4(), other, 1000);
    let zero = Header { outer_th_offset: 34, inner_nh_offset: 64, ..zero };
    assert!(offload(&zero, &bytes).is_ok());
    assert_eq!(
        offload(&Header { flags: zero.flags | flags::UDP_TUNNEL_CSUM, ..zero }, &bytes),
        Err(VirtioError::TunnelChecksum)
    );
}

#[test]
fn hashes() {
    let (bytes, header) = tcp4();
    let hashed = |format: Format, hash_report| {
        let header = Header { hash_value: 7, hash_report, ..header };
        header.offload(format, &bytes, bytes.len(), Layer::Ethernet).expect("valid").hash
    };
    assert_eq!(hashed(Format::Hash, 2), Some(FlowHash(7)));
    assert_eq!(hashed(Format::Tunnel, 9), Some(FlowHash(7)));
    assert_eq!(hashed(Format::Tunnel, 0), None);
    assert_eq!(hashed(Format::Tunnel, 10), None);
    assert_eq!(hashed(Format::Buffers, 2), None);
}

#[test]
fn what_is_written_is_read_again() {
    let frames = [
        (Frame::tcp4(1, 3000), GsoKind::Tcp4),
        (Frame::tcp6(1, 3000).with_timestamps(1, 2), GsoKind::Tcp6),
        (Frame::tcp4(1, 3000).with_flags(ACK | CWR), GsoKind::Tcp4),
        (Frame::udp4(3000), GsoKind::Udp),
        (Frame::udp6(3000), GsoKind::Udp),
        (Frame::udp4(3000), GsoKind::UdpFragments),
        (Frame::tcp4(1, 3000).in_vxlan4(), GsoKind::Tcp4),
        (Frame::tcp6(1, 3000).in_vxlan6(), GsoKind::Tcp6),
        (Frame::udp4(3000).in_geneve(), GsoKind::Udp),
        (Frame::tcp4(1, 900), GsoKind::Tcp4),
        (Frame::tcp4(1, 900).in_vxlan6(), GsoKind::Tcp4),
    ];
    for (frame, kind) in frames {
        for starts_at_ip in [false, true] {
            let frame = if starts_at_ip { frame.clone().at_ip() } else { frame.clone() };
            let layer = if starts_at_ip { Layer::Ip } else { Layer::Ethernet };
            let frame = partial(frame);
            let bytes = frame.to_bytes();
            let offset = if matches!(kind, GsoKind::Tcp4 | GsoKind::Tcp6) { 16 } else { 6 };
            let checksum = RxChecksum::Partial { start: frame.offsets().transport as u16, offset };
            let gso = gso_of(kind, 1000);
            for format in FORMATS {
                let hash = (format.length() >= 20).then_some(FlowHash(0x1234_5678));
                let offload = Offload::new(checksum, Some(gso)).with_hash(hash);
                let header = match Header::describe(&offload, format, &bytes, bytes.len(), layer) {
                    Ok(header) => header,
                    Err(error) => {
                        assert!(frame.tunnel.is_some() && format != Format::Tunnel, "{error}");
                        assert_eq!(error, VirtioError::Format);
                        continue;
                    }
                };
                let cwr = frame.to_bytes().len() > 3000
                    && matches!(&frame.transport, superpacket_traffic::frame::Transport::Tcp(tcp) if tcp.flags & CWR != 0);
                assert_eq!(header.gso_type & gso_type::ECN != 0, cwr);
                let mut written = [0; Format::LONGEST];
                header.write(&mut written, format, ByteOrder::NATIVE).expect("room");
                let read = Header::read(&written, format, ByteOrder::NATIVE).expect("whole");
                let expected = Offload::new(
                    offload.checksum,
                    Some(gso).filter(|_| frame.payload.len() > 1000),
                )
                .with_hash(offload.hash);
                assert_eq!(
                    read.offload(format, &bytes, bytes.len(), layer),
                    Ok(expected),
                    "{kind:?} {format:?}"
                );
                if expected.gso.is_none() {
                    assert_eq!((read.gso_type, read.gso_size), (0, 0));
                }
            }
        }
    }
}

#[test]
fn without_ecn_in_the_type_all_segments_have_cwr() {
    // As Linux hands on super-packets of accurate ECN, and those of RFC 3168.
    for (kind, base) in
        [(gso_type::TCPV4, Frame::tcp4(1, 3000)), (gso_type::TCPV6, Frame::tcp6(1, 3000))]
    {
        for (flags, ecn, cwr) in [
            (ACK | CWR, 0, Cwr::All),
            (ACK | CWR, gso_type::ECN, Cwr::First),
            (ACK, 0, Cwr::First),
            (ACK, gso_type::ECN, Cwr::First),
        ] {
            let frame = base.clone().with_flags(flags).with_checksum(Checksum::Partial);
            let (bytes, offsets) = (frame.to_bytes(), frame.offsets());
            let header = Header {
                flags: flags::NEEDS_CSUM,
                gso_type: kind | ecn,
                gso_size: 1000,
                csum_start: offsets.transport as u16,
                csum_offset: 16,
                ..Header::default()
            };
            let offload =
                header.offload(Format::Plain, &bytes, bytes.len(), Layer::Ethernet).expect("valid");
            let gso = offload.gso.expect("a super-packet");
            assert_eq!(gso.cwr, cwr, "{flags:#x} {:#x}", header.gso_type);
            let packet = GsoPacket::linear(&bytes, gso).with_checksum(offload.checksum);
            let mut found = Vec::new();
            let plan = Segmenter::new().segment(&packet, &SegmentOptions::default(), |segment| {
                found.push(segment.header()[offsets.transport + 13] & CWR as u8 != 0);
            });
            assert_eq!(plan.map(|plan| plan.segments), Ok(3));
            assert_eq!(
                found,
                [flags & CWR != 0, cwr == Cwr::All, cwr == Cwr::All],
                "{:#x}",
                header.gso_type
            );
        }
    }
}

#[test]
fn what_cannot_be_said_is_refused_but_for_identifications() {
    let describe = |frame: Frame, offload: Offload| {
        let bytes = frame.to_bytes();
        Header::describe(&offload, Format::Tunnel, &bytes, bytes.len(), Layer::Ethernet)
    };
    let size = |size| SegmentSize::new(size).expect("a size");
    let tcp = Gso::new(GsoKind::Tcp4, size(1000));
    let partial = RxChecksum::Partial { start: 34, offset: 16 };
    let offload = Offload::new(partial, Some(tcp));
    let frame = Frame::tcp4(1, 3000);
    let header = describe(frame.clone(), offload).expect("valid");
    let odd = tcp.with_id(IpId::Fixed).with_outer_id(IpId::Fixed);
    assert_eq!(describe(frame.clone(), Offload::new(offload.checksum, Some(odd))), Ok(header));
    // Accurate ECN; without the flag, or of one segment, there is nothing to say.
    let all = Offload::new(offload.checksum, Some(tcp.with_cwr(Cwr::All)));
    let reduced = |payload| Frame::tcp4(1, payload).with_flags(ACK | CWR);
    assert_eq!(describe(reduced(3000), all), Err(VirtioError::CwrOnAll));
    assert_eq!(describe(frame.clone(), all), Ok(header));
    assert_eq!(describe(reduced(1000), all).map(|header| header.gso_type), Ok(0));
    assert_eq!(
        describe(reduced(3000), offload).map(|header| header.gso_type),
        Ok(gso_type::TCPV4 | gso_type::ECN)
    );

    let full = Offload::new(RxChecksum::None, offload.gso);
    assert_eq!(describe(frame.clone(), full), Err(VirtioError::NeedsChecksum));
    let udp = Offload::new(RxChecksum::Partial { start: 34, offset: 6 }, offload.gso);
    let dccp = Gso::new(GsoKind::Dccp, size(1000));
    assert_eq!(
        describe(Frame::dccp4(1, 3000), Offload::new(udp.checksum, Some(dccp))),
        Err(VirtioError::Unnamed(GsoKind::Dccp))
    );
    let gre = Offload::new(RxChecksum::Partial { start: 62, offset: 16 }, offload.gso);
    assert_eq!(describe(frame.clone().in_gre(), gre), Err(VirtioError::Unnamed(GsoKind::Tcp4)));
    let many = Gso::new(GsoKind::Udp, size(10));
    assert!(matches!(
        describe(Frame::udp4(3000), Offload::new(udp.checksum, Some(many))),
        Err(VirtioError::TooManySegments { .. })
    ));
    assert!(matches!(describe(Frame::tcp6(1, 3000), offload), Err(VirtioError::Protocol { .. })));
    let outside = Offload::new(RxChecksum::Partial { start: 9000, offset: 16 }, offload.gso);
    assert!(matches!(describe(frame.clone(), outside), Err(VirtioError::ChecksumPlace { .. })));
    let elsewhere = Offload::new(RxChecksum::Partial { start: 14, offset: 16 }, offload.gso);
    assert!(matches!(describe(frame.clone(), elsewhere), Err(VirtioError::ChecksumStart { .. })));
    let largest = Offload::new(offload.checksum, Some(Gso::new(GsoKind::Tcp4, size(65_535))));
    assert_eq!(describe(Frame::tcp4(1, 100_000), largest), Err(VirtioError::GsoSize(65_535)));
    // Verified, or nothing known.
    let plain = Offload::new(VERIFIED, None);
    assert_eq!(describe(frame.clone(), plain).map(|header| header.flags), Ok(flags::DATA_VALID));
    assert_eq!(describe(frame, Offload::default()).map(|header| header.flags), Ok(0));
}

#[test]
fn a_packet_with_a_header_is_cut_as_the_header_says() {
    let first = Frame::tcp4(1, 1000).at_ip();
    let whole = partial(Frame::tcp4(1, 3500).at_ip()).to_bytes();
    let header = Header {
        flags: 1,
        gso_type: 1,
        gso_size: 1000,
        csum_start: 20,
        csum_offset: 16,
        ..Header::default()
    };
    let offload = header.offload(Format::Plain, &whole, whole.len(), Layer::Ip).expect("valid");
    let packet = GsoPacket::linear(&whole, offload.gso)
        .with_layer(Layer::Ip)
        .with_checksum(offload.checksum);
    let options = SegmentOptions::default().with_checksum(ChecksumOutput::Full);
    let segments = segments(&packet, &options).expect("cut");
    let mut expected = first.run(4);
    expected[3].payload.truncate(500);
    assert_eq!(segments, expected.iter().map(Frame::to_bytes).collect::<Vec<_>>());
}

#[test]
fn errors_name_their_field() {
    let (bytes, header) = tunnelled();
    for (header, field) in [
        (Header { flags: 5, ..header }, "flags"),
        (Header { gso_type: 0x7f, ..header }, "gso_type"),
        (Header { gso_size: 0, ..header }, "gso_size"),
        (Header { csum_start: 3, ..header }, "csum_start"),
        (Header { csum_offset: 3, ..header }, "csum_offset"),
        (Header { outer_th_offset: 3, ..header }, "outer_th_offset"),
        (Header { inner_nh_offset: 3, ..header }, "inner_nh_offset"),
    ] {
        let error = offload(&header, &bytes).expect_err("invalid");
        assert_eq!(error.field(), field);
        assert!(error.to_string().contains(field), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) })]

    #[test]
    fn random_headers_never_panic_and_what_they_mean_can_be_cut(
        random in prop::collection::vec(any::<u8>(), 0..40), kind in 0usize..6, payload in 0usize..3000, tunnel in 0u8..3,
        fix in any::<[bool; 6]>(), length in 0usize..4, damage in prop::option::of((0usize..120, any::<u8>())),
    ) {
        let format = FORMATS[length];
        let frame = match kind {
            0 | 1 => Frame::tcp4(1, payload),
            2 => Frame::tcp6(1, payload),
            3 | 4 => Frame::udp4(payload),
            _ => Frame::dccp4(1, payload),
        };
        let frame = match tunnel {
            0 => frame.in_vxlan4(),
            _ => frame,
        };
        let (mut bytes, right) = sample(frame, [1, 1, 4, 5, 3, 1][kind], 500);
        if let Some((at, value)) = damage && let Some(byte) = bytes.get_mut(at) {
            *byte = value;
        }
        let Ok(mut header) = Header::read(&random, format, ByteOrder::Little) else { return Ok(()) };
        let [types, size, start, offset, flags, tunnels] = fix;
        if types { header.gso_type = right.gso_type | if tunnel == 0 { 0x20 } else { 0 }; }
        if size { header.gso_size = right.gso_size; }
        if start { header.csum_start = right.csum_start; }
        if offset { header.csum_offset = right.csum_offset; }
        if flags { header.flags = right.flags; }
        if tunnels { (header.outer_th_offset, header.inner_nh_offset) = (34, 64); }
        if let Ok(offload) = header.offload(format, &bytes, bytes.len(), Layer::Ethernet) {
            let packet = GsoPacket::linear(&bytes, offload.gso).with_checksum(offload.checksum);
            let mut segmenter = Segmenter::new();
            let mut out = Vec::new();
            let _ = segmenter.segment_linear(&packet, &SegmentOptions::default(), &mut out);
            prop_assert!(segmenter.counters().balanced());
            if let Ok(again) = Header::describe(&offload, format, &bytes, bytes.len(), Layer::Ethernet) {
                let read = again.offload(format, &bytes, bytes.len(), Layer::Ethernet);
                prop_assert_eq!(read.map(|read| (read.checksum, read.gso)), Ok((offload.checksum, offload.gso)));
            }
        }
    }
}
