//! Packets as columns, in batches, by Arrow's C data interface.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::types::{
    ArrowPrimitiveType, TimestampNanosecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{
    Array, ArrayRef, BinaryArray, FixedSizeBinaryArray, PrimitiveArray, RecordBatch,
    RecordBatchReader, StringArray,
};
use arrow_buffer::{BooleanBufferBuilder, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, TimeUnit};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyDict};
use superpacket::wire::{IpVersion, Protocol, tcp};
use superpacket_captures::file::{Frame, Source};
use superpacket_captures::{CaptureError, Packets, Reader, Truncated};

use crate::errors::{OptionsError, capture_error, cut_short, warn};
use crate::layers::{Layers, with_address};

/// Bytes of frames at which a batch ends early: offsets of a column have 31 bits.
const MOST_BYTES: usize = 256 << 20;

/// Rows at which a batch ends, whatever was asked for: columns of text have offsets of 31 bits too.
const MOST_ROWS: usize = 1 << 24;

/// Length of an address as bytes: IPv4 in its IPv6-mapped form.
const ADDRESS: i32 = 16;

/// What a column of addresses holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Addresses {
    Text,
    Bytes,
}

/// Columns that every batch has, in their order, and the last only if it is asked for.
fn schema(addresses: Addresses, data: bool) -> SchemaRef {
    let address = match addresses {
        Addresses::Text => DataType::Utf8,
        Addresses::Bytes => DataType::FixedSizeBinary(ADDRESS),
    };
    let always = [("number", DataType::UInt64)];
    let columns = [
        ("time", DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())), true),
        ("interface", DataType::UInt32, false),
        ("link_type", DataType::UInt16, false),
        ("captured_length", DataType::UInt32, false),
        ("original_length", DataType::UInt32, false),
        ("version", DataType::UInt8, true),
        ("source", address.clone(), true),
        ("destination", address, true),
        ("protocol", DataType::UInt8, true),
        ("source_port", DataType::UInt16, true),
        ("destination_port", DataType::UInt16, true),
        ("transport_offset", DataType::UInt16, true),
        ("payload_offset", DataType::UInt16, true),
        ("payload_length", DataType::UInt32, true),
        ("tcp_flags", DataType::UInt8, true),
        ("sequence", DataType::UInt32, true),
        ("acknowledgement", DataType::UInt32, true),
        ("window", DataType::UInt16, true),
    ];
    let mut fields: Vec<_> = always.map(|(name, kind)| Field::new(name, kind, false)).into();
    fields.extend(columns.map(|(name, kind, nullable)| Field::new(name, kind, nullable)));
    if data {
        fields.push(Field::new("data", DataType::Binary, false));
    }
    Arc::new(Schema::new(fields))
}

/// Whether addresses are asked for as bytes, rather than as text.
pub(crate) fn as_bytes(addresses: &str) -> PyResult<bool> {
    match addresses {
        "text" => Ok(false),
        "bytes" => Ok(true),
        other => Err(OptionsError::new_err(format!(
            "addresses: {other:?} is neither \"text\" nor \"bytes\""
        ))),
    }
}

/// Makes a pandas DataFrame or numpy arrays (`kind`) of columns, in Python; with a batch size an
/// iterator of them. `columns` returns the columns in batches of this size.
pub(crate) fn converted<'py>(
    py: Python<'py>,
    kind: &str,
    batch_size: Option<usize>,
    columns: impl FnOnce(usize) -> PyResult<Columns>,
) -> PyResult<Bound<'py, PyAny>> {
    let name = if batch_size.is_some() { format!("{kind}_batches") } else { format!("to_{kind}") };
    let columns = columns(batch_size.unwrap_or(65_536))?;
    py.import("superpacket._columns")?.call_method1(name, (columns,))
}

/// A column of text or bytes that grows.
struct Runs {
    bytes: Vec<u8>,
    ends: Vec<i32>,
}

impl Runs {
    fn new(rows: usize) -> Self {
        let mut ends = Vec::with_capacity(rows + 1);
        ends.push(0);
        Runs { bytes: Vec::new(), ends }
    }

    #[inline]
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len() as i32);
    }

    fn offsets(ends: Vec<i32>) -> OffsetBuffer<i32> {
        OffsetBuffer::new(ScalarBuffer::from(ends))
    }
}

