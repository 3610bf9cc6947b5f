//! The stateless offloads of network devices, in user space: **aggregate** what arrives (LRO, GRO), **segment** what leaves (TSO, GSO).
//!
//! A network stack costs per packet, not per byte. This engine lets it see few large packets: it joins received packets of a flow as early as
//! possible ([`aggregate`]), and cuts large ones into what a wire carries as late as possible ([`segment`]). No I/O, no threads, no clock, no unsafe
//! code, and no allocation in steady state; buffers are the caller's own.
//!
//! ```
//! use superpacket::Simd;
//! use superpacket::aggregate::{Aggregator, HashKey, Policy};
//! use superpacket::packet::RxPacket;
//! use superpacket::segment::{ChecksumOutput, SegmentOptions, Segmenter};
//! use superpacket::super_packet::SuperPacket;
//!
//! # let frames: Vec<Vec<u8>> = superpacket_traffic::workload::w1(40);
//! // Any buffers will do: ring slots, UMEM chunks, vectors. Here: 40 full-size TCP segments in Ethernet frames.
//! let mut poll: Vec<_> = frames.iter().map(|frame| RxPacket::new(&frame[..])).collect();
//! // The key should be random where others choose the traffic.
//! let mut aggregator = Aggregator::new(Policy::gro(), HashKey::new(42));
//! let mut segmenter = Segmenter::new();
//!
//! let (mut large, mut wire) = (0, Vec::new());
//! let mut sink = |packet: SuperPacket<'_, &[u8]>| {
//!     large += 1;
//!     // Hand the packet to whoever takes super-packets, or cut it again for a port that does not: the very same frames come out.
//!     let options = SegmentOptions { checksum: ChecksumOutput::AsMerged, ..SegmentOptions::default() };
//!     let cut = segmenter.segment(&packet, &options, |segment| {
//!         let mut frame = Vec::new();
//!         segment.copy_to(&mut frame);
//!         wire.push(frame);
//!     });
//!     assert!(cut.is_ok());
//! };
//! aggregator.receive_batch(&mut poll, 0, &mut sink);
//! aggregator.poll_end(0, &mut sink);
//!
//! assert_eq!(large, 1);
//! assert_eq!(wire, frames);
//! assert_eq!(aggregator.counters().merged, 39);
//! ```
//!
//! The promises that the engine keeps, each a test: packets of a flow leave in the order they came; in GRO mode `segment(aggregate(x)) == x`, byte for byte; none is lost, doubled
//! or invented; work per packet and memory do not depend on the traffic; what is not understood passes bit for bit; no length or offset from the wire is used unchecked;
//! payload is read only for a checksum that nobody has verified, and once.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(any(test, feature = "std"))]
#[cfg_attr(test, macro_use)]
extern crate std;

pub mod aggregate;
pub mod buffer;
pub mod checksum;
pub mod memory;
pub mod packet;
pub mod packet_batch;
pub mod segment;
pub mod super_packet;
pub mod virtio;
pub mod wire;

pub use aggregate::{Aggregator, BatchAggregator, Counters, HashKey, NoHeadroom, Policy, Reason};
pub use buffer::{PacketBuffer, SliceBuffer};
pub use packet::{FlowHash, Layer, RxChecksum, RxPacket, VlanTag};
pub use packet_batch::PacketBatch;
pub use segment::{BackToBack, ChecksumOutput, EachBuffer, Gso, GsoKind, GsoPacket, SegmentError, SegmentOptions, SegmentSize, Segmenter};
pub use super_packet::{Metadata, Outcome, Sink, SuperPacket};
pub use superpacket_simd::Simd;
pub use virtio::{Framing, SplitError};

/// Runs the example of the crate's README with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
