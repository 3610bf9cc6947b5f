//! The sums that aggregation found serve segmentation: payload whose sum is known is not read
//! again.

use std::cell::Cell;

use crate::support::{Aggregator, AnyBytes, BatchAggregator, PARTIAL_GRO_UDP, VERIFIED};
use superpacket::Layer;
use superpacket::aggregate::{HashKey, Policy};
use superpacket::packet::{RxChecksum, RxPacket};
use superpacket::segment::{ChecksumOutput, SegmentOptions, SegmentSize, Segmenter};
use superpacket::super_packet::SuperPacket;
use superpacket_traffic::frame::Frame;

/// Aggregates the frames and hands every packet that comes out to `look`.
fn aggregate<'a>(
    frames: &[Vec<u8>],
    reads: &'a Cell<u32>,
    checksum: RxChecksum,
    mut look: impl FnMut(SuperPacket<'_, AnyBytes<'a>>),
) {
    let mut aggregator = Aggregator::new(PARTIAL_GRO_UDP, HashKey::new(7));
    let mut sink = |packet: SuperPacket<'_, AnyBytes<'a>>| look(packet);
    for frame in frames {
        aggregator.receive(
            RxPacket::new(AnyBytes::Watched { bytes: frame.clone(), reads })
                .with_checksum(checksum),
            0,
            &mut sink,
        );
    }
    aggregator.flush_all(&mut sink);
}

fn frames(first: Frame, count: usize) -> Vec<Vec<u8>> {
    first.run_bytes(count)
}

#[test]
fn known_sums_spare_the_payload() {
    let trains = [
        Frame::tcp4(1, 1448),
        Frame::tcp6(1, 1001).with_timestamps(3, 4),
        Frame::udp4(999),
        Frame::dccp4(1, 77),
        Frame::tcp4(5, 64).in_vxlan6(),
    ];
    for first in trains {
        for state in [RxChecksum::None, RxChecksum::Unnecessary { level: 1 }] {
            let input = frames(first.clone(), 6);
            let reads = Cell::new(0);
            let mut merged = 0;
            aggregate(&input, &reads, state, |packet| {
                assert!(packet.is_merged(), "{:?}", packet.metadata);
                merged += 1;
                let options = SegmentOptions::default().with_checksum(ChecksumOutput::Full);
                let mut segmenter = Segmenter::new();
                let mut headers = Vec::new();
                // The headers are found in the packet's own; at most the parse's window reaches
                // into the first buffers.
                segmenter.plan(&packet, &options).expect("a plan");
                let before = reads.get();
                segmenter.plan(&packet, &options).expect("a plan");
                let for_headers = reads.get() - before;
                let before = reads.get();
                segmenter
                    .segment(&packet, &options, |segment| headers.push(segment.header().to_vec()))
                    .expect("cut");
                assert_eq!(reads.get() - before, for_headers, "payload was read");
                assert_eq!(headers.len(), input.len());
                for (header, frame) in headers.iter().zip(&input) {
                    assert_eq!(header[..], frame[..header.len()]);
                }
                // Linear output reads each payload once, to copy it.
                let mut out = Vec::new();
                segmenter.segment_linear(&packet, &options, &mut out).expect("cut");
                assert_eq!(out, input.concat());
            });
            assert_eq!(merged, 1);
        }
    }
}

