//! Prints how the public API of a crate changed between two of rustdoc's JSON files.
//!
//! Usage: `public-api-diff OLD NEW`. The exit status is 1 if an item was removed or changed.

use std::process::ExitCode;

use public_api::diff::PublicApiDiff;
use public_api::{Builder, PublicApi};

fn read(json: &str) -> Result<PublicApi, String> {
    let builder = Builder::from_rustdoc_json(json).omit_blanket_impls(true);
    builder.omit_auto_trait_impls(true).build().map_err(|error| format!("{json}: {error}"))
}

fn main() -> Result<ExitCode, String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [old, new] = &arguments[..] else {
        return Err("usage: public-api-diff OLD NEW".to_owned());
    };
    let diff = PublicApiDiff::between(read(old)?, read(new)?);
    for item in &diff.removed {
        println!("removed: {item}");
    }
    for item in &diff.changed {
        println!("changed: {}\n     to: {}", item.old, item.new);
    }
    for item in &diff.added {
        println!("added:   {item}");
    }
    Ok(ExitCode::from(u8::from(!diff.removed.is_empty() || !diff.changed.is_empty())))
}
