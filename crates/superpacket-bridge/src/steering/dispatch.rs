//! What a receive queue does with each packet that it has aggregated: process it where it is, hand
//! it to a worker, or drop it.

use std::sync::Arc;

use superpacket::super_packet::SuperPacket;
use superpacket_port::Buffer;
use superpacket_steer::{
    Admission, BacklogLimit, Completions, Cpu, CpuMask, HashCounters, Place, Steering,
    SteeringCounters,
};

use super::in_place::InPlaceState;
use super::{Snapshot, State};
use crate::counters::DropReason;
use crate::handover::{BacklogSender, Completion, Doorbell, backlog};
use crate::output::Output;
use crate::runtime::Shared;
use crate::settings::{HashSettings, PortSteering};

/// The steering of one receive queue.
#[derive(Debug)]
pub(crate) struct Dispatch {
    queue: u16,
    state: Arc<State>,
    snapshot: Arc<Snapshot>,
    steering: Steering,
    hash: HashSettings,
    /// The port's packets come with the device's hash, if it has one (`receive-hashing`).
    hashed: bool,
    limit: BacklogLimit,
    places: Places,
    /// The CPUs that have a backlog.
    cpus: Vec<Cpu>,
    in_place: InPlaceState,
    /// Packets may go elsewhere, or some that did are not done with.
    on: bool,
    /// What the port was told: whether packets are processed in place.
    reported: Option<bool>,
    counted: Counted,
}

/// The steering's counters as of the last time that they were added to the port's.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    steering: SteeringCounters,
    hashes: HashCounters,
}

/// What came of a queue's packets in a window of its thread's [`Utilisation`](super::Utilisation).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QueueWindow {
    /// Received packets that were processed, here or by workers.
    pub(crate) packets: u64,
    /// How long workers were at those that were handed over to them, in nanoseconds.
    pub(crate) elsewhere: u64,
}

impl QueueWindow {
    /// Two queues together.
    pub(crate) const fn plus(self, other: QueueWindow) -> QueueWindow {
        QueueWindow {
            packets: self.packets + other.packets,
            elsewhere: self.elsewhere + other.elsewhere,
        }
    }
}

/// Does a receive queue wait for a worker?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// No.
    Nothing,
    /// Yes: its thread is woken when one goes on.
    Waits,
    /// It did, and one has gone on.
    GoOn,
}

/// By CPU: the way there, and how far it has come.
#[derive(Debug, Default)]
struct Places {
    /// Packets processed here and sent.
    here: u64,
    /// Packets processed here.
    here_tail: u64,
    completions: Vec<Option<Arc<Completion>>>,
    backlogs: Vec<Option<Backlog>>,
    /// The received packets that those processed here stood for.
    here_received: u64,
    /// What had been processed when the thread asked last.
    asked: QueueWindow,
}

#[derive(Debug)]
struct Backlog {
    sender: BacklogSender,
    /// Nothing is sent there any more but packets of flows that cannot move yet.
    leaving: bool,
}

impl Places {
    fn backlog(&mut self, cpu: Cpu) -> Option<&mut Backlog> {
        self.backlogs.get_mut(cpu.number())?.as_mut()
    }
}

/// What each place has completed, apart from its backlog, which changes while this is read.
struct PlaceCompletions<'a> {
    here: u64,
    completions: &'a [Option<Arc<Completion>>],
}

impl Completions for PlaceCompletions<'_> {
    #[inline]
    fn completed(&self, place: Place) -> u64 {
        match place {
            Place::Here => self.here,
            Place::Cpu(cpu) => self
                .completions
                .get(cpu.number())
                .and_then(Option::as_ref)
                .map_or(0, |completion| completion.head.done()),
        }
    }
}

/// What these places have completed.
macro_rules! completions {
    ($places:expr) => {
        PlaceCompletions { here: $places.here, completions: &$places.completions }
    };
}

