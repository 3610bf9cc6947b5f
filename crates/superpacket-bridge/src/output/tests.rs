//! Tests of which ports receive a packet, and in which form, depending on their capabilities.

mod loops;
mod multicast;
mod storm;
mod vlan;

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use super::*;
use crate::egress::recorder::{Recorder, SentFrame, aggregate, gro, packets, pass};
use crate::runtime::tests::shared_as;
use crate::settings::{NamedSettings, PortSettings};
use crate::switch::fdb::Station;
use crate::switch::loops::{LoopGuard, MAX_LOOP_REPEATS, REMEMBERED, WINDOW};
use superpacket::packet::{RxChecksum, RxPacket};
use superpacket::segment::{Gso, GsoKind, SegmentSize};
use superpacket_port::features::Feature;
use superpacket_traffic::check::{self, Expect};
use superpacket_traffic::frame::{Checksum, Frame};

/// Returns whether a single frame was sent unchanged, with a partial checksum.
fn is_as_it_came(sent: &[SentFrame], bytes: &[u8], segment: Option<usize>) -> bool {
    matches!(sent, [left] if left.bytes == bytes && left.segment() == segment && left.partial())
}

/// The frames that a port was given.
type Taken = Arc<Mutex<Vec<SentFrame>>>;

struct Bench {
    forwarder: PacketForwarder,
    ports: Vec<(Arc<SharedPort>, Taken)>,
}

impl Bench {
    /// Returns ports with these MTUs.
    fn new(mtus: &[usize], change: impl Fn(&mut crate::settings::PortSettings)) -> Bench {
        Bench::sized(mtus, 64, change)
    }

    /// Does the same as [`new`](Self::new), with an address table of this size.
    fn sized(
        mtus: &[usize],
        addresses: usize,
        change: impl Fn(&mut crate::settings::PortSettings),
    ) -> Bench {
        let table = AddressTable::new(addresses, Duration::from_secs(300));
        (0..mtus.len()).for_each(|port| table.set_limit(port as u16, 0));
        let mut forwarder = PacketForwarder::new(Arc::new(table), Arc::new(icmp::rate_limit()));
        let ports = mtus.iter().enumerate().map(|(number, &mtu)| {
            let shared = Arc::new(shared_as(number as u16, &change));
            let (recorder, taken) = Recorder::new(|_| None);
            let mut egress = Egress::new(Arc::clone(&shared), Box::new(recorder));
            egress.runtime.mtu = mtu;
            forwarder.egress.push(Some(egress));
            (shared, taken)
        });
        let ports = ports.collect();
        forwarder.begin(0);
        Bench { forwarder, ports }
    }

    /// Receives a frame at a port, and returns how many frames each port was given.
    fn receive(&mut self, port: usize, frame: &[u8]) -> Vec<usize> {
        self.pass(port, RxPacket::new(Buffer::from(frame.to_vec()))).iter().map(Vec::len).collect()
    }

    /// Receives a packet at a port, and returns the frames that each port was given.
    fn pass(&mut self, port: usize, packet: RxPacket<Buffer>) -> Vec<Vec<SentFrame>> {
        pass(packet, &mut |packet| self.forwarder.forward(&self.ports[port].0, packet));
        self.sent()
    }

