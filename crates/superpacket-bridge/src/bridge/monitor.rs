//! Starts monitors of a bridge's ports.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Bridge, lock};
use crate::error::BridgeError;
use crate::monitor::{MAX_SNAPLEN, Monitor, MonitorSettings};
use crate::poll_thread::PollThread;
use crate::runtime::SharedPort;

/// Maximum time for which the start of a monitor waits until all threads copy packets. A thread
/// that is blocked by a port starts to copy later.
const BEGIN: Duration = Duration::from_millis(500);

impl Bridge {
    /// Starts to copy the packets that ports receive and send. Every packet after this method has
    /// returned is copied: a received packet before it is aggregated, a sent packet as it is given
    /// to the port.
    ///
    /// # Errors
    /// [`BridgeError::NoSuchPort`]; [`BridgeError::TooManyMonitors`]; [`BridgeError::Monitor`] for
    /// a setting out of range; [`BridgeError::System`] if no descriptor is available.
    pub fn monitor(&self, settings: &MonitorSettings) -> Result<Monitor, BridgeError> {
        if !(1..=MAX_SNAPLEN).contains(&settings.snaplen) {
            return Err(BridgeError::Monitor(format!(
                "snaplen is 1 to {MAX_SNAPLEN} bytes, not {}",
                settings.snaplen
            )));
        }
        if settings.count == Some(0) {
            return Err(BridgeError::Monitor("count is 1 packet or more, not 0".to_owned()));
        }
        let inner = &self.inner;
        let monitor = {
            // No port may be added or removed between the check of the names and the start.
            let _alone = lock(&inner.changes);
            let ports: Vec<Arc<SharedPort>> = match settings.ports.is_empty() {
                true => {
                    lock(&inner.slots).iter().flatten().map(|slot| slot.shared.clone()).collect()
                }
                false => settings
                    .ports
                    .iter()
                    .map(|port| self.with(port, |slot| slot.shared.clone()))
                    .collect::<Result<_, _>>()?,
            };
            let monitors = inner.context.monitors.clone();
            let feed = monitors.begin(settings.clone(), &ports)?;
            inner.announce();
            Monitor { feed, monitors }
        };
        let started = Instant::now();
        while monitor.feed.copying() < self.threads() && started.elapsed() < BEGIN {
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(monitor)
    }

    /// Returns the number of threads that move packets, workers included.
    fn threads(&self) -> usize {
        let workers =
            lock(&self.inner.workers).all().filter(|worker| !PollThread::is_over(worker)).count();
        lock(&self.inner.poll_threads).len() + workers
    }
}
