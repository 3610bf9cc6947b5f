//! Tests of received frames: contents, checksums, tags, padding and super-packets.

use superpacket::packet::{RxChecksum, VlanTag};
use superpacket::segment::{GsoKind, Segmentable};
use superpacket_port::Port;
use superpacket_traffic::frame::{Checksum, Frame};
use superpacket_traffic::{check, checksum};

use super::super::{Padding, PageSize, RxSums};
use super::{Bench, NicSettings};
use crate::fixture::{TestPacket, gathered, partial, receive, send, send_all};

const PAGES: [PageSize; 5] =
    [PageSize::Page4K, PageSize::Page8K, PageSize::Page16K, PageSize::Page32K, PageSize::Linear];

/// Returns whether two one's-complement sums are equal; 0x0000 and 0xFFFF are.
fn same(left: u16, right: u16) -> bool {
    left % 0xffff == right % 0xffff
}

#[test]
fn frames_of_all_sizes_arrive_bit_for_bit() {
    let frames: Vec<_> = (6..8964)
        .step_by(37)
        .chain([1446, 1460, 8946, 8960])
        .map(|payload| Frame::tcp4(payload, payload as usize))
        .collect();
    for page in PAGES {
        for (headroom, copy) in [(0, 0), (2, 0), (256, 0), (0, 80), (34, 256), (0, 1)] {
            let mut bench = Bench::new(&NicSettings {
                page,
                headroom,
                copy,
                mtu: 9000,
                ring: 256,
                ..NicSettings::default()
            });
            send_all(&mut *bench.wire_out, &frames);
            let received = receive(&mut *bench.card_in);
            assert_eq!(received.len(), frames.len());
            for (packet, frame) in received.iter().zip(&frames) {
                let bytes = frame.to_bytes();
                assert_eq!(gathered(packet), bytes, "{page:?} {headroom} {copy}");
                let rest = bytes.len() - copy.min(bytes.len());
                let pages = match page.bytes() {
                    Some(page) => (headroom + rest).div_ceil(page),
                    None => 1,
                };
                assert_eq!(
                    packet.buffers().count(),
                    usize::from(copy != 0) + if rest == 0 { 0 } else { pages }
                );
            }
            let counters = bench.card.monitor().counters();
            assert_eq!(
                counters.rx_copied,
                frames.iter().map(|frame| frame.to_bytes().len() as u64).sum::<u64>()
            );
            assert_eq!(
                counters.rx_buffers,
                received.iter().map(|packet| packet.buffers().count() as u64).sum::<u64>()
            );
            assert_eq!(
                (counters.rx_frames, counters.rx_delivered),
                (frames.len() as u64, frames.len() as u64)
            );
        }
    }
}

#[test]
fn a_header_copy_is_no_longer_than_the_frame() {
    let mut bench = Bench::new(&NicSettings { copy: 80, ..NicSettings::default() });
    for payload in 0..60 {
        let frame = Frame::tcp4(1, payload);
        send_all(&mut *bench.wire_out, [&frame]);
        let received = receive(&mut *bench.card_in);
        let lengths: Vec<_> = received[0].buffers().map(|buffer| buffer.bytes().len()).collect();
        let whole = 54 + payload;
        assert_eq!(lengths, if whole <= 80 { vec![whole] } else { vec![80, whole - 80] });
        assert_eq!(gathered(&received[0]), frame.to_bytes());
    }
}

