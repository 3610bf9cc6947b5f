//! The flows with the most bytes, found in fixed memory (the Space-Saving algorithm of Metwally,
//! Agrawal and El Abbadi, 2005).
//!
//! A fixed number of flows is counted. A new flow replaces the smallest, and inherits its bytes as
//! an error bound. So a flow with more than 1/512 of all bytes is never missed. Reports show the
//! bytes counted since the flow was added: they are exact for flows without inherited bytes, and a
//! lower bound for the others.
//!
//! Lists of several captures, or of parts of one, can be added. A flow that is missing in one list
//! may have had as many bytes there as the largest flow that was replaced, so it inherits these.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use superpacket::packet::Layer;
use superpacket::wire::{IpVersion, Protocol, Tunnel, ipv4, ipv6, parse};

use crate::commands::checksums::be16;
use crate::commands::ledger::FlowId;

/// Maximum number of flows that are counted individually at a time.
const MAX_FLOWS: usize = 512;

/// The end points of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label {
    version: IpVersion,
    addresses: [u8; 32],
    ports: [u16; 2],
    protocol: Protocol,
    tunnel: Option<Tunnel>,
}

impl Label {
    /// Returns the end points of a packet; `None` if it has no ports.
    pub(super) fn of(packet: &[u8], layer: Layer) -> Option<Label> {
        let layout = parse(packet, packet.len(), layer).ok()?;
        let (network, transport) = (usize::from(layout.network), usize::from(layout.transport));
        let bytes = match layout.version {
            IpVersion::V4 => {
                packet.get(network + ipv4::ADDRESSES..network + ipv4::ADDRESSES + 8)?
            }
            IpVersion::V6 => {
                packet.get(network + ipv6::ADDRESSES..network + ipv6::ADDRESSES + 32)?
            }
        };
        let mut addresses = [0; 32];
        addresses.get_mut(..bytes.len())?.copy_from_slice(bytes);
        let ports = [be16(packet, transport)?, be16(packet, transport + 2)?];
        Some(Label {
            version: layout.version,
            addresses,
            ports,
            protocol: layout.protocol,
            tunnel: layout.outer.map(|outer| outer.tunnel),
        })
    }

    /// Returns the IP address of the sender (`which` is 0) or of the receiver (1).
    pub(super) fn address(&self, which: usize) -> IpAddr {
        match self.version {
            IpVersion::V4 => {
                let mut octets = [0; 4];
                octets.copy_from_slice(&self.addresses[4 * which..4 * which + 4]);
                IpAddr::V4(Ipv4Addr::from(octets))
            }
            IpVersion::V6 => {
                let mut octets = [0; 16];
                octets.copy_from_slice(&self.addresses[16 * which..16 * which + 16]);
                IpAddr::V6(Ipv6Addr::from(octets))
            }
        }
    }

    /// Returns the port number of the sender (`which` is 0) or of the receiver (1).
    pub(super) fn port(&self, which: usize) -> u16 {
        self.ports[which]
    }

    /// Returns the protocol's name.
    pub(super) fn protocol(&self) -> &'static str {
        match self.protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Dccp => "DCCP",
        }
    }

    /// Returns the name of the outermost tunnel, if there is one.
    pub(super) fn tunnel(&self) -> Option<&'static str> {
        self.tunnel.map(Tunnel::title)
    }

    fn end(&self, which: usize) -> String {
        let port = self.ports[which];
        match self.address(which) {
            IpAddr::V4(address) => format!("{address}:{port}"),
            IpAddr::V6(address) => format!("[{address}]:{port}"),
        }
    }
}

impl std::fmt::Display for Label {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} {} > {}", self.protocol(), self.end(0), self.end(1))?;
        match self.tunnel() {
            Some(tunnel) => write!(formatter, " ({tunnel})"),
            None => Ok(()),
        }
    }
}

