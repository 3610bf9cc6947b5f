//! The supervisor thread, which handles links that go up and down, and interfaces that disappear
//! and come back.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use superpacket_port::LinkState;
use superpacket_port::system::give_back_freed_memory;

use super::reopen::TRY_AGAIN;
use super::slot::link_name;
use super::trim::MemoryTrimmer;
use super::{Inner, lock};
use crate::poll_thread::SupervisorEvent;

/// Interval between checks of ports whose changes the kernel does not report. Without link events
/// these are all ports. If the kernel reports only this network namespace, these are TAP and TUN
/// devices.
pub(super) const LOOK: Duration = Duration::from_millis(250);

/// Interval between checks of ports whose changes the kernel reports. A report may get lost, and a
/// device that moves between containers is reported only in the first.
pub(super) const LOOK_ANYWAY: Duration = Duration::from_secs(2);

/// Minimum time between a kernel's report of a change and the check of the port.
const TRY_SOON: Duration = Duration::from_millis(50);

/// Number of events that the supervisor's channel can hold. An event for which there is no room is
/// sent again, or the next check finds what happened.
pub(super) const NOTICES: usize = 1024;

impl Inner {
    /// Watches the ports until the bridge ends.
    pub(super) fn supervise(&self, inbox: &Receiver<SupervisorEvent>, look_anyway: Duration) {
        let mut looked = Instant::now();
        let mut trimmer = MemoryTrimmer::new(self.epoch.load(Ordering::Acquire), Instant::now());
        while !self.stopping.load(Ordering::Acquire) {
            // Threads may send an event per packet, so all waiting events are taken at once.
            let notices: Vec<_> = inbox
                .recv_timeout(LOOK)
                .into_iter()
                .chain(inbox.try_iter().take(NOTICES))
                .collect();
            if self.stopping.load(Ordering::Acquire) {
                return;
            }
            let _alone = lock(&self.changes);
            let mut changed = false;
            let all = !notices.is_empty() || looked.elapsed() >= look_anyway;
            if all {
                looked = Instant::now();
            }
            let slots = lock(&self.slots).len();
            for number in 0..slots {
                changed |= self.look_after(number, &notices, all);
            }
            changed |= self.look_after_workers();
            if let Some(Ok(kernel)) = self.context.kernel.get() {
                kernel.follow(&self.table);
            }
            self.reconcile_kernel_path();
            self.table.expire(self.table.now());
            if let Some(snooping) = &self.context.snooping {
                snooping.expire(self.context.start.elapsed().as_nanos() as u64);
            }
            if changed {
                self.announce();
            }
            if trimmer.is_due(self.epoch.load(Ordering::Acquire), Instant::now()) {
                give_back_freed_memory();
            }
        }
    }

    /// Checks the state of a port, and returns whether the threads must read their settings again.
    /// Ports whose changes the kernel reports are checked only with `all`.
    fn look_after(&self, number: usize, notices: &[SupervisorEvent], all: bool) -> bool {
        let mut slots = lock(&self.slots);
        let Some(Some(slot)) = slots.get_mut(number) else { return false };
        let Some(port) = &mut slot.port else {
            let soon = if notices.contains(&SupervisorEvent::LinksChanged) {
                TRY_AGAIN - TRY_SOON
            } else {
                Duration::ZERO
            };
            if slot.next_try > Instant::now() + soon {
                return false;
            }
            let shared = slot.shared.clone();
            drop(slots);
            return self.reopen(number, &shared);
        };
        if !all && slot.kernel_notifies {
            return false;
        }
        // An event from before the last reopening is ignored.
        let is_broken = notices.contains(&SupervisorEvent::Broken {
            port: slot.shared.number,
            opening: slot.shared.opening(),
        });
        let before = slot.state;
        slot.state = port.state();
        if slot.state.link == LinkState::Gone || is_broken && slot.state.link != LinkState::Down {
            slot.next_try = Instant::now();
            tracing::warn!(port = %slot.shared.name, "the port is gone: opening it is retried until it is back");
            let gone = slot.take_port("the interface is gone");
            // Done after the lock is released: threads may be slow to release the port, ports slow
            // to close, and reports should not wait for them.
            drop(slots);
            self.disconnect(number as u16);
            self.forget(number as u16);
            drop(gone);
            return true;
        }
        if before.link != slot.state.link {
            tracing::info!(port = %slot.shared.name, state = link_name(slot.state.link), "the link changed");
            if slot.state.link == LinkState::Down {
                // Stations that were behind this port may now be behind another port.
                self.forget(slot.shared.number);
            }
        }
        let has_mtu = slot.shared.set_mtu(slot.state.mtu);
        if has_mtu {
            tracing::info!(port = %slot.shared.name, mtu = slot.state.mtu, "the MTU changed");
        }
        // A virtual machine chooses its features when it starts.
        let has_capabilities = slot.shared.set_capabilities(port.capabilities());
        if has_capabilities {
            tracing::info!(port = %slot.shared.name, "the offloads that the port can do changed");
        }
        has_mtu || has_capabilities
    }
}

