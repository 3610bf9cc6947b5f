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
use rustix::net::{
    RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, connect, recv, send,
};
use vhost::vhost_user::message::FrontendReq;
use vhost::vhost_user::{BackendReqHandler, Error, VhostUserBackendReqHandlerMut};

use super::memory::MemoryTrust;
use super::session::Session;
use super::shared::{VhostShared, lock};
use crate::unix::socket_file::{SocketFile, new_socket};

/// Interval between attempts to connect to a front end that listens.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// Pause after a front end violated the protocol, so that repeated violations do not keep the CPU
/// busy.
const PAUSE: Duration = Duration::from_millis(100);

/// The way in which front ends connect.
#[derive(Debug)]
pub(super) enum FrontEnds {
    /// Front ends connect to a socket of this port, whose file is removed together with it.
    Listen { socket: OwnedFd, _file: SocketFile },
    /// This port connects to the front ends' socket.
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
    let mut requests = BackendReqHandler::from_stream(socket, Arc::clone(&session));
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
            let enabled = enable_early(&copy, &session);
            match enabled.unwrap_or_else(|| requests.handle_request()) {
                Ok(()) => {}
                Err(error) => break Err(error),
            }
        } else if has_other && let Ok(other) = accept_with(listener, SocketFlags::CLOEXEC) {
            tracing::debug!(port = %shared.name, fd = other.as_raw_fd(), "a second front end is refused");
        }
    };
    shared.end_connection();
    result
}

/// Carries out the next request, if it enables a ring before the features are set. QEMU sends such
/// requests and does not repeat them, but the vhost crate would refuse them.
fn enable_early(socket: &UnixStream, session: &Mutex<Session>) -> Option<Result<(), Error>> {
    /// The protocol version in a request's flags. A request may only have one other flag, the one
    /// that asks for a reply.
    const VERSION: u32 = 1;
    const NEED_REPLY: u32 = 8;
    const REPLY: u32 = 4;
    let mut session = lock(session);
    if session.has_features() {
        return None;
    }
    let mut bytes = [0; 20];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let (_, count) = recv(socket, &mut bytes, flags).ok()?;
    let word =
        |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let (request, flags, length) = (word(0), word(4), word(8));
    let (index, enable) = (word(12), word(16));
    if count != bytes.len()
        || request != u32::from(FrontendReq::SET_VRING_ENABLE)
        || flags & !NEED_REPLY != VERSION
        || length != 8
        || enable > 1
    {
        return None;
    }
    recv(socket, &mut bytes, RecvFlags::DONTWAIT).ok()?;
    let result = session.set_vring_enable(index, enable == 1);
    if flags & NEED_REPLY != 0 && session.answers() {
        let header = [request, VERSION | REPLY, 8].map(u32::to_ne_bytes).concat();
        let answer = [header, u64::from(result.is_err()).to_ne_bytes().to_vec()].concat();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        if let Err(error) = send(socket, &answer, flags) {
            return Some(Err(Error::SocketError(error.into())));
        }
    }
    Some(result)
}
