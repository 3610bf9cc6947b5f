//! The sending and the receiving half of a bulk flow.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown, sockopt};

use crate::error::LabError;
use crate::load::source::PatternFile;
use crate::pattern::{Checker, Pattern, Producer};

/// Whether the receiver copies or discards the bytes that arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receive {
    /// Copies the bytes into a buffer, as most programs do.
    Copy,
    /// Discards the bytes in the kernel (`MSG_TRUNC`, tcp(7)), which leaves out the cost of the
    /// copy.
    Discard,
}

/// Outcome of one attempt to move bytes.
pub(crate) enum Step {
    /// This number of bytes was moved.
    Moved(usize),
    /// The socket's buffer is full (sending) or empty (receiving).
    Blocked,
    /// All bytes are sent, or the other side has closed.
    Finished,
}

/// The sending or the receiving half of a flow, processed by a thread.
pub(crate) trait BulkFlow {
    /// Whether this half sends.
    const SENDS: bool;
    /// The socket event that shows that this half can continue.
    const INTEREST: EventFlags;

    /// Sends or receives once: at most the length of `buffer`, or from a file as much as the call
    /// accepts.
    fn step(&mut self, buffer: &mut [u8], receive: Receive) -> Result<Step, Errno>;

    /// Ends this half of a flow, in a load that began at `start`. A sending half shuts down its
    /// socket for writing, which tells the receiver that the flow has ended.
    fn finish(&mut self, start: Instant) -> Result<(), Errno>;

    fn socket(&self) -> &OwnedFd;

    /// Returns the index of the flow in the load.
    fn number(&self) -> usize;

    /// Returns the number of bytes sent or received.
    fn bytes(&self) -> u64;

    fn is_done(&self) -> bool;
}

/// Payload of a sending flow.
pub(crate) enum Content {
    /// The content of the buffer, which the receiver does not check.
    Any,
    /// A pattern that the receiver checks.
    Checked(Box<Producer>),
    /// The content of a file, repeated.
    File(Arc<PatternFile>),
}

/// The sending half of a flow.
pub(crate) struct SendFlow {
    /// Index of the flow in the load.
    pub(crate) number: usize,
    pub(crate) socket: OwnedFd,
    pub(crate) sent: u64,
    /// Number of bytes to send; `u64::MAX` if the flow is limited by time only.
    pub(crate) limit: u64,
    pub(crate) content: Content,
    pub(crate) done: bool,
}

impl BulkFlow for SendFlow {
    const SENDS: bool = true;
    const INTEREST: EventFlags = EventFlags::OUT;

    fn step(&mut self, buffer: &mut [u8], _: Receive) -> Result<Step, Errno> {
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

    fn finish(&mut self, _: Instant) -> Result<(), Errno> {
        self.done = true;
        match shutdown(&self.socket, Shutdown::Write) {
            // The other side is gone; its thread reports the cause.
            Err(Errno::NOTCONN) => Ok(()),
            other => other,
        }
    }

    fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    fn number(&self) -> usize {
        self.number
    }

    fn bytes(&self) -> u64 {
        self.sent
    }

    fn is_done(&self) -> bool {
        self.done
    }
}

impl SendFlow {
    /// Returns the XXH3 hash of the sent bytes; `None` for unchecked content.
    pub(crate) fn digest(&self) -> Result<Option<u64>, LabError> {
        match &self.content {
            Content::Any => Ok(None),
            Content::Checked(producer) => Ok(Some(producer.digest())),
            Content::File(file) => file.digest(self.sent).map(Some),
        }
    }
}

/// The bytes that the receiving half expects.
pub(crate) enum Expected {
    /// The bytes must follow this pattern.
    Pattern(Pattern),
    /// The bytes must be this file, repeated.
    File(Arc<PatternFile>),
}

/// The receiving half of a flow.
pub(crate) struct ReceiveFlow {
    /// Index of the flow in the load.
    pub(crate) number: usize,
    pub(crate) socket: OwnedFd,
    pub(crate) received: u64,
    pub(crate) seconds: f64,
    pub(crate) checker: Option<(Checker, Expected)>,
    pub(crate) quick_acknowledgements: bool,
    pub(crate) done: bool,
}

impl BulkFlow for ReceiveFlow {
    const SENDS: bool = false;
    const INTEREST: EventFlags = EventFlags::IN;

    fn step(&mut self, buffer: &mut [u8], receive: Receive) -> Result<Step, Errno> {
        if self.quick_acknowledgements {
            // The kernel resets this mode from time to time (tcp(7)).
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

    fn finish(&mut self, start: Instant) -> Result<(), Errno> {
        self.done = true;
        self.seconds = start.elapsed().as_secs_f64();
        Ok(())
    }

    fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    fn number(&self) -> usize {
        self.number
    }

    fn bytes(&self) -> u64 {
        self.received
    }

    fn is_done(&self) -> bool {
        self.done
    }
}
