//! Sources of frames for commands.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use crate::file::{CaptureError, Format, Interface, Item, Reader, Source, TcpEnd, Truncated};

use crate::commands::error::Error;
use crate::commands::packets::PacketCursor;
use crate::commands::progress::Progress;
use crate::commands::recording::Recording;
use crate::commands::waiting::{Waiting, in_thread};

/// Returns whether a path stands for standard input or standard output.
pub(crate) fn is_stream(path: &Path) -> bool {
    path == Path::new("-")
}

/// A source of frames.
pub(crate) enum InputSource<'a> {
    /// A capture.
    Reader(Box<Reader>),
    /// A capture that grows, or in several files.
    Recording(Box<Recording>),
    /// Packets in memory.
    Packets(PacketCursor<'a>),
}

impl InputSource<'_> {
    /// Opens the capture at `path`. While opening has to wait for data, the progress is called
    /// regularly and can end the wait.
    pub(crate) fn open(path: &Path, progress: &mut dyn Progress) -> Result<Self, Error> {
        let reader = if may_block(path) {
            let path = path.to_owned();
            in_thread(progress, move || {
                let (name, stream) = open_stream(&path)?;
                Reader::live(&name, stream)
            })??
        } else {
            Reader::open(path)?
        };
        Ok(InputSource::Reader(Box::new(reader)))
    }

    /// Opens the capture in a stream, which a thread reads. While the capture's header has not
    /// arrived, the progress is called regularly and can end the wait.
    pub(crate) fn live(
        file: String,
        stream: Box<dyn Read + Send>,
        progress: &mut dyn Progress,
    ) -> Result<Self, Error> {
        let reader = in_thread(progress, move || Reader::live(&file, stream))??;
        Ok(InputSource::Reader(Box::new(reader)))
    }

    /// Opens a capture that tcpdump has written or is writing; see
    /// [`Input::Recording`](crate::Input::Recording).
    pub(crate) fn open_recording(
        path: &Path,
        rotated: bool,
        follow: bool,
        progress: &mut dyn Progress,
    ) -> Result<Self, Error> {
        if !rotated && (!follow || is_stream(path) || may_block(path)) {
            return Self::open(path, progress);
        }
        if is_stream(path) {
            return Err(Error::Options("rotated: standard input is no set of files".to_owned()));
        }
        let recording = Recording::open(path, rotated, follow, progress)?;
        Ok(InputSource::Recording(Box::new(recording)))
    }

    #[inline]
    pub(crate) fn next_item(&mut self) -> Result<Option<Item<'_>>, CaptureError> {
        match self {
            InputSource::Reader(reader) => reader.next_item(),
            InputSource::Recording(recording) => recording.next_item(),
            InputSource::Packets(cursor) => Ok(cursor.next_frame()?.map(Item::Frame)),
        }
    }

    /// Returns the name of the capture for reports.
    pub(crate) fn file(&self) -> &str {
        match self {
            InputSource::Reader(reader) => reader.file(),
            InputSource::Recording(recording) => recording.file(),
            InputSource::Packets(_) => MEMORY,
        }
    }

    /// Returns the total number of bytes of the input, if it is known.
    pub(crate) fn length(&self) -> Option<u64> {
        match self {
            InputSource::Reader(reader) => reader.file_length(),
            InputSource::Recording(recording) => recording.length(),
            InputSource::Packets(cursor) => Some(cursor.length()),
        }
    }

    /// Returns the number of bytes read so far, counted as in [`length`](Self::length).
    pub(crate) fn bytes_read(&self) -> u64 {
        match self {
            InputSource::Reader(reader) => reader.bytes_read(),
            InputSource::Recording(recording) => recording.bytes_read(),
            InputSource::Packets(cursor) => cursor.bytes_read(),
        }
    }

    pub(crate) fn format(&self) -> Format {
        match self {
            InputSource::Reader(reader) => reader.format(),
            InputSource::Recording(recording) => recording.format(),
            InputSource::Packets(cursor) => cursor.format(),
        }
    }

    pub(crate) fn interfaces(&self) -> &[Interface] {
        match self {
            InputSource::Reader(reader) => reader.interfaces(),
            InputSource::Recording(recording) => recording.interfaces(),
            InputSource::Packets(cursor) => cursor.interfaces(),
        }
    }

    pub(crate) fn truncated(&self) -> Option<&Truncated> {
        match self {
            InputSource::Reader(reader) => reader.truncated(),
            InputSource::Recording(recording) => recording.truncated(),
            InputSource::Packets(_) => None,
        }
    }
}

impl Waiting for InputSource<'_> {
    fn is_live(&self) -> bool {
        match self {
            InputSource::Reader(reader) => reader.is_live(),
            InputSource::Recording(recording) => recording.is_live(),
            InputSource::Packets(_) => false,
        }
    }

    fn wait(&self, limit: Duration) -> bool {
        match self {
            InputSource::Reader(reader) => reader.wait(limit),
            InputSource::Recording(recording) => recording.wait(limit),
            InputSource::Packets(_) => true,
        }
    }
}

/// The name of packets in memory, in reports.
const MEMORY: &str = "memory";

/// Returns whether opening or reading this path may block, because it is a TCP connection, a pipe,
/// a device or a socket, and not a regular file. Standard input may be any of these.
pub(crate) fn may_block(path: &Path) -> bool {
    if TcpEnd::parse(path).is_some() {
        return true;
    }
    let metadata = if is_stream(path) { standard_input() } else { fs::metadata(path) };
    // A path that cannot be examined is reported when it is opened.
    metadata.map_or(is_stream(path), |metadata| !metadata.is_file() && !metadata.is_dir())
}

/// Returns the metadata of the file from which standard input is read.
#[cfg(unix)]
fn standard_input() -> io::Result<fs::Metadata> {
    use std::os::fd::AsFd;
    File::from(io::stdin().as_fd().try_clone_to_owned()?).metadata()
}

/// Returns an error, because the metadata of standard input cannot be read on this system.
#[cfg(not(unix))]
fn standard_input() -> io::Result<fs::Metadata> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Opens a path whose data may arrive only later, such as a pipe or a TCP connection. Returns its
/// name in reports, and the stream.
pub(crate) fn open_stream(path: &Path) -> Result<(String, Box<dyn Read + Send>), CaptureError> {
    if is_stream(path) {
        return Ok(("standard input".to_owned(), Box::new(io::stdin())));
    }
    let name = path.display().to_string();
    let opened: io::Result<Box<dyn Read + Send>> = match TcpEnd::parse(path) {
        Some(end) => end.open().map(|stream| Box::new(stream) as _),
        None => File::open(path).map(|file| Box::new(file) as _),
    };
    match opened {
        Ok(stream) => Ok((name, stream)),
        Err(source) => Err(CaptureError::Open { file: name, source }),
    }
}
