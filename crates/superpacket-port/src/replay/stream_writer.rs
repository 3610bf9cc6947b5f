//! Recording into a pipe, by a separate thread, so that sending never waits for the pipe's reader.
//!
//! A reader may be slow, or not read at all. Frames therefore pass through a queue of limited
//! bytes. When the queue is full, the port is full. Frames that the reader does not take soon after
//! the port was closed are lost.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::stream::{is_temporary, wait_for};
use superpacket_captures::file::{
    CaptureError, FrameOptions, Interface, OutputFormat, OutputPlace, Record, Sink, Timestamp,
    Writer, open_special,
};

/// Maximum number of bytes in the queue, including [`KEPT_PER_FRAME`] for each frame.
const CAPACITY: usize = 4 << 20;

/// Bytes of memory counted per queued frame, in addition to the frame's own bytes.
const KEPT_PER_FRAME: usize = 64;

/// Time for which a reader can still take queued frames after the port was closed.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Time for which closing a port waits until the writing thread has ended, after [`CLOSE_TIMEOUT`]
/// has passed and the thread was told to stop. A blocking device may keep it from ending.
const STOP_TIMEOUT: Duration = Duration::from_millis(100);

/// Number of bytes written at once to an inherited pipe, which stays in blocking mode since other
/// processes share it. A pipe that is ready accepts this many (`PIPE_BUF`).
const SHARED_PIECE: usize = 4096;

/// The reason why a frame was not written.
#[derive(Debug)]
pub(super) enum NotWritten {
    /// The queue has no room for the frame.
    Full,
    /// The writing thread has failed with this error; `None` if the error has been reported before.
    Failed(Option<CaptureError>),
}

/// An opened pipe, terminal or device.
#[derive(Debug)]
pub(super) struct OutputStream {
    name: String,
    file: File,
    /// Maximum number of bytes written at once.
    piece: usize,
}

impl OutputStream {
    /// Opens `path`, unless it is a regular file or does not exist; `-` is standard output. Does
    /// not wait for a reader.
    pub(super) fn open(path: &str) -> Result<Option<Self>, CaptureError> {
        let failed = |source| CaptureError::Create { file: path.to_owned(), source };
        if path == "-" {
            let file = File::from(io::stdout().as_fd().try_clone_to_owned().map_err(failed)?);
            let is_file = file.metadata().map_err(failed)?.is_file();
            return Ok((!is_file).then(|| OutputStream {
                name: "standard output".to_owned(),
                file,
                piece: SHARED_PIECE,
            }));
        }
        match OutputPlace::find(Path::new(path)) {
            Ok(OutputPlace::Special) => {
                let opened = open_special(
                    Path::new(path),
                    OpenOptions::new().write(true).custom_flags(OFlags::NONBLOCK.bits() as i32),
                );
                let file = opened.map_err(|error| {
                    match error.raw_os_error().map(Errno::from_raw_os_error) {
                        // A device without hardware gives the same error.
                        Some(Errno::NXIO)
                            if std::fs::metadata(path)
                                .is_ok_and(|metadata| metadata.file_type().is_fifo()) =>
                        {
                            failed(io::Error::new(error.kind(), "nobody reads the pipe"))
                        }
                        _ => failed(error),
                    }
                })?;
                Ok(Some(OutputStream { name: path.to_owned(), file, piece: usize::MAX }))
            }
            // Errors are reported by the caller, who creates the path as a file.
            _ => Ok(None),
        }
    }
}

/// A writer of a capture into a pipe, terminal or device.
#[derive(Debug)]
pub(super) struct StreamWriter {
    /// The port's name, for messages.
    port: String,
    queue: Arc<WriteQueue>,
    state: Mutex<WriterState>,
    /// Number of times that a frame was refused because the queue was full.
    full: AtomicU64,
}

#[derive(Debug)]
enum WriterState {
    /// No frame has been sent yet. The writing thread starts with the first one, since it would
    /// otherwise keep the privileges with which the port was opened.
    Opened(CaptureParameters),
    Writing(WriterThread),
    /// The writing thread could not be started.
    Failed,
}

/// The parameters for starting to write a capture.
#[derive(Debug)]
struct CaptureParameters {
    output: OutputStream,
    format: OutputFormat,
    interface: Interface,
}

/// The thread that writes queued frames, and the means to end it.
#[derive(Debug)]
struct WriterThread {
    frames: Sender<QueuedFrame>,
    /// Becomes readable to make the thread end at once, even if frames are left.
    stop: OwnedFd,
    /// Disconnected when the writing thread ends.
    end: Receiver<()>,
    handle: JoinHandle<()>,
}

/// A frame in the queue.
#[derive(Debug)]
struct QueuedFrame {
    bytes: Vec<u8>,
    time: Timestamp,
}

/// State shared by the sending threads and the writing thread.
#[derive(Debug, Default)]
struct WriteQueue {
    /// Number of bytes in the queue.
    length: AtomicUsize,
    has_failed: AtomicBool,
    /// The error that ended writing, until it is reported.
    failure: Mutex<Option<CaptureError>>,
}

impl WriteQueue {
    /// Reserves room in the queue for a frame of `length` bytes; returns whether there was enough.
    fn reserve(&self, length: usize) -> bool {
        let add = |waiting: usize| {
            waiting.checked_add(length + KEPT_PER_FRAME).filter(|sum| *sum <= CAPACITY)
        };
        self.length.fetch_update(Ordering::AcqRel, Ordering::Relaxed, add).is_ok()
    }

