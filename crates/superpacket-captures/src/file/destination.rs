//! Places that output goes to. A file gets its name only when it is complete; devices and pipes are
//! written to directly.
//!
//! Others may be able to write in the output's directory. So nothing here trusts a path twice:
//! modes are set through descriptors, and a symbolic link is read through a descriptor too.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tempfile::NamedTempFile;

/// The kind of thing that an output path names.
#[doc(hidden)]
pub enum OutputPlace {
    /// `-`.
    StandardOutput,
    /// An existing pipe, device or socket, which is opened and not replaced.
    Special,
    /// A regular file, or none yet.
    File {
        /// The file's path, behind all symbolic links of the last component.
        path: PathBuf,
        /// The file that is replaced, if there is one.
        old: Option<Metadata>,
    },
}

impl OutputPlace {
    /// Looks up `path`, and follows the symbolic links that belong to the user or to root.
    ///
    /// # Errors
    /// If `path` is a directory, or a symbolic link of another user, or cannot be looked up.
    pub fn find(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::StandardOutput);
        }
        let behind = behind_links(path)?;
        let old = match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => return Err(ErrorKind::IsADirectory.into()),
            Ok(metadata) if !metadata.is_file() => return Ok(Self::Special),
            Ok(_) => Some(fs::symlink_metadata(&behind)?),
            // What a symbolic link names will be created, and the link stays.
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        match old {
            Some(old) if !old.is_file() => Err(replaced()),
            old => Ok(Self::File { path: behind, old }),
        }
    }
}

/// Opens what [`OutputPlace::Special`] stands for.
///
/// # Errors
/// If it cannot be opened, or if a regular file has taken its place: this would be written over.
#[doc(hidden)]
pub fn open_special(path: &Path, options: &OpenOptions) -> io::Result<File> {
    let file = options.open(path)?;
    if file.metadata()?.is_file() { Err(replaced()) } else { Ok(file) }
}

fn replaced() -> io::Error {
    io::Error::other("another process replaced it while it was opened")
}

/// The end of an output's way.
pub(super) enum Destination {
    /// A file that is renamed when it is complete.
    File(Unfinished),
    /// Anything else: a pipe, a device, standard output.
    Stream(Box<dyn Write + Send>),
}

