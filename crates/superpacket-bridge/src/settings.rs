//! The settings of a bridge and of its ports, with their names, defaults and allowed values.

mod change;
mod in_place;
mod kernel_path;
mod setting;
mod steering;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use superpacket::aggregate::{Delivery, MAX_IP_LENGTH, Storage};
use superpacket_port::PortSpec;
use superpacket_port::features::{Feature, FeatureSet};

use crate::switch::fdb::Station;
use crate::switch::vlan::{PortVlans, VlanProtocol};

pub use crate::cpus::{UsableCpus, possible_cpus};
pub use crate::switch::rates::Rates;
pub use change::PortChange;
pub use in_place::InPlace;
pub use kernel_path::KernelPathMode;
pub use setting::{NamedSettings, Setting, SettingType, SettingValue};
pub use steering::{
    HashFunction, HashSettings, PerQueue, PortSteering, SteeringProblem, SteeringSettings,
    queue_flows,
};

/// The requested configuration of a bridge: its ports, and the settings that apply to all ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeSettings {
    /// The ports; each name may occur once.
    pub ports: Vec<PortSettings>,
    /// Maximum number of learned addresses. A full table replaces older addresses by new ones.
    pub table_size: usize,
    /// Time after its last packet at which a learned address is forgotten.
    pub ageing_time: Duration,
    /// Number of poll threads. 0: one per port, and at most one per CPU. More than one thread helps
    /// because a receiving host's kernel runs in the thread that sends the packet (veth, TAP).
    pub threads: usize,
    /// Whether poll threads spin instead of sleeping: less delay, but each uses a whole CPU.
    pub busy_poll: bool,
    /// Whether a packet passes only between ports that are members of its VLAN
    /// ([`PortSettings::vlans`]).
    pub vlan_filtering: bool,
    /// The kind of tag that determines a packet's VLAN; used if `vlan_filtering` is on.
    pub vlan_protocol: VlanProtocol,
    /// Whether packets to an IP multicast group leave only by ports that joined it by IGMP or MLD,
    /// and by ports with multicast routers.
    pub multicast_snooping: bool,
    /// Whether to open interfaces that another bridge uses. Both bridges then forward the packets.
    pub shared_interfaces: bool,
    /// The steering of packets to workers.
    pub steering: SteeringSettings,
}

impl BridgeSettings {
    /// Returns the kind of VLAN tag that the bridge filters by; `None` without VLAN filtering.
    pub(crate) fn filters_by(&self) -> Option<VlanProtocol> {
        self.vlan_filtering.then_some(self.vlan_protocol)
    }
}

impl Default for BridgeSettings {
    fn default() -> Self {
        BridgeSettings {
            ports: Vec::new(),
            table_size: 8192,
            ageing_time: Duration::from_secs(300),
            threads: 0,
            busy_poll: false,
            vlan_filtering: false,
            vlan_protocol: VlanProtocol::default(),
            multicast_snooping: false,
            shared_interfaces: false,
            steering: SteeringSettings::default(),
        }
    }
}

/// The requested configuration of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSettings {
    /// The port's name, kind, device and options.
    pub port: PortSpec,
    /// The requested offloads.
    pub features: FeatureSet,
    /// Whether `large-receive-offload` is allowed although the port forwards packets.
    pub force_lro: bool,
    /// Whether LRO also replaces consecutive pure ACKs by the newest one.
    pub lro_acks: bool,
    /// Whether GRO continues to merge after a super-packet with PSH. Linux's TCP sets PSH on every
    /// super-packet. When the result is segmented, only the last segment has PSH.
    pub gro_past_push: bool,
    /// Whether UDP GRO also merges IPv4 datagrams without a checksum. Their segments have no
    /// checksum if the bridge cuts them; a port that segments in the device adds checksums.
    pub gro_udp_no_checksum: bool,
    /// Whether merged packets stay where they were received, or are copied into one contiguous
    /// buffer, as by drivers with linear receive buffers.
    pub storage: Storage,
    /// When held packets are flushed: after
    /// [`gro_flush_timeout`](PortLimits::gro_flush_timeout) at the latest, or always at the end of
    /// the poll that received them.
    pub delivery: Delivery,
    /// Limits on sizes, times, counts and rates.
    pub limits: PortLimits,
    /// The treatment of packets that exceed the port's MTU and cannot be segmented.
    pub too_big: TooBig,
    /// Switches for the traffic between this port and the others.
    pub forwarding: Forwarding,
    /// Stations assigned to this port; learning does not move them. Each belongs to one port only.
    pub static_entries: BTreeSet<Station>,
    /// The VLANs that the port is a member of; used with VLAN filtering.
    pub vlans: PortVlans,
    /// The steering of received packets to CPUs.
    pub steering: PortSteering,
    /// Whether the kernel may forward frames between this port and others without the bridge.
    pub kernel_path: KernelPathMode,
}