    fn release(&self, length: usize) {
        self.length.fetch_sub(length + KEPT_PER_FRAME, Ordering::AcqRel);
    }

    fn fail(&self, error: CaptureError) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        self.has_failed.store(true, Ordering::Release);
    }

    fn failed(&self) -> NotWritten {
        NotWritten::Failed(self.failure.lock().unwrap_or_else(PoisonError::into_inner).take())
    }
}

impl StreamWriter {
    /// Prepares to write a capture of one interface to `output`.
    pub(super) fn new(
        port: &str,
        output: OutputStream,
        format: OutputFormat,
        interface: Interface,
    ) -> Self {
        StreamWriter {
            port: port.to_owned(),
            queue: Arc::default(),
            state: Mutex::new(WriterState::Opened(CaptureParameters { output, format, interface })),
            full: AtomicU64::new(0),
        }
    }

    /// Returns the number of frames refused because the queue was full.
    pub(super) fn full(&self) -> u64 {
        self.full.load(Ordering::Relaxed)
    }

    /// Queues a frame of `length` bytes, made of `pieces`, if there is room.
    pub(super) fn write<'a>(
        &self,
        length: usize,
        pieces: impl Iterator<Item = &'a [u8]>,
        time: Timestamp,
    ) -> Result<(), NotWritten> {
        if self.queue.has_failed.load(Ordering::Acquire) {
            return Err(self.queue.failed());
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.start(&mut state);
        let WriterState::Writing(thread) = &*state else { return Err(self.queue.failed()) };
        if !self.queue.reserve(length) {
            self.full.fetch_add(1, Ordering::Relaxed);
            return Err(NotWritten::Full);
        }
        let mut bytes = Vec::with_capacity(length);
        pieces.for_each(|piece| bytes.extend_from_slice(piece));
        thread.frames.send(QueuedFrame { bytes, time }).map_err(|_| self.queue.failed())
    }

    /// Starts the writing thread, with the privileges of the calling thread, unless it runs.
    fn start(&self, state: &mut WriterState) {
        *state = match std::mem::replace(state, WriterState::Failed) {
            WriterState::Opened(beginning) => {
                let file = beginning.output.name.clone();
                match self.spawn(beginning) {
                    Ok(thread) => WriterState::Writing(thread),
                    Err(source) => {
                        self.queue.fail(CaptureError::Write { file, source });
                        WriterState::Failed
                    }
                }
            }
            started => started,
        };
    }

    fn spawn(&self, beginning: CaptureParameters) -> io::Result<WriterThread> {
        let CaptureParameters { output: OutputStream { name, file, piece }, format, interface } =
            beginning;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let output = Box::new(StoppableOutput { file, piece, stop: stop.try_clone()? });
        let (frames, waiting) = channel();
        let (ends, end) = channel();
        let queue = Arc::clone(&self.queue);
        let handle = std::thread::Builder::new().name("record".into()).spawn(move || {
            let _ends: Sender<()> = ends;
            let begin = || {
                let mut writer = Writer::into_stream(&name, output, format)?;
                writer.declare(&[interface])?;
                Ok(writer)
            };
            if let Err(error) = begin().and_then(|writer| write_all(writer, &waiting, &queue)) {
                queue.fail(error);
            }
        })?;
        Ok(WriterThread { frames, stop, end, handle })
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        let mut state = std::mem::replace(
            self.state.get_mut().unwrap_or_else(PoisonError::into_inner),
            WriterState::Failed,
        );
        // A capture without frames also has a header.
        self.start(&mut state);
        if let WriterState::Writing(WriterThread { frames, stop, end, handle }) = state {
            drop(frames);
            let mut ended = end.recv_timeout(CLOSE_TIMEOUT);
            if ended == Err(RecvTimeoutError::Timeout) {
                let _ = rustix::io::write(&stop, &1u64.to_ne_bytes());
                ended = end.recv_timeout(STOP_TIMEOUT);
            }
            if ended == Err(RecvTimeoutError::Timeout) {
                tracing::error!(port = %self.port, "the thread that writes the recorded capture is held up, and left behind");
            } else {
                let _ = handle.join();
            }
        }
        if let NotWritten::Failed(Some(error)) = self.queue.failed() {
            tracing::error!(port = %self.port, %error, "the recorded capture is not whole");
        }
    }
}

/// Writes the queued frames until the channel is closed.
fn write_all(
    mut writer: Writer,
    waiting: &Receiver<QueuedFrame>,
    queue: &WriteQueue,
) -> Result<(), CaptureError> {
    loop {
        let next = match waiting.try_recv() {
            // Before waiting for a frame, passes all data on to a waiting reader.
            Err(TryRecvError::Empty) => {
                writer.flush()?;
                waiting.recv().ok()
            }
            next => next.ok(),
        };
        let Some(QueuedFrame { bytes, time }) = next else { return writer.finish().map(drop) };
        let record = Record {
            interface: 0,
            time: Some(time),
            original_length: None,
            options: FrameOptions::NONE,
        };
        writer.write(record, [&bytes[..]])?;
        queue.release(bytes.len());
    }
}

/// A file that is written when it accepts data, until the descriptor `stop` becomes readable.
struct StoppableOutput {
    file: File,
    piece: usize,
    stop: OwnedFd,
}

impl Write for StoppableOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            wait_for(&self.file, PollFlags::OUT, &self.stop)?;
            match self.file.write(&bytes[..bytes.len().min(self.piece)]) {
                Err(error) if is_temporary(&error) => {}
                result => return result,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
