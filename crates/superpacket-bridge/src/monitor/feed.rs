//! The running monitors of a bridge, and the state that the threads which copy packets share with
//! the threads that read the copies.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rtrb::{Consumer, Producer, RingBuffer};
use superpacket::packet::Layer;

use super::{MAX_MONITORS, MonitorSettings};
use crate::count::Count;
use crate::error::BridgeError;
use crate::handover::Doorbell;
use crate::runtime::SharedPort;

/// Memory in bytes for all rings of a monitor. Each thread that copies packets has a ring. Pages of
/// a ring that were never written use no memory.
const RING_MEMORY: usize = 16 << 20;
/// Minimum size in bytes of a ring.
const MIN_RING: usize = 1 << 20;
/// Maximum size in bytes of a ring.
const MAX_RING: usize = 8 << 20;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of a monitor that its threads share. Its descriptor becomes readable when the reader
/// should look for copies again, or for the end of the monitor.
#[derive(Debug)]
pub struct Feed {
    pub(super) settings: MonitorSettings,
    /// Names of the requested ports that the bridge still has.
    left: Mutex<BTreeSet<String>>,
    interfaces: Mutex<Vec<FeedInterface>>,
    /// New rings of packet copies that the reading thread has not taken over yet.
    arrived: Mutex<Vec<Consumer<u8>>>,
    /// Number of rings created so far, one for each thread that copies packets.
    copying: AtomicUsize,
    /// The bell that wakes the thread which reads the copies.
    pub(super) bell: Doorbell,
    ended: AtomicBool,
}

/// A monitored port, as an interface in the sense of a capture file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MonitorInterface {
    /// The port's name.
    pub port: String,
    /// The layer at which the copied packets start.
    pub layer: Layer,
}

/// A monitored port, with the number of copies that were dropped there.
#[derive(Debug)]
struct FeedInterface {
    described: MonitorInterface,
    dropped: Arc<Count>,
}

/// The state of a monitored port in one thread that copies packets.
#[derive(Debug)]
pub(super) struct MonitoredPort {
    /// Number of the port's interface in the capture.
    pub(super) interface: u32,
    /// Number of packets that were not copied because the ring was full.
    pub(super) dropped: Arc<Count>,
}

impl Feed {
    /// Returns the state with which a thread copies the port's packets, or `None` if the port is
    /// not monitored.
    pub(super) fn watch(&self, port: &SharedPort) -> Option<MonitoredPort> {
        let is_asked_for =
            self.settings.ports.is_empty() || self.settings.ports.contains(&port.name);
        is_asked_for.then(|| self.interface(&port.name, port.layer))
    }

    /// Returns the interface with this name and layer, which is created at the first call.
    fn interface(&self, name: &str, layer: Layer) -> MonitoredPort {
        let mut interfaces = lock(&self.interfaces);
        let described = MonitorInterface { port: name.to_owned(), layer };
        let known = interfaces.iter().position(|known| known.described == described);
        let number = known.unwrap_or_else(|| {
            interfaces.push(FeedInterface { described, dropped: Arc::default() });
            interfaces.len() - 1
        });
        MonitoredPort { interface: number as u32, dropped: interfaces[number].dropped.clone() }
    }

    /// Returns the interfaces whose number is `known` or higher. A port gets a number when it is
    /// first monitored, and keeps the number.
    pub fn interfaces(&self, known: usize) -> Vec<MonitorInterface> {
        let interfaces = lock(&self.interfaces);
        interfaces.iter().skip(known).map(|interface| interface.described.clone()).collect()
    }

    /// For each interface, returns the number of copies that were dropped because they were not
    /// read in time.
    pub fn dropped(&self) -> Vec<u64> {
        lock(&self.interfaces).iter().map(|interface| interface.dropped.value()).collect()
    }

