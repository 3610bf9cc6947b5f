//! What a bridge is asked to be.

mod change;
mod in_place;
mod steering;

use std::collections::BTreeSet;
use std::time::Duration;

use superpacket::aggregate::{Delivery, MAX_BIG_LENGTH, MAX_IP_LENGTH};
use superpacket_port::PortSpec;
use superpacket_port::features::{Feature, FeatureSet};

use crate::fdb::Station;
use crate::vlan::{PortVlans, VlanProtocol};

pub use crate::cpus::{UsableCpus, possible_cpus};
pub use crate::rates::Rates;
pub use change::{PortChange, SettingValue};
pub use in_place::InPlace;
pub(crate) use steering::queue_flows;
pub use steering::{
    HashFunction, HashSettings, PerQueue, PortSteering, SteeringProblem, SteeringSettings,
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
    /// How many threads move packets; 0: one for each port, and at most one for each CPU: what a
    /// host's kernel does with a packet it does in the thread that sends it there.
    pub threads: usize,
    /// Look for packets all the time instead of waiting for them: less delay, a CPU at 100 %.
    pub busy_poll: bool,
    /// Packets pass only between ports that are in their VLAN ([`PortSettings::vlans`]).
    pub vlan_filtering: bool,
    /// The tags that say a packet's VLAN, where the bridge filters by it.
    pub vlan_protocol: VlanProtocol,
    /// What is for an IP group leaves only by ports that have asked for it by IGMP or MLD, and by
    /// those that lead to routers.
    pub multicast_snooping: bool,
    /// Interfaces are opened that another bridge has: both forward what arrives there.
    pub shared_interfaces: bool,
    /// How packets are steered to workers.
    pub steering: SteeringSettings,
}

impl BridgeSettings {
    /// The tags by which the bridge filters; `None` where it does not.
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

/// The word for a switch.
const fn on_or_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
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
    /// Where GRO is in force, super-packets with PSH merge further too, and segments that are cut
    /// from them have it on the last only. Linux's TCP sets it on each that it hands over.
    pub gro_past_push: bool,
    /// Where GRO is in force and takes UDP, datagrams over IPv4 without a checksum merge too. A
    /// port that cuts super-packets itself writes checksums into what it cuts of them; where the
    /// bridge cuts, they have none, as they came.
    pub gro_udp_no_checksum: bool,
    /// Where GRO is in force, TCP packets merge too that are not alike: identifications that do not
    /// go on, lengths that differ, PSH before the last. Ports give them out as the very packets.
    pub gro_uneven: bool,
    /// What is aggregated is copied into one run of bytes at once, as by drivers that receive into
    /// linear buffers, rather than kept where it was received.
    pub linear: bool,
    /// When what is held for others to join it is handed on: at the latest when
    /// [`gro_flush_timeout`](Limits::gro_flush_timeout) ends, or with the poll that brought it,
    /// whatever that limit says.
    pub delivery: Delivery,
    /// Its limits.
    pub limits: Limits,
    /// What becomes of packets that are too long for it and cannot be cut.
    pub too_big: TooBig,
    /// What passes between it and the others.
    pub forwarding: Forwarding,
    /// The stations that lie behind it whatever is learned. No two ports may have the same.
    pub static_entries: BTreeSet<Station>,
    /// Its VLANs, where the bridge filters by them.
    pub vlans: PortVlans,
    /// To which CPUs the packets that it receives are steered.
    pub steering: PortSteering,
}

impl PortSettings {
    /// The names of what can be said of aggregation in words, as commands and files use them.
    pub const AGGREGATION: [&'static str; 6] =
        ["delivery", "gro_past_push", "gro_udp_no_checksum", "gro_uneven", "lro_acks", "storage"];

    /// What a port is asked unless told otherwise: every offload but LRO, the aggregation of UDP
    /// and changed identifications.
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
            gro_uneven: false,
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

    /// What was said of aggregation, by a name of [`AGGREGATION`](Self::AGGREGATION).
    pub fn aggregation(&self, name: &str) -> Option<&'static str> {
        match name {
            "delivery" => {
                Some(if self.delivery == Delivery::AtOnce { "at-once" } else { "per-poll" })
            }
            "gro_past_push" => Some(on_or_off(self.gro_past_push)),
            "gro_udp_no_checksum" => Some(on_or_off(self.gro_udp_no_checksum)),
            "gro_uneven" => Some(on_or_off(self.gro_uneven)),
            "lro_acks" => Some(on_or_off(self.lro_acks)),
            "storage" => Some(if self.linear { "linear" } else { "fragments" }),
            _ => None,
        }
    }

