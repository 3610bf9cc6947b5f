//! Whatever comes, by whichever face: nothing panics, all is counted, and what is not understood
//! stays as it came.

use proptest::prelude::*;
use superpacket::aggregate::{Policy, Storage};
use superpacket::virtio::{ByteOrder, Format, Framing};
use superpacket::{Layer, SliceBuffer};

use super::in_place::AnyBuffer;
use super::traffic::{KEY, assert_nothing_held, bytes_at, gather_with, join_with, policies, poll};
use crate::support::{BatchAggregator, unknown};

/// Gives packets to each face in turn, and again to one that has seen them.
fn all_faces(packets: &[Vec<u8>], layer: Layer, policy: Policy, offset: usize, format: Format) {
    let received = unknown(layer, packets);
    let framing = Framing::new(format, ByteOrder::Big, layer);
    for mut aggregator in
        [BatchAggregator::new(layer, policy, KEY), BatchAggregator::framed(framing, policy, KEY)]
    {
        for _ in 0..2 {
            let seen = poll(&mut aggregator, &received);
            assert_eq!(
                seen.iter().map(|seen| seen.metadata.packets as usize).sum::<usize>(),
                packets.len()
            );
            let (mut gathered, before) = (0, aggregator.counters().packets_out);
            let result = gather_with(&mut aggregator, false, &received, &mut |_| {
                gathered += 1;
                Ok(())
            });
            assert_eq!(result, Ok(()));
            assert_eq!(aggregator.counters().packets_out - before, gathered);
            assert_nothing_held(&aggregator);
        }
        // In place, linear storage is as `faults` has it.
        aggregator.set_policy(policy.with_storage(Storage::Fragments));
        let mut buffers: Vec<Vec<u8>> = packets.to_vec();
        // Packets may be shorter than what is said to lie before them.
        if let Ok(written) = join_with(&mut aggregator, &mut buffers, offset) {
            assert!(written.iter().all(|&index| index < packets.len()));
            assert_nothing_held(&aggregator);
        }
    }
}

fn format() -> impl Strategy<Value = Format> {
    prop::sample::select(vec![Format::Plain, Format::Buffers, Format::Hash, Format::Tunnel])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 200 }, ..ProptestConfig::default() })]

    #[test]
    fn garbage_harms_nobody(
        mut packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20), types in prop::collection::vec(0usize..6, 20),
        at_ip: bool, policy in prop::sample::select(policies()), offset in 0usize..300, format in format()
    ) {
        let ethertypes = [0x0800u16, 0x86dd, 0x8100, 0x8864, 0x8847, 0x0806];
        for (packet, kind) in packets.iter_mut().zip(types) {
            if at_ip {
                if let Some(first) = packet.first_mut() { *first = [0x45, 0x60, 0x46, 0x4f, 0, 0xff][kind]; }
            } else if packet.len() > 14 {
                packet[12..14].copy_from_slice(&ethertypes[kind].to_be_bytes());
                packet[14] = [0x45, 0x60, 0x46, 0x4f, 0, 0xff][kind];
            }
        }
        all_faces(&packets, if at_ip { Layer::Ip } else { Layer::Ethernet }, policy, offset, format);
    }

    /// Packets that were right, cut anywhere or with a byte changed, among others that are right.
    #[test]
    fn damaged_packets_harm_nobody(
        seed: u64, cuts in prop::collection::vec((0usize..60, 0usize..1_600), 0..20), flips in prop::collection::vec((0usize..60, 0usize..90, 1u8..), 0..20),
        at_ip: bool, policy in prop::sample::select(policies()), offset in 0usize..30, format in format()
    ) {
        let layer = if at_ip { Layer::Ip } else { Layer::Ethernet };
        let mut packets = bytes_at(layer, seed, 60);
        for (packet, cut) in cuts {
            if let Some(packet) = packets.get_mut(packet) { packet.truncate(cut); }
        }
        for (packet, at, bits) in flips {
            if let Some(byte) = packets.get_mut(packet).and_then(|packet| packet.get_mut(at)) { *byte ^= bits; }
        }
        all_faces(&packets, layer, policy, offset, format);
    }
}

#[test]
fn nothing_and_zeros_harm_nobody() {
    for policy in policies() {
        for layer in [Layer::Ethernet, Layer::Ip] {
            for count in [0, 1, 2, 40] {
                for length in [0, 1, 13, 14, 20, 34, 54, 60, 1_500] {
                    all_faces(&vec![vec![0; length]; count], layer, policy, 10, Format::Plain);
                }
            }
        }
    }
    for layer in [Layer::Ethernet, Layer::Ip] {
        let mut aggregator = BatchAggregator::framed(
            Framing::new(Framing::TUN.format, Framing::TUN.order, layer),
            Policy::gro(),
            KEY,
        );
        let mut slices = [[0u8; 0]; 3];
        let mut buffers: Vec<_> = slices
            .iter_mut()
            .map(|slice| AnyBuffer(Box::new(SliceBuffer::new(slice, 9))))
            .collect();
        // There is no buffer at all before the packets.
        assert_eq!(aggregator.join_in_place(&mut buffers, 10).map(<[usize]>::len), Ok(3));
        assert_eq!(aggregator.join_in_place(&mut buffers, usize::MAX).map(<[usize]>::len), Ok(3));
        assert_nothing_held(&aggregator);
    }
}
