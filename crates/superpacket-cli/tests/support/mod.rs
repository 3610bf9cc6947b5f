//! Helpers that run the program, and write and read captures for it.

#![allow(dead_code, reason = "each test program uses its part")]

pub mod browser;
#[cfg(target_os = "linux")]
pub mod namespaces;
#[cfg(target_os = "linux")]
pub mod terminal;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub use serde_json::{Value, json};
use superpacket_captures::file::{
    ByteOrder, Compression, Container, FrameOptions, Interface, LinkType, OutputFormat, Reader,
    Record, Sink, Source, TimeResolution, Timestamp, Writer,
};
use superpacket_traffic::check::{Expect, frame as check_frame};
use superpacket_traffic::frame::{Frame, Ip};
use tempfile::TempDir;

/// Time at which generated captures start, in nanoseconds since 1970.
pub const START: u64 = 1_700_000_000_000_000_000;

/// A frame of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedFrame {
    pub interface: u32,
    /// Time in nanoseconds since 1970.
    pub time: u64,
    pub data: Vec<u8>,
    pub original_length: u32,
}

impl CapturedFrame {
    /// Returns a complete Ethernet frame, captured `after` nanoseconds after the start.
    pub fn at(after: u64, data: Vec<u8>) -> Self {
        CapturedFrame {
            interface: 0,
            time: START + after,
            original_length: data.len() as u32,
            data,
        }
    }
}

/// Returns captured frames, a microsecond apart.
pub fn spaced(frames: &[Frame]) -> Vec<CapturedFrame> {
    frames
        .iter()
        .enumerate()
        .map(|(index, frame)| CapturedFrame::at(index as u64 * 1000, frame.to_bytes()))
        .collect()
}

/// A command line: a text whose words are separated by spaces, or the words.
pub trait CommandLine {
    fn words(&self) -> Vec<&str>;
}

impl CommandLine for str {
    fn words(&self) -> Vec<&str> {
        self.split(' ').collect()
    }
}

