//! Segments against frames that an independent builder makes: byte for byte, through every link
//! header and tunnel, from one slice, from many, and written into one buffer.

use crate::support::{VERIFIED, gso_of};
use superpacket::packet::{Layer, RxChecksum};
use superpacket::segment::{
    BackToBack, ChecksumForm, ChecksumOutput, Cwr, Gso, GsoKind, GsoPacket, IpId, MaxSegments,
    SegmentBuffers, SegmentError, SegmentOptions, SegmentSize, Segmenter, WrittenSegment,
};
use superpacket::wire;
use superpacket_traffic::check::{self, Expect};
use superpacket_traffic::frame::{
    ACK, AE, CWR, Carrier, Checksum, ECE, Extension, FIN, Frame, Geneve, Gre, Ip, Ipv4, Ipv6, Mpls,
    PSH, Pppoe, RESERVED, Transport, URG, Vlan, Vxlan,
};
use superpacket_traffic::random::Random;

/// A frame's edit, with a name for failures.
type Edit = (&'static str, fn(Frame) -> Frame);

const LINKS: &[Edit] = &[
    ("ethernet", |frame| frame),
    ("ip", Frame::at_ip),
    ("vlan", |frame| frame.tagged(5)),
    ("qinq", |frame| {
        frame.with(|frame| {
            frame.vlans = vec![Vlan { tpid: 0x88a8, vid: 7, pcp: 3, dei: true }, Vlan::default()]
        })
    }),
    ("pppoe", Frame::in_pppoe),
    ("mpls", |frame| {
        frame.with(|frame| frame.mpls = vec![Mpls::default(), Mpls { ttl: 3, ..Mpls::default() }])
    }),
];

fn outer4() -> Ip {
    Ip::V4(Ipv4 { id: 0xfffe, ..Ipv4::default() })
}

fn outer6() -> Ip {
    Ip::V6(Ipv6::default())
}

fn vxlan(frame: Frame, ip: Ip, checksum: Checksum) -> Frame {
    let mut vxlan = Vxlan::default();
    vxlan.udp.checksum = checksum;
    frame.through(ip, Carrier::Vxlan(vxlan), true)
}

fn geneve(frame: Frame, checksum: Checksum, ethernet: bool) -> Frame {
    let mut geneve =
        Geneve { options: vec![1, 2, 3, 1, 0xaa, 0xbb, 0xcc, 0xdd], ..Geneve::default() };
    geneve.udp.checksum = checksum;
    frame.through(outer4(), Carrier::Geneve(geneve), ethernet)
}

fn gre(frame: Frame, checksum: Option<Checksum>, key: Option<u32>, ethernet: bool) -> Frame {
    frame.through(outer4(), Carrier::Gre(Gre { checksum, key, ..Gre::default() }), ethernet)
}

const TUNNELS: &[Edit] = &[
    ("plain", |frame| frame),
    ("vxlan4", |frame| vxlan(frame, outer4(), Checksum::Zero)),
    ("vxlan4 with checksum", |frame| vxlan(frame, outer4(), Checksum::Right)),
    ("vxlan6 with checksum", |frame| vxlan(frame, outer6(), Checksum::Right)),
    ("vxlan4 with inner vlan", |frame| {
        let mut frame = vxlan(frame, outer4(), Checksum::Right);
        frame.tunnel_mut().vlans = vec![Vlan::default()];
        frame
    }),
    ("geneve", |frame| geneve(frame, Checksum::Zero, true)),
    ("geneve with checksum, ip", |frame| geneve(frame, Checksum::Right, false)),
    ("gre", |frame| gre(frame, None, None, false)),
    ("gre with key and checksum", |frame| gre(frame, Some(Checksum::Right), Some(7), false)),
    ("gre with checksum, ethernet", |frame| gre(frame, Some(Checksum::Right), None, true)),
    ("in ipv4", |frame| frame.through(outer4(), Carrier::Ip, false)),
    ("in ipv6", |frame| frame.through(outer6(), Carrier::Ip, false)),
    ("vxlan4 in geneve", |frame| {
        geneve(vxlan(frame, outer4(), Checksum::Zero), Checksum::Right, true)
    }),
    ("vxlan6 with checksum in geneve", |frame| {
        geneve(vxlan(frame, outer6(), Checksum::Right), Checksum::Zero, true)
    }),
    ("geneve in geneve, both with checksum, ip", |frame| {
        geneve(geneve(frame, Checksum::Right, false), Checksum::Right, false)
    }),
    ("vxlan4 in vxlan6, both with checksum", |frame| {
        vxlan(vxlan(frame, outer4(), Checksum::Right), outer6(), Checksum::Right)
    }),
];

struct Protocol {
    name: &'static str,
    kind: GsoKind,
    make: fn(usize) -> Frame,
}

const PROTOCOLS: &[Protocol] = &[
    Protocol {
        name: "tcp4",
        kind: GsoKind::Tcp4,
        make: |payload| Frame::tcp4(0xffff_ff00, payload).with_id(0xffff),
    },
    Protocol {
        name: "tcp4 with timestamps",
        kind: GsoKind::Tcp4,
        make: |payload| Frame::tcp4(1, payload).with_timestamps(5, 6),
    },
    Protocol { name: "tcp6", kind: GsoKind::Tcp6, make: |payload| Frame::tcp6(7, payload) },
    Protocol { name: "udp4", kind: GsoKind::Udp, make: |payload| Frame::udp4(payload).with_id(9) },
    Protocol { name: "udp6", kind: GsoKind::Udp, make: Frame::udp6 },
    Protocol {
        name: "udp4 without checksum",
        kind: GsoKind::Udp,
        make: |payload| Frame::udp4(payload).with_checksum(Checksum::Zero),
    },
    Protocol {
        name: "dccp4",
        kind: GsoKind::Dccp,
        make: |payload| Frame::dccp4(0xffff_ffff_fffe, payload),
    },
    Protocol {
        name: "dccp6, 24 bits",
        kind: GsoKind::Dccp,
        make: |payload| {
            Frame::dccp6(0xff_fffe, payload).with(|frame| {
                let dccp = frame.dccp_mut();
                (dccp.extended, dccp.kind, dccp.acknowledgement) =
                    (false, superpacket_traffic::frame::Dccp::DATA_ACK, Some(3));
            })
        },
    },
    Protocol {
        name: "dccp4, checksum covers 4 bytes",
        kind: GsoKind::Dccp,
        make: |payload| Frame::dccp4(1, payload).with_dccp(|dccp| dccp.coverage = 2),
    },
];

/// The frames that a wire would carry for a payload in pieces of `size`, and the super-packet that
/// stands for them.
fn train(first: &Frame, size: usize, total: usize) -> (Vec<Frame>, Frame) {
    let mut frames: Vec<Frame> = Vec::new();
    let mut left = total;
    let mut next = first.clone();
    loop {
        let take = left.min(size);
        next.payload.truncate(take);
        frames.push(next.clone());
        left -= take;
        if left == 0 {
            break;
        }
        next = next.following();
    }
    // The builder's stream restarts with each datagram; make the pieces differ.
    for (index, frame) in frames.iter_mut().enumerate() {
        if !matches!(frame.transport, Transport::Tcp(_)) {
            frame.payload.iter_mut().for_each(|byte| *byte = byte.wrapping_add(index as u8));
        }
    }
    let payload = frames.iter().flat_map(|frame| frame.payload.iter().copied()).collect();
    (frames, Frame { payload, ..first.clone() })
}

fn layer(frame: &Frame) -> Layer {
    if frame.link.is_some() { Layer::Ethernet } else { Layer::Ip }
}

/// Cuts in every way, asserts that all agree, and returns the segments.
fn cut(
    bytes: &[u8],
    layer: Layer,
    gso: Gso,
    options: &SegmentOptions,
) -> Result<Vec<Vec<u8>>, SegmentError> {
    let mut segmenter = Segmenter::new();
    let mut segments = Vec::new();
    let packet = GsoPacket::linear(&bytes, gso).with_layer(layer);
    let plan = segmenter.segment(&packet, options, |segment| {
        let mut copy = Vec::new();
        segment.copy_to(&mut copy);
        assert_eq!(copy.len(), segment.length());
        assert_eq!(segment.index as usize, segments.len());
        segments.push(copy);
    });
    assert!(segmenter.counters().balanced(), "{:?}", segmenter.counters());
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => {
            assert!(segments.is_empty(), "something was emitted before {error}");
            assert_eq!(segmenter.counters().errors[error.number()], 1);
            return Err(error);
        }
    };
    assert_eq!(segmenter.plan(&packet, options), Ok(plan));
    assert_eq!(plan.segments as usize, segments.len());
    let mut all = vec![0xeeu8; plan.total_length()];
    let mut out = BackToBack::new(&mut all);
    assert_eq!(segmenter.segment_linear(&packet, options, &mut out), Ok(plan));
    assert_eq!(out.used(), plan.total_length());
    for (index, chunk) in all.chunks(plan.segment_length).enumerate() {
        assert_eq!(chunk, segments[index], "linear, segment {index}");
    }
    // Headers written where they stay, in room for longer ones.
    let mut room = vec![0xee; 300 * segments.len()];
    let mut headers = Headers { rest: &mut room, handed_out: 0 };
    let mut placed = Vec::new();
    let got = segmenter.segment_with_headers(&packet, options, &mut headers, |segment| {
        let mut bytes = Vec::new();
        segment.copy_to(&mut bytes);
        placed.push((bytes, segment.header().len(), segment.checksum));
    });
    assert_eq!((got, headers.handed_out), (Ok(plan), segments.len()));
    for (index, (bytes, length, _)) in placed.iter().enumerate() {
        assert_eq!(bytes, &segments[index], "header in place, segment {index}");
        assert_eq!(room[300 * index..300 * index + length], bytes[..*length], "it stays there");
    }
    // The same from buffers of odd lengths, empty ones among them.
    let mut random = Random::new(bytes.len() as u64);
    let mut slices: Vec<&[u8]> = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let longest = if slices.len() < 8 { 40 } else { 3000 };
        let (slice, behind) = rest.split_at(random.between(0, longest).min(rest.len()));
        slices.push(slice);
        rest = behind;
    }
    let packet = GsoPacket::new(&slices, gso).with_layer(layer);
    let mut index = 0;
    segmenter
        .segment(&packet, options, |segment| {
            let mut gathered = segment.header().to_vec();
            for range in segment.ranges() {
                gathered.extend_from_slice(
                    &slices[range.range][range.offset..range.offset + range.length],
                );
            }
            assert_eq!(gathered, segments[index], "gathered, segment {index}");
            index += 1;
        })
        .expect("it was cut before");
    let mut out = Vec::new();
    segmenter.segment_linear(&packet, options, &mut out).expect("it was cut before");
    assert_eq!(out, all, "linear from many buffers");
    assert!(segmenter.counters().balanced());
    Ok(segments)
}