    /// Aggregates frames, and then does the same as [`pass`](Self::pass).
    fn merge(&mut self, port: usize, frames: &[Vec<u8>]) -> Vec<Vec<SentFrame>> {
        let sink: &mut dyn FnMut(SuperPacket<'_, Buffer>) =
            &mut |packet| self.forwarder.forward(&self.ports[port].0, packet);
        aggregate(gro(), packets(frames), sink);
        self.sent()
    }

    fn sent(&mut self) -> Vec<Vec<SentFrame>> {
        self.forwarder.flush();
        self.ports
            .iter()
            .map(|(_, taken)| std::mem::take(&mut *taken.lock().expect("no panic")))
            .collect()
    }

    /// Removes offloads from a port.
    fn lack(&mut self, port: usize, features: &[Feature]) {
        let runtime = &mut self.forwarder.egress[port].as_mut().expect("the port is there").runtime;
        runtime.active =
            features.iter().fold(runtime.active, |active, &feature| active.without(feature));
    }

    fn drops(&self, port: usize, cause: &str) -> u64 {
        self.ports[port].0.counts.report("").drops[cause]
    }
}

fn broadcast(source: u8, content: u8) -> Vec<u8> {
    [&[0xff; 6][..], &[2, 0, 0, 0, 0, source], &[0x88, 0xb5], &[content; 46]].concat()
}

#[test]
fn frames_that_return_to_their_source_port_end_there() {
    let mut bench = Bench::new(&[1500; 3], |_| ());
    // A host with two links, at ports 1 and 2, which repeats on each link the frames it hears on
    // the other, and sends its own on both.
    let mut waiting = VecDeque::from([(1, broadcast(7, 0)), (2, broadcast(7, 0))]);
    let mut rounds = 0;
    while let Some((port, frame)) = waiting.pop_front() {
        rounds += 1;
        bench.forwarder.begin(0);
        assert!(rounds < 100, "it goes round and round");
        let sent = bench.receive(port, &frame);
        assert_eq!(sent[port], 0, "nothing is sent back");
        for (other, back) in [(1, 2), (2, 1)] {
            waiting.extend((0..sent[other]).map(|_| (back, frame.clone())));
        }
    }
    assert!(bench.drops(1, "loop") + bench.drops(2, "loop") >= 2);
    // The host's later frames pass once, whichever link they arrive by.
    for (number, (first, second)) in [(1, 2), (2, 1)].into_iter().enumerate() {
        let frame = broadcast(7, 1 + number as u8);
        assert_eq!(bench.receive(first, &frame)[0], 1);
        assert_eq!(bench.receive(second, &frame)[0], 0, "it has come round");
        assert!(
            repeats(&mut bench, first, &frame) <= MAX_LOOP_REPEATS,
            "it goes round in one direction"
        );
    }
    // So do frames of other hosts, and frames that circulate in one direction only.
    assert_eq!(bench.receive(0, &broadcast(8, 0)), [0, 1, 1]);
    for port in [1, 2] {
        assert_eq!(bench.receive(port, &broadcast(8, 0)), [0; 3], "it has come round");
    }
    assert!(repeats(&mut bench, 1, &broadcast(9, 0)) <= 1 + MAX_LOOP_REPEATS);
}

/// Returns how often a frame is forwarded that a port receives repeatedly.
fn repeats(bench: &mut Bench, port: usize, frame: &[u8]) -> u64 {
    bench.forwarder.begin(0);
    (0..100).filter(|_| bench.receive(port, frame).iter().any(|&sent| sent != 0)).count() as u64
}

#[test]
fn a_forged_address_does_not_silence_its_owner() {
    let mut bench = Bench::new(&[1500; 3], |_| ());
    let (victim, attacker, other) = (0, 2, 1);
    let to = |station: u8, content: u8| {
        let mut frame = broadcast(7, content);
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, station]);
        frame
    };
    bench.receive(other, &broadcast(8, 0));
    for round in 0..100 {
        bench.forwarder.begin(0);
        assert_eq!(
            bench.receive(victim, &to(8, round)),
            [0, 1, 0],
            "round {round}: nobody else hears it"
        );
        // The attacker sends the victim's broadcasts before and after the victim.
        let said = broadcast(7, round);
        assert_eq!(bench.receive(victim, &said), [0, 1, 1]);
        bench.receive(attacker, &said);
        bench.receive(attacker, &broadcast(7, 100 + round));
        assert_eq!(
            bench.receive(other, &to(7, round))[victim],
            1,
            "round {round}: what is sent to him comes to him"
        );
        // The same frame to an unknown address, repeatedly, as from a traffic generator to a silent
        // receiver.
        assert_eq!(bench.receive(victim, &to(99, 0)), [0, 1, 1]);
    }
    assert_eq!(bench.drops(victim, "loop"), 0);
}

