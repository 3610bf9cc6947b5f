//! Captures that are read packet by packet.

use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use superpacket_captures::file::{Compression, Format, Source};
use superpacket_captures::{CaptureError, Reader, Truncated};

use crate::columns::{Columns, as_bytes, converted};
use crate::errors::{capture_error, cut_short, warn};
use crate::exclusive::Exclusive;
use crate::interruptible::{FileObject, is_file_object, name_of, open_stream};
use crate::list::PacketList;
use crate::packet::{Block, Gathered, Packet, interface_pairs};

/// Bytes that are read together: few enough to stay in the second-level cache until Python has its
/// copy.
const BLOCK_BYTES: usize = 128 * 1024;

/// Packets that are read together at most.
const BLOCK_PACKETS: usize = 1024;

/// A capture that is being read: an iterator of its packets. Threads that read it together wait for
/// each other, and each packet is given once.
#[pyclass(frozen, module = "superpacket")]
pub(crate) struct Capture {
    reading: Exclusive<Reading>,
    strict: bool,
    file: String,
    format: &'static str,
    compression: &'static str,
}

/// How far a capture has been read.
struct Reading {
    /// None after it was closed, given away, or read to its end.
    reader: Option<Box<Reader>>,
    gathered: Gathered,
    block: Option<Py<Block>>,
    next: usize,
    /// What stopped the reading, to be raised after the packets before it.
    error: Option<CaptureError>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Untouched,
    Begun,
    /// All has been gathered, though some of it may not have been given.
    Ended,
    Closed,
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

impl Reading {
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
        if self.state == State::Ended {
            return Ok(false);
        }
        let gathered = &mut self.gathered;
        gathered.clear();
        self.state = State::Begun;
        match py.detach(|| gather(reader, gathered)) {
            Ok(false) => {}
            Ok(true) => self.state = State::Ended,
            Err(error) => {
                self.state = State::Ended;
                self.error = Some(error);
            }
        }
        if gathered.entries.is_empty() {
            return match self.error.take() {
                Some(error) => Err(capture_error(py, &error)),
                None => Ok(false),
            };
        }
        self.block = Some(Block::new(py, gathered)?);
        Ok(true)
    }

    /// The next packet that has been read.
    #[inline]
    fn ready(&mut self, py: Python<'_>) -> Option<Packet> {
        let block = self.block.as_ref().filter(|block| block.get().len() > self.next)?;
        self.next += 1;
        Some(Packet::new(block.clone_ref(py), self.next - 1))
    }

    /// Where the capture was cut short, once.
    fn truncated(&mut self) -> Option<Truncated> {
        let truncated = self.reader.as_ref()?.truncated().cloned()?;
        self.reader = None;
        Some(truncated)
    }
}

/// A capture that a command reads in place of its owner.
pub(crate) enum Given {
    /// The capture, of which nothing has been read yet.
    Reader(Box<Reader>),
    /// The packets that the owner of the capture has not read.
    Rest(PacketList),
}

impl Capture {
    pub(crate) fn is_strict(&self) -> bool {
        self.strict
    }

    fn closed(&self) -> PyErr {
        PyValueError::new_err(format!("{}: is closed", self.file))
    }

    /// Gives the capture away, to be read by others.
    pub(crate) fn give(capture: &Bound<'_, Capture>) -> PyResult<Given> {
        let this = capture.get();
        let mut reading = this.reading.lock(capture.py())?;
        match reading.state {
            State::Closed => return Err(this.closed()),
            State::Untouched => {
                reading.state = State::Ended;
                let reader = reading.reader.take();
                return reader.map(Given::Reader).ok_or_else(|| this.consumed());
            }
            State::Ended
                if reading.error.is_none()
                    && reading
                        .block
                        .as_ref()
                        .is_none_or(|block| block.get().len() == reading.next) =>
            {
                return Err(this.consumed());
            }
            State::Begun | State::Ended => {}
        }
        drop(reading);
        Ok(Given::Rest(PacketList::gather(capture, 1)?))
    }

    fn consumed(&self) -> PyErr {
        PyValueError::new_err(format!("{}: has been read to its end; open it again", self.file))
    }

