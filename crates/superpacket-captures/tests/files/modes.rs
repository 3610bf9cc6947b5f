//! Modes of output files, and symbolic links in their place, in directories that others may write.

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use superpacket_captures::file::{replace_file, write_file};
use tempfile::TempDir;

/// Another user: `nobody`.
const OTHER: u32 = 65534;

/// How often the watcher of a race must have met an unfinished file.
const MEETINGS: u32 = 1000;

/// Returns whether the test runs as root, which alone can create another user's files.
fn is_root(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("SKIPPED: {test}: needs root");
    }
    is_root
}

/// Returns a directory in which all users may write, like `/tmp`.
fn public_directory(mode: u32) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(mode)).unwrap();
    directory
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// Creates a file with `mode`. The owner is set first, since chown clears set-id bits.
fn create(path: &Path, owner: Option<u32>, mode: u32) {
    fs::write(path, "old").unwrap();
    chown(path, owner, owner).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Returns the unfinished files in a directory.
fn unfinished(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let paths = fs::read_dir(directory).unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "partial"))
}

/// Repeats `write` until `watch`, which runs concurrently, has seen an unfinished file often
/// enough.
fn race(mut write: impl FnMut(), watch: impl Fn() -> usize + Sync) {
    let (met, done) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                met.fetch_add(watch() as u32, Ordering::Relaxed);
            }
        });
        let started = Instant::now();
        while met.load(Ordering::Relaxed) < MEETINGS && started.elapsed() < Duration::from_secs(30)
        {
            write();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(met.into_inner() >= MEETINGS, "too few unfinished files were met");
}

#[test]
fn a_file_of_another_user_gives_access_but_no_write_permission_and_no_set_id_bits() {
    if !is_root("a file of another user") {
        return;
    }
    let directory = public_directory(0o1777);
    let path = directory.path().join("out");
    for (old, expected) in [
        (0o6777, 0o755),
        (0o4755, 0o755),
        (0o2070, 0o050),
        (0o1666, 0o644),
        (0o622, 0o600),
        (0o600, 0o600),
        (0, 0),
    ] {
        create(&path, Some(OTHER), old);
        write_file(&path, b"new").unwrap();
        let new = fs::metadata(&path).unwrap();
        assert_eq!((new.mode() & 0o7777, new.uid()), (expected, 0), "from {old:o}");
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }
}

#[test]
fn the_users_own_file_keeps_its_access_bits_but_no_set_id_bits() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out");
    for (old, expected) in [
        (0o6777, 0o777),
        (0o4755, 0o755),
        (0o1666, 0o666),
        (0o640, 0o640),
        (0o600, 0o600),
        (0o400, 0o400),
    ] {
        create(&path, None, old);
        write_file(&path, b"new").unwrap();
        assert_eq!(mode(&path), expected, "from {old:o}");
        fs::remove_file(&path).unwrap();
    }
    // What the umask gives.
    fs::write(directory.path().join("any"), "").unwrap();
    write_file(&path, b"new").unwrap();
    assert_eq!(mode(&path), mode(&directory.path().join("any")), "a new file");
}

#[test]
fn the_group_of_the_users_own_file_stays() {
    if !is_root("the group of the user's own file") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out");
    fs::write(&path, "old").unwrap();
    chown(&path, None, Some(OTHER)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o660)).unwrap();
    write_file(&path, b"new").unwrap();
    let new = fs::metadata(&path).unwrap();
    assert_eq!((new.mode() & 0o7777, new.gid()), (0o660, OTHER));
}

#[test]
fn a_private_file_is_at_no_moment_open_to_others() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out");
    create(&path, None, 0o600);
    let open = AtomicU32::new(0);
    let watch = || {
        let modes: Vec<_> = unfinished(directory.path())
            .filter_map(|path| Some(fs::symlink_metadata(path).ok()?.mode()))
            .collect();
        open.fetch_add(
            modes.iter().filter(|mode| *mode & 0o077 != 0).count() as u32,
            Ordering::Relaxed,
        );
        modes.len()
    };
    race(|| write_file(&path, b"secret").unwrap(), watch);
    assert_eq!(open.into_inner(), 0);
    assert_eq!(mode(&path), 0o600);
}

