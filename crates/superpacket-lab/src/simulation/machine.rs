//! The simulated machine: its CPUs, and the scheduling of their work.

use std::collections::VecDeque;
use std::sync::Arc;

use superpacket::packet::RxPacket;
use superpacket_steer::{
    Admission, BacklogLimit, CompletionCounts, Cpu, CpuMask, DEFAULT_WEIGHT, FlowHashKey,
    FlowHasher, FlowTuple, SockFlowTable, Steering, SteeringTarget, Toeplitz,
};

use super::events::{Event, Events};
use super::state::{CpuWork, PacketSource, Processor, Queued, RxRing, SimulatedConnection};
use super::{Costs, CpuOutcome, RETRANSMISSION, Setup, SimulationCounts, SimulationOutcome};

/// Maximum packets per poll of a ring, and per turn of a backlog.
const BUDGET: usize = DEFAULT_WEIGHT;

/// Entries of the device's RSS indirection table.
const INDIRECTION: usize = 128;

/// Entries of the flow tables (`rps_sock_flow_entries`, `rps_flow_cnt`); enough to keep the flows
/// apart.
const FLOW_ENTRIES: u64 = 32_768;

/// Bytes of every packet; steering uses the device's hash and does not read them.
const FRAME: [u8; 60] = [0; 60];

#[derive(Debug)]
pub(super) struct Machine<'a> {
    setup: &'a Setup,
    costs: Costs,
    now: u64,
    events: Events,
    processors: Vec<Processor>,
    rings: Vec<RxRing>,
    connections: Vec<SimulatedConnection>,
    sock_flows: Option<Arc<SockFlowTable>>,
    counts: SimulationCounts,
}

impl<'a> Machine<'a> {
    pub(super) fn new(setup: &'a Setup) -> Self {
        let cpus = setup.cpus.max(1);
        let sock_flows = if setup.rfs {
            SockFlowTable::new(FLOW_ENTRIES, cpus).unwrap_or_default().map(Arc::new)
        } else {
            None
        };
        let rings = setup.queues.iter().map(|queue| {
            let mut steering = Steering::new(FlowHasher::keyed(FlowHashKey::new(0)));
            steering.set_online(&CpuMask::first_cpus(cpus));
            steering.set_mask(&queue.mask);
            if let Some(table) = &sock_flows {
                steering.set_sock_flows(Some(Arc::clone(table)));
                // Cannot fail: the constant is within the limit.
                let _ = steering.set_flow_count(FLOW_ENTRIES);
            }
            RxRing {
                cpu: queue.cpu.min(cpus - 1),
                packets: VecDeque::new(),
                polled: false,
                steers: !queue.mask.is_empty() || sock_flows.is_some(),
                steering,
                completions: CompletionCounts::default(),
                limit: BacklogLimit::default(),
            }
        });
        let toeplitz = Toeplitz::default();
        // One client, as in the original report; connections differ in its port.
        let connection = |index: u32| SimulatedConnection {
            hash: toeplitz.hash_flow(&FlowTuple::v4(
                [10, 0, 0, 1],
                [10, 0, 0, 2],
                Some([32_768 + index as u16, 12_865]),
            )),
            process: index as usize % cpus,
            protocol: 0,
        };
        Self {
            setup,
            costs: setup.costs,
            now: 0,
            events: Events::default(),
            processors: (0..cpus).map(|_| Processor::default()).collect(),
            rings: rings.collect(),
            connections: (0..setup.connections).map(connection).collect(),
            sock_flows,
            counts: SimulationCounts::default(),
        }
    }

    pub(super) fn run(mut self, warm_up: u64, time: u64) -> SimulationOutcome {
        for connection in 0..self.setup.connections {
            // Staggered, so that connections do not run in lockstep.
            self.events.schedule(u64::from(connection) * 1000, Event::Arrival(connection));
        }
        self.advance(warm_up);
        let steered_before = self.steering_totals();
        self.counts = SimulationCounts::default();
        for processor in &mut self.processors {
            (processor.busy_time, processor.outcome) = (0, CpuOutcome::default());
        }
        self.advance(warm_up + time);
        let (moves, held_back) = self.steering_totals();
        let counts = SimulationCounts {
            moves: moves - steered_before.0,
            held_back: held_back - steered_before.1,
            ..self.counts
        };
        let cpus: Vec<CpuOutcome> = self
            .processors
            .iter()
            // Work in progress is counted in full, so that the sum may slightly exceed the time.
            .map(|processor| CpuOutcome {
                utilisation: (processor.busy_time as f64 / time as f64).min(1.0),
                ..processor.outcome
            })
            .collect();
        SimulationOutcome {
            transactions_per_second: counts.transactions as f64 * 1e9 / time as f64,
            utilisation: cpus.iter().map(|cpu| cpu.utilisation).sum::<f64>() / cpus.len() as f64,
            cpus,
            counts,
        }
    }

    fn steering_totals(&self) -> (u64, u64) {
        let counters = self.rings.iter().map(|ring| ring.steering.counters());
        counters.fold((0, 0), |(moves, held_back), counters| {
            (moves + counters.moves, held_back + counters.held_back)
        })
    }

