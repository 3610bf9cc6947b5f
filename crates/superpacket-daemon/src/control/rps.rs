//! The changes of packet steering (RPS and RFS) that a `set-rps` request can ask for.

use serde::{Deserialize, Serialize};

/// A change to the steering of a receive queue's packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RpsChange {
    /// A new `rps_cpus` mask in sysfs format: `ff`, `1,,5`. An empty mask switches RPS off.
    Mask(String),
    /// A new `rps_cpus` mask as a list of CPUs: `0-3,8`.
    CpuList(String),
    /// A new `rps_cpus` mask: the CPUs that share a cache with the receiving CPU.
    Auto,
    /// A new `rps_flow_cnt`: the number of flows per receive queue that RFS distinguishes.
    FlowCount(u64),
}
