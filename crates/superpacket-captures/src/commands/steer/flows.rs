//! The flows of a capture, up to a limit.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;

use serde::ser::{Serialize, SerializeStruct, Serializer};
use superpacket::packet::FlowHash;
use superpacket::wire::{IpVersion, protocol};
use superpacket_steer::{Cpu, FlowTuple};

/// Maximum flows that are listed. It keeps the table below 15 MB while it grows.
pub(super) const MOST_FLOWS: usize = 100_000;

#[derive(Clone, Debug)]
struct FlowTally {
    /// Position of the flow, from 0, in the order in which the first packets of all flows came.
    order: u32,
    hash: FlowHash,
    cpu: Option<Cpu>,
    packets: u64,
    flow_limited: u64,
}

/// The first flows of the capture, up to [`MOST_FLOWS`], and the number of packets of all further
/// flows.
#[derive(Debug, Default)]
pub(super) struct Flows {
    flows: HashMap<FlowTuple, FlowTally>,
    left_out: u64,
}

impl Flows {
    /// Counts a packet. Returns whether it is the first of a listed flow.
    pub(super) fn count(
        &mut self,
        tuple: FlowTuple,
        hash: FlowHash,
        cpu: Option<Cpu>,
        limited: bool,
    ) -> bool {
        let listed = self.flows.len();
        match self.flows.entry(tuple) {
            Entry::Occupied(mut tally) => {
                let tally = tally.get_mut();
                tally.packets += 1;
                tally.flow_limited += u64::from(limited);
                false
            }
            Entry::Vacant(place) if listed < MOST_FLOWS => {
                place.insert(FlowTally {
                    order: listed as u32,
                    hash,
                    cpu,
                    packets: 1,
                    flow_limited: u64::from(limited),
                });
                true
            }
            Entry::Vacant(_) => {
                self.left_out += 1;
                false
            }
        }
    }

    /// Returns the number of packets of flows that are not listed.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Returns the flows, sorted by packets in descending order.
    pub(super) fn into_rows(self) -> Vec<SteeredFlow> {
        let mut rows: Vec<_> = self.flows.into_iter().collect();
        rows.sort_by_key(|(_, tally)| (std::cmp::Reverse(tally.packets), tally.order));
        rows.into_iter().map(|(tuple, tally)| SteeredFlow { tuple, tally }).collect()
    }
}

/// A flow, and the CPU to which it would be steered.
#[derive(Clone, Debug)]
pub struct SteeredFlow {
    tuple: FlowTuple,
    tally: FlowTally,
}

impl SteeredFlow {
    /// Returns the source address.
    pub fn source(&self) -> IpAddr {
        self.tuple.source()
    }

    /// Returns the destination address.
    pub fn destination(&self) -> IpAddr {
        self.tuple.destination()
    }

    /// Returns the source and the destination port; `None` for fragments and protocols without
    /// ports.
    pub fn ports(&self) -> Option<[u16; 2]> {
        self.tuple.ports()
    }

    /// Returns the protocol's name as in /etc/protocols, or its number.
    pub fn protocol(&self) -> String {
        protocol_name(&self.tuple)
    }

    /// Returns the flow's hash.
    pub fn hash(&self) -> u32 {
        self.tally.hash.0
    }

    /// Returns the number of the CPU to which the flow's packets would be steered; `None` if they
    /// stay on the CPU that receives them.
    pub fn cpu(&self) -> Option<usize> {
        self.tally.cpu.map(Cpu::number)
    }

    /// Returns the number of packets in all flows.
    pub fn packets(&self) -> u64 {
        self.tally.packets
    }

    /// Returns the number of the flow's packets that the flow limit would drop.
    pub fn flow_limited(&self) -> u64 {
        self.tally.flow_limited
    }
}

impl Serialize for SteeredFlow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ports = self.ports();
        let mut row = serializer.serialize_struct("SteeredFlow", 9)?;
        row.serialize_field("src", &self.source())?;
        row.serialize_field("dst", &self.destination())?;
        row.serialize_field("sport", &ports.map(|[source, _]| source))?;
        row.serialize_field("dport", &ports.map(|[_, destination]| destination))?;
        row.serialize_field("proto", &self.protocol())?;
        row.serialize_field("hash", &format!("{:08x}", self.hash()))?;
        row.serialize_field("cpu", &self.cpu())?;
        row.serialize_field("packets", &self.packets())?;
        row.serialize_field("flow_limited", &self.flow_limited())?;
        row.end()
    }
}

