//! Tests of what threads do when a port panics.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use std::os::fd::BorrowedFd;

use superpacket::packet::{Layer, RxChecksum, RxPacket};
use superpacket_model::memory::{MemoryPort, MemorySettings, pair};
use superpacket_port::features::Feature;
use superpacket_port::{Buffer, Outgoing, Port, Progress, Receive, Transmit, TxBatch};
use superpacket_steer::{CpuMask, FlowHashKey};

use super::*;
use crate::command::ReservedMemory;
use crate::monitor::MonitorSettings;
use crate::runtime::tests::shared_as;
use crate::settings::{InPlace, PerQueue, SteeringSettings, UsableCpus};

/// A transmit end that panics once, when the test allows it.
#[derive(Debug)]
struct PanicsOnce {
    due: Arc<AtomicBool>,
    held_up: Arc<AtomicBool>,
    taken: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Transmit for PanicsOnce {
    fn transmit(&mut self, outgoing: &Outgoing, batch: &TxBatch, from: usize) -> Progress {
        assert!(!self.due.swap(false, Ordering::Relaxed), "this port panics once");
        while self.held_up.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut taken = self.taken.lock().expect("no panic here");
        for frame in &batch.frames()[from..] {
            let mut bytes = Vec::new();
            batch.copy_to(outgoing, frame, &mut bytes);
            taken.push(bytes);
        }
        Progress { sent: batch.frames().len() - from, stopped: None }
    }
}

/// A receive queue whose descriptor panics once, when the test allows it.
#[derive(Debug)]
struct Touchy {
    inner: Box<dyn Receive>,
    due: Arc<AtomicBool>,
}

impl Receive for Touchy {
    fn poll(
        &mut self,
        packets: &mut Vec<RxPacket<Buffer>>,
        limit: usize,
    ) -> Result<usize, PortError> {
        self.inner.poll(packets, limit)
    }

    fn give_back(&mut self) {
        self.inner.give_back();
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        assert!(!self.due.swap(false, Ordering::Relaxed), "this queue panics once");
        self.inner.readiness()
    }
}

/// A receiving thread and a worker between a memory link and a port that may panic.
struct Bench {
    receiver: PollThread,
    worker: PollThread,
    input: Arc<SharedPort>,
    monitors: Arc<Monitors>,
    epoch: Arc<AtomicU64>,
    host: MemoryPort,
    _port: MemoryPort,
    due: Arc<AtomicBool>,
    /// Whether the receive queue panics when its descriptor is next asked for.
    touchy: Arc<AtomicBool>,
    /// Whether the port with the transmit end accepts no frames.
    held_up: Arc<AtomicBool>,
    taken: Arc<Mutex<Vec<Vec<u8>>>>,
    cpu: Cpu,
}

impl Bench {
    fn new() -> Bench {
        let key = HashKey::new(7);
        let (notices, _) = crossbeam_channel::unbounded();
        let epoch = Arc::<AtomicU64>::default();
        let context = ThreadContext {
            kernel: Arc::default(),
            table: Arc::new(AddressTable::new(64, Duration::from_secs(300))),
            answers: Arc::default(),
            epoch: epoch.clone(),
            notices,
            busy_poll: false,
            key,
            steering: Arc::new(SteeringState::new(
                SteeringSettings::default(),
                None,
                FlowHashKey::new(7),
                InPlace::NEVER,
            )),
            monitors: Arc::new(Monitors::new(epoch)),
            snooping: None,
            vlan_protocol: Default::default(),
            start: Instant::now(),
            factory: None,
        };
        let (host, mut port) =
            pair(&MemorySettings::default(), &MemorySettings::default()).expect("descriptors");
        let cpu = UsableCpus::read().mask().first().expect("one CPU at least");
        let start = |name: &str, cpu| {
            PollThread::start(name.into(), cpu, Arc::default(), context.clone()).expect("a thread")
        };
        let (receiver, worker) = (start("receiver", None), start("worker", Some(cpu)));
        let handle = worker.handle();
        context.steering.change(|now| drop(now.workers.insert(cpu, handle)));
        let (input, forwarder) = (Arc::new(shared_as(0, |_| ())), Arc::new(shared_as(1, |_| ())));
        let (due, taken) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<Vec<u8>>>>::default());
        let (touchy, held_up) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let receive_end =
            |inner| Box::new(Touchy { inner, due: touchy.clone() }) as Box<dyn Receive>;
        let mut receivers: Vec<_> =
            (0..).zip(port.receivers().into_iter().map(receive_end)).collect();
        for thread in [&worker, &receiver] {
            let receivers = if std::ptr::eq(thread, &receiver) {
                std::mem::take(&mut receivers)
            } else {
                Vec::new()
            };
            let transmit = port.transmitter().expect("memory has many");
            thread.send_command(ThreadCommand::Open {
                shared: input.clone(),
                receivers,
                transmit,
                reserved: ReservedMemory::default(),
            });
            let transmit = Box::new(PanicsOnce {
                due: due.clone(),
                held_up: held_up.clone(),
                taken: taken.clone(),
            });
            thread.send_command(ThreadCommand::Open {
                shared: forwarder.clone(),
                receivers: Vec::new(),
                transmit,
                reserved: ReservedMemory::default(),
            });
        }
        Bench {
            receiver,
            worker,
            input,
            monitors: context.monitors,
            epoch: context.epoch,
            host,
            _port: port,
            due,
            touchy,
            held_up,
            taken,
            cpu,
        }
    }

