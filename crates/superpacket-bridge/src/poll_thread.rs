//! The threads that move packets. Each thread polls its own receive queues and backlogs, and can
//! send by every port.
//!
//! A receiving thread polls receive queues of ports. A worker instead polls backlogs, in which
//! receiving threads put packets for it, and is bound to one CPU. Both run the same loop.

mod sleep;

use std::any::Any;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TrySendError};
use rustix::event::epoll;
use superpacket::aggregate::HashKey;
use superpacket_port::PortError;
use superpacket_port::system::{panic_message, pin_thread};
use superpacket_steer::{Cpu, SockFlowTable};

use crate::command::ThreadCommand;
use crate::consumer::{Consumer, Factory};
use crate::count::Count;
use crate::counters::DropReason;
use crate::egress::Egress;
use crate::handover::{BacklogReceiver, Doorbell, WorkerLifetime};
use crate::ingress::{Ingress, PollBuffer};
use crate::kernel_path::KernelAvailability;
use crate::monitor::Monitors;
use crate::output::PacketForwarder;
use crate::runtime::SharedPort;
use crate::steering::{QueueWindow, SteeringState, Utilisation, WorkerHandle};
use crate::switch::bucket::TokenBucket;
use crate::switch::multicast::Snooping;
use crate::switch::table::AddressTable;
use crate::switch::vlan::VlanProtocol;
use sleep::{pause, unwatch};

/// Time in nanoseconds for which a receive queue is not polled after a failure, for example because
/// its interface is down.
const PAUSE: u64 = 50_000_000;

/// Number of poll rounds after which the descriptors of idle queues are checked while another queue
/// is busy.
const LOOK_EVERY: u32 = 4;

/// Number of packets in one poll round from which on traffic counts as a burst, rather than as
/// requests and responses.
const BURST: usize = 8;

/// Minimum interval between log messages about panics.
const PANIC_LOG_INTERVAL: Duration = Duration::from_secs(1);

/// A handle to a running thread that moves packets.
#[derive(Debug)]
pub(crate) struct PollThread {
    pub(crate) commands: Sender<ThreadCommand>,
    pub(crate) bell: Arc<Doorbell>,
    pub(crate) counts: Arc<PollThreadCounts>,
    pub(crate) lifetime: Arc<WorkerLifetime>,
    thread: Option<JoinHandle<()>>,
}

/// The counters of a thread that moves packets.
#[derive(Debug, Default)]
pub(crate) struct PollThreadCounts {
    /// Packets that a worker took from its backlogs and processed; a super-packet counts once.
    pub(crate) processed: Count,
    /// Number of times that a worker took packets from a backlog.
    pub(crate) turns: Count,
    /// Number of wake-ups of earlier workers of the same CPU, which used these counters before.
    pub(crate) wake_ups: Count,
    pub(crate) panics: Count,
    /// The CPU on which the thread last ran.
    pub(crate) cpu: AtomicU32,
}

/// An event that is reported to the bridge's supervisor thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SupervisorEvent {
    /// The port with this number is gone. `opening` tells how often it had been reopened, so
    /// that an event from before the last reopening is ignored.
    Broken { port: u16, opening: u32 },
    /// Network interfaces of the host were added, removed or changed.
    LinksChanged,
    /// The bridge is being stopped.
    Stopping,
}

/// The state and settings that all threads of a bridge share.
#[derive(Clone, Debug)]
pub(crate) struct ThreadContext {
    pub(crate) table: Arc<AddressTable>,
    /// The rate limit of ICMP answers to packets that are too long.
    pub(crate) answers: Arc<TokenBucket>,
    /// Incremented whenever settings or capabilities change, so that the threads read them again.
    pub(crate) epoch: Arc<AtomicU64>,
    pub(crate) notices: Sender<SupervisorEvent>,
    pub(crate) busy_poll: bool,
    pub(crate) key: HashKey,
    pub(crate) steering: Arc<SteeringState>,
    /// The forwarding in the kernel, or the reason why there is none. Created for the first port
    /// that may use it.
    pub(crate) kernel: Arc<OnceLock<KernelAvailability>>,
    pub(crate) monitors: Arc<Monitors>,
    /// The members of multicast groups; `None` without multicast snooping.
    pub(crate) snooping: Option<Arc<Snooping>>,
    /// The type of VLAN tag by which the bridge filters, if VLAN filtering is enabled.
    pub(crate) vlan_protocol: VlanProtocol,
    /// The time at which the bridge was started, to which its times in nanoseconds are relative.
    pub(crate) start: Instant,
    /// Creates the consumers that process packets instead of egress ports; `None` for a bridge.
    pub(crate) factory: Option<Factory>,
}

