//! Reads a stream in a thread, so that the reader of a capture is not blocked while no data
//! arrives.

use std::io::{self, Cursor, ErrorKind, Read};
use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::window::Window;

/// Maximum number of bytes that the thread reads at once.
const CHUNK_LENGTH: usize = 256 * 1024;

/// Maximum number of chunks that the thread has read ahead and the reader has not taken yet.
const CHUNKS_IN_FLIGHT: usize = 4;

/// The time between two reads of a stream in non-blocking mode that has no data. A terminal, for
/// example, can be put into this mode by another program.
const RETRY: Duration = Duration::from_millis(5);

/// A stream whose data a thread reads ahead. After a call of [`Arrivals::stop_blocking`], reads
/// return [`ErrorKind::WouldBlock`] while no data is available.
pub(super) struct LiveStream(Arc<Mutex<Arrived>>);

/// A handle to wait for the bytes of a [`LiveStream`].
pub(super) struct Arrivals(Arc<Mutex<Arrived>>);

/// Bytes that the reading thread has delivered.
struct Arrived {
    chunks: Receiver<io::Result<Vec<u8>>>,
    current: Cursor<Vec<u8>>,
    /// The error that ended the stream, if a read has not returned it yet.
    error: Option<io::Error>,
    ended: bool,
    blocking: bool,
}

/// Starts a thread that reads `source` until its end, an error, or until both returned values are
/// dropped.
pub(super) fn read_ahead(source: Box<dyn Read + Send>) -> io::Result<(LiveStream, Arrivals)> {
    let (sender, chunks) = sync_channel(CHUNKS_IN_FLIGHT);
    std::thread::Builder::new().name("capture".into()).spawn(move || send_all(source, &sender))?;
    let arrived = Arc::new(Mutex::new(Arrived {
        chunks,
        current: Cursor::default(),
        error: None,
        ended: false,
        blocking: true,
    }));
    Ok((LiveStream(Arc::clone(&arrived)), Arrivals(arrived)))
}

fn send_all(mut source: Box<dyn Read + Send>, chunks: &SyncSender<io::Result<Vec<u8>>>) {
    let mut buffer = vec![0; CHUNK_LENGTH];
    loop {
        let chunk = match source.read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => Ok(buffer[..read].to_vec()),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(RETRY);
                continue;
            }
            Err(error) => Err(error),
        };
        let is_last = chunk.is_err();
        if chunks.send(chunk).is_err() || is_last {
            return;
        }
    }
}

impl Arrived {
    /// Returns whether a read would return at once: with bytes, an error, or the end. Waits for
    /// this at most as long as `limit` says; `None` means without limit.
    fn is_ready(&mut self, limit: Option<Duration>) -> bool {
        if self.ended
            || self.error.is_some()
            || self.current.position() < self.current.get_ref().len() as u64
        {
            return true;
        }
        let received = match limit {
            None => self.chunks.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(Duration::ZERO) => self.chunks.try_recv().map_err(|error| match error {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            }),
            Some(limit) => self.chunks.recv_timeout(limit),
        };
        match received {
            Ok(Ok(chunk)) => self.current = Cursor::new(chunk),
            Ok(Err(error)) => self.error = Some(error),
            Err(RecvTimeoutError::Disconnected) => self.ended = true,
            Err(RecvTimeoutError::Timeout) => return false,
        }
        true
    }
}

impl Read for LiveStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut arrived = lock(&self.0);
        let limit = (!arrived.blocking).then_some(Duration::ZERO);
        if !arrived.is_ready(limit) {
            return Err(ErrorKind::WouldBlock.into());
        }
        match arrived.error.take() {
            Some(error) => {
                arrived.ended = true;
                Err(error)
            }
            None => arrived.current.read(buffer),
        }
    }
}

impl Arrivals {
    /// Lets reads of the stream return [`ErrorKind::WouldBlock`] instead of waiting.
    pub(super) fn stop_blocking(&self) {
        lock(&self.0).blocking = false;
    }

    /// Waits until a read of the stream would return at once, but at most for `limit`. Returns
    /// whether it would.
    pub(super) fn wait(&self, limit: Duration) -> bool {
        lock(&self.0).is_ready(Some(limit))
    }
}

