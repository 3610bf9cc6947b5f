//! Puts a thread that moves packets to sleep until packets arrive.
//!
//! Threads call `poll` on a few descriptors, so that the kernel notifies them only while they
//! sleep. An `epoll` would be notified of each packet also while the thread works. That costs the
//! senders more than the system call costs here (`sock_def_readable`: 7 % of all CPU time under
//! bulk load).
//!
//! The descriptor of a packet ring stays readable until the last packet has been returned to the
//! ring, so it would not let the thread sleep while workers have packets. Queues that hand packets
//! to workers are therefore edge-triggered (`EPOLLET`, in an `epoll` that is itself polled). Their
//! descriptors are checked again when the workers have returned all packets, and until then every
//! [`GIVE_BACK`], so that the ring can use its memory again.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::thread::sched_getcpu;

use super::PollLoop;
use crate::handover::BacklogReceiver;
use crate::ingress::Ingress;
use crate::steering::WorkerWait;

/// Interval at which a sleeping thread checks whether workers have finished packets of its queues,
/// so that receive rings get their memory back.
const GIVE_BACK: Duration = Duration::from_millis(1);

impl PollLoop {
    /// Returns how long the thread may sleep if no packets arrive; `None` for no limit.
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
            .chain(self.forwarder.next_call)
            .min()?;
        Some(Duration::from_nanos(next.saturating_sub(now)))
    }

    /// Sleeps until a packet arrives, other work is due, or another thread rings this thread's
    /// doorbell.
    pub(super) fn sleep(&mut self) {
        let mut timeout = self.timeout();
        self.bell.fall_asleep();
        let mut stay = self.backlogs.iter().any(BacklogReceiver::has_work)
            || !self.inbox.is_empty()
            || self.is_done();
        for ingress in self.ingress.iter_mut().filter(|ingress| ingress.paused_until.is_none()) {
            if ingress.dispatch.is_all_in_place() {
                unwatch(&self.poller, ingress);
                (ingress.waits_for_worker, ingress.is_quiet) = (false, false);
                continue;
            }
            ingress.receive.give_back();
            let waits = ingress.dispatch.watch(ingress.receive.is_crowded());
            ingress.waits_for_worker = waits != WorkerWait::NotWaiting;
            if waits == WorkerWait::Resumed {
                ingress.ready = true;
                stay = true;
            }
            if ingress.dispatch.is_outstanding() {
                ingress.is_quiet = false;
                timeout = Some(timeout.map_or(GIVE_BACK, |timeout| timeout.min(GIVE_BACK)));
            } else if !ingress.edge_triggered || !ingress.is_quiet {
                ingress.is_quiet = true;
                watch(&self.poller, ingress);
            }
        }
        self.wait(if stay { Some(Duration::ZERO) } else { timeout });
        self.bell.awake();
    }

    /// Waits until a descriptor is readable, and marks the queues with readable descriptors as
    /// ready.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) {
        self.counts.cpu.store(sched_getcpu() as u32, Ordering::Relaxed);
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()) as _,
        });
        let PollLoop { bell, poller, ingress, readable, .. } = self;
        let level = |ingress: &Ingress| !ingress.edge_triggered && ingress.paused_until.is_none();
        let mut descriptors = Vec::with_capacity(ingress.len() + 2);
        descriptors
            .extend([PollFd::new(&**bell, PollFlags::IN), PollFd::new(poller, PollFlags::IN)]);
        descriptors.extend(
            ingress.iter().filter(|ingress| level(ingress)).map(|ingress| {
                PollFd::from_borrowed_fd(ingress.receive.readiness(), PollFlags::IN)
            }),
        );
        // A signal may interrupt `poll`. The loop then looks for work and sleeps again.
        let count = poll(&mut descriptors, timeout.as_ref()).unwrap_or(0);
        readable.clear();
        // A descriptor with an error counts as readable, so that receiving reports the error.
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
            // Events that do not fit are reported by the next call.
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
                .filter(|ingress| ingress.waits_for_worker)
                .for_each(|ingress| ingress.ready = true);
        }
    }
}

/// Stops polling a queue until the given time.
pub(super) fn pause(poller: &OwnedFd, ingress: &mut Ingress, until: u64) {
    unwatch(poller, ingress);
    ingress.ready = false;
    ingress.paused_until = Some(until);
}

/// Makes a queue's descriptor edge-triggered. Packets that it already has are reported once.
fn watch(poller: &OwnedFd, ingress: &mut Ingress) {
    let (data, flags) =
        (epoll::EventData::new_u64(ingress.token), epoll::EventFlags::IN | epoll::EventFlags::ET);
    let how = if ingress.edge_triggered { epoll::modify } else { epoll::add };
    match how(poller, ingress.receive.readiness(), data, flags) {
        Ok(()) => ingress.edge_triggered = true,
        Err(error) => {
            tracing::error!(port = %ingress.shared.name, %error, "cannot wait for the port's packets")
        }
    }
}

/// Makes a queue's descriptor level-triggered again.
pub(super) fn unwatch(poller: &OwnedFd, ingress: &mut Ingress) {
    if std::mem::take(&mut ingress.edge_triggered) {
        let _ = epoll::delete(poller, ingress.receive.readiness());
    }
}
