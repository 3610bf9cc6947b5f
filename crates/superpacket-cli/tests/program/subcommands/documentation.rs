//! The commands of the README and of the pages work, and print what the pages show.

use std::collections::HashMap;
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Returns the project's folder.
fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("it is there")
}

/// Returns the contents of a page's blocks of this language, in order.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let text = std::fs::read_to_string(project().join(page)).expect("it is there");
    let mut blocks = Vec::new();
    let mut rest = text.as_str();
    while let Some((_, after)) = rest.split_once("\n```") {
        let (first, after) = after.split_once('\n').expect("a block has lines");
        let (block, after) = after.split_once("```").expect("a block ends");
        if first == language {
            blocks.push(block.to_owned());
        }
        rest = after;
    }
    blocks
}

/// Returns `PATH` with the program's folder first.
fn path_with_program() -> String {
    let programs = Path::new(env!("CARGO_BIN_EXE_superpacket")).parent().expect("a folder");
    format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default())
}

/// Runs a script in this folder, in which `/tmp` is replaced by `directory`.
fn run_in(folder: &Path, directory: &Path, script: &str) -> Output {
    let script = script.replace("/tmp/", &format!("{}/", directory.display()));
    let output = Command::new("sh")
        .args(["-e", "-c", &script])
        .current_dir(folder)
        .env("PATH", path_with_program())
        .output()
        .expect("starts");
    assert!(output.status.success(), "{script}{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Asserts that each line of `shown` is a line of what a command printed, in this order.
fn assert_shown(shown: &str, output: &Output) {
    let printed = String::from_utf8_lossy(&output.stdout);
    let mut lines = printed.lines();
    for line in shown.lines().filter(|line| !line.is_empty()) {
        assert!(lines.any(|printed| printed == line), "{line:?} is not printed:\n{printed}");
    }
}

#[test]
fn the_readme_shows_what_analyze_prints() {
    let shown = blocks("README.md", "text").into_iter().find(|block| block.starts_with("$ "));
    let shown = shown.expect("it shows a command");
    let (command, shown) = shown[2..].split_once('\n').expect("and its output");
    assert!(shown.lines().count() >= 8, "{shown}");
    assert_shown(shown, &run_in(&project(), Path::new("/nonexistent"), command));
}

#[test]
fn the_tutorial_shows_what_the_capture_commands_print() {
    let directory = tempfile::tempdir().expect("made");
    let commands = blocks("docs/tutorial.md", "sh");
    let command = |name: &str| {
        let begins = |block: &&String| block.starts_with(&format!("superpacket {name} "));
        commands.iter().find(begins).unwrap_or_else(|| panic!("no {name} in {commands:?}"))
    };
    let shown = blocks("docs/tutorial.md", "text").into_iter().next().expect("a table");
    assert_shown(&shown, &run_in(&project(), directory.path(), command("coalesce")));
    run_in(&project(), directory.path(), command("segment"));
    run_in(&project(), directory.path(), command("verify"));
    assert_eq!(packets(&directory.path().join("large.pcap")), 60);
    assert_eq!(packets(&directory.path().join("small.pcap")), 289);
}

/// Returns the number of packets in a capture.
fn packets(file: &Path) -> u64 {
    let output = Command::new(env!("CARGO_BIN_EXE_superpacket"))
        .args(["analyze", "--json", "--quiet"])
        .arg(file)
        .output()
        .expect("starts");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    report["packets_in"].as_u64().unwrap_or_else(|| panic!("{report}"))
}

#[test]
fn the_commands_of_the_page_on_captures_run() {
    let directory = tempfile::tempdir().expect("made");
    let (last, others) = {
        let mut commands = blocks("docs/captures.md", "sh");
        (commands.pop().expect("one makes a capture"), commands)
    };
    // The last one makes the capture that the others read as theirs.
    run_in(directory.path(), directory.path(), &last);
    std::fs::rename(directory.path().join("play.pcap"), directory.path().join("a.pcap.tmp"))
        .expect("renamed");
    for commands in others {
        for command in commands.lines() {
            let command = command.split(" | ").next().expect("one at least");
            if command.contains("--filter") && cfg!(not(feature = "filter")) {
                continue;
            }
            let made = directory.path().join("in.pcap");
            std::fs::copy(directory.path().join("a.pcap.tmp"), made).expect("copied");
            run_in(directory.path(), directory.path(), &command.replace("*.pcap.gz", "in.pcap"));
        }
    }
}

/// Counters by their names, of the ports in their order.
type Counters = Vec<HashMap<String, u64>>;

/// Returns the counters that each `superpacket stats` printed.
fn counters(printed: &str) -> Vec<Counters> {
    let mut all: Vec<Counters> = Vec::new();
    for line in printed.lines() {
        if line == "packet:left" {
            all.push(Vec::new());
        }
        let Some(ports) = all.last_mut() else { continue };
        if line.starts_with("packet:") {
            ports.push(HashMap::new());
        } else if let [name, count] = line.split_whitespace().collect::<Vec<_>>()[..] {
            let count = count.replace(',', "").parse();
            let (Some(port), Ok(count)) = (ports.last_mut(), count) else { continue };
            port.insert(name.to_owned(), count);
        }
    }
    all
}

/// Runs the bridge of the tutorial in namespaces created by `unshare` with these flags, as user
/// 65534 (nobody) if `nobody`.
fn bridge_of_the_tutorial(flags: &str, nobody: bool) {
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
        assert!(nobody || std::env::var_os("CI").is_none(), "no network namespace is available");
        eprintln!("SKIPPED: no network namespace is available with unshare {flags}");
        return;
    }
    // A separate directory, in which another user can write, and run the program wherever it was
    // built.
    let directory =
        std::env::temp_dir().join(format!("superpacket-tutorial-{}-{nobody}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("made");
    std::fs::set_permissions(&directory, Permissions::from_mode(0o777)).expect("set");
    std::fs::copy(env!("CARGO_BIN_EXE_superpacket"), directory.join("superpacket"))
        .expect("copied");
    let files = directory.to_str().expect("a plain path");
    let script: String = blocks("docs/tutorial.md", "sh")
        .into_iter()
        .skip_while(|block| block != "unshare -Urn bash\n")
        .skip(1)
        .collect();
    assert!(script.contains("--time 5s") && script.ends_with("exit\n"), "{script}");
    let script = script.replace("--time 5s", "--time 1s").replace("/tmp/", &format!("{files}/"));
    // Also after a failure, all processes that the shell started end, and its namespaces with them.
    let script = format!("trap 'kill $(jobs -p) 2>/dev/null' EXIT\n{script}");
    let path = format!("{files}:{}", std::env::var("PATH").unwrap_or_default());
    let mut shell = command(&["timeout", "60", "unshare", flags, "bash", "-s"]);
    shell.env("PATH", path).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut shell = shell.spawn().expect("starts");
    shell.stdin.take().expect("a pipe").write_all(script.as_bytes()).expect("taken");
    let output = shell.wait_with_output().expect("ends");
    let log = std::fs::read_to_string(directory.join("bridge.log")).unwrap_or_default();
    std::fs::remove_dir_all(&directory).expect("removed");
    let errors = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    let all = counters(&printed);
    let [merging, single, whole, cut] = &all[..] else { panic!("{printed}{errors}{log}") };
    let [left, right] = &merging[..] else { panic!("{printed}") };
    // Single packets arrive and are merged.
    assert_eq!(left["rx_super_packets"], 0, "{printed}");
    assert!(left["merged"] > 5_000 && left["merged"] > left["rx_packets"] / 4, "{printed}");
    assert!(right["tx_super_packets"] > 100, "{printed}");
    assert!(right["tx_packets"] < left["rx_packets"], "{printed}");
    // Without GRO, they pass one by one.
    assert!(single[0]["rx_packets"] > left["rx_packets"] + 5_000, "{printed}");
    assert_eq!(single[0]["merged"], left["merged"], "{printed}");
    assert_eq!(single[1]["tx_super_packets"], right["tx_super_packets"], "{printed}");
    // With TSO at the sender, its super-packets pass.
    assert!(whole[0]["rx_super_packets"] > 100, "{printed}");
    assert!(whole[1]["tx_super_packets"] > single[1]["tx_super_packets"] + 100, "{printed}");
    // Without TSO at the port to the receiver, the bridge cuts them.
    assert!(cut[1]["segmented"] > 100, "{printed}");
    assert!(cut[1]["segments"] > 10 * cut[1]["segmented"], "{printed}");
    assert!(errors.is_empty(), "nothing of it is refused: {errors}");
}

#[test]
fn the_bridge_of_the_tutorial_merges_until_gro_is_off() {
    // Root needs no user namespace, which may be forbidden.
    bridge_of_the_tutorial(if rustix::process::geteuid().is_root() { "-n" } else { "-Urn" }, false);
}

#[test]
fn every_user_can_follow_the_tutorial_with_user_namespaces() {
    if rustix::process::geteuid().is_root() {
        bridge_of_the_tutorial("-Urn", true);
    }
}

#[test]
fn the_commands_of_the_crate_s_readme_run() {
    let commands = blocks("crates/superpacket-cli/README.md", "sh").remove(0);
    assert!(
        commands.lines().count() >= 6
            && commands.lines().all(|line| line.starts_with("superpacket ")),
        "{commands}"
    );
    let directory = tempfile::tempdir().expect("made");
    run_in(directory.path(), directory.path(), &commands);
    for file in ["in.pcap", "large.pcap", "small.pcap"] {
        assert!(
            std::fs::metadata(directory.path().join(file)).is_ok_and(|file| file.len() > 1_000_000),
            "{file}"
        );
    }
}
