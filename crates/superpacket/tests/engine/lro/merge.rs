//! What merging does: two storages, newest fields, statistics, delivery.

use superpacket::aggregate::{Delivery, Mode, Policy, Reason, Storage};
use superpacket::packet::{FlowHash, RxChecksum, RxPacket};
use superpacket::super_packet::SuperPacket;
use superpacket_traffic::frame::{ACK, Checksum, Extension, Frame, PSH};

use super::{
    assert_all_untouched, assert_merged, assert_merges, assert_single, both_modes, linear, tcp,
};
use crate::support::*;

#[test]
fn fragments_mode_keeps_the_buffers() {
    let frames = Frame::tcp4(1000, 1448).with_timestamps(1, 2).run(10);
    let run = run(Policy::lro(), &packets(&frames));
    assert_eq!(run.reasons(), [Reason::PollEnd]);
    assert_merged(&run.outputs[0], 1000, 10 * 1448, 10);
    assert_eq!(run.outputs[0].pieces, 10);
    assert!(!run.outputs[0].contiguous);
}

#[test]
fn fragments_mode_hands_the_very_buffers_over() {
    let frames = packets(&Frame::tcp4(1000, 1448).run(4));
    let mut aggregator = aggregator(Policy::lro());
    let mut given = Vec::new();
    let mut sink = |mut packet: SuperPacket<'_, Vec<u8>>| {
        assert_eq!(packet.header().len(), 54);
        for piece in packet.take_pieces() {
            assert_eq!((piece.start(), piece.length()), (54, 1448));
            given.push(piece.into_buffer().expect("a buffer of its own"));
        }
    };
    for packet in &frames {
        aggregator.receive(packet.receive(), 0, &mut sink);
    }
    aggregator.poll_end(0, &mut sink);
    // Not even a header byte of the buffers was written to.
    assert_eq!(given, frames.iter().map(|packet| packet.bytes.clone()).collect::<Vec<_>>());
}

#[test]
fn linear_mode_copies_into_one_run_of_bytes() {
    let frames = Frame::tcp4(1000, 1448).with_timestamps(1, 2).run(10);
    let run = run(linear(), &packets(&frames));
    assert_eq!(run.reasons(), [Reason::PollEnd]);
    assert_merged(&run.outputs[0], 1000, 10 * 1448, 10);
    assert!(run.outputs[0].contiguous);
}

#[test]
fn linear_mode_releases_each_buffer_at_once() {
    let buffer = std::rc::Rc::<[u8]>::from(Frame::tcp4(1000, 1448).to_bytes());
    for (storage, held) in [(Storage::Fragments, 2), (Storage::Linear, 1)] {
        let key = superpacket::aggregate::HashKey::new(1);
        let policy = Policy::lro().with_storage(storage);
        let mut aggregator = Aggregator::new(policy, key).with_simd(superpacket::Simd::detect());
        let mut sink = |_: SuperPacket<'_, AnyBytes<'static>>| {};
        aggregator.receive(RxPacket::new(AnyBytes::Counted(buffer.clone())), 0, &mut sink);
        assert_eq!(aggregator.counters().held, 1);
        assert_eq!(std::rc::Rc::strong_count(&buffer), held, "{storage:?}");
        aggregator.poll_end(0, &mut sink);
        assert_eq!(std::rc::Rc::strong_count(&buffer), 1, "{storage:?}");
    }
}

#[test]
fn a_packet_that_nothing_followed_leaves_untouched() {
    for frame in
        [Frame::tcp4(1, 1448).with_timestamps(7, 8), Frame::tcp6(1, 1), Frame::tcp4(1, 999).at_ip()]
    {
        assert_single(&Packet { time: 77, ..frame.into() });
    }
}

#[test]
fn every_address_family_and_start_merges() {
    for frame in [
        Frame::tcp4(5, 700),
        Frame::tcp6(5, 700),
        Frame::tcp6(5, 701).with_timestamps(3, 4),
        Frame::tcp4(5, 701).at_ip(),
        Frame::tcp6(5, 700).at_ip(),
    ] {
        assert_merges(&packets(&frame.run(20)), 5, 20 * frame.payload.len(), &frame);
    }
}

