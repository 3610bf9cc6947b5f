//! Where a file that is written goes: under its name only when it is whole, through symbolic links,
//! and into devices and pipes as they are.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tempfile::NamedTempFile;

/// The end of an output's way.
pub(super) enum Destination {
    /// A file that is renamed when it is whole.
    File(Unfinished),
    /// Anything else: a pipe, a device, standard output.
    Stream(Box<dyn Write + Send>),
}

impl Destination {
    /// A temporary file beside `path`, or `path` itself where it exists and is no regular file; `-`
    /// is standard output.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return standard_output().map(Self::Stream);
        }
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => Err(ErrorKind::IsADirectory.into()),
            // A device or a pipe must be written to, not be replaced.
            Ok(metadata) if !metadata.is_file() => Ok(Self::Stream(Box::new(OpenOptions::new().write(true).open(path)?))),
            // The file behind a symbolic link is replaced, not the link.
            Ok(metadata) => {
                let unfinished = Unfinished::create(fs::canonicalize(path)?)?;
                // Who could read the old file can read the new one; where that is refused, the
                // default will do.
                let _ = fs::set_permissions(unfinished.file.path(), metadata.permissions());
                Ok(Self::File(unfinished))
            }
            // What a symbolic link names will be there, and the link stays.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::File(Unfinished::create(behind_links(path)?)?)),
            Err(error) => Err(error),
        }
    }

    pub(super) fn finish(self) -> io::Result<()> {
        match self {
            Self::File(file) => file.finish(),
            Self::Stream(mut stream) => stream.flush(),
        }
    }
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.file.write(bytes),
            Self::Stream(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File(file) => file.file.flush(),
            Self::Stream(stream) => stream.flush(),
        }
    }
}

/// The path that a chain of symbolic links names, whose last file does not exist.
fn behind_links(path: &Path) -> io::Result<PathBuf> {
    /// As many as Linux follows (`MAXSYMLINKS`).
    const MOST_LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..=MOST_LINKS {
        match fs::read_link(&path) {
            // Relative to the link's own directory, unless it is absolute.
            Ok(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
            // No link, or nothing at all.
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

/// A file being written under a temporary name in its own directory; removed unless finished.
pub(super) struct Unfinished {
    file: NamedTempFile,
    path: PathBuf,
    _listed: Listed,
}

impl Unfinished {
    fn create(path: PathBuf) -> io::Result<Self> {
        let directory = path.parent().unwrap_or(Path::new(""));
        if path.file_name().is_none() {
            return Err(ErrorKind::InvalidFilename.into());
        }
        let mut builder = tempfile::Builder::new();
        builder.prefix(".superpacket-").suffix(".partial");
        // As any new file's, not for its owner alone.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let file = builder.tempfile_in(if directory.as_os_str().is_empty() { Path::new(".") } else { directory })?;
        let listed = Listed::new(file.path());
        Ok(Self { file, path, _listed: listed })
    }

    fn finish(mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.persist(self.path)?;
        Ok(())
    }
}

/// A file's place among the [`UNFINISHED`].
struct Listed(PathBuf);

impl Listed {
    fn new(path: &Path) -> Self {
        UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).push(path.to_owned());
        Listed(path.to_owned())
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).retain(|path| *path != self.0);
    }
}

/// Standard output without the line buffer of [`io::stdout`], which would search every block for a
/// line's end.
fn standard_output() -> io::Result<Box<dyn Write + Send>> {
    #[cfg(unix)]
    {
        use std::os::fd::AsFd;
        Ok(Box::new(File::from(io::stdout().as_fd().try_clone_to_owned()?)))
    }
    #[cfg(windows)]
    {
        use std::os::windows::io::AsHandle;
        Ok(Box::new(File::from(io::stdout().as_handle().try_clone_to_owned()?)))
    }
    #[cfg(not(any(unix, windows)))]
    {
        Ok(Box::new(io::stdout()))
    }
}

/// Writes a whole file as captures are written: under a temporary name first, through symbolic
/// links, and into devices and pipes as they are.
///
/// # Errors
/// Whatever stops the writing; an existing file is left as it was.
pub fn write_file(path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<()> {
    let mut destination = Destination::create(path.as_ref())?;
    destination.write_all(bytes)?;
    destination.finish()
}

/// Whether [`write_file`] can begin to write there, for a program that has long work before it has
/// what to write. Nothing is left behind. Pipes and devices are not opened, for that may block, or
/// end what their reader reads.
///
/// # Errors
/// What would stop [`write_file`] from beginning.
pub fn can_write_file(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    let is_special = path == Path::new("-") || fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir());
    if is_special { Ok(()) } else { Destination::create(path).map(drop) }
}

/// Temporary files that are being written in this process.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Removes the temporary files of all writers of this process: for a program that is about to end
/// on a signal, and so runs no destructors.
pub fn remove_unfinished() {
    for path in UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        // Nobody is left to be told.
        let _ = fs::remove_file(path);
    }
}

/// Whether two paths name the same existing file, through links of any kind, so that writing one
/// would destroy the other. `-` names the file that standard input is read from, if it is one (on
/// Unix). On systems other than Unix, hard links are not recognized.
///
/// # Errors
/// If a path exists but cannot be looked at.
pub fn same_file(a: impl AsRef<Path>, b: impl AsRef<Path>) -> io::Result<bool> {
    let (Some(a), Some(b)) = (identity(a.as_ref())?, identity(b.as_ref())?) else { return Ok(false) };
    Ok(a == b)
}

#[cfg(unix)]
fn identity(path: &Path) -> io::Result<Option<(u64, u64)>> {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;
    if path == Path::new("-") {
        let metadata = File::from(io::stdin().as_fd().try_clone_to_owned()?).metadata()?;
        return Ok(metadata.is_file().then(|| (metadata.dev(), metadata.ino())));
    }
    existing(|| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino())))
}

