//! Captures read from a pipe, by a separate thread, so that a poll never blocks.
//!
//! The writer of the pipe may stop in the middle of a record, and the amount to read next depends
//! on the compression and on record lengths. So a thread reads as from a file, blocks when no data
//! is available, and passes complete frames through a channel.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use superpacket::packet::Layer;

use super::frames::{ReadyFrame, SkippedFrames, read};
use super::timer::set_timer;
use superpacket_captures::file::{CaptureError, Format, LinkType, Reader, Source, Truncated};

/// Maximum number of frames read in advance.
const CAPACITY: usize = 64;

/// Maximum number of bytes of a pipe examined for the first frame.
const MAX_EXAMINED_BYTES: usize = 1 << 20;

/// A message of the thread that reads a pipe.
#[derive(Debug)]
pub(super) enum Event {
    /// A frame, and the header with which it begins.
    Frame(ReadyFrame, Layer),
    /// The end of the capture, possibly within a record.
    End(Option<Truncated>),
    /// The error that ended reading.
    Failure(CaptureError),
}

/// A pipe that no thread reads yet.
#[derive(Debug)]
pub(super) struct Pipe {
    name: String,
    file: File,
    /// The bytes already read, from which the start of the capture is examined.
    head: Vec<u8>,
}

/// The information in the first bytes of a pipe.
#[derive(Debug, Default)]
pub(super) struct Start {
    /// The format; `None` if too few bytes have arrived.
    pub(super) format: Option<Format>,
    /// The header with which the packets begin, derived from the first frame or from the file
    /// header.
    pub(super) layer: Option<Layer>,
}

/// Returns the header with which packets begin according to the capture's file header, if that has
/// been read.
pub(super) fn by_header(reader: &Reader) -> Option<Layer> {
    reader.interfaces().first().map(|interface| layer_of(interface.link_type))
}

impl Pipe {
    /// Opens the capture at `path` if its bytes may arrive later: a pipe, a terminal, a socket, a
    /// device. Does not wait for the writer.
    pub(super) fn open(path: &str) -> Result<Option<Self>, CaptureError> {
        let failed = |source| CaptureError::Open { file: path.to_owned(), source };
        if path == "-" {
            let file = File::from(io::stdin().as_fd().try_clone_to_owned().map_err(failed)?);
            let is_file = file.metadata().map_err(failed)?.is_file();
            return Ok((!is_file).then(|| Pipe {
                name: "standard input".to_owned(),
                file,
                head: Vec::new(),
            }));
        }
        match std::fs::metadata(path) {
            Ok(metadata) if !metadata.is_file() && !metadata.is_dir() => {
                let file = OpenOptions::new()
                    .read(true)
                    .custom_flags(OFlags::NONBLOCK.bits() as i32)
                    .open(path)
                    .map_err(failed)?;
                Ok(Some(Pipe { name: path.to_owned(), file, head: Vec::new() }))
            }
            // Errors are reported by the caller, who opens the path as a file.
            _ => Ok(None),
        }
    }

    /// Waits at most `patience` for the first frame, and returns what the capture's first bytes
    /// reveal.
    pub(super) fn look(&mut self, patience: Duration) -> Result<Start, CaptureError> {
        let until = Instant::now() + patience;
        let mut has_ended = false;
        loop {
            let is_last =
                has_ended || self.head.len() >= MAX_EXAMINED_BYTES || Instant::now() >= until;
            match self.examine() {
                Ok((start, has_frame)) if has_frame || is_last => return Ok(start),
                Err(error) if has_ended => return Err(error),
                // The thread will find the same error again, unless the data was only incomplete.
                Err(_) if is_last => return Ok(Start::default()),
                Ok(_) | Err(_) => has_ended = self.read_more(until)?,
            }
        }
    }

    /// Examines the bytes that have arrived from the pipe. Also returns whether they contain a
    /// frame.
    fn examine(&self) -> Result<(Start, bool), CaptureError> {
        let mut reader =
            Reader::from_stream(&self.name, Box::new(io::Cursor::new(self.head.clone())))?;
        let format = Some(reader.format());
        // Skipped frames are counted later, when they are replayed.
        let first = read(&mut reader, None, &SkippedFrames::default())?.map(|(_, layer)| layer);
        Ok((Start { format, layer: first.or(by_header(&reader)) }, first.is_some()))
    }

    /// Reads more bytes of the pipe, waiting at most until the given time. Returns whether the
    /// pipe's end was reached.
    fn read_more(&mut self, until: Instant) -> Result<bool, CaptureError> {
        let failed = |source| CaptureError::Open { file: self.name.clone(), source };
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()) as _,
        };
        match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => return Ok(false),
            Ok(_) => {}
            Err(error) => return Err(failed(error.into())),
        }
        let mut bytes = [0; 65_536];
        match self.file.read(&mut bytes) {
            Ok(length) => {
                self.head.extend_from_slice(&bytes[..length]);
                Ok(length == 0)
            }
            Err(error) if is_temporary(&error) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }
}

/// Returns the header with which packets begin in captures of this link type.
const fn layer_of(link_type: LinkType) -> Layer {
    match link_type {
        LinkType::RAW | LinkType::RAW_12 | LinkType::RAW_14 | LinkType::IPV4 | LinkType::IPV6 => {
            Layer::Ip
        }
        LinkType::NULL | LinkType::LOOP | LinkType::LINUX_SLL | LinkType::LINUX_SLL2 => Layer::Ip,
        _ => Layer::Ethernet,
    }
}

