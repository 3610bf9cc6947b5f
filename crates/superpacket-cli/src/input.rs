//! Opening captures and reading them to their end.

use std::io::Write;
use std::path::Path;

use superpacket_io::capture::{Frame, Interface, Reader, Source, Truncated};

use crate::arguments::Common;
use crate::failure::Failure;
use crate::progress::Progress;

/// A capture that is being read.
pub(crate) struct Input {
    reader: Reader,
    progress: Progress,
    strict: bool,
}

impl Input {
    /// Opens a capture; `-` is standard input.
    pub(crate) fn open(path: &Path, common: &Common) -> Result<Self, Failure> {
        let reader = Reader::open(path)?;
        let progress = Progress::new(path, reader.file_length(), common.quiet);
        Ok(Input { reader, progress, strict: common.strict })
    }

    /// The reader, for its format.
    pub(crate) fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Gives every frame to `each`, in order; stops at its first failure.
    #[inline]
    pub(crate) fn for_each(&mut self, mut each: impl FnMut(&Frame<'_>) -> Result<(), Failure>) -> Result<(), Failure> {
        loop {
            let number = match self.reader.next_frame()? {
                Some(frame) => {
                    each(&frame)?;
                    frame.number
                }
                None => return Ok(()),
            };
            self.progress.frame(number, || self.reader.bytes_read());
        }
    }

    /// The interfaces found.
    pub(crate) fn interfaces(&self) -> &[Interface] {
        self.reader.interfaces()
    }

    /// Ends the reading: a capture that was cut short is a warning, or a failure under `--strict`.
    pub(crate) fn finish(self) -> Result<Option<Truncated>, Failure> {
        let truncated = self.reader.truncated().cloned();
        drop(self.progress);
        match truncated {
            Some(truncated) if self.strict => Err(Failure::CutShort(truncated)),
            Some(truncated) => {
                warn(&truncated.to_string());
                Ok(Some(truncated))
            }
            None => Ok(None),
        }
    }
}

/// Prints a warning to standard error.
pub(crate) fn warn(text: &str) {
    // Nobody can be told that standard error is gone.
    let _ = writeln!(std::io::stderr(), "superpacket: warning: {text}");
}
