//! The error of all commands.

use crate::file::{CaptureError, Truncated};

/// An error that ended a command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A capture could not be read or written.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// A capture ends within a record, and the option `strict` is set.
    #[error("{0}")]
    CutShort(Truncated),
    /// Frames above the MTU could not be cut because their checksums are wrong, and the option
    /// `strict` is set.
    #[error("{0} frames stayed uncut because their checksums are wrong")]
    WrongChecksums(u64),
    /// Options that contradict each other, or are out of bounds.
    #[error("{0}")]
    Options(String),
    /// A plot of a page could not be drawn.
    #[error("a plot could not be drawn: {0}")]
    Plot(String),
    /// The command's [`Progress`](crate::Progress) stopped it.
    #[error("interrupted")]
    Interrupted,
}