    fn advance(&mut self, end: u64) {
        while let Some((time, event)) = self.events.next_before(end) {
            self.now = time;
            match event {
                Event::Arrival(connection) => self.arrive(connection),
                Event::Done(cpu) => self.finish_work(cpu),
                Event::Ipi(cpu) => {
                    let processor = &mut self.processors[cpu];
                    processor.interrupt_time += self.costs.ipi_taken;
                    processor.backlog_ready = true;
                    self.start_next_work(cpu);
                }
            }
        }
        self.now = end;
    }

    fn arrive(&mut self, connection: u32) {
        let hash = self.connections[connection as usize].hash;
        let index = hash.0 as usize % INDIRECTION % self.rings.len();
        let ring = &mut self.rings[index];
        ring.packets.push_back(connection);
        if !std::mem::replace(&mut ring.polled, true) {
            let cpu = ring.cpu;
            self.counts.interrupts += 1;
            self.processors[cpu].interrupt_time += self.costs.interrupt;
            self.processors[cpu].rings.push_back(index);
            self.start_next_work(cpu);
        }
    }

    /// Starts the next work of a CPU if it is idle and work is available.
    fn start_next_work(&mut self, cpu: usize) {
        if !self.processors[cpu].is_idle() {
            return;
        }
        let Some((work, time)) = self.next_packet(cpu).or_else(|| self.next_process(cpu)) else {
            return;
        };
        let processor = &mut self.processors[cpu];
        let time = time + std::mem::take(&mut processor.interrupt_time);
        processor.work = Some(work);
        processor.busy_time += time;
        self.events.schedule(self.now + time, Event::Done(cpu));
    }

    /// Returns the next packet to process, from the CPU's rings and its backlog, which take turns.
    fn next_packet(&mut self, cpu: usize) -> Option<(CpuWork, u64)> {
        loop {
            let (source, left) = match self.processors[cpu].turn {
                Some(turn) => turn,
                None => (self.next_source(cpu)?, BUDGET),
            };
            let work = if left == 0 { None } else { self.take(cpu, source) };
            if let Some(work) = work {
                self.processors[cpu].turn = Some((source, left - 1));
                return Some(work);
            }
            if let Some(work) = self.end_turn(cpu, source) {
                return Some(work);
            }
        }
    }

    /// Returns the ring or backlog whose turn it is: the rings in rotation, with the backlog after
    /// each.
    fn next_source(&self, cpu: usize) -> Option<PacketSource> {
        let processor = &self.processors[cpu];
        if processor.backlog_ready && (processor.backlog_next || processor.rings.is_empty()) {
            return Some(PacketSource::Backlog);
        }
        processor.rings.front().map(|ring| PacketSource::Ring(*ring))
    }

    fn take(&mut self, cpu: usize, source: PacketSource) -> Option<(CpuWork, u64)> {
        match source {
            PacketSource::Backlog => {
                let packet = self.processors[cpu].backlog.pop_front()?;
                let miss = self.cache_miss_time(self.rings[packet.ring].cpu, cpu);
                Some((CpuWork::Protocol(packet), self.costs.protocol + miss))
            }
            PacketSource::Ring(index) => {
                let ring = &mut self.rings[index];
                let connection = ring.packets.pop_front()?;
                let mut packet = RxPacket::new(&FRAME[..]);
                packet.hash = Some(self.connections[connection as usize].hash);
                let hash = packet.hash;
                self.processors[cpu].outcome.received += 1;
                // The hash never changes here, so a choice always exists.
                let (mut place, mut admitted) = (SteeringTarget::Here, true);
                if let Some(choice) = ring.steering.choose(&packet, &ring.completions) {
                    place = choice.place();
                    if let SteeringTarget::Cpu(target) = place {
                        let length = self.processors[target.number()].backlog.len();
                        admitted = ring.limit.admit(hash, length) == Admission::Queued;
                    }
                    if admitted {
                        choice.enqueued();
                    }
                }
                let dispatch = if ring.steers { self.costs.dispatch } else { 0 };
                let here = if place == SteeringTarget::Here { self.costs.protocol } else { 0 };
                let packet = Queued { ring: index, connection };
                Some((
                    CpuWork::Driver { packet, place, admitted },
                    self.costs.driver + dispatch + here,
                ))
            }
        }
    }

    /// Ends the turn of a ring or backlog that is empty or has used its budget. Returns the work of
    /// sending interrupts to the CPUs that received packets.
    fn end_turn(&mut self, cpu: usize, source: PacketSource) -> Option<(CpuWork, u64)> {
        let processor = &mut self.processors[cpu];
        processor.turn = None;
        processor.backlog_next = source != PacketSource::Backlog;
        match source {
            PacketSource::Backlog if processor.backlog.is_empty() => {
                (processor.backlog_ready, processor.backlog_active) = (false, false)
            }
            PacketSource::Backlog => {}
            PacketSource::Ring(index) => {
                processor.rings.pop_front();
                if self.rings[index].packets.is_empty() {
                    self.rings[index].polled = false;
                } else {
                    processor.rings.push_back(index);
                }
            }
        }
        let wakes = processor.pending_ipis.len() as u64;
        (wakes > 0).then_some((CpuWork::Ipis, wakes * self.costs.ipi))
    }

