//! What a bridge is asked to be.

use std::time::Duration;

use superpacket::aggregate::{MAX_BIG_LENGTH, MAX_IP_LENGTH};
use superpacket_features::{Feature, FeatureSet};
use superpacket_io::port::PortSpec;

pub use crate::steering::{
    HashFunction, HashSettings, PerQueue, PortSteering, SteeringProblem, SteeringSettings, UsableCpus, possible_cpus,
};

/// What a bridge is asked to be: its ports, and what holds for all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeSettings {
    /// The ports; two of the same name are refused.
    pub ports: Vec<PortSettings>,
    /// The most addresses that are learned; the oldest of a set give way.
    pub table_size: usize,
    /// How long an address is remembered after its last packet.
    pub ageing_time: Duration,
    /// How many threads move packets; 0: one for each port, and at most one for each CPU: what a host's kernel does with a packet it does in the thread that sends it there.
    pub threads: usize,
    /// Look for packets all the time instead of waiting for them: less delay, a CPU at 100 %.
    pub busy_poll: bool,
    /// How packets are steered to workers.
    pub steering: SteeringSettings,
}

impl Default for BridgeSettings {
    fn default() -> Self {
        BridgeSettings {
            ports: Vec::new(),
            table_size: 8192,
            ageing_time: Duration::from_secs(300),
            threads: 0,
            busy_poll: false,
            steering: SteeringSettings::default(),
        }
    }
}

/// What a port is asked to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSettings {
    /// The port.
    pub port: PortSpec,
    /// The offloads asked for.
    pub features: FeatureSet,
    /// `large-receive-offload` is let through although packets are forwarded.
    pub force_lro: bool,
    /// Where LRO is in force, pure ACKs are absorbed into the newest too.
    pub lro_acks: bool,
    /// What is aggregated is copied into one run of bytes at once, as by drivers that receive into linear buffers, rather than kept where it was received.
    pub linear: bool,
    /// Its limits.
    pub limits: Limits,
    /// What becomes of packets that are too long for it and cannot be cut.
    pub too_big: TooBig,
    /// To which CPUs the packets that it receives are steered.
    pub steering: PortSteering,
}

impl PortSettings {
    /// What a port is asked unless told otherwise: every offload but LRO and the aggregation of UDP.
    pub fn new(port: PortSpec) -> Self {
        let features = FeatureSet::all().without(Feature::LargeReceiveOffload).without(Feature::RxUdpGroForwarding);
        PortSettings {
            port,
            features,
            force_lro: false,
            lro_acks: false,
            linear: false,
            limits: Limits::default(),
            too_big: TooBig::default(),
            steering: PortSteering::default(),
        }
    }
}

/// A port's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest super-packet that the port is given, in bytes from the IP header on; the port's own limit if that is lower. 0: that one alone.
    pub gso_max_size: u32,
    /// The longest packet that is aggregated of what the port receives, in bytes from the IP header on.
    pub gro_max_size: u32,
    /// How long a packet may be held for others to join it after the poll that brought it, in nanoseconds.
    pub gro_flush_timeout: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { gso_max_size: 0, gro_max_size: MAX_IP_LENGTH, gro_flush_timeout: 0 }
    }
}

impl Limits {
    /// The names that commands and files use.
    pub const NAMES: [&'static str; 3] = ["gso_max_size", "gro_max_size", "gro_flush_timeout"];

    /// The limit of this name.
    pub fn value(&self, name: &str) -> Option<u64> {
        match name {
            "gso_max_size" => Some(u64::from(self.gso_max_size)),
            "gro_max_size" => Some(u64::from(self.gro_max_size)),
            "gro_flush_timeout" => Some(self.gro_flush_timeout),
            _ => None,
        }
    }

    /// Sets the limit of this name.
    ///
    /// # Errors
    /// A sentence: the name is unknown, or the value out of range.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), String> {
        let size = || match u32::try_from(value) {
            Ok(size) if size <= MAX_BIG_LENGTH => Ok(size),
            _ => Err(format!("{name} is at most {MAX_BIG_LENGTH} bytes, not {value}")),
        };
        match name {
            "gso_max_size" => self.gso_max_size = size()?,
            "gro_max_size" => self.gro_max_size = size()?,
            // A second is far beyond what any sender waits for.
            "gro_flush_timeout" if value <= 1_000_000_000 => self.gro_flush_timeout = value,
            "gro_flush_timeout" => return Err(format!("gro_flush_timeout is at most 1000000000 ns (a second), not {value}")),
            _ => return Err(format!("{name:?} is no limit: there are {}", Limits::NAMES.join(", "))),
        }
        Ok(())
    }
}

/// What becomes of a packet that is longer than the MTU of the port it leaves by, and cannot be cut into segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TooBig {
    /// It is dropped and counted.
    #[default]
    Drop,
    /// It is dropped, and its sender is told, at a limited rate: ICMP "fragmentation needed", ICMPv6 "packet too big", from the address that the packet
    /// was sent to, since a bridge has none.
    Icmp,
    /// IPv4 without the don't-fragment bit is fragmented; else it is dropped.
    Fragment,
}

impl TooBig {
    /// The names that commands and files use, with their meanings.
    pub const NAMES: [(&'static str, TooBig); 3] = [("drop", TooBig::Drop), ("icmp", TooBig::Icmp), ("fragment", TooBig::Fragment)];
}
