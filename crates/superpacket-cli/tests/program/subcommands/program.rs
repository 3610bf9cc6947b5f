//! The program as a whole: help, exit codes, truncated files, pipes, and generated captures.

use std::io::Read;
use std::process::Stdio;

use crate::support::*;

const COMMANDS: &[&str] = if cfg!(target_os = "linux") {
    &[
        "coalesce", "segment", "verify", "check", "analyze", "steer", "generate", "lab", "bridge",
        "features", "stats", "ports", "limits", "rps", "top", "monitor", "mdb",
    ]
} else {
    &["coalesce", "segment", "verify", "check", "analyze", "steer", "generate"]
};

#[test]
fn help_has_examples_and_goes_to_standard_output() {
    let bench = Bench::new();
    for arguments in [
        &["--help"][..],
        &["help"],
        &["coalesce", "--help"],
        &["segment", "-h"],
        &["verify", "--help"],
        &["check", "--help"],
        &["analyze", "--help"],
        &["steer", "--help"],
        &["generate", "--help"],
    ] {
        let text = bench.prints(arguments);
        assert!(text.contains("Usage:"), "{text}");
        assert!(arguments.len() == 1 || text.contains("Examples:"), "{text}");
    }
    let text = bench.prints(&["--help"]);
    assert!(
        text.contains("Exit codes: 0 done, 1 the check failed, 2 bad usage or unreadable input"),
        "{text}"
    );
    assert!(!bench.prints("verify --help").contains("inject"), "the fault is for tests");
    assert!(bench.prints(&["--version"]).starts_with("superpacket "));
}

#[test]
fn help_says_the_ranges_that_hold() {
    let bench = Bench::new();
    bench.capture("in.pcap", &spaced(&tcp_flow(3, 100)));
    for (command, option, least, most) in [
        ("coalesce", "--max-bytes", 68u64, 524_280),
        ("coalesce", "--max-packets", 1, 512),
        ("coalesce", "--max-flows", 1, 1024),
        ("segment", "--mtu", 68, 65_535),
        ("segment", "--udp-size", 1, 65_535),
    ] {
        let help = bench.prints(&[command, "--help"]);
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let (_, text) = help.split_once(&format!("{option} <N>")).expect("it is described");
        let text = text.split(" --").next().expect("some text");
        assert!(text.contains(&format!("{least} to {most}")), "{option}: {text}");
        for (value, code) in [(least - 1, 2), (least, 0), (most, 0), (most + 1, 2)] {
            let output =
                bench.run(&[command, "in.pcap", "-o", "out.pcap", option, &value.to_string()]);
            assert_eq!(output.status.code(), Some(code), "{option} {value}: {}", stderr(&output));
        }
    }
}

#[test]
fn negative_values_are_refused_by_what_they_are() {
    let bench = Bench::new();
    bench.capture("in.pcap", &spaced(&tcp_flow(3, 100)));
    for (arguments, words) in [
        (
            ["coalesce", "--hold", "-1s"],
            "invalid value '-1s' for '--hold <DURATION>': a duration cannot be negative",
        ),
        (["coalesce", "--batch", "-1"], "invalid value '-1' for '--batch <N>'"),
        (["coalesce", "--max-bytes", "-5"], "invalid value '-5' for '--max-bytes <N>'"),
        (["coalesce", "--max-flows", "-1"], "-1 is not in 1..=1024"),
        (["segment", "--mtu", "-1500"], "-1500 is not in 68..=65535"),
    ] {
        bench.refuses(&[&arguments[..], &["in.pcap", "-o", "out.pcap"]].concat(), words);
    }
}

#[test]
fn an_empty_capture_has_no_averages() {
    let bench = Bench::new();
    bench.capture("in.pcap", &[]);
    for arguments in [
        &["coalesce", "in.pcap", "-o", "out.pcap"][..],
        &["segment", "in.pcap", "-o", "out.pcap"],
        &["verify", "in.pcap"],
        &["check", "in.pcap", "--origin", "in.pcap"],
        &["analyze", "in.pcap", "--html", "out.html"],
        &["analyze", "in.pcap", "in.pcap", "--html", "both.html"],
        &["steer", "in.pcap", "--cpus", "f", "--html", "spread.html"],
    ] {
        let text = bench.prints(arguments);
        assert!(!text.contains("0.0") && !text.contains("NaN"), "{text}");
        assert!(matches!(arguments[0], "verify" | "check") || text.contains(" -"), "{text}");
    }
    for page in ["out.html", "both.html"] {
        let page = std::fs::read_to_string(bench.path(page)).expect("it was written");
        assert!(
            page.contains("<b>-</b><span>fewer packets")
                && !page.contains("0.00x")
                && !page.contains("0.0 %")
        );
    }
}

