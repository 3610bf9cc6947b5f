//! Packets that are not alike merge where the policy says so, and come apart again into the very
//! packets, by the parts that the super-packet has.

use proptest::prelude::*;
use superpacket::aggregate::Reason::*;
use superpacket::aggregate::{HashKey, Policy, Storage};
use superpacket::packet::{Layer, RxPacket};
use superpacket::segment::{
    BackToBack, ChecksumOutput, EachBuffer, GsoPacket, MaxSegments, SegmentError, SegmentOptions,
    SegmentSize, Segmentable, Segmenter,
};
use superpacket::super_packet::SuperPacket;
use superpacket::virtio::Framing;
use superpacket_traffic::frame::{ACK, CWR, FIN, Frame, Ip, PSH, Pppoe, Transport, stream_bytes};
use superpacket_traffic::random::Random;

use crate::expect::{counts, reversed_by};
use crate::super_packets::{Arrival, Known, arrive};
use crate::support::{Aggregator, BatchAggregator, Output, Packet, packets, unknown};

const UNEVEN: Policy = Policy::gro_with_udp().with_merge_uneven();

/// TCP behind the headers that may be uneven.
fn bases() -> [Frame; 5] {
    let tcp4 = Frame::tcp4(u32::MAX - 700, 100).with_id(0xfff9);
    [
        tcp4.clone(),
        tcp4.clone().with_timestamps(5, 6).tagged(7),
        tcp4.at_ip(),
        Frame::tcp6(1, 100).with_timestamps(5, 6),
        Frame::tcp6(1, 100).at_ip(),
    ]
}

/// The frames of a flow, of these payload lengths.
fn lengths(base: &Frame, lengths: &[usize]) -> Vec<Frame> {
    let mut next = base.clone();
    let frame = |&length: &usize| {
        let frame = next.clone().with(|frame| frame.payload = stream_bytes(length as u32, length));
        next = frame.following();
        frame
    };
    lengths.iter().map(frame).collect()
}

/// They merge in these parts, of so many packets each.
#[track_caller]
fn merges(frames: &[Frame], parts: &[u32]) -> Output {
    let run = reversed_by(UNEVEN, &packets(frames));
    assert_eq!((counts(&run), run.reasons()), (vec![frames.len() as u32], vec![PollEnd]));
    let output = run.outputs[0].clone();
    assert_eq!(output.parts.iter().map(|part| part.segments()).collect::<Vec<_>>(), parts);
    assert_eq!(
        output.metadata.gso,
        output.parts.first().map(|part| part.gso()).or(output.metadata.gso)
    );
    output
}

#[test]
fn packets_that_are_alike_merge_as_ever_and_have_no_parts() {
    for base in bases() {
        merges(&base.run(9), &[]);
        merges(&lengths(&base, &[100, 100, 40]), &[]);
        let mut pushed = base.run(3);
        pushed[2].tcp_mut().flags |= PSH;
        merges(&pushed, &[]);
    }
}

#[test]
fn lengths_may_differ() {
    for base in bases() {
        merges(&lengths(&base, &[100, 40, 100, 100, 7]), &[2, 3]);
        merges(&lengths(&base, &[100, 200, 200, 100, 300, 1]), &[1, 3, 2]);
        merges(&lengths(&base, &[1, 2, 3]), &[1, 1, 1]);
    }
}

#[test]
fn a_push_may_be_anywhere() {
    for base in bases() {
        for place in 0..6 {
            let mut frames = base.run(6);
            frames[place].tcp_mut().flags |= PSH;
            let parts = [place as u32 + 1, 5 - place as u32];
            let output = merges(&frames, if place == 5 { &[] } else { &parts });
            let flags = output.bytes[base.offsets().transport + 13];
            assert_eq!(u16::from(flags) & PSH, PSH, "the super-packet has it too");
        }
        let mut all = base.run(3);
        all.iter_mut().for_each(|frame| frame.tcp_mut().flags |= PSH);
        merges(&all, &[1, 1, 1]);
    }
}

