//! Hosts joined by a bridge. Super-packets are segmented by the sending host, by the engine, by the
//! kernel in front of the egress device, or not at all.

use std::ops::Deref;
use std::thread;
use std::time::Duration;

use superpacket_bridge::Bridge;
use superpacket_bridge::settings::BridgeSettings;
use superpacket_port::features::{Feature, FeatureSet};

use crate::error::{Context, LabError};
use crate::experiment::Cpus;
use crate::experiment::cpu_costs::{CpuClocks, CpuCosts, LoadTotals};
use crate::experiment::testbed::{port, start_bridge};
use crate::host::Host;
use crate::link::{Link, SizeLimits};
use crate::load::{Pinning, Route, TcpBulk, TcpTransactions, UdpBulk, Until};
use crate::topology::Station;

/// The device behind a port of the bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortDevice {
    /// A packet socket on one end of a veth pair whose other end belongs to the host.
    Packet,
    /// A TAP device, which belongs to the host.
    Tap,
}

/// Settings of a host and of its port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostSetup {
    pub(crate) kind: PortDevice,
    /// Whether the host's device accepts super-packets; otherwise the host's stack segments them.
    pub(crate) host_tso: bool,
    /// `gso_max_size` for the host's device, in bytes; `None` leaves it unchanged.
    pub(crate) gso_max_size: Option<u32>,
    /// For packet sockets: whether the port's device accepts super-packets; otherwise the kernel
    /// segments them before the device.
    pub(crate) device_tso: bool,
    /// Offloads requested for the port.
    pub(crate) features: FeatureSet,
    /// Whether the bridge's GRO continues to merge after a packet with PSH. The host's kernel sets
    /// PSH on each super-packet.
    pub(crate) gro_past_push: bool,
}

impl HostSetup {
    /// Returns a host and a port with all offloads except GRO, which would merge the segments
    /// again.
    pub(crate) fn new(kind: PortDevice) -> Self {
        let features = port("memory:any")
            .expect("a port string of the lab's own is well formed")
            .features
            .without(Feature::GenericReceiveOffload);
        Self {
            kind,
            host_tso: true,
            gso_max_size: None,
            device_tso: true,
            features,
            gro_past_push: false,
        }
    }

    /// Makes the host's stack segment what it sends, instead of sending super-packets.
    pub(crate) fn segmented_by_host(self) -> Self {
        Self { host_tso: false, ..self }
    }

    /// Makes the kernel segment packets that leave by this port, before the device.
    pub(crate) fn segmented_by_kernel(self) -> Self {
        Self { device_tso: false, ..self }
    }

    /// Makes the engine segment packets that leave by this port.
    pub(crate) fn segmented_by_engine(self) -> Self {
        let features = self
            .features
            .without(Feature::TcpSegmentationOffload)
            .without(Feature::TxUdpSegmentation);
        Self { device_tso: false, features, ..self }
    }

    /// Limits the port to packets in one contiguous piece of memory (no scatter-gather).
    pub(crate) fn linear(self) -> Self {
        Self { features: self.features.without(Feature::ScatterGather), ..self }
    }
}

/// Hosts and the bridge between them; dropped together.
#[derive(Debug)]
pub(crate) struct BridgedHosts {
    /// The hosts, in the order of the setups from which they were created.
    pub(crate) stations: Vec<Station>,
    /// The bridge's end of each veth pair; `None` for a TAP device.
    pub(crate) bridge_links: Vec<Option<Link>>,
    _bridge: Bridge,
    pinning: Pinning,
}

impl BridgedHosts {
    /// Creates the hosts and starts the bridge. The bridge and the programs of its loads run on
    /// `cpus`.
    ///
    /// # Errors
    /// [`LabError::Forbidden`] if namespaces are refused; errors of the kernel or the bridge.
    pub(crate) fn new(setups: &[HostSetup], cpus: &Cpus) -> Result<Self, LabError> {
        let middle = Host::new("M")?;
        let mut ports = Vec::new();
        let mut ends = Vec::new();
        for (number, setup) in (1u8..).zip(setups) {
            let host = Host::new(&format!("H{number}"))?;
            let text = match setup.kind {
                PortDevice::Packet => {
                    let (link, side) =
                        Link::veth(&host, "eth0", &middle, &format!("port-{number}"))?;
                    side.set_features(&[
                        ("tcp-segmentation-offload", setup.device_tso),
                        ("tx-udp-segmentation", setup.device_tso),
                    ])?;
                    let text = format!("packet:{}", side.name());
                    ends.push(Err((link, side)));
                    text
                }
                PortDevice::Tap => {
                    ends.push(Ok(host));
                    format!("tap:tap-{number}")
                }
            };
            let mut port = port(&text)?;
            (port.features, port.gro_past_push) = (setup.features, setup.gro_past_push);
            ports.push(port);
        }
        let settings = BridgeSettings { ports, ..BridgeSettings::default() };
        let bridge = start_bridge(&middle, settings, &cpus.bridge)?;
        let (mut stations, mut bridge_links) = (Vec::new(), Vec::new());
        for ((number, setup), end) in (1u8..).zip(setups).zip(ends) {
            let (link, side) = match end {
                Err((link, side)) => (link, Some(side)),
                Ok(host) => {
                    let link = middle.link(&format!("tap-{number}")).move_to(&host)?;
                    link.up()?;
                    (link, None)
                }
            };
            link.set_features(&[
                ("tcp-segmentation-offload", setup.host_tso),
                ("tx-udp-segmentation", setup.host_tso),
            ])?;
            if let Some(size) = setup.gso_max_size {
                link.set_size_limits(SizeLimits {
                    gso_max_size: Some(size),
                    gso_ipv4_max_size: Some(size),
                    ..SizeLimits::default()
                })?;
            }
            stations.push(Station::new(link, number)?);
            bridge_links.push(side);
        }
        Ok(Self { stations, bridge_links, _bridge: bridge, pinning: cpus.pinning() })
    }

