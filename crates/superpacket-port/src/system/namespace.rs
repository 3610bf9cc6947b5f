//! Entering namespaces: for a thread, a child program or the whole process
//! (`network_namespaces(7)`, `user_namespaces(7)`).

#![expect(unsafe_code, reason = "unshare(2), fork(2), and calls between fork and exec")]

use std::ffi::CStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, set_parent_process_death_signal, waitpid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// Moves the calling thread into a new network namespace, whose only interface is a loopback that
/// is down. Sockets that are already open stay in the old namespace.
///
/// # Errors
/// The error of `unshare(2)`: `EPERM` without `CAP_SYS_ADMIN`.
pub fn enter_new_network_namespace() -> io::Result<()> {
    // SAFETY: the only unsafe case of unsharing is the table of file descriptors, which stays
    // shared.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?)
}

/// Makes the program that `command` starts run in the network namespace `namespace`. The program is
/// killed when the thread that started it ends (`PR_SET_PDEATHSIG`).
///
/// The descriptor stays open until the command is dropped.
pub fn start_in_network_namespace(command: &mut Command, namespace: Arc<OwnedFd>) {
    let enter = move || -> io::Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(())
    };
    // SAFETY: only two system calls are made between fork and exec; nothing is allocated and no
    // lock is taken. Borrowing an `OwnedFd` calls no foreign code.
    unsafe { command.pre_exec(enter) };
}

/// The steps into a new user namespace and a network namespace owned by it.
const STEPS: [&str; 5] = [
    "unshare(CLONE_NEWUSER)",
    "writing /proc/self/setgroups",
    "writing /proc/self/uid_map",
    "writing /proc/self/gid_map",
    "unshare(CLONE_NEWNET) in it",
];

/// A step into new namespaces that the kernel refused.
#[derive(Debug)]
pub struct NamespaceError {
    /// The step, described for users.
    pub step: &'static str,
    /// The cause.
    pub error: io::Error,
}

impl fmt::Display for NamespaceError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.step, self.error)
    }
}

impl std::error::Error for NamespaceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Moves this process into a new user namespace, in which it is user and group 0, and into a new
/// mount namespace. The process must have one thread. Files that it creates still belong to the
/// user who started it.
///
/// # Errors
/// The refused step; earlier steps remain in effect. `EINVAL` in the first step means that the
/// process has other threads.
pub fn enter_new_user_namespace() -> Result<(), NamespaceError> {
    enter(&Maps::new())
        .map_err(|(step, error)| NamespaceError { step: STEPS[step], error: error.into() })
}

/// Tries [`enter_new_user_namespace`] and [`enter_new_network_namespace`] in a child process that
/// exits at once. This process stays unchanged, even if a step is refused.
///
/// # Errors
/// The refused step, or the reason why no child process could be created.
pub fn try_new_user_namespace() -> Result<(), NamespaceError> {
    let failed = |step| move |error: Errno| NamespaceError { step, error: error.into() };
    // Programs started by other threads meanwhile must not inherit the pipe's write end.
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(failed("pipe"))?;
    let maps = Maps::new();
    // SAFETY: the child has one thread, and other threads may have held locks. So it only makes
    // system calls, on memory allocated earlier, and exits.
    let child = unsafe { libc::fork() };
    if child == -1 {
        return Err(NamespaceError { step: "fork", error: io::Error::last_os_error() });
    }
    let Some(child) = Pid::from_raw(child) else {
        let tried = enter(&maps).and_then(|()| {
            // SAFETY: as in `enter_new_network_namespace`.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
                .map_err(|error| (STEPS.len() - 1, error))
        });
        if let Err((step, error)) = tried {
            let mut answer = [0; REPORT_LENGTH];
            answer[0] = step as u8;
            answer[1..].copy_from_slice(&error.raw_os_error().to_ne_bytes());
            // If the write fails, the parent reports the first step.
            let _ = rustix::io::write(&writer, &answer);
        }
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(i32::from(tried.is_err())) }
    };
    drop(writer);
    let mut answer = Vec::new();
    let read = File::from(reader).read_to_end(&mut answer);
    let ended = retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()));
    if matches!(ended, Ok(Some((_, status))) if status.exit_status() == Some(0)) && read.is_ok() {
        return Ok(());
    }
    let (step, error) = match answer[..] {
        [step, a, b, c, d] if usize::from(step) < STEPS.len() => {
            (usize::from(step), i32::from_ne_bytes([a, b, c, d]))
        }
        _ => (0, libc::EPERM),
    };
    Err(NamespaceError { step: STEPS[step], error: io::Error::from_raw_os_error(error) })
}

