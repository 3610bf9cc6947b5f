//! What a bridge says of itself: the content of `superpacket ports`, `features` and `stats`, in the
//! field's words.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use superpacket_port::PortCounters;

use crate::settings::InPlace;

/// A port at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortReport {
    /// The port's name: the one that it was given, or else its port string.
    pub port: String,
    /// The port string without a given name, as in `packet:eth0?ring=4m`: what the port is.
    #[serde(default)]
    pub string: String,
    /// `up`, `down`, or `gone` while it waits to be opened again.
    pub state: String,
    /// Why it is not open, if it is not.
    pub error: Option<String>,
    /// The longest IP packet in bytes; 0 where nothing limits it.
    pub mtu: u32,
    /// The interface's hardware address, as `02:00:00:00:00:01`.
    pub hardware_address: Option<String>,
    /// How many receive queues it has.
    pub queues: usize,
    /// How often it was opened again: after it was gone, or by another port string.
    pub reopened: u64,
    /// Addresses learned behind it.
    pub addresses: usize,
    /// The limits asked for: `gso_max_size`, `gro_max_size` (bytes), `gap_timeout`,
    /// `gro_flush_timeout` (nanoseconds), `lro_max_aggr` (packets), `lro_max_desc` (flows),
    /// `address_limit` (addresses), and the names of [`Rates`](crate::settings::Rates) in the units
    /// that it says.
    pub limits: BTreeMap<String, u64>,
    /// How what it receives is aggregated: `storage` (`fragments`, `linear`), `delivery`
    /// (`per-poll`, `at-once`), `gro_past_push`, `gro_udp_no_checksum`, `gro_uneven` and
    /// `lro_acks` (`on`, `off`).
    #[serde(default)]
    pub aggregation: BTreeMap<String, String>,
    /// What becomes of packets that are too long: `drop`, `icmp`, `fragment`.
    pub too_big: String,
    /// What passes between it and the others: `isolated`, `learning`, `flood`, `mcast_flood`,
    /// `bcast_flood`.
    #[serde(default)]
    pub forwarding: BTreeMap<String, bool>,
}

/// The offloads of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortFeatures {
    /// The port's name.
    pub port: String,
    /// All offloads, in ethtool's order.
    pub features: Vec<FeatureReport>,
    /// The super-packets that are left to the port; `None` if none are.
    #[serde(default)]
    pub segmentation: Option<SegmentationReport>,
}

/// The super-packets that a port, or the kernel behind it, segments. All others are segmented
/// before the port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentationReport {
    /// The link headers behind which it segments: `plain`, `vlan`, `other-tags`, `pppoe`, `mpls`.
    pub link_headers: Vec<String>,
    /// The tunnels in which it segments: `vxlan`, `geneve`.
    pub tunnels: Vec<String>,
    /// The longest super-packet over IPv4, in bytes from the IP header.
    pub max_ipv4_length: u32,
    /// The longest super-packet over IPv6, in bytes from the IP header.
    pub max_ipv6_length: u32,
    /// The kinds of super-packets that the kernel refused again and again.
    pub refused: Vec<String>,
    /// The kinds of packets whose partial checksums the kernel refused again and again.
    pub refused_checksums: Vec<String>,
}

/// An offload of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureReport {
    /// Its name in ethtool.
    pub feature: String,
    /// Whether it is requested.
    #[serde(rename = "asked")]
    pub requested: bool,
    /// Whether it is active.
    pub active: bool,
    /// Why it is not active although it is requested.
    pub reason: Option<String>,
}

