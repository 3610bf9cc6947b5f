//! Reports of a bridge: the content of `superpacket ports`, `features`, `stats` and related
//! commands.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::settings::{InPlace, SettingValue};

pub use crate::counters::{PortCounter, PortStats};

/// The state and the settings of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortReport {
    /// The port's name: the given name, or else the port string.
    pub port: String,
    /// The port string without the name, for example `packet:eth0?ring=4m`.
    #[serde(default)]
    pub string: String,
    /// `up`, `down`, or `gone` while the port waits to be opened again.
    pub state: String,
    /// The reason why the port is not open; `None` if the port is open.
    pub error: Option<String>,
    /// Maximum length of an IP packet in bytes; 0 if there is no limit.
    pub mtu: u32,
    /// Hardware address of the interface, for example `02:00:00:00:00:01`.
    pub hardware_address: Option<String>,
    /// Number of receive queues of the port.
    pub queues: usize,
    /// Number of times that the port was opened again, after it was gone or with another port
    /// string.
    pub reopened: u64,
    /// Number of addresses learned on the port.
    pub addresses: usize,
    /// The values of the port's settings, by the names in
    /// [`PortSettings::SETTINGS`](crate::settings::NamedSettings::SETTINGS).
    pub settings: BTreeMap<String, SettingValue>,
}

/// The offloads of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortFeatures {
    /// The port's name.
    pub port: String,
    /// All offloads, in ethtool's order.
    pub features: Vec<FeatureReport>,
    /// The super-packets that the port segments itself; `None` if it segments none.
    #[serde(default)]
    pub segmentation: Option<SegmentationReport>,
    /// Whether the kernel forwards frames of the port by itself; absent in reports of bridges that
    /// have no ports of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_path: Option<KernelPathReport>,
}

/// Whether the kernel forwards frames between known stations behind this port and other such ports,
/// without the bridge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelPathReport {
    /// The requested mode: `auto`, `on` or `off`.
    pub requested: String,
    /// Whether the kernel forwards frames of the port now.
    pub active: bool,
    /// The reason why the bridge forwards all frames of the port; `None` if the kernel forwards
    /// frames.
    pub reason: Option<String>,
}

/// The super-packets that a port, or the kernel behind it, segments. The bridge segments all others
/// in software.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentationReport {
    /// The link headers behind which the port segments: `plain`, `vlan`, `other-tags`, `pppoe`,
    /// `mpls`.
    pub link_headers: Vec<String>,
    /// The tunnels in which the port segments, by their [names](superpacket::wire::Tunnel::name).
    pub tunnels: Vec<String>,
    /// Maximum length of a super-packet over IPv4, in bytes from the IP header.
    pub max_ipv4_length: u32,
    /// Maximum length of a super-packet over IPv6, in bytes from the IP header.
    pub max_ipv6_length: u32,
    /// Kinds of super-packets that the kernel has refused repeatedly.
    pub refused: Vec<String>,
    /// Kinds of packets whose partial checksums the kernel has refused repeatedly.
    pub refused_checksums: Vec<String>,
}

/// An offload of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureReport {
    /// Name of the offload in ethtool.
    pub feature: String,
    /// Whether the port's settings request the offload.
    #[serde(rename = "asked")]
    pub requested: bool,
    /// Whether the offload is in use now.
    pub active: bool,
    /// The reason why a requested offload is not in use; `None` if it is in use or not requested.
    pub reason: Option<String>,
}

/// Counters of one queue of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStats {
    /// Number of the queue, from 0.
    pub queue: u16,
    /// Number of packets received; a super-packet counts once.
    pub packets: u64,
    /// Number of bytes of the packets that were received.
    pub bytes: u64,
    /// Packets dropped because the receive queue was full; absent if the port does not count them
    /// per queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drops: Option<u64>,
}

/// Memberships of IP multicast groups, with the field names of iproute2's `bridge -json mdb`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MdbReport {
    /// Whether multicast snooping is enabled.
    pub multicast_snooping: bool,
    /// Whether an IPv4 querier is active in at least one VLAN. Without a querier, group traffic is
    /// flooded.
    pub querier_ipv4: bool,
    /// Whether an IPv6 querier is active in at least one VLAN.
    pub querier_ipv6: bool,
    /// The ports that have joined a group, in order of VLAN and group.
    pub mdb: Vec<MdbEntry>,
    /// The ports behind which a multicast router was heard.
    pub router: Vec<MdbRouter>,
}

/// A port's membership of a multicast group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MdbEntry {
    /// The port string.
    pub port: String,
    /// Address of the group.
    pub grp: String,
    /// VLAN of the membership; absent unless the bridge filters by VLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vid: Option<u16>,
    /// Always `temp`: the membership was learned from a report.
    pub state: String,
    /// Seconds until the membership expires unless it is reported again.
    pub timer: u64,
}

/// A port behind which a multicast router was heard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MdbRouter {
    /// The port string.
    pub port: String,
    /// Seconds until the entry expires unless the router is heard again.
    pub timer: u64,
}

/// Steering settings of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRps {
    /// The port's name.
    pub port: String,
    /// Settings per receive queue.
    pub queues: Vec<QueueRps>,
    /// Condition under which the receiving thread processes the packets of a queue that has a CPU
    /// mask: `"auto"` (by the thread's utilisation), or a packet rate below this number per second;
    /// 0 means never.
    pub in_place_below: InPlace,
    /// The reason why these CPU masks were chosen; present only in the answer to a request for
    /// automatic masks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Steering settings and state of a receive queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueRps {
    /// Number of the receive queue, from 0.
    pub queue: u16,
    /// The CPU mask as it was set, in the format of sysfs.
    pub rps_cpus: String,
    /// The CPU mask without the CPUs that cannot be used, in the format of sysfs.
    pub effective: String,
    /// The effective mask as a list of CPUs, for example `0-3,8`.
    pub effective_list: String,
    /// The CPUs of the mask that cannot be used.
    pub dropped: Vec<DroppedCpu>,
    /// Number of entries in the RFS flow table of the queue.
    pub rps_flow_cnt: u32,
    /// Whether the queue's most recent packets were processed by the receiving thread although a
    /// mask is in force.
    #[serde(default)]
    pub in_place: bool,
}

/// A CPU that is in a mask but has no worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedCpu {
    /// Number of the CPU, from 0.
    pub cpu: usize,
    /// The reason why the CPU cannot be used.
    pub reason: String,
}

/// The steering settings and workers common to all ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SteeringReport {
    /// The settings, by the names in
    /// [`SteeringSettings::SETTINGS`](crate::settings::NamedSettings::SETTINGS).
    pub settings: BTreeMap<String, SettingValue>,
    /// Number of CPUs that a mask can hold.
    pub possible_cpus: usize,
    /// The CPUs on which workers can run, as a list, for example `0-3,8`.
    pub usable_cpus: String,
    /// The workers, in order of CPU.
    pub workers: Vec<WorkerReport>,
    /// Number of panics caught in the receiving threads.
    pub receive_panics: u64,
}

/// The state and the counters of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Number of the CPU on which the worker runs, from 0.
    pub cpu: usize,
    /// `running`; `leaving` if no mask names the CPU any more but packets are still queued; or
    /// `ended`. The counters are kept after the end.
    pub state: String,
    /// Number of packets processed; a super-packet counts once.
    pub processed: u64,
    /// Number of times that the worker processed a backlog, each time at most `dev_weight` packets.
    pub turns: u64,
    /// Number of times that the worker was woken for packets.
    pub wake_ups: u64,
    /// Number of panics caught in the worker.
    pub panics: u64,
}
