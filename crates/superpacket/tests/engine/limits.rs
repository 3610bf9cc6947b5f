//! GRO's limits, each by itself and at its edge; and when what is held leaves: at the poll's end,
//! by age, by flow, all, at once.

use crate::expect::*;
use crate::support::*;
use superpacket::aggregate::{Delivery, MAX_BIG_LENGTH, Policy, Reason, Reason::*, Storage};
use superpacket::segment::ChecksumForm;
use superpacket::super_packet::SuperPacket;
use superpacket::wire::{Layout, parse};
use superpacket_traffic::frame::{ACK, Carrier, Extension, Frame, Geneve, Gre, Ip, Ipv6, PSH};
use superpacket_traffic::gro_table::ip_in_ip;

/// What leaves a run of frames under a policy, cut and compared.
fn leaves(policy: Policy, frames: &[Frame]) -> Run {
    reversible_packets(policy, &packets(frames))
}

/// Another flow for each number.
fn flow(number: u16) -> Frame {
    Frame::tcp4(1000, 100).with_tcp(|tcp| tcp.source_port = 1000 + number)
}

/// An aggregator that keeps what it emits.
struct Port {
    aggregator: Aggregator<Vec<u8>>,
    outputs: Vec<Output>,
}

impl Port {
    fn new(policy: Policy) -> Self {
        Port { aggregator: aggregator(policy), outputs: Vec::new() }
    }

