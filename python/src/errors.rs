//! Exceptions, and how errors become them.

use pyo3::exceptions::{PyException, PyKeyboardInterrupt, PyOSError, PyUserWarning};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::{create_exception, intern};

use superpacket_captures as captures;

create_exception!(superpacket, Error, PyException, "What this package raises.");
create_exception!(
    superpacket,
    CaptureError,
    Error,
    "A capture cannot be read or written: `file` is its name, `packet` the packet's number from 1 and `offset` the byte where its record \
     begins, after decompression (both None where there is no packet), `cause` says what is wrong."
);
create_exception!(
    superpacket,
    OptionsError,
    Error,
    "Options that contradict each other, or are out of bounds."
);
create_exception!(
    superpacket,
    SegmentError,
    Error,
    "A packet cannot be cut: `name` is the error's name in reports."
);

/// What a capture's error says, apart from the sentence.
struct Parts<'a> {
    file: &'a str,
    packet: Option<u64>,
    offset: Option<u64>,
    cause: String,
    source: Option<&'a std::io::Error>,
}

fn parts(error: &captures::CaptureError) -> Parts<'_> {
    use captures::CaptureError as E;
    let whole =
        |file, cause: String, source| Parts { file, packet: None, offset: None, cause, source };
    match error {
        E::Open { file, source } => {
            whole(file, format!("cannot be opened: {source}"), Some(source))
        }
        E::NotCapture { file, reason } => {
            whole(file, format!("not a capture file: {reason}"), None)
        }
        E::Unsupported { file, packet, offset, reason } => Parts {
            file,
            packet: Some(*packet),
            offset: Some(*offset),
            cause: format!("not supported: {reason}"),
            source: None,
        },
        E::Malformed { file, packet, offset, reason } => Parts {
            file,
            packet: Some(*packet),
            offset: Some(*offset),
            cause: reason.clone(),
            source: None,
        },
        E::RecordTooLong { file, packet, offset, claimed, limit } => Parts {
            file,
            packet: Some(*packet),
            offset: Some(*offset),
            cause: format!("record claims {claimed} bytes, more than the limit of {limit}"),
            source: None,
        },
        E::Read { file, packet, offset, source } => Parts {
            file,
            packet: Some(*packet),
            offset: Some(*offset),
            cause: format!("cannot be read: {source}"),
            source: Some(source),
        },
        E::Create { file, source } => {
            whole(file, format!("cannot be created: {source}"), Some(source))
        }
        E::Write { file, source } => {
            whole(file, format!("cannot be written: {source}"), Some(source))
        }
        E::SeveralLinkTypes { file, packet, first, other } => Parts {
            file,
            packet: Some(*packet),
            offset: None,
            cause: format!(
                "a pcap file holds one link type, but this packet is {other} after {first}: write pcapng"
            ),
            source: None,
        },
        E::UnknownInterface { file, packet, interface } => Parts {
            file,
            packet: Some(*packet),
            offset: None,
            cause: format!("interface {interface} was not declared"),
            source: None,
        },
        E::Time { file, packet } => Parts {
            file,
            packet: Some(*packet),
            offset: None,
            cause: "its time cannot be expressed in this format".to_owned(),
            source: None,
        },
        E::FrameTooLong { file, packet, length, limit } => Parts {
            file,
            packet: Some(*packet),
            offset: None,
            cause: format!("a frame of {length} bytes is above the limit of {limit}"),
            source: None,
        },
        other => whole("", other.to_string(), None),
    }
}

/// The exception of a capture's error.
pub(crate) fn capture_error(py: Python<'_>, error: &captures::CaptureError) -> PyErr {
    let Parts { file, packet, offset, cause, source } = parts(error);
    // What Python raised while a pipe was waited for.
    if let Some(raised) =
        source.and_then(std::io::Error::get_ref).and_then(|inner| inner.downcast_ref::<PyErr>())
    {
        return raised.clone_ref(py);
    }
    let text = error.to_string();
    let Some((source, number)) = source.and_then(|source| Some((source, number_of(source)?)))
    else {
        return with_place(py, CaptureError::new_err(text), file, packet, offset, &cause);
    };
    let reason = source.to_string();
    let exception = match of_system(py, &text, number, &reason, file) {
        Ok(exception) => with_place(py, exception, file, packet, offset, &cause),
        Err(other) => return other,
    };
    exception.set_cause(py, Some(PyOSError::new_err((number, reason, file.to_owned()))));
    exception
}

/// The error number of C for a system's error: on Windows the system has others.
fn number_of(error: &std::io::Error) -> Option<i32> {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::NotFound => Some(2),
        ErrorKind::PermissionDenied => Some(13),
        ErrorKind::IsADirectory => Some(21),
        // EIO
        _ if cfg!(windows) => error.raw_os_error().map(|_| 5),
        _ => error.raw_os_error(),
    }
}

/// An exception that is an OSError too.
fn of_system(py: Python<'_>, text: &str, number: i32, reason: &str, file: &str) -> PyResult<PyErr> {
    static OF_SYSTEM: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let of_system = OF_SYSTEM.import(py, "superpacket._errors", "of_system")?;
    Ok(PyErr::from_value(of_system.call1((text, number, reason, file))?))
}

/// The exception of a capture that ends within a record.
pub(crate) fn cut_short(py: Python<'_>, truncated: &captures::Truncated) -> PyErr {
    let cause = format!("cut short: {}", truncated.reason);
    with_place(
        py,
        CaptureError::new_err(truncated.to_string()),
        &truncated.file,
        Some(truncated.packet),
        Some(truncated.offset),
        &cause,
    )
}

fn with_place(
    py: Python<'_>,
    exception: PyErr,
    file: &str,
    packet: Option<u64>,
    offset: Option<u64>,
    cause: &str,
) -> PyErr {
    let value = exception.value(py);
    let set = || -> PyResult<()> {
        value.setattr(intern!(py, "file"), file)?;
        value.setattr(intern!(py, "packet"), packet)?;
        value.setattr(intern!(py, "offset"), offset)?;
        value.setattr(intern!(py, "cause"), cause)
    };
    match set() {
        Ok(()) => exception,
        Err(other) => other,
    }
}

/// The exception of a command's error.
pub(crate) fn command_error(py: Python<'_>, error: captures::Error) -> PyErr {
    match error {
        captures::Error::Capture(error) => capture_error(py, &error),
        captures::Error::CutShort(truncated) => cut_short(py, &truncated),
        captures::Error::Options(text) => OptionsError::new_err(text),
        captures::Error::Interrupted => PyKeyboardInterrupt::new_err(()),
        other => Error::new_err(other.to_string()),
    }
}

/// Warns as Python does.
pub(crate) fn warn(py: Python<'_>, text: &str) -> PyResult<()> {
    py.import("warnings")?
        .call_method1("warn", (text, py.get_type::<PyUserWarning>(), 2))
        .map(|_| ())
}
