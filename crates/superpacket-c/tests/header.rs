//! The header that is checked in is the one that cbindgen makes of the sources.

use std::path::Path;
use std::{env, fs};

#[test]
fn the_header_is_not_stale() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml")).expect("cbindgen.toml can be read");
    let mut made = Vec::new();
    cbindgen::Builder::new().with_crate(here).with_config(config).generate().expect("cbindgen understands the sources").write(&mut made);
    let made = String::from_utf8(made).expect("text");
    let path = here.join("include/superpacket.h");
    if env::var_os("SUPERPACKET_WRITE_HEADER").is_some() {
        fs::write(&path, &made).expect("the header can be written");
    }
    let checked_in = fs::read_to_string(&path).unwrap_or_default();
    if checked_in != made {
        let line = checked_in.lines().zip(made.lines()).take_while(|(left, right)| left == right).count() + 1;
        panic!("include/superpacket.h is stale from line {line} on: SUPERPACKET_WRITE_HEADER=1 cargo test -p superpacket-c --test header");
    }
}
