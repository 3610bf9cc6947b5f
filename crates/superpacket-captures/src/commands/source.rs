//! Sources of frames for commands, and how they are waited for.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::file::{CaptureError, Format, Frame, Interface, Reader, Source, Truncated};

use crate::commands::error::Error;
use crate::commands::packets::PacketCursor;
use crate::commands::progress::Progress;

/// Maximum time between two questions to the progress while a command waits.
const SLICE: Duration = Duration::from_millis(50);

/// After a request to end, the time for which a live input is still read if something arrives: the
/// program that writes it may have got the same signal, and writes its last packets.
const LAST_PACKETS: Duration = Duration::from_millis(500);

/// After a request to end, the time without data after which a live input ends.
const QUIET: Duration = Duration::from_millis(100);

/// Returns whether this path means standard input or output.
pub(crate) fn is_stream(path: &Path) -> bool {
    path == Path::new("-")
}

/// A source of frames.
pub(crate) enum InputSource<'a> {
    /// A capture.
    Reader(Box<Reader>),
    /// Packets in memory.
    Packets(PacketCursor<'a>),
}

impl InputSource<'_> {
    /// Opens the capture at `path`. If it may have to be waited for, the progress is asked
    /// meanwhile.
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

    #[inline]
    pub(crate) fn next_frame(&mut self) -> Result<Option<Frame<'_>>, CaptureError> {
        match self {
            InputSource::Reader(reader) => reader.next_frame(),
            InputSource::Packets(cursor) => cursor.next_frame(),
        }
    }

    /// Returns the name of the capture for reports.
    pub(crate) fn file(&self) -> &str {
        match self {
            InputSource::Reader(reader) => reader.file(),
            InputSource::Packets(_) => MEMORY,
        }
    }

    /// Returns the number of bytes of all that is to be read, if it is known.
    pub(crate) fn length(&self) -> Option<u64> {
        match self {
            InputSource::Reader(reader) => reader.file_length(),
            InputSource::Packets(cursor) => Some(cursor.length()),
        }
    }

    /// Returns the number of bytes read so far, counted as in [`length`](Self::length).
    pub(crate) fn bytes_read(&self) -> u64 {
        match self {
            InputSource::Reader(reader) => reader.bytes_read(),
            InputSource::Packets(cursor) => cursor.bytes_read(),
        }
    }

    pub(crate) fn format(&self) -> Format {
        match self {
            InputSource::Reader(reader) => reader.format(),
            InputSource::Packets(cursor) => cursor.format(),
        }
    }

    pub(crate) fn interfaces(&self) -> &[Interface] {
        match self {
            InputSource::Reader(reader) => reader.interfaces(),
            InputSource::Packets(cursor) => cursor.interfaces(),
        }
    }

    pub(crate) fn truncated(&self) -> Option<&Truncated> {
        match self {
            InputSource::Reader(reader) => reader.truncated(),
            InputSource::Packets(_) => None,
        }
    }
}

/// The name of packets in memory, in reports.
const MEMORY: &str = "memory";

/// Returns whether opening or reading this path may have to wait: it is standard input, a pipe, a
/// device or a socket, and not a regular file.
pub(crate) fn may_block(path: &Path) -> bool {
    let metadata = if is_stream(path) { standard_input() } else { fs::metadata(path) };
    // A path that cannot be examined is reported when it is opened.
    metadata.map_or(is_stream(path), |metadata| !metadata.is_file() && !metadata.is_dir())
}

/// Returns what is known about the file from which standard input is read.
#[cfg(unix)]
fn standard_input() -> io::Result<fs::Metadata> {
    use std::os::fd::AsFd;
    File::from(io::stdin().as_fd().try_clone_to_owned()?).metadata()
}

/// Returns an error: standard input cannot be examined.
#[cfg(not(unix))]
fn standard_input() -> io::Result<fs::Metadata> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Opens a path that may have to be waited for. Returns its name in reports, and the stream.
pub(crate) fn open_stream(path: &Path) -> Result<(String, Box<dyn Read + Send>), CaptureError> {
    if is_stream(path) {
        return Ok(("standard input".to_owned(), Box::new(io::stdin())));
    }
    let name = path.display().to_string();
    match File::open(path) {
        Ok(file) => Ok((name, Box::new(file))),
        Err(source) => Err(CaptureError::Open { file: name, source }),
    }
}

