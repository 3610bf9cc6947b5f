//! Frames of a batch, their parsed contents, and the packets that the kernel and the engine make of
//! them.

use superpacket_lab::VnetHeader;
use superpacket_traffic::check::{self, FlowKey};

use crate::hint::{Hint, udp_payload};

/// A frame that the kernel and the engine receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputFrame {
    /// The frame's bytes, starting with the destination MAC address.
    pub bytes: Vec<u8>,
    /// The position of a partial checksum: the offset at which the checksummed bytes start, and the
    /// offset of the checksum field from there, in bytes. `None` if the checksum is complete.
    pub partial: Option<(u16, u16)>,
}

impl InputFrame {
    /// Creates a frame with complete checksums.
    pub fn new(bytes: Vec<u8>) -> Self {
        InputFrame { bytes, partial: None }
    }

    /// Returns the virtio header that describes the frame's checksum.
    pub fn header(&self) -> VnetHeader {
        let Some((csum_start, csum_offset)) = self.partial else { return VnetHeader::default() };
        VnetHeader { flags: 1, csum_start, csum_offset, ..VnetHeader::default() }
    }
}

/// The contents of a frame as an independent parser reads them.
#[derive(Clone, Debug)]
pub struct ParsedFrame {
    /// The frame's flow; `None` for frames that are not IP or whose headers are incomplete.
    pub flow: Option<FlowKey>,
    /// The TCP sequence number; 0 for other protocols.
    pub sequence: u32,
    /// The transport payload.
    pub payload: Vec<u8>,
}

impl ParsedFrame {
    /// Parses a frame.
    pub fn of(bytes: &[u8]) -> Self {
        let plain = without_reserved_bits(bytes);
        let bytes = plain.as_deref().unwrap_or(bytes);
        ParsedFrame {
            flow: check::flow_key(bytes, false),
            sequence: check::tcp_fields(bytes, false).map_or(0, |fields| fields.sequence),
            payload: check::payload(bytes, false).unwrap_or_default().to_vec(),
        }
    }
}

/// Returns the frame with VXLAN and Geneve headers whose reserved bits and flags have their usual
/// values; `None` if the frame is not in VXLAN or Geneve.
///
/// Linux enters VXLAN and Geneve whatever the values of these bits, while other parsers stop. A
/// second tunnel is found by the GRO hint, since Linux does not read its header.
pub(crate) fn without_reserved_bits(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut plain = without_bits_of(bytes, udp_payload(bytes)?)?;
    if let Some(hint) = Hint::of(bytes) {
        let port = bytes.get(hint.transport + 2..hint.transport + 4)?;
        let port = u16::from_be_bytes([port[0], port[1]]);
        plain = without_bits_of(&plain, (port, hint.transport + 8)).unwrap_or(plain);
    }
    Some(plain)
}

/// Returns the frame with the usual values of reserved bits in one VXLAN or Geneve header. `port`
/// is the UDP destination port, and `header` the offset of the tunnel header; `None` for other
/// ports.
fn without_bits_of(bytes: &[u8], (port, header): (u16, usize)) -> Option<Vec<u8>> {
    // The bits of the tunnel header to keep, and the bits to set.
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

/// The segmentation instructions of a virtio header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GsoFields {
    /// The segmentation type, `VIRTIO_NET_HDR_GSO_*`.
    pub kind: u8,
    /// Number of payload bytes per segment.
    pub size: u16,
}

/// A packet that the kernel or the engine delivered. It consists of one or more frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultPacket {
    /// The packet with its VLAN tags, starting with the destination MAC address.
    pub bytes: Vec<u8>,
    /// The packet's segmentation type and size; `None` if the packet is a single frame.
    pub cut: Option<GsoFields>,
    /// The position of the packet's partial checksum, as in [`InputFrame::partial`].
    pub partial: Option<(u16, u16)>,
}

/// A packet, and the numbers of the frames that it consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The packet that the kernel or the engine delivered.
    pub packet: ResultPacket,
    /// Numbers of the packet's frames, in the order of their payloads.
    pub frames: Vec<usize>,
}

/// Returns the length of a packet, and its first 240 bytes in hexadecimal, which are enough for the
/// headers of two tunnels.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().take(240).map(|byte| format!("{byte:02x}")).collect();
    format!("{} bytes: {digits}", bytes.len())
}