#[test]
fn an_unfinished_file_that_is_swapped_for_a_link_changes_no_other_file() {
    if !is_root("an unfinished file that is swapped") {
        return;
    }
    let (directory, private) = (public_directory(0o777), tempfile::tempdir().unwrap());
    let (path, victim) = (directory.path().join("out"), private.path().join("victim"));
    create(&victim, None, 0o600);
    // Does what another user may do here.
    let link = directory.path().join("link");
    let swap = || {
        if fs::symlink_metadata(&link).is_err() {
            symlink(&victim, &link).unwrap();
            lchown(&link, Some(OTHER), Some(OTHER)).unwrap();
        }
        unfinished(directory.path()).filter(|path| fs::rename(&link, path).is_ok()).count()
    };
    let write = || {
        let _ = fs::remove_file(&path);
        create(&path, None, 0o666);
        // May end with the attacker's link under the name, or with an error.
        let _ = write_file(&path, b"new");
        unfinished(directory.path()).for_each(|path| drop(fs::remove_file(path)));
    };
    race(write, swap);
    assert_eq!((mode(&victim), fs::read(&victim).unwrap()), (0o600, b"old".to_vec()));
}

#[test]
fn links_of_other_users_are_not_followed() {
    if !is_root("links of other users") {
        return;
    }
    // Without the sticky bit, the kernel follows them (`fs.protected_symlinks`).
    for directory in [public_directory(0o777), public_directory(0o1777)] {
        let at = |name: &str| directory.path().join(name);
        create(&at("file"), None, 0o644);
        for target in ["file", "absent", "/dev/null"] {
            symlink(target, at("link")).unwrap();
            // Also behind a link that is followed.
            symlink("link", at("own")).unwrap();
            write_file(at("own"), b"old").unwrap();
            let _ = fs::remove_file(at("absent"));
            lchown(at("link"), Some(OTHER), Some(OTHER)).unwrap();
            for name in ["link", "own"] {
                let error = write_file(at(name), b"new").unwrap_err();
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{target}");
                let expected = format!(
                    "the symbolic link {} belongs to another user (uid 65534) and is not followed",
                    at("link").display()
                );
                assert_eq!(error.to_string(), expected);
            }
            assert_eq!(fs::read(at("file")).unwrap(), b"old");
            assert!(!at("absent").exists());
            fs::remove_file(at("link")).unwrap();
            fs::remove_file(at("own")).unwrap();
        }
        assert_eq!(unfinished(directory.path()).count(), 0);
    }
}

#[test]
fn a_file_that_grows_in_place_of_another_follows_the_same_rules() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    create(&at("old"), None, 0o6640);
    fs::hard_link(at("old"), at("other name")).unwrap();
    symlink("old", at("link")).unwrap();
    let mut file = replace_file(at("link")).unwrap();
    assert_eq!((fs::read(at("old")).unwrap(), mode(&at("old"))), (Vec::new(), 0o640), "at once");
    file.write_all(b"new").unwrap();
    assert_eq!(fs::read(at("link")).unwrap(), b"new");
    assert_eq!(
        fs::read(at("other name")).unwrap(),
        b"old",
        "the old file is replaced, not written to"
    );
    assert_eq!(unfinished(directory.path()).count(), 0);
    replace_file("/dev/null").unwrap().write_all(b"gone").unwrap();
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
    if !is_root("a file that grows, behind another user's link") {
        return;
    }
    lchown(at("link"), Some(OTHER), Some(OTHER)).unwrap();
    assert_eq!(replace_file(at("link")).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(fs::read(at("old")).unwrap(), b"new");
}
