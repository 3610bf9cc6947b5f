//! What workers of `superpacket.corpus` do: captures, or parts of them, indexed and analyzed; and
//! the sums of what they found.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::types::{
    ArrowPrimitiveType, TimestampNanosecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{ArrayRef, PrimitiveArray, RecordBatch, StringArray};
use arrow_schema::{ArrowError, DataType, Field, Schema, TimeUnit};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use superpacket::wire::protocol;
use superpacket_captures as captures;
use superpacket_captures::{
    CaptureError, CapturePosition, FlowRow, Input, PacketsRow, PartAnalysis, Progress, Reader, Rows,
};

use crate::columns::ColumnBatch;
use crate::commands::{Page, Pages, run, stepping};
use crate::interruptible::FileObject;
use crate::progress::Reporter;

/// Where a worker reads: a file of this machine, from one byte to another, or a Python object with
/// `read`, which stands where the reading begins.
pub(crate) enum Stream {
    File { path: PathBuf, start: u64, end: Option<u64> },
    Object { object: Py<PyAny>, length: Option<u64> },
}

impl<'a, 'py> FromPyObject<'a, 'py> for Stream {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let (source, start, end): (Bound<'py, PyAny>, u64, Option<u64>) = object.extract()?;
        if end.is_some_and(|end| end < start) {
            return Err(PyValueError::new_err("a part ends before it begins"));
        }
        Ok(match source.extract::<PathBuf>() {
            Ok(path) => Stream::File { path, start, end },
            Err(_) => {
                Stream::Object { object: source.unbind(), length: end.map(|end| end - start) }
            }
        })
    }
}

impl Stream {
    fn open(self, name: &str) -> Result<Box<dyn Read + Send>, CaptureError> {
        let failed = |source| CaptureError::Open { file: name.to_owned(), source };
        match self {
            Stream::File { path, start, end } => {
                let mut file = File::open(path).map_err(failed)?;
                if file.metadata().map_err(failed)?.is_dir() {
                    return Err(failed(io::ErrorKind::IsADirectory.into()));
                }
                if start > 0 {
                    file.seek(SeekFrom::Start(start)).map_err(failed)?;
                }
                Ok(limited(file, end.map(|end| end - start)))
            }
            Stream::Object { object, length } => Ok(limited(FileObject(object), length)),
        }
    }
}

fn limited(stream: impl Read + Send + 'static, length: Option<u64>) -> Box<dyn Read + Send> {
    match length {
        Some(length) => Box::new(stream.take(length)),
        None => Box::new(stream),
    }
}

/// The columns of rows: names, types, whether there may be no value.
fn schema(columns: &[(&str, DataType, bool)]) -> Arc<Schema> {
    let fields: Vec<Field> = columns
        .iter()
        .map(|(name, kind, nullable)| Field::new(*name, kind.clone(), *nullable))
        .collect();
    Arc::new(Schema::new(fields))
}

fn time_type() -> DataType {
    DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()))
}

fn numbers<T: ArrowPrimitiveType>(values: impl Iterator<Item = T::Native>) -> ArrayRef {
    Arc::new(PrimitiveArray::<T>::from_iter_values(values))
}

fn text(values: impl Iterator<Item = String>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}

/// Times after the year 2262 do not fit.
fn times(values: impl Iterator<Item = Option<u64>>) -> ArrayRef {
    let values = values.map(|time| time.and_then(|time| i64::try_from(time).ok()));
    Arc::new(PrimitiveArray::<TimestampNanosecondType>::from_iter(values).with_timezone("UTC"))
}

/// The number that packets and their columns have for a protocol of flows.
fn protocol_number(name: &str) -> u8 {
    match name {
        "TCP" => protocol::TCP,
        "UDP" => protocol::UDP,
        _ => protocol::DCCP,
    }
}

fn flow_batch(rows: &[FlowRow]) -> Result<RecordBatch, ArrowError> {
    let schema = schema(&[
        ("flow", DataType::UInt64, false),
        ("protocol", DataType::UInt8, false),
        ("tunnel", DataType::Utf8, true),
        ("source", DataType::Utf8, false),
        ("source_port", DataType::UInt16, false),
        ("destination", DataType::Utf8, false),
        ("destination_port", DataType::UInt16, false),
        ("packets_in", DataType::UInt64, false),
        ("bytes_in", DataType::UInt64, false),
        ("packets_out", DataType::UInt64, false),
        ("first_time", time_type(), true),
        ("last_time", time_type(), true),
    ]);
    let each = || rows.iter();
    let columns: Vec<ArrayRef> = vec![
        numbers::<UInt64Type>(each().map(|row| row.flow)),
        numbers::<UInt8Type>(each().map(|row| protocol_number(row.protocol))),
        Arc::new(StringArray::from_iter(each().map(|row| row.tunnel))),
        text(each().map(|row| row.source.to_string())),
        numbers::<UInt16Type>(each().map(|row| row.source_port)),
        text(each().map(|row| row.destination.to_string())),
        numbers::<UInt16Type>(each().map(|row| row.destination_port)),
        numbers::<UInt64Type>(each().map(|row| row.packets_in)),
        numbers::<UInt64Type>(each().map(|row| row.bytes_in)),
        numbers::<UInt64Type>(each().map(|row| row.packets_out)),
        times(each().map(|row| row.first_time)),
        times(each().map(|row| row.last_time)),
    ];
    RecordBatch::try_new(schema, columns)
}