/// Length of the child's report in bytes: the refused step and the error.
const REPORT_LENGTH: usize = 1 + size_of::<i32>();

/// ID maps that make this process's user and group 0 in a new user namespace.
struct Maps {
    user: String,
    group: String,
}

impl Maps {
    fn new() -> Self {
        let map = |id: u32| format!("0 {id} 1");
        Maps {
            user: map(rustix::process::geteuid().as_raw()),
            group: map(rustix::process::getegid().as_raw()),
        }
    }
}

/// Enters a user namespace. Allocates nothing, so that a forked child can call it.
fn enter(maps: &Maps) -> Result<(), (usize, Errno)> {
    // SAFETY: as in `enter_new_network_namespace`. No memory depends on the user or on the mounts,
    // and the kernel refuses if the process has other threads.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS) }
        .map_err(|error| (0, error))?;
    // Without privileges, a group may be mapped only after setgroups(2) is denied
    // (user_namespaces(7)).
    let files = [
        (c"/proc/self/setgroups", "deny"),
        (c"/proc/self/uid_map", &maps.user),
        (c"/proc/self/gid_map", &maps.group),
    ];
    for (number, (path, text)) in files.into_iter().enumerate() {
        write_whole(path, text).map_err(|error| (number + 1, error))?;
    }
    Ok(())
}

/// Writes a text to a kernel file, which accepts it only in one call.
fn write_whole(path: &CStr, text: &str) -> Result<(), Errno> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, text.as_bytes()).map(drop)
}

/// Runs a test's body in a new network namespace, whose interfaces disappear when the test ends. If
/// the kernel allows no namespace, the test is skipped with a message; in CI it fails.
#[cfg(test)]
pub(crate) fn in_network_namespace(body: impl FnOnce() + Send + 'static) {
    let inside = std::thread::spawn(|| match enter_new_network_namespace() {
        Ok(()) => body(),
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "no network namespace: {error}");
            eprintln!("SKIPPED: no network namespace: {error}");
        }
    });
    if let Err(panic) = inside.join() {
        std::panic::resume_unwind(panic);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_program_starts_in_the_namespace_and_this_thread_stays() {
        let here = || fs::read_link("/proc/thread-self/ns/net").expect("lives");
        let (before, namespace) = (
            here(),
            std::thread::spawn(|| {
                enter_new_network_namespace().map(|()| File::open("/proc/thread-self/ns/net"))
            }),
        );
        let namespace = match namespace.join().expect("no panic") {
            Ok(namespace) => namespace.expect("lives"),
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "no network namespace: {error}");
                return eprintln!("SKIPPED: no network namespace: {error}");
            }
        };
        let mut command = Command::new("readlink");
        command.arg("/proc/self/ns/net");
        start_in_network_namespace(&mut command, Arc::new(namespace.into()));
        let inside = command.output().expect("starts");
        assert!(inside.status.success() && inside.stdout.starts_with(b"net:["), "{inside:?}");
        assert!(!inside.stdout.starts_with(before.as_os_str().as_encoded_bytes()), "{inside:?}");
        assert_eq!(here(), before);
    }

    /// The child process has one thread, so this works in a process with many threads, such as this
    /// one.
    #[test]
    fn what_is_tried_in_a_child_changes_nothing_here() {
        let state = || {
            (
                fs::read_link("/proc/self/ns/user").expect("lives"),
                fs::read_to_string("/proc/self/uid_map").expect("lives"),
            )
        };
        let before = state();
        match try_new_user_namespace() {
            Ok(()) => {}
            Err(error) => assert!(
                STEPS.contains(&error.step) && error.error.raw_os_error().is_some(),
                "{error:?}"
            ),
        }
        assert_eq!(state(), before);
        // This process cannot enter one itself, since it has other threads.
        let refused = enter_new_user_namespace().expect_err("it has threads");
        assert_eq!((refused.step, refused.error.raw_os_error()), (STEPS[0], Some(libc::EINVAL)));
        assert_eq!(state(), before);
    }
}
