//! Decides for each aggregated packet of a receive queue whether it is processed on the receiving
//! thread ("in place"), handed to the worker of another CPU, or dropped.

use std::sync::Arc;

use superpacket::super_packet::SuperPacket;
use superpacket_port::Buffer;
use superpacket_steer::{
    Admission, BacklogLimit, Completions, Cpu, CpuMask, HashCounters, Steering, SteeringCounters,
    SteeringTarget,
};

use super::in_place::InPlaceState;
use super::{SteeringSnapshot, SteeringState};
use crate::counters::DropReason;
use crate::handover::{BacklogSender, Completion, Doorbell, backlog};
use crate::output::PacketForwarder;
use crate::runtime::SharedPort;
use crate::settings::{HashSettings, PortSteering};

/// Distributes the packets of one receive queue between its own thread and the workers of CPUs.
#[derive(Debug)]
pub(crate) struct Dispatch {
    queue: u16,
    state: Arc<SteeringState>,
    snapshot: Arc<SteeringSnapshot>,
    steering: Steering,
    hash: HashSettings,
    /// Whether packets carry the hash that the device computed (`receive-hashing`).
    hashed: bool,
    limit: BacklogLimit,
    places: Places,
    /// The CPUs to whose workers the queue has a backlog.
    cpus: Vec<Cpu>,
    in_place: InPlaceState,
    /// Whether packets may go to workers. Stays true until all packets given to workers are
    /// processed.
    is_active: bool,
    /// Whether packets are processed on the receiving thread, as last reported to the port. `None`
    /// before the first report.
    reported: Option<bool>,
    reported_counters: ReportedCounters,
}

/// The values of the steering counters that were already added to the counters of the port.
#[derive(Clone, Copy, Debug, Default)]
struct ReportedCounters {
    steering: SteeringCounters,
    hashes: HashCounters,
}

/// The packets and worker time of a queue in one window of time in which
/// [`Utilisation`](super::Utilisation) measures the load of the queue's thread.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QueueWindow {
    /// Received packets that were processed, on the receiving thread or by workers.
    pub(crate) packets: u64,
    /// Time that workers spent on the packets handed over to them, in nanoseconds.
    pub(crate) worker_time: u64,
}

impl QueueWindow {
    /// Returns the sums of the packets and worker times of two queues.
    pub(crate) const fn plus(self, other: QueueWindow) -> QueueWindow {
        QueueWindow {
            packets: self.packets + other.packets,
            worker_time: self.worker_time + other.worker_time,
        }
    }
}

/// Whether a receive queue is not polled until a worker has processed some of its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerWait {
    /// The queue need not wait for a worker.
    NotWaiting,
    /// The queue waits. Its thread is woken when a worker has processed packets.
    Waiting,
    /// The queue had to wait, but a worker has processed packets in the meantime.
    Resumed,
}

/// The backlogs of a receive queue to the workers, and the numbers of packets that the workers and
/// the queue's own thread have processed.
#[derive(Debug, Default)]
struct Places {
    /// Number of packets that were processed on the receiving thread, and whose frames were sent.
    here: u64,
    /// Number of packets that were processed on the receiving thread, including those not yet sent.
    in_place_tail: u64,
    completions: Vec<Option<Arc<Completion>>>,
    backlogs: Vec<Option<Backlog>>,
    /// Like `in_place_tail`, but a packet that was merged counts as the packets of which it was
    /// made.
    in_place_received: u64,
    /// The packets and worker time in total when [`Dispatch::take_window`] was last called.
    last_query: QueueWindow,
}

#[derive(Debug)]
struct Backlog {
    sender: BacklogSender,
    /// Whether the backlog is to be closed when it is empty. Until then it takes only packets of
    /// flows that cannot yet move to another CPU.
    leaving: bool,
}

impl Places {
    fn backlog(&mut self, cpu: Cpu) -> Option<&mut Backlog> {
        self.backlogs.get_mut(cpu.number())?.as_mut()
    }
}

/// The numbers of packets that the receiving thread and each worker have completed. This is
/// separate from the backlogs, which change while this is read.
struct PlaceCompletions<'a> {
    here: u64,
    completions: &'a [Option<Arc<Completion>>],
}

impl Completions for PlaceCompletions<'_> {
    #[inline]
    fn completed(&self, place: SteeringTarget) -> u64 {
        match place {
            SteeringTarget::Here => self.here,
            SteeringTarget::Cpu(cpu) => self
                .completions
                .get(cpu.number())
                .and_then(Option::as_ref)
                .map_or(0, |completion| completion.head.done()),
        }
    }
}

