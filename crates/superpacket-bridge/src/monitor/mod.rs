//! Monitors of ports: copies of received and sent packets for a reader.
//!
//! ```text
//! thread that moves packets -> copies -> ring of bytes, one for each thread and monitor
//!                                              |
//!                      thread of the monitor <-+-> reader: all copies, in order of time
//! ```
//! Forwarding never waits for a monitor. If the ring has no room for a copy, the copy is dropped
//! and counted.
//!
//! ```no_run
//! # let bridge = superpacket_bridge::Bridge::start(Default::default())?;
//! use std::io::{self, Write};
//! use superpacket_bridge::monitor::MonitorSettings;
//!
//! let monitor = bridge.monitor(&MonitorSettings { count: Some(10), ..Default::default() })?;
//! monitor.read_on_thread(|mut reader| {
//!     while let Ok(false) = reader.read(|copy| {
//!         writeln!(io::stdout(), "{} bytes, sent: {}", copy.length, copy.sent)
//!     }) {
//!         reader.wait(None);
//!     }
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod copies;
mod feed;
mod reader;
mod record;

pub(crate) use copies::Copies;
pub(crate) use feed::Monitors;
pub use feed::{Feed, MonitorInterface};
pub use reader::{MonitorReader, PacketCopy};

use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Default and maximum number of bytes copied of a packet; Wireshark and libpcap read no more.
pub const MAX_SNAPLEN: u32 = 262_144;

/// Maximum number of monitors of a bridge at a time.
pub const MAX_MONITORS: usize = 8;

/// Which packets of a port a monitor copies: received ones, sent ones, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MonitorDirection {
    /// Copies of received packets.
    Rx,
    /// Copies of sent packets.
    Tx,
    /// Copies of received and of sent packets.
    #[default]
    Both,
}

impl MonitorDirection {
    /// Returns whether received packets are copied.
    pub(crate) const fn has_received(self) -> bool {
        matches!(self, MonitorDirection::Rx | MonitorDirection::Both)
    }

    /// Returns whether sent packets are copied.
    pub(crate) const fn has_sent(self) -> bool {
        matches!(self, MonitorDirection::Tx | MonitorDirection::Both)
    }
}

/// The settings of a monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitorSettings {
    /// Names of the monitored ports; if empty, all ports, including those that are added later.
    pub ports: Vec<String>,
    /// Whether received packets, sent packets, or both are copied.
    pub direction: MonitorDirection,
    /// Maximum number of bytes copied of a packet, 1 to [`MAX_SNAPLEN`].
    pub snaplen: u32,
    /// Number of packets after which the monitor ends; `None` for no limit.
    pub count: Option<u64>,
}

impl Default for MonitorSettings {
    /// Returns settings that copy all packets of all ports in full.
    fn default() -> Self {
        MonitorSettings {
            ports: Vec::new(),
            direction: MonitorDirection::Both,
            snaplen: MAX_SNAPLEN,
            count: None,
        }
    }
}

/// A running monitor. Packets are copied until it, or the reader made of it, is dropped.
#[derive(Debug)]
pub struct Monitor {
    pub(crate) feed: Arc<Feed>,
    pub(crate) monitors: Arc<Monitors>,
}

impl Monitor {
    /// Returns the names of the ports that are monitored now.
    pub fn ports(&self) -> Vec<String> {
        self.feed.ports()
    }

    /// Starts a thread that runs `read` to read the copies. When the bridge stops, it ends the
    /// monitor and waits for this thread, so `read` should return soon after
    /// [`MonitorReader::read`] has returned true.
    ///
    /// # Errors
    /// The error of the operating system if the thread cannot be started.
    pub fn read_on_thread(
        self,
        read: impl FnOnce(MonitorReader) + Send + 'static,
    ) -> io::Result<()> {
        let (monitors, feed) = (self.monitors.clone(), self.feed.clone());
        let thread = std::thread::Builder::new()
            .name("superpacket-mon".into())
            .spawn(move || read(MonitorReader::new(self)))?;
        monitors.set_thread(&feed, thread);
        Ok(())
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.monitors.leave(&self.feed);
    }
}
