//! LRO between live hosts: the bridge is the receiver's card and its driver.

use std::time::Duration;

use superpacket_port::features::Feature;

use super::{Buffers, Merge, Mtus, count_limit};
use crate::error::LabError;
use crate::experiment::Cpus;
use crate::experiment::spent::{Clocks, Spent};
use crate::experiment::stage::{Hosts, Stage, port};
use crate::load::{Pinning, Source, TcpBulk, Until};

/// The IPv4 and TCP headers of a segment without timestamps, in bytes.
const HEADERS: u32 = 40;

/// The cores of the source's machines: its figures of CPU are of both.
pub(super) const CORES: f64 = 2.0;

/// The source's settings of its hosts, as far as they are a namespace's: no timestamps, and so ACKs
/// of 54 bytes; socket buffers.
const SETTINGS: [(&str, &str); 3] = [
    ("net/ipv4/tcp_timestamps", "0"),
    ("net/ipv4/tcp_rmem", "4096 87380 16777216"),
    ("net/ipv4/tcp_wmem", "4096 65536 16777216"),
];

/// What a load showed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    /// Payload in 10^9 bits a second.
    pub(super) throughput: f64,
    /// The receiver's CPU time over time, in per cent of two CPUs, as many as the source's receiver
    /// had.
    pub(super) cpu: f64,
    /// Segments in a packet that the receiver's host was handed.
    pub(super) merged: f64,
    /// Where the CPU time went.
    pub(super) spent: Spent,
}

impl Sample {
    /// The receiver's CPU time per payload: per cent of two CPUs for each 10^9 bits a second.
    pub(super) fn demand(&self) -> f64 {
        if self.throughput > 0.0 { self.cpu / self.throughput } else { 0.0 }
    }
}

/// Two hosts, and the receiver's card between them.
#[derive(Debug)]
pub(super) struct Arrangement {
    stage: Stage,
    source: Source,
    pinning: Pinning,
    /// Which of the source's settings a host refused, and why.
    pub(super) refused: Option<String>,
}

impl Arrangement {
    /// Makes it.
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
        // Frames arrive as long as the sender's MTU lets them be.
        hosts.a.link.set_feature("tcp-segmentation-offload", false)?;
        let mut card = port(&format!("nic:page={}@packet:port-a", buffers.option()))?;
        let features = card
            .features
            .set(Feature::LargeReceiveOffload, matches!(merge, Merge::Lro | Merge::LroByCount));
        card.features = features.set(Feature::GenericReceiveOffload, merge == Merge::Gro);
        (card.force_lro, card.linear) = (true, buffers == Buffers::Linear);
        if merge == Merge::LroByCount {
            // So many bytes are that many full frames of the sender's, and no more.
            card.limits.gro_max_size = HEADERS + count_limit(mtus) * (mtus.sender - HEADERS);
        }
        Ok(Self {
            stage: hosts.join([card, port("packet:port-b")?], &cpus.bridge)?,
            source,
            pinning: cpus.pinning(),
            refused,
        })
    }

    /// Sends for a time.
    pub(super) fn measure(&self, time: Duration) -> Result<Sample, LabError> {
        let (source, pinning) = (self.source.clone(), self.pinning.clone());
        let load = TcpBulk { until: Until::Time(time), source, pinning, ..TcpBulk::default() };
        let ([driver, _], [card, host]) = (self.stage.thread_times()?, self.stage.stats()?);
        let before = Clocks::now()?;
        let report = load.run(&self.stage.route())?;
        let spent = before.spent(&(&report).into())?;
        let ([driver_now, _], [card_now, host_now]) =
            (self.stage.thread_times()?, self.stage.stats()?);
        let direction = report.forward.unwrap_or_default();
        // What the driver's thread sends, the receiver's host receives within the sending call: its
        // softirqs are that thread's time.
        let cpu = direction.receiver.total() + driver_now.saturating_sub(driver);
        Ok(Sample {
            throughput: direction.gigabits_per_second(),
            cpu: 100.0 * cpu.as_secs_f64() / direction.seconds / CORES,
            merged: (card_now.rx_packets - card.rx_packets) as f64
                / (host_now.tx_packets - host.tx_packets).max(1) as f64,
            spent,
        })
    }
}
