//! The bridge as its user holds it: ports come and go, settings change, and the threads that move
//! packets hear of it.

mod change;
mod fdb;
mod mdb;
mod monitor;
mod reopen;
mod steered;
mod steering;
mod tidy;
mod vlan;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use superpacket::aggregate::HashKey;
use superpacket::packet::Layer;
use superpacket_features::Feature;
use superpacket_io::port::{LinkState, Port, PortCounters, PortError, PortKind, PortSpec, PortState, check, open};
use superpacket_io::system::{LinkEvents, RouteSocket, give_back_freed_memory};
use superpacket_steer::FlowHashKey;

use crate::claim::{Claim, interface_of};
use crate::consumer::Factory;
use crate::error::BridgeError;
use crate::icmp;
use crate::links;
use crate::monitor::Monitors;
use crate::multicast::Snooping;
use crate::poll_thread::{Common, Notice, Order, PollThread};
use crate::report::{PortFeatures, PortReport, PortStats};
use crate::runtime::Shared;
use crate::settings::{BridgeSettings, Forwarding, InPlace, Limits, PortSettings, TooBig};
use crate::steering::{State, UsableCpus};
use crate::stoppable::Stoppable;
use crate::table::{MAX_PORTS, Table};

pub(crate) use fdb::check_layer;
use fdb::check_static;
use reopen::{Closed, device_of};
pub use steered::Steered;
use steering::{Workers, sock_flow_table};
use tidy::Tidy;

/// How often the state of ports is looked at of whose changes the kernel does not tell.
const LOOK: Duration = Duration::from_millis(250);

/// How often that of the others is, although the kernel tells what changes: what it told may have
/// been lost.
const LOOK_ANYWAY: Duration = Duration::from_secs(2);

/// How long after a try to open a port again the next one is made.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// How long at least, where the kernel tells of a change.
const TRY_SOON: Duration = Duration::from_millis(50);

/// The most notices that wait for the thread that looks after the ports: what finds no room is said
/// again, or seen at the next look.
const NOTICES: usize = 1024;

/// How long a thread may take to let go of a port.
const LET_GO: Duration = Duration::from_secs(2);

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
    stopping: AtomicBool,
    /// Held by who opens, closes and reopens ports: a number must not change hands between two
    /// steps of another's. Taken before all other locks.
    changes: Mutex<()>,
}

/// A port of the bridge, open or waiting to be.
#[derive(Debug)]
struct Place {
    shared: Arc<Shared>,
    port: Option<Box<dyn Port>>,
    /// That its interface is this bridge's, whether it is there or not.
    claim: Option<Claim>,
    state: PortState,
    error: Option<String>,
    hardware_address: Option<[u8; 6]>,
    queues: usize,
    reopened: u64,
    /// The kernel tells what changes.
    is_told: bool,
    /// What earlier openings counted, all queues together and by queue.
    before: PortCounters,
    queue_drops_before: Vec<u64>,
    /// When it is tried again.
    next_try: Instant,
}

/// A port that has been opened, and is not in the bridge yet.
#[derive(Debug)]
struct Opened {
    port: Box<dyn Port>,
    claim: Option<Claim>,
}

impl Opened {
    /// Opens a port, whose interface no other bridge has, or may have too.
    fn new(spec: &PortSpec, shared_interfaces: bool) -> Result<Self, BridgeError> {
        let claim = claim(spec, shared_interfaces)?;
        Ok(Opened { port: open(spec)?, claim })
    }
}

/// Claims the interface of a port, if it has one that no other bridge has.
fn claim(spec: &PortSpec, shared_interfaces: bool) -> Result<Option<Claim>, BridgeError> {
    match Claim::of(spec) {
        Err(error @ BridgeError::Taken { .. }) if shared_interfaces => {
            tracing::warn!(port = spec.name(), %error, "two bridges have the same interface");
            Ok(None)
        }
        claim => claim,
    }
}

