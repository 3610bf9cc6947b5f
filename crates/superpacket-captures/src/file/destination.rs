//! Where output is written. A regular file gets its name only when it is complete; devices and
//! pipes are written directly.
//!
//! Other users may be able to write to the output's directory, so a path may mean another file when
//! it is used again. Modes are therefore set, and symbolic links read, through file descriptors.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tempfile::NamedTempFile;

/// What an output path names.
#[doc(hidden)]
pub enum OutputPlace {
    /// Standard output, named by `-`.
    StandardOutput,
    /// An existing pipe, device or socket, which is opened and not replaced.
    Special,
    /// A regular file, which need not exist yet.
    File {
        /// The path of the file, with symbolic links resolved.
        path: PathBuf,
        /// The metadata of the file that will be replaced; `None` if there is no such file.
        old: Option<Metadata>,
    },
}

impl OutputPlace {
    /// Finds what an output to `path` would create or replace. The file need not exist. Symbolic
    /// links are followed if they belong to the current user or to root.
    ///
    /// # Errors
    /// If `path` is a directory or another user's symbolic link, or cannot be looked up.
    pub fn find(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::StandardOutput);
        }
        let behind = behind_links(path)?;
        let old = match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => return Err(ErrorKind::IsADirectory.into()),
            Ok(metadata) if !metadata.is_file() => return Ok(Self::Special),
            Ok(_) => Some(fs::symlink_metadata(&behind)?),
            // The target of a symbolic link need not exist: it will be created, and the link stays.
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        match old {
            Some(old) if !old.is_file() => Err(replaced()),
            old => Ok(Self::File { path: behind, old }),
        }
    }
}

/// Opens the path of an [`OutputPlace::Special`].
///
/// # Errors
/// If `path` cannot be opened, or meanwhile names a regular file, which would be overwritten.
#[doc(hidden)]
pub fn open_special(path: &Path, options: &OpenOptions) -> io::Result<File> {
    let file = options.open(path)?;
    if file.metadata()?.is_file() { Err(replaced()) } else { Ok(file) }
}

fn replaced() -> io::Error {
    io::Error::other("another process replaced it while it was opened")
}

/// Where the bytes of an output file are written.
pub(super) enum OutputDestination {
    /// A file with a temporary name, which gets its own name when it is complete.
    File(Unfinished),
    /// Any other destination: a pipe, a device, or standard output.
    Stream(Box<dyn Write + Send>),
}

impl OutputDestination {
    /// Creates a temporary file next to `path`, or opens `path` if it exists and is not a regular
    /// file; `-` is standard output.
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

impl Write for OutputDestination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.file.as_file_mut().write(bytes),
            Self::Stream(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File(file) => file.file.as_file_mut().flush(),
            Self::Stream(stream) => stream.flush(),
        }
    }
}

