//! `--filter`: the packets that commands read.

use crate::support::*;
#[cfg(feature = "filter")]
use superpacket_captures::file::{Interface, LinkType, TimeResolution};
use superpacket_traffic::frame::Frame;

/// Every command that reads captures, with captures of these names.
const COMMANDS: [&str; 6] = [
    "coalesce in.pcap -o out.pcap",
    "segment in.pcap -o out.pcap",
    "verify in.pcap",
    "analyze in.pcap",
    "steer in.pcap --cpus f",
    "check in.pcap --origin in.pcap",
];

fn filtered(command: &'static str, expression: &'static str) -> Vec<&'static str> {
    let mut words: Vec<_> = command.split(' ').collect();
    words.extend(["--filter", expression]);
    words
}

/// Returns eight TCP segments from host 10.0.0.1, eight from host 10.0.0.2, and four UDP datagrams.
fn traffic() -> Vec<CapturedFrame> {
    let mut frames = Vec::new();
    for host in [1, 2] {
        frames.extend(tcp_flow(8, 1000).into_iter().map(|frame| from_host(frame, host)));
    }
    frames.extend(Frame::udp4(100).with_id(1).run(4));
    spaced(&frames)
}

#[cfg(not(feature = "filter"))]
#[test]
fn a_build_without_filters_says_how_to_get_them() {
    let bench = Bench::new();
    bench.capture("in.pcap", &traffic());
    for command in COMMANDS {
        for says in ["libpcap-dev", "--features filter"] {
            bench.refuses(&filtered(command, "tcp"), says);
        }
    }
    assert!(!bench.path("out.pcap").exists());
}

#[test]
fn the_input_is_not_overwritten() {
    let bench = Bench::new();
    bench.capture("in.pcap", &traffic());
    bench.refuses(&filtered("coalesce in.pcap -o in.pcap", "tcp"), "is the input too");
}

#[cfg(feature = "filter")]
#[test]
fn every_command_reads_only_the_packets_that_match() {
    let bench = Bench::new();
    bench.capture("in.pcap", &traffic());
    for command in COMMANDS {
        for (expression, matching) in
            [("tcp and src host 10.0.0.2", 8), ("udp", 4), ("tcp port 9", 0), ("ip", 20), ("", 20)]
        {
            let report = bench.json(&filtered(command, expression));
            assert_json(&report, json!({ "packets_in": matching, "filtered_out": 20 - matching }));
            if command.starts_with("check") {
                assert_json(&report, json!({ "origin_filtered_out": 20 - matching }));
            }
        }
        let text = bench.prints(&filtered(command, "udp"));
        let says = if command.starts_with("check") {
            "match the filter: 16"
        } else {
            "16 packets did not match"
        };
        assert!(text.replace("\n ", "").contains(says), "{text}");
    }
}

#[cfg(feature = "filter")]
#[test]
fn packets_that_do_not_match_are_neither_merged_nor_written() {
    let bench = Bench::new();
    bench.capture("in.pcap", &traffic());
    bench.json(&filtered("coalesce in.pcap -o out.pcap", "src host 10.0.0.2"));
    let merged = bench.read("out.pcap");
    assert_eq!(merged.len(), 1);
    assert_eq!(merged[0].data.len(), 14 + 20 + 20 + 8000);
    assert_eq!(merged[0].data[26..30], [10, 0, 0, 2]);
    // Both sides of a check are filtered.
    let report = bench.json(&filtered("check out.pcap --origin in.pcap", "src host 10.0.0.2"));
    assert_json(
        &report,
        json!({ "verdict": "faithful", "filtered_out": 0, "origin_filtered_out": 12 }),
    );
    bench.json(&filtered("segment in.pcap -o out.pcap", "udp"));
    let expected: Vec<_> = traffic().split_off(16);
    assert_eq!(bench.read("out.pcap"), expected);
}

#[cfg(feature = "filter")]
#[test]
fn an_analysis_is_that_of_a_file_with_the_matching_packets_alone() {
    let bench = Bench::new();
    bench.capture("in.pcap", &traffic());
    bench.json(&filtered("segment in.pcap -o alone.pcap", "src host 10.0.0.2 or udp"));
    let mut report = bench.json(&filtered("analyze in.pcap", "src host 10.0.0.2 or udp"));
    let mut alone = bench.json("analyze alone.pcap");
    for report in [&mut report, &mut alone] {
        report["files"] = Value::Null;
        for policy in ["lro", "gro", "gro_udp", "lro_acks"] {
            report["policies"][policy]["filtered_out"] = Value::Null;
        }
        report["filtered_out"] = Value::Null;
    }
    assert_eq!(report, alone);
    bench.prints(&filtered("analyze in.pcap --html page.html", "udp"));
    let page = String::from_utf8(bench.bytes("page.html")).expect("UTF-8");
    assert!(page.contains("16 packets did not match the filter"), "{page}");
}

