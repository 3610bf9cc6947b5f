//! No packet overtakes another of its flow, whatever changes meanwhile. Workers with random delays
//! are simulated. With epochs switched off, the same simulation does find packets out of order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use superpacket::packet::{FlowHash, RxPacket};
use superpacket_steer::{
    CompletionCounts, Completions, Cpu, CpuMask, DEFAULT_WEIGHT, FlowHashKey, FlowHasher,
    MovePolicy, Rps, SockFlowTable, Steering, SteeringCounters, SteeringTarget, Toeplitz,
};
use superpacket_traffic::frame::Frame;
use superpacket_traffic::random::Random;

const CPUS: usize = 6;
const FLOWS: usize = 300;
const LONGEST_BACKLOG: usize = 200;

/// A change of the steering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Mask,
    Online,
    ReadElsewhere,
    FlowCount,
    InPlace,
    Hasher,
    Weight,
}

const ALL: [Change; 7] = [
    Change::Mask,
    Change::Online,
    Change::ReadElsewhere,
    Change::FlowCount,
    Change::InPlace,
    Change::Hasher,
    Change::Weight,
];

/// A worker, or the receiving thread itself.
#[derive(Default)]
struct Worker {
    backlog: VecDeque<(usize, u64)>,
    /// Packets taken out of the backlog, but not completed.
    in_hand: VecDeque<(usize, u64)>,
    processed: u64,
}

struct Simulation {
    random: Random,
    steering: Steering,
    completions: CompletionCounts,
    sock_flows: Arc<SockFlowTable>,
    workers: BTreeMap<SteeringTarget, Worker>,
    weight: usize,
    /// A frame of each flow, and the hash that the device reports for it.
    flows: Vec<(Vec<u8>, FlowHash)>,
    /// Number of each flow's next packet.
    next: Vec<u64>,
    /// Number of each flow's last processed packet.
    last: Vec<Option<u64>>,
    enqueued: u64,
    dropped: u64,
    overtaken: u64,
}

impl Simulation {
    fn new(seed: u64, policy: MovePolicy) -> Self {
        let toeplitz = Toeplitz::default();
        let flow = |index: usize| {
            let frame =
                Frame::tcp4(1, 10).with_tcp(|tcp| tcp.source_port = 1024 + index as u16).to_bytes();
            let hash = toeplitz
                .hash_frame(&frame, frame.len(), superpacket::packet::Layer::Ethernet)
                .expect("IP");
            (frame, hash)
        };
        let mut steering = Steering::new(FlowHasher::keyed(FlowHashKey::new(1)));
        let sock_flows = Arc::new(SockFlowTable::new(1024, CPUS).expect("room").expect("on"));
        steering.set_sock_flows(Some(Arc::clone(&sock_flows)));
        steering.set_move_policy(policy);
        steering.set_mask(&CpuMask::first_cpus(3));
        Simulation {
            random: Random::new(seed),
            steering,
            completions: CompletionCounts::default(),
            sock_flows,
            workers: BTreeMap::new(),
            weight: DEFAULT_WEIGHT,
            flows: (0..FLOWS).map(flow).collect(),
            next: vec![0; FLOWS],
            last: vec![None; FLOWS],
            enqueued: 0,
            dropped: 0,
            overtaken: 0,
        }
    }

    fn some_cpus(&mut self) -> CpuMask {
        let bits = self.random.below(1 << CPUS);
        (0..CPUS).filter(|cpu| bits >> cpu & 1 == 1).filter_map(Cpu::new).collect()
    }

    fn change(&mut self, what: Change) {
        match what {
            // The mask is sometimes empty.
            Change::Mask => {
                let mask = self.some_cpus();
                self.steering.set_mask(&mask);
            }
            Change::Online => {
                let online = &self.some_cpus() | &CpuMask::first_cpus(2);
                self.steering.set_online(&online);
            }
            Change::ReadElsewhere => {
                if self.steering.flow_count() == 0 {
                    self.steering.set_flow_count(256).expect("room");
                }
                for _ in 0..20 {
                    let (flow, cpu) = (
                        self.random.below(FLOWS as u64) as usize,
                        self.random.below(CPUS as u64) as usize,
                    );
                    // Hashed by the current function, as a consumer learns the hash with the
                    // packet.
                    let mut packet = RxPacket::new(&self.flows[flow].0[..]);
                    packet.hash = Some(self.flows[flow].1);
                    if let Some(hash) = self.steering.hasher().clone().hash_packet(&packet) {
                        self.sock_flows.record(hash, Cpu::new(cpu).expect("below 8192"));
                    }
                }
            }
            Change::FlowCount => {
                let count = self.random.pick(&[0, 1, 5000, 20_000]);
                self.steering.set_flow_count(count).expect("room");
            }
            Change::InPlace => {
                let in_place = self.random.chance(0.5);
                self.steering.set_in_place(in_place);
            }
            Change::Hasher => {
                let hasher = FlowHasher::keyed(FlowHashKey::new(u128::from(self.random.bits())));
                let hasher = if self.random.chance(0.5) { hasher.without_device() } else { hasher };
                self.steering.set_hasher(hasher);
            }
            Change::Weight => self.weight = self.random.between(1, DEFAULT_WEIGHT),
        }
    }

