//! Packets joined in their own buffers: what a poll gives, within the room there is, and what a
//! split restores.

use std::collections::HashMap;

use proptest::prelude::*;
use superpacket::aggregate::{Mode, NoHeadroom, Policy, Storage};
use superpacket::segment::{BackToBack, EachBuffer, GsoSupport, Segmenter, Unsupported};
use superpacket::virtio::{ByteOrder, Format, Framing, VirtioError};
use superpacket::{Layer, PacketBuffer, Reason, RxChecksum, Simd, SliceBuffer};
use superpacket_traffic::check::{self, flow_key};
use superpacket_traffic::frame::{ACK, CWR, Checksum, Frame, Mpls, Vlan};
use superpacket_traffic::workload;

use super::traffic::{KEY, assert_nothing_held, bytes_at, join_with, policies, poll_with};
use crate::support::{BatchAggregator, PARTIAL_GRO, unknown};

/// What lies before a packet in its buffer.
const BEFORE: u8 = 0xee;

const TUNNEL: Framing = Framing::new(Format::Tunnel, ByteOrder::Little, Layer::Ethernet);

fn framings() -> [Framing; 5] {
    let of = |format, order, layer| Framing::new(format, order, layer);
    [
        Framing::TUN,
        Framing::TAP,
        of(Format::Buffers, ByteOrder::Little, Layer::Ip),
        of(Format::Hash, ByteOrder::Big, Layer::Ethernet),
        TUNNEL,
    ]
}

/// Each packet `offset` bytes into a buffer with just so much room behind it.
fn buffers(packets: &[Vec<u8>], offset: usize, spare: impl Fn(usize) -> usize) -> Vec<Vec<u8>> {
    let buffer = |(index, packet): (usize, &Vec<u8>)| {
        let mut buffer = Vec::with_capacity(offset + packet.len() + spare(index));
        buffer.resize(offset, BEFORE);
        buffer.extend_from_slice(packet);
        buffer
    };
    packets.iter().enumerate().map(buffer).collect()
}

/// Joins, and checks all that must hold of any buffers.
#[track_caller]
fn join(
    aggregator: &mut BatchAggregator,
    buffers: &mut [Vec<u8>],
    offset: usize,
    header: usize,
) -> Vec<usize> {
    let before = buffers.to_vec();
    let places = |buffers: &[Vec<u8>]| {
        buffers.iter().map(|buffer| (buffer.as_ptr(), buffer.capacity())).collect::<Vec<_>>()
    };
    let lie = places(buffers);
    let (packets_in, packets_out) =
        (aggregator.counters().packets_in, aggregator.counters().packets_out);
    let written = join_with(aggregator, buffers, offset).expect("there is headroom");
    assert_eq!(places(buffers), lie, "no buffer moves or grows");
    assert_nothing_held(aggregator);
    assert_eq!(aggregator.counters().packets_in - packets_in, buffers.len() as u64);
    assert_eq!(aggregator.counters().packets_out - packets_out, written.len() as u64);
    for (index, (after, before)) in buffers.iter().zip(&before).enumerate() {
        match written.iter().filter(|&&written| written == index).count() {
            0 => assert_eq!(after, before, "what joined another stays as it came"),
            1 => assert!(
                before.len() < offset
                    || after[..offset - header].iter().all(|&byte| byte == BEFORE)
            ),
            _ => panic!("{index} is written twice"),
        }
    }
    written
}

