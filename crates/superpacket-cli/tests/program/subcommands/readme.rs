//! The commands in the READMEs work: the walk-through to a running bridge, and the commands for
//! captures.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Returns the commands of the walk-through, after its first line `unshare -Urn bash`.
fn walk() -> String {
    let readme =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md"))
            .expect("it is there");
    let (_, after) = readme.split_once("```sh\nunshare -Urn bash\n").expect("the walk begins so");
    after.split_once("```").expect("and ends").0.to_owned()
}

/// Runs the walk-through in namespaces created by `unshare` with these flags, as user 65534
/// (nobody) if `nobody`.
fn walk_as(flags: &str, nobody: bool) {
    let user: &[&str] =
        if nobody { &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] } else { &[] };
    let command = |words: &[&str]| {
        let words = [user, words].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command
    };
    let probe = command(&["unshare", flags, "true"]).stderr(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        // Root may always create namespaces; other users only if the system allows user namespaces.
        assert!(nobody || std::env::var_os("CI").is_none(), "no network namespace can be had");
        eprintln!("SKIPPED: no network namespace can be had with unshare {flags}");
        return;
    }
    // A separate directory, in which another user can write, and run the program wherever it was
    // built.
    let directory =
        std::env::temp_dir().join(format!("superpacket-readme-{}-{nobody}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("made");
    std::fs::set_permissions(&directory, Permissions::from_mode(0o777)).expect("set");
    std::fs::copy(env!("CARGO_BIN_EXE_superpacket"), directory.join("superpacket"))
        .expect("copied");
    let files = directory.to_str().expect("a plain path");
    let walk = walk();
    // `top`, which needs a terminal, is replaced by `stats`, and a minute of load by two seconds.
    let top = "superpacket top --control /tmp/bridge.sock\n";
    assert!(walk.contains(top) && walk.contains("--time 60s"), "{walk}");
    let script = walk
        .replace("--time 60s", "--time 2s")
        .replace(top, "wait $!\nsuperpacket stats --json --control /tmp/bridge.sock\n");
    let script = script.replace("/tmp/", &format!("{files}/"));
    // Like the end of the walk-through's shell: all processes that it started end, and its
    // namespaces too.
    let script = format!("trap 'kill $(jobs -p)' EXIT\n{script}");
    let path = format!("{files}:{}", std::env::var("PATH").unwrap_or_default());
    let mut shell = command(&["timeout", "60", "unshare", flags, "bash", "-s"]);
    shell.env("PATH", path).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut shell = shell.spawn().expect("starts");
    shell.stdin.take().expect("a pipe").write_all(script.as_bytes()).expect("taken");
    let output = shell.wait_with_output().expect("ends");
    let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap_or_default();
    let (load, log) = (read("load.txt"), read("bridge.log"));
    std::fs::remove_dir_all(&directory).expect("removed");
    let said = String::from_utf8_lossy(&output.stderr);
    let stats: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {said}; {log}"));
    let of = |port: usize, counter: &str| {
        stats[port][counter].as_u64().unwrap_or_else(|| panic!("{counter}: {stats}"))
    };
    assert!(load.starts_with("TCP_STREAM, 1 connection\n"), "{load}{said}");
    assert!(of(0, "rx_super_packets") > 100 && of(1, "tx_super_packets") > 100, "{stats}");
    assert!(of(1, "tx_super_segments") > 10 * of(1, "tx_super_packets"), "{stats}");
    assert!(said.is_empty(), "nothing of it is refused: {said}");
}

#[test]
fn the_walk_through_ends_with_super_packets_between_two_hosts() {
    // Root needs no user namespace, which may be forbidden.
    walk_as(if rustix::process::geteuid().is_root() { "-n" } else { "-Urn" }, false);
}

#[test]
fn every_user_can_follow_the_walk_through_with_user_namespaces() {
    if rustix::process::geteuid().is_root() {
        walk_as("-Urn", true);
    }
}

#[test]
fn the_commands_of_the_crate_s_readme_run() {
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md"))
        .expect("it is there");
    let (_, after) = readme.split_once("```sh\n").expect("there are commands");
    let (commands, _) = after.split_once("```").expect("and they end");
    assert!(
        commands.lines().count() >= 6
            && commands.lines().all(|line| line.starts_with("superpacket ")),
        "{commands}"
    );
    let directory = tempfile::tempdir().expect("made");
    let programs =
        Path::new(env!("CARGO_BIN_EXE_superpacket")).parent().expect("it lies in a directory");
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let run = Command::new("sh")
        .args(["-e", "-c", commands])
        .current_dir(&directory)
        .env("PATH", path)
        .output()
        .expect("starts");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    for file in ["in.pcap", "large.pcap", "small.pcap"] {
        assert!(
            std::fs::metadata(directory.path().join(file)).is_ok_and(|file| file.len() > 1_000_000),
            "{file}"
        );
    }
}
