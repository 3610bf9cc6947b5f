//! How a thread waits.
//!
//! By `poll`, for a few descriptors: the kernel then tells this thread of packets while it waits,
//! and only then. With `epoll` it would be told of each, also while it works, which costs whoever
//! sends them more than the system call costs here (`sock_def_readable`: 7 % of all CPU time under
//! bulk load).
//!
//! The descriptors of receive queues end a wait as long as they are readable. That of a packet ring
//! is readable while its last packet has not been given back, so where workers have packets it
//! would never be quiet: queues that hand over packets end a wait only with what is new (`EPOLLET`;
//! for them there is an `epoll`, itself a descriptor to poll), are looked at once more when all is
//! back, and until then every [`GIVE_BACK`], so that the ring gets its memory.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::thread::sched_getcpu;

use super::Work;
use crate::handover::BacklogReceiver;
use crate::ingress::Ingress;
use crate::steering::Watch;

/// A sleeping thread looks so soon again whether workers have given back what they have of its
/// queues.
const GIVE_BACK: Duration = Duration::from_millis(1);

impl Work {
    /// When something must be done although nothing arrives.
    fn timeout(&self) -> Option<Duration> {
        let now = self.now();
        let paused = self
            .ingress
            .iter()
            .filter_map(|ingress| ingress.paused_until)
            .filter(|&until| until != u64::MAX);
        let next = self
            .ingress
            .iter()
            .filter_map(Ingress::deadline)
            .chain(paused)
            .chain(self.output.next_call)
            .min()?;
        Some(Duration::from_nanos(next.saturating_sub(now)))
    }

    /// Sleeps until there is something to do.
    pub(super) fn sleep(&mut self) {
        let mut timeout = self.timeout();
        self.bell.fall_asleep();
        let mut stay = self.backlogs.iter().any(BacklogReceiver::has_work)
            || !self.inbox.is_empty()
            || self.is_done();
        for ingress in self.ingress.iter_mut().filter(|ingress| ingress.paused_until.is_none()) {
            if ingress.dispatch.is_all_here() {
                unwatch(&self.poller, ingress);
                (ingress.watching, ingress.armed) = (false, false);
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
                ingress.armed = true;
                watch(&self.poller, ingress);
            }
        }
        self.wait(if stay { Some(Duration::ZERO) } else { timeout });
        self.bell.awake();
    }

    /// Waits until something is readable, and says of the queues which.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) {
        self.counts.cpu.store(sched_getcpu() as u32, Ordering::Relaxed);
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()) as _,
        });
        let Work { bell, poller, ingress, readable, .. } = self;
        let level = |ingress: &Ingress| !ingress.edge && ingress.paused_until.is_none();
        let mut descriptors = Vec::with_capacity(ingress.len() + 2);
        descriptors
            .extend([PollFd::new(&**bell, PollFlags::IN), PollFd::new(poller, PollFlags::IN)]);
        descriptors.extend(
            ingress.iter().filter(|ingress| level(ingress)).map(|ingress| {
                PollFd::from_borrowed_fd(ingress.receive.readiness(), PollFlags::IN)
            }),
        );
        // Interrupted by a signal: the loop looks again anyway.
        let count = poll(&mut descriptors, timeout.as_ref()).unwrap_or(0);
        readable.clear();
        // Errors count too: to receive says what they are.
        readable.extend(
            descriptors.iter().map(|descriptor| count != 0 && !descriptor.revents().is_empty()),
        );
        drop(descriptors);
        let mut readable = readable.iter().copied();
        let (is_woken, has_new) = (readable.next() == Some(true), readable.next() == Some(true));
        for (ingress, readable) in ingress.iter_mut().filter(|ingress| level(ingress)).zip(readable)
        {
            ingress.ready |= readable;
        }
        if has_new {
            let mut events = [MaybeUninit::uninit(); 16];
            // What there is no room for is still there next time.
            let events = epoll::wait(poller, &mut events, Some(&Timespec::default()))
                .map_or(&mut [][..], |(events, _)| events);
            for event in events {
                if let Some(ingress) =
                    ingress.iter_mut().find(|ingress| ingress.token == event.data.u64())
                {
                    ingress.ready = true;
                }
            }
        }
        if is_woken {
            bell.silence();
            ingress
                .iter_mut()
                .filter(|ingress| ingress.watching)
                .for_each(|ingress| ingress.ready = true);
        }
    }
}

/// Leaves a queue alone for a while.
pub(super) fn pause(poller: &OwnedFd, ingress: &mut Ingress, until: u64) {
    unwatch(poller, ingress);
    ingress.ready = false;
    ingress.paused_until = Some(until);
}

/// Has only what is new of a queue end a wait, and once what is there already.
fn watch(poller: &OwnedFd, ingress: &mut Ingress) {
    let (data, flags) =
        (epoll::EventData::new_u64(ingress.token), epoll::EventFlags::IN | epoll::EventFlags::ET);
    let how = if ingress.edge { epoll::modify } else { epoll::add };
    match how(poller, ingress.receive.readiness(), data, flags) {
        Ok(()) => ingress.edge = true,
        Err(error) => {
            tracing::error!(port = %ingress.shared.name, %error, "the port's packets cannot be waited for")
        }
    }
}

/// Has a queue's packets end a wait as long as there are any.
pub(super) fn unwatch(poller: &OwnedFd, ingress: &mut Ingress) {
    if std::mem::take(&mut ingress.edge) {
        let _ = epoll::delete(poller, ingress.receive.readiness());
    }
}