    /// Returns the names of the ports that have an interface.
    pub fn ports(&self) -> Vec<String> {
        let interfaces = lock(&self.interfaces);
        interfaces.iter().map(|interface| interface.described.port.clone()).collect()
    }

    /// Creates a ring for a thread that copies packets, and returns the ring's producer for that
    /// thread.
    pub(super) fn ring(&self) -> Producer<u8> {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let (producer, consumer) =
            RingBuffer::new((RING_MEMORY / threads).clamp(MIN_RING, MAX_RING));
        lock(&self.arrived).push(consumer);
        self.copying.fetch_add(1, Ordering::Release);
        self.bell.ring();
        producer
    }

    /// Returns the number of threads that have begun to copy packets.
    pub(crate) fn copying(&self) -> usize {
        self.copying.load(Ordering::Acquire)
    }

    /// Returns the rings that were created since the last call.
    pub(super) fn take_rings(&self) -> Vec<Consumer<u8>> {
        std::mem::take(&mut lock(&self.arrived))
    }

    /// Returns whether the monitor was told to end.
    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Tells the reading thread to read the remaining copies and then end.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.bell.force();
    }

    /// Resets the event descriptor until there is something to read again. Only for threads that
    /// wait for the descriptor themselves; [`MonitorReader::wait`](super::MonitorReader::wait) does
    /// it too.
    pub fn silence(&self) {
        self.bell.silence();
    }
}

impl AsFd for Feed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// The running monitors of a bridge.
#[derive(Debug)]
pub(crate) struct Monitors {
    running: Mutex<Vec<RunningMonitor>>,
    /// The bridge's epoch. When it increases, the threads that move packets look for changes.
    epoch: Arc<AtomicU64>,
}

#[derive(Debug)]
struct RunningMonitor {
    feed: Arc<Feed>,
    /// The thread that reads the copies.
    thread: Option<JoinHandle<()>>,
}

impl Monitors {
    /// Creates an empty list of monitors.
    pub(crate) fn new(epoch: Arc<AtomicU64>) -> Self {
        Monitors { running: Mutex::default(), epoch }
    }

