//! Handing packets to workers: nanoseconds a packet from one core to another, and what a second
//! core brings when there is work to do.
//!
//! The hand-over is the bridge's own file, driven here by two threads that are kept on two cores.
#![allow(missing_docs, reason = "`criterion_group!` makes a public function without documentation")]

#[path = "../src/handover/mod.rs"]
#[allow(dead_code, unused_imports, unreachable_pub)]
mod handover;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use handover::{BacklogReceiver, BacklogSender, Completion, Doorbell, backlog};
use superpacket::aggregate::{Aggregator, HashKey, Policy};
use superpacket::packet::{FlowHash, RxPacket};
use superpacket::super_packet::SuperPacket;
use superpacket_port::system::{allowed_cpus, pin_thread};
use superpacket_port::{Buffer, BufferPool};
use superpacket_steer::{
    Admission, BacklogLimit, Completions, Cpu, CpuMask, FlowHashKey, FlowHasher, FlowLimit,
    Steering, SteeringTarget,
};

/// Packets between two looks at the others.
const BATCH: usize = 64;

/// So many packets wait for a worker before the dispatcher lets it catch up.
const AHEAD: u64 = 512;

/// Flows, each with a hash that a device has reported.
const FLOWS: u32 = 256;

fn pin(cpu: usize) {
    pin_thread(None, &[cpu]).expect("it may");
}

/// What the workers have completed.
struct WorkerCompletions(Vec<Arc<Completion>>);

impl Completions for WorkerCompletions {
    fn completed(&self, place: SteeringTarget) -> u64 {
        match place {
            SteeringTarget::Here => 0,
            SteeringTarget::Cpu(cpu) => self.0[cpu.number()].head.done(),
        }
    }
}

/// A port: packets in its memory.
struct Source {
    pool: BufferPool,
    aggregator: Aggregator<Buffer>,
    received: Vec<RxPacket<Buffer>>,
    next: u32,
}

impl Source {
    /// With so many packets' memory.
    fn new(slots: usize) -> Self {
        Source {
            pool: BufferPool::new(slots, 2048),
            aggregator: Aggregator::new(Policy::gro().with_partial_checksums(), HashKey::new(1)),
            received: Vec::new(),
            next: 0,
        }
    }

    /// A batch of packets, each lent by the port's memory, to `sink`.
    fn batch(&mut self, mut sink: impl FnMut(SuperPacket<'_, Buffer>)) {
        for _ in 0..BATCH {
            let Some(slot) = self.pool.free() else { break };
            let Some(buffer) = self.pool.lend(slot, 0..60) else { break };
            let mut packet = RxPacket::new(buffer);
            self.next = (self.next + 1) % FLOWS;
            packet.hash = Some(FlowHash((self.next + 1).wrapping_mul(0x9e37_79b1)));
            self.received.push(packet);
        }
        self.received.drain(..).for_each(|packet| self.aggregator.bypass(packet, &mut sink));
    }
}

/// A receive queue that hands packets to so many workers.
struct Dispatcher {
    steering: Steering,
    limit: BacklogLimit,
    completions: WorkerCompletions,
    senders: Vec<BacklogSender>,
}

impl Dispatcher {
    fn new(workers: usize) -> (Self, Vec<BacklogReceiver<()>>) {
        let bell = Arc::new(Doorbell::new().expect("a descriptor"));
        let completions: Vec<_> =
            (0..workers).map(|_| Arc::new(Completion::new(bell.clone()))).collect();
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for completion in &completions {
            let bell = Arc::new(Doorbell::new().expect("a descriptor"));
            let (sender, receiver) = backlog(completion.clone(), bell, ());
            senders.push(sender);
            receivers.push(receiver);
        }
        let mut steering = Steering::new(FlowHasher::keyed(FlowHashKey::new(1)));
        steering.set_mask(&(0..workers).filter_map(Cpu::new).collect::<CpuMask>());
        let dispatcher = Dispatcher {
            steering,
            limit: BacklogLimit::new(10_000, Some(FlowLimit::default())),
            completions: WorkerCompletions(completions),
            senders,
        };
        (dispatcher, receivers)
    }