/// A capture that a thread reads from a pipe, into which another process may still write it.
#[derive(Debug)]
pub(super) struct CaptureStream {
    /// Receives the reading thread's messages; `None` once dropped, which ends a thread that waits
    /// for room in the channel.
    events: Option<Receiver<Event>>,
    /// Becomes readable to make the thread end.
    stop: OwnedFd,
    /// Whether the player found no event and must be notified of the next.
    is_waiting: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl CaptureStream {
    /// Starts reading `pipe` in a thread with the privileges of this one. After
    /// [`take`](Self::take) has found no event, `timer` becomes readable at the next event.
    pub(super) fn start(
        port: &str,
        pipe: Pipe,
        timer: Arc<OwnedFd>,
        errors: Arc<SkippedFrames>,
    ) -> io::Result<Self> {
        let Pipe { name, file, head } = pipe;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let input = io::Cursor::new(head).chain(StoppableInput { file, stop: stop.try_clone()? });
        let (sender, events) = sync_channel(CAPACITY);
        let is_waiting = Arc::new(AtomicBool::new(false));
        let event_sender = EventSender {
            events: sender,
            is_waiting: Arc::clone(&is_waiting),
            timer,
            port: port.to_owned(),
        };
        let thread = std::thread::Builder::new()
            .name("capture".into())
            .spawn(move || read_all(&name, Box::new(input), &event_sender, &errors))?;
        Ok(CaptureStream { events: Some(events), stop, is_waiting, thread: Some(thread) })
    }

    /// Returns the next event, if there is one. Otherwise calls `disarm` to disarm the timer, which
    /// then becomes readable at the next event.
    pub(super) fn take<E>(
        &self,
        disarm: impl FnOnce() -> Result<(), E>,
    ) -> Result<Option<Event>, E> {
        if let Some(event) = self.try_take() {
            return Ok(Some(event));
        }
        // The order matters: an event sent after the second check finds the flag set, and arms the
        // timer after it was disarmed.
        disarm()?;
        self.is_waiting.swap(true, Ordering::AcqRel);
        Ok(self.try_take())
    }

    fn try_take(&self) -> Option<Event> {
        match self.events.as_ref()?.try_recv() {
            Ok(event) => Some(event),
            Err(TryRecvError::Empty) => None,
            // The reading thread has panicked, which is logged, or its last event was taken before.
            Err(TryRecvError::Disconnected) => Some(Event::End(None)),
        }
    }
}

impl Drop for CaptureStream {
    fn drop(&mut self) {
        self.events = None;
        // If the counter is full, the descriptor is readable anyway.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The end of the channel through which the reading thread sends its events.
struct EventSender {
    events: SyncSender<Event>,
    is_waiting: Arc<AtomicBool>,
    timer: Arc<OwnedFd>,
    /// The port's name, for messages.
    port: String,
}

impl EventSender {
    /// Sends an event; returns whether the receiver still exists.
    fn send(&self, event: Event) -> bool {
        if self.events.send(event).is_err() {
            return false;
        }
        if self.is_waiting.swap(false, Ordering::AcqRel)
            && let Err(error) = set_timer(&self.port, &self.timer, 1)
        {
            tracing::error!(%error, "the capture is not read on");
        }
        true
    }
}

/// Reads the capture and sends its frames, to its end or until the receiver no longer exists.
fn read_all(name: &str, input: Box<dyn Read + Send>, events: &EventSender, errors: &SkippedFrames) {
    let last = match Reader::from_stream(name, input) {
        Err(error) => Event::Failure(error),
        Ok(mut reader) => loop {
            match read(&mut reader, None, errors) {
                Ok(Some((frame, layer))) => {
                    if !events.send(Event::Frame(frame, layer)) {
                        return;
                    }
                }
                Ok(None) => break Event::End(reader.truncated().cloned()),
                Err(error) => break Event::Failure(error),
            }
        },
    };
    events.send(last);
}

/// A file that is read when data is available, until the descriptor `stop` becomes readable.
struct StoppableInput {
    file: File,
    stop: OwnedFd,
}

impl Read for StoppableInput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            wait_for(&self.file, PollFlags::IN, &self.stop)?;
            match self.file.read(buffer) {
                // Another process that reads the same pipe was faster.
                Err(error) if is_temporary(&error) => {}
                result => return result,
            }
        }
    }
}

/// Waits until a pipe can be read or written (`events`). The pipe's end and errors also count:
/// reading or writing reports them.
///
/// # Errors
/// The system call's error, or one that says that the descriptor `stop` is readable.
pub(super) fn wait_for(file: &File, events: PollFlags, stop: &OwnedFd) -> io::Result<()> {
    loop {
        let mut descriptors = [PollFd::new(stop, PollFlags::IN), PollFd::new(file, events)];
        match poll(&mut descriptors, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !descriptors[0].revents().is_empty() {
            return Err(io::Error::other("the port was closed"));
        }
        if !descriptors[1].revents().is_empty() {
            return Ok(());
        }
    }
}

/// Returns whether a read or write may succeed when it is tried again.
pub(super) fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
