//! The `virtio_net_hdr` as tun-rs and lightway declare it. Copy it with the example.

use superpacket::virtio::Header;

/// The header before a super-packet, in the machine's byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VirtioNetHdr {
    /// Flags, `VIRTIO_NET_HDR_F_*`.
    pub flags: u8,
    /// Kind of super-packet, `VIRTIO_NET_HDR_GSO_*`.
    pub gso_type: u8,
    /// Length of the headers; ignored in segmentation, since the packet contains it.
    pub hdr_len: u16,
    /// Payload bytes per segment; the last segment may be shorter.
    pub gso_size: u16,
    /// Offset in bytes from the start of the packet at which the checksum starts to sum.
    pub csum_start: u16,
    /// Offset of the checksum field in bytes from `csum_start`.
    pub csum_offset: u16,
}

impl From<Header> for VirtioNetHdr {
    fn from(header: Header) -> Self {
        let Header { flags, gso_type, hdr_len, gso_size, csum_start, csum_offset, .. } = header;
        VirtioNetHdr { flags, gso_type, hdr_len, gso_size, csum_start, csum_offset }
    }
}

impl From<VirtioNetHdr> for Header {
    fn from(header: VirtioNetHdr) -> Self {
        let VirtioNetHdr { flags, gso_type, hdr_len, gso_size, csum_start, csum_offset } = header;
        Header { flags, gso_type, hdr_len, gso_size, csum_start, csum_offset, ..Header::default() }
    }
}