/// Says that the machine itself answers at an interface, too.
fn warn_of_addresses(port: &PortSpec) {
    let Some(interface) = interface_of(port) else { return };
    match RouteSocket::open().and_then(|mut socket| socket.addresses(interface)) {
        Ok(addresses) if addresses.is_empty() => {}
        Ok(addresses) => {
            let addresses = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            tracing::warn!(
                port = port.name(),
                addresses,
                "the interface has IP addresses: the machine itself answers there, beside the bridge"
            );
        }
        Err(error) => tracing::debug!(port = port.name(), %error, "the interface's addresses cannot be read"),
    }
}

/// Does the kernel tell of all that changes at a port? It does of interfaces in the bridge's own
/// network namespace, which a TAP or TUN device may have left.
fn is_told(port: &PortSpec) -> bool {
    match port.kind() {
        PortKind::Packet | PortKind::Xdp => true,
        _ => port.inner().is_some_and(is_told),
    }
}

/// Refuses a second port of the same name.
fn reject_duplicates(ports: &[PortSettings]) -> Result<(), BridgeError> {
    match ports.iter().enumerate().find(|(index, port)| ports[..*index].iter().any(|earlier| earlier.port.name() == port.port.name())) {
        None => Ok(()),
        Some((_, port)) => Err(BridgeError::DuplicatePort { port: port.port.name().into() }),
    }
}

