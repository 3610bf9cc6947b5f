//! The default path of the control socket.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};

/// Returns the default path of the control socket: `/run/superpacket.sock` for root,
/// `$XDG_RUNTIME_DIR/superpacket.sock` for other users.
///
/// Root of a user namespace that cannot write to `/run` counts as another user. Returns `None` if
/// `XDG_RUNTIME_DIR` is needed and is not set to an absolute path.
pub fn default_path() -> Option<PathBuf> {
    let run = Path::new("/run");
    let root = rustix::process::geteuid().is_root()
        && accessat(CWD, run, Access::WRITE_OK, AtFlags::EACCESS).is_ok();
    choose(root.then_some(run), std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).as_deref())
}

fn choose(run: Option<&Path>, runtime: Option<&Path>) -> Option<PathBuf> {
    // The XDG base directory specification: relative paths are ignored.
    run.or(runtime.filter(|path| path.is_absolute()))
        .map(|directory| directory.join("superpacket.sock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_uses_run_and_other_users_the_xdg_runtime_directory() {
        let (run, user) = (Path::new("/run"), Path::new("/run/user/7"));
        assert_eq!(
            choose(Some(run), Some(user)).as_deref(),
            Some(Path::new("/run/superpacket.sock"))
        );
        assert_eq!(
            choose(None, Some(user)).as_deref(),
            Some(Path::new("/run/user/7/superpacket.sock"))
        );
        assert_eq!(choose(None, Some(Path::new("relative"))), None);
        assert_eq!(choose(None, None), None);
    }
}
