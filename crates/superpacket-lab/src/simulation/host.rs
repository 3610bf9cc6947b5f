//! The machine: its CPUs, and what each of them does next.

use std::collections::VecDeque;
use std::sync::Arc;

use superpacket::packet::RxPacket;
use superpacket_steer::{
    Admission, BacklogLimit, CompletionCounts, Cpu, CpuMask, DEFAULT_WEIGHT, FlowHashKey,
    FlowHasher, FlowTuple, Place, SockFlowTable, Steering, Toeplitz,
};

use super::events::{Event, Events};
use super::state::{Connection, Processor, Queued, Ring, Source, Work};
use super::{Costs, Counts, CpuOutcome, Outcome, RETRANSMISSION, Setup};

/// Packets of a poll, as of a backlog's turn.
const BUDGET: usize = DEFAULT_WEIGHT;

/// Entries of the device's table from hashes to queues.
const INDIRECTION: usize = 128;

/// Entries of the table of flows (`rps_sock_flow_entries`, `rps_flow_cnt`): so many that flows are
/// told apart.
const FLOW_ENTRIES: u64 = 32_768;

/// What packets consist of: steering goes by the device's hash and reads none of it.
const FRAME: [u8; 60] = [0; 60];

#[derive(Debug)]
pub(super) struct Host<'a> {
    setup: &'a Setup,
    costs: Costs,
    now: u64,
    events: Events,
    processors: Vec<Processor>,
    rings: Vec<Ring>,
    connections: Vec<Connection>,
    sock_flows: Option<Arc<SockFlowTable>>,
    counts: Counts,
}