#[test]
fn identifications_may_jump_stand_still_and_run_again() {
    for base in &bases()[..3] {
        let ids = |ids: &[u16]| {
            base.run(ids.len())
                .into_iter()
                .zip(ids)
                .map(|(frame, &id)| frame.with_id(id))
                .collect::<Vec<_>>()
        };
        merges(&ids(&[1, 2, 9, 10, 11]), &[2, 3]);
        merges(&ids(&[1, 2, 3, 3, 3, 3]), &[3, 3]);
        merges(&ids(&[7, 7, 7, 8, 9, 10]), &[3, 3]);
        merges(&ids(&[0xffff, 0, 1, 0xffff, 0xffff, 0]), &[3, 2, 1]);
        merges(&ids(&[5, 500, 50, 5000]), &[1, 1, 1, 1]);
        merges(&ids(&[4, 4, 4]), &[]);
    }
}

#[test]
fn congestion_flags_end_it_and_a_fin_is_the_last() {
    for base in bases() {
        let mut frames = lengths(&base, &[100, 40, 100, 30, 100]);
        frames[3].tcp_mut().flags |= FIN;
        let run = reversed_by(UNEVEN, &packets(&frames));
        assert_eq!((counts(&run), run.reasons()), (vec![4, 1], vec![Push, PollEnd]));
        let first = base.clone().with(|frame| frame.tcp_mut().flags |= FIN).run(1);
        assert_eq!(reversed_by(UNEVEN, &packets(&first)).reasons(), [Push]);
        let mut frames = lengths(&base, &[100, 40, 100, 30, 100, 30]);
        frames[2..].iter_mut().for_each(|frame| frame.tcp_mut().flags |= CWR);
        let run = reversed_by(UNEVEN, &packets(&frames));
        assert_eq!((counts(&run), run.reasons()), (vec![2, 4], vec![FlagsChanged, PollEnd]));
        assert_eq!(run.outputs[1].parts.len(), 2, "with CWR on each");
    }
}

#[test]
fn a_gap_a_limit_or_another_form_of_checksum_ends_it_as_ever() {
    for base in bases() {
        let mut frames = lengths(&base, &[100, 40, 100, 60, 100]);
        frames.remove(2);
        assert_eq!(reversed_by(UNEVEN, &packets(&frames)).reasons(), [Sequence, PollEnd]);
        let frames = lengths(&base, &[100, 40, 100, 60, 100]);
        let run = reversed_by(UNEVEN.with_max_packets(3), &packets(&frames));
        assert_eq!((counts(&run), run.reasons()), (vec![3, 2], vec![PacketLimit, PollEnd]));
        let bytes = (base.offsets().payload - base.offsets().network) as u32 + 300;
        let run = reversed_by(UNEVEN.with_max_bytes(bytes), &packets(&frames));
        assert_eq!((counts(&run), run.reasons()), (vec![4, 1], vec![ByteLimit, PollEnd]));
        let mut came = packets(&frames);
        came[2] = crate::expect::partial(&frames[2]);
        assert!(reversed_by(UNEVEN, &came).reasons().contains(&ChecksumForm));
    }
}

#[test]
fn only_tcp_outside_of_tunnels_is_uneven() {
    let pppoe = Frame::tcp4(1, 100).with(|frame| frame.pppoe = Some(Pppoe::default()));
    for base in [
        Frame::udp4(100),
        Frame::udp6(100),
        Frame::tcp4(1, 100).in_vxlan4(),
        Frame::tcp6(1, 100).in_ip4(),
        pppoe,
    ] {
        let frames = lengths(&base, &[100, 100, 40, 100, 100]);
        for policy in [Policy::gro_with_udp(), UNEVEN] {
            let run = reversed_by(policy, &packets(&frames));
            assert_eq!(
                (counts(&run), run.reasons()),
                (vec![3, 2], vec![ShortSegment, PollEnd]),
                "{base:?}"
            );
        }
    }
}