#[cfg(test)]
mod tests {
    use superpacket_port::LinkState;

    use super::super::tests::settings;
    use super::super::{Bridge, PortSlot};
    use super::*;

    #[test]
    fn reports_do_not_wait_for_a_port_that_takes_long_to_open() {
        // Nothing writes to the pipe, so opening it waits half a second for the first frame.
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
            .expect("a pipe");
        let bridge = Bridge::start(settings(&["memory:slow", "memory:other"]))
            .expect("no privilege is needed");
        // A busy machine may take longer to answer; try once more.
        let is_answered_meanwhile = || {
            {
                let mut slots = lock(&bridge.inner.slots);
                let slot = slots[0].as_mut().expect("is there");
                let spec = format!("pcap:{}", path.display()).parse().expect("a port string");
                slot.shared.change(|settings| settings.port = spec);
                (slot.port, slot.state.link, slot.next_try) =
                    (None, LinkState::Gone, Instant::now());
            }
            // The pipe can be opened for writing once the supervisor has it open for reading.
            let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
            let since = Instant::now();
            let writer = loop {
                match rustix::fs::open(&path, flags, rustix::fs::Mode::empty()) {
                    Ok(writer) => break writer,
                    Err(error) => assert_eq!(error, rustix::io::Errno::NXIO, "nobody reads"),
                }
                assert!(since.elapsed() < Duration::from_secs(10), "the supervisor never opens it");
                std::thread::sleep(Duration::from_millis(1));
            };
            let mut slots = lock(&bridge.inner.slots);
            let is_open = slots[0].as_ref().expect("is there").port.is_some();
            assert_eq!(slots.iter_mut().flatten().map(PortSlot::stats).count(), 2);
            drop((slots, writer));
            !is_open
        };
        assert!((0..5).any(|_| is_answered_meanwhile()), "who asks need not wait for the port");
    }

    #[test]
    fn events_for_a_blocked_supervisor_are_bounded() {
        let bridge =
            Bridge::start(settings(&["memory:many-notices"])).expect("no privilege is needed");
        let alone = lock(&bridge.inner.changes);
        // Meanwhile the supervisor has checked the port again, and waits for the lock.
        std::thread::sleep(2 * LOOK);
        let notices = &bridge.inner.context.notices;
        let said = (0..10 * NOTICES)
            .filter(|_| notices.try_send(SupervisorEvent::Broken { port: 0, opening: 7 }).is_ok())
            .count();
        assert_eq!((said, notices.len()), (NOTICES, NOTICES));
        drop(alone);
        // The supervisor must notice the end of the bridge all the same.
        drop(bridge);
    }

    #[test]
    fn no_worker_is_started_while_the_bridge_stops() {
        let bridge =
            Bridge::start(settings(&["memory:a", "memory:b"])).expect("no privilege is needed");
        let inner = bridge.inner.clone();
        // The supervisor sees that the bridge is not stopping, and then waits for this lock.
        let alone = lock(&inner.changes);
        std::thread::sleep(2 * LOOK);
        let stopping = std::thread::spawn(|| drop(bridge));
        while !inner.stopping.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(200));
        // Now the supervisor finds that a new worker is needed.
        let cpu = lock(&inner.workers).usable().first().expect("this thread is on one");
        let mask = [cpu].into_iter().collect::<superpacket_steer::CpuMask>();
        lock(&inner.slots).iter().flatten().for_each(|slot| {
            slot.shared.change_steering(|steering| steering.rps_cpus.set(None, mask.clone()))
        });
        lock(&inner.workers).ask_for_more();
        drop(alone);
        stopping.join().expect("no panic");
        assert_eq!(lock(&inner.workers).all().count(), 0, "it would never end");
    }
}
