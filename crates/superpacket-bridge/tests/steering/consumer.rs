//! Tests of consumers: each worker has one, which is called in order and on time, and replaced
//! after a panic.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use superpacket::packet::RxChecksum;
use superpacket::segment::{Gso, GsoKind, SegmentSize};
use superpacket::super_packet::SuperPacket;
use superpacket_bridge::Steered;
use superpacket_bridge::consumer::{Consumer, PortEnd};
use superpacket_bridge::settings::{InPlace, PortChange, PortSettings, SteeringSettings};
use superpacket_port::{Buffer, PortSpec};
use superpacket_steer::{Cpu, MovePolicy};
use superpacket_traffic::frame::Frame;

use crate::support::Host;
use crate::traffic::{frame, mask, read, two_cpus};

/// What consumers report to the test.
#[derive(Debug, Default)]
struct Told {
    made: AtomicU64,
    /// Number of packets by CPU; `None` for the receiving thread.
    packets: Mutex<BTreeMap<Option<Cpu>, u64>>,
    timely: AtomicU64,
    /// Whether the next packet makes its consumer panic.
    panics: AtomicBool,
}

/// A consumer that sends every packet back.
struct Echo {
    cpu: Option<Cpu>,
    told: Arc<Told>,
    due: Option<u64>,
}

impl Consumer for Echo {
    fn receive(&mut self, packet: SuperPacket<'_, Buffer>, now: u64, end: &mut PortEnd<'_>) {
        assert!(!self.told.panics.swap(false, Ordering::Relaxed), "this consumer panics once");
        let mut bytes = Vec::new();
        packet.copy_to(&mut bytes);
        end.send(&bytes);
        *self.told.packets.lock().expect("no panic here").entry(self.cpu).or_default() += 1;
        self.due = Some(now + 2_000_000);
    }

    fn poll(&mut self, now: u64, _: &mut PortEnd<'_>) -> Option<u64> {
        if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            self.told.timely.fetch_add(1, Ordering::Relaxed);
        }
        self.due
    }
}

/// A memory link with the consumer at its far end.
struct Bench {
    steered: Steered,
    told: Arc<Told>,
    host: Host,
}

fn bench(
    name: &str,
    options: &str,
    make: fn(Option<Cpu>, &Arc<Told>) -> Box<dyn Consumer>,
) -> Bench {
    let spec: PortSpec = format!("memory:{name}{options}").parse().expect("a port string");
    let told = Arc::<Told>::default();
    let tell = told.clone();
    let settings =
        SteeringSettings { move_policy: MovePolicy::Epochs, ..SteeringSettings::default() };
    let steered = Steered::start(PortSettings::new(spec), settings, move |cpu| {
        tell.made.fetch_add(1, Ordering::Relaxed);
        make(cpu, &tell)
    });
    let host = Host::open(&format!("memory:{name}"));
    Bench { steered: steered.expect("memory needs nothing"), told, host }
}

fn echo(cpu: Option<Cpu>, told: &Arc<Told>) -> Box<dyn Consumer> {
    Box::new(Echo { cpu, told: told.clone(), due: None })
}

impl Bench {
    /// Waits for `count` frames, or until none has arrived for ten seconds.
    fn receive(&mut self, count: usize) -> Vec<Vec<u8>> {
        let (mut frames, mut last) = (Vec::new(), Instant::now());
        while frames.len() < count && last.elapsed() < Duration::from_secs(10) {
            let received = self.host.receive();
            if received.is_empty() {
                std::thread::sleep(Duration::from_micros(200));
                continue;
            }
            last = Instant::now();
            frames.extend(received);
        }
        frames
    }