#[test]
fn joined_buffers_hold_what_a_poll_gives() {
    for policy in policies().into_iter().filter(|policy| policy.storage == Storage::Fragments) {
        for (seed, framing) in (0..).zip(framings().map(Some).into_iter().chain([None])) {
            for layer in [Layer::Ethernet, Layer::Ip] {
                let made = || match framing {
                    Some(framing) => BatchAggregator::framed(framing, policy, KEY),
                    None => BatchAggregator::new(layer, policy, KEY),
                };
                if framing.is_some_and(|framing| framing.layer != layer) {
                    continue;
                }
                let packets = bytes_at(layer, seed, 200);
                let mut expected = Vec::new();
                let result =
                    poll_with(&mut made(), false, &unknown(layer, &packets), &mut |packet| {
                        let mut bytes = Vec::new();
                        if let Some(framing) = framing {
                            let header = framing.header(&packet);
                            assert!(
                                !packet.is_merged() || header.is_ok(),
                                "what merged has a header: {header:?}"
                            );
                            bytes.extend_from_slice(
                                &header.map_or(vec![0; framing.header_length()], |header| {
                                    header.to_vec()
                                }),
                            );
                        }
                        packet.copy_to(&mut bytes);
                        expected.push(bytes);
                        Ok(())
                    });
                assert_eq!(result, Ok(()));
                let header = framing.map_or(0, Framing::header_length);
                for offset in [header, header + 7] {
                    let mut buffers = buffers(&packets, offset, |_| 66_000);
                    let written = join(&mut made(), &mut buffers, offset, header);
                    assert_eq!(written.len(), expected.len());
                    for (index, expected) in written.iter().zip(&expected) {
                        assert!(
                            buffers[*index][offset - header..] == expected[..],
                            "{policy:?} {framing:?} {index}"
                        );
                    }
                }
            }
        }
    }
}

/// Splits what one write would be, in each of the three ways.
fn split(framing: Framing, written: &[u8]) -> Vec<Vec<u8>> {
    let (offload, packet) = framing.parse(written).expect("the header fits the packet");
    assert_eq!(written.len() - packet.len(), framing.header_length());
    let mut segmenter = Segmenter::new();
    let mut together = Vec::new();
    let plan = segmenter.split(framing, written, &mut together).expect("it can be split");
    assert_eq!(plan.segments > 1, offload.gso.is_some());
    let mut slice = vec![0; plan.total_length() + 3];
    let mut back_to_back = BackToBack::new(&mut slice);
    assert_eq!(segmenter.split(framing, written, &mut back_to_back), Ok(plan));
    assert_eq!(back_to_back.used(), together.len());
    assert_eq!(slice[..together.len()], together);
    let mut each =
        vec![vec![0; 5 + plan.segment_length.max(plan.last_length)]; plan.segments as usize];
    let mut sizes = vec![0; each.len()];
    let mut buffers = EachBuffer::new(&mut each, 5, &mut sizes);
    assert_eq!(segmenter.split(framing, written, &mut buffers), Ok(plan));
    assert_eq!(buffers.used(), sizes.len());
    let segments: Vec<_> =
        each.iter().zip(&sizes).map(|(buffer, size)| buffer[5..5 + size].to_vec()).collect();
    assert_eq!(segments.concat(), together);
    segments
}

/// Flows of all kinds that a header can name, and some that it cannot.
fn flows(layer: Layer, payload: usize) -> Vec<Frame> {
    let plain = [
        Frame::tcp4(1, payload).with_timestamps(1, 2),
        Frame::tcp6(9, payload),
        Frame::udp4(payload),
        Frame::udp6(payload),
    ];
    let mut flows: Vec<_> = plain.to_vec();
    flows.push(Frame::dccp4(1, payload));
    flows.extend(plain.iter().cloned().map(Frame::in_vxlan4));
    flows.extend(plain.iter().cloned().map(Frame::in_vxlan6));
    flows.extend(plain.iter().cloned().map(Frame::in_geneve));
    flows.push(Frame::tcp4(1, payload).in_gre());
    flows.push(Frame::tcp4(1, payload).in_ip4());
    if layer == Layer::Ip {
        flows.into_iter().map(Frame::at_ip).collect()
    } else {
        flows.into_iter().chain(plain.map(|frame| frame.tagged(9))).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 120 }, ..ProptestConfig::default() })]

    #[test]
    fn a_split_restores_the_very_packets(
        framing in 0usize..5, trusted: bool, payload in 1usize..1_400, size in 2usize..100,
        picks in prop_oneof![
            prop::collection::vec((0usize..100, 1usize..30), 1..12),
            // Flows that take turns, which from the second call on are put in order.
            prop::collection::vec((0usize..100, 1usize..3), 30..90),
        ],
        spares in prop::collection::vec(prop_oneof![Just(0usize), 1usize..3_000, Just(66_000)], 7), headroom in 0usize..40
    ) {
        let framing = framings()[framing];
        let mut flows = flows(framing.layer, payload);
        let mut packets = Vec::new();
        for (pick, count) in picks {
            let flow = pick % flows.len();
            let frames = flows[flow].run(count);
            flows[flow] = frames[count - 1].following();
            packets.extend(frames.iter().map(Frame::to_bytes));
        }
        let policy = if trusted { Policy::gro_with_udp().with_trusted_input() } else { Policy::gro_with_udp() };
        let mut aggregator = BatchAggregator::framed(framing, policy, KEY);
        let header = framing.header_length();
        let offset = header + headroom;
        let mut flows: HashMap<_, [Vec<Vec<u8>>; 2]> = HashMap::new();
        let mut note = |which: usize, frame: Vec<u8>| flows.entry(flow_key(&frame, framing.layer == Layer::Ip)).or_default()[which].push(frame);
        for packets in packets.chunks(size) {
            let mut buffers = buffers(packets, offset, |index| spares[index % 7]);
            let written = join(&mut aggregator, &mut buffers, offset, header);
            packets.iter().for_each(|packet| note(0, packet.clone()));
            written.iter().flat_map(|&index| split(framing, &buffers[index][headroom..])).for_each(|frame| note(1, frame));
        }
        for (key, [came, left]) in flows {
            prop_assert_eq!(came.len(), left.len(), "{:?}", key);
            prop_assert!(came == left, "{:?}", key);
        }
    }
}

