//! Joins any packets in place. The result fits the available room, and splits into the original
//! packets.
#![no_main]

use std::collections::HashMap;

use libfuzzer_sys::fuzz_target;
use superpacket::aggregate::{BatchAggregator, HashKey, Policy};
use superpacket::packet::Layer;
use superpacket::segment::{Cwr, IpId, Segmenter};
use superpacket::virtio::{ByteOrder, Format, Framing};
use superpacket_fuzz::packets;
use superpacket_traffic::check::flow_key;

fuzz_target!(|input: &[u8]| {
    let [choice, input @ ..] = input else { return };
    let format =
        [Format::Plain, Format::Buffers, Format::Hash, Format::Tunnel][usize::from(*choice) % 4];
    let layer = if choice & 4 == 0 { Layer::Ethernet } else { Layer::Ip };
    let framing = Framing::new(
        format,
        if choice & 8 == 0 { ByteOrder::Little } else { ByteOrder::Big },
        layer,
    );
    let gro = choice & 16 == 0;
    let policy = if gro { Policy::gro_with_udp() } else { Policy::lro_with_acks() };
    let policy = if choice & 32 == 0 { policy } else { policy.with_max_flows(2) };
    let offset = framing.header_length() + usize::from(choice >> 6);
    let came: Vec<_> = packets(input)
        .into_iter()
        .map(|packet| (packet.bytes, usize::from(packet.vlan.map_or(0, |tag| tag.control)) * 40))
        .collect();
    let mut buffers: Vec<Vec<u8>> = Vec::new();
    for (bytes, spare) in &came {
        let mut buffer = Vec::with_capacity(offset + bytes.len() + spare);
        buffer.resize(offset, 0xee);
        buffer.extend_from_slice(bytes);
        buffers.push(buffer);
    }
    let before = buffers.clone();
    let places: Vec<_> =
        buffers.iter().map(|buffer| (buffer.as_ptr(), buffer.capacity())).collect();
    let mut aggregator = BatchAggregator::framed(framing, policy, HashKey::new(7));
    let written =
        aggregator.join_in_place(&mut buffers, offset).expect("there is headroom").to_vec();
    assert!(
        buffers
            .iter()
            .zip(&places)
            .all(|(buffer, place)| (buffer.as_ptr(), buffer.capacity()) == *place)
    );
    assert!(aggregator.counters().balanced() && aggregator.unfinished() == 0);
    for (index, (after, before)) in buffers.iter().zip(&before).enumerate() {
        assert!(written.contains(&index) || after == before);
    }
    let frames: Vec<_> = came.iter().map(|(bytes, _)| &bytes[..]).collect();
    if !gro || frames.len() > 40 {
        return;
    }
    // Identifications that stay the same, and CWR on all segments, are not restored, since no
    // header can express them. Where room is short, a new packet may begin anywhere.
    let mut said = true;
    let mut fresh = BatchAggregator::framed(framing, policy.with_max_flows(99), HashKey::new(7));
    for first in 0..frames.len() {
        let mut count = 0;
        fresh.poll(&frames[first..], |packet| {
            count += packet.metadata.packets as usize;
            said &= packet.metadata.gso.is_none_or(|gso| {
                (gso.id, gso.outer_id, gso.cwr) == (IpId::Increment, IpId::Increment, Cwr::First)
            });
        });
        assert_eq!(count, frames.len() - first);
    }
    if !said {
        return;
    }
    let mut segmenter = Segmenter::new();
    let mut flows: HashMap<_, [Vec<Vec<u8>>; 2]> = HashMap::new();
    let mut note = |which: usize, frame: Vec<u8>| {
        flows.entry(flow_key(&frame, layer == Layer::Ip)).or_default()[which].push(frame)
    };
    came.iter().for_each(|(bytes, _)| note(0, bytes.clone()));
    for &index in &written {
        let mut segments = Vec::new();
        let plan = segmenter
            .split(framing, &buffers[index][offset - framing.header_length()..], &mut segments)
            .expect("what was joined can be split");
        for segment in 0..plan.segments as usize {
            let start = segment * plan.segment_length;
            let length = if segment + 1 == plan.segments as usize {
                plan.last_length
            } else {
                plan.segment_length
            };
            note(1, segments[start..start + length].to_vec());
        }
    }
    assert!(flows.values().all(|[came, left]| came == left));
});
