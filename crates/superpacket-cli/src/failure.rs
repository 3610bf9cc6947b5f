//! Why a command could not do its work: exit code 2.

use std::io;
use std::path::PathBuf;

use superpacket_captures::file::{CaptureError, Truncated};

/// Why a command stopped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A capture could not be read or written.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// A capture ends within a record, and `--strict` was given.
    #[error("{0} (--strict)")]
    CutShort(Truncated),
    /// Some captures of several could not be read; each has been told.
    #[error("{0} of the captures could not be read")]
    Unreadable(usize),
    /// Arguments that contradict each other.
    #[error("{0}")]
    Usage(String),
    /// The report could not be printed.
    #[error("standard output: cannot be written: {0}")]
    Print(#[from] io::Error),
    /// A page could not be written.
    #[error("{path}: cannot be written: {source}")]
    Page {
        /// Where it should go.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A bridge could not be asked, or said no.
    #[cfg(target_os = "linux")]
    #[error(transparent)]
    Control(#[from] superpacket_bridge::control::ClientError),
    /// A bridge could not run.
    #[cfg(target_os = "linux")]
    #[error("{0}")]
    Bridge(String),
    /// No experiment could be begun.
    #[cfg(target_os = "linux")]
    #[error("the lab cannot begin: {0}")]
    Lab(String),
    /// A load could not run.
    #[cfg(target_os = "linux")]
    #[error("{0}")]
    Load(superpacket_lab::LabError),
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
            Error::Plot(text) => Failure::Plot(text),
            other => Failure::Usage(other.to_string()),
        }
    }
}

impl Failure {
    /// Has whoever read standard output stopped reading? That is no failure of this program.
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
