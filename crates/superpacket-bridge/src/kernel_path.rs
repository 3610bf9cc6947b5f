//! Decides which frames the kernel forwards by itself ([`superpacket_port::KernelPath`]) and which
//! the bridge forwards.
//!
//! The kernel forwards frames between two stations that the bridge knows, if both are behind ports
//! that [`refusal`] allows. All other frames come to the bridge: those to unknown, disputed, group
//! and broadcast addresses, those of sources that moved, and those that are too long.
//!
//! The bridge's address table decides where a station is. A packet that the bridge forwards makes
//! the kernel [learn](KernelForwarding::offer) its two stations. Each change in the table that
//! concerns a station takes it from the kernel at once.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use superpacket::aggregate::Delivery;
use superpacket_port::features::{Feature, FeatureSet};
use superpacket_port::{KernelPath, PortKind};

use crate::settings::{BridgeSettings, KernelPathMode, MAX_PORTS, PortLimits, PortSettings};
use crate::switch::frame::{AddressKey, Addresses, FrameDestination};
use crate::switch::rates::Rates;
use crate::switch::table::AddressTable;

/// Maximum number of stations between which the kernel forwards frames.
const MAX_STATIONS: usize = 16_384;

/// The reason why the kernel cannot forward a port's frames by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoKernelPath {
    /// The port's setting `kernel_path` is off.
    SwitchedOff,
    /// No other port could exchange frames with it in the kernel when the port was opened. BPF
    /// programs without effect would cost some percent of the port's throughput.
    Alone,
    /// Another reason, as text for the user.
    Other(String),
}

impl fmt::Display for NoKernelPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            NoKernelPath::SwitchedOff => "it is switched off",
            NoKernelPath::Alone => {
                "no other packet port was there when it was opened: set kernel_path to open it again"
            }
            NoKernelPath::Other(reason) => reason,
        })
    }
}

/// Returns whether the kind and settings of a port let the kernel forward its frames.
pub(crate) fn may_join(port: &PortSettings) -> bool {
    port.port.kind() == PortKind::Packet && port.kernel_path != KernelPathMode::Off
}

/// Returns, for each of these ports whose frames the kernel may forward, the number of other such
/// ports.
pub(crate) fn partners(ports: &[PortSettings]) -> usize {
    ports.iter().filter(|port| may_join(port)).count().saturating_sub(1)
}

/// The offloads that must be on for the kernel to forward a port's frames: with any of them off,
/// the bridge has work to do on the port's packets.
const PRESUMED: [Feature; 3] =
    [Feature::RxChecksumming, Feature::TxChecksumming, Feature::ScatterGather];

/// The offloads that must be off for the kernel to forward a port's frames, because only the bridge
/// implements them.
const ABSENT: [Feature; 2] = [Feature::LargeReceiveOffload, Feature::RxUdpGroForwarding];

/// The conditions that decide whether the kernel may forward a port's frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelPathConditions<'a> {
    pub(crate) bridge: &'a BridgeSettings,
    pub(crate) port: &'a PortSettings,
    /// The port's active offloads.
    pub(crate) active: FeatureSet,
    /// The reason why the port has no BPF programs for forwarding in the kernel; `None` if it has
    /// them.
    pub(crate) unavailable: Option<&'a NoKernelPath>,
    pub(crate) is_up: bool,
    pub(crate) is_monitored: bool,
    /// Whether a [`Consumer`](crate::consumer::Consumer) processes the packets instead of the
    /// bridge.
    pub(crate) has_consumer: bool,
}

/// Returns why the bridge must forward a port's frames itself; `None` if the kernel may.
///
/// Not among the reasons are storm limits and address limits: frames to group and unknown
/// addresses, and frames of sources that were not learned, always come to the bridge.
pub(crate) fn refusal(conditions: &KernelPathConditions<'_>) -> Option<String> {
    let KernelPathConditions { bridge, port, active, .. } = conditions;
    if port.kernel_path == KernelPathMode::Off {
        return Some(NoKernelPath::SwitchedOff.to_string());
    }
    if let Some(reason) = conditions.unavailable {
        return Some(reason.to_string());
    }
    let limits = &port.limits;
    let unlimited = Rates {
        storm_broadcast: limits.rates.storm_broadcast,
        storm_multicast: limits.rates.storm_multicast,
        storm_unknown: limits.rates.storm_unknown,
        ..Rates::default()
    };
    let default = PortLimits::default();
    let reasons = [
        (!conditions.is_up, "the link is not up"),
        (conditions.has_consumer, "a program processes the packets"),
        (bridge.vlan_filtering, "VLANs are filtered"),
        (bridge.shared_interfaces, "interfaces may be shared with another bridge"),
        (conditions.is_monitored, "the port is monitored"),
        // A port with a kernel path has one receive queue.
        (!port.steering.rps_cpus.queue(0).is_empty(), "packets are steered to CPUs"),
        (limits.rates != unlimited, "rates are limited"),
        (!port.forwarding.learning, "addresses are not learned"),
        (limits.gro_max_size != default.gro_max_size, "gro_max_size is set"),
        (limits.gso_max_size != default.gso_max_size, "gso_max_size is set"),
        (
            limits.gro_flush_timeout != 0 && port.delivery == Delivery::PerPoll,
            "gro_flush_timeout is set",
        ),
        (limits.gap_timeout != 0, "gap_timeout is set"),
        (port.gro_past_push, "gro_past_push is on"),
        (port.gro_udp_no_checksum, "gro_udp_no_checksum is on"),
    ];
    if let Some((_, reason)) = reasons.into_iter().find(|(applies, _)| *applies) {
        return Some(reason.to_owned());
    }
    let off = PRESUMED.into_iter().find(|feature| !active.contains(*feature));
    let on = ABSENT.into_iter().find(|feature| active.contains(*feature));
    off.map(|feature| format!("{} is off", feature.name()))
        .or_else(|| on.map(|feature| format!("{} is on", feature.name())))
}

