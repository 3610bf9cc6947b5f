//! Reads capture files of any supported format.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::block::SECTION_HEADER;
use super::decompress::decompress;
use super::error::ReadFault;
use super::pcap_reader::{LocatedRecord, PcapReader, recognize};
use super::pcapng_reader::{LocatedBlock, PcapNgReader};
use super::window::Window;
use super::{
    Block, ByteOrder, CaptureError, Compression, Format, Frame, FrameOptions, Interface, Item,
    OptionForm, Source, Truncated,
};

/// A position between two records of a capture file, at which another reader may start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapturePosition {
    /// Offset of the next record's first byte in the decompressed file.
    pub offset: u64,
    /// Number of packets before the next record.
    pub packets: u64,
}

/// Reads a capture file as a stream of frames.
///
/// Memory: a window of 256 KiB, which grows to the longest record (16 MB at most), up to 4 MiB of
/// interface descriptions, and the decompressor's memory (64 KiB for gzip; for zstd twice the
/// compressed file's window, which is at most 8 MiB).
pub struct Reader {
    file: String,
    window: Window,
    records: RecordReader,
    interfaces: Vec<Interface>,
    format: Format,
    compression: Compression,
    /// Number of frames returned so far.
    frames: u64,
    /// Whether the end of the file or an error was reached.
    done: bool,
    truncated: Option<Truncated>,
    bytes_read: Arc<AtomicU64>,
    file_length: Option<u64>,
    /// If a thread reads the stream: the handle to wait for more data.
    #[cfg(feature = "commands")]
    arrivals: Option<super::live::Arrivals>,
    /// If only a part of a file is read: the position of the part's first byte in the file, and the
    /// length of the preamble that precedes the part in the stream.
    part: Option<(u64, u64)>,
}

enum RecordReader {
    Pcap(PcapReader),
    PcapNg(PcapNgReader),
}