/// Addresses of one end.
enum Ends {
    Text(Runs),
    Bytes(Vec<u8>),
}

impl Ends {
    fn new(addresses: Addresses, rows: usize) -> Self {
        match addresses {
            Addresses::Text => Ends::Text(Runs::new(rows)),
            Addresses::Bytes => Ends::Bytes(Vec::with_capacity(ADDRESS as usize * rows)),
        }
    }

    #[inline]
    fn push(&mut self, address: Option<std::net::IpAddr>, scratch: &mut String) {
        match (self, address) {
            (Ends::Text(runs), Some(address)) => {
                with_address(address, scratch, |text| runs.push(text.as_bytes()))
            }
            (Ends::Text(runs), None) => runs.push(&[]),
            (Ends::Bytes(bytes), Some(std::net::IpAddr::V4(address))) => {
                bytes.extend_from_slice(&address.to_ipv6_mapped().octets())
            }
            (Ends::Bytes(bytes), Some(std::net::IpAddr::V6(address))) => {
                bytes.extend_from_slice(&address.octets())
            }
            (Ends::Bytes(bytes), None) => bytes.extend_from_slice(&[0; ADDRESS as usize]),
        }
    }

    fn finish(self, nulls: &Option<NullBuffer>) -> Result<ArrayRef, ArrowError> {
        Ok(match self {
            Ends::Text(Runs { bytes, ends }) => Arc::new(StringArray::try_new(
                Runs::offsets(ends),
                Buffer::from_vec(bytes),
                nulls.clone(),
            )?),
            Ends::Bytes(bytes) => Arc::new(FixedSizeBinaryArray::try_new(
                ADDRESS,
                Buffer::from_vec(bytes),
                nulls.clone(),
            )?),
        })
    }
}

/// A batch that grows row by row.
struct Growing {
    first: u64,
    time: Vec<i64>,
    has_time: BooleanBufferBuilder,
    interface: Vec<u32>,
    link_type: Vec<u16>,
    captured: Vec<u32>,
    original: Vec<u32>,
    has_ip: BooleanBufferBuilder,
    version: Vec<u8>,
    source: Ends,
    destination: Ends,
    protocol: Vec<u8>,
    has_ports: BooleanBufferBuilder,
    source_port: Vec<u16>,
    destination_port: Vec<u16>,
    has_transport: BooleanBufferBuilder,
    transport: Vec<u16>,
    payload: Vec<u16>,
    payload_length: Vec<u32>,
    has_tcp: BooleanBufferBuilder,
    flags: Vec<u8>,
    sequence: Vec<u32>,
    acknowledgement: Vec<u32>,
    window: Vec<u16>,
    data: Option<Runs>,
    /// Bytes of frames, if they are kept.
    bytes: usize,
    scratch: String,
}

impl Growing {
    fn new(rows: usize, addresses: Addresses, data: bool) -> Self {
        let bits = || BooleanBufferBuilder::new(rows);
        Growing {
            first: 1,
            time: Vec::with_capacity(rows),
            has_time: bits(),
            interface: Vec::with_capacity(rows),
            link_type: Vec::with_capacity(rows),
            captured: Vec::with_capacity(rows),
            original: Vec::with_capacity(rows),
            has_ip: bits(),
            version: Vec::with_capacity(rows),
            source: Ends::new(addresses, rows),
            destination: Ends::new(addresses, rows),
            protocol: Vec::with_capacity(rows),
            has_ports: bits(),
            source_port: Vec::with_capacity(rows),
            destination_port: Vec::with_capacity(rows),
            has_transport: bits(),
            transport: Vec::with_capacity(rows),
            payload: Vec::with_capacity(rows),
            payload_length: Vec::with_capacity(rows),
            has_tcp: bits(),
            flags: Vec::with_capacity(rows),
            sequence: Vec::with_capacity(rows),
            acknowledgement: Vec::with_capacity(rows),
            window: Vec::with_capacity(rows),
            data: data.then(|| Runs::new(rows)),
            bytes: 0,
            scratch: String::new(),
        }
    }

    fn rows(&self) -> usize {
        self.time.len()
    }

