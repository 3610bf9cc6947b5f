//! Forwarding inside the kernel by eBPF programs: frames between two known stations pass from
//! interface to interface, and never reach this process.
//!
//! A [`KernelPath`] has the stations of a bridge, and each of its ports has two programs
//! (`program.rs`): a filter of the packet socket, which decides, and a TCX program, which
//! redirects. They are detached when the port is closed, or when the process ends in any way.
//!
//! # Order
//! A frame that the kernel forwards must not overtake earlier frames of its source that are still
//! in the socket's ring or in the bridge. So the filter counts the frames that the socket receives,
//! and notes the port's *epoch* for their source. The receiver ends the epoch whenever it has
//! [sent](KernelPathPort::sent) all frames that were counted. The kernel forwards frames of sources
//! whose last noted epoch has ended. Count and epoch are one number, which both sides change
//! atomically.

mod program;
mod shared;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::system::bpf::{
    AttachPoint, Attachment, Map, MapKind, MappedArray, Name, Program, ProgramKind, tcx_programs,
};
use program::{FilterMaps, Mark, filter, redirect};
use shared::{EPOCH_BITS, ForwardingCounts, PortState, Rules, StationState};

/// The name of the eBPF maps and programs, as `bpftool` shows it.
const NAME: Name = *b"superpacket\0\0\0\0\0";

/// Maximum number of ports of a kernel path.
const MAX_PORTS: u32 = 256;

/// Time after which the memory of a removed station may be reused. By then no CPU reads it for the
/// removed station any more.
const REUSE: Duration = Duration::from_millis(100);

/// What the kernel may do with the frames of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelPathRules {
    /// Whether the kernel may forward frames from and to the port.
    pub enabled: bool,
    /// Whether the port is isolated: it exchanges no frames with other isolated ports.
    pub isolated: bool,
    /// Whether the kernel may send super-packets to the port.
    pub super_packets: bool,
    /// Maximum length of an IP packet in bytes; 0 for no limit.
    pub mtu: u32,
}

/// The traffic of a port that the kernel forwarded by itself. A super-packet counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelPathCounts {
    /// Number of packets that the kernel forwarded from the port.
    pub rx_packets: u64,
    /// Number of bytes of the packets from the port.
    pub rx_bytes: u64,
    /// Number of packets that the kernel forwarded to the port.
    pub tx_packets: u64,
    /// Number of bytes of the packets to the port.
    pub tx_bytes: u64,
}

/// A station whose frames the kernel forwards, and the times since it last forwarded one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelPathStation {
    /// The station's key.
    pub key: u64,
    /// Time since the kernel last forwarded a frame from the station; `None` if it never did.
    pub seen: Option<Duration>,
    /// Time since the kernel last forwarded a frame to the station; `None` if it never did.
    pub used: Option<Duration>,
}

/// The stations and ports between which the kernel forwards frames by itself.
#[derive(Debug)]
pub struct KernelPath {
    stations: Map<u64, u32>,
    states: MappedArray<StationState>,
    ports: MappedArray<PortState>,
    counts: MappedArray<ForwardingCounts>,
    cpus: u32,
    mark: Mark,
    known: Mutex<Known>,
    free_ports: Mutex<BTreeSet<u32>>,
}