    /// Returns the route from one host to another.
    pub(crate) fn route(&self, from: usize, to: usize, ip: IpFamily) -> Route<'_> {
        let (from, to) = (&self.stations[from], &self.stations[to]);
        match ip {
            IpFamily::V4 => Route::ipv4(from, to),
            IpFamily::V6 => Route::ipv6(from, to),
        }
    }

    /// Warms up a route: resolves and learns addresses, and grows buffers.
    ///
    /// # Errors
    /// Those of [`TcpTransactions::run`].
    pub(crate) fn warm_up(&self, route: &Route<'_>) -> Result<(), LabError> {
        TcpTransactions { time: Duration::from_millis(5), ..TcpTransactions::default() }
            .run(route)?;
        TcpBulk { until: Until::Time(Duration::from_millis(20)), ..TcpBulk::default() }
            .run(route)
            .map(drop)
    }

    /// Runs a bulk load.
    ///
    /// # Errors
    /// Those of [`TcpBulk::run`].
    pub(crate) fn run_tcp(
        &self,
        load: &TcpBulk,
        route: &Route<'_>,
    ) -> Result<LoadResult, LabError> {
        let (load, before) =
            (TcpBulk { pinning: self.pinning.clone(), ..load.clone() }, CpuClocks::now()?);
        LoadResult::new(&(&load.run(route)?).into(), &before)
    }

    /// Runs a load of UDP datagrams. Only received datagrams count.
    ///
    /// # Errors
    /// Those of [`UdpBulk::run`].
    pub(crate) fn run_udp(
        &self,
        load: &UdpBulk,
        route: &Route<'_>,
    ) -> Result<LoadResult, LabError> {
        let (load, before) =
            (UdpBulk { pinning: self.pinning.clone(), ..load.clone() }, CpuClocks::now()?);
        LoadResult::new(&(&load.run(route)?).into(), &before)
    }
}

/// Several bridges with their hosts, created and removed in parallel. For each closed socket the
/// kernel waits for an RCU grace period, and parallel closes share it.
#[derive(Debug)]
pub(crate) struct BridgedHostsGroup(Vec<BridgedHosts>);

/// Creates bridges with their hosts in parallel, and returns the results in the same order.
pub(crate) fn create_all(
    groups: &[Vec<HostSetup>],
    cpus: &Cpus,
) -> Vec<Result<BridgedHosts, LabError>> {
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for setups in groups {
            let thread = thread::Builder::new()
                .name("lab:arrange".into())
                .spawn_scoped(scope, || BridgedHosts::new(setups, cpus));
            threads.push(thread.context(|| "starting a thread".into()));
        }
        let join = |thread: thread::ScopedJoinHandle<'_, Result<BridgedHosts, LabError>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(|thread| thread.and_then(join)).collect()
    })
}

impl BridgedHostsGroup {
    /// Creates one bridge with its hosts for each element of `groups`, in the same order.
    ///
    /// # Errors
    /// Those of [`BridgedHosts::new`].
    pub(crate) fn new(groups: &[Vec<HostSetup>], cpus: &Cpus) -> Result<Self, LabError> {
        // After an error, the bridges that were created are removed together too.
        let (mut several, mut failed) = (Self::none(), None);
        for created in create_all(groups, cpus) {
            match created {
                Ok(bridged) => several.push(bridged),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(several), Err)
    }

    /// Returns an empty group.
    pub(crate) const fn none() -> Self {
        Self(Vec::new())
    }

    /// Adds a bridge with its hosts.
    pub(crate) fn push(&mut self, bridged: BridgedHosts) {
        self.0.push(bridged);
    }
}

impl Deref for BridgedHostsGroup {
    type Target = [BridgedHosts];

    fn deref(&self) -> &[BridgedHosts] {
        &self.0
    }
}

impl Drop for BridgedHostsGroup {
    fn drop(&mut self) {
        thread::scope(|scope| {
            for bridged in self.0.drain(..) {
                // If no thread can be started, the closure is dropped, and the bridge with it, on
                // this thread.
                let _ = thread::Builder::new().spawn_scoped(scope, move || drop(bridged));
            }
        });
    }
}

/// An IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IpFamily {
    V4,
    V6,
}

/// Throughput and CPU usage of a load.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoadResult {
    /// Received payload, in 10^6 bytes per second.
    pub(crate) megabytes: f64,
    /// CPU usage by consumer.
    pub(crate) costs: CpuCosts,
}

impl LoadResult {
    fn new(load: &LoadTotals, before: &CpuClocks) -> Result<Self, LabError> {
        let megabytes =
            if load.seconds > 0.0 { load.bytes as f64 / load.seconds / 1e6 } else { 0.0 };
        Ok(Self { megabytes, costs: before.costs_of(load)? })
    }

    /// Returns the received payload, in 10^6 bits per second.
    pub(crate) fn megabits(&self) -> f64 {
        self.megabytes * 8.0
    }
}