    /// Says how what the port receives is aggregated, by a name of
    /// [`AGGREGATION`](Self::AGGREGATION).
    ///
    /// # Errors
    /// A sentence: the name is unknown, or the word is.
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
            ("gro_uneven", _) => self.gro_uneven = switch()?,
            ("lro_acks", _) => self.lro_acks = switch()?,
            ("storage", "fragments") => self.linear = false,
            ("storage", "linear") => self.linear = true,
            ("storage", _) => return Err(format!("storage is fragments or linear, not {word:?}")),
            _ => {
                return Err(format!(
                    "{name:?} is not said of aggregation: there are {}",
                    Self::AGGREGATION.join(", ")
                ));
            }
        }
        Ok(())
    }
}

/// A port's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest super-packet that the port is given, in bytes from the IP header on; the port's
    /// own limit if that is lower. 0: that one alone.
    pub gso_max_size: u32,
    /// The longest packet that is aggregated of what the port receives, in bytes from the IP header
    /// on.
    pub gro_max_size: u32,
    /// How long a packet may be held for others to join it after the poll that brought it, in
    /// nanoseconds.
    pub gro_flush_timeout: u64,
    /// Where the port aggregates, how long a segment of TCP that came ahead of others of its flow
    /// may wait for them, in nanoseconds; 0: none waits ([`Gaps`](superpacket::order::Gaps)).
    pub gap_timeout: u64,
    /// The most packets that LRO joins in one (`max_aggr` of `inet_lro`); 0: only
    /// [`gro_max_size`](Self::gro_max_size) ends it.
    pub lro_max_aggr: u32,
    /// The most flows of a receive queue that LRO joins packets of at a time (`max_desc` of
    /// `inet_lro`); packets of others pass.
    pub lro_max_desc: u32,
    /// The most addresses that are learned behind the port; 0: half of the table.
    pub address_limit: u32,
    /// The rates that it is limited to.
    pub rates: Rates,
}

/// The shortest IP packet that every network carries (RFC 791, section 3.2): no limit is lower.
const MIN_SIZE: u32 = 68;

/// The most ports of a bridge: the address table tells so many apart.
pub(crate) const MAX_PORTS: usize = 1024;

/// The most addresses that a table has room for: 16 MB.
pub(crate) const MAX_ADDRESSES: u32 = 1 << 20;

/// The most flows of a receive queue that LRO can be told to join packets of at a time.
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
    /// The names that commands and files use, but for those of [`Rates`].
    pub const NAMES: [&'static str; 7] = [
        "gso_max_size",
        "gro_max_size",
        "gro_flush_timeout",
        "gap_timeout",
        "lro_max_aggr",
        "lro_max_desc",
        "address_limit",
    ];

    /// The names that commands and files use.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Limits::NAMES.into_iter().chain(Rates::NAMES)
    }

    /// The limit of this name.
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

    /// Sets the limit of this name.
    ///
    /// # Errors
    /// A sentence: the name is unknown, or the value out of range.
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
            // A second is far beyond what any sender waits for.
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

/// What becomes of a packet that is longer than the MTU of the port it leaves by, and cannot be cut
/// into segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TooBig {
    /// It is dropped and counted.
    #[default]
    Drop,
    /// It is dropped, and its sender is told, at a limited rate: ICMP "fragmentation needed",
    /// ICMPv6 "packet too big", from the address that the packet was sent to, since a bridge has
    /// none.
    Icmp,
    /// IPv4 without the don't-fragment bit is fragmented; else it is dropped.
    Fragment,
}

impl TooBig {
    /// The names that commands and files use, with their meanings.
    pub const NAMES: [(&'static str, TooBig); 3] =
        [("drop", TooBig::Drop), ("icmp", TooBig::Icmp), ("fragment", TooBig::Fragment)];
}

/// What passes between a port and the others, by the names of iproute2's `bridge link`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// Nothing passes between it and the other isolated ports.
    pub isolated: bool,
    /// Addresses are learned from what it receives. Those that are known stay until they age.
    pub learning: bool,
    /// It is given packets for addresses that nobody knows.
    pub flood: bool,
    /// It is given what is for many.
    pub mcast_flood: bool,
    /// It is given what is for all.
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
    /// The names that commands and files use.
    pub const NAMES: [&'static str; 5] =
        ["bcast_flood", "flood", "isolated", "learning", "mcast_flood"];

    /// Whether the switch of this name is on.
    pub fn value(&self, name: &str) -> Option<bool> {
        Forwarding::switch(&mut { *self }, name).copied()
    }

    /// Turns the switch of this name.
    ///
    /// # Errors
    /// A sentence: the name is unknown.
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
    fn limits_say_what_is_allowed() {
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
    fn words_of_aggregation_are_read_back() {
        let mut settings = PortSettings::new("memory:m".parse().expect("a port string"));
        let on_or_off = ["on", "off"];
        let named = [
            ("delivery", ["at-once", "per-poll"]),
            ("gro_past_push", on_or_off),
            ("gro_udp_no_checksum", on_or_off),
            ("gro_uneven", on_or_off),
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
    fn switches_of_forwarding_are_read_back() {
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
