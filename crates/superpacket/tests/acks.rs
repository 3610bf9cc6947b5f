//! Pure-ACK aggregation in LRO mode: the newest ACK stands for those before it, and no ACK that says more than "so far" is ever swallowed.

mod support;

use superpacket::aggregate::{Aggregator, HashKey, Policy, Reason, Storage};
use superpacket::packet::{Chain, RxChecksum, RxPacket, VlanTag};
use superpacket::super_packet::SuperPacket;
use superpacket_traffic::check::{self, Expect, TcpFields};
use superpacket_traffic::checksum;
use superpacket_traffic::frame::{ACK, AE, CWR, ECE, FIN, Frame, PSH, RST, SYN, URG, sack, stream_bytes, timestamps};
use support::*;

/// Pure-ACK aggregation in fragments mode and in linear mode.
fn both_modes() -> [Policy; 2] {
    [Policy::lro_with_acks(), Policy { storage: Storage::Linear, ..Policy::lro_with_acks() }]
}

/// A pure ACK: sequence 1, window 501.
fn ack(number: u32) -> Frame {
    Frame::tcp4(1, 0).with(|frame| frame.tcp_mut().acknowledgement = number)
}

/// Pure ACKs of these numbers.
fn acks(numbers: &[u32]) -> Vec<Packet> {
    numbers.iter().map(|&number| ack(number).into()).collect()
}

/// A segment of 500 bytes.
fn data(sequence: u32, acknowledgement: u32) -> Frame {
    Frame::tcp4(sequence, 500).with(|frame| frame.tcp_mut().acknowledgement = acknowledgement)
}

fn tcp(output: &Output) -> TcpFields {
    check::tcp_fields(&output.bytes, false).expect("a TCP header")
}

/// The acknowledgement numbers that come out.
fn numbers(run: &Run) -> Vec<u32> {
    run.outputs.iter().map(|output| tcp(output).acknowledgement).collect()
}

/// Asserts that `output` stands for `packets` packets of which it absorbed `absorbed` pure ACKs, is right in every length and checksum, and carries
/// `payload` bytes of the stream from sequence 1 on.
#[track_caller]
fn assert_merged(output: &Output, packets: u32, absorbed: u32, payload: usize) {
    let metadata = output.metadata;
    assert_eq!((metadata.packets, metadata.absorbed_acks), (packets, absorbed));
    assert_eq!((metadata.checksum, metadata.gso), (RxChecksum::Unnecessary { level: 0 }, None));
    let checked = check::frame(&output.bytes, &Expect::default()).expect("right lengths and checksums");
    assert_eq!((checked.checksums, checked.trailing), (1, 0));
    assert!(output.bytes[checked.payload.clone()] == stream_bytes(1, payload), "the payload of {payload} bytes is not the stream's");
    let layout = metadata.layout.expect("a layout");
    assert_eq!((usize::from(layout.payload), layout.end as usize), (checked.payload.start, output.bytes.len()));
}

#[track_caller]
fn assert_untouched(output: &Output, packet: &Packet) {
    assert_eq!(output.bytes, packet.bytes);
    let metadata = output.metadata;
    assert_eq!((metadata.packets, metadata.absorbed_acks, metadata.gso), (1, 0, None));
    assert_eq!((metadata.checksum, metadata.vlan), (packet.checksum, packet.vlan));
}

/// Asserts that `packet`, between ACKs 100, 200 and 300, 400, passes untouched with `reason`, after ACKs 100 and 200 and before the others.
#[track_caller]
fn assert_apart(shape: impl Fn(Frame) -> Frame, packet: impl Fn(Frame) -> Frame, reason: Reason) {
    let shaped = |number| Packet::from(shape(ack(number)));
    let apart = Packet::from(packet(shape(ack(200))));
    for policy in both_modes() {
        let run = run(policy, &[shaped(100), shaped(200), apart.clone(), shaped(300), shaped(400)]);
        assert_eq!(run.reasons(), [Reason::Overtaken, reason, Reason::PollEnd]);
        assert_merged(&run.outputs[0], 2, 1, 0);
        assert_eq!(tcp(&run.outputs[0]).acknowledgement, 200);
        assert_untouched(&run.outputs[1], &apart);
        assert_merged(&run.outputs[2], 2, 1, 0);
        assert_eq!(tcp(&run.outputs[2]).acknowledgement, 400);
        assert_eq!((run.counters.absorbed_acks, run.counters.reason(reason)), (2, 1));
    }
}