impl PortSettings {
    /// Returns the default settings of a port: all offloads except `large-receive-offload`,
    /// `rx-udp-gro-forwarding` and `tx-tcp-mangleid-segmentation`.
    pub fn new(port: PortSpec) -> Self {
        let features = FeatureSet::all()
            .without(Feature::LargeReceiveOffload)
            .without(Feature::RxUdpGroForwarding)
            .without(Feature::TxTcpMangleidSegmentation);
        PortSettings {
            port,
            features,
            force_lro: false,
            lro_acks: false,
            gro_past_push: false,
            gro_udp_no_checksum: false,
            storage: Storage::Fragments,
            delivery: Delivery::PerPoll,
            limits: PortLimits::default(),
            too_big: TooBig::default(),
            forwarding: Forwarding::default(),
            static_entries: BTreeSet::new(),
            vlans: PortVlans::default(),
            steering: PortSteering::default(),
            kernel_path: KernelPathMode::default(),
        }
    }
}

/// Limits of a port, which commands and files set by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortLimits {
    /// Maximum size of a super-packet sent to the port, in bytes from the IP header on. The port's
    /// own limit applies too; 0: only that one.
    pub gso_max_size: u32,
    /// Maximum size of a super-packet merged from received packets, in bytes from the IP header on.
    pub gro_max_size: u32,
    /// Maximum time in nanoseconds that a packet is held for merging after the poll that received
    /// it; 0: it is flushed at the end of that poll.
    pub gro_flush_timeout: u64,
    /// Maximum time in nanoseconds that a TCP segment behind a gap in its flow waits for the
    /// missing ones before it is aggregated; 0: no wait ([`Gaps`](superpacket::order::Gaps)).
    pub gap_timeout: u64,
    /// Maximum number of packets that LRO merges into one (`max_aggr` of `inet_lro`). 0: only
    /// [`gro_max_size`](Self::gro_max_size) limits it.
    pub lro_max_aggr: u32,
    /// Maximum number of flows per receive queue that LRO merges at a time (`max_desc` of
    /// `inet_lro`). Packets of other flows pass unmerged.
    pub lro_max_desc: u32,
    /// Maximum number of addresses learned behind the port; 0: half of the table.
    pub address_limit: u32,
    /// The port's rate limits.
    pub rates: Rates,
}

/// Maximum number of ports of a bridge; the address table cannot distinguish more.
pub(crate) const MAX_PORTS: usize = 1024;

/// Maximum size of the address table in entries; such a table takes 16 MB.
pub const MAX_ADDRESSES: u32 = 1 << 20;

impl Default for PortLimits {
    fn default() -> Self {
        PortLimits {
            gso_max_size: 0,
            gro_max_size: MAX_IP_LENGTH,
            gro_flush_timeout: 0,
            gap_timeout: 0,
            lro_max_aggr: 0,
            lro_max_desc: 64,
            address_limit: 0,
            rates: Rates::default(),
        }
    }
}

/// The treatment of a packet that exceeds the MTU of its egress port and cannot be segmented.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TooBig {
    /// The packet is dropped and counted.
    #[default]
    Drop,
    /// The packet is dropped, and its sender gets ICMP "fragmentation needed" or ICMPv6 "packet too
    /// big", at a limited rate. A bridge has no address, so the source of this message is the
    /// packet's destination address.
    Icmp,
    /// An IPv4 packet without the don't-fragment bit is fragmented; any other packet is dropped.
    Fragment,
}

/// Switches for the traffic between a port and the others, named as in iproute2's `bridge link`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// Whether the port exchanges no packets with other isolated ports.
    pub isolated: bool,
    /// Whether source addresses of received packets are learned. Switched off, the known addresses
    /// stay until they age.
    pub learning: bool,
    /// Whether the port is sent packets for unknown unicast addresses.
    pub flood: bool,
    /// Whether the port is sent multicast packets that are flooded.
    pub mcast_flood: bool,
    /// Whether the port is sent broadcast packets.
    pub bcast_flood: bool,
}

impl Default for Forwarding {
    fn default() -> Self {
        Forwarding {
            isolated: false,
            learning: true,
            flood: true,
            mcast_flood: true,
            bcast_flood: true,
        }
    }
}