/// Cuts a frame in Ethernet in every way.
fn segments_of(frame: &Frame, gso: Gso) -> Vec<Vec<u8>> {
    cut(&frame.to_bytes(), Layer::Ethernet, gso, &SegmentOptions::default()).expect("cut")
}

fn check_segments(segments: &[Vec<u8>], layer: Layer, partial: bool, name: &str) {
    for (index, segment) in segments.iter().enumerate() {
        let expect = Expect { starts_at_ip: layer == Layer::Ip, partial, ..Expect::default() };
        let checked = check::frame(segment, &expect)
            .unwrap_or_else(|problem| panic!("{name}, segment {index}: {problem}"));
        assert!(checked.canonical, "{name}, segment {index}");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().take(160).map(|byte| format!("{byte:02x}")).collect()
}

#[track_caller]
fn assert_frames(segments: &[Vec<u8>], frames: &[Frame], name: &str) {
    assert_eq!(segments.len(), frames.len(), "{name}");
    for (index, (segment, frame)) in segments.iter().zip(frames).enumerate() {
        let frame = frame.to_bytes();
        assert!(
            *segment == frame,
            "{name}, segment {index}\n got {}\nwant {}",
            hex(segment),
            hex(&frame)
        );
    }
}

#[test]
fn every_protocol_through_every_header() {
    let mut cells = 0;
    for protocol in PROTOCOLS {
        for (link_name, link) in LINKS {
            for (tunnel_name, tunnel) in TUNNELS {
                for (size, total) in [(100, 450), (1001, 4004), (1448, 1448), (7, 50), (33, 6)] {
                    let name =
                        format!("{} {link_name} {tunnel_name} {size} {total}", protocol.name);
                    if protocol.name.contains("covers") && (total % size != 0 && total % size < 4) {
                        continue;
                    }
                    let first = tunnel(link((protocol.make)(size)));
                    let (frames, whole) = train(&first, size, total);
                    let layer = layer(&first);
                    let gso = gso_of(protocol.kind, size);
                    let segments = cut(&whole.to_bytes(), layer, gso, &SegmentOptions::default())
                        .unwrap_or_else(|error| panic!("{name}: {error}"));
                    assert_frames(&segments, &frames, &name);
                    check_segments(&segments, layer, false, &name);

                    // Left to a device: the same with partial checksums.
                    if protocol.name.contains("without") {
                        continue;
                    }
                    let partial = |frame: &Frame| {
                        let mut frame = frame.clone();
                        frame.set_checksum(Checksum::Partial);
                        frame
                    };
                    if protocol.name.contains("covers") && first.tunnel.is_some() {
                        continue;
                    }
                    let options = SegmentOptions::default().with_checksum(ChecksumOutput::Partial);
                    let segments = cut(&whole.to_bytes(), layer, gso, &options)
                        .unwrap_or_else(|error| panic!("{name}: {error}"));
                    let frames: Vec<Frame> = frames.iter().map(partial).collect();
                    assert_frames(&segments, &frames, &format!("{name} partial"));
                    // A partial super-packet as merged.
                    let options = SegmentOptions::default().with_checksum(ChecksumOutput::AsMerged);
                    let gso = gso.with_checksum(ChecksumForm::Partial);
                    let segments = cut(&partial(&whole).to_bytes(), layer, gso, &options)
                        .unwrap_or_else(|error| panic!("{name}: {error}"));
                    assert_frames(&segments, &frames, &format!("{name} as merged"));
                    cells += 1;
                }
            }
        }
    }
    assert!(cells > 2000, "{cells}");
}

fn tcp_gso(size: usize) -> Gso {
    gso_of(GsoKind::Tcp4, size)
}

/// TCP flags of each segment.
fn flags(segments: &[Vec<u8>]) -> Vec<u16> {
    segments.iter().map(|segment| u16::from_be_bytes([segment[46], segment[47]]) & 0xfff).collect()
}

#[test]
fn fin_and_push_on_the_last_congestion_window_reduced_on_the_first() {
    let frame = Frame::tcp4(1, 350).with_flags(ACK | PSH | FIN | CWR | ECE | AE | URG | RESERVED);
    let segments = segments_of(&frame, tcp_gso(100));
    let kept = ACK | ECE | AE | URG | RESERVED;
    assert_eq!(flags(&segments), [kept | CWR, kept, kept, kept | PSH | FIN]);

    let all = tcp_gso(100).with_cwr(Cwr::All);
    let segments = segments_of(&frame, all);
    assert_eq!(flags(&segments), [kept | CWR, kept | CWR, kept | CWR, kept | CWR | PSH | FIN]);
    check_segments(&segments, Layer::Ethernet, false, "flags");
}

#[test]
fn a_payload_that_fits_comes_out_as_one_packet() {
    for payload in [0, 1, 99, 100] {
        let frame = Frame::tcp4(1, payload).with_flags(ACK | PSH | CWR).to_bytes();
        let segments =
            cut(&frame, Layer::Ethernet, tcp_gso(100), &SegmentOptions::default()).expect("cut");
        assert_eq!(segments, [frame]);
    }
}

#[test]
fn identifications_run_apart_inside_and_outside() {
    let id = |segments: &[Vec<u8>], at: usize| -> Vec<u16> {
        segments
            .iter()
            .map(|segment| u16::from_be_bytes([segment[at + 4], segment[at + 5]]))
            .collect()
    };
    let frame = Frame::tcp4(1, 250)
        .with_id(0xffff)
        .in_ip4()
        .with(|frame| frame.outer_ipv4_mut().id = 5)
        .to_bytes();
    for (inner, outer, inner_ids, outer_ids) in [
        (IpId::Increment, IpId::Increment, [0xffff, 0, 1], [5, 6, 7]),
        (IpId::Fixed, IpId::Increment, [0xffff; 3], [5, 6, 7]),
        (IpId::Increment, IpId::Fixed, [0xffff, 0, 1], [5; 3]),
        (IpId::Fixed, IpId::Fixed, [0xffff; 3], [5; 3]),
    ] {
        let gso = tcp_gso(100).with_id(inner).with_outer_id(outer);
        let segments = cut(&frame, Layer::Ethernet, gso, &SegmentOptions::default()).expect("cut");
        assert_eq!(id(&segments, 14), outer_ids);
        assert_eq!(id(&segments, 34), inner_ids);
        check_segments(&segments, Layer::Ethernet, false, "ids");
    }
}

#[test]
fn options_reserved_bit_and_extension_headers_are_copied() {
    let frame = |payload| {
        Frame::tcp4(1, payload)
            .with_ipv4(|ip| (ip.reserved, ip.options, ip.tos) = (true, vec![0x94, 4, 0, 0], 0xab))
    };
    let (frames, whole) = train(&frame(100), 100, 350);
    assert_frames(&segments_of(&whole, tcp_gso(100)), &frames, "options");

    let frame = |payload| {
        Frame::tcp6(1, payload).with_ipv6(|ip| {
            ip.extensions = vec![
                Extension::HopByHop(vec![5, 2, 0, 0]),
                Extension::DestinationOptions(vec![1, 8, 0, 0, 0, 0, 0, 0, 0, 0]),
            ];
        })
    };
    let (frames, whole) = train(&frame(100), 100, 350);
    let gso = Gso::new(GsoKind::Tcp6, tcp_gso(100).size);
    assert_frames(&segments_of(&whole, gso), &frames, "extensions");
}

#[test]
fn lengths_left_to_the_device_and_beyond_the_field_are_understood() {
    // IPv4 length 0, below 64 KB and above; IPv6 payload length 0; with partial checksums of either
    // form.
    for checksum in [Checksum::Partial, Checksum::PartialWithoutLength, Checksum::Wrong] {
        for total in [350, 100_000] {
            let frame = Frame::tcp4(9, 1000);
            let (frames, mut whole) = train(&frame, 1000, total);
            whole.ipv4_mut().total_length = Some(0);
            whole.tcp_mut().checksum = checksum;
            assert_frames(&segments_of(&whole, tcp_gso(1000)), &frames, "v4");

            let gso = Gso::new(GsoKind::Tcp6, tcp_gso(1000).size);
            let frame = Frame::tcp6(9, 1000);
            let (frames, mut whole) = train(&frame, 1000, total);
            whole.ipv6_mut().payload_length = Some(0);
            whole.tcp_mut().checksum = checksum;
            assert_frames(&segments_of(&whole, gso), &frames, "v6");
            // BIG TCP: a hop-by-hop header that holds just the length, and that the segments lose.
            whole.ipv6_mut().extensions = vec![Extension::jumbo((8 + 20 + total) as u32)];
            assert_frames(&segments_of(&whole, gso), &frames, "jumbo");
        }
    }
}

#[test]
fn padding_is_no_payload() {
    let (frames, whole) = train(&Frame::tcp4(1, 100), 100, 250);
    let whole = whole.with(|frame| frame.trailer = vec![0xff; 9]);
    assert_frames(&segments_of(&whole, tcp_gso(100)), &frames, "padding");
}

#[test]
fn a_computed_udp_checksum_of_zero_is_sent_as_ffff() {
    let frame = Frame::udp4(64).with_zero_checksum();
    let (frames, whole) = train(&frame, 64, 64);
    let gso = gso_of(GsoKind::Udp, 64);
    let segments = segments_of(&whole, gso);
    assert_eq!(segments[0][40..42], [0xff, 0xff]);
    assert_frames(&segments, &frames, "zero");
    // TCP sends the 0.
    let whole = Frame::tcp4(1, 64).with_zero_checksum();
    let segments = segments_of(&whole, tcp_gso(64));
    assert_eq!(segments[0][50..52], [0, 0]);
    // The outer one likewise, over IPv4 and IPv6: found by trying source ports.
    for ip in [outer4(), outer6()] {
        let zero = (0..=u16::MAX).find_map(|port| {
            let mut frame = vxlan(Frame::tcp4(1, 64), ip.clone(), Checksum::Right);
            frame.outer_udp_mut().source_port = port;
            let place = frame.offsets().outer.expect("a tunnel")
                + if matches!(ip, Ip::V4(_)) { 20 } else { 40 }
                + 6;
            let bytes = frame.to_bytes();
            (bytes[place..place + 2] == [0xff, 0xff]).then_some(bytes)
        });
        let whole = zero.expect("a port that makes the checksum 0");
        assert_eq!(
            cut(&whole, Layer::Ethernet, tcp_gso(64), &SegmentOptions::default()).expect("cut"),
            [whole]
        );
    }
}

#[test]
fn a_packet_without_segmentation_passes_as_it_is() {
    let bytes =
        Frame::tcp4(1, 100).padded_to(200).with_ipv4(|ip| ip.checksum = Checksum::Wrong).to_bytes();
    let mut packet = GsoPacket::linear(&bytes, tcp_gso(10));
    packet.gso = None;
    let mut segmenter = Segmenter::new();
    let mut out = Vec::new();
    let plan = segmenter.segment(&packet, &SegmentOptions::default(), |segment| {
        assert!(segment.header().is_empty());
        segment.copy_to(&mut out);
    });
    assert_eq!(plan.map(|plan| (plan.segments, plan.last_length)), Ok((1, bytes.len())));
    assert_eq!(out, bytes);
    assert_eq!(segmenter.counters().passed, 1);
    assert!(segmenter.counters().balanced());
    // Not IP at all, and empty.
    for bytes in [&b"hello"[..], &[]] {
        let packet = GsoPacket::uncut(std::slice::from_ref(&bytes));
        let mut out = Vec::new();
        segmenter.segment_linear(&packet, &SegmentOptions::default(), &mut out).expect("passed");
        assert_eq!(out, bytes);
    }
}

#[test]
fn a_partial_checksum_of_a_packet_that_passes_is_filled_in() {
    for frame in [
        Frame::tcp4(1, 101),
        Frame::udp6(100).with_zero_checksum(),
        Frame::tcp6(1, 7).in_vxlan6(),
        Frame::dccp4(3, 9).padded_to(120),
    ] {
        let right = frame.to_bytes();
        let mut partial = frame.clone();
        partial.set_checksum(Checksum::Partial);
        let bytes = partial.to_bytes();
        let start = frame.offsets().transport as u16;
        let offset = if matches!(frame.transport, Transport::Tcp(_)) { 16 } else { 6 };
        let mut packet = GsoPacket::linear(&bytes, tcp_gso(1));
        (packet.gso, packet.checksum) = (None, RxChecksum::Partial { start, offset });
        let mut segmenter = Segmenter::new();
        let mut out = Vec::new();
        segmenter
            .segment(&packet, &SegmentOptions::default(), |segment| {
                assert_eq!(segment.checksum, VERIFIED);
                segment.copy_to(&mut out);
            })
            .expect("passed");
        assert_eq!(out, right);
        // As merged: untouched.
        let options = SegmentOptions::default().with_checksum(ChecksumOutput::AsMerged);
        out.clear();
        segmenter.segment(&packet, &options, |segment| segment.copy_to(&mut out)).expect("passed");
        assert_eq!(out, bytes);
        // A place outside the packet is refused.
        packet.checksum = RxChecksum::Partial { start: u16::MAX, offset: u16::MAX };
        let refused = segmenter.segment(&packet, &SegmentOptions::default(), |_| panic!("emitted"));
        assert!(matches!(refused, Err(SegmentError::ChecksumPlace { .. })), "{refused:?}");
    }
}

#[test]
fn the_state_of_the_checksums_is_told() {
    let state = |frame: Frame, kind: GsoKind, checksum: ChecksumOutput| {
        let bytes = frame.to_bytes();
        let gso = Gso::new(kind, tcp_gso(100).size);
        let mut states = Vec::new();
        let options = SegmentOptions::default().with_checksum(checksum);
        Segmenter::new()
            .segment(&GsoPacket::linear(&bytes, gso), &options, |segment| {
                states.push(segment.checksum)
            })
            .expect("cut");
        assert!(states.windows(2).all(|pair| pair[0] == pair[1]));
        states[0]
    };
    let full = ChecksumOutput::Full;
    assert_eq!(state(Frame::tcp4(1, 300), GsoKind::Tcp4, full), VERIFIED);
    assert_eq!(
        state(Frame::tcp4(1, 300).in_vxlan6(), GsoKind::Tcp4, full),
        RxChecksum::Unnecessary { level: 1 }
    );
    assert_eq!(state(Frame::tcp4(1, 300).in_vxlan4(), GsoKind::Tcp4, full), VERIFIED);
    let partial = RxChecksum::Partial { start: 34, offset: 16 };
    assert_eq!(state(Frame::tcp4(1, 300), GsoKind::Tcp4, ChecksumOutput::Partial), partial);
    let zero = Frame::udp4(300).with_checksum(Checksum::Zero);
    assert_eq!(state(zero, GsoKind::Udp, ChecksumOutput::Partial), RxChecksum::None);
}

#[test]
fn the_size_for_an_mtu_fits_it_exactly() {
    for (_, link) in LINKS {
        for (_, tunnel) in TUNNELS {
            for (frame, kind) in [
                (Frame::tcp4(1, 5000).with_timestamps(1, 2), GsoKind::Tcp4),
                (Frame::tcp6(1, 5000), GsoKind::Tcp6),
                (Frame::udp4(5000), GsoKind::Udp),
                (Frame::udp6(5000), GsoKind::UdpFragments),
                (Frame::udp4(5000), GsoKind::UdpFragments),
            ] {
                let frame = tunnel(link(frame));
                let bytes = frame.to_bytes();
                let layout = wire::parse(&bytes, bytes.len(), layer(&frame)).expect("headers");
                let mtu = 1500;
                let size = SegmentSize::for_mtu(&layout, kind, mtu).expect("room");
                let segments = cut(
                    &bytes,
                    layer(&frame),
                    Gso::new(kind, size),
                    &SegmentOptions::default().with_fragment_id(1),
                )
                .expect("cut");
                let length = segments[0].len() - usize::from(layout.outermost());
                let slack = if kind == GsoKind::UdpFragments { 7 } else { 0 };
                assert!(length <= mtu && length + slack >= mtu, "{kind:?}: {length}");
            }
        }
    }
    let bytes = Frame::tcp4(1, 10).to_bytes();
    let layout = wire::parse(&bytes, bytes.len(), Layer::Ethernet).expect("headers");
    assert_eq!(SegmentSize::for_mtu(&layout, GsoKind::Tcp4, 40), None);
    assert_eq!(SegmentSize::for_mtu(&layout, GsoKind::Tcp4, 41), SegmentSize::new(1));
    assert_eq!(SegmentSize::for_mtu(&layout, GsoKind::Tcp4, usize::MAX), SegmentSize::new(65_535));
}

#[test]
fn errors_say_what_is_wrong() {
    let refused = |frame: Frame, gso: Gso| {
        cut(&frame.to_bytes(), layer(&frame), gso, &SegmentOptions::default()).expect_err("refused")
    };
    let tcp = tcp_gso(100);
    assert!(matches!(refused(Frame::tcp6(1, 300), tcp), SegmentError::Kind { .. }));
    assert!(matches!(refused(Frame::udp4(300), tcp), SegmentError::Kind { .. }));
    assert!(matches!(
        refused(Frame::tcp4(1, 300), Gso::new(GsoKind::Dccp, tcp.size)),
        SegmentError::Kind { .. }
    ));
    // A second tunnel, a fragment, SCTP, not IP.
    let fragment = Frame::tcp4(1, 300).with_ipv4(|ip| ip.more_fragments = true);
    assert!(matches!(refused(fragment, tcp), SegmentError::Headers(_)));
    let unknown = Frame::tcp4(1, 300).with(|frame| frame.transport = Transport::Raw(99));
    assert!(matches!(refused(unknown, tcp), SegmentError::Headers(_)));
    // Lengths that lie.
    let long = Frame::tcp4(1, 300).with_ipv4(|ip| ip.total_length = Some(400));
    assert_eq!(refused(long, tcp), SegmentError::Truncated { needed: 414, got: 354 });
    // ... also behind something that would not matter.
    let hidden = Frame::tcp4(1, 300).with_ipv4(|ip| {
        (ip.total_length, ip.options, ip.reserved) = (Some(404), vec![1; 4], true);
    });
    assert!(matches!(refused(hidden, tcp), SegmentError::Truncated { .. }));
    let udp = Frame::udp4(300).with_udp(|udp| udp.length = Some(100));
    assert!(matches!(refused(udp, Gso::new(GsoKind::Udp, tcp.size)), SegmentError::Length { .. }));
    let outer =
        Frame::tcp4(1, 300).in_vxlan4().with(|frame| frame.outer_udp_mut().length = Some(100));
    assert!(matches!(refused(outer, tcp), SegmentError::Length { .. }));
    let inner = Frame::tcp4(1, 300).in_vxlan4().with_ipv4(|ip| ip.total_length = Some(100));
    assert!(matches!(refused(inner, tcp), SegmentError::Length { .. }));
    let pppoe = Frame::tcp4(1, 300)
        .with(|frame| frame.pppoe = Some(Pppoe { length: Some(100), ..Pppoe::default() }));
    assert!(matches!(refused(pppoe, tcp), SegmentError::Length { .. }));
    let jumbo = Frame::tcp6(1, 300).with_ipv6(|ip| {
        (ip.payload_length, ip.extensions) = (Some(0), vec![Extension::jumbo(10_000)])
    });
    assert!(matches!(
        refused(jumbo, Gso::new(GsoKind::Tcp6, tcp.size)),
        SegmentError::Truncated { .. }
    ));
    // DCCP: a type without data, a checksum that covers more than the last segment.
    let close = Frame::dccp4(1, 300)
        .with(|frame| frame.dccp_mut().kind = superpacket_traffic::frame::Dccp::CLOSE);
    let dccp = Gso::new(GsoKind::Dccp, tcp.size);
    assert!(matches!(refused(close, dccp), SegmentError::Headers(_)));
    let coverage = Frame::dccp4(1, 303).with_dccp(|dccp| dccp.coverage = 2);
    assert_eq!(refused(coverage, dccp), SegmentError::Coverage { needed: 4, got: 3 });
    // Segments of more than 65,535 bytes.
    let big = Frame::tcp4(1, 100_000);
    assert!(matches!(refused(big, tcp_gso(65_535)), SegmentError::SegmentTooLong { .. }));
    // Too many.
    let options =
        SegmentOptions::default().with_max_segments(MaxSegments::new(2).expect("not zero"));
    let bytes = Frame::tcp4(1, 201).to_bytes();
    assert_eq!(
        cut(&bytes, Layer::Ethernet, tcp, &options),
        Err(SegmentError::TooManySegments { needed: 3, limit: 2 })
    );
    // No room for the output: nothing is written.
    let mut out = vec![0xee; 254 + 54 * 2 - 1];
    let got = Segmenter::new().segment_linear(
        &GsoPacket::linear(&bytes, tcp),
        &SegmentOptions::default(),
        &mut BackToBack::new(&mut out),
    );
    assert_eq!(
        got,
        Err(SegmentError::OutputTooSmall { needed: 201 + 54 * 3, got: 201 + 54 * 3 - 2 })
    );
    assert!(out.iter().all(|byte| *byte == 0xee));
}

/// Room of 300 bytes for each header.
struct Headers<'a> {
    rest: &'a mut [u8],
    handed_out: usize,
}

