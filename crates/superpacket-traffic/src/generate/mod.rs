//! A seeded generator of traffic: most packets are realistic, the rest are unusual or wrong.
//!
//! Flows of every protocol through every tunnel send bursts in both directions; [`Impairments`]
//! then reorders, duplicates, drops, pads, tags, corrupts, truncates and varies single packets. The
//! same seed and configuration give the same packets on every platform.

mod burst;
mod flow;
mod stream;
mod vary;

use crate::check;
use crate::checksum;

pub use stream::Stream;

/// The innermost protocol and IP version of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv4.
    Udp4,
    /// UDP over IPv6.
    Udp6,
    /// DCCP over IPv4.
    Dccp4,
    /// DCCP over IPv6.
    Dccp6,
}

impl Protocol {
    /// All protocols.
    pub const ALL: [Protocol; 6] = [
        Protocol::Tcp4,
        Protocol::Tcp6,
        Protocol::Udp4,
        Protocol::Udp6,
        Protocol::Dccp4,
        Protocol::Dccp6,
    ];

    /// Is the innermost IP header IPv6?
    pub fn is_v6(self) -> bool {
        matches!(self, Protocol::Tcp6 | Protocol::Udp6 | Protocol::Dccp6)
    }
}

/// The tunnel that a flow goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tunnel {
    /// No tunnel.
    None,
    /// VXLAN over IPv4.
    Vxlan4,
    /// VXLAN over IPv6.
    Vxlan6,
    /// Geneve, over either.
    Geneve,
    /// GRE, over either.
    Gre,
    /// IPv4 in IPv4.
    Ipip,
    /// IPv6 in IPv4 (6in4).
    Sit,
    /// IPv4 in IPv6.
    FourInSix,
    /// IPv6 in IPv6.
    SixInSix,
    /// VXLAN or Geneve, in VXLAN or Geneve, each over either; in Geneve with and without Linux's
    /// GRO hint.
    Nested,
}

/// A combination of protocol and tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Combination {
    /// The innermost protocol.
    pub protocol: Protocol,
    /// The tunnel around it.
    pub tunnel: Tunnel,
}

impl Combination {
    /// Returns every possible combination: 48, as each IP-in-IP tunnel carries one IP version.
    pub fn all() -> Vec<Combination> {
        let mut combinations = Vec::new();
        for tunnel in [
            Tunnel::None,
            Tunnel::Vxlan4,
            Tunnel::Vxlan6,
            Tunnel::Geneve,
            Tunnel::Gre,
            Tunnel::Nested,
        ] {
            combinations.extend(Protocol::ALL.map(|protocol| Combination { protocol, tunnel }));
        }
        for protocol in Protocol::ALL {
            let over = if protocol.is_v6() {
                [Tunnel::Sit, Tunnel::SixInSix]
            } else {
                [Tunnel::Ipip, Tunnel::FourInSix]
            };
            combinations.extend(over.map(|tunnel| Combination { protocol, tunnel }));
        }
        combinations
    }
}

/// What a device would report about a packet's checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Checksum {
    /// Nothing.
    Unknown,
    /// All of them are right: `level + 1` non-zero transport checksums (GRE's counts as one), the
    /// outermost first.
    Verified {
        /// How many more than one.
        level: u8,
    },
    /// The one's-complement sum, not inverted, of everything after the 14-byte Ethernet header, or
    /// of everything if the packet starts at IP: VLAN tags, padding and all. A number made of
    /// big-endian words.
    Complete(u16),
    /// The innermost transport checksum is partial.
    Partial {
        /// Where the transport header starts, in bytes from the packet's start.
        start: u16,
        /// Where its checksum field lies from there.
        offset: u16,
    },
}

/// A generated packet and what a device would report about it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Generated {
    /// The packet.
    pub bytes: Vec<u8>,
    /// It starts at IP instead of Ethernet.
    pub starts_at_ip: bool,
    /// A VLAN tag that the device took out: tag protocol and control information.
    pub stripped_vlan: Option<(u16, u16)>,
    /// What is known about the checksums. It is true of these bytes, whatever the impairments did
    /// to them.
    pub checksum: Checksum,
    /// When it arrives, in nanoseconds from the start; never less than the packet before.
    pub time_ns: u64,
    /// The kind of flow that it comes from. Impairments may have made something else of it, see
    /// [`crate::check::flow_key`].
    pub combination: Combination,
    /// The generator's number of the flow and direction: twice the number of the flow, plus one
    /// from server to client. Packets in between (ICMP, ARP, ...) have the number of the flow in
    /// which they are sent.
    pub flow: u32,
}