impl CommandLine for [&str] {
    fn words(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl<const N: usize> CommandLine for [&str; N] {
    fn words(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl CommandLine for Vec<&str> {
    fn words(&self) -> Vec<&str> {
        self.clone()
    }
}

/// A temporary directory for a test's files, in which the program is run.
pub struct Bench {
    directory: TempDir,
}

impl Bench {
    pub fn new() -> Self {
        Bench { directory: tempfile::tempdir().expect("a temporary directory") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes an Ethernet capture; the file name's extension selects the format.
    pub fn capture(&self, name: &str, frames: &[CapturedFrame]) -> PathBuf {
        self.capture_as(LinkType::ETHERNET, name, frames)
    }

    /// Writes a capture of this link type.
    pub fn capture_as(&self, kind: LinkType, name: &str, frames: &[CapturedFrame]) -> PathBuf {
        self.capture_of(name, &[Interface::new(kind, TimeResolution::NANOSECONDS)], frames)
    }

    /// Writes a capture with these interfaces.
    pub fn capture_of(
        &self,
        name: &str,
        interfaces: &[Interface],
        frames: &[CapturedFrame],
    ) -> PathBuf {
        let path = self.path(name);
        let compression = match path.extension().and_then(|extension| extension.to_str()) {
            Some("gz") => Compression::Gzip,
            Some("zst") => Compression::Zstd,
            _ => Compression::None,
        };
        let container = if name.contains(".pcapng") { Container::PcapNg } else { Container::Pcap };
        let format = OutputFormat {
            container,
            byte_order: ByteOrder::Little,
            resolution: None,
            compression,
        };
        let mut writer = Writer::create(&path, format).expect("creates");
        writer.declare(interfaces).expect("declares");
        for frame in frames {
            let time = Some(Timestamp::from_nanoseconds(frame.time));
            let record = Record {
                interface: frame.interface,
                time,
                original_length: Some(frame.original_length),
                options: FrameOptions::NONE,
            };
            writer.write(record, [frame.data.as_slice()]).expect("writes");
        }
        writer.finish().expect("finishes");
        path
    }

    /// Runs the program in the directory.
    pub fn run(&self, line: &(impl CommandLine + ?Sized)) -> Output {
        self.command(line).output().expect("the program runs")
    }

    pub fn command(&self, line: &(impl CommandLine + ?Sized)) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_superpacket"));
        command.args(line.words()).current_dir(self.directory.path()).stdin(Stdio::null());
        command
    }

    /// Runs the program, which must succeed, and returns what it printed.
    #[track_caller]
    pub fn prints(&self, line: &(impl CommandLine + ?Sized)) -> String {
        let output = self.run(line);
        assert_eq!(output.status.code(), Some(0), "{:?}: {}", line.words(), stderr(&output));
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// Runs the program with `--json`; it must succeed and print only JSON.
    #[track_caller]
    pub fn json(&self, line: &(impl CommandLine + ?Sized)) -> Value {
        let text = self.prints(&[&line.words()[..], &["--json"]].concat());
        serde_json::from_str(&text).expect("standard output is JSON and nothing else")
    }

    /// Runs the program, which must print nothing but an error that contains `says`, and return 2.
    #[track_caller]
    pub fn refuses(&self, line: &(impl CommandLine + ?Sized), says: &str) {
        assert_refused(&self.run(line), &line.words(), says);
    }

    /// Reads the frames of a capture in the directory.
    pub fn read(&self, name: &str) -> Vec<CapturedFrame> {
        read(self.path(name))
    }

    /// Reads the bytes of a file in the directory.
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).expect("it is there")
    }

    /// Writes a file in the directory.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), bytes).expect("writes");
    }
}

/// Checks that a command has printed nothing but an error that contains `says`, and returned 2.
#[track_caller]
pub fn assert_refused(output: &Output, line: &[&str], says: &str) {
    let error = stderr(output);
    assert!(
        output.status.code() == Some(2) && output.stdout.is_empty() && error.contains(says),
        "{line:?}: {:?}: {error}",
        output.status
    );
}

/// Checks the members of a report that `expected` names.
#[track_caller]
pub fn assert_json(report: &Value, expected: Value) {
    fn has(found: &Value, expected: &Value) -> bool {
        match expected {
            Value::Object(members) => {
                members.iter().all(|(name, member)| has(&found[name], member))
            }
            other => found == other,
        }
    }
    assert!(has(report, &expected), "expected {expected}: {report}");
}

/// Returns a number of a report.
#[track_caller]
pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Reads the frames of a capture.
pub fn read(path: impl AsRef<Path>) -> Vec<CapturedFrame> {
    let mut reader = Reader::open(path).expect("opens");
    let mut frames = Vec::new();
    while let Some(frame) = reader.next_frame().expect("reads") {
        let time = frame.time.expect("has a time").nanoseconds();
        frames.push(CapturedFrame {
            interface: frame.interface,
            time,
            data: frame.data.to_vec(),
            original_length: frame.original_length,
        });
    }
    assert_eq!(reader.truncated(), None);
    frames
}

/// Checks lengths and checksums of an Ethernet frame by etherparse; BIG TCP is allowed.
#[track_caller]
pub fn assert_right(frame: &[u8]) {
    let expect = Expect { big: true, trailing: true, ..Expect::default() };
    if let Err(problem) = check_frame(frame, &expect) {
        panic!("{problem}");
    }
}

/// Returns a TCP flow of `count` segments with `payload` bytes each, increasing IP identifications,
/// and PSH on the last one.
pub fn tcp_flow(count: usize, payload: usize) -> Vec<Frame> {
    Frame::tcp4(1000, payload).with_id(100).run(count)
}

/// Changes the innermost IPv4 source address of a frame, so that it belongs to another flow.
pub fn from_host(mut frame: Frame, host: u32) -> Frame {
    if let Ip::V4(ip) = &mut frame.ip {
        ip.source = [10, (host >> 16) as u8, (host >> 8) as u8, host as u8];
    }
    frame
}

/// Returns the text that a command wrote to standard error.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the sum of a report's reasons.
pub fn reasons(report: &Value) -> u64 {
    report["reasons"].as_object().expect("an object").values().map(number).sum()
}