    /// Starts a monitor for those of `ports` that the settings name. The caller must make the
    /// threads reread the list of monitors.
    ///
    /// # Errors
    /// [`BridgeError::TooManyMonitors`] if there are already [`MAX_MONITORS`];
    /// [`BridgeError::System`] if there is no event descriptor.
    pub(crate) fn begin(
        &self,
        settings: MonitorSettings,
        ports: &[Arc<SharedPort>],
    ) -> Result<Arc<Feed>, BridgeError> {
        let mut running = lock(&self.running);
        if running.len() >= MAX_MONITORS {
            return Err(BridgeError::TooManyMonitors { limit: MAX_MONITORS });
        }
        let bell = Doorbell::new().map_err(|source| BridgeError::System {
            action: "making an event descriptor",
            source,
        })?;
        let left = Mutex::new(settings.ports.iter().cloned().collect());
        let (interfaces, arrived) = (Mutex::default(), Mutex::default());
        let (copying, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
        let feed = Arc::new(Feed { settings, left, interfaces, arrived, copying, bell, ended });
        // A port without traffic must have an interface too, so all interfaces are created now.
        ports.iter().for_each(|port| drop(feed.watch(port)));
        running.push(RunningMonitor { feed: feed.clone(), thread: None });
        Ok(feed)
    }

    /// Returns the monitors that were not yet told to end.
    pub(super) fn feeds(&self) -> Vec<Arc<Feed>> {
        lock(&self.running)
            .iter()
            .map(|running| &running.feed)
            .filter(|feed| !feed.is_ended())
            .cloned()
            .collect()
    }

    /// Returns whether a monitor copies packets of the port with this name.
    pub(crate) fn watches(&self, port: &str) -> bool {
        self.feeds().iter().any(|feed| {
            feed.settings.ports.is_empty() || feed.settings.ports.iter().any(|name| name == port)
        })
    }

    /// Stores the thread that reads the copies of `feed`.
    pub(super) fn set_thread(&self, feed: &Arc<Feed>, thread: JoinHandle<()>) {
        if let Some(running) =
            lock(&self.running).iter_mut().find(|running| Arc::ptr_eq(&running.feed, feed))
        {
            running.thread = Some(thread);
        }
    }

    /// Makes the threads that move packets stop copying for ended monitors. Sleeping threads free
    /// their rings when they wake.
    pub(super) fn refresh(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Removes a monitor, so that another can be started.
    pub(super) fn leave(&self, feed: &Arc<Feed>) {
        lock(&self.running).retain(|running| !Arc::ptr_eq(&running.feed, feed));
        self.refresh();
    }

    /// Tells those monitors to end that have no port left after port `name` was removed. All
    /// packets of that port must have been copied.
    pub(crate) fn port_removed(&self, name: &str) {
        for RunningMonitor { feed, .. } in &*lock(&self.running) {
            let mut left = lock(&feed.left);
            if left.remove(name) && left.is_empty() {
                feed.end();
            }
        }
    }

    /// Ends all monitors and waits for their threads. No thread may copy packets any more.
    pub(crate) fn end(&self) {
        let running = std::mem::take(&mut *lock(&self.running));
        running.iter().for_each(|running| running.feed.end());
        for thread in running.into_iter().filter_map(|running| running.thread) {
            if thread.join().is_err() {
                tracing::error!("the thread of a monitor had panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::tests::shared;
    use crate::settings::PortSettings;

    fn begun(monitors: &Monitors, ports: &[&str]) -> Arc<Feed> {
        let settings = MonitorSettings {
            ports: ports.iter().map(|port| (*port).to_owned()).collect(),
            ..MonitorSettings::default()
        };
        monitors.begin(settings, &[]).expect("a descriptor")
    }

    fn port(name: &str) -> SharedPort {
        shared(|settings| *settings = PortSettings::new(name.parse().expect("a port string")))
    }

    #[test]
    fn a_port_has_one_interface_however_often_it_is_opened() {
        let monitors = Monitors::new(Arc::default());
        let (all, some) = (begun(&monitors, &[]), begun(&monitors, &["memory:b"]));
        let [a, b] = ["memory:a", "memory:b"].map(port);
        let numbers = |feed: &Feed| {
            [&a, &b, &a].map(|port| feed.watch(port).map(|watched| watched.interface))
        };
        assert_eq!(
            (numbers(&all), numbers(&some)),
            ([Some(0), Some(1), Some(0)], [None, Some(0), None])
        );
        // A device that carries IP packets may have the same name later.
        assert_eq!(all.interface("memory:a", Layer::Ip).interface, 2);
        let interfaces = all.interfaces(1);
        let described =
            interfaces.iter().map(|interface| (interface.port.as_str(), interface.layer));
        assert!(described.eq([("memory:b", Layer::Ethernet), ("memory:a", Layer::Ip)]));
        all.watch(&a).expect("is monitored").dropped.add(3);
        all.watch(&a).expect("is monitored").dropped.add(4);
        assert_eq!(all.dropped(), [7, 0, 0]);
    }

    #[test]
    fn the_last_port_that_leaves_ends_a_monitor() {
        let monitors = Monitors::new(Arc::default());
        let feeds = [&[][..], &["memory:a"], &["memory:a", "memory:b"]]
            .map(|ports| begun(&monitors, ports));
        let ended = || feeds.each_ref().map(|feed| feed.is_ended());
        monitors.port_removed("memory:c");
        assert_eq!(ended(), [false; 3]);
        monitors.port_removed("memory:a");
        assert_eq!(ended(), [false, true, false]);
        monitors.port_removed("memory:b");
        assert_eq!(ended(), [false, true, true]);
        monitors.end();
        assert_eq!(ended(), [true; 3]);
    }
}