#[test]
fn super_packets_join_with_their_push_and_their_short_ends() {
    for base in bases() {
        for known in [Known::Nothing, Known::Verified, Known::Vouched, Known::Partial] {
            let mut frames = lengths(&base, &[100, 100, 30, 100, 100, 100, 120, 120, 20]);
            frames[2].tcp_mut().flags |= PSH;
            frames[5].tcp_mut().flags |= PSH;
            let arrivals = [&frames[..3], &frames[3..6], &frames[6..]]
                .map(|frames| Arrival::of(frames, known));
            for policy in [UNEVEN, UNEVEN.with_merge_past_push()] {
                let outputs = arrive(policy, &arrivals, &[(3, 9, PollEnd)]);
                assert_eq!(
                    outputs[0].parts.iter().map(|part| part.segments()).collect::<Vec<_>>(),
                    [3, 3, 3]
                );
            }
        }
    }
}

#[test]
fn a_device_and_a_join_in_place_take_nothing_uneven() {
    let frames: Vec<_> =
        lengths(&Frame::tcp4(1, 100), &[100, 40, 100, 100]).iter().map(Frame::to_bytes).collect();
    let mut left = Vec::new();
    BatchAggregator::framed(Framing::TAP, UNEVEN, HashKey::new(1))
        .poll(&unknown(Layer::Ethernet, &frames), |packet| {
            left.push((packet.metadata.packets, packet.parts().len()))
        });
    assert_eq!(left, [(2, 0), (2, 0)]);
    let mut aggregator = BatchAggregator::new(Layer::Ethernet, UNEVEN, HashKey::new(1));
    let mut buffers = frames;
    buffers.iter_mut().for_each(|buffer| buffer.reserve(1000));
    assert_eq!(aggregator.join_in_place(&mut buffers, 0), Ok(&[0, 2][..]));
}

/// The segments of an uneven packet, written in each way that there is.
fn cut_in_each_way<P: Segmentable>(packet: &P) -> Vec<Vec<Vec<u8>>> {
    let options = SegmentOptions::default().with_checksum(ChecksumOutput::AsMerged);
    let mut segmenter = Segmenter::new();
    let plan = segmenter.plan(packet, &options).expect("can be cut");
    let count = plan.segments as usize;
    let (mut gathered, mut numbers) = (Vec::new(), Vec::new());
    let done = segmenter.segment(packet, &options, |segment| {
        let mut frame = Vec::new();
        segment.copy_to(&mut frame);
        gathered.push(frame);
        numbers.push((segment.index as usize, segment.last));
    });
    assert_eq!(done, Ok(plan));
    assert_eq!(numbers, (0..count).map(|index| (index, index + 1 == count)).collect::<Vec<_>>());
    let longest = gathered.iter().map(Vec::len).max();
    assert_eq!(
        (Some(plan.segment_length), Some(plan.last_length)),
        (longest, gathered.last().map(Vec::len))
    );
    let mut headers = vec![[0; 200]; count];
    let mut sizes = vec![0; count];
    let mut with_headers = Vec::new();
    let mut buffers = EachBuffer::new(&mut headers, 0, &mut sizes);
    let done = segmenter.segment_with_headers(
        packet,
        &options,
        &mut HeadersOnly(&mut buffers),
        |segment| {
            let mut frame = Vec::new();
            segment.copy_to(&mut frame);
            with_headers.push(frame);
        },
    );
    assert_eq!(done, Ok(plan));
    let mut bytes = vec![0; plan.total_length()];
    let mut back_to_back = BackToBack::new(&mut bytes);
    assert_eq!(segmenter.segment_linear(packet, &options, &mut back_to_back), Ok(plan));
    let used = back_to_back.used();
    assert_eq!(&bytes[..used], gathered.concat());
    let (mut buffers, mut sizes) = (vec![vec![0; 2000]; count], vec![0; count]);
    assert_eq!(
        segmenter.segment_linear(
            packet,
            &options,
            &mut EachBuffer::new(&mut buffers, 0, &mut sizes)
        ),
        Ok(plan)
    );
    let each = buffers.iter().zip(&sizes).map(|(buffer, &size)| buffer[..size].to_vec()).collect();
    assert!(segmenter.counters().balanced(), "{:?}", segmenter.counters());
    assert_eq!((segmenter.counters().cut, segmenter.counters().segments), (4, 4 * count as u64));
    vec![gathered, with_headers, each]
}

