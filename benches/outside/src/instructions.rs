//! Instructions per frame, counted by callgrind, which does not jitter.
//!
//! Each row is counted twice, the second time with twice as many polls. The difference is the cost
//! of the polls without one-time work. valgrind does not support AVX-512, so the AVX2 code is
//! counted.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::rows::{Frames, Row, rows};

/// Minimum number of frames counted per row.
const COUNTED: usize = 2_000;

/// The name of a row, and its instructions per frame.
pub type Count = (String, f64);

/// Counts the rows of `program`, which is this program, perhaps built with another profile.
///
/// # Errors
/// If valgrind is missing, or its output cannot be parsed.
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

/// Runs under callgrind: prints each row and its number of counted frames.
pub fn count_here(only: &str) {
    let frames = Frames::new(0);
    for mut row in rows(&frames, only) {
        // A few polls, after which all memory is allocated.
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

/// The counted function; callgrind finds it by its name.
#[inline(never)]
fn polls(row: &mut Row<'_>, count: usize) -> usize {
    (0..count).map(|_| (row.poll)()).sum()
}

/// Returns the total number of instructions in a dump.
fn total(dump: &Path) -> Result<f64> {
    let text = fs::read_to_string(dump).with_context(|| format!("no dump {}", dump.display()))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("totals: ").or_else(|| line.strip_prefix("summary: ")));
    Ok(line.with_context(|| format!("{}: no total", dump.display()))?.trim().parse()?)
}