    fn taken(&self, py: Python<'_>) -> PyResult<Box<Reader>> {
        let mut reading = self.reading.lock(py)?;
        match reading.state {
            State::Untouched => {
                reading.state = State::Ended;
                reading.reader.take().ok_or_else(|| self.consumed())
            }
            State::Closed => Err(self.closed()),
            State::Begun | State::Ended => Err(PyValueError::new_err(format!(
                "{}: packets have been read; open it again for columns",
                self.file
            ))),
        }
    }
}

#[pymethods]
impl Capture {
    /// Opens a capture: a path, or an object whose `read` gives bytes; "-" is standard input.
    #[new]
    #[pyo3(signature = (path, *, strict=false))]
    fn new(py: Python<'_>, path: &Bound<'_, PyAny>, strict: bool) -> PyResult<Capture> {
        let opened = if is_file_object(path)? {
            let (name, stream) = (name_of(path)?, FileObject(path.clone().unbind()));
            py.detach(|| Reader::from_stream(&name, Box::new(stream)))
        } else {
            let path: PathBuf = path.extract()?;
            py.detach(|| open_stream(&path).unwrap_or_else(|| Reader::open(&path)))
        };
        let reader = opened.map_err(|error| capture_error(py, &error))?;
        let format = match reader.format() {
            Format::Pcap { .. } => "pcap",
            Format::PcapNg { .. } => "pcapng",
        };
        let compression = match reader.compression() {
            Compression::None => "none",
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        };
        let gathered = Gathered { interfaces: reader.interfaces().into(), ..Gathered::default() };
        let file = reader.file().to_owned();
        let reading = Reading {
            reader: Some(Box::new(reader)),
            gathered,
            block: None,
            next: 0,
            error: None,
            state: State::Untouched,
        };
        Ok(Capture { reading: Exclusive::new(reading), strict, file, format, compression })
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
    fn interfaces(&self, py: Python<'_>) -> PyResult<Vec<(u16, Option<String>)>> {
        Ok(interface_pairs(&self.reading.lock(py)?.gathered.interfaces))
    }

    /// Returns the packets as columns, to be read once: an object with `__arrow_c_stream__`, which
    /// pyarrow, polars and duckdb take.
    #[pyo3(signature = (*, batch_size=65_536, data=false, addresses="text"))]
    fn to_arrow(
        &self,
        py: Python<'_>,
        batch_size: usize,
        data: bool,
        addresses: &str,
    ) -> PyResult<Columns> {
        let bytes = as_bytes(addresses)?;
        let reader = self.taken(py)?;
        Columns::of_reader(reader, self.strict, batch_size, data, bytes)
    }

    /// Returns the packets as a pandas DataFrame, or with `batch_size` an iterator of DataFrames of
    /// so many packets; needs pandas and pyarrow.
    #[pyo3(signature = (*, batch_size=None, data=false))]
    fn to_pandas<'py>(
        &self,
        py: Python<'py>,
        batch_size: Option<usize>,
        data: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        converted(py, "pandas", batch_size, |size| self.to_arrow(py, size, data, "text"))
    }

    /// Returns the packets as numpy arrays, by the columns' names, or with `batch_size` an iterator
    /// of such arrays of so many packets; needs numpy.
    #[pyo3(signature = (*, batch_size=None))]
    fn to_numpy<'py>(
        &self,
        py: Python<'py>,
        batch_size: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        converted(py, "numpy", batch_size, |size| self.to_arrow(py, size, false, "bytes"))
    }

    /// Closes the file.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let mut reading = self.reading.lock(py)?;
        (reading.reader, reading.block, reading.error) = (None, None, None);
        reading.state = State::Closed;
        Ok(())
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Packet>> {
        if let Some(packet) = self.reading.lock(py)?.ready(py) {
            return Ok(Some(packet));
        }
        // A signal's handler may close the capture.
        py.check_signals()?;
        let truncated = {
            let mut reading = self.reading.lock(py)?;
            if reading.state == State::Closed {
                return Err(self.closed());
            }
            // Another thread may have read the next block meanwhile.
            let ready = reading.ready(py);
            if ready.is_some() {
                return Ok(ready);
            }
            if reading.fill(py)? {
                return Ok(reading.ready(py));
            }
            reading.truncated()
        };
        match truncated {
            Some(truncated) if self.strict => Err(cut_short(py, &truncated)),
            Some(truncated) => warn(py, &truncated.to_string()).map(|()| None),
            None => Ok(None),
        }
    }

    fn __repr__(&self) -> String {
        format!("<Capture {}: {}>", self.file, self.format)
    }
}
