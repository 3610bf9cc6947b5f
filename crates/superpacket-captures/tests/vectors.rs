//! Checks that the files in `vectors/` agree with the tables here and with the engine.
//!
//! `SUPERPACKET_WRITE_VECTORS=1 cargo test -p superpacket-captures --test vectors` writes them
//! again.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::{env, fs};

use serde_json::{Value, json};
use superpacket::checksum::{Sum, complete_partial, pseudo_header, words};
use superpacket::packet::RxChecksum;
use superpacket::segment::{GsoPacket, SegmentOptions, Segmenter};
use superpacket::virtio::{ByteOrder, Format, Framing, Header, VirtioError, flags, gso_type};
use superpacket::wire::{IpVersion, Layer};
use superpacket::{BatchAggregator, HashKey, Policy, Simd};
use superpacket_captures::file::{
    Compression, Container, FrameOptions, Interface, OptionForm, OutputFormat, Record, Sink,
    TimeResolution, Timestamp, Writer,
};
use superpacket_captures::{CheckOptions, Input, LinkType, Strictness, check};
use superpacket_steer::{FlowTuple, Toeplitz, ToeplitzKey};
use superpacket_traffic::frame::{
    ACK, CWR, Checksum, ECE, FIN, Frame, PSH, Transport, stream_bytes,
};
use superpacket_traffic::gro_table;

/// Version of the files' format. New cases do not change it.
const VERSION: u32 = 1;

/// A packet with its comment.
type Commented = (Vec<u8>, String);

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares a file with the expected content, or writes it.
fn keep(name: &str, made: &[u8]) {
    let path = folder().join(name);
    if env::var_os("SUPERPACKET_WRITE_VECTORS").is_some() {
        fs::create_dir_all(folder()).expect("creates");
        fs::write(&path, made).expect("writes");
    }
    let there = fs::read(&path).unwrap_or_default();
    assert!(
        there == made,
        "vectors/{name} is stale: SUPERPACKET_WRITE_VECTORS=1 cargo test -p superpacket-captures --test vectors"
    );
}

/// A file of cases, one per line, so that differences are readable.
fn keep_json(name: &str, about: &str, cases: &[Value]) {
    let lines: Vec<_> = cases.iter().map(|case| format!("    {case}")).collect();
    keep(
        &format!("{name}.json"),
        format!(
            "{{\n  \"version\": {VERSION},\n  \"about\": {},\n  \"cases\": [\n{}\n  ]\n}}\n",
            json!(about),
            lines.join(",\n")
        )
        .as_bytes(),
    );
}

/// Returns a pcapng file of these packets.
fn keep_pcapng(name: &str, packets: &[Commented]) -> PathBuf {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.pcapng");
    let byte_order = superpacket_captures::file::ByteOrder::Little;
    let format = OutputFormat {
        container: Container::PcapNg,
        byte_order,
        resolution: None,
        compression: Compression::None,
    };
    let mut writer = Writer::create(&path, format).expect("creates");
    writer
        .declare(&[Interface::new(LinkType::ETHERNET, TimeResolution::NANOSECONDS)])
        .expect("declares");
    for (number, (bytes, comment)) in packets.iter().enumerate() {
        let mut options = [1u16.to_ne_bytes(), (comment.len() as u16).to_ne_bytes()].concat();
        options.extend(comment.bytes());
        options.resize(options.len().next_multiple_of(4), 0);
        let time =
            Some(Timestamp::from_nanoseconds(1_700_000_000_000_000_000 + 1000 * number as u64));
        let options = FrameOptions::new(&options, OptionForm::NONE);
        writer
            .write(
                Record { interface: 0, time, original_length: None, options },
                [bytes.as_slice()],
            )
            .expect("writes");
    }
    writer.finish().expect("finishes");
    keep(&format!("{name}.pcapng"), &fs::read(path).expect("reads"));
    self::folder().join(format!("{name}.pcapng"))
}

/// Checks that the expected packets are faithful by the stricter rules, except for the rules in
/// `allowed`.
fn assert_faithful(expected: &Path, original: &Path, allowed: &[&str]) {
    let options = CheckOptions { rules: Strictness::Reversible, ..CheckOptions::default() };
    let report =
        check(Input::Path(expected), Input::Path(original), &options, &mut ()).expect("both");
    let broken: Vec<_> = report
        .by_rule
        .keys()
        .map(|rule| rule.name())
        .filter(|name| !allowed.contains(name))
        .collect();
    assert!(broken.is_empty(), "{broken:?}: {:#?}", report.described);
}

