//! How far a command has come, and whether it is to go on.

use std::ops::ControlFlow;

use crate::file::Truncated;

use crate::error::Error;

/// Packets between two calls of [`Progress::advance`].
pub const INTERVAL: u64 = 4096;

/// Hears how far a command has come, and may stop it. `()` lets every command run to its end.
pub trait Progress {
    /// Begins an input, of so many bytes where that is known: a compressed file's as it lies on the
    /// disk.
    fn begin(&mut self, _input: &str, _length: Option<u64>) {}

    /// Notes how many packets of the input have been read, and bytes, counted as in
    /// [`begin`](Self::begin). Called after every [`INTERVAL`] packets. `Break` ends the command
    /// with [`Error::Interrupted`]; the output is left as it was.
    fn advance(&mut self, _packets: u64, _bytes: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Ends the input, read to its end or not.
    fn end(&mut self) {}

    /// Notes that the input was cut short, and that the command goes on with what is there.
    fn cut_short(&mut self, _truncated: &Truncated) {}

    /// Notes that one of several inputs could not be read, and that the command goes on with the
    /// others.
    fn unreadable(&mut self, _error: &Error) {}
}

impl Progress for () {}