#[test]
fn packets_for_a_disputed_address_go_to_both_ports() {
    let mut bench = Bench::new(&[1500; 4], |_| ());
    let (host, other, attacker) = (0, 1, 2);
    bench.forwarder.tick = 1;
    bench.receive(host, &unicast(7, 9));
    // The host has been silent for 1.5 s when one frame with its address arrives elsewhere.
    bench.forwarder.tick = 151;
    bench.receive(attacker, &broadcast(7, 0));
    for number in 0..30 {
        let mut frame = unicast(8, 7);
        frame[20] = number;
        assert_eq!(bench.receive(other, &frame), [1, 0, 1, 0], "frame {number} reaches the host");
        // Also from other hosts behind the attacker's port.
        let mut frame = unicast(6, 7);
        frame[20] = number;
        assert_eq!(bench.receive(attacker, &frame), [1, 0, 0, 0], "frame {number}");
    }
    let counted = |bench: &Bench| {
        bench.ports.iter().map(|(port, _)| port.counts.report("").disputed).collect::<Vec<_>>()
    };
    assert_eq!(counted(&bench), [0, 30, 0, 0]);
    // A port that may not be reached is left out; the other one is not.
    let isolate = |bench: &mut Bench, port: usize, is_isolated| {
        bench.forwarder.egress[port].as_mut().expect("is there").runtime.forwarding.isolated =
            is_isolated;
    };
    isolate(&mut bench, other, true);
    for (isolated, recipients) in [(attacker, [1, 0, 0, 0]), (host, [0, 0, 1, 0])] {
        isolate(&mut bench, isolated, true);
        assert_eq!(bench.receive(other, &unicast(8, 7)), recipients);
        isolate(&mut bench, isolated, false);
    }
    isolate(&mut bench, host, true);
    isolate(&mut bench, attacker, true);
    assert_eq!(
        (bench.receive(other, &unicast(8, 7)), bench.drops(other, "forwarding")),
        (vec![0; 4], 1)
    );
    [host, other, attacker].into_iter().for_each(|port| isolate(&mut bench, port, false));
    // The dispute ends when the host sends again.
    bench.receive(host, &unicast(7, 9));
    assert_eq!(
        (bench.receive(other, &unicast(8, 7)), counted(&bench)),
        (vec![1, 0, 0, 0], vec![0, 30, 0, 0])
    );
}

#[test]
fn packets_for_a_disputed_address_do_not_loop() {
    let mut bench = Bench::new(&[1500; 3], |_| ());
    bench.forwarder.tick = 1;
    bench.receive(1, &unicast(7, 9));
    bench.forwarder.tick = 151;
    bench.receive(2, &unicast(7, 9));
    // Frames that leave by port 1 return by port 2, and the other way round.
    let frame = unicast(8, 7);
    let mut waiting = VecDeque::from([0]);
    let mut rounds = 0;
    while let Some(port) = waiting.pop_front() {
        rounds += 1;
        assert!(rounds < 20, "it goes round and round");
        let sent = bench.receive(port, &frame);
        for (out, back) in [(1, 2), (2, 1)] {
            waiting.extend((0..sent[out]).map(|_| back));
        }
    }
    assert_eq!(bench.drops(1, "loop") + bench.drops(2, "loop"), 2);
}

#[test]
fn a_flood_of_source_addresses_does_not_attract_other_traffic() {
    let mut bench = Bench::sized(&[1500; 3], 8192, |_| ());
    let station = |port: u8, to: u8| {
        let frame =
            [&[2, 0, 0, 0, 0, to][..], &[2, 0, 0, 0, 0, port], &[0x88, 0xb5], &[0; 46]].concat();
        (usize::from(port), frame)
    };
    let transfer = [station(0, 1), station(1, 0)];
    // After the handshake one host mostly sends, and the other answers now and then.
    bench.receive(0, &transfer[0].1);
    bench.receive(1, &transfer[1].1);
    let mut leaked = 0;
    for round in 0..8 {
        for number in 0..200_000u32 {
            let [a, b, c, d] = number.to_be_bytes();
            let source =
                [&[2, 0, 0, 0, 0, 0][..], &[6, 0, a, b, c, d], &[0x88, 0xb5], &[round; 46]]
                    .concat();
            bench.forwarder.begin(0);
            bench.receive(2, &source);
            let (port, frame) = match number {
                number if number % 10_000 == 0 => &transfer[1],
                number if number % 16 == 0 => &transfer[0],
                _ => continue,
            };
            let sent = bench.receive(*port, frame);
            assert_eq!(sent[1 - port], 1, "it arrives");
            leaked += sent[2];
        }
    }
    assert_eq!(leaked, 0, "frames of the others that the flooding port heard");
    assert_eq!(
        [0, 1].map(|port| bench.forwarder.table.count(port)),
        [1, 1],
        "their addresses are there"
    );
    assert!((3_000..=4_096).contains(&bench.forwarder.table.count(2)), "half of the table at most");
}