/// Returns the header in the form of a packet comment.
fn comment(header: &[u8]) -> String {
    format!("virtio_net_hdr={}", hex(header))
}

/// A case of aggregation: its name, the frames of each poll, and the number of frames in each
/// packet that leaves, if the table has it.
type Aggregation = (String, Vec<Vec<Frame>>, Option<Vec<usize>>);

fn aggregation_cases() -> Vec<Aggregation> {
    let mut cases = Vec::new();
    // There is no case for 65,535 bytes, which would take megabytes.
    let long = gro_table::as_many_as_fit().into_iter().map(|case| case.name).collect::<Vec<_>>();
    for case in gro_table::all() {
        let plain = [": IPv4", ": IPv6", ": IPv4 with increasing identifications"]
            .iter()
            .any(|end| case.name.ends_with(end));
        if plain && !long.contains(&case.name) {
            let arrives = case
                .bursts
                .iter()
                .flat_map(|burst| {
                    burst.packets().into_iter().map(<[Frame]>::len).collect::<Vec<_>>()
                })
                .collect();
            cases.push((
                case.name,
                case.bursts.into_iter().map(|burst| burst.frames).collect(),
                Some(arrives),
            ));
        }
    }
    let tcp = |edit: fn(&mut [Frame])| {
        let mut frames = Frame::tcp4(1000, 100).with_id(7).run(4);
        edit(&mut frames);
        vec![frames]
    };
    cases.extend([
        ("TCP: CWR on the first".to_owned(), tcp(|frames| frames[0].tcp_mut().flags |= CWR), None),
        ("TCP: CWR on the second".to_owned(), tcp(|frames| frames[1].tcp_mut().flags |= CWR), None),
        (
            "TCP: ECE on all".to_owned(),
            tcp(|frames| frames.iter_mut().for_each(|frame| frame.tcp_mut().flags |= ECE)),
            None,
        ),
        (
            "TCP: FIN and PSH on the last".to_owned(),
            tcp(|frames| frames[3].tcp_mut().flags |= FIN | PSH),
            None,
        ),
        ("TCP: another window".to_owned(), tcp(|frames| frames[2].tcp_mut().window += 1), None),
        (
            "TCP: another acknowledgement".to_owned(),
            tcp(|frames| frames[2].tcp_mut().acknowledgement += 1),
            None,
        ),
        (
            "TCP: another VLAN".to_owned(),
            {
                let mut frames = Frame::tcp4(1000, 100).with_id(7).tagged(10).run(2);
                frames[1].vlans[0].vid = 20;
                vec![frames]
            },
            None,
        ),
        (
            "TCP: identifications around the end of their range".to_owned(),
            vec![Frame::tcp4(1000, 100).with_id(0xfffe).run(4)],
            None,
        ),
        (
            "TCP: sequence numbers around the end of their range".to_owned(),
            vec![Frame::tcp4(u32::MAX - 150, 100).with_id(1).run(4)],
            None,
        ),
    ]);
    let udp = |frame: Frame, lengths: &[usize], edit: fn(&mut [Frame])| {
        let mut frames = frame.run(lengths.len());
        for (index, (frame, &length)) in frames.iter_mut().zip(lengths).enumerate() {
            frame.payload = stream_bytes(1000 * index as u32, length);
        }
        edit(&mut frames);
        vec![frames]
    };
    for (version, frame) in [("IPv4", Frame::udp4(100).with_id(7)), ("IPv6", Frame::udp6(100))] {
        let case = |row: &str, frames| (format!("UDP: {row}: {version}"), frames, None);
        cases.extend([
            case("same size", udp(frame.clone(), &[100, 100, 100], |_| {})),
            case("the last shorter", udp(frame.clone(), &[100, 100, 40], |_| {})),
            case("one behind a shorter", udp(frame.clone(), &[100, 40, 100], |_| {})),
            case("a longer one", udp(frame.clone(), &[100, 120, 120], |_| {})),
            case(
                "a wrong checksum",
                udp(frame.clone(), &[100; 3], |frames| {
                    frames[1].udp_mut().checksum = Checksum::Wrong
                }),
            ),
            case(
                "no checksum",
                udp(frame, &[100; 3], |frames| frames[1].udp_mut().checksum = Checksum::Zero),
            ),
        ]);
    }
    cases
}

