//! How far merging goes: packets, bytes, fragments, flows.

use superpacket::aggregate::{Policy, Reason, Storage};
use superpacket_traffic::frame::Frame;

use super::{assert_all_untouched, assert_merged, assert_merges, assert_untouched, both_modes};
use crate::support::*;

/// A run of segments of these lengths.
fn segments(first: &Frame, lengths: &[usize]) -> Vec<Packet> {
    let mut sequence = 1;
    let mut input = Vec::new();
    for &length in lengths {
        let frame = first.clone().with(|frame| {
            frame.tcp_mut().sequence = sequence;
            frame.payload = superpacket_traffic::frame::stream_bytes(sequence, length);
        });
        input.push(frame.into());
        sequence += length as u32;
    }
    input
}

/// Asserts that all but the last of these segments merge, and the last too if `fits`, in both
/// modes.
#[track_caller]
fn assert_last(first: &Frame, lengths: &[usize], fits: bool) {
    let input = segments(first, lengths);
    let (total, last) = (lengths.iter().sum::<usize>(), lengths[lengths.len() - 1]);
    if fits {
        return assert_merges(&input, 1, total, lengths);
    }
    for policy in both_modes() {
        let run = run(policy, &input);
        assert_eq!(run.reasons(), [Reason::ByteLimit, Reason::PollEnd], "{lengths:?}");
        assert_merged(&run.outputs[0], 1, total - last, lengths.len() as u32 - 1);
        assert_untouched(&run.outputs[1], &input[input.len() - 1]);
    }
}

#[test]
fn packets() {
    let input = crate::support::packets(&Frame::tcp4(1, 500).run(10));
    for policy in both_modes() {
        let run = run(policy.with_max_packets(4), &input);
        assert_eq!(run.reasons(), [Reason::PacketLimit, Reason::PacketLimit, Reason::PollEnd]);
        assert_eq!(run.payloads(), [2000, 2000, 1000]);
        assert_merged(&run.outputs[1], 2001, 2000, 4);
    }
}

#[test]
fn a_limit_of_one_packet_merges_nothing() {
    let input = crate::support::packets(&Frame::tcp4(1, 500).run(3));
    for policy in both_modes() {
        for max_packets in [0, 1] {
            let run = run(policy.with_max_packets(max_packets), &input);
            assert_eq!(run.reasons(), [Reason::PacketLimit; 3]);
            assert_all_untouched(&run, &input);
        }
    }
}

#[test]
fn fragments() {
    let input = crate::support::packets(&Frame::tcp4(1, 500).run(7));
    let policy = Policy::lro().with_max_fragments(3);
    let fragmented = run(policy, &input);
    assert_eq!(
        fragmented.reasons(),
        [Reason::FragmentLimit, Reason::FragmentLimit, Reason::PollEnd]
    );
    assert_eq!(fragmented.payloads(), [1500, 1500, 500]);
    assert!(fragmented.outputs.iter().all(|output| output.pieces <= 3));
    assert_merged(&fragmented.outputs[1], 1501, 1500, 3);

    let one_run_of_bytes = run(policy.with_storage(Storage::Linear), &input);
    assert_eq!(one_run_of_bytes.payloads(), [3500], "bytes that are copied are no fragments");
}

#[test]
fn fragments_count_buffers_not_packets() {
    // Two buffers a frame, both with payload.
    let input: Vec<_> = crate::support::packets(&Frame::tcp4(1, 1000).run(7))
        .into_iter()
        .map(|packet| packet.in_buffers_of(600))
        .collect();
    let run = run(Policy::lro().with_max_fragments(5), &input);
    assert_eq!(run.payloads(), [2000, 2000, 2000, 1000]);
    assert_eq!(run.outputs.iter().map(|output| output.pieces).collect::<Vec<_>>(), [4, 4, 4, 2]);
}

#[test]
fn a_packet_of_more_fragments_than_the_limit_passes_whole() {
    let input: Vec<_> = crate::support::packets(&Frame::tcp4(1, 1000).run(2))
        .into_iter()
        .map(|packet| packet.in_buffers_of(100))
        .collect();
    let run = run(Policy::lro().with_max_fragments(4), &input);
    assert_eq!(run.outputs.len(), 2);
    assert_all_untouched(&run, &input);
}

#[test]
fn bytes_up_to_the_last_one_without_options() {
    // 20 + 20 + 5 * 13,099 = 65,535.
    assert_last(&Frame::tcp4(1, 0), &[13_099, 13_099, 13_099, 13_099, 13_099], true);
    assert_last(&Frame::tcp4(1, 0), &[13_099, 13_099, 13_099, 13_099, 13_100], false);
    // 40 + 20 + 5 * 13,095 = 65,535.
    assert_last(&Frame::tcp6(1, 0), &[13_095, 13_095, 13_095, 13_095, 13_095], true);
    assert_last(&Frame::tcp6(1, 0), &[13_095, 13_095, 13_095, 13_095, 13_096], false);
}

#[test]
fn bytes_up_to_the_last_one_from_a_sender_of_1500() {
    // 20 + 32 + 45 * 1448 = 65,212, so that 323 more fit.
    assert_last_that_fits(1448, 45, 323);
}

#[test]
fn bytes_up_to_the_last_one_from_a_sender_of_9000() {
    // 20 + 32 + 7 * 8948 = 62,688, so that 2,847 more fit.
    assert_last_that_fits(8948, 7, 2847);
}

