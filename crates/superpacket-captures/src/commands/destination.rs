//! Outputs of commands.

use std::io::Write;
use std::path::Path;

use crate::file::{
    Block, CaptureError, Interface, OutputFormat, Record, Sink, Writer, check_output_name,
};

use crate::commands::error::Error;
use crate::commands::input::{Input, OpenInput};
use crate::commands::sink::PacketSink;
use crate::commands::source::is_stream;
use crate::commands::totals::Blocks;

/// The output of a command.
pub enum Output<'a> {
    /// A capture file, which replaces an existing one when it is complete; `-` is standard output.
    /// `tcp://HOST:PORT` connects to a receiver, and `tcp-listen://ADDRESS:PORT` waits for one.
    /// The file name can select another format or compression than the input's: `.pcap` or
    /// `.pcapng`, optionally followed by `.gz` or `.zst`.
    Path(&'a Path),
    /// A stream, which gets a capture in the format of the input, but uncompressed. It is flushed
    /// whenever the input has nothing to read for now.
    Stream {
        /// The name in reports and errors.
        file: String,
        /// The stream that the capture is written to.
        stream: Box<dyn Write + Send>,
    },
    /// A sink of the caller, such as [`Packets`](crate::Packets).
    Packets(&'a mut dyn PacketSink),
}

impl Output<'_> {
    /// Returns an error if the output would overwrite the input, or if its name promises a format
    /// that is not written.
    pub(crate) fn check(&self, input: &Input<'_>) -> Result<(), Error> {
        if let Output::Path(path) = self {
            check_output_name(path).map_err(Error::Options)?;
        }
        // An input that cannot be examined is reported when it is opened.
        match self {
            Output::Path(output) if !is_stream(output) && input.is_file(output) => {
                Err(Error::Options(format!(
                    "{}: is the input too; write to another file",
                    output.display()
                )))
            }
            _ => Ok(()),
        }
    }

    /// Returns the name of the output for reports.
    pub(crate) fn name(&self) -> String {
        match self {
            Output::Path(path) => path.display().to_string(),
            Output::Stream { file, .. } => file.clone(),
            Output::Packets(_) => "memory".to_owned(),
        }
    }
}

impl<'a> Output<'a> {
    /// Creates the output in the format that its name selects, or else in the input's.
    pub(crate) fn create(self, input: &OpenInput<'_>) -> Result<OpenOutput<'a>, Error> {
        Ok(match self {
            Output::Path(path) => OpenOutput::Writer(Box::new(Writer::create(
                path,
                OutputFormat::for_path(path, input.format()),
            )?)),
            Output::Stream { file, stream } => OpenOutput::Writer(Box::new(Writer::into_stream(
                &file,
                stream,
                OutputFormat::like(input.format()),
            )?)),
            Output::Packets(sink) => {
                OpenOutput::Packets { sink, interfaces: 0, joined: Vec::new() }
            }
        })
    }
}

/// An output that packets are being written to: a capture file or stream, or the caller's sink.
pub(crate) enum OpenOutput<'a> {
    Writer(Box<Writer>),
    Packets {
        sink: &'a mut dyn PacketSink,
        /// Number of interfaces that have been declared.
        interfaces: usize,
        /// The bytes of a packet, joined from several slices; kept so that its memory is used
        /// again.
        joined: Vec<u8>,
    },
}

impl OpenOutput<'_> {
    /// Flushes a stream, so that its reader sees everything written so far. A file is not flushed,
    /// since it does not appear under its name before it is complete.
    pub(crate) fn flush(&mut self) -> Result<(), CaptureError> {
        match self {
            OpenOutput::Writer(writer) if writer.is_stream() => writer.flush(),
            _ => Ok(()),
        }
    }

    /// Writes a block of the input that is neither a packet nor an interface. A caller's sink gets
    /// packets only.
    pub(crate) fn block(&mut self, block: &Block<'_>) -> Result<(), CaptureError> {
        match self {
            OpenOutput::Writer(writer) => writer.block(block),
            OpenOutput::Packets { .. } => Ok(()),
        }
    }

    /// Completes the output; a file replaces an existing one. Returns the numbers of blocks that
    /// were kept and left out.
    pub(crate) fn finish(self) -> Result<Blocks, CaptureError> {
        match self {
            OpenOutput::Writer(writer) => {
                let blocks = Blocks::new(writer.container(), &writer.blocks());
                writer.finish().map(|_| blocks)
            }
            OpenOutput::Packets { .. } => Ok(Blocks::default()),
        }
    }
}

impl Sink for OpenOutput<'_> {
    #[inline]
    fn declare(&mut self, all: &[Interface]) -> Result<(), CaptureError> {
        match self {
            OpenOutput::Writer(writer) => writer.declare(all),
            OpenOutput::Packets { sink, interfaces, .. } if all.len() > *interfaces => {
                *interfaces = all.len();
                sink.declare(all)
            }
            OpenOutput::Packets { .. } => Ok(()),
        }
    }

    #[inline]
    fn write<'p, Parts>(&mut self, record: Record<'_>, parts: Parts) -> Result<(), CaptureError>
    where
        Parts: IntoIterator<Item = &'p [u8]>,
        Parts::IntoIter: Clone,
    {
        match self {
            OpenOutput::Writer(writer) => writer.write(record, parts),
            OpenOutput::Packets { sink, joined, .. } => {
                joined.clear();
                parts.into_iter().for_each(|part| joined.extend_from_slice(part));
                sink.packet(&record, joined)
            }
        }
    }
}
