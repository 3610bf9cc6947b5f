//! Where a capture's bytes go: a buffer, a compressor, and a file that appears under its name only
//! when it is whole.

use std::cell::RefCell;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Cursor, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use flate2::write::GzEncoder;
use ruzstd::encoding::{CompressionLevel, FrameCompressor};

use super::Compression;

/// Collected before a write; as the reader's window.
const BUFFER_LENGTH: usize = 256 * 1024;

/// Buffers that may wait for the zstd encoder.
const ZSTD_PIECES_IN_FLIGHT: usize = 2;

/// A buffered, perhaps compressed stream into a destination.
pub(super) struct Output {
    buffer: Vec<u8>,
    encoder: Encoder,
}

enum Encoder {
    Plain(Destination),
    Gzip(GzEncoder<Destination>),
    Zstd(ZstdEncoder),
}

impl Output {
    pub(super) fn new(destination: Destination, compression: Compression) -> Self {
        let encoder = match compression {
            Compression::None => Encoder::Plain(destination),
            Compression::Gzip => Encoder::Gzip(GzEncoder::new(destination, flate2::Compression::fast())),
            Compression::Zstd => Encoder::Zstd(ZstdEncoder::new(destination)),
        };
        Self { buffer: Vec::with_capacity(BUFFER_LENGTH), encoder }
    }

    /// Appends `bytes`.
    #[inline]
    pub(super) fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() > self.buffer.capacity() - self.buffer.len() {
            return self.put_large(bytes);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    #[cold]
    fn put_large(&mut self, bytes: &[u8]) -> io::Result<()> {
        // Filled to the brim, so that every write but the last is of the same, aligned length.
        let (now, rest) = bytes.split_at(self.buffer.capacity() - self.buffer.len());
        self.buffer.extend_from_slice(now);
        self.flush()?;
        let whole = rest.len() - rest.len() % self.buffer.capacity();
        if whole > 0 {
            self.encoder.write_all(&rest[..whole])?;
        }
        self.buffer.extend_from_slice(&rest[whole..]);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.encoder.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    /// Hands over what has been put so far, as far as the compression lets it go.
    pub(super) fn hand_over(&mut self) -> io::Result<()> {
        self.flush()?;
        match &mut self.encoder {
            Encoder::Plain(destination) => destination.flush(),
            Encoder::Gzip(encoder) => encoder.flush(),
            // Its thread writes what makes a block.
            Encoder::Zstd(_) => Ok(()),
        }
    }

    /// Writes out what is left and puts the file in its place.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        let destination = match self.encoder {
            Encoder::Plain(destination) => destination,
            Encoder::Gzip(encoder) => encoder.finish()?,
            Encoder::Zstd(mut encoder) => encoder.end()?,
        };
        destination.finish()
    }
}

impl Encoder {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(destination) => destination.write_all(bytes),
            Self::Gzip(encoder) => encoder.write_all(bytes),
            Self::Zstd(encoder) => encoder.put(bytes),
        }
    }
}

/// Compresses into one zstd frame, in a thread of its own: the encoder pulls its input until that
/// ends, which is the wrong way round for a writer. (A frame for each piece would need no thread,
/// but Wireshark reads only the first.)
struct ZstdEncoder {
    /// `None` once ended.
    pieces: Option<SyncSender<Vec<u8>>>,
    worker: Option<JoinHandle<io::Result<Destination>>>,
}

impl ZstdEncoder {
    fn new(destination: Destination) -> Self {
        let (pieces, received) = sync_channel(ZSTD_PIECES_IN_FLIGHT);
        let worker = std::thread::spawn(move || compress(received, destination));
        Self { pieces: Some(pieces), worker: Some(worker) }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        // Long frames go in parts, so that what waits stays small.
        for part in bytes.chunks(BUFFER_LENGTH) {
            match &self.pieces {
                Some(pieces) if pieces.send(part.to_vec()).is_ok() => {}
                // The worker stops before its time only because of an error.
                _ => return Err(self.end().err().unwrap_or_else(|| ErrorKind::BrokenPipe.into())),
            }
        }
        Ok(())
    }

    fn end(&mut self) -> io::Result<Destination> {
        self.pieces = None;
        let stopped = || io::Error::other("the zstd encoder stopped");
        self.worker.take().ok_or_else(stopped)?.join().map_err(|_| stopped())?
    }
}

impl Drop for ZstdEncoder {
    fn drop(&mut self) {
        // The destination is the worker's: only when it has ended is an unfinished file removed.
        drop(self.end());
    }
}

fn compress(pieces: Receiver<Vec<u8>>, destination: Destination) -> io::Result<Destination> {
    let failure = RefCell::new(None);
    let mut compressor = FrameCompressor::new(CompressionLevel::Fastest);
    compressor.set_source(Pieces { pieces, current: Cursor::default(), failure: &failure });
    compressor.set_drain(Drain { destination, failure: &failure });
    compressor.compress();
    let drain = compressor.take_drain();
    drop(compressor);
    match (failure.take(), drain) {
        (None, Some(drain)) => Ok(drain.destination),
        (failure, _) => Err(failure.unwrap_or_else(|| ErrorKind::BrokenPipe.into())),
    }
}