impl Destination {
    /// Creates a temporary file beside `path`, or opens `path` itself where it exists and is no
    /// regular file; `-` is standard output.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        match OutputPlace::find(path)? {
            OutputPlace::StandardOutput => standard_output().map(Self::Stream),
            OutputPlace::Special => {
                Ok(Self::Stream(Box::new(open_special(path, OpenOptions::new().write(true))?)))
            }
            OutputPlace::File { path, old } => {
                Unfinished::create(path, old.as_ref()).map(Self::File)
            }
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

/// Returns the path behind a chain of symbolic links, whose last file need not exist.
fn behind_links(path: &Path) -> io::Result<PathBuf> {
    /// As many as Linux follows (`MAXSYMLINKS`).
    const MOST_LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..=MOST_LINKS {
        match link_target(&path)? {
            // Relative to the link's own directory, unless it is absolute.
            Some(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
            None => return Ok(path),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

/// Returns what the symbolic link at `path` names, or `None` if there is no link.
///
/// # Errors
/// If the link belongs to neither the user nor root: whoever made it would choose the file that is
/// replaced.
#[cfg(target_os = "linux")]
fn link_target(path: &Path) -> io::Result<Option<PathBuf>> {
    use std::os::unix::ffi::OsStringExt;

    use rustix::fs::{FileType, Mode, OFlags, fstat, open, readlinkat};
    use rustix::io::Errno;

    // Owner and target are read from one descriptor, since the link may be replaced at any time.
    let link = match open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Ok(link) => link,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let status = fstat(&link)?;
    if !FileType::from_raw_mode(status.st_mode).is_symlink() {
        return Ok(None);
    }
    if status.st_uid != 0 && status.st_uid != rustix::process::geteuid().as_raw() {
        let problem = format!(
            "the symbolic link {} belongs to another user (uid {}) and is not followed",
            path.display(),
            status.st_uid
        );
        return Err(io::Error::new(ErrorKind::PermissionDenied, problem));
    }
    let target = readlinkat(&link, c"", Vec::new())?;
    Ok(Some(std::ffi::OsString::from_vec(target.into_bytes()).into()))
}

/// Returns what the symbolic link at `path` names, or `None` if there is no link.
#[cfg(not(target_os = "linux"))]
fn link_target(path: &Path) -> io::Result<Option<PathBuf>> {
    Ok(fs::read_link(path).ok())
}

/// A file being written under a temporary name in its own directory; removed unless finished.
pub(super) struct Unfinished {
    file: NamedTempFile,
    path: PathBuf,
    _listed: Listed,
}

impl Unfinished {
    /// Creates the temporary file (`O_EXCL`, a random name). A new file gets the mode that the
    /// umask gives. One that replaces `old` begins with 0600 and then gets its mode.
    fn create(path: PathBuf, old: Option<&Metadata>) -> io::Result<Self> {
        let directory = path.parent().unwrap_or(Path::new(""));
        if path.file_name().is_none() {
            return Err(ErrorKind::InvalidFilename.into());
        }
        let mut builder = tempfile::Builder::new();
        builder.prefix(".superpacket-").suffix(".partial");
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(if old.is_some() {
            0o600
        } else {
            0o666
        }));
        let file = builder.tempfile_in(if directory.as_os_str().is_empty() {
            Path::new(".")
        } else {
            directory
        })?;
        #[cfg(unix)]
        if let Some(old) = old {
            take_mode(file.as_file(), old)?;
        }
        let listed = Listed::new(file.path());
        Ok(Self { file, path, _listed: listed })
    }

    fn finish(mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.persist(self.path)?;
        Ok(())
    }
}

/// Gives `file` the access bits of the `old` file that it replaces. Set-id and sticky bits are
/// never taken over.
#[cfg(unix)]
fn take_mode(file: &File, old: &Metadata) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};

    let new = file.metadata()?;
    let mut mode = old.mode() & 0o777;
    // A new file belongs to the user. Another user's file must not say who may write to it.
    if old.uid() != new.uid() {
        mode &= !0o022;
    } else if old.gid() != new.gid() && fchown(file, None, Some(old.gid())).is_err() {
        // The old file's bits were for a group that this file cannot have.
        mode &= !0o070;
    }
    // Where the file system refuses this (FAT), the mode is the mount's.
    let _ = file.set_permissions(PermissionsExt::from_mode(mode));
    Ok(())
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

/// Writes a complete file as captures are written: under a temporary name first, or directly into a
/// device or pipe.
///
/// A file that replaces another takes over its access bits (`0o777`): all of them if the old file
/// belongs to the user, and no write permission for group and others if it does not. A new file
/// gets the mode that the umask gives. On Linux, a symbolic link is followed if it belongs to the
/// user or to root; the file behind it is replaced and the link stays.
///
/// # Errors
/// If the file cannot be written, or on Linux if `path` is a symbolic link of another user; an
/// existing file is left as it was.
pub fn write_file(path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<()> {
    let mut destination = Destination::create(path.as_ref())?;
    destination.write_all(bytes)?;
    destination.finish()
}

/// Opens `path` for a file that others may read while it grows. An empty file takes the place of
/// the old one at once, by the rules of [`write_file`]; `-` is standard output.
///
/// # Errors
/// As [`write_file`] when it begins.
#[cfg(unix)]
pub fn replace_file(path: impl AsRef<Path>) -> io::Result<File> {
    use std::os::fd::AsFd;

    match OutputPlace::find(path.as_ref())? {
        OutputPlace::StandardOutput => io::stdout().as_fd().try_clone_to_owned().map(File::from),
        OutputPlace::Special => open_special(path.as_ref(), OpenOptions::new().write(true)),
        OutputPlace::File { path, old } => {
            let Unfinished { file, path, .. } = Unfinished::create(path, old.as_ref())?;
            Ok(file.persist(path)?)
        }
    }
}

/// Checks whether [`write_file`] can begin to write to `path`, for a program that works long before
/// it writes. Nothing is left behind. Pipes and devices are not opened, since this may block, or
/// end their reader's input.
///
/// # Errors
/// As [`write_file`] when it begins.
pub fn can_write_file(path: impl AsRef<Path>) -> io::Result<()> {
    match OutputPlace::find(path.as_ref())? {
        OutputPlace::StandardOutput | OutputPlace::Special => Ok(()),
        OutputPlace::File { path, old } => Unfinished::create(path, old.as_ref()).map(drop),
    }
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
    let (Some(a), Some(b)) = (identity(a.as_ref())?, identity(b.as_ref())?) else {
        return Ok(false);
    };
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

    pub(in crate::file) fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
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
        assert!(
            ["first", "other/next"]
                .iter()
                .all(|name| fs::symlink_metadata(at(name)).unwrap().is_symlink()),
            "the links stay"
        );
        assert_eq!(names(&at("other")), ["file", "next"]);
        symlink(at("absent/file"), at("nowhere")).unwrap();
        assert_eq!(write_file(at("nowhere"), b"").unwrap_err().kind(), ErrorKind::NotFound);
        symlink(at("round"), at("round")).unwrap();
        assert!(write_file(at("round"), b"").is_err());
    }
}
