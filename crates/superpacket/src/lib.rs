//! The stateless offloads of network devices, in user space: **aggregate** received packets (GRO,
//! LRO) and **segment** sent ones (TSO, GSO, USO).
//!
//! A network stack costs per packet, not per byte. This engine lets it see few large packets: it
//! joins received packets of a flow as early as possible, and cuts large ones as late as possible.
//! No I/O, no threads, no clock, no unsafe code, no allocation in steady state. Buffers are the
//! caller's own.
//!
//! ```
//! use superpacket::{BatchAggregator, HashKey, Layer, Policy, SegmentOptions, Segmenter};
//!
//! # let packets: Vec<Vec<u8>> = superpacket_traffic::workload::w1(40);
//! // 40 TCP segments of one flow, in Ethernet frames.
//! let mut aggregator = BatchAggregator::new(Layer::Ethernet, Policy::gro(), HashKey::random());
//! let mut segmenter = Segmenter::new();
//! let (mut super_packets, mut wire) = (0, Vec::new());
//! aggregator.poll(&packets, |packet| {
//!     super_packets += 1;
//!     // For a port that takes super-packets, `packet.slices()`. For one that does not:
//!     let plan = segmenter.segment(&packet, &SegmentOptions::default(), |segment| {
//!         let mut frame = Vec::new();
//!         segment.copy_to(&mut frame);
//!         wire.push(frame);
//!     });
//!     plan.map(drop)
//! })?;
//! assert_eq!((super_packets, wire), (1, packets), "the very same frames");
//! # Ok::<(), superpacket::SegmentError>(())
//! ```
//!
//! # Where to begin
//!
//! **A VPN** has a TUN device. One that was opened with `IFF_VNET_HDR` reads and writes packets of
//! 64 KB behind a `virtio_net_hdr`. [`Segmenter::split`] cuts the packets that are read. An
//! aggregator made by [`BatchAggregator::framed`] joins those to be written:
//! [`poll_gathered`](BatchAggregator::poll_gathered) for `writev` (example `tun.rs`), or
//! [`join_in_place`](BatchAggregator::join_in_place) in the VPN's own buffers, into which
//! [`EachBuffer`] splits (example `in_place.rs`). For devices without such a header (WinTUN, utun),
//! take [`BatchAggregator::new`], and limit lengths to what the device takes
//! ([`Policy::with_max_bytes`]).
//!
//! **A stack** receives by [`BatchAggregator::poll`] with [`Policy::gro`]: merged packets have
//! complete checksums, and metadata with the segment size. It sends 64 KB at a time as a
//! [`GsoPacket`], which [`Segmenter::segment_linear`] cuts into the driver's buffers. The crate
//! `superpacket-smoltcp` does this around any device of smoltcp.
//!
//! **A switch** keeps packets in buffers that it must give back: ring slots, frames of a UMEM,
//! mbufs. [`Aggregator`] owns them while a packet is held and hands them to the sink: no payload is
//! copied. [`RxPacket`] carries what a device knows, [`PacketBatch`] takes packets to another
//! thread, and [`Segmenter::segment`] cuts into headers and ranges for descriptors. The rest of a
//! switch is in the crates `superpacket-steer` and `superpacket-bridge`. Where frames lie in a
//! UMEM, [`BatchAggregator::poll`] joins them there, and segments are cut into free ones (example
//! `umem.rs`).
//!
//! ```
//! use superpacket::{Aggregator, HashKey, Policy, RxPacket, SuperPacket};
//!
//! # let frames: Vec<Vec<u8>> = superpacket_traffic::workload::w1(40);
//! # let (mut sent, now) = (Vec::new(), 0);
//! let mut aggregator = Aggregator::new(Policy::gro(), HashKey::random());
//! let mut poll: Vec<_> = frames.into_iter().map(RxPacket::new).collect();
//! let mut sink = |mut packet: SuperPacket<'_, Vec<u8>>| {
//!     // The header must be copied. The buffers may be kept until they are sent.
//!     sent.push((packet.header().to_vec(), packet.take_pieces().collect::<Vec<_>>()));
//! };
//! aggregator.receive_batch(&mut poll, now, &mut sink);
//! aggregator.poll_end(now, &mut sink);
//! assert_eq!((sent.len(), sent[0].1.len()), (1, 40));
//! ```
//!
//! # What each call verifies, copies and holds
//!
//! | call | verified | copied | held when it returns |
//! |---|---|---|---|
//! | [`Aggregator::receive_batch`] | what may merge: lengths, IPv4 header checksums, and transport checksums that the device has not verified (GRO: that of a flow's first packet only when a second one comes) | headers of merged packets; with [`Storage::Linear`](aggregate::Storage::Linear) all of it | flows and their buffers, until [`poll_end`](Aggregator::poll_end) or for the [hold time](Policy::hold_time) |
//! | [`BatchAggregator::poll`] | the same | the same | nothing |
//! | [`BatchAggregator::poll_gathered`] | the same | the same; the sink's `writev` takes payload from where it lies | nothing |
//! | [`BatchAggregator::join_in_place`] | the same | payload, once, behind the first packet of each super-packet, in its buffer | nothing |
//! | [`Segmenter::segment`] | all lengths, and that the headers are of the [kind](GsoKind) to be cut | one header for each segment | nothing |
//! | [`Segmenter::segment_linear`] | the same | headers and payload, summed in the same pass | nothing |
//! | [`Segmenter::split`] | the same, and each field of the `virtio_net_hdr` against the packet | the same | nothing |
//! | [`Segmenter::fragment`] | the outermost IP header and its lengths | one header for each fragment | nothing |
//!
//! A packet that does not merge leaves unchanged, bit for bit and in its flow's order, even with a
//! wrong checksum: an aggregator drops no packet. [`AggregateCounters`] has one [`Reason`] for each
//! packet that left. A segmenter computes new checksums without verifying the old one.
//!
//! # If a sink fails
//!
//! A sink may return a `Result`. Its error ends the call, which returns it, and no packet is lost.
//!
//! | call | packet that was refused | packets held | packets not yet read | how to go on |
//! |---|---|---|---|---|
//! | those of [`Aggregator`] | in the aggregator, unless the sink took its [pieces](SuperPacket::take_pieces) | in the aggregator | in the caller's vector | the next call that emits gives the refused packet first |
//! | [`poll`](BatchAggregator::poll), [`poll_gathered`](BatchAggregator::poll_gathered) | in the aggregator, by index | in the aggregator, by index | in the aggregator, by index | [`resume`](BatchAggregator::resume), [`resume_gathered`](BatchAggregator::resume_gathered) with the same packets; a new `poll` gives them up |
//!
//! [`join_in_place`](BatchAggregator::join_in_place) has no sink: the caller writes the buffers
//! whose indices it returns. A segmenter checks everything before its first segment.
//!
//! # Complete or partial checksums
//!
//! | merged packets go to | checksums | by |
//! |---|---|---|
//! | something that verifies them: smoltcp and other stacks, WinTUN, utun, a capture file | complete | [`Policy::gro`] and [`BatchAggregator::new`], as they are |
//! | something that completes them: a TUN or TAP device with a `virtio_net_hdr`, a device that computes checksums | partial | [`BatchAggregator::framed`], or [`Policy::with_partial_checksums`] |
//!
//! The wrong choice loses packets: a stack takes a partial checksum for a damaged packet, and a
//! super-packet with a complete one has no valid `virtio_net_hdr`. A complete checksum needs no
//! second pass over payload, whose sums are known since it was verified. A packet that came with a
//! partial checksum and merged with no other leaves with it;
//! [`complete_partial`](checksum::complete_partial) completes it.
//!
//! # Trusted input
//!
//! Checksums are verified before packets merge, unless a device has verified them. So a damaged
//! packet leaves alone, with its own checksum, and its receiver drops it.
//!
//! [`Policy::with_trusted_input`] gives this up where merged packets leave with partial checksums:
//! checksums that no device has verified count as correct, and no payload is read. A damaged packet
//! may then merge, and whoever completes the partial checksum makes it correct. A cipher is no
//! reason to do so: it proves that the peer sent these bytes, not that the peer's network delivered
//! them intact. Lengths and IPv4 header checksums are verified in any case.
//!
//! # Limits
//!
//! [`Policy`] sets the limits; its defaults are 65,535 bytes in a packet (BIG TCP: up to 524,280),
//! 64 datagrams in a UDP super-packet, 1,024 flows and 32 MiB held. A received packet has at most
//! [17 buffers](packet::MAX_BUFFERS), a gathered one at most 1,024 slices, one call at most
//! `u32::MAX` packets. Work per packet and memory do not depend on the traffic if the [`HashKey`]
//! is random.
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `std` | yes | [`BatchAggregator::poll_gathered`]: packets as `IoSlice`s |
//! | `os-random` | yes | [`HashKey::random`] |
//! | `bytes` | no | `BytesMut` as a [`PacketBuffer`] and as [`SegmentBuffers`] |
//!
//! Without default features the crate is `no_std` with `alloc`, and the caller gives random bits to
//! [`HashKey::new`].
//!
//! # Promises
//!
//! Each is a test: packets of a flow leave in the order they came; in GRO mode
//! `segment(aggregate(x)) == x`, byte for byte, where of a packet that came as a super-packet its
//! segments count (all but PSH, if the policy [gives it up](Policy::merge_past_push)); no packet is
//! lost, doubled or invented; what is not understood passes bit for bit; no length or offset from
//! the wire is used unchecked; payload is read only for a checksum that nobody has verified, or
//! that only the segments of a super-packet have, and once.
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(any(test, feature = "std"))]
#[cfg_attr(test, macro_use)]
extern crate std;

pub mod aggregate;
pub mod buffer;
pub mod checksum;
pub mod memory;
pub mod order;
pub mod packet;
pub mod packet_batch;
mod reason;
pub mod segment;
pub mod super_packet;
pub mod virtio;
pub mod wire;

pub use aggregate::{
    AggregateCounters, Aggregator, BatchAggregator, HashKey, NoHeadroom, Policy, Reason,
};
pub use buffer::{PacketBuffer, SliceBuffer};
pub use packet::{FlowHash, Layer, RxChecksum, RxPacket, VlanTag};
pub use packet_batch::PacketBatch;
pub use segment::{
    BackToBack, ChecksumOutput, EachBuffer, Gso, GsoKind, GsoPacket, SegmentBuffers, SegmentError,
    SegmentOptions, SegmentPlan, SegmentSize, Segmenter,
};
pub use super_packet::{Metadata, Outcome, Sink, SuperPacket};
pub use superpacket_simd::Simd;
pub use virtio::{Framing, SplitError};

/// Runs the example of the crate's README with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
