//! The settings of packet steering (RPS, RFS, flow limit), for the bridge and for each port.

use std::collections::BTreeMap;

use superpacket_steer::{
    CpuMask, DEFAULT_FLOW_LIMIT_TABLE, DEFAULT_MAX_BACKLOG, DEFAULT_WEIGHT, FlowHashKey,
    FlowHasher, FlowHeaders, FlowLimit, MovePolicy, SockFlowTable, ToeplitzKey, flow_entries,
};

use super::InPlace;
use crate::cpus::possible_cpus;

/// Maximum length of a backlog in packets. Most packets refer to their port's memory, which holds
/// some thousands of them. Others are allocated separately (frames longer than a slot of a
/// `packet:` port, packets of `memory:` and `pcap:` ports), with up to 64 KiB per packet. A full
/// backlog thus takes 4 GiB at most.
pub(super) const MOST_BACKLOG: u64 = 1 << 16;

/// Maximum number of entries of the RFS table: 16 MB, at 4 bytes per entry. The kernel allows 2^29.
pub(super) const MOST_SOCK_FLOWS: u64 = 1 << 22;

/// Maximum number of flows per receive queue that RFS distinguishes: 1 MB per queue, at 16 bytes
/// per flow.
const MOST_QUEUE_FLOWS: u64 = 1 << 16;

/// Maximum of `dev_weight`, in packets.
pub(super) const MOST_WEIGHT: u64 = 1 << 16;

/// A steering setting is unknown, or its value is not allowed or needs more memory than there is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SteeringProblem(pub(crate) String);

/// The steering settings that apply to all ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SteeringSettings {
    /// Number of entries of the RFS table, which holds the reading CPU of each flow
    /// (`net.core.rps_sock_flow_entries`); 0: no RFS.
    pub sock_flow_entries: u32,
    /// Maximum number of packets of a receive queue that wait for one worker
    /// (`net.core.netdev_max_backlog`); further packets are dropped.
    pub max_backlog: usize,
    /// Maximum number of packets that a worker takes from one backlog before it turns to the next
    /// (`net.core.dev_weight`).
    pub weight: usize,
    /// Number of entries of the flow limit's table (`net.core.flow_limit_table_len`); 0: no flow
    /// limit.
    pub flow_limit_table: usize,
    /// The hash that distinguishes flows.
    pub hash: HashSettings,
    /// When a flow may move to another CPU. [`MovePolicy::AtOnce`] can reorder packets, as the
    /// kernel does; it is meant for comparisons.
    pub move_policy: MovePolicy,
}

impl Default for SteeringSettings {
    /// Returns the kernel's defaults, without RFS and with the flow limit on.
    fn default() -> Self {
        SteeringSettings {
            sock_flow_entries: 0,
            max_backlog: DEFAULT_MAX_BACKLOG,
            weight: DEFAULT_WEIGHT,
            flow_limit_table: DEFAULT_FLOW_LIMIT_TABLE,
            hash: HashSettings::default(),
            move_policy: MovePolicy::Epochs,
        }
    }
}

/// The function that computes a flow's hash if the device does not report one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HashFunction {
    /// A fast function with a secret key that the bridge chooses.
    #[default]
    Keyed,
    /// The Toeplitz hash of network cards (RSS), with this key.
    Toeplitz(ToeplitzKey),
}

/// The settings of the hash that distinguishes flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashSettings {
    /// The hash function.
    pub function: HashFunction,
    /// Whether both directions of a connection have the same hash.
    pub symmetric: bool,
    /// The headers of tunnelled packets that are hashed.
    pub headers: FlowHeaders,
    /// Whether the device's hash is used if it reports one.
    pub device: bool,
}

impl Default for HashSettings {
    /// Returns the keyed hash of the inner headers, replaced by the device's hash if there is one.
    fn default() -> Self {
        let (function, headers) = (HashFunction::Keyed, FlowHeaders::Inner);
        HashSettings { function, symmetric: false, headers, device: true }
    }
}

impl HashSettings {
    /// Creates a hasher with these settings; `key` is the key of [`HashFunction::Keyed`].
    pub(crate) fn hasher(&self, key: FlowHashKey) -> FlowHasher {
        let hasher = match &self.function {
            HashFunction::Keyed => FlowHasher::keyed(key),
            HashFunction::Toeplitz(key) => FlowHasher::toeplitz(key),
        };
        let hasher = if self.symmetric { hasher.symmetric() } else { hasher };
        let hasher = hasher.with_headers(self.headers);
        if self.device { hasher } else { hasher.without_device() }
    }
}

