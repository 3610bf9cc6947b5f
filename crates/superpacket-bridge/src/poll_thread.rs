//! A thread that forwards packets: it polls its receive queues and its backlogs, and sends by every
//! port.
//!
//! A thread with receive queues is a receiving thread; one that has backlogs instead, and stays on
//! one CPU, is a worker. Both are the same loop.

mod sleep;

use std::any::Any;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TrySendError};
use rustix::event::epoll;
use superpacket::aggregate::HashKey;
use superpacket_port::PortError;
use superpacket_port::system::pin_thread;
use superpacket_steer::{Cpu, SockFlowTable};

use crate::bucket::Bucket;
use crate::consumer::{Consumer, Factory};
use crate::count::Count;
use crate::counters::DropReason;
use crate::egress::Egress;
use crate::error::panic_message;
use crate::handover::{BacklogReceiver, Doorbell, WorkerLifetime};
use crate::ingress::{Ingress, PollBuffer};
use crate::monitor::Monitors;
use crate::multicast::Snooping;
use crate::order::Order;
use crate::output::Output;
use crate::runtime::Shared;
use crate::steering::{QueueWindow, State, Utilisation, WorkerHandle};
use crate::table::Table;
use crate::vlan::VlanProtocol;
use sleep::{pause, unwatch};

/// A queue whose interface is down is left alone for so long, in nanoseconds.
const PAUSE: u64 = 50_000_000;

/// While some queue is busy, the others' descriptors are looked at every so many rounds.
const LOOK_EVERY: u32 = 4;

/// So many packets in a round are a burst, not requests and answers.
const BULK: usize = 8;

/// The log speaks of panics so often at most.
const SPEAK: Duration = Duration::from_secs(1);

/// A running poll thread.
#[derive(Debug)]
pub(crate) struct PollThread {
    pub(crate) orders: Sender<Order>,
    pub(crate) bell: Arc<Doorbell>,
    pub(crate) counts: Arc<PollThreadCounts>,
    pub(crate) lifetime: Arc<WorkerLifetime>,
    thread: Option<JoinHandle<()>>,
}

/// The counters of a poll thread.
#[derive(Debug, Default)]
pub(crate) struct PollThreadCounts {
    /// Packets of backlogs that were processed, a super-packet counted once.
    pub(crate) processed: Count,
    /// Turns that a backlog had.
    pub(crate) turns: Count,
    /// How often threads that have ended were woken for packets.
    pub(crate) wake_ups: Count,
    pub(crate) panics: Count,
    /// The CPU that it ran on last.
    pub(crate) cpu: AtomicU32,
}

/// What the thread that looks after the ports is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The port of this number turned out to be gone, in this opening of it.
    Broken { port: u16, opening: u32 },
    /// Interfaces have come, gone or changed.
    LinksChanged,
    /// The bridge ends.
    Stopping,
}

/// What all poll threads share.
#[derive(Clone, Debug)]
pub(crate) struct Common {
    pub(crate) table: Arc<Table>,
    /// How many senders of packets that are too long are told so.
    pub(crate) answers: Arc<Bucket>,
    /// Grows whenever requested settings or capabilities change.
    pub(crate) epoch: Arc<AtomicU64>,
    pub(crate) notices: Sender<Notice>,
    pub(crate) busy_poll: bool,
    pub(crate) key: HashKey,
    pub(crate) steering: Arc<State>,
    pub(crate) monitors: Arc<Monitors>,
    /// Who is in which group, where the bridge listens to it.
    pub(crate) snooping: Option<Arc<Snooping>>,
    /// The tags by which the bridge filters, if it does.
    pub(crate) vlan_protocol: VlanProtocol,
    /// When time began.
    pub(crate) start: Instant,
    /// Makes those who take the packets instead of the bridge.
    pub(crate) factory: Option<Factory>,
}