#[test]
fn aggregation() {
    let framing = Framing::new(Format::Plain, ByteOrder::Little, Layer::Ethernet);
    let (mut cases, mut original, mut expected) = (Vec::new(), Vec::new(), Vec::new());
    for (name, polls, arrives) in aggregation_cases() {
        let mut aggregator =
            BatchAggregator::framed(framing, Policy::gro_with_udp(), HashKey::new(1));
        let (mut left, mut counts) = (Vec::new(), Vec::new());
        for frames in &polls {
            let frames: Vec<_> = frames.iter().map(Frame::to_bytes).collect();
            let done: Result<(), VirtioError> = aggregator.poll(&frames, |packet| {
                let mut bytes = Vec::new();
                packet.copy_to(&mut bytes);
                let header = framing.header(&packet)?;
                expected.push((bytes.clone(), comment(&header)));
                counts.push(packet.metadata.packets as usize);
                left.push(json!({ "packets": packet.metadata.packets, "virtio_net_hdr": hex(&header), "packet": hex(&bytes) }));
                Ok(())
            });
            done.expect("no tunnels here");
            original.extend(frames.into_iter().map(|frame| (frame, name.clone())));
        }
        // The table defines the expected packets; the engine does not make its own expectations.
        // But no header can express CWR on all segments.
        let arrives = if name.starts_with("CWR on the second and third") {
            Some(vec![1, 1, 1, 2])
        } else {
            arrives
        };
        assert!(arrives.is_none_or(|arrives| arrives == counts), "{name}: {counts:?}");
        let polls: Vec<Vec<_>> = polls
            .iter()
            .map(|frames| frames.iter().map(|frame| hex(&frame.to_bytes())).collect())
            .collect();
        cases.push(json!({ "name": name, "polls": polls, "left": left }));
    }
    assert!(cases.len() > 90, "{}", cases.len());
    keep_json(
        "aggregation",
        "Frames of each poll, in hexadecimal from the Ethernet header on, and what leaves: see README.md",
        &cases,
    );
    let (original, expected) =
        (keep_pcapng("aggregation", &original), keep_pcapng("aggregation-expected", &expected));
    assert_faithful(&expected, &original, &["ip-id-fixed", "canonical-checksum"]);
}

/// Cases of segmentation: a frame, and the size of its segments.
fn super_packets() -> Vec<(&'static str, Frame, usize)> {
    let (tcp, udp) =
        (|length| Frame::tcp4(1000, length).with_id(7), |length| Frame::udp4(length).with_id(7));
    vec![
        ("TCP over IPv4", tcp(350), 100),
        ("TCP over IPv4: an exact multiple", tcp(300), 100),
        ("TCP over IPv4: odd sizes", tcp(350), 99),
        ("TCP over IPv4: PSH and FIN", tcp(350).with_flags(ACK | PSH | FIN), 100),
        ("TCP over IPv4: CWR", tcp(350).with_flags(ACK | CWR), 100),
        ("TCP over IPv4: ECE", tcp(350).with_flags(ACK | ECE), 100),
        ("TCP over IPv4: timestamps", tcp(350).with_timestamps(8, 9), 100),
        (
            "TCP over IPv4: identifications around the end of their range",
            tcp(350).with_id(0xfffe),
            100,
        ),
        (
            "TCP over IPv4: sequence numbers around the end of their range",
            Frame::tcp4(u32::MAX - 150, 350),
            100,
        ),
        ("TCP over IPv4: it fits a segment", tcp(100), 100),
        ("TCP over IPv4 in a VLAN", tcp(350).tagged(12), 100),
        ("TCP over IPv6", Frame::tcp6(1000, 350), 100),
        ("TCP over IPv6: timestamps", Frame::tcp6(1000, 350).with_timestamps(8, 9), 100),
        ("TCP over IPv4 in VXLAN over IPv4", tcp(350).in_vxlan4(), 100),
        ("TCP over IPv4 in VXLAN over IPv6", tcp(350).in_vxlan6(), 100),
        ("UDP over IPv4", udp(350), 100),
        ("UDP over IPv4: an exact multiple", udp(300), 100),
        ("UDP over IPv6", Frame::udp6(350), 100),
        ("UDP over IPv6: a segment whose checksum is 0 before it is sent", zero_segments(), 100),
        ("UDP over IPv4 to IP fragments", udp(350), 0),
    ]
}

/// Returns a datagram whose first segment has a computed checksum of 0.
fn zero_segments() -> Frame {
    let first = Frame::udp6(100).with_zero_checksum();
    Frame::udp6(0).with(|frame| frame.payload = [first.payload.clone(), vec![5; 100]].concat())
}

