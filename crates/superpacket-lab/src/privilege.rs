//! The right to make network namespaces: root has it, anybody else gets it inside a user namespace
//! of their own, where the kernel lets them (user_namespaces(7)).

#![expect(unsafe_code, reason = "fork(2) and unshare(2) before a test program has threads")]

use std::fs;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::error::LabError;

/// Where the process has its right to make network namespaces from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// It had the capabilities already (root).
    Held,
    /// It is root of a user namespace of its own.
    UserNamespace,
}

/// CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN: bits of `CapEff` in proc_pid_status(5).
const NEEDED_CAPABILITIES: u64 = 1 << 12 | 1 << 13 | 1 << 21;

/// Enters a user namespace in which this process is root, unless it has the capabilities already
/// (CAP_NET_ADMIN, CAP_NET_RAW and CAP_SYS_ADMIN). Call it first thing in `main`; in tests use
/// [`crate::enter_user_namespace_before_main!`].
///
/// The whole process changes: it sees itself as user 0, and has a mount namespace of its own. Files
/// that it makes still belong to the user who started it. The step is first tried in a child
/// process, so that a refusal leaves this process as it was.
///
/// # Errors
///
/// [`LabError::Forbidden`] with the reason where the kernel refuses, or where the process has more
/// than one thread already (a user namespace is entered by a process of one thread only,
/// unshare(2)).
pub fn enter_user_namespace_if_needed() -> Result<Privilege, LabError> {
    let result = try_to_enter();
    // Kept for whoever makes a host later and has to say why it is refused. The first outcome
    // stays: it is the cause.
    let _ = OUTCOME.set(match &result {
        Err(LabError::Forbidden { reason, .. }) => Some(reason.clone()),
        _ => None,
    });
    result
}

/// Why the user namespace was refused, where one was asked for and refused.
static OUTCOME: OnceLock<Option<String>> = OnceLock::new();

fn try_to_enter() -> Result<Privilege, LabError> {
    if has_capabilities() {
        return Ok(Privilege::Held);
    }
    let threads = fs::read_dir("/proc/self/task").map(Iterator::count).unwrap_or(0);
    if threads != 1 {
        return Err(forbidden(format!("the process has {threads} threads; this must be done before the first is started")));
    }
    probe()?;
    enter().map_err(|step| explain(&step.what, &step.error))?;
    Ok(Privilege::UserNamespace)
}

/// Enters a user namespace before `main`, where one is needed: a test harness starts threads, after
/// which it is too late. Put it once into the root of a test file, outside of functions.
///
/// A refusal is not an error here; [`crate::Host::new`] reports it with its reason.
#[macro_export]
macro_rules! enter_user_namespace_before_main {
    () => {
        const _: () = {
            extern "C" fn enter() {
                // The refusal comes out, with its reason, where the first host is made.
                let _ = $crate::enter_user_namespace_if_needed();
            }
            // SAFETY: the loader calls the functions of this section once, before `main` and with
            // one thread; `enter` has the type that it expects (the arguments that it passes are
            // ignored).
            #[used]
            #[unsafe(link_section = ".init_array")]
            static ENTER: extern "C" fn() = enter;
        };
    };
}

/// Why a network namespace was refused: because of what [`enter_user_namespace_if_needed`] met, or
/// forgotten, or in itself.
pub(crate) fn refused(error: &io::Error) -> LabError {
    if !has_capabilities() {
        match OUTCOME.get() {
            Some(Some(reason)) => return LabError::Forbidden { what: "a network namespace".into(), reason: reason.clone() },
            Some(None) => {}
            None => {
                let reason = "neither root nor in a user namespace; call enter_user_namespace_if_needed() before the first thread starts";
                return LabError::Invalid { what: format!("a network namespace ({error})"), reason: reason.into() };
            }
        }
    }
    explain("unshare(CLONE_NEWNET)", error)
}