impl Common {
    fn consumer(&self, cpu: Option<Cpu>) -> Option<Box<dyn Consumer>> {
        let factory = self.factory.as_ref()?;
        let made = catch_unwind(AssertUnwindSafe(|| factory.make(cpu)));
        if made.is_err() {
            tracing::error!("a consumer cannot be made: its packets are dropped");
        }
        made.ok()
    }
}

impl PollThread {
    /// Starts a thread without ports, with this name; on `cpu` alone if it is a worker. It adds to
    /// what `counts` holds.
    pub(crate) fn start(
        name: String,
        cpu: Option<Cpu>,
        counts: Arc<PollThreadCounts>,
        common: Common,
    ) -> std::io::Result<PollThread> {
        let (orders, inbox) = crossbeam_channel::unbounded();
        let bell = Arc::new(Doorbell::new()?);
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let lifetime = Arc::new(WorkerLifetime::new());
        let mut poll_buffer = PollBuffer::default();
        if cpu.is_none() {
            poll_buffer.reserve()?;
        }
        let work = Work {
            lifetime: lifetime.clone(),
            output: Output::new(common.table.clone(), common.answers.clone())
                .with_snooping(common.snooping.clone())
                .with_vlan_protocol(common.vlan_protocol),
            // Everything is still to be looked at.
            epoch: common.epoch.load(Ordering::Acquire).wrapping_sub(1),
            common,
            cpu,
            inbox,
            bell: bell.clone(),
            counts: counts.clone(),
            poller,
            ingress: Vec::new(),
            poll_buffer,
            backlogs: Vec::new(),
            weight: 1,
            sock_flows: None,
            retiring: false,
            next_token: 0,
            readable: Vec::new(),
            round: 0,
            utilisation: Utilisation::new(),
            bulk: false,
            spoken: None,
        };
        let thread = std::thread::Builder::new().name(name).spawn(move || work.run())?;
        Ok(PollThread { orders, bell, counts, lifetime, thread: Some(thread) })
    }

    /// Tells the thread something.
    pub(crate) fn order(&self, order: Order) {
        // A thread that has ended needs no orders.
        let _ = self.orders.send(order);
        self.wake();
    }

    /// How others reach it.
    pub(crate) fn handle(&self) -> WorkerHandle {
        WorkerHandle {
            orders: self.orders.clone(),
            bell: self.bell.clone(),
            lifetime: self.lifetime.clone(),
        }
    }

    /// Makes the thread look at its orders and at the epoch.
    pub(crate) fn wake(&self) {
        self.bell.force();
    }

    /// Has it ended?
    pub(crate) fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the thread when it has sent what it holds.
    pub(crate) fn stop(&mut self) {
        self.order(Order::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a thread that moves packets had panicked");
        }
    }
}

/// The thread's own side.
struct Work {
    common: Common,
    /// The only CPU that it runs on.
    cpu: Option<Cpu>,
    inbox: Receiver<Order>,
    bell: Arc<Doorbell>,
    counts: Arc<PollThreadCounts>,
    /// An `epoll` with the queues of which only what is new ends a wait.
    poller: OwnedFd,
    /// Of the descriptors waited for, which could be read.
    readable: Vec<bool>,
    output: Output,
    ingress: Vec<Ingress>,
    /// Of a worker, without room.
    poll_buffer: PollBuffer,
    backlogs: Vec<BacklogReceiver<Arc<Shared>>>,
    /// The most packets of a backlog in turn.
    weight: usize,
    sock_flows: Option<Arc<SockFlowTable>>,
    /// It ends when it has no more backlogs.
    retiring: bool,
    lifetime: Arc<WorkerLifetime>,
    next_token: u64,
    epoch: u64,
    round: u32,
    utilisation: Utilisation,
    /// The last packets came many at once.
    bulk: bool,
    /// When the log spoke of a panic last.
    spoken: Option<Instant>,
}

/// Whose packets are being processed.
#[derive(Clone, Copy, Debug)]
enum Whose {
    Ingress(usize),
    Backlog(usize),
    Consumer,
    Thread,
}

