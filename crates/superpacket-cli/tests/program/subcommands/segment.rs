//! `superpacket segment`: each statement of its help.

use crate::support::*;
use superpacket_traffic::frame::{
    ACK, Checksum, Extension, Frame, Icmp, Ip, PSH, SYN, Sctp, Transport,
};

/// Segments a capture of these frames, and returns the report and the output.
fn segment(bench: &Bench, frames: &[Frame], arguments: &[&str]) -> (Value, Vec<CapturedFrame>) {
    bench.capture("in.pcap", &spaced(frames));
    let report = bench.json(&[&["segment", "in.pcap", "-o", "out.pcap"], arguments].concat());
    let out = bench.read("out.pcap");
    assert_eq!(report["packets_out"], out.len() as u64);
    assert_eq!(
        report["bytes_out"].as_u64(),
        Some(out.iter().map(|frame| frame.data.len() as u64).sum())
    );
    assert_eq!(reasons(&report), frames.len() as u64);
    (report, out)
}

#[test]
fn a_super_packet_becomes_what_a_wire_carries() {
    let bench = Bench::new();
    let super_packet = Frame::tcp4(1000, 14_600).with_id(100).with_flags(ACK | PSH);
    let (report, out) = segment(&bench, std::slice::from_ref(&super_packet), &[]);
    assert_json(&report, json!({ "super_packets": 1, "segments": 10, "merged": 9 }));
    let mut wire = Frame::tcp4(1000, 1460).with_id(100).run(10);
    wire[9].tcp_mut().flags = ACK | PSH;
    for (index, (frame, expected)) in out.iter().zip(&wire).enumerate() {
        assert_eq!(frame.data, expected.to_bytes(), "{index}");
        assert_eq!((frame.time, frame.original_length), (START, frame.data.len() as u32));
    }
}

#[test]
fn the_mtu_counts_from_the_outermost_ip_header() {
    let bench = Bench::new();
    let frames = [
        Frame::tcp4(1, 5000).with_timestamps(1, 2),
        from_host(Frame::tcp4(1, 5000).tagged(7), 2),
        Frame::tcp6(1, 5000),
        Frame::tcp4(1, 5000).in_vxlan4(),
        Frame::tcp6(1, 5000).in_geneve(),
        Frame::tcp4(1, 5000).in_gre(),
        Frame::tcp4(1, 5000).in_ip6(),
        Frame::dccp4(1, 5000),
        Frame::tcp6(1, 5000).in_vxlan6().in_geneve().with_gro_hint(),
    ];
    for (mtu, most) in [("1500", 1500), ("9000", 9000), ("576", 576)] {
        let (report, out) = segment(&bench, &frames, &["--mtu", mtu]);
        assert_eq!(report["uncut"], 0, "{report}");
        let mut longest = 0;
        for frame in &out {
            assert_right(&frame.data);
            let link = if frame.data[12..14] == [0x81, 0] { 18 } else { 14 };
            assert!(frame.data.len() - link <= most, "{}", frame.data.len());
            longest = longest.max(frame.data.len() - link);
        }
        if most < 5000 {
            assert_eq!(report["super_packets"], 9);
            assert!(longest + 8 > most, "segments are as long as may be: {longest}");
        } else {
            assert_eq!(out, bench.read("in.pcap"), "what fits passes untouched");
            assert_eq!(report["reasons"]["fits"], 9);
        }
    }
}

#[test]
fn frames_with_ip_length_0_and_partial_checksums_are_understood() {
    for form in [Checksum::Right, Checksum::Partial, Checksum::PartialWithoutLength] {
        let bench = Bench::new();
        let without_length = |mut frame: Frame| {
            match &mut frame.ip {
                Ip::V4(ip) => ip.total_length = Some(0),
                Ip::V6(ip) => ip.payload_length = Some(0),
            }
            frame.tcp_mut().checksum = form;
            frame
        };
        let frames = [
            without_length(Frame::tcp4(1, 10_000)),
            without_length(Frame::tcp6(1, 10_000)),
            without_length(from_host(Frame::tcp4(1, 100), 9)),
            without_length(Frame::tcp6(1, 150_000)),
            without_length(Frame::tcp4(1, 150_000)),
            from_host(Frame::tcp4(1, 9000), 10).with(|frame| frame.tcp_mut().checksum = form),
            from_host(Frame::tcp4(1, 1000), 11).with(|frame| frame.tcp_mut().checksum = form),
        ];
        let (report, out) = segment(&bench, &frames, &[]);
        assert_eq!(
            (report["uncut"].as_u64(), report["super_packets"].as_u64()),
            (Some(0), Some(5)),
            "{form:?}: {report}"
        );
        for frame in &out {
            assert!(frame.data.len() <= 1514);
            assert_right(&frame.data);
            assert_ne!(frame.data[16..20], [0; 4], "lengths are filled in");
        }
        let payload: usize = out
            .iter()
            .map(|frame| frame.data.len() - if frame.data[12] == 8 { 54 } else { 74 })
            .sum();
        assert_eq!(payload, 10_000 + 10_000 + 100 + 150_000 + 150_000 + 9000 + 1000);
    }
}

