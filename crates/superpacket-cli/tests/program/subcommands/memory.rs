//! Memory use stays below 64 MB whatever the file's size or number of flows. It is measured on
//! Linux, by the peak that the kernel records for each process.

use std::process::Stdio;
use std::time::Duration;

use crate::support::*;
use superpacket_captures::file::LinkType;
use superpacket_traffic::frame::Frame;

const LIMIT: u64 = 64_000;

/// Runs a command that must succeed, and returns its peak of resident memory in KB.
fn peak(bench: &Bench, arguments: &[&str]) -> u64 {
    let mut child = bench
        .command(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("runs");
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    loop {
        // The peak never decreases, so the last sample before the end is close to it.
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        if let Some(now) = line
            .and_then(|line| line.trim().strip_suffix(" kB"))
            .and_then(|number| number.parse().ok())
        {
            peak = now;
        }
        if child.try_wait().expect("is ours").is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let output = child.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    assert!(peak > 1000, "{peak} KB for {arguments:?}: not seen in time");
    peak
}

/// Runs all commands over one capture, with the maximum that can be held.
fn all_commands(bench: &Bench, name: &str) {
    for arguments in [
        &["coalesce", name, "-o", "out.pcap", "--batch", "0", "--hold", "3600s"][..],
        &[
            "coalesce",
            name,
            "-o",
            "out.pcap",
            "--batch",
            "0",
            "--hold",
            "3600s",
            "--max-bytes",
            "524280",
        ],
        &["segment", name, "-o", "out.pcap", "--mtu", "68"],
        &["verify", name, "--batch", "0", "--hold", "3600s"],
        &["check", name, "--origin", name],
        &["analyze", name, "--batch", "0", "--hold", "3600s", "--html", "out.html"],
        &["steer", name, "--cpu-list", "0-8191", "--html", "out.html", "--json"],
    ] {
        let peak = peak(bench, arguments);
        eprintln!("{peak} KB: {}", arguments.join(" "));
        assert!(peak < LIMIT, "{peak} KB: {arguments:?}");
    }
}

#[test]
fn a_million_flows() {
    let bench = Bench::new();
    // A segment and its acknowledgement: 1.2 million flows, half of them in each direction.
    let size = 600_000u64 * (66 + 10 + 66);
    let report = bench.json(&[
        "generate",
        "flows.pcap",
        "--size",
        &size.to_string(),
        "--flows",
        "600000",
        "--burst",
        "1",
        "--payload",
        "10",
    ]);
    assert_eq!(report["packets_out"], 1_200_000);
    all_commands(&bench, "flows.pcap");
}

#[test]
fn flows_made_to_hold_as_much_as_they_can() {
    let bench = Bench::new();
    // Tiny segments: many of each flow, from more flows than are held, and from more link headers
    // than there are aggregators.
    let mut frames = Vec::new();
    for round in 0..3u32 {
        for host in 0..1500u32 {
            let flow =
                from_host(Frame::tcp4(1000 + round * 100, 1).with_id(round as u16 * 60), host)
                    .at_ip()
                    .run(60);
            frames.extend(flow.iter().map(|frame| {
                let peer = (host % 20).to_be_bytes();
                CapturedFrame::at(
                    0,
                    [&[0, 0, 0, 1, 0, 6, 2, 0][..], &peer, &[0, 0, 8, 0], &frame.to_bytes()]
                        .concat(),
                )
            }));
        }
    }
    bench.capture_as(LinkType::LINUX_SLL, "tiny.pcap", &frames);
    all_commands(&bench, "tiny.pcap");
    // The same segments interleaved, so that all flows are held at once; then other flows that
    // replace them.
    let mut frames = Vec::new();
    for group in 0..3u32 {
        let flows: Vec<Vec<Frame>> = (0..1000u32)
            .map(|host| from_host(Frame::tcp4(1000, 1).with_id(0), group * 1000 + host).run(120))
            .collect();
        frames.extend(
            (0..120_000)
                .map(|index| CapturedFrame::at(0, flows[index % 1000][index / 1000].to_bytes())),
        );
    }
    bench.capture("turns.pcap", &frames);
    all_commands(&bench, "turns.pcap");
}

#[test]
fn frames_of_16_megabytes() {
    let bench = Bench::new();
    let frames: Vec<_> = (0..4)
        .map(|index| {
            CapturedFrame::at(
                index,
                [&Frame::tcp4(1, 100).to_bytes()[..], &vec![7; 15_900_000]].concat(),
            )
        })
        .collect();
    bench.capture("long.pcap", &frames);
    all_commands(&bench, "long.pcap");
    bench.capture("long.pcapng.zst", &frames);
    all_commands(&bench, "long.pcapng.zst");
}

#[test]
fn options_of_16_megabytes() {
    let bench = Bench::new();
    let little = |value: usize| (value as u32).to_le_bytes();
    let block = |kind: usize, body: &[u8]| {
        [&little(kind), &little(body.len() + 12), body, &little(body.len() + 12)].concat()
    };
    let mut section = little(0x1a2b_3c4d).to_vec();
    section.extend([1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    let mut file = [block(0x0a0d_0d0a, &section), block(1, &[1, 0, 0, 0, 0, 0, 0, 0])].concat();
    let comment = [&[1, 0, 0xfc, 0xff][..], &[b'x'; 0xfffc]].concat();
    // Two interleaved flows, so that all packets are held.
    let frames = [Frame::tcp4(1000, 502).run(3), Frame::tcp6(1000, 502).run(3)];
    for (index, frame) in (0..6).map(|index| (index, frames[index % 2][index / 2].to_bytes())) {
        let fields = [0, 0, index, frame.len(), frame.len()].map(little).concat();
        let mut body = [fields, frame].concat();
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend(comment.repeat(243));
        file.extend(block(6, &body));
    }
    bench.write("long.pcapng", file);
    for (name, out) in [
        ("long.pcapng", "out.pcapng"),
        ("long.pcapng", "out.pcap"),
        ("copy.pcapng.gz", "out.pcapng"),
    ] {
        for arguments in [
            &["coalesce", name, "-o", out, "--batch", "0", "--hold", "3600s"][..],
            &["coalesce", name, "-o", out, "--batch", "1"],
            &["segment", name, "-o", out],
            &["segment", name, "-o", "out.pcapng.zst"],
            &["verify", name, "--batch", "0", "--hold", "3600s"],
            &["check", name, "--origin", name],
            &["analyze", name, "--batch", "0", "--hold", "3600s"],
            &[
                "segment",
                name,
                "-o",
                if name.ends_with("gz") { "out.pcapng.gz" } else { "copy.pcapng.gz" },
            ],
        ] {
            let peak = peak(&bench, arguments);
            eprintln!("{peak} KB: {}", arguments.join(" "));
            assert!(peak < LIMIT, "{peak} KB: {arguments:?}");
        }
    }
}