impl Work {
    fn run(mut self) {
        if let Some(cpu) = self.cpu
            && let Err(error) = pin_thread(None, &[cpu.number()])
        {
            tracing::warn!(%cpu, %error, "a worker cannot be kept on its CPU");
        }
        // Here, so that it is made by the thread, and in the memory, that it is for.
        self.output.set_consumer(self.common.consumer(self.cpu));
        loop {
            match self.guarded(Whose::Thread, Self::turn) {
                Some(true) => return,
                Some(false) => {}
                // It would most likely panic again at once.
                None => std::thread::sleep(Duration::from_nanos(PAUSE)),
            }
        }
    }

    /// Obeys, moves what there is to move, and waits if there was nothing; `true`: the thread is to
    /// end.
    fn turn(&mut self) -> bool {
        while let Ok(order) = self.inbox.try_recv() {
            if self.obey(order) {
                return true;
            }
        }
        if self.is_done() && self.lifetime.end(|| self.inbox.is_empty()) {
            return true;
        }
        self.refresh();
        let received = self.round();
        self.report_broken();
        self.round = self.round.wrapping_add(1);
        let busy = received != 0;
        if busy && !self.round.is_multiple_of(LOOK_EVERY) {
            self.bulk = received >= BULK;
            return false;
        }
        if !busy && std::mem::take(&mut self.bulk) {
            // More of a burst is on its way, most likely: whoever makes it, or takes it, may run
            // first.
            std::thread::yield_now();
            self.ingress.iter_mut().for_each(|ingress| ingress.ready = true);
            return false;
        }
        if busy || self.common.busy_poll {
            self.wait(Some(Duration::ZERO));
        } else {
            self.sleep();
        }
        false
    }

    /// Is it a worker that is not needed any more?
    fn is_done(&self) -> bool {
        self.retiring && self.backlogs.is_empty()
    }

    /// The time, in nanoseconds.
    fn now(&self) -> u64 {
        self.common.start.elapsed().as_nanos() as u64
    }

    /// Polls every queue and backlog that may have packets; says how many packets there were.
    fn round(&mut self) -> usize {
        let now = self.now();
        self.utilisation.begin(now);
        if self.utilisation.is_due(now) {
            self.follow_utilisation(now);
        }
        self.output.begin(now);
        let mut received = 0;
        for index in 0..self.ingress.len() {
            let ingress = &mut self.ingress[index];
            ingress.tend();
            let due = ingress.deadline().is_some_and(|deadline| deadline <= now);
            if ingress.paused_until.is_some_and(|until| until <= now) {
                ingress.paused_until = None;
                ingress.ready = true;
            }
            if !(ingress.ready || due || self.common.busy_poll) || ingress.paused_until.is_some() {
                continue;
            }
            match self.guarded(Whose::Ingress(index), |work| {
                work.ingress[index].poll(&mut work.output, &mut work.poll_buffer, now)
            }) {
                Some(Ok(packets)) => {
                    self.ingress[index].ready = packets != 0;
                    received += packets;
                    if let Some(until) = self.ingress[index].throttled_until {
                        // Nobody would look at what it holds before.
                        self.guarded(Whose::Ingress(index), |work| {
                            work.ingress[index].drain(&mut work.output, &mut work.poll_buffer)
                        });
                        pause(&self.poller, &mut self.ingress[index], until);
                    }
                }
                Some(Err(error)) => {
                    // Down or gone: its descriptor would be readable all the time.
                    tracing::debug!(port = %self.ingress[index].shared.name, %error, "nothing is received");
                    // Nobody would look at what it holds before the pause is over.
                    self.guarded(Whose::Ingress(index), |work| {
                        work.ingress[index].drain(&mut work.output, &mut work.poll_buffer)
                    });
                    let ingress = &mut self.ingress[index];
                    pause(&self.poller, ingress, now + PAUSE);
                    if matches!(error, PortError::Gone { .. }) {
                        ingress.paused_until = Some(u64::MAX);
                        self.output.broken.insert((ingress.shared.number, ingress.opening));
                    }
                }
                // It would most likely panic again at once, and keep the others waiting.
                None => pause(&self.poller, &mut self.ingress[index], now + PAUSE),
            }
        }
        // What was received in this round is this thread's own work, not that of the backlogs.
        let mut start = if self.backlogs.is_empty() { now } else { self.now() };
        for index in 0..self.backlogs.len() {
            let taken = self.guarded(Whose::Backlog(index), |work| work.take(index)).unwrap_or(1);
            if taken != 0 {
                let now = self.now();
                self.backlogs[index].add_spent(now - std::mem::replace(&mut start, now));
                received += taken;
            }
        }
        self.backlogs.retain_mut(|backlog| !backlog.is_over());
        if self.output.next_call.is_some_and(|time| time <= now) {
            self.guarded(Whose::Consumer, |work| work.output.flush());
        }
        if received != 0 {
            self.utilisation.found_packets();
        }
        received
    }

