//! Monitors of ports: copies of received and sent packets for a client, as a pcapng stream.
//!
//! ```text
//! thread that moves packets -> copies -> ring of bytes, one for each thread and monitor
//!                                              |
//!                      thread of the monitor <-+-> stream: pcapng -> socket
//! ```
//! Forwarding never waits for a monitor. If the ring has no room for a copy, the copy is dropped
//! and counted.

mod copies;
mod feed;
mod record;
mod stream;

pub(crate) use copies::Copies;
pub(crate) use feed::{Feed, Monitors};

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Default and maximum number of bytes copied per packet; Wireshark and libpcap read no more.
pub const MAX_SNAPLEN: u32 = 262_144;

/// Maximum number of monitors of a bridge at a time.
pub const MAX_MONITORS: usize = 8;

/// The packets of a port that are copied, by direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MonitorDirection {
    /// Received packets.
    Rx,
    /// Sent packets.
    Tx,
    /// Received and sent packets.
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
    /// Names of the monitored ports; empty for all present and future ports.
    pub ports: Vec<String>,
    /// The direction of the copied packets.
    pub direction: MonitorDirection,
    /// Maximum number of bytes copied per packet, 1 to [`MAX_SNAPLEN`].
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

/// The bridge's answer to a request for a monitor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MonitorReport {
    /// Format of the stream, always `pcapng`.
    pub format: String,
    /// Names of the ports that are monitored now.
    pub ports: Vec<String>,
}

/// A running monitor. Packets are copied until this value is dropped or the stream ends.
#[derive(Debug)]
pub struct Monitor {
    pub(crate) feed: Arc<Feed>,
    pub(crate) monitors: Arc<Monitors>,
}

impl Monitor {
    /// Returns the format and the monitored ports.
    pub fn report(&self) -> MonitorReport {
        MonitorReport { format: "pcapng".to_owned(), ports: self.feed.names() }
    }

    /// Starts a thread that writes the copies to a stream socket as one section of pcapng. Ports
    /// are interfaces, and each packet has its direction. The section ends with the numbers of
    /// copied and dropped packets per interface. `first` is written before the section.
    ///
    /// The stream ends after the requested number of packets, when the client stops sending or
    /// closes the socket, when all requested ports have left the bridge, or when the bridge stops.
    ///
    /// # Errors
    /// The error of the operating system if the thread cannot be started.
    pub fn stream_to(self, socket: OwnedFd, first: Vec<u8>) -> io::Result<()> {
        stream::start(self, socket, first)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.monitors.leave(&self.feed);
    }
}