    fn arrive(&mut self) {
        for _ in 0..self.random.between(1, 64) {
            // Some flows have far more packets than others.
            let flow =
                self.random.below(FLOWS as u64).min(self.random.below(FLOWS as u64)) as usize;
            let mut packet = RxPacket::new(&self.flows[flow].0[..]);
            packet.hash = Some(self.flows[flow].1);
            let Some(choice) = self.steering.choose(&packet, &self.completions) else { return };
            let worker = self.workers.entry(choice.place()).or_default();
            if worker.backlog.len() > LONGEST_BACKLOG {
                self.dropped += 1;
            } else {
                worker.backlog.push_back((flow, self.next[flow]));
                choice.enqueued();
                self.enqueued += 1;
            }
            self.next[flow] += 1;
        }
    }

    /// Lets one worker take packets, or complete some.
    fn work(&mut self) {
        let places: Vec<_> = self.workers.keys().copied().collect();
        if places.is_empty() {
            return;
        }
        let place = self.random.pick(&places);
        let worker = self.workers.get_mut(&place).expect("it was listed");
        if worker.in_hand.is_empty() {
            let count = worker.backlog.len().min(self.weight);
            worker.in_hand.extend(worker.backlog.drain(..count));
        }
        let count = self.random.between(0, worker.in_hand.len());
        for (flow, number) in worker.in_hand.drain(..count) {
            self.overtaken += u64::from(self.last[flow].is_some_and(|last| last > number));
            self.last[flow] = Some(number);
        }
        worker.processed += count as u64;
        self.completions.record_completed(place, count as u64);
    }

    /// Makes changes of these kinds under load.
    fn run(&mut self, changes: usize, kinds: &[Change]) {
        for _ in 0..changes {
            for _ in 0..self.random.between(1, 20) {
                self.arrive();
                for _ in 0..self.random.between(0, 8) {
                    self.work();
                }
            }
            let kind = self.random.pick(kinds);
            self.change(kind);
        }
        while self
            .workers
            .values()
            .any(|worker| !(worker.backlog.is_empty() && worker.in_hand.is_empty()))
        {
            self.work();
        }
        let processed: u64 = self.workers.values().map(|worker| worker.processed).sum();
        assert_eq!(processed, self.enqueued, "nothing is lost");
        let counters = self.counters();
        assert_eq!(counters.steered + counters.here, self.enqueued);
        assert!(
            self.workers
                .keys()
                .all(|&place| self.steering.outstanding(place, &self.completions) == 0)
        );
    }

    fn counters(&self) -> SteeringCounters {
        *self.steering.counters()
    }
}

#[test]
fn no_packet_is_overtaken_whatever_changes() {
    for seed in 0..8 {
        let mut simulation = Simulation::new(seed, MovePolicy::Epochs);
        simulation.run(1000, &ALL);
        let counters = simulation.counters();
        assert_eq!(simulation.overtaken, 0, "seed {seed}");
        assert!(counters.moves >= 1000, "{counters:?}");
        assert!(
            counters.held_back > 1000
                && counters.waited > 100
                && counters.here > 1000
                && simulation.dropped > 0,
            "{counters:?}"
        );
    }
}

#[test]
fn a_thousand_masks_under_load() {
    for seed in 0..4 {
        let mut simulation = Simulation::new(seed, MovePolicy::Epochs);
        simulation.run(1000, &[Change::Mask]);
        assert_eq!(simulation.overtaken, 0, "seed {seed}");
        let counters = simulation.counters();
        assert!(counters.moves >= 1000, "{counters:?}");
        let cpus = simulation.workers.iter().filter(|(place, _)| **place != SteeringTarget::Here);
        let busy = cpus.filter(|(_, worker)| worker.processed * 10 >= simulation.enqueued).count();
        assert!(busy >= 2, "at least two workers have a tenth of the packets each");
    }
}

#[test]
fn each_kind_of_change_reorders_without_epochs_and_not_with_them() {
    for kind in ALL {
        for policy in [MovePolicy::Epochs, MovePolicy::AtOnce] {
            let mut simulation = Simulation::new(5, policy);
            // Preparations without which a change of this kind has no effect.
            simulation.change(Change::ReadElsewhere);
            simulation.run(1000, &[kind]);
            // Changes of these kinds do not affect where flows go.
            let moves_flows = !matches!(kind, Change::Weight);
            let expected = policy == MovePolicy::AtOnce && moves_flows;
            assert_eq!(
                simulation.overtaken > 0,
                expected,
                "{kind:?}, {policy:?}: {} overtaken",
                simulation.overtaken
            );
            if policy == MovePolicy::AtOnce {
                assert_eq!((simulation.counters().held_back, simulation.counters().waited), (0, 0));
            }
        }
    }
}

