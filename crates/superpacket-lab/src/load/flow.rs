//! The two halves of a bulk flow, each moving what its socket takes or has.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown, sockopt};

use crate::error::LabError;
use crate::load::source::PatternFile;
use crate::pattern::{Checker, Pattern, Producer};

/// What the receiver does with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receive {
    /// Reads them into a buffer, as programs do.
    Copy,
    /// Has the kernel throw them away (`MSG_TRUNC`, tcp(7)): the cost of the path without the copy
    /// to the program.
    Discard,
}

/// What became of an attempt to move bytes.
pub(crate) enum Step {
    /// So many were moved.
    Moved(usize),
    /// The socket is full, or empty.
    Blocked,
    /// All is sent, or the other side has said that it is.
    Finished,
}

/// How the bytes of a sending flow are made.
pub(crate) enum Content {
    /// The buffer's, whatever they are.
    Any,
    /// A pattern that the receiver checks.
    Checked(Box<Producer>),
    /// A file's.
    File(Arc<PatternFile>),
}

/// The sending half of a flow.
pub(crate) struct SendFlow {
    /// Its number in the load.
    pub(crate) number: usize,
    pub(crate) socket: OwnedFd,
    pub(crate) sent: u64,
    /// Bytes to be sent; `u64::MAX` where only time ends it.
    pub(crate) limit: u64,
    pub(crate) content: Content,
    pub(crate) done: bool,
}

impl SendFlow {
    /// Sends once, at most a `buffer` full (or, of a file, as much as the call takes).
    pub(crate) fn step(&mut self, buffer: &mut [u8]) -> Result<Step, Errno> {
        let left = self.limit - self.sent;
        if left == 0 {
            return Ok(Step::Finished);
        }
        let length = left.min(buffer.len() as u64) as usize;
        let result = match &mut self.content {
            Content::Any => send(&self.socket, &buffer[..length], SendFlags::NOSIGNAL),
            Content::Checked(producer) => {
                producer.prepare(&mut buffer[..length]);
                let sent = send(&self.socket, &buffer[..length], SendFlags::NOSIGNAL);
                if let Ok(sent) = sent {
                    producer.sent(&buffer[..sent]);
                }
                sent
            }
            Content::File(file) => {
                let mut offset = self.sent % file.size();
                let length = left.min(file.size() - offset) as usize;
                rustix::fs::sendfile(&self.socket, file.as_fd(), Some(&mut offset), length)
            }
        };
        match result {
            Ok(sent) => {
                self.sent += sent as u64;
                Ok(Step::Moved(sent))
            }
            Err(Errno::AGAIN) => Ok(Step::Blocked),
            Err(Errno::INTR) => Ok(Step::Moved(0)),
            Err(error) => Err(error),
        }
    }

    /// Tells the receiver that no more will come.
    pub(crate) fn finish(&mut self) -> Result<(), Errno> {
        self.done = true;
        match shutdown(&self.socket, Shutdown::Write) {
            // The other side is gone; its receiver says so better.
            Err(Errno::NOTCONN) => Ok(()),
            other => other,
        }
    }

    /// XXH3 of what was sent, where it is known.
    pub(crate) fn digest(&self) -> Result<Option<u64>, LabError> {
        match &self.content {
            Content::Any => Ok(None),
            Content::Checked(producer) => Ok(Some(producer.digest())),
            Content::File(file) => file.digest(self.sent).map(Some),
        }
    }
}

/// What the receiving half compares with.
pub(crate) enum Expected {
    /// A pattern from its beginning.
    Pattern(Pattern),
    /// A file, again and again.
    File(Arc<PatternFile>),
}

/// The receiving half of a flow.
pub(crate) struct ReceiveFlow {
    /// Its number in the load.
    pub(crate) number: usize,
    pub(crate) socket: OwnedFd,
    pub(crate) received: u64,
    pub(crate) seconds: f64,
    pub(crate) checker: Option<(Checker, Expected)>,
    pub(crate) quick_acknowledgements: bool,
    pub(crate) done: bool,
}

impl ReceiveFlow {
    /// Receives once into `buffer`.
    pub(crate) fn step(&mut self, buffer: &mut [u8], receive: Receive) -> Result<Step, Errno> {
        if self.quick_acknowledgements {
            // The kernel leaves the mode on its own (tcp(7)).
            sockopt::set_tcp_quickack(&self.socket, true)?;
        }
        let flags = match receive {
            Receive::Copy => RecvFlags::empty(),
            Receive::Discard => RecvFlags::TRUNC,
        };
        match recv(&self.socket, &mut *buffer, flags) {
            Ok((_, 0)) => Ok(Step::Finished),
            Ok((_, length)) => {
                self.received += length as u64;
                if let Some((checker, expected)) = &mut self.checker {
                    checker.received(&buffer[..length], |offset, bytes| match expected {
                        Expected::Pattern(pattern) => pattern.first_difference(offset, bytes),
                        Expected::File(file) => file.first_difference(offset, bytes),
                    });
                }
                Ok(Step::Moved(length))
            }
            Err(Errno::AGAIN) => Ok(Step::Blocked),
            Err(Errno::INTR) => Ok(Step::Moved(0)),
            Err(error) => Err(error),
        }
    }
}