/// What a port counted since the bridge started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStats {
    /// The port's name.
    pub port: String,
    /// Packets received, a super-packet counted once.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Packets given to the port, a super-packet counted once.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Packets that were received as super-packets.
    pub rx_super_packets: u64,
    /// The frames that these are on a wire.
    #[serde(default)]
    pub rx_super_segments: u64,
    /// Super-packets given to the port, received as such or aggregated.
    pub tx_super_packets: u64,
    /// The frames that these are on a wire.
    pub tx_super_segments: u64,
    /// Received packets that joined another.
    pub merged: u64,
    /// Packets that others joined.
    pub aggregated: u64,
    /// Received packets that LRO accepted into a session, its first included (`aggregated` of
    /// `inet_lro`).
    #[serde(default)]
    pub lro_aggregated: u64,
    /// Sessions that LRO delivered (`flushed` of `inet_lro`).
    #[serde(default)]
    pub lro_flushed: u64,
    /// Received packets for which LRO found neither their flow nor a free descriptor (`no_desc` of
    /// `inet_lro`).
    #[serde(default)]
    pub lro_no_desc: u64,
    /// Times that the kernel or the device could not take more for now. What was given up then
    /// stands in `drops` as `full`.
    #[serde(default)]
    pub tx_full: u64,
    /// Times that the kernel or the device refused a super-packet or a partial checksum, which was
    /// then sent in another form.
    #[serde(default)]
    pub tx_refused: u64,
    /// Packets cut into segments before this port.
    pub segmented: u64,
    /// The segments that came of them.
    pub segments: u64,
    /// Of the packets cut, those that the port would have taken, if it could be told that their
    /// IPv4 identifications stay the same.
    #[serde(default)]
    pub segmented_for_ids: u64,
    /// Of the packets cut, those that the port would have taken, if it could be told that all
    /// segments have CWR (accurate ECN).
    #[serde(default)]
    pub segmented_for_cwr: u64,
    /// Of the packets cut, those that are behind a link header behind which the port does not
    /// segment: PPPoE, MPLS, more than two VLAN tags, tags of other types.
    #[serde(default)]
    pub segmented_for_link: u64,
    /// Of the packets cut, those in a tunnel in which the port does not segment.
    #[serde(default)]
    pub segmented_for_tunnel: u64,
    /// Of the packets cut, those of a kind that the kernel has refused again and again.
    #[serde(default)]
    pub segmented_for_refusal: u64,
    /// Of the packets cut, those that are longer, or have more segments, than the port takes.
    #[serde(default)]
    pub segmented_for_size: u64,
    /// Partial checksums filled in before this port.
    pub checksummed: u64,
    /// Packets that the port refused as they were, and that were sent in another form.
    pub fallbacks: u64,
    /// Packets not forwarded because their destination lies behind the port they came from.
    pub filtered: u64,
    /// Packets that went to two ports because their destination was seen at both.
    #[serde(default)]
    pub disputed: u64,
    /// Segments that came ahead of others of their flow and waited for them (`gap_timeout`).
    #[serde(default)]
    pub gap_waited: u64,
    /// Those for which what was missing came.
    #[serde(default)]
    pub gap_filled: u64,
    /// Those whose time was up before.
    #[serde(default)]
    pub gap_timed_out: u64,
    /// Times that a receive queue was left alone for a while, because no more was allowed by
    /// `rx_byte_rate` or `rx_packet_rate`.
    #[serde(default)]
    pub rx_throttled: u64,
    /// Messages of IGMP and MLD that were damaged or made no sense, and were not heeded, where the
    /// bridge listens to them.
    #[serde(default)]
    pub mcast_malformed: u64,
    /// Packets handed to workers, a super-packet counted once.
    #[serde(default)]
    pub steered: u64,
    /// Packets of steered queues that were processed where they were received.
    #[serde(default)]
    pub in_place: u64,
    /// Packets that went where their flow was, not where it is wanted: others of it were left
    /// there.
    #[serde(default)]
    pub held_back: u64,
    /// How often flows, in buckets, moved from one CPU to another.
    #[serde(default)]
    pub flow_moves: u64,
    /// Packets steered by the hash that the device reported.
    #[serde(default)]
    pub hashes_reported: u64,
    /// Packets whose hash was computed to steer them.
    #[serde(default)]
    pub hashes_computed: u64,
    /// How often a sleeping worker was woken for this port's packets.
    #[serde(default)]
    pub wake_ups: u64,
    /// How often a queue went over from steering to processing in place, or back, by itself:
    /// because of the thread's utilisation, or of its rate.
    #[serde(default)]
    pub in_place_switches: u64,
    /// Received packets that were dropped, by cause.
    pub drops: BTreeMap<String, u64>,
    /// Packets that left aggregation, merged or single, by the reason for which they left as they
    /// did ([`Reason`](superpacket::aggregate::Reason)). Reasons that did not occur are not there.
    #[serde(default)]
    pub reasons: BTreeMap<String, u64>,
    /// Its receive queues, by number.
    #[serde(default)]
    pub rx_queues: Vec<QueueStats>,
    /// Its transmit queues that the bridge sends by, by number.
    #[serde(default)]
    pub tx_queues: Vec<QueueStats>,
}

