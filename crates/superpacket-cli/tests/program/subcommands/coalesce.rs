//! `superpacket coalesce`: each statement of its help.

use std::io::Write;
use std::process::Stdio;

use crate::support::*;
use superpacket_captures::file::{Interface, LinkType, TimeResolution};
use superpacket_traffic::frame::{Checksum, Frame};

#[test]
fn a_flow_becomes_one_packet_with_right_checksums_and_the_first_time() {
    let bench = Bench::new();
    let frames = spaced(&tcp_flow(10, 1000));
    bench.capture("in.pcap", &frames);
    let report = bench.json("coalesce in.pcap -o out.pcap");
    assert_eq!(report["packets_in"], 10);
    assert_eq!(report["packets_out"], 1);
    assert_eq!(report["super_packets"], 1);
    assert_json(&report, json!({ "merged": 9, "bytes_in": 10 * 1054, "bytes_out": 54 + 10_000 }));
    assert_eq!(reasons(&report), 1);
    let out = bench.read("out.pcap");
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].time, frames[0].time, "the first packet's");
    assert_right(&out[0].data);
    let payload: Vec<u8> = frames.iter().flat_map(|frame| frame.data[54..].to_vec()).collect();
    assert_eq!(out[0].data[54..], payload);
}

#[test]
fn a_poll_ends_after_batch_packets() {
    let bench = Bench::new();
    bench.capture("in.pcap", &spaced(&tcp_flow(40, 1000)));
    let out = |batch: &str| {
        bench.json(&["coalesce", "in.pcap", "-o", "out.pcap", "--batch", batch])["packets_out"]
            .as_u64()
    };
    assert_eq!(out("10"), Some(4));
    assert_eq!(out("16"), Some(3));
    assert_eq!(out("0"), Some(1));
    let report = bench.json("coalesce in.pcap -o out.pcap --batch 1");
    assert_json(&report, json!({ "packets_out": 40, "super_packets": 0 }));
    assert_eq!(bench.read("out.pcap"), bench.read("in.pcap"), "nothing merged, nothing touched");
    let by_default = Bench::new();
    by_default.capture("in.pcap", &spaced(&Frame::tcp4(1000, 100).with_id(100).run(130)));
    assert_eq!(by_default.json("coalesce in.pcap -o out.pcap")["packets_out"], 3, "64, 64 and 2");
}

#[test]
fn nothing_is_held_longer_than_hold_by_the_captures_clock() {
    let bench = Bench::new();
    let flow = tcp_flow(8, 1000);
    // Two bursts, 100 ms apart.
    let frames: Vec<_> = flow
        .iter()
        .enumerate()
        .map(|(index, frame)| {
            CapturedFrame::at(
                if index < 4 { 0 } else { 100_000_000 } + index as u64 * 1000,
                frame.to_bytes(),
            )
        })
        .collect();
    bench.capture("in.pcap", &frames);
    let report = bench.json("coalesce in.pcap -o out.pcap");
    assert_json(&report, json!({ "packets_out": 2, "reasons": { "hold_time": 1 } }));
    assert_eq!(bench.json("coalesce in.pcap -o out.pcap --hold 3600s")["packets_out"], 1);
    assert_eq!(bench.json("coalesce in.pcap -o out.pcap --batch 0")["packets_out"], 2);
    assert_eq!(bench.json("coalesce in.pcap -o out.pcap --hold 500ns")["packets_out"], 8);
    assert_eq!(
        bench.json("coalesce in.pcap -o out.pcap --hold 2us")["packets_out"],
        4,
        "0 to 2, then 3"
    );
    assert_eq!(bench.json("coalesce in.pcap -o out.pcap --hold 0")["packets_out"], 8);
}

