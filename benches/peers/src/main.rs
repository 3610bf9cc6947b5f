//! Compares superpacket with its peers: the same frames and clock, on one CPU, in turn.

mod agree;
mod bench;
mod clock;
mod dpdk;
mod frame_file;
mod ours;
mod rows;
mod table;
mod tun;

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use lexopt::prelude::*;

use bench::{Bench, RowTimes};
use clock::median;
use dpdk::Dpdk;
use rows::{Row, Task, rows};
use table::Table;

const USAGE: &str = "\
usage: superpacket-peers [--dpdk PROGRAM | --no-dpdk WHY] [--only TEXT] [--rounds N] [--compilers TEXT] [--markdown]";

const HEAD: [&str; 8] = [
    "ns a frame or segment, hot / from memory",
    "packets",
    "DPDK",
    "superpacket, by reference",
    "ratio",
    "tun-rs",
    "superpacket, in buffers",
    "ratio",
];

/// Passes over all rows, each in other memory and with another DPDK process: results depend on the
/// process's pages and on other load.
const PASSES: usize = 5;

/// Nanoseconds per frame or segment, with data in the caches and from memory.
type Figure = [f64; 2];

struct Arguments {
    dpdk: Option<PathBuf>,
    no_dpdk: String,
    only: String,
    rounds: usize,
    compilers: String,
    markdown: bool,
}

impl Arguments {
    fn parse() -> Result<Self> {
        let mut read = Arguments {
            dpdk: None,
            no_dpdk: "no program was given".to_owned(),
            only: String::new(),
            rounds: 100,
            compilers: "compilers not named".to_owned(),
            markdown: false,
        };
        let mut arguments = lexopt::Parser::from_env();
        while let Some(argument) = arguments.next()? {
            match argument {
                Long("dpdk") => read.dpdk = Some(arguments.value()?.into()),
                Long("no-dpdk") => read.no_dpdk = arguments.value()?.string()?,
                Long("only") => read.only = arguments.value()?.string()?,
                Long("rounds") => read.rounds = arguments.value()?.parse()?,
                Long("compilers") => read.compilers = arguments.value()?.string()?,
                Long("markdown") => read.markdown = true,
                _ => return Err(anyhow::Error::from(argument.unexpected()).context(USAGE)),
            }
        }
        ensure!(read.rounds > 0, "--rounds 0: at least 1 round");
        Ok(read)
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse()?;
    let rows = rows(&arguments.only);
    ensure!(!rows.is_empty(), "--only {}: no row's name contains this", arguments.only);
    let mut version = format!("no DPDK: {}", arguments.no_dpdk);
    let mut measured: Vec<RowTimes> = Vec::new();
    let passes = arguments.rounds.min(PASSES);
    let rounds = arguments.rounds.div_ceil(passes);
    for pass in 0..passes {
        let dpdk = arguments
            .dpdk
            .as_deref()
            .map(Dpdk::start)
            .transpose()?
            .map(|dpdk| Rc::new(RefCell::new(dpdk)));
        if let Some(dpdk) = &dpdk {
            version = dpdk.borrow_mut().version()?;
        }
        let mut bench = Bench::new(dpdk, rounds);
        for (number, row) in rows.iter().enumerate() {
            eprintln!("pass {} of {passes}: {}", pass + 1, row.name);
            let now = bench.row(&row.task).with_context(|| row.name.to_owned())?;
            match measured.get_mut(number) {
                Some(before) => before.extend(now),
                None => measured.push(now),
            }
        }
    }
    let mut table = Table::new(&HEAD);
    let absent = if arguments.dpdk.is_some() { "-" } else { "not installed" };
    for (row, measured) in rows.iter().zip(measured) {
        table.push(fields(row, measured, absent));
    }
    let (tun, compilers) = (tun::version(), arguments.compilers);
    println!(
        "{version}; tun-rs {tun}; {compilers}; {}; medians of {} rounds.\n",
        processor(),
        passes * rounds
    );
    print!("{}", if arguments.markdown { table.to_markdown() } else { table.to_text() });
    Ok(())
}

/// Returns a row of the table; `absent` stands in DPDK's columns if it has no figure.
fn fields(row: &Row, measured: RowTimes, absent: &str) -> Vec<String> {
    let RowTimes { out, sides } = measured;
    let [dpdk, by_reference, tun, in_buffers] =
        sides.map(|times| times.map(|times| times.map(median)));
    let both = |[hot, memory]: [String; 2]| format!("{hot} / {memory}");
    let figure = |figure: Option<Figure>, none: &str| {
        figure.map_or(none.to_owned(), |figure| both(figure.map(|time| format!("{time:.1}"))))
    };
    let times =
        |ratio: f64| if ratio < 0.1 { format!("{ratio:.3}x") } else { format!("{ratio:.2}x") };
    let ratio = |ours: Option<Figure>, theirs: Option<Figure>| match (ours, theirs) {
        (Some(ours), Some(theirs)) => both([0, 1].map(|place| times(ours[place] / theirs[place]))),
        _ => "-".to_owned(),
    };
    let (frames, absent) = match &row.task {
        Task::Join(join) => (join.frames.len(), absent),
        Task::Gather(_) => (1, absent),
        // DPDK does not support this.
        Task::Copy(_) => (1, "-"),
    };
    vec![
        row.name.to_owned(),
        format!("{frames} into {out}"),
        figure(dpdk, absent),
        figure(by_reference, "-"),
        ratio(by_reference, dpdk),
        figure(tun, "-"),
        figure(in_buffers, "-"),
        ratio(in_buffers, tun),
    ]
}

/// Returns the system's name of the processor.
fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let value = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(key, _)| key.trim() == name).map_or("?", |(_, value)| value.trim()).to_owned()
    };
    format!("{}, family {}", value("model name"), value("cpu family"))
}