#[derive(Clone, Debug)]
struct FlowEntry {
    flow: FlowId,
    label: Label,
    /// Number of bytes of the flows whose entry this flow has taken, which are counted as if they
    /// were its own.
    inherited: u64,
    packets: u64,
    packets_out: u64,
}

/// A flow in the list of flows with the most bytes.
#[derive(Clone, Debug, Serialize)]
pub struct TopFlow {
    /// Protocol and end points: `TCP 10.0.0.1:443 > 10.3.0.0:10000`.
    pub flow: String,
    /// Number of packets of the flow in the capture.
    pub packets_in: u64,
    /// Number of bytes of the flow's frames in the capture, link headers included.
    pub bytes: u64,
    /// Number of packets after aggregation by the policy GRO with UDP.
    pub packets_out: u64,
    /// Whether the packet and byte counts are exact; otherwise they are lower bounds.
    pub exact: bool,
}

/// The flows with the most bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct TopFlows {
    places: HashMap<FlowId, usize>,
    entries: Vec<FlowEntry>,
    /// Bytes of each flow, inherited ones included. They are kept apart so that the smallest is
    /// found fast.
    bytes: Vec<u64>,
    /// Upper bound of the number of bytes of a flow that has no entry.
    missed: u64,
}

impl TopFlows {
    /// Counts a packet that was captured.
    pub(super) fn count(&mut self, flow: FlowId, label: Label, length: usize) {
        let place = self.place(flow, label);
        self.bytes[place] += length as u64;
        self.entries[place].packets += 1;
    }

    /// Counts a packet that left the aggregator, if its flow has an entry.
    pub(super) fn left(&mut self, flow: FlowId) {
        if let Some(&place) = self.places.get(&flow) {
            self.entries[place].packets_out += 1;
        }
    }

    /// Adds the flows of another capture, or of another part of the same.
    pub(super) fn add(&mut self, other: &TopFlows) {
        for (entry, bytes) in self.entries.iter_mut().zip(&mut self.bytes) {
            if !other.places.contains_key(&entry.flow) {
                entry.inherited += other.missed;
                *bytes += other.missed;
            }
        }
        for (more, bytes) in other.entries.iter().zip(&other.bytes) {
            let place = match self.places.get(&more.flow) {
                Some(&place) => place,
                None => self.push(
                    FlowEntry {
                        inherited: self.missed,
                        packets: 0,
                        packets_out: 0,
                        ..more.clone()
                    },
                    self.missed,
                ),
            };
            self.bytes[place] += bytes;
            let entry = &mut self.entries[place];
            entry.inherited += more.inherited;
            entry.packets += more.packets;
            entry.packets_out += more.packets_out;
        }
        self.missed += other.missed;
        if self.entries.len() > MAX_FLOWS {
            *self = self.largest(MAX_FLOWS);
        }
    }

    /// Returns the `count` flows with the most bytes, counting the bytes that an entry inherited
    /// from the flows that it replaced.
    pub(super) fn largest(&self, count: usize) -> TopFlows {
        let mut order: Vec<usize> = (0..self.entries.len()).collect();
        order.sort_by_key(|&place| (std::cmp::Reverse(self.bytes[place]), place));
        let left_out = order.get(count).map_or(0, |&place| self.bytes[place]);
        order.truncate(count);
        let mut largest = TopFlows { missed: self.missed.max(left_out), ..TopFlows::default() };
        for place in order {
            largest.push(self.entries[place].clone(), self.bytes[place]);
        }
        largest
    }

    fn push(&mut self, entry: FlowEntry, bytes: u64) -> usize {
        self.places.insert(entry.flow, self.entries.len());
        self.entries.push(entry);
        self.bytes.push(bytes);
        self.entries.len() - 1
    }