#[test]
fn the_complete_sum_covers_the_delivered_bytes() {
    let frames: Vec<_> = (0..70)
        .chain([500, 501, 1446, 1447])
        .flat_map(|payload| {
            [
                Frame::tcp4(payload, payload as usize),
                Frame::udp6(payload as usize),
                Frame::tcp6(1, payload as usize).in_vxlan4(),
            ]
        })
        .flat_map(|frame| {
            [frame.clone(), frame.clone().tagged(100), frame.clone().tagged(100).tagged(7)]
        })
        .chain([
            Frame::tcp4(1, 31).with(|frame| frame.trailer = vec![0xa5; 9]),
            Frame::tcp4(1, 300).with(|frame| frame.trailer = vec![0xa5; 5]),
        ])
        .collect();
    for padding in [Padding::Off, Padding::Zero, Padding::Garbage] {
        for strip_vlan in [true, false] {
            for (page, copy) in [(PageSize::Linear, 0), (PageSize::Page4K, 81)] {
                let settings = NicSettings {
                    sums: RxSums::Complete,
                    padding,
                    strip_vlan,
                    page,
                    copy,
                    ring: 2048,
                    mtu: 1600,
                    ..NicSettings::default()
                };
                let mut bench = Bench::new(&settings);
                send_all(&mut *bench.wire_out, &frames);
                let received = receive(&mut *bench.card_in);
                assert_eq!(received.len(), frames.len());
                for packet in &received {
                    let bytes = gathered(packet);
                    let RxChecksum::Complete(sum) = packet.checksum else {
                        panic!("{:?}", packet.checksum)
                    };
                    assert!(
                        same(sum, checksum::sum(&bytes[14..])),
                        "{padding:?} {strip_vlan} {}",
                        bytes.len()
                    );
                    assert!(
                        padding == Padding::Off
                            || bytes.len() + 4 * usize::from(packet.vlan.is_some()) >= 60
                    );
                }
                assert_eq!(bench.card.monitor().counters().sums_complete, frames.len() as u64);
            }
        }
    }
}

#[test]
fn verified_checksums_are_reported_by_level_and_wrong_ones_are_not() {
    let wrong = |frame: Frame| frame.with_checksum(Checksum::Wrong);
    let unnecessary = |level| RxChecksum::Unnecessary { level };
    let cases = [
        (Frame::tcp4(1, 101), unnecessary(0)),
        (Frame::tcp4(1, 1).with(|frame| frame.trailer = vec![9; 11]), unnecessary(0)),
        (Frame::tcp6(1, 700).in_vxlan6(), unnecessary(1)),
        (wrong(Frame::tcp6(1, 700)).in_vxlan6(), unnecessary(0)),
        (wrong(Frame::tcp4(1, 700)), RxChecksum::None),
        (wrong(Frame::udp6(700)), RxChecksum::None),
    ];
    let mut bench =
        Bench::new(&NicSettings { padding: Padding::Garbage, ..NicSettings::default() });
    send_all(&mut *bench.wire_out, cases.iter().map(|(frame, _)| frame));
    let arp = TestPacket {
        bytes: [vec![1; 12], vec![8, 6], vec![0; 28]].concat(),
        ..TestPacket::from(&Vec::new())
    };
    assert_eq!(send(&mut *bench.wire_out, &[arp]).sent, 1);
    let found: Vec<_> = receive(&mut *bench.card_in).iter().map(|packet| packet.checksum).collect();
    assert_eq!(
        found,
        cases.iter().map(|(_, expected)| *expected).chain([RxChecksum::None]).collect::<Vec<_>>()
    );
    let counters = bench.card.monitor().counters();
    assert_eq!((counters.sums_verified, counters.sums_wrong), (5, 3));

    let mut silent = Bench::new(&NicSettings { sums: RxSums::None, ..NicSettings::default() });
    send_all(&mut *silent.wire_out, cases.iter().map(|(frame, _)| frame));
    assert!(receive(&mut *silent.card_in).iter().all(|packet| packet.checksum == RxChecksum::None));
}

#[test]
fn tags_are_stripped_or_kept() {
    let frame = Frame::tcp4(1, 100);
    let mut strip = Bench::new(&NicSettings::default());
    send_all(&mut *strip.wire_out, [&frame, &frame.clone().tagged(5)]);
    let received = receive(&mut *strip.card_in);
    assert!(received.iter().all(|packet| gathered(packet) == frame.to_bytes()));
    assert_eq!(received[0].vlan, None);
    assert_eq!(received[1].vlan.map(|tag| tag.control & 0xfff), Some(5));
    assert_eq!(received[1].vlan.map(|VlanTag { protocol, .. }| protocol), Some(0x8100));
    assert_eq!(strip.card.monitor().counters().rx_stripped, 1);
    let mut keep = Bench::new(&NicSettings { strip_vlan: false, ..NicSettings::default() });
    send_all(&mut *keep.wire_out, [&frame, &frame.clone().tagged(5)]);
    let received = receive(&mut *keep.card_in);
    assert_eq!((gathered(&received[1]), received[1].vlan), (frame.tagged(5).to_bytes(), None));
}