#[test]
fn the_newest_of_a_run_leaves() {
    let frames: Vec<_> =
        (1..=20u32).map(|index| ack(index * 1448).with(|frame| frame.tcp_mut().window = 1000 - 7 * index as u16)).collect();
    for policy in both_modes() {
        let run = run(policy, &packets(&frames));
        assert_eq!(run.reasons(), [Reason::PollEnd]);
        assert_merged(&run.outputs[0], 20, 19, 0);
        assert_eq!((tcp(&run.outputs[0]).acknowledgement, tcp(&run.outputs[0]).window), (20 * 1448, 1000 - 7 * 20));
        assert_eq!(run.outputs[0].bytes.len(), 54);
    }
}

#[test]
fn the_newest_timestamps_leave() {
    let values = [(u32::MAX, 9), (u32::MAX, 8), (3, u32::MAX), (70, 5)];
    for base in [Frame::tcp4(1, 0), Frame::tcp6(1, 0)] {
        let frames: Vec<_> = (100..)
            .zip(values)
            .map(|(number, (value, echo))| base.clone().with_timestamps(value, echo).with(|frame| frame.tcp_mut().acknowledgement = number))
            .collect();
        for policy in both_modes() {
            for count in 2..=4 {
                let run = run(policy, &packets(&frames[..count]));
                assert_eq!(run.reasons(), [Reason::PollEnd]);
                assert_merged(&run.outputs[0], count as u32, count as u32 - 1, 0);
                assert_eq!(tcp(&run.outputs[0]).timestamps, Some(values[count - 1]));
            }
        }
    }
}

#[test]
fn newest_is_by_sequence_arithmetic() {
    let across_the_wrap = [0xffff_f000, 0xffff_ffff, 0, 0x1000, 0x8000_0fff];
    let back_across_it = [0x1000, 0xffff_f000, 0xffff_f800];
    for policy in both_modes() {
        let forward = run(policy, &acks(&across_the_wrap));
        assert_eq!(numbers(&forward), [0x8000_0fff]);
        assert_merged(&forward.outputs[0], 5, 4, 0);
        let back = run(policy, &acks(&back_across_it));
        assert_eq!(back.reasons()[..2], [Reason::Overtaken, Reason::AckOlder]);
        assert_eq!(numbers(&back)[..2], [0x1000, 0xffff_f000]);
    }
}

#[test]
fn an_older_ack_flushes_and_passes() {
    let input = acks(&[100, 200, 150, 300, 400]);
    for policy in both_modes() {
        let run = run(policy, &input);
        assert_eq!(run.reasons(), [Reason::Overtaken, Reason::AckOlder, Reason::PollEnd]);
        assert_eq!(numbers(&run), [200, 150, 400], "in the order they came");
        assert_untouched(&run.outputs[1], &input[2]);
    }
}

#[test]
fn a_single_ack_leaves_untouched() {
    for frame in [ack(5), ack(5).with_timestamps(1, 2), ack(5).tagged(7), ack(5).padded_to(60), Frame::tcp6(1, 0)] {
        let packet = Packet::from(frame);
        let sum = RxChecksum::Complete(checksum::sum(&packet.bytes[14..]));
        for packet in [packet.clone(), packet.with_checksum(sum)] {
            for policy in both_modes() {
                let run = run(policy, std::slice::from_ref(&packet));
                assert_eq!(run.reasons(), [Reason::PollEnd]);
                assert_untouched(&run.outputs[0], &packet);
            }
        }
    }
}

#[test]
fn switched_off_every_ack_passes() {
    let input = acks(&[100, 200, 300]);
    for storage in [Storage::Fragments, Storage::Linear] {
        let run = run(Policy { storage, ..Policy::lro() }, &input);
        assert_eq!(run.reasons(), [Reason::NoPayload; 3]);
        run.outputs.iter().zip(&input).for_each(|(output, packet)| assert_untouched(output, packet));
        assert_eq!((run.counters.absorbed_acks, run.counters.aggregated), (0, 0));
    }
    let gro = run(Policy::gro(), &input);
    assert_eq!(gro.reasons(), [Reason::NoPayload; 3], "GRO never merges pure ACKs");
}

#[test]
fn a_duplicate_ack_is_told_apart() {
    assert_apart(|frame| frame, |frame| frame, Reason::DuplicateAck);
    assert_apart(|frame| frame.with_timestamps(5, 6), |frame| frame.with_timestamps(7, 6), Reason::DuplicateAck);
    assert_apart(|frame| frame.tagged(7).padded_to(60), |frame| frame, Reason::DuplicateAck);
}

