//! `superpacket extcap`, called as Wireshark does. A script stands for dumpcap.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::live::{arrivals, ends, signal, wait_for};
use crate::support::*;

/// The script. It is not written here, because a file that is open for writing while another test
/// starts a process could not be executed.
const DUMPCAP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/program/dumpcap");

/// Returns a folder with the script, a capture whose packets merge, and a FIFO.
fn bench() -> Bench {
    let bench = Bench::new();
    symlink(DUMPCAP, bench.path("dumpcap")).expect("made");
    bench.capture("in.pcap", &spaced(&tcp_flow(9, 1000)));
    assert!(Command::new("mkfifo").arg(bench.path("fifo")).status().expect("it runs").success());
    bench
}

/// Returns a command in which the script is found as dumpcap, and the folder is the user's.
fn extcap(bench: &Bench, line: &(impl CommandLine + ?Sized)) -> Command {
    let mut command = bench.command(&[&["extcap"], &line.words()[..]].concat());
    let path = format!("{}:/usr/bin:/bin", bench.path("").display());
    command.env("PATH", path).env("HOME", bench.path("home")).env_remove("XDG_CONFIG_HOME");
    command
}

#[track_caller]
fn prints(bench: &Bench, line: &(impl CommandLine + ?Sized)) -> String {
    let output = extcap(bench, line).output().expect("it runs");
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Starts a capture into the FIFO, and returns it with the other end of the FIFO.
fn start(bench: &Bench, options: &str) -> (Child, File) {
    let line = format!("--capture --extcap-interface superpacket --fifo fifo {options}");
    let mut command = extcap(bench, line.trim_end());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    (child, File::open(bench.path("fifo")).expect("it is opened"))
}

/// Waits until the script that captures has ended.
#[track_caller]
fn assert_dumpcap_ends(bench: &Bench) {
    let process = String::from_utf8(bench.bytes("process")).expect("a number");
    let started = Instant::now();
    while Command::new("kill")
        .args(["-0", process.trim()])
        .stderr(Stdio::null())
        .status()
        .expect("it runs")
        .success()
    {
        assert!(started.elapsed() < Duration::from_secs(10), "dumpcap still runs");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn interfaces_and_options_are_listed_in_wireshark_s_grammar() {
    let bench = bench();
    let text = prints(&bench, "--extcap-interfaces --extcap-version=4.4");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("extcap {version="), "{text}");
    assert!(lines[1].starts_with("interface {value=superpacket}{display="), "{text}");
    let text = prints(&bench, "--extcap-interface superpacket --extcap-dlts");
    assert!(text.starts_with("dlt {number=1}{name=EN10MB}{display="), "{text}");
    let text = prints(&bench, "--extcap-config --extcap-interface superpacket");
    for call in ["--device", "--mode", "--hold", "--max-bytes", "--no-udp"] {
        assert!(text.contains(&format!("{{call={call}}}")), "{text}");
    }
    let devices =
        "value {arg=0}{value=eth0}{display=eth0}\nvalue {arg=0}{value=lo}{display=lo (Loopback)}\n";
    assert!(text.contains(devices), "{text}");
    let line = "--extcap-config --extcap-interface superpacket --extcap-reload-option device";
    assert_eq!(prints(&bench, line), devices);
    // What is printed here is what is wrong.
    let filter = |filter| ["--extcap-capture-filter", filter, "--extcap-interface", "superpacket"];
    assert_eq!(prints(&bench, &filter("tcp port 1")), "");
    assert_eq!(prints(&bench, &filter("tcp prt")), "Invalid capture filter \"tcp prt\". No.\n");
}

#[test]
fn bad_calls_say_what_is_wrong() {
    let bench = bench();
    for (line, says) in [
        ("", "after `superpacket extcap --install`"),
        ("--extcap-interface x --extcap-dlts", "there is no interface \"x\""),
        ("--extcap-interface superpacket", "needs --extcap-dlts, --extcap-config or --capture"),
        ("--extcap-dlts", "--extcap-interface <NAME>"),
        ("--capture --extcap-interface superpacket", "--fifo <PATH>"),
        ("--extcap-interfaces --install", "cannot be used with"),
        ("--extcap-interface superpacket --extcap-reload-option mode", "no values for \"mode\""),
        (
            "--capture --extcap-interface superpacket --fifo no/fifo",
            "no/fifo: cannot be created: No such file",
        ),
        (
            "--capture --extcap-interface superpacket --fifo fifo --max-bytes 1M",
            "--max-bytes must be between 68 and 261888",
        ),
        ("--capture --extcap-interface superpacket --fifo fifo --hold 1", "write 50us"),
    ] {
        let words: Vec<&str> = line.split_whitespace().collect();
        let output = extcap(&bench, &words).output().expect("it runs");
        assert_refused(&output, &words, says);
    }
    let mut without_dumpcap = extcap(&bench, "--extcap-interface superpacket --extcap-config");
    fs::remove_file(bench.path("dumpcap")).expect("removed");
    bench.write("dumpcap", "no program");
    fs::set_permissions(bench.path("dumpcap"), Permissions::from_mode(0o755)).expect("set");
    let output = without_dumpcap.output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).starts_with("superpacket: dumpcap: "), "{}", stderr(&output));
}

