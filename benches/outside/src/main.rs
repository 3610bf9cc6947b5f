//! Measures superpacket from a separate crate, as in a user's build: times and instruction counts
//! of its rows.

mod clock;
mod engine;
mod instructions;
mod rows;
mod table;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use lexopt::prelude::*;

use rows::{Frames, rows};
use table::Table;

const USAGE: &str = "\
usage: superpacket-outside time [--rounds N]                         nanoseconds a frame of each row
       superpacket-outside compare [--processes N] NAME=PROGRAM...   those of this program in several profiles, in turn
       superpacket-outside count NAME=PROGRAM...                     instructions a frame of each row, under valgrind
       superpacket-outside check BASELINE NAME=PROGRAM...            the same, and fails where they are 5 % more than known
       --only TEXT                                                   rows whose name contains this text
       --memory                                                      each frame from memory, not from the caches
       --worst                                                       of compare: those of the slowest process, not lower quartiles
       --markdown                                                    the table of compare in Markdown";

/// The growth of a row's instruction count up to which a comparison passes.
const ALLOWED: f64 = 1.05;

/// A build of this program.
struct Program {
    profile: String,
    path: PathBuf,
}

struct Arguments {
    values: Vec<String>,
    only: String,
    rounds: usize,
    processes: usize,
    memory: bool,
    worst: bool,
    markdown: bool,
}

impl Arguments {
    fn parse() -> Result<Self> {
        let mut read = Arguments {
            values: Vec::new(),
            only: String::new(),
            rounds: 100,
            processes: 21,
            memory: false,
            worst: false,
            markdown: false,
        };
        let mut arguments = lexopt::Parser::from_env();
        while let Some(argument) = arguments.next()? {
            match argument {
                Long("only") => read.only = arguments.value()?.string()?,
                Long("rounds") => read.rounds = arguments.value()?.parse()?,
                Long("memory") => read.memory = true,
                Long("worst") => read.worst = true,
                Long("markdown") => read.markdown = true,
                Long("processes") => read.processes = arguments.value()?.parse()?,
                Value(value) => read.values.push(value.string()?),
                _ => return Err(argument.unexpected().into()),
            }
        }
        ensure!(read.rounds > 0 && read.processes > 0, "at least 1 round and 1 process");
        Ok(read)
    }
}

fn programs(values: &[String]) -> Result<Vec<Program>> {
    ensure!(!values.is_empty(), USAGE);
    let program = |value: &String| {
        let (profile, path) =
            value.split_once('=').with_context(|| format!("{value}: expected NAME=PROGRAM"))?;
        Ok(Program { profile: profile.to_owned(), path: path.into() })
    };
    values.iter().map(program).collect()
}

fn main() -> Result<()> {
    let arguments = Arguments::parse()?;
    let values: Vec<_> = arguments.values.iter().map(String::as_str).collect();
    match *values.as_slice() {
        ["time"] => {
            let frames = Frames::new(if arguments.memory { clock::MEMORY } else { 0 });
            let mut rows = rows(&frames, &arguments.only);
            let times = match arguments.memory {
                true => clock::measure_from_memory(&mut rows, arguments.rounds.min(3)),
                false => clock::measure(&mut rows, arguments.rounds),
            };
            for (row, time) in rows.iter().zip(times) {
                println!("{}\t{time:.2}", row.name);
            }
        }
        ["compare", ..] => {
            show(&compare(&programs(&arguments.values[1..])?, &arguments)?, &arguments)
        }
        ["count", ..] => {
            print!("{}", count(&programs(&arguments.values[1..])?, &arguments.only)?.to_tsv())
        }
        ["check", baseline, ..] => {
            check(Path::new(baseline), &programs(&arguments.values[2..])?, &arguments.only)?
        }
        ["count-here"] => instructions::count_here(&arguments.only),
        _ => bail!(USAGE),
    }
    Ok(())
}

fn show(table: &Table, arguments: &Arguments) {
    print!("{}", if arguments.markdown { table.to_markdown() } else { table.to_text() });
}

/// Returns the lower quartiles over many processes of each program, in turn, or the maxima if
/// requested. Other load on the machine can slow down whole processes, at times half of them, but
/// never speeds one up.
fn compare(programs: &[Program], arguments: &Arguments) -> Result<Table> {
    let mut times: Vec<Vec<(String, Vec<f64>)>> = vec![Vec::new(); programs.len()];
    for _ in 0..arguments.processes {
        for (program, times) in programs.iter().zip(&mut times) {
            let output = Command::new(&program.path)
                .args(["time", "--rounds", "20", "--only", &arguments.only])
                .args(arguments.memory.then_some("--memory"))
                .output()
                .with_context(|| program.path.display().to_string())?;
            ensure!(
                output.status.success(),
                "{}: {}",
                program.path.display(),
                String::from_utf8_lossy(&output.stderr)
            );
            for (number, line) in String::from_utf8(output.stdout)?.lines().enumerate() {
                let (name, time) = line.split_once('\t').context("a row and a number")?;
                if number == times.len() {
                    times.push((name.to_owned(), Vec::new()));
                }
                times[number].1.push(time.parse()?);
            }
        }
    }
    let shown = if arguments.worst { clock::worst } else { clock::lower_quartile };
    let mut table = Table::default();
    for (program, times) in programs.iter().zip(times) {
        table.push(
            &program.profile,
            times.into_iter().map(|(name, times)| (name, shown(times))).collect(),
        )?;
    }
    Ok(table)
}

fn count(programs: &[Program], only: &str) -> Result<Table> {
    let mut table = Table::default();
    for program in programs {
        table.push(&program.profile, instructions::count(&program.path, only)?)?;
    }
    Ok(table)
}

fn check(baseline: &Path, programs: &[Program], only: &str) -> Result<()> {
    let now = count(programs, only)?;
    let exceeded = Table::read(baseline)?.exceeded(&now, ALLOWED)?;
    print!("{}", now.to_text());
    let rows = exceeded.join("\n");
    ensure!(
        exceeded.is_empty(),
        "more instructions than {} allows, which another compiler or C library may also need:\n{rows}",
        baseline.display()
    );
    Ok(())
}