/// Where flows took turns in the call before, those of this one are joined one after the other, in
/// the order of their first packets.
#[test]
fn flows_that_take_turns_merge_whole_and_keep_their_order() {
    let mut aggregator = BatchAggregator::framed(Framing::TUN, Policy::gro(), KEY);
    let frames = workload::w2(8, 64);
    let packets: Vec<Vec<u8>> = frames.iter().map(|frame| frame[14..].to_vec()).collect();
    for call in 0..3 {
        let mut buffers = buffers(&packets, 10, |_| 66_000);
        let written = join(&mut aggregator, &mut buffers, 10, 10);
        assert_eq!(written, [0, 1, 2, 3, 4, 5, 6, 7], "call {call}");
        let restored: Vec<_> =
            written.iter().map(|&index| split(Framing::TUN, &buffers[index])).collect();
        for (flow, restored) in restored.into_iter().enumerate() {
            let came: Vec<_> = packets.iter().skip(flow).step_by(8).cloned().collect();
            assert_eq!(restored, came, "call {call}, flow {flow}");
        }
    }
    assert_eq!(aggregator.counters().merged, 3 * 56);
}

#[test]
fn each_buffer_takes_just_what_it_has_room_for() {
    let payload = 100;
    let packets = Frame::tcp4(1, payload).run_bytes(6);
    let whole = packets[0].len();
    for policy in [Policy::gro(), Policy::lro(), Policy::gro().with_trusted_input()] {
        for spare in 0..=5 * payload {
            let mut aggregator = BatchAggregator::new(Layer::Ethernet, policy, KEY);
            let mut buffers = buffers(&packets, 3, |_| spare);
            let written = join(&mut aggregator, &mut buffers, 3, 0);
            let in_one = spare / payload + 1;
            assert_eq!(
                written,
                (0..6).step_by(in_one).collect::<Vec<_>>(),
                "{spare} bytes of room"
            );
            for &index in &written {
                let joined = in_one.min(6 - index);
                assert_eq!(buffers[index].len(), 3 + whole + (joined - 1) * payload);
                let expect = check::Expect::default();
                assert!(
                    check::frame(&buffers[index][3..], &expect).is_ok(),
                    "{spare}: its checksums and lengths are right"
                );
            }
            assert_eq!(aggregator.counters().reason(Reason::ByteLimit), written.len() as u64 - 1);
        }
    }
}

#[test]
fn without_room_for_the_header_nothing_is_touched() {
    let packets = workload::w1(3);
    for framing in framings() {
        let needed = framing.header_length();
        let packets: Vec<_> = if framing.layer == Layer::Ip {
            packets.iter().map(|packet| packet[14..].to_vec()).collect()
        } else {
            packets.clone()
        };
        let mut aggregator = BatchAggregator::framed(framing, Policy::gro(), KEY);
        for offset in 0..needed {
            let mut buffers = buffers(&packets, offset, |_| 9_000);
            let before = buffers.clone();
            assert_eq!(
                join_with(&mut aggregator, &mut buffers, offset),
                Err(NoHeadroom { needed, offset })
            );
            assert_eq!((buffers, aggregator.counters().packets_in), (before, 0));
        }
        let mut buffers = buffers(&packets, needed, |_| 9_000);
        assert_eq!(join(&mut aggregator, &mut buffers, needed, needed), [0]);
    }
}

