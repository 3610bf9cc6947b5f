//! Waiting for many sockets at once (epoll(7), level-triggered), and detection of stalled flows.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::error::{Context, LabError};

/// Longest duration of a single wait, so that a thread notices stalls and failures of other
/// threads.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

/// An epoll instance whose sockets are identified by the number of their flow.
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

    /// Changes the events that a flow's socket is watched for.
    pub(crate) fn modify(
        &self,
        socket: impl AsFd,
        flow: usize,
        interest: EventFlags,
    ) -> Result<(), LabError> {
        epoll::modify(&self.epoll, socket, EventData::new_u64(flow as u64), interest)
            .context(|| "epoll_ctl".into())
    }

    /// Stops watching a socket.
    pub(crate) fn remove(&self, socket: impl AsFd) -> Result<(), LabError> {
        epoll::delete(&self.epoll, socket).context(|| "epoll_ctl".into())
    }

    /// Waits at most 50 ms, and fills `ready` with the flows that are ready.
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

/// Detects flows of a thread that make no progress for too long.
pub(crate) struct StallDetector {
    load: String,
    role: &'static str,
    limit: Duration,
    last: Vec<Instant>,
    next_check: Instant,
}

impl StallDetector {
    /// Starts to watch `flows` flows, all of which count as having made progress now.
    pub(crate) fn new(load: &str, role: &'static str, flows: usize, limit: Duration) -> Self {
        let now = Instant::now();
        Self {
            load: load.to_owned(),
            role,
            limit,
            last: vec![now; flows],
            next_check: now + LONGEST_WAIT,
        }
    }

    /// Records that the flow made progress.
    pub(crate) fn record(&mut self, flow: usize, now: Instant) {
        self.last[flow] = now;
    }

    /// Returns an error if an unfinished flow has stalled; checks at most every 50 ms. `state`
    /// returns a flow's index in the load and the number of bytes that it moved, or `None` if it is
    /// finished.
    pub(crate) fn check(
        &mut self,
        now: Instant,
        state: impl Fn(usize) -> Option<(usize, u64)>,
    ) -> Result<(), LabError> {
        if now < self.next_check {
            return Ok(());
        }
        self.next_check = now + LONGEST_WAIT;
        let waiting = (0..self.last.len())
            .filter_map(|flow| state(flow).map(|state| (self.last[flow], state)));
        let count = waiting.clone().count();
        match waiting.min_by_key(|(last, _)| *last) {
            Some((last, (flow, bytes))) if now.duration_since(last) > self.limit => {
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
