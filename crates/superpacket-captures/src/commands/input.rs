//! Opens captures and reads them to their end.

use std::io::Read;
use std::path::Path;

use crate::file::{CaptureError, Format, Frame, Interface, Reader, Source, Truncated};

use crate::commands::error::Error;
use crate::commands::filter::{Filter, matches_all};
use crate::commands::packets::{PacketCursor, Packets};
use crate::commands::progress::{INTERVAL, Progress};

/// The input of a command.
pub enum Input<'a> {
    /// A capture file; `-` is standard input.
    Path(&'a Path),
    /// An open capture.
    Reader(Box<Reader>),
    /// A stream with a capture or, for [`check`](crate::check()), with records.
    Stream {
        /// The name in reports and errors.
        file: String,
        /// The bytes.
        stream: Box<dyn Read + Send>,
    },
    /// Packets in memory.
    Packets(&'a Packets),
    /// The frames of another input that match a filter: see [`filtered`](Self::filtered).
    Filtered {
        /// The other input.
        input: Box<Input<'a>>,
        /// The filter's expression.
        expression: &'a str,
    },
}

impl<'a> Input<'a> {
    /// Returns an input with only those frames that match an expression in the syntax of tcpdump
    /// (pcap-filter(7)), such as `tcp port 443`. Other frames are neither processed nor written;
    /// reports count them as `filtered_out`. Packets keep the numbers that they have in the file.
    ///
    /// Libpcap compiles the expression for each link type, and decides what it means: `tcp` does
    /// not match a frame with a VLAN tag, but `vlan and tcp` does.
    ///
    /// When such an input is read, [`Error::Options`] is returned for an expression that libpcap
    /// refuses, and always without this crate's feature `filter`.
    #[must_use]
    pub fn filtered(self, expression: &'a str) -> Self {
        Input::Filtered { input: Box::new(self), expression }
    }

    /// Returns the path of the file that is read, if it is one.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Input::Path(path) => Some(path),
            Input::Filtered { input, .. } => input.path(),
            _ => None,
        }
    }
}

impl<'a> From<&'a Path> for Input<'a> {
    fn from(path: &'a Path) -> Self {
        Input::Path(path)
    }
}

impl<'a> From<&'a Packets> for Input<'a> {
    fn from(packets: &'a Packets) -> Self {
        Input::Packets(packets)
    }
}

impl From<Reader> for Input<'_> {
    fn from(reader: Reader) -> Self {
        Input::Reader(Box::new(reader))
    }
}

/// Returns whether this path means standard input or output.
pub(crate) fn is_stream(path: &Path) -> bool {
    path == Path::new("-")
}

/// An open input.
pub(crate) struct OpenInput<'a> {
    source: InputSource<'a>,
    progress: &'a mut dyn Progress,
    strict: bool,
    /// The filters that frames must match.
    filters: Vec<Filter>,
    /// Number of frames that did not match.
    filtered_out: u64,
    /// Whether [`Progress::end`] has been called.
    ended: bool,
}

enum InputSource<'a> {
    Reader(Box<Reader>),
    Packets(PacketCursor<'a>),
}

impl InputSource<'_> {
    #[inline]
    fn next_frame(&mut self) -> Result<Option<Frame<'_>>, CaptureError> {
        match self {
            InputSource::Reader(reader) => reader.next_frame(),
            InputSource::Packets(cursor) => cursor.next_frame(),
        }
    }

    fn bytes_read(&self) -> u64 {
        match self {
            InputSource::Reader(reader) => reader.bytes_read(),
            InputSource::Packets(cursor) => cursor.bytes_read(),
        }
    }
}

impl<'a> OpenInput<'a> {
    /// Opens a capture.
    pub(crate) fn open(
        input: Input<'a>,
        strict: bool,
        progress: &'a mut dyn Progress,
    ) -> Result<Self, Error> {
        let source = match input {
            Input::Filtered { input, expression } => {
                let filter = Filter::new(expression)?;
                let mut open = OpenInput::open(*input, strict, progress)?;
                open.filters.push(filter);
                return Ok(open);
            }
            Input::Path(path) => {
                let reader = Reader::open(path)?;
                progress.begin(&path.display().to_string(), reader.file_length());
                InputSource::Reader(Box::new(reader))
            }
            Input::Reader(reader) => {
                progress.begin(reader.file(), reader.file_length());
                InputSource::Reader(reader)
            }
            Input::Stream { file, stream } => {
                let reader = Reader::from_stream(&file, stream)?;
                progress.begin(&file, None);
                InputSource::Reader(Box::new(reader))
            }
            Input::Packets(packets) => {
                progress.begin(MEMORY, Some(packets.bytes().len() as u64));
                InputSource::Packets(PacketCursor::new(packets))
            }
        };
        Ok(OpenInput {
            source,
            progress,
            strict,
            filters: Vec::new(),
            filtered_out: 0,
            ended: false,
        })
    }

    /// Returns the name of the capture for reports.
    pub(crate) fn file(&self) -> &str {
        match &self.source {
            InputSource::Reader(reader) => reader.file(),
            InputSource::Packets(_) => MEMORY,
        }
    }

    /// Returns the format of the input.
    pub(crate) fn format(&self) -> Format {
        match &self.source {
            InputSource::Reader(reader) => reader.format(),
            InputSource::Packets(cursor) => cursor.format(),
        }
    }

    /// Returns the number of frames read so far that do not match the input's filter.
    pub(crate) fn filtered_out(&self) -> u64 {
        self.filtered_out
    }

    /// Calls `each` with every frame that matches the input's filter, in order, until it fails.
    #[inline]
    pub(crate) fn for_each(
        &mut self,
        mut each: impl FnMut(&Frame<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        loop {
            let number = match self.source.next_frame()? {
                Some(frame) => {
                    let (data, length) = (frame.data, frame.original_length);
                    if self.filters.is_empty()
                        || matches_all(&mut self.filters, frame.link_type(), data, length)?
                    {
                        each(&frame)?;
                    } else {
                        self.filtered_out += 1;
                    }
                    frame.number
                }
                None => return Ok(()),
            };
            if number.is_multiple_of(INTERVAL)
                && self.progress.advance(number, self.source.bytes_read()).is_break()
            {
                return Err(Error::Interrupted);
            }
        }
    }

    /// Returns the interfaces found so far.
    pub(crate) fn interfaces(&self) -> &[Interface] {
        match &self.source {
            InputSource::Reader(reader) => reader.interfaces(),
            InputSource::Packets(cursor) => cursor.interfaces(),
        }
    }

    /// Ends the reading. A capture that was cut short is reported to the progress, or is an error
    /// if `strict` is set.
    pub(crate) fn finish(mut self) -> Result<Option<Truncated>, Error> {
        let truncated = match &self.source {
            InputSource::Reader(reader) => reader.truncated().cloned(),
            InputSource::Packets(_) => None,
        };
        self.end();
        match truncated {
            Some(truncated) if self.strict => Err(Error::CutShort(truncated)),
            Some(truncated) => {
                self.progress.cut_short(&truncated);
                Ok(Some(truncated))
            }
            None => Ok(None),
        }
    }

    fn end(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.progress.end();
        }
    }
}

impl Drop for OpenInput<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// The name of packets in memory, in reports.
const MEMORY: &str = "memory";
