//! `superpacket verify`: its comparison, its output, and that it finds a fault.

use std::collections::BTreeSet;

use crate::support::*;
use superpacket_captures::file::{Interface, LinkType, TimeResolution};
use superpacket_traffic::frame::{Checksum, Frame, PSH};
use superpacket_traffic::generate::{Config, Generated, Impairments, generate};

/// Returns interleaved flows of all kinds.
fn traffic() -> Vec<CapturedFrame> {
    let flows = [
        Frame::tcp4(1000, 1448).with_id(100).with_timestamps(5, 6).run(30),
        Frame::tcp6(1000, 1200).run(30),
        Frame::udp4(1200).with_id(9).run(30),
        Frame::dccp4(77, 900).run(30),
        Frame::tcp4(5, 1000).with_id(3).in_vxlan4().run(30),
        Frame::tcp4(5, 1000).tagged(12).run(30),
        Frame::tcp4(9, 700)
            .with(|frame| frame.tcp_mut().checksum = Checksum::Partial)
            .with(|frame| frame.ipv4_mut().source = [9, 9, 9, 9])
            .run(30),
    ];
    let frames: Vec<_> = (0..flows.len() * 30)
        .map(|index| flows[index % flows.len()][index / flows.len()].clone())
        .collect();
    spaced(&frames)
}

#[test]
fn every_byte_is_restored() {
    let bench = Bench::new();
    bench.capture("in.pcap", &traffic());
    for arguments in [&[][..], &["--batch", "0", "--hold", "1h"], &["--batch", "70"], &["--no-udp"]]
    {
        let report = bench.json(&[&["verify", "in.pcap"], arguments].concat());
        assert_json(&report, json!({ "mismatches": 0, "packets_in": 210 }));
        let merged = number(&report["merged"]);
        assert!(merged > 100, "{merged}");
        assert_eq!(report["packets_out"], 210 - merged);
        assert_eq!(
            report["segments"].as_u64(),
            report["super_packets"].as_u64().map(|packets| packets + merged)
        );
        assert_eq!(reasons(&report), 210 - merged);
    }
}

#[test]
fn unequal_packets_are_restored_too() {
    let bench = Bench::new();
    // Identifications that jump, and PSH on every seventh packet.
    let frames: Vec<_> = Frame::tcp4(1000, 1000)
        .run(40)
        .into_iter()
        .enumerate()
        .map(|(index, frame)| {
            frame.with_id((index * index) as u16).with(|frame| {
                if index % 7 == 6 {
                    frame.tcp_mut().flags |= PSH;
                }
            })
        })
        .collect();
    bench.capture("in.pcap", &spaced(&frames));
    let report = bench.json("verify in.pcap");
    assert_eq!(report["mismatches"], 0, "{report}");
    assert!((20..=40).contains(&number(&report["packets_out"])), "{report}");
    let damaged = bench.run("verify in.pcap --inject-fault 1");
    assert_eq!(damaged.status.code(), Some(1), "what is damaged is found");
}

/// Returns flows of every protocol in every tunnel. A third of the packets is irregular: with one
/// field changed, cut, padded, duplicated, lost or out of order.
fn traps(seed: u64) -> Vec<CapturedFrame> {
    let packets =
        generate(seed, &Config { impairments: Impairments::traps(), ..Config::default() }, 4000);
    let captured = |packet: Generated| CapturedFrame {
        interface: u32::from(packet.starts_at_ip),
        ..CapturedFrame::at(packet.time_ns, packet.bytes)
    };
    packets.into_iter().map(captured).collect()
}

#[test]
fn irregular_packets_of_every_kind_are_restored() {
    let interfaces = [LinkType::ETHERNET, LinkType::RAW]
        .map(|link_type| Interface::new(link_type, TimeResolution::NANOSECONDS));
    let mut seen = BTreeSet::new();
    for seed in 0..8 {
        let bench = Bench::new();
        bench.capture_of("in.pcapng", &interfaces, &traps(seed));
        for arguments in [&[][..], &["--batch", "0", "--hold", "1h"]] {
            let report = bench.json(&[&["verify", "in.pcapng"], arguments].concat());
            assert_eq!(report["mismatches"], 0, "seed {seed} {arguments:?}: {report}");
            assert_eq!(report["packets_in"], 4000);
            assert!(
                report["merged"].as_u64().is_some_and(|merged| merged > 1000),
                "seed {seed} {arguments:?}: {report}"
            );
            let reasons = report["reasons"].as_object().expect("an object");
            seen.extend(
                reasons
                    .iter()
                    .filter(|(_, count)| count.as_u64() != Some(0))
                    .map(|(reason, _)| reason.clone()),
            );
        }
    }
    assert!(seen.len() >= 40, "{} reasons: {seen:?}", seen.len());
}

#[test]
fn a_fault_in_a_merge_is_found() {
    let bench = Bench::new();
    bench.capture("in.pcap", &traffic());
    for fault in ["1", "3"] {
        let output = bench.run(&["verify", "in.pcap", "--inject-fault", fault]);
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("NOT reversible") && text.contains("in.pcap: packet "), "{text}");
        let output = bench.run(&["verify", "in.pcap", "--inject-fault", fault, "--json"]);
        assert_eq!(output.status.code(), Some(1));
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert!(report["mismatches"].as_u64().is_some_and(|mismatches| mismatches >= 1));
    }
    assert_eq!(
        bench.run("verify in.pcap --inject-fault 100000").status.code(),
        Some(0),
        "there is no such super-packet"
    );
}

#[test]
fn several_files_are_reported_each_and_together() {
    let bench = Bench::new();
    bench.capture("one.pcap", &traffic());
    bench.capture("two.pcapng.gz", &traffic());
    let report = bench.json("verify one.pcap two.pcapng.gz");
    assert_eq!(report["packets_in"], 420);
    let files = report["files"].as_array().expect("an array");
    assert_eq!(
        files.iter().map(|file| file["file"].as_str().expect("a name")).collect::<Vec<_>>(),
        ["one.pcap", "two.pcapng.gz"]
    );
    assert!(
        files
            .iter()
            .all(|file| file["packets_in"] == 210 && reasons(file) == number(&file["packets_out"]))
    );
    let text = bench.run("verify one.pcap two.pcapng.gz");
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    for word in [
        "one.pcap",
        "two.pcapng.gz",
        "total",
        "merged",
        "super-packets",
        "mismatches",
        "Every byte came back",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn one_unreadable_file_does_not_hide_the_others() {
    let bench = Bench::new();
    bench.capture("one.pcap", &traffic());
    bench.write("text.pcap", "not a capture");
    for command in ["verify", "analyze"] {
        let output = bench.run(&[command, "text.pcap", "one.pcap", "absent.pcap", "--json"]);
        assert_eq!(output.status.code(), Some(2), "{command}");
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(
            (report["packets_in"].as_u64(), report["unreadable"].as_array().map(Vec::len)),
            (Some(210), Some(2))
        );
        assert!(stderr(&output).contains("text.pcap: not a capture file"), "{}", stderr(&output));
        assert!(stderr(&output).contains("absent.pcap: cannot be opened"), "{}", stderr(&output));
    }
}
