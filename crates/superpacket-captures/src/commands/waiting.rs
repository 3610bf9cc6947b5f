//! Waits for input in short intervals; between them, the command's [`Progress`] is asked whether to
//! stop.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::commands::error::Error;
use crate::commands::progress::Progress;

/// Maximum time between two calls of [`Progress`]'s methods while a command waits.
const SLICE: Duration = Duration::from_millis(50);

/// The time for which a live input is still read after a request to end, as long as data arrives:
/// the program that writes it may have got the same signal and be writing its last packets.
const LAST_PACKETS: Duration = Duration::from_millis(500);

/// The time without data after which reading a live input stops, once its end was requested.
const QUIET: Duration = Duration::from_millis(100);

/// A source that may have to wait for data.
pub(crate) trait Waiting {
    /// Returns whether reading may have to wait.
    fn is_live(&self) -> bool;

    /// Waits until there is something to read, but at most for `limit`. Returns whether there is.
    fn wait(&self, limit: Duration) -> bool;
}

/// Runs `work`, which may block, in a thread, and calls `progress` meanwhile. If `progress` ends
/// the command, the thread is not waited for.
///
/// # Errors
/// [`Error::Interrupted`] if the progress interrupts the command, or wants the input to end.
pub(crate) fn in_thread<T: Send + 'static>(
    progress: &mut dyn Progress,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let (sender, done) = sync_channel(1);
    let thread = std::thread::spawn(move || sender.send(work()).is_ok());
    loop {
        match done.recv_timeout(SLICE) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => {
                if progress.advance(0, 0).is_break() || progress.end_requested() {
                    return Err(Error::Interrupted);
                }
            }
            // The thread has panicked.
            Err(RecvTimeoutError::Disconnected) => match thread.join() {
                Ok(_) => return Err(Error::Interrupted),
                Err(panic) => std::panic::resume_unwind(panic),
            },
        }
    }
}

/// How a wait for data ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// There is something to read, or the input has ended.
    Data,
    /// The time limit passed without data.
    Limit,
    /// [`Progress::end_requested`] returned `true`, so the input ends here.
    End,
}

/// Asks a command's [`Progress`] whether to stop reading an input before its end.
#[derive(Debug)]
pub(crate) struct EndRequests {
    asked: Instant,
    /// The time at which reading stops; `None` if no end was requested.
    deadline: Option<Instant>,
}

impl EndRequests {
    pub(crate) fn new() -> Self {
        EndRequests { asked: Instant::now(), deadline: None }
    }

    /// Returns whether an end of the input was requested.
    pub(crate) fn is_ending(&self) -> bool {
        self.deadline.is_some()
    }

    /// Reports to `progress` how many packets and bytes were `read`, and returns whether reading
    /// must stop now.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the progress interrupts the command.
    pub(crate) fn ask(
        &mut self,
        source: &dyn Waiting,
        read: (u64, u64),
        progress: &mut dyn Progress,
    ) -> Result<bool, Error> {
        if progress.advance(read.0, read.1).is_break() {
            return Err(Error::Interrupted);
        }
        Ok(self.ends(source, progress))
    }

    /// Returns whether reading must stop now. Called once before the first read, and then by
    /// [`ask`](Self::ask).
    pub(crate) fn ends(&mut self, source: &dyn Waiting, progress: &mut dyn Progress) -> bool {
        let now = Instant::now();
        self.asked = now;
        if self.deadline.is_none() && progress.end_requested() {
            self.deadline = Some(if source.is_live() { now + LAST_PACKETS } else { now });
        }
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// Waits until there is something to read, reading must stop because of a request, or the time
    /// `until` is reached.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the progress interrupts the command.
    pub(crate) fn wait(
        &mut self,
        source: &dyn Waiting,
        read: (u64, u64),
        progress: &mut dyn Progress,
        until: Option<Instant>,
    ) -> Result<Waited, Error> {
        let began = Instant::now();
        loop {
            let now = Instant::now();
            let is_due = now.duration_since(self.asked) >= SLICE || self.is_ending();
            if is_due && self.ask(source, read, progress)? {
                return Ok(Waited::End);
            }
            let end = self.deadline.map(|deadline| deadline.min(began + QUIET));
            if end.is_some_and(|end| now >= end) {
                return Ok(Waited::End);
            }
            if until.is_some_and(|until| now >= until) {
                return Ok(Waited::Limit);
            }
            let next = [Some(now + SLICE), end, until].into_iter().flatten().min().unwrap_or(now);
            if source.wait(next.duration_since(now)) {
                return Ok(Waited::Data);
            }
        }
    }
}