/// Returns, per worker, how many packets of a receive queue it has finished processing.
macro_rules! completions {
    ($places:expr) => {
        PlaceCompletions { here: $places.here, completions: &$places.completions }
    };
}

impl Dispatch {
    /// Returns a dispatcher that gives no packets to workers until [`refresh`](Self::refresh) is
    /// called.
    pub(crate) fn new(state: Arc<SteeringState>, queue: u16) -> Self {
        let snapshot = state.now();
        let hash = snapshot.settings.hash.clone();
        // The flow limit is created when settings are first read.
        let limit = BacklogLimit::new(snapshot.settings.max_backlog, None);
        Dispatch {
            queue,
            steering: Steering::new(hash.hasher(state.key)),
            limit,
            hash,
            hashed: true,
            state,
            snapshot,
            places: Places::default(),
            cpus: Vec::new(),
            in_place: InPlaceState::new(),
            is_active: false,
            reported: None,
            reported_counters: ReportedCounters::default(),
        }
    }

    /// Reads settings and workers again. All packets received earlier must have been dispatched.
    /// `hashed` tells whether later ones carry the device's hash.
    pub(crate) fn refresh(&mut self, shared: &Arc<SharedPort>, bell: &Arc<Doorbell>, hashed: bool) {
        self.snapshot = self.state.now();
        let settings = &self.snapshot.settings;
        // Either change gives flows other hashes, and so other CPUs.
        if settings.hash != self.hash || hashed != std::mem::replace(&mut self.hashed, hashed) {
            self.hash = settings.hash.clone();
            self.steering.set_hasher(self.hash.hasher(self.state.key));
            // A new hasher starts at 0. The old one's counts were added at the end of the last
            // round.
            self.reported_counters.hashes = HashCounters::default();
        }
        self.steering.set_move_policy(settings.move_policy);
        self.limit.max_backlog = settings.max_backlog;
        if settings.flow_limit_table != self.table_length() {
            match settings.flow_limit() {
                Ok(limit) => self.limit.flow_limit = limit,
                Err(error) => {
                    tracing::error!(port = %shared.name, queue = self.queue, %error, "the flow limit is unchanged")
                }
            }
        }
        let wanted = shared.settings().steering;
        if let Err(error) =
            self.steering.set_flow_count(u64::from(*wanted.rps_flow_cnt.queue(self.queue)))
        {
            tracing::error!(port = %shared.name, queue = self.queue, %error, "rps_flow_cnt is unchanged");
        }
        self.steering.set_sock_flows(self.snapshot.sock_flows.clone());
        self.steering.set_mask(wanted.rps_cpus.queue(self.queue));
        let in_place = self.in_place.set(wanted.in_place.unwrap_or(self.state.in_place));
        self.steering.set_in_place(in_place);
        self.arrange(shared, bell, &wanted);
        self.report_place(shared);
    }

    fn table_length(&self) -> usize {
        self.limit.flow_limit.as_ref().map_or(0, |limit| limit.table_length())
    }

    /// Opens and closes backlogs as the CPU mask and the running workers require.
    fn arrange(&mut self, shared: &Arc<SharedPort>, bell: &Arc<Doorbell>, wanted: &PortSteering) {
        let rfs = self.snapshot.sock_flows.is_some() && *wanted.rps_flow_cnt.queue(self.queue) != 0;
        let mask = wanted.rps_cpus.queue(self.queue);
        let mut online = CpuMask::EMPTY;
        for (&cpu, worker) in
            self.snapshot.workers.iter().filter(|(cpu, _)| rfs || mask.contains(**cpu))
        {
            let index = cpu.number();
            if self.places.completions.len() <= index {
                self.places.completions.resize(index + 1, None);
                self.places.backlogs.resize_with(index + 1, || None);
            }
            let completion = self.places.completions[index]
                .get_or_insert_with(|| Arc::new(Completion::new(bell.clone())))
                .clone();
            match &mut self.places.backlogs[index] {
                Some(backlog) if !backlog.sender.leads_to(&worker.bell) => {
                    // The backlog belongs to an earlier worker of the CPU. Its packets must be
                    // processed before the new worker gets any.
                    backlog.leaving = true;
                    continue;
                }
                Some(backlog) => backlog.leaving = false,
                place @ None => {
                    let (sender, receiver) =
                        backlog(completion, worker.bell.clone(), shared.clone());
                    if !worker.give(receiver) {
                        continue;
                    }
                    *place = Some(Backlog { sender, leaving: false });
                }
            }
            online.insert(cpu);
        }
        for (index, backlog) in self.places.backlogs.iter_mut().enumerate() {
            if let (Some(backlog), Some(cpu)) = (backlog, Cpu::new(index)) {
                backlog.leaving |= !online.contains(cpu);
            }
        }
        self.steering.set_online(&online);
        self.list();
    }