    fn wait(&self, what: &str, holds: impl Fn(&Bench) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(start.elapsed() < Duration::from_secs(30), "{what}: {:?}", self.told);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn each_worker_has_its_consumer_and_flows_keep_their_order() {
    let Some(cpus) = two_cpus() else { return };
    let mut bench = bench("echo", "?slots=8192", echo);
    bench.steered.set_rps_cpus(None, &mask(&cpus)).expect("it can be set");
    bench.wait("a consumer for each thread", |bench| bench.told.made.load(Ordering::Relaxed) == 3);
    let frames: Vec<_> = (0..4000u32).map(|number| frame((number % 40) as u16, number)).collect();
    let mut last = BTreeMap::new();
    let mut came = 0;
    for part in frames.chunks(500) {
        bench.host.send(part);
        for bytes in bench.receive(part.len()) {
            let (flow, number) = read(&bytes);
            assert!(
                last.insert(flow, number).is_none_or(|last| last < number),
                "flow {flow}: {number} came late"
            );
            came += 1;
        }
    }
    assert_eq!(came, 4000);
    let packets = bench.told.packets.lock().expect("no panic here").clone();
    assert!(
        cpus.iter().all(|cpu| packets.get(&Some(*cpu)).is_some_and(|&count| count >= 400)),
        "{packets:?}"
    );
    assert!(!packets.contains_key(&None), "{packets:?}");
    // Without packets, it is called at the requested time, and then no more.
    bench.wait("a call without packets", |bench| bench.told.timely.load(Ordering::Relaxed) != 0);
}

#[test]
fn a_consumer_that_panics_is_made_again() {
    let Some(cpus) = two_cpus() else { return };
    let mut bench = bench("panics", "?slots=8192", echo);
    bench.steered.set_rps_cpus(None, &mask(&cpus)).expect("it can be set");
    bench.wait("a consumer for each thread", |bench| bench.told.made.load(Ordering::Relaxed) == 3);
    bench.told.panics.store(true, Ordering::Relaxed);
    bench
        .host
        .send(&(0..200u32).map(|number| frame((number % 40) as u16, number)).collect::<Vec<_>>());
    // Printing a panic with its backtrace takes seconds on a busy machine.
    bench.wait("a panic", |bench| bench.steered.stats().drops["panic"] != 0);
    assert_eq!(bench.told.made.load(Ordering::Relaxed), 4);
    let lost = bench.steered.stats().drops["panic"];
    let came = bench.receive(200 - lost as usize).len() as u64;
    assert!(lost >= 1 && came + lost == 200, "{came} came, {lost} lost");
    assert_eq!(bench.steered.stats().drops["panic"], lost);
    assert_eq!(bench.steered.steering().workers.iter().map(|worker| worker.panics).sum::<u64>(), 1);
    bench
        .host
        .send(&(0..200u32).map(|number| frame((number % 40) as u16, number)).collect::<Vec<_>>());
    assert_eq!(bench.receive(200).len(), 200, "no flow is stuck");
}

/// A consumer that sends every packet back after a busy wait.
struct Slow(Echo);

impl Consumer for Slow {
    fn receive(&mut self, packet: SuperPacket<'_, Buffer>, now: u64, end: &mut PortEnd<'_>) {
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(100) {
            std::hint::spin_loop();
        }
        self.0.receive(packet, now, end);
    }

    fn poll(&mut self, _: u64, _: &mut PortEnd<'_>) -> Option<u64> {
        None
    }
}

#[test]
fn a_consumer_that_adapts_works_where_packets_are_received_until_that_thread_is_full() {
    let Some(cpus) = two_cpus() else { return };
    let mut bench = bench("adapts", "?slots=8192", |cpu, told| {
        Box::new(Slow(Echo { cpu, told: told.clone(), due: None }))
    });
    let name = bench.steered.stats().port;
    bench.steered.set_rps_cpus(None, &mask(&cpus)).expect("it can be set");
    let report = |bench: &Bench| bench.steered.as_bridge().rps().remove(0);
    assert_eq!(
        report(&bench).in_place_below,
        InPlace::NEVER,
        "unless it is asked for, flows stay with their workers"
    );
    bench
        .steered
        .as_bridge()
        .set_port(&name, &PortChange::setting("in_place_below", InPlace::Automatic))
        .expect("it can be set");
    let (mut number, mut last) = (0u32, BTreeMap::new());
    // Sends `count` packets in parts, with a pause after each, and checks that they return in
    // order.
    let mut exchange = |bench: &mut Bench, count: u32, parts: usize, pause: Duration| {
        let frames: Vec<_> =
            (number..number + count).map(|number| frame((number % 40) as u16, number)).collect();
        number += count;
        for part in frames.chunks(frames.len() / parts) {
            bench.host.send(part);
            std::thread::sleep(pause);
        }
        let answers = bench.receive(frames.len());
        assert_eq!(answers.len(), frames.len());
        for (flow, number) in answers.iter().map(|bytes| read(bytes)) {
            assert!(
                last.insert(flow, number).is_none_or(|last| last < number),
                "flow {flow}: {number} came late"
            );
        }
    };
    let start = Instant::now();
    let switches = |bench: &Bench| bench.steered.stats().in_place_switches;
    let all = |bench: &Bench| bench.steered.stats().steered + bench.steered.stats().in_place;
    for _ in 0..4 {
        // Nearly twice the speed of one thread. Packets are processed in place only during
        // occasional trials.
        let mut before = bench.steered.stats();
        loop {
            exchange(&mut bench, 500, 1, Duration::ZERO);
            let stats = bench.steered.stats();
            if stats.steered + stats.in_place - before.steered - before.in_place >= 5000 {
                if stats.steered - before.steered >= 4000 {
                    break;
                }
                before = stats;
            }
            assert!(
                start.elapsed() < Duration::from_secs(120),
                "a full thread hands little over: {:?}",
                bench.steered.stats()
            );
        }
        // With little load, the thread works alone and keeps to it.
        let (mut since, mut seen) = (all(&bench), switches(&bench));
        while !report(&bench).queues[0].in_place || all(&bench) - since < 400 {
            // Most of the time, some packets are with workers.
            exchange(&mut bench, 40, 20, Duration::from_millis(1));
            if switches(&bench) != seen {
                (since, seen) = (all(&bench), switches(&bench));
            }
            assert!(
                start.elapsed() < Duration::from_secs(120),
                "a thread with time hands packets over: {:?}",
                bench.steered.stats()
            );
        }
    }
    // On a busy machine, it may switch once more at any time.
    let agree =
        |bench: &Bench| report(bench).queues[0].in_place == switches(bench).is_multiple_of(2);
    bench.wait("the report to say where packets are processed", agree);
    let packets = bench.told.packets.lock().expect("no panic here").clone();
    assert!(
        packets.contains_key(&None) && cpus.iter().all(|cpu| packets.contains_key(&Some(*cpu))),
        "{packets:?}"
    );
    let stats = bench.steered.stats();
    assert!(stats.flow_moves >= 40 * 4 && stats.steered > 0 && stats.in_place > 0, "{stats:?}");
}

/// A consumer that answers each packet with a super-packet of 2,500 bytes, in segments of 1,000,
/// with a partial checksum.
struct Bulk;

impl Consumer for Bulk {
    fn receive(&mut self, _: SuperPacket<'_, Buffer>, _: u64, end: &mut PortEnd<'_>) {
        let gso = Gso::new(GsoKind::Tcp4, SegmentSize::new(1000).expect("not 0"));
        end.send_offloaded(&Frame::tcp4(1, 2500).to_bytes(), RxChecksum::None, Some(gso));
    }

    fn poll(&mut self, _: u64, _: &mut PortEnd<'_>) -> Option<u64> {
        None
    }
}

#[test]
fn what_the_port_does_not_cut_is_cut_in_software() {
    let mut bench = bench("bulk", "?tso=off", |_, _| Box::new(Bulk));
    bench.host.send(&[frame(1, 1)]);
    let frames = bench.receive(3);
    let expected = Frame::tcp4(1, 1000).run(3);
    assert_eq!(frames.iter().map(Vec::len).collect::<Vec<_>>(), [1054, 1054, 554]);
    let payload: Vec<u8> = frames.iter().flat_map(|frame| &frame[54..]).copied().collect();
    assert_eq!(payload, superpacket_traffic::frame::stream_bytes(1, 2500));
    assert_eq!(frames[1][38..42], expected[1].to_bytes()[38..42], "the sequence number goes on");
}
