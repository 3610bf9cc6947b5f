//! Tests of VLAN filtering: which packets pass between which ports, and with which tags,
//! super-packets included.

use superpacket::aggregate::Mode;
use superpacket::packet::VlanTag;
use superpacket_traffic::frame::Vlan;

use super::*;
use crate::switch::tag;
use crate::switch::vlan::PortVlans;
use crate::switch::vlan::VlanProtocol::{self, Dot1Ad, Dot1Q};

/// Returns a bridge with VLAN filtering, and ports in these VLANs.
fn filtering(ports: &[&[&str]]) -> Bench {
    let mut bench = Bench::new(&vec![1500; ports.len()], |_| ());
    for (egress, words) in bench.forwarder.egress.iter_mut().flatten().zip(ports) {
        let mut vlans = PortVlans::none();
        words.iter().for_each(|words| vlans.add(&words.parse().expect(words)));
        egress.vlans = Some(Arc::new(vlans));
    }
    bench
}

/// Does the same with service tags.
fn provider(ports: &[&[&str]]) -> Bench {
    let mut bench = filtering(ports);
    bench.forwarder.vlan_protocol = Dot1Ad;
    bench
}

impl Bench {
    /// Receives a packet through VLAN tag sorting, as a receive queue does, and returns what each
    /// port was given.
    fn take(&mut self, port: usize, mut packet: RxPacket<Buffer>) -> Vec<Vec<SentFrame>> {
        tag::sort(&mut packet, self.forwarder.vlan_protocol);
        self.pass(port, packet)
    }

    /// Does the same with the packets aggregated from these frames.
    fn take_all(&mut self, port: usize, frames: &[Vec<u8>], beside: bool) -> Vec<Vec<SentFrame>> {
        let filters_by = self.forwarder.vlan_protocol;
        let packet = |frame: &Vec<u8>| {
            let mut packet = RxPacket::new(Buffer::from(frame.clone()));
            let [protocol, control] =
                [12, 14].map(|at| u16::from_be_bytes([frame[at], frame[at + 1]]));
            if beside && protocol == filters_by.ether_type() {
                packet = RxPacket::new(Buffer::from(untagged(frame)))
                    .with_vlan(VlanTag { protocol, control });
            }
            tag::sort(&mut packet, filters_by);
            packet
        };
        let sink: &mut dyn FnMut(SuperPacket<'_, Buffer>) =
            &mut |packet| self.forwarder.forward(&self.ports[port].0, packet);
        let policy = gro().with_mode(Mode::Gro { udp: true });
        aggregate(policy, frames.iter().map(packet), sink);
        self.sent()
    }

    /// Receives a frame, and returns the frame that each port was given.
    fn gets(&mut self, port: usize, frame: &[u8]) -> Vec<Option<Vec<u8>>> {
        let one = |left: Vec<SentFrame>| {
            assert!(left.len() <= 1, "once at most");
            left.into_iter().next().map(|left| left.bytes)
        };
        self.take(port, RxPacket::new(Buffer::from(frame.to_vec()))).into_iter().map(one).collect()
    }
}

/// Returns the frame with a tag.
fn tagged(frame: &[u8], control: u16) -> Vec<u8> {
    tagged_by(Dot1Q, frame, control)
}

/// Returns the frame with a tag of this protocol.
fn tagged_by(protocol: VlanProtocol, frame: &[u8], control: u16) -> Vec<u8> {
    [&frame[..12], &protocol.ether_type().to_be_bytes(), &control.to_be_bytes(), &frame[12..]]
        .concat()
}

/// Returns the frame without its tag.
fn untagged(frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &frame[16..]].concat()
}

/// Returns access ports of VLANs 10 and 20, a trunk of both, and a port in VLANs 20 to 30 whose
/// PVID is 25.
fn house() -> Bench {
    filtering(&[
        &["10 pvid untagged"],
        &["10 pvid untagged"],
        &["20 pvid untagged"],
        &["10", "20"],
        &["20-30", "25 pvid"],
    ])
}