impl SteeringSettings {
    /// Creates the RFS table; `None` without RFS.
    ///
    /// # Errors
    /// [`SteeringProblem`] if the number of entries is too large or the memory cannot be allocated.
    pub(crate) fn sock_flow_table(&self) -> Result<Option<SockFlowTable>, SteeringProblem> {
        let wrong = |says: &dyn std::fmt::Display| {
            SteeringProblem(format!("rps_sock_flow_entries: {says}"))
        };
        // The field is public, so `set` may not have checked it.
        let entries = u64::from(self.sock_flow_entries);
        if entries > MOST_SOCK_FLOWS {
            return Err(wrong(&format_args!("EINVAL: {entries}: it is 0 to {MOST_SOCK_FLOWS}")));
        }
        SockFlowTable::new(entries, possible_cpus()).map_err(|error| wrong(&error))
    }

    /// Creates the flow limit of a receive queue; `None` if flows are not limited.
    ///
    /// # Errors
    /// [`SteeringProblem`] if the length is invalid or the memory cannot be allocated.
    pub(crate) fn flow_limit(&self) -> Result<Option<FlowLimit>, SteeringProblem> {
        let wrong = |error| SteeringProblem(format!("flow_limit_table_len: {error}"));
        (self.flow_limit_table != 0)
            .then(|| FlowLimit::try_new(self.flow_limit_table))
            .transpose()
            .map_err(wrong)
    }
}

/// Returns `rps_flow_cnt` of a receive queue rounded up to a power of two, as by the kernel.
///
/// # Errors
/// Returns a message with the allowed range if the number is too large.
pub fn queue_flows(requested: u64) -> Result<u32, String> {
    if requested > MOST_QUEUE_FLOWS {
        return Err(format!("EINVAL: {requested}: it is 0 to {MOST_QUEUE_FLOWS}"));
    }
    flow_entries(requested).map_err(|error| error.to_string())
}

/// A setting of a port's receive queues: a value for all queues, and exceptions for some of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerQueue<T> {
    all: T,
    own: BTreeMap<u16, T>,
}

impl<T: PartialEq> PerQueue<T> {
    /// Creates a setting with the same value for all queues.
    pub const fn all(value: T) -> Self {
        PerQueue { all: value, own: BTreeMap::new() }
    }

    /// Returns the value of a queue.
    pub fn queue(&self, queue: u16) -> &T {
        self.own.get(&queue).unwrap_or(&self.all)
    }

    /// Sets the value of one queue. Without a queue, sets it for all and removes the exceptions.
    pub fn set(&mut self, queue: Option<u16>, value: T) {
        match queue {
            Some(queue) => drop(self.own.insert(queue, value)),
            None => *self = PerQueue::all(value),
        }
    }

    /// Returns the value of the queues that have no value of their own.
    pub const fn of_all(&self) -> &T {
        &self.all
    }

    /// Returns the queues that have a value of their own, with these values.
    pub fn own(&self) -> impl Iterator<Item = (u16, &T)> {
        self.own.iter().map(|(queue, value)| (*queue, value))
    }

    /// Returns the value for all queues, then the values of the queues that have their own.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        std::iter::once(&self.all).chain(self.own.values())
    }
}

/// The steering settings of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortSteering {
    /// The CPUs that process the packets of a receive queue (`rps_cpus`). If the mask is empty, the
    /// receiving thread processes them.
    pub rps_cpus: PerQueue<CpuMask>,
    /// Number of flows per receive queue that RFS distinguishes (`rps_flow_cnt`); 0: no RFS.
    pub rps_flow_cnt: PerQueue<u32>,
    /// When the receiving thread processes packets in spite of the mask. `None` is
    /// [`InPlace::Automatic`] in a bridge, and [`InPlace::NEVER`] with a
    /// [`Consumer`](crate::consumer::Consumer), which may keep a flow's state in its worker.
    pub in_place: Option<InPlace>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_tables_have_a_maximum_size() {
        assert_eq!(queue_flows(1000), Ok(1024));
        assert!(queue_flows(1 << 29).expect_err("8 GB").contains("it is 0 to 65536"));
        let settings =
            SteeringSettings { sock_flow_entries: 1 << 29, ..SteeringSettings::default() };
        let problem = settings.sock_flow_table().expect_err("2 GB").to_string();
        assert!(
            problem.contains("rps_sock_flow_entries: EINVAL: 536870912: it is 0 to 4194304"),
            "{problem}"
        );
    }

    #[test]
    fn setting_all_queues_removes_the_exceptions() {
        let mut masks = PerQueue::all(1);
        masks.set(Some(2), 7);
        assert_eq!((*masks.queue(0), *masks.queue(2)), (1, 7));
        masks.set(None, 3);
        assert_eq!((*masks.queue(0), *masks.queue(2)), (3, 3));
    }
}