/// Returns the header of a super-packet, and the bytes that it describes.
fn described(frame: &Frame, size: usize) -> (Vec<u8>, Header, Format) {
    let frame = frame.clone().with(|frame| {
        *frame.checksum_mut().expect("it has one") = Checksum::Partial;
        // Linux expects this sum in a super-packet, and adds the sum of each segment.
        if frame.tunnel.is_some() && frame.outer_udp_mut().checksum != Checksum::Zero {
            frame.outer_udp_mut().checksum = Checksum::Partial;
        }
    });
    let offsets = frame.offsets();
    let is_udp = matches!(frame.transport, Transport::Udp(_));
    let tcp = if matches!(frame.ip, superpacket_traffic::frame::Ip::V4(_)) {
        gso_type::TCPV4
    } else {
        gso_type::TCPV6
    };
    let ecn = match &frame.transport {
        Transport::Tcp(header) if header.flags & CWR != 0 => gso_type::ECN,
        _ => 0,
    };
    let mut header = Header {
        flags: flags::NEEDS_CSUM,
        gso_type: match (is_udp, size) {
            (true, 0) => gso_type::UDP,
            (true, _) => gso_type::UDP_L4,
            _ => tcp | ecn,
        },
        gso_size: if size == 0 { 96 } else { size as u16 },
        hdr_len: offsets.payload as u16,
        csum_start: offsets.transport as u16,
        csum_offset: if is_udp { 6 } else { 16 },
        num_buffers: 1,
        ..Header::default()
    };
    let mut format = Format::Buffers;
    if let (Some(outer), Some(tunnel)) = (offsets.outer, &frame.tunnel) {
        let over_ipv4 = matches!(tunnel.ip, superpacket_traffic::frame::Ip::V4(_));
        header.gso_type |=
            if over_ipv4 { gso_type::UDP_TUNNEL_IPV4 } else { gso_type::UDP_TUNNEL_IPV6 };
        header.outer_th_offset = outer as u16 + if over_ipv4 { 20 } else { 40 };
        header.inner_nh_offset = offsets.network as u16;
        header.flags |= if over_ipv4 { 0 } else { flags::UDP_TUNNEL_CSUM };
        format = Format::Tunnel;
    }
    (frame.to_bytes(), header, format)
}

fn header_bytes(header: &Header, format: Format) -> Vec<u8> {
    let mut bytes = [0; Format::LONGEST];
    let length = header.write(&mut bytes, format, ByteOrder::Little).expect("long enough");
    bytes[..length].to_vec()
}

#[test]
fn segmentation() {
    let (mut cases, mut original, mut expected) = (Vec::new(), Vec::new(), Vec::new());
    for (name, frame, size) in super_packets() {
        let (bytes, header, format) = described(&frame, size);
        let offload = header.offload(format, &bytes, bytes.len(), Layer::Ethernet).expect(name);
        let mut segments = Vec::new();
        let buffers = [bytes.as_slice()];
        let packet = match offload.gso {
            Some(gso) => GsoPacket::new(&buffers, gso),
            None => GsoPacket::uncut(&buffers),
        };
        let packet = packet.with_layer(Layer::Ethernet).with_checksum(offload.checksum);
        let cut = Segmenter::new().segment(&packet, &SegmentOptions::default(), |segment| {
            let mut bytes = Vec::new();
            segment.copy_to(&mut bytes);
            segments.push(bytes);
        });
        cut.expect(name);
        let expect = superpacket_traffic::check::Expect::default();
        segments.iter().for_each(|segment| {
            drop(superpacket_traffic::check::frame(segment, &expect).expect(name))
        });
        let header = header_bytes(&header, format);
        original.push((bytes.clone(), comment(&header)));
        expected.extend(segments.iter().map(|segment| (segment.clone(), name.to_owned())));
        let segments: Vec<_> = segments.iter().map(|segment| hex(segment)).collect();
        cases.push(json!({ "name": name, "virtio_net_hdr": hex(&header), "packet": hex(&bytes), "segments": segments }));
    }
    keep_json(
        "segmentation",
        "A super-packet behind its header, from the Ethernet header on, and its segments: see README.md",
        &cases,
    );
    let (original, expected) =
        (keep_pcapng("segmentation", &original), keep_pcapng("segmentation-expected", &expected));
    assert_faithful(&expected, &original, &[]);
}