/// The stations in the eBPF map.
#[derive(Debug)]
struct Known {
    /// The index of each station's state, by the station's key.
    indices: BTreeMap<u64, u32>,
    free: Vec<u32>,
    /// Indices of removed stations, with the time of removal, in the order of removal.
    retired: Vec<(Duration, u32)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the time elapsed since a time that an eBPF program stored; `None` if none stored one.
fn since(now: Duration, time: &AtomicU64) -> Option<Duration> {
    match time.load(Ordering::Relaxed) {
        0 => None,
        time => Some(now.saturating_sub(Duration::from_nanos(time))),
    }
}

/// Returns the current time of the clock that the eBPF programs read.
fn now() -> Duration {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl KernelPath {
    /// Creates the eBPF maps for `stations` stations. `cpus` is the number of possible CPUs of the
    /// machine.
    ///
    /// # Errors
    /// The system call's error: `EPERM` without `CAP_BPF`.
    pub fn new(stations: u32, cpus: u32) -> io::Result<Self> {
        let random = || RandomState::new().build_hasher().finish() as u32;
        Ok(KernelPath {
            stations: Map::new(MapKind::Hash, stations, NAME)?,
            states: MappedArray::new(stations, NAME)?,
            ports: MappedArray::new(MAX_PORTS, NAME)?,
            counts: MappedArray::new(MAX_PORTS * cpus, NAME)?,
            cpus,
            // Random, so that no other content of a packet buffer is taken for a note.
            mark: [random(), random()],
            known: Mutex::new(Known {
                indices: BTreeMap::new(),
                free: (0..stations).rev().collect(),
                retired: Vec::new(),
            }),
            free_ports: Mutex::new((0..MAX_PORTS).collect()),
        })
    }

    /// Lets the kernel forward the frames of a station. `port` is called while no station can be
    /// [revoked](Self::revoke), and returns the index of the port that the station is behind, or
    /// `None` if the kernel may not forward its frames after all.
    ///
    /// # Errors
    /// The system call's error: `E2BIG` if there is no room.
    pub fn allow(&self, station: u64, port: impl FnOnce() -> Option<u32>) -> io::Result<bool> {
        let mut known = lock(&self.known);
        let index = match known.indices.get(&station) {
            Some(&index) => index,
            None => {
                let index = known.take_index(now()).ok_or(io::ErrorKind::StorageFull)?;
                let state = self.states.get(index).ok_or(io::ErrorKind::InvalidData)?;
                for time in [&state.seen, &state.used] {
                    time.store(0, Ordering::Relaxed);
                }
                if let Err(error) = self.stations.set(station, index) {
                    known.free.push(index);
                    return Err(error);
                }
                known.indices.insert(station, index);
                index
            }
        };
        let (Some(state), Some(port)) = (self.states.get(index), port()) else { return Ok(false) };
        let Some(shared) = self.ports.get(port) else { return Ok(false) };
        if state.port.load(Ordering::Relaxed) == port + 1 {
            return Ok(true);
        }
        // Frames of the station may have been received before the filter knew it.
        note_epoch(state, shared);
        state.port.store(port + 1, Ordering::SeqCst);
        Ok(true)
    }

    /// Makes the kernel deliver all further frames from and to a station to the ports' sockets,
    /// instead of forwarding them.
    pub fn revoke(&self, station: u64) {
        let known = lock(&self.known);
        let index = known.indices.get(&station).copied();
        if let Some(state) = index.and_then(|index| self.states.get(index)) {
            state.port.store(0, Ordering::SeqCst);
        }
    }

    /// Returns the time since the kernel last forwarded a frame from a station; `None` if it never
    /// did.
    pub fn seen(&self, station: u64) -> Option<Duration> {
        let index = lock(&self.known).indices.get(&station).copied()?;
        since(now(), &self.states.get(index)?.seen)
    }

    /// Calls `keep` for each station, and removes those for which it returns false.
    pub fn retain(&self, mut keep: impl FnMut(KernelPathStation) -> bool) {
        let now = now();
        let stations: Vec<_> =
            lock(&self.known).indices.iter().map(|(&key, &index)| (key, index)).collect();
        for (key, index) in stations {
            let Some(state) = self.states.get(index) else { continue };
            let (seen, used) = (since(now, &state.seen), since(now, &state.used));
            let station = KernelPathStation { key, seen, used };
            if !keep(station) {
                let mut known = lock(&self.known);
                state.port.store(0, Ordering::SeqCst);
                // A station that cannot be removed from the map keeps its state.
                if self.stations.remove(key).is_ok() {
                    known.indices.remove(&key);
                    known.retired.push((now, index));
                }
            }
        }
    }

    /// Calls `each` for the stations behind the port with this index.
    fn stations_of(&self, port: u32, known: &Known, each: impl FnMut(&StationState)) {
        let states = known.indices.values().filter_map(|&index| self.states.get(index));
        states.filter(|station| station.port.load(Ordering::SeqCst) == port + 1).for_each(each);
    }

    /// Loads a port's eBPF programs and attaches them.
    pub(crate) fn attach(
        self: &Arc<Self>,
        interface: u32,
        attach_filter: impl FnOnce(&OwnedFd) -> io::Result<u64>,
    ) -> io::Result<KernelPathPort> {
        if tcx_programs(interface)? != 0 {
            return Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                "another program is attached to the interface (TCX)",
            ));
        }
        let index = lock(&self.free_ports).pop_first().ok_or(io::ErrorKind::StorageFull)?;
        let index = PortIndex { path: self.clone(), index };
        let state = self.ports.get(index.index).ok_or(io::ErrorKind::InvalidData)?;
        state.rules.store(0, Ordering::SeqCst);
        state.interface.store(interface, Ordering::SeqCst);
        let maps = FilterMaps {
            stations: self.stations.number(),
            states: self.states.number(),
            ports: self.ports.number(),
            counts: self.counts.number(),
            cpus: self.cpus,
        };
        let load = |kind, instructions: &[_]| {
            let program =
                Program { kind, instructions, license: c"MIT", flags: 0, name: NAME, interface: 0 };
            program.load()
        };
        let redirect = load(ProgramKind::TrafficControl, &redirect(self.mark))?;
        let filter = load(ProgramKind::SocketFilter, &filter(&maps, index.index, self.mark))?;
        let attachment = Attachment::new(redirect, interface, AttachPoint::TcxIngress)?;
        let (before, counts) =
            (index.counts(), (state.received.load(Ordering::SeqCst) >> 32) as u32);
        let uncounted = attach_filter(&filter)?.wrapping_sub(u64::from(counts));
        Ok(KernelPathPort(Arc::new(AttachedPort {
            attachment,
            index,
            before,
            uncounted,
            ended: AtomicU32::new(counts),
        })))
    }
}