impl Reader {
    /// Opens the capture file at `path`; `-` is standard input.
    ///
    /// # Errors
    /// If the file cannot be opened or read, or does not begin like a capture file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CaptureError> {
        let path = path.as_ref();
        if path == Path::new("-") {
            return Self::from_stream("standard input", Box::new(io::stdin()));
        }
        let name = path.display().to_string();
        let open = |source| CaptureError::Open { file: name.clone(), source };
        let file = File::open(path).map_err(open)?;
        let metadata = file.metadata().map_err(open)?;
        if metadata.is_dir() {
            return Err(open(io::ErrorKind::IsADirectory.into()));
        }
        let mut reader = Self::from_stream(&name, Box::new(file))?;
        reader.file_length = metadata.is_file().then_some(metadata.len());
        Ok(reader)
    }

    /// Reads a capture file from any stream; `name` stands for the file in messages.
    ///
    /// After the capture's header, the stream may return
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) while nothing is there to be read. So does the
    /// reader then ([`CaptureError::is_would_block`]), unless the stream is compressed by zstd,
    /// where it is an error.
    ///
    /// # Errors
    /// If the stream cannot be read, or does not begin like a capture file.
    pub fn from_stream(name: &str, stream: Box<dyn Read + Send>) -> Result<Self, CaptureError> {
        Self::begin(name, Self::decompressed(name, stream)?, false)
    }

    /// Reads a capture file from a live stream, which a thread reads and decompresses. While no
    /// data is available, [`next_frame`](Source::next_frame) returns an error for which
    /// [`CaptureError::is_would_block`] returns `true`. This function itself blocks until the
    /// capture's header has arrived.
    ///
    /// # Errors
    /// Those of [`from_stream`](Self::from_stream), and if the thread cannot be started.
    #[cfg(feature = "commands")]
    pub(crate) fn live(name: &str, stream: Box<dyn Read + Send>) -> Result<Self, CaptureError> {
        let decompressed = Self::decompressed(name, stream)?;
        let (stream, arrivals) = super::live::read_ahead(decompressed.stream)
            .map_err(|source| CaptureError::Open { file: name.to_owned(), source })?;
        let mut reader =
            Self::begin(name, Decompressed { stream: Box::new(stream), ..decompressed }, false)?;
        arrivals.stop_blocking();
        reader.arrivals = Some(arrivals);
        Ok(reader)
    }

    /// Returns whether reading may have to wait for data.
    #[cfg(feature = "commands")]
    pub(crate) fn is_live(&self) -> bool {
        self.arrivals.is_some()
    }

    /// Waits until there is something to read, but at most for `limit`. Returns whether there is.
    #[cfg(feature = "commands")]
    pub(crate) fn wait(&self, limit: std::time::Duration) -> bool {
        self.arrivals.as_ref().is_none_or(|arrivals| arrivals.wait(limit))
    }

    /// Like [`from_stream`](Self::from_stream), but keeps the [`preamble`](Self::preamble), from
    /// which [`of_part`](Self::of_part) creates further readers, each of a part of the file.
    ///
    /// # Errors
    /// Those of [`from_stream`](Self::from_stream).
    pub fn keeping_preamble(
        name: &str,
        stream: Box<dyn Read + Send>,
    ) -> Result<Self, CaptureError> {
        Self::begin(name, Self::decompressed(name, stream)?, true)
    }

    /// Reads a part of a capture file. `records` is the decompressed data from position `place` on;
    /// it ends at a record boundary or with the file. `preamble` is what
    /// [`preamble`](Self::preamble) of the whole file's reader returned at `place`.
    ///
    /// Packet numbers, interface indices and offsets in messages are those of the whole file.
    ///
    /// # Errors
    /// Those of [`from_stream`](Self::from_stream).
    pub fn of_part(
        name: &str,
        preamble: Vec<u8>,
        place: CapturePosition,
        records: Box<dyn Read + Send>,
    ) -> Result<Self, CaptureError> {
        let length = preamble.len() as u64;
        let mut reader =
            Self::from_stream(name, Box::new(io::Cursor::new(preamble).chain(records)))?;
        reader.frames = place.packets;
        reader.part = Some((place.offset, length));
        Ok(reader)
    }

    /// Finds out how a stream is compressed, and decompresses it.
    fn decompressed(
        name: &str,
        stream: Box<dyn Read + Send>,
    ) -> Result<Decompressed, CaptureError> {
        let bytes_read = Arc::new(AtomicU64::new(0));
        let counted = Box::new(Counting { stream, bytes: Arc::clone(&bytes_read) });
        let (stream, compression) =
            decompress(counted).map_err(|error| header_fault(name, error.into(), 0))?;
        Ok(Decompressed { stream, compression, bytes_read })
    }

    fn begin(name: &str, decompressed: Decompressed, keep: bool) -> Result<Self, CaptureError> {
        let Decompressed { stream, compression, bytes_read } = decompressed;
        let fault = |fault, window: &Window| header_fault(name, fault, window.offset());
        let mut window = Window::new(stream);
        window.has(4).map_err(|error| fault(error.into(), &window))?;
        let Some(&magic) = window.available().first_chunk::<4>() else {
            let reason = match (window.finish(String::new), window.available().len()) {
                (Ok(()), _) => "it is empty".to_owned(),
                (_, length) => format!("it ends after {length} bytes"),
            };
            return Err(CaptureError::NotCapture { file: name.to_owned(), reason });
        };
        let mut interfaces = Vec::new();
        let (records, format) = if let Some((byte_order, variant)) = recognize(magic) {
            let (reader, interface) = PcapReader::open(&mut window, byte_order, variant, keep)
                .map_err(|error| fault(error, &window))?;
            interfaces.push(interface);
            (RecordReader::Pcap(reader), Format::Pcap { byte_order, variant })
        } else if ByteOrder::Little.u32_at(&magic, 0) == SECTION_HEADER {
            let reader =
                PcapNgReader::open(&mut window, keep).map_err(|error| fault(error, &window))?;
            let byte_order = reader.byte_order();
            (RecordReader::PcapNg(reader), Format::PcapNg { byte_order })
        } else {
            // The longest known magic number has 12 bytes. If this read fails, a later one reports
            // the error.
            let _ = window.has(12);
            return Err(CaptureError::NotCapture {
                file: name.to_owned(),
                reason: describe(window.available()),
            });
        };
        Ok(Self {
            file: name.to_owned(),
            window,
            records,
            interfaces,
            format,
            compression,
            frames: 0,
            done: false,
            truncated: None,
            bytes_read,
            file_length: None,
            #[cfg(feature = "commands")]
            arrivals: None,
            part: None,
        })
    }

    /// Returns the name by which the file was opened, as used in errors.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns how the file is compressed.
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// Returns the number of bytes read from the file so far, before decompression. Together with
    /// [`file_length`](Self::file_length), it tells the progress.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Returns the file's length in bytes when it was opened, or `None` for a pipe.
    pub fn file_length(&self) -> Option<u64> {
        self.file_length
    }

    /// Returns the position of the next record.
    pub fn place(&self) -> CapturePosition {
        let (start, before) = self.part.unwrap_or_default();
        CapturePosition {
            offset: (self.window.offset() + start).saturating_sub(before),
            packets: self.frames,
        }
    }

    /// Returns the headers that are needed to read a part of the file from [`place`](Self::place)
    /// on: a pcap file's header, or the sections and interfaces of a pcapng file so far. Empty
    /// unless the reader was created by [`keeping_preamble`](Self::keeping_preamble).
    pub fn preamble(&self) -> &[u8] {
        match &self.records {
            RecordReader::Pcap(reader) => reader.preamble(),
            RecordReader::PcapNg(reader) => reader.preamble(),
        }
    }

    /// Returns the next frame, or the next block of a pcapng file that holds neither a packet nor
    /// an interface, whichever comes first. Returns `None` at the end, as
    /// [`next_frame`](Source::next_frame) does.
    ///
    /// # Errors
    /// Those of [`next_frame`](Source::next_frame).
    #[inline]
    pub fn next_item(&mut self) -> Result<Option<Item<'_>>, CaptureError> {
        Ok(self.locate_next(true)?.map(|located| self.item(located)))
    }

    /// Reads the next frame or, with `all`, the next block that describes no interface, and returns
    /// the ranges of its data in the window.
    #[inline(always)]
    pub(crate) fn locate_next(&mut self, all: bool) -> Result<Option<LocatedBlock>, CaptureError> {
        if self.done {
            return Ok(None);
        }
        let located = match &mut self.records {
            RecordReader::Pcap(reader) => {
                reader.next(&mut self.window).map(|record| record.map(LocatedBlock::Packet))
            }
            RecordReader::PcapNg(reader) => {
                reader.next(&mut self.window, &mut self.interfaces, all)
            }
        };
        match located {
            Ok(Some(located)) => {
                self.frames += u64::from(matches!(located, LocatedBlock::Packet(_)));
                Ok(Some(located))
            }
            Ok(None) => {
                self.done = true;
                Ok(None)
            }
            Err(fault) => {
                self.stop(fault)?;
                Ok(None)
            }
        }
    }

    /// Returns the frame or block that [`locate_next`](Self::locate_next) has just read.
    #[inline(always)]
    pub(crate) fn item(&self, located: LocatedBlock) -> Item<'_> {
        match located {
            LocatedBlock::Packet(record) => Item::Frame(self.frame(record)),
            LocatedBlock::Other(range) => {
                let (byte_order, first_interface) = match &self.records {
                    RecordReader::Pcap(_) => (ByteOrder::NATIVE, 0),
                    RecordReader::PcapNg(reader) => {
                        (reader.byte_order(), reader.section_start() as u32)
                    }
                };
                Item::Block(Block {
                    bytes: self.window.at(range),
                    byte_order,
                    first_interface,
                    places: None,
                    interfaces: &self.interfaces,
                })
            }
        }
    }

    #[inline(always)]
    fn frame(&self, located: LocatedRecord) -> Frame<'_> {
        let form = match &self.records {
            RecordReader::Pcap(reader) => reader.option_form(),
            RecordReader::PcapNg(reader) => OptionForm::list(reader.byte_order()),
        };
        Frame {
            number: self.frames,
            interface: located.interface,
            time: located.time,
            data: self.window.at(located.data),
            original_length: located.original_length,
            options: FrameOptions::new(self.window.at(located.options), form),
            interfaces: &self.interfaces,
        }
    }

    #[cold]
    fn stop(&mut self, fault: ReadFault) -> Result<(), CaptureError> {
        self.done = !fault.is_would_block();
        match fault.into_error(&self.file, self.frames + 1, self.place().offset) {
            Ok(error) => Err(error),
            Err(truncated) => {
                self.truncated = Some(truncated);
                Ok(())
            }
        }
    }
}