#[test]
fn equal_ipv6_extension_headers_merge() {
    let frame = Frame::tcp6(5, 700)
        .with_ipv6(|ip| ip.extensions.push(Extension::DestinationOptions(vec![1, 4, 0, 0, 0, 0])));
    assert_merges(&packets(&frame.run(3)), 5, 2100, "");
}

#[test]
fn segments_of_any_length_merge_in_sequence() {
    // GRO would end at the first shorter or longer one; PSH would end it too.
    let mut sequence = u32::MAX - 2000;
    let first = sequence;
    let mut frames = Vec::new();
    for (index, length) in [1448, 1, 333, 1448, 8948, 2, 77].into_iter().enumerate() {
        let flags = if index % 2 == 1 { ACK | PSH } else { ACK };
        frames.push(Frame::tcp4(sequence, length).with_flags(flags));
        sequence = sequence.wrapping_add(length as u32);
    }
    for policy in both_modes() {
        let run = run(policy, &packets(&frames));
        assert_eq!(run.reasons(), [Reason::PollEnd]);
        assert_merged(&run.outputs[0], first, sequence.wrapping_sub(first) as usize, 7);
        assert_eq!(run.outputs[0].metadata.largest_payload, 8948);
        assert_eq!(tcp(&run.outputs[0]).flags, ACK | PSH, "PSH of any packet stays");
    }
}

#[test]
fn ip_identifications_do_not_matter() {
    let ids = [9, 9, 3, 0xffff, 0];
    let mut frames = Frame::tcp4(1, 500).run(5);
    frames.iter_mut().zip(ids).for_each(|(frame, id)| frame.ipv4_mut().id = id);
    assert_merges(&packets(&frames), 1, 2500, "");
}

#[test]
fn newest_ack_window_and_timestamps_leave() {
    let mut frames = Frame::tcp4(1, 500).run(3);
    let values = [
        (u32::MAX - 5, 100, u32::MAX - 1, u32::MAX - 9),
        (u32::MAX, 900, u32::MAX - 1, u32::MAX),
        (7, 300, 2, 5),
    ];
    for (frame, (ack, window, value, echo)) in frames.iter_mut().zip(values) {
        let tcp = frame.tcp_mut();
        (tcp.acknowledgement, tcp.window) = (ack, window);
        tcp.options = superpacket_traffic::frame::timestamps(value, echo);
    }
    for policy in both_modes() {
        // With two and with all three packets, so that no middle value can pass for the newest.
        for count in [2, 3] {
            let run = run(policy, &packets(&frames[..count]));
            assert_eq!(run.reasons(), [Reason::PollEnd]);
            assert_merged(&run.outputs[0], 1, count * 500, count as u32);
            let (ack, window, value, echo) = values[count - 1];
            let fields = tcp(&run.outputs[0]);
            assert_eq!(
                (fields.acknowledgement, fields.window, fields.timestamps),
                (ack, window, Some((value, echo)))
            );
        }
    }
}

#[test]
fn metadata_of_a_merged_packet() {
    let input: Vec<_> = packets(&Frame::tcp4(1, 500).run(3))
        .into_iter()
        .zip([10, 30, 20])
        .map(|(packet, time)| Packet { time, ..packet })
        .collect();
    for policy in both_modes() {
        let mut aggregator = aggregator(policy);
        let mut outputs = Vec::new();
        let mut sink = |packet: SuperPacket<'_, Vec<u8>>| {
            assert!(packet.is_merged());
            outputs.push(Output::of(&packet));
        };
        for packet in &input {
            let mut packet = packet.receive();
            (packet.hash, packet.queue) = (Some(FlowHash(0xdead_beef)), 3);
            aggregator.receive(packet, 0, &mut sink);
        }
        aggregator.poll_end(0, &mut sink);
        let metadata = outputs[0].metadata;
        assert_eq!(
            (metadata.packets, metadata.absorbed_acks, metadata.largest_payload),
            (3, 0, 500)
        );
        assert_eq!((metadata.hash, metadata.queue), (Some(FlowHash(0xdead_beef)), 3));
        assert_eq!(metadata.time, 20, "the last packet's");
    }
}