    #[inline]
    fn push(&mut self, frame: &Frame<'_>) {
        if self.time.is_empty() {
            self.first = frame.number;
        }
        // Times after the year 2262 do not fit.
        let time = frame.time.and_then(|time| i64::try_from(time.nanoseconds()).ok());
        // Numpy's "not a time".
        self.time.push(time.unwrap_or(i64::MIN));
        self.has_time.append(time.is_some());
        self.interface.push(frame.interface);
        let link_type = frame.link_type();
        self.link_type.push(link_type.0);
        self.captured.push(frame.data.len() as u32);
        self.original.push(frame.original_length);
        let layers = Layers::find(link_type, frame.data, frame.original_length);
        let tuple = layers.tuple;
        self.has_ip.append(tuple.is_some());
        self.version.push(match tuple.map(|tuple| tuple.version()) {
            Some(IpVersion::V4) => 4,
            Some(IpVersion::V6) => 6,
            None => 0,
        });
        self.source.push(tuple.map(|tuple| tuple.source()), &mut self.scratch);
        self.destination.push(tuple.map(|tuple| tuple.destination()), &mut self.scratch);
        self.protocol.push(tuple.and_then(|tuple| tuple.protocol()).unwrap_or(0));
        let ports = tuple.and_then(|tuple| tuple.ports());
        self.has_ports.append(ports.is_some());
        let [from, to] = ports.unwrap_or_default();
        self.source_port.push(from);
        self.destination_port.push(to);
        self.has_transport.append(layers.layout.is_some());
        let mut segment = None;
        match &layers.layout {
            Some(layout) => {
                self.transport.push(layout.transport + layers.link as u16);
                self.payload.push(layout.payload + layers.link as u16);
                self.payload_length.push(layout.end.saturating_sub(u32::from(layout.payload)));
                if layout.protocol == Protocol::Tcp {
                    let start = layers.link + usize::from(layout.transport);
                    segment = frame.data.get(start..).and_then(|header| header.first_chunk::<20>());
                }
            }
            None => {
                self.transport.push(0);
                self.payload.push(0);
                self.payload_length.push(0);
            }
        }
        self.has_tcp.append(segment.is_some());
        let header = segment.unwrap_or(&[0; 20]);
        let word = |at: usize| {
            u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        self.sequence.push(word(4));
        self.acknowledgement.push(word(8));
        self.flags.push(header[tcp::FLAGS]);
        self.window.push(u16::from_be_bytes([header[14], header[15]]));
        if let Some(data) = &mut self.data {
            data.push(frame.data);
            self.bytes += frame.data.len();
        }
    }

    fn finish(mut self, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
        fn column<T: ArrowPrimitiveType>(
            values: Vec<T::Native>,
            nulls: &Option<NullBuffer>,
        ) -> Result<ArrayRef, ArrowError> {
            Ok(Arc::new(PrimitiveArray::<T>::try_new(ScalarBuffer::from(values), nulls.clone())?))
        }
        let nulls = |bits: &mut BooleanBufferBuilder| {
            Some(NullBuffer::new(bits.finish())).filter(|nulls| nulls.null_count() > 0)
        };
        let (time, ip) = (nulls(&mut self.has_time), nulls(&mut self.has_ip));
        let (ports, transport, tcp) =
            (nulls(&mut self.has_ports), nulls(&mut self.has_transport), nulls(&mut self.has_tcp));
        let numbers = (self.first..).take(self.rows()).collect();
        let time = PrimitiveArray::<TimestampNanosecondType>::try_new(
            ScalarBuffer::from(self.time),
            time,
        )?
        .with_timezone("UTC");
        let mut columns: Vec<ArrayRef> = vec![
            column::<UInt64Type>(numbers, &None)?,
            Arc::new(time),
            column::<UInt32Type>(self.interface, &None)?,
            column::<UInt16Type>(self.link_type, &None)?,
            column::<UInt32Type>(self.captured, &None)?,
            column::<UInt32Type>(self.original, &None)?,
            column::<UInt8Type>(self.version, &ip)?,
            self.source.finish(&ip)?,
            self.destination.finish(&ip)?,
            column::<UInt8Type>(self.protocol, &ip)?,
            column::<UInt16Type>(self.source_port, &ports)?,
            column::<UInt16Type>(self.destination_port, &ports)?,
            column::<UInt16Type>(self.transport, &transport)?,
            column::<UInt16Type>(self.payload, &transport)?,
            column::<UInt32Type>(self.payload_length, &transport)?,
            column::<UInt8Type>(self.flags, &tcp)?,
            column::<UInt32Type>(self.sequence, &tcp)?,
            column::<UInt32Type>(self.acknowledgement, &tcp)?,
            column::<UInt16Type>(self.window, &tcp)?,
        ];
        if let Some(Runs { bytes, ends }) = self.data {
            columns.push(Arc::new(BinaryArray::try_new(
                Runs::offsets(ends),
                Buffer::from_vec(bytes),
                None,
            )?));
        }
        RecordBatch::try_new(Arc::clone(schema), columns)
    }
}

/// Where frames come from.
enum Frames {
    Reader(Box<Reader>),
    /// Packets in memory, and how many have been taken.
    Packets(Arc<Packets>, usize),
}

impl Frames {
    #[inline]
    fn next_frame(&mut self) -> Result<Option<Frame<'_>>, CaptureError> {
        match self {
            Frames::Reader(reader) => reader.next_frame(),
            Frames::Packets(packets, next) => {
                *next += 1;
                Ok(packets.get(*next - 1))
            }
        }
    }
}

