//! The counters of a port, shared by its receivers and transmitters, and log messages about the
//! counted errors.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use superpacket::virtio::VirtioError;

use crate::{PortCounters, StopReason};

/// Minimum time between two log messages about peers that violate the protocol.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// The counters of a port, summed over all its receivers and transmitters.
#[derive(Debug, Default)]
pub(crate) struct SharedCounters {
    rx_errors: AtomicU64,
    tx_full: AtomicU64,
    tx_refused: AtomicU64,
    /// Whether the first unusable virtio header has been logged.
    header_logged: AtomicBool,
    /// When a protocol violation by a peer was last logged.
    peer_logged: Mutex<Option<Instant>>,
}

impl SharedCounters {
    #[cold]
    pub(crate) fn count_rx_error(&self) {
        self.rx_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a received packet whose virtio header is unusable, and logs it if it is the first
    /// one.
    pub(crate) fn refuse_header(&self, port: &str, error: &VirtioError) {
        self.count_rx_error();
        self.log_header(port, error);
    }

    /// Logs a packet whose virtio header is unusable, if it is the first one.
    #[cold]
    pub(crate) fn log_header(&self, port: &str, error: &VirtioError) {
        if !self.header_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                port, %error,
                "a packet with an unusable header was left out; more are counted as rx_errors only"
            );
        }
    }

    /// Counts a protocol violation by the peer of a socket, and logs it unless another was logged
    /// within the last second.
    #[cold]
    pub(crate) fn refuse_peer(&self, port: &str, reason: &dyn Display) {
        self.count_rx_error();
        let mut logged = self.peer_logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_none_or(|time| time.elapsed() >= LOG_INTERVAL) {
            *logged = Some(Instant::now());
            tracing::warn!(port, %reason, "the peer breaks the rules");
        }
    }

    /// Counts an attempt to send while the port cannot accept more frames, and returns
    /// [`StopReason::Full`].
    #[cold]
    pub(crate) fn full(&self) -> StopReason {
        self.tx_full.fetch_add(1, Ordering::Relaxed);
        StopReason::Full
    }

    /// Counts a frame whose offload was refused, and returns the reason with `error`.
    #[cold]
    pub(crate) fn refuse_offload(&self, error: impl Into<std::io::Error>) -> StopReason {
        self.tx_refused.fetch_add(1, Ordering::Relaxed);
        StopReason::Offload(error.into())
    }

    /// Returns the counters. `rx_dropped` is given by the caller, because the kernel counts it.
    pub(crate) fn read(&self, rx_dropped: u64) -> PortCounters {
        PortCounters {
            rx_dropped,
            rx_errors: self.rx_errors.load(Ordering::Relaxed),
            tx_full: self.tx_full.load(Ordering::Relaxed),
            tx_refused: self.tx_refused.load(Ordering::Relaxed),
        }
    }
}
