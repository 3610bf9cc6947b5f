//! The lab as a program: its reports, its behaviour without namespaces, and its leftovers after
//! signals.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustix::pipe::fcntl_setpipe_size;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::browser::assert_readable;
use crate::support::terminal::on_a_terminal;
use crate::support::{Bench, stderr};

const EXPERIMENTS: [&str; 5] = ["lro", "ack", "rps", "tso", "gso"];

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Checks the rules that every report of the lab follows.
fn assert_sound(report: &Value) {
    for key in ["cpu", "cores", "kernel", "memory", "load"] {
        assert!(!report["machine"][key].is_null(), "{key}: {report}");
    }
    assert!(
        report["plan"]["rounds"].as_u64().is_some_and(|rounds| rounds > 0)
            && report["plan"]["seconds"].is_number()
    );
    for experiment in list(&report["experiments"]) {
        let name = experiment["name"].as_str().expect("a name");
        assert!(EXPERIMENTS.contains(&name), "{name}");
        assert!(experiment["source"].as_str().is_some_and(|source| !source.is_empty()), "{name}");
        assert!(!list(&experiment["rows"]).is_empty(), "{name}");
        for row in list(&experiment["rows"]) {
            for (column, figure) in row["figures"].as_object().expect("figures by name") {
                let [value, low, high] =
                    ["value", "low", "high"].map(|key| figure[key].as_f64().expect("a number"));
                // A mean or a maximum may lie outside the range of half of the rounds; a median may
                // not.
                assert!(
                    low <= high
                        && (matches!(column.as_str(), "average" | "best")
                            || low <= value && value <= high),
                    "{name}, {column}: {row}"
                );
                let live = row["form"] == "live";
                assert!(
                    live || low == high,
                    "{name}, {column}: what every run gives has no spread: {row}"
                );
            }
            let ratio = &row["ratio"];
            assert!(
                ratio.is_null()
                    || ratio["value"].is_null()
                    || ratio["low"].as_f64() <= ratio["value"].as_f64(),
                "{row}"
            );
        }
    }
    for mark in list(&report["marks"]) {
        let name = mark["name"].as_str().expect("a name");
        assert!(EXPERIMENTS.iter().any(|experiment| name.starts_with(experiment)), "{name}");
        let target = mark["target"].as_f64().expect("a target");
        assert_eq!(list(&mark["spread"]).len(), 2, "{mark}");
        match mark["met"].as_bool() {
            Some(met) => {
                let value = mark["value"].as_f64().expect("a mark that is judged has a value");
                let reached =
                    if mark["side"] == "at_least" { value >= target } else { value <= target };
                assert_eq!(met, reached, "{mark}");
            }
            None => {
                assert!(mark["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{mark}")
            }
        }
    }
}

/// The output and files of one run, shared by several tests because a run takes seconds.
struct LabRun {
    text: String,
    errors: String,
    report: Value,
    page: String,
    document: String,
    plots: Vec<String>,
    took: Duration,
}

impl LabRun {
    /// Runs all experiments, which must succeed; otherwise every test that reads the run panics.
    fn by(arguments: &[&str]) -> Self {
        let bench = Bench::new();
        let files = [
            "--json-file",
            "report.json",
            "--html",
            "report.html",
            "--markdown",
            "report.md",
            "--svg",
            ".",
        ];
        let started = Instant::now();
        let output = bench.run(&[&["lab", "all"], arguments, &files].concat());
        let took = started.elapsed();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
        let files =
            fs::read_dir(bench.path(".")).expect("lists").map(|file| file.expect("lists").path());
        let plots = files.filter(|path| path.extension().is_some_and(|end| end == "svg"));
        LabRun {
            text: text(&output),
            errors: stderr(&output),
            report: serde_json::from_slice(&fs::read(bench.path("report.json")).expect("is there"))
                .expect("JSON and nothing else"),
            page: fs::read_to_string(bench.path("report.html")).expect("is there"),
            plots: plots.map(|plot| fs::read_to_string(plot).expect("reads")).collect(),
            document: fs::read_to_string(bench.path("report.md")).expect("reads"),
            took,
        }
    }
}

static COUNTED: LazyLock<LabRun> = LazyLock::new(|| LabRun::by(&["--model"]));

/// The same run with all tables printed.
static COUNTED_IN_FULL: LazyLock<LabRun> = LazyLock::new(|| LabRun::by(&["--model", "--full"]));

/// Two rounds give a spread, which makes rows long.
static MEASURED: LazyLock<LabRun> =
    LazyLock::new(|| LabRun::by(&["--quick", "--rounds", "2", "--seconds", "0.05"]));

#[test]
fn counted_results_are_complete_and_the_same_in_every_run() {
    let bench = Bench::new();
    let mut report = COUNTED.report.clone();
    assert_sound(&report);
    let names: Vec<_> = list(&report["experiments"])
        .iter()
        .filter_map(|experiment| experiment["name"].as_str())
        .collect();
    assert_eq!(names, EXPERIMENTS);
    assert_eq!(
        (&report["plan"]["form"], &report["failed"], &report["interrupted"]),
        (&"model".into(), &Value::Array(vec![]), &false.into())
    );
    let rows = list(&report["experiments"]).iter().flat_map(|experiment| list(&experiment["rows"]));
    assert!(rows.clone().all(|row| row["form"] != "live") && rows.count() > 10);
    // Counted marks are the same everywhere; simulated ones depend on an assumption and are a
    // range.
    assert!(list(&report["marks"]).iter().all(|mark| match mark["form"].as_str() {
        Some("model") => mark["spread"][0] == mark["spread"][1],
        form =>
            form == Some("simulated") && mark["spread"][0].as_f64() < mark["spread"][1].as_f64(),
    }));
    let mut again = COUNTED_IN_FULL.report.clone();
    report["machine"]["load"] = Value::Null;
    again["machine"]["load"] = Value::Null;
    assert!(report == again, "{report}\n{again}");
    // Also checks the printed JSON, not only the JSON file.
    let one = bench.json(&["lab", "ack", "--model"]);
    assert_eq!(
        list(&one["experiments"]),
        &list(&report["experiments"])[1..2],
        "alone it is the same"
    );
}

#[test]
fn in_full_every_row_is_named_and_every_mark_has_its_verdict() {
    let LabRun { text, errors, .. } = &*COUNTED_IN_FULL;
    assert_eq!(errors, "");
    let report = &COUNTED.report;
    for experiment in list(&report["experiments"]) {
        let heading = format!(
            "{}: {}",
            experiment["name"].as_str().expect("text"),
            experiment["source"].as_str().expect("text")
        );
        assert!(text.contains(&heading), "{heading}");
        for row in list(&experiment["rows"]) {
            assert!(text.contains(row["name"].as_str().expect("text")), "{row}");
        }
    }
    for mark in list(&report["marks"]) {
        let verdict = match mark["met"].as_bool() {
            Some(true) => "met",
            Some(false) => "missed",
            None => "cannot be said",
        };
        let name = mark["name"].as_str().expect("text");
        assert!(
            text.lines().any(|line| line.trim_start().starts_with(verdict) && line.contains(name)),
            "{mark}"
        );
    }
}

/// Checks that a report fits one screen: at most 45 lines of 80 columns with all experiments, also
/// in a pipe.
fn assert_one_screen(text: &str) {
    // Two lines are reserved: the run without --quick has two more rows.
    assert!(text.lines().count() <= 43, "{} lines:\n{text}", text.lines().count());
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
    }
    for name in EXPERIMENTS {
        let rows = text
            .lines()
            .skip_while(|line| !line.starts_with(&format!("{name}: ")))
            .skip(1)
            .take_while(|line| line.starts_with("  "));
        // The comparison has 35 columns, and all figures are aligned below each other.
        let straight = |row: &&str| {
            row.chars().nth(37) == Some(' ')
                && row.chars().nth(38).is_some_and(|figure| figure != ' ')
        };
        assert!(rows.clone().all(|row| straight(&row)), "{name}: {text}");
        let verdicts = rows
            .map(|row| ["met", "missed", "unclear"].iter().any(|verdict| row.ends_with(verdict)))
            .collect::<Vec<_>>();
        assert!(
            !verdicts.is_empty() && verdicts.iter().all(|&verdict| verdict),
            "{name}: what, here, the source's and a verdict:\n{text}"
        );
    }
    assert!(text.contains("--full") && text.contains("all marks, "), "{text}");
}

