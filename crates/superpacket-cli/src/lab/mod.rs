//! `superpacket lab`: repeats the published experiments on this machine.

mod arguments;
mod brief;
mod grid;
mod machine;
mod markdown;
mod page;
mod plot;
mod run;
mod text;
mod watch;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use superpacket_captures::file::{can_write_file, write_file};
use superpacket_lab::experiment::{Cpus, Experiment, Mark, Plan, Session, planned};
use superpacket_lab::{LabError, enter_user_namespace_if_needed};

pub(crate) use arguments::LabArguments;
use machine::Machine;
use run::{FailedExperiment, Forms};
use watch::Watcher;

use crate::CommandOutcome;
use crate::captures::is_stream;
use crate::failure::Failure;
use crate::progress::warn;
use crate::report::{print, print_json};
use superpacket_captures::present::svg_file;

/// The results of a run.
#[derive(Debug, Serialize)]
struct LabReport {
    /// The command line.
    #[serde(skip)]
    command: String,
    machine: Machine,
    plan: RunPlan,
    experiments: Vec<Experiment>,
    /// The targets of all experiments, with the values reached.
    marks: Vec<Mark>,
    /// Remarks that concern all figures.
    notes: Vec<String>,
    /// Experiments that failed.
    failed: Vec<FailedExperiment>,
    /// Whether a signal ended the run early.
    interrupted: bool,
}

/// What a run measures: the experiments, and the number and length of their measurements.
#[derive(Clone, Debug, Serialize)]
struct RunPlan {
    /// `live`, or `model` if nothing was measured.
    form: &'static str,
    quick: bool,
    /// Number of measurements of each variant, and the length of each in seconds.
    rounds: usize,
    seconds: f64,
    /// Planned duration of all measurements in seconds, without the preparations between them; 0 if
    /// nothing is measured.
    planned: f64,
    /// CPUs that were requested for the run.
    cpus: Cpus,
    /// Names of the experiments to run.
    experiments: Vec<&'static str>,
}

/// Runs the command.
pub(crate) fn run(arguments: &LabArguments) -> Result<CommandOutcome, Failure> {
    if !arguments.model {
        // Must precede the first thread. A refusal is reported later, when the first host is
        // created.
        let _ = enter_user_namespace_if_needed();
    }
    let plan = arguments.plan();
    let forbidden = if arguments.model { None } else { run::forbidden().map_err(cannot_begin)? };
    let live = !arguments.model && forbidden.is_none();
    let report = Arc::new(Mutex::new(LabReport::new(arguments, plan, live, forbidden)));
    let watcher = Watcher::new(arguments.entries().len(), arguments.quiet || !live);
    let style = ReportStyle::new(arguments);
    let interrupted_report = report.clone();
    let on_abort = move || {
        // A failed write to standard output cannot be reported here.
        let _ = interrupted(
            &mut interrupted_report.lock().unwrap_or_else(PoisonError::into_inner),
            style,
        );
    };
    watcher
        .handle_signals(on_abort)
        .map_err(|error| cannot_begin(LabError::system("signals", error)))?;
    // Tests whether files can be written, with a file that is removed again, even if a signal ends
    // the program.
    let outputs = OutputFiles::new(arguments)?;

    print(&locked(&report, |report| style.heading(report)), false)?;
    let cpus = arguments.cpus();
    let session = Session::new(plan, &*watcher).with_cpus(&cpus);
    for entry in arguments.entries() {
        watcher.begin();
        let outcome =
            run::experiment(entry, if live { Forms::Both(session) } else { Forms::Model });
        let found = match outcome {
            run::ExperimentOutcome::Done(found) => Some(found),
            run::ExperimentOutcome::Failed(failed, found) => {
                watcher.write_past_bar(|| warn(&format!("lab {}: {}", failed.name, failed.error)));
                locked(&report, |report| report.failed.push(failed));
                found
            }
            run::ExperimentOutcome::Cancelled => {
                wait_forever_unless(watcher.claim_end());
                watcher.clear();
                locked(&report, |report| interrupted(report, style))?;
                return Ok(CommandOutcome::Interrupted);
            }
        };
        if let Some(found) = found {
            watcher.write_past_bar(|| print(&style.experiment(&found), false))?;
            locked(&report, |report| report.add(found));
        }
    }
    wait_forever_unless(watcher.claim_end());
    watcher.clear();
    locked(&report, |report| finish(report, &outputs, style))
}

/// The format of the printed report.
#[derive(Clone, Copy, Debug)]
enum ReportStyle {
    /// JSON, printed at the end.
    Json,
    /// The short report, in lines of at most this many columns.
    Brief(usize),
    /// The full report, in lines of at most this many columns.
    Full(usize),
}