impl<'a> Host<'a> {
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
                // A constant within the limit.
                let _ = steering.set_flow_count(FLOW_ENTRIES);
            }
            Ring {
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
        // One client, as in the source: its ports tell connections apart.
        let connection = |index: u32| Connection {
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
            counts: Counts::default(),
        }
    }

    pub(super) fn run(mut self, warm_up: u64, time: u64) -> Outcome {
        for connection in 0..self.setup.connections {
            // One after the other, so that they do not begin in step.
            self.events.announce(u64::from(connection) * 1000, Event::Arrival(connection));
        }
        self.advance(warm_up);
        let steered_before = self.steered();
        self.counts = Counts::default();
        for processor in &mut self.processors {
            (processor.busy, processor.outcome) = (0, CpuOutcome::default());
        }
        self.advance(warm_up + time);
        let (moves, held_back) = self.steered();
        let counts = Counts {
            moves: moves - steered_before.0,
            held_back: held_back - steered_before.1,
            ..self.counts
        };
        let cpus: Vec<CpuOutcome> = self
            .processors
            .iter()
            // What it is at has been counted in whole, so that it may seem to have spent a little
            // more than there was.
            .map(|processor| CpuOutcome {
                utilisation: (processor.busy as f64 / time as f64).min(1.0),
                ..processor.outcome
            })
            .collect();
        Outcome {
            transactions_per_second: counts.transactions as f64 * 1e9 / time as f64,
            utilisation: cpus.iter().map(|cpu| cpu.utilisation).sum::<f64>() / cpus.len() as f64,
            cpus,
            counts,
        }
    }

    fn steered(&self) -> (u64, u64) {
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
                Event::Done(cpu) => self.done(cpu),
                Event::Ipi(cpu) => {
                    let processor = &mut self.processors[cpu];
                    processor.interrupted += self.costs.ipi_taken;
                    processor.backlog_ready = true;
                    self.go_on(cpu);
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
            self.processors[cpu].interrupted += self.costs.interrupt;
            self.processors[cpu].rings.push_back(index);
            self.go_on(cpu);
        }
    }

    /// Gives a CPU something to do, if it is idle and there is something.
    fn go_on(&mut self, cpu: usize) {
        if !self.processors[cpu].is_idle() {
            return;
        }
        let Some((work, time)) = self.packet(cpu).or_else(|| self.process(cpu)) else { return };
        let processor = &mut self.processors[cpu];
        let time = time + std::mem::take(&mut processor.interrupted);
        processor.work = Some(work);
        processor.busy += time;
        self.events.announce(self.now + time, Event::Done(cpu));
    }

    /// The next packet of a poll or of the backlog, by turns.
    fn packet(&mut self, cpu: usize) -> Option<(Work, u64)> {
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

    /// Whose turn comes: rings in turn, and the backlog between them.
    fn next_source(&self, cpu: usize) -> Option<Source> {
        let processor = &self.processors[cpu];
        if processor.backlog_ready && (processor.backlog_next || processor.rings.is_empty()) {
            return Some(Source::Backlog);
        }
        processor.rings.front().map(|ring| Source::Ring(*ring))
    }

    fn take(&mut self, cpu: usize, source: Source) -> Option<(Work, u64)> {
        match source {
            Source::Backlog => {
                let packet = self.processors[cpu].backlog.pop_front()?;
                let miss = self.miss(self.rings[packet.ring].cpu, cpu);
                Some((Work::Protocol(packet), self.costs.protocol + miss))
            }
            Source::Ring(index) => {
                let ring = &mut self.rings[index];
                let connection = ring.packets.pop_front()?;
                let mut packet = RxPacket::new(&FRAME[..]);
                packet.hash = Some(self.connections[connection as usize].hash);
                let hash = packet.hash;
                self.processors[cpu].outcome.received += 1;
                // The hash never changes here, so that there is always a choice.
                let (mut place, mut admitted) = (Place::Here, true);
                if let Some(choice) = ring.steering.choose(&packet, &ring.completions) {
                    place = choice.place();
                    if let Place::Cpu(target) = place {
                        let length = self.processors[target.number()].backlog.len();
                        admitted = ring.limit.admit(hash, length) == Admission::Queued;
                    }
                    if admitted {
                        choice.enqueued();
                    }
                }
                let dispatch = if ring.steers { self.costs.dispatch } else { 0 };
                let here = if place == Place::Here { self.costs.protocol } else { 0 };
                let packet = Queued { ring: index, connection };
                Some((
                    Work::Driver { packet, place, admitted },
                    self.costs.driver + dispatch + here,
                ))
            }
        }
    }

    /// A turn ends: its packets are done, or as many as one may have. Who was given packets is
    /// woken up.
    fn end_turn(&mut self, cpu: usize, source: Source) -> Option<(Work, u64)> {
        let processor = &mut self.processors[cpu];
        processor.turn = None;
        processor.backlog_next = source != Source::Backlog;
        match source {
            Source::Backlog if processor.backlog.is_empty() => {
                (processor.backlog_ready, processor.backlog_wakes) = (false, false)
            }
            Source::Backlog => {}
            Source::Ring(index) => {
                processor.rings.pop_front();
                if self.rings[index].packets.is_empty() {
                    self.rings[index].polled = false;
                } else {
                    processor.rings.push_back(index);
                }
            }
        }
        let wakes = processor.to_wake.len() as u64;
        (wakes > 0).then_some((Work::Ipis, wakes * self.costs.ipi))
    }

    /// A process that waits for this CPU; else one that waits longest for the CPU where most wait.
    fn process(&mut self, cpu: usize) -> Option<(Work, u64)> {
        let waiting = |cpu: &usize| self.processors[*cpu].processes.len();
        let from = if waiting(&cpu) > 0 {
            cpu
        } else {
            (0..self.processors.len()).rev().max_by_key(waiting)?
        };
        let connection = self.processors[from].processes.pop_front()?;
        let protocol = self.connections[connection as usize].protocol;
        Some((Work::Process(connection), self.costs.application + self.miss(protocol, cpu)))
    }

    fn miss(&self, written: usize, read: usize) -> u64 {
        match written == read {
            true => 0,
            false if self.setup.shares_cache(written, read) => self.costs.near_miss,
            false => self.costs.far_miss,
        }
    }

    fn done(&mut self, cpu: usize) {
        match self.processors[cpu].work.take() {
            Some(Work::Driver { packet, place: Place::Here, .. }) => {
                self.protocol_done(cpu, packet, Place::Here)
            }
            Some(Work::Driver { packet, place: Place::Cpu(target), admitted: true }) => {
                self.hand_over(cpu, packet, target.number())
            }
            Some(Work::Driver { packet, admitted: false, .. }) => {
                self.counts.dropped += 1;
                self.events.announce(self.now + RETRANSMISSION, Event::Arrival(packet.connection));
            }
            Some(Work::Protocol(packet)) => {
                if let Some(place) = Cpu::new(cpu).map(Place::Cpu) {
                    self.protocol_done(cpu, packet, place);
                }
            }
            Some(Work::Ipis) => {
                for target in std::mem::take(&mut self.processors[cpu].to_wake) {
                    self.counts.ipis += 1;
                    self.events.announce(self.now + self.costs.ipi_delay, Event::Ipi(target));
                }
            }
            Some(Work::Process(connection)) => self.answered(cpu, connection),
            None => {}
        }
        self.go_on(cpu);
    }

    /// Into the backlog of another CPU, or of this one; which is woken up at the end of the poll,
    /// if it is at rest.
    fn hand_over(&mut self, cpu: usize, packet: Queued, target: usize) {
        let processor = &mut self.processors[target];
        processor.backlog.push_back(packet);
        if !std::mem::replace(&mut processor.backlog_wakes, true) {
            if target == cpu {
                processor.backlog_ready = true;
            } else {
                self.processors[cpu].to_wake.push(target);
            }
        }
    }

    fn protocol_done(&mut self, cpu: usize, packet: Queued, place: Place) {
        self.rings[packet.ring].completions.record_completed(place, 1);
        self.processors[cpu].outcome.processed += 1;
        let connection = &mut self.connections[packet.connection as usize];
        connection.protocol = cpu;
        let last = connection.process;
        if self.costs.application == 0 {
            return self.answered(cpu, packet.connection);
        }
        let target = self.find_processor(cpu, last);
        let processor = &mut self.processors[target];
        processor.processes.push_back(packet.connection);
        if target != cpu && processor.is_idle() {
            processor.interrupted += self.costs.idle_wake;
            self.go_on(target);
        }
    }

    /// Where a process is to run: where it did, if that CPU is idle, or is the one that wakes it
    /// and has no other to run; else on an idle one, near the waking one if there is one; else
    /// where it did.
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

    fn answered(&mut self, cpu: usize, connection: u32) {
        self.counts.transactions += 1;
        self.processors[cpu].outcome.answered += 1;
        let entry = &mut self.connections[connection as usize];
        entry.process = cpu;
        self.counts.read_elsewhere += u64::from(entry.protocol != cpu);
        if let (Some(table), Some(cpu)) = (&self.sock_flows, Cpu::new(cpu)) {
            table.record(entry.hash, cpu);
        }
        self.events.announce(self.now + self.setup.client_delay, Event::Arrival(connection));
    }
}
