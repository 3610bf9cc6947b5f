//! The bridge as its user holds it: ports come and go, settings change, and the threads that move
//! packets hear of it.

mod apply;
mod change;
mod fdb;
mod join;
mod mdb;
mod memory;
mod monitor;
mod opened;
mod place;
mod reopen;
mod steered;
mod steering;
mod supervise;
mod tidy;
mod vlan;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use superpacket::aggregate::HashKey;
use superpacket_port::system::LinkEvents;
use superpacket_steer::FlowHashKey;

use crate::consumer::Factory;
use crate::error::BridgeError;
use crate::icmp;
use crate::links;
use crate::monitor::Monitors;
use crate::multicast::Snooping;
use crate::poll_thread::{Common, Notice, PollThread};
use crate::report::{PortFeatures, PortReport, PortStats};
use crate::runtime::Shared;
use crate::settings::{BridgeSettings, InPlace, PortSettings, UsableCpus};
use crate::steering::State;
use crate::stoppable::Stoppable;
use crate::table::Table;

pub(crate) use fdb::check_layer;
use fdb::check_static;
use opened::Opened;
use place::Place;
pub use steered::Steered;
use steering::{Workers, sock_flow_table};
use supervise::{LOOK, LOOK_ANYWAY, NOTICES};

/// A running bridge. Dropping it ends it.
#[derive(Debug)]
pub struct Bridge {
    inner: Arc<Inner>,
    supervisor: Option<JoinHandle<()>>,
    /// `None` where the kernel does not tell: ports are looked at all the time then.
    links: Option<Stoppable>,
}

#[derive(Debug)]
struct Inner {
    /// What holds for the whole bridge; the ports in it are as they were at the last start or
    /// `apply`.
    settings: Mutex<BridgeSettings>,
    /// By number; places of removed ports are free.
    places: Mutex<Vec<Option<Place>>>,
    poll_threads: Mutex<Vec<PollThread>>,
    workers: Mutex<Workers>,
    common: Common,
    table: Arc<Table>,
    epoch: Arc<AtomicU64>,
    /// The kernel tells of interfaces that have left the bridge's network namespace, too.
    hears_other_namespaces: bool,
    stopping: AtomicBool,
    /// Held by who opens, closes and reopens ports: a number must not change hands between two
    /// steps of another's. Taken before all other locks.
    changes: Mutex<()>,
}

