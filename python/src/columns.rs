//! Packets as columns, in batches, by Arrow's C data interface.

use std::net::IpAddr;
use std::num::NonZeroU16;
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
use superpacket::wire::IpVersion;
use superpacket_captures::file::{Frame, Source};
use superpacket_captures::{CaptureError, Packets, Reader, Truncated};

use crate::errors::{OptionsError, capture_error, cut_short, warn};
use crate::exclusive::Exclusive;
use crate::layers::{Layers, MAC, TcpHeader, mac_text, with_address};

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

/// Length of a tunnel's name as bytes, filled up with zeros.
const TUNNEL: i32 = 6;

/// Columns that every batch has, in their order, and the last only if it is asked for.
fn schema(addresses: Addresses, data: bool) -> SchemaRef {
    let text = |bytes| match addresses {
        Addresses::Text => DataType::Utf8,
        Addresses::Bytes => DataType::FixedSizeBinary(bytes),
    };
    let columns = [
        ("number", DataType::UInt64, false),
        ("time", DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())), true),
        ("interface", DataType::UInt32, false),
        ("link_type", DataType::UInt16, false),
        ("captured_length", DataType::UInt32, false),
        ("original_length", DataType::UInt32, false),
        ("source_mac", text(MAC as i32), true),
        ("destination_mac", text(MAC as i32), true),
        ("vlan", DataType::UInt16, true),
        ("tunnel", text(TUNNEL), true),
        ("tunnel_source", text(ADDRESS), true),
        ("tunnel_destination", text(ADDRESS), true),
        ("vni", DataType::UInt32, true),
        ("version", DataType::UInt8, true),
        ("source", text(ADDRESS), true),
        ("destination", text(ADDRESS), true),
        ("protocol", DataType::UInt8, true),
        ("ttl", DataType::UInt8, true),
        ("ip_id", DataType::UInt16, true),
        ("source_port", DataType::UInt16, true),
        ("destination_port", DataType::UInt16, true),
        ("network_offset", DataType::UInt16, true),
        ("transport_offset", DataType::UInt16, true),
        ("payload_offset", DataType::UInt16, true),
        ("payload_length", DataType::UInt32, true),
        ("tcp_flags", DataType::UInt8, true),
        ("sequence", DataType::UInt32, true),
        ("acknowledgement", DataType::UInt32, true),
        ("window", DataType::UInt16, true),
        ("segment_size", DataType::UInt16, true),
    ];
    let mut fields: Vec<_> =
        columns.map(|(name, kind, nullable)| Field::new(name, kind, nullable)).into();
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

/// Numbers of which some may be missing.
struct Numbers<T: ArrowPrimitiveType> {
    values: Vec<T::Native>,
    present: BooleanBufferBuilder,
}

impl<T: ArrowPrimitiveType> Numbers<T> {
    fn new(rows: usize) -> Self {
        Numbers { values: Vec::with_capacity(rows), present: BooleanBufferBuilder::new(rows) }
    }

    #[inline]
    fn push(&mut self, value: Option<T::Native>) {
        self.present.append(value.is_some());
        self.values.push(value.unwrap_or_default());
    }

    fn finish(mut self) -> Result<ArrayRef, ArrowError> {
        let values = ScalarBuffer::from(self.values);
        Ok(Arc::new(PrimitiveArray::<T>::try_new(values, nulls(&mut self.present))?))
    }
}

fn nulls(present: &mut BooleanBufferBuilder) -> Option<NullBuffer> {
    Some(NullBuffer::new(present.finish())).filter(|nulls| nulls.null_count() > 0)
}

/// Addresses or names: text, or so many bytes.
struct Texts {
    column: TextColumn,
    present: BooleanBufferBuilder,
}

enum TextColumn {
    Text(Runs),
    Bytes(Vec<u8>, i32),
}