    /// Ends a window of the utilisation, and has the queues do what follows from it.
    fn follow_utilisation(&mut self, now: u64) {
        let windows = self.ingress.iter_mut().filter_map(|ingress| ingress.dispatch.take_window());
        let Some(all) = windows.reduce(QueueWindow::plus) else {
            return self.utilisation.restart(now);
        };
        let in_place = self.utilisation.end_window(now, all.elsewhere, all.packets);
        for ingress in &mut self.ingress {
            ingress.dispatch.follow(&ingress.shared, in_place);
        }
    }

    /// Processes packets of a backlog, as many as it has in turn.
    fn take(&mut self, index: usize) -> usize {
        let Work { backlogs, output, sock_flows, cpu, .. } = self;
        let backlog = &mut backlogs[index];
        let count = backlog.take(self.weight, |from, packet| {
            // Who processes a flow reads it, if nobody else says that he does.
            if let (Some(table), Some(hash), Some(cpu)) = (&sock_flows, packet.metadata.hash, *cpu)
                && table.cpu(hash).is_none()
            {
                table.record(hash, cpu);
            }
            output.forward(from, packet);
        });
        if count != 0 {
            output.flush();
            self.counts.turns.add(1);
            self.counts.processed.add(backlog.publish());
        }
        count
    }