#[test]
fn the_short_report_fits_a_screen() {
    for found in [&COUNTED, &MEASURED] {
        assert_one_screen(&found.text);
    }
}

/// Checks that all elements of a page are closed in the right order.
fn assert_well_formed(page: &str) {
    let mut open = Vec::new();
    for tag in page.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("a tag ends");
        let name: String = tag
            .trim_start_matches('/')
            .chars()
            .take_while(|character| character.is_alphanumeric())
            .collect();
        if tag.starts_with('/') {
            assert_eq!(open.pop().as_ref(), Some(&name), "</{name}> ends something else");
        } else if !tag.starts_with('!')
            && !tag.ends_with('/')
            && !matches!(name.as_str(), "meta" | "wbr")
        {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "never ended: {open:?}");
}

#[test]
fn the_page_needs_nothing_else() {
    let LabRun { report, page, .. } = &*COUNTED;
    for forbidden in [
        "<script", "<img", "http://", "https://", "src=\"", "href=\"", "url(", "@import", "=\"#",
        "\u{1b}",
    ] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    assert_well_formed(page);
    assert!(
        page.contains("<svg ")
            && page.contains("prefers-color-scheme: dark")
            && page.contains("width=device-width")
    );
    for name in EXPERIMENTS {
        assert!(page.contains(&format!("<h2 id=\"{name}\">")), "{name}");
    }
    assert_eq!(
        page.matches(">met</td>").count(),
        list(&report["marks"]).iter().filter(|mark| mark["met"] == true).count()
    );
    assert!(page.contains(report["machine"]["kernel"].as_str().expect("text")));
}

