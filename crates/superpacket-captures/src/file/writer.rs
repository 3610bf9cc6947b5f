//! Writes capture files of any supported format.

use std::io::{self, Write};
use std::path::Path;

use super::declared::{DeclaredInterface, FrameRefusal};
use super::destination::OutputDestination;
use super::output::BufferedOutput;
use super::pcap_writer::PcapWriter;
use super::pcapng_writer::PcapNgWriter;
use super::tcp::TcpEnd;
use super::{
    Block, BlockCounts, BlockKind, CaptureError, Container, Interface, InterfaceStatistics,
    LinkType, MAX_RECORD_LENGTH, OutputFormat, Record, Sink, Timestamp,
};

/// Writes a capture file as a stream of frames.
///
/// The file grows under a temporary name in its directory (`.superpacket-….partial`), and
/// [`finish`](Self::finish) gives it its own name. If the writer is dropped before, the file is
/// removed, so `path` never contains an incomplete capture. A pipe or device is written directly.
/// Modes and symbolic links are treated as [`write_file`](super::write_file) describes.
///
/// Memory: a buffer of 256 KiB, 24 bytes per interface, and the compressor's memory (0.3 MB for
/// gzip; 2 MB and a thread for zstd).
pub struct Writer {
    file: String,
    output: BufferedOutput,
    #[cfg(feature = "commands")]
    is_stream: bool,
    records: RecordWriter,
    interfaces: Vec<DeclaredInterface>,
    /// Number of frames written so far.
    frames: u64,
    blocks: BlockCounts,
}

enum RecordWriter {
    Pcap(PcapWriter),
    PcapNg(PcapNgWriter),
}

impl Writer {
    /// Creates the file at `path`; `-` is standard output. `tcp://HOST:PORT` connects to a
    /// receiver, and `tcp-listen://ADDRESS:PORT` waits until one connects.
    ///
    /// # Errors
    /// If the file cannot be created, or there is no connection.
    pub fn create(path: impl AsRef<Path>, format: OutputFormat) -> Result<Self, CaptureError> {
        let path = path.as_ref();
        let name = if path == Path::new("-") {
            "standard output".to_owned()
        } else {
            path.display().to_string()
        };
        if let Some(end) = TcpEnd::parse(path) {
            return match end.open() {
                Ok(stream) => Self::into_stream(&name, Box::new(stream), format),
                Err(source) => Err(CaptureError::Open { file: name, source }),
            };
        }
        match OutputDestination::create(path) {
            Ok(destination) => Ok(Self::begin(name, destination, format)),
            Err(source) => Err(CaptureError::Create { file: name, source }),
        }
    }

    /// Writes a capture file into any stream; `name` stands for the file in messages.
    ///
    /// # Errors
    /// If the stream cannot be written.
    pub fn into_stream(
        name: &str,
        stream: Box<dyn Write + Send>,
        format: OutputFormat,
    ) -> Result<Self, CaptureError> {
        Ok(Self::begin(name.to_owned(), OutputDestination::Stream(stream), format))
    }

    fn begin(file: String, destination: OutputDestination, format: OutputFormat) -> Self {
        let OutputFormat { container, byte_order, resolution, compression } = format;
        #[cfg(feature = "commands")]
        let is_stream = matches!(destination, OutputDestination::Stream(_));
        let output = BufferedOutput::new(destination, compression);
        let records = match container {
            Container::Pcap => RecordWriter::Pcap(PcapWriter::new(byte_order, resolution)),
            Container::PcapNg => RecordWriter::PcapNg(PcapNgWriter::new(byte_order)),
        };
        Self {
            file,
            output,
            #[cfg(feature = "commands")]
            is_stream,
            records,
            interfaces: Vec::new(),
            frames: 0,
            blocks: BlockCounts::default(),
        }
    }

