//! The settings of a bridge and of its ports, with their names, defaults and allowed values.

mod change;
mod in_place;
mod steering;

use std::collections::BTreeSet;
use std::time::Duration;

use superpacket::aggregate::{Delivery, MAX_BIG_LENGTH, MAX_IP_LENGTH};
use superpacket_port::PortSpec;
use superpacket_port::features::{Feature, FeatureSet};

use crate::switch::fdb::Station;
use crate::switch::vlan::{PortVlans, VlanProtocol};

pub use crate::cpus::{UsableCpus, possible_cpus};
pub use crate::switch::rates::Rates;
pub use change::{PortChange, SettingValue};
pub use in_place::InPlace;
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

/// Returns a switch's word in commands and files.
const fn on_or_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
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
    /// Whether merged packets are copied into one contiguous buffer, as by drivers with linear
    /// receive buffers. Otherwise they stay where they were received.
    pub linear: bool,
    /// When held packets are flushed: after [`gro_flush_timeout`](Limits::gro_flush_timeout) at the
    /// latest, or always at the end of the poll that received them.
    pub delivery: Delivery,
    /// Limits on sizes, times, counts and rates.
    pub limits: Limits,
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
}

impl PortSettings {
    /// The names of the aggregation settings in commands and files; their values are words.
    pub const AGGREGATION: [&'static str; 5] =
        ["delivery", "gro_past_push", "gro_udp_no_checksum", "lro_acks", "storage"];

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
            linear: false,
            delivery: Delivery::PerPoll,
            limits: Limits::default(),
            too_big: TooBig::default(),
            forwarding: Forwarding::default(),
            static_entries: BTreeSet::new(),
            vlans: PortVlans::default(),
            steering: PortSteering::default(),
        }
    }

    /// Returns the value of the aggregation setting with this name, one of
    /// [`AGGREGATION`](Self::AGGREGATION).
    pub fn aggregation(&self, name: &str) -> Option<&'static str> {
        match name {
            "delivery" => {
                Some(if self.delivery == Delivery::AtOnce { "at-once" } else { "per-poll" })
            }
            "gro_past_push" => Some(on_or_off(self.gro_past_push)),
            "gro_udp_no_checksum" => Some(on_or_off(self.gro_udp_no_checksum)),
            "lro_acks" => Some(on_or_off(self.lro_acks)),
            "storage" => Some(if self.linear { "linear" } else { "fragments" }),
            _ => None,
        }
    }

    /// Sets the aggregation setting with this name, one of [`AGGREGATION`](Self::AGGREGATION).
    ///
    /// # Errors
    /// Returns a message for users if the name or the word is unknown.
    pub fn set_aggregation(&mut self, name: &str, word: &str) -> Result<(), String> {
        let switch = || match word {
            "on" => Ok(true),
            "off" => Ok(false),
            _ => Err(format!("{name} is on or off, not {word:?}")),
        };
        match (name, word) {
            ("delivery", "per-poll") => self.delivery = Delivery::PerPoll,
            ("delivery", "at-once") => self.delivery = Delivery::AtOnce,
            ("delivery", _) => {
                return Err(format!("delivery is per-poll or at-once, not {word:?}"));
            }
            ("gro_past_push", _) => self.gro_past_push = switch()?,
            ("gro_udp_no_checksum", _) => self.gro_udp_no_checksum = switch()?,
            ("lro_acks", _) => self.lro_acks = switch()?,
            ("storage", "fragments") => self.linear = false,
            ("storage", "linear") => self.linear = true,
            ("storage", _) => return Err(format!("storage is fragments or linear, not {word:?}")),
            _ => {
                return Err(format!(
                    "{name:?} is no aggregation setting: there are {}",
                    Self::AGGREGATION.join(", ")
                ));
            }
        }
        Ok(())
    }
}

/// Limits of a port, which commands and files set by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
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

/// Lowest size limit in bytes: every network carries IP packets of this size (RFC 791, section
/// 3.2).
const MIN_SIZE: u32 = 68;

/// Maximum number of ports of a bridge; the address table cannot distinguish more.
pub(crate) const MAX_PORTS: usize = 1024;

