//! The real captures that tests read: those of the repository, or a larger collection.

use std::path::{Path, PathBuf};

/// The environment variable that names a folder of captures to read in place of `captures/real`.
const FOLDER: &str = "SUPERPACKET_CAPTURES";

/// Returns the capture files of `captures/real`, or of the folder that `SUPERPACKET_CAPTURES`
/// names, sorted by path.
///
/// # Panics
/// If the folder cannot be listed, or has fewer than 200 captures.
#[must_use]
pub fn real() -> Vec<PathBuf> {
    let of_the_repository = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/real");
    let root = std::env::var_os(FOLDER).map_or_else(of_the_repository, PathBuf::from);
    let list = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        entries.map(|entry| entry.expect("the folder can be listed").path()).collect()
    };
    let mut files: Vec<_> = list(&root)
        .iter()
        .filter(|path| path.is_dir() && !path.ends_with("LICENSES"))
        .flat_map(|folder| list(folder))
        .collect();
    files.sort();
    assert!(files.len() > 200, "{} has {} captures", root.display(), files.len());
    files
}