/// A stream of records in another format than pcap or pcapng, which may have to wait for data.
pub(crate) struct RecordStream {
    window: Window,
    /// The handle to wait for data, if a thread reads the stream.
    arrivals: Option<Arrivals>,
}

impl RecordStream {
    /// Returns a stream that is read in the calling thread, which blocks while no data is
    /// available.
    pub(crate) fn new(stream: Box<dyn Read + Send>) -> Self {
        RecordStream { window: Window::new(stream), arrivals: None }
    }

    /// Returns a stream whose data a separate thread reads ahead.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn live(stream: Box<dyn Read + Send>) -> io::Result<Self> {
        let (stream, arrivals) = read_ahead(stream)?;
        Ok(RecordStream { window: Window::new(Box::new(stream)), arrivals: Some(arrivals) })
    }

    /// Lets [`has`](Self::has) return [`ErrorKind::WouldBlock`] instead of waiting, if a thread
    /// reads the stream.
    pub(crate) fn stop_blocking(&self) {
        if let Some(arrivals) = &self.arrivals {
            arrivals.stop_blocking();
        }
    }

    /// Reads until at least `length` bytes are available that were not consumed. Returns `false` if
    /// the stream ends before.
    ///
    /// # Errors
    /// If reading fails.
    pub(crate) fn has(&mut self, length: usize) -> io::Result<bool> {
        self.window.has(length)
    }

    /// Returns the bytes that were read and not yet consumed.
    pub(crate) fn available(&self) -> &[u8] {
        self.window.available()
    }

    /// Consumes available bytes, and returns their position for [`at`](Self::at).
    pub(crate) fn consume(&mut self, length: usize) -> usize {
        self.window.consume(length)
    }

    /// Returns bytes that were consumed since the last call of [`has`](Self::has).
    pub(crate) fn at(&self, range: Range<usize>) -> &[u8] {
        self.window.at(range)
    }

    /// Returns whether reading may have to wait for data.
    pub(crate) fn is_live(&self) -> bool {
        self.arrivals.is_some()
    }

    /// Waits until there is something to read, but at most for `limit`. Returns whether there is.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        self.arrivals.as_ref().is_none_or(|arrivals| arrivals.wait(limit))
    }
}

fn lock(arrived: &Mutex<Arrived>) -> MutexGuard<'_, Arrived> {
    arrived.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A stream of the pieces that a test sends.
    struct Pieces(mpsc::Receiver<io::Result<Vec<u8>>>);

    impl Read for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.recv() {
                Ok(piece) => piece?.as_slice().read(buffer),
                Err(_) => Ok(0),
            }
        }
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn reading_waits_only_as_long_as_it_may() {
        let (sender, pieces) = mpsc::channel();
        let (mut stream, arrivals) = read_ahead(Box::new(Pieces(pieces))).unwrap();
        let mut buffer = [0; 8];
        sender.send(Ok(b"abc".to_vec())).unwrap();
        assert_eq!(stream.read(&mut buffer).unwrap(), 3, "it blocks at first");
        arrivals.stop_blocking();
        let would_block = |result: io::Result<usize>| {
            result.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        };
        assert!(would_block(stream.read(&mut buffer)));
        assert!(!arrivals.wait(Duration::from_millis(1)));
        sender.send(Err(ErrorKind::WouldBlock.into())).unwrap();
        sender.send(Ok(b"de".to_vec())).unwrap();
        assert!(arrivals.wait(LONG) && arrivals.wait(LONG));
        assert_eq!(stream.read(&mut buffer).unwrap(), 2);
        sender.send(Err(ErrorKind::UnexpectedEof.into())).unwrap();
        assert!(arrivals.wait(LONG));
        assert_eq!(stream.read(&mut buffer).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(stream.read(&mut buffer).unwrap(), 0, "an error is the end");
    }

    #[test]
    fn the_end_is_something_to_read() {
        let (mut stream, arrivals) = read_ahead(Box::new(io::empty())).unwrap();
        arrivals.stop_blocking();
        assert!(arrivals.wait(LONG));
        assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);
    }
}