/// What a queue of a port counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStats {
    /// Its number, from 0 on.
    pub queue: u16,
    /// Packets, a super-packet counted once.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that came and found no room in a receive queue; not there where the port does not
    /// know it by queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drops: Option<u64>,
}

impl PortStats {
    /// The same, with what the port itself counted.
    pub(crate) fn with(mut self, own: PortCounters, queue_drops: &[u64]) -> Self {
        for (queue, &drops) in self.rx_queues.iter_mut().zip(queue_drops) {
            queue.drops = Some(drops);
        }
        self.drops.insert("rx_ring".into(), own.rx_dropped);
        self.drops.insert("rx_errors".into(), own.rx_errors);
        (self.tx_full, self.tx_refused) = (own.tx_full, own.tx_refused);
        self
    }
}

/// Who is in which IP group, by the names of iproute2's `bridge -json mdb`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MdbReport {
    /// Whether the bridge listens.
    pub multicast_snooping: bool,
    /// Whether somebody asks who is in which group over IPv4, in some VLAN; where nobody does, what
    /// is for a group goes to all.
    pub querier_ipv4: bool,
    /// The same over IPv6.
    pub querier_ipv6: bool,
    /// The ports that have asked for a group, in order of VLAN and group.
    pub mdb: Vec<MdbEntry>,
    /// The ports that lead to routers.
    pub router: Vec<MdbRouter>,
}

/// A port that has asked for a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MdbEntry {
    /// The port string.
    pub port: String,
    /// The group's address.
    pub grp: String,
    /// The VLAN, where the bridge filters by VLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vid: Option<u16>,
    /// `temp`: it was asked for.
    pub state: String,
    /// Seconds until it is forgotten, if nobody asks again.
    pub timer: u64,
}

/// A port that leads to a router.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MdbRouter {
    /// The port string.
    pub port: String,
    /// Seconds until it is forgotten, if no router is heard there again.
    pub timer: u64,
}

/// How a port's packets are steered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRps {
    /// The port's name.
    pub port: String,
    /// Its receive queues.
    pub queues: Vec<QueueRps>,
    /// When a queue's packets are processed where they are received in spite of its mask: by the
    /// thread's utilisation (`"auto"`), or below so many packets a second; 0: never.
    pub in_place_below: InPlace,
    /// Why a mask is what it is: in the answer to who had it chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// How the packets of a receive queue are steered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueRps {
    /// Its number.
    pub queue: u16,
    /// The mask as it was set, in the form of sysfs.
    pub rps_cpus: String,
    /// What is left of it without CPUs that cannot be used, in the form of sysfs.
    pub effective: String,
    /// The same as a list (`0-3,8`).
    pub effective_list: String,
    /// CPUs of the mask that cannot be used.
    pub dropped: Vec<DroppedCpu>,
    /// How many flows RFS tells apart.
    pub rps_flow_cnt: u32,
    /// Whether it has a mask in force and was processed where it was received in spite of that,
    /// when it had packets last.
    #[serde(default)]
    pub in_place: bool,
}

/// A CPU that a mask names and that has no worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedCpu {
    /// Its number.
    pub cpu: usize,
    /// Why.
    pub reason: String,
}

/// What holds for the steering of all ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SteeringReport {
    /// The settings, by name
    /// ([`SteeringSettings::NAMES`](crate::settings::SteeringSettings::NAMES)).
    pub settings: BTreeMap<String, String>,
    /// For how many CPUs a mask has room.
    pub possible_cpus: usize,
    /// The CPUs that workers can be on, as a list (`0-3,8`).
    pub usable_cpus: String,
    /// The workers, by CPU.
    pub workers: Vec<WorkerReport>,
    /// Panics of the threads that receive, caught.
    pub receive_panics: u64,
}

/// A worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// The CPU that it is on.
    pub cpu: usize,
    /// `running`; `leaving` if no mask names its CPU any more, and what it has is not done yet;
    /// `ended`. What was counted stays.
    pub state: String,
    /// Packets processed, a super-packet counted once.
    pub processed: u64,
    /// Turns that a backlog had, each of `dev_weight` packets at most.
    pub turns: u64,
    /// How often it was woken for packets.
    pub wake_ups: u64,
    /// Panics, caught.
    pub panics: u64,
}