/// Maximum size of the address table in entries; such a table takes 16 MB.
pub const MAX_ADDRESSES: u32 = 1 << 20;

/// Highest value of [`Limits::lro_max_desc`].
const MAX_DESC: u32 = 4_096;

impl Default for Limits {
    fn default() -> Self {
        Limits {
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

impl Limits {
    /// The names of the limits in commands and files, without those of [`Rates`].
    pub const NAMES: [&'static str; 7] = [
        "gso_max_size",
        "gro_max_size",
        "gro_flush_timeout",
        "gap_timeout",
        "lro_max_aggr",
        "lro_max_desc",
        "address_limit",
    ];

    /// Returns the names of all limits in commands and files, with those of [`Rates`].
    pub fn names() -> impl Iterator<Item = &'static str> {
        Limits::NAMES.into_iter().chain(Rates::NAMES)
    }

    /// Returns the limit with this name; `None` if there is none.
    pub fn value(&self, name: &str) -> Option<u64> {
        match name {
            "gso_max_size" => Some(u64::from(self.gso_max_size)),
            "gro_max_size" => Some(u64::from(self.gro_max_size)),
            "gro_flush_timeout" => Some(self.gro_flush_timeout),
            "gap_timeout" => Some(self.gap_timeout),
            "lro_max_aggr" => Some(u64::from(self.lro_max_aggr)),
            "lro_max_desc" => Some(u64::from(self.lro_max_desc)),
            "address_limit" => Some(u64::from(self.address_limit)),
            _ => self.rates.value(name),
        }
    }

    /// Sets the limit with this name.
    ///
    /// # Errors
    /// Returns a message for users if the name is unknown or the value is out of range.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), String> {
        let within = |least: u32, most: u32, zero: &str, unit: &str| match u32::try_from(value) {
            Ok(0) if !zero.is_empty() => Ok(0),
            Ok(number) if (least..=most).contains(&number) => Ok(number),
            _ => Err(format!("{name} is {zero}{least} to {most} {unit}, not {value}")),
        };
        match name {
            "gso_max_size" => {
                self.gso_max_size =
                    within(MIN_SIZE, MAX_BIG_LENGTH, "0 (what the port takes) or ", "bytes")?
            }
            "gro_max_size" => self.gro_max_size = within(MIN_SIZE, MAX_BIG_LENGTH, "", "bytes")?,
            "lro_max_aggr" => self.lro_max_aggr = within(2, 65_535, "0 (no limit) or ", "packets")?,
            "lro_max_desc" => self.lro_max_desc = within(1, MAX_DESC, "", "flows")?,
            "address_limit" => {
                self.address_limit =
                    within(1, MAX_ADDRESSES, "0 (half of the table) or ", "addresses")?
            }
            // A second: senders retransmit long before that.
            "gro_flush_timeout" if value <= 1_000_000_000 => self.gro_flush_timeout = value,
            "gap_timeout" if value <= 1_000_000_000 => self.gap_timeout = value,
            "gro_flush_timeout" | "gap_timeout" => {
                return Err(format!("{name} is at most 1000000000 ns (a second), not {value}"));
            }
            _ if Rates::NAMES.contains(&name) => self.rates.set(name, value)?,
            _ => {
                return Err(format!(
                    "{name:?} is no limit: there are {}",
                    Limits::names().collect::<Vec<_>>().join(", ")
                ));
            }
        }
        Ok(())
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

impl TooBig {
    /// The values with their names in commands and files.
    pub const NAMES: [(&'static str, TooBig); 3] =
        [("drop", TooBig::Drop), ("icmp", TooBig::Icmp), ("fragment", TooBig::Fragment)];
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

impl Forwarding {
    /// The names of the switches in commands and files.
    pub const NAMES: [&'static str; 5] =
        ["bcast_flood", "flood", "isolated", "learning", "mcast_flood"];

    /// Returns whether the switch with this name is on; `None` if there is none.
    pub fn value(&self, name: &str) -> Option<bool> {
        Forwarding::switch(&mut { *self }, name).copied()
    }

    /// Turns the switch with this name on or off.
    ///
    /// # Errors
    /// Returns a message for users if the name is unknown.
    pub fn set(&mut self, name: &str, on: bool) -> Result<(), String> {
        let names = || {
            format!(
                "{name:?} is no switch of forwarding: there are {}",
                Forwarding::NAMES.join(", ")
            )
        };
        *self.switch(name).ok_or_else(names)? = on;
        Ok(())
    }

    fn switch(&mut self, name: &str) -> Option<&mut bool> {
        match name {
            "bcast_flood" => Some(&mut self.bcast_flood),
            "flood" => Some(&mut self.flood),
            "isolated" => Some(&mut self.isolated),
            "learning" => Some(&mut self.learning),
            "mcast_flood" => Some(&mut self.mcast_flood),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_limit_is_refused_with_the_allowed_range() {
        let mut limits = Limits::default();
        for (name, wrong, says) in [
            (
                "gso_max_size",
                1,
                "gso_max_size is 0 (what the port takes) or 68 to 524280 bytes, not 1",
            ),
            ("gso_max_size", 1 << 40, "68 to 524280 bytes, not 1099511627776"),
            ("gro_max_size", 0, "gro_max_size is 68 to 524280 bytes, not 0"),
            ("gro_flush_timeout", 1_000_000_001, "at most 1000000000 ns"),
            ("gap_timeout", 1_000_000_001, "at most 1000000000 ns"),
            ("lro_max_aggr", 1, "lro_max_aggr is 0 (no limit) or 2 to 65535 packets, not 1"),
            ("lro_max_desc", 0, "lro_max_desc is 1 to 4096 flows, not 0"),
            (
                "address_limit",
                1 << 21,
                "address_limit is 0 (half of the table) or 1 to 1048576 addresses, not 2097152",
            ),
            (
                "mtu",
                1500,
                "there are gso_max_size, gro_max_size, gro_flush_timeout, gap_timeout, lro_max_aggr, lro_max_desc, address_limit",
            ),
        ] {
            let error = limits.set(name, wrong).expect_err(name);
            assert!(error.contains(says), "{error}");
        }
        assert_eq!(limits, Limits::default(), "what is refused changes nothing");
        for (name, right) in [
            ("gso_max_size", 0),
            ("gso_max_size", 68),
            ("gro_max_size", 524_280),
            ("lro_max_aggr", 0),
            ("lro_max_desc", 8),
            ("address_limit", 100),
        ] {
            limits.set(name, right).expect(name);
            assert_eq!(limits.value(name), Some(right));
        }
    }

    #[test]
    fn aggregation_settings_read_back_the_words_that_were_set() {
        let mut settings = PortSettings::new("memory:m".parse().expect("a port string"));
        let on_or_off = ["on", "off"];
        let named = [
            ("delivery", ["at-once", "per-poll"]),
            ("gro_past_push", on_or_off),
            ("gro_udp_no_checksum", on_or_off),
            ("lro_acks", on_or_off),
            ("storage", ["linear", "fragments"]),
        ];
        for (name, words) in named {
            assert_eq!(settings.aggregation(name), Some(words[1]), "the default");
            for word in words {
                settings.set_aggregation(name, word).expect(word);
                assert_eq!(settings.aggregation(name), Some(word));
            }
            let error = settings.set_aggregation(name, "maybe").expect_err("no such word");
            assert!(
                error.starts_with(name) && words.iter().all(|word| error.contains(word)),
                "{error}"
            );
        }
        assert!(
            settings
                .set_aggregation("size", "on")
                .expect_err("no such name")
                .contains("delivery, gro_past_push, gro_udp_no_checksum")
        );
    }

    #[test]
    fn forwarding_switches_read_back_what_was_set() {
        for name in Forwarding::NAMES {
            let mut forwarding = Forwarding::default();
            let before = forwarding.value(name).expect("it is one");
            assert_eq!(before, name != "isolated", "the default");
            forwarding.set(name, !before).expect("it is one");
            assert_ne!(forwarding, Forwarding::default());
            assert_eq!(forwarding.value(name), Some(!before));
        }
        let error = Forwarding::default().set("hairpin", true).expect_err("none");
        assert!(error.contains("bcast_flood, flood, isolated, learning, mcast_flood"), "{error}");
    }
}
