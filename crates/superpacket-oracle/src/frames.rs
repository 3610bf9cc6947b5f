//! Frames to be received, what is known of them, and the packets that come of them.

use superpacket_lab::VnetHeader;
use superpacket_traffic::check::{self, FlowKey};

use crate::hint::{Hint, udp_payload};

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
        let plain = without_reserved_bits(bytes);
        let bytes = plain.as_deref().unwrap_or(bytes);
        Known {
            flow: check::flow_key(bytes, false),
            sequence: check::tcp_fields(bytes, false).map_or(0, |fields| fields.sequence),
            payload: check::payload(bytes, false).unwrap_or_default().to_vec(),
        }
    }
}

/// The frame with VXLAN or Geneve headers that say no more than any parser knows: Linux looks
/// behind such a header, whatever its reserved bits and flags say. That of a second tunnel is where
/// a GRO hint says; Linux does not read it. `None` where there is no tunnel.
pub(crate) fn without_reserved_bits(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut plain = without_bits_of(bytes, udp_payload(bytes)?)?;
    if let Some(hint) = Hint::of(bytes) {
        let port = bytes.get(hint.transport + 2..hint.transport + 4)?;
        let port = u16::from_be_bytes([port[0], port[1]]);
        plain = without_bits_of(&plain, (port, hint.transport + 8)).unwrap_or(plain);
    }
    Some(plain)
}

/// The same of the one tunnel header that is there, behind a UDP header to this port.
fn without_bits_of(bytes: &[u8], (port, header): (u16, usize)) -> Option<Vec<u8>> {
    // Bits of the first word, and of the second, that are not looked at.
    let (kept, set): ([u8; 8], [u8; 8]) = match port {
        4_789 => ([0, 0, 0, 0, 0xff, 0xff, 0xff, 0], [8, 0, 0, 0, 0, 0, 0, 0]),
        6_081 => ([0xff, 0x80, 0xff, 0xff, 0xff, 0xff, 0xff, 0], [0; 8]),
        _ => return None,
    };
    let mut plain = bytes.to_vec();
    for (place, byte) in plain.get_mut(header..header + 8)?.iter_mut().enumerate() {
        *byte = *byte & kept[place] | set[place];
    }
    Some(plain)
}

/// How a packet is to be cut, as a virtio header says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The packet.
    pub packet: Packet,
    /// Places of its frames, in the packet's order.
    pub frames: Vec<usize>,
}

/// The beginning of a frame: its headers are what differs, those of two tunnels too.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().take(240).map(|byte| format!("{byte:02x}")).collect();
    format!("{} bytes: {digits}", bytes.len())
}