impl Dispatch {
    /// Steers nothing yet.
    pub(crate) fn new(state: Arc<State>, queue: u16) -> Self {
        let snapshot = state.now();
        let hash = snapshot.settings.hash.clone();
        // The flow limit is made when settings are looked at for the first time.
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
            on: false,
            reported: None,
            counted: Counted::default(),
        }
    }

    /// Settings or workers have changed. What was received before has been steered; with `hashed`,
    /// what comes has the device's hash.
    pub(crate) fn refresh(&mut self, shared: &Arc<Shared>, bell: &Arc<Doorbell>, hashed: bool) {
        self.snapshot = self.state.now();
        let settings = &self.snapshot.settings;
        // Either gives flows other hashes, and so other places.
        if settings.hash != self.hash || hashed != std::mem::replace(&mut self.hashed, hashed) {
            self.hash = settings.hash.clone();
            self.steering.set_hasher(self.hash.hasher(self.state.key));
            // A new hasher begins at 0. What the old one did was added at the end of the last
            // round.
            self.counted.hashes = HashCounters::default();
        }
        self.steering.set_move_policy(settings.move_policy);
        self.limit.max_backlog = settings.max_backlog;
        if settings.flow_limit_table != self.table_length() {
            match settings.flow_limit() {
                Ok(limit) => self.limit.flow_limit = limit,
                Err(error) => {
                    tracing::error!(port = %shared.name, queue = self.queue, %error, "the flow limit is as before")
                }
            }
        }
        let wanted = shared.settings().steering;
        if let Err(error) =
            self.steering.set_flow_count(u64::from(*wanted.rps_flow_cnt.queue(self.queue)))
        {
            tracing::error!(port = %shared.name, queue = self.queue, %error, "rps_flow_cnt is as before");
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

    /// Opens and closes backlogs, as the mask and the workers want it.
    fn arrange(&mut self, shared: &Arc<Shared>, bell: &Arc<Doorbell>, wanted: &PortSteering) {
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
                    // To the CPU's earlier worker: what is there must be done with before the new
                    // one gets anything.
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
        self.on = !self.cpus.is_empty();
    }

    /// Closes backlogs that are to be left, as far as all that was sent there is done with.
    pub(crate) fn leave(&mut self, shared: &Arc<Shared>, bell: &Arc<Doorbell>) {
        if !self.is_leaving() {
            return;
        }
        let Dispatch { steering, places, .. } = self;
        let mut closed = false;
        for index in 0..places.backlogs.len() {
            let Some(cpu) = Cpu::new(index) else { break };
            let is_done = || steering.outstanding(Place::Cpu(cpu), &completions!(places)) == 0;
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

    /// Must everything wait, because the hash has changed and packets of the old one are not done
    /// with?
    pub(crate) fn must_wait(&mut self) -> bool {
        self.steering.is_waiting(&completions!(self.places))
    }

    /// So many packets were received.
    #[inline]
    pub(crate) fn received(&mut self, shared: &Shared, packets: usize, now: u64) {
        if self.on {
            let before = self.in_place.is_in_place();
            let in_place = self.in_place.received(packets, now);
            if in_place != before {
                self.steering.set_in_place(in_place);
                self.report_place(shared);
            }
        }
    }

    /// Does it follow the utilisation of the thread? Says what came of its packets since it was
    /// asked last.
    pub(crate) fn take_window(&mut self) -> Option<QueueWindow> {
        let places = &mut self.places;
        let here = QueueWindow { packets: places.here_received, elsewhere: 0 };
        let of = |completion: &Arc<Completion>| QueueWindow {
            packets: completion.received(),
            elsewhere: completion.spent(),
        };
        let all = places.completions.iter().flatten().map(of).fold(here, QueueWindow::plus);
        let before = std::mem::replace(&mut places.asked, all);
        // Where a worker takes the place of another, both may add at a time, and one sum be lost.
        let window = QueueWindow {
            packets: all.packets.saturating_sub(before.packets),
            elsewhere: all.elsewhere.saturating_sub(before.elsewhere),
        };
        (self.on && self.in_place.is_automatic()).then_some(window)
    }

    /// The thread can do all the work alone, or cannot.
    pub(crate) fn follow(&mut self, shared: &Shared, in_place: bool) {
        let in_place = self.in_place.set_automatic(in_place);
        self.steering.set_in_place(in_place);
        self.report_place(shared);
    }

    /// Tells the port whether packets are processed in place although there are workers, and how
    /// often that switched. A switch need not be in a round with packets.
    fn report_place(&mut self, shared: &Shared) {
        shared.counts.in_place_switches.add(self.in_place.take_switches());
        let in_place = self.on && self.in_place.is_in_place();
        if self.reported.replace(in_place) != Some(in_place) {
            shared.set_in_place(self.queue, in_place);
        }
    }

    /// Is all processed in place, with nothing left elsewhere? It then waits as a queue without
    /// mask does.
    pub(crate) fn is_all_here(&self) -> bool {
        !self.on
            || self.in_place.is_in_place()
                && !self.is_outstanding()
                && !self.is_leaving()
                && !self.is_stuck()
    }

    /// Sends a packet on its way: by `output`, or to a worker.
    #[inline]
    pub(crate) fn forward(
        &mut self,
        shared: &Shared,
        output: &mut Output,
        packet: SuperPacket<'_, Buffer>,
    ) {
        if self.on { self.steer(shared, output, packet) } else { output.forward(shared, packet) }
    }

    fn steer(&mut self, shared: &Shared, output: &mut Output, mut packet: SuperPacket<'_, Buffer>) {
        let Dispatch { steering, places, limit, .. } = self;
        // Nothing is received while all must wait, so there is a choice.
        let Some(choice) = steering.choose_super_packet(&packet, &completions!(places)) else {
            return output.forward(shared, packet);
        };
        let Place::Cpu(cpu) = choice.place() else {
            choice.enqueued();
            places.here_tail += 1;
            places.here_received += u64::from(packet.metadata.packets);
            return output.forward(shared, packet);
        };
        let packets = u64::from(packet.metadata.packets);
        let queued = choice.queued(&completions!(places)) as usize;
        match limit.admit(choice.hash(), queued) {
            Admission::Queued => {}
            Admission::BacklogFull => return shared.counts.dropped(DropReason::Backlog, packets),
            Admission::FlowLimit => return shared.counts.dropped(DropReason::FlowLimit, packets),
        }
        // Where packets are not done with, the backlog stays open.
        let Some(backlog) = places.backlog(cpu) else {
            return shared.counts.dropped(DropReason::Backlog, packets);
        };
        // As the kernel keeps it with the packet: whoever processes it need not compute it again.
        packet.metadata.hash = choice.hash();
        choice.enqueued();
        backlog.sender.push(&mut packet);
    }

    /// All that was processed here has been sent: hands over what waits, and wakes workers.
    pub(crate) fn end_of_round(&mut self, shared: &Shared) {
        if !self.on {
            return;
        }
        let places = &mut self.places;
        places.here = places.here_tail;
        let mut woken = 0;
        for &cpu in &self.cpus {
            if let Some(backlog) = places.backlog(cpu) {
                woken += u64::from(backlog.sender.end_of_round());
            }
        }
        let now = Counted {
            steering: *self.steering.counters(),
            hashes: *self.steering.hasher().counters(),
        };
        let (before, counts) = (std::mem::replace(&mut self.counted, now), &shared.counts);
        counts.steered.add(now.steering.steered - before.steering.steered);
        counts.in_place.add(now.steering.here - before.steering.here);
        counts.flow_moves.add(now.steering.moves - before.steering.moves);
        counts.held_back.add(now.steering.held_back - before.steering.held_back);
        counts.hashes_reported.add(now.hashes.reported - before.hashes.reported);
        counts.hashes_computed.add(now.hashes.computed - before.hashes.computed);
        counts.wake_ups.add(woken);
    }

    /// What was processed here is lost with a panic: it is done with.
    pub(crate) fn lose(&mut self) {
        self.places.here = self.places.here_tail;
    }

    /// Are packets of this queue with workers?
    pub(crate) fn is_outstanding(&self) -> bool {
        self.cpus
            .iter()
            .any(|&cpu| self.steering.outstanding(Place::Cpu(cpu), &completions!(self.places)) != 0)
    }

    /// The thread is about to sleep. If something here waits for a worker, or `crowded` says that
    /// the port's memory does, workers are asked to say when they go on.
    pub(crate) fn watch(&mut self, crowded: bool) -> Watch {
        if !self.on
            || !(crowded && self.is_outstanding()
                || self.must_wait()
                || self.is_leaving()
                || self.is_stuck())
        {
            return Watch::Nothing;
        }
        let completed = |dispatch: &Self| {
            dispatch
                .cpus
                .iter()
                .map(|&cpu| completions!(dispatch.places).completed(Place::Cpu(cpu)))
                .sum::<u64>()
        };
        let before = completed(self);
        for &cpu in &self.cpus {
            if let Some(Some(completion)) = self.places.completions.get(cpu.number()) {
                completion.watch.fall_asleep();
            }
        }
        // What was done before the watch, nobody says; and where nothing is left, nobody will say
        // anything.
        if completed(self) != before || !self.is_outstanding() { Watch::GoOn } else { Watch::Waits }
    }

    /// Do packets wait for room on their way to a worker?
    pub(crate) fn is_stuck(&self) -> bool {
        self.places.backlogs.iter().flatten().any(|backlog| backlog.sender.is_stuck())
    }

    /// May packets go to workers?
    pub(crate) const fn is_on(&self) -> bool {
        self.on
    }
}
