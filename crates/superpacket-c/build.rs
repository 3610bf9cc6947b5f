//! Gives the shared library's symbols versions, if cargo-c builds it for Linux.
//!
//! rustc passes its own version script, without a version name, to the linker, and linkers accept
//! no second one. gcc's `-wrapper` option runs `one-version-script` instead of the linker driver,
//! which removes rustc's script.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=superpacket.map");
    println!("cargo:rerun-if-changed=one-version-script");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    let built_by_cargo_c = env::var_os("CARGO_FEATURE_CAPI").is_some();
    if !built_by_cargo_c
        || !is("CARGO_CFG_TARGET_OS", "linux")
        || env::var("HOST") != env::var("TARGET")
    {
        return;
    }
    let takes_wrapper =
        Command::new("cc").args(["-wrapper", "env", "-E", "-x", "c", "/dev/null"]).output();
    if !takes_wrapper.is_ok_and(|output| output.status.success()) {
        println!(
            "cargo:warning=cc takes no -wrapper, as gcc does: the symbols of the shared library have no versions"
        );
        return;
    }
    let here = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo:rustc-cdylib-link-arg=-wrapper");
    println!("cargo:rustc-cdylib-link-arg=sh,{here}/one-version-script");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={here}/superpacket.map");
}