#[test]
fn errors_in_compressed_files_are_described() {
    let bench = Bench::new();
    let path = bench.capture("in.pcap.gz", &spaced(&tcp_flow(3, 100)));
    let mut bytes = std::fs::read(path).expect("it was written");
    let length = bytes.len();
    bytes.extend_from_slice(b"garbage");
    bench.write("in.pcap.gz", bytes);
    // A frame header with a window of 16 MiB: exponent 14.
    bench.write("in.pcap.zst", [0x28, 0xb5, 0x2f, 0xfd, 0, 14 << 3, 1, 0, 0]);
    for (name, words) in [
        ("in.pcap.gz", format!("in.pcap.gz: packet 4, byte 534: the gzip stream ends at byte {length} of the compressed file")),
        ("in.pcap.zst", "in.pcap.zst: packet 1, byte 0: not supported: its zstd window of 16777216 bytes is above the limit".to_owned()),
    ] {
        for command in [&["coalesce", name, "-o", "out.pcap"][..], &["verify", name]] {
            let output = bench.run(command);
            assert_eq!(output.status.code(), Some(2), "{command:?}");
            assert!(stderr(&output).starts_with(&format!("superpacket: {words}")), "{}", stderr(&output));
        }
    }
}

#[test]
fn bad_usage_is_exit_code_2() {
    let bench = Bench::new();
    for arguments in [
        &[][..],
        &["unknown"],
        &["coalesce"],
        &["coalesce", "in.pcap"],
        &["verify"],
        &["check", "in.pcap"],
        &["segment", "--mtu", "1500"],
        &["man", "unknown"],
        &["completions", "unknown"],
    ] {
        let output = bench.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}");
        // Without arguments, the help is printed. All errors begin with the program's name.
        let error = stderr(&output);
        assert!(arguments.is_empty() || error.starts_with("superpacket: "), "{error}");
        assert!(!error.contains("error: "), "{error}");
    }
}

#[test]
fn completions_and_man_pages_name_every_command() {
    let bench = Bench::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let text = bench.prints(&["completions", shell]);
        let words: Vec<&str> =
            text.split(|sign: char| !sign.is_alphanumeric() && sign != '-').collect();
        COMMANDS
            .iter()
            .for_each(|command| assert!(words.contains(command), "{shell} {command}: {text}"));
    }
    let page = bench.prints(&["man"]);
    assert!(page.contains(".TH superpacket 1"), "{page}");
    COMMANDS.iter().for_each(|command| assert!(page.contains(command), "{command}"));
    let page = bench.prints("man coalesce");
    assert!(page.contains(".TH superpacket-coalesce 1") && page.contains("hold"), "{page}");
    for command in COMMANDS {
        let page = bench.prints(&["man", command]);
        assert!(
            page.contains(&format!(".TH superpacket-{command} 1")) && page.contains("\\-\\-json"),
            "{page}"
        );
        assert!(
            page.contains(".SH EXAMPLES\n.nf\nsuperpacket ") && !page.contains("EXTRA"),
            "{page}"
        );
    }
}

#[test]
fn unreadable_input_is_exit_code_2_and_named() {
    let bench = Bench::new();
    bench.write("empty.pcap", "");
    bench.write("text.pcap", "this is no capture");
    for (file, message) in [
        ("absent.pcap", "superpacket: absent.pcap: cannot be opened"),
        ("empty.pcap", "superpacket: empty.pcap: not a capture file: it is empty"),
        ("text.pcap", "superpacket: text.pcap: not a capture file"),
        (".", "superpacket: .: cannot be opened"),
    ] {
        for command in [
            &["coalesce", file, "-o", "out.pcap"][..],
            &["segment", file, "-o", "out.pcap"],
            &["verify", file],
            &["check", file, "--origin", file],
            &["analyze", file, "--json"],
        ] {
            let output = bench.run(command);
            assert_eq!(output.status.code(), Some(2), "{command:?}");
            assert!(stderr(&output).starts_with(message), "{}", stderr(&output));
            assert!(output.stdout.is_empty());
        }
    }
    assert!(!bench.path("out.pcap").exists());
}

