//! Helpers for tests of the behaviour when memory is exhausted. Each such test runs in a separate
//! process, since memory limits apply to whole processes.

use std::fs;
use std::process::Command;

use rustix::process::{Resource, Rlimit, setrlimit};

/// Runs the test `name` in a child process, and returns `true`. In the child process, returns
/// `false`.
pub(crate) fn is_run_in_a_child(name: &str) -> bool {
    const CHILD: &str = "SUPERPACKET_TEST_WITHOUT_MEMORY";
    if std::env::var_os(CHILD).is_some() {
        return false;
    }
    let mut child = Command::new(std::env::current_exe().expect("runs"));
    let output =
        child.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().expect("runs");
    let (said, error) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}: {said}{error}", output.status);
    assert!(said.contains("1 passed"), "{said}");
    true
}

/// Limits the process's address space to `more` bytes above its present size.
pub(crate) fn limit_memory(more: u64) {
    let status = fs::read_to_string("/proc/self/status").expect("lives");
    let line =
        status.lines().find_map(|line| line.strip_prefix("VmSize:")).expect("a process has memory");
    let has = line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of kB") * 1024;
    setrlimit(Resource::As, Rlimit { current: Some(has + more), maximum: None }).expect("lowered");
}

/// Allocates all memory that the limit leaves, including the allocator's reserve.
#[allow(dead_code, reason = "not all tests need it")]
pub(crate) fn take_all_memory() -> Vec<Vec<u8>> {
    let mut held: Vec<Vec<u8>> = Vec::with_capacity(1 << 16);
    for size in [1 << 20, 64 << 10, 1 << 10] {
        let mut block = Vec::new();
        while held.len() < held.capacity() && block.try_reserve_exact(size).is_ok() {
            held.push(std::mem::take(&mut block));
        }
    }
    held
}