#[test]
fn frames_pass_within_their_vlan_with_the_tags_of_each_port() {
    let frame = broadcast(1, 0);
    let mut bench = house();
    assert_eq!(
        bench.gets(0, &frame),
        [None, Some(frame.clone()), None, Some(tagged(&frame, 10)), None]
    );
    assert_eq!(
        bench.gets(2, &frame),
        [None, None, None, Some(tagged(&frame, 20)), Some(tagged(&frame, 20))]
    );
    let of = |vlan| tagged(&broadcast(2, 0), vlan);
    let plain = untagged(&of(10));
    assert_eq!(
        bench.gets(3, &of(10)),
        [Some(plain.clone()), Some(plain.clone()), None, None, None]
    );
    assert_eq!(bench.gets(3, &of(20)), [None, None, Some(plain), None, Some(of(20))]);
    // As in Linux, priorities are kept with a tag and lost with it.
    assert_eq!(
        bench.gets(3, &tagged(&frame, 0xb00a))[..2],
        [Some(frame.clone()), Some(frame.clone())]
    );
    assert_eq!(bench.gets(0, &tagged(&frame, 0xb00a))[3], Some(tagged(&frame, 0xb00a)));
    assert_eq!(
        bench.gets(0, &tagged(&frame, 0x6000)),
        [None, Some(frame.clone()), None, Some(tagged(&frame, 0x600a)), None]
    );
    assert_eq!((0..5).map(|port| bench.drops(port, "vlan")).sum::<u64>(), 0);
    // Frames in a VLAN that the ingress port is not in, without a VLAN, or without a destination.
    for (port, wrong) in [
        (0, tagged(&frame, 20)),
        (3, frame.clone()),
        (3, tagged(&frame, 0xe000)),
        (3, tagged(&frame, 30)),
        (4, frame.clone()),
    ] {
        assert_eq!(bench.gets(port, &wrong), [const { None }; 5], "port {port}");
    }
    assert_eq!([0, 3, 4].map(|port| bench.drops(port, "vlan")), [1, 3, 1]);
    assert_eq!(
        (0..5)
            .map(|port| bench.drops(port, "forwarding") + bench.drops(port, "no_port"))
            .sum::<u64>(),
        0
    );
}

#[test]
fn equal_addresses_in_two_vlans_are_two_stations() {
    let mut bench = house();
    // The same hardware address at an access port of VLAN 10 and, by the trunk, in VLAN 20.
    bench.gets(0, &broadcast(1, 0));
    bench.gets(3, &tagged(&broadcast(1, 0), 20));
    let frame = unicast(2, 1);
    assert_eq!(bench.gets(1, &frame), [Some(frame.clone()), None, None, None, None]);
    assert_eq!(bench.gets(2, &frame), [None, None, None, Some(tagged(&frame, 20)), None]);
    // A priority tag does not change the VLAN, so it is the same station.
    bench.gets(1, &tagged(&broadcast(9, 0), 0xa000));
    let frame = unicast(1, 9);
    assert_eq!(bench.gets(0, &frame), [None, Some(frame), None, None, None]);
    // After a port has left a VLAN, no other port receives frames for its stations there.
    bench.forwarder.egress[0].as_mut().expect("is there").vlans = Some(Arc::new(PortVlans::none()));
    assert_eq!(bench.gets(1, &unicast(2, 1)), [const { None }; 5]);
    assert_eq!(bench.drops(1, "vlan"), 1);
}