impl Texts {
    fn new(addresses: Addresses, rows: usize, length: i32) -> Self {
        let column = match addresses {
            Addresses::Text => TextColumn::Text(Runs::new(rows)),
            Addresses::Bytes => {
                TextColumn::Bytes(Vec::with_capacity(length as usize * rows), length)
            }
        };
        Texts { column, present: BooleanBufferBuilder::new(rows) }
    }

    #[inline]
    fn skip(&mut self) {
        self.present.append(false);
        match &mut self.column {
            TextColumn::Text(runs) => runs.push(&[]),
            TextColumn::Bytes(bytes, length) => bytes.resize(bytes.len() + *length as usize, 0),
        }
    }

    #[inline]
    fn push_address(&mut self, address: Option<IpAddr>, scratch: &mut String) {
        let Some(address) = address else { return self.skip() };
        self.present.append(true);
        match &mut self.column {
            TextColumn::Text(runs) => {
                with_address(address, scratch, |text| runs.push(text.as_bytes()))
            }
            TextColumn::Bytes(bytes, _) => bytes.extend_from_slice(&match address {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            }),
        }
    }

    #[inline]
    fn push_mac(&mut self, address: Option<&[u8; MAC]>) {
        let Some(address) = address else { return self.skip() };
        self.present.append(true);
        match &mut self.column {
            TextColumn::Text(runs) => runs.push(&mac_text(address)),
            TextColumn::Bytes(bytes, _) => bytes.extend_from_slice(address),
        }
    }

    #[inline]
    fn push_name(&mut self, name: Option<&str>) {
        let Some(name) = name else { return self.skip() };
        self.present.append(true);
        match &mut self.column {
            TextColumn::Text(runs) => runs.push(name.as_bytes()),
            TextColumn::Bytes(bytes, length) => {
                let end = bytes.len() + *length as usize;
                bytes.extend_from_slice(name.as_bytes());
                bytes.resize(end, 0);
            }
        }
    }

    fn finish(mut self) -> Result<ArrayRef, ArrowError> {
        let nulls = nulls(&mut self.present);
        Ok(match self.column {
            TextColumn::Text(Runs { bytes, ends }) => {
                Arc::new(StringArray::try_new(Runs::offsets(ends), Buffer::from_vec(bytes), nulls)?)
            }
            TextColumn::Bytes(bytes, length) => {
                Arc::new(FixedSizeBinaryArray::try_new(length, Buffer::from_vec(bytes), nulls)?)
            }
        })
    }
}

/// A batch that grows row by row.
struct Growing {
    first: u64,
    time: Numbers<TimestampNanosecondType>,
    interface: Vec<u32>,
    link_type: Vec<u16>,
    captured: Vec<u32>,
    original: Vec<u32>,
    macs: [Texts; 2],
    vlan: Numbers<UInt16Type>,
    tunnel: Texts,
    tunnel_ends: [Texts; 2],
    vni: Numbers<UInt32Type>,
    version: Numbers<UInt8Type>,
    source: Texts,
    destination: Texts,
    protocol: Numbers<UInt8Type>,
    ttl: Numbers<UInt8Type>,
    ip_id: Numbers<UInt16Type>,
    ports: [Numbers<UInt16Type>; 2],
    network: Numbers<UInt16Type>,
    transport: Numbers<UInt16Type>,
    payload: Numbers<UInt16Type>,
    payload_length: Numbers<UInt32Type>,
    flags: Numbers<UInt8Type>,
    sequence: Numbers<UInt32Type>,
    acknowledgement: Numbers<UInt32Type>,
    window: Numbers<UInt16Type>,
    segment_size: Numbers<UInt16Type>,
    data: Option<Runs>,
    /// Bytes of frames, if they are kept.
    bytes: usize,
    scratch: String,
}