    fn act(
        &mut self,
        act: impl FnOnce(&mut Aggregator<Vec<u8>>, &mut dyn FnMut(SuperPacket<'_, Vec<u8>>)),
    ) -> Vec<(u32, Reason)> {
        let outputs = &mut self.outputs;
        let before = outputs.len();
        act(&mut self.aggregator, &mut |packet: SuperPacket<'_, Vec<u8>>| {
            outputs.push(Output::of(&packet))
        });
        assert!(self.aggregator.counters().balanced());
        self.outputs[before..]
            .iter()
            .map(|output| (output.metadata.packets, output.metadata.reason))
            .collect()
    }

    fn receive(&mut self, frame: &Frame, now: u64) -> Vec<(u32, Reason)> {
        self.act(|aggregator, sink| aggregator.receive(Packet::from(frame).receive(), now, sink))
    }

    fn poll_end(&mut self, now: u64) -> Vec<(u32, Reason)> {
        self.act(|aggregator, sink| aggregator.poll_end(now, sink))
    }

    fn held(&self) -> u64 {
        self.aggregator.counters().held
    }
}

#[test]
fn bytes_count_from_the_outermost_ip_header() {
    for (name, base) in ip_in_ip() {
        let headers = (base.offsets().payload - 14) as u32;
        for (limit, expected) in [
            (headers + 500, vec![5, 5]),
            (headers + 499, vec![4, 4, 2]),
            (headers + 100, vec![1; 10]),
            (headers + 200, vec![2; 5]),
            (0, vec![1; 10]),
        ] {
            for storage in [Storage::Fragments, Storage::Linear] {
                let run =
                    leaves(PARTIAL_GRO.with_max_bytes(limit).with_storage(storage), &base.run(10));
                assert_eq!(counts(&run), expected, "{name}: {limit}");
                assert!(
                    run.reasons().iter().rev().skip(1).all(|&reason| reason == ByteLimit),
                    "{name}: {:?}",
                    run.reasons()
                );
                for output in run.outputs.iter().filter(|output| output.metadata.packets > 1) {
                    assert!(output.bytes.len() - 14 <= limit as usize);
                }
            }
        }
    }
}

#[test]
fn packets_end_a_run_with_the_last_that_may_join() {
    for base in [Frame::tcp4(1, 100), Frame::tcp6(1, 100), Frame::udp4(100), Frame::dccp6(1, 100)] {
        let run = leaves(PARTIAL_GRO_UDP.with_max_packets(4), &base.run(10));
        left(&run, &[4, 4, 2], &[PacketLimit, PacketLimit, PollEnd]);
        let run = leaves(PARTIAL_GRO_UDP.with_max_packets(1), &base.run(3));
        left(&run, &[1; 3], &[PacketLimit; 3]);
    }
}

#[test]
fn datagrams_are_at_most_64() {
    let run = leaves(PARTIAL_GRO_UDP, &Frame::udp4(100).run(130));
    left(&run, &[64, 64, 2], &[PacketLimit, PacketLimit, PollEnd]);
    let run = leaves(PARTIAL_GRO_UDP, &Frame::udp6(100).in_vxlan4().run(65));
    assert_eq!(counts(&run), [64, 1]);
    let run = leaves(PARTIAL_GRO_UDP.with_max_datagrams(7), &Frame::udp6(100).run(15));
    assert_eq!(counts(&run), [7, 7, 1]);
    // The lower of both limits counts, and TCP knows nothing of this one.
    let run =
        leaves(PARTIAL_GRO_UDP.with_max_datagrams(7).with_max_packets(3), &Frame::udp6(100).run(7));
    assert_eq!(counts(&run), [3, 3, 1]);
    let run = leaves(PARTIAL_GRO_UDP.with_max_datagrams(2), &Frame::tcp4(1, 100).run(15));
    assert_eq!(counts(&run), [15]);
}

#[test]
fn fragments_are_pieces_of_buffers() {
    let frames = Frame::tcp4(1, 100).run(10);
    let run = leaves(PARTIAL_GRO.with_max_fragments(5), &frames);
    left(&run, &[5, 5], &[FragmentLimit, PollEnd]);
    assert!(run.outputs.iter().all(|output| output.pieces == 5));
    // Three buffers a frame, each with payload: two frames fit 7.
    let scattered: Vec<_> =
        packets(&frames).into_iter().map(|packet| packet.in_buffers_of(60)).collect();
    let policy = PARTIAL_GRO.with_max_fragments(7);
    let run = reversible_packets(policy, &scattered);
    assert_eq!((counts(&run), run.outputs[0].pieces), (vec![2; 5], 6));
    // A frame of more than the limit is held, but nothing joins it.
    let run = reversible_packets(PARTIAL_GRO.with_max_fragments(2), &scattered);
    assert_eq!((counts(&run), run.reasons()[0]), (vec![1; 10], FragmentLimit));
    // Linear storage has one piece, whatever came.
    let run = reversible_packets(policy.with_storage(Storage::Linear), &scattered);
    assert_eq!(counts(&run), [10]);
    assert!(run.outputs[0].contiguous);
}

#[test]
fn flows_beyond_the_limit_put_the_oldest_out() {
    let mut port = Port::new(PARTIAL_GRO.with_max_flows(4));
    for number in 0..4 {
        assert_eq!(port.receive(&flow(number), 0), []);
    }
    // A newer packet of a flow does not make it younger.
    assert_eq!(port.receive(&flow(0).following(), 0), []);
    assert_eq!(port.receive(&flow(4), 0), [(2, Evicted)]);
    assert_eq!(port.receive(&flow(5), 0), [(1, Evicted)]);
    assert_eq!(port.outputs[1].bytes, flow(1).to_bytes());
    assert_eq!(port.held(), 4);
    // What passes takes no place.
    assert_eq!(port.receive(&flow(6).with_flags(ACK | PSH), 0), [(1, Push)]);
    assert_eq!(port.receive(&flow(6).with(|frame| frame.payload.clear()), 0), [(1, NoPayload)]);
    assert_eq!(port.poll_end(0), [(1, PollEnd); 4]);

    let mut port = Port::new(PARTIAL_GRO.with_max_flows(1));
    port.receive(&flow(0), 0);
    port.receive(&flow(0).following(), 0);
    assert_eq!(port.receive(&flow(1), 0), [(2, Evicted)]);
    assert_eq!(port.held(), 1);
}

#[test]
fn held_bytes_beyond_the_limit_put_the_oldest_out() {
    // Frames of 154 bytes: six are 924 bytes, seven are 1,078.
    let mut port = Port::new(PARTIAL_GRO.with_max_held_bytes(1000));
    for number in 0..6 {
        assert_eq!(port.receive(&flow(number), 0), []);
        assert_eq!(port.aggregator.counters().held_bytes, (u64::from(number) + 1) * 154);
    }
    assert_eq!(port.receive(&flow(5).following(), 0), [(1, MemoryLimit)]);
    assert_eq!(port.outputs[0].bytes, flow(0).to_bytes());
    assert_eq!(port.receive(&flow(6), 0), [(1, MemoryLimit)]);
    assert_eq!(port.outputs[1].bytes, flow(1).to_bytes());
    assert_eq!(port.aggregator.counters().held_bytes, 924);
    // One flow's own bytes count as others' do, also on the short way of a run.
    let mut port = Port::new(PARTIAL_GRO.with_max_held_bytes(1000));
    let left: Vec<_> = flow(0).run(14).iter().flat_map(|frame| port.receive(frame, 0)).collect();
    assert_eq!(left, [(7, MemoryLimit), (7, MemoryLimit)]);
    assert_eq!(port.aggregator.counters().held_bytes, 0);
    // Padding and buffers as received count, not what is left of them; a frame larger than the
    // limit is not held at all.
    let mut port = Port::new(PARTIAL_GRO.with_max_held_bytes(153));
    assert_eq!(port.receive(&flow(0), 0), [(1, MemoryLimit)]);
}

#[test]
fn by_default_32_megabytes_are_held() {
    assert_eq!(PARTIAL_GRO.max_held_bytes, 32 << 20);
    // 600 flows of 60,014 bytes each are more than that.
    let mut port = Port::new(PARTIAL_GRO);
    let mut most = 0;
    for number in 0..600 {
        let frame = Frame::tcp4(1000, 59_960).with_tcp(|tcp| tcp.source_port = number);
        port.receive(&frame, 0);
        most = most.max(port.aggregator.counters().held_bytes);
    }
    assert!(most <= 32 << 20 && most > (32 << 20) - 60_014, "{most}");
    // Two or so leave because their bucket is full; all others because of the limit.
    let counters = port.aggregator.counters();
    assert_eq!(counters.reason(MemoryLimit) + counters.reason(Evicted), 600 - (32 << 20) / 60_014);
    assert!(counters.reason(MemoryLimit) > 30);
}

#[test]
fn limits_that_make_no_sense_are_brought_into_range() {
    let none = PARTIAL_GRO
        .with_max_bytes(u32::MAX)
        .with_max_packets(0)
        .with_max_datagrams(0)
        .with_max_fragments(0)
        .with_max_flows(0);
    let aggregator = aggregator(none);
    let policy = aggregator.policy();
    assert_eq!(
        (
            policy.max_bytes,
            policy.max_packets,
            policy.max_datagrams,
            policy.max_fragments,
            policy.max_flows
        ),
        (MAX_BIG_LENGTH, 1, 1, 1, 1)
    );
    let run = leaves(none.with_max_held_bytes(0), &Frame::tcp4(1, 100).run(3));
    assert_eq!(counts(&run), [1; 3]);
}

/// As long as merged packets may be.
fn big() -> Policy {
    PARTIAL_GRO_UDP.with_max_bytes(u32::MAX)
}

#[test]
fn big_tcp_leaves_its_length_out() {
    for base in [
        Frame::tcp4(1, 1448),
        Frame::tcp6(1, 1428),
        Frame::tcp4(1, 1448).tagged(7),
        Frame::tcp6(1, 1428).at_ip(),
        Frame::tcp6(1, 1416).with_timestamps(1, 2),
    ] {
        for storage in [Storage::Fragments, Storage::Linear] {
            let run = leaves(big().with_storage(storage), &base.run(200));
            assert_eq!(counts(&run), [200]);
            let output = &run.outputs[0];
            let network = base.offsets().network;
            let length = if let Ip::V4(_) = base.ip { network + 2 } else { network + 4 };
            assert_eq!(output.bytes[length..length + 2], [0, 0]);
            assert_eq!(output.bytes.len(), base.offsets().payload + 200 * base.payload.len());
        }
    }
}

/// With the option an IPv6 packet says its length; the segments have no such header.
#[test]
fn big_tcp_over_ipv6_says_its_length_where_the_policy_says_so() {
    for base in [
        Frame::tcp6(1, 1428),
        Frame::tcp6(1, 1428).at_ip(),
        Frame::tcp6(1, 1416).with_timestamps(1, 2).tagged(7),
    ] {
        let (network, headers) = (base.offsets().network, base.offsets().payload);
        // As long as its 16 bits say, and one byte more.
        let longest = usize::from(u16::MAX) - (headers - network - 40);
        for (payload, added) in [(longest, 0), (longest + 1, 8), (200 * base.payload.len(), 8)] {
            let mut frames = base.run(payload.div_ceil(base.payload.len()));
            let last = frames.len() - 1;
            frames[last].payload.truncate(payload - last * base.payload.len());
            for policy in [
                big(),
                big().with_storage(Storage::Linear),
                big().with_checksum(ChecksumForm::Full),
            ] {
                let run = leaves(policy.with_jumbo_option(), &frames);
                assert_eq!(counts(&run), [frames.len() as u32]);
                let (output, whole) = (&run.outputs[0], headers + added + payload);
                assert_eq!(
                    (output.bytes.len(), output.metadata.layout.map(|layout| layout.end as usize)),
                    (whole, Some(whole))
                );
                let layout =
                    parse(&output.bytes, whole, output.metadata.layer).expect("it is understood");
                let found =
                    |layout: Layout| (layout.jumbo, layout.transport, layout.payload, layout.end);
                assert_eq!(
                    (Some(found(layout)), layout.jumbo),
                    (output.metadata.layout.map(found), added != 0)
                );
                if added != 0 {
                    let length = (whole - network - 40) as u32;
                    assert_eq!(
                        output.bytes[network + 4..network + 7],
                        [0, 0, 0],
                        "no length, and a hop-by-hop header"
                    );
                    assert_eq!(
                        output.bytes[network + 40..network + 44],
                        [6, 0, 0xc2, 4],
                        "TCP, 8 bytes, jumbo payload, 4 bytes"
                    );
                    assert_eq!(output.bytes[network + 44..network + 48], length.to_be_bytes());
                }
            }
        }
    }
    // Of IPv4 nothing changes, nor what is shorter.
    for frames in [Frame::tcp4(1, 1448).run(200), Frame::tcp6(1, 1428).run(3)] {
        let outputs = |policy| {
            leaves(policy, &frames)
                .outputs
                .into_iter()
                .map(|output| output.bytes)
                .collect::<Vec<_>>()
        };
        assert!(outputs(big().with_jumbo_option()) == outputs(big()));
    }
    let base = Frame::tcp6(1, 1428);
    let run = leaves(big().with_jumbo_option(), &base.run(400));
    assert!(
        run.outputs[0].bytes.len() - 14 <= MAX_BIG_LENGTH as usize && counts(&run)[0] > 360,
        "{:?}",
        counts(&run)
    );
}

#[test]
fn big_tcp_ends_at_eight_times_65535() {
    for base in [Frame::tcp4(1, 1448), Frame::tcp6(1, 1428)] {
        let headers = base.offsets().payload - 14;
        let whole = (MAX_BIG_LENGTH as usize - headers) / base.payload.len();
        let run = leaves(big(), &base.run(whole + 2));
        left(&run, &[whole as u32, 2], &[ByteLimit, PollEnd]);
    }
}

#[test]
fn the_edge_of_16_bits() {
    // 65,535 bytes with the IP header, one more, and for IPv6 the 40 bytes that its field does not
    // count.
    for (base, limit) in [
        (Frame::tcp4(1, 1), 65_535),
        (Frame::tcp4(1, 1), 65_536),
        (Frame::tcp6(1, 1), 65_535),
        (Frame::tcp6(1, 1), 65_536),
        (Frame::tcp6(1, 1), 65_575),
        (Frame::tcp6(1, 1), 65_576),
    ] {
        let headers = base.offsets().payload - 14;
        let mut frames = base.with(|frame| frame.payload = vec![7; 13_000]).run(6);
        frames[5].payload.truncate(limit - headers - 5 * 13_000);
        let run = leaves(big(), &frames);
        assert_eq!((counts(&run), run.outputs[0].bytes.len()), (vec![6], 14 + limit));
        let run = leaves(PARTIAL_GRO, &frames);
        assert_eq!(counts(&run), if limit > 65_535 { vec![5, 1] } else { vec![6] });
    }
}

#[test]
fn extension_headers_keep_to_16_bits() {
    // With a payload length of 0 a hop-by-hop header would make a malformed jumbogram of it (RFC
    // 2675, section 3), which nobody could cut again.
    let contents = vec![1, 4, 0, 0, 0, 0];
    for extension in [
        Extension::HopByHop(contents.clone()),
        Extension::Routing(vec![4, 0, 0, 0, 0, 0]),
        Extension::DestinationOptions(contents),
    ] {
        let base = Frame::tcp6(1, 1400).with_ipv6(|ip| ip.extensions = vec![extension]);
        let run = leaves(big(), &base.run(100));
        left(&run, &[46, 46, 8], &[ByteLimit, ByteLimit, PollEnd]);
    }
}

#[test]
fn no_other_packet_has_a_length_of_0() {
    // Nothing in their headers can leave a length out.
    let tcp = Frame::tcp4(1, 1400);
    let pppoe = |frame: Frame| frame.in_pppoe();
    let outer6 = Ip::V6(Ipv6::default());
    let bases = [
        Frame::dccp4(1, 1400),
        Frame::dccp6(1, 1400),
        pppoe(tcp.clone()),
        pppoe(Frame::tcp6(1, 1400)),
        tcp.clone().in_vxlan4(),
        tcp.clone().in_vxlan6(),
        tcp.clone().in_geneve(),
        tcp.clone().in_gre(),
        tcp.clone().in_ip4(),
        tcp.clone().in_ip6(),
        tcp.clone().through(outer6.clone(), Carrier::Gre(Gre::default()), true),
        tcp.through(outer6, Carrier::Geneve(Geneve::default()), false),
    ];
    for base in bases {
        let run = leaves(big(), &base.run(100));
        let whole = counts(&run)[0];
        assert_eq!(run.reasons()[0], ByteLimit);
        assert!((40..=46).contains(&whole), "{whole}");
        assert!(run.outputs.iter().all(|output| output.bytes.len() <= 65_535 + 22));
    }
    // Datagrams too, where their number allows it.
    let run = leaves(big().with_max_datagrams(1000), &Frame::udp4(1400).run(100));
    assert_eq!((counts(&run)[0], run.reasons()[0]), (46, ByteLimit));
}

#[test]
fn a_pppoe_length_counts_two_bytes_more() {
    // PPPoE counts the PPP protocol too, so an IP packet of 65,535 bytes is two more than its field
    // holds.
    for whole in 65_530..=65_536 {
        let base = Frame::tcp4(1, 13_000).in_pppoe();
        let mut frames = base.run(6);
        frames[5].payload.truncate(whole - 40 - 5 * 13_000);
        let run = leaves(PARTIAL_GRO, &frames);
        assert_eq!(counts(&run), if whole > 65_533 { vec![5, 1] } else { vec![6] }, "{whole}");
    }
}

#[test]
fn nothing_is_held_past_the_poll() {
    let mut port = Port::new(PARTIAL_GRO);
    for number in 0..3 {
        port.receive(&flow(number), 0);
        port.receive(&flow(number).following(), 0);
    }
    assert_eq!(port.poll_end(0), [(2, PollEnd); 3]);
    assert_eq!((port.held(), port.aggregator.deadline()), (0, None));
    assert_eq!(port.poll_end(1), []);
}

#[test]
fn a_hold_time_bridges_polls() {
    let mut port = Port::new(PARTIAL_GRO.with_hold_time(1000));
    let frames = flow(0).run(4);
    port.receive(&frames[0], 5000);
    assert_eq!(port.aggregator.deadline(), Some(6000));
    assert_eq!(port.poll_end(5500), []);
    // A packet that joins does not make the flow younger.
    port.receive(&frames[1], 5900);
    port.receive(&flow(1), 5950);
    assert_eq!((port.poll_end(5999), port.aggregator.deadline()), (vec![], Some(6000)));
    assert_eq!(port.poll_end(6000), [(2, HoldTime)]);
    assert_eq!((port.held(), port.aggregator.deadline()), (1, Some(6950)));
    // A clock that ran backwards ages nothing; one at its end does not overflow.
    assert_eq!(port.poll_end(0), []);
    assert_eq!(port.poll_end(6949), []);
    assert_eq!(port.poll_end(u64::MAX), [(1, HoldTime)]);
    port.receive(&frames[2], u64::MAX);
    assert_eq!(port.aggregator.deadline(), Some(u64::MAX));
    // A flow that left and came again is as old as its new first packet.
    assert_eq!(port.poll_end(u64::MAX), []);
}

#[test]
fn flows_leave_by_age_the_oldest_first() {
    let mut port = Port::new(PARTIAL_GRO.with_hold_time(1 << 40));
    for number in 0..5 {
        port.receive(&flow(number), u64::from(number) * 10);
    }
    assert_eq!(
        port.act(|aggregator, sink| aggregator.flush_older_than(45, 30, sink)),
        [(1, HoldTime); 2]
    );
    assert_eq!(
        port.outputs.iter().map(|output| output.bytes.clone()).collect::<Vec<_>>(),
        [flow(0).to_bytes(), flow(1).to_bytes()]
    );
    assert_eq!(
        port.act(|aggregator, sink| aggregator.flush_older_than(45, 0, sink)),
        [(1, HoldTime); 3]
    );
}

#[test]
fn a_flow_leaves_when_asked() {
    for storage in [Storage::Fragments, Storage::Linear] {
        let mut port = Port::new(PARTIAL_GRO_UDP.with_storage(storage));
        for number in 0..3 {
            for frame in flow(number).run(3) {
                port.receive(&frame, 0);
            }
        }
        // Any packet of the flow names it: a pure ACK, another VLAN priority, one in several
        // buffers.
        let ask = |port: &mut Port, packet: &Packet| {
            port.act(|aggregator, sink| aggregator.flush_flow(&packet.receive(), sink))
        };
        let ack = flow(1).with(|frame| frame.payload.clear());
        assert_eq!(ask(&mut port, &ack.clone().into()), [(3, Requested)]);
        assert_eq!(ask(&mut port, &ack.clone().into()), []);
        assert_eq!(ask(&mut port, &Packet::from(flow(2)).in_buffers_of(12)), [(3, Requested)]);
        assert_eq!(ask(&mut port, &Packet::from(flow(0).tagged(3))), []);
        // A fragment names all flows of its addresses.
        port.receive(&flow(2), 0);
        let fragment = flow(9).fragments(48, 1)[1].clone();
        let mut left = ask(&mut port, &fragment.into());
        left.sort_unstable();
        assert_eq!(left.iter().map(|&(count, _)| count).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(port.held(), 0);
        // Asking takes no packet in.
        assert_eq!(port.aggregator.counters().packets_in, 10);
    }
}

#[test]
fn all_leave_when_asked() {
    let mut port = Port::new(PARTIAL_GRO.with_hold_time(1000));
    for number in 0..5 {
        port.receive(&flow(number), 0);
    }
    assert_eq!(port.act(|aggregator, sink| aggregator.flush_all(sink)), [(1, Requested); 5]);
    assert_eq!(
        port.outputs.iter().map(|output| output.bytes.clone()).collect::<Vec<_>>(),
        (0..5).map(|number| flow(number).to_bytes()).collect::<Vec<_>>()
    );
    assert_eq!(port.held(), 0);
}

#[test]
fn delivery_at_once_holds_nothing_between_calls() {
    let mut port = Port::new(PARTIAL_GRO.with_delivery(Delivery::AtOnce).with_hold_time(1000));
    assert_eq!(port.receive(&flow(0), 0), [(1, PollEnd)]);
    let mut batch: Vec<_> = flow(0)
        .run(7)
        .iter()
        .chain(&flow(1).run(2))
        .map(|frame| Packet::from(frame).receive())
        .collect();
    assert_eq!(
        port.act(|aggregator, sink| aggregator.receive_batch(&mut batch, 0, sink)),
        [(7, PollEnd), (2, PollEnd)]
    );
    assert_eq!((batch.len(), port.held()), (0, 0));
}

#[test]
fn udp_has_its_own_switch() {
    assert_ne!(PARTIAL_GRO, PARTIAL_GRO_UDP);
    for base in [
        Frame::udp4(100),
        Frame::udp6(100),
        Frame::udp4(100).in_vxlan6(),
        Frame::udp6(100).tagged(3),
    ] {
        let run = leaves(PARTIAL_GRO, &base.run(3));
        left(&run, &[1; 3], &[UdpOff; 3]);
        let run = leaves(PARTIAL_GRO_UDP, &base.run(3));
        left(&run, &[3], &[PollEnd]);
    }
    // Off, it stops nothing else: TCP in the same tunnel merges around it.
    let mut frames = Frame::tcp4(1, 100).in_vxlan4().run(4);
    frames.insert(2, Frame::udp4(100).in_vxlan4());
    let run = leaves(PARTIAL_GRO, &frames);
    left(&run, &[1, 4], &[UdpOff, PollEnd]);
}
