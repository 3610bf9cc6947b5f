//! Finds out from the first bytes how a stream is compressed, and decompresses it.

use std::io::{self, BufRead, BufReader, Cursor, ErrorKind, Read};

use flate2::bufread::GzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::Compression;

const GZIP_MAGIC: [u8; 2] = [0x1F, 0x8B];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

/// Largest zstd window that is accepted, in bytes, as recommended in RFC 8878 section 3.1.1.1.2.
/// The decoder allocates twice as much, which is the largest allocation that a single field of a
/// file can cause.
const MAX_ZSTD_WINDOW: u64 = 8 << 20;

const COMPRESSED_BUFFER: usize = 128 * 1024;

/// Reads the first bytes of `input`, and returns the decompressed stream and the compression.
pub(super) fn decompress(
    mut input: Box<dyn Read + Send>,
) -> io::Result<(Box<dyn Read + Send>, Compression)> {
    let mut head = Vec::with_capacity(4);
    input.by_ref().take(4).read_to_end(&mut head)?;
    let compression = if head.starts_with(&GZIP_MAGIC) {
        Compression::Gzip
    } else if head == ZSTD_MAGIC || is_skippable(&head) {
        Compression::Zstd
    } else {
        Compression::None
    };
    let input = Cursor::new(head).chain(input);
    let decoded: Box<dyn Read + Send> = match compression {
        Compression::None => Box::new(input),
        Compression::Gzip => Box::new(GzipMembers::new(input)),
        Compression::Zstd => Box::new(ZstdFrames::new(input)),
    };
    Ok((decoded, compression))
}

/// Returns whether this is the magic number of a skippable zstd frame: 0x184D2A50 to 0x184D2A5F,
/// little endian. A zstd file may begin with one.
fn is_skippable(magic: &[u8]) -> bool {
    matches!(magic, [0x50..=0x5F, 0x2A, 0x4D, 0x18])
}

/// Decompresses the gzip members of a file one after the other (RFC 1952, section 2.2). Other data
/// after the last member is an error.
struct GzipMembers<R> {
    /// The member that is being decompressed; `None` after the end or an error.
    member: Option<GzDecoder<BufReader<Counting<R>>>>,
}

impl<R: Read> GzipMembers<R> {
    fn new(input: R) -> Self {
        let input = BufReader::with_capacity(COMPRESSED_BUFFER, Counting { input, bytes: 0 });
        Self { member: Some(GzDecoder::new(input)) }
    }

    /// Begins to decompress the next member, if there is one.
    fn next_member(&mut self) -> io::Result<()> {
        let Some(member) = &mut self.member else { return Ok(()) };
        // If the input has nothing for now, this is done again.
        member.get_mut().fill_buf()?;
        let Some(mut input) = self.member.take().map(GzDecoder::into_inner) else { return Ok(()) };
        let place = input.get_ref().bytes - input.buffer().len() as u64;
        let head = input.fill_buf()?;
        let compared = head.len().min(GZIP_MAGIC.len());
        if head[..compared] != GZIP_MAGIC[..compared] {
            let head = &head[..head.len().min(8)];
            let message = format!(
                "the gzip stream ends at byte {place} of the compressed file, but other data follows: {head:02x?}..."
            );
            return Err(io::Error::new(ErrorKind::InvalidData, message));
        }
        if compared > 0 {
            self.member = Some(GzDecoder::new(input));
        }
        Ok(())
    }
}

impl<R: Read> Read for GzipMembers<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let read = member.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            self.next_member()?;
        }
        Ok(0)
    }
}

/// A reader that counts how many bytes were read from it.
struct Counting<R> {
    input: R,
    bytes: u64,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.bytes += read as u64;
        Ok(read)
    }
}

/// Decompresses the zstd frames of a file one after the other, and ignores skippable ones.
struct ZstdFrames<R> {
    source: EndDetector<BufReader<R>>,
    decoder: FrameDecoder,
    in_frame: bool,
    /// Whether the input ended within the frame. The data that could be decompressed is delivered
    /// before the error.
    cut: bool,
}

impl<R: Read> ZstdFrames<R> {
    fn new(input: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_ZSTD_WINDOW);
        let source =
            EndDetector { input: BufReader::with_capacity(COMPRESSED_BUFFER, input), ended: false };
        Self { source, decoder, in_frame: false, cut: false }
    }

    /// Reads the header of the next frame; returns `false` at the end of the stream.
    fn next_frame(&mut self) -> io::Result<bool> {
        loop {
            if self.source.input.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    if io::copy(&mut self.source.by_ref().take(length), &mut io::sink())? < length {
                        return Err(ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(self.explain(&error)),
            }
        }
    }

    /// Decompresses the next block of the frame.
    fn next_block(&mut self) -> io::Result<()> {
        let one = BlockDecodingStrategy::UptoBlocks(1);
        match self.decoder.decode_blocks(&mut self.source, one) {
            Ok(_) => Ok(()),
            Err(_) if self.source.ended => {
                // The decoder holds back up to one window of data until the frame's last block. An
                // artificial empty last block (RFC 8878 section 3.1.1.2), whose checksum is not
                // verified, makes it release this data.
                const LAST_BLOCK: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];
                self.cut = true;
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder
                    .decode_blocks(&LAST_BLOCK[..], one)
                    .map(|_| ())
                    .map_err(|error| self.explain(&error))
            }
            Err(error) => Err(self.explain(&error)),
        }
    }

    /// Converts an error of the decoder, which may mean that the stream has ended.
    fn explain(&self, error: &FrameDecoderError) -> io::Error {
        match error {
            FrameDecoderError::WindowSizeTooBig { requested, max } => io::Error::new(
                ErrorKind::Unsupported,
                format!(
                    "its zstd window of {requested} bytes is above the limit of {max}: decompress it first (zstd -dc --long=31 FILE | superpacket ... -)"
                ),
            ),
            FrameDecoderError::DictNotProvided { .. } => {
                io::Error::new(ErrorKind::Unsupported, "a zstd stream that needs a dictionary")
            }
            _ if self.source.ended => ErrorKind::UnexpectedEof.into(),
            _ => io::Error::new(ErrorKind::InvalidData, format!("invalid zstd stream: {error}")),
        }
    }
}

impl<R: Read> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.decoder.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            if self.cut {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            if self.in_frame && self.decoder.is_finished() {
                self.in_frame = false;
                let expected = self.decoder.get_checksum_from_data();
                if expected.is_some() && expected != self.decoder.get_calculated_checksum() {
                    return Err(io::Error::new(
                        ErrorKind::InvalidData,
                        "invalid zstd stream: wrong checksum",
                    ));
                }
            }
            if self.in_frame {
                self.next_block()?;
            } else {
                self.in_frame = self.next_frame()?;
                if !self.in_frame {
                    return Ok(0);
                }
            }
        }
    }
}

/// A reader that remembers whether the end of the input was reached.
struct EndDetector<R> {
    input: R,
    ended: bool,
}

impl<R: Read> Read for EndDetector<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.ended |= read == 0 && !buffer.is_empty();
        Ok(read)
    }
}
