//! Progress reports of commands, which can also interrupt them.

use std::ops::ControlFlow;

use crate::file::Truncated;

use crate::commands::error::Error;

/// Number of packets between two calls of [`Progress::advance`].
pub const INTERVAL: u64 = 4096;

/// An observer of a command's progress, which can interrupt the command. `()` lets every command
/// run to its end.
pub trait Progress {
    /// Begins an input. `length` is its size in bytes, if known; for a compressed file, the
    /// compressed size.
    fn begin(&mut self, _input: &str, _length: Option<u64>) {}

    /// Reports the packets and bytes read so far, after every [`INTERVAL`] packets. Bytes are
    /// counted as in [`begin`](Self::begin). `Break` ends the command with [`Error::Interrupted`];
    /// the output is left as it was.
    fn advance(&mut self, _packets: u64, _bytes: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Ends the input, whether or not it was read completely.
    fn end(&mut self) {}

    /// Reports that the input was cut short; the command continues with the packets before.
    fn cut_short(&mut self, _truncated: &Truncated) {}

    /// Reports that one of several inputs could not be read; the command continues with the others.
    fn unreadable(&mut self, _error: &Error) {}
}

impl Progress for () {}