/// Returns whether four frames merge into one packet, in place and gathered.
fn merges(framing: Framing, frames: &[Frame]) -> bool {
    let frames = frames
        .iter()
        .cloned()
        .map(|frame| if framing.layer == Layer::Ip { frame.at_ip() } else { frame });
    let packets: Vec<_> = frames.map(|frame| frame.to_bytes()).collect();
    let offset = framing.header_length();
    let mut aggregator = BatchAggregator::framed(framing, Policy::gro_with_udp(), KEY);
    let mut gathered = 0;
    aggregator.poll_gathered(&packets, |_| gathered += 1);
    let mut buffers = buffers(&packets, offset, |_| 9_000);
    let written = join(&mut aggregator, &mut buffers, offset, offset).len();
    assert_eq!(written, gathered, "both ways have the same rules");
    written == 1
}

#[test]
fn what_the_receiver_cannot_segment_does_not_merge() {
    let cannot_segment = |framing: Framing, frames: &[Frame]| {
        let packets: Vec<_> = frames.iter().map(Frame::to_bytes).collect();
        let mut aggregator = BatchAggregator::framed(framing, Policy::gro_with_udp(), KEY);
        aggregator.poll_gathered(&packets, |_| ());
        assert_eq!(aggregator.counters().reason(Reason::CannotSegment), frames.len() as u64);
        !merges(framing, frames)
    };
    let udp_tunnels: [fn(Frame) -> Frame; 3] =
        [Frame::in_vxlan4, Frame::in_vxlan6, Frame::in_geneve];
    let others: [fn(Frame) -> Frame; 3] = [Frame::in_gre, Frame::in_ip4, Frame::in_ip6];
    let vlan =
        |tpid: u16| move |frame: &mut Frame| frame.vlans = vec![Vlan { tpid, ..Vlan::default() }];
    for framing in framings() {
        let run = |frame: Frame| {
            if framing.layer == Layer::Ip { frame.at_ip().run(4) } else { frame.run(4) }
        };
        let tunnel = framing.format == Format::Tunnel;
        for frame in [Frame::tcp4(1, 100), Frame::udp4(100), Frame::tcp6(1, 100)] {
            assert!(merges(framing, &run(frame.clone())));
            udp_tunnels.iter().for_each(|through| {
                assert_eq!(merges(framing, &run(through(frame.clone()))), tunnel)
            });
            others
                .iter()
                .for_each(|through| assert!(cannot_segment(framing, &run(through(frame.clone())))));
            if framing.layer == Layer::Ethernet {
                assert!(merges(framing, &frame.clone().tagged(5).tagged(6).run(4)), "two tags");
                assert!(merges(framing, &frame.clone().with(vlan(0x88a8)).run(4)), "a service tag");
                let three = frame.clone().tagged(5).tagged(6).tagged(7);
                let pppoe = frame.clone().in_pppoe();
                let mpls = frame.clone().with(|frame| frame.mpls = vec![Mpls::default()]);
                let inner_tag = frame.clone().in_vxlan4().with(|frame| vlan(0x9100)(frame));
                for unknown in [
                    three,
                    pppoe.clone(),
                    pppoe.tagged(5),
                    mpls.clone(),
                    mpls.tagged(5),
                    frame.with(vlan(0x9100)),
                    inner_tag,
                ] {
                    assert!(cannot_segment(framing, &unknown.run(4)), "{unknown:?}");
                    // Whoever knows that the receiver can, says so.
                    let able = framing.with_support(GsoSupport::ALL);
                    assert_eq!(
                        merges(able, &unknown.run(4)),
                        unknown.tunnel.is_none() || tunnel,
                        "{unknown:?}"
                    );
                }
            }
        }
        // Accurate ECN: whoever cuts would leave CWR on the first packet alone.
        assert!(cannot_segment(framing, &run(Frame::tcp4(1, 100).with_flags(ACK | CWR))));
        assert!(
            cannot_segment(framing, &run(Frame::dccp4(1, 100)))
                && cannot_segment(framing, &run(Frame::dccp6(1, 100)))
        );
    }
}