#[test]
fn jumbo_payload_options_are_removed() {
    let bench = Bench::new();
    let mut frame = Frame::tcp6(1, 90_000);
    let Ip::V6(ip) = &mut frame.ip else { unreachable!("tcp6 is IPv6") };
    ip.extensions.push(Extension::jumbo(90_000 + 20 + 8));
    ip.payload_length = Some(0);
    let (report, out) = segment(&bench, &[frame], &[]);
    assert_eq!((report["uncut"].as_u64(), out.len()), (Some(0), 90_000usize.div_ceil(1440)));
    out.iter().for_each(|frame| assert_right(&frame.data));
    assert_eq!(out[0].data.len(), 1514);
}

#[test]
fn partial_checksums_in_tunnels_are_filled_in() {
    let bench = Bench::new();
    let partial = |mut frame: Frame| {
        frame.tcp_mut().checksum = Checksum::Partial;
        frame
    };
    let nested = |payload: usize, outer: Checksum, inner: Checksum| {
        partial(Frame::tcp4(1, payload).in_vxlan4().in_geneve()).with(|frame| {
            (frame.outer_udp_mut().checksum, frame.nested_mut().udp_mut().checksum) =
                (outer, inner);
        })
    };
    let frames = [
        partial(Frame::tcp4(1, 5000).in_vxlan4()),
        partial(
            Frame::tcp4(1, 5000)
                .in_vxlan4()
                .with(|frame| frame.outer_udp_mut().checksum = Checksum::Right),
        ),
        partial(
            Frame::tcp4(1, 5000)
                .in_vxlan4()
                .with(|frame| frame.outer_udp_mut().checksum = Checksum::Partial),
        ),
        partial(
            Frame::tcp4(1, 500)
                .in_vxlan4()
                .with(|frame| frame.outer_udp_mut().checksum = Checksum::Partial),
        ),
        partial(
            Frame::tcp4(1, 501)
                .in_geneve()
                .with(|frame| frame.outer_udp_mut().checksum = Checksum::Right),
        ),
        nested(5000, Checksum::Right, Checksum::Partial),
        nested(5000, Checksum::Partial, Checksum::Right),
        nested(500, Checksum::Partial, Checksum::Partial),
    ];
    let (report, out) = segment(&bench, &frames, &[]);
    assert_json(&report, json!({ "uncut": 0, "super_packets": 5 }));
    out.iter().for_each(|frame| assert_right(&frame.data));
}

