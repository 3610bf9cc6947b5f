//! Frames to be received, what is known of them, and the packets that come of them.

use superpacket_lab::VnetHeader;
use superpacket_traffic::check::{self, FlowKey};

/// A frame to be received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The frame, from the destination MAC address on.
    pub bytes: Vec<u8>,
    /// The place of a checksum that a device is to complete: where its sum starts, and its offset
    /// from there, in bytes.
    pub partial: Option<(u16, u16)>,
}

impl Input {
    /// Makes a frame with complete checksums.
    pub fn new(bytes: Vec<u8>) -> Self {
        Input { bytes, partial: None }
    }

    /// Returns the virtio header that says the same.
    pub fn header(&self) -> VnetHeader {
        let Some((csum_start, csum_offset)) = self.partial else { return VnetHeader::default() };
        VnetHeader { flags: 1, csum_start, csum_offset, ..VnetHeader::default() }
    }
}

/// What a frame is, by an independent parser.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its flow; none for what is not IP, or has no whole header.
    pub flow: Option<FlowKey>,
    /// Its TCP sequence number; 0 for others.
    pub sequence: u32,
    /// Its payload.
    pub payload: Vec<u8>,
}

impl Known {
    /// Parses a frame.
    pub fn of(bytes: &[u8]) -> Self {
        Known {
            flow: check::flow_key(bytes, false),
            sequence: check::tcp_fields(bytes, false).map_or(0, |fields| fields.sequence),
            payload: check::payload(bytes, false).unwrap_or_default().to_vec(),
        }
    }
}

/// How a packet is to be cut, as a virtio header says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cut {
    /// `VIRTIO_NET_HDR_GSO_*`.
    pub kind: u8,
    /// Payload bytes of a segment.
    pub size: u16,
}

/// A packet that came of one or more frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// From the destination MAC address on, tags included.
    pub bytes: Vec<u8>,
    /// How it is to be cut, if frames merged in it.
    pub cut: Option<Cut>,
    /// The place of its partial checksum, as in [`Input::partial`].
    pub partial: Option<(u16, u16)>,
}

/// A packet, and the places of its frames among those received.
#[derive(Clone, Debug)]
pub struct Group {
    /// The packet.
    pub packet: Packet,
    /// Places of its frames, in the packet's order.
    pub frames: Vec<usize>,
}