#[test]
fn virtio() {
    let mut cases = Vec::new();
    let mut case = |name: &str, bytes: &[u8], header: Header, format: Format| {
        let meaning = match header.offload(format, bytes, bytes.len(), Layer::Ethernet) {
            Err(error) => json!({ "error": error.field() }),
            Ok(offload) => json!({
                "segment_size": offload.gso.map(|gso| gso.size.get()),
                "checksum": match offload.checksum {
                    RxChecksum::Partial { .. } => "partial",
                    RxChecksum::Unnecessary { .. } => "verified",
                    _ => "unknown",
                },
            }),
        };
        cases.push(json!({
            "name": name,
            "virtio_net_hdr": hex(&header_bytes(&header, format)),
            "packet": hex(bytes),
            "meaning": meaning,
        }));
    };
    let (tcp, header, format) = described(&Frame::tcp4(1000, 350), 100);
    case("TCP over IPv4", &tcp, header, format);
    for (name, header) in [
        ("no offload", Header::default()),
        ("a checksum to be completed", Header { gso_type: 0, gso_size: 0, ..header }),
        ("a verified checksum", Header { flags: flags::DATA_VALID, ..Header::default() }),
        ("TCP without NEEDS_CSUM", Header { flags: 0, ..header }),
        ("gso_size is 0", Header { gso_size: 0, ..header }),
        ("gso_size is 65535", Header { gso_size: u16::MAX, ..header }),
        ("the payload fits gso_size", Header { gso_size: 350, ..header }),
        ("an unknown type", Header { gso_type: 2, ..header }),
        ("the type of IPv6", Header { gso_type: gso_type::TCPV6, ..header }),
        ("the type of UDP", Header { gso_type: gso_type::UDP_L4, ..header }),
        ("ECN without a type", Header { gso_type: gso_type::ECN, ..header }),
        (
            "both tunnel types",
            Header { gso_type: gso_type::TCPV4 | gso_type::UDP_TUNNEL, ..header },
        ),
        (
            "a tunnel type without a tunnel",
            Header { gso_type: gso_type::TCPV4 | gso_type::UDP_TUNNEL_IPV4, ..header },
        ),
        (
            "NEEDS_CSUM with RSC_INFO",
            Header { flags: flags::NEEDS_CSUM | flags::RSC_INFO, ..header },
        ),
        ("the checksum lies outside the packet", Header { csum_start: 9000, ..header }),
        (
            "csum_start is not the TCP header",
            Header { csum_start: header.csum_start - 20, ..header },
        ),
        ("csum_offset is UDP's", Header { csum_offset: 6, ..header }),
        ("hdr_len is a hint", Header { hdr_len: 1, ..header }),
    ] {
        case(name, &tcp, header, format);
    }
    let (udp, header, format) = described(&Frame::udp6(350), 100);
    case("UDP over IPv6", &udp, header, format);
    case("UDP without NEEDS_CSUM", &udp, Header { flags: 0, ..header }, format);
    let (udp, header, format) = described(&Frame::udp4(1290), 10);
    case("UDP in 129 segments", &udp, header, format);
    let (vxlan, header, format) = described(&Frame::tcp4(1, 350).in_vxlan6(), 100);
    case("VXLAN over IPv6", &vxlan, header, format);
    case("a tunnel in a header of 12 bytes", &vxlan, header, Format::Buffers);
    case(
        "outer_th_offset is not the outer UDP header",
        &vxlan,
        Header { outer_th_offset: 14, ..header },
        format,
    );
    case(
        "inner_nh_offset is not the inner IP header",
        &vxlan,
        Header { inner_nh_offset: 14, ..header },
        format,
    );
    keep_json(
        "virtio",
        "A header and its packet, and what the header means, or the field that is wrong: see README.md",
        &cases,
    );
}