#[test]
fn segments_that_a_kernel_would_change_do_not_merge() {
    for framing in framings() {
        // A kernel makes TCP segments of at least 8 bytes; a shorter one may be the last.
        assert!(
            merges(framing, &Frame::tcp4(1, 8).run(4)) && merges(framing, &Frame::udp4(7).run(4))
        );
        assert!(!merges(framing, &Frame::tcp4(1, 7).run(4)));
        assert!(merges(framing, &[Frame::tcp4(1, 8), Frame::tcp4(9, 1)]));
    }
}

#[test]
fn what_one_kind_of_header_has_no_words_for_gets_none() {
    // Merged without a framing, and then to be described for one.
    let packets = Frame::tcp4(1, 100).in_pppoe().run_bytes(4);
    let mut aggregator = BatchAggregator::new(Layer::Ethernet, PARTIAL_GRO, KEY);
    let mut headers = Vec::new();
    aggregator.poll(&packets, |packet| {
        headers.push((
            Framing::TAP.header(&packet),
            Framing::TAP.with_support(GsoSupport::ALL).header(&packet),
        ))
    });
    let [(refused, made)] = &headers[..] else { panic!("one packet: {headers:?}") };
    assert_eq!(*refused, Err(VirtioError::Unsupported(Unsupported::LinkHeader)));
    assert_eq!(made.map(|header| header[1]), Ok(1), "TCP over IPv4");
}

#[test]
fn trusted_input_is_not_read_and_other_is() {
    let mut packets = workload::w1(5);
    *packets[2].last_mut().expect("payload") ^= 1;
    let run = |policy: Policy| {
        let mut aggregator = BatchAggregator::framed(Framing::TAP, policy, KEY);
        let mut buffers = buffers(&packets, 10, |_| 9_000);
        let written = join(&mut aggregator, &mut buffers, 10, 10);
        (
            written,
            aggregator.counters().verified_in_software,
            aggregator.counters().reason(Reason::BadChecksum),
        )
    };
    assert_eq!(run(Policy::gro().with_trusted_input()), (vec![0], 0, 0));
    // A run of the last two is one more super-packet.
    assert_eq!(run(Policy::gro()), (vec![0, 2, 3], 4, 1));
}

#[test]
fn partial_checksums_are_for_headers_only() {
    let mut merged = 0;
    for (layer, seed) in [(Layer::Ethernet, 1), (Layer::Ip, 2), (Layer::Ethernet, 4)] {
        let packets = bytes_at(layer, seed, 400);
        for policy in [
            Policy::gro_with_udp(),
            Policy::lro().with_max_flows(64),
            Policy::gro().with_trusted_input(),
        ] {
            for framing in [None, Some(Framing::new(TUNNEL.format, TUNNEL.order, layer))] {
                let mut aggregator = framing.map_or_else(
                    || BatchAggregator::new(layer, policy, KEY),
                    |framing| BatchAggregator::framed(framing, policy, KEY),
                );
                let result =
                    poll_with(&mut aggregator, false, &unknown(layer, &packets), &mut |packet| {
                        if packet.is_merged() {
                            merged += 1;
                            let partial =
                                framing.is_some() && matches!(policy.mode, Mode::Gro { .. });
                            assert_eq!(
                                matches!(packet.metadata.checksum, RxChecksum::Partial { .. }),
                                partial
                            );
                            let mut bytes = Vec::new();
                            packet.copy_to(&mut bytes);
                            let expect = check::Expect {
                                starts_at_ip: layer == Layer::Ip,
                                partial,
                                ..check::Expect::default()
                            };
                            // Of a tunnel's own checksum the sum of the pseudo-header is there.
                            let outer = packet.metadata.layout.and_then(|layout| layout.outer);
                            let seeded = partial
                                && outer.is_some_and(|outer| outer.checksum(&bytes).is_some());
                            assert!(
                                policy.trusted_input
                                    || seeded
                                    || check::frame(&bytes, &expect).is_ok()
                            );
                        }
                        Ok(())
                    });
                assert_eq!(result, Ok(()));
            }
        }
    }
    assert!(merged > 100, "{merged}");
}