#[test]
fn clocks_that_run_backwards_are_survived() {
    let bench = Bench::new();
    let flow = tcp_flow(9, 1000);
    let times = [1_000_000_000, 1_000_001_000, 1_000_000_500, 0, 1000, 2000, 3_000_000_000, 1, 2];
    let frames: Vec<_> = flow
        .iter()
        .zip(times)
        .map(|(frame, time)| CapturedFrame::at(time, frame.to_bytes()))
        .collect();
    bench.capture("in.pcap", &frames);
    let report = bench.json("coalesce in.pcap -o out.pcap --batch 0");
    // A step back within the hold time has no effect; a larger one flushes the held packets.
    assert_json(&report, json!({ "packets_out": 4, "packets_in": 9 }));
    let sizes: Vec<_> =
        bench.read("out.pcap").iter().map(|frame| (frame.data.len() - 54) / 1000).collect();
    assert_eq!(sizes, [3, 3, 1, 2]);
}

#[test]
fn limits_hold() {
    let bench = Bench::new();
    bench.capture("in.pcap", &spaced(&Frame::tcp4(1000, 1000).with_id(100).run(60)));
    let report = bench.json("coalesce in.pcap -o out.pcap --max-packets 7");
    assert_json(&report, json!({ "packets_out": 9, "reasons": { "packet_limit": 8 } }));
    bench.json("coalesce in.pcap -o out.pcap --max-bytes 4k");
    assert!(
        bench
            .read("out.pcap")
            .iter()
            .all(|frame| frame.data.len() - 14 <= 4096 && frame.data.len() > 3000)
    );
    for wrong in [
        "--max-bytes=10",
        "--max-bytes=1M",
        "--max-packets=0",
        "--max-packets=100000",
        "--batch=-1",
        "--hold=5",
    ] {
        bench.refuses(&["coalesce", "in.pcap", "-o", "out.pcap", wrong], "");
    }
}

#[test]
fn big_tcp_is_written_with_an_ip_length_of_0() {
    let bench = Bench::new();
    bench.capture("in.pcap", &spaced(&Frame::tcp6(1000, 1400).run(100)));
    let report = bench.json("coalesce in.pcap -o out.pcap --max-bytes 200000 --batch 0");
    assert_eq!(report["packets_out"], 1);
    let out = bench.read("out.pcap");
    assert_eq!(out[0].data.len(), 14 + 40 + 20 + 140_000);
    assert_eq!(out[0].data[18..20], [0, 0]);
    assert_right(&out[0].data);
}

#[test]
fn big_tcp_over_ipv6_is_written_with_its_length_if_so_asked() {
    let bench = Bench::new();
    let frames = Frame::tcp6(1000, 1400).run(100);
    bench.capture("in.pcap", &spaced(&frames));
    let report =
        bench.json("coalesce in.pcap -o out.pcap --max-bytes 200000 --jumbo-option --batch 0");
    assert_eq!(report["packets_out"], 1);
    let out = bench.read("out.pcap");
    assert_eq!(out[0].data.len(), 14 + 40 + 8 + 20 + 140_000);
    // Next header 0, then TCP in the option, and all of it after the IPv6 header.
    assert_eq!(
        (out[0].data[20], &out[0].data[54..62]),
        (0, &[&[6, 0, 0xc2, 4][..], &140_028u32.to_be_bytes()].concat()[..])
    );
    let report = bench.json("segment out.pcap -o again.pcap --mtu 1460");
    assert_eq!(report["packets_out"], 100);
    let again = bench.read("again.pcap");
    assert!(again.iter().map(|frame| frame.data.clone()).eq(frames.iter().map(Frame::to_bytes)));
}

#[test]
fn udp_aggregates_unless_told_not_to() {
    let bench = Bench::new();
    bench.capture("in.pcap", &spaced(&Frame::udp4(1200).with_id(7).run(5)));
    assert_eq!(bench.json("coalesce in.pcap -o out.pcap")["packets_out"], 1);
    assert_right(&bench.read("out.pcap")[0].data);
    let report = bench.json("coalesce in.pcap -o out.pcap --no-udp");
    assert_json(&report, json!({ "packets_out": 5, "reasons": { "udp_off": 5 } }));
}