impl Growing {
    fn new(rows: usize, addresses: Addresses, data: bool) -> Self {
        let texts = |length| Texts::new(addresses, rows, length);
        Growing {
            first: 1,
            time: Numbers::new(rows),
            interface: Vec::with_capacity(rows),
            link_type: Vec::with_capacity(rows),
            captured: Vec::with_capacity(rows),
            original: Vec::with_capacity(rows),
            macs: [texts(MAC as i32), texts(MAC as i32)],
            vlan: Numbers::new(rows),
            tunnel: texts(TUNNEL),
            tunnel_ends: [texts(ADDRESS), texts(ADDRESS)],
            vni: Numbers::new(rows),
            version: Numbers::new(rows),
            source: texts(ADDRESS),
            destination: texts(ADDRESS),
            protocol: Numbers::new(rows),
            ttl: Numbers::new(rows),
            ip_id: Numbers::new(rows),
            ports: [Numbers::new(rows), Numbers::new(rows)],
            network: Numbers::new(rows),
            transport: Numbers::new(rows),
            payload: Numbers::new(rows),
            payload_length: Numbers::new(rows),
            flags: Numbers::new(rows),
            sequence: Numbers::new(rows),
            acknowledgement: Numbers::new(rows),
            window: Numbers::new(rows),
            segment_size: Numbers::new(rows),
            data: data.then(|| Runs::new(rows)),
            bytes: 0,
            scratch: String::new(),
        }
    }

    fn rows(&self) -> usize {
        self.interface.len()
    }

    #[inline]
    fn push(&mut self, frame: &Frame<'_>) {
        if self.interface.is_empty() {
            self.first = frame.number;
        }
        // Times after the year 2262 do not fit.
        let time = frame.time.and_then(|time| i64::try_from(time.nanoseconds()).ok());
        self.time.push(time);
        self.interface.push(frame.interface);
        let link_type = frame.link_type();
        self.link_type.push(link_type.0);
        self.captured.push(frame.data.len() as u32);
        self.original.push(frame.original_length);
        let layers = Layers::find(link_type, frame.data, frame.original_length);
        self.push_link(&layers, frame.data);
        self.push_ip(&layers, frame.data);
        let layout = layers.layout.as_ref();
        let at = |offset: u16| offset + layers.link as u16;
        self.network.push(layers.network.map(at));
        self.transport.push(layout.map(|layout| at(layout.transport)));
        self.payload.push(layout.map(|layout| at(layout.payload)));
        self.payload_length.push(layers.payload_length());
        let header = layers.tcp(frame.data);
        self.flags.push(header.as_ref().map(TcpHeader::flags));
        self.sequence.push(header.as_ref().map(TcpHeader::sequence));
        self.acknowledgement.push(header.as_ref().map(TcpHeader::acknowledgement));
        self.window.push(header.as_ref().map(TcpHeader::window));
        self.segment_size.push(frame.options.segment_size().map(NonZeroU16::get));
        if let Some(data) = &mut self.data {
            data.push(frame.data);
            self.bytes += frame.data.len();
        }
    }

    /// The frame's own Ethernet header, and the tunnel.
    #[inline]
    fn push_link(&mut self, layers: &Layers, data: &[u8]) {
        let macs = layers.macs(data);
        self.macs[0].push_mac(macs.map(|[_, source]| source));
        self.macs[1].push_mac(macs.map(|[destination, _]| destination));
        self.vlan.push(layers.vlan(data));
        self.tunnel.push_name(layers.tunnel().map(|outer| outer.tunnel.name()));
        let ends = layers.tunnel_ends(data);
        for (end, column) in self.tunnel_ends.iter_mut().enumerate() {
            column.push_address(ends.map(|ends| ends[end]), &mut self.scratch);
        }
        self.vni.push(layers.vni(data));
    }

