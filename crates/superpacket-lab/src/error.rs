//! What can go wrong in the lab, and which of it means "this machine cannot", so that a test may
//! say so instead of failing.

use std::io;

/// An error of the lab; its text names what was attempted, where, and the cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The machine forbids what a lab needs (a namespace, a capability), and how that can be
    /// lifted.
    #[error("{what} is forbidden here: {reason}")]
    Forbidden {
        /// What was asked for.
        what: String,
        /// Why it is refused, and the way round, in words for the user.
        reason: String,
    },
    /// The kernel or an installed program lacks a facility, such as a queueing discipline.
    #[error("{what} is not available here: {reason}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// What is missing.
        reason: String,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was attempted, and on which object.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Whoever started it asked for the end.
    #[error("ended before it was done")]
    Cancelled,
    /// An argument that cannot be used.
    #[error("{what}: {reason}")]
    Invalid {
        /// The argument, and its value.
        what: String,
        /// What it must be instead.
        reason: String,
    },
    /// A flow made no progress for as long as was allowed.
    #[error(
        "{load}: {role} of flow {flow} stalled for {seconds:.1} s after {bytes} bytes ({waiting} flows were not done)"
    )]
    Stalled {
        /// The load, such as `TCP_STREAM forward`.
        load: String,
        /// `sender` or `receiver`, `client` or `server`.
        role: &'static str,
        /// The flow that waited longest, counted from 0.
        flow: usize,
        /// How many bytes it had moved.
        bytes: u64,
        /// How long it had moved none, in seconds.
        seconds: f64,
        /// How many flows of the thread were not done.
        waiting: usize,
    },
    /// The bytes that arrived are not those that were sent.
    #[error("{load}: flow {flow} was corrupted: {detail}")]
    Corrupted {
        /// The load, such as `TCP_STREAM forward`.
        load: String,
        /// The flow, counted from 0.
        flow: usize,
        /// Where the first difference is, or which sums differ.
        detail: String,
    },
}

impl LabError {
    /// A failed system call, with what it was for.
    pub fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System { what: what.into(), source: source.into() }
    }

    /// Whether the machine, and not the code under test, is the cause: [`LabError::Forbidden`] and
    /// [`LabError::Unsupported`].
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

/// Gives a failed system call its context.
pub(crate) trait Context<T> {
    /// Turns the error into [`LabError::System`] with `what` in front.
    fn context(self, what: impl FnOnce() -> String) -> Result<T, LabError>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, LabError> {
        self.map_err(|error| LabError::system(what(), error))
    }
}

/// For tests: the value, or `None` after a loud line on standard error where the machine cannot do
/// it.
///
/// # Panics
///
/// On every other error, and, where the environment variable `CI` is set, also where the machine
/// [forbids](LabError::Forbidden) it: a test that is skipped unseen proves nothing. What a kernel
/// was built without is skipped there too: what matters is tested without it ([`crate::Wire`]).
pub fn available_or_skip<T>(result: Result<T, LabError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error)
            if matches!(error, LabError::Unsupported { .. })
                || error.is_unavailable() && std::env::var_os("CI").is_none() =>
        {
            // Straight to the stream: `eprintln!` would be captured by the test harness and nobody
            // would see it.
            let _ = io::Write::write_all(
                &mut io::stderr(),
                format!("\n*** NOT TESTED ***  {error}\n\n").as_bytes(),
            );
            None
        }
        Err(error) => panic!("{error}"),
    }
}
