//! [`Aggregator::bypass`].
use crate::support::Aggregator;
use superpacket::{HashKey, Policy, RxPacket, SuperPacket};
use superpacket_traffic::workload::w1;

#[test]
fn a_packet_that_passes_by_comes_after_its_flow_and_untouched() {
    let frames = w1(3);
    let mut aggregator = Aggregator::new(Policy::gro(), HashKey::new(1));
    let mut out = vec![];
    let mut sink = |packet: SuperPacket<'_, &[u8]>| {
        out.push((packet.metadata.packets, packet.slices().flatten().copied().collect::<Vec<u8>>()))
    };
    aggregator.receive(RxPacket::new(&frames[0][..]), 0, &mut sink);
    aggregator.receive(RxPacket::new(&frames[1][..]), 0, &mut sink);
    aggregator.bypass(RxPacket::new(&frames[2][..]), &mut sink);
    aggregator.bypass(RxPacket::new(&[1u8, 2, 3][..]), &mut sink);
    assert!(aggregator.counters().balanced());
    assert_eq!(out.iter().map(|(packets, _)| *packets).collect::<Vec<_>>(), [2, 1, 1]);
    assert_eq!((&out[1].1, &out[2].1[..]), (&frames[2], &[1u8, 2, 3][..]));
}