#[test]
fn a_forged_static_address_attracts_no_traffic() {
    let mut bench = Bench::sized(&[1500; 4], 8, |_| ());
    let stations: BTreeSet<Station> =
        (1..40).map(|number| Station { vlan: 0, address: [2, 0, 0, 0, 0, number] }).collect();
    bench.forwarder.table.set_static(0, &stations);
    // Before the host first sends, throughout its activity, and after a long silence.
    for round in 0..300 {
        for number in (1..40).step_by(7) {
            bench.forwarder.tick = 1 + round * 1_000;
            assert_eq!(bench.receive(2, &broadcast(number, round as u8))[2], 0);
            bench.receive(2, &unicast(number, 200));
            assert_eq!(
                bench.receive(1, &unicast(100, number)),
                [1, 0, 0, 0],
                "round {round}, station {number}"
            );
            assert_eq!(
                bench.receive(2, &unicast(number, number)),
                [1, 0, 0, 0],
                "what the attacker sends is forwarded"
            );
            if round == 100 {
                assert_eq!(bench.receive(0, &unicast(number, 200))[0], 0);
            }
        }
    }
    // The port is gone for now, but its addresses are kept.
    bench.forwarder.egress[0] = None;
    assert_eq!(bench.receive(1, &unicast(100, 8)), [0; 4]);
    assert_eq!(bench.receive(1, &unicast(100, 9)), [0; 4]);
    assert_eq!(bench.drops(1, "no_port"), 2);
}

/// Returns a frame to this station.
fn unicast(source: u8, to: u8) -> Vec<u8> {
    let mut frame = broadcast(source, 0);
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, to]);
    frame
}

/// Returns ports of which `these` have a forwarding flag set as given.
fn switched(ports: usize, these: &[usize], name: &str, on: bool) -> Bench {
    let mut bench = Bench::new(&vec![1500; ports], |_| ());
    for &port in these {
        let runtime =
            &mut bench.forwarder.egress[port].as_mut().expect("the port is there").runtime;
        let mut settings = PortSettings::new("memory:m".parse().expect("a port string"));
        settings.set(name, on).expect("it is a switch");
        runtime.forwarding = settings.forwarding;
    }
    bench
}

#[test]
fn isolated_ports_receive_from_other_ports_only() {
    let mut bench = switched(4, &[0, 1], "isolated", true);
    assert_eq!(bench.receive(0, &broadcast(1, 0)), [0, 0, 1, 1]);
    assert_eq!(bench.receive(1, &broadcast(2, 0)), [0, 0, 1, 1]);
    assert_eq!(bench.receive(2, &broadcast(3, 0)), [1, 1, 0, 1]);
    // Between isolated ports no known address is reached, not even by super-packets.
    assert_eq!(bench.receive(0, &unicast(1, 2)), [0; 4]);
    assert_eq!(bench.receive(0, &unicast(1, 3)), [0, 0, 1, 0]);
    assert_eq!(bench.receive(2, &unicast(3, 1)), [1, 0, 0, 0]);
    assert_eq!((bench.drops(0, "forwarding"), bench.drops(1, "forwarding")), (1, 0));
}

#[test]
fn a_bridge_of_isolated_ports_forwards_nothing() {
    let mut bench = switched(2, &[0, 1], "isolated", true);
    assert_eq!(bench.receive(0, &broadcast(1, 0)), [0, 0]);
    assert_eq!((bench.drops(0, "forwarding"), bench.drops(0, "no_port")), (1, 0));
}

