//! Errors of a `virtio_net_hdr`, mostly one per field.

use crate::segment::{GsoKind, Unsupported};
use crate::wire::Refusal;

/// The reason why a `virtio_net_hdr` contradicts itself or its packet, or why none can describe a
/// packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VirtioError {
    /// There are fewer bytes than a header of this format has.
    #[error("virtio_net_hdr: {needed} bytes are needed, there are {got}")]
    Short {
        /// Length of the format in bytes.
        needed: usize,
        /// Number of bytes that were given.
        got: usize,
    },
    /// The bits of `flags` exclude each other.
    #[error("flags: {0:#04x} has both NEEDS_CSUM and RSC_INFO")]
    Flags(u8),
    /// The `gso_type` is unknown or contradicts itself.
    #[error("gso_type: {0:#04x} is unknown or contradicts itself")]
    GsoType(u8),
    /// The `gso_size` is 0, or 0xFFFF, which the kernel keeps for itself (`GSO_BY_FRAGS`).
    #[error("gso_size: {0} is not valid")]
    GsoSize(u16),
    /// The `gso_type` is not that of the packet's headers.
    #[error("gso_type: {gso_type:#04x} is not the type of the packet's headers")]
    Protocol {
        /// The type in the header.
        gso_type: u8,
    },
    /// The packet's headers, which the `gso_type` describes, could not be read.
    #[error("gso_type: the packet's headers cannot be read: {0}")]
    Headers(Refusal),
    /// A packet of this `gso_type` needs a partial checksum (`NEEDS_CSUM`), which the receiver
    /// completes.
    #[error("flags: this packet needs NEEDS_CSUM")]
    NeedsChecksum,
    /// The checksum field does not lie in the packet.
    #[error("csum_start, csum_offset: the checksum ends at byte {needed}, the packet at {got}")]
    ChecksumPlace {
        /// End of the checksum field, in bytes from the start of the packet.
        needed: usize,
        /// Length of the packet in bytes.
        got: usize,
    },
    /// The `csum_start` is not the offset of the transport header.
    #[error("csum_start: {got}, but the transport header starts at {expected}")]
    ChecksumStart {
        /// Offset of the transport header, in bytes from the start of the packet.
        expected: u16,
        /// The value of the field.
        got: u16,
    },
    /// The `csum_offset` is not the offset of the protocol's checksum.
    #[error("csum_offset: {got}, but the checksum lies at {expected}")]
    ChecksumOffset {
        /// Offset of the checksum in the transport header, in bytes.
        expected: u16,
        /// The value of the field.
        got: u16,
    },
    /// The packet has more datagrams than the kernel accepts (`UDP_MAX_SEGMENTS`).
    #[error("gso_size: {payload} bytes in segments of {size} are more than 128")]
    TooManySegments {
        /// Payload of the packet in bytes.
        payload: usize,
        /// The segment size in bytes.
        size: usize,
    },
    /// The `outer_th_offset` is not the offset of the outer UDP header.
    #[error("outer_th_offset: {got}, but the outer UDP header starts at {expected}")]
    OuterTransport {
        /// Offset of the outer UDP header, in bytes from the start of the packet.
        expected: u16,
        /// The value of the field.
        got: u16,
    },
    /// The `inner_nh_offset` is not the offset of the inner IP header.
    #[error("inner_nh_offset: {got}, but the inner IP header starts at {expected}")]
    InnerNetwork {
        /// Offset of the inner IP header, in bytes from the start of the packet.
        expected: u16,
        /// The value of the field.
        got: u16,
    },
    /// The flags have `UDP_TUNNEL_CSUM`, but the outer UDP header has no checksum.
    #[error("flags: UDP_TUNNEL_CSUM, but the outer UDP checksum is 0")]
    TunnelChecksum,
    /// The header's format has no fields for the offsets of a tunnel.
    #[error("gso_type: a tunnel needs a header of 24 bytes")]
    Format,
    /// Virtio has no `gso_type` for segments of this kind: DCCP, or in a tunnel that is not over
    /// UDP.
    #[error("gso_type: there is none for {0:?} in these headers")]
    Unnamed(GsoKind),
    /// Virtio has no type for TCP segments that all have CWR: the receiver leaves it on the first
    /// only.
    #[error("gso_type: there is none for CWR on all segments")]
    CwrOnAll,
    /// The receiver of the header cannot segment the packet.
    #[error("gso_type: the receiver cannot segment {0}")]
    Unsupported(Unsupported),
}

impl VirtioError {
    /// Returns the kernel's name of the wrong field, or of the structure if it is too short.
    pub const fn field(&self) -> &'static str {
        match self {
            VirtioError::Short { .. } => "virtio_net_hdr",
            VirtioError::Flags(_) | VirtioError::NeedsChecksum | VirtioError::TunnelChecksum => {
                "flags"
            }
            VirtioError::GsoType(_)
            | VirtioError::Protocol { .. }
            | VirtioError::Headers(_)
            | VirtioError::Format
            | VirtioError::Unnamed(_)
            | VirtioError::CwrOnAll
            | VirtioError::Unsupported(_) => "gso_type",
            VirtioError::GsoSize(_) | VirtioError::TooManySegments { .. } => "gso_size",
            VirtioError::ChecksumPlace { .. } | VirtioError::ChecksumStart { .. } => "csum_start",
            VirtioError::ChecksumOffset { .. } => "csum_offset",
            VirtioError::OuterTransport { .. } => "outer_th_offset",
            VirtioError::InnerNetwork { .. } => "inner_nh_offset",
        }
    }
}