#[test]
fn a_partial_checksum_merges_into_a_full_one() {
    let frames = Frame::tcp4(1, 501).with_checksum(Checksum::Partial).run(4);
    let partial = RxChecksum::Partial { start: 34, offset: 16 };
    let input: Vec<_> =
        packets(&frames).into_iter().map(|packet| packet.with_checksum(partial)).collect();
    assert_merges(&input, 1, 4 * 501, "");
}

#[test]
fn statistics_are_those_of_inet_lro() {
    let mut input = packets(&Frame::tcp4(1, 500).run(5));
    input.push(Frame::tcp6(1, 500).into());
    input.push(Frame::udp4(500).into());
    for policy in both_modes() {
        let counters = run(policy, &input).counters;
        // Every packet of a session counts, its first and a lone one too; what passes does not.
        assert_eq!((counters.aggregated, counters.flushed, counters.no_desc), (6, 2, 0));
        assert_eq!(
            (counters.packets_in, counters.packets_out, counters.merged, counters.super_packets),
            (7, 3, 4, 1)
        );
        let length: usize = input.iter().map(|packet| packet.bytes.len()).sum();
        assert_eq!(
            (counters.bytes_in, counters.bytes_out),
            (length as u64, length as u64 - 4 * 54)
        );
    }
    let gro = run(PARTIAL_GRO, &input).counters;
    assert_eq!((gro.aggregated, gro.flushed), (0, 0), "statistics of LRO alone");
}

#[test]
fn delivery_per_poll_holds_until_the_poll_ends() {
    let frames = packets(&Frame::tcp4(1, 500).run(6));
    for policy in both_modes() {
        let run = run_polls(policy, &frames, 3);
        assert_eq!(run.reasons(), [Reason::PollEnd; 2]);
        assert_merged(&run.outputs[0], 1, 1500, 3);
        assert_merged(&run.outputs[1], 1501, 1500, 3);
    }
}

#[test]
fn delivery_at_once_leaves_nothing_held() {
    let frames = packets(&Frame::tcp4(1, 500).run(6));
    for policy in both_modes().map(|policy| policy.with_delivery(Delivery::AtOnce)) {
        let run = run(policy, &frames);
        assert_eq!(run.outputs.len(), 6, "each call is a poll of its own");
        assert_all_untouched(&run, &frames);

        let mut aggregator = aggregator(policy);
        let mut outputs = Vec::new();
        let mut batch = frames.iter().map(Packet::receive).collect();
        aggregator.receive_batch(&mut batch, 0, &mut |packet: SuperPacket<'_, Vec<u8>>| {
            outputs.push(Output::of(&packet))
        });
        assert!(batch.is_empty());
        assert_eq!(aggregator.counters().held, 0);
        assert_eq!(outputs.len(), 1);
        assert_merged(&outputs[0], 1, 3000, 6);
    }
}

#[test]
fn a_flow_flushed_by_tuple_leaves_alone() {
    let (one, other) = (Frame::tcp4(1, 500), Frame::tcp6(1, 500));
    let mut aggregator = aggregator(Policy::lro());
    let mut outputs = Vec::new();
    let mut sink = |packet: SuperPacket<'_, Vec<u8>>| outputs.push(Output::of(&packet));
    let mut batch =
        packets(&[one.run(2), other.run(2)].concat()).iter().map(Packet::receive).collect();
    aggregator.receive_batch(&mut batch, 0, &mut sink);
    aggregator.flush_flow(&Packet::from(&other).receive(), &mut sink);
    assert_eq!(aggregator.counters().held, 1);
    aggregator.poll_end(0, &mut sink);
    assert_eq!(
        outputs.iter().map(|output| output.metadata.reason).collect::<Vec<_>>(),
        [Reason::Requested, Reason::PollEnd]
    );
    assert_eq!(outputs[0].bytes[14] >> 4, 6);
    assert_eq!(outputs[1].bytes[14] >> 4, 4);
}

#[test]
fn the_policies_are_as_named() {
    assert_eq!(Policy::lro().mode, Mode::Lro { acks: false });
    assert_eq!(Policy::lro_with_acks().mode, Mode::Lro { acks: true });
    assert_eq!((Policy::lro().max_flows, Policy::lro_with_acks().max_flows), (8, 8));
    assert_eq!(
        (Policy::lro().max_bytes, Policy::lro().storage, Policy::lro().delivery),
        (65_535, Storage::Fragments, Delivery::PerPoll)
    );
}