#[test]
fn lro_merges_what_gro_does_not_and_acks_on_request() {
    let bench = Bench::new();
    let data = tcp_flow(4, 1000);
    let mut frames = data.clone();
    // The window changes in the middle: LRO keeps the newest.
    frames[2].tcp_mut().window = 400;
    frames[3].tcp_mut().window = 400;
    let mut acks: Vec<Frame> = (0..6)
        .map(|index| {
            from_host(
                Frame::tcp4(5, 0)
                    .with(|frame| frame.tcp_mut().acknowledgement = 1000 + index * 2000),
                7,
            )
        })
        .collect();
    frames.append(&mut acks);
    bench.capture("in.pcap", &spaced(&frames));
    let out = |arguments: &[&str]| {
        bench.json(&[&["coalesce", "in.pcap", "-o", "out.pcap"], arguments].concat())
    };
    assert_eq!(out(&[])["packets_out"], 2 + 6);
    assert_eq!(out(&["--mode", "lro"])["packets_out"], 1 + 6);
    let report = out(&["--mode", "lro", "--acks"]);
    assert_json(&report, json!({ "packets_out": 2, "absorbed_acks": 5 }));
    bench.refuses("coalesce in.pcap -o out.pcap --acks", "--acks needs --mode lro");
}

#[test]
fn packets_cut_by_the_snap_length_are_never_merged_and_pass() {
    let bench = Bench::new();
    let mut frames = spaced(&tcp_flow(6, 1000));
    for frame in &mut frames[2..4] {
        frame.data.truncate(200);
    }
    // Only the padding is missing: the packet is complete, the frame is not.
    frames[5].original_length += 6;
    bench.capture("in.pcap", &frames);
    let report = bench.json("coalesce in.pcap -o out.pcap");
    assert_json(&report["reasons"], json!({ "truncated": 2, "snap_length": 1 }));
    let out = bench.read("out.pcap");
    assert_eq!(out.len(), 5);
    assert_eq!(out[0].data.len(), 54 + 2000);
    assert_eq!(out[1..3], frames[2..4], "in order, with their length on the wire");
    assert_eq!(out[3].data, frames[4].data, "before the one that was cut");
    assert_eq!(out[4], frames[5]);
}

#[test]
fn partial_checksums_merge_and_are_written_whole() {
    for form in [Checksum::Partial, Checksum::PartialWithoutLength] {
        let bench = Bench::new();
        let mut flow = tcp_flow(4, 1000);
        flow.push(from_host(Frame::tcp4(9, 333), 9));
        flow.push(from_host(Frame::udp4(333), 9));
        for frame in &mut flow {
            *frame.checksum_mut().expect("has one") = form;
        }
        bench.capture("in.pcap", &spaced(&flow));
        let report = bench.json("coalesce in.pcap -o out.pcap");
        assert_eq!(
            (report["packets_out"].as_u64(), report["merged"].as_u64()),
            (Some(3), Some(3)),
            "{form:?}"
        );
        let out = bench.read("out.pcap");
        out.iter().for_each(|frame| assert_right(&frame.data));
        for (single, original) in out[1..].iter().zip(&flow[4..]) {
            let mut whole = original.clone();
            *whole.checksum_mut().expect("has one") = Checksum::Right;
            assert_eq!(single.data, whole.to_bytes(), "nothing else changed");
        }
    }
}

#[test]
fn wrong_checksums_pass_and_are_counted() {
    let bench = Bench::new();
    let mut flow = tcp_flow(5, 1000);
    flow[2].tcp_mut().checksum = Checksum::Wrong;
    bench.capture("in.pcap", &spaced(&flow));
    let report = bench.json("coalesce in.pcap -o out.pcap");
    assert_eq!(report["reasons"]["bad_checksum"], 1);
    let out = bench.read("out.pcap");
    assert_eq!(out.len(), 3);
    assert_eq!(out[1].data, flow[2].to_bytes());
    let text = bench.prints("coalesce in.pcap -o out.pcap");
    let line =
        "1 packets did not merge because their checksums are wrong; --fix-checksums corrects them";
    assert!(text.contains(line), "{text}");
}