/// Does work that may block in a thread, and asks the progress meanwhile. If the progress ends the
/// command, the thread is left alone.
///
/// # Errors
/// [`Error::Interrupted`] if the progress interrupts the command, or wants the input to end.
pub(crate) fn in_thread<T: Send + 'static>(
    progress: &mut dyn Progress,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let (sender, done) = sync_channel(1);
    let thread = std::thread::spawn(move || sender.send(work()).is_ok());
    loop {
        match done.recv_timeout(SLICE) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => {
                if progress.advance(0, 0).is_break() || progress.end_requested() {
                    return Err(Error::Interrupted);
                }
            }
            // The thread has panicked.
            Err(RecvTimeoutError::Disconnected) => match thread.join() {
                Ok(_) => return Err(Error::Interrupted),
                Err(panic) => std::panic::resume_unwind(panic),
            },
        }
    }
}

/// How a wait for data ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// There is something to read, or the input has ended.
    Data,
    /// The time has passed.
    Limit,
    /// The input ends here at the request of the progress.
    End,
}

/// A source that may have to wait for data.
pub(crate) trait Waiting {
    /// Returns whether reading may have to wait.
    fn is_live(&self) -> bool;

    /// Waits until there is something to read, but at most for `limit`. Returns whether there is.
    fn wait(&self, limit: Duration) -> bool;
}

impl Waiting for InputSource<'_> {
    fn is_live(&self) -> bool {
        match self {
            InputSource::Reader(reader) => reader.is_live(),
            InputSource::Packets(_) => false,
        }
    }

    fn wait(&self, limit: Duration) -> bool {
        match self {
            InputSource::Reader(reader) => reader.wait(limit),
            InputSource::Packets(_) => true,
        }
    }
}

/// Asks the progress whether an input should end before its own end.
#[derive(Debug)]
pub(crate) struct EndRequests {
    asked: Instant,
    /// When the reading ends, if that was requested.
    deadline: Option<Instant>,
}

impl EndRequests {
    pub(crate) fn new() -> Self {
        EndRequests { asked: Instant::now(), deadline: None }
    }

    /// Returns whether the progress wants the input to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.deadline.is_some()
    }

    /// Reports to the progress how many packets and bytes were `read`, and returns whether the
    /// input ends here.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the progress interrupts the command.
    pub(crate) fn ask(
        &mut self,
        source: &dyn Waiting,
        read: (u64, u64),
        progress: &mut dyn Progress,
    ) -> Result<bool, Error> {
        if progress.advance(read.0, read.1).is_break() {
            return Err(Error::Interrupted);
        }
        Ok(self.ends(source, progress))
    }

    /// Returns whether the input ends here. Called when the reading begins.
    pub(crate) fn ends(&mut self, source: &dyn Waiting, progress: &mut dyn Progress) -> bool {
        let now = Instant::now();
        self.asked = now;
        if self.deadline.is_none() && progress.end_requested() {
            self.deadline = Some(if source.is_live() { now + LAST_PACKETS } else { now });
        }
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// Waits until there is something to read, the input ends by request, or it is `until`.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the progress interrupts the command.
    pub(crate) fn wait(
        &mut self,
        source: &dyn Waiting,
        read: (u64, u64),
        progress: &mut dyn Progress,
        until: Option<Instant>,
    ) -> Result<Waited, Error> {
        let began = Instant::now();
        loop {
            let now = Instant::now();
            let is_due = now.duration_since(self.asked) >= SLICE || self.is_ending();
            if is_due && self.ask(source, read, progress)? {
                return Ok(Waited::End);
            }
            let end = self.deadline.map(|deadline| deadline.min(began + QUIET));
            if end.is_some_and(|end| now >= end) {
                return Ok(Waited::End);
            }
            if until.is_some_and(|until| now >= until) {
                return Ok(Waited::Limit);
            }
            let next = [Some(now + SLICE), end, until].into_iter().flatten().min().unwrap_or(now);
            if source.wait(next.duration_since(now)) {
                return Ok(Waited::Data);
            }
        }
    }
}