    fn list(&mut self) {
        let places = &self.places.backlogs;
        self.cpus.clear();
        self.cpus.extend(
            places
                .iter()
                .enumerate()
                .filter(|(_, backlog)| backlog.is_some())
                .filter_map(|(index, _)| Cpu::new(index)),
        );
        self.is_active = !self.cpus.is_empty();
    }

    /// Closes the backlogs that are no longer needed and whose packets have all been processed.
    pub(crate) fn leave(&mut self, shared: &Arc<SharedPort>, bell: &Arc<Doorbell>) {
        if !self.is_leaving() {
            return;
        }
        let Dispatch { steering, places, .. } = self;
        let mut closed = false;
        for index in 0..places.backlogs.len() {
            let Some(cpu) = Cpu::new(index) else { break };
            let is_done =
                || steering.outstanding(SteeringTarget::Cpu(cpu), &completions!(places)) == 0;
            if places.backlogs[index].as_ref().is_some_and(|backlog| backlog.leaving) && is_done() {
                places.backlogs[index] = None;
                closed = true;
            }
        }
        if closed {
            self.arrange(shared, bell, &shared.settings().steering);
        }
    }

    fn is_leaving(&self) -> bool {
        self.places.backlogs.iter().flatten().any(|backlog| backlog.leaving)
    }

    /// Returns whether no packets may be received, because the hash settings have changed and
    /// packets with old hashes are not yet processed.
    pub(crate) fn must_wait(&mut self) -> bool {
        self.steering.is_waiting(&completions!(self.places))
    }

    /// Counts received packets, which may change whether packets are processed on the receiving
    /// thread.
    #[inline]
    pub(crate) fn received(&mut self, shared: &SharedPort, packets: usize, now: u64) {
        if self.is_active {
            let before = self.in_place.is_in_place();
            let in_place = self.in_place.received(packets, now);
            if in_place != before {
                self.steering.set_in_place(in_place);
                self.report_place(shared);
            }
        }
    }

    /// Returns the packets and worker time of the queue since the last call; `None` unless the load
    /// of the queue's thread decides whether packets go to workers.
    pub(crate) fn take_window(&mut self) -> Option<QueueWindow> {
        let places = &mut self.places;
        let here = QueueWindow { packets: places.in_place_received, worker_time: 0 };
        let of = |completion: &Arc<Completion>| QueueWindow {
            packets: completion.received(),
            worker_time: completion.spent(),
        };
        let all = places.completions.iter().flatten().map(of).fold(here, QueueWindow::plus);
        let before = std::mem::replace(&mut places.last_query, all);
        // While one worker replaces another, both may add at once, and one sum may be lost.
        let window = QueueWindow {
            packets: all.packets.saturating_sub(before.packets),
            worker_time: all.worker_time.saturating_sub(before.worker_time),
        };
        (self.is_active && self.in_place.is_automatic()).then_some(window)
    }

    /// Sets whether packets are processed on the receiving thread, as the measured load of the
    /// thread suggests, rather than by workers.
    pub(crate) fn follow(&mut self, shared: &SharedPort, in_place: bool) {
        let in_place = self.in_place.set_automatic(in_place);
        self.steering.set_in_place(in_place);
        self.report_place(shared);
    }

    /// Reports to the port whether packets are processed on the receiving thread although there are
    /// workers, and how often that has changed. It may change in a round without packets.
    fn report_place(&mut self, shared: &SharedPort) {
        shared.counts.in_place_switches.add(self.in_place.take_switches());
        let in_place = self.is_active && self.in_place.is_in_place();
        if self.reported.replace(in_place) != Some(in_place) {
            shared.set_in_place(self.queue, in_place);
        }
    }

    /// Returns whether all packets are processed on the receiving thread and no worker has any. The
    /// queue's thread then sleeps as if the queue had no CPU mask.
    pub(crate) fn is_all_in_place(&self) -> bool {
        !self.is_active
            || self.in_place.is_in_place()
                && !self.is_outstanding()
                && !self.is_leaving()
                && !self.is_stuck()
    }

    /// Forwards a packet on this thread by `forwarder`, or hands it to a worker.
    #[inline]
    pub(crate) fn forward(
        &mut self,
        shared: &SharedPort,
        forwarder: &mut PacketForwarder,
        packet: SuperPacket<'_, Buffer>,
    ) {
        if self.is_active {
            self.steer(shared, forwarder, packet)
        } else {
            forwarder.forward(shared, packet)
        }
    }

