//! LRO between live hosts; the bridge acts as the receiver's network card and its driver.

use std::time::Duration;

use superpacket::aggregate::Storage;
use superpacket_port::features::Feature;

use super::{Buffers, Merge, Mtus, count_limit};
use crate::error::LabError;
use crate::experiment::Cpus;
use crate::experiment::cpu_costs::{CpuClocks, CpuCosts};
use crate::experiment::testbed::{Hosts, Testbed, port};
use crate::load::{Pinning, Source, TcpBulk, Until};

/// Length of the IPv4 and TCP headers of a segment without timestamps, in bytes.
const HEADERS: u32 = 40;

/// Number of CPU cores of each machine in the original report, whose CPU figures are percentages of
/// both cores.
pub(super) const CORES: f64 = 2.0;

/// Sysctls of the original report's hosts that are per namespace: no timestamps (ACKs of 54 bytes),
/// and socket buffers.
const SETTINGS: [(&str, &str); 3] = [
    ("net/ipv4/tcp_timestamps", "0"),
    ("net/ipv4/tcp_rmem", "4096 87380 16777216"),
    ("net/ipv4/tcp_wmem", "4096 65536 16777216"),
];

/// The result of one measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LroSample {
    /// Received payload, in 10^9 bits per second.
    pub(super) throughput: f64,
    /// The receiver's CPU usage, in percent of two CPUs, as the original report's receiver had.
    pub(super) cpu: f64,
    /// Segments per packet delivered to the receiver's host.
    pub(super) merged: f64,
    /// CPU usage by consumer.
    pub(super) costs: CpuCosts,
}

impl LroSample {
    /// Returns the receiver's CPU usage per payload: percent of two CPUs per 10^9 bits per second.
    pub(super) fn demand(&self) -> f64 {
        if self.throughput > 0.0 { self.cpu / self.throughput } else { 0.0 }
    }
}

/// Two hosts, and a bridge between them that acts as the receiver's card and driver.
#[derive(Debug)]
pub(super) struct LroTestbed {
    testbed: Testbed,
    source: Source,
    pinning: Pinning,
    /// The error of the first sysctl of the original report that a host refused.
    pub(super) refused: Option<String>,
}

impl LroTestbed {
    /// Creates the hosts and the bridge.
    pub(super) fn new(
        buffers: Buffers,
        mtus: Mtus,
        merge: Merge,
        source: Source,
        cpus: &Cpus,
    ) -> Result<Self, LabError> {
        let hosts = Hosts::new()?;
        for link in [&hosts.b.link, &hosts.b_side, &hosts.a_side] {
            link.set_mtu(mtus.receiver)?;
        }
        hosts.a.link.set_mtu(mtus.sender)?;
        let settings = [&hosts.a.host, &hosts.b.host]
            .into_iter()
            .flat_map(|host| SETTINGS.map(|(name, value)| (host, name, value)));
        let refused = settings
            .filter_map(|(host, name, value)| host.set_sysctl(name, value).err())
            .map(|error| error.to_string())
            .next();
        // Frames must arrive at the sender's MTU.
        hosts.a.link.set_feature("tcp-segmentation-offload", false)?;
        let mut card = port(&format!("nic:page={}@packet:port-a", buffers.option()))?;
        let features = card
            .features
            .set(Feature::LargeReceiveOffload, matches!(merge, Merge::Lro | Merge::LimitedLro));
        card.features = features.set(Feature::GenericReceiveOffload, merge == Merge::Gro);
        card.force_lro = true;
        if buffers == Buffers::Linear {
            card.storage = Storage::Linear;
        }
        if merge == Merge::LimitedLro {
            // Room for this number of full frames, and not for one more.
            card.limits.gro_max_size = HEADERS + count_limit(mtus) * (mtus.sender - HEADERS);
        }
        Ok(Self {
            testbed: hosts.join([card, port("packet:port-b")?], &cpus.bridge)?,
            source,
            pinning: cpus.pinning(),
            refused,
        })
    }

    /// Runs a TCP stream for `time`, and returns the result.
    pub(super) fn measure(&self, time: Duration) -> Result<LroSample, LabError> {
        let (source, pinning) = (self.source.clone(), self.pinning.clone());
        let load = TcpBulk { until: Until::Time(time), source, pinning, ..TcpBulk::default() };
        let ([driver, _], [card, host]) = (self.testbed.thread_times()?, self.testbed.stats()?);
        let before = CpuClocks::now()?;
        let report = load.run(&self.testbed.route())?;
        let costs = before.costs_of(&(&report).into())?;
        let ([driver_now, _], [card_now, host_now]) =
            (self.testbed.thread_times()?, self.testbed.stats()?);
        let direction = report.forward.unwrap_or_default();
        // The receiver's softirqs run within the driver's send call, so that its thread's time
        // includes them.
        let cpu = direction.receiver.total() + driver_now.saturating_sub(driver);
        Ok(LroSample {
            throughput: direction.gigabits_per_second(),
            cpu: 100.0 * cpu.as_secs_f64() / direction.seconds / CORES,
            merged: (card_now.rx_packets - card.rx_packets) as f64
                / (host_now.tx_packets - host.tx_packets).max(1) as f64,
            costs,
        })
    }
}
