//! What a bridge says of itself: the content of `superpacket ports`, `features` and `stats`, in the field's words.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A port at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortReport {
    /// The port string.
    pub port: String,
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
    /// How often it was opened again after it was gone.
    pub reopened: u64,
    /// Addresses learned behind it.
    pub addresses: usize,
    /// The limits asked for: `gso_max_size`, `gro_max_size` (bytes), `gro_flush_timeout` (nanoseconds).
    pub limits: BTreeMap<String, u64>,
    /// What becomes of packets that are too long: `drop`, `icmp`, `fragment`.
    pub too_big: String,
}

/// The offloads of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortFeatures {
    /// The port string.
    pub port: String,
    /// All offloads, in ethtool's order.
    pub features: Vec<FeatureReport>,
}

/// An offload of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureReport {
    /// Its name in ethtool.
    pub feature: String,
    /// Is it asked for?
    pub asked: bool,
    /// Is it in force?
    pub active: bool,
    /// Why it is not in force although it is asked for.
    pub reason: Option<String>,
}

/// What a port counted since the bridge started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStats {
    /// The port string.
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
    /// Super-packets given to the port, received as such or aggregated.
    pub tx_super_packets: u64,
    /// The frames that these are on a wire.
    pub tx_super_segments: u64,
    /// Received packets that joined another.
    pub merged: u64,
    /// Packets that others joined.
    pub aggregated: u64,
    /// Packets cut into segments before this port.
    pub segmented: u64,
    /// The segments that came of them.
    pub segments: u64,
    /// Partial checksums filled in before this port.
    pub checksummed: u64,
    /// Packets that the port refused as they were, and that were sent in another form.
    pub fallbacks: u64,
    /// Packets not forwarded because their destination lies behind the port they came from.
    pub filtered: u64,
    /// Received packets that were dropped, by cause.
    pub drops: BTreeMap<String, u64>,
}