    fn place(&mut self, flow: FlowId, label: Label) -> usize {
        if let Some(&place) = self.places.get(&flow) {
            return place;
        }
        let fresh = FlowEntry { flow, label, inherited: self.missed, packets: 0, packets_out: 0 };
        if self.entries.len() < MAX_FLOWS {
            return self.push(fresh, self.missed);
        }
        let place = (0..MAX_FLOWS).min_by_key(|&place| self.bytes[place]).unwrap_or(0);
        self.missed = self.missed.max(self.bytes[place]);
        self.places.remove(&self.entries[place].flow);
        self.places.insert(flow, place);
        self.entries[place] = FlowEntry { inherited: self.bytes[place], ..fresh };
        place
    }

    /// Returns the `count` flows with the most bytes, not counting the bytes that an entry
    /// inherited from the flows that it replaced.
    pub(super) fn rows(&self, count: usize) -> Vec<TopFlow> {
        let mut order: Vec<usize> = (0..self.entries.len()).collect();
        let own = |place: usize| self.bytes[place] - self.entries[place].inherited;
        order.sort_by_key(|&place| (std::cmp::Reverse(own(place)), place));
        let row = |place: usize| {
            let entry = &self.entries[place];
            TopFlow {
                flow: entry.label.to_string(),
                packets_in: entry.packets,
                bytes: own(place),
                packets_out: entry.packets_out.min(entry.packets),
                exact: entry.inherited == 0,
            }
        };
        order.into_iter().take(count).map(row).collect()
    }
}

/// A flow with its counts, as it is written to JSON.
#[derive(Serialize, Deserialize)]
struct FlowJson {
    flow: FlowId,
    protocol: u8,
    /// The outermost tunnel, as an index into [`Tunnel::ALL`].
    tunnel: Option<usize>,
    source: IpAddr,
    destination: IpAddr,
    ports: [u16; 2],
    /// Number of bytes, including those of `inherited`: of the flow whose place in the list this
    /// one took.
    bytes: u64,
    inherited: u64,
    packets: u64,
    packets_out: u64,
}

/// The protocols that lists contain.
const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Dccp];

impl FlowJson {
    fn label(&self) -> Option<Label> {
        let mut addresses = [0; 32];
        let version = match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                addresses[..4].copy_from_slice(&source.octets());
                addresses[4..8].copy_from_slice(&destination.octets());
                IpVersion::V4
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                addresses[..16].copy_from_slice(&source.octets());
                addresses[16..].copy_from_slice(&destination.octets());
                IpVersion::V6
            }
            _ => return None,
        };
        let protocol = PROTOCOLS.into_iter().find(|protocol| protocol.number() == self.protocol)?;
        let tunnel = match self.tunnel {
            Some(number) => Some(*Tunnel::ALL.get(number)?),
            None => None,
        };
        Some(Label { version, addresses, ports: self.ports, protocol, tunnel })
    }
}

/// The flows with the most bytes, as they are written to JSON.
#[derive(Serialize, Deserialize)]
struct FlowListJson {
    missed: u64,
    flows: Vec<FlowJson>,
}

