//! Every real capture through every command.

use std::path::Path;

use crate::support::*;
use superpacket::packet::Layer;
use superpacket::wire::parse;
use superpacket_captures::file::{LinkType, Reader, Source, Start, start_of};
use superpacket_traffic::captures;
use superpacket_traffic::check::{Expect, Problem, frame as check_frame};

/// Returns the problem that etherparse finds with a frame; `None` if there is none, or if the link
/// type is not checked.
fn problem(link_type: LinkType, data: &[u8], expect: Expect) -> Option<Problem> {
    let (starts_at_ip, start) = match start_of(link_type, data) {
        Start::Ethernet => (false, 0),
        Start::Ip { header_length } => (true, header_length),
        Start::Other => return None,
    };
    let packet = &data[start..];
    // Frames that the engine cannot parse pass bit for bit, including a partial checksum.
    let layer = if starts_at_ip { Layer::Ip } else { Layer::Ethernet };
    let partial = expect.partial && parse(packet, packet.len(), layer).is_ok();
    check_frame(packet, &Expect { starts_at_ip, partial, ..expect }).err()
}

/// Counts the damaged frames of a capture.
fn wrong(path: &Path, expect: Expect) -> Option<(u64, u64)> {
    let mut reader = Reader::open(path).ok()?;
    let (mut frames, mut wrong) = (0, 0);
    while let Some(frame) = reader.next_frame().ok()? {
        frames += 1;
        wrong += u64::from(
            frame.is_truncated() || problem(frame.link_type(), frame.data, expect).is_some(),
        );
    }
    Some((frames, wrong))
}

#[test]
fn verify_finds_no_mismatch_anywhere() {
    let files = captures::real();
    let bench = Bench::new();
    let mut merged = 0;
    for file in &files {
        let name = file.display().to_string();
        for arguments in [
            &[][..],
            &["--batch", "0", "--hold", "1h"],
            &["--hold", "1h"],
            &["--batch", "1024", "--hold", "100ms"],
            &["--no-udp"],
        ] {
            let output = bench.run(&[&["verify", &name, "--json"], arguments].concat());
            match output.status.code() {
                Some(0) => {
                    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
                    assert_eq!(report["mismatches"], 0, "{name}");
                    assert_eq!(reasons(&report), number(&report["packets_out"]), "{name}");
                    merged += number(&report["merged"]);
                }
                // The file is no capture, or has an impossible record; the error names the file.
                Some(2) => assert!(stderr(&output).contains(&name), "{}", stderr(&output)),
                other => panic!("{name}: {other:?} {}", stderr(&output)),
            }
        }
    }
    assert!(merged > 10_000, "{merged} packets merged");
}

#[test]
fn the_output_of_coalesce_and_segment_has_right_checksums() {
    let files = captures::real();
    let bench = Bench::new();
    let (mut written, mut cut) = (0, 0);
    for file in &files {
        let name = file.display().to_string();
        // Frames that were damaged before may be damaged after. Partial checksums were valid, and
        // must be complete after.
        let before =
            wrong(file, Expect { partial: true, trailing: true, big: true, ..Expect::default() });
        for command in [
            &["coalesce", &name, "-o", "out.pcapng", "--json"][..],
            &["segment", &name, "-o", "out.pcapng", "--json"],
            &["coalesce", &name, "-o", "out.pcapng", "--json", "--mode", "lro", "--acks"],
        ] {
            let output = bench.run(command);
            if output.status.code() == Some(2) {
                assert!(stderr(&output).contains(&name), "{}", stderr(&output));
                continue;
            }
            assert_eq!(output.status.code(), Some(0), "{name}: {}", stderr(&output));
            let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let (frames, wrong_before) = before.expect("what the program reads can be read");
            assert_eq!(report["packets_in"], frames);
            let (out, wrong_after) = wrong(
                &bench.path("out.pcapng"),
                Expect { trailing: true, big: true, ..Expect::default() },
            )
            .expect("is read");
            assert_eq!(report["packets_out"], out);
            assert!(
                wrong_after <= wrong_before,
                "{command:?}: {wrong_before} frames were wrong, {wrong_after} are"
            );
            written += out;
            if command[0] == "segment" {
                cut += number(&report["super_packets"]);
            }
        }
    }
    assert!(written > 60_000 && cut > 100, "{written} frames written, {cut} super-packets cut");
}

#[test]
fn analyze_takes_all_at_once() {
    let files = captures::real();
    let bench = Bench::new();
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let arguments: Vec<&str> = ["analyze", "--json", "--html", "all.html"]
        .into_iter()
        .chain(names.iter().map(String::as_str))
        .collect();
    let output = bench.run(&arguments);
    assert!(matches!(output.status.code(), Some(0 | 2)), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let files = report["files"].as_array().expect("an array");
    assert!(files.len() > 200);
    assert_eq!(
        report["packets_in"].as_u64(),
        Some(files.iter().map(|file| number(&file["packets_in"])).sum())
    );
    for policy in ["lro", "gro", "gro_udp", "lro_acks"] {
        let effect = &report["policies"][policy];
        assert_eq!(
            effect["packets_in"].as_u64(),
            effect["packets_out"]
                .as_u64()
                .zip(effect["merged"].as_u64())
                .map(|(out, merged)| out + merged),
            "{policy}"
        );
    }
}
