//! Compresses a capture file's bytes before they are written to their destination.

use std::cell::RefCell;
use std::io::{self, Cursor, ErrorKind, Read, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use flate2::write::GzEncoder;
use ruzstd::encoding::{CompressionLevel, FrameCompressor};

use super::Compression;
use super::destination::OutputDestination;

/// Maximum number of bytes that are sent to the zstd encoder at once.
const ZSTD_PIECE_LENGTH: usize = 256 * 1024;

/// Maximum number of pieces of data that wait for the zstd encoder.
const ZSTD_PIECES_IN_FLIGHT: usize = 2;

/// A writer of a capture file's bytes, which compresses them or passes them on unchanged.
pub(super) enum Encoder {
    Plain(OutputDestination),
    Gzip(GzEncoder<OutputDestination>),
    Zstd(ZstdEncoder),
}

impl Encoder {
    pub(super) fn new(destination: OutputDestination, compression: Compression) -> Self {
        match compression {
            Compression::None => Self::Plain(destination),
            Compression::Gzip => {
                Self::Gzip(GzEncoder::new(destination, flate2::Compression::fast()))
            }
            Compression::Zstd => Self::Zstd(ZstdEncoder::new(destination)),
        }
    }

    pub(super) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(destination) => destination.write_all(bytes),
            Self::Gzip(encoder) => encoder.write_all(bytes),
            Self::Zstd(encoder) => encoder.put(bytes),
        }
    }

    /// Writes out the data that is buffered, as far as the compression format allows.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(destination) => destination.flush(),
            Self::Gzip(encoder) => encoder.flush(),
            // The encoder's thread writes only whole blocks, so there is nothing to do.
            Self::Zstd(_) => Ok(()),
        }
    }

    /// Ends the compressed stream and returns the destination.
    pub(super) fn finish(self) -> io::Result<OutputDestination> {
        match self {
            Self::Plain(destination) => Ok(destination),
            Self::Gzip(encoder) => encoder.finish(),
            Self::Zstd(mut encoder) => encoder.end(),
        }
    }
}

/// Compresses into one zstd frame, in a separate thread: the encoder asks for its input, whereas
/// the caller of a writer pushes it. A frame for each piece of data would need no thread, but
/// Wireshark reads only the first frame of a file.
pub(super) struct ZstdEncoder {
    /// The channel to the encoder's thread; `None` once the stream was finished.
    pieces: Option<SyncSender<Vec<u8>>>,
    worker: Option<JoinHandle<io::Result<OutputDestination>>>,
}

impl ZstdEncoder {
    fn new(destination: OutputDestination) -> Self {
        let (pieces, received) = sync_channel(ZSTD_PIECES_IN_FLIGHT);
        let worker = std::thread::spawn(move || compress(received, destination));
        Self { pieces: Some(pieces), worker: Some(worker) }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        // Long data is sent in several pieces, so that little memory waits in the channel.
        for part in bytes.chunks(ZSTD_PIECE_LENGTH) {
            match &self.pieces {
                Some(pieces) if pieces.send(part.to_vec()).is_ok() => {}
                // The encoder's thread ends early only after an error.
                _ => return Err(self.end().err().unwrap_or_else(|| ErrorKind::BrokenPipe.into())),
            }
        }
        Ok(())
    }

    fn end(&mut self) -> io::Result<OutputDestination> {
        self.pieces = None;
        let stopped = || io::Error::other("the zstd encoder stopped");
        self.worker.take().ok_or_else(stopped)?.join().map_err(|_| stopped())?
    }
}

impl Drop for ZstdEncoder {
    fn drop(&mut self) {
        // The thread owns the destination. An unfinished file is removed when the thread has ended.
        drop(self.end());
    }
}

fn compress(
    pieces: Receiver<Vec<u8>>,
    destination: OutputDestination,
) -> io::Result<OutputDestination> {
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

/// Reads the pieces of data from the channel as one stream, the encoder's input. The stream ends
/// early if writing the output has failed.
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

/// A writer that keeps the first error, and from then on discards everything without an error,
/// because the encoder would panic.
struct Drain<'a> {
    destination: OutputDestination,
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
