//! Output files in a directory of several users, such as `/tmp`. The program runs as root and as
//! another user.

use std::fs::{self, File, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::*;
use superpacket_traffic::frame::Frame;

/// ID of another user: `nobody`.
const OTHER: u32 = 65534;

/// Returns a directory with a capture `in.pcap` in which everybody may write, or `None` if the test
/// does not run as root.
fn public_bench(test: &str) -> Option<Bench> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: {test}: needs root");
        return None;
    }
    let bench = Bench::new();
    bench.capture("in.pcap", &spaced(&Frame::tcp4(1, 500).run(5)));
    fs::set_permissions(bench.path("."), Permissions::from_mode(0o1777)).expect("changes");
    Some(bench)
}

/// Creates a file with this owner and mode.
fn create(path: &Path, owner: u32, mode: u32) {
    fs::write(path, "old").expect("writes");
    chown(path, Some(owner), Some(owner)).expect("gives away");
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("changes");
}

fn owner_and_mode(path: &Path) -> (u32, u32) {
    let metadata = fs::symlink_metadata(path).expect("is there");
    (metadata.uid(), metadata.mode() & 0o7777)
}

/// The commands that write files, with their arguments before the output's name.
const COMMANDS: [&[&str]; 5] = [
    &["coalesce", "in.pcap", "-o"],
    &["segment", "in.pcap", "-o"],
    &["generate", "--size", "10k"],
    &["analyze", "in.pcap", "--html"],
    &["steer", "in.pcap", "--cpus", "3", "--html"],
];

#[test]
fn no_command_of_root_makes_a_file_that_others_can_write() {
    let Some(bench) = public_bench("no command of root makes a file that others can write") else {
        return;
    };
    for command in COMMANDS {
        let out = bench.path("out");
        create(&out, OTHER, 0o6777);
        bench.prints(&[command, &["out"]].concat());
        assert_eq!(owner_and_mode(&out), (0, 0o755), "{command:?}");
        // A link of the other user, to a file of root.
        fs::remove_file(&out).expect("removes");
        create(&bench.path("precious"), 0, 0o600);
        symlink("precious", &out).expect("a link");
        lchown(&out, Some(OTHER), Some(OTHER)).expect("gives away");
        bench.refuses(
            &[command, &["out"]].concat(),
            "out belongs to another user (uid 65534) and is not followed",
        );
        assert_eq!(bench.bytes("precious"), b"old", "{command:?}");
        fs::remove_file(&out).expect("removes");
    }
}

/// Runs the program as the other user, who may lack access to its path.
fn run_as_other(bench: &Bench, line: &str) -> Output {
    let program = File::open(env!("CARGO_BIN_EXE_superpacket")).expect("opens");
    let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
    command
        .args(line.split(' '))
        .current_dir(bench.path("."))
        .uid(OTHER)
        .gid(OTHER)
        .output()
        .expect("the program runs")
}

#[test]
fn another_user_keeps_the_modes_of_their_own_files_and_replaces_no_others() {
    let Some(bench) = public_bench("another user keeps the modes") else { return };
    for (old, expected) in [(0o600, 0o600), (0o6751, 0o751), (0o664, 0o664)] {
        let out = bench.path("out");
        create(&out, OTHER, old);
        let output = run_as_other(&bench, "coalesce in.pcap -o out");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(owner_and_mode(&out), (OTHER, expected), "from {old:o}");
        fs::remove_file(&out).expect("removes");
    }
    let precious = bench.path("precious");
    create(&precious, 0, 0o666);
    let output = run_as_other(&bench, "coalesce in.pcap -o precious");
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        (owner_and_mode(&precious), fs::read(&precious).expect("reads")),
        ((0, 0o666), b"old".to_vec())
    );
    // Links of root are followed, such as those in /dev.
    symlink("out", bench.path("link")).expect("a link");
    let output = run_as_other(&bench, "coalesce in.pcap -o link");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(owner_and_mode(&bench.path("out")).0, OTHER);
    assert!(!bench.read("out").is_empty());
}
