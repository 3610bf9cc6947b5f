//! The interface of lightway's `TcpGroBatch` (pull request 504), `append` and `take`, implemented
//! with the engine.
//!
//! Callers of these functions can try superpacket by changing an import. Copy this file and
//! `virtio_net_hdr/mod.rs`; `main` runs it in memory.
//!
//! Differences: IPv6 merges too. A batch holds one flow, as its callers expect. For many
//! interleaved flows, `superpacket_tun::Writer` merges all of them.

mod virtio_net_hdr;

use std::mem;

use bytes::BytesMut;
use superpacket::virtio::{ByteOrder, Format, Header};
use superpacket::{BatchAggregator, Framing, HashKey, Policy, Reason};

pub use virtio_net_hdr::VirtioNetHdr;

/// Maximum segments of a batch.
pub const MAX_GSO_SEGS: usize = 64;

/// The result of adding a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroAppend {
    /// The packet is in the batch.
    Coalesced,
    /// The packet is in the batch, which must be taken now.
    CoalescedFlush,
    /// The packet is not in the batch, which is unchanged and must be written before the packet.
    Incompatible,
}

/// Collects TCP segments of one flow.
#[derive(Debug)]
pub struct TcpGroBatch {
    segments: Vec<BytesMut>,
    /// Length of the merged packet in bytes.
    length: usize,
    max_len: usize,
    aggregator: BatchAggregator,
}

impl Default for TcpGroBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl TcpGroBatch {
    /// Returns a batch of up to 65,535 bytes.
    pub fn new() -> Self {
        Self::with_max_len(65_535)
    }

    /// Returns a batch of up to `max_len` bytes.
    pub fn with_max_len(max_len: usize) -> Self {
        let aggregator = BatchAggregator::framed(Framing::TUN, Policy::gro(), HashKey::random());
        TcpGroBatch { segments: Vec::new(), length: 0, max_len: max_len.min(65_535), aggregator }
    }

    /// Returns whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Tries to add an IP packet.
    pub fn append(&mut self, pkt: &[u8]) -> GroAppend {
        // The engine receives the last segment and this one, and verifies both. The first segment
        // is paired with an empty packet, since the engine does not examine single packets.
        let last = self.segments.last().map_or(&[][..], |segment| segment);
        let (mut joined, mut reason) = (None, None);
        self.aggregator.poll(&[last, pkt], |packet| {
            let is_last = packet
                .pieces()
                .last()
                .and_then(|piece| piece.buffer())
                .is_some_and(|buffer| buffer.packet() == 1);
            if is_last {
                reason = Some(packet.metadata.reason);
                joined = packet.is_merged().then(|| packet.length() - last.len());
            }
        });
        let more = match (self.segments.is_empty(), joined) {
            (true, None) if reason == Some(Reason::PollEnd) => pkt.len(),
            (false, Some(payload)) => payload,
            _ => return GroAppend::Incompatible,
        };
        if self.length + more > self.max_len {
            return GroAppend::Incompatible;
        }
        self.length += more;
        self.segments.push(pkt.into());
        let ends = reason != Some(Reason::PollEnd) || self.segments.len() >= MAX_GSO_SEGS;
        if ends { GroAppend::CoalescedFlush } else { GroAppend::Coalesced }
    }

    /// Takes the merged packet and its header. If there are several, because the pattern of
    /// identifications changed, the next call takes the next one.
    pub fn take(&mut self) -> Option<(BytesMut, VirtioNetHdr)> {
        if self.segments.len() < 2 {
            self.length = 0;
            return self.segments.pop().map(|segment| (segment, VirtioNetHdr::default()));
        }
        let (segments, mut taken) = (mem::take(&mut self.segments), None);
        self.aggregator.poll(&segments, |packet| {
            if taken.is_none() {
                let mut bytes = BytesMut::with_capacity(packet.length());
                packet.slices().for_each(|slice| bytes.extend_from_slice(slice));
                let described = Framing::TUN
                    .header(&packet)
                    .map(|header| Header::read(&header, Format::Plain, ByteOrder::NATIVE));
                taken = Some((bytes, described, packet.metadata.packets as usize));
            }
        });
        let (bytes, described, count) = taken?;
        self.segments = segments.into_iter().skip(count).collect();
        self.length -= bytes.len().min(self.length);
        Some((bytes, described.ok()?.ok()?.into()))
    }
}