#[test]
fn a_window_update_is_told_apart() {
    for window in [0, 500, 502, 0xffff] {
        assert_apart(|frame| frame, |frame| frame.with(|frame| frame.tcp_mut().window = window), Reason::WindowUpdate);
    }
}

#[test]
fn other_options_are_told_apart() {
    let with = |options: Vec<u8>| move |frame: Frame| frame.with(|frame| frame.tcp_mut().options = options.clone());
    for number in [200, 201] {
        let newer = move |frame: Frame| frame.with(|frame| frame.tcp_mut().acknowledgement = number);
        let blocks = sack(&[(1000, 2000)]);
        assert_apart(|frame| frame, |frame| with(blocks.clone())(newer(frame)), Reason::TcpOptions);
        assert_apart(
            |frame| frame.with_timestamps(5, 6),
            |frame| with([timestamps(5, 6), blocks.clone()].concat())(newer(frame)),
            Reason::TcpOptions,
        );
        assert_apart(|frame| frame, |frame| with(vec![1, 1, 1, 1])(newer(frame)), Reason::TcpOptions);
        assert_apart(|frame| frame.with_timestamps(5, 6), |frame| newer(frame).with_timestamps(5, 0), Reason::TcpOptions);
    }
}

#[test]
fn congestion_is_told_apart() {
    for number in [200, 201] {
        let newer = move |frame: Frame| frame.with(|frame| frame.tcp_mut().acknowledgement = number);
        for flags in [ACK | ECE, ACK | CWR, ACK | ECE | CWR, ACK | AE | ECE] {
            assert_apart(|frame| frame, |frame| newer(frame).with_flags(flags), Reason::Congestion);
        }
        assert_apart(|frame| frame, |frame| newer(frame).with(|frame| frame.ipv4_mut().tos = 3), Reason::Congestion);
    }
}

#[test]
fn other_flags_are_told_apart() {
    let newer = |frame: Frame| frame.with(|frame| frame.tcp_mut().acknowledgement = 250);
    for flags in [ACK | SYN, ACK | RST, RST, ACK | FIN, ACK | URG, 0] {
        assert_apart(|frame| frame, |frame| newer(frame).with_flags(flags), Reason::TcpFlags);
    }
    assert_apart(|frame| frame, |frame| newer(frame).with_flags(ACK | PSH), Reason::NoPayload);
}

#[test]
fn every_one_of_a_row_of_duplicates_passes() {
    // Three of them make a sender retransmit (RFC 5681, section 3.2), however many came before and whatever comes after.
    for count in 1..10 {
        let mut row = vec![100; count + 1];
        row.push(200);
        let input = acks(&row);
        for policy in both_modes() {
            let run = run(policy, &input);
            assert_eq!(numbers(&run), row);
            run.outputs.iter().zip(&input).for_each(|(output, packet)| assert_untouched(output, packet));
            assert_eq!(run.counters.absorbed_acks, 0);
            assert_eq!(run.counters.reason(Reason::DuplicateAck), count as u64);
        }
    }
}

#[test]
fn duplicates_are_told_across_polls_and_flows() {
    // The ACK that they repeat has left long ago; another flow's went by in between.
    let other = Packet::from(Frame::tcp6(1, 0));
    let mut input = Vec::new();
    for number in [100, 100, 100, 100, 200, 300] {
        input.extend([ack(number).into(), other.clone()]);
    }
    for policy in both_modes() {
        for batch in [1, 2, 3, 4, 5, 12] {
            let run = run_polls(policy, &input, batch);
            let outputs: Vec<_> = run.outputs.iter().filter(|output| output.bytes[12] == 8).collect();
            assert!(outputs.iter().take(4).all(|output| output.metadata.packets == 1), "{batch}: {:?}", run.reasons());
            assert_eq!(outputs[..4].iter().map(|output| tcp(output).acknowledgement).collect::<Vec<_>>(), [100; 4]);
            assert_eq!(run.counters.reason(Reason::DuplicateAck), 3 + 5, "{batch}");
            let others = run.outputs.iter().filter(|output| output.bytes[12] == 0x86);
            assert_eq!(others.map(|output| output.metadata.packets).collect::<Vec<_>>(), [1; 6]);
        }
    }
}