#[test]
fn wrong_checksums_are_corrected_on_request() {
    let bench = Bench::new();
    let mut flow = tcp_flow(5, 1000);
    flow[2].tcp_mut().checksum = Checksum::Wrong;
    flow[3].tcp_mut().checksum = Checksum::Partial;
    bench.capture("in.pcap", &spaced(&flow));
    let report = bench.json("coalesce in.pcap -o out.pcap --fix-checksums");
    assert_json(&report["checksums_fixed"], json!({ "frames": 1, "tcp": 1, "ipv4_header": 0 }));
    assert_json(&report["checksums_completed"], json!({ "frames": 1, "tcp": 1 }));
    let out = bench.read("out.pcap");
    assert_eq!((out.len(), out[0].data.len()), (1, 5054));
    assert_right(&out[0].data);
    let text = bench.prints("coalesce in.pcap -o out.pcap --fix-checksums");
    assert!(text.contains("wrong checksums corrected in 1 frames: TCP 1"), "{text}");
}

#[test]
fn every_link_type_keeps_its_header() {
    let ip: Vec<Vec<u8>> =
        tcp_flow(6, 500).iter().map(|frame| frame.clone().at_ip().to_bytes()).collect();
    let sll = |kind: u8| [&[0, kind, 0, 1, 0, 6, 2, 0, 0, 0, 0, kind, 0, 0, 8, 0][..]].concat();
    let sll2 = [8, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0].to_vec();
    let types = [
        (LinkType::RAW, vec![]),
        (LinkType::IPV4, vec![]),
        (LinkType::RAW_12, vec![]),
        (LinkType::LINUX_SLL, sll(0)),
        (LinkType::LINUX_SLL2, sll2),
        (LinkType::NULL, vec![2, 0, 0, 0]),
        (LinkType::LOOP, vec![0, 0, 0, 2]),
    ];
    for (link_type, header) in types {
        let bench = Bench::new();
        let frames: Vec<_> = ip
            .iter()
            .enumerate()
            .map(|(index, packet)| CapturedFrame::at(index as u64, [&header[..], packet].concat()))
            .collect();
        bench.capture_as(link_type, "in.pcap", &frames);
        let report = bench.json("coalesce in.pcap -o out.pcap");
        assert_eq!(report["packets_out"], 1, "{link_type}");
        let out = bench.read("out.pcap");
        assert_eq!(out[0].data[..header.len()], header, "{link_type}");
        assert_eq!(out[0].data.len(), header.len() + 40 + 3000);
        assert_eq!(report["bytes_out"], out[0].data.len() as u64);
        let again = bench.json("segment out.pcap -o again.pcap --mtu 540");
        assert_eq!(again["segments"], 6, "{link_type}");
        assert_eq!(
            bench.read("again.pcap").iter().map(|frame| &frame.data).collect::<Vec<_>>(),
            frames.iter().map(|frame| &frame.data).collect::<Vec<_>>()
        );
        let verified = bench.json("verify in.pcap");
        assert_eq!(
            (verified["super_packets"].as_u64(), verified["mismatches"].as_u64()),
            (Some(1), Some(0)),
            "{link_type}"
        );
    }
    // Another link header means another flow: incoming and outgoing packets do not merge and do not
    // flush each other.
    let bench = Bench::new();
    let other: Vec<Vec<u8>> = tcp_flow(6, 500)
        .iter()
        .map(|frame| from_host(frame.clone(), 5).at_ip().to_bytes())
        .collect();
    let frames: Vec<_> = (0..12u64)
        .map(|index| {
            CapturedFrame::at(
                index,
                if index % 2 == 0 {
                    [sll(0), ip[index as usize / 2].clone()]
                } else {
                    [sll(4), other[index as usize / 2].clone()]
                }
                .concat(),
            )
        })
        .collect();
    bench.capture_as(LinkType::LINUX_SLL, "in.pcap", &frames);
    assert_eq!(bench.json("coalesce in.pcap -o out.pcap")["packets_out"], 2);
}

#[test]
fn unknown_link_types_pass_untouched() {
    let bench = Bench::new();
    let frames: Vec<_> =
        tcp_flow(3, 100).iter().map(|frame| CapturedFrame::at(0, frame.to_bytes())).collect();
    bench.capture_as(LinkType(127), "in.pcap", &frames);
    for command in ["coalesce", "segment"] {
        let report = bench.json(&[command, "in.pcap", "-o", "out.pcap"]);
        assert_eq!(report["reasons"]["link_type"], 3);
        assert_eq!(bench.read("out.pcap"), bench.read("in.pcap"));
    }
}

