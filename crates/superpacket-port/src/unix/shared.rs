//! The state that both ends of a UNIX socket port share.

use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use superpacket::virtio::VirtioError;

use super::frame::FrameFormat;
use super::output::Connection;
use crate::counters::SharedCounters;
use crate::{StopReason, TxFrame};

/// The state of a port that its ends share.
#[derive(Debug)]
pub(super) struct UnixShared {
    /// The port's name.
    pub(super) name: String,
    pub(super) format: FrameFormat,
    connection: Mutex<Option<Arc<Connection>>>,
    pub(super) counters: SharedCounters,
}

impl UnixShared {
    pub(super) fn new(name: &str, format: FrameFormat) -> Self {
        UnixShared {
            name: name.to_owned(),
            format,
            connection: Mutex::new(None),
            counters: SharedCounters::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Connection>>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the connection with the peer, if there is one.
    pub(super) fn connection(&self) -> Option<Arc<Connection>> {
        self.lock().clone()
    }

    /// Sets or removes the connection with the peer.
    pub(super) fn set_connection(&self, connection: Option<Arc<Connection>>) {
        *self.lock() = connection;
    }

    /// Counts a received frame whose virtio header is unusable.
    pub(super) fn refuse_header(&self, error: &VirtioError) {
        self.counters.refuse_header(&self.name, error);
    }

    /// Counts and logs that the peer broke a rule.
    pub(super) fn refuse_peer(&self, reason: &dyn Display) {
        self.counters.refuse_peer(&self.name, reason);
    }

    /// Returns the reason why `frame` was not sent.
    #[cold]
    pub(super) fn stop(&self, frame: &TxFrame, error: Errno) -> StopReason {
        match error {
            // macOS says ENOBUFS where Linux says EAGAIN.
            Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM => self.counters.full(),
            Errno::MSGSIZE if frame.gso.is_some() => self.counters.refuse_offload(error),
            Errno::MSGSIZE => StopReason::TooLong,
            _ if is_gone(error) => StopReason::Down,
            _ => StopReason::Refused(error.into()),
        }
    }
}

/// Returns whether an error of sending or receiving says that the peer has gone.
pub(super) fn is_gone(error: Errno) -> bool {
    matches!(
        error,
        Errno::PIPE
            | Errno::CONNRESET
            | Errno::CONNREFUSED
            | Errno::NOTCONN
            | Errno::DESTADDRREQ
            | Errno::NOENT
            | Errno::PERM
    )
}
