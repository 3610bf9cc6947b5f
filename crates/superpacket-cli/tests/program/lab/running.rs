//! The lab while it runs: its threads, its progress, and what a signal leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::pipe::fcntl_setpipe_size;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{COUNTED, assert_well_formed, list, skip, text};
use crate::support::terminal::on_a_terminal;
use crate::support::{Bench, stderr};

/// Returns the names of a process's threads, and their CPUs (`Cpus_allowed_list` of
/// proc_pid_status(5)).
fn threads(process: u32) -> Vec<(String, String)> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let thread = |task: fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        Some((name.trim().to_owned(), cpus.trim().to_owned()))
    };
    tasks.filter_map(thread).collect()
}

#[test]
fn threads_run_where_they_were_told_to() {
    let bench = Bench::new();
    let own = fs::read_to_string("/proc/self/status").expect("Linux");
    let own = own
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .expect("is told")
        .trim();
    let first = own.split(['-', ',']).next().expect("at least one");
    // If only one CPU is allowed, a pinned thread looks like any other.
    if own == first {
        return skip("this machine has but one CPU");
    }
    for experiment in ["lro", "tso"] {
        let arguments = [
            experiment,
            "--quick",
            "--rounds",
            "1000",
            "--sender-cpus",
            first,
            "--receiver-cpus",
            first,
            "--bridge-cpus",
            first,
        ];
        let Some(mut lab) = RunningLab::start(&bench, &arguments) else { return };
        // The bridge's threads and those of the load, "lab:send" and "lab:receive", which come and
        // go.
        let mut seen = BTreeSet::new();
        let started = Instant::now();
        while seen.len() < 3 {
            assert!(started.elapsed() < Duration::from_secs(60), "{experiment}: {seen:?}");
            for (name, cpus) in threads(lab.id()) {
                let kind = ["superpacket-0", "lab:send", "lab:receive"]
                    .into_iter()
                    .find(|kind| name.starts_with(kind));
                // A thread of the load may run anywhere until it has pinned itself.
                if let Some(kind) = kind.filter(|_| cpus == first) {
                    seen.insert(kind);
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let id = lab.id();
        lab.signal(Signal::INT);
        let (output, _) = lab.end();
        assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
        lab.assert_nothing_is_left(id);
    }
}

/// A running lab, in its own process group; it is killed if a test fails.
struct RunningLab {
    child: Option<Child>,
    namespaces: BTreeSet<String>,
}

impl RunningLab {
    /// Starts a lab and waits until it has created its hosts. Returns `None`, with a message, if
    /// the machine forbids that.
    fn start(bench: &Bench, arguments: &[&str]) -> Option<Self> {
        let mut command = bench.command(&[&["lab"], arguments].concat());
        command.env("TMPDIR", bench.path("."));
        let child = command
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("runs");
        let mut lab = Self { child: Some(child), namespaces: BTreeSet::new() };
        let own = fs::read_link("/proc/self/ns/net").expect("Linux").to_string_lossy().into_owned();
        let started = Instant::now();
        while lab.namespaces.len() < 2 {
            if let Some(status) =
                lab.child.as_mut().and_then(|child| child.try_wait().expect("waits"))
            {
                let output = lab.child.take().expect("runs").wait_with_output().expect("waits");
                assert!(
                    status.success() && text(&output).contains("forbidden here"),
                    "{status}: {}{}",
                    text(&output),
                    stderr(&output)
                );
                skip("network namespaces are forbidden here");
                return None;
            }
            assert!(
                started.elapsed() < Duration::from_secs(30),
                "no hosts were made: {:?}",
                lab.namespaces
            );
            std::thread::sleep(Duration::from_millis(5));
            lab.namespaces = network_namespaces(Path::new(&format!("/proc/{}", lab.id())));
            lab.namespaces.remove(&own);
        }
        Some(lab)
    }

    fn id(&self) -> u32 {
        self.child.as_ref().expect("runs").id()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.child.as_ref().expect("runs")), signal).expect("lives");
    }

    /// Waits until packets pass between its hosts.
    fn wait_for_traffic(&self) {
        let (started, mut before) = (Instant::now(), self.received());
        loop {
            std::thread::sleep(Duration::from_millis(5));
            let now = self.received();
            // More than address resolution takes.
            if now.iter().any(|(namespace, bytes)| {
                before.get(namespace).is_some_and(|before| *bytes > before + 100_000)
            }) {
                return;
            }
            assert!(started.elapsed() < Duration::from_secs(30), "nothing passes: {now:?}");
            before = now;
        }
    }

    /// Returns the bytes received by the hosts in which its threads run.
    fn received(&self) -> BTreeMap<String, u64> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.id()))
            .expect("runs")
            .flatten()
            .map(|thread| thread.path());
        let of_thread = |thread: std::path::PathBuf| {
            let namespace =
                fs::read_link(thread.join("ns/net")).ok()?.to_string_lossy().into_owned();
            let devices = fs::read_to_string(thread.join("net/dev"))
                .ok()
                .filter(|_| self.namespaces.contains(&namespace))?;
            let devices = devices
                .lines()
                .filter_map(|line| line.split_once(':'))
                .filter(|(name, _)| name.trim() != "lo");
            let bytes = devices
                .filter_map(|(_, counters)| {
                    counters.split_ascii_whitespace().next()?.parse::<u64>().ok()
                })
                .sum();
            Some((namespace, bytes))
        };
        threads.filter_map(of_thread).collect()
    }

    /// Waits until the lab ends, and returns its output and the time that took.
    fn end(&mut self) -> (Output, Duration) {
        let started = Instant::now();
        let output = self.child.take().expect("runs").wait_with_output().expect("waits");
        (output, started.elapsed())
    }

    /// Checks that no process holds its namespaces any more, so that all their devices are gone,
    /// and that its process group is empty.
    fn assert_nothing_is_left(&self, group: u32) {
        let started = Instant::now();
        loop {
            let mut held = BTreeSet::new();
            let mut processes = Vec::new();
            for process in fs::read_dir("/proc").expect("lists").flatten() {
                let path = process.path();
                held.extend(network_namespaces(&path));
                let stat = fs::read_to_string(path.join("stat")).unwrap_or_default();
                // Field 5 of proc_pid_stat(5) follows a name that may contain any character.
                let found = stat.rsplit_once(')').and_then(|(_, rest)| {
                    rest.split_ascii_whitespace().nth(2)?.parse::<u32>().ok()
                });
                processes.extend((found == Some(group)).then(|| path.clone()));
            }
            let left: Vec<_> = self.namespaces.intersection(&held).collect();
            if left.is_empty() && processes.is_empty() {
                return;
            }
            assert!(started.elapsed() < Duration::from_secs(5), "left: {left:?} {processes:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for RunningLab {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the network namespaces that a process is in or holds open.
fn network_namespaces(process: &Path) -> BTreeSet<String> {
    let links =
        fs::read_dir(process.join("fd")).into_iter().flatten().flatten().map(|file| file.path());
    let threads = fs::read_dir(process.join("task"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|thread| thread.path().join("ns/net"));
    links
        .chain(threads)
        .filter_map(|link| Some(fs::read_link(link).ok()?.to_string_lossy().into_owned()))
        .filter(|name| name.starts_with("net:"))
        .collect()
}

/// Returns the files in the test's directory, where the program also puts temporary files.
fn files(bench: &Bench) -> BTreeSet<String> {
    let files =
        fs::read_dir(bench.path(".")).expect("lists").map(|file| file.expect("lists").file_name());
    files.map(|name| name.to_string_lossy().into_owned()).collect()
}

fn interfaces() -> BTreeSet<String> {
    fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .flatten()
        .map(|interface| interface.file_name().to_string_lossy().into_owned())
        .collect()
}

#[test]
fn signals_end_it_soon_with_the_finished_results_and_no_leftovers() {
    let bench = Bench::new();
    let before = interfaces();
    let (short, long) =
        (["--rounds", "1000", "--seconds", "0.1"], ["--rounds", "3", "--seconds", "60"]);
    // Signals between measurements, and during one that would last a minute; also an experiment
    // with files and TAP devices.
    for (experiment, signal, rounds) in [
        ("all", Signal::INT, short),
        ("all", Signal::TERM, long),
        ("tso", Signal::INT, short),
        ("gso", Signal::INT, short),
        ("gso", Signal::TERM, long),
    ] {
        let arguments =
            [&[experiment, "--quick", "--json", "--html", "report.html"], &rounds[..]].concat();
        let Some(mut lab) = RunningLab::start(&bench, &arguments) else { return };
        std::thread::sleep(Duration::from_millis(300));
        let id = lab.id();
        lab.signal(signal);
        let (output, took) = lab.end();
        assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
        assert!(took < Duration::from_secs(6), "{took:?}");
        assert!(
            stderr(&output).contains("ended before it was done; finished: nothing"),
            "{}",
            stderr(&output)
        );
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON and nothing else");
        assert_eq!((&report["interrupted"], list(&report["experiments"]).len()), (&true.into(), 0));
        assert_eq!(
            files(&bench),
            BTreeSet::new(),
            "half of a report is none, and what was written for a while is gone"
        );
        lab.assert_nothing_is_left(id);
    }
    assert_eq!(interfaces(), before);
}

#[test]
fn a_killed_run_leaves_nothing_behind() {
    let bench = Bench::new();
    let before = interfaces();
    let Some(mut lab) = RunningLab::start(&bench, &["all", "--rounds", "1000"]) else { return };
    lab.wait_for_traffic();
    let id = lab.id();
    lab.signal(Signal::KILL);
    let (output, _) = lab.end();
    assert_eq!(output.status.code(), None, "a signal ended it");
    lab.assert_nothing_is_left(id);
    assert_eq!(interfaces(), before);
}

/// Waits for the end of a program, which must come soon.
fn end_of(mut child: Child) -> Option<i32> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("waits") {
            return status.code();
        }
        if started.elapsed() > Duration::from_secs(20) {
            let _ = child.kill();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_end_during_the_report_leaves_a_whole_page_or_none() {
    let bench = Bench::new();
    let arguments = ["lab", "tso", "--model", "--html", "report.html"];
    let started = Instant::now();
    assert!(bench.run(&arguments).status.success());
    let whole = started.elapsed();
    // From the start to after the end, so that some signals arrive during the writing.
    for part in (0..=12).map(|part| whole.mul_f64(f64::from(part) / 10.0)) {
        let _ = fs::remove_file(bench.path("report.html"));
        let mut command = bench.command(&arguments);
        let child = command
            .env("TMPDIR", bench.path("."))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("runs");
        let id = Pid::from_child(&child);
        std::thread::sleep(part);
        // The process may have ended; its ID is not reused before it is waited for.
        let _ = kill_process(id, Signal::INT);
        let code = end_of(child);
        // A signal before the handler is installed ends it like any program.
        assert!(matches!(code, Some(0 | 130) | None), "{code:?}");
        let left = files(&bench);
        assert!(left.iter().all(|file| file == "report.html"), "{left:?} after {part:?}");
        if left.is_empty() {
            assert_ne!(code, Some(0), "a run that was done has its page");
        } else {
            let page = fs::read_to_string(bench.path("report.html")).expect("reads");
            assert!(page.ends_with("</html>\n"), "{part:?}");
            assert_well_formed(&page);
        }
    }
}

#[test]
fn an_end_while_the_report_is_unread_leaves_no_file() {
    let bench = Bench::new();
    // The report is longer than the pipe's buffer, so the page, which is written later, is never
    // begun.
    let (unread, writer) = std::io::pipe().expect("a pipe");
    assert!(
        fcntl_setpipe_size(&writer, 4096).expect("smaller")
            < COUNTED.report["experiments"][1].to_string().len()
    );
    let mut command = bench.command("lab ack --model --json --html report.html");
    let child = command
        .env("TMPDIR", bench.path("."))
        .stdout(writer)
        .stderr(Stdio::null())
        .spawn()
        .expect("runs");
    let wait = || fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    let (started, mut asleep) = (Instant::now(), 0);
    // Asleep in 100 samples in a row: it waits for its reader.
    while asleep < 100 {
        assert!(started.elapsed() < Duration::from_secs(120), "it goes on: {}", wait());
        asleep = if wait().rsplit(')').next().is_some_and(|rest| rest.starts_with(" S")) {
            asleep + 1
        } else {
            0
        };
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&child), Signal::INT).expect("lives");
    assert_eq!(end_of(child), Some(130));
    assert_eq!(files(&bench), BTreeSet::new());
    drop(unread);
}

#[test]
fn a_terminal_shows_a_bar_with_the_time_left_and_a_pipe_does_not() {
    let bench = Bench::new();
    let arguments = ["lab", "ack", "--quick", "--rounds", "2", "--seconds", "0.1", "--json"];
    let (output, shown) = on_a_terminal(bench.command(&arguments), 120);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON and nothing else");
    if report["plan"]["form"] == "model" {
        return skip(report["notes"][0].as_str().expect("a note"));
    }
    assert_eq!(output.status.code(), Some(0), "{shown}");
    // The current measurement, the number of finished measurements, and the remaining time; the
    // line is redrawn each time.
    let bars: Vec<&str> = shown.split(['\r', '\n']).filter(|line| line.contains(" left")).collect();
    assert!(bars.iter().any(|bar| bar.contains("ack: receiver aggregates, ")), "{shown:?}");
    let done: Vec<u32> = bars
        .iter()
        .filter_map(|bar| bar.split_once("/8, ")?.0.rsplit(' ').next()?.parse().ok())
        .collect();
    assert!(
        done.len() > 2
            && done.is_sorted()
            && done.iter().all(|&done| done < 8)
            && done.last() > done.first(),
        "{bars:?}"
    );
    let left: Vec<&str> = bars
        .iter()
        .filter_map(|bar| bar.split_once("/8, ")?.1.split_once(" left").map(|(time, _)| time))
        .collect();
    assert!(
        left.iter().all(|time| time.ends_with(['s', 'm', 'h'])
            && time.starts_with(|digit: char| digit.is_ascii_digit())),
        "{left:?}"
    );
    // At the end the bar is removed, and the cursor is on an empty line.
    let last = shown.rsplit(['\r', '\n']).next().unwrap_or_default();
    assert!(!last.contains("left"), "{last:?}");
    // With --quiet there is no bar, and none in a pipe.
    let shorter = ["lab", "ack", "--quick", "--rounds", "1", "--seconds", "0.05", "--json"];
    let (output, shown) = on_a_terminal(bench.command(&[&shorter[..], &["--quiet"]].concat()), 120);
    assert_eq!((output.status.code(), shown.as_str()), (Some(0), ""));
    let piped = bench.run(&shorter);
    assert_eq!((piped.status.code(), stderr(&piped).as_str()), (Some(0), ""));
}