/// What ended a stream before its time.
#[derive(Debug)]
enum Ended {
    Error(CaptureError),
    CutShort(Truncated),
}

/// The last of these is kept where the columns can find it: whoever reads the stream gives words
/// only.
type Cause = Arc<Mutex<Option<Ended>>>;

fn locked(cause: &Cause) -> MutexGuard<'_, Option<Ended>> {
    cause.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream of batches.
struct Batches {
    frames: Frames,
    strict: bool,
    batch_size: usize,
    addresses: Addresses,
    data: bool,
    schema: SchemaRef,
    cause: Cause,
    done: bool,
}

impl Batches {
    fn fail(&mut self, text: String, ended: Ended) -> ArrowError {
        self.done = true;
        *locked(&self.cause) = Some(ended);
        ArrowError::ExternalError(text.into())
    }

    fn batch(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        let mut growing = Growing::new(self.batch_size.min(1 << 20), self.addresses, self.data);
        while growing.rows() < self.batch_size && growing.bytes < MOST_BYTES {
            match self.frames.next_frame() {
                Ok(Some(frame)) => growing.push(&frame),
                Ok(None) => {
                    self.done = true;
                    break;
                }
                Err(error) => return Err(self.fail(error.to_string(), Ended::Error(error))),
            }
        }
        if self.done
            && let Frames::Reader(reader) = &self.frames
            && let Some(truncated) = reader.truncated().cloned()
        {
            if self.strict {
                return Err(self.fail(truncated.to_string(), Ended::CutShort(truncated)));
            }
            *locked(&self.cause) = Some(Ended::CutShort(truncated));
        }
        if growing.rows() == 0 { Ok(None) } else { growing.finish(&self.schema).map(Some) }
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done { None } else { self.batch().transpose() }
    }
}

impl RecordBatchReader for Batches {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

/// Packets as columns: a stream that pyarrow, polars and duckdb take without copies, to be read
/// once.
///
/// It has `__arrow_c_stream__`, and is an iterator of batches with `__arrow_c_array__`.
#[pyclass(module = "superpacket")]
pub(crate) struct Columns {
    /// None once a stream was made of them. Only their owner asks for them: the lock makes them
    /// what threads may share.
    batches: Option<Mutex<Batches>>,
    schema: SchemaRef,
    strict: bool,
    cause: Cause,
}

impl Columns {
    pub(crate) fn of_reader(
        reader: Reader,
        strict: bool,
        batch_size: usize,
        data: bool,
        bytes: bool,
    ) -> PyResult<Columns> {
        Self::new(Frames::Reader(Box::new(reader)), strict, batch_size, data, bytes)
    }

    pub(crate) fn of_packets(
        packets: Arc<Packets>,
        batch_size: usize,
        data: bool,
        bytes: bool,
    ) -> PyResult<Columns> {
        Self::new(Frames::Packets(packets, 0), false, batch_size, data, bytes)
    }

