//! What the writers of both containers remember of an interface, and why they refuse a frame.

use std::io;

use super::{Interface, LinkType, TimeResolution};

/// What the writer remembers of an interface.
#[derive(Clone, Copy)]
pub(super) struct Declared {
    pub(super) link_type: LinkType,
    pub(super) pcap_flags: u16,
    pub(super) resolution: TimeResolution,
    pub(super) offset_seconds: i64,
    snap_length: u32,
}

impl Declared {
    pub(super) fn new(interface: &Interface) -> Self {
        Self {
            link_type: interface.link_type,
            pcap_flags: interface.pcap_flags,
            resolution: interface.resolution,
            offset_seconds: interface.offset_seconds,
            snap_length: snap_length(interface.snap_length),
        }
    }

    /// Whether a frame of `length` bytes is within the snap length written.
    pub(super) fn holds(&self, length: u32) -> bool {
        self.snap_length == 0 || length <= self.snap_length
    }
}

/// The snap length written for an interface that had `captured`: libpcap's `MAXIMUM_SNAPLEN` at
/// least, since a super-packet is longer than the frames it was made from. 0 means no limit and
/// stays.
pub(super) fn snap_length(captured: u32) -> u32 {
    const MAXIMUM_SNAPLEN: u32 = 262_144;
    if captured == 0 { 0 } else { captured.max(MAXIMUM_SNAPLEN) }
}

/// Why a frame cannot be written.
pub(super) enum Refusal {
    Io(io::Error),
    Time,
    LinkType { first: LinkType },
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
