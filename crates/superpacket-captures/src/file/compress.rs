//! Compresses a capture's bytes on their way into the destination.

use std::cell::RefCell;
use std::io::{self, Cursor, ErrorKind, Read, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use flate2::write::GzEncoder;
use ruzstd::encoding::{CompressionLevel, FrameCompressor};

use super::Compression;
use super::destination::Destination;

/// The most bytes that go to the zstd encoder at a time.
const ZSTD_PIECE_LENGTH: usize = 256 * 1024;

/// Pieces that may wait for the zstd encoder.
const ZSTD_PIECES_IN_FLIGHT: usize = 2;

/// Compresses into a destination, or writes plainly.
pub(super) enum Encoder {
    Plain(Destination),
    Gzip(GzEncoder<Destination>),
    Zstd(ZstdEncoder),
}

impl Encoder {
    pub(super) fn new(destination: Destination, compression: Compression) -> Self {
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

    /// Writes out what it holds, as far as the compression lets it go.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(destination) => destination.flush(),
            Self::Gzip(encoder) => encoder.flush(),
            // Its thread writes what makes a block.
            Self::Zstd(_) => Ok(()),
        }
    }

    /// Ends the compressed stream and gives the destination back.
    pub(super) fn finish(self) -> io::Result<Destination> {
        match self {
            Self::Plain(destination) => Ok(destination),
            Self::Gzip(encoder) => encoder.finish(),
            Self::Zstd(mut encoder) => encoder.end(),
        }
    }
}

/// Compresses into one zstd frame, in a thread of its own: the encoder pulls its input until that
/// ends, which is the wrong way round for a writer. (A frame for each piece would need no thread,
/// but Wireshark reads only the first.)
pub(super) struct ZstdEncoder {
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
        for part in bytes.chunks(ZSTD_PIECE_LENGTH) {
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
