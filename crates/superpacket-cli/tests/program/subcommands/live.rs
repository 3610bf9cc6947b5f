//! Captures that are read while they are written: through a pipe, and until a signal.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::support::*;
use superpacket_traffic::frame::Frame;

/// Length in bytes of a pcap file's header, and of a record's.
pub(super) const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;

/// The commands that read captures, with standard input as input.
const COMMANDS: [&str; 6] = [
    "coalesce - -o out.pcap --json",
    "segment - -o out.pcap --json",
    "analyze - --json",
    "verify - --json",
    "steer - --cpus f --json",
    "check - --origin origin.pcap --json",
];

/// Returns a pcap file of frames that do not merge: its header, and each record.
pub(super) fn records(bench: &Bench, count: u32) -> (Vec<u8>, Vec<Vec<u8>>) {
    let frames: Vec<Frame> = (0..count).map(|host| from_host(Frame::udp4(100), host + 1)).collect();
    let path = bench.capture("records.pcap", &spaced(&frames));
    let bytes = fs::read(path).expect("it was written");
    let (header, rest) = bytes.split_at(FILE_HEADER);
    let length = rest.len() / frames.len();
    (header.to_vec(), rest.chunks(length).map(<[u8]>::to_vec).collect())
}

pub(super) fn spawn(bench: &Bench, line: &str) -> Child {
    bench
        .command(line)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs")
}

pub(super) fn signal(child: &Child, name: &str) {
    let killed =
        Command::new("kill").args(["-s", name, &child.id().to_string()]).status().expect("kill");
    assert!(killed.success());
}