#[test]
fn checksums() {
    let mut cases = Vec::new();
    let sums: [(&str, Vec<u8>); 6] = [
        ("nothing", vec![]),
        ("the example of RFC 1071", vec![0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]),
        ("an odd length", vec![0x12, 0x34, 0x56]),
        ("all ones", vec![0xff; 6]),
        ("zeros", vec![0; 5]),
        ("many carries", (0..=255u8).rev().cycle().take(1001).collect()),
    ];
    for (name, bytes) in sums {
        let sum = words(&bytes);
        cases.push(json!({ "name": name, "bytes": hex(&bytes), "sum": sum.fold(), "checksum": sum.checksum() }));
    }
    let rfc = words(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
    assert_eq!(rfc.fold(), 0xddf2);
    for (name, frame) in [
        ("TCP over IPv4", Frame::tcp4(1, 101)),
        ("TCP over IPv6", Frame::tcp6(1, 100)),
        ("UDP over IPv4", Frame::udp4(101)),
        ("UDP over IPv6: 0 is sent as 0xFFFF", Frame::udp6(100).with_zero_checksum()),
    ] {
        let complete = frame.to_bytes();
        let partial = frame
            .clone()
            .with(|frame| *frame.checksum_mut().expect("it has one") = Checksum::Partial);
        let (offsets, mut bytes) = (partial.offsets(), partial.to_bytes());
        let is_udp = matches!(frame.transport, Transport::Udp(_));
        let (start, offset) = (offsets.transport as u16, if is_udp { 6 } else { 16 });
        let before = hex(&bytes);
        let version = if bytes[14] >> 4 == 4 { IpVersion::V4 } else { IpVersion::V6 };
        let length = (bytes.len() - offsets.transport) as u32;
        let pseudo =
            pseudo_header(&bytes[offsets.network..], version, if is_udp { 17 } else { 6 }, length);
        complete_partial(&mut bytes, Layer::Ethernet, start, offset, Simd::detect()).expect(name);
        assert_eq!(bytes, complete, "{name}");
        assert!(Sum::new(pseudo.fold()).add_sum(words(&bytes[offsets.transport..])).is_valid());
        cases.push(json!({
            "name": format!("a partial checksum: {name}"),
            "packet": before,
            "csum_start": start,
            "csum_offset": offset,
            "pseudo_header": pseudo.fold(),
            "complete": hex(&bytes),
        }));
    }
    keep_json(
        "checksum",
        "Bytes and their sum, and packets with partial checksums before and after completion: see README.md",
        &cases,
    );
}

#[test]
fn toeplitz() {
    // These values are published in the specification of RSS.
    let published = [
        ("66.9.149.187", 2794, "161.142.100.80", 1766, 0x323e_8fc2u32, 0x51cc_c178u32),
        ("199.92.111.2", 14230, "65.69.140.83", 4739, 0xd718_262a, 0xc626_b0ea),
        ("24.19.198.95", 12898, "12.22.207.184", 38024, 0xd2d0_a5de, 0x5c2b_394a),
        ("38.27.205.30", 48228, "209.142.163.6", 2217, 0x8298_9176, 0xafc7_327f),
        ("153.39.163.191", 44251, "202.188.127.2", 1303, 0x5d18_09c5, 0x10e8_28a2),
        ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x2cc1_8cd5, 0x4020_7d3d),
        ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0x0f0c_461c, 0xdde5_1bbf),
        (
            "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
            44251,
            "fe80::200:f8ff:fe21:67cf",
            38024,
            0x4b61_e985,
            0x02d1_feef,
        ),
    ];
    let toeplitz = Toeplitz::new(&ToeplitzKey::MICROSOFT);
    let mut cases = Vec::new();
    for (source, source_port, destination, destination_port, addresses, with_ports) in published {
        for (ports, hash) in
            [(None, addresses), (Some([source_port, destination_port]), with_ports)]
        {
            let (from, to): (IpAddr, IpAddr) =
                (source.parse().expect("an address"), destination.parse().expect("an address"));
            let mut input = Vec::new();
            let flow = match (from, to) {
                (IpAddr::V4(from), IpAddr::V4(to)) => {
                    input.extend([from.octets(), to.octets()].concat());
                    FlowTuple::v4(from.octets(), to.octets(), ports)
                }
                (IpAddr::V6(from), IpAddr::V6(to)) => {
                    input.extend([from.octets(), to.octets()].concat());
                    FlowTuple::v6(from.octets(), to.octets(), ports)
                }
                _ => unreachable!("of one version"),
            };
            ports.into_iter().flatten().for_each(|port| input.extend(port.to_be_bytes()));
            assert_eq!(toeplitz.hash_flow(&flow).0, hash, "{source}");
            cases.push(json!({
                "name": format!("{source} to {destination}, {}", if ports.is_some() { "with ports" } else { "addresses alone" }),
                "key": hex(ToeplitzKey::MICROSOFT.bytes()),
                "source": source,
                "destination": destination,
                "ports": ports,
                "input": hex(&input),
                "hash": hash,
            }));
        }
    }
    keep_json("toeplitz", "The published key and flows, and their hashes: see README.md", &cases);
}
