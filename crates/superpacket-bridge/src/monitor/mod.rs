//! A mirror of ports: what they receive and send is copied to who asks for it, as a pcapng stream.
//!
//! ```text
//! thread that moves packets -> copies -> ring of bytes, one for each thread and monitor
//!                                              |
//!                      thread of the monitor <-+-> stream: pcapng -> socket
//! ```
//! Forwarding never waits for a monitor: a copy for which its thread's ring has no room is dropped
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

/// The most bytes that are copied of a packet, if nothing else is asked for: the most that
/// Wireshark and libpcap read.
pub const MAX_SNAPLEN: u32 = 262_144;

/// The most monitors of a bridge at a time.
pub const MAX_MONITORS: usize = 8;

/// Which packets of a port are copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MonitorDirection {
    /// What it receives.
    Rx,
    /// What is sent by it.
    Tx,
    /// Both.
    #[default]
    Both,
}

impl MonitorDirection {
    /// What is received is copied.
    pub(crate) const fn has_received(self) -> bool {
        matches!(self, MonitorDirection::Rx | MonitorDirection::Both)
    }

    /// What is sent is copied.
    pub(crate) const fn has_sent(self) -> bool {
        matches!(self, MonitorDirection::Tx | MonitorDirection::Both)
    }
}

/// What a monitor copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitorSettings {
    /// The ports, by their names; empty: all that there are and that will come.
    pub ports: Vec<String>,
    /// Which of their packets.
    pub direction: MonitorDirection,
    /// The most bytes of a packet, 1 to [`MAX_SNAPLEN`].
    pub snaplen: u32,
    /// It ends after so many packets; `None`: when it is told to.
    pub count: Option<u64>,
}

impl Default for MonitorSettings {
    /// All packets of all ports, whole.
    fn default() -> Self {
        MonitorSettings {
            ports: Vec::new(),
            direction: MonitorDirection::Both,
            snaplen: MAX_SNAPLEN,
            count: None,
        }
    }
}

/// What a bridge says of a monitor that has begun.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MonitorReport {
    /// What its stream is: `pcapng`.
    pub format: String,
    /// The ports that are monitored now.
    pub ports: Vec<String>,
}

/// A monitor that has begun: packets are copied until it is dropped, or until its stream ends.
#[derive(Debug)]
pub struct Monitor {
    pub(crate) feed: Arc<Feed>,
    pub(crate) monitors: Arc<Monitors>,
}

impl Monitor {
    /// Says what it monitors.
    pub fn report(&self) -> MonitorReport {
        MonitorReport { format: "pcapng".to_owned(), ports: self.feed.names() }
    }

    /// Writes the copies to a stream socket, from a thread of its own, as one section of pcapng: an
    /// interface for each port, a packet with its direction for each copy, and when it ends, for
    /// each interface what was copied and what was dropped.
    ///
    /// It ends after the packets that were asked for, when the other end of the socket sends no
    /// more or is closed, when the ports that were asked for have left the bridge, and when the
    /// bridge ends. `first` is written before all else.
    ///
    /// # Errors
    /// What the system says if it gives no thread.
    pub fn stream_to(self, socket: OwnedFd, first: Vec<u8>) -> io::Result<()> {
        stream::start(self, socket, first)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.monitors.leave(&self.feed);
    }
}