/// Buffers that hold headers, and no segments.
struct HeadersOnly<'b, B>(&'b mut B);

impl<B: superpacket::segment::SegmentBuffers> superpacket::segment::SegmentBuffers
    for HeadersOnly<'_, B>
{
    fn buffer(&mut self, length: usize) -> Option<&mut [u8]> {
        self.0.buffer(length)
    }
}

fn received(bytes: &[u8], layer: Layer) -> RxPacket<Vec<u8>> {
    Packet { layer, ..bytes.to_vec().into() }.receive()
}

#[test]
fn it_is_cut_in_every_way_and_planned_before() {
    for base in bases() {
        let mut frames = lengths(&base, &[100, 100, 30, 250, 250, 250, 1, 2]);
        frames[4].tcp_mut().flags |= PSH;
        let bytes: Vec<_> = frames.iter().map(Frame::to_bytes).collect();
        for storage in [Storage::Fragments, Storage::Linear] {
            let mut aggregator: Aggregator<Vec<u8>> =
                Aggregator::new(UNEVEN.with_storage(storage), HashKey::new(1));
            let layer = if base.link.is_some() { Layer::Ethernet } else { Layer::Ip };
            let mut all = 0;
            let mut sink = |packet: SuperPacket<'_, Vec<u8>>| {
                all += 1;
                assert!(cut_in_each_way(&packet).iter().all(|cut| *cut == bytes));
                // Less room than its segments need, and a limit of segments.
                let mut small = vec![0; 700];
                let refused = Segmenter::new().segment_linear(
                    &packet,
                    &SegmentOptions::default(),
                    &mut BackToBack::new(&mut small),
                );
                assert!(matches!(refused, Err(SegmentError::OutputTooSmall { .. })));
                let limit = SegmentOptions::default()
                    .with_max_segments(MaxSegments::new(7).expect("not 0"));
                assert_eq!(
                    Segmenter::new().plan(&packet, &limit),
                    Err(SegmentError::TooManySegments { needed: 8, limit: 7 })
                );
                // Who says how to cut is not told by the parts.
                let gso = packet
                    .metadata
                    .gso
                    .expect("merged")
                    .with_size(SegmentSize::new(983).expect("a size"));
                assert_eq!(
                    Segmenter::new()
                        .plan(&packet, &SegmentOptions::default().with_gso(gso))
                        .map(|plan| plan.segments),
                    Ok(1)
                );
            };
            aggregator.receive_batch(
                &mut bytes.iter().map(|bytes| received(bytes, layer)).collect(),
                0,
                &mut sink,
            );
            aggregator.flush_all(&mut sink);
            assert_eq!(all, 1);
        }
    }
}

#[test]
fn parts_that_are_not_the_packets_are_refused() {
    let frames = lengths(&Frame::tcp4(1, 100), &[100, 40, 100, 40]);
    let output = merges(&frames, &[2, 2]);
    let gso = output.metadata.gso.expect("merged");
    for parts in [&output.parts[..1], &[output.parts[0]; 3]] {
        let packet = GsoPacket::linear(&output.bytes, gso)
            .with_checksum(output.metadata.checksum)
            .with_parts(parts);
        let plan = Segmenter::new().plan(&packet, &SegmentOptions::default());
        assert_eq!(plan, Err(SegmentError::Length { needed: 140 * parts.len(), got: 280 }));
    }
}

