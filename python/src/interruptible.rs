//! Captures that come through a pipe: Ctrl-C ends the wait for them.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use pyo3::prelude::*;
use superpacket_captures::{CaptureError, Reader};

/// A stream whose reading ends with what Python raises when a signal interrupts it.
struct Interruptible<R>(R);

impl<R: Read> Read for Interruptible<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    Python::attach(|py| py.check_signals()).map_err(io::Error::other)?;
                }
                other => return other,
            }
        }
    }
}

/// Opens a capture that one may have to wait for: standard input, or a pipe; `None` for any other.
/// Commands wait for these by themselves.
pub(crate) fn open_stream(path: &Path) -> Option<Result<Reader, CaptureError>> {
    if path == Path::new("-") {
        return Some(Reader::from_stream("standard input", Box::new(Interruptible(io::stdin()))));
    }
    let metadata = std::fs::metadata(path).ok()?;
    if metadata.is_file() || metadata.is_dir() {
        return None;
    }
    let name = path.display().to_string();
    Some(match File::open(path) {
        Ok(file) => Reader::from_stream(&name, Box::new(Interruptible(file))),
        Err(source) => Err(CaptureError::Open { file: name, source }),
    })
}