impl ReportStyle {
    fn new(arguments: &LabArguments) -> Self {
        let width = text::width();
        match (arguments.json, arguments.full) {
            (true, _) => Self::Json,
            (false, true) => Self::Full(width),
            (false, false) => Self::Brief(width.min(brief::WIDTH)),
        }
    }

    fn heading(self, report: &LabReport) -> String {
        match self {
            Self::Json => String::new(),
            Self::Brief(width) => brief::heading(report, width),
            Self::Full(width) => report.heading(width),
        }
    }

    fn experiment(self, found: &Experiment) -> String {
        match self {
            Self::Json => String::new(),
            Self::Brief(width) => brief::experiment(found, width),
            Self::Full(width) => text::experiment(found, width),
        }
    }

    /// Prints the end of the report, after the last experiment.
    fn end(self, report: &LabReport) -> io::Result<()> {
        match self {
            Self::Json => print_json(report),
            Self::Brief(width) => print(&brief::end(report, width), false),
            Self::Full(_) if report.marks.is_empty() => Ok(()),
            Self::Full(width) => print(&text::marks(report.marks.iter(), width), false),
        }
    }
}

/// Prints and writes the results of a complete run.
fn finish(
    report: &LabReport,
    outputs: &OutputFiles,
    style: ReportStyle,
) -> Result<CommandOutcome, Failure> {
    style.end(report)?;
    outputs.write(report)?;
    Ok(if report.failed.is_empty() { CommandOutcome::Done } else { CommandOutcome::Failed })
}

/// Prints the results of a run that a signal ended early. Files are not written, because an
/// incomplete report must not replace a complete one.
fn interrupted(report: &mut LabReport, style: ReportStyle) -> Result<(), Failure> {
    report.interrupted = true;
    let done: Vec<_> = report.experiments.iter().map(|experiment| experiment.name).collect();
    let done = if done.is_empty() { "nothing".to_owned() } else { done.join(", ") };
    warn(&format!("lab: ended before it was done; finished: {done}"));
    Ok(style.end(report)?)
}

/// Returns at once if `mine` is true: this thread is to print the end of the report. Otherwise
/// blocks forever, because the signal thread prints it and ends the process.
fn wait_forever_unless(mine: bool) {
    if !mine {
        loop {
            std::thread::park();
        }
    }
}

fn locked<T>(report: &Mutex<LabReport>, work: impl FnOnce(&mut LabReport) -> T) -> T {
    work(&mut report.lock().unwrap_or_else(PoisonError::into_inner))
}

fn cannot_begin(error: LabError) -> Failure {
    Failure::Lab(error.to_string())
}

impl LabReport {
    fn new(arguments: &LabArguments, plan: Plan, live: bool, forbidden: Option<String>) -> Self {
        let machine = Machine::this();
        let mut notes = if live { machine.warnings() } else { Vec::new() };
        notes.extend(forbidden.map(|why| {
            format!("nothing was measured between live hosts, only counted and simulated: {why}")
        }));
        let mut command = format!("superpacket lab {}", arguments.experiment);
        for (given, option) in [(arguments.quick, " --quick"), (arguments.model, " --model")] {
            command.push_str(if given { option } else { "" });
        }
        for (name, value) in [
            ("rounds", arguments.rounds.map(f64::from)),
            ("seconds", arguments.seconds.map(|time| time.as_secs_f64())),
        ] {
            command.push_str(&value.map(|value| format!(" --{name} {value}")).unwrap_or_default());
        }
        let masks = [&arguments.sender_cpus, &arguments.receiver_cpus, &arguments.bridge_cpus];
        for (name, mask) in ["sender", "receiver", "bridge"].into_iter().zip(masks) {
            command.push_str(
                &mask.as_ref().map(|mask| format!(" --{name}-cpus {mask}")).unwrap_or_default(),
            );
        }
        let plan = RunPlan {
            form: if live { "live" } else { "model" },
            quick: plan.quick,
            rounds: plan.rounds,
            seconds: plan.time.as_secs_f64(),
            planned: if live { planned(&arguments.entries(), plan).as_secs_f64() } else { 0.0 },
            cpus: arguments.cpus(),
            experiments: arguments.entries().iter().map(|entry| entry.name).collect(),
        };
        Self {
            command,
            machine,
            plan,
            experiments: Vec::new(),
            marks: Vec::new(),
            notes,
            failed: Vec::new(),
            interrupted: false,
        }
    }

    fn add(&mut self, found: Experiment) {
        self.marks.extend(found.marks.iter().cloned());
        self.experiments.push(found);
    }

    /// Renders the heading of the full report: the machine, the rounds and the remarks.
    fn heading(&self, width: usize) -> String {
        let how = match self.plan.form {
            "live" => format!(
                "{} rounds of {} s each, variants in turn",
                self.plan.rounds, self.plan.seconds
            ),
            _ => "counted on the model NIC and simulated, the same in every run".to_owned(),
        };
        let mut text = String::new();
        text::paragraph(&self.machine.line(), 0, width, &mut text);
        text::paragraph(&how, 0, width, &mut text);
        for note in &self.notes {
            text::paragraph(note, 0, width, &mut text);
        }
        text.push('\n');
        text
    }
}

