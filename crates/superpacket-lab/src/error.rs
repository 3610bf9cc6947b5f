//! Errors of the lab. Some mean that this machine lacks a facility, so that a test can be skipped
//! instead of failing.

use std::io;

/// An error of the lab; its text names the attempted action, its object and the cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The machine forbids a facility that the lab needs, such as a namespace or a capability.
    #[error("{what} is forbidden here: {reason}")]
    Forbidden {
        /// The facility that was requested.
        what: String,
        /// The cause of the refusal, and how the user can lift it.
        reason: String,
    },
    /// The kernel or an installed program lacks a facility, such as a queueing discipline.
    #[error("{what} is not available here: {reason}")]
    Unsupported {
        /// The facility that was requested.
        what: String,
        /// The missing part of the kernel or program.
        reason: String,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The attempted action, and its object.
        what: String,
        /// The error that the kernel returned.
        source: io::Error,
    },
    /// The caller cancelled the run.
    #[error("ended before it was done")]
    Cancelled,
    /// An argument is out of range or otherwise unusable.
    #[error("{what}: {reason}")]
    Invalid {
        /// The argument, with its value.
        what: String,
        /// The accepted values.
        reason: String,
    },
    /// A flow made no progress for the permitted time.
    #[error(
        "{load}: {role} of flow {flow} stalled for {seconds:.1} s after {bytes} bytes ({waiting} flows were not done)"
    )]
    Stalled {
        /// The load, such as `TCP_STREAM forward`.
        load: String,
        /// `sender` or `receiver`, `client` or `server`.
        role: &'static str,
        /// Index of the flow that waited longest, from 0.
        flow: usize,
        /// Number of bytes that this flow had moved.
        bytes: u64,
        /// Seconds since the flow last made progress.
        seconds: f64,
        /// Number of unfinished flows of the same thread.
        waiting: usize,
    },
    /// The received bytes differ from the sent bytes.
    #[error("{load}: flow {flow} was corrupted: {detail}")]
    Corrupted {
        /// The load, such as `TCP_STREAM forward`.
        load: String,
        /// Index of the flow, from 0.
        flow: usize,
        /// The offset of the first difference, or the checksums that differ.
        detail: String,
    },
}

impl LabError {
    /// Returns [`LabError::System`] for a failed action.
    pub fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System { what: what.into(), source: source.into() }
    }

    /// Returns whether the machine is the cause, and not the code under test:
    /// [`LabError::Forbidden`] and [`LabError::Unsupported`].
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Forbidden { .. } | Self::Unsupported { .. })
    }
}

impl From<LabError> for io::Error {
    fn from(error: LabError) -> Self {
        match error {
            LabError::System { what, source } => {
                io::Error::new(source.kind(), format!("{what}: {source}"))
            }
            other => io::Error::other(other),
        }
    }
}

/// Adds the attempted action to the error of a system call.
pub(crate) trait Context<T> {
    /// Turns the error into [`LabError::System`]; `what` returns the attempted action.
    fn context(self, what: impl FnOnce() -> String) -> Result<T, LabError>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, LabError> {
        self.map_err(|error| LabError::system(what(), error))
    }
}

/// Unwraps a result in a test. If this machine lacks a facility that the test needs, prints a line
/// on standard error and returns `None`, so that the test can be skipped.
///
/// # Panics
///
/// On every other error. If the environment variable `CI` is set, also on
/// [`LabError::Forbidden`], so that CI never skips a test silently. A facility that the kernel was
/// built without is skipped even there; [`crate::Wire`] covers the important ones.
pub fn available_or_skip<T>(result: Result<T, LabError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error)
            if matches!(error, LabError::Unsupported { .. })
                || error.is_unavailable() && std::env::var_os("CI").is_none() =>
        {
            // Bypasses the capture of `eprintln!` by the test harness, so that the line is seen.
            let _ = io::Write::write_all(
                &mut io::stderr(),
                format!("\n*** NOT TESTED ***  {error}\n\n").as_bytes(),
            );
            None
        }
        Err(error) => panic!("{error}"),
    }
}