    /// Takes a process that waits for this CPU, otherwise one from the CPU with the most waiting
    /// processes.
    fn next_process(&mut self, cpu: usize) -> Option<(CpuWork, u64)> {
        let waiting = |cpu: &usize| self.processors[*cpu].processes.len();
        let from = if waiting(&cpu) > 0 {
            cpu
        } else {
            (0..self.processors.len()).rev().max_by_key(waiting)?
        };
        let connection = self.processors[from].processes.pop_front()?;
        let protocol = self.connections[connection as usize].protocol;
        Some((
            CpuWork::Process(connection),
            self.costs.application + self.cache_miss_time(protocol, cpu),
        ))
    }

    fn cache_miss_time(&self, written: usize, read: usize) -> u64 {
        match written == read {
            true => 0,
            false if self.setup.shares_cache(written, read) => self.costs.near_miss,
            false => self.costs.far_miss,
        }
    }

    fn finish_work(&mut self, cpu: usize) {
        match self.processors[cpu].work.take() {
            Some(CpuWork::Driver { packet, place: SteeringTarget::Here, .. }) => {
                self.finish_protocol(cpu, packet, SteeringTarget::Here)
            }
            Some(CpuWork::Driver {
                packet,
                place: SteeringTarget::Cpu(target),
                admitted: true,
            }) => self.hand_over(cpu, packet, target.number()),
            Some(CpuWork::Driver { packet, admitted: false, .. }) => {
                self.counts.dropped += 1;
                self.events.schedule(self.now + RETRANSMISSION, Event::Arrival(packet.connection));
            }
            Some(CpuWork::Protocol(packet)) => {
                if let Some(place) = Cpu::new(cpu).map(SteeringTarget::Cpu) {
                    self.finish_protocol(cpu, packet, place);
                }
            }
            Some(CpuWork::Ipis) => {
                for target in std::mem::take(&mut self.processors[cpu].pending_ipis) {
                    self.counts.ipis += 1;
                    self.events.schedule(self.now + self.costs.ipi_delay, Event::Ipi(target));
                }
            }
            Some(CpuWork::Process(connection)) => self.finish_transaction(cpu, connection),
            None => {}
        }
        self.start_next_work(cpu);
    }

    /// Adds a packet to the backlog of CPU `target`. If that backlog is idle, the CPU is
    /// interrupted at the end of the poll.
    fn hand_over(&mut self, cpu: usize, packet: Queued, target: usize) {
        let processor = &mut self.processors[target];
        processor.backlog.push_back(packet);
        if !std::mem::replace(&mut processor.backlog_active, true) {
            if target == cpu {
                processor.backlog_ready = true;
            } else {
                self.processors[cpu].pending_ipis.push(target);
            }
        }
    }

    fn finish_protocol(&mut self, cpu: usize, packet: Queued, place: SteeringTarget) {
        self.rings[packet.ring].completions.record_completed(place, 1);
        self.processors[cpu].outcome.processed += 1;
        let connection = &mut self.connections[packet.connection as usize];
        connection.protocol = cpu;
        let last = connection.process;
        if self.costs.application == 0 {
            return self.finish_transaction(cpu, packet.connection);
        }
        let target = self.find_processor(cpu, last);
        let processor = &mut self.processors[target];
        processor.processes.push_back(packet.connection);
        if target != cpu && processor.is_idle() {
            processor.interrupt_time += self.costs.idle_wake;
            self.start_next_work(target);
        }
    }

    /// Returns the CPU on which a woken process runs. This is the process's previous CPU if that is
    /// idle, or if it does the wake-up and has no other work; otherwise an idle CPU, preferably in
    /// the waking CPU's cache group; otherwise the previous one.
    fn find_processor(&self, waking: usize, last: usize) -> usize {
        let idle = |cpu: &usize| {
            self.processors[*cpu].is_idle()
                && self.processors[*cpu].processes.is_empty()
                && *cpu != waking
        };
        if idle(&last)
            || (last == waking
                && self.processors[waking].processes.is_empty()
                && self.processors[waking].rings.is_empty())
        {
            return last;
        }
        let others = || (0..self.processors.len()).filter(idle);
        others()
            .find(|cpu| self.setup.shares_cache(*cpu, waking))
            .or_else(|| others().next())
            .unwrap_or(last)
    }

    fn finish_transaction(&mut self, cpu: usize, connection: u32) {
        self.counts.transactions += 1;
        self.processors[cpu].outcome.answered += 1;
        let entry = &mut self.connections[connection as usize];
        entry.process = cpu;
        self.counts.read_elsewhere += u64::from(entry.protocol != cpu);
        if let (Some(table), Some(cpu)) = (&self.sock_flows, Cpu::new(cpu)) {
            table.record(entry.hash, cpu);
        }
        self.events.schedule(self.now + self.setup.client_delay, Event::Arrival(connection));
    }
}
