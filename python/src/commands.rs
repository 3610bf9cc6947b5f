//! The program's commands: options in, a report out, as JSON that the package makes its own classes
//! of.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::prelude::*;
use serde::Serialize;
use superpacket_captures as captures;
use superpacket_captures::{
    CaptureError, CpuMask, Input, Output, Packets, Reader, Rules, Stepping, ToeplitzKey,
};

use crate::capture::{Capture, Given};
use crate::errors::{OptionsError, capture_error, command_error};
use crate::interruptible::{FileObject, is_file_object, name_of};
use crate::list::PacketList;
use crate::progress::Reporter;

/// What a command reads.
pub(crate) enum CommandInput {
    Path(PathBuf),
    Packets(Arc<Packets>),
    /// A reader; `None` once it is being read.
    Reader(Option<Box<Reader>>, bool),
    /// A name, and an object with `read` that a command reads once.
    File(String, Option<FileObject>),
}

impl CommandInput {
    pub(crate) fn input(&mut self) -> Input<'_> {
        match self {
            CommandInput::Path(path) => Input::Path(path),
            CommandInput::Packets(packets) => Input::Packets(packets),
            CommandInput::Reader(reader, _) => match reader.take() {
                Some(reader) => Input::Reader(reader),
                None => Input::Path(Path::new("")),
            },
            CommandInput::File(name, object) => match object.take() {
                Some(object) => Input::Stream { file: name.clone(), stream: Box::new(object) },
                None => Input::Path(Path::new("")),
            },
        }
    }

    /// Whether it is an error that it ends within a record: its owner opened it so.
    pub(crate) fn is_strict(&self) -> bool {
        matches!(self, CommandInput::Reader(_, true))
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for CommandInput {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(list) = object.cast::<PacketList>() {
            return Ok(CommandInput::Packets(list.borrow().packets()));
        }
        if let Ok(capture) = object.cast::<Capture>() {
            return Ok(match Capture::give(&capture)? {
                Given::Reader(reader) => {
                    CommandInput::Reader(Some(reader), capture.get().is_strict())
                }
                Given::Rest(list) => CommandInput::Packets(list.packets()),
            });
        }
        if is_file_object(&object)? {
            let file = FileObject(object.to_owned().unbind());
            return Ok(CommandInput::File(name_of(&object)?, Some(file)));
        }
        Ok(CommandInput::Path(object.extract()?))
    }
}

/// Whether a file is a capture, or cannot be read, so that a command says why.
#[pyfunction]
pub(crate) fn is_capture(py: Python<'_>, path: PathBuf) -> bool {
    !matches!(py.detach(|| Reader::open(path)), Err(CaptureError::NotCapture { .. }))
}

/// Runs a command without the interpreter's lock; its report comes back as JSON.
pub(crate) fn run<R: Serialize + Send>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    command: impl FnOnce(&mut Reporter) -> Result<R, captures::Error> + Send,
) -> PyResult<(String, R)> {
    py.check_signals()?;
    let mut reporter = Reporter::new(progress);
    let ended = py.detach(|| {
        let report = command(&mut reporter)?;
        let json = serde_json::to_string(&report)
            .map_err(|error| captures::Error::Options(error.to_string()))?;
        Ok((json, report))
    });
    // What Python raised is the cause of whatever else ended it.
    match (reporter.raised(), ended) {
        (Some(raised), _) => Err(raised),
        (None, Err(error)) => Err(command_error(py, error)),
        (None, Ok(ended)) => Ok(ended),
    }
}

pub(crate) fn stepping(batch: u64, hold: u64) -> Stepping {
    Stepping { batch, hold }
}

fn write_page(
    py: Python<'_>,
    path: Option<PathBuf>,
    page: impl FnOnce() -> Result<String, captures::Error>,
) -> PyResult<()> {
    let Some(path) = path else { return Ok(()) };
    let page = page().map_err(|error| command_error(py, error))?;
    superpacket_captures::file::write_file(&path, page.as_bytes()).map_err(|source| {
        capture_error(py, &CaptureError::Write { file: path.display().to_string(), source })
    })
}

