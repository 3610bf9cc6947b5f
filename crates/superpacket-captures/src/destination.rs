//! Where commands write packets.

use std::path::Path;

use crate::file::{CaptureError, Interface, OutputFormat, Record, Sink, Writer, same_file};

use crate::error::Error;
use crate::input::{Input, Opened, is_stream};
use crate::sink::PacketSink;

/// Where a command writes packets.
pub enum Output<'a> {
    /// A capture file, which takes its place when it is complete; `-` is standard output. The
    /// ending may choose another format or compression than the input's: `.pcap` or `.pcapng`, then
    /// perhaps `.gz` or `.zst`.
    Path(&'a Path),
    /// The caller's own: [`Packets`](crate::Packets), or anything else.
    Packets(&'a mut dyn PacketSink),
}

impl Output<'_> {
    /// Refuses an output that would destroy its input.
    pub(crate) fn check(&self, input: &Input<'_>) -> Result<(), Error> {
        // An input that cannot be looked at will be reported when it is opened.
        if let (Output::Path(output), Input::Path(input)) = (self, input)
            && !is_stream(output)
            && same_file(input, output).unwrap_or(false)
        {
            return Err(Error::Options(format!(
                "{}: is the input too; write to another file",
                output.display()
            )));
        }
        Ok(())
    }

    /// Returns the file's name, as reports give it.
    pub(crate) fn name(&self) -> String {
        match self {
            Output::Path(path) => path.display().to_string(),
            Output::Packets(_) => "memory".to_owned(),
        }
    }
}

impl<'a> Output<'a> {
    /// Creates the output in the format that its name asks for, or else in the input's.
    pub(crate) fn create(self, input: &Opened<'_>) -> Result<Destination<'a>, Error> {
        Ok(match self {
            Output::Path(path) => Destination::Writer(Box::new(Writer::create(
                path,
                OutputFormat::for_path(path, input.format()),
            )?)),
            Output::Packets(sink) => {
                Destination::Packets { sink, interfaces: 0, joined: Vec::new() }
            }
        })
    }
}

/// An output that is being written.
pub(crate) enum Destination<'a> {
    Writer(Box<Writer>),
    Packets {
        sink: &'a mut dyn PacketSink,
        /// How many interfaces were declared.
        interfaces: usize,
        /// The parts of a packet in a row. Its memory is kept.
        joined: Vec<u8>,
    },
}

impl Destination<'_> {
    /// Ends the writing: a file takes its place.
    pub(crate) fn finish(self) -> Result<(), CaptureError> {
        match self {
            Destination::Writer(writer) => writer.finish().map(|_| ()),
            Destination::Packets { .. } => Ok(()),
        }
    }
}

impl Sink for Destination<'_> {
    #[inline]
    fn declare(&mut self, all: &[Interface]) -> Result<(), CaptureError> {
        match self {
            Destination::Writer(writer) => writer.declare(all),
            Destination::Packets { sink, interfaces, .. } if all.len() > *interfaces => {
                *interfaces = all.len();
                sink.declare(all)
            }
            Destination::Packets { .. } => Ok(()),
        }
    }

    #[inline]
    fn write<'p, Parts>(&mut self, record: Record<'_>, parts: Parts) -> Result<(), CaptureError>
    where
        Parts: IntoIterator<Item = &'p [u8]>,
        Parts::IntoIter: Clone,
    {
        match self {
            Destination::Writer(writer) => writer.write(record, parts),
            Destination::Packets { sink, joined, .. } => {
                joined.clear();
                parts.into_iter().for_each(|part| joined.extend_from_slice(part));
                sink.packet(&record, joined)
            }
        }
    }
}
