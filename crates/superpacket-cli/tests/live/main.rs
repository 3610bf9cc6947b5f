//! Tests of the bridge as a program, between hosts in separate network namespaces.
#![cfg(target_os = "linux")]

#[path = "../support/mod.rs"]
mod support;

mod extcap;
mod forwarding;
mod idle;
mod mdb;
mod memory;
mod metrics;
mod monitor;
mod offloads;
mod ports;
mod queues;
mod reload;
mod start_and_end;
mod steering;
mod terminal_closed;

use rustix::process::Signal;
use std::io::{BufRead, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use superpacket_traffic::frame::Frame;

use crate::support::namespaces::Namespace;
use crate::support::{
    Bench, CommandLine, Value, assert_json, assert_refused, json, number, spaced, stderr,
};

const PORTS: [&str; 2] = ["packet:left", "packet:right"];

/// Two hosts, a namespace for the bridge between them, and a directory for its files.
struct TestNetwork {
    bench: Bench,
    // The hosts are dropped first: they are children of the bridge's namespace.
    left: Namespace,
    right: Namespace,
    middle: Namespace,
}

impl TestNetwork {
    fn new() -> Option<Self> {
        let middle = Namespace::new()?;
        let left = middle.host("left", "10.9.0.1/24")?;
        let right = middle.host("right", "10.9.0.2/24")?;
        Some(TestNetwork { bench: Bench::new(), left, right, middle })
    }

    /// Sends 8 MB from one host to the other, which compares every byte.
    fn load(&self) {
        let (code, output) = self.start_load(&self.left, &self.right, "10.9.0.2", "8M").end();
        assert_eq!(code, Some(0), "{output} {}", self.log());
    }

    /// Starts to send `bytes` bytes from one host to the other, which compares every byte.
    fn start_load(&self, from: &Namespace, to: &Namespace, address: &str, bytes: &str) -> Running {
        let mut command = self.middle.command(env!("CARGO_BIN_EXE_superpacket"));
        let [client, server] = [from, to].map(|host| host.id().to_string());
        command.args([
            "load", "stream", address, "--client", &client, "--server", &server, "--bytes", bytes,
            "--verify",
        ]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().expect("runs");
        Running { child: Some(child) }
    }

    /// Returns the packets that a port of the bridge has sent.
    fn sent(&self, port: &str) -> Option<u64> {
        self.try_ask(&["stats", port])?[0]["tx_packets"].as_u64()
    }

    /// Returns the state of the interfaces between the hosts, with all attributes.
    fn links(&self) -> String {
        String::from_utf8_lossy(&self.middle.run("ip", &["-d", "link", "show"]).stdout).into_owned()
    }

    /// Returns the state without a bridge, once the kernel reports that both ends of each pair are
    /// up.
    fn links_at_rest(&self) -> String {
        self.wait_for("links", || self.links().matches(" state UP ").count() == 2);
        self.links()
    }

    /// Returns the number of packet sockets in the bridge's namespace.
    fn packet_sockets(&self) -> usize {
        let output = self.middle.run("cat", &["/proc/net/packet"]);
        assert!(output.status.success(), "{}", stderr(&output));
        output.stdout.lines().count() - 1
    }

    fn socket(&self) -> PathBuf {
        self.bench.path("control.sock")
    }

    /// Starts another bridge, and returns it with the path of its control socket.
    fn other_bridge(&self, arguments: &[&str]) -> (Running, PathBuf) {
        let (socket, path) = (self.bench.path("other.sock"), self.bench.path("other.log"));
        let mut command = self.middle.command(env!("CARGO_BIN_EXE_superpacket"));
        command.arg("bridge").args(arguments).arg("--control").arg(&socket);
        let child = command
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&path).expect("creates"))
            .spawn()
            .expect("runs");
        let running = Running { child: Some(child) };
        self.wait_for("the other bridge", || {
            std::os::unix::net::UnixStream::connect(&socket).is_ok()
        });
        (running, socket)
    }

    /// Starts `superpacket bridge` with these arguments and `--control`, and waits until it
    /// answers.
    fn bridge(&self, arguments: &[&str]) -> Running {
        let log = std::fs::File::create(self.bench.path("log")).expect("creates");
        let mut command = self.middle.command(env!("CARGO_BIN_EXE_superpacket"));
        command.arg("bridge").args(arguments).arg("--control").arg(self.socket());
        let child = command.stdout(Stdio::piped()).stderr(log).spawn().expect("runs");
        let mut running = Running { child: Some(child) };
        let started = Instant::now();
        while self.try_ask(&["ports"]).is_none() {
            let ended = running.child.as_mut().and_then(|child| child.try_wait().expect("waits"));
            assert!(
                ended.is_none() && started.elapsed() < Duration::from_secs(10),
                "{ended:?}: {}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        running
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.bench.path("log")).unwrap_or_default()
    }

    /// Runs a command against the bridge.
    fn run(&self, line: &(impl CommandLine + ?Sized)) -> Output {
        let mut command = self.middle.command(env!("CARGO_BIN_EXE_superpacket"));
        command.args(line.words()).arg("--control").arg(self.socket()).output().expect("runs")
    }

    /// Runs a command against the bridge, and returns its JSON output if it succeeded.
    fn try_ask(&self, line: &(impl CommandLine + ?Sized)) -> Option<Value> {
        let output = self.run(&[&line.words()[..], &["--json"]].concat());
        output
            .status
            .success()
            .then(|| serde_json::from_slice(&output.stdout).expect("JSON and nothing else"))
    }

    /// Runs a command against the bridge, which must succeed, and returns its JSON output.
    #[track_caller]
    fn ask(&self, line: &(impl CommandLine + ?Sized)) -> Value {
        self.try_ask(line).unwrap_or_else(|| panic!("{:?}: {}", line.words(), self.log()))
    }

    /// Runs a command, and returns (exit code, standard output, standard error).
    fn text(&self, line: &(impl CommandLine + ?Sized)) -> (Option<i32>, String, String) {
        let output = self.run(line);
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr(&output),
        )
    }

    /// Runs a command, which must print nothing but an error that contains `says`.
    #[track_caller]
    fn refuses(&self, line: &(impl CommandLine + ?Sized), says: &str) {
        assert_refused(&self.run(line), &line.words(), says);
    }

    /// Ends a bridge by SIGTERM, which must succeed.
    #[track_caller]
    fn stop(&self, bridge: Running) {
        bridge.signal(Signal::TERM);
        assert_eq!(bridge.end().0, Some(0), "{}", self.log());
    }

    /// Returns whether the right host answers the left one. A refused connection is an answer:
    /// address resolution and TCP worked in both directions.
    fn reaches(&self) -> bool {
        self.answers_within("5")
    }

    /// Returns whether the right host does not answer. Answers arrive within milliseconds, so one
    /// second suffices.
    fn is_cut_off(&self) -> bool {
        !self.answers_within("1")
    }

    fn answers_within(&self, seconds: &str) -> bool {
        let output =
            self.left.run("timeout", &[seconds, "bash", "-c", "exec 3<>/dev/tcp/10.9.0.2/9"]);
        stderr(&output).contains("refused")
    }

    fn wait_for(&self, what: &str, mut found: impl FnMut() -> bool) {
        let started = Instant::now();
        while !found() {
            assert!(started.elapsed() < Duration::from_secs(10), "{what}: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A running program, usually a bridge; it is killed if a test fails.
struct Running {
    child: Option<Child>,
}

impl Running {
    /// Sends a signal. nsenter executes the bridge in its own process, so its ID is the bridge's.
    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("runs");
        rustix::process::kill_process(rustix::process::Pid::from_child(child), signal)
            .expect("lives");
    }

    fn id(&self) -> u32 {
        self.child.as_ref().expect("runs").id()
    }

    fn is_running(&mut self) -> bool {
        self.child.as_mut().expect("runs").try_wait().expect("waits").is_none()
    }

    /// Waits until the program ends, and returns (exit code, standard output).
    fn end(mut self) -> (Option<i32>, String) {
        let output = self.child.take().expect("runs").wait_with_output().expect("waits");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns whether tshark is there. In CI it must be.
fn has_tshark() -> bool {
    let is_there = Command::new("tshark").arg("--version").output().is_ok();
    if !is_there {
        assert!(std::env::var_os("CI").is_none(), "tshark is needed");
        eprintln!("SKIPPED: tshark is needed");
    }
    is_there
}

/// Returns the CPU time of a process in clock ticks (proc_pid_stat(5), fields 14 and 15).
fn ticks(id: u32) -> u64 {
    ticks_of(&std::fs::read_to_string(format!("/proc/{id}/stat")).expect("lives"))
}

/// Returns the CPU time from the text of a `stat` file.
fn ticks_of(stat: &str) -> u64 {
    let fields = stat.rsplit_once(')').expect("a name in parentheses").1;
    fields
        .split_ascii_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().expect("a number"))
        .sum()
}
