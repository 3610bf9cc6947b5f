//! Captures that come through a pipe, where Ctrl-C ends the wait, or from a Python object.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
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

/// A Python object with `read`. What it raises comes back out of the command.
pub(crate) struct FileObject(pub(crate) Py<PyAny>);

impl Read for FileObject {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Python::attach(|py| {
            let read = self.0.call_method1(py, intern!(py, "read"), (buffer.len(),))?;
            let read = read.bind(py);
            let read = read.cast::<PyBytes>().map_err(|_| {
                let kind = read.get_type();
                PyTypeError::new_err(format!(
                    "read gave {kind}, not bytes: open the file as \"rb\""
                ))
            })?;
            let bytes = read.as_bytes();
            match buffer.get_mut(..bytes.len()) {
                Some(room) => {
                    room.copy_from_slice(bytes);
                    Ok(bytes.len())
                }
                None => Err(PyValueError::new_err("read gave more bytes than were asked for")),
            }
        })
        .map_err(io::Error::other)
    }
}

/// The name of a file object in reports and errors: its own, or that of its type.
pub(crate) fn name_of(object: &Bound<'_, PyAny>) -> PyResult<String> {
    let own = object.getattr(intern!(object.py(), "name")).ok();
    match own.and_then(|name| name.extract().ok()) {
        Some(name) => Ok(name),
        None => Ok(object.get_type().name()?.to_string()),
    }
}

/// Whether this is a file object.
pub(crate) fn is_file_object(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    object.hasattr(intern!(object.py(), "read"))
}