    fn steer(
        &mut self,
        shared: &SharedPort,
        forwarder: &mut PacketForwarder,
        mut packet: SuperPacket<'_, Buffer>,
    ) {
        let Dispatch { steering, places, limit, .. } = self;
        // No packet is received while packets must wait, so there is always a choice.
        let Some(choice) = steering.choose_super_packet(&packet, &completions!(places)) else {
            return forwarder.forward(shared, packet);
        };
        let SteeringTarget::Cpu(cpu) = choice.place() else {
            choice.enqueued();
            places.in_place_tail += 1;
            places.in_place_received += u64::from(packet.metadata.packets);
            return forwarder.forward(shared, packet);
        };
        let packets = u64::from(packet.metadata.packets);
        let queued = choice.queued(&completions!(places)) as usize;
        match limit.admit(choice.hash(), queued) {
            Admission::Queued => {}
            Admission::BacklogFull => return shared.counts.dropped(DropReason::Backlog, packets),
            Admission::FlowLimit => return shared.counts.dropped(DropReason::FlowLimit, packets),
        }
        // A backlog stays open until its packets are processed.
        let Some(backlog) = places.backlog(cpu) else {
            return shared.counts.dropped(DropReason::Backlog, packets);
        };
        // Kept with the packet, as in the kernel, so that it need not be computed again.
        packet.metadata.hash = choice.hash();
        choice.enqueued();
        backlog.sender.push(&mut packet);
    }

    /// Ends a round, in which all packets processed on this thread were sent: sends unfinished
    /// batches to the workers, and wakes them.
    pub(crate) fn end_of_round(&mut self, shared: &SharedPort) {
        if !self.is_active {
            return;
        }
        let places = &mut self.places;
        places.here = places.in_place_tail;
        let mut woken = 0;
        for &cpu in &self.cpus {
            if let Some(backlog) = places.backlog(cpu) {
                woken += u64::from(backlog.sender.end_of_round());
            }
        }
        let now = ReportedCounters {
            steering: *self.steering.counters(),
            hashes: *self.steering.hasher().counters(),
        };
        let (before, counts) =
            (std::mem::replace(&mut self.reported_counters, now), &shared.counts);
        counts.steered.add(now.steering.steered - before.steering.steered);
        counts.in_place.add(now.steering.here - before.steering.here);
        counts.flow_moves.add(now.steering.moves - before.steering.moves);
        counts.held_back.add(now.steering.held_back - before.steering.held_back);
        counts.hashes_reported.add(now.hashes.reported - before.hashes.reported);
        counts.hashes_computed.add(now.hashes.computed - before.hashes.computed);
        counts.wake_ups.add(woken);
    }

    /// Counts the packets that this thread was processing as completed, because a panic has lost
    /// them.
    pub(crate) fn lose(&mut self) {
        self.places.here = self.places.in_place_tail;
    }

    /// Returns whether workers have packets of this queue.
    pub(crate) fn is_outstanding(&self) -> bool {
        self.cpus.iter().any(|&cpu| {
            self.steering.outstanding(SteeringTarget::Cpu(cpu), &completions!(self.places)) != 0
        })
    }

    /// Prepares for the thread's sleep. If the queue cannot continue before a worker has processed
    /// packets, asks the workers to wake this thread then. `crowded` tells that the port lacks
    /// memory, which packets at workers hold.
    pub(crate) fn watch(&mut self, crowded: bool) -> WorkerWait {
        if !self.is_active
            || !(crowded && self.is_outstanding()
                || self.must_wait()
                || self.is_leaving()
                || self.is_stuck())
        {
            return WorkerWait::NotWaiting;
        }
        let completed = |dispatch: &Self| {
            dispatch
                .cpus
                .iter()
                .map(|&cpu| completions!(dispatch.places).completed(SteeringTarget::Cpu(cpu)))
                .sum::<u64>()
        };
        let before = completed(self);
        for &cpu in &self.cpus {
            if let Some(Some(completion)) = self.places.completions.get(cpu.number()) {
                completion.watch.fall_asleep();
            }
        }
        // A worker that made progress before the request does not wake this thread. If workers have
        // no packets left, none will.
        if completed(self) != before || !self.is_outstanding() {
            WorkerWait::Resumed
        } else {
            WorkerWait::Waiting
        }
    }

    /// Returns whether packets wait because the ring to a worker has no room.
    pub(crate) fn is_stuck(&self) -> bool {
        self.places.backlogs.iter().flatten().any(|backlog| backlog.sender.is_stuck())
    }

    /// Returns whether packets may go to workers.
    pub(crate) const fn is_on(&self) -> bool {
        self.is_active
    }
}
