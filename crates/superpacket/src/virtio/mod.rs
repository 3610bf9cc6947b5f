//! The `virtio_net_hdr` that TUN/TAP devices (`IFF_VNET_HDR`), packet sockets (`PACKET_VNET_HDR`)
//! and virtio-net put before a packet.
//!
//! [`Header`] is the structure in its four lengths ([`Format`]) and byte orders.
//! [`Header::offload`] checks it against the packet and returns its meaning as an [`Offload`].
//! [`Header::describe`] makes a header from an [`Offload`]. Each field is compared with the packet
//! before it is used:
//!
//! | rule (virtio 1.3, section 5.1.6; the kernel's `virtio_net_hdr_to_skb`, `virtio_net_hdr_tnl_to_skb`) | error |
//! |---|---|
//! | `NEEDS_CSUM`: the two bytes at `csum_start + csum_offset` lie in the packet | [`VirtioError::ChecksumPlace`] |
//! | `NEEDS_CSUM` and `RSC_INFO`, which use the same fields, are not both set | [`VirtioError::Flags`] |
//! | `gso_type` is known, ECN comes with TCP only | [`VirtioError::GsoType`] |
//! | with a `gso_type`, `gso_size` is neither 0 nor 0xFFFF | [`VirtioError::GsoSize`] |
//! | `gso_type` is that of the packet's IP version and transport protocol | [`VirtioError::Protocol`] |
//! | GSO with `NEEDS_CSUM`: `csum_start` is the transport header, `csum_offset` 16 for TCP, 6 for UDP | [`VirtioError::ChecksumStart`], [`VirtioError::ChecksumOffset`] |
//! | UDP segmentation comes with `NEEDS_CSUM` | [`VirtioError::NeedsChecksum`] |
//! | UDP segmentation: at most 128 segments | [`VirtioError::TooManySegments`] |
//! | a tunnel type has one IP version, segments inside it that are not UFO, `NEEDS_CSUM`, and a header of 24 bytes | [`VirtioError::GsoType`], [`VirtioError::NeedsChecksum`], [`VirtioError::Format`] |
//! | `outer_th_offset` and `inner_nh_offset` are those of the packet | [`VirtioError::OuterTransport`], [`VirtioError::InnerNetwork`] |
//! | `UDP_TUNNEL_CSUM`: the outer UDP checksum is not 0 | [`VirtioError::TunnelChecksum`] |
//!
//! In a super-packet with `UDP_TUNNEL_CSUM` the outer UDP checksum field holds the sum of its
//! pseudo-header, and Linux adds the rest for each segment. [`Header::outer_checksum`] returns the
//! value that a packet needs there before it goes to a kernel. An aggregator for a
//! [framing](crate::BatchAggregator::framed) of 24 bytes writes it. The segmenter accepts both
//! forms.
//!
//! A packet whose payload fits `gso_size` is valid, but not a GSO packet. `hdr_len` is a hint and
//! is not read. Flags, hash reports and `num_buffers` without a meaning here are ignored.
//!
//! # What virtio cannot say
//! A header has no place for IPv4 identifications that stay the same in all segments
//! ([`IpId::Fixed`](crate::segment::IpId)): whoever cuts the super-packet behind a virtio header
//! increments the identification. A peer changes nothing else, and [`Header::describe`] does not
//! refuse these. Nor is there a place for a VLAN tag that a device stripped: insert it first.
//!
//! There is no type for CWR on all segments ([`Cwr::All`](crate::segment::Cwr), accurate ECN), of
//! which the first alone would keep it: [`Header::describe`] refuses such super-packets. Linux
//! hands them on all the same, as TCP with CWR and without ECN, which it names for CWR on the first
//! segment: [`Header::offload`] reads them so. Nor is there a type for a tunnel in a tunnel:
//! [`Header::describe`] and [`Header::offload`] refuse these.

mod error;
mod framing;
mod header;
mod offload;

pub use error::VirtioError;
pub use framing::{Framing, HeaderBytes, SplitError};
pub use header::{ByteOrder, Format, Header, flags, gso_type};
pub use offload::Offload;
