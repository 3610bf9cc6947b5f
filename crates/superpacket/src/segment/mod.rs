//! Segmentation of a super-packet into the packets that a wire would have carried.
//!
//! [`Segmenter`] needs only the packet's bytes and a [`Gso`]. It parses the headers itself, checks
//! every length against the packet, prepares one header as a template and patches it for each
//! segment. Payload stays in place ([`segment`](Segmenter::segment): header bytes and ranges), or
//! is copied and summed in one pass ([`segment_linear`](Segmenter::segment_linear)).
//!
//! | field | in each segment |
//! |---|---|
//! | IPv4 total length, IPv6 payload length, UDP length, PPPoE length | the segment's |
//! | IPv4 identification, of the innermost header and of each outer one | one more each time, or the same ([`IpId`]) |
//! | IPv4 header checksum | computed, canonical |
//! | TCP sequence number | advances by the payload |
//! | FIN, PSH | on the last only |
//! | CWR | on the first only, or on all ([`Cwr`]) |
//! | DCCP sequence number | one more each time, modulo 2^24 or 2^48 |
//! | transport checksum | full, or left to a device ([`ChecksumOutput`]); a UDP checksum of 0 stays 0, a computed 0 is sent as 0xFFFF |
//! | checksum of a tunnel | full, by the local checksum offload where the inner checksum makes it known; an outer UDP checksum of 0 stays 0 |
//! | IPv6 hop-by-hop header with a jumbo payload option alone | removed, as the kernel does with BIG TCP |
//! | all else | copied |
//!
//! Packets of any protocol can be [fragmented](Segmenter::fragment), over IPv6 only if the caller
//! acts for the packet's source. A datagram to a tunnel's port that carries no packet is plain UDP
//! ([`parse_datagram`](crate::wire::parse_datagram)). A UDP super-packet whose partial checksum
//! belongs to an outer UDP header is segmented at that header, whatever its segments carry.
//!
//! Bytes after the end of the IP packet (padding) belong to no segment. The pseudo-header has the
//! addresses that [`checksum_addresses`](crate::wire::checksum_addresses) finds: with an IPv4
//! source route or IPv6 routing header, the final destination. A partial checksum that is not 0
//! already holds the sender's pseudo-header, which is kept, as in the kernel.

mod checked;
mod counters;
mod error;
mod fragment;
mod kind;
mod options;
mod output;
mod payload;
mod prepare;
mod segmenter;
mod source;
mod support;
mod template;

pub use counters::SegmentCounters;
pub use error::SegmentError;
pub use kind::{ChecksumForm, Cwr, Gso, GsoKind, IpId, MaxSegments, SegmentSize};
pub use options::{ChecksumOutput, SegmentOptions};
pub use output::{
    BackToBack, EachBuffer, PayloadRange, Portion, Segment, SegmentBuffers, SegmentPlan,
    WrittenSegment,
};
pub use segmenter::Segmenter;
pub use source::{GsoPacket, Segmentable};
pub use support::{GsoSupport, LinkHeaders, PacketKind, PacketKinds, Unsupported};