/// Records the port's current epoch in the state of a station, so that this epoch must end before
/// the kernel forwards frames of the station.
fn note_epoch(station: &StationState, port: &PortState) {
    loop {
        let epoch = port.received.load(Ordering::SeqCst) as u32;
        station.epoch.store(epoch, Ordering::SeqCst);
        // The filter may have noted a later epoch in between.
        if port.received.load(Ordering::SeqCst) as u32 == epoch {
            break;
        }
    }
}

impl Known {
    /// Returns the index of a free station state; `None` if all are in use.
    fn take_index(&mut self, now: Duration) -> Option<u32> {
        let reusable = self
            .retired
            .iter()
            .take_while(|(since, _)| now.saturating_sub(*since) >= REUSE)
            .count();
        self.free.extend(self.retired.drain(..reusable).map(|(_, index)| index));
        self.free.pop()
    }
}

/// The index of a port in the eBPF maps; dropping this value frees the index.
#[derive(Debug)]
struct PortIndex {
    path: Arc<KernelPath>,
    index: u32,
}

impl PortIndex {
    fn state(&self) -> Option<&PortState> {
        self.path.ports.get(self.index)
    }

    /// Returns the port's counters, summed over all CPUs.
    fn counts(&self) -> KernelPathCounts {
        let cpus = self.path.cpus;
        let each = (self.index * cpus..(self.index + 1) * cpus)
            .filter_map(|index| self.path.counts.get(index));
        each.fold(KernelPathCounts::default(), |sum, counts| KernelPathCounts {
            rx_packets: sum.rx_packets + counts.rx_packets.load(Ordering::Relaxed),
            rx_bytes: sum.rx_bytes + counts.rx_bytes.load(Ordering::Relaxed),
            tx_packets: sum.tx_packets + counts.tx_packets.load(Ordering::Relaxed),
            tx_bytes: sum.tx_bytes + counts.tx_bytes.load(Ordering::Relaxed),
        })
    }
}