#[test]
fn padding_follows_the_settings() {
    for (padding, bytes) in [
        (Padding::Off, &[][..]),
        (Padding::Zero, &[0; 6]),
        (Padding::Garbage, &[0xde, 0xad, 0xbe, 0xef, 0xde, 0xad]),
    ] {
        let mut bench = Bench::new(&NicSettings { padding, ..NicSettings::default() });
        send_all(&mut *bench.wire_out, [&Frame::tcp4(1, 0), &Frame::tcp4(1, 6)]);
        let received = receive(&mut *bench.card_in);
        assert_eq!(gathered(&received[0])[54..], *bytes);
        assert_eq!(gathered(&received[1]), Frame::tcp4(1, 6).to_bytes());
        assert_eq!(bench.card.monitor().counters().rx_padded, u64::from(padding != Padding::Off));
    }
}

#[test]
fn super_packets_arrive_as_wire_frames() {
    let large = Frame::tcp4(1, 10_000).with_id(7);
    let datagrams = Frame::udp6(5001);
    for sums in [RxSums::None, RxSums::Verified, RxSums::Complete] {
        let mut bench = Bench::new(&NicSettings {
            sums,
            strip_vlan: false,
            padding: Padding::Garbage,
            ..NicSettings::default()
        });
        let packets = [
            partial(&large, GsoKind::Tcp4, 1448),
            partial(&large.clone().tagged(9), GsoKind::Tcp4, 1001),
            partial(&datagrams, GsoKind::Udp, 1000),
            partial(&Frame::tcp4(5, 3), GsoKind::Tcp4, 0),
            partial(&Frame::udp4(99), GsoKind::Udp, 0),
        ];
        assert_eq!(send(&mut *bench.wire_out, &packets).sent, 5);
        let received = receive(&mut *bench.card_in);
        let lengths: Vec<_> = received.iter().map(|packet| packet.length()).collect();
        let cut = |payload: usize, size: usize, headers: usize| {
            (0..payload.div_ceil(size)).map(move |index| headers + size.min(payload - index * size))
        };
        let expected: Vec<_> = cut(10_000, 1448, 54)
            .chain(cut(10_000, 1001, 58))
            .chain(cut(5001, 1000, 62))
            .chain([60, 141])
            .collect();
        assert_eq!(lengths, expected);
        let mut stream = Vec::new();
        for (index, packet) in received.iter().enumerate() {
            let bytes = gathered(packet);
            check::frame(&bytes, &check::Expect { trailing: true, ..check::Expect::default() })
                .expect("whole, with right checksums");
            assert!(packet.gso().is_none());
            match packet.checksum {
                RxChecksum::None => assert_eq!(sums, RxSums::None),
                RxChecksum::Unnecessary { level } => {
                    assert_eq!((sums, level), (RxSums::Verified, 0))
                }
                RxChecksum::Complete(sum) => assert!(
                    sums == RxSums::Complete && same(sum, checksum::sum(&bytes[14..])),
                    "{index}"
                ),
                RxChecksum::Partial { .. } => panic!("a wire knows no partial checksums"),
            }
            if index < 7 {
                stream.extend_from_slice(&bytes[54..]);
            }
        }
        assert_eq!(stream, large.payload);
        let counters = bench.card.monitor().counters();
        assert_eq!(
            (counters.rx_cut, counters.rx_filled, counters.rx_malformed),
            (3, expected.len() as u64, 0)
        );
    }
}

#[test]
fn a_wrong_pseudo_header_sum_of_the_sender_is_detected() {
    let mut unfilled = partial(&Frame::tcp4(1, 100), GsoKind::Tcp4, 0);
    unfilled.bytes[50] ^= 1;
    for sums in [RxSums::Verified, RxSums::Complete] {
        let mut bench = Bench::new(&NicSettings { sums, ..NicSettings::default() });
        assert_eq!(send(&mut *bench.wire_out, std::slice::from_ref(&unfilled)).sent, 1);
        let received = receive(&mut *bench.card_in);
        match received[0].checksum {
            RxChecksum::Complete(sum) => {
                assert!(same(sum, checksum::sum(&gathered(&received[0])[14..])))
            }
            other => assert_eq!(
                (other, bench.card.monitor().counters().sums_wrong),
                (RxChecksum::None, 1)
            ),
        }
    }
}