    /// The innermost IP header, and ports.
    #[inline]
    fn push_ip(&mut self, layers: &Layers, data: &[u8]) {
        let tuple = layers.tuple;
        self.version.push(tuple.map(|tuple| match tuple.version() {
            IpVersion::V4 => 4,
            IpVersion::V6 => 6,
        }));
        self.source.push_address(tuple.map(|tuple| tuple.source()), &mut self.scratch);
        self.destination.push_address(tuple.map(|tuple| tuple.destination()), &mut self.scratch);
        self.protocol.push(tuple.and_then(|tuple| tuple.protocol()));
        self.ttl.push(layers.ttl(data));
        self.ip_id.push(layers.ip_id(data));
        let ports = tuple.and_then(|tuple| tuple.ports());
        for (end, column) in self.ports.iter_mut().enumerate() {
            column.push(ports.map(|ports| ports[end]));
        }
    }

    fn finish(mut self, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
        fn column<T: ArrowPrimitiveType>(values: Vec<T::Native>) -> Result<ArrayRef, ArrowError> {
            Ok(Arc::new(PrimitiveArray::<T>::try_new(ScalarBuffer::from(values), None)?))
        }
        let numbers = (self.first..).take(self.rows()).collect();
        let times = nulls(&mut self.time.present);
        // Numpy's "not a time".
        let time = |(index, time)| match &times {
            Some(times) if times.is_null(index) => i64::MIN,
            _ => time,
        };
        let values = self.time.values.into_iter().enumerate().map(time).collect::<Vec<_>>();
        let time =
            PrimitiveArray::<TimestampNanosecondType>::try_new(values.into(), times.clone())?
                .with_timezone("UTC");
        let [source_mac, destination_mac] = self.macs;
        let [tunnel_source, tunnel_destination] = self.tunnel_ends;
        let [source_port, destination_port] = self.ports;
        let mut columns: Vec<ArrayRef> = vec![
            column::<UInt64Type>(numbers)?,
            Arc::new(time),
            column::<UInt32Type>(self.interface)?,
            column::<UInt16Type>(self.link_type)?,
            column::<UInt32Type>(self.captured)?,
            column::<UInt32Type>(self.original)?,
            source_mac.finish()?,
            destination_mac.finish()?,
            self.vlan.finish()?,
            self.tunnel.finish()?,
            tunnel_source.finish()?,
            tunnel_destination.finish()?,
            self.vni.finish()?,
            self.version.finish()?,
            self.source.finish()?,
            self.destination.finish()?,
            self.protocol.finish()?,
            self.ttl.finish()?,
            self.ip_id.finish()?,
            source_port.finish()?,
            destination_port.finish()?,
            self.network.finish()?,
            self.transport.finish()?,
            self.payload.finish()?,
            self.payload_length.finish()?,
            self.flags.finish()?,
            self.sequence.finish()?,
            self.acknowledgement.finish()?,
            self.window.finish()?,
            self.segment_size.finish()?,
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
#[pyclass(frozen, module = "superpacket")]
pub(crate) struct Columns {
    /// None once a stream was made of them.
    batches: Exclusive<Option<Batches>>,
    schema: SchemaRef,
    strict: bool,
    cause: Cause,
}

impl Columns {
    pub(crate) fn of_reader(
        reader: Box<Reader>,
        strict: bool,
        batch_size: usize,
        data: bool,
        bytes: bool,
    ) -> PyResult<Columns> {
        Self::new(Frames::Reader(reader), strict, batch_size, data, bytes)
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
        Ok(Columns { batches: Exclusive::new(Some(batches)), schema, strict, cause })
    }
}

fn schema_capsule<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Bound<'py, PyCapsule>> {
    let schema = FFI_ArrowSchema::try_from(schema).map_err(arrow_error)?;
    PyCapsule::new_with_value(py, schema, c"arrow_schema")
}

fn been_read() -> PyErr {
    PyValueError::new_err("the columns have been read: open the capture again")
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
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        let batches = self.batches.lock(py)?.take().ok_or_else(been_read)?;
        let stream = FFI_ArrowArrayStream::new(Box::new(batches));
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
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

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<ColumnBatch>> {
        py.check_signals()?;
        let batch = {
            let mut batches = self.batches.lock(py)?;
            let batches = batches.as_mut().ok_or_else(been_read)?;
            py.detach(|| batches.next())
        };
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