impl SegmentBuffers for Headers<'_> {
    fn buffer(&mut self, length: usize) -> Option<&mut [u8]> {
        assert!(length <= 300);
        self.handed_out += 1;
        let (room, rest) = std::mem::take(&mut self.rest).split_at_mut_checked(300)?;
        self.rest = rest;
        Some(room)
    }
}

/// Buffers that accept any plan, and end after so many.
struct Ending {
    left: usize,
    buffer: Vec<u8>,
    written: u32,
}

impl SegmentBuffers for Ending {
    fn buffer(&mut self, length: usize) -> Option<&mut [u8]> {
        self.left = self.left.checked_sub(1)?;
        self.buffer.resize(length, 0);
        Some(&mut self.buffer)
    }

    fn written(&mut self, _: WrittenSegment) {
        self.written += 1;
    }
}

#[test]
fn the_counters_balance_when_the_buffers_end_half_way() {
    let mut segmenter = Segmenter::new();
    let tcp = Frame::tcp4(1, 1000).to_bytes();
    let datagram = Frame::udp6(1000).to_bytes();
    let fragments = gso_of(GsoKind::UdpFragments, 304);
    let (mut packets, mut segments, mut payload) = (0, 0, 0);
    for (bytes, gso, size, first) in
        [(&tcp, tcp_gso(300), 300, 300), (&datagram, fragments, 304, 304 - 8)]
    {
        for left in 0..4 {
            let mut buffers = Ending { left, buffer: Vec::new(), written: 0 };
            let cut = segmenter.segment_linear(
                &GsoPacket::linear(bytes, gso),
                &SegmentOptions::default(),
                &mut buffers,
            );
            assert!(matches!(cut, Err(SegmentError::OutputTooSmall { got: 0, .. })), "{cut:?}");
            assert_eq!(buffers.written as usize, left);
            packets += 1;
            // The same where headers alone are written.
            let mut headers = Ending { left, buffer: Vec::new(), written: 0 };
            let mut seen = 0;
            let packet = GsoPacket::linear(bytes, gso);
            let cut = segmenter.segment_with_headers(
                &packet,
                &SegmentOptions::default(),
                &mut headers,
                |_| seen += 1,
            );
            assert!(matches!(cut, Err(SegmentError::OutputTooSmall { got: 0, .. })), "{cut:?}");
            assert_eq!(seen, left);
            packets += 1;
            segments += 2 * left as u64;
            payload += 2 * if left == 0 { 0 } else { first + (left - 1) * size } as u64;
            let counters = segmenter.counters();
            assert!(counters.balanced(), "{left}: {counters:?}");
            assert_eq!(
                (counters.packets, counters.refused(), counters.cut, counters.passed),
                (packets, packets, 0, 0)
            );
            assert_eq!(
                (counters.segments, counters.payload_in, counters.payload_out),
                (segments, payload, payload)
            );
        }
    }
    // One that passes whole, and fragments of any packet.
    let packet = GsoPacket::uncut(std::slice::from_ref(&tcp));
    let mut buffers = Ending { left: 0, buffer: Vec::new(), written: 0 };
    assert!(segmenter.segment_linear(&packet, &SegmentOptions::default(), &mut buffers).is_err());
    buffers.left = 2;
    let packet = GsoPacket::uncut(std::slice::from_ref(&datagram));
    assert!(segmenter.fragment_linear(&packet, 400, Some(1), &mut buffers).is_err());
    let mut whole = Vec::new();
    assert!(
        segmenter
            .segment_linear(
                &GsoPacket::linear(&tcp, tcp_gso(300)),
                &SegmentOptions::default(),
                &mut whole
            )
            .is_ok()
    );
    let counters = segmenter.counters();
    assert_eq!(
        (counters.packets, counters.cut, counters.refused(), counters.balanced()),
        (packets + 3, 1, packets + 2, true)
    );
}