/// An ICMPv6 packet of 65,536 bytes, whose IP header states the length 0 (RFC 2675).
#[test]
fn a_jumbogram_that_cannot_be_cut_is_counted() {
    let bench = Bench::new();
    let capture = "../../captures/real/super/tcpdump_ipv6_jumbogram_1.pcap";
    let capture = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(capture);
    std::fs::copy(capture, bench.path("in.pcap")).expect("it is in the repository");
    let output = bench.run(&["segment", "in.pcap", "-o", "out.pcap", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_json(&report, json!({ "uncut": 1, "reasons": { "protocol": 1 } }));
}

#[test]
fn packets_that_cannot_be_cut_pass_and_are_counted() {
    let bench = Bench::new();
    let mut fragment = Frame::udp4(5000);
    fragment.ipv4_mut().more_fragments = true;
    let frames = [
        Frame::udp4(5000),
        Frame::tcp4(1, 5000).with_flags(SYN),
        Frame::tcp4(1, 5000).with(|frame| frame.tcp_mut().checksum = Checksum::Wrong),
        Frame { transport: Transport::Icmp(Icmp::default()), ..Frame::udp4(5000) },
        fragment,
    ];
    let (report, out) = segment(&bench, &frames, &[]);
    assert_eq!(report["uncut"], 5);
    for reason in ["udp_datagram", "tcp_flags", "bad_checksum", "protocol", "fragment"] {
        assert_eq!(report["reasons"][reason], 1, "{reason}: {report}");
    }
    assert_eq!(out, bench.read("in.pcap"));
}

#[test]
fn fragment_cuts_other_packets_without_the_dont_fragment_bit() {
    let bench = Bench::new();
    let clear = |mut frame: Frame| {
        frame.ipv4_mut().dont_fragment = false;
        frame
    };
    let frames = [
        clear(Frame::udp4(5000)),
        Frame::udp4(5000).with(|frame| frame.ipv4_mut().dont_fragment = true),
        clear(Frame { transport: Transport::Icmp(Icmp::default()), ..Frame::udp4(4000) }),
        clear(Frame::udp4(3000)).with(|frame| frame.udp_mut().checksum = Checksum::Partial),
        Frame::udp6(3000),
        clear(Frame::udp4(5000)).with(|frame| frame.udp_mut().checksum = Checksum::Wrong),
    ];
    let (report, out) = segment(&bench, &frames, &["--fragment"]);
    assert_json(&report["reasons"], json!({ "fragmented": 4, "dont_fragment": 1 }));
    assert_eq!(report["reasons"]["bad_checksum"], 1, "what is wrong is not touched");
    assert_eq!(out.len(), 4 + 1 + 3 + 3 + 3 + 1);
    // The fragments of the fourth packet, reassembled, are the datagram with a complete checksum.
    let mut whole = clear(Frame::udp4(3000)).to_bytes();
    let body: Vec<u8> = out[8..11].iter().flat_map(|frame| frame.data[34..].to_vec()).collect();
    assert_eq!(body, whole.split_off(34));
    for frame in &out {
        assert!(
            frame.data.len() <= 1514
                || [frames[1].to_bytes(), frames[5].to_bytes()].contains(&frame.data)
        );
    }
}

/// IPv6 has no don't-fragment bit: if no device can segment a packet, its sender would have
/// fragmented it.
#[test]
fn ipv6_of_any_protocol_is_fragmented_as_its_sender_would_have() {
    let bench = Bench::new();
    let raw = |number| Frame::udp6(4001).with(|frame| frame.transport = Transport::Raw(number));
    let frames = [
        Frame::udp6(4001)
            .with(|frame| frame.transport = Transport::Icmp(Icmp { kind: 128, ..Icmp::default() })),
        Frame::udp6(4001).with(|frame| frame.transport = Transport::Sctp(Sctp::default())),
        raw(50).tagged(9),
        Frame::udp6(4001),
        Frame::udp6(4001).with(|frame| frame.udp_mut().checksum = Checksum::Partial),
        Frame::tcp6(1, 4001).with_flags(SYN),
        // The outer packet of a payload that the engine cannot parse.
        raw(58).in_ip6(),
    ];
    let (report, _) = segment(&bench, &frames, &[]);
    assert_eq!(report["uncut"], 7, "{report}");
    let (report, out) = segment(&bench, &frames, &["--fragment"]);
    assert_json(&report, json!({ "reasons": { "fragmented": 7 }, "uncut": 0 }));
    let mut fragments = out.iter();
    let mut ids = Vec::new();
    for frame in &frames {
        let whole = frame.clone().with(|frame| {
            if let Transport::Udp(udp) = &mut frame.transport {
                udp.checksum = Checksum::Right;
            }
        });
        let offsets = whole.offsets();
        let network = offsets.outer.unwrap_or(offsets.network);
        let bytes = whole.to_bytes();
        let mut contents = Vec::new();
        loop {
            let fragment = fragments.next().expect("all of them");
            assert!(fragment.data.len() - network <= 1500);
            assert_eq!(fragment.data[network + 6], 44, "a fragment header");
            let header = &fragment.data[network + 40..network + 48];
            assert_eq!(header[0], bytes[network + 6], "what it was before");
            assert_eq!(
                usize::from(u16::from_be_bytes([header[2], header[3]]) & !7),
                contents.len()
            );
            ids.push(header[4..8].to_vec());
            contents.extend_from_slice(&fragment.data[network + 48..]);
            if header[3] & 1 == 0 {
                break;
            }
        }
        assert!(contents == bytes[network + 40..], "put together again: {frame:?}");
    }
    assert!(fragments.next().is_none());
    ids.dedup();
    assert_eq!(ids.len(), 7, "each packet has an identification of its own");
}

/// VXLAN and Geneve are recognised only by their port, and any application may use it.
#[test]
fn datagrams_to_the_ports_of_tunnels_are_cut_if_they_are_none() {
    let bench = Bench::new();
    for port in [4789, 6081] {
        let to = |frame: Frame| frame.with(|frame| frame.udp_mut().destination_port = port);
        let frames = [
            to(Frame::udp4(5000)),
            to(Frame::udp6(5000)).with(|frame| frame.udp_mut().checksum = Checksum::Partial),
            to(Frame::udp4(100)).with(|frame| frame.udp_mut().checksum = Checksum::Partial),
        ];
        let (report, _) = segment(&bench, &frames, &[]);
        assert_eq!(report["reasons"]["udp_datagram"], 2, "{report}");
        let (report, out) = segment(&bench, &frames, &["--udp-size", "1200"]);
        assert_eq!(
            (report["segments"].as_u64(), report["uncut"].as_u64(), out.len()),
            (Some(10), Some(0), 11),
            "{report}"
        );
        let payload: Vec<u8> =
            out[..5].iter().flat_map(|frame| frame.data[42..].to_vec()).collect();
        assert_eq!(payload, frames[0].payload);
        assert_eq!(
            out[10].data,
            to(Frame::udp4(100)).to_bytes(),
            "only the checksum was filled in"
        );
        out.iter().for_each(|frame| assert_right(&frame.data));
        let clear = frames.map(|frame| {
            frame.with(|frame| {
                if let Ip::V4(ip) = &mut frame.ip {
                    ip.dont_fragment = false
                }
            })
        });
        let (report, _) = segment(&bench, &clear, &["--fragment"]);
        assert_eq!(report["reasons"]["fragmented"], 2, "{report}");
        // They do not merge and pass in order; their checksums are completed all the same.
        let report = bench.json("coalesce in.pcap -o out.pcap");
        assert_eq!(report["merged"], 0);
        bench.read("out.pcap").iter().for_each(|frame| assert_right(&frame.data));
    }
}

#[test]
fn udp_is_cut_into_datagrams_of_a_given_size() {
    let bench = Bench::new();
    let (report, out) =
        segment(&bench, &[Frame::udp4(5000), Frame::udp4(1000)], &["--udp-size", "1200"]);
    assert_eq!((report["segments"].as_u64(), out.len()), (Some(5), 6));
    out.iter().for_each(|frame| assert_right(&frame.data));
}

#[test]
fn frames_cut_by_the_snap_length_pass() {
    let bench = Bench::new();
    let mut frames = spaced(&[Frame::tcp4(1, 5000), Frame::tcp4(5001, 5000)]);
    frames[0].data.truncate(3000);
    frames[1].original_length += 4;
    bench.capture("in.pcap", &frames);
    let report = bench.json("segment in.pcap -o out.pcap");
    assert_eq!(report["reasons"]["truncated"], 2);
    assert_eq!(bench.read("out.pcap"), frames);
}

#[test]
fn segment_restores_the_packets_that_coalesce_merged() {
    let bench = Bench::new();
    let flows = [
        Frame::tcp4(1000, 1460).with_id(5).run(20),
        Frame::tcp6(1000, 1440).run(20),
        Frame::tcp4(7, 1410).with_id(9).in_vxlan4().run(20),
        Frame::tcp4(7, 1324).with_id(9).in_vxlan6().in_geneve().with_gro_hint().run(20),
    ];
    let frames: Vec<_> = (0..60).map(|index| flows[index % 4][index / 4].clone()).collect();
    bench.capture("in.pcap", &spaced(&frames));
    assert_eq!(bench.json("coalesce in.pcap -o super.pcap")["packets_out"], 4);
    assert_eq!(bench.json("segment super.pcap -o out.pcap")["packets_out"], 60);
    let mut before: Vec<_> = bench.read("in.pcap").into_iter().map(|frame| frame.data).collect();
    let mut after: Vec<_> = bench.read("out.pcap").into_iter().map(|frame| frame.data).collect();
    before.sort();
    after.sort();
    assert!(before == after, "every byte came back");
}

#[test]
fn impossible_mtus_are_refused() {
    let bench = Bench::new();
    bench.capture("in.pcap", &spaced(&tcp_flow(1, 100)));
    for mtu in ["0", "67", "65536", "many"] {
        bench.refuses(&["segment", "in.pcap", "-o", "out.pcap", "--mtu", mtu], "");
    }
}

#[test]
fn ipv4_header_checksums_left_to_the_device_are_filled_in() {
    let bench = Bench::new();
    // As Windows leaves them: the header's checksum is 0, the transport's is that of the
    // pseudo-header. Packets to segment, whole ones, truncated ones, and protocols that are not
    // segmented.
    let right = [
        Frame::tcp4(1, 5000),
        from_host(Frame::tcp4(1, 100), 2),
        from_host(Frame::udp4(100), 3),
        from_host(Frame::tcp4(1, 0).with_flags(SYN), 4),
        from_host(Frame::udp4(60), 5)
            .with(|frame| frame.transport = Transport::Icmp(Icmp::default())),
        from_host(Frame::tcp4(1, 300), 6).in_ip6(),
    ];
    let unfinished = |frame: &Frame| {
        frame.clone().with(|frame| {
            frame.ipv4_mut().checksum = Checksum::Zero;
            if !matches!(frame.transport, Transport::Icmp(_)) {
                *frame.checksum_mut().expect("has one") = Checksum::Partial;
            }
        })
    };
    let (report, out) = segment(&bench, &right.each_ref().map(unfinished), &[]);
    assert_eq!(report["super_packets"], 1);
    assert_eq!(out.len(), 9);
    out.iter().for_each(|frame| assert_right(&frame.data));
    for (frame, expected) in out[4..].iter().zip(&right[1..]) {
        assert_eq!(frame.data, expected.to_bytes());
    }
    // A wrong transport checksum is not touched; the header's checksum is completed all the same.
    let wrong = Frame::tcp4(1, 5000).with(|frame| frame.tcp_mut().checksum = Checksum::Wrong);
    let (report, out) = segment(
        &bench,
        &[wrong.clone().with(|frame| frame.ipv4_mut().checksum = Checksum::Zero)],
        &[],
    );
    assert_eq!((&report["uncut"], out[0].data == wrong.to_bytes()), (&1.into(), true));
    // In a frame that the snap length cut, the header is complete.
    let whole = Frame::tcp4(1, 5000);
    let mut cut = spaced(&[unfinished(&whole)]);
    cut[0].data.truncate(96);
    bench.capture("cut.pcap", &cut);
    bench.json("segment cut.pcap -o out.pcap");
    let out = bench.read("out.pcap");
    assert_eq!(out[0].data[..34], whole.to_bytes()[..34]);
    assert_eq!(out[0].data[34..], cut[0].data[34..]);
}

#[test]
fn wrong_checksums_and_lengths_are_reported_and_corrected_on_request() {
    let bench = Bench::new();
    let wrong = |frame: Frame| frame.with(|frame| frame.tcp_mut().checksum = Checksum::Wrong);
    let short = Frame::tcp4(1, 5000).with(|frame| {
        frame.tcp_mut().checksum = Checksum::PartialWithoutLength;
        frame.ipv4_mut().total_length = Some(20);
    });
    let frames = [
        wrong(Frame::tcp4(1, 5000)),
        from_host(short, 8),
        from_host(Frame::tcp4(1, 100), 9)
            .with(|frame| frame.tcp_mut().checksum = Checksum::Partial),
    ];
    bench.capture("in.pcap", &spaced(&frames));
    let text = bench.prints("segment in.pcap -o out.pcap");
    for line in [
        "  unfinished checksums completed in 1 frames: TCP 1",
        "  1 frames stayed uncut because their checksums are wrong; --fix-checksums corrects them",
        "  1 frames stayed uncut because their IP length leaves out a part; --fix-lengths cuts them",
    ] {
        assert!(text.lines().any(|printed| printed == line), "{line}: {text}");
    }
    bench.refuses("segment in.pcap -o out.pcap --strict", "--fix-checksums corrects them");

    let text = bench.prints("segment in.pcap -o out.pcap --fix-checksums --fix-lengths --strict");
    assert!(text.contains("\n  wrong checksums corrected in 1 frames: TCP 1\n"), "{text}");
    assert!(!text.contains("uncut"), "{text}");
    bench.read("out.pcap").iter().for_each(|frame| assert_right(&frame.data));
    let report = bench.json("segment in.pcap -o out.pcap --fix-checksums --keep-partial");
    assert_json(
        &report,
        json!({ "checksums_unknown": 0, "lengths_fixed": 0, "reasons": { "ip_length": 1 } }),
    );
    assert_json(&report["checksums_fixed"], json!({ "frames": 1, "tcp": 1, "ipv4_header": 0 }));
    assert_json(&report["checksums_completed"], json!({ "frames": 0, "udp": 0, "outer_udp": 0 }));
    assert_eq!(bench.read("out.pcap").last(), bench.read("in.pcap").last(), "bit for bit");
}