impl Drop for PortIndex {
    fn drop(&mut self) {
        if let Some(state) = self.state() {
            state.rules.store(0, Ordering::SeqCst);
        }
        // The next port with this index has other stations.
        self.path.stations_of(self.index, &lock(&self.path.known), |station| {
            station.port.store(0, Ordering::SeqCst);
        });
        lock(&self.path.free_ports).insert(self.index);
    }
}

/// A port of a [`KernelPath`]. Its programs are detached when the last copy is dropped.
#[derive(Clone, Debug)]
pub struct KernelPathPort(Arc<AttachedPort>);

#[derive(Debug)]
struct AttachedPort {
    #[expect(dead_code, reason = "dropping it detaches the program")]
    attachment: Attachment,
    index: PortIndex,
    /// The values of the counters when the port was attached. They are not zero if an earlier port
    /// had the same index.
    before: KernelPathCounts,
    /// Number of frames that the socket had received or dropped before the filter program began to
    /// count them.
    uncounted: u64,
    /// The filter program's frame count at which the receiver last ended an epoch.
    ended: AtomicU32,
}

impl KernelPathPort {
    /// Returns the port's index in its kernel path.
    pub fn index(&self) -> u32 {
        self.0.index.index
    }

    /// Sets what the kernel may do with the port's frames.
    pub fn set(&self, rules: KernelPathRules) {
        let Some(state) = self.0.index.state() else { return };
        let max_frame = match rules.mtu {
            0 => u32::MAX,
            mtu => mtu.saturating_add(ETHERNET),
        };
        state.max_frame.store(max_frame, Ordering::SeqCst);
        if !rules.enabled {
            return state.rules.store(0, Ordering::SeqCst);
        }
        if state.rules.load(Ordering::SeqCst) == 0 {
            // The filter has not noted epochs. It does from now on.
            state.rules.store(Rules::NOTING, Ordering::SeqCst);
            let path = &self.0.index.path;
            path.stations_of(self.index(), &lock(&path.known), |station| {
                note_epoch(station, state);
            });
        }
        let bits = [(rules.isolated, Rules::ISOLATED), (rules.super_packets, Rules::SUPER_PACKETS)];
        let bits: u32 = bits.into_iter().filter(|(on, _)| *on).map(|(_, bit)| bit).sum();
        state.rules.store(Rules::NOTING | Rules::ENABLED | bits, Ordering::SeqCst);
    }

    /// Returns the traffic that the kernel forwarded since the port was attached.
    pub fn counts(&self) -> KernelPathCounts {
        let (before, now) = (self.0.before, self.0.index.counts());
        KernelPathCounts {
            rx_packets: now.rx_packets - before.rx_packets,
            rx_bytes: now.rx_bytes - before.rx_bytes,
            tx_packets: now.tx_packets - before.tx_packets,
            tx_bytes: now.tx_bytes - before.tx_bytes,
        }
    }

    /// Ends the epoch if the process has finished with every frame that the socket was given, and
    /// returns whether it has. `frames` is the number of frames that the socket dropped, or that
    /// were received and whose buffers were returned.
    pub(crate) fn sent(&self, frames: u64) -> bool {
        let Some(state) = self.0.index.state() else { return false };
        let count = frames.wrapping_sub(self.0.uncounted) as u32;
        let received = state.received.load(Ordering::SeqCst);
        if (received >> EPOCH_BITS) as u32 != count {
            return false;
        }
        if self.0.ended.load(Ordering::Relaxed) != count {
            let next =
                received & !u64::from(u32::MAX) | u64::from((received as u32).wrapping_add(1));
            if state
                .received
                .compare_exchange(received, next, Ordering::SeqCst, Ordering::SeqCst)
                .is_err()
            {
                return false;
            }
            self.0.ended.store(count, Ordering::Relaxed);
        }
        true
    }
}

/// Length of an Ethernet header in bytes.
const ETHERNET: u32 = 14;
