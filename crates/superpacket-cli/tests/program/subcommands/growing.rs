//! `--follow` and `--rotated`: captures that grow, and captures in several files.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

use super::live::{FILE_HEADER, arrivals, ends, records, signal, spawn, wait_for};
use crate::support::*;
use superpacket_captures::file::{Interface, LinkType, TimeResolution};

/// Appends bytes to a file in the directory.
fn append(bench: &Bench, name: &str, bytes: &[u8]) {
    let file = OpenOptions::new().append(true).open(bench.path(name));
    file.expect("it is there").write_all(bytes).expect("writes");
}

#[test]
fn a_growing_file_is_followed_until_a_signal() {
    let bench = Bench::new();
    let (header, records) = records(&bench, 5);
    for command in ["coalesce", "segment"] {
        bench.write("in.pcap", &header);
        let child = &mut spawn(&bench, &format!("{command} in.pcap -o - --follow"));
        let output = arrivals(child.stdout.take().expect("a pipe"));
        append(&bench, "in.pcap", &records[..2].concat());
        wait_for(&output, header.len() + records[..2].concat().len());
        for record in &records[2..] {
            let (start, end) = record.split_at(30);
            append(&bench, "in.pcap", start);
            std::thread::sleep(Duration::from_millis(70));
            append(&bench, "in.pcap", end);
            wait_for(&output, record.len());
        }
        signal(child, "INT");
        assert_eq!(child.wait().expect("it ends").code(), Some(0), "{command}");
    }
}

#[test]
fn a_followed_file_that_becomes_shorter_is_an_error() {
    let bench = Bench::new();
    let (header, records) = records(&bench, 3);
    bench.write("in.pcap", [header.clone(), records.concat()].concat());
    let mut child = spawn(&bench, "segment in.pcap -o - --follow");
    let output = arrivals(child.stdout.take().expect("a pipe"));
    wait_for(&output, header.len() + records.concat().len());
    bench.write("in.pcap", &header);
    let ended = ends(child);
    assert_eq!(ended.status.code(), Some(2));
    let error = stderr(&ended);
    assert!(
        error.contains("in.pcap: packet 4, byte") && error.contains("has shortened it"),
        "{error}"
    );
}

#[test]
fn only_one_capture_can_be_followed() {
    let bench = Bench::new();
    bench.capture("in.pcap", &spaced(&tcp_flow(3, 100)));
    for command in ["analyze", "verify"] {
        bench.refuses(
            &format!("{command} in.pcap in.pcap --follow")[..],
            "--follow reads a single capture",
        );
    }
    bench.refuses("analyze - --rotated", "standard input is no set of files");
    bench.refuses("analyze absent.pcap --rotated", "absent.pcap: cannot be opened");
    bench.refuses("coalesce in.pcap --rotated -o in.pcap", "is the input too");
}

#[test]
fn files_of_a_set_are_one_capture() {
    let bench = Bench::new();
    let frames = spaced(&tcp_flow(9, 1000));
    bench.capture("in.pcap", &frames[..3]);
    bench.capture("in.pcap1.gz", &frames[3..6]);
    bench.capture("in.pcap2", &frames[6..]);
    for input in ["in.pcap", "in.pcap1.gz", "in.pcap2"] {
        let line = format!("coalesce {input} --rotated -o out.pcap --batch 0 --hold 1h");
        let report = bench.json(&line[..]);
        assert_json(&report, json!({ "packets_in": 9, "packets_out": 1, "interrupted": false }));
    }
    assert_right(&bench.read("out.pcap")[0].data);
    for line in [
        "segment in.pcap -o cut.pcap",
        "analyze in.pcap",
        "verify in.pcap",
        "steer in.pcap --cpus f",
    ] {
        assert_eq!(bench.json(&format!("{line} --rotated")[..])["packets_in"], 9, "{line}");
    }
    let line = "check in.pcap --origin in.pcap1.gz --rotated";
    assert_json(&bench.json(line), json!({ "packets_in": 9, "verdict": "faithful" }));
}

#[test]
fn interfaces_of_a_set_are_kept_apart_and_cut_files_are_reported() {
    let bench = Bench::new();
    let frames = spaced(&tcp_flow(4, 500));
    let interface = |kind| Interface::new(kind, TimeResolution::NANOSECONDS);
    let (ethernet, null) = (interface(LinkType::ETHERNET), interface(LinkType::NULL));
    bench.capture_of("in0.pcapng", std::slice::from_ref(&ethernet), &frames[..1]);
    std::fs::rename(bench.path("in0.pcapng"), bench.path("in0")).expect("renames");
    let mut both = frames[1..3].to_vec();
    both[1].interface = 1;
    bench.capture_of("in1.pcapng", &[null, ethernet], &both);
    std::fs::rename(bench.path("in1.pcapng"), bench.path("in1")).expect("renames");
    bench.json("segment in --rotated -o out.pcapng");
    let interfaces: Vec<_> = bench.read("out.pcapng").iter().map(|frame| frame.interface).collect();
    assert_eq!(interfaces, [0, 1, 0]);
    let bytes = bench.bytes("in0");
    bench.write("in0", &bytes[..bytes.len() - 8]);
    let output = bench.run("segment in1 --rotated -o out.pcapng --json");
    assert!(stderr(&output).contains("in0: cut short in packet 1"), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_json(&report, json!({ "packets_in": 2, "cut_short": { "packet": 1 } }));
    bench.refuses("segment in1 --rotated -o out.pcapng --strict", "cut short in packet 1");
}

#[test]
fn a_set_is_followed_from_file_to_file() {
    let bench = Bench::new();
    let (header, records) = records(&bench, 8);
    let file = |range: std::ops::Range<usize>| [header.clone(), records[range].concat()].concat();
    let length = records[0].len();
    for names in [["in.pcap", "in.pcap1", "in.pcap2"], ["in.pcap0", "in.pcap1", "in.pcap2"]] {
        bench.write(names[0], file(0..1));
        let child = &mut spawn(&bench, "coalesce in.pcap -o - --rotated --follow");
        let output = arrivals(child.stdout.take().expect("a pipe"));
        wait_for(&output, FILE_HEADER + length);
        append(&bench, names[0], &records[1]);
        wait_for(&output, length);
        // The first file is complete only when the second one has begun.
        bench.write(names[1], &header);
        append(&bench, names[0], &records[2]);
        append(&bench, names[1], &records[3]);
        wait_for(&output, 2 * length);
        append(&bench, names[1], &records[4]);
        wait_for(&output, length);
        bench.write(names[2], file(5..6));
        wait_for(&output, length);
        let mut last = names[2];
        if names[0] == "in.pcap0" {
            // The ring begins again.
            bench.write(names[0], file(6..7));
            wait_for(&output, length);
            last = names[0];
        }
        append(&bench, last, &records[7]);
        wait_for(&output, length);
        signal(child, "TERM");
        assert_eq!(child.wait().expect("it ends").code(), Some(0), "{names:?}");
        for name in names {
            std::fs::remove_file(bench.path(name)).expect("it is there");
        }
    }
}

#[test]
fn a_ring_is_read_from_its_oldest_file_on() {
    let bench = Bench::new();
    let frames = spaced(&tcp_flow(6, 1000));
    for (name, range) in [("in.pcap00", 4..6), ("in.pcap01", 0..2), ("in.pcap02", 2..4)] {
        let path = bench.capture(name, &frames[range]);
        assert!(path.exists());
    }
    bench.json("segment in.pcap01 --rotated -o out.pcap");
    assert_eq!(bench.read("out.pcap"), frames);
}
