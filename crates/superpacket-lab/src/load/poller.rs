//! Waiting for many sockets at once (epoll(7), level-triggered), with an eye on those that get
//! nowhere.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::error::{Context, LabError};

/// How long a wait lasts at most, so that a stall, or another thread's failure, is seen.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

/// An epoll instance over flows that are known by their number.
pub(crate) struct Poller {
    epoll: OwnedFd,
    events: Vec<Event>,
}

impl Poller {
    pub(crate) fn new() -> Result<Self, LabError> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).context(|| "epoll_create".into())?;
        Ok(Self { epoll, events: Vec::with_capacity(256) })
    }

    /// Watches a flow's socket for `interest`.
    pub(crate) fn add(
        &self,
        socket: impl AsFd,
        flow: usize,
        interest: EventFlags,
    ) -> Result<(), LabError> {
        epoll::add(&self.epoll, socket, EventData::new_u64(flow as u64), interest)
            .context(|| "epoll_ctl".into())
    }

    /// Changes what a flow's socket is watched for.
    pub(crate) fn modify(
        &self,
        socket: impl AsFd,
        flow: usize,
        interest: EventFlags,
    ) -> Result<(), LabError> {
        epoll::modify(&self.epoll, socket, EventData::new_u64(flow as u64), interest)
            .context(|| "epoll_ctl".into())
    }

    /// Watches a socket no more.
    pub(crate) fn remove(&self, socket: impl AsFd) -> Result<(), LabError> {
        epoll::delete(&self.epoll, socket).context(|| "epoll_ctl".into())
    }

    /// Puts the flows that are ready into `ready`; none after at most 50 ms.
    pub(crate) fn wait(&mut self, ready: &mut Vec<usize>) -> Result<(), LabError> {
        let timeout = Timespec { tv_sec: 0, tv_nsec: LONGEST_WAIT.subsec_nanos().into() };
        self.events.clear();
        ready.clear();
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut self.events),
            Some(&timeout),
        ) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(LabError::system("epoll_wait", error)),
        }
        ready.extend(self.events.iter().map(|event| event.data.u64() as usize));
        Ok(())
    }
}

/// When each flow of a thread last got on.
pub(crate) struct Progress {
    load: String,
    role: &'static str,
    allowed: Duration,
    last: Vec<Instant>,
    next_look: Instant,
}

impl Progress {
    /// All flows are counted from now on.
    pub(crate) fn new(load: &str, role: &'static str, flows: usize, allowed: Duration) -> Self {
        let now = Instant::now();
        Self {
            load: load.to_owned(),
            role,
            allowed,
            last: vec![now; flows],
            next_look: now + LONGEST_WAIT,
        }
    }

    /// The flow moved some bytes.
    pub(crate) fn moved(&mut self, flow: usize, now: Instant) {
        self.last[flow] = now;
    }

    /// Looks, a few times a second, whether a flow that is not done has stood still for too long.
    /// `state` says for a flow its number in the whole load and the bytes that it moved, or `None`
    /// when it is done.
    pub(crate) fn check(
        &mut self,
        now: Instant,
        state: impl Fn(usize) -> Option<(usize, u64)>,
    ) -> Result<(), LabError> {
        if now < self.next_look {
            return Ok(());
        }
        self.next_look = now + LONGEST_WAIT;
        let waiting = (0..self.last.len())
            .filter_map(|flow| state(flow).map(|state| (self.last[flow], state)));
        let count = waiting.clone().count();
        match waiting.min_by_key(|(last, _)| *last) {
            Some((last, (flow, bytes))) if now.duration_since(last) > self.allowed => {
                Err(LabError::Stalled {
                    load: self.load.clone(),
                    role: self.role,
                    flow,
                    bytes,
                    seconds: now.duration_since(last).as_secs_f64(),
                    waiting: count,
                })
            }
            _ => Ok(()),
        }
    }
}
