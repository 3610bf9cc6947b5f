//! The thread that looks after the ports: links that go up and down, interfaces that go and come
//! back.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use superpacket_port::LinkState;
use superpacket_port::system::give_back_freed_memory;

use super::place::link_name;
use super::reopen::TRY_AGAIN;
use super::tidy::Tidy;
use super::{Inner, lock};
use crate::poll_thread::Notice;

/// How often the state of ports is looked at of whose changes the kernel does not tell: where it
/// could not be asked to, and TAP and TUN devices where it tells of this network namespace only.
pub(super) const LOOK: Duration = Duration::from_millis(250);

/// How often that of the others is, although the kernel tells what changes: what it said may have
/// been lost, and a device that goes from container to container is heard of in the first only.
pub(super) const LOOK_ANYWAY: Duration = Duration::from_secs(2);

/// How long at least, where the kernel tells of a change.
const TRY_SOON: Duration = Duration::from_millis(50);

/// The most notices that wait for the thread that looks after the ports: what finds no room is said
/// again, or seen at the next look.
pub(super) const NOTICES: usize = 1024;

impl Inner {
    /// Looks after the ports until the bridge ends.
    pub(super) fn supervise(&self, inbox: &Receiver<Notice>, look_anyway: Duration) {
        let mut looked = Instant::now();
        let mut tidy = Tidy::new(self.epoch.load(Ordering::Acquire), Instant::now());
        while !self.stopping.load(Ordering::Acquire) {
            // Threads say it with every packet: all of it is taken at once.
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
            let places = lock(&self.places).len();
            for number in 0..places {
                changed |= self.look_after(number, &notices, all);
            }
            changed |= self.look_after_workers();
            self.table.expire(self.table.now());
            if let Some(snooping) = &self.common.snooping {
                snooping.expire(self.common.start.elapsed().as_nanos() as u64);
            }
            if changed {
                self.announce();
            }
            if tidy.is_due(self.epoch.load(Ordering::Acquire), Instant::now()) {
                give_back_freed_memory();
            }
        }
    }

    /// Looks at the state of a port; says whether the threads must hear of it. `all`: also where
    /// the kernel tells of what changes.
    fn look_after(&self, number: usize, notices: &[Notice], all: bool) -> bool {
        let mut places = lock(&self.places);
        let Some(Some(place)) = places.get_mut(number) else { return false };
        let Some(port) = &mut place.port else {
            let soon = if notices.contains(&Notice::LinksChanged) {
                TRY_AGAIN - TRY_SOON
            } else {
                Duration::ZERO
            };
            if place.next_try > Instant::now() + soon {
                return false;
            }
            let shared = place.shared.clone();
            drop(places);
            return self.reopen(number, &shared);
        };
        if !all && place.kernel_notifies {
            return false;
        }
        // What is said of an earlier opening is old.
        let is_broken = notices.contains(&Notice::Broken {
            port: place.shared.number,
            opening: place.shared.opening(),
        });
        let before = place.state;
        place.state = port.state();
        if place.state.link == LinkState::Gone || is_broken && place.state.link != LinkState::Down {
            place.next_try = Instant::now();
            tracing::warn!(port = %place.shared.name, "the port is gone: it is tried again until it is back");
            let gone = place.take_port("the interface is gone");
            // Without the lock: threads may be slow to let go, and ports to close, and reports
            // should not wait for them.
            drop(places);
            self.disconnect(number as u16);
            self.forget(number as u16);
            drop(gone);
            return true;
        }
        if before.link != place.state.link {
            tracing::info!(port = %place.shared.name, state = link_name(place.state.link), "the link changed");
            if place.state.link == LinkState::Down {
                // Who was there may be reached by another port now.
                self.forget(place.shared.number);
            }
        }
        let changed = place.shared.set_mtu(place.state.mtu);
        if changed {
            tracing::info!(port = %place.shared.name, mtu = place.state.mtu, "the MTU changed");
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use superpacket_port::LinkState;

    use super::super::tests::settings;
    use super::super::{Bridge, Place};
    use super::*;

    #[test]
    fn reports_do_not_wait_for_a_port_that_takes_long_to_open() {
        // A pipe into which nothing is written: its first frame is waited for, for half a second.
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
            .expect("a pipe");
        let bridge = Bridge::start(settings(&["memory:slow", "memory:other"]))
            .expect("no privilege is needed");
        // A machine that is busy may take longer than that to ask: then once more.
        let is_answered_meanwhile = || {
            {
                let mut places = lock(&bridge.inner.places);
                let place = places[0].as_mut().expect("is there");
                let spec = format!("pcap:{}", path.display()).parse().expect("a port string");
                place.shared.change(|settings| settings.port = spec);
                (place.port, place.state.link, place.next_try) =
                    (None, LinkState::Gone, Instant::now());
            }
            // It can be written to once the supervisor has it open to be read.
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
            let mut places = lock(&bridge.inner.places);
            let is_open = places[0].as_ref().expect("is there").port.is_some();
            assert_eq!(places.iter_mut().flatten().map(Place::stats).count(), 2);
            drop((places, writer));
            !is_open
        };
        assert!((0..5).any(|_| is_answered_meanwhile()), "who asks need not wait for the port");
    }

    #[test]
    fn what_is_said_to_a_thread_that_is_held_up_has_its_bounds() {
        let bridge =
            Bridge::start(settings(&["memory:many-notices"])).expect("no privilege is needed");
        let alone = lock(&bridge.inner.changes);
        // The supervisor has looked once more, and waits.
        std::thread::sleep(2 * LOOK);
        let notices = &bridge.inner.common.notices;
        let said = (0..10 * NOTICES)
            .filter(|_| notices.try_send(Notice::Broken { port: 0, opening: 7 }).is_ok())
            .count();
        assert_eq!((said, notices.len()), (NOTICES, NOTICES));
        drop(alone);
        // It hears that the bridge ends all the same.
        drop(bridge);
    }

    #[test]
    fn no_worker_is_started_while_the_bridge_stops() {
        let bridge =
            Bridge::start(settings(&["memory:a", "memory:b"])).expect("no privilege is needed");
        let inner = bridge.inner.clone();
        // The supervisor finds out that the bridge is not to stop, and then waits here.
        let alone = lock(&inner.changes);
        std::thread::sleep(2 * LOOK);
        let stopping = std::thread::spawn(|| drop(bridge));
        while !inner.stopping.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(200));
        // Now it sees what a new worker is needed for.
        let cpu = lock(&inner.workers).usable().first().expect("this thread is on one");
        let mask = [cpu].into_iter().collect::<superpacket_steer::CpuMask>();
        lock(&inner.places).iter().flatten().for_each(|place| {
            place.shared.change_steering(|steering| steering.rps_cpus.set(None, mask.clone()))
        });
        lock(&inner.workers).ask_for_more();
        drop(alone);
        stopping.join().expect("no panic");
        assert_eq!(lock(&inner.workers).all().count(), 0, "it would never end");
    }
}