/// Waits until a process ends, at most for 20 seconds.
#[track_caller]
pub(super) fn ends(mut child: Child) -> Output {
    let started = Instant::now();
    while child.try_wait().expect("it is our child").is_none() {
        if started.elapsed() > Duration::from_secs(20) {
            child.kill().expect("it ends");
            panic!("it did not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("it ends")
}

/// Does something with a pause of growing length, until it succeeds: nobody knows how long a
/// process needs until it reads.
#[track_caller]
pub(super) fn with_pauses<T>(mut attempt: impl FnMut(Duration) -> Result<T, String>) -> T {
    let mut problem = String::new();
    for pause in [200, 500, 1000, 3000] {
        match attempt(Duration::from_millis(pause)) {
            Ok(result) => return result,
            Err(error) => problem = error,
        }
    }
    panic!("{problem}");
}

/// Reads a stream in a thread, and passes on what arrives with the time at which it did.
pub(super) fn arrivals(mut stream: impl Read + Send + 'static) -> Receiver<(Instant, Vec<u8>)> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 65536];
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            if sender.send((Instant::now(), buffer[..read].to_vec())).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Waits until this number of bytes has arrived, and returns when the last of them did.
#[track_caller]
pub(super) fn wait_for(arrivals: &Receiver<(Instant, Vec<u8>)>, bytes: usize) -> Instant {
    let mut got = 0;
    loop {
        let (at, chunk) = arrivals.recv_timeout(Duration::from_secs(20)).expect("it arrives");
        got += chunk.len();
        assert!(got <= bytes, "{got} bytes instead of {bytes}");
        if got == bytes {
            return at;
        }
    }
}

#[test]
fn a_packet_leaves_at_once() {
    let bench = Bench::new();
    let (header, records) = records(&bench, 8);
    for line in ["coalesce - -o -", "segment - -o -"] {
        let mut child = spawn(&bench, line);
        let mut input = child.stdin.take().expect("a pipe");
        let output = arrivals(child.stdout.take().expect("a pipe"));
        let mut best = Duration::MAX;
        for (index, record) in records.iter().enumerate() {
            let header = if index == 0 { header.as_slice() } else { &[] };
            let piece = [header, record].concat();
            input.write_all(&piece).expect("it reads");
            let sent = Instant::now();
            best = best.min(wait_for(&output, piece.len()).duration_since(sent));
        }
        assert!(best < Duration::from_millis(100), "{line}: {best:?}");
        drop(input);
        assert_eq!(ends(child).status.code(), Some(0), "{line}");
    }
}

#[test]
fn held_packets_leave_by_the_wall_clock() {
    let bench = Bench::new();
    let bytes = fs::read(bench.capture("flow.pcap", &spaced(&tcp_flow(3, 1000)[..2])));
    let bytes = bytes.expect("it was written");
    let record = (bytes.len() - FILE_HEADER) / 2;
    let mut child = spawn(&bench, "coalesce - -o - --hold 300ms --batch 0");
    let mut input = child.stdin.take().expect("a pipe");
    let output = arrivals(child.stdout.take().expect("a pipe"));
    let began = Instant::now();
    input.write_all(&bytes[..FILE_HEADER + record]).expect("it reads");
    std::thread::sleep(Duration::from_millis(20));
    input.write_all(&bytes[FILE_HEADER + record..]).expect("it reads");
    let merged = wait_for(&output, FILE_HEADER + RECORD_HEADER + 54 + 2000);
    assert!(merged.duration_since(began) >= Duration::from_millis(300));
    drop(input);
    assert_eq!(ends(child).status.code(), Some(0));
}

#[test]
fn a_signal_ends_every_command_as_the_end_of_its_input_does() {
    let bench = Bench::new();
    let (header, records) = records(&bench, 5);
    bench.write("origin.pcap", [header.clone(), records.concat()].concat());
    // The last record is cut by the signal, which is no defect of the capture.
    let fed = [header, records[..4].concat(), records[4][..40].to_vec()].concat();
    for line in COMMANDS {
        for name in ["INT", "TERM", "HUP"] {
            let report = with_pauses(|pause| {
                let mut child = spawn(&bench, line);
                let mut input = child.stdin.take().expect("a pipe");
                input.write_all(&fed).expect("it reads");
                std::thread::sleep(pause);
                signal(&child, name);
                let output = ends(child);
                drop(input);
                // Packets that were not read could not be judged.
                let code = if line.starts_with("check") { 3 } else { 0 };
                if output.status.code() != Some(code) {
                    return Err(format!("{line}, {name}: {:?}", output.status));
                }
                assert_eq!(stderr(&output), "", "{line}: no warning");
                Ok(serde_json::from_slice::<Value>(&output.stdout).expect("JSON"))
            });
            assert_eq!(report["interrupted"], true, "{line}: {report}");
            assert_eq!(report["cut_short"], Value::Null, "{line}");
            let packets = if line.starts_with("check") { "packets_out" } else { "packets_in" };
            assert_eq!(report[packets], 4, "{line}: {report}");
            if line.contains(" -o ") {
                assert_eq!(bench.read("out.pcap").len(), 4, "{line}");
                fs::remove_file(bench.path("out.pcap")).expect("it is there");
            }
        }
    }
    assert_eq!(bench.json("coalesce origin.pcap -o out.pcap")["interrupted"], false);
}

#[test]
fn a_signal_ends_a_redirected_output_at_a_record() {
    let bench = Bench::new();
    let (header, records) = records(&bench, 5);
    let fed = [header, records.concat()].concat();
    with_pauses(|pause| {
        let mut child = bench
            .command("coalesce - -o -")
            .stdin(Stdio::piped())
            .stdout(File::create(bench.path("out.pcap")).expect("a file"))
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(&fed).expect("it reads");
        std::thread::sleep(pause);
        signal(&child, "INT");
        let output = ends(child);
        drop(input);
        match output.status.code() {
            Some(0) => {
                assert!(stderr(&output).contains("Interrupted"), "{}", stderr(&output));
                assert_eq!(bench.read("out.pcap").len(), 5);
                Ok(())
            }
            code => Err(format!("{code:?}")),
        }
    });
}

#[test]
fn the_last_packets_of_a_program_that_got_the_same_signal_are_read() {
    let bench = Bench::new();
    let (header, records) = records(&bench, 6);
    with_pauses(|pause| {
        let mut child = spawn(&bench, "coalesce - -o out.pcap --json");
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(&[header.clone(), records[..4].concat()].concat()).expect("it reads");
        std::thread::sleep(pause);
        signal(&child, "INT");
        input.write_all(&records[4..].concat()).expect("it reads");
        drop(input);
        let output = ends(child);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        match (output.status.code(), &report["packets_in"]) {
            (Some(0), packets) if *packets == 6 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    assert_eq!(bench.read("out.pcap").len(), 6);
}

#[test]
fn a_second_signal_ends_the_program() {
    let bench = Bench::new();
    bench.json("generate big.pcap --size 8M");
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        // Nobody reads the output, so that writing blocks.
        with_pauses(|pause| {
            let mut child = spawn(&bench, "coalesce big.pcap -o -");
            let output = child.stdout.take().expect("a pipe");
            std::thread::sleep(pause);
            signal(&child, name);
            std::thread::sleep(Duration::from_millis(300));
            assert!(child.try_wait().expect("it is our child").is_none(), "the first does not");
            signal(&child, name);
            let ended = ends(child);
            drop(output);
            match ended.status.code() == Some(code) {
                true => Ok(()),
                false => Err(format!("{:?}", ended.status)),
            }
        });
    }
}

#[test]
fn a_second_signal_leaves_no_unfinished_file() {
    let bench = Bench::new();
    let (header, records) = records(&bench, 1);
    fs::create_dir(bench.path("out")).expect("a directory");
    with_pauses(|pause| {
        let mut child = spawn(&bench, "coalesce - -o out/out.pcap");
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(&header).expect("it reads");
        let record = records[0].clone();
        let feeder = std::thread::spawn(move || {
            // Data arrives all the time, and the command waits for the end of it.
            while input.write_all(&record).is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        std::thread::sleep(pause);
        signal(&child, "INT");
        std::thread::sleep(Duration::from_millis(250));
        signal(&child, "INT");
        let code = ends(child).status.code();
        feeder.join().expect("it ends");
        match code == Some(130) {
            true => Ok(()),
            false => Err(format!("{code:?}")),
        }
    });
    assert_eq!(
        fs::read_dir(bench.path("out"))
            .expect("it is there")
            .filter(|entry| entry.as_ref().is_ok_and(|entry| entry.file_name() != "out.pcap"))
            .count(),
        0
    );
}

/// Makes a named pipe.
fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo").success());
}

#[test]
fn a_signal_before_the_first_packet_writes_nothing() {
    let bench = Bench::new();
    make_pipe(&bench.path("pipe"));
    for line in ["coalesce - -o out.pcap", "segment pipe -o out.pcap", "analyze pipe"] {
        for (name, code) in [("INT", 130), ("TERM", 143)] {
            for pause in [30, 400] {
                let mut child = spawn(&bench, line);
                let input = child.stdin.take().expect("a pipe");
                std::thread::sleep(Duration::from_millis(pause));
                signal(&child, name);
                let output = ends(child);
                drop(input);
                // Before the program handles signals, the system ends it.
                let code = (pause > 30).then_some(code).or(output.status.code());
                assert_eq!(output.status.code(), code, "{line}: {}", stderr(&output));
                assert!(output.stdout.is_empty() && !bench.path("out.pcap").exists());
            }
        }
    }
}

#[test]
fn a_signal_ends_the_current_capture_and_skips_the_rest() {
    let bench = Bench::new();
    let (header, records) = records(&bench, 3);
    bench.write("first.pcap", [header.clone(), records.concat()].concat());
    for command in ["analyze", "verify"] {
        let text = with_pauses(|pause| {
            let mut child = spawn(&bench, &format!("{command} first.pcap - first.pcap first.pcap"));
            let mut input = child.stdin.take().expect("a pipe");
            input.write_all(&[header.clone(), records[0].clone()].concat()).expect("it reads");
            std::thread::sleep(pause);
            signal(&child, "INT");
            let output = ends(child);
            drop(input);
            match output.status.code() {
                Some(0) => Ok(String::from_utf8(output.stdout).expect("UTF-8")),
                code => Err(format!("{code:?}: {}", stderr(&output))),
            }
        });
        assert!(text.contains("standard input"), "{text}");
        assert!(text.contains("Interrupted: the last 2 captures were not read."), "{text}");
    }
}
