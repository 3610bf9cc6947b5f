//! superpacket beside its peers: the same frames, the same clock, one CPU, in turn.

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
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use lexopt::prelude::*;

use bench::{Bench, Figure, Figures};
use dpdk::Dpdk;
use rows::{Row, Task, rows};
use table::Table;

const USAGE: &str = "\
usage: superpacket-peers [--dpdk PROGRAM | --no-dpdk WHY] [--only TEXT] [--rounds N] [--compilers TEXT] [--markdown]";

const HEAD: [&str; 8] =
    ["ns a frame or segment, hot / from memory", "packets out", "DPDK", "by reference", "ratio", "tun-rs", "in buffers", "ratio"];

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
            rounds: 51,
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
    let dpdk = arguments.dpdk.as_deref().map(Dpdk::start).transpose()?.map(|dpdk| Rc::new(RefCell::new(dpdk)));
    let (version, absent) = match &dpdk {
        Some(dpdk) => (dpdk.borrow_mut().version()?, "-"),
        None => (format!("no DPDK: {}", arguments.no_dpdk), "not installed"),
    };
    let mut bench = Bench::new(dpdk, arguments.rounds);
    let mut table = Table::new(&HEAD);
    let started = Instant::now();
    for row in rows {
        let figures = bench.row(&row.task).with_context(|| row.name.to_owned())?;
        table.push(fields(&row, &figures, absent));
        eprintln!("{} (at {:.0} s)", row.name, started.elapsed().as_secs_f64());
    }
    let (tun, compilers, rounds) = (tun::version(), arguments.compilers, arguments.rounds);
    println!("{version}; tun-rs {tun}; {compilers}; {}; medians of {rounds} rounds.\n", processor());
    print!("{}", if arguments.markdown { table.to_markdown() } else { table.to_text() });
    Ok(())
}

/// A row of the table; `absent` is what it says of DPDK where that has no figure.
fn fields(row: &Row, figures: &Figures, absent: &str) -> Vec<String> {
    let both = |[hot, memory]: [String; 2]| format!("{hot} / {memory}");
    let figure =
        |figure: Option<Figure>, none: &str| figure.map_or(none.to_owned(), |figure| both(figure.map(|time| format!("{time:.1}"))));
    let times = |ratio: f64| if ratio < 0.1 { format!("{ratio:.3}x") } else { format!("{ratio:.2}x") };
    let ratio = |ours: Option<Figure>, theirs: Option<Figure>| match (ours, theirs) {
        (Some(ours), Some(theirs)) => both([0, 1].map(|place| times(ours[place] / theirs[place]))),
        _ => "-".to_owned(),
    };
    let frames = match &row.task {
        Task::Join(join) => join.frames.len(),
        Task::Gather(_) | Task::Copy(_) => 1,
    };
    let no_dpdk = if matches!(row.task, Task::Copy(_)) { "-" } else { absent };
    vec![
        row.name.to_owned(),
        format!("{} of {frames}", figures.out),
        figure(figures.dpdk, no_dpdk),
        figure(figures.by_reference, "-"),
        ratio(figures.by_reference, figures.dpdk),
        figure(figures.tun, "-"),
        figure(figures.in_buffers, "-"),
        ratio(figures.in_buffers, figures.tun),
    ]
}

/// What the system calls the processor.
fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let value = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(key, _)| key.trim() == name).map_or("?", |(_, value)| value.trim()).to_owned()
    };
    format!("{}, family {}", value("model name"), value("cpu family"))
}