#[test]
fn tags_of_other_types_do_not_name_a_vlan() {
    let mut bench = house();
    let mut service = tagged(&broadcast(1, 0), 0x2014);
    service[12..14].copy_from_slice(&[0x88, 0xa8]);
    let expected = [None, Some(service.clone()), None, Some(tagged(&service, 10)), None];
    assert_eq!(bench.gets(0, &service), expected);
    // The same with the tag moved to the metadata by the device.
    let beside = RxPacket::new(Buffer::from(broadcast(1, 0)))
        .with_vlan(VlanTag { protocol: 0x88a8, control: 0x2014 });
    let sent = bench.take(0, beside);
    assert_eq!([&sent[1][0].bytes, &sent[3][0].bytes], [&service, &tagged(&service, 10)]);
    // An inner tag is kept.
    let double = tagged(&tagged(&broadcast(1, 0), 77), 10);
    assert_eq!(bench.gets(3, &double)[0], Some(untagged(&double)));
}

#[test]
fn a_provider_bridge_filters_by_the_service_s_tag_and_passes_the_customer_s() {
    // Two customer ports of service 100, one of service 200, and a trunk of both.
    let mut bench = provider(&[
        &["100 pvid untagged"],
        &["100 pvid untagged"],
        &["200 pvid untagged"],
        &["100", "200"],
    ]);
    let plain = broadcast(1, 0);
    let service = |frame: &[u8], control| tagged_by(Dot1Ad, frame, control);
    for customer in
        [plain.clone(), tagged(&plain, 7), tagged(&plain, 0xe000), tagged(&tagged(&plain, 9), 100)]
    {
        assert_eq!(
            bench.gets(0, &customer),
            [None, Some(customer.clone()), None, Some(service(&customer, 100))]
        );
        assert_eq!(bench.gets(2, &customer), [None, None, None, Some(service(&customer, 200))]);
        let arriving = service(&tagged(&broadcast(2, 0), 7), 0xa064);
        let without = tagged(&broadcast(2, 0), 7);
        assert_eq!(bench.gets(3, &arriving), [Some(without.clone()), Some(without), None, None]);
        // A customer tag that the device moved to the metadata is put back into the frame.
        let beside = RxPacket::new(Buffer::from(plain.clone()))
            .with_vlan(VlanTag { protocol: 0x8100, control: 7 });
        let sent = bench.take(0, beside);
        assert_eq!(
            [&sent[1][0].bytes, &sent[3][0].bytes],
            [&tagged(&plain, 7), &service(&tagged(&plain, 7), 100)]
        );
    }
    assert_eq!((0..4).map(|port| bench.drops(port, "vlan")).sum::<u64>(), 0);
    // A service tag with a priority only, at a customer port; a lone customer tag does not name a
    // service.
    assert_eq!(bench.gets(0, &service(&plain, 0x6000))[3], Some(service(&plain, 0x6064)));
    for wrong in [tagged(&plain, 100), plain.clone(), service(&plain, 300)] {
        assert_eq!(bench.gets(3, &wrong), [const { None }; 4]);
    }
    assert_eq!(bench.gets(0, &service(&plain, 200)), [const { None }; 4]);
    assert_eq!([0, 3].map(|port| bench.drops(port, "vlan")), [1, 3]);
}

#[test]
fn equal_addresses_in_two_services_are_two_stations() {
    let mut bench = provider(&[
        &["100 pvid untagged"],
        &["100 pvid untagged"],
        &["200 pvid untagged"],
        &["100", "200"],
    ]);
    bench.gets(0, &tagged(&broadcast(1, 0), 7));
    bench.gets(3, &tagged_by(Dot1Ad, &broadcast(1, 0), 200));
    let frame = tagged(&unicast(2, 1), 8);
    assert_eq!(bench.gets(1, &frame), [Some(frame.clone()), None, None, None]);
    assert_eq!(bench.gets(2, &frame), [None, None, None, Some(tagged_by(Dot1Ad, &frame, 200))]);
}

#[test]
fn without_filtering_tags_pass_as_they_are() {
    let mut bench = Bench::new(&[1500; 2], |_| ());
    for frame in [broadcast(1, 0), tagged(&broadcast(1, 0), 0xe00a), tagged(&broadcast(1, 0), 0)] {
        assert_eq!(bench.pass(0, RxPacket::new(Buffer::from(frame.clone())))[1][0].bytes, frame);
    }
    assert_eq!(bench.drops(0, "vlan"), 0);
}