fn main() {
    let mut batch = TcpGroBatch::new();
    println!("no packet is {:?}", batch.append(&[]));
}

/// The test cases of lightway's `gro.rs` for `append` and `take`, rewritten. Those of `take_raw`
/// correspond to `Joiner`, and are tested there.
#[cfg(test)]
mod tests {
    use superpacket::{GsoPacket, Layer, SegmentOptions, Segmenter};
    use superpacket_traffic::frame::{ACK, FIN, Frame, PSH};

    use super::*;

    fn frame(index: u32, payload: usize) -> Frame {
        Frame::tcp4(0xaabb_0000 + index * payload as u32, payload)
            .with_id(0x42 + index as u16)
            .at_ip()
    }

    fn segment(index: u32, payload: usize) -> Vec<u8> {
        frame(index, payload).to_bytes()
    }

    /// Returns the packets in a super-packet.
    fn split(bytes: &[u8], header: &VirtioNetHdr) -> Vec<Vec<u8>> {
        let header = Header::from(*header);
        let offload =
            header.offload(Format::Plain, bytes, bytes.len(), Layer::Ip).expect("it is valid");
        let packet = GsoPacket::linear(&bytes, offload.gso)
            .with_layer(Layer::Ip)
            .with_checksum(offload.checksum);
        let mut out = Vec::new();
        let plan = Segmenter::new()
            .segment_linear(&packet, &SegmentOptions::default(), &mut out)
            .expect("it can be cut");
        out.chunks(plan.segment_length).map(<[u8]>::to_vec).collect()
    }

    #[test]
    fn three_full_segments_coalesce() {
        let mut batch = TcpGroBatch::new();
        assert!(batch.is_empty());
        assert!((0..3).all(|index| batch.append(&segment(index, 500)) == GroAppend::Coalesced));
        let (bytes, header) = batch.take().expect("there are three");
        assert!(batch.is_empty());
        assert_eq!(
            (bytes.len(), &bytes[2..4], &bytes[4..6]),
            (1540, &1540u16.to_be_bytes()[..], &[0, 0x42][..])
        );
        let expected = VirtioNetHdr {
            flags: 1,
            gso_type: 1,
            hdr_len: 40,
            gso_size: 500,
            csum_start: 20,
            csum_offset: 16,
        };
        assert_eq!(header, expected);
    }

    #[test]
    fn round_trip_with_gso_split() {
        let segments: Vec<_> = (0..4).map(|index| segment(index, 1000)).collect();
        let mut batch = TcpGroBatch::new();
        assert!(segments.iter().all(|segment| batch.append(segment) == GroAppend::Coalesced));
        let (bytes, header) = batch.take().expect("there are four");
        assert_eq!(split(&bytes, &header), segments);
    }

    #[test]
    fn short_trailing_segment_flushes() {
        let short = frame(2, 300).with(|frame| frame.payload.truncate(120)).to_bytes();
        let segments = [segment(0, 300), segment(1, 300), short];
        let mut batch = TcpGroBatch::new();
        let appended: Vec<_> = segments.iter().map(|segment| batch.append(segment)).collect();
        assert_eq!(
            appended,
            [GroAppend::Coalesced, GroAppend::Coalesced, GroAppend::CoalescedFlush]
        );
        let (bytes, header) = batch.take().expect("there are three");
        assert_eq!(split(&bytes, &header), segments);
    }

    #[test]
    fn psh_and_fin_mid_train_flush_and_propagate() {
        for flag in [PSH, FIN] {
            let mut batch = TcpGroBatch::new();
            assert_eq!(batch.append(&segment(0, 200)), GroAppend::Coalesced);
            assert_eq!(
                batch.append(&frame(1, 200).with_flags(ACK | flag).to_bytes()),
                GroAppend::CoalescedFlush
            );
            let (bytes, _) = batch.take().expect("there are two");
            assert_eq!((bytes.len(), u16::from(bytes[33])), (440, ACK | flag));
        }
    }

    #[test]
    fn sequence_gap_incompatible_batch_unchanged() {
        let gap = segment(3, 100);
        let mut batch = TcpGroBatch::new();
        let appended =
            [segment(0, 100), segment(1, 100), gap.clone()].map(|segment| batch.append(&segment));
        assert_eq!(appended, [GroAppend::Coalesced, GroAppend::Coalesced, GroAppend::Incompatible]);
        assert_eq!(
            batch.take().map(|(bytes, header)| (bytes.len(), header.gso_size)),
            Some((240, 100))
        );
        assert_eq!(batch.append(&gap), GroAppend::Coalesced);
        let (bytes, header) = batch.take().expect("there is one");
        assert_eq!((&bytes[..], header), (&gap[..], VirtioNetHdr::default()));
    }

