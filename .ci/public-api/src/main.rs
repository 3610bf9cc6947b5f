//! Compares the public API of a crate, by rustdoc's JSON, with the listing that is checked in.
//!
//! Usage: `public-api-listing [--write] LISTING JSON`. Ends with 1 if they differ, unless the
//! listing is to be written.

use std::collections::HashSet;
use std::error::Error;
use std::process::ExitCode;
use std::{env, fs};

use public_api::{Builder, PublicApi};

/// Traits of the compiler's own, which nobody names, and whose impls come and go with its versions.
const INTERNAL: [&str; 5] = ["Freeze", "StructuralPartialEq", "Unpin", "UnsafeUnpin", "UnwindSafe"];

/// Lists the public items of a crate, a line each: without what every type has, and with one line
/// for a derived impl.
fn listing(json: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let items = |derived: bool| -> Result<PublicApi, public_api::Error> {
        let builder = Builder::from_rustdoc_json(json).omit_blanket_impls(true);
        builder.omit_auto_trait_impls(!derived).omit_auto_derived_impls(!derived).build()
    };
    let written: HashSet<String> = items(false)?.items().map(ToString::to_string).collect();
    let is_internal =
        |line: &str| INTERNAL.iter().any(|name| line.contains(&format!("{name} for ")));
    let all = items(true)?;
    let lines = all.items().map(ToString::to_string);
    Ok(lines
        .filter(|line| written.contains(line) || (line.starts_with("impl") && !is_internal(line)))
        .collect())
}

/// Returns the lines that are in one listing and not in the other.
fn missing<'a>(from: &'a [String], there: &[String]) -> Vec<&'a String> {
    let there: HashSet<&String> = there.iter().collect();
    from.iter().filter(|line| !there.contains(line)).collect()
}

fn run() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments: Vec<String> = env::args().skip(1).collect();
    let write = arguments.first().is_some_and(|first| first == "--write");
    arguments.drain(..usize::from(write));
    let [path, json] = &arguments[..] else {
        return Err("usage: public-api-listing [--write] LISTING JSON".into());
    };
    let now = listing(json).map_err(|error| format!("{json}: {error}"))?;
    let recorded = fs::read_to_string(path).unwrap_or_default();
    let recorded: Vec<String> = recorded.lines().map(str::to_owned).collect();
    let (gone, added) = (missing(&recorded, &now), missing(&now, &recorded));
    for (mark, lines) in [('-', &gone), ('+', &added)] {
        lines.iter().for_each(|line| println!("{mark} {line}"));
    }
    if write {
        fs::write(path, now.join("\n") + "\n").map_err(|error| format!("{path}: {error}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    if !gone.is_empty() {
        println!(
            "{path}: {} items are gone or have changed, which breaks whoever uses them",
            gone.len()
        );
    }
    if !added.is_empty() {
        println!("{path}: {} items are new", added.len());
    }
    Ok(if gone.is_empty() && added.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::from(2)
    })
}
