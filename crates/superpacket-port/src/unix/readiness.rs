//! One descriptor that becomes readable when a stream port has something to do.
//!
//! On Linux, it is an `epoll`: it covers the listening socket, the connection, and room for frames
//! that wait to be sent. On other systems, it is a duplicate of the socket watched last, and frames
//! that wait are sent together with the next ones, or by the next poll.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

#[cfg(target_os = "linux")]
use rustix::event::epoll;
#[cfg(target_os = "linux")]
use std::sync::Arc;

/// The descriptor of a receiving end.
#[derive(Debug)]
pub(super) struct Readiness {
    #[cfg(target_os = "linux")]
    poller: Arc<OwnedFd>,
    #[cfg(not(target_os = "linux"))]
    current: OwnedFd,
    /// A socket whose other end is closed, so that it is always readable.
    always: UnixStream,
    is_forced: bool,
}

/// A handle by which a sending end makes the descriptor readable when its connection has room to
/// send.
#[derive(Clone, Debug)]
pub(super) struct RoomWatch {
    #[cfg(target_os = "linux")]
    poller: Arc<OwnedFd>,
}

#[cfg(target_os = "linux")]
impl Readiness {
    /// Creates a descriptor that watches nothing.
    pub(super) fn new() -> io::Result<Self> {
        let poller = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let (always, _) = UnixStream::pair()?;
        Ok(Readiness { poller, always, is_forced: false })
    }

    /// Watches a socket for frames or clients, unless it is watched already.
    pub(super) fn watch(&mut self, socket: impl AsFd) -> io::Result<()> {
        match add(&self.poller, socket) {
            Err(rustix::io::Errno::EXIST) => Ok(()),
            added => Ok(added?),
        }
    }

    /// Stops watching a socket.
    pub(super) fn unwatch(&mut self, socket: impl AsFd) {
        let _ = epoll::delete(&self.poller, socket);
    }

    /// Keeps the descriptor readable while `on` is set. `socket` is the connection.
    pub(super) fn force(&mut self, on: bool, _socket: impl AsFd) {
        if self.is_forced != on {
            let changed = if on {
                add(&self.poller, &self.always)
            } else {
                epoll::delete(&self.poller, &self.always)
            };
            self.is_forced = on == changed.is_ok();
        }
    }

    /// Returns a handle by which a sending end watches its connection.
    pub(super) fn room_watch(&self) -> RoomWatch {
        RoomWatch { poller: Arc::clone(&self.poller) }
    }
}

#[cfg(target_os = "linux")]
fn add(poller: &OwnedFd, socket: impl AsFd) -> Result<(), rustix::io::Errno> {
    epoll::add(poller, socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
}

#[cfg(target_os = "linux")]
impl RoomWatch {
    /// Makes the descriptor readable when `socket` has room to send, if `on` is set, and stops
    /// doing so otherwise.
    pub(super) fn set(&self, socket: impl AsFd, on: bool) {
        let room = if on { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
        let data = epoll::EventData::new_u64(0);
        // Fails if the connection was just closed.
        let _ = epoll::modify(&self.poller, socket, data, epoll::EventFlags::IN | room);
    }
}

#[cfg(target_os = "linux")]
impl AsFd for Readiness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

#[cfg(not(target_os = "linux"))]
impl Readiness {
    /// Creates a descriptor that watches nothing.
    pub(super) fn new() -> io::Result<Self> {
        let (always, _) = UnixStream::pair()?;
        let current = always.as_fd().try_clone_to_owned()?;
        Ok(Readiness { current, always, is_forced: true })
    }

    /// Watches a socket for frames or clients, instead of the one before.
    pub(super) fn watch(&mut self, socket: impl AsFd) -> io::Result<()> {
        self.is_forced = false;
        replace(&mut self.current, socket)
    }

    /// Stops watching a socket.
    pub(super) fn unwatch(&mut self, _socket: impl AsFd) {
        self.is_forced = replace(&mut self.current, &self.always).is_ok();
    }

    /// Keeps the descriptor readable while `on` is set. `socket` is the connection.
    pub(super) fn force(&mut self, on: bool, socket: impl AsFd) {
        if self.is_forced != on {
            let changed = if on {
                replace(&mut self.current, &self.always)
            } else {
                replace(&mut self.current, socket)
            };
            self.is_forced = on == changed.is_ok();
        }
    }

    /// Returns a handle by which a sending end watches its connection.
    pub(super) fn room_watch(&self) -> RoomWatch {
        RoomWatch {}
    }
}

#[cfg(not(target_os = "linux"))]
fn replace(current: &mut OwnedFd, socket: impl AsFd) -> io::Result<()> {
    rustix::io::dup2(socket, current)?;
    Ok(rustix::io::fcntl_setfd(current, rustix::io::FdFlags::CLOEXEC)?)
}

#[cfg(not(target_os = "linux"))]
impl RoomWatch {
    /// Does nothing: queued frames are sent by the next poll, or together with the next frames.
    pub(super) fn set(&self, _socket: impl AsFd, _on: bool) {}
}

#[cfg(not(target_os = "linux"))]
impl AsFd for Readiness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.current.as_fd()
    }
}
