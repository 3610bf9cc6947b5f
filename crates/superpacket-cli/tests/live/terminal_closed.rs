//! Long-running commands whose terminal, output reader or bridge goes away. They end, or go on like
//! a daemon, and never use the CPU in a loop.

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use superpacket_captures::file::Reader;

use crate::support::terminal::Terminal;

use super::*;

/// Prefix that starts a command as leader of the terminal's session, so that closing the terminal
/// ends it with SIGHUP.
const SESSION: &[&str] = &["setsid", "-c"];

/// Prefix that starts a command which receives SIGHUP but ignores it, like `nohup`.
const NOHUP: &[&str] = &["--ignore-signal=HUP", "setsid", "-c"];

/// Empty prefix: the terminal does not belong to the command's session, so no signal reaches it.
const FOREIGN: &[&str] = &[];

/// Returns the program's command, started by `env` with one of these prefixes.
fn program(mut env: Command, way: &[&str], arguments: &[&str]) -> Command {
    env.args(way).arg(env!("CARGO_BIN_EXE_superpacket")).args(arguments);
    env
}

impl TestNetwork {
    /// Starts a command in the bridge's namespace on a new terminal.
    fn on_terminal(&self, way: &[&str], arguments: &[&str]) -> (Running, Terminal) {
        let (child, terminal) =
            Terminal::start(program(self.middle.command("env"), way, arguments));
        (Running { child: Some(child) }, terminal)
    }

    /// Starts a client of the bridge on a new terminal.
    fn client_on_terminal(&self, way: &[&str], arguments: &[&str]) -> (Running, Terminal) {
        let socket = self.socket().display().to_string();
        self.on_terminal(way, &[arguments, &["--control", &socket]].concat())
    }
}

