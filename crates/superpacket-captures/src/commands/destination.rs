//! Outputs of commands.

use std::path::Path;

use crate::file::{CaptureError, Interface, OutputFormat, Record, Sink, Writer};

use crate::commands::error::Error;
use crate::commands::input::{Input, OpenInput};
use crate::commands::sink::PacketSink;
use crate::commands::source::is_stream;

/// The output of a command.
pub enum Output<'a> {
    /// A capture file, which replaces an existing one when it is complete; `-` is standard output.
    /// `tcp://HOST:PORT` connects to a receiver, and `tcp-listen://ADDRESS:PORT` waits for one.
    /// The file name can select another format or compression than the input's: `.pcap` or
    /// `.pcapng`, optionally followed by `.gz` or `.zst`.
    Path(&'a Path),
    /// A sink of the caller, such as [`Packets`](crate::Packets).
    Packets(&'a mut dyn PacketSink),
}

impl Output<'_> {
    /// Returns an error if the output would overwrite the input.
    pub(crate) fn check(&self, input: &Input<'_>) -> Result<(), Error> {
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
        /// The joined parts of a packet; kept to reuse its memory.
        joined: Vec<u8>,
    },
}

impl OpenOutput<'_> {
    /// Lets others see what was written so far. A file is seen by nobody before it is complete.
    pub(crate) fn flush(&mut self) -> Result<(), CaptureError> {
        match self {
            OpenOutput::Writer(writer) if writer.is_stream() => writer.flush(),
            _ => Ok(()),
        }
    }

    /// Completes the output; a file replaces an existing one.
    pub(crate) fn finish(self) -> Result<(), CaptureError> {
        match self {
            OpenOutput::Writer(writer) => writer.finish().map(|_| ()),
            OpenOutput::Packets { .. } => Ok(()),
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