/// A report's page, drawn when it is asked for.
#[pyclass(frozen, module = "superpacket._superpacket")]
pub(crate) struct Page {
    report: Pages,
}

pub(crate) enum Pages {
    /// The text of a report that was pickled.
    Rendered(String),
    Analyze(Box<captures::AnalyzeReport>),
    /// A steering report, and the number of flows that its text lists.
    Steer(Box<captures::SteerReport>, usize),
}

impl Page {
    pub(crate) fn new(report: Pages) -> Self {
        Page { report }
    }
}

#[pymethods]
impl Page {
    /// Returns the page as HTML that needs nothing else.
    fn render(&self, py: Python<'_>) -> PyResult<String> {
        let rendered = match &self.report {
            Pages::Rendered(page) => Ok(page.clone()),
            Pages::Analyze(report) => report.page(),
            Pages::Steer(report, top) => report.page(*top),
        };
        rendered.map_err(|error| command_error(py, error))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        Ok((py.get_type::<Page>().getattr("_of")?, (self.render(py)?,)))
    }

    /// Makes a page of what it was pickled as.
    #[staticmethod]
    fn _of(page: String) -> Page {
        Page::new(Pages::Rendered(page))
    }
}

/// Merges the packets of each flow; see `superpacket.coalesce`.
#[pyfunction]
#[pyo3(signature = (input, output, *, lro, batch, hold, max_bytes, jumbo_option, max_packets, max_flows, udp, acks, fix_checksums, keep_partial, strict, progress))]
#[expect(clippy::too_many_arguments, reason = "these are the command's options, by name")]
pub(crate) fn coalesce(
    py: Python<'_>,
    mut input: CommandInput,
    output: Option<PathBuf>,
    lro: bool,
    batch: u64,
    hold: u64,
    max_bytes: u32,
    jumbo_option: bool,
    max_packets: u32,
    max_flows: Option<u32>,
    udp: bool,
    acks: bool,
    fix_checksums: bool,
    keep_partial: bool,
    strict: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<(String, Option<PacketList>)> {
    let strict = strict || input.is_strict();
    let rules = if lro { Rules::Lro } else { Rules::Gro };
    let stepping = stepping(batch, hold);
    let options = captures::CoalesceOptions {
        rules,
        stepping,
        max_bytes,
        jumbo_option,
        max_packets,
        max_flows,
        udp,
        acks,
        fix_checksums,
        keep_partial,
        strict,
    };
    let mut packets = Packets::new();
    let (json, _) = run(py, progress, |progress| {
        let output = match &output {
            Some(path) => Output::Path(path),
            None => Output::Packets(&mut packets),
        };
        captures::coalesce(input.input(), output, &options, progress)
    })?;
    Ok((json, output.is_none().then(|| PacketList::from_packets(packets))))
}

/// Cuts frames above the MTU; see `superpacket.segment`.
#[pyfunction]
#[pyo3(signature = (input, output, *, mtu, fragment, udp_size, fix_checksums, fix_lengths, keep_partial, strict, progress))]
#[expect(clippy::too_many_arguments, reason = "these are the command's options, by name")]
pub(crate) fn segment(
    py: Python<'_>,
    mut input: CommandInput,
    output: Option<PathBuf>,
    mtu: u32,
    fragment: bool,
    udp_size: Option<u16>,
    fix_checksums: bool,
    fix_lengths: bool,
    keep_partial: bool,
    strict: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<(String, Option<PacketList>)> {
    let strict = strict || input.is_strict();
    let options = captures::SegmentOptions {
        mtu,
        fragment,
        udp_size,
        fix_checksums,
        fix_lengths,
        keep_partial,
        strict,
    };
    let mut packets = Packets::new();
    let (json, _) = run(py, progress, |progress| {
        let output = match &output {
            Some(path) => Output::Path(path),
            None => Output::Packets(&mut packets),
        };
        captures::segment(input.input(), output, &options, progress)
    })?;
    Ok((json, output.is_none().then(|| PacketList::from_packets(packets))))
}

/// Aggregates, segments and compares; see `superpacket.verify`.
#[pyfunction]
#[pyo3(signature = (inputs, *, batch, hold, udp, strict, inject_fault, progress))]
#[expect(clippy::too_many_arguments, reason = "these are the command's options, by name")]
pub(crate) fn verify(
    py: Python<'_>,
    mut inputs: Vec<CommandInput>,
    batch: u64,
    hold: u64,
    udp: bool,
    strict: bool,
    inject_fault: Option<u64>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let strict = strict || inputs.iter().any(CommandInput::is_strict);
    let options =
        captures::VerifyOptions { stepping: stepping(batch, hold), udp, strict, inject_fault };
    let (json, _) = run(py, progress, |progress| {
        captures::verify(inputs.iter_mut().map(CommandInput::input).collect(), &options, progress)
    })?;
    Ok(json)
}

/// Packets over time: the intervals' starts in seconds, and packets per second before and after.
type Timeline = (Vec<f64>, Vec<f64>, Vec<f64>);

/// Says what aggregation would save; see `superpacket.analyze`.
#[pyfunction]
#[pyo3(signature = (inputs, *, batch, hold, top, strict, html, progress))]
#[expect(clippy::too_many_arguments, reason = "these are the command's options, by name")]
pub(crate) fn analyze(
    py: Python<'_>,
    mut inputs: Vec<CommandInput>,
    batch: u64,
    hold: u64,
    top: usize,
    strict: bool,
    html: Option<PathBuf>,
    progress: Option<Py<PyAny>>,
) -> PyResult<(String, Vec<Timeline>, Page)> {
    let strict = strict || inputs.iter().any(CommandInput::is_strict);
    let options = captures::AnalyzeOptions { stepping: stepping(batch, hold), top, strict };
    let (json, report) = run(py, progress, |progress| {
        captures::analyze(inputs.iter_mut().map(CommandInput::input).collect(), &options, progress)
    })?;
    write_page(py, html, || report.page())?;
    let timelines = report.files.iter().map(|file| {
        let mut columns = Timeline::default();
        for (start, [before, after]) in file.findings.timeline.rates() {
            columns.0.push(start);
            columns.1.push(before);
            columns.2.push(after);
        }
        columns
    });
    let timelines = timelines.collect();
    Ok((json, timelines, Page { report: Pages::Analyze(Box::new(report)) }))
}

/// Says how flows would spread; see `superpacket.steer`.
#[pyfunction]
#[pyo3(signature = (input, *, cpus, cpu_list, key, symmetric, outer, strict, html, top, progress))]
#[expect(clippy::too_many_arguments, reason = "these are the command's options, by name")]
pub(crate) fn steer(
    py: Python<'_>,
    mut input: CommandInput,
    cpus: Option<&str>,
    cpu_list: Option<&str>,
    key: Option<&[u8]>,
    symmetric: bool,
    outer: bool,
    strict: bool,
    html: Option<PathBuf>,
    top: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<(String, Page)> {
    let cpus = match (cpus, cpu_list) {
        (Some(mask), None) => mask
            .parse::<CpuMask>()
            .map_err(|error| OptionsError::new_err(format!("cpus: {error}")))?,
        (None, Some(list)) => CpuMask::parse_list(list, superpacket_steer::MAX_CPUS)
            .map_err(|error| OptionsError::new_err(format!("cpu_list: {error}")))?,
        _ => {
            return Err(OptionsError::new_err(
                "either cpus or cpu_list is needed: cpus=\"ff\", cpu_list=\"0-7\"",
            ));
        }
    };
    let key = match key {
        None => ToeplitzKey::default(),
        Some(bytes) => match bytes.first_chunk() {
            Some(bytes) => ToeplitzKey::new(*bytes),
            None => {
                let (needed, got) = (ToeplitzKey::LENGTH, bytes.len());
                return Err(OptionsError::new_err(format!(
                    "key: a key has {needed} bytes or more, and this has {got}"
                )));
            }
        },
    };
    let strict = strict || input.is_strict();
    let options = captures::SteerOptions { cpus, key, symmetric, outer, strict };
    let (json, report) =
        run(py, progress, |progress| captures::steer(input.input(), &options, progress))?;
    write_page(py, html, || report.page(top))?;
    Ok((json, Page { report: Pages::Steer(Box::new(report), top) }))
}
