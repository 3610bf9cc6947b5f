//! The server of the control socket.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Uid;
use superpacket_bridge::Bridge;

use super::answer::{perform, refuse};
use super::request::{Request, read};
use super::socket::SocketFile;
use super::{ControlError, ControlSocket, ErrorCode, MAX_REQUEST};
use crate::serve::{Answer, Bounds, Found, Rejection, Server, ServerCounts, ServerProtocol};

/// Limits for clients. Programs that watch a bridge send a request per second, and few run at the
/// same time, so 16 connections are enough.
pub(super) const BOUNDS: Bounds = Bounds {
    connections: 16,
    question: MAX_REQUEST,
    patience: Duration::from_secs(10),
    stall: Duration::from_secs(1),
};

/// A thread that serves a control socket. Dropping it stops the thread and removes the socket's
/// file.
#[derive(Debug)]
pub struct ControlServer {
    _server: Server,
    // Fields are dropped in order: the server's drop joins its thread first.
    _file: SocketFile,
}

impl ControlServer {
    /// Starts to serve clients. Only root and the user that this process currently runs as may send
    /// requests.
    ///
    /// # Errors
    /// Returns the system's error if a thread or a descriptor cannot be created.
    pub fn start(socket: ControlSocket, bridge: Arc<Bridge>) -> std::io::Result<Self> {
        ControlServer::start_within(socket, BOUNDS, Arc::default(), move |request| {
            perform(request, &bridge)
        })
    }

    /// Starts a server with the given limits, which calls `perform` for each request.
    pub(super) fn start_within(
        socket: ControlSocket,
        bounds: Bounds,
        counts: Arc<ServerCounts>,
        perform: impl Fn(Request) -> Result<Found, ControlError> + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let (listener, file) = socket.into_parts();
        let answer =
            move |request| perform(request).unwrap_or_else(|refusal| Found::Reply(refuse(refusal)));
        let user = rustix::process::geteuid();
        let protocol = ControlProtocol { answer: Arc::new(answer), user };
        let server = Server::start("control", listener, bounds, counts, protocol)?;
        Ok(ControlServer { _server: server, _file: file })
    }
}

/// The protocol of the control socket: one JSON object per line.
struct ControlProtocol {
    answer: Arc<dyn Fn(Request) -> Found + Send + Sync>,
    /// The user, besides root, who may send requests.
    user: Uid,
}

impl ServerProtocol for ControlProtocol {
    fn refusal(&self, peer: BorrowedFd<'_>) -> Option<Vec<u8>> {
        let uid = match rustix::net::sockopt::socket_peercred(peer) {
            Ok(peer) if peer.uid.is_root() || peer.uid == self.user => return None,
            Ok(peer) => peer.uid.to_string(),
            // A user who cannot be determined has no permission.
            Err(_) => "unknown".to_owned(),
        };
        tracing::warn!(uid, "a user without permission connected to the control socket");
        Some(refuse(ControlError::new(
            ErrorCode::Forbidden,
            format_args!(
                "user {uid} may not control the bridge: only root and user {} (who runs it) may",
                self.user
            ),
        )))
    }

    fn answer(&mut self, received: &[u8], ended: bool) -> Answer {
        match received.iter().position(|&byte| byte == b'\n') {
            Some(end) => {
                let consumed = end + 1;
                let request = match read(&received[..end]) {
                    Ok(request) => request,
                    Err(refusal) => {
                        return Answer::Reply { consumed, text: refuse(refusal), close: false };
                    }
                };
                // Opening or closing a port may take long; reports do not wait for it.
                if request.is_report()
                    && let Found::Reply(text) = (self.answer)(request.clone())
                {
                    return Answer::Reply { consumed, text, close: false };
                }
                let answer = Arc::clone(&self.answer);
                Answer::Later { consumed, work: Box::new(move || answer(request)) }
            }
            None if ended && !received.is_empty() => {
                let text = refuse(ControlError::new(
                    ErrorCode::Malformed,
                    "the request does not end: a line feed is missing",
                ));
                Answer::Reply { consumed: received.len(), text, close: true }
            }
            None => Answer::Incomplete,
        }
    }

    fn rejection(&self, rejection: Rejection) -> Vec<u8> {
        refuse(match rejection {
            Rejection::TooManyConnections => ControlError::new(
                ErrorCode::Busy,
                format_args!(
                    "{} connections were open, this one was idle longest, and it gave way to a new one",
                    BOUNDS.connections
                ),
            ),
            Rejection::QueueFull => ControlError::new(
                ErrorCode::Busy,
                format_args!("{} requests wait for one that takes long", BOUNDS.connections),
            ),
            Rejection::NoThread(error) => ControlError::new(
                ErrorCode::Refused,
                format_args!("no thread can be started to change a setting: {error}"),
            ),
            Rejection::Panicked(message) => ControlError::new(
                ErrorCode::Internal,
                format_args!(
                    "the bridge panicked, which is a bug, and may have done a part of it: {message}"
                ),
            ),
            Rejection::TooLong => ControlError::new(
                ErrorCode::TooLong,
                format_args!("a request has at most {MAX_REQUEST} bytes"),
            ),
            Rejection::Late => ControlError::new(
                ErrorCode::TooSlow,
                format_args!("no complete request came within {} s", BOUNDS.patience.as_secs()),
            ),
        })
    }
}
