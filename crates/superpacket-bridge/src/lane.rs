//! A thread that moves packets: it polls its receive queues, and has a way out by every port.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use rustix::event::epoll;
use rustix::event::{EventfdFlags, Timespec, eventfd};
use superpacket::aggregate::HashKey;
use superpacket_io::port::{PortError, Receive, Transmit};

use crate::egress::Egress;
use crate::ingress::Ingress;
use crate::output::Output;
use crate::runtime::Shared;
use crate::table::Table;

/// The name of the thread's own descriptor in its `epoll`.
const WAKE: u64 = 0;

/// A queue whose interface is down is left alone for so long, in nanoseconds.
const PAUSE: u64 = 50_000_000;

/// While some queue is busy, the others' descriptors are looked at every so many rounds.
const LOOK_EVERY: u32 = 4;

/// So many packets in a round are a burst, not requests and answers.
const BULK: usize = 8;

/// What a thread is told.
pub(crate) enum Order {
    /// A port is there: receive by these queues, send by this end.
    Open { shared: Arc<Shared>, receivers: Vec<Box<dyn Receive>>, transmit: Box<dyn Transmit> },
    /// The port of this number is not to be used any more; the sender is dropped when all its buffers are back.
    Close { number: u16, done: Sender<()> },
    /// Send what is held, and end.
    Stop,
}

/// A running thread.
#[derive(Debug)]
pub(crate) struct Lane {
    orders: Sender<Order>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// What all threads share.
#[derive(Clone, Debug)]
pub(crate) struct Common {
    pub(crate) table: Arc<Table>,
    /// Grows whenever wishes or abilities change.
    pub(crate) epoch: Arc<AtomicU64>,
    /// Takes the numbers of ports that turned out to be gone, and which opening of them.
    pub(crate) broken: Sender<(u16, u32)>,
    pub(crate) busy_poll: bool,
    pub(crate) key: HashKey,
}

impl Lane {
    /// Starts a thread without ports.
    pub(crate) fn start(number: usize, common: Common) -> std::io::Result<Lane> {
        let (orders, inbox) = crossbeam_channel::unbounded();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&poller, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        let output = Output::new(common.table.clone());
        let epoch = common.epoch.load(Ordering::Acquire);
        let work = Work {
            common,
            inbox,
            wake: wake.clone(),
            poller,
            output,
            ingress: Vec::new(),
            next_token: WAKE + 1,
            epoch,
            start: Instant::now(),
            round: 0,
        };
        let thread = std::thread::Builder::new().name(format!("superpacket-{number}")).spawn(move || work.run())?;
        Ok(Lane { orders, wake, thread: Some(thread) })
    }

    /// Tells the thread something.
    pub(crate) fn order(&self, order: Order) {
        // A thread that has ended needs no orders.
        let _ = self.orders.send(order);
        self.wake();
    }

    /// Makes the thread look at its orders and at the epoch.
    pub(crate) fn wake(&self) {
        // A full counter wakes as well.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
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
    inbox: Receiver<Order>,
    wake: Arc<OwnedFd>,
    poller: OwnedFd,
    output: Output,
    ingress: Vec<Ingress>,
    next_token: u64,
    epoch: u64,
    start: Instant,
    round: u32,
}

impl Work {
    fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        // The last packets came many at once.
        let mut bulk = false;
        loop {
            while let Ok(order) = self.inbox.try_recv() {
                if self.obey(order) {
                    return;
                }
            }
            self.refresh();
            let now = self.start.elapsed().as_nanos() as u64;
            let received = self.round(now);
            self.report_broken();
            self.round = self.round.wrapping_add(1);
            let busy = received != 0;
            if busy && !self.round.is_multiple_of(LOOK_EVERY) {
                bulk = received >= BULK;
                continue;
            }
            if !busy && std::mem::take(&mut bulk) {
                // More of a burst is on its way, most likely: whoever makes it, or takes it, may run first.
                std::thread::yield_now();
                self.ingress.iter_mut().for_each(|ingress| ingress.ready = true);
                continue;
            }
            self.wait(&mut events, if busy || self.common.busy_poll { Some(Duration::ZERO) } else { self.timeout() });
        }
    }

