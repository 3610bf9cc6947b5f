//! The thread that waits for front ends, and carries out their requests.
//!
//! The crate `vhost` reads and checks the messages. A message that is wrong, or a request that is
//! refused, ends the connection; the next front end starts afresh.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketAddrUnix, SocketFlags, SocketType, accept_with, connect};
use vhost::vhost_user::{BackendReqHandler, Error};

use super::memory::MemoryTrust;
use super::session::Session;
use super::shared::VhostShared;
use crate::unix::socket_file::{SocketFile, new_socket};

/// Interval between attempts to connect to a front end that listens.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// Pause after a front end that broke the rules, so that one that does so again and again keeps the
/// processor free.
const PAUSE: Duration = Duration::from_millis(100);

/// Where front ends come from.
#[derive(Debug)]
pub(super) enum FrontEnds {
    /// They connect to a socket of this port, whose file is removed with it.
    Listen { socket: OwnedFd, _file: SocketFile },
    /// This port connects to their socket.
    Connect(PathBuf),
}

/// Serves front ends, one after another, until `stop` is readable.
pub(super) fn serve(
    shared: &Arc<VhostShared>,
    front_ends: &FrontEnds,
    trust: MemoryTrust,
    stop: &OwnedFd,
) {
    while let Some(socket) = next(front_ends, stop) {
        tracing::info!(port = %shared.name, "a guest is connected");
        let broke_rules = match talk(shared, front_ends, trust, stop, socket) {
            Ok(()) | Err(Error::Disconnected) if !shared.has_fault() => {
                tracing::info!(port = %shared.name, "the guest has left");
                false
            }
            Err(Error::SocketBroken(_)) if !shared.has_fault() => false,
            // The fault has been counted.
            _ if shared.has_fault() => true,
            Ok(()) => false,
            Err(error) => {
                shared.break_rules(&error);
                true
            }
        };
        if broke_rules && wait([stop.as_fd()], Some(PAUSE)) == [true] {
            return;
        }
    }
}

/// Waits until one of the descriptors is readable, or the time is over, and returns which are.
fn wait<const N: usize>(descriptors: [BorrowedFd<'_>; N], timeout: Option<Duration>) -> [bool; N] {
    let mut polled =
        descriptors.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: i64::from(timeout.subsec_nanos()) as _,
    });
    // A signal may interrupt `poll`: then none is.
    let count = poll(&mut polled, timeout.as_ref()).unwrap_or(0);
    polled.map(|descriptor| count != 0 && !descriptor.revents().is_empty())
}

/// Waits for the next front end; `None` if the thread must end.
fn next(front_ends: &FrontEnds, stop: &OwnedFd) -> Option<UnixStream> {
    loop {
        match front_ends {
            FrontEnds::Listen { socket: listener, .. } => {
                let [is_stopped, _] = wait([stop.as_fd(), listener.as_fd()], None);
                if is_stopped {
                    return None;
                }
                if let Ok(socket) = accept_with(listener, SocketFlags::CLOEXEC) {
                    return Some(socket.into());
                }
            }
            FrontEnds::Connect(path) => {
                if let Some(socket) = connect_to(path) {
                    return Some(socket);
                }
                if wait([stop.as_fd()], Some(TRY_AGAIN)) == [true] {
                    return None;
                }
            }
        }
    }
}

fn connect_to(path: &PathBuf) -> Option<UnixStream> {
    let socket = new_socket(SocketType::STREAM).ok()?;
    connect(&socket, &SocketAddrUnix::new(path).ok()?).ok()?;
    let socket = UnixStream::from(socket);
    socket.set_nonblocking(false).ok()?;
    Some(socket)
}

/// Carries out the requests of one front end until it leaves.
fn talk(
    shared: &Arc<VhostShared>,
    front_ends: &FrontEnds,
    trust: MemoryTrust,
    stop: &OwnedFd,
    socket: UnixStream,
) -> Result<(), Error> {
    // A request may wait for the rest of its message. Whoever ends the connection wakes it.
    let copy = socket.try_clone().map_err(Error::SocketError)?;
    let session = Arc::new(Mutex::new(Session::new(Arc::clone(shared), trust)));
    let mut requests = BackendReqHandler::from_stream(socket, session);
    shared.begin_connection(copy.try_clone().map_err(Error::SocketError)?);
    let result = loop {
        let listener = match front_ends {
            FrontEnds::Listen { socket: listener, .. } => listener.as_fd(),
            FrontEnds::Connect(_) => stop.as_fd(),
        };
        let [is_stopped, has_request, has_other] =
            wait([stop.as_fd(), copy.as_fd(), listener], None);
        if is_stopped {
            break Ok(());
        }
        if has_request {
            match requests.handle_request() {
                // QEMU enables rings before it has accepted features, and again when it starts
                // them. The crate refuses the first.
                Ok(()) | Err(Error::InactiveFeature(_)) => {}
                Err(error) => break Err(error),
            }
        } else if has_other && let Ok(other) = accept_with(listener, SocketFlags::CLOEXEC) {
            tracing::debug!(port = %shared.name, fd = other.as_raw_fd(), "a second front end is refused");
        }
    };
    shared.end_connection();
    result
}