    #[test]
    fn flow_and_header_mismatches_incompatible() {
        let options = |options: &[u8]| {
            let options = options.to_vec();
            move |frame: &mut Frame| frame.tcp_mut().options = options
        };
        let mut batch = TcpGroBatch::new();
        assert_eq!(batch.append(&segment(0, 100)), GroAppend::Coalesced);
        for other in [
            frame(1, 100).with_tcp(|tcp| tcp.acknowledgement += 1),
            frame(1, 100).with_tcp(|tcp| tcp.source_port += 1),
            frame(1, 100).with_ipv4(|ip| ip.ttl -= 1),
            frame(1, 100).with_tcp(|tcp| tcp.window += 1),
            frame(1, 100).with(options(&[1, 1, 1, 0])),
        ] {
            assert_eq!(batch.append(&other.to_bytes()), GroAppend::Incompatible);
        }
        assert_eq!(batch.append(&segment(1, 100)), GroAppend::Coalesced);

        let mut batch = TcpGroBatch::new();
        assert_eq!(
            batch.append(&frame(0, 100).with(options(&[1; 4])).to_bytes()),
            GroAppend::Coalesced
        );
        assert_eq!(
            batch.append(&frame(1, 100).with(options(&[1, 1, 1, 0])).to_bytes()),
            GroAppend::Incompatible
        );
        assert_eq!(
            batch.append(&frame(1, 100).with(options(&[1; 4])).to_bytes()),
            GroAppend::Coalesced
        );
    }

    #[test]
    fn pure_ack_other_protocols_and_starting_psh_incompatible() {
        let mut mangled = segment(0, 100);
        mangled[0] = 0x60;
        let mut batch = TcpGroBatch::new();
        for packet in [
            segment(0, 0),
            Frame::udp4(100).at_ip().to_bytes(),
            mangled,
            frame(0, 100).with_flags(ACK | PSH).to_bytes(),
            Vec::new(),
        ] {
            assert_eq!(batch.append(&packet), GroAppend::Incompatible);
            assert!(batch.is_empty() && batch.take().is_none());
        }
    }

    #[test]
    fn byte_cap_incompatible_nothing_appended() {
        let mut batch = TcpGroBatch::new();
        let appended = [0, 1, 2].map(|index| batch.append(&segment(index, 30_000)));
        assert_eq!(appended, [GroAppend::Coalesced, GroAppend::Coalesced, GroAppend::Incompatible]);
        assert_eq!(
            batch.take().map(|(bytes, header)| (bytes.len(), header.gso_size)),
            Some((60_040, 30_000))
        );
        let mut small = TcpGroBatch::with_max_len(250);
        let appended = [0, 1, 2].map(|index| small.append(&segment(index, 100)));
        assert_eq!(appended, [GroAppend::Coalesced, GroAppend::Coalesced, GroAppend::Incompatible]);
    }

    #[test]
    fn single_segment_take_untouched_and_oversized_follower_incompatible() {
        let first = Frame::tcp4(1, 100).at_ip().to_bytes();
        let mut batch = TcpGroBatch::new();
        assert_eq!(batch.append(&first), GroAppend::Coalesced);
        assert_eq!(
            batch.append(&Frame::tcp4(101, 150).at_ip().to_bytes()),
            GroAppend::Incompatible
        );
        let (bytes, header) = batch.take().expect("there is one");
        assert_eq!(
            (&bytes[..], header, batch.is_empty()),
            (&first[..], VirtioNetHdr::default(), true)
        );
    }

    #[test]
    fn segment_cap_flushes_at_max_gso_segs() {
        let mut batch = TcpGroBatch::new();
        for index in 0..MAX_GSO_SEGS as u32 {
            let expected =
                if index == 63 { GroAppend::CoalescedFlush } else { GroAppend::Coalesced };
            assert_eq!(batch.append(&segment(index, 8)), expected, "{index}");
        }
        assert_eq!(
            batch.take().map(|(bytes, header)| (bytes.len(), header.gso_size)),
            Some((40 + 64 * 8, 8))
        );
    }
}
