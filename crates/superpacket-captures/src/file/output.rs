//! Buffers a capture file's bytes, so that they are compressed and written in large blocks.

use std::io;

use super::Compression;
use super::compress::Encoder;
use super::destination::OutputDestination;

/// Number of bytes that are buffered before they are written; the same as in the reader's window.
const BUFFER_LENGTH: usize = 256 * 1024;

/// A stream of a capture file's bytes to its destination, buffered and possibly compressed.
pub(super) struct BufferedOutput {
    buffer: Vec<u8>,
    encoder: Encoder,
}

impl BufferedOutput {
    pub(super) fn new(destination: OutputDestination, compression: Compression) -> Self {
        Self {
            buffer: Vec::with_capacity(BUFFER_LENGTH),
            encoder: Encoder::new(destination, compression),
        }
    }

    /// Appends `bytes` to the file.
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
        // The buffer is filled completely, so that every write but the last has the same, aligned
        // length.
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

    /// Writes all bytes that are buffered to the destination, as far as the compression format
    /// allows.
    pub(super) fn hand_over(&mut self) -> io::Result<()> {
        self.flush()?;
        self.encoder.flush()
    }

    /// Writes the bytes that are still buffered, and gives the file its final name.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        self.encoder.finish()?.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::{ErrorKind, Read, Write};
    use std::path::Path;

    use super::super::destination::tests::names;
    use super::*;

    #[test]
    fn a_file_appears_only_when_it_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        let output = |bytes: &[u8]| {
            let mut output =
                BufferedOutput::new(OutputDestination::create(&path).unwrap(), Compression::None);
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
            let mut output =
                BufferedOutput::new(OutputDestination::create(&path).unwrap(), compression);
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
            let mut output =
                BufferedOutput::new(OutputDestination::Stream(Box::new(Full)), compression);
            output.put(b"little").unwrap();
            assert_eq!(
                output.finish().unwrap_err().kind(),
                ErrorKind::StorageFull,
                "{compression:?}, at the end"
            );
            let mut output =
                BufferedOutput::new(OutputDestination::Stream(Box::new(Full)), compression);
            let noise: Vec<u8> = (0..BUFFER_LENGTH as u32)
                .map(|at| (at.wrapping_mul(at).wrapping_mul(2_654_435_761) >> 13) as u8)
                .collect();
            let error = (0..100).find_map(|_| output.put(&noise).err());
            assert_eq!(
                error.map(|error| error.kind()),
                Some(ErrorKind::StorageFull),
                "{compression:?}, before the end"
            );
        }
    }

    #[test]
    fn pieces_of_every_length_come_out_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
            let mut output =
                BufferedOutput::new(OutputDestination::create(&path).unwrap(), compression);
            let mut expected = Vec::new();
            for length in
                [0, 1, 5, BUFFER_LENGTH - 7, 1, 1, BUFFER_LENGTH, 3 * BUFFER_LENGTH + 9, 4]
            {
                let piece: Vec<u8> = (0..length).map(|at| (at * 31 + at / 250) as u8).collect();
                output.put(&piece).unwrap();
                expected.extend_from_slice(&piece);
            }
            output.finish().unwrap();
            let file = Box::new(File::open(&path).unwrap());
            let (mut decoded, found) = crate::file::decompress::decompress(file).unwrap();
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
        let mut output = BufferedOutput::new(
            OutputDestination::create(Path::new("/dev/null")).unwrap(),
            Compression::None,
        );
        output.put(b"gone").unwrap();
        output.finish().unwrap();
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    }
}
