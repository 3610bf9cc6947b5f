//! The state that both ends of a UNIX socket port share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use superpacket::virtio::VirtioError;

use super::frame::FrameFormat;
use super::output::Connection;
use crate::{PortCounters, StopReason, TxFrame};

/// Minimum time between two messages about peers that break the rules.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// The state of a port that its ends share.
#[derive(Debug)]
pub(super) struct UnixShared {
    /// The port's name.
    pub(super) name: String,
    pub(super) format: FrameFormat,
    connection: Mutex<Option<Arc<Connection>>>,
    rx_errors: AtomicU64,
    tx_full: AtomicU64,
    tx_refused: AtomicU64,
    /// Whether the first unusable virtio header has been logged.
    warned: AtomicBool,
    /// When a peer that breaks the rules was last logged.
    logged: Mutex<Option<Instant>>,
}

impl UnixShared {
    pub(super) fn new(name: &str, format: FrameFormat) -> Self {
        UnixShared {
            name: name.to_owned(),
            format,
            connection: Mutex::new(None),
            rx_errors: AtomicU64::new(0),
            tx_full: AtomicU64::new(0),
            tx_refused: AtomicU64::new(0),
            warned: AtomicBool::new(false),
            logged: Mutex::new(None),
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

    pub(super) fn count_rx_error(&self) {
        self.rx_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a received frame whose virtio header is unusable, and logs the first one.
    pub(super) fn refuse_header(&self, error: &VirtioError) {
        self.count_rx_error();
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(port = %self.name, %error, "a packet with an unusable header was left out; more are counted as rx_errors only");
        }
    }

    /// Counts and logs that the peer broke a rule. Messages that follow at once are left out.
    pub(super) fn refuse_peer(&self, reason: &str) {
        self.count_rx_error();
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_none_or(|time| time.elapsed() >= LOG_INTERVAL) {
            *logged = Some(Instant::now());
            tracing::warn!(port = %self.name, reason, "the peer breaks the rules");
        }
    }

    /// Counts that the peer's queue is full.
    pub(super) fn full(&self) -> StopReason {
        self.tx_full.fetch_add(1, Ordering::Relaxed);
        StopReason::Full
    }

    /// Returns the reason why `frame` was not sent.
    #[cold]
    pub(super) fn stop(&self, frame: &TxFrame, error: Errno) -> StopReason {
        match error {
            // macOS says ENOBUFS where Linux says EAGAIN.
            Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM => self.full(),
            Errno::MSGSIZE if frame.gso.is_some() => {
                self.tx_refused.fetch_add(1, Ordering::Relaxed);
                StopReason::Offload(error.into())
            }
            Errno::MSGSIZE => StopReason::TooLong,
            _ if is_gone(error) => StopReason::Down,
            _ => StopReason::Refused(error.into()),
        }
    }

    pub(super) fn counters(&self) -> PortCounters {
        PortCounters {
            rx_dropped: 0,
            rx_errors: self.rx_errors.load(Ordering::Relaxed),
            tx_full: self.tx_full.load(Ordering::Relaxed),
            tx_refused: self.tx_refused.load(Ordering::Relaxed),
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
