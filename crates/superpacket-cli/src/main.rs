//! The `superpacket` program: aggregates, segments, verifies and analyzes packet captures, and
//! bridges live ports.
//!
//! Each command is a module with a `run` function. The capture commands are implemented in the
//! crate `superpacket-captures`; `captures` translates their arguments and prints their results by
//! [`report`]. `extcap` lets Wireshark capture through them. `live` holds the commands that run and
//! control a bridge, `lab` the experiments, and `load` the load generator alone. These three exist
//! on Linux only.

#![forbid(unsafe_code)]

mod amount;
mod arguments;
mod captures;
#[cfg(target_os = "linux")]
mod cpus;
mod extcap;
mod failure;
mod generate;
#[cfg(target_os = "linux")]
mod lab;
#[cfg(target_os = "linux")]
mod live;
#[cfg(target_os = "linux")]
mod load;
mod man;
mod progress;
mod report;
mod signals;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use arguments::{Arguments, Command, SignalHandling};
use failure::Failure;
use superpacket_captures::Verdict;

/// How a command that did not fail with an error has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommandOutcome {
    /// The command did its work, and a check found no fault.
    Done,
    /// The command did its work, but a check or a part of the work failed.
    Failed,
    /// The check found no fault, but could not judge every packet.
    Incomplete,
    /// A signal ended the command.
    #[cfg(target_os = "linux")]
    Interrupted,
}

/// Exit code that shells report for a process ended by SIGINT: 128 + 2.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let command = match Arguments::try_parse() {
        Ok(arguments) => arguments.command,
        Err(error) => match error.render().to_string().strip_prefix("error: ") {
            Some(text) => return fail(text.trim_end()),
            // The help or the version.
            None => error.exit(),
        },
    };
    // If a run is interrupted, this removes unfinished files. Without it, an existing output file
    // would still be left unchanged.
    let _ = match command.signal_handling() {
        SignalHandling::EndsInput => signals::end_input(),
        SignalHandling::EndsProgram => signals::end_program(),
        SignalHandling::Own => Ok(()),
    };
    match run(command) {
        Ok(CommandOutcome::Done) => ExitCode::SUCCESS,
        Ok(CommandOutcome::Failed) => ExitCode::from(1),
        Ok(CommandOutcome::Incomplete) => ExitCode::from(3),
        #[cfg(target_os = "linux")]
        Ok(CommandOutcome::Interrupted) => ExitCode::from(INTERRUPTED),
        Err(Failure::Interrupted) => ExitCode::from(signals::interrupted()),
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => fail(&report::printable(&failure.to_string())),
    }
}

/// Prints an error, and returns the exit code for it.
fn fail(error: &str) -> ExitCode {
    // If this write to standard error fails, that cannot be reported anywhere.
    let _ = writeln!(std::io::stderr(), "superpacket: {error}");
    ExitCode::from(2)
}

fn run(command: Command) -> Result<CommandOutcome, Failure> {
    match command {
        Command::Coalesce(arguments) => captures::coalesce::run(&arguments)?,
        Command::Segment(arguments) => captures::segment::run(&arguments)?,
        Command::Verify(arguments) => {
            if !captures::verify::run(&arguments)? {
                return Ok(CommandOutcome::Failed);
            }
        }
        Command::Check(arguments) => {
            return Ok(match captures::check::run(&arguments)? {
                Verdict::Faithful => CommandOutcome::Done,
                Verdict::Unfaithful => CommandOutcome::Failed,
                // `Verdict` is non-exhaustive. A result that this version does not know is not a
                // success.
                _ => CommandOutcome::Incomplete,
            });
        }
        Command::Generate(arguments) => generate::run(&arguments)?,
        Command::Analyze(arguments) => captures::analyze::run(&arguments)?,
        Command::Steer(arguments) => captures::steer::run(&arguments)?,
        Command::Extcap(arguments) => extcap::run(&arguments)?,
        #[cfg(target_os = "linux")]
        Command::Lab(arguments) => return lab::run(&arguments),
        #[cfg(target_os = "linux")]
        Command::Load(arguments) => return load::run(&arguments),
        #[cfg(target_os = "linux")]
        Command::Live(command) => live::run(command)?,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "superpacket", &mut script);
            report::print(&String::from_utf8_lossy(&script), false)?;
        }
        Command::Man { command } => report::print(&man(command.as_deref())?, false)?,
    }
    Ok(CommandOutcome::Done)
}

/// Returns the man page of the program, or of one command, in roff.
fn man(name: Option<&str>) -> Result<String, Failure> {
    let mut program = Arguments::command();
    program.build();
    let (command, title) = match name {
        None => (program, None),
        Some(name) => {
            let command = program
                .find_subcommand(name)
                .ok_or_else(|| Failure::Usage(format!("there is no command {name:?}")))?;
            (command.clone(), Some(format!("superpacket-{name}")))
        }
    };
    Ok(man::page(command, title)?)
}