#[test]
fn frames_longer_than_the_mtu_are_dropped_and_counted() {
    let mut bench = Bench::new(&NicSettings::default());
    let fits = Frame::tcp4(1, 1460);
    send_all(
        &mut *bench.wire_out,
        [
            &fits,
            &fits.clone().tagged(3),
            &Frame::tcp4(1, 1461),
            &Frame::tcp4(1, 1461).tagged(3),
            &Frame::tcp4(1, 9000),
        ],
    );
    assert_eq!(
        send(&mut *bench.wire_out, &[partial(&Frame::tcp4(1, 5000), GsoKind::Tcp4, 1461)]).sent,
        1
    );
    assert_eq!(receive(&mut *bench.card_in).len(), 2 + 1, "the last of the super-packet is short");
    assert_eq!(bench.card.monitor().counters().rx_too_long, 3 + 3);
    assert_eq!(bench.card.counters().rx_errors, 6);
    assert_eq!(bench.card.state().mtu, 1500);
}

#[test]
fn an_inconsistent_super_packet_is_counted() {
    let mut bench = Bench::new(&NicSettings::default());
    let mut broken = partial(&Frame::tcp4(1, 5000), GsoKind::Tcp4, 1000);
    broken.bytes.truncate(3000);
    assert_eq!(send(&mut *bench.wire_out, &[broken]).sent, 1);
    assert!(receive(&mut *bench.card_in).is_empty());
    assert_eq!(bench.card.monitor().counters().rx_malformed, 1);
    assert_eq!(bench.card.counters().rx_errors, 1);
}

#[test]
fn without_a_wire_super_packets_arrive_whole() {
    for page in PAGES {
        for copy in [0, 128] {
            let settings =
                NicSettings { wire: false, page, copy, headroom: 64, ..NicSettings::default() };
            let mut bench = Bench::new(&settings);
            let mut large = partial(&Frame::tcp4(1, 65_495), GsoKind::Tcp4, 1448);
            large.gso = large.gso.map(|gso| gso.with_id(superpacket::segment::IpId::Fixed));
            assert_eq!(
                send(&mut *bench.wire_out, &[large.clone(), TestPacket::from(&Frame::tcp4(1, 9))])
                    .sent,
                2
            );
            let received = receive(&mut *bench.card_in);
            assert_eq!(gathered(&received[0]), large.bytes);
            assert_eq!(received[0].checksum, large.checksum);
            assert_eq!(
                received[0].gso().map(|gso| (gso.size, gso.id)),
                large.gso.map(|gso| (gso.size, gso.id))
            );
            assert_eq!(received[1].checksum, RxChecksum::Unnecessary { level: 0 });
        }
    }
}

#[test]
fn checksums_are_filled_in_as_frames_are_copied() {
    let lengths = || (0..70).chain([1446, 1447, 1448, 5000, 8900]);
    let of_length = |length: usize| {
        let sequence = length as u32;
        [
            (Frame::tcp4(sequence, length), GsoKind::Tcp4),
            (Frame::tcp6(sequence, length), GsoKind::Tcp6),
            (Frame::udp4(length), GsoKind::Udp),
            (Frame::udp6(length), GsoKind::Udp),
        ]
    };
    for page in PAGES {
        for (headroom, copy) in [(0, 0), (2, 80), (0, 35), (0, 51)] {
            let mut bench = Bench::new(&NicSettings {
                page,
                headroom,
                copy,
                mtu: 9000,
                ring: 512,
                ..NicSettings::default()
            });
            let frames: Vec<_> = lengths().flat_map(of_length).collect();
            let sent: Vec<_> =
                frames.iter().map(|(frame, kind)| partial(frame, *kind, 0)).collect();
            assert_eq!(send(&mut *bench.wire_out, &sent).sent, sent.len());
            let received = receive(&mut *bench.card_in);
            assert_eq!(received.len(), frames.len());
            for (packet, (frame, _)) in received.iter().zip(&frames) {
                assert!(
                    gathered(packet) == frame.to_bytes(),
                    "{page:?} {headroom} {copy} {frame:?}"
                );
                assert_eq!(packet.checksum, RxChecksum::Unnecessary { level: 0 });
            }
            let counters = bench.card.monitor().counters();
            assert_eq!(
                (counters.rx_filled, counters.sums_verified, counters.sums_wrong),
                (sent.len() as u64, sent.len() as u64, 0)
            );
        }
    }
}
