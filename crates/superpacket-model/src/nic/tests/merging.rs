//! Tests that an aggregator behind the card merges the same packets for all kinds of receive memory
//! and checksum reports.

use superpacket::aggregate::{Aggregator, HashKey, Policy};
use superpacket::segment::{Gso, GsoKind};
use superpacket::super_packet::SuperPacket;
use superpacket_port::Buffer;
use superpacket_traffic::frame::{Checksum, Frame};

use super::super::{Padding, PageSize, RxSums};
use super::{Bench, NicSettings};
use crate::fixture::{partial, receive, send, send_all};

/// A super-packet that the aggregator delivered.
#[derive(Debug, PartialEq, Eq)]
struct Merged {
    bytes: Vec<u8>,
    gso: Option<Gso>,
    packets: u32,
}

/// Aggregates the frames that `feed` sends to a card with these settings. Returns the
/// super-packets, and the number of checksums verified in software.
fn merge(settings: &NicSettings, policy: Policy, feed: &dyn Fn(&mut Bench)) -> (Vec<Merged>, u64) {
    let mut bench = Bench::new(&NicSettings { ring: 64, ..*settings });
    let mut aggregator = Aggregator::new(policy, HashKey::new(1));
    feed(&mut bench);
    let mut packets = receive(&mut *bench.card_in);
    let mut merged = Vec::new();
    let sink: &mut dyn FnMut(SuperPacket<'_, Buffer>) = &mut |packet| {
        let mut bytes = Vec::new();
        packet.copy_to(&mut bytes);
        merged.push(Merged { bytes, gso: packet.metadata.gso, packets: packet.metadata.packets });
    };
    aggregator.receive_batch(&mut packets, 0, sink);
    aggregator.poll_end(0, sink);
    assert!(aggregator.counters().balanced());
    (merged, aggregator.counters().verified_in_software)
}

/// Returns frames of two connections, of which one has VLAN tags. One frame has a wrong checksum,
/// and the last one has an odd length.
fn frames(size: usize) -> Vec<Frame> {
    let first = Frame::tcp4(1, size).run(11);
    let second = Frame::tcp6(9, size - 1).with_timestamps(1, 2).tagged(7).run(11);
    let mut mixed: Vec<_> =
        first.into_iter().zip(second).flat_map(|(first, second)| [first, second]).collect();
    *mixed[12].checksum_mut().expect("has one") = Checksum::Wrong;
    mixed.push(Frame::udp4(41));
    mixed.push(mixed[20].following().with(|frame| frame.payload.truncate(33)));
    mixed
}

const PAGES: [PageSize; 5] =
    [PageSize::Linear, PageSize::Page4K, PageSize::Page8K, PageSize::Page16K, PageSize::Page32K];

#[test]
fn pages_merge_as_linear_buffers_do() {
    for (mtu, size) in [(1500, 1420), (9000, 8900)] {
        for policy in [Policy::gro().with_partial_checksums(), Policy::lro()] {
            for sums in [RxSums::None, RxSums::Verified, RxSums::Complete] {
                let mut first: Option<Vec<Merged>> = None;
                for (page, copy) in PAGES.into_iter().flat_map(|page| [(page, 0), (page, 80)]) {
                    let settings = NicSettings { page, copy, sums, mtu, ..NicSettings::default() };
                    let (merged, read) = merge(&settings, policy, &|bench| {
                        send_all(&mut *bench.wire_out, &frames(size))
                    });
                    assert!(
                        merged.iter().any(|packet| packet.packets >= 5),
                        "{page:?} {sums:?} {merged:?}"
                    );
                    assert_eq!(merged.iter().map(|packet| packet.packets).sum::<u32>(), 24);
                    assert!(
                        sums == RxSums::None || read <= 1,
                        "only what is damaged is read: {read}"
                    );
                    let expected = first.get_or_insert(
                        merged
                            .iter()
                            .map(|one| Merged { bytes: one.bytes.clone(), ..*one })
                            .collect(),
                    );
                    assert_eq!(&merged, expected, "{page:?} {copy} {sums:?}");
                }
            }
        }
    }
}

#[test]
fn kept_tags_and_padding_merge_too() {
    let frames: Vec<_> = Frame::tcp4(1, 4).tagged(7).run(6);
    for padding in [Padding::Off, Padding::Zero, Padding::Garbage] {
        for sums in [RxSums::None, RxSums::Verified, RxSums::Complete] {
            let settings =
                NicSettings { sums, padding, strip_vlan: false, ..NicSettings::default() };
            let (merged, _) =
                merge(&settings, Policy::lro(), &|bench| send_all(&mut *bench.wire_out, &frames));
            // LRO may remove padding only if it is zero, if the device's sum includes it.
            if padding != Padding::Garbage {
                assert_eq!(merged.len(), 1, "{padding:?} {sums:?}");
                assert_eq!(merged[0].bytes.len(), 58 + 24);
            }
            assert_eq!(merged.iter().map(|packet| packet.packets).sum::<u32>(), 6);
            let payload: Vec<u8> = merged
                .iter()
                .flat_map(|packet| {
                    packet.bytes[58..].iter().copied().take(4 * packet.packets as usize)
                })
                .collect();
            assert_eq!(
                payload,
                frames.iter().flat_map(|frame| frame.payload.clone()).collect::<Vec<_>>()
            );
        }
    }
}

#[test]
fn segments_of_a_super_packet_merge_again() {
    let large = Frame::tcp4(1, 14_480).with_id(100);
    for sums in [RxSums::None, RxSums::Verified, RxSums::Complete] {
        let settings = NicSettings { sums, ..NicSettings::default() };
        let (merged, _) = merge(&settings, Policy::gro().with_partial_checksums(), &|bench| {
            assert_eq!(send(&mut *bench.wire_out, &[partial(&large, GsoKind::Tcp4, 1448)]).sent, 1)
        });
        assert_eq!((merged.len(), merged[0].packets), (1, 10));
        assert_eq!(merged[0].bytes[54..], large.payload);
        assert_eq!(merged[0].gso.map(|gso| gso.size.get()), Some(1448));
    }
}
