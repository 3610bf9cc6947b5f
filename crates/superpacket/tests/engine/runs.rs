//! Packets that come in sequence are taken in runs, by code that is compiled apart for the headers
//! that most packets have, and for what the device knows of them. Whatever the headers and however
//! the batches are cut, one packet at a time must give the same, and what merged must come apart
//! again.

use crate::support::{
    Output, PARTIAL_GRO_UDP, Packet, Run, VERIFIED, aggregator, assert_reversed, run, run_batches,
};
use superpacket::aggregate::{Policy, Reason, Storage};
use superpacket::packet::RxChecksum;
use superpacket::super_packet::SuperPacket;
use superpacket_traffic::frame::{Frame, Transport, stream_bytes};

/// Headers of all lengths on both sides of what the runs are compiled for.
fn bases(payload: usize) -> Vec<Frame> {
    let plain = [Frame::tcp4(1_000, payload), Frame::tcp6(u32::MAX - 50, payload)];
    let timestamps = plain.clone().map(|frame| frame.with_timestamps(7, 9));
    let datagrams = [Frame::udp4(payload), Frame::udp6(payload)];
    let ethernet = [&plain[..], &timestamps, &datagrams].concat();
    let at_ip = ethernet.iter().map(|frame| frame.clone().at_ip());
    let tagged = ethernet.iter().map(|frame| frame.clone().tagged(5));
    at_ip.chain(tagged).chain(ethernet.iter().cloned()).collect()
}

/// Runs the packets one by one and in batches of several sizes, in both kinds of storage, and gives
/// back what came out.
fn alike_in_all_batches(policy: Policy, packets: &[Packet]) -> Run {
    for storage in [Storage::Fragments, Storage::Linear] {
        let policy = policy.with_storage(storage);
        let one_by_one = run(policy, packets);
        for size in [2, 3, 7, 64] {
            let batches = run_batches(policy, packets, size);
            // How often the table is asked is the one thing that may differ.
            let counters = |run: &Run| {
                let mut counters = run.counters;
                counters.probes = 0;
                counters
            };
            assert_eq!(counters(&batches), counters(&one_by_one), "{storage:?}, batches of {size}");
            for (batch, single) in batches.outputs.iter().zip(&one_by_one.outputs) {
                assert_eq!(
                    (&batch.bytes, batch.metadata),
                    (&single.bytes, single.metadata),
                    "{storage:?}, batches of {size}"
                );
            }
            if policy == PARTIAL_GRO_UDP {
                assert_reversed(packets, &batches);
            }
        }
    }
    run_batches(policy, packets, 64)
}

fn packets(frames: &[Frame], checksum: impl Fn(usize) -> RxChecksum) -> Vec<Packet> {
    frames
        .iter()
        .enumerate()
        .map(|(index, frame)| Packet::from(frame).with_checksum(checksum(index)))
        .collect()
}

#[test]
fn a_run_merges_whatever_the_headers_and_lengths() {
    for payload in [1, 2, 13, 14, 25, 40, 100, 1_400] {
        for base in bases(payload) {
            let frames = base.run(20);
            // All verified by the device, none, and each third.
            for every in [1, usize::MAX, 3] {
                let packets =
                    packets(
                        &frames,
                        |index| if index % every == 0 { VERIFIED } else { RxChecksum::None },
                    );
                let run = alike_in_all_batches(PARTIAL_GRO_UDP, &packets);
                assert_eq!(run.payloads(), [20 * payload], "{payload} bytes, {every}: {base:?}");
                let verified =
                    packets.iter().filter(|packet| packet.checksum == VERIFIED).count() as u64;
                assert_eq!(run.counters.verified_in_software, 20 - verified);
            }
        }
    }
}

#[test]
fn a_shorter_packet_ends_a_run_and_belongs_to_it() {
    for base in bases(1_000) {
        for last in [1, 12, 999] {
            let mut frames = base.run(9);
            let end = frames.last_mut().expect("nine frames");
            *end = end.clone().with(|frame| frame.payload = stream_bytes(3, last));
            frames.extend(base.run(3));
            let run = alike_in_all_batches(PARTIAL_GRO_UDP, &packets(&frames, |_| VERIFIED));
            assert_eq!(run.payloads(), [8_000 + last, 3_000], "{base:?}");
            assert_eq!(run.reasons(), [Reason::ShortSegment, Reason::PollEnd]);
        }
    }
}