/// How often a packet is impaired, each way with its probability per packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Impairments {
    /// The packet is swapped with one up to four places later.
    pub reorder: f64,
    /// It arrives twice.
    pub duplicate: f64,
    /// It is lost.
    pub drop: f64,
    /// It is followed by padding: zeros, random bytes, one byte, a frame check sequence.
    pub pad: f64,
    /// One bit of it is wrong.
    pub corrupt: f64,
    /// It is cut short.
    pub truncate: f64,
    /// One header field differs from the rest of the flow, or a checksum or length is wrong.
    pub other_field: f64,
    /// It arrives as IP fragments.
    pub fragments: f64,
    /// A packet of another kind between the same hosts comes before it.
    pub other_protocol: f64,
    /// Its stripped VLAN tag differs from the rest of the flow's.
    pub other_vlan: f64,
    /// The device reports something else about its checksum than for the rest of the flow.
    pub other_checksum_state: f64,
}

impl Impairments {
    /// No impairments.
    pub const NONE: Impairments = Impairments {
        reorder: 0.0,
        duplicate: 0.0,
        drop: 0.0,
        pad: 0.0,
        corrupt: 0.0,
        truncate: 0.0,
        other_field: 0.0,
        fragments: 0.0,
        other_protocol: 0.0,
        other_vlan: 0.0,
        other_checksum_state: 0.0,
    };
}

impl Impairments {
    /// Impairs about a third of all packets, nearly half of these in a header field.
    pub fn traps() -> Self {
        Impairments {
            other_field: 0.15,
            corrupt: 0.05,
            pad: 0.05,
            truncate: 0.02,
            fragments: 0.02,
            other_protocol: 0.05,
            ..Impairments::default()
        }
    }
}

impl Default for Impairments {
    /// Impairs about one packet in ten.
    fn default() -> Self {
        Impairments {
            reorder: 0.01,
            duplicate: 0.005,
            drop: 0.01,
            pad: 0.01,
            corrupt: 0.01,
            truncate: 0.005,
            other_field: 0.03,
            fragments: 0.005,
            other_protocol: 0.01,
            other_vlan: 0.003,
            other_checksum_state: 0.005,
        }
    }
}

/// What traffic to make.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How many flows are alive at a time, at least 1.
    pub flows: usize,
    /// How many bursts a flow sends before another takes its place, at least 1.
    pub lifetime: usize,
    /// Full-sized packets in a burst: from the first to the second number, both included and at
    /// least 1.
    pub burst: (usize, usize),
    /// The combinations of protocol and tunnel that flows take in turn, at least one.
    pub combinations: Vec<Combination>,
    /// Share of flows in VLAN tags (in the frame or stripped), PPPoE or MPLS, or without a link
    /// header.
    pub encapsulated: f64,
    /// Share of flows with an unusual header in all their packets.
    pub unusual_headers: f64,
    /// Share of flows whose checksums the device knows something of.
    pub offloaded: f64,
    /// How often packets are impaired.
    pub impairments: Impairments,
}

impl Default for Config {
    /// One flow for each of [`Combination::all`], bursts of 4 to 24.
    fn default() -> Self {
        let combinations = Combination::all();
        Config {
            flows: combinations.len(),
            lifetime: 4,
            burst: (4, 24),
            combinations,
            encapsulated: 0.5,
            unusual_headers: 0.3,
            offloaded: 0.5,
            impairments: Impairments::default(),
        }
    }
}

/// Returns the first `packets` packets of a seed's traffic.
///
/// # Panics
/// As [`stream()`].
pub fn generate(seed: u64, config: &Config, packets: usize) -> Vec<Generated> {
    stream(seed, config.clone()).take(packets).collect()
}

/// Returns a seed's traffic as an iterator without end, in memory that does not grow.
///
/// # Panics
/// If a number of the configuration is below its least value.
pub fn stream(seed: u64, config: Config) -> Stream {
    Stream::new(seed, config)
}

/// What kind of checksum knowledge a flow's device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knowledge {
    Unknown,
    Verified,
    Complete,
    Partial,
}

impl Knowledge {
    /// The truth of this kind about these bytes; [`Checksum::Unknown`] where there is none.
    fn about(self, bytes: &[u8], starts_at_ip: bool) -> Checksum {
        let expect = check::Expect {
            starts_at_ip,
            trailing: true,
            partial: self == Knowledge::Partial,
            big: true,
        };
        match self {
            Knowledge::Unknown => Checksum::Unknown,
            Knowledge::Complete => Checksum::Complete(checksum::sum(
                bytes.get(if starts_at_ip { 0 } else { 14 }..).unwrap_or(&[]),
            )),
            Knowledge::Verified => match check::frame(bytes, &expect) {
                Ok(checked) if checked.checksums > 0 && !checked.fragment => {
                    Checksum::Verified { level: (checked.checksums - 1) as u8 }
                }
                _ => Checksum::Unknown,
            },
            Knowledge::Partial => match check::frame(bytes, &expect) {
                Ok(check::Checked { partial: Some(field), layers, .. }) => {
                    let start = layers.last().map_or(0, |layer| layer.offset);
                    Checksum::Partial { start: start as u16, offset: (field - start) as u16 }
                }
                _ => Checksum::Unknown,
            },
        }
    }
}