#[test]
fn a_window_update_of_an_ack_that_has_left_passes() {
    let update = ack(100).with(|frame| frame.tcp_mut().window = 900);
    let input = [ack(100).into(), Packet::from(update), ack(200).into()];
    for policy in both_modes() {
        for batch in [1, 2, 3] {
            let run = run_polls(policy, &input, batch);
            assert_eq!(numbers(&run), [100, 100, 200]);
            assert_eq!((run.counters.reason(Reason::WindowUpdate), run.counters.absorbed_acks), (1, 0), "{batch}");
        }
    }
}

#[test]
fn an_ack_that_repeats_what_data_or_a_selective_ack_said_passes() {
    let sacked = ack(100).with(|frame| frame.tcp_mut().options = sack(&[(1000, 2000)]));
    for policy in both_modes() {
        let after_selective = run(policy, &[Packet::from(sacked.clone()), ack(100).into(), ack(200).into()]);
        assert_eq!(after_selective.reasons(), [Reason::TcpOptions, Reason::DuplicateAck, Reason::PollEnd]);
        assert_eq!(numbers(&after_selective), [100, 100, 200]);

        let follower = |number| ack(number).with(|frame| frame.tcp_mut().sequence = 501);
        let after_data = run_polls(policy, &packets(&[data(1, 100), follower(100), follower(200)]), 1);
        assert_eq!(after_data.reasons(), [Reason::PollEnd, Reason::DuplicateAck, Reason::PollEnd]);
    }
}

#[test]
fn a_new_connection_on_old_ports_is_not_held_against() {
    // What the old one acknowledged is no measure of the new one: at most its first ACK passes by itself.
    let mut input = acks(&[0x7000_0000]);
    input.push(ack(1000).with_flags(SYN | ACK).into());
    input.extend(acks(&[1001, 2000, 3000, 4000]));
    for policy in both_modes() {
        let run = run(policy, &input);
        assert!(run.counters.absorbed_acks >= 2, "{:?}", run.reasons());
        assert_eq!(numbers(&run).last(), Some(&4000));
    }
}

#[test]
fn padded_acks_of_60_bytes_are_trimmed() {
    // 54 bytes and 6 of padding, as every driver of source 000 sees them.
    for padding in [[0; 6], [0xff; 6], [0x12, 0x34, 0xed, 0xcb, 0, 0]] {
        let frames: Vec<_> = [100, 200, 300].into_iter().map(|number| ack(number).with(|frame| frame.trailer = padding.to_vec())).collect();
        for buffers in [vec![], vec![54], vec![57], vec![20, 30, 7, 1]] {
            let input: Vec<_> = packets(&frames)
                .into_iter()
                .map(|packet| Packet {
                    checksum: RxChecksum::Complete(checksum::sum(&packet.bytes[14..])),
                    buffers: buffers.clone(),
                    ..packet
                })
                .collect();
            for policy in both_modes() {
                for checksum in [None, Some(RxChecksum::None), Some(RxChecksum::Unnecessary { level: 0 })] {
                    let input: Vec<_> =
                        input.iter().map(|packet| Packet { checksum: checksum.unwrap_or(packet.checksum), ..packet.clone() }).collect();
                    let run = run(policy, &input);
                    assert_eq!(run.reasons(), [Reason::PollEnd], "{padding:x?} {buffers:?}");
                    assert_merged(&run.outputs[0], 3, 2, 0);
                    assert_eq!((numbers(&run), run.outputs[0].bytes.len()), (vec![300], 54));
                }
            }
        }
    }
}

#[test]
fn a_mixture_of_padded_and_unpadded_acks_merges() {
    for padded in 0..8 {
        let frames: Vec<_> = [100, 200, 300]
            .into_iter()
            .enumerate()
            .map(|(index, number)| if padded >> index & 1 == 1 { ack(number).padded_to(60) } else { ack(number) })
            .collect();
        for policy in both_modes() {
            let run = run(policy, &packets(&frames));
            assert_eq!(run.outputs.len(), 1);
            assert_merged(&run.outputs[0], 3, 2, 0);
        }
    }
}

#[test]
fn visibly_padded_acks_are_told_apart() {
    let newer = |frame: Frame| frame.with(|frame| (frame.tcp_mut().acknowledgement, frame.trailer) = (250, vec![0, 0, 0, 0, 0, 1]));
    assert_apart(|frame| frame, newer, Reason::Padded);
}