    /// What the bridge does with a packet of a steered queue.
    fn steer(&mut self, mut packet: SuperPacket<'_, Buffer>) -> bool {
        let Some(choice) = self.steering.choose_super_packet(&packet, &self.completions) else {
            return false;
        };
        let SteeringTarget::Cpu(cpu) = choice.place() else { return false };
        let queued = choice.queued(&self.completions) as usize;
        if self.limit.admit(choice.hash(), queued) != Admission::Queued {
            return false;
        }
        packet.metadata.hash = choice.hash();
        choice.enqueued();
        self.senders[cpu.number()].push(&mut packet);
        true
    }

    fn end_of_round(&mut self) {
        for sender in &mut self.senders {
            sender.end_of_round();
        }
    }

    fn outstanding(&self, worker: usize) -> u64 {
        self.steering
            .outstanding(SteeringTarget::Cpu(Cpu::new(worker).expect("few")), &self.completions)
    }
}

/// Runs a dispatcher on the first CPU and `workers` on CPUs from `first` on; a worker does `work`
/// with each packet. The time for so many packets, all of them done.
fn through(
    packets: u64,
    workers: usize,
    first: usize,
    dispatcher_cpu: Option<usize>,
    work: impl Fn() + Copy + Send + 'static,
) -> Duration {
    let cpus = allowed_cpus().expect("Linux says it");
    // Both awake, each on a core of its own; or they share the cores. There far more, or there
    // would be no work while others run.
    let spins = dispatcher_cpu.is_some();
    let ahead = if spins { AHEAD } else { 8 * AHEAD };
    let mut source = Source::new(2 * ahead as usize);
    let (mut dispatcher, receivers) = Dispatcher::new(workers);
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = receivers
        .into_iter()
        .enumerate()
        .map(|(index, mut receiver)| {
            let (stop, cpu) = (stop.clone(), cpus[(first + index) % cpus.len()]);
            std::thread::spawn(move || {
                pin(cpu);
                while !stop.load(Ordering::Relaxed) {
                    let count = receiver.take(BATCH, |(), packet| {
                        std::hint::black_box(packet.metadata.hash);
                        work();
                    });
                    receiver.publish();
                    if count == 0 && spins {
                        std::hint::spin_loop();
                    } else if count == 0 {
                        // The core is the dispatcher's, too.
                        std::thread::sleep(Duration::from_micros(20));
                    }
                }
            })
        })
        .collect();
    let before = allowed_cpus().expect("Linux says it");
    if let Some(cpu) = dispatcher_cpu {
        pin(cpus[cpu % cpus.len()]);
    }
    // Where it shares a core, each turn of a loop would be a worker's time; and where the timer is
    // a hypervisor's, each sleep costs tens of microseconds.
    let wait = || {
        if spins {
            std::hint::spin_loop()
        } else {
            std::thread::sleep(Duration::from_micros(1_000))
        }
    };
    let start = Instant::now();
    let mut sent = 0;
    while sent < packets {
        if (0..workers).any(|worker| dispatcher.outstanding(worker) > ahead) {
            // Until there is room for many.
            while (0..workers).any(|worker| dispatcher.outstanding(worker) > ahead / 2) {
                wait();
            }
        }
        source.batch(|packet| sent += u64::from(dispatcher.steer(packet)));
        dispatcher.end_of_round();
    }
    while (0..workers).any(|worker| dispatcher.outstanding(worker) != 0) {
        wait();
    }
    let time = start.elapsed();
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    pin_thread(None, &before).expect("it was so before");
    time
}

/// A cache line.
#[repr(align(64))]
struct Line([AtomicU64; 8]);

/// What the machine takes to bring a packet's cache lines from one core to another and back, with
/// nothing else done: the limit of every hand-over.
fn bare_ring(packets: u64) -> Duration {
    // As many as the hand-over has on their way, and as many bytes a packet.
    const LINES: usize = 3;
    const BATCHES: u64 = 8;
    let lines: Arc<[Line]> =
        (0..BATCHES as usize * BATCH * LINES).map(|_| Line(Default::default())).collect();
    let batch = |lines: &Arc<[Line]>, number: u64| {
        let start = (number % BATCHES) as usize * BATCH * LINES;
        start..(start + BATCH * LINES).min(lines.len())
    };
    let (head, tail) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let batches = packets / BATCH as u64 + 1;
    let cpus = allowed_cpus().expect("Linux says it");
    let reader = {
        let (lines, head, tail, cpu) = (lines.clone(), head.clone(), tail.clone(), cpus[1]);
        std::thread::spawn(move || {
            pin(cpu);
            for number in 0..batches {
                while tail.load(Ordering::Acquire) <= number {
                    std::hint::spin_loop();
                }
                let sum = lines[batch(&lines, number)]
                    .iter()
                    .map(|line| line.0[0].load(Ordering::Relaxed))
                    .fold(0, u64::wrapping_add);
                std::hint::black_box(sum);
                head.store(number + 1, Ordering::Release);
            }
        })
    };
    let before = allowed_cpus().expect("Linux says it");
    pin(cpus[0]);
    let start = Instant::now();
    for number in 0..batches {
        while head.load(Ordering::Acquire) + BATCHES <= number {
            std::hint::spin_loop();
        }
        for line in &lines[batch(&lines, number)] {
            line.0.iter().for_each(|word| word.store(number, Ordering::Relaxed));
        }
        tail.store(number + 1, Ordering::Release);
    }
    reader.join().expect("no panic");
    let time = start.elapsed();
    pin_thread(None, &before).expect("it was so before");
    time
}

fn hand_over(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("hand-over");
    group.throughput(Throughput::Elements(1));
    group.bench_function("base: lend and drop here", |bencher| {
        bencher.iter_custom(|packets| {
            let mut source = Source::new(2 * AHEAD as usize);
            let (start, mut done) = (Instant::now(), 0);
            while done < packets {
                source.batch(|packet| {
                    done += u64::from(std::hint::black_box(packet.metadata.packets))
                });
            }
            start.elapsed()
        });
    });
    if allowed_cpus().expect("Linux says it").len() < 2 {
        eprintln!("one CPU: nothing can be handed to another");
        return;
    }
    group.bench_function("limit: three cache lines from one core to another", |bencher| {
        bencher.iter_custom(|packets| {
            bare_ring(packets.max(1 << 16)).mul_f64(packets as f64 / packets.max(1 << 16) as f64)
        });
    });
    group.bench_function("one core to another, batch 64", |bencher| {
        bencher.iter_custom(|packets| {
            through(packets.max(1 << 16), 1, 1, Some(0), || ())
                .mul_f64(packets as f64 / packets.max(1 << 16) as f64)
        });
    });
    group.finish();
}

/// Spins for about a microsecond, by a count found once: a clock read in each packet would be work
/// of its own.
fn microsecond() -> u64 {
    static ROUNDS: AtomicU64 = AtomicU64::new(0);
    match ROUNDS.load(Ordering::Relaxed) {
        0 => {
            const TRIED: u64 = 1 << 22;
            // The fastest of some: others may run meanwhile.
            let time = (0..5).map(|_| spin(TRIED)).min().expect("five");
            let rounds = (TRIED as f64 * 1e-6 / time.as_secs_f64()) as u64;
            ROUNDS.store(rounds, Ordering::Relaxed);
            rounds
        }
        rounds => rounds,
    }
}

fn spin(rounds: u64) -> Duration {
    let start = Instant::now();
    work(rounds);
    start.elapsed()
}

fn work(rounds: u64) {
    let mut value = 1u64;
    for _ in 0..rounds {
        value = std::hint::black_box(value.wrapping_mul(0x5851_f42d_4c95_7f2d) ^ value >> 7);
    }
}

fn scaling(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("1 us of work a packet");
    group.throughput(Throughput::Elements(1));
    let rounds = microsecond();
    for workers in [1, 2, 4, 8] {
        if workers > allowed_cpus().expect("Linux says it").len() {
            break;
        }
        group.bench_function(format!("{workers} workers"), |bencher| {
            bencher.iter_custom(|packets| {
                let least = packets.max(1 << 16);
                through(least, workers, 0, None, move || work(rounds))
                    .mul_f64(packets as f64 / least as f64)
            });
        });
    }
    group.finish();
}

criterion_group!(benches, hand_over, scaling);
criterion_main!(benches);