    fn new(
        frames: Frames,
        strict: bool,
        batch_size: usize,
        data: bool,
        bytes: bool,
    ) -> PyResult<Columns> {
        if batch_size == 0 {
            return Err(PyValueError::new_err(
                "batch_size: 0 is not a number of packets from 1 on",
            ));
        }
        let batch_size = batch_size.min(MOST_ROWS);
        let addresses = if bytes { Addresses::Bytes } else { Addresses::Text };
        let (schema, cause) = (schema(addresses, data), Cause::default());
        let batches = Batches {
            frames,
            strict,
            batch_size,
            addresses,
            data,
            schema: Arc::clone(&schema),
            cause: Arc::clone(&cause),
            done: false,
        };
        Ok(Columns { batches: Some(Mutex::new(batches)), schema, strict, cause })
    }
}

fn schema_capsule<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Bound<'py, PyCapsule>> {
    let schema = FFI_ArrowSchema::try_from(schema).map_err(arrow_error)?;
    PyCapsule::new_with_value(py, schema, c"arrow_schema")
}

fn arrow_error(error: ArrowError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

#[pymethods]
impl Columns {
    /// Returns the columns' names and types as a capsule of Arrow's C data interface.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.schema)
    }

    /// Returns the stream as a capsule of Arrow's C data interface; another schema cannot be
    /// requested, and is ignored.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &mut self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        let batches = self.batches.take().ok_or_else(|| {
            PyValueError::new_err("the columns have been read: open the capture again")
        })?;
        PyCapsule::new_with_value(
            py,
            FFI_ArrowArrayStream::new(Box::new(
                batches.into_inner().unwrap_or_else(PoisonError::into_inner),
            )),
            c"arrow_array_stream",
        )
    }

    /// The names of the columns.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.schema.fields().iter().map(|field| field.name().clone()).collect()
    }

    /// Raises what ended the stream before its time, since whoever reads it knows the words only: a
    /// capture's error, or a capture that was cut short, if it was opened as strict.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        match &*locked(&self.cause) {
            Some(Ended::Error(error)) => Err(capture_error(py, error)),
            Some(Ended::CutShort(truncated)) if self.strict => Err(cut_short(py, truncated)),
            Some(Ended::CutShort(truncated)) => warn(py, &truncated.to_string()),
            None => Ok(()),
        }
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<ColumnBatch>> {
        let Some(batches) = &mut self.batches else {
            return Err(PyValueError::new_err(
                "the columns have been read: open the capture again",
            ));
        };
        let batches = batches.get_mut().unwrap_or_else(PoisonError::into_inner);
        py.check_signals()?;
        let batch = py.detach(|| batches.next());
        match batch {
            Some(Ok(batch)) => Ok(Some(ColumnBatch { batch })),
            Some(Err(error)) => {
                self.check(py)?;
                Err(arrow_error(error))
            }
            None => {
                self.check(py)?;
                Ok(None)
            }
        }
    }
}

/// A batch of columns, for `pyarrow.record_batch` and others that take `__arrow_c_array__`.
#[pyclass(frozen, module = "superpacket")]
pub(crate) struct ColumnBatch {
    batch: RecordBatch,
}

impl ColumnBatch {
    pub(crate) fn new(batch: RecordBatch) -> Self {
        ColumnBatch { batch }
    }
}

#[pymethods]
impl ColumnBatch {
    /// Returns schema and batch as capsules of Arrow's C data interface; another schema cannot be
    /// requested, and is ignored.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        let _ = requested_schema;
        let schema = schema_capsule(py, self.batch.schema_ref())?;
        let array = arrow_array::StructArray::from(self.batch.clone());
        let array = arrow_array::ffi::FFI_ArrowArray::new(&array.into_data());
        Ok((schema, PyCapsule::new_with_value(py, array, c"arrow_array")?))
    }

    /// Returns the bytes of each column of numbers or addresses, in this machine's byte order, by
    /// its name; 0 where there is no value.
    fn buffers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let buffers = PyDict::new(py);
        for (field, column) in self.batch.schema_ref().fields().iter().zip(self.batch.columns()) {
            if !matches!(field.data_type(), DataType::Utf8 | DataType::Binary)
                && let Some(values) = column.to_data().buffers().first()
            {
                buffers.set_item(field.name(), PyBytes::new(py, values.as_slice()))?;
            }
        }
        Ok(buffers)
    }

    fn __len__(&self) -> usize {
        self.batch.num_rows()
    }
}
