//! A capture's bytes on their way to where they go: a buffer, and a compressor.

use std::cell::RefCell;
use std::io::{self, Cursor, ErrorKind, Read, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use flate2::write::GzEncoder;
use ruzstd::encoding::{CompressionLevel, FrameCompressor};

use super::Compression;
use super::destination::Destination;

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

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::Path;

    use super::super::destination::tests::names;
    use super::*;

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
    fn a_device_is_written_to_and_not_replaced() {
        use std::os::unix::fs::FileTypeExt;
        let mut output = Output::new(Destination::create(Path::new("/dev/null")).unwrap(), Compression::None);
        output.put(b"gone").unwrap();
        output.finish().unwrap();
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    }
}
