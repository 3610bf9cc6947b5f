//! Opening captures and reading them to their end.

use std::io::Read;
use std::path::Path;

use crate::file::{CaptureError, Format, Frame, Interface, Reader, Source, Truncated};

use crate::error::Error;
use crate::packets::{Cursor, Packets};
use crate::progress::{INTERVAL, Progress};

/// Where a command reads packets.
pub enum Input<'a> {
    /// A capture file; `-` is standard input.
    Path(&'a Path),
    /// A capture that is open.
    Reader(Box<Reader>),
    /// What comes from a stream: a capture, or for [`check`](crate::check()) records.
    Stream {
        /// What reports and errors call it.
        file: String,
        /// Its bytes.
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

/// Is this path standard input or output?
pub(crate) fn is_stream(path: &Path) -> bool {
    path == Path::new("-")
}

/// A capture that is being read.
pub(crate) struct Opened<'a> {
    source: Open<'a>,
    progress: &'a mut dyn Progress,
    strict: bool,
    /// The progress has been told of the end.
    ended: bool,
}

enum Open<'a> {
    Reader(Box<Reader>),
    Packets(Cursor<'a>),
}

impl Open<'_> {
    #[inline]
    fn next_frame(&mut self) -> Result<Option<Frame<'_>>, CaptureError> {
        match self {
            Open::Reader(reader) => reader.next_frame(),
            Open::Packets(cursor) => cursor.next_frame(),
        }
    }

    fn bytes_read(&self) -> u64 {
        match self {
            Open::Reader(reader) => reader.bytes_read(),
            Open::Packets(cursor) => cursor.bytes_read(),
        }
    }
}

impl<'a> Opened<'a> {
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
                Open::Reader(Box::new(reader))
            }
            Input::Reader(reader) => {
                progress.begin(reader.file(), reader.file_length());
                Open::Reader(reader)
            }
            Input::Stream { file, stream } => {
                let reader = Reader::from_stream(&file, stream)?;
                progress.begin(&file, None);
                Open::Reader(Box::new(reader))
            }
            Input::Packets(packets) => {
                progress.begin(MEMORY, Some(packets.bytes().len() as u64));
                Open::Packets(Cursor::new(packets))
            }
        };
        Ok(Opened { source, progress, strict, ended: false })
    }

    /// The name of the capture, as reports give it.
    pub(crate) fn file(&self) -> &str {
        match &self.source {
            Open::Reader(reader) => reader.file(),
            Open::Packets(_) => MEMORY,
        }
    }

    /// The format of what is read.
    pub(crate) fn format(&self) -> Format {
        match &self.source {
            Open::Reader(reader) => reader.format(),
            Open::Packets(cursor) => cursor.format(),
        }
    }

    /// Gives every frame to `each`, in order; stops at its first failure.
    #[inline]
    pub(crate) fn for_each(
        &mut self,
        mut each: impl FnMut(&Frame<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        loop {
            let number = match self.source.next_frame()? {
                Some(frame) => {
                    each(&frame)?;
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

    /// The interfaces found.
    pub(crate) fn interfaces(&self) -> &[Interface] {
        match &self.source {
            Open::Reader(reader) => reader.interfaces(),
            Open::Packets(cursor) => cursor.interfaces(),
        }
    }

    /// Ends the reading: a capture that was cut short is told to the progress, or a failure under
    /// `strict`.
    pub(crate) fn finish(mut self) -> Result<Option<Truncated>, Error> {
        let truncated = match &self.source {
            Open::Reader(reader) => reader.truncated().cloned(),
            Open::Packets(_) => None,
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

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// What stands for the name of packets in memory.
const MEMORY: &str = "memory";
