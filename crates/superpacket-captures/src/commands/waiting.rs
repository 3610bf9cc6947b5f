//! Waits for data without blocking a command: its progress is asked meanwhile.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::commands::error::Error;
use crate::commands::progress::Progress;

/// Maximum time between two questions to the progress while a command waits.
const SLICE: Duration = Duration::from_millis(50);

/// After a request to end, the time for which a live input is still read if something arrives: the
/// program that writes it may have got the same signal, and writes its last packets.
const LAST_PACKETS: Duration = Duration::from_millis(500);

/// After a request to end, the time without data after which a live input ends.
const QUIET: Duration = Duration::from_millis(100);

/// A source that may have to wait for data.
pub(crate) trait Waiting {
    /// Returns whether reading may have to wait.
    fn is_live(&self) -> bool;

    /// Waits until there is something to read, but at most for `limit`. Returns whether there is.
    fn wait(&self, limit: Duration) -> bool;
}

/// Does work that may block in a thread, and asks the progress meanwhile. If the progress ends the
/// command, the thread is left alone.
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
    /// The input ends here at the request of the progress.
    End,
}

/// Asks the progress whether an input should end before its own end.
#[derive(Debug)]
pub(crate) struct EndRequests {
    asked: Instant,
    /// When the reading ends, if that was requested.
    deadline: Option<Instant>,
}

impl EndRequests {
    pub(crate) fn new() -> Self {
        EndRequests { asked: Instant::now(), deadline: None }
    }

    /// Returns whether the progress wants the input to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.deadline.is_some()
    }

    /// Reports to the progress how many packets and bytes were `read`, and returns whether the
    /// input ends here.
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

    /// Returns whether the input ends here. Called when the reading begins.
    pub(crate) fn ends(&mut self, source: &dyn Waiting, progress: &mut dyn Progress) -> bool {
        let now = Instant::now();
        self.asked = now;
        if self.deadline.is_none() && progress.end_requested() {
            self.deadline = Some(if source.is_live() { now + LAST_PACKETS } else { now });
        }
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// Waits until there is something to read, the input ends by request, or it is `until`.
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
