//! The receiving end of a stream port, which also accepts the peer, or connects to it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use rustix::net::{SocketAddrUnix, SocketType, connect};
use superpacket::packet::RxPacket;

use super::input::{StreamInput, StreamState};
use super::options::SocketKind;
use super::output::Connection;
use super::readiness::Readiness;
use super::shared::UnixShared;
use super::socket_file::{new_socket, prepare};
use crate::clock::monotonic_nanoseconds;
use crate::slots::PacketSlots;
use crate::{Buffer, PortError, Receive};

/// Maximum number of connections that are accepted per poll. A peer that connects and disconnects
/// all the time must not keep the thread busy.
const MAX_ACCEPTS: usize = 8;

/// How a port gets its connection.
#[derive(Debug)]
pub(super) enum Source {
    /// Peers connect to this socket, which does not block.
    Listen(UnixListener),
    /// The port connects to this address.
    Connect(SocketAddrUnix),
}

/// The receiving end of a stream port.
#[derive(Debug)]
pub(super) struct StreamReceiver {
    shared: Arc<UnixShared>,
    source: Source,
    readiness: Readiness,
    slots: PacketSlots,
    input: StreamInput,
}

impl StreamReceiver {
    pub(super) fn new(
        shared: Arc<UnixShared>,
        source: Source,
        readiness: Readiness,
        slots: PacketSlots,
    ) -> Self {
        StreamReceiver { shared, source, readiness, slots, input: StreamInput::new() }
    }

    /// Accepts a peer's connection, or connects to the peer. Returns `None` if that is not possible
    /// now.
    pub(super) fn join(&mut self) -> Result<Option<Arc<Connection>>, PortError> {
        let system = |action| {
            let name = self.shared.name.clone();
            move |error: io::Error| PortError::system(&name, action, error)
        };
        let joined = self.new_connection().map_err(system("accept the peer (accept)"))?;
        let Some(socket) = joined else { return Ok(None) };
        let watch = system("watch the peer (epoll_ctl)");
        self.readiness.watch(&socket).map_err(watch)?;
        let room = self.readiness.room_watch();
        let connection = Arc::new(Connection::new(socket, SocketKind::Stream, room));
        self.shared.set_connection(Some(Arc::clone(&connection)));
        tracing::info!(port = %self.shared.name, "the peer is connected");
        Ok(Some(connection))
    }

    /// Returns a new connection; `None` if there is no peer now.
    fn new_connection(&self) -> io::Result<Option<OwnedFd>> {
        match &self.source {
            Source::Listen(listener) => {
                let stream = match listener.accept() {
                    Ok((stream, _)) => stream,
                    Err(error) if is_temporary(&error) => return Ok(None),
                    Err(error) => return Err(error),
                };
                stream.set_nonblocking(true)?;
                prepare(&stream);
                Ok(Some(stream.into()))
            }
            Source::Connect(address) => {
                let socket = new_socket(SocketType::STREAM)?;
                Ok(connect(&socket, address).ok().map(|()| socket))
            }
        }
    }

    /// Ends the connection. Frames that wait to be sent are lost.
    fn leave(&mut self, connection: &Connection, state: &StreamState) {
        self.shared.set_connection(None);
        self.readiness.force(false, &connection.socket);
        self.readiness.unwatch(&connection.socket);
        // Sending ends that still hold the connection must notice, and the peer must too.
        let _ = rustix::net::shutdown(&connection.socket, rustix::net::Shutdown::Both);
        let is_cut = self.input.clear();
        if *state == StreamState::Broken {
            self.shared.refuse_peer(&"a frame has a length that is out of bounds");
        } else if is_cut {
            self.shared.refuse_peer(&"the connection ended in the middle of a frame");
        }
        if let Source::Listen(listener) = &self.source {
            let _ = self.readiness.watch(listener);
        }
        tracing::info!(port = %self.shared.name, "the peer has disconnected");
    }

    /// Refuses further peers while one is connected.
    fn refuse_others(&self) {
        if let Source::Listen(listener) = &self.source
            && listener.accept().is_ok()
        {
            tracing::warn!(port = %self.shared.name, "another peer was refused: one is connected");
        }
    }
}

/// Returns whether an error of accepting a connection is temporary, so that accepting may succeed
/// later.
fn is_temporary(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | ConnectionAborted | Interrupted)
}

impl Receive for StreamReceiver {
    fn poll(
        &mut self,
        packets: &mut Vec<RxPacket<Buffer>>,
        limit: usize,
    ) -> Result<usize, PortError> {
        self.slots.rewind();
        let time = monotonic_nanoseconds();
        let mut count = 0;
        for _ in 0..MAX_ACCEPTS {
            let connection = match self.shared.connection() {
                Some(connection) => connection,
                None => match self.join() {
                    Ok(Some(connection)) => connection,
                    Ok(None) => break,
                    // The listening socket stays readable, so that the port is polled again later.
                    Err(error) if count == 0 => return Err(error),
                    Err(_) => return Ok(count),
                },
            };
            connection.send_waiting();
            let (received, state) = self.input.receive(
                connection.socket.as_fd(),
                &self.shared,
                &mut self.slots,
                packets,
                limit - count,
                time,
            );
            count += received;
            match state {
                StreamState::Empty => {
                    self.readiness.force(false, &connection.socket);
                    self.refuse_others();
                    return Ok(count);
                }
                StreamState::Pending => {
                    self.readiness.force(true, &connection.socket);
                    return Ok(count);
                }
                StreamState::Closed | StreamState::Broken => self.leave(&connection, &state),
            }
        }
        match self.source {
            // No descriptor becomes readable when the peer is there, so the port must be polled
            // again later.
            Source::Connect(_) if count == 0 => {
                Err(PortError::Down { port: self.shared.name.clone() })
            }
            _ => Ok(count),
        }
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.readiness.as_fd()
    }

    fn is_crowded(&self) -> bool {
        self.slots.is_crowded()
    }
}