#[test]
fn jumbo_lengths_at_the_edge_of_32_bits_are_refused() {
    // Where an address has 32 bits, a sum of such a length and an offset does not fit (.ci/run runs
    // this there).
    for length in (u32::MAX - 100)..=u32::MAX {
        for around in [
            (|frame| frame) as fn(Frame) -> Frame,
            Frame::at_ip,
            |frame| frame.in_ip6(),
            |frame| frame.in_vxlan4(),
        ] {
            let frame = around(Frame::tcp6(1, 3000).with_ipv6(|ip| {
                (ip.extensions, ip.payload_length) = (vec![Extension::jumbo(length)], Some(0))
            }));
            let (bytes, layer) = (frame.to_bytes(), layer(&frame));
            let layout = wire::parse(&bytes, bytes.len(), layer).expect("headers are whole");
            assert_eq!(layout.refusal.map(|refusal| refusal.name()), Some("no_length"));
            let gso = gso_of(GsoKind::Tcp6, 1000);
            let refused = cut(&bytes, layer, gso, &SegmentOptions::default());
            assert!(
                matches!(refused, Err(SegmentError::Truncated { .. } | SegmentError::Headers(_))),
                "{refused:?}"
            );
            let start = frame.offsets().transport as u16;
            let mut copy = bytes.clone();
            let refused = superpacket::checksum::complete_partial(
                &mut copy,
                layer,
                start,
                16,
                superpacket::Simd::detect(),
            );
            assert!(
                matches!(refused, Err(superpacket::checksum::CompletionError::Truncated { .. })),
                "{refused:?}"
            );
        }
    }
}