#[test]
fn what_a_sink_refuses_keeps_its_parts() {
    let frames = lengths(&Frame::tcp4(1, 100), &[100, 40, 100, 40, 100]);
    let mut aggregator: Aggregator<Vec<u8>> = Aggregator::new(UNEVEN, HashKey::new(1));
    aggregator.receive_batch(
        &mut frames.iter().map(|frame| RxPacket::new(frame.to_bytes())).collect(),
        0,
        &mut |_: SuperPacket<'_, _>| (),
    );
    let mut parts = Vec::new();
    assert_eq!(aggregator.flush_all(&mut |_: SuperPacket<'_, Vec<u8>>| Err("full")), Err("full"));
    for _ in 0..2 {
        let refused = aggregator.flush_all(&mut |packet: SuperPacket<'_, Vec<u8>>| {
            parts.push(packet.parts().to_vec());
            Err("full")
        });
        assert_eq!(refused, Err("full"));
    }
    let mut cut = Vec::new();
    aggregator.flush_all(&mut |packet: SuperPacket<'_, Vec<u8>>| cut = Output::of(&packet).cut());
    assert!(parts[0].len() == 3 && parts[0] == parts[1]);
    assert_eq!(cut, frames.iter().map(Frame::to_bytes).collect::<Vec<_>>());
    // The slot is used again, for a flow that is even.
    let mut sink = |packet: SuperPacket<'_, Vec<u8>>| assert!(packet.parts().is_empty());
    aggregator.receive_batch(
        &mut Frame::tcp4(1, 100)
            .run(4)
            .iter()
            .map(|frame| RxPacket::new(frame.to_bytes()))
            .collect(),
        0,
        &mut sink,
    );
    aggregator.flush_all(&mut sink);
}

/// The frames of a flow that differ in whatever may differ.
fn uneven_frames(base: &Frame, random: &mut Random, count: usize) -> Vec<Frame> {
    let mut next = base.clone();
    let mut frames = Vec::new();
    for _ in 0..count {
        let mut frame = next.clone();
        match random.below(8) {
            0 => frame.payload = stream_bytes(3, 1 + random.below(200) as usize),
            1 => frame.tcp_mut().flags = ACK | PSH,
            2 => {
                if let Ip::V4(ip) = &mut frame.ip {
                    ip.id = ip.id.wrapping_add(random.below(3) as u16).wrapping_sub(1);
                }
            }
            _ => {}
        }
        next = frame.following();
        if random.below(8) != 0 {
            next.payload = stream_bytes(random.below(1000) as u32, base.payload.len());
        }
        if let (Transport::Tcp(next), Transport::Tcp(base)) = (&mut next.transport, &base.transport)
        {
            next.flags = base.flags;
        }
        frames.push(frame);
    }
    frames
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 64 }, ..ProptestConfig::default() })]

    /// Flows that come in turn, each of packets that differ: all of a flow merge in one, as single
    /// packets and as super-packets of those that a sender could have put together.
    #[test]
    fn all_of_a_flow_merge_and_come_back(seed: u64, batch in 1usize..50, linear: bool) {
        let mut random = Random::new(seed);
        let flows: Vec<_> = bases().iter().map(|base| uneven_frames(base, &mut random, 40)).collect();
        let mut came = Vec::new();
        let mut places = vec![0; flows.len()];
        while places.iter().any(|&place| place < 40) {
            let flow = random.below(flows.len() as u64) as usize;
            let count = 1 + random.below(4) as usize;
            came.extend(packets(&flows[flow][places[flow]..(places[flow] + count).min(40)]));
            places[flow] = (places[flow] + count).min(40);
        }
        let policy = UNEVEN.with_storage(if linear { Storage::Linear } else { Storage::Fragments });
        let mut aggregator = crate::support::aggregator(policy);
        let mut outputs = Vec::new();
        let mut sink = |packet: SuperPacket<'_, Vec<u8>>| outputs.push(Output::of(&packet));
        for batch in came.chunks(batch) {
            aggregator.receive_batch(&mut batch.iter().map(Packet::receive).collect(), 0, &mut sink);
        }
        aggregator.flush_all(&mut sink);
        prop_assert_eq!(outputs.iter().map(|output| output.metadata.packets).collect::<Vec<_>>(), [40; 5]);
        for output in &outputs {
            let cut = output.cut();
            prop_assert!(flows.iter().any(|frames| frames.iter().map(Frame::to_bytes).eq(cut.iter().cloned())));
        }
    }
}
