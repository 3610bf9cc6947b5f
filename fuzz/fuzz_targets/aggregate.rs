//! Aggregates any packets. Counters balance, GRO's super-packets are segmented into the original
//! frames, and LRO loses no packet.
#![no_main]

use std::collections::HashMap;

use libfuzzer_sys::fuzz_target;
use superpacket::aggregate::{Aggregator, HashKey, Policy, Storage};
use superpacket::packet::Layer;
use superpacket::segment::{ChecksumOutput, SegmentOptions, Segmenter};
use superpacket::super_packet::SuperPacket;
use superpacket_fuzz::packets;
use superpacket_traffic::check::flow_key;

fuzz_target!(|input: &[u8]| {
    let [choice, input @ ..] = input else { return };
    let packets = packets(input);
    let storage = if choice & 1 == 0 { Storage::Fragments } else { Storage::Linear };
    let gro = Policy::gro_with_udp().with_partial_checksums();
    let gro =
        if choice & 0x10 == 0 { gro } else { gro.with_max_bytes(u32::MAX).with_jumbo_option() };
    let base = if choice & 2 == 0 { gro } else { Policy::lro_with_acks() };
    let policy = base
        .with_storage(storage)
        .with_max_flows(1 + u32::from(choice >> 4))
        .with_max_packets(if choice & 4 == 0 { 3 } else { 99 });
    let mut aggregator: Aggregator<Vec<u8>> = Aggregator::new(policy, HashKey::new(7));
    let mut segmenter = Segmenter::new();
    let options = SegmentOptions::default().with_checksum(ChecksumOutput::AsMerged);
    let gro = choice & 2 == 0;
    let mut out: HashMap<_, Vec<Vec<u8>>> = HashMap::new();
    let mut count = 0;
    let mut sink = |packet: SuperPacket<'_, Vec<u8>>| {
        count += packet.metadata.packets;
        if gro {
            let (vlan, layer) =
                (packet.metadata.vlan.map(|tag| tag.control & 0xfff), packet.metadata.layer);
            segmenter
                .segment(&packet, &options, |segment| {
                    let mut frame = Vec::new();
                    segment.copy_to(&mut frame);
                    out.entry((layer, vlan, flow_key(&frame, layer == Layer::Ip)))
                        .or_default()
                        .push(frame);
                })
                .expect("what merged can be cut");
        }
    };
    for (index, packet) in packets.iter().enumerate() {
        aggregator.receive(packet.receive(), index as u64, &mut sink);
        assert!(aggregator.counters().balanced());
        if choice & 8 != 0 && index % 5 == 4 {
            aggregator.poll_end(index as u64, &mut sink);
        }
    }
    aggregator.flush_all(&mut sink);
    assert!(aggregator.counters().balanced());
    assert_eq!(count as usize, packets.len());
    if gro {
        let mut expected: HashMap<_, Vec<Vec<u8>>> = HashMap::new();
        for packet in packets {
            let key = flow_key(&packet.bytes, packet.layer == Layer::Ip);
            expected
                .entry((packet.layer, packet.vlan.map(|tag| tag.control & 0xfff), key))
                .or_default()
                .push(packet.bytes);
        }
        assert_eq!(expected, out);
    }
});
