//! The errors with which a command ends, with exit code 2.

use std::io;
use std::path::PathBuf;

use superpacket_captures::file::{CaptureError, Truncated};

/// The reason why a command stopped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A capture could not be read or written.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// A capture ends within a record, and `--strict` was given.
    #[error("{0} (--strict)")]
    CutShort(Truncated),
    /// Some of several captures could not be read. The error of each was printed when it occurred.
    #[error("{0} of the captures could not be read")]
    Unreadable(usize),
    /// A signal ended the command before it had read anything.
    #[error("interrupted")]
    Interrupted,
    /// The arguments are invalid or contradict each other.
    #[error("{0}")]
    Usage(String),
    /// The report could not be printed.
    #[error("standard output: cannot be written: {0}")]
    Print(#[from] io::Error),
    /// An HTML page, or another file that is not a capture, could not be written.
    #[error("{path}: cannot be written: {source}")]
    Page {
        /// Path of the page.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The control connection to a bridge failed, or the bridge refused the request.
    #[cfg(target_os = "linux")]
    #[error(transparent)]
    Control(#[from] superpacket_daemon::control::ClientError),
    /// The bridge could not run.
    #[cfg(target_os = "linux")]
    #[error("{0}")]
    Bridge(String),
    /// The lab could not start even its first experiment.
    #[cfg(target_os = "linux")]
    #[error("the lab cannot begin: {0}")]
    Lab(String),
    /// The load generator could not run.
    #[cfg(target_os = "linux")]
    #[error("{0}")]
    Load(superpacket_lab::LabError),
    /// Dumpcap, the program by which Wireshark captures, failed.
    #[error("dumpcap: {0}")]
    Dumpcap(String),
    /// A plot could not be drawn.
    #[error("a plot could not be drawn: {0}")]
    Plot(String),
}

impl From<superpacket_captures::Error> for Failure {
    fn from(error: superpacket_captures::Error) -> Self {
        use superpacket_captures::Error;
        match error {
            Error::Capture(error) => Failure::Capture(error),
            Error::CutShort(truncated) => Failure::CutShort(truncated),
            Error::Interrupted => Failure::Interrupted,
            Error::WrongChecksums(_) => {
                Failure::Usage(format!("{error}; --fix-checksums corrects them (--strict)"))
            }
            Error::Plot(text) => Failure::Plot(text),
            other => Failure::Usage(other.to_string()),
        }
    }
}

impl Failure {
    /// Returns whether the error is that another program has stopped reading standard output. This
    /// counts as success.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        match self {
            Failure::Print(error) => error.kind() == io::ErrorKind::BrokenPipe,
            Failure::Capture(CaptureError::Write { file, source }) => {
                file == "standard output" && source.kind() == io::ErrorKind::BrokenPipe
            }
            _ => false,
        }
    }
}