/// The thread, of so many, that receives by a queue of the port with this number: ports one after
/// the other start at the next thread, so that each has about as many queues.
fn poll_thread_of(queue: usize, number: usize, poll_threads: usize) -> usize {
    (queue + number) % poll_threads.max(1)
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
        Bridge::assemble(settings, opened, None)
    }

    fn assemble(
        settings: BridgeSettings,
        opened: impl FnOnce() -> Result<(), crate::privileges::PrivilegeError>,
        factory: Option<Factory>,
    ) -> Result<Bridge, BridgeError> {
        reject_duplicates(&settings.ports)?;
        check_static(&settings)?;
        let ports = settings.ports.iter().map(|port| Opened::new(&port.port, settings.shared_interfaces)).collect::<Result<Vec<_>, _>>()?;
        // Before the rights are given up, and before the first look: no change is missed.
        let events = LinkEvents::open();
        let unheard = |error: &std::io::Error| tracing::warn!(%error, "the kernel does not tell of changes of interfaces");
        opened()?;
        let threads = match settings.threads {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(settings.ports.len().max(1)),
            threads => threads,
        };
        let table = Arc::new(Table::new(settings.table_size, settings.ageing_time));
        let epoch = Arc::new(AtomicU64::new(0));
        let (notices, inbox) = crossbeam_channel::bounded(NOTICES);
        // Random: who chooses the traffic must not choose the buckets.
        let random = || u128::from(RandomState::new().build_hasher().finish());
        let random_key = || random() << 64 | random();
        // What a consumer knows of a flow may be with its worker.
        let in_place = if factory.is_some() { InPlace::NEVER } else { InPlace::Automatic };
        let sock_flows = sock_flow_table(&settings.steering)?;
        let steering = State::new(settings.steering.clone(), sock_flows, FlowHashKey::new(random_key()), in_place);
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
            .map(|number| PollThread::start(format!("superpacket-{number}"), None, Arc::default(), common.clone()))
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
        bridge.links =
            events.and_then(|events| links::watch(events, move || _ = changed.try_send(Notice::LinksChanged))).inspect_err(unheard).ok();
        let look_anyway = if bridge.links.is_some() { LOOK_ANYWAY } else { LOOK };
        let supervise = move || inner.supervise(&inbox, look_anyway);
        let supervisor = std::thread::Builder::new().name("superpacket-ports".into()).spawn(supervise);
        bridge.supervisor = Some(supervisor.map_err(|source| BridgeError::System { action: "starting a thread", source })?);
        Ok(bridge)
    }

    /// What the bridge is asked now.
    pub fn settings(&self) -> BridgeSettings {
        let ports = lock(&self.inner.places).iter().flatten().map(|place| place.shared.settings()).collect();
        BridgeSettings { ports, ..lock(&self.inner.settings).clone() }
    }

    /// The ports at a glance.
    pub fn ports(&self) -> Vec<PortReport> {
        lock(&self.inner.places).iter().flatten().map(|place| place.report(&self.inner.table)).collect()
    }

    /// The ports' offloads.
    pub fn features(&self) -> Vec<PortFeatures> {
        lock(&self.inner.places).iter().flatten().map(|place| place.shared.features()).collect()
    }

    /// What the ports counted.
    pub fn stats(&self) -> Vec<PortStats> {
        lock(&self.inner.places).iter_mut().flatten().map(Place::stats).collect()
    }

    /// Switches an offload of a port. Whether it is in force then, and why not, is in the answer.
    ///
    /// # Errors
    /// [`BridgeError::NoSuchPort`]; [`BridgeError::Forwarded`] for LRO that is not forced.
    pub fn set_feature(&self, port: &str, feature: Feature, on: bool, force: bool) -> Result<PortFeatures, BridgeError> {
        self.change(port, |shared| {
            if feature == Feature::LargeReceiveOffload && on && !force {
                return Err(BridgeError::Forwarded { port: port.into() });
            }
            shared.change(|settings| {
                settings.features = settings.features.set(feature, on);
                if feature == Feature::LargeReceiveOffload {
                    settings.force_lro = on && force;
                }
            });
            Ok(())
        })?;
        self.with(port, |place| place.shared.features())
    }

    /// Sets a limit of a port, by a name of [`Limits::names`].
    ///
    /// # Errors
    /// [`BridgeError::NoSuchPort`]; [`BridgeError::Limit`] for a limit that is none or out of
    /// range.
    pub fn set_limit(&self, port: &str, name: &str, value: u64) -> Result<PortReport, BridgeError> {
        self.change(port, |shared| {
            let set = |limits: &mut Limits| limits.set(name, value).map_err(|problem| BridgeError::Limit { port: port.into(), problem });
            shared.change(|settings| set(&mut settings.limits))
        })?;
        self.with(port, |place| place.report(&self.inner.table))
    }

    /// Sets what becomes of packets that are too long for a port.
    ///
    /// # Errors
    /// [`BridgeError::NoSuchPort`].
    pub fn set_too_big(&self, port: &str, too_big: TooBig) -> Result<PortReport, BridgeError> {
        self.change(port, |shared| {
            shared.change(|settings| settings.too_big = too_big);
            Ok(())
        })?;
        self.with(port, |place| place.report(&self.inner.table))
    }

    /// Says how what a port receives is aggregated, by a name of
    /// [`PortSettings::AGGREGATION`].
    ///
    /// # Errors
    /// [`BridgeError::NoSuchPort`]; [`BridgeError::Limit`] for a name or a word that is none.
    pub fn set_aggregation(&self, port: &str, name: &str, word: &str) -> Result<PortReport, BridgeError> {
        self.change(port, |shared| {
            let set = shared.change(|settings| settings.set_aggregation(name, word));
            set.map_err(|problem| BridgeError::Limit { port: port.into(), problem })
        })?;
        self.with(port, |place| place.report(&self.inner.table))
    }

    /// Turns a switch of what passes between a port and the others, by a name of
    /// [`Forwarding::NAMES`].
    ///
    /// # Errors
    /// [`BridgeError::NoSuchPort`]; [`BridgeError::Limit`] for a name that is none.
    pub fn set_forwarding(&self, port: &str, name: &str, on: bool) -> Result<PortReport, BridgeError> {
        self.change(port, |shared| {
            let set = shared.change(|settings| settings.forwarding.set(name, on));
            set.map_err(|problem| BridgeError::Limit { port: port.into(), problem })
        })?;
        self.with(port, |place| place.report(&self.inner.table))
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
        let (number, report) = self.with(port, |place| (place.shared.number, place.report(&inner.table)))?;
        inner.remove(number);
        let reconciled = inner.reconcile_workers();
        inner.announce();
        reconciled.map(|()| report)
    }

    /// Makes the bridge be what `settings` say: ports that are new are opened, those that are not
    /// named any more are closed, and the others changed without a packet lost. A port whose name
    /// is there already and whose string is another one is closed and opened again: what it counted
    /// stays.
    ///
    /// # Errors
    /// [`BridgeError`]: a new port cannot be opened, or a setting changed that only a new start can
    /// change: then the bridge is as it was. Where a port cannot be joined with the others, or a
    /// device that a port had cannot be opened again with other options, all the rest is done; the
    /// latter is open as it was before ([`BridgeError::NotReopened`]).
    pub fn apply(&self, settings: BridgeSettings) -> Result<(), BridgeError> {
        let inner = &self.inner;
        {
            let current = lock(&inner.settings);
            let fixed = [
                (settings.threads != current.threads, "the number of threads"),
                (settings.table_size != current.table_size, "the size of the address table"),
                (settings.ageing_time != current.ageing_time, "the ageing time"),
                (settings.busy_poll != current.busy_poll, "busy polling"),
                (settings.vlan_filtering != current.vlan_filtering, "VLAN filtering"),
                (settings.vlan_protocol != current.vlan_protocol, "the protocol of VLAN tags"),
                (settings.multicast_snooping != current.multicast_snooping, "multicast snooping"),
            ];
            if let Some((_, setting)) = fixed.into_iter().find(|(changed, _)| *changed) {
                return Err(BridgeError::Fixed { setting });
            }
        }
        reject_duplicates(&settings.ports)?;
        check_static(&settings)?;
        let _alone = lock(&inner.changes);
        let sock_flows = inner.sock_flows_for(&settings.steering)?;
        let wanted = |name: &str| settings.ports.iter().any(|port| port.port.name() == name);
        let known: Vec<Arc<Shared>> = lock(&inner.places).iter().flatten().map(|place| place.shared.clone()).collect();
        let (kept, gone): (Vec<_>, Vec<_>) = known.into_iter().partition(|shared| wanted(&shared.name));
        let kept_as = |port: &PortSettings| kept.iter().find(|shared| shared.name == port.port.name());
        for port in &settings.ports {
            kept_as(port).map_or(Ok(()), |shared| check_layer(shared.layer, port))?;
        }
        let changes_string = |port: &PortSettings| kept_as(port).filter(|shared| shared.settings().port.string() != port.port.string());
        let changed: Vec<_> = settings.ports.iter().filter_map(|port| Some((changes_string(port)?, &port.port))).collect();
        // A device that is to be opened in another way must be closed before. A mistake in its
        // options is no reason to close it.
        for (_, spec) in &changed {
            check(spec).map_err(PortError::from)?;
        }
        let closing = gone.iter().chain(changed.iter().map(|(shared, _)| *shared)).map(|shared| shared.settings().port);
        let closing: Vec<PortSpec> = closing.collect();
        let mut opened = BTreeMap::new();
        for (index, port) in settings.ports.iter().enumerate() {
            let is_new = kept_as(port).is_none() || changes_string(port).is_some();
            if is_new && !closing.iter().any(|other| device_of(other) == device_of(&port.port)) {
                opened.insert(index, Opened::new(&port.port, settings.shared_interfaces)?);
            }
        }
        gone.iter().for_each(|shared| inner.remove(shared.number));
        let closed = |&(shared, spec): &(&Arc<Shared>, &PortSpec)| (shared.number, inner.close_to_reopen(shared, spec));
        let mut closed: BTreeMap<u16, Closed> = changed.iter().map(closed).collect();
        // One port that cannot be opened does not keep the others from what is asked of them.
        let (mut failed, mut refused) = (None, Vec::new());
        for (index, port) in settings.ports.iter().enumerate() {
            let done = match (kept_as(port), opened.remove(&index)) {
                (Some(shared), open) => {
                    if let Some(closed) = closed.remove(&shared.number)
                        && let Err(error) = inner.reopen_as(&closed, &port.port, open, settings.shared_interfaces)
                    {
                        refused.push((closed, &port.port, error));
                    }
                    // As it is open; all else as it is asked.
                    let wanted = PortSettings { port: shared.settings().port, ..port.clone() };
                    if shared.settings() != wanted {
                        shared.change(|settings| *settings = wanted);
                        inner.set_static(shared);
                        inner.forget_other_vlans(shared);
                    }
                    Ok(())
                }
                (None, Some(open)) => inner.join(port, open),
                (None, None) => inner.add(port, settings.shared_interfaces),
            };
            failed = failed.or(done.err());
        }
        // When all others have what they are to have: two ports may have asked for each other's.
        for (closed, spec, error) in refused {
            let error = inner.restore(&closed, spec, error);
            failed = failed.or(Some(error));
        }
        inner.put_steering(settings.steering.clone(), sock_flows);
        let reconciled = inner.reconcile_workers();
        inner.announce();
        {
            let mut current = lock(&inner.settings);
            (current.ports, current.shared_interfaces) = (settings.ports, settings.shared_interfaces);
        }
        failed.map_or(reconciled, Err)
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
                let known = places.iter().flatten().map(|place| place.shared.name.clone()).collect();
                Err(BridgeError::NoSuchPort { port: port.into(), known })
            }
        }
    }

    fn change(&self, port: &str, change: impl FnOnce(&Shared) -> Result<(), BridgeError>) -> Result<(), BridgeError> {
        self.with(port, |place| change(&place.shared))??;
        self.inner.announce();
        Ok(())
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

    /// Opens a new port, and joins it.
    fn add(&self, settings: &PortSettings, shared_interfaces: bool) -> Result<(), BridgeError> {
        self.join(settings, Opened::new(&settings.port, shared_interfaces)?)
    }

    /// Joins a port that is open.
    fn join(&self, settings: &PortSettings, opened: Opened) -> Result<(), BridgeError> {
        let Opened { mut port, claim } = opened;
        let name = settings.port.name();
        let number = {
            let places = lock(&self.places);
            if let Some(other) = places.iter().flatten().next()
                && other.shared.layer != port.layer()
            {
                let layer = if port.layer() == Layer::Ip { "IP" } else { "Ethernet" };
                return Err(BridgeError::Layer { port: name.into(), layer });
            }
            places.iter().position(Option::is_none).unwrap_or(places.len())
        };
        if number >= MAX_PORTS {
            return Err(BridgeError::TooManyPorts { limit: MAX_PORTS });
        }
        check_layer(port.layer(), settings)?;
        let state = port.state();
        let shared = Shared::new(number as u16, settings.clone(), port.capabilities(), port.layer(), state);
        let shared = Arc::new(shared.with_vlan_filtering(lock(&self.settings).filters_by()));
        self.table.set_limit(shared.number, settings.limits.address_limit);
        self.set_static(&shared);
        let queues = self.connect(&shared, port.as_mut()).inspect_err(|_| self.table.close(shared.number))?;
        let place = Place {
            hardware_address: port.hardware_address(),
            shared,
            port: Some(port),
            claim,
            state,
            error: None,
            queues,
            reopened: 0,
            is_told: is_told(&settings.port),
            before: PortCounters::default(),
            queue_drops_before: Vec::new(),
            next_try: Instant::now(),
        };
        let string = settings.port.is_named().then(|| settings.port.string());
        tracing::info!(port = name, string, mtu = state.mtu, queues, "port opened");
        warn_of_addresses(&settings.port);
        // It is still free: who opens and closes ports holds `changes`.
        let mut places = lock(&self.places);
        if number == places.len() {
            places.push(Some(place));
        } else {
            places[number] = Some(place);
        }
        Ok(())
    }

    /// Gives each thread its share of a port; says how many receive queues that were.
    fn connect(&self, shared: &Arc<Shared>, port: &mut dyn Port) -> Result<usize, PortError> {
        let poll_threads = lock(&self.poll_threads);
        let workers = lock(&self.workers);
        let mut transmitters = Vec::with_capacity(poll_threads.len());
        for _ in 0..poll_threads.len() + workers.all().count() {
            transmitters.push(port.transmitter()?);
        }
        let mut shares: Vec<Vec<_>> = poll_threads.iter().map(|_| Vec::new()).collect();
        let receivers = port.receivers();
        let queues = receivers.len();
        for (queue, receive) in receivers.into_iter().enumerate() {
            // Without threads the bridge is about to end.
            if let Some(share) = shares.get_mut(poll_thread_of(queue, usize::from(shared.number), poll_threads.len())) {
                share.push((queue as u16, receive));
            }
        }
        // Before the receiving threads: what they receive must find the way out.
        for (worker, transmit) in workers.all().zip(transmitters.drain(poll_threads.len()..)) {
            worker.order(Order::Open { shared: shared.clone(), receivers: Vec::new(), transmit });
        }
        for ((thread, receivers), transmit) in poll_threads.iter().zip(shares).zip(transmitters) {
            thread.order(Order::Open { shared: shared.clone(), receivers, transmit });
        }
        Ok(queues)
    }

    /// Takes a port from all threads, and waits until they have let go of it.
    fn disconnect(&self, number: u16) {
        let close = |tell: &dyn Fn(&Sender<()>)| {
            let (done, wait) = crossbeam_channel::bounded::<()>(0);
            tell(&done);
            drop(done);
            // Ends when the last sender is dropped.
            if wait.recv_timeout(LET_GO) == Err(RecvTimeoutError::Timeout) {
                tracing::warn!(number, "a thread did not let go of a port in time");
            }
        };
        let order = |thread: &PollThread, done: &Sender<()>| thread.order(Order::Close { number, done: done.clone() });
        close(&|done| lock(&self.poll_threads).iter().for_each(|thread| order(thread, done)));
        // Then those who process what these have received.
        close(&|done| lock(&self.workers).all().for_each(|worker| order(worker, done)));
    }

    /// Forgets who was heard behind a port.
    fn forget(&self, number: u16) {
        self.table.forget(number);
        if let Some(snooping) = &self.common.snooping {
            snooping.forget(number);
        }
    }

    /// Closes a port for good.
    fn remove(&self, number: u16) {
        self.disconnect(number);
        self.forget(number);
        self.table.close(number);
        let place = lock(&self.places).get_mut(usize::from(number)).and_then(Option::take);
        if let Some(place) = place {
            self.common.monitors.port_removed(&place.shared.name);
            tracing::info!(port = %place.shared.name, "port closed");
        }
    }

    /// Looks after the ports until the bridge ends.
    fn supervise(&self, notices: &Receiver<Notice>, look_anyway: Duration) {
        let mut looked = Instant::now();
        let mut tidy = Tidy::new(self.epoch.load(Ordering::Acquire), Instant::now());
        while !self.stopping.load(Ordering::Acquire) {
            // Threads say it with every packet: all of it is taken at once.
            let told: Vec<_> = notices.recv_timeout(LOOK).into_iter().chain(notices.try_iter().take(NOTICES)).collect();
            if self.stopping.load(Ordering::Acquire) {
                return;
            }
            let _alone = lock(&self.changes);
            let mut changed = false;
            let all = !told.is_empty() || looked.elapsed() >= look_anyway;
            if all {
                looked = Instant::now();
            }
            let places = lock(&self.places).len();
            for number in 0..places {
                changed |= self.look_after(number, &told, all);
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
    fn look_after(&self, number: usize, told: &[Notice], all: bool) -> bool {
        let mut places = lock(&self.places);
        let Some(Some(place)) = places.get_mut(number) else { return false };
        let Some(port) = &mut place.port else {
            let soon = if told.contains(&Notice::LinksChanged) { TRY_AGAIN - TRY_SOON } else { Duration::ZERO };
            if place.next_try > Instant::now() + soon {
                return false;
            }
            let shared = place.shared.clone();
            drop(places);
            return self.reopen(number, &shared);
        };
        if !all && place.is_told {
            return false;
        }
        // What is said of an earlier opening is old.
        let is_broken = told.contains(&Notice::Broken { port: place.shared.number, opening: place.shared.opening() });
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

impl Place {
    fn report(&self, table: &Table) -> PortReport {
        let settings = self.shared.settings();
        let limit = |name: &str| (name.to_owned(), settings.limits.value(name).unwrap_or_default());
        let too_big = TooBig::NAMES.iter().find(|(_, what)| *what == settings.too_big).map_or("", |(name, _)| name);
        PortReport {
            port: self.shared.name.clone(),
            string: settings.port.string().to_owned(),
            state: link_name(self.state.link).to_owned(),
            error: self.error.clone(),
            mtu: self.shared.mtu(),
            hardware_address: self.hardware_address.map(|address| address.map(|byte| format!("{byte:02x}")).join(":")),
            queues: self.queues,
            reopened: self.reopened,
            addresses: table.count(self.shared.number),
            limits: Limits::names().map(limit).collect::<BTreeMap<_, _>>(),
            too_big: too_big.to_owned(),
            aggregation: PortSettings::AGGREGATION
                .iter()
                .map(|name| ((*name).to_owned(), settings.aggregation(name).unwrap_or_default().to_owned()))
                .collect(),
            forwarding: Forwarding::NAMES
                .iter()
                .map(|name| ((*name).to_owned(), settings.forwarding.value(name).unwrap_or_default()))
                .collect(),
        }
    }

    /// Takes the port out of its place, where it is gone from now on, for this reason. What it
    /// counted stays.
    fn take_port(&mut self, why: &str) -> Option<Box<dyn Port>> {
        let mut port = self.port.take()?;
        self.before = add(self.before, port.counters());
        self.queue_drops_before = add_each(&self.queue_drops_before, port.queue_drops());
        self.state.link = LinkState::Gone;
        self.error = Some(why.to_owned());
        Some(port)
    }

    fn stats(&mut self) -> PortStats {
        let (own, queue_drops) = self.port.as_mut().map(|port| (port.counters(), port.queue_drops())).unwrap_or_default();
        let (own, queue_drops) = (add(self.before, own), add_each(&self.queue_drops_before, queue_drops));
        self.shared.counts.report(&self.shared.name).with(own, &queue_drops)
    }
}

const fn link_name(link: LinkState) -> &'static str {
    match link {
        LinkState::Up => "up",
        LinkState::Down => "down",
        LinkState::Gone => "gone",
    }
}

fn add(a: PortCounters, b: PortCounters) -> PortCounters {
    PortCounters {
        rx_dropped: a.rx_dropped + b.rx_dropped,
        rx_errors: a.rx_errors + b.rx_errors,
        tx_full: a.tx_full + b.tx_full,
        tx_refused: a.tx_refused + b.tx_refused,
    }
}

/// The sums of what the queues of two openings counted, of which one may have more queues.
fn add_each(before: &[u64], mut now: Vec<u64>) -> Vec<u64> {
    now.resize(now.len().max(before.len()), 0);
    now.iter_mut().zip(before).for_each(|(now, before)| *now += before);
    now
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(ports: &[&str]) -> BridgeSettings {
        let ports = ports.iter().map(|port| PortSettings::new(port.parse().expect("a port string"))).collect();
        BridgeSettings { ports, threads: 1, ..BridgeSettings::default() }
    }

    #[test]
    fn reports_do_not_wait_for_a_port_that_takes_long_to_open() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::from_raw_mode(0o600)).expect("a pipe");
        let bridge = Bridge::start(settings(&["memory:slow", "memory:other"])).expect("no privilege is needed");
        {
            let mut places = lock(&bridge.inner.places);
            let place = places[0].as_mut().expect("is there");
            // To record to a pipe waits for who reads it.
            let spec = format!("pcap:{}?mode=record", pipe.display()).parse().expect("a port string");
            place.shared.change(|settings| settings.port = spec);
            (place.port, place.state.link) = (None, LinkState::Gone);
        }
        // By then the supervisor has looked, and waits.
        std::thread::sleep(3 * LOOK);
        let inner = bridge.inner.clone();
        let (told, answer) = crossbeam_channel::bounded(1);
        let asking = std::thread::spawn(move || {
            let reports = lock(&inner.places).iter_mut().flatten().map(Place::stats).count();
            let _ = told.send(reports);
        });
        let answered = answer.recv_timeout(Duration::from_secs(1));
        // Lets the supervisor go on.
        drop(std::fs::File::open(&pipe).expect("a pipe"));
        asking.join().expect("no panic");
        assert_eq!(answered, Ok(2), "who asks need not wait for the port");
    }

    #[test]
    fn ports_come_and_go_while_the_bridge_runs() {
        let bridge = Bridge::start(settings(&["memory:stays"])).expect("no privilege is needed");
        let new = |port: &str| PortSettings::new(port.parse().expect("a port string"));
        let names = || bridge.ports().into_iter().map(|report| report.port).collect::<Vec<_>>();
        let report = bridge.add_port(new("memory:comes")).expect("it can be opened");
        assert_eq!((report.port.as_str(), names()), ("memory:comes", vec!["memory:stays".to_owned(), "memory:comes".to_owned()]));
        // Both are one end of a link: it is up when the other end is there.
        let mut host = superpacket_io::port::open(&"memory:comes".parse().expect("a port string")).expect("the other end");
        assert_eq!(host.state().link, LinkState::Up);
        let twice = bridge.add_port(new("memory:comes")).expect_err("is there");
        assert!(matches!(&twice, BridgeError::DuplicatePort { port } if port == "memory:comes"), "{twice}");
        let other = bridge.add_port(new("pcap:/nowhere/at/all.pcap")).expect_err("there is none");
        assert!(other.to_string().contains("/nowhere/at/all.pcap"), "{other}");
        assert_eq!(names().len(), 2, "as before");
        assert_eq!(bridge.remove_port("memory:comes").expect("is there").port, "memory:comes");
        assert_eq!((names(), host.state().link), (vec!["memory:stays".to_owned()], LinkState::Down));
        let gone = bridge.remove_port("memory:comes").expect_err("is gone");
        assert!(gone.to_string().contains("there are memory:stays"), "{gone}");
        // Its number is free for the next one.
        bridge.add_port(new("memory:next")).expect("it can be opened");
        assert_eq!(names(), ["memory:stays", "memory:next"]);
    }

    #[test]
    fn what_is_said_to_a_thread_that_is_held_up_has_its_bounds() {
        let bridge = Bridge::start(settings(&["memory:many-notices"])).expect("no privilege is needed");
        let alone = lock(&bridge.inner.changes);
        // The supervisor has looked once more, and waits.
        std::thread::sleep(2 * LOOK);
        let notices = &bridge.inner.common.notices;
        let said = (0..10 * NOTICES).filter(|_| notices.try_send(Notice::Broken { port: 0, opening: 7 }).is_ok()).count();
        assert_eq!((said, notices.len()), (NOTICES, NOTICES));
        drop(alone);
        // It hears that the bridge ends all the same.
        drop(bridge);
    }

    #[test]
    fn steering_that_cannot_be_leaves_the_bridge_as_it_was() {
        let bridge = Bridge::start(settings(&["memory:steered-a", "memory:steered-b"])).expect("no privilege is needed");
        let mut wrong = settings(&["memory:steered-a", "memory:steered-c"]);
        wrong.steering.sock_flow_entries = u32::MAX;
        let error = bridge.apply(wrong).expect_err("too many").to_string();
        assert!(error.contains("rps_sock_flow_entries"), "{error}");
        assert_eq!(bridge.ports().iter().map(|port| port.port.as_str()).collect::<Vec<_>>(), ["memory:steered-a", "memory:steered-b"]);
    }

    #[test]
    fn no_worker_is_started_while_the_bridge_stops() {
        let bridge = Bridge::start(settings(&["memory:a", "memory:b"])).expect("no privilege is needed");
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
        lock(&inner.places)
            .iter()
            .flatten()
            .for_each(|place| place.shared.change_steering(|steering| steering.rps_cpus.set(None, mask.clone())));
        lock(&inner.workers).ask_for_more();
        drop(alone);
        stopping.join().expect("no panic");
        assert_eq!(lock(&inner.workers).all().count(), 0, "it would never end");
    }

    #[test]
    fn a_port_that_cannot_be_opened_leaves_the_bridge_as_it_was() {
        let bridge = Bridge::start(settings(&["memory:kept", "memory:other"])).expect("no privilege is needed");
        let names = || bridge.ports().into_iter().map(|port| port.port).collect::<Vec<_>>();
        let mut wrong = settings(&["memory:kept", "packet:no-such-port"]);
        wrong.ports[0].too_big = TooBig::Icmp;
        let error = bridge.apply(wrong).expect_err("there is none");
        assert!(error.to_string().contains("no-such-port"), "{error}");
        assert_eq!(names(), ["memory:kept", "memory:other"]);
        assert_eq!(bridge.ports()[0].too_big, "drop");
        bridge.apply(settings(&["memory:kept", "memory:new"])).expect("all can be opened");
        assert_eq!(names(), ["memory:kept", "memory:new"]);
    }
}
