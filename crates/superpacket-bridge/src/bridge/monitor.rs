//! Monitors of a bridge's ports.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Bridge, lock};
use crate::error::BridgeError;
use crate::monitor::{MAX_SNAPLEN, Monitor, MonitorSettings};
use crate::poll_thread::PollThread;
use crate::runtime::Shared;

/// How long the threads may take until they copy. One that is held up by a port copies later.
const BEGIN: Duration = Duration::from_millis(500);

impl Bridge {
    /// Begins to copy what ports receive and send: all that comes after this has returned. The
    /// packets are copied as the ports have them: what is received before it is aggregated, what
    /// is sent as it is given to the port.
    ///
    /// # Errors
    /// [`BridgeError::NoSuchPort`]; [`BridgeError::TooManyMonitors`];
    /// [`BridgeError::Monitor`] for a setting out of range; [`BridgeError::System`] if there is no
    /// descriptor.
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
            // No port comes or goes between the look and the beginning.
            let _alone = lock(&inner.changes);
            let ports: Vec<Arc<Shared>> = match settings.ports.is_empty() {
                true => {
                    lock(&inner.places).iter().flatten().map(|place| place.shared.clone()).collect()
                }
                false => settings
                    .ports
                    .iter()
                    .map(|port| self.with(port, |place| place.shared.clone()))
                    .collect::<Result<_, _>>()?,
            };
            let monitors = inner.common.monitors.clone();
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

    /// How many threads move packets.
    fn threads(&self) -> usize {
        let workers =
            lock(&self.inner.workers).all().filter(|worker| !PollThread::is_over(worker)).count();
        lock(&self.inner.poll_threads).len() + workers
    }
}