    /// Returns the name by which the file was created, as errors give it.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the number of frames written so far.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Returns whether the file is pcap or pcapng.
    pub fn container(&self) -> Container {
        match &self.records {
            RecordWriter::Pcap(_) => Container::Pcap,
            RecordWriter::PcapNg(_) => Container::PcapNg,
        }
    }

    /// Returns whether other programs can read the output while it is written: the destination is a
    /// pipe, a device or another stream, not a file that has a temporary name until it is complete.
    #[cfg(feature = "commands")]
    pub(crate) fn is_stream(&self) -> bool {
        self.is_stream
    }

    /// Writes all buffered data to the destination, so that other programs can read it. With zstd,
    /// some data stays buffered until a block is complete.
    ///
    /// # Errors
    /// If the destination cannot be written.
    pub fn flush(&mut self) -> Result<(), CaptureError> {
        self.write_header()?;
        self.output
            .hand_over()
            .map_err(|source| CaptureError::Write { file: self.file.clone(), source })
    }

    /// Writes the header of a pcapng file's section, unless it was written before.
    fn write_header(&mut self) -> Result<(), CaptureError> {
        let RecordWriter::PcapNg(writer) = &mut self.records else { return Ok(()) };
        writer
            .begin(&mut self.output, None, &mut self.blocks)
            .map_err(|source| CaptureError::Write { file: self.file.clone(), source })
    }

    /// Writes a block that a [`Reader`](super::Reader) has returned, and declares the interfaces
    /// that were read before it. A block that the file format cannot hold is left out and counted
    /// in [`blocks`](Self::blocks).
    ///
    /// A pcapng file has one section here. If the first section header of the input is the first
    /// item that is written, its options are those of the output's section. Comments on later
    /// sections become comments on the first interface that follows. Packet counts of interfaces
    /// name the output's interface. Custom blocks and options are not written if the input says so,
    /// and neither are those in the other byte order, if they cannot be converted.
    ///
    /// # Errors
    /// If writing fails.
    pub fn block(&mut self, block: &Block<'_>) -> Result<(), CaptureError> {
        self.declare(block.interfaces)?;
        match &mut self.records {
            RecordWriter::PcapNg(writer) => writer
                .other_block(&mut self.output, block, &mut self.blocks)
                .map_err(|source| CaptureError::Write { file: self.file.clone(), source }),
            RecordWriter::Pcap(_) => {
                if block.kind() != BlockKind::SectionHeader || block.section_options().count() > 0 {
                    self.blocks.leave_out(block.kind());
                }
                Ok(())
            }
        }
    }

    /// Returns the numbers of blocks that were written and left out so far.
    pub fn blocks(&self) -> BlockCounts {
        let mut blocks = self.blocks.clone();
        if let RecordWriter::PcapNg(writer) = &self.records
            && writer.has_lost_comments()
        {
            blocks.leave_out(BlockKind::SectionHeader);
        }
        blocks
    }

    /// Writes the packet counts of an interface up to `time`. Does nothing for a pcap file, which
    /// cannot store them.
    ///
    /// # Errors
    /// If writing fails, if the interface was not declared, or if a time cannot be expressed in the
    /// interface's unit.
    pub fn statistics(
        &mut self,
        interface: u32,
        time: Timestamp,
        counted: &InterfaceStatistics,
    ) -> Result<(), CaptureError> {
        let Some(declared) = self.interfaces.get(interface as usize).copied() else {
            let (file, packet) = (self.file.clone(), self.frames + 1);
            return Err(CaptureError::UnknownInterface { file, packet, interface });
        };
        let RecordWriter::PcapNg(writer) = &mut self.records else { return Ok(()) };
        let written = writer.statistics(&mut self.output, interface, &declared, time, counted);
        written.map_err(|refusal| self.refuse(refusal, declared.link_type))
    }

