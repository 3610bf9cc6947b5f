//! Instructions a frame, counted by callgrind, which do not jitter.
//!
//! A row's polls are counted twice, the second time twice as many: the difference is what so many
//! polls take, without what happens once. valgrind knows no AVX-512, so what is counted is the AVX2
//! level.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::rows::{Frames, Row, rows};

/// Frames that a row counts, at least.
const COUNTED: usize = 2_000;

/// A row's name and its instructions a frame.
pub type Count = (String, f64);

/// Counts the rows of `program`, which is this program or one of another profile.
///
/// # Errors
/// If valgrind is not there, or does not say what it should.
pub fn count(program: &Path, only: &str) -> Result<Vec<Count>> {
    let folder = tempfile::tempdir()?;
    let output = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--quiet",
            "--zero-before=superpacket_outside::instructions::polls",
        ])
        .arg("--dump-after=superpacket_outside::instructions::polls")
        .arg(format!("--callgrind-out-file={}", folder.path().join("dump").display()))
        .arg(program)
        .args(["count-here", "--only", only])
        .output()
        .context("cannot run valgrind")?;
    ensure!(output.status.success(), "valgrind: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let counted = text.lines().enumerate().map(|(number, line)| {
        let (name, frames) = line.split_once('\t').context("a row and a number")?;
        let dump =
            |which: usize| total(&folder.path().join(format!("dump.{}", 2 * number + which)));
        let (once, twice) = (dump(1)?, dump(2)?);
        ensure!(twice > once, "{name}: {twice} instructions for twice as many polls as {once}");
        Ok((name.to_owned(), (twice - once) / frames.parse::<f64>()?))
    });
    counted.collect()
}

/// What callgrind runs: prints each row and how many frames it counted.
pub fn count_here(only: &str) {
    let frames = Frames::new(0);
    for mut row in rows(&frames, only) {
        // A few polls, until all that is allocated once is.
        let (mut warm, mut units) = (0, 0);
        while warm < 4 || units < COUNTED {
            units += (row.poll)();
            warm += 1;
        }
        let counted = polls(&mut row, warm);
        polls(&mut row, 2 * warm);
        println!("{}\t{counted}", row.name);
    }
}

/// What is counted; callgrind finds it by its name.
#[inline(never)]
fn polls(row: &mut Row<'_>, count: usize) -> usize {
    (0..count).map(|_| (row.poll)()).sum()
}

/// The instructions of a dump.
fn total(dump: &Path) -> Result<f64> {
    let text = fs::read_to_string(dump).with_context(|| format!("no dump {}", dump.display()))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("totals: ").or_else(|| line.strip_prefix("summary: ")));
    Ok(line.with_context(|| format!("{}: no total", dump.display()))?.trim().parse()?)
}
