//! The right to make network namespaces: root has it, anybody else gets it inside a user namespace
//! of their own, where the kernel lets them (user_namespaces(7)).

use std::fs;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use superpacket_port::system::{enter_new_user_namespace, try_new_user_namespace};

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
        return Err(forbidden(format!(
            "the process has {threads} threads; this must be done before the first is started"
        )));
    }
    try_new_user_namespace()
        .and_then(|()| enter_new_user_namespace())
        .map_err(|refused| explain(refused.step, &refused.error))?;
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

/// Why namespaces are refused, in words: the switches that distributions have, as they stand on
/// this machine.
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

/// Whether the effective set holds all that the lab needs.
fn has_capabilities() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective =
        effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0);
    effective & NEEDED_CAPABILITIES == NEEDED_CAPABILITIES
}