#[test]
fn back_to_epochs_everything_waits_once() {
    for seed in 0..20 {
        let mut simulation = Simulation::new(seed, MovePolicy::AtOnce);
        simulation.run(100, &[Change::Mask]);
        for _ in 0..30 {
            simulation.arrive();
            simulation.change(Change::Mask);
        }
        let before = simulation.overtaken;
        simulation.steering.set_move_policy(MovePolicy::Epochs);
        let sent = simulation.enqueued;
        simulation.arrive();
        assert_eq!(simulation.enqueued, sent, "they wait");
        while simulation
            .workers
            .values()
            .any(|worker| !(worker.backlog.is_empty() && worker.in_hand.is_empty()))
        {
            simulation.work();
        }
        let left_over = simulation.overtaken;
        simulation.run(200, &ALL);
        assert_eq!(simulation.overtaken, left_over);
        assert!(left_over > 0 && left_over >= before);
    }
}

#[test]
fn flows_go_where_the_kernel_sends_them() {
    let mut steering = Steering::new(FlowHasher::keyed(FlowHashKey::new(1)));
    let completions = CompletionCounts::default();
    let mut packet = RxPacket::new(&[][..]);
    for cpus in [1, 2, 8, 64, 128, 1024] {
        let mask = CpuMask::first_cpus(cpus);
        steering.set_mask(&mask);
        let rps = Rps::new(&mask);
        let mut random = Random::new(3);
        for _ in 0..2000 {
            let hash = FlowHash(random.bits() as u32);
            packet.hash = Some(hash);
            let place = steering.choose(&packet, &completions).map(|choice| choice.place());
            assert_eq!(place, rps.cpu(hash).map(SteeringTarget::Cpu));
        }
    }
    // A CPU that is not online is left out, and an empty mask switches RPS off.
    steering.set_online(&CpuMask::first_cpus(1));
    assert_eq!((steering.effective_mask().len(), steering.mask().len()), (1, 1024));
    assert_eq!(
        steering.choose(&packet, &completions).map(|choice| choice.place()),
        Cpu::new(0).map(SteeringTarget::Cpu)
    );
    steering.set_mask(&CpuMask::EMPTY);
    assert_eq!(
        steering.choose(&packet, &completions).map(|choice| choice.place()),
        Some(SteeringTarget::Here)
    );
}

#[test]
fn a_flow_is_steered_to_where_it_is_read() {
    let table = Arc::new(SockFlowTable::new(64, 8).expect("room").expect("on"));
    let mut steering = Steering::new(FlowHasher::keyed(FlowHashKey::new(1)));
    steering.set_sock_flows(Some(Arc::clone(&table)));
    steering.set_mask(&CpuMask::first_cpus(2));
    let cpu = |number: usize| Cpu::new(number).map(SteeringTarget::Cpu);
    let hash = FlowHash(0x9000_0001);
    let mut packet = RxPacket::new(&[][..]);
    packet.hash = Some(hash);
    let mut completions = CompletionCounts::default();
    let place = |steering: &mut Steering, completions: &CompletionCounts| {
        let choice = steering.choose(&packet, completions).expect("nothing to wait for");
        let place = choice.place();
        choice.enqueued();
        Some(place)
    };
    table.record(hash, Cpu::new(5).expect("a CPU"));
    assert_eq!(place(&mut steering, &completions), cpu(1), "without a flow count there is no RFS");
    steering.set_flow_count(10).expect("room");
    assert_eq!(steering.flow_count(), 16);
    assert_eq!(place(&mut steering, &completions), cpu(1), "its first packet is on CPU 1 still");
    completions.record_completed(SteeringTarget::Cpu(Cpu::new(1).expect("a CPU")), 1);
    assert_eq!(place(&mut steering, &completions), cpu(1), "and its second");
    completions.record_completed(SteeringTarget::Cpu(Cpu::new(1).expect("a CPU")), 2);
    assert_eq!(place(&mut steering, &completions), cpu(5), "outside the mask, as the kernel does");
    steering.set_online(&CpuMask::first_cpus(4));
    completions.record_completed(SteeringTarget::Cpu(Cpu::new(5).expect("a CPU")), 1);
    assert_eq!(place(&mut steering, &completions), cpu(1), "not where no worker can be");
    assert_eq!(steering.counters().moves, 2);
    assert!(steering.set_flow_count(1 << 40).is_err());
    assert_eq!(steering.flow_count(), 16, "nothing has changed");
    // Packets without a hash stay, and are counted as such.
    let arp = RxPacket::new(&[0u8; 60][..]);
    let choice = steering.choose(&arp, &completions).expect("nothing to wait for");
    assert_eq!((choice.place(), choice.hash()), (SteeringTarget::Here, None));
    choice.enqueued();
    assert_eq!(
        (
            steering.counters().without_hash,
            steering.outstanding(SteeringTarget::Here, &completions)
        ),
        (1, 1)
    );
    assert_eq!(steering.outstanding(SteeringTarget::Here, &|_| 1u64), 0, "heads may be a closure");
    assert_eq!(completions.completed(SteeringTarget::Here), 0);
}
