//! Where a capture's bytes go: a buffer, a compressor, and a file that appears under its name only when it is whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Cursor, ErrorKind, Write};
use std::path::{Path, PathBuf};

use flate2::write::GzEncoder;
use ruzstd::encoding::{CompressionLevel, FrameCompressor, MatchGeneratorDriver};

use super::Compression;

/// Collected before a write; as the reader's window.
const BUFFER_LENGTH: usize = 256 * 1024;

/// Plain bytes in each zstd frame. The encoder's window is 128 KiB, so that longer frames would gain nothing.
const ZSTD_FRAME: usize = 512 * 1024;

/// A buffered, perhaps compressed stream into a destination.
pub(super) struct Output {
    buffer: Vec<u8>,
    encoder: Encoder,
}

enum Encoder {
    Plain(Destination),
    Gzip(GzEncoder<Destination>),
    Zstd(Box<ZstdEncoder>),
}

impl Output {
    pub(super) fn new(destination: Destination, compression: Compression) -> Self {
        let encoder = match compression {
            Compression::None => Encoder::Plain(destination),
            Compression::Gzip => Encoder::Gzip(GzEncoder::new(destination, flate2::Compression::default())),
            Compression::Zstd => Encoder::Zstd(Box::new(ZstdEncoder::new(destination))),
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

    /// Writes out what is left and puts the file in its place.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        let destination = match self.encoder {
            Encoder::Plain(destination) => destination,
            Encoder::Gzip(encoder) => encoder.finish()?,
            Encoder::Zstd(encoder) => encoder.finish()?,
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

/// Writes one zstd frame after the other: the encoder takes a frame's input at once, and panics where it cannot write,
/// so that it is given memory on both sides.
struct ZstdEncoder {
    destination: Destination,
    compressor: FrameCompressor<Cursor<Vec<u8>>, Vec<u8>, MatchGeneratorDriver>,
    plain: Vec<u8>,
    compressed: Vec<u8>,
}

impl ZstdEncoder {
    fn new(destination: Destination) -> Self {
        let compressor = FrameCompressor::new(CompressionLevel::Fastest);
        Self { destination, compressor, plain: Vec::with_capacity(ZSTD_FRAME), compressed: Vec::new() }
    }

    fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min(ZSTD_FRAME - self.plain.len()));
            self.plain.extend_from_slice(now);
            bytes = rest;
            if self.plain.len() == ZSTD_FRAME {
                self.end_frame()?;
            }
        }
        Ok(())
    }

    fn end_frame(&mut self) -> io::Result<()> {
        self.compressor.set_source(Cursor::new(std::mem::take(&mut self.plain)));
        self.compressor.set_drain(std::mem::take(&mut self.compressed));
        self.compressor.compress();
        self.plain = self.compressor.take_source().map(Cursor::into_inner).unwrap_or_default();
        self.compressed = self.compressor.take_drain().unwrap_or_default();
        self.destination.write_all(&self.compressed)?;
        self.plain.clear();
        self.compressed.clear();
        Ok(())
    }

    fn finish(mut self) -> io::Result<Destination> {
        if !self.plain.is_empty() {
            self.end_frame()?;
        }
        Ok(self.destination)
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
    /// A temporary file beside `path`, or `path` itself where it exists and is no regular file; `-` is standard output.
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
                // Who could read the old file can read the new one; where that cannot be had, the default will do.
                let _ = fs::set_permissions(&unfinished.temporary, metadata.permissions());
                Ok(Self::File(unfinished))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::File(Unfinished::create(path.to_owned())?)),
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
                Ok(file) => return Ok(Self { file, temporary, path, finished: false }),
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
        if !self.finished {
            // Nobody is left to be told.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Standard output without the line buffer of [`io::stdout`], which would search every block for a line's end.
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

/// Whether two paths name the same existing file, through links of any kind, so that writing one would destroy the other.
/// `-` names no file. On systems other than Unix, hard links are not recognized.
///
/// # Errors
/// If a path exists but cannot be looked at.
pub fn same_file(a: impl AsRef<Path>, b: impl AsRef<Path>) -> io::Result<bool> {
    let (Some(a), Some(b)) = (identity(a.as_ref())?, identity(b.as_ref())?) else { return Ok(false) };
    Ok(a == b)
}

#[cfg(unix)]
fn identity(path: &Path) -> io::Result<Option<(u64, u64)>> {
    use std::os::unix::fs::MetadataExt;
    existing(path, || fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino())))
}

#[cfg(not(unix))]
fn identity(path: &Path) -> io::Result<Option<PathBuf>> {
    existing(path, || fs::canonicalize(path))
}

fn existing<T>(path: &Path, identity: impl FnOnce() -> io::Result<T>) -> io::Result<Option<T>> {
    if path == Path::new("-") {
        return Ok(None);
    }
    match identity() {
        Ok(identity) => Ok(Some(identity)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

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
    fn a_device_is_written_to_and_not_replaced() {
        use std::os::unix::fs::FileTypeExt;
        let mut output = Output::new(Destination::create(Path::new("/dev/null")).unwrap(), Compression::None);
        output.put(b"gone").unwrap();
        output.finish().unwrap();
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    }
}
