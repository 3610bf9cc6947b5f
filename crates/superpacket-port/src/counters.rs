//! The counters of a port, which its ends share, and log messages about what they count.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use superpacket::virtio::VirtioError;

use crate::{PortCounters, StopReason};

/// Minimum time between two messages about peers that break the rules.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// The counters of a port, summed over all its ends.
#[derive(Debug, Default)]
pub(crate) struct SharedCounters {
    rx_errors: AtomicU64,
    tx_full: AtomicU64,
    tx_refused: AtomicU64,
    /// Whether the first unusable virtio header has been logged.
    header_logged: AtomicBool,
    /// When a peer that breaks the rules was last logged.
    peer_logged: Mutex<Option<Instant>>,
}

impl SharedCounters {
    #[cold]
    pub(crate) fn count_rx_error(&self) {
        self.rx_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a received packet whose virtio header is unusable, and logs the first one.
    pub(crate) fn refuse_header(&self, port: &str, error: &VirtioError) {
        self.count_rx_error();
        self.log_header(port, error);
    }

    /// Logs the first packet whose virtio header is unusable.
    #[cold]
    pub(crate) fn log_header(&self, port: &str, error: &VirtioError) {
        if !self.header_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!(port, %error, "a packet with an unusable header was left out; more are counted as rx_errors only");
        }
    }

    /// Counts and logs that the peer of a socket broke a rule. Messages that follow within a second
    /// are left out.
    #[cold]
    pub(crate) fn refuse_peer(&self, port: &str, reason: &dyn Display) {
        self.count_rx_error();
        let mut logged = self.peer_logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_none_or(|time| time.elapsed() >= LOG_INTERVAL) {
            *logged = Some(Instant::now());
            tracing::warn!(port, %reason, "the peer breaks the rules");
        }
    }

    /// Counts that the port can take no more frames for now.
    #[cold]
    pub(crate) fn full(&self) -> StopReason {
        self.tx_full.fetch_add(1, Ordering::Relaxed);
        StopReason::Full
    }

    /// Counts a frame whose offload was refused.
    #[cold]
    pub(crate) fn refuse_offload(&self, error: impl Into<std::io::Error>) -> StopReason {
        self.tx_refused.fetch_add(1, Ordering::Relaxed);
        StopReason::Offload(error.into())
    }

    /// Returns the counters, with `rx_dropped`, which the kernel counts.
    pub(crate) fn read(&self, rx_dropped: u64) -> PortCounters {
        PortCounters {
            rx_dropped,
            rx_errors: self.rx_errors.load(Ordering::Relaxed),
            tx_full: self.tx_full.load(Ordering::Relaxed),
            tx_refused: self.tx_refused.load(Ordering::Relaxed),
        }
    }
}
