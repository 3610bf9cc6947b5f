//! The lab as a program: its reports, and its behaviour without namespaces.

mod running;

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::browser::{assert_readable, open};
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

/// Two rounds give a spread, which makes rows long. The run takes 15 to 30 seconds, four of which
/// are measurements: rps opens 500 connections for each of its 16, tso sends a file of 66 MB for
/// each of its 22, and each variant has hosts of its own. No experiment can be left out, since the
/// tests check the rows and the marks of each.
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
    let one = bench.json("lab ack --model");
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
            None if mark["nothing_to_spare"] == true => "nothing to spare",
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
    // Three lines are reserved: the run without --quick has three more rows.
    assert!(text.lines().count() <= 42, "{} lines:\n{text}", text.lines().count());
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
            .map(|row| {
                ["met", "missed", "unclear", "nothing to spare"]
                    .iter()
                    .any(|verdict| row.ends_with(verdict))
            })
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
        // Labels of an axis are centred at their values.
        let labels = svg.matches("text-anchor=\"middle\"").count();
        assert!(labels >= 3, "an axis with labels and a name: {svg}");
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
        bench.refuses(&[&["lab"], arguments].concat(), words);
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
    // Live rows of rps say which CPU was full, and no other rows do.
    for experiment in list(&report["experiments"]) {
        for row in list(&experiment["rows"]) {
            let told = row["full_cpu"].as_str();
            assert_eq!(
                told.is_some_and(|cpu| ["queue", "load", "both", "none"].contains(&cpu)),
                row["table"] == "Which CPU was full",
                "{row}"
            );
        }
    }
    assert_well_formed(page);
    // Tables of measured values are wider than those of counts.
    assert_pages_readable(&[page, &with_larger_figures(page)], 5);
    assert_prints_on_at_most(10, page);
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

/// Checks that a page fits this number of sheets of paper.
fn assert_prints_on_at_most(sheets: usize, page: &str) {
    let bench = Bench::new();
    fs::write(bench.path("lab.html"), page).expect("writes");
    let paper = bench.path("lab.pdf");
    let option = format!("--print-to-pdf={}", paper.display());
    if open(&bench, "lab.html", false, &[&option]).is_none() {
        return;
    }
    let paper = fs::read(paper).expect("is there");
    // Each page object of the file names its type; "/Pages" is the list of them.
    let printed = String::from_utf8_lossy(&paper);
    let pages = printed.matches("/Type /Page\n").count();
    assert!((1..=sheets).contains(&pages), "{pages} sheets");
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