impl Running {
    /// Waits until the program ends, and returns its exit code.
    #[track_caller]
    fn ends(mut self, what: &str) -> Option<i32> {
        let started = Instant::now();
        while self.is_running() {
            assert!(started.elapsed() < Duration::from_secs(20), "{what}: it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        self.end().0
    }

    /// Asserts that the program goes on and is idle: in most samples none of its threads is running
    /// or waits for a CPU. This holds on a busy machine too.
    #[track_caller]
    fn assert_rests(&mut self, what: &str) {
        const LOOKS: usize = 100;
        let is_busy = || {
            let tasks =
                std::fs::read_dir(format!("/proc/{}/task", self.id())).expect("lives").flatten();
            let mut stats =
                tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
            stats.any(|stat| {
                stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('R'))
            })
        };
        let look = || {
            std::thread::sleep(Duration::from_millis(10));
            is_busy()
        };
        let busy = std::iter::repeat_with(look).take(LOOKS).filter(|busy| *busy).count();
        assert!(busy < LOOKS * 9 / 10, "{what}: it spins: busy in {busy} of {LOOKS} looks");
        assert!(self.is_running(), "{what}: it has ended");
    }
}

/// Waits until a terminal shows `text`.
#[track_caller]
fn wait_until_drawn(terminal: &mut Terminal, text: &str) {
    let started = Instant::now();
    while !terminal.drawn().contains(text) {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "{text:?} is not in {:?}",
            terminal.drawn()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn top_rests_without_its_bridge_and_ends_with_its_terminal() {
    let Some(network) = TestNetwork::new() else { return };
    let bridge = network.bridge(&PORTS);
    let ways = [("session", SESSION), ("nohup", NOHUP), ("foreign", FOREIGN)];
    let mut tops = ways.map(|(name, way)| (name, network.client_on_terminal(way, &["top"])));
    for (_, (_, terminal)) in &mut tops {
        wait_until_drawn(terminal, "packet:left");
    }
    bridge.signal(Signal::KILL);
    drop(bridge);
    for (name, (mut top, mut terminal)) in tops {
        // The error begins with the socket's name.
        wait_until_drawn(&mut terminal, "control.sock:");
        top.assert_rests(name);
        drop(terminal);
        top.ends(name);
    }
}

#[test]
fn a_monitor_ends_with_its_terminal_or_outlives_it() {
    let Some(network) = TestNetwork::new() else { return };
    let bridge = network.bridge(&PORTS);
    let path = |name: &str| network.bench.path(&format!("{name}.pcapng"));
    let start = |name: &str, way: &[&str]| {
        let (monitor, mut terminal) =
            network.client_on_terminal(way, &["monitor", "-w", &path(name).display().to_string()]);
        wait_until_drawn(&mut terminal, "Ctrl-C ends it");
        drop(terminal);
        monitor
    };
    let is_whole = |path: &Path| Reader::open(path).is_ok();
    assert_eq!(start("session", SESSION).ends("session"), Some(0));
    assert!(is_whole(&path("session")));
    let mut monitor = start("nohup", NOHUP);
    monitor.assert_rests("nohup");
    monitor.signal(Signal::INT);
    assert_eq!(monitor.ends("nohup"), Some(0));
    assert!(is_whole(&path("nohup")));
    // The bridge goes away.
    let mut monitor = start("foreign", FOREIGN);
    monitor.assert_rests("foreign");
    bridge.signal(Signal::KILL);
    drop(bridge);
    monitor.ends("without a bridge");
}

#[test]
fn a_bridge_outlives_its_terminal_and_the_reader_of_its_log() {
    let Some(network) = TestNetwork::new() else { return };
    let socket = network.socket().display().to_string();
    let arguments = ["bridge", PORTS[0], PORTS[1], "--control", &socket];
    let goes_on = |name: &str, mut bridge: Running| {
        bridge.assert_rests(name);
        // Each command makes the bridge write to a log whose reader is gone.
        bridge.signal(Signal::HUP);
        network.wait_for(name, || network.try_ask(&["features", PORTS[0], "gro", "off"]).is_some());
        assert!(network.reaches(), "{name}");
        bridge.assert_rests(name);
        bridge.signal(Signal::TERM);
        assert_eq!(bridge.ends(name), Some(0), "{name}");
    };
    for (name, way) in [("session", SESSION), ("nohup", NOHUP), ("foreign", FOREIGN)] {
        let (bridge, mut terminal) = network.on_terminal(way, &arguments);
        wait_until_drawn(&mut terminal, "bridge started");
        drop(terminal);
        goes_on(name, bridge);
    }
    let mut command = program(network.middle.command("env"), FOREIGN, &arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
    network.wait_for("the bridge", || network.try_ask(&["ports"]).is_some());
    drop((child.stdout.take(), child.stderr.take()));
    goes_on("a pipe", Running { child: Some(child) });
}

#[test]
fn a_load_ends_with_its_terminal_or_when_it_is_done() {
    let Some(network) = TestNetwork::new() else { return };
    let _bridge = network.bridge(&PORTS);
    let [client, server] = [&network.left, &network.right].map(|host| host.id().to_string());
    let load = ["load", "stream", "10.9.0.2", "--client", &client, "--server", &server, "--time"];
    let (running, terminal) = network.on_terminal(SESSION, &[&load[..], &["1h"]].concat());
    // The load handles signals from its start; an earlier signal ends it too.
    std::thread::sleep(Duration::from_millis(500));
    drop(terminal);
    running.ends("session");
    for (name, way) in [("nohup", NOHUP), ("foreign", FOREIGN)] {
        let (running, terminal) = network.on_terminal(way, &[&load[..], &["1s"]].concat());
        drop(terminal);
        running.ends(name);
    }
}

#[test]
fn a_run_with_a_progress_bar_ends_with_its_terminal_or_finishes() {
    let bench = Bench::new();
    let capture = bench.capture("in.pcap", &spaced(&Frame::tcp4(1, 1000).run(1000)));
    let bytes = std::fs::read(&capture).expect("it was written");
    let (first, rest) = bytes.split_at(bytes.len() / 2);
    for (name, way) in [("session", SESSION), ("nohup", NOHUP), ("foreign", FOREIGN)] {
        let out = bench.path(name);
        std::fs::create_dir(&out).expect("a directory");
        let mut env = Command::new("env");
        env.current_dir(&out);
        // `setsid` takes the terminal from standard input, which is then replaced by a pipe.
        let pipe = bench.path(&format!("{name}.pipe"));
        assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
        let script = format!("exec 0<'{}'; exec \"$@\"", pipe.display());
        env.args(way).args([
            "sh",
            "-c",
            &script,
            "sh",
            env!("CARGO_BIN_EXE_superpacket"),
            "coalesce",
            "-",
            "-o",
            "out.pcap",
        ]);
        let (child, mut terminal) = Terminal::start(env);
        let mut running = Running { child: Some(child) };
        let mut input =
            std::fs::OpenOptions::new().write(true).open(&pipe).expect("the program reads it");
        input.write_all(first).expect("is read");
        wait_until_drawn(&mut terminal, "0 B/s");
        drop(terminal);
        if way == SESSION {
            // The output is completed, but the report cannot be printed.
            assert!(matches!(running.ends(name), Some(0 | 2)));
            let files = std::fs::read_dir(&out).expect("is there");
            let names: Vec<_> = files.map(|file| file.expect("is there").file_name()).collect();
            assert_eq!(names, ["out.pcap"]);
            assert!(!crate::support::read(out.join("out.pcap")).is_empty());
            continue;
        }
        running.assert_rests(name);
        input.write_all(rest).expect("is read");
        drop(input);
        running.ends(name);
        assert!(!crate::support::read(out.join("out.pcap")).is_empty(), "{name}");
    }
}

#[test]
fn the_lab_ends_with_its_terminal() {
    let bench = Bench::new();
    let mut env = Command::new("env");
    env.current_dir(bench.path("."));
    let arguments = ["lab", "ack", "--quick", "--rounds", "200", "--seconds", "1"];
    let (child, mut terminal) = Terminal::start(program(env, SESSION, &arguments));
    let mut lab = Running { child: Some(child) };
    let started = Instant::now();
    while !terminal.drawn().contains(" left") {
        if !lab.is_running() {
            assert!(std::env::var_os("CI").is_none(), "the lab did not run: {}", terminal.drawn());
            eprintln!("SKIPPED: the lab cannot measure here");
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "{}", terminal.drawn());
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(terminal);
    // The results cannot be printed, so either exit code is right.
    assert!(matches!(lab.ends("the lab"), Some(2 | 130)));
}
