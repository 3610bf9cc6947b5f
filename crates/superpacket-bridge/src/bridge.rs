//! The [`Bridge`]: opens and closes ports, changes settings, and runs the threads that move
//! packets.

mod apply;
mod change;
mod fdb;
mod join;
mod kernel_path;
mod kernel_rules;
mod mdb;
mod memory;
mod monitor;
mod opened;
mod reopen;
mod slot;
mod steered;
mod steering;
mod supervise;
mod trim;
mod vlan;

use std::error::Error;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use superpacket::aggregate::HashKey;
use superpacket_port::system::{LinkEvents, StoppableThread};
use superpacket_steer::FlowHashKey;

use crate::consumer::Factory;
use crate::error::BridgeError;
use crate::icmp;
use crate::kernel_path::{KernelAvailability, NoKernelPath, partners};
use crate::links;
use crate::monitor::Monitors;
use crate::poll_thread::{PollThread, SupervisorEvent, ThreadContext};
use crate::report::{PortFeatures, PortReport, PortStats};
use crate::runtime::SharedPort;
use crate::settings::{BridgeSettings, InPlace, PortSettings, UsableCpus};
use crate::steering::SteeringState;
use crate::switch::multicast::Snooping;
use crate::switch::table::AddressTable;

pub(crate) use fdb::check_layer;
use fdb::check_static;
use opened::OpenedPort;
use slot::PortSlot;
pub use steered::Steered;
use steering::{Workers, sock_flow_table};
use supervise::{LOOK, LOOK_ANYWAY, NOTICES};

/// A running bridge. When it is dropped, it ends like [`stop`](Bridge::stop).
#[derive(Debug)]
pub struct Bridge {
    inner: Arc<Inner>,
    supervisor: Option<JoinHandle<()>>,
    /// The thread that learns of interface changes from the kernel. `None` if the kernel cannot
    /// report them; the supervisor then checks the ports more often.
    links: Option<StoppableThread>,
}

#[derive(Debug)]
struct Inner {
    /// Settings of the whole bridge. The ports in them are those of the last start or `apply`.
    settings: Mutex<BridgeSettings>,
    /// What is known of each port, indexed by port number. `None` for the number of a removed port.
    slots: Mutex<Vec<Option<PortSlot>>>,
    poll_threads: Mutex<Vec<PollThread>>,
    workers: Mutex<Workers>,
    context: ThreadContext,
    table: Arc<AddressTable>,
    epoch: Arc<AtomicU64>,
    /// Whether the kernel also reports interfaces that have left the bridge's network namespace.
    hears_other_namespaces: bool,
    stopping: AtomicBool,
    /// Held while ports are opened, closed or reopened, so that a port number keeps its meaning
    /// between two steps. Taken before all other locks.
    changes: Mutex<()>,
}

/// Returns an error if two of the ports have the same name.
fn reject_duplicates(ports: &[PortSettings]) -> Result<(), BridgeError> {
    match ports.iter().enumerate().find(|(index, port)| {
        ports[..*index].iter().any(|earlier| earlier.port.name() == port.port.name())
    }) {
        None => Ok(()),
        Some((_, port)) => Err(BridgeError::DuplicatePort { port: port.port.name().into() }),
    }
}