#[test]
fn cuts_elsewhere_read_the_payload_and_are_right() {
    let input = frames(Frame::tcp4(1, 301), 7);
    let reads = Cell::new(0);
    aggregate(&input, &reads, RxChecksum::None, |packet| {
        let gso = packet.metadata.gso.expect("merged");
        for size in [1, 7, 300, 301, 302, 602, 603, 903, 1000, 2106, 2107, 65_000] {
            let options = SegmentOptions::default()
                .with_gso(gso.with_size(SegmentSize::new(size).expect("a size")));
            let mut segmenter = Segmenter::new();
            let mut count = 0;
            let mut payload = 0;
            segmenter
                .segment(&packet, &options, |segment| {
                    let mut bytes = Vec::new();
                    segment.copy_to(&mut bytes);
                    let checked = superpacket_traffic::check::frame(&bytes, &Default::default())
                        .unwrap_or_else(|problem| panic!("{size}: {problem}"));
                    assert!(checked.canonical);
                    payload += checked.payload.len();
                    count += 1;
                })
                .expect("cut");
            assert_eq!(count, 2107usize.div_ceil(size));
            assert_eq!(payload, 2107);
            let mut gathered = Vec::new();
            segmenter
                .segment(&packet, &options, |segment| segment.copy_to(&mut gathered))
                .expect("cut");
            let mut linear = Vec::new();
            segmenter.segment_linear(&packet, &options, &mut linear).expect("cut");
            assert_eq!(gathered, linear, "{size}");
            assert!(segmenter.counters().balanced());
        }
    });
    assert!(reads.get() > 0);
}

/// What a sink learned of a packet: its bytes, what is known of it, and the sums.
type Seen = (Vec<u8>, String, Vec<Option<u16>>);

fn polled(policy: Policy, frames: &[Vec<u8>], checksum: RxChecksum, sums: bool) -> Vec<Seen> {
    let packets: Vec<_> =
        frames.iter().map(|frame| RxPacket::new(&frame[..]).with_checksum(checksum)).collect();
    let mut aggregator = BatchAggregator::new(Layer::Ethernet, policy, HashKey::new(7));
    let mut seen = Vec::new();
    // Twice: the second time with the aggregator as a call leaves it.
    for _ in 0..2 {
        macro_rules! look {
            () => {
                |packet| {
                    let mut cut = Vec::new();
                    if packet.is_merged() {
                        let options = SegmentOptions::default().with_checksum(ChecksumOutput::Full);
                        Segmenter::new()
                            .segment_linear(&packet, &options, &mut cut)
                            .expect("it is cut again");
                    }
                    let bytes = packet.slices().flatten().copied().chain(cut).collect();
                    seen.push((
                        bytes,
                        format!("{:?}", packet.metadata),
                        packet.pieces().iter().map(|piece| piece.segment_sum()).collect(),
                    ))
                }
            };
        }
        if sums {
            aggregator.poll(&packets, look!());
        } else {
            aggregator.poll_without_sums(&packets, look!());
        }
    }
    assert!(aggregator.counters().balanced());
    seen
}

#[test]
fn a_sink_that_wants_no_sums_gets_the_same_packets() {
    let trains = [
        Frame::tcp4(1, 1448),
        Frame::tcp4(1, 700).with_timestamps(3, 4),
        Frame::tcp6(1, 1001).with_timestamps(3, 4),
        Frame::udp4(999),
        Frame::dccp4(1, 77),
        Frame::tcp4(5, 64).in_vxlan6(),
    ];
    let usual = [true, true, true, false, false, false];
    for (first, usual) in trains.into_iter().zip(usual) {
        let input = frames(first, 40);
        for checksum in [RxChecksum::None, VERIFIED, RxChecksum::Unnecessary { level: 1 }] {
            for policy in [Policy::gro_with_udp(), PARTIAL_GRO_UDP, Policy::lro()] {
                let (with, without) = (
                    polled(policy, &input, checksum, true),
                    polled(policy, &input, checksum, false),
                );
                let bare = |seen: &[Seen]| {
                    seen.iter()
                        .map(|(bytes, metadata, _)| (bytes.clone(), metadata.clone()))
                        .collect::<Vec<_>>()
                };
                assert_eq!(bare(&with), bare(&without), "{policy:?}");
                let known = |seen: &[Seen]| {
                    seen.iter().flat_map(|(.., sums)| sums).filter(|sum| sum.is_some()).count()
                };
                let spared = usual && policy == PARTIAL_GRO_UDP && checksum != RxChecksum::None;
                // All but the first, which is held before it is known that it merges.
                assert_eq!(
                    known(&with) - known(&without),
                    if spared { 2 * 39 } else { 0 },
                    "{policy:?}, {checksum:?}"
                );
            }
        }
    }
}