/// The forwarding in the kernel for a bridge, or the reason why it is not available.
pub(crate) type KernelAvailability = Result<Arc<KernelForwarding>, NoKernelPath>;

/// Number of ticks (100 ms in all) for which the same pair of stations is not offered to the kernel
/// again.
const OFFER_AGAIN: u64 = 10;

/// Number of ticks (one second in all) for which no pair is offered to the kernel after it refused
/// one.
const PAUSE: u64 = 100;

/// The pairs of stations that a thread has recently offered to the kernel. Packets that come to the
/// bridge nevertheless, such as those that are too long, then cost no system call each.
#[derive(Debug, Default)]
pub(crate) struct RecentOffers {
    pairs: [[u64; 2]; 16],
    /// When the first of the pairs was offered, in ticks.
    since: u64,
    /// Time until which no station is offered to the kernel.
    paused_until: u64,
}

impl RecentOffers {
    /// Offers the source and destination station of a packet to the kernel, unless that was done
    /// recently.
    #[cold]
    pub(crate) fn offer(
        &mut self,
        kernel: &KernelForwarding,
        table: &AddressTable,
        addresses: &Addresses,
        now: u64,
    ) {
        let (Some(source), FrameDestination::Station(destination)) =
            (addresses.source, addresses.destination)
        else {
            return;
        };
        if now < self.paused_until {
            return;
        }
        if now.saturating_sub(self.since) >= OFFER_AGAIN {
            *self = RecentOffers { since: now, ..RecentOffers::default() };
        }
        let pair = [source.0, destination.0];
        let index = (source.0 ^ destination.0.rotate_left(2)) as usize % self.pairs.len();
        if self.pairs[index] == pair {
            return;
        }
        self.pairs[index] = pair;
        if let Err(error) = kernel.offer(table, [source, destination]) {
            tracing::debug!(%error, "the kernel takes no more stations");
            self.paused_until = now + PAUSE;
        }
    }
}

/// The state for forwarding in the kernel that all threads of a bridge share.
#[derive(Debug)]
pub(crate) struct KernelForwarding {
    path: Arc<KernelPath>,
    /// For each port number, the port's index in the kernel's path plus 1 while the kernel may
    /// forward its frames; otherwise 0.
    ports: Box<[AtomicU32]>,
}

impl KernelForwarding {
    /// Creates the state for forwarding in the kernel, for a bridge whose address table has
    /// `table_size` entries.
    ///
    /// # Errors
    /// The system call's error: `EPERM` without `CAP_BPF`.
    pub(crate) fn new(table_size: usize, cpus: usize) -> std::io::Result<Self> {
        let stations = table_size.clamp(1, MAX_STATIONS) as u32;
        Ok(KernelForwarding {
            path: Arc::new(KernelPath::new(stations, cpus as u32)?),
            ports: (0..MAX_PORTS).map(|_| AtomicU32::new(0)).collect(),
        })
    }

    pub(crate) fn path(&self) -> &Arc<KernelPath> {
        &self.path
    }

    /// Sets the index of a port whose frames the kernel may forward; `None` for a port whose frames
    /// it may not.
    pub(crate) fn set_port(&self, number: u16, index: Option<u32>) {
        let index = index.map_or(0, |index| index + 1);
        self.ports[usize::from(number)].store(index, Ordering::SeqCst);
    }

    fn index(&self, number: u16) -> Option<u32> {
        self.ports.get(usize::from(number))?.load(Ordering::SeqCst).checked_sub(1)
    }

    /// Returns whether the kernel may forward frames from port `from` to port `to`.
    #[inline]
    pub(crate) fn joins(&self, from: u16, to: u16) -> bool {
        from != to && self.index(from).is_some() && self.index(to).is_some()
    }

    /// Lets the kernel forward later frames between two stations, if the address table has each
    /// behind a single port.
    ///
    /// # Errors
    /// The system call's error; there may be no room for more stations.
    pub(crate) fn offer(
        &self,
        table: &AddressTable,
        stations: [AddressKey; 2],
    ) -> std::io::Result<()> {
        for key in stations {
            self.path.allow(key.0, || self.index(table.settled_port(key, table.now())?))?;
        }
        Ok(())
    }

    /// Updates the address table with the stations that the kernel has recently seen, and removes
    /// from the kernel those that the table no longer has.
    pub(crate) fn follow(&self, table: &AddressTable) {
        let now = table.now();
        self.path.retain(|station| {
            let key = AddressKey(station.key);
            if let (Some(seen), Some(port)) = (station.seen, table.port_of(key)) {
                table.learn(key, port, table.ticks_ago(now, seen));
            }
            if let Some(used) = station.used {
                table.find(key, u16::MAX, table.ticks_ago(now, used));
            }
            table.settled_port(key, now).is_some()
        });
    }
}