#[cfg(not(unix))]
fn identity(path: &Path) -> io::Result<Option<PathBuf>> {
    if path == Path::new("-") {
        return Ok(None);
    }
    existing(|| fs::canonicalize(path))
}

fn existing<T>(identity: impl FnOnce() -> io::Result<T>) -> io::Result<Option<T>> {
    match identity() {
        Ok(identity) => Ok(Some(identity)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::capture) fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_directory_and_a_missing_directory_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Destination::create(directory.path()).is_err());
        assert!(Destination::create(&directory.path().join("absent/out")).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn links_are_seen_through() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name| directory.path().join(name);
        fs::write(at("a"), "a").unwrap();
        fs::write(at("b"), "a").unwrap();
        fs::hard_link(at("a"), at("hard")).unwrap();
        std::os::unix::fs::symlink(at("a"), at("soft")).unwrap();
        assert!(same_file(at("a"), at("a")).unwrap());
        assert!(same_file(at("a"), at("hard")).unwrap());
        assert!(same_file(at("soft"), at("hard")).unwrap());
        assert!(!same_file(at("a"), at("b")).unwrap());
        assert!(!same_file(at("a"), at("absent")).unwrap());
        assert!(!same_file("-", "-").unwrap());
        let destination = Destination::create(&at("soft")).unwrap();
        destination.finish().unwrap();
        assert!(fs::symlink_metadata(at("soft")).unwrap().is_symlink(), "the link stays");
        assert_eq!(fs::read(at("a")).unwrap(), b"", "the file behind it is replaced");
    }

    #[cfg(unix)]
    #[test]
    fn what_a_dangling_link_names_is_created() {
        use std::os::unix::fs::symlink;
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("other")).unwrap();
        // A relative link to another directory, through one with an absolute path.
        symlink("other/next", at("first")).unwrap();
        symlink(at("other/file"), at("other/next")).unwrap();
        write_file(at("first"), b"here").unwrap();
        assert_eq!(fs::read(at("other/file")).unwrap(), b"here");
        assert!(["first", "other/next"].iter().all(|name| fs::symlink_metadata(at(name)).unwrap().is_symlink()), "the links stay");
        assert_eq!(names(&at("other")), ["file", "next"]);
        symlink(at("absent/file"), at("nowhere")).unwrap();
        assert_eq!(write_file(at("nowhere"), b"").unwrap_err().kind(), ErrorKind::NotFound);
        symlink(at("round"), at("round")).unwrap();
        assert!(write_file(at("round"), b"").is_err());
    }
}
