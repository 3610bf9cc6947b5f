//! Where the control socket is if nobody says.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};

/// The control socket's path if none is given: `/run/superpacket.sock` for root,
/// `$XDG_RUNTIME_DIR/superpacket.sock` for others.
///
/// Root of a user namespace may not write to `/run` and counts as one of the others. `None` if
/// neither is to be had.
pub fn default_path() -> Option<PathBuf> {
    let run = Path::new("/run");
    let root = rustix::process::geteuid().is_root()
        && accessat(CWD, run, Access::WRITE_OK, AtFlags::EACCESS).is_ok();
    choose(root.then_some(run), std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).as_deref())
}

fn choose(run: Option<&Path>, runtime: Option<&Path>) -> Option<PathBuf> {
    // The XDG base directory specification: a relative path is to be ignored.
    run.or(runtime.filter(|path| path.is_absolute()))
        .map(|directory| directory.join("superpacket.sock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_has_run_and_others_what_xdg_says() {
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