#[test]
fn merged_packets_are_captured_until_a_signal() {
    let bench = bench();
    bench.prints("coalesce in.pcap -o expected.pcap");
    let expected = bench.bytes("expected.pcap");
    assert!(expected.len() < bench.bytes("in.pcap").len());
    for name in ["TERM", "INT"] {
        let (child, fifo) = start(&bench, "--device lo --extcap-capture-filter tcp");
        // They arrive while dumpcap runs.
        wait_for(&arrivals(fifo), expected.len());
        signal(&child, name);
        let output = ends(child);
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
        assert_dumpcap_ends(&bench);
    }
    let noted = String::from_utf8(bench.bytes("arguments")).expect("text");
    assert_eq!(noted, "-q -w - -i lo -f tcp\n".repeat(2));
}

#[test]
fn the_options_select_what_is_merged() {
    let bench = bench();
    bench.capture("in.pcap", &spaced(&superpacket_traffic::frame::Frame::udp4(100).run(8)));
    for (options, packets) in
        [("--device ends", 1), ("--device ends --no-udp", 8), ("--device ends --max-bytes 512", 2)]
    {
        let (child, mut fifo) = start(&bench, options);
        std::io::copy(&mut fifo, &mut File::create(bench.path("out.pcap")).expect("made"))
            .expect("it is read");
        assert_eq!(ends(child).status.code(), Some(0), "dumpcap has ended by itself");
        assert_eq!(bench.read("out.pcap").len(), packets, "{options}");
    }
    // Without a device, it is the first one.
    let (child, fifo) = start(&bench, "");
    ends_with_reader(&bench, child, fifo);
    let noted = String::from_utf8(bench.bytes("arguments")).expect("text");
    assert!(noted.ends_with("-D -M\n-q -w - -i eth0\n"), "{noted}");
}

/// Waits until the script captures.
#[track_caller]
fn wait_for_dumpcap(bench: &Bench) {
    let started = Instant::now();
    while fs::read(bench.path("process")).map_or(true, |process| !process.ends_with(b"\n")) {
        assert!(started.elapsed() < Duration::from_secs(20), "dumpcap was not started");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Closes the FIFO, which must end the capture although no packet arrives any more.
#[track_caller]
fn ends_with_reader(bench: &Bench, child: Child, fifo: File) {
    wait_for_dumpcap(bench);
    drop(fifo);
    let output = ends(child);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    assert_dumpcap_ends(bench);
}

#[test]
fn a_capture_ends_when_wireshark_closes_the_fifo() {
    let bench = bench();
    let (child, fifo) = start(&bench, "--device lo");
    ends_with_reader(&bench, child, fifo);
}

#[test]
fn a_signal_ends_a_capture_that_has_not_begun() {
    let bench = bench();
    let (child, fifo) = start(&bench, "--device silent");
    wait_for_dumpcap(&bench);
    signal(&child, "TERM");
    let output = ends(child);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    assert_dumpcap_ends(&bench);
    drop(fifo);
}

#[test]
fn an_error_of_dumpcap_is_reported() {
    let bench = bench();
    let (child, fifo) = start(&bench, "--device gone");
    let output = ends(child);
    drop(fifo);
    assert_refused(&output, &[], "superpacket: dumpcap: There is no device. (None)\n");
}

#[test]
fn an_installed_script_runs_this_program() {
    let bench = bench();
    // A path that a shell would read as something else.
    let folder = bench.path("a 'b' $c");
    fs::create_dir(&folder).expect("made");
    let program = folder.join("superpacket");
    if fs::hard_link(env!("CARGO_BIN_EXE_superpacket"), &program).is_err() {
        fs::copy(env!("CARGO_BIN_EXE_superpacket"), &program).expect("copied");
    }
    let run = |argument: &str| {
        let mut command = Command::new(&program);
        let command = command.args(["extcap", argument]).env("HOME", bench.path("home"));
        let output = command.env_remove("XDG_CONFIG_HOME").output().expect("it runs");
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let scripts = ["home/.local/lib/wireshark/extcap", "home/.config/wireshark/extcap"]
        .map(|folder| bench.path(folder).join("superpacket"));
    let report = run("--install");
    for script in &scripts {
        assert!(report.contains(&format!("written: {}\n", script.display())), "{report}");
        let output = Command::new(script).arg("--extcap-interfaces").output().expect("it runs");
        assert!(String::from_utf8_lossy(&output.stdout).contains("{value=superpacket}"));
    }
    fs::rename(&program, folder.join("moved")).expect("renamed");
    let output = Command::new(&scripts[0]).arg("--extcap-interfaces").output().expect("it runs");
    let gone = format!("superpacket: {} is gone: repeat superpacket extcap", program.display());
    assert_refused(&output, &[], &gone);
    fs::rename(folder.join("moved"), &program).expect("renamed");
    assert_eq!(run("--uninstall").lines().count(), 2);
    assert!(scripts.iter().all(|script| !script.exists()));
    assert_eq!(run("--uninstall"), "nothing was installed\n");
    let own = format!("--install={}", bench.path("own").display());
    assert!(run(&own).starts_with("written: "));
    assert!(bench.path("own/superpacket").exists() && !scripts[0].exists());
}