#[cfg(feature = "filter")]
#[test]
fn an_expression_is_compiled_for_each_link_type() {
    let bench = Bench::new();
    let sll = [0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 8, 0];
    let sll2 = [8, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0];
    let kinds = [
        (LinkType::ETHERNET, &[][..]),
        (LinkType::LINUX_SLL, &sll),
        (LinkType::LINUX_SLL2, &sll2),
        (LinkType::RAW, &[]),
        (LinkType::RAW_12, &[]),
        (LinkType::RAW_14, &[]),
        (LinkType::IPV4, &[]),
        (LinkType::NULL, &[2, 0, 0, 0]),
        (LinkType::LOOP, &[0, 0, 0, 2]),
    ];
    let interfaces = kinds.map(|(kind, _)| Interface::new(kind, TimeResolution::NANOSECONDS));
    let mut frames = Vec::new();
    for (number, (kind, header)) in kinds.into_iter().enumerate() {
        for frame in [Frame::tcp4(1, 100), Frame::udp4(100)] {
            let frame = if kind == LinkType::ETHERNET { frame } else { frame.at_ip() };
            let data = [header, &frame.to_bytes()].concat();
            frames.push(CapturedFrame { interface: number as u32, ..CapturedFrame::at(0, data) });
        }
    }
    bench.capture_of("in.pcapng", &interfaces, &frames);
    for (expression, first) in [("tcp and ip[8] > 0", 0), ("udp", 1), ("icmp", 18)] {
        let words = filtered("segment in.pcapng -o out.pcapng", expression);
        assert_json(&bench.json(&words), json!({ "packets_in": if first < 2 { 9 } else { 0 } }));
        let expected: Vec<_> = frames.iter().skip(first).step_by(2).cloned().collect();
        assert_eq!(bench.read("out.pcapng"), expected, "{expression}");
        let report = bench.json("analyze out.pcapng");
        assert_eq!(report["files"][0]["interfaces"].as_array().map(Vec::len), Some(9));
    }
    // An expression may be valid for one link type only.
    bench.refuses(
        &filtered("verify in.pcapng", "ether host 2:0:0:0:0:1"),
        "filter 'ether host 2:0:0:0:0:1', for link type 113 (LINUX_SLL): ",
    );
}

#[cfg(feature = "filter")]
#[test]
fn vlan_tags_and_snap_lengths_count_as_for_tcpdump() {
    let bench = Bench::new();
    let mut frames = spaced(&[
        Frame::tcp4(1, 100),
        Frame::tcp4(1, 100).tagged(5),
        Frame::tcp4(1, 1400),
        Frame::tcp4(1, 1400),
    ]);
    // The third frame has its TCP header, the fourth has not.
    frames[2].data.truncate(60);
    frames[3].data.truncate(30);
    bench.capture("in.pcap", &frames);
    for (expression, matching) in [
        ("tcp", &[0, 2, 3][..]),
        ("vlan", &[1]),
        ("vlan 5 and tcp", &[1]),
        ("vlan 6", &[]),
        ("greater 1000", &[2, 3]),
        ("len == 1454", &[2, 3]),
        ("less 200", &[0, 1]),
        ("tcp[12] & 0xf0 == 0x50", &[0, 2]),
        ("tcp and not tcp[12] & 0xf0 == 0x60", &[0, 2]),
        ("((len - 54) / 100) % 7 == 0 and tcp dst port 443", &[2]),
        ("ip protochain 6", &[0, 2, 3]),
    ] {
        bench.json(&filtered("segment in.pcap -o out.pcap", expression));
        let expected: Vec<_> = matching.iter().map(|&number| frames[number].clone()).collect();
        assert_eq!(bench.read("out.pcap"), expected, "{expression}");
    }
}

#[cfg(feature = "filter")]
#[test]
fn a_wrong_expression_is_quoted_with_the_message_of_libpcap() {
    let bench = Bench::new();
    bench.capture("in.pcap", &traffic());
    for command in COMMANDS {
        for (expression, says) in [
            ("tcp prot 443", "filter 'tcp prot 443', for link type 1 (ETHERNET): "),
            ("tcp prot 443", "syntax error"),
            ("port 99999", "port number 99999"),
        ] {
            bench.refuses(&filtered(command, expression), says);
        }
    }
    assert!(!bench.path("out.pcap").exists());
}

#[cfg(feature = "filter")]
#[test]
fn files_of_records_are_filtered_too() {
    let bench = Bench::new();
    let frames = traffic();
    bench.capture("in.pcap", &frames);
    for (kind, start) in [("ethernet", 0), ("ip", 14)] {
        let mut records = format!("superpacket-records 1 {kind} 0\n").into_bytes();
        for frame in &frames {
            let packet = &frame.data[start..];
            records.extend((packet.len() as u32).to_le_bytes());
            records.extend(packet);
        }
        bench.write("left.records", records);
        let report = bench.json(&filtered("check left.records --origin in.pcap", "udp"));
        assert_json(
            &report,
            json!({ "verdict": "faithful", "packets_out": 4, "filtered_out": 16 }),
        );
    }
}
