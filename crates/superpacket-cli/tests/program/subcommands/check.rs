//! `superpacket check`: what it reads, prints and returns.

use super::options::{option, pcapng};
use crate::support::*;
use superpacket_traffic::frame::{Frame, Ip};

/// Returns a pcapng file of these frames, each with a comment.
fn commented(frames: &[(Vec<u8>, String)]) -> Vec<u8> {
    pcapng(frames.iter().map(|(data, comment)| (data.clone(), option(1, comment.as_bytes()))))
}

/// Returns three merged packets as bytes with a partial checksum, and their virtio header.
fn merged(flow: &[Frame]) -> (Vec<u8>, Vec<u8>) {
    let mut frame = flow[0].clone();
    frame.payload = flow.iter().flat_map(|frame| frame.payload.clone()).collect();
    frame.tcp_mut().flags |= flow[2].clone().tcp_mut().flags;
    frame.tcp_mut().checksum = superpacket_traffic::frame::Checksum::Partial;
    // NEEDS_CSUM, TCPV4, hdr_len 54, gso_size 1000, csum_start 34, csum_offset 16.
    (frame.to_bytes(), vec![1, 1, 54, 0, 0xe8, 3, 34, 0, 16, 0])
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn headers_come_in_comments_and_in_records() {
    let bench = Bench::new();
    let flow = tcp_flow(3, 1000);
    bench.capture("in.pcap", &spaced(&flow));
    let (packet, header) = merged(&flow);
    for size in [1000u16, 999] {
        let mut header = header.clone();
        header[4..6].copy_from_slice(&size.to_le_bytes());
        let comments =
            commented(&[(packet.clone(), format!("virtio_net_hdr={}", hexadecimal(&header)))]);
        bench.write("left.pcapng", comments);
        let length = (header.len() + packet.len()) as u32;
        let records =
            [&b"superpacket-records 1 ethernet 10\n"[..], &length.to_le_bytes(), &header, &packet]
                .concat();
        bench.write("left.records", records);
        for file in ["left.pcapng", "left.records"] {
            let output = bench.run(&["check", file, "--origin", "in.pcap", "--json"]);
            let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            assert_eq!(
                (report["super_packets"].as_u64(), report["not_judged"]["headers"].as_u64()),
                (Some(1), Some(0)),
                "{file}: {report}"
            );
            if size == 1000 {
                assert_eq!(
                    (output.status.code(), report["violations"].as_u64()),
                    (Some(0), Some(0)),
                    "{file}: {report}"
                );
            } else {
                assert_eq!(
                    (output.status.code(), &report["by_rule"]),
                    (Some(1), &serde_json::json!({"gso-size": 1})),
                    "{file}: {report}"
                );
                assert_eq!(report["described"][0]["field"], "gso_size");
            }
        }
    }
    std::fs::write(
        bench.path("left.pcapng"),
        commented(&[(packet, "virtio_net_hdr=01".to_owned())]),
    )
    .expect("writes");
    for says in ["left.pcapng: packet 1", "hexadecimal digits"] {
        bench.refuses("check left.pcapng --origin in.pcap", says);
    }
}

#[test]
fn violations_fit_a_screen_and_all_are_printed_on_request() {
    let bench = Bench::new();
    let flow = tcp_flow(60, 1000);
    bench.capture("in.pcap", &spaced(&flow));
    let damaged: Vec<_> =
        flow.iter().map(|frame| frame.clone().with(|frame| frame.ipv4_mut().ttl -= 1)).collect();
    bench.capture("out.pcap", &spaced(&damaged));
    let output = bench.run("check out.pcap --origin in.pcap");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(
        text.lines().count() <= 24 && text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    for words in [
        "packet 1 (original 1): ttl, ipv4.ttl: byte 22 is",
        "ttl (60): TTL or hop limit",
        "NOT faithful: 60 violations; the first 10",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let text = bench.run("check out.pcap --origin in.pcap --all").stdout;
    let text = String::from_utf8(text).expect("UTF-8");
    assert!(text.contains("packet 60 (original 60): ttl"), "{text}");
}

#[test]
fn link_headers_that_only_one_file_has_are_not_judged() {
    let bench = Bench::new();
    let flow = tcp_flow(3, 1000);
    bench.capture("in.pcap", &spaced(&flow));
    let interfaces = [superpacket_captures::file::Interface::new(
        superpacket_captures::file::LinkType::RAW,
        superpacket_captures::file::TimeResolution::NANOSECONDS,
    )];
    let ip: Vec<_> =
        flow.iter().map(|frame| CapturedFrame::at(0, frame.to_bytes()[14..].to_vec())).collect();
    bench.capture_of("out.pcap", &interfaces, &ip);
    for (file, origin) in [("out.pcap", "in.pcap"), ("in.pcap", "out.pcap")] {
        let report = bench.json(&["check", file, "--origin", origin]);
        assert_json(&report, json!({ "violations": 0, "not_judged": { "link_headers": true } }));
    }
    let text = bench.prints("check out.pcap --origin in.pcap");
    assert!(
        text.contains("Not judged: the files begin at different layers: link headers."),
        "{text}"
    );
}

#[test]
fn rules_are_chosen_and_input_is_read_once() {
    let bench = Bench::new();
    let same: Vec<_> = tcp_flow(3, 1000).into_iter().map(|frame| frame.with_id(5)).collect();
    assert!(matches!(same[0].ip, Ip::V4(_)));
    bench.capture("in.pcap", &spaced(&same));
    let (packet, header) = merged(&same);
    let length = (header.len() + packet.len()) as u32;
    let records =
        [&b"superpacket-records 1 ethernet 10\n"[..], &length.to_le_bytes(), &header, &packet]
            .concat();
    bench.write("left.records", records);
    for (rules, code) in [("linux", 0), ("reversible", 1)] {
        let output = bench.run(&["check", "left.records", "--origin", "in.pcap", "--rules", rules]);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{rules}: {}",
            String::from_utf8_lossy(&output.stdout)
        );
    }
    bench.refuses("check - --origin -", "both standard input");
    let mut child = bench.command("check - --origin in.pcap");
    let file = std::fs::File::open(bench.path("left.records")).expect("opens");
    assert_eq!(child.stdin(file).status().expect("runs").code(), Some(0));
}

/// A file that was not judged completely has its own exit code, and the report says why.
#[test]
fn a_file_that_was_cut_short_has_an_exit_code_of_its_own() {
    let bench = Bench::new();
    let flow = tcp_flow(60, 1000);
    bench.capture("in.pcap", &spaced(&flow));
    let mut records = b"superpacket-records 1 ethernet 0\n".to_vec();
    for frame in &flow {
        let bytes = frame.to_bytes();
        records.extend((bytes.len() as u32).to_le_bytes());
        records.extend(bytes);
    }
    bench.write("whole.records", &records);
    bench.write("cut.records", &records[..records.len() / 3]);
    let capture = bench.bytes("in.pcap");
    bench.write("cut.pcap", &capture[..capture.len() - 5]);
    assert_eq!(bench.run("check whole.records --origin in.pcap").status.code(), Some(0));
    for (file, origin, count) in [
        ("cut.records", "in.pcap", "missing"),
        ("cut.pcap", "in.pcap", "missing"),
        ("in.pcap", "cut.pcap", "without_origin"),
    ] {
        let output = bench.run(&["check", file, "--origin", origin, "--json"]);
        assert_eq!(output.status.code(), Some(3), "{file}, of {origin}: {}", stderr(&output));
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!((&report["verdict"], &report["violations"]), (&"incomplete".into(), &0.into()));
        assert!(report["not_judged"][count].as_u64() > Some(0), "{report}");
        let output = bench.run(&["check", file, "--origin", origin]);
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(
            text.contains("Not judged: ")
                && text.contains("the file was cut short")
                && text.contains("INCOMPLETE: no rule is broken"),
            "{text}"
        );
        assert!(!text.contains("Faithful"), "{text}");
        bench.refuses(&["check", file, "--origin", origin, "--strict"], "");
    }
    // A broken rule outranks missing packets.
    let damaged: Vec<_> =
        flow.iter().map(|frame| frame.clone().with(|frame| frame.ipv4_mut().ttl -= 1)).collect();
    bench.capture("damaged.pcap", &spaced(&damaged));
    assert_eq!(bench.run("check damaged.pcap --origin cut.pcap").status.code(), Some(1));
    let help = bench.prints("help check");
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("3 no rule is broken, but some packets could not be judged"), "{help}");
}