#[test]
fn tagged_acks_merge() {
    for shape in [
        |frame: Frame| frame.tagged(7),
        |frame: Frame| frame.tagged(7).padded_to(64),
        |frame: Frame| frame.tagged(7).tagged(8).with_timestamps(3, 4),
    ] {
        let input: Vec<_> = [100, 200, 300].map(|number| Packet::from(shape(ack(number)))).to_vec();
        let stripped: Vec<_> = acks(&[100, 200, 300])
            .into_iter()
            .map(|packet| Packet { vlan: Some(VlanTag { protocol: 0x8100, control: 7 }), ..packet })
            .collect();
        for policy in both_modes() {
            for input in [&input, &stripped] {
                let run = run(policy, input);
                assert_eq!(run.outputs.len(), 1, "{:?}", run.reasons());
                assert_merged(&run.outputs[0], 3, 2, 0);
                assert_eq!((numbers(&run), run.outputs[0].metadata.vlan), (vec![300], input[0].vlan));
            }
        }
    }
}

#[test]
fn acks_of_different_tags_are_of_different_flows() {
    let input: Vec<_> = [(100, 7), (200, 8), (300, 7), (400, 8)].map(|(number, vid)| Packet::from(ack(number).tagged(vid))).to_vec();
    for policy in both_modes() {
        assert_eq!(numbers(&run(policy, &input)), [300, 400]);
    }
}

#[test]
fn acks_join_held_data() {
    let follower = |number| ack(number).with(|frame| (frame.tcp_mut().sequence, frame.tcp_mut().window) = (1001, 77));
    for policy in both_modes() {
        let run = run(policy, &packets(&[data(1, 10), data(501, 10), follower(20), follower(30).padded_to(60)]));
        assert_eq!(run.reasons(), [Reason::PollEnd]);
        assert_merged(&run.outputs[0], 4, 2, 1000);
        assert_eq!((tcp(&run.outputs[0]).acknowledgement, tcp(&run.outputs[0]).window), (30, 77));
    }
}

#[test]
fn data_joins_held_acks() {
    for head in [ack(10), ack(10).padded_to(60)] {
        for policy in both_modes() {
            // All ACKs before the data are absorbed: the first, which was held, too.
            let run = run(policy, &packets(&[head.clone(), ack(20), data(1, 20), data(501, 30)]));
            assert_eq!(run.reasons(), [Reason::PollEnd]);
            assert_merged(&run.outputs[0], 4, 2, 1000);
            assert_eq!((tcp(&run.outputs[0]).acknowledgement, run.outputs[0].metadata.largest_payload), (30, 500));
            assert_eq!((run.counters.merged, run.counters.absorbed_acks), (3, 2));
        }
    }
}

#[test]
fn acks_between_data() {
    let follower = |sequence, number| ack(number).with(|frame| frame.tcp_mut().sequence = sequence);
    for policy in both_modes() {
        let run = run(policy, &packets(&[data(1, 10), follower(501, 20), data(501, 20), follower(1001, 30)]));
        assert_eq!(run.reasons(), [Reason::PollEnd]);
        assert_merged(&run.outputs[0], 4, 2, 1000);
        assert_eq!(tcp(&run.outputs[0]).acknowledgement, 30);
    }
}

#[test]
fn a_duplicate_on_held_data_is_told_apart() {
    let duplicate = ack(10).with(|frame| frame.tcp_mut().sequence = 1001);
    for policy in both_modes() {
        let run = run(policy, &packets(&[data(1, 10), data(501, 10), duplicate.clone()]));
        assert_eq!(run.reasons(), [Reason::Overtaken, Reason::DuplicateAck]);
        assert_untouched(&run.outputs[1], &Packet::from(&duplicate));
    }
}

#[test]
fn an_ack_from_elsewhere_in_the_sequence_is_not_absorbed() {
    // A keep-alive stands one byte back (RFC 9293, section 3.8.4).
    for sequence in [0, 2, 501] {
        let input = packets(&[ack(100), ack(200), ack(300).with(|frame| frame.tcp_mut().sequence = sequence)]);
        for policy in both_modes() {
            let run = run(policy, &input);
            assert_eq!(run.reasons(), [Reason::Sequence, Reason::PollEnd]);
            assert_eq!(numbers(&run), [200, 300]);
            assert_untouched(&run.outputs[1], &input[2]);
        }
    }
}