#[test]
fn a_file_cut_in_mid_record_is_processed_up_to_there() {
    let bench = Bench::new();
    let frames = spaced(&tcp_flow(5, 1000));
    for name in ["in.pcap", "in.pcapng"] {
        let path = bench.capture(name, &frames);
        let mut bytes = std::fs::read(&path).expect("reads");
        bytes.truncate(bytes.len() - 300);
        std::fs::write(&path, bytes).expect("writes");
        for command in [
            &["coalesce", name, "-o", "out.pcap"][..],
            &["segment", name, "-o", "out.pcap"],
            &["verify", name],
            &["analyze", name],
        ] {
            let output = bench.run(&[command, &["--json"]].concat());
            assert_eq!(output.status.code(), Some(0), "{command:?}");
            let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            assert_eq!(report["packets_in"], 4, "{command:?}");
            assert!(
                stderr(&output).contains(&format!("warning: {name}: cut short in packet 5")),
                "{}",
                stderr(&output)
            );
            let cut = if report["files"].is_array() {
                &report["files"][0]["cut_short"]
            } else {
                &report["cut_short"]
            };
            assert_eq!(cut["packet"], 5);
            std::fs::remove_file(bench.path("out.pcap")).ok();
            bench.refuses(&[command, &["--strict"]].concat(), "cut short in packet 5");
            assert!(!bench.path("out.pcap").exists());
        }
    }
}

#[test]
fn a_reader_that_stops_is_no_panic() {
    let bench = Bench::new();
    assert_eq!(bench.run("generate big.pcap --size 8M").status.code(), Some(0));
    for arguments in [
        &["coalesce", "big.pcap", "-o", "-"][..],
        &["segment", "big.pcap", "-o", "-"],
        &["generate", "-", "--size", "8M"],
        &["verify", "big.pcap"],
        &["completions", "bash"],
    ] {
        let mut child = bench
            .command(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("runs");
        let mut stdout = child.stdout.take().expect("piped");
        stdout.read_exact(&mut [0; 1]).ok();
        drop(stdout);
        let output = child.wait_with_output().expect("ends");
        assert!(
            !stderr(&output).contains("panic") && output.status.code() == Some(0),
            "{arguments:?}: {:?} {}",
            output.status,
            stderr(&output)
        );
    }
}

#[test]
fn no_progress_bar_without_a_terminal() {
    let bench = Bench::new();
    bench.run("generate big.pcap --size 8M");
    let output = bench.run("coalesce big.pcap -o out.pcap");
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
}

#[test]
fn generated_captures_are_right_and_always_the_same() {
    let bench = Bench::new();
    for workload in ["tcp", "udp", "mixed"] {
        let generate = |name: &str, more: &[&str]| {
            let size = ["--size", "500k", "--flows", "7", "--burst", "9"];
            bench.json(&[&["generate", name, "--workload", workload], &size[..], more].concat())
        };
        let report = generate("one.pcap", &[]);
        generate("two.pcap", &[]);
        assert!(bench.bytes("one.pcap") == bench.bytes("two.pcap"), "{workload}");
        let frames = bench.read("one.pcap");
        assert_eq!(report["packets_out"], frames.len() as u64);
        assert!(
            report["bytes_out"].as_u64().is_some_and(|bytes| (512_000..550_000).contains(&bytes))
        );
        frames.iter().for_each(|frame| assert_right(&frame.data));
        assert!(frames.windows(2).all(|pair| pair[0].time < pair[1].time));
        generate("super.pcap", &["--uncut"]);
        bench.read("super.pcap").iter().for_each(|frame| assert_right(&frame.data));
        let verified = bench.json("verify one.pcap");
        assert!(
            verified["mismatches"] == 0
                && verified["merged"].as_u64().is_some_and(|merged| merged > 100)
        );
    }
}

#[test]
fn segmenting_generated_super_packets_gives_the_generated_segments() {
    let bench = Bench::new();
    for name in ["cut.pcap", "super.pcap"] {
        let extra = if name == "super.pcap" { &["--uncut"][..] } else { &[] };
        bench.json(&[&["generate", name, "--size", "1M", "--flows", "3"][..], extra].concat());
    }
    bench.json("segment super.pcap -o out.pcap");
    let data =
        |name: &str| bench.read(name).into_iter().map(|frame| frame.data).collect::<Vec<_>>();
    let (cut, out) = (data("cut.pcap"), data("out.pcap"));
    let common = cut.len().min(out.len());
    assert!(common > 600 && cut[..common] == out[..common]);
}

#[test]
fn the_demo_capture_is_what_generate_makes() {
    let demo = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/demo.pcap.gz");
    let bench = Bench::new();
    bench.json("generate demo.pcap.gz --workload mixed --size 1M");
    assert!(read(&demo) == bench.read("demo.pcap.gz"));
    assert!(std::fs::metadata(&demo).expect("is there").len() < 300_000);
    let report = bench.json(&["verify", &demo.display().to_string()]);
    assert!(
        report["mismatches"] == 0 && report["merged"].as_u64().is_some_and(|merged| merged > 500)
    );
}
