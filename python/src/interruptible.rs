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

/// A stream and its name in reports.
type Named = (String, Box<dyn Read + Send>);

/// What one may have to wait for, by its name in reports: standard input, or a pipe by its name;
/// `None` for anything else.
pub(crate) fn waited_for(path: &Path) -> Option<Result<Named, CaptureError>> {
    if path == Path::new("-") {
        return Some(Ok(("standard input".to_owned(), Box::new(Interruptible(io::stdin())))));
    }
    let metadata = std::fs::metadata(path).ok()?;
    if metadata.is_file() || metadata.is_dir() {
        return None;
    }
    let name = path.display().to_string();
    Some(match File::open(path) {
        Ok(file) => Ok((name, Box::new(Interruptible(file)))),
        Err(source) => Err(CaptureError::Open { file: name, source }),
    })
}

/// Opens a capture that one may have to wait for; `None` for any other.
pub(crate) fn open_stream(path: &Path) -> Option<Result<Reader, CaptureError>> {
    Some(waited_for(path)?.and_then(|(file, stream)| Reader::from_stream(&file, stream)))
}