    /// Does something that may panic: what was in its hands then is lost and counted, and the
    /// thread goes on.
    fn guarded<R>(&mut self, whose: Whose, work: impl FnOnce(&mut Self) -> R) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(|| work(self))) {
            Ok(done) => Some(done),
            Err(panic) => {
                self.recover(whose, &*panic);
                None
            }
        }
    }

    #[cold]
    fn recover(&mut self, whose: Whose, panic: &(dyn Any + Send)) {
        self.counts.panics.add(1);
        // Made again: nobody knows what state the old one is in.
        let unsent = self.output.abandon();
        self.poll_buffer.clear();
        // What is copied for monitors begins anew.
        self.epoch = self.epoch.wrapping_sub(1);
        self.output.set_consumer(self.common.consumer(self.cpu));
        let port = match whose {
            Whose::Ingress(index) => {
                let ingress = &mut self.ingress[index];
                ingress.lose(unsent);
                Some(ingress.shared.name.clone())
            }
            Whose::Backlog(index) => {
                let backlog = &mut self.backlogs[index];
                backlog.from.counts.dropped(DropReason::Panic, unsent);
                // Nothing of them is left here: their flows may move.
                backlog.publish();
                Some(backlog.from.name.clone())
            }
            Whose::Consumer | Whose::Thread => None,
        };
        if self.spoken.is_none_or(|spoken| spoken.elapsed() >= SPEAK) {
            self.spoken = Some(Instant::now());
            tracing::error!(
                port,
                lost = unsent,
                panic = panic_message(panic).unwrap_or("?"),
                "a thread that moves packets panicked, and goes on"
            );
        }
    }

    fn report_broken(&mut self) {
        let notices = &self.common.notices;
        // What finds no room is said in the next round. Nobody listens while the bridge ends.
        self.output.broken.retain(|&(port, opening)| {
            matches!(notices.try_send(Notice::Broken { port, opening }), Err(TrySendError::Full(_)))
        });
    }

    /// Takes over what has been changed since it was last looked at.
    fn refresh(&mut self) {
        let epoch = self.common.epoch.load(Ordering::Acquire);
        if epoch == self.epoch {
            return;
        }
        self.epoch = epoch;
        for egress in self.output.egress.iter_mut().flatten() {
            egress.refresh();
        }
        self.output.refresh_copies(&self.common.monitors);
        let now = self.common.steering.now();
        self.weight = now.settings.weight;
        self.sock_flows = now.sock_flows.clone();
        for index in 0..self.ingress.len() {
            self.guarded(Whose::Ingress(index), |work| {
                work.ingress[index].refresh(&mut work.output, &mut work.poll_buffer)
            });
        }
    }

    /// Does as it is told; `true`: it was told to end.
    fn obey(&mut self, order: Order) -> bool {
        match order {
            Order::Open { shared, receivers, transmit, set_aside } => {
                let number = usize::from(shared.number);
                if self.output.egress.len() <= number {
                    self.output.egress.resize_with(number + 1, || None);
                }
                self.output.egress[number] = Some(Egress::new(shared.clone(), transmit));
                self.output.copies.open(&shared);
                set_aside.give_back();
                for (queue, receive) in receivers {
                    let (steering, bell) = (self.common.steering.clone(), self.bell.clone());
                    self.ingress.push(Ingress::new(
                        shared.clone(),
                        queue,
                        receive,
                        self.common.key,
                        steering,
                        bell,
                        self.next_token,
                    ));
                    self.next_token += 1;
                }
            }
            Order::Close { number, done } => {
                self.output.begin(self.now());
                for index in (0..self.ingress.len())
                    .rev()
                    .filter(|&index| self.ingress[index].shared.number == number)
                    .collect::<Vec<_>>()
                {
                    self.guarded(Whose::Ingress(index), |work| {
                        work.ingress[index].drain(&mut work.output, &mut work.poll_buffer)
                    });
                    let mut ingress = self.ingress.remove(index);
                    unwatch(&self.poller, &mut ingress);
                }
                // What the port received, its receiving thread has left here.
                self.finish(|shared| shared.number == number);
                if let Some(egress) = self.output.egress.get_mut(usize::from(number)) {
                    *egress = None;
                }
                self.output.copies.close(number);
                drop(done);
            }
            Order::Backlog(backlog) => self.backlogs.push(backlog),
            Order::Retire => self.retiring = true,
            Order::Stop => {
                // What has arrived already is still forwarded, once round.
                let now = self.now();
                self.output.begin(now);
                for index in 0..self.ingress.len() {
                    self.guarded(Whose::Ingress(index), |work| {
                        let _ =
                            work.ingress[index].poll(&mut work.output, &mut work.poll_buffer, now);
                        work.ingress[index].drain(&mut work.output, &mut work.poll_buffer);
                    });
                }
                self.finish(|_| true);
                return true;
            }
        }
        false
    }

    /// Processes all that is left of these ports' backlogs.
    fn finish(&mut self, whose: impl Fn(&Shared) -> bool) {
        for index in 0..self.backlogs.len() {
            // One that is still open belongs to a thread that has not let go of it in time: there
            // is no end to wait for.
            while whose(&self.backlogs[index].from)
                && self.backlogs[index].is_closed()
                && !self.backlogs[index].is_over()
            {
                self.guarded(Whose::Backlog(index), |work| work.take(index));
            }
        }
    }
}

#[cfg(test)]
mod tests;