fn packets_batch(rows: &[PacketsRow]) -> Result<RecordBatch, ArrowError> {
    let schema = schema(&[
        ("time", time_type(), true),
        ("longest", DataType::UInt32, true),
        ("packets_in", DataType::UInt64, false),
        ("bytes_in", DataType::UInt64, false),
        ("packets_out", DataType::UInt64, false),
        ("bytes_out", DataType::UInt64, false),
    ]);
    let each = || rows.iter();
    let columns: Vec<ArrayRef> = vec![
        times(each().map(|row| row.time)),
        Arc::new(PrimitiveArray::<UInt32Type>::from_iter(each().map(|row| row.longest))),
        numbers::<UInt64Type>(each().map(|row| row.packets_in)),
        numbers::<UInt64Type>(each().map(|row| row.bytes_in)),
        numbers::<UInt64Type>(each().map(|row| row.packets_out)),
        numbers::<UInt64Type>(each().map(|row| row.bytes_out)),
    ];
    RecordBatch::try_new(schema, columns)
}

/// Gives rows to a Python function, by the name of their table.
struct Takes {
    take: Py<PyAny>,
    /// The exception that the callback raised.
    raised: Option<PyErr>,
}

impl Takes {
    fn give(
        &mut self,
        table: &str,
        batch: Result<RecordBatch, ArrowError>,
    ) -> Result<(), captures::Error> {
        let given = Python::attach(|py| {
            let batch = batch.map_err(|error| PyValueError::new_err(error.to_string()))?;
            self.take.call1(py, (table, ColumnBatch::new(batch))).map(|_| ())
        });
        given.map_err(|raised| {
            self.raised = Some(raised);
            captures::Error::Interrupted
        })
    }
}

impl Rows for Takes {
    fn flows(&mut self, rows: &[FlowRow]) -> Result<(), captures::Error> {
        self.give("flows", flow_batch(rows))
    }

    fn packets(&mut self, rows: &[PacketsRow]) -> Result<(), captures::Error> {
        self.give("packets", packets_batch(rows))
    }
}

/// Hears of signals alone: that a capture was cut short is in what was found.
struct Quiet<'a>(&'a mut Reporter);

impl Progress for Quiet<'_> {
    fn advance(&mut self, packets: u64, bytes: u64) -> ControlFlow<()> {
        self.0.advance(packets, bytes)
    }
}

/// What an index says: places (byte, packets before it, bytes of the headers that its reader
/// needs), the headers, and all packets.
type IndexParts = (Vec<(u64, u64, usize)>, Py<PyBytes>, u64);

/// Notes where parts of a capture may begin, in one pass; no places if it can only be read whole.
#[pyfunction]
#[pyo3(signature = (name, stream, *, grain, multiple))]
pub(crate) fn index(
    py: Python<'_>,
    name: &str,
    stream: Stream,
    grain: u64,
    multiple: u64,
) -> PyResult<IndexParts> {
    let options = captures::IndexOptions { grain, multiple };
    let mut found = captures::Index::default();
    run(py, None, |progress| {
        found = captures::index(name, stream.open(name)?, options, &mut Quiet(progress))?;
        Ok(())
    })?;
    let places = found
        .places
        .iter()
        .map(|noted| (noted.place.offset, noted.place.packets, noted.preamble))
        .collect();
    Ok((places, PyBytes::new(py, &found.preamble).unbind(), found.packets))
}

