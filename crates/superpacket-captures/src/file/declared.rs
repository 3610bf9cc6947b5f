//! The properties of interfaces that the writers of pcap and pcapng files remember, and the errors
//! of writing a frame.

use std::io;

use super::{Interface, LinkType, TimeResolution};

/// The properties of an interface that writers of capture files keep.
#[derive(Clone, Copy)]
pub(super) struct DeclaredInterface {
    pub(super) link_type: LinkType,
    pub(super) pcap_flags: u16,
    pub(super) resolution: TimeResolution,
    pub(super) offset_seconds: i64,
    snap_length: u32,
}

impl DeclaredInterface {
    pub(super) fn new(interface: &Interface) -> Self {
        Self {
            link_type: interface.link_type,
            pcap_flags: interface.pcap_flags,
            resolution: interface.resolution,
            offset_seconds: interface.offset_seconds,
            snap_length: snap_length(interface.snap_length),
        }
    }

    /// Returns whether the snap length that was written for the interface allows a frame of
    /// `length` bytes.
    pub(super) fn holds(&self, length: u32) -> bool {
        self.snap_length == 0 || length <= self.snap_length
    }
}

/// Returns the snap length to write for an interface that was captured with the snap length
/// `captured`. It is at least libpcap's `MAXIMUM_SNAPLEN`, since super-packets are longer than the
/// frames of which they were made. 0 means no limit and is kept.
pub(super) fn snap_length(captured: u32) -> u32 {
    const MAXIMUM_SNAPLEN: u32 = 262_144;
    if captured == 0 { 0 } else { captured.max(MAXIMUM_SNAPLEN) }
}

/// The reason why a frame cannot be written.
pub(super) enum FrameRefusal {
    Io(io::Error),
    Time,
    LinkType { first: LinkType },
}

impl From<io::Error> for FrameRefusal {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