impl ThreadContext {
    fn consumer(&self, cpu: Option<Cpu>) -> Option<Box<dyn Consumer>> {
        let factory = self.factory.as_ref()?;
        let made = catch_unwind(AssertUnwindSafe(|| factory.make(cpu)));
        if made.is_err() {
            tracing::error!("a consumer cannot be created: its packets are dropped");
        }
        made.ok()
    }
}

impl PollThread {
    /// Starts a thread that moves packets, without ports at first. With `cpu`, the thread is a
    /// worker and runs on this CPU only. The thread adds to `counts`, which may already have
    /// values.
    pub(crate) fn start(
        name: String,
        cpu: Option<Cpu>,
        counts: Arc<PollThreadCounts>,
        context: ThreadContext,
    ) -> std::io::Result<PollThread> {
        let (commands, inbox) = crossbeam_channel::unbounded();
        let bell = Arc::new(Doorbell::new()?);
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let lifetime = Arc::new(WorkerLifetime::new());
        let mut poll_buffer = PollBuffer::default();
        if cpu.is_none() {
            poll_buffer.reserve()?;
        }
        let work = PollLoop {
            lifetime: lifetime.clone(),
            forwarder: PacketForwarder::new(context.table.clone(), context.answers.clone())
                .with_snooping(context.snooping.clone())
                .with_vlan_protocol(context.vlan_protocol)
                .with_kernel_path(context.kernel.clone()),
            // An epoch before the current one, so that the first round reads all settings.
            epoch: context.epoch.load(Ordering::Acquire).wrapping_sub(1),
            context,
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
            burst: false,
            last_panic_log: None,
        };
        let thread = std::thread::Builder::new().name(name).spawn(move || work.run())?;
        Ok(PollThread { commands, bell, counts, lifetime, thread: Some(thread) })
    }

    /// Sends the thread a command.
    pub(crate) fn send_command(&self, command: ThreadCommand) {
        // Fails only if the thread has ended.
        let _ = self.commands.send(command);
        self.wake();
    }

    /// Returns a handle with which other threads can give this thread backlogs and wake it.
    pub(crate) fn handle(&self) -> WorkerHandle {
        WorkerHandle {
            commands: self.commands.clone(),
            bell: self.bell.clone(),
            lifetime: self.lifetime.clone(),
        }
    }

    /// Wakes the thread, so that it checks for commands and for changed settings.
    pub(crate) fn wake(&self) {
        self.bell.force();
    }

    /// Returns whether the thread has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Tells the thread to send the packets that it holds and to end, and waits for its end.
    pub(crate) fn stop(&mut self) {
        self.send_command(ThreadCommand::StopReason);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a poll thread had panicked");
        }
    }
}

/// The state of a thread that moves packets, owned by the thread itself.
struct PollLoop {
    context: ThreadContext,
    /// The only CPU on which the thread runs, if it is a worker.
    cpu: Option<Cpu>,
    inbox: Receiver<ThreadCommand>,
    bell: Arc<Doorbell>,
    counts: Arc<PollThreadCounts>,
    /// An `epoll` for the queues whose descriptors are edge-triggered.
    poller: OwnedFd,
    /// For each descriptor of the last `poll(2)` call, whether it was readable.
    readable: Vec<bool>,
    forwarder: PacketForwarder,
    ingress: Vec<Ingress>,
    /// Buffer for the packets of one poll of a receive queue. A worker does not use it, so it has
    /// no capacity there.
    poll_buffer: PollBuffer,
    backlogs: Vec<BacklogReceiver<Arc<SharedPort>>>,
    /// Maximum number of packets taken from one backlog before the next one is processed.
    weight: usize,
    sock_flows: Option<Arc<SockFlowTable>>,
    /// Whether the worker ends as soon as it has no backlogs.
    retiring: bool,
    lifetime: Arc<WorkerLifetime>,
    next_token: u64,
    epoch: u64,
    round: u32,
    utilisation: Utilisation,
    /// Whether the last round of the loop had so many packets that traffic counts as a burst.
    burst: bool,
    /// When a panic was last logged.
    last_panic_log: Option<Instant>,
}

