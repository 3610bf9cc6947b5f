//! Captures that are written packet by packet.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use superpacket_captures::file::{
    self, ByteOrder, Container, Format, Frame, OutputFormat, PcapVariant, Record, Sink,
    check_output_name,
};
use superpacket_captures::{CaptureError, Interface, Packets};

use crate::errors::{OptionsError, capture_error};
use crate::exclusive::Exclusive;
use crate::interruptible::name_of;
use crate::offered::{Details, with_frame};

/// The output while it is open.
struct Open {
    writer: file::Writer,
    interfaces: Vec<Interface>,
}

impl Open {
    fn put(&mut self, frame: &Frame<'_>) -> Result<(), CaptureError> {
        let own = frame.interface();
        let index = match self.interfaces.iter().position(|known| known == own) {
            Some(index) => index,
            None => {
                self.interfaces.push(own.clone());
                self.interfaces.len() - 1
            }
        };
        self.writer.declare(&self.interfaces)?;
        self.writer.write(Record { interface: index as u32, ..frame.record() }, [frame.data])
    }
}

/// Writes to a Python object. What it raises comes back out of the writer.
struct Object(Py<PyAny>);

impl Write for Object {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Python::attach(|py| {
            let written =
                self.0.call_method1(py, intern!(py, "write"), (PyBytes::new(py, bytes),))?;
            // Raw files say how much they took, others take all and may say nothing.
            let written = written.extract::<Option<usize>>(py)?.unwrap_or(bytes.len());
            Ok(written.min(bytes.len()))
        })
        .map_err(|error: PyErr| io::Error::other(error))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn refused(error: impl Display) -> PyErr {
    OptionsError::new_err(error.to_string())
}

/// The format that a name or the caller asks for, pcapng otherwise.
fn format_of(path: &Path, container: Option<&str>) -> PyResult<OutputFormat> {
    check_output_name(path).map_err(refused)?;
    let default = Format::PcapNg { byte_order: ByteOrder::NATIVE };
    let mut format = OutputFormat::for_path(path, default);
    format.container = match container {
        None => format.container,
        Some("pcap") => Container::Pcap,
        Some("pcapng") => Container::PcapNg,
        Some(other) => {
            return Err(refused(format!("format: {other:?} is neither \"pcap\" nor \"pcapng\"")));
        }
    };
    Ok(format)
}

/// The same where later packets may have finer times than the first one.
fn packet_by_packet(path: &Path, container: Option<&str>) -> PyResult<OutputFormat> {
    let format = format_of(path, container)?;
    Ok(OutputFormat { resolution: Some(PcapVariant::Nanoseconds), ..format })
}

/// Writes packets in memory to a file.
pub(crate) fn write_frames(py: Python<'_>, path: PathBuf, packets: &Packets) -> PyResult<()> {
    let format = format_of(&path, None)?;
    py.detach(|| {
        let mut writer = file::Writer::create(&path, format)?;
        writer.declare(packets.interfaces())?;
        packets.iter().try_for_each(|frame| writer.copy(&frame))?;
        writer.finish()
    })
    .map(|_| ())
    .map_err(|error| capture_error(py, &error))
}

/// A capture that is written packet by packet.
///
/// `.pcap` or `.pcapng` in its name says which kind it is, `.gz` or `.zst` behind it how it is
/// compressed; `format` says it of others. A file takes its place when it is closed; if the `with`
/// statement is left by an exception, nothing is left of it. pcapng keeps nanoseconds, interfaces
/// and comments; pcap keeps nanoseconds, and has the link type of its first packet.
#[pyclass(frozen, module = "superpacket")]
pub(crate) struct Writer {
    file: String,
    /// The open output; `None` after it was closed.
    open: Exclusive<Option<Open>>,
}

#[pymethods]
impl Writer {
    /// Creates a capture at a path, or writes it to an object with `write`; "-" is standard output.
    #[new]
    #[pyo3(signature = (path, *, format=None))]
    fn new(py: Python<'_>, path: &Bound<'_, PyAny>, format: Option<&str>) -> PyResult<Writer> {
        let created = if path.hasattr(intern!(py, "write"))? {
            let name = name_of(path)?;
            let format = packet_by_packet(Path::new(""), format)?;
            file::Writer::into_stream(&name, Box::new(Object(path.clone().unbind())), format)
        } else {
            let path: PathBuf = path.extract()?;
            let format = packet_by_packet(&path, format)?;
            py.detach(|| file::Writer::create(&path, format))
        };
        let writer = created.map_err(|error| capture_error(py, &error))?;
        let file = writer.file().to_owned();
        Ok(Writer { file, open: Exclusive::new(Some(Open { writer, interfaces: Vec::new() })) })
    }

    /// The name that it was created by.
    #[getter]
    fn file(&self) -> &str {
        &self.file
    }

    /// Writes a packet: as `PacketList.append` takes it.
    #[pyo3(signature = (data, link_type=1, time=None, original_length=None, *, interface=None, comments=None))]
    fn write(
        &self,
        data: &Bound<'_, PyAny>,
        link_type: u16,
        time: Option<u64>,
        original_length: Option<u64>,
        interface: Option<String>,
        comments: Option<Vec<String>>,
    ) -> PyResult<()> {
        let py = data.py();
        let mut state = self.open.lock(py)?;
        let open = state.as_mut().ok_or_else(|| self.is_closed())?;
        let number = open.writer.frames() + 1;
        let details = Details { link_type, time, original_length, interface, comments };
        with_frame(data, number, details, |frame| {
            open.put(frame).map_err(|error| capture_error(py, &error))
        })
    }

    /// Ends the capture, which takes its place.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let open = self.open.lock(py)?.take();
        match open {
            Some(open) => py
                .detach(|| open.writer.finish())
                .map(|_| ())
                .map_err(|error| capture_error(py, &error)),
            None => Ok(()),
        }
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (kind, *_exception))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _exception: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if kind.is_none() {
            return self.close(py);
        }
        self.open.lock(py)?.take();
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!("<Writer {}>", self.file)
    }
}

impl Writer {
    fn is_closed(&self) -> PyErr {
        PyValueError::new_err(format!("{}: is closed", self.file))
    }
}