/// The paths of the report files to write; `None` for a format that was not requested.
struct OutputFiles {
    json: Option<PathBuf>,
    html: Option<PathBuf>,
    markdown: Option<PathBuf>,
    svg: Option<PathBuf>,
}

impl OutputFiles {
    /// Checks before the run, which takes minutes, that all files can be written.
    fn new(arguments: &LabArguments) -> Result<Self, Failure> {
        let outputs = Self {
            json: arguments.json_file.clone(),
            html: arguments.html.clone(),
            markdown: arguments.markdown.clone(),
            svg: arguments.svg.clone(),
        };
        for (option, path) in [
            ("--json-file", &outputs.json),
            ("--html", &outputs.html),
            ("--markdown", &outputs.markdown),
        ] {
            if let Some(path) = path {
                if is_stream(path) {
                    return Err(Failure::Usage(format!("{option} needs a file")));
                }
                can_write_file(path).map_err(unwritable(path))?;
            }
        }
        if let Some(directory) = &outputs.svg {
            can_write_file(directory.join("lab-.svg")).map_err(unwritable(directory))?;
        }
        Ok(outputs)
    }

    fn write(&self, report: &LabReport) -> Result<(), Failure> {
        if let Some(path) = &self.json {
            let mut text = serde_json::to_vec_pretty(report)
                .map_err(|error| unwritable(path)(error.into()))?;
            text.push(b'\n');
            write_file(path, &text).map_err(unwritable(path))?;
        }
        if let Some(path) = &self.html {
            write_file(path, page::render(report)?.as_bytes()).map_err(unwritable(path))?;
        }
        if let Some(path) = &self.markdown {
            write_file(path, markdown::render(report).as_bytes()).map_err(unwritable(path))?;
        }
        if let Some(directory) = &self.svg {
            for experiment in &report.experiments {
                for (index, found) in plot::charts(&experiment.tables).iter().enumerate() {
                    let path = directory.join(format!("lab-{}-{}.svg", experiment.name, index + 1));
                    let svg = svg_file(&found.chart)?;
                    write_file(&path, svg.as_bytes()).map_err(unwritable(&path))?;
                }
            }
        }
        Ok(())
    }
}

fn unwritable(path: &Path) -> impl FnOnce(io::Error) -> Failure {
    let path = path.to_owned();
    move |source| Failure::Page { path, source }
}

#[cfg(test)]
pub(in crate::lab) mod tests {
    use super::*;
    use superpacket_lab::experiment::{Entry, Form, Side};

    const ENTRY: Entry = Entry {
        name: "lro",
        headline: "what it is worth (somebody, 2007)",
        source: "somebody, 2007",
        summary: "Something.",
        live: |_| Ok(Experiment::new(&ENTRY)),
        measurements: |plan| plan.rounds,
        model: || Ok(Experiment::new(&ENTRY)),
    };

    /// A sample report: one experiment with one table, one missed target, and one target that could
    /// not be measured.
    pub(in crate::lab) fn report() -> LabReport {
        let mut found = Experiment::new(&ENTRY);
        found.tables.push(grid::tests::table());
        found.marks.push(Mark::exact("lro: counts", Form::Model, 1.0, Side::AtLeast, 2.5));
        found.marks.push(Mark::unmeasured("lro: figures", Side::AtMost, 0.84, "no & namespaces"));
        let mut report = LabReport {
            command: "superpacket lab lro".into(),
            machine: Machine::this(),
            plan: RunPlan {
                form: "live",
                quick: false,
                rounds: 10,
                seconds: 1.0,
                planned: 10.0,
                cpus: Cpus::default(),
                experiments: vec!["lro"],
            },
            experiments: Vec::new(),
            marks: Vec::new(),
            notes: Vec::new(),
            failed: vec![FailedExperiment { name: "ack", error: "a <b>".into() }],
            interrupted: false,
        };
        report.add(found);
        report
    }

    #[test]
    fn marks_of_all_experiments_stand_together() -> Result<(), serde_json::Error> {
        let json = serde_json::to_value(report())?;
        assert_eq!(
            (json["marks"].as_array().map(Vec::len), &json["marks"][0]["met"]),
            (Some(2), &serde_json::json!(false))
        );
        assert!(
            json["marks"][1]["met"].is_null() && json["marks"][1]["reason"] == "no & namespaces"
        );
        assert!(
            json["experiments"][0].get("marks").is_none()
                && json["experiments"][0]["rows"].as_array().is_some_and(|rows| rows.len() == 4)
        );
        assert_eq!(json["failed"][0]["name"], "ack");
        Ok(())
    }
}