/// The pieces received, as one stream; it ends early after a failure.
struct Pieces<'a> {
    pieces: Receiver<Vec<u8>>,
    current: Cursor<Vec<u8>>,
    failure: &'a RefCell<Option<io::Error>>,
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.current.read(buffer)?;
            if read > 0 || self.failure.borrow().is_some() {
                return Ok(read);
            }
            match self.pieces.recv() {
                Ok(piece) => self.current = Cursor::new(piece),
                Err(_) => return Ok(0),
            }
        }
    }
}

/// Keeps the first error and takes the rest in silence: the encoder would panic.
struct Drain<'a> {
    destination: Destination,
    failure: &'a RefCell<Option<io::Error>>,
}

impl Write for Drain<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.failure.borrow().is_none()
            && let Err(error) = self.destination.write_all(bytes)
        {
            self.failure.replace(Some(error));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

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
                // Who could read the old file can read the new one; where that cannot be had, the
                // default will do.
                let _ = fs::set_permissions(&unfinished.temporary, metadata.permissions());
                Ok(Self::File(unfinished))
            }
            // What a symbolic link names will be there, and the link stays.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::File(Unfinished::create(behind_links(path)?)?)),
            Err(error) => Err(error),
        }
    }

    fn finish(self) -> io::Result<()> {
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
    file: File,
    temporary: PathBuf,
    path: PathBuf,
    finished: bool,
}

impl Unfinished {
    fn create(path: PathBuf) -> io::Result<Self> {
        let directory = path.parent().unwrap_or(Path::new(""));
        if path.file_name().is_none() {
            return Err(ErrorKind::InvalidFilename.into());
        }
        let mut attempt = 0u32;
        loop {
            let temporary = directory.join(format!(".superpacket-{}-{attempt}.partial", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).open(&temporary) {
                Ok(file) => {
                    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).push(temporary.clone());
                    return Ok(Self { file, temporary, path, finished: false });
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists && attempt < 10_000 => attempt += 1,
                Err(error) => return Err(error),
            }
        }
    }

    fn finish(mut self) -> io::Result<()> {
        self.file.flush()?;
        fs::rename(&self.temporary, &self.path)?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).retain(|path| *path != self.temporary);
        if !self.finished {
            // Nobody is left to be told.
            let _ = fs::remove_file(&self.temporary);
        }
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
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_appears_only_when_it_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        let output = |bytes: &[u8]| {
            let mut output = Output::new(Destination::create(&path).unwrap(), Compression::None);
            output.put(bytes).unwrap();
            output
        };
        drop(output(b"lost"));
        assert_eq!(names(directory.path()), [""; 0], "neither the file nor the temporary one");
        let (first, second) = (output(b"first"), output(b"second"));
        assert!(!path.exists());
        first.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first");
        second.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        drop(output(b"lost"));
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(names(directory.path()), ["out"]);
    }

    #[test]
    fn an_unfinished_compressed_file_is_removed_too() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        for compression in [Compression::Gzip, Compression::Zstd] {
            let mut output = Output::new(Destination::create(&path).unwrap(), compression);
            output.put(&[7; 3 * BUFFER_LENGTH]).unwrap();
            drop(output);
            assert_eq!(names(directory.path()), [""; 0], "{compression:?}");
        }
    }

    #[test]
    fn a_full_disk_is_an_error_with_every_compression() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
            let mut output = Output::new(Destination::Stream(Box::new(Full)), compression);
            output.put(b"little").unwrap();
            assert_eq!(output.finish().unwrap_err().kind(), ErrorKind::StorageFull, "{compression:?}, at the end");
            let mut output = Output::new(Destination::Stream(Box::new(Full)), compression);
            let noise: Vec<u8> =
                (0..BUFFER_LENGTH as u32).map(|at| (at.wrapping_mul(at).wrapping_mul(2_654_435_761) >> 13) as u8).collect();
            let error = (0..100).find_map(|_| output.put(&noise).err());
            assert_eq!(error.map(|error| error.kind()), Some(ErrorKind::StorageFull), "{compression:?}, before the end");
        }
    }

    #[test]
    fn a_directory_and_a_missing_directory_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Destination::create(directory.path()).is_err());
        assert!(Destination::create(&directory.path().join("absent/out")).is_err());
    }

    #[test]
    fn pieces_of_every_length_come_out_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
            let mut output = Output::new(Destination::create(&path).unwrap(), compression);
            let mut expected = Vec::new();
            for length in [0, 1, 5, BUFFER_LENGTH - 7, 1, 1, BUFFER_LENGTH, 3 * BUFFER_LENGTH + 9, 4] {
                let piece: Vec<u8> = (0..length).map(|at| (at * 31 + at / 250) as u8).collect();
                output.put(&piece).unwrap();
                expected.extend_from_slice(&piece);
            }
            output.finish().unwrap();
            let file = Box::new(File::open(&path).unwrap());
            let (mut decoded, found) = crate::capture::decompress::decompress(file).unwrap();
            assert_eq!(found, compression);
            let mut read = Vec::new();
            decoded.read_to_end(&mut read).unwrap();
            assert!(read == expected, "{compression:?}");
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
        let destination = Destination::create(&at("soft")).unwrap();
        Output::new(destination, Compression::None).finish().unwrap();
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

    #[cfg(unix)]
    #[test]
    fn a_device_is_written_to_and_not_replaced() {
        use std::os::unix::fs::FileTypeExt;
        let mut output = Output::new(Destination::create(Path::new("/dev/null")).unwrap(), Compression::None);
        output.put(b"gone").unwrap();
        output.finish().unwrap();
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    }
}
