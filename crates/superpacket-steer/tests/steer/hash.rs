//! Tests that a hash that the device reports is used as it is: no byte of the packet is read, and
//! no hash is computed.

use std::cell::Cell;

use superpacket::aggregate::{Aggregator, HashKey, Policy};
use superpacket::packet::{FlowHash, RxPacket};
use superpacket::super_packet::SuperPacket;
use superpacket_steer::{FlowHashKey, FlowHasher, HashCounters, ToeplitzKey};
use superpacket_traffic::frame::Frame;

/// A buffer that counts how often its bytes are accessed.
#[derive(Debug)]
struct CountingBuffer<'a> {
    bytes: Vec<u8>,
    looks: &'a Cell<u32>,
}

impl AsRef<[u8]> for CountingBuffer<'_> {
    fn as_ref(&self) -> &[u8] {
        self.looks.set(self.looks.get() + 1);
        &self.bytes
    }
}

fn hashers() -> [FlowHasher; 2] {
    [FlowHasher::keyed(FlowHashKey::new(7)), FlowHasher::toeplitz(&ToeplitzKey::MICROSOFT)]
}

#[test]
fn no_byte_of_a_packet_with_a_hash_is_read() {
    for mut hasher in hashers() {
        let looks = Cell::new(0);
        let mut packet =
            RxPacket::new(CountingBuffer { bytes: Frame::tcp4(1, 100).to_bytes(), looks: &looks });
        packet.push(CountingBuffer { bytes: vec![0; 100], looks: &looks }).expect("two buffers");
        for reported in [0x51cc_c178, 1, u32::MAX] {
            packet.hash = Some(FlowHash(reported));
            assert_eq!(hasher.hash_packet(&packet), Some(FlowHash(reported)));
        }
        assert_eq!(looks.get(), 0);
        assert_eq!(*hasher.counters(), HashCounters { reported: 3, computed: 0, none: 0 });
        packet.hash = None;
        let computed = hasher.hash_packet(&packet);
        assert!(computed.is_some() && looks.get() > 0, "the buffer counts");
        assert_eq!(*hasher.counters(), HashCounters { reported: 3, computed: 1, none: 0 });
        packet.hash = Some(FlowHash(5));
        assert_eq!(
            hasher.without_device().hash_packet(&packet),
            computed,
            "unless it is not to be trusted"
        );
    }
}

#[test]
fn a_merged_packet_has_the_hash_of_its_flow() {
    for mut hasher in hashers() {
        for (frame, reported) in [
            (Frame::tcp4(1, 700), None),
            (Frame::tcp6(1, 700).in_vxlan4(), None),
            (Frame::tcp4(1, 700), Some(FlowHash(77))),
        ] {
            let looks = Cell::new(0);
            let packets = |count: usize| {
                let packet = |frame: &Frame| {
                    let bytes = frame.to_bytes();
                    let (head, tail) = bytes.split_at(40);
                    let mut packet =
                        RxPacket::new(CountingBuffer { bytes: head.to_vec(), looks: &looks });
                    packet
                        .push(CountingBuffer { bytes: tail.to_vec(), looks: &looks })
                        .expect("two buffers");
                    packet.hash = reported;
                    packet
                };
                frame.run(count).iter().map(packet).collect::<Vec<_>>()
            };
            let single = hasher.hash_packet(&packets(1)[0]);
            assert!(single.is_some() && reported.is_none_or(|reported| single == Some(reported)));
            let mut aggregator =
                Aggregator::new(Policy::gro().with_partial_checksums(), HashKey::new(1));
            for count in [1, 5] {
                let mut left = 0;
                let mut sink = |packet: SuperPacket<'_, CountingBuffer<'_>>| {
                    left += 1;
                    assert_eq!(packet.is_merged(), count > 1);
                    let before = looks.get();
                    assert_eq!(hasher.hash_super_packet(&packet), single);
                    assert_eq!(
                        looks.get() == before,
                        reported.is_some() || packet.is_merged(),
                        "a merged packet's header is no buffer's"
                    );
                };
                aggregator.receive_batch(&mut packets(count), 0, &mut sink);
                aggregator.poll_end(0, &mut sink);
                assert_eq!(left, 1);
            }
        }
    }
}

#[test]
fn what_is_not_ip_has_no_hash() {
    for mut hasher in hashers() {
        let mut arp = [0xff; 60];
        arp[12..14].copy_from_slice(&[0x08, 0x06]);
        assert_eq!(hasher.hash_packet(&RxPacket::new(&arp[..])), None);
        assert_eq!(hasher.hash_packet(&RxPacket::ip(&[][..])), None);
        assert_eq!(*hasher.counters(), HashCounters { reported: 0, computed: 0, none: 2 });
    }
}