#[test]
fn many_link_headers_stay_in_order_and_lose_nothing() {
    let bench = Bench::new();
    let sll =
        |peer: u32| [&[0u8, 0, 0, 1, 0, 6, 2, 0][..], &peer.to_be_bytes(), &[0, 0, 8, 0]].concat();
    let flow = Frame::tcp4(1000, 300).with_id(1).run(40);
    let frames: Vec<_> = (0..1200u64)
        .map(|index| {
            CapturedFrame::at(
                index,
                [sll((index % 30) as u32), flow[index as usize / 30].clone().at_ip().to_bytes()]
                    .concat(),
            )
        })
        .collect();
    bench.capture_as(LinkType::LINUX_SLL, "in.pcap", &frames);
    let report = bench.json("coalesce in.pcap -o out.pcap --batch 0");
    assert_eq!(
        report["packets_in"].as_u64(),
        report["packets_out"]
            .as_u64()
            .zip(report["merged"].as_u64())
            .map(|(out, merged)| out + merged)
    );
    let out = bench.read("out.pcap");
    for peer in 0..30 {
        let header = sll(peer);
        let payload = |frames: &[CapturedFrame]| {
            frames
                .iter()
                .filter(|frame| frame.data.starts_with(&header))
                .flat_map(|frame| frame.data[56..].to_vec())
                .collect::<Vec<u8>>()
        };
        assert_eq!(payload(&out), payload(&frames), "{peer}");
    }
}

#[test]
fn output_keeps_format_interfaces_and_resolution() {
    let bench = Bench::new();
    let interfaces = [
        Interface::new(LinkType::ETHERNET, TimeResolution::MICROSECONDS).named("lan"),
        Interface::new(LinkType::RAW, TimeResolution::NANOSECONDS).named("wan"),
    ];
    let flow = tcp_flow(6, 200);
    let frames: Vec<_> = flow
        .iter()
        .enumerate()
        .map(|(index, frame)| {
            let interface = index as u32 % 2;
            let bytes = if interface == 0 {
                frame.to_bytes()
            } else {
                from_host(flow[index / 2].clone(), 3).at_ip().to_bytes()
            };
            CapturedFrame { interface, ..CapturedFrame::at(index as u64 * 1000, bytes) }
        })
        .collect();
    bench.capture_of("in.pcapng", &interfaces, &frames);
    let out = bench.path("out");
    bench.json("coalesce in.pcapng -o out");
    let mut reader = superpacket_captures::file::Reader::open(&out).expect("opens");
    use superpacket_captures::file::{Format, Source};
    assert!(matches!(reader.format(), Format::PcapNg { .. }), "pcapng in, pcapng out");
    while reader.next_frame().expect("reads").is_some() {}
    let kept: Vec<_> = reader
        .interfaces()
        .iter()
        .map(|interface| {
            (
                interface.name().map(|name| name.into_owned()),
                interface.link_type,
                interface.resolution,
            )
        })
        .collect();
    assert_eq!(
        kept,
        [
            (Some("lan".to_owned()), LinkType::ETHERNET, TimeResolution::MICROSECONDS),
            (Some("wan".to_owned()), LinkType::RAW, TimeResolution::NANOSECONDS)
        ]
    );
    // The file name's extension selects another format.
    let one = spaced(&tcp_flow(3, 200));
    bench.capture("one.pcap", &one);
    for (name, magic) in [
        ("x.pcapng", [0x0a, 0x0d, 0x0d, 0x0a]),
        ("x.pcap", [0x4d, 0x3c, 0xb2, 0xa1]),
        ("x.pcap.zst", [0x28, 0xb5, 0x2f, 0xfd]),
    ] {
        bench.json(&["coalesce", "one.pcap", "-o", name]);
        assert_eq!(bench.bytes(name)[..4], magic, "{name}");
        assert_eq!(bench.read(name).len(), 1);
    }
    bench.json("coalesce one.pcap -o x.pcap.gz");
    assert_eq!(bench.bytes("x.pcap.gz")[..2], [0x1f, 0x8b]);
}