/// Returns a trunk, and pairs of a trunk and an access port: with all offloads, without
/// segmentation, and without checksums and scatter-gather.
fn able_and_not() -> Bench {
    let (trunk, access): (&[&str], &[&str]) = (&["10"], &["10 pvid untagged"]);
    let mut bench = filtering(&[trunk, trunk, access, trunk, access, trunk, access]);
    for port in [3, 4, 5, 6] {
        bench.lack(port, &[Feature::TcpSegmentationOffload, Feature::TxUdpSegmentation]);
    }
    for port in [5, 6] {
        bench.lack(port, &[Feature::TxChecksumming, Feature::ScatterGather]);
    }
    for egress in bench.forwarder.egress.iter_mut().flatten() {
        egress.runtime.capabilities.gso.udp_tunnels = true;
    }
    bench
}

/// Returns the wire frames of a port that segments super-packets itself.
fn on_the_wire(left: &[SentFrame]) -> Vec<Vec<u8>> {
    let mut bench = Bench::new(&[1500; 2], |_| ());
    bench.lack(
        1,
        &[Feature::TcpSegmentationOffload, Feature::TxUdpSegmentation, Feature::TxChecksumming],
    );
    let mut frames = Vec::new();
    for left in left {
        let mut packet = RxPacket::new(Buffer::from(left.bytes.clone()));
        packet.checksum = left.checksum;
        packet.gso = left.gso;
        frames.extend(bench.pass(0, packet).remove(1).into_iter().map(|left| left.bytes));
    }
    frames
}

#[test]
fn super_packets_are_cut_into_the_same_frames_with_and_without_tags() {
    [Dot1Q, Dot1Ad].into_iter().for_each(cuts_the_same);
}

fn cuts_the_same(protocol: VlanProtocol) {
    let kinds = [
        ("TCP over IPv4", Frame::tcp4(1, 1_400)),
        ("TCP over IPv6", Frame::tcp6(1, 1_400)),
        ("UDP over IPv4", Frame::udp4(1_000)),
        ("UDP over IPv6", Frame::udp6(1_000)),
        ("TCP in VXLAN", Frame::tcp4(1, 1_300).in_vxlan4()),
        ("TCP in Geneve over IPv6", Frame::tcp6(1, 1_200).in_vxlan6()),
        ("TCP in GRE", Frame::tcp4(1, 1_300).in_gre()),
        ("TCP in a VLAN within", Frame::tcp4(1, 1_400).tagged(77)),
    ];
    for (name, frame) in kinds {
        let plain: Vec<_> = frame.run(20).iter().map(Frame::to_bytes).collect();
        let with: Vec<_> = plain.iter().map(|frame| tagged_by(protocol, frame, 0x600a)).collect();
        // From a trunk, with the tag in the frame or in the metadata, and from an access port.
        for (from, frames, beside) in [(0, &with, false), (0, &with, true), (2, &plain, false)] {
            // Without the trunk's tag, the inner tag names the VLAN.
            if from == 2 && plain[0][12..14] == protocol.ether_type().to_be_bytes() {
                continue;
            }
            let mut bench = able_and_not();
            bench.forwarder.vlan_protocol = protocol;
            let sent = bench.take_all(from, frames, beside);
            let control: u16 = if from == 0 { 0x600a } else { 10 };
            let with: Vec<_> =
                plain.iter().map(|frame| tagged_by(protocol, frame, control)).collect();
            for port in (0..7).filter(|&port| port != from) {
                let expected = if port == 0 || port % 2 == 1 { &with } else { &plain };
                let left = &sent[port];
                assert!(
                    port < 3 || left.iter().all(|left| left.segment().is_none()),
                    "{name}: port {port} cuts nothing"
                );
                let came = if port >= 5 {
                    left.iter().map(|left| left.bytes.clone()).collect()
                } else {
                    on_the_wire(left)
                };
                assert!(
                    came == *expected,
                    "{name}, from port {from}: port {port}: {} frames of {}",
                    came.len(),
                    expected.len()
                );
            }
            let is_whole = ["TCP over IPv4", "TCP in a VLAN within"].contains(&name);
            if is_whole {
                assert_eq!(
                    [1, 2].map(|port| sent[port].len()),
                    if from == 2 { [1, 0] } else { [1, 1] },
                    "whole where they may be"
                );
            }
            if is_whole && from == 0 {
                assert_eq!(
                    (sent[1][0].segment(), sent[2][0].segment()),
                    (Some(1_400), Some(1_400))
                );
                assert_eq!(sent[1][0].bytes.len(), sent[2][0].bytes.len() + 4);
            }
        }
    }
}

