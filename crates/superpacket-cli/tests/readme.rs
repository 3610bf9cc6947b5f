//! The README's walk to a running bridge does what it says.
#![cfg(target_os = "linux")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// The commands after the word `unshare -Urn bash`, which begins them.
fn walk() -> String {
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md")).expect("it is there");
    let (_, after) = readme.split_once("```sh\nunshare -Urn bash\n").expect("the walk begins so");
    after.split_once("```").expect("and ends").0.to_owned()
}

#[test]
fn the_walk_ends_with_super_packets_between_two_hosts() {
    // Root needs no user namespace, which may be forbidden.
    let flags = if rustix::process::geteuid().is_root() { "-n" } else { "-Urn" };
    let probe = Command::new("unshare").args([flags, "true"]).stderr(Stdio::null()).status().expect("util-linux is there");
    if !probe.success() {
        assert!(std::env::var_os("CI").is_none(), "no network namespace can be had");
        eprintln!("SKIPPED: no network namespace can be had");
        return;
    }
    let directory = std::env::temp_dir().join(format!("superpacket-readme-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("made");
    let files = directory.to_str().expect("a plain path");
    let walk = walk();
    // What looks at it on a terminal asks for numbers here, and a second does for a minute.
    let top = "superpacket top --control /tmp/bridge.sock\n";
    assert!(walk.contains(top) && walk.contains("--time 60s"), "{walk}");
    let script = walk.replace("--time 60s", "--time 2s").replace(top, "wait $!\nsuperpacket stats --json --control /tmp/bridge.sock\n");
    let script = script.replace("/tmp/", &format!("{files}/"));
    // As the walk's shell ends: with all that it started, and its namespaces.
    let script = format!("trap 'kill $(jobs -p)' EXIT\n{script}");
    let program = Path::new(env!("CARGO_BIN_EXE_superpacket")).parent().expect("a directory");
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("timeout");
    shell
        .args(["60", "unshare", flags, "bash", "-s"])
        .env("PATH", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut shell = shell.spawn().expect("starts");
    shell.stdin.take().expect("a pipe").write_all(script.as_bytes()).expect("taken");
    let output = shell.wait_with_output().expect("ends");
    let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap_or_default();
    let (load, log) = (read("load.txt"), read("bridge.log"));
    std::fs::remove_dir_all(&directory).expect("removed");
    let said = String::from_utf8_lossy(&output.stderr);
    let stats: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}; {log}"));
    let of = |port: usize, counter: &str| stats[port][counter].as_u64().unwrap_or_else(|| panic!("{counter}: {stats}"));
    assert!(load.starts_with("TCP_STREAM, 1 connection\n"), "{load}{said}");
    assert!(of(0, "rx_super_packets") > 100 && of(1, "tx_super_packets") > 100, "{stats}");
    assert!(of(1, "tx_super_segments") > 10 * of(1, "tx_super_packets"), "{stats}");
    assert!(said.is_empty(), "nothing of it is refused: {said}");
}