#[test]
fn compressed_captures_and_standard_streams_are_read_and_written() {
    let bench = Bench::new();
    let frames = spaced(&tcp_flow(5, 800));
    for name in ["in.pcap", "in.pcap.gz", "in.pcapng.zst"] {
        let path = bench.capture(name, &frames);
        assert_eq!(bench.json(&["coalesce", name, "-o", "out.pcap"])["packets_out"], 1, "{name}");
        let mut child = bench
            .command("coalesce - -o -")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("runs");
        child
            .stdin
            .take()
            .expect("piped")
            .write_all(&std::fs::read(path).expect("reads"))
            .expect("is taken");
        let output = child.wait_with_output().expect("ends");
        assert_eq!(output.status.code(), Some(0));
        assert!(stderr(&output).contains("super-packets"), "the report goes to standard error");
        bench.write("piped", &output.stdout);
        assert_eq!(bench.read("piped").len(), 1);
    }
    bench.refuses("coalesce in.pcap -o - --json", "--json prints to standard output");
}

#[test]
fn out_equal_to_in_is_refused() {
    let bench = Bench::new();
    let path = bench.capture("in.pcap", &spaced(&tcp_flow(5, 800)));
    let before = std::fs::read(&path).expect("reads");
    std::fs::hard_link(&path, bench.path("link.pcap")).expect("links");
    for command in ["coalesce", "segment"] {
        for out in [
            "in.pcap",
            "./in.pcap",
            #[cfg(unix)]
            "link.pcap",
        ] {
            bench.refuses(&[command, "in.pcap", "-o", out], "is the input too");
        }
    }
    assert_eq!(std::fs::read(&path).expect("reads"), before);
}

#[test]
fn a_failed_run_leaves_no_output() {
    let bench = Bench::new();
    let path = bench.capture("in.pcap", &spaced(&tcp_flow(5, 800)));
    let mut bytes = std::fs::read(&path).expect("reads");
    // The second record claims a length above the limit.
    let second = 24 + 16 + 854;
    bytes[second + 8..second + 12].copy_from_slice(&u32::MAX.to_le_bytes());
    bench.write("broken.pcap", bytes);
    bench.write("out.pcap", "precious");
    bench.refuses(
        "coalesce broken.pcap -o out.pcap",
        "broken.pcap: packet 2, byte 894: record claims 4294967311 bytes",
    );
    assert_eq!(bench.bytes("out.pcap"), b"precious");
    let names: Vec<_> = std::fs::read_dir(bench.path("."))
        .expect("lists")
        .map(|entry| entry.expect("lists").file_name())
        .collect();
    assert_eq!(names.len(), 3, "no temporary file stays: {names:?}");
}

#[test]
fn ipv4_header_checksums_left_to_the_device_do_not_keep_packets_apart() {
    let bench = Bench::new();
    let flow = tcp_flow(4, 1000);
    let unfinished: Vec<Frame> = flow
        .iter()
        .map(|frame| {
            frame.clone().with(|frame| {
                (frame.ipv4_mut().checksum, frame.tcp_mut().checksum) =
                    (Checksum::Zero, Checksum::Partial)
            })
        })
        .collect();
    bench.capture("right.pcap", &spaced(&flow));
    bench.capture("in.pcap", &spaced(&unfinished));
    bench.json("coalesce right.pcap -o expected.pcap");
    let report = bench.json("coalesce in.pcap -o out.pcap");
    assert_eq!((&report["packets_out"], &report["merged"]), (&1.into(), &3.into()));
    assert_eq!(bench.read("out.pcap"), bench.read("expected.pcap"));
    // Analysis treats the packets as they would have been on the wire; verification takes every
    // byte as it is.
    let report = bench.json("analyze in.pcap");
    assert_eq!(report["policies"]["gro"]["packets_out"], 1);
    let report = bench.json("verify in.pcap");
    assert_json(&report, json!({ "mismatches": 0, "reasons": { "bad_ip_checksum": 4 } }));
}