#[test]
fn partial_checksums_and_segmentation_work_with_and_without_tags() {
    // A super-packet with a partial checksum, and a single packet, both with the tag in the frame.
    for (size, payload) in [(Some(1_400), 14_000), (None, 900)] {
        let frame =
            Frame::tcp4(1, payload).with(|frame| frame.tcp_mut().checksum = Checksum::Partial);
        let with =
            frame.clone().with(|frame| frame.vlans.insert(0, Vlan { vid: 10, ..Vlan::default() }));
        for (from, bytes, start) in [(0, with.to_bytes(), 38), (2, frame.to_bytes(), 34)] {
            let mut packet = RxPacket::new(Buffer::from(bytes))
                .with_checksum(RxChecksum::Partial { start, offset: 16 });
            packet.gso =
                size.map(|size| Gso::new(GsoKind::Tcp4, SegmentSize::new(size).expect("not zero")));
            let sent = able_and_not().take(from, packet);
            for port in (0..7).filter(|&port| port != from) {
                let tags = usize::from(port == 0 || port % 2 == 1) * 4;
                for left in &sent[port] {
                    let expected = RxChecksum::Partial { start: 34 + tags as u16, offset: 16 };
                    assert!(
                        !left.partial() || left.checksum == expected,
                        "port {port}: {:?}",
                        left.checksum
                    );
                }
                let frames = if port >= 5 {
                    sent[port].iter().map(|left| left.bytes.clone()).collect()
                } else {
                    on_the_wire(&sent[port])
                };
                assert_eq!(frames.len(), size.map_or(1, |_| 10));
                for frame in &frames {
                    check::frame(frame, &Expect::default()).expect("a right frame");
                }
                let stream: Vec<u8> =
                    frames.iter().flat_map(|frame| &frame[54 + tags..]).copied().collect();
                assert!(stream == frame.to_bytes()[54..], "port {port}");
            }
        }
    }
}

#[test]
fn answers_to_too_long_packets_are_sent_in_their_vlan() {
    // The packet must not be fragmented.
    let frame = Frame::udp4(1_400);
    for (from, frame, offset) in
        [(0, frame.to_bytes(), 0), (1, tagged(&frame.to_bytes(), 0xa00a), 4)]
    {
        let mut bench = filtering(&[&["10 pvid untagged"], &["10"], &["10 pvid untagged"]]);
        bench.ports.iter().for_each(|(shared, _)| {
            shared.change(|settings| settings.too_big = crate::settings::TooBig::Icmp)
        });
        for (number, egress) in bench.forwarder.egress.iter_mut().flatten().enumerate() {
            egress.runtime.too_big = crate::settings::TooBig::Icmp;
            egress.runtime.mtu = if number == from { 1500 } else { 1280 };
        }
        let gets = bench.gets(from, &frame);
        let answer = gets[from].as_ref().expect("is told");
        assert_eq!(&answer[12 + offset..14 + offset], [8, 0]);
        assert_eq!(
            offset != 0,
            answer[12..14] == [0x81, 0],
            "with a tag where its frames have one"
        );
        assert_eq!(gets.iter().flatten().count(), 1);
    }
}