/// Formats the flow as reports print it: `TCP 10.0.0.1:80 > 10.0.0.2:4000`.
impl std::fmt::Display for SteeredFlow {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = |address: IpAddr, port: Option<u16>| match (address, port) {
            (IpAddr::V6(address), Some(port)) => format!("[{address}]:{port}"),
            (IpAddr::V4(address), Some(port)) => format!("{address}:{port}"),
            (address, None) => address.to_string(),
        };
        let [source, destination] = match self.ports() {
            Some(ports) => ports.map(Some),
            None => [None; 2],
        };
        let (source, destination) =
            (end(self.source(), source), end(self.destination(), destination));
        write!(formatter, "{} {source} > {destination}", self.protocol().to_uppercase())
    }
}

/// Returns the protocol's name as in /etc/protocols, or its number.
fn protocol_name(tuple: &FlowTuple) -> String {
    let number = tuple.protocol().unwrap_or(0);
    let name = match (number, tuple.version()) {
        (1, IpVersion::V4) => "icmp",
        (2, IpVersion::V4) => "igmp",
        (protocol::IPIP, _) => "ipip",
        (protocol::TCP, _) => "tcp",
        (protocol::UDP, _) => "udp",
        (protocol::DCCP, _) => "dccp",
        (protocol::IPV6, _) => "ipv6",
        (protocol::GRE, _) => "gre",
        (50, _) => "esp",
        (51, _) => "ah",
        (58, IpVersion::V6) => "icmpv6",
        (89, _) => "ospf",
        (protocol::SCTP, _) => "sctp",
        _ => return number.to_string(),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(index: u32) -> FlowTuple {
        FlowTuple::v4(index.to_be_bytes(), [10, 0, 0, 1], Some([1, 2]))
    }

    #[test]
    fn the_number_of_listed_flows_is_limited() {
        let mut flows = Flows::default();
        for round in 0..2 {
            for index in 0..MOST_FLOWS as u32 + 500 {
                let is_new = flows.count(tuple(index), FlowHash(index), None, false);
                assert_eq!(is_new, round == 0 && (index as usize) < MOST_FLOWS);
            }
        }
        assert_eq!(flows.left_out(), 1000);
        flows.count(tuple(7), FlowHash(7), Cpu::new(3), true);
        let rows = flows.into_rows();
        assert_eq!(rows.len(), MOST_FLOWS);
        assert_eq!((rows[0].hash(), rows[0].packets(), rows[0].flow_limited()), (7, 3, 1));
        assert!(
            rows[1..]
                .iter()
                .map(|row| row.hash())
                .eq((0..MOST_FLOWS as u32).filter(|&index| index != 7)),
            "in the order they came"
        );
    }

    #[test]
    fn a_flow_is_formatted_with_addresses_and_ports() {
        let tally = FlowTally {
            order: 0,
            hash: FlowHash(0x1a),
            cpu: Cpu::new(2),
            packets: 5,
            flow_limited: 0,
        };
        let six = FlowTuple::v6([0xfe; 16], [1; 16], Some([80, 90]));
        let row = SteeredFlow { tuple: six, tally: tally.clone() };
        assert_eq!(
            row.to_string(),
            "0 [fefe:fefe:fefe:fefe:fefe:fefe:fefe:fefe]:80 > [101:101:101:101:101:101:101:101]:90"
        );
        let value = serde_json::to_value(&row).expect("serializes");
        assert_eq!(
            (value["hash"].as_str(), value["cpu"].as_u64(), value["sport"].as_u64()),
            (Some("0000001a"), Some(2), Some(80))
        );
        let four = FlowTuple::v4([1, 2, 3, 4], [5, 6, 7, 8], None);
        assert_eq!(SteeredFlow { tuple: four, tally }.to_string(), "0 1.2.3.4 > 5.6.7.8");
    }
}
