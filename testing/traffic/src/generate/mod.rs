//! A seeded generator of traffic. Most packets are realistic; the others are unusual or invalid.
//!
//! Flows of every protocol through every tunnel send bursts in both directions. [`Impairments`]
//! then reorder, duplicate, drop, pad, tag, corrupt, truncate and vary single packets. The same
//! seed and configuration give the same packets on every platform.

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

    /// Returns whether the innermost IP header is IPv6.
    pub fn is_v6(self) -> bool {
        matches!(self, Protocol::Tcp6 | Protocol::Udp6 | Protocol::Dccp6)
    }
}

/// The tunnel around the packets of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tunnel {
    /// No tunnel.
    None,
    /// VXLAN over IPv4.
    Vxlan4,
    /// VXLAN over IPv6.
    Vxlan6,
    /// Geneve over IPv4 or IPv6.
    Geneve,
    /// GRE over IPv4 or IPv6.
    Gre,
    /// IPv4 in IPv4.
    Ipip,
    /// IPv6 in IPv4 (6in4).
    Sit,
    /// IPv4 in IPv6.
    FourInSix,
    /// IPv6 in IPv6.
    SixInSix,
    /// VXLAN or Geneve in VXLAN or Geneve, each over either IP version. In Geneve, with or without
    /// Linux's GRO hint.
    Nested,
}

/// A combination of protocol and tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Combination {
    /// The innermost protocol.
    pub protocol: Protocol,
    /// The tunnel around the packets.
    pub tunnel: Tunnel,
}

impl Combination {
    /// Returns all 48 possible combinations. Each IP-in-IP tunnel carries only one IP version.
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

/// The checksum state of a packet as a device reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Checksum {
    /// The device reports no checksum state.
    Unknown,
    /// `level + 1` non-zero transport checksums are valid, from the outermost on (GRE's included).
    Verified {
        /// Number of verified checksums, minus one.
        level: u8,
    },
    /// The one's-complement sum, not inverted, of all bytes behind the 14-byte Ethernet header, or
    /// of all bytes of a packet that starts at IP. VLAN tags and padding are included. It is the
    /// sum of big-endian words.
    Complete(u16),
    /// The innermost transport checksum is partial.
    Partial {
        /// Offset of the transport header, in bytes from the start of the packet.
        start: u16,
        /// Offset of the checksum field from the transport header, in bytes.
        offset: u16,
    },
}

/// A generated packet, and the metadata that a device would report.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Generated {
    /// The packet.
    pub bytes: Vec<u8>,
    /// Whether the packet starts at IP instead of Ethernet.
    pub starts_at_ip: bool,
    /// A VLAN tag that the device stripped: tag protocol and control information.
    pub stripped_vlan: Option<(u16, u16)>,
    /// The checksum state that the device reports. It is true for these bytes, whatever impairments
    /// they have.
    pub checksum: Checksum,
    /// Arrival time in nanoseconds from the start; never earlier than that of the previous packet.
    pub time_ns: u64,
    /// The kind of flow that sent the packet. Impairments may have changed the packet's actual
    /// flow, see [`crate::check::flow_key`].
    pub combination: Combination,
    /// Number that identifies flow and direction: twice the flow's number, plus one if the packet
    /// comes from the server.
    ///
    /// Other packets between the same hosts (ICMP, ARP, ...) have the number of the flow in which
    /// they occur.
    pub flow: u32,
}

/// The probability per packet of each impairment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Impairments {
    /// Probability that the packet is swapped with one of the next four.
    pub reorder: f64,
    /// Probability that the packet arrives twice.
    pub duplicate: f64,
    /// Probability that the packet is lost.
    pub drop: f64,
    /// Probability that padding follows the packet: zeros, random bytes, one byte, or a frame check
    /// sequence.
    pub pad: f64,
    /// Probability that one bit of the packet is inverted.
    pub corrupt: f64,
    /// Probability that the packet is truncated.
    pub truncate: f64,
    /// Probability that one header field differs from that of the flow, or that a checksum or
    /// length is wrong.
    pub other_field: f64,
    /// Probability that the packet arrives as IP fragments.
    pub fragments: f64,
    /// Probability that a packet of another protocol between the same hosts precedes the packet.
    pub other_protocol: f64,
    /// Probability that the stripped VLAN tag differs from that of the flow.
    pub other_vlan: f64,
    /// Probability that the device reports another checksum state than for the rest of the flow.
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
    /// Returns probabilities by which about a third of all packets are impaired, nearly half of
    /// these in a header field.
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
    /// Returns probabilities by which about one packet in ten is impaired.
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

/// The configuration of a generator.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Number of concurrent flows; at least 1.
    pub flows: usize,
    /// Number of bursts of a flow, until another flow takes its place; at least 1.
    pub lifetime: usize,
    /// Minimum and maximum of full-sized packets per burst; at least 1.
    pub burst: (usize, usize),
    /// The combinations of protocol and tunnel, which flows use in turn; at least one.
    pub combinations: Vec<Combination>,
    /// Share of flows with VLAN tags (in the frame or stripped), PPPoE or MPLS, or without a link
    /// header.
    pub encapsulated: f64,
    /// Share of flows with an unusual header in all their packets.
    pub unusual_headers: f64,
    /// Share of flows whose checksum state the device reports.
    pub offloaded: f64,
    /// The probabilities of impairments.
    pub impairments: Impairments,
}

impl Default for Config {
    /// Returns a configuration with as many flows as [`Combination::all`] has entries, and bursts
    /// of 4 to 24 packets.
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

/// Returns a seed's traffic as an endless iterator, whose memory does not grow.
///
/// # Panics
/// If a number of the configuration is below its minimum.
pub fn stream(seed: u64, config: Config) -> Stream {
    Stream::new(seed, config)
}

/// The kind of checksum state that the device reports for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReportedState {
    Unknown,
    Verified,
    Complete,
    Partial,
}

impl ReportedState {
    /// Returns the checksum state of this kind that a device would report for these bytes;
    /// [`Checksum::Unknown`] if it could not report one.
    fn true_for(self, bytes: &[u8], starts_at_ip: bool) -> Checksum {
        let expect = check::Expect {
            starts_at_ip,
            trailing: true,
            partial: self == ReportedState::Partial,
            big: true,
        };
        match self {
            ReportedState::Unknown => Checksum::Unknown,
            ReportedState::Complete => Checksum::Complete(checksum::sum(
                bytes.get(if starts_at_ip { 0 } else { 14 }..).unwrap_or(&[]),
            )),
            ReportedState::Verified => match check::frame(bytes, &expect) {
                Ok(checked) if checked.checksums > 0 && !checked.fragment => {
                    Checksum::Verified { level: (checked.checksums - 1) as u8 }
                }
                _ => Checksum::Unknown,
            },
            ReportedState::Partial => match check::frame(bytes, &expect) {
                Ok(check::Checked { partial: Some(field), layers, .. }) => {
                    let start = layers.last().map_or(0, |layer| layer.offset);
                    Checksum::Partial { start: start as u16, offset: (field - start) as u16 }
                }
                _ => Checksum::Unknown,
            },
        }
    }
}
