//! The server's side of the control socket.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::process::Uid;

use super::answer::{answer, refuse};
use super::request::read;
use super::socket::SocketFile;
use super::{Control, ControlSocket, ErrorCode, MAX_REQUEST, Refusal};
use crate::serve::{Answer, Bounds, Complaint, Counts, Found, Protocol, Server};

/// What clients get at most: somebody who watches asks every second, and nobody needs more places
/// than people have terminals.
pub(super) const BOUNDS: Bounds = Bounds {
    connections: 16,
    question: MAX_REQUEST,
    patience: Duration::from_secs(10),
    stall: Duration::from_secs(1),
};

/// What became of the control socket's clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlCounters {
    /// Connections, all together.
    pub accepted: u64,
    /// Connections of users that are not served.
    pub refused: u64,
    /// Connections that gave way to a new one: all places were taken, and they had been idle
    /// longest.
    pub crowded: u64,
    /// Requests that were too long.
    pub too_long: u64,
    /// Connections that were ended because nothing came, or was read, in time.
    pub late: u64,
    /// Lines answered, errors included.
    pub answered: u64,
}

/// Serves a control socket on a thread of its own; dropped, it stops, and the socket's file is
/// removed.
#[derive(Debug)]
pub struct ControlServer {
    server: Server,
    // After the server, whose drop joins its thread.
    _file: SocketFile,
}

impl ControlServer {
    /// Serves root and the user that this process runs as now.
    ///
    /// # Errors
    /// What the system says if it gives no thread or descriptor.
    pub fn start(socket: ControlSocket, control: Arc<dyn Control>) -> std::io::Result<Self> {
        ControlServer::start_within(socket, control, BOUNDS)
    }

    pub(super) fn start_within(
        socket: ControlSocket,
        control: Arc<dyn Control>,
        bounds: Bounds,
    ) -> std::io::Result<Self> {
        let (listener, file) = socket.into_parts();
        let protocol = Lines { control, user: rustix::process::geteuid() };
        let server = Server::start("control", listener, bounds, Arc::default(), protocol)?;
        Ok(ControlServer { server, _file: file })
    }

    /// What it counted so far.
    pub fn counters(&self) -> ControlCounters {
        let Counts { accepted, refused, crowded, too_long, late, answered } = self.server.counts();
        ControlCounters {
            accepted: accepted.load(Ordering::Relaxed),
            refused: refused.load(Ordering::Relaxed),
            crowded: crowded.load(Ordering::Relaxed),
            too_long: too_long.load(Ordering::Relaxed),
            late: late.load(Ordering::Relaxed),
            answered: answered.load(Ordering::Relaxed),
        }
    }
}

/// A JSON object a line.
struct Lines {
    control: Arc<dyn Control>,
    user: Uid,
}

impl Protocol for Lines {
    fn refusal(&self, peer: BorrowedFd<'_>) -> Option<Vec<u8>> {
        let uid = match rustix::net::sockopt::socket_peercred(peer) {
            Ok(peer) if peer.uid.is_root() || peer.uid == self.user => return None,
            Ok(peer) => peer.uid.to_string(),
            // Who cannot be named is not served.
            Err(_) => "unknown".to_owned(),
        };
        tracing::warn!(uid, "a user who is not served came to the control socket");
        Some(refuse(Refusal::new(
            ErrorCode::Forbidden,
            format_args!(
                "user {uid} is not served: only root and user {}, who the bridge runs as",
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
                // A port may take long to open or to close: what only reads need not wait for it.
                if request.is_report()
                    && let Found::Reply(text) = answer(request.clone(), &*self.control)
                {
                    return Answer::Reply { consumed, text, close: false };
                }
                let control = Arc::clone(&self.control);
                Answer::Later { consumed, work: Box::new(move || answer(request, &*control)) }
            }
            None if ended && !received.is_empty() => {
                let text = refuse(Refusal::new(
                    ErrorCode::Malformed,
                    "the request does not end: a line feed is missing",
                ));
                Answer::Reply { consumed: received.len(), text, close: true }
            }
            None => Answer::Incomplete,
        }
    }

    fn complaint(&self, complaint: Complaint) -> Vec<u8> {
        refuse(match complaint {
            Complaint::Crowded => Refusal::new(
                ErrorCode::Busy,
                format_args!(
                    "{} connections were open, this one was idle longest, and it gave way to a new one",
                    BOUNDS.connections
                ),
            ),
            Complaint::Behind => Refusal::new(
                ErrorCode::Busy,
                format_args!("{} requests wait for one that takes long", BOUNDS.connections),
            ),
            Complaint::NoThread(error) => Refusal::new(
                ErrorCode::Refused,
                format_args!("no thread can be started for what changes something: {error}"),
            ),
            Complaint::Panicked(message) => Refusal::new(
                ErrorCode::Internal,
                format_args!(
                    "the bridge panicked, which is a fault of its own, and may have done a part of it: {message}"
                ),
            ),
            Complaint::TooLong => Refusal::new(
                ErrorCode::TooLong,
                format_args!("a request has at most {MAX_REQUEST} bytes"),
            ),
            Complaint::Late => Refusal::new(
                ErrorCode::TooSlow,
                format_args!("nothing came for {} s", BOUNDS.patience.as_secs()),
            ),
        })
    }
}