/// Why namespaces are refused, in words: the switches that distributions have, as they stand on
/// this machine.
fn explain(what: &str, error: &io::Error) -> LabError {
    let mut reason = format!("{what}: {error}.");
    let mut known = false;
    let value = |path: &str| fs::read_to_string(Path::new("/proc/sys").join(path)).ok().map(|text| text.trim().to_owned());
    if value("kernel/apparmor_restrict_unprivileged_userns").as_deref() == Some("1") {
        reason.push_str(
            " AppArmor strips user namespaces of their capabilities (Ubuntu since 24.04): run as root, give this program an AppArmor \
             profile with `userns,`, or `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`.",
        );
        known = true;
    }
    if value("kernel/unprivileged_userns_clone").as_deref() == Some("0") {
        reason.push_str(" User namespaces are for root only here (Debian): `sysctl -w kernel.unprivileged_userns_clone=1`.");
        known = true;
    }
    for limit in ["user", "net", "mnt"] {
        if value(&format!("user/max_{limit}_namespaces")).as_deref() == Some("0") {
            reason.push_str(&format!(" None are allowed: `sysctl -w user.max_{limit}_namespaces=10000`."));
            known = true;
        }
    }
    if !known {
        reason.push_str(
            " Run as root. In a container, the runtime's seccomp profile or its dropped CAP_SYS_ADMIN is the usual cause: \
             `--cap-add SYS_ADMIN --cap-add NET_ADMIN --security-opt seccomp=unconfined`.",
        );
    }
    LabError::Forbidden { what: "a network namespace".into(), reason }
}

fn forbidden(reason: String) -> LabError {
    LabError::Forbidden { what: "a user namespace".into(), reason }
}

/// Whether the effective set holds all that the lab needs.
fn has_capabilities() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0);
    effective & NEEDED_CAPABILITIES == NEEDED_CAPABILITIES
}

struct Refused {
    what: String,
    error: io::Error,
}

fn enter() -> Result<(), Refused> {
    let refused = |what: &str| {
        let what = what.to_owned();
        move |error: io::Error| Refused { what, error }
    };
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // SAFETY: the process has one thread (checked by the caller), and nothing of std depends on the
    // user or mount namespace.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS) }
        .map_err(|error| refused("unshare(CLONE_NEWUSER)")(error.into()))?;
    // A group may be mapped without privilege only after setgroups(2) has been given up
    // (user_namespaces(7)).
    fs::write("/proc/self/setgroups", "deny").map_err(refused("writing /proc/self/setgroups"))?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1")).map_err(refused("writing /proc/self/uid_map"))?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1")).map_err(refused("writing /proc/self/gid_map"))
}

/// Enters a user namespace, and makes a network namespace there, in a child that ends at once.
fn probe() -> Result<(), LabError> {
    let (reader, writer) = rustix::pipe::pipe().map_err(|error| forbidden(error.to_string()))?;
    // SAFETY: the process has one thread, so the child may do all that the parent may; it leaves by
    // `_exit` only.
    let child = unsafe { libc::fork() };
    match child {
        -1 => Err(forbidden(format!("fork: {}", io::Error::last_os_error()))),
        0 => {
            let step = enter().and_then(|()| {
                // SAFETY: one thread, and no open socket is used after this.
                unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
                    .map_err(|error| Refused { what: "unshare(CLONE_NEWNET) in it".into(), error: error.into() })
            });
            if let Err(refused) = &step {
                let errno = refused.error.raw_os_error().unwrap_or(libc::EPERM);
                // What does not reach the parent makes it report the bare refusal; the child can do
                // no more.
                let _ = rustix::io::write(&writer, format!("{errno} {}", refused.what).as_bytes());
            }
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(i32::from(step.is_err())) }
        }
        child => {
            drop(writer);
            let mut text = String::new();
            let read = io::Read::read_to_string(&mut fs::File::from(reader), &mut text);
            let ended = waitpid(Pid::from_raw(child), WaitOptions::empty());
            if matches!(ended, Ok(Some((_, status))) if status.exit_status() == Some(0)) && read.is_ok() {
                return Ok(());
            }
            let (errno, what) = text.split_once(' ').unwrap_or(("1", "entering a user namespace"));
            Err(explain(what, &io::Error::from_raw_os_error(errno.parse().unwrap_or(libc::EPERM))))
        }
    }
}