impl Source for Reader {
    #[inline]
    fn next_frame(&mut self) -> Result<Option<Frame<'_>>, CaptureError> {
        while let Some(located) = self.locate_next(false)? {
            if let LocatedBlock::Packet(record) = located {
                return Ok(Some(self.frame(record)));
            }
        }
        Ok(None)
    }

    fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    fn format(&self) -> Format {
        self.format
    }

    fn truncated(&self) -> Option<&Truncated> {
        self.truncated.as_ref()
    }
}

/// A capture's stream after decompression.
struct Decompressed {
    stream: Box<dyn Read + Send>,
    compression: Compression,
    /// Number of bytes read before decompression.
    bytes_read: Arc<AtomicU64>,
}

/// Converts an error in the capture's header to the public error type.
fn header_fault(name: &str, fault: ReadFault, offset: u64) -> CaptureError {
    fault.into_error(name, 1, offset).unwrap_or_else(|truncated| CaptureError::NotCapture {
        file: truncated.file,
        reason: truncated.reason,
    })
}

/// A reader that counts the bytes that were read from the file.
struct Counting {
    stream: Box<dyn Read + Send>,
    bytes: Arc<AtomicU64>,
}

impl Read for Counting {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer)?;
        self.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Describes a file that is not a supported capture file, according to its first bytes.
