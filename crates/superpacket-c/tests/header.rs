//! Tests that the header in the repository is the one that cbindgen generates from the sources.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn path() -> PathBuf {
    here().join("include/superpacket.h")
}

/// Returns the header that cbindgen generates.
fn made() -> String {
    let config = cbindgen::Config::from_file(here().join("cbindgen.toml"))
        .expect("cbindgen.toml can be read");
    let mut made = Vec::new();
    cbindgen::Builder::new()
        .with_crate(here())
        .with_config(config)
        .generate()
        .expect("cbindgen understands the sources")
        .write(&mut made);
    String::from_utf8(made).expect("text")
}

#[test]
fn the_header_is_not_stale() {
    let made = made();
    if env::var_os("SUPERPACKET_WRITE_HEADER").is_some() {
        fs::write(path(), &made).expect("the header can be written");
    }
    let checked_in = fs::read_to_string(path()).unwrap_or_default();
    if checked_in != made {
        let line =
            checked_in.lines().zip(made.lines()).take_while(|(left, right)| left == right).count()
                + 1;
        panic!(
            "include/superpacket.h is stale from line {line} on: SUPERPACKET_WRITE_HEADER=1 cargo test -p superpacket-c --test header"
        );
    }
}

/// doxygen accepts `\note` in the middle of a line too, but readers of the header would miss it.
#[test]
fn each_command_begins_its_line() {
    let mut commands = 0;
    for line in made().lines() {
        let comment = line.trim_start().trim_start_matches('*').trim_start();
        commands += usize::from(comment.starts_with('\\'));
        assert!(
            !comment.get(1..).is_some_and(|rest| rest.contains('\\')),
            "a command in the middle of {line:?}"
        );
    }
    assert!(commands > 100, "{commands} commands");
}