    /// Switches steering to the worker on or off.
    fn steer(&self, on: bool) {
        let mask: CpuMask = Some(self.cpu).into_iter().filter(|_| on).collect();
        self.input.change_steering(|steering| steering.rps_cpus = PerQueue::all(mask));
        self.epoch.fetch_add(1, Ordering::Release);
        self.receiver.wake();
    }

    /// Sends a number of frames of one flow.
    fn send(&mut self, count: u32) {
        let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
        let frame = superpacket_traffic::frame::Frame::udp4(100).to_bytes();
        (0..count).for_each(|_| {
            batch.push_bytes(&mut outgoing, &frame, RxChecksum::None, None, Layer::Ethernet)
        });
        let sent =
            self.host.transmitter().expect("memory has many").transmit(&outgoing, &batch, 0).sent;
        assert_eq!(sent as u32, count);
    }

    fn taken(&self) -> usize {
        self.taken.lock().expect("no panic here").len()
    }

    fn lost(&self) -> u64 {
        self.input.counts.report("").drops["panic"]
    }

    fn wait(&self, what: &str, holds: impl Fn(&Bench) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            let counts = (
                self.taken(),
                self.lost(),
                self.receiver.counts.panics.value(),
                self.worker.counts.panics.value(),
            );
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "{what}: (taken, lost, receiver's panics, worker's) {counts:?}"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl std::ops::Drop for Bench {
    fn drop(&mut self) {
        self.held_up.store(false, Ordering::Relaxed);
        self.receiver.stop();
        self.worker.stop();
    }
}

#[test]
fn a_worker_that_is_not_needed_ends_when_its_last_backlog_is_closed() {
    let mut bench = Bench::new();
    bench.steer(true);
    bench.send(3);
    bench.wait("all through the worker", |bench| {
        bench.taken() == 3 && bench.worker.counts.processed.value() != 0
    });
    // The worker has received the command, and sleeps with an open backlog.
    bench.worker.send_command(ThreadCommand::Retire);
    std::thread::sleep(Duration::from_millis(50));
    assert!(!bench.worker.is_over(), "it may still be sent something");
    bench.steer(false);
    bench.wait("the worker's end", |bench| bench.worker.is_over());
    // A receiving thread that learned of the end of its worker too late has no worker to give
    // packets to, so it processes them itself.
    bench.steer(true);
    bench.send(4);
    bench.wait("what is received processes it", |bench| bench.taken() == 7);
}

#[test]
fn a_receiving_thread_that_panics_loses_what_it_had_and_goes_on() {
    let mut bench = Bench::new();
    bench.send(5);
    bench.wait("the first five", |bench| bench.taken() == 5);
    bench.due.store(true, Ordering::Relaxed);
    bench.send(7);
    bench.wait("a panic", |bench| bench.receiver.counts.panics.value() == 1);
    bench.send(9);
    // How many of the seven were being processed depends on timing; each was either counted as lost
    // or sent.
    bench.wait("all others", |bench| bench.taken() as u64 + bench.lost() == 21);
    assert!((1..=7).contains(&bench.lost()), "{}", bench.lost());
    assert_eq!(bench.worker.counts.panics.value(), 0);
}

/// Part of a copy may be left in the old ring, so later copies go through a new one.
#[test]
fn a_thread_that_panics_reopens_its_monitor_copies() {
    let mut bench = Bench::new();
    let feed = bench.monitors.begin(MonitorSettings::default(), &[]).expect("a descriptor");
    bench.epoch.fetch_add(1, Ordering::Release);
    [&bench.receiver, &bench.worker].into_iter().for_each(PollThread::wake);
    bench.wait("both copy", |_| feed.copying() == 2);
    bench.due.store(true, Ordering::Relaxed);
    bench.send(3);
    bench.wait("a panic", |bench| bench.receiver.counts.panics.value() == 1);
    bench.wait("a new ring", |_| feed.copying() == 3);
}

#[test]
fn a_worker_that_panics_loses_what_it_had_and_its_flows_are_not_stuck() {
    let mut bench = Bench::new();
    bench.steer(true);
    bench.send(5);
    bench.wait("the first five", |bench| bench.taken() == 5);
    // The worker may finish before the receiver's round ends, and only then are the packets
    // counted.
    bench.wait("the count", |bench| bench.input.counts.report("").steered == 5);
    bench.due.store(true, Ordering::Relaxed);
    bench.send(7);
    bench.wait("a panic", |bench| bench.worker.counts.panics.value() == 1);
    bench.send(9);
    bench.wait("all others", |bench| bench.taken() as u64 + bench.lost() == 21);
    assert!((1..=7).contains(&bench.lost()), "{}", bench.lost());
    // No packet of the flow counts as outstanding, so the flow moves.
    bench.steer(false);
    bench.send(3);
    bench.wait("the last three", |bench| bench.taken() as u64 + bench.lost() == 24);
    let stats = bench.input.counts.report("");
    assert_eq!((stats.steered, bench.receiver.counts.panics.value()), (21, 0));
}

#[test]
fn a_thread_that_panics_while_it_waits_goes_on() {
    let mut bench = Bench::new();
    bench.touchy.store(true, Ordering::Relaxed);
    bench.receiver.wake();
    bench.wait("a panic", |bench| bench.receiver.counts.panics.value() == 1);
    bench.send(5);
    bench.wait("all", |bench| bench.taken() == 5);
    assert_eq!((bench.lost(), bench.receiver.is_over()), (0, false));
}

#[test]
fn switching_off_the_device_hash_moves_flows() {
    let mut bench = Bench::new();
    bench.steer(true);
    bench.send(5);
    bench.wait("the first five", |bench| bench.taken() == 5);
    bench.held_up.store(true, Ordering::Relaxed);
    bench.send(3);
    bench.wait("three with the worker", |bench| bench.input.counts.report("").steered == 8);
    bench
        .input
        .change(|settings| settings.features = settings.features.without(Feature::ReceiveHashing));
    bench.epoch.fetch_add(1, Ordering::Release);
    bench.receiver.wake();
    // Later packets may have another place, so they wait in the port until the earlier ones are
    // processed.
    bench.send(2);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(bench.input.counts.report("").rx_packets, 8);
    bench.held_up.store(false, Ordering::Relaxed);
    bench.wait("all", |bench| bench.taken() == 10);
}
