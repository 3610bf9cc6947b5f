//! Why a command could not do its work.

use crate::file::{CaptureError, Truncated};

/// Why a command stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A capture could not be read or written.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// A capture ends within a record, and the options ask for `strict` reading.
    #[error("{0}")]
    CutShort(Truncated),
    /// Options that contradict each other, or are out of bounds.
    #[error("{0}")]
    Options(String),
    /// A page's plot could not be drawn.
    #[error("a plot could not be drawn: {0}")]
    Plot(String),
    /// The command's [`Progress`](crate::Progress) stopped it.
    #[error("interrupted")]
    Interrupted,
}
