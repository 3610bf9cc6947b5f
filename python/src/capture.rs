//! Captures that are read packet by packet.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use superpacket_captures::file::{Compression, Format, Source};
use superpacket_captures::{CaptureError, Reader};

use crate::columns::{Columns, as_bytes, converted};
use crate::errors::{capture_error, cut_short, warn};
use crate::interruptible::open_stream;
use crate::packet::{Block, Gathered, Packet, interface_pairs};

/// Bytes that are read together: few enough to stay in the second-level cache until Python has its
/// copy.
const BLOCK_BYTES: usize = 128 * 1024;

/// Packets that are read together at most.
const BLOCK_PACKETS: usize = 1024;

/// A capture that is being read: an iterator of its packets.
#[pyclass(module = "superpacket")]
pub(crate) struct Capture {
    /// None after it was closed, or read to its end.
    reader: Option<Mutex<Reader>>,
    strict: bool,
    gathered: Gathered,
    block: Option<Py<Block>>,
    next: usize,
    interfaces: Vec<(u16, Option<String>)>,
    file: String,
    format: &'static str,
    compression: &'static str,
    /// What stopped the reading, to be raised after the packets before it.
    error: Option<CaptureError>,
    done: bool,
}

/// Reads frames until there are enough for a block; `true` at the capture's end.
fn gather(reader: &mut Reader, gathered: &mut Gathered) -> Result<bool, CaptureError> {
    while gathered.bytes.len() < BLOCK_BYTES && gathered.entries.len() < BLOCK_PACKETS {
        match reader.next_frame()? {
            Some(frame) => gathered.add(&frame),
            None => return Ok(true),
        }
    }
    Ok(false)
}

impl Capture {
    /// Reads the next block; `false` at the capture's end.
    #[cold]
    fn fill(&mut self, py: Python<'_>) -> PyResult<bool> {
        self.block = None;
        self.next = 0;
        if let Some(error) = self.error.take() {
            self.reader = None;
            return Err(capture_error(py, &error));
        }
        let Some(reader) = &mut self.reader else { return Ok(false) };
        let reader = exclusive(reader);
        if self.done {
            return Ok(false);
        }
        py.check_signals()?;
        let gathered = &mut self.gathered;
        gathered.clear();
        let read = py.detach(|| gather(reader, gathered));
        match read {
            Ok(ended) => self.done = ended,
            Err(error) => {
                self.done = true;
                self.error = Some(error);
            }
        }
        if reader.interfaces().len() != self.interfaces.len() {
            self.interfaces = interface_pairs(reader.interfaces());
        }
        if self.gathered.entries.is_empty() {
            return match self.error.take() {
                Some(error) => Err(capture_error(py, &error)),
                None => Ok(false),
            };
        }
        self.block = Some(Block::new(py, &self.gathered)?);
        Ok(true)
    }

    /// Says what is to be said of a capture that was cut short.
    fn end(&mut self, py: Python<'_>) -> PyResult<()> {
        let Some(truncated) =
            self.reader.as_mut().and_then(|reader| exclusive(reader).truncated().cloned())
        else {
            return Ok(());
        };
        self.reader = None;
        if self.strict {
            return Err(cut_short(py, &truncated));
        }
        warn(py, &truncated.to_string())
    }

    fn taken(&mut self) -> PyResult<Reader> {
        if self.block.is_some() || self.done {
            return Err(PyValueError::new_err(format!(
                "{}: packets have been read; open it again for columns",
                self.file
            )));
        }
        self.reader
            .take()
            .map(|reader| reader.into_inner().unwrap_or_else(PoisonError::into_inner))
            .ok_or_else(|| PyValueError::new_err(format!("{}: is closed", self.file)))
    }
}

/// The reader, which only its owner asks for: the lock makes it one that threads may share.
fn exclusive(reader: &mut Mutex<Reader>) -> &mut Reader {
    reader.get_mut().unwrap_or_else(PoisonError::into_inner)
}

#[pymethods]
#[expect(
    clippy::wrong_self_convention,
    reason = "the names are those that pandas and others use; a stream is read once"
)]
impl Capture {
    /// Opens a capture; "-" is standard input.
    #[new]
    #[pyo3(signature = (path, *, strict=false))]
    fn new(py: Python<'_>, path: PathBuf, strict: bool) -> PyResult<Capture> {
        let reader = py
            .detach(|| open_stream(&path).unwrap_or_else(|| Reader::open(&path)))
            .map_err(|error| capture_error(py, &error))?;
        let format = match reader.format() {
            Format::Pcap { .. } => "pcap",
            Format::PcapNg { .. } => "pcapng",
        };
        let compression = match reader.compression() {
            Compression::None => "none",
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        };
        let interfaces = interface_pairs(reader.interfaces());
        let file = reader.file().to_owned();
        Ok(Capture {
            reader: Some(Mutex::new(reader)),
            strict,
            gathered: Gathered::default(),
            block: None,
            next: 0,
            interfaces,
            file,
            format,
            compression,
            error: None,
            done: false,
        })
    }

    /// The name that it was opened by.
    #[getter]
    fn file(&self) -> &str {
        &self.file
    }

    /// "pcap" or "pcapng".
    #[getter]
    fn format(&self) -> &'static str {
        self.format
    }

    /// "none", "gzip" or "zstd".
    #[getter]
    fn compression(&self) -> &'static str {
        self.compression
    }

    /// The interfaces found so far, in the order of `Packet.interface`: link type, and name if
    /// there is one.
    #[getter]
    fn interfaces(&self) -> Vec<(u16, Option<String>)> {
        self.interfaces.clone()
    }

    /// Returns the packets as columns, to be read once: an object with `__arrow_c_stream__`, which
    /// pyarrow, polars and duckdb take.
    #[pyo3(signature = (*, batch_size=65_536, data=false, addresses="text"))]
    fn to_arrow(&mut self, batch_size: usize, data: bool, addresses: &str) -> PyResult<Columns> {
        let bytes = as_bytes(addresses)?;
        let reader = self.taken()?;
        Columns::of_reader(reader, self.strict, batch_size, data, bytes)
    }

    /// Returns the packets as a pandas DataFrame, or with `batch_size` an iterator of DataFrames of
    /// so many packets; needs pandas and pyarrow.
    #[pyo3(signature = (*, batch_size=None, data=false))]
    fn to_pandas<'py>(
        &mut self,
        py: Python<'py>,
        batch_size: Option<usize>,
        data: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        converted(py, "pandas", batch_size, |size| self.to_arrow(size, data, "text"))
    }

    /// Returns the packets as numpy arrays, by the columns' names, or with `batch_size` an iterator
    /// of such arrays of so many packets; needs numpy.
    #[pyo3(signature = (*, batch_size=None))]
    fn to_numpy<'py>(
        &mut self,
        py: Python<'py>,
        batch_size: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        converted(py, "numpy", batch_size, |size| self.to_arrow(size, false, "bytes"))
    }

    /// Closes the file.
    fn close(&mut self) {
        self.reader = None;
        self.block = None;
        self.done = true;
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&mut self, _exception: &Bound<'_, PyAny>) {
        self.close();
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<Packet>> {
        if self.block.as_ref().is_none_or(|block| block.get().len() == self.next)
            && !self.fill(py)?
        {
            self.end(py)?;
            return Ok(None);
        }
        let Some(block) = &self.block else { return Ok(None) };
        let packet = Packet::new(block.clone_ref(py), self.next);
        self.next += 1;
        Ok(Some(packet))
    }

    fn __repr__(&self) -> String {
        format!("<Capture {}: {}>", self.file, self.format)
    }
}