/// Asserts that so many segments of this length merge, and no more than `more` bytes with them.
#[track_caller]
fn assert_last_that_fits(length: usize, count: usize, more: usize) {
    let sender = Frame::tcp4(1, 0).with_timestamps(1, 2);
    let mut lengths = vec![length; count];
    assert_last(&sender, &lengths, true);
    for (last, fits) in [(length, false), (more, true), (more + 1, false)] {
        lengths.push(last);
        assert_last(&sender, &lengths, fits);
        lengths.pop();
    }
}

#[test]
fn a_sender_of_1500_into_a_receiver_of_9000_merges_as_far_as_into_one_of_1500() {
    // The driver of source 001 stopped after 65,535 / 9000 = 7 frames of 1500 there, instead of 43
    // and more. That the receiver's MTU is 9000 shows in nothing but that frames as large arrive,
    // in the same flow, and in another, before and in between.
    let sender = Frame::tcp4(1, 0).with_timestamps(1, 2);
    let small = segments(&sender, &[1448; 100]);
    let jumbo = crate::support::packets(&Frame::tcp6(1, 8900).run(100));
    let expected = [45 * 1448, 45 * 1448, 10 * 1448];
    for policy in both_modes() {
        assert_eq!(run(policy, &small).payloads(), expected);
        let mixed: Vec<_> = jumbo
            .iter()
            .zip(&small)
            .flat_map(|(jumbo, small)| [jumbo.clone(), small.clone()])
            .collect();
        let outputs = run(policy, &mixed).outputs;
        let merged: Vec<_> = outputs
            .iter()
            .filter(|output| output.metadata.largest_payload == 1448)
            .map(Output::payload)
            .collect();
        assert_eq!(merged, expected);
    }
    // One flow whose path changed: six of 8948, then as many of 1448 as fit, and the rest to the
    // byte.
    let mut lengths = vec![8948; 6];
    lengths.extend([1448; 8]);
    lengths.push(65_483 - 6 * 8948 - 8 * 1448);
    assert_last(&sender, &lengths, true);
    lengths[14] += 1;
    assert_last(&sender, &lengths, false);
}

#[test]
fn bytes_as_the_policy_says() {
    let input = segments(&Frame::tcp4(1, 0), &[1000; 6]);
    for policy in both_modes() {
        // IP headers count, the link header does not.
        assert_eq!(run(policy.with_max_bytes(3040), &input).payloads(), [3000, 3000]);
        assert_eq!(run(policy.with_max_bytes(3039), &input).payloads(), [2000, 2000, 2000]);
        assert_eq!(run(policy.with_max_bytes(0), &input).payloads(), [1000; 6]);
    }
    let tagged = segments(&Frame::tcp4(1, 0).tagged(7), &[1000; 6]);
    for policy in both_modes() {
        assert_eq!(
            run(policy.with_max_bytes(3040), &tagged).payloads(),
            [3000, 3000],
            "a tag is no part of the IP packet"
        );
    }
}

#[test]
fn a_pppoe_length_field_holds_what_merged() {
    // PPPoE's length counts two bytes more than the IP packet's (RFC 2516, section 4), so 65,533 is
    // all it can say.
    let frame = Frame::tcp4(1, 0).in_pppoe();
    assert_last(&frame, &[13_099, 13_099, 13_099, 13_099, 13_097], true);
    assert_last(&frame, &[13_099, 13_099, 13_099, 13_099, 13_098], false);
}

#[test]
fn flows_by_default_eight() {
    for policy in both_modes() {
        let run_of_eight = run(policy, &round(8));
        assert_eq!(run_of_eight.payloads(), [1000; 8]);
        assert_eq!((run_of_eight.counters.no_desc, run_of_eight.counters.flushed), (0, 8));

        let input = round(9);
        let run_of_nine = run(policy, &input);
        assert_eq!(run_of_nine.counters.no_desc, 2);
        assert_eq!(run_of_nine.counters.reason(Reason::NoDescriptor), 2);
        assert_eq!((run_of_nine.counters.aggregated, run_of_nine.counters.flushed), (16, 8));
        // The ninth flow passes at once, and evicts no one.
        assert_eq!(
            run_of_nine.reasons(),
            [[Reason::NoDescriptor; 2].as_slice(), &[Reason::PollEnd; 8]].concat()
        );
        assert_untouched(&run_of_nine.outputs[0], &input[8]);
        assert_untouched(&run_of_nine.outputs[1], &input[17]);
        run_of_nine.outputs[2..].iter().for_each(|output| assert_merged(output, 1, 1000, 2));
    }
}

#[test]
fn flows_as_the_policy_says() {
    let input = round(5);
    for policy in both_modes() {
        for max_flows in 1..=5 {
            let counters = run(policy.with_max_flows(max_flows), &input).counters;
            assert_eq!(counters.no_desc, 2 * (5 - u64::from(max_flows)));
            assert_eq!(counters.merged, u64::from(max_flows));
        }
    }
}

#[test]
fn a_descriptor_is_free_again_once_its_flow_has_left() {
    let input: Vec<_> = (0..100).flat_map(|index| packets_of(index, 3)).collect();
    for policy in both_modes() {
        let run = run(policy.with_max_flows(1).with_max_packets(3), &input);
        assert_eq!(run.payloads(), [1500; 100]);
        assert_eq!(run.counters.no_desc, 0);
    }
}

fn packets_of(index: u16, count: usize) -> Vec<Packet> {
    let flow = Frame::tcp4(1, 500).with_tcp(|tcp| tcp.source_port = 1000 + index);
    crate::support::packets(&flow.run(count))
}

/// Two packets of each flow, by turns.
fn round(flows: u16) -> Vec<Packet> {
    let packet =
        |number: usize| (0..flows).map(move |index| packets_of(index, 2).swap_remove(number));
    (0..2).flat_map(packet).collect()
}