#[test]
fn an_older_timestamp_is_not_absorbed() {
    let input = packets(&[ack(100).with_timestamps(10, 1), ack(200).with_timestamps(9, 1)]);
    for policy in both_modes() {
        let run = run(policy, &input);
        assert_eq!(run.reasons(), [Reason::TimestampOlder, Reason::PollEnd]);
        run.outputs.iter().zip(&input).for_each(|(output, packet)| assert_untouched(output, packet));
    }
}

#[test]
fn a_wrong_checksum_is_told_apart() {
    let newer = |frame: Frame| {
        frame.with(|frame| (frame.tcp_mut().acknowledgement, frame.tcp_mut().checksum) = (250, superpacket_traffic::frame::Checksum::Wrong))
    };
    assert_apart(|frame| frame, newer, Reason::BadChecksum);
}

#[test]
fn the_limit_of_packets_counts_acks() {
    for policy in both_modes() {
        let run = run(Policy { max_packets: 4, ..policy }, &acks(&[1, 2, 3, 4, 5, 6, 7, 8, 9]));
        assert_eq!(run.reasons(), [Reason::PacketLimit, Reason::PacketLimit, Reason::PollEnd]);
        assert_eq!(numbers(&run), [4, 8, 9]);
    }
}

#[test]
fn the_limit_of_fragments_does_not_count_absorbed_acks() {
    let policy = Policy { max_fragments: 1, ..Policy::lro_with_acks() };
    assert_eq!(numbers(&run(policy, &acks(&[1, 2, 3, 4, 5]))), [5]);
    let follower = |number| ack(number).with(|frame| frame.tcp_mut().sequence = 501);
    let joined = run(policy, &packets(&[data(1, 10), follower(20), follower(30)]));
    assert_merged(&joined.outputs[0], 3, 2, 500);
}

#[test]
fn an_absorbed_ack_gives_its_buffers_back() {
    let key = HashKey::new(1);
    for policy in both_modes() {
        let mut aggregator = Aggregator::new(policy, key, superpacket::Simd::detect());
        let mut sink = |_: SuperPacket<'_, std::rc::Rc<[u8]>>| {};
        let buffers: Vec<std::rc::Rc<[u8]>> = [100, 200, 300].iter().map(|&number| ack(number).to_bytes().into()).collect();
        for buffer in &buffers {
            let mut packet = RxPacket::new(buffer.clone()).with_chain(aggregator.chain());
            packet.push([].into()).expect("room");
            aggregator.receive(packet, 0, &mut sink);
        }
        assert_eq!(buffers[1..].iter().map(std::rc::Rc::strong_count).collect::<Vec<_>>(), [1, 1]);
        assert!(aggregator.counters().balance());
        assert_eq!((aggregator.counters().held, aggregator.counters().held_bytes), (1, 54), "an absorbed ACK is held no more");
        let chain: Chain<_> = aggregator.chain();
        assert_eq!(RxPacket::new(buffers[0].clone()).with_chain(chain).length(), 54, "a chain comes back empty");
    }
}

#[test]
fn metadata_and_counters() {
    let input: Vec<_> = acks(&[100, 200, 300]).into_iter().zip([5, 6, 9]).map(|(packet, time)| Packet { time, ..packet }).collect();
    for policy in both_modes() {
        let run = run(policy, &input);
        let metadata = run.outputs[0].metadata;
        assert_eq!((metadata.packets, metadata.absorbed_acks, metadata.largest_payload, metadata.time), (3, 2, 0, 9));
        let counters = run.counters;
        assert_eq!((counters.packets_in, counters.packets_out, counters.merged, counters.absorbed_acks), (3, 1, 2, 2));
        assert_eq!((counters.aggregated, counters.flushed, counters.super_packets), (3, 1, 1));
        assert_eq!((counters.bytes_in, counters.bytes_out), (162, 54));
    }
}

#[test]
fn acks_take_descriptors_as_data_does() {
    let flow = |index: u16, number| ack(number).with(|frame| frame.tcp_mut().source_port = 1000 + index);
    let input: Vec<_> = [100, 200].iter().flat_map(|&number| (0..9).map(move |index| Packet::from(flow(index, number)))).collect();
    for policy in both_modes() {
        let run = run(policy, &input);
        assert_eq!((run.counters.no_desc, run.counters.absorbed_acks, run.counters.packets_out), (2, 8, 10));
        assert_eq!(numbers(&run), [[100, 200].as_slice(), &[200; 8]].concat());
    }
}