#[test]
fn a_port_without_learning_moves_no_address() {
    let mut bench = switched(3, &[2], "learning", false);
    bench.receive(0, &broadcast(1, 0));
    // Port 2 gains nothing by using another host's address.
    bench.receive(2, &broadcast(1, 0));
    bench.receive(2, &broadcast(9, 0));
    assert_eq!(bench.receive(1, &unicast(2, 1)), [1, 0, 0]);
    assert_eq!(bench.receive(1, &unicast(2, 9)), [1, 0, 1], "nobody knows where that is");
    assert_eq!(bench.forwarder.table.count(2), 0);
}

#[test]
fn flooding_obeys_the_flags_of_the_egress_port() {
    let multicast = |content| {
        let mut frame = broadcast(1, content);
        frame[..6].copy_from_slice(&[1, 0, 0x5e, 0, 0, 7]);
        frame
    };
    for (name, unknown, many, all) in
        [("flood", 0, 1, 1), ("mcast_flood", 1, 0, 1), ("bcast_flood", 1, 1, 0)]
    {
        let mut bench = switched(3, &[2], name, false);
        assert_eq!(bench.receive(0, &unicast(1, 99)), [0, 1, unknown], "{name}");
        assert_eq!(bench.receive(0, &multicast(0)), [0, 1, many], "{name}");
        assert_eq!(bench.receive(0, &broadcast(1, 0)), [0, 1, all], "{name}");
        // Frames for a known address go to its port.
        bench.receive(2, &broadcast(3, 1));
        assert_eq!(bench.receive(0, &unicast(1, 3)), [0, 0, 1], "{name}");
        assert_eq!(bench.drops(0, "forwarding"), 0, "another port has had it");
    }
}

#[test]
fn loops_of_more_frames_than_can_be_recorded_end_too() {
    let guard = LoopGuard::new();
    let came_round = |port, number: u16, tick| {
        let packet = RxPacket::new(Buffer::from([&number.to_be_bytes()[..], &[0; 58]].concat()));
        let by = IngressPort { port, is_isolated: false };
        let mut again = false;
        pass(packet, &mut |packet| {
            again = guard.has_come_round(by, &packet, &Recipients::All, tick)
        });
        again
    };
    let mut left: Vec<u16> = (0..2 * REMEMBERED as u16).collect();
    let mut tick = 1;
    while !left.is_empty() {
        assert!(tick < 20 * u64::from(WINDOW), "{} go round", left.len());
        tick += 1;
        // Frames from one port of the loop arrive at the other.
        left.retain(|&number| !came_round((tick % 2) as u16, number, tick));
    }
}

#[test]
fn without_a_loop_frames_may_be_repeated() {
    let mut bench = Bench::new(&[1500; 3], |_| ());
    for _ in 0..100 {
        bench.forwarder.begin(0);
        assert_eq!(bench.receive(0, &broadcast(8, 0)), [0, 1, 1]);
    }
}

#[test]
fn a_sender_is_answered_only_if_no_port_took_its_packet() {
    let mut frame = vec![
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0x05, 0x78, 0, 1, 0x40, 0, 64, 17, 0, 0,
        10, 0, 0, 1, 10, 0, 0, 2,
    ];
    frame.resize(14 + 1400, 0);
    let answered = |mtus: &[usize]| {
        let mut bench =
            Bench::new(mtus, |settings| settings.too_big = crate::settings::TooBig::Icmp);
        bench.receive(0, &frame)
    };
    assert_eq!(
        answered(&[1500, 1280, 1500]),
        [0, 0, 1],
        "the destination may be behind the third port"
    );
    assert_eq!(answered(&[1500, 1280, 1300]), [1, 0, 0]);
}

/// Returns ports 1 to 4 and the ingress port. The first segments nothing, the second and the last
/// everything, and the third does not even complete checksums.
fn mixed() -> Bench {
    let mut bench = Bench::new(&[1500; 5], |_| ());
    bench.lack(1, &[Feature::TcpSegmentationOffload]);
    bench.lack(3, &[Feature::TcpSegmentationOffload, Feature::TxChecksumming]);
    bench
}

fn checked(sent: &[SentFrame]) {
    for left in sent {
        check::frame(&left.bytes, &Expect::default()).expect("a right frame");
    }
}