/// The source of the packets that are being processed when a panic occurs.
#[derive(Clone, Copy, Debug)]
enum PanicScope {
    Ingress(usize),
    Backlog(usize),
    Consumer,
    Thread,
}

impl PollLoop {
    fn run(mut self) {
        if let Some(cpu) = self.cpu
            && let Err(error) = pin_thread(None, &[cpu.number()])
        {
            tracing::warn!(%cpu, %error, "a worker cannot be pinned to its CPU");
        }
        // Made by this thread, so that its memory is local to the thread's CPU.
        self.forwarder.set_consumer(self.context.consumer(self.cpu));
        loop {
            match self.catch_panic(PanicScope::Thread, Self::run_once) {
                Some(true) => return,
                Some(false) => {}
                // The loop would most likely panic again at once, so it waits.
                None => std::thread::sleep(Duration::from_nanos(PAUSE)),
            }
        }
    }

    /// Executes commands, moves packets, and sleeps if there are none. Returns whether the thread
    /// must end.
    fn run_once(&mut self) -> bool {
        while let Ok(command) = self.inbox.try_recv() {
            if self.execute(command) {
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
            self.burst = received >= BURST;
            return false;
        }
        if !busy && std::mem::take(&mut self.burst) {
            // More packets of a burst are probably coming: let their sender or receiver run first.
            std::thread::yield_now();
            self.ingress.iter_mut().for_each(|ingress| ingress.ready = true);
            return false;
        }
        if busy || self.context.busy_poll {
            self.wait(Some(Duration::ZERO));
        } else {
            self.sleep();
        }
        false
    }

    /// Returns whether this worker was told to retire and has no backlogs left.
    fn is_done(&self) -> bool {
        self.retiring && self.backlogs.is_empty()
    }

    /// Returns the time in nanoseconds since the bridge started.
    fn now(&self) -> u64 {
        self.context.start.elapsed().as_nanos() as u64
    }

    /// Runs one poll round: polls every queue and backlog that may have packets once, and returns
    /// the number of packets.
    fn round(&mut self) -> usize {
        let now = self.now();
        self.utilisation.begin(now);
        if self.utilisation.is_due(now) {
            self.follow_utilisation(now);
        }
        self.forwarder.begin(now);
        let mut received = 0;
        for index in 0..self.ingress.len() {
            let ingress = &mut self.ingress[index];
            ingress.run_deferred();
            let due = ingress.deadline().is_some_and(|deadline| deadline <= now);
            if ingress.paused_until.is_some_and(|until| until <= now) {
                ingress.paused_until = None;
                ingress.ready = true;
            }
            if !(ingress.ready || due || self.context.busy_poll) || ingress.paused_until.is_some() {
                continue;
            }
            match self.catch_panic(PanicScope::Ingress(index), |work| {
                work.ingress[index].poll(&mut work.forwarder, &mut work.poll_buffer, now)
            }) {
                Some(Ok(packets)) => {
                    self.ingress[index].ready = packets != 0;
                    received += packets;
                    if let Some(until) = self.ingress[index].throttled_until {
                        // The queue is not polled until then, so packets held for aggregation would
                        // stay too long.
                        self.catch_panic(PanicScope::Ingress(index), |work| {
                            work.ingress[index].drain(&mut work.forwarder, &mut work.poll_buffer)
                        });
                        pause(&self.poller, &mut self.ingress[index], until);
                    }
                }
                Some(Err(error)) => {
                    // If the port is down or gone, its descriptor would be readable all the time.
                    tracing::debug!(port = %self.ingress[index].shared.name, %error, "the port cannot receive");
                    // The queue is not polled during the pause, so packets held for aggregation
                    // would stay too long.
                    self.catch_panic(PanicScope::Ingress(index), |work| {
                        work.ingress[index].drain(&mut work.forwarder, &mut work.poll_buffer)
                    });
                    let ingress = &mut self.ingress[index];
                    pause(&self.poller, ingress, now + PAUSE);
                    if matches!(error, PortError::Gone { .. }) {
                        ingress.paused_until = Some(u64::MAX);
                        self.forwarder.broken.insert((ingress.shared.number, ingress.opening));
                    }
                }
                // The queue would most likely panic again at once, and delay the other queues.
                None => pause(&self.poller, &mut self.ingress[index], now + PAUSE),
            }
        }
        // The time that this round spent on receive queues does not count for the backlogs.
        let mut start = if self.backlogs.is_empty() { now } else { self.now() };
        for index in 0..self.backlogs.len() {
            let taken = self
                .catch_panic(PanicScope::Backlog(index), |work| work.process_backlog(index))
                .unwrap_or(1);
            if taken != 0 {
                let now = self.now();
                self.backlogs[index].add_spent(now - std::mem::replace(&mut start, now));
                received += taken;
            }
        }
        self.backlogs.retain_mut(|backlog| !backlog.is_over());
        if self.forwarder.next_call.is_some_and(|time| time <= now) {
            self.catch_panic(PanicScope::Consumer, |work| work.forwarder.flush());
        }
        if received != 0 {
            self.utilisation.found_packets();
        }
        received
    }

    /// Ends a measuring window of the thread's load, and tells the queues whether this thread
    /// processes their packets or hands them to workers.
    fn follow_utilisation(&mut self, now: u64) {
        let windows = self.ingress.iter_mut().filter_map(|ingress| ingress.dispatch.take_window());
        let Some(all) = windows.reduce(QueueWindow::plus) else {
            return self.utilisation.restart(now);
        };
        let in_place = self.utilisation.end_window(now, all.worker_time, all.packets);
        for ingress in &mut self.ingress {
            ingress.dispatch.follow(&ingress.shared, in_place);
        }
    }

    /// Takes and processes at most `weight` packets of a backlog, and returns their number.
    fn process_backlog(&mut self, index: usize) -> usize {
        let PollLoop { backlogs, forwarder, sock_flows, cpu, .. } = self;
        let backlog = &mut backlogs[index];
        let count = backlog.take(self.weight, |from, packet| {
            // The thread that processes a flow counts as its reader, unless another reader is
            // recorded.
            if let (Some(table), Some(hash), Some(cpu)) = (&sock_flows, packet.metadata.hash, *cpu)
                && table.cpu(hash).is_none()
            {
                table.record(hash, cpu);
            }
            forwarder.forward(from, packet);
        });
        if count != 0 {
            forwarder.flush();
            self.counts.turns.add(1);
            self.counts.processed.add(backlog.publish());
        }
        count
    }

    /// Runs `work`. If it panics, the packets that it was processing are counted as lost, and the
    /// thread goes on.
    fn catch_panic<R>(
        &mut self,
        whose: PanicScope,
        work: impl FnOnce(&mut Self) -> R,
    ) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(|| work(self))) {
            Ok(done) => Some(done),
            Err(panic) => {
                self.recover(whose, &*panic);
                None
            }
        }
    }

    #[cold]
    fn recover(&mut self, whose: PanicScope, panic: &(dyn Any + Send)) {
        self.counts.panics.add(1);
        // The forwarder's frames are discarded, because its state after a panic is unknown.
        let unsent = self.forwarder.abandon();
        self.poll_buffer.clear();
        // Makes the thread read all settings again, which also adds the monitors that were
        // discarded.
        self.epoch = self.epoch.wrapping_sub(1);
        self.forwarder.set_consumer(self.context.consumer(self.cpu));
        let port = match whose {
            PanicScope::Ingress(index) => {
                let ingress = &mut self.ingress[index];
                ingress.count_lost(unsent);
                Some(ingress.shared.name.clone())
            }
            PanicScope::Backlog(index) => {
                let backlog = &mut self.backlogs[index];
                backlog.from.counts.dropped(DropReason::Panic, unsent);
                // None of the backlog's packets are left here, so their flows may move to another
                // CPU.
                backlog.publish();
                Some(backlog.from.name.clone())
            }
            PanicScope::Consumer | PanicScope::Thread => None,
        };
        if self.last_panic_log.is_none_or(|time| time.elapsed() >= PANIC_LOG_INTERVAL) {
            self.last_panic_log = Some(Instant::now());
            tracing::error!(
                port,
                lost = unsent,
                panic = panic_message(panic).unwrap_or("?"),
                "a poll thread panicked, and continues"
            );
        }
    }

    fn report_broken(&mut self) {
        let notices = &self.context.notices;
        // An event for which the channel has no room is sent again in the next round. A channel
        // without a receiver means that the bridge is being stopped.
        self.forwarder.broken.retain(|&(port, opening)| {
            matches!(
                notices.try_send(SupervisorEvent::Broken { port, opening }),
                Err(TrySendError::Full(_))
            )
        });
    }

    /// Reads settings again if they have changed.
    fn refresh(&mut self) {
        let epoch = self.context.epoch.load(Ordering::Acquire);
        if epoch == self.epoch {
            return;
        }
        self.epoch = epoch;
        for egress in self.forwarder.egress.iter_mut().flatten() {
            egress.refresh();
        }
        self.forwarder.refresh_copies(&self.context.monitors);
        let now = self.context.steering.now();
        self.weight = now.settings.weight;
        self.sock_flows = now.sock_flows.clone();
        for index in 0..self.ingress.len() {
            self.catch_panic(PanicScope::Ingress(index), |work| {
                work.ingress[index].refresh(&mut work.forwarder, &mut work.poll_buffer)
            });
        }
    }

    /// Executes a command, and returns whether it tells the thread to end.
    fn execute(&mut self, command: ThreadCommand) -> bool {
        match command {
            ThreadCommand::Open { shared, receivers, transmit, reserved } => {
                let number = usize::from(shared.number);
                if self.forwarder.egress.len() <= number {
                    self.forwarder.egress.resize_with(number + 1, || None);
                }
                self.forwarder.egress[number] = Some(Egress::new(shared.clone(), transmit));
                self.forwarder.copies.open(&shared);
                reserved.give_back();
                for (queue, receive) in receivers {
                    let (steering, bell) = (self.context.steering.clone(), self.bell.clone());
                    self.ingress.push(Ingress::new(
                        shared.clone(),
                        queue,
                        receive,
                        self.context.key,
                        steering,
                        bell,
                        self.next_token,
                    ));
                    self.next_token += 1;
                }
            }
            ThreadCommand::Close { number, done } => {
                self.forwarder.begin(self.now());
                for index in (0..self.ingress.len())
                    .rev()
                    .filter(|&index| self.ingress[index].shared.number == number)
                    .collect::<Vec<_>>()
                {
                    self.catch_panic(PanicScope::Ingress(index), |work| {
                        work.ingress[index].drain(&mut work.forwarder, &mut work.poll_buffer)
                    });
                    let mut ingress = self.ingress.remove(index);
                    unwatch(&self.poller, &mut ingress);
                }
                // The receiving thread has already put all packets of this port into the backlogs.
                self.finish(|shared| shared.number == number);
                if let Some(egress) = self.forwarder.egress.get_mut(usize::from(number)) {
                    *egress = None;
                }
                self.forwarder.copies.close(number);
                drop(done);
            }
            ThreadCommand::Backlog(backlog) => self.backlogs.push(backlog),
            ThreadCommand::Retire => self.retiring = true,
            ThreadCommand::StopReason => {
                // Packets that have already arrived are still forwarded, in one last round.
                let now = self.now();
                self.forwarder.begin(now);
                for index in 0..self.ingress.len() {
                    self.catch_panic(PanicScope::Ingress(index), |work| {
                        let _ = work.ingress[index].poll(
                            &mut work.forwarder,
                            &mut work.poll_buffer,
                            now,
                        );
                        work.ingress[index].drain(&mut work.forwarder, &mut work.poll_buffer);
                    });
                }
                self.finish(|_| true);
                return true;
            }
        }
        false
    }

    /// Processes all packets that are left in the closed backlogs from the ports for which `whose`
    /// is true.
    fn finish(&mut self, whose: impl Fn(&SharedPort) -> bool) {
        for index in 0..self.backlogs.len() {
            // A backlog that is still open belongs to a thread that did not release it in time, so
            // it may never end.
            while whose(&self.backlogs[index].from)
                && self.backlogs[index].is_closed()
                && !self.backlogs[index].is_over()
            {
                self.catch_panic(PanicScope::Backlog(index), |work| work.process_backlog(index));
            }
        }
    }
}

#[cfg(test)]
mod tests;