fn describe(head: &[u8]) -> String {
    const TO_PCAPNG: &str = "which is not supported (editcap converts it to pcapng)";
    let of_editcap: [(&[u8], &str); 9] = [
        (b"snoop\0\0\0", "Solaris snoop"),
        (b"RTSS", "Microsoft Network Monitor 1"),
        (b"GMBU", "Microsoft Network Monitor 2"),
        (b"XCP\0", "NetXRay or Windows Sniffer"),
        (b"TRSNIFF data", "DOS Sniffer"),
        (&[0x1C, 0x00, 0x01, 0xAC], "Ixia lcap"),
        (&[0xAC, 0x01, 0x00, 0x1C], "Ixia lcap"),
        (&[0x1C, 0x00, 0x01, 0xAB], "Ixia lcap"),
        (&[0xAB, 0x01, 0x00, 0x1C], "Ixia lcap"),
    ];
    if let Some((_, name)) = of_editcap.iter().find(|(magic, _)| head.starts_with(magic)) {
        return format!("{name}, {TO_PCAPNG}");
    }
    let known: [(&[u8], &str); 5] = [
        (b"BZh", "bzip2, which is not supported (bzcat FILE | superpacket ... -)"),
        (
            &[0xFD, b'7', b'z', b'X', b'Z', 0],
            "xz, which is not supported (xzcat FILE | superpacket ... -)",
        ),
        (
            &[0x04, 0x22, 0x4D, 0x18],
            "lz4, which is not supported (lz4cat FILE | superpacket ... -)",
        ),
        (b"PK\x03\x04", "a zip archive"),
        (&[0x1F, 0x8B], "compressed twice"),
    ];
    match known.iter().find(|(magic, _)| head.starts_with(magic)) {
        Some((_, name)) => (*name).to_owned(),
        None => {
            format!("it begins with bytes {:02x?}, which is neither pcap nor pcapng", &head[..4])
        }
    }
}
