//! The program's treatment of existing files: none is destroyed.

use std::fs::{self, File};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::*;
use superpacket_traffic::frame::Frame;

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_superpacket"))
}

#[test]
fn an_output_that_is_standard_input_is_refused() {
    let bench = Bench::new();
    let capture = bench.capture("in.pcap", &spaced(&Frame::tcp4(1, 500).run(5)));
    let before = fs::read(&capture).expect("it was written");
    for arguments in [["coalesce", "-", "-o"], ["segment", "-", "-o"], ["analyze", "-", "--html"]] {
        let output = program()
            .args(arguments)
            .arg(&capture)
            .stdin(File::open(&capture).expect("it is there"))
            .output()
            .expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(fs::read(&capture).expect("it is there"), before, "{arguments:?}");
    }
}

#[test]
fn a_page_goes_through_links_and_into_pipes() {
    let bench = Bench::new();
    let capture = bench.capture("in.pcap", &spaced(&Frame::tcp4(1, 500).run(5)));
    let (page, link) = (bench.path("page.html"), bench.path("link.html"));
    fs::write(&page, "old").expect("a file");
    std::os::unix::fs::symlink(&page, &link).expect("a link");
    let status = program()
        .arg("analyze")
        .arg(&capture)
        .arg("--html")
        .arg(&link)
        .stdout(Stdio::null())
        .status()
        .expect("it runs");
    assert!(status.success());
    assert!(
        fs::symlink_metadata(&link).expect("it is there").is_symlink(),
        "the link is not replaced"
    );
    assert!(fs::read_to_string(&page).expect("it is there").contains("<svg"));
    // A pipe represents any device.
    let output = program()
        .arg("analyze")
        .arg(&capture)
        .args(["--html", "/dev/stderr"])
        .output()
        .expect("it runs");
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("<svg"));
}

#[test]
fn an_output_behind_a_dangling_link_is_created_where_the_link_points() {
    let bench = Bench::new();
    bench.capture("in.pcap", &spaced(&Frame::tcp4(1, 500).run(5)));
    fs::create_dir(bench.path("elsewhere")).expect("a directory");
    for command in ["coalesce", "segment"] {
        let link = format!("{command}.pcap");
        std::os::unix::fs::symlink(format!("elsewhere/{command}"), bench.path(&link))
            .expect("a link");
        bench.prints(&[command, "in.pcap", "-o", &link]);
        assert!(
            fs::symlink_metadata(bench.path(&link)).expect("it is there").is_symlink(),
            "the link is not replaced"
        );
        assert!(!read(bench.path(&format!("elsewhere/{command}"))).is_empty());
    }
    std::os::unix::fs::symlink("absent/file", bench.path("nowhere.pcap")).expect("a link");
    bench.refuses("coalesce in.pcap -o nowhere.pcap", "nowhere.pcap: cannot be created");
}

#[test]
fn an_interrupted_run_completes_its_output() {
    let bench = Bench::new();
    let capture = bench.capture("in.pcap", &spaced(&Frame::tcp4(1, 500).run(5)));
    for signal in ["INT", "TERM", "HUP"] {
        let out = bench.path("out");
        fs::create_dir_all(&out).expect("a directory");
        let mut child = program()
            .args(["coalesce", "-", "-o"])
            .arg(out.join("out.pcap"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("it runs");
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(&fs::read(&capture).expect("it is there")).expect("it reads");
        let started = Instant::now();
        while fs::read_dir(&out).expect("it is there").next().is_none() {
            assert!(started.elapsed() < Duration::from_secs(20), "the output was not begun");
            std::thread::sleep(Duration::from_millis(5));
        }
        let killed = Command::new("kill")
            .args(["-s", signal, &child.id().to_string()])
            .status()
            .expect("kill");
        assert!(killed.success());
        assert_eq!(child.wait().expect("it ends").code(), Some(0), "{signal}");
        assert!(!read(out.join("out.pcap")).is_empty(), "{signal}");
        fs::remove_file(out.join("out.pcap")).expect("it is there");
        assert_eq!(fs::read_dir(&out).expect("it is there").count(), 0, "{signal}");
        drop(input);
    }
}

#[test]
fn names_of_other_formats_are_refused_before_the_input_is_read() {
    let bench = Bench::new();
    for command in ["coalesce", "segment"] {
        for name in ["out.pcap.xz", "out.snoop", "out.TXT", "flows.csv.gz", "out.pcap.zstd"] {
            bench.refuses(
                &[command, "absent.pcap", "-o", name],
                "choose a name that ends in .pcap or .pcapng",
            );
        }
    }
    bench.capture("in.pcap", &spaced(&Frame::tcp4(1, 500).run(2)));
    for name in ["out", "out.cap", "out.dump", "out.pcap0"] {
        bench.prints(&["coalesce", "in.pcap", "-o", name]);
        assert!(!bench.read(name).is_empty(), "{name}");
    }
}

/// A TLS 1.3 connection over loopback, with its keys in a block of decryption secrets.
const TLS_WITH_KEYS: &[u8] = include_bytes!("../tls-with-keys.pcapng");

#[test]
fn keys_stay_before_the_packets_that_need_them() {
    let bench = Bench::new();
    bench.write("tls.pcapng", TLS_WITH_KEYS);
    let requests = |name: &str| {
        let mut read = Command::new("tshark");
        read.arg("-r").arg(bench.path(name)).args(["-Y", "http"]);
        String::from_utf8_lossy(&read.output().expect("runs").stdout).lines().count()
    };
    let has_tshark = Command::new("tshark").arg("-v").output().is_ok();
    if !has_tshark {
        eprintln!("tshark is not installed: decryption is not tried");
    }
    for command in ["coalesce tls.pcapng -o out.pcapng", "segment tls.pcapng -o out.pcapng"] {
        let report = bench.json(command);
        assert_json(&report["blocks"], json!({ "kept": 1, "left_out": {} }));
        let (line, written) = (b"SERVER_HANDSHAKE_TRAFFIC_SECRET", bench.bytes("out.pcapng"));
        assert!(written.windows(line.len()).any(|window| window == line));
        if has_tshark {
            assert!(requests("tls.pcapng") > 0);
            assert_eq!(requests("out.pcapng"), requests("tls.pcapng"), "{command}");
        }
    }
    let report = bench.json("segment tls.pcapng -o out.pcap");
    assert_eq!(report["blocks"]["left_out"]["decryption_secrets"], 1);
    let text = bench.prints("coalesce tls.pcapng -o out.pcap");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("1 decryption secrets"), "{text}");
    assert!(words.contains("were left out: pcap cannot hold them"), "{text}");
}
