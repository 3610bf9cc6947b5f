//! The privilege to create network namespaces: root has it; other users obtain it inside their own
//! user namespace, if the kernel permits (user_namespaces(7)).

use std::fs;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use superpacket_port::system::{enter_new_user_namespace, try_new_user_namespace};

use crate::error::LabError;

/// The origin of the process's privilege to create network namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// The process already had the capabilities, as root has.
    Held,
    /// The process entered a user namespace, in which it is root.
    UserNamespace,
}

/// CAP_NET_ADMIN, CAP_NET_RAW and CAP_SYS_ADMIN, as bits of `CapEff` (proc_pid_status(5)).
const NEEDED_CAPABILITIES: u64 = 1 << 12 | 1 << 13 | 1 << 21;

/// Enters a user namespace in which this process is root, unless it already has CAP_NET_ADMIN,
/// CAP_NET_RAW and CAP_SYS_ADMIN. Must be the first call in `main`; tests use
/// [`crate::enter_user_namespace_before_main!`].
///
/// The whole process changes: its user ID becomes 0, and it gets a separate mount namespace. Its
/// files still belong to the user who started it. A child process tries the step first, so that
/// a refusal does not change this process.
///
/// # Errors
///
/// [`LabError::Forbidden`] with the reason if the kernel refuses, or if the process has more than
/// one thread (unshare(2) requires a single-threaded process).
pub fn enter_user_namespace_if_needed() -> Result<Privilege, LabError> {
    let result = try_to_enter();
    // Kept for the error of a later `Host::new`. The first result stays, because it is the cause.
    let _ = REFUSAL.set(match &result {
        Err(LabError::Forbidden { reason, .. }) => Some(reason.clone()),
        _ => None,
    });
    result
}

/// The reason for which the user namespace was refused; `None` if it was not refused.
static REFUSAL: OnceLock<Option<String>> = OnceLock::new();

fn try_to_enter() -> Result<Privilege, LabError> {
    if has_capabilities() {
        return Ok(Privilege::Held);
    }
    let threads = fs::read_dir("/proc/self/task").map(Iterator::count).unwrap_or(0);
    if threads != 1 {
        return Err(forbidden(format!(
            "the process has {threads} threads; this must be done before the first is started"
        )));
    }
    try_new_user_namespace()
        .and_then(|()| enter_new_user_namespace())
        .map_err(|refused| explain(refused.step, &refused.error))?;
    Ok(Privilege::UserNamespace)
}

/// Enters a user namespace before `main` if one is needed, because a test harness starts threads
/// early. Invoke it once in the root of a test file, outside functions.
///
/// A refusal is not an error here; [`crate::Host::new`] reports it with its reason.
#[macro_export]
macro_rules! enter_user_namespace_before_main {
    () => {
        const _: () = {
            extern "C" fn enter() {
                // `Host::new` reports a refusal with its reason.
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

/// Returns the error for a refused network namespace. It names the cause: a refused user
/// namespace, a missing call of [`enter_user_namespace_if_needed`], or the kernel's own limits.
pub(crate) fn namespace_error(error: &io::Error) -> LabError {
    if !has_capabilities() {
        match REFUSAL.get() {
            Some(Some(reason)) => {
                return LabError::Forbidden {
                    what: "a network namespace".into(),
                    reason: reason.clone(),
                };
            }
            Some(None) => {}
            None => {
                let reason = "neither root nor in a user namespace; call enter_user_namespace_if_needed() before the first thread starts";
                return LabError::Invalid {
                    what: format!("a network namespace ({error})"),
                    reason: reason.into(),
                };
            }
        }
    }
    explain("unshare(CLONE_NEWNET)", error)
}

/// Returns the error for refused namespaces. It names the sysctls of this machine that forbid them.
fn explain(what: &str, error: &io::Error) -> LabError {
    let mut reason = format!("{what}: {error}.");
    let mut known = false;
    let value = |path: &str| {
        fs::read_to_string(Path::new("/proc/sys").join(path))
            .ok()
            .map(|text| text.trim().to_owned())
    };
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
            reason.push_str(&format!(
                " None are allowed: `sysctl -w user.max_{limit}_namespaces=10000`."
            ));
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

/// Returns whether the effective set contains all capabilities that the lab needs.
fn has_capabilities() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective =
        effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0);
    effective & NEEDED_CAPABILITIES == NEEDED_CAPABILITIES
}