#[test]
fn documents_and_plots_are_made_by_the_command() {
    let made = &COUNTED.document;
    assert!(made.starts_with("# The lab's report\n"), "{made}");
    assert!(EXPERIMENTS.iter().all(|name| made.contains(&format!("\n## {name}: "))), "{made}");
    // Every row of a table has as many cells as its heading.
    let cells = |line: &str| line.matches('|').count() - line.matches("\\|").count();
    for (above, line) in made
        .lines()
        .zip(made.lines().skip(1))
        .filter(|(above, line)| above.starts_with('|') && line.starts_with('|'))
    {
        assert_eq!(cells(above), cells(line), "{above}\n{line}");
    }
    let plots = &COUNTED.plots;
    assert!(plots.len() >= EXPERIMENTS.len(), "{plots:?}");
    for svg in plots {
        assert!(
            svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" ") && svg.contains("<rect "),
            "{svg}"
        );
        assert_well_formed(svg);
    }
}

#[test]
fn impossible_requests_are_refused_before_the_measurements() {
    let bench = Bench::new();
    let started = Instant::now();
    for (arguments, words) in [
        (&["gro"][..], "invalid value 'gro'"),
        (&[], "<EXPERIMENT>"),
        (&["all", "--rounds", "0"], "0 is not in 1..=1000"),
        (&["all", "--seconds", "0"], "a number of seconds from 0.05 to 60"),
        (&["all", "--seconds", "-1"], "a number of seconds from 0.05 to 60"),
        (&["all", "--model", "--quick"], "cannot be used with"),
        (&["all", "--full", "--json"], "cannot be used with"),
        (
            &["all", "--sender-cpus", "0,x"],
            "invalid value '0,x' for '--sender-cpus <CPUS>': EINVAL: \"x\" at byte 2 is neither a CPU",
        ),
        (
            &["all", "--receiver-cpus", "5-2"],
            "invalid value '5-2' for '--receiver-cpus <CPUS>': EINVAL: \"5-2\" at byte 0",
        ),
        (
            &["all", "--bridge-cpus", "8191"],
            "invalid value '8191' for '--bridge-cpus <CPUS>': CPU 8191 is not available to this program",
        ),
        (&["all", "--bridge-cpus", ""], "a list of CPUs like 0,2-3"),
        (&["all", "--model", "--bridge-cpus", "0"], "cannot be used with"),
        (
            &["all", "--html", "absent/report.html"],
            "absent/report.html: cannot be written: No such file",
        ),
        (&["all", "--html", "."], ".: cannot be written"),
        (&["all", "--html", "-"], "--html needs a file"),
        (&["all", "--json-file", "-"], "--json-file needs a file"),
        (
            &["all", "--json-file", "absent/report.json"],
            "absent/report.json: cannot be written: No such file",
        ),
        (&["all", "--svg", "absent"], "absent: cannot be written"),
        (&["all", "--markdown", "-"], "--markdown needs a file"),
        (
            &["all", "--markdown", "absent/report.md"],
            "absent/report.md: cannot be written: No such file",
        ),
    ] {
        let output = bench.run(&[&["lab"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(
            stderr(&output).contains(words) && output.stdout.is_empty(),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
    assert!(started.elapsed() < Duration::from_secs(60), "something was measured");
    assert_eq!(fs::read_dir(bench.path(".")).expect("lists").count(), 0, "nothing was left behind");
}

/// Reports that something was not tested; in CI this is a failure.
fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "{why}");
    eprintln!("*** NOT TESTED ***  {why}");
}

#[test]
fn without_namespaces_it_explains_how_to_get_them_and_counts() {
    let bench = Bench::new();
    // In its own user namespace, a process may forbid itself further namespaces.
    let forbid = "echo 0 > /proc/sys/user/max_net_namespaces && exec \"$@\"";
    let inside = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command
            .args(["-U", "-r", "sh", "-c", forbid, "sh", env!("CARGO_BIN_EXE_superpacket")])
            .args(arguments);
        command
            .current_dir(bench.path("."))
            .stdin(Stdio::null())
            .output()
            .expect("unshare (util-linux) is there")
    };
    if !Command::new("unshare")
        .args(["-U", "-r", "sh", "-c", forbid, "sh", "true"])
        .status()
        .is_ok_and(|status| status.success())
    {
        return skip("user namespaces are forbidden here");
    }
    let output = inside(&["lab", "all", "--quick", "--json", "--html", "report.html"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON and nothing else");
    assert_sound(&report);
    assert_eq!(
        (&report["plan"]["form"], list(&report["experiments"]).len()),
        (&"model".into(), EXPERIMENTS.len())
    );
    let note = report["notes"][0].as_str().expect("a note");
    assert!(
        note.contains("forbidden here") && note.contains("sysctl -w user.max_net_namespaces"),
        "{note}"
    );
    assert!(
        fs::read_to_string(bench.path("report.html"))
            .expect("is there")
            .contains("sysctl -w user.max_net_namespaces")
    );
    let output = inside(&["lab", "lro"]);
    assert!(
        output.status.success() && text(&output).contains("sysctl -w user.max_net_namespaces"),
        "{}",
        text(&output)
    );
}

#[test]
fn measured_values_have_a_spread() {
    let LabRun { errors, report, page, took, .. } = &*MEASURED;
    if report["plan"]["form"] == "model" {
        return skip(report["notes"][0].as_str().expect("a note"));
    }
    assert_eq!(errors, "");
    assert_sound(report);
    // Two of the three rounds of --quick, each a fifth as long. Only an otherwise idle machine
    // keeps the promised minute.
    assert_eq!(report["plan"]["planned"], 78.0 * 5.0 / 100.0, "{}", report["plan"]);
    let calm = report["machine"]["load"].as_f64()
        < report["machine"]["cores"].as_f64().map(|cores| cores * 0.5);
    assert!(*took < Duration::from_secs(60) || !calm, "{took:?}");
    for experiment in list(&report["experiments"]) {
        let forms: BTreeSet<_> =
            list(&experiment["rows"]).iter().filter_map(|row| row["form"].as_str()).collect();
        assert!(
            forms.contains("live") && forms.len() > 1,
            "{}: both forms, and not {forms:?}",
            experiment["name"]
        );
        let accounted = list(&experiment["rows"]).iter().filter(|row| {
            let figure = |name: &str| row["figures"][name]["value"].as_f64();
            let all = ["sender_cpu", "receiver_cpu", "bridge_cpu", "service_demand"]
                .map(figure)
                .into_iter()
                .flatten()
                .collect::<Vec<_>>();
            all.len() == 4
                && all.iter().all(|&value| value > 0.0)
                && figure("machine_cpu").is_some_and(|value| (0.0..=100.0).contains(&value))
        });
        assert!(accounted.count() >= 2, "{}: where the CPU time went is told", experiment["name"]);
    }
    assert_well_formed(page);
    // Tables of measured values are wider than those of counts.
    assert_pages_readable(&[page, &with_larger_figures(page)], 5);
}

/// Returns the page with one more digit in each group of figures, as on a faster machine.
fn with_larger_figures(page: &str) -> String {
    let is_digit = |text: char| text.is_ascii_digit();
    let mut cells = page.split("<td");
    let mut larger = cells.next().unwrap_or_default().to_owned();
    for cell in cells {
        let (figures, rest) = cell.split_once("</td>").expect("a cell ends");
        let mut groups = figures.split(',');
        larger += "<td";
        larger += groups.next().unwrap_or_default();
        for group in groups {
            larger +=
                if larger.ends_with(is_digit) && group.starts_with(is_digit) { "0," } else { "," };
            larger += group;
        }
        larger += "</td>";
        larger += rest;
    }
    assert_ne!(larger, page);
    larger
}

/// Checks that pages of the lab are readable in a browser.
#[track_caller]
fn assert_pages_readable(pages: &[&str], least_plots: u64) {
    let bench = Bench::new();
    let names: Vec<_> = (1..=pages.len()).map(|number| format!("lab-{number}.html")).collect();
    names
        .iter()
        .zip(pages)
        .for_each(|(name, page)| fs::write(bench.path(name), page).expect("writes"));
    assert_readable(
        &bench,
        &names.iter().map(|name| (name.as_str(), least_plots)).collect::<Vec<_>>(),
    );
}

#[test]
fn the_page_is_readable_on_a_screen_and_on_a_phone() {
    assert_pages_readable(&[&COUNTED.page], 3);
}

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
    let mut command = bench.command(&["lab", "ack", "--model", "--json", "--html", "report.html"]);
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