    /// Polls every queue that may have packets; says how many packets there were.
    fn round(&mut self, now: u64) -> usize {
        self.output.begin();
        let mut received = 0;
        for index in 0..self.ingress.len() {
            let ingress = &mut self.ingress[index];
            let due = ingress.deadline().is_some_and(|deadline| deadline <= now);
            if ingress.paused_until.is_some_and(|until| until <= now) {
                ingress.paused_until = None;
                ingress.ready = true;
                watch(&self.poller, ingress);
            }
            if !(ingress.ready || due || self.common.busy_poll) || ingress.paused_until.is_some() {
                continue;
            }
            match ingress.poll(&mut self.output, now) {
                Ok(packets) => {
                    ingress.ready = packets != 0;
                    received += packets;
                }
                Err(error) => {
                    // Down or gone: its descriptor would be readable all the time.
                    tracing::debug!(port = %ingress.shared.name, %error, "nothing is received");
                    let _ = epoll::delete(&self.poller, ingress.receive.readiness());
                    // Nobody would look at what it holds before the pause is over.
                    ingress.drain(&mut self.output);
                    ingress.ready = false;
                    ingress.paused_until = Some(now + PAUSE);
                    if matches!(error, PortError::Gone { .. }) {
                        ingress.paused_until = Some(u64::MAX);
                        self.output.broken.push((ingress.shared.number, ingress.opening));
                    }
                }
            }
        }
        received
    }

    fn report_broken(&mut self) {
        for broken in self.output.broken.drain(..) {
            // Nobody listens while the bridge ends.
            let _ = self.common.broken.send(broken);
        }
    }

    /// When something must be done although nothing arrives.
    fn timeout(&self) -> Option<Duration> {
        let now = self.start.elapsed().as_nanos() as u64;
        let paused = self.ingress.iter().filter_map(|ingress| ingress.paused_until).filter(|&until| until != u64::MAX);
        let next = self.ingress.iter().filter_map(Ingress::deadline).chain(paused).min()?;
        Some(Duration::from_nanos(next.saturating_sub(now)))
    }

    fn wait(&mut self, events: &mut Vec<epoll::Event>, timeout: Option<Duration>) {
        let timeout = timeout.map(|timeout| Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) as _ });
        events.clear();
        // Interrupted by a signal: the loop looks again anyway.
        let _ = epoll::wait(&self.poller, rustix::buffer::spare_capacity(events), timeout.as_ref());
        for event in events.iter() {
            let token = event.data.u64();
            if token == WAKE {
                let _ = rustix::io::read(&*self.wake, &mut [0u8; 8]);
            } else if let Some(ingress) = self.ingress.iter_mut().find(|ingress| ingress.token == token) {
                ingress.ready = true;
            }
        }
    }

    /// Takes over what has been changed since it was last looked at.
    fn refresh(&mut self) {
        let epoch = self.common.epoch.load(Ordering::Acquire);
        if epoch == self.epoch {
            return;
        }
        self.epoch = epoch;
        for egress in self.output.egress.iter_mut().flatten() {
            egress.runtime = egress.shared.runtime();
        }
        for ingress in &mut self.ingress {
            ingress.refresh(&mut self.output);
        }
    }

    /// Does as it is told; `true`: it was told to end.
    fn obey(&mut self, order: Order) -> bool {
        match order {
            Order::Open { shared, receivers, transmit } => {
                let number = usize::from(shared.number);
                if self.output.egress.len() <= number {
                    self.output.egress.resize_with(number + 1, || None);
                }
                self.output.egress[number] = Some(Egress::new(shared.clone(), transmit));
                for receive in receivers {
                    let ingress = Ingress::new(shared.clone(), receive, self.common.key, self.next_token);
                    self.next_token += 1;
                    watch(&self.poller, &ingress);
                    self.ingress.push(ingress);
                }
            }
            Order::Close { number, done } => {
                for index in (0..self.ingress.len()).rev().filter(|&index| self.ingress[index].shared.number == number).collect::<Vec<_>>()
                {
                    let mut ingress = self.ingress.remove(index);
                    ingress.drain(&mut self.output);
                    let _ = epoll::delete(&self.poller, ingress.receive.readiness());
                }
                self.output.flush();
                if let Some(egress) = self.output.egress.get_mut(usize::from(number)) {
                    *egress = None;
                }
                drop(done);
            }
            Order::Stop => {
                // What has arrived already is still forwarded, once round.
                let now = self.start.elapsed().as_nanos() as u64;
                for ingress in &mut self.ingress {
                    let _ = ingress.poll(&mut self.output, now);
                    ingress.drain(&mut self.output);
                }
                return true;
            }
        }
        false
    }
}

/// Has a queue's packets end a wait.
fn watch(poller: &OwnedFd, ingress: &Ingress) {
    let data = epoll::EventData::new_u64(ingress.token);
    if let Err(error) = epoll::add(poller.as_fd(), ingress.receive.readiness(), data, epoll::EventFlags::IN) {
        tracing::error!(port = %ingress.shared.name, %error, "the port's packets cannot be waited for");
    }
}