/// LRO gives up padding that no checksum shows: it does not come between two payloads.
#[test]
fn padding_goes_as_soon_as_something_is_joined() {
    let mut packets: Vec<_> = Frame::tcp4(1, 2).run_bytes(3);
    packets.iter_mut().for_each(|packet| packet.resize(60, 0));
    let mut buffers = buffers(&packets, 0, |_| 100);
    let mut aggregator = BatchAggregator::new(Layer::Ethernet, Policy::lro(), KEY);
    assert_eq!(join(&mut aggregator, &mut buffers, 0, 0), [0]);
    assert_eq!(buffers[0].len(), 54 + 3 * 2);
    assert!(check::frame(&buffers[0], &check::Expect::default()).is_ok());
}

/// Wrong checksums do not become right ones by merging.
#[test]
fn a_wrong_checksum_passes_as_it_came() {
    let packets = Frame::udp4(90).with_checksum(Checksum::Wrong).run_bytes(3);
    let mut buffers = buffers(&packets, 10, |_| 9_000);
    let mut aggregator = BatchAggregator::framed(Framing::TAP, Policy::gro_with_udp(), KEY);
    assert_eq!(join(&mut aggregator, &mut buffers, 10, 10), [0, 1, 2]);
    for (buffer, packet) in buffers.iter().zip(&packets) {
        assert_eq!((&buffer[..10], &buffer[10..]), (&[0; 10][..], &packet[..]));
    }
}

/// A buffer of any type, so that the engine is compiled once for all.
pub(super) struct AnyBuffer<'a>(pub(super) Box<dyn PacketBuffer + 'a>);

impl AsRef<[u8]> for AnyBuffer<'_> {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl AsMut<[u8]> for AnyBuffer<'_> {
    fn as_mut(&mut self) -> &mut [u8] {
        (*self.0).as_mut()
    }
}

impl PacketBuffer for AnyBuffer<'_> {
    fn spare(&self) -> usize {
        self.0.spare()
    }

    fn truncate(&mut self, length: usize) {
        self.0.truncate(length);
    }

    fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn extend_and_sum(&mut self, bytes: &[u8], ahead: &[u8], simd: Simd) -> u16 {
        self.0.extend_and_sum(bytes, ahead, simd)
    }
}

/// Pools of slices, and mutable references to buffers, are joined like vectors.
#[test]
fn other_buffers_are_joined_alike() {
    fn any<'a>(buffers: impl IntoIterator<Item = impl PacketBuffer + 'a>) -> Vec<AnyBuffer<'a>> {
        buffers.into_iter().map(|buffer| AnyBuffer(Box::new(buffer))).collect()
    }
    fn joined<B: PacketBuffer>(mut buffers: Vec<B>) -> (Vec<usize>, Vec<Vec<u8>>) {
        let mut aggregator = BatchAggregator::framed(Framing::TAP, Policy::gro_with_udp(), KEY);
        let written =
            aggregator.join_in_place(&mut buffers, 12).expect("there is headroom").to_vec();
        let bytes = written.iter().map(|&index| buffers[index].as_ref().to_vec()).collect();
        (written, bytes)
    }
    let packets = bytes_at(Layer::Ethernet, 2, 200);
    let made = || buffers(&packets, 12, |index| index * 37 % 5_000);
    let expected = joined(made());
    assert!(expected.0.len() < packets.len());
    let mut vectors = made();
    assert_eq!(joined(any(&mut vectors)), expected);
    let mut pool: Vec<_> = made()
        .into_iter()
        .map(|mut buffer| {
            let length = buffer.len();
            buffer.resize(buffer.capacity(), 0);
            (buffer, length)
        })
        .collect();
    assert_eq!(
        joined(any(pool.iter_mut().map(|(slice, length)| SliceBuffer::new(slice, *length)))),
        expected
    );
    #[cfg(feature = "bytes")]
    assert_eq!(
        joined(any(made().into_iter().map(|buffer| {
            let mut bytes = bytes::BytesMut::with_capacity(buffer.capacity());
            bytes.extend_from_slice(&buffer);
            bytes
        }))),
        expected
    );
}