#[test]
fn one_wrong_byte_anywhere_in_the_headers_ends_a_run() {
    for base in bases(600) {
        let frames = base.run(6);
        let bytes: Vec<Vec<u8>> = frames.iter().map(Frame::to_bytes).collect();
        let headers = bytes[0].len() - 600;
        let transport = base.offsets().transport;
        let datagrams = matches!(base.transport, Transport::Udp(_));
        for offset in 0..headers {
            for bit in [0x01, 0x10, 0x80] {
                let mut packets =
                    packets(&frames, |index| if index == 5 { VERIFIED } else { RxChecksum::None });
                packets[3].bytes[offset] ^= bit;
                // A device that vouches for the transport checksum vouches for no length and no
                // number.
                if offset < transport
                    || datagrams && (transport + 4..transport + 6).contains(&offset)
                {
                    let mut trusted = packets.clone();
                    trusted.iter_mut().for_each(|packet| packet.checksum = VERIFIED);
                    alike_in_all_batches(PARTIAL_GRO_UDP, &trusted);
                }
                let run = alike_in_all_batches(PARTIAL_GRO_UDP, &packets);
                // The three before it merge, it leaves as it came, and so does what follows without
                // it.
                let alone = run.outputs.iter().find(|output| output.bytes == packets[3].bytes);
                assert_eq!(
                    alone.map(|output| output.metadata.packets),
                    Some(1),
                    "byte {offset} ^ {bit:#x}: {:?}",
                    run.reasons()
                );
                // Datagrams have no number: where it became another flow's, those of its own are
                // not apart.
                let merged = |output: &Output| {
                    output.metadata.packets == 3 || datagrams && output.metadata.packets == 5
                };
                assert!(
                    run.outputs.iter().any(merged),
                    "byte {offset} ^ {bit:#x}: {:?}",
                    run.reasons()
                );
            }
        }
    }
}

#[test]
fn flows_that_take_turns_are_not_mixed() {
    let at_port = |(port, base): (usize, Frame)| {
        base.with(|frame| match &mut frame.transport {
            Transport::Tcp(tcp) => tcp.source_port = port as u16,
            Transport::Udp(udp) => udp.source_port = port as u16,
            _ => unreachable!("the bases are of TCP and UDP"),
        })
    };
    let frames: Vec<Vec<Frame>> =
        (1..).zip(bases(300)).map(at_port).map(|base| base.run(12)).collect();
    for turn in [1, 2, 5] {
        let mut packets = Vec::new();
        for start in (0..12).step_by(turn) {
            for flow in &frames {
                packets.extend(
                    flow[start..(start + turn).min(12)]
                        .iter()
                        .map(|frame| Packet::from(frame).with_checksum(VERIFIED)),
                );
            }
        }
        let run = alike_in_all_batches(PARTIAL_GRO_UDP, &packets);
        assert_eq!(run.outputs.len(), frames.len());
        assert!(
            run.outputs.iter().all(|output| output.metadata.packets == 12),
            "{:?}",
            run.reasons()
        );
    }
}

/// Where flows take turns, one that was hit lately is found without a look-up in the table: when
/// the flow hit last does not expect the packet, that one does.
#[test]
fn flows_hit_lately_are_found_without_a_look_up() {
    /// Rounds of the flows' turns, in a poll.
    const ROUNDS: usize = 6;
    let mut pairs = 0;
    let mut found = 0;
    for base in [Frame::tcp4(1, 100), Frame::tcp6(1, 100)] {
        for port in (1_000..1_100).step_by(2) {
            let at = |port: u16| base.clone().with_tcp(|tcp| tcp.source_port = port);
            let flows = [port, port + 1].map(|port| at(port).run(2 * ROUNDS));
            // So few flows share all entries of the table: whoever looks one up looks at those.
            let mut aggregator = aggregator(Policy::gro().with_max_flows(8));
            let mut packets = 0;
            let mut sink = |packet: SuperPacket<'_, Vec<u8>>| packets += packet.metadata.packets;
            let mut looked_up = Vec::new();
            for round in 0..2 * ROUNDS {
                let before = aggregator.counters().probes;
                // A packet a call: put in order of their flows, they would not take turns.
                for flow in &flows {
                    let packet = Packet::from(&flow[round]).with_checksum(VERIFIED);
                    aggregator.receive_batch(&mut vec![packet.receive()], 0, &mut sink);
                }
                looked_up.push(aggregator.counters().probes > before);
                if round + 1 == ROUNDS {
                    aggregator.poll_end(0, &mut sink);
                }
            }
            aggregator.poll_end(0, &mut sink);
            assert_eq!(packets as usize, 4 * ROUNDS);
            // The first packets are looked up, and the second ones, which show that turns are
            // taken: in the next poll that is known.
            let mut expected = [false; 2 * ROUNDS];
            (expected[0], expected[1], expected[ROUNDS]) = (true, true, true);
            assert!(
                expected
                    .iter()
                    .zip(&looked_up)
                    .all(|(expected, looked_up)| !expected || *looked_up),
                "{looked_up:?}"
            );
            pairs += 1;
            found += usize::from(looked_up == expected);
        }
    }
    // Flows that have the same place among those hit lately take it from each other: 1 pair in 64.
    assert!(found * 10 > pairs * 9, "{found} of {pairs} pairs");
}

#[test]
fn lro_runs_give_the_same_in_all_batches() {
    for base in bases(500) {
        let frames = base.run(30);
        let packets =
            packets(&frames, |index| if index < 15 { VERIFIED } else { RxChecksum::None });
        alike_in_all_batches(Policy::lro(), &packets);
    }
}
