//! Opens captures and reads them to their end.

use std::io::Read;
use std::path::Path;

use crate::file::{CaptureError, Format, Frame, Interface, Item, Reader, Source, Truncated};

use crate::commands::error::Error;
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
    /// Whether [`Progress::end`] has been called.
    ended: bool,
}

enum InputSource<'a> {
    Reader(Box<Reader>),
    Packets(PacketCursor<'a>),
}

impl InputSource<'_> {
    #[inline]
    fn next_item(&mut self) -> Result<Option<Item<'_>>, CaptureError> {
        match self {
            InputSource::Reader(reader) => reader.next_item(),
            InputSource::Packets(cursor) => Ok(cursor.next_frame()?.map(Item::Frame)),
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
        Ok(OpenInput { source, progress, strict, ended: false })
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

    /// Calls `each` with every frame, in order, until it fails.
    #[inline]
    pub(crate) fn for_each(
        &mut self,
        mut each: impl FnMut(&Frame<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.for_each_item(|item| match item {
            Item::Frame(frame) => each(frame),
            Item::Block(_) => Ok(()),
        })
    }

    /// Calls `each` with every frame, and with the other blocks of a pcapng file, in order, until
    /// it fails.
    #[inline]
    pub(crate) fn for_each_item(
        &mut self,
        mut each: impl FnMut(&Item<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        loop {
            let Some(item) = self.source.next_item()? else { return Ok(()) };
            each(&item)?;
            let Item::Frame(Frame { number, .. }) = item else { continue };
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
