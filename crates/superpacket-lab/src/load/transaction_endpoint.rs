//! The client's or server's side of a connection that carries requests and answers.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::error::LabError;
use crate::load::poller::Poller;
use crate::pattern::{Checker, Pattern, Producer};

/// The client's or server's side of a connection, which alternately reads and writes messages.
pub(crate) struct TransactionEndpoint {
    /// Index of the connection, from 0.
    pub(crate) number: usize,
    pub(crate) socket: OwnedFd,
    /// Number of bytes of the current message that are left to read; 0 while writing.
    pub(crate) to_read: usize,
    /// Number of bytes of the current message that are left to write; 0 while reading.
    pub(crate) to_write: usize,
    /// Whether the socket's buffer was full, so that the poller waits for space.
    blocked: bool,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    check: Option<(Producer, Checker, Pattern)>,
    pub(crate) message_start: Instant,
    pub(crate) done: bool,
}

/// Outcome of a call to [`TransactionEndpoint::advance`].
#[derive(PartialEq, Eq)]
pub(crate) enum Advance {
    /// A complete message was read.
    Message,
    /// The message is incomplete: the endpoint waits for bytes to read.
    Reading,
    /// The message is not completely sent: the endpoint waits for space in the socket's buffer.
    Writing,
    /// The peer closed the connection between two messages.
    Closed,
}

/// A failure in a thread's transactions.
enum TransactionFault {
    System(Errno),
    /// Received bytes differ from those sent, or the connection ended within a message.
    Corrupted(String),
}

impl From<Errno> for TransactionFault {
    fn from(error: Errno) -> Self {
        Self::System(error)
    }
}

impl TransactionEndpoint {
    /// Returns an endpoint that sends the first pattern and expects the second; without patterns,
    /// it sends and accepts any bytes.
    pub(crate) fn new(
        number: usize,
        socket: OwnedFd,
        patterns: Option<(Pattern, Pattern)>,
    ) -> Self {
        let check =
            patterns.map(|(sent, received)| (Producer::new(sent), Checker::new(), received));
        Self {
            number,
            socket,
            to_read: 0,
            to_write: 0,
            blocked: false,
            sent: 0,
            received: 0,
            check,
            message_start: Instant::now(),
            done: false,
        }
    }

    /// Writes pending bytes, then reads pending bytes, until the socket would block. `role` (client
    /// or server) is named in errors.
    pub(crate) fn advance(&mut self, role: &str, buffer: &mut [u8]) -> Result<Advance, LabError> {
        let number = self.number;
        self.try_to_advance(buffer).map_err(|fault| match fault {
            TransactionFault::System(error) => {
                LabError::system(format!("TCP_RR: {role} of connection {number}"), error)
            }
            TransactionFault::Corrupted(detail) => corrupted(number, format!("{role}: {detail}")),
        })
    }

    /// Sends the pending message. Does not read, because the answer cannot have arrived yet.
    pub(crate) fn send_only(&mut self, buffer: &mut [u8]) -> Result<Advance, LabError> {
        let to_read = std::mem::take(&mut self.to_read);
        let sent = self.advance("sender", buffer);
        self.to_read = to_read;
        Ok(if sent? == Advance::Writing { Advance::Writing } else { Advance::Reading })
    }

    fn try_to_advance(&mut self, buffer: &mut [u8]) -> Result<Advance, TransactionFault> {
        while self.to_write > 0 {
            let piece = self.to_write.min(buffer.len());
            if let Some((producer, ..)) = &self.check {
                producer.prepare(&mut buffer[..piece]);
            }
            match send(&self.socket, &buffer[..piece], SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    if let Some((producer, ..)) = &mut self.check {
                        producer.sent(&buffer[..sent]);
                    }
                    self.sent += sent as u64;
                    self.to_write -= sent;
                }
                Err(Errno::AGAIN) => return Ok(Advance::Writing),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let whole = self.to_read;
        while self.to_read > 0 {
            let piece = self.to_read.min(buffer.len());
            match recv(&self.socket, &mut buffer[..piece], RecvFlags::empty()) {
                Ok((_, 0)) if self.to_read == whole => return Ok(Advance::Closed),
                Ok((_, 0)) => {
                    return Err(TransactionFault::Corrupted(format!(
                        "the other side closed {} bytes before a message's end",
                        self.to_read
                    )));
                }
                Ok((_, length)) => {
                    if let Some((_, checker, expected)) = &mut self.check {
                        checker.received(&buffer[..length], |offset, bytes| {
                            expected.first_difference(offset, bytes)
                        });
                        if let Some(offset) = checker.first_difference() {
                            return Err(TransactionFault::Corrupted(format!(
                                "byte {offset} is not the one sent"
                            )));
                        }
                    }
                    self.received += length as u64;
                    self.to_read -= length;
                    // Most messages arrive whole, and after a short read another call would only
                    // return EAGAIN.
                    if self.to_read > 0 && length < piece {
                        return Ok(Advance::Reading);
                    }
                }
                Err(Errno::AGAIN) => return Ok(Advance::Reading),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Advance::Message)
    }

    /// Makes the poller wait for the socket event that the last [`TransactionEndpoint::advance`]
    /// needs. `index` identifies the socket in the poller.
    pub(crate) fn watch(
        &mut self,
        poller: &Poller,
        index: usize,
        advance: &Advance,
    ) -> Result<(), LabError> {
        let blocked = *advance == Advance::Writing;
        if blocked != self.blocked {
            self.blocked = blocked;
            poller.modify(
                &self.socket,
                index,
                if blocked { EventFlags::OUT } else { EventFlags::IN },
            )?;
        }
        Ok(())
    }

    pub(crate) fn digests(&self) -> Option<(u64, u64)> {
        self.check.as_ref().map(|(producer, checker, _)| (producer.digest(), checker.digest()))
    }
}

/// Checks that each side received exactly the bytes that the other side sent.
pub(crate) fn compare(
    clients: &[TransactionEndpoint],
    servers: &[TransactionEndpoint],
) -> Result<(), LabError> {
    for (client, server) in clients.iter().zip(servers) {
        if (client.sent, client.received) != (server.received, server.sent) {
            let detail = format!(
                "client sent {} and received {} bytes, server received {} and sent {}",
                client.sent, client.received, server.received, server.sent
            );
            return Err(corrupted(client.number, detail));
        }
        if client.digests() != server.digests().map(|(sent, received)| (received, sent)) {
            return Err(corrupted(client.number, "the sums of both sides differ".into()));
        }
    }
    Ok(())
}

pub(crate) fn corrupted(flow: usize, detail: String) -> LabError {
    LabError::Corrupted { load: "TCP_RR".into(), flow, detail }
}