/// Refuses a second port of the same name.
fn reject_duplicates(ports: &[PortSettings]) -> Result<(), BridgeError> {
    match ports.iter().enumerate().find(|(index, port)| {
        ports[..*index].iter().any(|earlier| earlier.port.name() == port.port.name())
    }) {
        None => Ok(()),
        Some((_, port)) => Err(BridgeError::DuplicatePort { port: port.port.name().into() }),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Bridge {
    /// Opens the ports and starts to forward.
    ///
    /// # Errors
    /// [`BridgeError`]: a port cannot be opened, is named twice, or cannot be joined with the
    /// others.
    pub fn start(settings: BridgeSettings) -> Result<Bridge, BridgeError> {
        Bridge::start_with(settings, || Ok(()))
    }

    /// As [`start`](Bridge::start), and calls `opened` when the ports are open and no thread of the
    /// bridge has started: what it gives up for the thread it runs on, users and capabilities, the
    /// bridge's threads do not have either.
    ///
    /// # Errors
    /// As [`start`](Bridge::start), and what `opened` says.
    pub fn start_with(
        settings: BridgeSettings,
        opened: impl FnOnce() -> Result<(), crate::privileges::PrivilegeError>,
    ) -> Result<Bridge, BridgeError> {
        let bridge = Bridge::assemble(settings, opened, None)?;
        bridge.inner.warn_of_one_port();
        Ok(bridge)
    }

    fn assemble(
        settings: BridgeSettings,
        opened: impl FnOnce() -> Result<(), crate::privileges::PrivilegeError>,
        factory: Option<Factory>,
    ) -> Result<Bridge, BridgeError> {
        reject_duplicates(&settings.ports)?;
        check_static(&settings)?;
        let no_memory = |_| BridgeError::NoAddressTable { addresses: settings.table_size };
        let table =
            Arc::new(Table::try_new(settings.table_size, settings.ageing_time).map_err(no_memory)?);
        let ports = settings
            .ports
            .iter()
            .map(|port| Opened::new(&port.port, settings.shared_interfaces))
            .collect::<Result<Vec<_>, _>>()?;
        // Before the rights are given up, and before the first look: no change is missed.
        let events = LinkEvents::open();
        let unheard = |error: &std::io::Error| tracing::warn!(%error, "the kernel does not tell of changes of interfaces");
        opened()?;
        let threads = match settings.threads {
            0 => std::thread::available_parallelism()
                .map_or(1, std::num::NonZero::get)
                .min(settings.ports.len().max(1)),
            threads => threads,
        };
        let epoch = Arc::new(AtomicU64::new(0));
        let (notices, inbox) = crossbeam_channel::bounded(NOTICES);
        // Random: who chooses the traffic must not choose the buckets.
        let random = || u128::from(RandomState::new().build_hasher().finish());
        let random_key = || random() << 64 | random();
        // What a consumer knows of a flow may be with its worker.
        let in_place = if factory.is_some() { InPlace::NEVER } else { InPlace::Automatic };
        let sock_flows = sock_flow_table(&settings.steering)?;
        let steering = State::new(
            settings.steering.clone(),
            sock_flows,
            FlowHashKey::new(random_key()),
            in_place,
        );
        let common = Common {
            table: table.clone(),
            answers: Arc::new(icmp::rate_limit()),
            epoch: epoch.clone(),
            notices,
            busy_poll: settings.busy_poll,
            key: HashKey::new(random_key()),
            steering: Arc::new(steering),
            monitors: Arc::new(Monitors::new(epoch.clone())),
            snooping: settings.multicast_snooping.then(Arc::<Snooping>::default),
            vlan_protocol: settings.vlan_protocol,
            start: Instant::now(),
            factory,
        };
        let poll_threads = (0..threads)
            .map(|number| {
                PollThread::start(
                    format!("superpacket-{number}"),
                    None,
                    Arc::default(),
                    common.clone(),
                )
            })
            .collect::<Result<_, _>>()
            .map_err(|source| BridgeError::System { action: "starting a thread", source })?;
        let inner = Arc::new(Inner {
            settings: Mutex::new(BridgeSettings { ports: Vec::new(), ..settings.clone() }),
            places: Mutex::new(Vec::new()),
            poll_threads: Mutex::new(poll_threads),
            workers: Mutex::new(Workers::new(UsableCpus::read())),
            common,
            table,
            epoch,
            hears_other_namespaces: events.as_ref().is_ok_and(LinkEvents::hears_other_namespaces),
            stopping: AtomicBool::new(false),
            changes: Mutex::new(()),
        });
        let mut bridge = Bridge { inner: inner.clone(), supervisor: None, links: None };
        for (settings, port) in settings.ports.iter().zip(ports) {
            inner.join(settings, port)?;
        }
        lock(&inner.settings).ports = settings.ports;
        inner.reconcile_workers()?;
        // Threads that had their ports before there were workers must hear of these.
        inner.announce();
        let changed = inner.common.notices.clone();
        bridge.links = events
            .and_then(|events| {
                links::watch(events, move || _ = changed.try_send(Notice::LinksChanged))
            })
            .inspect_err(unheard)
            .ok();
        let look_anyway = if bridge.links.is_some() { LOOK_ANYWAY } else { LOOK };
        let supervise = move || inner.supervise(&inbox, look_anyway);
        let supervisor =
            std::thread::Builder::new().name("superpacket-ports".into()).spawn(supervise);
        bridge.supervisor = Some(
            supervisor
                .map_err(|source| BridgeError::System { action: "starting a thread", source })?,
        );
        Ok(bridge)
    }

    /// What the bridge is asked now.
    pub fn settings(&self) -> BridgeSettings {
        let ports = lock(&self.inner.places)
            .iter()
            .flatten()
            .map(|place| place.shared.settings())
            .collect();
        BridgeSettings { ports, ..lock(&self.inner.settings).clone() }
    }

    /// The ports at a glance.
    pub fn ports(&self) -> Vec<PortReport> {
        lock(&self.inner.places)
            .iter()
            .flatten()
            .map(|place| place.report(&self.inner.table))
            .collect()
    }

    /// The ports' offloads.
    pub fn features(&self) -> Vec<PortFeatures> {
        lock(&self.inner.places).iter().flatten().map(|place| place.shared.features()).collect()
    }

    /// What the ports counted.
    pub fn stats(&self) -> Vec<PortStats> {
        lock(&self.inner.places).iter_mut().flatten().map(Place::stats).collect()
    }

    /// Opens another port, and joins it with the others.
    ///
    /// # Errors
    /// [`BridgeError`]: it cannot be opened, or joined with the others, or a port of this name is
    /// there. The bridge is as it was then.
    pub fn add_port(&self, port: PortSettings) -> Result<PortReport, BridgeError> {
        let inner = &self.inner;
        let _alone = lock(&inner.changes);
        let mut settings = self.settings();
        settings.ports.push(port.clone());
        reject_duplicates(&settings.ports)?;
        check_static(&settings)?;
        inner.add(&port, settings.shared_interfaces)?;
        let name = port.port.name();
        // A mask may need workers that there cannot be.
        if let Err(error) = inner.reconcile_workers() {
            let number = self.with(name, |place| place.shared.number)?;
            inner.remove(number);
            inner.announce();
            return Err(error);
        }
        inner.announce();
        self.with(name, |place| place.report(&inner.table))
    }

    /// Closes a port for good; the others go on. Returns what it was last.
    ///
    /// # Errors
    /// [`BridgeError::NoSuchPort`].
    pub fn remove_port(&self, port: &str) -> Result<PortReport, BridgeError> {
        let inner = &self.inner;
        let _alone = lock(&inner.changes);
        let (number, report) =
            self.with(port, |place| (place.shared.number, place.report(&inner.table)))?;
        inner.remove(number);
        inner.warn_of_one_port();
        let reconciled = inner.reconcile_workers();
        inner.announce();
        reconciled.map(|()| report)
    }

    /// Sends what is held, closes the ports, and ends.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.inner.stopping.store(true, Ordering::Release);
        self.links = None;
        // The supervisor first: it opens ports and starts workers.
        if let Some(supervisor) = self.supervisor.take() {
            // Full, it wakes the supervisor as well.
            let _ = self.inner.common.notices.try_send(Notice::Stopping);
            if supervisor.join().is_err() {
                tracing::error!("the thread that looks after the ports had panicked");
            }
        }
        // Then those who receive: what they hand over is still processed.
        lock(&self.inner.poll_threads).drain(..).for_each(|mut thread| thread.stop());
        lock(&self.inner.workers).stop();
        // What they moved last is still copied.
        self.inner.common.monitors.end();
        let places = std::mem::take(&mut *lock(&self.inner.places));
        drop(places);
    }

    fn with<R>(&self, port: &str, look: impl FnOnce(&Place) -> R) -> Result<R, BridgeError> {
        let places = lock(&self.inner.places);
        match places.iter().flatten().find(|place| place.shared.name == port) {
            Some(place) => Ok(look(place)),
            None => {
                let known =
                    places.iter().flatten().map(|place| place.shared.name.clone()).collect();
                Err(BridgeError::NoSuchPort { port: port.into(), known })
            }
        }
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.end();
    }
}

impl Inner {
    /// Has all threads look at what has changed.
    fn announce(&self) {
        for place in lock(&self.places).iter().flatten() {
            self.table.set_limit(place.shared.number, place.shared.settings().limits.address_limit);
        }
        self.epoch.fetch_add(1, Ordering::Release);
        lock(&self.poll_threads).iter().for_each(PollThread::wake);
        lock(&self.workers).all().for_each(PollThread::wake);
    }

    /// Has the address table hold a port's static entries.
    fn set_static(&self, shared: &Shared) {
        self.table.set_static(shared.number, &shared.settings().static_entries);
    }

    /// The name of the port with this number.
    fn name(&self, number: u16) -> Option<String> {
        Some(lock(&self.places).get(usize::from(number))?.as_ref()?.shared.name.clone())
    }
}

#[cfg(test)]
mod tests {
    use superpacket_port::LinkState;

    use super::*;

    pub(super) fn settings(ports: &[&str]) -> BridgeSettings {
        let ports = ports
            .iter()
            .map(|port| PortSettings::new(port.parse().expect("a port string")))
            .collect();
        BridgeSettings { ports, threads: 1, ..BridgeSettings::default() }
    }

    #[test]
    fn ports_come_and_go_while_the_bridge_runs() {
        let bridge = Bridge::start(settings(&["memory:stays"])).expect("no privilege is needed");
        let new = |port: &str| PortSettings::new(port.parse().expect("a port string"));
        let names = || bridge.ports().into_iter().map(|report| report.port).collect::<Vec<_>>();
        let report = bridge.add_port(new("memory:comes")).expect("it can be opened");
        assert_eq!(
            (report.port.as_str(), names()),
            ("memory:comes", vec!["memory:stays".to_owned(), "memory:comes".to_owned()])
        );
        // Both are one end of a link: it is up when the other end is there.
        let mut host = superpacket_model::open(&"memory:comes".parse().expect("a port string"))
            .expect("the other end");
        assert_eq!(host.state().link, LinkState::Up);
        let twice = bridge.add_port(new("memory:comes")).expect_err("is there");
        assert!(
            matches!(&twice, BridgeError::DuplicatePort { port } if port == "memory:comes"),
            "{twice}"
        );
        let other = bridge.add_port(new("pcap:/nowhere/at/all.pcap")).expect_err("there is none");
        assert!(other.to_string().contains("/nowhere/at/all.pcap"), "{other}");
        assert_eq!(names().len(), 2, "as before");
        assert_eq!(bridge.remove_port("memory:comes").expect("is there").port, "memory:comes");
        assert_eq!(
            (names(), host.state().link),
            (vec!["memory:stays".to_owned()], LinkState::Down)
        );
        let gone = bridge.remove_port("memory:comes").expect_err("is gone");
        assert!(gone.to_string().contains("there are memory:stays"), "{gone}");
        // Its number is free for the next one.
        bridge.add_port(new("memory:next")).expect("it can be opened");
        assert_eq!(names(), ["memory:stays", "memory:next"]);
    }
}
