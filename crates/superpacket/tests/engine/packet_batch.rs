//! [`PacketBatch`]: what goes through one, and what is dropped with it.
use std::sync::Arc;

use crate::support::{Aggregator, AnyBytes, bytes_in};
use superpacket::aggregate::{HashKey, Policy, Storage};
use superpacket::segment::{ChecksumOutput, SegmentOptions, Segmenter};
use superpacket::{PacketBatch, RxPacket, SuperPacket};
use superpacket_traffic::workload::w1;

/// Aggregates frames, 41 in a poll, sends what they merge to through a batch, and cuts it
/// again. Returns the frames after, and the number of packets between.
fn through(policy: Policy, frames: &[Vec<u8>]) -> (Vec<Vec<u8>>, usize) {
    let mut aggregator = Aggregator::new(policy, HashKey::new(1));
    let (mut batch, mut between) = (PacketBatch::new(), 0);
    let mut segmenter = Segmenter::new();
    let mut sent = Vec::new();
    for part in frames.chunks(41) {
        let mut sink = |mut packet: SuperPacket<'_, Vec<u8>>| {
            batch.push(&mut packet);
            assert_eq!(packet.pieces().len(), 0);
        };
        let mut packets: Vec<_> = part.iter().cloned().map(RxPacket::new).collect();
        aggregator.receive_batch(&mut packets, 0, &mut sink);
        aggregator.poll_end(0, &mut sink);
        let packets = batch.len();
        between += packets;
        for left in (0..packets).rev() {
            let packet = batch.next_packet().expect("there are more");
            let options = SegmentOptions::default().with_checksum(ChecksumOutput::AsMerged);
            if packet.is_merged() {
                let cut =
                    segmenter.segment(&packet, &options, |segment| sent.push(bytes_in(&segment)));
                assert!(cut.is_ok());
            } else {
                let mut frame = Vec::new();
                packet.copy_to(&mut frame);
                sent.push(frame);
            }
            assert_eq!(batch.len(), left);
        }
        assert!(batch.next_packet().is_none() && batch.is_empty());
        // The second time it is used again.
        batch.clear();
    }
    (sent, between)
}

#[test]
fn what_goes_through_is_what_came() {
    // Two runs, and a frame of no known protocol.
    let mut came = w1(40);
    came.push(vec![0xff; 60]);
    came.extend(w1(7));
    for storage in [Storage::Fragments, Storage::Linear] {
        let (mut left, between) = through(Policy::gro().with_storage(storage), &came);
        assert!(between < 6, "{between} of 48: it was merged");
        let mut came = came.clone();
        came.sort();
        left.sort();
        assert_eq!(came, left);
    }
}

#[test]
fn what_is_not_taken_is_dropped() {
    let bytes: Arc<[u8]> = Arc::new([7; 60]);
    let mut batch = PacketBatch::new();
    let mut aggregator = Aggregator::new(Policy::gro(), HashKey::new(1));
    for _ in 0..3 {
        aggregator.bypass(
            RxPacket::new(AnyBytes::Shared(bytes.clone())),
            &mut |mut packet: SuperPacket<'_, _>| batch.push(&mut packet),
        );
    }
    assert_eq!((batch.len(), Arc::strong_count(&bytes)), (3, 4));
    assert!(batch.next_packet().is_some());
    assert!(batch.next_packet().is_some());
    assert_eq!(
        (batch.len(), Arc::strong_count(&bytes)),
        (1, 3),
        "the first is gone with the second"
    );
    batch.clear();
    assert_eq!((batch.len(), Arc::strong_count(&bytes)), (0, 1));
}
