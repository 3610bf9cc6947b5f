//! What the threads that copy packets and the one that writes them share, and all monitors of a
//! bridge.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rtrb::{Consumer, Producer, RingBuffer};
use superpacket::packet::Layer;
use superpacket_captures::file::{Interface, LinkType, TimeResolution};

use super::{MAX_MONITORS, MonitorSettings};
use crate::count::Count;
use crate::error::BridgeError;
use crate::handover::Doorbell;
use crate::runtime::SharedPort;

/// Memory of the rings of a monitor, in bytes; and the least and the most of one, each of which is
/// a thread's. Memory that no copy has lain in costs nothing.
const RINGS: usize = 16 << 20;
const LEAST: usize = 1 << 20;
const MOST: usize = 8 << 20;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One monitor, as all threads see it.
#[derive(Debug)]
pub(crate) struct Feed {
    pub(super) settings: MonitorSettings,
    /// Of the ports that were asked for, those that are still in the bridge.
    left: Mutex<BTreeSet<String>>,
    interfaces: Mutex<Vec<FeedInterface>>,
    /// Rings that the writing thread has not taken yet.
    arrived: Mutex<Vec<Consumer<u8>>>,
    /// How many there have been.
    copying: AtomicUsize,
    /// Of the writing thread.
    pub(super) bell: Doorbell,
    ended: AtomicBool,
}

/// A port as an interface of the stream.
#[derive(Debug)]
struct FeedInterface {
    name: String,
    layer: Layer,
    dropped: Arc<Count>,
}

/// A port that is monitored, for one thread.
#[derive(Debug)]
pub(super) struct Watched {
    /// Its number among the stream's interfaces.
    pub(super) interface: u32,
    /// Copies for which there was no room.
    pub(super) dropped: Arc<Count>,
}

impl Feed {
    /// Is this port monitored? Says how.
    pub(super) fn watch(&self, port: &SharedPort) -> Option<Watched> {
        let is_asked_for =
            self.settings.ports.is_empty() || self.settings.ports.contains(&port.name);
        is_asked_for.then(|| self.interface(&port.name, port.layer))
    }

    /// The port's interface: made when it is first asked for.
    fn interface(&self, name: &str, layer: Layer) -> Watched {
        let mut interfaces = lock(&self.interfaces);
        let known = interfaces.iter().position(|known| known.name == name && known.layer == layer);
        let number = known.unwrap_or_else(|| {
            interfaces.push(FeedInterface {
                name: name.to_owned(),
                layer,
                dropped: Arc::default(),
            });
            interfaces.len() - 1
        });
        Watched { interface: number as u32, dropped: interfaces[number].dropped.clone() }
    }

    /// The interfaces from number `known` on, as a capture has them.
    pub(super) fn interfaces(&self, known: usize) -> Vec<Interface> {
        let interfaces = lock(&self.interfaces);
        let described = interfaces.iter().skip(known).map(|interface| {
            let link_type = match interface.layer {
                Layer::Ethernet => LinkType::ETHERNET,
                Layer::Ip => LinkType::RAW,
            };
            Interface::new(link_type, TimeResolution::NANOSECONDS).named(&interface.name)
        });
        described.collect()
    }

    /// How many copies were dropped of each interface.
    pub(super) fn dropped(&self) -> Vec<u64> {
        lock(&self.interfaces).iter().map(|interface| interface.dropped.value()).collect()
    }

    /// The ports that have an interface.
    pub(super) fn names(&self) -> Vec<String> {
        lock(&self.interfaces).iter().map(|interface| interface.name.clone()).collect()
    }

    /// A ring for another thread: its end to write to.
    pub(super) fn ring(&self) -> Producer<u8> {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let (producer, consumer) = RingBuffer::new((RINGS / threads).clamp(LEAST, MOST));
        lock(&self.arrived).push(consumer);
        self.copying.fetch_add(1, Ordering::Release);
        self.bell.ring();
        producer
    }

    /// How many threads have begun to copy.
    pub(crate) fn copying(&self) -> usize {
        self.copying.load(Ordering::Acquire)
    }

    /// The rings that have been made since it was asked last.
    pub(super) fn take_rings(&self) -> Vec<Consumer<u8>> {
        std::mem::take(&mut lock(&self.arrived))
    }

    /// Has it been told to end?
    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Tells the writing thread to write what there is, and to end.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.bell.force();
    }
}

/// The monitors of a bridge.
#[derive(Debug)]
pub(crate) struct Monitors {
    running: Mutex<Vec<Running>>,
    /// The bridge's: grows when threads must look at what has changed.
    epoch: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Running {
    feed: Arc<Feed>,
    /// Who writes its stream.
    thread: Option<JoinHandle<()>>,
}

impl Monitors {
    /// None.
    pub(crate) fn new(epoch: Arc<AtomicU64>) -> Self {
        Monitors { running: Mutex::default(), epoch }
    }

    /// Begins a monitor of these ports, all that it asks for and that are in the bridge. The caller
    /// has the threads look at it.
    ///
    /// # Errors
    /// [`BridgeError::TooManyMonitors`]; [`BridgeError::System`] if there is no descriptor.
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
        // Now, so that a port over which nothing comes is in the stream too.
        ports.iter().for_each(|port| drop(feed.watch(port)));
        running.push(Running { feed: feed.clone(), thread: None });
        Ok(feed)
    }

    /// All that are copied for.
    pub(super) fn feeds(&self) -> Vec<Arc<Feed>> {
        lock(&self.running)
            .iter()
            .map(|running| &running.feed)
            .filter(|feed| !feed.is_ended())
            .cloned()
            .collect()
    }

    /// This thread writes the stream of a monitor.
    pub(super) fn is_written_by(&self, feed: &Arc<Feed>, thread: JoinHandle<()>) {
        if let Some(running) =
            lock(&self.running).iter_mut().find(|running| Arc::ptr_eq(&running.feed, feed))
        {
            running.thread = Some(thread);
        }
    }

    /// Threads look which of them have ended: nothing more is copied for these. Those that sleep
    /// let go of their memory when they wake.
    pub(super) fn refresh(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// This one is over, and makes room for another.
    pub(super) fn leave(&self, feed: &Arc<Feed>) {
        lock(&self.running).retain(|running| !Arc::ptr_eq(&running.feed, feed));
        self.refresh();
    }

    /// A port has left the bridge: monitors to which no other port was left end. All that it moved
    /// has been copied.
    pub(crate) fn port_removed(&self, name: &str) {
        for Running { feed, .. } in &*lock(&self.running) {
            let mut left = lock(&feed.left);
            if left.remove(name) && left.is_empty() {
                feed.end();
            }
        }
    }

    /// Ends all of them, and waits for their ends. No thread copies any more.
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
        // The same name may be that of a device that carries IP packets later.
        assert_eq!(all.interface("memory:a", Layer::Ip).interface, 2);
        let interfaces = all.interfaces(1);
        let described = interfaces
            .iter()
            .map(|interface| (interface.name().expect("has one"), interface.link_type));
        assert!(
            described
                .eq([("memory:b".into(), LinkType::ETHERNET), ("memory:a".into(), LinkType::RAW)])
        );
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
