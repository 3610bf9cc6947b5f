//! Progress reports of commands, which can also interrupt them.

use std::ops::ControlFlow;

use crate::file::Truncated;

use crate::commands::error::Error;

/// Number of packets between two calls of [`Progress::advance`].
pub const INTERVAL: u64 = 4096;

/// An observer of a command's progress, which can interrupt the command. `()` lets every command
/// run to its end.
pub trait Progress {
    /// Called when a command begins to read an input. `length` is its size in bytes, if known; for
    /// a compressed file, the compressed size.
    fn begin(&mut self, _input: &str, _length: Option<u64>) {}

    /// Reports the packets and bytes read so far: after every [`INTERVAL`] packets, and about every
    /// 50 ms while the command waits for its input, even before [`begin`](Self::begin). Bytes are
    /// counted as in `begin`. `Break` ends the command with [`Error::Interrupted`];
    /// the output is left as it was.
    fn advance(&mut self, _packets: u64, _bytes: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Returns whether the input should end here, as if it had no more packets. The command then
    /// completes its output and its report. Asked when the reading begins and then together with
    /// [`advance`](Self::advance). If the capture's header was not read yet, the command ends with
    /// [`Error::Interrupted`] instead.
    fn end_requested(&mut self) -> bool {
        false
    }

    /// Ends the input, whether or not it was read completely.
    fn end(&mut self) {}

    /// Reports that the input was cut short; the command continues with the packets before.
    fn cut_short(&mut self, _truncated: &Truncated) {}

    /// Reports that one of several inputs could not be read; the command continues with the others.
    fn unreadable(&mut self, _error: &Error) {}
}

impl Progress for () {}

/// Returns whether a request ended a command with several inputs before the first packet of the
/// current input was read. The command then reports on the inputs before that one, if there are
/// any.
pub(crate) fn is_interrupted<T, F>(
    result: &Result<T, Error>,
    finished: &[F],
    progress: &mut dyn Progress,
) -> bool {
    matches!(result, Err(Error::Interrupted)) && !finished.is_empty() && progress.end_requested()
}