/// Returns the frame with its checksum completed, as a device does it.
fn filled(left: &SentFrame) -> Vec<u8> {
    assert!(left.partial() && left.segment().is_none(), "{left:?}");
    let mut bytes = left.bytes.clone();
    let sum = superpacket_traffic::checksum::sum(&bytes[34..]);
    bytes[50..52].copy_from_slice(&(!sum).to_be_bytes());
    bytes
}

#[test]
fn merged_packets_are_segmented_only_for_ports_that_need_it() {
    let mut bench = mixed();
    let frames: Vec<_> = Frame::tcp4(1, 1_400).run(20).iter().map(Frame::to_bytes).collect();
    let sent = bench.merge(0, &frames);
    assert!(sent[0].is_empty(), "nothing is sent back");
    for cut in [1, 3] {
        assert!(sent[cut].iter().all(|left| left.segment().is_none() && !left.partial()));
        assert!(sent[cut].iter().map(|left| &left.bytes).eq(&frames), "port {cut} gets what came");
    }
    let payload = superpacket_traffic::frame::stream_bytes(1, 20 * 1_400);
    for whole in [2, 4] {
        let [left] = &sent[whole][..] else {
            panic!("{} frames to port {whole}", sent[whole].len())
        };
        assert_eq!((left.segment(), left.partial()), (Some(1_400), true));
        assert!(left.bytes[54..] == payload, "port {whole}");
    }
    let segmented = |port: usize| bench.ports[port].0.counts.segmented.value();
    assert_eq!([1, 2, 3, 4].map(segmented), [1, 0, 1, 0]);
    // Segmenting the super-packet that the last port was given yields the original frames, whatever
    // was written for the other port.
    let [whole] = &sent[4][..] else { panic!("seen above") };
    let mut packet = RxPacket::new(Buffer::from(whole.bytes.clone()))
        .with_checksum(RxChecksum::Partial { start: 34, offset: 16 });
    packet.gso = Some(Gso::new(GsoKind::Tcp4, SegmentSize::new(1_400).expect("not zero")));
    assert!(bench.pass(0, packet)[3].iter().map(|left| &left.bytes).eq(&frames));
}

#[test]
fn super_packets_are_segmented_only_for_ports_that_need_it() {
    let mut bench = mixed();
    let frame = Frame::tcp4(1, 14_000)
        .with(|frame| frame.tcp_mut().checksum = Checksum::Partial)
        .to_bytes();
    let packet = |frame: &[u8]| {
        RxPacket::new(Buffer::from(frame.to_vec()))
            .with_checksum(RxChecksum::Partial { start: 34, offset: 16 })
    };
    let mut whole = packet(&frame);
    whole.gso = Some(Gso::new(GsoKind::Tcp4, SegmentSize::new(1_400).expect("not zero")));
    let sent = bench.pass(0, whole);
    for able in [2, 4] {
        assert!(is_as_it_came(&sent[able], &frame, Some(1_400)), "port {able} gets what came");
    }
    assert_eq!((sent[0].len(), sent[1].len(), sent[3].len()), (0, 10, 10));
    checked(&sent[3]);
    let stream: Vec<u8> = sent[3].iter().flat_map(|left| &left.bytes[54..]).copied().collect();
    assert!(stream == frame[54..] && sent[3].iter().all(|left| !left.partial()));
    assert!(
        sent[1].iter().map(filled).eq(sent[3].iter().map(|left| left.bytes.clone())),
        "they differ in who fills in the checksums"
    );

    // A single frame with a partial checksum: only the port without the offload gets it completed.
    let frame =
        Frame::tcp4(1, 900).with(|frame| frame.tcp_mut().checksum = Checksum::Partial).to_bytes();
    let sent = bench.pass(0, packet(&frame));
    for able in [1, 2, 4] {
        assert!(is_as_it_came(&sent[able], &frame, None), "port {able} gets what came");
    }
    checked(&sent[3]);
    assert!(sent[3].len() == 1 && !sent[3][0].partial() && sent[3][0].bytes == filled(&sent[1][0]));
    let checksummed = |port: usize| bench.ports[port].0.counts.checksummed.value();
    assert_eq!([1, 2, 3, 4].map(checksummed), [0, 0, 1, 0]);
}