/// Follows a chain of symbolic links, and returns the path of the last target, which need not
/// exist.
fn behind_links(path: &Path) -> io::Result<PathBuf> {
    /// Maximum number of symbolic links that are followed, as in Linux (`MAXSYMLINKS`).
    const MAX_LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..=MAX_LINKS {
        match link_target(&path)? {
            // A relative target is relative to the link's directory.
            Some(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
            None => return Ok(path),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

/// Returns the target of the symbolic link at `path`, or `None` if `path` is not a symbolic link.
///
/// # Errors
/// If the link belongs to neither the user nor root: another user could then choose which file is
/// replaced.
#[cfg(target_os = "linux")]
fn link_target(path: &Path) -> io::Result<Option<PathBuf>> {
    use std::os::unix::ffi::OsStringExt;

    use rustix::fs::{FileType, Mode, OFlags, fstat, open, readlinkat};
    use rustix::io::Errno;

    // Owner and target are read through one descriptor, since the link may be replaced at any time.
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

/// Returns the target of the symbolic link at `path`, or `None` if `path` is not a symbolic link.
#[cfg(not(target_os = "linux"))]
fn link_target(path: &Path) -> io::Result<Option<PathBuf>> {
    Ok(fs::read_link(path).ok())
}

/// A file that is written under a temporary name in its directory. It is removed unless it is
/// finished.
pub(super) struct Unfinished {
    file: NamedTempFile,
    path: PathBuf,
    _listed: UnfinishedEntry,
}

impl Unfinished {
    /// Creates the temporary file (`O_EXCL`, with a random name). If it replaces no file, its mode
    /// follows the umask. A file that replaces `old` begins with mode 0600 and then takes over the
    /// mode of `old`.
    fn create(path: PathBuf, old: Option<&Metadata>) -> io::Result<Self> {
        let directory = path.parent().unwrap_or(Path::new(""));
        if path.file_name().is_none() {
            return Err(ErrorKind::InvalidFilename.into());
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        #[cfg(not(unix))]
        let _ = old;
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(
            &mut options,
            if old.is_some() { 0o600 } else { 0o666 },
        );
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        // Opened and written by itself, since `NamedTempFile` names its file in errors: the user
        // has never heard of that name.
        let file = tempfile::Builder::new()
            .prefix(".superpacket-")
            .suffix(".partial")
            .make_in(directory, |path| options.open(path))?;
        #[cfg(unix)]
        if let Some(old) = old {
            take_mode(file.as_file(), old)?;
        }
        let listed = UnfinishedEntry::new(file.path());
        Ok(Self { file, path, _listed: listed })
    }

    fn finish(mut self) -> io::Result<()> {
        self.file.as_file_mut().flush()?;
        self.file.persist(self.path)?;
        Ok(())
    }
}

/// Copies the permission bits of the `old` file to the `file` that replaces it, without the set-id
/// and sticky bits.
#[cfg(unix)]
fn take_mode(file: &File, old: &Metadata) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};

    let new = file.metadata()?;
    let mut mode = old.mode() & 0o777;
    // The new file belongs to this user. The mode of another user's file must not decide who may
    // write to it.
    if old.uid() != new.uid() {
        mode &= !0o022;
    } else if old.gid() != new.gid() && fchown(file, None, Some(old.gid())).is_err() {
        // The group bits of the old file were meant for a group that the new file cannot have.
        mode &= !0o070;
    }
    // Where the file system has no modes (FAT), the mount options decide.
    let _ = file.set_permissions(PermissionsExt::from_mode(mode));
    Ok(())
}

/// The entry of a temporary file in [`UNFINISHED`], which is removed when this is dropped.
struct UnfinishedEntry(PathBuf);

impl UnfinishedEntry {
    fn new(path: &Path) -> Self {
        UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).push(path.to_owned());
        UnfinishedEntry(path.to_owned())
    }
}

impl Drop for UnfinishedEntry {
    fn drop(&mut self) {
        UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).retain(|path| *path != self.0);
    }
}

/// Returns standard output without the line buffer of [`io::stdout`], which would search every
/// block of data for line ends.
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

/// Writes a complete file: first under a temporary name, unless `path` is a device or pipe.
///
/// If the file replaces another one of the same user, it takes over all access bits (`0o777`). From
/// another user's file it takes no write permission for group and others. The mode of a new file
/// follows the umask. On Linux, a symbolic link is followed if it belongs to the user or to root;
/// then the link's target is replaced and the link stays.
///
/// # Errors
/// If the file cannot be written, or on Linux if `path` is another user's symbolic link. A file
/// that exists at `path` is then unchanged.
pub fn write_file(path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<()> {
    let mut destination = OutputDestination::create(path.as_ref())?;
    destination.write_all(bytes)?;
    destination.finish()
}

/// A file that is written piece by piece, by the rules of [`write_file`]; `-` is standard output.
/// It gets its name when it is finished, and is removed if it is dropped before.
pub struct OutputFile(OutputDestination);

impl OutputFile {
    /// Opens a file.
    ///
    /// # Errors
    /// Those of [`write_file`].
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        OutputDestination::create(path.as_ref()).map(OutputFile)
    }

    /// Completes the file; it replaces an existing one.
    ///
    /// # Errors
    /// Those of [`write_file`].
    pub fn finish(self) -> io::Result<()> {
        self.0.finish()
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Opens `path` to write a file that others may read while it grows. An empty file replaces an
/// existing one at once, by the rules of [`write_file`]; `-` is standard output.
///
/// # Errors
/// Those of [`write_file`].
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

/// Checks whether [`write_file`] could start to write to `path`, so that a program can fail before
/// long work. It leaves no file behind. Pipes and devices are not opened, since opening may block,
/// or closing may end the input of the program that reads them.
///
/// # Errors
/// Those of [`write_file`].
pub fn can_write_file(path: impl AsRef<Path>) -> io::Result<()> {
    match OutputPlace::find(path.as_ref())? {
        OutputPlace::StandardOutput | OutputPlace::Special => Ok(()),
        OutputPlace::File { path, old } => Unfinished::create(path, old.as_ref()).map(drop),
    }
}

/// Paths of the temporary files that this process is writing at present.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Removes the temporary files that this process is writing. A program calls this when a signal
/// ends it without destructors.
pub fn remove_unfinished() {
    for path in UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        // The process ends, so an error cannot be reported.
        let _ = fs::remove_file(path);
    }
}

/// Returns whether two paths name the same existing file, through links of any kind, so that
/// writing to one would destroy the other. On Unix, `-` stands for the file from which standard
/// input is read. On other systems, hard links are not recognized.
///
/// # Errors
/// If a path names something that exists but cannot be examined.
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
        for path in [directory.path().to_owned(), directory.path().join("absent/out")] {
            let Err(error) = OutputDestination::create(&path) else {
                panic!("{path:?} is created")
            };
            assert!(!error.to_string().contains(".partial"), "{error}");
        }
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
        let destination = OutputDestination::create(&at("soft")).unwrap();
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
        // The first link has a relative target in another directory; that is a link with an
        // absolute target.
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
