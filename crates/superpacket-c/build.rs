//! Build script. On Linux, it gives the shared library a soname, as cargo-c does, and gives its
//! symbols versions if cargo-c builds it.
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
    if !is("CARGO_CFG_TARGET_OS", "linux") {
        return;
    }
    if env::var_os("CARGO_FEATURE_CAPI").is_none() {
        // The library's name without cargo-c differs from the one that programs look for.
        let [major, minor] = ["CARGO_PKG_VERSION_MAJOR", "CARGO_PKG_VERSION_MINOR"]
            .map(|name| env::var(name).expect("cargo sets it"));
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsuperpacket.so.{major}.{minor}");
        return;
    }
    if env::var("HOST") != env::var("TARGET") {
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