    /// Writes what is still buffered, and gives the file its name; an existing file is replaced.
    /// Returns the number of frames written.
    ///
    /// # Errors
    /// If the file cannot be written or renamed. It is then removed.
    pub fn finish(mut self) -> Result<u64, CaptureError> {
        self.write_header()?;
        if let RecordWriter::Pcap(writer) = &mut self.records
            && let Err(refusal) = writer.finish(&mut self.output, &self.interfaces)
        {
            return Err(self.refuse(refusal, LinkType::ETHERNET));
        }
        let Self { file, output, frames, .. } = self;
        output.finish().map_err(|source| CaptureError::Write { file, source })?;
        Ok(frames)
    }

    #[cold]
    fn refuse(&self, refusal: FrameRefusal, other: LinkType) -> CaptureError {
        let (file, packet) = (self.file.clone(), self.frames + 1);
        match refusal {
            FrameRefusal::Io(source) => CaptureError::Write { file, source },
            FrameRefusal::Time => CaptureError::Time { file, packet },
            FrameRefusal::LinkType { first } => {
                CaptureError::SeveralLinkTypes { file, packet, first, other }
            }
        }
    }

    #[cold]
    fn declare_new(&mut self, interfaces: &[Interface]) -> Result<(), CaptureError> {
        self.write_header()?;
        for interface in &interfaces[self.interfaces.len()..] {
            match &mut self.records {
                RecordWriter::Pcap(writer) => writer.declare(interface),
                RecordWriter::PcapNg(writer) => writer
                    .declare(&mut self.output, interface)
                    .map_err(|source| CaptureError::Write { file: self.file.clone(), source })?,
            }
            self.interfaces.push(DeclaredInterface::new(interface));
        }
        Ok(())
    }
}

impl Sink for Writer {
    #[inline]
    fn declare(&mut self, interfaces: &[Interface]) -> Result<(), CaptureError> {
        if interfaces.len() > self.interfaces.len() { self.declare_new(interfaces) } else { Ok(()) }
    }

    #[inline]
    fn write<'p, Parts>(&mut self, record: Record<'_>, parts: Parts) -> Result<(), CaptureError>
    where
        Parts: IntoIterator<Item = &'p [u8]>,
        Parts::IntoIter: Clone,
    {
        let parts = parts.into_iter();
        let length: usize = parts.clone().map(<[u8]>::len).sum();
        // Maximum size of the block's other fields and the options. The length of the options is
        // bounded by the record from which they were read.
        let room = 64 + record.options.bytes.len();
        if length > MAX_RECORD_LENGTH - room.min(MAX_RECORD_LENGTH) {
            let (file, packet) = (self.file.clone(), self.frames + 1);
            return Err(CaptureError::FrameTooLong {
                file,
                packet,
                length,
                limit: MAX_RECORD_LENGTH - 64,
            });
        }
        let Some(&interface) = self.interfaces.get(record.interface as usize) else {
            let (file, packet) = (self.file.clone(), self.frames + 1);
            return Err(CaptureError::UnknownInterface {
                file,
                packet,
                interface: record.interface,
            });
        };
        let original_length = record.original_length.unwrap_or(length as u32);
        let output = &mut self.output;
        let written = match &mut self.records {
            RecordWriter::Pcap(writer) => match writer.begin(
                output,
                &self.interfaces,
                &interface,
                &record,
                length as u32,
                original_length,
            ) {
                Ok(()) => write_all(output, parts).map_err(FrameRefusal::Io),
                Err(refusal) => Err(refusal),
            },
            RecordWriter::PcapNg(writer) => {
                writer.packet(output, &interface, &record, parts, length as u32, original_length)
            }
        };
        match written {
            Ok(()) => {
                self.frames += 1;
                Ok(())
            }
            Err(refusal) => Err(self.refuse(refusal, interface.link_type)),
        }
    }
}

#[inline]
fn write_all<'p>(
    output: &mut BufferedOutput,
    parts: impl Iterator<Item = &'p [u8]>,
) -> io::Result<()> {
    for part in parts {
        output.put(part)?;
    }
    Ok(())
}