impl Serialize for TopFlows {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let written = self.entries.iter().zip(&self.bytes).map(|(entry, &bytes)| FlowJson {
            flow: entry.flow,
            protocol: entry.label.protocol.number(),
            tunnel: entry
                .label
                .tunnel
                .and_then(|tunnel| Tunnel::ALL.iter().position(|&other| other == tunnel)),
            source: entry.label.address(0),
            destination: entry.label.address(1),
            ports: entry.label.ports,
            bytes,
            inherited: entry.inherited,
            packets: entry.packets,
            packets_out: entry.packets_out,
        });
        FlowListJson { missed: self.missed, flows: written.collect() }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for TopFlows {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let list = FlowListJson::deserialize(deserializer)?;
        let mut flows = TopFlows { missed: list.missed, ..TopFlows::default() };
        for written in list.flows {
            let label = written.label().ok_or_else(|| {
                D::Error::custom("a flow has an address pair, protocol or tunnel that this version does not know")
            })?;
            if written.inherited > written.bytes || flows.places.contains_key(&written.flow) {
                return Err(D::Error::custom("a list of flows contradicts itself"));
            }
            let (packets, packets_out, inherited) =
                (written.packets, written.packets_out, written.inherited);
            flows.push(
                FlowEntry { flow: written.flow, label, inherited, packets, packets_out },
                written.bytes,
            );
        }
        Ok(flows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(port: u16) -> Label {
        Label {
            version: IpVersion::V4,
            addresses: [1; 32],
            ports: [port, 443],
            protocol: Protocol::Tcp,
            tunnel: None,
        }
    }

    #[test]
    fn heavy_flows_are_found_among_many() {
        let mut top = TopFlows::default();
        for round in 0..100_000u64 {
            top.count(FlowId::from_number(1_000_000 + round), label(1), 60);
            if round % 50 == 0 {
                top.count(FlowId::from_number(7), label(7), 15_000);
            }
            if round % 100 == 0 {
                top.count(FlowId::from_number(8), label(8), 15_000);
                top.left(FlowId::from_number(8));
            }
        }
        let rows = top.rows(2);
        assert_eq!(rows[0].flow, "TCP 1.1.1.1:7 > 1.1.1.1:443");
        assert_eq!((rows[0].packets_in, rows[0].bytes, rows[0].exact), (2000, 30_000_000, true));
        assert_eq!((rows[1].packets_in, rows[1].packets_out), (1000, 1000));
        assert_eq!(top.entries.len(), MAX_FLOWS);
        assert_eq!(top.places.len(), MAX_FLOWS);
        let mut both = TopFlows::default();
        both.add(&top);
        both.add(&top);
        assert_eq!(both.rows(1)[0].bytes, 60_000_000);
    }

    #[test]
    fn sums_of_incomplete_lists_are_lower_bounds() {
        let (mut first, mut second) = (TopFlows::default(), TopFlows::default());
        for round in 0..600u64 {
            first.count(FlowId::from_number(round), label(1), 100);
        }
        first.count(FlowId::from_number(9999), label(9), 100_000);
        second.count(FlowId::from_number(7777), label(7), 90_000);
        second.count(FlowId::from_number(9999), label(9), 1000);
        assert!(first.missed >= 100 && second.missed == 0);
        let mut both = first.clone();
        both.add(&second);
        let mut turned = second.clone();
        turned.add(&first);
        for sum in [both, turned] {
            assert_eq!((sum.entries.len(), sum.places.len()), (MAX_FLOWS, MAX_FLOWS));
            let rows = sum.rows(2);
            assert_eq!(
                (rows[0].bytes, rows[0].packets_in, rows[1].bytes, rows[1].packets_in),
                (101_000, 2, 90_000, 1)
            );
            assert!(!rows[1].exact, "it may have been among those that the first list gave up");
        }
    }

    #[test]
    fn lists_come_back_from_json() {
        let mut list = TopFlows::default();
        let tunnelled = Label { tunnel: Some(Tunnel::Gre), version: IpVersion::V6, ..label(5) };
        list.count(FlowId::from_number(u64::MAX), tunnelled, 900);
        list.count(FlowId::from_number(1), label(1), 1000);
        list.left(FlowId::from_number(1));
        let json = serde_json::to_string(&list).expect("serializes");
        let again: TopFlows = serde_json::from_str(&json).expect("reads");
        let text = |list: &TopFlows| serde_json::to_string(&list.rows(9)).expect("serializes");
        assert_eq!(text(&again), text(&list));
        assert!(text(&again).contains("(GRE)") && again.entries[0].label == tunnelled);
        let smallest = list.largest(1);
        assert_eq!((smallest.missed, smallest.entries.len(), smallest.bytes[0]), (900, 1, 1000));
        assert!(
            serde_json::from_str::<TopFlows>(&json.replace("\"protocol\":6", "\"protocol\":99"))
                .is_err()
        );
    }
}