/// Opens the ports of a bridge that is being started, and lets the kernel forward frames between
/// them as far as their settings allow it.
fn open_ports(
    settings: &BridgeSettings,
    table: &AddressTable,
    kernel: &OnceLock<KernelAvailability>,
) -> Result<Vec<OpenedPort>, BridgeError> {
    let create = || kernel_path::create(table, settings.table_size);
    let kernel = || match partners(&settings.ports) {
        0 => Err(NoKernelPath::Alone),
        _ => kernel.get_or_init(create).clone(),
    };
    let open = |port| OpenedPort::new(port, settings.shared_interfaces, kernel);
    settings.ports.iter().map(open).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Bridge {
    /// Opens the ports and starts to forward packets between them.
    ///
    /// # Errors
    /// [`BridgeError`] if a port cannot be opened, is named twice, or cannot be joined with the
    /// others.
    pub fn start(settings: BridgeSettings) -> Result<Bridge, BridgeError> {
        Bridge::start_with(settings, || Ok(()))
    }

    /// Starts like [`start`](Bridge::start), and calls `opened` once the ports are open and before
    /// any thread of the bridge starts. If `opened` drops privileges of the calling thread, the
    /// bridge's threads do not have them either.
    ///
    /// # Errors
    /// Those of [`start`](Bridge::start), and [`BridgeError::Opened`] with the error of `opened`.
    pub fn start_with(
        settings: BridgeSettings,
        opened: impl FnOnce() -> Result<(), Box<dyn Error + Send + Sync>>,
    ) -> Result<Bridge, BridgeError> {
        let bridge = Bridge::assemble(settings, opened, None)?;
        bridge.inner.warn_of_one_port();
        Ok(bridge)
    }

    fn assemble(
        settings: BridgeSettings,
        opened: impl FnOnce() -> Result<(), Box<dyn Error + Send + Sync>>,
        factory: Option<Factory>,
    ) -> Result<Bridge, BridgeError> {
        reject_duplicates(&settings.ports)?;
        check_static(&settings)?;
        let no_memory = |_| BridgeError::NoAddressTable { addresses: settings.table_size };
        let table = Arc::new(
            AddressTable::try_new(settings.table_size, settings.ageing_time).map_err(no_memory)?,
        );
        let kernel = Arc::new(OnceLock::new());
        let ports = open_ports(&settings, &table, &kernel)?;
        // Opened before privileges are dropped, and before the ports are first checked, so that no
        // change is missed.
        let events = LinkEvents::open();
        let unheard = |error: &std::io::Error| tracing::warn!(%error, "the kernel does not report interface changes: ports are checked at intervals");
        opened().map_err(BridgeError::Opened)?;
        let threads = match settings.threads {
            0 => std::thread::available_parallelism()
                .map_or(1, std::num::NonZero::get)
                .min(settings.ports.len().max(1)),
            threads => threads,
        };
        let epoch = Arc::new(AtomicU64::new(0));
        let (notices, inbox) = crossbeam_channel::bounded(NOTICES);
        // Random, so that a sender cannot choose the hash buckets of its flows.
        let random = || u128::from(RandomState::new().build_hasher().finish());
        let random_key = || random() << 64 | random();
        // A consumer may keep the state of a flow on its worker's CPU, so flows stay with workers.
        let in_place = if factory.is_some() { InPlace::NEVER } else { InPlace::Automatic };
        let sock_flows = sock_flow_table(&settings.steering)?;
        let steering = SteeringState::new(
            settings.steering.clone(),
            sock_flows,
            FlowHashKey::new(random_key()),
            in_place,
        );
        let context = ThreadContext {
            table: table.clone(),
            answers: Arc::new(icmp::rate_limit()),
            epoch: epoch.clone(),
            notices,
            busy_poll: settings.busy_poll,
            key: HashKey::new(random_key()),
            steering: Arc::new(steering),
            kernel,
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
                    context.clone(),
                )
            })
            .collect::<Result<_, _>>()
            .map_err(|source| BridgeError::System { action: "starting a thread", source })?;
        let inner = Arc::new(Inner {
            settings: Mutex::new(BridgeSettings { ports: Vec::new(), ..settings.clone() }),
            slots: Mutex::new(Vec::new()),
            poll_threads: Mutex::new(poll_threads),
            workers: Mutex::new(Workers::new(UsableCpus::read())),
            context,
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
        // Threads that got their ports before workers existed must learn of the workers.
        inner.announce();
        let changed = inner.context.notices.clone();
        bridge.links = events
            .and_then(|events| {
                links::watch(events, move || _ = changed.try_send(SupervisorEvent::LinksChanged))
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

    /// Returns the settings that are requested at present, including those of the ports.
    pub fn settings(&self) -> BridgeSettings {
        let ports =
            lock(&self.inner.slots).iter().flatten().map(|slot| slot.shared.settings()).collect();
        BridgeSettings { ports, ..lock(&self.inner.settings).clone() }
    }

    /// Returns a report of each port: state, address, limits and settings.
    pub fn ports(&self) -> Vec<PortReport> {
        lock(&self.inner.slots)
            .iter()
            .flatten()
            .map(|slot| slot.report(&self.inner.table))
            .collect()
    }

    /// Returns the offloads of each port.
    pub fn features(&self) -> Vec<PortFeatures> {
        lock(&self.inner.slots).iter().flatten().map(PortSlot::features).collect()
    }

    /// Returns the counters of each port.
    pub fn stats(&self) -> Vec<PortStats> {
        lock(&self.inner.slots).iter_mut().flatten().map(PortSlot::stats).collect()
    }

    /// Opens another port, and adds it to the bridge.
    ///
    /// # Errors
    /// [`BridgeError`] if the port cannot be opened or joined, or if its name is in use. The bridge
    /// is then unchanged.
    pub fn add_port(&self, port: PortSettings) -> Result<PortReport, BridgeError> {
        let inner = &self.inner;
        let _alone = lock(&inner.changes);
        let mut settings = self.settings();
        settings.ports.push(port.clone());
        reject_duplicates(&settings.ports)?;
        check_static(&settings)?;
        inner.add(&port, settings.shared_interfaces)?;
        let name = port.port.name();
        // The port's mask may name CPUs on which no worker can be started.
        if let Err(error) = inner.reconcile_workers() {
            let number = self.with(name, |slot| slot.shared.number)?;
            inner.remove(number);
            inner.announce();
            return Err(error);
        }
        inner.announce();
        self.with(name, |slot| slot.report(&inner.table))
    }

    /// Closes a port and removes it from the bridge; the other ports go on. Returns the port's last
    /// report.
    ///
    /// # Errors
    /// [`BridgeError::NoSuchPort`].
    pub fn remove_port(&self, port: &str) -> Result<PortReport, BridgeError> {
        let inner = &self.inner;
        let _alone = lock(&inner.changes);
        let (number, report) =
            self.with(port, |slot| (slot.shared.number, slot.report(&inner.table)))?;
        inner.remove(number);
        inner.warn_of_one_port();
        let reconciled = inner.reconcile_workers();
        inner.announce();
        reconciled.map(|()| report)
    }

    /// Sends the packets that are held, closes the ports, and ends all threads.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.inner.stopping.store(true, Ordering::Release);
        self.links = None;
        // The supervisor ends first, because it opens ports and starts workers.
        if let Some(supervisor) = self.supervisor.take() {
            // If the channel is full, the events in it wake the supervisor as well.
            let _ = self.inner.context.notices.try_send(SupervisorEvent::Stopping);
            if supervisor.join().is_err() {
                tracing::error!("the supervisor thread had panicked");
            }
        }
        // Then the receiving threads; the packets that they hand over are still processed.
        lock(&self.inner.poll_threads).drain(..).for_each(|mut thread| thread.stop());
        lock(&self.inner.workers).stop();
        // The packets that the threads moved last are still copied to monitors.
        self.inner.context.monitors.end();
        let slots = std::mem::take(&mut *lock(&self.inner.slots));
        drop(slots);
    }

    fn with<R>(&self, port: &str, look: impl FnOnce(&PortSlot) -> R) -> Result<R, BridgeError> {
        let slots = lock(&self.inner.slots);
        match slots.iter().flatten().find(|slot| slot.shared.name == port) {
            Some(slot) => Ok(look(slot)),
            None => {
                let known = slots.iter().flatten().map(|slot| slot.shared.name.clone()).collect();
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
    /// Makes all threads read the settings and the list of workers again.
    fn announce(&self) {
        for slot in lock(&self.slots).iter().flatten() {
            self.table.set_limit(slot.shared.number, slot.shared.settings().limits.address_limit);
        }
        self.reconcile_kernel_path();
        self.epoch.fetch_add(1, Ordering::Release);
        lock(&self.poll_threads).iter().for_each(PollThread::wake);
        lock(&self.workers).all().for_each(PollThread::wake);
    }

    /// Writes a port's static entries into the address table.
    fn set_static(&self, shared: &SharedPort) {
        self.table.set_static(shared.number, &shared.settings().static_entries);
    }

    /// Returns the name of the port with this number; `None` if there is none.
    fn name(&self, number: u16) -> Option<String> {
        Some(lock(&self.slots).get(usize::from(number))?.as_ref()?.shared.name.clone())
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
        // A memory link is up only while both ends exist.
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
        // The removed port's number is given to the next port.
        bridge.add_port(new("memory:next")).expect("it can be opened");
        assert_eq!(names(), ["memory:stays", "memory:next"]);
    }
}
