//! How a thread waits.
//!
//! The descriptors of receive queues end a wait as long as they are readable. That of a packet ring is readable while its last packet has not been given back, so where
//! workers have packets it would never be quiet: steered queues end a wait only with what is new (`EPOLLET`), are looked at once more when all is back, and until then every
//! [`GIVE_BACK`], so that the ring gets its memory.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::thread::sched_getcpu;

use super::{WAKE, Work};
use crate::handover::BacklogReceiver;
use crate::ingress::Ingress;
use crate::steering::Watch;

/// A sleeping thread looks so soon again whether workers have given back what they have of its queues.
const GIVE_BACK: Duration = Duration::from_millis(1);

impl Work {
    /// When something must be done although nothing arrives.
    fn timeout(&self) -> Option<Duration> {
        let now = self.now();
        let paused = self.ingress.iter().filter_map(|ingress| ingress.paused_until).filter(|&until| until != u64::MAX);
        let next = self.ingress.iter().filter_map(Ingress::deadline).chain(paused).chain(self.output.next_call).min()?;
        Some(Duration::from_nanos(next.saturating_sub(now)))
    }

    /// Sleeps until there is something to do.
    pub(super) fn sleep(&mut self, events: &mut Vec<epoll::Event>) {
        let mut timeout = self.timeout();
        self.bell.fall_asleep();
        let mut stay = self.backlogs.iter().any(BacklogReceiver::has_work) || !self.inbox.is_empty() || self.is_done();
        for ingress in self.ingress.iter_mut().filter(|ingress| ingress.paused_until.is_none()) {
            if !ingress.dispatch.is_on() {
                if ingress.edge {
                    ingress.edge = false;
                    watch_again(&self.poller, ingress);
                }
                continue;
            }
            ingress.receive.give_back();
            let waits = ingress.dispatch.watch(ingress.receive.is_crowded());
            ingress.watching = waits != Watch::Nothing;
            if waits == Watch::GoOn {
                ingress.ready = true;
                stay = true;
            }
            if ingress.dispatch.is_outstanding() {
                ingress.armed = false;
                timeout = Some(timeout.map_or(GIVE_BACK, |timeout| timeout.min(GIVE_BACK)));
            } else if !ingress.edge || !ingress.armed {
                (ingress.edge, ingress.armed) = (true, true);
                watch_again(&self.poller, ingress);
            }
        }
        self.wait(events, if stay { Some(Duration::ZERO) } else { timeout });
        self.bell.awake();
    }

    pub(super) fn wait(&mut self, events: &mut Vec<epoll::Event>, timeout: Option<Duration>) {
        self.counts.cpu.store(sched_getcpu() as u32, Ordering::Relaxed);
        let timeout = timeout.map(|timeout| Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) as _ });
        events.clear();
        // Interrupted by a signal: the loop looks again anyway.
        let _ = epoll::wait(&self.poller, rustix::buffer::spare_capacity(events), timeout.as_ref());
        for event in events.iter() {
            let token = event.data.u64();
            if token == WAKE {
                self.bell.silence();
                self.ingress.iter_mut().filter(|ingress| ingress.watching).for_each(|ingress| ingress.ready = true);
            } else if let Some(ingress) = self.ingress.iter_mut().find(|ingress| ingress.token == token) {
                ingress.ready = true;
            }
        }
    }
}

/// Leaves a queue alone for a while.
pub(super) fn pause(poller: &OwnedFd, ingress: &mut Ingress, until: u64) {
    let _ = epoll::delete(poller, ingress.receive.readiness());
    ingress.ready = false;
    ingress.paused_until = Some(until);
}

/// What of a queue ends a wait.
fn events_of(ingress: &Ingress) -> epoll::EventFlags {
    if ingress.edge { epoll::EventFlags::IN | epoll::EventFlags::ET } else { epoll::EventFlags::IN }
}

/// Has a queue's packets end a wait.
pub(super) fn watch(poller: &OwnedFd, ingress: &Ingress) {
    let data = epoll::EventData::new_u64(ingress.token);
    if let Err(error) = epoll::add(poller.as_fd(), ingress.receive.readiness(), data, events_of(ingress)) {
        tracing::error!(port = %ingress.shared.name, %error, "the port's packets cannot be waited for");
    }
}

/// The same in another way, or once more for what is there already.
fn watch_again(poller: &OwnedFd, ingress: &Ingress) {
    let data = epoll::EventData::new_u64(ingress.token);
    if let Err(error) = epoll::modify(poller.as_fd(), ingress.receive.readiness(), data, events_of(ingress)) {
        tracing::error!(port = %ingress.shared.name, %error, "the port's packets cannot be waited for");
    }
}