/// Analyzes a capture, or a part of one: `part` has the headers that its reader needs, the byte
/// where the reading begins, and packets before that; `first` is the number of its first packet, as
/// those before it are read and not counted. `take` is called with "flows" or "packets" and a batch
/// of rows. Returns what was found, to be given to `CorpusSummary.add`.
#[pyfunction]
#[pyo3(signature = (name, stream, part, take, *, first, continues, batch, hold, interval, strict))]
#[expect(clippy::too_many_arguments, reason = "these are the command's options, by name")]
pub(crate) fn analyze_part(
    py: Python<'_>,
    name: &str,
    stream: Stream,
    part: Option<(Vec<u8>, u64, u64)>,
    take: Py<PyAny>,
    first: u64,
    continues: bool,
    batch: u64,
    hold: u64,
    interval: u64,
    strict: bool,
) -> PyResult<String> {
    let analyze =
        captures::AnalyzeOptions { stepping: stepping(batch, hold), strict, ..Default::default() };
    let options = captures::PartOptions { analyze, interval, first, continues };
    let mut takes = Takes { take, raised: None };
    let ended = run(py, None, |progress| {
        let stream = stream.open(name)?;
        let reader = match part {
            Some((preamble, offset, packets)) => {
                Reader::of_part(name, preamble, CapturePosition { offset, packets }, stream)
            }
            None => Reader::from_stream(name, stream),
        }?;
        captures::analyze_part(Input::from(reader), &options, &mut takes, &mut Quiet(progress))
    });
    match takes.raised {
        Some(raised) => Err(raised),
        None => ended.map(|(json, _)| json),
    }
}

/// Adds up what was found in the captures of a corpus.
#[pyclass(frozen, module = "superpacket")]
pub(crate) struct CorpusSummary {
    corpus: Mutex<captures::Corpus>,
}

#[pymethods]
impl CorpusSummary {
    /// Begins with no captures.
    #[new]
    #[pyo3(signature = (*, batch, hold, top))]
    fn new(batch: u64, hold: u64, top: usize) -> Self {
        let options =
            captures::AnalyzeOptions { stepping: stepping(batch, hold), top, strict: false };
        CorpusSummary { corpus: Mutex::new(captures::Corpus::new(&options)) }
    }

    /// Adds what was found in a capture's parts, in their order. Returns it put together: for each
    /// policy its name, packets and bytes in and out, super-packets, merged packets, absorbed ACKs,
    /// packets that cuts concern, and packets by reason.
    fn add(&self, file: String, parts: Vec<String>) -> PyResult<Vec<PolicyRow>> {
        let read: Result<Vec<PartAnalysis>, _> =
            parts.iter().map(|part| serde_json::from_str(part)).collect();
        let parts = read.map_err(|error| {
            PyValueError::new_err(format!("{file}: what was found in it cannot be read: {error}"))
        })?;
        let rows = policy_rows(&parts);
        self.corpus.lock().unwrap_or_else(PoisonError::into_inner).add(file, parts);
        Ok(rows)
    }

    /// Adds a capture that could not be read.
    fn unreadable(&self, words: &str) {
        self.corpus.lock().unwrap_or_else(PoisonError::into_inner).unreadable(words);
    }

    /// Returns the report as JSON, and its page.
    fn report(&self, py: Python<'_>) -> PyResult<(String, Page)> {
        let report = self.corpus.lock().unwrap_or_else(PoisonError::into_inner).report();
        let (json, report) = run(py, None, |_| Ok(report))?;
        Ok((json, Page::new(Pages::Analyze(Box::new(report)))))
    }
}

/// A policy's name and its numbers, in the order that [`CorpusSummary::add`] says.
type PolicyRow = (&'static str, [u64; 8], Vec<(&'static str, u64)>);

fn policy_rows(parts: &[PartAnalysis]) -> Vec<PolicyRow> {
    let mut rows: Vec<(&'static str, [u64; 8], std::collections::BTreeMap<&'static str, u64>)> =
        Vec::new();
    for part in parts {
        let policies = &part.policies;
        let effects = [
            ("lro", &policies.lro),
            ("gro", &policies.gro),
            ("gro_udp", &policies.gro_udp),
            ("lro_acks", &policies.lro_acks),
        ];
        for (index, ((name, effect), held)) in
            effects.into_iter().zip(part.held.in_order()).enumerate()
        {
            if rows.len() == index {
                rows.push((name, [0; 8], Default::default()));
            }
            let Some((_, numbers, reasons)) = rows.get_mut(index) else { continue };
            let totals = &effect.totals;
            let more = [
                totals.packets_in,
                totals.bytes_in,
                totals.packets_out,
                totals.bytes_out,
                totals.super_packets,
                totals.merged,
                effect.absorbed_acks,
                held,
            ];
            numbers.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
            for (&reason, count) in &totals.reasons {
                *reasons.entry(reason).or_default() += count;
            }
        }
    }
    rows.into_iter()
        .map(|(name, numbers, reasons)| (name, numbers, reasons.into_iter().collect()))
        .collect()
}
